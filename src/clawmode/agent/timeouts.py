"""How long a model may be silent before its request is given up."""

import math
from dataclasses import dataclass

from clawmode.models.base import ModelLimits

IDLE_SECONDS = 120.0
CRON_IDLE_SECONDS = 60.0
"""For a model far away in a cron run with a time of its own: fallbacks must still have a chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunClock:
    """What a run may take.

    Attributes:
        seconds: All together.
        is_set: Whether somebody said so, for the agent or for the run.
        cron: Whether a schedule started it.
        cron_seconds: What the schedule says it may take.
    """

    seconds: float
    is_set: bool = False
    cron: bool = False
    cron_seconds: float | None = None


def idle_window(limits: ModelLimits, clock: RunClock) -> float:
    """Seconds without a chunk after which a request is given up; never more than the run's."""
    return min(_window(limits, clock), clock.seconds)


def _window(limits: ModelLimits, clock: RunClock) -> float:
    if limits.timeout_seconds is not None:
        return limits.timeout_seconds
    if clock.cron_seconds is not None:
        far = min(clock.cron_seconds, CRON_IDLE_SECONDS)
        return clock.cron_seconds if limits.local else far
    if clock.cron and limits.local and not clock.is_set:
        return math.inf
    return min(IDLE_SECONDS, clock.seconds) if clock.is_set else IDLE_SECONDS
