"""The interface of a store of parked cells, and its data.

A store sees sealed bytes, and knows which owner has which cell. A cell is either parked, or running
in the process that took it out. Its calls are made by owners; an owner lives until it leaves or its
process dies. Replies that arrive while the cell is parked, or runs elsewhere, wait in its inbox.

Every claim of a cell raises its *fence*. Whoever was thought dead and wakes up later still has the
old fence, with which nothing can be changed. Times are given and returned as durations: only the
store has a clock.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from clawmode.code_mode.shelves import ShelfStore
from clawmode.context import Scope
from clawmode.types import CallState, dataclass

if TYPE_CHECKING:
    from clawmode.code_mode.bus import Bus
    from clawmode.code_mode.snapshots import KeyRing

End: TypeAlias = Literal["finished", "expired", "aborted", "lost"]
CellState: TypeAlias = Literal["parked", "waiting", "running", "lost"]
Refusal: TypeAlias = Literal[
    "unknown", "busy", "elsewhere", "finished", "expired", "aborted", "lost"
]
"""The reason why a cell cannot be claimed. `lost`: the process that ran it died. `elsewhere`: only
another build can run the cell, which is kept."""

AbortProgress: TypeAlias = Literal["ended", "asked"]
"""The state of an abort. `asked`: another owner runs the cell or its calls, and will end them."""

FULL = "Too many programs are waiting already."


@dataclass(frozen=True, slots=True)
class StoredCall:
    """A call of a parked cell that has no reply yet."""

    id: int
    owner: str
    state: CallState
    body: bytes


class StoredReply(NamedTuple):
    """A reply to a call of a cell. A call has one reply."""

    call: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCell:
    """A parked cell, or the last checkpoint of one that runs.

    The record, snapshot, ledger, bodies of calls, replies and mark are sealed.

    Attributes:
        mark: Identifies this park or checkpoint of the cell. It is stored separately, so that an
            older copy of the cell does not match it.
        fence: The number of the claim under which the cell is written, or was claimed.
        image: The hash of the build that can run the cell; empty if any may try.
        due_in: Seconds until the next timer of the cell; None if it has none.
        age: Seconds since the cell was written.
        ledger: The list of calls, which is kept when the cell has ended.
    """

    id: str
    scope: Scope
    ttl: float
    record: bytes
    snapshot: bytes
    calls: tuple[StoredCall, ...] = ()
    replies: tuple[StoredReply, ...] = ()
    mark: bytes = b""
    fence: int = 0
    image: bytes = b""
    due_in: float | None = None
    age: float = 0.0
    ledger: bytes = b""


class Ended(NamedTuple):
    """How a cell ended, and its sealed list of calls."""

    end: End
    ledger: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CellInfo:
    """A cell in the store, for operators.

    Attributes:
        state: `waiting` while a `wait` is pending; `lost` if the process that ran it died and left
            no checkpoint.
        age: Seconds since it was parked, or since the last `wait`.
        left: Seconds until it expires.
    """

    id: str
    scope: Scope
    state: CellState
    age: float
    left: float


class Only(NamedTuple):
    """Which cells are listed: those that have all of these; empty for any."""

    cell_id: str = ""
    session_key: str = ""
    run_id: str = ""

    def fits(self, cell_id: str, scope: Scope) -> bool:
        """True if a cell is one of them."""
        has = (cell_id, scope.session_key, scope.run_id)
        return all(wanted in ("", found) for wanted, found in zip(self, has, strict=True))


ANY = Only()


def state_of(running: bool, kept: bool, held: bool) -> CellState:
    """Returns the state of a cell.

    Args:
        running: Whether an owner has taken the cell.
        kept: Whether the cell continues from its checkpoint if that owner dies.
        held: Whether an owner has the cell and is alive.
    """
    if running and held:
        return "running"
    if running and not kept:
        return "lost"
    return "waiting" if held else "parked"


@dataclass(frozen=True, slots=True)
class Progress:
    """The open calls of a cell, and the number of replies in its inbox."""

    calls: tuple[StoredCall, ...]
    replies: int


class SnapshotStore(ShelfStore, Protocol):
    """Keeps parked cells, and what programs leave for each other. Every method is one transaction.

    Every method may raise `StoreUnavailable`; then the caller does not know if something has
    changed. So every method can be repeated: the same call says the same, and changes nothing more.
    A write with an old fence changes nothing.

    Attributes:
        durable: True if cells outlive the process.
        keys: The keys that seal the cells.
        fleet: True if processes of other builds may share the store: then their cells are left to
            them, and reported as waiting.
        bus: Wakes whoever watches a cell, after a reply came or the cell ended. Its topics are the
            ids of cells.
    """

    @property
    def durable(self) -> bool: ...

    @property
    def keys(self) -> "KeyRing": ...

    @property
    def fleet(self) -> bool: ...

    @property
    def bus(self) -> "Bus": ...

    async def join(self) -> str:
        """Returns the name of a new owner, which lives until `leave` or the end of this process.

        No two owners ever have the same name.
        """
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

    async def park(
        self,
        cell: StoredCell,
        owner: str,
        limit: int,
        *,
        again: bool,
        have: Collection[int] = (),
    ) -> None:
        """Stores a new cell, or with `again` one that `owner` runs under the fence of `cell`.

        Calls of other owners are kept, and so are the replies in the inbox that the snapshot does
        not contain. A park with the mark that the store has already is a repetition.

        Args:
            cell: The cell, with the calls of `owner` and with replies for the inbox.
            owner: The owner, which has the cell no longer.
            limit: The maximum of parked cells.
            again: Whether the store knows the cell.
            have: The calls whose replies `owner` has got from the store, and in `cell` if the
                guest has not.

        Raises:
            SnapshotTooLarge: `limit` cells are parked already.
            Aborted: The cell has ended, or somebody else has it.
        """
        ...

    async def checkpoint(
        self, cell: StoredCell, owner: str, *, again: bool, have: Collection[int] = ()
    ) -> int:
        """Stores a cell like `park`, while `owner` goes on to run it. Returns its new fence.

        If `owner` dies, the next claim gets the cell as it was stored here. The fence is raised: an
        earlier checkpoint that the network delivers late must not replace this one.

        Raises:
            Aborted: The cell has ended, or somebody else has it.
        """
        ...

    async def claim(
        self, cell_id: str, scope: Scope, owner: str, images: Collection[bytes] | None = None
    ) -> StoredCell | Refusal:
        """Reserves a cell for a `wait` of `owner`. The returned cell has no snapshot yet.

        An earlier claim of the same owner is replaced: its caller was cancelled. A cell that ran
        when its owner died is claimed as its checkpoint, or is lost if it has none.

        Args:
            cell_id: The cell.
            scope: The run that it must belong to.
            owner: Who claims it.
            images: The values of `StoredCell.image` that `owner` can run; None for all.
        """
        ...

    async def release(self, cell_id: str, owner: str, fence: int) -> None:
        """Ends a claim, or a `take` with `keep` whose answer was lost. Restarts the lifetime."""
        ...

    async def progress(self, cell_id: str) -> Progress | None:
        """Returns the state of the calls of a cell; None if the cell has ended."""
        ...

    async def take(
        self,
        cell_id: str,
        owner: str,
        fence: int,
        *,
        seen: bytes = b"",
        mark: bytes = b"",
        keep: bool = False,
    ) -> StoredCell | None:
        """Takes a claimed cell, to be run by `owner`; None if the cell has ended.

        Nothing is deleted: the snapshot and the replies stay until the next park or checkpoint.

        Args:
            cell_id: The cell.
            owner: The owner that has claimed it.
            fence: The fence of the claim.
            seen: The mark that the claim returned; with another mark, the cell counts as ended.
            mark: The new mark, which no earlier copy of the cell matches. Unused with `keep`.
            keep: Whether the cell continues from here if `owner` dies; else it is lost then.
        """
        ...

    async def drain(
        self,
        cell_id: str,
        owner: str,
        fence: int,
        have: Collection[int] = (),
        *,
        keep: bool = False,
    ) -> tuple[StoredReply, ...] | None:
        """Returns the replies for a running cell that `owner` does not have yet, in order.

        Without `keep`, the replies that `owner` has are deleted. None if the cell has ended, or if
        somebody else has it.
        """
        ...

    async def mark(self, cell_id: str, call_id: int, owner: str, state: CallState) -> bool:
        """Stores the state of a call of `owner`. False if the call must not be made."""
        ...

    async def adopt(self, cell_id: str, call: StoredCall, owner: str, fence: int) -> bool:
        """Gives a call to `owner`, who has claimed or taken the cell.

        Returns:
            False if another owner was faster, or if the state of the call has changed.
        """
        ...

    async def settle(
        self, cell_id: str, call_id: int, owner: str, reply: bytes, limit: int
    ) -> Literal["kept", "full", "gone"]:
        """Adds the reply to a call of `owner` to the inbox, if that has at most `limit` bytes then.

        Returns:
            `gone` if the call is not (or no longer) one of `owner`, or has a reply.
        """
        ...

    async def end(
        self, cell_id: str, scope: Scope, end: End, fence: int, ledger: bytes = b""
    ) -> bool:
        """Deletes a cell, and records how it ended and which calls it made.

        Args:
            cell_id: The cell.
            scope: The run that it must belong to.
            end: How it ended.
            fence: The fence of the last claim.
            ledger: The list of calls, sealed; empty if the stored one is right.

        Returns:
            False if the scope has no such cell, or if somebody else has claimed it.
        """
        ...

    async def ended(self, cell_id: str, scope: Scope) -> Ended | None:
        """Returns how a cell ended; None if the scope has no such cell, or it has not ended."""
        ...

    async def abort(
        self, cell_id: str, scope: Scope, owner: str = "", fence: int | None = None
    ) -> AbortProgress | None:
        """Aborts a cell; None if the scope has no such cell.

        The share of `owner` ends: the cell itself, or calls of it. If another living owner runs the
        cell or makes calls of it, the cell is only marked as aborted: it cannot be resumed, none of
        its calls starts, and `gone` reports it to its owners. The last of them that calls `abort`
        ends the cell.

        Args:
            cell_id: The cell.
            scope: The run that it must belong to.
            owner: Whose share ends.
            fence: Given if `owner` gives up its share, and nobody asks for an abort: if somebody
                else has the cell, living or dead, and it is not marked as aborted, nothing changes.
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

    async def count_parked(self) -> int:
        """Returns the number of parked cells, for which `limit` of `park` is the maximum.

        Cheap, however many there are. Cells that have just expired may be counted.
        """
        ...

    async def cells(
        self, scope: Scope | None = None, limit: int | None = None, only: Only = ANY
    ) -> list[CellInfo]:
        """Lists the cells that have not ended: all of them, or those of one run.

        Args:
            scope: The run; None for all.
            limit: The maximum of cells in the list: those that expire first.
            only: Which of them.
        """
        ...
