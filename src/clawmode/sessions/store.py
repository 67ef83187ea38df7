"""The index of sessions: their keys and ids, their titles and usage, and the paths of their files.

    <folder>/sessions.sqlite3                        the index, in WAL mode
    <folder>/<agentId>/<sessionId>.jsonl             the transcript, with its `.lock`
    <folder>/<agentId>/<sessionId>.trajectory.jsonl  the steps of the session's runs

A key is permanent and names one session at a time; an id is one conversation. A reset gives the
key a new session.
"""

import json
import logging
import math
import sqlite3
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypeAlias

from clawmode.context import RunContext
from clawmode.files import Layout, SqliteFile
from clawmode.messages import Usage
from clawmode.sessions.entries import Header
from clawmode.sessions.keys import (
    MAX_KEY_CHARS,
    InvalidSession,
    SessionError,
    UnknownSession,
    check_agent_id,
    check_session_id,
    is_session_id,
    session_key,
)
from clawmode.sessions.lock import ACQUIRE_SECONDS, SessionLock
from clawmode.tools.near_names import NearNames
from clawmode.types import JsonObject, JsonValue, dataclass

logger = logging.getLogger("clawmode.sessions")

VERSION = 1
LOCK_SECONDS = 5.0
"""How long an operation waits for the operation of another process."""

MAX_TITLE_CHARS = 500
MAX_DATA_BYTES = 64 << 10
MAX_LISTED = 1_000
MAX_COMPARED = 2_000
"""The number of sessions, the newest first, whose names are compared with a misspelt one."""

SCHEMA = """
create table sessions (
    id text primary key,
    key text not null, agent text not null,
    current integer not null default 1,
    created real not null, updated real not null,
    title text not null default '', model text not null default '',
    status text not null default '',
    input integer not null default 0, output integer not null default 0,
    cache_read integer not null default 0, cache_write integer not null default 0,
    data text not null default '{}'
);
create unique index sessions_by_key on sessions (key) where current;
create index sessions_by_update on sessions (current, updated);
create index sessions_of_key on sessions (key);
"""

CURRENT = "select * from sessions where current and agent = coalesce(?, agent)"
BY_ID = "select * from sessions where id = ?"
BY_KEY = "select * from sessions where key = ? and current"


class SessionsUnavailable(SessionError):
    """The index cannot be read or written; nothing has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session of the index.

    Attributes:
        key: `agent:<agentId>:<rest>`.
        id: The id, which is part of the names of its files.
        transcript: The file with the messages.
        current: Whether the key names this session; false after a reset.
        title: A title for people.
        model: A model instead of the agent's; empty for the agent's.
        last_status: How the last run ended.
        usage: The tokens of all runs.
        data: Members that other modules keep here.
    """

    key: str
    id: str
    agent_id: str
    transcript: Path
    created_at: float
    updated_at: float
    current: bool = True
    title: str = ""
    model: str = ""
    last_status: str = ""
    usage: Usage = field(default_factory=Usage)
    data: JsonObject = field(default_factory=dict[str, JsonValue])

    @property
    def trajectory(self) -> Path:
        """The file that records the steps of the session's runs."""
        return self.transcript.with_name(f"{self.id}.trajectory.jsonl")

    def context(self, run_id: str) -> RunContext:
        """Returns the context of a run of the session, without a sender and a channel."""
        return RunContext(
            agent_id=self.agent_id, session_id=self.id, session_key=self.key, run_id=run_id
        )

    def header(self, workspace: Path | None = None) -> Header:
        """Returns the first line of the session's transcript."""
        return Header(
            id=self.id,
            key=self.key,
            agent_id=self.agent_id,
            created_at=self.created_at,
            workspace="" if workspace is None else str(workspace),
        )


Place: TypeAlias = tuple[float, str]
TOP: Place = (math.inf, "")
"""The time of the last use and the id of a session in the list of all; the top of the list."""

LAYOUT = Layout("The index of sessions", VERSION, SCHEMA, SessionsUnavailable, logger)


class SessionStore(SqliteFile):
    """The sessions in a folder, which any number of processes may share.

    Every method may raise `SessionsUnavailable`; then nothing has changed.

    Args:
        folder: The folder. It is created if it is missing, for its owner only.
        clock: Returns the time of day in seconds.
    """

    def __init__(self, folder: Path | str, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(Path(folder) / "sessions.sqlite3", LAYOUT, lock_seconds=LOCK_SECONDS)
        self._clock = clock

    # ---- For callers ----

    async def resolve(
        self,
        key: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        *,
        create: bool = True,
    ) -> Session:
        """Returns a session by its key or id; without either, the agent's main session.

        Args:
            key: The key, with or without `agent:<agentId>:`.
            session_id: The id of an existing session, which may have been reset.
            agent_id: The agent that the session must belong to; `main` if neither this nor the
                key names one.
            create: Whether a session is created for a key that has none.

        Raises:
            InvalidSession: The key or id is invalid, or they name different sessions.
            UnknownSession: The session does not exist.
        """
        if session_id is None:
            wanted = session_key(key, agent_id)
            return await self._run(self._resolve_key, wanted, create)
        owner = None if agent_id is None else check_agent_id(agent_id)
        wanted = None if key is None else session_key(key, agent_id)
        session = await self.get(session_id)
        if owner not in (None, session.agent_id):
            raise InvalidSession(
                f"The session {session.id} belongs to the agent {session.agent_id!r}, not to "
                f"{owner!r}."
            )
        if wanted not in (None, session.key):
            raise InvalidSession(
                f"The session {session.id} has the key {session.key!r}, not {wanted!r}."
            )
        return session

    async def get(self, reference: str) -> Session:
        """Returns a session by its id, or by its key.

        Raises:
            InvalidSession: The reference is neither a valid id nor a valid key.
            UnknownSession: The session does not exist.
        """
        return await self._run(self._get, _reference(reference))

    async def list(
        self, agent_id: str | None = None, *, limit: int = 100, offset: int = 0, after: Place = TOP
    ) -> Sequence[Session]:
        """Returns current sessions, the last used one first, after the one at a place."""
        owner = None if agent_id is None else check_agent_id(agent_id)
        limit = max(0, min(limit, MAX_LISTED))
        return await self._run(self._list, (owner, *after, limit, max(0, offset)))

    async def touch(
        self,
        reference: str,
        *,
        status: str | None = None,
        usage: Usage | JsonObject | None = None,
        title: str | None = None,
        model: str | None = None,
        data: JsonObject | None = None,
    ) -> Session:
        """Updates a session and the time of its last use. None leaves a field unchanged.

        Args:
            reference: The id or the key. A run passes the id, because after a reset the key names
                another session.
            status: How the last run ended.
            usage: Tokens to add.
            title: A title for people; empty to remove it.
            model: A model instead of the agent's; empty for the agent's.
            data: Members to set; a member that is None is removed.

        Raises:
            InvalidSession: A value is too long.
            UnknownSession: The session does not exist.
        """
        if title is not None and len(title) > MAX_TITLE_CHARS:
            raise InvalidSession(f"A title must have at most {MAX_TITLE_CHARS} characters.")
        if max(len(model or ""), len(status or "")) > MAX_KEY_CHARS:
            text = f"A model or status must have at most {MAX_KEY_CHARS} characters."
            raise InvalidSession(text)
        changes = {"status": status, "title": title, "model": model}
        counted = usage if isinstance(usage, Usage) else Usage.from_json(usage or {})
        return await self._run(self._touch, _reference(reference), changes, counted, data or {})

    async def reset(self, key: str, agent_id: str | None = None) -> Session:
        """Creates a new session for a key. The old session and its files are kept under its id.

        The new session gets the title, model and data of the old one.

        Raises:
            UnknownSession: The key has no session.
        """
        return await self._run(self._reset, session_key(key, agent_id))

    async def delete(
        self, key: str, agent_id: str | None = None, *, timeout_seconds: float = ACQUIRE_SECONDS
    ) -> int:
        """Deletes all sessions of a key with their files; returns how many there were.

        Raises:
            UnknownSession: The key has no session.
            SessionBusy: A run writes to one of the sessions. This one and later ones still exist.
        """
        wanted = session_key(key, agent_id)
        found = await self._run(self._all_of, wanted)
        for session in found:
            lock = SessionLock(session.transcript)
            async with lock.hold(timeout_seconds):
                await self._run(self._delete, session)
                lock.delete_file()
        return len(found)

    # ---- In a transaction ----

    def _resolve_key(self, key: str, create: bool) -> Session:
        with self._transaction("deferred") as database:
            session = self._find(database, key) if create else self._known(database, key)
        if session is not None:
            return session
        with self._transaction() as database:
            # Another process may have been faster.
            found = self._find(database, key)
            return found or self._insert(database, key, "", "", "{}")

    def _get(self, reference: str) -> Session:
        with self._transaction("deferred") as database:
            return self._known(database, reference)

    def _list(self, given: tuple[Any, ...]) -> Sequence[Session]:
        query = f"{CURRENT} and (-updated, id) > (-?, ?) order by updated desc, id limit ? offset ?"
        with self._transaction("deferred") as database:
            return [self._session(row) for row in database.execute(query, given).fetchall()]

    def _touch(
        self, reference: str, changes: dict[str, str | None], usage: Usage, data: JsonObject
    ) -> Session:
        with self._transaction() as database:
            session = self._known(database, reference)
            merged = {**session.data, **data}
            kept: JsonObject = {key: value for key, value in merged.items() if value is not None}
            database.execute(
                "update sessions set updated = :updated, status = coalesce(:status, status),"
                " title = coalesce(:title, title), model = coalesce(:model, model), data = :data,"
                " input = input + :input, output = output + :output,"
                " cache_read = cache_read + :cacheRead, cache_write = cache_write + :cacheWrite"
                " where id = :id",
                {
                    **changes,
                    **usage.to_json(),
                    "updated": self._clock(),
                    "data": _encoded(kept),
                    "id": session.id,
                },
            )
            return self._known(database, session.id)

    def _reset(self, key: str) -> Session:
        with self._transaction() as database:
            old = self._known(database, key)
            database.execute("update sessions set current = 0 where id = ?", (old.id,))
            return self._insert(database, key, old.title, old.model, _encoded(old.data))

    def _all_of(self, key: str) -> Sequence[Session]:
        with self._transaction("deferred") as database:
            self._known(database, key)
            # The current session last: if a deletion fails, the key still names a session.
            query = "select * from sessions where key = ? order by current, created, id"
            return [self._session(row) for row in database.execute(query, (key,)).fetchall()]

    def _delete(self, session: Session) -> None:
        with self._transaction() as database:
            database.execute("delete from sessions where id = ?", (session.id,))
        for path in (session.transcript, session.trajectory):
            path.unlink(missing_ok=True)

    def _insert(
        self, database: sqlite3.Connection, key: str, title: str, model: str, data: str
    ) -> Session:
        now = self._clock()
        agent_id = key.split(":")[1]
        session_id = uuid.uuid4().hex
        database.execute(
            "insert into sessions (id, key, agent, created, updated, title, model, data)"
            " values (?, ?, ?, ?, ?, ?, ?, ?)",
            (session_id, key, agent_id, now, now, title, model, data),
        )
        return self._known(database, session_id)

    def _known(self, database: sqlite3.Connection, reference: str) -> Session:
        session = self._find(database, reference)
        if session is None:
            raise _unknown(database, reference)
        return session

    def _find(self, database: sqlite3.Connection, reference: str) -> Session | None:
        query = BY_ID if is_session_id(reference) else BY_KEY
        row = database.execute(query, (reference,)).fetchone()
        return None if row is None else self._session(row)

    def _session(self, row: tuple[Any, ...]) -> Session:
        session_id, key, agent_id, current, created, updated, title, model, status = row[:9]
        # The content of the file is not trusted, and both become parts of a path.
        folder, name = check_agent_id(agent_id), check_session_id(session_id)
        return Session(
            key=key,
            id=session_id,
            agent_id=agent_id,
            transcript=self.folder / folder / f"{name}.jsonl",
            created_at=created,
            updated_at=updated,
            current=bool(current),
            title=title,
            model=model,
            last_status=status,
            usage=Usage(*row[9:13]),
            data=json.loads(row[13]),
        )


def _unknown(database: sqlite3.Connection, reference: str) -> UnknownSession:
    by_id = is_session_id(reference)
    query = "select id, key from sessions where current order by updated desc limit ?"
    rows = database.execute(query, (MAX_COMPARED,)).fetchall()
    names = [session_id if by_id else key for session_id, key in rows]
    near = tuple(names[position] for position in NearNames(names).find(reference, 3))
    what = f"There is no session {'with the id' if by_id else 'under the key'} {reference!r}."
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return UnknownSession(f"{what}{hint}", near)


def _reference(reference: str) -> str:
    return check_session_id(reference) if is_session_id(reference) else session_key(reference)


def _encoded(data: JsonObject) -> str:
    try:
        text = json.dumps(data, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidSession(f"`data` of a session is not JSON: {error}") from None
    if len(text) > MAX_DATA_BYTES:
        raise InvalidSession(
            f"`data` of a session has {len(text)} bytes; at most {MAX_DATA_BYTES} are allowed."
        )
    return text
