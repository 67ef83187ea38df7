"""`clawmode cron` at a terminal: lists and runs jobs."""

import time
import uuid
from collections.abc import Callable, Sequence

import anyio

from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.app.console import ProgramOutput, duration, print_note
from clawmode.app.setup import Setup
from clawmode.cron.job import configured_jobs
from clawmode.cron.jobs import Claim, Jobs, JobStatus
from clawmode.cron.schedule import clock, in_words, read_zone
from clawmode.cron.scheduler import Scheduler
from clawmode.cron.turns import request_for
from clawmode.terminal.local_turn import LocalTurn
from clawmode.text import shorten

MAX_ERROR_CHARS = 80


def open_jobs(setup: Setup) -> Jobs:
    """Opens the jobs of a setup: those of the configuration, and those of its state folder.

    Raises:
        ConfigurationError: A job of the configuration is invalid.
    """
    return Jobs(setup.state, configured_jobs(setup.configuration.cron))


# ---- Listing ----


def print_jobs(out: ProgramOutput, setup: Setup, found: Sequence[JobStatus]) -> None:
    """Prints jobs as a table."""
    if not found:
        print_note("there are no jobs: see `clawmode cron add --help`")
        return
    rows: list[list[str]] = []
    for status in found:
        job, last, ago, outcome = status.job, status.last, "-", "-"
        if last is not None:
            ago = f"{duration(max(time.time() - last.started_at, 0))} ago"
            error = f": {shorten(last.error, MAX_ERROR_CHARS)}" if last.error else ""
            # The ledger still says `running` if the process of a run died: it recorded no end.
            lost = last.status == "running" and not status.running
            outcome = "lost" if lost else f"{last.status}{error}"
        rows.append([job.id, in_words(job.schedule()), next_time(status), ago, outcome])
    out.table(["id", "schedule", "next", "last run", "status"], rows)
    if not setup.configuration.cron.enabled:
        print_note("cron.enabled is false, so no job runs at its times")


def next_time(status: JobStatus) -> str:
    """Formats the next time of a job, or why there is none."""
    if not status.job.enabled:
        return "disabled"
    if status.due is None:
        return "never"
    return clock(status.due, read_zone(status.job.tz))


# ---- Running ----


class JobTurn(LocalTurn):
    """A run of a job in this process. Nobody could resume it, so it never waits.

    Args:
        setup: The settings, tools and servers.
        job_id: The id of the job.

    Raises:
        JobError: There is no such job.
    """

    _scheduler: Scheduler
    _claim: Claim

    def __init__(self, setup: Setup, job_id: str) -> None:
        super().__init__(setup)
        self._job = anyio.run(open_jobs(setup).get, job_id).job

    def request(self) -> AgentRequest:
        """Returns the request of the job, for `TerminalTurn.run`."""
        return request_for(self._job, uuid.uuid4().hex)

    def workspace(self) -> None:
        """As in a gateway, each agent has a folder in the state folder."""

    async def start(self, request: AgentRequest) -> None:
        # The claim makes a request with a run id and a session of its own.
        cleanup_seconds = self._setup.configuration.cron.cleanup_seconds
        jobs = open_jobs(self._setup)
        self._scheduler = Scheduler(jobs, self._host.runtime, cleanup_seconds=cleanup_seconds)
        self._claim = await self._scheduler.claim_now(self._job.id)
        self._run_id = self._claim.run_id

    async def result(self) -> RunResult:
        return await self._scheduler.carry_out(self._claim)

    async def leave(self, say: Callable[[str], None]) -> bool:
        await self.stop()
        return False
