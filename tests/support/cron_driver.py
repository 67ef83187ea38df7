"""What the tests of schedules have in common: a clock that stands still, and turns by hand."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from clawmode.agent.events import AgentEvent, Listener
from clawmode.agent.requests import AgentRequest, RunResult, Status
from clawmode.cron.job import Job
from clawmode.cron.jobs import Jobs, JobStatus
from clawmode.cron.ledger import RunRecord
from clawmode.cron.scheduler import Scheduler
from clawmode.types import JsonObject

P = ParamSpec("P")
T = TypeVar("T")

NOON = 1_800_000_000.0
STEPS = 60
"""Enough for all tasks to go as far as they can: none of them waits for a thread."""


def a_job(job_id: str = "tea", **given: Any) -> Job:
    """A job; every ten minutes, if nothing else is said."""
    if not {"cron", "every", "at"} & given.keys():
        given["every"] = "10m"
    given.setdefault("message", "Make tea.")
    return Job(id=job_id, **given)


class FakeClock:
    """Time passes when a test says so."""

    def __init__(self, time: float = NOON) -> None:
        self.time = time
        self._sleepers: list[tuple[float, anyio.Event]] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        sleeper = (self.time + seconds, anyio.Event())
        self._sleepers.append(sleeper)
        try:
            await sleeper[1].wait()
        finally:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)

    async def settle(self) -> None:
        """Lets everybody do what can be done now."""
        for _ in range(STEPS):
            await checkpoint()

    async def advance(self, seconds: float) -> None:
        """Lets time pass, and everybody act when it is their time."""
        end = self.time + seconds
        while True:
            await self.settle()
            due = [sleeper for sleeper in self._sleepers if sleeper[0] <= end]
            if not due:
                break
            first = min(due, key=lambda sleeper: sleeper[0])
            self._sleepers.remove(first)
            self.time = max(self.time, first[0])
            first[1].set()
        self.time = end

    async def jump(self, seconds: float) -> None:
        """Lets time pass all at once: the machine sleeps."""
        await self.settle()
        self.time += seconds
        await self.advance(0)
        await self.settle()


class NearJobs(Jobs):
    """Works in the task that asks, so that a test knows when it is done."""

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await checkpoint()
        return self._translated(work, *args, **kwargs)


class FakeRuntime:
    """Turns that begin and end when a test says so.

    Attributes:
        queues: Turns wait for `begin`.
        stubborn: Turns do not care about being aborted.
        answer: How turns end as soon as they have begun; None: by `end`.
    """

    def __init__(self, *, answer: Status | None = None) -> None:
        self.queues = False
        self.stubborn = False
        self.answer = answer
        self.requests: list[AgentRequest] = []
        self.aborted: list[str] = []
        self._listeners: list[Listener] = []
        self._results: dict[str, RunResult] = {}
        self._ended: dict[str, anyio.Event] = {}

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def start(self, request: AgentRequest) -> object:
        self.requests.append(request)
        self._ended[request.run_id] = anyio.Event()
        if not self.queues:
            self.begin()
        return request

    async def result(self, run_id: str) -> RunResult:
        await self._ended[run_id].wait()
        return self._results[run_id]

    def abort(self, run_id: str) -> bool:
        self.aborted.append(run_id)
        if not self.stubborn and run_id in self._ended:
            self.end("aborted", run_id=run_id)
        return True

    def begin(self, number: int = -1) -> None:
        run_id = self.requests[number].run_id
        event = AgentEvent(run_id=run_id, seq=1, stream="lifecycle", data={"phase": "start"})
        for listener in self._listeners:
            listener(event)
        if self.answer is not None:
            self.end(self.answer, run_id=run_id)

    def end(self, status: Status = "ok", *, run_id: str = "", number: int = -1) -> None:
        run_id = run_id or self.requests[number].run_id
        self._results[run_id] = RunResult(
            run_id=run_id,
            session_key=f"agent:main:of:{run_id}",
            session_id="s",
            status=status,
            payloads=({"text": "Here is tea."},) if status == "ok" else (),
            error=None if status == "ok" else f"it was {status}",
        )
        self._ended[run_id].set()


@dataclass
class Stage:
    """A scheduler that serves, and everything around it."""

    clock: FakeClock
    jobs: NearJobs
    runtime: FakeRuntime
    scheduler: Scheduler
    events: list[JsonObject] = field(default_factory=list)

    async def standing(self, job_id: str = "tea") -> JobStatus:
        return await self.jobs.get(job_id)

    async def runs(self, job_id: str = "tea") -> tuple[RunRecord, ...]:
        return (await self.standing(job_id)).runs

    async def statuses(self, job_id: str = "tea") -> list[str]:
        return [run.status for run in await self.runs(job_id)]


@asynccontextmanager
async def staged(
    folder: Path,
    *configured: Job,
    clock: FakeClock | None = None,
    runtime: FakeRuntime | None = None,
    serves: bool = True,
    **options: Any,
) -> AsyncIterator[Stage]:
    """A scheduler over turns by hand; it serves from now on."""
    clock = clock or FakeClock()
    runtime = runtime or FakeRuntime()
    jobs = NearJobs(folder, configured, clock=clock.now)
    events: list[JsonObject] = []
    options.setdefault("on_event", events.append)
    scheduler = Scheduler(jobs, runtime, clock=clock, **options)
    with anyio.fail_after(15):
        async with anyio.create_task_group() as tasks:
            if serves:
                tasks.start_soon(scheduler.serve)
            await clock.settle()
            yield Stage(clock, jobs, runtime, scheduler, events)
            tasks.cancel_scope.cancel()
    jobs.close()
