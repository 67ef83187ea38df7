"""The base class of the sections of a configuration, and `read`, which reads them.

`read` returns a section for any JSON value, with all errors and warnings. A value of the wrong type
is an error. A number out of its range is clamped, an unknown key is ignored, and both are warnings.
Messages are those of `records`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import ConfigDict, Field, ValidationError, model_validator

from clawmode.exceptions import ConfigurationError, ConfigWarning
from clawmode.records import (
    MAX_PROBLEMS,
    SCALARS,
    Issue,
    Issues,
    Mistake,
    Record,
    expected_by,
    join,
    mistakes_of,
)
from clawmode.text import nearest, show
from clawmode.types import JsonObject, JsonValue, copy_json, dataclass

S = TypeVar("S", bound="Section")

MAX_PASSES = 20


UNKNOWN_KEY = "unknown key, it has no effect; the nearest known one is"

_NUMBERS = ("int_type", "float_type", "finite_number", "greater_than_equal", "less_than_equal")

ABSENT: Any = object()

READING = "reading"
"""The context of pydantic's validators while `read` collects errors and warnings."""


def option(
    help: str,
    default: Any = None,
    *,
    low: int | None = None,
    high: int | None = None,
    key: str | None = None,
    expected: str | None = None,
    required: bool = False,
    secret: bool = False,
    schema: JsonObject | None = None,
) -> Any:
    """Declares a field of a section.

    Args:
        help: The description in the JSON Schema, one line.
        default: The value of an absent field; a class is called to make the value.
        low: The minimum of a number.
        high: The maximum of a number.
        key: The key in the file, if it is not the field's name in camel case.
        expected: The description of a valid value in error messages.
        required: True if an absent key is an error.
        secret: True if the value must not be quoted in messages or in `repr`.
        schema: More keywords for the JSON Schema.
    """
    more: dict[str, Any] = {"default": default}
    if required or isinstance(default, type):
        # Defaults are valid: validating a section takes much longer, above all the first time.
        is_section = isinstance(default, type) and issubclass(default, Section)
        make = default.model_construct if is_section else default
        more = {} if required else {"default_factory": make}
    return Field(
        **more,
        description=help,
        ge=low,
        le=high,
        alias=key,
        title=expected,
        repr=not secret,
        json_schema_extra=(schema or {}) | ({"writeOnly": True} if secret else {}),
    )


class Section(Record):
    """The base class of the sections of a configuration. `read` reads them.

    A field that was not set holds its default; `model_fields_set` has the fields that were set.
    """

    model_config = ConfigDict(extra="forbid")

    IGNORED: ClassVar[Mapping[str, str]] = {}
    """Known keys that have no effect, with the warning about each."""

    RESETS: ClassVar = False
    """True if an unusable number means the default. Otherwise it counts as not set, so that an
    agent inherits the global value."""

    SHORT: ClassVar[tuple[type, str] | None] = None
    """The type of a value that is short for an object with a single key, and that key."""

    def check(self, path: str) -> Iterator[Issue]:
        """Yields errors and warnings about the combination of fields."""
        yield from ()

    def over(self, inherited: "Section") -> Self:
        """Returns a copy in which unset fields have the values that were set in another section."""
        used = {
            name: getattr(inherited, name)
            for name in inherited.model_fields_set & type(self).model_fields.keys()
        }
        for name in self.model_fields_set:
            own, other = getattr(self, name), used.get(name)
            is_both = isinstance(own, Section) and isinstance(other, Section)
            used[name] = own.over(other) if is_both else own
        return type(self).model_construct(**used)

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        if cls.SHORT is not None and isinstance(value, cls.SHORT[0]):
            return {cls.SHORT[1]: value}
        return value


def keys_of(kind: type[Section]) -> dict[str, str]:
    """Returns the names of the fields of a section by their keys in the file."""
    return {about.alias or name: name for name, about in kind.model_fields.items()}


def is_secret(kind: type[Section], name: str) -> bool:
    """True if a field was declared as a secret."""
    extra = kind.model_fields[name].json_schema_extra
    return isinstance(extra, dict) and "writeOnly" in extra


def unused(*keys: str) -> dict[str, str]:
    """Returns entries of `IGNORED` for OpenClaw's keys that clawmode does not implement."""
    return dict.fromkeys(keys, "is not used by clawmode")


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
    """Reads a section from any JSON value. An invalid value counts as absent."""

    def validate(value: Any) -> S:
        if value == {} and not any(about.is_required() for about in kind.model_fields.values()):
            return kind.model_construct()  # so that pydantic need not build validators
        # Keys in a file are never the names of the fields in Python.
        return kind.model_validate(value, context=READING, by_name=False)

    section, issues = repair(kind, value, path, validate)
    bad = [error.path for error in issues.errors]
    # A problem that follows from an invalid value is not reported: it will vanish with its cause.
    issues.add(
        issue
        for issue in _checks(section, path)
        if not any(issue.path.startswith(p) or p.startswith(issue.path) for p in bad)
    )
    return ReadResult(section, issues.errors, issues.warnings)


def repair(kind: type[S], value: Any, path: str, validate: Callable[[Any], S]) -> tuple[S, Issues]:
    """Validates a value again and again, each time without the parts that were invalid so far.

    Pydantic reports all mistakes of one kind at once, with their places, but no warnings. So
    everything that deserves a warning is a mistake at first, and is accepted after its repair.
    """
    issues = Issues()
    for attempt in range(MAX_PASSES):
        try:
            return validate(value), issues
        except ValidationError as error:
            value = value if attempt else copy_json(value)
            known = {issue.path for issue in issues.errors}
            for mistake in mistakes_of(error, kind, path):
                value = _repaired(value, mistake, issues, known)
    return kind(), issues


def _repaired(value: Any, mistake: Mistake, issues: Issues, known: set[str]) -> Any:
    """Reports a mistake, and returns the value without it."""
    place, used = mistake.place, ABSENT
    if mistake.type == "extra_forbidden":
        if len(issues.warnings) <= MAX_PROBLEMS:  # the search for the nearest key is slow
            key = str(mistake.place[-1])
            if not (text := mistake.holder.get("ignored", {}).get(key, "")):
                near = nearest(key, mistake.holder.get("properties", {}), cutoff=0.0)
                text = f"{UNKNOWN_KEY} {near}"
            issues.add([ConfigWarning(mistake.path, text)])
    elif mistake.type in _NUMBERS and type(mistake.value) in (int, float):
        warning, used = _clamped(mistake)
        issues.add([warning] if warning else [])
    elif mistake.type == "string_unicode" and mistake.node.get("type") not in SCALARS:
        return _with_unicode_keys(value)
    elif mistake.path not in known:
        issues.add([mistake.error()])
    node = mistake.node
    placeholder = {"string": "?", "array": ["?"]}.get(str(node.get("type")), ABSENT)
    if mistake.type == "missing":
        # A placeholder keeps the rest of the object, so that its mistakes are found as well.
        used = next(iter(node.get("enum", ())), node.get("const", placeholder))
    was_refused = mistake.path in known and mistake.value == placeholder
    if used is ABSENT and (mistake.type == "missing" or was_refused):
        place = place[:-1]
    return _replaced(value, place, used)


def _clamped(mistake: Mistake) -> tuple[ConfigWarning | None, Any]:
    """Returns the warning about a number, and the number to use instead, or `ABSENT`."""
    number, is_integer = mistake.value, mistake.node["type"] == "integer"
    if is_integer and isinstance(number, float) and number.is_integer():
        number = int(number)  # JSON allows 1e4
    low = mistake.context.get("ge", mistake.node.get("minimum", -math.inf))
    high = mistake.context.get("le", mistake.node.get("maximum", math.inf))
    is_usable = isinstance(number, int) if is_integer else abs(number) < 1e308
    if not is_usable or number < (min(low, 1) if is_integer else -math.inf):
        used = mistake.node.get("default", ABSENT) if mistake.holder.get("resets") else ABSENT
        instead = "it is ignored" if used is ABSENT else f"{used} is used"
        why = f"is not {expected_by(mistake.node)}: {instead}"
    elif low <= number <= high:
        return None, number
    else:
        used, word = (low, "under") if number < low else (high, "over")
        why = f"is {word} {used}: {used} is used"
    shown = "a number" if mistake.is_secret else show(mistake.value)
    return ConfigWarning(mistake.path, f"{shown} {why}"), used


def _with_unicode_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key.encode("utf-8", "replace").decode(): _with_unicode_keys(item)
            for key, item in value.items()
        }
    return [_with_unicode_keys(item) for item in value] if isinstance(value, list) else value


def _replaced(value: Any, place: tuple[str | int, ...], used: Any) -> Any:
    """Sets or removes the value at a place. A list is removed as a whole, to keep its indexes."""
    holders: list[Any] = [value]
    for part in place[:-1]:
        holder = holders[-1]
        if type(holder) is dict and part not in holder:
            return value  # an earlier repair has removed it
        if type(holder) not in (dict, list):
            break  # a short form stands for an object
        holders.append(holder[part])
    else:
        if used is not ABSENT and type(holders[-1]) in (dict, list):
            holders[-1][place[-1]] = used
            return value
    for holder, part in reversed(list(zip(holders, place, strict=False))):
        if type(holder) is dict:
            holder.pop(part, None)
            return value
    return dict[str, Any]()


def _checks(value: Any, path: str) -> Iterator[Issue]:
    if isinstance(value, Section):
        for name, about in type(value).model_fields.items():
            yield from _checks(getattr(value, name), join(path, about.alias or name))
        yield from value.check(path)
    elif type(value) in (tuple, dict):
        for key, item in value.items() if type(value) is dict else enumerate(value):
            if isinstance(item, Section):
                yield from _checks(item, join(path, key))
