"""Parent side: the third-party files of the sandbox, and the cache of machine code and image.

Files from the npm registry are checked against `guest.lock.json` each time they are loaded. Machine
code is compiled once per wasm, wasmtime release and CPU, and kept in the user's cache. It is
executed without further checks, so a cache entry of another user, with open permissions or with a
wrong hash is never used: the code is compiled again.

Compiling takes seconds, and minutes on a busy machine. So one thread per process loads a part, and
everybody waits for it; and one process at a time compiles, under a file lock.
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
from itertools import islice
from pathlib import Path

from clawmode.exceptions import RuntimeUnavailable
from clawmode.files import open_lock, try_lock, write_atomic
from clawmode.sandbox.protocol import Part

logger = logging.getLogger("clawmode.sandbox")

FILES: dict[Part, str] = {"quickjs": "quickjs.wasm", "swc": "swc.wasm", "acorn": "acorn.js"}

GUEST = Path(__file__).parent / "guest"
COMPILE_SECONDS = 300
"""Also how long a process waits for another one that compiles, before it compiles by itself."""

REMINDER_SECONDS = 20.0
KEEP_SECONDS = 30 * 24 * 3600
"""How long unused machine code stays in the cache."""

IMAGE_MODULES = ("image", "machine", "output", "wasm")
MAX_LOADED = 8
MAX_ENTRIES = 1000
"""Files of the cache folder that are read to find old ones."""

CACHE_ADVICE = "set XDG_CACHE_HOME or CLAWMODE_CACHE_DIR to a folder that this user can write"

_NAMES: dict[Part, str] = {"quickjs": "JavaScript", "swc": "TypeScript"}
_ENTRY = re.compile(
    r"\.?[0-9a-f]{40}\.(code|image)(\.\w+)?"
)  # with an ending while it is being written

_loading: dict[tuple[Part, Path, Path], Future[bytes]] = {}
_loading_lock = threading.Lock()
# A forked child lacks the threads that would complete the futures.
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_loading.clear)


def python_command(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs `main` of a module of this folder in a bare interpreter.

    The interpreter is isolated (`-I`) and runs without `site` (`-S`), which takes half of the
    start-up time. It gets our search path, without the current folder.
    """
    paths = [str(GUEST.parents[2]), *(path for path in sys.path if os.path.isabs(path))]
    # No module is garbage, so the collector would only slow down their imports.
    program = (
        f"import gc, sys; gc.disable(); sys.path[:] = {list(dict.fromkeys(paths))!r}; "
        f"from clawmode.sandbox.{module} import main; gc.enable(); main(*sys.argv[1:])"
    )
    return [sys.executable, "-I", "-S", "-c", program, *arguments]


def load(part: Part) -> bytes:
    """Loads the data that a worker needs for `part`: machine code of wasm, or a script's text.

    Raises:
        RuntimeUnavailable: The file is missing or altered, or cannot be compiled.
    """
    return prepare(part).result()


def prepare(part: Part) -> Future[bytes]:
    """Starts to load `part` in a thread, unless the part is loaded or being loaded.

    The thread is a daemon: a program that ends does not wait for the compiler. After a failure the
    next call tries again.
    """
    # The data is kept: reading megabytes again in every boot thread would fragment the memory.
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
    """Returns the content of a third-party file.

    Raises:
        RuntimeUnavailable: The file is missing, or its hash is not the one in `guest.lock.json`.
    """
    expected = _hashes().get(name)
    try:
        data = (GUEST / "vendor" / name).read_bytes()
    except OSError:
        raise RuntimeUnavailable(
            f"{name} is missing from the installation: run `make setup` or reinstall clawmode"
        ) from None
    if hashlib.sha256(data).hexdigest() != expected:
        raise RuntimeUnavailable(f"{name} has been altered since its release: reinstall clawmode")
    return data


def locked_hash(part: Part) -> str:
    """Returns the SHA-256 of a part, as in `guest.lock.json`."""
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
    """Returns the folder of the machine code: `CLAWMODE_CACHE_DIR`, or in the user's cache."""
    if chosen := os.environ.get("CLAWMODE_CACHE_DIR"):
        return Path(chosen)
    import platformdirs  # as in `_key`

    return platformdirs.user_cache_path("clawmode")


def machine_code(wasm: bytes, folder: Path, name: str) -> bytes:
    """Returns machine code of `wasm` for this machine, from the cache if that has a valid entry.

    Args:
        wasm: The module to compile.
        folder: The cache folder.
        name: The name of the module in log messages, such as `TypeScript`.
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
        if (cached := _read_entry(path)) is not None:  # another process was faster
            return cached
        if os.path.lexists(path):
            logger.warning(
                "cached machine code %s is damaged or not private: compiling it again", path.name
            )
        logger.warning("preparing %s, once per machine", name)
        code = _compile(wasm)
        try:
            write_atomic(path, hashlib.sha256(code).digest() + code, sync=False)
            _remove_old(path)
        except OSError as error:
            _warn_of_no_cache(folder, error.strerror)
    return code


def is_cached(part: Part) -> bool:
    """True if the cache has valid machine code of `part`."""
    path = cache_folder() / f"{_key(read_checked(FILES[part]))}.code"
    return _read_entry(path) is not None


def load_cached(part: Part) -> bytes | None:
    """Loads machine code of `part` from the cache; returns None if the code has to be compiled."""
    folder = cache_folder()
    code = _read_entry(folder / f"{_key(read_checked(FILES[part]))}.code")
    if code is not None:
        found: Future[bytes] = Future()
        found.set_result(code)
        with _loading_lock:
            _loading.setdefault((part, GUEST, folder), found)
    return code


def forget(part: Part) -> None:
    """Removes the cached machine code of `part`, because a worker could not load it."""
    with _loading_lock:
        for key in [key for key, future in _loading.items() if key[0] == part and future.done()]:
            del _loading[key]
    (cache_folder() / f"{_key(read_checked(FILES[part]))}.code").unlink(missing_ok=True)


# ---- The image ----


def cached_image() -> bytes:
    """Returns the cached image that cells start from; empty if there is no valid one."""
    return _read_entry(_image_path()) or b""


def keep_image(image: bytes) -> None:
    """Writes an image that the template has built to the cache."""
    with contextlib.suppress(OSError):  # the machine code has told the user about the cache
        write_atomic(_image_path(), hashlib.sha256(image).digest() + image, sync=False)


def _image_path() -> Path:
    digest = hashlib.sha256(locked_hash("quickjs").encode())
    # What the prelude's run depends on: the scripts, and the modules that run them.
    sources = [Path(__file__).parent / f"{name}.py" for name in IMAGE_MODULES]
    for path in (*sources, *sorted(GUEST.glob("*.js"))):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return cache_folder() / f"{digest.hexdigest()[:40]}.image"


def _open_lock(folder: Path) -> int | None:
    """Opens the file that is locked while compiling; None if the file is not a private one.

    Raises:
        OSError: The cache cannot be written.
    """
    # In a folder that others can write, the file may be a trap: a link, a pipe, or locked for ever.
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
    """Holds the lock, if there is one. The kernel releases it if this process dies."""
    if lock is None:
        yield
        return
    reminder = began = time.monotonic()
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            while (now := time.monotonic()) - began < COMPILE_SECONDS and not try_lock(lock):
                if now >= reminder:
                    logger.warning("waiting for another process that prepares %s", name)
                    reminder = now + REMINDER_SECONDS
                time.sleep(0.05)
        yield
    finally:
        os.close(lock)


def _key(wasm: bytes) -> str:
    # Slow to import: here that happens while the template boots.
    from importlib.metadata import version

    digest = hashlib.sha256()
    # The engine's settings shape the code too, and they are all in `wasm.py`.
    settings = (Path(__file__).parent / "wasm.py").read_bytes()
    machine = platform.machine().encode()
    for item in (wasm, version("wasmtime").encode(), settings, machine, _cpu_features()):
        digest.update(hashlib.sha256(item).digest())
    return digest.hexdigest()[:40]


@cache
def _cpu_features() -> bytes:
    # wasmtime uses the features of this CPU, but other machines may share the home folder.
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    return next((line for line in lines if line.startswith((b"flags", b"Features"))), b"")


def _is_private_file(status: os.stat_result) -> bool:
    private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return private and stat.S_ISREG(status.st_mode)


def _read_entry(path: Path) -> bytes | None:
    """Returns the machine code of a cache entry; None if there is no valid one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not _is_private_file(status):
                return None
            data = file.read()
            if time.time() - status.st_mtime > KEEP_SECONDS / 30:
                with contextlib.suppress(OSError):
                    os.utime(descriptor)  # marks it as used, so that it is not removed
    except OSError:
        return None
    return data[32:] if hashlib.sha256(data[32:]).digest() == data[:32] else None


def _remove_old(new: Path) -> None:
    """Removes old machine code of other builds, and temporary files of writers that died."""
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
        "cannot cache machine code in %s (%s), so every process compiles its own; %s",
        folder,
        reason,
        CACHE_ADVICE,
    )


def _compile(wasm: bytes) -> bytes:
    # In a process of its own: importing wasmtime and compiling would block the caller's.
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
