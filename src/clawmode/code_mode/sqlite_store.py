"""A store of parked cells in a SQLite file, which outlive the process and are shared by processes.

<folder>/snapshot.keys    the keys that seal the cells
<folder>/cells.sqlite     the cells, in WAL mode
<folder>/parks.sqlite     the mark of the last park of each cell; an older copy does not match
<folder>/owners/<name>    the lease of an owner (see `leases`)
"""

import errno
import functools
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from clawmode.code_mode import sqlite_tables as tables
from clawmode.code_mode.leases import Leases
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
from clawmode.exceptions import Aborted, SnapshotTooLarge, StoreUnavailable
from clawmode.files import Layout, SqliteFile
from clawmode.types import CallState

logger = logging.getLogger("clawmode.store")

P = ParamSpec("P")
T = TypeVar("T")

LOCK_SECONDS = 2.0
"""How long an operation waits for operations of other processes."""

LAYOUT = Layout(
    "The store of waiting programs", tables.VERSION, tables.SCHEMA, StoreUnavailable, logger
)


def _in_thread(
    work: Callable[Concatenate["SqliteStore", P], T],
) -> Callable[Concatenate["SqliteStore", P], Coroutine[Any, Any, T]]:
    """Makes a blocking method async: it runs in a thread, one at a time for each store."""

    @functools.wraps(work)
    async def run(self: "SqliteStore", *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(work, self, *args, **kwargs)

    return run


class SqliteStore(SqliteFile):
    """Keeps parked cells in a folder. The file stays open while this process has owners.

    A cell is deleted `snapshotTtlSeconds` after its last `wait`, by default 15 minutes.

    Args:
        folder: The state folder; created if missing, for its user only.
        keys: The keys that seal the cells. Default: those of the environment, or else of the
            folder.
        clock: Returns the time of day, in seconds.

    Raises:
        StoreUnavailable: The folder cannot be created or written to.
    """

    durable = True

    def __init__(
        self,
        folder: Path | str,
        *,
        keys: KeyRing | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(Path(folder) / "cells.sqlite", LAYOUT, lock_seconds=LOCK_SECONDS)
        self._keys = keys
        self._clock = clock
        self._leases = Leases(self.folder / "owners")
        self._latest = 0.0
        # Checked here, because the first program that cannot be parked would be lost.
        try:
            self._make_folder()
            if not os.access(self.folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise StoreUnavailable(
                f"Programs that wait cannot be kept in the folder {str(self.folder)!r}: "
                f"{error.strerror or error}. Choose a folder that this process can write to."
            ) from None

    @property
    def keys(self) -> KeyRing:
        if self._keys is None:
            self._keys = KeyRing.load(self.folder)
        return self._keys

    def close(self) -> None:
        """Ends all owners and closes the file. Idempotent; the next use opens the file again.

        Do not close a store that a `CodeMode` still uses: other processes would take its calls
        over.
        """
        self._leases.release_all()
        super().close()

    def _open(self) -> sqlite3.Connection:
        path = self.folder / "parks.sqlite"
        self._make_folder()
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        database = super()._open()
        try:
            database.execute("attach database ? as ledger", (str(path),))
            for statement in tables.LEDGER.split(";\n"):
                database.execute(statement)
        except BaseException:
            self._close()
            raise
        return database

    # ---- Owners ----

    @_in_thread
    def join(self) -> str:
        self._make_folder()
        owner = self._leases.acquire()
        with self._transaction() as database:
            # Ends expired cells whose process died while it held them.
            overdue = "select id, running, holder from cells where holder != '' and expires <= ?"
            for cell_id, running, holder in database.execute(overdue, (self._clock(),)).fetchall():
                if not self._leases.alive(holder):
                    tables.bury(database, cell_id, "lost" if running else "expired")
            database.execute("delete from ledger.parks where cell not in (select id from cells)")
        return owner

    @_in_thread
    def leave(self, owner: str) -> None:
        self._leases.release(owner)
        if not self._leases:
            self._close()

    def _forked(self) -> None:
        """Runs in the child of a fork, which must not keep the parent's owners alive."""
        self._leases.forget()
        super()._forked()

    @_in_thread
    def alive(self, owner: str) -> bool:
        return self._leases.alive(owner)

    # ---- Parking ----

    @_in_thread
    def room(self, limit: int) -> bool:
        with self._transaction() as database:
            self._purge(database)
            return tables.count_parked(database) < limit

    @_in_thread
    def park(self, cell: StoredCell, owner: str, limit: int, *, again: bool) -> None:
        with self._transaction() as database:
            self._purge(database)
            held = tables.is_held_by(database, cell.id, owner) and tables.is_live(database, cell.id)
            if again and not held:
                raise Aborted
            if tables.count_parked(database) >= limit:
                raise SnapshotTooLarge(FULL)
            tables.insert_cell(database, cell, owner, self._clock() + cell.ttl)

    # ---- Resuming ----

    @_in_thread
    def claim(self, cell_id: str, scope: Scope, owner: str) -> StoredCell | Refusal:
        with self._transaction() as database:
            self._purge(database)
            row = database.execute(
                "select running, holder, ttl, expires, record from cells where id = ?"
                " and agent = ? and session = ? and session_key = ? and run = ?",
                (cell_id, *scope),
            ).fetchone()
            if row is None or not tables.is_live(database, cell_id):
                return tables.end_of(database, cell_id, scope)
            running, holder, ttl, expires, record = row
            if holder and holder != owner and self._leases.alive(holder):
                return "busy"
            # A claim of this owner keeps the cell alive, as in `_purge`.
            if running or (holder != owner and expires <= self._clock()):
                end: End = "lost" if running else "expired"
                tables.bury(database, cell_id, end)
                return end
            database.execute("update cells set holder = ? where id = ?", (owner, cell_id))
            return StoredCell(
                id=cell_id,
                scope=scope,
                ttl=ttl,
                record=record,
                snapshot=b"",
                calls=tables.calls_of(database, cell_id),
                mark=tables.mark_of(database, cell_id),
            )

    @_in_thread
    def release(self, cell_id: str, owner: str) -> None:
        with self._transaction() as database:
            database.execute(
                "update cells set holder = '', expires = ? + ttl"
                " where id = ? and holder = ? and not running",
                (self._clock(), cell_id, owner),
            )

    @_in_thread
    def progress(self, cell_id: str) -> Progress | None:
        with self._transaction("deferred") as database:
            if not tables.is_live(database, cell_id):
                return None
            count = "select count(*) from replies where cell = ?"
            (replies,) = database.execute(count, (cell_id,)).fetchone()
            return Progress(tables.calls_of(database, cell_id), replies)

    @_in_thread
    def take(
        self, cell_id: str, owner: str, *, seen: bytes = b"", mark: bytes = b""
    ) -> StoredCell | None:
        with self._transaction() as database:
            row = database.execute(
                "select agent, session, session_key, run, ttl, record, snapshot from cells"
                " where id = ? and holder = ? and not running",
                (cell_id, owner),
            ).fetchone()
            if row is None or not tables.is_live(database, cell_id):
                return None
            if tables.mark_of(database, cell_id) != seen:
                return None
            database.execute("update ledger.parks set mark = ? where cell = ?", (mark, cell_id))
            *scope, ttl, record, snapshot = row
            cell = StoredCell(
                id=cell_id,
                scope=Scope(*scope),
                ttl=ttl,
                record=record,
                snapshot=snapshot,
                calls=tables.calls_of(database, cell_id),
                replies=tables.pop_replies(database, cell_id),
                mark=seen,
            )
            running = "update cells set running = 1, snapshot = x'' where id = ?"
            database.execute(running, (cell_id,))
            database.execute("delete from calls where cell = ? and owner = ?", (cell_id, owner))
            return cell

    @_in_thread
    def drain(self, cell_id: str) -> tuple[bytes, ...] | None:
        with self._transaction() as database:
            if not tables.is_live(database, cell_id):
                return None
            return tables.pop_replies(database, cell_id)

    # ---- Calls ----

    @_in_thread
    def mark(self, cell_id: str, call_id: int, owner: str, state: CallState) -> bool:
        return self._change(cell_id, call_id, owner, owner, state)

    @_in_thread
    def adopt(self, cell_id: str, call: StoredCall, owner: str) -> bool:
        return self._change(cell_id, call.id, call.owner, owner, call.state)

    def _change(self, cell_id: str, call_id: int, old: str, new: str, state: CallState) -> bool:
        with self._transaction() as database:
            if not tables.is_live(database, cell_id):
                return False
            changed = database.execute(
                "update calls set owner = ?, state = ? where cell = ? and id = ? and owner = ?",
                (new, state, cell_id, call_id, old),
            )
            return changed.rowcount == 1

    @_in_thread
    def settle(
        self, cell_id: str, call_id: int, reply: bytes, limit: int
    ) -> Literal["kept", "full", "gone"]:
        with self._transaction() as database:
            found = "select 1 from calls where cell = ? and id = ?"
            if not database.execute(found, (cell_id, call_id)).fetchone():
                return "gone"
            total = "select coalesce(sum(length(body)), 0) from replies where cell = ?"
            (waiting,) = database.execute(total, (cell_id,)).fetchone()
            if waiting + len(reply) > limit:
                return "full"
            database.execute("delete from calls where cell = ? and id = ?", (cell_id, call_id))
            database.execute("insert into replies (cell, body) values (?, ?)", (cell_id, reply))
            return "kept"

    # ---- Ending ----

    @_in_thread
    def end(self, cell_id: str, scope: Scope, end: End) -> bool:
        with self._transaction() as database:
            found = tables.is_of_scope(database, cell_id, scope)
            if found:
                tables.bury(database, cell_id, end)
            return found

    @_in_thread
    def abort(self, cell_id: str, scope: Scope, owner: str = "") -> AbortProgress | None:
        with self._transaction() as database:
            found = tables.is_of_scope(database, cell_id, scope)
            return self._abort_one(database, cell_id, owner) if found else None

    def _abort_one(self, database: sqlite3.Connection, cell_id: str, owner: str) -> AbortProgress:
        own = (cell_id, owner)
        database.execute(
            "update cells set holder = '', running = 0, snapshot = x'' where id = ? and holder = ?",
            own,
        )
        database.execute("delete from calls where cell = ? and owner = ?", own)
        others = database.execute(
            "select holder from cells where id = ? and running"
            " union select owner from calls where cell = ? and state = 'running'",
            (cell_id, cell_id),
        ).fetchall()
        if not any(self._leases.alive(other) for (other,) in others):
            tables.bury(database, cell_id, "aborted")
            return "ended"
        tables.note_end(database, cell_id, "aborted")
        return "asked"

    @_in_thread
    def gone(self, cell_ids: Iterable[str]) -> set[str]:
        with self._transaction("deferred") as database:
            return {cell_id for cell_id in cell_ids if not tables.is_live(database, cell_id)}

    @_in_thread
    def end_all(
        self, scope: Scope, *, session: bool = False, owner: str = ""
    ) -> dict[str, AbortProgress]:
        with self._transaction() as database:
            rows = database.execute(
                "select id from cells where agent = ? and session = ? and session_key = ?"
                " and (? or run = ?)",
                (*scope[:3], session, scope.run_id),
            ).fetchall()
            return {cell_id: self._abort_one(database, cell_id, owner) for (cell_id,) in rows}

    @_in_thread
    def cells(self) -> list[CellInfo]:
        with self._transaction() as database:
            self._purge(database)
            now = self._clock()
            rows = database.execute(
                "select id, agent, session, session_key, run, running, holder, ttl, expires"
                " from cells order by expires"
            ).fetchall()
            return [
                CellInfo(
                    id=cell_id,
                    scope=Scope(*scope),
                    state=state_of(bool(running), bool(holder) and self._leases.alive(holder)),
                    age=now - expires + ttl,
                    left=expires - now,
                )
                for cell_id, *scope, running, holder, ttl, expires in rows
            ]

    def _purge(self, database: sqlite3.Connection) -> None:
        now = self._clock()
        if now < self._latest - 1 or not self._latest:
            # The clock was set back, or may have been since another process wrote the file.
            # Without this, a cell could live for years.
            clamp = "update cells set expires = ? + ttl where expires > ? + ttl"
            database.execute(clamp, (now, now))
        self._latest = now
        # A pending `wait` keeps a cell alive, and restarts its time to live at its end.
        expired = "select id from cells where holder = '' and expires <= ?"
        for (cell_id,) in database.execute(expired, (now,)).fetchall():
            tables.bury(database, cell_id, "expired")
