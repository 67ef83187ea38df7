"""The interface of a store of parked cells, its data, and aborts that wait for other processes.

A store sees sealed bytes, and knows which owner has which cell. A cell is either parked, or running
in the process that took it out. Its calls are made by owners; an owner lives until it leaves or its
process dies. Replies that arrive while the cell is parked, or runs elsewhere, wait in its inbox.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import anyio

from clawmode.context import Scope
from clawmode.exceptions import AbortUnconfirmed
from clawmode.types import CallState

if TYPE_CHECKING:
    from clawmode.code_mode.snapshots import KeyRing

End: TypeAlias = Literal["finished", "expired", "aborted", "lost"]
CellState: TypeAlias = Literal["parked", "waiting", "running", "lost"]
Refusal: TypeAlias = Literal["unknown", "busy", "finished", "expired", "aborted", "lost"]
"""The reason why a cell cannot be claimed. `lost`: the process that ran it died."""

AbortProgress: TypeAlias = Literal["ended", "asked"]
"""The state of an abort. `asked`: another owner runs the cell or its calls, and will end them."""

ABORT_SECONDS = 5.0
"""How long an abort waits for other processes to end their part of a cell."""

ABORT_POLL = 0.05

FULL = "Too many programs are waiting already."


@dataclass(frozen=True, slots=True)
class StoredCall:
    """A call of a parked cell that has no reply yet."""

    id: int
    owner: str
    state: CallState
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCell:
    """A parked cell. The record, snapshot, bodies of calls, replies and mark are sealed.

    Attributes:
        mark: Identifies the last park of the cell. It is stored separately, so that an older copy
            of the cell does not match it.
    """

    id: str
    scope: Scope
    ttl: float
    record: bytes
    snapshot: bytes
    calls: tuple[StoredCall, ...] = ()
    replies: tuple[bytes, ...] = ()
    mark: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellInfo:
    """A cell in the store, for operators.

    Attributes:
        state: `waiting` while a `wait` is pending; `lost` if the process that ran it died.
        age: Seconds since it was parked, or since the last `wait`.
        left: Seconds until it expires.
    """

    id: str
    scope: Scope
    state: CellState
    age: float
    left: float


def state_of(running: bool, held: bool) -> CellState:
    """Returns the state of a cell; `held` is True if an owner has it and is alive."""
    if running:
        return "running" if held else "lost"
    return "waiting" if held else "parked"


@dataclass(frozen=True, slots=True)
class Progress:
    """The open calls of a cell, and the number of replies in its inbox."""

    calls: tuple[StoredCall, ...]
    replies: int


class SnapshotStore(Protocol):
    """Keeps parked cells. Every method is one transaction.

    Every method may raise `StoreUnavailable`; then nothing has changed.

    Attributes:
        durable: True if cells outlive the process.
        keys: The keys that seal the cells.
    """

    @property
    def durable(self) -> bool: ...

    @property
    def keys(self) -> "KeyRing": ...

    async def join(self) -> str:
        """Returns the name of a new owner, which lives until `leave` or the end of this process."""
        ...

    async def leave(self, owner: str) -> None:
        """Ends an owner: it makes no more calls."""
        ...

    async def alive(self, owner: str) -> bool:
        """True if the process of this owner is alive."""
        ...

    async def room(self, limit: int) -> bool:
        """True if one more cell can be parked. Also drops expired cells."""
        ...

    async def park(self, cell: StoredCell, owner: str, limit: int, *, again: bool) -> None:
        """Stores a new cell, or with `again` one that `owner` has taken before.

        Calls of other owners, and replies in the inbox, are kept.

        Raises:
            SnapshotTooLarge: `limit` cells are parked already.
            Aborted: The cell was taken before, and has been ended meanwhile.
        """
        ...

    async def claim(self, cell_id: str, scope: Scope, owner: str) -> StoredCell | Refusal:
        """Reserves a cell for a `wait` of `owner`. The returned cell has no snapshot yet.

        An earlier claim of the same owner is replaced: its caller was cancelled.
        """
        ...

    async def release(self, cell_id: str, owner: str) -> None:
        """Ends a claim, and restarts the time to live of the cell."""
        ...

    async def progress(self, cell_id: str) -> Progress | None:
        """Returns the state of the calls of a cell; None if the cell has ended."""
        ...

    async def take(
        self, cell_id: str, owner: str, *, seen: bytes = b"", mark: bytes = b""
    ) -> StoredCell | None:
        """Takes a claimed cell out, to be run by `owner`; None if the cell has ended.

        The snapshot, the replies and the calls of `owner` are removed from the store.

        Args:
            cell_id: The cell.
            owner: The owner that has claimed it.
            seen: The mark that the claim returned; with another mark, the cell counts as ended.
            mark: The new mark, which no earlier copy of the cell matches.
        """
        ...

    async def drain(self, cell_id: str) -> tuple[bytes, ...] | None:
        """Takes the replies for a running cell out of its inbox; None if the cell has ended."""
        ...

    async def mark(self, cell_id: str, call_id: int, owner: str, state: CallState) -> bool:
        """Stores the state of a call of a parked cell. False if the call must not be made."""
        ...

    async def adopt(self, cell_id: str, call: StoredCall, owner: str) -> bool:
        """Gives a call of a dead owner to `owner`. False if another owner was faster."""
        ...

    async def settle(
        self, cell_id: str, call_id: int, reply: bytes, limit: int
    ) -> Literal["kept", "full", "gone"]:
        """Adds a reply to the inbox, unless the inbox would be larger than `limit` bytes."""
        ...

    async def end(self, cell_id: str, scope: Scope, end: End) -> bool:
        """Deletes a cell and records how it ended. False if the scope has no such cell."""
        ...

    async def abort(self, cell_id: str, scope: Scope, owner: str = "") -> AbortProgress | None:
        """Aborts a cell; None if the scope has no such cell.

        The share of `owner` ends: the cell itself, or calls of it. If another living owner runs the
        cell or makes calls of it, the cell is only marked as aborted: it cannot be resumed, none of
        its calls starts, and `gone` reports it to its owners. The last of them that calls `abort`
        ends the cell.
        """
        ...

    async def end_all(
        self, scope: Scope, *, session: bool = False, owner: str = ""
    ) -> dict[str, AbortProgress]:
        """Aborts the cells of a run, or of all runs of its session. Returns the states by id."""
        ...

    async def gone(self, cell_ids: Iterable[str]) -> set[str]:
        """Returns which of these cells have ended, or are marked as aborted."""
        ...

    async def cells(self) -> list[CellInfo]:
        """Lists all cells that have not ended, for operators."""
        ...


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
