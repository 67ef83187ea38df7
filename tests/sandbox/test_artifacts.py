"""The files that sandboxes are made of: checked when loaded; machine code cached, never trusted."""

import errno
import fcntl
import logging
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest
from tests.support.sandbox_driver import use_own_template
from tests.support.stepping import value_of

from clawmode.exceptions import RuntimeUnavailable
from clawmode.sandbox import artifacts
from clawmode.sandbox.pool import Pool

TINY = b"\0asm\1\0\0\0"


@pytest.fixture
def vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the guest folder that may be damaged."""
    guest = tmp_path / "guest"
    (guest / "vendor").mkdir(parents=True)
    (guest / "guest.lock.json").write_bytes((artifacts.GUEST / "guest.lock.json").read_bytes())
    for name in artifacts.FILES.values():
        os.symlink(artifacts.GUEST / "vendor" / name, guest / "vendor" / name)
    monkeypatch.setattr(artifacts, "GUEST", guest)
    artifacts._hashes.cache_clear()
    return guest / "vendor"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLAWMODE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def made(wasm: bytes) -> bytes:
    return artifacts.machine_code(wasm, artifacts.cache_folder(), "TypeScript")


def entry(cache: Path) -> Path:
    (found,) = cache.glob("*.code")
    return found


@pytest.mark.covers("WK-2", "ER-runtime_unavailable")
def test_a_missing_file_is_runtime_unavailable(vendor: Path) -> None:
    (vendor / "quickjs.wasm").unlink()
    with pytest.raises(RuntimeUnavailable, match=r"quickjs\.wasm is missing"):
        artifacts.load("quickjs")


@pytest.mark.covers("WK-2")
@pytest.mark.parametrize("part", ["quickjs", "swc", "acorn"])
def test_an_altered_file_is_runtime_unavailable(vendor: Path, part: artifacts.Part) -> None:
    path = vendor / artifacts.FILES[part]
    data = bytearray(path.read_bytes())
    path.unlink()
    data[1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(RuntimeUnavailable, match="has been altered"):
        artifacts.load(part)


def test_a_damaged_lock_is_runtime_unavailable(vendor: Path) -> None:
    (vendor.parent / "guest.lock.json").write_text("{}")
    with pytest.raises(RuntimeUnavailable, match=r"guest\.lock\.json"):
        artifacts.load("quickjs")
    artifacts._hashes.cache_clear()


def test_machine_code_is_compiled_once_and_kept_private(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = made(TINY)
    assert stat.S_IMODE(entry(cache).stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    monkeypatch.setattr(artifacts, "_compile", lambda wasm: pytest.fail("compiled again"))
    assert made(TINY) == code


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "readable"])
def test_an_entry_that_is_damaged_or_not_private_is_made_again(
    cache: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    code = made(TINY)
    path = entry(cache)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-1] ^= 1
        path.write_bytes(data)
    elif damage == "readable":
        path.chmod(0o644)
    else:
        path.write_bytes(data[:40] if damage == "truncate" else b"")
    with caplog.at_level(logging.WARNING):
        assert made(TINY) == code
    assert caplog.text.count("compiling it again") == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_bytes()) == len(code) + 32


def test_another_cpu_or_wasmtime_has_another_entry(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(TINY)
    monkeypatch.setattr(artifacts, "_cpu_features", lambda: b"another")
    made(TINY)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0")
    made(TINY)
    assert len(list(cache.glob("*.code"))) == 3


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLAWMODE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    return tmp_path / "file" / "cache"


@pytest.mark.covers("N-48")
def test_a_cache_that_cannot_be_written_is_logged_once_with_advice(
    no_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert made(TINY)
    (told,) = (text for text in caplog.messages if "cannot cache machine code" in text)
    assert str(no_cache) in told
    assert "set XDG_CACHE_HOME or CLAWMODE_CACHE_DIR to a folder" in told
    assert "once per machine" not in caplog.text


@pytest.mark.covers("N-8")
@pytest.mark.usefixtures("no_cache")
def test_without_a_cache_a_process_compiles_once_for_all_who_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[bytes] = []
    all_asked = threading.Event()

    def compile_slowly(wasm: bytes) -> bytes:
        compiled.append(wasm)
        assert all_asked.wait(10)
        return b"machine code"

    monkeypatch.setattr(artifacts, "_compile", compile_slowly)
    futures = [artifacts.prepare("swc") for _ in range(3)]
    all_asked.set()
    assert {future.result(10) for future in futures} == {b"machine code"}
    assert artifacts.load("swc") == b"machine code"
    assert len(compiled) == 1


def test_a_full_disk_leaves_no_half_written_entry(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert made(TINY)
    assert [path.name for path in cache.iterdir()] == ["lock"]
    assert "(No space left on device), so every process compiles its own" in caplog.text


# ---- One process compiles ----

COMPILER = """
import sys, time
from pathlib import Path
from clawmode.sandbox import artifacts, template
from clawmode.sandbox.pool import Pool
folder, mode = Path(sys.argv[1]), sys.argv[2]
def compile(wasm):
    print("compiling", flush=True)
    if mode == "wait": sys.stdin.read()
    return b"by " + mode.encode()
artifacts._compile = compile
print(artifacts.machine_code(b"wasm", folder, "TypeScript").decode(), flush=True)
"""


@pytest.fixture
def start_compiler(cache: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts processes that compile the same thing; `wait` compiles until its stdin is closed."""
    started: list[subprocess.Popen[str]] = []

    def start(mode: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", COMPILER, str(cache), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        with process:  # closes its pipes, which a test may have closed already
            pass


def line_of(pipe: IO[str] | None) -> str:
    assert pipe is not None
    return pipe.readline().strip()


@pytest.mark.covers("N-8", "EX-2")
def test_one_process_compiles_and_the_others_wait_for_it(
    start_compiler: Callable[[str], subprocess.Popen[str]],
) -> None:
    first = start_compiler("wait")
    assert line_of(first.stderr) == "preparing TypeScript, once per machine"
    assert line_of(first.stdout) == "compiling"
    others = [start_compiler("other") for _ in range(2)]
    for other in others:
        assert line_of(other.stderr) == "waiting for another process that prepares TypeScript"
    assert first.stdin is not None
    first.stdin.close()
    assert [line_of(process.stdout) for process in (first, *others)] == ["by wait"] * 3


@pytest.mark.covers("N-8")
def test_a_compiler_that_is_killed_blocks_nobody(
    start_compiler: Callable[[str], subprocess.Popen[str]],
) -> None:
    first = start_compiler("wait")
    assert line_of(first.stdout) == "compiling"
    other = start_compiler("other")
    assert "waiting" in line_of(other.stderr)
    first.kill()
    assert [line_of(other.stdout), line_of(other.stdout)] == ["compiling", "by other"]


@pytest.mark.covers("N-8")
def test_a_compiler_that_never_ends_is_waited_for_with_reminders_and_not_for_ever(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(artifacts, "COMPILE_SECONDS", 0.2)
    monkeypatch.setattr(artifacts, "REMINDER_SECONDS", 0.1)
    monkeypatch.setattr(artifacts, "_compile", lambda wasm: b"by ourselves")
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = SimpleNamespace(monotonic=lambda: now, sleep=sleep, time=time.time)
    monkeypatch.setattr(artifacts, "time", clock)
    cache.mkdir()
    descriptor = os.open(cache / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert made(TINY) == b"by ourselves"
    finally:
        os.close(descriptor)
    assert caplog.text.count("waiting for another process") >= 2
    assert 0.2 <= now < 0.3


@pytest.mark.parametrize("trap", ["link", "pipe", "folder", "readable", "foreign"])
def test_a_lock_that_is_not_ours_is_neither_followed_nor_waited_for(
    cache: Path, trap: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache.mkdir()
    lock, target = cache / "lock", tmp_path / "target"
    if trap == "link":
        lock.symlink_to(target)
    elif trap == "pipe":
        os.mkfifo(lock, 0o600)
    elif trap == "folder":
        lock.mkdir()
    else:
        lock.touch(0o644 if trap == "readable" else 0o600)
    held = os.open(lock, os.O_RDONLY) if lock.is_file() else None
    if held is not None:
        fcntl.flock(held, fcntl.LOCK_EX)
    if trap == "foreign":
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(artifacts, "_compile", lambda wasm: b"machine code")
    assert made(TINY) == b"machine code"
    assert entry(cache).exists()
    assert not target.exists()
    if held is not None:
        os.close(held)


@pytest.mark.parametrize("trap", ["link", "pipe"])
def test_an_entry_that_is_no_file_is_made_again(
    cache: Path, trap: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(artifacts, "_compile", lambda wasm: b"machine code")
    made(TINY)
    path = entry(cache)
    path.rename(tmp_path / "elsewhere")
    if trap == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path, 0o600)
    assert made(TINY) == b"machine code"
    assert stat.S_ISREG(path.lstat().st_mode)


def test_the_compiler_ends_with_the_process_that_started_it() -> None:
    with subprocess.Popen(
        artifacts.python_command("wasm", "1"),  # never its parent
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as orphan:
        assert orphan.wait(10) == 1


# ---- Old machine code ----

MONTHS = 3 * 30 * 24 * 3600


def test_machine_code_of_other_builds_that_nobody_uses_is_removed(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "_compile", lambda wasm: b"machine code")
    cache.mkdir()
    old, recent = f"{'a' * 40}.code", f"{'b' * 40}.code"
    left, shared, strange = f"{'c' * 40}.code.x1y2", f"{'d' * 40}.code", "notes.code"
    linked, target = f"{'e' * 40}.code", cache.parent / "target"
    for name in (old, recent, left, shared, strange):
        (cache / name).touch(0o644 if name == shared else 0o600)
    target.touch(0o600)
    (cache / linked).symlink_to(target)
    long_ago = time.time() - MONTHS
    for name in (old, left, shared, strange):
        os.utime(cache / name, (long_ago, long_ago))
    os.utime(target, (long_ago, long_ago))
    made(TINY)
    names = {path.name for path in cache.iterdir()} - {"lock"}
    assert names >= {recent, shared, strange, linked}
    assert not names & {old, left}
    assert target.exists()


def test_machine_code_that_is_used_counts_as_new(cache: Path) -> None:
    made(TINY)
    long_ago = time.time() - MONTHS
    os.utime(entry(cache), (long_ago, long_ago))
    made(TINY)
    assert time.time() - entry(cache).stat().st_mtime < 3600


def test_wasm_that_cannot_be_compiled_is_runtime_unavailable(cache: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="cannot be compiled"):
        made(b"nonsense")
    assert [path.name for path in cache.iterdir()] == ["lock"]


def test_the_cache_follows_the_users_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLAWMODE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert artifacts.cache_folder() == Path("/somewhere/clawmode")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the XDG specification says: ignore it
    assert artifacts.cache_folder() == Path.home() / ".cache" / "clawmode"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert artifacts.cache_folder() == Path.home() / ".cache" / "clawmode"


# ---- The image ----


@pytest.mark.anyio
@pytest.mark.hostile
async def test_the_image_is_cached_privately_and_a_damaged_one_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def image() -> bytes:
        use_own_template(monkeypatch)
        async with Pool(size=1) as pool:
            assert await value_of(pool, "return [1, 2].map((x) => x * 2)") == [2, 4]
            return pool.image

    for file in os.scandir(artifacts.cache_folder()):
        if file.name.endswith(".code"):
            shutil.copy2(file, tmp_path)
    monkeypatch.setenv("CLAWMODE_CACHE_DIR", str(tmp_path))
    assert artifacts.cached_image() == b""
    built = await image()
    (entry,) = (Path(each) for each in os.scandir(tmp_path) if each.name.endswith(".image"))
    assert entry.stat().st_mode & 0o777 == 0o600
    whole = entry.read_bytes()
    assert artifacts.cached_image() == whole[32:]
    assert await image() == built
    written = entry.stat().st_mtime_ns
    entry.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert artifacts.cached_image() == b""
    assert await image() == built
    assert entry.read_bytes() == whole
    assert entry.stat().st_mtime_ns != written
    entry.chmod(0o666)
    assert artifacts.cached_image() == b""
    assert await image() == built
    # Whole, private, and of no use: the worker builds its own.
    artifacts.keep_image(b"nonsense")
    assert artifacts.cached_image() == b"nonsense"
    assert await image() == built


def test_another_prelude_has_another_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = artifacts._image_path()
    guest = tmp_path / "guest"
    shutil.copytree(artifacts.GUEST, guest)
    monkeypatch.setattr(artifacts, "GUEST", guest)
    assert artifacts._image_path() == before
    with (guest / "prelude.js").open("a") as prelude:
        prelude.write("\n// changed\n")
    assert artifacts._image_path() != before
