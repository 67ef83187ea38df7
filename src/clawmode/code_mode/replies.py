"""What a suspended cell can be resumed with: replies of the catalog and of calls, and due timers.

Replies come from the catalog, from calls of this process, and through the store from calls of other
processes.
"""

import time
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING

import anyio

from clawmode.catalog.controls import EXEC
from clawmode.code_mode.bridge import BadRequest, leave_unknown, refuse, too_large
from clawmode.code_mode.cell import CallGroup, Cell, OpenCall, Reply, gate_input
from clawmode.code_mode.stores import StoredCall
from clawmode.code_mode.telemetry import Telemetry
from clawmode.exceptions import Aborted, SnapshotRefused, StoreUnavailable
from clawmode.sandbox.protocol import Request, Settlement
from clawmode.tasks import Pace
from clawmode.types import dataclass

if TYPE_CHECKING:
    from clawmode.code_mode.calls import Calls
    from clawmode.code_mode.parking import Parking

MAX_ANSWERS = 4 << 20
"""Bytes of catalog replies that are held for a cell; after that, the cell is resumed with these."""

SEAL_BYTES = 64
"""The maximum that sealing adds to the size of a reply."""


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
        if cell.lookups and self.calls.shapes is not None:
            await self.calls.shapes.load()
        pace, room = Pace(), MAX_ANSWERS
        while cell.lookups and room > 0 and not cell.ended:
            reply = await self._look_up(cell, cell.lookups[0], last)
            if reply is None:
                return
            cell.lookups.popleft()
            cell.inbox.append(reply)
            room -= len(reply.value)
            await pace.keep()

    async def _look_up(self, cell: Cell, request: Request, last: float) -> Settlement | None:
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
                bridge.look_up,
                request,
                cell.notes,
                limiter=self.searching,
                abandon_on_cancel=True,
            )
            self.telemetry.searches += 1
            return reply
        return None

    async def for_driven(self, cell: Cell, group: CallGroup, last: float) -> bool:
        """Waits for replies to a cell that is driven here, until the time `last`.

        Returns:
            True if the cell can be resumed; False if it must be parked.
        """
        while True:
            if cell.lookups:
                await self._answer_lookups(cell, last)
            foreign = await self._fetch(cell)
            if group.turn is not None:
                await group.turn.ended()
                if group.turn.over:
                    return True
                if cell.lookups and not cell.has_replies and time.monotonic() < last:
                    continue  # the step that has just ended asked for them
            # Nothing is awaited from here to the decision.
            version, now = group.changes.count, time.monotonic()
            if cell.ended:
                raise Aborted
            if now < last and (cell.has_replies or cell.due_at <= now) and not cell.unheard:
                return True
            # No `exec` stays open for a person, or for a timer that is due after its deadline.
            hopeless = self.parks and cell.waits_for_people() and cell.due_at >= last
            if cell.yields or now >= last or hopeless or cell.unheard:
                return False
            until = min(cell.due_at, last, now + self.parking.store.bus.poll if foreign else last)
            with self.parking.store.bus.watch(cell.id, group.changes.notify):
                await group.changed(version, until - now)

    async def _fetch(self, cell: Cell) -> bool:
        """Fetches replies to calls of other processes. Returns True if there are such calls."""
        if not any(call.owner for call in cell.calls.values()):
            return False
        try:
            if not await self.parking.fetch(cell):
                raise Aborted
            progress = await self.parking.store.progress(cell.id) if cell.stored else None
        except StoreUnavailable:
            return True  # replies from elsewhere arrive when the store is back
        if progress is not None:
            known = {call.id: call for call in progress.calls}
            for call in cell.calls.values():
                if call.owner and call.id in known:
                    call.owner, call.entry.state = known[call.id].owner, known[call.id].state
        return await self._adopt(cell)

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
            foreign = await self._adopt(cell)
            prompt = cell.yields or cell.lookups or cell.due_at <= now
            if prompt or progress.replies or group.unsaved:
                return True
            if not cell.calls and not cell.due:
                # A parked cell always waits for something, so the file of the store was altered.
                await self.parking.end(cell, "finished")
                raise SnapshotRefused("the snapshot has been altered: it waits for nothing")
            if now >= last:
                return False
            until = min(cell.due_at, last, now + self.parking.store.bus.poll if foreign else last)
            with self.parking.store.bus.watch(cell.id, group.changes.notify):
                await group.changed(version, until - now)

    async def gather(self, cell: Cell) -> None:
        """Collects the replies that a cell is parked with, as far as they fit into the inbox.

        Some replies came while the cell was frozen, others from other processes.
        """
        if any(call.owner for call in cell.calls.values()):
            with suppress(StoreUnavailable):  # the store keeps them for the next `wait`
                await self.parking.fetch(cell)
        left = self.calls.answers.inbox_room()
        for position, settled in enumerate(cell.inbox):
            if (size := len(settled.value) + SEAL_BYTES) <= left:
                left -= size
            else:
                entry = cell.ledger.find(settled.id)
                cell.inbox[position] = too_large(settled.id, entry.tool_id if entry else None)

    # ---- Calls of other processes ----

    async def _adopt(self, cell: Cell) -> bool:
        """Takes over the calls of dead owners of a cell that this process has claimed or drives.

        If `Approvals.moves`, also questions of living owners: whoever waits here can answer them.

        Returns:
            True if living owners still make calls of the cell.
        """
        own = await self.parking.owner()
        group, group.foreign = self.calls.group(cell), 0
        for call in [call for call in cell.calls.values() if call.owner]:
            if call.id in group.unsaved:
                continue
            live = group.calls.get(call.id)
            if live is not None and call.owner != own:
                # Another process has taken over this question, of which ours is an old copy.
                live.owner = call.owner
                del group.calls[call.id]
                if live.scope is not None:
                    live.scope.cancel()
                live = None
            moves = call.entry.state == "approval" and self.calls.executor.approvals.moves
            if live is not None:
                # Our own call, which still runs: the cell was read from the store again.
                call.entry.state, live.entry = live.entry.state, call.entry
                cell.calls[call.id] = live
            elif call.owner != own and not moves and await self.parking.store.alive(call.owner):
                group.foreign += 1
            else:
                await self._take_over(cell, call, own)
        self.calls.start(group)
        return group.foreign > 0

    async def _take_over(self, cell: Cell, call: OpenCall, own: str) -> None:
        state = call.entry.state
        stored = StoredCall(call.id, call.owner, state, b"")
        if not await self.parking.store.adopt(cell.id, stored, own, cell.fence):
            self.calls.group(cell).foreign += 1  # its owner is alive after all: look again
            return
        call.owner = ""
        try:
            if call.is_gate and cell.start is not None:
                call.tool, call.input = EXEC, gate_input(cell.start)
            else:
                call.tool, call.input = self.calls.bridge.call_of(call.request)
        except BadRequest as error:
            answer = refuse(call.request, error.code, str(error), error.tool_id)
            if state != "running":
                await self.calls.deliver(self.calls.group(cell), call, Reply(answer))
                return
        call.stored = state
        repeatable = call.tool is not None and (call.tool.idempotent or not call.may_change)
        if state == "running" and not repeatable:
            answer = leave_unknown(call.request, call.entry.tool_id)
            await self.calls.deliver(self.calls.group(cell), call, Reply(answer, unknown=True))
            return
        call.repeated = state == "running" and call.may_change
        call.entry.state = "queued"
        self.calls.enqueue(cell, call)
