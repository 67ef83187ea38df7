"""Shelves: rows that programs leave for each other, in a store besides the cells; and in memory."""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

MAX_SHELVES_BYTES = 64 << 20
"""Bytes of all shelves; the one that was not used for longest is dropped first."""


class Shelf(NamedTuple):
    """A place for sealed rows of a run, or of a session: then `run` is empty.

    All three are opaque. `kind` keeps the shelves of one run apart.
    """

    session: str
    run: str
    kind: str


class ShelfLimits(NamedTuple):
    """How much a shelf may hold."""

    rows: int
    size: int

    def allow(self, sizes: Collection[int]) -> bool:
        """True if rows of these sizes fit."""
        return len(sizes) <= self.rows and sum(sizes) <= self.size


class ShelfStore(Protocol):
    """Keeps shelves. Every method is one transaction, and may raise `StoreUnavailable`."""

    async def read_shelf(self, shelf: Shelf, ttl: float) -> dict[str, bytes]:
        """Returns the rows of a shelf by name, and restarts its time to live."""
        ...

    async def write_shelf(
        self, shelf: Shelf, rows: Mapping[str, bytes | None], ttl: float, most: ShelfLimits
    ) -> bool:
        """Writes rows, or deletes those that are None. Returns False if the shelf is too full."""
        ...

    async def drop_shelves(self, session: str, run: str | None = None) -> None:
        """Deletes the shelves of a run, or of a session and all its runs."""
        ...


class MemoryShelves:
    """Keeps shelves until the process ends.

    Args:
        clock: Returns the time in seconds, and must be monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._shelves: OrderedDict[Shelf, tuple[float, dict[str, bytes]]] = OrderedDict()
        # No method blocks, but event loops in several threads may share a store.
        self._lock = threading.Lock()

    async def read_shelf(self, shelf: Shelf, ttl: float) -> dict[str, bytes]:
        with self._lock:
            rows = self._rows(shelf)
            if rows:
                self._shelves[shelf] = (self._clock() + ttl, rows)
                self._shelves.move_to_end(shelf)
            return dict(rows)

    async def write_shelf(
        self, shelf: Shelf, rows: Mapping[str, bytes | None], ttl: float, most: ShelfLimits
    ) -> bool:
        with self._lock:
            changed = {**self._rows(shelf), **rows}
            kept = {name: body for name, body in changed.items() if body is not None}
            if not most.allow([len(body) for body in kept.values()]):
                return False
            self._shelves.pop(shelf, None)
            if kept:
                self._shelves[shelf] = (self._clock() + ttl, kept)
            total = sum(len(body) for _, held in self._shelves.values() for body in held.values())
            while total > MAX_SHELVES_BYTES:
                _, (_, oldest) = self._shelves.popitem(last=False)
                total -= sum(map(len, oldest.values()))
            return True

    async def drop_shelves(self, session: str, run: str | None = None) -> None:
        with self._lock:
            for shelf in list(self._shelves):
                if shelf.session == session and run in (None, shelf.run):
                    del self._shelves[shelf]

    # ---- With the lock held ----

    def _rows(self, shelf: Shelf) -> dict[str, bytes]:
        expires, rows = self._shelves.get(shelf, (-math.inf, dict[str, bytes]()))
        return rows if expires > self._clock() else {}

    def _purge_shelves(self, now: float) -> None:
        for shelf in [key for key, (expires, _) in self._shelves.items() if expires <= now]:
            del self._shelves[shelf]
