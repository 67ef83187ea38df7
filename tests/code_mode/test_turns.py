"""A task that made a call drives the program on, and its program can still be parked and ended."""

import asyncio
import signal
from typing import Any

import anyio
import pytest
from tests.support.waiting import until

from clawmode import CodeMode, CodeModeConfig, CodeModeResult, MemoryStore, Pool, tool
from clawmode.sandbox import process

pytestmark = pytest.mark.anyio

LOOP = "await tools.step({}); await tools.step({}); for (;;);"
"""A program that computes forever after its second call, in the task that made the call."""


class Stepping:
    """Tools whose calls are recorded, and one that a test holds up."""

    def __init__(self, pool: Pool, **config: Any) -> None:
        self.tasks: list[object] = []
        self.release = anyio.Event()

        @tool
        async def step() -> int:
            """Count the calls."""
            self.tasks.append(asyncio.current_task())
            return len(self.tasks)

        @tool
        async def held() -> str:
            """Return when the test says so."""
            await self.release.wait()
            return "released"

        self.store = MemoryStore()
        self.code_mode = CodeMode(
            tools=[step, held], pool=pool, store=self.store, config=CodeModeConfig(**config)
        )

    async def computing(self) -> None:
        """Waits until the endless part of `LOOP` runs."""
        await until(lambda: len(self.tasks) == 2)
        (cell,) = await until(lambda: list(self.code_mode._driver.active.values()))
        await until(lambda: cell.tenancy and cell.tenancy.computing)
        turn = self.code_mode._calls.groups[cell.id].turn
        assert turn is not None
        assert turn.scope is not None  # not the task of the cell


async def test_one_task_makes_all_calls_of_a_program_that_makes_one_after_the_other(
    pool: Pool,
) -> None:
    stepping = Stepping(pool)
    async with stepping.code_mode as code_mode:
        result = await code_mode.exec(
            "let n; for (let i = 0; i < 20; i++) n = await tools.step({}); return n"
        )
    assert result.value == 20
    assert len(set(stepping.tasks)) == 1
    assert asyncio.current_task() not in stepping.tasks


async def test_a_program_is_parked_in_the_middle_of_its_third_call(pool: Pool) -> None:
    stepping = Stepping(pool, timeout_ms=400)
    source = """const a = [await tools.step({}), await tools.step({})];
return [...a, await tools.held({})]"""
    async with stepping.code_mode as code_mode:
        result = await code_mode.exec(source)
        assert (result.status, len(result.pending_tool_calls)) == ("waiting", 1), result
        stepping.release.set()
        # The task of the call gives its reply to the store, and then has nothing to drive.
        await until(lambda: not code_mode._calls.groups)
        result = await code_mode.wait(result.run_id)
    assert result.value == [1, 2, "released"], result


async def test_a_reply_that_comes_after_the_program_was_resumed_drives_it_on(pool: Pool) -> None:
    stepping = Stepping(pool, timeout_ms=400)
    source = """await tools.step({}); const held = tools.held({});
await yield_control(); await held;
return await tools.step({})"""
    async with stepping.code_mode as code_mode:
        result = await code_mode.exec(source)
        assert result.status == "waiting"
        results: list[CodeModeResult] = []

        async def wait() -> None:
            results.append(await code_mode.wait(result.run_id))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await until(lambda: code_mode._driver.active)
            stepping.release.set()
    assert results[0].value == 2, results


@pytest.mark.hostile
async def test_an_abort_stops_a_program_that_another_task_drives_and_keeps_its_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "ABORT_GRACE", 5.0)  # a busy machine
    async with Pool(size=1) as pool:
        stepping = Stepping(pool)
        async with stepping.code_mode as code_mode:
            results: list[CodeModeResult] = []

            async def run() -> None:
                results.append(await code_mode.exec(LOOP))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await stepping.computing()
                (worker,) = pool._workers.tenants
                await code_mode.abort(next(iter(code_mode._driver.active)))
            assert results[0].code == "aborted", results
            assert len(results[0].calls) == 2
            assert (await code_mode.exec("return 1")).value == 1
            assert worker.alive
        assert not code_mode._calls.groups


@pytest.mark.hostile
async def test_cancelling_exec_stops_a_program_that_another_task_drives(pool: Pool) -> None:
    stepping = Stepping(pool)
    async with stepping.code_mode as code_mode:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(code_mode.exec, LOOP)
            await stepping.computing()
            tasks.cancel_scope.cancel()
        assert not code_mode._driver.active
        assert not code_mode._calls.groups
        assert (await code_mode.exec("return await tools.step({})")).value == 3


@pytest.mark.hostile
async def test_a_worker_that_dies_under_another_task_fails_the_program(pool: Pool) -> None:
    stepping = Stepping(pool)
    async with stepping.code_mode as code_mode:
        results: list[CodeModeResult] = []

        async def run() -> None:
            results.append(await code_mode.exec(LOOP))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await stepping.computing()
            (cell,) = code_mode._driver.active.values()
            assert cell.tenancy is not None
            assert cell.tenancy.computing is not None
            cell.tenancy.computing.signal(signal.SIGKILL)
        assert results[0].code == "runtime_unavailable", results
        assert (await code_mode.exec("return 1")).value == 1


@pytest.mark.hostile
async def test_the_deadline_ends_a_loop_that_another_task_drives(pool: Pool) -> None:
    stepping = Stepping(pool, timeout_ms=300)
    async with stepping.code_mode as code_mode:
        result = await code_mode.exec(LOOP)
        assert (result.code, len(result.calls)) == ("timeout", 2), result


async def test_closing_a_run_ends_a_program_that_another_task_drives(pool: Pool) -> None:
    stepping = Stepping(pool)
    results: list[CodeModeResult] = []
    async with anyio.create_task_group() as tasks:
        async with stepping.code_mode as code_mode:

            async def run() -> None:
                results.append(await code_mode.exec(LOOP))

            tasks.start_soon(run)
            await stepping.computing()
    assert results[0].code == "aborted", results


async def test_a_cancelled_wait_parks_a_program_that_another_task_drives(pool: Pool) -> None:
    stepping = Stepping(pool)
    source = """await yield_control(); await tools.step({}); await tools.step({});
const end = Date.now() + 800; while (Date.now() < end);
return [await tools.step({}), await tools.step({})]"""
    async with stepping.code_mode as code_mode:
        result = await code_mode.exec(source)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(code_mode.wait, result.run_id)
            await stepping.computing()
            tasks.cancel_scope.cancel()
        await until(lambda: not code_mode._driver.active)
        assert len(stepping.tasks) == 3  # the suspension at which it was parked
        result = await code_mode.wait(result.run_id)
    assert result.value == [3, 4], result


async def test_replies_timers_and_lookups_reach_a_program_while_one_task_makes_a_long_call(
    pool: Pool,
) -> None:
    """What a step asks for besides its call is done by others, and not after the call."""
    stepping = Stepping(pool)
    source = """const log = [];
await tools.step({});
setTimeout(() => log.push("timer"), 1);
tools.search("step").then(() => log.push("search"));
tools.step({}).then(() => log.push("call"));
const late = setInterval(() => { if (log.length >= 3) { clearInterval(late); tools.step({}) } }, 5);
const held = await tools.held({});
return [log.sort(), held]"""
    async with stepping.code_mode as code_mode:
        results: list[CodeModeResult] = []

        async def run() -> None:
            results.append(await code_mode.exec(source))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await until(lambda: len(stepping.tasks) == 3)  # all three came during the long call
            stepping.release.set()
    assert results[0].value == [["call", "search", "timer"], "released"], results
