"""Parses patches of `apply_patch`, and applies them to text. Does not access files.

Written by hand: models are trained on this format, which is not the unified format that libraries
read, and a hunk has to be found without line numbers.

*** Begin Patch

*** Add File: path            every line begins with +
*** Delete File: path
*** Update File: path
*** Move to: path             optional
@@ a line to look for first   optional; several narrow it down
 kept
-removed
+added
*** End of File               optional: the hunk is at the end
*** End Patch
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import field
from typing import TypeAlias

from clawmode.exceptions import ToolProblem
from clawmode.types import dataclass

MAX_CHANGES = 200
MAX_SHOWN = 100
MAX_COMPARED = 5_000_000
"""The maximum number of line comparisons per patch, a few tenths of a second."""

BEGIN, END = "*** Begin Patch", "*** End Patch"
ADD, DELETE, UPDATE, MOVE = (
    f"*** {what}: " for what in ("Add File", "Delete File", "Update File", "Move to")
)
AT_END = "*** End of File"


@dataclass(frozen=True, slots=True)
class Hunk:
    """A change of consecutive lines of a file.

    Attributes:
        line: The first line of the hunk in the patch, from 1.
        anchors: Lines to find first, one after the other; the hunk follows the last one.
        lines: The lines, each as a mark (` `, `-` or `+`) and its text.
        at_end: True if the hunk must be at the end of the file.
    """

    line: int
    anchors: tuple[str, ...]
    lines: tuple[tuple[str, str], ...]
    at_end: bool = False

    @property
    def before(self) -> list[str]:
        """The lines that the file must contain."""
        return [text for mark, text in self.lines if mark != "+"]


@dataclass(frozen=True, slots=True)
class Add:
    """A file to be created."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Delete:
    """A file to be deleted."""

    path: str


@dataclass(frozen=True, slots=True)
class Update:
    """A file to be changed, moved or both."""

    path: str
    move_to: str | None
    hunks: tuple[Hunk, ...]


Change: TypeAlias = Add | Delete | Update


def parse(patch: str) -> list[Change]:
    """Parses a patch.

    Raises:
        ToolProblem: The patch is invalid. The message names the line.
    """
    lines = patch.replace("\r\n", "\n").strip("\n").split("\n")
    if lines[0].strip() != BEGIN or lines[-1].strip() != END or len(lines) < 2:
        raise ToolProblem("bad_patch", f"a patch must start with {BEGIN!r} and end with {END!r}")
    reader = _Reader(lines[1:-1])
    changes: list[Change] = []
    while reader.more():
        changes.append(reader.change())
        if len(changes) > MAX_CHANGES:
            raise ToolProblem("bad_patch", f"a patch can change at most {MAX_CHANGES} files")
    if not changes:
        raise ToolProblem("bad_patch", "the patch changes nothing")
    return changes


@dataclass(slots=True)
class _Reader:
    lines: list[str]
    at: int = 0

    def more(self) -> bool:
        """Skips blank lines; True if another change follows."""
        while self.at < len(self.lines) and not self.lines[self.at].strip():
            self.at += 1
        return self.at < len(self.lines)

    def change(self) -> Change:
        if (path := self._header(ADD)) is not None:
            added: list[str] = []
            while self._inside():
                line = self.lines[self.at]
                if not line.startswith("+"):
                    if not self.more() or not self._inside():
                        break  # a blank line before the next file
                    raise self._problem("a line of a new file must start with '+'")
                added.append(line[1:])
                self.at += 1
            return Add(path, "".join(f"{line}\n" for line in added))
        if (path := self._header(DELETE)) is not None:
            return Delete(path)
        if (path := self._header(UPDATE)) is not None:
            move_to = self._header(MOVE)
            hunks: list[Hunk] = []
            while self._inside():
                hunk = self._hunk()
                if hunk.lines:
                    hunks.append(hunk)
            if not hunks and move_to is None:
                raise self._problem(f"nothing is changed in {path[:MAX_SHOWN]!r}")
            return Update(path, move_to, tuple(hunks))
        raise self._problem("expected '*** Add File: ', '*** Update File: ' or '*** Delete File: '")

    def _header(self, kind: str) -> str | None:
        if self.at >= len(self.lines) or not self.lines[self.at].startswith(kind):
            return None
        path = self.lines[self.at].removeprefix(kind).strip()
        if not path:
            raise self._problem("the path is missing")
        self.at += 1
        return path

    def _inside(self) -> bool:
        return self.at < len(self.lines) and not self.lines[self.at].startswith("*** ")

    def _hunk(self) -> Hunk:
        start = self.at
        anchors: list[str] = []
        while self._inside() and self.lines[self.at].startswith("@@"):
            anchor = self.lines[self.at][2:].strip()
            anchors += [anchor] if anchor else []
            self.at += 1
        lines: list[tuple[str, str]] = []
        while self._inside() and not self.lines[self.at].startswith("@@"):
            line = self.lines[self.at]
            mark, text = (line[0], line[1:]) if line else (" ", "")
            if mark not in " -+":
                raise self._problem("a line of a hunk must start with ' ', '-' or '+'")
            lines.append((mark, text))
            self.at += 1
        at_end = self.at < len(self.lines) and self.lines[self.at].rstrip() == AT_END
        self.at += at_end
        if anchors and not lines:
            raise self._problem("no change follows the @@ line")
        # Blank lines before the next file are not part of the hunk.
        while not at_end and lines and lines[-1] == (" ", ""):
            if self.at < len(self.lines) and not self.lines[self.at].startswith("*** "):
                break
            lines.pop()
        return Hunk(start + 2, tuple(anchors), tuple(lines), at_end)

    def _problem(self, text: str) -> ToolProblem:
        here = self.lines[self.at][:MAX_SHOWN] if self.at < len(self.lines) else END
        return ToolProblem("bad_patch", f"line {self.at + 2} of the patch ({here!r}): {text}")


# ---- Applying patches ----


@dataclass(slots=True)
class Effort:
    """The remaining number of line comparisons before a patch is rejected."""

    left: int = MAX_COMPARED

    def spend(self, lines: int) -> None:
        """Counts the comparison of `lines` lines.

        Raises:
            ToolProblem: The patch needs too many comparisons.
        """
        self.left -= lines
        if self.left < 0:
            raise ToolProblem(
                "too_common",
                "the lines of the patch occur too often in the file: add surrounding lines that "
                "occur once, or use `write`",
            )


def patched(text: str, update: Update, effort: Effort) -> str:
    """Returns the text of a file after an update. Line endings are kept.

    Raises:
        ToolProblem: A hunk does not match, matches in several places, or takes too long to find.
    """
    if "\r\n" in text and text.count("\r\n") == text.count("\n"):
        return patched(text.replace("\r\n", "\n"), update, effort).replace("\n", "\r\n")
    ended = text.endswith("\n") or not text
    lines = text.removesuffix("\n").split("\n") if text else []
    made: list[str] = []
    at = 0
    file = _Lines(lines, effort)
    for hunk in update.hunks:
        start = _find(file, at, hunk, update.path)
        made += lines[at:start]
        at = start
        for mark, added in hunk.lines:
            if mark == "+":
                made.append(added)
                continue
            if mark == " ":
                # The file's own line, because the patch may differ in white space.
                made.append(lines[at])
            at += 1
    made += lines[at:]
    return "\n".join(made) + ("\n" if ended and made else "")


_EXACTNESS: tuple[Callable[[str], str], ...] = (str, str.rstrip, str.strip)
"""How lines are compared, in this order: exactly, without trailing, without outer spaces."""


@dataclass(slots=True)
class _Lines:
    """The lines of a file, indexed once for all hunks of an update."""

    lines: list[str]
    effort: Effort
    _indexes: dict[int, tuple[list[int], dict[str, list[int]]]] = field(
        default_factory=dict[int, tuple[list[int], dict[str, list[int]]]]
    )

    def positions(self, wanted: list[str], at: int, limit: int) -> list[int]:
        """Returns the first positions of lines from `at` on, compared as exactly as possible.

        Raises:
            ToolProblem: The lines are too common to search for.
        """
        for level, exactly in enumerate(_EXACTNESS):
            numbers, places = self._index(level)
            wanted_places = [places.get(exactly(line), []) for line in wanted]
            # Only positions of the rarest line are tried: blank lines would take quadratic time.
            offset = min(range(len(wanted)), key=lambda index: len(wanted_places[index]))
            if not wanted_places[offset]:
                continue
            want = [positions[0] for positions in wanted_places]
            candidates = wanted_places[offset]
            found: list[int] = []
            for index in range(bisect_left(candidates, at + offset), len(candidates)):
                first = candidates[index] - offset
                self.effort.spend(len(want))
                if numbers[first : first + len(want)] == want:
                    found.append(first)
                    if len(found) == limit:
                        break
            if found:
                return found
        return []

    def _index(self, level: int) -> tuple[list[int], dict[str, list[int]]]:
        """Returns for each line the number of the first equal line, and the positions by line."""
        if level not in self._indexes:
            exactly = _EXACTNESS[level]
            places: dict[str, list[int]] = {}
            numbers: list[int] = []
            for at, line in enumerate(self.lines):
                same = places.setdefault(exactly(line), [])
                same.append(at)
                numbers.append(same[0])
            self._indexes[level] = numbers, places
        return self._indexes[level]


def _find(file: _Lines, at: int, hunk: Hunk, path: str) -> int:
    """Returns the position of a hunk, from `at` on."""
    lines = file.lines
    where = f"the hunk in line {hunk.line} of the patch does not match {path[:MAX_SHOWN]!r}: "
    for anchor in hunk.anchors:
        found = file.positions([anchor], at, 1)
        if not found:
            raise ToolProblem("no_match", f"{where}there is no line {anchor[:MAX_SHOWN]!r}")
        at = found[0] + 1
    before = hunk.before
    if not before:
        return at if hunk.anchors and not hunk.at_end else len(lines)
    if hunk.at_end:
        last = len(lines) - len(before)
        found = file.positions(before, last, 1) if last >= at else []
        if not found:
            raise ToolProblem("no_match", f"{where}the file does not end with these lines")
        return last
    found = file.positions(before, at, 2)
    if not found:
        first = next((line for line in before if line.strip()), "")
        raise ToolProblem(
            "no_match",
            f"{where}the file does not contain its lines from {first[:MAX_SHOWN]!r} on in this "
            "order; read the file again",
        )
    if len(found) > 1 and not hunk.anchors:
        raise ToolProblem(
            "ambiguous",
            f"{where}its lines occur at {found[0] + 1} and {found[1] + 1}, maybe more; add "
            "surrounding lines, or @@ and a line before it",
        )
    return found[0]
