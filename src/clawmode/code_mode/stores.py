"""Where parked cells are kept: what a store does, and the one in memory.

A store sees sealed bytes and knows who owns what. A cell in it is parked, or running in the process
that took it; its calls are made by owners, which live until they leave or their process dies.
Replies that come back while the cell is parked, or runs elsewhere, wait in its inbox.
"""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import anyio

from clawmode.code_mode.snapshots import KeyRing
from clawmode.context import Scope
from clawmode.exceptions import Aborted, AbortUnconfirmed, SnapshotTooLarge

CallState: TypeAlias = Literal["queued", "running", "approval"]
End: TypeAlias = Literal["finished", "expired", "aborted", "lost"]
CellState: TypeAlias = Literal["parked", "waiting", "running", "lost"]
Refusal: TypeAlias = Literal["unknown", "busy", "finished", "expired", "aborted", "lost"]
"""Why a cell cannot be claimed. `lost`: the process that ran it died."""

AbortProgress: TypeAlias = Literal["ended", "asked"]
"""What became of an abort. `asked`: another owner runs the cell or its calls, and will end them."""

MAX_TOMBSTONES = 1024

ABORT_SECONDS = 5.0
"""How long an abort waits for other processes to end their part of a cell."""

ABORT_POLL = 0.05

FULL = "Too many programs are waiting already."


@dataclass(frozen=True, slots=True)
class StoredCall:
    """A call of a parked cell whose answer is still to come."""

    id: int
    owner: str
    state: CallState
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCell:
    """A parked cell. `record` and `snapshot` are sealed, and so are bodies, replies and the mark.

    Attributes:
        mark: Tells which of its parks is the last one. Kept apart from the rest, so that an older
            copy of the rest that is put back does not fit it.
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
        state: `waiting`: somebody waits for it. `lost`: the process that ran it died.
        age: Seconds since it was parked, or last waited for.
        left: Seconds until it expires.
    """

    id: str
    scope: Scope
    state: CellState
    age: float
    left: float


def state_of(running: bool, held: bool) -> CellState:
    """The state of a cell; held, if whoever has it lives."""
    if running:
        return "running" if held else "lost"
    return "waiting" if held else "parked"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the calls of a cell are."""

    calls: tuple[StoredCall, ...]
    replies: int


class SnapshotStore(Protocol):
    """Keeps parked cells. Every method is one transaction.

    Any of them may raise `StoreUnavailable`; then nothing has changed.

    Attributes:
        durable: Whether cells outlive the process.
        keys: What seals them.
    """

    @property
    def durable(self) -> bool:
        """Whether cells outlive the process."""
        ...

    @property
    def keys(self) -> KeyRing:
        """What seals the cells."""
        ...

    async def join(self) -> str:
        """The name of a new owner, which lives until `leave` or until this process dies."""
        ...

    async def leave(self, owner: str) -> None:
        """The owner makes no calls any more."""
        ...

    async def alive(self, owner: str) -> bool:
        """Whether somebody makes the calls of this owner."""
        ...

    async def room(self, limit: int) -> bool:
        """Whether one more cell can be parked."""
        ...

    async def park(self, cell: StoredCell, owner: str, limit: int, *, again: bool) -> None:
        """Keeps a cell: a new one, or one that `owner` took before.

        Calls of other owners and replies that wait already stay as they are.

        Raises:
            SnapshotTooLarge: `limit` cells are parked.
            Aborted: It was taken before, and has been ended by somebody.
        """
        ...

    async def claim(self, cell_id: str, scope: Scope, owner: str) -> StoredCell | Refusal:
        """Makes `owner` the one that waits for a cell. What comes back has no snapshot yet.

        A claim that `owner` has already is void: whoever made it was cancelled.
        """
        ...

    async def release(self, cell_id: str, owner: str) -> None:
        """Ends a claim; the cell's time starts anew."""
        ...

    async def progress(self, cell_id: str) -> Progress | None:
        """What has happened to its calls; None: it has ended."""
        ...

    async def take(
        self, cell_id: str, owner: str, *, seen: bytes = b"", mark: bytes = b""
    ) -> StoredCell | None:
        """The whole cell, to be run by `owner`, which has claimed it; None: it has ended.

        Its snapshot, its replies and the calls of `owner` are in the store no more.

        Args:
            cell_id: The cell.
            owner: Has claimed it.
            seen: The mark that was found when it was claimed; None comes back if it is another now.
            mark: The one that takes its place: what was parked until now does not fit it.
        """
        ...

    async def drain(self, cell_id: str) -> tuple[bytes, ...] | None:
        """Takes the replies that came for a cell that runs; None: it has ended."""
        ...

    async def mark(self, cell_id: str, call_id: int, owner: str, state: CallState) -> bool:
        """A call of a parked cell has changed. False: it is not to be made any more."""
        ...

    async def adopt(self, cell_id: str, call: StoredCall, owner: str) -> bool:
        """Makes a call of an owner that died `owner`'s. False: somebody else was faster."""
        ...

    async def settle(
        self, cell_id: str, call_id: int, reply: bytes, limit: int
    ) -> Literal["kept", "full", "gone"]:
        """Puts a reply in the inbox, if it is not over `limit` bytes with it."""
        ...

    async def end(self, cell_id: str, scope: Scope, end: End) -> bool:
        """Deletes a cell and remembers how it ended. False: there is none, or it is not theirs."""
        ...

    async def abort(self, cell_id: str, scope: Scope, owner: str = "") -> AbortProgress | None:
        """Aborts a cell; None: there is none, or it is not theirs.

        What `owner` had of the cell, the cell itself or calls, is over. If another owner that lives
        runs it or makes calls of it, the cell is only marked: nobody can resume it, none of its
        calls begins, and `gone` tells its owners. The last of them that calls `abort` ends it.
        """
        ...

    async def end_all(
        self, scope: Scope, *, session: bool = False, owner: str = ""
    ) -> dict[str, AbortProgress]:
        """Aborts the cells of a run, or of all runs of its session, by their ids."""
        ...

    async def gone(self, cell_ids: Iterable[str]) -> set[str]:
        """Those of these cells that have ended, or are marked as aborted."""
        ...

    async def cells(self) -> list[CellInfo]:
        """All cells that have not ended, for operators."""
        ...


async def confirm(abort: Callable[[], Awaitable[Mapping[str, AbortProgress]]]) -> set[str]:
    """Repeats an abort until all other owners have ended their part. Returns the cells' ids.

    Raises:
        AbortUnconfirmed: They have not within `ABORT_SECONDS`.
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
    """Aborts a cell, wherever it runs. False: there is none, or it is not theirs.

    Raises:
        AbortUnconfirmed: The process that runs it has not confirmed its end in time.
    """

    async def abort() -> dict[str, AbortProgress]:
        found = await store.abort(cell_id, scope, owner)
        return {} if found is None else {cell_id: found}

    return bool(await confirm(abort))


# ---- In memory ----


@dataclass(slots=True)
class _MemoryCell:
    scope: Scope
    ttl: float
    expires: float
    record: bytes
    snapshot: bytes
    mark: bytes = b""
    holder: str = ""
    running: bool = False
    calls: dict[int, StoredCall] = field(default_factory=dict[int, StoredCall])
    replies: list[bytes] = field(default_factory=list[bytes])

    def whole(self, cell_id: str, *, snapshot: bool) -> StoredCell:
        return StoredCell(
            id=cell_id,
            scope=self.scope,
            ttl=self.ttl,
            record=self.record,
            snapshot=self.snapshot if snapshot else b"",
            calls=tuple(self.calls.values()),
            replies=tuple(self.replies) if snapshot else (),
            mark=self.mark,
        )


class MemoryStore:
    """Cells that end with the process.

    Args:
        clock: Tells the time, in seconds; it must not jump.
    """

    durable = False

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.keys = KeyRing.ephemeral()
        self._clock = clock
        self._cells: dict[str, _MemoryCell] = {}
        self._ended: OrderedDict[str, tuple[Scope, End]] = OrderedDict()
        self._owners: set[str] = set()
        # Nothing here waits, but several threads may have event loops.
        self._lock = threading.Lock()

    async def join(self) -> str:
        owner = secrets.token_hex(16)
        self._owners.add(owner)
        return owner

    async def leave(self, owner: str) -> None:
        self._owners.discard(owner)

    async def alive(self, owner: str) -> bool:
        return owner in self._owners

    async def room(self, limit: int) -> bool:
        with self._lock:
            self._purge()
            return self._parked() < limit

    async def park(self, cell: StoredCell, owner: str, limit: int, *, again: bool) -> None:
        with self._lock:
            self._purge()
            known = self._cells.get(cell.id)
            if again and (known is None or known.holder != owner or cell.id in self._ended):
                raise Aborted
            if self._parked() >= limit:
                raise SnapshotTooLarge(FULL)
            expires = self._clock() + cell.ttl
            kept = _MemoryCell(cell.scope, cell.ttl, expires, cell.record, cell.snapshot, cell.mark)
            if known is not None:
                others = known.calls.values()
                kept.calls = {call.id: call for call in others if call.owner != owner}
                kept.replies = known.replies
            kept.calls.update({call.id: call for call in cell.calls})
            kept.replies.extend(cell.replies)
            self._cells[cell.id] = kept

    async def claim(self, cell_id: str, scope: Scope, owner: str) -> StoredCell | Refusal:
        with self._lock:
            self._purge()
            kept = self._live(cell_id)
            if kept is None:
                ended = self._ended.get(cell_id)
                return "unknown" if ended is None or ended[0] != scope else ended[1]
            if kept.scope != scope:
                return "unknown"
            if kept.holder != owner and kept.holder in self._owners:
                return "busy"
            if kept.running:
                self._bury(cell_id, "lost")
                return "lost"
            kept.holder = owner
            return kept.whole(cell_id, snapshot=False)

    async def release(self, cell_id: str, owner: str) -> None:
        with self._lock:
            kept = self._cells.get(cell_id)
            if kept is not None and kept.holder == owner and not kept.running:
                kept.holder, kept.expires = "", self._clock() + kept.ttl

    async def progress(self, cell_id: str) -> Progress | None:
        with self._lock:
            kept = self._live(cell_id)
            if kept is None:
                return None
            return Progress(tuple(kept.calls.values()), len(kept.replies))

    async def take(
        self, cell_id: str, owner: str, *, seen: bytes = b"", mark: bytes = b""
    ) -> StoredCell | None:
        with self._lock:
            kept = self._live(cell_id)
            if kept is None or kept.holder != owner or kept.running or kept.mark != seen:
                return None
            cell = kept.whole(cell_id, snapshot=True)
            kept.running, kept.snapshot, kept.mark = True, b"", mark
            kept.replies.clear()
            kept.calls = {call.id: call for call in cell.calls if call.owner != owner}
            return cell

    async def drain(self, cell_id: str) -> tuple[bytes, ...] | None:
        with self._lock:
            kept = self._live(cell_id)
            if kept is None:
                return None
            replies = tuple(kept.replies)
            kept.replies.clear()
            return replies

    async def mark(self, cell_id: str, call_id: int, owner: str, state: CallState) -> bool:
        with self._lock:
            return self._change(cell_id, call_id, owner, owner, state)

    async def adopt(self, cell_id: str, call: StoredCall, owner: str) -> bool:
        with self._lock:
            return self._change(cell_id, call.id, call.owner, owner, call.state)

    def _change(self, cell_id: str, call_id: int, old: str, new: str, state: CallState) -> bool:
        kept = self._live(cell_id)
        call = None if kept is None else kept.calls.get(call_id)
        if kept is None or call is None or call.owner != old:
            return False
        kept.calls[call_id] = StoredCall(call_id, new, state, call.body)
        return True

    async def settle(
        self, cell_id: str, call_id: int, reply: bytes, limit: int
    ) -> Literal["kept", "full", "gone"]:
        with self._lock:
            kept = self._cells.get(cell_id)
            if kept is None or call_id not in kept.calls:
                return "gone"
            if sum(map(len, kept.replies)) + len(reply) > limit:
                return "full"
            del kept.calls[call_id]
            kept.replies.append(reply)
            return "kept"

    async def end(self, cell_id: str, scope: Scope, end: End) -> bool:
        with self._lock:
            kept = self._cells.get(cell_id)
            if kept is None or kept.scope != scope:
                return False
            self._bury(cell_id, end)
            return True

    async def abort(self, cell_id: str, scope: Scope, owner: str = "") -> AbortProgress | None:
        with self._lock:
            kept = self._cells.get(cell_id)
            return self._abort(cell_id, owner) if kept and kept.scope == scope else None

    async def end_all(
        self, scope: Scope, *, session: bool = False, owner: str = ""
    ) -> dict[str, AbortProgress]:
        with self._lock:
            ids = [key for key, kept in self._cells.items() if _within(kept.scope, scope, session)]
            return {cell_id: self._abort(cell_id, owner) for cell_id in ids}

    async def gone(self, cell_ids: Iterable[str]) -> set[str]:
        with self._lock:
            return {cell_id for cell_id in cell_ids if self._live(cell_id) is None}

    async def cells(self) -> list[CellInfo]:
        with self._lock:
            self._purge()
            now = self._clock()
            return [
                CellInfo(
                    id=cell_id,
                    scope=kept.scope,
                    state=state_of(kept.running, kept.holder in self._owners),
                    age=now - kept.expires + kept.ttl,
                    left=kept.expires - now,
                )
                for cell_id, kept in self._cells.items()
            ]

    # ---- Inside of the lock ----

    def _live(self, cell_id: str) -> _MemoryCell | None:
        """A cell that has not been marked as aborted."""
        return None if cell_id in self._ended else self._cells.get(cell_id)

    def _abort(self, cell_id: str, owner: str) -> AbortProgress:
        kept = self._cells[cell_id]
        if kept.holder == owner:
            kept.holder, kept.running = "", False
        kept.calls = {call.id: call for call in kept.calls.values() if call.owner != owner}
        busy = {call.owner for call in kept.calls.values() if call.state == "running"}
        if kept.running:
            busy.add(kept.holder)
        if not busy & self._owners:
            self._bury(cell_id, "aborted")
            return "ended"
        self._ended[cell_id] = (kept.scope, "aborted")
        return "asked"

    def _parked(self) -> int:
        return sum(not kept.running for kept in self._cells.values())

    def _purge(self) -> None:
        now = self._clock()
        for cell_id in [key for key, kept in self._cells.items() if kept.expires <= now]:
            kept = self._cells[cell_id]
            # Not while somebody waits for it: that gives it new time.
            if not kept.running and kept.holder not in self._owners:
                self._bury(cell_id, "expired")

    def _bury(self, cell_id: str, end: End) -> None:
        kept = self._cells.pop(cell_id)
        self._ended[cell_id] = (kept.scope, end)
        if len(self._ended) > MAX_TOMBSTONES:
            self._ended.popitem(last=False)


def _within(mine: Scope, scope: Scope, session: bool) -> bool:
    return mine[:3] == scope[:3] if session else mine == scope


default_store = MemoryStore()
"""What a `CodeMode` parks in that is given no store: one for the process, and so is its limit."""
