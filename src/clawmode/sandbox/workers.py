"""Parent side: the workers of a pool, and the cells that queue for them.

Owns which workers there are, and which of them are idle, start or end. Memory limits their number;
beyond that number, or if a cell has waited for a second, the pool evicts a warm cell (`pool`) and
releases its worker. When every worker computes, cells queue.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

import anyio
from anyio.abc import TaskGroup

from clawmode.exceptions import Aborted, DeadlineExceeded, RuntimeUnavailable
from clawmode.sandbox import capacity, template
from clawmode.sandbox.process import WorkerProcess
from clawmode.sandbox.protocol import FrozenCell, State
from clawmode.sandbox.template import Template
from clawmode.tasks import Lifetime, Notifier
from clawmode.types import dataclass

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

COMING_PATIENCE = 0.1
"""Seconds for which an eviction or a start counts as a worker that is about to be free; 1 ms and
5 ms are usual."""

BOOT_PATIENCE = 5.0
"""Seconds that a worker with its machine code may take to become ready: 0.2 s is usual, 2 s on a
machine with ten times its load. A second attempt must fit into the default deadline."""

BOOT_ATTEMPTS = 3
END_SECONDS = 2.0

CLOSED = "the sandbox is closed"


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

    def settle(self) -> None:
        """Ends an eviction: the cell is frozen or lost, and nobody waits for it any more."""
        if self.moving is not None:
            self.moving.set()
            self.moving = None


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


class Workers:
    """The worker processes of a pool, each with the cell that it holds.

    Args:
        size: Workers that are kept; None for one per core, at least two.
        max_size: Workers that there may be; None for as many as fit.
        lockdown: Whether workers give up files and network.
        evict: Starts to freeze the cell in a worker, compressed if the second argument is true;
            calls `let_go` with the worker afterwards.

    Attributes:
        tenants: The workers in the order of their start, each with the cell that it holds.
        idle: The workers that compute nothing, in the order in which they became idle.
        coming: Workers that will be empty soon, because they start or their cell is being evicted,
            with the time at which that began.
        queue: The cells that wait for a worker.
    """

    def __init__(
        self,
        size: int | None,
        max_size: int | None,
        lockdown: "Mode",
        evict: Callable[[WorkerProcess, bool], None],
    ) -> None:
        self.size = size or max(2, os.cpu_count() or 1)
        if not max_size:
            max_size = capacity.workers_that_fit() if template.can_fork() else 4 * self.size
        self.max_size = max(max_size, self.size)
        self.tenants: dict[WorkerProcess, Tenancy | None] = {}
        self.idle: dict[WorkerProcess, None] = {}
        self.coming: dict[WorkerProcess, float] = {}
        self.queue: deque[Waiter] = deque()
        self.template: Template | None = None
        self.closed = False
        self._lockdown: Mode = lockdown
        self._evict = evict
        self._dying: list[WorkerProcess] = []
        # A freeze must continue when the cell that needs the worker has given up waiting.
        self._life = Lifetime("clawmode-pool", self._end)
        self._image = b""
        self._moved = time.monotonic()
        self._trimming = self._growing = False

    # ---- Open and close ----

    async def open(self) -> None:
        """Starts the first worker without waiting for it. To be called once."""
        tasks = await self._life.open()
        self.template = template.acquire()
        try:
            # Only one: several that start at once would delay the first cell.
            self.release(self._spawn())
        except RuntimeUnavailable as error:
            logger.error("%s", error)
        tasks.start_soon(self._warm_up_later)

    async def close(self) -> None:
        """Ends all workers. Idempotent; callable in any task."""
        await self._life.close()

    @property
    def is_open(self) -> bool:
        """True from `open` on, also after `close`."""
        return self._life.tasks is not None

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Runs a task until it ends or the workers do."""
        assert self._life.tasks is not None
        self._life.tasks.start_soon(work, *arguments)

    async def _warm_up_later(self) -> None:
        await self.ready()
        if not self.closed:
            self._warm_up()

    def _warm_up(self) -> None:
        while len(self.tenants) < self.size:
            try:
                self.release(self._spawn())
            except RuntimeUnavailable as error:
                logger.error("%s", error)
                return

    async def ready(self) -> None:
        """Waits until a worker has booted or failed to. Raises nothing: the next step does."""
        while not self.closed and self.tenants:
            if any(worker.booted.done() for worker in self.tenants):
                return
            await anyio.sleep(0.002)  # the boot threads set no event of this loop

    async def _end(self, tasks: TaskGroup) -> None:
        self.closed = True
        for worker in list(self.tenants):
            self.discard(worker)
        for waiter in self.queue:
            waiter.turn.notify()
        ending = self.template
        if ending is not None and not template.release(ending):
            ending = None  # other pools use it
        try:
            with anyio.move_on_after(END_SECONDS):
                # The kernel sets no event of ours. The template ends after it has reaped workers.
                while self.reap() or (ending is not None and not ending.ended()):  # noqa: ASYNC110
                    await anyio.sleep(0.002)
        finally:
            if ending is not None and not ending.ended():
                ending.kill()
            tasks.cancel_scope.cancel()

    @property
    def image(self) -> bytes:
        """The hash of the image that cells start from; empty until a worker is ready."""
        booted = (worker.booted for worker in self.tenants if worker.booted.done())
        return self._image or next((each.result() for each in booted if not each.exception()), b"")

    def lockdown_notes(self) -> list[str]:
        """Returns the parts of the lockdown that this system does not offer."""
        return list(dict.fromkeys(note for worker in self.tenants for note in worker.notes))

    def views(self) -> list[WorkerView]:
        """Returns the workers, in the order of their start."""
        found: list[WorkerView] = []
        for worker, cell in self.tenants.items():
            if not worker.booted.done():
                found.append(WorkerView(0, "starting", worker.cells))
            elif worker not in self.idle:
                found.append(WorkerView(worker.pid, "busy", worker.cells))
            else:
                state = "idle" if cell is None else "holding"
                found.append(WorkerView(worker.pid, state, worker.cells))
        return found

    # ---- Workers ----

    def _spawn(self) -> WorkerProcess:
        worker = WorkerProcess(self._lockdown, self.template)
        self.tenants[worker] = None
        return worker

    def let_go(self, worker: WorkerProcess) -> None:
        """Releases a worker whose step raised, if the worker is still alive."""
        if worker.alive and worker in self.tenants:
            self.tenants[worker] = None
            self.release(worker)
        else:
            self.discard(worker)

    def discard(self, worker: WorkerProcess) -> None:
        """Kills a worker and, unless the pool is closed, starts a replacement."""
        worker.kill()
        self.idle.pop(worker, None)
        if worker not in self.tenants:
            return
        cell = self.tenants.pop(worker)
        if cell is not None:
            cell.worker = None
            cell.settle()
        self._dying.append(worker)
        self.reap()
        if not self.closed:
            self._warm_up()
            if len(self.queue) > len(self.coming) and len(self.tenants) < self.max_size:
                self._grow()

    def reap(self) -> bool:
        """Forgets workers that have ended; True if some of them have not."""
        self._dying = [worker for worker in self._dying if not worker.reaped()]
        return bool(self._dying)

    def release(self, worker: WorkerProcess) -> None:
        """Gives an idle worker to the queue, after evicting its cell if necessary."""
        if worker not in self.tenants:
            return
        worker.idle_since = self._moved = time.monotonic()
        used_up = worker.alone or (self.queue and self.queue[0].alone)
        if used_up and worker.cells and self.tenants[worker] is None:
            self.discard(worker)
            return
        if self.queue and self.tenants[worker] is None:
            waiter = self.queue.popleft()
            waiter.worker = worker
            waiter.turn.notify()
            self._wake_first()
        elif self.queue and len(self.queue) > self._soon_empty():
            self._evict(worker, False)
        else:
            self.idle[worker] = None
            oldest = next(iter(self.idle))
            surplus = len(self.tenants) > self.size and self.tenants[oldest] is None
            if surplus and time.monotonic() - oldest.idle_since > SURPLUS_SECONDS:
                self.discard(oldest)
            if len(self.tenants) > self.size and not self._trimming:
                self._trimming = True
                self.start_soon(self._trim)
        if self._dying:
            self.reap()

    async def _trim(self) -> None:
        """Frees surplus workers of cells that only wait, and ends those that nobody needs."""
        while len(self.tenants) > self.size and not self.closed:
            await anyio.sleep(ACTIVE_SECONDS / 2)
            now, surplus = time.monotonic(), len(self.tenants) - self.size
            for worker in list(self.idle)[:surplus]:
                idle = now - worker.idle_since
                if self.tenants[worker] is None and idle > SURPLUS_SECONDS:
                    self.discard(worker)
                elif self.tenants[worker] is not None and idle > ACTIVE_SECONDS:
                    self._evict(worker, True)
        self._trimming = False

    def check(self, cell: Tenancy) -> None:
        """Raises if the workers are closed or the cell was aborted."""
        if self.closed:
            raise RuntimeUnavailable(CLOSED)
        if cell.aborted:
            raise Aborted

    async def take_empty(self, cell: Tenancy, deadline: float) -> WorkerProcess:
        """Returns a worker that holds no cell, for a cell that queues until there is one."""
        for attempt in range(BOOT_ATTEMPTS):
            worker = self._take_idle(cell.alone) or await self._wait(cell, deadline)
            try:
                await self._make_ready(worker, cell, deadline)
            except RuntimeUnavailable:
                self.discard(worker)
                if self.closed or attempt == BOOT_ATTEMPTS - 1:
                    raise
            except BaseException:
                self.release(worker)
                raise
            else:
                self.tenants[worker] = cell
                worker.alone = cell.alone
                if cell.alone and not self._has_spare() and len(self.tenants) < self.max_size:
                    self._grow()
                return worker
        raise AssertionError("unreachable")

    def _take_idle(self, alone: bool) -> WorkerProcess | None:
        """Returns an empty worker, a new one if the pool may grow to its size.

        Otherwise None: the cell that was idle longest is being evicted, and the caller queues.
        """
        for worker in [worker for worker in self.idle if worker.died()]:
            self.discard(worker)
        empty = [worker for worker in self.idle if self.tenants[worker] is None]
        if alone and (used := [worker for worker in empty if worker.cells]):
            empty = [worker for worker in empty if not worker.cells]
            if not empty and len(self.tenants) >= self.size:
                self.discard(used[0])
                empty = [worker for worker in self.idle if not worker.cells]
        if empty:
            # The last one used: its caches are warm, and the others can become surplus.
            ready = [worker for worker in empty if worker.booted.done()]
            worker = (ready or empty)[-1]
            del self.idle[worker]
            return worker
        if len(self.tenants) < self.size:
            return self._spawn()
        starting = sum(not worker.booted.done() for worker in self.coming)
        if max(self._soon_empty(), starting) > len(self.queue):
            return None
        can_fork = self.template is not None and self.template.ready
        if can_fork and len(self.tenants) < self.max_size:
            if not self._growing:
                self._growing = True
                self.start_soon(self._serve_queue)
        elif self.idle:
            self._evict(next(iter(self.idle)), False)
        return None

    async def _serve_queue(self) -> None:
        """Forks workers for the queue, once all have queued who come at the same time.

        If more wait than can have a worker, cells that wait for their calls are evicted instead:
        further workers would take memory, and end no eviction.
        """
        self._growing = False
        wanted = max(len(self.queue) - self._soon_empty(), 0)
        if self.closed:
            return
        if len(self.queue) + len(self.tenants) <= self.max_size:
            for _ in range(wanted):
                self._grow()
        else:
            held = [worker for worker in self.idle if self.tenants[worker] is not None]
            for worker in held[:wanted]:
                self._evict(worker, False)

    def _has_spare(self) -> bool:
        """True if a worker that has run no cell is idle or starts."""
        return bool(self.coming) or any(not worker.cells for worker in self.idle)

    def _grow(self) -> None:
        """Starts a worker for the first in the queue; another may become free before."""
        try:
            worker = self._spawn()
        except RuntimeUnavailable as error:
            logger.error("%s", error)
            return
        self.coming[worker] = time.monotonic()
        self.start_soon(self._release_booted, worker)

    async def _wait(self, cell: Tenancy, deadline: float) -> WorkerProcess:
        """Queues for a worker; starts one if the queue stands still."""
        waiter = cell.waiter = Waiter(cell.alone)
        self.queue.append(waiter)
        try:
            while waiter.worker is None and (left := deadline - time.monotonic()) > 0:
                # Only the first in the queue wakes up to watch it: with a thousand waiters, a
                # timer each would keep the event loop busy.
                first = self.queue[0] is waiter
                with anyio.move_on_after(min(left, GROW_AFTER) if first else left):
                    await waiter.turn.wait()
                self.check(cell)
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
                f"The program never ran: all {len(self.tenants)} workers were busy until its "
                "deadline."
            )
        return waiter.worker

    async def _release_booted(self, worker: WorkerProcess) -> None:
        while not worker.booted.done() and worker in self.tenants:
            if worker.booting_for() > BOOT_PATIENCE:
                break
            await anyio.sleep(0.002)
        self.coming.pop(worker, None)
        if worker.booted.done() and worker.booted.exception() is None:
            self.release(worker)
        else:
            self.discard(worker)

    def _should_grow(self) -> bool:
        """True if the queue stands still, and no worker is about to become free."""
        stands = time.monotonic() - self._moved >= GROW_AFTER
        coming = self._soon_empty() or any(not worker.booted.done() for worker in self.tenants)
        return stands and not coming and len(self.tenants) < self.max_size

    def _soon_empty(self) -> int:
        """Counts workers that come soon. What takes longer may never end: it does not count."""
        recent = time.monotonic() - COMING_PATIENCE
        return sum(began > recent for began in self.coming.values())

    def _give_back(self, waiter: Waiter) -> None:
        if waiter.worker is not None:
            self.release(waiter.worker)
        elif waiter in self.queue:
            self.queue.remove(waiter)
            self._wake_first()

    def _wake_first(self) -> None:
        if self.queue:
            self.queue[0].turn.notify()

    async def _make_ready(self, worker: WorkerProcess, cell: Tenancy, deadline: float) -> None:
        while not worker.booted.done():
            self.check(cell)
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
