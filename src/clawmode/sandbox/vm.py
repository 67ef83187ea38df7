"""Worker side: QuickJS. Starts a cell from the image, runs it to idle, freezes and restores it.

A VM is its linear memory. The prelude runs once, the memory after it is the image, and every cell
starts from a copy; a frozen cell is the pages in which it differs from the image. So nothing of a
cell may live outside of linear memory: the plumbing's state is in the prelude's closure, and what
this module keeps between two calls (handles, the mailbox's address) is part of the image and the
same in every process.

Tried and left out: a new instance per cell (0.6 ms more than copying the image back over a used
one); the engine's interrupt callback (a call into Python every few thousand operations; the epoch
costs nothing until it fires, and stops regular expressions too).
"""

import ctypes
import hashlib
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import wasmtime

from clawmode.exceptions import SnapshotRefused, SnapshotTooLarge
from clawmode.sandbox.machine import GUEST_STACK, Handles, Machine, guest_file
from clawmode.sandbox.output import Outbox
from clawmode.sandbox.protocol import MAX_SETUPS, PAGE, FrozenCell, Limits, Settlement, Start
from clawmode.sandbox.source import CompileFailure, PreparedSource
from clawmode.sandbox.wasm import Export

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SCRUB_FROM = 1 << 20
"""Changed bytes from which freed memory is zeroed before a freeze."""

KEEP_GROWN = 4 << 20
"""An instance whose memory grew by more than this is not kept: memory never shrinks."""

# Slots of the mailbox: see prelude.js.
SEED, OUTPUT_LIMIT, MAX_CALLS, MAX_OTHERS, ARGUMENT = 0, 4, 5, 6, 7
MAIN_STATE, QUEUED, OPEN_CALLS, OPEN_OTHERS, TIMEOUTS, NEXT_DUE, OVERFLOW, STARTED, HEAP = range(
    8, 17
)
MAILBOX = 24
PENDING, FULFILLED, REJECTED = 0, 1, 2

COMPILE_ONLY = 1 << 5
"""The engine's flag for a text that is compiled and not run."""

MAX_SETUP_HEAP = 256 << 20
PROBE = 64 << 10

ENTRIES = (
    "mailbox",
    "accept",
    "begin",
    "deliver",
    "collect",
    "fire",
    "track",
    "conclude",
    "fail",
    "install",
)
"""What the prelude returns, in its order."""


@dataclass(frozen=True, slots=True)
class Image:
    """The memory that cells start from."""

    memory: bytes
    pages: tuple[bytes, ...]
    digest: bytes
    heap: int
    pointers: tuple[int, int, int]
    handles: Handles


@dataclass(frozen=True, slots=True)
class Setup:
    """A memory that a cell went on from: the image, one with a catalog, or that of a snapshot.

    Snapshots are differences to the bare image; `size` is how many bytes this memory takes as one.
    """

    memory: bytes
    heap: int
    size: int = 0


@dataclass(frozen=True, slots=True)
class IdleState:
    """Where a cell stands when the guest has nothing left to do by itself.

    `filled` says that its heap has been about as large as it may be.
    """

    state: int
    requests: bytes
    timeouts: int
    due: float
    ended: bool
    stuck: bool
    overflow: bool
    filled: bool


def build_image(engine: wasmtime.Engine, module: wasmtime.Module) -> Image:
    """Runs the prelude with a fixed clock and fixed randomness: byte-identical everywhere."""
    machine = Machine(engine, module, fixed=True)
    instance = machine.instance
    machine.export("_initialize")()
    if machine.export("qjs_init")():
        raise RuntimeError("QuickJS could not be initialized")
    machine.export("qjs_set_max_stack_size")(GUEST_STACK)
    machine.export("qjs_set_promise_rejection_handler")(1)
    machine.handles = handles = _install_prelude(machine)
    machine.run_gc()
    pointers = (
        machine.export("qjs_get_runtime_ptr")(),
        machine.export("qjs_get_context_ptr")(),
        instance.exported_global("__stack_pointer"),
    )
    memory = instance.read(0, instance.memory_size())
    pages = tuple(memory[at : at + PAGE] for at in range(0, len(memory), PAGE))
    digest = hashlib.sha256(memory + struct.pack("<3I", *pointers)).digest()
    return Image(memory, pages, digest, _heap_in_use(machine), pointers, handles)


def _heap_in_use(machine: Machine) -> int:
    """What the engine counts against its memory limit: the least limit under which it can allocate.

    Found by trying. What `qjs_compute_memory_usage` reports is 160 KB less than what is enforced.
    """
    text = machine.allocate(bytes(PROBE))
    low, high = 0, machine.instance.memory_size() * 2
    while low < high:
        limit = (low + high) // 2
        machine.set_memory_limit(limit)
        value = machine.new_string(text, PROBE)
        if machine.is_exception(value):
            machine.free_value(machine.get_exception())
            low = limit + 1
        else:
            machine.free_value(value)
            high = limit
    return low - PROBE


def _install_prelude(machine: Machine) -> Handles:
    bare = machine.handles = Handles.bare(machine)
    new_function = machine.export("qjs_new_host_function")
    emitters = []
    for channel in Outbox.CHANNELS:
        name = machine.allocate(channel)
        emitters.append(new_function(name, 1, 0))
        machine.free(name)
    web = machine.expect(machine.call_with(machine.evaluate(guest_file("web.js"), "web.js")))
    prelude = machine.evaluate(guest_file("prelude.js"), "prelude.js")
    entries = machine.expect(machine.call_with(prelude, *emitters, web))
    item = machine.export("qjs_get_prop_uint32")
    buffer = machine.export("qjs_get_typed_array_buffer")
    mailbox = _mailbox_address(machine, buffer, item(entries, 0), bare.argv)
    functions = [item(entries, index) for index in range(1, len(ENTRIES))]
    return replace(bare, **dict(zip(ENTRIES, [mailbox, *functions], strict=True)))


def _mailbox_address(machine: Machine, buffer: Export, array: int, scratch: int) -> int:
    backing = buffer(array, scratch, scratch + 4, scratch + 8)
    offset = int.from_bytes(machine.instance.read(scratch, 4), "little")
    return machine.export("qjs_get_array_buffer")(backing, scratch) + offset


class Vm:
    """The one cell that lives in this worker, if any, and the image that the next starts from."""

    def __init__(
        self,
        engine: wasmtime.Engine,
        module: wasmtime.Module,
        arm: Callable[[wasmtime.Store], None],
    ) -> None:
        self._engine, self._module, self._arm = engine, module, arm
        self.image = build_image(engine, module)
        self._machine: Machine | None = None
        self._bare = self._origin = Setup(self.image.memory, self.image.heap)
        self._setups: dict[bytes, Setup] = {}
        self._filled_at = 0
        self.live = False

    def warm_up(self) -> None:
        """Makes the instance that the first cell will use."""
        self._reset(self._bare, Limits(), Outbox(0))
        self.live = False

    # ---- Starting, going on ----

    def install(self, key: bytes, data: bytes) -> None:
        """Makes the image that cells of one catalog start from."""
        machine = self._reset(self._bare, Limits(memory_bytes=MAX_SETUP_HEAP), Outbox(0))
        machine.expect(machine.call_with_text(self.image.handles.install, data))
        machine.run_gc()
        self._mail[HEAP] = 0
        memory = machine.instance.read(0, machine.instance.memory_size())
        size = len(self._compress(machine, self._changed_pages(machine)))
        self._setups[key] = Setup(memory, _heap_in_use(machine), size)
        if len(self._setups) > MAX_SETUPS:
            del self._setups[next(iter(self._setups))]
        self.live = False

    def start(self, prepared: PreparedSource, start: Start, outbox: Outbox) -> bool:
        """Compiles a cell and calls it. False: the text is not one function."""
        setup = self._setups[start.setup] if start.setup else self._bare
        machine = self._reset(setup, start.limits, outbox)
        handles = self.image.handles
        self._mail[SEED : SEED + 4] = struct.unpack("<4I", os.urandom(16))
        self._mail[STARTED] = time.time() * 1000
        self._mail[ARGUMENT] = prepared.body
        text = machine.allocate(prepared.wrapped)
        main = machine.eval(text, len(prepared.wrapped), handles.filename, 0)
        machine.free(text)
        if machine.is_exception(main):
            machine.check(main)
            closed = self._compiles(machine, prepared.unclosed)
            outbox.uncompiled = CompileFailure(closed, prepared.line_map)
            return True
        accepted = self._accept(machine, main, prepared)
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

    def _compiles(self, machine: Machine, source: bytes) -> bool:
        text = machine.allocate(source)
        made = machine.eval(text, len(source), self.image.handles.filename, COMPILE_ONLY)
        machine.free(text)
        refused = machine.is_exception(made)
        machine.free_value(machine.get_exception() if refused else made)
        return not refused

    def _accept(self, machine: Machine, main: int, prepared: PreparedSource) -> int:
        accept = self.image.handles.accept
        if prepared.line_map is None:
            return machine.call_with(accept, main)
        text = machine.new_text(prepared.line_map.encode().encode())
        accepted = machine.call_with(accept, main, text)
        machine.free_value(text)
        return accepted

    def resume(self, settled: tuple[Settlement, ...], limits: Limits, outbox: Outbox) -> None:
        """Delivers replies to the live cell, in the order in which they settled."""
        machine = self._attach(limits, outbox)
        if settled:
            replies = b",".join(
                b"[%d,%s,%s]" % (item.id, b"true" if item.ok else b"false", item.value)
                for item in settled
            )
            handles = self.image.handles
            machine.check(machine.call_with_text(handles.deliver, b"[" + replies + b"]"))

    def run(self, now: float) -> IdleState:
        """Runs jobs and due timers until the guest is idle.

        Args:
            now: The earliest time that it can be, in milliseconds since 1970: a cell that was
                resumed for a timer must find it due, whatever this machine's clock says.
        """
        machine, mail, handles = self._live_machine(), self._mail, self.image.handles
        while True:
            self._drain(machine)
            if mail[MAIN_STATE] == REJECTED:
                break
            due = mail[NEXT_DUE]
            clock = max(now, time.time() * 1000)
            if due == 0 or due > clock:
                break
            mail[ARGUMENT] = clock
            machine.check(machine.call_with(handles.fire))
        return self._idle(machine)

    def _drain(self, machine: Machine) -> None:
        run_job = machine.run_job
        while (ran := run_job()) != 0 or machine.rejections:
            if ran & 0x80000000:
                machine.fail()
            machine.track_rejections()

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
            overflow=bool(mail[OVERFLOW]),
            filled=machine.instance.memory_size() >= self._filled_at,
        )

    # ---- Freezing, restoring ----

    def freeze(self) -> FrozenCell:
        """The live cell as its difference to the image. The VM holds no cell afterwards."""
        machine = self._live_machine()
        changed = self._changed_pages(machine)
        if len(changed) * PAGE > SCRUB_FROM:
            machine.run_gc()
            self._scrub(machine)
            changed = self._changed_pages(machine)
        self.close()
        pages = self._compress(machine, changed)
        heap = min(int(self._mail[HEAP]), MAX_SETUP_HEAP)
        memory = machine.instance.memory_size()
        return FrozenCell(self.image.digest, memory, self.image.pointers, pages, heap)

    def _changed_pages(self, machine: Machine) -> list[int]:
        base, zero, read = self.image.pages, bytes(PAGE), machine.instance.read
        known, total = len(base), machine.instance.memory_size() // PAGE
        changed = [number for number in range(known) if read(number * PAGE, PAGE) != base[number]]
        return changed + [
            number for number in range(known, total) if read(number * PAGE, PAGE) != zero
        ]

    def _compress(self, machine: Machine, changed: list[int]) -> bytes:
        # Page by page: a heap near its limit must not be copied several times over.
        compressor = zstd.ZstdCompressor(level=1)
        made = [compressor.compress(struct.pack(f"<I{len(changed)}I", len(changed), *changed))]
        for number in changed:
            page = machine.instance.read(number * PAGE, PAGE)
            if number < len(self.image.pages):
                # It differs in a few bytes: stored as what to flip, it compresses to a fifth.
                page = _xor(page, self.image.pages[number])
            made.append(compressor.compress(page))
        made.append(compressor.flush())
        return b"".join(made)

    def _scrub(self, machine: Machine) -> None:
        """Zeroes free memory, which else is stored like memory in use.

        The allocator's free blocks are found by allocating them all, large ones first, while the
        memory may not grow.
        """
        instance = machine.instance
        taken: list[int] = []
        instance.store.set_limits(memory_size=instance.memory_size())
        size = 1 << 28
        while size >= 1024:
            address = machine.malloc(size)
            if address:
                instance.fill(address, size)
                taken.append(address)
            else:
                size >>= 1
        for address in taken:
            machine.free(address)

    def restore(self, frozen: FrozenCell, limits: Limits) -> None:
        """Makes a frozen cell the live one.

        Raises:
            SnapshotRefused: It is not a difference to this image.
            SnapshotTooLarge: Its memory is over what `limits` allow.
        """
        image = self.image
        if frozen.image != image.digest or frozen.pointers != image.pointers:
            raise SnapshotRefused("the snapshot was taken from another sandbox build")
        if frozen.memory % 65536 or frozen.memory < len(image.memory):
            raise SnapshotRefused("the snapshot's memory length is impossible")
        heap = min(frozen.heap, MAX_SETUP_HEAP)
        if frozen.memory > self._wall(limits, heap):
            raise SnapshotTooLarge(
                f"the snapshot needs {frozen.memory} bytes of memory, over the limit in force"
            )
        pages = list(_read_pages(frozen, image))
        machine = self._reset(self._bare, limits, Outbox(0))
        self.live = False
        machine.instance.store.set_limits(memory_size=self._wall(limits, heap))
        machine.instance.grow_to(frozen.memory)
        for number, page in pages:
            machine.instance.write(number * PAGE, page)
        if frozen.memory > limits.snapshot_bytes:
            memory = machine.instance.read(0, frozen.memory)
            self._origin = Setup(memory, heap, len(frozen.pages))
        self.live = True

    def frozen_at_most(self, limit: int) -> int:
        """A bound for the size of the live cell as a snapshot, without the cost of freezing it.

        A page that has changed since the memory that the cell went on from adds at most itself. If
        the whole memory is not over `limit`, its length is bound enough.
        """
        instance, origin = self._live_machine().instance, self._origin
        most = instance.memory_size()
        if most > limit:
            most = min(most, origin.size + PAGE * instance.count_changed(origin.memory, PAGE))
        return most

    # ---- The machine ----

    def drop(self) -> None:
        """Forgets the live cell and the instance it ran in: after a trap nothing can be kept."""
        self.close()
        if self._machine is not None:
            self._machine.instance.store.close()
        self._machine = None

    def close(self) -> None:
        """Forgets the live cell; the instance can be used for the next."""
        self.live, self._origin = False, self._bare

    def _wall(self, limits: Limits, heap: int = 0) -> int:
        # Behind the heap limit, which counts what is in use: fragments may take half as much.
        return len(self.image.memory) + 2 * heap + limits.memory_bytes * 3 // 2 + (4 << 20)

    def _live_machine(self) -> Machine:
        if self._machine is None or not self.live:
            raise RuntimeError("no cell is live in this worker")
        return self._machine

    def _reset(self, setup: Setup, limits: Limits, outbox: Outbox) -> Machine:
        self.live = False
        machine, image = self._machine, self.image
        if machine is not None:
            grown = machine.instance.memory_size() - len(setup.memory)
            if grown > KEEP_GROWN:
                self.drop()
                machine = None
            elif grown > 0:
                machine.instance.fill(len(setup.memory), grown)
        if machine is None:
            machine = Machine(self._engine, self._module, fixed=False)
            machine.handles = image.handles
            mail = ctypes.c_double * MAILBOX
            self._mail = mail.from_address(machine.instance.base + image.handles.mailbox)
            self._machine = machine
        machine.instance.store.set_limits(memory_size=self._wall(limits, setup.heap))
        machine.instance.grow_to(len(setup.memory))
        machine.instance.write(0, setup.memory)
        self._mail[HEAP] = setup.heap
        # Handles into the memory of the cell before: a getter may reject while its failure is told.
        machine.rejections.clear()
        self.live, self._origin = True, setup
        return self._attach(limits, outbox)

    def _attach(self, limits: Limits, outbox: Outbox) -> Machine:
        machine = self._live_machine()
        machine.outbox = outbox
        heap = min(int(self._mail[HEAP]), MAX_SETUP_HEAP)
        machine.instance.store.set_limits(memory_size=self._wall(limits, heap))
        self._arm(machine.instance.store)
        # The limit counts above the heap that the cell started with, which it carries along.
        machine.set_memory_limit(heap + limits.memory_bytes)
        other = len(self.image.memory) - self.image.heap
        self._filled_at = other + heap + limits.memory_bytes * 9 // 10
        self._mail[OUTPUT_LIMIT] = outbox.left
        self._mail[MAX_CALLS] = limits.max_calls
        self._mail[MAX_OTHERS] = limits.max_others
        return machine


def _xor(left: bytes, right: bytes) -> bytes:
    mixed = int.from_bytes(left, "little") ^ int.from_bytes(right, "little")
    return mixed.to_bytes(PAGE, "little")


def _read_pages(frozen: FrozenCell, image: Image) -> Iterator[tuple[int, bytes]]:
    most = frozen.memory // PAGE
    try:
        body = zstd.ZstdDecompressor().decompress(
            frozen.pages, max_length=4 + most * (PAGE + 4) + 1
        )
        (count,) = struct.unpack_from("<I", body)
        numbers = struct.unpack_from(f"<{count}I", body, 4) if count <= most else ()
    except (zstd.ZstdError, struct.error) as error:
        raise SnapshotRefused(f"the snapshot's pages cannot be read: {error}") from None
    start = 4 + 4 * count
    if len(body) != start + count * PAGE or any(number >= most for number in numbers):
        raise SnapshotRefused("the snapshot's pages do not fit its memory")
    for position, number in enumerate(numbers):
        page = body[start + position * PAGE : start + (position + 1) * PAGE]
        yield number, _xor(page, image.pages[number]) if number < len(image.pages) else page
