"""Measures the rows of the speed table that need no tools, as one table and as JSON.

    python -m bench [--quick] [--json]

Times are medians. Ratios are to the floor of the same run, sampled between all rows, so that a
machine that is busy for a while slows both. A target that is missed does not fail the command: a
busy machine must not.
"""

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import anyio
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.cells import SECONDS, at_once, finish, run
from bench.floor import Floor
from bench.processes import family_pss
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import Done, Request, Resume, Settled, Start, Suspended, encode

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "latest.json"

FIRST = """
import anyio
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import Start
import time
async def main():
    async with Pool() as pool:
        print(await pool.step(pool.cell(), Start("return 1+1"), time.monotonic() + 60), flush=True)
anyio.run(main)
"""

SMALL = Start("return 1+1")
JAVASCRIPT = Start("const x = 2; return x")
TYPESCRIPT = Start("const x: number = 2; return x", language="typescript")
SEQUENTIAL = Start("for (let i = 0; i < 100; i++) await tools.call('t', {i}); return 1")
PARALLEL = Start(
    "const calls = []; for (let i = 0; i < 100; i++) calls.push(tools.call('t', {i}));"
    "return (await Promise.all(calls)).length"
)
ONE_CALL = Start("const x = 40; return x + await tools.call('t')")
ENDLESS = Start("for (;;);")
IDLE_CELLS = 1000


@dataclass(frozen=True)
class Row:
    """One line of the table.

    `measured` is in `unit`; `ratio` is that over the floor, for what is judged by it; `target` is
    the most that the ratio may be, or `measured` where there is no ratio.
    """

    work: str
    measured: float
    unit: str
    target: float | None = None
    relative: bool = False
    ratio: float | None = None
    ok: bool | None = None

    def judged(self, floor_ms: float) -> "Row":
        """The row with its ratio and its verdict."""
        ratio = self.measured / floor_ms if self.unit == "ms" else None
        judged = ratio if self.relative else self.measured
        ok = None if self.target is None or judged is None else judged <= self.target
        return replace(self, ratio=ratio, ok=ok)


@dataclass(frozen=True)
class Effort:
    """How often things are repeated."""

    floor: int
    cells: int
    rounds: int
    starts: int
    hog_seconds: float


FULL = Effort(floor=40, cells=1000, rounds=100, starts=7, hog_seconds=4.0)
QUICK = Effort(floor=20, cells=200, rounds=20, starts=3, hog_seconds=1.5)


async def timed(work: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """Milliseconds that each of `count` calls took."""
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - begun) * 1000)
    return taken


async def expect(pool: Pool, start: Start, value: bytes) -> None:
    """Runs a cell and insists on its value: a failure is quick, and no measurement."""
    outcome = await run(pool, start)
    assert isinstance(outcome, Done), outcome
    assert outcome.value == value, outcome


# ---- The rows ----


async def first_result(effort: Effort) -> list[Row]:
    command = [sys.executable, "-c", FIRST]

    def start() -> float:
        begun = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            assert child.stdout is not None
            line = child.stdout.readline()
            taken = time.perf_counter() - begun
            child.stdout.read()
        assert line.startswith(b"Done(value=b'2'"), line
        return taken

    taken = [await anyio.to_thread.run_sync(start) for _ in range(effort.starts + 1)][1:]
    return [Row("first result in a fresh process, caches warm", statistics.median(taken), "s", 0.8)]


async def small_cell(effort: Effort) -> list[Row]:
    async with Pool() as pool:
        await timed(lambda: expect(pool, SMALL, b"2"), 50)
        taken = await timed(lambda: expect(pool, SMALL, b"2"), effort.cells)
    return [Row("`return 1+1`, warm, through the pool", statistics.median(taken), "ms", 1, True)]


async def typescript_cell(effort: Effort) -> list[Row]:
    plain: list[float] = []
    typed: list[float] = []
    async with Pool(size=1) as pool:
        await timed(lambda: expect(pool, TYPESCRIPT, b"2"), 20)
        for _ in range(effort.cells // 10):
            plain += await timed(lambda: expect(pool, JAVASCRIPT, b"2"), 5)
            typed += await timed(lambda: expect(pool, TYPESCRIPT, b"2"), 5)
    more = statistics.median(typed) - statistics.median(plain)
    return [Row("TypeScript cell, over the same JavaScript cell, warm", more, "ms", 0.7, True)]


async def nested_calls(effort: Effort) -> list[Row]:
    async with Pool() as pool:
        await expect(pool, SEQUENTIAL, b"1")
        one = await timed(lambda: expect(pool, SEQUENTIAL, b"1"), effort.rounds)
        await expect(pool, PARALLEL, b"100")
        many = await timed(lambda: expect(pool, PARALLEL, b"100"), effort.rounds)
    return [
        Row("each of 100 sequential nested calls", statistics.median(one) / 100, "ms", 0.4, True),
        Row("100 parallel nested calls, in all", statistics.median(many), "ms", 8, True),
    ]


async def park_and_resume(effort: Effort) -> list[Row]:
    taken: list[float] = []
    sizes: list[float] = []
    async with Pool(size=1) as here, Pool(size=1) as there:
        for _ in range(effort.rounds * 3 + 10):
            cell, deadline = here.cell(), time.monotonic() + SECONDS
            outcome = await here.step(cell, ONE_CALL, deadline)
            assert isinstance(outcome, Suspended), outcome
            begun = time.perf_counter()
            frozen = await here.freeze(cell)
            moved = there.cell(frozen)
            settled = (Settled(outcome.requests[0].id, True, b"2"),)
            end = await there.step(moved, Resume(settled), deadline)
            taken.append((time.perf_counter() - begun) * 1000)
            assert isinstance(end, Done), end
            assert end.value == b"42", end
            here.drop(cell)
            sizes.append(len(encode(frozen, 0)) / 1024)
    return [
        Row(
            "park, restore in another worker, finish (in memory: no SQLite yet)",
            statistics.median(taken[10:]),
            "ms",
            4,
            True,
        ),
        Row("stored size of a trivially suspended cell", statistics.median(sizes), "KB", 40),
    ]


async def hog_beside_others(effort: Effort) -> list[Row]:
    taken: list[float] = []
    async with Pool() as pool:
        await timed(lambda: expect(pool, SMALL, b"2"), 20)
        hogs = [pool.cell() for _ in range(pool.size)]
        async with anyio.create_task_group() as tasks:
            for hog in hogs:
                tasks.start_soon(pool.step, hog, ENDLESS, time.monotonic() + SECONDS)
            await anyio.sleep(0.1)
            until = time.monotonic() + effort.hog_seconds
            while time.monotonic() < until:
                taken += await timed(lambda: expect(pool, SMALL, b"2"), 1)
                await anyio.sleep(0.005)
            for hog in hogs:
                await pool.abort(hog)
    name = f"`return 1+1` beside {len(hogs)} endless loops"
    return [
        Row(f"{name}: the first, which makes the pool grow", taken[0], "ms"),
        Row(f"{name}: median", statistics.median(taken[1:]), "ms"),
        Row(f"{name}: 95th percentile", statistics.quantiles(taken[1:], n=20)[-1], "ms"),
    ]


async def idle_cells(effort: Effort) -> list[Row]:
    del effort  # the number is the row's own
    peak, done = 0, 0

    async def slow(request: Request) -> bytes:
        await anyio.sleep(1)
        return await at_once(request)

    async def one(pool: Pool) -> None:
        nonlocal done
        cell, deadline = pool.cell(), time.monotonic() + SECONDS
        outcome = await pool.step(cell, ONE_CALL, deadline)
        outcome = await finish(pool, cell, outcome, deadline, slow)
        done += isinstance(outcome, Done) and outcome.value == b"41"

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, await anyio.to_thread.run_sync(family_pss))
            await anyio.sleep(0.05)

    async with Pool() as pool:
        # One after the other: workers that the pool adds for the crowd count as the crowd's.
        await timed(lambda: expect(pool, ONE_CALL, b"41"), 20)
        idle = await anyio.to_thread.run_sync(family_pss)
        begun = time.perf_counter()
        async with anyio.create_task_group() as watching:
            watching.start_soon(watch)
            async with anyio.create_task_group() as tasks:
                for _ in range(IDLE_CELLS):
                    tasks.start_soon(one, pool)
            taken = time.perf_counter() - begun
            watching.cancel_scope.cancel()
    name = f"{IDLE_CELLS:,} cells await a slow tool (1 s) at once"
    return [
        Row(f"{name}: not completed", IDLE_CELLS - done, "cells", 0),
        Row(f"{name}: memory over idle (sum of PSS)", (peak - idle) / 2**20, "MB", 150),
        Row(f"{name}: time in all", taken, "s"),
    ]


MEASUREMENTS: dict[str, Callable[[Effort], Awaitable[list[Row]]]] = {
    "first result": first_result,
    "small cell": small_cell,
    "TypeScript": typescript_cell,
    "nested calls": nested_calls,
    "park and resume": park_and_resume,
    "hog beside others": hog_beside_others,
    "idle cells": idle_cells,
}


# ---- The command ----


@contextmanager
def shown_progress(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Shows on standard error what is being measured."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True, quiet=quiet)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("floor", total=None)

        def show(text: str) -> None:
            progress.update(task, description=text)
            if not console.is_terminal:
                console.print(f"measuring: {text}", highlight=False)

        yield show


async def measure(effort: Effort, show: Callable[[str], None]) -> tuple[float, list[Row]]:
    """The floor in milliseconds, and the rows."""
    show("floor")
    floor = Floor()
    floor.sample(effort.floor)
    samples = floor.sample(effort.floor)
    rows: list[Row] = []
    for name, work in MEASUREMENTS.items():
        show(name)
        rows += await work(effort)
        samples += floor.sample(effort.floor)
    floor_ms = statistics.median(samples) * 1000
    return floor_ms, [row.judged(floor_ms) for row in rows]


def table_of(floor_ms: float, rows: list[Row]) -> Table:
    """The rows for people."""
    table = Table(title=f"floor: {floor_ms:.2f} ms", title_justify="left")
    table.add_column("work")
    for heading in ("median", "x floor", "target", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row("floor", f"{floor_ms:.2f} ms", "1.00", "", "")
    for row in rows:
        unit = "x floor" if row.relative else row.unit
        table.add_row(
            row.work,
            f"{row.measured:.3g} {row.unit}",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            "" if row.target is None else f"≤ {row.target:g} {unit}",
            {None: "", True: "[green]ok[/]", False: "[red]missed[/]"}[row.ok],
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures the sandbox.")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    options = parser.parse_args()
    logging.getLogger("clawmode").setLevel(logging.ERROR)  # what a worker lacks is not the subject
    with shown_progress(quiet=options.json) as show:
        floor_ms, rows = anyio.run(measure, QUICK if options.quick else FULL, show)
    report = {
        "floor_ms": floor_ms,
        "quick": options.quick,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "rows": [asdict(row) for row in rows],
    }
    text = json.dumps(report, indent=2, ensure_ascii=False)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text + "\n", encoding="utf-8")
    if options.json:
        print(text)
        return
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table_of(floor_ms, rows))
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {RESULTS}")


if __name__ == "__main__":
    main()
