"""Turns of an agent that read fifty files, three ways."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.measuring import Measure, Round, Row, Taken

REQUESTS = {"by a program": 2, "by one call after the other": 51, "by calls at once": 2}


def reading(way: str) -> Measure:
    name = f"a turn that reads 50 files {way}"
    rows = (
        Row(f"{name}: time"),
        Row(f"{name}: requests", "requests", REQUESTS[way]),
        Row(f"{name}: sent", "KB"),
        Row(f"{name}: received", "KB"),
        Row(f"{name}: tokens, estimated", "tokens"),
    )

    @asynccontextmanager
    async def open_agent(seconds: float) -> AsyncIterator[Round]:
        from bench import turns  # takes seconds to import, which other measurements need not wait

        async with turns.agent(way) as turn:

            async def one_round() -> Taken:
                spent = [await turn() for _ in range(max(1, int(seconds * 3)))]
                figures = [
                    [each.ms for each in spent],
                    # All but the time is the same in every turn.
                    *([figure] for figure in (spent[-1].requests, spent[-1].sent / 1024)),
                    *([figure] for figure in (spent[-1].received / 1024, spent[-1].tokens)),
                ]
                titles = [row.title for row in rows]
                return Taken(dict(zip(titles, figures, strict=True)), len(spent))

            yield one_round

    return Measure(name, rows, open_agent, "turn")


MEASURES: list[Measure] = [reading(way) for way in REQUESTS]
