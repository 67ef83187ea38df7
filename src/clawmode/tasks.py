"""Blocks to build concurrent code of: owners of tasks, wake-ups, limits, backoff, processes.

`must_propagate` says which exceptions of foreign code end our own task.
"""

import asyncio
import contextlib
import logging
import math
import os
import random
import signal
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Hashable
from types import AsyncGeneratorType
from typing import Self, TypeVar

import anyio
from anyio.abc import Process, TaskGroup
from anyio.lowlevel import checkpoint

from clawmode.exceptions import ConfigurationError

K = TypeVar("K", bound=Hashable)


def must_propagate(error: BaseException) -> bool:
    """True if the exception must propagate: our own task was cancelled, or the user pressed Ctrl-C.

    Tools, hooks and approvers run in our own tasks. Every other exception is their own failure.
    That includes `SystemExit` and a `CancelledError` that nobody requested: if it propagated, it
    would end the task group, and with it every program of the run.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        # anyio cancels by the deadline of a scope, and `Task.cancel` is counted by asyncio: a
        # cancellation that shows in neither was raised by the foreign code itself.
        scoped = anyio.current_effective_deadline() == -math.inf
        return scoped or (task is not None and task.cancelling() > 0)
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


@contextlib.asynccontextmanager
async def background_tasks() -> AsyncIterator[TaskGroup]:
    """A task group that is cancelled at the end of the block, and does not wrap its exceptions."""
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except Exception as error:  # the group would wrap it in an ExceptionGroup
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


# ---- Owners of a task group ----


class TaskOwner:
    """Base class of objects that run tasks inside of `async with`, entered and left by one task.

    Leaving cancels the tasks and waits for them. For objects that one task opens and another task
    closes, see `Lifetime`.
    """

    _tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        assert self._tasks is None, f"{type(self).__name__} is entered once"
        self._tasks = await anyio.create_task_group().__aenter__()
        try:
            await self._opened(self._tasks)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._tasks is not None
        try:
            await self._closing()
        finally:
            self._tasks.cancel_scope.cancel()
            # The group must not see the exception of the `async with` block: it would wrap the
            # caller's own exception in an ExceptionGroup.
            await self._tasks.__aexit__(None, None, None)

    async def _opened(self, tasks: TaskGroup) -> None:
        """Override to start tasks. If it raises, the tasks are cancelled, and nothing is open."""

    async def _closing(self) -> None:
        """Override to clean up before the tasks are cancelled.

        The caller may be cancelled already: shield and bound what has to be awaited.
        """


class BackgroundTasks(TaskOwner):
    """Background tasks whose exceptions are logged and never cancel their siblings.

    Args:
        name: Whose tasks these are, for the log.
        logger: Where exceptions are logged.
    """

    def __init__(self, name: str, logger: logging.Logger) -> None:
        self._name = name
        self._logger = logger

    def start(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Starts a task."""
        assert self._tasks is not None, f"{self._name} is used inside of `async with`"
        self._tasks.start_soon(run_logged, self._logger, self._name, function, *args)


async def run_logged(
    logger: logging.Logger, name: str, function: Callable[..., Awaitable[object]], *args: object
) -> None:
    """Calls `function`. Its exception is logged, so that the task group of the caller lives on."""
    try:
        await function(*args)
    except BaseException as error:
        if must_propagate(error):
            raise
        logger.error("%s", name, exc_info=error)


_KEEPERS: set[asyncio.Task[None]] = set()
"""asyncio keeps only weak references: without this set an object that nobody closed would lose its
task, and with the task the clean-up at the end of the event loop."""


NEEDS_ASYNCIO = (
    "clawmode runs in an event loop of asyncio or uvloop, and this one is of another library. "
    "Under trio, use `CodeMode.sync(...)`, with its calls in `trio.to_thread.run_sync`."
)


class Lifetime:
    """A task group that any task may open and close, open until then or the event loop's end.

    anyio lets only the task that entered a cancel scope leave the scope. A pytest fixture, a
    notebook and most web frameworks open an object in one task and close it in another. So a task
    of its own enters and leaves the group; `open` and `close` only signal that task.

    Args:
        name: The name of that task, for debugging.
        on_end: Awaited, shielded, before the group is left. The group then waits for its tasks:
            cancel `tasks.cancel_scope` here if the tasks do not end by themselves.
    """

    def __init__(self, name: str, on_end: Callable[[TaskGroup], Awaitable[None]]) -> None:
        self._name = name
        self._on_end = on_end
        self._keeper: asyncio.Task[None] | None = None
        self._closing: anyio.Event | None = None
        self.tasks: TaskGroup | None = None

    async def open(self) -> TaskGroup:
        """Opens the group. To be called once.

        Raises:
            ConfigurationError: The event loop is not one of asyncio.
        """
        assert self._keeper is None, "a lifetime is opened once"
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigurationError(NEEDS_ASYNCIO) from None
        opened, self._closing = anyio.Event(), anyio.Event()
        keep = self._keep(opened, self._closing)
        self._keeper = asyncio.create_task(keep, name=self._name)
        _KEEPERS.add(self._keeper)
        self._keeper.add_done_callback(_KEEPERS.discard)
        try:
            await opened.wait()
        except BaseException:
            self._closing.set()
            raise
        assert self.tasks is not None
        return self.tasks

    async def _keep(self, opened: anyio.Event, closing: anyio.Event) -> None:
        async with anyio.create_task_group() as tasks:
            self.tasks = tasks
            opened.set()
            try:
                await closing.wait()
            finally:
                # Also when the event loop ends and cancels all tasks.
                with anyio.CancelScope(shield=True):
                    await self._on_end(tasks)

    async def close(self) -> None:
        """Ends the group and waits until it has ended. Idempotent.

        A caller who is cancelled meanwhile leaves early by asyncio's own means only
        (`asyncio.wait_for`); the group ends in any case.

        Raises:
            ExceptionGroup: Tasks of the group failed.
        """
        if self._keeper is None or self._closing is None:
            return
        if not self._keeper.done():
            self._closing.set()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._keeper])
        with contextlib.suppress(asyncio.CancelledError):  # the event loop had ended before
            self._keeper.result()


# ---- Locks ----


@contextlib.asynccontextmanager
async def hold(locks: dict[K, anyio.Lock], key: K) -> AsyncIterator[None]:
    """Holds the lock of a key, and deletes the lock afterwards unless another task waits for it."""
    lock = locks.setdefault(key, anyio.Lock())
    try:
        async with lock:
            yield
    finally:
        if not lock.locked():  # a release hands the lock to the next waiting task at once
            locks.pop(key, None)


# ---- Waking up ----


class Notifier:
    """Wakes every task that waits, each time something changes.

    A waiter that works between two waits passes the count that it has seen, so that no
    notification is lost:

        seen = changes.count
        await work()
        await changes.wait(seen)

    Attributes:
        count: The number of notifications so far.
    """

    __slots__ = ("_next", "count")

    def __init__(self) -> None:
        self.count = 0
        self._next: anyio.Event | None = None  # made by the first waiter: notifying costs nothing

    def notify(self) -> None:
        """Wakes all waiters. In the thread of the event loop only."""
        self.count += 1
        if self._next is not None:
            self._next.set()
            self._next = None

    async def wait(self, since: int | None = None) -> int:
        """Waits for a notification; returns the count.

        Args:
            since: The count that the caller has seen. With more notifications by now, there is
                nothing to wait for. None: the next notification is awaited.
        """
        if since is not None and since != self.count:
            await checkpoint()
            return self.count
        self._next = self._next or anyio.Event()
        await self._next.wait()
        return self.count


# ---- Taking turns ----

SLICE = 0.005
"""Seconds of work after which other tasks get a turn on the event loop."""


class Pace:
    """Divides long work into slices, between which the event loop runs other tasks."""

    def __init__(self) -> None:
        self._end = time.monotonic() + SLICE

    async def keep(self) -> None:
        """Gives other tasks a turn if the slice is over."""
        if time.monotonic() >= self._end:
            await checkpoint()
            self._end = time.monotonic() + SLICE


# ---- Limits ----


async def read_bounded(chunks: AsyncIterable[bytes], limit: int) -> bytes | None:
    """Reads a stream to its end; None, without reading on, if it has more than `limit` bytes."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit:
            return None
    return bytes(body)


async def close_iterator(iterator: AsyncIterator[object]) -> None:
    """Closes a generator that is not read to its end, unless somebody reads it.

    Nobody should leave a generator to the garbage collector. If the collector runs in another
    thread, it may close a generator that the event loop is closing, which prints an error.
    """
    if isinstance(iterator, AsyncGeneratorType) and not iterator.ag_running:
        await iterator.aclose()


class TimedSlot:
    """A place of a limiter that is given back after some seconds, or by `release`."""

    def __init__(self, limiter: anyio.CapacityLimiter, seconds: float) -> None:
        self._limiter = limiter
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self) -> None:
        """Waits for a free place, and takes it."""
        await self._limiter.acquire_on_behalf_of(self)
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self.release)

    def release(self) -> None:
        """Gives the place back, if it was taken. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._limiter.release_on_behalf_of(self)


# ---- Backoff ----


def backoff(attempt: int, first: float, longest: float, *, jitter: float = 0.5) -> float:
    """The seconds to pause after an attempt: doubled each time, with jitter.

    Args:
        attempt: The number of attempts that have failed, from 1 on.
        first: The longest pause after the first attempt.
        longest: The longest pause of all.
        jitter: The part of a pause that is random, so that many clients of one server do not come
            back at once; 0 for none.
    """
    # The exponent is bounded: from 2**1024 on there is no float.
    pause = min(first * 2.0 ** min(attempt - 1, 64), longest)
    return pause * random.uniform(1 - jitter, 1)  # noqa: S311 - no secret


# ---- Child processes ----

GONE = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)
"""Exceptions of a pipe that was closed on either side."""

QUICK_LOOKS, QUICK, SLOW = 100, 0.01, 0.05
"""Polling for the end of a process: the number of quick polls, and both intervals in seconds."""


def signal_group(process: Process, number: signal.Signals) -> None:
    """Sends a signal to a process that leads a group, and to all processes of the group."""
    # The pid of the leader remains the id of the group as long as the group has a process.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def exited(process: Process, seconds: float = math.inf) -> bool:
    """True if the process exits in time. Polls, because `wait` also waits for the pipes."""
    deadline, looks = time.monotonic() + seconds, 0
    while process.returncode is None:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        looks += 1
        await anyio.sleep(min(QUICK if looks < QUICK_LOOKS else SLOW, left))
    return True


def close_pipes(process: Process) -> None:
    """Closes the pipes of a process that has exited.

    A child that left the group may hold a pipe open; asyncio would wait for it, and warn.
    """
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        with contextlib.suppress(PermissionError):
            transport.close()
