"""`exec` and `wait`, for any agent.

The edge where trouble becomes data: whatever a guest does and whatever befalls its worker, the
caller gets a result.
"""

import contextlib
import functools
import hashlib
import json
import logging
import math
import re
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, overload

import anyio
from anyio.abc import AsyncResource, TaskGroup

from clawmode.catalog.catalog import Catalog
from clawmode.catalog.mcp_namespace import McpNamespace
from clawmode.catalog.namespace_runtime import NamespaceRuntime
from clawmode.catalog.namespaces import NamespaceContext, NamespaceRegistry, default_registry
from clawmode.catalog.vectors import choose_ranker
from clawmode.code_mode.bridge import Bridge
from clawmode.code_mode.calls import Calls
from clawmode.code_mode.cell import CallGroup, Cell, Ledger
from clawmode.code_mode.config import CodeModeConfig
from clawmode.code_mode.driver import MARGIN, CellSetup, Driver
from clawmode.code_mode.gate import Gate, gate_input
from clawmode.code_mode.memory_store import default_store
from clawmode.code_mode.parking import Parking
from clawmode.code_mode.results import CodeModeResult, WaitingReason
from clawmode.code_mode.spans import cell_span, find_recorder
from clawmode.code_mode.stores import Refusal, SnapshotStore
from clawmode.code_mode.surface import (
    WAIT_DESCRIPTION,
    WAIT_SCHEMA,
    Format,
    advice,
    definition,
    exec_description,
    exec_schema,
)
from clawmode.code_mode.telemetry import Telemetry
from clawmode.code_mode.waits import PendingWait, Waits
from clawmode.context import RandomId, RunContext
from clawmode.exceptions import (
    Aborted,
    ClawmodeWarning,
    ConfigurationError,
    NotOpen,
    SandboxError,
    SnapshotRefused,
    StoreUnavailable,
    UnknownTool,
)
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import LANGUAGES, MAX_SOURCE, Completion, Failure, Language, Start
from clawmode.tasks import Lifetime
from clawmode.tools.approvals import Approvals
from clawmode.tools.executor import Executor, ToolFailure, Watcher
from clawmode.tools.hooks import Hooks
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool
from clawmode.types import ErrorCode, JsonObject, JsonValue

if TYPE_CHECKING:
    # Whoever hands the definitions to one of these SDKs has it; to others they are `Any`.
    from anthropic.types import ToolParam
    from openai.types.chat import ChatCompletionToolParam
    from openai.types.responses import FunctionToolParam

    from clawmode.mcp.servers import McpServers
    from clawmode.mcp.settings import ServerSettings

logger = logging.getLogger("clawmode.code_mode")

RUN_ID = re.compile(r"cm_[0-9a-f]{32}")

CLOSED = "The run is closed."
NO_RUN_ID = (
    "The store keeps programs beyond this process, but the run has a random id that no other "
    "process knows, so nobody can wait for them: choose ids and give "
    'CodeMode(context=RunContext(session_id="…", run_id="…")).'
)
REOPENED = "A CodeMode is opened once: make a new object to open it again."


class CodeMode(AsyncResource):
    """Runs cells for one run of an agent.

    Opened with `async with`, or with `start` and `aclose`, which may be called in different tasks.

    Args:
        tools: What programs may call, as far as the policy allows: tools, or plain functions.
        mcp_servers: Servers whose tools programs may call too: `{"github": {"command": "…", "args":
            []}}`, `{"docs": {"url": "…"}}`. They are connected when it is entered; one that
            cannot be reached leaves the rest working. Or an `McpServers` that is open, to share.
        config: Limits: a `CodeModeConfig`, or what the file has under `tools.codeMode`, such as
            `{"timeoutMs": 500}`. Making the object is what activates code mode.
        policy: What is allowed: a `Policy`, or `{"allow": [...], "deny": [...]}`.
        hooks: What watches and decides about calls.
        approvals: Who is asked, and about which calls.
        namespaces: Where namespaces were registered; by default the process's registry.
        store: Where programs that wait are kept; by default in the process's memory. Wherever it
            is, a program that nobody waits for is deleted after `snapshotTtlSeconds`, 15 minutes.
        context: Whose run it is. With a durable store it needs a `run_id` that you choose: only the
            same ids can wait.
        pool: Workers to share; by default it has its own.

    Raises:
        ConfigurationError: An argument cannot be used; the message says what to give instead.
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
        check_argument("policy", policy, (Policy, Mapping), '{"allow": [...], "deny": [...]}')
        check_argument("hooks", hooks, Hooks, "hooks = Hooks(); hooks.before_tool_call(function)")
        check_argument("approvals", approvals, Approvals, 'Approvals(ask_for=["send_mail"])')
        check_argument("context", context, RunContext, 'RunContext(run_id="r-1")')
        check_argument("pool", pool, Pool, "async with Pool() as pool: ...")
        store = store or default_store
        self.config = _read_config(config).clamped(durable=store.durable)
        self.context = context or RunContext()
        if store.durable and isinstance(self.context.run_id, RandomId):
            warnings.warn(NO_RUN_ID, ClawmodeWarning, stacklevel=2)
        if not isinstance(policy, Policy):
            policy = Policy.from_config(policy)
        self.approvals = approvals or Approvals()
        self.executor = Executor(policy, hooks or Hooks(), self.approvals)
        self._spans = find_recorder()
        if self._spans is not None:
            self.executor.watchers.append(self._spans)
        self.telemetry = Telemetry()
        self._registry = namespaces or default_registry
        self._own_tools = _read_tools(tools)
        self._settings: list[ServerSettings] = []
        self._servers: McpServers | None = None
        self._unwatch: Callable[[], None] = lambda: None
        if isinstance(mcp_servers, Iterable):
            self._settings = read_mcp_servers(mcp_servers)
        else:
            self._use(mcp_servers)
        self._offered = self._all_tools()
        bridge = self._bridge_to(self._offered)
        self._gate = Gate(self.executor, self.context, self.config)
        self._parking = Parking(store, self.context, self.config)
        self._calls = Calls(
            executor=self.executor,
            gate=self._gate,
            bridge=bridge,
            parking=self._parking,
            config=self.config,
            context=self.context,
            telemetry=self.telemetry,
            connect=self._connect,
        )
        self._owns_pool = pool is None
        self._driver = Driver(
            pool=pool or Pool(),
            calls=self._calls,
            parking=self._parking,
            config=self.config,
            telemetry=self.telemetry,
            install=self._install,
        )
        self._opened = contextlib.AsyncExitStack()
        # Calls continue while their cell is parked.
        self._life = Lifetime("clawmode-calls", self._leave)
        self._changing = anyio.Lock()
        self._waits = Waits()
        self._left_waiting: dict[str, bool] = {}  # by id; True if only people are waited for
        self._closed = False

    # ---- Tools ----

    @property
    def catalog(self) -> Catalog:
        """What programs can find and call."""
        return self._calls.bridge.catalog

    @property
    def namespaces(self) -> NamespaceRuntime:
        """The namespaces that programs see."""
        return self._calls.bridge.namespaces

    def offer(self, tools: "Iterable[Tool | Callable[..., Any]]") -> None:
        """Makes these, as far as the policy allows, what programs can call from now on.

        A program that runs already keeps the names that it started with; a call of what is gone
        fails.

        Raises:
            DuplicateTool: Two of them have the same id; nothing has changed.
        """
        self._calls.bridge = self._bridge_to(_read_tools(tools))

    def _make_servers(self) -> "McpServers":
        from clawmode.mcp.servers import McpServers  # takes a second, and few need it

        return McpServers(self._settings, asks=self.approvals.takes_input)

    def _use(self, servers: "McpServers") -> None:
        self._servers = servers
        self._unwatch = servers.watch(lambda view: self._offer_anew())

    def _all_tools(self) -> list[Tool]:
        theirs = [] if self._servers is None else self._servers.tools()
        return [*self._own_tools, *theirs]

    def _offer_anew(self) -> None:
        tools = self._all_tools()
        # Most news is of a server's health, and to build a large catalog takes a while.
        if tools != self._offered:
            self.offer(tools)
            self._offered = tools
        elif self._absent != (bridge := self._calls.bridge).mcp.absent:
            mcp = McpNamespace(bridge.catalog.entries, self._absent)
            self._calls.bridge = replace(bridge, mcp=mcp)
            self._setup = CellSetup()

    @property
    def _absent(self) -> dict[str, str]:
        """MCP servers whose tools are not known, and why; empty while they connect."""
        views = () if self._servers is None else self._servers.views
        return {
            view.name: view.problem or ""
            for view in views
            if view.state in ("idle", "connecting", "down") and not view.all_tools
        }

    async def _connect(self, server: str) -> None:
        if self._servers is not None:
            await self._servers.ready(server)

    @property
    def missing_servers(self) -> dict[str, str]:
        """MCP servers that cannot be reached, and why, for people."""
        views = () if self._servers is None else self._servers.views
        return {view.name: view.problem for view in views if view.problem}

    def _bridge_to(self, tools: Iterable[Tool]) -> Bridge:
        visible = self.executor.policy.effective(tools)
        catalog = Catalog(visible, ranker=choose_ranker())
        namespaces = self._make_namespaces(visible)
        self.telemetry.catalog_size = len(catalog)
        self.telemetry.sources = catalog.breakdown()
        self._setup = CellSetup()
        mcp = McpNamespace(catalog.entries, self._absent)
        return Bridge(catalog, namespaces, mcp, self.config, self.telemetry.miss)

    def _make_namespaces(self, visible: Sequence[Tool]) -> NamespaceRuntime:
        self._registry_version = self._registry.version
        scopes = NamespaceContext(self.context, self.config, lambda: self._closed)
        return NamespaceRuntime(self._registry.visible(visible), visible, scopes)

    def _refresh_namespaces(self) -> None:
        """A plugin may have been removed since the last program: the next one does not see it."""
        if self._registry.version != self._registry_version:
            bridge = self._calls.bridge
            namespaces = self._make_namespaces(bridge.catalog.entries)
            self._calls.bridge = replace(bridge, namespaces=namespaces)
            self._setup = CellSetup()

    # ---- Open and close ----

    async def start(self) -> "CodeMode":
        """Opens it: starts a worker and connects the MCP servers. To be called once.

        Raises:
            ConfigurationError: It was opened before.
        """
        async with self._changing, contextlib.AsyncExitStack() as opened:
            if self._closed or self._life.tasks is not None:
                raise ConfigurationError(REOPENED)
            if self._owns_pool:
                await opened.enter_async_context(self._driver.pool)
            if self._settings:
                servers = await opened.enter_async_context(self._make_servers())
                self._use(servers)
                await servers.connect()
            for rule in (
                *self.executor.policy.unmatched(self._offered),
                *self.approvals.unmatched(self._offered),
            ):
                _warn_once(str(rule))
            self._calls.tasks = await self._life.open()
            opened.push_async_callback(self._life.close)
            # So that no deadline has to cover the start of the first worker.
            await self._driver.pool.ready()
            self._opened = opened.pop_all()
        return self

    async def aclose(self) -> None:
        """Ends the cells that run, closes what `start` opened, and waits until that is done.

        Cells that are parked in a durable store stay there. Idempotent, from any task.
        """
        self._closed = True
        unwatch, self._unwatch = self._unwatch, lambda: None
        unwatch()
        with anyio.CancelScope(shield=True):
            async with self._changing:
                await self._opened.aclose()

    async def __aenter__(self) -> "CodeMode":
        return await self.start()

    async def _leave(self, tasks: TaskGroup) -> None:
        """Ends what is active and what was parked in memory; what is durable stays."""
        self._closed = True
        try:
            await self._driver.abort_all()
            if not self._parking.store.durable:
                for run_id in list(self._driver.parked):
                    await self._driver.abort(run_id)
            await self._waits.dismiss()
            await self._parking.close()
        finally:
            tasks.cancel_scope.cancel()

    async def end_run(self) -> None:
        """The run has ended: its cells are gone, and so are their calls.

        Cells that another process resumed are ended there. A cell that another process has started
        and not parked yet is known to that process alone.

        Raises:
            StoreUnavailable: Those that are parked could not be deleted.
            AbortUnconfirmed: Another process has not confirmed the end of a cell within 5 s.
        """
        await self._end_all(session=False)

    async def end_session(self) -> None:
        """The session has ended: the cells of all of its runs are gone.

        Raises:
            StoreUnavailable: Those that are parked could not be deleted.
            AbortUnconfirmed: Another process has not confirmed the end of a cell within 5 s.
        """
        await self._end_all(session=True)

    async def _end_all(self, *, session: bool) -> None:
        await self._driver.abort_all()
        for run_id in await self._parking.end_all(session=session):
            self.telemetry.snapshots["deleted"] += 1
            self._driver.forget(run_id)

    async def abort(self, run_id: str) -> bool:
        """Ends a cell, computing or parked, here or in another process that shares the store.

        When this returns True, the cell has ended and none of its calls begins any more; calls that
        were running were cancelled, in the other process too. A thread cannot be cancelled.

        Returns:
            False: There is no cell of this id.

        Raises:
            StoreUnavailable: Whether there is one cannot be found out.
            AbortUnconfirmed: The other process has not confirmed the end within 5 s. It ends the
                cell as soon as it can.
        """
        return await self._driver.abort(run_id)

    def cells(self) -> dict[str, float]:
        """The cells that are not parked, and since when; by `time.time`."""
        return {cell.id: cell.since for cell in self._driver.active.values()}

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Shows `watcher` every nested call from now on: its start, its updates and its end.

        Returns:
            Ends the watching.
        """
        self.executor.watchers.append(watcher)
        return lambda: self.executor.watchers.remove(watcher)

    # ---- For a model ----

    @overload
    def definitions(
        self, format: Literal["openai"] = "openai"
    ) -> "list[ChatCompletionToolParam]": ...

    @overload
    def definitions(self, format: Literal["openai-responses"]) -> "list[FunctionToolParam]": ...

    @overload
    def definitions(self, format: Literal["anthropic"]) -> "list[ToolParam]": ...

    @overload
    def definitions(self, format: Literal["mcp"]) -> list[JsonObject]: ...

    def definitions(self, format: Format = "openai") -> Any:
        """Exactly two tools, `exec` and `wait`, as a provider or MCP wants them written."""
        self._refresh_namespaces()
        bridge = self._calls.bridge
        text = exec_description(
            bridge.catalog, bridge.namespaces, bridge.mcp, self.config, list(self.missing_servers)
        )
        return [
            definition(format, "exec", text, exec_schema(self.config)),
            definition(format, "wait", WAIT_DESCRIPTION, WAIT_SCHEMA),
        ]

    async def call(
        self, name: str, arguments: object, *, call_id: str = "exec"
    ) -> dict[str, JsonValue]:
        """A model's tool call in, the page's JSON out. Bad arguments are a failed result.

        Args:
            name: `exec` or `wait`.
            arguments: What the model wrote: an object, or its JSON text as OpenAI sends it.
            call_id: The model's id of the call; nested calls carry it as their parent.

        Raises:
            UnknownTool: There is no such tool: the caller has more than these two.
            NotOpen: It was not opened.
        """
        if name not in ("exec", "wait"):
            raise UnknownTool(f"code mode has `exec` and `wait`, not {name!r}", ("exec", "wait"))
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError) as error:
                return self._failed("invalid_input", _broken_json(error)).to_json()
        if not isinstance(arguments, dict):
            return self._failed("invalid_input", "The arguments must be an object.").to_json()
        if name == "wait":
            run_id = arguments.get("runId", arguments.get("run_id"))
            if not isinstance(run_id, str):
                return self._failed("invalid_input", "`runId` must be a string.").to_json()
            return (await self.wait(run_id, call_id=call_id)).to_json()
        read = self._read_exec(arguments)
        if isinstance(read, CodeModeResult):
            return read.to_json()
        code, language = read
        return (await self.exec(code, language, call_id=call_id)).to_json()

    def _read_exec(self, arguments: dict[str, object]) -> tuple[str, str] | CodeModeResult:
        given: list[str] = []
        for key in ("code", "command"):
            text = arguments.get(key)
            if text is not None and not isinstance(text, str):
                return self._failed("invalid_input", f"`{key}` must be a string.")
            if text and text.strip():
                given.append(text)
        if not given:
            return self._failed("invalid_input", "`code` is missing or blank.")
        if len(set(given)) > 1:
            return self._failed("invalid_input", "`code` and `command` differ: give one of them.")
        language = arguments.get("language")
        if language is None:
            return given[0], self.config.languages[0]
        if not isinstance(language, str):
            return self._failed("unsupported_language", "`language` must be a string.")
        return given[0], language

    # ---- The two tools ----

    async def exec(
        self, code: str, language: str = "javascript", *, call_id: str = "exec"
    ) -> CodeModeResult:
        """Starts a cell and runs it until it is complete, fails, or has to wait.

        Raises:
            NotOpen: It was not opened.
        """
        with cell_span(self._spans, "exec", call_id, self.context) as span:
            result = await self._exec(code, language, call_id)
            span.conclude(result)
        return result

    async def _exec(self, code: str, language: str, call_id: str) -> CodeModeResult:
        self._require_open()
        self.telemetry.execs += 1
        deadline, began = self._deadline(), time.monotonic()
        if self._closed:
            return self._failed("runtime_unavailable", CLOSED)
        checked = self._check(code, language)
        if isinstance(checked, CodeModeResult):
            return checked
        cell = Cell(call_id, self.config.max_output_bytes, Start(code, checked))
        if not self._gate.has_hooks:
            return await self._result(cell, self._driver.start(cell, deadline))
        params = gate_input(Start(code, checked))
        result, params = await self._exec_gated(cell, params, deadline)
        seconds = time.monotonic() - began
        await self._tell_hooks(params, call_id, result.to_json(), seconds, deadline)
        return result

    async def _exec_gated(
        self, cell: Cell, params: JsonObject, deadline: float
    ) -> tuple[CodeModeResult, JsonObject]:
        """Runs a cell as hooks and people allow it; also returns what they made of `params`."""
        try:
            with self._driver.admitting(cell, deadline, "the `before_tool_call` hooks"):
                admitted = await self._gate.admit(params, cell.parent_id)
            params = admitted.params
            checked = self._check(admitted.code, admitted.language)
            if isinstance(checked, CodeModeResult):
                return checked, params
            cell.start = Start(admitted.code, checked)
            if admitted.question is not None and self.approvals.inline:
                with self._driver.admitting(cell, deadline, "the approver"):
                    await self.executor.ask(admitted.question)
        except ToolFailure as error:
            return self._failed("invalid_input", str(error)), params
        except SandboxError as error:
            return self._failed(error.code, str(error)), params
        if admitted.question is not None and not self.approvals.inline:
            self._calls.open_gate(cell, admitted.question)
        return await self._result(cell, self._driver.start(cell, deadline)), params

    async def _tell_hooks(
        self,
        params: JsonObject,
        call_id: str,
        result: JsonObject,
        seconds: float,
        deadline: float,
    ) -> None:
        """Shows the hooks what ran. At the deadline, slow ones continue without the caller."""
        told = anyio.Event()

        async def tell() -> None:
            try:
                await self._gate.tell(params, call_id, result, seconds)
            finally:
                told.set()

        if self._life.tasks is None or self._closed:
            await tell()
            return
        self._life.tasks.start_soon(tell)
        # A program that took all of its time leaves them a little.
        with anyio.move_on_after(max(deadline - time.monotonic(), MARGIN)):
            await told.wait()

    async def wait(self, run_id: str, *, call_id: str = "wait") -> CodeModeResult:
        """Resumes a cell that an earlier result left waiting.

        A caller that is cancelled does not end the cell: it runs to its next suspension and is
        parked again. Its output, and its result if it has ended, are kept for the next `wait`.

        Raises:
            NotOpen: It was not opened.
        """
        with cell_span(self._spans, "wait", call_id, self.context) as span:
            result = await self._wait_alone(run_id)
            span.conclude(result)
        return result

    async def _wait_alone(self, run_id: str) -> CodeModeResult:
        """One `wait` for a cell at a time; the store keeps other objects out, and we ourselves."""
        self._require_open()
        deadline = self._deadline()
        self.telemetry.waits += 1
        if self._closed:
            return self._failed("runtime_unavailable", CLOSED)
        if not RUN_ID.fullmatch(run_id):
            return self._refused(run_id, "unknown")
        if not await self._waits.free(run_id, deadline):
            return self._refused(run_id, "busy")
        result = await self._waits.make(
            run_id, self._life.tasks, lambda waiting: self._wait(run_id, waiting, deadline)
        )
        return result or self._failed("aborted", CLOSED, ledger=self._ledger(run_id))

    async def _wait(self, run_id: str, waiting: PendingWait, deadline: float) -> CodeModeResult:
        try:
            cell = await self._parking.claim(run_id)
        except StoreUnavailable as error:
            return self._failed("snapshot_restore_failed", str(error))
        except SandboxError as error:
            if not (isinstance(error, SnapshotRefused) and error.kept):
                self._driver.forget(run_id)
            return self._failed(error.code, str(error))
        if not isinstance(cell, Cell):
            return self._refused(run_id, cell)
        cell.unheard = waiting.left
        waiting.on_leave = lambda: self._driver.leave(cell)
        return await self._result(cell, self._driver.resume(cell, deadline))

    async def until_decided(self) -> None:
        """Waits as long as the programs that were left waiting wait for nothing but people.

        An agent's loop calls this before it asks its model again: until a person has answered, all
        that the model could do is to `wait`.
        """
        while self._left_waiting and all(self._left_waiting.values()):
            known = self._calls.groups
            groups = [known[run_id] for run_id in self._left_waiting if run_id in known]
            if not groups or not all(group.waits_for_people() for group in groups):
                return
            self.executor.on_question()
            async with anyio.create_task_group() as tasks:

                async def notice(group: CallGroup, version: int) -> None:
                    await group.changed(version, math.inf)
                    tasks.cancel_scope.cancel()

                for group in groups:
                    tasks.start_soon(notice, group, group.changes.count)

    # ---- Results ----

    async def _result(
        self, cell: Cell, driven: Awaitable[Completion | Failure | None]
    ) -> CodeModeResult:
        self._left_waiting.pop(cell.id, None)
        try:
            outcome = await driven
        except SandboxError as error:
            return self._failed(error.code, str(error), cell)
        if outcome is None:
            nothing_else = not (cell.yields or cell.timers or cell.due)
            self._left_waiting[cell.id] = nothing_else and cell.waits_for_people()
            return self._waiting(cell)
        if isinstance(outcome, Failure):
            error = outcome.error + advice(outcome.error, self.catalog, self.config)
            return self._failed(outcome.code, error, cell)
        return CodeModeResult(
            status="completed",
            value=outcome.parsed,
            output=cell.output,
            telemetry=self.telemetry.to_json(),
        )

    def _waiting(self, cell: Cell) -> CodeModeResult:
        reason: WaitingReason = "yield" if cell.yielded else "pending_tools"
        return CodeModeResult(
            status="waiting",
            run_id=cell.id,
            reason=reason,
            pending_tool_calls=cell.pending(),
            output=cell.output,
            telemetry=self.telemetry.to_json(),
        )

    def _ledger(self, run_id: str) -> Ledger | None:
        return self._driver.ledgers.get(run_id)

    def _failed(
        self, code: ErrorCode, error: str, cell: Cell | None = None, ledger: Ledger | None = None
    ) -> CodeModeResult:
        self.telemetry.fail(code)
        ledger = cell.ledger if cell else ledger or Ledger()
        return CodeModeResult(
            status="failed",
            code=code,
            error=error,
            output=cell.output if cell else [],
            calls=[entry.to_json() for entry in ledger.entries],
            calls_omitted=dict(ledger.omitted),
            telemetry=self.telemetry.to_json(),
        )

    def _refused(self, run_id: str, why: Refusal) -> CodeModeResult:
        match why:
            case "busy":
                text = "Another `wait` for this program is under way, or it is running."
                return self._failed("invalid_input", text)
            case "expired":
                self.telemetry.snapshots["expired"] += run_id in self._driver.parked
                self._driver.forget(run_id)
                text = "The program waited too long and is gone."
                return self._failed("snapshot_expired", text, ledger=self._ledger(run_id))
            case "aborted":
                self._driver.forget(run_id)
                return self._failed("aborted", str(Aborted()), ledger=self._ledger(run_id))
            case "lost":
                self._driver.forget(run_id)
                text = "The program is lost: the process that ran it died."
                return self._failed("runtime_unavailable", text)
            case "finished":
                self._driver.forget(run_id)
                return self._failed("invalid_input", f"The program {run_id[:80]!r} has ended.")
            case "unknown":
                text = f"There is no program {run_id[:80]!r} to wait for."
                return self._failed("invalid_input", text)

    # ---- Small parts ----

    def _require_open(self) -> None:
        # With workers of somebody else's and without tools, there is nothing to open.
        needed = self._owns_pool or self._offered or self._settings
        if self._calls.tasks is None and needed and not self._closed:
            raise NotOpen(
                "It is not open: use it inside of `async with CodeMode(...) as code_mode:`, "
                "or call `start()` first."
            )

    def _check(self, code: str, language: str) -> Language | CodeModeResult:
        if not code.strip():
            return self._failed("invalid_input", "`code` is empty.")
        if len(code.encode("utf-8", "replace")) > MAX_SOURCE:
            return self._failed("invalid_input", f"`code` is over {MAX_SOURCE} bytes.")
        allowed = self.config.languages
        for known in LANGUAGES:
            if language == known and known in allowed:
                return known
        names = " or ".join(repr(name) for name in allowed)
        return self._failed(
            "unsupported_language", f"`language` must be {names}, not {language!r}."
        )

    async def _install(self) -> CellSetup:
        """What the run's cells start with; nothing where there is nothing to add."""
        self._refresh_namespaces()
        mcp = self._calls.bridge.mcp
        if not self._setup.key and mcp:
            # Once for a catalog, but a second for thousands of tools: not on the event loop.
            await anyio.to_thread.run_sync(lambda: mcp.files)
        scopes = self.namespaces.descriptors()
        if not self._setup.key and (len(self.catalog) or scopes or mcp.connecting()):
            names = json.dumps(self.catalog.convenience()).encode()
            parts = (self.catalog.all_tools_json, names, json.dumps(scopes).encode())
            parts = (*parts, json.dumps(self._calls.bridge.mcp.setup()).encode())
            data = b'{"tools":%s,"names":%s,"namespaces":%s,"mcp":%s}' % parts
            self._setup = CellSetup(hashlib.sha256(data).digest(), data)
        return self._setup

    def _deadline(self) -> float:
        return time.monotonic() + self.config.timeout_ms / 1000


@functools.lru_cache(1024)  # a server makes a new object for each request, out of the same settings
def _warn_once(text: str) -> None:
    logger.warning("%s", text)


def check_argument(name: str, value: object, kind: Any, example: str) -> None:
    """Checks the type of an optional argument; None is allowed.

    Raises:
        ConfigurationError: The type is wrong; the message shows the example.
    """
    if value is not None and not isinstance(value, kind):
        raise ConfigurationError(
            f"{name}: found {type(value).__name__}, expected for example {example}",
            path=name,
            expected=example,
        )


def _read_config(config: object) -> CodeModeConfig:
    check_argument("config", config, (CodeModeConfig, Mapping), '{"timeoutMs": 500}')
    if not isinstance(config, Mapping):
        return config if isinstance(config, CodeModeConfig) else CodeModeConfig()
    made, warned = CodeModeConfig.from_json(dict(config), path="config")
    for warning in warned:
        warnings.warn(str(warning), ClawmodeWarning, stacklevel=3)
    return made


def _read_tools(tools: "Iterable[Tool | Callable[..., Any]]") -> list[Tool]:
    if isinstance(tools, Iterable):
        tools = list(tools)
        made = [tool for tool in tools if isinstance(tool, Tool)]
        if len(made) == len(tools):
            return made
    from clawmode.tools.function import read_tools  # takes a while, and most have used `@tool`

    return read_tools(tools)


def _broken_json(error: Exception) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return (
            "The arguments are not valid JSON: they are nested too deeply, or a number is too long."
        )
    where = f"line {error.lineno}, column {error.colno}"
    return f"The arguments are not valid JSON: {where}: {error.msg}."


def read_mcp_servers(
    servers: "Mapping[str, JsonValue] | Iterable[ServerSettings]",
) -> "list[ServerSettings]":
    """Returns the settings of MCP servers that were given as `mcp_servers`.

    Raises:
        ConfigurationError: An entry cannot be used.
    """
    if not isinstance(servers, Mapping):
        return list(servers)
    from clawmode.config.mcp import read_servers

    named: Any = servers
    return read_servers(dict(named)).unwrap()
