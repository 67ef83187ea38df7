"""A SQLite file that processes share: opened, used in turns, its troubles told in our words.

What `sqlite_store` and `agent/sessions` have in common; what is in their files is their own.
"""

import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import anyio
from anyio.lowlevel import RunVar

from clawmode.exceptions import ClawmodeError

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Layout:
    """What is in a file, and what is said of it.

    Attributes:
        what: The file, to people: the beginning of a sentence.
        version: Of the schema. A file with a later one is left alone.
        schema: Statements, each with its semicolon at the end of a line.
        unavailable: Raised when the file cannot be used.
        logger: Told the path and the library's words, which are the operator's business.
    """

    what: str
    version: int
    schema: str
    unavailable: type[ClawmodeError]
    logger: logging.Logger


_files: "weakref.WeakSet[SqliteFile]" = weakref.WeakSet()
_inherited: list[sqlite3.Connection | None] = []


def _leave_to_the_parent() -> None:
    for file in list(_files):
        file._forked()


os.register_at_fork(after_in_child=_leave_to_the_parent)


class SqliteFile:
    """A file, open from its first use on; to be inherited from.

    Args:
        path: The file. It and its folder are made if they are not there, for their user only.
        layout: What is in it.
        lock_seconds: How long an operation waits for another process's.
    """

    def __init__(self, path: Path, layout: Layout, *, lock_seconds: float) -> None:
        self.path = path
        self._layout = layout
        self._lock_seconds = lock_seconds
        self._database: sqlite3.Connection | None = None
        # One at a time, in a thread: another process may hold the lock for a while. Several event
        # loops may use one file, and what a cancelled caller began may still be under way.
        self._turns: RunVar[anyio.CapacityLimiter] = RunVar("turns")
        self._lock = threading.Lock()
        _files.add(self)

    @property
    def folder(self) -> Path:
        """Where the file is."""
        return self.path.parent

    def close(self) -> None:
        """Closes the file. Idempotent; the next use opens it again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _forked(self) -> None:
        """In a child: the connection is the parent's."""
        self._lock = threading.Lock()
        # Not closed: that would give back the parent's locks on the file.
        _inherited.append(self._database)
        self._database = None

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `work` in a thread, when it is its turn."""
        try:
            turn = self._turns.get()
        except LookupError:
            turn = anyio.CapacityLimiter(1)
            self._turns.set(turn)
        return await anyio.to_thread.run_sync(
            lambda: self._translated(work, *args, **kwargs), limiter=turn
        )

    def _translated(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `work`; the library's exceptions, and the disk's, become ours."""
        try:
            with self._lock:
                return work(*args, **kwargs)
        except (sqlite3.Error, OSError, ValueError, OverflowError, TypeError) as error:
            # The path is for the operator: what is raised may reach a model, or a client.
            self._layout.logger.error("%s: %s: %s", self.path, type(error).__name__, error)
            raise self._layout.unavailable(_reason(self._layout.what, error)) from None

    @contextmanager
    def _transaction(self, kind: str = "immediate") -> Iterator[sqlite3.Connection]:
        database = self._database or self._open()
        database.execute(f"begin {kind}")
        try:
            yield database
            database.execute("commit")
        except BaseException:
            # A failure of the disk may have ended the transaction already.
            if database.in_transaction:
                database.execute("rollback")
            raise

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _open(self) -> sqlite3.Connection:
        self._make_folder()
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        database = sqlite3.connect(
            self.path, timeout=self._lock_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            _prepare(database, self._layout)
        except BaseException:
            database.close()
            raise
        self._database = database
        return database


def _prepare(database: sqlite3.Connection, layout: Layout) -> None:
    database.execute("pragma journal_mode = wal")
    database.execute("pragma synchronous = normal")
    database.execute("pragma journal_size_limit = 16777216")
    database.execute("begin immediate")
    (version,) = database.execute("pragma user_version").fetchone()
    if version > layout.version:
        raise layout.unavailable(
            f"{layout.what} was written by a newer clawmode: it has version {version}, and this "
            f"one knows {layout.version}. Nothing was changed."
        )
    if version == 0:
        for statement in layout.schema.split(";\n"):
            database.execute(statement)
        database.execute(f"pragma user_version = {layout.version}")
    database.execute("commit")


def _reason(what: str, error: Exception) -> str:
    code = getattr(error, "sqlite_errorname", None) or ""
    if "FULL" in code:
        return f"{what} cannot be written: its disk is full."
    if "BUSY" in code or "LOCKED" in code:
        return f"{what} is locked by another process: try again."
    if "CORRUPT" in code or "NOTADB" in code:
        return f"{what} is damaged: its operator has to move it away."
    reason = error.strerror if isinstance(error, OSError) else None
    return f"{what} cannot be used: {reason or code or type(error).__name__}."
