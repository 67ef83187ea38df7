"""The structured controls: what they find, what they take for what was meant, what they refuse."""

from typing import Any

import pytest
from tests.support.tool_search_driver import ISSUE, RING, add, fake, forbidden, water

from clawmode import Policy
from clawmode.agent.tool_search import (
    MAX_DESCRIPTION_CHARS,
    MAX_QUERIES,
    ControlRefused,
    ToolSearch,
    exposed_name,
)
from clawmode.config.tools import ToolSearchConfig
from clawmode.tools.tool import Tool

pytestmark = pytest.mark.anyio

STRANGE = ["__proto__", "constructor", "toString", "hasOwnProperty", "then"]


def over(*tools: Tool, **config: Any) -> ToolSearch:
    search = ToolSearch(ToolSearchConfig(**config))
    search.offer(tools)
    return search


def everything(**config: Any) -> ToolSearch:
    return over(add, water, ISSUE, RING, **config)


async def ids(search: ToolSearch, **arguments: Any) -> list[str]:
    found: Any = await search.search(arguments)
    return [entry["id"] for entry in found["tools"]]


# ---- Search ----


@pytest.mark.covers("TS-18", "TS-22", "TS-13")
async def test_tools_of_every_source_are_found_described_and_called_by_id() -> None:
    search = everything()
    assert (await ids(search, query="open an issue"))[0] == "mcp:github:create_issue"
    assert (await ids(search, query="add numbers"))[0] == "openclaw:core:add"
    assert (await ids(search, query="water a plant"))[0] == "plugin:garden:water"
    assert (await ids(search, query="ring bell"))[0] == "client:client:ring"
    for tool in (add, water, ISSUE, RING):
        described = search.describe({"id": tool.id})
        assert (described["id"], described["parameters"]) == (tool.id, dict(tool.parameters))
        assert search.read_call({"id": tool.id, "args": {"x": 1}}) == (tool, {"x": 1})


@pytest.mark.covers("TS-19")
async def test_results_are_compact_and_bounded() -> None:
    long = fake("long", text="long\n\x00 words " * 500)
    found: Any = await over(long).search({"query": "long"})
    (entry,) = found["tools"]
    assert set(entry) == {"id", "name", "description", "source"}
    assert len(entry["description"]) <= MAX_DESCRIPTION_CHARS


@pytest.mark.covers("TS-16", "TS-17")
@pytest.mark.parametrize(
    ("limit", "found"),
    [(None, 8), (3, 3), ("3", 3), (100, 20), (0, 8), (-1, 8), (True, 8), ("x", 8), (2.5, 8)],
)
async def test_a_search_gives_as_many_as_it_may(limit: Any, found: int) -> None:
    search = over(*(fake(f"paint_{number}", text="Paint a wall.") for number in range(30)))
    assert len(await ids(search, query="paint wall", limit=limit)) == found


async def test_a_batch_is_answered_query_by_query() -> None:
    search = everything()
    found: Any = await search.search({"queries": ["add numbers", "water plant"]})
    firsts = [each["tools"][0]["id"] for each in found["results"]]
    assert firsts == ["openclaw:core:add", "plugin:garden:water"]
    assert search.telemetry.searches == 2


@pytest.mark.parametrize("given", [{"queries": '["add"]'}, {"queries": "add"}, {"query": ["add"]}])
async def test_one_query_in_another_shape_is_understood(given: Any) -> None:
    found: Any = await everything().search(given)
    assert found["results"][0]["tools"][0]["id"] == "openclaw:core:add"


@pytest.mark.parametrize(
    "given", [{}, {"query": 7}, {"queries": [1]}, {"queries": ["x"] * (MAX_QUERIES + 1)}, "x", []]
)
async def test_a_search_for_nothing_is_refused(given: Any) -> None:
    with pytest.raises(ControlRefused) as refused:
        await everything().search(given)
    assert refused.value.code == "invalid_input"


async def test_a_search_without_a_match_says_so() -> None:
    found = await everything().search({"query": "zzzz"})
    assert found["tools"] == []
    assert "note" in found


# ---- What is not there ----


@pytest.mark.covers("TS-38")
async def test_what_policy_excludes_is_neither_found_nor_described_nor_called() -> None:
    policy = Policy.from_config({"deny": ["forbidden"]})
    search = over(*policy.effective([add, forbidden]))
    assert forbidden.id not in await ids(search, query="forbidden do what must not be done")
    assert await ids(search, query=forbidden.id) == []
    for operation in (search.describe, search.read_call):
        with pytest.raises(ControlRefused) as refused:
            operation({"id": forbidden.id, "args": {}})
        assert refused.value.code == "unknown_tool"
        assert "must not" not in str(refused.value)


@pytest.mark.covers("TS-39")
async def test_a_tool_that_has_gone_since_the_search_is_unknown() -> None:
    search = everything()
    assert ISSUE.id in await ids(search, query="issue")
    search.offer([add])
    with pytest.raises(ControlRefused) as refused:
        search.read_call({"id": ISSUE.id, "args": {}})
    assert refused.value.code == "unknown_tool"


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("openclaw:core:ad", "openclaw:core:add"),
        ("mcp:github:create_isue", "mcp:github:create_issue"),
        ("watr", "plugin:garden:water"),
    ],
)
def test_a_wrong_id_gets_suggestions(wrong: str, meant: str) -> None:
    with pytest.raises(ControlRefused, match=meant):
        everything().describe({"id": wrong})


@pytest.mark.parametrize("name", STRANGE)
def test_names_that_languages_know_are_names_like_others(name: str) -> None:
    with pytest.raises(ControlRefused) as refused:
        everything().read_call({"id": name, "args": {}})
    assert refused.value.code == "unknown_tool"
    there = fake(name)
    assert over(there).read_call({"id": name, "args": {}})[0] is there


def test_a_name_of_several_is_refused_with_their_ids() -> None:
    search = over(fake("open", "mcp", "a"), fake("open", "mcp", "b"))
    with pytest.raises(ControlRefused, match="mcp:b:open") as refused:
        search.read_call({"id": "open", "args": {}})
    assert refused.value.code == "ambiguous_tool"
    assert search.read_call({"id": "b__open", "args": {}})[0].owner == "b"


def test_no_tool_can_take_the_place_of_a_control() -> None:
    search = over(fake("tool.call"), fake("tool_search"), add)
    assert [tool.name for tool in search.catalog.entries] == ["add", "tool.call"]
    assert list(search.by_name) == ["add"]
    assert exposed_name(fake("tool.call")) == "tool_call"


# ---- Repairs ----

SHAPED = fake(
    "shaped",
    parameters={
        "type": "object",
        "properties": {"input": {"type": "string"}, "name": {"type": "string"}},
    },
)


@pytest.mark.parametrize(
    "given",
    [
        {"id": "add", "args": {"a": 1, "b": 2}},
        {"id": "add", "args": '{"a": 1, "b": 2}'},
        {"id": "add", "a": 1, "b": 2},
        {"id": "add", "args": {}, "a": 1, "b": 2},
        {"id": "add", "args": None, "a": 1, "b": 2},
        {"id": "add", "arguments": {"a": 1, "b": 2}},
        {"id": "add", "input": '{"a": 1, "b": 2}'},
        {"toolId": "openclaw:core:add", "params": {"a": 1, "b": 2}},
        {"name": "add", "args": {"a": 1, "b": 2}},
        '{"id": "add", "args": {"a": 1, "b": 2}}',
    ],
)
def test_arguments_that_can_mean_one_thing_are_taken_so(given: Any) -> None:
    assert everything().read_call(given) == (add, {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("given", "input_"),
    [
        ({"id": "shaped", "input": "x"}, {"input": "x"}),
        ({"id": "shaped", "input": "{}", "name": "n"}, {"input": "{}", "name": "n"}),
        ({"id": "shaped"}, {}),
        ({"id": "shaped", "args": {"input": "{}"}}, {"input": "{}"}),
    ],
)
def test_what_a_tool_itself_calls_input_stays_its_own(given: Any, input_: Any) -> None:
    assert over(SHAPED).read_call(given) == (SHAPED, input_)


@pytest.mark.parametrize(
    "given",
    [
        {"id": "add", "args": {"a": 1}, "b": 2},
        {"id": "add", "args": [1, 2]},
        {"id": "add", "args": "1, 2"},
        {"args": {"a": 1}},
        {"id": 7, "args": {}},
        "add(1, 2)",
        '{"id": "add"',
        [],
    ],
)
def test_arguments_that_can_mean_two_things_are_refused(given: Any) -> None:
    with pytest.raises(ControlRefused) as refused:
        everything().read_call(given)
    assert refused.value.code == "invalid_input"
