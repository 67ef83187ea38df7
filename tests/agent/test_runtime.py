"""Runs from outside: accepted, queued, run, watched, waited for, aborted, continued."""

import asyncio
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.agent_driver import configured, opened
from tests.support.waiting import Gate, idle, until

from clawmode import tool
from clawmode.agent import lanes
from clawmode.agent.requests import AgentRequest
from clawmode.agent.run import IncomingMessage
from clawmode.agent.runtime import AgentRuntime
from clawmode.agent.toolbox import ABORTED
from clawmode.exceptions import ConfigurationError, NotOpen
from clawmode.messages import AssistantMessage, Text, ToolMessage, UserMessage
from clawmode.models.base import ModelError
from clawmode.sessions.history import NEVER_ANSWERED
from clawmode.sessions.lock import SessionLock
from clawmode.testing import ScriptedModel, Turn, call, pause
from clawmode.tools.approvals import Approvals, Question
from clawmode.tools.tool import Tool

pytestmark = pytest.mark.anyio

WAITING = 'const late = await tools.slow({}); return "late: " + late'


@tool(effect="read")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(effect="read")
async def slow() -> None:
    """Never end."""
    await anyio.sleep_forever()


def program(source: str) -> Turn:
    return Turn(call("exec", {"code": source}))


def wait_for_it(request: Any) -> Turn:
    return Turn(call("wait", {"runId": request.last_result()["runId"]}))


@pytest.mark.covers("AL-5", "AL-9", "AL-10", "AL-11", "AL-12", "AL-51")
async def test_a_turn_is_accepted_at_once_and_reports_its_steps(tmp_path: Path) -> None:
    script = [program("return tools.add({ a: 1, b: 2 })"), Turn("It is 3.")]
    async with opened(tmp_path, script, tools=[add]) as agent:
        run = await agent.runtime.start(AgentRequest(message="1 + 2?"))
        assert (run.state, run.result) == ("queued", None)
        result = await agent.runtime.result(run.id)
    assert (result.status, result.payloads) == ("ok", ({"text": "It is 3."},))
    assert result.usage["input"]
    engaged = {"codeModeEngaged": True, "assistantTurns": 2}
    assert engaged.items() <= result.metadata.items()
    assert result.metadata["bridgeCalls"] == {"search": 0, "describe": 0, "call": 1}
    assert [data["phase"] for data in agent.of("lifecycle")] == ["start", "end"]
    assert "".join(data.get("delta", "") for data in agent.of("assistant")) == "It is 3."
    tools = [(data["phase"], data["name"], data.get("parentId")) for data in agent.of("tool")]
    outer = agent.of("tool")[0]["callId"]
    assert tools == [
        ("start", "exec", None),
        ("start", "openclaw:core:add", outer),
        ("end", "openclaw:core:add", outer),
        ("end", "exec", None),
    ]
    assert [event.seq for event in agent.events] == list(range(1, len(agent.events) + 1))


@pytest.mark.covers("TR-1")
async def test_nested_calls_are_kept_and_never_told_to_the_model_again(tmp_path: Path) -> None:
    script = [program("return tools.add({ a: 1, b: 2 })"), Turn("3"), Turn("Still 3.")]
    model = ScriptedModel(script)
    async with opened(tmp_path, model, tools=[add]) as agent:
        await agent.ask("1 + 2?")
        await agent.ask("sure?")
        history = await agent.history()
    (nested,) = history.nested_calls()
    assert (nested.tool_id, nested.state) == ("openclaw:core:add", "completed")
    kinds = [type(message) for message in model.requests[2].messages]
    assert kinds == [UserMessage, AssistantMessage, ToolMessage, AssistantMessage, UserMessage]
    names = [
        call.name
        for it in model.requests[2].messages
        if isinstance(it, AssistantMessage)
        for call in it.calls
    ]
    assert names == ["exec"]  # replay keeps code mode's own calls


@pytest.mark.parametrize(
    ("config", "request_", "visible"),
    [
        ({"tools": {"codeMode": True}}, {}, ["exec", "wait"]),
        ({"tools": {"codeMode": False}}, {}, ["add", "slow"]),
        ({}, {}, ["exec", "wait"]),
        ({"tools": {"codeMode": True, "deny": ["*"]}}, {}, []),
        ({"tools": {"codeMode": True, "allow": []}}, {}, []),
        ({"tools": {"codeMode": True}}, {"disable_tools": True}, []),
        ({"tools": {"codeMode": True}}, {"raw_model_call": True}, []),
        (
            {"tools": {"codeMode": False, "byProvider": {"scripted": {"deny": ["slow"]}}}},
            {},
            ["add"],
        ),
        (
            {"tools": {"codeMode": False, "toolsBySender": {"id:eve": {"deny": ["add"]}}}},
            {"sender": "eve"},
            ["slow"],
        ),
    ],
)
async def test_what_the_model_sees_is_what_policy_and_code_mode_leave(
    tmp_path: Path, config: Any, request_: Any, visible: list[str]
) -> None:
    model = ScriptedModel(["hello"])
    async with opened(
        tmp_path, model, configuration=configured(**config), tools=[add, slow]
    ) as agent:
        result = await agent.ask(**request_)
    (request,) = model.requests
    assert [tool.name for tool in request.tools] == visible
    assert request.exact_tools == (frozenset({"exec", "wait"}) if "exec" in visible else None)
    assert result.metadata["codeModeEngaged"] is ("exec" in visible)


async def test_a_raw_call_has_nothing_around_it(tmp_path: Path) -> None:
    model = ScriptedModel(["one", "two"])
    async with opened(tmp_path, model, tools=[add]) as agent:
        await agent.ask("first")
        await agent.ask("second", raw_model_call=True)
    assert model.requests[1].system == ""
    assert len(model.requests[1].messages) == 1


async def test_a_program_that_waits_is_continued_in_its_turn(tmp_path: Path) -> None:
    gate = Gate()

    def open_and_wait(request: Any) -> Turn:
        gate.open.set()
        return wait_for_it(request)

    script = [program(WAITING), open_and_wait, Turn("done")]
    config = configured(tools={"codeMode": {"enabled": True, "timeoutMs": 1000}})
    async with opened(tmp_path, script, configuration=config, tools=[gate.tool]) as agent:
        await agent.ask()
        results = [it for it in (await agent.history()).messages() if isinstance(it, ToolMessage)]
    assert '"status":"waiting"' in results[0].text
    assert '"value":"late: slow is done"' in results[1].text


# ---- While people decide ----

SHORT = {"enabled": True, "timeoutMs": 500}


@tool(effect="write")
async def order(item: str) -> str:
    """Order something."""
    return f"ordered {item}"


async def asked(approvals: Approvals, item: str = "tea") -> Question:
    """The question about an order, as soon as it is there."""
    return await until(
        lambda: next((it for it in approvals.pending() if it.input == {"item": item}), None)
    )


@pytest.mark.covers("N-6")
async def test_no_model_is_asked_while_a_person_decides(tmp_path: Path) -> None:
    """The program asks twice; the time of a `wait` passes each time before the answer comes."""
    source = 'return [await tools.order({ item: "tea" }), await tools.order({ item: "milk" })]'
    model = ScriptedModel([program(source), wait_for_it, wait_for_it, Turn("done")])
    approvals = Approvals(ask_for=["order"])
    config = configured(tools={"codeMode": SHORT})
    async with opened(
        tmp_path, model, configuration=config, tools=[order], approvals=approvals
    ) as agent:
        run = await agent.runtime.start(AgentRequest(message="go"))
        for requests, item in ((1, "tea"), (2, "milk")):
            question = await asked(approvals, item)
            await anyio.sleep(0.8)  # longer than a `wait` lasts
            assert len(model.requests) == requests
            approvals.resolve(question.id, "allow-once")
        with anyio.fail_after(10):
            result = await agent.runtime.result(run.id)
        messages = (await agent.history()).messages()
    assert result.status == "ok"
    assert len(model.requests) == 4
    results = [it.text for it in messages if isinstance(it, ToolMessage)]
    assert ['"status":"waiting"' in text for text in results] == [True, True, False]
    assert "ordered milk" in results[-1]


@pytest.mark.covers("N-6")
async def test_what_is_said_to_a_run_that_waits_for_a_person_reaches_the_model(
    tmp_path: Path,
) -> None:
    model = ScriptedModel([program('return await tools.order({ item: "tea" })'), Turn("no tea")])
    approvals = Approvals(ask_for=["order"])
    async with opened(tmp_path, model, tools=[order], approvals=approvals) as agent:
        run = await agent.runtime.start(AgentRequest(message="go"))
        await asked(approvals)
        assert agent.runtime.steer(
            run.id, IncomingMessage("s1", UserMessage(content=(Text("Never mind."),)))
        )
        with anyio.fail_after(10):
            result = await agent.runtime.result(run.id)
    assert result.payloads == ({"text": "no tea"},)
    assert "Never mind." in str(model.requests[1].messages[-1])


@pytest.mark.covers("N-5", "N-6", "AL-15")
@pytest.mark.parametrize("code_mode", [True, False], ids=["program", "direct"])
async def test_runs_that_wait_for_people_keep_no_other_from_going_on(
    tmp_path: Path, code_mode: bool
) -> None:
    """Attack: whoever may write has all places wait for answers that nobody gives."""
    ask = Turn(call("order", {"item": "tea"}, id="c1"))
    if code_mode:
        ask = program('return await tools.order({ item: "tea" })')
    model = ScriptedModel([ask, Turn("the other"), Turn("ordered")])
    approvals = Approvals(ask_for=["order"])
    config = configured(tools={"codeMode": code_mode})
    async with opened(
        tmp_path,
        model,
        configuration=config,
        tools=[order],
        approvals=approvals,
        max_concurrent=1,
    ) as agent:
        waits = await agent.runtime.start(AgentRequest(message="go"))
        question = await asked(approvals)
        other = await agent.runtime.start(AgentRequest(message="go", session_key="other"))
        with anyio.fail_after(10):
            assert (await agent.runtime.result(other.id)).payloads == ({"text": "the other"},)
            approvals.resolve(question.id, "deny")
            assert (await agent.runtime.result(waits.id)).payloads == ({"text": "ordered"},)


@pytest.mark.covers("N-6")
async def test_a_run_that_waits_for_a_person_can_be_aborted(tmp_path: Path) -> None:
    model = ScriptedModel([program('return await tools.order({ item: "tea" })')])
    approvals = Approvals(ask_for=["order"])
    async with opened(tmp_path, model, tools=[order], approvals=approvals) as agent:
        run = await agent.runtime.start(AgentRequest(message="go"))
        await asked(approvals)
        agent.runtime.abort(run.id)
        with anyio.fail_after(10):
            assert (await agent.runtime.result(run.id)).status == "aborted"
        assert approvals.pending() == []


@pytest.mark.covers("N-6")
@pytest.mark.parametrize(
    "source",
    [
        'return await Promise.race([tools.order({ item: "tea" }), new Promise(done => '
        'setTimeout(done, 600, "too late"))])',
        'const tea = tools.order({ item: "tea" }); await yield_control(); return "too late"',
    ],
    ids=["timer", "yield"],
)
async def test_a_program_that_waits_for_more_than_people_is_continued(
    tmp_path: Path, source: str
) -> None:
    model = ScriptedModel([program(source), wait_for_it, wait_for_it, Turn("done")])
    config = configured(tools={"codeMode": SHORT})
    approvals = Approvals(ask_for=["order"])
    async with opened(
        tmp_path, model, configuration=config, tools=[order], approvals=approvals
    ) as agent:
        run = await agent.runtime.start(AgentRequest(message="go"))
        await asked(approvals)
        await until(lambda: len(model.requests) >= 2)
        agent.runtime.abort(run.id)
        assert (await agent.runtime.result(run.id)).status == "aborted"


# ---- After an error ----


@pytest.mark.covers("N-9")
async def test_a_message_that_no_model_answered_is_neither_repeated_nor_acted_upon(
    tmp_path: Path,
) -> None:

    def down(request: Any) -> Turn:
        raise ModelError("auth", "401")

    model = ScriptedModel([down, down, down, Turn("Nothing yet."), down, Turn("Ordered.")])
    async with opened(tmp_path, model) as agent:
        for message in ("order tea", "order tea", "order tea", "what now", "order tea"):
            await agent.ask(message)
        await agent.ask("order tea")
        kept = [it for it in (await agent.history()).entries if isinstance(it.message, UserMessage)]
    told = [
        [part.text for part in it.content if isinstance(part, Text)]
        for it in model.requests[3].messages
    ]
    assert told == [[NEVER_ANSWERED, "order tea"], ["what now"]]
    last = [it for it in model.requests[-1].messages if isinstance(it, UserMessage)]
    assert [it.content for it in last] == [(Text("what now"),), (Text("order tea"),)]
    assert len(kept) == 6, "the transcript keeps everything"


# ---- Waiting and queueing ----


@pytest.mark.covers("AL-13", "AL-61")
async def test_to_give_up_waiting_does_not_stop_the_run(tmp_path: Path) -> None:
    gate = anyio.Event()
    async with opened(tmp_path, [Turn(pause(gate), "done")]) as agent:
        run = await agent.runtime.start(AgentRequest(message="go"))
        assert (await agent.runtime.wait(run.id, 0.1))["status"] == "timeout"
        gate.set()
        waited: Any = await agent.runtime.wait(run.id)
        assert waited["status"] == "ok"
        assert waited["startedAt"] <= waited["endedAt"]


@pytest.mark.covers("AL-14")
async def test_runs_of_a_session_come_one_after_the_other(tmp_path: Path) -> None:
    busy: set[str] = set()
    together = anyio.Event()

    async def react(request: Any) -> Turn:
        key = request.said.split()[0]
        assert key not in busy
        busy.add(key)
        if len(busy) == 3:
            together.set()
        with anyio.fail_after(10):  # and not one after the other where they need not be
            await together.wait()
        await idle()
        busy.remove(key)
        return Turn(f"answer to {request.said}")

    async with opened(tmp_path, ScriptedModel(react)) as agent:
        runs = [
            await agent.runtime.start(AgentRequest(message=f"{key} {n}", session_key=key))
            for n in range(4)
            for key in ("a", "b", "c")
        ]
        for run in runs:
            assert (await agent.runtime.result(run.id)).status == "ok"
        said = [it for it in (await agent.history("b")).messages() if isinstance(it, UserMessage)]
    texts = [part.text for it in said for part in it.content if isinstance(part, Text)]
    assert texts == [f"b {n}" for n in range(4)]


@pytest.mark.covers("AL-15")
async def test_a_limited_number_of_runs_is_concurrent(tmp_path: Path) -> None:
    busy = 0
    most = 0
    together = anyio.Event()

    async def react(request: Any) -> Turn:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        if busy == 2:
            together.set()
        await together.wait()
        await idle()
        busy -= 1
        return Turn("done")

    async with opened(tmp_path, ScriptedModel(react), max_concurrent=2) as agent:
        runs = [
            await agent.runtime.start(AgentRequest(message="go", session_key=f"s{n}"))
            for n in range(6)
        ]
        for run in runs:
            await agent.runtime.result(run.id)
    assert most == 2


async def test_a_run_id_that_is_known_starts_nothing(tmp_path: Path) -> None:
    model = ScriptedModel(["once"])
    async with opened(tmp_path, model) as agent:
        first = await agent.runtime.start(AgentRequest(message="go", run_id="r1"))
        second = await agent.runtime.start(AgentRequest(message="go", run_id="r1"))
        assert first is second
        await agent.runtime.result("r1")
    assert len(model.requests) == 1


@pytest.mark.covers("AL-3")
@pytest.mark.parametrize(
    "request_",
    [
        {"message": " "},
        {"message": "x" * ((1 << 20) + 1)},
        {"message": "go", "agent_id": "nobody"},
        {"message": "go", "session_key": "../../etc"},
        {"message": "go", "session_id": "0" * 32},
        {"message": "", "resume": True},
    ],
)
async def test_a_request_that_cannot_be_meant_is_refused_before_a_run_exists(
    tmp_path: Path, request_: Any
) -> None:
    async with opened(tmp_path, ["never"]) as agent:
        with pytest.raises(Exception) as refused:  # noqa: PT011 - the kinds differ
            await agent.runtime.start(AgentRequest(**request_))
        assert type(refused.value).__module__.startswith("clawmode")
        assert agent.runtime.runs() == []


@pytest.mark.parametrize("model", ["", "nowhere/x", "noslash"])
async def test_a_missing_model_is_reported(tmp_path: Path, model: str) -> None:
    config = configured(agents={"defaults": {"model": model or "scripted/a"}})
    async with opened(tmp_path, ["never"], configuration=config) as agent:
        result = await agent.ask(model=model or "missing/model")
    assert result.status == "error"
    assert "model" in (result.error or "") or "provider" in (result.error or "")
    assert agent.of("lifecycle")[-1]["phase"] == "error"


# ---- Ends ----


@pytest.mark.covers("AL-84")
async def test_an_abort_stops_a_run_and_everything_in_it(tmp_path: Path) -> None:
    stopped = anyio.Event()

    async def hang(given: Any, context: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    hanging = Tool("hang", "Hang.", {"type": "object"}, hang)
    async with opened(tmp_path, [program("return tools.hang()")], tools=[hanging]) as agent:
        run = await agent.runtime.start(AgentRequest(message="go"))
        with anyio.fail_after(10):
            await until(lambda: any(data.get("parentId") for data in agent.of("tool")))
            assert agent.runtime.abort(run.id)
            await stopped.wait()
            result = await agent.runtime.result(run.id)
        assert not agent.runtime.abort(run.id)
        history = await agent.history()
    assert (result.status, agent.of("lifecycle")[-1]["phase"]) == ("aborted", "error")
    assert result.usage["input"]  # what it cost, it cost
    assert result.metadata["assistantTurns"] == 1
    assert history.open_runs() == {}
    assert [call.state for call in history.nested_calls()] == ["cancelled"]


async def test_a_run_that_is_queued_can_be_aborted(tmp_path: Path) -> None:
    gate = anyio.Event()
    model = ScriptedModel([Turn(pause(gate), "first")])
    async with opened(tmp_path, model) as agent:
        first = await agent.runtime.start(AgentRequest(message="one"))
        second = await agent.runtime.start(AgentRequest(message="two"))
        agent.runtime.abort(second.id)
        assert (await agent.runtime.result(second.id)).status == "aborted"
        gate.set()
        assert (await agent.runtime.result(first.id)).status == "ok"
    assert len(model.requests) == 1


@pytest.mark.covers("AL-62")
async def test_a_run_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    async with opened(tmp_path, [Turn(pause(30))]) as agent:
        result = await agent.ask(timeout_seconds=0.3)
        history = await agent.history()
    assert (result.status, result.error) == ("timeout", "The run took longer than 0.3 s.")
    assert history.open_runs() == {}


async def test_a_session_that_another_writes_to_is_busy(tmp_path: Path) -> None:
    config = configured(session={"writeLock": {"acquireTimeoutMs": 200}})
    async with opened(tmp_path, ["never"], configuration=config) as agent:
        session = await agent.runtime.sessions.resolve()
        async with SessionLock(session.transcript).hold():
            # A task of its own: those that this one starts would count as the same writer.
            result = await _in_a_clean_context(agent.ask)
    assert result.status == "error"
    assert "busy" in (result.error or "")


async def _in_a_clean_context(function: Any) -> Any:
    import asyncio
    import contextvars

    return await asyncio.get_running_loop().create_task(function(), context=contextvars.Context())


async def test_a_listener_that_fails_hurts_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path, ["fine"]) as agent:
        agent.runtime.subscribe(lambda event: 1 / 0)  # pyrefly: ignore
        assert (await agent.ask()).status == "ok"


# ---- Interrupted runs ----


async def interrupted(state: Path, script: list[Any], events: int, **options: Any) -> str:
    """A run whose process stops while it is under way."""
    async with opened(state, script, **options) as agent:
        run = await agent.runtime.start(AgentRequest(message="go", run_id="r1"))
        await until(lambda: len([1 for e in agent.events if e.stream == "tool"]) >= events)
    return run.id


async def test_an_interrupted_run_resumes_under_its_own_id(tmp_path: Path) -> None:
    tools = [slow]
    await interrupted(tmp_path, [program("return tools.slow()")], 2, tools=tools)
    model = ScriptedModel(["I looked again."])
    async with opened(tmp_path, model, tools=tools) as agent:
        assert list((await agent.history()).open_runs()) == ["r1"]
        result = await agent.ask("", run_id="r1", resume=True)
        assert result.status == "ok"
        history = await agent.history()
    (request,) = model.requests
    last = request.messages[-1]
    assert isinstance(last, ToolMessage)
    assert (last.text, last.is_error) == (ABORTED, True)
    assert history.open_runs() == {}
    answers = [it for it in history.messages() if isinstance(it, ToolMessage)]
    assert len(answers) == 1


async def test_parked_programs_of_a_run_resume_with_it_and_with_no_other_run(
    tmp_path: Path,
) -> None:
    config = configured(tools={"codeMode": {"enabled": True, "timeoutMs": 1000}})
    parked = [program("await yield_control(); return 'after the restart'"), Turn(pause(60))]
    model = ScriptedModel(parked)
    async with opened(tmp_path, model, configuration=config, tools=[add]) as agent:
        await agent.runtime.start(AgentRequest(message="go", run_id="r1"))
        with anyio.fail_after(10):
            await until(lambda: any(data["phase"] == "end" for data in agent.of("tool")))
            await until(lambda: len(model.requests) == 2)
    async with opened(tmp_path, [wait_for_it, "no"], configuration=config, tools=[add]) as agent:
        await agent.ask("a new turn")
        results = [it for it in (await agent.history()).messages() if isinstance(it, ToolMessage)]
        assert '"code":"invalid_input"' in results[-1].text
    # The newest result is the other turn's, so its own is named.
    run_id = results[0].text.partition('"runId":"')[2].partition('"')[0]
    script = [Turn(call("wait", {"runId": run_id})), Turn("yes")]
    async with opened(tmp_path, script, configuration=config, tools=[add]) as agent:
        result = await agent.ask("", run_id="r1", resume=True)
        assert result.status == "ok"
        results = [it for it in (await agent.history()).messages() if isinstance(it, ToolMessage)]
    assert any('"value":"after the restart"' in it.text for it in results)


async def test_a_run_that_has_ended_cannot_be_continued(tmp_path: Path) -> None:
    async with opened(tmp_path, ["done"]) as agent:
        await agent.ask(run_id="r1")
    async with opened(tmp_path, ["never"]) as agent:
        result = await agent.ask("", run_id="r1", resume=True)
    assert result.status == "error"
    assert "no unfinished run" in (result.error or "")


def test_a_run_that_nobody_knows_cannot_be_waited_for(tmp_path: Path) -> None:
    async def ask() -> None:
        async with opened(tmp_path, ["x"]) as agent:
            with pytest.raises(ConfigurationError, match="there is no run 'nobody'"):
                await agent.runtime.wait("nobody")

    anyio.run(ask)


# ---- Looking inside ----


@pytest.mark.covers("CM-debug-code-mode")
async def test_the_switch_tells_whether_code_mode_engaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path, ["one", "two"], tools=[add]) as agent:
        await agent.ask()
        assert "code mode" not in caplog.text
        monkeypatch.setenv("OPENCLAW_DEBUG_CODE_MODE", "1")
        await agent.ask()
    told = "code mode is enabled and engaged; the model sees exec, wait; 1 tools are in the catalog"
    assert told in caplog.text


@pytest.mark.covers("N-16")
async def test_a_runtime_may_be_left_by_another_task(tmp_path: Path) -> None:
    lifetime = opened(tmp_path, [Turn("hello")])
    agent = await asyncio.create_task(lifetime.__aenter__())
    assert (await agent.ask()).payloads == ({"text": "hello"},)
    await asyncio.create_task(lifetime.__aexit__(None, None, None))
    assert agent.runtime._shared.pool._workers.tenants == {}


@pytest.mark.covers("N-6", "AL-15")
async def test_only_so_many_runs_that_wait_for_people_step_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They hold open files: without a limit, whoever may write could use up all of them."""
    monkeypatch.setattr(lanes, "MAX_ASIDE", 1)
    made = lanes.Lanes(2)
    async with made.enter("a") as first, made.enter("b") as second:
        first.step_aside()
        second.step_aside()  # there is no room: it keeps its place
        async with made.enter("c"):
            with anyio.move_on_after(0.01) as full:
                async with made.enter("d"):
                    pass
            assert full.cancelled_caught
        with anyio.fail_after(5):
            await first.take()
            await second.take()
    with anyio.fail_after(5):
        async with made.enter("a"), made.enter("b"):
            pass


async def test_waiting_for_a_result_raises_when_the_runtime_is_closed(tmp_path: Path) -> None:
    failures: list[Exception] = []

    async def wait(runtime: AgentRuntime, run_id: str) -> None:
        try:
            await runtime.result(run_id)
        except NotOpen as error:
            failures.append(error)

    with anyio.fail_after(15):
        async with anyio.create_task_group() as tasks:
            async with opened(tmp_path, [Turn(pause(60), "Late.")]) as agent:
                run = await agent.runtime.start(AgentRequest(message="go"))
                tasks.start_soon(wait, agent.runtime, run.id)
                await until(lambda: run.intake.is_open)
    assert [str(error) for error in failures] == [
        f"The runtime was closed before the run {run.id!r} ended."
    ]
    assert run.result is None
