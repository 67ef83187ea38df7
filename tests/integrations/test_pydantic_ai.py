"""The adapter for pydantic-ai, with the real package and a model that plays a script."""

import asyncio
import datetime
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastmcp.client.transports import StdioTransport
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    RunContext,
    ToolDenied,
    ToolReturn,
)
from pydantic_ai.capabilities import AbstractCapability, HandleDeferredToolCalls, Instrumentation
from pydantic_ai.exceptions import RunCancelled, UsageLimitExceeded, UserError
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import (
    AgentInfo,
    DeltaToolCall,
    DeltaToolCalls,
    FunctionModel,
)
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import UsageLimits
from tests.support.adapters import FAN_OUT, SDK_SERVER, SEND, SEND_BOTH, SEND_TWICE, run_step

from clawmode import Pool
from clawmode.exceptions import ConfigurationError
from clawmode.integrations.pydantic_ai import ClawMode, NestedCallEvent

pytestmark = pytest.mark.anyio


Turn = Sequence[ToolCallPart] | str


def execs(*sources: str) -> list[ToolCallPart]:
    return [ToolCallPart("exec", {"code": each}, f"c{i}") for i, each in enumerate(sources)]


@dataclass
class Script:
    """A model that plays turns, and notes what it was offered."""

    turns: list[Turn]
    offered: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def play(self, history: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.offered.append({each.name: each.description or "" for each in info.function_tools})
        turn = self.turns.pop(0)
        return ModelResponse([TextPart(turn)] if isinstance(turn, str) else list(turn))

    async def stream(
        self, history: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | DeltaToolCalls]:
        for number, part in enumerate(self.play(history, info).parts):
            if isinstance(part, TextPart):
                yield part.content
            elif isinstance(part, ToolCallPart):
                arguments = part.args_as_json_str()
                call_id = part.tool_call_id
                yield {number: DeltaToolCall(part.tool_name, arguments, tool_call_id=call_id)}


@dataclass
class Desk:
    """An agent with tools, and what its tools have done."""

    agent: Agent[str, str | DeferredToolRequests]
    script: Script
    sent: list[str] = field(default_factory=list[str])

    async def ask(self, *turns: Turn, **given: Any) -> Any:
        self.script.turns = list(turns)
        return await self.agent.run("Do it.", deps="deps", **given)

    async def answer(self, run: Any, results: DeferredToolResults, *turns: Turn) -> Any:
        self.script.turns = [*turns, "done"]
        history = run.all_messages()
        return await self.agent.run(
            message_history=history, deferred_tool_results=results, deps="deps"
        )


def result_of(run: Any, call_id: str = "c0") -> ToolReturnPart:
    """Returns the last result of a call that the model has read."""
    parts = [
        part
        for message in run.all_messages()
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart) and part.tool_call_id == call_id
    ]
    return parts[-1]


def value(text: str) -> str:
    return f'{{"status":"completed","value":{text}}}'


@asynccontextmanager
async def opened(
    pool: Pool, *others: AbstractCapability[str], toolsets: Any = (), **given: Any
) -> AsyncIterator[Desk]:
    clawmode, script = ClawMode[str](pool=pool, **given), Script([])
    agent = Agent(
        FunctionModel(script.play, stream_function=script.stream),
        deps_type=str,
        output_type=[str, DeferredToolRequests],
        capabilities=[clawmode, *others],
        toolsets=toolsets,
    )
    desk = Desk(agent, script)

    @agent.tool_plain
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @agent.tool_plain(requires_approval=True)
    async def send(to: str) -> str:
        """Send a mail."""
        desk.sent.append(to)
        return f"sent to {to}"

    try:
        yield desk
    finally:
        await clawmode.aclose()


def asked(run: Any, call_id: str = "c0") -> list[tuple[str, Any]]:
    assert isinstance(run.output, DeferredToolRequests)
    return [(each["tool"], each["input"]) for each in run.output.metadata[call_id]["questions"]]


APPROVED = DeferredToolResults(approvals={"c0": True})


@pytest.mark.covers("FW-40")
async def test_programs_call_the_tools_of_the_agent(pool: Pool) -> None:
    async with opened(pool) as desk:
        run = await desk.ask(execs(FAN_OUT), "done")
        assert run.output == "done"
        assert result_of(run).content == value("[1,2,3,4,5,6,7,8,9,10,11,12]")
        assert list(desk.script.offered[0]) == ["exec", "wait"]
        assert "add" in desk.script.offered[0]["exec"]


@pytest.mark.covers("FW-1", "FW-40")
async def test_an_approval_is_answered_after_the_process_was_killed(tmp_path: Path) -> None:
    shown = await run_step("pydantic_ai_program", tmp_path, "ask", kill=True)
    assert "Ann" in shown
    assert (tmp_path / "effects").read_text() == "before\n"
    done = await run_step("pydantic_ai_program", tmp_path, "answer")
    assert done.strip() == value('"sent to Ann"')
    assert (tmp_path / "effects").read_text() == "before\nsent to Ann\nafter\n"


@pytest.mark.hostile
@pytest.mark.covers("FW-2", "FW-6")
async def test_an_approval_that_comes_twice_approves_nothing_that_was_not_shown(pool: Pool) -> None:
    async with opened(pool) as desk:
        first = await desk.ask(execs(SEND_TWICE))
        second = await desk.answer(first, APPROVED)
        again = await desk.answer(first, APPROVED)  # with the history of the first question
        assert (asked(again), desk.sent) == ([("send", {"to": "Bob"})], ["Ann"])
        await desk.answer(second, APPROVED)
        assert desk.sent == ["Ann", "Bob"]


@pytest.mark.hostile
@pytest.mark.covers("FW-6")
async def test_an_approval_of_a_program_that_is_gone_does_not_start_it_again(pool: Pool) -> None:
    async with opened(pool) as desk:
        first = await desk.ask(execs(SEND))
    async with opened(pool) as desk:  # as after a restart, because programs wait in memory
        done = await desk.answer(first, APPROVED)
        assert (result_of(done).outcome, desk.sent) == ("failed", [])
        assert "is not here" in str(result_of(done).content)


@pytest.mark.covers("FW-2", "FW-40")
async def test_a_nested_approval_ends_the_run_and_its_answer_continues_it(pool: Pool) -> None:
    async with opened(pool) as desk:
        first = await desk.ask(execs(SEND))
        assert (asked(first), desk.sent) == ([("send", {"to": "Ann"})], [])
        assert [each.tool_name for each in first.output.approvals] == ["exec"]
        done = await desk.answer(first, first.output.build_results(approve_all=True))
        assert (result_of(done).content, desk.sent) == (value('"sent to Ann"'), ["Ann"])


@pytest.mark.covers("FW-40")
async def test_a_denied_exec_ends_its_program_and_the_model_reads_why(pool: Pool) -> None:
    async with opened(pool) as desk:
        first = await desk.ask(
            execs("try { " + SEND + "} catch { return tools.add({a: 1, b: 1}) }")
        )
        denied = DeferredToolResults(approvals={"c0": ToolDenied("not today")})
        done = await desk.answer(first, denied)
        part = result_of(done)
        assert (part.outcome, part.content, desk.sent) == ("denied", "not today", [])
        program = first.output.metadata["c0"]["runId"]
        again = await desk.ask([ToolCallPart("wait", {"runId": program}, "w")], "done")
        assert result_of(again, "w").outcome == "failed"


@pytest.mark.covers("FW-2", "FW-40")
async def test_calls_are_decided_one_by_one(pool: Pool) -> None:
    async with opened(pool) as desk:
        first = await desk.ask(execs(SEND_BOTH))
        ids = {each["input"]["to"]: each["id"] for each in first.output.metadata["c0"]["questions"]}
        answers = {"answers": {ids["Ann"]: "Ann is away"}}
        results = DeferredToolResults(approvals={"c0": True}, metadata={"c0": answers})
        second = await desk.answer(first, results)
        assert (asked(second), desk.sent) == ([("send", {"to": "Bob"})], [])
        done = await desk.answer(second, APPROVED)
        assert "Ann is away" in str(result_of(done).content)
        assert desk.sent == ["Bob"]


@pytest.mark.covers("FW-2")
async def test_two_pauses_of_one_program_are_answered_one_after_the_other(pool: Pool) -> None:
    async with opened(pool) as desk:
        first = await desk.ask(execs(SEND_TWICE))
        second = await desk.answer(first, APPROVED)
        assert (asked(second), desk.sent) == ([("send", {"to": "Bob"})], ["Ann"])
        done = await desk.answer(second, APPROVED)
        assert (done.output, desk.sent) == ("done", ["Ann", "Bob"])


@pytest.mark.hostile
@pytest.mark.covers("FW-2", "FW-40")
async def test_an_answer_that_is_sent_twice_with_its_questions_approves_nothing_new(
    pool: Pool,
) -> None:
    async with opened(pool) as desk:
        first = await desk.ask(execs(SEND_TWICE))
        shown = DeferredToolResults(approvals={"c0": True}, metadata=first.output.metadata)
        second = await desk.answer(first, shown)
        again = await desk.answer(first, shown)
        assert asked(again) == asked(second)
        assert desk.sent == ["Ann"]


@pytest.mark.hostile
@pytest.mark.parametrize("answers", [{"answers": [1]}, {"answers": {"x": 1}}, {"questions": "x"}])
async def test_answers_that_cannot_be_read_answer_nothing(pool: Pool, answers: Any) -> None:
    async with opened(pool) as desk:
        first = await desk.ask(execs(SEND))
        with pytest.raises(ConfigurationError, match="must be"):
            await desk.answer(
                first, DeferredToolResults(approvals={"c0": True}, metadata={"c0": answers})
            )
        assert desk.sent == []


async def test_a_handler_of_the_agent_answers_inline(pool: Pool) -> None:
    async def decide(ctx: RunContext[str], requests: DeferredToolRequests) -> DeferredToolResults:
        to = {call.tool_call_id: call.args_as_dict()["to"] for call in requests.approvals}
        return requests.build_results(
            approvals={key: True if name == "Ann" else ToolDenied("no") for key, name in to.items()}
        )

    async with opened(pool, HandleDeferredToolCalls(decide)) as desk:
        run = await desk.ask(execs(SEND_BOTH), "done")
        assert desk.sent == ["Ann"]
        assert '"rejected"' in str(result_of(run).content)


@pytest.mark.covers("FW-1", "FW-2")
async def test_an_id_that_the_model_uses_again_is_another_call(pool: Pool) -> None:
    async with opened(pool) as desk:
        first = await desk.ask(execs("return 1"), execs(SEND), conversation_id="one")
        second = await desk.answer(first, APPROVED, execs(SEND))
        assert (asked(second), desk.sent) == ([("send", {"to": "Ann"})], ["Ann"])
        denied = DeferredToolResults(approvals={"c0": ToolDenied("not today")})
        done = await desk.answer(second, denied)
        assert (result_of(done).content, desk.sent) == ("not today", ["Ann"])
        wait = [ToolCallPart("wait", {"runId": second.output.metadata["c0"]["runId"]}, "w")]
        ended = await desk.ask(wait, "done", conversation_id="one")
        assert result_of(ended, "w").outcome == "failed"


@pytest.mark.covers("FW-40")
async def test_a_direct_approval_beside_ours_is_answered_in_the_same_run(pool: Pool) -> None:
    toolset = FunctionToolset[str]()

    @toolset.tool_plain(requires_approval=True)
    def delete(name: str) -> str:
        """Delete a file."""
        return f"deleted {name}"

    async with opened(pool, toolsets=[toolset], direct=["delete"]) as desk:
        calls = [*execs(SEND, FAN_OUT), ToolCallPart("delete", {"name": "x"}, "d")]
        first = await desk.ask(calls)
        assert list(desk.script.offered[0]) == ["delete", "exec", "wait"]
        assert "delete" not in desk.script.offered[0]["exec"]
        assert {each.tool_call_id for each in first.output.approvals} == {"c0", "d"}
        done = await desk.answer(first, first.output.build_results(approve_all=True))
        assert (result_of(done, "d").content, desk.sent) == ("deleted x", ["Ann"])
        assert result_of(done, "c1").content == value("[1,2,3,4,5,6,7,8,9,10,11,12]")


@pytest.mark.covers("FW-40")
async def test_a_failing_tool_is_caught_or_reaches_the_model_as_a_failure(pool: Pool) -> None:
    toolset = FunctionToolset[str]()

    @toolset.tool_plain
    def fail(how: str) -> str:
        """Fail."""
        raise ModelRetry("try later") if how == "retry" else OSError("disk full")

    caught = "try { await tools.fail({how: 'retry'}) } catch (error) { return error.message }"
    async with opened(pool, toolsets=[toolset]) as desk:
        run = await desk.ask(execs(caught, "return await tools.fail({how: 'break'})"), "done")
        assert "try later" in str(result_of(run).content)
        uncaught = result_of(run, "c1")
        assert (uncaught.outcome, run.output) == ("failed", "done")
        assert "disk full" in str(uncaught.content)


@pytest.mark.covers("FW-3", "FW-40")
async def test_a_cancelled_run_ends_its_program(pool: Pool) -> None:
    toolset, started, ended = FunctionToolset[str](), anyio.Event(), list[str]()

    @toolset.tool
    async def hang(ctx: RunContext[str], by_itself: bool) -> None:
        """Hang."""
        started.set()
        try:
            if by_itself:
                ctx.cancel()
            await asyncio.Event().wait()
        finally:
            ended.append("hang")

    def source(by_itself: str) -> str:
        return f"await tools.hang({{by_itself: {by_itself}}}); {SEND}"

    async with opened(pool, toolsets=[toolset]) as desk:
        task = asyncio.create_task(desk.ask(execs(source("false"))))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(RunCancelled):
            await desk.ask(execs(source("true")))
        assert (ended, desk.sent) == (["hang", "hang"], [])


@pytest.mark.hostile
@pytest.mark.covers("FW-40")
async def test_conversations_do_not_see_each_other(pool: Pool) -> None:
    async with opened(pool) as desk:
        first = await desk.ask(execs("store('x', 1); " + SEND), conversation_id="one")
        program = first.output.metadata["c0"]["runId"]
        look = [*execs("return load('x') ?? 'nothing'"), ToolCallPart("wait", {"runId": program})]
        other = await desk.ask(look, "done", conversation_id="two")
        assert result_of(other).content == value('"nothing"')
        same = await desk.ask(execs("return load('x')"), "done", conversation_id="one")
        assert result_of(same).content == value("1")
        await desk.answer(first, APPROVED)
        assert desk.sent == ["Ann"]


@pytest.mark.hostile
async def test_a_session_that_clients_cannot_choose_separates_them(pool: Pool) -> None:
    async with opened(pool, session=lambda ctx: ctx.deps) as desk:
        first = await desk.ask(execs(SEND))
        desk.script.turns = ["done"]
        stolen = await desk.agent.run(
            message_history=first.all_messages(), deferred_tool_results=APPROVED, deps="thief"
        )
        assert (result_of(stolen).outcome, desk.sent) == ("failed", [])


@pytest.mark.covers("FW-3", "FW-40")
async def test_hooks_spans_and_events_see_every_nested_call(pool: Pool) -> None:
    seen: list[tuple[str, str]] = []

    class Watcher(AbstractCapability[str]):
        async def wrap_tool_execute(
            self, ctx: RunContext[str], *, call: Any, tool_def: Any, args: Any, handler: Any
        ) -> Any:
            seen.append((call.tool_name, ctx.deps))
            return await handler(args)

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    settings = InstrumentationSettings(tracer_provider=provider)
    async with opened(pool, Watcher(), Instrumentation(settings)) as desk:
        desk.script.turns = [execs(FAN_OUT), "done"]
        events = [event async for event in _events(desk.agent)]
    assert sorted(seen) == [("add", "deps")] * 12 + [("exec", "deps")]
    statuses = [(each.nested.tool_name, each.status, each.tool_call_id) for each in events]
    assert statuses.count(("add", "started", "c0")) == 12
    assert statuses.count(("add", "completed", "c0")) == 12
    spans = {span.name: span for span in exporter.get_finished_spans()}
    names = [span.name for span in exporter.get_finished_spans()]
    assert names.count("execute_tool add") == 12
    outer, inner = spans["execute_tool exec"], spans["execute_tool add"]
    assert outer.context is not None
    assert inner.parent is not None
    assert inner.parent.span_id == outer.context.span_id


async def _events(agent: Agent[str, Any]) -> AsyncIterator[NestedCallEvent]:
    async with agent.run_stream_events("Do it.", deps="deps") as events:
        async for event in events:
            if isinstance(event, NestedCallEvent):
                yield event


@pytest.mark.hostile
@pytest.mark.covers("FW-40")
async def test_usage_limits_hold_for_calls_that_a_program_makes_at_once(pool: Pool) -> None:
    source = "const all = await Promise.allSettled(Array.from({length: 12}, () => tools.hit()))"
    toolset, hits = FunctionToolset[str](), list[int]()

    @toolset.tool_plain
    async def hit() -> None:
        """Count."""
        hits.append(1)

    async with opened(pool, toolsets=[toolset]) as desk:
        with pytest.raises(UsageLimitExceeded):
            await desk.ask(execs(source), "done", usage_limits=UsageLimits(tool_calls_limit=5))
        assert len(hits) == 4  # and `exec` itself
        run = await desk.ask(execs(FAN_OUT), "done")
        assert run.usage.tool_calls == 13


async def test_sequential_tools_run_one_after_the_other(pool: Pool) -> None:
    toolset, inside, most = FunctionToolset[str](), set[int](), [0]

    @toolset.tool_plain(sequential=True)
    async def alone(number: int) -> None:
        """Run alone."""
        inside.add(number)
        most[0] = max(most[0], len(inside))
        await anyio.lowlevel.checkpoint()
        inside.remove(number)

    async with opened(pool, toolsets=[toolset]) as desk:
        await desk.ask(execs(FAN_OUT.replace("add({a: i, b: 1})", "alone({number: i})")), "done")
    assert most == [1]


class Place(BaseModel):
    """A result that is not JSON."""

    name: str
    since: datetime.date


@pytest.mark.hostile
@pytest.mark.covers("FW-40")
async def test_results_that_are_not_json_arrive_as_json(pool: Pool) -> None:
    @dataclass
    class Pair:
        left: bytes
        right: float

    results: dict[str, Callable[[], Any]] = {
        "model": lambda: Place(name="Rome", since=datetime.date(1, 4, 21)),
        "pair": lambda: Pair(b"\xff\xfe", float("nan")),
        "error": lambda: [ValueError("odd")],
        "wrapped": lambda: ToolReturn(
            {"n": 1}, content=["Look.", BinaryContent(b"x", media_type="image/png")]
        ),
        "object": lambda: object,
    }
    toolset = FunctionToolset[str]()

    @toolset.tool_plain
    def give(kind: str) -> Any:
        """Give something."""
        return results[kind]()

    async with opened(pool, toolsets=[toolset]) as desk:
        source = "const r = []; for (const kind of %s) r.push(await tools.give({kind})); return r"
        run = await desk.ask(execs(source % list(results)), "done")
    content = str(result_of(run).content)
    assert '{"name":"Rome","since":"0001-04-21"}' in content
    assert '{"left":"__4=","right":null}' in content
    assert '["odd"],{"n":1},' in content
    assert "Look." in str(run.all_messages()[2].parts[-1].content)


@pytest.mark.hostile
async def test_names_that_are_no_identifiers_or_ours_can_be_called(pool: Pool) -> None:
    toolset = FunctionToolset[str]()

    def echo(text: str) -> str:
        """Echo."""
        return text

    for name in ("exec", "wait", "my-tool", "class", "__proto__"):
        toolset.add_function(echo, name=name)
    source = """
    const r = [];
    for (const name of ["exec", "wait", "my_tool", "class"]) {
      r.push(await tools[name]({text: name}));
    }
    return r
    """
    async with opened(pool, toolsets=[toolset]) as desk:
        run = await desk.ask(execs(source), "done")
        assert result_of(run).content == value('["exec","wait","my_tool","class"]')
    async with opened(pool, toolsets=[toolset], direct=["exec"]) as desk:
        with pytest.raises(UserError, match="'exec' is taken"):
            await desk.ask("done")


async def test_tools_that_ask_in_their_code_or_run_elsewhere(pool: Pool) -> None:
    toolset = FunctionToolset[str]()

    @toolset.tool
    def pay(ctx: RunContext[str], euros: int) -> str:
        """Pay."""
        if euros > 10 and not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"why": "that is much"})
        return f"paid {euros}"

    @toolset.tool_plain
    def elsewhere() -> str:
        """Run elsewhere."""
        raise CallDeferred

    async with opened(pool, toolsets=[toolset]) as desk:
        source = "return [await tools.pay({euros: 5}), await tools.pay({euros: 50})]"
        first = await desk.ask(execs(source))
        assert asked(first) == [("pay", {"euros": 50})]
        assert first.output.metadata["c0"]["questions"][0]["description"] == "why: that is much"
        done = await desk.answer(first, APPROVED, execs("return await tools.elsewhere()"))
        assert "direct=" in str(result_of(done).content)


async def test_a_store_of_our_own_tools_and_questions_joins_in(pool: Pool) -> None:
    def double(number: int) -> int:
        """Double a number."""
        return number * 2

    async with opened(pool, tools=[double], ask_for=["double"]) as desk:
        first = await desk.ask(execs("return tools.double({number: 4})"))
        assert asked(first) == [("double", {"number": 4})]
        assert result_of(await desk.answer(first, APPROVED)).content == value("8")


async def test_programs_call_the_tools_of_mcp_toolsets(pool: Pool) -> None:
    server = StdioTransport(sys.executable, [str(SDK_SERVER), "stdio"])
    async with opened(pool, toolsets=[MCPToolset(server).prefixed("math")]) as desk:
        source = (
            "return [await tools.math_add({a: 1}), await tools.math_fail().catch(e => e.message)]"
        )
        run = await desk.ask(execs(source), "done")
        content = str(result_of(run).content)
        assert "Error executing tool fail" in content
        assert content.startswith('{"status":"completed","value":[3,')


@pytest.mark.covers("FW-4")
@pytest.mark.parametrize("version", ["1.99.0", "3.0.0"])
def test_a_version_that_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    import importlib

    from clawmode.integrations import pydantic_ai as adapter

    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", lambda name: version)
        with pytest.raises(ImportError, match=rf"pydantic-ai-slim .*{version}.*\[pydantic-ai\]"):
            importlib.reload(adapter)
