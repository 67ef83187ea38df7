"""Sessions are watched while their runs go on: a clock that is set, real runs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.support.agent_driver import configured, opened
from tests.support.waiting import Gate, until

from clawmode.agent.diagnostics import SessionMonitor
from clawmode.agent.requests import AgentRequest
from clawmode.agent.runtime import AgentRuntime
from clawmode.config.operations import Diagnostics
from clawmode.testing import Turn, call, pause
from clawmode.tools.approvals import Approvals

pytestmark = pytest.mark.anyio

KEY = "agent:main:main"


@dataclass
class Watching:
    """A watch whose clock is set by hand."""

    runtime: AgentRuntime
    now: float = 1_000.0
    told: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = SessionMonitor(
            self.runtime, Diagnostics(), lambda event: self.told.append(dict(event)), self.time
        )
        self.runtime.subscribe(self.watch.take)

    def time(self) -> float:
        return self.now

    def after(self, seconds: float) -> list[str]:
        """What is told when so much time has passed."""
        self.now += seconds
        self.told.clear()
        self.watch.look()
        return [str(event["type"]) for event in self.told]


@pytest.mark.covers("AL-65", "AL-66", "AL-67")
async def test_a_model_that_is_silent_is_slow_and_then_stalled_and_then_aborted(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, [Turn(pause(60), "Late.")]) as agent:
        watching = Watching(agent.runtime)
        run = await agent.runtime.start(AgentRequest(message="go"))
        await until(lambda: run.intake.is_open)
        assert watching.after(60) == []
        assert watching.after(70) == ["session.long_running"]
        assert watching.told[0]["work"] == "model"
        assert watching.after(240) == [
            "session.stalled",
            "session.recovery.requested",
            "session.recovery.completed",
        ]
        assert watching.told[-1]["outcome"] == "aborted"
        with anyio.fail_after(5):
            await run.ended.wait()
        assert run.state == "aborted"
        assert watching.watch.watchdog.sessions() == []


@pytest.mark.covers("AL-72")
async def test_queued_work_goes_on_when_a_stalled_run_is_aborted(tmp_path: Path) -> None:
    gate = Gate()
    script = [Turn(call("slow", id="c1")), "Second."]
    async with opened(
        tmp_path, script, tools=[gate.tool], configuration=configured(tools={})
    ) as agent:
        watching = Watching(agent.runtime)
        first = await agent.runtime.start(AgentRequest(message="one"))
        await gate.entered.wait()
        second = await agent.runtime.start(AgentRequest(message="two"))
        assert watching.after(130) == ["session.stalled"]
        assert watching.told[0]["work"] == "tool"
        assert "session.recovery.completed" in watching.after(240)
        with anyio.fail_after(5):
            result = await agent.runtime.result(second.id)
        assert first.state == "aborted"
        assert result.payloads == ({"text": "Second."},)


async def test_who_waits_for_a_person_is_not_stalled(tmp_path: Path) -> None:
    gate = Gate()
    gate.open.set()
    approvals = Approvals(ask_for=["slow"])
    script = [Turn(call("slow", id="c1")), "Done."]
    async with opened(
        tmp_path,
        script,
        tools=[gate.tool],
        configuration=configured(tools={}),
        approvals=approvals,
    ) as agent:
        watching = Watching(agent.runtime)
        run = await agent.runtime.start(AgentRequest(message="go"))
        await until(approvals.pending)
        assert watching.after(1_000) == ["session.long_running"]
        approvals.resolve(approvals.pending()[0].id, "allow-once")
        result = await agent.runtime.result(run.id)
        assert result.status == "ok"
        assert watching.watch.watchdog.sessions() == []


async def test_a_session_whose_runs_end_is_forgotten(tmp_path: Path) -> None:
    async with opened(tmp_path, ["One.", "Two."]) as agent:
        watching = Watching(agent.runtime)
        await agent.ask()
        await agent.ask()
        assert watching.watch.watchdog.sessions() == []
        assert watching.after(10_000) == []


@pytest.mark.covers("AL-71")
async def test_bookkeeping_that_nobody_will_end_is_released(tmp_path: Path) -> None:
    """An end of which nobody was told: the watch was not there to hear of it."""
    async with opened(tmp_path, ["One.", "Two."]) as agent:
        watching = Watching(agent.runtime)
        await agent.ask()
        start = next(event for event in agent.events if event.data.get("phase") == "start")
        watching.watch.take(start)  # heard late, and its end was missed
        assert watching.after(130) == [
            "session.stuck",
            "session.recovery.requested",
            "session.recovery.completed",
        ]
        assert watching.told[-1]["outcome"] == "released"
        assert watching.watch.watchdog.sessions() == []


async def test_it_looks_by_itself(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    now = 0.0
    async with opened(tmp_path, [Turn(pause(60), "Late.")]) as agent:
        # Not checked: a second is the least in a file.
        settings = Diagnostics.model_construct(stuck_session_warn_ms=40, stuck_session_abort_ms=80)
        watch = SessionMonitor(
            agent.runtime, settings, lambda event: told.append(dict(event)), lambda: now
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.serve)
            await anyio.lowlevel.checkpoint()
            run = await agent.runtime.start(AgentRequest(message="go"))
            await until(lambda: run.intake.is_open)
            now = 0.05
            await until(lambda: told)
            assert [event["type"] for event in told] == ["session.long_running"]
            now = 0.1
            with anyio.fail_after(10):
                await run.ended.wait()
            tasks.cancel_scope.cancel()
        assert run.state == "aborted"
