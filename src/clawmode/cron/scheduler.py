"""The scheduler: runs jobs when they are due, a limited number of them concurrently.

Only this module claims jobs, times and aborts their turns, and records how these ended.
"""

import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio
from anyio.abc import TaskGroup

from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.cron.job import Job
from clawmode.cron.jobs import Claim, Jobs, JobsUnavailable, SkippedTime, UnknownJob
from clawmode.cron.ledger import LEASE_SECONDS
from clawmode.cron.turns import Clock, Runtime, WallClock, request_for, run_turn
from clawmode.exceptions import ClawmodeError, message_of
from clawmode.tasks import Notifier, background_tasks
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.cron")

Deliver: TypeAlias = Callable[[Job, RunResult], Awaitable[None]]
"""Sends a result to the channel of a job. An exception is recorded with the run."""

OnEvent: TypeAlias = Callable[[JsonObject], None]
"""Receives `{job, phase: "started" | "finished", …}`. Must not block; exceptions are logged."""

POLL_SECONDS = 5.0
"""How often to look for jobs that other processes added, and for changes of the clock."""

AGAIN_SECONDS = 0.2
"""How soon to look again after another process claimed a job first."""

RENEW_SECONDS = LEASE_SECONDS / 3
DELIVER_SECONDS = 60.0
RECORD_TRIES = 5
RECORD_SECONDS = 40.0
LEAVE_SECONDS = 5.0
"""The time that a cancelled run has to record its end."""


class Scheduler:
    """Runs the jobs of a state folder.

    Args:
        jobs: The jobs to run.
        runtime: Runs the turns.
        clock: The clock; tests pass one of their own.
        max_concurrent: The most concurrent turns; runs by `run_now` do not count.
        cleanup_seconds: The time that an aborted turn has to end.
        deliver: Sends results of jobs that have a channel.
        on_event: Receives an event for each start and end.
        continues: True to leave runs unfinished when the scheduler is cancelled, for `adopt` and
            `go_on` at the next start; otherwise they are aborted.
    """

    def __init__(
        self,
        jobs: Jobs,
        runtime: Runtime,
        *,
        clock: Clock | None = None,
        max_concurrent: int = 1,
        cleanup_seconds: float = 10.0,
        deliver: Deliver | None = None,
        on_event: OnEvent | None = None,
        continues: bool = False,
    ) -> None:
        self._jobs = jobs
        self._runtime = runtime
        self._clock = clock or WallClock()
        self._max = max_concurrent
        self._cleanup = cleanup_seconds
        self._deliver = deliver
        self._on_event = on_event
        self._continues = continues
        self._owner = uuid.uuid4().hex
        self._under_way = 0
        self._news = Notifier()

    # ---- For callers ----

    async def serve(self) -> None:
        """Runs jobs as they become due, until the task is cancelled; see `continues`."""
        async with anyio.create_task_group() as tasks:
            while True:
                seen = self._news.count
                try:
                    seconds = await self._look(tasks)
                except JobsUnavailable as error:
                    logger.error("%s", error)
                    seconds = POLL_SECONDS
                await self._pause(seconds, seen)

    async def run_now(self, job_id: str) -> RunResult:
        """Runs a job at once, even if it is disabled.

        Raises:
            UnknownJob: No job has the id.
            JobBusy: The job has a run that has not ended.
        """
        return await self.carry_out(await self.claim_now(job_id))

    async def claim_now(self, job_id: str) -> Claim:
        """Claims a job to run it at once with `carry_out`; raises the same as `run_now`."""
        job = (await self._jobs.get(job_id)).job
        claim = await self._jobs.claim(job, self._owner, forced=True)
        if not isinstance(claim, Claim):
            raise UnknownJob(f"the job {job.id!r} was removed")
        return claim

    async def adopt(self, run_id: str) -> Claim | None:
        """Claims a run that another process left unfinished; None if that is not possible."""
        return await self._jobs.adopt(run_id, self._owner)

    async def go_on(self, claim: Claim, request: AgentRequest) -> None:
        """Continues an adopted run to its end."""
        self._under_way += 1
        await self._live(claim, request)

    async def settle(self, claim: Claim, result: RunResult) -> None:
        """Records the result of an adopted run whose turn had ended before its process died."""
        await self._record(claim, result)

    def change(self, *, max_concurrent: int, cleanup_seconds: float) -> None:
        """Applies new limits, and looks for changed jobs."""
        self._max, self._cleanup = max_concurrent, cleanup_seconds
        self.wake()

    def wake(self) -> None:
        """Looks for due jobs at once; call it when jobs have changed."""
        self._news.notify()

    # ---- Due jobs ----

    async def _look(self, tasks: TaskGroup) -> float:
        """Starts the jobs that are due; returns the seconds until the next look."""
        statuses = await self._jobs.statuses(self._owner)
        now = self._clock.now()
        due = [each for each in statuses if each.due is not None and each.due <= now]
        looks_again = False
        for each in sorted(due, key=lambda each: each.due or now):
            if each.running or self._under_way < self._max:
                looks_again = True
                room = self._under_way < self._max
                claim = await self._jobs.claim(each.job, self._owner, room=room)
                if isinstance(claim, SkippedTime):
                    self._tell(each.job, "finished", {"status": "skipped"})
                elif claim is not None:
                    self._under_way += 1
                    tasks.start_soon(self._live, claim)
        later = [each.due - now for each in statuses if each.due is not None and each.due > now]
        return min([*later, AGAIN_SECONDS if looks_again else POLL_SECONDS])

    async def _pause(self, seconds: float, seen: int) -> None:
        async with background_tasks() as tasks:

            async def listen() -> None:
                await self._news.wait(seen)
                tasks.cancel_scope.cancel()

            tasks.start_soon(listen)
            await self._clock.sleep(seconds)

    # ---- One run ----

    async def _live(self, claim: Claim, request: AgentRequest | None = None) -> None:
        try:
            await self.carry_out(claim, request)
        except Exception:
            logger.exception("job %s", claim.job.id)
        finally:
            self._under_way -= 1
            self._news.notify()

    async def carry_out(self, claim: Claim, request: AgentRequest | None = None) -> RunResult:
        """Runs a job once. An error in the turn is part of the result.

        Args:
            claim: The claim for the run.
            request: The request that continues an adopted run; None starts the run.
        """
        self._tell(claim.job, "started", {"runId": claim.run_id})
        ours = True
        try:
            result = await self._turn(claim, request or request_for(claim.job, claim.run_id))
        except anyio.get_cancelled_exc_class():
            if not self._continues:
                self._runtime.abort(claim.run_id)
            with anyio.move_on_after(LEAVE_SECONDS, shield=True):
                await self._leave(claim)
            raise
        with anyio.move_on_after(RECORD_SECONDS, shield=True):
            ours = await self._record(claim, result)
        about: JsonObject = {
            "runId": claim.run_id,
            "sessionKey": result.session_key,
            "status": result.status,
        }
        error: JsonObject = {} if result.error is None else {"error": result.error}
        self._tell(claim.job, "finished", about | error)
        if ours:
            await self._send(claim, result)
        return result

    async def _turn(self, claim: Claim, request: AgentRequest) -> RunResult:
        """Runs the turn, and aborts it if the claim is lost."""
        result = RunResult(
            run_id=claim.run_id,
            session_key=request.session_key,
            session_id="",
            status="aborted",
            error="the claim was lost: another process runs the job, or the job was removed",
        )
        async with background_tasks() as tasks:

            async def renew() -> None:
                ours = True
                while ours:
                    await self._clock.sleep(RENEW_SECONDS)
                    try:
                        ours = await self._jobs.renew(claim)
                    except JobsUnavailable as error:
                        logger.error("job %s: %s", claim.job.id, error)
                self._runtime.abort(claim.run_id)
                tasks.cancel_scope.cancel()

            tasks.start_soon(renew)
            result = await run_turn(
                request, self._runtime, self._clock, cleanup_seconds=self._cleanup
            )
        return result

    # ---- The end of a run ----

    async def _record(self, claim: Claim, result: RunResult) -> bool:
        """Records how the run ended, with retries. Returns False if the claim was lost."""
        for _ in range(RECORD_TRIES):
            try:
                return await self._jobs.finish(
                    claim, result.status, error=result.error or "", session_key=result.session_key
                )
            except JobsUnavailable as error:
                logger.error("job %s: %s", claim.job.id, error)
                await self._clock.sleep(1)
        return True

    async def _leave(self, claim: Claim) -> None:
        """Ends a run that a user started; leaves a scheduled run to the next scheduler."""
        try:
            if claim.forced and not self._continues:
                await self._jobs.finish(claim, "aborted", error="the run was stopped")
            else:
                await self._jobs.leave(claim)
        except ClawmodeError as error:
            logger.error("job %s: %s", claim.job.id, error)

    async def _send(self, claim: Claim, result: RunResult) -> None:
        job = claim.job
        says_something = bool(result.payloads) or result.status in ("error", "timeout")
        if self._deliver is None or not job.channel or not says_something:
            return
        failure = f"the reply was not delivered within {DELIVER_SECONDS:g} s"
        try:
            with anyio.move_on_after(DELIVER_SECONDS):
                await self._deliver(job, result)
                return
        except Exception as error:
            failure = f"the reply could not be delivered: {message_of(error)}"
        logger.error("job %s: %s", job.id, failure)
        try:
            await self._jobs.annotate(claim, failure)
        except JobsUnavailable as error:
            logger.error("job %s: %s", job.id, error)

    def _tell(self, job: Job, phase: str, about: JsonObject) -> None:
        if self._on_event is None:
            return
        at = int(self._clock.now() * 1000)
        try:
            self._on_event({"job": job.id, "phase": phase, "at": at, **about})
        except Exception as error:
            logger.error("job %s: on_event: %s", job.id, message_of(error))
