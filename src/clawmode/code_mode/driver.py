"""Drives cells from step to step: starts them, accepts batches of requests, parks and resumes.

Also aborts, and the watch on cells that other processes may end.
"""

import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from clawmode.code_mode.bridge import refusal_text
from clawmode.code_mode.cell import GATE, CallGroup, Cell, CellSetup, Ledger
from clawmode.code_mode.replies import Pace, Replies
from clawmode.code_mode.snapshots import other_build
from clawmode.code_mode.stores import End
from clawmode.code_mode.telemetry import Telemetry
from clawmode.exceptions import (
    Aborted,
    DeadlineExceeded,
    RuntimeUnavailable,
    SandboxError,
    SnapshotError,
    SnapshotRefused,
    SnapshotTooLarge,
    StoreUnavailable,
)
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import (
    Completion,
    Failure,
    Limits,
    Outcome,
    Request,
    Resume,
    Suspension,
)

if TYPE_CHECKING:
    from clawmode.code_mode.calls import Calls
    from clawmode.code_mode.config import CodeModeConfig
    from clawmode.code_mode.parking import Parking

logger = logging.getLogger("clawmode")

QUEUED_CALLS = 128
"""Calls of a cell that may be queued, in addition to those that run."""

MARGIN = 0.25
"""A cell is not resumed in the last seconds before the deadline of an `exec` or `wait`."""

CANCEL_SECONDS = 1.0
"""How long cancelled calls of an aborted cell may take to end; far below `ABORT_SECONDS`."""

WATCH = 0.25
"""Seconds between queries whether other processes have aborted cells or calls of this one."""

SWEEP = 30.0
"""The maximum of seconds between sweeps for expired cells, while calls of parked cells run."""

MAX_LEDGERS = 256

NOT_ADMITTED = (
    "The program never ran: {who} of `exec` did not answer before its deadline (`timeoutMs`)."
)
LOOKUPS = ("search", "describe", "api")

UNANSWERED = "The time ran out while the program waited for an answer."


@dataclass(slots=True)
class Driver:
    """Drives the cells of one run.

    One task at a time drives a cell. While it does, the state of the cell is only here; the state
    of a parked cell is only in the store.

    Attributes:
        install: Returns what new cells start with.
        active: The cells that are driven now, and those whose hooks are still running.
        parked: The cells that this object has parked and that have not ended as far as it knows,
            with `due` and `due_at` of each: `due_at` stays right if the wall clock is set.
        ledgers: The ledgers of cells that this object has parked, for results after their end.
            Bounded by `MAX_LEDGERS`.
        watching: True while a task watches the store.
        parks: True if a cell that has to wait is parked. If False, the driver waits for people
            too, and ends the cell at its deadline.
    """

    pool: Pool
    calls: "Calls"
    parking: "Parking"
    config: "CodeModeConfig"
    telemetry: Telemetry
    install: Callable[[], Awaitable[CellSetup]]
    active: dict[str, Cell] = field(default_factory=dict[str, Cell])
    parked: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    ledgers: OrderedDict[str, Ledger] = field(default_factory=OrderedDict[str, Ledger])
    watching: bool = False
    parks: bool = True
    replies: Replies = field(init=False)

    def __post_init__(self) -> None:
        self.replies = Replies(self.calls, self.parking, self.telemetry, self.parks)

    # ---- Starting and resuming ----

    @contextlib.contextmanager
    def admitting(self, cell: Cell, deadline: float, who: str) -> Iterator[None]:
        """Context in which hooks and approvers decide about a start; abort and deadline end it.

        Args:
            cell: The cell.
            deadline: The deadline of its `exec`, by `time.monotonic`.
            who: The hooks or approvers, for the error message.

        Raises:
            Aborted: The cell was aborted meanwhile.
            DeadlineExceeded: There was no decision in time.
        """
        left = self._last(deadline) - time.monotonic()
        with anyio.move_on_after(left) as cell.gate:
            self.active[cell.id] = cell
            try:
                yield
            finally:
                del self.active[cell.id]
        cancelled, cell.gate = cell.gate.cancelled_caught, None
        if cell.ended:
            raise Aborted
        if cancelled:
            raise DeadlineExceeded(NOT_ADMITTED.format(who=who))

    async def start(self, cell: Cell, deadline: float) -> Completion | Failure | None:
        """Starts a cell, after a pending approval. Returns None if it waits and was parked.

        Raises:
            SandboxError: The cell failed to run, and has ended.
        """
        group = self.calls.group(cell)
        cell.move("driven")
        group.cell, cell.tenancy = cell, self.pool.cell()
        return await self._drive(cell, group, deadline)

    async def resume(self, cell: Cell, deadline: float) -> Completion | Failure | None:
        """Resumes a claimed cell once it has a reply. Returns None if it still waits.

        Raises:
            SnapshotError: The cell could not be read; if the store failed, the cell is unchanged.
            SandboxError: The cell failed to run, and has ended.
        """
        group = self.calls.group(cell)
        group.cell, taken = cell, False
        due, due_at = self.parked.get(cell.id, (cell.due, cell.due_at))
        if due == cell.due:
            cell.due_at = due_at
        try:
            # Checked before the cell is taken: a worker that rejects it later would lose it.
            await self.pool.ready()
            if cell.image and cell.image != (self.pool.image or cell.image):
                raise other_build(cell.build)
            if not await self.replies.for_parked(cell, group, self._last(deadline)):
                return None
            async with group.lock:
                frozen = await self.parking.take(cell)
                taken = cell.taken = True
                if group.ended:
                    raise Aborted  # by a task that knew only the parked cell
                cell.move("driven")
                self.calls.hand_over(group, cell)
        except StoreUnavailable as error:
            raise SnapshotError(str(error)) from None
        except (Aborted, SnapshotRefused) as error:
            if not (isinstance(error, SnapshotRefused) and error.kept):
                self.forget(cell.id)
            raise
        finally:
            if not taken:
                with anyio.CancelScope(shield=True):
                    try:
                        await self.parking.release(cell.id)
                    except (StoreUnavailable, Aborted) as error:
                        logger.error("cannot release the program %s: %s", cell.id, error)
                cell.move("parked")
                group.cell = None
                self.calls.forget(group)
        self.telemetry.snapshots["restored"] += 1
        self.telemetry.snapshots["deleted"] += 1
        self.parked.pop(cell.id, None)
        cell.tenancy = self.pool.cell(frozen)
        cell.inbox[:0] = cell.take_yields()
        return await self._drive(cell, group, deadline)

    def leave(self, cell: Cell) -> None:
        """Tells a cell that its `wait` was cancelled: it is parked at its next suspension."""
        cell.unheard = True
        if (group := self.calls.groups.get(cell.id)) is not None:
            group.changes.notify()

    async def abort(self, run_id: str) -> bool:
        """Ends a cell, driven or parked, here or in another process. Returns False if unknown.

        Raises:
            StoreUnavailable: The store cannot be read.
            AbortUnconfirmed: The process that runs the cell has not confirmed its end in time.
        """
        cell = self.active.get(run_id)
        if cell is not None:
            await self._abort_active(cell)
            return True
        ended = await self.parking.abort(run_id)
        if ended:
            self.telemetry.snapshots["deleted"] += 1
            self.forget(run_id)
        return ended

    async def abort_all(self) -> None:
        """Ends all cells that are driven here."""
        for cell in list(self.active.values()):
            await self._abort_active(cell)

    async def _abort_active(self, cell: Cell) -> None:
        cell.move("ended")
        if cell.gate is not None:
            cell.gate.cancel()
            return
        assert cell.tenancy is not None
        self.calls.end(cell.id)
        await self.pool.abort(cell.tenancy)

    def forget(self, run_id: str) -> None:
        """Drops a parked cell that has ended, and cancels its calls."""
        self.parked.pop(run_id, None)
        self.calls.end(run_id)

    # ---- Driving ----

    async def _drive(
        self, cell: Cell, group: CallGroup, deadline: float
    ) -> Completion | Failure | None:
        assert cell.tenancy is not None
        self.active[cell.id] = cell
        if cell.taken:
            self._watch()
        end: End = "aborted"
        try:
            # Compiling machine code does not count towards the deadline: it happens once per
            # machine.
            began = time.monotonic()
            await self.pool.prepare(cell.tenancy, cell.start)
            deadline += time.monotonic() - began
            outcome: Outcome | None = cell.outcome or Suspension()
            if cell.outcome is None and (cell.start is None or not cell.calls):
                outcome = await self._step(cell, deadline)
            while isinstance(outcome, Suspension):
                await self._accept(cell, group, outcome)
                if not await self.replies.for_driven(cell, group, self._last(deadline)):
                    if not self.parks:
                        raise DeadlineExceeded(UNANSWERED)
                    outcome = None
                    break
                outcome = await self._step(cell, deadline)
            if outcome is None:
                await self._park(cell, group)
                return None
            if cell.outcome is None:
                outcome = cell.outcome = self._concluded(cell, outcome)
            end = "finished"
            kept = cell.unheard and await self._keep(cell, group)
            return None if kept else outcome
        except SandboxError as error:
            end = "aborted" if cell.ended or isinstance(error, Aborted) else "finished"
            if cell.ended and not isinstance(error, Aborted):
                raise Aborted from None
            if isinstance(error, DeadlineExceeded):
                raise DeadlineExceeded(self._with_limit(str(error))) from None
            raise
        finally:
            del self.active[cell.id]
            self.pool.drop(cell.tenancy)
            if cell.stage != "parked":
                with anyio.CancelScope(shield=True):
                    await self._end(cell, end)

    async def _step(self, cell: Cell, deadline: float) -> Outcome | None:
        """Starts the cell, or resumes it with its inbox. None if it got no worker in time."""
        assert cell.tenancy is not None
        replies = cell.take_replies()
        if cell.start is None:
            # The guest's clock may lag behind: its timer must see a time that is not too early.
            now = cell.due if cell.due_at <= time.monotonic() else 0.0
            resume = Resume(replies, None, self._limits(), cell.output_left, now=now)
            try:
                return await self.pool.step(cell.tenancy, resume, deadline)
            except DeadlineExceeded:
                if cell.tenancy.frozen is None:
                    raise
                # The step did not run, and the cell is unchanged.
                cell.inbox[:0] = replies
                return None
        if cell.admission is not None and not cell.admission.ok:
            return Failure("invalid_input", refusal_text(cell.admission))
        cell.admission = None
        setup = await self.install()
        start = replace(
            cell.start,
            limits=self._limits(),
            output_left=cell.output_left,
            setup=setup.key,
        )
        cell.start = None
        return await self.pool.step(cell.tenancy, start, deadline, setup.data)

    def _concluded(self, cell: Cell, outcome: Completion | Failure) -> Completion | Failure:
        cell.take_output(outcome.output)
        if isinstance(outcome, Failure):
            self.calls.refuse_batch(cell, outcome.requests)
            if outcome.code == "timeout":
                return replace(outcome, error=self._with_limit(outcome.error))
        return outcome

    async def _keep(self, cell: Cell, group: CallGroup) -> bool:
        """Parks the outcome of a cell that has no caller. Returns False if that failed."""
        self._end_calls(cell)
        cell.calls.clear()
        cell.inbox.clear()
        try:
            await self._park(cell, group)
        except Aborted:
            raise
        except SandboxError as error:
            logger.error("cannot store the result of the program %s: %s", cell.id, error)
            return False
        return True

    async def _end(self, cell: Cell, end: End) -> None:
        """Ends a cell: its calls are cancelled, and the store records the end."""
        cell.move("ended")
        self.ledgers.pop(cell.id, None)
        self._end_calls(cell)
        if cell.stored:
            try:
                if end == "aborted":
                    await self.parking.give_up(cell.id)
                else:
                    await self.parking.end(cell.id, end)
            except StoreUnavailable as error:
                logger.error("cannot store the end of the program %s: %s", cell.id, error)

    def _end_calls(self, cell: Cell) -> None:
        self.calls.end(cell.id)
        for call in cell.calls.values():
            if call.owner:
                call.entry.state = "unknown"

    # ---- Batches ----

    async def _accept(self, cell: Cell, group: CallGroup, idle: Suspension) -> None:
        """Accepts a batch of requests: queues lookups, and starts calls.

        Raises:
            SnapshotTooLarge: The cell could not be parked; no call of the batch was started.
        """
        cell.take_output(idle.output)
        cell.set_timers(idle.timers, idle.due)
        self._check_ids(cell, idle.requests)
        if idle.requests and not self.calls.bridge.catalog.names_indexed:
            await anyio.to_thread.run_sync(self.calls.bridge.catalog.index_names)
        try:
            await self._check_parking(cell, idle)
            if cell.ended:
                raise Aborted
        except (Aborted, SnapshotTooLarge):
            self.calls.refuse_batch(cell, idle.requests)
            raise
        pace = Pace()
        for request in idle.requests:
            if request.method == "yield":
                cell.yields.append(request.id)
            elif request.method in LOOKUPS and self.calls.bridge.absent_server(request) is None:
                cell.lookups.append(request)
            else:
                self.calls.open(cell, request)
                await pace.keep()
        if cell.ended:
            raise Aborted
        self.calls.start(group)

    def _check_ids(self, cell: Cell, requests: tuple[Request, ...]) -> None:
        """Rejects repeated ids: only a compromised worker sends them, to misdirect replies."""
        ids = [request.id for request in requests]
        if len(set(ids)) < len(ids) or any(
            number <= GATE or number in cell.calls for number in ids
        ):
            raise RuntimeUnavailable("The worker sent requests that no program makes.")

    async def _check_parking(self, cell: Cell, idle: Suspension) -> None:
        """Checks that the cell can be parked, before any call of a batch takes effect."""
        if not self.parks:
            return
        assert cell.tenancy is not None
        methods = {request.method for request in idle.requests}
        if "yield" in methods:
            await self.parking.check_room()
        # The bound is cheap. Only a cell above it is frozen, to find its true size.
        over = idle.frozen_at_most > self.config.max_snapshot_bytes
        if over and methods & {"call", "namespace"}:
            self.parking.check_size(await self.pool.freeze(cell.tenancy))

    # ---- Parking ----

    async def _park(self, cell: Cell, group: CallGroup) -> None:
        assert cell.tenancy is not None
        has_memory = cell.start is None and cell.outcome is None
        frozen = await self.pool.freeze(cell.tenancy) if has_memory else None
        async with group.lock:
            if not cell.ended:
                await self.replies.gather(cell)
                await self.parking.park(cell, frozen)
            if cell.ended:
                raise Aborted
            cell.move("parked")
            group.cell = None
        if cell.unheard:
            cell.output = []  # the store has it
        self.telemetry.snapshots["created"] += 1
        self.parked[cell.id] = (cell.due, cell.due_at)
        self.ledgers[cell.id] = cell.ledger
        if len(self.ledgers) > MAX_LEDGERS:
            self.ledgers.popitem(last=False)
        self.calls.forget(group)
        if group.calls:
            self._watch()

    # ---- Aborts by other processes ----

    def _watch(self) -> None:
        if not self.watching and self.calls.tasks is not None:
            self.watching = True
            self.calls.tasks.start_soon(self._watch_store)

    async def _watch_store(self) -> None:
        """Ends cells and calls of this process that have expired or were aborted elsewhere."""
        every = min(self.config.snapshot_ttl_seconds / 4, SWEEP)
        sweep = time.monotonic() + every
        while watched := self._watched():
            await anyio.sleep(WATCH)
            try:
                if time.monotonic() >= sweep:
                    sweep = time.monotonic() + every
                    await self.parking.store.room(1)  # drops what has expired
                for run_id in await self.parking.store.gone(watched):
                    await self._end_here(run_id)
            except StoreUnavailable as error:
                logger.warning("cannot read which programs were aborted: %s", error)
        self.watching = False

    def _watched(self) -> list[str]:
        """Returns cells that other processes can end: resumed ones, and parked ones with calls."""
        parked = [run_id for run_id, group in self.calls.groups.items() if group.cell is None]
        return [*parked, *(cell.id for cell in self.active.values() if cell.taken)]

    async def _end_here(self, run_id: str) -> None:
        cell, group = self.active.get(run_id), self.calls.groups.get(run_id)
        if cell is not None and cell.taken:
            await self._abort_active(cell)
        elif group is not None and group.cell is None:
            self.forget(run_id)
            # The other process returns from its abort as soon as this one gives up the cell, so
            # the cancelled calls have to end before. A tool may ignore its cancellation.
            with anyio.move_on_after(CANCEL_SECONDS):
                while group.running:
                    await group.changes.wait()
            await self.parking.give_up(run_id)

    # ---- Small parts ----

    def _last(self, deadline: float) -> float:
        """Returns the time after which a cell is not resumed, because too little is left."""
        return deadline - min(MARGIN, self.config.timeout_ms / 5000)

    def _with_limit(self, error: str) -> str:
        return f"{error} The limit is {self.config.timeout_ms / 1000:g} s."

    def _limits(self) -> Limits:
        config = self.config
        return Limits(
            memory_bytes=config.memory_limit_bytes,
            max_calls=config.max_pending_tool_calls + QUEUED_CALLS,
            snapshot_bytes=config.max_snapshot_bytes,
        )
