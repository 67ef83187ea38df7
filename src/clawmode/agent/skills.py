"""Skills: folders with a `SKILL.md` that tells a model how to do something.

The model is told their names, what they are for and where they are; it reads the rest when it needs
it. A folder that cannot be read, or says nothing, is left out, and a note says so.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

FILE = "SKILL.md"
MAX_SKILLS = 200
MAX_FILE = 256 << 10
MAX_NAME = 64
MAX_DESCRIPTION = 1_024
MAX_NOTES = 20

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_FIELD = re.compile(r"([A-Za-z][\w-]*):[ \t]*(.*)")


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill.

    Attributes:
        name: Unique among those of a run.
        description: When it is of use, in one line.
        file: Its `SKILL.md`.
        env: Variables that commands get which are run for it.
    """

    name: str
    description: str
    file: Path
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Skills:
    """The skills of a run.

    Attributes:
        version: The same as long as nothing has changed.
        notes: What was left out, and why.
    """

    skills: tuple[Skill, ...] = ()
    version: str = ""
    notes: tuple[str, ...] = ()

    def prompt(self) -> str:
        """What the model is told; nothing if there are none."""
        if not self.skills:
            return ""
        lines = [f"- {skill.name}: {skill.description} ({skill.file})" for skill in self.skills]
        head = "Skills: read the file of one before you do what it is about."
        return "\n".join((head, *lines))

    def env(self) -> dict[str, str]:
        """Variables for the commands of a run; the first skill that sets one has it."""
        made: dict[str, str] = {}
        for skill in self.skills:
            made = {**skill.env, **made}
        return made


@dataclass(slots=True)
class SkillLoader:
    """Finds skills, and remembers what it found as long as the files are as they were.

    Attributes:
        folders: Where to look; of two skills of one name, that of the earlier folder counts.
        disabled: Names of those that are switched off. Names are compared without case.
        env: Variables by the name of a skill.
        written: Folders that models can write to: no skill there gets variables by its name.
    """

    folders: tuple[Path, ...]
    disabled: frozenset[str] = frozenset()
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    written: frozenset[Path] = frozenset()
    _snapshot: Skills | None = None

    def load(self) -> Skills:
        """The skills as they are now. Reads files: a thread's work."""
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
                notes.append(f"{file}: there is a skill {skill.name!r} already")
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
    return [Path(entry.path, FILE) for entry in inside[:MAX_SKILLS] if _has_skill(entry)]


def _has_skill(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir() and Path(entry.path, FILE).is_file()
    except OSError:
        return False


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
    """Reads a `SKILL.md`: its name and description stand between two lines of `---`.

    Raises:
        ValueError: It says neither, or what it says cannot be used.
        OSError: It cannot be read.
    """
    with file.open("rb") as opened:
        raw = opened.read(MAX_FILE + 1)
    if len(raw) > MAX_FILE:
        raise ValueError(f"it is over {MAX_FILE} bytes")
    told = _front_matter(raw.decode("utf-8-sig"))
    name = told.get("name", file.parent.name)
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise ValueError(f"{name[:MAX_NAME]!r} is no name for a skill")
    description = " ".join(told.get("description", "").split())[:MAX_DESCRIPTION]
    if not description:
        raise ValueError("it has no description")
    return Skill(name, description, file)


def _front_matter(text: str) -> dict[str, str]:
    """The plain fields at the top: `key: value`, quoted or over several indented lines."""
    head, *rest = text.split("\n---", 1)
    if not head.startswith("---") or not rest:
        return {}
    told: dict[str, str] = {}
    key = ""
    for line in head.splitlines()[1:]:
        found = _FIELD.fullmatch(line)
        if found:
            key = found[1]
            value = found[2].strip()
            told[key] = "" if value in ("|", ">", "|-", ">-") else value.strip("\"'")
        elif key and line[:1] in (" ", "\t"):
            told[key] = f"{told[key]} {line.strip()}".strip()
    return told
