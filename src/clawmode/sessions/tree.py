"""A session's history for people: its steps in order, with the nested calls below each call.

Plain data, read from a `History`. `terminal/trajectory_view` renders it, `bundle` exports it.
"""

from dataclasses import field
from typing import TYPE_CHECKING, Literal, TypeAlias

from clawmode.messages import AssistantMessage, ToolCall, ToolMessage
from clawmode.sessions.entries import Entry, NestedCall
from clawmode.types import dataclass

if TYPE_CHECKING:
    from clawmode.sessions.history import History

StepKind: TypeAlias = Literal["user", "assistant", "call", "result", "nested", "other"]
CallState: TypeAlias = Literal["started", "completed", "failed"]


@dataclass(frozen=True, slots=True)
class NestedStep:
    """A nested call in its last state, and the time of its start."""

    call: NestedCall
    at: float


@dataclass(eq=False, slots=True)
class Step:
    """A message, a call or another event of a session.

    Attributes:
        kind: The kind of step; `nested` for nested calls whose parent is not in the transcript.
        entry: The entry of the transcript; for a call, the message that contains it.
        call: The call, if the step is one.
        result: The entry with the result of the call.
        nested: The nested calls, in the order of their start.
    """

    kind: StepKind
    entry: Entry
    call: ToolCall | None = None
    result: Entry | None = None
    nested: list[NestedStep] = field(default_factory=list[NestedStep])

    @property
    def state(self) -> CallState:
        """The state of a call: `started` if there is no result."""
        if self.result is None or not isinstance(self.result.message, ToolMessage):
            return "started"
        return "failed" if self.result.message.is_error else "completed"

    @property
    def seconds(self) -> float | None:
        """The duration of a call by the times in the transcript; None without a result."""
        return None if self.result is None else max(self.result.at - self.entry.at, 0.0)


@dataclass(eq=False, slots=True)
class RunSteps:
    """The steps of a run; with an empty id, the steps outside of any run.

    Attributes:
        start: The entry of the start.
        end: The entry of the end; None if the run is in progress, or its process died.
    """

    id: str
    start: Entry | None = None
    end: Entry | None = None
    steps: list[Step] = field(default_factory=list[Step])


def steps_of(history: "History") -> list[Step]:
    """Returns all steps in the order of the transcript, with nested calls below their parents."""
    reader = _Reader(history)
    for entry in history.entries:
        reader.read(entry)
    return reader.steps


def runs_of(steps: list[Step]) -> list[RunSteps]:
    """Groups steps by their runs, in the order of the runs' first steps."""
    runs: dict[str, RunSteps] = {}
    for step in steps:
        entry = step.entry
        run = runs.setdefault(entry.run_id, RunSteps(entry.run_id))
        if entry.type != "run":
            run.steps.append(step)
        elif entry.data.get("phase") == "end":
            run.end = entry
        else:
            run.start = run.start or entry
    return list(runs.values())


class _Reader:
    def __init__(self, history: "History") -> None:
        self.steps: list[Step] = []
        self._nested = {
            (call.run_id, call.parent_id, call.call_id): call for call in history.nested_calls()
        }
        # By run and call id: the latest, because a model may use an id again in a later message.
        self._calls: dict[tuple[str, str], Step] = {}

    def read(self, entry: Entry) -> None:
        message = entry.message
        if isinstance(message, AssistantMessage):
            self.steps.append(Step("assistant", entry))
            for call in message.calls:
                step = Step("call", entry, call)
                self.steps.append(step)
                self._calls[entry.run_id, call.id] = step
        elif isinstance(message, ToolMessage):
            self.steps.append(Step("result", entry))
            call_step = self._calls.get((entry.run_id, message.call_id))
            if call_step is not None and call_step.result is None:
                call_step.result = entry
        elif entry.type == "nested":
            parent_id, call_id = (str(entry.data.get(key, "")) for key in ("parentId", "callId"))
            # Popped by the entry of the start, so that the entry of the end adds no second step.
            call = self._nested.pop((entry.run_id, parent_id, call_id), None)
            if call is None:
                return
            step = self._calls.get((entry.run_id, parent_id))
            if step is None:
                step = self._calls[entry.run_id, parent_id] = Step("nested", entry)
                self.steps.append(step)
            step.nested.append(NestedStep(call, entry.at))
        else:
            self.steps.append(Step("other" if message is None else "user", entry))
