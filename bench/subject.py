"""The process that a measurement runs in: `bench/runner.py` starts it, with the sources of a tree.

Reads one JSON message per line from standard input and answers each with one line: a measurement is
opened, its rounds run, and the process ends. What a measurement prints goes to standard error.
"""

import json
import logging
import os
import sys
import traceback
from contextlib import AsyncExitStack
from typing import Any

import anyio

from bench.measures import MEASURES
from bench.measuring import Round
from bench.processes import cpu_seconds


async def serve(answers: Any) -> None:
    async with AsyncExitStack() as stack:
        round_of: Round | None = None
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            message = json.loads(line)
            answer: dict[str, Any] = {}
            try:
                if "open" in message:
                    measure = MEASURES[message["open"]]
                    round_of = await stack.enter_async_context(measure.open(message["seconds"]))
                elif round_of is not None:
                    answer = await run(round_of)
            except Exception as error:  # told to the parent, which gives up this measurement
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


async def run(round_of: Round) -> dict[str, Any]:
    before = cpu_seconds()
    taken = await round_of()
    used = cpu_seconds() - before if taken.cpu is None else taken.cpu
    samples = {title: list(each) for title, each in taken.samples.items()}
    return {"samples": samples, "units": taken.units, "cpu": used}


def main() -> None:
    logging.getLogger("clawmode").setLevel(logging.ERROR)  # what a worker lacks is not the subject
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        anyio.run(serve, answers)


if __name__ == "__main__":
    main()
