"""The write lock of a session: among tasks, among processes, and when somebody dies with it."""

import contextvars
import fcntl
import gc
import inspect
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from tests.support.core_tools_driver import open_below
from tests.support.session_writer import started
from tests.support.waiting import idle, within

from clawmode.sessions import lock as session_lock
from clawmode.sessions.lock import (
    HeldAlready,
    Hold,
    LockUnavailable,
    SessionBusy,
    SessionLock,
    current_hold,
)

pytestmark = pytest.mark.anyio

SOON = 0.05
"""Seconds: enough for somebody who does not have to wait."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions" / "abc.jsonl"


@pytest.fixture(autouse=True)
def _no_descriptor_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    gc.collect()
    assert open_below(tmp_path) == []


# ---- Tasks of one process ----


@pytest.mark.covers("AL-20")
async def test_two_tasks_exclude_each_other(path: Path) -> None:
    inside = 0

    async def enter() -> None:
        nonlocal inside
        async with SessionLock(path).hold(5):
            inside += 1
            assert inside == 1
            await checkpoint()
            inside -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(enter)


async def test_tasks_get_it_in_the_order_they_came(path: Path) -> None:
    order: list[int] = []

    async def enter(number: int) -> None:
        async with SessionLock(path).hold(5):
            order.append(number)
            await checkpoint()

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(enter, number)
            await checkpoint()
    assert order == list(range(50))


async def test_locks_of_two_files_do_not_know_each_other(tmp_path: Path) -> None:
    async with SessionLock(tmp_path / "a").hold(SOON), SessionLock(tmp_path / "b").hold(SOON):
        assert current_hold(tmp_path / "a") is not current_hold(tmp_path / "b")


async def test_a_file_has_one_lock_however_its_path_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    async with SessionLock(tmp_path / "real" / "x").hold(SOON):
        with pytest.raises(HeldAlready):
            async with SessionLock(tmp_path / "link" / ".." / "link" / "x").hold(SOON):
                pass


async def blocked(path: Path, seconds: float = SOON) -> SessionBusy:
    """What somebody else gets who wants the lock: a task that no holder started."""
    raised: list[SessionBusy] = []

    async def enter() -> None:
        with pytest.raises(SessionBusy) as caught:
            async with SessionLock(path).hold(seconds):
                pass
        raised.append(caught.value)

    await run_unrelated(enter)
    assert not isinstance(raised[0], HeldAlready)
    return raised[0]


async def is_free(path: Path) -> bool:
    """Whether the lock is had at once."""
    try:
        async with SessionLock(path).hold(0) as hold:
            return hold.active and current_hold(path) is hold
    except SessionBusy:
        return False


async def run_unrelated(enter: Callable[[], Coroutine[object, object, None]]) -> None:
    """Runs a function as if nobody who holds anything had called it."""
    async with anyio.create_task_group() as tasks:
        contextvars.Context().run(tasks.start_soon, enter)


@pytest.mark.covers("AL-20", "AL-21")
async def test_who_waited_in_vain_is_told_who_has_it(path: Path) -> None:
    async with SessionLock(path).hold() as hold:
        busy = await blocked(path)
    assert (busy.pid, busy.since, busy.code) == (os.getpid(), hold.since, "session_busy")
    assert str(os.getpid()) in str(busy)
    assert "abc" in str(busy)
    assert str(path.parent) not in str(busy)


@pytest.mark.covers("AL-21")
async def test_a_writer_waits_for_a_minute_if_nothing_is_configured() -> None:
    assert inspect.signature(SessionLock.hold).parameters["timeout_seconds"].default == 60.0


@pytest.mark.covers("AL-21")
async def test_a_writer_waits_for_its_time_limit(path: Path) -> None:
    async with SessionLock(path).hold():
        began = anyio.current_time()
        await blocked(path, 0.3)
        assert 0.3 <= anyio.current_time() - began < 2


async def test_without_time_it_is_tried_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, got = SessionLock._try, list[bool]()

    def tried(lock: SessionLock, *where: Any) -> Hold | None:
        hold = real(lock, *where)
        got.append(hold is not None)
        return hold

    monkeypatch.setattr(SessionLock, "_try", tried)
    async with SessionLock(path).hold(0):
        await blocked(path, 0)
    assert await is_free(path)
    assert got == [True, False, True]


async def test_who_gives_up_does_not_hold_up_those_behind(path: Path) -> None:
    got, gave_up = anyio.Event(), anyio.Event()

    async def give_up() -> None:
        await blocked(path, 0.1)
        gave_up.set()

    async def enter() -> None:
        async with SessionLock(path).hold(5):
            got.set()

    async with anyio.create_task_group() as tasks:
        async with SessionLock(path).hold():
            contextvars.Context().run(tasks.start_soon, give_up)
            await idle()
            contextvars.Context().run(tasks.start_soon, enter)
            await gave_up.wait()
            await idle()
            assert not got.is_set()
        with within(1):
            await got.wait()


async def test_who_is_cancelled_while_waiting_leaves_nothing_behind(path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        async with SessionLock(path).hold():
            contextvars.Context().run(tasks.start_soon, SessionLock(path).hold(5).__aenter__)
            (place,) = session_lock._places.values()
            with anyio.fail_after(5):
                while not place.queue:
                    await checkpoint()
            tasks.cancel_scope.cancel()
    assert session_lock._places == {}
    assert await is_free(path)


async def test_who_is_cancelled_while_holding_gives_it_back(path: Path) -> None:
    holds: list[Hold] = []
    with anyio.CancelScope() as scope:
        async with SessionLock(path).hold() as hold:
            holds.append(hold)
            scope.cancel()
            await anyio.sleep_forever()
    assert [hold.active for hold in holds] == [False]
    assert await is_free(path)


async def test_who_was_cancelled_before_does_not_get_it(path: Path) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with SessionLock(path).hold():
            pytest.fail("a cancelled task went on")
    assert not path.parent.exists()


async def test_an_error_inside_gives_it_back(path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with SessionLock(path).hold():
            raise ZeroDivisionError
    assert current_hold(path) is None
    assert await is_free(path)


# ---- The same writer again ----


@pytest.mark.covers("AL-22")
async def test_whoever_has_it_cannot_take_it_again(path: Path) -> None:
    async with SessionLock(path).hold():
        with within(1), pytest.raises(HeldAlready):
            async with SessionLock(path).hold():
                pass
        assert current_hold(path) is not None


@pytest.mark.covers("AL-22")
async def test_whoever_has_it_can_nest_it_if_that_is_meant(path: Path) -> None:
    async with SessionLock(path).hold() as outer:
        async with SessionLock(path).hold(allow_reentrant=True) as inner:
            assert inner is outer
        assert outer.active
        await blocked(path)
    assert not outer.active
    assert await is_free(path)


@pytest.mark.covers("AL-22")
async def test_to_allow_nesting_does_not_let_others_in(path: Path) -> None:
    async def enter() -> None:
        with pytest.raises(SessionBusy):
            async with SessionLock(path).hold(SOON, allow_reentrant=True):
                pass

    async with SessionLock(path).hold():
        await run_unrelated(enter)


async def test_a_task_of_the_holder_is_the_same_writer(path: Path) -> None:
    async def enter() -> None:
        assert current_hold(path) is not None
        with pytest.raises(HeldAlready):
            async with SessionLock(path).hold(5):
                pass

    async with SessionLock(path).hold(), anyio.create_task_group() as tasks:
        tasks.start_soon(enter)


async def test_a_task_that_outlives_the_holder_waits_like_anybody(path: Path) -> None:
    got: list[Hold] = []
    go = anyio.Event()

    async def enter() -> None:
        await go.wait()
        async with SessionLock(path).hold(5) as hold:
            got.append(hold)

    async with anyio.create_task_group() as tasks:
        async with SessionLock(path).hold():
            tasks.start_soon(enter)
        async with SessionLock(path).hold():
            go.set()
            await idle()
            assert got == []
    assert len(got) == 1


# ---- Threads and forks ----


async def test_another_event_loop_waits_its_turn(path: Path) -> None:
    done: list[str] = []
    waits = threading.Event()

    def elsewhere() -> None:
        async def enter() -> None:
            async with SessionLock(path).hold(5):
                done.append("there")

        async def main() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(enter)
                await idle()
                waits.set()

        anyio.run(main)

    thread = threading.Thread(target=elsewhere)
    async with SessionLock(path).hold():
        thread.start()
        assert await anyio.to_thread.run_sync(waits.wait, 10)
        done.append("here")
    await anyio.to_thread.run_sync(thread.join, 10)
    assert done == ["here", "there"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_forked_child_does_not_have_its_parent_s_lock(path: Path) -> None:
    async with SessionLock(path).hold() as hold:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, b"yes" if hold.active or current_hold(path) else b"no")
            os.close(reading)
            signal.pause()
        try:
            os.close(writing)
            assert os.read(reading, 3) == b"no"
            os.close(reading)
            await blocked(path)
        except BaseException:
            os.kill(child, signal.SIGKILL)
            raise
    # The child lives, and holds nobody up.
    try:
        assert await is_free(path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)  # noqa: ASYNC222 - it is dead


ORPHAN = """
import anyio, os, signal, sys
from clawmode.sessions.lock import SessionLock

async def main():
    async with SessionLock(sys.argv[1]).hold():
        if os.fork() == 0:
            print(os.getpid(), flush=True)
            signal.pause()
        await anyio.sleep_forever()

anyio.run(main)
"""


async def test_a_forked_child_does_not_keep_the_lock_of_a_parent_that_was_killed(
    path: Path,
) -> None:
    async with await anyio.open_process([sys.executable, "-c", ORPHAN, str(path)]) as process:
        assert process.stdout is not None
        child = int(await process.stdout.receive())
        try:
            assert (await blocked(path)).pid == process.pid
            process.kill()
            await process.wait()
            async with SessionLock(path).hold(2):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


async def test_a_copy_of_its_descriptor_elsewhere_does_not_keep_it(path: Path) -> None:
    async with SessionLock(path).hold() as hold:
        copy = os.dup(hold._descriptor)
    try:
        assert await is_free(path)
    finally:
        os.close(copy)


# ---- Processes ----


@pytest.mark.covers("AL-20", "AL-21")
async def test_another_process_is_busy_and_says_with_whom(path: Path) -> None:
    async with SessionLock(path).hold(), started("take", str(path), "0.2") as (_, lines):
        said = await lines.next()
    assert said["pid"] == os.getpid()
    assert f"process {os.getpid()}" in said["busy"]


async def test_another_process_gets_it_when_it_is_free(path: Path) -> None:
    async with SessionLock(path).hold():
        waiting = started("queue", str(path), "10")
        process, lines = await waiting.__aenter__()
        assert (await lines.next())["waits"] == process.pid
    try:
        assert (await lines.next())["got"] == process.pid
    finally:
        await waiting.__aexit__(None, None, None)


@pytest.mark.covers("AL-20")
async def test_a_killed_process_gives_it_back(path: Path) -> None:
    async with started("hold", str(path)) as (process, lines):
        assert (await lines.next())["holds"] == process.pid
        busy = await blocked(path)
        assert busy.pid == process.pid
        assert f"process {process.pid}" in str(busy)
        process.kill()
        async with SessionLock(path).hold(5):
            pass


@pytest.mark.covers("AL-20")
async def test_a_stopped_process_keeps_it(path: Path) -> None:
    async with started("hold", str(path)) as (process, lines):
        await lines.next()
        process.send_signal(signal.SIGSTOP)
        assert (await blocked(path, 0.3)).pid == process.pid
        process.send_signal(signal.SIGCONT)


# ---- The file ----


async def test_the_file_is_for_its_user_only(path: Path) -> None:
    async with SessionLock(path).hold():
        assert path.with_name("abc.jsonl.lock").stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "said", [b"", b"{}", b"[]", b"no", b'{"pid": "x", "since": 1e999}', b'{"pid":1,"since":1e30}']
)
async def test_a_lock_that_does_not_say_whose_it_is_holds_all_the_same(
    path: Path, said: bytes
) -> None:
    async with started("hold", str(path)) as (_, lines):
        await lines.next()
        path.with_name("abc.jsonl.lock").write_bytes(said)
        busy = await blocked(path)
    assert (busy.pid, busy.since) == (0, 0.0)
    assert "another process" in str(busy)


async def test_a_file_that_was_left_behind_locks_nobody_out(path: Path) -> None:
    path.parent.mkdir()
    file = path.with_name("abc.jsonl.lock")
    file.write_text('{"pid": 1, "since": 5.0}')
    async with SessionLock(path).hold(0) as hold:
        assert json.loads(file.read_text()) == {"pid": os.getpid(), "since": hold.since}


async def test_a_lock_whose_file_was_deleted_and_made_anew_is_the_new_file_s(path: Path) -> None:
    lock = SessionLock(path)
    async with started("hold", str(path)) as (_, lines):
        await lines.next()
        path.with_name("abc.jsonl.lock").unlink()
        async with lock.hold(0):
            lock.delete_file()
        assert not path.with_name("abc.jsonl.lock").exists()


async def test_a_file_that_was_deleted_just_before_it_was_locked_is_not_taken_for_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, locked = fcntl.flock, list[int]()

    def flock(descriptor: int, how: int) -> None:
        if not locked:
            path.with_name("abc.jsonl.lock").unlink()
        locked.append(descriptor)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    async with SessionLock(path).hold(0), started("take", str(path), "0") as (_, lines):
        assert len(locked) == 2
        assert (await lines.next())["pid"] == os.getpid()


async def test_only_the_holder_deletes_the_file(path: Path) -> None:
    with pytest.raises(AssertionError):
        SessionLock(path).delete_file()


async def test_a_link_in_place_of_the_file_is_not_followed(path: Path) -> None:
    path.parent.mkdir()
    victim = path.with_name("victim")
    victim.write_text("precious")
    path.with_name("abc.jsonl.lock").symlink_to(victim)
    with pytest.raises(LockUnavailable) as caught:
        async with SessionLock(path).hold(0):
            pass
    assert victim.read_text() == "precious"
    assert str(path.parent) not in str(caught.value)


async def test_the_file_of_a_lock_is_there_only_while_somebody_has_it(tmp_path: Path) -> None:
    path = tmp_path / "abc.jsonl"
    async with SessionLock(path).hold(), SessionLock(path).hold(allow_reentrant=True):
        assert os.listdir(tmp_path) == ["abc.jsonl.lock"]
    assert os.listdir(tmp_path) == []
