"""Confines paths to one folder, even if links are created or changed concurrently.

This module walks a path itself, one name at a time, from descriptor to descriptor, and never opens
a link. It reads a link and then walks its target like the rest of the path, so links inside the
folder work and links that leave it do not. The checked file is the file that is used: there is no
path in between that somebody could redirect.

Decisions:

- Absolute paths and link targets are accepted if they start with the folder's own path. `~` is not
  expanded.
- Only regular files are read and replaced: no devices, pipes or sockets.
- A file with several names (hard links) is rejected unless the operator allows it, because another
  name may be outside. Replacing a file never writes into it: its other names keep the old content.
- A folder that is moved out of the workspace while it is open stays usable. Only somebody who can
  write outside of the workspace can do that.
"""

import contextlib
import errno
import os
import stat
import threading
import unicodedata
from collections import deque
from pathlib import Path
from weakref import WeakValueDictionary

from clawmode.core_tools.places import FOLDER, MAX_NAME_BYTES, FileLimits, Place, explained, shown
from clawmode.exceptions import ConfigurationError, ToolProblem, UnsupportedPlatform

MAX_PATH_BYTES = 4_096
MAX_NAMES = 512
MAX_LINKS = 40
MAX_RACES = 20
"""How often a name may change between two system calls before the walk fails."""


_locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()


class Workspace:
    """A folder, and everything below it.

    Args:
        root: An existing folder.
        limits: Which files may be used.

    Attributes:
        writing: A lock that is held from reading a file to replacing it, so that no concurrent
            edit is lost. All objects for the same folder share one lock.

    Raises:
        ConfigurationError: The root is not a folder, or is the root of the file system.
        UnsupportedPlatform: The operating system cannot open a file without following links.
    """

    def __init__(self, root: Path, limits: FileLimits | None = None) -> None:
        if not hasattr(os, "O_NOFOLLOW"):
            raise UnsupportedPlatform("A workspace")
        try:
            resolved = root.resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            resolved = Path("/")
        if resolved == Path("/") or not resolved.is_dir():
            raise ConfigurationError(
                f"{str(root)[:200]!r} cannot be used as a workspace",
                path="workspace",
                expected="an existing folder other than the root of the file system",
            )
        self.root = resolved
        self.limits = limits or FileLimits()
        self.writing = _locks.setdefault(str(resolved), threading.Lock())
        self._prefixes = tuple({str(resolved), os.path.abspath(root)})

    def locate(self, path: str, *, follow: bool = True) -> Place:
        """Returns the place that a path leads to. The file need not exist.

        Args:
            path: Relative to the folder, or absolute and below it.
            follow: Whether a link at the end of the path is followed.

        Raises:
            ToolProblem: The path is invalid, leaves the workspace, or cannot be walked.
        """
        with contextlib.ExitStack() as held:
            walk = _Walk(self, path, held)
            place = walk.run(follow=follow)
            held.pop_all()
        walk.release(place.folder)
        return place

    def names_of(self, path: str) -> "tuple[bool, list[str]]":
        """Splits a path into names. The flag is True if they start at the workspace's root.

        Raises:
            ToolProblem: The path is absolute, and not below the folder.
        """
        if not path.startswith("/"):
            return False, _split(path)
        for prefix in self._prefixes:
            if path == prefix or path.startswith(prefix + "/"):
                return True, _split(path[len(prefix) :])
        raise _outside(path)

    def open_folder(self, path: str) -> int:
        """Opens a folder of the workspace. The caller closes the descriptor.

        Raises:
            ToolProblem: The path does not lead to a folder.
        """
        with self.locate(path) as place:
            if place.name is not None:
                problem = place.status()
                code = "not_found" if problem is None else "not_a_folder"
                raise ToolProblem(code, f"{shown(path)} is not a folder in the workspace")
            return os.dup(place.folder)


def check_path(path: str) -> str:
    """Returns a path of a tool call if it is valid.

    Raises:
        ToolProblem: The path is invalid.
    """
    if not path.strip():
        raise ToolProblem("bad_path", "the path is empty; '.' is the workspace")
    try:
        size = len(path.encode("utf-8"))
    except UnicodeEncodeError:
        raise ToolProblem(
            "bad_path", "the path is not valid Unicode: it contains a lone surrogate"
        ) from None
    if size > MAX_PATH_BYTES or path.count("/") > MAX_NAMES:
        raise ToolProblem("bad_path", f"the path {shown(path)} is too long")
    # Such characters could make the path that a person is shown look like another path.
    for char in path:
        if unicodedata.category(char) == "Cc" or unicodedata.bidirectional(char) in _BIDI_CONTROLS:
            code = f"U+{ord(char):04X}"
            raise ToolProblem("bad_path", f"the path {path[:200]!a} contains the character {code}")
    if path == "~" or path.startswith("~/"):
        raise ToolProblem(
            "bad_path", f"{shown(path)}: ~ is not expanded; paths are relative to the workspace"
        )
    return path


_BIDI_CONTROLS = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})


def _split(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _outside(path: str) -> ToolProblem:
    return ToolProblem("outside", f"{shown(path)} is outside of the workspace")


# ---- Walking a path ----


class _Walk:
    """Walks one path. Holds a descriptor of every folder from the root to the current one."""

    def __init__(self, workspace: Workspace, path: str, held: contextlib.ExitStack) -> None:
        self._workspace = workspace
        self._path = check_path(path)
        _, names = workspace.names_of(path)
        self._ahead = deque(names)
        self._missing: list[str] = []
        self._links = 0
        self._races = 0
        # A trailing slash means that the path must lead to a folder.
        self._wants_folder = path.endswith("/")
        self._stack: list[int] = []
        held.callback(self._close_all)
        with explained(path):
            self._stack.append(os.open(workspace.root, FOLDER))

    def run(self, *, follow: bool) -> Place:
        final: str | None = None
        folders: list[str] = []
        while self._ahead:
            name = self._ahead.popleft()
            if name == "..":
                if self._missing:
                    text = f"{shown(self._path)} has .. after a folder that does not exist"
                    raise ToolProblem("not_found", text)
                if len(self._stack) == 1:
                    raise _outside(self._path)
                os.close(self._stack.pop())
            elif self._missing:
                self._missing.append(name)
            else:
                final = self._step(name, follow)
                if final is not None:
                    break
        if final is None and self._missing:
            *folders, final = self._missing
        if final is not None and self._wants_folder:
            code = "not_found" if self._missing else "not_a_folder"
            raise ToolProblem(code, f"{shown(self._path)} is not a folder")
        above = frozenset((status.st_dev, status.st_ino) for status in map(os.fstat, self._stack))
        limits = self._workspace.limits
        return Place(limits, self._path, self._stack[-1], tuple(folders), final, above)

    def _step(self, name: str, follow: bool) -> str | None:
        """Enters a folder or follows a link; returns the name if the walk ends there."""
        if len(os.fsencode(name)) > MAX_NAME_BYTES:
            raise ToolProblem("bad_path", f"{shown(self._path)} contains a name that is too long")
        with explained(self._path):
            try:
                status = os.lstat(name, dir_fd=self._stack[-1])
            except FileNotFoundError:
                self._missing.append(name)
                return None
            last = not self._ahead
            if stat.S_ISLNK(status.st_mode):
                if last and not follow:
                    return name
                self._follow(name)
            elif stat.S_ISDIR(status.st_mode):
                try:
                    self._stack.append(os.open(name, FOLDER, dir_fd=self._stack[-1]))
                except OSError as error:
                    self._retry(name, error)
            elif last:
                return name
            else:
                raise ToolProblem("not_a_folder", f"{shown(self._path)}: {name!r} is not a folder")
        return None

    def _follow(self, name: str) -> None:
        self._links += 1
        if self._links > MAX_LINKS:
            raise ToolProblem(
                "bad_path", f"{shown(self._path)} has too many links, or links in a circle"
            )
        try:
            target = os.readlink(name, dir_fd=self._stack[-1])
        except OSError as error:
            self._retry(name, error)
            return
        try:
            from_root, names = self._workspace.names_of(target)
        except ToolProblem:
            raise ToolProblem(
                "outside", f"{shown(self._path)} leaves the workspace through the link {name!r}"
            ) from None
        if from_root:
            while len(self._stack) > 1:
                os.close(self._stack.pop())
        self._ahead.extendleft(reversed(names))

    def _retry(self, name: str, error: OSError) -> None:
        """Schedules another look at a name that has changed since the last `lstat`."""
        self._races += 1
        changed = error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.EINVAL)
        if not changed or self._races > MAX_RACES:
            raise error
        self._ahead.appendleft(name)

    def release(self, kept: int) -> None:
        """Closes all descriptors but one."""
        self._stack.remove(kept)
        self._close_all()

    def _close_all(self) -> None:
        while self._stack:
            os.close(self._stack.pop())
