"""Drives `clawmode mcp` with the official client: over stdio, over HTTP, and in this process."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from tests.support.forking import interpreter
from tests.support.mcp_driver import raw
from tests.support.waiting import GATE_TOOL

from clawmode import Approvals, CodeMode, Pool, tool
from clawmode.code_mode.results import read_compact
from clawmode.config.mcp import read_servers
from clawmode.context import RunContext
from clawmode.mcp.server import CodeModeServer, open_server
from clawmode.mcp.servers import McpServers
from clawmode.rpc.tokens import MCP_FILE, Tokens

TOOLS = f'''{GATE_TOOL}
CANCELLED = []

@tool(effect="read")
async def same(value: int) -> int:
    """Return the value."""
    return value

@tool(effect="read")
async def slow() -> int:
    """Never end."""
    try:
        await anyio.sleep_forever()
    finally:
        CANCELLED.append(1)

@tool(effect="read")
async def cancelled() -> int:
    """How many were cancelled."""
    return len(CANCELLED)

@tool(effect="write")
async def write(text: str) -> str:
    """Write a text."""
    print("a tool that prints does not break the wire")
    return f"wrote {{text}}"

tools = [gate, same, slow, write, cancelled]
'''
MODES = ["legacy", "auto"]
TOKEN = "a token for tests"


def command(*more: str) -> list[str]:
    return ["-m", "clawmode", "mcp", "--tools", "mine:tools", *more]


def environment() -> dict[str, str]:
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return kept | {"CLAWMODE_MCP_TOKEN": TOKEN, "CLAWMODE_STATE": "state"}


@asynccontextmanager
async def stdio(folder: Path, *more: str, **options: Any) -> AsyncIterator[Client]:
    python, *flags = interpreter()
    server = StdioServerParameters(
        command=python, args=[*flags, *command(*more)], cwd=folder, env=environment()
    )
    async with Client(server, **options) as client:
        yield client


@asynccontextmanager
async def http(folder: Path, *more: str, **options: Any) -> AsyncIterator[Client]:
    async with served(folder, *more) as url, connected(url, **options) as client:
        yield client


@asynccontextmanager
async def served(
    folder: Path, *more: str, at: str = "127.0.0.1:0", limit: int = 0
) -> AsyncIterator[str]:
    """The URL of a server in its own process; `limit` is the most files that it may have open."""
    argv = [*interpreter(), *command("--http", at, *more)]
    if limit:
        argv = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", sys.executable, *command()]
        argv += ["--http", at, *more]
    process = await anyio.open_process(
        argv, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    async with process:
        assert process.stderr is not None
        told = ""
        with anyio.fail_after(25):
            while "/mcp" not in told:
                told += (await process.stderr.receive()).decode()
        found = re.search(r"http://\S+/mcp", told)
        assert found is not None
        assert TOKEN not in told
        try:
            yield found[0]
        finally:
            process.terminate()


def new_token(folder: Path, name: str) -> str:
    """Creates a named token in the state folder of the tests."""
    return Tokens(folder / "state", file=MCP_FILE).add(name)


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
    assert result.structured_content is None  # the model would read everything twice
    return read_compact(content.text)


# ---- In this process ----


@tool(effect="write")
async def write(text: str) -> str:
    """Write a text."""
    return f"wrote {text}"


@asynccontextmanager
async def open_face(entries: dict[str, Any] | None = None) -> AsyncIterator[CodeModeServer]:
    """A face in this process, in front of MCP servers that have begun to connect."""
    settings = read_servers(entries or {}).unwrap()

    def opener(context: RunContext, servers: McpServers) -> CodeMode:
        approvals = Approvals(ask_for=lambda tool: tool.effect != "read", inputs="ask")
        return CodeMode(
            tools=[write], mcp_servers=servers, approvals=approvals, context=context, pool=pool
        )

    async with Pool(size=1) as pool, McpServers(settings, asks=True) as servers:
        servers.begin()
        async with open_server(opener, servers) as face:
            yield face


@asynccontextmanager
async def inside(entries: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[Client]:
    """A client of a face in this process."""
    async with open_face(entries) as face, Client(face.server, **options) as client:
        yield client


def gated(gate: Path) -> dict[str, Any]:
    """A server that starts to answer when there is a file."""
    entry = raw()
    wait = f"while [ ! -e {gate} ]; do sleep 0.02; done"
    line = f"{wait}; exec {shlex.join([entry['command'], *entry['args']])}"
    return {"command": "sh", "args": ["-c", line]}
