"""Replies to calls whose cell is not here, or may be lost with this process: kept in the store."""

import contextlib
import sys
from typing import TYPE_CHECKING

import anyio

from clawmode.code_mode.bridge import too_large
from clawmode.code_mode.cell import CallGroup, Cell, OpenCall, Reply
from clawmode.exceptions import StoreUnavailable
from clawmode.sandbox.protocol import Settlement
from clawmode.types import dataclass

if TYPE_CHECKING:
    from clawmode.code_mode.calls import Calls

SAVE_AGAIN = 1.0  # seconds between attempts to store a reply

COPY_AFTER = 0.01
"""Seconds after which the reply to a call with effects is copied to the store. Most cells make the
next call before, and are stored with that anyway."""

MAX_ERRORS = 48 << 10  # bytes of an inbox for errors: every call of a batch may need one


@dataclass(slots=True)
class Answers:
    """Stores the replies to the calls of one run."""

    calls: "Calls"

    def inbox_room(self) -> int:
        """Returns the bytes of an inbox for replies; the rest is reserved for errors."""
        limit = self.calls.config.max_snapshot_bytes
        return limit - min(limit // 8, MAX_ERRORS)

    async def save(self, group: CallGroup, call: OpenCall, reply: Reply) -> None:
        """Puts a reply into the inbox in the store, now or as soon as that is possible."""
        try:
            await self._settle(group.run_id, call.id, call.entry.tool_id, reply)
        except StoreUnavailable:
            # Kept in memory, so that the reply is lost only if this process dies.
            group.unsaved[call.id] = (reply.settled, reply.unknown)
            if len(group.unsaved) == 1 and self.calls.tasks is not None:
                self.calls.tasks.start_soon(self._save_later, group)

    async def _settle(self, run_id: str, call_id: int, tool_id: str | None, reply: Reply) -> None:
        """Puts a reply into the inbox in the store, or an error if the inbox is too full."""
        parking, room = self.calls.parking, self.inbox_room()
        await parking.store_held(run_id)
        store, sealed = parking.store, parking.sealed_reply(run_id, reply)
        if await store.settle(run_id, call_id, parking.name, sealed, room) == "full":
            sealed = parking.sealed_reply(run_id, Reply(too_large(call_id, tool_id)))
            # Else, the program would hang.
            await store.settle(run_id, call_id, parking.name, sealed, sys.maxsize)

    async def _save_later(self, group: CallGroup) -> None:
        """Retries to store replies: a `wait` in another process cannot fetch them from here."""
        while group.unsaved and not group.ended:
            await anyio.sleep(SAVE_AGAIN)
            async with group.lock:
                # Once the cell is driven here, `hand_over` has emptied `unsaved`.
                for number, (settled, unknown) in list(group.unsaved.items()):
                    try:
                        await self._settle(group.run_id, number, None, Reply(settled, unknown))
                    except StoreUnavailable:
                        break
                    del group.unsaved[number]
            group.changes.notify()
            self.calls.forget(group)

    def keep_copy(self, cell: Cell, call: OpenCall, reply: Settlement) -> None:
        """Stores the reply to a call with effects soon, unless the cell is stored before.

        If this process dies, the program learns the outcome of the call from that copy.
        """
        if self.calls.tasks is not None:
            self.calls.tasks.start_soon(self._copy, cell, call, reply, cell.park)

    async def _copy(self, cell: Cell, call: OpenCall, reply: Settlement, park: int) -> None:
        await anyio.sleep(COPY_AFTER)
        if cell.park != park or cell.stage != "driven":
            return
        parking = self.calls.parking
        cell.have.add(call.id)
        sealed = parking.sealed_reply(cell.id, Reply(reply, call.entry.state == "unknown"))
        with contextlib.suppress(StoreUnavailable):  # the reply is here, after all
            name, room = parking.name, self.inbox_room()
            await parking.store.settle(cell.id, call.id, name, sealed, room)
