"""Measures a fleet: resuming elsewhere, wake-ups by answers elsewhere, and takeovers."""

import random
import signal
import time
from typing import Literal

import anyio
from tests.support.fleet.checker import WAITING, Program
from tests.support.fleet.harness import Fleet
from tests.support.fleet.outside import pause
from tests.support.fleet.schedule import SOURCE, parked_program

PLAIN = "await yield_control();"
TAKEOVER_SECONDS = 60.0


async def resumes(fleet: Fleet, count: int) -> list[float]:
    """Returns how long a `wait` takes on another node than the one that parked the program."""
    first, second = fleet.nodes[:2]
    taken: list[float] = []
    for number in range(count):
        name = f"resume{number}"
        program = Program(name, SOURCE % (PLAIN, name), {})
        await fleet.exec(program, first)
        answer = await second.ask("wait", name, run=program.run)
        assert answer["result"]["status"] == "completed", answer
        taken.append(answer["seconds"])
    return taken


async def wakes(fleet: Fleet, count: int) -> list[float]:
    """Returns the time from an answer to a call on one node to the end of a `wait` on another."""
    first, second = fleet.nodes[:2]
    taken: list[float] = []
    for number in range(count):
        name = f"wake{number}"
        line = f'await call("act", "{name}/1", 120);'
        program = Program(name, SOURCE % (line, name), {f"{name}/1": "act"})
        await fleet.exec(program, first, yield_ms=10)
        answer = await second.ask("wait", name, run=program.run)
        assert answer["result"]["status"] == "completed", answer
        taken.append(time.time() - fleet.effects.answered[f"{name}/1"])
    return taken


async def takeover(fleet: Fleet, how: Literal["kill", "hole"], name: str) -> float:
    """Returns the time from the loss of a node to the end of its program on another node.

    The program has a repeatable call under way on the lost node, and is waited for elsewhere.
    """
    first, second = fleet.nodes[:2]
    await first.up.wait()  # after an earlier takeover
    program = parked_program(name, ms=600_000, kind="put")
    await fleet.exec(program, first, yield_ms=20)
    assert program.run, fleet.tellings[-1]
    answer = await second.ask("wait", name, run=program.run)  # it is known to wait
    assert answer["result"]["status"] == WAITING, answer
    lost = time.monotonic()
    fleet.faults[how] += 1
    if how == "kill":
        first.signal(signal.SIGKILL)
    else:
        assert first.proxy is not None, "a store in a folder has no network"
        first.proxy.change("hole")
    with anyio.fail_after(TAKEOVER_SECONDS):
        await fleet.finish(program, random.Random(name), [second])
    taken = time.monotonic() - lost
    if how == "hole":
        assert first.proxy is not None
        first.proxy.change("calm")
        await pause(5)  # until the node knows that it was declared dead, and is a new one
    return taken


def quantiles(taken: list[float]) -> tuple[float, float]:
    """Returns p50 and p99, in milliseconds."""
    ordered = sorted(taken)
    last = len(ordered) - 1
    return ordered[last // 2] * 1000, ordered[round(last * 0.99)] * 1000
