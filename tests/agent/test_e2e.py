"""The page's end-to-end plan, in process, over the real wires of three providers."""

import contextlib
import json
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic._base_client as anthropic_client
import anyio
import openai._base_client as openai_client
import pytest
from tests.support.agent_driver import Agent, configured
from tests.support.mcp_driver import HERE as MCP
from tests.support.waiting import Gate, until

# They take seconds, and here no clock of a test runs.
import clawmode.models.anthropic_sdk
import clawmode.models.openai_sdk  # noqa: F401
from clawmode import tool
from clawmode.agent.models import ModelPool
from clawmode.agent.requests import AgentRequest
from clawmode.agent.resolver import ConfigResolver
from clawmode.agent.runtime import AgentRuntime
from clawmode.config.mcp import read_servers
from clawmode.config.resolve import Configuration
from clawmode.mcp.servers import McpServers
from clawmode.messages import ToolMessage
from clawmode.sessions.export import export
from clawmode.sessions.store import SessionStore
from clawmode.sessions.trajectory import sidecar_path
from clawmode.testing import ScriptServer, Turn, call
from clawmode.tools.tool import Tool

pytestmark = pytest.mark.anyio

WIRES = ["openai-completions", "openai-responses", "anthropic-messages"]


@tool(effect="read")
async def greet(name: str) -> str:
    """Greet somebody."""
    return f"hello {name}"


@tool(effect="write")
async def forbidden() -> str:
    """Do what must not be done."""
    return "done"


@tool(effect="read", source="plugin", owner="garden")
async def water(plant: str) -> str:
    """Water a plant."""
    return f"{plant} watered"


async def ring(given: Any, context: Any) -> str:
    return f"rang {given['times']} times"


RING = Tool(
    "ring",
    "Ring the client's bell.",
    {"type": "object", "properties": {"times": {"type": "integer"}}, "required": ["times"]},
    ring,
    source="client",
)


def settings(server: ScriptServer, api: str, **tools: Any) -> Configuration:
    base = server.url if api == "anthropic-messages" else f"{server.url}/v1"
    provider = {"baseUrl": base, "api": api, "apiKey": "sk-secret-of-the-test", "local": False}
    return configured(
        agents={"defaults": {"model": "wire/small"}},
        models={"providers": {"wire": provider}},
        tools={"deny": ["forbidden"], **tools},
    )


@asynccontextmanager
async def agent_on(
    state: Path,
    configuration: Configuration,
    servers: dict[str, Any] | None = None,
    gate: Gate | None = None,
) -> AsyncIterator[Agent]:
    slow = gate or Gate(effect="read")
    found = read_servers(servers or {}).unwrap()
    async with McpServers(found) as mcp, ModelPool(configuration) as models:
        await mcp.connect()
        runtime = AgentRuntime(
            resolver=ConfigResolver(configuration, models, state),
            sessions=SessionStore(state / "sessions"),
            state=state,
            tools=[greet, slow.tool, forbidden],
            plugin_tools=[water],
            servers=mcp,
        )
        async with runtime:
            agent = Agent(runtime)
            runtime.subscribe(agent.events.append)
            yield agent


def names_of(request: Any) -> list[str]:
    """The tools on the wire, whatever its shape."""
    return [
        each["function"]["name"] if "function" in each else each["name"]
        for each in request.body.get("tools", [])
    ]


def program(source: str) -> Turn:
    return Turn(call("exec", {"code": source}))


@pytest.mark.covers("CM-E1", "CM-E2", "CM-E3")
@pytest.mark.parametrize("api", WIRES)
async def test_with_code_mode_off_the_model_sees_the_tools(tmp_path: Path, api: str) -> None:
    script = [Turn(call("greet", {"name": "Ann"})), Turn("I said hello.")]
    async with ScriptServer(script) as server:
        async with agent_on(tmp_path, settings(server, api, codeMode=False)) as agent:
            result = await agent.ask(client_tools=(RING,))
    assert result.status == "ok"
    assert result.metadata["codeModeEngaged"] is False
    assert [names_of(request) for request in server.requests] == [
        ["greet", "slow", "water", "ring"]
    ] * 2
    assert "hello Ann" in server.requests[1].raw.decode()


READ_ALL = """
const found = await tools.search("greet somebody");
const described = await tools.describe(found[0].id);
const [greeting, watered, rang, denied] = await Promise.allSettled([
  tools.call(described.id, { name: "Bob" }),
  tools.call("plugin:garden:water", { plant: "rose" }),
  tools.call("client:client:ring", { times: 3 }),
  tools.call("openclaw:core:forbidden", {}),
]);
return {
  ids: ALL_TOOLS.map((tool) => tool.id).sort(),
  greeting: greeting.value, watered: watered.value, rang: rang.value,
  denied: denied.reason.code, mcpByName: typeof tools.echo,
};
"""
USE_MCP = """
const files = await API.list("mcp");
const header = await API.read("mcp/raw.d.ts");
const echoed = await MCP.raw.echo({ need: "through MCP" });
const declares = header.includes("function echo(");
return { files: files.map((file) => file.path), declares, echoed };
"""


@pytest.mark.covers(
    "CM-E4", "CM-E5", "CM-E6", "CM-E7", "CM-E8", "CM-E9", "CM-E10", "CM-E11", "CM-scope"
)
@pytest.mark.parametrize("api", WIRES)
async def test_with_code_mode_on_everything_is_behind_two_tools(tmp_path: Path, api: str) -> None:
    command, *flags = [sys.executable, "-I", "-S"]
    raw = {"command": command, "args": [*flags, str(MCP / "raw_server.py"), "good"]}
    script = [program(READ_ALL), program(USE_MCP), Turn("Done.")]
    async with ScriptServer(script) as server:
        async with agent_on(tmp_path, settings(server, api, codeMode=True), {"raw": raw}) as agent:
            result = await agent.ask(client_tools=(RING,))
            history = await agent.history()
    assert (result.status, result.payloads) == ("ok", ({"text": "Done."},))
    assert [names_of(request) for request in server.requests] == [["exec", "wait"]] * 3
    first, second = [
        json.loads(it.text) for it in history.messages() if isinstance(it, ToolMessage)
    ]
    assert first["value"] == {
        "ids": [
            "client:client:ring",
            "openclaw:core:greet",
            "openclaw:core:slow",
            "plugin:garden:water",
        ],
        "greeting": "hello Bob",
        "watered": "rose watered",
        "rang": "rang 3 times",
        "denied": "unknown_tool",
        "mcpByName": "undefined",
    }
    assert second["status"] == "completed", second
    assert second["value"]["files"] == ["mcp/index.d.ts", "mcp/raw.d.ts"]
    assert second["value"]["declares"] is True
    assert "through MCP" in json.dumps(second["value"]["echoed"])
    counted: Any = result.metadata["bridgeCalls"]
    assert (counted["search"], counted["describe"]) == (1, 1)


@pytest.mark.covers("CM-E12", "CM-E13", "CM-E14", "CM-E16")
@pytest.mark.parametrize("api", WIRES)
async def test_a_program_that_waits_is_restored_and_the_export_shows_it(
    tmp_path: Path, api: str
) -> None:
    source = 'text("before"); const got = await tools.slow({}); return `after: ${got}`'
    gate = Gate(effect="read")

    def wait(request: Any) -> Turn:
        found = request.last_result()
        if found["status"] == "waiting":
            gate.open.set()
            return Turn(call("wait", {"runId": found["runId"]}))
        return Turn(f"It says {found['value']}")

    async with ScriptServer([program(source), wait, wait, wait]) as server:
        config = settings(server, api, codeMode={"enabled": True, "timeoutMs": 1000})
        async with agent_on(tmp_path, config, gate=gate) as agent:
            result = await agent.ask()
            session = await agent.runtime.sessions.resolve()
            made = export(
                session.transcript,
                sidecar_path(session.transcript, session.id),
                workspace=tmp_path,
            )
    assert result.payloads == ({"text": "It says after: slow is done"},)
    lines = (made.folder / "events.jsonl").read_text("utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    calls = [event["data"] for event in events if event["type"] == "tool.call"]
    outer = next(each for each in calls if each.get("name") == "exec")
    nested = next(each for each in calls if each.get("parentId") == outer["callId"])
    assert calls.index(nested) > calls.index(outer)
    assert "openclaw:core:slow" in nested.values()
    assert "wait" in [each.get("name") for each in calls]
    assert not any(b"sk-secret-of-the-test" in path.read_bytes() for path in made.folder.iterdir())


@pytest.mark.covers("CM-E15")
async def test_timeout_abort_and_expiry_leave_nothing_behind(tmp_path: Path) -> None:
    api = "anthropic-messages"
    parking = "await yield_control(); return 1"
    script = [program("for (;;);"), program(parking), Turn("left it"), program(parking), wait_long]
    async with ScriptServer(script) as server:
        limits = {"enabled": True, "timeoutMs": 300, "snapshotTtlSeconds": 1}
        async with agent_on(tmp_path, settings(server, api, codeMode=limits)) as agent:
            assert (await agent.ask()).status == "ok"
            results = [
                json.loads(it.text)
                for it in (await agent.history()).messages()
                if isinstance(it, ToolMessage)
            ]
            assert [it.get("code") for it in results] == ["timeout", None]
            assert parked(tmp_path) == 0  # the run has ended
            run = await agent.runtime.start(AgentRequest(message="again"))
            await until(lambda: run.id in {e.run_id for e in agent.events if e.data.get("ms")})
            agent.runtime.abort(run.id)
            assert (await agent.runtime.result(run.id)).status == "aborted"
            assert parked(tmp_path) == 0


async def wait_long(request: Any) -> Turn:
    await anyio.sleep_forever()
    return Turn("never")


def parked(state: Path) -> int:
    with contextlib.closing(sqlite3.connect(state / "cells.sqlite")) as database:
        return int(database.execute("select count(*) from cells").fetchone()[0])


# ---- The guard ----


@pytest.mark.covers("SF-7", "CM-V22", "CM-V23")
@pytest.mark.parametrize("api", WIRES)
async def test_a_tool_that_is_added_late_stops_the_run_before_a_byte_is_sent(
    tmp_path: Path, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: Any = {"name": "shell", "input_schema": {"type": "object"}}
    if api == "openai-completions":
        added = {"type": "function", "function": {"name": "shell", "parameters": None}}
    elif api == "openai-responses":
        added = {"type": "function", "name": "shell", "parameters": None}
    for client in (openai_client.AsyncAPIClient, anthropic_client.AsyncAPIClient):
        before = client._build_request

        def build(self: Any, options: Any, *, before: Any = before, **more: Any) -> Any:
            options.json_data = {
                **options.json_data,
                "tools": [*options.json_data["tools"], added],
            }
            return before(self, options, **more)

        monkeypatch.setattr(client, "_build_request", build)
    async with ScriptServer([Turn("never")]) as server:
        async with agent_on(tmp_path, settings(server, api, codeMode=True)) as agent:
            began = time.monotonic()
            result = await agent.ask()
    assert server.requests == []
    assert (result.status, result.problem) == ("error", "payload_guard")
    assert "shell" in (result.error or "")
    assert time.monotonic() - began < 10
