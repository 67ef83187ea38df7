"""The write lock of a session: one writer at a time, in this process or in any other.

    <transcript>.lock    locked by the process that writes, and deleted afterwards; contains the
                         process id and the time

The kernel keeps the lock on the open file: a process that dies releases it, a process that was
stopped keeps it, and a file that was left behind locks nobody out. Tasks of one process exclude
each other too, in the order in which they asked. Locks work on one machine.

Written by hand: a lock of `filelock` can be entered twice by one process, and has no order.
"""

import contextlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled, current_token

from clawmode.exceptions import ClawmodeError
from clawmode.files import open_lock, try_lock, unlock
from clawmode.tasks import Notifier, backoff
from clawmode.types import dataclass

logger = logging.getLogger("clawmode.sessions")

ACQUIRE_SECONDS = 60.0
"""The default of `session.writeLock.acquireTimeoutMs`."""

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.1
"""Between two attempts to get the lock of another process; the pause grows from try to try."""


class SessionBusy(ClawmodeError):
    """Another run or process writes to the session, and has not finished in time.

    Attributes:
        pid: The process that holds the lock; 0 if unknown.
        since: The time of day at which it got the lock; 0.0 if unknown.
    """

    code: ClassVar[str] = "session_busy"

    def __init__(self, message: str, *, pid: int = 0, since: float = 0.0) -> None:
        super().__init__(message)
        self.pid = pid
        self.since = since


class HeldAlready(SessionBusy):
    """The caller holds the lock already, and would wait for itself."""


class LockUnavailable(ClawmodeError):
    """The file of the lock cannot be created or locked."""

    code: ClassVar[str] = "session_unavailable"


@dataclass(eq=False, slots=True)
class Hold:
    """A lock that is held.

    Attributes:
        path: The file that the lock protects.
        since: The time of day at which the lock was acquired.
    """

    path: Path
    since: float
    _name: str
    _descriptor: int
    _depth: int = 1

    @property
    def active(self) -> bool:
        """True while this process holds the lock."""
        return self._depth > 0


@dataclass(eq=False, slots=True)
class _Ticket:
    """A place in the queue.

    A notifier works in one event loop only; a task of another loop polls.
    """

    loop: object
    called: Notifier = field(default_factory=Notifier)


@dataclass(eq=False, slots=True)
class _Place:
    """The use of one lock in this process: its holder, and the tasks that wait for it."""

    hold: Hold | None = None
    queue: deque[_Ticket] = field(default_factory=deque[_Ticket])

    def call_next(self) -> None:
        """Wakes the next task in the queue if the lock is free, and the task in this event loop."""
        with contextlib.suppress(RuntimeError):
            if self.hold is None and self.queue and self.queue[0].loop == current_token():
                self.queue[0].called.notify()


_places: dict[str, _Place] = {}
_guard = threading.Lock()
_mine: ContextVar[tuple[Hold, ...]] = ContextVar("session_locks", default=())
"""The locks of the current task, and those of the task that started it."""


def _leave_to_the_parent() -> None:
    global _guard
    _guard = threading.Lock()
    for place in _places.values():
        if place.hold is not None:
            # Closed, not unlocked: unlocking would release the parent's lock, and an open copy
            # would keep it after the parent's death.
            os.close(place.hold._descriptor)
            place.hold._depth = 0
    _places.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leave_to_the_parent)


def current_hold(path: Path | str) -> Hold | None:
    """Returns the lock of a file if the current task, or one that started it, holds the lock."""
    return _own(_name_of(Path(path)))


def _own(name: str) -> Hold | None:
    return next((hold for hold in _mine.get() if hold.active and hold._name == name), None)


def _name_of(path: Path) -> str:
    """Returns the same name for every way to write a path."""
    return os.path.join(os.path.realpath(path.parent), f"{path.name}.lock")


class SessionLock:
    """The write lock of one file. Any number of these objects may exist for a file.

    Args:
        path: The file to protect. The lock is a file next to it, whose folder is created.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._name = _name_of(self.path)

    def delete_file(self) -> None:
        """Deletes the file of the lock. Only the holder of the lock may do that."""
        assert _own(self._name) is not None, "only the holder of a lock may delete its file"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._name)

    @asynccontextmanager
    async def hold(
        self, timeout_seconds: float = ACQUIRE_SECONDS, *, allow_reentrant: bool = False
    ) -> AsyncIterator[Hold]:
        """Holds the lock inside of the block.

        Tasks that are started in the block count as the same writer.

        Args:
            timeout_seconds: How long to wait for another holder.
            allow_reentrant: Whether the caller may hold the lock already, and keep it.

        Raises:
            SessionBusy: Another run or process held the lock for the whole time.
            HeldAlready: The caller holds the lock, and `allow_reentrant` is false.
            LockUnavailable: The file of the lock cannot be created or locked.
        """
        hold = _own(self._name)
        if hold is not None:
            if not allow_reentrant:
                raise HeldAlready(
                    f"The caller holds the lock of the session {self.path.stem} already, and would "
                    "wait for itself. If that is intended, pass allow_reentrant=True.",
                    pid=os.getpid(),
                    since=hold.since,
                )
            with _guard:
                hold._depth += 1
        else:
            hold = await self._acquire(timeout_seconds)
        before = _mine.get()
        _mine.set((*before, hold))
        try:
            yield hold
        finally:
            # Without a token: a generator may be closed in another context than the first one.
            _mine.set(before)
            _release(hold)

    async def _acquire(self, seconds: float) -> Hold:
        await checkpoint_if_cancelled()
        deadline = time.monotonic() + seconds
        ticket = _Ticket(current_token())
        with _guard:
            place = _places.setdefault(self._name, _Place())
            place.queue.append(ticket)
        looks = 0
        try:
            while (hold := self._try(place, ticket)) is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._busy(place, seconds)
                looks += 1
                pause = backoff(looks, FIRST_PAUSE, LONGEST_PAUSE)
                with anyio.move_on_after(min(pause, left)):
                    await ticket.called.wait()
            return hold
        finally:
            with _guard:
                place.queue.remove(ticket)
                place.call_next()
                _forget_idle(self._name, place)

    def _try(self, place: _Place, ticket: _Ticket) -> Hold | None:
        with _guard:
            if place.hold is not None or place.queue[0] is not ticket:
                return None
            try:
                descriptor = _lock_file(self._name)
            except OSError as error:
                # The path is only for the operator: the exception may reach a client.
                logger.error("%s: %s", self._name, error)
                raise LockUnavailable(
                    f"The session {self.path.stem} cannot be locked: {error.strerror}."
                ) from None
            if descriptor is None:
                return None
            place.hold = Hold(self.path, time.time(), self._name, descriptor)
            # For the error messages of others. On a full disk it is missing.
            with contextlib.suppress(OSError):
                signature = {"pid": os.getpid(), "since": place.hold.since}
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(signature).encode(), 0)
            return place.hold

    def _busy(self, place: _Place, seconds: float) -> SessionBusy:
        pid, since = 0, 0.0
        if place.hold is not None:
            pid, since = os.getpid(), place.hold.since
        else:
            # Another process wrote this, perhaps not completely: it is only for the message.
            with contextlib.suppress(OSError, ValueError, TypeError, LookupError, OverflowError):
                with open(self._name, "rb") as file:
                    said: dict[str, Any] = json.loads(file.read(200))
                datetime.fromtimestamp(float(said["since"]), UTC)
                pid, since = int(said["pid"]), float(said["since"])
        who = f"process {pid}" if pid else "another process"
        if pid == os.getpid():
            who = f"another run of this process ({pid})"
        when = f" since {datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M:%S} UTC" if since else ""
        return SessionBusy(
            f"The session {self.path.stem} is busy: {who} has been writing to it{when}. Gave up "
            f"after {seconds:g} s; try again when it has finished.",
            pid=pid,
            since=since,
        )


def _release(hold: Hold) -> None:
    with _guard:
        if not hold.active:  # in the child of a fork the lock belongs to the parent
            return
        hold._depth -= 1
        if hold.active:
            return
        with contextlib.suppress(OSError):
            # While it is still locked: a process that has opened the file sees that the file is
            # gone, and tries again.
            if _is_at(hold._descriptor, hold._name):
                os.unlink(hold._name)
        with contextlib.suppress(OSError):
            # Not only closed: a child that is just being started may have a copy.
            unlock(hold._descriptor)
        os.close(hold._descriptor)
        place = _places[hold._name]
        place.hold = None
        place.call_next()
        _forget_idle(hold._name, place)


def _forget_idle(name: str, place: _Place) -> None:
    if place.hold is None and not place.queue:
        _places.pop(name, None)


# ---- The file ----


def _lock_file(name: str) -> int | None:
    """Opens and locks the file; returns None if another process holds the lock."""
    while True:
        descriptor = open_lock(name)
        try:
            locked = try_lock(descriptor)
            if locked and _is_at(descriptor, name):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if not locked:
            return None
        # The last holder deleted the file just before we locked it: such a lock excludes nobody.


def _is_at(descriptor: int, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(name))
    except FileNotFoundError:
        return False
