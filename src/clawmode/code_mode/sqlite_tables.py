"""The tables of the SQLite store, and the statements that several of its operations share.

Every function runs inside a transaction of the caller.
"""

import sqlite3
from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple, get_args

from clawmode.code_mode.stores import (
    AbortProgress,
    CellInfo,
    End,
    Ended,
    Only,
    StoredCall,
    StoredCell,
    StoredReply,
    state_of,
)
from clawmode.context import Scope
from clawmode.exceptions import Aborted

VERSION = 2
MAX_TOMBSTONES = 10_000

_CELLS = """
create table cells (
    number integer primary key,
    id text not null unique,
    agent text not null, session text not null, session_key text not null, run text not null,
    running integer not null default 0, kept integer not null default 0,
    holder text not null default '', fence integer not null default 0,
    ttl real not null, expires real not null, written real, due real,
    image blob not null default x''
);
create index cells_by_scope on cells (agent, session, session_key, run);
create index cells_by_state on cells (running, holder, expires);
create table sealed (
    cell integer primary key,
    ledger blob not null default x'', record blob not null,
    snapshot blob not null  -- last: what follows a large blob is slow to read
);
create trigger cell_ends after delete on cells begin \
delete from sealed where cell = old.number; delete from calls where cell = old.id; \
delete from replies where cell = old.id; end;
create table calls (
    cell text not null, id integer not null,
    owner text not null, state text not null, body blob not null,
    primary key (cell, id)
) without rowid;
create table ended (
    number integer primary key,
    id text not null unique,
    agent text not null, session text not null, session_key text not null, run text not null,
    end text not null, fence integer not null default 0, ledger blob not null default x''
);
"""
"""A change of a row writes all of the row again. So what may be large has a table of its own:
otherwise a claim would write the snapshot once more. Each table and index that an operation changes
adds a page of 4 KB to the log, so there are few."""

_REPLIES = """
create table replies (
    number integer primary key autoincrement,
    cell text not null, body blob not null, call integer
);
"""

_CALLS_OF_REPLIES = """
create unique index replies_by_call on replies (cell, call);
create trigger replies_of_version_1 after insert on replies when new.call is null begin \
update replies set call = -new.number where number = new.number; end;
"""

SCHEMA = _CELLS + _REPLIES + _CALLS_OF_REPLIES

_ASIDE = """
alter table cells rename to old_cells;
alter table calls rename to old_calls;
alter table ended rename to old_ended;
drop index cells_by_scope;
drop index cells_by_state;
drop index replies_by_cell;
"""

_MOVED = """
insert into cells (number, id, agent, session, session_key, run, running, holder, ttl, expires) \
select rowid, id, agent, session, session_key, run, running, holder, ttl, expires from old_cells;
insert into sealed (cell, record, snapshot) select rowid, record, snapshot from old_cells;
insert into calls select * from old_calls;
insert into ended (number, id, agent, session, session_key, run, end) select * from old_ended;
drop table old_cells;
drop table old_calls;
drop table old_ended;
alter table replies add column call integer;
update replies set call = -number;
"""

UPGRADES = {1: "".join((_ASIDE, _CELLS, _MOVED, _CALLS_OF_REPLIES))}
"""The replies of version 1 have their call in the sealed body only: a number that no call has is
used instead. The trigger is for processes of version 1 that have the file open: what they answer is
kept, and they cannot park or claim cells any more."""

LEDGER = """
pragma ledger.journal_mode = wal;
pragma ledger.synchronous = normal;
pragma main.secure_delete = fast;
create table if not exists ledger.parks (cell text primary key, mark blob not null) without rowid;
create table if not exists main.shelves (
    session text not null, run text not null, kind text not null, name text not null,
    body blob not null, expires real not null,
    primary key (session, run, kind, name)
);
create index if not exists main.shelves_by_expiry on shelves (expires);
"""
"""What a file that an earlier build made may lack, and settings. `fast`: pages that become free are
not zeroed, as the SQLite of Debian would do, because what fills a page is sealed."""


class Row(NamedTuple):
    """The part of a cell that is not sealed, and its mark."""

    holder: str
    running: bool
    kept: bool
    fence: int
    mark: bytes
    live: bool
    expires: float
    image: bytes
    scope: Scope

    def of(self, owner: str, fence: int) -> bool:
        """True if the owner has claimed or taken the cell under this fence."""
        return self.live and (self.holder, self.fence) == (owner, fence)


def find(database: sqlite3.Connection, cell_id: str) -> Row | None:
    """Returns a cell that exists, even if it is marked as aborted."""
    row = database.execute(
        "select holder, running, kept, fence, (select mark from ledger.parks where cell = cells.id)"
        ", not exists (select 1 from ended where id = cells.id), expires, image,"
        " agent, session, session_key, run from cells where id = ?",
        (cell_id,),
    ).fetchone()
    if row is None:
        return None
    holder, running, kept, fence, mark, live, expires, image, *scope = row
    mark = mark if isinstance(mark, bytes) else b""
    states = (holder, bool(running), bool(kept), fence, mark, bool(live))
    return Row(*states, expires, image, Scope(*scope))


def is_of(database: sqlite3.Connection, cell_id: str, owner: str, fence: int) -> bool:
    """True if the owner has claimed or taken the cell under this fence."""
    return (row := find(database, cell_id)) is not None and row.of(owner, fence)


def is_written(database: sqlite3.Connection, cell: StoredCell, owner: str, *, again: bool) -> bool:
    """True if the cell was stored before exactly like this.

    Raises:
        Aborted: It must not be stored.
    """
    row = find(database, cell.id)
    if row is not None and row.live and cell.mark and row.mark == cell.mark:
        return True
    if again and not (row is not None and row.running and row.of(owner, cell.fence)):
        raise Aborted
    ended = "select 1 from ended where id = ?"
    if not again and (row is not None or database.execute(ended, (cell.id,)).fetchone()):
        raise Aborted
    return False


def write_cell(
    database: sqlite3.Connection,
    cell: StoredCell,
    owner: str,
    have: Collection[int],
    now: float,
    *,
    running: bool,
    fence: int,
) -> None:
    """Stores a cell, its calls of `owner`, and its replies. Calls of other owners are kept."""
    due = None if cell.due_in is None else now + cell.due_in
    database.execute(
        "insert into cells (id, agent, session, session_key, run, running, holder, ttl, expires,"
        " kept, fence, written, due, image) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " on conflict (id) do update set running = excluded.running, holder = excluded.holder,"
        " ttl = excluded.ttl, expires = excluded.expires, kept = excluded.kept,"
        " fence = excluded.fence, written = excluded.written, due = excluded.due,"
        " image = excluded.image",
        (
            *(cell.id, *cell.scope, running, owner if running else "", cell.ttl, now + cell.ttl),
            *(running, fence, now, due, cell.image),
        ),
    )
    sealed = "insert or replace into sealed select number, ?, ?, ? from cells where id = ?"
    database.execute(sealed, (cell.ledger, cell.record, cell.snapshot, cell.id))
    kept = "insert or replace into ledger.parks values (?, ?)"
    database.execute(kept, (cell.id, cell.mark))
    database.execute("delete from calls where cell = ? and owner = ?", (cell.id, owner))
    database.executemany(
        "insert or ignore into calls values (?, ?, ?, ?, ?)",
        [(cell.id, call.id, call.owner, call.state, call.body) for call in cell.calls],
    )
    drop_replies(database, cell.id, have)
    if cell.replies:
        database.executemany(
            "insert or ignore into replies (cell, call, body) values (?, ?, ?)",
            [(cell.id, *reply) for reply in cell.replies],
        )


def read_cell(
    database: sqlite3.Connection, cell_id: str, now: float, mark: bytes, *, snapshot: bool
) -> StoredCell:
    """Returns a cell for a claim, or with its snapshot for the one who takes it."""
    *scope, ttl, fence, written, due, image, record, ledger, memory = database.execute(
        "select agent, session, session_key, run, ttl, fence, written, due, image, record, ledger,"
        " iif(?, snapshot, x'') from cells left join sealed on cell = number where id = ?",
        (snapshot, cell_id),
    ).fetchone()
    return StoredCell(
        id=cell_id,
        scope=Scope(*scope),
        ttl=ttl,
        record=record,
        snapshot=memory,
        calls=calls_of(database, cell_id),
        replies=replies_of(database, cell_id) if snapshot else (),
        mark=mark,
        fence=fence,
        image=image,
        due_in=None if due is None else due - now,
        age=0.0 if written is None else now - written,
        ledger=ledger,
    )


def note_end(database: sqlite3.Connection, cell_id: str, end: End, ledger: bytes = b"") -> None:
    """Records the end of a cell, and forgets the oldest of such records."""
    database.execute(
        "insert or replace into ended (id, agent, session, session_key, run, end, fence, ledger)"
        " select id, agent, session, session_key, run, ?, fence, iif(?, ?, coalesce(ledger, x''))"
        " from cells left join sealed on cell = number where id = ?",
        (end, bool(ledger), ledger, cell_id),
    )
    database.execute(
        "delete from ended where number <= (select max(number) from ended) - ?",
        (MAX_TOMBSTONES,),
    )


def bury(database: sqlite3.Connection, cell_id: str, end: End, ledger: bytes = b"") -> None:
    """Deletes a cell, and records its end."""
    note_end(database, cell_id, end, ledger)
    database.execute("delete from cells where id = ?", (cell_id,))
    database.execute("delete from ledger.parks where cell = ?", (cell_id,))


def abort(
    database: sqlite3.Connection, cell_id: str, owner: str, alive: Callable[[str], bool]
) -> AbortProgress:
    """Ends the share of `owner` in a cell, and the cell if no living owner has another share."""
    own = (cell_id, owner)
    given_up = "update cells set holder = '', running = 0 where id = ? and holder = ?"
    if database.execute(given_up, own).rowcount:
        database.execute(
            "update sealed set snapshot = x'' where cell = (select number from cells where id = ?)",
            (cell_id,),
        )
    database.execute("delete from calls where cell = ? and owner = ?", own)
    others = database.execute(
        "select holder from cells where id = ? and running"
        " union select owner from calls where cell = ? and state = 'running'",
        (cell_id, cell_id),
    ).fetchall()
    if not any(alive(other) for (other,) in others):
        bury(database, cell_id, "aborted")
        return "ended"
    note_end(database, cell_id, "aborted")
    return "asked"


def count(database: sqlite3.Connection, *, running: bool = False) -> int:
    """Returns the number of parked cells, or of those that run."""
    query = "select count(*) from cells where running = ?"
    (count,) = database.execute(query, (running,)).fetchone()
    return int(count)


def is_live(database: sqlite3.Connection, cell_id: str) -> bool:
    """True if the cell exists and is not marked as aborted.

    A cell that is marked has a record of its end while it still exists.
    """
    query = "select 1 from cells where id = ? and id not in (select id from ended where id = ?)"
    return database.execute(query, (cell_id, cell_id)).fetchone() is not None


def calls_of(database: sqlite3.Connection, cell_id: str) -> tuple[StoredCall, ...]:
    """Returns the calls of a cell that have no reply yet."""
    rows = database.execute(
        "select id, owner, state, body from calls where cell = ? order by id", (cell_id,)
    )
    return tuple(StoredCall(*row) for row in rows)


def replies_of(database: sqlite3.Connection, cell_id: str) -> tuple[StoredReply, ...]:
    """Returns the inbox of a cell, in the order of arrival."""
    rows = database.execute(
        "select call, body from replies where cell = ? order by number", (cell_id,)
    )
    return tuple(StoredReply(*row) for row in rows)


def drop_replies(database: sqlite3.Connection, cell_id: str, calls: Collection[int]) -> None:
    """Deletes the replies to these calls of a cell."""
    if calls:
        dropped = "delete from replies where cell = ? and call = ?"
        database.executemany(dropped, [(cell_id, call) for call in calls])


def settle(
    database: sqlite3.Connection, cell_id: str, call_id: int, owner: str, reply: bytes, limit: int
) -> Literal["kept", "full", "gone"]:
    """Moves a call of `owner` to the inbox, with its reply."""
    number = (cell_id, call_id)
    same = "select 1 from replies where cell = ? and call = ? and body = ?"
    if database.execute(same, (*number, reply)).fetchone():
        return "kept"
    found = "select 1 from calls where cell = ? and id = ? and owner = ?"
    if not database.execute(found, (*number, owner)).fetchone():
        return "gone"
    total = "select coalesce(sum(length(body)), 0) from replies where cell = ?"
    (waiting,) = database.execute(total, (cell_id,)).fetchone()
    if waiting + len(reply) > limit:
        return "full"
    database.execute("delete from calls where cell = ? and id = ?", number)
    kept = "insert or ignore into replies (cell, call, body) values (?, ?, ?)"
    database.execute(kept, (*number, reply))
    return "kept"


def end_of(database: sqlite3.Connection, cell_id: str, scope: Scope) -> tuple[Ended, int] | None:
    """Returns how a cell of this scope ended, and under which fence; None if nothing is known."""
    row: Any = database.execute(
        "select end, ledger, fence from ended where id = ?"
        " and agent = ? and session = ? and session_key = ? and run = ?",
        (cell_id, *scope),
    ).fetchone()
    return (Ended(*row[:2]), row[2]) if row and row[0] in get_args(End) else None


def list_cells(
    database: sqlite3.Connection,
    scope: Scope | None,
    limit: int | None,
    only: Only,
    now: float,
    alive: Callable[[str], bool],
) -> list[CellInfo]:
    """Returns all cells, or some; with `limit`, those that expire first."""
    query = (
        "select id, agent, session, session_key, run, running, kept, holder, ttl, expires"
        " from cells where "
    )
    most = -1 if limit is None else limit
    given = zip(("id", "session_key", "run"), only, strict=True)
    wanted = [(column, value) for column, value in given if value]
    if scope is not None:
        wanted += zip(("agent", "session", "session_key", "run"), scope, strict=True)
    if wanted:
        query += " and ".join(f"{column} = ?" for column, _ in wanted)
        values = (*(value for _, value in wanted), most)
        rows = database.execute(query + " order by expires limit ?", values).fetchall()
    else:
        # Read by the index: sorting a million cells would take seconds.
        rows = database.execute(query + "running in (0, 1) and holder > ''").fetchall()
        parked = "running = 0 and holder = '' order by expires limit ?"
        idle = database.execute(query + parked, (most,))
        rows = sorted(rows + idle.fetchall(), key=lambda row: row[-1])[:limit]
    return [
        CellInfo(
            id=cell_id,
            scope=Scope(*whose),
            state=state_of(bool(running), bool(kept), bool(holder) and alive(holder)),
            age=now - expires + ttl,
            left=expires - now,
        )
        for cell_id, *whose, running, kept, holder, ttl, expires in rows
    ]
