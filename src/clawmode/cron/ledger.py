"""What is written down about jobs: when each is due, who runs it, and its last runs.

Rows in, rows out, inside of a transaction that `jobs` has begun.
"""

import sqlite3
import uuid
from dataclasses import astuple, dataclass, fields
from typing import Literal, TypeAlias

from clawmode.cron.job import Job
from clawmode.types import JsonObject

RunStatus: TypeAlias = Literal["running", "ok", "error", "timeout", "aborted", "skipped", "lost"]

LEASE_SECONDS = 60.0
"""How long a claim holds that nobody renews."""

MAX_ATTEMPTS = 2
"""How often a time is tried whose process ends: one that ends each time would do so forever."""

MAX_CONTINUED = 10
"""How often a run is continued whose process ends, for the same reason."""

PAUSES = (0.0, 0.0, 60.0, 300.0, 900.0, 3600.0)
"""Seconds that a job rests at least, by how often it has failed in a row."""

KEPT_RUNS = 50

SKIPPED = "the run before it still went on"
LOST = "the process that ran it has ended"

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
    """A run, as it is remembered.

    Attributes:
        times: How many times of the job were skipped, if that is its status.
    """

    id: str
    started_at: float
    ended_at: float | None
    status: RunStatus
    error: str = ""
    session_key: str = ""
    times: int = 1

    def to_json(self) -> JsonObject:
        """As programs see it."""
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
    """The runs of a job, the newest first."""
    rows = database.execute(
        "select id, started, ended, status, error, session, times from runs where job = ?"
        " order by number desc limit ?",
        (job_id, KEPT_RUNS),
    )
    return tuple(RunRecord(*row) for row in rows)


def begin_run(database: sqlite3.Connection, job_id: str, run_id: str, now: float) -> None:
    """A run has begun."""
    database.execute(
        "insert into runs (job, id, started, status) values (?, ?, ?, 'running')",
        (job_id, run_id, now),
    )


def end_run(
    database: sqlite3.Connection,
    run_id: str,
    status: RunStatus,
    now: float,
    error: str = "",
    session_key: str = "",
) -> None:
    """A run has ended."""
    database.execute(
        "update runs set status = ?, ended = ?, error = ?, session = ? where id = ?",
        (status, now, error, session_key, run_id),
    )


def note_skip(database: sqlite3.Connection, job_id: str, now: float) -> None:
    """A time was skipped; all that one run is in the way of have one row."""
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
    """Forgets all but the last runs of a job."""
    database.execute(
        "delete from runs where job = :job and status != 'running' and number not in"
        " (select number from runs where job = :job order by number desc limit :kept)",
        {"job": job_id, "kept": KEPT_RUNS},
    )


# ---- How a job stands ----


@dataclass(slots=True)
class State:
    """How a job stands.

    Attributes:
        signature: What its times depended on when they were looked up.
        since: When they were; intervals count from there.
        due: When it runs next; None: it does not.
        run: The run that is under way, or was when its process ended; empty for none.
        owner: Who runs it.
        lease: Until when that holds.
        forced: Whether somebody wanted that run, whatever the job's times are.
        attempt: How often the last time was tried, or its run continued.
        failures: How often it has failed in a row.
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
        """Whether somebody runs it; an owner knows what it runs itself."""
        # One that holds longer than any was made by a clock that has been set back since.
        alive = now < self.lease <= now + 2 * LEASE_SECONDS
        return bool(self.run) and (alive or (owner != "" and self.owner == owner))

    def free(self) -> None:
        """Nobody runs it."""
        self.run, self.owner, self.lease, self.forced = "", "", 0.0, 0


_NAMES = ", ".join(each.name for each in fields(State))
_PLACES = ", ".join("?" for _ in fields(State))


def fresh(job: Job, now: float) -> State:
    """A job that is seen for the first time, or with other times. What is over does not come."""
    due = job.schedule(now).next_after(now) if job.enabled else None
    return State(job.signature, now, due)


def read_state(database: sqlite3.Connection, job_id: str) -> State | None:
    """How a job stands; None if it was never seen."""
    row = database.execute(f"select {_NAMES} from states where job = ?", (job_id,)).fetchone()  # noqa: S608 - our own names
    return None if row is None else State(*row)


def write_state(database: sqlite3.Connection, job_id: str, state: State) -> None:
    """Keeps how a job stands."""
    database.execute(
        f"insert or replace into states (job, {_NAMES}) values (?, {_PLACES})",  # noqa: S608 - our own names
        (job_id, *astuple(state)),
    )


def is_settled(state: State | None, job: Job, owner: str, now: float) -> bool:
    """Whether `settle` would change nothing."""
    if state is None or state.signature != job.signature:
        return False
    return not state.run or state.is_held(owner, now)


def settle(database: sqlite3.Connection, job: Job, owner: str, now: float) -> State:
    """How a job stands, once a run whose process has ended is over and its times are looked up."""
    state = read_state(database, job.id)
    if is_settled(state, job, owner, now):
        assert state is not None
        return state
    if state is None:
        state = fresh(job, now)
    if state.run and not state.is_held(owner, now):
        end_run(database, state.run, "lost", now, LOST)
        if not state.forced and state.attempt < MAX_ATTEMPTS:
            state.due = now
        else:
            state.attempt, state.failures = 0, state.failures + 1
        state.free()
    if state.signature != job.signature:
        new = fresh(job, now)
        state.signature, state.since, state.due = new.signature, new.since, new.due
        state.attempt = state.failures = 0
    write_state(database, job.id, state)
    return state


def rested(job: Job, state: State, now: float) -> float | None:
    """When a job is due that has failed so often: a time of its own, after a rest."""
    pause = PAUSES[min(state.failures, len(PAUSES) - 1)]
    later = job.schedule(state.since).next_after(now + pause) if pause else None
    if state.due is None or later is None:
        return state.due
    return max(state.due, later)
