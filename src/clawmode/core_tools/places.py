"""Reads and replaces a file by its name in an open folder. `confined` finds the folder.

All access uses the folder's descriptor, and never follows a link. A new file is written next to the
old one and then renamed, so that a failed write leaves nothing behind.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import TypeAlias

from clawmode.exceptions import ToolProblem
from clawmode.text import quote
from clawmode.types import dataclass

MAX_NAME_BYTES = 255

# Windows has none of these flags, and `Workspace` cannot be made there.
_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# `O_PATH` (only on Linux) needs no permission to read the folder.
FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | _SAFE
_FILE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | _SAFE
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """Which files may be used.

    Attributes:
        max_bytes: The maximum size of a file that is read or written.
        hard_links: Whether files with several names may be used; other names may be anywhere.
        protected: Absolute paths of files and folders that can be read but not changed.
    """

    max_bytes: int = 16 << 20
    hard_links: bool = False
    protected: tuple[Path, ...] = ()


Identity: TypeAlias = tuple[int, int]
"""Device and inode of a file."""


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def identity(path: Path) -> Identity | None:
    """Returns the identity of the file at a path; None if it cannot be determined."""
    try:
        return _identity(os.stat(path))
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Signature:
    """Identifies the state of a file, to detect that it was changed since it was read."""

    device: int
    inode: int
    size: int
    modified: int
    mode: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Signature":
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a folder. Its kind is `file`, `folder`, `link` or `other`."""

    name: str
    kind: str
    size: int


def shown(path: str) -> str:
    """Quotes a path for messages."""
    return quote(path, 200)


@dataclass(slots=True)
class Place:
    """A name in an open folder. Closes the folder at the end of `with`.

    Attributes:
        limits: Which files may be used.
        path: The path of the tool call.
        folder: A descriptor of the last existing folder.
        missing: The names of folders below it that do not exist.
        name: The name in the last folder; None if the path leads to `folder` itself.
        above: The identities of the folders from the workspace to `folder`.
    """

    limits: FileLimits
    path: str
    folder: int
    missing: tuple[str, ...]
    name: str | None
    above: frozenset[Identity] = frozenset()
    _staged: str | None = field(default=None, init=False)
    _made: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]], init=False)

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()
        os.close(self.folder)

    @property
    def key(self) -> tuple[int, int, tuple[str, ...], str | None]:
        """A value that is equal for all paths to the same place."""
        status = os.fstat(self.folder)
        return status.st_dev, status.st_ino, self.missing, self.name

    def status(self) -> os.stat_result | None:
        """Returns the status of the file, without following a link; None if it does not exist."""
        if self.name is None:
            return os.fstat(self.folder)
        if self.missing:
            return None
        with explained(self.path):
            try:
                return os.lstat(self.name, dir_fd=self.folder)
            except FileNotFoundError:
                return None

    # ---- Reading ----

    def entries(self, limit: int) -> tuple[list[Entry], bool]:
        """Returns the sorted entries of this folder, and whether there are more than `limit`.

        Raises:
            ToolProblem: The folder cannot be read.
        """
        assert self.name is None
        found: list[Entry] = []
        with explained(self.path):
            # A descriptor that was opened with `O_PATH` cannot be read.
            folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.folder)
            try:
                names = os.listdir(folder)
                for name in sorted(names)[:limit]:
                    with contextlib.suppress(FileNotFoundError):
                        status = os.lstat(name, dir_fd=folder)
                        found.append(Entry(printable(name), _kind(status), status.st_size))
            finally:
                os.close(folder)
        return found, len(names) > limit

    def read(self) -> tuple[bytes, Signature]:
        """Returns the content of a file, and its signature.

        Raises:
            ToolProblem: The file does not exist, is not a regular file, is too large, or cannot be
                read.
        """
        self._check(self.status())
        assert self.name is not None
        with explained(self.path):
            descriptor = os.open(self.name, _FILE, dir_fd=self.folder)
        with os.fdopen(descriptor, "rb") as file, explained(self.path):
            status = os.fstat(descriptor)
            self._check(status)
            data = file.read(self.limits.max_bytes + 1)
        if len(data) > self.limits.max_bytes:
            raise self._too_large(len(data))
        return data, Signature.of(status)

    def check(self) -> Signature | None:
        """Returns the signature of the file if it may be replaced; None if it does not exist.

        Raises:
            ToolProblem: The file must not be replaced.
        """
        status = self.status()
        if any(self._is_in(path, status) for path in self.limits.protected):
            raise ToolProblem(
                "read_only",
                f"{shown(self.path)} is read-only for tools, because clawmode reads code, rules or "
                "keys from it; ask the operator to change it",
            )
        if status is None:
            return None
        self._check(status)
        if not status.st_mode & 0o222:
            raise ToolProblem("read_only", f"{shown(self.path)} is read-only")
        return Signature.of(status)

    def _is_in(self, protected: Path, status: os.stat_result | None) -> bool:
        """True if this place is a protected file or folder, or below it.

        Existing files are compared by inode, because links can lead to them. Files that do not
        exist yet are compared by their name in a folder.
        """
        found = identity(protected)
        if found is not None and (found in self.above or (status and found == _identity(status))):
            return True
        own = (*self.missing, self.name)
        for path in (protected, Path(os.path.realpath(protected))):
            names: tuple[str, ...] = ()
            while (folder := identity(path)) is None or not names:
                names, path = (path.name, *names), path.parent
            if folder == _identity(os.fstat(self.folder)) and own[: len(names)] == names:
                return True
        return False

    def _check(self, status: os.stat_result | None) -> None:
        if status is None:
            raise ToolProblem("not_found", f"{shown(self.path)} does not exist")
        if not stat.S_ISREG(status.st_mode):
            raise ToolProblem("not_a_file", f"{shown(self.path)} is not a file ({_kind(status)})")
        if status.st_nlink > 1 and not self.limits.hard_links:
            raise ToolProblem(
                "linked",
                f"{shown(self.path)} has {status.st_nlink} names (hard links), and some may "
                "be outside of the workspace; copy it, or ask the operator to allow hard links",
            )
        if status.st_size > self.limits.max_bytes:
            raise self._too_large(status.st_size)

    def _too_large(self, size: int) -> ToolProblem:
        limit = self.limits.max_bytes
        text = f"{shown(self.path)} has {size} bytes; the limit is {limit}"
        return ToolProblem("too_large", text)

    # ---- Writing: staged next to the file, then renamed ----

    def stage(self, data: bytes, before: Signature | None) -> None:
        """Writes the new content to a temporary file, and creates missing folders.

        Raises:
            ToolProblem: The content is too large, or cannot be written.
        """
        if self.name is None:
            raise ToolProblem("not_a_file", f"{shown(self.path)} is a folder")
        if len(data) > self.limits.max_bytes:
            raise self._too_large(len(data))
        with explained(self.path):
            self._make_folders()
            self._staged = f".clawmode-{secrets.token_hex(8)}.tmp"
            # The copy of a private file must be private from the start.
            mode = 0o666 if before is None else 0o600
            descriptor = os.open(self._staged, _NEW, mode, dir_fd=self.folder)
            with os.fdopen(descriptor, "wb") as file:
                if before is not None:
                    os.fchmod(descriptor, before.mode & 0o777)
                file.write(data)
                file.flush()
                os.fsync(descriptor)

    def commit(self, before: Signature | None) -> None:
        """Renames the staged file to its final name.

        Raises:
            ToolProblem: The file was changed since `before`.
        """
        assert self.name is not None
        assert self._staged is not None
        self._check_unchanged(before)
        with explained(self.path):
            os.replace(self._staged, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        self._staged = None
        for parent, _ in self._made:
            os.close(parent)
        self._made.clear()

    def remove(self, before: Signature | None = None) -> None:
        """Removes the file.

        Raises:
            ToolProblem: The file was changed since `before`, or cannot be removed.
        """
        assert self.name is not None
        if before is not None:
            self._check_unchanged(before)
        with explained(self.path):
            os.unlink(self.name, dir_fd=self.folder)

    def _check_unchanged(self, before: Signature | None) -> None:
        now = self.status()
        if (None if now is None else Signature.of(now)) != before:
            raise ToolProblem(
                "changed", f"{shown(self.path)} was changed in the meantime; read it again"
            )

    def discard(self) -> None:
        """Removes the staged file and the folders created for it, unless they were committed."""
        with contextlib.suppress(OSError):
            if self._staged is not None:
                os.unlink(self._staged, dir_fd=self.folder)
        self._staged = None
        while self._made:
            parent, name = self._made.pop()
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=parent)
            os.close(parent)

    def _make_folders(self) -> None:
        for name in self.missing:
            if len(os.fsencode(name)) > MAX_NAME_BYTES:
                raise ToolProblem(
                    "bad_path", f"{shown(self.path)} contains a name that is too long"
                )
            made = True
            try:
                os.mkdir(name, dir_fd=self.folder)
            except FileExistsError:
                made = False
            inner = os.open(name, FOLDER, dir_fd=self.folder)
            if made:
                self._made.append((self.folder, name))
            else:
                os.close(self.folder)
            self.folder = inner
        self.missing = ()


def printable(name: str) -> str:
    """Decodes a file name, which may not be valid UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")


def _kind(status: os.stat_result) -> str:
    if stat.S_ISREG(status.st_mode):
        return "file"
    if stat.S_ISDIR(status.st_mode):
        return "folder"
    return "link" if stat.S_ISLNK(status.st_mode) else "other"


_REASONS = {
    errno.EACCES: ("denied", "permission denied"),
    errno.EPERM: ("denied", "permission denied"),
    errno.EROFS: ("denied", "the file system is read-only"),
    errno.ELOOP: ("changed", "it became a link in the meantime"),
    errno.ENOENT: ("not_found", "it does not exist"),
    errno.ENOTDIR: ("not_a_folder", "a part of the path is not a folder"),
    errno.EISDIR: ("not_a_file", "it is a folder"),
    errno.EEXIST: ("exists", "it already exists"),
    errno.ENAMETOOLONG: ("bad_path", "a name is too long"),
    errno.ENOSPC: ("full", "the disk is full"),
    errno.EDQUOT: ("full", "the disk quota is exceeded"),
}


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Converts OSError to ToolProblem. The message names only the path of the tool call."""
    try:
        yield
    except OSError as error:
        code, reason = _REASONS.get(
            error.errno or 0, ("failed", (error.strerror or type(error).__name__).lower())
        )
        raise ToolProblem(code, f"{shown(path)}: {reason}") from None
