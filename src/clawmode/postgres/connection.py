"""Connections to PostgreSQL: how they are opened, shared, bounded in time, and how they fail.

The only module that imports psycopg. It is used synchronously, in threads: after a cancellation, an
asynchronous connection of psycopg cannot be used again. Every statement is one call of a function
with autocommit, so a stopped process never holds a lock.
"""

import contextlib
import ipaddress
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeVar

import anyio
import psycopg
from anyio.lowlevel import RunVar
from psycopg import pq, sql
from psycopg.abc import PQGen

from clawmode.exceptions import ConfigurationError, StoreUnavailable
from clawmode.postgres.reasons import REPEAT, STORE, WHY, explain
from clawmode.types import dataclass

logger = logging.getLogger("clawmode.postgres")

T = TypeVar("T")
PostgresError = psycopg.Error

SCHEMA = "clawmode"
QUEUE_SECONDS = 2.0
"""How long a statement waits for a connection, or for a server that is just not there."""

WAITING = 1000
"""The maximum of statements that wait for a connection."""

STATEMENT_SECONDS = 5.0
ANSWER_SECONDS = 6.0
"""How long an answer may take. Later than the server's limit, and for mute networks."""

LOCK_SECONDS = 3.0
SECURE = ("require", "verify-ca", "verify-full")


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect to.

    Attributes:
        options: The parameters of libpq, with the password.
        name: The server, the port and the database, without user and password.
    """

    options: dict[str, str]
    name: str

    def __repr__(self) -> str:
        return f"Target({self.name})"


def parse(dsn: str) -> Target:
    """Reads the URL of a database, and demands TLS unless the server is on this machine.

    Raises:
        ConfigurationError: The URL is invalid, or turns TLS off. The message shows no part of it
            that may be secret.
    """
    if not dsn.startswith(("postgresql://", "postgres://")) or "\0" in dsn:
        raise ConfigurationError(
            "the address of the database must begin with postgresql://",
            expected="postgresql://user@host/database",
        )
    try:
        given = {item.keyword.decode(): item.val for item in pq.Conninfo.parse(dsn.encode())}
        defaults = {item.keyword.decode(): item.val for item in pq.Conninfo.get_defaults()}
    except (psycopg.Error, UnicodeError):
        # The exception quotes the URL.
        raise ConfigurationError(
            "the address of the database cannot be read: characters of the user name and the "
            "password other than letters and digits must be percent-encoded",
            expected="postgresql://user@host/database",
        ) from None
    merged = {name: value or defaults.get(name) for name, value in given.items()}
    options = {name: value.decode() for name, value in merged.items() if value}
    hosts = options.get("hostaddr") or options.get("host") or ""
    name = f"{hosts or 'local socket'}:{options.get('port', '')}/{options.get('dbname', '')}"
    if not all(_is_local(host) for host in hosts.split(",")) or "service" in options:
        mode = (given.get("sslmode") or b"").decode() or os.environ.get("PGSSLMODE") or "require"
        if mode not in SECURE:
            shown = f"sslmode={mode}" if mode in ("disable", "allow", "prefer") else "this sslmode"
            raise ConfigurationError(
                f"{shown} would send programs to {name} unencrypted: use require, verify-ca "
                "or verify-full (only a server on this machine may do without TLS)"
            )
        options["sslmode"] = mode
    return Target(options, name)


def _is_local(host: str) -> bool:
    if not host or host[0] in "/@" or host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that gives up on an answer after `ANSWER_SECONDS`."""

    patience = ANSWER_SECONDS

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        return super().wait(gen, interval, self.patience if timeout is None else timeout)


def connect(target: Target, *, direct: bool, seconds: float = QUEUE_SECONDS) -> Connection:
    """Opens a connection.

    Args:
        target: Where to.
        direct: False if PgBouncer is in between, which passes no settings and keeps no session.
        seconds: How long that may take, at least 2 because of libpq.

    Raises:
        psycopg.Error: The server cannot be reached or rejects us.
    """
    settings = (
        f"-c statement_timeout={int(STATEMENT_SECONDS * 1000)} "
        f"-c lock_timeout={int(LOCK_SECONDS * 1000)} "
        f"-c idle_in_transaction_session_timeout={int(STATEMENT_SECONDS * 1000)} "
        f"-c search_path=pg_catalog,{SCHEMA},pg_temp -c client_min_messages=warning "
        "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3"
    )
    options: dict[str, Any] = {
        "application_name": "clawmode",
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": int(ANSWER_SECONDS * 1000),
        "target_session_attrs": "read-write",
        **target.options,
        "connect_timeout": max(2, round(seconds)),
        "client_encoding": "UTF8",
    }
    if direct:
        options["options"] = f"{target.options.get('options', '')} {settings}".strip()
    made = Connection.connect(autocommit=True, **options)
    made.prepare_threshold = 2 if direct else None  # prepared statements belong to a session
    if not made.pgconn.ssl_in_use and not _is_local(made.info.hostaddr or made.info.host):
        made.close()
        raise psycopg.OperationalError("the server does not use TLS")
    return made


def reason(error: psycopg.Error, what: str = STORE) -> str:
    """Returns why a statement failed, without names, addresses or data."""
    return explain(error.sqlstate or "", str(error), what)


def _is_passing(error: psycopg.Error) -> bool:
    """True if the statement may succeed on another connection."""
    state = error.sqlstate or "08"
    return isinstance(error, psycopg.OperationalError) and state.startswith(REPEAT)


@cache
def _statement(function: str, count: int) -> bytes:
    marks = sql.SQL(", ").join([sql.Placeholder()] * count)
    called = sql.Identifier(SCHEMA, function)
    return sql.SQL("select * from {}({})").format(called, marks).as_bytes(None)


def check_settings(connection: Connection) -> None:
    """Checks that a direct connection has our settings: a PgBouncer may be told to drop them.

    Raises:
        StoreUnavailable: It has not, so notifications would not arrive either.
    """
    query = "select pg_catalog.current_setting('client_min_messages')"
    if connection.execute(query).fetchone() != ("warning",):
        raise StoreUnavailable(WHY["POOL"].format(what=STORE))


def listen(connection: Connection, channel: str) -> None:
    """Lets a connection receive the notifications of a channel."""
    connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))


_pools: "weakref.WeakSet[Connections]" = weakref.WeakSet()
_inherited: list[Connection] = []


def _leave_to_the_parent() -> None:
    for pool in list(_pools):
        pool.forget()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leave_to_the_parent)


class Connections:
    """A few connections that all tasks and threads of a process share.

    Args:
        dsn: The URL of the database.
        size: The maximum of connections.
        direct: False if PgBouncer is in between.

    Attributes:
        target: Where the connections lead to.
        after_fork: Called in the child of a fork.
    """

    def __init__(self, dsn: str, *, size: int = 8, direct: bool = True) -> None:
        self.target = parse(dsn)
        self.direct = direct
        self._size = size
        self.after_fork: list[Callable[[], None]] = []
        self._limiters: RunVar[anyio.CapacityLimiter] = RunVar("connections")
        self.forget()
        _pools.add(self)

    def forget(self) -> None:
        """Starts without connections, as the child of a fork does."""
        for connection in getattr(self, "_all", ()):
            # Closing would tell the server that the parent's session ends; an open copy would keep
            # the session alive after the parent's death.
            with contextlib.suppress(OSError, psycopg.Error):
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, connection.fileno())
                os.close(null)
            _inherited.append(connection)
        self._all: set[Connection] = set()
        self._idle: deque[Connection] = deque()
        self._free = threading.BoundedSemaphore(self._size)
        self._lock = threading.Lock()
        for forget in self.after_fork:
            forget()

    def close(self) -> None:
        """Closes the connections that are not in use. The next use opens new ones."""
        with self._lock:
            idle, self._idle = list(self._idle), deque()
            self._all.difference_update(idle)
        for connection in idle:
            connection.close()

    def open(self, seconds: float = QUEUE_SECONDS) -> Connection:
        """Opens a connection of the caller's own, who must `discard` it.

        Raises:
            psycopg.Error: The server cannot be reached or rejects us.
        """
        made = connect(self.target, direct=self.direct, seconds=seconds)
        with self._lock:
            self._all.add(made)
        return made

    def discard(self, connection: Connection) -> None:
        """Closes a connection that `open` has returned."""
        with self._lock:
            self._all.discard(connection)
        with contextlib.suppress(psycopg.Error, OSError):
            connection.close()

    @contextlib.contextmanager
    def lent(self, seconds: float = QUEUE_SECONDS) -> Iterator[Connection]:
        """Lends a connection. After a failure of it, it and all idle ones are closed.

        Raises:
            StoreUnavailable: All connections are in use for longer than `seconds`.
            psycopg.Error: The server cannot be reached or rejects us.
        """
        if not self._free.acquire(timeout=max(0.0, seconds)):
            raise unavailable(f"{STORE} is overloaded: try again.")
        try:
            with self._lock:
                found = self._idle.pop() if self._idle else None
            connection = found or self.open()
            try:
                yield connection
            except BaseException as error:
                usable = isinstance(error, psycopg.Error) and not _is_passing(error)
                if not usable or connection.closed:
                    self.discard(connection)
                    self.close()
                    raise
                self._idle.append(connection)
                raise
            self._idle.append(connection)
        finally:
            self._free.release()

    # ---- Statements ----

    async def call(self, function: str, *args: Any, repeats: bool = False) -> list[tuple[Any, ...]]:
        """Calls a function of our schema in a thread, and returns its rows.

        Args:
            function: Its name.
            args: Its arguments.
            repeats: Whether the last argument is to say that the call is repeated.

        Raises:
            StoreUnavailable: The server cannot be reached, or the call failed. The caller cannot
                know if the function was executed.
        """
        try:
            limiter = self._limiters.get()
        except LookupError:
            limiter = anyio.CapacityLimiter(self._size)
            self._limiters.set(limiter)
        token = object()
        try:
            limiter.acquire_on_behalf_of_nowait(token)
        except anyio.WouldBlock:
            if limiter.statistics().tasks_waiting >= WAITING:
                raise unavailable(f"{STORE} is overloaded: try again.", unsent=True) from None
            with anyio.move_on_after(QUEUE_SECONDS) as waiting:
                await limiter.acquire_on_behalf_of(token)
            if waiting.cancelled_caught:
                raise unavailable(f"{STORE} is overloaded: try again.", unsent=True) from None
        try:
            return await anyio.to_thread.run_sync(
                lambda: self.run(function, *args, repeats=repeats),
                limiter=anyio.CapacityLimiter(1),
            )
        finally:
            limiter.release_on_behalf_of(token)

    def run(self, function: str, *args: Any, repeats: bool = False) -> list[tuple[Any, ...]]:
        """Calls a function like `call`, in the thread of the caller."""
        query = _statement(function, len(args) + repeats)
        limit, pause, sent = time.monotonic() + QUEUE_SECONDS, 0.01, False
        while True:
            given = (*args, sent) if repeats else args
            try:
                with self.lent(limit - time.monotonic()) as connection:
                    sent = True
                    with connection.cursor(binary=True) as cursor:
                        return cursor.execute(query, given).fetchall()
            except psycopg.Error as error:  # its message may quote data
                state = error.sqlstate or type(error).__name__
                if _is_passing(error) and time.monotonic() + pause < limit:
                    logger.debug("%s at %s: %s, repeated", function, self.target.name, state)
                    time.sleep(pause)
                    pause = min(0.2, 2 * pause)
                    continue
                logger.error("%s at %s: %s", function, self.target.name, state)
                raise unavailable(reason(error), unsent=not sent) from None


def unavailable(text: str, *, unsent: bool = False) -> StoreUnavailable:
    """Returns the exception for a store that may be back soon."""
    error = StoreUnavailable(text)
    error.retry_after, error.unsent = QUEUE_SECONDS, unsent
    return error
