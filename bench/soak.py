"""Runs 20,000 cells of every kind and looks for what grows: memory, descriptors, processes, files.

    python -m bench.soak [--cells N]

Several cells are under way at once, so that workers are wanted by others and cells move. Figures
are taken every few hundred cells; the lowest of the last quarter are held against the lowest of
the second, when all caches are full: a leak raises these too. The pool may grow and shrink all the
while, so workers are not compared but bounded, and their pipes are not the parent's own
descriptors. Exit status 1: something grew, or a cell ended as it should not.
"""

import argparse
import ctypes
import gc
import logging
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from bench.cells import SECONDS, finish, run
from bench.processes import children, descriptors, rss
from clawmode import CodeMode, MemoryStore, SqliteStore, tool
from clawmode.exceptions import SandboxError
from clawmode.sandbox.artifacts import cache_folder
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import Limits, Outcome, Start, Suspension

CELLS = 20_000
SAMPLE_EVERY = 250
LEAST = 4 * SAMPLE_EVERY
MB = 1 << 20


PIPES = 4
"""Descriptors that the parent has for each worker."""


@dataclass(frozen=True)
class Figures:
    """What may not grow. The worker's are those of the largest one."""

    parent_objects: float
    parent_rss: float
    worker_rss: float
    own_descriptors: float
    worker_descriptors: float
    files: float
    workers: float


ALLOWED = Figures(
    parent_objects=3000,
    parent_rss=24 * MB,
    worker_rss=16 * MB,
    own_descriptors=0,
    worker_descriptors=0,
    files=0,
    workers=float("inf"),
)
"""How much higher the last quarter may be than the second. An object for every other cell shows in
the parent's objects; in its memory, free pieces of the allocator's are counted too, which it keeps
for each thread that ever handed a worker its machine code."""


def take_figures() -> Figures:
    # What the allocator keeps for later is no leak.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    workers = children()
    pipes, others = descriptors(os.getpid())
    return Figures(
        parent_objects=sys.getallocatedblocks(),
        parent_rss=rss(os.getpid()),
        worker_rss=max(map(rss, workers), default=0),
        own_descriptors=others + max(pipes - PIPES * len(workers), 0),
        worker_descriptors=max((sum(descriptors(worker)) for worker in workers), default=0),
        files=sum(_files_in(folder) for folder in (Path(tempfile.gettempdir()), cache_folder())),
        workers=len(workers),
    )


def _files_in(folder: Path) -> int:
    return sum(1 for entry in folder.iterdir() if entry.is_file()) if folder.is_dir() else 0


# ---- The kinds of cells; each returns how it ended ----


def _kind_of(outcome: Outcome) -> str:
    code = getattr(outcome, "code", "")
    return f"{outcome.kind} {code}".strip()


async def plain(pool: Pool) -> str:
    return _kind_of(await run(pool, Start("text('hello'); return [1, 2, 3].map((n) => n * 2)")))


async def typed(pool: Pool) -> str:
    source = "enum Level { Low, High }\nconst level: Level = Level.High; return level as number"
    return _kind_of(await run(pool, Start(source, language="typescript")))


async def throwing(pool: Pool) -> str:
    return _kind_of(await run(pool, Start("console.log('so far'); null.property")))


async def mistyped(pool: Pool) -> str:
    return _kind_of(await run(pool, Start("const a = ;")))


async def importing(pool: Pool) -> str:
    return _kind_of(await run(pool, Start("const fs = require('fs')")))


async def nesting(pool: Pool) -> str:
    source = "const got = await Promise.all([1, 2, 3].map((n) => tools.call('t', {n}))); return got"
    return _kind_of(await run(pool, Start(source)))


async def endless(pool: Pool) -> str:
    return _kind_of(await run(pool, Start("text('begun'); for (;;);"), seconds=0.03))


async def greedy(pool: Pool) -> str:
    source = "const all = []; for (;;) all.push('x'.repeat(65536) + all.length)"
    return _kind_of(await run(pool, Start(source, limits=Limits(memory_bytes=16 << 20))))


async def chatty(pool: Pool) -> str:
    return _kind_of(await run(pool, Start("for (;;) text('x'.repeat(1000))")))


async def crashing(pool: Pool) -> str:
    """A worker dies in the middle of the cell."""
    del pool  # a pool of its own: the others' cells must not be lost with it
    async with Pool(size=1, lockdown="off") as own:
        cell = own.cell()
        ended: list[str] = []

        async def step() -> None:
            try:
                await own.step(cell, Start("for (;;);"), time.monotonic() + SECONDS)
            except SandboxError as error:
                ended.append(f"raised {error.code}")

        async with anyio.create_task_group() as tasks:
            await own.step(own.cell(), Start("return 1"), time.monotonic() + SECONDS)
            tasks.start_soon(step)
            await anyio.sleep(0.02)
            next(iter(own._workers.tenants)).kill()
    return ended[0]


async def aborted(pool: Pool) -> str:
    cell = pool.cell()
    ended: list[str] = []

    async def step() -> None:
        try:
            outcome = await pool.step(cell, Start("for (;;);"), time.monotonic() + SECONDS)
            ended.append(_kind_of(outcome))
        except SandboxError as error:
            ended.append(f"raised {error.code}")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(step)
        await anyio.sleep(0.005)
        await pool.abort(cell)
    return ended[0]


async def frozen(pool: Pool) -> str:
    source = (
        "const kept = {n: 41}; setTimeout(() => kept.n++, 1); await tools.call('t'); return kept"
    )
    cell, deadline = pool.cell(), time.monotonic() + SECONDS
    outcome = await pool.step(cell, Start(source), deadline)
    assert isinstance(outcome, Suspension), outcome
    stored = await pool.freeze(cell)
    pool.drop(cell)
    return _kind_of(await finish(pool, pool.cell(stored), outcome, deadline))


async def forgotten(pool: Pool) -> str:
    """Suspended, and dropped without an end."""
    cell = pool.cell()
    outcome = await pool.step(cell, Start("await tools.call('t')"), time.monotonic() + SECONDS)
    pool.drop(cell)
    return _kind_of(outcome)


# ---- Through the library ----


@tool
async def double(number: int) -> int:
    """Double a number."""
    await anyio.lowlevel.checkpoint()
    return number * 2


@tool
async def late(number: int) -> int:
    """Answer when the program has long been parked."""
    await anyio.sleep(0.2)
    return number


@tool
async def failing() -> None:
    """Fail."""
    raise RuntimeError("no")


_library: dict[Pool, list[CodeMode]] = {}
"""One in memory and one on disk, opened by `Soak.run` for its pool."""


async def _through(pool: Pool, source: str) -> str:
    code_mode = random.choice(_library[pool])
    result = await code_mode.exec(source)
    while result.status == "waiting":
        result = await code_mode.wait(result.run_id)
    return f"failed {result.code}" if result.status == "failed" else "done"


async def calling(pool: Pool) -> str:
    source = "return Promise.all([1, 2, 3].map((number) => tools.double({ number })))"
    return await _through(pool, source)


async def refused(pool: Pool) -> str:
    return await _through(pool, "await tools.double({ number: 'x' })")


async def failed_call(pool: Pool) -> str:
    return await _through(pool, "await tools.failing()")


async def searching(pool: Pool) -> str:
    return await _through(pool, "return await tools.search('double a number')")


async def yielding(pool: Pool) -> str:
    return await _through(pool, "await yield_control(); return 1")


async def parked(pool: Pool) -> str:
    """Answered while it is parked."""
    source = "const one = tools.late({ number: 1 }); await yield_control(); return await one"
    return await _through(pool, source)


async def abandoned(pool: Pool) -> str:
    """Parked with a call under way, and aborted."""
    code_mode = random.choice(_library[pool])
    result = await code_mode.exec("tools.late({ number: 1 }); await yield_control()")
    await code_mode.abort(result.run_id)
    return result.status


Kind = Callable[[Pool], Awaitable[str]]

KINDS: dict[Kind, tuple[float, set[str]]] = {
    plain: (36, {"done"}),
    typed: (20, {"done"}),
    throwing: (8, {"failed internal_error"}),
    mistyped: (5, {"failed invalid_input"}),
    importing: (4, {"failed module_access_denied"}),
    nesting: (10, {"done"}),
    frozen: (8, {"done"}),
    forgotten: (3, {"suspended"}),
    endless: (2, {"failed timeout", "raised timeout"}),
    aborted: (2, {"failed aborted", "raised aborted"}),
    greedy: (1, {"failed memory_limit_exceeded"}),
    chatty: (1, {"failed output_limit_exceeded"}),
    crashing: (0.05, {"raised runtime_unavailable"}),
    calling: (30, {"done"}),
    refused: (3, {"failed nested_tool_failed"}),
    failed_call: (3, {"failed nested_tool_failed"}),
    searching: (4, {"done"}),
    yielding: (10, {"done"}),
    parked: (5, {"done"}),
    abandoned: (3, {"waiting"}),
}
"""How often, compared with the others, and how such a cell may end."""


# ---- The run ----


class Soak:
    """The cells, and what was seen of them."""

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self.begun = 0
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.samples: list[Figures] = []
        self.most_workers = 0
        self._random = random.Random(1)

    async def run(self, advance: Callable[[], None]) -> None:
        """Runs them all, a few at a time."""
        tools = [double, late, failing]
        stores = MemoryStore(), SqliteStore(tempfile.mkdtemp())
        async with Pool() as pool, AsyncExitStack() as opened:
            _library[pool] = [
                await opened.enter_async_context(CodeMode(tools=tools, pool=pool, store=store))
                for store in stores
            ]
            self.most_workers = pool.max_size + 1  # the crashing cell's own
            async with anyio.create_task_group() as lanes:
                for _ in range(pool.size + 1):
                    lanes.start_soon(self._lane, pool, advance)
            assert not any(one._calls.groups for one in _library.pop(pool)), "calls were left over"

    async def _lane(self, pool: Pool, advance: Callable[[], None]) -> None:
        while self.begun < self.cells:
            self.begun += 1
            if self.begun % SAMPLE_EVERY == 0:
                self.samples.append(await anyio.to_thread.run_sync(take_figures))
            weights = [weight for weight, _ in KINDS.values()]
            (kind,) = self._random.choices(list(KINDS), weights)
            try:
                end = await kind(pool)
            except SandboxError as error:
                end = f"raised {error.code}"
            self.ended[f"{kind.__name__}: {end}"] += 1
            if end not in KINDS[kind][1]:
                self.wrong.append(f"{kind.__name__}: {end}")
            advance()

    def growth(self) -> Iterator[tuple[str, float, float, float]]:
        """Each figure: name, lowest in the second and in the last quarter, allowance."""
        quarter = max(len(self.samples) // 4, 1)
        early, late = self.samples[quarter : 2 * quarter], self.samples[-quarter:]
        for field in fields(Figures):
            before = min(getattr(sample, field.name) for sample in early)
            after = min(getattr(sample, field.name) for sample in late)
            yield field.name, before, after, getattr(ALLOWED, field.name)


@contextmanager
def shown_progress(cells: int, what: str = "cells") -> Iterator[Callable[[], None]]:
    """A bar on a terminal, otherwise a line now and then; on standard error."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    begun = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=cells)
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            progress.advance(task)
            if not console.is_terminal and done % (cells // 10 or 1) == 0:
                console.print(f"{done} {what}, {time.monotonic() - begun:.0f} s", highlight=False)

        yield advance


def shown(name: str, value: float) -> str:
    return f"{value / MB:.1f} MB" if name.endswith("rss") else f"{value:g}"


def report(soak: Soak, before: Figures, after: Figures, taken: float) -> bool:
    """Prints what was seen. Whether all of it is well."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    ends = Table("cell: end", "times", title=f"{soak.cells} cells in {taken:.0f} s")
    for end, times in sorted(soak.ended.items()):
        ends.add_row(end, str(times))
    console.print(ends)

    figures = Table("figure", "second quarter", "last quarter", "may grow by", "")
    verdicts = []
    for name, early, late, allowed in soak.growth():
        verdicts.append(late - early <= allowed)
        figures.add_row(
            name, shown(name, early), shown(name, late), shown(name, allowed), word(verdicts[-1])
        )
    most = max(sample.workers for sample in soak.samples)
    verdicts.append(most <= soak.most_workers)
    figures.add_row(
        "workers at most", "", f"{most:g}", f"to {soak.most_workers}", word(verdicts[-1])
    )
    console.print(figures)

    left = Table("left at the end", "before", "after", "")
    for name in ("own_descriptors", "workers", "files"):
        early, late = getattr(before, name), getattr(after, name)
        verdicts.append(late <= early)
        left.add_row(name, f"{early:g}", f"{late:g}", word(verdicts[-1]))
    console.print(left)
    for line, times in Counter(soak.wrong).items():
        console.print(f"[red]wrong end[/] {line} ({times} times)")
    return all(verdicts) and not soak.wrong


def word(ok: bool) -> str:
    return "[green]ok[/]" if ok else "[red]grew[/]"


async def fill_caches() -> None:
    """Runs what compiles, and what is loaded once, so that no file is new later on."""
    async with Pool(size=1) as pool, CodeMode(tools=[double], pool=pool) as code_mode:
        await typed(pool)
        await code_mode.exec("await tools.search('double a number')")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak", description="Runs many cells and looks for what grows."
    )
    parser.add_argument("--cells", type=int, default=CELLS)
    options = parser.parse_args()
    if options.cells < LEAST:
        parser.error(f"--cells must be at least {LEAST}: fewer show no growth.")
    logging.getLogger("clawmode").setLevel(logging.CRITICAL)
    soak = Soak(options.cells)
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder  # others' files are none of ours
        anyio.run(fill_caches)
        before, begun = take_figures(), time.monotonic()
        with shown_progress(options.cells) as advance:
            anyio.run(soak.run, advance)
        taken, after = time.monotonic() - begun, take_figures()
        tempfile.tempdir = None
    well = report(soak, before, after, taken)
    from bench import agent_soak  # takes seconds, and memory that the cells must not be held for

    sys.exit(0 if agent_soak.soak() and well else 1)


if __name__ == "__main__":
    main()
