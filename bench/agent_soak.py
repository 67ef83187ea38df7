"""Puts agents through what they have to stand, for long: kills, crowds, aborts.

    python -m bench.agent_soak [--kills N] [--rounds N] [--aborts N]

Agents are killed in the middle of turns and continued; 100 sessions have 5 turns each at once, over
and over, while it is watched what grows; runs are aborted at any moment. What has to hold is in
`tests/agent`. Exit status 1: it did not, or something grew.
"""

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table
from tests.support.agent_program import kill_agents, opened_program
from tests.support.ordeals import Crowd, abort_at_events, abort_at_moments, ordeal

from bench.soak import ALLOWED, Figures, shown, shown_progress, take_figures, word

KILLS, ROUNDS, ABORTS = 200, 12, 300
SESSIONS, TURNS = 100, 5

Advance = Callable[[], None]


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as files:
        tempfile.tempdir = files  # others' files are none of ours
        try:
            yield Path(name)
        finally:
            tempfile.tempdir = None


async def kills(count: int, advance: Advance) -> str:
    with folder() as state:
        async with opened_program() as program:
            return str(await kill_agents(program, state, count, 1, advance))


async def crowds(rounds: int, advance: Advance) -> str:
    samples: list[Figures] = []
    with folder() as state:
        async with Crowd(state, SESSIONS) as crowd:
            for _ in range(rounds):
                await crowd.run(TURNS)
                samples.append(await anyio.to_thread.run_sync(take_figures))
                advance()
    quarter = max(len(samples) // 4, 1)
    early, late = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    table = Table("figure", "second quarter", "last quarter", "")
    grew: list[str] = []
    for name in (field.name for field in fields(Figures)):
        before, after = (min(getattr(it, name) for it in part) for part in (early, late))
        if after - before > getattr(ALLOWED, name):
            grew.append(name)
        table.add_row(name, shown(name, before), shown(name, after), word(name not in grew))
    Console().print(table)
    assert not grew, f"grew: {', '.join(grew)}"
    return f"{rounds} times {SESSIONS} sessions with {TURNS} turns"


async def aborts(count: int, advance: Advance) -> str:
    for code_mode in (True, False):
        with folder() as state:
            async with ordeal(state, code_mode) as found:
                await abort_at_events(found, count // 4)
                await abort_at_moments(found, count // 4)
        for _ in range(count // 2):
            advance()
    return f"{count} aborts"


def soak(kills_: int = KILLS, rounds: int = ROUNDS, aborts_: int = ABORTS) -> bool:
    """All of it. Whether it is well."""
    well = True
    parts: dict[Callable[[int, Advance], Awaitable[str]], int] = {
        kills: kills_,
        crowds: rounds,
        aborts: aborts_,
    }
    for part, count in parts.items():
        if not count:
            continue
        began = time.monotonic()
        try:
            with shown_progress(count, part.__name__) as advance:
                told = anyio.run(part, count, advance)
        except AssertionError as error:
            well, told = False, f"WRONG: {error}"
        print(f"agents: {part.__name__}: {told} ({time.monotonic() - began:.0f} s)")
    return well


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.agent_soak", description="Puts agents through a lot."
    )
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--aborts", type=int, default=ABORTS)
    options = parser.parse_args()
    logging.getLogger("clawmode").setLevel(logging.CRITICAL)
    sys.exit(0 if soak(options.kills, options.rounds, options.aborts) else 1)


if __name__ == "__main__":
    main()
