"""Drives cells through a pool, step by step, answering what they ask."""

import json
import time
from collections.abc import Callable
from typing import Any

import anyio

from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import (
    Done,
    Failed,
    Language,
    Limits,
    Outcome,
    Output,
    Request,
    Resume,
    Settled,
    Start,
    Suspended,
)

Answer = Callable[[Request], Settled | None]


def ok(request: Request, value: Any = None) -> Settled:
    return Settled(request.id, True, json.dumps(value).encode())


def error(request: Request, message: str = "it failed", **fields: Any) -> Settled:
    body = {"name": "ToolError", "message": message, "toolId": "test:tool", **fields}
    return Settled(request.id, False, json.dumps(body).encode())


async def finish(
    pool: Pool,
    source: str,
    *,
    seconds: float = 10,
    language: Language = "javascript",
    limits: Limits | None = None,
    output_left: int = 65536,
    answer: Answer = ok,
) -> Done | Failed:
    """Runs a cell to its end. Output of all steps is in the outcome."""
    cell, deadline = pool.cell(), time.monotonic() + seconds
    used = limits or Limits()
    output: list[Output] = []
    step: Start | Resume = Start(source, language, used, output_left)
    outcome: Outcome
    while isinstance(outcome := await pool.step(cell, step, deadline), Suspended):
        output += outcome.output
        replies = [answer(request) for request in outcome.requests]
        settled = tuple(reply for reply in replies if reply is not None)
        if not settled:
            assert outcome.due, "the cell waits for an answer that the test does not give"
            await anyio.sleep(max(outcome.due / 1000 - time.time(), 0))
        left = output_left - sum(item.size for item in output)
        step = Resume(settled, None, used, left, now=outcome.due)
    output += outcome.output
    if isinstance(outcome, Done):
        return Done(outcome.value, tuple(output))
    return Failed(outcome.code, outcome.error, tuple(output), outcome.requests, outcome.crashed)


async def value_of(pool: Pool, source: str, **options: Any) -> Any:
    """The value of a cell that completes."""
    outcome = await finish(pool, source, **options)
    assert isinstance(outcome, Done), outcome
    return json.loads(outcome.value)


async def failure_of(pool: Pool, source: str, **options: Any) -> Failed:
    """The failure of a cell that fails."""
    outcome = await finish(pool, source, **options)
    assert isinstance(outcome, Failed), outcome
    return outcome


def texts(outcome: Done | Failed) -> list[Any]:
    """What a cell emitted, as values."""
    return [json.loads(item.body) for item in outcome.output]
