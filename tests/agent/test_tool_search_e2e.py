"""The page's six steps: over a real model's wire, and over the gateway's with a real plugin."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.agent.test_e2e import agent_on, names_of
from tests.support.agent_driver import configured
from tests.support.gateway_driver import Wired, wired
from tests.support.mcp_driver import HERE as MCP
from tests.support.plugin_material import plugin

# They take seconds, and here no clock of a test runs.
import clawmode.models.anthropic_sdk
import clawmode.models.openai_sdk  # noqa: F401
from clawmode.config.resolve import Configuration
from clawmode.models.wire import Exchange
from clawmode.sessions.history import read_transcript
from clawmode.testing import ScriptServer, Turn, call

pytestmark = pytest.mark.anyio

WIRES = ["openai-completions", "openai-responses", "anthropic-messages"]
CONTROLS = ["tool_search", "tool_describe", "tool_call"]
ID = "plugin:garden:water"

FAKE = """
from clawmode import Tool

def make(name, text):
    async def run(given, context):
        return f"{name} of {given.get('plant')} for {context.run.session_key}"
    schema = {"type": "object", "properties": {"plant": {"type": "string", "description": text}}}
    return Tool(name, text, schema, run)

def register(api):
    api.tool(make("water", "Water a plant of the garden."))
    for number in range(COUNT):
        api.tool(make(f"fake_{number}", f"A fake tool, number {number}, of a large catalog."))
"""

SEARCHED = """
const [found] = await openclaw.tools.search("water a plant");
const { parameters } = await openclaw.tools.describe(found.id);
console.log(Object.keys(parameters.properties));
return openclaw.tools.call(found.id, { plant: "rose" });
"""


def provider(server: ScriptServer, api: str) -> dict[str, Any]:
    base = server.url if api == "anthropic-messages" else f"{server.url}/v1"
    return {"baseUrl": base, "api": api, "apiKey": "sk-secret-of-the-test", "local": False}


# ---- A real model's wire ----


def settings(server: ScriptServer, api: str, **tools: Any) -> Configuration:
    return configured(
        agents={"defaults": {"model": "wire/small"}},
        models={"providers": {"wire": provider(server, api)}},
        tools={"codeMode": False, "deny": ["forbidden"], **tools},
    )


@pytest.mark.covers("TS-35", "TS-18")
@pytest.mark.parametrize("api", WIRES)
@pytest.mark.parametrize("mode", ["code", "tools", "directory"])
async def test_a_real_mcp_tool_is_found_and_called_over_every_wire(
    tmp_path: Path, api: str, mode: str
) -> None:
    command, *flags = [sys.executable, "-I", "-S"]
    raw = {"command": command, "args": [*flags, str(MCP / "raw_server.py"), "good"]}
    program = """
      const found = await openclaw.tools.search("echo", { limit: 20 });
      const { id } = found.find((tool) => tool.source === "mcp" && tool.name === "echo");
      return (await openclaw.tools.call(id, { need: "through MCP" })).content;
    """
    structured = [
        Turn(call("tool_describe", {"id": "mcp:raw:echo"})),
        Turn(call("tool_call", {"id": "mcp:raw:echo", "need": "through MCP"})),
    ]
    one = [Turn(call("tool_search_code", {"code": program}))]
    script = [*(one if mode == "code" else structured), Turn("Done.")]
    async with ScriptServer(script) as server:
        configuration = settings(server, api, toolSearch={"mode": mode})
        async with agent_on(tmp_path, configuration, {"raw": raw}) as agent:
            result = await agent.ask(
                "Xyzzy."
            )  # no word that a tool has, so the directory offers none
    assert (result.status, result.payloads) == ("ok", ({"text": "Done."},))
    wanted = ["tool_search_code"] if mode == "code" else CONTROLS
    assert {tuple(names_of(request)) for request in server.requests} == {tuple(wanted)}
    assert "through MCP" in server.requests[-1].raw.decode()
    report: Any = result.metadata["toolSearch"]
    assert report["calledTools"] == [{"toolId": "mcp:raw:echo", "source": "mcp"}]


@pytest.mark.covers("TS-35")
@pytest.mark.parametrize("mode", ["code", "tools", "directory"])
async def test_a_request_with_any_other_tool_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    add_tools = Exchange.__init__

    def smuggle(
        self: Exchange, model: str, exact_tools: frozenset[str] | None, run_id: str
    ) -> None:
        assert exact_tools is not None
        add_tools(self, model, exact_tools | {"another"}, run_id)

    monkeypatch.setattr(Exchange, "__init__", smuggle)
    async with ScriptServer(["never"]) as server:
        configuration = settings(server, "openai-completions", toolSearch={"mode": mode})
        async with agent_on(tmp_path, configuration) as agent:
            result = await agent.ask("Hello.")
    assert (result.status, result.problem) == ("error", "payload_guard")
    assert server.requests == []


# ---- The gateway's wire ----


@asynccontextmanager
async def gateway(
    folder: Path, server: ScriptServer, count: int, **rules: Any
) -> AsyncIterator[Wired]:
    """A gateway with a plugin of a large catalog, whose model is behind a real wire."""
    code = FAKE.replace("COUNT", str(count))
    plugin(folder / "plugins" / "garden", code, name="garden")
    async with wired(
        folder,
        rules={"codeMode": False, "deny": ["group:runtime", "group:fs"], **rules},
        plugins={"load": {"paths": [str(folder / "plugins")]}},
        models={"providers": {"wire": provider(server, "openai-completions")}},
        agents={"defaults": {"model": "wire/small"}},
    ) as it:
        yield it


async def turn(it: Wired) -> dict[str, Any]:
    """A turn that a client asks for, and what came of it."""
    async with it.connect() as client:
        run = await client.call("agent", {"message": "Hello.", "idempotencyKey": "once"})
        ended = await client.call("agent.wait", {"runId": run["runId"], "timeoutMs": 15_000})
    result: Any = ended["result"]
    return dict(result)


async def logged(it: Wired) -> Any:
    session = await it.gateway.host.runtime.sessions.resolve(None)
    return read_transcript(session.transcript)


SCRIPTS: dict[str, list[Turn]] = {
    "direct": [Turn(call("water", {"plant": "rose"}))],
    "code": [Turn(call("tool_search_code", {"code": SEARCHED}))],
    "tools": [
        Turn(call("tool_search", {"query": "water a plant"})),
        Turn(call("tool_describe", {"id": ID})),
        Turn(call("tool_call", {"id": ID, "args": {"plant": "rose"}})),
    ],
}


@pytest.mark.covers("TS-32", "TS-33", "TS-34", "TS-35", "TS-36", "TS-37")
async def test_the_six_steps_of_the_page(tmp_path: Path) -> None:
    served: dict[str, Any] = {}
    results: dict[str, Any] = {}
    logs: dict[str, Any] = {}
    for mode, script in SCRIPTS.items():
        async with ScriptServer([*script, Turn("Done.")]) as server:
            search = False if mode == "direct" else {"mode": mode}
            async with gateway(tmp_path / mode, server, 150, toolSearch=search) as it:
                results[mode] = await turn(it)
                logs[mode] = await logged(it)
            served[mode] = server.requests
    for mode, result in results.items():
        # 1 and 2: the same fake tool, with the identity of the session.
        assert result["status"] == "ok", result
        assert "water of rose for agent:main:main" in served[mode][-1].raw.decode()
    # 3 and 4: what the provider received.
    direct = names_of(served["direct"][0])
    assert {"water", "fake_0", "fake_149"} <= set(direct)
    assert names_of(served["code"][0]) == ["tool_search_code"]
    assert names_of(served["tools"][0]) == CONTROLS
    for mode in ("code", "tools"):
        assert b"fake_149" not in served[mode][0].raw
        # 5: the request is smaller.
        assert len(served[mode][0].raw) * 5 < len(served["direct"][0].raw)
    check_logs(results, logs, len(direct))


def check_logs(results: dict[str, Any], logs: dict[str, Any], schemas: int) -> None:
    """Step 6: the counts, and the bridged call."""
    assert logs["direct"].nested_calls() == []
    assert results["direct"]["metadata"]["visibleTools"] == schemas
    assert "toolSearch" not in results["direct"]["metadata"]
    for mode, calls, seen in (("code", 1, 1), ("tools", 3, 3)):
        told = results[mode]["metadata"]
        report = told["toolSearch"]
        assert (told["toolCalls"], told["visibleTools"], report["mode"]) == (calls, seen, mode)
        assert [report[key] for key in ("searchCount", "describeCount", "callCount")] == [1, 1, 1]
        assert report["calledTools"] == [{"toolId": ID, "source": "plugin"}]
        assert report["sources"]["plugin"] == 151
        (nested,) = logs[mode].nested_calls()
        assert (nested.tool_id, nested.state) == (ID, "completed")


async def test_a_gateway_says_what_the_model_would_see(tmp_path: Path) -> None:
    async with ScriptServer(["ok"]) as server:
        async with gateway(tmp_path / "a", server, 5, toolSearch={"mode": "tools"}) as it:
            async with it.connect() as client:
                told = await client.call("tools.effective", {"sessionKey": "main"})
    assert told["visible"] == CONTROLS
    assert ID in json.dumps(told["tools"])
