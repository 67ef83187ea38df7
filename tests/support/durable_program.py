"""A process of its own that parks, waits, hangs or dies.

Prints one line of JSON for each thing that a test should know.
"""

import json
import math
import os
import sys
from pathlib import Path

import anyio
from tests.support.waiting import until

from clawmode import Approvals, CodeMode, CodeModeConfig, RunContext, tool
from clawmode.code_mode.sqlite_store import SqliteStore

FOLDER = Path(sys.argv[1])
WHO = RunContext(agent_id="a", session_id="s", session_key="k", run_id="r")


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def note(name: str) -> None:
    """Leaves a mark that outlives us: the tool was called."""
    with (FOLDER / f"{name}.calls").open("a") as file:
        file.write(f"{os.getpid()}\n")


async def until_written(name: str) -> str:
    """Wait for a file that the test writes. It is there before its text is."""
    file = FOLDER / name
    text: str = await until(lambda: file.exists() and file.read_text(), math.inf)
    return text


@tool(idempotent=True)
async def read(name: str) -> str:
    """Read slowly; may be repeated."""
    note(f"read-{name}")
    return await until_written(name)


@tool(effect="write")
async def write(name: str) -> str:
    """Write slowly; must not be repeated."""
    note(f"write-{name}")
    return await until_written(name)


@tool
async def quick() -> str:
    """Answer at once."""
    note("quick")
    return "quick"


async def main() -> None:
    what, *rest = sys.argv[2:]
    # A program that waits is parked soon, and one that gets no core is not ended for that.
    config, soon = CodeModeConfig(timeout_ms=60_000), int(os.environ.get("YIELD_MS", "500"))
    store, approvals = SqliteStore(FOLDER / "state"), Approvals(ask_for=["quick"])
    code_mode = CodeMode(
        tools=[read, write, quick],
        config=config,
        store=store,
        context=WHO,
        approvals=approvals,
    )
    async with code_mode:
        if what == "exec":
            result = await code_mode.exec(rest[0], yield_ms=soon)
            say(**result.to_json())
            for question in await until(approvals.pending, math.inf):
                say(question=question.tool_id)
            for question in approvals.pending()[: int(os.environ.get("ANSWER", "0"))]:
                approvals.resolve(question.id, "allow-once")
            await anyio.sleep_forever()
        while True:
            result = await code_mode.wait(rest[0], yield_ms=soon)
            say(**result.to_json())
            for question in approvals.pending():
                approvals.resolve(question.id, "allow-once")
            if result.status != "waiting":
                return


if __name__ == "__main__":
    anyio.run(main)
