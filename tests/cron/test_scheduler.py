"""Jobs that are run when they are due: with a clock that stands still, and turns by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.cron_driver import NOON, FakeClock, FakeRuntime, Stage, a_job, staged
from tests.support.waiting import until

from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.cron import scheduler as scheduler_module
from clawmode.cron.job import Job
from clawmode.cron.jobs import JobBusy, JobsUnavailable, UnknownJob
from clawmode.cron.ledger import LEASE_SECONDS, MAX_CONTINUED
from clawmode.exceptions import ConfigurationError

pytestmark = pytest.mark.anyio

MINUTES = 60.0


async def due(stage: Stage, seconds: float = 600) -> None:
    await stage.clock.advance(seconds)
    await stage.clock.settle()


# ---- Times ----


async def test_a_job_runs_when_it_is_due_in_a_session_of_its_own(tmp_path: Path) -> None:
    job = a_job(agent="home", model="a/b", thinking="low", channel="web", target="me")
    async with staged(tmp_path, runtime=FakeRuntime(answer="ok")) as stage:
        await stage.jobs.add(job)
        await due(stage, 599)
        assert stage.runtime.requests == []
        await due(stage, 1)
        await due(stage)
        first, second = stage.runtime.requests
        assert first == AgentRequest(
            message="Make tea.",
            agent_id="home",
            session_key=f"cron:tea:run:{first.run_id}",
            run_id=first.run_id,
            model="a/b",
            thinking="low",
            channel="web",
            target="me",
            trigger="cron",
        )
        assert second.session_key != first.session_key
        found = await stage.standing()
        assert [run.status for run in found.runs] == ["ok", "ok"]
        assert found.runs[1].session_key == f"agent:main:of:{first.run_id}"
        assert (found.due, stage.runtime.listeners) == (NOON + 1800, 0)
        at = int((NOON + 600) * 1000)
        assert stage.events[:2] == [
            {"job": "tea", "phase": "started", "at": at, "runId": first.run_id},
            {
                "job": "tea",
                "phase": "finished",
                "at": at,
                "runId": first.run_id,
                "sessionKey": f"agent:main:of:{first.run_id}",
                "status": "ok",
            },
        ]


async def test_what_others_add_is_seen_soon_and_at_once_if_it_is_said(tmp_path: Path) -> None:
    async with staged(tmp_path, runtime=FakeRuntime(answer="ok")) as stage:
        await stage.jobs.add(a_job("soon", every="1s"))
        await due(stage, scheduler_module.POLL_SECONDS)
        seen = len(stage.runtime.requests)
        assert seen >= 1
        await due(stage, 10)
        assert len(stage.runtime.requests) == seen + 10
        await stage.jobs.remove("soon")
        await stage.jobs.add(a_job("other", every="1s"))
        stage.scheduler.wake()
        await due(stage, 1)
        assert stage.runtime.requests[-1].session_key.startswith("cron:other:")


async def test_missed_times_are_one_run_and_a_moment_comes_once(tmp_path: Path) -> None:
    clock = FakeClock()
    async with staged(tmp_path, clock=clock, serves=False) as stage:
        await stage.jobs.add(a_job())
        await stage.jobs.add(a_job("once", at="2027-01-15T09:00"))
    clock.time += 86_410
    runtime = FakeRuntime(answer="ok")
    async with staged(tmp_path, clock=clock, runtime=runtime) as stage:
        await due(stage, 100)
        assert sorted(it.session_key.split(":")[1] for it in runtime.requests) == ["once", "tea"]
        await due(stage, 500)
        assert len(runtime.requests) == 3
        assert (await stage.standing("once")).due is None


async def test_a_job_that_still_runs_is_skipped_and_noted(tmp_path: Path) -> None:
    async with staged(tmp_path, a_job(configured=True)) as stage:
        await due(stage, 2000)
        assert len(stage.runtime.requests) == 1
        assert await stage.statuses() == ["skipped", "running"]
        assert (await stage.runs())[0].times == 2
        assert [it["status"] for it in stage.events if it["phase"] == "finished"] == [
            *("skipped", "skipped")
        ]
        stage.runtime.end()
        await due(stage)
        assert await stage.statuses() == ["running", "skipped", "ok"]


@pytest.mark.parametrize(("limit", "at_once"), [(1, 1), (2, 2), (5, 3)])
async def test_so_many_run_at_the_same_time_and_the_others_wait(
    tmp_path: Path, limit: int, at_once: int
) -> None:
    jobs = [a_job(name, configured=True) for name in ("a", "b", "c")]
    async with staged(tmp_path, *jobs, max_concurrent=limit) as stage:
        await due(stage, 605)
        assert len(stage.runtime.requests) == at_once
        for number in range(3):
            stage.runtime.end(number=number)
            await stage.clock.settle()
        assert len(stage.runtime.requests) == 3
        assert [await stage.statuses(name) for name in "abc"] == [["ok"]] * 3


# ---- How long ----


@pytest.mark.covers("AL-63")
async def test_the_clock_of_a_turn_starts_when_it_begins_and_aborts_it_at_the_deadline(
    tmp_path: Path,
) -> None:
    job = a_job(every="1d", timeout_seconds=30, configured=True)
    async with staged(tmp_path, job) as stage:
        stage.runtime.queues = True
        await stage.clock.jump(86_400)
        (request,) = stage.runtime.requests
        assert (request.cron_seconds, request.timeout_seconds) == (30, None)
        await due(stage, 1000)
        assert stage.runtime.aborted == []  # it waits for its turn
        stage.runtime.begin()
        await due(stage, 29)
        assert stage.runtime.aborted == []
        await due(stage, 1)
        assert stage.runtime.aborted == [request.run_id]
        (run,) = await stage.runs()
        assert (run.status, run.error) == ("timeout", "the turn exceeded its time limit of 30 s")
        assert run.ended_at == NOON + 86_400 + 1000 + 30
        assert stage.events[-1]["status"] == "timeout"


@pytest.mark.covers("AL-64")
async def test_a_turn_that_ignores_being_aborted_is_given_up_and_its_place_is_free(
    tmp_path: Path,
) -> None:
    jobs = [a_job(name, timeout_seconds=30, configured=True) for name in ("one", "two")]
    async with staged(tmp_path, *jobs, cleanup_seconds=10) as stage:
        stage.runtime.stubborn = True
        await due(stage, 600 + 30)
        assert len(stage.runtime.aborted) == 1
        await due(stage, 9)
        assert await stage.statuses("one") == ["running"]
        await due(stage, 1)
        (run,) = await stage.runs("one")
        assert run.status == "timeout"
        assert "did not end within 10 s of being aborted" in run.error
        assert await stage.statuses("two") == ["running"]  # there is one place, and it was free
        stage.runtime.stubborn = False
        stage.runtime.end(number=1)
        stage.runtime.answer = "ok"
        await due(stage, 560)
        assert await stage.statuses("one") == ["ok", "timeout"]
        assert await stage.statuses("two") == ["ok", "ok"]
        stage.runtime.end(number=0)  # nobody cares any more
        await due(stage, 60)
        assert await stage.statuses("one") == ["ok", "timeout"]


@pytest.mark.parametrize("status", ["ok", "error", "aborted"])
async def test_a_turn_that_ends_after_its_deadline_has_timed_out_however_it_ends(
    tmp_path: Path, status: Any
) -> None:
    job = a_job(timeout_seconds=30, configured=True)
    async with staged(tmp_path, job, cleanup_seconds=10) as stage:
        stage.runtime.stubborn = True
        await due(stage, 600 + 30 + 4)
        stage.runtime.end(status)
        await stage.clock.settle()
        (run,) = await stage.runs()
        assert (run.status, run.ended_at) == ("timeout", NOON + 634)
        assert run.session_key.startswith("agent:main:")


async def test_a_turn_without_a_time_is_left_to_the_agents_settings(tmp_path: Path) -> None:
    async with staged(tmp_path, a_job(every="2d", configured=True)) as stage:
        await stage.clock.jump(2 * 86_400)
        await stage.clock.jump(86_400)
        assert (stage.runtime.aborted, await stage.statuses()) == ([], ["running"])


# ---- What goes wrong ----


async def test_a_failure_is_recorded_and_not_tried_again_before_the_next_time(
    tmp_path: Path,
) -> None:
    async with staged(
        tmp_path, a_job(configured=True), runtime=FakeRuntime(answer="error")
    ) as stage:
        await due(stage, 1199)
        (run,) = await stage.runs()
        assert (run.status, run.error) == ("error", "it was error")
        await due(stage, 1)
        assert await stage.statuses() == ["error", "error"]


@pytest.mark.parametrize("error", [ConfigurationError("there is no agent"), OSError("there is no")])
async def test_a_turn_that_cannot_be_started_is_a_failure(tmp_path: Path, error: Exception) -> None:
    class Refusing(FakeRuntime):
        async def start(self, request: AgentRequest) -> object:
            raise error

    async with staged(tmp_path, a_job(configured=True), runtime=Refusing()) as stage:
        await due(stage)
        (run,) = await stage.runs()
        assert (run.status, "there is no" in run.error) == ("error", True)
        assert stage.runtime.listeners == 0


async def test_a_result_that_cannot_be_had_is_a_failure(tmp_path: Path) -> None:
    class Forgetful(FakeRuntime):
        async def result(self, run_id: str) -> RunResult:
            raise ConfigurationError("there is no run")

    job = a_job(timeout_seconds=30, configured=True)
    async with staged(tmp_path, job, runtime=Forgetful()) as stage:
        await due(stage)
        assert await stage.statuses() == ["error"]


async def test_a_file_that_cannot_be_used_for_a_while_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path, a_job(configured=True)) as stage:
        await due(stage)

        async def fail(*given: Any, **more: Any) -> Any:
            raise JobsUnavailable("locked")

        with monkeypatch.context() as broken:
            for name in ("statuses", "renew", "finish"):
                broken.setattr(stage.jobs, name, fail)
            await due(stage, 100)
            stage.runtime.end()
            await due(stage, 2)
        await due(stage, 5)
        assert await stage.statuses() == ["ok"]
        assert stage.runtime.aborted == []


async def test_a_watcher_that_fails_stops_nothing(tmp_path: Path) -> None:
    def fail(event: Any) -> None:
        raise OSError("no")

    runtime = FakeRuntime(answer="ok")
    async with staged(tmp_path, a_job(configured=True), runtime=runtime, on_event=fail) as stage:
        await due(stage)
        assert await stage.statuses() == ["ok"]


# ---- Where replies go ----


async def test_the_reply_goes_to_the_channel_of_the_job(tmp_path: Path) -> None:
    sent: list[tuple[str, str, int]] = []

    async def deliver(job: Job, result: RunResult) -> None:
        sent.append((job.id, result.status, len(result.payloads)))

    jobs = [a_job("quiet", configured=True), a_job("loud", channel="web", configured=True)]
    async with staged(
        tmp_path, *jobs, runtime=FakeRuntime(answer="ok"), deliver=deliver, max_concurrent=2
    ) as stage:
        await due(stage)
        assert sent == [("loud", "ok", 1)]
        stage.runtime.answer = "error"
        await due(stage)
        assert sent[1:] == [("loud", "error", 0)]
        stage.runtime.answer = "aborted"  # somebody knows already
        await due(stage)
        assert len(sent) == 2


async def noted(stage: Stage) -> list[Any]:
    """The runs, when one is noted as done, with an error."""
    return [run for run in await stage.runs() if run.status == "ok" and run.error]


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_reply_that_cannot_be_sent_is_noted_and_holds_up_nothing(
    tmp_path: Path, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deliver(job: Job, result: RunResult) -> None:
        if hangs:
            await anyio.sleep_forever()
        raise OSError("nobody there")

    monkeypatch.setattr(scheduler_module, "DELIVER_SECONDS", 0.05)
    job = a_job(channel="web", configured=True)
    async with staged(tmp_path, job, runtime=FakeRuntime(answer="ok"), deliver=deliver) as stage:
        await due(stage)
        (run,) = await until(lambda: noted(stage))
        assert ("not delivered within" if hangs else "nobody there") in run.error
        await due(stage)
        assert len(await stage.runs()) == 2


# ---- By hand, and at the end ----


async def test_a_job_is_run_at_once_whatever_its_times_are(tmp_path: Path) -> None:
    job = a_job(enabled=False, configured=True)
    async with staged(tmp_path, job, serves=False) as stage:
        results: list[RunResult] = []

        async def run() -> None:
            results.append(await stage.scheduler.run_now("Tea"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await stage.clock.settle()
            with pytest.raises(JobBusy):
                await stage.scheduler.run_now("tea")
            stage.runtime.end()
        assert [result.status for result in results] == ["ok"]
        assert ((await stage.standing()).due, await stage.statuses()) == (None, ["ok"])
        with pytest.raises(UnknownJob):
            await stage.scheduler.run_now("coffee")


async def test_a_run_by_hand_that_is_stopped_is_over(tmp_path: Path) -> None:
    async with staged(tmp_path, a_job(configured=True), serves=False) as stage:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.scheduler.run_now, "tea")
            await stage.clock.settle()
            tasks.cancel_scope.cancel()
        assert await stage.statuses() == ["aborted"]
        assert stage.runtime.aborted == [stage.runtime.requests[0].run_id]


async def test_what_is_under_way_when_all_ends_is_run_by_the_next_process(tmp_path: Path) -> None:
    clock = FakeClock()
    job = a_job(every="1d", configured=True)
    async with staged(tmp_path, job, clock=clock) as first:
        await clock.jump(86_400)
    assert first.runtime.aborted == [first.runtime.requests[0].run_id]
    async with staged(tmp_path, job, clock=clock, runtime=FakeRuntime(answer="ok")) as second:
        await due(second, 10)
        assert await second.statuses() == ["ok", "lost"]
        await due(second, 1000)
        assert len(second.runtime.requests) == 1


@pytest.mark.covers("P-3")
@pytest.mark.parametrize("serves", [True, False])
async def test_an_interrupted_run_is_resumed_and_not_restarted(
    tmp_path: Path, serves: bool
) -> None:
    """Whether its process was told to end or killed, and however long that was ago."""
    clock, job = FakeClock(), a_job(every="1d", configured=True)
    async with staged(tmp_path, job, clock=clock, continues=True) as first:
        await clock.jump(86_400)
    (request,) = first.runtime.requests
    assert first.runtime.aborted == []
    clock.time += 2 * LEASE_SECONDS
    options: dict[str, Any] = {"clock": clock, "runtime": FakeRuntime(), "serves": False}
    async with staged(tmp_path, job, **options) as second, anyio.create_task_group() as tasks:
        claim = await second.scheduler.adopt(request.run_id)
        assert claim is not None
        again = replace(request, resume=True)
        tasks.start_soon(second.scheduler.go_on, claim, again)
        if serves:
            tasks.start_soon(second.scheduler.serve)
        await due(second, 1000)
        assert await second.statuses() == ["running"]
        second.runtime.end()
        await due(second, 10)
        assert second.runtime.requests == [again]
        assert await second.statuses() == ["ok"]
        tasks.cancel_scope.cancel()


@pytest.mark.covers("P-3")
async def test_a_run_that_ended_with_its_process_is_not_restarted(tmp_path: Path) -> None:
    """It had ended, and the process was killed before that was written down here."""
    clock, job = FakeClock(), a_job(every="1d", configured=True)
    async with staged(tmp_path, job, clock=clock, continues=True) as first:
        await clock.jump(86_400)
        first.runtime.end()
        result = await first.runtime.result(first.runtime.requests[0].run_id)
    async with staged(tmp_path, job, clock=clock, serves=False) as second:
        claim = await second.scheduler.adopt(result.run_id)
        assert claim is not None
        await second.scheduler.settle(claim, result)
        assert await second.statuses() == ["ok"]
        assert (await second.standing()).due == NOON + 2 * 86_400


async def test_a_run_is_adopted_as_long_as_it_is_nobody_elses(tmp_path: Path) -> None:
    clock, job = FakeClock(), a_job(every="1d", configured=True)
    async with staged(tmp_path, job, clock=clock, continues=True) as first:
        await clock.jump(86_400)
    run_id = first.runtime.requests[0].run_id
    async with staged(tmp_path, clock=clock, serves=False) as other:
        assert await other.scheduler.adopt(run_id) is None  # there is no such job any more
    async with staged(tmp_path, job, clock=clock, serves=False) as other:
        adopted = [await other.scheduler.adopt(run_id) for _ in range(MAX_CONTINUED)]
        assert adopted[-1] is None  # its process has ended each time
        assert None not in adopted[:-1]
    async with staged(tmp_path, job, clock=clock) as third:
        clock.time += 2 * LEASE_SECONDS
        await due(third, 10)
        assert await third.scheduler.adopt(run_id) is None
        assert (await third.statuses())[-1] == "lost"


async def test_a_long_run_keeps_its_claim_and_a_removed_job_is_stopped(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.jobs.add(a_job(every="1d"))
        await stage.clock.jump(86_400)
        await due(stage, 10 * LEASE_SECONDS)
        assert await stage.statuses() == ["running"]
        assert await stage.jobs.claim(a_job(every="1d"), "you") is None
        assert stage.runtime.aborted == []
        await stage.jobs.remove("tea")
        await due(stage, LEASE_SECONDS)
        assert stage.runtime.aborted == [stage.runtime.requests[0].run_id]
        assert stage.events[-1]["status"] == "aborted"
        await stage.jobs.add(a_job())
        stage.runtime.answer = "ok"
        await due(stage)
        assert await stage.statuses() == ["ok"]


async def test_a_run_that_another_process_has_taken_over_is_stopped(tmp_path: Path) -> None:
    clock = FakeClock()
    job = a_job(every="1d", configured=True)
    async with staged(tmp_path, job, clock=clock) as slept:
        await clock.jump(86_400)
        clock.time += 3600  # the machine slept; the other wakes up first
        async with staged(tmp_path, job, clock=clock) as other:
            await other.clock.settle()
            assert await other.statuses() == ["running", "lost"]
            await due(slept, LEASE_SECONDS)
            assert slept.runtime.aborted == [slept.runtime.requests[0].run_id]
            other.runtime.end()
            await due(other, 10)
            assert await other.statuses() == ["ok", "lost"]
