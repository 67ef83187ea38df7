"""A store of parked cells in memory: cells end with the process."""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from clawmode.code_mode.snapshots import KeyRing
from clawmode.code_mode.stores import (
    FULL,
    AbortProgress,
    CellInfo,
    End,
    Progress,
    Refusal,
    StoredCall,
    StoredCell,
    state_of,
)
from clawmode.context import Scope
from clawmode.exceptions import Aborted, SnapshotTooLarge
from clawmode.types import CallState

MAX_TOMBSTONES = 1024


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
    """Keeps parked cells until the process ends.

    Args:
        clock: Returns the time in seconds, and must be monotonic.
    """

    durable = False

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.keys = KeyRing.ephemeral()
        self._clock = clock
        self._cells: dict[str, _MemoryCell] = {}
        self._ended: OrderedDict[str, tuple[Scope, End]] = OrderedDict()
        self._owners: set[str] = set()
        # No method blocks, but event loops in several threads may share a store.
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
            ids = [
                cell_id
                for cell_id, kept in self._cells.items()
                if (kept.scope[:3] == scope[:3] if session else kept.scope == scope)
            ]
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

    # ---- With the lock held ----

    def _live(self, cell_id: str) -> _MemoryCell | None:
        """Returns a cell unless it is marked as aborted."""
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
            # A pending `wait` keeps a cell alive, and restarts its time to live at its end.
            if not kept.running and kept.holder not in self._owners:
                self._bury(cell_id, "expired")

    def _bury(self, cell_id: str, end: End) -> None:
        kept = self._cells.pop(cell_id)
        self._ended[cell_id] = (kept.scope, end)
        if len(self._ended) > MAX_TOMBSTONES:
            self._ended.popitem(last=False)


default_store = MemoryStore()
"""The store of every `CodeMode` without its own: one per process, as is the limit on cells."""
