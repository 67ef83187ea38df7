"""Files that processes share: locks, pipes, atomic writes, and SQLite files.

Everything is created for its owner alone. A symbolic link in the place of a lock is an error, and
one in the place of a written file is replaced, never followed.
"""

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import anyio
from anyio.lowlevel import RunVar

from clawmode.exceptions import ClawmodeError, UnsupportedPlatform
from clawmode.types import dataclass

if TYPE_CHECKING:
    import sqlite3

P = ParamSpec("P")
T = TypeVar("T")


# ---- Locks ----

# The kernel keeps a lock on the open file: a process that dies releases it, a process that was
# stopped keeps it, and a file that was left behind locks nobody out. Locks work on one machine.


@contextmanager
def file_lock(path: Path, *, wait: bool = True) -> Iterator[int]:
    """Holds the exclusive lock of a file inside of the block. Blocks the thread while it waits.

    Args:
        path: A folder; or a file of the lock's own, which is created, with its folder, if missing,
            and stays empty unless the holder writes to it.
        wait: Whether to wait for another holder.

    Yields:
        The descriptor.

    Raises:
        BlockingIOError: There is another holder, and `wait` is false.
        OSError: The file cannot be created or locked.
    """
    descriptor = os.open(path, os.O_RDONLY) if path.is_dir() else open_lock(path)
    try:
        _flock(descriptor, "LOCK_EX", *([] if wait else ["LOCK_NB"]))
        yield descriptor
    finally:
        os.close(descriptor)


def open_lock(path: Path | str, *, new: bool = False) -> int:
    """Opens a file for `try_lock`; created, with its folder, if missing.

    Args:
        path: The file.
        new: The file must not exist.
    """
    # A lock may stand in a folder that others can write: a link is refused, a pipe does not block.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            return os.open(path, flags | (os.O_EXCL if new else 0), 0o600)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)


def try_lock(descriptor: int) -> bool:
    """Takes the exclusive lock of an open file, if there is no other holder.

    The lock is held until the last copy of the descriptor is closed, or until `unlock`.
    """
    try:
        _flock(descriptor, "LOCK_EX", "LOCK_NB")
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Releases a lock, also for copies of the descriptor in children that are just starting."""
    _flock(descriptor, "LOCK_UN")


def is_locked(path: Path) -> bool:
    """Whether a process holds the exclusive lock of a file; false if the file does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared: two processes that look at the same time do not take each other for the holder.
        _flock(descriptor, "LOCK_SH", "LOCK_NB")
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _flock(descriptor: int, *flags: str) -> None:
    try:
        import fcntl
    except ImportError:  # on Windows
        raise UnsupportedPlatform("The lock of a file") from None
    operation = 0
    for flag in flags:
        operation |= getattr(fcntl, flag)
    fcntl.flock(descriptor, operation)


# ---- Pipes ----


def enlarge_pipe(descriptor: int, size: int) -> None:
    """Lets a pipe hold `size` bytes, if the system offers that and its limits allow it."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, size)


# ---- Atomic writes ----


@contextmanager
def staged(path: Path, data: bytes | str, *, sync: bool = True) -> Iterator[Path]:
    """Writes `data` to a temporary file next to `path`, to be checked and moved to its place.

    The file is removed at the end of the block unless it was moved.

    Args:
        path: Where the data is to go.
        data: The content; text is encoded as UTF-8.
        sync: Whether the content reaches the disk first. Without, a power failure after the move
            may leave an empty file.
    """
    content = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name[:50]}.{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(descriptor)
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def write_atomic(path: Path, data: bytes | str, *, sync: bool = True) -> None:
    """Replaces a file's content in one step: readers see the old content or the new, never a part.

    The file is private to its owner afterwards. A failed write leaves the old file untouched.

    Args:
        path: The file; its folder must exist.
        data: The content; text is encoded as UTF-8.
        sync: See `staged`.
    """
    with staged(path, data, sync=sync) as temporary:
        os.replace(temporary, path)


def create_atomic(path: Path, data: bytes | str) -> bool:
    """Creates a file with all of its content; of several processes that try, one succeeds.

    Returns:
        False if the file existed before, and is unchanged.
    """
    with staged(path, data) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
    return True


# ---- SQLite ----

# sqlite3 is imported by those who open a file: the sandbox needs the locks above, and not SQLite.


@dataclass(frozen=True, slots=True)
class Layout:
    """The content of a SQLite file, and how to speak of the file.

    Attributes:
        what: Names the file to people: the beginning of a sentence.
        version: The version of the schema. A file with a later version is not changed.
        schema: Statements, each with its semicolon at the end of a line.
        unavailable: Raised when the file cannot be used.
        logger: Logs the path and SQLite's own message, which only the operator may see.
        upgrades: By version, the statements that lead to the next one.
    """

    what: str
    version: int
    schema: str
    unavailable: type[ClawmodeError]
    logger: logging.Logger
    upgrades: Mapping[int, str] = field(default_factory=dict[int, str])


_files: "weakref.WeakSet[SqliteFile]" = weakref.WeakSet()
_inherited: "list[sqlite3.Connection | None]" = []


def _leave_to_the_parent() -> None:
    for file in list(_files):
        file._forked()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leave_to_the_parent)


class SqliteFile:
    """Base class of a SQLite file that processes share, open from its first use on.

    Args:
        path: The file. It and its folder are created if missing, for their user only.
        layout: What the file contains.
        lock_seconds: How long an operation waits for another process.
    """

    def __init__(self, path: Path, layout: Layout, *, lock_seconds: float) -> None:
        self.path = path
        self._layout = layout
        self._lock_seconds = lock_seconds
        self._database: sqlite3.Connection | None = None
        # One operation at a time, in a thread: another process may hold the lock for a while.
        # Several event loops may use one file, and an operation goes on after its caller was
        # cancelled.
        self._turns: RunVar[anyio.CapacityLimiter] = RunVar("turns")
        self._lock = threading.Lock()
        _files.add(self)

    @property
    def folder(self) -> Path:
        """The folder of the file."""
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
        """Runs in the child of a fork: the connection belongs to the parent."""
        self._lock = threading.Lock()
        # Not closed: closing would release the parent's locks on the file.
        _inherited.append(self._database)
        self._database = None

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `work` in a thread, one at a time."""
        try:
            turn = self._turns.get()
        except LookupError:
            turn = anyio.CapacityLimiter(1)
            self._turns.set(turn)
        return await anyio.to_thread.run_sync(
            lambda: self._translated(work, *args, **kwargs), limiter=turn
        )

    def _translated(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `work`; exceptions of SQLite and of the disk become `layout.unavailable`."""
        import sqlite3

        try:
            with self._lock:
                return work(*args, **kwargs)
        except (sqlite3.Error, OSError, ValueError, OverflowError, TypeError) as error:
            # The path is for the operator: the exception may reach a model, or a client.
            self._layout.logger.error("%s: %s: %s", self.path, type(error).__name__, error)
            raise self._layout.unavailable(_reason(self._layout.what, error)) from None

    @contextmanager
    def _transaction(self, kind: str = "immediate") -> "Iterator[sqlite3.Connection]":
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

    def _open(self) -> "sqlite3.Connection":
        import sqlite3

        self._make_folder()
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        database = sqlite3.connect(
            self.path, timeout=self._lock_seconds, isolation_level=None, check_same_thread=False
        )
        layout = self._layout
        try:
            self._use_log(database)
            database.execute("pragma synchronous = normal")
            database.execute("pragma journal_size_limit = 16777216")
            database.execute("begin immediate")
            (version,) = database.execute("pragma user_version").fetchone()
            if version > layout.version:
                raise layout.unavailable(
                    f"{layout.what} was written by a newer clawmode: it has version {version}, and "
                    f"this one knows {layout.version}. Nothing was changed."
                )
            if version < layout.version:
                steps = [layout.schema] if version == 0 else []
                if version:
                    steps += [layout.upgrades[step] for step in range(version, layout.version)]
                for statement in ";\n".join(steps).split(";\n"):
                    database.execute(statement)
                database.execute(f"pragma user_version = {layout.version}")
            database.execute("commit")
        except BaseException:
            database.close()
            raise
        self._database = database
        return database

    def _use_log(self, database: "sqlite3.Connection") -> None:
        """Sets the journal mode, which SQLite does not wait for if others open a new file too."""
        import sqlite3

        last = time.monotonic() + self._lock_seconds
        while True:
            try:
                database.execute("pragma journal_mode = wal")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > last:
                    raise
                time.sleep(0.005)


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
