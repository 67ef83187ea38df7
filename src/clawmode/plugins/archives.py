"""Folders and archives, read into a stage. What is neither file nor folder is refused.

Sizes in headers are not believed: what comes out is counted as it comes. Nothing is extracted by a
library: the names of an archive are only ever those that a stage has checked.
"""

import gzip
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from clawmode.plugins.staging import InstallRefused, Stage

CHUNK = 64 << 10
HEADERS = 16 << 20
"""What a tar may have beside the contents of files: headers, long names, padding."""

SUFFIXES = (".zip", ".tar.gz", ".tgz")


def fill(stage: Stage, source: Path) -> None:
    """Lays out a folder or an archive.

    Raises:
        InstallRefused: There is none, or it holds what must not be staged.
    """
    try:
        if source.is_dir():
            _fill_from_folder(stage, source)
        elif not source.exists():
            raise InstallRefused("not_found", f"there is no {str(source)!r}")
        elif source.name.lower().endswith(SUFFIXES):
            _fill_from_archive(stage, source)
        else:
            known = ", ".join(SUFFIXES)
            raise InstallRefused("unsupported", f"{source.name!r} is neither a folder nor {known}")
    except OSError as error:
        reason = error.strerror or str(error)
        raise InstallRefused("damaged", f"{source} cannot be staged: {reason}") from None


def stem_of(source: Path) -> str:
    """What a source is called, without the ending of an archive."""
    ending = next((each for each in SUFFIXES if source.name.lower().endswith(each)), "")
    return source.name if source.is_dir() else source.name[: len(source.name) - len(ending)]


# ---- Folders ----


def _fill_from_folder(stage: Stage, source: Path) -> None:
    for top, folders, files, opened in os.fwalk(source, onerror=_raise, follow_symlinks=False):
        above = os.path.relpath(top, source)
        wanted = [name for name in sorted(folders) if stage.wants(os.path.join(above, name))]
        folders[:] = wanted
        for name in wanted:
            path = os.path.join(above, name)
            _check_mode(path, os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode)
            stage.add_folder(path)
        for name in sorted(files):
            path = os.path.join(above, name)
            if stage.wants(path):
                _copy(stage, path, name, opened)


def _copy(stage: Stage, path: str, name: str, folder: int) -> None:
    _check_mode(path, os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    # Meanwhile it may have become something else: no link is followed, nothing is waited for.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise InstallRefused("special_file", f"{path[:80]!r} is no file")
        stage.add_file(path, _chunks(file), executable=bool(mode & stat.S_IXUSR))


def _check_mode(path: str, mode: int) -> None:
    if stat.S_ISLNK(mode):
        raise InstallRefused("link", f"{path[:80]!r} is a link: put there what it leads to")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InstallRefused("special_file", f"{path[:80]!r} is neither a file nor a folder")


def _raise(error: OSError) -> None:
    raise error


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk


# ---- Archives ----


def _fill_from_archive(stage: Stage, source: Path) -> None:
    with open(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise InstallRefused("unsupported", f"{source.name!r} is no file")
        if about.st_size > stage.limits.archive_bytes:
            limit = stage.limits.archive_bytes
            raise InstallRefused("too_large", f"{source.name!r} is over {limit} bytes")
        try:
            if source.name.lower().endswith(".zip"):
                _fill_from_zip(stage, file)
            else:
                _fill_from_tar(stage, file)
        except InstallRefused:
            raise
        except Exception as error:  # the readers raise whatever they stumble over
            reason = str(error) or type(error).__name__
            text = f"{source.name!r} cannot be staged: {reason[:200]}"
            raise InstallRefused("damaged", text) from None


def _fill_from_zip(stage: Stage, file: BinaryIO) -> None:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if "\0" in info.orig_filename:  # the rest of it would not be looked at
                raise InstallRefused("unsafe_name", f"{info.orig_filename[:80]!r} is no name")
            mode = info.external_attr >> 16
            if stat.S_IFMT(mode):
                _check_mode(info.filename, mode)
            if not stage.wants(info.filename):
                continue
            if info.is_dir():
                stage.add_folder(info.filename)
                continue
            if info.flag_bits & 1 or info.compress_type not in (
                zipfile.ZIP_STORED,
                zipfile.ZIP_DEFLATED,
            ):
                raise InstallRefused("unsupported", "it is encrypted, or packed in a rare way")
            with archive.open(info) as content:
                stage.add_file(
                    info.filename, _chunks(content), executable=bool(mode & stat.S_IXUSR)
                )


def _fill_from_tar(stage: Stage, file: BinaryIO) -> None:
    # As a stream: nothing in it can send the reader back, and all that comes out is counted.
    unpacked = _Bounded(gzip.GzipFile(fileobj=file), stage.limits.total_bytes + HEADERS)
    with tarfile.open(fileobj=unpacked, mode="r|") as archive:
        for info in archive:
            if info.issym() or info.islnk():
                raise InstallRefused("link", f"{info.name[:80]!r} is a link")
            if not info.isdir() and (not info.isreg() or info.issparse()):
                raise InstallRefused("special_file", f"{info.name[:80]!r} is no plain file")
            if not stage.wants(info.name):
                continue
            if info.isdir():
                stage.add_folder(info.name)
                continue
            content = archive.extractfile(info)
            assert content is not None
            stage.add_file(info.name, _chunks(content), executable=bool(info.mode & stat.S_IXUSR))


class _Bounded(io.RawIOBase):
    """A stream that gives so many bytes and no more: headers can be bombs too."""

    def __init__(self, inner: io.BufferedIOBase, limit: int) -> None:
        super().__init__()
        self._inner = inner
        self._left = limit

    def read(self, size: int = -1) -> bytes:
        data = self._inner.read(CHUNK if size < 0 else size)
        self._left -= len(data)
        if self._left < 0:
            raise InstallRefused("too_large", "it is too large, once it is unpacked")
        return data
