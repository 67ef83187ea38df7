"""JSON Schema as a compact TypeScript type, for one line of a prompt.

The type says what a caller must write, and no more; `schema_types` writes a schema out. Rendering
never fails: whatever a schema contains, the result is short and takes a bounded number of steps.
`any` stands for everything that cannot be expressed.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import islice

from clawmode.catalog.schema_reading import PRIMITIVES, collect_strings, find_reference
from clawmode.types import JsonValue

MAX_CHARS = 400
ROOMY_CHARS = 160  # a longer signature loses its inner objects
MAX_PROPERTIES = 12
MAX_LITERALS = 6
MAX_MEMBERS = 4
MAX_WORD_CHARS = 60

# Both limits stop circular references; the second one before Python's stack overflows.
MAX_STEPS = 200
MAX_NESTING = 16


def render_input(schema: Mapping[str, JsonValue]) -> str:
    """Returns the type of a tool's input, such as `{path: string, limit?: number}`."""
    roomy = _Renderer(schema).render_properties(schema, 2)
    if len(roomy) <= ROOMY_CHARS:
        return roomy
    flat = _Renderer(schema).render_properties(schema, 1)
    return flat if len(flat) <= MAX_CHARS else "{...}"


class _Renderer:
    """Renders one schema within a number of steps.

    The argument `objects` is the number of nested objects that are still written out.
    """

    def __init__(self, root: Mapping[str, JsonValue]) -> None:
        self._root = root
        self._steps = 0
        self._nesting = 0

    def render(self, schema: object, objects: int) -> str:
        self._steps += 1
        if self._steps > MAX_STEPS or self._nesting == MAX_NESTING:
            return "any"
        self._nesting += 1
        made = self._render_schema(schema, objects) if isinstance(schema, Mapping) else "any"
        self._nesting -= 1
        return made

    def render_properties(self, schema: Mapping[str, object], objects: int) -> str:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            return "{}"
        required = collect_strings(schema.get("required"), MAX_STEPS)
        shown = _choose(properties, required)
        parts = [
            f"{key if key.isascii() and key.isidentifier() else json.dumps(key)}{mark}: "
            f"{self.render(properties[key], objects)}"
            for key in shown
            for mark in ("" if key in required else "?",)
        ]
        return "{" + ", ".join(parts + ["..."] * (len(shown) < len(properties))) + "}"

    def _render_schema(self, schema: Mapping[str, object], objects: int) -> str:
        if "$ref" in schema:
            return self.render(find_reference(self._root, schema["$ref"]), objects)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and (literals := _render_literals(values)):
            return literals
        for key in ("anyOf", "oneOf", "allOf"):
            members = schema.get(key)
            # An `allOf` of several schemas would get too long. Generators write an `allOf` of one
            # schema to add a title to a reference.
            if isinstance(members, list) and (key != "allOf" or len(members) == 1):
                if len(members) > MAX_MEMBERS:
                    return "any"
                return _unite(self.render(member, objects) for member in members)
        kinds = schema.get("type")
        if kinds is None:
            kinds = "object" if "properties" in schema else "array" if "items" in schema else ""
        several = kinds[:MAX_MEMBERS] if isinstance(kinds, list) else [kinds]
        return _unite(self._render_kind(schema, kind, objects) for kind in several)

    def _render_kind(self, schema: Mapping[str, object], kind: object, objects: int) -> str:
        if kind == "array":
            inner = self.render(schema.get("items"), objects)
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        if kind != "object":
            return PRIMITIVES.get(kind, "any") if isinstance(kind, str) else "any"
        if schema.get("properties"):
            return self.render_properties(schema, objects - 1) if objects > 1 else "object"
        values = schema.get("additionalProperties")
        if isinstance(values, Mapping):
            return f"Record<string, {self.render(values, objects)}>"
        return "object"


def _choose(properties: Mapping[object, object], required: Mapping[str, None]) -> list[str]:
    """Returns the properties to show, in order; if there are too many, required ones first."""
    keys = [key for key in islice(properties, MAX_STEPS) if isinstance(key, str)]
    keys = [key for key in keys if len(key) <= MAX_WORD_CHARS]
    if len(keys) > MAX_PROPERTIES:
        keys.sort(key=lambda key: key not in required)
    return keys[:MAX_PROPERTIES]


def _render_literals(values: list[object]) -> str:
    """Returns the values as a union; empty if it would be long, or a value has no literal type."""
    if len(values) > MAX_LITERALS or not all(map(_is_small, values)):
        return ""
    made = " | ".join(map(json.dumps, values))
    return made if len(made) <= MAX_WORD_CHARS else ""


def _is_small(value: object) -> bool:
    if isinstance(value, int | float):
        return abs(value) < 2**53
    return value is None or (isinstance(value, str) and len(value) <= MAX_WORD_CHARS)


def _unite(types: Iterable[str]) -> str:
    members = dict.fromkeys(types)
    return "any" if "any" in members or not members else " | ".join(members)
