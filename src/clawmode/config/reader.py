"""Reads sections of the configuration into dataclasses, and makes their JSON Schema.

A section is a frozen dataclass whose fields are declared with `option`. Reading never raises: it
returns a section, errors and warnings for any JSON value. A value of the wrong type is an error. A
number out of range is clamped, an unknown key is ignored, and both are warnings. Messages never
quote a secret, nor a value that was found instead of an object or a list.

The JSON Schema accepts the values that are read without an error or a warning.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

from clawmode.code_mode.config import Setting, unknown_key, wrong
from clawmode.exceptions import ConfigurationError, ConfigWarning
from clawmode.records import join
from clawmode.text import shorten, show
from clawmode.types import JsonObject, JsonValue

MAX_PROBLEMS = 100
"""The maximum number of errors, and of warnings, that are reported."""

MAX_ITEMS = 2000
"""The maximum number of entries of a list, or of an object with keys that operators choose."""

MAX_NAME = 200
"""The maximum length of a key that operators choose, such as the id of a provider."""

NOT_USED = "is not used by clawmode"

Hook: TypeAlias = Callable[["Reader", Setting], object]
Issue: TypeAlias = ConfigurationError | ConfigWarning
S = TypeVar("S", bound="Section")


class Section:
    """The base class of all sections."""

    __slots__ = ()

    IGNORED: ClassVar[Mapping[str, str]] = {}
    """Known keys that have no effect, with the warning about each."""

    def check(self, path: str) -> Iterator[Issue]:
        """Yields errors and warnings about the combination of fields."""
        yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The metadata of a field of a section; see `option`."""

    help: str
    key: str = ""
    low: int | None = None
    high: int | None = None
    unset: JsonValue = None
    expected: str = ""
    required: bool = False
    secret: bool = False
    shorthand: str = ""
    hook: Hook | None = None
    schema: JsonObject | None = None


def unused(*keys: str) -> dict[str, str]:
    """Returns entries of `IGNORED` for OpenClaw's keys that clawmode does not implement."""
    return dict.fromkeys(keys, NOT_USED)


def option(help: str, default: object = None, **more: Any) -> Any:
    """Declares a field of a section.

    Args:
        help: The description in the JSON Schema, one line.
        default: The value of an absent field; a class is called to make the value.
        more: Fields of `Option`:
            key: The key in the file, if it is not the field's name in camel case.
            low, high: The range of a number, or of the numbers in a list or map.
            unset: The effective value of an absent field, if it differs from `default`.
            expected: The description of a valid value in error messages.
            required: True if an absent key is an error.
            secret: True if the value must not be quoted in messages or `repr`.
            shorthand: The key of the nested section that a plain string sets.
            hook: Reads the value instead of the reader. It may return `ABSENT`.
            schema: The JSON Schema of a field with a hook.
    """
    about = Option(help=help, **more)
    metadata = {"option": about}
    if isinstance(default, type):
        return field(default_factory=default, repr=not about.secret, metadata=metadata)
    return field(default=default, repr=not about.secret, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a section: its name in Python, type, metadata and default."""

    name: str
    kind: Any
    option: Option
    default: Any


@cache
def members(kind: type[Section]) -> dict[str, Member]:
    """Returns the fields of a section by their keys in the file."""
    made: dict[str, Member] = {}
    of: Any = kind
    for item in fields(of):
        about: Option = item.metadata["option"]
        key = about.key or re.sub(r"_(\w)", lambda match: match[1].upper(), item.name)
        default = item.default if item.default_factory is MISSING else item.default_factory()
        kind_of_field: Any = item.type
        if get_origin(kind_of_field) in (Union, UnionType):
            # None means "not set" in Python; null is not a valid value in the file.
            (kind_of_field,) = (it for it in get_args(kind_of_field) if it is not NoneType)
        made[key] = Member(item.name, kind_of_field, about, default)
    return made


def is_section(kind: Any) -> bool:
    """True if a type is a subclass of `Section`."""
    return isinstance(kind, type) and issubclass(kind, Section)


# ---- Reading ----

ABSENT: Any = object()
"""The result of reading an invalid value; the default is used instead."""


@dataclass(frozen=True, slots=True)
class ReadResult(Generic[S]):
    """A section with the errors and warnings about it. With errors, it must not be used."""

    section: S
    errors: list[ConfigurationError]
    warnings: list[ConfigWarning]

    def unwrap(self) -> S:
        """Returns the section, or raises the first error."""
        if self.errors:
            raise self.errors[0]
        return self.section


def read(kind: type[S], value: JsonValue, path: str = "") -> ReadResult[S]:
    """Reads a section from any JSON value."""
    reader = Reader()
    section = reader.section(kind, Setting(path, value))
    return ReadResult(section, reader.errors, reader.warnings)


class Reader:
    """Reads sections, and collects `errors` and `warnings`."""

    def __init__(self) -> None:
        self.errors: list[ConfigurationError] = []
        self.warnings: list[ConfigWarning] = []
        self._messages: set[str] = set()

    def add(self, issues: Iterable[Issue]) -> None:
        """Adds errors and warnings without repetitions, up to `MAX_PROBLEMS` of each."""
        for issue in issues:
            known: list[Any] = self.warnings if isinstance(issue, ConfigWarning) else self.errors
            if str(issue) in self._messages or len(known) > MAX_PROBLEMS:
                continue
            self._messages.add(str(issue))
            known.append(issue if len(known) < MAX_PROBLEMS else _too_many(issue))

    def section(self, kind: type[S], setting: Setting) -> S:
        """Reads a section. Anything but an object is an error, and gives the defaults."""
        make: Any = kind
        if not isinstance(setting.value, dict):
            self.add([_mismatch(setting, "an object", hidden=True)])
            return make()
        known = members(kind)
        self.warn_unknown_keys(setting, known, kind.IGNORED)
        values: dict[str, object] = {}
        for key, member in known.items():
            if key in setting.value:
                at = Setting(join(setting.path, key), setting.value[key])
                value = self._value(member.kind, at, member)
                if value is not ABSENT:
                    values[member.name] = value
            elif member.option.required:
                at = Setting(join(setting.path, key), None)
                self.add([wrong(at, member.option.expected or "a value", found="nothing")])
        made: S = make(**values)
        self.add(made.check(setting.path))
        return made

    def warn_unknown_keys(
        self, setting: Setting, known: Mapping[str, object], ignored: Mapping[str, str]
    ) -> None:
        """Warns of the keys of an object that have no effect."""
        assert isinstance(setting.value, dict)
        for key in setting.value:
            if len(self.warnings) > MAX_PROBLEMS:
                return  # the search for the nearest key is slow
            if key in known:
                continue
            message = ignored.get(key) or unknown_key(key, known)
            self.add([ConfigWarning(join(setting.path, _cut(key)), message)])

    def _value(self, kind: Any, setting: Setting, member: Member) -> Any:
        about = member.option
        if about.hook is not None:
            return about.hook(self, setting)
        if is_section(kind):
            return self._nested(kind, setting, about)
        if kind == JsonValue:
            return setting.value
        if get_origin(kind) is tuple:
            return self._list(get_args(kind)[0], setting, member)
        if get_origin(kind) is dict:
            return self._map(kind, setting, member)
        return self._scalar(kind, setting, member)

    def _nested(self, kind: Any, setting: Setting, about: Option) -> Any:
        if not about.shorthand or isinstance(setting.value, dict):
            return self.section(kind, setting)
        member = members(kind)[about.shorthand]
        value = ABSENT
        if isinstance(setting.value, str):
            value = self._value(member.kind, setting, member)
        else:
            self.add([_mismatch(setting, "a string or an object", hidden=True)])
        return ABSENT if value is ABSENT else kind(**{member.name: value})

    def _list(self, kind: Any, setting: Setting, member: Member) -> Any:
        if not isinstance(setting.value, list):
            self.add([_mismatch(setting, member.option.expected or "a list", hidden=True)])
            return ABSENT
        if self._is_too_long(setting, len(setting.value)):
            return ABSENT
        items = (Setting(f"{setting.path}[{n}]", item) for n, item in enumerate(setting.value))
        read = tuple([self._value(kind, item, member) for item in items])
        return ABSENT if ABSENT in read else read  # a gap would shift the indexes of later items

    def _map(self, kind: Any, setting: Setting, member: Member) -> Any:
        if not isinstance(setting.value, dict):
            self.add([_mismatch(setting, "an object", hidden=True)])
            return ABSENT
        if kind == JsonObject:
            return setting.value
        if self._is_too_long(setting, len(setting.value)):
            return ABSENT
        made: dict[str, object] = {}
        for key, item in setting.value.items():
            at = Setting(join(setting.path, _cut(key)), item)
            if not key or len(key) > MAX_NAME:
                found = f"a name of {len(key)} characters"
                self.add([wrong(at, f"a name of 1 to {MAX_NAME} characters", found=found)])
            elif (value := self._value(get_args(kind)[1], at, member)) is not ABSENT:
                made[key] = value
        return made

    def _is_too_long(self, setting: Setting, length: int) -> bool:
        if length > MAX_ITEMS:
            self.add([wrong(setting, f"at most {MAX_ITEMS} entries", found=str(length))])
        return length > MAX_ITEMS

    def _scalar(self, kind: Any, setting: Setting, member: Member) -> Any:
        value, about = setting.value, member.option
        if kind in (int, float) and isinstance(value, int | float) and not isinstance(value, bool):
            return self._number(kind, value, setting, member)
        if get_origin(kind) is Literal:
            fits = isinstance(value, str) and value in get_args(kind)
        elif kind is str:
            fits = isinstance(value, str) and value != ""
        else:
            fits = kind is bool and isinstance(value, bool)
        if fits:
            return value
        self.add([_mismatch(setting, about.expected or _wanted(kind, about), about.secret)])
        return ABSENT

    def _number(self, kind: Any, value: float, setting: Setting, member: Member) -> Any:
        """Returns the number clamped to its range, or `ABSENT`."""
        about = member.option
        low = -math.inf if about.low is None else about.low
        high = math.inf if about.high is None else about.high
        whole = isinstance(value, int) or value.is_integer()
        usable = whole and value >= min(low, 1) if kind is int else abs(value) < 1e308
        if not usable:
            default = member.default
            used = f"{default} is used" if isinstance(default, int | float) else "it is ignored"
            self._clamped(setting, about, f"is not {_wanted(kind, about)}", used)
            return ABSENT
        if value < low or value > high:
            used = about.low if value < low else about.high
            word = f"is under {used}" if value < low else f"is over {used}"
            self._clamped(setting, about, word, f"{used} is used")
            return used
        return kind(value)

    def _clamped(self, setting: Setting, about: Option, why: str, used: str) -> None:
        shown = "a number" if about.secret else show(setting.value)
        self.add([ConfigWarning(setting.path, f"{shown} {why}: {used}")])


def _too_many(issue: Issue) -> Issue:
    text = f"more problems of this kind follow; only the first {MAX_PROBLEMS} are shown"
    if isinstance(issue, ConfigWarning):
        return ConfigWarning(issue.path, text)
    return ConfigurationError(f"{issue.path}: {text}", path=issue.path)


def _mismatch(setting: Setting, expected: str, hidden: bool) -> ConfigurationError:
    return wrong(setting, expected, found=kind_of(setting.value) if hidden else "")


def kind_of(value: JsonValue) -> str:
    """Describes a value without quoting it: the value may contain a secret."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if value == "" or value == []:
        return "an empty string" if value == "" else "an empty list"
    kinds: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}
    return kinds.get(type(value), "a number")


def _wanted(kind: Any, about: Option) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(json.dumps(choice) for choice in get_args(kind))
    if kind is int and about.low is not None:
        return "a positive integer or 0" if about.low == 0 else "a positive integer"
    names = {bool: "true or false", str: "a string that is not empty", int: "an integer"}
    return names.get(kind, "a number")


def _cut(key: str) -> str:
    # Three dots, because a path quotes keys as JSON, which escapes the character "…".
    return key if len(key) <= MAX_NAME else shorten(key, 43, "...")


# ---- JSON Schema ----


def schema_of(kind: type[Section]) -> JsonObject:
    """Returns the JSON Schema of a section."""
    properties: JsonObject = {}
    required: list[JsonValue] = []
    for key, member in members(kind).items():
        about = member.option
        described = dict(about.schema or type_schema(member.kind, about))
        described["description"] = about.help
        unset = about.unset if member.default is None else member.default
        if isinstance(unset, str | int | float | bool) and unset != "" and not about.required:
            described["default"] = unset
        if about.secret:
            described["writeOnly"] = True
        properties[key] = described
        if about.required:
            required.append(key)
    made: JsonObject = {"type": "object", "properties": properties, "additionalProperties": False}
    return made | ({"required": required} if required else {})


def type_schema(kind: Any, about: Option) -> JsonObject:
    """Returns the JSON Schema of the type of a field."""
    if is_section(kind):
        of: Any = kind
        whole = schema_of(of)
        if not about.shorthand:
            return whole
        member = members(of)[about.shorthand]
        return {"anyOf": [type_schema(member.kind, member.option), whole]}
    if kind == JsonValue:
        return {}
    if kind == JsonObject:
        return {"type": "object"}
    if get_origin(kind) is tuple:
        items = type_schema(get_args(kind)[0], about)
        return {"type": "array", "items": items, "maxItems": MAX_ITEMS}
    if get_origin(kind) is dict:
        return {
            "type": "object",
            "propertyNames": {"minLength": 1, "maxLength": MAX_NAME},
            "additionalProperties": type_schema(get_args(kind)[1], about),
            "maxProperties": MAX_ITEMS,
        }
    return _scalar_schema(kind, about)


def _scalar_schema(kind: Any, about: Option) -> JsonObject:
    if get_origin(kind) is Literal:
        return {"enum": list(get_args(kind))}
    if kind is str:
        return {"type": "string", "minLength": 1}
    if kind is bool:
        return {"type": "boolean"}
    made: JsonObject = {"type": "integer" if kind is int else "number"}
    if about.low is not None:
        made["minimum"] = about.low
    if about.high is not None:
        made["maximum"] = about.high
    return made
