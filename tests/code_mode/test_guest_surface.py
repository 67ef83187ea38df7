"""What a program finds, and what finds a program's calls: globals, catalog, names, namespaces."""

import importlib.metadata
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from clawmode import (
    Approvals,
    CodeMode,
    CodeModeConfig,
    CodeModeResult,
    Hooks,
    Policy,
    Pool,
    RunContext,
    Tool,
    ToolCallDecision,
    ToolContext,
    ToolResult,
    tool,
)
from clawmode.catalog.namespaces import (
    CreateScope,
    NamespaceContext,
    NamespaceError,
    NamespaceRegistration,
    NamespaceRegistry,
    namespace_tool,
)
from clawmode.sandbox import artifacts
from clawmode.tools.executor import CallEvent
from clawmode.tools.hooks import AfterToolCall, BeforeToolCall
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def made(name: str, answer: Any = None, **options: Any) -> Tool:
    return Tool(name, f"The tool {name}.", {}, lambda params, context: answer, **options)


async def run(pool: Pool, source: str, **options: Any) -> CodeModeResult:
    """The last result of a program, waited for to its end."""
    async with CodeMode(pool=pool, **options) as code_mode:
        result = await code_mode.exec(source)
        with anyio.fail_after(10):
            while result.status == "waiting":
                result = await code_mode.wait(result.run_id)
    return result


async def value(pool: Pool, source: str, **options: Any) -> Any:
    result = await run(pool, source, **options)
    assert result.status == "completed", result
    return result.value


CALL_EACH = """const seen = {};
for (const id of IDS) try { seen[id] = await tools.call(id) } catch (e) { seen[id] = e.code }
return seen"""


async def call_each(pool: Pool, ids: list[str], **options: Any) -> Any:
    """What becomes of calling each of these, by id or by name."""
    return await value(pool, CALL_EACH.replace("IDS", json.dumps(ids)), **options)


# ---- Globals ----


@pytest.mark.covers("CM-guest-globals")
@pytest.mark.parametrize("tools", [[], [add]])
async def test_the_globals_of_the_page_are_there_with_and_without_tools(
    pool: Pool, tools: list[Tool]
) -> None:
    source = """return [Array.isArray(ALL_TOOLS), typeof tools, typeof MCP, typeof namespaces,
  typeof text, typeof json, typeof yield_control,
  ["search", "describe", "call"].map((name) => typeof tools[name])]"""
    objects, functions = ["object"] * 3, ["function"] * 3
    assert await value(pool, source, tools=tools) == [True, *objects, *functions, functions]


FORBIDDEN = """process require module exports global window self Deno Bun Buffer navigator location
fetch XMLHttpRequest WebSocket EventSource Worker SharedWorker importScripts caches indexedDB
localStorage WebAssembly std os bjson scriptArgs print read readFile writeFile spawn exec
system getenv __dirname __filename InternalError""".split()


@pytest.mark.covers("CM-security-ambient", "AD-3")
async def test_load_is_not_the_one_of_the_engine_s_shell(pool: Pool) -> None:
    source = 'return ["/etc/passwd", "file:///etc/passwd", "std"].map((name) => load(name) ?? null)'
    assert await value(pool, source, tools=[add]) == [None, None, None]


@pytest.mark.covers("CM-security-ambient")
async def test_no_global_leads_to_the_host(pool: Pool) -> None:
    source = f"return {json.dumps(FORBIDDEN)}.filter((name) => name in globalThis)"
    assert await value(pool, source, tools=[add]) == []
    source = (
        f"return {json.dumps(FORBIDDEN)}.filter((name) => eval(`typeof ${{name}}`) !== 'undefined')"
    )
    assert await value(pool, source, tools=[add]) == []


@pytest.mark.covers("CM-V16", "CM-security-ambient")
@pytest.mark.parametrize(
    ("source", "code"),
    [
        ('import { readFileSync } from "fs"', "module_access_denied"),
        ('return (await import("node:fs")).readFileSync("/etc/passwd")', "module_access_denied"),
        ('return require("fs").readFileSync("/etc/passwd")', "module_access_denied"),
        ('const load = require; return load("fs")', "internal_error"),
        ('return Function("return require")()("fs")', None),
        ("return await eval(\"import('fs')\")", None),
        ("return process.env.HOME", "internal_error"),
        ('return process.binding("fs")', "internal_error"),
        ('return await fetch("http://127.0.0.1/")', "internal_error"),
        ('return new WebSocket("ws://127.0.0.1")', "internal_error"),
        ('return std.open("/etc/passwd", "r")', "internal_error"),
        ('return os.exec(["id"])', "internal_error"),
        ('return std.getenv("HOME")', "internal_error"),
        ('return new Worker("/x.js")', "internal_error"),
    ],
)
async def test_modules_files_network_and_environment_are_out_of_reach(
    pool: Pool, source: str, code: str | None
) -> None:
    result = await run(pool, source, tools=[add])
    assert result.status == "failed", result
    assert result.code == code or code is None
    assert result.code in ("module_access_denied", "internal_error")


@pytest.mark.covers("CM-security-json")
async def test_what_a_tool_answers_is_a_copy_in_the_guests_own_terms(pool: Pool) -> None:
    kept = {"list": [1, {"deep": True}], "text": "t"}
    source = """const first = await tools.kept(), before = JSON.stringify(first);
first.list[1].deep = "changed"; first.list.push(2); first.text = "changed";
const kinds = [first, first.list, first.list[1]].map((v) => [Object, Array].find(
  (type) => Object.getPrototypeOf(v) === type.prototype && v.constructor === type)?.name);
return [before, kinds, await tools.kept()]"""
    answer = await value(pool, source, tools=[made("kept", kept)])
    assert [json.loads(answer[0]), answer[2]] == [kept, kept]
    assert answer[1] == ["Object", "Array", "Object"]
    assert kept == {"list": [1, {"deep": True}], "text": "t"}


@pytest.mark.covers("CM-security-json")
async def test_an_input_is_a_copy_too(pool: Pool) -> None:
    seen: list[JsonObject] = []

    def keep(params: JsonObject, context: ToolContext) -> None:
        seen.append(params)

    source = """const input = { a: [1] }, call = tools.keep(input); input.a.push(2); input.b = 3;
await call; return input"""
    assert await value(pool, source, tools=[Tool("keep", "Keep.", {}, keep)]) == {
        "a": [1, 2],
        "b": 3,
    }
    assert seen == [{"a": [1]}]


@pytest.mark.covers("CM-security-json")
async def test_an_error_of_the_host_is_plain_data_without_its_stack(pool: Pool) -> None:
    @tool
    def broken() -> None:
        """Fail."""
        raise RuntimeError("the printer is on fire")

    source = """const e = await tools.broken().catch((error) => error);
const own = Object.fromEntries(Object.getOwnPropertyNames(e).map((key) => [key, e[key]]));
return [e instanceof Error, Object.getPrototypeOf(e) === Error.prototype, own, String(e.stack)]"""
    is_error, plain, own, stack = await value(pool, source, tools=[broken])
    assert (is_error, plain) == (True, True)
    assert own == {
        "message": "the printer is on fire",
        "name": "RuntimeError",
        "code": "tool_failed",
        "toolId": "openclaw:core:broken",
        "stack": own["stack"],
    }
    assert not [word for word in ("Traceback", ".py", "clawmode") if word in stack]


@pytest.mark.covers("CM-security-json")
async def test_the_functions_of_the_surface_lead_to_no_other_realm(pool: Pool) -> None:
    registry = registered(lambda context: {"list": namespace_tool("list_issues")})
    source = """const all = [text, json, yield_control, tools.search, tools.call, tools.list_issues,
  setTimeout, console.log, Issues.list];
return all.map((f) => f.constructor === Function && f.constructor("return this")() === globalThis
  && Object.getPrototypeOf(f) === Function.prototype)"""
    assert await value(pool, source, tools=[ISSUES], namespaces=registry) == [True] * 9


# ---- The catalog ----

SOURCES: list[Tool] = [
    made("message"),
    made("browser_request", source="plugin", owner="browser"),
    made("lookup", source="plugin", owner="acme-external"),
    made("create_issue", source="mcp", owner="github"),
    made("select_file", source="client"),
    made("open_tab", source="client", owner="app"),
]


@pytest.mark.covers("CM-V5", "CM-catalog-sources")
async def test_tools_of_every_source_are_in_the_catalog_and_all_but_mcp_in_all_tools(
    pool: Pool,
) -> None:
    async with CodeMode(tools=SOURCES, pool=pool) as code_mode:
        result = await code_mode.exec("return ALL_TOOLS.map((entry) => [entry.id, entry.source])")
        assert result.value == [
            ["client:app:open_tab", "client"],
            ["client:client:select_file", "client"],
            ["openclaw:core:message", "openclaw"],
            ["plugin:acme-external:lookup", "plugin"],
            ["plugin:browser:browser_request", "plugin"],
        ]
        assert result.telemetry["catalogSize"] == 6
        assert result.telemetry["sources"] == {"client": 2, "mcp": 1, "openclaw": 1, "plugin": 2}
        assert "mcp:github:create_issue" in [entry.id for entry in code_mode.catalog.entries]


@pytest.mark.covers("CM-V6", "CM-catalog-sources")
async def test_policy_comes_before_the_catalog(pool: Pool) -> None:
    policy: Any = {"deny": ["message", "lookup", "create_issue", "client:app:*"]}
    async with CodeMode(tools=SOURCES, policy=policy, pool=pool) as code_mode:
        result = await code_mode.exec("return ALL_TOOLS.map((entry) => entry.name)")
    assert result.value == ["select_file", "browser_request"]
    assert result.telemetry["sources"] == {"client": 1, "plugin": 1}


@pytest.mark.covers("CM-guest-entries")
async def test_an_entry_is_compact_and_has_no_schema(pool: Pool) -> None:
    schema: Any = {"type": "object", "properties": {"a": {"type": "string"}}}
    plain = Tool("plain", "Plain.", schema, print)
    full = Tool(
        "full",
        "Full.",
        schema,
        print,
        label="Full!",
        output_schema=schema,
        source="plugin",
        owner="p",
    )
    assert await value(pool, "return ALL_TOOLS", tools=[full, plain]) == [
        {
            "id": "openclaw:core:plain",
            "name": "plain",
            "description": "Plain.",
            "source": "openclaw",
        },
        {
            "id": "plugin:p:full",
            "name": "full",
            "label": "Full!",
            "description": "Full.",
            "source": "plugin",
            "sourceName": "p",
        },
    ]


@pytest.mark.covers("CM-guest-search")
async def test_a_search_finds_entries_as_compact_as_all_tools(pool: Pool) -> None:
    schema: Any = {"type": "object", "properties": {"path": {"type": "string"}}}
    read = Tool("read_file", "Read a local file.", schema, print, label="Read")
    source = """const found = await tools.search("read a local file");
const listed = ALL_TOOLS.filter((entry) => entry.name === "read_file");
const entries = found.map(({ call, ...entry }) => entry);
return [found, JSON.stringify(entries) === JSON.stringify(listed),
  (await tools.search("read_file")).length, await tools.search(""), await tools.search("zzz")]"""
    found, same, exact, empty, none = await value(pool, source, tools=[read, add])
    assert [entry["name"] for entry in found] == ["read_file"]
    assert "parameters" not in found[0]
    assert found[0]["call"] == "tools.read_file({path?: string})", "ours: the exact call"
    assert (same, exact, empty, none) == (True, 1, [], [])


@pytest.mark.covers("CA-9")
async def test_a_search_puts_exact_hits_first_leaves_out_poor_ones_and_notes_its_misses(
    pool: Pool,
) -> None:
    tools = [
        Tool("refund", "Give money back.", {}, print),
        Tool("refund_report", "Refund, refund, refund: a refund report of refunds.", {}, print),
        Tool("read_file", "Read a file from disk.", {}, print),
        Tool("send_mail", "Send mail to people.", {}, print),
    ]
    source = """const names = async (query, options) =>
  (await tools.search(query, options)).map((entry) => entry.name);
return [await names("refund"), await names("OpenClaw:Core:Refund"), await names("reading files"),
  await names("read a file"), await names("refund", { limit: 1 }), await names(""),
  await names("zorkmid quux"), await names("the of a")]"""
    async with CodeMode(tools=tools, pool=pool) as code_mode:
        first, second = await code_mode.exec(source), await code_mode.exec(source)
    assert first.value == [
        ["refund", "refund_report"],
        ["refund", "refund_report"],
        ["read_file"],
        ["read_file"],
        ["refund"],
        [],
        [],
        [],
    ]
    assert second.value == first.value
    missed: Any = first.telemetry["unmatchedSearchWords"]
    assert {"zorkmid", "quux"} <= set(missed)
    assert "refund" not in missed


@pytest.mark.covers("CA-3")
@pytest.mark.parametrize(
    ("answer", "arrives"),
    [
        (ToolResult(text="for people", details={"rows": 2}), {"rows": 2}),
        (ToolResult(text="only text"), "only text"),
        (ToolResult(text="text", details=0), 0),
        (ToolResult(text="text", details=[]), []),
        (ToolResult(), None),
        ("plain", "plain"),
        ({"a": [1, None]}, {"a": [1, None]}),
    ],
)
async def test_a_call_resolves_to_details_and_else_to_text(
    pool: Pool, answer: Any, arrives: Any
) -> None:
    assert (
        await value(pool, "return await tools.answer()", tools=[made("answer", answer)]) == arrives
    )


@pytest.mark.covers("CA-3")
async def test_a_description_adds_the_schemas_that_were_declared(pool: Pool) -> None:
    schema: Any = {"type": "object", "properties": {"a": {"type": "string", "default": "\ud800"}}}
    output: Any = {"type": "array", "items": {"type": "integer"}}
    tools = [
        Tool("one", "One.", schema, print),
        Tool("two", "Two.", {}, print, output_schema=output),
    ]
    source = 'return [await tools.describe("one"), await tools.describe("openclaw:core:two")]'
    one, two = await value(pool, source, tools=tools)
    assert one.keys() == {"id", "name", "description", "source", "parameters"}
    assert one["parameters"]["properties"]["a"]["type"] == "string"
    assert (two["parameters"], two["outputSchema"]) == ({}, output)


@pytest.mark.covers("CM-guest-call-input")
@pytest.mark.parametrize(
    "call",
    [
        'tools.call("openclaw:core:echo")',
        'tools.call("echo", undefined)',
        'tools.call("echo", {})',
        "tools.echo()",
        "tools.echo(undefined)",
        "tools.echo({ left_out: undefined })",
    ],
)
async def test_a_call_without_input_gives_the_tool_an_empty_object(pool: Pool, call: str) -> None:
    echo = Tool("echo", "Echo.", {}, lambda params, context: ToolResult(details=params))
    assert await value(pool, f"return await {call}", tools=[echo]) == {}


# ---- Names ----

CONTROLS = ["tool_search_code", "tool_search", "tool_describe", "tool_call"]


@pytest.mark.covers("CA-6", "CM-V11", "CM-V14")
async def test_the_control_tools_are_in_no_catalog_and_cannot_be_called(pool: Pool) -> None:
    tools = [add, *(made(name, "reached") for name in CONTROLS)]
    async with CodeMode(tools=tools, pool=pool) as code_mode:
        assert [item["name"] for item in code_mode.definitions("mcp")] == ["exec", "wait"]
        result = await code_mode.exec("return [ALL_TOOLS.map((t) => t.name), Object.keys(tools)]")
        assert result.value == [["add"], ["search", "describe", "call", "add"]]
    names = [*CONTROLS, "exec", "wait"]
    ids = names + [
        f"{source}:core:{name}" for name in names for source in ("openclaw", "code_mode")
    ]
    seen = await call_each(pool, ids, tools=tools)
    assert seen == dict.fromkeys(ids, "unknown_tool")


@pytest.mark.covers("SF-3", "CA-6", "CM-V13", "CM-names-shell-exec")
async def test_tools_named_like_the_controls_are_tools_like_any_other(pool: Pool) -> None:
    tools = [add, made("exec", "the shell"), made("wait", "the waiter")]
    async with CodeMode(tools=tools, pool=pool) as code_mode:
        visible = code_mode.definitions("anthropic")
        assert [item["name"] for item in visible] == ["exec", "wait"]
        # The one that the model sees runs programs; the one that programs see is the shell.
        source = """return [await tools.exec(), await tools.wait(),
  await tools.call("openclaw:core:exec")]"""
        result = await code_mode.call("exec", {"code": source})
    assert result["value"] == ["the shell", "the waiter", "the shell"]


@pytest.mark.covers("CM-V13", "CM-names-shell-exec")
async def test_a_shell_that_policy_denies_is_not_reached_by_any_name(pool: Pool) -> None:
    source = "return [typeof tools.exec, ALL_TOOLS.map((t) => t.name)]"
    options: Any = {"tools": [add, made("exec", "the shell")], "policy": {"deny": ["exec"]}}
    assert await value(pool, source, **options) == ["undefined", ["add"]]
    ids = ["exec", "bash", "openclaw:core:exec"]
    assert await call_each(pool, ids, **options) == dict.fromkeys(ids, "unknown_tool")


@pytest.mark.covers("CM-names-shell-exec")
async def test_two_tools_of_one_name_leave_no_shortcut_to_the_shell(pool: Pool) -> None:
    tools = [made("exec", "the shell"), made("exec", "another", source="plugin", owner="p")]
    assert await value(pool, "return typeof tools.exec", tools=tools) == "undefined"
    assert await call_each(pool, ["exec", "openclaw:core:exec", "plugin:p:exec"], tools=tools) == {
        "exec": "ambiguous_tool",
        "openclaw:core:exec": "the shell",
        "plugin:p:exec": "another",
    }


# ---- Yielding, and what outlives it ----


@pytest.mark.covers("CM-guest-yield")
@pytest.mark.parametrize("reason", ["", '"later"', "undefined", "{ a: 1 }", '"x".repeat(1e5)'])
async def test_a_yield_resolves_when_the_model_waits(pool: Pool, reason: str) -> None:
    async with CodeMode(pool=pool) as code_mode:
        result = await code_mode.exec(f"return [typeof (await yield_control({reason})), 2]")
        assert (result.status, result.reason) == ("waiting", "yield")
        result = await code_mode.wait(result.run_id)
    assert (result.status, result.value) == ("completed", ["object", 2])


@pytest.mark.covers("CM-wait-callbacks")
async def test_functions_that_were_kept_work_after_a_restore(pool: Pool) -> None:
    registry = registered(lambda context: {"list": namespace_tool("list_issues")})
    source = """const { search, describe, call, add } = tools, { list } = Issues;
const say = text, show = json, again = yield_control, later = setTimeout, log = console.log;
await again();
say("said"); show({ shown: 1 }); log("logged");
await again();
await new Promise((done) => later(done, 1));
return [(await search("add two numbers"))[0].name, (await describe("add")).id,
  await call("add", { a: 1, b: 2 }), await add({ a: 3, b: 4 }), await list()]"""
    async with CodeMode(tools=[add, ISSUES], namespaces=registry, pool=pool) as code_mode:
        first = await code_mode.exec(source)
        second = await code_mode.wait(first.run_id)
        assert second.output == [
            {"type": "text", "text": "said"},
            {"type": "json", "value": {"shown": 1}},
            {"type": "text", "text": "logged"},
        ]
        third = await code_mode.wait(second.run_id)
    assert third.value == ["add", "openclaw:core:add", 3, 7, ["an issue"]]
    assert third.telemetry["snapshots"] == {
        "created": 2, "restored": 2, "expired": 0, "deleted": 2
    }  # fmt: skip


# ---- Namespaces ----

ISSUES = made("list_issues", ["an issue"], source="plugin", owner="github")


def registered(create_scope: CreateScope, **fields: Any) -> NamespaceRegistry:
    """A registry with one namespace, `Issues`, of the plugin `github`."""
    registry = NamespaceRegistry()
    given: Any = {
        "id": "issues",
        "global_name": "Issues",
        "description": "Issues.",
        "required_tool_names": ("list_issues",),
        "create_scope": create_scope,
    }
    registry.register_for_plugin("github", NamespaceRegistration(**given | fields))
    return registry


@pytest.mark.covers("CM-ns-surface")
async def test_a_namespace_adds_words_and_no_tool_to_what_the_model_sees(pool: Pool) -> None:
    registry = registered(lambda context: {}, prompt="Use Issues.list().")
    with_it = CodeMode(tools=[ISSUES], namespaces=registry, pool=pool).definitions("anthropic")
    without = CodeMode(tools=[ISSUES], namespaces=NamespaceRegistry(), pool=pool)
    assert [item["name"] for item in with_it] == ["exec", "wait"]
    assert "Use Issues.list()." in str(with_it[0]["description"])
    for key in ("name", "input_schema"):
        assert with_it[0][key] == without.definitions("anthropic")[0][key]
    assert with_it[1] == without.definitions("anthropic")[1]


@pytest.mark.covers("CM-N9")
async def test_a_parked_namespace_call_continues_through_wait(pool: Pool) -> None:
    release = anyio.Event()

    async def slow(params: JsonObject, context: ToolContext) -> JsonObject:
        await release.wait()
        return params

    backing = Tool("list_issues", "List.", {}, slow, source="plugin", owner="github")
    registry = registered(
        lambda context: {"list": namespace_tool("list_issues", lambda args: {"state": args[0]})}
    )
    config = CodeModeConfig(timeout_ms=200)
    async with CodeMode(
        tools=[backing], namespaces=registry, pool=pool, config=config
    ) as code_mode:
        result = await code_mode.exec('const kept = 5; return [kept, await Issues.list("open")]')
        assert (result.status, result.reason) == ("waiting", "pending_tools")
        (pending,) = result.pending_tool_calls
        assert pending == {
            "id": "1",
            "method": "namespace",
            "toolId": "plugin:github:list_issues",
            "state": "running",
            "input": {"state": "open"},
        }
        release.set()
        assert (await code_mode.wait(result.run_id)).value == [5, {"state": "open"}]


@pytest.mark.covers("NS-1")
@pytest.mark.parametrize(
    "fields",
    [
        {"global_name": "not an identifier"},
        {"global_name": "tools"},
        {"global_name": "__openclaw_x"},
        {"required_tool_names": ()},
        {"id": ""},
        {"create_scope": None},
    ],
)
def test_a_bad_registration_raises_where_it_is_made(fields: Any) -> None:
    with pytest.raises(NamespaceError):
        registered(**{"create_scope": lambda context: {}} | fields)


def failing(context: NamespaceContext) -> dict[str, Any]:
    raise RuntimeError("no connection")


def cyclic(context: NamespaceContext) -> dict[str, Any]:
    scope: dict[str, Any] = {"a": {}}
    scope["a"]["b"] = scope
    return scope


@pytest.mark.covers("NS-1")
@pytest.mark.parametrize(
    ("create_scope", "path"),
    [
        (failing, "Issues"),
        (cyclic, "Issues.a.b"),
        (lambda context: {"deep": {"er": [print]}}, "Issues.deep.er.0"),
        (lambda context: {"list": namespace_tool("undeclared")}, "Issues.list"),
        (lambda context: {"ok": {"__proto__": 1}}, "Issues.ok"),
        (lambda context: [], "Issues"),
    ],
)
async def test_an_unusable_scope_fails_the_cell_before_it_runs(
    pool: Pool, create_scope: CreateScope, path: str
) -> None:
    registry = registered(create_scope)
    async with CodeMode(tools=[ISSUES, add], namespaces=registry, pool=pool) as code_mode:
        for _ in range(2):
            result = await code_mode.exec('text("ran"); await tools.add({ a: 1, b: 1 })')
            assert (result.status, result.code) == ("failed", "internal_error")
            assert f"{path} " in f"{result.error} ".replace(":", " ")
            assert (result.output, result.calls) == ([], [])
        assert result.telemetry["callCount"] == 0


FORGED = [
    '["nowhere", ["list"], []]',
    '["issues", ["data"], []]',
    '["issues", ["data", "x"], []]',
    '["issues", ["list", "x"], []]',
    '["issues", ["data.list"], []]',
    r'["issues", ["data\u0000list"], []]',
    r'["issues", ["list\u0000"], []]',
    '["issues", [], []]',
    '["issues", [""], []]',
    '["issues", ["__proto__"], []]',
    '["issues", ["constructor"], []]',
    '["issues", "list", []]',
    '["issues", ["list"], {}]',
    '["issues", [["list"]], []]',
    '["Issues", ["list"], []]',
    "[null, null, null]",
    "[]",
    "{}",
    "5",
    '"issues"',
    "null",
]


@pytest.mark.covers("NS-3")
async def test_a_forged_bridge_message_is_rejected_and_the_cell_continues(pool: Pool) -> None:
    # The only way to write one: every array passes through its `toJSON` on its way out.
    source = """const forged = [FORGED], seen = [];
for (const message of forged) {
  Object.defineProperty(Array.prototype, "toJSON", { configurable: true, value() {
    return this.length === 3 && this[0] === "issues" ? message : this;
  } });
  try { seen.push(await Issues.data.list()) } catch (e) { seen.push(e.code) }
  delete Array.prototype.toJSON;
}
return [seen, await Issues.data.list(), await tools.secret().catch((e) => e.code)]"""
    called: list[str] = []

    def note(name: str, **options: Any) -> Tool:
        return Tool(name, "Note.", {}, lambda params, context: called.append(name), **options)

    backing = note("list_issues", source="plugin", owner="github")
    registry = registered(lambda context: {"data": {"x": 1, "list": namespace_tool("list_issues")}})
    options: Any = {"tools": [backing, note("secret")], "namespaces": registry}
    seen, last, _ = await value(pool, source.replace("FORGED", ", ".join(FORGED)), **options)
    assert seen == ["invalid_input"] * len(FORGED)
    assert (last, called) == (None, ["list_issues", "secret"])


@pytest.mark.covers("NS-3")
@pytest.mark.parametrize("forged", FORGED)
async def test_a_forged_catalog_message_is_rejected_and_the_cell_continues(
    pool: Pool, forged: str
) -> None:
    source = f"""Object.defineProperty(Array.prototype, "toJSON", {{ configurable: true, value() {{
  return this.length && this[0] === "add" ? ({forged}) : this;
}} }});
const seen = [];
const {{ call, describe, search }} = tools;
for (const ask of [() => call("add", {{}}), () => describe("add"), () => search("add")])
  try {{ seen.push(await ask()) }} catch (e) {{ seen.push(e.code) }}
delete Array.prototype.toJSON;
return [seen.slice(0, 2), await tools.add({{ a: 1, b: 1 }})]"""
    seen, after = await value(pool, source, tools=[add])
    assert set(seen) <= {"invalid_input", "unknown_tool"}
    assert after == 2


# ---- What a call carries along ----

WHO = RunContext(
    agent_id="support",
    session_id="s-1",
    session_key="agent:support:main",
    run_id="r-1",
    sender="+491234",
    channel="whatsapp",
)


@pytest.mark.covers("CM-nested-context")
async def test_tools_hooks_approvers_and_scopes_all_see_whose_run_it_is(pool: Pool) -> None:
    seen: list[tuple[str, RunContext]] = []
    parents: list[Any] = []
    hooks = Hooks()

    def before(event: BeforeToolCall) -> None:
        assert event.run == WHO
        if event.tool_kind == "code_mode_exec":
            return
        seen.append(("before", event.run))
        parents.append((event.tool_call_id, event.parent_id))

    def after(event: AfterToolCall) -> None:
        if event.call.tool_kind is None:
            seen.append(("after", event.call.run))

    def approve(question: Any) -> Any:
        seen.append(("approver", question.run))
        return "allow-once"

    def scope(context: NamespaceContext) -> dict[str, Any]:
        seen.append(("scope", context.run))
        return {"list": namespace_tool("list_issues")}

    async def backing(params: JsonObject, context: ToolContext) -> None:
        seen.append(("tool", context.run))
        parents.append((context.call_id, context.parent_id))

    hooks.before_tool_call(before)
    hooks.after_tool_call(after)
    options: Any = {
        "tools": [Tool("list_issues", "List.", {}, backing, source="plugin", owner="github")],
        "hooks": hooks,
        "approvals": Approvals(ask_for=["list_issues"], approver=approve),
        "namespaces": registered(scope),
        "context": WHO,
    }
    async with CodeMode(pool=pool, **options) as code_mode:
        source = "await yield_control(); await tools.list_issues(); await Issues.list()"
        result = await code_mode.exec(source, call_id="toolu_7")
        assert (await code_mode.wait(result.run_id)).status == "completed"
    order = ["before", "approver", "tool", "after"]
    assert [place for place, _ in seen] == ["scope", *order, *order]
    assert all(run == WHO for _, run in seen)
    # One id for each call, the same in hook and tool, and the `exec` that all of it is part of.
    assert [parent for _, parent in parents] == ["toolu_7"] * 4
    assert (parents[0], parents[2]) == (parents[1], parents[3])
    assert parents[0] != parents[2]


@pytest.mark.covers("CM-nested-context")
async def test_the_sandbox_policy_of_a_run_holds_for_its_nested_calls(pool: Pool) -> None:
    tools = [made("message", "sent"), made("browse", "seen", source="plugin", owner="browser")]
    ids = ["openclaw:core:message", "plugin:browser:browse"]
    sandboxed = Policy.from_config(sandbox={"deny": ["message"], "alsoAllow": ["browser"]})
    assert await call_each(pool, ids, tools=tools, policy=sandboxed) == {
        "openclaw:core:message": "unknown_tool",
        "plugin:browser:browse": "seen",
    }
    closed = Policy.from_config(sandbox={})
    assert await call_each(pool, ids, tools=tools, policy=closed) == {
        "openclaw:core:message": "sent",
        "plugin:browser:browse": "unknown_tool",
    }


@pytest.mark.covers("CM-V12")
async def test_hooks_and_approvals_decide_about_nested_calls(pool: Pool) -> None:
    hooks, ran = Hooks(), list[JsonObject]()

    def decide(event: BeforeToolCall) -> ToolCallDecision | None:
        match event.params.get("do"):
            case "block":
                return ToolCallDecision(block=True, block_reason="not on Sundays")
            case "rewrite":
                return ToolCallDecision(params={"do": "rewritten"})
        return None

    hooks.before_tool_call(decide)

    async def act(params: JsonObject, context: ToolContext) -> Any:
        ran.append(params)
        return params["do"]

    asked: list[Any] = []

    def approve(question: Any) -> Any:
        asked.append((question.tool_id, question.input))
        return "deny" if question.input["do"] == "denied" else "allow-once"

    options: Any = {
        "tools": [Tool("act", "Act.", {}, act)],
        "hooks": hooks,
        "approvals": Approvals(ask_for=["act"], approver=approve),
    }
    source = """const told = (wish) => tools.act({ do: wish }).catch((e) => [e.code, e.message]);
return await Promise.all(["block", "rewrite", "denied", "plain"].map(told))"""
    block, rewrite, denied, plain = await value(pool, source, **options)
    assert (block[0], "not on Sundays" in block[1]) == ("blocked", True)
    assert (rewrite, denied[0], plain) == ("rewritten", "not_approved", "plain")
    assert ran == [{"do": "rewritten"}, {"do": "plain"}]
    assert [wish["do"] for _, wish in asked] == ["rewritten", "denied", "plain"]
    assert {tool_id for tool_id, _ in asked} == {"openclaw:core:act"}


@pytest.mark.covers("CM-nested-abort")
@pytest.mark.parametrize("parked", [False, True])
async def test_the_end_of_a_run_cancels_its_nested_tools(pool: Pool, parked: bool) -> None:
    begun, cancelled = anyio.Event(), list[str]()
    results: list[CodeModeResult] = []

    async def hang(params: JsonObject, context: ToolContext) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append(context.call_id)
            raise

    tools = [Tool("hang", "Hang.", {}, hang)]
    async with CodeMode(tools=tools, pool=pool) as code_mode:

        async def execute() -> None:
            wait = "await yield_control();" if parked else ""
            results.append(await code_mode.exec(f"const open = tools.hang(); {wait} await open"))

        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(execute)
                await begun.wait()
                if not parked:
                    await code_mode.end_run()
            (result,) = results
            if parked:
                await code_mode.end_run()
                result = await code_mode.wait(result.run_id)
            assert (result.status, result.code) == ("failed", "aborted")
            await anyio.wait_all_tasks_blocked()
        assert len(cancelled) == 1


@pytest.mark.covers("CM-nested-updates")
async def test_updates_of_a_nested_tool_are_streamed_while_it_runs(pool: Pool) -> None:
    seen: list[Any] = []
    half = anyio.Event()

    def watch(event: CallEvent) -> None:
        if event.phase == "update":
            seen.append((event.tool_id, event.parent_id, event.update))
            half.set()

    async def slow(params: JsonObject, context: ToolContext) -> str:
        context.update({"done": 0.5})
        await half.wait()  # so it never ends unless the update has been seen
        context.update("nearly")
        return "done"

    async with CodeMode(tools=[Tool("slow", "Slow.", {}, slow)], pool=pool) as code_mode:
        stop = code_mode.watch(watch)
        result = await code_mode.exec("return await tools.slow()", call_id="toolu_1")
        assert result.value == "done"
        assert seen == [
            ("openclaw:core:slow", "toolu_1", {"done": 0.5}),
            ("openclaw:core:slow", "toolu_1", "nearly"),
        ]
        stop()
        assert (await code_mode.exec("return await tools.slow()")).value == "done"
    assert len(seen) == 2


@pytest.mark.covers("CM-nested-updates")
async def test_updates_from_a_thread_are_streamed_too(pool: Pool) -> None:
    seen: list[Any] = []
    half = threading.Event()

    def watch(event: CallEvent) -> None:
        if event.phase == "update":
            seen.append(event.update)
            half.set()

    def slow(params: JsonObject, context: ToolContext) -> bool:
        context.update(1)
        return half.wait(5)

    async with CodeMode(tools=[Tool("slow", "Slow.", {}, slow)], pool=pool) as code_mode:
        code_mode.watch(watch)
        assert (await code_mode.exec("return await tools.slow()")).value is True
    assert seen == [1]


# ---- The engine ----


@pytest.mark.covers("CM-runtime-dependency")
async def test_the_engine_is_the_packages_own_and_no_copy_that_lies_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendored = (artifacts.GUEST / "vendor" / "quickjs.wasm").read_bytes()
    assert artifacts.read_checked("quickjs.wasm") == vendored
    assert Path(artifacts.__file__).parent in (artifacts.GUEST / "vendor").parents
    declared = importlib.metadata.requires("clawmode") or []
    assert [name for name in declared if name.startswith("wasmtime")] == ["wasmtime<51,>=50.0.1"]
    # Copies of every kind in the places where something might look.
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, tmp_path / "node_modules" / "quickjs-wasi"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "quickjs.wasm").write_bytes(b"\0asm not this one")
    for module in ("wasmtime", "quickjs", "clawmode", "msgpack"):
        (tmp_path / f"{module}.py").write_text('raise SystemExit("the wrong one")')
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path))
    monkeypatch.setenv("NODE_PATH", os.fspath(tmp_path / "node_modules"))
    async with Pool(size=1) as pool:
        assert (await CodeMode(pool=pool).exec("return 6 * 7")).value == 42


# ---- The page ----

LANGUAGE = """
AggregateError Array ArrayBuffer AsyncDisposableStack BigInt BigInt64Array BigUint64Array Boolean
DataView Date DisposableStack Error EvalError FinalizationRegistry Float16Array Float32Array
Float64Array Function Infinity Int16Array Int32Array Int8Array Iterator JSON Map Math NaN Number
Object Promise Proxy RangeError ReferenceError Reflect RegExp Set SharedArrayBuffer String
SuppressedError Symbol SyntaxError TypeError URIError Uint16Array Uint32Array Uint8Array
Uint8ClampedArray WeakMap WeakRef WeakSet decodeURI decodeURIComponent encodeURI
encodeURIComponent escape eval globalThis isFinite isNaN parseFloat parseInt undefined unescape
""".split()
"""The globals of JavaScript itself, which no page of ours explains."""


async def test_every_global_is_on_the_page(pool: Pool) -> None:
    async with CodeMode(pool=pool) as code_mode:
        result = await code_mode.exec("return Object.getOwnPropertyNames(globalThis)")
    page = Path(__file__).parents[2].joinpath("docs", "guide", "programs.md").read_text("utf-8")
    table = page.partition("## Globals")[2].partition("\n\n**")[0]
    named = set(re.findall(r"`(\w+)", table))
    found = set(result.value_as(list[str])) - {*LANGUAGE}
    assert sorted(found - named) == [], "docs/guide/programs.md does not say what these are"
    assert found >= {"text", "tools", "MCP", "console"}
