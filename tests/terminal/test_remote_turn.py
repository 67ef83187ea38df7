"""`clawmode agent` as a client of a gateway: what it shows, asks, honours and answers."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.support.cli_driver import answer, plain
from tests.support.command_driver import Seat
from tests.support.forking import Zygote
from tests.support.gateway_driver import Wired, wired
from tests.support.gateway_inside import echo
from tests.support.waiting import until, until_sync

from clawmode.commands import options as common
from clawmode.rpc import presence
from clawmode.testing import Turn, call, pause
from clawmode.tools.hooks import BeforeToolCall, RequireApproval, ToolCallDecision
from clawmode.tools.tool import InputRequest, Tool, ToolContext
from clawmode.types import JsonObject

# The first test of a process waits until the zygote has imported everything.
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(45)]

CODE_MODE: dict[str, Any] = {"codeMode": True}
PROMPT = "once, always or deny? (Ctrl-D: later) "


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWMODE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("CLAWMODE_CONFIG", "NO_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


class Office:
    """A gateway, and commands that find it."""

    def __init__(self, it: Wired, folder: Path, zygote: Zygote) -> None:
        self.it = it
        self._folder = folder
        self._zygote = zygote

    async def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        def run() -> subprocess.CompletedProcess[str]:
            return self._zygote.run("agent", *arguments, cwd=self._folder, **options)

        return await anyio.to_thread.run_sync(run)

    async def sit(self, talk: Callable[[Seat], Any], *arguments: str) -> Any:
        """Somebody at a terminal, who talks with the command in a thread."""

        def sit() -> Any:
            with Seat(self._zygote, "agent", *arguments, cwd=self._folder) as seat:
                return talk(seat)

        return await anyio.to_thread.run_sync(sit)

    def require_approval(self) -> None:
        def ask(event: BeforeToolCall) -> ToolCallDecision | None:
            wish = RequireApproval(title=f"Run {event.tool_name}?")
            return ToolCallDecision(require_approval=wish) if event.tool_name == "echo" else None

        self.it.gateway.host.hooks.on("before_tool_call", ask)


@asynccontextmanager
async def office(
    folder: Path, zygote: Zygote, script: list[Any], **options: Any
) -> AsyncIterator[Office]:
    given: dict[str, Any] = {"rules": CODE_MODE, "tools": [echo()], **options}
    async with wired(folder, script, announced=True, **given) as it:
        yield Office(it, folder, zygote)


ECHO = 'return (await tools.echo({ word: "hi" })).said'


def program(code: str, *words: str) -> Turn:
    return Turn(*words, call("exec", {"code": code}))


def tells(request: Any) -> Turn:
    """Waits for a program as long as it waits, and says what came of it."""
    found = request.last_result()
    if found["status"] == "waiting":
        return Turn(call("wait", {"runId": found["runId"]}))
    return Turn(f"It is {json.dumps(found.get('value') or found.get('error'))}.")


ASKED = [program(ECHO), tells, tells, tells]
"""A turn whose program waits for a person."""


# ---- A turn ----


@pytest.mark.covers("AL-1", "AL-2")
async def test_a_turn_of_the_gateway_looks_as_if_it_ran_here(
    tmp_path: Path, zygote: Zygote
) -> None:
    async with office(tmp_path, zygote, [program(ECHO, "Let me look."), tells]) as at:
        done = await at.run("-m", "What is it?", "--session", "Report")
        (run,) = at.it.gateway.host.runtime.runs()
    assert (done.returncode, done.stdout) == (0, 'Let me look.\nIt is {"word": "hi"}.\n')
    head, exec_, nested, footer = done.stderr.splitlines()
    assert head == "the model: 2 calls"
    assert re.fullmatch(r"└─ ✓ exec return .*  [\d.]+ m?s", exec_)
    assert re.fullmatch(r"   └─ ✓ openclaw:core:echo  [\d.]+ m?s", nested)
    assert re.fullmatch(
        r"[\d.]+ m?s · 2 requests · .* · code mode · session agent:main:report", footer
    )
    assert (run.request.message, run.request.channel) == ("What is it?", "cli")


async def test_options_go_along_and_programs_read_the_result(
    tmp_path: Path, zygote: Zygote
) -> None:
    async with office(tmp_path, zygote, [Turn("First."), Turn("Second.")]) as at:
        chosen = ("--model", "scripted/b", "--thinking", "low", "--timeout", "9", "--json")
        done = await at.run("-m", "One.", *chosen)
        again = await at.run("-q", "-m", "-", stdin="Two.")
        first, second = at.it.gateway.host.runtime.runs()
    result = answer(done)
    assert (done.returncode, done.stderr) == (0, "")
    assert (result["status"], result["payloads"]) == ("ok", [{"text": "First."}])
    assert result["runId"] == first.id
    assert set(result) == {
        *("runId", "sessionKey", "sessionId", "status", "payloads", "usage", "metadata"),
        *("startedAt", "endedAt"),
    }
    asked = first.request
    assert (asked.model, asked.thinking, asked.timeout_seconds) == ("scripted/b", "low", 9.0)
    assert (again.returncode, again.stdout, again.stderr) == (0, "Second.\n", "")
    assert second.request.message == "Two."


@pytest.mark.covers("N-5")
@pytest.mark.parametrize(
    "options",
    [
        ("--tools", "shop:TOOLS"),
        ("--policy", "{}"),
        ("--mcp-config", "mcp.json"),
        ("--approve", "never"),
        ("--approve", "ask"),  # the gateway asks nobody
        ("--config", "other.json5"),
    ],
    ids=" ".join,
)
async def test_what_only_this_process_can_honour_needs_local(
    tmp_path: Path, zygote: Zygote, options: tuple[str, str]
) -> None:
    (tmp_path / "other.json5").write_text("{}", "utf-8")
    async with office(tmp_path, zygote, []) as at:
        done = await at.run("-m", "Hi", *options)
        assert at.it.gateway.host.runtime.runs() == []
    assert (done.returncode, done.stdout) == (2, "")
    assert options[0] in done.stderr
    assert "--local" in done.stderr


async def test_the_gateways_own_configuration_may_be_named(tmp_path: Path, zygote: Zygote) -> None:
    async with office(tmp_path, zygote, [Turn("Fine.")]) as at:
        done = await at.run("-m", "Hi", "-q", "--config", "clawmode.json5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Fine.\n", "")


async def test_local_runs_in_this_process(tmp_path: Path, zygote: Zygote) -> None:
    async with office(tmp_path, zygote, []) as at:
        done = await at.run("-m", "Hi", "--local", "--config", "clawmode.json5")
        assert at.it.gateway.host.runtime.runs() == []
    assert done.returncode == 2  # it has no scripted model
    assert "scripted" in done.stderr


async def test_after_a_gateway_has_stopped_the_command_runs_locally(
    tmp_path: Path, zygote: Zygote
) -> None:
    async with office(tmp_path, zygote, []) as at:
        pass
    assert (tmp_path / "state" / presence.LOCK).exists()
    done = await at.run("-m", "Hi", "--config", "clawmode.json5")
    assert (done.returncode, "scripted" in done.stderr) == (2, True)


# ---- How it ends ----


async def test_what_fails_has_the_same_exit_status_as_here(tmp_path: Path, zygote: Zygote) -> None:
    async with office(tmp_path, zygote, []) as at:  # the script has ended
        failed = await at.run("-m", "Hi")
        unknown = await at.run("-m", "Hi", "--session", "0" * 32)
        no_agent = await at.run("-m", "Hi", "--agent", "nobody")
        no_run = await at.run("--continue", "no-such-run")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "error: " in failed.stderr
    assert [it.returncode for it in (unknown, no_agent, no_run)] == [2, 2, 2]
    assert "--local" in no_run.stderr


async def test_ctrl_c_aborts_the_run_in_the_gateway(tmp_path: Path, zygote: Zygote) -> None:
    def talk(seat: Seat) -> tuple[int, str]:
        seat.reads("Thinking about it")
        seat.types("\x03")
        return seat.leaves()

    script = [Turn("Thinking about it.\n", pause(30), "Never.")]
    async with office(tmp_path, zygote, script) as at:
        status, _ = await at.sit(talk, "-m", "Hi")
        (run,) = at.it.gateway.host.runtime.runs()
        await until(run.ended.is_set)
    assert (status, run.state) == (130, "aborted")


async def test_ctrl_c_before_the_run_is_known_aborts_it_too(
    tmp_path: Path, zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with office(tmp_path, zygote, [Turn(pause(30), "Never.")]) as at:
        answer_at_once, runtime = at.it.dispatcher.answer, at.it.gateway.host.runtime
        stopped = threading.Event()

        async def answer_late(client: Any, request: Any) -> str:
            frame = await answer_at_once(client, request)
            if request.method == "agent" and not stopped.is_set():
                await anyio.to_thread.run_sync(stopped.wait, 10)
            return frame

        def talk(seat: Seat) -> tuple[int, str]:
            until_sync(runtime.runs)
            os.kill(seat.pid, signal.SIGINT)
            time.sleep(0.2)
            stopped.set()
            return seat.leaves()

        monkeypatch.setattr(at.it.dispatcher, "answer", answer_late)
        status, _ = await at.sit(talk, "-m", "Hi")
        (run,) = runtime.runs()
        await until(run.ended.is_set)
    assert (status, run.state) == (130, "aborted")


async def test_a_command_that_is_killed_leaves_its_run_alone(
    tmp_path: Path, zygote: Zygote
) -> None:
    def talk(seat: Seat) -> None:
        seat.reads("Thinking about it")
        os.kill(seat.pid, signal.SIGKILL)

    killed = anyio.Event()
    script = [Turn("Thinking about it.\n", pause(killed), "Done.")]
    async with office(tmp_path, zygote, script) as at:
        await at.sit(talk, "-m", "Hi")
        killed.set()
        (run,) = at.it.gateway.host.runtime.runs()
        await until(run.ended.is_set)
    assert run.state == "ok"


@pytest.mark.covers("N-38")
async def test_a_lost_connection_costs_no_word_of_the_reply_and_repeats_none(
    tmp_path: Path, zygote: Zygote
) -> None:
    async with office(tmp_path, zygote, [Turn("One ", pause(0.5), "two.")]) as at:

        async def lose() -> None:
            await until(lambda: len(at.it.gateway.clients) > 1)
            await until(lambda: [it.state for it in at.it.gateway.host.runtime.runs()])
            at.it.hang_up()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lose)
            done = await at.run("-m", "Hi")
    assert done.returncode == 0
    assert done.stdout == "One two.\n"
    assert "the connection to the gateway was lost" in done.stderr


# ---- Approvals ----


async def test_questions_are_put_at_the_terminal_and_answered(
    tmp_path: Path, zygote: Zygote
) -> None:
    def talk(seat: Seat) -> tuple[tuple[int, str], str]:
        seat.reads("Approval needed (warning): Run echo?")
        seat.reads('"word": "hi"')
        seat.reads("until the gateway stops")
        seat.reads(PROMPT)
        seat.types("once\n")
        return seat.leaves(), seat.seen

    async with office(tmp_path, zygote, ASKED) as at:
        at.require_approval()
        (status, _), seen = await at.sit(talk, "-m", "Hi")
        assert at.it.gateway.approvals.pending() == []
    assert status == 0
    assert 'It is {"word": "hi"}.' in plain(seen)


@pytest.mark.covers("AK-4")
async def test_calls_of_a_loop_are_one_question_at_the_terminal_of_a_client(
    tmp_path: Path, zygote: Zygote
) -> None:
    each = "tools.echo({ word }).then(({ said }) => said.word, (error) => error.code)"
    loop = f'return (await Promise.all(["a", "b", "c"].map((word) => {each}))).join()'

    def talk(seat: Seat) -> tuple[tuple[int, str], str]:
        seat.reads("3 calls of one program")
        seat.reads('│ {"word": "c"}')
        seat.reads("numbers, or show? (Ctrl-D: later) ")
        seat.types("1,3\n")
        seat.reads("1 call of one program")
        seat.reads("numbers, or show? (Ctrl-D: later) ")
        seat.types("n\n")
        return seat.leaves(), seat.seen

    async with office(tmp_path, zygote, [program(loop), tells, tells, tells]) as at:
        at.require_approval()
        (status, _), seen = await at.sit(talk, "-m", "Hi")
        assert at.it.gateway.approvals.pending() == []
    assert status == 0
    assert 'It is "a,not_approved,c".' in plain(seen)


async def test_a_question_that_was_answered_elsewhere_goes_away(
    tmp_path: Path, zygote: Zygote
) -> None:
    shown = threading.Event()

    def talk(seat: Seat) -> tuple[int, str]:
        seat.reads(PROMPT)
        shown.set()
        seat.reads("no longer open")
        return seat.leaves()

    async with office(tmp_path, zygote, ASKED) as at:
        at.require_approval()

        async def resolve() -> None:
            await anyio.to_thread.run_sync(shown.wait, 10)
            (question,) = at.it.gateway.approvals.pending()
            await at.it.call("exec.approval.resolve", id=question.id, decision="deny")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resolve)
            status, _ = await at.sit(talk, "-m", "Hi")
    assert status == 0


async def test_later_leaves_it_waiting_and_continue_asks_again(
    tmp_path: Path, zygote: Zygote
) -> None:
    def put_off(seat: Seat) -> tuple[tuple[int, str], str]:
        seat.reads(PROMPT)
        seat.types("\x04")
        return seat.leaves(), seat.seen

    def allow(seat: Seat) -> tuple[tuple[int, str], str]:
        seat.reads(PROMPT)
        seat.types("once\n")
        return seat.leaves(), seat.seen

    async with office(tmp_path, zygote, ASKED) as at:
        at.require_approval()
        (status, _), seen = await at.sit(put_off, "-m", "Hi", "--session", "report")
        (run,) = at.it.gateway.host.runtime.runs()
        assert not run.ended.is_set()
        command = re.sub(r"\s+", " ", plain(seen)).partition("resume with: ")[2]
        assert f"agent --continue {run.id} --session agent:main:report" in command
        (again, _), shown = await at.sit(
            allow, "--continue", run.id, "--session", "agent:main:report"
        )
    assert (status, again) == (3, 0)
    assert 'It is {"word": "hi"}.' in plain(shown)


async def test_without_a_terminal_it_is_denied_and_always_allows_it(
    tmp_path: Path, zygote: Zygote
) -> None:
    async with office(tmp_path, zygote, ASKED) as at:
        at.require_approval()
        denied = await at.run("-m", "Hi")
    async with office(tmp_path, zygote, ASKED) as at:
        at.require_approval()
        allowed = await at.run("-m", "Hi", "--approve", "always", "--session", "other")
    assert "no terminal to ask at" in denied.stderr
    assert "was not approved" in denied.stdout
    assert allowed.stdout == 'It is {"word": "hi"}.\n'


async def test_what_a_tool_wants_to_know_is_asked_here(tmp_path: Path, zygote: Zygote) -> None:
    async def ask(given: JsonObject, context: ToolContext) -> str:
        fields: JsonObject = {"type": "object", "properties": {"name": {"type": "string"}}}
        told = await context.ask(InputRequest(message="Who are you?", schema=fields))
        return f"hello {told}"

    def talk(seat: Seat) -> tuple[tuple[int, str], str]:
        seat.reads("Who are you?")
        seat.reads("[fill/decline] ")
        seat.types("fill\n")
        seat.reads("name")
        seat.reads("> ")
        seat.types("Ann\n")
        return seat.leaves(), seat.seen

    tool = Tool("ask_name", "Asks.", {"type": "object"}, ask)
    script = [program("return await tools.ask_name({})"), tells, tells, tells]
    async with office(tmp_path, zygote, script, tools=[tool]) as at:
        (status, _), seen = await at.sit(talk, "-m", "Hi")
    assert status == 0
    assert "hello {'name': 'Ann'}" in plain(seen)


# ---- Its cost ----


def test_nothing_of_the_gateway_is_imported_where_none_ever_ran(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from clawmode.commands.cli import main\n"
        "sys.argv = ['clawmode', 'agent', '-m', 'Hi']\n"
        "try:\n    main()\n"
        "except SystemExit as exit:\n    status = exit.code\n"
        "print(status, [it for it in sys.modules if it.startswith('clawmode.gateway')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=tmp_path,
    )
    assert done.stderr.endswith("\n2 []\n"), done.stderr


def test_the_command_knows_the_name_of_the_lock() -> None:
    assert common.GATEWAY_LOCK == presence.LOCK
