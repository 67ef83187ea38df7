"""The sessions of a framework in this process, with the workers and servers that they share."""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypedDict, Unpack

import anyio

from clawmode.code_mode.arguments import read_mcp_servers
from clawmode.code_mode.code_mode import CodeMode
from clawmode.code_mode.config import CodeModeConfig
from clawmode.code_mode.memory_store import MemoryStore
from clawmode.code_mode.stores import SnapshotStore
from clawmode.context import RunContext
from clawmode.exceptions import ConfigurationError
from clawmode.integrations.session import Context, Session
from clawmode.sandbox.pool import Pool
from clawmode.tools.approvals import Approvals, Approver
from clawmode.tools.executor import Watcher
from clawmode.tools.hooks import Hooks
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool
from clawmode.types import JsonValue

if TYPE_CHECKING:
    from clawmode.mcp.servers import McpServers
    from clawmode.mcp.settings import ServerSettings

RUN_ID = "framework"
"""All programs of a framework's session belong to one run of ours: the framework's runs are shorter
than the programs, which wait for people between them."""

MAX_SESSIONS = 256
"""Sessions that stay open. A session that is not used is opened again from its store."""

TURN_SECONDS = 600.0
"""How long a session stays open at least: a framework opens it, and then asks its model, which
takes its time before it calls `exec`."""


class SessionSettings(TypedDict, total=False):
    """What every adapter takes besides the settings of its framework.

    Attributes:
        tools: Tools that programs may call besides those of the framework.
        mcp_servers: As for `CodeMode`; all sessions share them.
        config: As for `CodeMode`.
        policy: As for `CodeMode`.
        hooks: As for `CodeMode`.
        ask_for: Tools whose calls a person has to approve, as for `Approvals`.
        approver: Code that answers instead of a person.
        store: Where waiting programs are kept. With the default, in memory, they end with the
            process; a `SqliteStore` keeps them.
        pool: Workers to share.
        agent_id: Separates the programs of several agents in one store.
    """

    tools: "Iterable[Tool | Callable[..., Any]]"
    mcp_servers: "Mapping[str, JsonValue] | Iterable[ServerSettings] | McpServers"
    config: CodeModeConfig | Mapping[str, JsonValue] | None
    policy: Policy | Mapping[str, JsonValue] | None
    hooks: Hooks | None
    ask_for: "str | Tool | Iterable[str | Tool] | Callable[[Tool], bool]"
    approver: Approver | None
    store: SnapshotStore | None
    pool: Pool | None
    agent_id: str


class Sessions(Generic[Context]):
    """The sessions of a framework in this process. Each adapter has one.

    Args:
        settings: What the adapter passes on from its own arguments.

    Raises:
        TypeError: There is no such setting.
    """

    def __init__(self, **settings: Unpack[SessionSettings]) -> None:
        if unknown := settings.keys() - SessionSettings.__annotations__.keys():
            known = ", ".join(SessionSettings.__annotations__)
            raise TypeError(f"unknown settings: {', '.join(sorted(unknown))}; known are {known}")
        mcp_servers = settings.get("mcp_servers", ())
        self.tools = list(settings.get("tools", ()))
        self.store = settings.get("store") or MemoryStore()
        given = isinstance(mcp_servers, Iterable)
        self._servers_to_open = read_mcp_servers(mcp_servers) if given else []
        self._given_servers = None if given else mcp_servers
        self._settings: dict[str, Any] = {
            name: settings.get(name) for name in ("config", "policy", "hooks")
        }
        asking = {"ask_for": settings.get("ask_for", ()), "approver": settings.get("approver")}
        self._asking: dict[str, Any] = asking
        self._given_pool = settings.get("pool")
        self._agent_id = settings.get("agent_id", "main")
        self._open: OrderedDict[str, Session[Context]] = OrderedDict()
        self._watchers: list[Watcher] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock: anyio.Lock | None = None
        self._opened = contextlib.AsyncExitStack()
        self._pool: Pool | None = None
        self._servers: McpServers | None = None

    async def open(self, session_id: str) -> Session[Context]:
        """Returns a session; its programs are those that earlier processes have left there.

        The workers start with the first session. They end with `aclose`, or with the event loop.

        Raises:
            ConfigurationError: Another event loop that still runs uses the object.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None and self._loop.is_running():
                raise ConfigurationError("Two event loops cannot share one object: create another.")
            # Workers end with their event loop, so this one needs new ones.
            self._loop, self._lock, self._pool, self._servers = loop, anyio.Lock(), None, None
            self._opened = contextlib.AsyncExitStack()
            self._open.clear()
        assert self._lock is not None
        async with self._lock:
            if session_id not in self._open:
                self._open[session_id] = await self._make(session_id)
                await self._close_idle()
            self._open.move_to_end(session_id)
            self._open[session_id].used = time.monotonic()
            return self._open[session_id]

    async def _make(self, session_id: str) -> Session[Context]:
        if self._pool is None:
            pool = self._given_pool or await self._opened.enter_async_context(Pool())
            self._pool = pool
        if self._servers is None and self._servers_to_open:
            from clawmode.mcp.servers import McpServers  # a second to import, rarely needed

            servers = McpServers(self._servers_to_open)
            self._servers = await self._opened.enter_async_context(servers)
            await self._servers.connect()
        code_mode = CodeMode(
            tools=self.tools,
            mcp_servers=self._given_servers or self._servers or (),
            approvals=Approvals(**self._asking),
            store=self.store,
            context=RunContext(agent_id=self._agent_id, session_id=session_id, run_id=RUN_ID),
            pool=self._pool,
            **self._settings,
        )
        for watcher in self._watchers:
            code_mode.watch(watcher)
        await code_mode.start()
        return Session[Context](code_mode, self.store, self.tools)

    async def _close_idle(self) -> None:
        """Closes the sessions that were not used for longest, if that ends nothing."""
        for name in list(self._open)[: max(len(self._open) - MAX_SESSIONS, 0)]:
            session = self._open[name]
            if session.code_mode.idle and time.monotonic() - session.used > TURN_SECONDS:
                await self._open.pop(name).code_mode.aclose()

    async def end(self, session_id: str) -> None:
        """Ends an open session for good: its programs, and all that is kept of it."""
        if (session := self._open.pop(session_id, None)) is not None:
            with anyio.CancelScope(shield=True):
                await session.code_mode.end_session()
                await session.code_mode.aclose()

    def watch(self, watcher: Watcher) -> None:
        """Calls `watcher` with the events of all nested calls, of sessions opened from now on."""
        self._watchers.append(watcher)

    async def aclose(self) -> None:
        """Closes all sessions and ends the workers. Programs in a durable store stay there."""
        with anyio.CancelScope(shield=True):
            while self._open:
                await self._open.popitem()[1].code_mode.aclose()
            await self._opened.aclose()
        self._loop = self._pool = self._servers = None
