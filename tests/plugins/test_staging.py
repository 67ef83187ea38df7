"""Hostile material: refused for what it is, and nothing of it is left."""

import gzip
import os
import socket
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.plugin_material import (
    DEVICE,
    LINK,
    MANIFEST,
    installer,
    left_in,
    manifest,
    plugin,
    skill,
    tar_entry,
    tarred,
    zipped,
)

from clawmode.plugins.install import stage, workshop
from clawmode.plugins.staging import InstallRefused, Limits

pytestmark = pytest.mark.anyio

SMALL = Limits(entries=20, file_bytes=4_000, total_bytes=10_000, archive_bytes=50_000, depth=4)


async def refusal(source: Path, state: Path, limits: Limits = SMALL) -> str:
    with pytest.raises(InstallRefused) as caught:
        await installer(state, limits).install(str(source))
    assert left_in(state) == []
    return caught.value.code


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- Compiled code ----


@pytest.mark.covers("S-18")
@pytest.mark.parametrize(
    "name",
    [
        "main.cpython-311-x86_64-linux-gnu.so",
        "main.pyc",
        "main.abi3.so",
        "inner/__init__.pyc",
        "MAIN.PYD",
    ],
)
async def test_compiled_code_is_refused_beside_source_and_alone(tmp_path: Path, name: str) -> None:
    archive = zipped(tmp_path / "x.zip", {MANIFEST: manifest(), "main.py": "", name: "x"})
    assert await refusal(archive, tmp_path / "state") == "compiled"
    folder = plugin(tmp_path / "folder")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"x")
    assert await refusal(folder, tmp_path / "state") == "compiled"


# ---- Archives ----


def encrypted(path: Path) -> Path:
    packed = bytearray(zipped(path, {"a": "x"}).read_bytes())
    packed[packed.rindex(b"PK\1\2") + 8] |= 1
    path.write_bytes(packed)
    return path


def bzipped(info: zipfile.ZipInfo) -> None:
    info.compress_type = zipfile.ZIP_BZIP2


ZIPS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "leads up": ("unsafe_name", lambda at: zipped(at, {"../evil.py": "x"})),
    "leads up from below": ("unsafe_name", lambda at: zipped(at, {"a/../../evil.py": "x"})),
    "leads up from what is left out": (
        "unsafe_name",
        lambda at: zipped(at, {"__pycache__/../../evil.py": "x"}),
    ),
    "is absolute": ("unsafe_name", lambda at: zipped(at, {"/tmp/evil.py": "x"})),
    "leads up as on Windows": ("unsafe_name", lambda at: zipped(at, {"..\\evil.py": "x"})),
    "has a drive": ("unsafe_name", lambda at: zipped(at, {"C:evil.py": "x"})),
    "has a line break": ("unsafe_name", lambda at: zipped(at, {"a\nb.py": "x"})),
    "has an empty step": ("unsafe_name", lambda at: zipped(at, {"a//b.py": "x"})),
    "has a very long name": ("unsafe_name", lambda at: zipped(at, {"x" * 300: "x"})),
    "is a link out": ("link", lambda at: zipped(at, {"key": "/etc/passwd"}, LINK)),
    "is a link inside": ("link", lambda at: zipped(at, {"key": "main.py"}, LINK)),
    "is a device": ("special_file", lambda at: zipped(at, {"null": ""}, DEVICE)),
    "is two in one case": ("name_clash", lambda at: zipped(at, {"MAIN.py": "x"})),
    "is two in another form": (
        "name_clash",
        lambda at: zipped(at, {"\u00e9": "x", "e\u0301": "y"}),
    ),
    "is a file and a folder": ("name_clash", lambda at: zipped(at, {"main.py/x": "x"})),
    "is a folder in another case": ("name_clash", lambda at: zipped(at, {"a/x": "", "A/y": ""})),
    "is too many": ("too_large", lambda at: zipped(at, {f"{n}.py": "" for n in range(30)})),
    "is too many folders": (
        "too_large",
        lambda at: zipped(at, {f"{n}/a/b/c": "" for n in range(8)}),
    ),
    "is too deep": ("too_large", lambda at: zipped(at, {"a/b/c/d/e": "x"})),
    "is a bomb": ("too_large", lambda at: zipped(at, {"zeros": b"\0" * 100_000})),
    "is many small bombs": (
        "too_large",
        lambda at: zipped(at, {f"{n}": b"\0" * 3_000 for n in range(9)}),
    ),
    "is encrypted": ("unsupported", encrypted),
    "is packed in a rare way": ("unsupported", lambda at: zipped(at, {"a": "x"}, bzipped)),
}


@pytest.mark.parametrize(("code", "make"), ZIPS.values(), ids=ZIPS.keys())
async def test_a_zip_is_refused_that(
    tmp_path: Path, code: str, make: Callable[[Path], Path]
) -> None:
    assert await refusal(make(tmp_path / "garden.zip"), tmp_path / "state") == code
    assert names_in(tmp_path) == ["garden.zip", "state"]


TARS: dict[str, tuple[str, list[tarfile.TarInfo | tuple[str, bytes]]]] = {
    "leads up": ("unsafe_name", [("../evil.py", b"x")]),
    "is absolute": ("unsafe_name", [("/tmp/evil.py", b"x")]),
    "is not UTF-8": ("unsafe_name", [("\udcff.py", b"x")]),
    "is a link out": ("link", [tar_entry("key", tarfile.SYMTYPE, "../../key")]),
    "is a link to a folder, and a file through it": (
        "link",
        [tar_entry("out", tarfile.SYMTYPE, "/tmp"), ("out/evil.py", b"x")],
    ),
    "is a hard link": ("link", [tar_entry("key", tarfile.LNKTYPE, "/etc/passwd")]),
    "is a device": ("special_file", [tar_entry("null", tarfile.CHRTYPE)]),
    "is a pipe": ("special_file", [tar_entry("pipe", tarfile.FIFOTYPE)]),
    "is sparse": ("special_file", [tar_entry("hole", tarfile.GNUTYPE_SPARSE)]),
    "is there twice": ("name_clash", [("main.py", b"other code")]),
    "is a file and a folder": ("name_clash", [tar_entry("main.py", tarfile.DIRTYPE)]),
    "is a bomb": ("too_large", [("zeros", b"\0" * 100_000)]),
    "is too many": ("too_large", [(f"{n}", b"") for n in range(30)]),
}


@pytest.mark.parametrize(("code", "entries"), TARS.values(), ids=TARS.keys())
async def test_a_tar_is_refused_that(
    tmp_path: Path, code: str, entries: list[tarfile.TarInfo | tuple[str, bytes]]
) -> None:
    assert await refusal(tarred(tmp_path / "a.tar.gz", entries), tmp_path / "state") == code
    assert names_in(tmp_path) == ["a.tar.gz", "state"]


async def test_a_header_can_be_a_bomb_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawmode.plugins.archives.HEADERS", 1 << 20)
    head = tar_entry("././@LongLink", tarfile.GNUTYPE_LONGNAME)
    head.size = 40 << 20
    source = tmp_path / "a.tgz"
    with gzip.open(source, "wb") as file:
        file.write(head.tobuf(tarfile.GNU_FORMAT) + b"a" * (40 << 20))
    assert await refusal(source, tmp_path / "state") == "too_large"


async def test_headers_that_lead_to_headers_do_not_exhaust_the_reader(tmp_path: Path) -> None:
    head = tar_entry("././@LongLink", tarfile.GNUTYPE_LONGNAME)
    head.size = 2
    one = head.tobuf(tarfile.GNU_FORMAT) + b"a\0".ljust(512, b"\0")
    source = tmp_path / "a.tgz"
    source.write_bytes(gzip.compress(one * 5_000))
    assert await refusal(source, tmp_path / "state", Limits()) == "damaged"


async def test_a_name_that_ends_early_is_no_name(tmp_path: Path) -> None:
    source = zipped(tmp_path / "a.zip", {"good.pyXevil": "x"})
    source.write_bytes(source.read_bytes().replace(b"good.pyXevil", b"good.py\0evil"))
    assert await refusal(source, tmp_path / "state") == "unsafe_name"


DAMAGED = {
    "nothing.zip": b"",
    "text.zip": b"This is no zip.",
    "nothing.tar.gz": b"",
    "text.tgz": b"This is no tar.",
    "packed_text.tar.gz": gzip.compress(b"This is no tar." * 100),
}


@pytest.mark.parametrize("name", DAMAGED)
async def test_a_file_that_is_not_an_archive_is_rejected(tmp_path: Path, name: str) -> None:
    source = tmp_path / name
    source.write_bytes(DAMAGED[name])
    assert await refusal(source, tmp_path / "state") == "damaged"


@pytest.mark.parametrize("name", ["a.zip", "a.tgz"])
async def test_half_an_archive_is_refused(tmp_path: Path, name: str) -> None:
    noise = os.urandom(2_000)
    if name == "a.zip":
        source = zipped(tmp_path / name, {"noise": noise})
    else:
        source = tarred(tmp_path / name, [("noise", noise)])
    source.write_bytes(source.read_bytes()[:-40])
    assert await refusal(source, tmp_path / "state") == "damaged"


async def test_a_zip_whose_bytes_were_changed_is_refused(tmp_path: Path) -> None:
    noise = os.urandom(2_000)
    source = zipped(tmp_path / "a.zip", {"noise": noise})
    packed = source.read_bytes()
    assert noise[500:520] in packed
    source.write_bytes(packed.replace(noise[500:520], b"\0" * 20))
    assert await refusal(source, tmp_path / "state") == "damaged"


async def test_an_archive_that_is_too_large_is_not_opened(tmp_path: Path) -> None:
    source = tmp_path / "a.zip"
    source.write_bytes(b"\0" * 60_000)
    assert await refusal(source, tmp_path / "state") == "too_large"


@pytest.mark.parametrize("name", ["garden.exe", "garden.tar", "garden"])
async def test_other_files_are_not_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    assert await refusal(tmp_path / name, tmp_path / "state") == "unsupported"


async def test_a_pipe_of_the_right_name_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "garden.zip")
    assert await refusal(tmp_path / "garden.zip", tmp_path / "state") == "unsupported"


# ---- Folders ----


def link_to_a_file(folder: Path) -> None:
    (folder / "key").symlink_to("/etc/passwd")


def link_to_a_folder(folder: Path) -> None:
    (folder / "keys").symlink_to("/etc")


def link_to_nothing(folder: Path) -> None:
    (folder / "key").symlink_to("nowhere")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def socket_file(folder: Path) -> None:
    made = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(folder)  # its path would be too long
    try:
        made.bind("s")
    finally:
        os.chdir(here)
        made.close()


def many(folder: Path) -> None:
    for number in range(30):
        (folder / str(number)).write_text("")


def large(folder: Path) -> None:
    (folder / "large").write_bytes(b"x" * 5_000)


def clash(folder: Path) -> None:
    (folder / "MAIN.py").write_text("")


def backslash(folder: Path) -> None:
    (folder / "a\\b").write_text("")


FOLDERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "link": ("link", link_to_a_file),
    "link to a folder": ("link", link_to_a_folder),
    "link to nothing": ("link", link_to_nothing),
    "pipe": ("special_file", pipe),
    "socket": ("special_file", socket_file),
    "many files": ("too_large", many),
    "large file": ("too_large", large),
    "clash": ("name_clash", clash),
    "odd name": ("unsafe_name", backslash),
}


@pytest.mark.parametrize(("code", "spoil"), FOLDERS.values(), ids=FOLDERS.keys())
async def test_a_folder_is_refused_that_has_a(
    tmp_path: Path, code: str, spoil: Callable[[Path], None]
) -> None:
    spoil(plugin(tmp_path / "garden"))
    assert await refusal(tmp_path / "garden", tmp_path / "state") == code


async def test_what_is_neither_a_plugin_nor_a_skill_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert await refusal(tmp_path / "empty", tmp_path / "state") == "no_manifest"
    plugin(tmp_path / "two" / "a")
    plugin(tmp_path / "two" / "b", name="other")
    assert await refusal(tmp_path / "two", tmp_path / "state") == "no_manifest"
    assert await refusal(tmp_path / "nowhere", tmp_path / "state") == "not_found"
    assert await refusal(Path("a\0b"), tmp_path / "state") == "not_found"


async def test_a_manifest_that_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    (plugin(tmp_path / "a") / MANIFEST).write_text(manifest("../../evil"))
    assert await refusal(tmp_path / "a", tmp_path / "state") == "invalid_manifest"
    (plugin(tmp_path / "b") / MANIFEST).write_text("[" * 3_000)
    assert await refusal(tmp_path / "b", tmp_path / "state") == "invalid_manifest"
    skill(tmp_path / "c", "../evil")
    assert await refusal(tmp_path / "c", tmp_path / "state") == "invalid_manifest"
    skill(tmp_path / "d", description="")
    assert await refusal(tmp_path / "d", tmp_path / "state") == "invalid_manifest"


# ---- What is staged ----


def test_staging_returns_own_copies_of_files_and_their_hashes(tmp_path: Path) -> None:
    source = plugin(tmp_path / "garden")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o4755)
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "main.cpython-311.pyc").write_bytes(b"other code")
    (source / ".git").mkdir()
    with workshop(tmp_path / "state") as place:
        made = stage(str(source), place, Limits())
        assert (made.kind, made.name, made.version) == ("plugin", "garden", "1.0")
        assert made.source == str(source)
        assert [file.path for file in made.files] == [MANIFEST, "main.py", "run.sh"]
        assert names_in(made.folder) == [MANIFEST, "main.py", "run.sh"]
        assert (made.folder / "run.sh").stat().st_mode & 0o7777 == 0o700
        assert (made.folder / "main.py").stat().st_mode & 0o7777 == 0o600
        assert made.folder.stat().st_mode & 0o7777 == 0o700
        assert all(len(file.sha256) == 64 and file.bytes for file in made.files)
    assert left_in(tmp_path / "state") == []


@pytest.mark.parametrize("top", ["", "garden-1.0/"])
def test_an_archive_may_have_one_folder_at_its_top(tmp_path: Path, top: str) -> None:
    source = tmp_path / "a.zip"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr(f"{top}{MANIFEST}", manifest())
        archive.writestr(f"{top}main.py", "")
        archive.writestr("__MACOSX/._main.py", "")
    with workshop(tmp_path / "state") as place:
        made = stage(str(source), place, Limits())
        assert [file.path for file in made.files] == [MANIFEST, "main.py"]


def test_a_tar_of_the_present_folder_is_read(tmp_path: Path) -> None:
    source = tmp_path / "garden.tgz"
    with tarfile.open(source, "w:gz") as archive:
        archive.add(plugin(tmp_path / "garden"), ".")
    with workshop(tmp_path / "state") as place:
        assert stage(str(source), place, Limits()).name == "garden"


def test_a_skill_without_a_name_is_called_like_its_folder_or_archive(tmp_path: Path) -> None:
    source = tmp_path / "rose care.zip"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("SKILL.md", "---\ndescription: Roses.\n---\n")
    with workshop(tmp_path / "state") as place:
        made = stage(str(source), place, Limits())
    assert (made.kind, made.name, made.description) == ("skill", "rose-care", "Roses.")
