"""One program at a time: warm programs, nested calls, parking."""

import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from bench.measuring import FLOOR, Measure, Round, Row, Taken, expect, timed
from clawmode import CodeMode, CodeModeConfig, MemoryStore, Pool, SqliteStore, tool

SMALL = "return 1+1"
JAVASCRIPT = "const x = 2; return x"
TYPESCRIPT = "const x: number = 2; return x"
CALLS = 100
SEQUENTIAL = f"""let sum = 0;
for (let i = 0; i < {CALLS}; i++) sum = await tools.add_one({{number: sum}});
return sum;"""
PARALLEL = f"""const calls = [];
for (let i = 0; i < {CALLS}; i++) calls.push(tools.add_one({{number: i}}));
return (await Promise.all(calls)).reduce((sum, each) => sum + each);"""
PARALLEL_SUM = CALLS * (CALLS + 1) // 2
PARKED = "const x = 40; await yield_control(); return x + 2"


@tool
async def add_one(number: int) -> int:
    """Add one to a number."""
    return number + 1


@tool
async def add_one_slowly(number: int) -> int:
    """Add one to a number, in 10 ms."""
    await anyio.sleep(0.01)
    return number + 1


Work = Callable[[CodeMode], Awaitable[None]]


def program(
    row: Row, work: Work, *, config: CodeModeConfig | None = None, calls: int = 1
) -> Measure:
    """A program that is run again and again. The row is about each of some calls, or about all."""

    @asynccontextmanager
    async def open_program(seconds: float) -> AsyncIterator[Round]:
        async with CodeMode(tools=[add_one, add_one_slowly], config=config) as code_mode:
            await timed(lambda: work(code_mode), seconds / 2)

            async def one_round() -> Taken:
                taken = await timed(lambda: work(code_mode), seconds)
                return Taken({row.title: [each / calls for each in taken]}, len(taken) * calls)

            yield one_round

    return Measure(row.title, (row,), open_program, "call" if calls > 1 else "program")


def typescript() -> Measure:
    row = Row("TypeScript, over the same JavaScript, warm", goal=0.7, of=FLOOR)

    @asynccontextmanager
    async def open_both(seconds: float) -> AsyncIterator[Round]:
        async with Pool(size=1) as pool, CodeMode(pool=pool) as code_mode:

            async def run_typed() -> None:
                await expect(code_mode, TYPESCRIPT, 2, "typescript")

            async def one_round() -> Taken:
                plain: list[float] = []
                typed: list[float] = []
                for _ in range(max(1, int(seconds * 20))):
                    plain += await timed(lambda: expect(code_mode, JAVASCRIPT, 2), 0.02)
                    typed += await timed(run_typed, 0.03)
                more = statistics.median(typed) - statistics.median(plain)
                return Taken({row.title: [more]}, len(plain) + len(typed))

            await one_round()
            yield one_round

    return Measure(row.title, (row,), open_both)


def parking(where: str) -> Measure:
    row = Row(f"start, park, restore, finish: in {where}", goal=4, of=FLOOR)

    @asynccontextmanager
    async def open_store(seconds: float) -> AsyncIterator[Round]:
        async with AsyncExitStack() as stack:
            store: MemoryStore | SqliteStore = MemoryStore()
            if where == "SQLite":
                store = SqliteStore(stack.enter_context(tempfile.TemporaryDirectory()))
            code_mode = await stack.enter_async_context(CodeMode(store=store))

            async def park() -> None:
                waiting = await code_mode.exec(PARKED)
                result = await code_mode.wait(waiting.run_id)
                assert result.value == 42, result

            await timed(park, seconds / 2)

            async def one_round() -> Taken:
                taken = await timed(park, seconds)
                return Taken({row.title: taken}, len(taken))

            yield one_round

    return Measure(row.title, (row,), open_store)


def stored_size() -> Measure:
    row = Row("stored size of a trivially suspended program", "KB", 40)

    @asynccontextmanager
    async def open_store(seconds: float) -> AsyncIterator[Round]:
        del seconds
        store = MemoryStore()
        async with CodeMode(store=store) as code_mode:

            async def one_round() -> Taken:
                waiting = await code_mode.exec(PARKED)
                kept = store._cells[waiting.run_id]
                stored = kept.stored
                size = (len(stored.snapshot) + len(stored.record) + len(stored.ledger)) / 1024
                result = await code_mode.wait(waiting.run_id)
                assert result.value == 42, result
                return Taken({row.title: [size]}, 1, cpu=0.0)  # too little to be measured

            yield one_round

    return Measure(row.title, (row,), open_store, rounds=1)


ALL_AT_ONCE = CodeModeConfig(max_pending_tool_calls=CALLS)
SLOWLY = PARALLEL.replace("add_one", "add_one_slowly")

MEASURES: list[Measure] = [
    program(
        Row(f"`{SMALL}`, warm", goal=0.25, of=FLOOR), lambda code_mode: expect(code_mode, SMALL, 2)
    ),
    typescript(),
    program(
        Row(f"each of {CALLS} sequential nested calls", goal=0.15, of=FLOOR),
        lambda code_mode: expect(code_mode, SEQUENTIAL, CALLS),
        calls=CALLS,
    ),
    program(
        Row(f"{CALLS} parallel nested calls, in all", goal=4.5, of=FLOOR),
        lambda code_mode: expect(code_mode, PARALLEL, PARALLEL_SUM),
    ),
    program(
        Row(f"{CALLS} parallel nested calls of 10 ms, in all, {CALLS} at once"),
        lambda code_mode: expect(code_mode, SLOWLY, PARALLEL_SUM),
        config=ALL_AT_ONCE,
    ),
    parking("SQLite"),
    parking("memory"),
    stored_size(),
]
