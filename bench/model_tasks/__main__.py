"""Runs the tasks with a model, and prints what it solved, read, wrote and got wrong.

make eval                                   the oracle: the ideal solution on every surface
make eval MODEL=anthropic/claude-sonnet-5   a real model of your configuration
python -m bench.model_tasks desk            you are the model; in a second terminal:
python -m bench.model_tasks say show
python -m bench.model_tasks say exec - < program.js
python -m bench.model_tasks say answer "355.80 euros"
"""

import argparse
import json
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console
from rich.table import Table

from bench.model_tasks.desk import Desk, say
from bench.model_tasks.players import Player
from bench.model_tasks.runs import SURFACES, Run, open_office, oracle
from bench.model_tasks.tasks import TASKS, Task
from clawmode.agent.models import ModelPool
from clawmode.config.file import load
from clawmode.config.resolve import read
from clawmode.models.base import Model

DEPTHS = (1, 3, 10, 50)
SOCKET = Path(tempfile.gettempdir(), "clawmode-desk.sock")

# ---- The table ----


def row_of(runs: list[Run]) -> dict[str, Any]:
    """Returns the figures of the runs of one depth on one surface, per task."""
    count = len(runs)
    mistakes: Counter[str] = sum((run.figures.mistakes for run in runs), Counter())

    def mean(value: Callable[[Run], float]) -> float:
        return round(sum(map(value, runs)) / count, 2)

    return {
        "surface": runs[0].surface,
        "calls": runs[0].task.depth,
        "tasks": count,
        "solved": sum(run.solved for run in runs),
        "requests": mean(lambda run: run.figures.requests),
        "definitions": mean(lambda run: run.figures.definitions),
        "results": mean(lambda run: run.figures.results),
        "written": mean(lambda run: run.figures.written),
        "sent": mean(lambda run: run.figures.sent),
        "tokens_read": mean(lambda run: run.figures.tokens_read or run.figures.sent / 4),
        "tokens_written": mean(lambda run: run.figures.tokens_written or run.figures.written / 4),
        "seconds": mean(lambda run: run.seconds),
        "mistakes": dict(mistakes),
    }


def rows_of(runs: list[Run]) -> list[dict[str, Any]]:
    """Returns a row for each depth and surface."""
    groups = [
        [run for run in runs if run.task.depth == depth and run.surface == surface]
        for depth in DEPTHS
        for surface in SURFACES
    ]
    return [row_of(group) for group in groups if group]


def print_table(rows: list[dict[str, Any]], console: Console) -> None:
    """Prints the figures per task; the smallest number of sent bytes of a depth is bold."""
    table = Table(title="per task; bytes unless another unit is given")
    for name in ("calls", "surface", "solved", "requests"):
        table.add_column(name, justify="left" if name == "surface" else "right")
    for name in ("definitions", "results", "written", "sent in total"):
        table.add_column(name, justify="right")
    for name in ("tokens read", "tokens written", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("mistakes")
    for row in rows:
        best = min(it["sent"] for it in rows if it["calls"] == row["calls"])
        sent = f"{row['sent']:,.0f}"
        table.add_row(
            str(row["calls"]),
            row["surface"],
            f"{row['solved']} of {row['tasks']}",
            f"{row['requests']:.1f}",
            *(f"{row[key]:,.0f}" for key in ("definitions", "results", "written")),
            f"[bold]{sent}[/]" if row["sent"] == best else sent,
            f"{row['tokens_read']:,.0f}",
            f"{row['tokens_written']:,.0f}",
            f"{row['seconds']:.2f}",
            ", ".join(f"{name} {count}" for name, count in row["mistakes"].items()) or "-",
            end_section=row["surface"] == SURFACES[-1],
        )
    console.print(table)
    for depth in DEPTHS:
        sent = {row["surface"]: row["sent"] for row in rows if row["calls"] == depth}
        if "code mode" in sent and min(sent, key=lambda name: sent[name]) != "code mode":
            name = min(sent, key=lambda name: sent[name])
            console.print(
                f"Code mode loses at {depth} call{'s' * (depth > 1)}: {sent['code mode']:,.0f} "
                f"bytes are sent, {sent[name]:,.0f} on the surface {name}."
            )


# ---- Commands ----


async def evaluate(
    tasks: list[Task], surfaces: list[str], name: str, console: Console
) -> list[Run]:
    """Runs tasks with the oracle, or with a model of the configuration."""
    runs: list[Run] = []
    configuration = read(load().data if name else {}).unwrap()
    async with open_office() as office, ModelPool(configuration) as models:
        for task in tasks:
            for surface in surfaces:
                model: Model = models.find(name) if name else oracle(task, surface)
                run = await office.run(task, surface, model)
                runs.append(run)
                if not run.solved:
                    console.print(f"{task.id} on {surface}: {run.problem or run.answer[:200]!r}")
                elif name:
                    console.print(f"{task.id} on {surface}: solved in {run.seconds:.0f} s")
    return runs


async def sit(tasks: list[Task], surface: str, path: Path, console: Console) -> list[Run]:
    """Runs tasks with whoever sits at the desk."""
    runs: list[Run] = []
    desk = Desk()
    console.print(f"The desk is open at {path}: use `say` in another terminal.")
    async with open_office() as office, desk.listen(path):
        for task in tasks:
            run = await office.run(task, surface, Player("desk", desk.reply))
            await desk.end()
            runs.append(run)
            console.print(f"{task.id}: {'solved' if run.solved else 'NOT solved'}", run.figures)
    return runs


def parse() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.model_tasks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--socket", type=Path, default=SOCKET, help="where the desk listens")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--task", action="append", choices=[*TASKS], help="only this task")
    parser.add_argument("--surface", action="append", choices=SURFACES, help="only this surface")
    parser.add_argument("--model", default="", help="provider/model; without it, the oracle plays")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("desk", help="play the model yourself")
    saying = commands.add_parser("say", help="send a message to the desk")
    saying.add_argument("tool", help="a tool, `answer`, or `show`")
    saying.add_argument("text", nargs="?", default="{}", help="JSON or an answer; - reads stdin")
    return parser.parse_args()


def main() -> int:
    options = parse()
    # The table does not fit into 80 columns, which is what Rich assumes for a file.
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 150)
    if options.command == "say":
        text = sys.stdin.read() if options.text == "-" else options.text
        given = {"code": text} if options.tool == "exec" and options.text == "-" else None
        if options.tool == "answer":
            given = text
        print(say(options.socket, options.tool, json.loads(text) if given is None else given))
        return 0
    logging.disable(logging.ERROR)  # tools fail on purpose
    tasks = [TASKS[name] for name in options.task or TASKS]
    if options.command == "desk":
        surface = (options.surface or ["code mode"])[0]
        runs = anyio.run(sit, tasks, surface, options.socket, console)
    else:
        surfaces = options.surface or [*SURFACES]
        runs = anyio.run(evaluate, tasks, surfaces, options.model, console)
    rows = rows_of(runs)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print_table(rows, console)
    return 0 if all(run.solved for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
