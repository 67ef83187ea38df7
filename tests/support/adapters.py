"""What the tests of adapters share: programs, a program to kill, and versions that do not fit."""

import importlib
import os
import signal
import sys
from importlib import metadata
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

ROOT = Path(__file__).parents[2]
SECONDS = 25.0
MAX_LINE = 1 << 20

SDK_SERVER = Path(__file__).with_name("sdk_server.py")

FAN_OUT = "return await Promise.all(Array.from({length: 12}, (_, i) => tools.add({a: i, b: 1})))"
SEND = "return await tools.send({to: 'Ann'})"
SEND_BOTH = "return await Promise.allSettled(['Ann', 'Bob'].map(to => tools.send({to})))"
SEND_TWICE = "return [await tools.send({to: 'Ann'}), await tools.send({to: 'Bob'})]"
"""Programs; `add` and `send` are tools of each framework."""


async def run_step(program: str, folder: Path, step: str, *, kill: bool = False) -> str:
    """Runs one step of a program of this folder. Returns the line that the step prints.

    Args:
        program: The name of the module.
        folder: Where the program keeps its state and logs its effects.
        step: `ask` runs the agent until it asks a person; `answer` continues it with an approval.
        kill: Whether the process is killed after its line, while it would still do something.
    """
    command = [sys.executable, str(ROOT / "tests" / "support" / f"{program}.py"), str(folder), step]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    process = await anyio.open_process(command, stderr=None, env=environment)
    try:
        assert process.stdout is not None
        with anyio.fail_after(SECONDS):
            line = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", MAX_LINE)
            if kill:
                process.send_signal(signal.SIGKILL)
            await process.wait()
        assert process.returncode == (-signal.SIGKILL if kill else 0)
        return line.decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()


def check_versions(adapter: str, message: str, *versions: str | None) -> None:
    """Checks that an adapter cannot be imported with these versions of its framework.

    Args:
        adapter: The name of the adapter's module.
        message: A pattern of the error.
        versions: The versions that do not fit; None if the framework is not installed.
    """
    for version in versions:

        def find(package: str, version: str | None = version) -> str:
            if version is None:
                raise metadata.PackageNotFoundError(package)
            return version

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(metadata, "version", find)
            patch.delitem(sys.modules, f"clawmode.integrations.{adapter}")
            with pytest.raises(ImportError, match=message):
                importlib.import_module(f"clawmode.integrations.{adapter}")
