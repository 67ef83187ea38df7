"""One turn of a job, in a session of its own, with a time limit.

The limit counts from the actual start of the turn, not from the time it was queued. Even if the
runtime does not react, `run_turn` returns at most `cleanup_seconds` after the limit.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

import anyio

from clawmode.agent.events import AgentEvent, Listener
from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.cron.job import Job
from clawmode.exceptions import ClawmodeError, message_of
from clawmode.tasks import background_tasks

logger = logging.getLogger("clawmode.cron")

CRON = "cron"
"""The `trigger` of turns that jobs start."""


class Clock(Protocol):
    """A clock that tests can replace. `now` is the time of day, in seconds."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class WallClock:
    """The clock of the machine, for everything but tests."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class Runtime(Protocol):
    """The methods of `AgentRuntime` that the scheduler needs."""

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Calls the listener for every event of every run; returns a function that ends this."""
        ...

    async def start(self, request: AgentRequest) -> object:
        """Accepts a run, and returns before the run begins."""
        ...

    async def result(self, run_id: str) -> RunResult:
        """Waits for the end of a run, and returns its result."""
        ...

    def abort(self, run_id: str) -> bool:
        """Aborts a run; returns False if there is none, or it has ended."""
        ...


def request_for(job: Job, run_id: str) -> AgentRequest:
    """Returns the request for one run of a job, in a session of its own."""
    return AgentRequest(
        message=job.message,
        agent_id=job.agent,
        session_key=f"cron:{job.id}:run:{run_id}",
        run_id=run_id,
        model=job.model,
        thinking=job.thinking,
        channel=job.channel,
        target=job.target,
        trigger=CRON,
        cron_seconds=job.timeout_seconds,
    )


async def run_turn(
    request: AgentRequest, runtime: Runtime, clock: Clock, *, cleanup_seconds: float
) -> RunResult:
    """Runs a turn. Errors are part of the result; cancellation leaves the run unfinished."""
    begun = anyio.Event()

    def listen(event: AgentEvent) -> None:
        if event.run_id == request.run_id and event.stream == "lifecycle":
            begun.set()

    unsubscribe = runtime.subscribe(listen)
    began = clock.now()
    try:
        await runtime.start(request)
        seconds = request.cron_seconds
        if seconds is None:
            result = await runtime.result(request.run_id)
        else:

            async def pass_time(seconds: float = seconds) -> None:
                await begun.wait()
                await clock.sleep(seconds)

            result = await _result(request, runtime, pass_time)
        if result is None:
            result = await _clean_up(request, runtime, clock, cleanup_seconds)
    except Exception as error:
        if not isinstance(error, ClawmodeError):
            logger.exception("run %s", request.run_id)
        result = _failure(request, "error", message_of(error))
    finally:
        unsubscribe()
    return replace(result, started_at=result.started_at or began, ended_at=clock.now())


async def _clean_up(
    request: AgentRequest, runtime: Runtime, clock: Clock, seconds: float
) -> RunResult:
    """Aborts a turn after its time limit; the result is a timeout, however the turn ends."""
    error = f"the turn exceeded its time limit of {request.cron_seconds:g} s"
    runtime.abort(request.run_id)
    ended = await _result(request, runtime, lambda: clock.sleep(seconds))
    if ended is None:
        logger.error("run %s was aborted and did not end in time", request.run_id)
        error += f", and did not end within {seconds:g} s of being aborted"
        ended = _failure(request, "timeout", error)
    return replace(ended, status="timeout", error=error, problem="timeout")


async def _result(
    request: AgentRequest, runtime: Runtime, limit: Callable[[], Awaitable[None]]
) -> RunResult | None:
    """Returns the result, or None if `limit` returns first."""
    found: RunResult | None = None
    async with background_tasks() as tasks:

        async def watch() -> None:
            await limit()
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        found = await runtime.result(request.run_id)
    return found


def _failure(request: AgentRequest, status: str, error: str) -> RunResult:
    """Returns the result of a run that the runtime did not report."""
    return RunResult(
        run_id=request.run_id,
        session_key=request.session_key,
        session_id="",
        status="timeout" if status == "timeout" else "error",
        error=error,
        problem=status,
    )
