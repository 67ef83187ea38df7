"""Which worker runs which cell, and when: warmth, eviction, queue, growth, replacement."""

import json
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.support.sandbox_driver import computed, held
from tests.support.stepping import finish, value_of
from tests.support.waiting import idle, undisturbed_time, until

from clawmode.exceptions import (
    Aborted,
    ConfigurationError,
    DeadlineExceeded,
    RuntimeUnavailable,
)
from clawmode.sandbox import artifacts, capacity, process, template
from clawmode.sandbox import pool as pool_module
from clawmode.sandbox import workers as workers_module
from clawmode.sandbox.packing import is_packed
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.process import WorkerProcess
from clawmode.sandbox.protocol import (
    Answer,
    Completion,
    Failure,
    Outcome,
    Question,
    Resume,
    Settlement,
    Start,
    Suspension,
)
from clawmode.sandbox.workers import Tenancy

pytestmark = pytest.mark.anyio

needs_forks = pytest.mark.skipif(not template.can_fork(), reason="workers cannot be forked here")
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
    return list(pool._workers.tenants)


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


async def test_an_evicted_cell_is_compressed_only_to_be_kept(
    single: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, request = await ask(single)
    second, other = await ask(single)
    assert first.frozen is not None
    assert not is_packed(first.frozen.pages)
    size = len(first.frozen.pages)
    kept = await single.freeze(first)
    assert is_packed(kept.pages)
    assert len(kept.pages) < size / 5
    monkeypatch.setattr(pool_module, "MAX_UNPACKED", -1)
    assert await answer(single, first, request, 1) == 2
    third, last = await ask(single)
    assert second.frozen is not None
    assert is_packed(second.frozen.pages)
    for cell, id_ in ((second, other), (third, last)):
        assert await answer(single, cell, id_, 2) == 3
    assert not single._unpacked


# ---- A process for one cell ----


@pytest.mark.covers("P-12")
@pytest.mark.parametrize("forks", [True, False])
async def test_a_cell_that_is_alone_shares_its_process_with_no_other(
    monkeypatch: pytest.MonkeyPatch, forks: bool
) -> None:
    if not forks:
        monkeypatch.setattr(template, "can_fork", lambda: False)
    async with Pool(size=1, max_size=2) as pool:
        pids: list[int] = []

        async def run(alone: bool) -> None:
            cell = pool.cell(alone=alone)
            outcome = await pool.step(cell, Start(ASK), soon())
            assert isinstance(outcome, Suspension)
            assert cell.worker is not None
            pids.append(cell.worker.pid)
            reply = Settlement(outcome.requests[0].id, True, b"1")
            assert isinstance(await pool.step(cell, Resume((reply,)), soon()), Completion)

        for alone in (False, False, True, True, False):
            await run(alone)
        assert pids[0] == pids[1]
        assert len(set(pids)) == 4
        await until(lambda: not pool._workers.reap())
        assert not {str(pid) for pid in pids[:4]} & set(os.listdir("/proc"))


@pytest.mark.parametrize("most", [1, 3])
async def test_a_cell_that_is_alone_leaves_its_process_when_it_is_evicted(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: Counter[WorkerProcess] = Counter()
    real = WorkerProcess.ask

    async def counted(self: WorkerProcess, question: Question, deadline: float) -> Answer:
        if isinstance(question, Start) or (isinstance(question, Resume) and question.frozen):
            entered[self] += 1
        return await real(self, question, deadline)

    monkeypatch.setattr(WorkerProcess, "ask", counted)
    async with Pool(size=1, max_size=most) as pool:

        async def one(number: int) -> None:
            cell = pool.cell(alone=True)
            outcome = await pool.step(cell, Start(ASK), soon(20))
            assert isinstance(outcome, Suspension)
            await pool.freeze(cell)
            reply = Settlement(outcome.requests[0].id, True, b"%d" % number)
            outcome = await pool.step(cell, Resume((reply,)), soon(20))
            assert isinstance(outcome, Completion)
            assert outcome.value == b"%d" % (number + 1)

        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(one, number)
        assert set(entered.values()) == {1}
        assert len(entered) == 10
        assert not entered.keys() & set(workers(pool))


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
        group.start_soon(lambda: finish(single, "for (;;);", seconds=30))
        await until(lambda: busy(single) == 1)
        began = undisturbed_time()
        with pytest.raises(DeadlineExceeded, match="all 1 workers were busy"):
            await single.step(single.cell(), Start("return 1"), soon(0.2))
        assert undisturbed_time() - began < 0.7
        group.cancel_scope.cancel()


async def test_the_pool_grows_under_hogs_and_only_to_its_maximum() -> None:
    async with Pool(size=1, max_size=2) as pool:
        await value_of(pool, "return 1")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: finish(pool, "for (;;);", seconds=30))
            await until(lambda: busy(pool) == 1)
            assert await value_of(pool, "return 2") == 2
            group.start_soon(lambda: finish(pool, "for (;;);", seconds=30))
            await until(lambda: busy(pool) == 2)
            assert len(workers(pool)) == 2
            with pytest.raises(DeadlineExceeded):
                await pool.step(pool.cell(), Start("return 1"), soon(0.2))
            group.cancel_scope.cancel()


async def test_a_queue_does_not_wait_for_a_worker_that_starts_if_another_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Pool(size=1, max_size=2) as pool, anyio.create_task_group() as tasks:
        await pool.ready()
        monkeypatch.setattr(WorkerProcess, "_boot", lambda self: None)  # it never gets ready
        values: list[int] = []

        async def queue() -> None:
            values.append(await value_of(pool, "return 1"))

        with held(workers(pool)[0]):
            tasks.start_soon(pool.step, pool.cell(), Start("return 0"), soon())
            await until(lambda: busy(pool) == 1)
            tasks.start_soon(queue)
            await until(lambda: len(workers(pool)) == 2)
        await until(lambda: values == [1])
        assert len(workers(pool)) == 2
        workers(pool)[-1].booted.set_exception(RuntimeUnavailable("it never got ready"))


async def test_surplus_workers_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "ABORT_GRACE", 5.0)  # an aborted worker may wait for a core
    async with Pool(size=1, max_size=3) as pool:
        async with anyio.create_task_group() as group:
            cells = [pool.cell() for _ in range(3)]
            for cell in cells:
                group.start_soon(pool.step, cell, Start("for (;;);"), soon(30))
            await until(lambda: busy(pool) == 3)
            for cell in cells:
                await pool.abort(cell)
        assert len(workers(pool)) == 3
        monkeypatch.setattr(workers_module, "SURPLUS_SECONDS", 0.0)
        for _ in range(4):
            assert await value_of(pool, "return 1") == 1
        assert len(workers(pool)) == 1


@needs_forks
@pytest.mark.covers("P-11")
async def test_every_cell_that_waits_keeps_a_worker_up_to_the_maximum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers_module, "ACTIVE_SECONDS", 60.0)  # a busy machine takes its time
    async with Pool(size=1, max_size=3) as pool:
        cells = [await ask(pool) for _ in range(3)]
        assert len({cell.worker for cell, _ in cells}) == 3
        assert all(cell.frozen is None for cell, _ in cells)
        late, request = await ask(pool)
        assert len(workers(pool)) == 3
        assert [cell.frozen is None for cell, _ in cells] == [False, True, True]
        for number, (cell, id_) in enumerate([*cells, (late, request)]):
            assert await answer(pool, cell, id_, number) == number + 1


@needs_forks
async def test_a_crowd_of_cells_starts_no_more_workers_than_cells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers_module, "SURPLUS_SECONDS", 60.0)  # a busy machine takes its time
    async with Pool(size=1, max_size=20) as pool:
        await value_of(pool, "return 1")

        async def one() -> None:
            for number in range(6):
                cell, request = await ask(pool)
                await anyio.lowlevel.checkpoint()
                assert await answer(pool, cell, request, number) == number + 1

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(one)
        assert 1 < len(workers(pool)) <= 6


@needs_forks
async def test_cells_that_wait_long_are_frozen_and_their_workers_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers_module, "ACTIVE_SECONDS", 0.05)
    monkeypatch.setattr(workers_module, "SURPLUS_SECONDS", 0.05)
    async with Pool(size=1, max_size=4) as pool:
        cells = [await ask(pool) for _ in range(4)]
        await until(lambda: len(workers(pool)) == 1)
        assert sum(cell.frozen is not None for cell, _ in cells) >= 3
        for number, (cell, id_) in enumerate(cells):
            assert await answer(pool, cell, id_, number) == number + 1


def test_the_number_of_workers_follows_the_memory_of_machine_and_container(tmp_path: Path) -> None:
    def free(meminfo: int | None, most: str = "", current: int = 0) -> int:
        group = tmp_path / "sys/fs/cgroup/app"
        group.mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/self/cgroup").write_text("1:name=x:/y\n0::/app/inner\n")
        (tmp_path / "proc/meminfo").write_text(
            "MemTotal: 99 kB\n" + ("" if meminfo is None else f"MemAvailable: {meminfo} kB\n")
        )
        (group / "memory.max").write_text(most)
        (group / "memory.current").write_text(str(current))
        return capacity.free_memory(tmp_path)

    assert free(4096, "max") == 4096 << 10
    assert free(4096, "1000000", 400_000) == 600_000
    assert free(4096, "1000", 4000) == 0
    assert free(None, "nonsense") >= 1 << 40
    assert 1 <= capacity.workers_that_fit() <= capacity.MAX_WORKERS


async def test_little_memory_allows_few_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "free_memory", lambda: 6 * 4 * capacity.WORKER_BYTES)
    monkeypatch.setattr(template, "can_fork", lambda: True)
    assert Pool(size=2).max_size == 6
    assert Pool(size=8).max_size == 8
    monkeypatch.setattr(template, "can_fork", lambda: False)
    assert Pool(size=2).max_size == 8


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
        assert await value_of(pool, "return 4", seconds=30) == 4  # to compile takes seconds


async def test_a_worker_with_another_image_is_not_used(single: Pool) -> None:
    await value_of(single, "return 1")
    single._workers._image = bytes(32)
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
            aborted.append(undisturbed_time())

        aborted: list[float] = []
        group.start_soon(stop)
        with pytest.raises(Aborted):
            await single.prepare(cell, Start("return 1", "typescript"))
    assert undisturbed_time() - aborted[0] < 0.1
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
        began = undisturbed_time()
    assert undisturbed_time() - began < 1


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
async def test_an_abort_stops_an_endless_loop_and_keeps_its_output(
    single: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The worker may have to wait for a core; the bound below is for the time that it takes itself.
    monkeypatch.setattr(process, "ABORT_GRACE", 5.0)
    cell = single.cell()
    outcomes: list[Outcome] = []

    async def run() -> None:
        outcomes.append(await single.step(cell, Start('text("so far"); for (;;);'), soon()))

    await value_of(single, "return 1")
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await until(lambda: busy(single) == 1)
        (worker,) = workers(single)
        await computed(worker)
        began = undisturbed_time(worker.pid)
        await single.abort(cell)
        assert undisturbed_time(worker.pid) - began < 0.1
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
        group.start_soon(lambda: finish(single, "for (;;);", seconds=30))
        await until(lambda: busy(single) == 1)

        async def queued() -> None:
            with pytest.raises(Aborted):
                await single.step(cell, Start("return 1"), soon())

        async with anyio.create_task_group() as waiting:
            waiting.start_soon(queued)
            await until(lambda: single._workers.queue)
            await single.abort(cell)
        group.cancel_scope.cancel()


async def test_cancelling_a_computing_cell_replaces_its_worker(single: Pool) -> None:
    await value_of(single, "return 1")
    victim = workers(single)[0]
    with anyio.move_on_after(0.2):
        await single.step(single.cell(), Start("for (;;);"), soon())
    assert victim not in workers(single)
    assert await value_of(single, "return 2") == 2


async def test_a_closed_pool_leaves_no_process_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "END_SECONDS", 10.0)  # a busy machine takes its time
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
        await until(lambda: pool._workers.reap() or descriptors() <= before)


@pytest.mark.parametrize(
    "options",
    [{"size": 0}, {"size": -1}, {"size": True}, {"size": 2.0}, {"max_size": "4"}, {"max_size": 0}],
)
def test_a_pool_of_an_impossible_size_is_refused(options: Any) -> None:
    with pytest.raises(ConfigurationError, match="from 1 on"):
        Pool(**options)
