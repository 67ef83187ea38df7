"""`clawmode mcp`: what is configured, behind `exec` and `wait`, for one MCP client or for many."""

import os
import secrets
import weakref
from contextlib import nullcontext
from dataclasses import replace

import anyio

from clawmode.code_mode import CodeMode
from clawmode.command_setup import Setup
from clawmode.context import RunContext
from clawmode.exceptions import ConfigurationError
from clawmode.mcp.client import McpServers, ServerView
from clawmode.mcp.server import Opener, serve_http, serve_stdio
from clawmode.questions import Mode, make_approvals
from clawmode.sandbox.pool import Pool
from clawmode.stores import MemoryStore
from clawmode.terminal import tell
from clawmode.tools import Tool

TOKEN_VARIABLE = "CLAWMODE_MCP_TOKEN"  # noqa: S105 - its name


def serve(setup: Setup, approve: Mode, http: str | None) -> None:
    """Serves until the client hangs up, or until it is stopped.

    Args:
        setup: What programs can call, and their limits.
        approve: Who decides about calls of tools that do not only read.
        http: The address to listen at; None for stdio.

    Raises:
        ConfigurationError: The address is none.
    """
    address = None if http is None else _address(http)
    anyio.run(_serve, setup, approve, address)


def with_servers(setup: Setup) -> Setup:
    """The setup with the tools of its MCP servers, as they are now; they cannot be called."""

    async def connect() -> list[Tool]:
        async with McpServers(setup.servers) as servers:
            await servers.connect(on_progress=_tell_problem)
            return servers.tools()

    return replace(setup, tools=[*setup.tools, *anyio.run(connect)])


def _tell_problem(view: ServerView) -> None:
    if view.problem:
        tell(f"MCP server {view.name}: {view.problem}")


async def _serve(setup: Setup, approve: Mode, address: tuple[str, int] | None) -> None:
    """One set of servers and workers for all clients."""
    store = MemoryStore()
    opened: weakref.WeakSet[CodeMode] = weakref.WeakSet()

    def offer_anew(view: ServerView) -> None:
        for code_mode in list(opened):
            code_mode.offer([*setup.tools, *servers.tools()])

    servers = McpServers(setup.servers, on_change=offer_anew)

    def opener(context: RunContext) -> CodeMode:
        tools = [*setup.tools, *servers.tools()]
        code_mode = CodeMode(
            tools=tools,
            config=setup.config,
            policy=setup.policy,
            approvals=make_approvals(
                approve, later=True, terminal=None, paused=nullcontext, tell=tell
            ),
            store=store,
            context=context,
            pool=pool,
        )
        opened.add(code_mode)
        return code_mode

    async with Pool() as pool, servers:
        await servers.connect(on_progress=_tell_problem)
        if address is None:
            await serve_stdio(opener)
        else:
            await _serve_http(opener, *address)


async def _serve_http(opener: Opener, host: str, port: int) -> None:
    token = os.environ.get(TOKEN_VARIABLE, "")
    shown = "the token of " + TOKEN_VARIABLE
    if not token:
        token = secrets.token_urlsafe(32)
        shown = f"the bearer token {token}"

    def ready(used: int) -> None:
        tell(f"MCP server at http://{host}:{used}/mcp, with {shown}")

    await serve_http(opener, host, port, token, ready)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(f"--http takes HOST:PORT, such as 127.0.0.1:8765, not {text!r}")
    return host.strip("[]"), int(port)
