"""What an agent has to stand: many sessions, other writers, kills and aborts at any moment."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.support.agent_driver import opened
from tests.support.agent_program import WIRES, Plan, Program, kill_agents, opened_program
from tests.support.ordeals import (
    abort_at_events,
    abort_at_moments,
    check_crowd,
    double,
    ordeal,
    reply,
)
from tests.support.session_writer import started
from tests.support.waiting import idle, until, within

from clawmode.agent.requests import AgentRequest
from clawmode.agent.run import AgentRun
from clawmode.agent.turn import CONTINUED
from clawmode.messages import (
    AssistantMessage,
    Message,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from clawmode.models.providers import Api
from clawmode.sessions.transcript import open_session
from clawmode.testing import ScriptedModel, ScriptRequest, ScriptServer, Turn, call, scripted

pytestmark = pytest.mark.anyio

MB = 1 << 20
USER = UserMessage.of("go")
CALLS = AssistantMessage(content=(ToolCall("c1", "exec", {"code": "return 1"}),), stop="tool_calls")
RESULT = ToolMessage(call_id="c1", name="exec", content=(Text("1"),))
CUT_OFF = AssistantMessage(content=(Text("It is "),), stop="aborted")
ANSWER = AssistantMessage(content=(Text("It is done."),))


@asynccontextmanager
async def held_elsewhere(path: Path) -> AsyncIterator[None]:
    """Another process writes to the session."""
    async with started("hold", str(path)) as (_, lines):
        assert "holds" in await lines.next()
        yield


async def test_many_sessions_at_once_lose_double_and_mix_up_nothing(tmp_path: Path) -> None:
    await check_crowd(tmp_path, 15)  # 100 in the ordeals


# ---- Aborts ----


@pytest.mark.covers("AL-84")
async def test_an_abort_at_any_event_ends_the_run_once_and_leaves_nothing(tmp_path: Path) -> None:
    async with ordeal(tmp_path) as found:
        await abort_at_events(found, 10)
        assert all(run.ended.is_set() for run in found.agent.runtime.runs())


@pytest.mark.covers("AL-84")
@pytest.mark.parametrize("code_mode", [True, False])
async def test_an_abort_at_any_moment_ends_the_run_once_and_leaves_nothing(
    tmp_path: Path, code_mode: bool
) -> None:
    async with ordeal(tmp_path, code_mode) as found:
        await abort_at_moments(found, 10)
        assert all(run.ended.is_set() for run in found.agent.runtime.runs())


@pytest.mark.covers("AL-84")
async def test_an_abort_while_another_has_the_session_ends_the_wait(tmp_path: Path) -> None:
    async with ordeal(tmp_path) as found:
        session = await found.agent.runtime.sessions.resolve("held")
        async with held_elsewhere(session.transcript):
            run = await found.start("held")
            await until(lambda: found.events(run))
            await idle()
            assert found.agent.runtime.abort(run.id)
            with within(2):
                result = await found.agent.runtime.result(run.id)
            assert result.status == "aborted"
        await found.check(run)


# ---- Other processes ----


# To start the program takes seconds, and all of them share it.
alone = pytest.mark.timeout(40, func_only=True)


@pytest.fixture(scope="module")
async def program() -> AsyncIterator[Program]:
    async with opened_program() as found:
        yield found


@alone
@pytest.mark.covers("AL-85")
async def test_agents_that_are_killed_lose_and_double_nothing(
    program: Program, tmp_path: Path
) -> None:
    found = await kill_agents(program, tmp_path, 1, random.randrange(1 << 30))  # 200 in the soak
    assert found.kills == 1


@alone
@pytest.mark.parametrize(
    "api", [WIRES[0], *(pytest.param(api, marks=pytest.mark.ordeal) for api in WIRES[1:])]
)
async def test_a_program_that_was_parked_when_its_agent_was_killed_is_its_runs_alone(
    program: Program, tmp_path: Path, api: Api
) -> None:
    plan = Plan("r1")
    is_parked = anyio.Event()
    stranger = ""

    async def react(request: ScriptRequest) -> Turn:
        if stranger:
            wait = call("wait", {"runId": plan.parked}, id=stranger)
            return Turn("no luck") if stranger in request.results else Turn(wait)
        turn = plan.react(request)
        if plan.parked and not is_parked.is_set():
            is_parked.set()
            await anyio.sleep_forever()
        return turn

    async with ScriptServer(react) as server:
        program.use(tmp_path, server)
        pid = await program.start(api, message="go", run_id="r1")
        with anyio.fail_after(10):
            await is_parked.wait()
        await program.kill(pid)
        for stranger, session in (("r2", "main"), ("r3", "another")):
            request = {"message": "mine?", "run_id": stranger, "session_key": session}
            pid = await program.start(api, **request)
            assert (await program.result(pid))["status"] == "ok"
            history = await program.history(session)
            assert history is not None
            results = [it.message for it in history.entries if it.run_id == stranger]
            (answer,) = [it for it in results if isinstance(it, ToolMessage)]
            assert '"code":"invalid_input"' in answer.text
        stranger = ""
        pid = await program.start(api, run_id="r1", resume=True)
        assert (await program.result(pid))["status"] == "ok"
    assert plan.came_to == "after"
    assert sorted(program.effects()) == [f"r1-{number}" for number in range(1, 8)]


CONFIGURATION = """{
  agents: { defaults: { model: "wire/a" } },
  models: { providers: { wire: { baseUrl: "%s", api: "anthropic-messages", apiKey: "sk-none" } } },
  session: { writeLock: { acquireTimeoutMs: 300 } },
}"""


@alone
async def test_of_two_processes_one_writes_and_the_other_says_that_it_is_busy(
    program: Program, tmp_path: Path
) -> None:
    gate, asked = anyio.Event(), anyio.Event()

    async def react(request: ScriptRequest) -> Turn:
        asked.set()
        await gate.wait()
        return Turn("done")

    async with ScriptServer(react) as server:
        program.use(tmp_path, server)
        config = tmp_path / "clawmode.json5"
        config.write_text(CONFIGURATION % server.url)
        first = await program.start(message="first", run_id="first")
        with anyio.fail_after(10):
            await asked.wait()
        pid = await program.start(message="second", run_id="second", lock_ms=300)
        second = await program.result(pid)
        assert second["status"] == "error"
        flags = ["--config", str(config), "--state", str(tmp_path), "--approve", "never"]
        code, out, err = await program.command("agent", "-m", "third", *flags)
        assert (code, out) == (1, "")
        for text in (second["error"], err):
            assert f"busy: process {first} has been writing to it" in " ".join(text.split())
            assert "Traceback" not in text
        gate.set()
        assert (await program.result(first))["status"] == "ok"
        assert len(server.requests) == 1
    history = await program.history()
    assert history is not None
    assert {it.run_id for it in history.entries} == {"first"}


@alone
async def test_the_command_resumes_a_run_whose_process_was_killed(
    program: Program, tmp_path: Path
) -> None:
    asked = anyio.Event()

    async def react(request: ScriptRequest) -> Turn:
        if request.number == 1:
            asked.set()
            await anyio.sleep_forever()
        return Turn("It is done.")

    async with ScriptServer(react) as server:
        program.use(tmp_path, server)
        config = tmp_path / "clawmode.json5"
        config.write_text(CONFIGURATION % server.url)
        pid = await program.start(message="go", run_id="r1")
        with anyio.fail_after(10):
            await asked.wait()
        await program.kill(pid)
        flags = ["--config", str(config), "--state", str(tmp_path), "--approve", "never"]
        code, out, err = await program.command("agent", "--continue", "r1", *flags)
        assert (code, out.strip()) == (0, "It is done."), err
        code, out, err = await program.command("agent", "--continue", "r1", *flags)
        assert (code, out) == (1, "")
        assert "no unfinished run 'r1'" in " ".join(err.split())
    history = await program.history()
    assert history is not None
    assert history.open_runs() == {}


@alone
async def test_an_answer_of_fifty_megabytes_takes_little_memory(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripted, "PIECE", MB)
    peaks: dict[str, int] = {}

    def react(request: ScriptRequest) -> Turn:
        return Turn("x" * 50 * MB if request.said == "much" else "little")

    async with ScriptServer(react) as server:
        program.use(tmp_path, server)
        for name in ("little", "much"):
            result = await program.result(await program.start(message=name, session_key=name))
            assert (result["status"] == "ok") is (name == "little"), result
            peaks[name] = result["peakMb"]
    assert peaks["much"] - peaks["little"] < 100, peaks


# ---- Going on ----


@pytest.mark.parametrize(
    ("recorded", "status", "asked"),
    [
        ([], "error", 0),
        ([USER], "ok", 1),
        ([USER, CALLS], "ok", 1),
        ([USER, CALLS, RESULT], "ok", 1),
        ([USER, CUT_OFF], "ok", 1),
        ([USER, ANSWER], "ok", 0),
        ([USER, CALLS, RESULT, ANSWER], "ok", 0),
    ],
)
async def test_a_run_resumes_wherever_it_was_cut_off(
    tmp_path: Path, recorded: list[Message], status: str, asked: int
) -> None:
    model = ScriptedModel(["It is done."] * asked)
    async with opened(tmp_path, model, tools=[double]) as agent:
        session = await agent.runtime.sessions.resolve()
        async with open_session(session) as transcript:
            transcript.start_run("r1")
            for message in recorded:
                transcript.message("r1", message)
        result = await agent.ask("", run_id="r1", resume=True)
        history = await agent.history()
    assert result.status == status
    assert reply(result) == ("It is done." if status == "ok" else "")
    assert len(model.requests) == asked
    assert history.open_runs() == {}
    for request in model.requests:
        assert isinstance(request.messages[-1], ToolMessage | UserMessage)
    answers = [it for it in history.messages() if getattr(it, "text", "") == "It is done."]
    assert len(answers) == (status == "ok")


async def test_a_run_continues_after_another_has_had_its_turn(tmp_path: Path) -> None:
    model = ScriptedModel(["between", "It is done."])
    async with opened(tmp_path, model, tools=[double]) as agent:
        session = await agent.runtime.sessions.resolve()
        async with open_session(session) as transcript:
            transcript.start_run("r1")
            transcript.message("r1", USER)
            transcript.message("r1", CALLS)
        await agent.ask("something else")
        result = await agent.ask("", run_id="r1", resume=True)
    assert reply(result) == "It is done."
    last = model.requests[-1].messages[-1]
    assert last == UserMessage(content=(Text(CONTINUED),), at=last.at)


async def test_a_run_that_is_asked_for_twice_at_once_starts_once(tmp_path: Path) -> None:
    model = ScriptedModel(["once", "twice"])
    async with opened(tmp_path, model) as agent:
        runs: list[AgentRun] = []

        async def start(key: str) -> None:
            request = AgentRequest(message="go", run_id="r1", session_key=key)
            runs.append(await agent.runtime.start(request))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start, "a")
            tasks.start_soon(start, "b")
        await agent.runtime.result("r1")
        await idle()
    assert runs[0] is runs[1]
    assert len(model.requests) == 1
