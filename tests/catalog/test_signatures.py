"""Signatures: how a schema looks on one line, and that no schema breaks the line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import examples

from clawmode.catalog.schema_types import MAX_LINE_CHARS, render_line
from clawmode.types import JsonValue

quickly = examples(100, derandomize=True)

KEYWORDS = ["type", "properties", "required", "items", "enum", "const", "anyOf", "allOf", "$ref"]
WORDS = ["object", "array", "string", "#/", "#/$defs", "\n"]
anything: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS + WORDS), inner)
    ),
    max_leaves=10,
)


def one(schema: JsonValue, **definitions: JsonValue) -> str:
    """The type of one required property with this schema."""
    made = render_line(
        {"type": "object", "properties": {"a": schema}, "required": ["a"], "$defs": definitions}
    )
    assert made.startswith("{a: ")
    return made.removeprefix("{a: ").removesuffix("}")


def test_required_and_optional_properties_are_told_apart() -> None:
    schema: dict[str, JsonValue] = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["path"],
    }
    assert render_line(schema) == "{path: string, limit?: number}"


@pytest.mark.parametrize(
    ("schema", "rendered"),
    [
        ({"type": "string"}, "string"),
        ({"type": "number"}, "number"),
        ({"type": "integer"}, "number"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "null"}, "null"),
        ({"type": "array"}, "any[]"),
        ({"type": "array", "items": {"type": "string"}}, "string[]"),
        ({"items": {"type": "string"}}, "string[]"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, '("a" | "b")[]'),
        ({"type": ["string", "null"]}, "string | null"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string | null"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "number"),
        ({"anyOf": [{"type": "string"}, {}]}, "any"),
        ({"allOf": [{"type": "string"}]}, "string"),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, "string"),
        ({"allOf": [{"required": ["b"]}, {"required": ["c"]}]}, "{b: any} & {c: any}"),
        ({"type": "string", "nullable": True}, "string | null"),
        ({"prefixItems": [{"type": "string"}, {"type": "number"}]}, "[string, number]"),
        ({"allOf": [{}, {}], "type": "object"}, "object"),
        ({"enum": ["asc", "desc"]}, '"asc" | "desc"'),
        ({"enum": [1, True, None]}, "1 | true | null"),
        ({"type": "string", "enum": [f"v{n}" for n in range(50)]}, "string"),
        ({"enum": [f"v{n}" for n in range(50)]}, "string"),
        ({"enum": ["a" * 40, "b" * 40]}, "string"),
        ({"type": "string", "enum": ["x" * 100]}, "string"),
        ({"const": "on"}, '"on"'),
        ({"type": "object"}, "object"),
        ({"properties": {"b": {"type": "string"}}}, "{b?: string}"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "Record<string, number>"),
        ({"$ref": "#/$defs/Color"}, '"red" | "blue"'),
        ({"$ref": "#/$defs/Missing"}, "any"),
        ({"$ref": "https://example.org/schema.json"}, "any"),
        ({}, "any"),
        (True, "any"),
        (None, "any"),
        ("string", "any"),
        ({"type": "date"}, "any"),
        ({"type": {"of": "string"}}, "any"),
        ({"type": [["string"]]}, "any"),
        ({"enum": [10**5_000], "type": "integer"}, "number"),
        ({"enum": "abc"}, "any"),
        ({"anyOf": []}, "any"),
        ({"anyOf": [{"const": n} for n in range(9)]}, "any"),
    ],
)
def test_a_schema_becomes_the_type_that_a_caller_writes(schema: JsonValue, rendered: str) -> None:
    assert one(schema, Color={"enum": ["red", "blue"]}) == rendered


def test_objects_are_spelled_out_two_deep() -> None:
    inner: JsonValue = {"type": "object", "properties": {"c": {"type": "string"}}}
    middle: JsonValue = {"type": "object", "properties": {"b": inner}}
    assert one(inner) == "{c?: string}"
    assert one(middle) == "{b?: object}"


def test_a_long_signature_loses_its_inner_objects_first() -> None:
    inner: JsonValue = {"properties": {f"property_{n}": {"type": "string"} for n in range(10)}}
    assert one(inner) == "object"


def test_of_many_properties_the_required_ones_stay() -> None:
    properties: JsonValue = {f"p{n}": {"type": "string"} for n in range(100)}
    made = render_line({"properties": properties, "required": ["p99", "p98"]})
    assert made.startswith("{p98: string, p99: string, p0?: string, ")
    assert made.endswith(", ...}")


def test_a_signature_that_stays_too_long_is_only_an_object() -> None:
    properties: JsonValue = {"x" * 50 + str(n): {"type": "string"} for n in range(12)}
    assert render_line({"properties": properties}) == "{...}"


def test_a_key_that_is_no_identifier_is_quoted() -> None:
    properties: JsonValue = {"a-b": {}, "c\n": {}, 'd"': {}, "é": {}, "y" * 999: {}}
    made = render_line({"properties": properties})
    assert made == r'{"a-b"?: any, "c\n"?: any, "d\""?: any, "é"?: any, ...}'


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"properties": None},
        {"properties": ["a"]},
        {"properties": {}, "required": "a"},
        {"properties": {}, "required": [{}]},
    ],
)
def test_a_schema_without_usable_properties_takes_nothing(schema: dict[str, JsonValue]) -> None:
    assert render_line(schema) == "{}"


def nested(depth: int, key: str) -> JsonValue:
    made: JsonValue = {"type": "string"}
    for _ in range(depth):
        made = {key: [made], "type": "array", "items": made}
    return made


@pytest.mark.parametrize("key", ["anyOf", "oneOf", "allOf", "items"])
def test_a_deep_schema_ends_early(key: str) -> None:
    made = one(nested(5_000, key))
    assert made.lstrip("(").startswith("any")
    assert len(made) < 60


def test_a_reference_in_a_circle_ends() -> None:
    loop: JsonValue = {"$ref": "#/$defs/Loop"}
    tree: JsonValue = {"anyOf": [{"$ref": "#/$defs/Tree"}] * 4}
    node: JsonValue = {"properties": {f"p{n}": {"$ref": "#/$defs/Node"} for n in range(12)}}
    for name, schema in (("Loop", loop), ("Tree", tree), ("Node", node)):
        assert len(one({"$ref": f"#/$defs/{name}"}, **{name: schema})) <= MAX_LINE_CHARS
    assert one(loop, Loop=loop) == "any"
    assert one({"$ref": "#/properties/a"}) == "any"


@quickly
@given(anything)
def test_no_schema_breaks_the_line(schema: JsonValue) -> None:
    made = one(schema)
    assert len(made) <= MAX_LINE_CHARS
    assert "\n" not in made


@quickly
@given(st.dictionaries(st.sampled_from(KEYWORDS), anything))
def test_no_input_schema_breaks_the_line(schema: dict[str, JsonValue]) -> None:
    made = render_line(schema)
    assert made.startswith("{")
    assert made.endswith("}")
    assert len(made) <= MAX_LINE_CHARS
