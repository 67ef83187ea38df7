"""JSON5: where an error is, keys that stand twice, and where members stand."""

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.fuzzing import examples

from clawmode.config.json5 import MAX_DEPTH, Parts, parse, place
from clawmode.exceptions import ConfigurationError
from clawmode.types import JsonValue


def refused(text: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        parse(text, "f")
    return caught.value


def error_of(text: str) -> ConfigurationError | None:
    try:
        parse(text, "f")
    except ConfigurationError as error:
        return error
    return None


def test_json5_is_more_than_json() -> None:
    text = "// a file\n{a: 'x', \"b\": [0x10, .5, +1,], /* c */ c: {},}"
    assert parse(text, "f").value == {"a": "x", "b": [16, 0.5, 1], "c": {}}


@pytest.mark.covers("CF-6")
@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ("{a: 1,\n b: }", 2, 5, "expected a value, found '}'"),
        ("{\r\n\ta: 1\r\n\tb: 2}", 3, 2, "expected a comma or '}', found 'b'"),
        ("{\ra: yes}", 2, 4, "expected a value, found 'y'"),
        ("{'é𝒳': x}", 1, 8, "expected a value, found 'x'"),
        ("{a: 1}\n// end\n ]", 3, 2, "extra data ']'"),
        ('{a: {\n  b: "open }}', 2, 6, "unclosed string"),
        ("{tools: {\n a: {}\n", 1, 9, "unclosed object"),
        ("{a: 1,, b: 2}", 1, 7, "stray comma"),
        ("{a: 1e999}", 1, 5, "invalid number"),
        ("{a: " + "9" * 5000 + "}", 1, 5, "invalid number"),
        ("{a-b: 1}", 1, 3, "expected colon, found '-'"),
        ("{1: 1}", 1, 2, "expected a key, found '1'"),
        ("", 1, 1, "the file contains no value"),
        ("// nothing\n", 1, 1, "the file contains no value"),
        ("[" * 100, 1, MAX_DEPTH + 1, f"nested more than {MAX_DEPTH} levels deep"),
    ],
)
def test_an_error_has_line_column_and_plain_words(
    text: str, line: int, column: int, said: str
) -> None:
    error = refused(text)
    assert (error.line, error.column, error.code) == (line, column, "invalid_config")
    assert str(error).startswith(f"f:{line}:{column}: {said}\n")


@pytest.mark.covers("CF-6")
def test_a_caret_stands_below_the_place() -> None:
    assert str(refused("{\n\tb: }\n}")) == (
        "f:2:5: expected a value, found '}'\n    \tb: }\n    \t   ^"
    )


def test_of_a_long_line_only_the_part_around_the_place_is_shown() -> None:
    error = refused("{a: '" + "x" * 10_000 + "' oops, b: '" + "y" * 10_000 + "'}")
    _, shown, caret = str(error).split("\n")
    assert len(shown) < 120
    assert shown[caret.index("^") :].startswith("oops")


def test_what_would_steer_a_terminal_is_not_shown() -> None:
    assert "\x1b" not in str(refused('{a: "\x1b[2J" b}'))


@pytest.mark.parametrize(
    "text",
    [
        '{a: 1,\n"a": 2}',
        "{'a': {},\n\\u0061: 2}",
        '{a: {b: 1},\n"\\x61": {b: 2}}',
        "{a: 1, // a: 3\n/* a: */ a: 2}",
        "{x: [{}, {a: 'a,a:{',\na: 2}]}",
    ],
)
def test_a_key_that_stands_twice_is_an_error_that_names_both_places(text: str) -> None:
    error = refused(text)
    assert error.line == 2
    assert "duplicate key 'a', first used in line 1" in str(error)


def test_equal_keys_of_different_objects_are_none_of_that() -> None:
    text = "{a: {a: 1}, b: [{a: 1}, {a: 2}], 'a ': 1, A: 1}"
    assert parse(text, "f").value == {"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}], "a ": 1, "A": 1}


def test_members_have_places() -> None:
    document = parse("{a: 1,\n b: [7, {c: ':'}],}", "f")
    places = {parts: place(document.text, at) for parts, at in document.offsets.items()}
    assert places == {
        ("a",): (1, 2),
        ("b",): (2, 2),
        ("b", 0): (2, 6),
        ("b", 1): (2, 9),
        ("b", 1, "c"): (2, 10),
    }


# ---- Anything at all ----

SPACES = st.sampled_from(["", " ", "\n", "\r\n", "\t", "\ufeff", "\u2028", "//, { [\n", "/* ' */"])


def written(value: JsonValue, draw: st.DrawFn) -> str:
    """One of the ways to write a value in JSON5."""

    def space() -> str:
        return draw(SPACES)

    if isinstance(value, dict):
        items = [
            space() + json.dumps(key, ensure_ascii=draw(st.booleans())) + space() + f":{it}"
            for key, it in ((key, written(it, draw)) for key, it in value.items())
        ]
    elif isinstance(value, list):
        items = [written(it, draw) for it in value]
    else:
        return space() + json.dumps(value) + space()
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    trailing = "," if items and draw(st.booleans()) else ""
    return space() + opening + ",".join(items) + trailing + space() + closing + space()


def members(value: JsonValue, path: Parts = ()) -> list[Parts]:
    pairs: list[tuple[str | int, JsonValue]] = []
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    return [it for key, inner in pairs for it in ((*path, key), *members(inner, (*path, key)))]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.sampled_from("\"\\'{/*")
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@examples(150, derandomize=True)
@given(value=VALUES, data=st.data())
def test_every_member_is_found_however_a_value_is_written(
    value: JsonValue, data: st.DataObject
) -> None:
    text = data.draw(st.composite(lambda draw: written(value, draw))())
    document = parse(text, "f")
    assert document.value == value
    assert list(document.offsets) == members(value)


@examples(300, derandomize=True)
@example(text="{\\ud800: 1}")
@example(text="{a: '\\u{41}'}")
@given(text=st.text(max_size=30) | st.text("{}[]:,'\"/*\\\n\r ab01.eEx_-+\u2028", max_size=30))
def test_any_text_is_a_value_or_an_error_with_a_place_in_it(text: str) -> None:
    error = error_of(text)
    if error is None:
        return
    lines = re.split(r"\r\n|\r|\n", text)
    assert 1 <= error.column <= len(lines[error.line - 1]) + 1
    assert str(error).startswith(f"f:{error.line}:{error.column}: ")
    assert not re.search(r"near \d|U\+|b'\w\w", str(error).split("\n")[0])  # pyjson5's words
