"""Skills: folders with a `SKILL.md` that describes how to do a task.

The prompt has the name, description and path of each skill; the model reads the file when it needs
it. A skill that cannot be read, or has no description, is left out with a note.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from clawmode.exceptions import naming_extras

if TYPE_CHECKING:
    import yaml

from clawmode.types import dataclass

FILE = "SKILL.md"
MAX_SKILLS = 200
MAX_FILE = 256 << 10
MAX_FRONT_MATTER = 32 << 10
MAX_BRACKETS = 200
MAX_NAME = 64
MAX_DESCRIPTION = 1_024
MAX_NOTES = 20

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_FIELD = re.compile(r"^([A-Za-z][\w-]*):[ \t]*(.*(?:\n[ \t]+.*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill that a model can use.

    Attributes:
        name: The name, unique among the skills of a run.
        description: When to use the skill, in one line.
        file: The path of its `SKILL.md`.
        env: Environment variables for commands of a run with this skill.
    """

    name: str
    description: str
    file: Path
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Skills:
    """The skills of a run.

    Attributes:
        version: A hash that changes when a file changes.
        notes: Which skills were left out, and why.
    """

    skills: tuple[Skill, ...] = ()
    version: str = ""
    notes: tuple[str, ...] = ()

    def prompt(self) -> str:
        """Returns the part of the prompt about skills; empty if there are none."""
        if not self.skills:
            return ""
        lines = [f"- {skill.name}: {skill.description} ({skill.file})" for skill in self.skills]
        head = "Skills: read the file of one before you do what it is about."
        return "\n".join((head, *lines))

    def env(self) -> dict[str, str]:
        """Returns the variables for commands of a run. The first skill that sets one wins."""
        made: dict[str, str] = {}
        for skill in self.skills:
            made = {**skill.env, **made}
        return made


@dataclass(slots=True)
class SkillLoader:
    """Finds skills, and caches them until a file changes.

    Attributes:
        folders: The folders with skills. Of two skills with one name, the earlier folder wins.
        disabled: Names of disabled skills, compared without regard to case.
        env: Environment variables by the name of a skill.
        written: Folders that models can write to. A skill there gets no variables: a model could
            give it the name of a skill that has some.
    """

    folders: tuple[Path, ...]
    disabled: frozenset[str] = frozenset()
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    written: frozenset[Path] = frozenset()
    _snapshot: Skills | None = None

    def load(self) -> Skills:
        """Returns the current skills. Blocks: call it in a thread."""
        files = [file for folder in self.folders for file in _files(folder)]
        version = _version(files)
        if self._snapshot is None or self._snapshot.version != version:
            self._snapshot = self._read(files, version)
        return self._snapshot

    def _read(self, files: Iterable[Path], version: str) -> Skills:
        found: dict[str, Skill] = {}
        notes: list[str] = []
        disabled = {name.casefold() for name in self.disabled}
        for file in files:
            try:
                skill = _skill(file)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                notes.append(f"{file}: {reason}")
                continue
            name = skill.name.casefold()
            if name in disabled:
                continue
            if name in found:
                notes.append(f"{file}: another folder has a skill {skill.name!r}, which is used")
            elif len(found) < MAX_SKILLS:
                own = file.parent.parent in self.written
                env = {} if own else self.env.get(skill.name, {})
                found[name] = Skill(skill.name, skill.description, file, env)
        ordered = tuple(found[name] for name in sorted(found))
        return Skills(ordered, version, tuple(notes[:MAX_NOTES]))


def _files(folder: Path) -> list[Path]:
    try:
        inside = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return []
    files: list[Path] = []
    for entry in inside[:MAX_SKILLS]:
        with contextlib.suppress(OSError):
            if entry.is_dir() and Path(entry.path, FILE).is_file():
                files.append(Path(entry.path, FILE))
    return files


def _version(files: Iterable[Path]) -> str:
    made = hashlib.sha256()
    for file in files:
        try:
            about = file.stat()
            made.update(f"{file}\0{about.st_mtime_ns}\0{about.st_size}\n".encode())
        except OSError:
            made.update(f"{file}\0gone\n".encode())
    return made.hexdigest()[:16]


def _skill(file: Path) -> Skill:
    """Reads a `SKILL.md`, whose name and description are between two lines of `---`.

    Raises:
        ValueError: The description is missing, or the name is invalid.
        OSError: The file cannot be read.
    """
    with file.open("rb") as opened:
        raw = opened.read(MAX_FILE + 1)
    if len(raw) > MAX_FILE:
        raise ValueError(f"the file is larger than {MAX_FILE} bytes")
    fields = _front_matter(raw.decode("utf-8-sig"))
    name = fields.get("name", file.parent.name)
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise ValueError(
            f"{name[:MAX_NAME]!r} is not a valid name of a skill: use up to {MAX_NAME} letters, "
            "digits, `_`, `.` and `-`"
        )
    description = " ".join(fields.get("description", "").split())[:MAX_DESCRIPTION]
    if not description:
        raise ValueError("`description` is missing between the two lines of `---`")
    return Skill(name, description, file)


def _front_matter(text: str) -> dict[str, str]:
    """Parses the YAML at the top, and returns its fields that are texts.

    Raises:
        ValueError: The YAML is too long, nested too deeply, or has anchors, aliases or tags.
    """
    head, *rest = text.split("\n---", 1)
    if not head.startswith("---") or not rest:
        return {}
    head = head.removeprefix("---")
    if len(head) > MAX_FRONT_MATTER:
        raise ValueError(
            f"between the two lines of `---` may be at most {MAX_FRONT_MATTER} characters"
        )
    with naming_extras():
        import yaml

    class Loader(yaml.BaseLoader):
        """Makes texts of all scalars, and rejects YAML that could grow or make other objects."""

        def compose_node(self, parent: "yaml.Node | None", index: int) -> "yaml.Node | None":
            event = self.peek_event()
            if any(getattr(event, name, None) for name in ("anchor", "tag")):
                raise ValueError(
                    f"line {event.start_mark.line + 1}: anchors (&), aliases (*) and tags (!) of "
                    "YAML are not supported; write a text that begins with one of these in quotes"
                )
            return super().compose_node(parent, index)

    try:
        if head.count("[") + head.count("{") > MAX_BRACKETS:
            raise RecursionError  # the scanner takes seconds before it runs into its own limit
        found = yaml.load(head, Loader)  # noqa: S506 - a BaseLoader makes texts, lists and dicts
    except RecursionError:
        raise ValueError("the YAML between the two lines of `---` is nested too deeply") from None
    except yaml.YAMLError:
        # Many skills have descriptions that are not YAML, such as `Use when: the user asks`.
        return {
            key: " ".join(re.sub(r"^[|>]-?[ \t]*\n", "", value).split()).strip("\"'")
            for key, value in _FIELD.findall(head)
        }
    fields = found if isinstance(found, dict) else {}
    return {key: value for key, value in fields.items() if isinstance(value, str)}
