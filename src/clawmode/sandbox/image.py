"""Worker side: the image that cells start from, and memories as their difference from it.

The prelude runs once, with a fixed clock and fixed randomness, so the memory after it is the same
in every process of a build: that memory is the image. A frozen cell is the pages in which its
memory differs from the image.
"""

import hashlib
import struct
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import astuple, fields, replace

import wasmtime

from clawmode.exceptions import SnapshotRefused
from clawmode.sandbox.machine import GUEST_STACK, Handles, Machine, guest_file
from clawmode.sandbox.output import Outbox
from clawmode.sandbox.packing import new_compressor, unpack
from clawmode.sandbox.protocol import PAGE, FrozenCell
from clawmode.sandbox.wasm import BLOCK, Instance
from clawmode.types import dataclass

PROBE = 64 << 10
PRECISION = 1 << 10
MAX_IMAGE = 64 << 20
RUN = 64
"""Pages of a run at most."""

PIECE = 512
NOTHING = bytes(PIECE)

LOOK_AFTER = 4
"""A large cell is measured again when its memory has grown, or when the cell has run this many
times as long as measuring took: memory can also change without growing."""

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
"""The values that the prelude returns, in its order."""


@dataclass(frozen=True, slots=True)
class Image:
    """The memory that cells start from.

    Attributes:
        memory: The whole linear memory.
        digest: SHA-256 of memory and pointers.
        heap: The heap in use, as the engine counts it against its limit.
        pointers: Runtime, context and stack pointer.
        handles: Values in the memory that the host uses.
    """

    memory: bytes
    digest: bytes
    heap: int
    pointers: tuple[int, int, int]
    handles: Handles

    def changed_pages(self, instance: Instance) -> list[int]:
        """Returns the numbers of the pages in which a memory differs from the image."""
        return instance.changed_pages(self.memory, PAGE)

    def changes(self, instance: Instance, changed: list[int]) -> Iterator[bytes]:
        """Yields the numbers of changed pages, and then the pages; `read_pages` is the reverse."""
        yield struct.pack(f"<I{len(changed)}I", len(changed), *changed)
        known = len(self.memory) // PAGE
        within = bisect_left(changed, known)
        for number in changed[:within]:
            page = instance.read(number * PAGE, PAGE)
            # Most changed pages differ in a few bytes: XORed, they compress to a fifth.
            yield self._xor(number, page)
        for first, count in _runs(changed[within:]):
            yield instance.read(first * PAGE, count * PAGE)

    def _xor(self, number: int, page: bytes) -> bytes:
        known = self.memory[number * PAGE : (number + 1) * PAGE]
        if not known:
            return page
        # In pieces, most of which are equal: Python's numbers are slow to make from bytes.
        mixed: list[bytes] = []
        for start in range(0, PAGE, PIECE):
            one, other = page[start : start + PIECE], known[start : start + PIECE]
            if one == other:
                mixed.append(NOTHING)
            else:
                number = int.from_bytes(one, "little") ^ int.from_bytes(other, "little")
                mixed.append(number.to_bytes(PIECE, "little"))
        return b"".join(mixed)

    def compress(self, instance: Instance, changed: list[int]) -> bytes:
        """Compresses the changed pages of a memory."""
        # In parts: a heap near its limit must not be copied several times over.
        compressor = new_compressor()
        chunks = [compressor.compress(chunk) for chunk in self.changes(instance, changed)]
        return b"".join([*chunks, compressor.flush()])

    def read_pages(self, frozen: FrozenCell) -> Iterator[tuple[int, bytes]]:
        """Yields the changed pages of a frozen cell, with their numbers.

        Raises:
            SnapshotRefused: The pages cannot be decompressed, or do not fit the memory.
        """
        most = frozen.memory // PAGE
        try:
            body = unpack(frozen.pages, 4 + most * (PAGE + 4) + 1)
            (count,) = struct.unpack_from("<I", body)
            numbers = struct.unpack_from(f"<{count}I", body, 4) if count <= most else ()
        except (ValueError, struct.error) as error:
            raise SnapshotRefused(f"the snapshot's pages cannot be read: {error}") from None
        start = 4 + 4 * count
        if len(body) != start + count * PAGE or any(number >= most for number in numbers):
            raise SnapshotRefused("the snapshot's pages do not fit its memory")
        for position, number in enumerate(numbers):
            page = body[start + position * PAGE : start + (position + 1) * PAGE]
            yield number, self._xor(number, page)

    def dump(self) -> bytes:
        """Returns the image as bytes, for the cache; `load_image` is the reverse."""
        numbers = [self.heap, *self.pointers, *map(int, astuple(self.handles))]
        compressor = new_compressor()
        body = self.digest + struct.pack(f"<{len(numbers)}I", *numbers)
        return compressor.compress(body + self.memory) + compressor.flush()


@dataclass(frozen=True, slots=True)
class Setup:
    """A memory that a cell starts from: the bare image, one with a catalog, or a snapshot's.

    Attributes:
        memory: The whole linear memory.
        heap: The heap in use.
        size: The bytes that this memory takes as a snapshot, a difference from the bare image.
    """

    memory: bytes
    heap: int
    size: int = 0


@dataclass(slots=True)
class SnapshotSize:
    """How large a large cell was as a snapshot when it was measured last.

    Attributes:
        memory: The size of its linear memory then; 0 if the cell was not measured yet.
        most: The upper bound of its size as a snapshot.
        patience: Seconds that the cell may still run before it is measured again.
    """

    memory: int = 0
    most: int = 0
    patience: float = 0.0

    def bound(self, instance: Instance, origin: Setup, ran: float) -> int:
        """Returns the upper bound of a cell's size, measured again if the cell may have changed.

        Args:
            instance: The cell.
            origin: What the cell started from.
            ran: Seconds that the last step took.
        """
        memory = instance.memory_size()
        self.patience -= ran
        if memory > self.memory or self.patience < 0:
            began = time.monotonic()
            changed = len(instance.changed_pages(origin.memory, PAGE))
            most = min(memory, origin.size + PAGE * changed)
            self.note(memory, most, time.monotonic() - began)
        return self.most

    def note(self, memory: int, most: int, took: float) -> None:
        """Notes what a look has found that took some seconds."""
        self.memory, self.most, self.patience = memory, most, LOOK_AFTER * took


def _runs(pages: list[int]) -> Iterator[tuple[int, int]]:
    """Yields the runs of pages that follow each other: the first page, and their number."""
    start = 0
    for end in range(1, len(pages) + 1):
        whole = end - start == RUN
        if whole or end == len(pages) or pages[end] != pages[end - 1] + 1:
            yield pages[start], end - start
            start = end


def load_image(data: bytes) -> Image:
    """Reads what `Image.dump` has written. The host has checked that nobody altered it.

    Raises:
        ValueError: The data is not an image of this build.
    """
    body = unpack(data, MAX_IMAGE)
    numbers = struct.Struct(f"<{4 + len(fields(Handles))}I")
    start = 32 + numbers.size
    if len(body) <= start or (len(body) - start) % BLOCK:
        raise ValueError("the cached image has another size")
    heap, runtime, context, stack, *handles = numbers.unpack_from(body, 32)
    return Image(body[start:], body[:32], heap, (runtime, context, stack), Handles(*handles))


def build_image(engine: wasmtime.Engine, module: wasmtime.Module) -> Image:
    """Runs the prelude with a fixed clock and fixed randomness, and returns the memory."""
    machine = Machine(engine, module, fixed=True)
    instance = machine.instance
    machine.export("_initialize")()
    if machine.export("qjs_init")():
        raise RuntimeError("QuickJS could not be initialized")
    machine.export("qjs_set_max_stack_size")(GUEST_STACK)
    machine.export("qjs_set_promise_rejection_handler")(1)
    machine.handles = handles = _install_prelude(machine)
    _check_exceptions(machine)
    machine.run_gc()
    pointers = (
        machine.export("qjs_get_runtime_ptr")(),
        machine.export("qjs_get_context_ptr")(),
        instance.exported_global("__stack_pointer"),
    )
    memory = instance.read(0, instance.memory_size())
    digest = hashlib.sha256(memory + struct.pack("<3I", *pointers)).digest()
    return Image(memory, digest, heap_in_use(machine), pointers, handles)


def heap_in_use(machine: Machine) -> int:
    """Returns the heap that the engine counts against its memory limit.

    That is the least limit under which the engine can still allocate, found by bisection to
    `PRECISION`: the figure of `qjs_compute_memory_usage` is 160 KB less than what is enforced.
    """
    text = machine.allocate(bytes(PROBE))
    low, high = 0, machine.instance.memory_size() * 2
    while low + PRECISION <= high:
        limit = (low + high) // 2
        machine.set_memory_limit(limit)
        value = machine.new_string(text, PROBE)
        if machine.is_exception(value):
            machine.free_value(machine.get_exception())
            low = limit + 1
        else:
            machine.free_value(value)
            high = limit
    return high - PROBE


def _check_exceptions(machine: Machine) -> None:
    """Checks with the engine's own function that exceptions are recognized."""
    handles, text = machine.handles, machine.allocate(b"throw 1")
    assert handles is not None
    thrown = machine.eval(text, len(b"throw 1"), handles.filename, 0)
    machine.free(text)
    engine_says = machine.export("qjs_is_exception")
    for value in (thrown, handles.true, handles.undefined, handles.accept):
        if bool(engine_says(value)) != machine.is_exception(value):
            raise RuntimeError("the engine represents exceptions in another way")
    machine.free_value(machine.get_exception())
    machine.free_value(thrown)


def _install_prelude(machine: Machine) -> Handles:
    """Runs `web.js` and `prelude.js`, and returns handles of the prelude's functions."""
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
    # The mailbox is a typed array: the address of its buffer, plus its offset in there.
    scratch = bare.argv
    buffer = machine.export("qjs_get_typed_array_buffer")(
        item(entries, 0), scratch, scratch + 4, scratch + 8
    )
    offset = int.from_bytes(machine.instance.read(scratch, 4), "little")
    mailbox = machine.export("qjs_get_array_buffer")(buffer, scratch) + offset
    functions = [item(entries, index) for index in range(1, len(ENTRIES))]
    return replace(bare, **dict(zip(ENTRIES, [mailbox, *functions], strict=True)))
