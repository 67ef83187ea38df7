"""The programs of one run: `exec` and `wait`, where every exception becomes a result.

Whatever a guest does, and whatever happens to its worker or its store, the caller gets a
`CodeModeResult`.

A caller of `wait` that is cancelled must not end the program that it waits for. So a separate task
drives the program, and the caller only waits for the task. If the caller is cancelled, the program
runs to its next suspension and is parked again; its result is kept for the next `wait`.
"""

import math
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from clawmode.code_mode.arguments import BadArguments, check_program
from clawmode.code_mode.cell import CallGroup, Cell, Ledger
from clawmode.code_mode.gate import Gate, gate_input
from clawmode.code_mode.results import CodeModeResult
from clawmode.code_mode.stores import Refusal
from clawmode.code_mode.surface import advice
from clawmode.code_mode.telemetry import Telemetry
from clawmode.exceptions import Aborted, SandboxError, SnapshotRefused, StoreUnavailable
from clawmode.sandbox.protocol import Completion, Failure, Start
from clawmode.tasks import Lifetime
from clawmode.tools.approvals import Approvals
from clawmode.tools.executor import ToolFailure
from clawmode.types import ErrorCode, JsonObject

if TYPE_CHECKING:
    from clawmode.code_mode.calls import Calls
    from clawmode.code_mode.config import CodeModeConfig
    from clawmode.code_mode.driver import Driver
    from clawmode.code_mode.parking import Parking

RUN_ID = re.compile(r"cm_[0-9a-f]{32}")

CLOSED = "The run is closed."

MIN_HOOK_SECONDS = 0.25
"""The time that `after_tool_call` hooks get even if the program has used all of it."""

MAX_UNHEARD = 256
DISMISS_SECONDS = 2.0


# ---- Pending waits ----


@dataclass(slots=True)
class PendingWait:
    """A `wait` that has not returned.

    Attributes:
        left: True if the caller was cancelled.
        on_leave: Called once when the caller is cancelled.
        result: The result, once `done` is set.
        error: The exception, once `done` is set.
    """

    left: bool = False
    on_leave: Callable[[], None] = lambda: None
    done: anyio.Event = field(default_factory=anyio.Event)
    result: CodeModeResult | None = None
    error: Exception | None = None


@dataclass(slots=True)
class Waits:
    """The pending waits of one `CodeMode`."""

    _under_way: dict[str, PendingWait] = field(default_factory=dict[str, PendingWait])
    _unheard: OrderedDict[str, CodeModeResult] = field(
        default_factory=OrderedDict[str, CodeModeResult]
    )

    async def free(self, run_id: str, deadline: float) -> bool:
        """True if no `wait` for the program is pending.

        A `wait` whose caller was cancelled is about to park the program, so this waits for its end.
        """
        waiting = self._under_way.get(run_id)
        if waiting is not None and waiting.left:
            with anyio.move_on_after(max(deadline - time.monotonic(), 0)):
                await waiting.done.wait()
        return run_id not in self._under_way

    async def make(
        self,
        run_id: str,
        tasks: TaskGroup | None,
        wait: Callable[[PendingWait], Awaitable[CodeModeResult]],
    ) -> CodeModeResult | None:
        """Runs a `wait` for a program that is `free`. Returns None if `tasks` was cancelled.

        Args:
            run_id: The program.
            tasks: Where the `wait` continues after the caller is cancelled; None to end it then.
            wait: The `wait` itself.
        """
        waiting = self._under_way[run_id] = PendingWait()
        earlier = self._unheard.pop(run_id, None)
        if tasks is None:
            await self._serve(run_id, waiting, wait, earlier)
        else:
            tasks.start_soon(self._serve, run_id, waiting, wait, earlier)
        try:
            await waiting.done.wait()
        except BaseException:
            waiting.left = True
            waiting.on_leave()
            self._keep(run_id, waiting)
            raise
        if waiting.error is not None:
            raise waiting.error
        return waiting.result

    async def dismiss(self) -> None:
        """Ends all waits as if their callers were cancelled, and gives them a moment to park."""
        waits = list(self._under_way.values())
        for waiting in waits:
            waiting.on_leave()
        with anyio.move_on_after(DISMISS_SECONDS):
            for waiting in waits:
                await waiting.done.wait()

    async def _serve(
        self,
        run_id: str,
        waiting: PendingWait,
        wait: Callable[[PendingWait], Awaitable[CodeModeResult]],
        earlier: CodeModeResult | None,
    ) -> None:
        try:
            if earlier is not None and earlier.status != "waiting":
                waiting.result = earlier
                return
            result = await wait(waiting)
            if earlier is not None:
                result = replace(result, output=earlier.output + result.output)
            waiting.result = result
        except Exception as error:  # raised in the caller; here it would cancel all programs
            waiting.error = error
        finally:
            del self._under_way[run_id]
            if waiting.left:
                self._keep(run_id, waiting)
            waiting.done.set()

    def _keep(self, run_id: str, waiting: PendingWait) -> None:
        """Keeps a result that the store does not have, because the program has already ended."""
        result = waiting.result
        if result is not None and (result.status != "waiting" or result.output):
            self._unheard[run_id] = result
            if len(self._unheard) > MAX_UNHEARD:
                self._unheard.popitem(last=False)


# ---- Programs ----


@dataclass(slots=True)
class Programs:
    """Starts and resumes the programs of one run.

    Attributes:
        life: Runs hooks and waits that outlive their caller.
        is_closed: True once the run is closed.
        waits: The pending calls of `wait`.
    """

    config: "CodeModeConfig"
    telemetry: Telemetry
    approvals: Approvals
    gate: Gate
    calls: "Calls"
    driver: "Driver"
    parking: "Parking"
    life: Lifetime
    is_closed: Callable[[], bool]
    waits: Waits = field(default_factory=Waits)
    _left_waiting: dict[str, bool] = field(default_factory=dict[str, bool])
    """Programs that returned `waiting`, by id; True if a program waits for people only."""

    async def exec(self, code: str, language: str, call_id: str) -> CodeModeResult:
        """Starts a cell and runs it until it completes, fails, or has to wait."""
        self.telemetry.execs += 1
        deadline, began = self._deadline(), time.monotonic()
        if self.is_closed():
            return self.failed("runtime_unavailable", CLOSED)
        try:
            start = Start(code, check_program(code, language, self.config.languages))
        except BadArguments as error:
            return self.failed(error.code, str(error))
        cell = Cell(call_id, self.config.max_output_bytes, start)
        if self.gate.executor.hooks.empty:
            return await self._result(cell, self.driver.start(cell, deadline))
        result, params = await self._exec_gated(cell, gate_input(start), deadline)
        seconds = time.monotonic() - began
        await self._tell_hooks(params, call_id, result.to_json(), seconds, deadline)
        return result

    async def _exec_gated(
        self, cell: Cell, params: JsonObject, deadline: float
    ) -> tuple[CodeModeResult, JsonObject]:
        """Runs a cell if hooks and people allow it. Also returns `params` as they rewrote them."""
        try:
            with self.driver.admitting(cell, deadline, "the `before_tool_call` hooks"):
                admitted = await self.gate.admit(params, cell.parent_id)
            params = admitted.params
            allowed = self.config.languages
            checked = check_program(admitted.code, admitted.language, allowed)
            cell.start = Start(admitted.code, checked)
            if admitted.question is not None and self.approvals.inline:
                with self.driver.admitting(cell, deadline, "the approver"):
                    await self.calls.executor.ask(admitted.question)
        except ToolFailure as error:
            return self.failed("invalid_input", str(error)), params
        except (BadArguments, SandboxError) as error:
            return self.failed(error.code, str(error)), params
        if admitted.question is not None and not self.approvals.inline:
            self.calls.open_gate(cell, admitted.question)
        return await self._result(cell, self.driver.start(cell, deadline)), params

    async def _tell_hooks(
        self,
        params: JsonObject,
        call_id: str,
        result: JsonObject,
        seconds: float,
        deadline: float,
    ) -> None:
        """Runs the `after_tool_call` hooks. After the deadline, they continue in the background."""
        told = anyio.Event()

        async def tell() -> None:
            try:
                await self.gate.tell(params, call_id, result, seconds)
            finally:
                told.set()

        if self.life.tasks is None or self.is_closed():
            await tell()
            return
        self.life.tasks.start_soon(tell)
        # Hooks get a little time even if the program has used all of it.
        with anyio.move_on_after(max(deadline - time.monotonic(), MIN_HOOK_SECONDS)):
            await told.wait()

    async def wait(self, run_id: str) -> CodeModeResult:
        """Resumes a cell. Only one `wait` for a cell is allowed at a time.

        The store rejects a second `wait` of other objects, and `waits` those of this one.
        """
        deadline = self._deadline()
        self.telemetry.waits += 1
        if self.is_closed():
            return self.failed("runtime_unavailable", CLOSED)
        if not RUN_ID.fullmatch(run_id):
            return self._refused(run_id, "unknown")
        if not await self.waits.free(run_id, deadline):
            return self._refused(run_id, "busy")
        result = await self.waits.make(
            run_id, self.life.tasks, lambda waiting: self._resume(run_id, waiting, deadline)
        )
        return result or self.failed("aborted", CLOSED, ledger=self.driver.ledgers.get(run_id))

    async def _resume(self, run_id: str, waiting: PendingWait, deadline: float) -> CodeModeResult:
        try:
            cell = await self.parking.claim(run_id)
        except StoreUnavailable as error:
            return self.failed("snapshot_restore_failed", str(error))
        except SandboxError as error:
            if not (isinstance(error, SnapshotRefused) and error.kept):
                self.driver.forget(run_id)
            return self.failed(error.code, str(error))
        if not isinstance(cell, Cell):
            return self._refused(run_id, cell)
        cell.unheard = waiting.left
        waiting.on_leave = lambda: self.driver.leave(cell)
        return await self._result(cell, self.driver.resume(cell, deadline))

    async def until_decided(self) -> None:
        """Waits while all programs that returned `waiting` wait for people only."""
        while self._left_waiting and all(self._left_waiting.values()):
            known = self.calls.groups
            groups = [known[run_id] for run_id in self._left_waiting if run_id in known]
            if not groups or not all(group.waits_for_people() for group in groups):
                return
            self.calls.executor.on_question()
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
            return self.failed(error.code, str(error), cell)
        if outcome is None:
            nothing_else = not (cell.yields or cell.timers or cell.due)
            self._left_waiting[cell.id] = nothing_else and cell.waits_for_people()
            return CodeModeResult(
                status="waiting",
                run_id=cell.id,
                reason="yield" if cell.yielded else "pending_tools",
                pending_tool_calls=cell.pending(),
                output=cell.output,
                telemetry=self.telemetry.to_json(),
            )
        if isinstance(outcome, Failure):
            error = outcome.error + advice(outcome.error, self.calls.bridge.catalog, self.config)
            return self.failed(outcome.code, error, cell)
        return CodeModeResult(
            status="completed",
            value=outcome.parsed,
            output=cell.output,
            telemetry=self.telemetry.to_json(),
        )

    def failed(
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
                return self.failed("invalid_input", text)
            case "expired":
                self.telemetry.snapshots["expired"] += run_id in self.driver.parked
                self.driver.forget(run_id)
                text = "The program waited too long and is gone."
                return self.failed("snapshot_expired", text, ledger=self.driver.ledgers.get(run_id))
            case "aborted":
                self.driver.forget(run_id)
                return self.failed(
                    "aborted", str(Aborted()), ledger=self.driver.ledgers.get(run_id)
                )
            case "lost":
                self.driver.forget(run_id)
                text = "The program is lost: the process that ran it died."
                return self.failed("runtime_unavailable", text)
            case "finished":
                self.driver.forget(run_id)
                return self.failed("invalid_input", f"The program {run_id[:80]!r} has ended.")
            case "unknown":
                text = f"There is no program {run_id[:80]!r} to wait for."
                return self.failed("invalid_input", text)

    def _deadline(self) -> float:
        return time.monotonic() + self.config.timeout_ms / 1000
