"""Parent side: the cells of a pool: run, frozen, copied, evicted and aborted.

A cell is warm in the worker that ran it last, or frozen in this process, or gone. It stays warm
while its calls are settled, and the next cell gets another worker: a fork of the template takes
milliseconds. Which worker is free for which cell is decided in `workers`, which also says when a
warm cell is evicted: it is frozen (about 1 ms) to free its worker. A worker never runs one cell's
code while it holds another's heap. Deadlines include the queue for workers.
"""

import logging
import sys
import time
from typing import TYPE_CHECKING

import anyio
from anyio.abc import AsyncResource

from clawmode.exceptions import (
    Aborted,
    ConfigurationError,
    DeadlineExceeded,
    NotOpen,
    RuntimeUnavailable,
    SandboxError,
    SnapshotTooLarge,
    UnsupportedPlatform,
)
from clawmode.sandbox import packing
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
    Suspension,
)
from clawmode.sandbox.workers import Tenancy, Workers, WorkerView
from clawmode.types import JsonText

if TYPE_CHECKING:
    from clawmode.sandbox.lockdown import Mode

logger = logging.getLogger("clawmode.sandbox")

MAX_UNPACKED = 8 << 20
"""Bytes of evicted cells that are kept without compressing them."""

RECYCLE_AFTER = 5000
"""Cells after which a worker is replaced, even if it is healthy."""

FREEZE_SECONDS = 10.0
LOST = "The program is lost: the worker that held it died."


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
        _check_size("size", size)
        _check_size("max_size", max_size)
        self._workers = Workers(size, max_size, lockdown, self._evict)
        self._unpacked: dict[Tenancy, int] = {}  # bytes of frozen cells that are not compressed
        self._prepared: set[Part] = set()

    @property
    def size(self) -> int:
        """The number of workers that are kept."""
        return self._workers.size

    @property
    def max_size(self) -> int:
        """The number of workers that there may be."""
        return self._workers.max_size

    # ---- Open and close ----

    async def start(self) -> "Pool":
        """Starts the first worker without waiting for it. May be called once.

        Raises:
            UnsupportedPlatform: Workers cannot run on this operating system.
        """
        if sys.platform == "win32":  # no process groups, no inherited pipes, no alarms
            raise UnsupportedPlatform("The sandbox")
        await self._workers.open()
        return self

    async def aclose(self) -> None:
        """Ends all workers. Cells that compute or queue fail. Idempotent; callable in any task."""
        await self._workers.close()

    async def __aenter__(self) -> "Pool":
        return await self.start()

    async def ready(self) -> None:
        """Waits until a worker has booted or failed to. Raises nothing: the next step does."""
        await self._workers.ready()

    @property
    def image(self) -> bytes:
        """The hash of the image that cells start from; empty until a worker is ready."""
        return self._workers.image

    def lockdown_notes(self) -> list[str]:
        """Returns the parts of the lockdown that this system does not offer."""
        return self._workers.lockdown_notes()

    def views(self) -> list[WorkerView]:
        """Returns the workers, in the order of their start."""
        return self._workers.views()

    @property
    def queued(self) -> int:
        """The number of cells that wait for a worker."""
        return len(self._workers.queue)

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
                await loaded(part, lambda: self._workers.check(cell))
                self._prepared.add(part)
            cell.equipping = None
            self._workers.check(cell)

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
            self._workers.let_go(worker)
            raise
        if worker in self._workers.tenants:
            suspended = isinstance(answer, Suspension)
            self._workers.tenants[worker] = cell if suspended else None
            cell.worker = worker if suspended else None
        worn = worker.cells >= RECYCLE_AFTER and not isinstance(answer, Suspension)
        if worn or (isinstance(answer, Failure) and answer.crashed):
            self._workers.discard(worker)
        self._workers.release(worker)
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
            self._evict(cell.worker, True)
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
        if worker is None or worker not in self._workers.idle:
            return await self.freeze(cell)
        del self._workers.idle[worker]
        cell.worker = None
        try:
            frozen = await worker.ask(Freeze(keep=True), time.monotonic() + FREEZE_SECONDS)
        except BaseException:
            self._workers.let_go(worker)
            raise
        if isinstance(frozen, Failure):
            cell.failed = frozen.error
        if not isinstance(frozen, FrozenCell) or worker not in self._workers.tenants:
            self._workers.let_go(worker)
            raise _lost(cell)
        cell.worker = worker
        self._workers.release(worker)
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
            self._workers.tenants[worker] = None
            if self._workers.idle.pop(worker, worker) is None:
                self._workers.release(worker)

    # ---- Freezing to make room ----

    def _evict(self, worker: WorkerProcess, packed: bool) -> None:
        """Starts to freeze the cell that is warm in a worker; the worker is released afterwards."""
        cell = self._workers.tenants[worker]
        assert cell is not None
        self._workers.idle.pop(worker, None)
        cell.worker, cell.moving = None, anyio.Event()
        self._workers.coming[worker] = time.monotonic()
        packed = packed or sum(self._unpacked.values()) > MAX_UNPACKED
        self._workers.start_soon(self._freeze_out, worker, cell, packed)

    async def _freeze_out(self, worker: WorkerProcess, cell: Tenancy, packed: bool) -> None:
        try:
            answer = await worker.ask(Freeze(packed), time.monotonic() + FREEZE_SECONDS)
        except Exception as error:
            # An exception raised here would cancel the task that opened the pool.
            logger.error("cannot freeze a cell: %s: %s", type(error).__name__, error)
            answer = None
        finally:
            self._workers.coming.pop(worker, None)
        if isinstance(answer, FrozenCell):
            cell.frozen = answer
            if not packing.is_packed(answer.pages):
                self._unpacked[cell] = len(answer.pages)
        elif isinstance(answer, Failure):
            cell.failed = answer.error
        if worker in self._workers.tenants:
            self._workers.tenants[worker] = None
        cell.settle()
        self._workers.let_go(worker)

    # ---- Acquiring ----

    async def _acquire(self, cell: Tenancy, deadline: float, *, resuming: bool) -> WorkerProcess:
        """Returns a live worker that holds this cell, or no cell; the worker is not idle then."""
        if not self._workers.is_open:
            raise NotOpen("The pool is not open: use it inside of `async with Pool() as pool:`.")
        if cell.moving is not None:
            with anyio.move_on_after(deadline - time.monotonic()):
                await cell.moving.wait()
        self._workers.check(cell)
        if cell.moving is not None:
            raise DeadlineExceeded("The program was being frozen until its deadline.")
        if resuming and cell.worker is None and cell.frozen is None:
            raise _lost(cell)
        if cell.worker is None:
            return await self._workers.take_empty(cell, deadline)
        worker = cell.worker
        self._workers.idle.pop(worker, None)
        if not worker.alive:
            self._workers.discard(worker)
            raise RuntimeUnavailable(LOST)
        cell.worker = None
        return worker


def _lost(cell: Tenancy) -> SandboxError:
    return SnapshotTooLarge(cell.failed) if cell.failed else RuntimeUnavailable(LOST)


def _check_size(name: str, given: object) -> None:
    # `True` is an `int` in Python, but no number of workers.
    if given is None or (isinstance(given, int) and given is not True and given > 0):
        return
    raise ConfigurationError(
        f"Pool({name}=…): found {given!r}, expected a number of workers from 1 on",
        path=f"Pool({name}=…)",
        expected="a number from 1 on",
    )
