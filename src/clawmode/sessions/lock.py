"""The write lock of a session: one writer at a time, in this process or in any other.

    <transcript>.lock    locked by the process that writes, and there as long as it does; says
                         which process that is, and since when

The lock is the kernel's, on the open file: a process that dies gives it back, one that was stopped
keeps it, and a file that was left behind locks nobody out. Two tasks of one process exclude each
other too, in the order they came. It works on one machine.
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
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled, current_token

from clawmode.exceptions import ClawmodeError
from clawmode.files import open_lock, try_lock, unlock
from clawmode.tasks import Notifier, backoff

logger = logging.getLogger("clawmode.sessions")

ACQUIRE_SECONDS = 60.0
"""`session.writeLock.acquireTimeoutMs`, if nothing is configured."""

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.1
"""Between two looks at a lock of another process. Growing: who waits long need not be quick."""


class SessionBusy(ClawmodeError):
    """Somebody else writes to the session, and has not finished in time.

    Attributes:
        pid: The process that does; 0 if it did not say.
        since: The time of day at which it began; 0.0 if it did not say.
    """

    code: ClassVar[str] = "session_busy"

    def __init__(self, message: str, *, pid: int = 0, since: float = 0.0) -> None:
        super().__init__(message)
        self.pid = pid
        self.since = since


class HeldAlready(SessionBusy):
    """Whoever wants the lock has it: they would wait for themselves."""


class LockUnavailable(ClawmodeError):
    """The lock's file cannot be used."""

    code: ClassVar[str] = "session_unavailable"


@dataclass(eq=False, slots=True)
class Hold:
    """The lock, while somebody has it.

    Attributes:
        path: The file that it protects.
        since: The time of day at which it was taken.
    """

    path: Path
    since: float
    _name: str
    _descriptor: int
    _depth: int = 1

    @property
    def active(self) -> bool:
        """Whether it is still held, by this process."""
        return self._depth > 0


@dataclass(eq=False, slots=True)
class _Ticket:
    """A place in the queue. Events work in one event loop; tickets of others look now and then."""

    loop: object
    called: Notifier = field(default_factory=Notifier)


@dataclass(eq=False, slots=True)
class _Place:
    """What this process does with one lock."""

    hold: Hold | None = None
    queue: deque[_Ticket] = field(default_factory=deque[_Ticket])

    def call_next(self) -> None:
        """Wakes whoever is next, if that is somebody in this event loop."""
        with contextlib.suppress(RuntimeError):
            if self.hold is None and self.queue and self.queue[0].loop == current_token():
                self.queue[0].called.notify()


_places: dict[str, _Place] = {}
_guard = threading.Lock()
_mine: ContextVar[tuple[Hold, ...]] = ContextVar("session_locks", default=())
"""What the present task holds, and what it inherited from the task that started it."""


def _leave_to_the_parent() -> None:
    global _guard
    _guard = threading.Lock()
    for place in _places.values():
        if place.hold is not None:
            # Closed, not unlocked: the lock is the parent's, and must not outlive it here.
            os.close(place.hold._descriptor)
            place.hold._depth = 0
    _places.clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)


def current_hold(path: Path | str) -> Hold | None:
    """The lock of a file, if the caller holds it, or the task that started the caller's."""
    return _own(_name_of(Path(path)))


def _own(name: str) -> Hold | None:
    return next((hold for hold in _mine.get() if hold.active and hold._name == name), None)


def _name_of(path: Path) -> str:
    """The same for every way to write a path."""
    return os.path.join(os.path.realpath(path.parent), f"{path.name}.lock")


class SessionLock:
    """The write lock of one file. Any number of these may exist for it.

    Args:
        path: What it protects; the lock is beside it. Its folder is made if it is not there.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._name = _name_of(self.path)

    def delete_file(self) -> None:
        """Takes the lock's file away, with what it protects; by whoever has the lock."""
        assert _own(self._name) is not None, "only the holder of a lock may delete its file"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._name)

    @asynccontextmanager
    async def hold(
        self, timeout_seconds: float = ACQUIRE_SECONDS, *, allow_reentrant: bool = False
    ) -> AsyncIterator[Hold]:
        """Has the lock inside of the block.

        Tasks that are started there count as the same writer.

        Args:
            timeout_seconds: How long to wait for others.
            allow_reentrant: Whether the caller may have it already: then it goes on having it.

        Raises:
            SessionBusy: Somebody else has it, and still had it after that time.
            HeldAlready: The caller has it, and did not say that this is meant.
            LockUnavailable: Its file cannot be made.
        """
        hold = _own(self._name)
        if hold is not None:
            if not allow_reentrant:
                raise HeldAlready(
                    f"The session {self.path.stem} is being written to by whoever asks for its "
                    "lock: they would wait for themselves. If that is meant, ask with "
                    "allow_reentrant=True.",
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
            # Not by a token: a generator may be closed in another context than it was begun in.
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
                # The path is for the operator: what is raised may reach a client.
                logger.error("%s: %s", self._name, error)
                raise LockUnavailable(
                    f"The session {self.path.stem} cannot be locked: {error.strerror}."
                ) from None
            if descriptor is None:
                return None
            place.hold = Hold(self.path, time.time(), self._name, descriptor)
            _sign(descriptor, place.hold.since)
            return place.hold

    def _busy(self, place: _Place, seconds: float) -> SessionBusy:
        held = place.hold
        pid, since = (os.getpid(), held.since) if held is not None else _signature(self._name)
        who = f"process {pid}" if pid else "another process"
        if pid == os.getpid():
            who = f"another run of this process ({pid})"
        when = f" since {datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M:%S} UTC" if since else ""
        return SessionBusy(
            f"The session {self.path.stem} is busy: {who} has been writing to it{when}. It was "
            f"waited for {seconds:g} s; try again when that has ended.",
            pid=pid,
            since=since,
        )


def _release(hold: Hold) -> None:
    with _guard:
        if not hold.active:  # the child of a fork: it is the parent's
            return
        hold._depth -= 1
        if hold.active:
            return
        with contextlib.suppress(OSError):
            # While it is still locked: whoever has opened it sees that it is gone, and tries again.
            if _is_at(hold._descriptor, hold._name):
                os.unlink(hold._name)
        with contextlib.suppress(OSError):
            # By name, not by closing alone: a child that is just being started may have a copy.
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
    """The lock's file, open and locked; None if another process has it."""
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
        # Its last holder deleted the file just before it was locked: that lock excludes nobody.


def _is_at(descriptor: int, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(name))
    except FileNotFoundError:
        return False


def _sign(descriptor: int, since: float) -> None:
    """Says in the file who has it. Only for error texts: on a full disk it stays unsaid."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "since": since}).encode(), 0)


def _signature(name: str) -> tuple[int, float]:
    try:
        with open(name, "rb") as file:
            said: dict[str, Any] = json.loads(file.read(200))
        pid, since = int(said["pid"]), float(said["since"])
        datetime.fromtimestamp(since, UTC)
    except (OSError, ValueError, TypeError, LookupError, OverflowError):
        return 0, 0.0
    return pid, since
