"""Cells that are under way: what each has asked for, what has come back, what it has emitted.

Plain state, no clock and no process. `code_mode` moves it along.
"""

import json
import secrets
from collections import deque
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import anyio

from clawmode.sandbox.pool import Cell
from clawmode.sandbox.protocol import Output, Request, Settled
from clawmode.tools import JsonObject, Tool
from clawmode.types import JsonValue

CallState: TypeAlias = Literal[
    "queued", "running", "approval", "completed", "failed", "cancelled", "not_started"
]

MAX_LEDGER = 100


@dataclass(slots=True)
class OpenCall:
    """A nested call of a cell, from the request to its end."""

    request: Request
    tool: Tool
    input: JsonObject
    state: CallState = "queued"
    scope: anyio.CancelScope | None = None

    @property
    def open(self) -> bool:
        """Whether an answer is still to come."""
        return self.state in ("queued", "running", "approval")


@dataclass(slots=True)
class Run:
    """One cell, from `exec` to its result."""

    cell: Cell
    parent_id: str
    output_left: int
    id: str = field(default_factory=lambda: "cm_" + secrets.token_hex(16))
    output: list[JsonValue] = field(default_factory=list[JsonValue])
    calls: dict[int, OpenCall] = field(default_factory=dict[int, OpenCall])
    queue: deque[OpenCall] = field(default_factory=deque[OpenCall])
    yields: list[Request] = field(default_factory=list[Request])
    inbox: list[Settled] = field(default_factory=list[Settled])
    news: anyio.Event = field(default_factory=anyio.Event)
    timers: int = 0
    due: float = 0.0
    sealed: bytes = b""
    expires: float = 0.0
    ended: bool = False

    def tell(self) -> None:
        """Something has changed that whoever drives the cell should look at."""
        self.news.set()
        self.news = anyio.Event()

    def open_calls(self) -> list[OpenCall]:
        """Calls whose answer is still to come, in the order in which they were made."""
        return [call for call in self.calls.values() if call.open]

    def take_output(self, items: tuple[Output, ...]) -> None:
        """Adds what a step emitted, and takes it off the budget."""
        for item in items:
            self.output_left = max(0, self.output_left - item.size)
            key = "text" if item.type == "text" else "value"
            self.output.append({"type": item.type, key: json.loads(item.body)})

    def take_replies(self) -> tuple[Settled, ...]:
        """Everything that has come back since the last time, in order."""
        replies = tuple(self.inbox)
        self.inbox.clear()
        return replies

    def take_yields(self) -> tuple[Settled, ...]:
        """Answers the yields: the model has said `wait`."""
        answers = tuple(Settled(request.id, True, b"null") for request in self.yields)
        self.yields = []
        return answers

    def pending(self) -> list[JsonValue]:
        """What the cell waits for, for the model."""
        found: list[JsonValue] = [
            {
                "id": str(call.request.id),
                "method": call.request.method,
                "toolId": call.tool.id,
                "state": call.state,
            }
            for call in self.open_calls()
        ]
        found.extend(
            {"id": str(request.id), "method": "yield", "state": "running"}
            for request in self.yields
        )
        if self.timers:
            found.append({"id": "timer", "method": "timer", "state": "timer", "due": self.due})
        return found

    def ledger(self) -> list[JsonValue]:
        """What became of the calls, so that a model knows what is safe to do again."""
        rows: list[JsonValue] = []
        for call in list(self.calls.values())[:MAX_LEDGER]:
            row: JsonObject = {
                "id": str(call.request.id),
                "toolId": call.tool.id,
                "state": call.state,
            }
            if call.tool.effect is not None:
                row["effect"] = call.tool.effect
            rows.append(row)
        return rows
