"""What the tests of MCP have in common: servers to talk to, and a short way to call them."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from clawmode.context import RunContext
from clawmode.mcp.client import McpServers, ServerView
from clawmode.mcp.config import read_servers
from clawmode.mcp.session import OnInput
from clawmode.tools import Tool, ToolContext, ToolResult
from clawmode.types import JsonValue

HERE = Path(__file__).parent
PYTHON = [sys.executable, "-I", "-S"]


def raw(mode: str = "good", *args: str, **more: Any) -> dict[str, Any]:
    """The entry of a server that is written by hand."""
    command, *flags = PYTHON
    return {
        "command": command,
        "args": [*flags, str(HERE / "raw_server.py"), mode, *args],
        "connectTimeoutMs": 10_000,
        "timeoutMs": 5_000,
        **more,
    }


@asynccontextmanager
async def connected(
    entries: dict[str, Any],
    *,
    connect: bool = True,
    on_input: OnInput | None = None,
    on_change: Callable[[ServerView], None] | None = None,
    tokens: Path | None = None,
) -> AsyncIterator[McpServers]:
    settings = read_servers(entries).unwrap()
    async with McpServers(
        settings, on_input=on_input, on_change=on_change, tokens=tokens
    ) as servers:
        if connect:
            with anyio.fail_after(15):
                await servers.connect()
        yield servers


def view_of(servers: McpServers, name: str) -> ServerView:
    (view,) = [view for view in servers.views if view.name == name]
    return view


def find(servers: McpServers, tool_id: str) -> Tool:
    (tool,) = [tool for tool in servers.tools() if tool.id == f"mcp:{tool_id}"]
    return tool


def context(update: Callable[[JsonValue], None] = lambda value: None) -> ToolContext:
    return ToolContext(run=RunContext(), call_id="1", update=update)


async def call(
    servers: McpServers,
    tool_id: str,
    given: dict[str, Any] | None = None,
    *,
    update: Callable[[JsonValue], None] = lambda value: None,
    limit: float = 10,
) -> Any:
    """The details that a tool answers. `tool_id` is `server:name`."""
    execute = find(servers, tool_id).execute
    with anyio.fail_after(limit):
        result = await execute(given or {}, context(update))  # pyrefly: ignore[not-async]
    assert isinstance(result, ToolResult)
    return result.details


async def eventually(condition: Callable[[], bool], limit: float = 5) -> None:
    with anyio.fail_after(limit):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await anyio.sleep(0.01)
