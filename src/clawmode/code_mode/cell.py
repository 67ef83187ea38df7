"""The state of a cell: its stage, calls, their ledger, replies, output, timers and outcome.

`driver` alone moves a cell from stage to stage. `calls` makes its calls and reports their replies
to `Cell.receive`, and `parking` writes the cell to a store and reads it back.
"""

import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio

from clawmode.code_mode.ledger import Entry, Ledger, add_inputs
from clawmode.sandbox.images import MAX_IMAGES
from clawmode.sandbox.protocol import Completion, Failure, Output, Request, Settlement, Start
from clawmode.tasks import Notifier
from clawmode.tools.questions import Question
from clawmode.tools.tool import Tool
from clawmode.types import CallState, JsonObject, JsonText, JsonValue, dataclass

if TYPE_CHECKING:
    from clawmode.code_mode.batches import Turn
    from clawmode.code_mode.stores import StoredCall
    from clawmode.sandbox.workers import Tenancy

MAX_SHOWN = 10
"""The maximum of pending lookups in a result; a cell may have a thousand."""

SAME_CLOCK = 250.0
"""Clocks of machines that differ by at most so many milliseconds count as the same."""

GATE = 0
"""The id, in stores and results, of the question whether the cell may start. No call has it."""

Stage: TypeAlias = Literal["new", "claimed", "driven", "parked", "ended"]
"""Where a cell is. `claimed`: a `wait` of this process has reserved the cell, and the store still
has its state. `driven`: its state is here. `parked`: its state is in the store, for everybody."""

NEXT_STAGES: dict[Stage, tuple[Stage, ...]] = {
    "new": ("driven", "ended"),
    "claimed": ("driven", "parked", "ended"),
    "driven": ("parked", "ended"),
    "parked": ("ended",),  # a `wait` reads the cell from the store as a new object
    "ended": ("ended",),  # the task that drives an aborted cell ends the cell too
}


# ---- Calls ----


def gate_input(start: Start) -> JsonObject:
    """Returns the arguments of a cell, as hooks see them."""
    return {"code": start.source, "command": start.source, "language": start.language}


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
        stored: The state of the call in the store; None if the store does not have it.
        repeated: True if a process that died may have made the call, with its effect. The store
            says "running" of such a call, whatever it waits for, so that every process knows.
    """

    request: Request
    entry: Entry
    tool: Tool | None
    input: JsonObject
    owner: str = ""
    question: Question | None = None
    asking: int = 0
    server: str = ""
    stored: CallState | None = None
    repeated: bool = False
    scope: anyio.CancelScope | None = None
    id: int = field(init=False)

    def __post_init__(self) -> None:
        self.id = self.request.id

    @property
    def is_gate(self) -> bool:
        return self.id == GATE

    @property
    def may_change(self) -> bool:
        """True unless the call is known to only read."""
        return not self.is_gate and (self.tool is None or self.tool.effect != "read")

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
        asked: The started calls that wait for approval, and then for their place.
        ahead: The started calls that were asked about ahead of their turn.
        starting: The number of tasks for calls that have not begun yet.
        held: True while no queued call may start, because the cell is being stored.
        lock: Held while the cell moves between this process and the store.
        changes: Wakes the task that drives the cell.
        turn: Lets the tasks of calls drive the cell on while the task that drives it waits.
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
    asked: set[int] = field(default_factory=set[int])
    ahead: set[int] = field(default_factory=set[int])
    starting: int = 0
    held: bool = False
    lock: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))
    changes: Notifier = field(default_factory=Notifier)
    turn: "Turn | None" = None
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

    def call_id(self, call: OpenCall) -> str:
        """Returns the id of a call that is unique among the calls of all programs."""
        return f"{self.run_id}:{call.id}"

    def inputs(self) -> dict[str, JsonValue]:
        """Returns the shortened inputs of the calls that are being made, by their ids."""
        made = (call for call in self.calls.values() if call.entry.state != "queued")
        return {self.call_id(call): call.entry.input for call in made}

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
        attachments: Images for whoever reads the next result, as `{mimeType, data}`.
        notes: Remarks of the host for whoever reads the next result.
        told: Limits the rate of `notify`: it moves ahead with each message, and never beyond now.
        waiting: The number of calls that the host has not got yet.
        lookups: Requests to the catalog that have no reply yet.
        inbox: Replies that the guest has not received yet.
        shift: How far the guest's clock is ahead of this machine's, in milliseconds: the guest's
            time goes on evenly, also on machines whose clocks differ.
        due: The time of the next timer by the guest's clock, in milliseconds since 1970; 0 if there
            is none.
        due_at: The same time by `time.monotonic`, in seconds.
        unheard: True if the caller of the `wait` that drives the cell was cancelled.
        outcome: How the cell ended, if no caller has received that yet.
        stored: True if the cell was ever parked, so that a caller may know its id.
        park: The number of the last park, counted up by every park and every resume.
        mark: The same number, sealed, as the store keeps it.
        image: The hash of the memory image that the snapshot is a difference to.
        build: The version of clawmode that parked the cell.
        uses_state: True if the program names `load` or `store`.
        taken: True if the cell was taken out of the store, where other processes can abort it.
        fence: The number of the claim under which this process has the cell; 0 if it has none.
        have: The calls whose replies are here and, perhaps, still in the store.
        unsure: A write to the store that may or may not have happened.
        lost: True if another process has taken the cell over, and decides how it ends.
        ordered: True if somebody has asked to abort the cell.
        concluded: True if the store knows how the cell ended.
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
    attachments: list[JsonObject] = field(default_factory=list[JsonObject])
    notes: list[str] = field(default_factory=list[str])
    told: float = 0.0
    ledger: Ledger = field(default_factory=Ledger)
    calls: dict[int, OpenCall] = field(default_factory=dict[int, OpenCall])
    waiting: int = 0
    yields: list[int] = field(default_factory=list[int])
    lookups: deque[Request] = field(default_factory=deque[Request])
    inbox: list[Settlement] = field(default_factory=list[Settlement])
    timers: int = 0
    shift: float = 0.0
    due: float = 0.0
    due_at: float = float("inf")
    unheard: bool = False
    outcome: Completion | Failure | None = None
    stored: bool = False
    park: int = 1
    mark: bytes = b""
    image: bytes = b""
    build: str = ""
    uses_state: bool = False
    taken: bool = False
    fence: int = 0
    have: set[int] = field(default_factory=set[int])
    unsure: Callable[[], Awaitable[None]] | None = None
    lost: bool = False
    ordered: bool = False
    concluded: bool = False
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
            self.due_at = time.monotonic() + (due - self.clock) / 1000

    @property
    def clock(self) -> float:
        """The time that the guest sees, in milliseconds since 1970."""
        return time.time() * 1000 + self.shift

    def set_clock(self, clock: float) -> None:
        """Lets the guest's time go on from `clock`, whatever the clock of this machine says."""
        shift = clock - time.time() * 1000
        # Clocks that agree stay one clock: how long the store took would add up.
        self.shift = shift if abs(shift) > SAME_CLOCK else 0.0
        self.set_timers(self.timers, self.due)

    def take_output(self, items: tuple[Output, ...]) -> None:
        """Adds the output of a step, and subtracts its size from the budget."""
        for item in items:
            if item.type == "image":
                if len(self.attachments) < MAX_IMAGES and isinstance(item.parsed, dict):
                    self.attachments.append(item.parsed)
                continue
            self.output_left = max(0, self.output_left - item.size)
            key = "text" if item.type == "text" else "value"
            self.output.append({"type": item.type, key: item.parsed})

    def forget_output(self) -> None:
        """Drops output that the store has, and that a later result shows."""
        self.output = []
        self.attachments = []

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
        rows = add_inputs((call.to_json(), call.entry.input) for call in self.calls.values())
        if self.waiting:
            row: JsonObject = {"id": "queue", "method": "call", "state": "queued"}
            rows.append({**row, "count": self.waiting})
        rows.extend(
            {"id": str(request.id), "method": request.method, "state": "queued"}
            for request in islice(self.lookups, MAX_SHOWN)
        )
        rows.extend(
            {"id": str(number), "method": "yield", "state": "running"} for number in self.yields
        )
        if self.timers:
            rows.append(
                {"id": "timer", "method": "timer", "state": "timer", "due": self.due - self.shift}
            )
        return rows
