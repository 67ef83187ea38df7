"""`clawmode cron` at a terminal: jobs listed, added, removed, and run in the foreground."""

import signal
import time
import uuid
from dataclasses import dataclass

import anyio

from clawmode.agent.models import ModelPool
from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.agent.runtime import AgentRuntime, Run
from clawmode.app.console import ProgramOutput, duration, print_note
from clawmode.app.setup import Setup
from clawmode.config import resolve as settings
from clawmode.cron.job import Job, check_named, configured_jobs
from clawmode.cron.jobs import Jobs, JobStatus
from clawmode.cron.schedule import read_zone
from clawmode.cron.scheduler import Scheduler
from clawmode.cron.turns import request_for
from clawmode.cron.words import clock, in_words
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.desk import Desk, Terminal, make_approvals
from clawmode.terminal.interrupts import interruptible
from clawmode.terminal.local_turn import AgentCommand, open_runtime
from clawmode.types import JsonObject, JsonValue

MAX_ERROR_CHARS = 80


def open_jobs(setup: Setup) -> Jobs:
    """The jobs of a setup: those of the configuration, and those of its state folder.

    Raises:
        ConfigurationError: A job of the configuration cannot be meant.
    """
    return Jobs(setup.state, configured_jobs(setup.configuration.cron))


# ---- Looking ----


def list_all(setup: Setup) -> list[JsonValue]:
    """All jobs, by id, as programs see them."""
    return [describe(each) for each in anyio.run(open_jobs(setup).list)]


def print_jobs(out: ProgramOutput, setup: Setup) -> None:
    """Prints them as a table."""
    found = anyio.run(open_jobs(setup).list)
    if not found:
        print_note("there are no jobs: see `clawmode cron add --help`")
        return
    out.table(["id", "schedule", "next", "last run", "status"], [_row(each) for each in found])
    if not setup.configuration.cron.enabled:
        print_note("cron.enabled is false, so no job runs at its times")


def describe(standing: JobStatus) -> JsonObject:
    """A job, and how it stands."""
    return standing.described()


def _row(standing: JobStatus) -> list[str]:
    job, last = standing.job, standing.last
    ago, status = "-", "-"
    if last is not None:
        ago = f"{duration(max(time.time() - last.started_at, 0))} ago"
        error = f": {last.error[:MAX_ERROR_CHARS]}" if last.error else ""
        status = f"{last.status}{error}"
    # That it ended badly is found out when somebody else wants to run it.
    gone = last is not None and last.status == "running" and not standing.running
    return [job.id, in_words(job.schedule()), next_time(standing), ago, "lost" if gone else status]


def next_time(standing: JobStatus) -> str:
    """When a job runs next."""
    if not standing.job.enabled:
        return "disabled"
    if standing.due is None:
        return "never"
    return clock(standing.due, read_zone(standing.job.tz))


# ---- Changing ----


def add(setup: Setup, job: Job) -> JobStatus:
    """Keeps a job.

    Raises:
        ConfigurationError: It cannot be meant.
        JobError: There is one of that id.
    """
    check_named(setup.configuration, job)
    return anyio.run(open_jobs(setup).add, job)


def enable(setup: Setup, job_id: str, enabled: bool) -> JobStatus:
    """Switches a job on or off.

    Raises:
        JobError: There is none, or it stands in the configuration.
    """
    return anyio.run(open_jobs(setup).enable, job_id, enabled)


def remove(setup: Setup, job_id: str) -> None:
    """Forgets a job.

    Raises:
        JobError: There is none, or it stands in the configuration.
    """
    anyio.run(open_jobs(setup).remove, job_id)


# ---- Running ----


@dataclass(frozen=True, slots=True, kw_only=True)
class CronCommand(AgentCommand):
    """A run of a job in the foreground, shown as that of `clawmode agent`."""

    def run_job(self, job_id: str) -> RunResult:
        """Runs a job now.

        Raises:
            JobError: There is none, or it is under way.
            ConfigurationError: It cannot be run; nothing ran.
            KeyboardInterrupt: The run was stopped.
        """
        job = anyio.run(open_jobs(self.setup).get, job_id).job
        result = self.run(request_for(job, uuid.uuid4().hex))
        assert result is not None, "a run of a job is not left for later"
        return result

    async def _drive(
        self, request: AgentRequest, view: AgentView, models: ModelPool
    ) -> RunResult | Run:
        agent_id = request.agent_id or settings.default_agent(self.setup.configuration)
        mode = self.approve or settings.approve_mode(self.setup.configuration, agent_id)
        approvals = make_approvals(
            mode,
            later=False,
            terminal=Terminal.find(stdin_is_taken=False) if mode == "ask" else None,
            paused=view.paused,
            tell=print_note,
        )
        async with interruptible(), open_runtime(self.setup, approvals, models) as runtime:
            unsubscribe = runtime.subscribe(view.take)
            turn = _Foreground(self.setup, runtime, request.session_key.split(":")[1])
            result = await turn.run(approvals if isinstance(approvals, Desk) else None)
            unsubscribe()
        return result


class _Foreground:
    """A run that a person watches, answers for, and can stop."""

    def __init__(self, setup: Setup, runtime: AgentRuntime, job_id: str) -> None:
        self._runtime = runtime
        self._job_id = job_id
        self._run_id = ""
        self._scheduler = Scheduler(
            open_jobs(setup),
            runtime,
            cleanup_seconds=setup.configuration.cron.cleanup_seconds,
            on_event=self._note,
        )

    async def run(self, desk: Desk | None) -> RunResult:
        """Runs it to its end."""
        failure: Exception | None = None
        result: RunResult | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stop_at_a_signal)
            if desk is not None:
                tasks.start_soon(self._put_questions, desk)
            try:
                result = await self._scheduler.run_now(self._job_id)
            except Exception as error:  # else it would come out in a group
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        assert result is not None
        return result

    def _note(self, event: JsonObject) -> None:
        self._run_id = str(event.get("runId", self._run_id))

    async def _stop_at_a_signal(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                self._runtime.abort(self._run_id)
                return

    async def _put_questions(self, desk: Desk) -> None:
        """Nobody can go on with it later: who does not want to decide stops it."""
        await desk.serve()
        self._runtime.abort(self._run_id)
