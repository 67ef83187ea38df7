"""How long a model may be silent: one test for each row of the page."""

import math
from typing import Any

import pytest

from clawmode.agent.resolver import RunClock, idle_window
from clawmode.models.base import ModelLimits

CLOUD, LOCAL = ModelLimits(), ModelLimits(local=True)
DAYS = 172_800.0


def clock(**given: Any) -> RunClock:
    given.setdefault("seconds", DAYS)
    return RunClock(**given)


@pytest.mark.covers("AL-77")
@pytest.mark.parametrize("cron", [False, True])
def test_a_providers_time_is_the_window_unless_the_run_has_less(cron: bool) -> None:
    slow = ModelLimits(local=True, timeout_seconds=600)
    assert idle_window(slow, clock(cron=cron)) == 600
    assert idle_window(slow, clock(cron=cron, seconds=30, is_set=True)) == 30


@pytest.mark.covers("AL-78")
@pytest.mark.parametrize("limits", [CLOUD, LOCAL])
def test_without_it_the_window_is_the_agents_time_up_to_two_minutes(limits: ModelLimits) -> None:
    assert idle_window(limits, clock()) == 120
    assert idle_window(limits, clock(seconds=45, is_set=True)) == 45
    assert idle_window(limits, clock(seconds=4000, is_set=True)) == 120


@pytest.mark.covers("AL-79")
def test_a_cron_run_far_away_without_a_time_has_the_usual_window() -> None:
    assert idle_window(CLOUD, clock(cron=True)) == 120


@pytest.mark.covers("AL-80")
@pytest.mark.parametrize(("seconds", "window"), [(20, 20), (300, 60)])
def test_a_cron_run_far_away_with_a_time_has_a_minute_at_most(seconds: int, window: int) -> None:
    assert idle_window(CLOUD, clock(cron=True, cron_seconds=seconds)) == window


@pytest.mark.covers("AL-81")
def test_a_cron_run_nearby_has_no_window_unless_a_time_is_set() -> None:
    assert idle_window(LOCAL, RunClock(seconds=math.inf, cron=True)) == math.inf
    assert idle_window(LOCAL, clock(cron=True, seconds=90, is_set=True)) == 90


@pytest.mark.covers("AL-82")
def test_a_cron_runs_time_is_the_window_of_a_model_nearby() -> None:
    assert idle_window(LOCAL, clock(cron=True, cron_seconds=900)) == 900
