"""One isolated turn: started, timed from when it really begins, aborted, cleaned up after.

Whatever the runtime does or does not do, it is over at most `cleanup_seconds` after its deadline.
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
from clawmode.exceptions import ClawmodeError
from clawmode.foreign import message_of

logger = logging.getLogger("clawmode.cron")

CRON = "cron"
"""The `trigger` of runs of jobs."""


class Clock(Protocol):
    """Tells the time, and lets it pass."""

    def now(self) -> float:
        """The time of day, in seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Lets time pass."""
        ...


class WallClock:
    """The clock of the machine."""

    def now(self) -> float:
        """The time of day, in seconds."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Lets time pass."""
        await anyio.sleep(seconds)


class Runtime(Protocol):
    """What runs turns: an `AgentRuntime`."""

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Shows every event of every run, until what it returns is called."""
        ...

    async def start(self, request: AgentRequest) -> object:
        """Accepts a run, and returns before it begins."""
        ...

    async def result(self, run_id: str) -> RunResult:
        """What came of a run, when it has ended."""
        ...

    def abort(self, run_id: str) -> bool:
        """Stops a run."""
        ...


def request_for(job: Job, run_id: str) -> AgentRequest:
    """What a job asks of its agent, in a session of its own."""
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
    """Runs a turn. What goes wrong is its result; cancelled, it leaves the run as it is."""
    begun = anyio.Event()

    def listen(event: AgentEvent) -> None:
        if event.run_id == request.run_id and event.stream == "lifecycle":
            begun.set()

    unsubscribe = runtime.subscribe(listen)
    began = clock.now()
    try:
        await runtime.start(request)
        result = await _in_time(request, runtime, clock, begun)
        if result is None:
            result = await _clean_up(request, runtime, clock, cleanup_seconds)
    except Exception as error:
        if not isinstance(error, ClawmodeError):
            logger.exception("run %s", request.run_id)
        result = _without_one(request, "error", message_of(error))
    finally:
        unsubscribe()
    return replace(result, started_at=result.started_at or began, ended_at=clock.now())


async def _in_time(
    request: AgentRequest, runtime: Runtime, clock: Clock, begun: anyio.Event
) -> RunResult | None:
    """The result, if it comes in the time that the turn has from its beginning on."""
    seconds = request.cron_seconds
    if seconds is None:
        return await runtime.result(request.run_id)

    async def pass_time() -> None:
        await begun.wait()
        await clock.sleep(seconds)

    return await _result(request, runtime, pass_time)


async def _clean_up(
    request: AgentRequest, runtime: Runtime, clock: Clock, seconds: float
) -> RunResult:
    """Aborts a turn. It has had its time, however it ends now, and whether it does or not."""
    error = f"the turn took longer than its {request.cron_seconds:g} s"
    runtime.abort(request.run_id)
    ended = await _result(request, runtime, lambda: clock.sleep(seconds))
    if ended is None:
        logger.error("run %s was aborted and has not ended", request.run_id)
        error += f", and has not ended {seconds:g} s after it was aborted"
        ended = _without_one(request, "timeout", error)
    return replace(ended, status="timeout", error=error, problem="timeout")


async def _result(
    request: AgentRequest, runtime: Runtime, limit: Callable[[], Awaitable[None]]
) -> RunResult | None:
    """The result, if it is there before the limit is."""
    found: RunResult | None = None
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            await limit()
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            found = await runtime.result(request.run_id)
        except Exception as error:  # else it would come out in a group
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return found


def _without_one(request: AgentRequest, status: str, error: str) -> RunResult:
    """What there is to say of a run that has said nothing itself."""
    return RunResult(
        run_id=request.run_id,
        session_key=request.session_key,
        session_id="",
        status="timeout" if status == "timeout" else "error",
        error=error,
        problem=status,
    )
