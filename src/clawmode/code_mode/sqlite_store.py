"""Parked cells in a SQLite file: they outlive the process, and go on in any that has the folder.

    <folder>/snapshot.keys    what seals the cells
    <folder>/cells.sqlite     the cells, in WAL
    <folder>/parks.sqlite     the mark of each cell's last park: an older copy does not fit it
    <folder>/owners/<name>    locked by the process that lives under that name

An owner's lease is a lock that the kernel gives back when its process dies: no clock, no heartbeat,
and a process that was merely stopped for an hour still has its calls. It works on one machine, and
so does SQLite in WAL.
"""

import contextlib
import errno
import logging
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, get_args

from clawmode.code_mode.snapshots import KeyRing
from clawmode.code_mode.stores import (
    FULL,
    AbortProgress,
    CallState,
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
from clawmode.files import Layout, SqliteFile, is_locked, open_lock, try_lock

logger = logging.getLogger("clawmode.store")

VERSION = 1
MAX_TOMBSTONES = 10_000
LOCK_SECONDS = 2.0
"""How long an operation waits for another process's."""

SCHEMA = """
create table cells (
    id text primary key,
    agent text not null, session text not null, session_key text not null, run text not null,
    running integer not null default 0,
    holder text not null default '',
    ttl real not null, expires real not null,
    record blob not null, snapshot blob not null
);
create index cells_by_scope on cells (agent, session, session_key, run);
create index cells_by_expiry on cells (holder, expires);
create index cells_by_state on cells (running);
create table calls (
    cell text not null, id integer not null,
    owner text not null, state text not null, body blob not null,
    primary key (cell, id)
);
create table replies (
    number integer primary key autoincrement,
    cell text not null, body blob not null
);
create index replies_by_cell on replies (cell);
create table ended (
    number integer primary key autoincrement,
    id text not null unique,
    agent text not null, session text not null, session_key text not null, run text not null,
    end text not null
);
"""

LEDGER = """
pragma ledger.journal_mode = wal;
pragma ledger.synchronous = normal;
create table if not exists ledger.parks (cell text primary key, mark blob not null);
"""

_OWNER = re.compile(r"[0-9a-f]{32}")

LAYOUT = Layout("The store of waiting programs", VERSION, SCHEMA, StoreUnavailable, logger)


class SqliteStore(SqliteFile):
    """Cells in a folder. The file is open as long as there are owners.

    A cell that nobody waits for is deleted after `snapshotTtlSeconds`, by default 15 minutes; each
    `wait` gives it as much time again.

    Args:
        folder: The state folder; made if it is not there, for its user only.
        keys: What seals the cells. Default: the environment's, else those in the folder.
        clock: Tells the time of day, in seconds.

    Raises:
        StoreUnavailable: The folder cannot be made or written to.
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
        # Now, and not when the first program has to be parked and is lost.
        self._check_folder()
        self._keys = keys
        self._clock = clock
        self._locks: dict[str, int] = {}
        self._latest = 0.0

    def _check_folder(self) -> None:
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
        """What seals the cells."""
        if self._keys is None:
            self._keys = KeyRing.load(self.folder)
        return self._keys

    def close(self) -> None:
        """Gives up all owners and closes the file. Idempotent; the next use opens it again.

        Not for a store that a `CodeMode` still uses: its calls would count as those of the dead.
        """
        for owner in list(self._locks):
            self._leave(owner)
        super().close()

    def _open(self) -> sqlite3.Connection:
        path = self.folder / "parks.sqlite"
        self._make_folder()
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        database = super()._open()
        try:
            database.execute("attach database ? as ledger", (str(path),))
            for statement in LEDGER.split(";\n"):
                database.execute(statement)
        except BaseException:
            self._close()
            raise
        return database

    # ---- Owners ----

    async def join(self) -> str:
        return await self._run(self._join)

    def _join(self) -> str:
        owner = secrets.token_hex(16)
        owners = self.folder / "owners"
        self._make_folder()
        owners.mkdir(mode=0o700, exist_ok=True)
        self._sweep(owners)
        # Locked before it has its name: under that, an unlocked file means death.
        temporary = owners / f"{owner}.new"
        descriptor = open_lock(temporary, new=True)
        locked = try_lock(descriptor)
        assert locked, "nobody else knows the name of this file"
        os.rename(temporary, owners / owner)
        self._locks[owner] = descriptor
        with self._transaction() as database:
            self._forget_lost(database)
            database.execute("delete from ledger.parks where cell not in (select id from cells)")
        return owner

    def _forget_lost(self, database: sqlite3.Connection) -> None:
        """Cells whose process died with them, and for which nobody came in time."""
        overdue = "select id, running, holder from cells where holder != '' and expires <= ?"
        for cell_id, running, holder in database.execute(overdue, (self._clock(),)).fetchall():
            if not self._alive(holder):
                self._bury(database, cell_id, "lost" if running else "expired")

    def _sweep(self, owners: Path) -> None:
        for path in owners.iterdir():
            if _OWNER.fullmatch(path.name):
                self._alive(path.name)

    async def leave(self, owner: str) -> None:
        await self._run(self._leave, owner)

    def _leave(self, owner: str) -> None:
        descriptor = self._locks.pop(owner, None)
        if descriptor is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.folder / "owners" / owner)
            os.close(descriptor)
        if not self._locks:
            self._close()

    def _forked(self) -> None:
        """In a child: the locks are the parent's, and must not outlive it."""
        for descriptor in self._locks.values():
            os.close(descriptor)
        self._locks.clear()
        super()._forked()

    async def alive(self, owner: str) -> bool:
        return await self._run(self._alive, owner)

    def _alive(self, owner: str) -> bool:
        if owner in self._locks:
            return True
        # What the file says is not trusted: a name is part of a path.
        if not isinstance(owner, str) or not _OWNER.fullmatch(owner):
            return False
        path = self.folder / "owners" / owner
        if is_locked(path):
            return True
        path.unlink(missing_ok=True)
        return False

    # ---- Parking ----

    async def room(self, limit: int) -> bool:
        return await self._run(self._room, limit)

    def _room(self, limit: int) -> bool:
        with self._transaction() as database:
            self._purge(database)
            return _parked(database) < limit

    async def park(self, cell: StoredCell, owner: str, limit: int, *, again: bool) -> None:
        await self._run(self._park, cell, owner, limit, again)

    def _park(self, cell: StoredCell, owner: str, limit: int, again: bool) -> None:
        with self._transaction() as database:
            self._purge(database)
            held = _holds(database, cell.id, owner) and _is_live(database, cell.id)
            if again and not held:
                raise Aborted
            if _parked(database) >= limit:
                raise SnapshotTooLarge(FULL)
            row = (cell.id, *cell.scope, cell.ttl, self._clock() + cell.ttl)
            database.execute(
                "insert or replace into cells (id, agent, session, session_key, run, ttl, expires,"
                " record, snapshot) values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, cell.record, cell.snapshot),
            )
            kept = "insert or replace into ledger.parks values (?, ?)"
            database.execute(kept, (cell.id, cell.mark))
            database.execute("delete from calls where cell = ? and owner = ?", (cell.id, owner))
            database.executemany(
                "insert into calls values (?, ?, ?, ?, ?)",
                [(cell.id, call.id, call.owner, call.state, call.body) for call in cell.calls],
            )
            database.executemany(
                "insert into replies (cell, body) values (?, ?)",
                [(cell.id, reply) for reply in cell.replies],
            )

    # ---- Going on ----

    async def claim(self, cell_id: str, scope: Scope, owner: str) -> StoredCell | Refusal:
        return await self._run(self._claim, cell_id, scope, owner)

    def _claim(self, cell_id: str, scope: Scope, owner: str) -> StoredCell | Refusal:
        with self._transaction() as database:
            self._purge(database)
            row = database.execute(
                "select running, holder, ttl, expires, record from cells where id = ?"
                " and agent = ? and session = ? and session_key = ? and run = ?",
                (cell_id, *scope),
            ).fetchone()
            if row is None or not _is_live(database, cell_id):
                return _end_of(database, cell_id, scope)
            running, holder, ttl, expires, record = row
            if holder and holder != owner and self._alive(holder):
                return "busy"
            if running or expires <= self._clock():
                end: End = "lost" if running else "expired"
                self._bury(database, cell_id, end)
                return end
            database.execute("update cells set holder = ? where id = ?", (owner, cell_id))
            calls = _calls(database, cell_id)
            return StoredCell(
                id=cell_id,
                scope=scope,
                ttl=ttl,
                record=record,
                snapshot=b"",
                calls=calls,
                mark=_mark(database, cell_id),
            )

    async def release(self, cell_id: str, owner: str) -> None:
        await self._run(self._release, cell_id, owner)

    def _release(self, cell_id: str, owner: str) -> None:
        with self._transaction() as database:
            database.execute(
                "update cells set holder = '', expires = ? + ttl"
                " where id = ? and holder = ? and not running",
                (self._clock(), cell_id, owner),
            )

    async def progress(self, cell_id: str) -> Progress | None:
        return await self._run(self._progress, cell_id)

    def _progress(self, cell_id: str) -> Progress | None:
        with self._transaction("deferred") as database:
            if not _is_live(database, cell_id):
                return None
            count = "select count(*) from replies where cell = ?"
            (replies,) = database.execute(count, (cell_id,)).fetchone()
            return Progress(_calls(database, cell_id), replies)

    async def take(
        self, cell_id: str, owner: str, *, seen: bytes = b"", mark: bytes = b""
    ) -> StoredCell | None:
        return await self._run(self._take, cell_id, owner, seen, mark)

    def _take(self, cell_id: str, owner: str, seen: bytes, mark: bytes) -> StoredCell | None:
        with self._transaction() as database:
            row = database.execute(
                "select agent, session, session_key, run, ttl, record, snapshot from cells"
                " where id = ? and holder = ? and not running",
                (cell_id, owner),
            ).fetchone()
            if row is None or not _is_live(database, cell_id) or _mark(database, cell_id) != seen:
                return None
            moved = "update ledger.parks set mark = ? where cell = ?"
            database.execute(moved, (mark, cell_id))
            *scope, ttl, record, snapshot = row
            cell = StoredCell(
                id=cell_id,
                scope=Scope(*scope),
                ttl=ttl,
                record=record,
                snapshot=snapshot,
                calls=_calls(database, cell_id),
                replies=_pop_replies(database, cell_id),
                mark=seen,
            )
            database.execute(
                "update cells set running = 1, snapshot = x'' where id = ?", (cell_id,)
            )
            database.execute("delete from calls where cell = ? and owner = ?", (cell_id, owner))
            return cell

    async def drain(self, cell_id: str) -> tuple[bytes, ...] | None:
        return await self._run(self._drain, cell_id)

    def _drain(self, cell_id: str) -> tuple[bytes, ...] | None:
        with self._transaction() as database:
            if not _is_live(database, cell_id):
                return None
            return _pop_replies(database, cell_id)

    # ---- Calls ----

    async def mark(self, cell_id: str, call_id: int, owner: str, state: CallState) -> bool:
        return await self._run(self._change, cell_id, call_id, owner, owner, state)

    async def adopt(self, cell_id: str, call: StoredCall, owner: str) -> bool:
        return await self._run(self._change, cell_id, call.id, call.owner, owner, call.state)

    def _change(self, cell_id: str, call_id: int, old: str, new: str, state: CallState) -> bool:
        with self._transaction() as database:
            if not _is_live(database, cell_id):
                return False
            changed = database.execute(
                "update calls set owner = ?, state = ? where cell = ? and id = ? and owner = ?",
                (new, state, cell_id, call_id, old),
            )
            return changed.rowcount == 1

    async def settle(
        self, cell_id: str, call_id: int, reply: bytes, limit: int
    ) -> Literal["kept", "full", "gone"]:
        return await self._run(self._settle, cell_id, call_id, reply, limit)

    def _settle(
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

    async def end(self, cell_id: str, scope: Scope, end: End) -> bool:
        return await self._run(self._end, cell_id, scope, end)

    def _end(self, cell_id: str, scope: Scope, end: End) -> bool:
        with self._transaction() as database:
            found = database.execute(
                "select 1 from cells where id = ?"
                " and agent = ? and session = ? and session_key = ? and run = ?",
                (cell_id, *scope),
            ).fetchone()
            if found:
                self._bury(database, cell_id, end)
            return bool(found)

    async def abort(self, cell_id: str, scope: Scope, owner: str = "") -> AbortProgress | None:
        return await self._run(self._abort, cell_id, scope, owner)

    def _abort(self, cell_id: str, scope: Scope, owner: str) -> AbortProgress | None:
        with self._transaction() as database:
            found = database.execute(
                "select 1 from cells where id = ?"
                " and agent = ? and session = ? and session_key = ? and run = ?",
                (cell_id, *scope),
            ).fetchone()
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
        if not any(self._alive(other) for (other,) in others):
            self._bury(database, cell_id, "aborted")
            return "ended"
        self._note_end(database, cell_id, "aborted")
        return "asked"

    async def gone(self, cell_ids: Iterable[str]) -> set[str]:
        return await self._run(self._gone, tuple(cell_ids))

    def _gone(self, cell_ids: tuple[str, ...]) -> set[str]:
        with self._transaction("deferred") as database:
            return {cell_id for cell_id in cell_ids if not _is_live(database, cell_id)}

    async def end_all(
        self, scope: Scope, *, session: bool = False, owner: str = ""
    ) -> dict[str, AbortProgress]:
        return await self._run(self._end_all, scope, session, owner)

    def _end_all(self, scope: Scope, session: bool, owner: str) -> dict[str, AbortProgress]:
        with self._transaction() as database:
            rows = database.execute(
                "select id from cells where agent = ? and session = ? and session_key = ?"
                " and (? or run = ?)",
                (*scope[:3], session, scope.run_id),
            ).fetchall()
            return {cell_id: self._abort_one(database, cell_id, owner) for (cell_id,) in rows}

    async def cells(self) -> list[CellInfo]:
        return await self._run(self._list)

    def _list(self) -> list[CellInfo]:
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
                    state=state_of(bool(running), bool(holder) and self._alive(holder)),
                    age=now - expires + ttl,
                    left=expires - now,
                )
                for cell_id, *scope, running, holder, ttl, expires in rows
            ]

    def _purge(self, database: sqlite3.Connection) -> None:
        now = self._clock()
        if now < self._latest - 1 or not self._latest:
            # The clock was set back, or may have been: no cell is to live for years by that.
            clamp = "update cells set expires = ? + ttl where expires > ? + ttl"
            database.execute(clamp, (now, now))
        self._latest = now
        # Not while somebody waits for it: that gives it new time.
        expired = "select id from cells where holder = '' and expires <= ?"
        for (cell_id,) in database.execute(expired, (now,)).fetchall():
            self._bury(database, cell_id, "expired")

    def _note_end(self, database: sqlite3.Connection, cell_id: str, end: End) -> None:
        database.execute(
            "insert or replace into ended (id, agent, session, session_key, run, end)"
            " select id, agent, session, session_key, run, ? from cells where id = ?",
            (end, cell_id),
        )
        database.execute(
            "delete from ended where number <= (select max(number) from ended) - ?",
            (MAX_TOMBSTONES,),
        )

    def _bury(self, database: sqlite3.Connection, cell_id: str, end: End) -> None:
        self._note_end(database, cell_id, end)
        database.execute("delete from cells where id = ?", (cell_id,))
        database.execute("delete from ledger.parks where cell = ?", (cell_id,))
        database.execute("delete from calls where cell = ?", (cell_id,))
        database.execute("delete from replies where cell = ?", (cell_id,))


# ---- Inside of a transaction ----


def _parked(database: sqlite3.Connection) -> int:
    (count,) = database.execute("select count(*) from cells where running = 0").fetchone()
    return int(count)


def _mark(database: sqlite3.Connection, cell_id: str) -> bytes:
    row = database.execute("select mark from ledger.parks where cell = ?", (cell_id,)).fetchone()
    return row[0] if row and isinstance(row[0], bytes) else b""


def _is_live(database: sqlite3.Connection, cell_id: str) -> bool:
    """True if the cell is here and not marked as aborted: a mark is an end of a cell that is."""
    query = "select 1 from cells where id = ? and id not in (select id from ended where id = ?)"
    return database.execute(query, (cell_id, cell_id)).fetchone() is not None


def _holds(database: sqlite3.Connection, cell_id: str, owner: str) -> bool:
    row = database.execute("select holder from cells where id = ?", (cell_id,)).fetchone()
    return row is not None and row[0] == owner


def _calls(database: sqlite3.Connection, cell_id: str) -> tuple[StoredCall, ...]:
    rows = database.execute(
        "select id, owner, state, body from calls where cell = ? order by id", (cell_id,)
    )
    return tuple(StoredCall(*row) for row in rows)


def _pop_replies(database: sqlite3.Connection, cell_id: str) -> tuple[bytes, ...]:
    rows = database.execute("select body from replies where cell = ? order by number", (cell_id,))
    replies = tuple(body for (body,) in rows)
    if replies:
        database.execute("delete from replies where cell = ?", (cell_id,))
    return replies


def _end_of(database: sqlite3.Connection, cell_id: str, scope: Scope) -> Refusal:
    row = database.execute(
        "select end from ended where id = ?"
        " and agent = ? and session = ? and session_key = ? and run = ?",
        (cell_id, *scope),
    ).fetchone()
    return row[0] if row and row[0] in get_args(End) else "unknown"
