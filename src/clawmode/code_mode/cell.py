"""Cells that are under way: what each has asked for, what has come back, what it has emitted.

Plain state, no process. `code_mode` moves it along, `calls` makes the calls, and
`parking` writes it down and reads it again.
"""

import secrets
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, TypeAlias

import anyio

from clawmode.sandbox.pool import Tenancy
from clawmode.sandbox.protocol import Completion, Failure, Output, Request, Settlement, Start
from clawmode.tasks import Notifier
from clawmode.tools.approvals import Question
from clawmode.tools.tool import Effect, Tool
from clawmode.types import JsonObject, JsonValue

CallState: TypeAlias = Literal[
    "queued", "running", "approval", "completed", "failed", "cancelled", "unknown", "not_started"
]
OPEN: tuple[CallState, ...] = ("queued", "running", "approval")

MAX_LEDGER = 100
MAX_SHOWN = 10
"""Unanswered look-ups that a result lists; there may be a thousand."""

GATE = 0
"""The id of the call that stands for the cell itself, while a person decides about its start."""


# ---- The ledger ----


@dataclass(slots=True)
class Entry:
    """What became of one call."""

    id: int
    tool_id: str
    effect: Effect | None
    state: CallState = "queued"

    def to_json(self) -> JsonObject:
        """The row of a failed result."""
        row: JsonObject = {"id": str(self.id), "toolId": self.tool_id, "state": self.state}
        return row | {"effect": self.effect} if self.effect is not None else row


@dataclass(slots=True)
class Ledger:
    """The calls of a cell in start order, so that a model knows what is safe to do again.

    Of many, the earliest that have ended are only counted.
    """

    entries: list[Entry] = field(default_factory=list[Entry])
    omitted: Counter[str] = field(default_factory=Counter[str])

    def add(self, call_id: int, tool: Tool, state: CallState = "queued") -> Entry:
        """The entry of a new call."""
        return self.note(Entry(call_id, tool.id, tool.effect, state))

    def note(self, entry: Entry) -> Entry:
        """Adds an entry."""
        self.entries.append(entry)
        if len(self.entries) > MAX_LEDGER:
            self._shorten()
        return entry

    def _shorten(self) -> None:
        for position, entry in enumerate(self.entries):
            if entry.state not in OPEN:
                self.omitted[entry.state] += 1
                del self.entries[position]
                return

    def find(self, call_id: int) -> Entry | None:
        """The entry of a call, unless it is only counted."""
        return next((entry for entry in self.entries if entry.id == call_id), None)


# ---- Calls ----


@dataclass(slots=True)
class OpenCall:
    """A nested call whose answer is still to come.

    Attributes:
        tool: What it calls; None: another process makes it, or it waits for `server`.
        server: The MCP server whose tools are not known yet.
        owner: That other process.
        question: Asked instead of a tool: the call stands for the start of the cell.
        asking: How many answers of people the tool, which runs, waits for.
    """

    request: Request
    entry: Entry
    tool: Tool | None
    input: JsonObject
    owner: str = ""
    question: Question | None = None
    asking: int = 0
    server: str = ""
    scope: anyio.CancelScope | None = None

    @property
    def id(self) -> int:
        """Of the guest's request."""
        return self.request.id

    @property
    def waits_for_a_person(self) -> bool:
        """Whether a person has to allow the call, or to tell its tool something."""
        return self.entry.state == "approval" or self.asking > 0

    def to_json(self) -> JsonObject:
        """What a model reads of it."""
        method = "exec" if self.id == GATE else self.request.method
        return {
            "id": str(self.id),
            "method": method,
            "toolId": self.entry.tool_id,
            "state": self.entry.state,
        }


@dataclass(slots=True)
class CallGroup:
    """The calls of one cell that this process makes, wherever the cell is meanwhile.

    Attributes:
        cell: The cell while this process drives it and gives it the replies; if None, replies go
            to the store.
        claimed: Whether somebody here waits for the cell, or drives it.
        running: How many of the calls have been started.
        lock: Held while the cell changes its place.
        changes: Notifies whoever drives the cell that there is something to look at.
        unsaved: Replies that the store could not take, and whether their outcome is unknown.
        foreign: How many calls of the cell other processes make.
    """

    run_id: str
    parent_id: str
    cell: "Cell | None" = None
    claimed: bool = False
    calls: dict[int, OpenCall] = field(default_factory=dict[int, OpenCall])
    queue: deque[OpenCall] = field(default_factory=deque[OpenCall])
    unsaved: dict[int, tuple[Settlement, bool]] = field(
        default_factory=dict[int, tuple[Settlement, bool]]
    )
    foreign: int = 0
    running: int = 0
    lock: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))
    changes: Notifier = field(default_factory=Notifier)
    ended: bool = False

    def waits_for_people(self) -> bool:
        """Whether nothing comes before a person answers; what is queued has no free place."""
        open_calls = [call for call in self.calls.values() if call.entry.state != "queued"]
        return bool(open_calls) and all(call.waits_for_a_person for call in open_calls)

    async def changed(self, version: int, seconds: float) -> None:
        """Waits until it is another version than this, or for so long."""
        if version == self.changes.count:
            with anyio.move_on_after(seconds):
                await self.changes.wait()


# ---- Cells ----


@dataclass(slots=True)
class Cell:
    """One cell, from `exec` to its result.

    Attributes:
        start: What it starts with, until it has started.
        gate: Cancels the hooks and approvers that are asked whether it may start.
        unheard: The caller of the `wait` that drives it was cancelled.
        outcome: How it ended, if nobody has heard of it yet.
        lookups: What it asked about the catalog, as far as it has not been answered.
        stored: Whether the store knows it: then its id has been handed out.
        park: How often it was parked and resumed: the number of the park that is its last one.
        mark: The same as the store keeps it, sealed.
        image: What its snapshot is a difference to.
        build: The build that parked it.
        taken: It was taken out of the store, which still knows it: another process may abort it.
        since: When it was started, or taken up again, by `time.time`.
        due: When its next timer is due, in milliseconds since 1970; 0: there is none.
        due_at: The same by `time.monotonic`, in seconds.
    """

    parent_id: str
    output_left: int
    start: Start | None = None
    gate: anyio.CancelScope | None = None
    tenancy: Tenancy | None = None
    id: str = field(default_factory=lambda: "cm_" + secrets.token_hex(16))
    output: list[JsonValue] = field(default_factory=list[JsonValue])
    ledger: Ledger = field(default_factory=Ledger)
    calls: dict[int, OpenCall] = field(default_factory=dict[int, OpenCall])
    yields: list[int] = field(default_factory=list[int])
    lookups: deque[Request] = field(default_factory=deque[Request])
    inbox: list[Settlement] = field(default_factory=list[Settlement])
    timers: int = 0
    due: float = 0.0
    due_at: float = float("inf")
    unheard: bool = False
    outcome: Completion | Failure | None = None
    stored: bool = False
    park: int = 1
    mark: bytes = b""
    image: bytes = b""
    build: str = ""
    taken: bool = False
    ended: bool = False
    since: float = field(default_factory=time.time)

    def set_timers(self, timers: int, due: float) -> None:
        """Notes the timers of the cell: how many hold it, and when the next one is due, if any."""
        self.timers, self.due, self.due_at = timers, due, float("inf")
        if due:
            # By the wall clock, which is the guest's, and the same on every machine.
            self.due_at = time.monotonic() + due / 1000 - time.time()

    def take_output(self, items: tuple[Output, ...]) -> None:
        """Adds what a step emitted, and takes it off the budget."""
        for item in items:
            self.output_left = max(0, self.output_left - item.size)
            key = "text" if item.type == "text" else "value"
            self.output.append({"type": item.type, key: item.parsed})

    def receive(self, reply: Settlement, *, unknown: bool = False) -> None:
        """A call has been answered."""
        call = self.calls.pop(reply.id, None)
        entry = call.entry if call else self.ledger.find(reply.id)
        if entry is not None:
            entry.state = "unknown" if unknown else "completed" if reply.ok else "failed"
        self.inbox.append(reply)

    def take_replies(self) -> tuple[Settlement, ...]:
        """Everything that has come back since the last time, in order."""
        replies = tuple(self.inbox)
        self.inbox.clear()
        return replies

    def take_yields(self) -> tuple[Settlement, ...]:
        """Answers the yields: the model has said `wait`."""
        answers = tuple(Settlement(number, True, b"null") for number in self.yields)
        self.yields = []
        return answers

    def waits_for_people(self) -> bool:
        """Whether every open call waits for a person."""
        return all(call.waits_for_a_person for call in self.calls.values())

    @property
    def yielded(self) -> bool:
        """Whether the cell waits for nothing but the end of a yield."""
        return bool(self.yields) and not (self.calls or self.lookups or self.timers)

    def pending(self) -> list[JsonValue]:
        """What the cell waits for, for the model."""
        found: list[JsonValue] = [call.to_json() for call in self.calls.values()]
        found.extend(
            {"id": str(request.id), "method": request.method, "state": "queued"}
            for request in islice(self.lookups, MAX_SHOWN)
        )
        found.extend(
            {"id": str(number), "method": "yield", "state": "running"} for number in self.yields
        )
        if self.timers:
            found.append({"id": "timer", "method": "timer", "state": "timer", "due": self.due})
        return found
