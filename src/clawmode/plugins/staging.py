"""The staging folder: a private copy of what is to be installed, with names, sizes and hashes.

The source is hostile. Only plain files and folders are written, only below the staging folder, no
two names differ only in their spelling, and the limits hold.
"""

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, field
from pathlib import Path
from typing import Literal, TypeAlias

from clawmode.plugins.manifest import PluginError
from clawmode.types import JsonObject, JsonValue, dataclass

Kind: TypeAlias = Literal["plugin", "skill"]

RefusalCode: TypeAlias = Literal[
    "not_found",  # the source does not exist, or nothing of that name is installed
    "unsupported",  # the source is neither a folder nor a known kind of archive
    "damaged",  # the archive or the folder cannot be read
    "unsafe_name",  # a name that leads out of the folder, or is not valid on every system
    "link",
    "special_file",
    "too_large",  # over one of the limits
    "compiled",  # compiled code, which cannot be reviewed
    "name_clash",  # two names that are the same on some systems
    "no_manifest",  # neither a plugin nor a skill
    "invalid_manifest",
    "policy",  # refused by `security.installPolicy`
    "hook",  # refused by a `before_install` hook
    "does_not_load",
    "not_ours",  # it belongs to a Python package, or to a folder of the configuration
    "busy",  # another process is installing something
    "failed",  # the operating system reported an error
]

LEFT_OUT = frozenset({"__pycache__", "__MACOSX", ".DS_Store", ".git"})
"""Skipped. Compiled code in `__pycache__` may differ from the source that a person reviews."""

COMPILED = (".so", ".pyd", ".dll", ".dylib", ".pyc", ".pyo")
"""Rejected. Python prefers `main.so` to `main.py`, and imports a `main.pyc` without its source."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]|^[A-Za-z]:")


class InstallRefused(PluginError):
    """An installation or a removal was refused; the message says why.

    Attributes:
        code: The kind of refusal, for programs.
    """

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of what may be staged.

    Attributes:
        entries: Files and folders in total.
        file_bytes: The size of one file.
        total_bytes: The size of all files.
        archive_bytes: The size of the archive itself.
        depth: How deep folders may be nested.
    """

    entries: int = 2_000
    file_bytes: int = 16 << 20
    total_bytes: int = 64 << 20
    archive_bytes: int = 64 << 20
    depth: int = 16
    name_bytes: int = 255


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file in the staging folder."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """A staged plugin or skill, as policies and hooks see it.

    Attributes:
        name: The id of a plugin, or the name of a skill.
        folder: The staging folder.
        source: The absolute path of the source, with links resolved.
        replaces: The version that is installed now, or None.
    """

    kind: Kind
    name: str
    version: str
    description: str
    folder: Path
    source: str
    replaces: str | None = None
    files: tuple[StagedFile, ...] = field(default=(), repr=False)

    def to_json(self) -> JsonObject:
        files = list[JsonValue](JsonObject(asdict(each)) for each in self.files)
        return asdict(self) | {"folder": str(self.folder), "files": files}


@dataclass(slots=True)
class Stage:
    """The staging folder, filled entry by entry.

    Attributes:
        folder: A new, empty, private folder.
        files: The files written so far.
    """

    folder: Path
    limits: Limits = field(default_factory=Limits)
    files: list[StagedFile] = field(default_factory=list[StagedFile])
    _spelled: dict[str, tuple[str, bool]] = field(default_factory=dict[str, tuple[str, bool]])
    _seen: int = 0
    _bytes: int = 0

    def wants(self, name: str) -> bool:
        """True if the entry has to be staged, false if it is skipped.

        Raises:
            InstallRefused: The name is not allowed, or there are too many entries.
        """
        self._seen += 1
        if self._seen > self.limits.entries:
            raise InstallRefused("too_large", f"there are more than {self.limits.entries} entries")
        return not LEFT_OUT.intersection(self._parts(name))

    def add_folder(self, name: str) -> None:
        """Creates a folder and its parents.

        Raises:
            InstallRefused: The name is not allowed.
        """
        parts = self._parts(name)
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            if self._claim(path, is_folder=True):
                os.mkdir(self.folder / path, 0o700)

    def add_file(self, name: str, chunks: Iterable[bytes], *, executable: bool = False) -> None:
        """Writes a file, and creates its parent folders.

        Raises:
            InstallRefused: The name is not allowed, or the file is too large.
        """
        parts = self._parts(name)
        if not parts:
            raise InstallRefused("unsafe_name", f"{name[:80]!r} is not a file name")
        if parts[-1].lower().endswith(COMPILED):
            raise InstallRefused(
                "compiled",
                f"{name[:80]!r} is compiled code, which cannot be reviewed: remove it, or put it "
                "into a Python package",
            )
        self.add_folder("/".join(parts[:-1]) or ".")
        path = "/".join(parts)
        self._claim(path, is_folder=False)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        opened = os.open(self.folder / path, flags, 0o700 if executable else 0o600)
        digest, size = hashlib.sha256(), 0
        with open(opened, "wb") as file:
            for chunk in chunks:
                size += len(chunk)
                self._bytes += len(chunk)
                for limit, found, what in (
                    (self.limits.file_bytes, size, f"{path[:80]!r} is"),
                    (self.limits.total_bytes, self._bytes, "the files together are"),
                ):
                    if found > limit:
                        raise InstallRefused("too_large", f"{what} larger than {limit} bytes")
                digest.update(chunk)
                file.write(chunk)
        self.files.append(StagedFile(path, size, digest.hexdigest()))

    def _parts(self, name: str) -> list[str]:
        """Splits a name into its parts; none of them leads out of the folder."""
        shown = repr(name[:80])
        steps = name.removesuffix("/").split("/")
        parts = [step for step in steps if step != "."]
        if _UNSAFE.search(name) or "" in steps or ".." in steps:
            raise InstallRefused("unsafe_name", f"{shown} is not a relative path inside the folder")
        if len(parts) > self.limits.depth:
            raise InstallRefused(
                "too_large", f"{shown} is nested more than {self.limits.depth} folders deep"
            )
        try:
            long = any(len(part.encode()) > self.limits.name_bytes for part in parts)
        except UnicodeEncodeError:
            raise InstallRefused("unsafe_name", f"{shown} is not UTF-8") from None
        if long:
            raise InstallRefused("unsafe_name", f"{shown} is too long a name")
        return parts

    def _claim(self, path: str, *, is_folder: bool) -> bool:
        """Records a name; returns False for a folder that exists already."""
        key = unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
        known = self._spelled.setdefault(key, (path, is_folder))
        if len(self._spelled) > self.limits.entries:
            raise InstallRefused("too_large", f"there are more than {self.limits.entries} entries")
        if known != (path, is_folder) or (not is_folder and (self.folder / path).exists()):
            raise InstallRefused(
                "name_clash",
                f"{path[:80]!r} and {known[0][:80]!r} are the same name on some systems",
            )
        return not (self.folder / path).exists()
