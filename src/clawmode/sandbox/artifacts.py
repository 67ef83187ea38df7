"""Parent side: the files that sandboxes are made of, checked, and the machine code made of them.

What came from the npm registry is checked against `guest.lock.json` each time it is loaded. Machine
code is made once per wasm, wasmtime release and CPU, and kept in the user's cache: it is run as it
is, so an entry that is not ours, not private or not whole is made again, never trusted.
"""

import hashlib
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import threading
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path

from clawmode.exceptions import RuntimeUnavailable
from clawmode.sandbox.protocol import Part

logger = logging.getLogger("clawmode.sandbox")

FILES: dict[Part, str] = {"quickjs": "quickjs.wasm", "swc": "swc.wasm", "acorn": "acorn.js"}

GUEST = Path(__file__).parent / "guest"
COMPILE_SECONDS = 120

_compiling = threading.Lock()  # many first cells must not compile the same thing


def python_command(module: str, *arguments: str) -> list[str]:
    """Runs `main` of a module of this package in a bare interpreter.

    Isolated (`-I`) and without `site` (`-S`), which takes half of an interpreter's start-up: the
    search path is ours, without the current folder.
    """
    paths = [str(GUEST.parents[2]), *(path for path in sys.path if os.path.isabs(path))]
    program = (
        f"import sys; sys.path[:] = {list(dict.fromkeys(paths))!r}; "
        f"from clawmode.sandbox.{module} import main; main(*sys.argv[1:])"
    )
    return [sys.executable, "-I", "-S", "-c", program, *arguments]


def load(part: Part) -> bytes:
    """What a worker needs to run `part`: machine code for wasm, the text of a script.

    Raises:
        RuntimeUnavailable: The file is missing or altered, or cannot be compiled.
    """
    return _load(part, GUEST, cache_folder())


@lru_cache(maxsize=8)
def _load(part: Part, guest: Path, folder: Path) -> bytes:
    # Once in a process: megabytes read in every boot thread fragment its memory.
    data = read_checked(FILES[part])
    if FILES[part].endswith(".js"):
        return data
    with _compiling:
        return machine_code(data)


def read_checked(name: str) -> bytes:
    """A third-party file, if it is the one in the lock."""
    expected = _hashes().get(name)
    try:
        data = (GUEST / "vendor" / name).read_bytes()
    except OSError:
        raise RuntimeUnavailable(
            f"{name} is missing from the installation: run `make setup` or reinstall clawmode"
        ) from None
    if hashlib.sha256(data).hexdigest() != expected:
        raise RuntimeUnavailable(f"{name} is not the file that was released: reinstall clawmode")
    return data


def locked_hash(part: Part) -> str:
    """SHA-256 of a part, as released."""
    return _hashes()[FILES[part]]


@cache
def _hashes() -> dict[str, str]:
    try:
        text = (GUEST / "guest.lock.json").read_text("utf-8")
        return {name: file["sha256"] for name, file in json.loads(text)["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RuntimeUnavailable(f"guest.lock.json cannot be read: {error}") from None


# ---- Machine code ----


def cache_folder() -> Path:
    """Where machine code is kept: `CLAWMODE_CACHE_DIR`, or the user's cache folder."""
    if chosen := os.environ.get("CLAWMODE_CACHE_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "clawmode"


def machine_code(wasm: bytes) -> bytes:
    """Machine code of `wasm` for this machine, from the cache if it is there and whole."""
    path = cache_folder() / f"{_key(wasm)}.code"
    if (cached := _read_entry(path)) is not None:
        return cached
    code = _compile(wasm)
    _write_entry(path, code)
    return code


def forget(part: Part) -> None:
    """Drops the cached machine code of `part`: a worker could not load it."""
    _load.cache_clear()
    (cache_folder() / f"{_key(read_checked(FILES[part]))}.code").unlink(missing_ok=True)


def _key(wasm: bytes) -> str:
    digest = hashlib.sha256()
    # The engine's settings shape the code too, and they are in one module.
    settings = (Path(__file__).parent / "wasm.py").read_bytes()
    machine = platform.machine().encode()
    for item in (wasm, version("wasmtime").encode(), settings, machine, _cpu_features()):
        digest.update(hashlib.sha256(item).digest())
    return digest.hexdigest()[:40]


@cache
def _cpu_features() -> bytes:
    # wasmtime uses what the CPU has; a home folder may be shared between machines.
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    return next((line for line in lines if line.startswith((b"flags", b"Features"))), b"")


def _read_entry(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read()
    except OSError:
        return None
    private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
    if not private or hashlib.sha256(data[32:]).digest() != data[:32]:
        logger.warning("cached machine code %s is not whole or not private: made again", path.name)
        return None
    return data[32:]


def _write_entry(path: Path, code: bytes) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(temporary, path)
    except OSError as error:
        logger.warning("machine code cannot be cached in %s: %s", path.parent, error)


def _compile(wasm: bytes) -> bytes:
    # In a process of its own: importing wasmtime and compiling would hold up the caller's.
    try:
        done = subprocess.run(  # noqa: S603 - our own module, in our own interpreter
            python_command("wasm"),
            input=wasm,
            capture_output=True,
            timeout=COMPILE_SECONDS,
            check=True,
            env={},
        )
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise RuntimeUnavailable(f"the sandbox cannot be compiled: {' '.join(reason)}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeUnavailable(f"the sandbox cannot be compiled: {error}") from None
    return done.stdout
