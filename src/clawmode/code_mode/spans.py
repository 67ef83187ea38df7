"""OpenTelemetry spans: one for each `exec` and `wait`, and one for each nested call below it.

The one home of `opentelemetry`, of which only the API is used, and only if the application has
brought it and set up a provider; if not, nothing is imported and nothing is recorded.

A nested call runs in a task that was started under the span of its `exec` or `wait`, and a task
keeps the context that it was started in: so the call is below that span also when it outlives it,
and what the tool itself records is below the call. Inputs, outputs and error texts are in no span.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from clawmode.code_mode.results import CodeModeResult
from clawmode.context import RunContext
from clawmode.tools.executor import CallEvent

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

TRACER = "clawmode"
PROVIDER_VARIABLE = "OTEL_PYTHON_TRACER_PROVIDER"  # by which the API finds one by itself

# The GenAI conventions are not stable yet, so the strings are here and not imported.
OPERATION = "gen_ai.operation.name"
EXECUTE_TOOL = "execute_tool"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
CALL_ID = "gen_ai.tool.call.id"
AGENT_ID = "gen_ai.agent.id"
CONVERSATION_ID = "gen_ai.conversation.id"
ERROR_TYPE = "error.type"

# Ours.
TOOL_ID = "clawmode.tool.id"
PARENT_CALL_ID = "clawmode.parent_call.id"
RUN_ID = "clawmode.run.id"
CELL_ID = "clawmode.cell.id"  # what a `wait` is given
STATE = "clawmode.state"

MAX_CHARS = 256  # names of tools are chosen by strangers

CellTool: TypeAlias = Literal["exec", "wait"]


def find_recorder() -> "SpanRecorder | None":
    """Who records spans in this process; None if no provider of traces is set up by now.

    The application that sets one up has imported the API, so nobody else pays for that.
    """
    if "opentelemetry.trace" not in sys.modules and PROVIDER_VARIABLE not in os.environ:
        return None
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return SpanRecorder(provider.get_tracer(TRACER))


def cell_span(
    recorder: "SpanRecorder | None", name: CellTool, call_id: str, run: RunContext
) -> "AbstractContextManager[CellSpan]":
    """The span of an `exec` or `wait`, if anybody records it: what starts inside is below it."""
    return nullcontext(CellSpan()) if recorder is None else recorder.cell(name, call_id, run)


@dataclass(frozen=True, slots=True)
class CellSpan:
    """The span of one `exec` or `wait`; without one, nothing is noted."""

    span: "Span | None" = None

    def conclude(self, result: CodeModeResult) -> None:
        """Notes the status of a result, its code if it failed, and the cell's id if it waits."""
        if self.span is None:
            return
        self.span.set_attribute(STATE, result.status)
        if result.run_id:
            self.span.set_attribute(CELL_ID, result.run_id)
        if result.status == "failed":
            _fail(self.span, result.code or result.status)


class _OpenSpan(NamedTuple):
    span: "Span"
    token: "Token[Context]"


class SpanRecorder:
    """Makes spans of what happens in one run.

    Args:
        tracer: Of the provider that the application has set up.
    """

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer
        self._open: dict[str, _OpenSpan] = {}

    # ---- Nested calls ----

    def __call__(self, event: CallEvent) -> None:
        """Opens a span when a call starts and closes it when it ends, both in the call's task."""
        if event.phase == "start":
            self._start(event)
        elif event.phase == "end" and event.call_id in self._open:
            self._end(event)

    def _start(self, event: CallEvent) -> None:
        name = event.tool_id.split(":", 2)[-1]
        attributes = {TOOL_ID: event.tool_id}
        if event.parent_id is not None:
            attributes[PARENT_CALL_ID] = event.parent_id
        self._open[event.call_id] = self._enter(name, event.call_id, attributes)

    def _end(self, event: CallEvent) -> None:
        opened = self._open.pop(event.call_id)
        if event.state is not None:
            opened.span.set_attribute(STATE, event.state)
        if event.state == "failed":
            _fail(opened.span, event.code or event.state)
        _leave(opened)

    # ---- Cells ----

    @contextmanager
    def cell(self, name: CellTool, call_id: str, run: RunContext) -> Iterator[CellSpan]:
        """The span of an `exec` or `wait`: what starts inside of it is below it."""
        attributes = {AGENT_ID: run.agent_id, RUN_ID: run.run_id}
        if run.session_id:
            attributes[CONVERSATION_ID] = run.session_id
        opened = self._enter(name, call_id, attributes)
        try:
            yield CellSpan(opened.span)
        except Exception as error:
            _fail(opened.span, type(error).__name__)
            raise
        finally:
            _leave(opened)

    # ---- Both ----

    def _enter(self, name: str, call_id: str, attributes: dict[str, str]) -> _OpenSpan:
        from opentelemetry import context, trace

        attributes |= {TOOL_NAME: name, CALL_ID: call_id}
        span = self._tracer.start_span(
            f"{EXECUTE_TOOL} {name}"[:MAX_CHARS],
            attributes={
                OPERATION: EXECUTE_TOOL,
                TOOL_TYPE: "function",
                **{key: value[:MAX_CHARS] for key, value in attributes.items()},
            },
        )
        return _OpenSpan(span, context.attach(trace.set_span_in_context(span)))


def _fail(span: "Span", code: str) -> None:
    """Of an error only the code: its text may quote what a tool was given."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute(ERROR_TYPE, code)
    span.set_status(Status(StatusCode.ERROR, code))


def _leave(opened: _OpenSpan) -> None:
    from opentelemetry import context

    context.detach(opened.token)
    opened.span.end()
