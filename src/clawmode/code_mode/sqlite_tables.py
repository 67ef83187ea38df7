"""The tables of the SQLite store, and the statements that several of its operations share.

Every function runs inside a transaction of the caller.
"""

import sqlite3
from typing import get_args

from clawmode.code_mode.stores import End, Refusal, StoredCall, StoredCell
from clawmode.context import Scope

VERSION = 1
MAX_TOMBSTONES = 10_000

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


def insert_cell(database: sqlite3.Connection, cell: StoredCell, owner: str, expires: float) -> None:
    """Stores a cell, its calls of `owner`, and its replies. Calls of other owners are kept."""
    row = (cell.id, *cell.scope, cell.ttl, expires)
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


def is_of_scope(database: sqlite3.Connection, cell_id: str, scope: Scope) -> bool:
    """True if the cell exists, and belongs to the run of this scope."""
    found = database.execute(
        "select 1 from cells where id = ?"
        " and agent = ? and session = ? and session_key = ? and run = ?",
        (cell_id, *scope),
    ).fetchone()
    return found is not None


def note_end(database: sqlite3.Connection, cell_id: str, end: End) -> None:
    """Records the end of a cell, and forgets the oldest of such records."""
    database.execute(
        "insert or replace into ended (id, agent, session, session_key, run, end)"
        " select id, agent, session, session_key, run, ? from cells where id = ?",
        (end, cell_id),
    )
    database.execute(
        "delete from ended where number <= (select max(number) from ended) - ?",
        (MAX_TOMBSTONES,),
    )


def bury(database: sqlite3.Connection, cell_id: str, end: End) -> None:
    """Deletes a cell, and records its end."""
    note_end(database, cell_id, end)
    database.execute("delete from cells where id = ?", (cell_id,))
    database.execute("delete from ledger.parks where cell = ?", (cell_id,))
    database.execute("delete from calls where cell = ?", (cell_id,))
    database.execute("delete from replies where cell = ?", (cell_id,))


def count_parked(database: sqlite3.Connection) -> int:
    """Returns the number of parked cells."""
    (count,) = database.execute("select count(*) from cells where running = 0").fetchone()
    return int(count)


def mark_of(database: sqlite3.Connection, cell_id: str) -> bytes:
    """Returns the mark of the last park of a cell; empty if there is none."""
    row = database.execute("select mark from ledger.parks where cell = ?", (cell_id,)).fetchone()
    return row[0] if row and isinstance(row[0], bytes) else b""


def is_live(database: sqlite3.Connection, cell_id: str) -> bool:
    """True if the cell exists and is not marked as aborted.

    A cell that is marked has a record of its end while it still exists.
    """
    query = "select 1 from cells where id = ? and id not in (select id from ended where id = ?)"
    return database.execute(query, (cell_id, cell_id)).fetchone() is not None


def is_held_by(database: sqlite3.Connection, cell_id: str, owner: str) -> bool:
    """True if the owner has claimed or taken the cell."""
    row = database.execute("select holder from cells where id = ?", (cell_id,)).fetchone()
    return row is not None and row[0] == owner


def calls_of(database: sqlite3.Connection, cell_id: str) -> tuple[StoredCall, ...]:
    """Returns the calls of a cell that have no reply yet."""
    rows = database.execute(
        "select id, owner, state, body from calls where cell = ? order by id", (cell_id,)
    )
    return tuple(StoredCall(*row) for row in rows)


def pop_replies(database: sqlite3.Connection, cell_id: str) -> tuple[bytes, ...]:
    """Takes the replies out of the inbox of a cell."""
    rows = database.execute("select body from replies where cell = ? order by number", (cell_id,))
    replies = tuple(body for (body,) in rows)
    if replies:
        database.execute("delete from replies where cell = ?", (cell_id,))
    return replies


def end_of(database: sqlite3.Connection, cell_id: str, scope: Scope) -> Refusal:
    """Returns how a cell of this scope ended; `unknown` if there is no record of it."""
    row = database.execute(
        "select end from ended where id = ?"
        " and agent = ? and session = ? and session_key = ? and run = ?",
        (cell_id, *scope),
    ).fetchone()
    return row[0] if row and row[0] in get_args(End) else "unknown"
