"""Owners of tasks, wake-ups, limits, backoff and processes. `Lifetime`: test_lifetime.py."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from clawmode.tasks import (
    BackgroundTasks,
    Notifier,
    TaskOwner,
    backoff,
    close_iterator,
    close_pipes,
    exited,
    read_bounded,
    signal_group,
)

pytestmark = pytest.mark.anyio

logger = logging.getLogger("clawmode.test")


class Owner(TaskOwner):
    """Records what happens; `fails` says where it raises."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.events: list[str] = []
        self.closing = anyio.Event()

    async def _opened(self, tasks: TaskGroup) -> None:
        tasks.start_soon(self._live)
        await checkpoint()
        if self.fails == "open":
            raise KeyError("open")

    async def _live(self) -> None:
        self.events.append("runs")
        try:
            await anyio.sleep_forever()
        finally:
            self.events.append("ended")

    async def _closing(self) -> None:
        self.events.append("closing")
        self.closing.set()
        if self.fails == "close":
            raise KeyError("close")
        if self.fails == "hang":
            await anyio.sleep_forever()


# ---- Owners ----


async def test_tasks_live_inside_of_the_block_and_end_after_the_clean_up() -> None:
    async with Owner() as owner:
        assert owner.events == ["runs"]
    assert owner.events == ["runs", "closing", "ended"]


async def test_the_exception_of_the_block_arrives_as_it_was_raised() -> None:
    with pytest.raises(LookupError, match="mine") as caught:
        async with Owner() as owner:
            raise LookupError("mine")
    assert not isinstance(caught.value, BaseExceptionGroup)
    assert owner.events[-1] == "ended"


@pytest.mark.parametrize("where", ["open", "close"])
async def test_an_owner_that_fails_to_open_or_close_leaves_no_task(where: str) -> None:
    owner = Owner(where)
    with pytest.raises(KeyError, match=where):
        async with owner:
            assert where == "close"
    assert owner.events == ["runs", "closing", "ended"]


async def test_cancellation_inside_of_the_clean_up_still_ends_the_tasks() -> None:
    owner = Owner("hang")
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as others:

            async def cancel() -> None:
                await owner.closing.wait()
                scope.cancel()

            others.start_soon(cancel)
            async with owner:
                pass
    assert scope.cancelled_caught
    assert owner.events == ["runs", "closing", "ended"]


async def test_cancellation_by_asyncio_s_own_means_still_ends_the_tasks() -> None:
    owner = Owner("hang")

    async def use() -> None:
        async with owner:
            pass

    task = asyncio.create_task(use())
    with anyio.fail_after(5):
        await owner.closing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert owner.events == ["runs", "closing", "ended"]


async def test_an_owner_is_entered_once() -> None:
    async with Owner() as owner:
        with pytest.raises(AssertionError, match="Owner is entered once"):
            await owner.__aenter__()


# ---- Background tasks ----


@pytest.mark.parametrize(
    "error",
    [ValueError("bad"), SystemExit(3), asyncio.CancelledError(), ExceptionGroup("g", [OSError()])],
)
async def test_an_exception_is_logged_and_the_siblings_live_on(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    done = anyio.Event()

    async def fail() -> None:
        raise error

    async def work(number: int) -> None:
        await checkpoint()
        assert number == 7
        done.set()

    async with BackgroundTasks("the inbox", logger) as background:
        background.start(fail)
        background.start(work, 7)
        with anyio.fail_after(5):
            await done.wait()
    (record,) = caplog.records
    assert (record.name, record.message) == ("clawmode.test", "the inbox")
    assert record.exc_info is not None
    assert record.exc_info[1] is error


async def test_background_tasks_are_cancelled_at_the_end_of_the_block(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("work")

    async with BackgroundTasks("the inbox", logger) as background:
        background.start(work)
        await checkpoint()
    assert ended == ["work"]
    assert not caplog.records


async def test_an_exception_while_tasks_are_cancelled_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise OSError("late")

    async with BackgroundTasks("the inbox", logger) as background:
        background.start(work)
        await checkpoint()
    (record,) = caplog.records
    assert "late" in str(record.exc_info)


async def test_background_tasks_cannot_be_started_outside_of_the_block() -> None:
    with pytest.raises(AssertionError, match="the inbox is used inside of"):
        BackgroundTasks("the inbox", logger).start(checkpoint)


# ---- Wake-ups ----


async def test_a_notification_wakes_all_that_wait_and_none_that_come_later() -> None:
    changes, woken = Notifier(), list[int]()

    async def wait() -> None:
        woken.append(await changes.wait())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        changes.notify()
        await anyio.wait_all_tasks_blocked()
        assert woken == [1, 1]
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert woken == [1, 1]
        changes.notify()
    assert woken == [1, 1, 2]


async def test_a_waiter_that_was_busy_misses_no_notification() -> None:
    changes = Notifier()
    seen = changes.count
    changes.notify()
    changes.notify()
    with anyio.fail_after(5):
        seen = await changes.wait(seen)
    assert seen == 2
    with anyio.move_on_after(0) as scope:
        await changes.wait(seen)
    assert scope.cancelled_caught


async def test_a_waiter_that_always_has_news_can_be_cancelled() -> None:
    changes = Notifier()
    with anyio.move_on_after(0.01) as scope:
        while True:
            changes.notify()
            await changes.wait(changes.count - 1)
    assert scope.cancelled_caught


def test_a_notifier_is_made_and_notified_without_an_event_loop() -> None:
    changes = Notifier()
    changes.notify()
    assert changes.count == 1


# ---- Backoff ----


def test_pauses_double_up_to_the_longest() -> None:
    pauses = [backoff(attempt, 0.5, 6, jitter=0) for attempt in range(1, 7)]
    assert pauses == [0.5, 1, 2, 4, 6, 6]


def test_the_jitter_only_shortens_a_pause() -> None:
    pauses = [backoff(3, 1, 30) for _ in range(200)]
    assert 2 <= min(pauses) < 2.5 < 3.5 < max(pauses) <= 4


def test_any_number_of_attempts_has_a_pause() -> None:
    assert backoff(sys.maxsize, 0.5, 30, jitter=0) == 30


# ---- Limits ----


@pytest.mark.parametrize(("limit", "read", "left"), [(5, b"abcde", 0), (4, None, 0), (3, None, 1)])
async def test_a_stream_over_its_limit_is_not_read_on(
    limit: int, read: bytes | None, left: int
) -> None:
    chunks = [b"ab", b"cd", b"e"]

    async def stream() -> AsyncIterator[bytes]:
        while chunks:
            yield chunks.pop(0)

    assert await read_bounded(stream(), limit) == read
    assert len(chunks) == left


async def test_a_generator_is_closed_unless_somebody_reads_it() -> None:
    read, closed = anyio.Event(), anyio.Event()

    async def stream() -> AsyncIterator[int]:
        try:
            yield 1
            read.set()
            await anyio.sleep_forever()
        finally:
            closed.set()

    idle = stream()
    assert await anext(idle) == 1
    await close_iterator(idle)
    assert closed.is_set()
    await close_iterator(idle)  # again does no harm
    await close_iterator(Numbers())  # nor does what is no generator

    closed, busy = anyio.Event(), stream()
    assert await anext(busy) == 1

    async def read_on() -> None:
        await anext(busy)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read_on)
        await read.wait()
        await close_iterator(busy)
        assert not closed.is_set()
        tasks.cancel_scope.cancel()
    assert closed.is_set()


class Numbers:
    def __aiter__(self) -> "Numbers":
        return self

    async def __anext__(self) -> int:
        return 1


# ---- Child processes ----


async def test_a_signal_ends_a_process_and_the_children_that_it_left_behind() -> None:
    script = "import os, signal; os.fork(); signal.pause()"
    process = await anyio.open_process([sys.executable, "-c", script], start_new_session=True)
    try:
        assert not await exited(process, 0.01)
    finally:
        signal_group(process, signal.SIGKILL)
    with anyio.fail_after(20):
        assert await exited(process)
        # The pipe is at its end only when no child has it any more.
        assert process.stdout is not None
        with pytest.raises(anyio.EndOfStream):
            await process.stdout.receive()
    close_pipes(process)
    signal_group(process, signal.SIGKILL)  # a group that is gone is not an error
