"""Which jobs there are, and who may run one: in memory of one process, and of several."""

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.agent_driver import configured
from tests.support.cron_driver import NOON, FakeClock, NearJobs, a_job

from clawmode.cron.job import Job, check, configured_jobs, stored_job
from clawmode.cron.jobs import (
    Claim,
    JobBusy,
    JobError,
    Jobs,
    JobsUnavailable,
    SkippedTime,
    UnknownJob,
)
from clawmode.cron.ledger import KEPT_RUNS, LEASE_SECONDS, MAX_ATTEMPTS
from clawmode.cron.schedule import BadSchedule
from clawmode.exceptions import ConfigurationError

pytestmark = pytest.mark.anyio

COMPETITOR = Path(__file__).parents[1] / "support" / "cron_competitor.py"
ME, YOU = "me", "you"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def jobs(tmp_path: Path, clock: FakeClock) -> Iterator[NearJobs]:
    with closing(NearJobs(tmp_path, clock=clock.now)) as opened:
        yield opened


async def claimed(jobs: Jobs, job: Job, owner: str = ME, **how: Any) -> Claim:
    claim = await jobs.claim(job, owner, **how)
    assert isinstance(claim, Claim)
    return claim


# ---- As data ----


@pytest.mark.parametrize(
    ("given", "path", "says"),
    [
        ({"id": "a b"}, "id", "'a b' is not a job id"),
        ({"id": "İd"}, "id", "is not a job id"),
        ({"id": "a" * 65}, "id", "is not a job id"),
        ({"cron": None}, "", "exactly one of cron, every and at must be set, found none"),
        ({"every": "1h"}, "", "found cron and every"),
        ({"cron": "0 25 * * *"}, "cron", "the hour `25` is not valid"),
        ({"tz": "Nowhere"}, "tz", "there is no time zone 'Nowhere'"),
        ({"message": "  "}, "message", "the message must not be empty"),
        ({"agent": "../x"}, "agent", "is not a valid agent id"),
        ({"target": "me"}, "target", "`channel` is required when `target` is set"),
        ({"model": "m" * 501}, "model", "at most 500 characters"),
    ],
)
def test_an_invalid_job_of_the_configuration_is_reported_with_its_place(
    given: dict[str, Any], path: str, says: str
) -> None:
    good = {"id": "good", "every": "1h", "message": "Hi."}
    entry = {"id": "bad", "cron": "@daily", "message": "Hi.", **given}
    entry = {key: value for key, value in entry.items() if value is not None}
    section = configured(cron={"jobs": [good, entry]}).cron
    with pytest.raises(ConfigurationError) as caught:
        configured_jobs(section)
    assert caught.value.path == ("cron.jobs[1]" + (f".{path}" if path else ""))
    assert str(caught.value).startswith(f"{caught.value.path}: ")
    assert says in str(caught.value)


def test_jobs_of_the_configuration_are_read_and_an_id_stands_there_once() -> None:
    entry = {"id": "Daily", "cron": "0 8 * * *", "message": "Hi.", "timeoutSeconds": 60}
    (job,) = configured_jobs(configured(cron={"jobs": [entry]}).cron)
    assert job == Job(
        id="daily", cron="0 8 * * *", message="Hi.", timeout_seconds=60, configured=True
    )
    with pytest.raises(ConfigurationError, match="another job has the id 'daily'"):
        configured_jobs(configured(cron={"jobs": [entry, {**entry, "id": "daily"}]}).cron)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), 86_401])
def test_a_time_for_turns_is_a_day_at_most(seconds: float) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check(a_job(timeout_seconds=seconds))
    assert caught.value.path == "timeoutSeconds"


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {"id": "other", "every": "1h", "message": "Hi."},
        {"id": "tea", "every": "1h"},
        {"id": "tea", "every": 5, "message": "Hi."},
        {"id": "tea", "every": "1h", "message": "Hi.", "enabled": "yes"},
        {"id": "tea", "every": "1h", "message": "Hi.", "configured": True},
        {"id": "tea", "every": "1h", "message": "Hi.", "new": "field"},
        {"id": "tea", "every": "1h", "message": "Hi.", "thinking": "lots"},
    ],
)
def test_what_was_kept_is_not_trusted(data: Any) -> None:
    with pytest.raises(ConfigurationError):
        stored_job("tea", data)


# ---- Adding and removing ----


async def test_a_job_that_is_added_is_there_in_every_process(
    jobs: NearJobs, tmp_path: Path, clock: FakeClock
) -> None:
    job = a_job("Tea", timeout_seconds=1.5, thinking="low", channel="web", target="me")
    added = await jobs.add(job)
    assert (added.job.id, added.due) == ("tea", NOON + 600)
    with closing(Jobs(tmp_path, clock=clock.now)) as other:
        (found,) = await other.list()
        assert (found.job, found.due, found.runs) == (added.job, added.due, ())
        await other.remove("TEA")
    assert list(await jobs.list()) == []


async def test_a_job_that_cannot_be_added_or_removed_is_an_error_with_its_reason(
    tmp_path: Path, clock: FakeClock
) -> None:
    entry = a_job("fixed", configured=True)
    with closing(NearJobs(tmp_path, [entry], clock=clock.now)) as jobs:
        await jobs.add(a_job("tea"))
        for taken in ("tea", "Fixed"):
            with pytest.raises(JobError, match="already"):
                await jobs.add(a_job(taken))
        with pytest.raises(JobError, match="comes from the configuration"):
            await jobs.remove("fixed")
        with pytest.raises(UnknownJob, match="did you mean tea"):
            await jobs.remove("teas")
        with pytest.raises(UnknownJob):
            await jobs.get("nothing")
        with pytest.raises(BadSchedule, match="is in the past"):
            await jobs.add(a_job("late", at="2020-01-01"))
        assert [each.job.id for each in await jobs.list()] == ["fixed", "tea"]


async def test_a_row_that_is_not_a_job_is_logged_once_and_harms_no_other(
    jobs: NearJobs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await jobs.add(a_job("good"))
    rows = [("bad", "{"), ("deep", "[" * 100_000), ("worse", json.dumps({"id": "worse"}))]
    with closing(sqlite3.connect(tmp_path / "cron.sqlite3")) as database, database:
        database.executemany("insert into jobs values (?, 0, ?)", rows)
    for _ in range(2):
        assert [each.job.id for each in await jobs.statuses(ME)] == ["good"]
    assert len(caplog.records) == 3
    assert (await jobs.add(a_job("bad"))).job.id == "bad"
    await jobs.remove("worse")


async def test_a_file_that_cannot_be_used_is_reported_in_our_words(tmp_path: Path) -> None:
    (tmp_path / "cron.sqlite3").write_bytes(b"no database" * 1000)
    with closing(Jobs(tmp_path)) as jobs, pytest.raises(JobsUnavailable, match="is damaged"):
        await jobs.list()


# ---- Claims ----


async def test_a_job_is_claimed_once_when_it_is_due(jobs: NearJobs, clock: FakeClock) -> None:
    job = (await jobs.add(a_job())).job
    assert await jobs.claim(job, ME) is None
    clock.time += 600
    assert await jobs.claim(job, ME, room=False) is None
    claim = await claimed(jobs, job)
    assert await jobs.claim(job, YOU) is None
    assert (await jobs.get("tea")).running
    assert await jobs.finish(claim, "ok", session_key="agent:main:x")
    found = await jobs.get("tea")
    assert (found.running, found.due) == (False, NOON + 1200)
    assert found.last is not None
    assert found.last.to_json() == {
        "runId": claim.run_id,
        "status": "ok",
        "startedAt": int((NOON + 600) * 1000),
        "endedAt": int((NOON + 600) * 1000),
        "sessionKey": "agent:main:x",
    }
    assert not await jobs.finish(claim, "error")


async def test_times_that_nobody_was_there_for_are_run_once(
    jobs: NearJobs, clock: FakeClock
) -> None:
    job = (await jobs.add(a_job())).job
    clock.time += 86_400 + 60
    await jobs.finish(await claimed(jobs, job), "ok")
    assert await jobs.claim(job, ME) is None
    assert (await jobs.get("tea")).due == NOON + 86_400 + 600


async def test_a_job_that_is_due_while_it_runs_is_skipped_and_noted(
    jobs: NearJobs, clock: FakeClock
) -> None:
    job = (await jobs.add(a_job())).job
    clock.time += 600
    claim = await claimed(jobs, job)
    for owner in (ME, YOU, YOU):
        for _ in range(30):
            clock.time += 20
            assert await jobs.renew(claim)
        assert await jobs.claim(job, owner) == SkippedTime(job)
        assert await jobs.claim(job, owner) is None
    found = await jobs.get("tea")
    assert [(run.status, run.times) for run in found.runs] == [("skipped", 3), ("running", 1)]
    assert found.last is not None
    assert found.last.status == "running"
    assert found.runs[0].to_json()["times"] == 3
    assert await jobs.finish(claim, "ok")


async def test_a_moment_comes_once_and_one_that_is_over_does_not_come(
    tmp_path: Path, clock: FakeClock
) -> None:
    once = a_job("once", at="2027-01-15T09:00", configured=True)  # an hour later
    over = a_job("over", at="2020-01-01", configured=True)
    with closing(NearJobs(tmp_path, [once, over], clock=clock.now)) as jobs:
        assert [each.due for each in await jobs.statuses(ME)] == [NOON + 3600, None]
        clock.time += 4000
        claim = await claimed(jobs, once)
        assert await jobs.finish(claim, "error")
        assert [each.due for each in await jobs.statuses(ME)] == [None, None]
        assert await jobs.claim(once, ME) is None


async def test_other_times_and_times_of_being_disabled_start_anew(
    tmp_path: Path, clock: FakeClock
) -> None:
    def opened(**given: Any) -> NearJobs:
        return NearJobs(tmp_path, [a_job(configured=True, **given)], clock=clock.now)

    unchanged: dict[str, Any] = {}
    for given, passes, due in (
        (unchanged, 0, NOON + 600),
        ({"enabled": False}, 6000, None),
        (unchanged, 0, NOON + 6600),  # not at once: nobody missed it
        ({"every": "1h"}, 0, NOON + 9600),
        ({"every": "1h", "message": "Coffee."}, 60, NOON + 9600),
    ):
        clock.time += passes
        with closing(opened(**given)) as jobs:
            (found,) = await jobs.statuses(ME)
            assert found.due == due
            assert (await jobs.get("tea")).due == due


async def test_a_claim_that_nobody_renews_is_taken_over_and_not_forever(
    jobs: NearJobs, clock: FakeClock
) -> None:
    job = (await jobs.add(a_job(every="1d"))).job
    clock.time += 86_400
    lost = await claimed(jobs, job)
    clock.time += LEASE_SECONDS - 1
    assert await jobs.claim(job, YOU) is None
    clock.time += 2
    assert (await jobs.statuses(ME))[0].running  # who runs it knows better
    taken = await claimed(jobs, job, YOU)
    assert not await jobs.renew(lost)
    assert not await jobs.finish(lost, "ok")
    clock.time += LEASE_SECONDS + 1
    assert MAX_ATTEMPTS == 2
    assert await jobs.claim(job, "third") is None
    found = await jobs.get("tea")
    assert [run.status for run in found.runs] == ["lost", "lost"]
    assert found.due == NOON + 2 * 86_400
    assert not await jobs.finish(taken, "ok")


async def test_a_claim_that_is_left_is_taken_over_at_once(jobs: NearJobs, clock: FakeClock) -> None:
    job = (await jobs.add(a_job())).job
    clock.time += 600
    left = await claimed(jobs, job)
    await jobs.leave(left)
    taken = await claimed(jobs, job, YOU)
    assert await jobs.renew(taken)
    assert not await jobs.renew(left)


async def test_a_clock_that_is_set_back_does_not_hold_a_claim_of_the_dead(
    jobs: NearJobs, clock: FakeClock
) -> None:
    job = (await jobs.add(a_job())).job
    clock.time += 600
    dead = await claimed(jobs, job)
    clock.time -= 500
    taken = await claimed(jobs, job, YOU, forced=True)
    assert await jobs.renew(taken)
    assert not await jobs.renew(dead)


async def test_what_somebody_wants_now_runs_and_leaves_its_times_alone(
    jobs: NearJobs, clock: FakeClock
) -> None:
    job = (await jobs.add(a_job(enabled=False))).job
    claim = await claimed(jobs, job, forced=True)
    with pytest.raises(JobBusy):
        await jobs.claim(job, YOU, forced=True)
    clock.time += LEASE_SECONDS + 1  # its process ends, and nobody else wants it
    assert await jobs.claim(job, YOU) is None
    assert (await jobs.get("tea")).runs[0].status == "lost"
    assert not await jobs.finish(claim, "ok")


async def test_a_job_that_is_gone_cannot_be_claimed_renewed_or_recorded(
    jobs: NearJobs, clock: FakeClock
) -> None:
    job = (await jobs.add(a_job())).job
    clock.time += 600
    claim = await claimed(jobs, job)
    await jobs.remove("tea")
    assert not await jobs.renew(claim)
    assert not await jobs.finish(claim, "ok")
    assert await jobs.claim(job, ME, forced=True) is None
    assert list(await jobs.statuses(ME)) == []


async def test_failures_are_kept_and_make_a_job_rest(jobs: NearJobs, clock: FakeClock) -> None:
    job = (await jobs.add(a_job(every="20s"))).job
    waits: list[float] = []
    for status in ("error", "timeout", "error", "error", "error", "error", "ok", "error"):
        clock.time = (await jobs.get("tea")).due or 0
        began = clock.time
        claim = await claimed(jobs, job)
        assert await jobs.finish(claim, status, error="x" * 9000)
        waits.append(((await jobs.get("tea")).due or 0) - began)
    # The next time after a rest: each of them is one of the job's own.
    assert waits == [20, 80, 320, 920, 3620, 3620, 20, 20]
    assert len((await jobs.get("tea")).runs[0].error) == 2000


async def test_the_last_fifty_runs_are_kept(jobs: NearJobs, clock: FakeClock) -> None:
    job = (await jobs.add(a_job())).job
    for _ in range(KEPT_RUNS + 10):
        clock.time += 600
        claim = await claimed(jobs, job)
        await jobs.finish(claim, "ok")
    await jobs.annotate(claim, "the reply was lost")
    await jobs.annotate(claim, "twice")
    runs = (await jobs.get("tea")).runs
    assert len(runs) == KEPT_RUNS
    assert (runs[0].id, runs[0].error) == (claim.run_id, "the reply was lost; twice")


# ---- Several processes ----


@contextmanager
def competing(folder: Path, count: int, *arguments: str) -> Iterator[list[subprocess.Popen[str]]]:
    command = [sys.executable, str(COMPETITOR), str(folder), *arguments]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


async def test_of_several_processes_one_runs_a_job(tmp_path: Path) -> None:
    now = time.time()  # of a clock that stands still: the last job must not be in the past
    soon = datetime.fromtimestamp(now + 2, UTC).isoformat()
    names = [f"job-{number}" for number in range(30)]
    with closing(Jobs(tmp_path, clock=lambda: now)) as jobs:
        for name in names:
            await jobs.add(a_job(name, at=soon))
        with competing(tmp_path, 3, "12") as processes:
            said = [process.stdout.read().split() for process in processes if process.stdout]
        found = await jobs.list()
    assert sorted(name for each in said for name in each) == sorted(names)
    assert [[run.status for run in each.runs] for each in found] == [["ok"]] * len(names)


async def test_the_job_of_a_killed_process_is_run_by_another(
    tmp_path: Path, clock: FakeClock
) -> None:
    with closing(Jobs(tmp_path)) as jobs:
        await jobs.add(a_job(every="1s"))
        with competing(tmp_path, 1, "15", "hang") as (process,):
            assert process.stdout is not None
            assert process.stdout.readline() == "tea\n"
        (found,) = await jobs.list()
        assert (found.running, found.runs[0].status) == (True, "running")
    clock.time = found.runs[0].started_at + LEASE_SECONDS + 1
    with closing(NearJobs(tmp_path, clock=clock.now)) as later:
        claim = await claimed(later, found.job)
        assert [run.status for run in (await later.get("tea")).runs] == ["running", "lost"]
        assert await later.finish(claim, "ok")
