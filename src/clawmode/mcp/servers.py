"""`McpServers`: all configured MCP servers, connected concurrently, and their tools."""

import contextlib
import logging
import os
import shlex
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import AsyncResource, TaskGroup

from clawmode.exceptions import ConfigurationError, message_of
from clawmode.mcp.auth import OnLogin
from clawmode.mcp.login import make_auth
from clawmode.mcp.requests import McpError
from clawmode.mcp.settings import ServerSettings
from clawmode.mcp.supervisor import OnView, ServerSupervisor, ServerView
from clawmode.tasks import Lifetime
from clawmode.tools.tool import Tool

logger = logging.getLogger("clawmode.mcp")

MIN_STARTING = 4
PER_PROCESSOR = 2
"""Processes that start at once, for each processor: each has a time limit."""
IDLE_SECONDS = 600.0
"""A connection of one user without calls is closed after this time."""


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
        principal: Whose logins are used, such as the name of a token. Logins of different users in
            the same folder are separate; an empty name means the login that all users share.
            Headers and variables that differ between users belong into `settings`. None if
            servers with `credentials="user"` are connected by `for_user` only.

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
        principal: str | None = "",
    ) -> None:
        self._listeners: list[OnView] = []
        self._personal: dict[str, ServerSettings] = {}
        self._shared: McpServers | None = None
        self._make = partial(McpServers, asks=asks, tokens=tokens, logs=logs)
        self._servers: dict[str, ServerSupervisor] = {}
        starting = max(MIN_STARTING, PER_PROCESSOR * (os.cpu_count() or 1))
        slots = anyio.CapacityLimiter(starting)
        for each in settings:
            if each.name in self._servers or each.name in self._personal:
                raise ConfigurationError(f"two MCP servers are named {each.name!r}")
            if principal is None and each.credentials == "user" and each.enabled:
                self._personal[each.name] = each
                continue
            self._servers[each.name] = ServerSupervisor(
                each,
                slots,
                asks=asks,
                logs=logs,
                on_change=self._changed,
                auth=lambda server: make_auth(
                    server.settings, on_login, tokens, server.pause, principal=principal or ""
                ),
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

    @contextlib.asynccontextmanager
    async def for_user(self, user: str, shown: str) -> "AsyncIterator[McpServers]":
        """Yields the servers as one user reaches them, open during the block.

        The user has connections of its own, with its own logins, to the servers with
        `credentials="user"`. Each is made by the first call, and closed while there are no calls.
        All other servers are those of this object.

        Args:
            user: The id of the user, which no other user has.
            shown: How `clawmode login --as` names the user.

        Raises:
            ConfigurationError: The id is empty, which means all users.
        """
        if not user:
            raise ConfigurationError("the id of a user must not be empty")
        if not self._personal:
            yield self
            return
        settings = [
            replace(
                each,
                idle_timeout=min(each.idle_timeout, IDLE_SECONDS),
                login_command=f"clawmode login {shlex.quote(name)} --as {shlex.quote(shown)}",
            )
            for name, each in self._personal.items()
        ]
        own = self._make(settings, principal=user)
        own._shared = self
        async with own:
            yield own

    async def ready(self, name: str) -> None:
        """Connects one server, and returns when it is connected or has failed."""
        if name in self._servers:
            with contextlib.suppress(McpError):
                await self._servers[name].usable()
        elif self._shared is not None:
            await self._shared.ready(name)

    @property
    def views(self) -> tuple[ServerView, ...]:
        """The state of every server. Those with a connection per user come last."""
        views = {name: server.view for name, server in self._servers.items()}
        if self._shared is not None:
            return tuple(views.get(view.name, view) for view in self._shared.views)
        return (
            *views.values(),
            *(ServerView(name=name, state="idle") for name in self._personal),
        )

    def watch(self, listener: OnView) -> Callable[[], None]:
        """Calls `listener` at every change of a server. Returns a function that ends this."""
        self._listeners.append(listener)
        end = self._shared.watch(listener) if self._shared is not None else lambda: None

        def unwatch() -> None:
            self._listeners.remove(listener)
            end()

        return unwatch

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
