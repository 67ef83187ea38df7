"""The path of a cell through the host: how many modules a reader has to open."""

import asyncio
import sys
from types import FrameType
from typing import Any

import pytest

import clawmode
from clawmode import CodeMode, Pool

pytestmark = pytest.mark.anyio

ROOT = clawmode.__path__[0] + "/"


async def test_a_cell_without_tools_passes_six_modules_on_its_way_to_the_worker(pool: Pool) -> None:
    path: set[str] = set()
    helpers: set[str] = set()
    others = asyncio.all_tasks() - {asyncio.current_task()}  # of the pool, which all tests share

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(ROOT):
            return
        if asyncio.current_task() in others:
            return
        helpers.add(frame.f_code.co_filename.removeprefix(ROOT))
        if frame.f_code.co_name == "encode":
            caller: FrameType | None = frame
            while caller is not None:
                if caller.f_code.co_filename.startswith(ROOT):
                    path.add(caller.f_code.co_filename.removeprefix(ROOT))
                caller = caller.f_back

    async with CodeMode(pool=pool) as code_mode:
        await code_mode.exec("return 1")
        sys.setprofile(note)
        try:
            result = await code_mode.exec("return 6 * 7")
        finally:
            sys.setprofile(None)
    assert result.value == 42
    # The modules on the stack when the message to the worker is encoded.
    assert path == {
        "code_mode/code_mode.py",
        "code_mode/programs.py",
        "code_mode/driver.py",
        "sandbox/pool.py",
        "sandbox/process.py",
        "sandbox/frames.py",
    }
    # Small parts that these modules use: checks, counters, spans.
    assert len(helpers - path) <= 9, sorted(helpers - path)
