"""`--tools`, `clawmode tools` and `clawmode config check`: what is there, and every mistake."""

import json
import re
import sys
from collections.abc import Iterator
from importlib import invalidate_caches
from pathlib import Path

import pytest
import typer
from tests.support.cli_driver import SHOP, answer, clawmode
from tests.support.mcp_driver import listed
from typer.testing import CliRunner

from clawmode.app.loading import check, read_policy
from clawmode.app.setup import Options, state_folder
from clawmode.commands.cli import app
from clawmode.exceptions import ConfigurationError
from clawmode.tools.loading import load_tools

TOOLS = ("--tools", "shop:TOOLS")


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("CLAWMODE_CONFIG", raising=False)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with tools in it."""
    (tmp_path / "shop.py").write_text(SHOP, "utf-8")
    return tmp_path


def write(folder: Path, **modules: str) -> None:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, "utf-8")


@pytest.mark.covers("N-3")
def test_the_page_of_an_mcp_tool_shows_a_call_that_works(tmp_path: Path) -> None:
    servers = {"my-time": listed({"name": "convert_time", "inputSchema": {"type": "object"}})}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}), "utf-8")
    options = ("--mcp-config", "servers.json")
    page = clawmode("tools", "show", "mcp:my-time:convert_time", *options, cwd=tmp_path)
    (call,) = [line for line in page.stdout.splitlines() if line.startswith("call: ")]
    assert call.startswith("call: MCP.myTime.convertTime(")
    (tmp_path / "cell.js").write_text(f"return await {call[6:].partition('(')[0]}()", "utf-8")
    ran = clawmode("run", "cell.js", "--approve", "always", *options, cwd=tmp_path)
    assert "convert_time" in ran.stdout


def test_what_servers_write_to_stderr_is_in_their_log_and_not_between_the_output(
    tmp_path: Path,
) -> None:
    words = "import sys; print('it rains', file=sys.stderr)"
    servers = {"broken": {"command": sys.executable, "args": ["-c", words]}}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}), "utf-8")
    (tmp_path / "cell.js").write_text("return 1", "utf-8")
    ran = clawmode("run", "cell.js", "--mcp-config", "servers.json", cwd=tmp_path)
    (said,) = [line for line in ran.stderr.splitlines() if "it rains" in line]
    assert said.startswith("clawmode: MCP server broken: ")
    (log,) = [line.rpartition(" is in ")[2] for line in ran.stderr.splitlines() if ".log" in line]
    assert "broken: it rains" in Path(log).read_text("utf-8")


# ---- Loading ----

ODD = """from shop import TOOLS, order, price
from dataclasses import replace

def takes(a): ...
def raises(): raise ValueError("two\\nlines")
def leaves(): raise SystemExit("go away")
async def later(): return TOOLS
def endless():
    while True:
        yield replace(price, name="x")
def broken():
    yield price
    1 / 0
def plain(a: int) -> int:
    return a
def several():
    yield price
    yield order

class Bag:
    tools = (price,)
    @property
    def bad(self): raise RuntimeError("no such thing")

mixed = [price, plain]
twice = [price, replace(price, description="another")]
text, number, nothing, mapping, bag = "abc", 7, None, {"a": price}, Bag()
"""


@pytest.fixture
def here(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as the current folder, with odd modules in it."""
    modules = {
        "odd": ODD,
        "needs": "import absent",
        "crashes": "def inner():\n    1 / 0\ninner()",
        "garbled": "def (:",
        "exits": "raise SystemExit(4)",
        "undecorated": "from clawmode import tool\n@tool\ndef f(*args): ...",
    }
    for name, text in modules.items():
        (shop / f"{name}.py").write_text(text, "utf-8")
    monkeypatch.chdir(shop)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [*modules, "shop"]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    invalidate_caches()
    return shop


@pytest.mark.parametrize(
    ("reference", "names"),
    [
        ("shop:price", ["price"]),
        ("odd:bag.tools", ["price"]),
        ("odd:several", ["price", "order"]),
        ("odd:Bag.tools", ["price"]),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_reference_leads_to_a_tool_several_or_what_returns_them(
    reference: str, names: list[str]
) -> None:
    assert [tool.name for tool in load_tools([reference])] == names


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("shop", "expected MODULE:ATTRIBUTE"),
        (":TOOLS", "expected MODULE:ATTRIBUTE"),
        ("shop:", "expected MODULE:ATTRIBUTE"),
        ("", "expected MODULE:ATTRIBUTE"),
        ("shop.py:TOOLS", "leave out the ending: shop:TOOLS"),
        ("./shop:TOOLS", "'./shop' is not the name of a module"),
        ("shop..x:TOOLS", "is not the name of a module"),
        ("nowhere:TOOLS", "there is no module 'nowhere'"),
        ("nowhere.inner:TOOLS", "there is no module 'nowhere'"),
        ("shop.inner:TOOLS", "there is no module 'shop.inner'"),
        ("needs:TOOLS", "importing 'needs' failed: ModuleNotFoundError: No module named 'absent'"),
        ("crashes:TOOLS", "ZeroDivisionError: division by zero (*crashes.py, line 2)"),
        ("garbled:TOOLS", "importing 'garbled' failed: SyntaxError"),
        ("exits:TOOLS", "importing 'exits' failed: SystemExit: 4 (*exits.py, line 1)"),
        ("undecorated:f", "(*undecorated.py, line 2)"),
        ("shop:TOOL", "'shop' has no 'TOOL'; did you mean 'TOOLS'?"),
        ("odd:bag.none", "'odd' has no 'bag.none'"),
        ("odd:bag.bad", "looking up 'bad' failed: RuntimeError: no such thing"),
        ("odd:takes", "'takes' takes arguments: decorate it with @tool"),
        ("odd:raises", "calling 'raises' failed: ValueError: two lines"),
        ("odd:leaves", "calling 'leaves' failed: SystemExit: go away"),
        ("odd:later", "'later' is async"),
        ("odd:endless", "'endless' has more than 100000 tools"),
        ("odd:broken", "iterating over 'broken' failed: ZeroDivisionError"),
        ("odd:mixed", "item 1 of 'mixed' is the function 'plain', not a Tool"),
        ("odd:twice", "two tools have the id 'openclaw:core:price'"),
        ("odd:text", "'text' gives a value of type 'str'"),
        ("odd:number", "'number' gives a value of type 'int'"),
        ("odd:nothing", "'nothing' gives None"),
        ("odd:mapping", "'mapping' gives a value of type 'dict'"),
        ("odd:Bag", "'Bag' gives a value of type 'Bag'"),
    ],
)
def test_a_wrong_reference_is_an_error_of_one_line(here: Path, reference: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load_tools([reference])
    told = str(raised.value).replace(f"{here}/", "*")
    assert told.startswith(f"--tools {reference}: ")
    assert says in told
    assert "\n" not in told


@pytest.mark.parametrize("reference", ["nonsense", "crashes:TOOLS", "odd:twice", "odd:raises"])
@pytest.mark.parametrize("command", [("run", "-"), ("tools", "list")])
def test_a_mistake_is_usage_without_a_traceback(
    here: Path, command: tuple[str, ...], reference: str
) -> None:
    done = clawmode(*command, "--tools", reference, stdin="text(1)", cwd=here)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"clawmode: --tools {reference}: ")


@pytest.mark.usefixtures("here")
def test_two_references_must_not_lead_to_one_id() -> None:
    with pytest.raises(ConfigurationError, match="the other is from 'shop:price'"):
        load_tools(["shop:price", "shop:TOOLS"])


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("{", "--policy:1:1: unclosed"),
        ("[]", "cannot read []"),
        ("nowhere.json5", "cannot read nowhere.json5"),
        ("list.json5", "expected an object"),
        ("binary.json5", "is not UTF-8"),
        ('{ alow: ["x"] }', "there is no setting 'alow'"),
        ('{ allow: "x" }', "not a list"),
        ('{ deny: ["group:nope"] }', "there is no tool group"),
        ("{ profile: 'nope' }", "there is no profile"),
        ("\0", "cannot read"),
    ],
)
def test_a_wrong_policy_is_an_error(here: Path, policy: str, says: str) -> None:
    (here / "list.json5").write_text("[]", "utf-8")
    (here / "binary.json5").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError) as raised:
        read_policy(policy)
    assert str(raised.value).startswith("--policy")
    assert says in str(raised.value)


def test_the_state_folder_is_the_named_one_or_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("CLAWMODE_STATE", raising=False)
    assert str(state_folder()) == "/home/x/.local/state/clawmode"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert str(state_folder()) == "/home/x/.local/state/clawmode"
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert str(state_folder()) == "/state/clawmode"
    monkeypatch.setenv("CLAWMODE_STATE", "~/mine")
    assert str(state_folder()) == "/home/x/mine"


def test_without_a_home_folder_the_state_folder_must_be_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HOME", "XDG_STATE_HOME", "CLAWMODE_STATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user without an entry
    with pytest.raises(ConfigurationError, match="set CLAWMODE_STATE or HOME"):
        state_folder()
    assert state_folder("/named") == Path("/named")
    assert str(state_folder("here")) == "here"


def test_the_command_that_goes_on_repeats_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bin/clawmode"])
    options = Options(
        tools=("a:b", "c:d"),
        policy='{ deny: ["it\'s"] }',
        approve="never",
        limits={"timeout_ms": 500},
    )
    assert options.resume_command("wait", "cm_1") == (
        "bin/clawmode wait cm_1 --tools a:b --tools c:d "
        """--policy '{ deny: ["it'"'"'s"] }' --approve never --timeout-ms 500"""
    )


# ---- tools ----


def test_tools_are_listed_without_the_denied_ones_unless_asked(shop: Path) -> None:
    policy = ("--policy", '{ allow: ["p*", "order"], deny: ["order"] }')
    done = clawmode("tools", "list", *TOOLS, *policy, cwd=shop)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "id                   effect  description",
        "openclaw:core:price  read    The price of an item.",
    ]
    everything = clawmode("tools", "list", "--all", "--json", *TOOLS, *policy, cwd=shop)
    tools = {tool.pop("id"): tool for tool in answer(everything)["tools"]}
    assert len(tools) == 8
    assert tools["openclaw:core:price"] == {
        "name": "price",
        "description": "The price of an item.",
        "source": "openclaw",
        "effect": "read",
        "idempotent": False,
    }
    assert "'order'" in tools["openclaw:core:order"]["denied"]
    assert "allow" in tools["openclaw:core:block"]["denied"]
    people = clawmode("tools", "list", "--all", *TOOLS, *policy, cwd=shop).stdout
    assert "denies 'order'" in people


def test_an_empty_list_says_why(shop: Path) -> None:
    assert "there are no tools: add some" in clawmode("tools", "list", cwd=shop).stderr
    (shop / "gone.json").write_text('{"mcpServers": {"gone": {"command": "./gone"}}}')
    gone = clawmode("tools", "list", "--mcp-config", "gone.json", cwd=shop)
    assert "there are no tools: no MCP server has any" in gone.stderr
    denied = clawmode("tools", "list", *TOOLS, "--policy", "{ deny: ['*'] }", cwd=shop)
    assert (denied.returncode, denied.stdout) == (0, "")
    assert "all tools are denied" in denied.stderr


def test_a_search_finds_what_a_program_finds(shop: Path) -> None:
    query = "ordering items"
    source = f"return (await tools.search({query!r})).map((tool) => tool.id)"
    program = answer(clawmode("run", "-", "--json", *TOOLS, stdin=source, cwd=shop))["value"]
    found = answer(clawmode("tools", "search", query, "--json", *TOOLS, cwd=shop))
    assert [tool["id"] for tool in found["tools"]] == program
    assert program[0] == "openclaw:core:order"
    one = clawmode("tools", "search", query, "--limit", "1", *TOOLS, cwd=shop)
    assert one.stdout.splitlines()[1:] == ["openclaw:core:order  write   Order an item for good."]


def test_a_search_without_a_match_says_so(shop: Path) -> None:
    done = clawmode("tools", "search", "zebra \x1b[2J", *TOOLS, cwd=shop)
    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing matches" in done.stderr
    assert "zebra" in done.stderr
    assert "\x1b" not in done.stderr
    as_json = answer(clawmode("tools", "search", "zebra", "--json", *TOOLS, cwd=shop))
    assert as_json == {"query": "zebra", "tools": [], "unmatched": ["zebra"]}


def test_a_tool_is_shown_with_signature_and_schema(shop: Path) -> None:
    done = clawmode("tools", "show", "order", *TOOLS, cwd=shop)
    assert done.returncode == 0
    for part in (
        "openclaw:core:order",
        "Order an item for good.",
        "tools.order({item: string, count?: number})",
        "effect: write",
        '"required": [',
    ):
        assert part in done.stdout
    page = answer(clawmode("tools", "show", "openclaw:core:order", "--json", *TOOLS, cwd=shop))
    assert page["parameters"]["required"] == ["item"]
    assert page["signature"] == "tools.order({item: string, count?: number})"


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("prise", "no tool has the id or name 'prise'; similar ids: openclaw:core:price"),
        ("qqqq", "no tool has the id or name 'qqqq'"),
        ("block", "openclaw:core:block is denied: "),
    ],
)
def test_a_tool_that_cannot_be_shown_is_status_one(shop: Path, reference: str, says: str) -> None:
    policy = ("--policy", '{ deny: ["block"] }')
    done = clawmode("tools", "show", reference, *TOOLS, *policy, cwd=shop)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr


def test_a_hostile_description_cannot_move_the_cursor(shop: Path) -> None:
    text = """from clawmode import Tool
BAD = Tool("x\\x1b[2J", "a\\x1b]0;t\\x07 [red]b[/red]\\u202e\\n\\nsecond", {}, lambda i, c: 1)"""
    (shop / "bad.py").write_text(text, "utf-8")
    done = clawmode("tools", "list", "--tools", "bad:BAD", cwd=shop)
    assert not set(done.stdout) & set("\x1b\x07\u202e")
    assert done.stdout.count("\n") == 2
    assert "[red]b[/red]" in done.stdout


# ---- config ----


def test_a_good_configuration_is_status_zero_with_its_warnings(shop: Path) -> None:
    assert "There is no configuration file" in clawmode("config", "check", cwd=shop).stdout
    (shop / "clawmode.json5").write_text("{ tools: { codeMode: { timeoutMs: 5 } } }", "utf-8")
    done = clawmode("config", "check", cwd=shop)
    assert done.returncode == 0
    assert "tools.codeMode.timeoutMs" in done.stdout
    assert "5 is under 100: 100 is used" in done.stdout


def test_a_bad_configuration_is_status_one_with_all_that_is_wrong(shop: Path) -> None:
    text = "{ tools: { codeMode: {\n  enabled: 'yes',\n  runtime: 'v8',\n  tmeoutMs: 5 } } }"
    (shop / "my.json5").write_text(text, "utf-8")
    done = clawmode("config", "check", "my.json5", cwd=shop)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "my.json5: 2 errors, 1 warning"
    rows = [re.split(r"  +", line) for line in done.stdout.splitlines()[1:]]
    assert [row[:3] for row in rows] == [
        ["kind", "place", "setting"],
        ["error", "2:3", "tools.codeMode.enabled"],
        ["error", "3:3", "tools.codeMode.runtime"],
        ["warning", "4:3", "tools.codeMode.tmeoutMs"],
    ]
    assert rows[2][3:] == ['found "v8"', '"quickjs-wasi"']
    assert "timeoutMs" in rows[3][3]
    as_json = clawmode("config", "check", "my.json5", "--json", cwd=shop)
    assert as_json.returncode == 1
    report = answer(as_json)
    assert (report["path"], len(report["errors"]), len(report["warnings"])) == ("my.json5", 2, 1)


def test_a_syntax_error_is_reported_with_line_and_column(shop: Path) -> None:
    (shop / "clawmode.json5").write_text("{\n  tools: on\n}", "utf-8")
    done = clawmode("config", "check", cwd=shop)
    assert (done.returncode, "2:10   -        expected a value" in done.stdout) == (1, True)
    missing = clawmode("config", "check", "nowhere.json5", "--json", cwd=shop)
    assert missing.returncode == 1
    assert "cannot read" in answer(missing)["errors"][0]["text"]


@pytest.mark.parametrize(
    "settings",
    [
        "{ tools: { allow: 1 } }",
        "{ agents: { list: [{ id: 'other', tools: { deny: ['group:nope'] } }] } }",
    ],
)
def test_a_policy_that_cannot_be_meant_is_found_by_the_check(shop: Path, settings: str) -> None:
    (shop / "clawmode.json5").write_text(settings, "utf-8")
    report = check(str(shop / "clawmode.json5"))
    assert [problem.path for problem in report.errors if "tools" in problem.text]


# ---- Help ----


def helps(command: object, *words: str) -> Iterator[str]:
    """What `--help` prints for a command and for all below it."""
    yield CliRunner().invoke(app, [*words, "--help"], prog_name="clawmode").output
    for name, inner in getattr(command, "commands", {}).items():
        yield from helps(inner, *words, name)


def test_help_names_values_and_cuts_nothing() -> None:
    texts = [*helps(typer.main.get_command(app))]
    assert len(texts) > 30
    for text in texts:
        usage, *lines = text.splitlines()
        assert "{" not in usage, usage
        assert not [line for line in lines if re.search(r"<\w+>|\.\.\.$", line)], text
    assert "Usage: clawmode run [OPTIONS] FILE\n" in texts[1]
    assert "\n  FILE  A JavaScript or TypeScript file, or - for stdin." in texts[1]


@pytest.mark.parametrize(
    ("typed", "offers"), [("clawmode gatew", "gateway"), ("clawmode cron a", "add")]
)
def test_the_shell_can_complete_commands(typed: str, offers: str) -> None:
    asks = {"_CLAWMODE_COMPLETE": "complete_bash", "COMP_WORDS": typed}
    asks["COMP_CWORD"] = str(typed.count(" "))
    runner = CliRunner(env=asks)
    assert runner.invoke(app, [], prog_name="clawmode").output.split() == [offers]


# ---- The page ----


def test_every_command_and_option_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text("utf-8")
    command = typer.main.get_command(app)
    missing: list[str] = []

    def visit(command: object, name: str) -> None:
        for sub, inner in getattr(command, "commands", {}).items():
            visit(inner, f"{name} {sub}".strip())
        if name and not getattr(command, "commands", {}):
            missing.extend(part for part in name.split() if part not in page)
        for param in getattr(command, "params", []):
            options = [option for option in param.opts if option.startswith("-")]
            missing.extend(option for option in options if f"`{option}" not in page)

    visit(command, "")
    assert missing == []


def commands_with(option: str) -> set[str]:
    """Every command that accepts an option, by its whole name."""
    found: set[str] = set()

    def visit(command: object, name: str) -> None:
        for sub, inner in getattr(command, "commands", {}).items():
            visit(inner, f"{name} {sub}".strip())
        if any(option in param.opts for param in getattr(command, "params", [])):
            found.add(name)

    visit(typer.main.get_command(app), "")
    return found


def test_the_table_of_common_options_names_the_commands_that_accept_them() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text("utf-8")
    table = page.partition("## Common options\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`--[^|]*(?:\\\|[^|]*)*) \| ([^|]*) \|", table, re.MULTILINE)
    assert len(rows) == 10
    for options, named in rows:
        documented = re.findall(r"`([^`]+)`", named)
        for option in re.findall(r"`(--[a-z-]+)", options):
            actual = commands_with(option)
            covered = {
                each for each in actual for name in documented if f"{each} ".startswith(name)
            }
            unused = [name for name in documented if not any(x.startswith(name) for x in actual)]
            assert (option, actual - covered, unused) == (option, set(), [])
