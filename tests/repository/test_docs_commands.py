"""Executes every block of README and docs.

Commands are typed at a terminal, with an empty home folder, in a folder with the files of a clone.
`clawmode` is the installed command, in its own processes. Only the model is simulated: a local
server replaces the provider that pages name. Programs run, and configurations are checked. Blocks
that cannot run here are in `NOT_RUN`, with the reason. A block of an unknown kind fails the test:
add a rule for it here.
"""

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
import typer
from tests.support.cli_driver import Person, plain
from tests.support.command_driver import serving
from tests.support.forking import Started
from tests.support.tool_search_driver import bodies

from clawmode.app.loading import check
from clawmode.commands.cli import app
from clawmode.config import json5
from clawmode.config.mcp import read_servers
from clawmode.core_tools.exec_approvals import HostFile
from clawmode.core_tools.patches import parse
from clawmode.plugins.staging import Material
from clawmode.sandbox.artifacts import cache_folder
from clawmode.testing import ScriptRequest, Turn, call

ROOT = Path(__file__).parents[2]
DOCS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "ARCHITECTURE.md",
]
PAGES = [str(path.relative_to(ROOT)) for path in (*DOCS, *sorted(ROOT.glob("docs/**/*.md")))]

SECONDS = 60
"""Time limit of one command, on a busy machine."""

BIN = Path(sys.executable).parent
REDIRECT = ROOT / "tests" / "support" / "redirect"
"""On `PYTHONPATH`, redirects requests of a program to the server that simulates the model."""

FIRST = "README.md"
"""The page whose commands are the installed ones; those of other pages are forked from a zygote."""

NOT_RUN = {
    "export ANTHROPIC_API_KEY=…": "needs the reader's own key; the test sets one",
    "curl http://127.0.0.1": "needs a gateway; tests/gateway/test_openai_http.py",
    "from openai import OpenAI\n\nclient = OpenAI(base_url": "as the line above",
    "make setup": "needs the network; it creates the environment of this test",
    "make demo": "tests/repository/test_examples.py runs it",
    "make test": "runs this test",
    "import pytest_asyncio": "needs a package that is not a dependency",
    "FROM python:3.13": "builds an image",
    "import asyncio\n\nfrom agent_framework import": "needs the package of a model's provider",
    "import asyncio\n\nfrom claude_agent_sdk": "needs Claude Code; test_claude_agent.py",
    "from agent_framework import": "needs the package of a model's provider",
    "from claude_agent_sdk import": "needs Claude Code; tests/integrations/test_claude_agent.py",
    "from langchain_mcp_adapters": "needs a package that is not a dependency",
    "clawmode mcp --http": "serves until somebody stops it; tests/mcp/test_face_http.py",
    "uv run --group search-tables": "needs the network and 15 minutes",
    "const orders = await helpers": "needs tools with pages; tests/code_mode/test_helpers.py",
    "tools.list_orders({status?": "signatures; tests/catalog/test_catalog.py",
    "Cursor: /home/ann": "needs a client with servers; tests/app/test_mcp_clients.py",
    '{"status":"completed"}': "a result; tests/code_mode/test_results.py",
    "KeyError: 'x' (tool": "an error; tests/code_mode/test_mistakes.py",
    "clawmode: typer is not": "needs an environment without the extra; test_extras.py",
    "clawmode dashboard": "needs a gateway and a browser; tests/browser/test_login.py",
    "from clawmode import CodeMode, PostgresStore": "needs a database; tests/postgres",
    "try {\n  return await tools.ship(": "needs a crash; tests/code_mode/test_fleet.py",
    "host process": "a drawing",
    'client   {"method": "events.since"': "an outline of frames; tests/gateway/test_live.py",
    'gateway  {"type": "event"': "an outline of frames; tests/rpc/test_protocol_page.py",
}
"""Starts of blocks and lines that are not executed, and the reason."""

ELSEWHERE = {
    (
        "docs/integrations/google-adk.md",
        "python",
    ): "tests/support/google_adk_cases.py::test_the_examples_of_the_page",
    (
        "docs/operate/channels.md",
        "sh",
    ): "tests/messaging/test_webhook_in.py::test_the_examples_of_the_page",
    (
        "docs/operate/channels.md",
        "python",
    ): "tests/messaging/test_webhook_in.py::test_the_examples_of_the",
    (
        "docs/integrations/fastmcp.md",
        "python",
    ): "tests/integrations/test_fastmcp.py::test_the_examples_of_the_page",
    (
        "docs/integrations/fastmcp.md",
        "js",
    ): "tests/integrations/test_fastmcp.py::test_the_examples_of_the_page",
    (
        "docs/integrations/langchain.md",
        "python",
    ): "tests/integrations/test_langchain.py::test_the_examples_of_the_page",
}
"""Blocks that need more setup, and the test that runs them."""


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        name: The name of the file, if the text before the block says that the block is a file.
    """

    page: str
    line: int
    language: str
    text: str
    name: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text("utf-8")
    for found in re.finditer(r"^( *)```(.*)\n((?:.*\n)*?) *```$", text, re.MULTILINE):
        before = text[: found.start()]
        name = re.search(r"`([\w.-]+\.(?:json5|json|py))`[^`\n]*:\n\n$", before)
        inner = re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE)
        line = before.count("\n") + 1
        yield Block(page, line, found[2], inner, name[1] if name else "")


# ---- The model ----


COMPARE = """\
const products = await tools.list_products(); const found = await Promise.all(
  products.map(async (product) => {
    const [price, stock] = await Promise.all([
      tools.get_price({ product }),
      MCP.warehouse.stock({ product }),
    ]);
    return { product, price, stock: stock.structuredContent.result };
  }));
return found.filter(({ stock }) => stock > 0).toSorted((a, b) => a.price - b.price)[0];
"""
ORDER = """\
const { ordered, amount } = await tools.place_order(INPUT);
return `${amount} of ${ordered}`;
"""
STOCK = """\
const found = await Promise.all(
  ["tea", "coffee"].map((product) => MCP.warehouse.stock({ product })));
return found.map(({ structuredContent }) => structuredContent.result).join(" and ");
"""
WARMER = """\
return await tools.temperature({ city: "Rome" }) > await tools.temperature({ city: "Oslo" })
"""


def run(code: str, words: str = "") -> Turn:
    return Turn(*([words] if words else []), call("exec", {"code": code}))


def order(words: str, amount: int) -> Callable[[Any], Turn]:
    def react(value: Any) -> Turn:
        found = value if isinstance(value, dict) else {"product": "tea", "price": value}
        wanted = json.dumps({"product": found["product"], "amount": amount})
        return run(ORDER.replace("INPUT", wanted), words.format(**found))

    return react


STORIES: dict[str, list[Callable[[Any], Turn]]] = {
    "Order twelve of the cheapest drink that is in stock.": [
        lambda _: run(COMPARE, "Let me compare prices and stock."),
        order("The cheapest is {product}, at {price}. I order twelve.", 12),
        lambda value: Turn(f"Done: {value}."),
    ],
    "Order tea if it costs less than 5.": [
        lambda _: run('return tools.get_price({ product: "tea" })', "I look at the price first."),
        order("", 1),
        lambda _: Turn("It was 3.2, and is ordered."),
    ],
    "How much tea and coffee is in stock?": [
        lambda _: run(STOCK),
        lambda value: Turn(f"There are {value}."),
    ],
    "What is 1 + 2?": [
        lambda _: run("return tools.add({ a: 1, b: 2 })"),
        lambda value: Turn(f"It is {value}."),
    ],
    "Is it warmer in Rome or in Oslo?": [
        lambda _: run(WARMER),
        lambda value: Turn("They are alike." if value is False else "In Rome."),
    ],
}
"""The steps of the model for each message. Each step gets the value of the last program."""


class Model:
    """Plays the stories, and confirms any other message."""

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}

    def __call__(self, request: ScriptRequest) -> Turn:
        result = request.last_result()
        if isinstance(result, dict) and result.get("status") == "waiting":
            return Turn(call("wait", {"runId": result["runId"]}))
        step = self._steps[request.said] = self._steps.get(request.said, -1) + 1
        story = STORIES.get(request.said)
        if story is None:
            return Turn(f"I heard: {request.said}")
        return story[step](result.get("value") if isinstance(result, dict) else None)


# ---- The folder, the home and the terminal ----


CONFIGURATION = """\
  models: { providers: { anthropic: { baseUrl: "URL", auth: { env: "ANTHROPIC_API_KEY" } } } },
  gateway: { port: 0 },
}
"""
"""Settings that depend on the machine: the address of the model, and a free port."""

DEFAULTS = """\
{
  agents: { defaults: { model: "anthropic/claude-sonnet-5" } },
  tools: { codeMode: true },
"""

READY = "the gateway is at ws://"
CHAT_READY = "(/help, Ctrl-D ends)"
CURSOR = b"\x1b[6n"

ANSWERS = {
    "has not been used before": ("Use it from now on? [y/N]", "y\r"),
    "Approval needed": ("once, always or deny? (Ctrl-D: later)", "once\r"),
}
"""Questions by their start: the prompt, and the answer. A line may be drawn twice."""


class Terminal(Person):
    """A command that a person types in a shell."""

    def __init__(self, command: str, cwd: Path, *, real: bool = False) -> None:
        # A dumb terminal overwrites nothing and is 80 columns wide.
        term = "xterm" if command.startswith(("clawmode chat", "clawmode config")) else "dumb"
        self.command, self._real = command, real
        size, environment = (50, 160), {"TERM": term}
        super().__init__(cwd=cwd, stdout_too=True, size=size, environment=environment)
        self._answered = dict.fromkeys(ANSWERS, 0)

    def _start(self, slave: int) -> "Started | subprocess.Popen[bytes]":
        if not self._real and re.fullmatch(r"clawmode [\w ./:,@=+\"'-]+", self.command):
            self._arguments = tuple(shlex.split(self.command)[1:])
            return super()._start(slave)
        return self._start_program(slave, "sh", "-c", self.command)

    def __enter__(self) -> "Terminal":
        return self

    def _receive(self) -> bool:
        self._limit = time.monotonic() + SECONDS
        before = len(self._seen)
        came = super()._receive()
        for _ in range(self._seen.count(CURSOR, max(before - len(CURSOR) + 1, 0))):
            self.types("\x1b[1;1R")
        for question, (prompt, answer) in ANSWERS.items():
            _, *asked = self.seen.split(question)
            if len(asked) > self._answered[question] and prompt in asked[-1]:
                self._answered[question] = len(asked)
                self.types(answer)
        return came

    def ends(self, status: int = 0) -> str:
        """Waits for the end of the command and returns its output."""
        ended, _ = self.leaves()
        shown = re.sub(r" +$", "", plain(self.seen), flags=re.MULTILINE)
        assert ended == status, f"{self.command}: exit status {ended}\n{shown}"
        return shown


FOLDERS = {"docs/guide/plugins.md": "garden"}
"""The folder for the files of a page, if it is not the folder of the clone."""

STATUS = {"clawmode config check clawmode.json5": 1}
"""Exit statuses of commands that fail on purpose."""

MISTAKEN = 'model: "gpt-4o"'
"""Text of the configuration that has mistakes on purpose."""

REVIEWED = set(
    Material(kind="plugin", name="", version="", description="", folder=ROOT, source="").to_json()
)

PRINTS = {
    "send_mail": """\
Run send_mail? {'to': 'ann@example.org', 'subject': 'hi'}
end openclaw:core:send_mail completed
sent to ann@example.org
""",
    "servers.connect": "docs cannot be reached",
    "AgentRequest": "It is 3. True",
    "GatewayClient.local": "ok They are alike.",
}
"""Output of programs, by a word in them. A comment behind `print` is checked without an entry."""

NEEDS_GATEWAY = "GatewayClient.local"

WRONG = (
    """{
  // A comment.
  tools: {
    codeMode: {
      timeoutMs: 5,
      timoutMs: 5,
    },
  },
  browser: {},
}""",
    """{
  tools: {
    codeMode: {
      enabled: "yes",
    },
  },
}""",
    """{
  tools: {
    codeMode: on,
  },
}""",
)
"""Configurations whose errors and warnings the reference quotes."""

MCP_HELLO: list[dict[str, Any]] = [
    {
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "reader", "version": "1"},
        },
    },
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list"},
]


def is_there(test: str) -> bool:
    path, _, name = test.partition("::")
    return f"def {name}" in (ROOT / path).read_text("utf-8")


def pattern(expected: str) -> str:
    """Turns shown output into a pattern: any number, any text for `…`, any width of columns."""
    kinds = {
        r"(?P<gap>\s*…\s*)": r".*?",
        r"(?P<time>[\d.]+ m?s\b)": r"[\d.]+ m?s",
        r"(?P<number>\d[\d.,]*)": r"\d[\d.,]*",
        r"(?P<zone>\bCES?T\b)": r"CES?T",
        r"(?P<columns>  +)": r" +",
    }
    made, at = "", 0
    for found in re.finditer("|".join(kinds), expected):
        made += re.escape(expected[at : found.start()])
        made += [*kinds.values()][(found.lastindex or 0) - 1]
        at = found.end()
    return made + re.escape(expected[at:])


def chats(terminal: Terminal, script: str) -> None:
    """Types the lines of the person, checks the shown lines, and leaves."""
    terminal.reads(CHAT_READY)
    terminal.reads("\x1b[?2004h")  # the prompt is there
    for line in script.splitlines():
        if line.startswith("> "):
            terminal.types(line[2:] + "\r")
    # The answer to a question is drawn separately from the question.
    lines = [line.removesuffix(" once") for line in script.splitlines()]
    wanted = [line for line in lines if line.strip() not in ("", "…", ">")]
    for line in wanted[:-1]:  # the last one is the status below the prompt
        while not re.search(pattern(line.removeprefix("> ").strip()), plain(terminal.seen)):
            assert terminal._receive(), f"{line!r} never came: {plain(terminal.seen)}"
    terminal.types("\x04")
    terminal.ends()


async def runs_body(source: str) -> None:
    """Runs a body of `tool_search_code`."""
    async with bodies() as here:
        made = await here.run(source)
    assert made["status"] == "completed", made


# ---- Commands as they are named in sentences ----


def command_named(words: list[str]) -> tuple[Any, list[str]]:
    """Returns the command that the first words name, and the remaining words."""
    found: Any = typer.main.get_command(app)
    while words and words[0] in getattr(found, "commands", {}):
        found = found.commands[words[0]]
        words = words[1:]
    return found, words


def mistakes(text: str) -> list[str]:
    """Returns unknown subcommands and options of a command that a sentence names."""
    words = [word.strip("[],;") for word in text.split("#")[0].split()][1:]
    found, rest = command_named(words)
    known = {name for param in found.params for name in (*param.opts, *param.secondary_opts)}
    known |= {"--help", "--install-completion", "--show-completion"}
    wrong = [word for word in rest if word.startswith("--") and word.partition("=")[0] not in known]
    takes = any(param.param_type_name == "argument" for param in found.params)
    if rest and not rest[0].startswith("-") and not takes:
        wrong.append(rest[0])
    return [f"{text}: there is no {word}" for word in wrong]


def outline(line: str) -> Iterator[str]:
    """Yields mistakes in a line of the list of commands: `clawmode cron list|add   manage …`."""
    usage = re.split(r" {2,}| (?=[a-z]+ [a-z]+ [a-z]+)", line)[0]
    name, _, subcommands = usage.removeprefix("clawmode ").partition(" ")
    for word in re.findall(r"(?:^|[\[|])([a-z]+)\b", subcommands) or [""]:
        yield from mistakes(f"clawmode {name} {word}")


@dataclass
class Reader:
    """A person who follows a page from its beginning to its end.

    Attributes:
        home: The home folder.
        clone: The clone of the repository, the working folder.
        url: The address of the model.
        gateways: The terminals in which a gateway runs.
        clients: Programs that need a gateway.
    """

    page: str
    home: Path
    clone: Path
    url: str
    gateways: list[Terminal] = field(default_factory=list)
    clients: list[Block] = field(default_factory=list)

    def prepares(self, blocks: list[Block]) -> None:
        """Creates the clone and the files of the page, before the first command."""
        for folder in ("docs", "examples"):
            shutil.copytree(
                ROOT / folder, self.clone / folder, ignore=shutil.ignore_patterns("__pycache__")
            )
        (self.clone / ".venv").symlink_to(sys.prefix)
        for name in ("tests", "pyproject.toml"):
            (self.clone / name).symlink_to(ROOT / name)
        place = self.home / ".config" / "clawmode"
        place.mkdir(parents=True)
        self.writes(place / "clawmode.json5", DEFAULTS)
        (self.home / ".local" / "bin").mkdir(parents=True)
        (self.home / ".local" / "bin" / "clawmode").symlink_to(BIN / "clawmode")
        folder = self.clone / FOLDERS.get(self.page, ".")
        folder.mkdir(exist_ok=True)
        for block in blocks:
            if block.name and block.language != "json5":
                (folder / block.name).write_text(block.text, "utf-8")
        self.clients = [block for block in blocks if NEEDS_GATEWAY in block.text]
        if self.page == "docs/guide/plugins.md":
            shutil.make_archive(str(self.clone / "garden-1.0.0"), "zip", folder)

    def writes(self, file: Path, text: str) -> None:
        """Writes a configuration, with the settings that depend on the machine."""
        inner = text.rstrip().removesuffix("}") if text.rstrip().endswith("\n}") else text
        file.write_text(inner + CONFIGURATION.replace("URL", self.url), "utf-8")

    # ---- What is done with a block, by its language ----

    def follows(self, block: Block) -> None:
        """Executes a block by the rule of its language. A block without a rule is an error."""
        if test := ELSEWHERE.get((self.page, block.language)):
            assert is_there(test), test
        elif re.search(r"^\$ ", block.text, re.MULTILINE):
            self.types(block)
        elif any(block.text.lstrip().startswith(start) for start in NOT_RUN):
            self.looks_at(block)
        else:
            rule = getattr(self, f"follows_{block.language}", None)
            assert rule is not None, f"{block}: no rule for ```{block.language}; see this file"
            rule(block)

    def looks_at(self, block: Block) -> None:
        """Checks a block that is not executed."""
        if block.language == "python":
            compile(block.text, str(block), "exec")
        for command in re.findall(r"^RUN (clawmode .*)", block.text, re.MULTILINE):
            assert not mistakes(command), mistakes(command)

    def types(self, block: Block) -> None:
        """Types the commands of a session, and compares their output if the page shows it."""
        sessions = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
        for command, _, expected in (session.partition("\n") for session in sessions):
            self.types_command(command, expected)

    def types_command(self, command: str, expected: str = "") -> None:
        while command.endswith("clawmode gateway stop") and self.clients:
            self.follows_python(self.clients.pop())
        terminal = Terminal(command, self.clone, real=self.page == FIRST)
        if command == "clawmode gateway":
            self.gateways.append(terminal)
            terminal.reads(READY)
            return
        with terminal:
            if command.startswith("clawmode chat"):
                chats(terminal, expected)
                return
            shown = terminal.ends(STATUS.get(command, 0))
        if expected:
            self.compares(expected, shown, command)
        if command.endswith("clawmode gateway stop"):
            with self.gateways.pop() as gateway:
                gateway.ends()

    def compares(self, expected: str, shown: str, command: str) -> None:
        expected = expected.replace("/home/ann", str(self.home))
        shown = re.sub(r"\A.* has not been used before\..*?\[y/N\] y\n", "", shown, flags=re.DOTALL)
        assert re.fullmatch(pattern(expected.strip()), shown.strip(), re.DOTALL), (
            f"{self.page} shows for `{command}`:\n{expected}\nIt is:\n{shown}"
        )

    def follows_sh(self, block: Block) -> None:
        lines = re.findall(r"(?:.*\\\n)*.+", block.text)
        kept = [line for line in lines if not line.startswith(tuple(NOT_RUN))]
        for target in re.findall(r"^make (\S+)", block.text, re.MULTILINE):
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        with Terminal("set -e\n" + "\n".join(kept), self.clone) as terminal:
            terminal.ends()

    def follows_python(self, block: Block) -> None:
        if block.name:
            return  # `prepares` has written it; the command that reads it fails if it is wrong
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", block.text],
            cwd=self.clone,
            env=os.environ
            | {"PYTHONPATH": str(REDIRECT), "SCRIPT_URL": self.url}
            | self.frameworks(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, f"{block}: {done.stderr}"
        prints = re.findall(r"print\(.*\)  # (.*)", block.text)
        prints += [line for start, line in PRINTS.items() if start in block.text]
        assert [line for line in prints if line not in done.stdout] == [], f"{block}: {done.stdout}"

    def frameworks(self) -> dict[str, str]:
        """Returns what sends requests of agent frameworks to the model."""
        openai = {"OPENAI_BASE_URL": f"{self.url}/v1", "OPENAI_API_KEY": "of-no-use"}
        return {**openai, "OPENAI_AGENTS_DISABLE_TRACING": "1"}

    def follows_json5(self, block: Block) -> None:
        if block.text.startswith("{\n  kind:"):  # the input of a program that reviews plugins
            value: Any = json5.parse(block.text, str(block)).value
            assert set(value) == REVIEWED
            return
        file = self.clone / f"checked-{block.line}.json5"
        file.write_text(block.text, "utf-8")
        file.chmod(0o600)
        found = check(str(file))
        told = [*found.errors, *found.warnings]
        assert bool(told) == (MISTAKEN in block.text), f"{block}: {[each.text for each in told]}"
        if block.name:
            self.writes(self.clone / block.name, block.text)

    def follows_json(self, block: Block) -> None:
        lines = [block.text] if block.text.startswith("{\n") else block.text.splitlines()
        values = [json.loads(line) for line in lines]
        if block.name:
            return
        if "mcpServers" in values[0]:
            self.connects(values[0]["mcpServers"])
        if "askFallback" in block.text:
            (self.home / "exec-approvals.json").write_text(block.text, "utf-8")
            assert HostFile(self.home / "exec-approvals.json").for_agent("main").allowlist

    def follows_toml(self, block: Block) -> None:
        assert tomllib.loads(block.text)

    def follows_js(self, block: Block) -> None:
        anyio.run(runs_body, block.text)

    def follows_text(self, block: Block) -> None:
        if block.text.startswith("*** Begin Patch"):
            assert len(parse(block.text)) == 3
        elif block.text.startswith("clawmode run"):
            assert not [each for line in block.text.splitlines() for each in outline(line)]
        else:
            self.warns(block)

    def warns(self, block: Block) -> None:
        """Checks quoted errors and warnings of wrong configurations."""
        told: list[str] = []
        for number, text in enumerate(WRONG):
            file = self.clone / f"wrong-{number}" / "clawmode.json5"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, "utf-8")
            found = check(str(file))
            told += [each.text for each in (*found.errors, *found.warnings)]
        lines = "".join(told).replace(f"{self.clone}/", "")
        for line in block.text.splitlines():
            assert line.strip() in lines, f"{block}: {line!r} is not in {told}"

    def connects(self, servers: dict[str, Any]) -> None:
        """Starts the server of a client's file, and lists its tools, as the client does."""
        (self.clone / "servers.json").write_text('{"mcpServers": {}}', "utf-8")
        (server,) = servers.values()
        if "command" not in server:
            assert read_servers(servers).unwrap()
            return
        arguments = [*server["args"]]
        arguments[-1] = str(self.clone / "servers.json")
        process = subprocess.Popen(
            [server["command"], *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.clone,
        )
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            for message in MCP_HELLO:
                process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            process.stdin.flush()
            answers = [json.loads(process.stdout.readline()) for _ in range(2)]
            process.terminate()
        listed = next(answer for answer in answers if answer["id"] == 2)
        assert [tool["name"] for tool in listed["result"]["tools"]] == ["exec", "wait"]

    def follows_ini(self, block: Block) -> None:
        """Starts the command of a systemd unit, and stops it."""
        unit = configparser.ConfigParser(interpolation=None, strict=False)
        unit.optionxform = str  # type: ignore[method-assign, assignment]
        unit.read_string(block.text)
        command = unit["Service"]["ExecStart"].replace("%h", str(self.home))
        gateway = subprocess.Popen(
            shlex.split(command), stderr=subprocess.PIPE, text=True, cwd=self.home
        )
        assert gateway.stderr is not None
        try:
            assert READY in gateway.stderr.readline()
            gateway.send_signal(signal.SIGTERM)
            assert gateway.wait(SECONDS) == 0
        finally:
            gateway.kill()
            gateway.stderr.close()
            gateway.wait()


@contextmanager
def reading(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    cache = cache_folder()
    home, clone = folder / "home", folder / "clone"
    home.mkdir()
    clone.mkdir()
    for name in [*os.environ]:
        if name.startswith(("XDG_", "CLAWMODE_", "OPENCLAW_")):
            monkeypatch.delenv(name)
    environment = {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "CLAWMODE_CACHE_DIR": str(cache),  # otherwise machine code would be compiled for each page
        "NO_PROXY": "127.0.0.1",
        "ANTHROPIC_API_KEY": "of-no-use",
        "GITHUB_TOKEN": "of-no-use-either",
        "TEAM_SECRET": "a secret of some length",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with serving(Model(), key="of-no-use") as server:
        reader = Reader(page, home, clone, server.url)
        try:
            yield reader
        finally:
            for terminal in reader.gateways:
                terminal.__exit__(None, None, None)


@pytest.mark.timeout(180)
@pytest.mark.covers("N-1", "N-18")
@pytest.mark.parametrize("page", [page for page in PAGES if [*blocks_of(page)]])
def test_a_page_can_be_followed_as_it_is_written(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [*blocks_of(page)]
    with reading(page, tmp_path, monkeypatch) as reader:
        reader.prepares(blocks)
        for block in blocks:
            if NEEDS_GATEWAY not in block.text:
                reader.follows(block)
        assert not reader.gateways, "a gateway was never stopped"
        assert not reader.clients, "no gateway was started"


@pytest.mark.parametrize("page", PAGES)
def test_a_command_that_is_named_exists_with_its_options(page: str) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text("utf-8"), flags=re.M | re.S)
    named = re.findall(r"`(clawmode [a-z][^`]*)`", text.replace("\n", " "))
    assert [each for command in named for each in mistakes(command)] == []
    targets = re.findall(r"`make ([a-z-]+)", text)
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, re.M)] == []


def test_a_block_that_no_rule_fits_fails(tmp_path: Path) -> None:
    reader = Reader("docs/new.md", tmp_path, tmp_path, "")
    with pytest.raises(AssertionError, match="no rule for ```ruby"):
        reader.follows(Block("docs/new.md", 1, "ruby", "puts 1\n", ""))


@pytest.mark.parametrize(
    "command",
    [
        "clawmode gatewai",
        "clawmode gateway begin",
        "clawmode run FILE --tool x:Y",
        "clawmode --all",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(command: str) -> None:
    assert mistakes(command)


def test_whatever_is_not_run_is_still_in_a_page() -> None:
    text = "".join((ROOT / page).read_text("utf-8") for page in PAGES)
    assert [start for start in NOT_RUN if start not in text] == []
