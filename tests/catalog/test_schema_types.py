"""Types from schemas: what each says, that none is refused by TypeScript, and none runs away."""

import json
import time
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st
from tests.support.compiler import Compiler, find_compiler
from tests.support.fuzzing import examples

from clawmode.catalog.schema_types import STAGES, render_type
from clawmode.catalog.typescript_text import clean_line, clean_lines, quote, render_comment
from clawmode.types import JsonValue

T = TypeVar("T")
GENERATE = (Phase.generate,)

DEFINITIONS: dict[str, JsonValue] = {
    "Color": {"enum": ["red", "blue"]},
    "Point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
    "Either": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "string"}]},
    "a/b c": {"type": "object", "properties": {"y": {"type": "number"}}},
}


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return find_compiler(tmp_path)


def one(schema: JsonValue, **definitions: JsonValue) -> str:
    """The type of a schema, and the aliases that it needs, if any."""
    made = render_type({"anyOf": [schema], "$defs": {**definitions}})
    return "\n".join([made.text, *made.aliases.values()])


def declare(schemas: list[JsonValue]) -> str:
    """A module with all of them, each in a namespace of its own."""
    parts: list[str] = []
    for number, schema in enumerate(schemas):
        for kind, is_input in (("I", True), ("T", False)):
            made = render_type(schema, is_input=is_input)
            parts += [f"declare namespace {kind}{number} {{", *made.aliases.values()]
            parts += [f"type Whole = {made.text};", "}"]
    return "\n".join(parts)


# ---- What a type says ----


@pytest.mark.parametrize(
    ("schema", "rendered"),
    [
        ({"type": "string"}, "string"),
        ({"type": "integer"}, "number"),
        ({"type": ["string", "null"]}, "string | null"),
        ({"type": "string", "nullable": True}, "string | null"),
        ({"type": "array"}, "unknown[]"),
        ({"type": "array", "items": {"type": ["string", "number"]}}, "(string | number)[]"),
        ({"items": False}, "never[]"),
        ({"enum": ["a", 1, -2.5, True, None]}, '"a" | 1 | -2.5 | true | null'),
        ({"enum": [[1], {"b": 2}]}, "unknown[] | { [key: string]: unknown }"),
        ({"enum": ["x" * 200, 10**400, float("inf")]}, "string | number"),
        ({"enum": [f"v{n}" for n in range(61)]}, "string"),
        ({"enum": [*range(60), True, None]}, "number | boolean | null"),
        ({"enum": list(range(10_001))}, "unknown"),
        ({"enum": []}, "unknown"),
        ({"const": "on"}, '"on"'),
        ({"const": None}, "null"),
        ({"type": "object"}, "{ [key: string]: unknown }"),
        ({"type": "object", "additionalProperties": False}, "Record<string, never>"),
        ({"additionalProperties": {"type": "number"}}, "{ [key: string]: number }"),
        ({"patternProperties": {"^x": {"type": "number"}}}, "{ [key: string]: number }"),
        ({"properties": {"b": {"type": "string"}}}, "{ b?: string }"),
        (
            {"properties": {"b": {"type": "string"}}, "additionalProperties": {"type": "number"}},
            "{ b?: string; [key: string]: unknown }",
        ),
        ({"required": ["b"]}, "{ b: unknown }"),
        (
            {"required": ["b"], "properties": {"b": {"default": 1}}},
            "{\n  /** (default: 1) */\n  b: unknown;\n}",
        ),
        ({"properties": {"b": False}}, "{ b?: never }"),
        # Tuples, as the drafts have them
        ({"prefixItems": [{"type": "string"}, {"type": "number"}]}, "[string, number]"),
        ({"items": [{"type": "string"}, {"enum": [1, 2]}], "minItems": 1}, "[string, (1 | 2)?]"),
        (
            {"prefixItems": [{"type": "string"}], "items": {"type": "number"}},
            "[string, ...number[]]",
        ),
        ({"items": [{"type": "string"}], "additionalItems": True}, "[string, ...unknown[]]"),
        ({"prefixItems": [{"type": "string"}], "items": False}, "[string]"),
        ({"prefixItems": [{}], "minItems": True}, "[unknown]"),
        ({"prefixItems": [{}] * 21}, "unknown[]"),
        # Several demands
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string | null"),
        ({"oneOf": [{"const": "a"}, {"const": "b"}]}, '"a" | "b"'),
        ({"anyOf": [{"type": "string"}, {}]}, "unknown"),
        ({"anyOf": [{"type": "string"}, False]}, "string"),
        ({"anyOf": [{"const": n} for n in range(61)]}, "unknown"),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, "string"),
        ({"allOf": [{"type": "string"}, False]}, "never"),
        (
            {"allOf": [{"required": ["b"]}, {"required": ["c"]}]},
            "{ b: unknown } & { c: unknown }",
        ),
        (
            {"properties": {"b": {}}, "anyOf": [{"required": ["b"]}, {"required": ["c"]}]},
            "{ b?: unknown } & ({ b: unknown } | { c: unknown })",
        ),
        ({"type": "object", "oneOf": [{"required": ["b"]}]}, "{ b: unknown }"),
        (
            {"type": "array", "items": {"allOf": [{"required": ["b"]}, {"required": ["c"]}]}},
            "({ b: unknown } & { c: unknown })[]",
        ),
        # References
        ({"$ref": "#/$defs/Color"}, '"red" | "blue"'),
        ({"$ref": "#/$defs/Point"}, "Point\ntype Point = { x: number };"),
        ({"$ref": "#/$defs/a~1b%20c"}, "ABC\ntype ABC = { y?: number };"),
        (
            {"$ref": "#/$defs/Point", "required": ["z"]},
            "{ z: unknown } & Point\ntype Point = { x: number };",
        ),
        ({"$ref": "#/$defs/Either/anyOf/1"}, "string"),
        ({"$ref": "#/$defs/Either/anyOf/9"}, "unknown"),
        ({"$ref": "#/$defs/Missing"}, "unknown"),
        ({"$ref": "#anchor"}, "unknown"),
        ({"$ref": "https://example.org/schema.json"}, "unknown"),
        ({"$ref": "file:///etc/passwd"}, "unknown"),
        ({"$ref": ["#/$defs/Color"]}, "unknown"),
        ({"$ref": "#/" + "$defs/" * 200}, "unknown"),
        # Nonsense
        ({}, "unknown"),
        (True, "unknown"),
        (None, "unknown"),
        ("string", "unknown"),
        ({"type": "date"}, "unknown"),
        ({"type": []}, "unknown"),
        ({"type": [["string"], {}]}, "unknown"),
        (
            {"type": "object", "properties": ["a"], "required": {"a": 1}},
            "{ [key: string]: unknown }",
        ),
        ({"anyOf": {}, "allOf": "x", "oneOf": [], "enum": {"a": 1}}, "unknown"),
        ({"type": "array", "prefixItems": {}, "items": "x"}, "unknown[]"),
        ({"properties": {"\ud800": {}}}, "{ [key: string]: unknown }"),
    ],
)
def test_a_schema_becomes_the_type_that_it_describes(schema: JsonValue, rendered: str) -> None:
    assert one(schema, **DEFINITIONS) == rendered


def test_recursion_stays_recursion() -> None:
    node: JsonValue = {
        "type": "object",
        "properties": {
            "next": {"$ref": "#/$defs/Node"},
            "all": {"items": {"$ref": "#/$defs/Node"}},
        },
    }
    assert one({"$ref": "#/$defs/Node"}, Node=node) == (
        "Node\ntype Node = { next?: Node; all?: Node[] };"
    )
    assert render_type({"properties": {"up": {"$ref": "#"}}}).aliases == {
        "Root": "type Root = { up?: Root };"
    }


def test_a_definition_that_is_only_itself_is_cut_and_nothing_else_is() -> None:
    either: JsonValue = {"anyOf": [{"$ref": "#/$defs/Or"}, {"type": "string"}]}
    other: JsonValue = {"anyOf": [{"$ref": "#/$defs/Either"}, {"items": {"$ref": "#/$defs/Or"}}]}
    made = one({"$ref": "#/$defs/Either"}, Either=either, Or=other)
    assert made == "Either\ntype Either = Or | string;\ntype Or = unknown;"


def test_words_about_inner_properties_stand_above_them() -> None:
    inner: JsonValue = {
        "description": "A place",
        "properties": {"x": {"type": "integer", "minimum": 0, "description": "To the\nright"}},
    }
    assert one({"$ref": "#/$defs/Place"}, Place=inner) == (
        "Place\n/** A place */\ntype Place = {\n  /** To the right (integer, minimum: 0) */\n"
        "  x?: number;\n};"
    )


@pytest.mark.covers("MC-8")
def test_an_input_has_optional_defaults_and_words_apart() -> None:
    schema: JsonValue = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Where"},
            "limit": {"type": "integer", "default": 10},
            "when": {"type": "string", "format": "date-time"},
            "mode": {"enum": ["a", "b"], "default": "a"},
            "plain": {"type": "string"},
        },
        "required": ["path", "limit", "mode"],
    }
    made = render_type(schema, is_input=True)
    assert made.text.split("\n") == [
        "{",
        "  path: string;",
        "  limit?: number;",
        "  when?: string;",
        '  mode?: "a" | "b";',
        "  plain?: string;",
        "}",
    ]
    assert made.docs == {
        "path": "Where",
        "limit": "(integer, default: 10)",
        "when": "(format: date-time)",
        "mode": "(default: a)",
    }
    assert not made.optional


@pytest.mark.parametrize(
    ("schema", "text", "optional"),
    [
        ({}, "{}", True),
        (None, "{}", True),
        ({"type": "object", "properties": {}}, "{}", True),
        ({"type": "object", "additionalProperties": False}, "Record<string, never>", True),
        ({"additionalProperties": True}, "{\n  [key: string]: unknown;\n}", True),
        ({"properties": {"a": {}}, "required": ["a"]}, "{\n  a: unknown;\n}", False),
        ({"properties": {"a": {"default": 1}}, "required": ["a"]}, "{\n  a?: unknown;\n}", True),
        (
            {"$ref": "#/definitions/In", "definitions": {"In": {"required": ["a"]}}},
            "{\n  a: unknown;\n}",
            False,
        ),
        (
            {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}, "required": ["b"]}]},
            "{\n  a?: unknown;\n  b: unknown;\n}",
            False,
        ),
        (
            {"properties": {"a": {}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            "{\n  a?: unknown;\n} & ({ a: unknown } | { b: unknown })",
            False,
        ),
        ({"anyOf": [{"type": "object"}, {}]}, "{ [key: string]: unknown }", False),
    ],
)
def test_an_input_is_one_object(schema: JsonValue, text: str, optional: bool) -> None:
    made = render_type(schema, is_input=True)
    assert (made.text, made.optional) == (text, optional)


def test_keys_are_quoted_where_they_must_be_and_stay_legible() -> None:
    properties: JsonValue = dict.fromkeys(["a-b", "é", "$top", "", "\n\u2028\u202e", '"\\', "in"])
    lines = render_type({"properties": properties}).text.split("\n")
    assert [line.strip().removesuffix("?: unknown;") for line in lines[1:-1]] == [
        '"a-b"',
        '"é"',
        "$top",
        '""',
        r'"\n\u{2028}\u{202e}"',
        r'"\"\\"',
        "in",
    ]


def test_there_is_an_end_to_aliases() -> None:
    made = render_type(
        {
            "properties": {f"p{n}": {"$ref": f"#/$defs/D{n}"} for n in range(150)},
            "$defs": {f"D{n}": {"required": ["a"]} for n in range(150)},
        }
    )
    assert len(made.aliases) == 100
    assert "p99?: D99;" in made.text
    assert "p100?: unknown;" in made.text


def test_names_of_aliases_can_be_kept_apart() -> None:
    root: JsonValue = {"$ref": "#/$defs/Point", "$defs": DEFINITIONS}
    assert render_type(root, prefix="Move").text == "MovePoint"
    assert render_type(root, taken=["Point", "Point2"]).text == "Point3"
    record: JsonValue = {"$ref": "#/$defs/Record", "$defs": {"Record": DEFINITIONS["Point"]}}
    assert render_type(record).text == "Record2"


# ---- Comments and strings ----


@pytest.mark.covers("MC-8")
@pytest.mark.parametrize(
    "text", ["*/", "**/", "a*/b", "*/*/", "\n*/\n", "/* */", "*\u2028/", "*\x00/"]
)
def test_no_text_ends_the_comment_it_is_in(text: str) -> None:
    assert "*/" not in clean_line(text)
    for comment in (render_comment([clean_line(text)]), render_comment(clean_lines(text, 99))):
        assert comment.count("*/") == bool(comment)
        assert comment.endswith("*/\n" if comment else "")


def test_a_text_keeps_its_lines_and_loses_what_cannot_be_seen() -> None:
    text = "\n    First.\n\n\n      - one\u202e\n    \ud800last \U000e0041 \x1b[1m  \n\n    \x00"
    assert clean_lines(text, 500) == ["First.", "", "  - one", "last [1m"]


@pytest.mark.covers("MC-8")
def test_long_texts_are_cut() -> None:
    assert clean_line("word " * 10_000, 20) == "word word word word…"
    assert clean_lines("x" * 10_000, 100) == ["x" * 100 + "…"]
    assert clean_line(5) == ""
    assert clean_lines(None, 9) == []


def test_a_quoted_text_is_what_it_was() -> None:
    assert quote("é\u2029😀\x7f\U000e0001") == r'"é\u{2029}😀\u{7f}\u{e0001}"'


# ---- Bounds ----


def nested(depth: int, key: str) -> JsonValue:
    made: JsonValue = {"type": "string"}
    for _ in range(depth):
        inner: JsonValue = {"a": made} if key == "properties" else made
        made = {key: [inner] if key.endswith("Of") else inner}
    return made


ME: JsonValue = {"$ref": "#/$defs/Me"}
KNOTS: list[JsonValue] = [
    ME,
    {"items": ME},
    {"items": {"items": ME}},
    {"items": {"prefixItems": [{"items": ME}], "minItems": 0}},
    {"prefixItems": [ME, ME], "minItems": 1, "items": ME},
    {"prefixItems": [{"items": ME}], "minItems": 0, "items": {"items": ME}},
    {"properties": {"a": ME}, "additionalProperties": ME},
    {"additionalProperties": ME},
    {"allOf": [ME, {"required": ["a"]}]},
    {"items": {"allOf": [ME, {"required": ["a"]}]}},
]


def knotted(knot: JsonValue, kind: str) -> JsonValue:
    """A definition that leads to itself, alone or in one of the ways to combine."""
    wrapped: dict[str, JsonValue] = {
        "alone": knot,
        "anyOf": {"anyOf": [knot, {"type": "null"}]},
        "allOf": {"allOf": [knot, {"required": ["b"]}]},
        "nullable": {"anyOf": [knot], "nullable": True},
    }
    return {"properties": {"a": ME}, "$defs": {"Me": wrapped[kind]}}


def fan_out(levels: int, kind: str) -> JsonValue:
    """Definitions that each refer twice to the next: 2^levels if it is spelled out."""
    definitions: dict[str, JsonValue] = {f"D{levels}": {"required": ["end"]}}
    for level in range(levels):
        next_one: dict[str, Any] = {"$ref": f"#/$defs/D{level + 1}"}
        shapes: dict[str, JsonValue] = {
            "properties": {"properties": {"a": next_one, "b": next_one}},
            "prefixItems": {"prefixItems": [next_one, next_one]},
            "anyOf": {"anyOf": [next_one, {"anyOf": [next_one, {"required": [f"r{level}"]}]}]},
            "allOf": {"allOf": [next_one, {"anyOf": [next_one, {"required": [f"r{level}"]}]}]},
            "joined": {
                "anyOf": [
                    {"required": [f"r{level}"], "allOf": [next_one]},
                    {"required": [f"s{level}"], "allOf": [next_one]},
                ]
            },
        }
        definitions[f"D{level}"] = shapes[kind]
    return {"$defs": definitions, "properties": {"a": {"$ref": "#/$defs/D0"}}}


FANS = ["properties", "prefixItems", "anyOf", "allOf", "joined"]
LIMIT = 3 * sum(limits.chars for limits in STAGES)


def size_of(schema: JsonValue) -> int:
    """How much is made of a schema, in less than a second."""
    start = time.process_time()
    made = [render_type(schema), render_type(schema, is_input=True)]
    assert time.process_time() - start < 1
    return max(len(part.text) + sum(map(len, part.aliases.values())) for part in made)


@pytest.mark.covers("MC-8")
@pytest.mark.parametrize("key", ["properties", "items", "anyOf", "allOf", "additionalProperties"])
def test_a_deep_schema_ends_early(key: str) -> None:
    assert size_of(nested(1_000, key)) < 2_000


@pytest.mark.covers("MC-8")
@pytest.mark.parametrize("kind", FANS)
def test_definitions_that_fan_out_do_not_explode(kind: str) -> None:
    assert size_of(fan_out(90, kind)) < LIMIT


@pytest.mark.covers("MC-8")
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {f"p{n}": {"type": "string"} for n in range(50_000)}},
        {"properties": {"x" * 100_000: {}}, "required": ["y" * 100_000] * 1_000},
        {"anyOf": [{"required": [f"p{n}"]} for n in range(50_000)]},
        {"allOf": [{"required": [f"p{n}"]} for n in range(50_000)]},
        {"enum": [f"v{n}" for n in range(50_000)]},
        {"properties": {"a": {"description": "x" * 1_000_000, "default": "y" * 1_000_000}}},
        {"properties": {"a": {"default": nested(500, "items")}}},
        {"$ref": "#/" + "a/" * 500_000},
        {
            "properties": {
                f"p{n}": {"enum": ["v" * 90 + str(i) for i in range(60)]} for n in range(200)
            }
        },
    ],
)
def test_a_huge_schema_makes_a_short_type(schema: JsonValue) -> None:
    assert size_of(schema) < LIMIT


def test_what_does_not_fit_loses_inner_properties_first_and_can_still_be_given() -> None:
    inner: JsonValue = {"properties": {f"inner_{n}": {"type": "string"} for n in range(100)}}
    schema: JsonValue = {"properties": {f"outer_{n}": inner for n in range(100)}}
    text = render_type(schema, is_input=True).text
    assert all(f"outer_{n}?" in text for n in range(100))
    assert "inner" not in text
    many: JsonValue = {"properties": {f"p{n}": {} for n in range(300)}, "required": ["p299"]}
    text = render_type(many, is_input=True).text
    assert text.startswith("{\n  p299: unknown;")
    assert text.endswith("  [key: string]: unknown;\n}")


def test_intersections_of_unions_are_counted(compiler: Compiler) -> None:
    unions: list[JsonValue] = [
        {"anyOf": [{"required": [f"{name}{n}"]} for n in range(20)]} for name in "abc"
    ]
    schema: JsonValue = {"allOf": [*unions, {"required": ["z"]}]}
    text = render_type({"properties": {"a": schema}}).text
    assert "z: unknown" in text
    assert compiler.errors(a_d_ts=f"type A = {text};") == []


# ---- The compiler's word ----

KEYWORDS = [
    "type", "properties", "required", "items", "prefixItems", "additionalProperties", "enum",
    "const", "anyOf", "oneOf", "allOf", "$ref", "$defs", "nullable", "default", "description",
    "patternProperties", "minItems", "format", "definitions",
]  # fmt: skip
WORDS = [
    "object", "array", "string", "null", "#", "#/$defs/A", "#/$defs/B", "#/properties/A", "A", "B",
    "*/", "\u2028", "\n", '"', "\\", "__proto__", "constructor", "in", "readonly", "é", "\ud800",
]  # fmt: skip

nonsense: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYWORDS + WORDS), inner, max_size=5)
    ),
    max_leaves=12,
)


def references(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas that make sense by themselves, and refer to each other in whatever way."""
    some = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from(["a", "b", "c-d", "*/"]), inner, max_size=3)
    required = st.lists(st.sampled_from(["a", "b", "z"]), max_size=2)
    shapes: list[dict[str, st.SearchStrategy[Any]]] = [
        {"properties": named, "required": required},
        {"properties": named, "additionalProperties": inner},
        {"items": inner},
        {"prefixItems": some, "minItems": st.integers(0, 3), "items": inner},
        {"anyOf": some},
        {"allOf": some},
        {"anyOf": some, "properties": named},
        {"allOf": some, "oneOf": some, "required": required},
        {"$ref": st.sampled_from(["#/$defs/A", "#/$defs/B", "#/$defs/C", "#"]), "anyOf": some},
    ]
    return st.one_of([st.fixed_dictionaries(shape) for shape in shapes])


leaf: st.SearchStrategy[Any] = st.sampled_from(["#/$defs/A", "#/$defs/B", "#/$defs/C", "#"]).map(
    lambda to: {"$ref": to}
) | st.sampled_from(["string", "null", "object"]).map(lambda kind: {"type": kind})
tangle = st.recursive(leaf, references, max_leaves=8)
tangles: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {
        "$defs": st.fixed_dictionaries(dict.fromkeys("ABC", tangle)),
        "properties": st.fixed_dictionaries({"a": tangle, "b": tangle}),
    }
)


def collect(strategy: st.SearchStrategy[T], count: int) -> list[T]:
    """Examples, to be compiled at once: a compiler's start takes longer than its work."""
    found: list[T] = []

    @examples(count, derandomize=True, database=None, phases=GENERATE)
    @given(strategy)
    def gather(example: T) -> None:
        found.append(example)

    gather()
    return found


@pytest.mark.covers("MC-8")
@pytest.mark.parametrize("strategy", [nonsense, tangles], ids=["nonsense", "tangles"])
def test_no_schema_makes_anything_but_typescript(
    strategy: st.SearchStrategy[JsonValue], compiler: Compiler
) -> None:
    assert compiler.errors(all_d_ts=declare(collect(strategy, 250))) == []


@pytest.mark.covers("MC-8")
def test_every_way_to_refer_to_oneself_is_typescript(compiler: Compiler) -> None:
    kinds = ("alone", "anyOf", "allOf", "nullable")
    knots = [knotted(knot, kind) for knot in KNOTS for kind in kinds]
    assert compiler.errors(all_d_ts=declare(knots)) == []


@pytest.mark.covers("MC-8")
def test_bombs_are_typescript_too(compiler: Compiler) -> None:
    bombs = [fan_out(levels, kind) for kind in FANS for levels in (3, 12, 90)]
    deep = [nested(1_000, key) for key in ("properties", "items", "anyOf", "allOf")]
    assert compiler.errors(all_d_ts=declare(bombs + deep)) == []


# ---- Values that fit a schema fit its type ----

Pair: TypeAlias = tuple[JsonValue, JsonValue]
"""A schema, and a value that fits it."""

KEYS = ["a", "b-c", "d", "*/", "é", "in"]


def make_object(members: dict[str, Pair], left_out: set[str]) -> Pair:
    properties: JsonValue = {key: schema for key, (schema, _) in members.items()}
    required: list[JsonValue] = [key for key in members if key not in left_out]
    value: JsonValue = {key: value for key, (_, value) in members.items() if key not in left_out}
    return {"type": "object", "properties": properties, "required": required[1:]}, value


def make_larger(pairs: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    several = st.lists(pairs, min_size=1, max_size=3)
    members = st.dictionaries(st.sampled_from(KEYS), pairs, max_size=4)
    return st.one_of(
        st.builds(make_object, members, st.sets(st.sampled_from(KEYS))),
        pairs.map(lambda pair: ({"type": "array", "items": pair[0]}, [pair[1], pair[1]])),
        pairs.map(lambda pair: ({"additionalProperties": pair[0]}, {"k": pair[1]})),
        pairs.map(lambda pair: ({"allOf": [pair[0], {"minLength": 0}]}, pair[1])),
        pairs.map(lambda pair: ({"anyOf": [pair[0]], "nullable": True}, None)),
        several.map(lambda some: ({"prefixItems": [s for s, _ in some]}, [v for _, v in some])),
        several.map(lambda some: ({"oneOf": [s for s, _ in some]}, some[-1][1])),
    )


SIMPLE: list[Pair] = [
    ({"type": "string"}, 'x\n"'),
    ({"type": "integer"}, 3),
    ({"type": ["number", "null"]}, None),
    ({"enum": ["a", 1, None]}, 1),
    ({"const": "*/\u2028"}, "*/\u2028"),
    ({"type": "boolean"}, False),
    ({"$ref": "#/$defs/Tree"}, {"children": [{"label": "x"}]}),
    ({"$ref": "#/$defs/Json"}, {"k": [1, None, {"deep": ["x"]}]}),
    ({}, {"any": ["thing"]}),
    ({"type": "object"}, {"p": 1}),
]
COMMON: JsonValue = {
    "Tree": {
        "type": "object",
        "properties": {
            "label": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
        },
        "additionalProperties": False,
    },
    "Json": {
        "anyOf": [
            {"type": ["string", "number", "boolean", "null"]},
            {"type": "array", "items": {"$ref": "#/$defs/Json"}},
            {"type": "object", "additionalProperties": {"$ref": "#/$defs/Json"}},
        ]
    },
}
fitting: st.SearchStrategy[Pair] = st.recursive(st.sampled_from(SIMPLE), make_larger, max_leaves=8)


def assign(values: list[JsonValue]) -> str:
    """A program in which each value stands where the type of its schema is asked for."""
    return "\n".join(
        f"const v{number}: T{number}.Whole = {{ v: {json.dumps(value)} }};"
        for number, value in enumerate(values)
    )


@pytest.mark.covers("MC-8")
def test_a_value_that_fits_a_schema_fits_its_type(compiler: Compiler) -> None:
    pairs = collect(fitting, 300)
    schemas: list[JsonValue] = [
        {"properties": {"v": schema}, "required": ["v"], "$defs": COMMON} for schema, _ in pairs
    ]
    program = assign([value for _, value in pairs])
    assert compiler.errors(types_d_ts=declare(schemas), program_ts=program) == []


@pytest.mark.covers("MC-8")
def test_a_value_that_does_not_fit_is_refused(compiler: Compiler) -> None:
    wrong: list[Pair] = [
        ({"type": "string"}, 1),
        ({"type": "integer"}, "1"),
        ({"enum": ["a", "b"]}, "c"),
        ({"type": "array", "items": {"type": "string"}}, ["a", 1]),
        ({"prefixItems": [{"type": "string"}, {"type": "number"}]}, ["a"]),
        ({"properties": {"a": {}}, "required": ["a"]}, {}),
        ({"properties": {"able": {}}}, {"abel": 1}),
        ({"additionalProperties": {"type": "number"}}, {"k": "x"}),
        ({"$ref": "#/$defs/Tree"}, {"children": [{"children": [{"label": 1}]}]}),
        ({"allOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1}),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {}),
        ({"type": "object", "additionalProperties": False}, {"a": 1}),
    ]
    schemas: list[JsonValue] = [
        {"properties": {"v": schema}, "required": ["v"], "$defs": COMMON} for schema, _ in wrong
    ]
    program = assign([value for _, value in wrong])
    found = compiler.errors(types_d_ts=declare(schemas), program_ts=program)
    assert sorted({line.partition(": ")[2] for line in found}) == sorted(program.split("\n"))
