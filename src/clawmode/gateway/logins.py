"""Who is logged in to the control page: one-time codes, and sessions of browsers.

Both are random, and kept only as hashes. A session belongs to the token that it was opened with,
and ends with that token. Sessions outlive the process, in a file of the state folder; codes do not.
"""

import logging
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

import anyio

from clawmode.addresses import Attempts
from clawmode.exceptions import ConfigurationError
from clawmode.files import write_atomic
from clawmode.records import Items, Record, parse
from clawmode.rpc.protocol import RpcError
from clawmode.rpc.scopes import Scope, expand
from clawmode.rpc.tokens import LOCAL, Token, TokenError, Tokens, digest
from clawmode.types import dataclass

logger = logging.getLogger("clawmode.gateway")

Kept = TypeVar("Kept")

CODE_SECONDS = 60.0
MAX_CODES = 100
IDLE_SECONDS, LIFE_SECONDS = 12 * 3_600.0, 7 * 24 * 3_600.0
"""A session ends when its browser was away for so long, and in any case after a week."""

SESSIONS_FILE = "page-sessions.json"
MAX_FILE = 1 << 20
SAVE_SECONDS = 600.0
"""The time between writes that only say when sessions were last used."""

DROP_SECONDS = 0.2
"""The time for the response to reach a client that has revoked its own token."""

MAX_SESSIONS = 2_000
"""The most codes and sessions; the oldest one of the token that has the most makes room."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a browser may do: as the client that it was let in by.

    Attributes:
        token: The hash of the token.
        principal: The name of the token.
    """

    token: str
    principal: str
    scopes: tuple[Scope, ...]

    @classmethod
    def of(cls, token: Token) -> "Grant":
        return cls(token.digest, token.name, token.scopes)


@dataclass(slots=True)
class Session:
    """A browser that is logged in.

    Attributes:
        id: The hash of the cookie.
        used: When the browser last used the session.
        opened: When the browser logged in.
    """

    id: str
    grant: Grant
    used: float
    opened: float


async def revoked(tokens: Tokens, wanted: Collection[str]) -> Collection[str]:
    """Returns those of some hashes whose token no longer exists."""
    try:
        return await anyio.to_thread.run_sync(tokens.missing, wanted)
    except TokenError as error:
        logger.error("login: %s", error)
        return set(wanted).difference(it.digest for it in tokens.own)


def check_attempts(attempts: Attempts, address: str) -> None:
    """Checks that few enough logins from an address have failed.

    Raises:
        RpcError: Too many have failed.
    """
    if (seconds := attempts.wait(address)) > 0:
        wait = int(seconds * 1000) + 1
        raise RpcError("RATE_LIMITED", "too many failed attempts", retry_after_ms=wait)


class SavedSession(Record):
    """A session in the file.

    Attributes:
        id: The hash of the cookie.
        token: The hash of the token; `local` for the token of the process, as each has another one.
        scopes: The scopes of the session, which may be fewer than those of the token.
    """

    id: str
    token: str
    scopes: Items[Scope]
    used: float
    opened: float


class SavedSessions(Record):
    """The content of the file of sessions."""

    version: int = 1
    sessions: Items[SavedSession]


class Logins:
    """The one-time codes that were not used yet, and the sessions of browsers.

    Args:
        clock: Returns the time of day in seconds.
        file: Where sessions are kept; None to keep them in memory only.
    """

    def __init__(self, clock: Callable[[], float] = time.time, file: Path | None = None) -> None:
        self._clock = clock
        self._codes: OrderedDict[str, tuple[float, Grant]] = OrderedDict()
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._file, self._local = file, ""
        self._lock, self._changed, self._saved_at = anyio.Lock(), False, clock()

    # ---- Codes ----

    def new_code(self, grant: Grant) -> str:
        """Returns a code that opens one session, within a minute."""
        code = secrets.token_urlsafe(32)
        self._codes[digest(code)] = (self._clock() + CODE_SECONDS, grant)
        _make_room(self._codes, MAX_CODES, lambda kept: kept[1])
        return code

    def look_up(self, code: str) -> Grant | None:
        """Returns what a code grants, and leaves it valid; None as for `redeem`."""
        expires, grant = self._codes.get(digest(code), (0.0, None))
        return grant if self._clock() < expires else None

    def redeem(self, code: str) -> Grant | None:
        """Returns what a code grants, once; None if it is unknown, used or expired."""
        expires, grant = self._codes.pop(digest(code), (0.0, None))
        return grant if self._clock() < expires else None

    # ---- Sessions ----

    def open(self, grant: Grant) -> str:
        """Opens a session, and returns the content of its cookie."""
        cookie, now = secrets.token_urlsafe(32), self._clock()
        session = Session(digest(cookie), grant, now, now)
        self._sessions[session.id] = session
        self._changed = True
        _make_room(self._sessions, MAX_SESSIONS, lambda kept: kept.grant)
        return cookie

    def find(self, cookie: str) -> Session | None:
        """Returns the session of a cookie; None if there is none, or it was idle for too long."""
        return self.touch(digest(cookie))

    def touch(self, session_id: str) -> Session | None:
        """Returns a session that is used now; None as for `find`."""
        session, now = self._sessions.get(session_id), self._clock()
        if session is None or _is_over(session.used, session.opened, now):
            self.close(session_id)
            return None
        session.used = now
        self._sessions.move_to_end(session_id)
        return session

    def close(self, session_id: str) -> None:
        """Ends a session: its cookie is worthless from now on."""
        self._changed |= self._sessions.pop(session_id, None) is not None

    # ---- The file ----

    def restore(self, tokens: Tokens) -> None:
        """Takes over the sessions of the process before this one, whose tokens still exist."""
        self._local = next((it.digest for it in tokens.own if it.name == LOCAL), "")
        if self._file is None:
            return
        try:
            with self._file.open("rb") as file:
                raw = file.read(MAX_FILE)
            saved = parse(SavedSessions, raw).sessions
            known = {it.digest: it for it in (*tokens.list(), *tokens.own)}
        except FileNotFoundError:
            return
        except (OSError, ValueError, ConfigurationError, TokenError) as error:
            logger.warning("the sessions of browsers were not restored: %s", error)
            return
        now = self._clock()
        for it in saved[:MAX_SESSIONS]:
            token = known.get(self._local if it.token == LOCAL else it.token)
            used, opened = min(it.used, now), min(it.opened, now)
            if token is not None and not _is_over(used, opened, now):
                scopes = tuple(sorted(expand(token.scopes).intersection(it.scopes)))
                grant = Grant(token.digest, token.name, scopes)
                self._sessions[it.id] = Session(it.id, grant, used, opened)

    async def save(self) -> None:
        """Writes the sessions to the file, if they have changed or were used since long."""
        async with self._lock:
            now = self._clock()
            is_old = bool(self._sessions) and abs(now - self._saved_at) > SAVE_SECONDS
            if self._file is None or not (self._changed or is_old):
                return
            self._changed, self._saved_at = False, now
            saved = tuple(
                SavedSession(
                    id=it.id,
                    token=LOCAL if it.grant.token == self._local else it.grant.token,
                    scopes=it.grant.scopes,
                    used=it.used,
                    opened=it.opened,
                )
                for it in self._sessions.values()
            )
            text = SavedSessions(sessions=saved).model_dump_json()
            try:
                await anyio.to_thread.run_sync(write_atomic, self._file, text)
            except OSError as error:
                self._changed = True
                logger.error("%s: %s", self._file, error.strerror or error)


def _is_over(used: float, opened: float, now: float) -> bool:
    return now - used > IDLE_SECONDS or now - opened > LIFE_SECONDS


def _make_room(kept: OrderedDict[str, Kept], most: int, grant_of: Callable[[Kept], Grant]) -> None:
    # Not simply the oldest: one client could then end the sessions of all others.
    while len(kept) > most:
        counts = Counter(grant_of(each).token for each in kept.values())
        ((token, _),) = counts.most_common(1)
        del kept[next(key for key, each in kept.items() if grant_of(each).token == token)]
