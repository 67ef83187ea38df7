"""The state of a cell: its stage, calls, their ledger, replies, output, timers and outcome.

`driver` alone moves a cell from stage to stage. `calls` makes its calls and reports their replies
to `Cell.receive`, and `parking` writes the cell to a store and reads it back.
"""

import secrets
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio

from clawmode.sandbox.protocol import Completion, Failure, Output, Request, Settlement, Start
from clawmode.tasks import Notifier
from clawmode.tools.approvals import Question
from clawmode.tools.tool import Effect, Tool
from clawmode.types import OPEN_STATES, CallState, JsonObject, JsonText, JsonValue

if TYPE_CHECKING:
    from clawmode.code_mode.stores import StoredCall
    from clawmode.sandbox.pool import Tenancy

MAX_LEDGER = 100
MAX_SHOWN = 10
"""The maximum of pending lookups in a result; a cell may have a thousand."""

GATE = 0
"""The id, in stores and results, of the question whether the cell may start. No call has it."""

Stage: TypeAlias = Literal["new", "claimed", "driven", "parked", "ended"]
"""Where a cell is. `claimed`: a `wait` of this process has reserved the cell, and the store still
has its state. `driven`: its state is here. `parked`: its state is in the store, for everybody."""

NEXT_STAGES: dict[Stage, tuple[Stage, ...]] = {
    "new": ("driven", "ended"),
    "claimed": ("driven", "parked", "ended"),
    "driven": ("parked", "ended"),
    "parked": (),  # a `wait` reads the cell from the store as a new object
    "ended": ("ended",),  # the task that drives an aborted cell ends the cell too
}


# ---- The ledger ----


@dataclass(slots=True)
class Entry:
    """The state of one call in the ledger."""

    id: int
    tool_id: str
    effect: Effect | None
    state: CallState = "queued"

    def to_json(self) -> JsonObject:
        """Returns the row of `calls` in a failed result."""
        row: JsonObject = {"id": str(self.id), "toolId": self.tool_id, "state": self.state}
        return row | {"effect": self.effect} if self.effect is not None else row


@dataclass(slots=True)
class Ledger:
    """The calls of a cell in order of their start: a failed result shows what was done already.

    Beyond `MAX_LEDGER` entries, the oldest calls that have ended are only counted.
    """

    entries: list[Entry] = field(default_factory=list[Entry])
    omitted: Counter[str] = field(default_factory=Counter[str])

    def add(self, call_id: int, tool: Tool, state: CallState = "queued") -> Entry:
        """Adds the entry of a new call, and returns it."""
        return self.note(Entry(call_id, tool.id, tool.effect, state))

    def note(self, entry: Entry) -> Entry:
        """Adds an entry, and drops the oldest one that has ended if there are too many."""
        self.entries.append(entry)
        if len(self.entries) > MAX_LEDGER:
            for position, old in enumerate(self.entries):
                if old.state not in OPEN_STATES:
                    self.omitted[old.state] += 1
                    del self.entries[position]
                    break
        return entry

    def find(self, call_id: int) -> Entry | None:
        """Returns the entry of a call; None if it was dropped."""
        return next((entry for entry in self.entries if entry.id == call_id), None)


# ---- Calls ----


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply in the inbox of a cell; `unknown` if the call may or may not have taken effect."""

    settled: Settlement
    unknown: bool = False


@dataclass(slots=True)
class OpenCall:
    """A nested call that has no reply yet.

    Attributes:
        tool: The tool; None if another process makes the call, or the call waits for `server`.
        owner: The owner in the other process that makes the call; empty for our own calls.
        question: The question whether the cell may start, if that is not a call.
        asking: The number of answers by people that the running tool waits for.
        server: The MCP server whose tools are not known yet.
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
        return self.request.id

    @property
    def is_gate(self) -> bool:
        return self.request.id == GATE

    @property
    def waits_for_a_person(self) -> bool:
        """True if a person must approve the call, or answer a question of its tool."""
        return self.entry.state == "approval" or self.asking > 0

    def to_json(self) -> JsonObject:
        """Returns the row of `pendingToolCalls` in a waiting result."""
        return {
            "id": str(self.id),
            "method": "exec" if self.is_gate else self.request.method,
            "toolId": self.entry.tool_id,
            "state": self.entry.state,
        }


@dataclass(slots=True)
class CallGroup:
    """The calls of one cell that this process makes, wherever the cell is meanwhile.

    `Calls` writes it, except `cell`, which is the driver's.

    Attributes:
        cell: The cell while a task of this process drives it or waits for it; else None.
        unsaved: Replies that could not be stored, with True if the outcome of the call is unknown.
        foreign: The number of calls of the cell that other processes make.
        running: The number of calls that have been started.
        lock: Held while the cell moves between this process and the store.
        changes: Wakes the task that drives the cell.
    """

    run_id: str
    parent_id: str
    cell: "Cell | None" = None
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

    @property
    def driven(self) -> "Cell | None":
        """The cell if its state is in this process; None if replies have to go to the store."""
        cell = self.cell
        return cell if cell is not None and cell.stage == "driven" else None

    def waits_for_people(self) -> bool:
        """True if all running calls wait for people. Queued calls wait for a running one."""
        open_calls = [call for call in self.calls.values() if call.entry.state != "queued"]
        return bool(open_calls) and all(call.waits_for_a_person for call in open_calls)

    async def changed(self, version: int, seconds: float) -> None:
        """Waits until `changes.count` differs from `version`, or for `seconds`."""
        if version == self.changes.count:
            with anyio.move_on_after(seconds):
                await self.changes.wait()


# ---- Cells ----


@dataclass(frozen=True, slots=True)
class CellSetup:
    """The catalog and namespaces that cells start with, as JSON, and the hash of it."""

    key: bytes = b""
    data: JsonText = b""


@dataclass(slots=True)
class Cell:
    """One cell, from `exec` to its result.

    Attributes:
        parent_id: The model's id of the `exec` call.
        output_left: Bytes that the cell may still emit.
        stage: Where the cell is; `move` changes it.
        start: The message that starts the cell; None once it has started.
        gate: Cancels the hooks and approvers that decide whether the cell may start.
        admission: The decision of the person who was asked whether the cell may start.
        tenancy: The place of the cell in the pool while it is driven.
        lookups: Requests to the catalog that have no reply yet.
        inbox: Replies that the guest has not received yet.
        due: The time of the next timer, in milliseconds since 1970; 0 if there is none.
        due_at: The same time by `time.monotonic`, in seconds.
        unheard: True if the caller of the `wait` that drives the cell was cancelled.
        outcome: How the cell ended, if no caller has received that yet.
        stored: True if the cell was ever parked, so that a caller may know its id.
        park: The number of the last park, counted up by every park and every resume.
        mark: The same number, sealed, as the store keeps it.
        image: The hash of the memory image that the snapshot is a difference to.
        build: The version of clawmode that parked the cell.
        taken: True if the cell was taken out of the store, where other processes can abort it.
        since: When the cell was started or resumed, by `time.time`.
    """

    parent_id: str
    output_left: int
    start: Start | None = None
    stage: Stage = "new"
    gate: anyio.CancelScope | None = None
    admission: Settlement | None = None
    tenancy: "Tenancy | None" = None
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
    since: float = field(default_factory=time.time)

    def move(self, stage: Stage) -> None:
        """Moves the cell to another stage; only the driver calls it."""
        allowed = NEXT_STAGES[self.stage]
        assert stage in allowed, (
            f"illegal transition of the cell {self.id}: from {self.stage!r} to {stage!r}, "
            f"expected one of {allowed}"
        )
        self.stage = stage

    @property
    def ended(self) -> bool:
        return self.stage == "ended"

    def set_timers(self, timers: int, due: float) -> None:
        """Sets the number of pending timers, and the time of the next one (0 if there is none)."""
        self.timers, self.due, self.due_at = timers, due, float("inf")
        if due:
            # `due` is by the wall clock: the guest uses it, and other machines have the same.
            self.due_at = time.monotonic() + due / 1000 - time.time()

    def take_output(self, items: tuple[Output, ...]) -> None:
        """Adds the output of a step, and subtracts its size from the budget."""
        for item in items:
            self.output_left = max(0, self.output_left - item.size)
            key = "text" if item.type == "text" else "value"
            self.output.append({"type": item.type, key: item.parsed})

    def receive(self, reply: Settlement, *, unknown: bool = False) -> None:
        """Puts the reply to a call into the inbox, and closes the call.

        The answer to the question whether the cell may start is not for the guest.
        """
        call = self.calls.pop(reply.id, None)
        entry = call.entry if call else self.ledger.find(reply.id)
        if entry is not None:
            entry.state = "unknown" if unknown else "completed" if reply.ok else "failed"
        if reply.id == GATE:
            self.admission = reply
        else:
            self.inbox.append(reply)

    def refresh_calls(self, stored: Mapping[int, "StoredCall"]) -> None:
        """Updates the calls of a parked cell to their state in the store."""
        self.calls = {number: call for number, call in self.calls.items() if number in stored}
        for number, call in self.calls.items():
            if call.owner:
                call.owner, call.entry.state = stored[number].owner, stored[number].state

    @property
    def has_replies(self) -> bool:
        return bool(self.inbox) or self.admission is not None

    def take_replies(self) -> tuple[Settlement, ...]:
        """Empties the inbox, and returns its replies in order."""
        replies = tuple(self.inbox)
        self.inbox.clear()
        return replies

    def take_yields(self) -> tuple[Settlement, ...]:
        """Returns replies to all pending yields, which a `wait` ends."""
        answers = tuple(Settlement(number, True, b"null") for number in self.yields)
        self.yields = []
        return answers

    def waits_for_people(self) -> bool:
        """True if every open call waits for a person."""
        return all(call.waits_for_a_person for call in self.calls.values())

    @property
    def yielded(self) -> bool:
        """True if the cell waits for nothing but the end of a yield."""
        return bool(self.yields) and not (self.calls or self.lookups or self.timers)

    def pending(self) -> list[JsonValue]:
        """Returns the `pendingToolCalls` of a waiting result."""
        rows: list[JsonValue] = [call.to_json() for call in self.calls.values()]
        rows.extend(
            {"id": str(request.id), "method": request.method, "state": "queued"}
            for request in islice(self.lookups, MAX_SHOWN)
        )
        rows.extend(
            {"id": str(number), "method": "yield", "state": "running"} for number in self.yields
        )
        if self.timers:
            rows.append({"id": "timer", "method": "timer", "state": "timer", "due": self.due})
        return rows
