"""A store of parked cells in memory: cells end with the process."""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import field, replace
from typing import Literal, NamedTuple

from clawmode.code_mode.bus import LocalBus
from clawmode.code_mode.shelves import MemoryShelves
from clawmode.code_mode.snapshots import KeyRing
from clawmode.code_mode.stores import (
    ANY,
    FULL,
    AbortProgress,
    CellInfo,
    End,
    Ended,
    Only,
    Progress,
    Refusal,
    StoredCall,
    StoredCell,
    StoredReply,
    state_of,
)
from clawmode.context import Scope
from clawmode.exceptions import Aborted, SnapshotTooLarge
from clawmode.types import CallState, dataclass

MAX_TOMBSTONES = 1024


@dataclass(slots=True)
class _MemoryCell:
    """A cell: as it was stored, without calls and replies, and what changed since."""

    stored: StoredCell
    written: float
    expires: float
    mark: bytes
    fence: int
    holder: str = ""
    running: bool = False
    kept: bool = False
    calls: dict[int, StoredCall] = field(default_factory=dict[int, StoredCall])
    replies: dict[int, StoredReply] = field(default_factory=dict[int, StoredReply])

    @property
    def scope(self) -> Scope:
        return self.stored.scope

    def whole(self, now: float, mark: bytes, *, snapshot: bool) -> StoredCell:
        """Returns the cell for a claim, or with its snapshot for the one who takes it."""
        age, due_in = now - self.written, self.stored.due_in
        return replace(
            self.stored,
            snapshot=self.stored.snapshot if snapshot else b"",
            calls=tuple(self.calls.values()),
            replies=tuple(self.replies.values()) if snapshot else (),
            mark=mark,
            fence=self.fence,
            due_in=None if due_in is None else due_in - age,
            age=age,
        )


class _Tombstone(NamedTuple):
    scope: Scope
    end: End
    ledger: bytes
    fence: int


class MemoryStore(MemoryShelves):
    """Keeps parked cells until the process ends.

    Args:
        clock: Returns the time in seconds, and must be monotonic.
    """

    durable = False
    fleet = False

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self.keys = KeyRing.ephemeral()
        self.bus = LocalBus()
        self._cells: dict[str, _MemoryCell] = {}
        self._ended: OrderedDict[str, _Tombstone] = OrderedDict()
        self._owners: set[str] = set()

    async def join(self) -> str:
        owner = secrets.token_hex(16)
        self._owners.add(owner)
        return owner

    async def leave(self, owner: str) -> None:
        self._owners.discard(owner)

    async def alive(self, owner: str) -> bool:
        return owner in self._owners

    async def room(self, limit: int) -> bool:
        return await self.count_parked() < limit

    async def park(
        self,
        cell: StoredCell,
        owner: str,
        limit: int,
        *,
        again: bool,
        have: Collection[int] = (),
    ) -> None:
        with self._lock:
            self._purge()
            if self._known(cell, owner, again=again):
                return
            if self._parked() >= limit:
                raise SnapshotTooLarge(FULL)
            self._write(cell, owner, cell.fence, have)

    async def checkpoint(
        self, cell: StoredCell, owner: str, *, again: bool, have: Collection[int] = ()
    ) -> int:
        with self._lock:
            fence = cell.fence + 1 if again else 1
            if not self._known(cell, owner, again=again):
                self._write(cell, owner, fence, have)
                kept = self._cells[cell.id]
                kept.holder, kept.running, kept.kept = owner, True, True
            elif self._mine(cell.id, owner, fence) is None:
                raise Aborted  # somebody has claimed it since
            return fence

    async def claim(
        self, cell_id: str, scope: Scope, owner: str, images: Collection[bytes] | None = None
    ) -> StoredCell | Refusal:
        with self._lock:
            self._purge()
            kept = self._live(cell_id)
            if kept is None:
                ended = self._ended.get(cell_id)
                return "unknown" if ended is None or ended.scope != scope else ended.end
            if kept.scope != scope:
                return "unknown"
            if kept.holder != owner and kept.holder in self._owners:
                return "busy"
            if kept.running and not kept.kept:
                self._bury(cell_id, "lost")
                return "lost"
            if images is not None and kept.stored.image not in (b"", *images):
                return "elsewhere"
            kept.holder, kept.running, kept.fence = owner, False, kept.fence + 1
            return kept.whole(self._clock(), kept.mark, snapshot=False)

    async def release(self, cell_id: str, owner: str, fence: int) -> None:
        with self._lock:
            kept = self._cells.get(cell_id)  # also one that was aborted meanwhile
            mine = kept is not None and (kept.holder, kept.fence) == (owner, fence)
            if kept is not None and mine and (kept.kept or not kept.running):
                kept.holder, kept.running = "", False
                kept.expires = self._clock() + kept.stored.ttl

    async def progress(self, cell_id: str) -> Progress | None:
        with self._lock:
            if (kept := self._live(cell_id)) is None:
                return None
            return Progress(tuple(kept.calls.values()), len(kept.replies))

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
        with self._lock:
            kept, after = self._mine(cell_id, owner, fence), seen if keep else mark
            if kept is None or kept.mark != (after if kept.running else seen):
                return None
            if kept.running and kept.kept != keep:  # not a repetition of the same `take`
                return None
            kept.running, kept.kept, kept.mark = True, keep, after
            return kept.whole(self._clock(), seen, snapshot=True)

    async def drain(
        self,
        cell_id: str,
        owner: str,
        fence: int,
        have: Collection[int] = (),
        *,
        keep: bool = False,
    ) -> tuple[StoredReply, ...] | None:
        with self._lock:
            kept = self._mine(cell_id, owner, fence)
            if kept is None or not kept.running:
                return None
            if not keep:
                _drop(kept.replies, have)
            return tuple(reply for reply in kept.replies.values() if reply.call not in have)

    async def mark(self, cell_id: str, call_id: int, owner: str, state: CallState) -> bool:
        with self._lock:
            kept = self._live(cell_id)
            call = None if kept is None else kept.calls.get(call_id)
            if kept is None or call is None or call.owner != owner:
                return False
            kept.calls[call_id] = replace(call, state=state)
            return True

    async def adopt(self, cell_id: str, call: StoredCall, owner: str, fence: int) -> bool:
        with self._lock:
            kept = self._mine(cell_id, owner, fence)
            found = None if kept is None else kept.calls.get(call.id)
            known = found and found.owner in (call.owner, owner) and found.state == call.state
            if kept is None or found is None or not known:
                return False
            kept.calls[call.id] = replace(found, owner=owner)
            return True

    async def settle(
        self, cell_id: str, call_id: int, owner: str, reply: bytes, limit: int
    ) -> Literal["kept", "full", "gone"]:
        with self._lock:
            kept, made = self._cells.get(cell_id), StoredReply(call_id, reply)
            if kept is None:
                return "gone"
            if kept.replies.get(call_id) == made:
                return "kept"
            if call_id not in kept.calls or kept.calls[call_id].owner != owner:
                return "gone"
            if sum(len(each.body) for each in kept.replies.values()) + len(reply) > limit:
                return "full"
            del kept.calls[call_id]
            kept.replies.setdefault(call_id, made)
            self.bus.wake(cell_id)
            return "kept"

    async def end(
        self, cell_id: str, scope: Scope, end: End, fence: int, ledger: bytes = b""
    ) -> bool:
        with self._lock:
            kept, grave = self._cells.get(cell_id), self._ended.get(cell_id)
            if kept is None:
                same = (scope, end, fence)
                return grave is not None and (grave.scope, grave.end, grave.fence) == same
            if kept.scope != scope or kept.fence != fence:
                return False
            self._bury(cell_id, end, ledger)
            return True

    async def ended(self, cell_id: str, scope: Scope) -> Ended | None:
        with self._lock:
            self._purge()
            grave = self._ended.get(cell_id)
            known = grave is not None and grave.scope == scope
            return Ended(grave.end, grave.ledger) if grave is not None and known else None

    async def abort(
        self, cell_id: str, scope: Scope, owner: str = "", fence: int | None = None
    ) -> AbortProgress | None:
        with self._lock:
            kept = self._cells.get(cell_id)
            if kept is None or kept.scope != scope:
                return None
            mine = kept.fence == fence and kept.holder in ("", owner)
            if fence is not None and not mine and cell_id not in self._ended:
                return "ended"
            return self._abort(cell_id, owner)

    async def end_all(
        self, scope: Scope, *, session: bool = False, owner: str = ""
    ) -> dict[str, AbortProgress]:
        with self._lock:
            ids = [
                cell_id
                for cell_id, kept in self._cells.items()
                if (kept.scope[:3] == scope[:3] if session else kept.scope == scope)
            ]
            return {cell_id: self._abort(cell_id, owner) for cell_id in ids}

    async def gone(self, cell_ids: Iterable[str]) -> set[str]:
        with self._lock:
            return {cell_id for cell_id in cell_ids if self._live(cell_id) is None}

    async def count_parked(self) -> int:
        with self._lock:
            self._purge()
            return self._parked()

    async def cells(
        self, scope: Scope | None = None, limit: int | None = None, only: Only = ANY
    ) -> list[CellInfo]:
        with self._lock:
            self._purge()
            now = self._clock()
            found = [
                CellInfo(
                    id=cell_id,
                    scope=kept.scope,
                    state=state_of(kept.running, kept.kept, kept.holder in self._owners),
                    age=now - kept.expires + kept.stored.ttl,
                    left=kept.expires - now,
                )
                for cell_id, kept in self._cells.items()
                if scope in (None, kept.scope) and only.fits(cell_id, kept.scope)
            ]
        return sorted(found, key=lambda info: info.left)[:limit]

    # ---- With the lock held ----

    def _live(self, cell_id: str) -> _MemoryCell | None:
        """Returns a cell unless it is marked as aborted."""
        return None if cell_id in self._ended else self._cells.get(cell_id)

    def _mine(self, cell_id: str, owner: str, fence: int) -> _MemoryCell | None:
        """Returns a cell that the owner has claimed or taken under this fence."""
        kept = self._live(cell_id)
        return kept if kept and (kept.holder, kept.fence) == (owner, fence) else None

    def _known(self, cell: StoredCell, owner: str, *, again: bool) -> bool:
        """True if the cell was stored before exactly like this.

        Raises:
            Aborted: It must not be stored.
        """
        kept = self._live(cell.id)
        if kept is not None and cell.mark and kept.mark == cell.mark:
            return True
        mine = self._mine(cell.id, owner, cell.fence)
        if again and (mine is None or not mine.running):
            raise Aborted
        if not again and (kept is not None or cell.id in self._ended):
            raise Aborted
        return False

    def _write(self, cell: StoredCell, owner: str, fence: int, have: Collection[int]) -> None:
        known, now = self._cells.get(cell.id), self._clock()
        bare = replace(cell, calls=(), replies=())
        kept = _MemoryCell(bare, now, now + cell.ttl, cell.mark, fence)
        if known is not None:
            others = known.calls.values()
            kept.calls = {call.id: call for call in others if call.owner != owner}
            kept.replies = known.replies
        _drop(kept.replies, have)
        for call in cell.calls:  # unless another process has adopted it meanwhile
            kept.calls.setdefault(call.id, call)
        for reply in cell.replies:
            kept.replies.setdefault(reply.call, reply)
        self._cells[cell.id] = kept

    def _abort(self, cell_id: str, owner: str) -> AbortProgress:
        kept = self._cells[cell_id]
        self.bus.wake(cell_id)
        if kept.holder == owner:
            kept.holder, kept.running = "", False
        kept.calls = {call.id: call for call in kept.calls.values() if call.owner != owner}
        busy = {call.owner for call in kept.calls.values() if call.state == "running"}
        if kept.running:
            busy.add(kept.holder)
        if not busy & self._owners:
            self._bury(cell_id, "aborted")
            return "ended"
        self._ended[cell_id] = _Tombstone(kept.scope, "aborted", kept.stored.ledger, kept.fence)
        return "asked"

    def _parked(self) -> int:
        return sum(not kept.running for kept in self._cells.values())

    def _purge(self) -> None:
        now = self._clock()
        self._purge_shelves(now)
        for cell_id, kept in [item for item in self._cells.items() if item[1].expires <= now]:
            # A pending `wait` keeps a cell alive, and restarts its time to live at its end.
            if kept.holder not in self._owners and (kept.kept or not kept.running):
                self._bury(cell_id, "expired")

    def _bury(self, cell_id: str, end: End, ledger: bytes = b"") -> None:
        kept = self._cells.pop(cell_id)
        self.bus.wake(cell_id)
        ledger = ledger or kept.stored.ledger
        self._ended[cell_id] = _Tombstone(kept.scope, end, ledger, kept.fence)
        if len(self._ended) > MAX_TOMBSTONES:
            self._ended.popitem(last=False)


def _drop(replies: dict[int, StoredReply], calls: Collection[int]) -> None:
    for call in calls:
        replies.pop(call, None)


default_store = MemoryStore()
"""The store of every `CodeMode` without its own: one per process, as is the limit on cells."""
