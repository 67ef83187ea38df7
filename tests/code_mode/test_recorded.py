"""Programs that an earlier build has parked are resumed by this one.

`tests/support/parked_programs.py` recorded the store in `tests/code_mode/recorded`.
"""

import json
import shutil
from pathlib import Path

import pytest
from tests.support.parked_programs import RECORDED, make_code_mode

from clawmode import Approvals, Pool
from clawmode.tools.approvals import Decision, Question
from clawmode.types import JsonValue

pytestmark = pytest.mark.anyio


@pytest.mark.covers("WA-11")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repeatable call", ["after", "content of x"]),
        ("other call", ["outcome_unknown", "openclaw:core:write"]),
        ("approval", "quick"),
        ("gate", 42),
        ("timer", "rang"),
        ("yield", 42),
    ],
)
async def test_a_program_that_an_earlier_build_parked_is_resumed(
    tmp_path: Path, pool: Pool, name: str, value: JsonValue
) -> None:
    folder = tmp_path / "state"
    shutil.copytree(RECORDED, folder)
    folder.chmod(0o700)
    (folder / "snapshot.keys").chmod(0o600)  # git keeps no such mode, and the store demands it
    run_id = json.loads((folder / "programs.json").read_text())[name]
    asked: list[str] = []

    async def approve(question: Question) -> Decision:
        asked.append(name)
        return "allow-once"

    approvals = Approvals(ask_for=["quick"], approver=approve)
    async with make_code_mode(folder, approvals, pool, hangs=False) as code_mode:
        result = await code_mode.wait(run_id)
        while result.status == "waiting":
            result = await code_mode.wait(run_id)
    assert (result.status, result.value) == ("completed", value), result
    assert asked == ([name] if name in ("approval", "gate") else [])
