"""Our own MCP server: `exec` and `wait` as its two tools, over stdio or HTTP.

Each scope has its own `CodeMode`. Over stdio the process is the scope; over HTTP the scope is the
authenticated principal, and the session in versions of the protocol that have sessions.
"""

import contextlib
import hmac
import logging
import math
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import anyio
import mcp_types as types
from anyio.abc import TaskGroup, TaskStatus
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from clawmode import __version__
from clawmode.addresses import Attempts
from clawmode.code_mode.code_mode import CodeMode
from clawmode.context import RunContext
from clawmode.mcp.tool_call import Context, ToolCall
from clawmode.tasks import Notifier

logger = logging.getLogger("clawmode.mcp")

MAX_SESSIONS = 256
"""Open scopes; beyond this the least recently used idle scope is closed."""

LIST_SECONDS = 3.0
"""Seconds that `tools/list` waits for MCP servers that are still connecting."""

SETTLE_SECONDS = 0.1
ANNOUNCE_SECONDS = 5.0

TITLE = "clawmode"
TITLES = {"exec": "Run a program that calls tools", "wait": "Continue a program"}
INSTRUCTIONS = (
    "Instead of one tool per action, write a short JavaScript or TypeScript program for `exec`: it "
    "can call many tools, also those of MCP servers, and return only what is needed. If a result "
    "has the status `waiting`, call `wait` with its `runId`."
)
SESSION_HEADER = "mcp-session-id"
PRINCIPAL = "token"
"""The only principal: every client has the same token."""
Opener: TypeAlias = Callable[[RunContext], CodeMode]
"""Makes the `CodeMode` of a scope. This module opens and closes it."""


class ToolServers(Protocol):
    """The MCP servers whose tools programs can call. See `McpServers`."""

    async def settled(self) -> None:
        """Waits until every server is connected or has failed once."""
        ...

    def watch(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        """Calls `listener` at every change of a server. Returns a function that ends this."""
        ...


# ---- Scopes ----


@dataclass(slots=True)
class _Session:
    code_mode: CodeMode
    ended: anyio.Event
    busy: int = 0


@dataclass(slots=True)
class Sessions:
    """The `CodeMode` of each scope, opened by the first call of the scope."""

    opener: Opener
    tasks: TaskGroup
    process: str = field(default_factory=lambda: secrets.token_hex(8))
    _open: OrderedDict[str, _Session] = field(default_factory=OrderedDict[str, _Session])
    _opening: anyio.Lock = field(default_factory=anyio.Lock)

    @contextlib.asynccontextmanager
    async def use(self, principal: str, session: str) -> AsyncIterator[CodeMode]:
        """Returns the `CodeMode` of a scope, which stays open during the block."""
        key = f"{principal}:{session or self.process}"
        async with self._opening:
            if key not in self._open:
                idle = (each for each, session in self._open.items() if not session.busy)
                while len(self._open) >= MAX_SESSIONS and (oldest := next(idle, None)) is not None:
                    self._open.pop(oldest).ended.set()
                self._open[key] = await self.tasks.start(self._own, key)
            self._open.move_to_end(key)
            found = self._open[key]
        found.busy += 1
        try:
            yield found.code_mode
        finally:
            found.busy -= 1

    async def _own(self, key: str, *, task_status: TaskStatus[_Session]) -> None:
        """Opens and closes a `CodeMode` in the same task, as cancel scopes require."""
        name = f"mcp:{key}"
        context = RunContext(session_id=name, session_key=name, run_id=name, channel="mcp")
        session = _Session(self.opener(context), anyio.Event())
        async with session.code_mode:
            task_status.started(session)
            await session.ended.wait()

    def end(self, principal: str, session: str) -> None:
        """Ends the programs of a session that its client has ended."""
        if session and (found := self._open.pop(f"{principal}:{session}", None)) is not None:
            found.ended.set()

    def close(self) -> None:
        """Ends the programs of all sessions."""
        for session in self._open.values():
            session.ended.set()
        self._open.clear()


# ---- The two tools ----


class _AnnouncingServer(Server[Any]):
    """Declares on every transport that the list of tools can change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        return super().create_initialization_options(
            notification_options or NotificationOptions(tools_changed=True),
            experimental_capabilities,
            extensions,
        )


class CodeModeServer:
    """Handles the requests of clients, independent of the transport.

    Args:
        sessions: The `CodeMode` of each scope.
        describe: A `CodeMode` like those of the sessions, for the descriptions of the tools.
        servers: The MCP servers that programs can call; they may still be connecting.
    """

    def __init__(self, sessions: Sessions, describe: CodeMode, servers: ToolServers) -> None:
        self.sessions = sessions
        self._describe = describe
        self._servers = servers
        self._listeners: OrderedDict[str, ServerSession] = OrderedDict()
        self._rejected: set[str] = set()
        self._bus = InMemorySubscriptionBus()
        self.server: Server[Any] = _AnnouncingServer(
            "clawmode",
            version=__version__,
            title=TITLE,
            instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=ListenHandler(self._bus),
        )

    async def _list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        # Many clients list tools once and ignore changes: after a short wait the list is complete
        # in most cases.
        with anyio.move_on_after(LIST_SECONDS):
            await self._servers.settled()
        key = "/".join(_scope_of(context))
        self._listeners[key] = context.session
        self._listeners.move_to_end(key)
        while len(self._listeners) > MAX_SESSIONS:
            self._listeners.popitem(last=False)
        return types.ListToolsResult(tools=self._definitions())

    def _definitions(self) -> list[types.Tool]:
        return [
            types.Tool.model_validate(each | {"title": TITLES[str(each["name"])]}, by_alias=True)
            for each in self._describe.definitions("mcp")
        ]

    async def announce_changes(self) -> None:
        """Notifies clients that have listed the tools of changed descriptions, until cancelled."""
        changes = Notifier()
        unwatch = self._servers.watch(lambda view: changes.notify())
        try:
            known, seen = self._definitions(), changes.count
            while True:
                await changes.wait(seen)
                await anyio.sleep(SETTLE_SECONDS)  # servers often connect at about the same time
                seen = changes.count
                if (now := self._definitions()) != known:
                    known = now
                    await self._bus.publish(ToolsListChanged())
                    async with anyio.create_task_group() as tasks:
                        for key, session in tuple(self._listeners.items()):
                            tasks.start_soon(self._announce_to, key, session)
        finally:
            unwatch()

    async def _announce_to(self, key: str, session: ServerSession) -> None:
        try:
            with anyio.fail_after(ANNOUNCE_SECONDS):
                await session.send_tool_list_changed()
        except Exception as error:  # the client has disconnected, or does not read
            self._listeners.pop(key, None)
            logger.info("a client could not be notified of changed tools: %s", type(error).__name__)

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        if params.name not in ("exec", "wait"):
            text = f"There is no tool {params.name[:80]!r}: this server has `exec` and `wait`."
            return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
        principal, session = _scope_of(context)
        async with self.sessions.use(principal, session) as code_mode:
            call = ToolCall(context, params, code_mode, self._rejected)
            return await call.run()


def _scope_of(context: Context) -> tuple[str, str]:
    """Returns the principal and the session of a request."""
    request = context.request
    if request is None:
        return "stdio", ""
    return request.scope.get("clawmode.principal", ""), request.headers.get(SESSION_HEADER, "")


# ---- Transports ----


@contextlib.asynccontextmanager
async def open_server(opener: Opener, servers: ToolServers) -> AsyncIterator[CodeModeServer]:
    """Opens the server without a transport.

    Args:
        opener: Makes the `CodeMode` of a scope.
        servers: The MCP servers that programs can call.
    """
    async with anyio.create_task_group() as tasks:
        sessions = Sessions(opener, tasks)
        code_mode_server = CodeModeServer(sessions, opener(RunContext()), servers)
        try:
            async with anyio.create_task_group() as announcing:
                announcing.start_soon(code_mode_server.announce_changes)
                yield code_mode_server
                announcing.cancel_scope.cancel()
        finally:
            sessions.close()


async def serve_stdio(opener: Opener, servers: ToolServers) -> None:
    """Serves one client on stdin and stdout, until the client disconnects."""
    async with open_server(opener, servers) as opened, stdio_server() as (read, write):
        await opened.server.run(read, write, opened.server.create_initialization_options())


class TokenMiddleware:
    """Rejects requests without the bearer token.

    Args:
        app: The wrapped application.
        token: The token.
        attempts: Counts wrong tokens by address. An address with too many of them has to wait, also
            with the right token.
    """

    def __init__(self, app: ASGIApp, token: str, attempts: Attempts) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()
        self._attempts = attempts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if (refusal := self._check(scope)) is not None:
                await refusal(scope, receive, send)
                return
            scope["clawmode.principal"] = PRINCIPAL
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> PlainTextResponse | None:
        address = (scope.get("client") or ("",))[0]
        if (seconds := self._attempts.wait(address)) > 0:
            headers = {"retry-after": str(math.ceil(seconds))}
            return PlainTextResponse("Too many wrong tokens: try again later.\n", 429, headers)
        given = dict(scope["headers"]).get(b"authorization", b"")
        if hmac.compare_digest(given, self._expected):
            return None
        if given:  # many clients try without a token first, which is not a guess
            self._attempts.fail(address)
        headers = {"www-authenticate": "Bearer"}
        return PlainTextResponse("A bearer token is required.\n", 401, headers)


class SessionEndMiddleware:
    """Ends the programs of a session that its client deletes.

    Args:
        app: The wrapped application.
        sessions: The `CodeMode` of each scope.
    """

    def __init__(self, app: ASGIApp, sessions: Sessions) -> None:
        self._app = app
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
        if scope["type"] == "http" and scope["method"] == "DELETE":
            session = dict(scope["headers"]).get(SESSION_HEADER.encode(), b"")
            self._sessions.end(scope["clawmode.principal"], session.decode("latin-1"))


async def serve_http(
    opener: Opener,
    servers: ToolServers,
    host: str,
    port: int,
    token: str,
    on_ready: Callable[[int], None],
) -> None:
    """Serves clients over streamable HTTP at `/mcp`, until it is cancelled.

    Args:
        opener: Makes the `CodeMode` of a scope.
        servers: The MCP servers that programs can call.
        host: The address to listen at.
        port: The port; 0 for any free port.
        token: The bearer token that clients must send.
        on_ready: Called with the port when the server listens.
    """
    import uvicorn

    async with open_server(opener, servers) as opened:
        inner = opened.server.streamable_http_app(host=host)
        app = TokenMiddleware(SessionEndMiddleware(inner, opened.sessions), token, Attempts())
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            log_level="warning",
            lifespan="on",
            proxy_headers=False,  # a client could choose the address under which it is counted
        )
        server = uvicorn.Server(config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve)
            while not server.started:  # noqa: ASYNC110 - uvicorn sets no event
                await anyio.sleep(0.01)
            on_ready(server.servers[0].sockets[0].getsockname()[1])
