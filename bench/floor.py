"""The floor that speed is measured against: QuickJS from Python with nothing around it.

In one process, without worker, bridge, prelude or limits, through wasmtime's public Python API: a
new store and instance, the memory of an initialized engine copied in, `1+1` evaluated, its value
read. Frozen on purpose: a product that finds a faster way has a ratio under 1. It shares no code
with the product, only the file `quickjs.wasm`.

    python -m bench.floor
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import wasmtime

import clawmode

WASM = Path(clawmode.__file__).parent / "sandbox" / "guest" / "vendor" / "quickjs.wasm"
SOURCE = b"1+1"
BAD_DESCRIPTOR = 8


class Floor:
    """A compiled engine and the image that every run starts from."""

    def __init__(self) -> None:
        config = wasmtime.Config()
        config.epoch_interruption = True
        self._engine = wasmtime.Engine(config)
        self._module = wasmtime.Module.from_file(self._engine, str(WASM))
        self._image = self._take_image()

    def run(self) -> bytes:
        """Evaluates `1+1` from nothing but module and image."""
        store, exports = self._instantiate()
        memory = exports["memory"]
        assert isinstance(memory, wasmtime.Memory)
        missing = len(self._image) - memory.data_len(store)
        if missing > 0:
            memory.grow(store, missing >> 16)
        memory.write(store, self._image, 0)

        def call(name: str, *arguments: int) -> int:
            function = exports[name]
            assert isinstance(function, wasmtime.Func)
            return int(function(store, *arguments))

        source = call("wasm_malloc", len(SOURCE) + 1)
        memory.write(store, SOURCE + b"\0", source)
        name = call("wasm_malloc", 2)
        memory.write(store, b"x\0", name)
        value = call("qjs_eval", source, len(SOURCE), name, 0)
        assert not call("qjs_is_exception", value)
        length = call("wasm_malloc", 4)
        text = call("qjs_get_string_len", value, length)
        size = int.from_bytes(memory.read(store, length, length + 4), "little")
        return bytes(memory.read(store, text, text + size))

    def sample(self, count: int) -> list[float]:
        """Seconds that each of `count` runs took."""
        taken = []
        for _ in range(count):
            begun = time.perf_counter()
            result = self.run()
            taken.append(time.perf_counter() - begun)
            assert result == b"2", result
        return taken

    def _take_image(self) -> bytes:
        store, exports = self._instantiate()
        for name in ("_initialize", "qjs_init"):
            function = exports[name]
            assert isinstance(function, wasmtime.Func)
            function(store)
        memory = exports["memory"]
        assert isinstance(memory, wasmtime.Memory)
        return bytes(memory.read(store, 0, memory.data_len(store)))

    def _instantiate(self) -> tuple[wasmtime.Store, wasmtime._instance.InstanceExports]:
        store = wasmtime.Store(self._engine)
        store.set_epoch_deadline(1)
        imports: list[wasmtime.Func] = []
        for wanted in self._module.imports:
            assert isinstance(wanted.type, wasmtime.FuncType)
            function = IMPORTS.get(wanted.name or "", _zero)
            imports.append(wasmtime.Func(store, wanted.type, function, access_caller=True))
        instance = wasmtime.Instance(store, self._module, imports)
        return store, instance.exports(store)


def _zero(caller: wasmtime.Caller, *arguments: int) -> int:
    return 0


def _nothing(caller: wasmtime.Caller, *arguments: int) -> None:
    return None


def _bad_descriptor(caller: wasmtime.Caller, *arguments: int) -> int:
    return BAD_DESCRIPTOR


def _clock_time_get(caller: wasmtime.Caller, clock: int, precision: int, result: int) -> int:
    _write(caller, time.time_ns().to_bytes(8, "little"), result)
    return 0


def _random_get(caller: wasmtime.Caller, buffer: int, length: int) -> int:
    _write(caller, bytes(length), buffer)
    return 0


def _write(caller: wasmtime.Caller, data: bytes, address: int) -> None:
    memory = caller["memory"]
    assert isinstance(memory, wasmtime.Memory)
    memory.write(caller, data, address)


IMPORTS: dict[str, Callable[..., int | None]] = {
    "host_promise_rejection": _nothing,
    "clock_time_get": _clock_time_get,
    "random_get": _random_get,
    "fd_close": _bad_descriptor,
    "fd_fdstat_get": _bad_descriptor,
    "fd_seek": _bad_descriptor,
    "fd_write": _bad_descriptor,
}


def main() -> None:
    floor = Floor()
    floor.sample(50)
    taken = floor.sample(500)
    print(
        f"floor: median {statistics.median(taken) * 1000:.2f} ms, best {min(taken) * 1000:.2f} ms"
    )


if __name__ == "__main__":
    main()
