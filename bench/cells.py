"""Drives cells through a pool as a host with instant tools would."""

import time
from collections.abc import Awaitable, Callable

import anyio

from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import Outcome, Request, Resume, Settlement, Start, Suspension
from clawmode.sandbox.workers import Tenancy

SECONDS = 60.0

Tool = Callable[[Request], Awaitable[bytes]]


async def at_once(request: Request) -> bytes:
    """The tool that has nothing to do."""
    return b"1"


async def run(
    pool: Pool, start: Start, *, tool: Tool = at_once, seconds: float = SECONDS
) -> Outcome:
    """Runs a cell to its end, settling what it asks for."""
    cell, deadline = pool.cell(), time.monotonic() + seconds
    outcome = await pool.step(cell, start, deadline)
    return await finish(pool, cell, outcome, deadline, tool)


async def finish(
    pool: Pool, cell: Tenancy, outcome: Outcome, deadline: float, tool: Tool = at_once
) -> Outcome:
    """Lets a cell that is suspended run to its end."""
    while isinstance(outcome, Suspension):
        if outcome.due and not outcome.requests:
            await anyio.sleep(max(0.0, outcome.due / 1000 - time.time()))
        settled = tuple([Settlement(item.id, True, await tool(item)) for item in outcome.requests])
        outcome = await pool.step(cell, Resume(settled, now=outcome.due), deadline)
    return outcome
