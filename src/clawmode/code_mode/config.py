"""The settings of code mode: the fields of `tools.codeMode`, their defaults and ranges.

The values come from JSON that people write. An invalid value raises `ConfigurationError`; a number
out of its range is clamped, with a warning. `config/file` finds and parses the JSON.
"""

import difflib
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

from clawmode.exceptions import ClawmodeWarning, ConfigurationError, ConfigWarning
from clawmode.records import join
from clawmode.sandbox.protocol import LANGUAGES, Language
from clawmode.text import show
from clawmode.types import JsonValue

Runtime: TypeAlias = Literal["quickjs-wasi"]
Mode: TypeAlias = Literal["only"]

PATH = "tools.codeMode"
AGENT_PATH = "agents.list[].tools.codeMode"

MAX_UNKNOWN = 100
"""The maximum of unknown keys that get a warning each."""

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
"""The range of `max_suspended_runs`, whose default depends on the store."""

SUSPENDED_IN_MEMORY = 64
SUSPENDED_DURABLE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeModeConfig:
    """The settings of code mode.

    A number out of its range is clamped, with a `ClawmodeWarning`.

    Attributes:
        enabled: True if runs of an agent use code mode. A `CodeMode` object ignores it.
        index_max_chars: The maximum length of the tool index in the prompt; 0 disables the index.
        max_suspended_runs: The maximum number of parked programs; with 0, `clamped` sets it.

    Raises:
        ConfigurationError: A value has the wrong type, or is not one of the allowed values.
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
                # The warning points to the caller of the generated `__init__`.
                warnings.warn(f"CodeModeConfig.{name}: {text}", ClawmodeWarning, stacklevel=3)
            object.__setattr__(self, name, number)

    def clamped(self, *, durable: bool = False) -> "CodeModeConfig":
        """Returns a copy with a limit on parked programs, if none was set.

        Args:
            durable: True if parked programs outlive the process, so that more may be parked.
        """
        unset = SUSPENDED_DURABLE if durable else SUSPENDED_IN_MEMORY
        return replace(self, max_suspended_runs=self.max_suspended_runs or unset)

    @classmethod
    def from_json(
        cls, value: JsonValue, *, path: str = PATH
    ) -> "tuple[CodeModeConfig, list[ConfigWarning]]":
        """Reads a `codeMode` value; pass `{}` if it is absent.

        Raises:
            ConfigurationError: A value has the wrong type, or is not one of the allowed values.
        """
        return resolve(Setting(path, value)).unwrap()


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, with its path in the configuration."""

    path: str
    value: JsonValue


@dataclass(slots=True)
class Resolution:
    """A configuration, with the errors and warnings of its sources.

    If there are errors, `config` is the default configuration, which is disabled.
    """

    config: CodeModeConfig = field(default_factory=CodeModeConfig)
    errors: list[ConfigurationError] = field(default_factory=list)
    warnings: list[ConfigWarning] = field(default_factory=list)

    def unwrap(self) -> tuple[CodeModeConfig, list[ConfigWarning]]:
        """Returns the configuration and its warnings, or raises the first error."""
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
    """Merges an agent's `codeMode` into the global one, field by field; pass `{}` if absent.

    Raises:
        ConfigurationError: As `CodeModeConfig.from_json`, for either value.
    """
    return resolve(Setting(path, global_value), Setting(agent_path, agent_value)).unwrap()


def resolve(*layers: Setting) -> Resolution:
    """Merges `codeMode` values, where later ones override earlier ones, and checks all of them."""
    found = Resolution()
    merged: dict[str, Setting] = {}
    for layer in layers:
        merged |= _read(layer, found)
    config = _build(merged, found)
    if not found.errors:
        found.config = config
    return found


# ---- Types, checked in every layer, overridden or not ----

_CHOICES: dict[str, tuple[str, ...]] = {"runtime": ("quickjs-wasi",), "mode": ("only",)}
_NUMBERS = RANGES | {"max_suspended_runs": SUSPENDED_RUNS}
_DEFAULTS: dict[str, Any] = {
    member.name: member.default for member in fields(CodeModeConfig) if member.name in _NUMBERS
}


KEYS: dict[str, str] = {
    re.sub(r"_(\w)", lambda match: match[1].upper(), member.name): member.name
    for member in fields(CodeModeConfig)
}
"""The fields of `CodeModeConfig` by their keys in the file."""


def _read(layer: Setting, found: Resolution) -> dict[str, Setting]:
    """Returns the settings of one layer by field; adds errors and unknown keys to `found`."""
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
    if isinstance(layer.value, bool):  # short for `{enabled: …}`
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
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return None if is_number else wrong(setting, _wanted(name))


def _language_fault(setting: Setting) -> ConfigurationError | None:
    known = _listed(LANGUAGES)
    if not isinstance(setting.value, list) or not setting.value:
        return wrong(setting, f"a list with at least one of {known}")
    for index, language in enumerate(setting.value):
        if language not in LANGUAGES:
            return wrong(Setting(f"{setting.path}[{index}]", language), known)
    return None


# ---- Numbers, checked after merging ----


def _build(settings: Mapping[str, Setting], found: Resolution) -> CodeModeConfig:
    values: dict[str, Any] = {name: setting.value for name, setting in settings.items()}
    if "languages" in values:  # a set, so order and repetition have no meaning
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
    """Returns the numbers to use, and the reasons for those that differ from the given ones."""
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
    """Returns a whole number as an integer, because JSON allows `1e4`; None for other values."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) else None


def _wanted(name: str) -> str:
    return "a positive integer" if _NUMBERS[name][0] else "a positive integer or 0"


# ---- Messages ----


def wrong(setting: Setting, expected: str, *, found: str = "") -> ConfigurationError:
    """Returns the error for an invalid value: its path, the value, and what is expected."""
    return ConfigurationError(
        f"{setting.path}: found {found or show(setting.value)}, expected {expected}",
        path=setting.path,
        expected=expected,
    )


def unknown_key(key: str, known: Mapping[str, object]) -> str:
    """Returns the warning about an unknown key, with the nearest known one."""
    by_lower = {name.lower(): name for name in known}
    (nearest,) = difflib.get_close_matches(key.lower()[:100], by_lower, n=1, cutoff=0.0)
    return f"unknown key, it has no effect; the nearest known one is {by_lower[nearest]}"


class UnknownKeys:
    """Warns of the first hundred unknown keys, and counts the others.

    The limit bounds the time that is spent on similar names.

    Args:
        warnings: The list to which warnings are added.
    """

    def __init__(self, warnings: list[ConfigWarning]) -> None:
        self._warnings = warnings
        self._count = 0
        self._last = 0

    def tell(self, path: str, key: str, known: Mapping[str, object]) -> None:
        """Adds a warning about a key, or counts the key."""
        self._count += 1
        more = self._count - MAX_UNKNOWN
        if more <= 0:
            self._warnings.append(ConfigWarning(path, unknown_key(key, known)))
        elif more == 1:
            self._last = len(self._warnings)
            self._warnings.append(ConfigWarning(path, "unknown key, it has no effect"))
        else:
            message = f"unknown key, it has no effect, like {more - 1} more"
            self._warnings[self._last] = replace(self._warnings[self._last], message=message)


def _listed(choices: tuple[str, ...]) -> str:
    return " or ".join(json.dumps(choice) for choice in choices)
