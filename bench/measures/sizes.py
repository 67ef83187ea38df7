"""What grows: catalogs, programs with much memory, large values."""

import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

from bench.measuring import Measure, Round, Row, Taken, expect, timed
from clawmode import CodeMode, CodeModeConfig, Tool, tool
from clawmode.catalog.catalog import Catalog
from clawmode.types import JsonObject

CALLS = 20
PATIENT = CodeModeConfig(timeout_ms=60_000)
KINDS = ("read", "write", "list", "delete", "search")


class Clock:
    """A tool that notes when it is called: what lies between is the cost of a call."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.tool = tool(self.tick)

    async def tick(self) -> int:
        """Count a call."""
        self.times.append(time.perf_counter())
        return len(self.times)

    def take(self) -> list[float]:
        """Milliseconds from one call of a program to the next. Starts anew."""
        times = self.times[:]
        self.times.clear()
        assert len(times) == CALLS, times
        return [(later - earlier) * 1000 for earlier, later in pairwise(times)]


def numbered(count: int) -> list[Tool]:
    schema: JsonObject = {"type": "object", "properties": {"path": {"type": "string"}}}
    return [
        Tool(
            f"{KINDS[number % 5]}_thing_{number}",
            f"{KINDS[number % 5].title()} the things of kind {number // 5} in a place.",
            schema,
            lambda given, context: None,
        )
        for number in range(count)
    ]


TEN = "10 tools: a nested call"
HELD = """const held = new Uint8Array(MEGABYTES << 20), block = new Uint8Array(1 << 16);
for (let i = 0, x = 1; i < block.length; i++) block[i] = x = (x * 75 + 74) % 65537;
for (let i = 0; i < held.length; i += block.length) held.set(block, i);"""
CALLING = f"""let count = 0;
for (let i = 0; i < {CALLS}; i++) count = await tools.tick({{}});
return [count, held.length];"""


def calling(name: str, *, tools: int, megabytes: int = 0) -> Measure:
    """A program that holds some memory makes calls, and another one only reads the catalog."""
    limited = tools == 10_000 or megabytes == 20
    called = Row(f"{name}: a nested call", goal=1.5 if limited else None, of=TEN if limited else "")
    read = Row(f"{name}: `ALL_TOOLS[0]`, warm")
    slowest = Row(f"{name}: the slowest of {CALLS} calls")
    rows = (called, slowest) if megabytes else (called, read)
    held = HELD.replace("MEGABYTES", str(megabytes)) if megabytes else "const held = [];"
    source = held + CALLING

    @asynccontextmanager
    async def open_tools(seconds: float) -> AsyncIterator[Round]:
        clock = Clock()
        made = [clock.tool, *numbered(tools - 1)]
        first = min(each.id for each in made)
        async with CodeMode(tools=made, config=PATIENT) as code_mode:

            async def one_round() -> Taken:
                programs: list[list[float]] = []
                until = time.perf_counter() + seconds
                while not programs or time.perf_counter() < until:
                    await expect(code_mode, source, [CALLS, megabytes << 20])
                    programs.append(clock.take())
                samples = {
                    called.title: list(map(statistics.mean, programs)),
                    slowest.title: list(map(max, programs)),
                }
                if read in rows:
                    look = "return ALL_TOOLS[0].id"
                    samples[read.title] = await timed(
                        lambda: expect(code_mode, look, first), seconds / 3
                    )
                return Taken(samples, len(programs))

            await expect(code_mode, source, [CALLS, megabytes << 20])
            clock.take()
            yield one_round

    return Measure(name, rows, open_tools)


# ---- Large values ----

RECORDS: list[JsonObject] = [
    {"id": number, "name": f"item {number}", "ok": number % 7 == 0} for number in range(24_000)
]
FILTERED = "return (await tools.read_records({})).filter((each) => each.ok).length"
MEGABYTE = 1_000_000  # with its quotes less than the 1 MiB that arguments may have
SENT = f"return await tools.measure_text({{text: 'x'.repeat({MEGABYTE})}})"


@tool
async def read_records() -> list[JsonObject]:
    """Read all records."""
    return RECORDS


@tool
async def measure_text(text: str) -> int:
    """Count the characters of a text."""
    return len(text)


def values(title: str, source: str, value: int) -> Measure:
    row = Row(title)

    @asynccontextmanager
    async def open_values(seconds: float) -> AsyncIterator[Round]:
        config = CodeModeConfig(timeout_ms=60_000, max_output_bytes=4 << 20)
        async with CodeMode(tools=[read_records, measure_text], config=config) as code_mode:

            async def one_round() -> Taken:
                taken = await timed(lambda: expect(code_mode, source, value), seconds)
                return Taken({title: taken}, len(taken))

            await one_round()
            yield one_round

    return Measure(title, (row,), open_values)


# ---- The catalog itself ----


def catalog() -> Measure:
    built = Row("10,000 tools: catalog and index", "s", 0.3)
    found = Row("10,000 tools: search", goal=1)

    @asynccontextmanager
    async def open_catalog(seconds: float) -> AsyncIterator[Round]:
        many = numbered(10_000)

        async def one_round() -> Taken:
            begun = time.perf_counter()
            made = Catalog(many)
            made.search("delete things of kind 7", 8)
            ready = time.perf_counter() - begun
            searches: list[float] = []
            until = time.perf_counter() + seconds / 3
            while not searches or time.perf_counter() < until:
                kind = len(searches) % 2000
                begun = time.perf_counter()
                hits = made.search(f"delete things of kind {kind}", 8)
                searches.append((time.perf_counter() - begun) * 1000)
                assert f"delete_thing_{5 * kind + 3}" in {hit["name"] for hit in hits}, hits
            return Taken({built.title: [ready], found.title: searches}, 1)

        await one_round()
        yield one_round

    return Measure("catalog", (built, found), open_catalog, "catalog")


MEASURES: list[Measure] = [
    *(calling(f"{count:,} tools", tools=count) for count in (10, 100, 1000, 10_000)),
    *(calling(f"a program that holds {size} MB", tools=10, megabytes=size) for size in (1, 20, 50)),
    values("1 MB of result in, filtered", FILTERED, sum(bool(each["ok"]) for each in RECORDS)),
    values("1 MB of argument out", SENT, MEGABYTE),
    catalog(),
]
