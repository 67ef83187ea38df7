"""The files that an agent reads before anything else: who it is, for whom it works, and how."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FILES = ("AGENTS.md", "SOUL.md", "TOOLS.md", "IDENTITY.md", "USER.md", "MEMORY.md")
MAX_FILE_CHARS = 20_000
MAX_TOTAL_CHARS = 150_000


@dataclass(frozen=True, slots=True)
class BootstrapFile:
    """One file.

    Attributes:
        name: As the model is told.
        text: What it says; cut, if it is too long.
        cut: How many characters were left out.
    """

    name: str
    text: str
    cut: int = 0


def load(
    workspace: Path, names: Iterable[str] = FILES, *, max_chars: int = MAX_FILE_CHARS
) -> list[BootstrapFile]:
    """Those of the files that are there. Reads files: a thread's work.

    A name leads into the workspace, and nowhere else.
    """
    found: list[BootstrapFile] = []
    room = MAX_TOTAL_CHARS
    for name in dict.fromkeys(names):
        text = _read(workspace, name)
        if text is None or room <= 0:
            continue
        kept = text[: min(max_chars, room)]
        room -= len(kept)
        found.append(BootstrapFile(name, kept, len(text) - len(kept)))
    return found


def _read(workspace: Path, name: str) -> str | None:
    path = workspace / name
    try:
        if not path.resolve(strict=True).is_relative_to(workspace.resolve(strict=True)):
            return None
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(4 * MAX_TOTAL_CHARS).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


def prompt(files: Iterable[BootstrapFile]) -> str:
    """What the model is told of them."""
    parts: list[str] = []
    for file in files:
        left_out = f"\n[{file.cut} more characters: read the file]" if file.cut else ""
        parts.append(f"## {file.name}\n\n{file.text.strip()}{left_out}")
    return "\n\n".join(parts)
