"""Between two steps of a cell: its batch of requests is accepted, and a reply lets it go on."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import TYPE_CHECKING

import anyio

from clawmode.code_mode.bridge import notice_of
from clawmode.code_mode.cell import GATE, CallGroup, Cell
from clawmode.code_mode.checkpoints import Checkpoints
from clawmode.exceptions import Aborted, RuntimeUnavailable, SnapshotTooLarge
from clawmode.sandbox.protocol import Outcome, Request, Settlement, Suspension
from clawmode.tasks import Pace
from clawmode.tools.executor import CallEvent
from clawmode.types import dataclass

if TYPE_CHECKING:
    from clawmode.code_mode.calls import Calls
    from clawmode.code_mode.parking import Parking
    from clawmode.sandbox.pool import Pool

LOOKUPS = ("search", "describe", "api")

NOTICES = 20
"""Messages of `notify` that watchers get in a second."""


@dataclass(slots=True)
class Batches:
    """Accepts what the cells of one run ask for.

    Attributes:
        watch: Begins to watch whether other processes abort cells that are stored.
        parks: True if a cell that has to wait is parked.
        checkpoints: Stores cells before their calls take effect; None if only parked cells outlive
            the process.
    """

    pool: "Pool"
    calls: "Calls"
    parking: "Parking"
    watch: Callable[[], None]
    parks: bool = True
    checkpoints: Checkpoints | None = field(init=False)

    def __post_init__(self) -> None:
        stores = Checkpoints(self.pool, self.calls, self.parking, self.watch)
        self.checkpoints = stores if self.parking.effects else None

    async def accept(self, cell: Cell, idle: Suspension) -> None:
        """Accepts a batch of requests: queues lookups and calls, and starts none of them.

        No call of the batch can take effect before the cell is stored, if it has to be.

        Raises:
            SnapshotTooLarge: The cell could not be parked; no call of the batch will be made.
        """
        cell.take_output(idle.output)
        cell.set_timers(idle.timers, idle.due)
        cell.waiting = idle.waiting
        if not idle.requests:
            return
        _check_ids(cell, idle.requests)
        if not self.calls.bridge.catalog.names_indexed:
            await anyio.to_thread.run_sync(self.calls.bridge.catalog.index_names)
        try:
            if self.parks:
                await self._check_parking(cell, idle)
            if cell.ended:
                raise Aborted
        except (Aborted, SnapshotTooLarge):
            self.calls.refuse_batch(cell, idle.requests)
            raise
        group = self.calls.group(cell)
        group.held = self.checkpoints is not None
        try:
            await self._open(cell, idle.requests)
            if self.checkpoints is not None:
                await self.checkpoints.make(cell, group)
        finally:
            group.held = False
        if cell.ended:
            raise Aborted

    async def _open(self, cell: Cell, requests: tuple[Request, ...]) -> None:
        pace = Pace()
        for request in requests:
            if request.method == "yield":
                cell.yields.append(request.id)
            elif request.method == "notify":
                self.notify(cell, request)
                cell.inbox.append(Settlement(request.id, True, b"null"))
            elif request.method in LOOKUPS and self.calls.bridge.absent_server(request) is None:
                cell.lookups.append(request)
            else:
                self.calls.open(cell, request)
                await pace.keep()

    async def _check_parking(self, cell: Cell, idle: Suspension) -> None:
        """Checks that the cell can be parked, before any call of a batch takes effect."""
        assert cell.tenancy is not None
        methods = [request.method for request in idle.requests]
        if "yield" in methods:
            await self.parking.check_room()
        # The bound is cheap. Only a cell above it is compressed, to find its true size.
        over = idle.frozen_at_most > self.calls.config.max_snapshot_bytes
        if over and ("call" in methods or "namespace" in methods):
            self.parking.check_size(await self.pool.copy(cell.tenancy))

    def notify(self, cell: Cell, request: Request) -> None:
        """Tells watchers what a program says with `notify`, at most `NOTICES` times a second."""
        told = max(cell.told, time.monotonic() - 1) + 1 / NOTICES
        if told <= time.monotonic():
            cell.told = told
            ids = (f"{cell.id}:notify", "notify", cell.parent_id)
            self.calls.executor.emit(CallEvent("update", *ids, update=notice_of(request)))


def _check_ids(cell: Cell, requests: tuple[Request, ...]) -> None:
    """Rejects repeated ids: only a compromised worker sends them, to misdirect replies."""
    ids = {request.id for request in requests}
    if len(ids) < len(requests) or min(ids) <= GATE or not ids.isdisjoint(cell.calls):
        raise RuntimeUnavailable("The worker sent requests that no program makes.")


@dataclass(slots=True)
class Turn:
    """Lets the task that made a call drive the cell on while the cell's own task waits.

    A program that makes one call after the other would otherwise change tasks twice for each call.
    The task of the cell stays its owner: it offers the turn while it waits, and parks or ends the
    cell as if there were no turn, except that it waits for the end of a step.

    Attributes:
        last: The time after which the cell is not resumed.
        step: Resumes the cell with the replies in its inbox.
        accept: Accepts the requests of a step.
        scope: Cancels the task that runs a step now; None if no step runs.
        awaited: True if the cell's own task waits for the end of the step.
        outcome: The outcome of a step that was not a suspension; None also if it got no worker.
        error: The exception of a step, for the task of the cell.
        over: True if there is an outcome or an exception.
    """

    cell: Cell
    group: CallGroup
    last: float
    step: Callable[[], Awaitable[Outcome | None]]
    accept: Callable[[Suspension], Awaitable[None]]
    scope: anyio.CancelScope | None = None
    awaited: bool = False
    outcome: Outcome | None = None
    error: Exception | None = field(default=None)
    over: bool = False

    async def go_on(self, scope: anyio.CancelScope) -> None:
        """Resumes the cell if it has replies, until calls are queued or its own task is needed.

        Args:
            scope: Cancels the task that calls this.
        """
        cell, group = self.cell, self.group
        while self._may_go_on():
            self.scope = scope
            try:
                outcome = await self.step()
                if isinstance(outcome, Suspension):
                    await self.accept(outcome)
                else:
                    self.outcome, self.over = outcome, True
            except Exception as error:
                self.error, self.over = error, True
            except BaseException:
                self.error, self.over = Aborted(), True
                raise
            finally:
                self.scope = None
                if self.over or self.awaited:
                    group.changes.notify()
            if group.queue:
                if cell.inbox or cell.lookups or cell.yields or cell.due:
                    group.changes.notify()
                return
        group.changes.notify()

    def _may_go_on(self) -> bool:
        cell, group = self.cell, self.group
        return bool(
            cell.inbox
            and group.turn is self
            and self.scope is None
            and not self.over
            and cell.stage == "driven"
            and not (cell.unheard or cell.lookups or cell.yields or group.lock.locked())
            and not (cell.calls and any(call.owner for call in cell.calls.values()))
            and time.monotonic() < self.last
        )

    async def ended(self) -> None:
        """Waits until no step runs in the task of a call."""
        self.awaited = True
        while self.scope is not None:
            await self.group.changes.wait()
        self.awaited = False

    def take(self) -> Outcome | None:
        """Returns the outcome for the task of the cell, or raises the exception."""
        if self.error is not None:
            raise self.error
        return self.outcome
