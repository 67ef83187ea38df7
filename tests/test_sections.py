"""Sections as dataclasses: what any JSON is read as, what is said of it, and the schema."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field
from tests.support.fuzzing import examples
from tests.support.waiting import undisturbed_time

from clawmode.config.resolve import schema
from clawmode.exceptions import ConfigurationError, ConfigWarning
from clawmode.records import (
    MAX_ITEMS,
    MAX_NAME,
    MAX_PROBLEMS,
    Entries,
    Issue,
    Maybe,
    Named,
    Text,
    schema_of,
)
from clawmode.sections import ReadResult, Section, keys_of, option, read
from clawmode.tools.validation import Validator
from clawmode.types import JsonObject, JsonValue


class Inner(Section):
    """A section in a section."""

    first: Maybe[Text] = option("The first.")
    others: Entries[Text] = option("The others.", ())


class Short(Section):
    """A section that a string can stand for."""

    SHORT: ClassVar = (str, "first")

    first: Maybe[Text] = option("The first.")


class Entry(Section):
    """A section with a required field."""

    id: Text = option("Its id.", required=True, expected="a name")


class Sample(Section):
    """Every kind of field."""

    IGNORED: ClassVar[Mapping[str, str]] = {"elsewhere": "belongs elsewhere"}

    flag: bool = option("A flag.", False)
    how_many: int = option("A number.", 5, low=2, high=10)
    maybe: Maybe[int] = option("A number that may be absent.", low=0, high=10)
    share: float = option("Any number.", 0.5, low=0, high=1)
    any_number: int = option("Without a range.", 1)
    text: Maybe[Text] = option("A text.", key="the-text")
    choice: Literal["a", "b"] = option("A choice.", "a")
    token: Maybe[Text] = option("A secret.", secret=True)
    pin: Maybe[int] = option("A secret number.", low=1000, high=9999, secret=True)
    inner: Inner = option("A section.", Inner)
    short: Maybe[Short] = option("A section with a shorthand.")
    items: Entries[Entry] = option("Sections.", ())
    by_name: Named[Inner] = option("Sections by name.", dict)
    numbers: Named[Annotated[int, Field(ge=1, le=3)]] = option("Numbers by name.", dict)
    raw: Any = option("Anything.")
    kept: dict[str, Any] = option("An object, as it is.", dict)

    def check(self, path: str) -> Iterator[Issue]:
        """A rule about two fields."""
        if self.flag and self.choice == "b":
            yield ConfigurationError(f"{path}: flag and b exclude each other", path=path)


def found(value: JsonValue) -> ReadResult[Sample]:
    return read(Sample, value, "s")


def said(value: JsonValue) -> list[str]:
    seen = found(value)
    return [str(it) for it in (*seen.errors, *seen.warnings)]


# ---- Values ----


def test_what_fits_is_taken_as_it_stands() -> None:
    value: JsonValue = {
        "flag": True,
        "howMany": 10.0,
        "maybe": 0,
        "share": 1,
        "anyNumber": -3,
        "the-text": "hello",
        "choice": "a",
        "inner": {"first": "x", "others": ["y"]},
        "short": "z",
        "items": [{"id": "i"}],
        "byName": {"n": {"first": "m"}, "two words": {}},
        "numbers": {"one": 1},
        "raw": [None, {"x": 1}],
        "kept": {"any": {"thing": None}},
    }
    assert said(value) == []
    assert found(value).unwrap() == Sample(
        flag=True,
        how_many=10,
        maybe=0,
        share=1.0,
        any_number=-3,
        text="hello",
        inner=Inner(first="x", others=("y",)),
        short=Short(first="z"),
        items=(Entry(id="i"),),
        by_name={"n": Inner(first="m"), "two words": Inner()},
        numbers={"one": 1},
        raw=[None, {"x": 1}],
        kept={"any": {"thing": None}},
    )
    assert type(found(value).section.how_many) is int
    assert type(found(value).section.share) is float


def test_nothing_is_the_defaults() -> None:
    assert found({}).unwrap() == Sample()


def test_a_shorthand_and_the_long_form_are_the_same() -> None:
    assert found({"short": "x"}).section == found({"short": {"first": "x"}}).section


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "s: found a number, expected an object"),
        ("x", "s: found a string, expected an object"),
        ({"flag": 1}, "s.flag: found 1, expected true or false"),
        ({"flag": None}, "s.flag: found null, expected true or false"),
        ({"howMany": "10s"}, 's.howMany: found "10s", expected a positive integer'),
        ({"howMany": True}, "s.howMany: found true, expected a positive integer"),
        ({"maybe": None}, "s.maybe: found null, expected a positive integer or 0"),
        ({"anyNumber": "1"}, 's.anyNumber: found "1", expected an integer'),
        ({"share": "1"}, 's.share: found "1", expected a number'),
        ({"the-text": ""}, 's["the-text"]: found "", expected a string that is not empty'),
        ({"the-text": 5}, 's["the-text"]: found 5, expected a string that is not empty'),
        ({"choice": "c"}, 's.choice: found "c", expected "a" or "b"'),
        ({"choice": ["a"]}, 's.choice: found a list, expected "a" or "b"'),
        ({"inner": "x"}, "s.inner: found a string, expected an object"),
        ({"inner": []}, "s.inner: found an empty list, expected an object"),
        ({"inner": {"others": "x"}}, "s.inner.others: found a string, expected a list"),
        (
            {"inner": {"others": ["x", 1]}},
            "s.inner.others[1]: found 1, expected a string that is not empty",
        ),
        ({"short": 5}, "s.short: found a number, expected a string or an object"),
        ({"items": {}}, "s.items: found an object, expected a list"),
        ({"items": [{"id": "a"}, {}]}, "s.items[1].id: found nothing, expected a name"),
        ({"items": [{"id": 1}]}, "s.items[0].id: found 1, expected a name"),
        ({"byName": {"n": 1}}, "s.byName.n: found a number, expected an object"),
        (
            {"byName": {"": {}}},
            's.byName[""]: found a name of 0 characters, expected',
        ),
        ({"kept": "x"}, "s.kept: found a string, expected an object"),
        ({"flag": True, "choice": "b"}, "s: flag and b exclude each other"),
    ],
)
def test_a_wrong_type_is_an_error_with_the_place_and_what_is_expected(
    value: JsonValue, text: str
) -> None:
    (message,) = said(value)
    assert message.startswith(text)
    with pytest.raises(ConfigurationError):
        found(value).unwrap()


@pytest.mark.parametrize(
    ("value", "used", "text"),
    [
        ({"howMany": 1}, 2, "s.howMany: 1 is under 2: 2 is used"),
        ({"howMany": 11}, 10, "s.howMany: 11 is over 10: 10 is used"),
        ({"howMany": 1e300}, 10, "s.howMany: 1e+300 is over 10: 10 is used"),
        ({"howMany": 1 << 20_000}, 10, "s.howMany: a huge number is over 10: 10 is used"),
        ({"howMany": 0}, 5, "s.howMany: 0 is not a positive integer: it is ignored"),
        ({"howMany": 2.5}, 5, "s.howMany: 2.5 is not a positive integer: it is ignored"),
        ({"howMany": float("nan")}, 5, "s.howMany: NaN is not a positive integer: it is ignored"),
    ],
)
def test_a_number_out_of_its_range_is_brought_into_it_and_said(
    value: JsonValue, used: int, text: str
) -> None:
    assert said(value) == [text]
    assert found(value).unwrap().how_many == used


def test_a_number_without_a_default_that_cannot_be_used_is_as_if_it_was_not_set() -> None:
    assert said({"maybe": -1}) == ["s.maybe: -1 is not a positive integer or 0: it is ignored"]
    assert found({"maybe": -1}).unwrap().maybe is None
    assert found({"numbers": {"a": 0, "b": 9}}).unwrap().numbers == {"b": 3}


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 10**400])
def test_a_number_that_no_float_can_be_is_the_default(number: float) -> None:
    assert found({"share": number}).unwrap().share == 0.5


# ---- Keys ----


def test_an_unknown_key_is_a_warning_with_the_nearest_known_one() -> None:
    assert said({"howmany": 1, "elsewhere": 1, "inner": {"frist": 1}}) == [
        "s.inner.frist: unknown key, it has no effect; the nearest known one is first",
        "s.howmany: unknown key, it has no effect; the nearest known one is howMany",
        "s.elsewhere: belongs elsewhere",
    ]


def test_what_is_said_ends_somewhere() -> None:
    many: JsonObject = {f"k{n}": n for n in range(50_000)}
    began = undisturbed_time()
    assert len(found(many).warnings) == MAX_PROBLEMS + 1
    wrong: JsonObject = {"items": [1] * MAX_ITEMS}
    assert len(found(wrong).errors) == MAX_PROBLEMS + 1
    assert "more problems of this kind" in str(found(wrong).errors[-1])
    assert said({"items": [1] * 50_000}) == ["s.items: found 50000, expected at most 2000 entries"]
    assert len(said({"numbers": many})) == 1
    assert undisturbed_time() - began < 5


def test_long_keys_are_neither_repeated_nor_followed() -> None:
    key = "k" * 400_000
    children: JsonObject = {f"c{n}": n for n in range(20_000)}
    began = undisturbed_time()
    messages = said({key: children, "byName": {key: children}})
    assert len(messages) == 2
    assert max(map(len, messages)) < MAX_NAME
    assert undisturbed_time() - began < 5


# ---- Secrets ----


def test_a_secret_is_never_quoted_nor_shown() -> None:
    values: list[JsonValue] = [["sk-123"], {"sk-123": 1}, 123_456, True]
    for value in values:
        (message,) = said({"token": value})
        assert "123" not in message
    assert said({"pin": 123_456}) == ["s.pin: a number is over 9999: 9999 is used"]
    assert "sk-123" not in repr(found({"token": "sk-123"}).unwrap())


@pytest.mark.parametrize("key", ["inner", "items", "byName", "kept", "short"])
def test_what_stands_where_a_section_should_is_not_quoted(key: str) -> None:
    """A key that was pasted one level too high."""
    assert not [message for message in said({key: {"x": "sk-123"}}) if "sk-123" in message]
    assert not [message for message in said({key: ["sk-123"]}) if "sk-123" in message]
    if key != "short":
        assert "sk-123" not in said({key: "sk-123"})[0]


# ---- The schema ----


def test_the_schema_says_type_range_default_and_help() -> None:
    properties = schema_of(Sample)["properties"]
    assert isinstance(properties, dict)
    assert properties["howMany"] == {
        "type": "integer",
        "minimum": 2,
        "maximum": 10,
        "description": "A number.",
        "default": 5,
    }
    assert properties["token"] == {
        "type": "string",
        "minLength": 1,
        "description": "A secret.",
        "writeOnly": True,
    }
    assert properties["maybe"] == {
        "type": "integer",
        "minimum": 0,
        "maximum": 10,
        "description": "A number that may be absent.",
    }
    assert properties["choice"] == {
        "type": "string",
        "enum": ["a", "b"],
        "description": "A choice.",
        "default": "a",
    }
    assert schema_of(Entry)["required"] == ["id"]


leaves: st.SearchStrategy[JsonValue] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(["a", "b", 1, 3, 5, 1e300])
)
keys = st.sampled_from([*keys_of(Sample), "id", "first", "others", "elsewhere"]) | st.text(
    max_size=4
)
anything: st.SearchStrategy[JsonValue] = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3).map(list[JsonValue])
        | st.dictionaries(keys, inner, max_size=4).map(dict[str, JsonValue])
    ),
    max_leaves=12,
)


@examples(300, derandomize=True)
@example(value={"\ud800": "\ud800", "the-text": "\ud800", "byName": {"\ud800": {}}})
@given(value=anything)
def test_any_json_is_a_section_and_something_to_say(value: JsonValue) -> None:
    seen = found(value)
    assert all(error.path and str(error) for error in seen.errors)
    assert all(isinstance(it, ConfigWarning) and it.message for it in seen.warnings)
    used = seen.section
    assert 2 <= used.how_many <= 10
    assert 0 <= used.share <= 1
    assert used.choice in ("a", "b")


NAMED: st.SearchStrategy[JsonValue] = st.builds(lambda: {"id": "x"})
SCHEMA = Validator(schema_of(Sample))

fitting: dict[str, st.SearchStrategy[JsonValue]] = {
    "flag": st.booleans() | leaves,
    "howMany": st.integers(0, 12) | leaves,
    "share": st.floats(-0.1, 1.1) | leaves,
    "the-text": st.text(max_size=2),
    "choice": st.just("a") | leaves,
    "short": st.just("x") | anything,
    "items": st.lists(NAMED | anything, max_size=2).map(list[JsonValue]),
    "numbers": st.dictionaries(st.text(max_size=2), st.integers(-1, 5)).map(dict[str, JsonValue]),
}
values = st.fixed_dictionaries({}, optional=fitting).map(dict[str, JsonValue]) | anything


@examples(500, derandomize=True)
@given(value=values)
def test_the_schema_takes_exactly_what_is_taken_as_it_stands(value: JsonValue) -> None:
    if any(error.path == "s" and "exclude" in str(error) for error in found(value).errors):
        return  # a rule about the whole is not in the schema
    assert (SCHEMA.validate(value) == []) == (said(value) == [])


# ---- The page ----

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "config.md").read_text("utf-8")


def names_in(schema: JsonValue) -> set[str]:
    """Every key that a schema names, however deep."""
    if isinstance(schema, list):
        return {name for each in schema for name in names_in(each)}
    if not isinstance(schema, dict):
        return set()
    properties = schema.get("properties")
    own = set(properties) if isinstance(properties, dict) else set()
    return own.union(*(names_in(each) for each in schema.values()))


def test_every_key_of_the_configuration_is_on_the_page() -> None:
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", PAGE, flags=re.DOTALL | re.M))
    words = {word for span in spans for word in re.findall(r"[\w$]+", span)}
    names = names_in(schema())
    assert {"agents", "maxPendingToolCalls", "contextWindow", "alsoAllow"} <= names
    assert names - words == set()


class Strict(Section):
    """A section with required fields that few values fit."""

    kind: Literal["a", "b"] = option("Its kind.", required=True)
    code: Annotated[str, Field(pattern="^[0-9]{4}$")] = option("Its code.", "0000")


class Coded(Section):
    """A section with a required field that no placeholder fits."""

    code: Annotated[str, Field(pattern="^[0-9]{4}$")] = option("Its code.", required=True)


class Holder(Section):
    """A section with strict sections in it."""

    entries: Entries[Strict] = option("Its entries.", ())
    coded: Entries[Coded] = option("More entries.", ())
    number: int = option("A number.", 5)


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ({"entries": [{}]}, "entries[0].kind"),
        ({"entries": [{"kind": "c"}]}, "entries[0].kind"),
        ({"entries": [{"kind": 5}]}, "entries[0].kind"),
        ({"coded": [{}]}, "coded[0].code"),
        ({"coded": [{"code": "x"}]}, "coded[0].code"),
        ({"coded": [{"code": "?"}]}, "coded[0].code"),
    ],
)
def test_a_required_field_with_few_valid_values_does_not_lose_the_rest(
    entry: JsonObject, path: str
) -> None:
    found = read(Holder, {**entry, "number": "x"})
    assert [error.path for error in found.errors] == [path, "number"]
    found = read(Holder, {**entry, "number": 7})
    assert [error.path for error in found.errors] == [path]
    assert found.section.number == 7
