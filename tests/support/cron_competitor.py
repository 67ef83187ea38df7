"""A process that claims whatever is due: `python competitor.py FOLDER SECONDS [hang]`.

Prints a line for each claim, and ends when nothing more is to come. With `hang` it holds the first
one until it is killed.
"""

import sys
import time

import anyio

from clawmode.cron.jobs import Claim, Jobs


async def main(folder: str, seconds: float, hangs: bool) -> None:
    jobs = Jobs(folder)
    owner = f"{time.monotonic_ns()}"
    print("ready", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        statuses = await jobs.statuses(owner)
        if all(status.due is None for status in statuses):
            return
        for status in statuses:
            claim = await jobs.claim(status.job, owner)
            if isinstance(claim, Claim):
                print(claim.job.id, flush=True)
                if hangs:
                    await anyio.sleep_forever()
                await jobs.finish(claim, "ok")


anyio.run(main, sys.argv[1], float(sys.argv[2]), "hang" in sys.argv)
