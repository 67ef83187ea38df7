"""The tools `read`, `write`, `edit` and `apply_patch` for text files of one workspace.

Files are UTF-8 text. A change is made completely or not at all, and fails if the file was changed
in the meantime. All tools block, and run in threads.
"""

import contextlib
from dataclasses import field

from clawmode.core_tools.confined import Workspace
from clawmode.core_tools.edits import replaced
from clawmode.core_tools.patches import Add, Change, Delete, Effort, parse, patched
from clawmode.core_tools.places import FileLimits, Place, Signature, shown
from clawmode.exceptions import ToolProblem
from clawmode.tools.function import tool
from clawmode.tools.tool import Tool, ToolResult
from clawmode.types import JsonObject, JsonValue, dataclass

MAX_LINE_CHARS = 2_000
MAX_ENTRIES = 1_000
MAX_PATCH_CHARS = 4 << 20
MAX_PATCHED_BYTES = 32 << 20
"""The total size of the files of one patch, during which other changes wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """The limits of the file tools.

    Attributes:
        limits: Which files may be used. Package managers that link files from a cache (`uv`,
            `pnpm`) create files with several names.
        max_lines: The number of lines that one `read` returns.
        max_chars: The number of characters that one `read` returns.
    """

    limits: FileLimits = field(default_factory=FileLimits)
    max_lines: int = 2_000
    max_chars: int = 50_000


def file_tools(workspace: Workspace, settings: FileSettings) -> tuple[Tool, ...]:
    """Returns the four file tools for one workspace."""
    files = _Files(workspace, settings)
    return (
        tool(effect="read", idempotent=True)(files.read),
        tool(effect="write")(files.write),
        tool(effect="write")(files.edit),
        tool(effect="write")(files.apply_patch),
    )


@dataclass(frozen=True, slots=True)
class _Files:
    """The file tools. Models read the names and docstrings of the public methods."""

    workspace: Workspace
    settings: FileSettings

    def read(self, path: str, offset: int = 1, limit: int | None = None) -> ToolResult:
        """Read a text file, or list a folder. Paths are relative to the workspace.

        Long files are read in parts: continue with `nextOffset`. Long lines are cut, with a note.

        Args:
            path: The file or folder.
            offset: The first line to read, from 1.
            limit: The number of lines.
        """
        if offset < 1 or (limit is not None and limit < 1):
            raise ToolProblem("bad_input", "offset and limit must be at least 1")
        with self.workspace.locate(path) as place:
            if place.name is None:
                return _listing(place)
            if place.status() is None:
                raise ToolProblem("not_found", f"{shown(path)} does not exist in the workspace")
            data, _ = place.read()
        text = decode(data, path).removeprefix("\ufeff")
        lines = min(limit or self.settings.max_lines, self.settings.max_lines)
        return _part(path, text, offset, lines, self.settings.max_chars)

    def write(self, path: str, content: str) -> ToolResult:
        """Create or replace a text file of the workspace.

        Missing folders are created.

        Args:
            path: The file.
            content: The whole text.
        """
        data = encode(content)
        with self.workspace.writing, self.workspace.locate(path) as place:
            before = place.check()
            place.stage(data, before)
            place.commit(before)
        did = "created" if before is None else "replaced"
        details: JsonObject = {"path": path, "bytes": len(data), "created": before is None}
        return ToolResult(f"{did} {shown(path)}: {len(data)} bytes", details)

    def edit(self, path: str, oldText: str, newText: str, replaceAll: bool = False) -> ToolResult:
        """Replace text in a file of the workspace. The old text must occur exactly once.

        Args:
            path: The file.
            oldText: The exact text to replace, with enough context to be unique.
            newText: The new text.
            replaceAll: Replace every occurrence.
        """
        with self.workspace.writing, self.workspace.locate(path) as place:
            data, before = place.read()
            place.check()
            text = decode(data, path)
            new, count, line = replaced(text, oldText, newText, path, every=replaceAll)
            place.stage(encode(new), before)
            place.commit(before)
        details: JsonObject = {"path": path, "replacements": count, "line": line}
        times = "once" if count == 1 else f"{count} times"
        return ToolResult(f"replaced {times} in {shown(path)}, first in line {line}", details)

    def apply_patch(self, input: str) -> ToolResult:
        """Change several files of the workspace at once, or none if anything does not match.

        The patch starts with `*** Begin Patch` and ends with `*** End Patch`. Between them are
        `*** Add File: path` (its lines start with `+`), `*** Delete File: path`, and `*** Update
        File: path`, optionally followed by `*** Move to: path`, with hunks: `@@` and optionally a
        line to find first, then lines that start with a space (kept), `-` (removed) or `+` (added).

        Args:
            input: The patch.
        """
        if len(input) > MAX_PATCH_CHARS:
            raise ToolProblem("too_large", f"the patch is longer than {MAX_PATCH_CHARS} characters")
        changes = parse(input)
        with self.workspace.writing, _Batch() as batch:
            for change in changes:
                batch.prepare(self.workspace, change)
            batch.apply()
        done: list[JsonValue] = [*batch.summary]
        return ToolResult("\n".join(batch.summary), {"changes": done})


# ---- Text ----


def decode(data: bytes, path: str) -> str:
    """Decodes the content of a file.

    Raises:
        ToolProblem: The content is not UTF-8 text.
    """
    if b"\0" not in data[:8_192]:
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode("utf-8")
    kind = next((f" (it looks like {kind})" for head, kind in _KINDS if data.startswith(head)), "")
    raise ToolProblem(
        "binary",
        f"{shown(path)} is not UTF-8 text{kind}, {len(data)} bytes; use a command to read it",
    )


_KINDS = (
    (b"\x89PNG\r\n", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "gzip"),
    (b"\x7fELF", "a program"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
    (b"SQLite format 3\0", "an SQLite database"),
)


def encode(text: str) -> bytes:
    """Encodes text for a file.

    Raises:
        ToolProblem: The text contains a lone surrogate.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolProblem(
            "bad_input", f"the text contains a lone surrogate at {error.start}"
        ) from None


# ---- Reading ----


def _listing(place: Place) -> ToolResult:
    entries, more = place.entries(MAX_ENTRIES)
    marks = {"folder": "/", "link": "@", "other": "?"}
    lines = [f"{entry.name}{marks.get(entry.kind, '')}" for entry in entries]
    if more:
        lines.append(f"[more than {MAX_ENTRIES} entries]")
    listed: list[JsonValue] = [
        {"name": entry.name, "kind": entry.kind, "size": entry.size} for entry in entries
    ]
    details: JsonObject = {"path": place.path, "kind": "folder", "entries": listed}
    return ToolResult("\n".join(lines) or "[empty folder]", {**details, "truncated": more})


def _part(path: str, text: str, offset: int, limit: int, max_chars: int) -> ToolResult:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if offset > max(len(lines), 1):
        raise ToolProblem("bad_input", f"{shown(path)} has {len(lines)} lines; offset is {offset}")
    taken: list[str] = []
    room = max_chars
    cut = 0
    for line in lines[offset - 1 : offset - 1 + limit]:
        if len(line) > MAX_LINE_CHARS:
            line, cut = line[:MAX_LINE_CHARS], cut + 1
        room -= len(line) + 1
        if room < 0 and taken:
            break
        taken.append(line)
    last = offset - 1 + len(taken)
    whole = last == len(lines)
    content = "\n".join(taken) + ("\n" if taken and (not whole or text.endswith("\n")) else "")
    details: JsonObject = {
        "path": path,
        "kind": "file",
        "content": content,
        "offset": offset,
        "lines": len(taken),
        "totalLines": len(lines),
        "cutLines": cut,
        "truncated": not whole or bool(cut),
    }
    notes: list[str] = []
    if cut:
        notes.append(f"[{cut} lines were cut after {MAX_LINE_CHARS} characters]")
    if not whole:
        details["nextOffset"] = last + 1
        notes.append(f"[lines {offset} to {last} of {len(lines)}; continue with offset {last + 1}]")
    if not lines:
        notes.append("[empty file]")
    return ToolResult(content + "\n".join(notes), details)


# ---- Patching ----


@dataclass(slots=True)
class _Step:
    """One file before and after the patch; None if it does not exist."""

    place: Place
    before: bytes | None
    signature: Signature | None
    after: bytes | None


class _Batch:
    """Changes that are made all together or not at all."""

    def __init__(self) -> None:
        self.summary: list[str] = []
        self._steps: list[_Step] = []
        self._places = contextlib.ExitStack()
        self._keys: set[object] = set()
        self._read = 0
        self._effort = Effort()

    def __enter__(self) -> "_Batch":
        return self

    def __exit__(self, *_: object) -> None:
        self._places.close()

    def prepare(self, workspace: Workspace, change: Change) -> None:
        """Reads and checks the files of a change, without writing."""
        if isinstance(change, Add):
            place, there = self._open(workspace, change.path)
            if there is not None:
                raise ToolProblem("exists", f"{shown(change.path)} already exists; update it")
            self._steps.append(_Step(place, None, None, encode(change.text)))
            self.summary.append(f"A {change.path}")
        elif isinstance(change, Delete):
            # A link itself is deleted, not its target.
            place, _ = self._open(workspace, change.path, follow=False)
            data, signature = self._content(place)
            self._steps.append(_Step(place, data, signature, None))
            self.summary.append(f"D {change.path}")
        else:
            place, _ = self._open(workspace, change.path, follow=change.move_to is None)
            data, signature = self._content(place)
            after = encode(patched(decode(data, change.path), change, self._effort))
            if change.move_to is None:
                self._steps.append(_Step(place, data, signature, after))
                self.summary.append(f"M {change.path}")
                return
            target, there = self._open(workspace, change.move_to)
            if there is not None:
                raise ToolProblem("exists", f"{shown(change.move_to)} already exists")
            self._steps.append(_Step(target, None, None, after))
            self._steps.append(_Step(place, data, signature, None))
            self.summary.append(f"R {change.path} -> {change.move_to}")

    def _open(
        self, workspace: Workspace, path: str, *, follow: bool = True
    ) -> tuple[Place, Signature | None]:
        place = self._places.enter_context(workspace.locate(path, follow=follow))
        if place.key in self._keys:
            raise ToolProblem("bad_patch", f"the patch changes {shown(path)} twice")
        self._keys.add(place.key)
        if place.name is None:
            raise ToolProblem("not_a_file", f"{shown(path)} is a folder")
        return place, place.check()

    def _content(self, place: Place) -> tuple[bytes, Signature]:
        data, signature = place.read()
        self._read += len(data)
        if self._read > MAX_PATCHED_BYTES:
            raise ToolProblem(
                "too_large",
                f"the files of the patch exceed {MAX_PATCHED_BYTES} bytes; split the patch",
            )
        return data, signature

    def apply(self) -> None:
        """Makes the changes. If one of them fails, reverts those already made."""
        for step in self._steps:
            if step.after is not None:
                step.place.stage(step.after, step.signature)
        done: list[_Step] = []
        try:
            for step in self._steps:
                if step.after is None:
                    step.place.remove(step.signature)
                else:
                    step.place.commit(step.signature)
                done.append(step)
        except BaseException:
            for step in reversed(done):
                with contextlib.suppress(ToolProblem):
                    if step.before is None:
                        step.place.remove()
                        continue
                    status = step.place.status()
                    now = None if status is None else Signature.of(status)
                    step.place.stage(step.before, step.signature)
                    step.place.commit(now)
            raise
