"""`tools.codeMode`: what switches it on, which numbers are used, and what cannot be meant."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.fuzzing import examples

from clawmode.code_mode.arguments import read_config
from clawmode.code_mode.config import SUSPENDED_DURABLE, SUSPENDED_IN_MEMORY, CodeModeConfig
from clawmode.config.agents import Configuration
from clawmode.config.resolve import read as read_configuration
from clawmode.config.resolve import tools
from clawmode.exceptions import ClawmodeError, ClawmodeWarning, ConfigurationError
from clawmode.records import (
    schema_of,
)
from clawmode.sections import (
    ReadResult,
    keys_of,
)
from clawmode.sections import (
    read as read_section,
)
from clawmode.types import JsonObject, JsonValue

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "config.md").read_text("utf-8")
KEYS = keys_of(CodeModeConfig)
CAMEL = {name: key for key, name in KEYS.items()}
PROPERTIES: Any = schema_of(CodeModeConfig)["properties"]
ALL_RANGES: dict[str, tuple[int, int]] = {
    KEYS[key]: (about["minimum"], about["maximum"])
    for key, about in PROPERTIES.items()
    if "minimum" in about
}
SUSPENDED_RUNS = ALL_RANGES["max_suspended_runs"]
RANGES = {name: limits for name, limits in ALL_RANGES.items() if name != "max_suspended_runs"}


def read(value: JsonValue) -> CodeModeConfig:
    return CodeModeConfig.from_json(value)[0]


def warnings(value: JsonValue) -> list[str]:
    return [str(warning) for warning in CodeModeConfig.from_json(value)[1]]


def refused(value: JsonValue) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        CodeModeConfig.from_json(value)
    return caught.value


# ---- On and off ----


@pytest.mark.covers("CF-1")
@pytest.mark.parametrize("value", [True, {"enabled": True}, {"enabled": True, "timeoutMs": 500}])
def test_true_and_enabled_true_switch_it_on(value: JsonValue) -> None:
    assert read(value).enabled


FULL: dict[str, JsonValue] = {
    "runtime": "quickjs-wasi",
    "mode": "only",
    "languages": ["javascript"],
    **{CAMEL[name]: high for name, (_, high) in ALL_RANGES.items()},
}


@pytest.mark.covers("CF-1")
@pytest.mark.parametrize("value", [False, {}, {"enabled": False}, FULL, {"Enabled": True}])
def test_nothing_else_switches_it_on(value: JsonValue) -> None:
    assert not read(value).enabled


def test_what_is_set_is_used_and_worth_no_warning() -> None:
    assert warnings(FULL) == []
    config = read(FULL)
    assert {name: getattr(config, name) for name in ALL_RANGES} == {
        name: high for name, (_, high) in ALL_RANGES.items()
    }
    assert config.languages == ("javascript",)


# ---- Numbers ----


@pytest.mark.parametrize(
    ("key", "default", "low", "high"),
    [
        pytest.param(
            "timeoutMs", 10000, 100, 60000, marks=pytest.mark.covers("CM-config-timeoutMs")
        ),
        pytest.param(
            "memoryLimitBytes",
            67108864,
            1048576,
            1073741824,
            marks=pytest.mark.covers("CM-config-memoryLimitBytes"),
        ),
        pytest.param(
            "maxOutputBytes",
            65536,
            1024,
            10485760,
            marks=pytest.mark.covers("CM-config-maxOutputBytes"),
        ),
        pytest.param(
            "maxSnapshotBytes",
            10485760,
            1024,
            268435456,
            marks=pytest.mark.covers("CM-config-maxSnapshotBytes"),
        ),
        pytest.param(
            "maxPendingToolCalls",
            16,
            1,
            128,
            marks=pytest.mark.covers("CM-config-maxPendingToolCalls"),
        ),
        pytest.param(
            "snapshotTtlSeconds",
            900,
            1,
            86400,
            marks=pytest.mark.covers("CM-config-snapshotTtlSeconds"),
        ),
        pytest.param(
            "searchDefaultLimit",
            8,
            1,
            50,
            marks=pytest.mark.covers("CM-config-searchDefaultLimit"),
        ),
        pytest.param(
            "maxSearchLimit", 50, 1, 50, marks=pytest.mark.covers("CM-config-maxSearchLimit")
        ),
        ("indexMaxChars", 4000, 0, 100_000),
    ],
)
def test_a_number_has_the_pages_default_and_stays_in_the_pages_range(
    key: str, default: int, low: int, high: int
) -> None:
    name = KEYS[key]
    assert getattr(read({}), name) == default
    assert getattr(read({key: low}), name) == low
    assert getattr(read({key: high}), name) == high
    assert getattr(read({key: high + 1}), name) == high
    assert getattr(read({key: max(low - 1, 1)}), name) == max(low, 1)
    assert warnings({key: low}) == warnings({key: high}) == []
    assert warnings({key: high + 1}) == [
        f"tools.codeMode.{key}: {high + 1} is over {high}: {high} is used"
    ]


@pytest.mark.covers("CF-2", "CF-5")
def test_a_number_below_its_range_is_raised_and_said() -> None:
    assert read({"timeoutMs": 5}).timeout_ms == 100
    assert warnings({"timeoutMs": 5}) == ["tools.codeMode.timeoutMs: 5 is under 100: 100 is used"]


@pytest.mark.covers("CF-2", "CF-5")
@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (1.5, "1.5"),
        (0, "0"),
        (-3, "-3"),
        (0.0, "0.0"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_a_number_that_is_no_positive_integer_is_the_default_and_said(
    number: float, shown: str
) -> None:
    value: JsonValue = {"timeoutMs": number}
    assert read(value).timeout_ms == 10_000
    assert warnings(value) == [
        f"tools.codeMode.timeoutMs: {shown} is not a positive integer: 10000 is used"
    ]


@pytest.mark.covers("CF-2")
def test_a_whole_number_is_an_integer_however_it_is_written() -> None:
    assert read({"timeoutMs": 2e3}).timeout_ms == 2000
    assert isinstance(read({"timeoutMs": 2e3}).timeout_ms, int)
    assert warnings({"timeoutMs": 2e3}) == []
    assert read({"timeoutMs": 1e300}).timeout_ms == 60_000


def test_a_number_that_python_does_not_print_is_still_only_too_large() -> None:
    (warning,) = warnings({"timeoutMs": 1 << 20_000})
    assert warning == "tools.codeMode.timeoutMs: a huge number is over 60000: 60000 is used"


def test_the_index_can_be_switched_off() -> None:
    assert read({"indexMaxChars": 0}).index_max_chars == 0
    assert warnings({"indexMaxChars": 0}) == []
    assert read({"indexMaxChars": -1}).index_max_chars == 4000


@pytest.mark.covers("CF-3")
def test_the_default_search_limit_is_never_over_the_maximum() -> None:
    assert read({"maxSearchLimit": 3}).search_default_limit == 3
    assert warnings({"maxSearchLimit": 3}) == []  # nobody asked for the 8
    both: JsonValue = {"searchDefaultLimit": 20, "maxSearchLimit": 10}
    assert read(both).search_default_limit == 10
    assert warnings(both) == ["tools.codeMode.searchDefaultLimit: 20 is over 10: 10 is used"]
    assert read({"searchDefaultLimit": 1.5, "maxSearchLimit": 3}).search_default_limit == 3


def test_how_many_programs_may_be_parked_depends_on_where() -> None:
    unset = read({"maxSuspendedRuns": 0})
    assert unset.clamped().max_suspended_runs == SUSPENDED_IN_MEMORY == 64
    assert unset.clamped(durable=True).max_suspended_runs == SUSPENDED_DURABLE == 10_000
    assert warnings({"maxSuspendedRuns": 0}) == [
        "tools.codeMode.maxSuspendedRuns: 0 is not a positive integer: it is ignored"
    ]
    given_ = read({"maxSuspendedRuns": 7})
    assert given_.clamped().max_suspended_runs == 7
    assert given_.clamped(durable=True).max_suspended_runs == 7


@pytest.mark.covers("CF-2", "CF-5", "N-27")
def test_a_config_made_in_python_follows_the_same_rules_with_the_same_warnings() -> None:
    with pytest.warns(ClawmodeWarning) as warned:
        made = CodeModeConfig(timeout_ms=-1, max_pending_tool_calls=10**6, max_suspended_runs=-1)
    assert [str(each.message) for each in warned] == [
        "CodeModeConfig.timeout_ms: -1 is not a positive integer: 10000 is used",
        "CodeModeConfig.max_pending_tool_calls: 1000000 is over 128: 128 is used",
        "CodeModeConfig.max_suspended_runs: -1 is not a positive integer: it is ignored",
    ]
    assert {each.filename for each in warned} == {__file__}, "the caller's line is not named"
    assert (made.timeout_ms, made.max_pending_tool_calls) == (10_000, 128)
    assert made.clamped().max_suspended_runs == 64
    with pytest.warns(ClawmodeWarning, match="300000 is over 60000"):
        assert made.replace(timeout_ms=300_000).timeout_ms == 60_000


def test_no_config_is_exactly_the_validated_default() -> None:
    made, validated = read_config(None), CodeModeConfig()

    assert made == validated  # with the class and the fields that were set, of sections within too
    assert repr(made) == repr(validated)
    assert list(vars(made)) == list(vars(validated))
    assert made.model_fields_set == set()


@pytest.mark.covers("N-27", "CF-3")
def test_whole_numbers_and_lists_are_what_they_mean_without_a_warning() -> None:
    options: Any = {"timeout_ms": 1e4, "languages": ["javascript"], "max_search_limit": 3}
    made = CodeModeConfig(**options)
    assert (made.timeout_ms, made.languages, made.search_default_limit) == (
        10_000,
        ("javascript",),
        3,
    )
    assert type(made.timeout_ms) is int


@pytest.mark.covers("N-27", "B-18")
@pytest.mark.parametrize(
    "options",
    [
        {"timeout_ms": "10"},
        {"timeout_ms": None},
        {"memory_limit_bytes": True},
        {"enabled": 1},
        {"runtime": "v8"},
        {"languages": "javascript"},
        {"languages": ("python",)},
        {"languages": ()},
    ],
)
def test_a_config_of_the_wrong_type_is_refused_in_python_too(options: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        CodeModeConfig(**options)
    assert caught.value.path.startswith(f"CodeModeConfig.{next(iter(options))}")
    assert caught.value.expected


# ---- Choices ----


@pytest.mark.covers("CM-config-languages")
def test_both_languages_are_there_unless_some_are_named() -> None:
    assert read(True).languages == ("javascript", "typescript")
    assert read({"languages": ["typescript"]}).languages == ("typescript",)
    assert read({"languages": ["typescript", "javascript", "typescript"]}).languages == (
        "javascript",
        "typescript",
    )


@pytest.mark.covers("CM-config-fixed", "CF-5")
@pytest.mark.parametrize(("key", "only"), [("runtime", "quickjs-wasi"), ("mode", "only")])
@pytest.mark.parametrize("foreign", ["deno", "", "ONLY", None, True, ["only"], {}])
def test_runtime_and_mode_have_one_value_each(key: str, only: str, foreign: JsonValue) -> None:
    assert getattr(read({}), key) == getattr(read({key: only}), key) == only
    error = refused({"enabled": True, key: foreign})
    assert (error.path, error.expected) == (f"tools.codeMode.{key}", f'"{only}"')


@pytest.mark.covers("CF-5", "ER-invalid_config")
def test_an_unknown_language_is_an_error_with_its_place_and_the_choices() -> None:
    error = refused({"languages": ["javascript", "ruby"]})
    assert error.code == "invalid_config"
    assert isinstance(error, ClawmodeError)
    assert str(error) == (
        'tools.codeMode.languages[1]: found "ruby", expected "javascript" or "typescript"'
    )


# ---- Keys and types ----


@pytest.mark.covers("CF-5")
@pytest.mark.parametrize(
    ("key", "path", "nearest"),
    [
        ("timoutMs", "tools.codeMode.timoutMs", "timeoutMs"),
        ("timeout_ms", "tools.codeMode.timeout_ms", "timeoutMs"),
        ("ENABLED", "tools.codeMode.ENABLED", "enabled"),
        ("maxOutputBytes ", 'tools.codeMode["maxOutputBytes "]', "maxOutputBytes"),
        ("language", "tools.codeMode.language", "languages"),
    ],
)
def test_an_unknown_key_is_a_warning_with_the_nearest_known_one(
    key: str, path: str, nearest: str
) -> None:
    assert warnings({"enabled": True, key: {"any": "thing"}}) == [
        f"{path}: unknown key, it has no effect; the nearest known one is {nearest}"
    ]


@pytest.mark.parametrize("key", ["", "q", "ключ", "x" * 100_000, "\ud800"])
def test_no_key_is_dropped_in_silence(key: str) -> None:
    assert len(warnings({key: 1})) == 1


@pytest.mark.covers("CF-6", "ER-invalid_config")
@pytest.mark.parametrize(
    ("value", "path", "found", "expected"),
    [
        ("on", "tools.codeMode", "a string", "true, false or an object"),
        (1, "tools.codeMode", "a number", "true, false or an object"),
        (None, "tools.codeMode", "null", "true, false or an object"),
        ([], "tools.codeMode", "an empty list", "true, false or an object"),
        ({"enabled": "yes"}, "tools.codeMode.enabled", '"yes"', "true or false"),
        ({"enabled": 1}, "tools.codeMode.enabled", "1", "true or false"),
        ({"enabled": None}, "tools.codeMode.enabled", "null", "true or false"),
        ({"timeoutMs": "10s"}, "tools.codeMode.timeoutMs", '"10s"', "a positive integer"),
        ({"timeoutMs": True}, "tools.codeMode.timeoutMs", "true", "a positive integer"),
        ({"timeoutMs": None}, "tools.codeMode.timeoutMs", "null", "a positive integer"),
        ({"timeoutMs": {}}, "tools.codeMode.timeoutMs", "an object", "a positive integer"),
        (
            {"indexMaxChars": False},
            "tools.codeMode.indexMaxChars",
            "false",
            "a positive integer or 0",
        ),
        (
            {"languages": []},
            "tools.codeMode.languages",
            "an empty list",
            'a list with at least one of "javascript" or "typescript"',
        ),
        (
            {"languages": "javascript"},
            "tools.codeMode.languages",
            "a string",
            'a list with at least one of "javascript" or "typescript"',
        ),
        (
            {"languages": [["javascript"]]},
            "tools.codeMode.languages[0]",
            "a list",
            '"javascript" or "typescript"',
        ),
    ],
)
def test_a_wrong_type_is_an_error_that_says_what_was_found_and_what_is_expected(
    value: JsonValue, path: str, found: str, expected: str
) -> None:
    error = refused(value)
    assert (error.path, error.expected, error.code) == (path, expected, "invalid_config")
    assert str(error) == f"{path}: found {found}, expected {expected}"


@pytest.mark.covers("CF-6")
def test_a_wrong_type_is_an_error_even_where_code_mode_is_off() -> None:
    assert refused({"enabled": False, "timeoutMs": "10s"}).path == "tools.codeMode.timeoutMs"


def test_a_long_value_is_not_quoted_because_it_may_be_a_secret() -> None:
    message = str(refused({"mode": "x" * 10_000}))
    assert len(message) < 200
    assert "xxx" not in message


def test_all_errors_are_found_at_once() -> None:
    value: JsonValue = {"enabled": True, "mode": 1, "runtime": 2, "timeoutMs": 5}
    found = read_section(CodeModeConfig, value, "here")
    assert [error.path for error in found.errors] == ["here.runtime", "here.mode"]
    assert [warning.path for warning in found.warnings] == ["here.timeoutMs"]
    with pytest.raises(ConfigurationError):
        found.unwrap()


def test_an_error_can_be_made_of_a_message_alone() -> None:
    error = ConfigurationError("two tools are named a")
    assert (str(error), error.path, error.line) == ("two tools are named a", "", 0)


# ---- Agents ----


@pytest.mark.covers("CF-4")
@pytest.mark.parametrize(
    ("base", "own", "enabled", "timeout_ms"),
    [
        ({"enabled": True, "timeoutMs": 500}, False, False, 500),
        ({"enabled": True, "timeoutMs": 500}, {"enabled": False}, False, 500),
        ({"timeoutMs": 500}, True, True, 500),
        ({"enabled": False, "timeoutMs": 500}, {"enabled": True}, True, 500),
        ({"enabled": True, "timeoutMs": 500}, {"timeoutMs": 700}, True, 700),
        ({"enabled": True, "timeoutMs": 500}, {}, True, 500),
        ({"timeoutMs": 500}, {"timeoutMs": 700}, False, 700),
        (True, {"timeoutMs": 700}, True, 700),
        (False, {"timeoutMs": 700}, False, 700),
        ({}, {}, False, 10_000),
    ],
)
def test_an_agents_value_is_laid_over_the_global_one_field_by_field(
    base: JsonValue, own: JsonValue, enabled: bool, timeout_ms: int
) -> None:
    config = read(own).over(read(base))
    assert (config.enabled, config.timeout_ms) == (enabled, timeout_ms)


def in_a_file(base: JsonValue, own: JsonValue) -> ReadResult[Configuration]:
    agent: JsonObject = {"id": "a", "tools": {"codeMode": own}}
    return read_configuration({"tools": {"codeMode": base}, "agents": {"list": [agent]}})


@pytest.mark.covers("CF-4", "CF-5")
def test_a_warning_names_the_place_where_the_value_was_set() -> None:
    found = in_a_file({"timeoutMs": 5, "maxOutputBytes": 1}, {"timeoutMs": 0})
    config = tools(found.section, "a").code_mode
    assert (config.timeout_ms, config.max_output_bytes) == (10_000, 1024)
    assert sorted(map(str, found.warnings)) == [
        "agents.list[0].tools.codeMode.timeoutMs: 0 is not a positive integer: 10000 is used",
        "tools.codeMode.maxOutputBytes: 1 is under 1024: 1024 is used",
        "tools.codeMode.timeoutMs: 5 is under 100: 100 is used",
    ]


@pytest.mark.covers("CF-3", "CF-4")
@pytest.mark.parametrize(
    ("base", "own", "path"),
    [
        ({"searchDefaultLimit": 20}, {"maxSearchLimit": 5}, "tools.codeMode"),
        ({"maxSearchLimit": 5}, {"searchDefaultLimit": 20}, "agents.list[0].tools.codeMode"),
    ],
)
def test_search_limits_are_compared_after_merging(
    base: JsonValue, own: JsonValue, path: str
) -> None:
    found = in_a_file(base, own)
    assert tools(found.section, "a").code_mode.search_default_limit == 5
    assert list(map(str, found.warnings)) == [f"{path}.searchDefaultLimit: 20 is over 5: 5 is used"]


@pytest.mark.covers("CF-4", "CF-6")
@pytest.mark.parametrize(
    ("base", "own", "path"),
    [
        ({"timeoutMs": "10s"}, {"timeoutMs": 700}, "tools.codeMode.timeoutMs"),
        (True, {"timeoutMs": "10s"}, "agents.list[0].tools.codeMode.timeoutMs"),
        (True, "off", "agents.list[0].tools.codeMode"),
        (None, False, "tools.codeMode"),
    ],
)
def test_an_error_in_either_value_is_an_error(base: JsonValue, own: JsonValue, path: str) -> None:
    assert [error.path for error in in_a_file(base, own).errors] == [path]


# ---- Anything at all ----

scalars: st.SearchStrategy[JsonValue] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["javascript", "typescript", "only", "quickjs-wasi"])
)
fitting: dict[str, st.SearchStrategy[JsonValue]] = {
    "enabled": st.booleans(),
    "mode": st.just("only"),
    "languages": st.lists(st.sampled_from(["javascript", "typescript"]), min_size=1).map(
        list[JsonValue]
    ),
    **{CAMEL[name]: st.integers() | st.floats() for name in ALL_RANGES},
}
odd: st.SearchStrategy[JsonValue] = st.dictionaries(
    st.sampled_from(sorted(KEYS)) | st.text(max_size=8),
    scalars | st.lists(scalars, max_size=3).map(list[JsonValue]),
    max_size=4,
).map(dict[str, JsonValue])
values: st.SearchStrategy[JsonValue] = (
    st.fixed_dictionaries({}, optional=fitting).map(dict[str, JsonValue]) | odd | scalars
)


def within_ranges(config: CodeModeConfig) -> bool:
    used = config.clamped()
    bounds = all(low <= getattr(used, name) <= high for name, (low, high) in ALL_RANGES.items())
    types = all(type(getattr(used, name)) is int for name in ALL_RANGES)
    assert config.clamped() == used.clamped()
    assert all(getattr(config, name) == getattr(used, name) for name in RANGES)
    return bounds and types and used.search_default_limit <= used.max_search_limit


@examples(300, derandomize=True)
@example(value={"timeoutMs": 1 << 20_000}, own={})
@example(value={"\ud800": "\ud800", "mode": "\ud800"}, own={})
@given(value=values, own=values)
def test_any_json_is_a_config_within_its_ranges(value: JsonValue, own: JsonValue) -> None:
    both = read_section(CodeModeConfig, value, "base"), read_section(CodeModeConfig, own, "own")
    for found in both:
        assert all(error.path and error.expected for error in found.errors)
        assert all(warning.path and warning.message for warning in found.warnings)
    config = both[1].section.over(both[0].section)
    assert within_ranges(config)
    assert set(config.languages) <= {"javascript", "typescript"}
    assert config.languages


# ---- The page ----


@pytest.mark.parametrize("field", list(CodeModeConfig.model_fields))
def test_every_field_is_documented_with_its_default_and_range(field: str) -> None:
    (row,) = re.findall(rf"^\| `{CAMEL[field]}` \|.*$", PAGE, re.MULTILINE)
    default = getattr(CodeModeConfig(), field)
    if field in RANGES:
        low, high = RANGES[field]
        assert f"| {default} | {low} to {high} |" in row
    elif field == "max_suspended_runs":
        low, high = SUSPENDED_RUNS
        assert f"{SUSPENDED_IN_MEMORY} in memory" in row
        assert f"{SUSPENDED_DURABLE} durable" in row
        assert f"| {low} to {high} |" in row
