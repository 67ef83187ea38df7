"""The tables of the jobs file: when each job is due, which process runs it, and its last runs.

All functions work inside a transaction that `jobs` has begun.
"""

import sqlite3
import uuid
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Literal, TypeAlias

from clawmode.types import JsonObject, dataclass

if TYPE_CHECKING:
    from clawmode.cron.job import Job

RunStatus: TypeAlias = Literal["running", "ok", "error", "timeout", "aborted", "skipped", "lost"]

LEASE_SECONDS = 60.0
"""A claim that is not renewed expires after this time."""

MAX_ATTEMPTS = 2
"""How often a scheduled run is started: a job that kills its process must not do so forever."""

MAX_CONTINUED = 10
"""How often a run is continued after its process died, for the same reason."""

PAUSES = (0.0, 0.0, 60.0, 300.0, 900.0, 3600.0)
"""The shortest pause of a job, in seconds, by its number of failures in a row."""

KEPT_RUNS = 50

SKIPPED = "the previous run had not ended"
LOST = "the process of the run has ended"

VERSION = 1
SCHEMA = """
create table jobs (id text primary key, created real not null, data text not null);
create table states (
    job text primary key,
    signature text not null, since real not null, due real,
    run text not null, owner text not null, lease real not null, forced integer not null,
    attempt integer not null, failures integer not null
);
create table runs (
    number integer primary key,
    job text not null, id text not null unique,
    started real not null, ended real, status text not null,
    error text not null default '', session text not null default '',
    times integer not null default 1
);
create index runs_of_job on runs (job, number);
"""


# ---- Runs ----


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A past or running run of a job.

    Attributes:
        times: How many scheduled times were skipped, if the status is `skipped`.
    """

    id: str
    started_at: float
    ended_at: float | None
    status: RunStatus
    error: str = ""
    session_key: str = ""
    times: int = 1

    def to_json(self) -> JsonObject:
        made: JsonObject = {
            "runId": self.id,
            "status": self.status,
            "startedAt": int(self.started_at * 1000),
            "endedAt": None if self.ended_at is None else int(self.ended_at * 1000),
            "sessionKey": self.session_key,
        }
        if self.error:
            made["error"] = self.error
        return made | ({"times": self.times} if self.status == "skipped" else {})


def read_runs(database: sqlite3.Connection, job_id: str) -> tuple[RunRecord, ...]:
    """Returns the last runs of a job, the newest first."""
    rows = database.execute(
        "select id, started, ended, status, error, session, times from runs where job = ?"
        " order by number desc limit ?",
        (job_id, KEPT_RUNS),
    )
    return tuple(RunRecord(*row) for row in rows)


def end_run(
    database: sqlite3.Connection,
    run_id: str,
    status: RunStatus,
    now: float,
    error: str = "",
    session_key: str = "",
) -> None:
    """Records the end of a run."""
    database.execute(
        "update runs set status = ?, ended = ?, error = ?, session = ? where id = ?",
        (status, now, error, session_key, run_id),
    )


def note_skip(database: sqlite3.Connection, job_id: str, now: float) -> None:
    """Records a skipped time. Times that are skipped in a row share one record."""
    again = database.execute(
        "update runs set times = times + 1, ended = ? where status = 'skipped'"
        " and number = (select max(number) from runs where job = ?)",
        (now, job_id),
    )
    if not again.rowcount:
        database.execute(
            "insert into runs (job, id, started, ended, status, error)"
            " values (?, ?, ?, ?, 'skipped', ?)",
            (job_id, uuid.uuid4().hex, now, now, SKIPPED),
        )
        prune(database, job_id)


def prune(database: sqlite3.Connection, job_id: str) -> None:
    """Deletes all but the last runs of a job."""
    database.execute(
        "delete from runs where job = :job and status != 'running' and number not in"
        " (select number from runs where job = :job order by number desc limit :kept)",
        {"job": job_id, "kept": KEPT_RUNS},
    )


# ---- State ----


@dataclass(slots=True)
class State:
    """The state of a job.

    Attributes:
        signature: `Job.signature` when `due` was computed.
        since: The time from which intervals are counted.
        due: The next scheduled time, or None.
        run: The id of the current run, or of a run whose process died; empty for none.
        owner: The process that runs the job.
        lease: The time when the claim of the owner expires.
        forced: 1 if a user started the run, outside of the schedule.
        attempt: How often the last scheduled run was started or continued.
        failures: The number of failures in a row.
    """

    signature: str
    since: float
    due: float | None
    run: str = ""
    owner: str = ""
    lease: float = 0.0
    forced: int = 0
    attempt: int = 0
    failures: int = 0

    def is_held(self, owner: str, now: float) -> bool:
        """True if a process runs the job: its lease has not expired, or it is `owner` itself."""
        # A lease in the far future was written before the clock was set back: it has expired.
        alive = now < self.lease <= now + 2 * LEASE_SECONDS
        return bool(self.run) and (alive or (owner != "" and self.owner == owner))

    def free(self) -> None:
        """Clears the claim."""
        self.run, self.owner, self.lease, self.forced = "", "", 0.0, 0


_NAMES = ", ".join(each.name for each in fields(State))
_PLACES = ", ".join("?" for _ in fields(State))


def new_state(job: "Job", now: float) -> State:
    """Returns the state of a new or rescheduled job; times before `now` are not made up for."""
    due = job.schedule(now).next_after(now) if job.enabled else None
    return State(job.signature, now, due)


def read_state(database: sqlite3.Connection, job_id: str) -> State | None:
    """Returns the state of a job, or None for a job that has none yet."""
    row = database.execute(f"select {_NAMES} from states where job = ?", (job_id,)).fetchone()  # noqa: S608 - our own names
    return None if row is None else State(*row)


def write_state(database: sqlite3.Connection, job_id: str, state: State) -> None:
    """Stores the state of a job."""
    database.execute(
        f"insert or replace into states (job, {_NAMES}) values (?, {_PLACES})",  # noqa: S608 - our own names
        (job_id, *astuple(state)),
    )


def is_settled(state: State | None, job: "Job", owner: str, now: float) -> bool:
    """True if `settle` would change nothing."""
    if state is None or state.signature != job.signature:
        return False
    return not state.run or state.is_held(owner, now)


def settle(database: sqlite3.Connection, job: "Job", owner: str, now: float) -> State:
    """Ends a run whose process died, reschedules a changed job, and returns the state."""
    state = read_state(database, job.id)
    if is_settled(state, job, owner, now):
        assert state is not None
        return state
    if state is None:
        state = new_state(job, now)
    if state.run and not state.is_held(owner, now):
        end_run(database, state.run, "lost", now, LOST)
        if not state.forced and state.attempt < MAX_ATTEMPTS:
            state.due = now
        else:
            state.attempt, state.failures = 0, state.failures + 1
        state.free()
    if state.signature != job.signature:
        new = new_state(job, now)
        state.signature, state.since, state.due = new.signature, new.since, new.due
        state.attempt = state.failures = 0
    write_state(database, job.id, state)
    return state


def due_after_failures(job: "Job", state: State, now: float) -> float | None:
    """Returns the next scheduled time that leaves the pause for the number of failures."""
    pause = PAUSES[min(state.failures, len(PAUSES) - 1)]
    later = job.schedule(state.since).next_after(now + pause) if pause else None
    if state.due is None or later is None:
        return state.due
    return max(state.due, later)
