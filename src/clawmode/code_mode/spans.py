"""OpenTelemetry spans: one for each `exec` and `wait`, with a child span for each nested call.

The only module that imports `opentelemetry`, and only its API. Nothing is imported or recorded
unless the application has set up a provider.

A nested call runs in a task that was started under the span of its `exec` or `wait`, and a task
keeps the context in which it was started. So the span of a call is a child of that span even if the
call outlives it, and spans of the tool are children of the call. Spans contain no inputs, outputs
or error messages.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Token
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from clawmode.code_mode.results import CodeModeResult
from clawmode.context import RunContext
from clawmode.tools.executor import CallEvent
from clawmode.types import dataclass

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

TRACER = "clawmode"
PROVIDER_VARIABLE = "OTEL_PYTHON_TRACER_PROVIDER"  # makes the API load a provider by itself

# The GenAI conventions are not stable yet, so the names are copied here instead of imported.
OPERATION = "gen_ai.operation.name"
EXECUTE_TOOL = "execute_tool"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
CALL_ID = "gen_ai.tool.call.id"
AGENT_ID = "gen_ai.agent.id"
CONVERSATION_ID = "gen_ai.conversation.id"
ERROR_TYPE = "error.type"

# Attributes of clawmode.
TOOL_ID = "clawmode.tool.id"
PARENT_CALL_ID = "clawmode.parent_call.id"
RUN_ID = "clawmode.run.id"
CELL_ID = "clawmode.cell.id"  # the `runId` of a waiting result
STATE = "clawmode.state"

MAX_CHARS = 256  # names of tools are untrusted

CellTool: TypeAlias = Literal["exec", "wait"]


def find_recorder() -> "SpanRecorder | None":
    """Returns a recorder of spans; None if the application has not set up a provider of traces.

    An application with a provider has already imported the API, so no other application pays for
    the import.
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


@dataclass(frozen=True, slots=True)
class CellSpan:
    """The span of one `exec` or `wait`."""

    span: "Span"

    def conclude(self, result: CodeModeResult) -> None:
        """Records the status of a result, the code of a failed one, the id of a waiting one."""
        self.span.set_attribute(STATE, result.status)
        if result.run_id:
            self.span.set_attribute(CELL_ID, result.run_id)
        if result.status == "failed":
            _fail(self.span, result.code or result.status)


class _OpenSpan(NamedTuple):
    span: "Span"
    token: "Token[Context]"


class SpanRecorder:
    """Records the spans of one run.

    Args:
        tracer: A tracer of the application's provider.
    """

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer
        self._open: dict[str, _OpenSpan] = {}

    # ---- Nested calls ----

    def __call__(self, event: CallEvent) -> None:
        """Starts a span when a call starts and ends it with the call, both in the call's task."""
        if event.phase == "start":
            name = event.tool_id.split(":", 2)[-1]
            attributes = {TOOL_ID: event.tool_id}
            if event.parent_id is not None:
                attributes[PARENT_CALL_ID] = event.parent_id
            self._open[event.call_id] = self._enter(name, event.call_id, attributes)
        elif event.phase == "end" and event.call_id in self._open:
            opened = self._open.pop(event.call_id)
            if event.state is not None:
                opened.span.set_attribute(STATE, event.state)
            if event.state == "failed":
                _fail(opened.span, event.code or event.state)
            _leave(opened)

    # ---- Cells ----

    @contextmanager
    def cell(self, name: CellTool, call_id: str, run: RunContext) -> Iterator[CellSpan]:
        """Context of the span of an `exec` or `wait`, which is the parent of spans inside it."""
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

    # ---- Both kinds ----

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
    """Records only the code of an error, because its message may quote the input of a tool."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute(ERROR_TYPE, code)
    span.set_status(Status(StatusCode.ERROR, code))


def _leave(opened: _OpenSpan) -> None:
    from opentelemetry import context

    context.detach(opened.token)
    opened.span.end()
