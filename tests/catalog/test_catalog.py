"""The catalog: ids, names, views, lookup and the index of one run's tools."""

import json
import random
import re
from datetime import date, datetime
from typing import Annotated, Any, Literal, NotRequired

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field
from tests.support.fuzzing import examples
from typing_extensions import TypedDict

from clawmode import tool as function_tool
from clawmode.catalog.catalog import Catalog, safe_name
from clawmode.catalog.controls import CONTROL_NAMES, is_control
from clawmode.exceptions import AmbiguousTool, ConfigurationError, DuplicateTool, UnknownTool
from clawmode.tools.tool import Tool, ToolContext, ToolSource
from clawmode.types import JsonObject, JsonValue

quickly = examples(100, derandomize=True)

SOURCES: tuple[ToolSource, ...] = ("openclaw", "plugin", "mcp", "client")


def answer(arguments: JsonObject, context: ToolContext) -> JsonValue:
    return None


def tool(
    name: str,
    description: str = "",
    *keys: str,
    source: ToolSource = "openclaw",
    owner: str = "",
    label: str | None = None,
) -> Tool:
    properties: JsonObject = {key: {"type": "string"} for key in keys}
    parameters: JsonObject = {"type": "object", "properties": properties}
    return Tool(name, description, parameters, answer, label=label, source=source, owner=owner)


def plugin(name: str, description: str = "", *keys: str, owner: str = "acme") -> Tool:
    return tool(name, description, *keys, source="plugin", owner=owner)


def mcp(name: str, description: str = "", *keys: str, owner: str = "github") -> Tool:
    return tool(name, description, *keys, source="mcp", owner=owner)


def client(name: str, description: str = "", *keys: str, owner: str = "") -> Tool:
    return tool(name, description, *keys, source="client", owner=owner)


def all_tools(catalog: Catalog) -> list[dict[str, JsonValue]]:
    return json.loads(catalog.all_tools_json)


TOOLS = [
    tool("read", "Read a local file", "path", label="Reader"),
    tool("exec", "Run a shell command", "command"),
    plugin("browser-open", "Open a page in the browser", "url", owner="browser"),
    mcp("create_issue", "Create an issue in a repository", "title"),
    client("select_file", "Let the user select a file", "prompt", owner="app"),
    client("confirm", "Ask the user"),
]


def ids(entries: list[JsonObject]) -> list[JsonValue]:
    return [entry["id"] for entry in entries]


# Ids and entries


@pytest.mark.covers("CA-1")
def test_ids_follow_their_source_and_come_sorted() -> None:
    assert [entry.id for entry in Catalog(TOOLS).entries] == [
        "client:app:select_file",
        "client:client:confirm",
        "mcp:github:create_issue",
        "openclaw:core:exec",
        "openclaw:core:read",
        "plugin:browser:browser-open",
    ]


@pytest.mark.covers("CA-1")
def test_the_order_of_the_tools_changes_nothing() -> None:
    shuffled = random.Random(1).sample(TOOLS, len(TOOLS))
    one, other = Catalog(TOOLS), Catalog(iter(shuffled))
    assert one.entries == other.entries
    assert one.all_tools_json == other.all_tools_json
    assert one.convenience() == other.convenience()
    assert one.index_text(4_000) == other.index_text(4_000)
    assert one.search("file", 8) == other.search("file", 8)


def test_compact_entries_have_no_schemas_and_no_mcp() -> None:
    assert all_tools(Catalog(TOOLS)) == [
        {
            "id": "client:app:select_file",
            "name": "select_file",
            "description": "Let the user select a file",
            "source": "client",
            "sourceName": "app",
        },
        {
            "id": "client:client:confirm",
            "name": "confirm",
            "description": "Ask the user",
            "source": "client",
            "sourceName": "client",
        },
        {
            "id": "openclaw:core:exec",
            "name": "exec",
            "description": "Run a shell command",
            "source": "openclaw",
        },
        {
            "id": "openclaw:core:read",
            "name": "read",
            "label": "Reader",
            "description": "Read a local file",
            "source": "openclaw",
        },
        {
            "id": "plugin:browser:browser-open",
            "name": "browser-open",
            "description": "Open a page in the browser",
            "source": "plugin",
            "sourceName": "browser",
        },
    ]


def test_the_json_of_the_entries_is_compact_and_made_once() -> None:
    catalog = Catalog([*TOOLS, tool("grüße", "\ud800")])
    assert json.loads(catalog.all_tools_json)[-1]["name"] == "browser-open"
    assert b'", "' not in catalog.all_tools_json
    assert catalog.all_tools_json is catalog.all_tools_json


def test_it_says_how_many_tools_come_from_where() -> None:
    catalog = Catalog(TOOLS)
    assert len(catalog) == 6
    assert catalog.breakdown() == {"client": 2, "mcp": 1, "openclaw": 2, "plugin": 1}
    assert Catalog([]).breakdown() == {}


def test_what_is_handed_out_can_be_changed_without_harm() -> None:
    catalog = Catalog(TOOLS)
    before = catalog.all_tools_json, catalog.convenience()
    catalog.convenience()["read"] = "client:client:confirm"
    catalog.search("file", 8)[0]["id"] = "mine"
    catalog.describe("read")["id"] = "mine"
    again = catalog.all_tools_json, catalog.convenience()
    assert again == before
    assert Catalog(TOOLS).describe("read") == catalog.describe("read")


@pytest.mark.covers("CA-8")
def test_two_catalogs_share_nothing() -> None:
    mine, yours = Catalog([tool("mine", "secret")]), Catalog([tool("yours")])
    assert ids(all_tools(mine)) == ["openclaw:core:mine"]
    assert ids(all_tools(yours)) == ["openclaw:core:yours"]
    assert yours.search("mine", 8) == yours.search("secret", 8) == []
    assert yours.convenience() == {"yours": "openclaw:core:yours"}
    with pytest.raises(UnknownTool) as caught:
        yours.resolve("openclaw:core:mine")
    assert "openclaw:core:mine" not in caught.value.ids


@pytest.mark.parametrize("source", SOURCES)
def test_control_tools_of_tool_search_are_left_out(source: ToolSource) -> None:
    catalog = Catalog([tool(name, source=source, owner="o") for name in CONTROL_NAMES])
    assert len(catalog) == 0


def test_a_shell_tool_named_exec_is_a_tool_like_any_other() -> None:
    catalog = Catalog([tool("exec"), tool("wait")])
    assert catalog.convenience() == {"exec": "openclaw:core:exec", "wait": "openclaw:core:wait"}
    assert catalog.resolve("openclaw:core:exec").name == "exec"


def test_two_tools_with_one_id_are_a_configuration_error_that_names_both() -> None:
    with pytest.raises(DuplicateTool) as caught:
        Catalog([plugin("b:c", "the first", owner="a"), plugin("c", "the second", owner="a:b")])
    assert isinstance(caught.value, ConfigurationError)
    assert caught.value.code == "invalid_config"
    for part in ("'plugin:a:b:c'", "'b:c' of 'a'", "'c' of 'a:b'", "the first", "the second"):
        assert part in str(caught.value)


def test_the_same_tool_twice_is_a_duplicate_too() -> None:
    with pytest.raises(DuplicateTool):
        Catalog([TOOLS[0], TOOLS[0]])


# Convenience names


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("create-issue", "create_issue"),
        ("web.search", "web_search"),
        ("a b\tc\n", "a_b_c_"),
        ("$jq", "$jq"),
        ("class", "class"),
        ("größe", "größe"),
        ("größe-$", "größe_$"),
        ("名前", "名前"),
        ("x²", "x_"),
        ("\N{PILE OF POO}", "_"),
        ("", ""),
    ],
)
def test_what_an_identifier_cannot_have_becomes_an_underscore(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_convenience_names_lead_to_ids() -> None:
    assert Catalog(TOOLS).convenience() == {
        "browser_open": "plugin:browser:browser-open",
        "confirm": "client:client:confirm",
        "exec": "openclaw:core:exec",
        "read": "openclaw:core:read",
        "select_file": "client:app:select_file",
    }


@pytest.mark.parametrize("name", ["2fa", "", "1", "9_lives"])
def test_a_name_that_is_no_identifier_has_no_function(name: str) -> None:
    assert Catalog([tool(name)]).convenience() == {}


@pytest.mark.parametrize("name", ["class", "await", "delete", "new", "import", "None"])
def test_a_reserved_word_may_stand_after_a_dot(name: str) -> None:
    assert Catalog([tool(name)]).convenience() == {name: f"openclaw:core:{name}"}


def test_names_that_become_the_same_have_no_function() -> None:
    same = [tool("create-issue"), plugin("create_issue"), client("create.issue"), tool("other")]
    assert Catalog(same).convenience() == {"other": "openclaw:core:other"}


def test_hidden_tools_do_not_make_a_name_ambiguous() -> None:
    catalog = Catalog([tool("create_issue"), mcp("create_issue")])
    assert catalog.convenience() == {"create_issue": "openclaw:core:create_issue"}


@pytest.mark.parametrize(
    "name", ["search", "describe", "call", "__proto__", "then", "toJSON", "__proto-_"]
)
def test_names_with_a_meaning_of_their_own_are_called_by_id_only(name: str) -> None:
    catalog = Catalog([tool(name)])
    assert catalog.convenience() == {}
    assert catalog.resolve(name).id == catalog.describe(f"openclaw:core:{name}")["id"]


@pytest.mark.parametrize("name", ["toString", "constructor", "hasOwnProperty", "valueOf"])
def test_names_of_every_object_are_names_like_others(name: str) -> None:
    catalog = Catalog([tool(name, "Do", "a"), tool("read")])
    assert catalog.convenience()[name] == f"openclaw:core:{name}"
    assert catalog.resolve(name).name == name
    assert f"{name}({{a?: string}})" in catalog.index_text(4_000)


# Looking up


def test_a_tool_is_found_by_id_and_by_its_name() -> None:
    catalog = Catalog(TOOLS)
    assert catalog.resolve("openclaw:core:read") is TOOLS[0]
    assert catalog.resolve("read") is TOOLS[0]


def test_an_ambiguous_name_lists_the_ids() -> None:
    catalog = Catalog([tool("read"), plugin("read"), mcp("read")])
    with pytest.raises(AmbiguousTool, match="2 tools are named 'read'") as caught:
        catalog.resolve("read")
    assert caught.value.code == "ambiguous_tool"
    assert caught.value.ids == ("openclaw:core:read", "plugin:acme:read")
    assert "'openclaw:core:read', 'plugin:acme:read'" in str(caught.value)
    assert "mcp" not in str(caught.value)


def test_a_very_ambiguous_name_lists_some_ids_and_counts_the_rest() -> None:
    catalog = Catalog([plugin("read", owner=f"p{number:02}") for number in range(30)])
    with pytest.raises(AmbiguousTool, match=r"'plugin:p09:read' and 20 more\.") as caught:
        catalog.resolve("read")
    assert len(caught.value.ids) == 30


@pytest.mark.parametrize(
    "reference",
    ["raed", "Read", "read ", "openclaw:core:raed", "plugin:core:read", "OPENCLAW:CORE:READ"],
)
def test_an_unknown_tool_comes_with_the_nearest_id_and_what_to_do(reference: str) -> None:
    with pytest.raises(UnknownTool, match="'openclaw:core:read'") as caught:
        Catalog([tool("read"), tool("exec")]).resolve(reference)
    assert caught.value.code == "unknown_tool"
    assert caught.value.ids[0] == "openclaw:core:read"
    assert "tools.search(query)" in str(caught.value)


@pytest.mark.parametrize("reference", ["", "zzz", "\0", "\ud800", "x" * 1_000_000, "a:" * 9_999])
def test_any_reference_gives_a_short_error_that_can_be_written_down(reference: str) -> None:
    with pytest.raises(UnknownTool) as caught:
        Catalog(TOOLS).resolve(reference)
    assert caught.value.ids == ()
    assert len(str(caught.value).encode()) < 1_000


def test_a_run_with_mcp_tools_says_where_those_are() -> None:
    with pytest.raises(UnknownTool, match=r"MCP\.<server>\.<tool>\(input\)"):
        Catalog(TOOLS).resolve("mcp:github:create_issue")
    with pytest.raises(UnknownTool) as caught:
        Catalog(TOOLS[:2]).resolve("mcp:github:create_issue")
    assert "MCP." not in str(caught.value)


@pytest.mark.covers("CA-4")
def test_a_tool_named_like_another_s_id_does_not_catch_its_calls() -> None:
    shell, impostor = tool("exec"), client("openclaw:core:exec")
    catalog = Catalog([impostor, shell])
    assert catalog.resolve("openclaw:core:exec") is shell
    assert catalog.resolve("client:client:openclaw:core:exec") is impostor
    assert catalog.search("openclaw:core:exec", 8)[0]["id"] == "openclaw:core:exec"


@pytest.mark.covers("CA-4")
@pytest.mark.parametrize(
    "name", ["openclaw:core:exec", "mcp:github:create_issue", "plugin:a:b", "client:client:x"]
)
def test_nor_does_it_when_the_other_is_not_there(name: str) -> None:
    catalog = Catalog([client(name)])
    with pytest.raises(UnknownTool):
        catalog.resolve(name)
    with pytest.raises(UnknownTool):
        catalog.describe(name)
    assert catalog.resolve(f"client:client:{name}").name == name


def test_a_name_with_colons_that_is_no_id_is_a_name() -> None:
    assert Catalog([tool("git:commit")]).resolve("git:commit").name == "git:commit"
    assert Catalog([tool("openclaw:x")]).resolve("openclaw:x").name == "openclaw:x"


def test_a_description_adds_the_schemas() -> None:
    output: JsonObject = {"type": "string"}
    plain = tool("read", "Read", "path")
    declared = Tool("stat", "Stat", {"type": "object"}, answer, output_schema=output)
    catalog = Catalog([plain, declared])
    assert catalog.describe("read") == {
        "id": "openclaw:core:read",
        "name": "read",
        "description": "Read",
        "source": "openclaw",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    assert catalog.describe("openclaw:core:stat")["outputSchema"] == output


def test_mcp_entries_can_be_reached_only_on_demand() -> None:
    catalog = Catalog(TOOLS)
    id_ = "mcp:github:create_issue"
    for reference in (id_, "create_issue"):
        with pytest.raises(UnknownTool):
            catalog.resolve(reference)
        with pytest.raises(UnknownTool):
            catalog.describe(reference)
        assert id_ not in ids(catalog.search(reference, 50))
        assert catalog.resolve(reference, include_mcp=True) is TOOLS[3]
        assert catalog.describe(reference, include_mcp=True)["sourceName"] == "github"
        assert catalog.search(reference, 8, include_mcp=True)[0]["id"] == id_
    assert id_ not in ids(all_tools(catalog))
    assert id_ not in catalog.convenience().values()
    assert id_.encode() not in catalog.all_tools_json
    assert "issue" in catalog.unmatched("create issue")
    assert catalog.unmatched("create issue", include_mcp=True) == []


# Searching


@pytest.mark.parametrize("query", ["openclaw:core:read", "OpenClaw:Core:READ", " read ", "READ"])
def test_an_exact_id_or_name_comes_first(query: str) -> None:
    louder = plugin("read_read", "read read read", "read")
    catalog = Catalog([tool("read", "Get text"), louder, plugin("openclaw_core_read")])
    assert catalog.search(query, 8)[0]["id"] == "openclaw:core:read"


def test_a_name_of_stop_words_is_found_by_exactly_that() -> None:
    assert ids(Catalog([tool("to_do"), tool("the")]).search("the", 8)) == ["openclaw:core:the"]


def test_all_tools_of_the_exact_name_come_first_and_once() -> None:
    catalog = Catalog([plugin("read"), tool("read"), tool("read_all", "read")])
    found = ["openclaw:core:read", "plugin:acme:read", "openclaw:core:read_all"]
    assert ids(catalog.search("read", 8)) == found
    assert ids(catalog.search("read", 1)) == found[:1]
    assert catalog.search("read", 0) == catalog.search("read", -1) == []


def test_a_search_answers_with_compact_entries() -> None:
    catalog = Catalog(TOOLS)
    assert catalog.search("browser", 8) == [all_tools(catalog)[-1]]


def test_names_labels_descriptions_and_parameters_are_searched() -> None:
    catalog = Catalog([tool("alpha", "beta", "gamma", label="delta"), tool("other")])
    for query in ("alpha", "beta", "gamma", "delta"):
        assert ids(catalog.search(query, 8)) == ["openclaw:core:alpha"]


def test_parameters_of_strangers_are_not_searched() -> None:
    catalog = Catalog([client("pick", "Pick", "gamma"), mcp("open", "Open", "gamma")])
    assert catalog.search("gamma", 8) == catalog.search("gamma", 8, include_mcp=True) == []


def test_equal_matches_are_ordered_by_id() -> None:
    catalog = Catalog([plugin("same", "Same", owner=owner) for owner in "cab"])
    expected = [f"plugin:{owner}:same" for owner in "abc"]
    assert ids(catalog.search("same", 8)) == expected
    assert ids(catalog.search("same thing", 8)) == expected


@pytest.mark.parametrize("query", ["", "  ", "the", "!"])
def test_an_empty_query_finds_nothing(query: str) -> None:
    assert Catalog(TOOLS).search(query, 8) == []


def test_a_schema_with_strange_properties_can_be_searched() -> None:
    strange: list[JsonValue] = [None, ["a"], "abc", 3]
    for properties in strange:
        made = Tool("read", "", {"properties": properties}, answer)
        assert len(Catalog([made]).search("read", 8)) == 1


# The index for the prompt


@pytest.mark.covers("SF-6")
def test_the_index_shows_callable_names_with_their_input() -> None:
    assert Catalog([*TOOLS, tool("2fa", "", "code"), tool("now")]).index_text(4_000) == (
        "tools.browser_open({url?: string})\n"
        'tools.call("openclaw:core:2fa", {code?: string})\n'
        "tools.exec({command?: string})\n"
        "tools.now()\n"
        "tools.read({path?: string})"
    )


@pytest.mark.covers("SF-6")
def test_the_index_has_no_descriptions_and_nothing_of_strangers() -> None:
    index = Catalog(TOOLS).index_text(4_000)
    for text in ("issue", "title", "select", "confirm", "prompt", "github", "app", "shell", "Read"):
        assert text not in index
    assert Catalog([client("a"), mcp("b")]).index_text(4_000) == ""


@pytest.mark.covers("SF-6", "MS-2")
def test_what_does_not_fit_is_named_without_its_signature() -> None:
    tools = [tool("a", "", "x"), tool("b", "", "a_long_name_of_a_property"), tool("c", "", "y")]
    assert Catalog(tools).index_text(88) == (
        "tools.a({x?: string})\ntools.c({y?: string})\nMore, see tools.describe(name): tools.b"
    )


@pytest.mark.covers("SF-6", "MS-2")
def test_names_that_do_not_fit_are_counted() -> None:
    index = Catalog([tool(f"name_{number:02}") for number in range(30)]).index_text(100)
    names, more = index.split("\n")
    assert names == "tools.name_00, tools.name_01, tools.name_02"
    assert more == "... and 27 more, found by tools.search(query)"


@pytest.mark.covers("MS-2")
def test_the_most_useful_signatures_are_shown_and_the_alphabet_decides_nothing() -> None:
    one = "a" * 30
    tools = [tool(f"z{number}", "", one) for number in range(4)]
    tools += [plugin("a_plugin", "", one), tool("b_long", "", one * 2)]
    for used, shown in (((), {"z0", "z1"}), (("openclaw:core:b_long",), {"b_long", "z0"})):
        index = Catalog(tools).index_text(220, used=used)
        assert len(index) <= 220
        lines = index.splitlines()
        assert {line.partition("(")[0].removeprefix("tools.") for line in lines[:-1]} == shown
        for made in tools:
            assert f"tools.{made.name}" in index


@pytest.mark.covers("MS-2")
def test_the_parameters_of_all_tools_are_shown_before_the_types_of_some() -> None:
    tools = [tool(f"tool_{number}", "", "first_key", "second_key") for number in range(8)]
    catalog = Catalog([*tools, tool("none")])
    outline = "tools.tool_{}({{first_key?, second_key?}})"
    outlines = [outline.format(number) for number in range(8)]
    room = len("\n".join([*outlines, "tools.none()"])) + 60  # for the types of two or three
    lines = catalog.index_text(room).splitlines()
    assert len(lines) == 9
    assert lines[0] == "tools.none()"
    assert 4 <= len({*lines} & {*outlines}) <= 7
    used = catalog.index_text(room, used=["openclaw:core:tool_7"])
    assert "tools.tool_7({first_key?: string, second_key?: string})" in used
    assert all(f"tools.tool_{number}({{first_key?" in used for number in range(8))


@pytest.mark.covers("MS-2")
def test_names_that_tools_share_are_shown_with_their_ids() -> None:
    index = Catalog([tool("find"), plugin("find"), tool("alone")]).index_text(4_000)
    assert index == (
        'tools.alone()\ntools.call("openclaw:core:find", {})\ntools.call("plugin:acme:find", {})'
    )
    short = Catalog([tool("find", "", "x" * 60), plugin("find")]).index_text(110)
    assert short.splitlines() == [
        'tools.call("plugin:acme:find", {})',
        'More, see tools.describe(name): tools.call("openclaw:core:find")',
    ]


@pytest.mark.covers("MS-2", "MS-3")
def test_a_signature_shows_limits_formats_results_and_marks() -> None:
    class Order(TypedDict):
        id: str
        lines: list[dict[str, int]]
        total_cents: int | None

    class Page(TypedDict):
        items: list[Order]
        next_cursor: NotRequired[str]

    @function_tool(effect="write")
    def list_orders(
        since: date,
        status: Literal["open", "paid"] | None = None,
        until: datetime | None = None,
        limit: Annotated[int, Field(ge=1, le=25)] = 25,
    ) -> Page:
        """List orders."""
        raise NotImplementedError

    catalog = Catalog([list_orders])
    assert catalog.index_text(4_000, asks=lambda made: True) == (
        'tools.list_orders({since: string(date), status?: "open" | "paid", '
        "until?: string(date-time), limit?: number(<=25)}): "
        "{items: {id, lines: Record<string, number>[], total_cents}[], next_cursor?} "
        "[write] [approval]"
    )
    described: Any = catalog.describe("list_orders")
    assert "items" in described["outputSchema"]["properties"]


@pytest.mark.covers("SF-6")
@pytest.mark.parametrize("max_chars", [0, -1, 1, 20])
def test_an_index_without_room_is_empty(max_chars: int) -> None:
    assert Catalog(TOOLS).index_text(max_chars) == ""


@pytest.mark.covers("SF-6")
@quickly
@given(st.integers(0, 600))
def test_the_index_never_exceeds_its_room_and_counts_right(max_chars: int) -> None:
    many = [tool(f"tool_{'x' * (number * 7 % 40)}_{number}", "", "a") for number in range(30)]
    index = Catalog(many).index_text(max_chars)
    assert len(index) <= max_chars
    *lines, last = index.splitlines() or [""]
    if last.startswith("... and"):
        assert len(lines[0].split(", ")) + int(last.split()[2]) == len(many)
    elif index:
        assert all(re.search(rf"tools\.{made.name}\b", index) for made in many)
        assert lines == sorted(lines)


def test_no_name_can_break_out_of_its_line() -> None:
    names = ['x"); evil(', "a\nb", "\u2028", "\ud800", "*/", "\u202e"]
    index = Catalog([plugin(f"9{name}") for name in names]).index_text(4_000)
    assert len(index.splitlines()) == len(names)
    assert index.isascii()
    assert r'tools.call("plugin:acme:9x\"); evil(", {})' in index


# Any names at all


any_text = st.text(st.characters(), max_size=12)
any_tools = st.lists(
    st.builds(tool, any_text, any_text, any_text, source=st.sampled_from(SOURCES), owner=any_text),
    unique_by=lambda made: made.id,
    max_size=8,
)


@quickly
@given(any_tools, any_text, st.randoms())
def test_no_name_breaks_a_catalog(tools: list[Tool], text: str, chance: random.Random) -> None:
    catalog = Catalog(tools)
    shuffled = Catalog(chance.sample(tools, len(tools)))
    assert catalog.all_tools_json == shuffled.all_tools_json
    assert catalog.convenience() == shuffled.convenience()
    assert catalog.index_text(400) == shuffled.index_text(400)
    for query in (text, *(made.name for made in tools)):
        assert catalog.search(query, 5) == shuffled.search(query, 5)
    for name, id_ in catalog.convenience().items():
        assert catalog.resolve(id_).source != "mcp"
        assert safe_name(catalog.resolve(id_).name) == name


@quickly
@given(any_tools)
def test_every_tool_is_reached_by_its_id(tools: list[Tool]) -> None:
    catalog = Catalog(tools)
    for made in catalog.entries:
        assert catalog.resolve(made.id, include_mcp=True) is made
        assert catalog.describe(made.id, include_mcp=True)["id"] == made.id
    assert len(catalog) == sum(not is_control(made) for made in tools)


def test_hits_that_are_likely_to_be_wrong_are_marked_as_weak() -> None:
    tools = [tool(f"tool_{number}", f"Does thing {number}") for number in range(60)]
    catalog = Catalog([*tools, tool("paint_fence", "Colour a fence"), tool("horse", "Ride")])
    (found,) = catalog.search("what horoscope has a mare", 8) or [None]
    assert found is not None
    assert found["id"] == "openclaw:core:horse"
    assert found["weak"] is True
    assert "weak" not in catalog.search("paint a fence", 8)[0]
    assert "weak" not in catalog.search("horse", 8)[0]
    assert "weak" not in all_tools(catalog)[0]
    assert catalog.search("teach me to juggle", 8) == []
    assert catalog.unmatched("teach me to juggle") == ["teach", "juggle"]
