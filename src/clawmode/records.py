"""Models of JSON that people and other programs write, and readable errors about such JSON.

`Record` is the base class of JSON objects on disk and on the wire, and `parse` reads them.
`Section` is the base class of the sections of a configuration, and `read` reads them: it returns a
section for any JSON value, with all errors and warnings. A value of the wrong type is an error. A
number out of its range is clamped, an unknown key is ignored, and both are warnings.

A message names the path of a value, the value and what was expected. It never quotes a secret, an
object or a list.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, Self, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from clawmode.exceptions import ConfigurationError, ConfigWarning
from clawmode.text import kind_of, nearest, shorten, show
from clawmode.types import JsonObject, JsonValue, copy_json

T = TypeVar("T")
S = TypeVar("S", bound="Section")

MAX_PROBLEMS = 100
"""The maximum number of errors, and of warnings, that are reported."""

MAX_ITEMS = 2000
"""The maximum number of entries of a list, or of an object with keys that operators choose."""

MAX_NAME = 200
"""The maximum length of a key that operators choose, such as the id of a provider."""

MAX_PASSES = 20


# ---- Messages ----


Issue: TypeAlias = ConfigurationError | ConfigWarning


class Issues:
    """Collects errors and warnings without repetitions, up to `MAX_PROBLEMS` of each."""

    def __init__(self) -> None:
        self.errors: list[ConfigurationError] = []
        self.warnings: list[ConfigWarning] = []
        self._messages: set[str] = set()

    def add(self, issues: Iterable[Issue]) -> None:
        for issue in issues:
            known: list[Any] = self.warnings if isinstance(issue, ConfigWarning) else self.errors
            if str(issue) in self._messages or len(known) > MAX_PROBLEMS:
                continue
            self._messages.add(str(issue))
            if len(known) == MAX_PROBLEMS:
                text = f"more problems of this kind follow; only the first {MAX_PROBLEMS} are shown"
                issue = (
                    ConfigWarning(issue.path, text)
                    if isinstance(issue, ConfigWarning)
                    else ConfigurationError(f"{issue.path}: {text}", path=issue.path)
                )
            known.append(issue)


def wrong(path: str, expected: str, found: str) -> ConfigurationError:
    """Returns the error for an invalid value."""
    text = f"{path}: found {found}, expected {expected}"
    return ConfigurationError(text.removeprefix(": "), path=path, expected=expected)


def join(path: str, key: str | int) -> str:
    """Returns the path of a member, with brackets if the key is not a plain word."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if re.fullmatch(r"[A-Za-z_$][A-Za-z0-9_$]*", key):
        return f"{path}.{key}" if path else key
    return f"{path}[{json.dumps(key)}]"


# ---- Types of fields ----


class _NotNull:
    """Rejects null in the input. In Python, None means that the field is not set."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema: Any = handler(source)
        return schema["schema"] if schema["type"] == "nullable" else schema


Maybe: TypeAlias = Annotated[T | None, _NotNull()]
"""A field that is None if it is absent, and that does not accept null."""

Items: TypeAlias = Annotated[tuple[T, ...], Field(strict=False)]
"""A list, read into a tuple. (A strict tuple would reject a list.)"""

Text: TypeAlias = Annotated[str, Field(min_length=1)]


Number: TypeAlias = Annotated[float, Field(strict=True)]
Whole: TypeAlias = Annotated[int, Field(strict=True)]
Flag: TypeAlias = Annotated[bool, Field(strict=True)]
"""For dataclasses: a dataclass that is strict as a whole would reject objects."""

CAMEL = ConfigDict(alias_generator=to_camel, validate_by_alias=True, validate_by_name=True)
"""The `__pydantic_config__` of a dataclass with keys in camel case."""

AnyJson: TypeAlias = Annotated[JsonValue, GetPydanticSchema(lambda *_: core_schema.any_schema())]
AnyObject: TypeAlias = Annotated[
    JsonObject, GetPydanticSchema(lambda *_: core_schema.dict_schema(strict=True))
]
"""JSON of any depth. It is not looked into, so its depth cannot exceed a limit."""


def secret(default: Any = None, **more: Any) -> Any:
    """Declares a field whose value must not be quoted in messages or in `repr`."""
    return Field(default, repr=False, json_schema_extra={"writeOnly": True}, **more)


# ---- Records ----


class Record(BaseModel):
    """The base class of JSON objects.

    Keys are the names of the fields in camel case. Types are not coerced: `"5"` is not a number.
    Unknown keys are ignored; a subclass can reject them by `model_config = {"extra": "forbid"}`.
    Write lists as `Items[…]`.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        serialize_by_alias=True,
        allow_inf_nan=False,
        # Models are built when they are first used: building all of them would slow down imports.
        defer_build=True,
    )


@cache
def adapter(kind: type[T]) -> TypeAdapter[T]:
    """Returns the reader and writer of a type."""
    return TypeAdapter(kind)


def parse(kind: type[T], value: object, path: str = "") -> T:
    """Reads a JSON value.

    Args:
        kind: A `Record`, or any other type that pydantic supports.
        value: The parsed JSON, or the text as bytes.
        path: The path of the value in messages.

    Raises:
        ConfigurationError: The value does not fit. The message lists all mistakes.
    """
    reader = adapter(kind)
    try:
        if isinstance(value, bytes):
            return reader.validate_json(value)
        return reader.validate_python(value)
    except ValidationError as error:
        found = errors_of(error, kind, path)
        text = "; ".join(map(str, found[:5])) + ("; …" if len(found) > 5 else "")
        raise ConfigurationError(text, path=found[0].path, expected=found[0].expected) from None


def errors_of(error: ValidationError, kind: Any, path: str = "") -> list[ConfigurationError]:
    """Translates an exception of pydantic into one error for each mistake, within limits."""
    issues = Issues()
    issues.add(mistake.error() for mistake in _mistakes(error, kind, path))
    return issues.errors


def _mistakes(error: ValidationError, kind: Any, path: str) -> Iterator["_Mistake"]:
    schema = _internal_schema(kind)
    return (_Mistake(detail, schema, path) for detail in error.errors(include_url=False))


class _Mistake:
    """One mistake that pydantic found, and the JSON Schema of its place.

    Attributes:
        place: The keys and indexes that lead to the value.
        node: The schema of the value; empty if the schema does not know the place.
        holder: The schema of the object that contains the value.
    """

    def __init__(self, detail: Mapping[str, Any], schema: JsonObject, path: str) -> None:
        self.type: str = detail["type"]
        self.value: Any = detail["input"]
        self.context: Mapping[str, Any] = detail.get("ctx", {})
        self.message: str = detail["msg"]
        self.path = path
        self.place: tuple[str | int, ...] = ()
        self.node: Mapping[str, Any] = _resolved(schema, schema)
        self.holder = self.node
        self.is_secret = False
        self.of_key = "[key]" in detail["loc"][-1:]
        for part in detail["loc"][: -1 if self.of_key else None]:
            if "discriminator" in self.node:  # pydantic names the tag of the chosen type
                mapping = self.node["discriminator"]["mapping"]
                self.node = _resolved(schema, {"$ref": mapping.get(part, "")})
                continue
            self.place += (part,)
            self.path = join(self.path, _cut(part) if isinstance(part, str) else part)
            self.holder = self.node
            self.node = _resolved(schema, _child(self.node, part))
            self.is_secret = self.is_secret or self.node.get("writeOnly") is True

    def error(self) -> ConfigurationError:
        if self.type in ("value_error", "assertion_error"):  # raised by a validator of ours
            text = str(self.context["error"])
            return ConfigurationError(f"{self.path}: {text}".removeprefix(": "), path=self.path)
        expected, found = _expected(self.node), ""
        if self.of_key:
            expected = f"a name of 1 to {MAX_NAME} characters"
            found = f"a name of {len(self.value)} characters"
        elif self.type == "missing":
            found = "nothing"
        elif self.type == "extra_forbidden":
            expected, found = "no such key", kind_of(self.value)
        elif self.type == "too_long":
            expected, found = f"at most {self.context['max_length']} entries", str(len(self.value))
        elif self.type == "string_unicode":
            expected, found = "Unicode text", "half of a surrogate pair"
        elif self.type == "json_invalid":
            expected, found = "JSON", f"other text ({self.context['error']})"
        elif self.is_secret or self.node.get("type") not in _SCALARS:
            found = kind_of(self.value)
        return wrong(self.path, expected, found or show(self.value))

    def unknown_key(self) -> ConfigWarning:
        """Returns the warning about a key that a section does not have."""
        key = str(self.place[-1])
        if not (text := self.holder.get("ignored", {}).get(key, "")):
            near = nearest(key, self.holder.get("properties", {}), cutoff=0.0)
            text = f"unknown key, it has no effect; the nearest known one is {near}"
        return ConfigWarning(self.path, text)

    def clamped(self) -> tuple[ConfigWarning | None, Any]:
        """Returns the warning about a number, and the number to use; `ABSENT` for the default."""
        low, high = self.node.get("minimum", 0), self.node.get("maximum", 0)
        is_integer = self.node["type"] == "integer"
        if is_integer and isinstance(self.value, float) and self.value.is_integer():
            return None, int(self.value)  # JSON allows 1e4; the range is checked in the next pass
        if self.type == "less_than_equal":
            used, why = high, f"is over {high}: {high} is used"
        elif self.type == "greater_than_equal" and not (is_integer and self.value < min(low, 1)):
            used, why = low, f"is under {low}: {low} is used"
        else:
            default = self.node.get("default")
            instead = "it is ignored" if default is None else f"{default} is used"
            used, why = ABSENT, f"is not {_expected(self.node)}: {instead}"
        shown = "a number" if self.is_secret else show(self.value)
        return ConfigWarning(self.path, f"{shown} {why}"), used


_SCALARS = ("string", "integer", "number", "boolean")
_NUMBERS = ("int_type", "float_type", "finite_number", "greater_than_equal", "less_than_equal")


def _cut(key: str) -> str:
    # Three dots, because a path quotes keys as JSON, which escapes the character "…".
    return key if len(key) <= MAX_NAME else shorten(key, 43, "...")


def _resolved(schema: Mapping[str, Any], node: Any) -> Mapping[str, Any]:
    """Follows references, and takes the alternative to null."""
    while isinstance(node, dict):
        others = [each for each in node.get("anyOf", ()) if each.get("type") != "null"]
        if "$ref" in node:
            target = schema["$defs"].get(node["$ref"].rpartition("/")[2], {})
            node = target | {key: value for key, value in node.items() if key != "$ref"}
        elif len(others) == 1:
            node = others[0] | {key: value for key, value in node.items() if key != "anyOf"}
        else:
            return node
    return {}


def _child(node: Mapping[str, Any], part: str | int) -> Any:
    if isinstance(part, int):
        return node.get("items")
    return node.get("properties", {}).get(part, node.get("additionalProperties"))


def _expected(node: Mapping[str, Any]) -> str:
    """Describes the values that a schema accepts."""
    kind = node.get("type")
    if "title" in node:
        return node["title"]
    if "enum" in node or "const" in node:
        return " or ".join(map(json.dumps, node.get("enum", [node.get("const")])))
    if isinstance(kind, list):
        return "a string or an object" if "string" in kind else "true, false or an object"
    if kind == "integer" and node.get("minimum", -1) >= 0:
        return "a positive integer" if node["minimum"] else "a positive integer or 0"
    if kind == "string" and "minLength" in node:
        return "a string that is not empty"
    names = {"string": "a string", "integer": "an integer", "boolean": "true or false"}
    names |= {"number": "a number", "object": "an object", "array": "a list", "null": "null"}
    return names.get(kind or "", "another value")


# ---- JSON Schema ----


class _SchemaGenerator(GenerateJsonSchema):
    """Makes schemas without titles that only repeat names, and with scalar defaults only."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - theirs

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        made = super().model_schema(schema)
        made.pop("title", None)
        short = getattr(schema["cls"], "SHORT", None)
        if short is not None:
            member = made["properties"][short[1]]
            made["type"] = [member["type"], "object"]
            made |= {"minLength": 1} if "minLength" in member else {}
        return made

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        made = super().default_schema(schema)
        if not isinstance(made.get("default"), str | int | float) or made["default"] == "":
            made.pop("default", None)
        return made


class _InternalGenerator(_SchemaGenerator):
    """Adds the keys that a section ignores, with the warning about each."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        made = super().model_schema(schema)
        return made | {"ignored": dict(getattr(schema["cls"], "IGNORED", {}))}


def schema_of(kind: Any) -> JsonObject:
    """Returns the JSON Schema of a type. It accepts what is read without an error or a warning."""
    return adapter(kind).json_schema(schema_generator=_SchemaGenerator)


@cache
def _internal_schema(kind: Any) -> JsonObject:
    return adapter(kind).json_schema(schema_generator=_InternalGenerator)


# ---- Sections ----

ABSENT: Any = object()

Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class Section(Record):
    """The base class of the sections of a configuration. `read` reads them.

    A field that was not set holds its default; `model_fields_set` has the fields that were set.
    """

    model_config = ConfigDict(extra="forbid")

    IGNORED: ClassVar[Mapping[str, str]] = {}
    """Known keys that have no effect, with the warning about each."""

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
    issues = Issues()
    section = _validated(kind, value, path, issues)
    bad = [error.path for error in issues.errors]
    # A problem that follows from an invalid value is not reported: it will vanish with its cause.
    issues.add(
        issue
        for issue in _checks(section, path)
        if not any(issue.path.startswith(p) or p.startswith(issue.path) for p in bad)
    )
    return ReadResult(section, issues.errors, issues.warnings)


def _validated(kind: type[S], value: Any, path: str, issues: Issues) -> S:
    """Validates a value again and again, without the parts that were invalid so far."""
    for attempt in range(MAX_PASSES):
        try:
            return kind.model_validate(value)
        except ValidationError as error:
            value = value if attempt else copy_json(value)
            known = {issue.path for issue in issues.errors}
            for mistake in _mistakes(error, kind, path):
                value = _repaired(value, mistake, issues, known)
    return kind()


def _repaired(value: Any, mistake: _Mistake, issues: Issues, known: set[str]) -> Any:
    """Reports a mistake, and returns the value without it."""
    place, used = mistake.place, ABSENT
    if mistake.type == "extra_forbidden":
        if len(issues.warnings) <= MAX_PROBLEMS:  # the search for the nearest key is slow
            issues.add([mistake.unknown_key()])
    elif mistake.type in _NUMBERS and type(mistake.value) in (int, float):
        warning, used = mistake.clamped()
        issues.add([warning] if warning else [])
    elif mistake.path not in known:
        issues.add([mistake.error()])
    if mistake.type == "string_unicode":
        return json.loads(json.dumps(value).encode("utf-8", "replace"))
    if mistake.type == "missing":
        # A placeholder keeps the rest of the object, so that its mistakes are found as well.
        used = {"string": "?", "array": ["?"]}.get(mistake.node.get("type", ""), ABSENT)
        place = place[:-1] if used is ABSENT else place
    return _replaced(value, place, used)


def _replaced(value: Any, place: tuple[str | int, ...], used: Any) -> Any:
    """Sets or removes the value at a place. A list is removed as a whole, to keep its indexes."""
    holders: list[Any] = [value]
    for part in place[:-1]:
        if part not in holders[-1] and isinstance(part, str):
            break  # an earlier repair has removed it, or a short form stands there
        holders.append(holders[-1][part])
    for holder, part in reversed(list(zip(holders, place, strict=False))):
        if used is not ABSENT:
            holder[part] = used
            return value
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
