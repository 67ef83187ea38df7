"""Jobs that real runs are made of: a scripted model, the real runtime, the machine's clock."""

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.agent_driver import Agent, configured, opened
from tests.support.cron_driver import a_job
from tests.support.waiting import within

from clawmode import tool
from clawmode.agent.run import idle_limit
from clawmode.cron.job import Job, configured_jobs
from clawmode.cron.jobs import Jobs
from clawmode.cron.scheduler import Scheduler
from clawmode.cron.turns import request_for
from clawmode.models.base import ModelLimits
from clawmode.testing import ScriptedModel, Turn, call, pause
from clawmode.tools.tool import Tool

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def scheduled(
    state: Path, model: ScriptedModel, *jobs: Job, tools: tuple[Tool, ...] = (), **options: Any
) -> AsyncIterator[tuple[Agent, Jobs, Scheduler]]:
    async with opened(state, model, tools=tools) as agent:
        with closing(Jobs(state)) as kept:
            for job in jobs:
                await kept.add(job)
            with anyio.fail_after(15):
                yield agent, kept, Scheduler(kept, agent.runtime, **options)


async def give_time(jobs: Jobs, job_id: str) -> None:
    """Lets the next runs of a job take as long as a busy machine needs."""
    kept = replace((await jobs.get(job_id)).job, timeout_seconds=60)
    with jobs._transaction() as database:
        given = (json.dumps(kept.to_json()), job_id)
        database.execute("update jobs set data = ? where id = ?", given)


@pytest.fixture
def stuck() -> Iterator[tuple[Tool, threading.Event]]:
    """A tool in a thread, which nobody can stop."""
    free = threading.Event()

    @tool(effect="read")
    def hang() -> str:
        """Take as long as it takes."""
        free.wait(15)
        return "done"

    yield hang, free
    free.set()


async def test_jobs_run_by_themselves_each_time_in_a_session_of_its_own(tmp_path: Path) -> None:
    section = configured(
        cron={"jobs": [{"id": "Greet", "every": "1s", "message": "Say hello."}]}
    ).cron
    model = ScriptedModel(lambda request: Turn(f"Hello {request.number}."))
    done: list[Any] = []
    two = anyio.Event()

    def take(event: Any) -> None:
        if event["phase"] == "finished":
            done.append(event)
        if len(done) == 2:
            two.set()

    async with opened(tmp_path, model) as agent:
        with closing(Jobs(tmp_path, configured_jobs(section))) as jobs:
            scheduler = Scheduler(jobs, agent.runtime, on_event=take)
            with anyio.fail_after(15):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(scheduler.serve)
                    await two.wait()
                    tasks.cancel_scope.cancel()
            runs = (await jobs.get("greet")).runs
    keys = [event["sessionKey"] for event in done[:2]]
    assert len(set(keys)) == 2
    assert all(key.startswith("agent:main:cron:greet:run:") for key in keys)
    assert [event["status"] for event in done[:2]] == ["ok", "ok"]
    assert runs[-1].session_key == keys[0]
    assert len(model.requests[1].messages) == 1  # it knows nothing of the first


@pytest.mark.covers("AL-63", "AL-64")
async def test_a_model_that_hangs_is_given_up_and_the_next_run_works(tmp_path: Path) -> None:
    model = ScriptedModel([Turn(pause(60)), Turn("Here I am.")])
    job = a_job(timeout_seconds=0.3)
    async with scheduled(tmp_path, model, job, cleanup_seconds=5) as (agent, jobs, scheduler):
        first = await scheduler.run_now("tea")
        (known,) = agent.runtime.runs()
        assert known.state == "aborted"
        await give_time(jobs, "tea")
        with within(0.3):
            second = await scheduler.run_now("tea")
        runs = (await jobs.get("tea")).runs
    assert (first.status, second.status) == ("timeout", "ok")
    assert second.payloads == ({"text": "Here I am."},)
    assert [run.status for run in runs] == ["ok", "timeout"]
    assert runs[1].error == "the turn exceeded its time limit of 0.3 s"
    assert 0.2 < (runs[1].ended_at or 0) - runs[1].started_at < 4


@pytest.mark.covers("AL-64")
async def test_a_tool_that_cannot_be_stopped_does_not_hold_up_the_next_run(
    tmp_path: Path, stuck: tuple[Tool, threading.Event]
) -> None:
    hang, free = stuck
    model = ScriptedModel([Turn(call("exec", {"code": "return tools.hang()"})), Turn("Fine.")])
    job = a_job(timeout_seconds=1.5)
    async with scheduled(tmp_path, model, job, tools=(hang,), cleanup_seconds=0.2) as made:
        _, jobs, scheduler = made
        first = await scheduler.run_now("tea")
        assert not free.is_set()
        await give_time(jobs, "tea")
        with within(1.5):
            second = await scheduler.run_now("tea")
        free.set()
        statuses = [run.status for run in (await jobs.get("tea")).runs]
    assert (first.status, second.status) == ("timeout", "ok")
    assert statuses == ["ok", "timeout"]


@pytest.mark.covers("AL-79", "AL-80", "AL-81", "AL-82")
@pytest.mark.parametrize(
    ("local", "seconds", "window"),
    [
        (False, None, 120),
        (False, 300, 60),
        (False, 20, 20),
        (True, None, 172_800),
        (True, 900, 900),
    ],
)
async def test_how_long_a_model_may_be_silent_depends_on_the_job(
    tmp_path: Path, local: bool, seconds: int | None, window: int
) -> None:
    model = ScriptedModel([], limits=ModelLimits(local=local))
    request = request_for(a_job(timeout_seconds=seconds), "0" * 32)
    async with opened(tmp_path, model) as agent:
        session = await agent.runtime.sessions.resolve(request.session_key)
        found = await agent.runtime.resolve(request, session)
    assert idle_limit(model.limits, found.agent, request) == window


async def test_an_agent_that_is_not_there_is_a_failed_run(tmp_path: Path) -> None:
    async with scheduled(tmp_path, ScriptedModel([]), a_job(agent="nobody")) as made:
        _, jobs, scheduler = made
        result = await scheduler.run_now("tea")
        (run,) = (await jobs.get("tea")).runs
    assert (result.status, run.status) == ("error", "error")
    assert "there is no agent" in run.error
