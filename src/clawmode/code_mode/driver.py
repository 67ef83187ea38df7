"""From one step of a cell to the next: batches accepted, replies awaited, parked, taken up."""

import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace

import anyio
import anyio.lowlevel

from clawmode.code_mode.bridge import refusal_text
from clawmode.code_mode.calls import Calls
from clawmode.code_mode.cell import GATE, CallGroup, Cell, Ledger
from clawmode.code_mode.config import CodeModeConfig
from clawmode.code_mode.parking import Parking, other_build
from clawmode.code_mode.stores import End, Progress
from clawmode.code_mode.telemetry import Telemetry
from clawmode.exceptions import (
    Aborted,
    DeadlineExceeded,
    RuntimeUnavailable,
    SandboxError,
    SnapshotError,
    SnapshotRefused,
    SnapshotTooLarge,
    StoreUnavailable,
)
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import (
    Completion,
    Failure,
    Limits,
    Outcome,
    Request,
    Resume,
    Settlement,
    Suspension,
)
from clawmode.types import JsonText

logger = logging.getLogger("clawmode")

SLICE = 0.005
"""Seconds of work for one cell after which others get their turn on the event loop."""

MAX_ANSWERS = 4 << 20
"""Bytes of answers about the catalog that are held for a cell; then it resumes with these first."""

QUEUED_CALLS = 128
"""Calls that may wait for their turn, beyond those that run."""

MARGIN = 0.25
"""Seconds before the deadline of an `exec` or `wait` from which a cell is not resumed any more."""

POLL = 0.1
"""How often the store is asked about calls that another process makes."""

WATCH = 0.25
"""How often the store is asked whether cells were aborted that run here, or whose calls do."""

SWEEP = 30.0
"""How often cells that have expired are dropped, at least, while calls of parked cells run here."""

MAX_LEDGERS = 256

NOT_ADMITTED = (
    "The program never ran: {who} of `exec` did not answer before its deadline (`timeoutMs`)."
)
LOOKUPS = ("search", "describe", "api")

UNANSWERED = "The time ran out while the program waited for an answer."


@dataclass(frozen=True, slots=True)
class CellSetup:
    """What cells start with beyond the prelude: the catalog and namespaces, and its key."""

    key: bytes = b""
    data: JsonText = b""


class _Pace:
    """Divides long work into slices, between which the event loop serves others."""

    def __init__(self) -> None:
        self._end = time.monotonic() + SLICE

    async def keep(self) -> None:
        """Lets others go first, if the slice is over."""
        if time.monotonic() >= self._end:
            await anyio.lowlevel.checkpoint()
            self._end = time.monotonic() + SLICE


@dataclass(slots=True)
class Driver:
    """Drives the cells of one run.

    A cell is driven by one task at a time. While it is, its state is here alone; parked, it is the
    store's.

    Attributes:
        active: The cells that are driven now, and those whose hooks are still asked.
        parked: Cells that this object has parked, and that have not ended as far as it knows; with
            the `due` and `due_at` of each, which hold even if the wall clock is set meanwhile.
        ledgers: What the cells that it parked have done, for whoever asks after their end. Bounded.
        parks: Whether a cell that has to wait is parked. Else people are waited for too, and at the
            deadline it ends.
    """

    pool: Pool
    calls: Calls
    parking: Parking
    config: CodeModeConfig
    telemetry: Telemetry
    install: Callable[[], Awaitable[CellSetup]]
    searching: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))
    active: dict[str, Cell] = field(default_factory=dict[str, Cell])
    parked: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    ledgers: OrderedDict[str, Ledger] = field(default_factory=OrderedDict[str, Ledger])
    watching: bool = False
    parks: bool = True

    # ---- Ways in ----

    @contextlib.contextmanager
    def admitting(self, cell: Cell, deadline: float, who: str) -> Iterator[None]:
        """Around the question whether a cell may start: an abort and the deadline end it.

        Args:
            cell: The cell.
            deadline: Of its `exec`, by `time.monotonic`.
            who: Who is asked, for the error.

        Raises:
            Aborted: The cell was aborted meanwhile.
            DeadlineExceeded: There was no answer in time.
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

    async def start(self, cell: Cell, deadline: float) -> Completion | Failure | None:
        """Starts a cell, as soon as its gate is open. None: it waits, and is parked.

        Raises:
            SandboxError: It could not be run to its end, and is gone.
        """
        group = self.calls.group(cell)
        group.claimed, group.cell, cell.tenancy = True, cell, self.pool.cell()
        return await self._drive(cell, group, deadline)

    async def resume(self, cell: Cell, deadline: float) -> Completion | Failure | None:
        """Lets a claimed cell go on, once there is something to go on with. None: it waits still.

        Raises:
            SnapshotError: It could not be read; if that was the store's fault, it is as it was.
            SandboxError: It could not be run to its end, and is gone.
        """
        group = self.calls.group(cell)
        group.claimed, taken = True, False
        due, due_at = self.parked.get(cell.id, (cell.due, cell.due_at))
        if due == cell.due:
            cell.due_at = due_at
        try:
            await self._check_image(cell)
            if not await self._arrival(cell, group, deadline):
                return None
            async with group.lock:
                frozen = await self.parking.take(cell)
                taken, cell.taken, group.cell = True, True, cell
                for settled, unknown in group.unsaved.values():
                    cell.receive(settled, unknown=unknown)
                group.unsaved.clear()
        except StoreUnavailable as error:
            raise SnapshotError(str(error)) from None
        except (Aborted, SnapshotRefused) as error:
            if not (isinstance(error, SnapshotRefused) and error.kept):
                self.forget(cell.id)
            raise
        finally:
            if not taken:
                with anyio.CancelScope(shield=True):
                    await self._release(cell)
                group.claimed = False
                self.calls.forget(group)
        self.telemetry.snapshots["restored"] += 1
        self.telemetry.snapshots["deleted"] += 1
        self.parked.pop(cell.id, None)
        cell.tenancy = self.pool.cell(frozen)
        cell.inbox[:0] = cell.take_yields()
        return await self._drive(cell, group, deadline)

    async def _check_image(self, cell: Cell) -> None:
        """Before the cell is taken: if a worker refuses it after that, it is lost.

        Raises:
            SnapshotOfOtherBuild: Its snapshot is no difference to the image of our workers.
        """
        await self.pool.ready()
        if cell.image and cell.image != (self.pool.image or cell.image):
            raise other_build(cell.build)

    def leave(self, cell: Cell) -> None:
        """The caller of `resume` is gone: the cell is parked as soon as it is suspended."""
        cell.unheard = True
        if (group := self.calls.groups.get(cell.id)) is not None:
            group.changes.notify()

    async def _release(self, cell: Cell) -> None:
        try:
            await self.parking.release(cell.id)
        except (StoreUnavailable, Aborted) as error:
            logger.error("the claim of %s could not be released: %s", cell.id, error)

    async def abort(self, run_id: str) -> bool:
        """Ends a cell, driven or parked, here or in another process. False: there is none.

        Raises:
            StoreUnavailable: Whether there is one cannot be found out.
            AbortUnconfirmed: The process that runs it has not confirmed its end in time.
        """
        cell = self.active.get(run_id)
        if cell is not None:
            await self._abort_active(cell)
            return True
        ended = await self.parking.abort(run_id)
        if ended:
            self.telemetry.snapshots["deleted"] += 1
            self.forget(run_id)
        return ended

    async def abort_all(self) -> None:
        """Ends all cells that are driven."""
        for cell in list(self.active.values()):
            await self._abort_active(cell)

    async def _abort_active(self, cell: Cell) -> None:
        cell.ended = True
        if cell.gate is not None:
            cell.gate.cancel()
            return
        assert cell.tenancy is not None
        self.calls.end(cell.id)
        await self.pool.abort(cell.tenancy)

    def forget(self, run_id: str) -> None:
        """A parked cell is gone: what still runs for it is of no use any more."""
        self.parked.pop(run_id, None)
        self.calls.end(run_id)

    # ---- Driving ----

    async def _drive(
        self, cell: Cell, group: CallGroup, deadline: float
    ) -> Completion | Failure | None:
        assert cell.tenancy is not None
        self.active[cell.id] = cell
        if cell.taken:
            self._watch()
        end: End = "aborted"
        try:
            # The one thing that a cell's deadline does not cover: it happens once per machine.
            began = time.monotonic()
            await self.pool.prepare(cell.tenancy, cell.start)
            deadline += time.monotonic() - began
            outcome: Outcome | None = cell.outcome or Suspension()
            if cell.outcome is None and (cell.start is None or not cell.calls):
                outcome = await self._step(cell, deadline)
            while isinstance(outcome, Suspension):
                await self._accept(cell, group, outcome)
                if not await self._replies(cell, group, deadline):
                    if not self.parks:
                        raise DeadlineExceeded(UNANSWERED)
                    outcome = None
                    break
                outcome = await self._step(cell, deadline)
            if outcome is None:
                await self._park(cell, group)
                return None
            if cell.outcome is None:
                outcome = cell.outcome = self._concluded(cell, outcome)
            end = "finished"
            kept = cell.unheard and await self._keep(cell, group)
            return None if kept else outcome
        except SandboxError as error:
            end = "aborted" if cell.ended or isinstance(error, Aborted) else "finished"
            if cell.ended and not isinstance(error, Aborted):
                raise Aborted from None
            if isinstance(error, DeadlineExceeded):
                raise DeadlineExceeded(self._with_limit(str(error))) from None
            raise
        finally:
            del self.active[cell.id]
            self.pool.drop(cell.tenancy)
            if group.cell is cell:
                with anyio.CancelScope(shield=True):
                    await self._end(cell, end)

    async def _step(self, cell: Cell, deadline: float) -> Outcome | None:
        """Starts the cell, or resumes it with its inbox. None: it got no worker in time."""
        assert cell.tenancy is not None
        replies = cell.take_replies()
        if cell.start is None:
            # The timer that is due must find it so, whatever the clock of the guest says.
            now = cell.due if cell.due_at <= time.monotonic() else 0.0
            resume = Resume(replies, None, self._limits(), cell.output_left, now=now)
            try:
                return await self.pool.step(cell.tenancy, resume, deadline)
            except DeadlineExceeded:
                if cell.tenancy.frozen is None:
                    raise
                # It did not run, and is as it was.
                cell.inbox[:0] = replies
                return None
        denied = next((reply for reply in replies if reply.id == GATE and not reply.ok), None)
        if denied is not None:
            return Failure("invalid_input", refusal_text(denied))
        setup = await self.install()
        start = replace(
            cell.start,
            limits=self._limits(),
            output_left=cell.output_left,
            setup=setup.key,
        )
        cell.start = None
        return await self.pool.step(cell.tenancy, start, deadline, setup.data)

    def _concluded(self, cell: Cell, outcome: Completion | Failure) -> Completion | Failure:
        cell.take_output(outcome.output)
        if isinstance(outcome, Failure):
            self.calls.refuse_batch(cell, outcome.requests)
            if outcome.code == "timeout":
                return replace(outcome, error=self._with_limit(outcome.error))
        return outcome

    async def _keep(self, cell: Cell, group: CallGroup) -> bool:
        """Parks the outcome of a cell that nobody hears. False: it could not be stored."""
        self._end_calls(cell)
        cell.calls.clear()
        cell.inbox.clear()
        try:
            await self._park(cell, group)
        except Aborted:
            raise
        except SandboxError as error:
            logger.error("the result of %s could not be stored: %s", cell.id, error)
            return False
        return True

    async def _end(self, cell: Cell, end: End) -> None:
        """The cell is over: what it still waits for is cancelled, and what comes is dropped."""
        cell.ended = True
        self.ledgers.pop(cell.id, None)
        self._end_calls(cell)
        if cell.stored:
            try:
                if end == "aborted":
                    await self.parking.give_up(cell.id)
                else:
                    await self.parking.end(cell.id, end)
            except StoreUnavailable as error:
                logger.error("the end of %s could not be noted: %s", cell.id, error)

    def _end_calls(self, cell: Cell) -> None:
        self.calls.end(cell.id)
        for call in cell.calls.values():
            if call.owner:
                call.entry.state = "unknown"

    # ---- Batches ----

    async def _accept(self, cell: Cell, group: CallGroup, idle: Suspension) -> None:
        """Takes a batch of requests: answers what can be answered at once, starts the rest.

        Raises:
            SnapshotTooLarge: It could not be parked with them; none of it was started.
        """
        cell.take_output(idle.output)
        cell.set_timers(idle.timers, idle.due)
        self._check_ids(cell, idle.requests)
        if idle.requests and not self.calls.bridge.catalog.names_indexed:
            await anyio.to_thread.run_sync(self.calls.bridge.catalog.index_names)
        try:
            await self._check_parking(cell, idle)
            if cell.ended:
                raise Aborted
        except (Aborted, SnapshotTooLarge):
            self.calls.refuse_batch(cell, idle.requests)
            raise
        pace = _Pace()
        for request in idle.requests:
            if request.method == "yield":
                cell.yields.append(request.id)
            elif request.method in LOOKUPS and self.calls.bridge.absent_server(request) is None:
                cell.lookups.append(request)
            else:
                self.calls.open(cell, request)
                await pace.keep()
        if cell.ended:
            raise Aborted
        self.calls.start(group)

    async def _answer_lookups(self, cell: Cell, last: float) -> None:
        """Answers what a cell asked about the catalog, until `last` at most.

        The answers are handed over in parts if they are large, so that no cell makes us hold more.
        """
        pace, room = _Pace(), MAX_ANSWERS
        while cell.lookups and room > 0 and not cell.ended:
            reply = await self._look_up(cell.lookups[0], last)
            if reply is None:
                return
            cell.lookups.popleft()
            cell.inbox.append(reply)
            room -= len(reply.value)
            await pace.keep()

    async def _look_up(self, request: Request, last: float) -> Settlement | None:
        """The answer to one look-up. None: it would come too late."""
        left, bridge = last - time.monotonic(), self.calls.bridge
        if left <= 0:
            return None
        if request.method != "search":
            self.telemetry.describes += 1
            return bridge.look_up(request)
        # The first search of a run reads the whole catalog: in a thread, which may take longer than
        # the program has.
        with anyio.move_on_after(left):
            reply = await anyio.to_thread.run_sync(
                bridge.look_up, request, limiter=self.searching, abandon_on_cancel=True
            )
            self.telemetry.searches += 1
            return reply
        return None

    def _check_ids(self, cell: Cell, requests: tuple[Request, ...]) -> None:
        """No honest worker repeats an id, and an answer to one must not reach another call."""
        ids = [request.id for request in requests]
        if len(set(ids)) < len(ids) or any(
            number <= GATE or number in cell.calls for number in ids
        ):
            raise RuntimeUnavailable("The worker sent requests that no program makes.")

    async def _check_parking(self, cell: Cell, idle: Suspension) -> None:
        """Whether the cell could be parked: looked at before anything of a batch has an effect."""
        if not self.parks:
            return
        assert cell.tenancy is not None
        methods = {request.method for request in idle.requests}
        if "yield" in methods:
            await self.parking.check_room()
        # The bound is cheap and rarely over the limit; to know for sure, the cell is frozen.
        over = idle.frozen_at_most > self.config.max_snapshot_bytes
        if over and methods & {"call", "namespace"}:
            self.parking.check_size(await self.pool.freeze(cell.tenancy))

    # ---- Waiting ----

    async def _replies(self, cell: Cell, group: CallGroup, deadline: float) -> bool:
        """Whether there is something to resume a driven cell with; if not, it is to be parked."""
        last = self._last(deadline)
        await self._answer_lookups(cell, last)
        while True:
            version, now = group.changes.count, time.monotonic()
            if cell.ended:
                raise Aborted
            foreign = await self._fetch(cell)
            if now < last and (cell.inbox or cell.due_at <= now) and not cell.unheard:
                return True
            # A person holds no `exec` open, and neither does a timer that is due too late.
            hopeless = self.parks and cell.waits_for_people() and cell.due_at >= last
            if cell.yields or now >= last or hopeless or cell.unheard:
                return False
            until = min(cell.due_at, last, now + POLL if foreign else last)
            await group.changed(version, until - now)

    async def _fetch(self, cell: Cell) -> bool:
        """Brings answers to calls that other processes make; whether there are such calls."""
        if not any(call.owner for call in cell.calls.values()):
            return False
        replies = await self.parking.store.drain(cell.id)
        if replies is None:
            raise Aborted
        for sealed in replies:
            self.parking.deliver(cell, sealed)
        return await self.calls.adopt(cell)

    async def _arrival(self, cell: Cell, group: CallGroup, deadline: float) -> bool:
        """Whether there is something to go on with for a cell that is parked, before the deadline.

        There is nothing better to do: a person is waited for too.
        """
        last = self._last(deadline)
        while True:
            version, now = group.changes.count, time.monotonic()
            progress = await self.parking.store.progress(cell.id)
            if progress is None:
                raise Aborted
            _update(cell, progress)
            if cell.unheard:
                return False
            if cell.outcome is not None:
                return True
            foreign = await self.calls.adopt(cell)
            prompt = cell.yields or cell.lookups or cell.due_at <= now
            if prompt or progress.replies or group.unsaved:
                return True
            if not cell.calls and not cell.due:
                # Nothing that it could wait for: the store's file was meddled with.
                await self.parking.end(cell.id, "finished")
                raise SnapshotRefused("the snapshot has been altered: it waits for nothing")
            if now >= last:
                return False
            until = min(cell.due_at, last, now + POLL if foreign else last)
            await group.changed(version, until - now)

    async def _park(self, cell: Cell, group: CallGroup) -> None:
        assert cell.tenancy is not None
        unborn_or_over = cell.start is not None or cell.outcome is not None
        frozen = None if unborn_or_over else await self.pool.freeze(cell.tenancy)
        async with group.lock:
            if not cell.ended:
                await self._gather(cell)
                await self.parking.park(cell, frozen)
            if cell.ended:
                raise Aborted
            group.claimed, group.cell = False, None
        if cell.unheard:
            cell.output = []  # it is in the store
        self.telemetry.snapshots["created"] += 1
        self.parked[cell.id] = (cell.due, cell.due_at)
        self.ledgers[cell.id] = cell.ledger
        if len(self.ledgers) > MAX_LEDGERS:
            self.ledgers.popitem(last=False)
        self.calls.forget(group)
        if group.calls:
            self._watch()

    async def _gather(self, cell: Cell) -> None:
        """Collects the answers that a cell is parked with, as far as the inbox has room for them.

        Some came while it was being frozen, some from other processes since they were last fetched.
        """
        if any(call.owner for call in cell.calls.values()):
            for sealed in await self.parking.store.drain(cell.id) or ():
                self.parking.deliver(cell, sealed)
        self.calls.fit_inbox(cell)

    # ---- Ended elsewhere ----

    def _watch(self) -> None:
        if not self.watching and self.calls.tasks is not None:
            self.watching = True
            self.calls.tasks.start_soon(self._watch_store)

    async def _watch_store(self) -> None:
        """Ends cells and calls here that another process has aborted, and those that expired."""
        every = min(self.config.snapshot_ttl_seconds / 4, SWEEP)
        sweep = time.monotonic() + every
        while watched := self._watched():
            await anyio.sleep(WATCH)
            try:
                if time.monotonic() >= sweep:
                    sweep = time.monotonic() + every
                    await self.parking.store.room(1)  # drops what has expired
                for run_id in await self.parking.store.gone(watched):
                    await self._end_here(run_id)
            except StoreUnavailable as error:
                logger.warning("whether programs were aborted is not known: %s", error)
        self.watching = False

    def _watched(self) -> list[str]:
        """The cells that others can end: parked ones whose calls run here, and resumed ones."""
        parked = [run_id for run_id, group in self.calls.groups.items() if not group.claimed]
        return [*parked, *(cell.id for cell in self.active.values() if cell.taken)]

    async def _end_here(self, run_id: str) -> None:
        cell, group = self.active.get(run_id), self.calls.groups.get(run_id)
        if cell is not None and cell.taken:
            await self._abort_active(cell)
        elif group is not None and not group.claimed:
            self.forget(run_id)
            await self.parking.give_up(run_id)

    # ---- Small parts ----

    def _last(self, deadline: float) -> float:
        """From when on a cell is not resumed any more: it would have no time left."""
        return deadline - min(MARGIN, self.config.timeout_ms / 5000)

    def _with_limit(self, error: str) -> str:
        return f"{error} The limit is {self.config.timeout_ms / 1000:g} s."

    def _limits(self) -> Limits:
        config = self.config
        return Limits(
            memory_bytes=config.memory_limit_bytes,
            max_calls=config.max_pending_tool_calls + QUEUED_CALLS,
            snapshot_bytes=config.max_snapshot_bytes,
        )


def _update(cell: Cell, progress: Progress) -> None:
    """Brings a cell that is parked up to what has become of its calls."""
    known = {call.id: call for call in progress.calls}
    for number in [number for number in cell.calls if number not in known]:
        del cell.calls[number]
    for call in cell.calls.values():
        if call.owner:
            call.owner, call.entry.state = known[call.id].owner, known[call.id].state
