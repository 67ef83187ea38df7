"""`McpServers`: all configured MCP servers, connected concurrently, and their tools."""

import contextlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import anyio
from anyio.abc import AsyncResource, TaskGroup

from clawmode.exceptions import ConfigurationError, message_of
from clawmode.mcp.auth import OnLogin, make_auth
from clawmode.mcp.requests import McpError
from clawmode.mcp.settings import ServerSettings
from clawmode.mcp.supervisor import OnView, ServerSupervisor, ServerView
from clawmode.tasks import Lifetime
from clawmode.tools.tool import Tool

logger = logging.getLogger("clawmode.mcp")

MAX_STARTING = 16
"""Servers that start at once: each has a time limit, and they share the processors."""


class McpServers(AsyncResource):
    """The MCP servers of a run or a process.

    Opened with `async with`, or with `start` and `aclose`, which may be called in different tasks.

    Args:
        settings: The servers. A server is connected by `connect`, or by the first call of a tool.
        asks: True if callers of tools can answer questions of servers (elicitation).
        on_login: Asks the user to log in; without it, servers that require a login are not
            available.
        tokens: A folder for OAuth tokens; without it they are kept in memory only.
        logs: True to log problems. Commands show problems themselves.

    Raises:
        ConfigurationError: Two servers have the same name.
    """

    def __init__(
        self,
        settings: Iterable[ServerSettings],
        *,
        asks: bool = False,
        on_login: OnLogin | None = None,
        tokens: Path | None = None,
        logs: bool = True,
    ) -> None:
        self._listeners: list[OnView] = []
        self._servers: dict[str, ServerSupervisor] = {}
        slots = anyio.CapacityLimiter(MAX_STARTING)
        for each in settings:
            if each.name in self._servers:
                raise ConfigurationError(f"two MCP servers are named {each.name!r}")
            self._servers[each.name] = ServerSupervisor(
                each,
                slots,
                asks=asks,
                logs=logs,
                on_change=self._changed,
                auth=lambda server: make_auth(server.settings, on_login, tokens, server.pause),
            )
        self._life = Lifetime("clawmode-mcp", self._end)

    async def start(self) -> "McpServers":
        """Starts the supervisors of the servers; connects nothing. To be called once."""
        tasks = await self._life.open()
        for server in self._servers.values():
            if server.settings.enabled and not server.settings.fault:
                tasks.start_soon(server.run)
        return self

    async def aclose(self) -> None:
        """Closes all connections. Idempotent, from any task."""
        await self._life.close()

    async def _end(self, tasks: TaskGroup) -> None:
        for server in self._servers.values():
            server.close()
        # Shielded: a supervisor that is cancelled would leave its process behind. Each supervisor
        # ends in bounded time.
        tasks.cancel_scope.shield = True

    async def __aenter__(self) -> "McpServers":
        return await self.start()

    async def connect(
        self, *names: str, on_progress: OnView | None = None
    ) -> tuple[ServerView, ...]:
        """Connects servers concurrently, and waits until each is connected or has failed.

        Does not raise if a server fails: its view has the problem. A server that failed earlier is
        tried again.

        Args:
            names: The servers; all of them if there are no names.
            on_progress: Called for each server as soon as it is connected or has failed.

        Raises:
            ConfigurationError: There is no server with such a name.
        """
        if unknown := [name for name in names if name not in self._servers]:
            raise ConfigurationError(f"there is no MCP server named {unknown[0]!r}")
        chosen = [self._servers[name] for name in names or self._servers]

        async def bring_up(server: "ServerSupervisor") -> None:
            await server.bring_up()
            if on_progress is not None:
                _tell(on_progress, server.view)

        async with anyio.create_task_group() as tasks:
            for server in chosen:
                tasks.start_soon(bring_up, server)
        return tuple(server.view for server in chosen)

    def begin(self) -> None:
        """Starts to connect all servers, and returns at once."""
        for server in self._servers.values():
            server.want()

    async def settled(self) -> None:
        """Waits until every server that is being connected is connected or has failed once."""
        for server in self._servers.values():
            await server.settled()

    async def ready(self, name: str) -> None:
        """Connects one server, and returns when it is connected or has failed."""
        with contextlib.suppress(McpError):
            await self._servers[name].usable()

    @property
    def views(self) -> tuple[ServerView, ...]:
        """The state of every server, in the order of the configuration."""
        return tuple(server.view for server in self._servers.values())

    def watch(self, listener: OnView) -> Callable[[], None]:
        """Calls `listener` at every change of a server. Returns a function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def tools(self) -> list[Tool]:
        """Returns the tools of all servers."""
        return [tool for view in self.views for tool in view.all_tools]

    def _changed(self, view: ServerView) -> None:
        for listener in tuple(self._listeners):
            _tell(listener, view)


def _tell(listener: OnView, view: ServerView) -> None:
    try:
        listener(view)
    except Exception as error:
        logger.error("%r: %s: %s", listener, type(error).__name__, message_of(error))
