"""Worker side: the one live cell, in QuickJS: starts, runs, freezes and restores it.

A cell is its linear memory, so nothing of a cell may live outside of that memory. The state of the
runtime is in the prelude's closure. The values that this module keeps between two calls (handles,
the mailbox's address) are part of the image and the same in every process.

Tried and rejected: a new instance per cell, which takes 0.6 ms more than copying the image over a
used one; and the engine's interrupt callback, which calls Python every few thousand operations. The
epoch costs nothing until it fires, and stops regular expressions too.
"""

import ctypes
import os
import struct
import time
from collections.abc import Callable

import wasmtime

from clawmode.exceptions import SnapshotRefused, SnapshotTooLarge
from clawmode.sandbox.image import Image, Setup, SnapshotSize, build_image, heap_in_use
from clawmode.sandbox.line_map import CompileFailure
from clawmode.sandbox.machine import Machine
from clawmode.sandbox.output import Outbox
from clawmode.sandbox.protocol import (
    MAX_SETUPS,
    PAGE,
    FrozenCell,
    Limits,
    Resume,
    Start,
    State,
)
from clawmode.sandbox.source import PreparedSource
from clawmode.types import dataclass

SCRUB_FROM = 1 << 20
"""Changed bytes from which free memory is zeroed before a freeze."""

KEEP_GROWN = 4 << 20
"""An instance whose memory grew by more than this is not kept: memory never shrinks."""

# Slots of the mailbox, an array of doubles in guest memory; prelude.js uses the same numbers.
SEED, OUTPUT_LIMIT, MAX_CALLS, MAX_OTHERS, ARGUMENT = 0, 4, 5, 6, 7
MAIN_STATE, QUEUED, OPEN_CALLS, OPEN_OTHERS, TIMEOUTS, NEXT_DUE, OVERFLOW, STARTED, HEAP = range(
    8, 17
)
MAX_WAITING, WAITING_CALLS, UNSEEN_CALLS = 17, 18, 19
MAILBOX = 24
PENDING, FULFILLED, REJECTED = 0, 1, 2

MAX_SETUP_HEAP = 256 << 20


@dataclass(frozen=True, slots=True)
class IdleState:
    """The state of a cell that can do nothing more without the host.

    Attributes:
        state: Of the main promise.
        requests: New requests, one per line: id, method, arguments.
        timeouts: Timeouts that are pending.
        due: When the next timer is due, in milliseconds since 1970; 0 if there is none.
        ended: True if the main promise is fulfilled and nothing is pending.
        stuck: True if nothing can settle the main promise.
        waiting: Calls that the host has not got yet, because it has enough of them.
        overflow: True if the guest opened too many requests.
        filled: True if the heap has been about as large as it may be.
    """

    state: int
    requests: bytes
    timeouts: int
    due: float
    ended: bool
    stuck: bool
    waiting: int
    overflow: bool
    filled: bool


class Vm:
    """The live cell of this worker, if there is one, and the images that the next starts from."""

    def __init__(
        self,
        engine: wasmtime.Engine,
        module: wasmtime.Module,
        arm: Callable[[wasmtime.Store], None],
        image: Image | None = None,
    ) -> None:
        self._engine, self._module, self._arm = engine, module, arm
        self.image = image or build_image(engine, module)
        self._machine: Machine | None = None
        self._bare = self._origin = Setup(self.image.memory, self.image.heap)
        self._setups: dict[bytes, Setup] = {}
        self._filled_at = 0
        self._measured = SnapshotSize()
        self._last = self._bare
        self._laid_out: Setup | None = None
        self._attached: Limits | None = None
        self._state: dict[str, bytes] | None = None
        self.live = False

    def warm_up(self) -> None:
        """Creates the instance that the first cell will use."""
        self._lay_out(self._bare)

    # ---- Starting and resuming ----

    def install(self, key: bytes, data: bytes) -> None:
        """Builds the image that cells of one catalog start from."""
        machine = self._reset(self._bare, Limits(memory_bytes=MAX_SETUP_HEAP), Outbox(0))
        machine.expect(machine.call_with_text(self.image.handles.install, data))
        machine.run_gc()
        self._mail[HEAP] = 0
        instance = machine.instance
        memory = instance.read(0, instance.memory_size())
        size = len(self.image.compress(instance, self.image.changed_pages(instance)))
        self._setups[key] = self._last = Setup(memory, heap_in_use(machine), size)
        if len(self._setups) > MAX_SETUPS:
            del self._setups[next(iter(self._setups))]
        self.live = False

    def start(self, prepared: PreparedSource, start: Start, outbox: Outbox) -> bool:
        """Compiles a cell and calls it. Returns False if the text is not exactly one function."""
        setup = self._last = self._setups[start.setup] if start.setup else self._bare
        machine = self._reset(setup, start.limits, outbox)
        self._use_state(start.state, outbox)
        handles = self.image.handles
        self._mail[SEED : SEED + 4] = struct.unpack("<4I", os.urandom(16))
        self._mail[STARTED] = time.time() * 1000
        self._mail[ARGUMENT] = prepared.body
        text = machine.allocate(prepared.wrapped)
        main = machine.eval(text, len(prepared.wrapped), handles.filename, 0)
        machine.free(text)
        if machine.is_exception(main):
            machine.check(main)
            closed = machine.compiles(prepared.unclosed)
            outbox.compile_failure = CompileFailure(closed, prepared.line_map)
            return True
        arguments = [main]
        if prepared.origin:
            arguments.append(machine.new_text(prepared.origin.encode()))
        accepted = machine.call_with(handles.accept, *arguments)
        for text in arguments[1:]:
            machine.free_value(text)
        whole = bool(machine.get_bool(accepted))
        machine.free_value(accepted)
        if whole:
            promise = machine.call_with(main)
            if machine.is_exception(promise):
                machine.fail()
            else:
                machine.check(machine.call_with(handles.begin, promise))
            machine.free_value(promise)
        machine.free_value(main)
        return whole

    def resume(self, resume: Resume, outbox: Outbox) -> None:
        """Delivers replies to the live cell, in the given order."""
        machine, settled = self._attach(resume.limits, outbox), resume.settled
        machine.shift = resume.shift
        self._use_state(resume.state, outbox)
        if settled:
            replies = b",".join(
                b"[%d,%s,%s]" % (item.id, b"true" if item.ok else b"false", item.value)
                for item in settled
            )
            handles = self.image.handles
            machine.check(machine.call_with_text(handles.deliver, b"[" + replies + b"]"))

    def _use_state(self, state: State | None, outbox: Outbox) -> None:
        """Lets the cell load and store: in `state`, or in what its last step left."""
        if state is not None:
            self._state = dict(state)
        outbox.use_state(self._state)

    def keep_state(self, outbox: Outbox) -> None:
        """Keeps what the step has stored for the next step of the live cell."""
        self._state = outbox.state

    def run(self, now: float) -> IdleState:
        """Runs jobs and due timers until the guest is idle.

        Args:
            now: A lower bound of the guest's time, in milliseconds since 1970: a cell that was
                resumed for a timer must find it due, whatever this machine's clock says.
        """
        machine, mail, handles = self._live_machine(), self._mail, self.image.handles
        while True:
            while (ran := machine.run_job()) != 0 or machine.rejections:
                if ran & 0x80000000:  # the job threw
                    machine.fail()
                machine.track_rejections()
            if mail[MAIN_STATE] == REJECTED:
                break
            due = mail[NEXT_DUE]
            clock = max(now, time.time() * 1000 + machine.shift)
            if due == 0 or due > clock:
                break
            mail[ARGUMENT] = clock
            machine.check(machine.call_with(handles.fire))
        return self._idle(machine)

    def unmade_calls(self) -> int:
        """Returns the number of calls that the guest has opened and the host has not seen."""
        return int(self._mail[UNSEEN_CALLS] + self._mail[WAITING_CALLS])

    def _idle(self, machine: Machine) -> IdleState:
        mail, handles = self._mail, self.image.handles
        pending = mail[OPEN_CALLS] or mail[OPEN_OTHERS] or mail[TIMEOUTS]
        ended = mail[MAIN_STATE] == FULFILLED and not pending
        stuck = mail[MAIN_STATE] == PENDING and not pending and not mail[NEXT_DUE]
        if ended or stuck:
            machine.check(machine.call_with(handles.conclude))
        requests = b""
        if mail[QUEUED]:
            collected = machine.call_with(handles.collect)
            if machine.is_exception(collected):
                machine.check(collected)
            else:
                requests = machine.text_of(collected)
                machine.free_value(collected)
        return IdleState(
            state=FULFILLED if ended and mail[MAIN_STATE] != REJECTED else int(mail[MAIN_STATE]),
            requests=requests,
            timeouts=int(mail[TIMEOUTS]),
            due=mail[NEXT_DUE],
            ended=ended,
            stuck=stuck,
            waiting=int(mail[WAITING_CALLS]),
            overflow=bool(mail[OVERFLOW]),
            filled=machine.instance.memory_size() >= self._filled_at,
        )

    # ---- Freezing and restoring ----

    def freeze(self, *, packed: bool = True, keep: bool = False) -> FrozenCell:
        """Returns the live cell's difference from the image.

        Args:
            packed: Whether to compress it.
            keep: Whether the cell stays live. If not, the VM holds no cell afterwards.
        """
        machine, image, began = self._live_machine(), self.image, time.monotonic()
        instance = machine.instance
        changed = image.changed_pages(instance)
        looked = time.monotonic() - began
        if len(changed) * PAGE > SCRUB_FROM:
            machine.run_gc()
            machine.scrub()
            changed = image.changed_pages(instance)
            self._attached = None  # the cell may grow again if it goes on
        if not keep:
            self.close()
        if packed:
            pages = image.compress(instance, changed)
        else:
            pages = b"".join(image.changes(instance, changed))
        heap, memory = min(int(self._mail[HEAP]), MAX_SETUP_HEAP), instance.memory_size()
        if keep and packed and self._measured.memory:  # the true size of a large cell was wanted
            self._origin = Setup(instance.read(0, memory), heap, len(pages))
            self._measured.note(memory, len(pages), looked)
        return FrozenCell(image.digest, memory, image.pointers, pages, heap)

    def restore(self, frozen: FrozenCell, limits: Limits) -> None:
        """Makes a frozen cell the live one.

        Raises:
            SnapshotRefused: The snapshot is not a difference from this image.
            SnapshotTooLarge: Its memory is larger than `limits` allow.
        """
        image = self.image
        if frozen.image != image.digest or frozen.pointers != image.pointers:
            raise SnapshotRefused("the snapshot was taken from another sandbox build")
        if frozen.memory % 65536 or frozen.memory < len(image.memory):
            raise SnapshotRefused("the snapshot has an impossible memory size")
        heap = min(frozen.heap, MAX_SETUP_HEAP)
        if frozen.memory > self._wall(limits, heap):
            raise SnapshotTooLarge(
                f"the snapshot needs {frozen.memory} bytes of memory, more than the current limit"
            )
        pages = list(image.read_pages(frozen))
        machine = self._reset(self._bare, limits, Outbox(0))
        self.live = False
        machine.instance.store.set_limits(memory_size=self._wall(limits, heap))
        machine.instance.grow_to(frozen.memory)
        for number, page in pages:
            machine.instance.write(number * PAGE, page)
        if frozen.memory > limits.snapshot_bytes:
            memory = machine.instance.read(0, frozen.memory)
            self._origin = Setup(memory, heap, len(frozen.pages))
        self.live, self._attached = True, None

    def frozen_at_most(self, limit: int, ran: float) -> int:
        """Returns an upper bound of the live cell's size as a snapshot, without freezing it.

        A page that has changed since the memory that the cell started from adds at most its own
        size. If the whole memory is not over `limit`, its size is a sufficient bound.

        Args:
            limit: The size that a snapshot may have.
            ran: Seconds that the last step took.
        """
        instance = self._live_machine().instance
        memory = instance.memory_size()
        return memory if memory <= limit else self._measured.bound(instance, self._origin, ran)

    # ---- The machine ----

    def drop(self) -> None:
        """Discards the live cell and its instance, which cannot be used again after a trap."""
        self.close()
        if self._machine is not None:
            self._machine.instance.store.close()
        self._machine = self._laid_out = None

    def close(self) -> None:
        """Discards the live cell; the instance can be used for the next cell."""
        self.live, self._origin, self._state = False, self._bare, None

    def _wall(self, limits: Limits, heap: int = 0) -> int:
        # The heap limit counts memory in use only; fragmentation may take half as much again.
        return len(self.image.memory) + 2 * heap + limits.memory_bytes * 3 // 2 + (4 << 20)

    def _live_machine(self) -> Machine:
        if self._machine is None or not self.live:
            raise RuntimeError("no cell is live in this worker")
        return self._machine

    def lay_out(self) -> None:
        """Replaces the memory of a cell that has ended by what the next probably starts from."""
        if not self.live and self._laid_out is None:
            self._lay_out(self._last)

    def _lay_out(self, setup: Setup) -> Machine:
        machine, handles, self._laid_out = self._machine, self.image.handles, None
        if machine is not None:
            grown = machine.instance.memory_size() - len(setup.memory)
            if grown > KEEP_GROWN:
                self.drop()
                machine = None
            elif grown > 0:
                machine.instance.fill(len(setup.memory), grown)
        if machine is None:
            machine = self._machine = Machine(self._engine, self._module, fixed=False)
            machine.handles, mail = handles, ctypes.c_double * MAILBOX
            self._mail = mail.from_address(machine.instance.base + handles.mailbox)
        machine.instance.store.set_limits(memory_size=len(setup.memory))
        machine.instance.grow_to(len(setup.memory))
        machine.instance.write(0, setup.memory)
        machine.rejections.clear()  # handles into the memory of the last cell
        self._laid_out = setup
        return machine

    def _reset(self, setup: Setup, limits: Limits, outbox: Outbox) -> Machine:
        self.live, self._state = False, None
        if self._machine is None or self._laid_out is not setup:
            self._lay_out(setup)
        self._mail[HEAP] = setup.heap
        self._laid_out = self._attached = None
        self.live, self._origin, self._measured = True, setup, SnapshotSize()
        machine = self._attach(limits, outbox)
        machine.shift = 0.0
        return machine

    def _attach(self, limits: Limits, outbox: Outbox) -> Machine:
        machine = self._live_machine()
        machine.emit = outbox.emit
        self._arm(machine.instance.store)
        if limits != self._attached:
            self._attached = limits
            heap = min(int(self._mail[HEAP]), MAX_SETUP_HEAP)
            machine.instance.store.set_limits(memory_size=self._wall(limits, heap))
            # The cell's limit counts on top of the heap that it started with.
            machine.set_memory_limit(heap + limits.memory_bytes)
            other = len(self.image.memory) - self.image.heap
            self._filled_at = other + heap + limits.memory_bytes * 9 // 10
            self._mail[MAX_CALLS] = limits.max_calls
            self._mail[MAX_OTHERS] = limits.max_others
            self._mail[MAX_WAITING] = limits.max_waiting
        self._mail[OUTPUT_LIMIT] = outbox.left
        return machine
