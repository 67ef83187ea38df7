"""Worker side: wasmtime's engine settings, and a fast way to call exports.

Only this module uses wasmtime's raw binding, which may change with each monthly major version. The
version is pinned in `pyproject.toml`. A change of this file compiles all machine code anew, because
the cache key includes its text (`artifacts`).
"""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

import wasmtime
from wasmtime import _bindings as bindings
from wasmtime import _ffi as ffi
from wasmtime import _func as functions

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

BLOCK = 64 << 10
"""Bytes of a wasm page. The size of a memory is a multiple of it."""

_zeros = ctypes.create_string_buffer(BLOCK)
_ZEROS = ctypes.addressof(_zeros)

HostFunction: TypeAlias = Callable[..., int | None]

MAX_WASM_STACK = 8 << 20
THREAD_STACK = 48 << 20
"""Stack of the thread that runs guests; wasmtime uses `MAX_WASM_STACK` of it for wasm frames."""

Interrupted = wasmtime.TrapCode.INTERRUPT


def new_engine(*, compiling: bool = False) -> wasmtime.Engine:
    """Returns an engine. Every setting that shapes machine code is here and nowhere else."""
    config = wasmtime.Config()
    config.epoch_interruption = True
    # `Instance.base` is read once, so a memory must never move.
    config.memory_may_move = False
    # With more than 2 MiB, wasmtime aborts the process unless its unused async stacks are larger.
    ffi.wasmtime_config_async_stack_size_set(config.ptr(), 2 * MAX_WASM_STACK)
    config.max_wasm_stack = MAX_WASM_STACK
    # Copy-on-write needs `memfd_create`, which a locked-down worker may not call.
    config.memory_init_cow = False
    config.parallel_compilation = compiling
    return wasmtime.Engine(config)


class Export:
    """An exported function of i32 parameters and at most one i32 result, called unchecked.

    `wasmtime.Func.__call__` asks for the function's type and boxes every value on each call, which
    takes 17 µs instead of 3 µs. Unchecked calls need the right number of slots: it is read from the
    type once.
    """

    __slots__ = ("_call", "_context", "_func", "_keep", "_slots", "_values")

    def __init__(self, store: wasmtime.Store, func: wasmtime.Func) -> None:
        kind = func.type(store)
        self._slots = max(len(kind.params), len(kind.results), 1)
        self._values = (ffi.wasmtime_val_raw_t * self._slots)()
        self._keep = (store, func)
        self._context = store._context()
        self._func = ctypes.byref(func._func)
        self._call = bindings._wasmtime_func_call_unchecked

    def __call__(self, *params: int) -> int:
        """Calls the function. Raises its trap, or the exception of a host function."""
        values = self._values
        for i, value in enumerate(params):
            values[i].i32 = value
        trap = _TrapPointer()
        error = self._call(self._context, self._func, values, self._slots, ctypes.byref(trap))
        if error or trap:
            _raise(error, trap)
        return values[0].i32 & 0xFFFFFFFF


_TrapPointer = ctypes.POINTER(ffi.wasm_trap_t)


def _raise(error: Any, trap: Any) -> NoReturn:
    raised = wasmtime.Trap._from_ptr(trap) if trap else wasmtime.WasmtimeError._from_ptr(error)
    # The exception of a host function, if there is one, says more than the trap it caused.
    cause, functions.LAST_EXCEPTION = functions.LAST_EXCEPTION, None
    try:
        raise cause if cause is not None else raised
    finally:
        # A local variable that holds the exception makes a reference cycle, which keeps the guest's
        # memory until the next garbage collection.
        del cause, raised


class Instance:
    """One instance of a module with one memory: exports by name, and its bytes."""

    def __init__(
        self, engine: wasmtime.Engine, module: wasmtime.Module, imports: dict[str, HostFunction]
    ) -> None:
        self.store = wasmtime.Store(engine)
        self.store.set_epoch_deadline(1)
        provided = [
            wasmtime.Func(self.store, wanted.type, imports[wanted.name or ""])
            for wanted in module.imports
            if isinstance(wanted.type, wasmtime.FuncType)
        ]
        instance = wasmtime.Instance(self.store, module, provided)
        self._exports = instance.exports(self.store)
        memory = self._exports["memory"]
        assert isinstance(memory, wasmtime.Memory)
        self._memory = memory
        self.base = ctypes.addressof(memory.data_ptr(self.store).contents)
        self._size = self.memory_size()

    def export(self, name: str) -> Export:
        function = self._exports[name]
        assert isinstance(function, wasmtime.Func)
        return Export(self.store, function)

    def exported_global(self, name: str) -> int:
        """Returns the value of an exported i32 global."""
        value = self._exports[name]
        assert isinstance(value, wasmtime.Global)
        return int(value.value(self.store))

    def memory_size(self) -> int:
        """Returns the current size of linear memory in bytes."""
        self._size = self._memory.data_len(self.store)
        return self._size

    def grow_to(self, size: int) -> None:
        """Grows linear memory to at least `size` bytes."""
        missing = size - self.memory_size()
        if missing > 0:
            self._memory.grow(self.store, (missing + 0xFFFF) >> 16)
            self.memory_size()

    def _check(self, address: int, length: int) -> int:
        # Addresses are read from guest memory, which may come from a hostile snapshot.
        if address + length > self._size and address + length > self.memory_size():
            raise wasmtime.WasmtimeError("address outside of linear memory")
        return self.base + address

    def read(self, address: int, length: int) -> bytes:
        """Returns a copy of `length` bytes at `address`."""
        return ctypes.string_at(self._check(address, length), length)

    def write(self, address: int, data: bytes) -> None:
        ctypes.memmove(self._check(address, len(data)), data, len(data))

    def count_changed(self, known: bytes, page: int) -> int:
        """Counts the pages that differ from `known`, which continues with zeros after its end.

        Both sizes are multiples of a wasm page, and `known` is not the longer one.
        """
        start, end, changed = self.base, self.base + self.memory_size(), 0
        shift = (ctypes.cast(ctypes.c_char_p(known), ctypes.c_void_p).value or 0) - start
        for block in range(start, end, BLOCK):
            # Whole blocks first: a call for each page would take longer than the comparison.
            other = block + shift if block < start + len(known) else _ZEROS
            if _compare(block, other, BLOCK):
                changed += sum(
                    _compare(block + at, other + at, page) != 0 for at in range(0, BLOCK, page)
                )
        return changed

    def fill(self, address: int, length: int) -> None:
        """Zeroes `length` bytes at `address`."""
        ctypes.memset(self._check(address, length), 0, length)


def is_interrupt(trap: BaseException) -> bool:
    """True if the epoch caused the trap: the deadline passed, or the step was aborted."""
    return isinstance(trap, wasmtime.Trap) and trap.trap_code == Interrupted


def compile_module(wasm: bytes) -> bytes:
    """Compiles `wasm` for this CPU, to machine code for `Module.deserialize`."""
    return bytes(wasmtime.Module(new_engine(compiling=True), wasm).serialize())


def main(parent: str) -> None:
    """Compiles the wasm on standard input to machine code on standard output.

    The process ends when the process `parent` does, as nobody would read the result.
    """
    threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    sys.stdout.buffer.write(compile_module(sys.stdin.buffer.read()))


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
