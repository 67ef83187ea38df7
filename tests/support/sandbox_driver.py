"""What the hostile tests share: how a cell ends, and how to catch workers in the act."""

import json
import os
import signal
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.stepping import finish, value_of
from tests.support.waiting import SECONDS, undisturbed_time, until, waited_for_core

from clawmode.exceptions import SandboxError
from clawmode.sandbox import process, template
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.process import WorkerProcess
from clawmode.sandbox.protocol import Completion, Failure, Resume, Settlement, Start, Suspension
from clawmode.sandbox.workers import Tenancy
from clawmode.types import ErrorCode

SLACK = 0.5
"""What a cell may take beyond its deadline."""

LOOP = "for (;;);"
ASK = "let n = 41; const r = await tools.call('t'); return n + r"
BIG = """const held = []; for (let i = 0; i < 300000; i++) held.push({ i });
const r = await tools.call("t"); return held.length + r"""
"""A cell that takes some tenths of a second to freeze."""


def soon(seconds: float = 10) -> float:
    return time.monotonic() + seconds


def use_own_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the next pool start a template that it shares with no pool of another test."""
    # The number of users too: otherwise the end of this pool would count as the end of another
    # one, and close the template of the shared pools.
    monkeypatch.setattr(template, "_shared", None)
    monkeypatch.setattr(template, "_users", 0)
    monkeypatch.setattr(template, "_early", False)


@contextmanager
def patience() -> Iterator[None]:
    """Let a worker tell of the end of its cell even if it has to wait for a core at the deadline.

    Otherwise it is killed a quarter of a second later.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "GRACE", 5.0)
        yield


async def ending(
    pool: Pool, source: str, *, seconds: float | None = None, most: float = 1, **options: Any
) -> Completion | Failure:
    """How a cell ends; and it does so in time, and the next cell is fine.

    Args:
        pool: Where it runs.
        source: Of the cell.
        seconds: Its deadline; without one, it ends by itself, however long it waits for a core.
        most: What it may take itself, if it has no deadline.
        options: Of `finish`.
    """
    await settled(pool)
    waited = {worker: waited_for_core(worker.pid) for worker in pool._workers.tenants}
    began, deadline = undisturbed_time(), SECONDS if seconds is None else seconds
    with anyio.fail_after(deadline + 5), patience():
        outcome = await finish(pool, source, seconds=deadline, **options)
    took = undisturbed_time() - began
    for worker in waited.keys() & pool._workers.tenants.keys():
        took -= waited_for_core(worker.pid) - waited[worker]
    assert took < (most if seconds is None else seconds) + SLACK
    assert await value_of(pool, "return [1, 2].map((x) => x * 2)") == [2, 4]
    return outcome


async def expect_failure(
    pool: Pool, source: str, code: ErrorCode, *, seconds: float | None = None, **options: Any
) -> Failure:
    if seconds is None and code == "timeout":
        seconds = 0.5
    outcome = await ending(pool, source, seconds=seconds, most=0.5, **options)
    assert isinstance(outcome, Failure), outcome
    assert (outcome.code, outcome.crashed) == (code, False), outcome
    return outcome


async def expect_value(pool: Pool, source: str, **options: Any) -> Any:
    outcome = await ending(pool, source, **options)
    assert isinstance(outcome, Completion), outcome
    return json.loads(outcome.value)


async def suspend(pool: Pool, source: str = ASK) -> Tenancy:
    """A cell that waits for one call."""
    cell = pool.cell()
    outcome = await pool.step(cell, Start(source), soon())
    assert isinstance(outcome, Suspension), outcome
    return cell


async def resume(pool: Pool, cell: Tenancy, seconds: float = 10) -> Any:
    outcome = await pool.step(cell, Resume((Settlement(1, True, b"1"),)), soon(seconds))
    assert isinstance(outcome, Completion), outcome
    return json.loads(outcome.value)


async def raised_by(step: Awaitable[object]) -> SandboxError | None:
    try:
        await step
    except SandboxError as error:
        return error
    return None


@contextmanager
def held(worker: WorkerProcess) -> Iterator[None]:
    """Stop a worker meanwhile: what it is asked takes as long as the test needs."""
    worker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.signal(signal.SIGCONT)


def stopped(worker: WorkerProcess) -> bool:
    """Whether every thread of a worker stands still; a signal takes its time to reach them."""
    tasks = f"/proc/{worker.pid}/task"
    states = [Path(tasks, task, "stat").read_text("ascii") for task in os.listdir(tasks)]
    return all(state.rpartition(")")[2].split()[0] == "T" for state in states)


def only_worker(pool: Pool) -> WorkerProcess:
    (worker,) = pool._workers.tenants
    return worker


def owner(pool: Pool, cell: Tenancy) -> WorkerProcess:
    return next(worker for worker, holds in pool._workers.tenants.items() if holds is cell)


async def settled(pool: Pool) -> None:
    """Waits for workers that start, so that they take no time from the cell under test."""
    await until(lambda: all(worker.booted.done() for worker in pool._workers.tenants))


async def computed(worker: WorkerProcess, seconds: float = 0.03) -> None:
    """Wait until a worker has used so much CPU time from now on: its cell is in the middle."""
    before = cpu_seconds(worker.pid)
    await until(lambda: cpu_seconds(worker.pid) >= before + seconds)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


async def computing(pool: Pool, cell: Tenancy) -> None:
    """Waits until a cell's worker has been asked."""
    await until(lambda: any(c is cell and w._asking for w, c in pool._workers.tenants.items()))
