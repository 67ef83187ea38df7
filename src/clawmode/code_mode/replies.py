"""What a suspended cell can be resumed with: replies of the catalog and of calls, and due timers.

Replies come from the catalog, from calls of this process, and through the store from calls of other
processes.
"""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from clawmode.code_mode.cell import CallGroup, Cell
from clawmode.code_mode.telemetry import Telemetry
from clawmode.exceptions import Aborted, SnapshotRefused
from clawmode.sandbox.protocol import Request, Settlement

if TYPE_CHECKING:
    from clawmode.code_mode.calls import Calls
    from clawmode.code_mode.parking import Parking

SLICE = 0.005
"""Seconds of work for one cell after which other tasks get a turn on the event loop."""

MAX_ANSWERS = 4 << 20
"""Bytes of catalog replies that are held for a cell; after that, the cell is resumed with these."""

POLL = 0.1
"""Seconds between queries of the store for replies to calls of other processes."""


class Pace:
    """Divides long work into slices, between which the event loop runs other tasks."""

    def __init__(self) -> None:
        self._end = time.monotonic() + SLICE

    async def keep(self) -> None:
        """Gives other tasks a turn if the slice is over."""
        if time.monotonic() >= self._end:
            await anyio.lowlevel.checkpoint()
            self._end = time.monotonic() + SLICE


@dataclass(slots=True)
class Replies:
    """Waits for the replies to the cells of one run.

    Attributes:
        parks: True if a cell that has to wait for people is parked.
    """

    calls: "Calls"
    parking: "Parking"
    telemetry: Telemetry
    parks: bool = True
    searching: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))

    async def _answer_lookups(self, cell: Cell, last: float) -> None:
        """Puts replies to catalog requests into the inbox, until the time `last`.

        Stops at `MAX_ANSWERS` bytes: the cell is resumed with these replies first, which bounds the
        memory of the host.
        """
        pace, room = Pace(), MAX_ANSWERS
        while cell.lookups and room > 0 and not cell.ended:
            reply = await self._look_up(cell.lookups[0], last)
            if reply is None:
                return
            cell.lookups.popleft()
            cell.inbox.append(reply)
            room -= len(reply.value)
            await pace.keep()

    async def _look_up(self, request: Request, last: float) -> Settlement | None:
        """Returns the reply to one catalog request; None if it would come too late."""
        left, bridge = last - time.monotonic(), self.calls.bridge
        if left <= 0:
            return None
        if request.method != "search":
            self.telemetry.describes += 1
            return bridge.look_up(request)
        # In a thread, because the first search of a run indexes the whole catalog, which may take
        # longer than the program has.
        with anyio.move_on_after(left):
            reply = await anyio.to_thread.run_sync(
                bridge.look_up, request, limiter=self.searching, abandon_on_cancel=True
            )
            self.telemetry.searches += 1
            return reply
        return None

    async def for_driven(self, cell: Cell, group: CallGroup, last: float) -> bool:
        """Waits for replies to a cell that is driven here, until the time `last`.

        Returns:
            True if the cell can be resumed; False if it must be parked.
        """
        await self._answer_lookups(cell, last)
        while True:
            version, now = group.changes.count, time.monotonic()
            if cell.ended:
                raise Aborted
            foreign = await self._fetch(cell)
            if now < last and (cell.has_replies or cell.due_at <= now) and not cell.unheard:
                return True
            # No `exec` stays open for a person, or for a timer that is due after its deadline.
            hopeless = self.parks and cell.waits_for_people() and cell.due_at >= last
            if cell.yields or now >= last or hopeless or cell.unheard:
                return False
            until = min(cell.due_at, last, now + POLL if foreign else last)
            await group.changed(version, until - now)

    async def _fetch(self, cell: Cell) -> bool:
        """Fetches replies to calls of other processes. Returns True if there are such calls."""
        if not any(call.owner for call in cell.calls.values()):
            return False
        replies = await self.parking.store.drain(cell.id)
        if replies is None:
            raise Aborted
        for sealed in replies:
            self.parking.deliver(cell, sealed)
        return await self.calls.adopt(cell)

    async def for_parked(self, cell: Cell, group: CallGroup, last: float) -> bool:
        """Waits until a parked cell can be resumed, or until the time `last`.

        Unlike `for_driven`, waits for people too. Returns True if the cell can be resumed.
        """
        while True:
            version, now = group.changes.count, time.monotonic()
            progress = await self.parking.store.progress(cell.id)
            if progress is None:
                raise Aborted
            cell.refresh_calls({call.id: call for call in progress.calls})
            if cell.unheard:
                return False
            if cell.outcome is not None:
                return True
            foreign = await self.calls.adopt(cell)
            prompt = cell.yields or cell.lookups or cell.due_at <= now
            if prompt or progress.replies or group.unsaved:
                return True
            if not cell.calls and not cell.due:
                # A parked cell always waits for something, so the file of the store was altered.
                await self.parking.end(cell.id, "finished")
                raise SnapshotRefused("the snapshot has been altered: it waits for nothing")
            if now >= last:
                return False
            until = min(cell.due_at, last, now + POLL if foreign else last)
            await group.changed(version, until - now)

    async def gather(self, cell: Cell) -> None:
        """Collects the replies that a cell is parked with, as far as they fit into the inbox.

        Some replies came while the cell was frozen, others from other processes.
        """
        if any(call.owner for call in cell.calls.values()):
            for sealed in await self.parking.store.drain(cell.id) or ():
                self.parking.deliver(cell, sealed)
        self.calls.fit_inbox(cell)
