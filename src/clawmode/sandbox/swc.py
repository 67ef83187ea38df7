"""Worker side: SWC's wasm. Owns its instance and the JavaScript operations that it imports.

SWC (`@swc/wasm-typescript`, which Node uses to strip types) is a wasm-bindgen module: its imports
are JavaScript operations on values that it knows by number. `typescript.py` decides what SWC is
asked to do, and uses the answer.
"""

import ctypes
import re
import struct
import weakref
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, NoReturn, TypeAlias

import wasmtime

from clawmode.sandbox.deadline import Arm

MAX_TRANSFORMS = 1000
MAX_MEMORY = 64 << 20
"""After this many transforms, or beyond this much memory (which never shrinks), an instance is
replaced. A new one takes 0.4 ms."""


class TransformerMismatch(Exception):
    """The wasm is not the build of SWC that this module was written for."""


class TransformerCrash(Exception):
    """SWC trapped. The message is for the author of the source."""


class _Js(Enum):
    UNDEFINED = "undefined"


Value: TypeAlias = "str | float | bool | dict[str, Value] | _Js | None"

STRIP: Value = _Js.UNDEFINED  # SWC's default; to pass it as an object takes 50 more calls
REPRINT: Value = {"mode": "transform", "sourceMap": True}


class Swc:
    """SWC's one function, on an instance that is replaced when it is worn or has trapped.

    Args:
        engine: The engine that `module` was compiled with.
        module: SWC's wasm.
        arm: Sets the limits and the deadline of a store; called before every entry into wasm.

    Raises:
        TransformerMismatch: `module` is not the build of SWC that this module was written for.
    """

    def __init__(
        self,
        engine: wasmtime.Engine,
        module: wasmtime.Module,
        arm: Arm,
    ) -> None:
        self._engine = engine
        self._module = module
        self._arm = arm
        self._glue = _Glue()
        self._linker = _link(engine, module, self._glue)
        self._instance: _Instance | None = None

    def transform(self, program: str, options: Value) -> tuple[bool, dict[str, Any]]:
        """Returns whether SWC accepts the program, and its answer: the code, or a diagnostic.

        Raises:
            TransformerCrash: SWC trapped on this program.
            wasmtime.Trap: The deadline passed.
        """
        instance = self._instance
        if instance is None:
            store = wasmtime.Store(self._engine)
            self._arm(store)
            wasm = self._linker.instantiate(store, self._module)
            self._instance = instance = _Instance(store, wasm, self._glue)
        try:
            self._arm(instance.store)
            accepted, answer = instance.transform(program, options)
        except BaseException as error:
            self._drop()
            if isinstance(error, wasmtime.Trap | wasmtime.WasmtimeError | _Thrown):
                _raise_crash(error)
            raise
        if instance.is_worn():
            self._drop()
        return accepted, answer

    def close(self) -> None:
        """Frees wasmtime's objects. Nothing can be transformed afterwards."""
        self._drop()
        self._linker.close()

    def _drop(self) -> None:
        if self._instance is not None:
            self._instance.close()
            self._instance = None


def _raise_crash(error: Exception) -> NoReturn:
    code = error.trap_code if isinstance(error, wasmtime.Trap) else None
    if code is wasmtime.TrapCode.INTERRUPT:
        raise error
    # Rust's own stack is at the bottom of linear memory, and overflows to below address 0.
    if code in (wasmtime.TrapCode.STACK_OVERFLOW, wasmtime.TrapCode.MEMORY_OUT_OF_BOUNDS):
        message = "The source is nested too deeply for the TypeScript transformer"
    else:
        message = "The TypeScript transformer crashed on this source"
    raise TransformerCrash(message) from error


_EXPORTS = (
    "memory",
    "transformSync",
    "__wbindgen_export_2",  # malloc
    "__wbindgen_add_to_stack_pointer",
)


class _Instance:
    """One instance of SWC in its store. It cannot be used after a trap."""

    def __init__(self, store: wasmtime.Store, wasm: wasmtime.Instance, glue: "_Glue") -> None:
        exports = wasm.exports(store)
        memory, transform, allocate, move_stack = (exports[name] for name in _EXPORTS)
        assert isinstance(memory, wasmtime.Memory)
        assert isinstance(transform, wasmtime.Func)
        assert isinstance(allocate, wasmtime.Func)
        assert isinstance(move_stack, wasmtime.Func)
        self.store = store
        self._memory = memory
        self._transform = transform
        self._glue = glue
        self._transforms = 0
        glue.attach(store, memory, allocate)
        # Three words for the answer, reserved once and never freed.
        self._answer: int = move_stack(store, -16)

    def transform(self, program: str, options: Value) -> tuple[bool, dict[str, Any]]:
        glue = self._glue
        self._transforms += 1
        self._transform(self.store, self._answer, glue.add(program), glue.add(options))
        value, error, failed = _ANSWER.unpack(glue.read(self._answer, _ANSWER.size))
        answer = glue.take(error if failed else value)
        assert isinstance(answer, dict)
        return not failed, answer

    def is_worn(self) -> bool:
        return self._transforms >= MAX_TRANSFORMS or self._memory.data_len(self.store) > MAX_MEMORY

    def close(self) -> None:
        self._glue.detach()
        self.store.close()


class _Thrown(Exception):
    """SWC's Rust code threw a JavaScript error."""


_FIXED: tuple[Value, ...] = (*[_Js.UNDEFINED] * 129, None, True, False)
"""The values whose numbers are compiled into SWC."""

_ANSWER = struct.Struct("<III")
_STRING = struct.Struct("<II")


class _Glue:
    """Values by number, and the operations on them.

    It has the operations that SWC was observed to call. With the options above, SWC needs no
    arrays, buffers, iterators or promises.
    """

    def __init__(self) -> None:
        self._values: list[Value] = []
        self._free: list[int] = []

    def attach(
        self, store: wasmtime.Store, memory: wasmtime.Memory, allocate: wasmtime.Func
    ) -> None:
        """Serves a new instance, with the fixed values only."""
        self._store, self._memory, self._allocate = store, memory, allocate
        self._values = [*_FIXED]
        self._free = []

    def detach(self) -> None:
        del self._store, self._memory, self._allocate

    def add(self, value: Value) -> int:
        if not self._free:
            self._values.append(value)
            return len(self._values) - 1
        handle = self._free.pop()
        self._values[handle] = value
        return handle

    def drop(self, handle: int) -> None:
        if handle >= len(_FIXED):
            self._values[handle] = _Js.UNDEFINED
            self._free.append(handle)

    def take(self, handle: int) -> Value:
        value = self._values[handle]
        self.drop(handle)
        return value

    def read(self, address: int, length: int) -> bytes:
        return ctypes.string_at(self._host_address(address, length), length)

    def read_text(self, address: int, length: int) -> str:
        return self.read(address, length).decode(errors="replace")

    def write(self, address: int, data: bytes) -> None:
        ctypes.memmove(self._host_address(address, len(data)), data, len(data))

    def _host_address(self, address: int, length: int) -> int:
        address &= 0xFFFFFFFF
        if not 0 <= length <= self._memory.data_len(self._store) - address:
            raise wasmtime.WasmtimeError("address outside of linear memory")
        return ctypes.addressof(self._memory.data_ptr(self._store).contents) + address

    def _object(self, handle: int) -> dict[str, Value]:
        value = self._values[handle]
        assert isinstance(value, dict)
        return value

    def _string(self, handle: int) -> str:
        value = self._values[handle]
        assert isinstance(value, str)
        return value

    def string_new(self, address: int, length: int) -> int:
        return self.add(self.read_text(address, length))

    def string_get(self, result: int, handle: int) -> None:
        data = self._string(handle).encode()
        address = self._allocate(self._store, len(data), 1) & 0xFFFFFFFF
        self.write(address, data)
        self.write(result, _STRING.pack(address, len(data)))

    def boolean_get(self, handle: int) -> int:
        return int(self._values[handle] is True)

    def number_new(self, value: float) -> int:
        return self.add(value)

    def object_new(self) -> int:
        return self.add({})

    def object_clone_ref(self, handle: int) -> int:
        return self.add(self._values[handle])

    def set(self, target: int, key: int, value: int) -> None:
        self._object(target)[self._string(key)] = self.take(value)
        self.drop(key)

    def get(self, target: int, key: int) -> int:
        return self.add(self._object(target).get(self._string(key), _Js.UNDEFINED))

    def has(self, key: int, target: int) -> int:
        return int(self._string(key) in self._object(target))

    def is_falsy(self, handle: int) -> int:
        return int(self._values[handle] in (_Js.UNDEFINED, None, False, 0, ""))

    def is_object(self, handle: int) -> int:
        return int(isinstance(self._values[handle], dict))

    def is_string(self, handle: int) -> int:
        return int(isinstance(self._values[handle], str))

    def is_undefined(self, handle: int) -> int:
        return int(self._values[handle] is _Js.UNDEFINED)

    def loose_eq(self, left: int, right: int) -> int:
        nothing = (None, _Js.UNDEFINED)
        one, other = self._values[left], self._values[right]
        return int(one == other or (one in nothing and other in nothing))

    def throw(self, address: int, length: int) -> None:
        raise _Thrown(self.read_text(address, length))


_OPERATIONS: dict[str, Callable[..., int | None]] = {
    "string_new": _Glue.string_new,
    "string_get": _Glue.string_get,
    "boolean_get": _Glue.boolean_get,
    "number_new": _Glue.number_new,
    "new_405e22f390576ce2": _Glue.object_new,  # the other `new` are Array, Uint8Array, Promise
    "object_clone_ref": _Glue.object_clone_ref,
    "object_drop_ref": _Glue.drop,
    "set_3f1d0b984ed272ed": _Glue.set,  # the other `set` are those of Array and Uint8Array
    "getwithrefkey": _Glue.get,
    "in": _Glue.has,
    "is_falsy": _Glue.is_falsy,
    "is_object": _Glue.is_object,
    "is_string": _Glue.is_string,
    "is_undefined": _Glue.is_undefined,
    "jsval_loose_eq": _Glue.loose_eq,
    "throw": _Glue.throw,
}

_UNUSED = frozenset(
    """
    bigint_from_i64 bigint_from_u64 bigint_get_as_i64 buffer call cb_drop closure_wrapper
    debug_string done entries error_new get_67b2ba62fc30de12 get_b9b93047fe3cf45b
    instanceof_ArrayBuffer instanceof_Map instanceof_Uint8Array is_bigint is_function isArray
    isSafeInteger iterator jsval_eq length memory new_23a2665fac83c611 new_78feb108b6472713
    new_a12002a7f91c75be newnoargs next_25feadfc0913fea9 next_6574e1a8a62d1055 number_get
    queueMicrotask resolve set_37837023f3d740e8 set_65595bdd868b3009 static_accessor_GLOBAL
    static_accessor_GLOBAL_THIS static_accessor_SELF static_accessor_WINDOW then toString value
    """.split()
)
"""Operations that SWC imports but, with the options above, does not call."""

_IMPORT = re.compile(r"__wb(?:indgen|g)_(?P<full>(?P<stem>[A-Za-z]\w*?)(?:_[0-9a-f]{16}|\d+)?)")


def _link(engine: wasmtime.Engine, module: wasmtime.Module, glue: _Glue) -> wasmtime.Linker:
    if missing := {*_EXPORTS}.difference(export.name for export in module.exports):
        raise TransformerMismatch(f"the transformer does not export {', '.join(sorted(missing))}")
    linker = wasmtime.Linker(engine)
    # wasmtime keeps host functions in a global table as long as their store lives. A strong
    # reference from a function to the store would keep both for ever.
    weak = weakref.proxy(glue)
    for wanted in module.imports:
        kind, name = wanted.type, wanted.name or ""
        found = _IMPORT.fullmatch(name)
        # Names end in a hash, which matters if stems are equal.
        keys = found.group("full", "stem") if found else ()
        key = next((key for key in keys if key in _OPERATIONS or key in _UNUSED), None)
        if key is None:
            raise TransformerMismatch(f"the transformer imports {name!r}, which is not known here")
        used = key in _OPERATIONS
        operation = partial(_OPERATIONS[key], weak) if used else partial(_refuse, name)
        assert isinstance(kind, wasmtime.FuncType)
        linker.define_func(wanted.module, name, kind, operation)
    return linker


def _refuse(name: str, *_: object) -> NoReturn:
    raise TransformerMismatch(f"the transformer called {name!r}, which it never did before")
