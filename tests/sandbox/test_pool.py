"""Which worker runs which cell, and when: warmth, eviction, queue, growth, replacement."""

import json
import logging
import os
import signal
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.support.sandbox_driver import computed
from tests.support.stepping import finish, value_of
from tests.support.waiting import idle, until

from clawmode.exceptions import Aborted, DeadlineExceeded, RuntimeUnavailable
from clawmode.sandbox import artifacts
from clawmode.sandbox import pool as pool_module
from clawmode.sandbox.pool import Pool, Tenancy
from clawmode.sandbox.process import WorkerProcess
from clawmode.sandbox.protocol import (
    Completion,
    Failure,
    Outcome,
    Resume,
    Settlement,
    Start,
    Suspension,
)

pytestmark = pytest.mark.anyio

ASK = "const r = await tools.call('t'); return r + 1"


@pytest.fixture
async def single() -> AsyncIterator[Pool]:
    async with Pool(size=1, max_size=1) as opened:
        yield opened


def soon(seconds: float = 10) -> float:
    return time.monotonic() + seconds


async def ask(pool: Pool) -> tuple[Tenancy, int]:
    cell = pool.cell()
    idle = await pool.step(cell, Start(ASK), soon())
    assert isinstance(idle, Suspension), idle
    return cell, idle.requests[0].id


async def answer(pool: Pool, cell: Tenancy, request: int, value: int) -> object:
    reply = Settlement(request, True, json.dumps(value).encode())
    outcome = await pool.step(cell, Resume((reply,)), soon())
    assert isinstance(outcome, Completion), outcome
    return json.loads(outcome.value)


def workers(pool: Pool) -> list[WorkerProcess]:
    return list(pool._workers)


def busy(pool: Pool) -> int:
    """Count the workers that compute."""
    return sum(bool(worker._asking) for worker in workers(pool))


# ---- Warm and evicted ----


async def test_a_suspended_cell_stays_warm_in_its_worker(single: Pool) -> None:
    cell, request = await ask(single)
    assert cell.worker is workers(single)[0]
    assert cell.frozen is None
    assert await answer(single, cell, request, 1) == 2


async def test_a_warm_cell_is_frozen_when_its_worker_is_wanted(single: Pool) -> None:
    first, request = await ask(single)
    second, other = await ask(single)
    assert first.worker is None
    assert first.frozen is not None
    assert second.worker is not None
    assert await answer(single, first, request, 10) == 11
    assert await answer(single, second, other, 20) == 21


async def test_many_cells_share_one_worker(single: Pool) -> None:
    async def one(number: int) -> None:
        cell, request = await ask(single)
        for _ in range(number % 3):
            await anyio.lowlevel.checkpoint()
        assert await answer(single, cell, request, number) == number + 1

    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(one, number)
    assert len(workers(single)) == 1


async def test_dropping_a_warm_cell_frees_its_worker(single: Pool) -> None:
    cell, _ = await ask(single)
    single.drop(cell)
    single.drop(cell)
    assert await value_of(single, "return 1") == 1
    with pytest.raises(RuntimeUnavailable, match="lost"):
        await single.step(cell, Resume(), soon())


async def test_freezing_twice_gives_the_same(single: Pool) -> None:
    cell, request = await ask(single)
    frozen = await single.freeze(cell)
    assert await single.freeze(cell) is frozen
    assert await answer(single, cell, request, 5) == 6


# ---- Queue and growth ----


async def test_cells_queue_in_order_when_every_worker_computes(single: Pool) -> None:
    order: list[int] = []

    async def one(number: int) -> None:
        await value_of(single, "const end = Date.now() + 30; while (Date.now() < end); return 1")
        order.append(number)

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(one, number)
            await idle()
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.covers("EX-2")
async def test_the_queue_counts_against_the_deadline_and_says_so(single: Pool) -> None:
    await value_of(single, "return 1")
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: finish(single, "for (;;);", seconds=1))
        await until(lambda: busy(single) == 1)
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="all 1 workers were busy"):
            await single.step(single.cell(), Start("return 1"), soon(0.2))
        assert time.monotonic() - began < 0.7


async def test_the_pool_grows_under_hogs_and_only_to_its_maximum() -> None:
    async with Pool(size=1, max_size=2) as pool:
        await value_of(pool, "return 1")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: finish(pool, "for (;;);", seconds=1.5))
            await until(lambda: busy(pool) == 1)
            assert await value_of(pool, "return 2") == 2
            group.start_soon(lambda: finish(pool, "for (;;);", seconds=1))
            await until(lambda: busy(pool) == 2)
            assert len(workers(pool)) == 2
            with pytest.raises(DeadlineExceeded):
                await pool.step(pool.cell(), Start("return 1"), soon(0.2))


async def test_a_queue_does_not_wait_for_a_worker_that_starts_if_another_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Pool(size=1, max_size=2) as pool, anyio.create_task_group() as tasks:
        await pool.ready()
        monkeypatch.setattr(WorkerProcess, "_boot", lambda self: None)  # it never gets ready
        busy = "const end = Date.now() + 150; while (Date.now() < end);"
        tasks.start_soon(pool.step, pool.cell(), Start(busy), soon())
        await anyio.wait_all_tasks_blocked()
        assert await value_of(pool, "return 1") == 1
        assert len(workers(pool)) == 2
        workers(pool)[-1].booted.set_exception(RuntimeUnavailable("it never got ready"))


async def test_surplus_workers_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Pool(size=1, max_size=3) as pool:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(lambda: finish(pool, "for (;;);", seconds=2.5))
        assert len(workers(pool)) == 3
        monkeypatch.setattr(pool_module, "SURPLUS_SECONDS", 0.0)
        for _ in range(4):
            assert await value_of(pool, "return 1") == 1
        assert len(workers(pool)) == 1


# ---- Workers that go ----


@pytest.mark.covers("WK-1", "ER-runtime_unavailable")
async def test_a_worker_that_dies_costs_its_cell_and_is_replaced(single: Pool) -> None:
    cell, request = await ask(single)
    victim = workers(single)[0]
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(RuntimeUnavailable):
        await answer(single, cell, request, 1)
    assert await value_of(single, "return 3") == 3
    assert victim not in workers(single)


async def test_an_idle_worker_that_died_is_not_noticed_by_the_next_cell(single: Pool) -> None:
    assert await value_of(single, "return 1") == 1
    victim = workers(single)[0]
    os.kill(victim.pid, signal.SIGKILL)
    await until(lambda: not victim.alive)
    assert await value_of(single, "return 2") == 2


async def test_workers_are_replaced_after_so_many_cells(
    single: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "RECYCLE_AFTER", 3)
    pids = set()
    for _ in range(7):
        await value_of(single, "return 1")
        pids.add(workers(single)[0].pid)
    assert len(pids) == 3


def failed(why: str) -> Future[bytes]:
    future: Future[bytes] = Future()
    future.set_exception(RuntimeUnavailable(why))
    return future


@pytest.mark.covers("WK-2", "ER-runtime_unavailable")
async def test_without_its_wasm_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "prepare", lambda part: failed(f"{part} is missing"))
    async with Pool(size=1) as pool:
        with pytest.raises(RuntimeUnavailable, match="quickjs is missing"):
            await pool.step(pool.cell(), Start("return 1"), soon())


async def test_machine_code_that_cannot_be_loaded_is_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLAWMODE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(artifacts, "_compile", lambda wasm: b"no machine code")
    artifacts.load("quickjs")
    monkeypatch.undo()
    monkeypatch.setenv("CLAWMODE_CACHE_DIR", str(tmp_path))
    async with Pool(size=1) as pool:
        assert await value_of(pool, "return 4") == 4


async def test_a_worker_with_another_image_is_not_used(single: Pool) -> None:
    await value_of(single, "return 1")
    single._image = bytes(32)
    with pytest.raises(RuntimeUnavailable, match="have different images"):
        await single.step(single.cell(), Start("return 1"), soon())


async def test_a_missing_part_fails_its_cell_alone(
    single: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = artifacts.prepare

    def without_swc(part: artifacts.Part) -> Future[bytes]:
        return failed("swc.wasm is missing") if part == "swc" else prepare(part)

    monkeypatch.setattr(artifacts, "prepare", without_swc)
    with pytest.raises(RuntimeUnavailable, match=r"swc\.wasm is missing"):
        await single.step(single.cell(), Start("let a: 1", "typescript"), soon())
    assert await value_of(single, "return 1") == 1


@pytest.mark.covers("S-14")
async def test_cells_share_workers_in_turn_and_only_those_of_their_pool_as_the_page_says(
    single: Pool,
) -> None:
    page = Path(__file__).parents[2].joinpath("SECURITY.md").read_text("utf-8")
    words = " ".join(page.split())
    assert (
        "Cells of different sessions run in the same worker process, one after the other" in words
    )
    assert (
        "can read the source and the output of earlier cells in the memory of that process" in words
    )
    pids = set()
    for _ in range(2):
        await value_of(single, "return 1")
        pids.add(workers(single)[0].pid)
    assert len(pids) == 1
    async with Pool(size=1) as other:
        await value_of(other, "return 1")
        assert not pids & {worker.pid for worker in workers(other)}


# ---- Preparing machine code ----


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Future[bytes]:
    """The machine code of TypeScript, which is being compiled until the test sets it."""
    coming: Future[bytes] = Future()
    prepare = artifacts.prepare
    monkeypatch.setattr(
        artifacts, "prepare", lambda part: coming if part == "swc" else prepare(part)
    )
    return coming


@pytest.mark.covers("N-8")
async def test_an_abort_ends_the_wait_for_machine_code_at_once(
    single: Pool, compiling: Future[bytes]
) -> None:
    cell = single.cell()
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await until(lambda: cell.equipping is not None)
            await single.abort(cell)
            aborted.append(time.monotonic())

        aborted: list[float] = []
        group.start_soon(stop)
        with pytest.raises(Aborted):
            await single.prepare(cell, Start("return 1", "typescript"))
    assert time.monotonic() - aborted[0] < 0.1
    assert not compiling.done()


@pytest.mark.covers("N-8")
@pytest.mark.usefixtures("compiling")
async def test_closing_the_pool_ends_the_wait_for_machine_code() -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group, Pool(size=1) as pool:

            async def wait() -> None:
                with pytest.raises(RuntimeUnavailable, match="closed"):
                    await pool.prepare(pool.cell(), Start("return 1", "typescript"))

            group.start_soon(wait)
            await pool.prepare(pool.cell(), Start("return 1"))


@pytest.mark.covers("N-8")
async def test_a_pool_closes_at_once_while_its_workers_wait_for_machine_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(artifacts, "prepare", lambda part: Future())
    async with Pool(size=2):
        began = time.monotonic()
    assert time.monotonic() - began < 1


@pytest.mark.covers("N-8")
async def test_machine_code_that_cannot_be_compiled_fails_the_cell(
    single: Pool, compiling: Future[bytes]
) -> None:
    compiling.set_exception(RuntimeUnavailable("the sandbox cannot be compiled: no memory"))
    with pytest.raises(RuntimeUnavailable, match="cannot be compiled: no memory"):
        await single.prepare(single.cell(), Start("return 1", "typescript"))
    await single.prepare(single.cell(), Start("return 1"))


# ---- Abort, cancel, close ----


@pytest.mark.covers("ER-aborted")
async def test_an_abort_stops_an_endless_loop_and_keeps_its_output(single: Pool) -> None:
    cell = single.cell()
    outcomes: list[Outcome] = []

    async def run() -> None:
        outcomes.append(await single.step(cell, Start('text("so far"); for (;;);'), soon()))

    await value_of(single, "return 1")
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await until(lambda: busy(single) == 1)
        await computed(workers(single)[0])
        began = time.monotonic()
        await single.abort(cell)
        assert time.monotonic() - began < 0.1
    (failed,) = outcomes
    assert isinstance(failed, Failure)
    assert (failed.code, [item.body for item in failed.output]) == ("aborted", [b'"so far"'])
    with pytest.raises(Aborted):
        await single.step(cell, Resume(), soon())


async def test_a_worker_that_does_not_heed_an_abort_is_killed(single: Pool) -> None:
    cell = single.cell()
    caught: list[Aborted] = []

    async def run() -> None:
        try:
            await single.step(cell, Start("for (;;);"), soon())
        except Aborted as error:
            caught.append(error)

    await value_of(single, "return 1")
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await until(lambda: busy(single) == 1)
        os.kill(workers(single)[0].pid, signal.SIGSTOP)
        await single.abort(cell)
    assert len(caught) == 1
    assert await value_of(single, "return 2") == 2


async def test_aborting_a_cell_that_queues_takes_it_out(single: Pool) -> None:
    cell = single.cell()
    await value_of(single, "return 1")
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: finish(single, "for (;;);", seconds=0.4))
        await until(lambda: busy(single) == 1)

        async def queued() -> None:
            with pytest.raises(Aborted):
                await single.step(cell, Start("return 1"), soon())

        group.start_soon(queued)
        await until(lambda: single._queue)
        await single.abort(cell)


async def test_cancelling_a_computing_cell_replaces_its_worker(single: Pool) -> None:
    await value_of(single, "return 1")
    victim = workers(single)[0]
    with anyio.move_on_after(0.2):
        await single.step(single.cell(), Start("for (;;);"), soon())
    assert victim not in workers(single)
    assert await value_of(single, "return 2") == 2


async def test_a_closed_pool_leaves_no_process_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        async with Pool(size=2) as pool:
            await value_of(pool, "return 1")
            processes = workers(pool)
        await pool.aclose()
    assert all(not worker.alive for worker in processes)
    assert not {str(worker.pid) for worker in processes} & set(os.listdir("/proc"))
    assert caplog.text == ""
    with pytest.raises(RuntimeUnavailable, match="closed"):
        await pool.step(pool.cell(), Start("return 1"), soon())


async def test_closing_while_workers_boot_is_quiet() -> None:
    async with Pool(size=2) as pool:
        processes = workers(pool)
    assert all(not worker.alive for worker in processes)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_workers_that_go_give_their_descriptors_back() -> None:
    async with Pool(size=1) as pool:
        await value_of(pool, "return 1")
        before = descriptors()
        for _ in range(5):
            with anyio.move_on_after(0.05):
                await pool.step(pool.cell(), Start("for (;;);"), soon())
            assert await value_of(pool, "return 1") == 1
        await until(lambda: pool._reap() or descriptors() <= before)
