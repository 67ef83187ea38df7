"""Worker side: the image that cells start from, and memories as their difference from it.

The prelude runs once, with a fixed clock and fixed randomness, so the memory after it is the same
in every process of a build: that memory is the image. A frozen cell is the pages in which its
memory differs from the image.
"""

import hashlib
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import wasmtime

from clawmode.exceptions import SnapshotRefused
from clawmode.sandbox.machine import GUEST_STACK, Handles, Machine, guest_file
from clawmode.sandbox.output import Outbox
from clawmode.sandbox.protocol import PAGE, FrozenCell
from clawmode.sandbox.wasm import Instance

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

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
"""The values that the prelude returns, in its order."""


@dataclass(frozen=True, slots=True)
class Image:
    """The memory that cells start from.

    Attributes:
        memory: The whole linear memory.
        pages: The same memory in pages of 4 KiB.
        digest: SHA-256 of memory and pointers.
        heap: The heap in use, as the engine counts it against its limit.
        pointers: Runtime, context and stack pointer.
        handles: Values in the memory that the host uses.
    """

    memory: bytes
    pages: tuple[bytes, ...]
    digest: bytes
    heap: int
    pointers: tuple[int, int, int]
    handles: Handles

    def changed_pages(self, instance: Instance) -> list[int]:
        """Returns the numbers of the pages in which a memory differs from the image."""
        base, zero, read = self.pages, bytes(PAGE), instance.read
        known, total = len(base), instance.memory_size() // PAGE
        changed = [number for number in range(known) if read(number * PAGE, PAGE) != base[number]]
        return changed + [
            number for number in range(known, total) if read(number * PAGE, PAGE) != zero
        ]

    def compress(self, instance: Instance, changed: list[int]) -> bytes:
        """Compresses changed pages of a memory; `read_pages` is the reverse."""
        # Page by page: a heap near its limit must not be copied several times over.
        compressor = zstd.ZstdCompressor(level=1)
        chunks = [compressor.compress(struct.pack(f"<I{len(changed)}I", len(changed), *changed))]
        for number in changed:
            page = instance.read(number * PAGE, PAGE)
            if number < len(self.pages):
                # Most changed pages differ in a few bytes: XORed, they compress to a fifth.
                page = _xor(page, self.pages[number])
            chunks.append(compressor.compress(page))
        chunks.append(compressor.flush())
        return b"".join(chunks)

    def read_pages(self, frozen: FrozenCell) -> Iterator[tuple[int, bytes]]:
        """Yields the changed pages of a frozen cell, with their numbers.

        Raises:
            SnapshotRefused: The pages cannot be decompressed, or do not fit the memory.
        """
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
            yield number, _xor(page, self.pages[number]) if number < len(self.pages) else page


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
    machine.run_gc()
    pointers = (
        machine.export("qjs_get_runtime_ptr")(),
        machine.export("qjs_get_context_ptr")(),
        instance.exported_global("__stack_pointer"),
    )
    memory = instance.read(0, instance.memory_size())
    pages = tuple(memory[at : at + PAGE] for at in range(0, len(memory), PAGE))
    digest = hashlib.sha256(memory + struct.pack("<3I", *pointers)).digest()
    return Image(memory, pages, digest, heap_in_use(machine), pointers, handles)


def heap_in_use(machine: Machine) -> int:
    """Returns the heap that the engine counts against its memory limit.

    That is the least limit under which the engine can still allocate, found by bisection: the
    figure of `qjs_compute_memory_usage` is 160 KB less than what the engine enforces.
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


def _xor(left: bytes, right: bytes) -> bytes:
    mixed = int.from_bytes(left, "little") ^ int.from_bytes(right, "little")
    return mixed.to_bytes(PAGE, "little")
