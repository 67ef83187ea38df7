"""`tools.toolSearch`: defaults, ranges, shorthands, agents, errors."""

from typing import Any

import pytest

from clawmode.config import resolve as settings
from clawmode.config.tools import ToolSearchConfig


def load(value: Any, own: Any = None) -> ToolSearchConfig:
    entry: dict[str, Any] = (
        {"id": "a"} if own is None else {"id": "a", "tools": {"toolSearch": own}}
    )
    found = settings.read({"tools": {"toolSearch": value}, "agents": {"list": [entry]}})
    return settings.agent(found.unwrap(), "a").tools.tool_search


@pytest.mark.covers("TS-14", "TS-15", "TS-16", "TS-17")
@pytest.mark.parametrize("value", [True, {"enabled": True}, {"codeTimeoutMs": 10_000}])
def test_true_and_an_object_without_a_mode_mean_code(value: Any) -> None:
    found = load(value)
    assert found == ToolSearchConfig(enabled=True)
    assert (found.mode, found.code_timeout_ms) == ("code", 10_000)
    assert (found.search_default_limit, found.max_search_limit) == (8, 20)


@pytest.mark.covers("TS-2")
@pytest.mark.parametrize(
    "value", [False, {}, {"enabled": False}, {"enabled": False, "mode": "tools"}]
)
def test_it_is_off_unless_something_says_otherwise(value: Any) -> None:
    assert not load(value).enabled
    assert not settings.agent(settings.read({}).unwrap()).tools.tool_search.enabled


@pytest.mark.covers("TS-15", "TS-16", "TS-17")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"codeTimeoutMs": 1}, (1000, 8, 20)),
        ({"codeTimeoutMs": 60_001}, (60_000, 8, 20)),
        ({"codeTimeoutMs": -5}, (10_000, 8, 20)),
        ({"maxSearchLimit": 51}, (10_000, 8, 50)),
        ({"maxSearchLimit": 5}, (10_000, 5, 5)),
        ({"maxSearchLimit": 0}, (10_000, 8, 20)),
        ({"searchDefaultLimit": 3}, (10_000, 3, 20)),
        ({"searchDefaultLimit": 40, "maxSearchLimit": 10}, (10_000, 10, 10)),
    ],
)
def test_numbers_are_kept_within_their_ranges(value: Any, expected: tuple[int, int, int]) -> None:
    found = load(value)
    assert expected == (found.code_timeout_ms, found.search_default_limit, found.max_search_limit)


def test_an_agent_has_its_own_settings_over_the_global_ones_field_by_field() -> None:
    found = load({"mode": "tools", "maxSearchLimit": 10}, {"mode": "directory"})
    assert (found.mode, found.max_search_limit, found.enabled) == ("directory", 10, True)
    assert not load({"mode": "tools"}, False).enabled
    assert load({"enabled": False, "mode": "tools"}, True).mode == "tools"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("on", "tools.toolSearch"),
        (None, "tools.toolSearch"),
        ([], "tools.toolSearch"),
        ({"mode": "all"}, "tools.toolSearch.mode"),
        ({"enabled": "yes"}, "tools.toolSearch.enabled"),
        ({"codeTimeoutMs": "10s"}, "tools.toolSearch.codeTimeoutMs"),
        ({"maxSearchLimit": True}, "tools.toolSearch.maxSearchLimit"),
    ],
)
def test_what_cannot_be_meant_is_an_error_with_its_place(value: Any, path: str) -> None:
    assert [error.path for error in settings.read({"tools": {"toolSearch": value}}).errors] == [
        path
    ]


@pytest.mark.covers("TS-13")
@pytest.mark.parametrize("key", ["sources", "include", "timeoutMs"])
def test_a_key_that_there_is_not_is_a_warning(key: str) -> None:
    found = settings.read({"tools": {"toolSearch": {"enabled": True, key: ["mcp"]}}})
    assert [warning.path for warning in found.warnings] == [f"tools.toolSearch.{key}"]
