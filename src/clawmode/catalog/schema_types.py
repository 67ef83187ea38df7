"""JSON Schema as TypeScript: in full for a declaration file, or on one line of a prompt.

The schemas are untrusted. Whatever a schema contains, the result is valid TypeScript, takes a
bounded number of steps, and follows no reference out of the document; `unknown` stands for
everything that cannot be expressed. The one line says what a caller must write, and no more: it has
no comments and no aliases, marks what it leaves out by `...`, and writes `any` for `unknown`. It is
written by hand because the packages for this task start Node, and trust the schema.

In full, a definition that is referred to becomes an alias, so recursive types work, and definitions
that refer to each other take no more room than in the schema. Three rules of TypeScript shape the
code:

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
    FULL,
    INDEX,
    KEYS,
    LINE,
    MAX_DOC_CHARS,
    NEVER,
    NULL,
    PLAIN,
    Form,
    Limits,
    Member,
    RenderedType,
    Type,
    clean_line,
    describe,
    quote_key,
    render_note,
)

MAX_TUPLE = 20
MAX_ALIASES = 100
SHORT_DOC_CHARS = 80
STEP_CHARS = 8  # the cost of the smallest schema, so that endless empty ones run out of room too

# What encloses a reference in its alias: nothing, arrays, an intersection or a tuple, an object.
# Inside an object every reference is allowed, and so it is outside of aliases.
_Place: TypeAlias = Literal["bare", "list", "joined", "inside"]


STAGES = (Limits(), Limits(objects=2, docs=False), Limits(nesting=4, objects=0, docs=False))
"""A type that does not fit is rendered again in less detail, which drops inner properties first."""

MAX_LINE_CHARS = 400
LINE_STAGES = (
    (160, Limits(2_000, objects=1, docs=False)),
    (MAX_LINE_CHARS, Limits(2_000, objects=0, docs=False)),
    (MAX_LINE_CHARS, Limits(2_000, nesting=3, objects=0, docs=False)),
)
"""Most characters of a line, and the limits that apply: a longer line loses its inner objects."""

MAX_RESULT_CHARS = 160
RESULT_STAGES = tuple(Limits(2_000, objects=depth, docs=False) for depth in (3, 2, 1))


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
        renderer = _Renderer(schema, limits, FULL, prefix, taken)
        text = renderer.render_input(schema) if is_input else renderer.render(schema).text
        aliases = renderer.render_aliases()
        cost += limits.chars - renderer.room
        made = RenderedType(text, aliases, renderer.docs, renderer.optional, cost)
        if not renderer.overfull:
            break
    return made


def render_line(schema: Mapping[str, object]) -> str:
    """Returns the type of a tool's input on one line, such as `{path: string, limit?: number}`."""
    layers, unions = separate(schema, schema)
    whole = merge(layers) if len(layers) > 1 else schema
    for most, limits in LINE_STAGES:
        members = _Renderer(schema, limits, LINE).make_members(whole)
        line = LINE.lay_out(members)
        if len(line) <= most and (members or not unions):
            return line
    return "{...}"


def render_result(schema: Mapping[str, object] | None) -> str:
    """Returns the type of a tool's result on one line, such as `{id, lines: {sku, count}[]}`.

    Members of plain types are only named. The text is empty if the schema says nothing.
    """
    for limits in RESULT_STAGES if schema else ():
        made = _Renderer(schema, limits, KEYS).render(schema).text
        if made in ("any", "object", "any[]", "object[]", "null"):
            return ""
        if len(made) <= MAX_RESULT_CHARS:
            return made
    return ""


class _Renderer:
    """Renders one document within limits. `docs` and `optional` are those of `RenderedType`."""

    def __init__(
        self,
        root: object,
        limits: Limits,
        form: Form = FULL,
        prefix: str = "",
        taken: Collection[str] = (),
    ) -> None:
        self.room = limits.chars  # characters that are left
        self.overfull = False
        self.docs: dict[str, str] = {}
        self.optional = False
        self._root = root
        self._limits = limits
        self._form = form
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
            return self._form.unknown
        self._nesting += 1
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            made = self._form.unite_values(values)
            self._spend(len(made.text))
        else:
            made = self._render_demands(schema)
        self._nesting -= 1
        return self._form.unite([made, NULL]) if schema.get("nullable") is True else made

    def render_input(self, schema: object) -> str:
        """Returns the type of an argument, and sets `docs` and `optional`."""
        layers, unions = separate(self._root, schema)
        merged = merge(layers)
        members = self.make_members(merged, is_input=True)
        self.optional = not unions and not any(member.demanded for member in members)
        if not members and not unions:
            is_closed = merged.get("additionalProperties") is False
            return self._form.no_object.text if is_closed else "{}"
        text = self._form.lay_out(members, may_be_one_line=False)
        parts = [Type((text,))] if members else []
        with self._at("joined"):
            parts += [self._render_union(union) for union in unions]
        return self._form.intersect([self._form.any_object, *parts]).text

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

    def _render_demands(self, schema: Schema) -> Type:
        base = self._render_kinds(schema)
        if not any(key in schema for key in COMBINATORS):
            return base
        unions = [made for key in ("anyOf", "oneOf") if (made := list_of(schema.get(key)))]
        demands = list_of(schema.get("allOf"))[:MAX_MEMBERS]
        count = ("$ref" in schema) + len(unions) + len(demands)
        several = count + (base not in (self._form.unknown, self._form.any_object)) > 1
        with self._at("joined" if several else self._place):
            parts = [self._render_reference(schema["$ref"])] if "$ref" in schema else []
            parts += [self.render(demand) for demand in demands]
            parts += [self._render_union(union) for union in unions]
        return self._form.intersect([base, *parts])

    def _render_union(self, members: list[object]) -> Type:
        if len(members) > self._form.max_members:
            return self._form.unknown
        return self._form.unite([self.render(member) for member in members])

    def _render_kinds(self, schema: Schema) -> Type:
        kinds = schema.get("type")
        if kinds is None:
            if any(key in schema for key in OBJECT_KEYS):
                kinds = "object"
            elif any(key in schema for key in ARRAY_KEYS):
                kinds = "array"
        made: list[Type] = []
        unknown, notes = self._form.unknown, self._form.one_line and not self._form.names_only
        several = kinds if isinstance(kinds, list) and kinds else [kinds]
        for kind in several[: len(PRIMITIVES) + 2]:
            if kind == "object":
                made.append(self._render_object(schema))
            elif kind == "array":
                made.append(self._render_array(schema))
            else:
                name = PRIMITIVES.get(kind) if isinstance(kind, str) else None
                note = render_note(schema, name) if notes and name else ""
                made.append(Type((name + note,)) if name else unknown)
        return self._form.unite(made)

    def _render_reference(self, reference: object) -> Type:
        target = find_reference(self._root, reference)
        if not isinstance(target, Mapping) or is_short(target) or self._form.one_line:
            return self.render(target)
        if self._place == "joined" and not is_plain_object(target):
            if any(target is other for other in self._spelled):
                return self._form.unknown
            self._spelled.append(target)
            made = self.render(target)
            self._spelled.pop()
            return made
        if not (name := self._names.get(id(target))):
            if len(self._definitions) == MAX_ALIASES:
                return self._form.unknown
            base = name = self._prefix + name_of(str(reference))
            number = 2
            while name in self._taken:
                name, number = f"{base}{number}", number + 1
            self._taken.add(name)
            self._names[id(target)] = name
            self._definitions.append((name, target))
        if self._place == "bare":
            if (self._alias, name) in self._cuts:
                return self._form.unknown
            self._bare_uses[self._alias].append(name)
        self._spend(len(name))
        return Type((name,))

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
            return Type((f"{self._form.unknown.text}[]",))
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
        # On one line, maps are short enough to be written out at any depth.
        is_short = self._form.one_line and not schema.get("properties")
        if self._objects == self._limits.objects and not is_short:
            return self._form.any_object
        self._objects += 1
        members = self.make_members(schema)
        self._objects -= 1
        if members:
            return Type((self._form.lay_out(members),))
        is_closed = schema.get("additionalProperties") is False
        return self._form.no_object if is_closed else self._form.any_object

    def make_members(self, schema: Schema, *, is_input: bool = False) -> list[Member]:
        """Returns the members of an object's type."""
        found = schema.get("properties")
        properties: Mapping[str, object] = found if isinstance(found, Mapping) else {}
        required = collect_strings(schema.get("required"), MAX_PROPERTIES)
        most = MAX_DOC_CHARS if self._limits.docs else SHORT_DOC_CHARS * is_input
        form = self._form
        members: list[Member] = []
        with self._at("inside"):
            for key in choose_keys(properties, required, form.max_properties, form.max_key_chars):
                if self.overfull:
                    break
                value = properties.get(key)
                has_default = isinstance(value, Mapping) and "default" in value
                demanded = key in required and not (is_input and has_default)
                head = quote_key(key) + ("" if demanded else "?")
                doc = describe(value, most) if most else ""
                self._spend(len(head) + len(doc))
                if is_input and doc:
                    self.docs[key] = doc
                type_ = self.render(value).text
                if form.names_only and {*type_.split(" | ")} <= PLAIN:
                    type_ = ""
                elif form.one_line and not demanded:
                    type_ = type_.removesuffix(" | null")  # what can be left out need not be null
                members.append(Member(head, type_, "" if is_input else doc, demanded))
            if len(members) < len(properties) + sum(key not in properties for key in required):
                members.append(form.rest)
            elif not members or not form.one_line:
                index = self._render_index(schema)
                if index != NEVER and (not form.one_line or index != form.unknown):
                    members.append(Member(INDEX, form.unknown.text if members else index.text))
        return members

    def _render_index(self, schema: Schema) -> Type:
        """Returns the type of the properties that the schema does not name."""
        values = [schema.get("additionalProperties", False)]
        if isinstance(patterns := schema.get("patternProperties"), Mapping):
            values += islice(patterns.values(), MAX_MEMBERS)
        return self._form.unite([self.render(value) for value in values if value is not False])
