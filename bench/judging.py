"""What figures are worth: against the goals, the last record, and another tree.

A row is recorded as a ratio to the floor, round by round; rows that are no times, or that clocks
decide, are recorded as measured. The spread of a row is what lies between the quartiles of its
rounds. A row is worse than its record if it is more than 10 % over it and the two spreads do not
touch. If the machine was busy then or now, of times only the processor time is held against it.

Against another tree, rounds are compared in pairs, with an interval of the median that holds the
truth in 95 % of all cases, whatever the noise is like. It takes six rounds to have one.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import comb
from pathlib import Path
from typing import Any

from bench.measuring import FLOOR, Row
from bench.runner import Outcome

MARGIN = 1.10
DOUBT = 0.05
FEWEST = 3
"""Rounds that tell a spread."""


@dataclass(frozen=True)
class Spread:
    """A figure, and the quartiles of the rounds that it comes from."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)


@dataclass(frozen=True)
class Change:
    """How a row compares with an earlier one: 2 is twice the time, the memory, and so on."""

    factor: float
    low: float
    high: float
    worse: bool
    better: bool


@dataclass(frozen=True)
class Judged:
    """A row with all that is known about it.

    Attributes:
        work: The title of the row.
        measured: The figure, of the samples of all rounds.
        rounds: The same by round, in the row's unit.
        recorded: What is recorded: by round, over the floor or as measured; less is better.
        is_relative: Whether `recorded` is a ratio to the floor.
        is_busy: Whether others used the processors meanwhile, so that the time is too long.
        cpu: Milliseconds of processor time for each unit of work.
        cpu_ratio: The same over the floor, by round.
        goal: The goal, in words.
        ok: Whether the goal is met; None without a goal.
        before: The figure of the other tree.
        change: Against the last record, or against the other tree.
        failure: Why there is no figure.
    """

    work: str
    unit: str = ""
    measured: float = 0.0
    rounds: Spread | None = None
    recorded: Spread | None = None
    is_relative: bool = False
    is_busy: bool = False
    cpu: float | None = None
    cpu_ratio: Spread | None = None
    cpu_unit: str = ""
    goal: str = ""
    ok: bool | None = None
    before: float | None = None
    change: Change | None = None
    cpu_change: Change | None = None
    failure: str = ""


def judge(outcomes: Sequence[Outcome], record: Mapping[str, Any]) -> list[Judged]:
    """The rows of the first tree, compared with the second, if there is one, else the record."""
    costs: dict[str, float] = {}
    judged: list[Judged] = []
    for outcome in outcomes:
        if outcome.failure:
            judged.append(Judged(outcome.measure.name, failure=outcome.failure))
            continue
        rows = outcome.measure.rows
        judged += [_judge_row(outcome, row, record, costs) for row in rows]
    return judged


def _judge_row(
    outcome: Outcome, row: Row, record: Mapping[str, Any], costs: dict[str, float]
) -> Judged:
    figures, *others = outcome.figures
    by_round = figures.samples[row.title]
    measured = row.of_all(by_round)
    rounds = list(map(row.of_samples, by_round))
    ratios = [row.cost(each) / floor for each, floor in zip(rounds, outcome.floors, strict=True)]
    recorded = Spread.of(ratios if row.is_relative else list(map(row.cost, rounds)))
    costs[row.title] = row.cost(measured)
    goal, ok = _reach(row, measured, statistics.median(ratios), costs)
    has_cpu = row is outcome.measure.rows[0] and any(figures.cpu)
    cpu = Spread.of(figures.cpu_ms).middle if has_cpu else None
    pairs = zip(figures.cpu_ms, outcome.floors, strict=True)
    cpu_ratio = Spread.of([used / floor for used, floor in pairs]) if has_cpu else None
    is_busy = row.is_time and outcome.is_busy  # sizes do not depend on others
    change = before = cpu_change = None
    if others:
        beside = others[0].samples[row.title]
        before = row.of_all(beside)
        costs_beside = [row.cost(row.of_samples(samples)) for samples in beside]
        change = against_tree(list(map(row.cost, rounds)), costs_beside)
        cpu_change = against_tree(figures.cpu_ms, others[0].cpu_ms) if has_cpu else None
    elif kept := record.get(row.title):
        change = against_record(recorded, kept)
        if change is not None and (
            is_busy or kept["busy"] or (row.is_time and len(rounds) < FEWEST)
        ):
            change = replace(change, worse=False, better=False)
        if cpu_ratio is not None and "cpu" in kept and len(rounds) >= FEWEST:
            cpu_change = against_record(cpu_ratio, kept["cpu"])
    return Judged(
        work=row.title,
        unit=row.unit,
        measured=measured,
        rounds=Spread.of(rounds),
        recorded=recorded,
        is_relative=row.is_relative,
        is_busy=is_busy,
        cpu=cpu,
        cpu_ratio=cpu_ratio,
        cpu_unit=outcome.measure.unit,
        goal=goal,
        ok=ok,
        before=before,
        change=change,
        cpu_change=cpu_change,
    )


def _reach(
    row: Row, measured: float, ratio: float, costs: Mapping[str, float]
) -> tuple[str, bool | None]:
    """The goal in words, and whether it is reached."""
    if row.goal is None:
        return "", None
    if row.unit == "/s":
        return f"≥ {row.goal:g} /s", measured >= row.goal
    if row.of == FLOOR:
        return f"≤ {row.goal:g} x floor", ratio <= row.goal
    if row.of:
        beside = costs.get(row.of)
        reached = None if beside is None else row.cost(measured) <= row.goal * beside
        return f"≤ {row.goal:g} x {row.of.partition(': ')[0]}", reached
    return f"≤ {row.goal:g} {row.unit}", measured <= row.goal


def against_record(now: Spread, kept: Mapping[str, Any]) -> Change | None:
    """How a row compares with its record; None if the record has no figure above 0."""
    if not kept["middle"]:
        return None
    factor = now.middle / kept["middle"]
    return Change(
        factor,
        now.low / kept["middle"],
        now.high / kept["middle"],
        worse=factor > MARGIN and now.low > kept["high"],
        better=factor < 1 / MARGIN and now.high < kept["low"],
    )


def against_tree(now: Sequence[float], other: Sequence[float]) -> Change | None:
    """How rounds compare with those of the other tree beside them."""
    if not all(other) or not all(now):
        return None
    factors = sorted(one / two for one, two in zip(now, other, strict=True))
    count, middle = len(factors), statistics.median(factors)
    # The median lies outside of the k-th lowest and highest as seldom as coins show k heads.
    left_out, chance = 0, 2 * 0.5**count
    is_sure = chance <= DOUBT
    while (chance := chance + 2 * comb(count, left_out + 1) * 0.5**count) <= DOUBT:
        left_out += 1
    low, high = factors[left_out], factors[-1 - left_out]
    worse = is_sure and middle > MARGIN and low > 1
    return Change(middle, low, high, worse=worse, better=is_sure and high < 1)


# ---- The record ----


def read_record(path: Path) -> dict[str, Any]:
    """The rows that were recorded last, by title."""
    return json.loads(path.read_text("utf-8"))["rows"] if path.is_file() else {}


def write_record(path: Path, rows: Sequence[Judged], machine: Mapping[str, Any]) -> None:
    """Records rows; keeps those that were not measured this time."""
    made = {
        row.work: {
            **_short(row.recorded),
            "of": FLOOR if row.is_relative else row.unit,
            "measured": f"{row.measured:.4g} {row.unit}",
            "busy": row.is_busy,
            "commit": machine["commit"],
            **({"cpu": _short(row.cpu_ratio)} if row.cpu_ratio is not None else {}),
        }
        for row in rows
        if row.recorded is not None
    }
    kept = read_record(path) | made
    lines = ",\n".join(
        f"  {json.dumps(work, ensure_ascii=False)}: {json.dumps(row)}" for work, row in kept.items()
    )
    head = json.dumps(machine)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{{"machine": {head},\n "rows": {{\n{lines}\n}}}}\n', "utf-8")


def _short(spread: Spread) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in asdict(spread).items()}
