"""The configured MCP servers, started and connected, with progress on stderr."""

import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from logging.handlers import RotatingFileHandler
from pathlib import Path

import anyio

from clawmode.app.console import Progress, print_note
from clawmode.app.setup import Setup
from clawmode.mcp.servers import McpServers, ServerView
from clawmode.tools.tool import Tool

MAX_LOG = 1 << 20
TOKENS = "mcp-tokens"
"""Where logins are kept, in the folder of the state."""


def with_servers(setup: Setup) -> Setup:
    """The setup with the tools of its MCP servers, as they are now; they cannot be called."""

    async def connect() -> list[Tool]:
        async with open_servers(setup) as servers:
            return servers.tools()

    return replace(setup, tools=[*setup.tools, *anyio.run(connect)])


@asynccontextmanager
async def open_servers(
    setup: Setup, *, asks: bool = False, told: bool = True
) -> AsyncIterator[McpServers]:
    """The configured servers, connected; who waits for them sees how far it is.

    Args:
        setup: Which.
        asks: There is a person whom they can ask.
        told: Say which cannot be reached, and why.
    """
    async with start_servers(setup, asks=asks) as servers:
        if setup.servers:
            await _connect(setup, servers, told=told)
        yield servers


@asynccontextmanager
async def start_servers(setup: Setup, *, asks: bool) -> AsyncIterator[McpServers]:
    """Yields the configured servers, not connected yet; logs what they write to stderr."""
    tokens = setup.state / TOKENS
    with _stderr_kept(setup):
        async with McpServers(setup.servers, asks=asks, tokens=tokens, logs=False) as servers:
            yield servers


async def _connect(setup: Setup, servers: McpServers, *, told: bool) -> None:
    with Progress("MCP servers", len(setup.servers)) as progress:

        def show(view: ServerView) -> None:
            problem = view.problem if told else None
            progress.step(f"MCP server {view.name}: {problem}" if problem else "")

        views = await servers.connect(on_progress=show)
    if told and any(view.problem for view in views):
        print_note(f"what MCP servers write to stderr is in {log_file(setup)}")


def log_file(setup: Setup) -> Path:
    """Where everything is kept that MCP servers write to stderr, within bounds."""
    return setup.state / "logs" / "mcp-servers.log"


@contextmanager
def _stderr_kept(setup: Setup) -> Iterator[None]:
    """Keeps in a file what servers write to stderr: problems show its last lines only."""
    file = log_file(setup)
    log = logging.getLogger("clawmode.mcp.stderr")
    handler: logging.Handler = logging.NullHandler()
    if setup.servers:
        # A state folder that cannot be written is told by whoever needs it.
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
            handler = RotatingFileHandler(file, maxBytes=MAX_LOG, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(message)s"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
        handler.close()
