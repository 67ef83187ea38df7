"""The template that workers are forked from: what forks inherit, and what its end means."""

import gc
import logging
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from tests.support.sandbox_driver import (
    LOOP,
    only_worker,
    resume,
    settled,
    soon,
    suspend,
    use_own_template,
)
from tests.support.stepping import value_of
from tests.support.waiting import is_alive, undisturbed_time, until, until_sync

from clawmode.sandbox import artifacts
from clawmode.sandbox import template as template_module
from clawmode.sandbox import workers as workers_module
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.process import WorkerProcess
from clawmode.sandbox.protocol import Start
from clawmode.sandbox.template import Template
from clawmode.sandbox.workers import Tenancy

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not template_module.can_fork(), reason="workers cannot be forked here"),
]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """No template is shared with the pools of other tests."""
    use_own_template(monkeypatch)


@pytest.fixture
async def forked(own: None) -> AsyncIterator[Pool]:
    async with Pool(size=1, max_size=1) as opened:
        await value_of(opened, "return 1")
        yield opened


def template_of(pool: Pool) -> Template:
    assert pool._workers.template is not None
    return pool._workers.template


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[1])


def children(pid: int) -> set[int]:
    found = set[int]()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended meanwhile
            found |= set(map(int, task.read_text("ascii").split()))
    return found


def descriptors(pid: int) -> list[str]:
    folder, found = Path(f"/proc/{pid}/fd"), list[str]()
    for number in os.listdir(folder):
        with suppress(FileNotFoundError):  # it was closed meanwhile
            found.append(os.readlink(folder / number))
    return sorted(found)


# ---- Forks ----


async def test_workers_are_forks_of_one_template_for_all_pools(own: None) -> None:
    async with Pool(size=2) as one, Pool(size=1) as other:
        assert await value_of(one, "return 1") == 1
        assert await value_of(other, "return 2") == 2
        await until(lambda: len(one._workers.tenants) == 2)
        shared = template_of(one)
        assert template_of(other) is shared
        pids = [worker.pid for pool in (one, other) for worker in pool._workers.tenants]
        assert {parent_of(pid) for pid in pids} == {shared.pid}
        assert parent_of(shared.pid or 0) == os.getpid()
        await one.aclose()
        assert is_alive(shared.pid or 0)
        assert await value_of(other, "return 3") == 3
        last = shared.pid or 0
    assert str(last) not in os.listdir("/proc")


@pytest.mark.covers("P-21")
async def test_a_template_that_was_started_early_belongs_to_the_first_pool(own: None) -> None:
    artifacts.load("quickjs")
    template_module.start_early()
    early = template_module._shared
    assert early is not None
    await until(lambda: early.ready)
    pid = early.pid or 0
    async with Pool(size=1) as one, Pool(size=1) as other:
        assert template_of(one) is template_of(other) is early
        assert await value_of(one, "return 1") == 1
        assert early.pid == pid
    assert str(pid) not in os.listdir("/proc")


async def test_a_template_that_was_started_early_and_died_is_replaced(own: None) -> None:
    template_module.start_early()
    early = template_module._shared
    assert early is not None
    os.kill(early.pid or 0, signal.SIGKILL)
    async with Pool(size=1) as pool:
        assert await value_of(pool, "return 1") == 1


@pytest.mark.covers("P-21")
def test_a_command_that_ends_before_its_program_starts_leaves_no_template(tmp_path: Path) -> None:
    program = """
import os, sys
from clawmode.sandbox import template
start = template.start_early
def started():
    start()
    print(template._shared.pid)
template.start_early = started
sys.argv = ["clawmode", "run", "missing.js"]
from clawmode.__main__ import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    until_sync(lambda: not is_alive(int(done.stdout)))


async def test_a_fork_takes_a_fraction_of_the_time_and_memory_of_a_start(forked: Pool) -> None:
    def cost(worker: WorkerProcess) -> tuple[float, int]:
        worker.booted.result(20)
        fields = Path(f"/proc/{worker.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        memory = Path(f"/proc/{worker.pid}/smaps_rollup").read_text("ascii").splitlines()
        (private,) = (line for line in memory if line.startswith("Private_Dirty:"))
        worker.kill()
        until_sync(worker.reaped)
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(
            private.split()[1]
        )

    started = cost(WorkerProcess("best-effort"))
    fork = cost(WorkerProcess("best-effort", template_of(forked)))
    assert fork[0] < started[0] / 2
    assert fork[1] < started[1] / 2


@pytest.mark.parametrize(("count", "least", "most"), [(4, 4, 5), (12, 1, 3)])
async def test_each_of_a_few_programs_gets_a_worker_and_a_crowd_shares(
    own: None, count: int, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crowd whose programs cannot all have a worker would fork the most, and evict all the same.

    Those that wait for their calls are evicted then, and resumed when their turn comes.
    """
    monkeypatch.setattr(workers_module, "GROW_AFTER", 5.0)  # a busy machine is no hog
    async with Pool(size=1, max_size=6) as pool:
        await value_of(pool, "return 1")
        waiting: list[Tenancy] = []

        async def wait() -> None:
            waiting.append(await suspend(pool))

        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(wait)
        assert least <= len(pool._workers.tenants) <= most
        assert [await resume(pool, cell) for cell in waiting] == [42] * count


async def test_two_forks_draw_different_random_numbers(own: None) -> None:
    source = "return [Math.random(), Math.random()]"
    async with Pool(size=2, max_size=2) as pool:
        await until(lambda: len(pool._workers.tenants) == 2)
        first = await suspend(pool)  # takes one worker
        drawn = [*await value_of(pool, source)]
        assert await resume(pool, first) == 42
        drawn += await value_of(pool, source)
    assert len(set(drawn)) == len(drawn)


# ---- What a fork inherits ----


def found_in_memory(pid: int, secret: bytes) -> bool:
    """Looks at every byte that a process can read."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text("utf-8").splitlines():
            span, rights = line.split()[:2]
            start, end = (int(number, 16) for number in span.split("-"))
            if not rights.startswith("r") or line.endswith(
                ("[vvar]", "[vsyscall]", "[vvar_vclock]")
            ):
                continue
            for at in range(start, end, 64 << 20):
                try:
                    memory.seek(at)
                    if secret in memory.read(min(end - at, 64 << 20)):
                        return True
                except OSError:
                    continue
    return False


@pytest.mark.hostile
@pytest.mark.covers("P-10")
async def test_a_forked_worker_holds_no_secret_of_its_parent_or_template(
    own: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = secrets.token_hex(24)
    monkeypatch.setenv("CLAWMODE_TEST_KEY", key)
    held = [key.encode(), {"key": f"Bearer {key}"}]
    with (tmp_path / "secret").open("w+") as file:
        file.write(key)
        file.flush()
        os.set_inheritable(file.fileno(), True)
        async with Pool(size=2, lockdown="off") as pool:
            await value_of(pool, "return 1")
            # The second is started after the first.
            await until(lambda: len(pool._workers.tenants) == 2)
            await settled(pool)
            template = template_of(pool).pid or 0
            workers = [worker.pid for worker in pool._workers.tenants]
            await until(lambda: len(descriptors(template)) <= 6)  # a fork may be under way
            for pid in (*workers, template):
                process = Path(f"/proc/{pid}")
                assert (process / "environ").read_bytes() == b""
                assert os.readlink(process / "cwd") == "/"
                assert not any(str(tmp_path) in name for name in descriptors(pid))
                assert key not in (process / "cmdline").read_text("utf-8")
                assert not found_in_memory(pid, key.encode())
            for pid in workers:
                # No way back to the template or the parent: null, null, errors and three pipes.
                kinds = [name.split(":")[0] for name in descriptors(pid)]
                assert kinds == ["/dev/null", "/dev/null", "pipe", "pipe", "pipe", "pipe"]
            assert not set(descriptors(workers[0])) & set(descriptors(workers[1])) - {"/dev/null"}
    assert found_in_memory(os.getpid(), key.encode()), held


@pytest.mark.hostile
async def test_a_forked_worker_does_not_hold_what_an_earlier_worker_ran(forked: Pool) -> None:
    mark = secrets.token_hex(24)
    assert await value_of(forked, f"return '{mark}'.length") == 48
    first = only_worker(forked)
    assert found_in_memory(first.pid, mark.encode())
    first.kill()
    assert await value_of(forked, "return 1") == 1
    second = only_worker(forked)
    assert second is not first
    assert not found_in_memory(second.pid, mark.encode())
    assert not found_in_memory(template_of(forked).pid or 0, mark.encode())


@pytest.mark.covers("P-10")
async def test_each_fork_is_locked_down_and_has_a_session_of_its_own(forked: Pool) -> None:
    worker, template = only_worker(forked).pid, template_of(forked).pid or 0
    status = await anyio.Path(f"/proc/{worker}/status").read_text("utf-8")
    assert forked.lockdown_notes() or "Seccomp:\t2" in status
    assert os.getsid(worker) == worker
    assert os.getsid(template) == template
    for pid in (worker, template):
        os.kill(pid, signal.SIGINT)
    assert await value_of(forked, "return 1") == 1


# ---- Ends ----


async def test_the_end_of_a_worker_is_noticed_and_leaves_no_zombie(forked: Pool) -> None:
    worker = only_worker(forked)
    began = undisturbed_time()
    worker.signal(signal.SIGKILL)
    await until(lambda: not worker.alive)
    assert undisturbed_time() - began < 1
    await until(lambda: str(worker.pid) not in os.listdir("/proc"))
    assert await value_of(forked, "return 1") == 1


async def test_workers_outlive_their_template_and_the_next_comes_from_a_new_one(
    forked: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    cell, template = await suspend(forked), template_of(forked)
    old = template.pid or 0
    os.kill(old, signal.SIGKILL)
    await until(lambda: not is_alive(old))
    assert await resume(forked, cell) == 42
    only_worker(forked).kill()
    assert await value_of(forked, "return 1") == 1
    assert template.pid not in (None, old)
    assert parent_of(only_worker(forked).pid) == template.pid


async def test_a_template_that_hangs_is_replaced(
    forked: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(template_module, "FORK_SECONDS", 0.2)
    old = template_of(forked).pid or 0
    os.kill(old, signal.SIGSTOP)
    only_worker(forked).kill()
    assert await value_of(forked, "return 1") == 1
    assert not is_alive(old)
    assert parent_of(only_worker(forked).pid) == os.getpid()
    assert "the template of the workers failed" in caplog.text


async def test_workers_are_started_one_by_one_where_the_template_cannot_start(
    own: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = artifacts.python_command

    def command(module: str, *arguments: str) -> list[str]:
        if module == "forking":
            return [sys.executable, "-I", "-S", "-c", "raise SystemExit('no template today')"]
        return real(module, *arguments)

    monkeypatch.setattr(artifacts, "python_command", command)
    with caplog.at_level(logging.WARNING):
        async with Pool(size=1) as pool:
            for _ in range(template_module.MAX_FAILURES + 1):
                assert await value_of(pool, "return 1") == 1
                assert parent_of(only_worker(pool).pid) == os.getpid()
                only_worker(pool).kill()
            assert not template_of(pool).usable
    assert "no template today" in caplog.text


async def test_workers_are_started_one_by_one_where_forks_are_not_possible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(template_module, "can_fork", lambda: False)
    async with Pool(size=1) as pool:
        assert pool.max_size == 4
        assert await value_of(pool, "return 1") == 1
        assert parent_of(only_worker(pool).pid) == os.getpid()


OWNER = """import os, sys, time, anyio
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.workers import Tenancy
from clawmode.sandbox.protocol import Start

async def main():
    async with Pool(size=2) as pool:
        await pool.step(pool.cell(), Start("return 1"), time.monotonic() + 10)
        pids = (worker.pid for worker in pool._workers.tenants)
        print(pool._workers.template.pid, *pids, flush=True)
        await pool.step(pool.cell(), Start("for (;;);"), time.monotonic() + 50)

anyio.run(main)
"""


async def test_template_and_workers_end_when_the_parent_is_killed() -> None:
    async with await anyio.open_process([sys.executable, "-c", OWNER], stderr=None) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in (await parent.stdout.receive()).split()]
        assert all(is_alive(pid) for pid in pids)
        parent.kill()
    await until(lambda: not any(is_alive(pid) for pid in pids))


FORKS = """import os, time, anyio
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.workers import Tenancy
from clawmode.sandbox.protocol import Start

async def run(pool):
    outcome = await pool.step(pool.cell(), Start("return 6 * 7"), time.monotonic() + 10)
    return outcome.value.decode(), pool._workers.template.pid

async def child():
    async with Pool(size=1) as pool:
        return await run(pool)

async def main():
    async with Pool(size=1) as pool:
        first = await run(pool)
        if os.fork() == 0:
            value, template = [], 0
            import threading
            def other():
                nonlocal value, template
                value, template = anyio.run(child)
            thread = threading.Thread(target=other)
            thread.start(); thread.join()
            os._exit(0 if value == "42" and template != first[1] else 1)
        _, status = os.wait()
        next(iter(pool._workers.tenants)).kill()
        print(first[0], os.waitstatus_to_exitcode(status), (await run(pool))[0])

anyio.run(main)
"""


async def test_a_forked_child_of_the_parent_gets_a_template_of_its_own() -> None:
    done = await anyio.run_process([sys.executable, "-W", "ignore", "-c", FORKS], stderr=None)
    assert done.stdout.split() == [b"42", b"0", b"42"]


async def test_nothing_is_left_of_many_workers_and_pools(own: None) -> None:
    gc.collect()
    before, alive = len(os.listdir("/proc/self/fd")), children(os.getpid())
    for _ in range(4):
        async with Pool(size=2) as pool:
            await value_of(pool, "return 1")
            for _ in range(4):
                with anyio.move_on_after(0.02):
                    await pool.step(pool.cell(), Start(LOOP), soon())
                assert await value_of(pool, "return 1") == 1
            template = template_of(pool).pid or 0
            await until(lambda: not pool._workers.reap())
            # While it forks a spare worker, the template has the four pipes of that worker.
            await until(lambda pid=template: len(descriptors(pid)) <= 6)
            await until(lambda pid=template: len(children(pid)) == len(pool._workers.tenants))
    # A pool of other tests may be starting a worker.
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    await until(lambda: children(os.getpid()) <= alive)


async def test_a_template_that_does_not_end_in_time_is_killed_and_buried(
    own: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks after it once its last pool is closed."""
    monkeypatch.setattr(workers_module, "END_SECONDS", 0.1)
    async with Pool(size=1) as pool:
        await pool.ready()
        ending = template_module._shared
        assert ending is not None
        pid = ending.pid or 0
        os.kill(pid, signal.SIGSTOP)
    await until(lambda: ending.pid is None)
    await until(lambda: not is_alive(pid))
