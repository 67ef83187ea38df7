"""Many programs at once: throughput, endless loops, awaiting programs."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from bench.measures.cells import SMALL, add_one, add_one_slowly
from bench.measuring import Measure, Round, Row, Taken, expect, timed
from bench.processes import family_memory
from clawmode import CodeMode, CodeModeConfig, Pool, tool

CALLS = 5
FIVE_CALLS = f"""let sum = seed;
for (let i = 0; i < {CALLS}; i++) sum = await tools.TOOL({{number: sum}});
return sum;"""
SLOW = "return await tools.sleep_a_second({})"
PATIENT = CodeModeConfig(timeout_ms=60_000)


@tool
async def sleep_a_second() -> int:
    """Take a second."""
    await anyio.sleep(1)
    return 1


# ---- Throughput ----


def throughput(clients: int, *, slow: bool) -> Measure:
    """Clients that share a `CodeMode`, each of which starts its next program at once."""
    kind = "10 ms" if slow else "instant"
    name = f"{clients} client{'s' if clients > 1 else ''}, {CALLS} calls ({kind}) each"
    goal = {(8, False): 300.0, (8, True): 130.0}.get((clients, slow))
    latest = 60.0 if (clients, slow) == (8, False) else None
    paced = slow and clients < 32
    rows = (
        Row(f"{name}: programs", "/s", goal, paced=paced),
        Row(f"{name}: median", paced=paced),
        Row(f"{name}: p99", goal=latest, statistic="p99", paced=paced),
    )
    called = add_one_slowly if slow else add_one

    @asynccontextmanager
    async def open_clients(seconds: float) -> AsyncIterator[Round]:
        async with CodeMode(tools=[called], config=PATIENT) as code_mode:

            async def one_round(lasting: float = seconds) -> Taken:
                spans = await _crowd(code_mode, called.name, clients, lasting)
                taken = [(end - begin) * 1000 for begin, end in spans]
                began = min(begin for begin, _ in spans)
                # A program counts with the part of it that was in time: all clients begin at
                # once, and the last programs end late.
                inside = sum(
                    max(0.0, min(1.0, (began + lasting - begin) / (end - begin)))
                    for begin, end in spans
                )
                samples = ([inside / lasting], taken, taken)
                titles = [row.title for row in rows]
                return Taken(dict(zip(titles, samples, strict=True)), len(spans))

            await one_round(min(seconds, 1.0))  # until the pool has grown
            yield one_round

    return Measure(name, rows, open_clients)


async def _crowd(
    code_mode: CodeMode, name: str, clients: int, seconds: float
) -> list[tuple[float, float]]:
    """When each program began and ended."""
    spans: list[tuple[float, float]] = []
    until = time.perf_counter() + seconds

    async def client(number: int) -> None:
        seed = number * 1000
        while (begin := time.perf_counter()) < until:
            seed += 1
            source = FIVE_CALLS.replace("TOOL", name).replace("seed", str(seed))
            result = await code_mode.exec(source)
            assert result.value == seed + CALLS, result
            spans.append((begin, time.perf_counter()))

    async with anyio.create_task_group() as tasks:
        for number in range(clients):
            tasks.start_soon(client, number)
    return spans


# ---- Endless loops ----


def beside_hogs() -> Measure:
    name = "`return 1+1` beside as many endless loops as workers"
    rows = (
        Row(f"{name}: the first, which makes the pool grow"),
        Row(f"{name}: median"),
        Row(f"{name}: p95", statistic="p95"),
    )

    @asynccontextmanager
    async def open_hogs(seconds: float) -> AsyncIterator[Round]:
        async def one_round() -> Taken:
            async with Pool() as pool, CodeMode(pool=pool, config=PATIENT) as code_mode:
                await timed(lambda: expect(code_mode, SMALL, 2), 0.3)
                async with anyio.create_task_group() as hogs:
                    for _ in range(pool.size):
                        hogs.start_soon(code_mode.exec, "for (;;);")
                    await anyio.sleep(0.1)
                    taken: list[float] = []
                    until = time.perf_counter() + seconds
                    while len(taken) < 2 or time.perf_counter() < until:
                        taken += await timed(lambda: expect(code_mode, SMALL, 2), 0)
                        await anyio.sleep(0.005)
                    hogs.cancel_scope.cancel()
            titles = [row.title for row in rows]
            samples = (taken[:1], taken[1:], taken[1:])
            # The processor time is that of the loops.
            return Taken(dict(zip(titles, samples, strict=True)), len(taken), cpu=0.0)

        yield one_round

    return Measure("endless loops", rows, open_hogs)


# ---- Awaiting programs ----


def awaiting(count: int) -> Measure:
    name = f"{count:,} programs await a tool of 1 s at once"
    rows = (
        Row(f"{name}: time in all", "s"),
        Row(f"{name}: memory over idle", "MB", 150),
    )

    @asynccontextmanager
    async def open_crowd(seconds: float) -> AsyncIterator[Round]:
        del seconds

        async def one_round() -> Taken:
            async with CodeMode(tools=[sleep_a_second], config=PATIENT) as code_mode:
                # One after the other: workers that the pool adds for the crowd are the crowd's.
                await timed(lambda: expect(code_mode, SMALL, 2), 0.3)
                idle = peak = await anyio.to_thread.run_sync(family_memory)

                async def watch() -> None:
                    nonlocal peak
                    while True:
                        peak = max(peak, await anyio.to_thread.run_sync(family_memory))
                        await anyio.sleep(0.1)

                async with anyio.create_task_group() as watching:
                    watching.start_soon(watch)
                    begun = time.perf_counter()
                    async with anyio.create_task_group() as tasks:
                        for _ in range(count):
                            tasks.start_soon(expect, code_mode, SLOW, 1)
                    taken = time.perf_counter() - begun
                    watching.cancel_scope.cancel()
            more = (peak - idle) / 2**20
            return Taken({rows[0].title: [taken], rows[1].title: [more]}, count)

        yield one_round

    return Measure(name, rows, open_crowd, rounds=6)


MEASURES: list[Measure] = [
    *(throughput(clients, slow=slow) for slow in (False, True) for clients in (1, 8, 32)),
    beside_hogs(),
    awaiting(1000),
]
