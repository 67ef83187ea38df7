"""`CodeMode`, the public object: its parts, its lifetime, and the definitions for a model."""

import functools
import logging
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

import anyio
from anyio.abc import AsyncResource

from clawmode.catalog.catalog import Catalog
from clawmode.catalog.mcp_namespace import McpNamespace
from clawmode.catalog.namespace_runtime import NamespaceRuntime
from clawmode.catalog.namespaces import NamespaceContext, NamespaceRegistry, default_registry
from clawmode.code_mode import codex
from clawmode.code_mode.arguments import (
    A_POOL,
    A_STORE,
    BadArguments,
    check_argument,
    check_parts,
    read_arguments,
    read_config,
    read_mcp_servers,
    read_program,
    read_run_id,
    read_tools,
)
from clawmode.code_mode.config import CodeModeConfig
from clawmode.code_mode.memory_store import default_store
from clawmode.code_mode.offer import Offer
from clawmode.code_mode.results import CodeModeResult
from clawmode.code_mode.run_cells import RunCells
from clawmode.code_mode.shapes import SeenShapes
from clawmode.code_mode.spans import CellSpan, CellTool
from clawmode.code_mode.stores import SnapshotStore
from clawmode.code_mode.surface import (
    Format,
    HasDefinitions,
    exec_description,
)
from clawmode.code_mode.sync import SyncArguments, SyncCodeMode, outside_of_loops
from clawmode.code_mode.telemetry import Telemetry
from clawmode.context import RandomId, RunContext
from clawmode.exceptions import ClawmodeWarning, ConfigurationError, NotOpen, UnknownTool
from clawmode.sandbox.pool import Pool
from clawmode.tools.approvals import Approvals
from clawmode.tools.executor import Executor
from clawmode.tools.hooks import Hooks
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue

if TYPE_CHECKING:
    from clawmode.mcp.servers import McpServers
    from clawmode.mcp.settings import ServerSettings

logger = logging.getLogger("clawmode.code_mode")

NO_RUN_ID = (
    "The store keeps programs beyond this process, but the run has a random id that no other "
    "process knows, so no other process can wait for them: choose ids and pass "
    'CodeMode(context=RunContext(session_id="…", run_id="…")).'
)
REOPENED = "A CodeMode can be opened once: create a new object to open it again."


class CodeMode(RunCells, AsyncResource, HasDefinitions):
    """Runs cells for one run of an agent.

    Opened with `async with`, or with `start` and `aclose`, which may be called in different tasks.

    Args:
        tools: The tools that programs may call if the policy allows them: tools or plain functions.
        mcp_servers: MCP servers whose tools programs may call too, such as `{"github": {"command":
            "…", "args": []}}` or `{"docs": {"url": "…"}}`. `start` connects them; programs run
            without a server that cannot be reached. Pass an open `McpServers` to share it.
        config: Limits: a `CodeModeConfig`, or the value of `tools.codeMode` in the configuration,
            such as `{"timeoutMs": 500}`. `enabled` is ignored: this object is always active.
        policy: The allowed tools: a `Policy`, or `{"allow": [...], "deny": [...]}`.
        hooks: Hooks that observe calls and decide about them.
        approvals: Which calls need approval, and who is asked.
        namespaces: The registry of namespaces; by default the registry of the process.
        store: Where waiting programs are kept; by default in memory. Every store deletes a program
            `snapshotTtlSeconds` (15 minutes) after its last `wait`.
        context: The ids of the run. With a durable store, choose the `run_id` yourself: a `wait`
            needs the same ids.
        pool: Workers to share; by default the object has its own pool.

    Raises:
        ConfigurationError: An argument is invalid; the message says what to pass instead.
        MissingExtra: There are MCP servers, but the extra `mcp` is not installed.
    """

    def __init__(
        self,
        *,
        tools: "Iterable[Tool | Callable[..., Any]]" = (),
        mcp_servers: "Mapping[str, JsonValue] | Iterable[ServerSettings] | McpServers" = (),
        config: CodeModeConfig | Mapping[str, JsonValue] | None = None,
        policy: Policy | Mapping[str, JsonValue] | None = None,
        hooks: Hooks | None = None,
        approvals: Approvals | None = None,
        namespaces: NamespaceRegistry | None = None,
        store: SnapshotStore | None = None,
        context: RunContext | None = None,
        pool: Pool | None = None,
    ) -> None:
        check_parts(policy=policy, hooks=hooks, approvals=approvals, context=context)
        check_argument("pool", pool, Pool, A_POOL)
        if not hasattr(store, "durable"):  # an object of any class may be a store
            check_argument("store", store, (), A_STORE)
        store = store or default_store
        config = read_config(config).clamped(durable=store.durable, fleet=store.fleet)
        context = context or RunContext()
        if store.durable and isinstance(context.run_id, RandomId):
            warnings.warn(NO_RUN_ID, ClawmodeWarning, stacklevel=2)
        if not isinstance(policy, Policy):
            policy = Policy.from_config(policy)
        telemetry, shapes = Telemetry(), SeenShapes(store, context)
        given = isinstance(mcp_servers, Iterable)
        self._settings = read_mcp_servers(mcp_servers) if given else []
        self._used = frozenset[str]()
        offer = Offer(
            read_tools(tools),
            policy=policy,
            registry=namespaces or default_registry,
            scopes=NamespaceContext(context, config, lambda: self._programs.closed),
            config=config,
            telemetry=telemetry,
            seen=shapes.text,
            servers=None if given else mcp_servers,
        )
        super().__init__(
            Executor(policy, hooks or Hooks(), approvals or Approvals()),
            offer,
            store,
            pool or Pool(),
            context=context,
            config=config,
            telemetry=telemetry,
            shapes=shapes,
        )
        self._opened = AsyncExitStack()
        self._changing = anyio.Lock()
        self._owns_pool = pool is None

    @classmethod
    def sync(cls, **arguments: "Unpack[SyncArguments]") -> SyncCodeMode:
        """Returns an object for code without an event loop: its methods block.

        Use it inside `with`. It has its own event loop in its own thread, so it can also be used
        where an event loop runs, such as a notebook. The arguments are those of the class, except
        that `pool` and an open `McpServers` belong to an event loop and cannot be passed.

        Raises:
            ConfigurationError: An argument is invalid; the message says what to pass instead.
        """
        given: dict[str, Any] = {**arguments}
        for name in ("pool", "mcp_servers"):
            value = given.get(name)
            if value is not None and not isinstance(value, Iterable):
                raise ConfigurationError(
                    f"{name}: {type(value).__name__} belongs to the event loop that opened it, and "
                    "CodeMode.sync has its own",
                    path=name,
                )
        return SyncCodeMode(outside_of_loops(lambda: cls(**given)))

    # ---- Tools ----

    @property
    def catalog(self) -> Catalog:
        """The tools that programs can find and call."""
        return self._calls.bridge.catalog

    @property
    def tools(self) -> list[Tool]:
        """The tools that were given, and those of MCP servers; the policy may deny some of them."""
        return list(self._offer.tools)

    @property
    def namespaces(self) -> NamespaceRuntime:
        """The namespaces that programs see."""
        return self._calls.bridge.namespaces

    @property
    def mcp(self) -> McpNamespace:
        """The MCP servers, as programs see them."""
        return self._calls.bridge.mcp

    def call_text(self, tool: Tool) -> str:
        """Returns the call of a tool as a program writes it, with the type of its input."""
        return self._calls.bridge.call(tool)

    def offer(self, tools: "Iterable[Tool | Callable[..., Any]]") -> None:
        """Replaces the tools that programs can call, as far as the policy allows them.

        The tools of the MCP servers stay. A program that runs already keeps the names that it
        started with; calls of removed tools fail.

        Raises:
            DuplicateTool: Two of them have the same id; nothing has changed.
        """
        self._offer.replace_tools(read_tools(tools))

    @property
    def missing_servers(self) -> dict[str, str]:
        """MCP servers that cannot be reached, with the reasons for people."""
        return self._offer.missing_servers

    # ---- Open and close ----

    async def start(self) -> "CodeMode":
        """Starts a worker and connects the MCP servers. Call it only once.

        Raises:
            ConfigurationError: The object was opened before.
        """
        async with self._changing, AsyncExitStack() as opened:
            if self._programs.closed or self._life.tasks is not None:
                raise ConfigurationError(REOPENED)
            if self._owns_pool:
                await opened.enter_async_context(self._driver.pool)
            if self._settings:
                from clawmode.mcp.servers import McpServers  # a second to import, rarely needed

                servers = McpServers(self._settings, asks=self.approvals.takes_input)
                await opened.enter_async_context(servers)
                self._offer.use_servers(servers)
                await servers.connect()
            offered = self._offer.tools
            for rule in (
                *self.executor.policy.unmatched(offered),
                *self.approvals.unmatched(offered),
            ):
                _warn_once(str(rule))
            self._calls.tasks = await self._life.open()
            opened.push_async_callback(self._life.close)
            # Waits here, so that the start of the first worker counts towards no deadline.
            await self._driver.pool.ready()
            self._opened = opened.pop_all()
        return self

    async def aclose(self) -> None:
        """Ends running cells, closes everything that `start` opened, and waits for the end.

        Cells in a durable store stay there. Idempotent; may be called from any task.
        """
        self._programs.closed = True
        self._offer.close()
        with anyio.CancelScope(shield=True):
            async with self._changing:
                await self._opened.aclose()

    async def __aenter__(self) -> "CodeMode":
        return await self.start()

    # ---- For a model ----

    def prefer(self, tool_ids: Iterable[str]) -> None:
        """Shows the signatures of these tools first where not all fit into the definitions.

        An agent calls this at the start of a run with the tools that the session has used before.
        """
        self._used = frozenset(tool_ids)

    def _define(self, format: Format, max_chars: int | None) -> list[JsonObject]:
        self._offer.refresh_namespaces()
        bridge = self._calls.bridge

        def describe(max_chars: int | None) -> str:
            return exec_description(
                bridge.catalog,
                bridge.namespaces,
                bridge.mcp,
                self.config,
                used=self._used,
                asks=lambda tool: self.approvals.needs_approval(tool, self.context),
                max_chars=max_chars,
            )

        return codex.definitions_of(format, self.config, describe, max_chars)

    async def call(
        self, name: str, arguments: object, *, call_id: str = "exec", with_images: bool = False
    ) -> dict[str, JsonValue]:
        """Makes a tool call of a model. Returns the JSON form of the result.

        Invalid arguments give a failed result.

        Args:
            name: `exec` or `wait`.
            arguments: The arguments of the model: an object, or JSON text as OpenAI sends it. In
                the dialect of Codex, `exec` also takes the source as it is.
            call_id: The model's id of the call, which nested calls have as their parent.
            with_images: Whether `attachments` have the images themselves: `take_images` separates
                them from what the model reads as text.

        Raises:
            UnknownTool: The name is neither `exec` nor `wait`.
            NotOpen: The object is not open.
        """
        if name not in ("exec", "wait"):
            raise UnknownTool(f"code mode has `exec` and `wait`, not {name!r}", ("exec", "wait"))
        try:
            limits, source = codex.CallLimits(), None
            is_codex = self.config.dialect == "codex"
            if is_codex and name == "exec":
                source, limits = codex.read_source(arguments)
            given = read_arguments(arguments) if source is None else source
            if name == "wait":
                run_id = read_run_id(given, *(["cell_id"] if is_codex else []))
                limits = codex.read_wait_limits(given) if is_codex else limits
                if limits.terminate:
                    await self.abort(run_id)
                result = await self.wait(run_id, call_id=call_id, yield_ms=limits.yield_ms)
                return limits.cut(result.to_json(with_images=with_images))
            code, language = read_program(given, self.config.languages[0])
        except BadArguments as error:
            return self._programs.failed(error.code, str(error)).to_json()
        result = await self.exec(code, language, call_id=call_id, yield_ms=limits.yield_ms)
        return limits.cut(result.to_json(with_images=with_images))

    # ---- The two tools ----

    async def exec(
        self,
        code: str,
        language: str = "javascript",
        *,
        call_id: str = "exec",
        yield_ms: float | None = None,
    ) -> CodeModeResult:
        """Starts a cell and runs it until it completes, fails, or has to wait.

        Args:
            code: The program.
            language: Its language.
            call_id: The model's id of the call, which nested calls have as their parent.
            yield_ms: Milliseconds after which a program that waits for a call or a timer is
                returned as `waiting`; by default, and at most, `timeoutMs`.

        Raises:
            NotOpen: The object is not open.
        """
        return await self._report(
            "exec", call_id, lambda: self._programs.exec(code, language, call_id, yield_ms)
        )

    async def wait(
        self, run_id: str, *, call_id: str = "wait", yield_ms: float | None = None
    ) -> CodeModeResult:
        """Resumes a cell whose last result was `waiting`.

        Cancelling the caller does not end the cell: it runs to its next suspension and is parked
        again. Its output, or its result if it has ended, is kept for the next `wait`.

        Raises:
            NotOpen: The object is not open.
        """
        return await self._report("wait", call_id, lambda: self._programs.wait(run_id, yield_ms))

    async def _report(
        self, name: CellTool, call_id: str, run: Callable[[], Awaitable[CodeModeResult]]
    ) -> CodeModeResult:
        """Returns the result of `run`, with which MCP servers are missing if that has changed."""
        with self._span(name, call_id) as span:
            self._require_open()
            result = await run()
            if news := self._offer.server_news():
                result = replace(result, mcp_servers=news)
            if span is not None:
                span.conclude(result)
        return result

    def _span(self, name: CellTool, call_id: str) -> AbstractContextManager[CellSpan | None]:
        if self._spans is None:
            return nullcontext()
        return self._spans.cell(name, call_id, self.context)

    def _require_open(self) -> None:
        # With a shared pool and without tools, there is nothing to open.
        needed = self._owns_pool or self._offer.tools or self._settings
        if self._calls.tasks is None and needed and not self._programs.closed:
            raise NotOpen(
                "The CodeMode is not open: use it inside `async with CodeMode(...) as code_mode:`, "
                "or call `start()` first."
            )


@functools.lru_cache(1024)  # a server creates an object per request, from the same settings
def _warn_once(text: str) -> None:
    logger.warning("%s", text)
