"""The page's end-to-end plan over the real wires, against a gateway as a user starts it."""

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.agent.test_e2e import READ_ALL, USE_MCP, names_of
from tests.support.command_driver import serving
from tests.support.gateway_driver import Started
from tests.support.mcp_driver import HERE as MCP
from tests.support.waiting import GATE_TOOL, until

from clawmode import tool
from clawmode.rpc.client import GatewayClient, TurnResult
from clawmode.testing import ScriptRequest, ScriptServer, Turn, call

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

KEY = "sk-secret-of-the-test"

TOOLS = f'''{GATE_TOOL}
@tool(effect="read")
async def greet(name: str) -> str:
    """Greet somebody."""
    return f"hello {{name}}"

@tool(effect="write")
async def forbidden() -> str:
    """Do what must not be done."""
    return "done"

TOOLS = [greet, gate, forbidden]
'''
PLUGIN = '''
from clawmode import tool

@tool(effect="read")
async def water(plant: str) -> str:
    """Water a plant."""
    return f"{plant} watered"

def register(api):
    api.tool(water)
'''
MANIFEST = {"id": "garden", "version": "1", "entry": "main:register", "tools": ["water"]}


@tool(effect="read")
async def ring(times: int) -> str:
    """Ring the client's bell."""
    return f"rang {times} times"


PROGRAMS = {
    "read": READ_ALL,
    "mcp": USE_MCP,
    "loop": "for (;;);",
    "park": "const got = await tools.gate(); return `after: ${got}`",
    "stay": "return tools.gate()",
}


def brain(folder: Path, request: ScriptRequest) -> Turn:
    """Run the program that the user names, wait for its end, and report its result."""
    name = request.said
    if name == "direct":
        if "greet-1" in request.results:
            return Turn(f"It says {request.results['greet-1']}")
        return Turn(call("greet", {"name": "Ann"}, id="greet-1"))
    mine = [key for key in request.results if key.startswith(f"{name}-")]
    if not mine:
        return Turn(call("exec", {"code": PROGRAMS[name]}, id=f"{name}-0"))
    found = request.last_result()
    if found["status"] == "waiting":
        if name == "park":
            (folder / "gate-is-open").touch()
        return Turn(call("wait", {"runId": found["runId"]}, id=f"{name}-{len(mine)}"))
    return Turn(json.dumps(found))


@contextmanager
def garden(folder: Path, server: ScriptServer, code_mode: Any) -> Iterator[Started]:
    """A gateway with tools of all four sources; the client's come with the turn."""
    raw = ["-I", "-S", str(MCP / "raw_server.py"), "good"]
    provider = {"baseUrl": server.url, "api": "anthropic-messages", "apiKey": KEY}
    whole = {
        "agents": {"defaults": {"model": "wire/small"}},
        "models": {"providers": {"wire": provider}},
        "tools": {
            "deny": [
                "forbidden",
                "group:fs",
                "group:runtime",
                "group:web",
                "message",
                "session_status",
            ],
            "approve": "always",
            "codeMode": code_mode,
        },
        "plugins": {"load": {"paths": [str(folder / "garden")]}},
        "mcp": {"servers": {"raw": {"command": sys.executable, "args": raw}}},
    }
    (folder / "clawmode.json5").write_text(json.dumps(whole))
    (folder / "shop.py").write_text(TOOLS)
    (folder / "garden").mkdir(exist_ok=True)
    (folder / "garden" / "main.py").write_text(PLUGIN)
    (folder / "garden" / "clawmode.plugin.json").write_text(json.dumps(MANIFEST))
    with Started(folder, folder / "state", "--tools", "shop:TOOLS") as started:
        yield started


async def ask(client: GatewayClient, message: str, **more: Any) -> TurnResult:
    return await client.agent(message, tools=[ring], session_key=message, timeout=40, **more)


@pytest.mark.covers(
    "CM-E1",
    "CM-E2",
    "CM-E3",
    "CM-E4",
    "CM-E5",
    "CM-E6",
    "CM-E7",
    "CM-E8",
    "CM-E9",
    "CM-E10",
    "CM-E11",
    "CM-E12",
    "CM-E13",
    "CM-E14",
    "CM-E15",
    "CM-E16",
)
async def test_the_plan(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(partial(brain, tmp_path)) as server:
        # 1 to 3: off, and the model sees the tools as before.
        with garden(tmp_path, server, False):
            async with GatewayClient.local(state) as client:
                direct = await ask(client, "direct")
        assert direct.text == "It says hello Ann"
        shown = [names_of(it) for it in server.requests]
        assert all({"greet", "gate", "water", "ring"} <= set(names) for names in shown)
        assert not any({"exec", "forbidden"} & set(names) for names in shown)
        asked = len(server.requests)
        # 4 to 16: on.
        with garden(tmp_path, server, {"enabled": True, "timeoutMs": 1000}):
            async with GatewayClient.local(state) as client:
                await _check_catalog(client)
                await _check_waiting(client, tmp_path)
                await _check_leftovers(client, state)
        assert {tuple(names_of(it)) for it in server.requests[asked:]} == {("exec", "wait")}


async def _check_catalog(client: GatewayClient) -> None:
    read = json.loads((await ask(client, "read")).text)["value"]
    assert read["ids"] == [
        "client:client:ring",
        "openclaw:core:gate",
        "openclaw:core:greet",
        "plugin:garden:water",
    ]
    assert (read["greeting"], read["watered"], read["rang"]) == (
        "hello Bob",
        "rose watered",
        "rang 3 times",
    )
    assert (read["denied"], read["mcpByName"]) == ("unknown_tool", "undefined")
    used = json.loads((await ask(client, "mcp")).text)["value"]
    assert used["files"] == ["mcp/index.d.ts", "mcp/raw.d.ts"]
    assert used["declares"] is True
    assert "through MCP" in json.dumps(used["echoed"])


async def _check_waiting(client: GatewayClient, folder: Path) -> None:
    parked = await ask(client, "park")
    assert json.loads(parked.text)["value"] == "after: open"
    given = {"sessionKey": "park", "idempotencyKey": "e1"}
    made: Any = await client.call("trajectory.export", given)
    files = _files(Path(made["folder"]))
    events = [json.loads(line) for line in files["events.jsonl"].splitlines()]
    calls = [event["data"] for event in events if event["type"] == "tool.call"]
    outer = next(each for each in calls if each.get("name") == "exec")
    nested = next(each for each in calls if each.get("parentId") == outer["callId"])
    assert "openclaw:core:gate" in nested.values()
    assert "wait" in [each.get("name") for each in calls]
    written = "".join(files.values())
    assert KEY not in written
    assert str(folder) not in written


def _files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in folder.iterdir()}


async def is_parked(client: GatewayClient) -> bool:
    runs: Any = await client.call("codemode.runs", {})
    return any(cell["state"] == "waiting" for cell in runs["cells"])


async def _check_leftovers(client: GatewayClient, state: Path) -> None:
    """A timeout, an abort and the end of a run leave nothing parked."""
    looped = json.loads((await ask(client, "loop")).text)
    assert looped["code"] == "timeout"
    (state.parent / "gate-is-open").unlink()
    given = {"message": "stay", "sessionKey": "aborted", "idempotencyKey": "a1"}
    run = await client.call("agent", given)
    await until(lambda: is_parked(client))
    await client.call("sessions.abort", {"runId": run["runId"]})
    ended = await client.wait(str(run["runId"]), 20)
    assert ended.status == "aborted"
    runs: Any = await client.call("codemode.runs", {})
    assert runs["cells"] == []
    with closing(sqlite3.connect(state / "cells.sqlite")) as database:
        assert database.execute("select count(*) from cells").fetchone()[0] == 0
