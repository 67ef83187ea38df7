"""The files that sandboxes are made of: checked when loaded; machine code cached, never trusted."""

import logging
import os
import stat
from pathlib import Path

import pytest

from clawmode.exceptions import RuntimeUnavailable
from clawmode.sandbox import artifacts

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
    with pytest.raises(RuntimeUnavailable, match="not the file that was released"):
        artifacts.load(part)


def test_a_damaged_lock_is_runtime_unavailable(vendor: Path) -> None:
    (vendor.parent / "guest.lock.json").write_text("{}")
    with pytest.raises(RuntimeUnavailable, match=r"guest\.lock\.json"):
        artifacts.load("quickjs")
    artifacts._hashes.cache_clear()


def test_machine_code_is_compiled_once_and_kept_private(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = artifacts.machine_code(TINY)
    assert stat.S_IMODE(entry(cache).stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    monkeypatch.setattr(artifacts, "_compile", lambda wasm: pytest.fail("compiled again"))
    assert artifacts.machine_code(TINY) == code


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "readable"])
def test_an_entry_that_is_damaged_or_not_private_is_made_again(
    cache: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    code = artifacts.machine_code(TINY)
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
        assert artifacts.machine_code(TINY) == code
    assert "made again" in caplog.text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_bytes()) == len(code) + 32


def test_another_cpu_or_wasmtime_has_another_entry(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts.machine_code(TINY)
    monkeypatch.setattr(artifacts, "_cpu_features", lambda: b"another")
    artifacts.machine_code(TINY)
    monkeypatch.setattr(artifacts, "version", lambda name: "0.0")
    artifacts.machine_code(TINY)
    assert len(list(cache.glob("*.code"))) == 3


def test_a_cache_that_cannot_be_written_costs_time_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLAWMODE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.WARNING):
        assert artifacts.machine_code(TINY)
    assert "cannot be cached" in caplog.text


def test_wasm_that_cannot_be_compiled_is_runtime_unavailable(cache: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="cannot be compiled"):
        artifacts.machine_code(b"nonsense")
    assert not list(cache.glob("*"))


def test_the_cache_follows_the_users_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLAWMODE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert artifacts.cache_folder() == Path("/somewhere/clawmode")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert artifacts.cache_folder() == Path.home() / ".cache" / "clawmode"
