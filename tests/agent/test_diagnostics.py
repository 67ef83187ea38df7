"""Sessions that take long, by a clock that the test holds."""

import itertools
from typing import Any

import pytest

from clawmode.agent.diagnostics import SessionWatchdog
from clawmode.config.resolve import read

WARN, ABORT = 120.0, 360.0


class Desk:
    """A monitor, and everything around it."""

    def __init__(self, *, running: bool = True) -> None:
        self.now = 1_000.0
        self.said: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.running = running
        self.open = True
        self.monitor = SessionWatchdog(
            warn_seconds=WARN,
            abort_seconds=ABORT,
            clock=lambda: self.now,
            report=lambda event: self.said.append(dict(event)),
            abort=self._abort,
            gate=lambda key: self.open,
        )

    def _abort(self, key: str) -> bool:
        self.aborted.append(key)
        return self.running

    def after(self, seconds: float) -> list[str]:
        self.now += seconds
        before = len(self.said)
        self.monitor.look()
        return [each["type"] for each in self.said[before:]]


@pytest.mark.covers("AL-65")
def test_a_session_is_worth_a_line_after_the_threshold() -> None:
    desk = Desk()
    desk.monitor.begin("s")
    desk.monitor.start_work("s", "run", "run")
    assert desk.after(WARN - 1) == []
    assert desk.after(2) == ["session.stalled"]
    assert desk.said[0]["sessionKey"] == "s"


@pytest.mark.covers("AL-66")
@pytest.mark.parametrize("work", ["run", "model", "tool"])
def test_work_that_shows_is_long_running(work: Any) -> None:
    desk = Desk()
    desk.monitor.begin("s")
    desk.monitor.start_work("s", "x", work)
    for _ in range(3):
        desk.now += 50
        desk.monitor.progress("s")
    assert desk.after(10) == ["session.long_running"]
    assert desk.said[-1]["work"] == work


@pytest.mark.covers("AL-67")
def test_a_silent_model_is_long_running_until_it_would_be_aborted() -> None:
    desk = Desk()
    desk.monitor.begin("s")
    desk.monitor.start_work("s", "m", "model")
    assert desk.after(WARN + 1) == ["session.long_running"]
    assert desk.after(ABORT - WARN - 2) in ([], ["session.long_running"])
    assert desk.aborted == []
    assert "session.stalled" in desk.after(2)


@pytest.mark.covers("AL-68", "AL-72", "AL-73")
def test_a_stalled_run_is_aborted_only_after_the_second_threshold() -> None:
    desk = Desk()
    desk.monitor.begin("s")
    desk.monitor.start_work("s", "t", "tool")
    assert desk.after(WARN) == ["session.stalled"]
    assert desk.aborted == []
    assert desk.after(ABORT - WARN) == [
        "session.stalled",
        "session.recovery.requested",
        "session.recovery.completed",
    ]
    assert (desk.aborted, desk.said[-1]["outcome"]) == (["s"], "aborted")
    assert not desk.monitor.sessions()[0].idle  # its owner ends it


@pytest.mark.covers("AL-72")
def test_the_second_threshold_is_five_minutes_and_three_of_the_first_at_least() -> None:
    def abort_ms(**given: Any) -> int:
        return read({"diagnostics": given}).section.diagnostics.abort_ms()

    assert abort_ms() == 360_000
    assert abort_ms(stuckSessionWarnMs=10_000) == 300_000
    assert abort_ms(stuckSessionWarnMs=200_000) == 600_000
    assert abort_ms(stuckSessionAbortMs=50_000) == 50_000


@pytest.mark.covers("AL-69", "AL-70", "AL-71")
@pytest.mark.parametrize("work", ["model", "tool"])
def test_work_without_an_owner_is_stuck_and_released(work: Any) -> None:
    desk = Desk()
    desk.monitor.begin("s")
    desk.monitor.start_work("s", "x", work)
    desk.monitor.disown("s", "x")
    assert desk.after(WARN + 1) == [
        "session.stuck",
        "session.recovery.requested",
        "session.recovery.completed",
    ]
    assert desk.said[-1]["outcome"] == "released"
    assert desk.monitor.sessions() == []
    assert desk.aborted == []


@pytest.mark.covers("AL-70")
def test_an_idle_session_that_is_waited_for_and_held_by_nobody_is_stuck() -> None:
    desk = Desk()
    generation = desk.monitor.begin("s")
    desk.monitor.start_work("s", "x", "tool")
    desk.monitor.disown("s", "x")
    desk.monitor.end("s", generation)
    desk.monitor.queue("s", 1)
    assert desk.after(WARN + 1)[0] == "session.stuck"
    desk.monitor.queue("s", -1)
    assert desk.monitor.sessions() == []


def test_an_idle_session_is_not_worth_a_line() -> None:
    desk = Desk()
    desk.monitor.end("s", desk.monitor.begin("s"))
    desk.monitor.queue("t", 1)
    assert desk.after(10 * ABORT) == []


@pytest.mark.covers("AL-74")
def test_a_session_is_marked_idle_only_in_its_own_generation() -> None:
    desk = Desk()
    first = desk.monitor.begin("s")
    finding = desk.monitor.classify(desk.monitor.sessions()[0], desk.now + WARN)
    assert finding is not None
    second = desk.monitor.begin("s")
    desk.monitor._recover(desk.monitor.sessions()[0], finding)
    assert desk.said[-1]["outcome"] == "changed"
    desk.monitor.end("s", first)
    assert not desk.monitor.sessions()[0].idle
    desk.monitor.end("s", second)
    assert desk.monitor.sessions() == []


@pytest.mark.covers("AL-75")
def test_what_stays_stuck_is_said_and_tried_less_and_less_often() -> None:
    desk = Desk()
    desk.open = False
    desk.monitor.begin("s")
    when = [desk.now for _ in range(200) if desk.after(WARN / 2)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(when)]
    assert gaps == sorted(gaps)
    assert (gaps[0], gaps[-1]) == (WARN, 32 * WARN)
    assert {each["outcome"] for each in desk.said if "outcome" in each} == {"refused"}
    desk.open = True
    desk.monitor.progress("s")  # news
    assert "session.recovery.completed" in desk.after(WARN)
    assert desk.said[-1]["outcome"] == "released"
