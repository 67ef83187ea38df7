"""Material that is to be installed, laid out in a private folder: its names, sizes and hashes.

Whoever packed it is a stranger. What is written here is files and folders alone, below one folder,
each name spelled in one way, and no more than the limits allow.
"""

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from clawmode.plugins.manifest import PluginError
from clawmode.types import JsonObject, JsonValue

Kind: TypeAlias = Literal["plugin", "skill"]

RefusalCode: TypeAlias = Literal[
    "not_found",  # there is no such source, or nothing of this name
    "unsupported",  # the source is neither a folder nor an archive that we read
    "damaged",  # the archive cannot be read, or the folder cannot
    "unsafe_name",  # a name that leads out, or that not every system can have
    "link",
    "special_file",
    "too_large",  # one of the limits
    "compiled",  # code that cannot be read before it runs
    "name_clash",  # two names that some systems take for one
    "no_manifest",  # neither a plugin nor a skill
    "invalid_manifest",
    "policy",  # the operator's `security.installPolicy` does not want it
    "hook",  # a `before_install` hook does not want it
    "does_not_load",
    "not_ours",  # it came from a package, or from a folder of the configuration
    "busy",  # something else is being installed
    "failed",  # the system did not let us
]

LEFT_OUT = frozenset({"__pycache__", "__MACOSX", ".DS_Store", ".git"})
"""Never staged. Compiled code may be other code than the source that is looked at."""

COMPILED = (".so", ".pyd", ".dll", ".dylib", ".pyc", ".pyo")
"""Refused. Python prefers `main.so` to the `main.py` beside it, and imports a `main.pyc` alone."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]|^[A-Za-z]:")


class InstallRefused(PluginError):
    """Something is not installed, or not removed, and why.

    Attributes:
        code: The kind of reason, for programs.
    """

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may be staged.

    Attributes:
        entries: Files and folders.
        file_bytes: Of one file.
        total_bytes: Of all.
        archive_bytes: Of an archive, as it is packed.
        depth: Folders inside of one another.
    """

    entries: int = 2_000
    file_bytes: int = 16 << 20
    total_bytes: int = 64 << 20
    archive_bytes: int = 64 << 20
    depth: int = 16
    name_bytes: int = 255


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file, as it was written."""

    path: str
    bytes: int
    sha256: str

    def to_json(self) -> JsonObject:
        """For programs."""
        return {"path": self.path, "bytes": self.bytes, "sha256": self.sha256}


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What is staged, and is to be decided about.

    Attributes:
        name: A plugin's id, a skill's name.
        folder: Where it is laid out, to be looked at.
        source: The absolute path that it came from, without links.
        replaces: The version that is there already; None if none is.
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
        """For the operator's program."""
        return {
            "kind": self.kind,
            "name": self.name,
            "version": self.version,
            "description": self.description,
            "folder": str(self.folder),
            "source": self.source,
            "replaces": self.replaces,
            "files": list[JsonValue](each.to_json() for each in self.files),
        }


@dataclass(slots=True)
class Stage:
    """A folder that is filled, entry by entry.

    Attributes:
        folder: Empty at first, and nobody else's.
        files: What was written.
    """

    folder: Path
    limits: Limits = field(default_factory=Limits)
    files: list[StagedFile] = field(default_factory=list[StagedFile])
    _spelled: dict[str, tuple[str, bool]] = field(default_factory=dict[str, tuple[str, bool]])
    _seen: int = 0
    _bytes: int = 0

    def wants(self, name: str) -> bool:
        """Whether an entry is to be staged.

        Raises:
            InstallRefused: No entry may have this name, or there are too many.
        """
        self._seen += 1
        if self._seen > self.limits.entries:
            raise InstallRefused("too_large", f"it has over {self.limits.entries} entries")
        return not LEFT_OUT.intersection(self._parts(name))

    def add_folder(self, name: str) -> None:
        """Makes a folder, and those above it.

        Raises:
            InstallRefused: It may not be there.
        """
        parts = self._parts(name)
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            if self._claim(path, is_folder=True):
                os.mkdir(self.folder / path, 0o700)

    def add_file(self, name: str, chunks: Iterable[bytes], *, executable: bool = False) -> None:
        """Writes a file, and makes the folders above it.

        Raises:
            InstallRefused: It may not be there, or is too large.
        """
        parts = self._parts(name)
        if not parts:
            raise InstallRefused("unsafe_name", f"{name[:80]!r} is no name for a file")
        if parts[-1].lower().endswith(COMPILED):
            raise InstallRefused(
                "compiled",
                f"{name[:80]!r} is compiled code, which cannot be reviewed: remove it, or have a "
                "package of its own bring it",
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
                self._spend(path, size, len(chunk))
                digest.update(chunk)
                file.write(chunk)
        self.files.append(StagedFile(path, size, digest.hexdigest()))

    def _spend(self, path: str, size: int, more: int) -> None:
        self._bytes += more
        for limit, found, what in (
            (self.limits.file_bytes, size, f"{path[:80]!r} is"),
            (self.limits.total_bytes, self._bytes, "its files are"),
        ):
            if found > limit:
                raise InstallRefused("too_large", f"{what} over {limit} bytes")

    def _parts(self, name: str) -> list[str]:
        """The steps of a name. None of them leads up or out."""
        shown = repr(name[:80])
        steps = name.removesuffix("/").split("/")
        parts = [step for step in steps if step != "."]
        if _UNSAFE.search(name) or "" in steps or ".." in steps:
            raise InstallRefused("unsafe_name", f"{shown} is no name below a folder")
        if len(parts) > self.limits.depth:
            raise InstallRefused("too_large", f"{shown} is over {self.limits.depth} folders deep")
        try:
            long = any(len(part.encode()) > self.limits.name_bytes for part in parts)
        except UnicodeEncodeError:
            raise InstallRefused("unsafe_name", f"{shown} is not UTF-8") from None
        if long:
            raise InstallRefused("unsafe_name", f"{shown} is too long a name")
        return parts

    def _claim(self, path: str, *, is_folder: bool) -> bool:
        """Notes a name; False if it is a folder that is there already."""
        key = unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
        known = self._spelled.setdefault(key, (path, is_folder))
        if len(self._spelled) > self.limits.entries:
            raise InstallRefused("too_large", f"it has over {self.limits.entries} entries")
        if known != (path, is_folder) or (not is_folder and (self.folder / path).exists()):
            raise InstallRefused("name_clash", f"{path[:80]!r} and {known[0][:80]!r} are one name")
        return not (self.folder / path).exists()
