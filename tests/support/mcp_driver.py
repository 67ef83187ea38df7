"""What the tests of MCP have in common: servers to talk to, and a short way to call them."""

import json
import random
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio

from clawmode.config.mcp import read_servers
from clawmode.context import RunContext
from clawmode.mcp.auth import OnLogin
from clawmode.mcp.servers import McpServers
from clawmode.mcp.supervisor import ServerView
from clawmode.tools.tool import Ask, Tool, ToolContext, ToolResult, decline
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
        "timeoutMs": 9_000,  # less than `call` waits: a flood takes seconds on a busy machine
        **more,
    }


def listed(*tools: Any, about: str = "raw", mode: str = "listed", **more: Any) -> dict[str, Any]:
    """The entry of a server that offers these tools, which answer their names.

    Args:
        tools: As the protocol has them, or not.
        about: What it calls itself, says of itself, and writes to stderr if it does not start.
        mode: What else it does.
        more: Further settings.
    """
    offer = json.dumps({"tools": tools, "about": about})
    offer = offer.replace("$", r"\u0024")  # or it would be a variable of the configuration
    return raw(mode, **{"env": {"OFFER": offer}, **more})


@asynccontextmanager
async def connected(
    entries: dict[str, Any],
    *,
    connect: bool = True,
    asks: bool = False,
    on_login: OnLogin | None = None,
    on_change: Callable[[ServerView], None] | None = None,
    tokens: Path | None = None,
    principal: str = "",
) -> AsyncIterator[McpServers]:
    settings = read_servers(entries).unwrap()
    servers = McpServers(settings, asks=asks, on_login=on_login, tokens=tokens, principal=principal)
    if on_change is not None:
        servers.watch(on_change)
    async with servers:
        if connect:
            with anyio.fail_after(15):
                await servers.connect()
        yield servers


def free_port() -> int:
    """A port of this machine that nobody uses, and that nobody gets by chance.

    It is below those that the system chooses from: it would give one that is free for a moment to
    whoever connects somewhere, or to another test.
    """
    while True:
        port = random.randrange(10_000, 32_768)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def view_of(servers: McpServers, name: str) -> ServerView:
    (view,) = [view for view in servers.views if view.name == name]
    return view


def find(servers: McpServers, tool_id: str) -> Tool:
    (tool,) = [tool for tool in servers.tools() if tool.id == f"mcp:{tool_id}"]
    return tool


def context(
    update: Callable[[JsonValue], None] = lambda value: None, ask: Ask = decline
) -> ToolContext:
    return ToolContext(run=RunContext(), call_id="1", update=update, ask=ask)


async def call(
    servers: McpServers,
    tool_id: str,
    given: dict[str, Any] | None = None,
    *,
    update: Callable[[JsonValue], None] = lambda value: None,
    ask: Ask = decline,
    limit: float = 10,
) -> Any:
    """The details that a tool answers. `tool_id` is `server:name`."""
    execute = find(servers, tool_id).execute
    with anyio.fail_after(limit):
        result = await execute(given or {}, context(update, ask))  # pyrefly: ignore[not-async]
    assert isinstance(result, ToolResult)
    return result.details
