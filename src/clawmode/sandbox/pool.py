"""Parent side: decides which worker runs which cell, and when.

A cell is warm in the worker that ran it last, or frozen in this process, or gone. It stays warm
while its calls are settled, and the next cell gets another worker: a fork of the template takes
milliseconds (`template`). Memory limits the number of workers. Beyond that number, or if a cell has
waited for a second, a warm cell is frozen (about 1 ms) to free its worker. A worker never runs one
cell's code while it holds another's heap. When every worker computes, cells queue. Deadlines
include the queue.
"""

import logging
import os
import sys
import time
from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING, Literal

import anyio
from anyio.abc import AsyncResource, TaskGroup

from clawmode.exceptions import (
    Aborted,
    DeadlineExceeded,
    NotOpen,
    RuntimeUnavailable,
    SandboxError,
    SnapshotTooLarge,
    UnsupportedPlatform,
)
from clawmode.sandbox import capacity, packing, template
from clawmode.sandbox.process import WorkerProcess, loaded
from clawmode.sandbox.protocol import (
    Completion,
    Failure,
    Freeze,
    FrozenCell,
    Outcome,
    Part,
    Resume,
    Start,
    State,
    Suspension,
)
from clawmode.sandbox.template import Template
from clawmode.tasks import Lifetime, Notifier
from clawmode.types import JsonText, dataclass

if TYPE_CHECKING:
    from clawmode.sandbox.lockdown import Mode

logger = logging.getLogger("clawmode.sandbox")

GROW_AFTER = 0.02
"""Seconds that the queue may stand still before the pool grows."""

SURPLUS_SECONDS = 2.0
"""Seconds that a worker beyond the pool's size may idle."""

ACTIVE_SECONDS = 1.0
"""Seconds that a cell may wait for its calls in a worker beyond the pool's size. Then it is frozen,
as a frozen cell takes a hundredth of the memory."""

MAX_UNPACKED = 8 << 20
"""Bytes of evicted cells that are kept without compressing them."""

RECYCLE_AFTER = 5000
"""Cells after which a worker is replaced, even if it is healthy."""

FREEZE_SECONDS = 10.0
COMING_PATIENCE = 0.1
"""Seconds for which an eviction or a start counts as a worker that is about to be free; 1 ms and
5 ms are usual."""

BOOT_PATIENCE = 5.0
"""Seconds that a worker with its machine code may take to become ready: 0.2 s is usual, 2 s on a
machine with ten times its load. A second attempt must fit into the default deadline."""

BOOT_ATTEMPTS = 3
END_SECONDS = 2.0

CLOSED = "the sandbox is closed"
LOST = "The program is lost: the worker that held it died."


class Tenancy:
    """The stay of one cell in a pool, from its start to its end. `Pool.cell` creates it.

    Attributes:
        worker: The worker in which the cell is warm.
        frozen: The cell's memory, while it is not warm.
        moving: Set when the freeze in progress has ended, successfully or not.
        equipping: Cancels the preparation of the cell's worker.
        computing: The worker that runs a step of the cell now.
        waiter: The cell's place in the queue.
        aborted: True if the cell may not run again.
        failed: Why the cell could not be frozen.
        state: What the cell can load, for its next step; None if it loads nothing.
        sent_state: The state that the worker of the cell has.
        alone: True if the cell gets a worker that has run no cell, and that runs none after it.
    """

    __slots__ = (
        "aborted", "alone", "computing", "equipping", "failed", "frozen", "moving", "sent_state",
        "state", "waiter", "worker",
    )  # fmt: skip

    def __init__(self, frozen: FrozenCell | None = None, *, alone: bool = False) -> None:
        self.alone = alone
        self.worker: WorkerProcess | None = None
        self.frozen = frozen
        self.moving: anyio.Event | None = None
        self.computing: WorkerProcess | None = None
        self.waiter: Waiter | None = None
        self.equipping: anyio.CancelScope | None = None
        self.aborted = False
        self.failed = ""
        self.state: State | None = None
        self.sent_state: State | None = None

    @property
    def pid(self) -> int:
        """The process of the worker that holds or runs the cell; 0 if there is none."""
        worker = self.computing or self.worker
        return worker.pid if worker is not None and worker.booted.done() else 0


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker, for operators.

    Attributes:
        state: `starting`, `idle`, `holding` a cell that waits for its calls, or `busy`.
        cells: The number of cells that the worker has started or restored.
    """

    pid: int
    state: Literal["starting", "idle", "holding", "busy"]
    cells: int


@dataclass(slots=True)
class Waiter:
    """A cell in the queue."""

    alone: bool
    turn: Notifier = field(default_factory=Notifier)
    worker: WorkerProcess | None = None


class Pool(AsyncResource):
    """Worker processes, shared by any number of cells.

    Opened with `async with`, or with `start` and `aclose`, which may be called in different tasks.

    Args:
        size: Workers that are kept. Default: one per core, at least two.
        max_size: Workers that there may be while more programs than `size` are active. Default:
            as many as fit into a part of the free memory, at most 64; four times `size` where
            workers cannot be forked.
        lockdown: Whether workers give up files and network: as far as the kernel offers it
            (`best-effort`), or completely, else no worker starts (`required`).
    """

    def __init__(
        self,
        *,
        size: int | None = None,
        max_size: int | None = None,
        lockdown: "Mode" = "best-effort",
    ) -> None:
        self.size = size or max(2, os.cpu_count() or 1)
        if not max_size:
            max_size = capacity.workers_that_fit() if template.can_fork() else 4 * self.size
        self.max_size = max(max_size, self.size)
        self._lockdown: Mode = lockdown
        self._workers: dict[WorkerProcess, Tenancy | None] = {}
        self._idle: dict[WorkerProcess, None] = {}  # in the order in which they became idle
        # Workers that will be empty soon, because they start or their cell is being evicted, with
        # the time at which that began.
        self._coming: dict[WorkerProcess, float] = {}
        self._queue: deque[Waiter] = deque()
        self._unpacked: dict[Tenancy, int] = {}  # bytes of frozen cells that are not compressed
        self._dying: list[WorkerProcess] = []
        # A freeze must continue when the cell that needs the worker has given up waiting.
        self._life = Lifetime("clawmode-pool", self._end)
        self._image = b""
        self._prepared: set[Part] = set()
        self._moved = time.monotonic()
        self._closed = False
        self._trimming = self._growing = False
        self._template: Template | None = None

    # ---- Open and close ----

    async def start(self) -> "Pool":
        """Starts the first worker without waiting for it. May be called once.

        Raises:
            UnsupportedPlatform: Workers cannot run on this operating system.
        """
        if sys.platform == "win32":  # no process groups, no inherited pipes, no alarms
            raise UnsupportedPlatform("The sandbox")
        tasks = await self._life.open()
        self._template = template.acquire()
        try:
            # Only one: several that start at once would delay the first cell.
            self._release(self._spawn())
        except RuntimeUnavailable as error:
            logger.error("%s", error)
        tasks.start_soon(self._warm_up_later)
        return self

    async def aclose(self) -> None:
        """Ends all workers. Cells that compute or queue fail. Idempotent; callable in any task."""
        await self._life.close()

    async def __aenter__(self) -> "Pool":
        return await self.start()

    async def _warm_up_later(self) -> None:
        await self.ready()
        if not self._closed:
            self._warm_up()

    def _warm_up(self) -> None:
        while len(self._workers) < self.size:
            try:
                self._release(self._spawn())
            except RuntimeUnavailable as error:
                logger.error("%s", error)
                return

    async def ready(self) -> None:
        """Waits until a worker has booted or failed to. Raises nothing: the next step does."""
        while not self._closed and self._workers:
            if any(worker.booted.done() for worker in self._workers):
                return
            await anyio.sleep(0.002)  # the boot threads set no event of this loop

    async def _end(self, tasks: TaskGroup) -> None:
        self._closed = True
        for worker in list(self._workers):
            self._discard(worker)
        for waiter in self._queue:
            waiter.turn.notify()
        ending = self._template
        if ending is not None and not template.release(ending):
            ending = None  # other pools use it
        try:
            with anyio.move_on_after(END_SECONDS):
                # The kernel sets no event of ours. The template ends after it has reaped workers.
                while self._reap() or (ending is not None and not ending.ended()):  # noqa: ASYNC110
                    await anyio.sleep(0.002)
        finally:
            tasks.cancel_scope.cancel()

    @property
    def image(self) -> bytes:
        """The hash of the image that cells start from; empty until a worker is ready."""
        booted = (worker.booted for worker in self._workers if worker.booted.done())
        return self._image or next((each.result() for each in booted if not each.exception()), b"")

    def lockdown_notes(self) -> list[str]:
        """Returns the parts of the lockdown that this system does not offer."""
        return list(dict.fromkeys(note for worker in self._workers for note in worker.notes))

    def views(self) -> list[WorkerView]:
        """Returns the workers, in the order of their start."""
        found: list[WorkerView] = []
        for worker, cell in self._workers.items():
            if not worker.booted.done():
                found.append(WorkerView(0, "starting", worker.cells))
            elif worker not in self._idle:
                found.append(WorkerView(worker.pid, "busy", worker.cells))
            else:
                state = "idle" if cell is None else "holding"
                found.append(WorkerView(worker.pid, state, worker.cells))
        return found

    @property
    def queued(self) -> int:
        """The number of cells that wait for a worker."""
        return len(self._queue)

    # ---- Cells ----

    def cell(self, frozen: FrozenCell | None = None, *, alone: bool = False) -> Tenancy:
        """Returns the tenancy of a new cell, or of a frozen one.

        Args:
            frozen: The memory of the cell, if it has started.
            alone: Whether the cell shares no worker process with other cells, before or after it.
        """
        return Tenancy(frozen, alone=alone)

    async def prepare(self, cell: Tenancy, start: Start | None) -> None:
        """Waits until the machine code that a cell needs is loaded, or compiled on a new machine.

        Args:
            cell: The cell. An abort of it ends the wait.
            start: The message that the cell will start with; None if the cell has started already.

        Raises:
            Aborted: `abort` was called.
            RuntimeUnavailable: The code cannot be compiled, or the pool was closed.
        """
        needed: tuple[Part, ...] = ("quickjs", *(start.needs() if start is not None else ()))
        for part in needed:
            if part in self._prepared:
                continue
            with anyio.CancelScope() as cell.equipping:
                await loaded(part, lambda: self._check(cell))
                self._prepared.add(part)
            cell.equipping = None
            self._check(cell)

    async def step(
        self, cell: Tenancy, message: Start | Resume, deadline: float, setup: JsonText = b""
    ) -> Outcome:
        """Runs a cell until it is idle, has completed or has failed.

        Args:
            cell: A cell of which no step runs.
            message: `Start` once, then `Resume`. Budget and snapshot are filled in here.
            deadline: By `time.monotonic`; the time in the queue counts.
            setup: The setup whose key is `Start.setup`; sent to workers that do not have it.

        Raises:
            DeadlineExceeded: The deadline passed in the queue, or the worker hung.
            Aborted: `abort` was called.
            RuntimeUnavailable: No worker can be started, or the worker died.
            SnapshotTooLarge: The cell was to be frozen for another, and was too large.
        """
        worker = await self._acquire(cell, deadline, resuming=isinstance(message, Resume))
        try:
            answer = await self._ask(worker, cell, message, deadline, setup)
        except BaseException:
            self._let_go(worker)
            raise
        if worker in self._workers:
            suspended = isinstance(answer, Suspension)
            self._workers[worker] = cell if suspended else None
            cell.worker = worker if suspended else None
        worn = worker.cells >= RECYCLE_AFTER and not isinstance(answer, Suspension)
        if worn or (isinstance(answer, Failure) and answer.crashed):
            self._discard(worker)
        self._release(worker)
        return answer

    async def _ask(
        self,
        worker: WorkerProcess,
        cell: Tenancy,
        message: Start | Resume,
        deadline: float,
        setup: JsonText,
    ) -> Outcome:
        if isinstance(message, Start) or cell.frozen is not None:
            worker.cells += 1
        if isinstance(message, Start):
            if not worker.is_equipped(message):
                with anyio.CancelScope() as cell.equipping:
                    for part in message.needs():
                        await worker.provide(part, deadline)
                    if message.setup:
                        await worker.install(message.setup, setup, deadline)
                cell.equipping = None
        if cell.aborted:
            raise Aborted
        frozen, cell.frozen, cell.computing = cell.frozen, None, worker
        self._unpacked.pop(cell, None)
        try:
            budget = max(deadline - time.monotonic(), 0.0)
            moved = frozen is not None or isinstance(message, Start)
            state = cell.state if moved or cell.state is not cell.sent_state else None
            cell.sent_state = cell.state
            message.budget, message.state = budget, state
            if isinstance(message, Resume):
                message.frozen = frozen
            answer = await worker.ask(message, deadline)
        finally:
            cell.computing = None
        assert isinstance(answer, Completion | Suspension | Failure)
        return answer

    async def freeze(self, cell: Tenancy) -> FrozenCell:
        """Returns the cell's memory, to be stored elsewhere. The cell can still be resumed here.

        Raises:
            RuntimeUnavailable: The cell was lost with its worker.
            SnapshotTooLarge: Freezing the cell takes more memory than a worker may use.
        """
        if cell.worker is not None:
            self._evict(cell.worker, packed=True)
        if cell.moving is not None:
            await cell.moving.wait()
        if cell.frozen is None:
            raise _lost(cell)
        if self._unpacked.pop(cell, None):
            cell.frozen = await anyio.to_thread.run_sync(packing.packed, cell.frozen)
        return cell.frozen

    async def copy(self, cell: Tenancy) -> FrozenCell:
        """Returns the cell's memory like `freeze`, but the cell stays warm in its worker.

        Raises:
            RuntimeUnavailable: The cell was lost with its worker.
            SnapshotTooLarge: Freezing the cell takes more memory than a worker may use.
        """
        worker = cell.worker
        if worker is None or worker not in self._idle:
            return await self.freeze(cell)
        del self._idle[worker]
        cell.worker = None
        try:
            frozen = await worker.ask(Freeze(keep=True), time.monotonic() + FREEZE_SECONDS)
        except BaseException:
            self._let_go(worker)
            raise
        if isinstance(frozen, Failure):
            cell.failed = frozen.error
        if not isinstance(frozen, FrozenCell) or worker not in self._workers:
            self._let_go(worker)
            raise _lost(cell)
        cell.worker = worker
        self._release(worker)
        return frozen

    async def abort(self, cell: Tenancy) -> None:
        """Stops a cell within 20 ms, wherever it is. A later step raises `Aborted`.

        A program that computes answers with its output. A worker that does not answer within
        `process.ABORT_GRACE` is killed.
        """
        cell.aborted = True
        if cell.waiter is not None:
            cell.waiter.turn.notify()
        if cell.moving is not None:
            cell.moving.set()
        if cell.equipping is not None:
            cell.equipping.cancel()
        if cell.computing is not None:
            await cell.computing.abort()

    def drop(self, cell: Tenancy) -> None:
        """Forgets a cell that is not computing. Idempotent."""
        worker, cell.worker, cell.frozen = cell.worker, None, None
        self._unpacked.pop(cell, None)
        if worker is not None:
            self._workers[worker] = None
            if self._idle.pop(worker, worker) is None:
                self._release(worker)

    # ---- Workers ----

    def _spawn(self) -> WorkerProcess:
        worker = WorkerProcess(self._lockdown, self._template)
        self._workers[worker] = None
        return worker

    def _let_go(self, worker: WorkerProcess) -> None:
        """Releases a worker whose step raised, if the worker is still alive."""
        if worker.alive and worker in self._workers:
            self._workers[worker] = None
            self._release(worker)
        else:
            self._discard(worker)

    def _discard(self, worker: WorkerProcess) -> None:
        """Kills a worker and, unless the pool is closed, starts a replacement."""
        worker.kill()
        self._idle.pop(worker, None)
        if worker not in self._workers:
            return
        cell = self._workers.pop(worker)
        if cell is not None:
            cell.worker = None
            _settle(cell)
        self._dying.append(worker)
        self._reap()
        if not self._closed:
            self._warm_up()
            if len(self._queue) > len(self._coming) and len(self._workers) < self.max_size:
                self._grow()

    def _reap(self) -> bool:
        self._dying = [worker for worker in self._dying if not worker.reaped()]
        return bool(self._dying)

    def _release(self, worker: WorkerProcess) -> None:
        """Gives an idle worker to the queue, after evicting its cell if necessary."""
        if worker not in self._workers:
            return
        worker.idle_since = self._moved = time.monotonic()
        used_up = worker.alone or (self._queue and self._queue[0].alone)
        if used_up and worker.cells and self._workers[worker] is None:
            self._discard(worker)
            return
        if self._queue and self._workers[worker] is None:
            waiter = self._queue.popleft()
            waiter.worker = worker
            waiter.turn.notify()
            self._wake_first()
        elif self._queue and len(self._queue) > self._soon_empty():
            self._evict(worker)
        else:
            self._idle[worker] = None
            oldest = next(iter(self._idle))
            surplus = len(self._workers) > self.size and self._workers[oldest] is None
            if surplus and time.monotonic() - oldest.idle_since > SURPLUS_SECONDS:
                self._discard(oldest)
            if len(self._workers) > self.size and not self._trimming:
                assert self._life.tasks is not None
                self._trimming = True
                self._life.tasks.start_soon(self._trim)
        if self._dying:
            self._reap()

    async def _trim(self) -> None:
        """Frees surplus workers of cells that only wait, and ends those that nobody needs."""
        while len(self._workers) > self.size and not self._closed:
            await anyio.sleep(ACTIVE_SECONDS / 2)
            now, surplus = time.monotonic(), len(self._workers) - self.size
            for worker in list(self._idle)[:surplus]:
                idle = now - worker.idle_since
                if self._workers[worker] is None and idle > SURPLUS_SECONDS:
                    self._discard(worker)
                elif self._workers[worker] is not None and idle > ACTIVE_SECONDS:
                    self._evict(worker, packed=True)
        self._trimming = False

    # ---- Freezing to make room ----

    def _evict(self, worker: WorkerProcess, *, packed: bool = False) -> None:
        """Starts to freeze the cell that is warm in a worker; the worker is released afterwards."""
        cell = self._workers[worker]
        assert cell is not None
        assert self._life.tasks is not None
        self._idle.pop(worker, None)
        cell.worker, cell.moving = None, anyio.Event()
        self._coming[worker] = time.monotonic()
        packed = packed or sum(self._unpacked.values()) > MAX_UNPACKED
        self._life.tasks.start_soon(self._freeze_out, worker, cell, packed)

    async def _freeze_out(self, worker: WorkerProcess, cell: Tenancy, packed: bool) -> None:
        try:
            answer = await worker.ask(Freeze(packed), time.monotonic() + FREEZE_SECONDS)
        except Exception as error:
            # An exception raised here would cancel the task that opened the pool.
            logger.error("cannot freeze a cell: %s: %s", type(error).__name__, error)
            answer = None
        finally:
            self._coming.pop(worker, None)
        if isinstance(answer, FrozenCell):
            cell.frozen = answer
            if not packing.is_packed(answer.pages):
                self._unpacked[cell] = len(answer.pages)
        elif isinstance(answer, Failure):
            cell.failed = answer.error
        if worker in self._workers:
            self._workers[worker] = None
        _settle(cell)
        self._let_go(worker)

    # ---- Acquiring ----

    async def _acquire(self, cell: Tenancy, deadline: float, *, resuming: bool) -> WorkerProcess:
        """Returns a live worker that holds this cell, or no cell; the worker is not idle then."""
        if self._life.tasks is None:
            raise NotOpen("The pool is not open: use it inside of `async with Pool() as pool:`.")
        if cell.moving is not None:
            with anyio.move_on_after(deadline - time.monotonic()):
                await cell.moving.wait()
        self._check(cell)
        if cell.moving is not None:
            raise DeadlineExceeded("The program was being frozen until its deadline.")
        if resuming and cell.worker is None and cell.frozen is None:
            raise _lost(cell)
        if cell.worker is None:
            return await self._take_empty(cell, deadline)
        worker = cell.worker
        self._idle.pop(worker, None)
        if not worker.alive:
            self._discard(worker)
            raise RuntimeUnavailable(LOST)
        cell.worker = None
        return worker

    def _check(self, cell: Tenancy) -> None:
        if self._closed:
            raise RuntimeUnavailable(CLOSED)
        if cell.aborted:
            raise Aborted

    async def _take_empty(self, cell: Tenancy, deadline: float) -> WorkerProcess:
        for attempt in range(BOOT_ATTEMPTS):
            worker = self._take_idle(cell.alone) or await self._wait(cell, deadline)
            try:
                await self._make_ready(worker, cell, deadline)
            except RuntimeUnavailable:
                self._discard(worker)
                if self._closed or attempt == BOOT_ATTEMPTS - 1:
                    raise
            except BaseException:
                self._release(worker)
                raise
            else:
                self._workers[worker] = cell
                worker.alone = cell.alone
                if cell.alone and not self._has_spare() and len(self._workers) < self.max_size:
                    self._grow()
                return worker
        raise AssertionError("unreachable")

    def _take_idle(self, alone: bool) -> WorkerProcess | None:
        """Returns an empty worker, a new one if the pool may grow to its size.

        Otherwise None: the cell that was idle longest is being evicted, and the caller queues.
        """
        for worker in [worker for worker in self._idle if worker.died()]:
            self._discard(worker)
        empty = [worker for worker in self._idle if self._workers[worker] is None]
        if alone and (used := [worker for worker in empty if worker.cells]):
            empty = [worker for worker in empty if not worker.cells]
            if not empty and len(self._workers) >= self.size:
                self._discard(used[0])
                empty = [worker for worker in self._idle if not worker.cells]
        if empty:
            # The last one used: its caches are warm, and the others can become surplus.
            ready = [worker for worker in empty if worker.booted.done()]
            worker = (ready or empty)[-1]
            del self._idle[worker]
            return worker
        if len(self._workers) < self.size:
            return self._spawn()
        starting = sum(not worker.booted.done() for worker in self._coming)
        if max(self._soon_empty(), starting) > len(self._queue):
            return None
        can_fork = self._template is not None and self._template.ready
        if can_fork and len(self._workers) < self.max_size:
            if not self._growing:
                assert self._life.tasks is not None
                self._growing = True
                self._life.tasks.start_soon(self._serve_queue)
        elif self._idle:
            self._evict(next(iter(self._idle)))
        return None

    async def _serve_queue(self) -> None:
        """Forks workers for the queue, once all have queued who come at the same time.

        If more wait than can have a worker, cells that wait for their calls are evicted instead:
        further workers would take memory, and end no eviction.
        """
        self._growing = False
        wanted = max(len(self._queue) - self._soon_empty(), 0)
        if self._closed:
            return
        if len(self._queue) + len(self._workers) <= self.max_size:
            for _ in range(wanted):
                self._grow()
        else:
            held = [worker for worker in self._idle if self._workers[worker] is not None]
            for worker in held[:wanted]:
                self._evict(worker)

    def _has_spare(self) -> bool:
        """True if a worker that has run no cell is idle or starts."""
        return bool(self._coming) or any(not worker.cells for worker in self._idle)

    def _grow(self) -> None:
        """Starts a worker for the first in the queue; another may become free before."""
        assert self._life.tasks is not None
        try:
            worker = self._spawn()
        except RuntimeUnavailable as error:
            logger.error("%s", error)
            return
        self._coming[worker] = time.monotonic()
        self._life.tasks.start_soon(self._release_booted, worker)

    async def _wait(self, cell: Tenancy, deadline: float) -> WorkerProcess:
        """Queues for a worker; starts one if the queue stands still."""
        waiter = cell.waiter = Waiter(cell.alone)
        self._queue.append(waiter)
        try:
            while waiter.worker is None and (left := deadline - time.monotonic()) > 0:
                # Only the first in the queue wakes up to watch it: with a thousand waiters, a
                # timer each would keep the event loop busy.
                first = self._queue[0] is waiter
                with anyio.move_on_after(min(left, GROW_AFTER) if first else left):
                    await waiter.turn.wait()
                self._check(cell)
                if waiter.worker is None and first and self._should_grow():
                    self._grow()
        except BaseException:
            self._give_back(waiter)
            raise
        finally:
            cell.waiter = None
        if waiter.worker is None:
            self._give_back(waiter)
            raise DeadlineExceeded(
                f"The program never ran: all {len(self._workers)} workers were busy until its "
                "deadline."
            )
        return waiter.worker

    async def _release_booted(self, worker: WorkerProcess) -> None:
        while not worker.booted.done() and worker in self._workers:
            if worker.booting_for() > BOOT_PATIENCE:
                break
            await anyio.sleep(0.002)
        self._coming.pop(worker, None)
        if worker.booted.done() and worker.booted.exception() is None:
            self._release(worker)
        else:
            self._discard(worker)

    def _should_grow(self) -> bool:
        """True if the queue stands still, and no worker is about to become free."""
        stands = time.monotonic() - self._moved >= GROW_AFTER
        coming = self._soon_empty() or any(not worker.booted.done() for worker in self._workers)
        return stands and not coming and len(self._workers) < self.max_size

    def _soon_empty(self) -> int:
        """Counts workers that come soon. What takes longer may never end: it does not count."""
        recent = time.monotonic() - COMING_PATIENCE
        return sum(began > recent for began in self._coming.values())

    def _give_back(self, waiter: Waiter) -> None:
        if waiter.worker is not None:
            self._release(waiter.worker)
        elif waiter in self._queue:
            self._queue.remove(waiter)
            self._wake_first()

    def _wake_first(self) -> None:
        if self._queue:
            self._queue[0].turn.notify()

    async def _make_ready(self, worker: WorkerProcess, cell: Tenancy, deadline: float) -> None:
        while not worker.booted.done():
            self._check(cell)
            if time.monotonic() >= deadline:
                raise DeadlineExceeded("The program never ran: its worker took too long to start.")
            if worker.booting_for() > BOOT_PATIENCE:
                raise RuntimeUnavailable("a worker hung during its start")
            await anyio.sleep(0.002)
        image = worker.booted.result()
        if image != (self._image or image):
            raise RuntimeUnavailable("two workers have different images that cells start from")
        if not self._image and worker.notes:
            logger.warning("workers are not fully locked down: %s", "; ".join(worker.notes))
        self._image = image


def _lost(cell: Tenancy) -> SandboxError:
    return SnapshotTooLarge(cell.failed) if cell.failed else RuntimeUnavailable(LOST)


def _settle(cell: Tenancy) -> None:
    """Ends an eviction: the cell is frozen or lost, and nobody waits for it any more."""
    if cell.moving is not None:
        cell.moving.set()
        cell.moving = None
