"""Starts and connects the configured MCP servers, with progress and problems on stderr."""

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
from clawmode.mcp.servers import McpServers
from clawmode.mcp.supervisor import ServerView
from clawmode.tools.tool import Tool

MAX_LOG = 1 << 20
TOKENS = "mcp-tokens"
"""The folder in the state folder that keeps the tokens of logins."""


def with_servers(setup: Setup) -> Setup:
    """Returns the setup with the present tools of its MCP servers; these cannot be called."""

    async def connect() -> list[Tool]:
        async with open_servers(setup) as servers:
            return servers.tools()

    return replace(setup, tools=[*setup.tools, *anyio.run(connect)])


@asynccontextmanager
async def open_servers(
    setup: Setup, *, asks: bool = False, show_problems: bool = True
) -> AsyncIterator[McpServers]:
    """Yields the configured servers, connected, and shows the progress on stderr.

    Args:
        setup: The settings.
        asks: True if servers can ask a user for input.
        show_problems: Print which servers cannot be reached, and why.
    """
    async with start_servers(setup, asks=asks) as servers:
        if setup.servers:
            with Progress("MCP servers", len(setup.servers)) as progress:

                def show(view: ServerView) -> None:
                    problem = view.problem if show_problems else None
                    progress.step(f"MCP server {view.name}: {problem}" if problem else "")

                views = await servers.connect(on_progress=show)
            if show_problems and any(view.problem for view in views):
                print_note(f"the stderr output of MCP servers is in {log_file(setup)}")
        yield servers


@asynccontextmanager
async def start_servers(
    setup: Setup, *, asks: bool, principal: str | None = ""
) -> AsyncIterator[McpServers]:
    """Yields the configured servers, not connected yet; logs what they write to stderr."""
    tokens = setup.state / TOKENS
    with _stderr_log(setup):
        async with McpServers(
            setup.servers, asks=asks, tokens=tokens, logs=False, principal=principal
        ) as servers:
            yield servers


def log_file(setup: Setup) -> Path:
    """Returns the log file for the stderr output of MCP servers."""
    return setup.state / "logs" / "mcp-servers.log"


@contextmanager
def _stderr_log(setup: Setup) -> Iterator[None]:
    """Logs the stderr output of servers to a file: messages show only the last lines of it."""
    file = log_file(setup)
    log = logging.getLogger("clawmode.mcp.stderr")
    handler: logging.Handler = logging.NullHandler()
    if setup.servers:
        # Not fatal: the modules that need the state folder report that it cannot be written.
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
