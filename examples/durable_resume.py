"""A program outlives its process: it is parked in SQLite, its process is killed, another goes on.

The first process starts a program that calls a slow tool, is told `waiting`, and is killed in the
middle of the call. The second knows nothing but the folder and the `runId`. The tool that was
running is declared idempotent, so its call is made again; one that is not would have become an
error in the program, "outcome unknown".
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from clawmode import CodeMode, CodeModeConfig, RunContext, SqliteStore, tool

WHO = RunContext(agent_id="demo", session_id="session-1", session_key="session-1", run_id="run-1")

PROGRAM = """\
const started = new Map([["at step", 1]]);
const report = await tools.fetch_report({ month: "June" });
return `${report}, and the map still says ${started.get("at step")}`;
"""


@tool(idempotent=True, effect="read")
async def fetch_report(month: str) -> str:
    """Fetch a report from a slow archive."""
    await asyncio.sleep(60 if os.environ.get("ARCHIVE") == "slow" else 0)
    return f"the report of {month}"


def opened(folder: str) -> CodeMode:
    return CodeMode(
        tools=[fetch_report],
        store=SqliteStore(folder),
        context=WHO,
        config=CodeModeConfig(timeout_ms=500),
    )


async def first(folder: str) -> None:
    async with opened(folder) as code_mode:
        result = await code_mode.exec(PROGRAM)
        print(result.run_id, flush=True)
        await asyncio.sleep(60)  # until we are killed


async def second(folder: str, run_id: str) -> None:
    async with opened(folder) as code_mode:
        result = await code_mode.wait(run_id)
        while result.status == "waiting":
            result = await code_mode.wait(run_id)
        print(f"process {os.getpid()} finished it: {result.value}")
        assert result.value == "the report of June, and the map still says 1", result


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, folder]
        environment = {**os.environ, "ARCHIVE": "slow"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            run_id = process.stdout.readline().strip()
            process.send_signal(signal.SIGKILL)
        size = Path(folder, "cells.sqlite-wal").stat().st_size
        print(f"process {process.pid} parked {run_id} ({size} bytes on disk) and was killed")
        asyncio.run(second(folder, run_id))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(first(sys.argv[1]))
    else:
        main()
