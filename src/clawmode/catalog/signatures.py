"""JSON Schema as a compact TypeScript type, for one line of a prompt.

Says what a caller must write and drops the rest; `schema_types` spells it out. Never fails:
whatever a schema holds, the answer is short and takes a bounded number of steps; what cannot be
said is `any`.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import islice

from clawmode.catalog.schema_types import PRIMITIVES, collect_strings, find_reference
from clawmode.types import JsonValue

MAX_CHARS = 400
ROOMY_CHARS = 160  # a longer signature loses its inner objects
MAX_PROPERTIES = 12
MAX_LITERALS = 6
MAX_MEMBERS = 4
MAX_WORD_CHARS = 60

# Both end references that lead in circles; the second before Python's stack does.
MAX_STEPS = 200
MAX_NESTING = 16


def render_input(schema: Mapping[str, JsonValue]) -> str:
    """The type of a tool's input: `{path: string, limit?: number}`."""
    roomy = _Renderer(schema).render_properties(schema, 2)
    if len(roomy) <= ROOMY_CHARS:
        return roomy
    flat = _Renderer(schema).render_properties(schema, 1)
    return flat if len(flat) <= MAX_CHARS else "{...}"


class _Renderer:
    """One schema on its way to a type: its definitions, and the steps that are left.

    `objects` is how many objects inside each other are still spelled out.
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
            f"{_render_key(key)}{mark}: {self.render(properties[key], objects)}"
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
            # Several demands at once take too many words; a single one is how generators add a
            # title to a reference.
            if isinstance(members, list) and (key != "allOf" or len(members) == 1):
                return self._render_union(members, objects)
        return self._render_kinds(schema, objects)

    def _render_union(self, members: list[object], objects: int) -> str:
        if len(members) > MAX_MEMBERS:
            return "any"
        return _unite(self.render(member, objects) for member in members)

    def _render_kinds(self, schema: Mapping[str, object], objects: int) -> str:
        kinds = schema.get("type")
        if kinds is None:
            kinds = "object" if "properties" in schema else "array" if "items" in schema else ""
        several = kinds[:MAX_MEMBERS] if isinstance(kinds, list) else [kinds]
        return _unite(self._render_kind(schema, kind, objects) for kind in several)

    def _render_kind(self, schema: Mapping[str, object], kind: object, objects: int) -> str:
        if kind == "array":
            inner = self.render(schema.get("items"), objects)
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        if kind == "object":
            return self._render_object(schema, objects)
        return PRIMITIVES.get(kind, "any") if isinstance(kind, str) else "any"

    def _render_object(self, schema: Mapping[str, object], objects: int) -> str:
        if schema.get("properties"):
            return self.render_properties(schema, objects - 1) if objects > 1 else "object"
        values = schema.get("additionalProperties")
        if isinstance(values, Mapping):
            return f"Record<string, {self.render(values, objects)}>"
        return "object"


def _choose(properties: Mapping[object, object], required: Mapping[str, None]) -> list[str]:
    """The properties to show, as declared; if there are too many, required ones come first."""
    keys = [key for key in islice(properties, MAX_STEPS) if isinstance(key, str)]
    keys = [key for key in keys if len(key) <= MAX_WORD_CHARS]
    if len(keys) > MAX_PROPERTIES:
        keys.sort(key=lambda key: key not in required)
    return keys[:MAX_PROPERTIES]


def _render_key(key: str) -> str:
    return key if key.isascii() and key.isidentifier() else json.dumps(key)


def _render_literals(values: list[object]) -> str:
    """The values as a union, or nothing if that would be long or no type."""
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
