"""Worker side: one wasm instance of QuickJS, its imports, and access to its values.

This module knows nothing of cells: `vm` runs cells in a machine, and `guard` runs a parser.
"""

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from weakref import proxy

import wasmtime

from clawmode.sandbox.wasm import Export, HostFunction, Instance
from clawmode.types import dataclass

GUEST_STACK = 256 << 10
"""QuickJS's own stack limit. It is far under wasm's limit, so that the guest hits it first and can
catch the error."""

FIXED_CLOCK = 1_700_000_000_000_000_000
"""The time that a machine with a fixed clock always reports, in nanoseconds."""

MAX_RANDOM = 64 << 10

TAG, EXCEPTION = 4, 6
"""Where the kind of a value is behind its handle, and the kind that says "an exception". Reading it
takes a tenth of a call of `qjs_is_exception`; `build_image` checks that both agree."""

COMPILE_ONLY = 1 << 5
"""The engine's flag that compiles a text without running it."""

_BADF, _INVALID = 8, 28


class OutOfGuestMemory(Exception):
    """The guest heap is exhausted, so the guest cannot even describe the error."""


@dataclass(frozen=True, slots=True)
class Handles:
    """Addresses of values that the host keeps. They are the same in every copy of a memory."""

    undefined: int
    true: int
    argv: int
    length: int
    filename: int
    mailbox: int = 0
    accept: int = 0
    begin: int = 0
    deliver: int = 0
    collect: int = 0
    fire: int = 0
    track: int = 0
    conclude: int = 0
    fail: int = 0
    install: int = 0

    @classmethod
    def bare(cls, machine: "Machine") -> "Handles":
        """Allocates the values that calls need before the prelude is installed."""
        return cls(
            undefined=machine.new_undefined(),
            true=machine.export("qjs_get_true")(),
            argv=machine.malloc(64),
            length=machine.malloc(4),
            filename=machine.allocate(b"cell"),
        )


class Machine:
    """One wasm instance of QuickJS, with its imports and the exports that are used.

    Args:
        engine: The worker's engine.
        module: QuickJS.
        fixed: Whether clock and randomness are fixed, so that every process gets the same memory.

    Attributes:
        emit: Called with channel and data of everything that the guest emits; may answer.
        handles: The values that calls need.
        shift: How far the guest's clock is ahead of this machine's, in milliseconds.
        rejections: Promises that were rejected, or handled after that, and are not tracked yet.
    """

    def __init__(self, engine: wasmtime.Engine, module: wasmtime.Module, *, fixed: bool) -> None:
        self.emit: Callable[[bytes, bytes], bytes | None] = lambda channel, data: None
        self.handles: Handles | None = None
        self.rejections: list[tuple[int, int, int]] = []
        self.shift = 0.0
        self._fixed = fixed
        self.instance = instance = Instance(engine, module, self._imports())
        self.malloc = instance.export("wasm_malloc")
        self.free = instance.export("wasm_free")
        self.eval = instance.export("qjs_eval")
        self.call = instance.export("qjs_call")
        self.run_job = instance.export("qjs_execute_pending_job")
        self.new_string = instance.export("qjs_new_string")
        self.get_string = instance.export("qjs_get_string_len")
        self.free_string = instance.export("qjs_free_cstring")
        self.get_exception = instance.export("qjs_get_exception")
        self.free_value = instance.export("qjs_free_value")
        self.get_bool = instance.export("qjs_get_bool")
        self.new_undefined = instance.export("qjs_get_undefined")
        self.set_memory_limit = instance.export("qjs_set_memory_limit")
        self.run_gc = instance.export("qjs_run_gc")
        self._word = instance.word

    def export(self, name: str) -> Export:
        """Returns an export that is used too rarely to be kept as an attribute."""
        return self.instance.export(name)

    # ---- Imports ----

    def _imports(self) -> dict[str, HostFunction]:
        # wasmtime-py keeps host functions in a global table until their store is freed. A strong
        # reference to the machine would keep its store alive, so no instance would ever be freed.
        weak = proxy(self)
        return {
            "host_call": lambda *args: weak._host_call(*args),
            "host_promise_rejection": lambda *args: weak._promise_rejection(*args),
            "host_interrupt": lambda: 0,
            "host_get_timezone_offset": lambda high, low: 0,
            "host_module_normalize": lambda base, name: 0,
            "host_module_load": lambda name, length: 0,
            "clock_time_get": lambda *args: weak._clock_time_get(*args),
            "random_get": lambda *args: weak._random_get(*args),
            "fd_close": lambda fd: _BADF,
            "fd_fdstat_get": lambda fd, stat: _BADF,
            "fd_seek": lambda fd, offset, whence, result: _BADF,
            "fd_write": lambda fd, vectors, count, written: _BADF,
        }

    def _clock_time_get(self, clock: int, precision: int, result: int) -> int:
        # Wall clock for both clocks: after a restore on another machine a monotonic clock would
        # jump.
        now = FIXED_CLOCK if self._fixed else time.time_ns() + int(self.shift * 1e6)
        self.instance.write(result & 0xFFFFFFFF, now.to_bytes(8, "little"))
        return 0

    def _random_get(self, buffer: int, length: int) -> int:
        if not 0 <= length <= MAX_RANDOM:
            return _INVALID
        data = bytes(length) if self._fixed else os.urandom(length)
        self.instance.write(buffer & 0xFFFFFFFF, data)
        return 0

    def _host_call(self, name: int, length: int, this: int, argc: int, argv: int) -> int:
        channel = self.instance.read(name & 0xFFFFFFFF, 1)
        first = self._word(argv & 0xFFFFFFFF)
        answer = self.emit(channel, self.text_of(first))
        if answer is None:
            return self.new_undefined()
        value = self.new_text(answer)
        if self.is_exception(value):
            self.free_value(self.get_exception())
            raise OutOfGuestMemory
        return value

    def _promise_rejection(self, promise: int, reason: int, handled: int) -> None:
        # The host must free both handles. The prelude is told when the guest is idle: here the
        # guest may be at the end of its stack or heap, where a call into it would fail.
        self.rejections.append((promise, reason, handled))

    def track_rejections(self) -> None:
        """Passes promises that were rejected, or handled after that, on to the prelude."""
        handles = self.handles
        assert handles is not None
        rejections = self.rejections
        self.rejections = []
        for promise, reason, handled in rejections:
            flag = handles.true if handled else handles.undefined
            self.check(self.call_with(handles.track, promise, reason, flag))
            self.free_value(promise)
            self.free_value(reason)

    # ---- Values ----

    def allocate(self, data: bytes) -> int:
        """Copies `data` and a NUL into guest memory; the caller frees it."""
        address = self.malloc(len(data) + 1)
        if address == 0:
            raise OutOfGuestMemory
        self.instance.write(address, data + b"\0")
        return address

    def text_of(self, value: int) -> bytes:
        """Returns the UTF-8 of a guest string."""
        handles = self.handles
        assert handles is not None
        address = self.get_string(value, handles.length)
        if address == 0:
            self.free_value(self.get_exception())
            raise OutOfGuestMemory
        length = self._word(handles.length)
        data = self.instance.read(address, length)
        self.free_string(address)
        return data

    def is_exception(self, value: int) -> bool:
        """True if a handle is one of the exception that the engine has thrown."""
        return self._word(value + TAG) == EXCEPTION

    def call_with(self, function: int, *args: int) -> int:
        """Calls a guest function; returns a handle of its result, which may be an exception."""
        handles = self.handles
        assert handles is not None
        if args:
            self.instance.write(handles.argv, struct.pack(f"<{len(args)}I", *args))
        return self.call(function, handles.undefined, len(args), handles.argv)

    def new_text(self, text: bytes) -> int:
        """Creates a guest string; the caller frees it."""
        address = self.allocate(text)
        value = self.new_string(address, len(text))
        self.free(address)
        return value

    def call_with_text(self, function: int, text: bytes) -> int:
        """Calls a guest function with one string."""
        value = self.new_text(text)
        result = self.call_with(function, value)
        self.free_value(value)
        return result

    def evaluate(self, source: bytes, name: str) -> int:
        """Evaluates one of the sandbox's own scripts, such as the prelude."""
        text, label = self.allocate(source), self.allocate(name.encode())
        result = self.eval(text, len(source), label, 0)
        self.free(text)
        self.free(label)
        return self.expect(result)

    def compiles(self, source: bytes) -> bool:
        """True if a text can be compiled. Runs nothing of it."""
        assert self.handles is not None
        text = self.allocate(source)
        made = self.eval(text, len(source), self.handles.filename, COMPILE_ONLY)
        self.free(text)
        refused = self.is_exception(made)
        self.free_value(self.get_exception() if refused else made)
        return not refused

    def expect(self, result: int) -> int:
        """Returns the result of a call without guest code, where an exception is our own bug."""
        if self.is_exception(result):
            error = self.text_of(self.get_exception())
            raise RuntimeError(f"a script of the sandbox failed: {error.decode(errors='replace')}")
        return result

    def check(self, result: int) -> None:
        """Frees a result. If it is an exception, it becomes the guest's failure."""
        if self.is_exception(result):
            self.fail()
        self.free_value(result)

    def fail(self) -> None:
        """Lets the prelude describe the pending exception."""
        assert self.handles is not None
        error = self.get_exception()
        result = self.call_with(self.handles.fail, error)
        self.free_value(error)
        if self.is_exception(result):
            raise OutOfGuestMemory
        self.free_value(result)

    # ---- Memory ----

    def scrub(self) -> None:
        """Zeroes free memory, which would otherwise be stored like memory in use.

        The allocator's free blocks are found by allocating all of them, large ones first, while the
        memory may not grow.
        """
        instance = self.instance
        taken: list[int] = []
        instance.store.set_limits(memory_size=instance.memory_size())
        size = 1 << 28
        while size >= 1024:
            address = self.malloc(size)
            if address:
                instance.fill(address, size)
                taken.append(address)
            else:
                size >>= 1
        for address in taken:
            self.free(address)


# Read at import, because a locked-down worker cannot open files.
_SCRIPTS = {path.name: path.read_bytes() for path in (Path(__file__).parent / "guest").glob("*.js")}


def guest_file(name: str) -> bytes:
    """Returns the text of a script in `guest/`."""
    return _SCRIPTS[name]
