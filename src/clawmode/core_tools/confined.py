"""Files below one folder, whoever puts links in the way, and whenever they do.

A path is walked here, not by the kernel: one name at a time, from descriptor to descriptor, and
none is opened that is a link. A link is read, and its target walked like the rest of the path, so
one that stays inside works and one that leads out does not. What was looked at is what is used:
between the two there is no path that somebody could bend.

Decided:

- Absolute paths and links are taken if they begin with the folder's own path; `~` means nothing.
- Only regular files are read and replaced: no devices, pipes or sockets.
- A file with several names (hard links) is refused unless the operator allows it: another of its
  names may be outside, and nothing tells. Replacing never writes into a file: its other names keep
  the old content.
- A folder that is moved out while it is open stays open. Only somebody who can write outside can
  do that.
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
from clawmode.exceptions import ConfigurationError, ToolProblem

MAX_PATH_BYTES = 4_096
MAX_NAMES = 512
MAX_LINKS = 40
MAX_RACES = 20
"""How often a name may change between two looks before it is given up on."""


_locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()


class Workspace:
    """A folder, and everything below it.

    Args:
        root: The folder; it has to be there.
        limits: Which files may be used.

    Attributes:
        writing: Held from reading a file to replacing it, so that two edits do not lose one of
            them. All objects for one folder share it, and those for other folders have their own.

    Raises:
        ConfigurationError: It is no folder, or the root of the file system.
    """

    def __init__(self, root: Path, limits: FileLimits | None = None) -> None:
        try:
            resolved = root.resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            resolved = Path("/")
        if resolved == Path("/") or not resolved.is_dir():
            raise ConfigurationError(
                f"{str(root)[:200]!r} cannot be a workspace",
                path="workspace",
                expected="a folder that exists, and not the root of the file system",
            )
        self.root = resolved
        self.limits = limits or FileLimits()
        self.writing = _locks.setdefault(str(resolved), threading.Lock())
        self._prefixes = tuple({str(resolved), os.path.abspath(root)})

    def locate(self, path: str, *, follow: bool = True) -> Place:
        """Where a path leads: to something that is there, or to where it would be.

        Args:
            path: Relative to the folder, or absolute and below it.
            follow: Whether a link at its end is followed.

        Raises:
            ToolProblem: It leads out, or nowhere, or is no path.
        """
        with contextlib.ExitStack() as held:
            walk = _Walk(self, path, held)
            place = walk.run(follow=follow)
            held.pop_all()
        walk.release(place.folder)
        return place

    def names_of(self, path: str) -> "tuple[bool, list[str]]":
        """The names of a path, and whether they begin at the folder.

        Raises:
            ToolProblem: It is absolute, and not below the folder.
        """
        if not path.startswith("/"):
            return False, _split(path)
        for prefix in self._prefixes:
            if path == prefix or path.startswith(prefix + "/"):
                return True, _split(path[len(prefix) :])
        raise _outside(path)

    def open_folder(self, path: str) -> int:
        """A descriptor of a folder below this one; the caller closes it.

        Raises:
            ToolProblem: There is none.
        """
        with self.locate(path) as place:
            if place.name is not None:
                problem = place.status()
                code = "not_found" if problem is None else "not_a_folder"
                raise ToolProblem(code, f"{shown(path)} is not a folder in the workspace")
            return os.dup(place.folder)


def check_path(path: str) -> str:
    """A path that somebody gave, if it can be one.

    Raises:
        ToolProblem: It cannot.
    """
    if not path.strip():
        raise ToolProblem("bad_path", "the path is empty; '.' is the workspace")
    try:
        size = len(path.encode("utf-8"))
    except UnicodeEncodeError:
        raise ToolProblem("bad_path", "the path is not text: it has half a character") from None
    if size > MAX_PATH_BYTES or path.count("/") > MAX_NAMES:
        raise ToolProblem("bad_path", f"the path {shown(path)} is too long")
    # They would make what a person is shown another path than the one that is used.
    for char in path:
        if unicodedata.category(char) == "Cc" or unicodedata.bidirectional(char) in _TURNING:
            code = f"U+{ord(char):04X}"
            raise ToolProblem("bad_path", f"the path {path[:200]!a} has a {code} in it")
    if path == "~" or path.startswith("~/"):
        raise ToolProblem(
            "bad_path", f"{shown(path)}: ~ is not expanded; paths are relative to the workspace"
        )
    return path


_TURNING = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})


def _split(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _outside(path: str) -> ToolProblem:
    return ToolProblem("outside", f"{shown(path)} is outside of the workspace")


# ---- Walking ----


class _Walk:
    """One walk. Holds a descriptor of every folder between the root and where it stands."""

    def __init__(self, workspace: Workspace, path: str, held: contextlib.ExitStack) -> None:
        self._workspace = workspace
        self._path = check_path(path)
        _, names = workspace.names_of(path)
        self._ahead = deque(names)
        self._missing: list[str] = []
        self._links = 0
        self._races = 0
        # Trailing slashes mean a folder.
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
                self._up()
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
        above = frozenset((it.st_dev, it.st_ino) for it in map(os.fstat, self._stack))
        limits = self._workspace.limits
        return Place(limits, self._path, self._stack[-1], tuple(folders), final, above)

    def _up(self) -> None:
        if self._missing:
            raise ToolProblem("not_found", f"{shown(self._path)} leads through what is not there")
        if len(self._stack) == 1:
            raise _outside(self._path)
        os.close(self._stack.pop())

    def _step(self, name: str, follow: bool) -> str | None:
        """Goes into a folder, or says that the walk ends at this name."""
        if len(os.fsencode(name)) > MAX_NAME_BYTES:
            raise ToolProblem("bad_path", f"{shown(self._path)} has a name that is too long")
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
                self._enter(name)
            elif last:
                return name
            else:
                raise ToolProblem("not_a_folder", f"{shown(self._path)}: {name!r} is not a folder")
        return None

    def _follow(self, name: str) -> None:
        self._links += 1
        if self._links > MAX_LINKS:
            raise ToolProblem("bad_path", f"{shown(self._path)} has links that lead in circles")
        try:
            target = os.readlink(name, dir_fd=self._stack[-1])
        except OSError as error:
            self._again(name, error)
            return
        try:
            from_root, names = self._workspace.names_of(target)
        except ToolProblem:
            raise ToolProblem(
                "outside", f"{shown(self._path)} leads out of the workspace by the link {name!r}"
            ) from None
        if from_root:
            while len(self._stack) > 1:
                os.close(self._stack.pop())
        self._ahead.extendleft(reversed(names))

    def _enter(self, name: str) -> None:
        try:
            self._stack.append(os.open(name, FOLDER, dir_fd=self._stack[-1]))
        except OSError as error:
            self._again(name, error)

    def _again(self, name: str, error: OSError) -> None:
        """Looks once more at a name that has changed since it was looked at."""
        self._races += 1
        changed = error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.EINVAL)
        if not changed or self._races > MAX_RACES:
            raise error
        self._ahead.appendleft(name)

    def release(self, kept: int) -> None:
        """Closes all but one."""
        self._stack.remove(kept)
        self._close_all()

    def _close_all(self) -> None:
        while self._stack:
            os.close(self._stack.pop())
