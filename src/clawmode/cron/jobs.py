"""`Jobs`: all jobs of a state folder, the claims to run them, and the results of their runs.

`<state>/cron.sqlite3` keeps the jobs that were added by command, and the state of all jobs. Any
number of processes share the file. A process that runs a job holds a claim and renews it; another
process takes over a claim that has expired.
"""

import json
import logging
import sqlite3
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from clawmode.cron import ledger
from clawmode.cron.job import Job, check, check_id, stored_job
from clawmode.cron.ledger import LEASE_SECONDS, RunRecord, RunStatus, State
from clawmode.cron.schedule import BadSchedule, in_words
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.files import Layout, SqliteFile
from clawmode.text import shorten
from clawmode.tools.near_names import NearNames
from clawmode.types import JsonObject, dataclass

logger = logging.getLogger("clawmode.cron")

P = ParamSpec("P")
T = TypeVar("T")

LOCK_SECONDS = 5.0
MAX_JOBS = 1_000
MAX_ERROR_CHARS = 2_000


class JobError(ClawmodeError):
    """A command about a job cannot be carried out."""


class UnknownJob(JobError):
    """No job has the given id."""


class JobBusy(JobError):
    """The job has a run that has not ended."""


class JobsUnavailable(JobError):
    """The jobs file cannot be read or written; nothing has changed."""


LAYOUT = Layout("The file of cron jobs", ledger.VERSION, ledger.SCHEMA, JobsUnavailable, logger)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job with its schedule and its last runs.

    Attributes:
        due: The next scheduled time, or None.
        running: True if a process runs the job now.
        runs: The newest first; empty for schedulers, which do not need them.
    """

    job: Job
    due: float | None
    running: bool = False
    runs: tuple[RunRecord, ...] = ()

    @property
    def last(self) -> RunRecord | None:
        """The last run that was not skipped."""
        return next((run for run in self.runs if run.status != "skipped"), None)

    def described(self) -> JsonObject:
        """Returns the status for `--json` and the gateway."""
        due, last = self.due, self.last
        return self.job.described() | {
            "schedule": in_words(self.job.schedule()),
            "nextAt": None if due is None else int(due * 1000),
            "running": self.running,
            "lastRun": None if last is None else last.to_json(),
            "runs": [run.to_json() for run in self.runs],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to run a job once.

    Attributes:
        owner: The scheduler that holds the claim.
        forced: A user started the run, outside of the schedule.
    """

    job: Job
    run_id: str
    owner: str
    forced: bool = False


@dataclass(frozen=True, slots=True)
class SkippedTime:
    """A scheduled time that was skipped because the previous run had not ended."""

    job: Job


def _in_thread(
    method: Callable[Concatenate["Jobs", P], T],
) -> Callable[Concatenate["Jobs", P], Coroutine[Any, Any, T]]:
    """Makes a coroutine of a method that uses the database, and runs the method in a thread."""

    @wraps(method)
    async def run(self: "Jobs", *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(method, self, *args, **kwargs)

    return run


class Jobs(SqliteFile):
    """The jobs of a state folder. Every method may raise `JobsUnavailable`.

    Args:
        folder: The state folder; created if it does not exist.
        configured: The jobs of the configuration.
        clock: Returns the time of day, in seconds.

    Attributes:
        configured: The jobs of the configuration by id; replaced when the configuration changes.
    """

    def __init__(
        self,
        folder: Path | str,
        configured: Iterable[Job] = (),
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(Path(folder) / "cron.sqlite3", LAYOUT, lock_seconds=LOCK_SECONDS)
        self.configured = {job.id: job for job in configured}
        self._clock = clock
        self._unreadable: set[str] = set()

    # ---- Commands ----

    @_in_thread
    def list(self) -> Sequence[JobStatus]:
        """Returns all jobs with their last runs, sorted by id, without writing anything."""
        with self._transaction("deferred") as database:
            now = self._clock()
            found: list[JobStatus] = []
            for job in self._read_jobs(database).values():
                state = ledger.read_state(database, job.id)
                if state is None or state.signature != job.signature:
                    state = ledger.new_state(job, now)
                runs = ledger.read_runs(database, job.id)
                found.append(_make_status(job, state, "", now, runs))
            return found

    async def get(self, job_id: str) -> JobStatus:
        """Returns one job with its last runs.

        Raises:
            UnknownJob: No job has the id.
        """
        wanted = check_id(job_id)
        found = {each.job.id: each for each in await self.list()}
        if wanted not in found:
            raise _unknown(wanted, found)
        return found[wanted]

    @_in_thread
    def add(self, job: Job) -> JobStatus:
        """Stores a new job.

        Raises:
            ConfigurationError: The job is not valid.
            JobError: Another job has the id, or there are too many jobs.
        """
        job = check(job)
        with self._transaction() as database:
            now, count = self._clock(), len(known := self._read_jobs(database))
            if job.id in known:
                raise JobError(f"a job {job.id!r} already exists: remove it first")
            if count >= MAX_JOBS:
                raise JobError(f"there are {count} jobs already, which is the most")
            state = ledger.new_state(job, now)
            if state.due is None and job.enabled:
                raise BadSchedule(f"{job.at!r} is in the past", path="at")
            row = (job.id, now, json.dumps(job.to_json()))
            # "or replace": a row that could not be read may have the id.
            database.execute("insert or replace into jobs values (?, ?, ?)", row)
            ledger.write_state(database, job.id, state)
            return _make_status(job, state, "", now)

    @_in_thread
    def remove(self, job_id: str) -> None:
        """Deletes a job that was added by command, with its runs; a current run is aborted soon.

        Raises:
            UnknownJob: No job has the id.
            JobError: The job comes from the configuration.
        """
        wanted = self._check_changeable(job_id)
        with self._transaction() as database:
            known = self._read_jobs(database)
            if not database.execute("delete from jobs where id = ?", (wanted,)).rowcount:
                raise _unknown(wanted, known)
            database.execute("delete from states where job = ?", (wanted,))
            database.execute("delete from runs where job = ?", (wanted,))

    @_in_thread
    def enable(self, job_id: str, enabled: bool) -> JobStatus:
        """Enables or disables a job that was added by command.

        Raises:
            UnknownJob: No job has the id.
            JobError: The job comes from the configuration.
        """
        wanted = self._check_changeable(job_id)
        with self._transaction() as database:
            known, now = self._read_jobs(database), self._clock()
            if wanted not in known:
                raise _unknown(wanted, known)
            job = replace(known[wanted], enabled=enabled)
            row = (json.dumps(job.to_json()), wanted)
            database.execute("update jobs set data = ? where id = ?", row)
            state = ledger.settle(database, job, "", now)
            return _make_status(job, state, "", now)

    def _check_changeable(self, job_id: str) -> str:
        """Returns the id; raises `JobError` if the job comes from the configuration."""
        wanted = check_id(job_id)
        if wanted in self.configured:
            raise JobError(
                f"the job {wanted!r} comes from the configuration: remove it from cron.jobs there, "
                "or set its `enabled` to false"
            )
        return wanted

    def _read_jobs(self, database: sqlite3.Connection) -> dict[str, Job]:
        # A job of the configuration hides an added job with the same id.
        found = dict(self.configured)
        for job_id, text in database.execute("select id, data from jobs").fetchall():
            try:
                found.setdefault(job_id, stored_job(job_id, json.loads(text)))
            except (ConfigurationError, ValueError, RecursionError) as error:
                if job_id not in self._unreadable:
                    text = "the job %.80r in cron.sqlite3 is not valid and is ignored: %s"
                    logger.error(text, job_id, error)
                self._unreadable.add(job_id)
        return dict(sorted(found.items()))

    # ---- Schedulers ----

    @_in_thread
    def statuses(self, owner: str) -> Sequence[JobStatus]:
        """Returns all jobs, sorted by id, and starts the schedule of new ones."""
        # Reading first: schedulers look often, and a write would lock out other processes.
        with self._transaction("deferred") as database:
            now, jobs = self._clock(), self._read_jobs(database)
            states = {job_id: ledger.read_state(database, job_id) for job_id in jobs}
        for job in jobs.values():
            state = states[job.id]
            if state is None or not ledger.is_settled(state, job, owner, now):
                with self._transaction() as database:
                    states[job.id] = ledger.settle(database, job, owner, now)
        return [
            _make_status(jobs[job_id], state, owner, now)
            for job_id, state in states.items()
            if state is not None
        ]

    @_in_thread
    def claim(
        self, job: Job, owner: str, *, forced: bool = False, room: bool = True
    ) -> Claim | SkippedTime | None:
        """Claims a job that is due. Returns None if it is not due, or no longer.

        Args:
            job: The job to run.
            owner: The scheduler; keeps its name for as long as it lives.
            forced: Claim the job even if it is not due.
            room: False if the scheduler has no room for a run: it then only records that the time
                is skipped, if the previous run has not ended.

        Raises:
            JobBusy: The job is `forced`, and has a run that has not ended.
        """
        with self._transaction() as database:
            row = database.execute("select 1 from jobs where id = ?", (job.id,)).fetchone()
            if row is None and not job.configured:
                return None
            now = self._clock()
            state = ledger.settle(database, job, owner, now)
            if not forced and (state.due is None or state.due > now):
                return None
            if state.run and forced:
                raise JobBusy(f"the job {job.id!r} has a run that has not ended")
            if not state.run and not room:
                return None
            if not forced:
                # One run makes up for all scheduled times that were missed.
                state.due = job.schedule(state.since).next_after(now)
            if state.run:
                ledger.write_state(database, job.id, state)
                ledger.note_skip(database, job.id, now)
                return SkippedTime(job)
            claim = Claim(job=job, run_id=uuid.uuid4().hex, owner=owner, forced=forced)
            state.run, state.owner, state.forced = claim.run_id, owner, int(forced)
            state.lease, state.attempt = now + LEASE_SECONDS, state.attempt + 1
            ledger.write_state(database, job.id, state)
            begin = "insert into runs (job, id, started, status) values (?, ?, ?, 'running')"
            database.execute(begin, (job.id, claim.run_id, now))
            return claim

    @_in_thread
    def adopt(self, run_id: str, owner: str) -> Claim | None:
        """Claims a run whose process died, to continue it.

        Returns None if the job was deleted, if another process runs it, or if the run was continued
        too often.
        """
        with self._transaction() as database:
            row = database.execute("select job from states where run = ?", (run_id,)).fetchone()
            job = None if row is None else self._read_jobs(database).get(row[0])
            state = None if job is None else ledger.read_state(database, job.id)
            if job is None or state is None or state.attempt >= ledger.MAX_CONTINUED:
                return None
            state.owner, state.lease = owner, self._clock() + LEASE_SECONDS
            state.attempt += 1
            ledger.write_state(database, job.id, state)
            return Claim(job=job, run_id=run_id, owner=owner, forced=bool(state.forced))

    @_in_thread
    def renew(self, claim: Claim) -> bool:
        """Renews a claim. Returns False if another process has it, or the job was deleted."""
        with self._transaction() as database:
            done = database.execute(
                "update states set lease = ? where job = ? and run = ? and owner = ?",
                (self._clock() + LEASE_SECONDS, claim.job.id, claim.run_id, claim.owner),
            )
            return done.rowcount == 1

    @_in_thread
    def finish(
        self, claim: Claim, status: RunStatus, *, error: str = "", session_key: str = ""
    ) -> bool:
        """Records how a run ended, and releases the claim. Returns False if the claim was lost."""
        job = claim.job
        with self._transaction() as database:
            state = ledger.read_state(database, job.id)
            if state is None or state.run != claim.run_id:
                return False
            now, error = self._clock(), shorten(error, MAX_ERROR_CHARS)
            ledger.end_run(database, state.run, status, now, error, session_key)
            state.free()
            state.attempt = 0
            if status != "aborted":
                state.failures = 0 if status == "ok" else state.failures + 1
            if not claim.forced and state.signature == job.signature:
                state.due = ledger.due_after_failures(job, state, now)
            ledger.write_state(database, job.id, state)
            ledger.prune(database, job.id)
            return True

    @_in_thread
    def leave(self, claim: Claim) -> None:
        """Releases the claim of a run that has not ended, for another process to continue."""
        with self._transaction() as database:
            left = "update states set lease = 0, owner = '' where job = ? and run = ?"
            database.execute(left, (claim.job.id, claim.run_id))

    @_in_thread
    def annotate(self, claim: Claim, error: str) -> None:
        """Adds an error that occurred after the end of a run, such as a failed delivery."""
        with self._transaction() as database:
            database.execute(
                "update runs set error = case error when '' then '' else error || '; ' end || ?"
                " where id = ?",
                (shorten(error, MAX_ERROR_CHARS), claim.run_id),
            )


def _make_status(
    job: Job, state: State, owner: str, now: float, runs: tuple[RunRecord, ...] = ()
) -> JobStatus:
    return JobStatus(job=job, due=state.due, running=state.is_held(owner, now), runs=runs)


def _unknown(job_id: str, known: Iterable[str]) -> UnknownJob:
    names = list(known)
    near = [names[position] for position in NearNames(names).find(job_id, 3)]
    hint = f"did you mean {' or '.join(near)}?" if near else "`cron list` shows all jobs"
    return UnknownJob(f"there is no job {job_id!r}; {hint}")
