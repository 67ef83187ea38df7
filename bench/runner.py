"""Runs measurements: rounds of one tree or of two, alternating, with samples of the floor between.

A machine that is busy for a while slows neighbouring rounds alike. So a round is compared with the
floor beside it, and with the round of the other tree beside it, never with an average of the run.
The floor is the processor time of its samples: where others compute, they wait longer for a
processor than programs that sleep between steps, and goals would seem to be reached.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.floor import Floor
from bench.measuring import Measure

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 300.0
"""Seconds after which a round is given up."""

FLOOR_RUNS = 15
BUSY = 1.15


class MeasurementFailed(Exception):
    """A measurement failed, or its result was wrong."""


@dataclass
class Figures:
    """What the rounds of one tree measured.

    Attributes:
        samples: The samples of each round, by the title of the row.
        cpu: Seconds of processor time of each round.
        units: Units of work of each round.
    """

    samples: dict[str, list[list[float]]] = field(default_factory=dict)
    cpu: list[float] = field(default_factory=list)
    units: list[int] = field(default_factory=list)

    @property
    def cpu_ms(self) -> list[float]:
        """Milliseconds of processor time for each unit of work, by round."""
        return [1000 * used / units for used, units in zip(self.cpu, self.units, strict=True)]


@dataclass
class Outcome:
    """A measurement with its figures, in the order of the trees.

    Attributes:
        floors: The floor beside each round, in milliseconds of processor time.
        waits: How many times longer its samples took by the clock: 1 on a quiet machine.
        failure: Why there are no figures.
    """

    measure: Measure
    figures: list[Figures]
    floors: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def is_busy(self) -> bool:
        """Whether others used the processors meanwhile."""
        return bool(self.waits) and statistics.median(self.waits) > BUSY


class Subject:
    """A process that runs the rounds of a measurement."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process = process
        self._log = log

    def ask(self, **message: Any) -> dict[str, Any]:
        """Sends a message and waits for its answer.

        Raises:
            MeasurementFailed: The process reports an error, died, or does not answer.
        """
        timer = threading.Timer(PATIENCE, self._process.kill)
        timer.start()
        try:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        answer = json.loads(line) if line else {"error": self._last_words()}
        if "error" in answer:
            raise MeasurementFailed(answer["error"])
        return answer

    def _last_words(self) -> str:
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        return f"the process ended or was silent for {PATIENCE:g} s: {' '.join(lines[-1:])}"


@contextmanager
def started(tree: Path) -> Iterator[Subject]:
    """A process that imports `clawmode` from a tree, and `bench` from here."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # fresh processes find it, as installed ones
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "bench.subject"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        with process:
            try:
                yield Subject(process, log)
            finally:
                assert process.stdin is not None
                with suppress(BrokenPipeError):  # it has ended, and a message was not read
                    process.stdin.close()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()


def run(
    measure: Measure,
    trees: Sequence[Path],
    floor: Floor,
    *,
    rounds: int,
    seconds: float,
    show: Callable[[], None],
) -> Outcome:
    """Runs one measurement. `show` is called after every round."""
    outcome = Outcome(measure, [Figures() for _ in trees])
    with ExitStack() as stack:
        try:
            subjects = [stack.enter_context(started(tree)) for tree in trees]
            for subject in subjects:
                subject.ask(open=measure.name, seconds=seconds)
            for number in range(min(rounds, measure.rounds)):
                _run_round(outcome, subjects, floor, backwards=bool(number % 2))
                show()
        except MeasurementFailed as failure:
            outcome.failure = str(failure)
    return outcome


def _run_round(
    outcome: Outcome, subjects: Sequence[Subject], floor: Floor, *, backwards: bool
) -> None:
    begun = time.thread_time()
    beside = floor.sample(FLOOR_RUNS)
    pairs = list(zip(subjects, outcome.figures, strict=True))
    for subject, figures in reversed(pairs) if backwards else pairs:
        taken = subject.ask(do="round")
        beside += floor.sample(FLOOR_RUNS)
        for title, samples in taken["samples"].items():
            figures.samples.setdefault(title, []).append(samples)
        figures.cpu.append(taken["cpu"])
        figures.units.append(taken["units"])
    # Between the samples, this thread only reads answers.
    used = (time.thread_time() - begun) / len(beside)
    outcome.floors.append(used * 1000)
    outcome.waits.append(statistics.mean(beside) / used)
