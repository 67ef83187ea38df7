"""Aborts of cells that other processes may run: repeated until the processes confirm them."""

from collections.abc import Awaitable, Callable, Mapping

import anyio

from clawmode.code_mode.stores import AbortProgress, SnapshotStore
from clawmode.context import Scope
from clawmode.exceptions import AbortUnconfirmed

ABORT_SECONDS = 5.0
"""How long an abort waits for other processes to end their part of a cell."""

ABORT_POLL = 0.05


async def confirm(abort: Callable[[], Awaitable[Mapping[str, AbortProgress]]]) -> set[str]:
    """Repeats an abort until all owners have ended their part. Returns the ids of the cells.

    Raises:
        AbortUnconfirmed: An owner has not ended its part within `ABORT_SECONDS`.
    """
    ids: set[str] = set()
    with anyio.move_on_after(ABORT_SECONDS):
        while True:
            found = await abort()
            ids |= found.keys()
            if "asked" not in found.values():
                return ids
            await anyio.sleep(ABORT_POLL)
    raise AbortUnconfirmed(
        "The process that runs the program was asked to end it and has not confirmed that within "
        f"{ABORT_SECONDS:g} s. It ends the program as soon as it can; ask again to know."
    )


async def abort_cell(store: SnapshotStore, cell_id: str, scope: Scope, owner: str = "") -> bool:
    """Aborts a cell, in whichever process it runs. False if the scope has no such cell.

    Raises:
        AbortUnconfirmed: The process that runs the cell has not confirmed its end in time.
    """

    async def abort() -> dict[str, AbortProgress]:
        found = await store.abort(cell_id, scope, owner)
        return {} if found is None else {cell_id: found}

    return bool(await confirm(abort))
