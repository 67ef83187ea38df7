"""`codemode.*`: programs that run and wait are seen and ended, whoever began them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.gateway_inside import Inside, inside
from tests.support.waiting import Gate, until

from clawmode.code_mode.nodes import FolderNodes
from clawmode.code_mode.stores import StoredCell
from clawmode.context import Scope
from clawmode.gateway import codemode_methods
from clawmode.testing import Turn, call, pause

pytestmark = pytest.mark.anyio

ENDLESS = "for (;;) {}"


def program(source: str) -> Turn:
    return Turn(call("exec", {"code": source}))


@asynccontextmanager
async def running(folder: Path, source: str, gate: Gate | None = None) -> AsyncIterator[Inside]:
    tools = [] if gate is None else [gate.tool]
    # The end of the run would end its programs, so it comes after the gate was opened.
    ending = Turn("done") if gate is None else Turn(pause(gate.open), "done")
    script: list[Any] = [program(source), ending]
    async with inside(folder, script, tools=tools, rules={"codeMode": True}) as it:
        yield it


async def cells(it: Inside, count: int, **given: Any) -> list[dict[str, Any]]:
    """The programs, when there are so many."""

    async def look() -> tuple[list[dict[str, Any]]] | None:
        found = (await it.call("codemode.runs", **given))["cells"]
        return (found,) if len(found) == count else None

    (found,) = await until(look)
    return found


async def test_a_running_program_is_listed_and_ended_and_the_run_continues(tmp_path: Path) -> None:
    async with running(tmp_path, ENDLESS) as it:
        run = await it.call("agent", message="go", sessionKey="tea")
        (cell,) = await cells(it, 1)
        assert (cell["sessionKey"], cell["runId"]) == ("agent:main:tea", run["runId"])
        assert (cell["state"], cell["expiresAtMs"]) == ("running", None)
        assert cell["sinceMs"] > 0
        assert await cells(it, 1, sessionKey="tea", runId=run["runId"]) == [cell]
        assert await cells(it, 0, sessionKey="coffee") == []
        assert await it.call("codemode.abort", cellId=cell["cellId"]) == {"aborted": 1}
        waited = await it.call("agent.wait", runId=run["runId"], timeoutMs=10_000)
        assert waited["status"] == "ok"
        assert await it.code("codemode.abort", cellId=cell["cellId"]) == "NOT_FOUND cellId"
        assert "aborted" in it.read_last()


async def test_a_program_that_waits_is_seen_and_ended_with_its_calls(tmp_path: Path) -> None:
    gate = Gate()
    source = "const p = tools.slow({}); await yield_control('later'); return p"
    async with running(tmp_path, source, gate) as it:
        run = await it.call("agent", message="go")
        await gate.entered.wait()
        (cell,) = await cells(it, 1)
        assert await it.call("codemode.abort", runId=run["runId"]) == {"aborted": 1}
        assert await cells(it, 0) == []
        assert cell["runId"] == run["runId"]
        gate.open.set()
        await it.call("agent.wait", runId=run["runId"], timeoutMs=10_000)


def parked(cell_id: str, run_id: str) -> StoredCell:
    scope = Scope("main", "s", "agent:main:tea", run_id)
    return StoredCell(id=cell_id, scope=scope, ttl=60, record=b"x", snapshot=b"x")


async def test_programs_that_an_earlier_process_left_are_seen_and_ended(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        store = it.gateway.host.runtime.store
        for number in range(3):
            await store.park(parked(f"cm_{number}", f"run{number // 2}"), "x", 10, again=False)
        found = await cells(it, 3)
        assert {cell["state"] for cell in found} == {"parked"}
        assert all(59_000 < cell["expiresAtMs"] - cell["sinceMs"] < 61_000 for cell in found)
        assert await it.call("codemode.abort", runId="run0") == {"aborted": 2}
        assert await it.call("codemode.abort", runId="run0") == {"aborted": 0}
        assert await it.call("codemode.abort", cellId="cm_2") == {"aborted": 1}
        assert await cells(it, 0) == []


async def test_a_long_list_is_cut_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codemode_methods, "MOST", 2)
    async with inside(tmp_path) as it:
        store = it.gateway.host.runtime.store
        for number in range(5):
            await store.park(parked(f"cm_{number}", f"run{number // 3}"), "x", 10, again=False)
        said = await it.call("codemode.runs", limit=2)
        assert [cell["cellId"] for cell in said["cells"]] == ["cm_0", "cm_1"]
        assert (said["more"], said["parked"]) == (True, 5)
        said = await it.call("codemode.runs", limit=2, runId="run1")
        assert [cell["cellId"] for cell in said["cells"]] == ["cm_3", "cm_4"]
        assert (said["more"], said["parked"]) == (False, 5)
        assert await it.code("codemode.runs", limit=1001) == "INVALID_REQUEST limit"
        assert await it.call("codemode.abort", runId="run0") == {"aborted": 3}
        assert (await it.call("codemode.runs"))["parked"] == 2


@pytest.mark.covers("PG-17")
async def test_a_gateway_that_stops_drains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    drain = FolderNodes.drain

    async def note(self: FolderNodes) -> None:
        # The gateway waits a moment for its clients, and not for a slow disk.
        with anyio.CancelScope(shield=True):
            await drain(self)
            seen.extend(node.draining for node in await self.living())

    monkeypatch.setattr(FolderNodes, "drain", note)
    async with inside(tmp_path) as it:
        assert [node.draining for node in await it.gateway.host.backend.nodes.living()] == [False]
    assert seen == [True]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, "INVALID_REQUEST cellId"),
        ({"cellId": "a", "runId": "b"}, "INVALID_REQUEST cellId"),
        ({"cellId": "cm_x"}, "NOT_FOUND cellId"),
        ({"cellId": 1}, "INVALID_REQUEST cellId"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, given: dict[str, Any], code: str
) -> None:
    async with inside(tmp_path) as it:
        assert await it.code("codemode.abort", **given) == code
        assert await it.code("codemode.runs", sessionKey="a b") == "INVALID_REQUEST sessionKey"
