"""Reading JSON Schemas of untrusted origin: references, merged layers, names.

No TypeScript here, and nothing leaves the document. Every function takes a bounded number of steps,
whatever a schema contains.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TypeAlias
from urllib.parse import unquote

from clawmode.text import without_surrogates

MAX_KEY_CHARS = 200
MAX_MEMBERS = 60
MAX_PROPERTIES = 200
MAX_NAME_CHARS = 60
MAX_REFERENCE_CHARS = 500
SHORT_ENUM = 6

PRIMITIVES = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
}

OBJECT_KEYS = ("properties", "required", "additionalProperties", "patternProperties")
ARRAY_KEYS = ("items", "prefixItems")
COMBINATORS = ("$ref", "allOf", "anyOf", "oneOf")
_STRUCTURE = (*COMBINATORS, *OBJECT_KEYS, *ARRAY_KEYS)
_PATH_KEYWORDS = frozenset(("$defs", "definitions", "additionalItems", "#", *_STRUCTURE))

Schema: TypeAlias = Mapping[str, object]


def find_reference(root: object, reference: object) -> object:
    """Returns the target of a reference inside the document; None for any other reference."""
    if not isinstance(reference, str) or len(reference) > MAX_REFERENCE_CHARS:
        return None
    start, *parts = reference.split("/")
    target = root if start == "#" else None
    for part in parts:
        key = _decode(part)
        if isinstance(target, Mapping):
            target = target.get(key)
        elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            return None
    return target


def _decode(part: str) -> str:
    """Decodes one part of a JSON pointer in a URI fragment."""
    return unquote(part).replace("~1", "/").replace("~0", "~")


def name_of(reference: str) -> str:
    """Returns a type name for the target of a reference: its last part that is no keyword."""
    for part in reversed(reference.split("/")):
        words = re.findall("[A-Za-z0-9]+", _decode(part))
        name = "".join(word[0].upper() + word[1:] for word in words)[:MAX_NAME_CHARS]
        if name and not name[0].isdigit() and part not in _PATH_KEYWORDS:
            return name
    return "Root" if reference == "#" else "Type"


def find_back_edges(graph: Mapping[str, Iterable[str]]) -> set[tuple[str, str]]:
    """Returns references that close a cycle: without them no definition leads to itself."""
    found: set[tuple[str, str]] = set()
    is_open: dict[str, bool] = {}

    def visit(name: str) -> None:
        is_open[name] = True
        for other in graph.get(name, ()):
            if other not in is_open:
                visit(other)
            elif is_open[other]:
                found.add((name, other))
        is_open[name] = False

    for name in list(graph):
        if name not in is_open:
            visit(name)
    return found


def collect_strings(value: object, limit: int) -> dict[str, None]:
    """Returns the strings among the first `limit` items of a list, in order, without duplicates."""
    items = value[:limit] if isinstance(value, list) else []
    return dict.fromkeys(item for item in items if isinstance(item, str))


def list_of(value: object) -> list[object]:
    """Returns the value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def separate(root: object, schema: object) -> tuple[list[Schema], list[list[object]]]:
    """Returns all schemas that an input must match at once, and the unions among them."""
    layers: list[Schema] = []
    unions: list[list[object]] = []
    pending = [schema]
    while pending and len(layers) < MAX_MEMBERS:
        layer = pending.pop(0)
        if not isinstance(layer, Mapping) or any(layer is other for other in layers):
            continue
        layers.append(layer)
        if "$ref" in layer:
            pending.append(find_reference(root, layer["$ref"]))
        pending += list_of(layer.get("allOf"))[:MAX_MEMBERS]
        unions += [union for key in ("anyOf", "oneOf") if (union := list_of(layer.get(key)))]
    return layers, unions


def merge(layers: list[Schema]) -> Schema:
    """Merges several object schemas into one; where they disagree, the first one counts."""
    properties: dict[str, object] = {}
    required: dict[str, None] = {}
    merged: dict[str, object] = {}
    for layer in layers:
        required |= collect_strings(layer.get("required"), MAX_PROPERTIES)
        if isinstance(found := layer.get("properties"), Mapping):
            keys = [key for key in choose_keys(found, required) if key in found]
            properties |= {key: found[key] for key in keys if key not in properties}
            if len(keys) < len(found):
                merged["additionalProperties"] = True
        for keyword in ("additionalProperties", "patternProperties"):
            if keyword in layer:
                merged.setdefault(keyword, layer[keyword])
    return merged | {"properties": properties, "required": list(required)}


def choose_keys(
    properties: Mapping[str, object],
    required: dict[str, None],
    limit: int = MAX_PROPERTIES,
    key_chars: int = MAX_KEY_CHARS,
) -> list[str]:
    """Returns the properties to show, in order; if there are too many, required ones first."""
    keys = dict.fromkeys(islice(properties, MAX_PROPERTIES)) | required
    # JSON has string keys only, but schemas made in Python may have others. No server sends lone
    # surrogates on purpose.
    usable = [
        key
        for key in keys
        if isinstance(key, str) and len(key) <= key_chars and without_surrogates(key) == key
    ]
    if max(len(usable), len(properties)) > limit:
        usable.sort(key=lambda key: key not in required)
    return usable[:limit]


def is_short(schema: Schema) -> bool:
    """True if a definition is no longer than its name would be."""
    values = schema.get("enum")
    is_long = isinstance(values, list) and len(values) > SHORT_ENUM
    return not is_long and not any(key in schema for key in _STRUCTURE)


def is_plain_object(schema: Schema) -> bool:
    """True if a schema describes an object, with no alternatives."""
    others = (*COMBINATORS, "enum", "const", "nullable")
    return schema.get("type", "object") == "object" and not any(key in schema for key in others)
