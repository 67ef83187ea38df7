"""Shelves in a SQLite file, what operators need, and how blocking methods become async."""

import functools
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, TypeVar

from clawmode.code_mode import sqlite_tables as tables
from clawmode.code_mode.bus import LocalBus
from clawmode.code_mode.nodes import Report
from clawmode.code_mode.shelves import Shelf, ShelfLimits
from clawmode.files import Layout, SqliteFile

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=SqliteFile)


def in_thread(
    work: Callable[Concatenate[S, P], T],
) -> "Callable[Concatenate[S, P], CoroutineType[Any, Any, T]]":
    """Makes a blocking method async: it runs in a thread, one at a time for each file."""

    @functools.wraps(work)
    async def run(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(work, self, *args, **kwargs)

    made: Any = run  # pyright insists on `CoroutineType` for `SnapshotStore`, others infer less
    return made


class SqliteShelves(SqliteFile):
    """Keeps shelves in the table `shelves` of a file.

    Args:
        path: The file.
        layout: What the file contains.
        lock_seconds: How long an operation waits for another process.
        clock: Returns the time of day, in seconds.
    """

    def __init__(
        self, path: Path, layout: Layout, *, lock_seconds: float, clock: Callable[[], float]
    ) -> None:
        super().__init__(path, layout, lock_seconds=lock_seconds)
        self._clock = clock
        self.bus = LocalBus()

    @contextmanager
    def _changing(self, cell_id: str) -> Iterator[sqlite3.Connection]:
        """A transaction after which those who watch a cell are woken."""
        with self._transaction() as database:
            yield database
        self.bus.wake(cell_id)

    @in_thread
    def report(self) -> Report:
        """Returns what operators want to know about the file."""
        with self._transaction("deferred") as database:
            parked, running = (tables.count(database, running=it) for it in (False, True))
            return Report(tables.VERSION, parked, parked, running)

    @in_thread
    def discard(self, cell_id: str, owner: str, fence: int) -> bool:
        """Deletes a cell that `owner` has, as if there had never been one: it was moved."""
        with self._transaction() as database:
            row = tables.find(database, cell_id)
            if row is None or not row.of(owner, fence):
                return False
            tables.bury(database, cell_id, "expired")
            database.execute("delete from ended where id = ?", (cell_id,))
            return True

    @in_thread
    def shelves(self) -> list[tuple[Shelf, float]]:
        """Returns all shelves, with the seconds until each expires."""
        with self._transaction() as database:
            now = self._clock()
            rows = database.execute(
                "select session, run, kind, max(expires) from shelves where expires > ?"
                " group by session, run, kind",
                (now,),
            ).fetchall()
            return [(Shelf(*names), expires - now) for *names, expires in rows]

    @in_thread
    def read_shelf(self, shelf: Shelf, ttl: float) -> dict[str, bytes]:
        """Returns the rows of a shelf. Restarts its time to live if a tenth of that has passed."""
        with self._transaction() as database:
            now = self._clock()
            # As bytes: somebody who alters the file may write anything, which would not be read as
            # text.
            rows = database.execute(
                "select cast(name as blob), cast(body as blob), expires from shelves"
                " where session = ? and run = ? and kind = ? and expires > ?",
                (*shelf, now),
            ).fetchall()
            if any(expires < now + ttl * 0.9 for _, _, expires in rows):
                renew = "update shelves set expires = ? where session = ? and run = ? and kind = ?"
                database.execute(renew, (now + ttl, *shelf))
            return {name.decode("utf-8", "replace"): body or b"" for name, body, _ in rows}

    @in_thread
    def write_shelf(
        self, shelf: Shelf, rows: Mapping[str, bytes | None], ttl: float, most: ShelfLimits
    ) -> bool:
        with self._transaction() as database:
            self._purge_shelves(database)
            held = "select hex(name), length(body) from shelves"
            held += " where session = ? and run = ? and kind = ?"
            sizes: dict[str, int | None] = dict(database.execute(held, shelf))
            for name, body in rows.items():
                sizes[name.encode().hex().upper()] = None if body is None else len(body)
            if not most.allow([size for size in sizes.values() if size is not None]):
                return False
            database.executemany(
                "delete from shelves where session = ? and run = ? and kind = ? and name = ?",
                [(*shelf, name) for name in rows],
            )
            expires = self._clock() + ttl
            kept = [
                (*shelf, name, body, expires) for name, body in rows.items() if body is not None
            ]
            database.executemany("insert into shelves values (?, ?, ?, ?, ?, ?)", kept)
            return True

    @in_thread
    def drop_shelves(self, session: str, run: str | None = None) -> None:
        with self._transaction() as database:
            ended = "delete from shelves where session = ? and (? is null or run = ?)"
            database.execute(ended, (session, run, run))

    def _purge_shelves(self, database: sqlite3.Connection) -> None:
        database.execute("delete from shelves where expires <= ?", (self._clock(),))
