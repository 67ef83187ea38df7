"""A store of parked cells in a SQLite file, which outlive the process and are shared by processes.

<folder>/snapshot.keys    the keys that seal the cells
<folder>/cells.sqlite     the cells, in WAL mode
<folder>/parks.sqlite     the mark of the last park of each cell; an older copy does not match
<folder>/owners/<name>    the lease of an owner (see `leases`)
<folder>/nodes/<id>       a process that uses the folder (see `nodes`)
"""

import errno
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Literal

from clawmode.code_mode import sqlite_tables as tables
from clawmode.code_mode.leases import Leases
from clawmode.code_mode.nodes import FolderNodes
from clawmode.code_mode.snapshots import KeyRing
from clawmode.code_mode.sqlite_shelves import SqliteShelves, in_thread
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
)
from clawmode.context import Scope
from clawmode.exceptions import Aborted, SnapshotTooLarge, StoreUnavailable
from clawmode.files import Layout
from clawmode.types import CallState

logger = logging.getLogger("clawmode.store")

LOCK_SECONDS = 2.0
"""How long an operation waits for operations of other processes."""

LAYOUT = Layout(
    "The store of waiting programs",
    tables.VERSION,
    tables.SCHEMA,
    StoreUnavailable,
    logger,
    tables.UPGRADES,
)


class SqliteStore(SqliteShelves):
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
    fleet = False

    def __init__(
        self,
        folder: Path | str,
        *,
        keys: KeyRing | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(
            Path(folder) / "cells.sqlite", LAYOUT, lock_seconds=LOCK_SECONDS, clock=clock
        )
        self._keys = keys
        self.nodes = FolderNodes(self.folder, self._run)
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
        """Ends the node and all owners, and closes the file. Idempotent; the next use reopens it.

        Do not close a store that a `CodeMode` still uses: other processes would take its calls
        over.
        """
        self._leases.release_all()
        self.nodes.close()
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

    @in_thread
    def join(self) -> str:
        self._make_folder()
        owner = self._leases.acquire()
        with self._transaction() as database:
            # Ends expired cells whose process died while it held them.
            overdue = "select id, running and not kept, holder from cells"
            overdue += " where running in (0, 1) and holder > '' and expires <= ?"
            for cell_id, lost, holder in database.execute(overdue, (self._clock(),)).fetchall():
                if not self._leases.alive(holder):
                    tables.bury(database, cell_id, "lost" if lost else "expired")
            database.execute("delete from ledger.parks where cell not in (select id from cells)")
        return owner

    @in_thread
    def leave(self, owner: str) -> None:
        self._leases.release(owner)
        if not self._leases:
            self._close()

    def _forked(self) -> None:
        """Runs in the child of a fork, which must not keep the parent's owners alive."""
        self._leases.forget()
        self.nodes.forget()
        self.bus.forget()
        super()._forked()

    @in_thread
    def alive(self, owner: str) -> bool:
        return self._leases.alive(owner)

    # ---- Parking ----

    async def room(self, limit: int) -> bool:
        return await self.count_parked() < limit

    @in_thread
    def park(
        self,
        cell: StoredCell,
        owner: str,
        limit: int,
        *,
        again: bool,
        have: Collection[int] = (),
    ) -> None:
        with self._transaction() as database:
            self._purge(database)
            if tables.is_written(database, cell, owner, again=again):
                return
            if tables.count(database) >= limit:
                raise SnapshotTooLarge(FULL)
            now, fence = self._clock(), cell.fence
            tables.write_cell(database, cell, owner, have, now, running=False, fence=fence)

    @in_thread
    def checkpoint(
        self, cell: StoredCell, owner: str, *, again: bool, have: Collection[int] = ()
    ) -> int:
        with self._transaction() as database:
            fence = cell.fence + 1 if again else 1
            if not tables.is_written(database, cell, owner, again=again):
                now = self._clock()
                tables.write_cell(database, cell, owner, have, now, running=True, fence=fence)
            elif not tables.is_of(database, cell.id, owner, fence):
                raise Aborted  # somebody has claimed it since
            return fence

    # ---- Resuming ----

    @in_thread
    def claim(
        self, cell_id: str, scope: Scope, owner: str, images: Collection[bytes] | None = None
    ) -> StoredCell | Refusal:
        with self._transaction() as database:
            self._purge(database)
            row = tables.find(database, cell_id)
            if row is None or not (row.live and row.scope == scope):
                ended = tables.end_of(database, cell_id, scope)
                return ended[0].end if ended else "unknown"
            if row.holder and row.holder != owner and self._leases.alive(row.holder):
                return "busy"
            # A claim of this owner keeps the cell alive, as in `_purge`.
            lost = row.running and not row.kept
            if lost or (row.holder != owner and row.expires <= self._clock()):
                end: End = "lost" if lost else "expired"
                tables.bury(database, cell_id, end)
                return end
            if images is not None and row.image not in (b"", *images):
                return "elsewhere"
            claimed = "update cells set running = 0, holder = ?, fence = fence + 1 where id = ?"
            database.execute(claimed, (owner, cell_id))
            return tables.read_cell(database, cell_id, self._clock(), row.mark, snapshot=False)

    @in_thread
    def release(self, cell_id: str, owner: str, fence: int) -> None:
        with self._transaction() as database:
            database.execute(
                "update cells set holder = '', running = 0, expires = ? + ttl"
                " where id = ? and holder = ? and fence = ? and (kept or not running)",
                (self._clock(), cell_id, owner, fence),
            )

    @in_thread
    def progress(self, cell_id: str) -> Progress | None:
        with self._transaction("deferred") as database:
            if not tables.is_live(database, cell_id):
                return None
            count = "select count(*) from replies where cell = ?"
            (replies,) = database.execute(count, (cell_id,)).fetchone()
            return Progress(tables.calls_of(database, cell_id), replies)

    @in_thread
    def take(
        self,
        cell_id: str,
        owner: str,
        fence: int,
        *,
        seen: bytes = b"",
        mark: bytes = b"",
        keep: bool = False,
    ) -> StoredCell | None:
        with self._transaction() as database:
            row, after = tables.find(database, cell_id), seen if keep else mark
            if row is None or not row.of(owner, fence):
                return None
            # Only a repetition of the same `take` may read the snapshot of a running cell.
            if (row.mark, row.kept) != ((after, keep) if row.running else (seen, row.kept)):
                return None
            if not row.running:
                running = "update cells set running = 1, kept = ? where id = ?"
                database.execute(running, (keep, cell_id))
                if not keep:
                    changed = "update ledger.parks set mark = ? where cell = ?"
                    database.execute(changed, (mark, cell_id))
            return tables.read_cell(database, cell_id, self._clock(), seen, snapshot=True)

    @in_thread
    def drain(
        self,
        cell_id: str,
        owner: str,
        fence: int,
        have: Collection[int] = (),
        *,
        keep: bool = False,
    ) -> tuple[StoredReply, ...] | None:
        with self._transaction() as database:
            row = tables.find(database, cell_id)
            if row is None or not (row.running and row.of(owner, fence)):
                return None
            if not keep:
                tables.drop_replies(database, cell_id, have)
            found = tables.replies_of(database, cell_id)
            return tuple(reply for reply in found if reply.call not in have)

    # ---- Calls ----

    @in_thread
    def mark(self, cell_id: str, call_id: int, owner: str, state: CallState) -> bool:
        with self._transaction() as database:
            changed = "update calls set state = ? where cell = ? and id = ? and owner = ?"
            if not tables.is_live(database, cell_id):
                return False
            return database.execute(changed, (state, cell_id, call_id, owner)).rowcount == 1

    @in_thread
    def adopt(self, cell_id: str, call: StoredCall, owner: str, fence: int) -> bool:
        with self._transaction() as database:
            if not tables.is_of(database, cell_id, owner, fence):
                return False
            changed = database.execute(
                "update calls set owner = ? where cell = ? and id = ? and owner in (?, ?)"
                " and state = ?",
                (owner, cell_id, call.id, call.owner, owner, call.state),
            )
            return changed.rowcount == 1

    @in_thread
    def settle(
        self, cell_id: str, call_id: int, owner: str, reply: bytes, limit: int
    ) -> Literal["kept", "full", "gone"]:
        with self._changing(cell_id) as database:
            return tables.settle(database, cell_id, call_id, owner, reply, limit)

    # ---- Ending ----

    @in_thread
    def end(self, cell_id: str, scope: Scope, end: End, fence: int, ledger: bytes = b"") -> bool:
        with self._changing(cell_id) as database:
            row = tables.find(database, cell_id)
            if row is None:
                ended = tables.end_of(database, cell_id, scope)
                return ended is not None and (ended[0].end, ended[1]) == (end, fence)
            if row.fence != fence or row.scope != scope:
                return False
            tables.bury(database, cell_id, end, ledger)
            return True

    @in_thread
    def ended(self, cell_id: str, scope: Scope) -> Ended | None:
        with self._transaction() as database:
            self._purge(database)
            found = tables.end_of(database, cell_id, scope)
            return found[0] if found else None

    @in_thread
    def abort(
        self, cell_id: str, scope: Scope, owner: str = "", fence: int | None = None
    ) -> AbortProgress | None:
        with self._changing(cell_id) as database:
            row = tables.find(database, cell_id)
            if row is None or row.scope != scope:
                return None
            mine = row.fence == fence and row.holder in ("", owner)
            if row.live and fence is not None and not mine:
                return "ended"
            return tables.abort(database, cell_id, owner, self._leases.alive)

    @in_thread
    def gone(self, cell_ids: Iterable[str]) -> set[str]:
        with self._transaction("deferred") as database:
            return {cell_id for cell_id in cell_ids if not tables.is_live(database, cell_id)}

    @in_thread
    def end_all(
        self, scope: Scope, *, session: bool = False, owner: str = ""
    ) -> dict[str, AbortProgress]:
        with self._transaction() as database:
            rows = database.execute(
                "select id from cells where agent = ? and session = ? and session_key = ?"
                " and (? or run = ?)",
                (*scope[:3], session, scope.run_id),
            ).fetchall()
            alive = self._leases.alive
            return {cell_id: tables.abort(database, cell_id, owner, alive) for (cell_id,) in rows}

    # ---- Watching ----

    @in_thread
    def count_parked(self) -> int:
        with self._transaction() as database:
            self._purge(database)
            return tables.count(database)

    @in_thread
    def cells(
        self, scope: Scope | None = None, limit: int | None = None, only: Only = ANY
    ) -> list[CellInfo]:
        with self._transaction() as database:
            self._purge(database)
            now, alive = self._clock(), self._leases.alive
            return tables.list_cells(database, scope, limit, only, now, alive)

    def _purge(self, database: sqlite3.Connection) -> None:
        now = self._clock()
        if now < self._latest - 1 or not self._latest:
            # The clock was set back, or may have been since another process wrote the file.
            # Without this, a cell could live for years.
            clamp = "update cells set expires = ? + ttl where expires > ? + ttl"
            database.execute(clamp, (now, now))
        self._latest = now
        # A pending `wait` keeps a cell alive, and restarts its time to live at its end.
        expired = "select id from cells where running = 0 and holder = '' and expires <= ?"
        for (cell_id,) in database.execute(expired, (now,)).fetchall():
            tables.bury(database, cell_id, "expired")
        self._purge_shelves(database)
