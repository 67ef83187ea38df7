"""Measures speed and memory, as one table and as JSON.

    python -m bench [--quick] [--rounds N] [--only WORDS] [--against TREE] [--record] [--json]

Every result is checked; a wrong one, or work that fails, is the only reason for exit status 1. A
goal that is missed is none, because a busy machine misses goals. `--against` runs the same work
with the sources of another tree, in rounds that alternate, and tells the two apart even on a busy
machine. Without it, rows are compared with the last record, `bench/results/speed.json`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.floor import Floor
from bench.judging import judge, read_record, write_record
from bench.measures import MEASURES
from bench.measuring import Measure
from bench.runner import BUSY, ROOT, Outcome, run
from bench.table import table_of

RESULTS = ROOT / "bench" / "results"
RECORD = RESULTS / "speed.json"
LATEST = RESULTS / "latest.json"

FULL = (9, 1.2)
QUICK = (6, 0.25)
"""Rounds, and seconds of each."""


def chosen(words: Sequence[str]) -> list[Measure]:
    """The measurements whose name, or the title of a row, contains one of some words."""

    def fits(measure: Measure, word: str) -> bool:
        names = (measure.name, *(row.title for row in measure.rows))
        return any(word.lower() in name.lower() for name in names)

    missing = [word for word in words if not any(fits(each, word) for each in MEASURES.values())]
    if missing:
        names = "\n  ".join(MEASURES)
        sys.exit(f"no row contains {missing[0]!r}; the measurements are:\n  {names}")
    wanted = [
        measure
        for measure in MEASURES.values()
        if not words or any(fits(measure, word) for word in words)
    ]
    bases = {row.of for measure in wanted for row in measure.rows}
    return [
        measure
        for measure in MEASURES.values()
        if measure in wanted or any(row.title in bases for row in measure.rows)
    ]


def checked(tree: Path) -> Path:
    """The folder of another tree, if it can be measured."""
    tree = tree.resolve()
    guest = tree / "src" / "clawmode" / "sandbox" / "guest"
    if not guest.is_dir():
        sys.exit(f"--against: {tree} has no src/clawmode; name the root of a checkout")
    if not (guest / "vendor" / "quickjs.wasm").is_file():
        sys.exit(f"--against: {tree} lacks its guest files; run `make setup` there")
    return tree


@contextmanager
def shown_progress(
    measures: Sequence[Measure], rounds: int, *, quiet: bool
) -> Iterator[Callable[[str], None]]:
    """Shows on standard error what is being measured. Called with nothing after each round."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True, quiet=quiet)
    total = sum(min(rounds, measure.rounds) for measure in measures)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("floor", total=total)

        def show(text: str) -> None:
            if not text:
                progress.advance(task)
                return
            progress.update(task, description=text)
            if not console.is_terminal:
                console.print(f"measuring: {text}", highlight=False)

        yield show


def machine(floor_ms: float, wait: float, load: float) -> dict[str, Any]:
    """Where and of what the figures are."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=7"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "load": round(load, 1),
        "floor_ms": round(floor_ms, 3),
        "wait": round(wait, 2),
    }


def measure_all(
    measures: Sequence[Measure], trees: Sequence[Path], options: argparse.Namespace
) -> list[Outcome]:
    """Runs the measurements, one after the other."""
    rounds, seconds = QUICK if options.quick else FULL
    rounds = options.rounds or rounds
    with shown_progress(measures, rounds, quiet=options.json) as show:
        floor = Floor()
        floor.sample(50)
        outcomes: list[Outcome] = []
        for measure in measures:
            show(measure.name)
            outcome = run(
                measure, trees, floor, rounds=rounds, seconds=seconds, show=lambda: show("")
            )
            outcomes.append(outcome)
    return outcomes


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measures speed and memory."
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--rounds", type=int, help=f"rounds of each row (default: {FULL[0]})")
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORDS", help="rows with these words"
    )
    parser.add_argument(
        "--against", type=Path, metavar="TREE", help="alternate with the sources of another tree"
    )
    parser.add_argument("--record", action="store_true", help="record the rows in the repository")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    options = parser.parse_args()
    if options.record and (options.against or options.quick):
        parser.error("--record wants full rounds of this tree alone")
    return options


def main() -> None:
    options = parsed()
    measures = chosen(options.only)
    trees = [ROOT, *([checked(options.against)] if options.against else [])]
    load = os.getloadavg()[0]
    outcomes = measure_all(measures, trees, options)
    floors = [floor for outcome in outcomes for floor in outcome.floors]
    waits = [wait for outcome in outcomes for wait in outcome.waits]
    place = machine(statistics.median(floors or [0]), statistics.median(waits or [0]), load)
    record = read_record(RECORD)
    rows = judge(outcomes, record)
    report: dict[str, Any] = {**place, "rows": [asdict(row) for row in rows]}
    if options.against:
        report["against"] = str(trees[1])
    text = json.dumps(report, indent=1, ensure_ascii=False)
    RESULTS.mkdir(exist_ok=True)
    LATEST.write_text(text + "\n", encoding="utf-8")
    if options.record:
        write_record(RECORD, rows, place)
    if options.json:
        print(text)
    else:
        console = Console(width=None if sys.stdout.isatty() else 170)
        compared = "before" if options.against else "record" if record else ""
        title = "{commit}, {cores} cores, load {load} before, floor {floor_ms} ms".format(**place)
        if place["wait"] > BUSY:
            title += f"; BUSY: work waits, the floor took {place['wait']} times its processor time"
        if options.against:
            title += f"; before: {trees[1]}"
        console.print(table_of(rows, title=title, compared=compared))
        for row in rows:
            if row.failure:
                console.print(f"{row.work}: {row.failure}", style="bold red", markup=False)
        console.print(f"All figures: {LATEST}", highlight=False)
    sys.exit(any(outcome.failure for outcome in outcomes))


if __name__ == "__main__":
    main()
