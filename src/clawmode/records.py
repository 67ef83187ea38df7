"""Models of JSON that people and other programs write, and readable errors about such JSON.

`Record` is the base class of JSON objects on disk and on the wire, and `parse` reads them.

A message names the path of a value, the value and what was expected. It never quotes a secret, an
object or a list.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    TypeAdapter,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticCustomError, core_schema

from clawmode.exceptions import ConfigurationError, ConfigWarning
from clawmode.text import kind_of, nearest, shorten, show_plain
from clawmode.types import JsonObject, JsonValue

T = TypeVar("T")

MAX_PROBLEMS = 100
"""The maximum number of errors, and of warnings, that are reported."""

MAX_ITEMS = 2000
"""The maximum number of entries of a list, or of an object with keys that operators choose."""

MAX_NAME = 200
"""The maximum length of a key that operators choose, such as the id of a provider."""

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
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


def _bounded(value: Any) -> Any:
    # Pydantic would first report every mistake inside, each with the whole key.
    if type(value) in (list, dict) and len(value) > MAX_ITEMS:
        raise PydanticCustomError("too_long", "too long", {"max_length": MAX_ITEMS})
    for key in value if type(value) is dict else ():
        if not 0 < len(key) <= MAX_NAME:
            raise PydanticCustomError("key_length", "invalid key", {"key": key})
    return value


Entries: TypeAlias = Annotated[
    tuple[T, ...], Field(strict=False, max_length=MAX_ITEMS), BeforeValidator(_bounded)
]
"""A list in a configuration, of bounded length."""

Named: TypeAlias = Annotated[dict[Name, T], Field(max_length=MAX_ITEMS), BeforeValidator(_bounded)]
"""An object in a configuration with keys that operators choose."""


Number: TypeAlias = Annotated[float, Field(strict=True)]
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
    issues.add(mistake.error() for mistake in mistakes_of(error, kind, path))
    return issues.errors


def mistakes_of(error: ValidationError, kind: Any, path: str) -> Iterator["Mistake"]:
    """Yields the mistakes that an exception of pydantic reports."""
    schema = _internal_schema(kind)
    for detail in error.errors(include_url=False):
        # Pydantic does not count invalid items, so a list of them is also reported as too short.
        if detail["type"] != "too_short" or len(detail["input"]) < detail["ctx"]["min_length"]:
            yield Mistake(detail, schema, path)


class Mistake:
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
        of_key = (self.context["key"],) if self.type == "key_length" else ()
        for part in detail["loc"] + of_key:
            if "discriminator" in self.node:  # pydantic names the tag of the chosen type
                mapping = self.node["discriminator"]["mapping"]
                self.node = _resolved(schema, {"$ref": mapping.get(part, "")})
                continue
            self.place += (part,)
            self.path = join(self.path, _cut(part) if isinstance(part, str) else part)
            self.holder = self.node
            self.node = member_schema(schema, self.node, part)
            self.is_secret = self.is_secret or self.node.get("writeOnly") is True

    def error(self) -> ConfigurationError:
        if self.type in ("value_error", "assertion_error"):  # raised by a validator of ours
            text = str(self.context["error"])
            return ConfigurationError(f"{self.path}: {text}".removeprefix(": "), path=self.path)
        if self.type == "extra_forbidden":
            near = nearest(str(self.place[-1]), self.holder.get("properties", {}), cutoff=0.0)
            text = f"{self.path}: unknown key; the nearest known one is {near}"
            return ConfigurationError(text, path=self.path)
        expected, found = expected_by(self.node), ""
        if self.type == "key_length":
            expected = f"a name of 1 to {MAX_NAME} characters"
            found = f"a name of {len(self.context['key'])} characters"
        elif self.type == "missing":
            found = "nothing"
        elif self.type == "union_tag_invalid":
            tag, known = self.context["discriminator"], self.context["expected_tags"]
            expected, found = f"an object whose {tag} is one of {known}", kind_of(self.value)
        elif self.type == "too_long":
            expected, found = f"at most {self.context['max_length']} entries", str(len(self.value))
        elif self.type == "string_unicode":
            expected, found = "Unicode text", "half of a surrogate pair"
        elif self.type == "json_invalid":
            expected, found = "JSON", f"other text ({self.context['error']})"
        elif self.is_secret or self.node.get("type") not in SCALARS:
            found = kind_of(self.value)
        return wrong(
            self.path, expected, found or show_plain(self.value, self.node.get("enum", ()))
        )


SCALARS = ("string", "integer", "number", "boolean")


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


def member_schema(
    schema: JsonObject, node: Mapping[str, Any], part: str | int
) -> Mapping[str, Any]:
    """Returns the schema of a member of an object or a list; empty if the schema has none.

    Args:
        schema: The whole schema.
        node: The part of the schema that describes the object or the list.
        part: The key or the index of the member.
    """
    if isinstance(part, int):
        return _resolved(schema, node.get("items"))
    members = node.get("properties", {})
    # In Python, a field can also be given by its name.
    found = members.get(part) or members.get(to_camel(part)) or node.get("additionalProperties")
    return _resolved(schema, found)


def expected_by(node: Mapping[str, Any]) -> str:
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
        default = made.get("default")
        if not isinstance(default, str | int | float) or default == "":
            made.pop("default", None)
        elif isinstance(default, int) and default < made.get("minimum", default):
            del made["default"]  # means that the default depends on something else
        return made


class _InternalGenerator(_SchemaGenerator):
    """Adds `IGNORED` and `RESETS` of sections."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        made = super().model_schema(schema)
        kind = schema["cls"]
        ignored, resets = getattr(kind, "IGNORED", {}), getattr(kind, "RESETS", False)
        return made | {"ignored": ignored, "resets": resets}


def schema_of(kind: Any) -> JsonObject:
    """Returns the JSON Schema of a type. It accepts what is read without an error or a warning."""
    return adapter(kind).json_schema(schema_generator=_SchemaGenerator)


@cache
def _internal_schema(kind: Any) -> JsonObject:
    return adapter(kind).json_schema(schema_generator=_InternalGenerator)
