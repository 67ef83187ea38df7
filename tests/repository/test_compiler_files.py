"""The compiler that tests need, on its way from npm: pinned, unpacked whole or not at all."""

import base64
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

import guest_files
import test_files

FILES = {
    "package/package.json": b"{}",
    "package/lib/tsc": b"program",
    "package/lib/lib.es5.d.ts": b"types",
    "package/lib/deeper/file": b"not needed",
    "../outside": b"evil",
}


def pack(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def pin(tarball: bytes) -> guest_files.Package:
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode()
    return guest_files.Package("compiler", "1.0.0", integrity)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An npm that has one package; what it was asked for."""
    asked: list[str] = []

    def answer(self: guest_files.Npm, spec: str) -> bytes:
        asked.append(spec)
        return pack(FILES)

    monkeypatch.setattr(guest_files.Npm, "pack", answer)
    return asked


def test_the_compiler_is_fetched_once(packed: list[str], tmp_path: Path) -> None:
    package = pin(pack(FILES))
    folder = tmp_path / "build" / "test-files"
    assert test_files.fetch(package, folder)
    assert not test_files.fetch(package, folder)
    assert packed == ["compiler@1.0.0"]
    program = test_files.compiler_path(package, folder)
    assert program.read_bytes() == b"program"
    assert os.access(program, os.X_OK)
    assert sorted(path.name for path in program.parent.iterdir()) == ["lib.es5.d.ts", "tsc"]
    assert [path.name for path in folder.iterdir()] == [program.parents[1].name]
    assert not (tmp_path / "outside").exists()


def test_another_tarball_than_the_pinned_one_is_refused(packed: list[str], tmp_path: Path) -> None:
    package = pin(b"another")
    with pytest.raises(guest_files.GuestFilesError, match=r"test_files\.lock\.json"):
        test_files.fetch(package, tmp_path)
    assert packed
    assert list(tmp_path.iterdir()) == []


def test_another_pin_has_another_folder() -> None:
    one, other = pin(b"one"), pin(b"other")
    assert test_files.compiler_path(one) != test_files.compiler_path(other)


def test_the_machines_of_ci_have_a_pinned_compiler_and_others_do_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for machine in ("Linux x86_64", "Linux aarch64"):
        package = test_files.compiler_package(machine)
        assert package is not None
        assert package.integrity.startswith("sha512-")
    monkeypatch.setattr(test_files, "compiler_package", lambda: None)
    assert test_files.main() == 0
    assert "no TypeScript compiler is pinned" in capsys.readouterr().err


def test_a_failure_is_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(package: guest_files.Package) -> bool:
        raise guest_files.GuestFilesError("no network")

    monkeypatch.setattr(test_files, "compiler_package", lambda: pin(b""))
    monkeypatch.setattr(test_files, "fetch", fail)
    assert test_files.main() == 1
    assert capsys.readouterr().err == "test files: no network\n"
