"""The gateway's database, which survives restarts: requests with an effect, runs, messages.

A request is recorded before it is executed, and its response afterwards. So the same request with
the same key is never executed twice, even if the process is killed in between.
"""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from clawmode.exceptions import ClawmodeError
from clawmode.files import Layout, SqliteFile
from clawmode.messaging.channel import InboundMessage
from clawmode.types import JsonObject, dataclass

logger = logging.getLogger("clawmode.gateway")

FILE = "gateway.sqlite3"
VERSION = 1
LOCK_SECONDS = 5.0
KEEP_SECONDS = 7 * 86_400.0
"""How long requests, and runs that have ended, are remembered."""

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
    """The gateway's database cannot be read or written; nothing has changed."""


LAYOUT = Layout("The gateway's database", VERSION, SCHEMA, LedgerUnavailable, logger)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What the ledger knows about a request.

    Attributes:
        state: `new`: not recorded before. `begun`: this process executes it. `lost`: an earlier
            process began it, and its outcome is unknown. `done`: it has a response. `other`: the
            key belongs to another request.
        answer: The payload of the response, if the state is `done`.
    """

    state: State
    answer: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class RunRow:
    """A row of the table `runs`; times that are 0 have not come yet."""

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
    """The gateway's database in a state folder. Every method may raise `LedgerUnavailable`.

    Args:
        state: The state folder.
        process: The id of this process. Requests that another process began will never finish.
        clock: Returns the time, in seconds since the epoch.
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
        """Records a request that is about to be executed, unless its key is known."""
        return await self._run(self._begin, principal, method, key, digest)

    async def finish(self, principal: str, method: str, key: str, answer: JsonObject) -> None:
        """Records the response to a request."""
        statement = "update requests set answer = ? where principal = ? and method = ? and key = ?"
        await self._run(self._change, statement, (json.dumps(answer), principal, method, key))

    async def forget(self, principal: str, method: str, key: str) -> None:
        """Removes a request that was rejected before it had an effect: it may be repeated."""
        statement = "delete from requests where principal = ? and method = ? and key = ?"
        await self._run(self._change, statement, (principal, method, key))

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

    # ---- Messages ----

    async def keep(self, message_id: str, session_key: str, message: InboundMessage) -> None:
        """Stores a message until a run has read it."""
        row = (message_id, session_key, json.dumps(message.to_json()), self._clock())
        await self._run(self._change, "insert or ignore into messages values (?, ?, ?, ?)", row)

    async def release(self, ids: list[str]) -> None:
        """Deletes messages that were read or dropped."""
        for message_id in ids:
            await self._run(self._change, "delete from messages where id = ?", (message_id,))

    async def run_of(self, message_id: str) -> str | None:
        """Returns the run that has read a message, or will; None if the message is unknown."""
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
        """Returns the messages that no run has read: id, session key and message, oldest first."""
        return await self._run(self._messages)

    def _messages(self) -> list[tuple[str, str, str]]:
        query = "select id, session_key, message from messages order by at"
        with self._transaction("deferred") as database:
            return database.execute(query).fetchall()

    # ---- Runs ----

    async def accept(self, run: RunRow) -> None:
        """Records a run that is about to start, and assigns its messages to it."""
        await self._run(self._accept, run)

    async def start(self, run_id: str, at: float) -> None:
        await self._run(self._change, "update runs set started = ? where id = ?", (at, run_id))

    async def end(self, run_id: str, at: float, status: str, result: JsonObject) -> None:
        statement = "update runs set ended = ?, status = ?, result = ? where id = ?"
        await self._run(self._change, statement, (at, status, json.dumps(result), run_id))

    async def run(self, run_id: str) -> RunRow | None:
        found = await self._run(self._rows, "select * from runs where id = ?", (run_id,))
        return found[0] if found else None

    async def unfinished(self) -> list[RunRow]:
        """Returns the runs without a recorded end, oldest first."""
        return await self._run(
            self._rows, "select * from runs where ended = 0 order by accepted", ()
        )

    async def tidy_now_and_then(self) -> None:
        """Calls `tidy` if the last time was more than an hour ago."""
        # The absolute value: the clock may be set back.
        if abs(self._clock() - self._tidied) > TIDY_SECONDS:
            await self.tidy()

    async def tidy(self) -> None:
        """Deletes requests and ended runs that are older than `KEEP_SECONDS`."""
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
            # A run that is continued is accepted again, under its old id.
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
        found = [RunRow(*row) for row in rows]
        return [
            replace(it, request=_load(it.request) or {}, result=_load(it.result)) for it in found
        ]


def _load(text: object) -> JsonObject | None:
    # A damaged row must not keep the gateway from starting.
    try:
        found = json.loads(str(text))
    except (ValueError, TypeError):
        return None
    return found if isinstance(found, dict) else None
