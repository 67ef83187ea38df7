"""Worker side: wasmtime's engine settings, and a fast way to call exports.

Only this module uses wasmtime's raw binding, which may change with each monthly major version, so
`pyproject.toml` allows one major version. A change of this file compiles all machine code anew,
because the cache key includes its text (`artifacts`).
"""

import ctypes
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn, TypeAlias

import wasmtime
from wasmtime import _bindings as bindings
from wasmtime import _ffi as ffi
from wasmtime import _func as functions

_library = ctypes.CDLL(None) if os.name == "posix" else ctypes.cdll.msvcrt
_compare = _library.memcmp
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


_call_unchecked = ctypes.CFUNCTYPE(
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
    *(ctypes.c_size_t, ctypes.c_void_p),
)(ctypes.cast(bindings._wasmtime_func_call_unchecked, ctypes.c_void_p).value or 0)
"""The same function for plain addresses: wasmtime's declaration converts a pointer per argument."""

_memory_bytes = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)(
    ctypes.cast(bindings._wasmtime_memory_data_size, ctypes.c_void_p).value or 0
)
"""`wasmtime.Memory.data_len`, in the same way."""

_SLOTS = 4
_WORDS = ctypes.sizeof(ffi.wasmtime_val_raw_t) // 4


class Export:
    """An exported function of up to four i32 parameters and at most one i32 result.

    `wasmtime.Func.__call__` asks for the function's type and boxes every value on each call, which
    takes 17 µs instead of 1.5 µs. Unchecked calls need the right number of slots: it is read from
    the type once.
    """

    __slots__ = ("_arguments", "_keep", "_trap", "_words")

    def __init__(self, store: wasmtime.Store, func: wasmtime.Func) -> None:
        kind = func.type(store)
        slots = max(len(kind.params), len(kind.results), 1)
        assert slots <= _SLOTS, f"a function with {slots} parameters"
        self._words = (ctypes.c_uint32 * (_SLOTS * _WORDS))()
        self._trap = ctypes.c_void_p()
        self._keep = (store, func)
        self._arguments = (
            ctypes.cast(store._context(), ctypes.c_void_p).value,
            ctypes.addressof(func._func),
            ctypes.addressof(self._words),
            slots,
            ctypes.addressof(self._trap),
        )

    def __call__(self, first: int = 0, second: int = 0, third: int = 0, fourth: int = 0) -> int:
        """Calls the function. Raises its trap, or the exception of a host function."""
        words = self._words
        words[0] = first
        words[_WORDS] = second
        words[2 * _WORDS] = third
        words[3 * _WORDS] = fourth
        error = _call_unchecked(*self._arguments)
        if error is not None or self._trap:
            trap, self._trap.value = self._trap.value, None
            _raise(error, trap)
        return words[0]


_PARAMETERS = {"i32": "i12x", "i64": "q8x"}
"""A parameter in its slot of 16 bytes."""


@ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
)
def _enter_host(index: int | None, caller: int, slots: int, count: int) -> int:
    del caller, count
    try:
        call, given, returns = functions.FUNCTIONS.get(index or 0)
        result = call(*given.unpack(ctypes.string_at(slots, given.size)))
        if returns:
            ctypes.c_int32.from_address(slots).value = result or 0
        return 0
    except BaseException as error:
        # `_raise` raises it once the guest is left.
        plain = isinstance(error, Exception)
        functions.LAST_EXCEPTION = error if plain else RuntimeError(type(error).__name__)
        trap = wasmtime.Trap("a function of the host failed")._consume()
        return ctypes.cast(trap, ctypes.c_void_p).value or 0


_ENTER_HOST = ctypes.cast(_enter_host, bindings.wasmtime_func_unchecked_callback_t)


def _host_function(
    store: wasmtime.Store, kind: wasmtime.FuncType, call: HostFunction
) -> wasmtime.Func:
    """Returns a function of the host with i32 and i64 parameters, and an i32 result if it has one.

    `wasmtime.Func` boxes every value here too, which takes 12 µs more than reading all at once.
    """
    assert [str(each) for each in kind.results] in ([], ["i32"])
    given = struct.Struct("<" + "".join(_PARAMETERS[str(each)] for each in kind.params))
    # wasmtime's table keeps the function until the store is freed.
    index = functions.FUNCTIONS.allocate((call, given, bool(kind.results)))
    made = ffi.wasmtime_func_t()
    ffi.wasmtime_func_new_unchecked(
        store._context(), kind.ptr(), _ENTER_HOST, index, functions.finalize, ctypes.byref(made)
    )
    return wasmtime.Func._from_raw(made)


def _raise(error: int | None, trap: int | None) -> NoReturn:
    if trap is not None:
        pointer = ctypes.cast(trap, ctypes.POINTER(ffi.wasm_trap_t))
        raised: Exception = wasmtime.Trap._from_ptr(pointer)
    else:
        failed = ctypes.cast(error or 0, ctypes.POINTER(ffi.wasmtime_error_t))
        raised = wasmtime.WasmtimeError._from_ptr(failed)
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
            _host_function(self.store, wanted.type, imports[wanted.name or ""])
            for wanted in module.imports
            if isinstance(wanted.type, wasmtime.FuncType)
        ]
        instance = wasmtime.Instance(self.store, module, provided)
        self._exports = instance.exports(self.store)
        memory = self._exports["memory"]
        assert isinstance(memory, wasmtime.Memory)
        self._memory = memory
        context = ctypes.cast(self.store._context(), ctypes.c_void_p).value
        self._sized = (context, ctypes.addressof(memory._memory))
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
        self._size = size = _memory_bytes(*self._sized)
        return size

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

    def word(self, address: int) -> int:
        """Returns the 32-bit word at `address`."""
        return ctypes.c_uint32.from_address(self._check(address, 4)).value

    def write(self, address: int, data: bytes) -> None:
        ctypes.memmove(self._check(address, len(data)), data, len(data))

    def changed_pages(self, known: bytes, page: int) -> list[int]:
        """Returns the numbers of the pages that differ from `known`, which goes on with zeros.

        Both sizes are multiples of a wasm page, and `known` is not the longer one.
        """
        start, end = self.base, self.base + self.memory_size()
        shift = (ctypes.cast(ctypes.c_char_p(known), ctypes.c_void_p).value or 0) - start
        changed: list[int] = []
        for block in range(start, end, BLOCK):
            # Whole blocks first: a call for each page would take longer than the comparison.
            other = block + shift if block < start + len(known) else _ZEROS
            if _compare(block, other, BLOCK):
                changed += [
                    (block + at - start) // page
                    for at in range(0, BLOCK, page)
                    if _compare(block + at, other + at, page)
                ]
        return changed

    def fill(self, address: int, length: int) -> None:
        """Zeroes `length` bytes at `address`."""
        ctypes.memset(self._check(address, length), 0, length)


def is_interrupt(trap: BaseException) -> bool:
    """True if the epoch caused the trap: the deadline passed, or the step was aborted."""
    return isinstance(trap, wasmtime.Trap) and trap.trap_code == Interrupted


def main(parent: str) -> None:
    """Compiles the wasm on standard input to machine code on standard output.

    The process ends when the process `parent` does, as nobody would read the result.
    """
    threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    # For this CPU, and for `Module.deserialize`.
    module = wasmtime.Module(new_engine(compiling=True), sys.stdin.buffer.read())
    sys.stdout.buffer.write(module.serialize())


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
