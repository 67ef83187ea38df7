"""What a measurement is: the rows that it fills, and the rounds that it runs.

A measurement runs in a process of its own (`bench/subject.py`), with the sources of one tree. It
opens what it needs, warms it up, and then runs rounds of about the same length, which alternate
with rounds of the other tree and with samples of the floor (`bench/runner.py`).
"""

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from clawmode import CodeMode

FLOOR = "floor"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        title: What was done. The record finds a row by its title.
        unit: `ms`, `s`, `/s` (more is better), or anything that is no time.
        goal: The most that may be measured, in the row's unit; the least if the unit is `/s`.
        of: What the goal is a multiple of: `floor`, the title of another row, or nothing.
        statistic: What is made of the samples of a round.
        paced: True if clocks, not the processor, decide: then the floor says nothing about the row.
    """

    title: str
    unit: str = "ms"
    goal: float | None = None
    of: str = ""
    statistic: Literal["median", "p95", "p99"] = "median"
    paced: bool = False

    def of_samples(self, samples: Sequence[float]) -> float:
        """The figure of the row for these samples."""
        if self.statistic == "median" or len(samples) < 2:
            return statistics.median(samples)
        parts = statistics.quantiles(samples, n=100, method="inclusive")
        return parts[int(self.statistic[1:]) - 1]

    def of_all(self, rounds: Sequence[Sequence[float]]) -> float:
        """The figure of the row for the samples of all rounds."""
        return self.of_samples([sample for samples in rounds for sample in samples])

    def cost(self, figure: float) -> float:
        """The figure as something of which less is better: milliseconds, if it is a time."""
        return {"s": 1000 * figure, "/s": 1000 / figure if figure else 0.0}.get(self.unit, figure)

    @property
    def is_time(self) -> bool:
        """Whether the row is a time, or programs per time."""
        return self.unit in ("ms", "s", "/s")

    @property
    def is_relative(self) -> bool:
        """Whether the row is recorded as a ratio to the floor."""
        return self.is_time and not self.paced


@dataclass(frozen=True)
class Taken:
    """What a round measured.

    Attributes:
        samples: The samples of each row, by its title.
        units: How many units of work the round did.
        cpu: Seconds of processor time; None: all that this process and its children used.
    """

    samples: Mapping[str, Sequence[float]]
    units: int
    cpu: float | None = None


Round: TypeAlias = Callable[[], Awaitable[Taken]]


@dataclass(frozen=True)
class Measure:
    """A measurement.

    Attributes:
        name: What `--only` selects.
        rows: The rows that it fills.
        open: Opens what the rounds need. Gets the seconds that a round should take.
        unit: What the processor time is divided by.
        rounds: The most rounds, for work that takes long.
    """

    name: str
    rows: tuple[Row, ...]
    open: Callable[[float], AbstractAsyncContextManager[Round]]
    unit: str = "program"
    rounds: int = 1000


async def expect(
    code_mode: CodeMode, source: str, value: object, language: str = "javascript"
) -> None:
    """Runs a program and insists on its value: a failure is quick, and no measurement."""
    result = await code_mode.exec(source, language)
    assert result.value == value, result


async def timed(work: Callable[[], Awaitable[object]], seconds: float) -> list[float]:
    """Repeats work for some seconds, at least once: the milliseconds that each took."""
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while not taken or time.perf_counter() < until:
        begun = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - begun) * 1000)
    return taken
