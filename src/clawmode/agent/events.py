"""`AgentEvent`, what a run emits while it is in progress, and the queue to one reader."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, Literal, TypeAlias

from clawmode.exceptions import ConfigurationError
from clawmode.records import CAMEL, AnyObject, parse
from clawmode.tasks import Notifier
from clawmode.tools.executor import CallEvent
from clawmode.types import JsonObject, dataclass

Stream: TypeAlias = Literal["lifecycle", "assistant", "thinking", "tool", "compaction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """An event of a run.

    Attributes:
        seq: The number of the event in its run, from 1 and without gaps.
        stream: `lifecycle`: `{phase: "start" | "end" | "error", ...}`. `assistant`: `{delta}`;
            `{text}` at the end of a block; `{message}` at the end of a reply; `{reset: true}` if
            the reply so far is discarded and the model is asked again.
            `thinking`: `{delta}`. `tool`: `{phase: "start" | "update" | "end", callId, name, ...}`,
            with `parentId` if the call is nested in a program.
        data: The content, limited in size and without images.
    """

    __pydantic_config__ = CAMEL

    run_id: str
    seq: int
    stream: Stream
    data: AnyObject
    session_key: str = ""
    at: float = field(default_factory=time.time)

    @staticmethod
    def read(value: Mapping[str, Any]) -> "AgentEvent | None":
        """Reads an event that `to_json` wrote; None if it is of another version of clawmode."""
        try:
            return parse(AgentEvent, {**value, "at": value["ts"] / 1000})
        except (ConfigurationError, KeyError, TypeError):
            return None

    def to_json(self) -> JsonObject:
        """Returns the event as clients receive it."""
        return {
            "runId": self.run_id,
            "sessionKey": self.session_key,
            "seq": self.seq,
            "stream": self.stream,
            "ts": int(self.at * 1000),
            "data": self.data,
        }


def call_data(event: CallEvent) -> JsonObject:
    """Returns the `data` of a `tool` event for the start or the end of a call."""
    data: JsonObject = {"phase": event.phase, "callId": event.call_id, "name": event.tool_id}
    if event.parent_id is not None:
        data["parentId"] = event.parent_id
    if event.phase == "end":
        data |= {"state": event.state, "ms": round(event.seconds * 1000)}
        data |= {"isError": event.state != "completed"}
        if event.code is not None:
            data["code"] = event.code
    return data


Listener: TypeAlias = Callable[[AgentEvent], None]
"""Receives every event. Must not block; an exception is logged."""


JOIN_FROM, MAX_WAITING = 100, 10_000
"""How many waiting events make a reader a slow one, and how many are too many."""
MAX_JOINED_CHARS = 8_192
"""Of a delta that joins several: a limit, because each join copies the text."""


class EventQueue:
    """The events of one run that wait for their reader.

    The run does not wait for a slow reader. Instead, consecutive deltas become one event, and an
    update of a call replaces the update before it; such an event has the number of the last one.
    If there are still too many events, `on_overflow` is called once. The end is never lost.

    Args:
        on_overflow: Called when `MAX_WAITING` events wait. It should end the run.
    """

    def __init__(self, on_overflow: Callable[[], object]) -> None:
        self._on_overflow = on_overflow
        self._waiting: deque[AgentEvent] = deque()
        self._arrived = Notifier()

    def put(self, event: AgentEvent) -> None:
        """Adds an event, or joins it to the last one."""
        is_slow = len(self._waiting) >= JOIN_FROM
        joined = _join(self._waiting[-1], event) if is_slow else None
        if joined is not None:
            self._waiting[-1] = joined
            return
        self._waiting.append(event)
        self._arrived.notify()
        if len(self._waiting) == MAX_WAITING:
            self._on_overflow()

    async def get(self) -> AgentEvent:
        """Waits for an event, and removes it."""
        while not self._waiting:
            await self._arrived.wait()
        return self._waiting.popleft()


def _join(earlier: AgentEvent, later: AgentEvent) -> AgentEvent | None:
    """Returns one event that says the same as two events in a row; None if there is none."""
    if earlier.stream != later.stream:
        return None
    before, after = earlier.data, later.data
    if later.stream == "tool":
        same = before.get("callId") == after.get("callId")
        updates = before.get("phase") == after.get("phase") == "update"
        return later if same and updates else None
    if before.keys() == after.keys() == {"delta"}:
        delta = f"{before['delta']}{after['delta']}"
        return replace(later, data={"delta": delta}) if len(delta) <= MAX_JOINED_CHARS else None
    return None
