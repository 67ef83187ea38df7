"""JSON Schema as TypeScript, spelled out: types for a declaration file, and the words about them.

The schemas are strangers'. Whatever one holds, the answer is valid TypeScript, is made in a bounded
number of steps, and follows no reference out of the document; what cannot be said is `unknown`.
`signatures` says the same in one line of a prompt.

A definition that is referred to becomes an alias, so recursion stays recursion, and definitions
that fan out into each other take no more room than they do in the schema. Three things that
TypeScript refuses shape the code:

- An alias that leads to itself with no object or array in between: such a reference is cut.
  Tuples are no help: TypeScript looks into some of them at once.
- An intersection of unions with too many combinations: within one, a reference is spelled out
  unless it is plainly an object, so that the combinations can be counted.
- A property that does not fit the index signature beside it: then that is `unknown`.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeAlias
from urllib.parse import unquote

from clawmode.catalog.typescript_text import (
    EMPTY_OBJECT,
    MAX_DOC_CHARS,
    NEVER,
    NULL,
    OPEN_OBJECT,
    UNKNOWN,
    Member,
    Type,
    clean_line,
    intersect,
    is_text,
    lay_out,
    quote_key,
    render_kind_of,
    render_literal,
    unite,
)

MAX_KEY_CHARS = 200
MAX_LITERALS = 60  # more of them are only told by kind
MAX_ENUM = 10_000
MAX_MEMBERS = 60
MAX_PROPERTIES = 200
MAX_TUPLE = 20
MAX_ALIASES = 100
MAX_NAME_CHARS = 60
MAX_REFERENCE_CHARS = 500
SHORT_ENUM = 6
SHORT_DOC_CHARS = 80
STEP_CHARS = 8  # what the smallest schema costs, so that empty ones come to an end too

PRIMITIVES = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
}

_OBJECT_KEYS = ("properties", "required", "additionalProperties", "patternProperties")
_ARRAY_KEYS = ("items", "prefixItems")
_COMBINATORS = ("$ref", "allOf", "anyOf", "oneOf")
_STRUCTURE = (*_COMBINATORS, *_OBJECT_KEYS, *_ARRAY_KEYS)
_PATH_KEYWORDS = frozenset(("$defs", "definitions", "additionalItems", "#", *_STRUCTURE))

_NOTED = (
    "format",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "default",
)

Schema: TypeAlias = Mapping[str, object]

_Place: TypeAlias = Literal["bare", "list", "joined", "inside"]
"""What is around a reference in its alias: nothing, arrays, an intersection or a tuple, an object.

In an object everything is allowed, and so it is outside of aliases.
"""


# ---- What is asked for ----


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be said.

    Attributes:
        chars: In all, give or take indentation.
        nesting: Schemas inside each other.
        objects: Objects inside each other that are spelled out.
        docs: Words about inner properties, and more than a few about those of an input.
    """

    chars: int = 16_000
    nesting: int = 16
    objects: int = 16
    docs: bool = True


STAGES = (Limits(), Limits(objects=2, docs=False), Limits(nesting=4, objects=0, docs=False))
"""What does not fit is said again in less detail, so that inner properties go before outer ones."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A type as text.

    Attributes:
        text: The type. It may have several lines.
        aliases: Declarations that the text needs, by the name that each declares.
        docs: What is known about the properties of an input, in a line each; not about every one.
        optional: An input in which nothing has to be given.
        cost: What it took to make in characters, those thrown away included.
    """

    text: str
    aliases: dict[str, str]
    docs: dict[str, str]
    optional: bool
    cost: int


def render_type(
    schema: object,
    *,
    is_input: bool = False,
    prefix: str = "",
    taken: Collection[str] = (),
    stages: Iterable[Limits] = STAGES,
) -> Rendered:
    """A schema as a type.

    Args:
        schema: The whole document: references are looked up in it.
        is_input: It is a tool's argument. Then it is an object, its properties with a default are
            optional, and what is known about them is in `docs` instead of the text.
        prefix: What the names of aliases begin with.
        taken: Names that aliases may not have.
        stages: Limits to try until the type fits.
    """
    cost = 0
    made = Rendered("unknown", {}, {}, False, 0)
    for limits in stages:
        renderer = _Renderer(schema, limits, prefix, taken)
        text = renderer.render_input(schema) if is_input else renderer.render(schema).text
        aliases = renderer.render_aliases()
        cost += limits.chars - renderer.room
        made = Rendered(text, aliases, renderer.docs, renderer.optional, cost)
        if not renderer.overfull:
            break
    return made


# ---- One document ----


class _Renderer:
    """One schema on its way to a type.

    Attributes:
        room: Characters that are left.
        overfull: There was not enough room.
        docs, optional: As in `Rendered`.
    """

    def __init__(
        self, root: object, limits: Limits, prefix: str = "", taken: Collection[str] = ()
    ) -> None:
        self.room = limits.chars
        self.overfull = False
        self.docs: dict[str, str] = {}
        self.optional = False
        self._root = root
        self._limits = limits
        self._nesting = 0
        self._objects = 0
        self._place: _Place = "inside"
        self._spelled: list[object] = [root]
        self._prefix = prefix
        self._taken = {"Record", *taken}
        self._names: dict[int, str] = {}  # by the identity of the definition, which the root keeps
        self._definitions: list[tuple[str, Schema]] = []
        self._alias = ""
        self._bare_uses: defaultdict[str, list[str]] = defaultdict(list)
        self._cuts: set[tuple[str, str]] = set()

    def render(self, schema: object) -> Type:
        self._spend(STEP_CHARS)
        if schema is False:
            return NEVER
        too_much = self.overfull or self._nesting == self._limits.nesting
        if too_much or not isinstance(schema, Mapping):
            return UNKNOWN
        self._nesting += 1
        made = self._render_schema(schema)
        self._nesting -= 1
        return made

    def render_input(self, schema: object) -> str:
        """The type of an argument; sets `docs` and `optional`."""
        layers, unions = self._separate(schema)
        merged = _merge(layers)
        members = self._make_members(merged, is_input=True)
        self.optional = not unions and not any(member.demanded for member in members)
        if not members and not unions:
            return "{}" if _render_empty(merged) == OPEN_OBJECT else EMPTY_OBJECT.text
        parts = [Type((lay_out(members, may_be_one_line=False),))] if members else []
        with self._at("joined"):
            parts += [self._render_union(union) for union in unions]
        return intersect([OPEN_OBJECT, *parts]).text

    def render_aliases(self) -> dict[str, str]:
        """The declarations of all definitions that were mentioned."""
        made: dict[str, str] = {}
        self._declare_missing(made)
        self._cuts = _find_back_edges(self._bare_uses)
        for name in {name for name, _ in self._cuts}:
            del made[name]
        self._declare_missing(made)
        return made

    def _declare_missing(self, made: dict[str, str]) -> None:
        for name, schema in self._definitions:  # grows meanwhile
            if name not in made:
                self._alias = name
                self._spelled = [schema]
                with self._at("bare"):
                    text = self.render(schema).text
                doc = clean_line(schema.get("description")) if self._limits.docs else ""
                self._spend(len(doc))
                made[name] = (f"/** {doc} */\n" if doc else "") + f"type {name} = {text};"

    def _spend(self, chars: int) -> None:
        self.room -= chars
        if self.room < 0:
            self.overfull = True

    @contextmanager
    def _at(self, place: _Place) -> Generator[None]:
        outer, self._place = self._place, place
        yield
        self._place = outer

    # What a schema demands, all at once

    def _render_schema(self, schema: Schema) -> Type:
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            made = _render_literals(values)
            self._spend(len(made.text))
        else:
            made = self._render_demands(schema)
        return unite([made, NULL]) if schema.get("nullable") is True else made

    def _render_demands(self, schema: Schema) -> Type:
        base = self._render_kinds(schema)
        if not any(key in schema for key in _COMBINATORS):
            return base
        unions = [made for key in ("anyOf", "oneOf") if (made := _list_of(schema.get(key)))]
        demands = _list_of(schema.get("allOf"))[:MAX_MEMBERS]
        count = ("$ref" in schema) + len(unions) + len(demands)
        several = count + (base not in (UNKNOWN, OPEN_OBJECT)) > 1
        with self._at("joined" if several else self._place):
            parts = [self._render_reference(schema["$ref"])] if "$ref" in schema else []
            parts += [self.render(demand) for demand in demands]
            parts += [self._render_union(union) for union in unions]
        return intersect([base, *parts])

    def _render_union(self, members: list[object]) -> Type:
        if len(members) > MAX_MEMBERS:
            return UNKNOWN
        return unite([self.render(member) for member in members])

    def _render_kinds(self, schema: Schema) -> Type:
        kinds = schema.get("type")
        if kinds is None:
            if any(key in schema for key in _OBJECT_KEYS):
                kinds = "object"
            elif any(key in schema for key in _ARRAY_KEYS):
                kinds = "array"
        if not isinstance(kinds, list) or not kinds:
            return self._render_kind(schema, kinds)
        return unite([self._render_kind(schema, kind) for kind in kinds[: len(PRIMITIVES) + 2]])

    def _render_kind(self, schema: Schema, kind: object) -> Type:
        if kind == "object":
            return self._render_object(schema)
        if kind == "array":
            return self._render_array(schema)
        name = PRIMITIVES.get(kind) if isinstance(kind, str) else None
        return Type((name,)) if name else UNKNOWN

    # References

    def _render_reference(self, reference: object) -> Type:
        target = find_reference(self._root, reference)
        if not isinstance(target, Mapping) or _is_short(target):
            return self.render(target)
        if self._place == "joined" and not _is_plain_object(target):
            return self._spell_out(target)
        name = self._names.get(id(target)) or self._make_name(str(reference), target)
        if not name or (self._place == "bare" and (self._alias, name) in self._cuts):
            return UNKNOWN
        if self._place == "bare":
            self._bare_uses[self._alias].append(name)
        self._spend(len(name))
        return Type((name,))

    def _spell_out(self, target: Schema) -> Type:
        if any(target is other for other in self._spelled):
            return UNKNOWN
        self._spelled.append(target)
        made = self.render(target)
        self._spelled.pop()
        return made

    def _make_name(self, reference: str, target: Schema) -> str:
        if len(self._definitions) == MAX_ALIASES:
            return ""
        base = self._prefix + _name_of(reference)
        name, number = base, 2
        while name in self._taken:
            name, number = f"{base}{number}", number + 1
        self._taken.add(name)
        self._names[id(target)] = name
        self._definitions.append((name, target))
        return name

    # Arrays and objects

    def _render_array(self, schema: Schema) -> Type:
        items, first = schema.get("items", True), schema.get("prefixItems")
        if isinstance(items, list):  # drafts before 2020-12
            items, first = schema.get("additionalItems"), items
        elif "items" not in schema and first:
            items = None
        if not isinstance(first, list) or not first:
            with self._at(self._place if self._place in ("joined", "inside") else "list"):
                return Type((f"{self.render(items).element}[]",))
        if len(first) > MAX_TUPLE:
            return Type(("unknown[]",))
        least = given if type(given := schema.get("minItems")) is int else len(first)
        with self._at("inside" if self._place == "inside" else "joined"):
            parts = [
                self.render(item).element + ("?" if position >= least else "")
                for position, item in enumerate(first)
            ]
            if items is True or isinstance(items, Mapping):
                parts.append(f"...{self.render(items).element}[]")
        return Type((f"[{', '.join(parts)}]",))

    def _render_object(self, schema: Schema) -> Type:
        if self._objects == self._limits.objects:
            return OPEN_OBJECT
        self._objects += 1
        members = self._make_members(schema)
        self._objects -= 1
        return Type((lay_out(members),)) if members else _render_empty(schema)

    def _make_members(self, schema: Schema, *, is_input: bool = False) -> list[Member]:
        found = schema.get("properties")
        properties: Mapping[str, object] = found if isinstance(found, Mapping) else {}
        required = collect_strings(schema.get("required"), MAX_PROPERTIES)
        members: list[Member] = []
        with self._at("inside"):
            for key in _choose(properties, required):
                if self.overfull:
                    break
                value = properties.get(key)
                has_default = isinstance(value, Mapping) and "default" in value
                demanded = key in required and not (is_input and has_default)
                members.append(self._make_member(key, value, demanded, is_input))
            # Through an index signature what was left out can be given all the same.
            is_cut = len(members) < len(properties) + sum(key not in properties for key in required)
            if index := "unknown" if is_cut else self._render_index(schema, alone=not members):
                members.append(Member("[key: string]", index))
        return members

    def _make_member(self, key: str, value: object, demanded: bool, is_input: bool) -> Member:
        head = quote_key(key) + ("" if demanded else "?")
        most = MAX_DOC_CHARS if self._limits.docs else SHORT_DOC_CHARS * is_input
        doc = _describe(value, most) if most else ""
        self._spend(len(head) + len(doc))
        if is_input and doc:
            self.docs[key] = doc
        return Member(head, self.render(value).text, "" if is_input else doc, demanded)

    def _render_index(self, schema: Schema, *, alone: bool) -> str:
        values = [schema.get("additionalProperties", False)]
        if isinstance(patterns := schema.get("patternProperties"), Mapping):
            values += islice(patterns.values(), MAX_MEMBERS)
        made = unite([self.render(value) for value in values if value is not False])
        return "" if made == NEVER else made.text if alone else "unknown"

    def _separate(self, schema: object) -> tuple[list[Schema], list[list[object]]]:
        """All schemas that an input must fit at once, and the unions among their demands."""
        layers: list[Schema] = []
        unions: list[list[object]] = []
        left = [schema]
        while left and len(layers) < MAX_MEMBERS:
            layer = left.pop(0)
            if not isinstance(layer, Mapping) or any(layer is other for other in layers):
                continue
            layers.append(layer)
            if "$ref" in layer:
                left.append(find_reference(self._root, layer["$ref"]))
            left += _list_of(layer.get("allOf"))[:MAX_MEMBERS]
            unions += [made for key in ("anyOf", "oneOf") if (made := _list_of(layer.get(key)))]
        return layers, unions


# ---- Looking into schemas ----


def find_reference(root: object, reference: object) -> object:
    """What a reference inside the document leads to; None for any other."""
    if not isinstance(reference, str) or len(reference) > MAX_REFERENCE_CHARS:
        return None
    start, *parts = reference.split("/")
    found = root if start == "#" else None
    for part in parts:
        key = _decode(part)
        if isinstance(found, Mapping):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def _decode(part: str) -> str:
    """A part of a reference as the key that it stands for."""
    return unquote(part).replace("~1", "/").replace("~0", "~")


def collect_strings(value: object, most: int) -> dict[str, None]:
    """The strings of a list, in its order, each once."""
    items = value[:most] if isinstance(value, list) else []
    return dict.fromkeys(item for item in items if isinstance(item, str))


def _list_of(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _merge(layers: list[Schema]) -> Schema:
    """One object schema for several; where they disagree, the first has its way."""
    properties: dict[str, object] = {}
    required: dict[str, None] = {}
    merged: dict[str, object] = {}
    for layer in layers:
        required |= collect_strings(layer.get("required"), MAX_PROPERTIES)
        if isinstance(found := layer.get("properties"), Mapping):
            keys = [key for key in _choose(found, required) if key in found]
            properties |= {key: found[key] for key in keys if key not in properties}
            if len(keys) < len(found):
                merged["additionalProperties"] = True
        for keyword in ("additionalProperties", "patternProperties"):
            if keyword in layer:
                merged.setdefault(keyword, layer[keyword])
    return merged | {"properties": properties, "required": list(required)}


def _choose(properties: Mapping[str, object], required: dict[str, None]) -> list[str]:
    """The keys to show, as declared; if there are too many, required ones come first."""
    keys = dict.fromkeys(islice(properties, MAX_PROPERTIES)) | required
    if max(len(keys), len(properties)) > MAX_PROPERTIES:
        keys = {**required, **keys}
    return [key for key in keys if _is_usable(key)][:MAX_PROPERTIES]


def _is_usable(key: object) -> bool:
    return isinstance(key, str) and len(key) <= MAX_KEY_CHARS and is_text(key)


def _is_short(schema: Schema) -> bool:
    """Whether a definition is no longer than its name would be."""
    values = schema.get("enum")
    is_long = isinstance(values, list) and len(values) > SHORT_ENUM
    return not is_long and not any(key in schema for key in _STRUCTURE)


def _is_plain_object(schema: Schema) -> bool:
    others = (*_COMBINATORS, "enum", "const", "nullable")
    return schema.get("type", "object") == "object" and not any(key in schema for key in others)


def _name_of(reference: str) -> str:
    """A name for what a reference leads to: its last part that was chosen by people."""
    for part in reversed(reference.split("/")):
        words = re.findall("[A-Za-z0-9]+", _decode(part))
        name = "".join(word[0].upper() + word[1:] for word in words)[:MAX_NAME_CHARS]
        if name and not name[0].isdigit() and part not in _PATH_KEYWORDS:
            return name
    return "Root" if reference == "#" else "Type"


def _find_back_edges(graph: Mapping[str, Iterable[str]]) -> set[tuple[str, str]]:
    """The edges without which no path leads back to where it began."""
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


def _render_literals(values: list[object]) -> Type:
    render = render_literal if len(values) <= MAX_LITERALS else render_kind_of
    options = tuple(dict.fromkeys(map(render, values[:MAX_ENUM])))
    return Type(options, width=len(options)) if len(values) <= MAX_ENUM else UNKNOWN


def _render_empty(schema: Schema) -> Type:
    return EMPTY_OBJECT if schema.get("additionalProperties") is False else OPEN_OBJECT


def _describe(schema: object, most: int) -> str:
    """What a schema says in words, and what a type cannot say, for one line of a comment."""
    if not isinstance(schema, Mapping):
        return ""
    text = clean_line(schema.get("description"), most)
    notes = [f"{key}: {shown}" for key in _NOTED if key in schema and (shown := _note(schema[key]))]
    if schema.get("type") == "integer" and (text or notes):
        notes.insert(0, "integer")
    return f"{text} ({clean_line(', '.join(notes), most)})".lstrip() if notes else text


def _note(value: object) -> str:
    if not isinstance(value, str | int | float):
        return ""
    if isinstance(value, str) and re.fullmatch(r"[\w-]{1,40}", value):
        return value
    made = render_literal(value)
    return made if made not in ("string", "number") else ""
