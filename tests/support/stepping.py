"""Drives cells through a pool, step by step, answering what they ask."""

import json
import time
from collections.abc import Callable
from typing import Any

from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import (
    Completion,
    Failure,
    Language,
    Limits,
    Outcome,
    Output,
    Request,
    Resume,
    Settlement,
    Start,
    Suspension,
)

Answer = Callable[[Request], Settlement | None]


def ok(request: Request, value: Any = None) -> Settlement:
    return Settlement(request.id, True, json.dumps(value).encode())


def error(request: Request, message: str = "it failed", **fields: Any) -> Settlement:
    body = {"name": "ToolError", "message": message, "toolId": "test:tool", **fields}
    return Settlement(request.id, False, json.dumps(body).encode())


async def finish(
    pool: Pool,
    source: str,
    *,
    seconds: float = 10,
    language: Language = "javascript",
    limits: Limits | None = None,
    output_left: int = 65536,
    answer: Answer = ok,
) -> Completion | Failure:
    """Runs a cell to its end. Output of all steps is in the outcome."""
    cell, deadline = pool.cell(), time.monotonic() + seconds
    used = limits or Limits()
    output: list[Output] = []
    step: Start | Resume = Start(source, language, used, output_left)
    outcome: Outcome
    while isinstance(outcome := await pool.step(cell, step, deadline), Suspension):
        output += outcome.output
        replies = [answer(request) for request in outcome.requests]
        settled = tuple(reply for reply in replies if reply is not None)
        if not settled:
            assert outcome.due, "the cell waits for an answer that the test does not give"
        left = output_left - sum(item.size for item in output)
        step = Resume(settled, None, used, left, now=outcome.due)
    output += outcome.output
    if isinstance(outcome, Completion):
        return Completion(outcome.value, tuple(output))
    return Failure(outcome.code, outcome.error, tuple(output), outcome.requests, outcome.crashed)


async def value_of(pool: Pool, source: str, **options: Any) -> Any:
    """The value of a cell that completes."""
    outcome = await finish(pool, source, **options)
    assert isinstance(outcome, Completion), outcome
    return json.loads(outcome.value)


async def failure_of(pool: Pool, source: str, **options: Any) -> Failure:
    """The failure of a cell that fails."""
    outcome = await finish(pool, source, **options)
    assert isinstance(outcome, Failure), outcome
    return outcome


def texts(outcome: Completion | Failure) -> list[Any]:
    """What a cell emitted, as values."""
    return [json.loads(item.body) for item in outcome.output]
