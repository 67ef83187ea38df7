"""Drives cells from step to step: starts them, resumes them, and hands them to their exit.

`batches` accepts what a step asks for, `replies` knows with what the next one can begin, and
`exits` parks and ends cells.
"""

import contextlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from clawmode.code_mode.batches import Batches, Turn
from clawmode.code_mode.bridge import refusal_text
from clawmode.code_mode.cell import CallGroup, Cell, CellSetup
from clawmode.code_mode.exits import UNREAD, Exits
from clawmode.code_mode.replies import Replies
from clawmode.code_mode.snapshots import other_build
from clawmode.code_mode.stores import End
from clawmode.code_mode.telemetry import Telemetry
from clawmode.exceptions import (
    Aborted,
    DeadlineExceeded,
    RuntimeUnavailable,
    SandboxError,
    SnapshotError,
    SnapshotRefused,
    StoreUnavailable,
)
from clawmode.sandbox.protocol import (
    Completion,
    Failure,
    Limits,
    Outcome,
    Resume,
    Start,
    Suspension,
)
from clawmode.sandbox.source import is_typescript
from clawmode.types import dataclass

if TYPE_CHECKING:
    from clawmode.code_mode.calls import Calls
    from clawmode.code_mode.config import CodeModeConfig
    from clawmode.code_mode.parking import Parking
    from clawmode.code_mode.state import ProgramState
    from clawmode.sandbox.pool import Pool

logger = logging.getLogger("clawmode")

MARGIN = 0.25
"""A cell is not resumed in the last seconds before the deadline of an `exec` or `wait`."""

NOT_ADMITTED = "The program never ran: {who} of `exec` did not answer within `timeoutMs`."
STATE = re.compile(r"\b(?:load|store)\b")
"""A program without these words gets nothing of what is stored, and pays nothing for it."""

EXITED = "exit() ended the program while {} of its calls were running: they were cancelled."
UNMADE = "exit() ended the program before {} of its calls were made: await calls before exit()."
UNANSWERED = "The time ran out while the program waited for an answer."


@dataclass(slots=True)
class Driver:
    """Drives the cells of one run.

    One task at a time drives a cell. While it does, the state of the cell is only here; the state
    of a parked cell is only in the store.

    Attributes:
        install: Returns what new cells start with.
        state: What programs have stored for each other; None if they cannot.
        parks: True if a cell that has to wait is parked. If False, the driver waits for people
            too, and ends the cell at its deadline.
    """

    pool: "Pool"
    calls: "Calls"
    parking: "Parking"
    config: "CodeModeConfig"
    telemetry: Telemetry
    install: Callable[[], Awaitable[CellSetup]]
    state: "ProgramState | None" = None
    parks: bool = True
    limits: Limits = field(init=False)
    replies: Replies = field(init=False)
    batches: Batches = field(init=False)
    exits: Exits = field(init=False)
    active: dict[str, Cell] = field(init=False)

    def __post_init__(self) -> None:
        self.limits = self.config.limits()
        self.replies = Replies(self.calls, self.parking, self.telemetry, self.parks)
        self.exits = Exits(
            self.pool, self.calls, self.parking, self.config, self.telemetry, self.replies
        )
        self.batches = Batches(self.pool, self.calls, self.parking, self.exits.watch, self.parks)
        self.active = self.exits.active

    @property
    def _alone(self) -> bool:
        return self.config.isolation == "process-per-cell"

    # ---- Starting and resuming ----

    @contextlib.contextmanager
    def admitting(self, cell: Cell, deadline: float, who: str) -> Iterator[None]:
        """Context in which hooks and approvers decide about a start; abort and deadline end it.

        Args:
            cell: The cell.
            deadline: The deadline of its `exec`, by `time.monotonic`.
            who: The hooks or approvers, for the error message.

        Raises:
            Aborted: The cell was aborted meanwhile.
            DeadlineExceeded: There was no decision in time.
        """
        left = self._last(deadline) - time.monotonic()
        with anyio.move_on_after(left) as cell.gate:
            self.active[cell.id] = cell
            try:
                yield
            finally:
                del self.active[cell.id]
        cancelled, cell.gate = cell.gate.cancelled_caught, None
        if cell.ended:
            raise Aborted
        if cancelled:
            raise DeadlineExceeded(NOT_ADMITTED.format(who=who))

    async def start(
        self, cell: Cell, deadline: float, until: float = float("inf")
    ) -> Completion | Failure | None:
        """Starts a cell, after a pending approval. Returns None if it waits and was parked.

        Args:
            cell: The cell.
            deadline: The end of this step, by `time.monotonic`.
            until: When a cell that waits is parked, if that is before the deadline.

        Raises:
            SandboxError: The cell failed to run, and has ended.
        """
        cell.move("driven")
        cell.tenancy = self.pool.cell(alone=self._alone)
        if cell.calls:  # the question whether it may start
            self._group(cell)
        return await self._drive(cell, deadline, until)

    async def resume(
        self, cell: Cell, deadline: float, until: float = float("inf")
    ) -> Completion | Failure | None:
        """Resumes a claimed cell once it has a reply. Returns None if it still waits.

        Raises:
            SnapshotError: The cell could not be read; if the store failed, the cell is unchanged.
            SandboxError: The cell failed to run, and has ended.
        """
        group = self.calls.group(cell)
        group.cell, taken = cell, False
        if (ahead := self.exits.parked.get(cell.id)) is not None:
            cell.set_clock(time.monotonic() * 1000 + ahead)
        try:
            # Checked before the cell is taken: a worker that rejects it later would lose it.
            await self.pool.ready()
            if cell.image and cell.image != (self.pool.image or cell.image):
                raise other_build(cell.build)
            if cell.uses_state and self.state is not None:
                await self.state.refresh()
            last = min(self._last(deadline), until)
            if not await self.replies.for_parked(cell, group, last):
                cell.forget_output()  # which the `wait` that takes the cell returns
                return None
            async with group.lock:
                frozen = await self.parking.take(cell)
                taken = cell.taken = True
                if group.ended:
                    raise Aborted  # by a task that knew only the parked cell
                cell.move("driven")
                self.calls.hand_over(group, cell)
        except StoreUnavailable as error:
            raise SnapshotError(UNREAD.format(error)) from None
        except (Aborted, SnapshotRefused) as error:
            if not (isinstance(error, SnapshotRefused) and error.kept):
                self.exits.forget(cell.id)
            raise
        finally:
            if not taken:
                with anyio.CancelScope(shield=True):
                    await self.exits.release(cell)
                cell.move("parked")
                group.cell = None
                self.calls.forget(group)
        self.telemetry.snapshots["restored"] += 1
        self.telemetry.snapshots["deleted"] += 1
        self.exits.parked.pop(cell.id, None)
        cell.tenancy = self.pool.cell(frozen, alone=self._alone)
        cell.inbox[:0] = cell.take_yields()
        return await self._drive(cell, deadline, until)

    def leave(self, cell: Cell) -> None:
        """Tells a cell that its `wait` was cancelled: it is parked at its next suspension."""
        cell.unheard = True
        if (group := self.calls.groups.get(cell.id)) is not None:
            group.changes.notify()

    # ---- Driving ----

    async def _drive(
        self, cell: Cell, deadline: float, until: float
    ) -> Completion | Failure | None:
        assert cell.tenancy is not None
        self.active[cell.id] = cell
        if cell.taken:
            self.exits.watch()
        end: End = "aborted"
        try:
            # Compiling machine code, once per machine, does not count towards the deadline.
            began = time.monotonic()
            await self.pool.prepare(cell.tenancy, cell.start)
            deadline += time.monotonic() - began
            outcome: Outcome | None = cell.outcome or Suspension()
            if cell.outcome is None and (cell.start is None or not cell.calls):
                outcome = await self._step(cell, deadline)
            while isinstance(outcome, Suspension):
                outcome = await self._go_on(cell, outcome, deadline, until)
            if outcome is None:
                await self.exits.park(cell, self._group(cell))
                return None
            if cell.outcome is None:
                outcome = cell.outcome = self._concluded(cell, outcome)
            end = "finished"
            silent = (cell.unheard or cell.stored) and not await self.exits.conclude(cell)
            return None if silent else outcome
        except SandboxError as error:
            end = "aborted" if cell.ended or isinstance(error, Aborted) else "finished"
            if failed := await self._failed(cell, error):
                raise failed from None
            return None
        finally:
            del self.active[cell.id]
            self.pool.drop(cell.tenancy)
            if cell.stored or cell.id in self.calls.groups:
                if cell.stage != "parked":
                    with anyio.CancelScope(shield=True):
                        await self.exits.end(cell, end)
            else:
                cell.move("ended")  # only this task knows of it

    async def _failed(self, cell: Cell, error: SandboxError) -> SandboxError | None:
        """Returns what is raised if a cell fails; None if that is not told before it is stored."""
        if isinstance(error, Aborted) or cell.ended:
            return error if isinstance(error, Aborted) else Aborted()
        if isinstance(error, DeadlineExceeded):
            error = DeadlineExceeded(self._with_limit(str(error)))
        cell.outcome = cell.outcome or Failure(error.code, str(error))
        return error if await self.exits.conclude(cell) else None

    async def _go_on(
        self, cell: Cell, idle: Suspension, deadline: float, until: float
    ) -> Outcome | None:
        """Accepts a batch, waits for replies, and resumes the cell. None if it must be parked.

        While this waits, the tasks of calls drive the cell on.
        """
        group = self._group(cell)
        await self.batches.accept(cell, idle)
        last = min(self._last(deadline), until)
        step, accept = partial(self._step, cell, deadline), partial(self.batches.accept, cell)
        turn = group.turn = Turn(cell, group, last, step, accept)
        self.calls.start(group)
        try:
            ready = await self.replies.for_driven(cell, group, last)
        finally:
            if turn.scope is not None:  # this task was cancelled
                turn.scope.cancel()
                with anyio.CancelScope(shield=True):
                    await turn.ended()
            group.turn = None
        if turn.over:
            return turn.take()
        if not ready and not self.parks:
            raise DeadlineExceeded(UNANSWERED)
        return await self._step(cell, deadline) if ready else None

    async def _step(self, cell: Cell, deadline: float) -> Outcome | None:
        """Starts the cell, or resumes it with its inbox. None if it got no worker in time.

        What the step stores is written before its calls are made or its result is returned.

        Raises:
            SnapshotError: What was stored is unreadable, or cannot be written; no call was made.
        """
        state, tenancy = self.state, cell.tenancy
        assert tenancy is not None
        if state is not None and cell.start is not None and STATE.search(cell.start.source):
            cell.uses_state = True
            await state.refresh()
        if state is None or not cell.uses_state:
            return await self._run_step(cell, deadline)
        tenancy.state = state.view
        outcome = await self._run_step(cell, deadline)
        # The values of a cell that was aborted may be deleted already.
        if outcome is None or not outcome.stored or cell.ended:
            return outcome
        try:
            before = await state.commit(outcome.stored)
        except SnapshotError as error:
            if isinstance(outcome, Failure):
                logger.error("cannot keep what the program %s has stored: %s", cell.id, error)
                return outcome
            cell.take_output(outcome.output)
            if isinstance(outcome, Suspension):
                self.calls.refuse_batch(cell, outcome.requests)
            raise
        if before is tenancy.sent_state:
            tenancy.sent_state = state.view  # the worker has it already
        return outcome

    async def _run_step(self, cell: Cell, deadline: float) -> Outcome | None:
        assert cell.tenancy is not None
        replies = cell.take_replies()
        if cell.start is None:
            # The guest's clock may lag behind: its timer must see a time that is not too early.
            now = cell.due if cell.due_at <= time.monotonic() else 0.0
            resume = Resume(replies, None, self.limits, cell.output_left, now=now, shift=cell.shift)
            try:
                return await self.pool.step(cell.tenancy, resume, deadline)
            except DeadlineExceeded:
                if cell.tenancy.frozen is None:
                    raise
                # The step did not run, and the cell is unchanged.
                cell.inbox[:0] = replies
                return None
        if cell.admission is not None and not cell.admission.ok:
            return Failure("invalid_input", refusal_text(cell.admission))
        cell.admission = None
        setup = await self.install()
        start, cell.start = cell.start, None
        start.limits, start.output_left, start.setup = self.limits, cell.output_left, setup.key
        outcome = await self.pool.step(cell.tenancy, start, deadline, setup.data)
        allowed = "typescript" in self.config.languages
        if allowed and isinstance(outcome, Failure) and is_typescript(start, outcome):
            return await self._step_typed(cell, start, setup, deadline) or outcome
        return outcome

    async def _step_typed(
        self, cell: Cell, start: Start, setup: CellSetup, deadline: float
    ) -> Outcome | None:
        """Starts a program that only TypeScript can read. None if TypeScript cannot either.

        Nothing of the program has run: it did not compile.
        """
        assert cell.tenancy is not None
        start, began = replace(start, language="typescript"), time.monotonic()
        try:
            await self.pool.prepare(cell.tenancy, start)
            deadline += time.monotonic() - began
            outcome = await self.pool.step(cell.tenancy, start, deadline, setup.data)
        except RuntimeUnavailable:
            return None
        wrong = isinstance(outcome, Failure) and outcome.code == "typescript_transform_failed"
        return None if wrong else outcome

    def _concluded(self, cell: Cell, outcome: Completion | Failure) -> Completion | Failure:
        cell.take_output(outcome.output)
        if isinstance(outcome, Completion) and cell.calls:
            cell.notes.append(EXITED.format(len(cell.calls)))
        if isinstance(outcome, Completion) and outcome.unmade:
            cell.notes.append(UNMADE.format(outcome.unmade))
        if isinstance(outcome, Failure):
            for request in outcome.requests:
                if request.method == "notify":
                    self.batches.notify(cell, request)
            self.calls.refuse_batch(cell, outcome.requests)
            cell.waiting = outcome.waiting
            if outcome.code == "timeout":
                return replace(outcome, error=self._with_limit(outcome.error))
        return outcome

    def _group(self, cell: Cell) -> CallGroup:
        """Returns the group of a cell that is driven here; most cells need none."""
        group = self.calls.group(cell)
        group.cell = cell
        return group

    # ---- Small parts ----

    def _last(self, deadline: float) -> float:
        """Returns the time after which a cell is not resumed, because too little is left."""
        return deadline - min(MARGIN, self.config.timeout_ms / 5000)

    def _with_limit(self, error: str) -> str:
        return f"{error} The limit is {self.config.timeout_ms / 1000:g} s."
