"""`clawmode mcp`, driven by the official client: stdio and HTTP, both eras of the protocol."""

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

pytestmark = pytest.mark.anyio

TOOLS = '''
import anyio
from clawmode import tool

CANCELLED = []

@tool(effect="read")
async def slow(seconds: float, value: int = 1) -> int:
    """Take a while."""
    try:
        await anyio.sleep(seconds)
    except BaseException:
        CANCELLED.append(value)
        raise
    return value

@tool(effect="read")
async def cancelled() -> int:
    """How many were cancelled."""
    return len(CANCELLED)

@tool(effect="write")
async def write(text: str) -> str:
    """Write a text."""
    print("a tool that prints does not break the wire")
    return f"wrote {text}"

tools = [slow, write, cancelled]
'''
MODES = ["legacy", "auto"]
TOKEN = "a token for tests"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(TOOLS)
    return tmp_path


def command(*more: str) -> list[str]:
    return ["-m", "clawmode", "mcp", "--tools", "mine:tools", *more]


def environment() -> dict[str, str]:
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return kept | {"CLAWMODE_MCP_TOKEN": TOKEN}


@asynccontextmanager
async def stdio(folder: Path, *more: str, **options: Any) -> AsyncIterator[Client]:
    server = StdioServerParameters(
        command=sys.executable, args=command(*more), cwd=folder, env=environment()
    )
    async with Client(server, **options) as client:
        yield client


@asynccontextmanager
async def http(folder: Path, *more: str, **options: Any) -> AsyncIterator[Client]:
    async with served(folder, *more) as url, connected(url, **options) as client:
        yield client


@asynccontextmanager
async def served(folder: Path, *more: str) -> AsyncIterator[str]:
    argv = [sys.executable, *command("--http", "127.0.0.1:0", *more)]
    process = await anyio.open_process(
        argv, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    async with process:
        assert process.stderr is not None
        told = ""
        with anyio.fail_after(15):
            while "/mcp" not in told:
                told += (await process.stderr.receive()).decode()
        found = re.search(r"http://\S+/mcp", told)
        assert found is not None
        assert TOKEN not in told
        try:
            yield found[0]
        finally:
            process.terminate()


@asynccontextmanager
async def connected(url: str, token: str = TOKEN, **options: Any) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http_client:
        async with Client(
            streamable_http_client(url, http_client=http_client), **options
        ) as client:
            yield client


TRANSPORTS = [stdio, http]


def read(result: types.CallToolResult) -> dict[str, Any]:
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    assert json.loads(content.text) == result.structured_content
    return json.loads(content.text)


@pytest.mark.covers("S-4")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_raw_json_of_a_program_is_answered_and_the_server_goes_on(
    folder: Path, transport: Any
) -> None:
    async with transport(folder) as client:
        for raw in ("""'"\\\\uD800"'""", '"9".repeat(6000)', '"1e999"'):
            for code in (f"return JSON.rawJSON({raw})", f"json(JSON.rawJSON({raw}))"):
                told = read(await client.call_tool("exec", {"code": code}))
                assert (told["status"], told["code"]) == ("failed", "internal_error")
        told = read(await client.call_tool("exec", {"code": "return 1"}))
        assert (told["status"], told["value"]) == ("completed", 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_client_sees_two_tools_and_runs_a_fan_out(
    folder: Path, transport: Any, mode: str
) -> None:
    progress: list[str] = []

    async def report(done: float, total: float | None, message: str | None) -> None:
        progress.append(message or "")

    async with transport(folder, mode=mode) as client:
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == ["exec", "wait"]
        code = "return Promise.all([1, 2, 3].map((value) => tools.slow({ seconds: 0.05, value })))"
        result = await client.call_tool("exec", {"code": code}, progress_callback=report)
        assert read(result)["value"] == [1, 2, 3]
    assert sum(text.endswith("completed") for text in progress) == 3


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_program_that_waits_is_continued(folder: Path, transport: Any) -> None:
    async with transport(folder, "--timeout-ms", "500") as client:
        code = 'text("a"); const late = await tools.slow({ seconds: 1, value: 7 }); return late'
        first = read(await client.call_tool("exec", {"code": code}))
        assert first["status"] == "waiting"
        result = first
        with anyio.fail_after(15):
            while result["status"] == "waiting":
                result = read(await client.call_tool("wait", {"runId": first["runId"]}))
        assert result["value"] == 7


async def test_a_failure_is_an_error_with_its_code(folder: Path) -> None:
    async with stdio(folder) as client:
        result = await client.call_tool("exec", {"code": "throw new Error('no')"})
        assert result.is_error
        assert read(result)["code"] == "internal_error"
        assert (await client.call_tool("bash", {"command": "ls"})).is_error
        bad = await client.call_tool("wait", {"runId": "cm_" + "0" * 32})
        assert read(bad)["code"] == "invalid_input"


async def test_a_cancelled_call_ends_its_program(folder: Path) -> None:
    async with stdio(folder) as client:
        with anyio.move_on_after(0.5):
            await client.call_tool("exec", {"code": "for (;;);"})
        with anyio.fail_after(5):
            result = await client.call_tool("exec", {"code": "return 1"})
        assert read(result)["value"] == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_a_person_is_asked_through_the_client(
    folder: Path, transport: Any, mode: str, action: Any
) -> None:
    asked: list[str] = []

    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        content: dict[str, Any] | None = {"decision": "allow-once"} if action == "accept" else None
        return types.ElicitResult(action=action, content=content)

    async with transport(folder, mode=mode, elicitation_callback=answer) as client:
        code = 'return tools.write({ text: "x" }).catch((error) => error.code)'
        value = read(await client.call_tool("exec", {"code": code}))["value"]
    assert value == ("wrote x" if action == "accept" else "not_approved")
    (question,) = asked
    assert 'openclaw:core:write with {"text": "x"}' in question


async def test_each_program_is_asked_its_own_questions(folder: Path) -> None:
    asked: list[str] = []

    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        await anyio.sleep(0.3)  # both programs wait for a person meanwhile
        said = "deny" if "two" in params.message else "allow-once"
        return types.ElicitResult(action="accept", content={"decision": said})

    values: dict[str, Any] = {}
    async with stdio(folder, mode="legacy", elicitation_callback=answer) as client:

        async def write(text: str) -> None:
            code = f'return tools.write({{ text: "{text}" }}).catch((error) => error.code)'
            values[text] = read(await client.call_tool("exec", {"code": code}))["value"]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, "one")
            tasks.start_soon(write, "two")
    assert values == {"one": "wrote one", "two": "not_approved"}
    assert len(asked) == 2


@pytest.mark.parametrize("mode", MODES)
async def test_a_question_that_was_given_up_is_not_put_to_the_next(folder: Path, mode: str) -> None:
    asked: list[str] = []

    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        if "given up" in params.message:
            await anyio.sleep_forever()
        return types.ElicitResult(action="accept", content={"decision": "allow-once"})

    async with stdio(folder, mode=mode, elicitation_callback=answer) as client:
        with anyio.move_on_after(1.0):
            code = 'await tools.write({ text: "given up" })'
            await client.call_tool("exec", {"code": code})
        with anyio.fail_after(10):
            code = 'return tools.write({ text: "meant" })'
            result = read(await client.call_tool("exec", {"code": code}))
    assert result["value"] == "wrote meant"
    assert len(asked) == 2


async def test_a_client_that_fails_to_ask_can_wait(folder: Path) -> None:
    async def answer(context: Any, params: Any) -> types.ErrorData:
        return types.ErrorData(code=-32000, message="no window")

    async with stdio(folder, mode="legacy", elicitation_callback=answer) as client:
        code = 'return tools.write({ text: "x" })'
        result = await client.call_tool("exec", {"code": code})
        assert read(result)["status"] == "waiting"


async def test_a_session_that_is_deleted_takes_its_programs_along(folder: Path) -> None:
    async with served(folder, "--timeout-ms", "300") as url, httpx2.AsyncClient() as client:
        headers = {
            "authorization": f"Bearer {TOKEN}",
            "accept": "application/json, text/event-stream",
        }

        async def post(method: str, params: Any, **more: str) -> Any:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            answer = await client.post(url, headers=headers | more, json=body, timeout=15)
            assert answer.status_code == 200
            return answer

        info = {"name": "x", "version": "1"}
        hello: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": {}}
        hello["clientInfo"] = info
        session = {"mcp-session-id": (await post("initialize", hello)).headers["mcp-session-id"]}
        code = "return tools.slow({ seconds: 30 })"
        await post("tools/call", {"name": "exec", "arguments": {"code": code}}, **session)
        gone = await client.delete(url, headers=headers | session)
        assert gone.status_code == 200
        code = "return tools.cancelled()"
        again = {"mcp-session-id": (await post("initialize", hello)).headers["mcp-session-id"]}
        with anyio.fail_after(10):
            while True:
                answer = await post(
                    "tools/call", {"name": "exec", "arguments": {"code": code}}, **again
                )
                if '"value":1' in answer.text.replace("\\", ""):
                    break
                await anyio.sleep(0.1)


async def test_a_client_that_cannot_ask_gets_a_waiting_result(folder: Path) -> None:
    async with stdio(folder) as client:
        result = read(await client.call_tool("exec", {"code": 'return tools.write({ text: "x" })'}))
        assert [call["state"] for call in result["pendingToolCalls"]] == ["approval"]


async def test_nobody_is_asked_where_the_operator_says_so(folder: Path) -> None:
    async with stdio(folder, "--approve", "always") as client:
        result = read(await client.call_tool("exec", {"code": 'return tools.write({ text: "x" })'}))
        assert result["value"] == "wrote x"


SERVER = """
from typing import Annotated
from mcp.server.mcpserver import Elicit, MCPServer, Resolve
from pydantic import BaseModel
server = MCPServer("tiny")

@server.tool()
def shout(text: str) -> str:
    return text.upper()

class Name(BaseModel):
    name: str

async def ask() -> Elicit[Name]:
    return Elicit("Your name?", Name)

@server.tool()
async def greet(person: Annotated[Name, Resolve(ask)]) -> str:
    return f"hello {person.name}"

server.run("stdio")
"""


def tiny_server(folder: Path) -> dict[str, Any]:
    (folder / "server.py").write_text(SERVER)
    return {"tiny": {"command": sys.executable, "args": ["server.py"]}}


@pytest.mark.parametrize("key", ["mcpServers", "mcp"])
async def test_the_configured_servers_are_behind_it(folder: Path, key: str) -> None:
    servers = tiny_server(folder)
    written = {"mcp": {"servers": servers}} if key == "mcp" else {key: servers}
    (folder / "servers.json").write_text(json.dumps(written))
    option = "--config" if key == "mcp" else "--mcp-config"
    async with stdio(folder, option, "servers.json", "--approve", "always") as client:
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == ["exec", "wait"]
        assert "MCP servers: tiny" in (listed.tools[0].description or "")
        code = 'return (await MCP.tiny.shout({ text: "a" })).structuredContent'
        assert read(await client.call_tool("exec", {"code": code}))["value"] == {"result": "A"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("able", [True, False])
async def test_what_a_server_asks_is_put_to_the_clients_person(
    folder: Path, mode: str, able: bool
) -> None:
    (folder / "servers.json").write_text(json.dumps({"mcpServers": tiny_server(folder)}))
    asked: list[Any] = []

    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestFormParams)
        asked.append((params.message, list(params.requested_schema["properties"])))
        return types.ElicitResult(action="accept", content={"name": "Ann"})

    options = ("--mcp-config", "servers.json", "--approve", "always")
    callback = answer if able else None
    async with stdio(folder, *options, mode=mode, elicitation_callback=callback) as client:
        code = "return (await MCP.tiny.greet()).content[0].text"
        with anyio.fail_after(9):  # it does not wait for the end of the time that a program has
            result = read(await client.call_tool("exec", {"code": code}))
    assert result["value"].endswith("hello Ann" if able else "elicitation was decline")
    assert asked == ([("mcp:tiny:greet asks:\nYour name?", ["name"])] if able else [])


async def test_without_the_token_nothing_is_answered(folder: Path) -> None:
    async with served(folder) as url, httpx2.AsyncClient() as client:
        for shown in ("", "Bearer wrong", TOKEN):
            answer = await client.post(url, headers={"authorization": shown}, json={})
            assert answer.status_code == 401
            assert TOKEN not in answer.text


async def test_a_session_cannot_wait_for_anothers_program(folder: Path) -> None:
    async with served(folder) as url:
        async with connected(url, mode="legacy") as one, connected(url, mode="legacy") as two:
            parked = read(await one.call_tool("exec", {"code": "await yield_control(); return 1"}))
            wait = {"runId": parked["runId"]}
            assert read(await two.call_tool("wait", wait))["code"] == "invalid_input"
            assert read(await one.call_tool("wait", wait))["value"] == 1


def test_an_address_that_is_none_is_told(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, *command("--http", "nowhere")],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert done.returncode == 2
    assert "HOST:PORT" in done.stderr
    assert "Traceback" not in done.stderr
