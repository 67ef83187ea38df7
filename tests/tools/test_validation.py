"""Input against JSON Schema: what fits, what is said if it does not, and hostile schemas."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from tests.support.fuzzing import examples
from tests.support.waiting import undisturbed_time

from clawmode.exceptions import ClawmodeError
from clawmode.tools import validation
from clawmode.tools.input_problems import MAX_PROBLEMS, MAX_TEXT
from clawmode.tools.schema_cost import COUNTLESS, Burden, Schema, SchemaGraph
from clawmode.tools.tool import Tool
from clawmode.tools.validation import MAX_DEPTH, InvalidSchema, Validator, validate, with_defaults
from clawmode.types import JsonObject, JsonValue

ORDER: Schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "count": {"type": "integer", "minimum": 1},
        "speed": {"enum": ["fast", "slow"]},
        "address": {"$ref": "#/$defs/Address"},
        "when": {"type": ["string", "null"]},
        "price": {"anyOf": [{"type": "number"}, {"type": "string"}]},
        "item": {
            "oneOf": [
                {"type": "string"},
                {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
            ]
        },
        "kind": {"const": "order"},
        "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {
        "Address": {
            "type": "object",
            "properties": {"street": {"type": "string"}},
            "additionalProperties": False,
        }
    },
}


def problems(schema: Schema, value: JsonValue) -> list[str]:
    return Validator(schema, name="mcp:server:tool").validate(value)


def refusal(schema: Schema) -> str:
    with pytest.raises(InvalidSchema) as caught:
        problems(schema, {})
    assert isinstance(caught.value, ClawmodeError)
    assert "mcp:server:tool" in str(caught.value)
    return str(caught.value)


@contextmanager
def at_most(seconds: float) -> Generator[None]:
    """Bounds the CPU time: other processes of a busy machine do not count."""
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds


def chain(depth: int, leaf: JsonValue = 1) -> JsonValue:
    for _ in range(depth):
        leaf = {"a": leaf}
    return leaf


def twice(reference: str) -> list[JsonValue]:
    return [{"$ref": reference}, {"$ref": reference}]


# ---- What is said ----


def test_what_fits_is_not_talked_about() -> None:
    value: JsonValue = {"name": "ann", "count": 2, "speed": "fast", "address": {"street": "x"}}
    assert problems(ORDER, value) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], snapshot(["input: expected object, got an array of 0"])),
        ({}, snapshot(['input: "name" is missing, expected string'])),
        ({"name": 5}, snapshot(["input.name: expected string, got 5"])),
        ({"name": None}, snapshot(["input.name: expected string, got null"])),
        (
            {"name": "a"},
            snapshot(['input.name: expected at least 2 characters, got "a"']),
        ),
        ({"name": "ann", "count": 0}, snapshot(["input.count: expected at least 1, got 0"])),
        (
            {"name": "ann", "speed": "fats"},
            snapshot(['input.speed: expected one of "fast", "slow", got "fats"']),
        ),
        (
            {"nmae": "ann", "name": "ann"},
            snapshot(['input: unknown property "nmae" (did you mean "name"?)']),
        ),
        (
            {"name": "ann", "SPEED": "fast"},
            snapshot(['input: unknown property "SPEED" (did you mean "speed"?)']),
        ),
        (
            {"name": "ann", "address": {"zzz": 1}},
            snapshot(['input.address: unknown property "zzz"; known are "street"']),
        ),
        (
            {"name": "ann", "address": {"stret": 1}},
            snapshot(['input.address: unknown property "stret" (did you mean "street"?)']),
        ),
        ({"name": "ann", "when": 7}, snapshot(["input.when: expected null or string, got 7"])),
        (
            {"name": "ann", "price": {}},
            snapshot(["input.price: expected number or string, got an object with 0 properties"]),
        ),
        (
            {"name": "ann", "item": {"id": "x"}},
            snapshot(
                [
                    "input.item: fits none of 2 alternatives; nearest: input.item.id: expected "
                    'integer, got "x"'
                ]
            ),
        ),
        ({"name": "ann", "kind": 1}, snapshot(['input.kind: expected "order", got 1'])),
        (
            {"name": "ann", "code": "abcd"},
            snapshot(['input.code: expected text that matches ^[A-Z]{3}$, got "abcd"']),
        ),
    ],
)
def test_a_problem_says_where_what_and_what_instead(value: JsonValue, expected: list[str]) -> None:
    assert problems(ORDER, value) == expected


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (
            {"items": {"properties": {"a b": {"type": "null"}}}},
            [{}, {"a b": 1}],
            snapshot(['input[1]["a b"]: expected null, got 1']),
        ),
        (
            {"oneOf": [{"type": "integer"}, {"type": "number"}]},
            1,
            snapshot(["input: fits several alternatives of which exactly one is expected"]),
        ),
        (
            {
                "anyOf": [
                    {"properties": {"t": {"const": t}, "v": {"type": t}}}
                    for t in ("string", "null")
                ]
            },
            {"t": "null", "v": 4},
            snapshot(
                ["input: fits none of 2 alternatives; nearest: input.v: expected null, got 4"]
            ),
        ),
        (
            {
                "properties": {"a": {"$ref": "#/$defs/A"}},
                "required": ["a"],
                "$defs": {"A": {"type": "array"}},
            },
            {},
            snapshot(['input: "a" is missing, expected array']),
        ),
        ({"required": ["a"]}, {}, snapshot(['input: "a" is missing'])),
        (
            {"uniqueItems": True},
            [1, 1],
            snapshot(["input: does not fit: the value has non-unique elements"]),
        ),
        ({"maximum": 3}, 10**40, snapshot(["input: expected at most 3, got a huge integer"])),
        ({"maxItems": 1}, [1, 2], snapshot(["input: expected at most 1 items, got an array of 2"])),
        ({"properties": {"x": False}}, {"x": 1}, snapshot(["input.x: expected nothing, got 1"])),
        (
            {"enum": list(range(20))},
            True,
            snapshot(["input: expected one of 0, 1, 2, 3, 4, 5, 6, 7, …, got true"]),
        ),
    ],
)
def test_other_problems_have_words_too(
    schema: Schema, value: JsonValue, expected: list[str]
) -> None:
    assert problems(schema, value) == expected


def test_many_problems_are_a_few_sentences() -> None:
    found = problems({"additionalProperties": {"type": "null"}}, {f"k{i}": i for i in range(50)})
    assert len(found) == MAX_PROBLEMS
    assert found[-1] == "and 46 more problems"


def test_long_values_names_and_paths_are_cut() -> None:
    secret = "s3cr3t" * 10_000
    schema: Schema = {"additionalProperties": {"additionalProperties": {"type": "null"}}}
    values: list[JsonValue] = [
        {secret: {secret: secret}},
        {"a": {"b": secret}},
        {secret: {"b": 1}},
    ]
    for value in values:
        found = problems(schema, value)
        assert found
        assert all(len(text) <= MAX_TEXT for text in found)
    for text in problems(
        {"additionalProperties": False, "properties": {secret: {}}}, {secret[1:]: 1}
    ):
        assert len(text) <= MAX_TEXT
    assert secret[:100] not in str(problems(ORDER, {"name": "ann", "count": secret}))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=10,
    )
)
@examples(200)
def test_any_json_gets_an_answer(value: JsonValue) -> None:
    for text in problems(ORDER, value):
        assert text.startswith(("input", "and "))
        assert len(text) <= MAX_TEXT


# ---- Reading the schema ----


def test_a_schema_is_read_at_the_first_check_and_once_for_a_tool() -> None:
    def tool(parameters: Schema) -> Tool:
        return Tool("add", "", parameters, lambda input, context: None)

    broken = tool({"type": "nonsense"})
    with pytest.raises(InvalidSchema, match="openclaw:core:add"):
        validate(broken, {})
    one, other = tool({"type": "object"}), tool({"type": "array"})
    assert one == tool({"type": "object"})
    assert validate(one, {}) == []
    assert validate(other, {}) != []
    assert validation._cache[id(one)][0] is one
    assert validate(one, {}) == []


def filled(properties: JsonValue, given: JsonObject, **more: JsonValue) -> JsonObject:
    """The input of a tool whose schema has these properties, with defaults."""
    schema: JsonObject = {"type": "object", "properties": properties, **more}
    tool = Tool("a", "", schema, lambda given, context: None, source="mcp", owner="s")
    return with_defaults(tool, given)


@pytest.mark.covers("MC-3")
def test_missing_properties_get_their_defaults_unless_their_own_schema_rejects_them() -> None:
    properties: JsonValue = {
        "font": {"type": "string", "default": None},
        "size": {"type": "integer", "default": 12},
        "free": {"default": None},
        "color": {"$ref": "#/$defs/Color", "default": "green"},
        "name/~%": {"$ref": "#/$defs/Color", "default": "red"},
        "given": {"default": 1},
        "none": True,
    }
    definitions: JsonValue = {"Color": {"enum": ["red", "blue"]}}
    assert filled(properties, {"given": 2}, **{"$defs": definitions}) == {
        "given": 2,
        "size": 12,
        "free": None,
        "name/~%": "red",
    }


def test_a_default_that_is_changed_is_a_copy() -> None:
    properties: JsonValue = {"a": {"default": {"b": []}}}
    changed = filled(properties, {})
    changed["a"] = None
    assert properties == {"a": {"default": {"b": []}}}
    inner = filled(properties, {})["a"]
    assert isinstance(inner, dict)
    inner["b"] = 1
    assert properties == {"a": {"default": {"b": []}}}


@pytest.mark.parametrize("properties", [None, 7, {"a": 7, "b": None}, {"a": {"default": 1}}])
def test_a_schema_that_cannot_be_used_or_has_no_defaults_changes_nothing(
    properties: JsonValue,
) -> None:
    assert filled(properties, {"x": 1}, required=7) == {"x": 1}


@pytest.mark.hostile
def test_a_thousand_defaults_are_checked_quickly() -> None:
    properties: JsonObject = {f"p{n}": {"type": "string", "default": n % 2} for n in range(1_000)}
    properties["good"] = {"type": "string", "default": "x"}
    with at_most(2):
        assert filled(properties, {}) == {"good": "x"}


def test_the_cache_of_read_schemas_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "_cache", {})
    monkeypatch.setattr(validation, "MAX_CACHED", 2)
    for _ in range(5):
        assert validate(Tool("t", "", {}, lambda input, context: None), {}) == []
    assert len(validation._cache) == 2


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"properties": []},
        {"pattern": "(("},
        {"patternProperties": {"((": {}}},
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "#anchor"},
        {"$schema": "https://example.com/mine", "type": "object"},
        {"description": "\ud800"},
    ],
)
def test_a_schema_that_is_wrong_is_refused_with_the_tools_name(schema: Schema) -> None:
    assert "unusable" in refusal(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "https://example.com/s", "$ref": "#/$defs/A", "$defs": {"A": {"type": "null"}}},
        {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "null"}}},
        {"$ref": "#here", "$defs": {"A": {"$anchor": "here", "type": "null"}}},
        {"$dynamicRef": "#here", "$defs": {"A": {"$dynamicAnchor": "here", "type": "null"}}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$ref": "#here",
            "definitions": {"A": {"$id": "#here", "type": "null"}},
        },
        {"allOf": [{"$ref": "#/allOf/1"}, {"type": "null"}]},
        {"$ref": "#/$defs/A", "$defs": {"A": {"items": True, "type": "null"}}},
    ],
)
def test_references_within_a_schema_are_followed(schema: Schema) -> None:
    assert problems(schema, None) == []
    assert problems(schema, 1) != []


def test_a_reference_to_true_allows_everything() -> None:
    assert problems({"$ref": "#/$defs/A", "$defs": {"A": True}}, 1) == []


def test_formats_are_hints() -> None:
    assert problems({"type": "string", "format": "date-time"}, "2024-01-01T00:00:00") == []


# ---- Nothing is fetched ----


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$recursiveRef", "$schema"])
@pytest.mark.parametrize(
    "place",
    ["root", "definition", "property", "unknown keyword"],
)
def test_nothing_that_a_schema_names_is_fetched(
    keyword: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    file = tmp_path / "schema.json"
    file.write_text('{"type": "null"}', "utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        addresses = [f"http://127.0.0.1:{port}/schema.json", file.as_uri(), "file:///etc/passwd"]
        for address in addresses:
            inner: Schema = {keyword: address}
            places: dict[str, Schema] = {
                "root": inner,
                "definition": {"$defs": {"A": inner}, "$ref": "#/$defs/A"},
                "property": {"properties": {"a": inner}},
                "unknown keyword": {"x-more": inner, "$ref": "#/x-more"},
            }
            schema = places[place]
            if keyword == "$schema" and place != "root":
                # Ignored, or refused: what matters is that nobody looks.
                try:
                    problems(schema, {})
                except InvalidSchema:
                    pass
            else:
                assert "root:" not in refusal(schema)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_schema_cannot_move_its_own_references_elsewhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        base = f"http://127.0.0.1:{server.getsockname()[1]}/"
        refusal({"$id": base, "$ref": "other.json"})
        refusal({"properties": {"a": {"$id": base, "$ref": "#/$defs/A"}}})
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    "inner",
    [
        {"$id": "urn:inner"},
        {"id": "urn:inner"},
        {"$schema": "http://json-schema.org/draft-04/schema#", "id": "urn:inner"},
    ],
)
@pytest.mark.parametrize("draft", ["http://json-schema.org/draft-04/schema#", None])
def test_a_part_with_an_address_of_its_own_does_not_hide_its_cost(
    inner: Schema, draft: str | None
) -> None:
    """Its references lead into itself, while those who look from outside see harmless ones."""
    hidden = exponential("allOf", 26, deeper=False)
    harmless: JsonObject = {f"d{index}": {} for index in range(27)}
    schema: Schema = {"$defs": harmless, "properties": {"a": {**inner, **hidden}}}
    if draft:
        schema["$schema"] = draft
    began = undisturbed_time()
    with contextlib.suppress(InvalidSchema):
        problems(schema, {"a": {}})
    assert undisturbed_time() - began < 3


# ---- Hostile patterns ----


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "(.*a){20}$"])
def test_patterns_that_explode_elsewhere_take_linear_time(pattern: str) -> None:
    with at_most(2):
        assert len(problems({"pattern": pattern}, "a" * 50_000 + "b")) == 1


def test_patterns_with_look_around_work() -> None:
    schema: Schema = {"pattern": r"^(?=.*\d)(?!.*\s).{4,}$"}
    assert problems(schema, "abc1") == []
    assert problems(schema, "abcd") != []
    assert problems(schema, "a 1bc") != []


@pytest.mark.parametrize(
    "pattern", [r"(?=a)(?:a+)+$(?<!a)", r"(a*)*\1b", r"(?:(?=[^b]*)a)*c", r"^(?!b)(a|aa)+$"]
)
def test_patterns_with_look_around_give_up_in_time(pattern: str) -> None:
    with at_most(8):
        problems({"pattern": pattern}, "a" * 9_000 + "b")
        assert "too long" in problems({"pattern": pattern}, "a" * 100_000)[0]


def test_huge_patterns_are_refused_or_given_little_text() -> None:
    with at_most(8):
        refusal({"pattern": "((a{1000}){1000}){1000}"})
        assert "too long" in problems({"pattern": r"(?:a|b[^c]{0,60}){60}[c-z]"}, "ab" * 50_000)[0]


def test_many_patterns_must_be_small_ones() -> None:
    small: Schema = {"properties": {f"p{i}": {"pattern": f"^{i}+$"} for i in range(500)}}
    large: Schema = {"properties": {f"p{i}": {"pattern": r"^\p{L}{1,64}$"} for i in range(500)}}
    with at_most(5):
        assert problems(small, {"p7": "77"}) == []
        refusal(large)


def test_a_long_text_beside_a_pattern_is_fine() -> None:
    schema: Schema = {"properties": {"path": {"pattern": "^[a-z/]+$"}, "text": {"type": "string"}}}
    assert problems(schema, {"path": "a/b", "text": "x" * 400_000}) == []


# ---- Hostile schemas ----


def exponential(keyword: str, length: int, *, deeper: bool) -> Schema:
    """Each definition applies the next one twice, to the same value or to a member."""
    definitions: JsonObject = {}
    for index in range(length):
        both: JsonValue = {keyword: twice(f"#/$defs/d{index + 1}")}
        definitions[f"d{index}"] = {"properties": {"a": both}} if deeper else both
    definitions[f"d{length}"] = {"type": "object"}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_a_schema_that_doubles_itself_is_refused(keyword: str) -> None:
    with at_most(2):
        assert "too much" in refusal(exponential(keyword, 40, deeper=False))


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_a_schema_that_doubles_with_depth_takes_only_shallow_values(keyword: str) -> None:
    schema = exponential(keyword, 40, deeper=True)
    with at_most(3):
        assert "too large or too deeply nested" in problems(schema, chain(40))[0]
        problems(schema, chain(3))


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
@pytest.mark.parametrize("depth", [1, 3, 6, 9, 12, 30, MAX_DEPTH])
def test_recursion_that_branches_is_bounded_in_time(keyword: str, depth: int) -> None:
    schemas: list[Schema] = [
        {"type": "object", "properties": {"a": {keyword: twice("#")}}},
        {
            "$ref": "#/$defs/A",
            "$defs": {
                "A": {keyword: twice("#/$defs/B")},
                "B": {"type": "object", "properties": {"a": {keyword: twice("#/$defs/A")}}},
            },
        },
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                f"d{i}": {
                    "properties": {"a": {keyword: [{"$ref": f"#/$defs/d{k}"} for k in range(9)]}}
                }
                for i in range(9)
            },
        },
        {
            "type": "object",
            "unevaluatedProperties": False,
            keyword: [
                {"properties": {"a": {"$ref": "#"}}},
                {"unevaluatedProperties": {"$ref": "#"}},
            ],
        },
    ]
    for schema in schemas:
        began = undisturbed_time()
        told = problems(schema, chain(depth))
        assert undisturbed_time() - began < 3
        assert all(isinstance(text, str) for text in told)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"anyOf": [{"$ref": "#"}]}]},
        {"not": {"$ref": "#"}},
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}},
    ],
)
def test_a_schema_that_never_comes_to_a_value_is_refused(schema: Schema) -> None:
    assert "without end" in refusal(schema)


def test_recursion_as_people_use_it_works_to_the_depth_limit() -> None:
    tree: Schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#"}, "leaf": {"type": "integer"}},
        "additionalProperties": False,
    }
    assert problems(tree, chain(MAX_DEPTH - 1, {"leaf": 1})) == []
    assert ".leaf: expected integer" in problems(tree, chain(50, {"leaf": "x"}))[0]
    anything: Schema = {
        "$defs": {
            "J": {
                "anyOf": [
                    {"type": ["string", "number", "boolean", "null"]},
                    {"type": "array", "items": {"$ref": "#/$defs/J"}},
                    {"type": "object", "additionalProperties": {"$ref": "#/$defs/J"}},
                ]
            }
        },
        "$ref": "#/$defs/J",
    }
    assert problems(anything, chain(80, [1, "x", None])) == []


def test_a_long_chain_of_references_does_not_overrun_the_stack() -> None:
    """In a process of its own, and a thread with little stack: the failure is a dead process."""
    program = """
from clawmode.tools.validation import InvalidSchema, Validator
for length in (50, 100, 190, 350, 700, 1400):
    links = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for i in range(length)}
    links[f"d{length}"] = {"properties": {"a": {"$ref": "#/$defs/d0"}}, "type": "object"}
    for depth in (0, 1, 5, 20, 60, 120):
        value = 1
        for _ in range(depth):
            value = {"a": value}
        try:
            Validator({"$ref": "#/$defs/d0", "$defs": links}).validate(value)
        except InvalidSchema:
            pass
print("alive")
"""
    start = f"""
import threading
threading.stack_size(512 << 10)
thread = threading.Thread(target=exec, args=({program!r}, {{}}))
thread.start()
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"alive\n"), done.stderr


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": list(range(100_000))},
        {"properties": {f"p{i}": {"type": "string"} for i in range(4_000)}},
        {"$defs": {"A": {f"x{i}": i for i in range(60_000)}}},
    ],
)
def test_a_huge_schema_is_refused(schema: Schema) -> None:
    with at_most(2):
        assert "more than" in refusal(schema)


@pytest.mark.parametrize("depth", [150, 1_000, 100_000])
def test_a_deep_schema_is_refused(depth: int) -> None:
    schema: Schema = {}
    for _ in range(depth):
        schema = {"properties": {"a": schema}}
    with at_most(2):
        refusal(schema)


# ---- Hostile values ----


def test_deep_values_are_refused() -> None:
    with at_most(2):
        assert problems({"type": "object"}, chain(MAX_DEPTH)) == []
        assert "deep" in problems({"type": "object"}, chain(MAX_DEPTH + 1))[0]
        assert "deep" in problems({"type": "object"}, chain(100_000))[0]


def test_values_that_hold_themselves_are_refused() -> None:
    loop: list[JsonValue] = []
    loop += [loop, loop]
    with at_most(5):
        assert "more than" in problems({}, loop)[0]


def test_large_values_are_checked() -> None:
    rows: Schema = {
        "properties": {"rows/1": {"type": "array", "items": {"$ref": "#/$defs/Row"}}},
        "$defs": {"Row": {"type": "object", "properties": {"v": {"type": "number"}}}},
    }
    fine: list[JsonValue] = [{"v": index} for index in range(50_000)]
    with at_most(5):
        assert problems(rows, {"rows/1": fine}) == []
        assert problems(rows, {"rows/1": [*fine, {"v": "x"}]}) == [
            'input["rows/1"][50000].v: expected number, got "x"'
        ]


def test_what_is_wrong_with_a_large_value_as_a_whole_is_said_of_the_whole() -> None:
    with at_most(5):
        found = problems({"properties": {"a": {"minItems": 60_000}}}, {"a": [0] * 50_000})
    assert found == ["input.a: does not fit the schema, and is too large to say where"]
    old = "http://json-schema.org/draft-07/schema#"
    rows: Schema = {"$schema": old, "properties": {"a": {"items": {"type": "null"}}}}
    assert problems(rows, {"a": [0] * 50_000}) == ["input.a[0]: expected null, got 0"]
    tuples: Schema = {"$schema": old, "items": [{"type": "null"}]}
    assert problems(tuples, [0] * 50_000) == [
        "input: does not fit the schema, and is too large to say where"
    ]


@pytest.mark.parametrize(
    "value",
    [{1: 2}, {"a": {1, 2}}, {"a": b"x"}, object(), "\ud800", {"a": "\ud800"}, {"\ud800": 1}],
)
def test_what_is_not_json_is_a_problem_and_no_exception(value: object) -> None:
    strict: Schema = {"additionalProperties": {"maxLength": 0, "type": "string"}, "type": "object"}
    assert problems(strict, value)  # pyrefly: ignore[bad-argument-type] - a hook may have put it


# ---- The arithmetic ----


def test_a_burden_counts_what_happens_on_one_path() -> None:
    graph = SchemaGraph(
        {
            "properties": {"a": {"pattern": "x"}, "b": {"allOf": [{}, {}]}},
            "patternProperties": {"^a": {}},
            "items": {"contains": {}},
        }
    )
    assert graph.burden(0) == Burden(checks=1, patterns=1, height=1)
    # The root, one of the two properties and the pattern's schema.
    assert graph.burden(1) == Burden(checks=5, patterns=2, height=3)
    assert graph.burden(2) == Burden(checks=5, patterns=2, height=3)
    assert graph.burden(9) == graph.burden(2)


def test_the_arithmetic_itself_is_bounded() -> None:
    properties: JsonObject = {f"p{i}": {"properties": {"a": {"$ref": "#"}}} for i in range(1_000)}
    with at_most(5):
        assert "too deeply nested" in problems({"properties": properties}, chain(MAX_DEPTH))[0]
        assert problems({"properties": properties}, chain(5)) == []


def test_a_burden_does_not_grow_without_end() -> None:
    graph = SchemaGraph({"properties": {"a": {"allOf": twice("#")}}})
    assert COUNTLESS <= graph.burden(100).checks < 2 * COUNTLESS
    assert graph.burden(3).checks < 50
