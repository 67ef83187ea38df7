"""What the gateway remembers beyond its own life: requests with effects, and runs.

A request is noted before it is carried out, and its answer after that, so that the same request
under the same key is never carried out twice, whatever happens in between.
"""

import json
import logging
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from clawmode.exceptions import ClawmodeError
from clawmode.files import Layout, SqliteFile
from clawmode.messaging.channel import Inbound
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.gateway")

FILE = "gateway.sqlite3"
VERSION = 1
LOCK_SECONDS = 5.0
KEEP_SECONDS = 7 * 86_400.0
"""How long requests and runs that have ended are known."""

SCHEMA = """
create table requests (
    principal text not null, method text not null, key text not null,
    digest text not null, process text not null, at real not null, answer text,
    primary key (principal, method, key)
) without rowid;
create index requests_by_age on requests (at);
create table runs (
    id text primary key,
    session_key text not null, session_id text not null, agent text not null,
    request text not null, accepted real not null, started real not null default 0,
    ended real not null default 0, status text not null default '', result text
) without rowid;
create index runs_by_age on runs (accepted);
create index runs_open on runs (accepted) where ended = 0;
create table said (
    id text primary key, run_id text not null, at real not null
) without rowid;
create table messages (
    id text primary key, session_key text not null, message text not null, at real not null
) without rowid;
"""

TIDY_SECONDS = 3_600.0

State: TypeAlias = Literal["new", "begun", "lost", "done", "other"]


class LedgerUnavailable(ClawmodeError):
    """The gateway's memory cannot be read or written; nothing has changed."""


LAYOUT = Layout("The gateway's memory", VERSION, SCHEMA, LedgerUnavailable, logger)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What is known of a request.

    Attributes:
        state: Whether it is new; begun, by this process; lost, as another began it and is gone;
            done, with an answer; or other: there was another one under this key.
    """

    state: State
    answer: JsonObject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """What is known of a run."""

    id: str
    session_key: str
    session_id: str
    agent_id: str
    request: JsonObject
    accepted_at: float
    started_at: float = 0.0
    ended_at: float = 0.0
    status: str = ""
    result: JsonObject | None = None


class Ledger(SqliteFile):
    """The gateway's memory, in a state folder. Every method may raise `LedgerUnavailable`.

    Args:
        state: The folder.
        process: The name of this process: what others have begun, they will not end.
        clock: The time of day, in seconds.
    """

    def __init__(
        self, state: Path, process: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(state / FILE, LAYOUT, lock_seconds=LOCK_SECONDS)
        self._process = process
        self._clock = clock
        self._tidied = 0.0

    # ---- Requests ----

    async def begin(self, principal: str, method: str, key: str, digest: str) -> RequestRecord:
        """Notes that a request is about to be carried out, unless it is known."""
        return await self._run(self._begin, principal, method, key, digest)

    async def finish(self, principal: str, method: str, key: str, answer: JsonObject) -> None:
        """Notes what came of it."""
        await self._run(self._finish, principal, method, key, json.dumps(answer))

    async def forget(self, principal: str, method: str, key: str) -> None:
        """It was refused before it did anything: it may be asked again."""
        await self._run(self._forget, principal, method, key)

    def _begin(self, principal: str, method: str, key: str, digest: str) -> RequestRecord:
        with self._transaction() as database:
            row = database.execute(
                "select digest, process, answer from requests"
                " where principal = ? and method = ? and key = ?",
                (principal, method, key),
            ).fetchone()
            if row is None:
                database.execute(
                    "insert into requests values (?, ?, ?, ?, ?, ?, null)",
                    (principal, method, key, digest, self._process, self._clock()),
                )
                return RequestRecord("new")
        known, process, answer = row
        if known != digest:
            return RequestRecord("other")
        if answer is not None:
            return RequestRecord("done", json.loads(answer))
        return RequestRecord("begun" if process == self._process else "lost")

    def _finish(self, principal: str, method: str, key: str, answer: str) -> None:
        with self._transaction() as database:
            database.execute(
                "update requests set answer = ? where principal = ? and method = ? and key = ?",
                (answer, principal, method, key),
            )

    def _forget(self, principal: str, method: str, key: str) -> None:
        with self._transaction() as database:
            database.execute(
                "delete from requests where principal = ? and method = ? and key = ?",
                (principal, method, key),
            )

    # ---- Messages ----

    async def keep(self, message_id: str, session_key: str, message: Inbound) -> None:
        """Keeps a message until a run has it."""
        row = (message_id, session_key, json.dumps(message.to_json()), self._clock())
        await self._run(self._change, "insert or ignore into messages values (?, ?, ?, ?)", row)

    async def release(self, ids: list[str]) -> None:
        """These were read, or given up."""
        for message_id in ids:
            await self._run(self._change, "delete from messages where id = ?", (message_id,))

    async def run_of(self, message_id: str) -> str | None:
        """The run that a message was read by, or will be; None if it is not known."""
        return await self._run(self._run_of, message_id)

    def _run_of(self, message_id: str) -> str | None:
        query = (
            "select run_id from said where id = :id"
            " union all select id from messages where id = :id limit 1"
        )
        with self._transaction("deferred") as database:
            row = database.execute(query, {"id": message_id}).fetchone()
        return None if row is None else row[0]

    async def messages(self) -> list[tuple[str, str, str]]:
        """Those that no run has: id, session and message, as they came."""
        return await self._run(self._messages)

    def _messages(self) -> list[tuple[str, str, str]]:
        query = "select id, session_key, message from messages order by at"
        with self._transaction("deferred") as database:
            return database.execute(query).fetchall()

    # ---- Runs ----

    async def accept(self, run: RunRow) -> None:
        """Notes a run that is about to be started; its messages are its own from now on."""
        await self._run(self._accept, run)

    async def start(self, run_id: str, at: float) -> None:
        """It has begun."""
        await self._run(self._change, "update runs set started = ? where id = ?", (at, run_id))

    async def end(self, run_id: str, at: float, status: str, result: JsonObject) -> None:
        """It has ended."""
        statement = "update runs set ended = ?, status = ?, result = ? where id = ?"
        await self._run(self._change, statement, (at, status, json.dumps(result), run_id))

    async def run(self, run_id: str) -> RunRow | None:
        """What is known of a run."""
        found = await self._run(self._rows, "select * from runs where id = ?", (run_id,))
        return found[0] if found else None

    async def unfinished(self) -> list[RunRow]:
        """Runs of whose end nothing is known, oldest first."""
        return await self._run(
            self._rows, "select * from runs where ended = 0 order by accepted", ()
        )

    async def tidy_now_and_then(self) -> None:
        """Forgets what is too old, if it has not for a while."""
        if abs(self._clock() - self._tidied) > TIDY_SECONDS:
            await self.tidy()

    async def tidy(self) -> None:
        """Forgets what is too old to be asked about."""
        self._tidied = self._clock()
        before = self._clock() - KEEP_SECONDS
        for statement in (
            "delete from requests where at < ?",
            "delete from said where at < ?",
            "delete from runs where ended > 0 and ended < ?",
        ):
            await self._run(self._change, statement, (before,))

    def _accept(self, run: RunRow) -> None:
        with self._transaction() as database:
            database.execute(
                "insert or ignore into runs"
                " (id, session_key, session_id, agent, request, accepted)"
                " values (?, ?, ?, ?, ?, ?)",
                (
                    run.id,
                    run.session_key,
                    run.session_id,
                    run.agent_id,
                    json.dumps(run.request),
                    run.accepted_at,
                ),
            )
            ids: Any = run.request.get("message_ids") or []
            for message_id in ids:
                database.execute("delete from messages where id = ?", (message_id,))
                said = (message_id, run.id, self._clock())
                database.execute("insert or ignore into said values (?, ?, ?)", said)

    def _change(self, statement: str, values: tuple[Any, ...]) -> None:
        with self._transaction() as database:
            database.execute(statement, values)

    def _rows(self, query: str, values: tuple[Any, ...]) -> list[RunRow]:
        with self._transaction("deferred") as database:
            rows = database.execute(query, values).fetchall()
        return [_row(each) for each in rows]


def _row(row: sqlite3.Row | tuple[Any, ...]) -> RunRow:
    run_id, key, session_id, agent, request, accepted, started, ended, status, result = row
    return RunRow(
        id=run_id,
        session_key=key,
        session_id=session_id,
        agent_id=agent,
        request=_loaded(request) or {},
        accepted_at=accepted,
        started_at=started,
        ended_at=ended,
        status=status,
        result=None if result is None else _loaded(result),
    )


def _loaded(text: str) -> JsonObject | None:
    """What was written; nothing, if the file was damaged: one row must not hold up the others."""
    try:
        found = json.loads(text)
    except (ValueError, TypeError):
        return None
    return found if isinstance(found, dict) else None
