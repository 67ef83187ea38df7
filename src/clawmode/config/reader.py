"""Sections of the configuration as dataclasses: how one is read, and the JSON Schema of it.

A section is a frozen dataclass whose fields say by `option` what may stand there. Whatever JSON it
is read from, the outcome is a section, errors and warnings. A value of the wrong type is an error;
a number out of its range is brought into it, an unknown key has no effect, and both are warnings.
What is said never quotes a secret, nor anything that stands where an object or a list should.

The schema describes what is taken as it stands: no error, no warning.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

from clawmode.code_mode.config import ConfigWarning, Setting, join, show, unknown_key, wrong
from clawmode.exceptions import ConfigurationError
from clawmode.text import shorten
from clawmode.types import JsonObject, JsonValue

MAX_PROBLEMS = 100
"""How many errors are told, and how many warnings: who has more does not read them."""

MAX_ITEMS = 2000
"""How many entries a list may have, or an object whose keys an operator chooses."""

MAX_NAME = 200
"""The length of a key that an operator chooses, such as the id of a provider."""

NOT_USED = "is not used by clawmode"

Hook: TypeAlias = Callable[["Reader", Setting], object]
Told: TypeAlias = ConfigurationError | ConfigWarning
S = TypeVar("S", bound="Section")


class Section:
    """What all sections have in common."""

    __slots__ = ()

    ASIDE: ClassVar[Mapping[str, str]] = {}
    """Keys that have no effect here, and what to say of them instead of that they are unknown."""

    def check(self, path: str) -> Iterator[Told]:
        """What is wrong with the section as a whole."""
        yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What a field of a section takes; see `option`."""

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
    """Keys of the product whose names we follow, for which we have nothing: for `ASIDE`."""
    return dict.fromkeys(keys, NOT_USED)


def option(help: str, default: object = None, **more: Any) -> Any:
    """A field of a section.

    Args:
        help: One line about it.
        default: The field's value if it is not set; a class is called to make one.
        more: Of `Option`:
            key: The name in the file, if it is not the field's in camel case.
            low, high: The range of a number, or of the numbers in a list or map.
            unset: What is used if it is not set, where that is not `default`.
            expected: What to say that it should be.
            required: It must be there.
            secret: Its value is neither quoted nor part of a `repr`.
            shorthand: The key, in the section that stands here, which a bare value is short for.
            hook: Reads it instead of the reader; what it returns may be `ABSENT`.
            schema: Its JSON Schema, with a hook.
    """
    about = Option(help=help, **more)
    metadata = {"option": about}
    if isinstance(default, type):
        return field(default_factory=default, repr=not about.secret, metadata=metadata)
    return field(default=default, repr=not about.secret, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a section: its name in Python, its type, what it takes."""

    name: str
    kind: Any
    option: Option
    default: Any


@cache
def members(kind: type[Section]) -> dict[str, Member]:
    """The fields of a section by their keys in the file."""
    made: dict[str, Member] = {}
    of: Any = kind
    for it in fields(of):
        about: Option = it.metadata["option"]
        key = about.key or re.sub(r"_(\w)", lambda match: match[1].upper(), it.name)
        default = it.default if it.default_factory is MISSING else it.default_factory()
        made[key] = Member(it.name, _bare(it.type), about, default)
    return made


def is_section(kind: Any) -> bool:
    """Whether a type is that of a section."""
    return isinstance(kind, type) and issubclass(kind, Section)


def _bare(kind: Any) -> Any:
    """The type without `| None`: null is no value for any field."""
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
    return kind


# ---- Reading ----

ABSENT: Any = object()
"""What a value that cannot be used is read as: the default takes its place."""


@dataclass(frozen=True, slots=True)
class Found(Generic[S]):
    """A section, and all that is to say about what it was read from.

    With errors the section is not to be used.
    """

    section: S
    errors: list[ConfigurationError]
    warnings: list[ConfigWarning]

    def unwrap(self) -> S:
        """The section; raises the first error."""
        if self.errors:
            raise self.errors[0]
        return self.section


def read(kind: type[S], value: JsonValue, path: str = "") -> Found[S]:
    """Reads a section from any JSON."""
    reader = Reader()
    section = reader.section(kind, Setting(path, value))
    return Found(section, reader.errors, reader.warnings)


class Reader:
    """Reads sections; what is wrong with them gathers in `errors` and `warnings`."""

    def __init__(self) -> None:
        self.errors: list[ConfigurationError] = []
        self.warnings: list[ConfigWarning] = []
        self._told: set[str] = set()

    def tell(self, said: Iterable[Told]) -> None:
        """Adds errors and warnings, each once, and not more than anybody reads."""
        for it in said:
            told: list[Any] = self.warnings if isinstance(it, ConfigWarning) else self.errors
            if str(it) in self._told or len(told) > MAX_PROBLEMS:
                continue
            self._told.add(str(it))
            told.append(it if len(told) < MAX_PROBLEMS else _too_many(it))

    def section(self, kind: type[S], setting: Setting) -> S:
        """Reads a section; one that is no object is the default one."""
        make: Any = kind
        if not isinstance(setting.value, dict):
            self.tell([_mismatch(setting, "an object", hidden=True)])
            return make()
        known = members(kind)
        self.unknown(setting, known, kind.ASIDE)
        values: dict[str, object] = {}
        for key, member in known.items():
            if key in setting.value:
                at = Setting(join(setting.path, key), setting.value[key])
                value = self._value(member.kind, at, member)
                if value is not ABSENT:
                    values[member.name] = value
            elif member.option.required:
                at = Setting(join(setting.path, key), None)
                self.tell([wrong(at, member.option.expected or "a value", found="nothing")])
        made: S = make(**values)
        self.tell(made.check(setting.path))
        return made

    def unknown(
        self, setting: Setting, known: Mapping[str, object], aside: Mapping[str, str]
    ) -> None:
        """Warns of the keys of an object that nobody reads."""
        assert isinstance(setting.value, dict)
        for key in setting.value:
            if len(self.warnings) > MAX_PROBLEMS:
                return  # to look for the nearest key takes its time
            if key in known:
                continue
            said = aside.get(key) or unknown_key(key, known)
            self.tell([ConfigWarning(join(setting.path, _cut(key)), said)])

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
            self.tell([_mismatch(setting, "a string or an object", hidden=True)])
        return ABSENT if value is ABSENT else kind(**{member.name: value})

    def _list(self, kind: Any, setting: Setting, member: Member) -> Any:
        if not isinstance(setting.value, list):
            self.tell([_mismatch(setting, member.option.expected or "a list", hidden=True)])
            return ABSENT
        if self._is_too_long(setting, len(setting.value)):
            return ABSENT
        at = (Setting(f"{setting.path}[{n}]", item) for n, item in enumerate(setting.value))
        read = tuple([self._value(kind, each, member) for each in at])
        return ABSENT if ABSENT in read else read  # with a gap, places would be off

    def _map(self, kind: Any, setting: Setting, member: Member) -> Any:
        if not isinstance(setting.value, dict):
            self.tell([_mismatch(setting, "an object", hidden=True)])
            return ABSENT
        if kind == JsonObject:
            return setting.value
        if self._is_too_long(setting, len(setting.value)):
            return ABSENT
        made: dict[str, object] = {}
        for key, item in setting.value.items():
            at = Setting(join(setting.path, _cut(key)), item)
            if not key or len(key) > MAX_NAME:
                self.tell([wrong(at, f"a name of 1 to {MAX_NAME} characters", found="another")])
            elif (value := self._value(get_args(kind)[1], at, member)) is not ABSENT:
                made[key] = value
        return made

    def _is_too_long(self, setting: Setting, length: int) -> bool:
        if length > MAX_ITEMS:
            self.tell([wrong(setting, f"at most {MAX_ITEMS} entries", found=str(length))])
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
        self.tell([_mismatch(setting, about.expected or _wanted(kind, about), about.secret)])
        return ABSENT

    def _number(self, kind: Any, value: float, setting: Setting, member: Member) -> Any:
        """A number in its range, as close as possible to the one that was given."""
        about = member.option
        low = -math.inf if about.low is None else about.low
        high = math.inf if about.high is None else about.high
        whole = isinstance(value, int) or value.is_integer()
        usable = whole and value >= min(low, 1) if kind is int else abs(value) < 1e308
        if not usable:
            instead = member.default
            used = f"{instead} is used" if isinstance(instead, int | float) else "it is not used"
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
        self.tell([ConfigWarning(setting.path, f"{shown} {why}: {used}")])


def _too_many(it: Told) -> Told:
    text = f"and there are more of this kind: {MAX_PROBLEMS} are told"
    if isinstance(it, ConfigWarning):
        return ConfigWarning(it.path, text)
    return ConfigurationError(f"{it.path}: {text}", path=it.path)


def _mismatch(setting: Setting, expected: str, hidden: bool) -> ConfigurationError:
    return wrong(setting, expected, found=_kind(setting.value) if hidden else "")


def _kind(value: JsonValue) -> str:
    """What a value is, where the value itself is not to be told."""
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
    # Three dots: a path is JSON, which would show an ellipsis as an escape.
    return key if len(key) <= MAX_NAME else shorten(key, 43, "...")


# ---- JSON Schema ----


def schema_of(kind: type[Section]) -> JsonObject:
    """The JSON Schema of a section: what is taken as it stands."""
    properties: JsonObject = {}
    required: list[JsonValue] = []
    for key, member in members(kind).items():
        properties[key] = _member_schema(member)
        if member.option.required:
            required.append(key)
    made: JsonObject = {"type": "object", "properties": properties, "additionalProperties": False}
    return made | ({"required": required} if required else {})


def _member_schema(member: Member) -> JsonObject:
    about = member.option
    made = dict(about.schema or type_schema(member.kind, about))
    made["description"] = about.help
    unset = about.unset if member.default is None else member.default
    if isinstance(unset, str | int | float | bool) and unset != "" and not about.required:
        made["default"] = unset
    if about.secret:
        made["writeOnly"] = True
    return made


def type_schema(kind: Any, about: Option) -> JsonObject:
    """The JSON Schema of a type that a field can have."""
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
