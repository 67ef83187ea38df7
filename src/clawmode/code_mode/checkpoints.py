"""Checkpoints: a cell is stored before its calls take effect, and goes on to run.

If the process dies, the next one continues from the last checkpoint. It repeats calls that only
read or may be repeated, and tells the program that the outcome of others is unknown.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from clawmode.exceptions import Aborted, StoreUnavailable
from clawmode.types import dataclass

if TYPE_CHECKING:
    from clawmode.code_mode.calls import Calls
    from clawmode.code_mode.cell import CallGroup, Cell
    from clawmode.code_mode.parking import Parking
    from clawmode.sandbox.pool import Pool


@dataclass(slots=True)
class Checkpoints:
    """Stores the cells of one run before their calls take effect.

    Attributes:
        watch: Begins to watch whether other processes abort the cells that are stored.
    """

    pool: "Pool"
    calls: "Calls"
    parking: "Parking"
    watch: Callable[[], None]

    async def make(self, cell: "Cell", group: "CallGroup") -> None:
        """Stores a cell, if its queue has calls that may change something and are not stored yet.

        While the store is unavailable, such calls are refused, and those that only read are made.

        Raises:
            Aborted: The cell was aborted, or another process has taken it over.
            SnapshotTooLarge: The cell is too large to be stored.
        """
        fresh = [call for call in group.queue if call.may_change and call.stored is None]
        if not fresh:
            return
        assert cell.tenancy is not None
        frozen = await self.pool.copy(cell.tenancy)
        async with group.lock:
            if cell.ended:
                raise Aborted
            try:
                await self.parking.checkpoint(cell, frozen, self._first(group))
            except StoreUnavailable:
                for call in fresh:
                    self.calls.refuse_unstored(cell, group, call)
                return
            cell.taken = True
        self.watch()

    def _first(self, group: "CallGroup") -> set[int]:
        """Returns the queued calls that start at once: their intents are stored with the cell.

        What becomes of the others is stored when they start.
        """
        asks, run = self.calls.executor.approvals.asks_people, self.calls.context
        first = list(group.queue)[: max(self.calls.places(group), 0)]
        return {
            call.id
            for call in first
            if call.may_change and call.tool is not None and not asks(call.tool, run)
        }
