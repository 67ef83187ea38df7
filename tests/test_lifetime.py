"""Objects that one task opens and another closes."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import anyio
import anyio.lowlevel
import pytest
from tests.support.waiting import idle

from clawmode import ClawmodeError, CodeMode, Pool, tool
from clawmode.config.mcp import read_servers
from clawmode.mcp.servers import McpServers
from clawmode.tasks import Lifetime


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """Runs each coroutine in a task of its own, as pytest-asyncio and notebooks do."""
    with asyncio.Runner() as runner:
        yield runner


def alive(code_mode: CodeMode) -> list[int]:
    return [worker.pid for worker in code_mode._driver.pool._workers.tenants if worker.alive]


@pytest.mark.covers("N-16")
def test_a_fixture_s_teardown_may_run_in_another_task(runner: asyncio.Runner) -> None:
    async def shared() -> AsyncIterator[CodeMode]:
        async with Pool(size=1) as pool, CodeMode(tools=[add], pool=pool) as code_mode:
            yield code_mode

    setup = shared()

    async def step() -> CodeMode:
        return await anext(setup)

    code_mode = runner.run(step())
    assert runner.run(code_mode.exec("return await tools.add({a: 1, b: 2})")).value == 3
    with pytest.raises(StopAsyncIteration):
        runner.run(step())
    assert alive(code_mode) == []


@pytest.mark.covers("N-16")
def test_start_and_aclose_work_in_different_tasks(runner: asyncio.Runner) -> None:
    code_mode = CodeMode(tools=[add])
    assert runner.run(code_mode.start()) is code_mode
    assert runner.run(code_mode.exec("return await tools.add({a: 1, b: 2})")).value == 3
    runner.run(code_mode.aclose())
    assert alive(code_mode) == []
    assert runner.run(code_mode.exec("return 1")).code == "runtime_unavailable"
    runner.run(code_mode.aclose())


@pytest.mark.covers("N-16")
def test_two_objects_of_one_task_are_closed_in_any_order() -> None:
    async def main() -> None:
        async with Pool(size=1) as pool:
            first, second = CodeMode(pool=pool), CodeMode(pool=pool)
            await first.start()
            await second.start()
            await first.aclose()
            assert (await second.exec("return 2")).value == 2
            await second.aclose()

    asyncio.run(main())


@pytest.mark.covers("N-16")
def test_a_pool_and_mcp_servers_are_closed_by_another_task(runner: asyncio.Runner) -> None:
    async def open_servers() -> McpServers:
        gone = read_servers({"gone": {"url": "http://127.0.0.1:9/mcp"}}).unwrap()
        return await McpServers(gone).start()

    pool = Pool(size=1)
    runner.run(pool.start())
    servers = runner.run(open_servers())
    assert [view.state for view in runner.run(servers.connect())] == ["down"]
    runner.run(pool.aclose())
    runner.run(servers.aclose())
    assert pool._workers.tenants == {}


@pytest.mark.covers("N-16")
def test_what_nobody_closed_ends_with_the_event_loop() -> None:
    code_mode = CodeMode(tools=[add])

    async def main() -> list[int]:
        await code_mode.start()
        return alive(code_mode)

    assert asyncio.run(main())
    assert alive(code_mode) == []
    asyncio.run(code_mode.aclose())


@pytest.mark.covers("N-16")
def test_an_error_while_it_opens_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(size=1)

    async def fail() -> None:
        raise OSError("no room")

    monkeypatch.setattr(pool, "ready", fail)
    code_mode = CodeMode(pool=pool)
    with pytest.raises(OSError, match="no room"):
        asyncio.run(code_mode.start())
    assert code_mode._life.tasks is not None
    with pytest.raises(ClawmodeError, match="opened once"):
        asyncio.run(code_mode.start())


@pytest.mark.covers("N-16")
def test_cancelling_the_opener_closes_what_it_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        waiting = asyncio.Event()

        async def hang(self: Pool) -> None:
            waiting.set()
            await anyio.sleep_forever()

        monkeypatch.setattr(Pool, "ready", hang)
        code_mode = CodeMode()
        opening = asyncio.create_task(code_mode.start())
        await waiting.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert alive(code_mode) == []
        assert code_mode._driver.pool._workers.closed

    asyncio.run(main())


@pytest.mark.covers("N-16")
@pytest.mark.anyio
async def test_a_cancelled_closer_closes_all_the_same() -> None:
    ended = anyio.Event()
    may_end = anyio.Event()

    async def end(tasks: anyio.abc.TaskGroup) -> None:
        await may_end.wait()
        ended.set()

    life = Lifetime("test", end)
    await life.open()
    closing = asyncio.create_task(life.close())
    await anyio.lowlevel.checkpoint()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    may_end.set()
    with anyio.fail_after(5):
        await life.close()
    assert ended.is_set()


@pytest.mark.anyio
async def test_a_failed_task_raises_where_the_lifetime_is_closed() -> None:
    async def end(tasks: anyio.abc.TaskGroup) -> None:
        tasks.cancel_scope.cancel()

    async def fail() -> None:
        raise OSError("no room")

    life = Lifetime("test", end)
    (await life.open()).start_soon(fail)
    await idle()
    with pytest.raises(ExceptionGroup) as told:
        await life.close()
    assert told.group_contains(OSError, match="no room")
