"""Runs a fleet through kills, stops, cuts and restarts under load, checks it, and measures it.

    python -m bench.fleet [--folder] [--seed N] [--divide N] [--figures]

Nodes are real processes, and the tools take effect in a server outside, which writes a log. At the
end, what happened is compared with what the callers were told. Exit status 1: a program was lost,
or an effect was doubled or kept from its caller.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table
from tests.support.fleet.checker import Verdict
from tests.support.fleet.figures import quantiles, resumes, takeover, wakes
from tests.support.fleet.harness import Fleet, opened
from tests.support.fleet.schedule import FOLDER, POSTGRES, Plan

from postgres_server import PostgresServer

console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)

BLAMED = (
    *("lost", "doubled", "spurious", "contradicted", "ended twice"),
    *("unreported", "denied", "invented"),
)
"""What must not be; the checker says what each of them means."""

SAMPLES = 200
TAKEOVERS = 5


async def measure(plan: Plan, folder: Path, postgres: PostgresServer | None) -> None:
    """Prints what a fleet takes that nobody disturbs, and how long takeovers take."""
    table = Table("figure", "p50", "p99", "goal", title="figures of a fleet")

    def add(name: str, taken: list[float], goal: str) -> None:
        half, most = quantiles(taken)
        table.add_row(name, f"{half:,.1f} ms", f"{most:,.1f} ms", goal)

    async with opened(plan, folder, postgres, proxies=False) as fleet:
        await resumes(fleet, 10)  # what is loaded once
        add("resume on another node", await resumes(fleet, SAMPLES), "7 / 25 ms")
        add(
            "wake-up by an answer elsewhere, and resume",
            await wakes(fleet, SAMPLES),
            "(5 / 15) + resume",
        )
        taken = [await takeover(fleet, "kill", f"killed{n}") for n in range(TAKEOVERS)]
        add("takeover after kill -9", taken, "4 s")
    if postgres is not None:
        async with opened(plan, folder, postgres) as fleet:
            taken = [await takeover(fleet, "hole", f"cut{n}") for n in range(TAKEOVERS)]
            add("takeover after a partition", taken, "13 s")
    console.print(table)


async def torment(
    plan: Plan, folder: Path, postgres: PostgresServer | None
) -> tuple[Fleet, Verdict]:
    """Runs the plan."""
    async with opened(plan, folder, postgres) as fleet:
        verdict = await fleet.run(console.print)
    return fleet, verdict


def report(fleet: Fleet, verdict: Verdict, seconds: float) -> None:
    """Prints what happened."""
    lives = sum(node.lives for node in fleet.nodes)
    table = Table("", "times", title=f"seed {fleet.plan.seed}, {seconds:.0f} s, {lives} nodes")
    for name in BLAMED:
        table.add_row(name, f"{verdict.counts[name]:,}")
    table.add_section()
    for name, count in sorted(verdict.counts.items()):
        if name not in BLAMED:
            table.add_row(name, f"{count:,}")
    table.add_section()
    for kind, count in sorted(fleet.faults.items()):
        table.add_row(f"fault: {kind}", f"{count:,}")
    console.print(table)
    failures = Counter(
        f"{telling.result['code']}: {telling.result['error']}"
        for telling in fleet.tellings
        if telling.end == "failed"
    )
    for failure, count in failures.most_common(10):
        console.print(f"{count} programs failed: {failure}")
    for problem in verdict.problems[:20]:
        console.print(problem, style="red", markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fleet", description="Torments a fleet of nodes, and measures it."
    )
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--divide", type=int, default=1, help="run a part only: 10 for a tenth")
    parser.add_argument("--folder", action="store_true", help="share a folder, not PostgreSQL")
    parser.add_argument("--figures", action="store_true", help="only measure")
    options = parser.parse_args()
    plan = replace(FOLDER if options.folder else POSTGRES, seed=options.seed)
    plan = plan.divided(options.divide)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres = None
        if not options.folder:
            data = stack.enter_context(tempfile.TemporaryDirectory())
            postgres = stack.enter_context(PostgresServer(data))
        if options.figures:
            anyio.run(measure, replace(plan, lease=0.0, clocks=False), folder, postgres)
            return
        console.print(f"seed {plan.seed}: repeat the faults with --seed {plan.seed}")
        began = time.monotonic()
        fleet, verdict = anyio.run(torment, plan, folder, postgres)
        report(fleet, verdict, time.monotonic() - began)
    sys.exit(1 if verdict.problems else 0)


if __name__ == "__main__":
    main()
