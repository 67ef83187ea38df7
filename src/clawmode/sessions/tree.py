"""What a session's past comes to for people: steps in order, and below each call its nested calls.

Plain data, read from a `History`. `trajectory_view` draws it, `trajectory_export` writes it down.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from clawmode.messages import AssistantMessage, ToolCall, ToolMessage
from clawmode.sessions.history import Entry, History, NestedCall

StepKind: TypeAlias = Literal["user", "assistant", "call", "result", "nested", "other"]
CallState: TypeAlias = Literal["started", "completed", "failed"]


@dataclass(frozen=True, slots=True)
class NestedStep:
    """A nested call, how it ended, and when it began."""

    call: NestedCall
    at: float


@dataclass(eq=False, slots=True)
class Step:
    """Something that was said or done.

    Attributes:
        kind: `nested` are nested calls whose own call is not in the transcript.
        entry: Where it is recorded; for a call the message that asked for it.
        call: The call, if it is one.
        result: What was recorded of the call's end.
        nested: The calls below it, in the order in which they began.
    """

    kind: StepKind
    entry: Entry
    call: ToolCall | None = None
    result: Entry | None = None
    nested: list[NestedStep] = field(default_factory=list[NestedStep])

    @property
    def state(self) -> CallState:
        """How a call ended, if it has."""
        if self.result is None or not isinstance(self.result.message, ToolMessage):
            return "started"
        return "failed" if self.result.message.is_error else "completed"

    @property
    def seconds(self) -> float | None:
        """How long a call took, as far as the transcript knows."""
        return None if self.result is None else max(self.result.at - self.entry.at, 0.0)


@dataclass(eq=False, slots=True)
class RunSteps:
    """A run, or what was said outside of any: then its id is empty.

    Attributes:
        start: What was recorded when it began.
        end: The same of its end; None: it goes on, or its process died.
    """

    id: str
    start: Entry | None = None
    end: Entry | None = None
    steps: list[Step] = field(default_factory=list[Step])


def steps_of(history: History) -> list[Step]:
    """Everything in the order of the transcript, with nested calls at their parents."""
    return _Reader(history).steps


def runs_of(steps: list[Step]) -> list[RunSteps]:
    """The same by runs, in the order in which they began."""
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
    def __init__(self, history: History) -> None:
        self.steps: list[Step] = []
        self._ended = {
            (call.run_id, call.parent_id, call.call_id): call for call in history.nested_calls()
        }
        # By run and call id: the latest, as an id may come back in a later message.
        self._calls: dict[tuple[str, str], Step] = {}
        for entry in history.entries:
            self._read(entry)

    def _read(self, entry: Entry) -> None:
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
            self._read_nested(entry)
        else:
            self.steps.append(Step("other" if message is None else "user", entry))

    def _read_nested(self, entry: Entry) -> None:
        parent_id, call_id = (str(entry.data.get(key, "")) for key in ("parentId", "callId"))
        # Taken out: the end of a call finds nothing, and is not shown a second time.
        call = self._ended.pop((entry.run_id, parent_id, call_id), None)
        if call is None:
            return
        step = self._calls.get((entry.run_id, parent_id))
        if step is None:
            step = Step("nested", entry)
            self.steps.append(step)
            self._calls[entry.run_id, parent_id] = step
        step.nested.append(NestedStep(call, entry.at))
