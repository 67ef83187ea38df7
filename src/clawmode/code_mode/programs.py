"""The programs of one run: `exec` and `wait`, where every exception becomes a result.

Whatever a guest does, and whatever happens to its worker or its store, the caller gets a
`CodeModeResult`.
"""

import math
import re
import time
from collections.abc import Awaitable
from dataclasses import field
from typing import TYPE_CHECKING

import anyio

from clawmode.code_mode.arguments import BadArguments, check_program
from clawmode.code_mode.cell import CallGroup, Cell, gate_input
from clawmode.code_mode.exits import HELD, UNREAD
from clawmode.code_mode.gate import Gate
from clawmode.code_mode.ledger import Ledger
from clawmode.code_mode.results import CodeModeResult
from clawmode.code_mode.stores import Refusal
from clawmode.code_mode.surface import advice
from clawmode.code_mode.telemetry import Telemetry
from clawmode.code_mode.waits import PendingWait, Waits
from clawmode.exceptions import Aborted, SandboxError, SnapshotRefused, StoreUnavailable
from clawmode.sandbox.protocol import Completion, Failure, Start
from clawmode.tasks import Lifetime
from clawmode.tools.approvals import Approvals
from clawmode.tools.executor import ToolFailure
from clawmode.types import ErrorCode, JsonObject, dataclass

if TYPE_CHECKING:
    from clawmode.code_mode.calls import Calls
    from clawmode.code_mode.config import CodeModeConfig
    from clawmode.code_mode.driver import Driver
    from clawmode.code_mode.parking import Parking

RUN_ID = re.compile(r"cm_[0-9a-f]{32}")
CLOSED = "The run is closed."
TAKEN_OVER = "Another process has taken the program over: wait for it there, or here once more."
UNSURE = "{} Whether another process has taken the program over is not known: wait for it again."
KEPT_THERE = " Another process may keep it until its store is back: then wait there."
ELSEWHERE = (
    "Another build of clawmode has parked the program, and this one cannot resume it. The program "
    "is kept until it expires, and waits for a process of its build."
)

MIN_HOOK_SECONDS = 0.25
"""The time that `after_tool_call` hooks get even if the program has used all of it."""


@dataclass(slots=True)
class Programs:
    """Starts and resumes the programs of one run.

    Attributes:
        life: Runs hooks and waits that outlive their caller.
        waits: The pending calls of `wait`.
        closed: True once the run is closed.
    """

    config: "CodeModeConfig"
    telemetry: Telemetry
    approvals: Approvals
    gate: Gate
    calls: "Calls"
    driver: "Driver"
    parking: "Parking"
    life: Lifetime
    waits: Waits = field(default_factory=Waits)
    closed: bool = False
    _left_waiting: dict[str, bool] = field(default_factory=dict[str, bool])
    """Programs that returned `waiting`, by id; True if a program waits for people only."""

    async def exec(
        self, code: str, language: str, call_id: str, yield_ms: float | None = None
    ) -> CodeModeResult:
        """Starts a cell and runs it until it completes, fails, or has to wait."""
        self.telemetry.execs += 1
        deadline, until, began = self._deadline(), _time_to(yield_ms), time.monotonic()
        if self.closed:
            return self.failed("runtime_unavailable", CLOSED)
        try:
            start = Start(code, check_program(code, language, self.config.languages))
        except BadArguments as error:
            return self.failed(error.code, str(error))
        cell = Cell(call_id, self.config.max_output_bytes, start)
        if self.gate.executor.hooks.empty:
            return await self._result(cell, self.driver.start(cell, deadline, until))
        result, params = await self._exec_gated(cell, gate_input(start), deadline, until)
        seconds = time.monotonic() - began
        await self._tell_hooks(params, call_id, result.to_json(), seconds, deadline)
        return result

    async def _exec_gated(
        self, cell: Cell, params: JsonObject, deadline: float, until: float
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
        return await self._result(cell, self.driver.start(cell, deadline, until)), params

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

        if self.life.tasks is None or self.closed:
            await tell()
            return
        self.life.tasks.start_soon(tell)
        # Hooks get a little time even if the program has used all of it.
        with anyio.move_on_after(max(deadline - time.monotonic(), MIN_HOOK_SECONDS)):
            await told.wait()

    async def wait(self, run_id: str, yield_ms: float | None = None) -> CodeModeResult:
        """Resumes a cell. Only one `wait` for a cell is allowed at a time.

        The store rejects a second `wait` of other objects, and `waits` those of this one.
        """
        deadline, until = self._deadline(), _time_to(yield_ms)
        self.telemetry.waits += 1
        if self.closed:
            return self.failed("runtime_unavailable", CLOSED)
        given: object = run_id
        if not isinstance(given, str):
            text = f"`run_id` must be a string, not {type(given).__name__}."
            return self.failed("invalid_input", text)
        if not RUN_ID.fullmatch(run_id):
            return self._refused(run_id, "unknown")
        free = await self.waits.free(run_id, deadline)
        if not free or run_id in self.driver.active:
            return self._refused(run_id, "busy")
        result = await self.waits.make(
            run_id, self.life.tasks, lambda waiting: self._resume(run_id, waiting, deadline, until)
        )
        return result or self.failed(
            "aborted", CLOSED, ledger=self.driver.exits.ledgers.get(run_id)
        )

    async def _resume(
        self, run_id: str, waiting: PendingWait, deadline: float, until: float
    ) -> CodeModeResult:
        try:
            # Known before the claim, which leaves programs of other builds alone.
            await self.driver.pool.ready()
            await self.driver.exits.catch_up(run_id)
            if (ended := self.parking.untold.pop(run_id, None)) is not None:
                return await self._result(ended, self._outcome(ended))
            cell = await self.driver.exits.claim(run_id)
            if not isinstance(cell, Cell):
                return self._refused(run_id, cell, await self._ledger(run_id, cell))
        except StoreUnavailable as error:
            if run_id in self.parking.held:
                return self._elsewhere(run_id, HELD.format(error))
            return self.failed("snapshot_restore_failed", UNREAD.format(error))
        except SandboxError as error:
            if not (isinstance(error, SnapshotRefused) and error.kept):
                self.driver.exits.forget(run_id)
            return self.failed(error.code, str(error))
        cell.unheard = waiting.left
        waiting.on_leave = lambda: self.driver.leave(cell)
        return await self._result(cell, self.driver.resume(cell, deadline, until))

    async def _outcome(self, cell: Cell) -> Completion | Failure | None:
        """Returns how a cell ended whose result was `waiting`, with all its output."""
        self.driver.exits.forget(cell.id)
        cell.forget_output()
        cell.notes = []
        return cell.outcome

    async def _ledger(self, run_id: str, why: Refusal) -> Ledger | None:
        here, stored = self.driver.exits.ledgers.get(run_id), await self.parking.ledger(run_id)
        if here is None or stored is None:
            return here or stored
        # The program has gone on elsewhere, unless its last calls were cancelled here.
        newer = why != "aborted" or len(stored.entries) > len(here.entries)
        return stored if newer else here

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
        """Drives a cell, and then stores the shapes of what its tools have answered.

        A `wait` runs this in a task of its own: whoever gives up while the store does not answer
        must not lose the result.
        """
        result = await self._driven(cell, driven)
        if (shapes := self.calls.shapes) is not None and shapes.changed:
            await shapes.save()
        return result

    async def _driven(
        self, cell: Cell, driven: Awaitable[Completion | Failure | None]
    ) -> CodeModeResult:
        self._left_waiting.pop(cell.id, None)
        try:
            outcome = await driven
        except SandboxError as error:
            fenced = isinstance(error, Aborted) and cell.stored and not cell.ordered
            try:
                if cell.lost or (fenced and await self.parking.goes_on(cell.id)):
                    return self._elsewhere(cell.id, TAKEN_OVER)
            except StoreUnavailable as unknown:
                return self._elsewhere(cell.id, UNSURE.format(unknown))
            return self.failed(error.code, str(error), cell)
        if cell.lost:
            return self._elsewhere(cell.id, TAKEN_OVER)
        if outcome is None:
            # Before the model can write: its text must not come between a call and its question.
            self.approvals.put_gathered(cell.id)
            nothing_else = not (cell.yields or cell.timers or cell.due)
            self._left_waiting[cell.id] = nothing_else and cell.waits_for_people()
            return CodeModeResult(
                status="waiting",
                run_id=cell.id,
                reason="yield" if cell.yielded else "pending_tools",
                pending_tool_calls=cell.pending(),
                output=cell.output,
                attachments=cell.attachments,
                notes=cell.notes,
                telemetry=self.telemetry.to_json(),
            )
        if isinstance(outcome, Failure):
            bridge, error = self.calls.bridge, outcome.error
            # In a thread, because a large catalog is indexed at the first wrong name.
            answered = [it.tool_id for it in cell.ledger.entries if it.state == "completed"]
            more = await anyio.to_thread.run_sync(bridge.advise, error, outcome.requests, answered)
            more = advice(error, bridge.catalog, self.config) or more
            return self.failed(outcome.code, error + more, cell)
        return CodeModeResult(
            status="completed",
            value=outcome.parsed,
            output=cell.output,
            attachments=cell.attachments,
            notes=cell.notes,
            telemetry=self.telemetry.to_json(),
        )

    def failed(
        self, code: ErrorCode, error: str, cell: Cell | None = None, ledger: Ledger | None = None
    ) -> CodeModeResult:
        self.telemetry.fail(code)
        ledger = cell.ledger if cell else ledger or Ledger()
        omitted = ledger.omitted.copy()
        if cell is not None and cell.waiting:
            omitted["not_started"] += cell.waiting
        return CodeModeResult(
            status="failed",
            code=code,
            error=error,
            output=cell.output if cell else [],
            attachments=cell.attachments if cell else [],
            notes=cell.notes if cell else [],
            calls=ledger.to_json(),
            calls_omitted=dict(omitted),
            telemetry=self.telemetry.to_json(),
        )

    def _refused(self, run_id: str, why: Refusal, ledger: Ledger | None = None) -> CodeModeResult:
        exits = self.driver.exits
        if why == "expired":
            self.telemetry.snapshots["expired"] += run_id in exits.parked
        if why not in ("busy", "unknown", "elsewhere"):
            exits.forget(run_id)
        match why:
            case "busy":
                text = "Another `wait` for this program is under way, or it is running."
                return self.failed("invalid_input", text)
            case "elsewhere":
                return self._elsewhere(run_id, ELSEWHERE)
            case "expired":
                text = "The program waited too long and is gone."
                return self.failed("snapshot_expired", text, ledger=ledger)
            case "aborted":
                return self.failed("aborted", str(Aborted()), ledger=ledger)
            case "lost":
                text = "The program is lost: the process that ran it died."
                return self.failed("runtime_unavailable", text, ledger=ledger)
            case "finished":
                text = f"The program {run_id[:80]!r} has ended."
                return self.failed("invalid_input", text, ledger=ledger)
            case "unknown":
                text = f"There is no program {run_id[:80]!r} to wait for."
                return self.failed("invalid_input", text + KEPT_THERE * self.parking.store.fleet)

    def _elsewhere(self, run_id: str, note: str) -> CodeModeResult:
        """Returns the result for a program that goes on, but not here."""
        return CodeModeResult(
            status="waiting",
            run_id=run_id,
            reason="pending_tools",
            notes=[note],
            telemetry=self.telemetry.to_json(),
        )

    def _deadline(self) -> float:
        return time.monotonic() + self.config.timeout_ms / 1000


def _time_to(yield_ms: float | None) -> float:
    return math.inf if yield_ms is None else time.monotonic() + yield_ms / 1000
