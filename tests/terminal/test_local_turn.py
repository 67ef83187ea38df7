"""`clawmode agent`, `sessions` and `trajectory`, as people and as programs use them."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.cli_driver import (
    SHOP,
    FreshPerson,
    answer,
    clawmode,
    command_line,
    plain,
)
from tests.support.command_driver import Seat, program, serving, use_own_folders
from tests.support.command_driver import configure as configure_model
from tests.support.forking import SECONDS, Zygote
from tests.support.mcp_driver import HERE as MCP
from tests.support.waiting import until_sync

from clawmode.agent.events import AgentEvent
from clawmode.agent.requests import RunResult
from clawmode.app.console import ProgramOutput
from clawmode.models.base import ModelError
from clawmode.terminal.agent_view import AgentView
from clawmode.testing import Turn, call, pause, think
from clawmode.types import JsonObject

# The first test of a process waits until the zygote has imported everything.
pytestmark = pytest.mark.timeout(45)

PROMPT = "once, always or deny? (Ctrl-D: later) "
TOOLS = ("--tools", "shop:TOOLS")
KEY = "of no use elsewhere"
HOSTILE = "bad \x1b[2J\x9b2J\x1b]0;title\x07 \u202e\rover"
ASKING = '''
from clawmode.tools.tool import InputRequest

@tool(effect="read")
async def ask_name(context: ToolContext) -> str:
    """Ask for a name."""
    fields = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    told = await context.ask(InputRequest(message="Who are you?\\x1b[2J", schema=fields))
    return f"hello {told}"

TOOLS.append(ask_name)
'''


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_own_folders(tmp_path, monkeypatch)
    monkeypatch.setenv("TEST_KEY", KEY)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with tools in it."""
    (tmp_path / "shop.py").write_text(SHOP + ASKING, "utf-8")
    return tmp_path


configure = partial(configure_model, key="${TEST_KEY}")


def goes_on(request: Any) -> Turn:
    """Waits for a program as long as it waits, and says what it returned."""
    found = request.last_result()
    if isinstance(found, str):  # the wait was cut off
        found = json.loads(next(it for it in request.results.values() if it.startswith("{")))
    if found["status"] == "waiting":
        return Turn("It waits for you.", call("wait", {"runId": found["runId"]}))
    return Turn(f"It returned {found.get('value')}.")


FAN_OUT = 'return Promise.all(["a", "bb"].map((item) => tools.price({ item })))'
WAITING = json.dumps('{"status":"waiting"')[1:-1]
"""The beginning of such a result, in a transcript."""
ORDER = 'return await tools.order({ item: "tea" })'


# ---- A turn ----


@pytest.mark.covers("AL-2")
def test_a_turn_says_its_words_on_stdout_and_draws_its_calls_on_stderr(shop: Path) -> None:
    with serving([program(FAN_OUT, "Let me look."), Turn("1 and 2.")]) as server:
        configure(shop, server)
        done = subprocess.run(
            command_line("agent", "-m", "What do they cost?", *TOOLS),
            capture_output=True,
            text=True,
            timeout=40,
            check=False,
            cwd=shop,
            start_new_session=True,
        )
    assert (done.returncode, done.stdout) == (0, "Let me look.\n1 and 2.\n")
    head, exec_, first, second, footer = done.stderr.splitlines()
    assert head == "the model: 3 calls"
    assert re.fullmatch(r'└─ ✓ exec return Promise.all\(\["a", "bb"\].*  [\d.]+ m?s', exec_)
    assert re.fullmatch(r"   ├─ ✓ openclaw:core:price  \d+ ms", first)
    assert re.fullmatch(r"   └─ ✓ openclaw:core:price  \d+ ms", second)
    assert re.fullmatch(
        r"[\d.]+ m?s · 2 requests · mine/small · [\d,]+ tokens in, \d+ out · code mode · "
        r"session agent:main:main",
        footer,
    )
    assert [request.asked.tool_names for request in server.requests] == [("exec", "wait")] * 2


@pytest.mark.covers("N-14")
def test_an_agent_works_in_the_current_folder(tmp_path: Path, zygote: Zygote) -> None:
    """The first example of the command's page asks about files in `docs/`."""
    project = tmp_path / "project"
    (project / "docs").mkdir(parents=True)
    (project / "docs" / "a.md").write_text("It mentions snapshots.")
    script = [
        Turn(call("read", {"path": "docs/a.md"}, id="c1"), call("read", {"path": "b"}, id="c2")),
        Turn("a.md does."),
    ]
    with serving(script) as server:
        configure(project, server, tools={})
        done = zygote.run("agent", "-q", "-m", "Which of the files in docs/ do?", cwd=project)
    assert (done.returncode, done.stdout) == (0, "a.md does.\n")
    read = server.requests[1].raw.decode()
    assert "It mentions snapshots." in read
    assert "'b' does not exist in the workspace" in read
    assert not (tmp_path / "state" / "workspace").exists()


def test_options_reach_the_model_and_a_session_goes_on(shop: Path, zygote: Zygote) -> None:
    with serving([Turn(think("Hm."), "First."), Turn("Second.")]) as server:
        configure(shop, server)
        chosen = ("--session", "Report", "--model", "mine/large", "--thinking", "low", "--json")
        done = zygote.run("agent", "-m", "One.", *chosen, cwd=shop)
        again = zygote.run("agent", "-q", "-m", "-", "--session", "report", cwd=shop, stdin="Two.")
    result = answer(done)
    assert (done.returncode, done.stderr) == (0, "")
    assert result["status"] == "ok"
    assert result["payloads"] == [{"text": "First."}]
    assert result["sessionKey"] == "agent:main:report"
    assert result["metadata"]["codeModeEngaged"] is True  # the core tools are there
    assert (again.returncode, again.stdout, again.stderr) == (0, "Second.\n", "")
    first, second = server.requests
    assert (first.body["model"], second.body["model"]) == ("large", "small")
    assert first.body["thinking"]["type"] == "enabled"
    assert [it["role"] for it in second.body["messages"]] == ["user", "assistant", "user"]


def test_what_runs_did_is_listed_drawn_and_exported(shop: Path, zygote: Zygote) -> None:
    agents = {"defaults": {"model": "mine/small"}, "list": [{"id": "home", "default": True}]}
    script = [program(FAN_OUT, "I look."), Turn(f"Done {HOSTILE} {KEY}.")]
    with serving(script) as server:
        configure(shop, server, agents=agents)
        empty = zygote.run("sessions", "list", cwd=shop)
        result = answer(zygote.run("agent", "-m", "Look!", *TOOLS, "--json", cwd=shop))
    assert server.requests[0].headers["x-api-key"] == KEY
    assert (empty.stdout, "no sessions yet" in empty.stderr) == ("", True)
    (listed,) = answer(zygote.run("sessions", "list", "--json", cwd=shop))["sessions"]
    assert (listed["key"], listed["lastStatus"]) == ("agent:home:main", "ok")
    assert abs(listed["updatedAt"] - time.time() * 1000) < 60_000
    table = zygote.run("sessions", "list", cwd=shop).stdout.splitlines()
    assert table[0].split() == ["key", "id", "used", "last", "run", "tokens"]
    assert table[1].split()[:2] == ["agent:home:main", result["sessionId"]]

    drawn = zygote.run("sessions", "show", cwd=shop).stdout
    assert drawn == zygote.run("trajectory", "show", result["sessionId"], cwd=shop).stdout
    lines = drawn.splitlines()
    assert lines[0].startswith(f"✓ run {result['runId']}  ok  ")
    assert lines[1:3] == ["├─ > user: Look!", "├─ • model: I look."]
    assert re.fullmatch(r"├─ ✓ exec  \d+ ms  return Promise\.all.*", lines[3])
    assert re.fullmatch(r"│  └─ ✓ openclaw:core:price  \d+ ms", lines[5])
    assert KEY not in drawn
    assert not set(drawn) & set("\x1b\x9b\u202e\r")

    found = answer(zygote.run("sessions", "show", "main", "--json", cwd=shop))
    assert found["entries"][0]["runId"] == result["runId"]
    bundle = Path(zygote.run("trajectory", "export", cwd=shop).stdout.strip())
    assert (bundle / "events.jsonl").read_text("utf-8").count("openclaw:core:price") >= 2
    assert not any(KEY in path.read_text("utf-8") for path in bundle.iterdir())
    for arguments in (("show", "--run", "none"), ("show", "--run", "none", "--json")):
        missing = zygote.run("sessions", *arguments, cwd=shop)
        assert (missing.returncode, missing.stdout) == (1, "")
        assert "has no run 'none'" in missing.stderr


def test_three_hundred_nested_calls_are_counted_and_the_latest_are_shown(
    shop: Path, zygote: Zygote
) -> None:
    source = """let made = 0;
for (let round = 0; round < 30; round++) {
  const all = Array.from({ length: 10 }, () => tools.price({ item: "x" }));
  made += (await Promise.all(all)).length;
}
return made"""
    with serving([program(source), goes_on]) as server:
        configure(shop, server)
        done = zygote.run("agent", "-m", "Go.", *TOOLS, cwd=shop)
    assert (done.returncode, done.stdout) == (0, "It returned 300.\n")
    lines = done.stderr.splitlines()
    assert lines[:2] == ["the model: 301 calls", "├─ ⋮ 101 earlier"]
    assert lines[2].startswith("└─ ✓ exec let made = 0;")
    assert len(lines) < 210
    assert "100 earlier" in zygote.run("sessions", "show", cwd=shop).stdout


def test_an_unreachable_server_is_logged_once_and_others_are_called(
    shop: Path, zygote: Zygote
) -> None:
    raw = {"command": sys.executable, "args": ["-I", "-S", str(MCP / "raw_server.py"), "good"]}
    mcp = {"servers": {"raw": raw, "gone": {"command": "/nonexistent"}}}
    with serving([program("return MCP.raw.echo({ need: 'through' })"), goes_on]) as server:
        configure(shop, server, mcp=mcp)
        done = zygote.run("agent", "-m", "Go.", "--approve", "always", cwd=shop)
    assert done.returncode == 0
    assert "through" in done.stdout
    assert "mcp:raw:echo" in done.stderr
    assert done.stderr.count("/nonexistent") == 1


# ---- What is wrong ----


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ((), 2, "give either --message"),
        (("-m", "a", "--continue", "b"), 2, "give either --message"),
        (("-m", " "), 2, "the message is empty"),
        (("-m", "a"), 2, "no model is configured: set agents.defaults.model"),
        (("-m", "a", "--model", "nobody/a"), 2, "there is no provider 'nobody'"),
        (("-m", "a", "--model", "nobody"), 2, "is not a model name"),
        (("-m", "a", "--model", "anthropic/a"), 1, "ANTHROPIC_API_KEY is not set"),
        (("-m", "a", "--thinking", "lots"), 2, "--thinking must be one of off, minimal"),
        (("-m", "a", "--timeout", "nan"), 2, "--timeout must be a positive"),
        (("-m", "a", "--timeout", "soon"), 2, "--timeout"),
        (("-m", "a", "--agent", "nobody"), 2, 'there is no agent "nobody"'),
        (("-m", "a", "--session", "a/../b"), 2, "is not a valid session key"),
        (("-m", "a", "--session", "0" * 32), 1, "There is no session with the id"),
        (("-m", "a", "--config", "none.json5"), 2, "cannot read the configuration none.json5"),
        (("-m", "a", "--tools", "none:TOOLS"), 2, "none"),
        (("--continue", "a", "--session", "none"), 1, "There is no session under the key"),
    ],
)
def test_what_cannot_be_meant_is_said_in_a_line(
    tmp_path: Path, zygote: Zygote, arguments: tuple[str, ...], status: int, says: str
) -> None:
    if "--model" not in arguments and "no model" not in says:
        arguments = (*arguments, "--model", "ollama/a")
    done = zygote.run("agent", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (status, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    if status == 2:  # nothing ran, and nothing was made
        assert answer(zygote.run("sessions", "list", "--json", cwd=tmp_path)) == {"sessions": []}


def test_without_the_extra_it_is_said_what_to_install(tmp_path: Path) -> None:
    missing = tmp_path / "openai"
    missing.mkdir()
    (missing / "__init__.py").write_text(
        'raise ModuleNotFoundError("No module named openai", name="openai")'
    )
    done = subprocess.run(  # in an interpreter of its own, which has imported nothing yet
        [sys.executable, "-m", "clawmode", "agent", "-m", "a", "--model", "ollama/a"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert 'pip install "clawmode[agent]"' in done.stderr


def test_what_a_provider_answers_is_told_and_a_cut_is_mended(shop: Path, zygote: Zygote) -> None:
    refused = Turn(error=ModelError("auth", f"no such key {HOSTILE}"))
    cut = Turn("Half a sent", error="connection")
    with serving([refused, refused, cut, Turn("Whole.")]) as server:
        configure(shop, server)
        failed = zygote.run("agent", "-m", "One.", cwd=shop)
        as_json = zygote.run("agent", "-m", "One.", "--json", cwd=shop)
        mended = zygote.run("agent", "-m", "Two.", cwd=shop)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "error: mine/small" in failed.stderr
    assert "no such key bad \\u001b[2J" in failed.stderr
    assert (as_json.returncode, answer(as_json)["problem"]) == (1, "auth")
    assert (mended.returncode, mended.stdout) == (0, "Whole.\n")
    assert "(the reply was cut off; the model starts again)" in mended.stderr


class Out(ProgramOutput):
    """A stdout that keeps what is written to it."""

    def __init__(self, *, is_terminal: bool) -> None:
        self.is_terminal = is_terminal
        self.written = ""

    def write(self, text: str) -> None:
        self.written += text


def shown(*events: JsonObject, is_terminal: bool, lost_after: int = 99, **result: Any) -> str:
    """What a turn with these words writes to stdout; the events after `lost_after` come late."""
    out = Out(is_terminal=is_terminal)
    view = AgentView(out, live=False, summary=False)
    for number, data in enumerate(events):
        if number == lost_after:
            view.mark_lost("(lost)")
        view.add(AgentEvent(run_id="r", seq=number, stream="assistant", data=data))
    payloads = tuple({"text": text} for text in result.pop("payloads", ()))
    given: dict[str, Any] = {"status": "ok", "run_id": "r", "session_key": "k", "session_id": "s"}
    view.close(RunResult(payloads=payloads, **{**given, **result}))
    return out.written


CUT: tuple[JsonObject, ...] = ({"delta": "Half a "}, {"delta": "sent"}, {"reset": True})
WHOLE: tuple[JsonObject, ...] = (
    {"delta": "Half a "},
    {"delta": "sentence."},
    {"text": "Half a sentence."},
    {"message": "Half a sentence."},
)


@pytest.mark.covers("N-38")
def test_a_reply_that_was_cut_twice_is_written_once_to_a_pipe() -> None:
    assert shown(*CUT, *CUT, *WHOLE, is_terminal=False) == "Half a sentence.\n"
    at_terminal = shown(*CUT, *CUT, *WHOLE, is_terminal=True)
    assert at_terminal == "Half a sent\nHalf a sent\nHalf a sentence.\n"
    # A run that fails in the end has no reply; one that was stopped has said what it said.
    assert shown(*CUT, *CUT[:2], is_terminal=False, status="error", error="gone") == ""
    assert shown(*CUT[:2], is_terminal=False, status="aborted") == "Half a sent\n"


@pytest.mark.covers("N-38")
@pytest.mark.parametrize("lost_after", range(9))
@pytest.mark.parametrize("is_terminal", [False, True])
def test_words_that_were_lost_on_the_way_are_added_and_none_is_repeated(
    lost_after: int, is_terminal: bool
) -> None:
    later: tuple[JsonObject, ...] = ({"delta": "Th"}, {"delta": "en."}, {"message": "Then."})
    said = ("Half a sentence.", "Then.", "Half a sentence.")
    written = shown(
        *WHOLE, *later, *WHOLE, is_terminal=is_terminal, lost_after=lost_after, payloads=said
    )
    if not is_terminal:
        assert written == "Half a sentence.\nThen.\nHalf a sentence.\n"
    # At a terminal, only the line that was cut has a break in it.
    assert "".join(written.split()) == "Halfasentence.Then.Halfasentence."


def test_output_that_nobody_reads_or_that_cannot_be_written(shop: Path, zygote: Zygote) -> None:
    read, write = os.pipe()
    reader_left = threading.Event()

    def leave() -> None:
        os.close(read)
        reader_left.set()

    async def speaks(request: Any) -> Turn:
        await anyio.to_thread.run_sync(reader_left.wait)
        return program("return await tools.noisy()", "Words.")

    script = [speaks, Turn("More."), Turn("Words.")]
    with serving(script) as server:
        configure(shop, server)
        pipe = f"/proc/{os.getpid()}/fd/{write}"
        left = zygote.run("agent", "-m", "One.", *TOOLS, cwd=shop, stdout=pipe, begun=leave)
        full = zygote.run("agent", "-m", "Two.", "-q", cwd=shop, stdout="/dev/full")
    os.close(write)
    assert left.returncode == 0
    assert "printed by a child" in left.stderr
    assert "2 requests" in left.stderr
    assert full.returncode == 1
    assert full.stderr == "clawmode: the output could not be written: No space left on device\n"


def test_a_session_with_a_writer_is_busy_and_a_killed_run_resumes(
    shop: Path, zygote: Zygote
) -> None:
    script = [program("await tools.forever()", "I begin."), Turn("I look what became of it.")]
    with serving(script) as server:
        configure(shop, server, session={"writeLock": {"acquireTimeoutMs": 300}})
        with Seat(zygote, "agent", "-m", "One.", *TOOLS, cwd=shop) as person:
            person.reads("openclaw:core:forever")
            busy = zygote.run("agent", "-m", "Two.", cwd=shop)
            os.kill(person.pid, signal.SIGKILL)
            assert person.leaves()[0] == -signal.SIGKILL
        drawn = zygote.run("sessions", "show", cwd=shop).stdout
        found = re.match(r"… run (\w+)  unfinished", drawn)
        assert found is not None
        assert "exec  not answered" in drawn
        again = zygote.run("agent", "--continue", found[1], *TOOLS, cwd=shop)
        twice = zygote.run("agent", "--continue", found[1], *TOOLS, cwd=shop)
    assert (busy.returncode, busy.stdout) == (1, "")
    assert "is busy: process" in busy.stderr
    assert (again.returncode, again.stdout) == (0, "I look what became of it.\n")
    assert "unknown" in server.requests[1].raw.decode()
    assert (twice.returncode, "no unfinished run" in twice.stderr) == (1, True)


# ---- At a terminal ----


def test_calls_are_drawn_as_they_run_and_nothing_hostile_reaches_a_narrow_terminal(
    shop: Path, zygote: Zygote
) -> None:
    source = 'text("\\x1b[2J"); await Promise.all([tools.steps(), tools.price({ item: "x" })])'
    script = [
        Turn(
            HOSTILE * 100,
            call("exec", {"code": f"/*{HOSTILE}*/ {source}"}),
            call("exec", {"code": source}),
        ),
        Turn("Done.\n", "Really."),
    ]
    with serving(script) as server:
        configure(shop, server)
        (shop / "hold-one").touch()
        seat = Seat(zygote, "agent", "-m", "Go.", *TOOLS, cwd=shop, size=(24, 50))
        with seat as person:
            person.reads("… loading the model's library")
            person.reads("… waiting for the model")
            person.reads("bad \\u001b[2J\\u009b2J\\u001b]0;title\\u0007 \\u202e\\u000dover")
            person.reads("… the model writes a call of exec")
            person.reads("openclaw:core:steps")
            person.reads("one \\u001b[2")
            (shop / "hold-one").unlink()
            assert person.leaves()[0] == 0
    seen = person.seen
    assert not re.search("\x1b\\[2J|\x9b|\x1b\\]|\x07|\u202e", seen)
    assert seen.count("\x1b[?25h") >= seen.count("\x1b[?25l") > 0
    tree = plain(seen[seen.rindex("the model: ") :]).splitlines()
    assert tree[0] == "the model: 6 calls"
    marks = [line.split("✓")[0] for line in tree[1:7]]
    assert marks == ["├─ ", "│  ├─ ", "│  └─ ", "└─ ", "   ├─ ", "   └─ "]
    assert max(map(len, tree[:7])) <= 50
    assert all(re.search(r"  [\d.]+ m?s", line) for line in tree[1:7])
    assert [line for line in re.split("[\r\n]", plain(seen)) if line in ("Done.", "Really.")] == [
        "Done.",
        "Really.",
    ]


@pytest.mark.parametrize(
    ("flags", "environment", "never"),
    [
        ((), {"TERM": "dumb"}, "\x1b"),
        ((), {"NO_COLOR": "1"}, "\x1b[3"),
        (("--quiet",), {}, "the model"),
    ],
    ids=["dumb", "no colour", "quiet"],
)
def test_who_wants_it_plain_gets_it_plain(
    shop: Path, zygote: Zygote, flags: tuple[str, ...], environment: dict[str, str], never: str
) -> None:
    with serving([program(FAN_OUT), goes_on]) as server:
        configure(shop, server)
        arguments = ("agent", "-m", "Go.", *TOOLS, *flags)
        with Seat(zygote, *arguments, cwd=shop, environment=environment) as person:
            assert person.leaves()[0] == 0
    assert "It returned [1, 2]." in person.seen
    assert never not in person.seen


@pytest.mark.covers("N-37")
def test_the_error_of_a_run_is_broken_between_words(shop: Path, zygote: Zygote) -> None:
    refused = Turn(error=ModelError("auth", "consequently " * 12 + "end"))
    with serving([refused]) as server:
        configure(shop, server)
        with Seat(zygote, "agent", "-m", "Go.", cwd=shop, size=(24, 50)) as person:
            assert person.leaves()[0] == 1
    lines = plain(person.seen[person.seen.rindex("error: ") :]).splitlines()
    assert max(map(len, lines)) < 50
    assert " ".join(lines).count("consequently") == 12


@pytest.mark.covers("N-6")
def test_a_question_keeps_the_terminal_and_no_model_is_asked_meanwhile(
    shop: Path, zygote: Zygote
) -> None:
    with serving([program(ORDER, "I order."), goes_on, goes_on]) as server:
        configure(shop, server)
        with Seat(zygote, "agent", "-m", "-", *TOOLS, cwd=shop, stdin="Order!") as person:
            person.reads("Approval needed (warning): Run Order an item?")
            person.reads("asked by: agent main, session agent:main:main, channel cli")
            person.reads(PROMPT)
            written(shop, WAITING)
            assert len(server.requests) == 1
            person.types("once\n")
            person.reads("It waits for you.")
            assert person.leaves()[0] == 0
    assert f"{PROMPT}once\n" in person.seen
    seen = plain(person.seen)
    assert re.search(r"the model: 2 calls\n└─ ✓ exec .*\n   └─ ✓ openclaw:core:order", seen)
    assert len(server.requests) == 3
    assert "It returned 1 tea." in person.seen


def written(folder: Path, words: str) -> None:
    """Waits until a transcript has the words."""
    transcripts = "state/sessions/*/*.jsonl"
    until_sync(lambda: any(words in it.read_text("utf-8") for it in folder.glob(transcripts)))


def test_without_code_mode_a_call_is_asked_about_too(shop: Path, zygote: Zygote) -> None:
    script = [Turn(call("order", {"item": "tea"})), lambda it: Turn(f"Got {it.last_result()}.")]
    with serving(script) as server:
        configure(shop, server, tools={})
        arguments = ("agent", "-m", "Go.", *TOOLS, "--json")
        with Seat(zygote, *arguments, cwd=shop, stdout_too=False) as person:
            person.reads(PROMPT)
            person.types("once\n")
            status, out = person.leaves()
    assert (status, json.loads(out)["payloads"]) == (0, [{"text": "Got 1 tea."}])
    assert "price" in server.requests[0].asked.tool_names
    assert '✓ order {"item": "tea"}' in plain(person.seen)


def test_a_turn_that_is_left_waiting_is_continued_and_its_program_too(
    shop: Path, zygote: Zygote
) -> None:
    source = f"const kept = new Map([['at', 7]]); const got = await (async () => {{ {ORDER} }})();"
    script = [program(f"{source} return [got, kept.get('at')]"), goes_on, goes_on, goes_on]
    with serving(script) as server:
        configure(shop, server)
        with Seat(zygote, "agent", "-m", "Go.", *TOOLS, cwd=shop) as person:
            person.reads(PROMPT)
            written(shop, WAITING)
            person.types("\x04")
            person.reads("waiting (approval); resume with:")
            assert person.leaves()[0] == 3
        command = person.seen.splitlines()[-1].split()
        assert command[:3] == ["clawmode", "agent", "--continue"]
        with Seat(zygote, *command[1:], cwd=shop) as person:
            person.reads("tool: openclaw:core:order")
            person.reads(PROMPT)
            person.types("once\n")
            person.reads("It returned ['1 tea', 7].")
            assert person.leaves()[0] == 0


def test_a_tool_asks_the_person_at_the_terminal(shop: Path, zygote: Zygote) -> None:
    with serving([program("return await tools.ask_name()"), goes_on, goes_on]) as server:
        configure(shop, server)
        with Seat(zygote, "agent", "-m", "Go.", *TOOLS, cwd=shop) as person:
            person.reads("│ Who are you?\\u001b[2J")
            person.reads("[fill/decline] ")
            person.types("yes\n")
            person.reads("name")
            person.types("Ann\n")
            person.reads("It returned hello {'name': 'Ann'}.")
            assert person.leaves()[0] == 0


@pytest.mark.covers("AL-84")
@pytest.mark.parametrize(
    ("turn", "at"),
    [
        (Turn("I think", pause(60), "never"), "I think"),
        (program("await tools.forever()"), "openclaw:core:forever"),
        (program("await tools.block()"), "openclaw:core:block"),
        (program(ORDER), PROMPT),
    ],
    ids=["words", "call", "thread", "question"],
)
def test_ctrl_c_stops_the_run_at_once_and_that_is_written_down(
    shop: Path, zygote: Zygote, turn: Turn, at: str
) -> None:
    with serving([turn, goes_on]) as server:
        configure(shop, server)
        with Seat(zygote, "agent", "-m", "Go.", *TOOLS, cwd=shop) as person:
            person.reads(at)
            began = time.monotonic()
            person.types("\x03")
            person.reads("clawmode: stopped")
            assert person.leaves()[0] == 130
            assert time.monotonic() - began < 10
    assert "Traceback" not in person.seen
    shown = zygote.run("sessions", "show", cwd=shop).stdout
    assert re.match(r"- run \w+  aborted", shown)
    assert "I think" in shown or "exec" in shown


def test_ctrl_c_works_while_libraries_are_loaded_and_leaves_nothing(shop: Path) -> None:
    with serving([Turn("never")]) as server:
        configure(shop, server)
        with FreshPerson("agent", "-m", "Go.", cwd=shop) as person:
            person.reads("… loading the model's library")
            person.types("\x03")
            person.reads("clawmode: stopped")
            assert person.leaves() == (130, "")
    assert "Traceback" not in person.seen
    assert server.requests == []
    assert answer(clawmode("sessions", "list", "--json", cwd=shop)) == {"sessions": []}


# ---- Beside it ----


def test_help_of_every_command_loads_nothing_heavy() -> None:
    script = """
import contextlib, io, sys, time
import clawmode.commands.cli
paths = [[], ["agent"], ["sessions"], ["sessions", "list"], ["sessions", "show"],
         ["trajectory"], ["trajectory", "show"], ["trajectory", "export"], ["run"], ["mcp"]]
began = time.perf_counter()
for path in paths:
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        clawmode.commands.cli.app([*path, "--help"])
    assert said.getvalue().lstrip().startswith("Usage: "), path
print(time.perf_counter() - began)
heavy = {"anyio", "rich", "pydantic_ai", "openai", "anthropic", "mcp", "httpx2", "wasmtime"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=20
    )
    seconds, heavy = done.stdout.splitlines()
    assert (float(seconds) < 4, heavy) == (True, "[]")
