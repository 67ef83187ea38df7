"""`exec` and `wait`: the life of a cell from its start to its result.

The edge where trouble becomes data: whatever a guest does and whatever befalls its worker, the
caller gets a result.
"""

import json
import secrets
import time
from dataclasses import dataclass, field
from types import TracebackType

import anyio

from clawmode.config import CodeModeConfig
from clawmode.context import RunContext
from clawmode.exceptions import ErrorCode, SandboxError
from clawmode.results import CodeModeResult, WaitingReason
from clawmode.sandbox import artifacts
from clawmode.sandbox.pool import Cell, Pool
from clawmode.sandbox.protocol import (
    LANGUAGES,
    MAX_SOURCE,
    Done,
    Failed,
    Language,
    Limits,
    Outcome,
    Output,
    Request,
    Resume,
    Settled,
    Start,
    Suspended,
)
from clawmode.snapshots import KeyRing, seal, unseal
from clawmode.types import JsonValue

QUEUED_CALLS = 128
"""Calls that may wait for their turn, beyond those that run."""


@dataclass(slots=True)
class Run:
    """A cell and what has become of it so far."""

    id: str
    cell: Cell
    output_left: int
    output: list[JsonValue] = field(default_factory=list)
    yields: list[Request] = field(default_factory=list)
    timers: int = 0
    due: float = 0.0
    sealed: bytes = b""
    expires: float = 0.0


class CodeMode:
    """Runs cells for one run of an agent.

    Args:
        config: Limits. Making the object is what activates code mode.
        context: Whose run it is.
        pool: Workers to share; by default it has its own.
    """

    def __init__(
        self,
        *,
        config: CodeModeConfig | None = None,
        context: RunContext | None = None,
        pool: Pool | None = None,
    ) -> None:
        self.config = (config or CodeModeConfig()).clamped()
        self.context = context or RunContext()
        self._pool = pool or Pool()
        self._owns_pool = pool is None
        self._keys = KeyRing.ephemeral()
        self._parked: dict[str, Run] = {}
        self._counts: dict[str, JsonValue] = {"execCount": 0, "waitCount": 0}

    async def __aenter__(self) -> "CodeMode":
        if self._owns_pool:
            await self._pool.__aenter__()
        # So that no deadline has to cover the start of the first worker.
        await self._pool.ready()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._parked.clear()
        if self._owns_pool:
            await self._pool.__aexit__(kind, error, trace)

    # ---- The two tools ----

    async def exec(self, code: str, language: str = "javascript") -> CodeModeResult:
        """Starts a cell and runs it until it is complete, fails, or has to wait."""
        self._count("execCount")
        checked = self._check(code, language)
        if isinstance(checked, CodeModeResult):
            return checked
        run = Run("cm_" + secrets.token_hex(16), self._pool.cell(), self.config.max_output_bytes)
        start = Start(code, checked, self._limits(), run.output_left)
        return await self._drive(run, start)

    async def wait(self, run_id: str) -> CodeModeResult:
        """Lets a cell go on that an earlier result left waiting."""
        self._count("waitCount")
        run = self._parked.pop(run_id, None)
        if run is None:
            return self._failed("invalid_input", f"There is no program {run_id!r} to wait for.")
        if time.monotonic() > run.expires:
            return self._failed("snapshot_expired", "The program waited too long and is gone.")
        try:
            frozen = unseal(run.sealed, _wasm_hash(), self.context, self._keys, max_memory=1 << 32)
        except SandboxError as error:
            return self._failed(error.code, str(error))
        run.cell = self._pool.cell(frozen)
        run.output = []
        settled = tuple(Settled(request.id, True, b"null") for request in run.yields)
        run.yields = []
        return await self._drive(run, self._resume(run, settled))

    # ---- Driving a cell ----

    async def _drive(self, run: Run, message: Start | Resume) -> CodeModeResult:
        deadline = time.monotonic() + self.config.timeout_ms / 1000
        try:
            outcome = await self._pool.step(run.cell, message, deadline)
            while isinstance(outcome, Suspended):
                self._take_output(run, outcome.output)
                settled = self._answer(run, outcome)
                if not settled and (run.yields or not await _sleep(run.due, deadline)):
                    return await self._park(run)
                outcome = await self._pool.step(run.cell, self._resume(run, settled), deadline)
            return self._finish(run, outcome)
        except SandboxError as error:
            return self._failed(error.code, str(error), run)
        finally:
            self._pool.drop(run.cell)

    def _resume(self, run: Run, settled: tuple[Settled, ...]) -> Resume:
        return Resume(settled, limits=self._limits(), output_left=run.output_left, now=run.due)

    def _answer(self, run: Run, suspended: Suspended) -> tuple[Settled, ...]:
        """Answers what can be answered at once. Yields stay open: they are the model's."""
        run.timers, run.due = suspended.timers, suspended.due
        run.yields += [request for request in suspended.requests if request.method == "yield"]
        return tuple(
            _refuse(request) for request in suspended.requests if request.method != "yield"
        )

    async def _park(self, run: Run) -> CodeModeResult:
        if len(self._parked) >= self.config.max_suspended_runs:
            return self._failed(
                "snapshot_limit_exceeded", "Too many programs are waiting already.", run
            )
        frozen = await self._pool.freeze(run.cell)
        run.sealed = seal(frozen, _wasm_hash(), self.context, self._keys)
        if len(run.sealed) > self.config.max_snapshot_bytes:
            return self._failed(
                "snapshot_limit_exceeded",
                f"The program is {len(run.sealed)} bytes when frozen; "
                f"{self.config.max_snapshot_bytes} are allowed.",
                run,
            )
        run.expires = time.monotonic() + self.config.snapshot_ttl_seconds
        self._parked[run.id] = run
        reason: WaitingReason = "pending_tools" if run.timers else "yield"
        return CodeModeResult(
            status="waiting",
            run_id=run.id,
            reason=reason,
            pending_tool_calls=_pending(run),
            output=run.output,
            telemetry=dict(self._counts),
        )

    def _finish(self, run: Run, outcome: Outcome) -> CodeModeResult:
        self._take_output(run, outcome.output)
        if isinstance(outcome, Done):
            return CodeModeResult(
                status="completed",
                value=json.loads(outcome.value),
                output=run.output,
                telemetry=dict(self._counts),
            )
        assert isinstance(outcome, Failed)
        return self._failed(outcome.code, outcome.error, run)

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

    def _limits(self) -> Limits:
        config = self.config
        return Limits(config.memory_limit_bytes, config.max_pending_tool_calls + QUEUED_CALLS)

    def _take_output(self, run: Run, items: tuple[Output, ...]) -> None:
        for item in items:
            run.output_left = max(0, run.output_left - item.size)
            key = "text" if item.type == "text" else "value"
            run.output.append({"type": item.type, key: json.loads(item.body)})

    def _failed(self, code: ErrorCode, error: str, run: Run | None = None) -> CodeModeResult:
        return CodeModeResult(
            status="failed",
            code=code,
            error=error,
            output=run.output if run else [],
            telemetry=dict(self._counts),
        )

    def _count(self, name: str) -> None:
        count = self._counts[name]
        assert isinstance(count, int)
        self._counts[name] = count + 1


async def _sleep(due: float, deadline: float) -> bool:
    """Waits for a timer; at once says no to one that is due only after the deadline."""
    if due == 0:
        return False
    delay = due / 1000 - time.time()
    if time.monotonic() + delay >= deadline:
        return False
    await anyio.sleep(max(delay, 0))
    return True


def _refuse(request: Request) -> Settled:
    args = json.loads(request.args)
    tool = args[0] if isinstance(args, list) and args and isinstance(args[0], str) else None
    if request.method == "search":
        return Settled(request.id, True, b"[]")
    error = {"name": "ToolError", "message": f"There is no tool {tool!r}.", "toolId": tool}
    return Settled(request.id, False, json.dumps(error).encode())


def _pending(run: Run) -> list[JsonValue]:
    pending: list[JsonValue] = [
        {"id": str(request.id), "method": "yield", "state": "running"} for request in run.yields
    ]
    if run.timers:
        pending.append({"id": "timer", "method": "timer", "state": "timer", "due": run.due})
    return pending


def _wasm_hash() -> bytes:
    return bytes.fromhex(artifacts.locked_hash("quickjs"))
