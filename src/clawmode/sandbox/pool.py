"""Parent side: which worker runs which cell, and when.

A cell is warm in the worker that ran it last, or frozen here, or gone. It stays warm while its
calls are settled; when its worker is wanted by another cell, it is frozen first (about 1 ms), so a
worker never runs one cell's code while it holds another's heap. When every worker computes, cells
queue; the pool grows when the queue does not move, and their deadlines run all the while.
"""

import logging
import os
import time
from collections import deque
from dataclasses import dataclass, replace
from types import TracebackType

import anyio

from clawmode.exceptions import (
    Aborted,
    DeadlineExceeded,
    RuntimeUnavailable,
    SandboxError,
    SnapshotTooLarge,
)
from clawmode.sandbox.process import Lockdown, WorkerProcess
from clawmode.sandbox.protocol import (
    Done,
    Failed,
    Freeze,
    Frozen,
    Outcome,
    Resume,
    Start,
    Suspended,
)
from clawmode.types import JsonText

logger = logging.getLogger("clawmode.sandbox")

GROW_AFTER = 0.02
"""How long the queue stands still before the pool grows: the workers compute, and do not end."""

SURPLUS_SECONDS = 10.0
"""How long a worker beyond the pool's size may idle."""

RECYCLE_AFTER = 5000
"""Cells after which a worker is replaced, whatever it looks like."""

FREEZE_SECONDS = 10.0

ABORTED = "The program was aborted."
LOST = "The program is lost: the worker that held it died."


class Cell:
    """One program, from its start to its end. Made by `Pool.cell`, used with its pool."""

    __slots__ = ("aborted", "failed", "frozen", "moving", "worker")

    def __init__(self, frozen: Frozen | None = None) -> None:
        self.worker: WorkerProcess | None = None
        self.frozen = frozen
        self.moving: anyio.Event | None = None
        self.aborted = False
        self.failed = ""


@dataclass(slots=True)
class Waiter:
    """A cell in the queue."""

    event: anyio.Event
    worker: WorkerProcess | None = None


class Pool:
    """Worker processes, shared by any number of cells.

    Args:
        size: Workers that are kept. Default: one per core, at least two.
        max_size: Workers that there may be while all of them compute. Default: four times `size`.
        lockdown: Whether workers give up files and network: as far as the kernel can
            (`best-effort`), or not run otherwise (`required`).
    """

    def __init__(
        self,
        *,
        size: int | None = None,
        max_size: int | None = None,
        lockdown: Lockdown = "best-effort",
    ) -> None:
        self.size = size or max(2, os.cpu_count() or 1)
        self.max_size = max(max_size or 4 * self.size, self.size)
        self._lockdown: Lockdown = lockdown
        self._workers: dict[WorkerProcess, Cell | None] = {}
        self._idle: dict[WorkerProcess, None] = {}  # in the order in which they became idle
        self._queue: deque[Waiter] = deque()
        self._dying: list[WorkerProcess] = []
        self._image = b""
        self._moved = time.monotonic()
        self._closed = False

    # ---- Open and close ----

    async def __aenter__(self) -> "Pool":
        self.warm_up()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def warm_up(self) -> None:
        """Starts the pool's workers, without waiting for them."""
        while len(self._workers) < self.size:
            self._release(self._spawn())

    async def ready(self) -> None:
        """Waits until a worker can take cells, or none is coming. Raises nothing: a step will."""
        self.warm_up()
        while not any(worker.booted.done() for worker in self._workers):  # noqa: ASYNC110 - a thread
            await anyio.sleep(0.002)

    async def aclose(self) -> None:
        """Ends all workers. Cells that are computing fail. Idempotent."""
        self._closed = True
        for worker in list(self._workers):
            self._discard(worker)
        with anyio.CancelScope(shield=True), anyio.move_on_after(2):
            while self._reap():  # noqa: ASYNC110 - the kernel sets no event of ours
                await anyio.sleep(0.002)

    # ---- Cells ----

    def cell(self, frozen: Frozen | None = None) -> Cell:
        """A new cell, or one that was frozen before."""
        return Cell(frozen)

    async def step(
        self, cell: Cell, message: Start | Resume, deadline: float, setup: JsonText = b""
    ) -> Outcome:
        """Lets a cell run until it is idle, complete or failed.

        Args:
            cell: Not being stepped already.
            message: `Start` once, then `Resume`. Budget and snapshot are filled in here.
            deadline: By `time.monotonic`; queueing counts.
            setup: What `Start.setup` is the key of; sent to workers that do not have it.

        Raises:
            DeadlineExceeded: It passed in the queue, or the worker hung.
            Aborted: `abort` was called.
            RuntimeUnavailable: There is no worker to be had, or it died.
        """
        worker = await self._acquire(cell, deadline, resuming=isinstance(message, Resume))
        try:
            answer = await self._ask(worker, cell, message, deadline, setup)
        except BaseException:
            # Whatever it was, the state of the worker is unknown; mostly it is dead already.
            self._discard(worker)
            raise
        self._workers[worker] = None
        if isinstance(answer, Suspended):
            self._workers[worker] = cell
            cell.worker = worker
        elif worker.cells >= RECYCLE_AFTER or (isinstance(answer, Failed) and answer.crashed):
            self._discard(worker)
        self._release(worker)
        return answer

    async def _ask(
        self,
        worker: WorkerProcess,
        cell: Cell,
        message: Start | Resume,
        deadline: float,
        setup: JsonText,
    ) -> Outcome:
        if isinstance(message, Start):
            worker.cells += 1
            for part in message.needs():
                await worker.provide(part)
            if message.setup:
                await worker.install(message.setup, setup)
        else:
            message = replace(message, frozen=cell.frozen)
        cell.frozen = None
        budget = max(deadline - time.monotonic(), 0.0)
        answer = await worker.ask(replace(message, budget=budget), deadline)
        assert isinstance(answer, Done | Suspended | Failed)
        return answer

    async def freeze(self, cell: Cell) -> Frozen:
        """The cell's memory, to be kept elsewhere. The cell can still go on afterwards.

        Raises:
            RuntimeUnavailable: The cell was lost with its worker.
            SnapshotTooLarge: It cannot be frozen in the memory that a worker may use.
        """
        if cell.moving is not None:
            await cell.moving.wait()
        if (worker := cell.worker) is not None:
            self._idle.pop(worker, None)
            self._claim(worker)
            try:
                await self._evict(worker)
            except BaseException:
                self._discard(worker)
                raise
            self._release(worker)
        if cell.frozen is None:
            raise _lost(cell)
        return cell.frozen

    async def abort(self, cell: Cell) -> None:
        """Stops a cell that is computing, within 20 ms, and marks it: it will not step again."""
        cell.aborted = True
        worker = next((w for w, owner in self._workers.items() if owner is cell), None)
        if worker is not None and worker not in self._idle:
            await worker.abort()

    def drop(self, cell: Cell) -> None:
        """Forgets a cell that is not computing. Idempotent."""
        if cell.worker is not None:
            self._workers[cell.worker] = None
            cell.worker = None
        cell.frozen = None

    # ---- Workers ----

    def _spawn(self) -> WorkerProcess:
        worker = WorkerProcess(self._lockdown)
        self._workers[worker] = None
        return worker

    def _claim(self, worker: WorkerProcess) -> WorkerProcess:
        """Takes a worker away from the cell that is warm in it; the next thing is to evict it."""
        cell = self._workers[worker]
        if cell is not None:
            cell.worker, cell.moving = None, anyio.Event()
        return worker

    def _discard(self, worker: WorkerProcess) -> None:
        """Kills a worker and, unless the pool is closing, starts another in its place."""
        worker.kill()
        self._idle.pop(worker, None)
        cell = self._workers.pop(worker, None)
        if cell is not None:
            cell.worker = None
            _settle(cell)
        self._dying.append(worker)
        self._reap()
        if not self._closed and len(self._workers) < self.size:
            try:
                self._release(self._spawn())
            except RuntimeUnavailable as error:
                logger.error("%s", error)

    def _reap(self) -> bool:
        self._dying = [worker for worker in self._dying if not worker.reaped()]
        return bool(self._dying)

    def _release(self, worker: WorkerProcess) -> None:
        if worker not in self._workers:
            return
        worker.idle_since = self._moved = time.monotonic()
        cell = self._workers[worker]
        if cell is not None and cell.moving is not None:
            cell.worker = worker
            _settle(cell)
        if self._queue:
            waiter = self._queue.popleft()
            waiter.worker = self._claim(worker)
            waiter.event.set()
            self._wake_first()
            return
        self._idle[worker] = None
        self._shrink()

    def _shrink(self) -> None:
        oldest = next(iter(self._idle))
        surplus = len(self._workers) > self.size and self._workers[oldest] is None
        if surplus and time.monotonic() - oldest.idle_since > SURPLUS_SECONDS:
            self._discard(oldest)

    # ---- Acquiring ----

    async def _acquire(self, cell: Cell, deadline: float, *, resuming: bool) -> WorkerProcess:
        """A live worker that holds this cell, or no cell at all; it is no longer idle."""
        if self._closed:
            raise RuntimeUnavailable("the sandbox is closed")
        if cell.moving is not None:
            await cell.moving.wait()
        if cell.aborted:
            raise Aborted(ABORTED)
        if resuming and cell.worker is None and cell.frozen is None:
            raise _lost(cell)
        if cell.worker is not None:
            return self._take_warm(cell.worker, cell)
        for last in (False, False, True):
            worker = self._take_idle() or await self._wait(deadline)
            try:
                await self._make_ready(worker, deadline)
                if cell.aborted:
                    raise Aborted(ABORTED)
            except RuntimeUnavailable:
                # It died while it was idle, or did not come up.
                self._discard(worker)
                if last or self._closed:
                    raise
            except BaseException:
                self._release(worker)
                raise
            else:
                self._workers[worker] = cell
                return worker
        raise AssertionError("unreachable")

    def _take_warm(self, worker: WorkerProcess, cell: Cell) -> WorkerProcess:
        self._idle.pop(worker, None)
        if not worker.alive:
            self._discard(worker)
            raise RuntimeUnavailable(LOST)
        cell.worker = None
        return worker

    def _take_idle(self) -> WorkerProcess | None:
        """An idle worker: one without a cell, else a new one, else the one idle for longest."""
        empty = [w for w in self._idle if self._workers[w] is None]
        if empty:
            # The last one used: its caches are warm, and the others may become surplus.
            ready = [w for w in empty if w.booted.done()]
            worker = (ready or empty)[-1]
        elif len(self._workers) < self.size:
            return self._spawn()
        elif self._idle:
            worker = next(iter(self._idle))
        else:
            return None
        del self._idle[worker]
        return self._claim(worker)

    async def _wait(self, deadline: float) -> WorkerProcess:
        """Queues for a worker; after a while makes one, if there may be more."""
        waiter = Waiter(anyio.Event())
        self._queue.append(waiter)
        try:
            while waiter.worker is None and (left := deadline - time.monotonic()) > 0:
                # The first in the queue watches it for all: a thousand timers would be the hog.
                first = self._queue[0] is waiter
                with anyio.move_on_after(min(left, GROW_AFTER) if first else left):
                    await waiter.event.wait()
                if waiter.worker is None and first and self._should_grow():
                    self._leave(waiter)
                    return self._spawn()
        except BaseException:
            self._give_back(waiter)
            raise
        if waiter.worker is None:
            self._give_back(waiter)
            raise DeadlineExceeded(
                f"The program never ran: all {len(self._workers)} workers were busy until its "
                "deadline."
            )
        return waiter.worker

    def _should_grow(self) -> bool:
        """Whether the queue stands still, and not because a worker is on its way already."""
        stands = time.monotonic() - self._moved >= GROW_AFTER
        booting = any(not worker.booted.done() for worker in self._workers)
        return stands and not booting and len(self._workers) < self.max_size

    def _give_back(self, waiter: Waiter) -> None:
        if waiter.worker is not None:
            self._release(waiter.worker)
        elif waiter in self._queue:
            self._leave(waiter)

    def _leave(self, waiter: Waiter) -> None:
        self._queue.remove(waiter)
        self._wake_first()

    def _wake_first(self) -> None:
        if self._queue:
            first = self._queue[0]
            first.event.set()
            first.event = anyio.Event()

    async def _make_ready(self, worker: WorkerProcess, deadline: float) -> None:
        while not worker.booted.done():
            if time.monotonic() >= deadline:
                raise DeadlineExceeded("The program never ran: its worker took too long to start.")
            await anyio.sleep(0.002)
        image = worker.booted.result()
        if image != (self._image or image):
            raise RuntimeUnavailable("two workers disagree about the image that cells start from")
        if not self._image and worker.notes:
            logger.warning("workers are not fully locked down: %s", "; ".join(worker.notes))
        self._image = image
        if not worker.alive:
            raise RuntimeUnavailable("an idle worker died")
        if self._workers[worker] is not None:
            await self._evict(worker)

    async def _evict(self, worker: WorkerProcess) -> None:
        """Freezes the cell that is warm in a claimed worker."""
        cell = self._workers[worker]
        assert cell is not None
        answer = await worker.ask(Freeze(), time.monotonic() + FREEZE_SECONDS)
        if isinstance(answer, Frozen):
            cell.frozen = answer
        else:
            assert isinstance(answer, Failed)
            cell.failed = answer.error
        self._workers[worker] = None
        _settle(cell)


def _lost(cell: Cell) -> SandboxError:
    return SnapshotTooLarge(cell.failed) if cell.failed else RuntimeUnavailable(LOST)


def _settle(cell: Cell) -> None:
    """Ends what `Pool._claim` began: the cell is back in its worker, frozen, or lost."""
    if cell.moving is not None:
        cell.moving.set()
        cell.moving = None
