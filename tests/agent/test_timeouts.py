"""How long a model may be silent: one test for each row of the page."""

import pytest

from clawmode.agent.requests import AgentRequest
from clawmode.agent.run import idle_limit, time_limit
from clawmode.config.agents import AgentOptions
from clawmode.models.base import ModelLimits

CLOUD, LOCAL = ModelLimits(), ModelLimits(local=True)
DEFAULT = AgentOptions()
TURN, CRON = AgentRequest(), AgentRequest(trigger="cron")


def limited(seconds: int) -> AgentOptions:
    return AgentOptions(timeout_seconds=seconds)


def cron(seconds: float) -> AgentRequest:
    return AgentRequest(trigger="cron", cron_seconds=seconds)


@pytest.mark.covers("AL-77")
@pytest.mark.parametrize("request_", [TURN, CRON])
def test_a_providers_time_is_the_window_unless_the_run_has_less(request_: AgentRequest) -> None:
    slow = ModelLimits(local=True, timeout_seconds=600)
    assert idle_limit(slow, DEFAULT, request_) == 600
    assert idle_limit(slow, limited(30), request_) == 30


@pytest.mark.covers("AL-78")
@pytest.mark.parametrize("limits", [CLOUD, LOCAL])
def test_without_it_the_window_is_the_agents_time_up_to_two_minutes(limits: ModelLimits) -> None:
    assert idle_limit(limits, DEFAULT, TURN) == 120
    assert idle_limit(limits, limited(45), TURN) == 45
    assert idle_limit(limits, limited(4000), TURN) == 120


@pytest.mark.covers("AL-79")
def test_a_cron_run_far_away_without_a_time_has_the_usual_window() -> None:
    assert idle_limit(CLOUD, DEFAULT, CRON) == 120


@pytest.mark.covers("AL-80")
@pytest.mark.parametrize(("seconds", "window"), [(20, 20), (300, 60)])
def test_a_cron_run_far_away_with_a_time_has_a_minute_at_most(seconds: int, window: int) -> None:
    assert idle_limit(CLOUD, DEFAULT, cron(seconds)) == window


@pytest.mark.covers("AL-81")
def test_a_cron_run_nearby_has_no_window_unless_a_time_is_set() -> None:
    assert idle_limit(LOCAL, DEFAULT, CRON) == time_limit(DEFAULT, CRON) == 172_800
    assert idle_limit(LOCAL, limited(90), CRON) == 90
    assert idle_limit(LOCAL, limited(172_800), CRON) == 120


@pytest.mark.covers("AL-82")
def test_a_cron_runs_time_is_the_window_of_a_model_nearby() -> None:
    assert idle_limit(LOCAL, DEFAULT, cron(900)) == 900


def test_a_request_can_shorten_the_time_of_its_agent_and_not_extend_it() -> None:
    short, long = AgentRequest(timeout_seconds=0.5), AgentRequest(timeout_seconds=100)
    assert [time_limit(limited(60), it) for it in (TURN, short, long)] == [60, 0.5, 60]
    assert idle_limit(LOCAL, DEFAULT, AgentRequest(trigger="cron", timeout_seconds=500)) == 120
