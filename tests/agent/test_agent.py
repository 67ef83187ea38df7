"""`Agent`: one object for programs, on the real runtime, worker pool, wire and MCP servers."""

import ast
import asyncio
import gc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.waiting import until

from clawmode import (
    Agent,
    AgentEvent,
    AgentRequest,
    Approvals,
    ClawmodeError,
    ClawmodeWarning,
    ConfigurationError,
    Decision,
    DuplicateTool,
    Hooks,
    McpServers,
    NotOpen,
    Pool,
    Question,
    ResultEvent,
    RunFailed,
    SessionBusy,
    ToolCallDecision,
    read_servers,
    tool,
)
from clawmode.agent import events as events_module
from clawmode.messages import ToolMessage
from clawmode.testing import ScriptedModel, ScriptRequest, ScriptServer, Turn, call, pause

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
WAREHOUSE: Any = {
    "command": sys.executable,
    "args": [str(ROOT / "examples" / "warehouse_server.py")],
}
SECONDS = 30
"""For one run on a busy machine; the first one by name imports the library of the provider."""


@tool(effect="read")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADD = Turn("Let me add.", call("exec", {"code": "return await tools.add({a: 1, b: 2})"}))


def said(model: ScriptedModel) -> list[str]:
    """Returns the names of the tools in each request."""
    return [" ".join(tool.name for tool in request.tools) for request in model.requests]


def files_in(folder: Path, pattern: str = "*") -> list[Path]:
    return sorted(folder.rglob(pattern))


# ---- Runs ----


@pytest.mark.covers("PY-3")
async def test_an_agent_answers_with_the_result_of_a_program_that_calls_a_tool(pool: Pool) -> None:
    model = ScriptedModel([ADD, lambda request: Turn(f"It is {request.last_result()['value']}.")])
    async with Agent(model, tools=[add], pool=pool) as agent:
        with anyio.fail_after(SECONDS):
            result = await agent.run("What is 1 + 2?")
    assert (result.status, result.output) == ("ok", "It is 3.")
    assert [payload["text"] for payload in result.payloads] == ["Let me add.", "It is 3."]
    assert said(model) == ["exec wait"] * 2


@pytest.mark.covers("PY-3")
@pytest.mark.parametrize("api", ["anthropic-messages", "openai-completions", "openai-responses"])
async def test_a_model_is_found_by_name_and_asked_over_its_real_wire(api: str, pool: Pool) -> None:
    async with ScriptServer([ADD, "It is 3."], key="a key of no use") as server:
        url = server.url if api == "anthropic-messages" else f"{server.url}/v1"
        providers = {"mine": {"baseUrl": url, "api": api, "apiKey": "a key of no use"}}
        async with Agent("mine/any", providers=providers, tools=[add], pool=pool) as agent:
            with anyio.fail_after(SECONDS):
                result = await agent.run("What is 1 + 2?")
    assert result.output == "It is 3."
    assert [request.asked.tool_names for request in server.requests] == [("exec", "wait")] * 2


@pytest.mark.covers("PY-3")
async def test_an_agent_calls_the_tools_of_a_real_mcp_server(pool: Pool) -> None:
    code = "return (await MCP.warehouse.stock({product: 'tea'})).structuredContent.result"
    model = ScriptedModel(
        [
            Turn(call("exec", {"code": code})),
            lambda request: Turn(f"{request.last_result()['value']} of tea."),
        ]
    )
    servers = {"warehouse": WAREHOUSE, "gone": {"command": "/no/such/program"}}
    async with Agent(model, mcp_servers=servers, pool=pool) as agent:
        assert [*agent.missing_servers] == ["gone"]
        with anyio.fail_after(SECONDS):
            assert (await agent.run("How much tea is there?")).output == "40 of tea."


async def test_agents_can_share_mcp_servers_and_the_owner_closes_them(pool: Pool) -> None:
    code = "return (await MCP.warehouse.stock({product: 'cake'})).structuredContent.result"
    script = [Turn(call("exec", {"code": code})), "Done."]
    async with McpServers(read_servers({"warehouse": WAREHOUSE}).unwrap()) as servers:
        await servers.connect()
        for _ in range(2):
            async with Agent(ScriptedModel(script), mcp_servers=servers, pool=pool) as agent:
                with anyio.fail_after(SECONDS):
                    assert (await agent.run("How much cake?")).metadata["toolCalls"] == 1
            assert [view.state for view in servers.views] == ["ready"]


async def test_without_code_mode_the_model_sees_the_tools_themselves(pool: Pool) -> None:
    model = ScriptedModel([Turn(call("add", {"a": 1, "b": 2})), "3"])
    async with Agent(model, tools=[add], code_mode=False, pool=pool) as agent:
        with anyio.fail_after(SECONDS):
            assert (await agent.run("1 + 2?")).output == "3"
    assert said(model) == ["add"] * 2


async def test_plain_functions_are_tools_and_the_policy_decides(pool: Pool) -> None:
    def twice(number: int) -> int:
        """Double a number."""
        return 2 * number

    model = ScriptedModel(["Hello."])
    async with Agent(
        model, tools=[add, twice], code_mode=False, policy={"deny": ["add"]}, pool=pool
    ) as agent:
        with anyio.fail_after(SECONDS):
            await agent.run("Hi")
    assert said(model) == ["twice"]


async def test_instructions_and_settings_reach_the_model(pool: Pool) -> None:
    model = ScriptedModel(["Aye.", "Aye."])
    settings: Any = {"thinking": "low", "timeoutSeconds": 30}
    async with Agent(
        model, instructions="Answer as a pirate.", settings=settings, pool=pool
    ) as agent:
        with anyio.fail_after(SECONDS):
            await agent.run("Hi")
            await agent.run(AgentRequest(message="Hi", system="Be brief.", thinking="high"))
    first, second = model.requests
    assert first.system.endswith("Answer as a pirate.")
    assert second.system.endswith("Answer as a pirate.\n\nBe brief.")
    assert (first.thinking, second.thinking) == ("low", "high")


async def test_the_limits_of_code_mode_can_be_set(pool: Pool) -> None:
    model = ScriptedModel(
        [
            Turn(call("exec", {"code": "while (true) {}"})),
            lambda request: Turn(str(request.last_result())),
        ]
    )
    async with Agent(model, tools=[add], code_mode={"timeoutMs": 200}, pool=pool) as agent:
        with anyio.fail_after(SECONDS):
            assert "timeout" in (await agent.run("Loop")).output


async def test_hooks_and_approvals_decide_about_calls(pool: Pool) -> None:
    asked: list[str] = []

    def allow(question: Question) -> Decision:
        asked.append(question.tool_id)
        return "allow-once"

    hooks = Hooks()
    hooks.before_tool_call(
        lambda event: (
            ToolCallDecision(block=True, block_reason="no threes")
            if event.params.get("a") == 3
            else None
        )
    )
    code = (
        "const sum = await tools.add({a: 1, b: 2});"
        "return [sum, await tools.add({a: 3, b: 3}).catch((e) => e.message)]"
    )
    model = ScriptedModel(
        [Turn(call("exec", {"code": code})), lambda it: Turn(str(it.last_result()["value"]))]
    )
    approvals = Approvals(ask_for=["add"], approver=allow)
    async with Agent(model, tools=[add], hooks=hooks, approvals=approvals, pool=pool) as agent:
        with anyio.fail_after(SECONDS):
            output = (await agent.run("Add")).output
    assert output.startswith("[3, ")
    assert "no threes" in output
    assert asked == ["openclaw:core:add"]


async def test_a_run_waits_for_the_decision_of_a_person(pool: Pool) -> None:
    def wait(request: ScriptRequest) -> Turn:
        return Turn(call("wait", {"runId": request.last_result()["runId"]}))

    model = ScriptedModel([ADD, wait, lambda it: Turn(str(it.last_result()["value"]))])
    async with Agent(model, tools=[add], approvals=Approvals(ask_for=["add"]), pool=pool) as agent:
        with anyio.fail_after(SECONDS):
            events = agent.stream("What is 1 + 2?")
            found = [await anext(events)]
            (question,) = await until(agent.approvals.pending)
            assert question.input == {"a": 1, "b": 2}
            agent.approvals.resolve(question.id, "allow-once")
            found += [event async for event in events]
    assert isinstance(found[-1], ResultEvent)
    assert found[-1].result.output == "3"


# ---- Conversations and the state folder ----


async def test_a_conversation_continues_and_others_do_not_see_it(pool: Pool) -> None:
    model = ScriptedModel(["Hello Ann.", "You are Ann.", "I do not know."])
    async with Agent(model, pool=pool) as agent:
        with anyio.fail_after(SECONDS):
            first = await agent.run("I am Ann.")
            await agent.run("Who am I?")
            other = await agent.run("Who am I?", session_key="other")
    assert [len(request.messages) for request in model.requests] == [1, 3, 1]
    assert (first.session_key, other.session_key) == ("agent:main:main", "agent:main:other")


@pytest.mark.covers("PY-3")
async def test_a_state_folder_keeps_the_conversation_for_the_next_agent(
    tmp_path: Path, pool: Pool
) -> None:
    model = ScriptedModel(["Hello Ann.", "You are Ann."])
    for message in ("I am Ann.", "Who am I?"):
        async with Agent(model, state=str(tmp_path / "state"), pool=pool) as agent:
            with anyio.fail_after(SECONDS):
                await agent.run(message)
    assert [len(request.messages) for request in model.requests] == [1, 3]
    assert (tmp_path / "state" / "sessions").is_dir()


@pytest.mark.covers("AD-1")
async def test_a_model_reads_the_same_bytes_of_a_result_when_its_session_goes_on(
    tmp_path: Path, pool: Pool
) -> None:
    program = """text('a "b"\\n{"status":"failed"}\u2028é'); json({ c: [1] });
return "x\\ny".repeat(20)"""
    model = ScriptedModel([Turn(call("exec", {"code": program})), "Done.", "Again."])
    events: list[AgentEvent | ResultEvent] = []
    for message in ("One", "Two"):
        options: Any = {"code_mode": True, "tools": [add], "pool": pool}
        async with Agent(model, state=str(tmp_path / "state"), **options) as agent:
            with anyio.fail_after(SECONDS):
                events += [event async for event in agent.stream(message)]
    _, first, later = [
        [it for it in request.messages if isinstance(it, ToolMessage)] for request in model.requests
    ]
    assert first[0].text.encode() == later[0].text.encode()
    assert first[0].text.startswith('{"status":"completed","valueChars":60}\na "b"\n')
    assert "telemetry" not in first[0].text
    details: Any = later[0].details
    assert (details["value"], details["telemetry"]["execCount"]) == ("x\ny" * 20, 1)
    (ended,) = [
        event.data
        for event in events
        if isinstance(event, AgentEvent) and event.data.get("name") == "exec" and "ms" in event.data
    ]
    shown: Any = ended["details"]
    assert shown["telemetry"]["execCount"] == 1


async def test_without_a_state_folder_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: Pool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with Agent(ScriptedModel(["Hello."]), pool=pool) as agent:
        with anyio.fail_after(SECONDS):
            await agent.run("Hi")
        folder = files_in(tmp_path)[0]
        assert folder.stat().st_mode & 0o077 == 0
    assert files_in(tmp_path) == []


# ---- Events ----


@pytest.mark.covers("PY-4")
async def test_a_stream_yields_the_events_of_its_run_and_ends_with_the_result(pool: Pool) -> None:
    model = ScriptedModel([ADD, "It is 3."])
    async with Agent(model, tools=[add], pool=pool) as agent:
        with anyio.fail_after(SECONDS):
            found = [event async for event in agent.stream("What is 1 + 2?")]
    *events, last = found
    assert isinstance(last, ResultEvent)
    assert last.result.output == "It is 3."
    assert (last.stream, last.data["phase"]) == ("lifecycle", "end")
    assert [event.seq for event in found] == [*range(1, len(found) + 1)]
    assert {event.stream for event in events} == {"lifecycle", "assistant", "tool"}
    text = "".join(str(event.data.get("delta", "")) for event in events)
    assert text == "Let me add.It is 3."
    nested = [event.data["name"] for event in events if "parentId" in event.data]
    assert set(nested) == {"openclaw:core:add"}


async def test_a_slow_reader_gets_many_deltas_as_one_and_the_whole_reply(pool: Pool) -> None:
    words = "".join(f"word {number} " for number in range(5_000))
    async with Agent(ScriptedModel([Turn(words)]), pool=pool) as agent:
        with anyio.fail_after(SECONDS):
            events = agent.stream("Go")
            found = [await anext(events)]
            (run,) = agent.runtime.runs()
            await run.ended.wait()  # nobody reads meanwhile
            found += [event async for event in events]
    assert len(found) < 500
    deltas = [str(event.data["delta"]) for event in found if "delta" in event.data]
    assert "".join(deltas) == words
    assert isinstance(found[-1], ResultEvent)


async def test_a_run_is_aborted_when_nobody_reads_its_events(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "MAX_WAITING", 20)
    script = [Turn(call("add", {"a": 1, "b": number})) for number in range(100)]
    async with Agent(ScriptedModel(script), tools=[add], code_mode=False, pool=pool) as agent:
        with anyio.fail_after(SECONDS):
            events = agent.stream("Go")
            found = [await anext(events)]
            (run,) = agent.runtime.runs()
            await run.ended.wait()
            while found[-1].data.get("phase") != "error":
                found.append(await anext(events))
            with pytest.raises(RunFailed, match="nobody has read its events"):
                await anext(events)
    assert [event.seq for event in found] == list(range(1, len(found) + 1))
    assert run.state == "aborted"


async def test_streams_of_two_conversations_do_not_mix(pool: Pool) -> None:
    async with Agent(ScriptedModel(lambda request: Turn("Hello.")), pool=pool) as agent:

        async def collect(key: str) -> None:
            async for event in agent.stream("Hi", session_key=key):
                assert event.session_key == f"agent:main:{key}"

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for key in ("a", "b", "c"):
                    tasks.start_soon(collect, key)


class Slow:
    """A tool that does not end by itself, and what happened to it."""

    def __init__(self) -> None:
        self.begun, self.cancelled = anyio.Event(), anyio.Event()

        @tool
        async def slow() -> None:
            """Take for ever."""
            self.begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                self.cancelled.set()

        self.tool = slow
        self.turn = Turn(call("exec", {"code": "return await tools.slow()"}))


@pytest.mark.covers("PY-4")
async def test_leaving_the_loop_aborts_the_run_and_frees_the_session(pool: Pool) -> None:
    slow = Slow()
    async with Agent(ScriptedModel([slow.turn, "Next."]), tools=[slow.tool], pool=pool) as agent:
        with anyio.fail_after(SECONDS):
            async for event in agent.stream("Go"):
                if event.stream == "tool" and event.data.get("parentId"):
                    break
            assert (await agent.run("And now?")).output == "Next."
        assert slow.cancelled.is_set()
        states = [(run.state, run.result and run.result.status) for run in agent.runtime.runs()]
    assert states == [("aborted", "aborted"), ("ok", "ok")]


@pytest.mark.covers("PY-4")
async def test_closing_a_stream_waits_for_the_end_of_its_run(pool: Pool) -> None:
    slow = Slow()
    async with Agent(ScriptedModel([slow.turn]), tools=[slow.tool], pool=pool) as agent:
        with anyio.fail_after(SECONDS):
            events = agent.stream("Go")
            assert (await anext(events)).data["phase"] == "start"
            await slow.begun.wait()
            await events.aclose()
            await events.aclose()
        assert slow.cancelled.is_set()
        (run,) = agent.runtime.runs()
        assert run.state == "aborted"
        with pytest.raises(StopAsyncIteration):
            await anext(events)


async def test_an_exception_in_the_loop_reaches_the_caller_and_aborts_the_run(pool: Pool) -> None:
    slow = Slow()
    async with Agent(ScriptedModel([slow.turn]), tools=[slow.tool], pool=pool) as agent:

        async def fail() -> None:
            async for _ in agent.stream("Go"):
                await slow.begun.wait()
                raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"), anyio.fail_after(SECONDS):
            await fail()
        gc.collect()  # the traceback held the stream
        with anyio.fail_after(SECONDS):
            await slow.cancelled.wait()


@pytest.mark.covers("PY-5")
@pytest.mark.parametrize("cancel", ["anyio", "asyncio"])
async def test_cancelling_a_run_aborts_it(cancel: str, pool: Pool) -> None:
    slow = Slow()
    async with Agent(ScriptedModel([slow.turn, "Next."]), tools=[slow.tool], pool=pool) as agent:
        with anyio.fail_after(SECONDS):
            if cancel == "asyncio":
                task = asyncio.create_task(agent.run("Go"))
                await slow.begun.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(agent.run, "Go")
                    await slow.begun.wait()
                    tasks.cancel_scope.cancel()
            assert slow.cancelled.is_set()
            assert (await agent.run("And now?")).output == "Next."


# ---- Open and close ----


async def test_one_task_may_open_an_agent_and_another_close_it(pool: Pool) -> None:
    agent = Agent(ScriptedModel(["Hello."]), pool=pool)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.start)
    with anyio.fail_after(SECONDS):
        assert (await agent.run("Hi")).output == "Hello."
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.aclose)
    await agent.aclose()


@pytest.mark.covers("PY-5")
async def test_an_agent_that_is_not_open_says_how_to_open_it(pool: Pool) -> None:
    agent = Agent(ScriptedModel(["Hello."]), pool=pool)
    with pytest.raises(NotOpen, match="async with Agent"):
        await agent.run("Hi")
    with pytest.raises(NotOpen, match="async with Agent"):
        agent.stream("Hi")
    async with agent:
        with pytest.raises(ConfigurationError, match="opened once"):
            await agent.start()
    with pytest.raises(NotOpen, match="closed"):
        await agent.run("Hi")
    with pytest.raises(ConfigurationError, match="make a new object"):
        await agent.start()


@pytest.mark.covers("PY-5")
async def test_closing_an_agent_aborts_its_runs_and_tells_their_callers(pool: Pool) -> None:
    slow = Slow()
    agent = await Agent(ScriptedModel([slow.turn]), tools=[slow.tool], pool=pool).start()

    async def ask() -> None:
        with pytest.raises(RunFailed, match=r"The agent was closed\.") as failed:
            await agent.run("Go")
        assert failed.value.result.status == "aborted"

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await slow.begun.wait()
            await agent.aclose()
            assert slow.cancelled.is_set()


async def test_a_run_that_begins_while_the_agent_is_closed_does_not_hang(pool: Pool) -> None:
    agent = await Agent(ScriptedModel(lambda request: Turn("Hello.")), pool=pool).start()
    outcomes: list[str] = []

    async def ask(key: str) -> None:
        try:
            outcomes.append((await agent.run("Hi", session_key=key)).status)
        except ClawmodeError as error:
            outcomes.append(type(error).__name__)

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            for key in ("a", "b", "c"):
                tasks.start_soon(ask, key)
            tasks.start_soon(agent.aclose)
            tasks.start_soon(ask, "d")
    assert len(outcomes) == 4
    assert {*outcomes} <= {"NotOpen", "RunFailed", "ok"}


async def test_an_agent_that_cannot_be_opened_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def fail(self: Pool) -> Pool:
        raise OSError("no more processes")

    monkeypatch.setattr(Pool, "__aenter__", fail)
    with pytest.raises(OSError, match="no more processes"):
        await Agent(ScriptedModel([])).start()
    assert files_in(tmp_path) == []


# ---- Mistakes and failures ----


@pytest.mark.covers("PY-5")
async def test_two_runs_at_once_in_one_conversation_are_refused(pool: Pool) -> None:
    slow = Slow()
    model = ScriptedModel([slow.turn, "Another.", "Next."])
    async with Agent(model, tools=[slow.tool], pool=pool) as agent:
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(agent.run, "Go")
                await slow.begun.wait()
                with pytest.raises(SessionBusy, match="session_key="):
                    await agent.run("And this?")
                with pytest.raises(SessionBusy):
                    await agent.run("And this?", session_key="agent:main:MAIN")
                assert (await agent.run("This?", session_key="other")).output == "Another."
                tasks.cancel_scope.cancel()
            assert (await agent.run("And now?")).output == "Next."


async def test_a_stream_that_was_never_read_keeps_no_session(pool: Pool) -> None:
    async with Agent(ScriptedModel(["Hello.", "Hello."]), pool=pool) as agent:
        events = agent.stream("Hi")
        with pytest.raises(SessionBusy):
            agent.stream("Hi")
        await events.aclose()
        agent.stream("Hi")
        with anyio.fail_after(SECONDS):
            assert (await agent.run("Hi")).output == "Hello."
        assert len(agent.runtime.runs()) == 1


@pytest.mark.covers("PY-5")
async def test_a_run_that_fails_raises_with_its_result_after_its_last_event(pool: Pool) -> None:
    model = ScriptedModel([Turn("Let me look.", call("exec", {"code": "1"}))])
    found: list[AgentEvent] = []
    async with Agent(model, pool=pool) as agent:

        async def collect() -> None:
            async for event in agent.stream("Go"):
                found.append(event)  # noqa: PERF401 - the events before the exception count

        with pytest.raises(RunFailed, match="the script has 1 turns") as failed:
            await collect()
        with pytest.raises(RunFailed):
            await agent.run("Go")
    assert failed.value.result.status == "error"
    assert failed.value.result.output == "Let me look."
    assert (found[-1].stream, found[-1].data["phase"]) == ("lifecycle", "error")
    assert not isinstance(found[-1], ResultEvent)


async def test_a_run_that_takes_too_long_fails_with_the_status_timeout(pool: Pool) -> None:
    model = ScriptedModel([Turn(pause(anyio.Event()), "Never.")])
    async with Agent(model, pool=pool) as agent:
        with anyio.fail_after(SECONDS), pytest.raises(RunFailed, match="took longer") as failed:
            await agent.run(AgentRequest(message="Go", timeout_seconds=0.2))
    assert failed.value.result.status == "timeout"


@pytest.mark.covers("PY-5")
async def test_a_missing_key_is_named_when_a_run_needs_it(pool: Pool) -> None:
    async with Agent("anthropic/claude-sonnet-5", pool=pool) as agent:
        with anyio.fail_after(SECONDS), pytest.raises(RunFailed, match="ANTHROPIC_API_KEY"):
            await agent.run("Hi")


@pytest.mark.covers("PY-2", "PY-5")
def test_a_missing_extra_is_named_when_a_run_needs_it() -> None:
    program = """
import asyncio, sys
sys.modules["pydantic_ai"] = None  # importing it raises
from clawmode import Agent, RunFailed

async def main():
    async with Agent("anthropic/claude-sonnet-5") as agent:
        try:
            await agent.run("Hi")
        except RunFailed as error:
            print(error)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert 'pip install "clawmode[agent]"' in done.stdout


@pytest.mark.covers("PY-5")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "gpt-4o"}, "'gpt-4o' is not a model name.*provider/model"),
        ({"model": "nonsense/gpt-4o"}, "no provider 'nonsense', expected one of anthropic"),
        ({"model": 3}, "model: found int, expected .*Model object"),
        ({"tools": [3]}, "expected tools or functions, found int"),
        ({"tools": add}, r"expected a list of tools.*write \[it\]"),
        ({"mcp_servers": {"files": {}}}, "mcp_servers.files"),
        ({"state": 3}, "state: found int"),
        ({"instructions": ["Be brief."]}, "instructions: found list"),
        ({"approvals": ["add"]}, r"approvals: found list.*Approvals\("),
        ({"policy": ["add"]}, "policy: found list"),
        ({"hooks": print}, "hooks: found builtin_function"),
        ({"pool": 2}, "pool: found int"),
        ({"settings": {"thinking": "very"}}, "agents.defaults.thinking"),
        ({"settings": {"model": "openai/gpt-4o"}}, "settings.model.*first argument"),
        ({"providers": ["mine"]}, "providers: found list"),
        ({"providers": {"scripted": {"api": "telepathy"}}}, "models.providers.scripted.api"),
        ({"code_mode": "yes"}, "code_mode: found str"),
        ({"code_mode": {"timeoutMs": "soon"}}, "tools.codeMode.timeoutMs"),
    ],
    ids=lambda it: next(iter(it)) if isinstance(it, dict) else "",
)
def test_an_argument_that_cannot_be_used_is_an_error_that_says_what_to_give(
    arguments: dict[str, Any], message: str
) -> None:
    arguments.setdefault("model", ScriptedModel([]))
    with pytest.raises(ConfigurationError, match=message):
        Agent(**arguments)


def test_two_tools_with_one_name_are_refused_at_once() -> None:
    with pytest.raises(DuplicateTool, match="add"):
        Agent(ScriptedModel([]), tools=[add, add])


def test_a_setting_that_is_not_used_as_it_stands_is_a_warning() -> None:
    with pytest.warns(ClawmodeWarning, match="maxTruns"):
        Agent(ScriptedModel([]), settings={"maxTruns": 3})


@pytest.mark.covers("PY-5")
async def test_a_message_that_cannot_be_sent_is_an_error(pool: Pool) -> None:
    model = ScriptedModel(["Hello."])
    async with Agent(model, pool=pool) as agent:
        for message in ("", " ", 3, None):
            with pytest.raises(ClawmodeError, match="message"):
                await agent.run(message)  # pyrefly: ignore
        with pytest.raises(ClawmodeError, match="not a valid session key"):
            await agent.run("Hi", session_key="../other")
        with anyio.fail_after(SECONDS):
            result = await agent.run(AgentRequest(message="Hi", run_id="r-1"))
        assert result.run_id == "r-1"
        with pytest.raises(ConfigurationError, match="'r-1' is taken"):
            await agent.run(AgentRequest(message="Hi", run_id="r-1"))


async def test_keys_are_not_written_into_the_state_folder(tmp_path: Path, pool: Pool) -> None:
    secret = "opensesame-42-opensesame"
    script = [Turn(f"The key is {secret}."), "Done."]
    async with ScriptServer(script, key=secret) as server:
        provider = {"baseUrl": server.url, "api": "anthropic-messages", "apiKey": secret}
        async with Agent(
            "mine/any", providers={"mine": provider}, state=tmp_path, pool=pool
        ) as agent:
            with anyio.fail_after(SECONDS):
                await agent.run("Hi")
    trajectories = files_in(tmp_path, "*trajectory*")
    assert trajectories
    assert not any(secret.encode() in path.read_bytes() for path in trajectories)


# ---- Ten lines ----


@pytest.mark.covers("PY-3")
def test_the_example_takes_ten_lines_and_is_that_of_the_readme() -> None:
    text = (ROOT / "examples" / "agent.py").read_text("utf-8")
    tree = ast.parse(text)
    program = ast.unparse(ast.Module(tree.body[1:], []))  # without the docstring
    assert len([*filter(None, program.split("\n"))]) == 10
    readme = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert program in [ast.unparse(ast.parse(block)) for block in blocks]
