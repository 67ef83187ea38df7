"""What an operator can set: the page's `tools.codeMode` fields, with its defaults and ranges.

The values come from JSON that people write. What cannot be meant is a `ConfigurationError`; a
number that is out of its range is brought into it, and said so. Which JSON it is, is
`config_file`'s business.
"""

import difflib
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

from clawmode.exceptions import ClawmodeWarning, ConfigurationError
from clawmode.sandbox.protocol import LANGUAGES, Language
from clawmode.text import shorten
from clawmode.types import JsonValue

Runtime: TypeAlias = Literal["quickjs-wasi"]
Mode: TypeAlias = Literal["only"]

PATH = "tools.codeMode"
AGENT_PATH = "agents.list[].tools.codeMode"

MAX_UNKNOWN = 100
"""Unknown keys that are told by name."""

RANGES: dict[str, tuple[int, int]] = {
    "timeout_ms": (100, 60_000),
    "memory_limit_bytes": (1 << 20, 1 << 30),
    "max_output_bytes": (1024, 10 << 20),
    "max_snapshot_bytes": (1024, 256 << 20),
    "max_pending_tool_calls": (1, 128),
    "snapshot_ttl_seconds": (1, 86_400),
    "max_search_limit": (1, 50),
    "search_default_limit": (1, 50),
    "index_max_chars": (0, 100_000),
}

SUSPENDED_RUNS = (1, 1_000_000)
"""The range of `max_suspended_runs`. Apart: its default depends on where runs are parked."""

SUSPENDED_IN_MEMORY = 64
SUSPENDED_DURABLE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeModeConfig:
    """The settings of code mode.

    A number out of its range is brought into it, with a `ClawmodeWarning`.

    Attributes:
        enabled: Whether runs of an agent get code mode; a `CodeMode` made by hand always has it.
        index_max_chars: How long the index of signatures in the prompt may be; 0 switches it off.
        max_suspended_runs: How many programs may be parked; 0 leaves it to `clamped`.

    Raises:
        ConfigurationError: A value is of the wrong type, or is none of the known ones.
    """

    enabled: bool = False
    runtime: Runtime = "quickjs-wasi"
    mode: Mode = "only"
    languages: tuple[Language, ...] = LANGUAGES
    timeout_ms: int = 10_000
    memory_limit_bytes: int = 64 << 20
    max_output_bytes: int = 64 << 10
    max_snapshot_bytes: int = 10 << 20
    max_pending_tool_calls: int = 16
    snapshot_ttl_seconds: int = 900
    search_default_limit: int = 8
    max_search_limit: int = 50
    index_max_chars: int = 4000
    max_suspended_runs: int = 0

    def __post_init__(self) -> None:
        for name in KEYS.values():
            value = getattr(self, name)
            plain = list(value) if isinstance(value, tuple) else value
            if fault := _fault(name, Setting(f"CodeModeConfig.{name}", plain)):
                raise fault
        object.__setattr__(self, "languages", tuple(self.languages))
        used, reasons = _settle({name: getattr(self, name) for name in _NUMBERS})
        for name, number in used.items():
            value = getattr(self, name)
            if name in reasons and value != _DEFAULTS[name]:
                text = _not_used(value, reasons[name], number)
                # At the line that makes the object: `__init__` stands between.
                warnings.warn(f"CodeModeConfig.{name}: {text}", ClawmodeWarning, stacklevel=3)
            object.__setattr__(self, name, number)

    def clamped(self, *, durable: bool = False) -> "CodeModeConfig":
        """The same with a limit on parked programs, if none was set.

        Args:
            durable: Parked programs outlive the process, so more of them may be kept.
        """
        unset = SUSPENDED_DURABLE if durable else SUSPENDED_IN_MEMORY
        return replace(self, max_suspended_runs=self.max_suspended_runs or unset)

    @classmethod
    def from_json(
        cls, value: JsonValue, *, path: str = PATH
    ) -> "tuple[CodeModeConfig, list[ConfigWarning]]":
        """Reads a `codeMode` value; one that is absent is `{}`.

        Raises:
            ConfigurationError: A value is of the wrong type, or is none of the known ones.
        """
        return resolve(Setting(path, value)).unwrap()


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """Something that was configured and is not used as it stands."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, and where it was set."""

    path: str
    value: JsonValue


@dataclass(slots=True)
class Resolution:
    """A configuration, and all that is to say about what it was made of.

    With errors the configuration is not to be used: it is the default one, switched off.
    """

    config: CodeModeConfig = field(default_factory=CodeModeConfig)
    errors: list[ConfigurationError] = field(default_factory=list)
    warnings: list[ConfigWarning] = field(default_factory=list)

    def unwrap(self) -> tuple[CodeModeConfig, list[ConfigWarning]]:
        """The configuration and its warnings; raises the first error."""
        if self.errors:
            raise self.errors[0]
        return self.config, self.warnings


def merge(
    global_value: JsonValue,
    agent_value: JsonValue,
    *,
    path: str = PATH,
    agent_path: str = AGENT_PATH,
) -> tuple[CodeModeConfig, list[ConfigWarning]]:
    """Lays an agent's `codeMode` over the global one, field by field; absent is `{}`.

    Raises:
        ConfigurationError: As `CodeModeConfig.from_json`, for either of them.
    """
    return resolve(Setting(path, global_value), Setting(agent_path, agent_value)).unwrap()


def resolve(*layers: Setting) -> Resolution:
    """Lays `codeMode` values over each other, the last on top, and checks all of them."""
    found = Resolution()
    merged: dict[str, Setting] = {}
    for layer in layers:
        merged |= _read(layer, found)
    config = _build(merged, found)
    if not found.errors:
        found.config = config
    return found


# ---- Types: of every layer, used or not ----

_CHOICES: dict[str, tuple[str, ...]] = {"runtime": ("quickjs-wasi",), "mode": ("only",)}
_NUMBERS = RANGES | {"max_suspended_runs": SUSPENDED_RUNS}
_DEFAULTS: dict[str, Any] = {
    member.name: member.default for member in fields(CodeModeConfig) if member.name in _NUMBERS
}


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


KEYS: dict[str, str] = {_camel(member.name): member.name for member in fields(CodeModeConfig)}
"""From a key in the file to the field of `CodeModeConfig`."""


def _read(layer: Setting, found: Resolution) -> dict[str, Setting]:
    """The settings of one layer by field; faults and unknown keys go to `found`."""
    settings: dict[str, Setting] = {}
    unknown = UnknownKeys(found.warnings)
    for key, setting in _members(layer, found).items():
        name = KEYS.get(key)
        if name is None:
            unknown.tell(setting.path, key, KEYS)
        elif fault := _fault(name, setting):
            found.errors.append(fault)
        else:
            settings[name] = setting
    return settings


def _members(layer: Setting, found: Resolution) -> dict[str, Setting]:
    if isinstance(layer.value, bool):  # the shorthand
        return {"enabled": layer}
    if isinstance(layer.value, dict):
        return {key: Setting(join(layer.path, key), item) for key, item in layer.value.items()}
    found.errors.append(wrong(layer, "true, false or an object"))
    return {}


def _fault(name: str, setting: Setting) -> ConfigurationError | None:
    value = setting.value
    if name == "languages":
        return _language_fault(setting)
    if name in _CHOICES:
        choices = _CHOICES[name]
        return None if value in choices else wrong(setting, _listed(choices))
    if name == "enabled":
        return None if isinstance(value, bool) else wrong(setting, "true or false")
    return None if _is_number(value) else wrong(setting, _wanted(name))


def _language_fault(setting: Setting) -> ConfigurationError | None:
    known = _listed(LANGUAGES)
    if not isinstance(setting.value, list) or not setting.value:
        return wrong(setting, f"a list with at least one of {known}")
    for index, language in enumerate(setting.value):
        if language not in LANGUAGES:
            return wrong(Setting(f"{setting.path}[{index}]", language), known)
    return None


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# ---- Numbers: of what is used ----


def _build(settings: Mapping[str, Setting], found: Resolution) -> CodeModeConfig:
    values: dict[str, Any] = {name: setting.value for name, setting in settings.items()}
    if "languages" in values:  # a set: neither order nor repetition means anything
        chosen = settings["languages"].value
        assert isinstance(chosen, list)
        values["languages"] = tuple(language for language in LANGUAGES if language in chosen)
    used, reasons = _settle(_DEFAULTS | {name: values[name] for name in _NUMBERS if name in values})
    for name, setting in settings.items():
        if name in reasons:
            message = _not_used(setting.value, reasons[name], used[name])
            found.warnings.append(ConfigWarning(setting.path, message))
    values.update(used)
    return CodeModeConfig(**values)


def _settle(numbers: Mapping[str, object]) -> tuple[dict[str, int], dict[str, str]]:
    """The numbers to use, and why they are not those that were given."""
    used: dict[str, int] = {}
    reasons: dict[str, str] = {}
    for name, (low, high) in _NUMBERS.items():
        if name == "search_default_limit":
            high = used["max_search_limit"]
        number = _integer(numbers[name])
        if number is None or number < min(low, 1):
            reasons[name] = f"is not {_wanted(name)}"
            used[name] = min(_DEFAULTS[name], high)
        elif number < low:
            reasons[name], used[name] = f"is under {low}", low
        elif number > high:
            reasons[name], used[name] = f"is over {high}", high
        else:
            used[name] = number
    return used, reasons


def _not_used(value: JsonValue, reason: str, used: int) -> str:
    return f"{show(value)} {reason}: {used or 'the default'} is used"


def _integer(value: object) -> int | None:
    """JSON has one kind of number, and people write `1e4`: what is whole is an integer."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) else None


def _wanted(name: str) -> str:
    return "a positive integer" if _NUMBERS[name][0] else "a positive integer or 0"


# ---- What people read ----


def wrong(setting: Setting, expected: str, *, found: str = "") -> ConfigurationError:
    """The error for a value that cannot be meant: where, what was found, what is expected."""
    return ConfigurationError(
        f"{setting.path}: found {found or show(setting.value)}, expected {expected}",
        path=setting.path,
        expected=expected,
    )


def unknown_key(key: str, known: Mapping[str, object]) -> str:
    """What to say of a key that nobody reads."""
    by_lower = {name.lower(): name for name in known}
    (nearest,) = difflib.get_close_matches(key.lower()[:100], by_lower, n=1, cutoff=0.0)
    return f"unknown key, it has no effect; the nearest known one is {by_lower[nearest]}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that a misspelt one may stand for, quoted; empty if none is near."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower()[:100], by_lower, n=1, cutoff=0.7)
    return show(by_lower[found[0]]) if found else ""


class UnknownKeys:
    """Warns of keys that nobody reads: of the first hundred each, and how many more there are.

    To look for the nearest known one takes its time.

    Args:
        warnings: Where warnings go.
    """

    def __init__(self, warnings: list[ConfigWarning]) -> None:
        self._warnings = warnings
        self._count = 0
        self._last = 0

    def tell(self, path: str, key: str, known: Mapping[str, object]) -> None:
        """Warns of a key, or counts it."""
        self._count += 1
        more = self._count - MAX_UNKNOWN
        if more <= 0:
            self._warnings.append(ConfigWarning(path, unknown_key(key, known)))
        elif more == 1:
            self._last = len(self._warnings)
            self._warnings.append(ConfigWarning(path, "unknown key, it has no effect"))
        else:
            said = f"unknown key, it has no effect, like {more - 1} more"
            self._warnings[self._last] = replace(self._warnings[self._last], message=said)


def show(value: JsonValue) -> str:
    """A value as it stands in a file, cut if it is long; no control characters."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, int) and value.bit_length() > 128:
        return "a huge number"  # Python does not print an integer of over 4,300 digits
    text = json.dumps(value, default=repr)
    return shorten(text, 60, "...")


def join(path: str, key: str) -> str:
    """The path of a member: dotted, or in brackets if the key is not a plain word."""
    if re.fullmatch(r"[A-Za-z_$][A-Za-z0-9_$]*", key):
        return f"{path}.{key}" if path else key
    return f"{path}[{json.dumps(key)}]"


def _listed(choices: tuple[str, ...]) -> str:
    return " or ".join(json.dumps(choice) for choice in choices)
