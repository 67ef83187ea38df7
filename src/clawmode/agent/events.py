"""`AgentEvent`: what a run emits while it is in progress."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from clawmode.types import JsonObject

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

    run_id: str
    seq: int
    stream: Stream
    data: JsonObject
    session_key: str = ""
    at: float = field(default_factory=time.time)

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


Listener: TypeAlias = Callable[[AgentEvent], None]
"""Receives every event. Must not block; an exception is logged."""
