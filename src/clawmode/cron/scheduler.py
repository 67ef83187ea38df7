"""Runs jobs when they are due, each in a turn of its own, so many at the same time.

Here alone such a turn is timed, aborted, and said how it ended; see `turns`.
"""

import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio
from anyio.abc import TaskGroup

from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.cron.job import Job
from clawmode.cron.jobs import Claim, Jobs, JobsUnavailable, Skipped, Standing, UnknownJob
from clawmode.cron.ledger import LEASE_SECONDS
from clawmode.cron.turns import Clock, Runtime, WallClock, request_for, run_turn
from clawmode.exceptions import ClawmodeError
from clawmode.foreign import message_of
from clawmode.tasks import Notifier
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.cron")

Deliver: TypeAlias = Callable[[Job, RunResult], Awaitable[None]]
"""Sends a result on to the job's channel and target. What it raises is kept with the run."""

OnEvent: TypeAlias = Callable[[JsonObject], None]
"""Told `{job, phase: "started" | "finished", …}`. Must not block; what it raises is logged."""

POLL_SECONDS = 5.0
"""How soon jobs are seen that other processes add, and clocks that are set."""

AGAIN_SECONDS = 0.2
"""How soon to look again where another process was faster."""

RENEW_SECONDS = LEASE_SECONDS / 3
DELIVER_SECONDS = 60.0
RECORD_TRIES = 5
RECORD_SECONDS = 40.0
LEAVE_SECONDS = 5.0
"""What is left to write things down, when all is to end."""


class Scheduler:
    """Runs the jobs of a state folder.

    Args:
        jobs: Which there are.
        runtime: What runs turns.
        clock: Of tests, a clock of their own.
        max_concurrent: How many turns go on at the same time; those of `run_now` come on top.
        cleanup_seconds: How long a turn may take to end, once it was aborted.
        deliver: Gets results of jobs with a channel, if there is something to send.
        on_event: Told what happens.
        continues: Whether runs that are under way when all is to end are left as they are, to be
            continued by `adopt` and `go_on` at the next start; else they are aborted.
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
        """Runs jobs as they become due, until it is cancelled; see `continues`."""
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
        """Runs a job whatever its times are, and whether it is enabled or not.

        Raises:
            UnknownJob: There is none.
            JobBusy: A run of it is under way.
        """
        return await self.carry_out(await self.claim_now(job_id))

    async def claim_now(self, job_id: str) -> Claim:
        """The right to run a job whatever its times are, for `carry_out`; raises as `run_now`."""
        job = (await self._jobs.get(job_id)).job
        claim = await self._jobs.claim(job, self._owner, forced=True)
        if not isinstance(claim, Claim):
            raise UnknownJob(f"there is no job {job.id!r} any more")
        return claim

    async def adopt(self, run_id: str) -> Claim | None:
        """The right to continue a run that another process has left; None: it is not to be had."""
        return await self._jobs.adopt(run_id, self._owner)

    async def go_on(self, claim: Claim, request: AgentRequest) -> None:
        """Continues an adopted run to its end."""
        self._under_way += 1
        await self._live(claim, request)

    async def settle(self, claim: Claim, result: RunResult) -> None:
        """Records the result of an adopted run that had ended before its process did."""
        await self._record(claim, result)

    def change(self, *, max_concurrent: int, cleanup_seconds: float) -> None:
        """Other limits hold from now on, and jobs may have changed."""
        self._max, self._cleanup = max_concurrent, cleanup_seconds
        self.wake()

    def wake(self) -> None:
        """Has it look again at once: jobs have changed."""
        self._news.notify()

    # ---- What is due ----

    async def _look(self, tasks: TaskGroup) -> float:
        """Starts what is due; the seconds until there may be more."""
        standings = await self._jobs.standings(self._owner)
        now = self._clock.now()
        due = [each for each in standings if each.due is not None and each.due <= now]
        looks_again = False
        for each in sorted(due, key=_due):
            if each.running or self._under_way < self._max:
                looks_again = True
                await self._begin(each.job, tasks)
        later = [each.due - now for each in standings if each.due is not None and each.due > now]
        return min([*later, AGAIN_SECONDS if looks_again else POLL_SECONDS])

    async def _begin(self, job: Job, tasks: TaskGroup) -> None:
        room = self._under_way < self._max
        claim = await self._jobs.claim(job, self._owner, room=room)
        if isinstance(claim, Skipped):
            self._tell(job, "finished", {"status": "skipped"})
        elif claim is not None:
            self._under_way += 1
            tasks.start_soon(self._live, claim)

    async def _pause(self, seconds: float, seen: int) -> None:
        async with anyio.create_task_group() as tasks:

            async def listen() -> None:
                await self._news.wait(seen)
                tasks.cancel_scope.cancel()

            tasks.start_soon(listen)
            await self._clock.sleep(seconds)
            tasks.cancel_scope.cancel()

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
        """Runs a job once; what goes wrong in the turn is its result.

        Args:
            claim: The right to.
            request: What continues a run that has begun; None begins it.
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
        """The turn, as long as the claim is ours."""
        result = RunResult(
            run_id=claim.run_id,
            session_key=request.session_key,
            session_id="",
            status="aborted",
            error="another process runs the job now, or it was removed",
        )
        async with anyio.create_task_group() as tasks:

            async def renew() -> None:
                await self._clock.sleep(RENEW_SECONDS)
                while await self._is_ours(claim):
                    await self._clock.sleep(RENEW_SECONDS)
                self._runtime.abort(claim.run_id)
                tasks.cancel_scope.cancel()

            tasks.start_soon(renew)
            result = await run_turn(
                request, self._runtime, self._clock, cleanup_seconds=self._cleanup
            )
            tasks.cancel_scope.cancel()
        return result

    async def _is_ours(self, claim: Claim) -> bool:
        try:
            return await self._jobs.renew(claim)
        except JobsUnavailable as error:
            logger.error("job %s: %s", claim.job.id, error)
            return True

    # ---- After it ----

    async def _record(self, claim: Claim, result: RunResult) -> bool:
        """Writes down how it ended, if need be at a later try. False: it is not ours any more."""
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
        """What a person wanted is over; a time of the job is somebody else's, or ours next time."""
        try:
            if claim.forced and not self._continues:
                await self._jobs.finish(claim, "aborted", error="it was stopped")
            else:
                await self._jobs.leave(claim)
        except ClawmodeError as error:
            logger.error("job %s: %s", claim.job.id, error)

    async def _send(self, claim: Claim, result: RunResult) -> None:
        job = claim.job
        says_something = bool(result.payloads) or result.status in ("error", "timeout")
        if self._deliver is None or not job.channel or not says_something:
            return
        failure = f"it was not delivered in {DELIVER_SECONDS:g} s"
        try:
            with anyio.move_on_after(DELIVER_SECONDS):
                await self._deliver(job, result)
                return
        except Exception as error:
            failure = f"it could not be delivered: {message_of(error)}"
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


def _due(standing: Standing) -> float:
    assert standing.due is not None
    return standing.due
