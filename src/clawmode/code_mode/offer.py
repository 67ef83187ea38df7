"""What the programs of a run can call: its tools, MCP servers and namespaces, as a `Bridge`.

The bridge is replaced when tools, servers or namespaces change. Programs that run already keep the
names that they started with.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import anyio

from clawmode.catalog.catalog import Catalog
from clawmode.catalog.mcp_lists import Lists
from clawmode.catalog.mcp_namespace import McpNamespace
from clawmode.catalog.namespace_runtime import NamespaceRuntime
from clawmode.catalog.namespaces import NamespaceContext, NamespaceRegistry
from clawmode.catalog.vectors import choose_ranker
from clawmode.code_mode.bridge import Bridge
from clawmode.code_mode.cell import CellSetup
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool

if TYPE_CHECKING:
    from clawmode.code_mode.config import CodeModeConfig
    from clawmode.code_mode.telemetry import Telemetry


MAX_NEWS = 50
"""MCP servers that one result mentions."""


class ServerView(Protocol):
    """What an `Offer` needs to know about one MCP server."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def problem(self) -> str | None: ...

    @property
    def all_tools(self) -> Sequence[Tool]: ...


class ToolServers(Protocol):
    """MCP servers, as an `Offer` uses them: `mcp.servers.McpServers`."""

    @property
    def views(self) -> Sequence[ServerView]: ...

    def tools(self) -> list[Tool]: ...

    def watch(self, listener: Callable[[ServerView], None], /) -> Callable[[], None]: ...

    async def ready(self, name: str, /) -> None: ...


class Offer:
    """The tools, MCP servers and namespaces of one run.

    Args:
        tools: The run's own tools.
        policy: Decides which tools programs can call.
        registry: Where namespaces are registered.
        scopes: What the scopes of namespaces receive.
        config: Limits.
        telemetry: Counts the catalog and searches without results.
        seen: Returns the shape of what a tool has answered.
        servers: Open MCP servers whose tools are offered too.

    Attributes:
        bridge: The current bridge.
        tools: The tools that were offered last, before the policy.
        on_change: Called with every new bridge.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        policy: Policy,
        registry: NamespaceRegistry,
        scopes: NamespaceContext,
        config: "CodeModeConfig",
        telemetry: "Telemetry",
        seen: Callable[[str], str] = lambda tool_id: "",
        servers: ToolServers | None = None,
    ) -> None:
        self._own_tools = tools
        self._policy = policy
        self._registry = registry
        self._scopes = scopes
        self._config = config
        self._telemetry = telemetry
        self._seen = seen
        self._servers: ToolServers | None = None
        self._told: dict[str, str] = {}
        self._unwatch: Callable[[], None] = lambda: None
        self._setup: CellSetup | None = None
        self._lists: Lists = {}
        self._identifiers: dict[str, dict[str, str]] = {}
        self.on_change: Callable[[Bridge], None] = lambda bridge: None
        if servers is not None:
            self.use_servers(servers)
        self.tools = self._all_tools(self._own_tools)
        self.bridge = self._make_bridge(self.tools)

    # ---- Tools ----

    def replace_tools(self, tools: Iterable[Tool]) -> None:
        """Replaces the tools that programs can call; those of the MCP servers stay.

        Raises:
            DuplicateTool: Two of them have the same id; nothing has changed.
        """
        own = list(tools)
        offered = self._all_tools(own)
        self._publish(self._make_bridge(offered))
        self._own_tools, self.tools = own, offered

    def _make_bridge(self, tools: Iterable[Tool]) -> Bridge:
        visible = self._policy.effective(tools)
        catalog = Catalog(visible, ranker=choose_ranker())
        namespaces = self._make_namespaces(visible)
        self._telemetry.catalog_size = len(catalog)
        self._telemetry.sources = catalog.breakdown()
        mcp = self._make_mcp(catalog)
        return Bridge(catalog, namespaces, mcp, self._config, self._telemetry.miss, self._seen)

    def _make_mcp(self, catalog: Catalog) -> McpNamespace:
        return McpNamespace(
            catalog.entries,
            self._absent,
            max_file_bytes=self._config.max_output_bytes // 2,
            make_finder=lambda tools: Catalog(tools, ranker=choose_ranker(), mcp=True),
            lists=self._lists,
            known=self._identifiers,
        )

    def _publish(self, bridge: Bridge) -> None:
        self.bridge, self._setup = bridge, None
        self.on_change(bridge)

    # ---- MCP servers ----

    def use_servers(self, servers: ToolServers) -> None:
        """Offers the tools of MCP servers too, and follows their changes."""
        self._servers = servers
        self._unwatch = servers.watch(lambda view: self._refresh_servers())

    def close(self) -> None:
        """Stops following the MCP servers. Idempotent."""
        unwatch, self._unwatch = self._unwatch, lambda: None
        unwatch()

    async def connect(self, server: str) -> None:
        """Waits until an MCP server is connected, or has failed to connect."""
        if self._servers is not None:
            await self._servers.ready(server)

    @property
    def missing_servers(self) -> dict[str, str]:
        """MCP servers that cannot be reached, with the reasons for people."""
        views = () if self._servers is None else self._servers.views
        return {view.name: view.problem for view in views if view.problem}

    @property
    def _absent(self) -> dict[str, str]:
        """MCP servers whose tools are not known, with the reason; empty while they connect."""
        views = () if self._servers is None else self._servers.views
        return {
            view.name: view.problem or ""
            for view in views
            if view.state in ("idle", "connecting", "down") and not view.all_tools
        }

    def server_news(self) -> dict[str, str]:
        """Returns how MCP servers are that were in another state when this was asked last.

        A server is `unreachable`, `connecting`, or `connected` again. These words are in results,
        because the description of `exec` must not change during a run.
        """
        now = dict.fromkeys(self._absent, "connecting")
        now |= dict.fromkeys(self.missing_servers, "unreachable")
        if now == self._told:
            return {}
        news = {name: now.get(name, "connected") for name in {**self._told, **now}}
        news = {name: state for name, state in news.items() if self._told.get(name) != state}
        self._told = now
        return dict(sorted(news.items())[:MAX_NEWS])

    def _all_tools(self, own: Sequence[Tool]) -> list[Tool]:
        return [*own, *([] if self._servers is None else self._servers.tools())]

    def _refresh_servers(self) -> None:
        # Most changes concern the health of a server, and a large catalog is slow to build.
        if self._all_tools(self._own_tools) != self.tools:
            self.replace_tools(self._own_tools)
        elif self._absent != self.bridge.mcp.absent:
            self._publish(replace(self.bridge, mcp=self._make_mcp(self.bridge.catalog)))

    # ---- Namespaces ----

    def _make_namespaces(self, visible: Sequence[Tool]) -> NamespaceRuntime:
        self._registry_version = self._registry.version
        return NamespaceRuntime(self._registry.visible(visible), visible, self._scopes)

    def refresh_namespaces(self) -> None:
        """Notices plugins that were added or removed since the last program started."""
        if self._registry.version != self._registry_version:
            namespaces = self._make_namespaces(self.bridge.catalog.entries)
            self._publish(replace(self.bridge, namespaces=namespaces))

    # ---- For new cells ----

    async def setup(self) -> CellSetup:
        """Returns what new cells start with; empty if there is nothing to call."""
        self.refresh_namespaces()
        if self._setup is None and self.bridge.mcp:
            # In a thread, because the declarations of thousands of tools take a second.
            bridge = self.bridge
            await anyio.to_thread.run_sync(lambda: bridge.mcp.files)
        if self._setup is None:
            # Read again: the bridge may have been replaced meanwhile.
            catalog, mcp = self.bridge.catalog, self.bridge.mcp
            scopes = self.bridge.namespaces.descriptors()
            self._setup = CellSetup()
            if len(catalog) or scopes or mcp.connecting():
                names = json.dumps(catalog.convenience()).encode()
                parts = (catalog.all_tools_json, names, json.dumps(scopes).encode())
                parts = (*parts, json.dumps(mcp.setup()).encode())
                parts = (*parts, json.dumps(self._config.dialect).encode())
                data = b'{"tools":%s,"names":%s,"namespaces":%s,"mcp":%s,"dialect":%s}' % parts
                self._setup = CellSetup(hashlib.sha256(data).digest(), data)
        return self._setup
