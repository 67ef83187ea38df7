"""The file `clawmode.json5`: where it is, what it says, and what of it cannot be meant.

The sections of the file belong to others; here the way is walked to each `codeMode`, the global
one and those of agents.
"""

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clawmode import json5
from clawmode.config import (
    PATH,
    CodeModeConfig,
    ConfigWarning,
    Setting,
    join,
    resolve,
    show,
    unknown_key,
    wrong,
)
from clawmode.exceptions import ConfigurationError
from clawmode.types import JsonValue

NAME = "clawmode.json5"
VARIABLE = "CLAWMODE_CONFIG"
MAX_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a configuration file says; no file says `{}`."""

    data: dict[str, JsonValue]
    path: Path | None = None
    document: json5.Document | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Problem:
    """A line for people about one setting; without a path it is about the file.

    Attributes:
        path: The setting.
        line: From 1; 0 if unknown, and so is the column.
        text: All of it in words.
        column: In characters, from 1.
        what: What is wrong, without the place.
        expected: What would have been right, if that is not part of it.
    """

    path: str
    line: int
    text: str
    column: int = 0
    what: str = ""
    expected: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Report:
    """What a check has found: with errors nothing runs, warnings are worth a look."""

    path: Path | None
    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


# ---- Finding and reading ----


def find(explicit: str | Path | None = None) -> Path | None:
    """The file to read: the one named, else `CLAWMODE_CONFIG`, else the first that exists."""
    named = os.environ.get(VARIABLE) if explicit is None else str(explicit)
    if named or explicit is not None:
        return Path(os.path.expanduser(named or ""))
    return next((path for path in (Path(NAME), _user_folder() / NAME) if _is_there(path)), None)


def _is_there(path: Path) -> bool:
    """Whether to read it. One that cannot be looked at is: to pass it over would fail open."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _user_folder() -> Path:
    # A relative one is to be ignored, says the XDG specification.
    configured = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    base = configured if configured.is_absolute() else Path(os.path.expanduser("~/.config"))
    return base / "clawmode"


def load(path: str | Path | None = None) -> ConfigFile:
    """Reads the file, wherever `find` finds it.

    Raises:
        ConfigurationError: It is named and cannot be read, or is not a JSON5 object.
    """
    found = find(path)
    if found is None:
        return ConfigFile({})
    document = json5.parse(_read(found), str(found))
    if not isinstance(document.value, dict):
        raise ConfigurationError(
            f"{found}: found {show(document.value)}, expected an object: {{ ... }}",
            expected="an object",
        )
    return ConfigFile(document.value, found, document)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SIZE + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"cannot read the configuration {path}: {reason}") from None
    if len(raw) > MAX_SIZE:
        raise ConfigurationError(f"{path}: the file is over {MAX_SIZE} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"{path}:{line}: the file is not UTF-8: byte {error.start} is "
        raise ConfigurationError(f"{message}0x{raw[error.start]:02x}", line=line) from None


# ---- Code mode ----


def code_mode(
    data: dict[str, JsonValue], agent_id: str | None = None
) -> tuple[CodeModeConfig, list[ConfigWarning]]:
    """The settings for an agent: its own laid over the global ones.

    An agent that the file does not name has the global ones.

    Raises:
        ConfigurationError: Something on the way to these settings, or in them, cannot be meant.
    """
    survey = _Survey.of(data)
    own = None if agent_id is None else survey.agents.get(agent_id)
    found = resolve(survey.base, *([own] if own else []))
    found.errors[:0] = survey.errors
    found.warnings[:0] = survey.warnings
    return found.unwrap()


def check(path: str | Path | None = None) -> Report:
    """Looks at the whole file and says all that is to say; does not raise."""
    try:
        file = load(path)
    except ConfigurationError as error:
        found = find(path)
        what = str(error).partition("\n")[0].removeprefix(f"{found}:{error.line}:{error.column}: ")
        problem = Problem("", error.line, str(error), error.column, what, error.expected)
        return Report(found, [problem])
    survey = _Survey.of(file.data)
    parts = [resolve(survey.base), *(resolve(survey.base, own) for own in survey.agents.values())]
    errors = survey.errors + [error for part in parts for error in part.errors]
    warnings = survey.warnings + [warning for part in parts for warning in part.warnings]
    return Report(file.path, _problems(file, errors), _problems(file, warnings))


def _problems(
    file: ConfigFile, said: Sequence[ConfigurationError | ConfigWarning]
) -> list[Problem]:
    """The same for people: in the order of the file, each once, with its line."""
    if file.document is None or not said:
        return []
    places = Places(file.document)
    found: dict[str, Problem] = {}
    for it in said:
        line, column = places.find(it.path)
        expected = it.expected if isinstance(it, ConfigurationError) else ""
        what = str(it).removeprefix(f"{it.path}: ").removesuffix(f", expected {expected}")
        told = f"{file.path}:{line}: {it}"
        found[str(it)] = Problem(it.path, line, told, column, what, expected)
    return sorted(found.values(), key=lambda problem: problem.line)


class Places:
    """Where settings stand in a file."""

    def __init__(self, document: json5.Document) -> None:
        self._text = document.text
        self._offsets = {_dotted(parts): at for parts, at in document.offsets.items()}

    def find(self, path: str) -> tuple[int, int]:
        """Line and column of a setting, or, if it is missing, of what it is missing in."""
        while path and path not in self._offsets:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return json5.place(self._text, self._offsets.get(path, 0))


def _dotted(parts: json5.Parts) -> str:
    path = ""
    for part in parts:
        path = f"{path}[{part}]" if isinstance(part, int) else join(path, part)
    return path


# ---- The way to each codeMode ----


@dataclass(slots=True)
class _Survey:
    """The settings named `codeMode`, and what is wrong on the way to them."""

    base: Setting = field(default_factory=lambda: Setting(PATH, {}))
    agents: dict[str, Setting] = field(default_factory=dict)
    errors: list[ConfigurationError] = field(default_factory=list)
    warnings: list[ConfigWarning] = field(default_factory=list)

    @classmethod
    def of(cls, data: dict[str, JsonValue]) -> "_Survey":
        survey = cls()
        root = survey._members(Setting("", data), "tools", "agents")
        survey.base = survey._code_mode(root, "")
        agents = survey._members(root.get("agents", Setting("agents", {})), "list")
        for entry in survey._items(agents.get("list", Setting("agents.list", []))):
            survey._agent(entry)
        return survey

    def _agent(self, entry: Setting) -> None:
        members = self._members(entry, "id", "tools")
        if not isinstance(entry.value, dict):
            return
        own = self._code_mode(members, entry.path)
        identity = members.get("id", Setting(join(entry.path, "id"), None))
        name = identity.value
        if not isinstance(name, str) or not name:
            missing = "" if "id" in members else "nothing"
            self.errors.append(wrong(identity, "the name of an agent", found=missing))
        elif name in self.agents:
            message = f"{identity.path}: {show(name)} is the id of an earlier agent already"
            self.errors.append(ConfigurationError(message, path=identity.path))
        else:
            self.agents[name] = own

    def _code_mode(self, owner: dict[str, Setting], path: str) -> Setting:
        """The `codeMode` below an agent or the whole, `{}` if there is none."""
        if stray := owner.get("codeMode"):
            message = "has no effect here; it belongs into tools"
            self.warnings.append(ConfigWarning(stray.path, message))
        tools = owner.get("tools", Setting(join(path, "tools"), {}))
        absent = Setting(join(tools.path, "codeMode"), {})
        return self._members(tools, "codeMode").get("codeMode", absent)

    def _members(self, setting: Setting, *known: str) -> dict[str, Setting]:
        """The members of an object; warns of keys that look like a known one and are not."""
        if not isinstance(setting.value, dict):
            self.errors.append(wrong(setting, "an object"))
            return {}
        members = {key: Setting(join(setting.path, key), it) for key, it in setting.value.items()}
        for key in members:
            if key not in known and _looks_like(key, known):
                message = unknown_key(key, dict.fromkeys(known))
                self.warnings.append(ConfigWarning(members[key].path, message))
        return members

    def _items(self, setting: Setting) -> list[Setting]:
        if isinstance(setting.value, list):
            return [Setting(f"{setting.path}[{n}]", it) for n, it in enumerate(setting.value)]
        self.errors.append(wrong(setting, "a list"))
        return []


def _looks_like(key: str, known: tuple[str, ...]) -> bool:
    return bool(difflib.get_close_matches(key.lower(), [it.lower() for it in known], cutoff=0.8))
