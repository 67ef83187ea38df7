"""Which jobs there are, who may run one, and what became of its runs.

Jobs of the configuration are handed in. Those that were added by command, and what is known about
all of them, are in `<state>/cron.sqlite3`, which any number of processes share. Who runs a job has
a claim on it, and renews it; one that nobody renews is taken over.
"""

import json
import logging
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clawmode.cron import ledger
from clawmode.cron.expressions import BadSchedule
from clawmode.cron.job import Job, check, check_id, kept_job
from clawmode.cron.ledger import LEASE_SECONDS, RunRecord, RunStatus, State
from clawmode.cron.words import in_words
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.files import Layout, SqliteFile
from clawmode.tools.near_names import NearNames
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.cron")

LOCK_SECONDS = 5.0
MAX_JOBS = 1_000
MAX_ERROR_CHARS = 2_000


class JobError(ClawmodeError):
    """A job with which that cannot be done."""


class UnknownJob(JobError):
    """There is no such job."""


class JobBusy(JobError):
    """A run of it is under way."""


class JobsUnavailable(JobError):
    """The file of jobs cannot be read or written; nothing has changed."""


LAYOUT = Layout("The file of cron jobs", ledger.VERSION, ledger.SCHEMA, JobsUnavailable, logger)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a job stands.

    Attributes:
        due: When it runs next; None: it does not.
        running: Somebody runs it.
        runs: The newest first; left out for schedulers.
    """

    job: Job
    due: float | None
    running: bool = False
    runs: tuple[RunRecord, ...] = ()

    @property
    def last(self) -> RunRecord | None:
        """The last run, skipped times aside."""
        return next((run for run in self.runs if run.status != "skipped"), None)

    def described(self) -> JsonObject:
        """As programs see it."""
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
    """The right to run a job, once.

    Attributes:
        run_id: Names the run.
        owner: Who has it.
        forced: Somebody wants it now, whatever the job's times are.
    """

    job: Job
    run_id: str
    owner: str
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Skipped:
    """A time of a job that went by, because a run of it was still under way."""

    job: Job


class Jobs(SqliteFile):
    """The jobs of a state folder. Every method may raise `JobsUnavailable`.

    Args:
        folder: The state. Made if it is not there.
        configured: Jobs of the configuration.
        clock: Tells the time of day, in seconds.

    Attributes:
        configured: The same by their ids; others can be put there when the configuration changes.
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

    # ---- For people ----

    async def list(self) -> Sequence[Standing]:
        """All jobs with their runs, by id."""
        return await self._run(self._list)

    async def get(self, job_id: str) -> Standing:
        """One of them.

        Raises:
            UnknownJob: There is none.
        """
        wanted = check_id(job_id)
        found = {each.job.id: each for each in await self._run(self._list)}
        if wanted not in found:
            raise _unknown(wanted, found)
        return found[wanted]

    async def add(self, job: Job) -> Standing:
        """Keeps a job.

        Raises:
            ConfigurationError: It cannot be meant.
            JobError: There is one of that id, or there are too many.
        """
        return await self._run(self._add, check(job))

    async def remove(self, job_id: str) -> None:
        """Forgets a job that was added, and its runs. One that is under way is aborted soon.

        Raises:
            UnknownJob: There is none.
            JobError: It stands in the configuration.
        """
        await self._run(self._remove, self._added(job_id))

    async def enable(self, job_id: str, enabled: bool) -> Standing:
        """Switches a job that was added on or off.

        Raises:
            UnknownJob: There is none.
            JobError: It stands in the configuration.
        """
        wanted = self._added(job_id)
        return await self._run(self._enable, wanted, enabled)

    def _added(self, job_id: str) -> str:
        """The id of a job that commands may change.

        Raises:
            JobError: It stands in the configuration.
        """
        wanted = check_id(job_id)
        if wanted in self.configured:
            raise JobError(
                f"the job {wanted!r} stands in the configuration: take it out of cron.jobs there, "
                "or set its `enabled` to false"
            )
        return wanted

    # ---- For schedulers ----

    async def standings(self, owner: str) -> Sequence[Standing]:
        """All jobs, by id; from now on their times count."""
        return await self._run(self._standings, owner)

    async def claim(
        self, job: Job, owner: str, *, forced: bool = False, room: bool = True
    ) -> Claim | Skipped | None:
        """The right to run a job that is due. None: it is not, or not any more.

        Args:
            job: Which.
            owner: Who wants it; has a name for as long as it lives.
            forced: Whatever its times are.
            room: Whether it could be run; if not, the time is only skipped if it has to be.

        Raises:
            JobBusy: It is under way; only if it is `forced`.
        """
        return await self._run(self._claim, job, owner, forced, room)

    async def adopt(self, run_id: str, owner: str) -> Claim | None:
        """The right to continue a run whose process has ended.

        None: the job is gone, somebody else runs it by now, or its processes end each time.
        """
        return await self._run(self._adopt, run_id, owner)

    async def renew(self, claim: Claim) -> bool:
        """Keeps a claim. False: it is somebody else's, or the job is gone."""
        return await self._run(self._renew, claim)

    async def finish(
        self, claim: Claim, status: RunStatus, *, error: str = "", session_key: str = ""
    ) -> bool:
        """Records how a run ended, and gives its claim back. False: the claim was lost."""
        return await self._run(self._finish, claim, status, error[:MAX_ERROR_CHARS], session_key)

    async def leave(self, claim: Claim) -> None:
        """Gives a claim up in the middle of a run: whoever comes next takes it over."""
        await self._run(self._leave, claim)

    async def annotate(self, claim: Claim, error: str) -> None:
        """Adds to a run what went wrong after its end."""
        await self._run(self._annotate, claim, error[:MAX_ERROR_CHARS])

    # ---- In a transaction ----

    def _jobs(self, database: sqlite3.Connection) -> dict[str, Job]:
        """Those of the configuration win."""
        found = dict(self.configured)
        for job_id, text in database.execute("select id, data from jobs").fetchall():
            try:
                found.setdefault(job_id, kept_job(job_id, json.loads(text)))
            except (ConfigurationError, ValueError, RecursionError) as error:
                if job_id not in self._unreadable:
                    logger.error("the job %.80r cannot be used: %s", job_id, error)
                self._unreadable.add(job_id)
        return dict(sorted(found.items()))

    def _list(self) -> Sequence[Standing]:
        with self._transaction("deferred") as database:
            now = self._clock()
            return [self._told(database, job, now) for job in self._jobs(database).values()]

    def _told(self, database: sqlite3.Connection, job: Job, now: float) -> Standing:
        """How a job stands, for people: nothing is written down."""
        state = ledger.read_state(database, job.id)
        if state is None or state.signature != job.signature:
            state = ledger.fresh(job, now)
        return _standing(job, state, "", now, ledger.read_runs(database, job.id))

    def _add(self, job: Job) -> Standing:
        with self._transaction() as database:
            now, count = self._clock(), len(known := self._jobs(database))
            if job.id in known:
                raise JobError(f"there is a job {job.id!r} already: remove it first")
            if count >= MAX_JOBS:
                raise JobError(f"there are {count} jobs, and no more can be added")
            state = ledger.fresh(job, now)
            if state.due is None and job.enabled:
                raise BadSchedule(f"{job.at!r} is over", path="at")
            row = (job.id, now, json.dumps(job.to_json()))
            # One that could not be read may be in its place.
            database.execute("insert or replace into jobs values (?, ?, ?)", row)
            ledger.write_state(database, job.id, state)
            return _standing(job, state, "", now)

    def _enable(self, job_id: str, enabled: bool) -> Standing:
        with self._transaction() as database:
            known, now = self._jobs(database), self._clock()
            if job_id not in known:
                raise _unknown(job_id, known)
            job = replace(known[job_id], enabled=enabled)
            row = (json.dumps(job.to_json()), job_id)
            database.execute("update jobs set data = ? where id = ?", row)
            state = ledger.settle(database, job, "", now)
            return _standing(job, state, "", now)

    def _remove(self, job_id: str) -> None:
        with self._transaction() as database:
            known = self._jobs(database)
            if not database.execute("delete from jobs where id = ?", (job_id,)).rowcount:
                raise _unknown(job_id, known)
            database.execute("delete from states where job = ?", (job_id,))
            database.execute("delete from runs where job = ?", (job_id,))

    def _standings(self, owner: str) -> Sequence[Standing]:
        with self._transaction("deferred") as database:
            now, jobs = self._clock(), self._jobs(database)
            states = {job_id: ledger.read_state(database, job_id) for job_id in jobs}
        return [self._stands(job, states[job.id], owner, now) for job in jobs.values()]

    def _stands(self, job: Job, state: State | None, owner: str, now: float) -> Standing:
        if state is None or not ledger.is_settled(state, job, owner, now):
            with self._transaction() as database:
                state = ledger.settle(database, job, owner, now)
        return _standing(job, state, owner, now)

    def _claim(self, job: Job, owner: str, forced: bool, room: bool) -> Claim | Skipped | None:
        with self._transaction() as database:
            if self._is_gone(database, job):
                return None
            now = self._clock()
            state = ledger.settle(database, job, owner, now)
            if not forced and (state.due is None or state.due > now):
                return None
            if state.run and forced:
                raise JobBusy(f"a run of the job {job.id!r} is under way")
            if not state.run and not room:
                return None
            if not forced:
                # All times that were missed are this one.
                state.due = job.schedule(state.since).next_after(now)
            if state.run:
                ledger.write_state(database, job.id, state)
                ledger.note_skip(database, job.id, now)
                return Skipped(job)
            claim = Claim(job=job, run_id=uuid.uuid4().hex, owner=owner, forced=forced)
            state.run, state.owner, state.forced = claim.run_id, owner, int(forced)
            state.lease, state.attempt = now + LEASE_SECONDS, state.attempt + 1
            ledger.write_state(database, job.id, state)
            ledger.begin_run(database, job.id, claim.run_id, now)
            return claim

    def _adopt(self, run_id: str, owner: str) -> Claim | None:
        with self._transaction() as database:
            row = database.execute("select job from states where run = ?", (run_id,)).fetchone()
            job = None if row is None else self._jobs(database).get(row[0])
            state = None if job is None else ledger.read_state(database, job.id)
            if job is None or state is None or state.attempt >= ledger.MAX_CONTINUED:
                return None
            state.owner, state.lease = owner, self._clock() + LEASE_SECONDS
            state.attempt += 1
            ledger.write_state(database, job.id, state)
            return Claim(job=job, run_id=run_id, owner=owner, forced=bool(state.forced))

    def _is_gone(self, database: sqlite3.Connection, job: Job) -> bool:
        row = database.execute("select 1 from jobs where id = ?", (job.id,)).fetchone()
        return row is None and not job.configured

    def _renew(self, claim: Claim) -> bool:
        with self._transaction() as database:
            done = database.execute(
                "update states set lease = ? where job = ? and run = ? and owner = ?",
                (self._clock() + LEASE_SECONDS, claim.job.id, claim.run_id, claim.owner),
            )
            return done.rowcount == 1

    def _finish(self, claim: Claim, status: RunStatus, error: str, session_key: str) -> bool:
        job = claim.job
        with self._transaction() as database:
            state = ledger.read_state(database, job.id)
            if state is None or state.run != claim.run_id:
                return False
            now = self._clock()
            ledger.end_run(database, state.run, status, now, error, session_key)
            state.free()
            state.attempt = 0
            if status != "aborted":
                state.failures = 0 if status == "ok" else state.failures + 1
            if not claim.forced and state.signature == job.signature:
                state.due = ledger.rested(job, state, now)
            ledger.write_state(database, job.id, state)
            ledger.prune(database, job.id)
            return True

    def _leave(self, claim: Claim) -> None:
        with self._transaction() as database:
            database.execute(
                "update states set lease = 0, owner = '' where job = ? and run = ?",
                (claim.job.id, claim.run_id),
            )

    def _annotate(self, claim: Claim, error: str) -> None:
        with self._transaction() as database:
            database.execute(
                "update runs set error = case error when '' then '' else error || '; ' end || ?"
                " where id = ?",
                (error, claim.run_id),
            )


def _standing(
    job: Job, state: State, owner: str, now: float, runs: tuple[RunRecord, ...] = ()
) -> Standing:
    return Standing(job=job, due=state.due, running=state.is_held(owner, now), runs=runs)


def _unknown(job_id: str, known: Iterable[str]) -> UnknownJob:
    names = list(known)
    near = [names[position] for position in NearNames(names).find(job_id, 3)]
    what = f"there is no job {job_id!r}"
    return UnknownJob(f"{what}; near it: {', '.join(near)}" if near else what)
