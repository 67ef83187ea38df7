"""Checks whether a tool's input fits its JSON Schema.

This runs in the caller's process, at every call. Schemas come from MCP servers and inputs from
guests, so nothing that a schema names is fetched, and work without a bound is rejected before it
starts. `schema_cost` computes the cost of a check, and `input_problems` describes errors. This
module owns the limits and the engines.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Never
from urllib.parse import quote

from jsonschema_rs import (
    FancyRegexOptions,
    ReferencingError,
    RegexOptions,
    Registry,
    ValidationError,
    validator_for,
)
from jsonschema_rs import Validator as CompiledValidator

from clawmode.exceptions import InvalidSchema as InvalidSchema
from clawmode.text import shorten
from clawmode.tools.input_problems import MAX_TEXT, Path, describe, show, spell
from clawmode.tools.schema_cost import (
    MAX_HEIGHT,
    Burden,
    Schema,
    SchemaGraph,
    UnusableSchema,
    as_map,
    locate,
)
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue, copy_json, dataclass

MAX_DEPTH = 128
MAX_VALUES = 1_000_000
MAX_CHECKS = 5_000_000
MAX_EXPLAINED = 2_000
"""Checks. An error costs a thousand checks, and the library always collects all errors."""
MAX_PATTERNS = 32
MAX_CACHED = 2_048

HOME = "urn:clawmode:schema"
VALUE = "the value"


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine for regular expressions, and the number of characters it may be given.

    Even the linear engine takes time in proportion to the size of the expression: up to 7 µs per
    character at 16 KiB, 70 at 256 KiB, 400 at 4 MiB. The budgets limit that to a few seconds,
    for an attacker who writes both the schema and the value.
    """

    options: RegexOptions | FancyRegexOptions
    characters: int


ENGINES = (
    Engine(RegexOptions(size_limit=16 << 10), 500_000),
    Engine(RegexOptions(size_limit=256 << 10), 50_000),
    Engine(RegexOptions(size_limit=4 << 20), 5_000),
    Engine(FancyRegexOptions(backtrack_limit=5_000, size_limit=256 << 10), 10_000),
)
"""The engines in the order of attempts. The last supports look-around, and limits backtracking."""


class UnusableValue(ValueError):
    """The value cannot be checked, for the reason in the message."""


class Validator:
    """Checks input against one JSON Schema, which is compiled at the first check.

    Args:
        schema: The schema.
        name: The tool that the schema belongs to, for errors.
    """

    def __init__(self, schema: Mapping[str, JsonValue], *, name: str = "a tool") -> None:
        # Without an address of its own, all references of the schema are to itself.
        self._schema: Schema = {key: schema[key] for key in schema if key not in ("$id", "id")}
        self._name = name
        self._compiled: CompiledSchema | str | None = None

    def validate(self, value: JsonValue) -> list[str]:
        """Returns the problems of a value in short sentences; none if the value fits.

        Raises:
            InvalidSchema: The schema is invalid, or checking against it could take too long.
        """
        return self._compile().problems(value)

    @cached_property
    def defaults(self) -> JsonObject:
        """The defaults of the properties, without those that the property's own schema rejects."""
        try:
            return self._compile().fitting_defaults()
        except InvalidSchema:
            return {}

    def _compile(self) -> "CompiledSchema":
        if self._compiled is None:
            try:
                self._compiled = CompiledSchema(self._schema)
            except UnusableSchema as error:
                self._compiled = shorten(
                    f"the input schema of {self._name} is unusable: {error}", MAX_TEXT
                )
        if isinstance(self._compiled, str):
            raise InvalidSchema(self._compiled)
        return self._compiled


_cache: dict[int, tuple[Tool, Validator]] = {}


def validate(tool: Tool, value: JsonValue) -> list[str]:
    """Returns the problems of an input for a tool in short sentences; none if the input fits.

    Raises:
        InvalidSchema: The schema is invalid, or checking against it could take too long.
    """
    return _validator(tool).validate(value)


def with_defaults(tool: Tool, given: JsonObject) -> JsonObject:
    """Returns the input, with the schema's defaults for properties that it lacks."""
    defaults = _validator(tool).defaults
    missing = {key: defaults[key] for key in defaults if key not in given}
    return {**given, **copy_json(missing)}


def _validator(tool: Tool) -> Validator:
    # By identity, because comparing tools compares their schemas. The cache keeps the tool alive,
    # so that no other tool gets the same id.
    found = _cache.get(id(tool))
    if found is None:
        found = _cache[id(tool)] = tool, Validator(tool.parameters, name=tool.id)
        if len(_cache) > MAX_CACHED:
            del _cache[next(iter(_cache))]
    return found[1]


class CompiledSchema:
    """A compiled schema whose cost is bounded.

    Raises:
        UnusableSchema: The schema is invalid or too expensive.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._graph = SchemaGraph(schema)
        if _overburdened(self._graph.burden(0), 1):
            raise UnusableSchema("it applies too much of itself to a single value")
        self._engine, self._compiled = _compile_with_any(schema, self._graph.patterns)
        self._parts: dict[str, CompiledValidator] = {}

    def problems(self, value: JsonValue) -> list[str]:
        """Returns the problems of a value in short sentences; none if the value fits."""
        try:
            self._reject_costly(value)
            # `is_valid` stops at the first error and is much cheaper than collecting all of them.
            if self._compiled.is_valid(value):
                return []
            if self._explicable(value, 0):
                return describe(self._schema, list(self._compiled.iter_errors(value)))
            return self._explain_part(value)
        except (TypeError, ValueError) as error:  # also for lone surrogates and values beyond JSON
            return [shorten(f"input: cannot be checked: {error}", MAX_TEXT)]

    def fitting_defaults(self) -> JsonObject:
        """Returns the defaults of the properties, without those that their own schema rejects.

        Some generators write `default: null` for a property that may not be null: the server then
        has a default of its own, and would reject null.
        """
        properties = as_map(self._schema.get("properties"))
        found = {key: as_map(part) for key, part in properties.items()}
        defaults = {key: part["default"] for key, part in found.items() if "default" in part}
        if not defaults:
            return {}
        # One schema for all of them: a hostile schema may have thousands of defaults.
        parts: Schema = {key: {"$ref": f"{HOME}#{_pointer_to(key)}"} for key in defaults}
        try:
            self._reject_costly(defaults)
            check = self._compile_part({"properties": parts})
            return {key: defaults[key] for key in defaults if check.is_valid({key: defaults[key]})}
        except (TypeError, ValueError):  # as in `problems`
            return {}

    def _reject_costly(self, value: JsonValue) -> None:
        """Raises `UnusableValue` if a check could take too long or overflow the stack."""
        size = measure(value)
        burden = self._graph.burden(size.depth)
        if _overburdened(burden, size.leaves):
            raise UnusableValue("too large or too deeply nested for this tool's schema")
        if burden.patterns * size.characters > self._engine.characters:
            most = self._engine.characters // burden.patterns
            raise UnusableValue(
                f"{size.characters} characters are too long for this tool's patterns; "
                f"send at most {most}"
            )

    def _explicable(self, value: JsonValue, depth: int) -> bool:
        """True if all errors of a value at this depth of the input can be collected."""
        size = measure(value)
        return self._graph.burden(depth + size.depth).checks * size.leaves <= MAX_EXPLAINED

    def _explain_part(self, value: JsonValue) -> list[str]:
        """Descends to an invalid part that is small enough to collect its errors."""
        path: Path = ()
        pointer = ""
        while True:
            members = self._members(pointer, value)
            wrong = (member for member in members if not self._part(member[0]).is_valid(member[2]))
            if (found := next(wrong, None)) is None:
                break
            pointer, step, value = found
            path = (*path, step)
            if self._explicable(value, len(path)):
                errors = list(self._part(pointer).iter_errors(value))
                return describe(self._schema, errors, path)
        return [f"{spell(path)}: does not fit the schema, and is too large to say where"]

    def _members(
        self, pointer: str, value: JsonValue
    ) -> Iterator[tuple[str, str | int, JsonValue]]:
        """Yields members and elements that have a schema of their own: its pointer, name, value."""
        node = as_map(locate(self._schema, pointer))
        reference = node.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/"):
            pointer = reference[1:]
            node = as_map(locate(self._schema, pointer))
        if isinstance(value, dict):
            for name in filter(value.__contains__, as_map(node.get("properties"))):
                yield f"{pointer}{_pointer_to(name)}", name, value[name]
        elif isinstance(value, list) and isinstance(node.get("items"), dict):
            yield from ((f"{pointer}/items", index, item) for index, item in enumerate(value))

    def _part(self, pointer: str) -> CompiledValidator:
        """Returns the validator of one part of the schema."""
        if pointer not in self._parts:
            self._parts[pointer] = self._compile_part({"$ref": f"{HOME}#{pointer}"})
        return self._parts[pointer]

    def _compile_part(self, outer: Schema) -> CompiledValidator:
        """Compiles a schema that refers to parts of this schema."""
        registry = Registry([(HOME, self._schema)], retriever=_refuse_to_fetch)
        if "$schema" in self._schema:
            outer["$schema"] = self._schema["$schema"]
        return _compile(outer, self._engine, registry)


def _pointer_to(name: str) -> str:
    """Returns the JSON pointer from an object's schema to that of a property."""
    return "/properties/" + quote(name.replace("~", "~0").replace("/", "~1"), safe="~")


@dataclass(slots=True)
class Size:
    """The size of a value: its depth, its number of leaves, its number of characters."""

    depth: int = 0
    leaves: int = 0
    characters: int = 0


def measure(value: JsonValue) -> Size:
    """Measures a value, layer by layer, without recursion.

    Raises:
        UnusableValue: The value is too large or too deep for any schema.
    """
    size = Size()
    layer = [value]
    while True:
        below: list[JsonValue] = []
        for item in layer:
            if isinstance(item, dict) and item:
                size.characters += sum(map(len, item))
                below.extend(item.values())
            elif isinstance(item, list) and item:
                below.extend(item)
            else:
                size.leaves += 1
                if isinstance(item, str):
                    size.characters += len(item)
        if not below:
            return size
        size.depth += 1
        if size.depth > MAX_DEPTH:
            raise UnusableValue(f"nested more than {MAX_DEPTH} deep")
        if size.leaves + len(below) > MAX_VALUES:
            raise UnusableValue(f"more than {MAX_VALUES} values")
        layer = below


def _overburdened(burden: Burden, leaves: int) -> bool:
    return burden.height > MAX_HEIGHT or burden.checks * leaves > MAX_CHECKS


def _compile_with_any(schema: Schema, patterns: int) -> tuple[Engine, CompiledValidator]:
    """Compiles a schema with the first engine that supports its patterns."""
    # In a large engine, a pattern takes up to 15 ms to compile: few patterns, or small ones.
    engines = ENGINES if patterns <= MAX_PATTERNS else ENGINES[:1]
    reason = ""
    for engine in engines:
        try:
            return engine, _compile(schema, engine)
        except ValidationError as error:
            place = "".join(f"/{step}" for step in error.instance_path)
            reason = error.message.replace(VALUE, f"{show(error.instance)} at {place}")
            if error.kind.value != "regex":
                break
        except (ReferencingError, ValueError) as error:  # for example too deeply nested
            reason = str(error)
            break
    raise UnusableSchema(reason)


def _compile(schema: Schema, engine: Engine, registry: Registry | None = None) -> CompiledValidator:
    return validator_for(
        schema,
        registry=registry,
        retriever=_refuse_to_fetch,
        pattern_options=engine.options,
        mask=VALUE,  # the library's messages must not quote input; `input_problems` does, shortened
        validate_formats=False,  # `format` is a hint for readers; valid input often fails it
    )


def _refuse_to_fetch(uri: str) -> Never:
    """Replaces the library's retriever, which would open files and URLs that a schema names."""
    raise ValueError("schemas are not fetched")
