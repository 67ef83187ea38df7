"""A name in an open folder: what is there, and how it is replaced. `confined` says where that is.

Everything goes through the folder's descriptor, and nothing follows a link. A file is written
beside the old one and put in its place at once; a copy that fails half-way leaves nothing behind.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from clawmode.exceptions import ToolProblem
from clawmode.text import quote

MAX_NAME_BYTES = 255

# `O_PATH` needs no permission to read the folder, and is Linux's own.
FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """Which files may be used.

    Attributes:
        max_bytes: The largest one that is read or written.
        hard_links: Whether those may that have other names, which may be anywhere.
        protected: Files and folders that can be read and not changed, by their absolute paths.
    """

    max_bytes: int = 16 << 20
    hard_links: bool = False
    protected: tuple[Path, ...] = ()


Identity: TypeAlias = tuple[int, int]
"""Device and inode."""


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def identity(path: Path) -> Identity | None:
    """What a path leads to; None if that cannot be said."""
    try:
        return _identity(os.stat(path))
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Signature:
    """What tells whether a file is still the one that was read."""

    device: int
    inode: int
    size: int
    modified: int
    mode: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Signature":
        """The signature of a file."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode)


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a folder: `file`, `folder`, `link` or `other`."""

    name: str
    kind: str
    size: int


def shown(path: str) -> str:
    """A path as it is quoted in messages."""
    return quote(path, 200)


@dataclass(slots=True)
class Place:
    """A name in an open folder. Closes the folder at the end of `with`.

    Attributes:
        limits: Which files may be used.
        path: As it was given.
        folder: A descriptor of the last folder that is there.
        missing: Folders below that one, which are not.
        name: The name in the last of them; None if the path leads to `folder` itself.
        above: The folders from the workspace to `folder`, by device and inode.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.discard()
        os.close(self.folder)

    @property
    def key(self) -> tuple[int, int, tuple[str, ...], str | None]:
        """The same for two paths that lead to the same place."""
        status = os.fstat(self.folder)
        return status.st_dev, status.st_ino, self.missing, self.name

    def status(self) -> os.stat_result | None:
        """What is there; None if nothing is. A link is a link."""
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
        """What is in the folder that this is, sorted; and whether there is more.

        Raises:
            ToolProblem: It cannot be read.
        """
        assert self.name is None
        found: list[Entry] = []
        with explained(self.path):
            # The one that is held cannot be read if it was opened by `O_PATH`.
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
        """A file's content, and what tells whether it is still the same.

        Raises:
            ToolProblem: It is not there, no file, too large, or cannot be read.
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
        """What is there, if it is something that can be replaced; None if nothing is.

        Raises:
            ToolProblem: It cannot.
        """
        status = self.status()
        if any(self._is_in(each, status) for each in self.limits.protected):
            raise ToolProblem(
                "read_only",
                f"{shown(self.path)} is read-only for tools: the setup reads code, "
                "rules or keys from there; ask its operator to change it",
            )
        if status is None:
            return None
        self._check(status)
        if not status.st_mode & 0o222:
            raise ToolProblem("read_only", f"{shown(self.path)} is read-only")
        return Signature.of(status)

    def _is_in(self, protected: Path, status: os.stat_result | None) -> bool:
        """Whether this is a protected file or folder, or below it, by whatever path it is reached.

        What is there is compared by its inode, what is not there yet by its name in a folder.
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
            raise ToolProblem("not_found", f"{shown(self.path)} is not there")
        if not stat.S_ISREG(status.st_mode):
            raise ToolProblem("not_a_file", f"{shown(self.path)} is no file but a {_kind(status)}")
        if status.st_nlink > 1 and not self.limits.hard_links:
            raise ToolProblem(
                "linked",
                f"{shown(self.path)} has {status.st_nlink} names (hard links), of which some may "
                "be outside of the workspace; copy it, or have the operator allow hard links",
            )
        if status.st_size > self.limits.max_bytes:
            raise self._too_large(status.st_size)

    def _too_large(self, size: int) -> ToolProblem:
        limit = self.limits.max_bytes
        text = f"{shown(self.path)} has {size} bytes, over the limit of {limit}"
        return ToolProblem("too_large", text)

    # ---- Writing: staged beside the file, then put in its place ----

    def stage(self, data: bytes, before: Signature | None) -> None:
        """Writes what is to come beside where it is to be; makes folders that are missing.

        Raises:
            ToolProblem: It is too large, or cannot be written.
        """
        if self.name is None:
            raise ToolProblem("not_a_file", f"{shown(self.path)} is no file but a folder")
        if len(data) > self.limits.max_bytes:
            raise self._too_large(len(data))
        with explained(self.path):
            self._make_folders()
            self._staged = f".clawmode-{secrets.token_hex(8)}.tmp"
            # Of a file that is private, not even for a moment another copy that is not.
            mode = 0o666 if before is None else 0o600
            descriptor = os.open(self._staged, _NEW, mode, dir_fd=self.folder)
            with os.fdopen(descriptor, "wb") as file:
                if before is not None:
                    os.fchmod(descriptor, before.mode & 0o777)
                file.write(data)
                file.flush()
                os.fsync(descriptor)

    def commit(self, before: Signature | None) -> None:
        """Puts what is staged in its place, all at once.

        Raises:
            ToolProblem: What is there is not what it was before.
        """
        assert self.name is not None
        assert self._staged is not None
        self._check_unchanged(before)
        with explained(self.path):
            os.replace(self._staged, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        self._staged = None
        self._keep_folders()

    def remove(self, before: Signature | None = None) -> None:
        """Removes the file.

        Raises:
            ToolProblem: It is not what it was before, or cannot be removed.
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
                "changed", f"{shown(self.path)} was changed by somebody else; read it again"
            )

    def discard(self) -> None:
        """Removes what is staged and was not put in its place."""
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
                raise ToolProblem("bad_path", f"{shown(self.path)} has a name that is too long")
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

    def _keep_folders(self) -> None:
        for parent, _ in self._made:
            os.close(parent)
        self._made.clear()


def printable(name: str) -> str:
    """A name that may not be text, as text."""
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
    errno.ELOOP: ("changed", "it became a link while it was used"),
    errno.ENOENT: ("not_found", "it is not there"),
    errno.ENOTDIR: ("not_a_folder", "a part of it is not a folder"),
    errno.EISDIR: ("not_a_file", "it is a folder"),
    errno.EEXIST: ("exists", "it is there already"),
    errno.ENAMETOOLONG: ("bad_path", "a name is too long"),
    errno.ENOSPC: ("full", "the disk is full"),
    errno.EDQUOT: ("full", "the quota is used up"),
}


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """What the system says about a path, without any other path in it."""
    try:
        yield
    except OSError as error:
        code, reason = _REASONS.get(
            error.errno or 0, ("failed", (error.strerror or type(error).__name__).lower())
        )
        raise ToolProblem(code, f"{shown(path)}: {reason}") from None
