"""JSON Schema as TypeScript, written out: types and doc comments for a declaration file.

The schemas are untrusted. Whatever a schema contains, the result is valid TypeScript, takes a
bounded number of steps, and follows no reference out of the document; `unknown` stands for
everything that cannot be expressed. `signatures` renders a schema on one line of a prompt.

A definition that is referred to becomes an alias, so recursive types work, and definitions that
refer to each other take no more room than in the schema. Three rules of TypeScript shape the code:

- An alias may not refer to itself without an object or array in between: such a reference becomes
  `unknown`. A tuple in between is not enough, because TypeScript resolves some tuples eagerly.
- An intersection of unions may not have too many combinations: inside an intersection, a reference
  is written out unless its target is a plain object, so that the combinations can be counted.
- A property must match the index signature of its object: if it may not, the index signature is
  `unknown`.
"""

from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeAlias

from clawmode.catalog.schema_reading import (
    ARRAY_KEYS,
    COMBINATORS,
    MAX_MEMBERS,
    MAX_PROPERTIES,
    OBJECT_KEYS,
    PRIMITIVES,
    Schema,
    choose_keys,
    collect_strings,
    describe,
    find_back_edges,
    find_reference,
    is_plain_object,
    is_short,
    list_of,
    merge,
    name_of,
    separate,
)
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
    lay_out,
    quote_key,
    render_kind_of,
    render_literal,
    unite,
)

MAX_LITERALS = 60  # longer enums are rendered as the kinds of their values
MAX_ENUM = 10_000
MAX_TUPLE = 20
MAX_ALIASES = 100
SHORT_DOC_CHARS = 80
STEP_CHARS = 8  # the cost of the smallest schema, so that endless empty ones run out of room too

_Place: TypeAlias = Literal["bare", "list", "joined", "inside"]
"""What encloses a reference in its alias: nothing, arrays, an intersection or a tuple, an object.

Inside an object every reference is allowed, and so it is outside of aliases.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """The size and detail of a rendered type.

    Attributes:
        chars: Characters in total, indentation not counted exactly.
        nesting: Levels of nested schemas.
        objects: Levels of nested objects that are written out.
        docs: True to describe inner properties, and those of an input at length.
    """

    chars: int = 16_000
    nesting: int = 16
    objects: int = 16
    docs: bool = True


STAGES = (Limits(), Limits(objects=2, docs=False), Limits(nesting=4, objects=0, docs=False))
"""A type that does not fit is rendered again in less detail, which drops inner properties first."""


@dataclass(frozen=True, slots=True)
class RenderedType:
    """The text of a type, and the declarations that it needs.

    Attributes:
        text: The type. It may have several lines.
        aliases: The declarations of aliases that the text uses, by name.
        docs: One line about each property of an input that has a description or constraints.
        optional: True if no property of the input is required.
        cost: Characters that were rendered, including discarded attempts.
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
) -> RenderedType:
    """Renders a schema as a type.

    Args:
        schema: The whole document, in which references are looked up.
        is_input: True for a tool's argument: it is an object, its properties with a default are
            optional, and their descriptions are in `docs` instead of the text.
        prefix: Prepended to the names of aliases.
        taken: Names that aliases may not have.
        stages: Limits to try in turn until the type fits.
    """
    cost = 0
    made = RenderedType("unknown", {}, {}, False, 0)
    for limits in stages:
        renderer = _Renderer(schema, limits, prefix, taken)
        text = renderer.render_input(schema) if is_input else renderer.render(schema).text
        aliases = renderer.render_aliases()
        cost += limits.chars - renderer.room
        made = RenderedType(text, aliases, renderer.docs, renderer.optional, cost)
        if not renderer.overfull:
            break
    return made


class _Renderer:
    """Renders one document within limits.

    Attributes:
        room: Characters that are left.
        overfull: True if the room was not enough.
        docs, optional: As in `RenderedType`.
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
        self._names: dict[int, str] = {}  # by `id` of the definition, which `root` keeps alive
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
        """Returns the type of an argument, and sets `docs` and `optional`."""
        layers, unions = separate(self._root, schema)
        merged = merge(layers)
        members = self._make_members(merged, is_input=True)
        self.optional = not unions and not any(member.demanded for member in members)
        if not members and not unions:
            return "{}" if _render_empty(merged) == OPEN_OBJECT else EMPTY_OBJECT.text
        parts = [Type((lay_out(members, may_be_one_line=False),))] if members else []
        with self._at("joined"):
            parts += [self._render_union(union) for union in unions]
        return intersect([OPEN_OBJECT, *parts]).text

    def render_aliases(self) -> dict[str, str]:
        """Returns the declarations of all definitions that were referred to."""
        made: dict[str, str] = {}
        self._declare_missing(made)
        # Circular aliases are only known now, and are rendered again with the circles cut.
        self._cuts = find_back_edges(self._bare_uses)
        for name in {name for name, _ in self._cuts}:
            del made[name]
        self._declare_missing(made)
        return made

    def _declare_missing(self, made: dict[str, str]) -> None:
        for name, schema in self._definitions:  # the list grows during this loop
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

    # Schemas

    def _render_schema(self, schema: Schema) -> Type:
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            render = render_literal if len(values) <= MAX_LITERALS else render_kind_of
            options = tuple(dict.fromkeys(map(render, values[:MAX_ENUM])))
            many = len(values) > MAX_ENUM
            made = UNKNOWN if many else Type(options, width=len(options))
            self._spend(len(made.text))
        else:
            made = self._render_demands(schema)
        return unite([made, NULL]) if schema.get("nullable") is True else made

    def _render_demands(self, schema: Schema) -> Type:
        base = self._render_kinds(schema)
        if not any(key in schema for key in COMBINATORS):
            return base
        unions = [made for key in ("anyOf", "oneOf") if (made := list_of(schema.get(key)))]
        demands = list_of(schema.get("allOf"))[:MAX_MEMBERS]
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
            if any(key in schema for key in OBJECT_KEYS):
                kinds = "object"
            elif any(key in schema for key in ARRAY_KEYS):
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
        if not isinstance(target, Mapping) or is_short(target):
            return self.render(target)
        if self._place == "joined" and not is_plain_object(target):
            if any(target is other for other in self._spelled):
                return UNKNOWN
            self._spelled.append(target)
            made = self.render(target)
            self._spelled.pop()
            return made
        name = self._names.get(id(target)) or self._make_name(str(reference), target)
        if not name or (self._place == "bare" and (self._alias, name) in self._cuts):
            return UNKNOWN
        if self._place == "bare":
            self._bare_uses[self._alias].append(name)
        self._spend(len(name))
        return Type((name,))

    def _make_name(self, reference: str, target: Schema) -> str:
        if len(self._definitions) == MAX_ALIASES:
            return ""
        base = self._prefix + name_of(reference)
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
            for key in choose_keys(properties, required):
                if self.overfull:
                    break
                value = properties.get(key)
                has_default = isinstance(value, Mapping) and "default" in value
                demanded = key in required and not (is_input and has_default)
                members.append(self._make_member(key, value, demanded, is_input))
            # With an index signature, callers can still pass the properties that were left out.
            is_cut = len(members) < len(properties) + sum(key not in properties for key in required)
            if index := "unknown" if is_cut else self._render_index(schema, alone=not members):
                members.append(Member("[key: string]", index))
        return members

    def _make_member(self, key: str, value: object, demanded: bool, is_input: bool) -> Member:
        head = quote_key(key) + ("" if demanded else "?")
        most = MAX_DOC_CHARS if self._limits.docs else SHORT_DOC_CHARS * is_input
        doc = describe(value, most) if most else ""
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


def _render_empty(schema: Schema) -> Type:
    return EMPTY_OBJECT if schema.get("additionalProperties") is False else OPEN_OBJECT
