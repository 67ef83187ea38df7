"""`clawmode mcp` and `clawmode login`: the MCP server face, and logins to other servers."""

import hashlib
import json
import os
import re
import signal
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import anyio

from clawmode.app.backends import backend_of, closing
from clawmode.app.console import print_note, print_stderr
from clawmode.app.servers import TOKENS, log_file, start_servers
from clawmode.app.setup import Setup
from clawmode.code_mode.code_mode import CodeMode
from clawmode.code_mode.memory_store import MemoryStore
from clawmode.code_mode.sqlite_store import SqliteStore
from clawmode.code_mode.stores import SnapshotStore
from clawmode.context import RunContext
from clawmode.exceptions import ConfigurationError, StoreUnavailable
from clawmode.mcp.identity import Principal
from clawmode.mcp.requests import McpError
from clawmode.mcp.server import NOBODY, Opener, serve_stdio
from clawmode.mcp.servers import McpServers
from clawmode.mcp.settings import OAuth
from clawmode.mcp.stdio_wire import StdioWire
from clawmode.mcp.supervisor import ServerView
from clawmode.plugins.setup import loaded_plugins
from clawmode.rpc.tokens import MCP_FILE, Tokens
from clawmode.sandbox.pool import Pool
from clawmode.terminal.desk import make_approvals
from clawmode.terminal.interrupts import interruptible
from clawmode.terminal.mcp_http import HttpDoor, HttpOptions, principal_of
from clawmode.tools.approvals import Mode


def serve(setup: Setup, approve: Mode, at: HttpOptions | StdioWire) -> None:
    """Serves `exec` and `wait` until the client disconnects, or until the server is stopped.

    Args:
        setup: The tools, servers and limits of programs.
        approve: Who decides about calls of tools that are not declared to only read.
        at: How to serve over HTTP, or stdin and stdout.

    Raises:
        ConfigurationError: The address or a token cannot be used.
    """
    if isinstance(at, HttpOptions):
        door = HttpDoor(at, setup.state)
        with door.bound:
            anyio.run(_serve, setup, approve, door.store_folder, door.serve, None)
        return
    named = [os.path.abspath(each) if os.path.exists(each) else each for each in setup.named]
    tools = sorted(tool.id for tool in setup.tools)
    # Clients that open a process for each call share their programs by their configuration. Those
    # in a database come from several state folders, which keep their clients apart.
    file, state = str(setup.file and setup.file.absolute()), os.path.realpath(setup.state)
    parts = [file, named, tools, approve, state]
    shared = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    async def serve_pipes(opener: Opener, servers: McpServers) -> None:
        await serve_stdio(opener, servers, at, Principal(f"stdio-{shared}"))

    anyio.run(_serve, setup, approve, None, serve_pipes)


def log_in(setup: Setup, name: str, user: str = "") -> None:
    """Lets the user log in to a server in a browser, and stores the token.

    Args:
        setup: The settings.
        name: The name of the server.
        user: The name or the id of a client of `clawmode mcp --http`, whose login it will be.

    Raises:
        ConfigurationError: There is no such server or client, or it has no login.
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
    principal = user
    if user and found[0].credentials != "user":
        raise ConfigurationError(
            f"all users share the login to MCP server {name!r}: leave `--as` out, or set "
            '`credentials: "user"` in the entry of the server'
        )
    if user and not re.fullmatch(r"(token|user)-[0-9a-f]{32}", user):
        tokens = Tokens(setup.state, file=MCP_FILE).list()
        ids = [principal_of(token).id for token in tokens if token.name == user]
        if not ids:
            raise ConfigurationError(
                f"there is no token named {user!r}; `clawmode mcp token list` shows the names"
            )
        principal = ids[0]

    async def send_to(server: str, address: str) -> bool:
        print_note(f"log in to {server} at this address; this command waits for the result:")
        print_stderr(f"  {address}")
        webbrowser.open(address)  # may do nothing, for example over SSH: the address is printed
        return True

    async def connect() -> ServerView:
        tokens = setup.state / TOKENS
        async with McpServers(
            found, on_login=send_to, tokens=tokens, principal=principal
        ) as servers:
            (view,) = await servers.connect()
            return view

    view = anyio.run(connect)
    if view.problem:
        raise McpError(name, "unavailable", view.problem)
    whose = f" as {user}" if user else ""
    print_note(f"logged in to {name}{whose}, tools: {len(view.tools)}")


async def _serve(
    setup: Setup,
    approve: Mode,
    store_folder: Callable[[str], Path] | None,
    serve_clients: Callable[[Opener, McpServers], Awaitable[None]],
    principal: str | None = "",
) -> None:
    def opener(context: RunContext, servers: McpServers) -> CodeMode:
        store: SnapshotStore = MemoryStore()
        if context.run_id != NOBODY:
            try:
                store = store_of(context.session_key)
            except StoreUnavailable as error:  # not fatal: most programs never wait
                print_note(str(error))
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

    # Clients end a server by a signal as well as by closing its pipes. Without a handler, MCP
    # servers that do not notice the end of their stdin would outlive this process.
    with loaded_plugins(setup.configuration, setup.state) as plugins:
        async with interruptible(signal.SIGTERM, signal.SIGHUP):
            async with (
                _open_stores(setup, store_folder) as store_of,
                Pool() as pool,
                start_servers(setup, asks=True, principal=principal) as servers,
            ):
                with _printed_problems(setup, servers):
                    # Connecting does not delay the answer to `initialize`: clients give up on a
                    # server that starts slowly.
                    servers.begin()
                    await serve_clients(opener, servers)


@asynccontextmanager
async def _open_stores(
    setup: Setup, store_folder: Callable[[str], Path] | None
) -> AsyncIterator[Callable[[str], SnapshotStore]]:
    """Yields a function that returns the store of a client by its session key.

    A database is for all clients, and the state folder for those over stdio. Clients over HTTP have
    a folder each.
    """
    async with AsyncExitStack() as opened:
        try:
            backend = await opened.enter_async_context(closing(backend_of(setup)))
        except StoreUnavailable as error:  # no folder can be written
            failure = error

            def refuse(session_key: str) -> SnapshotStore:
                raise failure

            yield refuse
            return
        try:
            await backend.nodes.enter()
        except StoreUnavailable as error:  # the store tries again when a program has to wait
            print_note(str(error))
        if store_folder is None or backend.cells.fleet:
            yield lambda session_key: backend.cells
        else:
            yield lambda session_key: SqliteStore(store_folder(session_key))


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
