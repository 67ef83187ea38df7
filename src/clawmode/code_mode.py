"""`exec` and `wait`: the life of a cell from its start to its result.

The edge where trouble becomes data: whatever a guest does and whatever befalls its worker, the
caller gets a result.
"""

import hashlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable
from types import TracebackType
from typing import Literal, TypeAlias

import anyio
from anyio.abc import TaskGroup

from clawmode.approvals import Approvals
from clawmode.bridge import BadRequest, Bridge, fail, refuse, settle
from clawmode.catalog import Catalog
from clawmode.config import CodeModeConfig
from clawmode.context import RunContext
from clawmode.exceptions import ErrorCode, SandboxError
from clawmode.executor import Call, Executor, ToolFailure
from clawmode.hooks import Hooks
from clawmode.namespaces import (
    NamespaceContext,
    NamespaceRegistry,
    NamespaceRuntime,
    default_registry,
)
from clawmode.policy import Policy
from clawmode.results import CodeModeResult, WaitingReason
from clawmode.runs import OpenCall, Run
from clawmode.sandbox import artifacts
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import (
    LANGUAGES,
    MAX_SOURCE,
    Done,
    Failed,
    Language,
    Limits,
    Outcome,
    Request,
    Resume,
    Settled,
    Start,
    Suspended,
)
from clawmode.snapshots import KeyRing, seal, unseal
from clawmode.surface import (
    WAIT_DESCRIPTION,
    WAIT_SCHEMA,
    Format,
    definition,
    exec_description,
    exec_schema,
)
from clawmode.telemetry import Telemetry
from clawmode.tools import JsonObject, Tool
from clawmode.types import JsonText, JsonValue

logger = logging.getLogger("clawmode")

QUEUED_CALLS = 128
"""Calls that may wait for their turn, beyond those that run."""

MARGIN = 0.25
"""Seconds before the deadline of an `exec` or `wait` from which a cell is not resumed any more."""

MAX_TOMBSTONES = 1024

End: TypeAlias = Literal["finished", "expired", "aborted"]


class CodeMode:
    """Runs cells for one run of an agent. With tools it is used inside of `async with`.

    Args:
        tools: What programs may call, as far as the policy allows.
        config: Limits. Making the object is what activates code mode.
        policy: What is allowed: a `Policy`, or `{"allow": [...], "deny": [...]}`.
        hooks: What watches and decides about calls.
        approvals: Who is asked, and about which calls.
        namespaces: Where namespaces were registered; by default the process's registry.
        context: Whose run it is.
        pool: Workers to share; by default it has its own.
    """

    def __init__(
        self,
        *,
        tools: Iterable[Tool] = (),
        config: CodeModeConfig | None = None,
        policy: Policy | dict[str, JsonValue] | None = None,
        hooks: Hooks | None = None,
        approvals: Approvals | None = None,
        namespaces: NamespaceRegistry | None = None,
        context: RunContext | None = None,
        pool: Pool | None = None,
    ) -> None:
        self.config = (config or CodeModeConfig()).clamped()
        self.context = context or RunContext()
        if not isinstance(policy, Policy):
            policy = Policy.from_config(policy)
        visible = policy.effective(tools)
        self.catalog = Catalog(visible)
        self.approvals = approvals or Approvals()
        self.executor = Executor(policy, hooks or Hooks(), self.approvals)
        scopes = NamespaceContext(self.context, self.config, lambda: self._closed)
        registry = namespaces or default_registry
        self.namespaces = NamespaceRuntime(registry.visible(visible), visible, scopes)
        self._bridge = Bridge(self.catalog, self.namespaces, self.config)
        self._setup: JsonText = b""
        self._pool = pool or Pool()
        self._owns_pool = pool is None
        self._keys = KeyRing.ephemeral()
        self._parked: dict[str, Run] = {}
        self._active: dict[str, Run] = {}
        self._tombstones: OrderedDict[str, End] = OrderedDict()
        self._tasks: TaskGroup | None = None
        self._closed = False
        self.telemetry = Telemetry(len(self.catalog), self.catalog.breakdown())

    # ---- Open and close ----

    async def __aenter__(self) -> "CodeMode":
        if self._owns_pool:
            await self._pool.__aenter__()
        # Calls go on while their cell is parked.
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        # So that no deadline has to cover the start of the first worker.
        await self._pool.ready()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        await self.end_run()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(kind, error, trace)
        if self._owns_pool:
            await self._pool.__aexit__(kind, error, trace)

    async def end_run(self) -> None:
        """The run has ended: its parked cells are gone, and so are their calls."""
        for run_id in [*self._parked, *self._active]:
            await self.abort(run_id)

    async def abort(self, run_id: str) -> bool:
        """Ends a cell at once, computing or parked. False: there is none of this id."""
        run = self._parked.pop(run_id, None) or self._active.get(run_id)
        if run is None:
            return False
        parked = run_id not in self._active
        self._bury(run, "aborted")
        await self._pool.abort(run.cell)
        run.tell()
        if parked:
            self.telemetry.snapshots["deleted"] += 1
        return True

    # ---- For a model ----

    def definitions(self, format: Format = "openai") -> list[JsonObject]:
        """Exactly two tools, `exec` and `wait`, as a provider or MCP wants them written."""
        text = exec_description(self.catalog, self.namespaces, self.config)
        return [
            definition(format, "exec", text, exec_schema(self.config)),
            definition(format, "wait", WAIT_DESCRIPTION, WAIT_SCHEMA),
        ]

    async def call(
        self, name: str, arguments: JsonValue, *, call_id: str = "exec"
    ) -> dict[str, JsonValue]:
        """A model's tool call in, the page's JSON out. Bad arguments are a failed result.

        Args:
            name: `exec` or `wait`.
            arguments: What the model wrote, parsed.
            call_id: The model's id of the call; nested calls carry it as their parent.

        Raises:
            ValueError: There is no such tool: the caller has more than these two.
        """
        if name not in ("exec", "wait"):
            raise ValueError(f"code mode has `exec` and `wait`, not {name!r}")
        if not isinstance(arguments, dict):
            return self._failed("invalid_input", "The arguments must be an object.").to_json()
        if name == "wait":
            run_id = arguments.get("runId", arguments.get("run_id"))
            if not isinstance(run_id, str):
                return self._failed("invalid_input", "`runId` must be a string.").to_json()
            return (await self.wait(run_id)).to_json()
        read = self._read_exec(arguments)
        if isinstance(read, CodeModeResult):
            return read.to_json()
        code, language = read
        return (await self.exec(code, language, call_id=call_id)).to_json()

    def _read_exec(self, arguments: dict[str, JsonValue]) -> tuple[str, str] | CodeModeResult:
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
        """Starts a cell and runs it until it is complete, fails, or has to wait."""
        self.telemetry.execs += 1
        checked = self._check(code, language)
        if isinstance(checked, CodeModeResult):
            return checked
        run = Run(self._pool.cell(), call_id, self.config.max_output_bytes)
        try:
            key = self._install()
        except SandboxError as error:
            return self._failed(error.code, str(error))
        start = Start(code, checked, self._limits(), run.output_left, setup=key)
        return await self._drive(run, start, self._deadline())

    async def wait(self, run_id: str) -> CodeModeResult:
        """Lets a cell go on that an earlier result left waiting."""
        self.telemetry.waits += 1
        run = self._parked.get(run_id)
        if run is None or run_id in self._active:
            return self._no_such_run(run_id)
        if time.monotonic() > run.expires:
            del self._parked[run_id]
            self._bury(run, "expired")
            self.telemetry.snapshots["expired"] += 1
            return self._no_such_run(run_id)
        run.output = []
        deadline = self._deadline()
        self._active[run_id] = run
        try:
            replies = run.take_yields() or await self._replies(run, deadline, patient=True)
        finally:
            del self._active[run_id]
        if run.ended:
            return self._no_such_run(run_id)
        if replies is None:
            run.expires = time.monotonic() + self.config.snapshot_ttl_seconds
            return self._waiting(run)
        del self._parked[run_id]
        return await self._restore(run, replies + run.take_replies(), deadline)

    async def _restore(
        self, run: Run, replies: tuple[Settled, ...], deadline: float
    ) -> CodeModeResult:
        try:
            frozen = unseal(run.sealed, _wasm_hash(), self.context, self._keys, max_memory=1 << 32)
        except SandboxError as error:
            self._bury(run, "finished")
            return self._failed(error.code, str(error), run)
        finally:
            self.telemetry.snapshots["deleted"] += 1
        self.telemetry.snapshots["restored"] += 1
        run.cell, run.sealed = self._pool.cell(frozen), b""
        return await self._drive(run, self._resume(run, replies), deadline)

    # ---- Driving a cell ----

    async def _drive(self, run: Run, message: Start | Resume, deadline: float) -> CodeModeResult:
        self._active[run.id] = run
        try:
            outcome = await self._pool.step(run.cell, message, deadline, self._setup)
            while isinstance(outcome, Suspended):
                run.take_output(outcome.output)
                run.timers, run.due = outcome.timers, outcome.due
                self._accept(run, outcome.requests)
                replies = await self._replies(run, deadline)
                if run.ended:
                    return self._failed("aborted", "The program was aborted.", run)
                if replies is None:
                    return await self._park(run)
                outcome = await self._pool.step(run.cell, self._resume(run, replies), deadline)
            return self._finish(run, outcome)
        except SandboxError as error:
            self._bury(run, "aborted" if error.code == "aborted" else "finished")
            return self._failed(error.code, str(error), run)
        except BaseException:
            # Whoever waited for it is gone.
            self._bury(run, "aborted")
            raise
        finally:
            del self._active[run.id]
            self._pool.drop(run.cell)

    def _accept(self, run: Run, requests: tuple[Request, ...]) -> None:
        """Takes a batch of requests: answers what can be answered at once, starts the rest."""
        for request in requests:
            if request.method == "yield":
                run.yields.append(request)
            elif request.method in ("search", "describe"):
                self.telemetry.searches += request.method == "search"
                self.telemetry.describes += request.method == "describe"
                run.inbox.append(self._bridge.look_up(request))
            else:
                self._open(run, request)
        self._start_calls(run)

    def _open(self, run: Run, request: Request) -> None:
        try:
            tool, given = self._bridge.call_of(request)
        except BadRequest as error:
            run.inbox.append(refuse(request, error.code, str(error), error.tool_id))
            return
        call = run.calls[request.id] = OpenCall(request, tool, given)
        run.queue.append(call)

    async def _replies(
        self, run: Run, deadline: float, *, patient: bool = False
    ) -> tuple[Settled, ...] | None:
        """What to resume the cell with; None: it has to wait, and be parked.

        An empty answer resumes it for a timer.

        Args:
            run: The cell.
            deadline: Of this `exec` or `wait`. A little before it, the cell is parked rather than
                resumed with no time left.
            patient: In a `wait` there is nothing better to do: also a person is waited for, and a
                timer that is due too late. An `exec` is not held open by either.
        """
        last = deadline - min(MARGIN, self.config.timeout_ms / 5000)
        while not run.ended:
            news, now = run.news, time.monotonic()
            due = now + run.due / 1000 - time.time() if run.due else float("inf")
            if now < last and (run.inbox or due <= now):
                return run.take_replies()
            idle = all(call.state == "approval" for call in run.open_calls())
            hopeless = idle and due >= last and not patient
            if run.yields or now >= last or hopeless:
                return None
            with anyio.move_on_after(min(due, last) - now):
                await news.wait()
        return None

    async def _park(self, run: Run) -> CodeModeResult:
        if len(self._parked) >= self.config.max_suspended_runs:
            self._bury(run, "finished")
            text = "Too many programs are waiting already."
            return self._failed("snapshot_limit_exceeded", text, run)
        frozen = await self._pool.freeze(run.cell)
        run.sealed = seal(frozen, _wasm_hash(), self.context, self._keys)
        if len(run.sealed) > self.config.max_snapshot_bytes:
            self._bury(run, "finished")
            text = (
                f"The program is {len(run.sealed)} bytes when frozen; "
                f"{self.config.max_snapshot_bytes} are allowed."
            )
            return self._failed("snapshot_limit_exceeded", text, run)
        self.telemetry.snapshots["created"] += 1
        run.expires = time.monotonic() + self.config.snapshot_ttl_seconds
        self._parked[run.id] = run
        return self._waiting(run)

    # ---- Calls ----

    def _start_calls(self, run: Run) -> None:
        running = sum(call.state in ("running", "approval") for call in run.calls.values())
        while run.queue and running < self.config.max_pending_tool_calls:
            assert self._tasks is not None, "a CodeMode with tools is used inside of `async with`"
            call = run.queue.popleft()
            call.state = "running"
            running += 1
            self.telemetry.call(call.tool.id)
            self._tasks.start_soon(self._make_call, run, call)

    async def _make_call(self, run: Run, call: OpenCall) -> None:
        reply: Settled | None = None
        with anyio.CancelScope() as call.scope:
            reply = await self._call(run, call)
        if run.ended or reply is None:
            return
        call.state = "completed" if reply.ok else "failed"
        run.inbox.append(self._bounded(run, call, reply))
        self._start_calls(run)
        run.tell()

    async def _call(self, run: Run, call: OpenCall) -> Settled:
        def on_state(state: Literal["running", "approval"]) -> None:
            call.state = state
            run.tell()

        made = Call(
            id=f"{run.id}:{call.request.id}",
            tool=call.tool,
            input=call.input,
            run=self.context,
            parent_id=run.parent_id,
            on_state=on_state,
        )
        try:
            result = await self.executor.call(made)
            return settle(call.request, result, call.tool.id)
        except ToolFailure as error:
            return fail(call.request, error, call.tool.id)
        except Exception as error:
            logger.exception("the call of %s failed in the host", call.tool.id)
            text = f"The host failed: {type(error).__name__}"
            return refuse(call.request, "internal_error", text, call.tool.id)

    def _bounded(self, run: Run, call: OpenCall, reply: Settled) -> Settled:
        waiting = sum(len(item.value) for item in run.inbox)
        if (
            run.id not in self._parked
            or waiting + len(reply.value) <= self.config.max_snapshot_bytes
        ):
            return reply
        text = "The answers that wait for the program are too large: ask for less, page by page."
        return refuse(call.request, "reply_too_large", text, call.tool.id)

    def _bury(self, run: Run, end: End) -> None:
        """The cell has ended: what it still waits for is cancelled, and what comes is dropped."""
        run.ended = True
        for call in run.open_calls():
            call.state = "not_started" if call.state == "queued" else "cancelled"
            if call.scope is not None:
                call.scope.cancel()
        run.queue.clear()
        self._tombstones[run.id] = end
        if len(self._tombstones) > MAX_TOMBSTONES:
            self._tombstones.popitem(last=False)

    # ---- Results ----

    def _finish(self, run: Run, outcome: Outcome) -> CodeModeResult:
        run.take_output(outcome.output)
        self._bury(run, "finished")
        if isinstance(outcome, Done):
            return CodeModeResult(
                status="completed",
                value=json.loads(outcome.value),
                output=run.output,
                telemetry=self.telemetry.to_json(),
            )
        assert isinstance(outcome, Failed)
        return self._failed(outcome.code, outcome.error, run)

    def _waiting(self, run: Run) -> CodeModeResult:
        yielded = bool(run.yields) and not run.open_calls() and not run.timers
        reason: WaitingReason = "yield" if yielded else "pending_tools"
        return CodeModeResult(
            status="waiting",
            run_id=run.id,
            reason=reason,
            pending_tool_calls=run.pending(),
            output=run.output,
            telemetry=self.telemetry.to_json(),
        )

    def _failed(self, code: ErrorCode, error: str, run: Run | None = None) -> CodeModeResult:
        self.telemetry.fail(code)
        return CodeModeResult(
            status="failed",
            code=code,
            error=error,
            output=run.output if run else [],
            calls=run.ledger() if run else [],
            telemetry=self.telemetry.to_json(),
        )

    def _no_such_run(self, run_id: str) -> CodeModeResult:
        if run_id in self._active:
            text = "Another `wait` for this program is under way."
            return self._failed("invalid_input", text)
        match self._tombstones.get(run_id):
            case "expired":
                return self._failed("snapshot_expired", "The program waited too long and is gone.")
            case "aborted":
                return self._failed("aborted", "The program was aborted.")
            case "finished":
                return self._failed("invalid_input", f"The program {run_id!r} has ended.")
            case _:
                text = f"There is no program {run_id!r} to wait for."
                return self._failed("invalid_input", text)

    # ---- Small parts ----

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

    def _install(self) -> bytes:
        """The key of what the run's cells start with; empty where there is nothing to add."""
        scopes = self.namespaces.descriptors()
        if not len(self.catalog) and not scopes:
            return b""
        if not self._setup:
            names = json.dumps(self.catalog.convenience()).encode()
            parts = (self.catalog.all_tools_json, names, json.dumps(scopes).encode())
            self._setup = b'{"tools":%s,"names":%s,"namespaces":%s}' % parts
        return hashlib.sha256(self._setup).digest()

    def _deadline(self) -> float:
        return time.monotonic() + self.config.timeout_ms / 1000

    def _resume(self, run: Run, replies: tuple[Settled, ...]) -> Resume:
        return Resume(replies, limits=self._limits(), output_left=run.output_left, now=run.due)

    def _limits(self) -> Limits:
        config = self.config
        return Limits(config.memory_limit_bytes, config.max_pending_tool_calls + QUEUED_CALLS)


def _wasm_hash() -> bytes:
    return bytes.fromhex(artifacts.locked_hash("quickjs"))
