"""`clawmode mcp` and `clawmode login`: the MCP server face, and logins to other servers."""

import os
import secrets
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from clawmode.addresses import is_loopback
from clawmode.app.console import print_note, print_stderr
from clawmode.app.servers import TOKENS, log_file, start_servers
from clawmode.app.setup import Setup
from clawmode.code_mode.code_mode import CodeMode
from clawmode.code_mode.memory_store import MemoryStore
from clawmode.context import RunContext
from clawmode.exceptions import ConfigurationError
from clawmode.mcp.requests import McpError
from clawmode.mcp.server import serve_http, serve_stdio
from clawmode.mcp.servers import McpServers
from clawmode.mcp.settings import OAuth
from clawmode.mcp.supervisor import ServerView
from clawmode.plugins.setup import loaded_plugins
from clawmode.rpc.listen import MIN_TOKEN
from clawmode.sandbox.pool import Pool
from clawmode.terminal.desk import make_approvals
from clawmode.tools.approvals import Mode

TOKEN_VARIABLE = "CLAWMODE_MCP_TOKEN"  # noqa: S105 - its name


def serve(setup: Setup, approve: Mode, http: str | None) -> None:
    """Serves `exec` and `wait` until the client disconnects, or until the server is stopped.

    Args:
        setup: The tools, servers and limits of programs.
        approve: Who decides about calls of tools that are not declared to only read.
        http: The address to listen on; None for stdio.

    Raises:
        ConfigurationError: The address is invalid, or the token is too short.
    """
    address, token = None, os.environ.get(TOKEN_VARIABLE, "") if http else ""
    if http is not None:
        host, _, port = http.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigurationError(
                f"--http must be HOST:PORT, such as 127.0.0.1:8765, got {http!r}"
            )
        address = host.strip("[]"), int(port)
    if 0 < len(token) < MIN_TOKEN:
        raise ConfigurationError(
            f"{TOKEN_VARIABLE} has {len(token)} characters and needs {MIN_TOKEN} or more; unset "
            "the variable to get a generated token"
        )
    anyio.run(_serve, setup, approve, address, token)


def log_in(setup: Setup, name: str) -> None:
    """Lets the user log in to a server in a browser, and stores the token.

    Raises:
        ConfigurationError: There is no such server, or it has no login.
        McpError: The server cannot be reached, or the user has not logged in.
    """
    found = [server for server in setup.servers if server.name == name]
    if not found:
        known = ", ".join(server.name for server in setup.servers) or "none"
        raise ConfigurationError(
            f"there is no MCP server named {name!r}; the configuration has: {known}"
        )
    if not isinstance(found[0].auth, OAuth):
        raise ConfigurationError(f'MCP server {name!r} needs no login: it has no `auth: "oauth"`')

    async def send_to(server: str, address: str) -> bool:
        print_note(f"log in to {server} at this address; this command waits for the result:")
        print_stderr(f"  {address}")
        webbrowser.open(address)  # may do nothing, for example over SSH: the address is printed
        return True

    async def connect() -> ServerView:
        async with McpServers(found, on_login=send_to, tokens=setup.state / TOKENS) as servers:
            (view,) = await servers.connect()
            return view

    view = anyio.run(connect)
    if view.problem:
        raise McpError(name, "unavailable", view.problem)
    print_note(f"logged in to {name}, tools: {len(view.tools)}")


async def _serve(setup: Setup, approve: Mode, address: tuple[str, int] | None, token: str) -> None:
    store = MemoryStore()
    shown = f"the token of {TOKEN_VARIABLE}"
    if not token:
        token = secrets.token_urlsafe(32)
        shown = f"the bearer token {token}"

    def ready(port: int) -> None:
        host = "" if address is None else address[0]
        print_note(f"MCP server at http://{host}:{port}/mcp, with {shown}")
        if not is_loopback(host):
            print_note(
                f"{host} can be reached from other machines, and there is no TLS here: the token "
                "and all data travel unencrypted. Put a reverse proxy with TLS in front of it"
            )

    def opener(context: RunContext) -> CodeMode:
        return CodeMode(
            tools=[*setup.tools, *plugins.tools],
            hooks=plugins.hooks,
            namespaces=plugins.namespaces,
            mcp_servers=servers,
            config=setup.config,
            policy=setup.policy,
            approvals=make_approvals(approve, later=True, inputs="ask"),
            store=store,
            context=context,
            pool=pool,
        )

    with loaded_plugins(setup.configuration, setup.state) as plugins:
        async with Pool() as pool, start_servers(setup, asks=True) as servers:
            with _printed_problems(setup, servers):
                # Connecting does not delay the answer to `initialize`: clients give up on a server
                # that starts slowly.
                servers.begin()
                if address is None:
                    await serve_stdio(opener, servers)
                else:
                    await serve_http(opener, servers, *address, token, ready)


@contextmanager
def _printed_problems(setup: Setup, servers: McpServers) -> Iterator[None]:
    """Prints on stderr why a server cannot be reached, once for each reason."""
    printed: dict[str, str | None] = {}

    def show(view: ServerView) -> None:
        if view.problem and printed.get(view.name) != view.problem:
            print_note(f"MCP server {view.name}: {view.problem}")
            if not any(printed.values()):
                print_note(f"the stderr output of MCP servers is in {log_file(setup)}")
        printed[view.name] = view.problem

    for view in servers.views:
        show(view)
    unwatch = servers.watch(show)
    try:
        yield
    finally:
        unwatch()
