"""Spans: which there are, what is below what, what is in them, and what they cost without them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from clawmode.code_mode.code_mode import CodeMode
from clawmode.code_mode.results import CodeModeResult
from clawmode.code_mode.spans import MAX_CHARS, SpanRecorder, find_recorder
from clawmode.context import RunContext
from clawmode.tools.approvals import Approvals
from clawmode.tools.executor import Call, CallEvent, Executor, ToolFailure
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio

RUN = RunContext(agent_id="main", session_id="s1", session_key="tel:+49123", run_id="r1")
SECRET = "hunter2-do-not-tell"
DONE = CodeModeResult(status="completed", value=SECRET)


class Recording:
    """A provider whose spans stay in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")
        self.recorder = SpanRecorder(self.tracer)

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        """The spans that have ended, by name."""
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def parent_of(self, name: str) -> str | None:
        """The name of the span that this one is below."""
        parent = self.spans[name].parent
        if parent is None:
            return None
        return next(n for n, s in self.spans.items() if _id(s) == parent.span_id)


def _id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


@pytest.fixture
def recording() -> Recording:
    return Recording()


def tool(execute: Callable[..., Any], name: str = "work") -> Tool:
    return Tool(name, "Works.", {"type": "object"}, execute)


def executor(recording: Recording) -> Executor:
    return Executor(Policy(()), watchers=[recording.recorder])


def call(of: Tool, id: str = "c1") -> Call:
    return Call(id=id, tool=of, input={"password": SECRET}, run=RUN, parent_id="toolu_1")


async def answer(given: JsonObject, context: ToolContext) -> str:
    context.update({"seen": SECRET})
    return SECRET


async def refuse(given: JsonObject, context: ToolContext) -> str:
    raise ValueError(f"bad {SECRET}")


# What is in a span


async def test_a_nested_call_is_a_span_with_the_names_of_the_conventions(
    recording: Recording,
) -> None:
    await executor(recording).call(call(tool(answer), "cell7:1"))
    span = recording.spans["execute_tool work"]
    assert attributes(span) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "work",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "cell7:1",
        "clawmode.tool.id": "openclaw:core:work",
        "clawmode.parent_call.id": "toolu_1",
        "clawmode.state": "completed",
    }
    assert span.status.status_code is StatusCode.UNSET
    assert span.events == ()


def test_a_cell_is_a_span_with_the_identity_of_its_run(recording: Recording) -> None:
    with recording.recorder.cell("exec", "toolu_1", RUN) as span:
        span.conclude(CodeModeResult(status="waiting", run_id="cell7", reason="yield"))
    assert attributes(recording.spans["execute_tool exec"]) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "exec",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "toolu_1",
        "gen_ai.agent.id": "main",
        "gen_ai.conversation.id": "s1",
        "clawmode.run.id": "r1",
        "clawmode.cell.id": "cell7",
        "clawmode.state": "waiting",
    }


def test_a_run_without_a_session_names_none(recording: Recording) -> None:
    with recording.recorder.cell("wait", "w", RunContext()):
        pass
    assert "gen_ai.conversation.id" not in attributes(recording.spans["execute_tool wait"])


async def test_a_call_that_fails_is_an_error(recording: Recording) -> None:
    with pytest.raises(ToolFailure):
        await executor(recording).call(call(tool(refuse)))
    span = recording.spans["execute_tool work"]
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["clawmode.state"] == "failed"
    assert attributes(span)["error.type"] == span.status.description


def test_a_cell_that_fails_is_an_error_with_its_code(recording: Recording) -> None:
    failed = CodeModeResult(status="failed", code="timeout", error=f"Too late: {SECRET}")
    with recording.recorder.cell("exec", "c", RUN) as span:
        span.conclude(failed)
    ended = recording.spans["execute_tool exec"]
    assert (ended.status.status_code, ended.status.description) == (StatusCode.ERROR, "timeout")
    assert attributes(ended)["error.type"] == "timeout"


def test_a_cell_that_raises_tells_only_what_kind_of_error(recording: Recording) -> None:
    with (
        pytest.raises(LookupError),
        recording.recorder.cell("exec", "c", RUN),
    ):
        raise LookupError(SECRET)
    ended = recording.spans["execute_tool exec"]
    assert (ended.status.status_code, ended.status.description) == (StatusCode.ERROR, "LookupError")
    assert ended.events == ()


async def test_a_call_that_is_cancelled_ends_its_span_and_is_no_error(recording: Recording) -> None:
    begun = anyio.Event()

    async def hang(given: JsonObject, context: ToolContext) -> None:
        begun.set()
        await anyio.sleep_forever()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(executor(recording).call, call(tool(hang)))
            await begun.wait()
            tasks.cancel_scope.cancel()
    span = recording.spans["execute_tool work"]
    assert attributes(span)["clawmode.state"] == "cancelled"
    assert span.status.status_code is StatusCode.UNSET


async def test_no_input_output_or_text_of_an_error_is_in_a_span(recording: Recording) -> None:
    with recording.recorder.cell("exec", "c", RUN) as span:
        await executor(recording).call(call(tool(answer)))
        with pytest.raises(ToolFailure):
            await executor(recording).call(call(tool(refuse, "refuse"), "c2"))
        span.conclude(DONE)
    written = "".join(span.to_json() for span in recording.exporter.get_finished_spans())
    assert len(recording.spans) == 3
    assert SECRET not in written
    assert RUN.session_key not in written


async def test_a_name_without_end_is_cut(recording: Recording) -> None:
    await executor(recording).call(call(tool(answer, "x" * 100_000), "y" * 100_000))
    (span,) = recording.exporter.get_finished_spans()
    assert max(map(len, [span.name, *map(str, attributes(span).values())])) == MAX_CHARS


# What is below what


async def test_a_call_in_another_task_is_below_the_cell_that_started_it(
    recording: Recording,
) -> None:
    run = executor(recording)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            with recording.tracer.start_as_current_span("agent"):
                with recording.recorder.cell("exec", "e", RUN):
                    tasks.start_soon(run.call, call(tool(answer)))
                with recording.recorder.cell("wait", "w", RUN):
                    tasks.start_soon(run.call, call(tool(answer, "later"), "c2"))
    assert recording.parent_of("execute_tool work") == "execute_tool exec"
    assert recording.parent_of("execute_tool later") == "execute_tool wait"
    assert recording.parent_of("execute_tool exec") == "agent"
    assert recording.parent_of("execute_tool wait") == "agent"


async def test_a_call_that_outlives_its_cell_stays_below_it(recording: Recording) -> None:
    goes_on, begun = anyio.Event(), anyio.Event()

    async def slow(given: JsonObject, context: ToolContext) -> None:
        begun.set()
        await goes_on.wait()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            with recording.recorder.cell("exec", "e", RUN):
                tasks.start_soon(executor(recording).call, call(tool(slow)))
                await begun.wait()
            assert "execute_tool exec" in recording.spans
            with recording.recorder.cell("wait", "w", RUN):
                goes_on.set()
    outer, nested = recording.spans["execute_tool exec"], recording.spans["execute_tool work"]
    assert recording.parent_of("execute_tool work") == "execute_tool exec"
    assert outer.end_time is not None
    assert nested.end_time is not None
    assert nested.end_time > outer.end_time


@pytest.mark.parametrize("in_thread", [False, True])
async def test_what_a_tool_records_is_below_its_call(recording: Recording, in_thread: bool) -> None:
    def work(given: JsonObject, context: ToolContext) -> None:
        recording.tracer.start_span("query").end()

    async def work_here(given: JsonObject, context: ToolContext) -> None:
        work(given, context)

    with recording.recorder.cell("exec", "e", RUN):
        await executor(recording).call(call(tool(work if in_thread else work_here)))
    assert recording.parent_of("query") == "execute_tool work"
    assert recording.parent_of("execute_tool work") == "execute_tool exec"


async def test_calls_side_by_side_are_siblings(recording: Recording) -> None:
    run = executor(recording)
    together = [anyio.Event() for _ in range(3)]

    async def meet(given: JsonObject, context: ToolContext) -> None:
        together[int(context.call_id)].set()
        for event in together:
            await event.wait()

    with anyio.fail_after(5), recording.recorder.cell("exec", "e", RUN):
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(run.call, call(tool(meet, f"t{number}"), str(number)))
    parents = {recording.parent_of(f"execute_tool t{number}") for number in range(3)}
    assert parents == {"execute_tool exec"}


async def test_after_a_call_and_after_a_cell_the_span_of_before_is_current(
    recording: Recording,
) -> None:
    before = trace.get_current_span()
    with recording.recorder.cell("exec", "e", RUN):
        outer = trace.get_current_span()
        await executor(recording).call(call(tool(answer)))
        assert trace.get_current_span() is outer
    assert trace.get_current_span() is before


def test_an_end_whose_start_was_not_seen_is_passed_over(recording: Recording) -> None:
    recording.recorder(CallEvent("end", "c", "openclaw:core:work", None, "completed"))
    recording.recorder(CallEvent("update", "c", "openclaw:core:work", update=SECRET))
    assert recording.spans == {}


async def test_the_calls_of_a_real_cell_are_below_it(recording: Recording) -> None:
    source = "return (await Promise.all([tools.one({}), tools.two({})])).length"
    tools = [tool(answer, "one"), tool(answer, "two")]
    async with CodeMode(tools=tools, context=RUN, approvals=Approvals()) as code_mode:
        code_mode.watch(recording.recorder)
        with recording.recorder.cell("exec", "toolu_1", RUN) as span:
            result = await code_mode.exec(source, call_id="toolu_1")
            span.conclude(result)
    assert result.value == 2
    for name in ("one", "two"):
        assert recording.parent_of(f"execute_tool {name}") == "execute_tool exec"
        nested = attributes(recording.spans[f"execute_tool {name}"])
        assert nested["clawmode.parent_call.id"] == "toolu_1"


# With a provider, and without


def test_a_provider_that_is_set_up_is_found(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: recording.provider)
    recorder = find_recorder()
    assert recorder is not None
    with recorder.cell("exec", "e", RUN) as span:
        span.conclude(DONE)
    ended = recording.spans["execute_tool exec"]
    assert ended.instrumentation_scope is not None
    assert ended.instrumentation_scope.name == "clawmode"


@pytest.mark.parametrize("provider", [trace.ProxyTracerProvider(), trace.NoOpTracerProvider()])
def test_a_provider_that_records_nothing_is_none(
    provider: trace.TracerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    assert find_recorder() is None


def test_without_a_recorder_a_cell_costs_next_to_nothing() -> None:
    code_mode = CodeMode()
    began = time.process_time()
    for _ in range(10_000):
        with code_mode._span("exec", "e") as span:
            assert span is None
    assert (time.process_time() - began) / 10_000 < 50e-6


USE = """
import sys
from clawmode.code_mode.code_mode import CodeMode
from clawmode.code_mode.results import CodeModeResult
from clawmode.code_mode.spans import find_recorder
recorder = find_recorder()
with CodeMode()._span("exec", "e") as span:
    if span is not None:
        span.conclude(CodeModeResult(status="completed"))
loaded = any(name.startswith("opentelemetry") and sys.modules[name] for name in sys.modules)
print(recorder is None, loaded)
"""
BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
"""
SET_UP = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
"""


@pytest.mark.parametrize(
    ("before", "variable", "printed"),
    [
        ("", "", "True False"),  # nobody set anything up: the API is not even imported
        (BLOCK, "", "True False"),  # it is not installed
        (BLOCK, "sdk_tracer_provider", "True False"),
        ("import opentelemetry.trace", "", "True True"),  # somebody uses it, without a provider
        (SET_UP, "", "False True"),
        ("", "sdk_tracer_provider", "False True"),  # the API finds one by itself
    ],
)
def test_only_a_provider_makes_a_recorder(before: str, variable: str, printed: str) -> None:
    environment = os.environ | ({"OTEL_PYTHON_TRACER_PROVIDER": variable} if variable else {})
    done = subprocess.run(
        [sys.executable, "-c", before + USE],
        capture_output=True,
        text=True,
        timeout=15,
        env=environment,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == (printed, "")
