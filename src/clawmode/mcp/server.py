"""Our own MCP server: `exec` and `wait` as its two tools, over stdio or HTTP.

Each principal has its own `CodeMode`: its programs, questions and permissions belong to it, and not
to a session or a connection. Many clients open a session for each call, and later ask for the
program of an earlier one. What a client says about its session is not trusted.
"""

import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import field
from typing import Any, TypeAlias

import anyio
import mcp_types as types
from anyio.abc import TaskGroup, TaskStatus
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from clawmode import __version__
from clawmode.code_mode.code_mode import CodeMode
from clawmode.context import RunContext
from clawmode.mcp.face_tasks import (
    EXTENSION,
    ScopeTasks,
    TaskParams,
    UpdateParams,
    declares_tasks,
)
from clawmode.mcp.identity import Principal
from clawmode.mcp.servers import McpServers
from clawmode.mcp.stdio_wire import INSTRUCTIONS, NAME, TITLE, StdioWire
from clawmode.mcp.tool_call import Context, ToolCall
from clawmode.tasks import Notifier
from clawmode.types import JsonValue, dataclass

logger = logging.getLogger("clawmode.mcp")

MAX_SCOPES = 256
"""Open scopes; beyond this the least recently used scope that has nothing to lose is closed."""

MAX_CONNECTIONS = 10_000
"""Connections whose log levels and wish for notifications are known; the SDK has as many."""

MAX_DESCRIPTION = 2047
"""The characters of a description: Claude Code cuts the rest off, without a word."""

MAX_RESULT_CHARS = 500_000
"""The largest value of `anthropic/maxResultSizeChars` that Claude Code accepts."""

SETTLE_SECONDS = 0.1
ANNOUNCE_SECONDS = 5.0

TITLES = {"exec": "Run a program that calls tools", "wait": "Continue a program"}
HINTS: dict[str, JsonValue] = {
    "readOnlyHint": False,
    "destructiveHint": True,
    "idempotentHint": False,
    "openWorldHint": True,
}
"""Programs can do whatever the tools behind them can do."""
SESSION_HEADER = "mcp-session-id"
NOBODY = "mcp"
"""The run of the `CodeMode` that only describes the tools, and runs no programs."""
Opener: TypeAlias = Callable[[RunContext, McpServers], CodeMode]
"""Makes the `CodeMode` of a scope. This module opens and closes it."""


# ---- Scopes ----


STDIO = Principal("stdio")
PRINCIPAL = "clawmode.principal"
"""The key of an ASGI scope with the principal."""


@dataclass(slots=True)
class _Scope:
    code_mode: CodeMode
    tasks: ScopeTasks
    ended: anyio.Event
    busy: int = 0


@dataclass(slots=True)
class Scopes:
    """The `CodeMode` of each principal, opened by its first call."""

    opener: Opener
    servers: McpServers
    tasks: TaskGroup
    _open: OrderedDict[str, _Scope] = field(default_factory=OrderedDict[str, _Scope])
    _opening: anyio.Lock = field(default_factory=anyio.Lock)

    @contextlib.asynccontextmanager
    async def use(self, principal: Principal) -> AsyncIterator[_Scope]:
        """Returns the `CodeMode` and the tasks of a principal, open during the block.

        Raises:
            MCPError: Too many other principals have programs.
        """
        key = principal.id
        async with self._opening:
            if key not in self._open:
                if len(self._open) >= MAX_SCOPES:
                    unused = (
                        each
                        for each, scope in self._open.items()
                        if not scope.busy and scope.tasks.idle and scope.code_mode.idle
                    )
                    if (oldest := next(unused, None)) is None:
                        raise MCPError(types.INTERNAL_ERROR, "Too many clients have programs.")
                    self._open.pop(oldest).ended.set()
                self._open[key] = await self.tasks.start(self._own, principal)
            self._open.move_to_end(key)
            found = self._open[key]
            found.busy += 1
        try:
            yield found
        finally:
            found.busy -= 1

    async def _own(self, principal: Principal, *, task_status: TaskStatus[_Scope]) -> None:
        """Opens and closes a `CodeMode` in the same task, as cancel scopes require."""
        name = f"mcp:{principal.id}"
        context = RunContext(
            session_id=name, session_key=name, run_id=name, channel="mcp", sender=principal.name
        )
        ended = anyio.Event()
        async with (
            self.servers.for_user(principal.id, principal.alias or principal.id) as servers,
            self.opener(context, servers) as code_mode,
            anyio.create_task_group() as background,
        ):
            task_status.started(_Scope(code_mode, ScopeTasks(code_mode, background), ended))
            await ended.wait()
            background.cancel_scope.cancel()

    def close(self) -> None:
        """Closes the scopes of all principals."""
        for scope in self._open.values():
            scope.ended.set()
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
        scopes: The `CodeMode` of each principal.
        describe: A `CodeMode` like those of the scopes, for the descriptions of the tools.
        servers: The MCP servers that programs can call; they may still be connecting.
        local: The principal of clients that do not authenticate: those on stdio.
    """

    def __init__(
        self,
        scopes: Scopes,
        describe: CodeMode,
        servers: McpServers,
        local: Principal,
    ) -> None:
        self._scopes = scopes
        self._local = local
        self._describe = describe
        self._servers = servers
        self._listeners: OrderedDict[str, ServerSession] = OrderedDict()
        self._levels: OrderedDict[str, types.LoggingLevel] = OrderedDict()
        self._rejected: set[str] = set()
        self._bus = InMemorySubscriptionBus()
        self.server: Server[Any] = _AnnouncingServer(
            NAME,
            version=__version__,
            title=TITLE,
            instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=ListenHandler(self._bus),
        )
        # Not as an argument of `Server`: that warns, because later revisions have no such request.
        self.server.add_request_handler(
            "logging/setLevel", types.SetLevelRequestParams, self._set_level
        )
        self.server.extensions = {EXTENSION: dict[str, Any]()}
        self.server.add_request_handler("tasks/get", TaskParams, self._serve_task)
        self.server.add_request_handler("tasks/update", UpdateParams, self._serve_task)
        self.server.add_request_handler("tasks/cancel", TaskParams, self._serve_task)

    async def _list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            self._listeners[_connection_of(context)] = context.session
            while len(self._listeners) > MAX_CONNECTIONS:
                self._listeners.popitem(last=False)
        return types.ListToolsResult(tools=self._definitions())

    def _definitions(self) -> list[types.Tool]:
        # Escaped as JSON in JSON, a result can have more characters than the output has bytes.
        largest = min(3 * self._describe.config.max_output_bytes, MAX_RESULT_CHARS)
        # Clients that search for tools instead of listing them must load these two at once, and
        # must not cut their results.
        meta = {"anthropic/alwaysLoad": True, "anthropic/maxResultSizeChars": largest}
        return [
            types.Tool.model_validate(
                each | {"title": TITLES[str(each["name"])], "annotations": HINTS, "_meta": meta},
                by_alias=True,
            )
            for each in self._describe.definitions("mcp", max_chars=MAX_DESCRIPTION)
        ]

    def _offered(self) -> tuple[list[types.Tool], list[str]]:
        """Returns what clients should know of: the definitions, and what programs can call."""
        return self._definitions(), [tool.id for tool in self._describe.catalog.entries]

    async def _set_level(
        self, context: Context, params: types.SetLevelRequestParams
    ) -> types.EmptyResult:
        self._levels[_connection_of(context)] = params.level
        while len(self._levels) > MAX_CONNECTIONS:
            self._levels.popitem(last=False)
        return types.EmptyResult()

    async def announce_changes(self) -> None:
        """Notifies clients that have listed the tools of changes, until cancelled."""
        changes = Notifier()
        unwatch = self._servers.watch(lambda view: changes.notify())
        try:
            known, seen = self._offered(), changes.count
            while True:
                await changes.wait(seen)
                await anyio.sleep(SETTLE_SECONDS)  # servers often connect at about the same time
                seen = changes.count
                if (now := self._offered()) != known:
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

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> Any:
        if params.name not in ("exec", "wait"):
            text = f"There is no tool {params.name[:80]!r}: this server has `exec` and `wait`."
            raise MCPError(types.INVALID_PARAMS, text)
        level = self._levels.get(_connection_of(context))
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            level = dict(context.meta or {}).get(types.LOG_LEVEL_META_KEY)
        async with self._scopes.use(self._principal_of(context)) as scope:
            call = ToolCall(context, params, scope.code_mode, self._rejected, level)
            if params.name == "exec" and declares_tasks(context):
                return await call.run(scope.tasks.create)
            return await call.run()

    async def _serve_task(self, context: Context, params: TaskParams) -> dict[str, Any]:
        if not declares_tasks(context):
            needed = {"requiredCapabilities": {"extensions": self.server.extensions}}
            text = "Missing required client capability"
            raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, text, needed)
        async with self._scopes.use(self._principal_of(context)) as scope:
            if isinstance(params, UpdateParams):
                return await scope.tasks.update(context, params)
            if context.method == "tasks/cancel":
                return await scope.tasks.cancel(context, params)
            return await scope.tasks.get(context, params)

    def _principal_of(self, context: Context) -> Principal:
        return self._local if context.request is None else context.request.scope[PRINCIPAL]


def _connection_of(context: Context) -> str:
    """Returns a key of the connection, for clients whose protocol has sessions.

    The SDK has checked that the session exists, and that it belongs to the principal.
    """
    return "" if context.request is None else context.request.headers.get(SESSION_HEADER, "")


# ---- Transports ----


@contextlib.asynccontextmanager
async def open_server(
    opener: Opener,
    servers: McpServers,
    local: Principal = STDIO,
) -> AsyncIterator[CodeModeServer]:
    """Opens the server without a transport.

    Args:
        opener: Makes the `CodeMode` of a scope.
        servers: The MCP servers that programs can call.
        local: The principal of clients that do not authenticate: those on stdio.
    """
    async with anyio.create_task_group() as tasks:
        scopes = Scopes(opener, servers, tasks)
        describe = opener(RunContext(run_id=NOBODY), servers)
        code_mode_server = CodeModeServer(scopes, describe, servers, local)
        try:
            async with anyio.create_task_group() as announcing:
                announcing.start_soon(code_mode_server.announce_changes)
                yield code_mode_server
                announcing.cancel_scope.cancel()
        finally:
            scopes.close()


async def serve_stdio(
    opener: Opener, servers: McpServers, wire: StdioWire, principal: Principal
) -> None:
    """Serves one client on stdin and stdout, until the client disconnects."""
    async with (
        open_server(opener, servers, principal) as opened,
        wire.connected() as (read, write),
    ):
        await opened.server.run(read, write, opened.server.create_initialization_options())
