"""What a run emits while it runs, as data."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from clawmode.types import JsonObject

Stream: TypeAlias = Literal["lifecycle", "assistant", "thinking", "tool", "compaction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """One event.

    Attributes:
        seq: From 1, without a gap, in its run.
        stream: `lifecycle`: `{phase: "start" | "end" | "error", ...}`. `assistant`: `{delta}`,
            `{text}` at the end of a block, `{message}` at that of an answer, `{reset: true}` if
            what came of the answer so far is to be forgotten.
            `thinking`: `{delta}`. `tool`: `{phase: "start" | "update" | "end", callId, name, ...}`,
            with `parentId` if the call is nested in a program.
        data: Bounded, without pictures.
    """

    run_id: str
    seq: int
    stream: Stream
    data: JsonObject
    session_key: str = ""
    at: float = field(default_factory=time.time)

    def to_json(self) -> JsonObject:
        """As it goes to clients and into files."""
        return {
            "runId": self.run_id,
            "sessionKey": self.session_key,
            "seq": self.seq,
            "stream": self.stream,
            "ts": int(self.at * 1000),
            "data": self.data,
        }


Listener: TypeAlias = Callable[[AgentEvent], None]
"""Sees every event. Must not block; what it raises is logged."""
