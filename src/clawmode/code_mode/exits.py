"""How cells leave the driver: parked, ended or aborted, by this process or by another."""

import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import anyio

from clawmode.code_mode.cell import CallGroup, Cell
from clawmode.code_mode.ledger import Ledger
from clawmode.code_mode.share import NO_FENCE
from clawmode.code_mode.stores import End, Refusal
from clawmode.code_mode.telemetry import Telemetry
from clawmode.exceptions import (
    Aborted,
    SandboxError,
    SnapshotError,
    SnapshotRefused,
    StoreUnavailable,
)
from clawmode.types import dataclass

if TYPE_CHECKING:
    from clawmode.code_mode.calls import Calls
    from clawmode.code_mode.config import CodeModeConfig
    from clawmode.code_mode.parking import Parking
    from clawmode.code_mode.replies import Replies
    from clawmode.sandbox.pool import Pool

logger = logging.getLogger("clawmode")

Release: TypeAlias = Callable[[], Awaitable[None]]

CANCEL_SECONDS = 1.0
"""How long cancelled calls of an aborted cell may take to end; far below `ABORT_SECONDS`."""

WATCH = 0.25
"""Seconds between queries whether other processes have aborted cells or calls of this one."""

SWEEP = 30.0
"""The maximum of seconds between sweeps for expired cells, while calls of parked cells run."""

RECORD_AGAIN = 1.0
"""Seconds between attempts to write what the store does not know yet."""

MAX_LEDGERS = 256

MAX_HELD = 32
"""The most cells of a run that this process holds while the store is unavailable."""

UNREAD = "{} The program is unchanged: wait for it once more."
HELD = (
    "{} Until then, the program is kept only in this process, which stores it as soon as it can: "
    "wait for the program here."
)


@dataclass(slots=True)
class Exits:
    """Parks and ends the cells of one run, and watches what other processes end.

    Attributes:
        active: The cells that are driven now, and those whose hooks are still running.
        parked: The cells that this object has parked and that have not ended as far as it knows,
            with how far the clock of each guest is ahead of `time.monotonic`, in milliseconds: that
            stays right if the wall clock is set.
        ledgers: The ledgers of cells that this object has parked, for results after their end.
            Bounded by `MAX_LEDGERS`.
        watching: True while a task watches the store.
        unended: The cells whose end the store does not know yet, with how they ended: nobody may
            continue them from their checkpoints.
        unreleased: The claims that this process has given up, and the store does not know yet.
        catching_up: True while a task retries to write what the store does not know yet.
    """

    pool: "Pool"
    calls: "Calls"
    parking: "Parking"
    config: "CodeModeConfig"
    telemetry: Telemetry
    replies: "Replies"
    active: dict[str, Cell] = field(default_factory=dict[str, Cell])
    parked: dict[str, float] = field(default_factory=dict[str, float])
    ledgers: OrderedDict[str, Ledger] = field(default_factory=OrderedDict[str, Ledger])
    watching: bool = False
    unended: dict[str, tuple[Cell, End]] = field(default_factory=dict[str, tuple[Cell, End]])
    unreleased: dict[str, Release] = field(default_factory=dict[str, Release])
    releasing: anyio.Lock = field(default_factory=anyio.Lock)
    catching_up: bool = False

    @property
    def owing(self) -> bool:
        """True if the store does not know everything yet."""
        return bool(self.unended or self.unreleased or self.parking.held)

    # ---- Parking ----

    async def park(
        self, cell: Cell, group: CallGroup, away: StoreUnavailable | None = None
    ) -> None:
        """Freezes a driven cell and gives its state to the store.

        While the store is unavailable, this process holds the cell, up to `MAX_HELD` of them. If
        that is known, `away` is given.

        Raises:
            Aborted: The cell was aborted meanwhile.
            SandboxError: The cell cannot be frozen or stored.
        """
        assert cell.tenancy is not None
        has_memory = cell.start is None and cell.outcome is None
        frozen = await self.pool.freeze(cell.tenancy) if has_memory else None
        async with group.lock:
            if not cell.ended:
                await self.replies.gather(cell)
                try:
                    await self.parking.park(cell, frozen, away)
                except StoreUnavailable as error:
                    logger.error("cannot store the program %s yet: %s", cell.id, error)
                    if len(self.parking.held) >= MAX_HELD:
                        raise
                    self.parking.held[cell.id] = cell
                    cell.notes.append(HELD.format(error))
            if cell.ended:
                self.parking.held.pop(cell.id, None)
                raise Aborted
            cell.move("parked")
            group.cell = None
        if cell.id in self.parking.held:
            self._catch_up_later()
        if cell.unheard:
            cell.forget_output()
        self.telemetry.snapshots["created"] += 1
        self.parked[cell.id] = cell.clock - time.monotonic() * 1000
        self.ledgers[cell.id] = cell.ledger
        if len(self.ledgers) > MAX_LEDGERS:
            self.ledgers.popitem(last=False)
        self.calls.forget(group)
        if group.calls:
            self.watch()

    async def conclude(self, cell: Cell) -> bool:
        """Stores the end of a cell before its outcome is told. False if the outcome waits.

        The outcome of a cell that has no caller is parked. So is the outcome of a cell whose end
        cannot be stored, if leases decide who has it: another node may take the cell over, and end
        it in another way than was told.
        """
        if cell.unheard:
            return not await self._keep(cell)
        if cell.stored and self.parking.store.fleet:
            self._end_calls(cell)
            try:
                await self._record(cell, "finished")
            except StoreUnavailable as error:
                return not await self._keep(cell, error)
        return True

    async def _keep(self, cell: Cell, away: StoreUnavailable | None = None) -> bool:
        """Parks the outcome of a cell. Returns False if that failed."""
        self._end_calls(cell)
        group = self.calls.group(cell)
        group.cell = cell
        cell.calls.clear()
        cell.inbox.clear()
        try:
            await self.park(cell, group, away)
        except Aborted:
            raise
        except SandboxError as error:
            logger.error("cannot store the result of the program %s: %s", cell.id, error)
            return False
        return True

    # ---- Ending ----

    async def end(self, cell: Cell, end: End) -> None:
        """Ends a cell: its calls are cancelled, and the store records the end."""
        cell.move("ended")
        self.ledgers.pop(cell.id, None)
        self._end_calls(cell)
        if cell.stored and not cell.concluded:
            self.unended[cell.id] = (cell, end)
            try:
                await self.record_end(cell.id)
            except StoreUnavailable as error:
                logger.error("cannot store the end of the program %s yet: %s", cell.id, error)
                self._catch_up_later()

    async def record_end(self, run_id: str) -> None:
        """Stores the end of a cell, if the store does not know it yet.

        Raises:
            StoreUnavailable: The store still cannot be written.
        """
        if run_id in self.unended:
            await self._record(*self.unended[run_id])
            self.unended.pop(run_id, None)

    async def _record(self, cell: Cell, end: End) -> None:
        """Stores the end of a cell, which is `lost` if another process has taken it over."""
        run_id, ours = cell.id, False
        with contextlib.suppress(Aborted):  # another process has it, or has had it aborted
            await self.parking.be_sure(cell)
            ours = end != "aborted" and await self.parking.end(cell, end)
        if cell.ordered:
            await self.parking.order_abort(run_id)
        elif not ours:
            await self.parking.give_up(run_id, cell.fence)
            cell.lost = end != "aborted" and await self.parking.goes_on(run_id)
        cell.concluded = True

    async def claim(self, run_id: str) -> Cell | Refusal:
        """Claims a cell for a `wait` of this run, as `Parking.claim` does."""
        image = self.pool.image
        try:
            return await self.parking.claim(run_id, image)
        except StoreUnavailable:
            # It may have happened, and would keep others away.
            self.unreleased[run_id] = partial(self._unclaim, run_id, image)
            self._catch_up_later()
            raise

    async def _unclaim(self, run_id: str, image: bytes) -> None:
        cell = await self.parking.claim(run_id, image)
        if isinstance(cell, Cell):
            await self.parking.release(cell)

    async def release(self, cell: Cell) -> None:
        """Ends the claim of a cell, as soon as the store can be written."""
        self.unreleased[cell.id] = partial(self.parking.release, cell)
        try:
            await self._release(cell.id)
        except StoreUnavailable as error:
            logger.error("cannot release the program %s yet: %s", cell.id, error)
            self._catch_up_later()

    async def _release(self, run_id: str) -> None:
        async with self.releasing:
            if (release := self.unreleased.get(run_id)) is not None:
                # The run is closed, so its owner has left; or we cannot read the cell.
                with contextlib.suppress(Aborted, SnapshotRefused):
                    await release()
                if self.unreleased.get(run_id) is release:
                    del self.unreleased[run_id]

    async def catch_up(self, run_id: str) -> None:
        """Writes what the store does not know yet of a cell.

        Raises:
            StoreUnavailable: The store still cannot be written.
        """
        await self.parking.store_held(run_id)
        await self.record_end(run_id)
        await self._release(run_id)

    async def catch_up_all(self) -> bool:
        """Writes all that the store does not know yet. False if it cannot be written."""
        for run_id in [*self.unended, *self.unreleased, *self.parking.held]:
            try:
                await self.catch_up(run_id)
            except SnapshotError:
                return False
        return True

    def _catch_up_later(self) -> None:
        if not self.catching_up and self.calls.tasks is not None:
            self.catching_up = True
            self.calls.tasks.start_soon(self._catch_up)

    async def _catch_up(self) -> None:
        while self.owing:
            await anyio.sleep(RECORD_AGAIN)
            await self.catch_up_all()
        self.catching_up = False

    def _end_calls(self, cell: Cell) -> None:
        if cell.id in self.calls.groups:
            self.calls.end(cell.id)
        for call in cell.calls.values():
            if call.owner:
                call.entry.state = "unknown"

    def forget(self, run_id: str) -> None:
        """Drops a parked cell that has ended, and cancels its calls."""
        self.parked.pop(run_id, None)
        self.calls.end(run_id)

    async def abort(self, run_id: str) -> bool:
        """Ends a cell, driven or parked, here or in another process. Returns False if unknown.

        Raises:
            StoreUnavailable: The store cannot be read.
            AbortUnconfirmed: The process that runs the cell has not confirmed its end in time.
        """
        cell = self.active.get(run_id)
        if cell is not None:
            cell.ordered = True
            await self._abort_active(cell)
            if cell.taken:  # another process may have taken it over
                await self.parking.abort(run_id)
            return True
        if (cell := self.parking.held.get(run_id)) is not None:
            await self._abort_held(cell)
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

    async def end_all(self) -> None:
        """Ends all cells that are driven or held here, because somebody has asked for that."""
        for cell in list(self.active.values()):
            cell.ordered = True
        await self.abort_all()
        for cell in list(self.parking.held.values()):
            await self._abort_held(cell)

    async def _abort_held(self, cell: Cell) -> None:
        del self.parking.held[cell.id]
        cell.ordered = True
        self.parked.pop(cell.id, None)
        await self.end(cell, "aborted")

    async def _abort_active(self, cell: Cell) -> None:
        cell.move("ended")
        if cell.gate is not None:
            cell.gate.cancel()
            return
        assert cell.tenancy is not None
        self.calls.end(cell.id)
        await self.pool.abort(cell.tenancy)

    # ---- Aborts by other processes ----

    def watch(self) -> None:
        """Watches cells that other processes can end, while there are any."""
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
        groups, held = self.calls.groups.items(), self.parking.held
        parked = [run_id for run_id, group in groups if group.cell is None and run_id not in held]
        return [*parked, *(cell.id for cell in self.active.values() if cell.taken)]

    async def _end_here(self, run_id: str) -> None:
        cell, group = self.active.get(run_id), self.calls.groups.get(run_id)
        if cell is not None and cell.taken:
            cell.fence = NO_FENCE  # not ours to end, even if a write that is under way succeeds
            await self._abort_active(cell)
        elif group is not None and group.cell is None:
            self.forget(run_id)
            # The other process returns from its abort as soon as this one gives up the cell, so
            # the cancelled calls have to end before. A tool may ignore its cancellation.
            with anyio.move_on_after(CANCEL_SECONDS):
                while group.running:
                    await group.changes.wait()
            await self.parking.give_up(run_id)
