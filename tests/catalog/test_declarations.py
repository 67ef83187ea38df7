"""Declarations: names, the page's shape, and the real compiler's word on all of it."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.compiler import Compiler, find_compiler, without_shared_types
from tests.support.fuzzing import examples
from tests.support.waiting import undisturbed_time

from clawmode.catalog.declarations import (
    MAX_FILE_BYTES,
    MAX_KNOWN,
    ROOT_MEMBERS,
    SHARED_TYPES,
    identifiers,
    render_index,
    render_server,
    render_tool,
    size_of,
)
from clawmode.tools.tool import Tool
from clawmode.types import JsonValue

quickly = examples(100, derandomize=True)

TOOL_LISTS: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("mcp_tool_lists.json").read_text("utf-8")
)


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return find_compiler(tmp_path)


def tool(
    parameters: Mapping[str, JsonValue] | None = None,
    description: str = "",
    output: Mapping[str, JsonValue] | None = None,
    name: str = "t",
) -> Tool:
    return Tool(
        name,
        description,
        parameters or {"type": "object"},
        lambda value, context: None,
        output_schema=output,
        source="mcp",
        owner="server",
    )


def listed(server: str) -> dict[str, Tool]:
    """The tools of a server in `mcp_tool_lists.json`, by identifier."""
    rows = TOOL_LISTS[server]
    names = identifiers(row["name"] for row in rows)
    return {
        names[row["name"]]: tool(
            row["inputSchema"], row["description"], row.get("outputSchema"), row["name"]
        )
        for row in rows
    }


def functions(text: str) -> list[str]:
    return [line.split("(")[0][11:] for line in text.split("\n") if line.startswith("  function ")]


# ---- Names ----


@pytest.mark.covers("MC-2")
@pytest.mark.parametrize(
    ("name", "identifier"),
    [
        ("chrome-devtools", "chromeDevtools"),
        ("create_issue", "createIssue"),
        ("createIssue", "createIssue"),
        ("CreateIssue", "createIssue"),
        ("browser.tabs/list all", "browserTabsListAll"),
        ("API-post-search", "apiPostSearch"),
        ("GET_USER", "getUser"),
        ("HTTPServer", "httpServer"),
        ("list_PRs", "listPRs"),
        ("get_v2", "getV2"),
        ("2fa_code", "_2faCode"),
        ("$batch", "$batch"),
        ("météo", "météo"),
        ("me\u0301te\u0301o", "météo"),
        ("获取_天气", "获取天气"),
        ("__proto__", "proto"),
        ("🚀 deploy-now 🚀", "deployNow"),
        # Forbidden
        ("constructor", "constructor2"),
        ("prototype", "prototype2"),
        ("then", "then2"),
        ("to_string", "toString2"),
        ("valueOf", "valueOf2"),
        ("has_own_property", "hasOwnProperty2"),
        ("toJSON", "toJSON2"),
        # The language's words
        ("delete", "delete2"),
        ("new", "new2"),
        ("await", "await2"),
        ("import", "import2"),
        ("eval", "eval2"),
        # The server's own
        ("$api", "$api2"),
        ("$search", "$search2"),
        ("resources", "resources2"),
        ("prompts", "prompts2"),
        # Nothing to go by
        ("", "tool"),
        ("🚀", "tool"),
        ("___", "tool"),
        ("\ud800\x00", "tool"),
    ],
)
def test_a_name_becomes_an_identifier(name: str, identifier: str) -> None:
    assert identifiers([name]) == {name: identifier}


@pytest.mark.covers("MC-2")
def test_repeated_identifiers_are_numbered_from_2() -> None:
    names = ["create_issue", "create-issue", "createIssue", "CREATE ISSUE", "", "🚀"]
    assert identifiers(names) == {
        "createIssue": "createIssue",
        "CREATE ISSUE": "createIssue2",
        "create-issue": "createIssue3",
        "create_issue": "createIssue4",
        "": "tool",
        "🚀": "tool2",
    }


@pytest.mark.covers("MC-2")
def test_a_number_never_takes_the_name_of_another() -> None:
    assert identifiers(["constructor", "constructor2", "a", "A", "a2"]) == {
        "constructor": "constructor3",
        "constructor2": "constructor2",
        "a": "a",
        "A": "a3",
        "a2": "a2",
    }


@pytest.mark.covers("MC-2")
def test_servers_have_names_of_their_own() -> None:
    names = ["index", "$api", "resources", "", "chrome-devtools"]
    assert identifiers(names, reserved=ROOT_MEMBERS, empty="server") == {
        "index": "index2",
        "$api": "$api2",
        "resources": "resources",
        "": "server",
        "chrome-devtools": "chromeDevtools",
    }


@pytest.mark.covers("MC-2")
def test_endless_names_are_cut_and_stay_apart() -> None:
    names = ["x" * 10_000 + str(number) for number in range(3)]
    made = identifiers(names)
    assert [len(made[name]) for name in names] == [64, 65, 65]
    assert len(set(made.values())) == 3


@pytest.mark.covers("MC-2")
@quickly
@given(st.sets(st.text(max_size=12) | st.sampled_from(["a_b", "aB", "a-b", "then", "aB2", "2"])))
def test_the_order_of_names_changes_nothing(names: set[str]) -> None:
    made = identifiers(names)
    shuffled = sorted(names)
    random.Random(len(names)).shuffle(shuffled)
    assert identifiers(shuffled) == made
    assert len(set(made.values())) == len(names)


# ---- The page's shape ----

API = "function $api(toolName?: string, options?: { schema?: boolean }): Promise<McpApiHeader>;"
PAGE = """\
type McpToolResult = {
content?: unknown[];
structuredContent?: unknown;
isError?: boolean;
[key: string]: unknown;
};

declare namespace MCP.github {
/** Return this TypeScript-style API header. */
function $api(toolName?: string, options?: { schema?: boolean }): Promise<McpApiHeader>;

/**
* Create a GitHub issue.
* @param owner Repository owner
* @param repo Repository name
* @param title Issue title
*/
function createIssue(input: {
owner: string;
repo: string;
title: string;
body?: string;
}): Promise<McpToolResult>;
}
"""
CREATE_ISSUE: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "owner": {"type": "string", "description": "Repository owner"},
        "repo": {"type": "string", "description": "Repository name"},
        "title": {"type": "string", "description": "Issue title"},
        "body": {"type": "string"},
    },
    "required": ["owner", "repo", "title"],
}


@pytest.mark.covers("CM-mcp-declaration")
def test_a_declaration_is_the_page_with_the_two_types_that_it_leaves_out() -> None:
    text = render_server("github", {"createIssue": tool(CREATE_ISSUE, "Create a GitHub issue.")})
    lines = [line.strip() for line in text.split("\n")]
    start = lines.index("type McpContent =") - 1  # the comment above it
    del lines[start : lines.index("};", start) + 2]
    assert "\n".join(lines) == PAGE


@pytest.mark.covers("CM-mcp-declaration")
def test_resources_and_prompts_are_declared_where_a_server_has_them() -> None:
    for resources in (False, True):
        for prompts in (False, True):
            text = render_server("docs", {}, resources=resources, prompts=prompts)
            assert ("namespace resources {" in text) == resources
            assert ("namespace prompts {" in text) == prompts
            assert "function $api(" in text


@pytest.mark.covers("MC-8", "CM-mcp-declaration")
def test_a_server_as_real_ones_are_is_declared_in_full() -> None:
    text = without_shared_types(render_server("tracker", listed("tracker")))
    assert (
        text.split("\n")
        == """
declare namespace MCP.tracker {
  /** Return this TypeScript-style API header. */
  function $api(toolName?: string, options?: { schema?: boolean }): Promise<McpApiHeader>;

  type Period = {
    /** (format: date-time) */
    since: string;
    until?: string | null;
  };

  type Issue = { id: number; title: string; duplicate_of?: Issue | null };

  /**
   * Finds issues.
   *
   * Args:
   *     query: Words, or `label:bug`
   * @param period When it was opened
   * @param limit (integer, minimum: 1, maximum: 100, default: 20)
   */
  function searchIssues(input: {
    query: string;
    labels?: ("bug" | "idea")[] | null;
    period?: Period;
    limit?: number;
  }): Promise<McpToolResult & { structuredContent?: { result: Issue[] } }>;

  type CloseIssuePeriod = { days?: number };

  /** Closes one; /* not *\\/ its children. */
  function closeIssue(input: {
    id: number | string;
    snooze?: CloseIssuePeriod | null;
  }): Promise<McpToolResult>;

  /** For good */
  function delete2(input: {
    id: unknown;
  }): Promise<McpToolResult>;
}
""".split("\n")
    )


def test_a_definition_that_tools_share_is_declared_once() -> None:
    tree: dict[str, JsonValue] = {"properties": {"sub": {"$ref": "#/$defs/Tree"}}}
    schema: dict[str, JsonValue] = {
        "properties": {"tree": {"$ref": "#/$defs/Tree"}},
        "$defs": {"Tree": tree},
    }
    text = render_server("s", {"one": tool(schema), "two": tool(schema, output=schema)})
    assert text.count("type Tree =") == 1
    assert text.count("tree?: Tree") == 3


def test_a_tool_without_a_description_goes_by_its_label() -> None:
    labelled = Tool("t", " ", {}, lambda value, context: None, label="Do */ it")
    assert "  /** Do *\\/ it */\n  function t(input?: {}): " in render_server("s", {"t": labelled})


def test_a_long_result_has_a_name_which_equal_results_share() -> None:
    row: dict[str, JsonValue] = {
        "type": "object",
        "properties": {f"column{n}": {"type": "string"} for n in range(8)},
    }
    other: dict[str, JsonValue] = {**row, "required": ["column0"]}
    tools = {
        "one": tool(output=row),
        "two": tool(output=row),
        "three": tool(output=other),
        "oneResult": tool(output={**row, "required": ["column1"]}),
    }
    text = render_server("s", tools)
    assert text.count("type OneResult = {") == text.count("type ThreeResult = {") == 1
    assert text.count("Promise<McpToolResult & { structuredContent?: OneResult }>") == 2
    assert "structuredContent?: ThreeResult }" in text
    assert "structuredContent?: OneResultResult }" in text


@pytest.mark.covers("CM-mcp-declaration")
def test_the_index_says_where_to_read_on(compiler: Compiler) -> None:
    index = render_index({"github": ["createIssue"], "docs": ["a", "b"]})
    assert index.split("\n")[-4:] == [
        "// MCP.github, 1 tool: createIssue",
        "",
        "// MCP.docs, 2 tools: a, b",
        "",
    ]
    assert 'API.read("mcp/<server>/<tool>.d.ts")' in index
    assert len(index) < 1_000
    assert compiler.errors(index_d_ts=index) == []


@pytest.mark.covers("M-5")
def test_one_tool_is_declared_without_what_other_tools_need(compiler: Compiler) -> None:
    tools = listed("tracker")
    text = render_tool("tracker", "searchIssues", tools["searchIssues"])
    assert functions(text) == ["searchIssues"]
    assert "type Period =" in text
    assert "McpApiHeader" not in text
    assert len(text) < len(render_server("tracker", tools)) - 500
    assert compiler.errors(one_d_ts=text) == []


# ---- Bounds ----

BOMB: dict[str, JsonValue] = {
    "$defs": {
        f"D{level}": {
            "properties": {f"p{n}": {"$ref": f"#/$defs/D{level + 1}"} for n in range(10)},
            "description": "words " * 100,
        }
        for level in range(90)
    },
    "properties": {f"p{n}": {"$ref": f"#/$defs/D{n}"} for n in range(10)},
}


@pytest.mark.covers("MC-8")
@pytest.mark.parametrize("count", [1_000, 5_000])
def test_a_hostile_server_gets_a_file_of_bounded_size_in_bounded_time(count: int) -> None:
    tools = {
        f"tool{n}": tool(BOMB | {"title": str(n)}, "x" * 100_000, output=BOMB) for n in range(count)
    }
    start = undisturbed_time()
    text = render_server("s", tools)
    one = render_tool("s", "tool7", tools["tool7"])
    assert undisturbed_time() - start < 10
    assert max(size_of(text), size_of(one)) <= MAX_FILE_BYTES
    assert text.count("tool") > 500
    assert text.rstrip().endswith("more") == (count == 5_000)


@pytest.mark.covers("MC-8", "M-5")
def test_when_there_is_no_room_tools_have_one_line_each_before_they_are_only_listed() -> None:
    tools = {f"tool{n}": tool(CREATE_ISSUE, "Makes one.\nAnd more.") for n in range(40)}
    line = "  function tool39(input?: any): Promise<McpToolResult>; // "
    typed = line + "{owner: string, repo: string, title: string, body?: string}"
    text = render_server("s", tools, max_bytes=8_000)
    assert functions(text) == ["$api", *tools]
    assert f"{typed} Makes one.\n" in text
    assert 'API.read("mcp/s/<tool>.d.ts")' in text
    assert size_of(text) <= 8_000
    text = render_server("s", tools, max_bytes=6_100)
    assert f"{typed}\n" in text
    assert size_of(text) <= 6_100
    text = render_server("s", tools, max_bytes=1_000)
    assert "MCP.s.$search(query)" in text
    assert "// MCP.s, 40 tools: tool0, tool1, " in text
    assert size_of(text) <= 1_000


@pytest.mark.covers("M-5")
@pytest.mark.parametrize("most", [512, 1_000, 5_000, 32_768])
def test_no_file_is_over_its_limit_whatever_it_contains(most: int, compiler: Compiler) -> None:
    tools = {f"tool{n}": tool(BOMB, '"\\' * 500 + "\u20ac" * 500, output=BOMB) for n in range(300)}
    files = {
        "server": render_server("s", tools, resources=True, prompts=True, max_bytes=most),
        "index": render_index({f"s{n}": tools for n in range(30)}, max_bytes=most),
    }
    if most >= 1_000:
        files["one"] = render_tool("s", "tool0", tools["tool0"], most)
    assert {name: size_of(text) for name, text in files.items() if size_of(text) > most} == {}
    if most in (512, 5_000):
        assert compiler.errors(server_d_ts=files["server"]) == []


def test_an_index_of_many_tools_is_cut_for_each_server() -> None:
    index = render_index({f"s{n}": [f"someTool{i}" for i in range(3_000)] for n in range(20)})
    assert size_of(index) <= MAX_FILE_BYTES
    assert index.count("more\n") == 20


# ---- The compiler's word ----


@pytest.mark.covers("MC-8", "CM-mcp-declaration")
@pytest.mark.parametrize("server", TOOL_LISTS)
def test_each_file_is_typescript_by_itself(server: str, compiler: Compiler) -> None:
    text = render_server(server, listed(server), resources=True, prompts=True)
    brief = render_server(server, listed(server), max_bytes=size_of(text) - 1_500)
    assert len(functions(text)) == len(TOOL_LISTS[server]) + 1
    assert compiler.errors(server_d_ts=text) == []
    assert compiler.errors(brief_d_ts=brief) == []


@pytest.mark.covers("MC-8")
def test_all_files_of_a_run_are_typescript_together(compiler: Compiler) -> None:
    files = {f"{name}_d_ts": render_server(name, listed(name)) for name in TOOL_LISTS}
    parts = {path: without_shared_types(text) for path, text in files.items()}
    index = render_index({name: listed(name) for name in TOOL_LISTS})
    parts["first_d_ts"] = SHARED_TYPES
    assert compiler.errors(index_d_ts=index, **parts) == []


@pytest.mark.covers("MC-2")
def test_every_identifier_can_be_declared_and_called(compiler: Compiler) -> None:
    words = (
        "any unknown never string number boolean object symbol bigint undefined null void async of "
        "get set type namespace declare abstract module global eval arguments as is keyof infer "
        "require using await yield let static delete class function Promise Record Object NaN MCP "
        "globalThis constructor prototype __proto__ then toString $api resources index $ _ 1 🚀"
    ).split()
    letters = [chr(code) for code in range(0x80, 0x3000) if chr(code).isalpha()]
    tools = identifiers([*words, *(f"{letter}_{letter}" for letter in letters)])
    servers = identifiers(words, reserved=ROOT_MEMBERS, empty="server")
    declared = dict.fromkeys(tools.values(), tool())
    files = [render_server(server, {"x": tool()}) for server in servers.values()]
    source = SHARED_TYPES + "".join(
        without_shared_types(file)
        for file in [*files, render_server("all", declared, max_bytes=10**9)]
    )
    calls = [f"MCP.all.{name}();" for name in declared]
    calls += [f"MCP.{server}.x();" for server in servers.values()]
    assert compiler.errors(all_d_ts=source, calls_ts="\n".join(calls)) == []


NASTY = [
    "*/",
    "*/ function evil(): void; /*",
    "\u2028*/\u2029",
    "`${x}`",
    "\\",
    "\\u002a/",
    '"',
    "\x00\x1b\x7f",
    "\ud800",
    "@param input {string} */",
    "// \r\n */",
    "}\n}\ndeclare namespace Evil {",
    "\u202e\U000e0041",
]


@pytest.mark.covers("MC-8")
def test_no_words_of_a_server_leave_their_place(compiler: Compiler) -> None:
    tools: dict[str, Tool] = {}
    for number, text in enumerate(NASTY):
        schema: dict[str, JsonValue] = {
            "description": text,
            "properties": {
                text: {"description": text, "default": text, "format": text},
                "inner": {"properties": {text: {"description": text, "pattern": text}}},
                "enum": {"enum": [text, "b"]},
                "const": {"const": text},
                "named": {"$ref": "#/$defs/" + text.replace("~", "~0").replace("/", "~1")},
            },
            "required": [text],
            "$defs": {text: {"description": text, "properties": {text: {}}}},
        }
        tools[f"tool{number}"] = tool(schema, text, output=schema)
    text = render_server("s", tools)
    assert compiler.errors(s_d_ts=text) == []
    assert functions(text) == ["$api", *tools]
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "\nfunction evil" not in text
    assert "\ndeclare namespace Evil" not in text


RIGHT = """
async function main() {
  const issue: McpToolResult = await MCP.github.createIssue({ owner: "o", repo: "r", title: "t" });
  const header: McpApiHeader = await MCP.github.$api("createIssue", { schema: true });
  await MCP.files.readText({ path: "a", encoding: "utf8" });
  await MCP.files.editFile({ path: "a", edits: [{ oldText: "a", newText: "b" }] });
  await MCP.files.listAllowed();
  const period = { since: "2026-01-01" };
  const all = await MCP.tracker.searchIssues({ query: "q", labels: ["bug"], period });
  const title: string | undefined = all.structuredContent?.result[0].duplicate_of?.title;
  await MCP.tracker.closeIssue({ id: 1, snooze: null });
  await MCP.cloud.getInstances({ zones: null, position: [1, 2], "page-token": "x" });
  await MCP.notes.apiQueryData({
    filter: { and: [{ property: "a", equals: 1 }, { and: [] }] },
    parent: { type: "page", page_id: "p" },
    children: [{ type: "p", children: [{ type: "q", color: "red" }] }],
  });
  await MCP.legacy.plotPoints({ first: { x: 1 }, last: { x: 2 }, grid: [[1], [2]], style: "any" });
  const text = (await MCP.files.resources.read({ uri: "memo://one" })).contents[0].text;
  await MCP.files.prompts.get({ name: "brief", arguments: { topic: "release" } });
}
"""
WRONG = {
    "MCP.github.createIssue({ owner: 'o', repo: 'r' });": "TS2741",  # without a title
    "MCP.github.createIssue({ owner: 'o', repo: 'r', title: 1 });": "TS2322",
    "MCP.github.createIssue({ owner: 'o', repo: 'r', title: 't', boddy: 'b' });": "TS2561",
    "MCP.github.createIssue();": "TS2554",
    "MCP.github.createIsue({ owner: 'o', repo: 'r', title: 't' });": "TS2551",
    "MCP.gitlab.createIssue({});": "TS2339",
    "MCP.files.readText({ path: 'a', encoding: 'utf16' });": "TS2322",
    "MCP.files.editFile({ path: 'a', edits: [{ oldText: 'a' }] });": "TS2741",
    "MCP.cloud.getInstances({ position: [1, 2] });": "TS2345",  # neither zones nor tags
    "MCP.cloud.getInstances({ tags: { a: 1 } });": "TS2322",
    "MCP.notes.apiQueryData({ filter: { and: [{ or: [] }] } });": "TS2353",
    "MCP.tracker.resources.list();": "TS2339",
}


@pytest.mark.covers("MC-8", "CM-mcp-declaration")
def test_right_calls_are_accepted_and_wrong_ones_refused(compiler: Compiler) -> None:
    github = render_server("github", {"createIssue": tool(CREATE_ISSUE)})
    files = [
        render_server(name, listed(name), resources=name == "files", prompts=name == "files")
        for name in TOOL_LISTS
    ]
    types = SHARED_TYPES + "".join(map(without_shared_types, [github, *files]))
    assert compiler.errors(types_d_ts=types, program_ts=RIGHT) == []
    found = compiler.errors(types_d_ts=types, program_ts="\n".join(WRONG))
    assert found == [f"{code}: {line}" for line, code in WRONG.items()]


@pytest.mark.covers("M-20")
def test_a_name_keeps_its_identifier_when_the_list_changes() -> None:
    known: dict[str, str] = {}
    assert identifiers(["get.user"], known=known) == {"get.user": "getUser"}
    assert identifiers(["get.user", "get_user", "getUser"], known=known) == {
        "getUser": "getUser2",
        "get.user": "getUser",
        "get_user": "getUser3",
    }
    # The identifier of a tool that is gone is not given to another tool.
    assert identifiers(["get_user"], known=known) == {"get_user": "getUser3"}
    assert identifiers(["get-user"], known=known) == {"get-user": "getUser4"}
    assert identifiers(["get.user"], known=known) == {"get.user": "getUser"}


@pytest.mark.hostile
def test_a_list_that_changes_without_end_is_not_remembered_without_end() -> None:
    known: dict[str, str] = {}
    for number in range(30):
        identifiers([f"tool_{number}_{each}" for each in range(1_000)], known=known)
    assert len(known) <= MAX_KNOWN + 1_000
