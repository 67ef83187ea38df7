"""`clawmode cron` at a terminal: lists, adds, removes and runs jobs."""

import signal
import time
import uuid
from dataclasses import dataclass

import anyio

from clawmode.agent.models import ModelPool
from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.agent.run import AgentRun
from clawmode.agent.runtime import AgentRuntime
from clawmode.app.console import ProgramOutput, duration, print_note
from clawmode.app.setup import Setup
from clawmode.config import resolve as settings
from clawmode.cron.job import Job, check_named, configured_jobs
from clawmode.cron.jobs import Jobs, JobStatus
from clawmode.cron.schedule import clock, in_words, read_zone
from clawmode.cron.scheduler import Scheduler
from clawmode.cron.turns import request_for
from clawmode.terminal.desk import Desk, make_approvals
from clawmode.terminal.interrupts import interruptible
from clawmode.terminal.local_turn import LocalTurn, open_runtime
from clawmode.types import JsonObject, JsonValue

MAX_ERROR_CHARS = 80


def open_jobs(setup: Setup) -> Jobs:
    """Opens the jobs of a setup: those of the configuration, and those of its state folder.

    Raises:
        ConfigurationError: A job of the configuration is invalid.
    """
    return Jobs(setup.state, configured_jobs(setup.configuration.cron))


# ---- Listing ----


def list_all(setup: Setup) -> list[JsonValue]:
    """Returns all jobs as JSON, sorted by id."""
    return [status.described() for status in anyio.run(open_jobs(setup).list)]


def print_jobs(out: ProgramOutput, setup: Setup) -> None:
    """Prints all jobs as a table."""
    found = anyio.run(open_jobs(setup).list)
    if not found:
        print_note("there are no jobs: see `clawmode cron add --help`")
        return
    out.table(["id", "schedule", "next", "last run", "status"], [_row(status) for status in found])
    if not setup.configuration.cron.enabled:
        print_note("cron.enabled is false, so no job runs at its times")


def _row(status: JobStatus) -> list[str]:
    job, last = status.job, status.last
    ago, outcome = "-", "-"
    if last is not None:
        ago = f"{duration(max(time.time() - last.started_at, 0))} ago"
        error = f": {last.error[:MAX_ERROR_CHARS]}" if last.error else ""
        outcome = f"{last.status}{error}"
    # The ledger still says `running` if the process of a run died: nothing recorded its end.
    lost = last is not None and last.status == "running" and not status.running
    return [job.id, in_words(job.schedule()), next_time(status), ago, "lost" if lost else outcome]


def next_time(status: JobStatus) -> str:
    """Formats the next time of a job, or why there is none."""
    if not status.job.enabled:
        return "disabled"
    if status.due is None:
        return "never"
    return clock(status.due, read_zone(status.job.tz))


# ---- Changing ----


def add(setup: Setup, job: Job) -> JobStatus:
    """Adds a job to the state folder.

    Raises:
        ConfigurationError: The job is invalid, or names an unknown agent or channel.
        JobError: There is a job with this id.
    """
    check_named(setup.configuration, job)
    return anyio.run(open_jobs(setup).add, job)


def enable(setup: Setup, job_id: str, enabled: bool) -> JobStatus:
    """Switches a job on or off.

    Raises:
        JobError: There is no such job, or it belongs to the configuration.
    """
    return anyio.run(open_jobs(setup).enable, job_id, enabled)


def remove(setup: Setup, job_id: str) -> None:
    """Removes a job from the state folder.

    Raises:
        JobError: There is no such job, or it belongs to the configuration.
    """
    anyio.run(open_jobs(setup).remove, job_id)


# ---- Running ----


@dataclass(frozen=True, slots=True, kw_only=True)
class CronTurn(LocalTurn):
    """A run of a job in this process, shown like a turn of `clawmode agent`."""

    def run_job(self, job_id: str) -> RunResult:
        """Runs a job now.

        Raises:
            JobError: There is no such job, or it is running already.
            ConfigurationError: The job cannot run; nothing ran.
            KeyboardInterrupt: The run was stopped.
        """
        job = anyio.run(open_jobs(self.setup).get, job_id).job
        result = self.run(request_for(job, uuid.uuid4().hex))
        assert result is not None, "a run of a job is never left waiting"
        return result

    async def _drive(self, request: AgentRequest, models: ModelPool) -> RunResult | AgentRun:
        agent_id = request.agent_id or settings.default_agent(self.setup.configuration)
        mode = self.approve or settings.approve_mode(self.setup.configuration, agent_id)
        desk = None
        if mode == "ask":
            desk = Desk.at_terminal(self.view.paused, stdin_is_taken=False)
        approvals = make_approvals(mode, desk)
        async with interruptible(), open_runtime(self.setup, approvals, models) as runtime:
            unsubscribe = runtime.subscribe(self.view.add)
            job_id = request.session_key.split(":")[1]  # cron:<job id>:run:<run id>
            job_run = _JobRun(self.setup, runtime, job_id)
            result = await job_run.run(desk)
            unsubscribe()
        return result


class _JobRun:
    """A run of a job, whose questions the user answers and which Ctrl-C stops."""

    def __init__(self, setup: Setup, runtime: AgentRuntime, job_id: str) -> None:
        self._runtime = runtime
        self._job_id = job_id
        self._run_id = ""
        self._scheduler = Scheduler(
            open_jobs(setup),
            runtime,
            cleanup_seconds=setup.configuration.cron.cleanup_seconds,
            on_event=self._remember_run,
        )

    async def run(self, desk: Desk | None) -> RunResult:
        failure: Exception | None = None
        result: RunResult | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._abort_on_signal)
            if desk is not None:
                tasks.start_soon(self._put_questions, desk)
            try:
                result = await self._scheduler.run_now(self._job_id)
            except Exception as error:  # the task group would wrap it in an ExceptionGroup
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        assert result is not None
        return result

    def _remember_run(self, event: JsonObject) -> None:
        self._run_id = str(event.get("runId", self._run_id))

    async def _abort_on_signal(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                self._runtime.abort(self._run_id)
                return

    async def _put_questions(self, desk: Desk) -> None:
        """Puts questions to the user. To decide later aborts the run: nobody could resume it."""
        await desk.serve()
        self._runtime.abort(self._run_id)
