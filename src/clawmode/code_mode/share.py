"""The share of one run in a store: its name there, writes that are owed, and its end."""

import contextlib
from typing import TYPE_CHECKING

import anyio

from clawmode.code_mode.aborts import abort_cell, confirm
from clawmode.code_mode.state import run_of, session_of
from clawmode.code_mode.stores import End, SnapshotStore
from clawmode.context import RunContext
from clawmode.exceptions import Aborted, SnapshotTooLarge, StoreUnavailable

if TYPE_CHECKING:
    from clawmode.code_mode.cell import Cell

NO_FENCE = -1
"""Fits no cell."""

MAX_UNTOLD = 256


class Share:
    """What one run has in a store.

    Args:
        store: Where cells are kept.
        context: The run that they belong to.

    Attributes:
        held: The parked cells that could not be stored yet, by id: only this process has them.
        untold: The cells whose end is stored, and whose outcome only this process has. Bounded by
            `MAX_UNTOLD`.
    """

    def __init__(self, store: SnapshotStore, context: RunContext) -> None:
        self.store = store
        self._scope = context.scope
        self._owner = ""
        self._joining = anyio.Lock(fast_acquire=True)
        self._closed = False
        self.held: dict[str, Cell] = {}
        self.untold: dict[str, Cell] = {}

    async def owner(self) -> str:
        """Returns the name of this run as an owner of cells and calls.

        Raises:
            Aborted: The run is closed.
        """
        async with self._joining:
            if self._closed:
                raise Aborted("The run is closed.")
            if not self._owner:
                self._owner = await self.store.join()
            return self._owner

    async def close(self, *, leave: bool = True) -> None:
        """Leaves the store for good: other processes may adopt the calls of this run.

        Without `leave`, its owner lives until the process ends, and keeps what it has.
        """
        was_closed, self._closed = self._closed, True
        if leave and self._owner and not was_closed:
            with contextlib.suppress(StoreUnavailable):  # logged by the store; nothing else to do
                await self.store.leave(self._owner)

    async def be_sure(self, cell: "Cell") -> None:
        """Repeats a write to the store whose answer was lost, before anything else is written."""
        if cell.unsure is not None:
            await cell.unsure()
            cell.unsure = None

    async def store_held(self, run_id: str) -> None:
        """Stores a cell that was parked while the store was unavailable, if it is one.

        If another process has taken the cell over meanwhile, it is held no longer.

        Raises:
            StoreUnavailable: The store still cannot be written, or is full.
        """
        if (cell := self.held.get(run_id)) is not None:
            try:
                await self.be_sure(cell)
            except Aborted:
                # Perhaps the end of the cell was stored before, and only the answer was lost.
                if cell.outcome is not None and await self.end_surely(cell, "finished"):
                    self.untold[run_id] = cell
                    if len(self.untold) > MAX_UNTOLD:
                        del self.untold[next(iter(self.untold))]
            except SnapshotTooLarge as error:
                raise StoreUnavailable(str(error)) from None
            self.held.pop(run_id, None)

    async def goes_on(self, run_id: str) -> bool:
        """True if a cell that this process cannot write any more was not aborted.

        Raises:
            StoreUnavailable: The store cannot be read, so nobody knows.
        """
        # In this order: a cell that ends in between is found as ended.
        if await self.store.progress(run_id) is not None:
            return True
        ended = await self.store.ended(run_id, self._scope)
        return ended is not None and ended.end == "finished"

    async def end(self, cell: "Cell", end: End) -> bool:
        """Deletes a cell, and keeps its list of calls. False if it is not ours any more."""
        await self.be_sure(cell)
        return await self.end_surely(cell, end)

    async def end_surely(self, cell: "Cell", end: End) -> bool:
        """Ends a cell that the store knows; `end` first stores one that it does not know."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name of this run in the store, also after `close`; empty if it stored nothing.

        A call that ends while the run closes is settled under it, unless somebody has adopted the
        call: its effect has happened.
        """
        return self._owner

    async def abort(self, run_id: str) -> bool:
        """Aborts a cell, in whichever process it runs. Returns False if there is none.

        Raises:
            AbortUnconfirmed: The other process has not confirmed the end in time.
        """
        return await abort_cell(self.store, run_id, self._scope, self._owner)

    async def order_abort(self, run_id: str) -> None:
        """Has a cell aborted by whoever runs it, and does not wait for that."""
        await self.store.abort(run_id, self._scope, self._owner)

    async def give_up(self, run_id: str, fence: int = NO_FENCE) -> None:
        """Ends the share of this process in a cell that was aborted, or that it has by `fence`."""
        await self.store.abort(run_id, self._scope, self._owner, fence)

    async def end_all(self, *, session: bool) -> set[str]:
        """Aborts the cells of the run, or of the session, in whichever process they run.

        Raises:
            AbortUnconfirmed: Another process has not confirmed the end of a cell in time.
        """
        ended = await confirm(
            lambda: self.store.end_all(self._scope, session=session, owner=self._owner)
        )
        await self.drop_state(session=session)
        return ended

    async def drop_state(self, *, session: bool = False) -> None:
        """Deletes what programs of the run, or of the session, have stored."""
        run = None if session else run_of(self._scope)
        await self.store.drop_shelves(session_of(self._scope), run)
