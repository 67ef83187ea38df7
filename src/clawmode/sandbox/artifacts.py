"""Parent side: the files that sandboxes are made of, checked, and the machine code made of them.

What came from the npm registry is checked against `guest.lock.json` each time it is loaded. Machine
code is made once per wasm, wasmtime release and CPU, and kept in the user's cache: it is run as it
is, so an entry that is not ours, not private or not whole is made again, never trusted.

Compiling takes seconds, and minutes on a busy machine. So each part is loaded by one thread per
process, which everyone waits for, and compiled by one process at a time, which holds a file lock.
"""

import contextlib
import hashlib
import json
import logging
import os
import platform
import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path

from clawmode.exceptions import RuntimeUnavailable
from clawmode.files import open_lock, try_lock, write_atomic
from clawmode.sandbox.protocol import Part

logger = logging.getLogger("clawmode.sandbox")

FILES: dict[Part, str] = {"quickjs": "quickjs.wasm", "swc": "swc.wasm", "acorn": "acorn.js"}

GUEST = Path(__file__).parent / "guest"
COMPILE_SECONDS = 300
"""Also how long a process waits for another that compiles, before it compiles by itself."""

REMINDER_SECONDS = 20.0
KEEP_SECONDS = 30 * 24 * 3600
"""How long machine code that nobody uses stays in the cache."""

MAX_LOADED = 8
MAX_ENTRIES = 1000
"""How many files of the cache folder are looked at to find old ones."""

CACHE_ADVICE = "set XDG_CACHE_HOME or CLAWMODE_CACHE_DIR to a folder that this user can write"

_NAMES: dict[Part, str] = {"quickjs": "JavaScript", "swc": "TypeScript"}
_ENTRY = re.compile(r"\.?[0-9a-f]{40}\.code(\.\w+)?")  # with an ending while it is being written

_loading: dict[tuple[Part, Path, Path], Future[bytes]] = {}
_loading_lock = threading.Lock()
# A forked child has none of the threads that would complete the futures.
os.register_at_fork(after_in_child=_loading.clear)


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
    return prepare(part).result()


def prepare(part: Part) -> Future[bytes]:
    """Starts to load `part` in a thread, unless it is loaded or that thread runs already.

    The thread is a daemon: a program that ends does not wait for the compiler. After a failure the
    next call tries again.
    """
    # Kept for the process: megabytes read in every boot thread fragment its memory.
    key = (part, GUEST, cache_folder())
    with _loading_lock:
        future = _loading.get(key)
        if future is None or (future.done() and future.exception() is not None):
            future = _loading[key] = Future()
            if len(_loading) > MAX_LOADED:
                del _loading[next(iter(_loading))]
            thread = threading.Thread(
                target=_load_into, args=(part, key[2], future), name="clawmode-load", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                future.set_exception(RuntimeUnavailable(f"{part} cannot be loaded: {error}"))
    return future


def _load_into(part: Part, folder: Path, future: Future[bytes]) -> None:
    try:
        data = read_checked(FILES[part])
        if not FILES[part].endswith(".js"):
            data = machine_code(data, folder, _NAMES[part])
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(data)


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


def machine_code(wasm: bytes, folder: Path, name: str) -> bytes:
    """Machine code of `wasm` for this machine, from the cache if it is there and whole.

    Args:
        wasm: What is compiled.
        folder: The cache.
        name: What the user knows `wasm` as.
    """
    path = folder / f"{_key(wasm)}.code"
    if (cached := _read_entry(path)) is not None:
        return cached
    try:
        lock = _open_lock(folder)
    except OSError as error:
        _warn_of_no_cache(folder, error.strerror)
        logger.warning("preparing %s, for this process only", name)
        return _compile(wasm)
    with _locked(lock, name):
        if (cached := _read_entry(path)) is not None:  # made by another process meanwhile
            return cached
        if os.path.lexists(path):
            logger.warning(
                "cached machine code %s is damaged or not private: it is made again", path.name
            )
        logger.warning("preparing %s, once per machine", name)
        code = _compile(wasm)
        _write_entry(path, code)
    return code


def is_cached(part: Part) -> bool:
    """Whether the next process finds machine code of `part`."""
    path = cache_folder() / f"{_key(read_checked(FILES[part]))}.code"
    return _read_entry(path) is not None


def forget(part: Part) -> None:
    """Drops the cached machine code of `part`: a worker could not load it."""
    with _loading_lock:
        for key in [key for key, future in _loading.items() if key[0] == part and future.done()]:
            del _loading[key]
    (cache_folder() / f"{_key(read_checked(FILES[part]))}.code").unlink(missing_ok=True)


def _open_lock(folder: Path) -> int | None:
    """A descriptor to lock while compiling; None if the file is not one that we made.

    Raises:
        OSError: The cache cannot be written.
    """
    # In a folder that others can write it may be a trap: a link, a pipe, or locked for ever.
    try:
        lock = open_lock(folder / "lock")
    except OSError:
        if os.path.lexists(folder / "lock") and os.access(folder, os.W_OK):
            return None
        raise
    if _is_private_file(os.fstat(lock)):
        return lock
    os.close(lock)
    return None


@contextlib.contextmanager
def _locked(lock: int | None, name: str) -> Iterator[None]:
    """Holds the lock, which the kernel releases if this process dies. Without one, just goes on."""
    if lock is None:
        yield
        return
    try:
        _wait_for(lock, name)
        yield
    finally:
        os.close(lock)


def _wait_for(lock: int, name: str) -> None:
    began = time.monotonic()
    reminder = began
    while (now := time.monotonic()) - began < COMPILE_SECONDS:
        try:
            if try_lock(lock):
                return
        except OSError:  # a file system without locks
            return
        if now >= reminder:
            logger.warning("waiting for another process that prepares %s", name)
            reminder = now + REMINDER_SECONDS
        time.sleep(0.05)


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


def _is_private_file(status: os.stat_result) -> bool:
    private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return private and stat.S_ISREG(status.st_mode)


def _read_entry(path: Path) -> bytes | None:
    """What the entry holds; None if there is none that can be trusted."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not _is_private_file(status):
                return None
            data = file.read()
            if time.time() - status.st_mtime > KEEP_SECONDS / 30:
                with contextlib.suppress(OSError):
                    os.utime(descriptor)  # it is in use
    except OSError:
        return None
    return data[32:] if hashlib.sha256(data[32:]).digest() == data[:32] else None


def _write_entry(path: Path, code: bytes) -> None:
    try:
        write_atomic(path, hashlib.sha256(code).digest() + code, sync=False)
        _remove_old(path)
    except OSError as error:
        _warn_of_no_cache(path.parent, error.strerror)


def _remove_old(new: Path) -> None:
    """Removes machine code of other builds, and what writers left behind that died."""
    with os.scandir(new.parent) as entries:
        for entry in islice(entries, MAX_ENTRIES):
            if entry.name == new.name or not _ENTRY.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if _is_private_file(status) and time.time() - status.st_mtime > KEEP_SECONDS:
                    os.unlink(entry.path)


@cache  # once for each folder
def _warn_of_no_cache(folder: Path, reason: str | None) -> None:
    logger.warning(
        "machine code cannot be cached in %s (%s), so every process prepares its own; %s",
        folder,
        reason,
        CACHE_ADVICE,
    )


def _compile(wasm: bytes) -> bytes:
    # In a process of its own: importing wasmtime and compiling would hold up the caller's.
    try:
        done = subprocess.run(  # noqa: S603 - our own module, in our own interpreter
            python_command("wasm", str(os.getpid())),
            input=wasm,
            capture_output=True,
            timeout=COMPILE_SECONDS,
            check=True,
            env={},
            start_new_session=True,  # Ctrl-C at a terminal stops a program, not the compiler
        )
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise RuntimeUnavailable(f"the sandbox cannot be compiled: {' '.join(reason)}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeUnavailable(f"the sandbox cannot be compiled: {error}") from None
    return done.stdout
