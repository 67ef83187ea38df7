"""Lists of strangers made into tools, without a server."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import methods
from tests.support.fuzzing import examples

from clawmode.mcp.listing import (
    MAX_PROBLEMS,
    MAX_TOOLS,
    Listing,
    Offer,
    Problems,
    for_models,
    make_tool,
    sift,
)
from clawmode.tools.tool import Tool


def offer(name: str, schema: Any = None, **hints: bool) -> Offer:
    return Offer(name, "", schema or {"type": "object"}, hints=hints)


def made(offered: Offer, *, trusting: bool = False) -> Tool:
    return make_tool(offered, server="s", execute=lambda given, context: None, trusting=trusting)


def test_a_tool_is_what_its_server_says_under_the_servers_name() -> None:
    tool = made(Offer("create_issue", "Make one.", {"type": "object"}, label="Create"))
    assert tool.id == "mcp:s:create_issue"
    assert (tool.source, tool.owner, tool.label) == ("mcp", "s", "Create")
    assert not tool.trusted


@pytest.mark.parametrize(
    ("hints", "effect", "idempotent"),
    [
        ({}, None, False),
        ({"readOnlyHint": True}, "read", True),
        ({"readOnlyHint": False}, "write", False),
        ({"readOnlyHint": False, "idempotentHint": True}, "write", True),
        ({"idempotentHint": True}, None, True),
        ({"destructiveHint": True}, None, False),
    ],
)
def test_hints_mean_something_only_to_who_trusts(hints: Any, effect: Any, idempotent: bool) -> None:
    trusted, untrusted = made(offer("a", **hints), trusting=True), made(offer("a", **hints))
    assert (trusted.effect, trusted.idempotent) == (effect, idempotent)
    assert (untrusted.effect, untrusted.idempotent) == (None, False)


def test_what_has_a_default_need_not_be_given() -> None:
    schema: Any = {
        "type": "object",
        "properties": {"a": {"default": None}, "b": {}, "c": True},
        "required": ["a", "b"],
    }
    assert made(offer("x", schema)).parameters["required"] == ["b"]
    assert schema["required"] == ["a", "b"]


@pytest.mark.covers("M-7")
@pytest.mark.parametrize(
    ("meta", "listed"),
    [
        ({"ui": {"visibility": ["app"]}}, False),
        ({"ui": {"visibility": []}}, False),
        ({"ui": {"visibility": "app"}}, False),
        ({"ui": {"visibility": ["app", "model"]}}, True),
        ({"ui": {"visibility": ["model"]}}, True),
        ({"ui": {"resourceUri": "ui://x"}}, True),
        ({"ui": {"visibility": 7}}, True),
        ({"ui": ["visibility"]}, True),
        (["ui"], True),
        (None, True),
    ],
)
def test_a_tool_for_the_servers_own_app_is_not_listed(meta: Any, listed: bool) -> None:
    problems = Problems()
    assert bool(sift([{"name": "poll", "_meta": meta}], problems)) is listed
    assert bool(problems.texts()) is not listed


@pytest.mark.covers("M-7")
@pytest.mark.parametrize(
    ("annotations", "kept"),
    [
        ({"audience": ["user"]}, False),
        ({"audience": ["user", "assistant"]}, True),
        ({"audience": ["assistant"], "priority": 1}, True),
        ({"audience": []}, True),
        ({"audience": "user"}, True),
        ({"priority": 1}, True),
        (["audience"], True),
        (None, True),
    ],
)
def test_content_that_is_only_for_the_user_is_left_out(annotations: Any, kept: bool) -> None:
    block = {"type": "text", "text": "x", "annotations": annotations}
    assert for_models([block]) == ([block] if kept else [])
    assert for_models("no list") == []


def test_problems_are_counted_when_there_are_many() -> None:
    problems = Problems()
    sift([None] * 100, problems)
    told = problems.texts()
    assert len(told) == MAX_PROBLEMS + 1
    assert told[-1] == f"and {100 - MAX_PROBLEMS} more problems"


def test_the_same_tools_in_another_order_are_the_same_list() -> None:
    names = [f"tool{number}" for number in range(MAX_TOOLS + 50)]
    lists = []
    for order in (names, names[::-1]):
        listing = Listing()
        for name in order:
            listing.add(offer(name))
        lists.append((listing.finish(), listing.problems.texts()))
    assert lists[0] == lists[1]
    assert len(lists[0][0]) == MAX_TOOLS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "name": JSON | st.text(max_size=200),
        "title": JSON,
        "description": JSON,
        "annotations": JSON | st.dictionaries(st.sampled_from(["readOnlyHint", "title"]), JSON),
        "inputSchema": JSON
        | st.fixed_dictionaries(
            {},
            optional={
                "type": JSON | st.just("object"),
                "properties": JSON,
                "required": JSON,
                "$schema": JSON,
            },
        ),
        "outputSchema": JSON,
    },
)


@given(st.lists(ENTRY | JSON, max_size=6))
@examples(200)
def test_whatever_is_listed_the_protocols_own_checks_pass_what_is_left(entries: Any) -> None:
    for version in ("2025-11-25", "2026-07-28"):
        page: Any = {"tools": sift(entries, Problems())}
        if version == "2026-07-28":
            page |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        methods.validate_server_result("tools/list", version, page)
    assert len(page["tools"]) <= len(entries)
