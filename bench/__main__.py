"""Measures the rows of the speed table, as one table and as JSON.

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
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import anyio
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench import turns
from bench.cells import SECONDS
from bench.floor import Floor
from bench.processes import family_pss
from clawmode import CodeMode, CodeModeConfig, MemoryStore, Pool, SqliteStore, Tool, tool
from clawmode.catalog.catalog import Catalog
from clawmode.sandbox.protocol import Start
from clawmode.types import JsonObject

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "latest.json"

FIRST = """
import anyio
from clawmode import CodeMode
async def main():
    async with CodeMode() as code_mode:
        print(await code_mode.exec("return 1+1"), flush=True)
anyio.run(main)
"""

SMALL = "return 1+1"
JAVASCRIPT = "const x = 2; return x"
TYPESCRIPT = "const x: number = 2; return x"
SEQUENTIAL = "for (let i = 0; i < 100; i++) await tools.nothing({}); return 1"
PARALLEL = """const calls = []; for (let i = 0; i < 100; i++) calls.push(tools.nothing({}));
return (await Promise.all(calls)).length"""
PARKED = "const x = 40; await yield_control(); return x + 2"
SLOW = "return await tools.slow({})"
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
    turns: int


FULL = Effort(floor=40, cells=1000, rounds=100, starts=7, hog_seconds=4.0, turns=5)
QUICK = Effort(floor=20, cells=200, rounds=20, starts=3, hog_seconds=1.5, turns=1)


async def timed(work: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """Milliseconds that each of `count` calls took."""
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - begun) * 1000)
    return taken


async def expect(
    code_mode: CodeMode, source: str, value: object, language: str = "javascript"
) -> None:
    """Runs a cell and insists on its value: a failure is quick, and no measurement."""
    result = await code_mode.exec(source, language)
    assert result.value == value, result


@tool
async def nothing() -> None:
    """Do nothing."""


@tool
async def slow() -> int:
    """Take a second."""
    await anyio.sleep(1)
    return 1


def numbered(count: int) -> list[Tool]:
    schema: JsonObject = {"type": "object", "properties": {"path": {"type": "string"}}}
    kinds = ["read", "write", "list", "delete", "search"]
    return [
        Tool(
            f"{kinds[number % 5]}_thing_{number}",
            f"{kinds[number % 5].title()} the things of kind {number // 5} in a place.",
            schema,
            lambda given, context: None,
        )
        for number in range(count)
    ]


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
        assert b"value=2" in line, line
        return taken

    taken = [await anyio.to_thread.run_sync(start) for _ in range(effort.starts + 1)][1:]
    return [Row("first result in a fresh process, caches warm", statistics.median(taken), "s", 0.8)]


async def small_cell(effort: Effort) -> list[Row]:
    async with CodeMode() as code_mode:
        await timed(lambda: expect(code_mode, SMALL, 2), 50)
        taken = await timed(lambda: expect(code_mode, SMALL, 2), effort.cells)
    return [Row("`return 1+1`, warm", statistics.median(taken), "ms", 1, True)]


async def typescript_cell(effort: Effort) -> list[Row]:
    plain: list[float] = []
    typed: list[float] = []
    async with Pool(size=1) as pool, CodeMode(pool=pool) as code_mode:

        async def run_typed() -> None:
            await expect(code_mode, TYPESCRIPT, 2, "typescript")

        await timed(run_typed, 20)
        for _ in range(effort.cells // 10):
            plain += await timed(lambda: expect(code_mode, JAVASCRIPT, 2), 5)
            typed += await timed(run_typed, 5)
    more = statistics.median(typed) - statistics.median(plain)
    return [Row("TypeScript cell, over the same JavaScript cell, warm", more, "ms", 0.7, True)]


async def nested_calls(effort: Effort) -> list[Row]:
    async with CodeMode(tools=[nothing]) as code_mode:
        await expect(code_mode, SEQUENTIAL, 1)
        one = await timed(lambda: expect(code_mode, SEQUENTIAL, 1), effort.rounds)
        await expect(code_mode, PARALLEL, 100)
        many = await timed(lambda: expect(code_mode, PARALLEL, 100), effort.rounds)
    return [
        Row("each of 100 sequential nested calls", statistics.median(one) / 100, "ms", 0.4, True),
        Row("100 parallel nested calls, in all", statistics.median(many), "ms", 8, True),
    ]


async def park_and_resume(effort: Effort) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        stores = {"SQLite": SqliteStore(folder), "memory": MemoryStore()}
        for name, store in stores.items():
            async with CodeMode(store=store) as code_mode:
                taken = await timed(lambda: park(code_mode), effort.rounds * 3)
            row = Row(
                f"start, park in {name}, restore, finish", statistics.median(taken), "ms", 4, True
            )
            rows.append(row)
        store = MemoryStore()
        async with CodeMode(store=store) as code_mode:
            kept = store._cells[(await code_mode.exec(PARKED)).run_id]
        size = (len(kept.snapshot) + len(kept.record)) / 1024
    return [*rows, Row("stored size of a trivially suspended cell", size, "KB", 40)]


async def park(code_mode: CodeMode) -> None:
    result = await code_mode.exec(PARKED)
    result = await code_mode.wait(result.run_id)
    assert result.value == 42, result


async def large_catalogs(effort: Effort) -> list[Row]:
    tools = numbered(1000)
    first = min(tool.id for tool in tools)
    async with CodeMode(tools=tools) as code_mode:
        source = "return ALL_TOOLS[0].id"
        await expect(code_mode, source, first)
        taken = await timed(lambda: expect(code_mode, source, first), effort.rounds)
    many = numbered(10_000)
    begun = time.perf_counter()
    catalog = Catalog(many)
    built = time.perf_counter() - begun
    begun = time.perf_counter()
    catalog.search("delete things of kind 7", 8)
    ready = time.perf_counter() - begun
    searches: list[float] = []
    for number in range(effort.rounds):
        begun = time.perf_counter()
        catalog.search(f"delete things of kind {number}", 8)
        searches.append((time.perf_counter() - begun) * 1000)
    return [
        Row("1,000 tools: `ALL_TOOLS[0]`, warm", statistics.median(taken), "ms", 2, True),
        Row("10,000 tools: catalog and index", built + ready, "s", 0.3),
        Row("10,000 tools: search", statistics.median(searches), "ms", 1),
    ]


async def hog_beside_others(effort: Effort) -> list[Row]:
    taken: list[float] = []
    async with Pool() as pool, CodeMode(pool=pool) as code_mode:
        await timed(lambda: expect(code_mode, SMALL, 2), 20)
        hogs = [pool.cell() for _ in range(pool.size)]
        async with anyio.create_task_group() as tasks:
            for hog in hogs:
                tasks.start_soon(pool.step, hog, ENDLESS, time.monotonic() + SECONDS)
            await anyio.sleep(0.1)
            until = time.monotonic() + effort.hog_seconds
            while time.monotonic() < until:
                taken += await timed(lambda: expect(code_mode, SMALL, 2), 1)
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

    async def one(code_mode: CodeMode) -> None:
        nonlocal done
        result = await code_mode.exec(SLOW)
        done += result.value == 1

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, await anyio.to_thread.run_sync(family_pss))
            await anyio.sleep(0.05)

    config = CodeModeConfig(timeout_ms=60_000)
    async with CodeMode(tools=[nothing, slow], config=config) as code_mode:
        # One after the other: workers that the pool adds for the crowd count as the crowd's.
        await timed(lambda: expect(code_mode, SEQUENTIAL, 1), 3)
        idle = await anyio.to_thread.run_sync(family_pss)
        begun = time.perf_counter()
        async with anyio.create_task_group() as watching:
            watching.start_soon(watch)
            async with anyio.create_task_group() as tasks:
                for _ in range(IDLE_CELLS):
                    tasks.start_soon(one, code_mode)
            taken = time.perf_counter() - begun
            watching.cancel_scope.cancel()
    name = f"{IDLE_CELLS:,} cells await a slow tool (1 s) at once"
    return [
        Row(f"{name}: not completed", IDLE_CELLS - done, "cells", 0),
        Row(f"{name}: memory over idle (sum of PSS)", (peak - idle) / 2**20, "MB", 150),
        Row(f"{name}: time in all", taken, "s"),
    ]


async def fifty_files(effort: Effort) -> list[Row]:
    rows: list[Row] = []
    for way in turns.WAYS:
        # All but the time is the same in every turn.
        spent = await turns.reading_files(way, effort.turns)
        one, name = spent[-1], f"a turn that reads {turns.FILES} files {way}"
        rows += [
            Row(f"{name}: requests", one.requests, "requests", turns.REQUESTS[way]),
            Row(f"{name}: sent", one.sent / 1024, "KB"),
            Row(f"{name}: received", one.received / 1024, "KB"),
            Row(f"{name}: tokens, estimated", one.tokens, "tokens"),
            Row(f"{name}: time", statistics.median(each.ms for each in spent), "ms"),
        ]
    return rows


MEASUREMENTS: dict[str, Callable[[Effort], Awaitable[list[Row]]]] = {
    "first result": first_result,
    "small cell": small_cell,
    "TypeScript": typescript_cell,
    "nested calls": nested_calls,
    "park and resume": park_and_resume,
    "large catalogs": large_catalogs,
    "hog beside others": hog_beside_others,
    "idle cells": idle_cells,
    "fifty files": fifty_files,
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
            f"{row.measured:{',.0f' if row.measured >= 1000 else '.3g'}} {row.unit}",
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
