"""Copies folders and archives into a stage; everything but plain files and folders is rejected.

Sizes in headers are not trusted: bytes are counted as they are unpacked. No library extracts files
on its own: only names that the stage has checked are used.
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
"""Bytes that a tar may have besides file contents: headers, long names, padding."""

SUFFIXES = (".zip", ".tar.gz", ".tgz")


def fill(stage: Stage, source: Path) -> None:
    """Copies a folder or an archive into the stage.

    Raises:
        InstallRefused: The source does not exist, or contains something that is not allowed.
    """
    try:
        if source.is_dir():
            _fill_from_folder(stage, source)
        elif not source.exists():
            raise InstallRefused("not_found", f"there is no file or folder {str(source)!r}")
        elif source.name.lower().endswith(SUFFIXES):
            _fill_from_archive(stage, source)
        else:
            known = ", ".join(SUFFIXES)
            raise InstallRefused(
                "unsupported",
                f"{source.name!r} is not a folder, and its name does not end in one of {known}",
            )
    except OSError as error:
        reason = error.strerror or str(error)
        raise InstallRefused("damaged", f"{source} cannot be read: {reason}") from None


def stem_of(source: Path) -> str:
    """Returns the name of a source without the suffix of an archive."""
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
            if not stage.wants(path):
                continue
            _check_mode(path, os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode)
            # The file may be replaced between `stat` and `open`: follow no link, block on no pipe.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(name, flags, dir_fd=opened), "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                if not stat.S_ISREG(mode):
                    raise InstallRefused("special_file", f"{path[:80]!r} is not a plain file")
                stage.add_file(path, _chunks(file), executable=bool(mode & stat.S_IXUSR))


def _check_mode(path: str, mode: int) -> None:
    if stat.S_ISLNK(mode):
        raise InstallRefused("link", f"{path[:80]!r} is a link: replace it by the file itself")
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
            raise InstallRefused("unsupported", f"{source.name!r} is not a plain file")
        if about.st_size > stage.limits.archive_bytes:
            limit = stage.limits.archive_bytes
            raise InstallRefused("too_large", f"{source.name!r} is larger than {limit} bytes")
        try:
            if source.name.lower().endswith(".zip"):
                _fill_from_zip(stage, file)
            else:
                _fill_from_tar(stage, file)
        except InstallRefused:
            raise
        except Exception as error:  # zipfile and tarfile raise many types for damaged files
            reason = str(error) or type(error).__name__
            text = f"{source.name!r} cannot be read: {reason[:200]}"
            raise InstallRefused("damaged", text) from None


def _fill_from_zip(stage: Stage, file: BinaryIO) -> None:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if "\0" in info.orig_filename:  # zipfile cuts the name at the NUL
                raise InstallRefused(
                    "unsafe_name", f"{info.orig_filename[:80]!r} is not a file name"
                )
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
                raise InstallRefused(
                    "unsupported", "the archive is encrypted, or uses an unknown compression method"
                )
            with archive.open(info) as content:
                stage.add_file(
                    info.filename, _chunks(content), executable=bool(mode & stat.S_IXUSR)
                )


def _fill_from_tar(stage: Stage, file: BinaryIO) -> None:
    # As a stream: no header can make the reader seek, and all unpacked bytes are counted.
    unpacked = _BoundedStream(gzip.GzipFile(fileobj=file), stage.limits.total_bytes + HEADERS)
    with tarfile.open(fileobj=unpacked, mode="r|") as archive:
        for info in archive:
            if info.issym() or info.islnk():
                raise InstallRefused("link", f"{info.name[:80]!r} is a link")
            if not info.isdir() and (not info.isreg() or info.issparse()):
                raise InstallRefused("special_file", f"{info.name[:80]!r} is not a plain file")
            if not stage.wants(info.name):
                continue
            if info.isdir():
                stage.add_folder(info.name)
                continue
            content = archive.extractfile(info)
            assert content is not None
            stage.add_file(info.name, _chunks(content), executable=bool(info.mode & stat.S_IXUSR))


class _BoundedStream(io.RawIOBase):
    """A stream with a size limit, because headers can be decompression bombs too."""

    def __init__(self, inner: io.BufferedIOBase, limit: int) -> None:
        super().__init__()
        self._inner = inner
        self._left = limit

    def read(self, size: int = -1) -> bytes:
        data = self._inner.read(CHUNK if size < 0 else size)
        self._left -= len(data)
        if self._left < 0:
            raise InstallRefused("too_large", "the archive is too large when unpacked")
        return data
