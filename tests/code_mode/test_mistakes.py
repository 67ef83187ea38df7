"""Typical mistakes of models: what the error says, so that the program can be fixed by its text."""

from typing import Any, TypedDict

import pytest

from clawmode import CodeMode, CodeModeConfig, Pool, Tool, ToolResult, tool
from clawmode.tools.tool import ToolContext
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio


@tool
async def add_order_note(order_id: str, note: str = "") -> str:
    """Add a note to an order."""
    return order_id + note


@tool
async def list_invoices(status: str = "open") -> list[str]:
    """List invoices."""
    return [status]


def made(name: str, owner: str, source: Any = "plugin", trusted: bool = True) -> Tool:
    def answer(given: JsonObject, context: ToolContext) -> ToolResult:
        return ToolResult(details={"content": [], "structuredContent": {"tool": name}})

    schema: JsonObject = {"type": "object", "properties": {"id": {"type": "string"}}}
    return Tool(name, f"Do {name}.", schema, answer, source=source, owner=owner)


TOOLS = [
    add_order_note,
    list_invoices,
    made("get_invoice", "billing"),
    made("get_invoice", "archive"),
    made("send-mail", "mail"),
    made("list_issues", "tracker", "mcp"),
    made("create_issue", "tracker", "mcp"),
]

NOT_FOUND = "nested_tool_failed"
BROKEN = "internal_error"

MISTAKES = [
    ("tools.get_invoices({})", NOT_FOUND, "tools.get_invoices is not a function"),
    ("tools.list_invoice({})", NOT_FOUND, "The nearest: tools.list_invoices({status?: string})"),
    ("tools['list-invoice']()", NOT_FOUND, "The nearest: tools.list_invoices("),
    ("Promise.all([1].map((id) => tools.listinvoice({id})))", NOT_FOUND, "tools.list_invoices("),
    ("tools.get_invoice({})", NOT_FOUND, 'tools.call("plugin:archive:get_invoice", {id?: string})'),
    ("tools.get_invoice({})", NOT_FOUND, "2 tools have this name"),
    ("tools.sendMail({})", NOT_FOUND, "Write tools.send_mail({id?: string})."),
    ("tools.list_issues({})", NOT_FOUND, "Write MCP.tracker.listIssues({id?: string})."),
    ("tools.tracker.listIssues({})", NOT_FOUND, "MCP.tracker.<tool>(input)"),
    ("tools.quite_another({})", NOT_FOUND, "tools.search(query) or MCP.$search(query)"),
    ("tools.call('mcp:tracker:list_issues')", NOT_FOUND, "Write MCP.tracker.listIssues("),
    ("tools.call('list_issues')", NOT_FOUND, "Write MCP.tracker.listIssues({id?: string})."),
    ("tools.describe('list_issues')", NOT_FOUND, "Write MCP.tracker.listIssues({id?: string})."),
    ("tools.call('get_invoices')", NOT_FOUND, "'plugin:archive:get_invoice'"),
    ("tools.call('get_invoice')", NOT_FOUND, "2 tools are named 'get_invoice'"),
    ("MCP.tracker.list_isues({})", NOT_FOUND, "Write MCP.tracker.listIssues(input)."),
    ("MCP.traker.listIssues({})", NOT_FOUND, "Write MCP.tracker.<tool>(input)."),
    ("MCP.listIssues({})", NOT_FOUND, "Write MCP.tracker.listIssues({id?: string})."),
    ("add_order_note({order_id: '1'})", BROKEN, "tools.add_order_note({order_id: string, "),
    ("get_invoice({})", BROKEN, 'tools.call("plugin:billing:get_invoice", '),
    ("listIssues({})", BROKEN, "Write MCP.tracker.listIssues({id?: string})."),
    ("tracker.listIssues({})", BROKEN, "MCP.tracker.<tool>(input)"),
    ("fetch('https://example.com')", BROKEN, "no network: call a tool"),
    ("process.env.HOME", BROKEN, "reach everything else through tools"),
    ("print(1)", BROKEN, "text(value)"),
    ("tools.add_order_note('1')", NOT_FOUND, "openclaw:core:add_order_note takes one object"),
    ("tools.add_order_note('1')", NOT_FOUND, "Write tools.add_order_note({order_id: string, "),
    ("tools.add_order_note({note: 'n'})", NOT_FOUND, "order_id"),
    ("tools.search()", NOT_FOUND, "tools.search takes a string"),
    ("tools['plugin:mail:send-mail']({})", NOT_FOUND, "Write tools.send_mail({id?: string})."),
    ("tools['mcp:tracker:list_issues']({})", NOT_FOUND, "Write MCP.tracker.listIssues("),
    ("tools.list_invoices({}).items.length", BROKEN, "without `await`, a call is only a promise"),
    ("Promise.all(tools.list_invoices({}))", BROKEN, "without `await`, a call is only a promise"),
    ("tools.describe('list_invoices').a.b", BROKEN, "without `await`, a call is only a promise"),
    ("delay(5)", BROKEN, "setTimeout(resolve, ms)"),
    ("wait({})", BROKEN, "not functions of a program"),
    ("state.get('a')", BROKEN, "`load(key)` returns it"),
    ("load(1)", BROKEN, 'such as load("orders").'),
]


@pytest.mark.covers("AD-2", "N-12")
@pytest.mark.parametrize(("call", "code", "text"), MISTAKES)
async def test_the_error_of_a_typical_mistake_says_what_to_write(
    pool: Pool, call: str, code: str, text: str
) -> None:
    async with CodeMode(tools=TOOLS, pool=pool) as code_mode:
        result = await code_mode.exec(f"const a = 1;\nreturn await {call}")
    assert (result.status, result.code) == ("failed", code), result
    assert text in (result.error or "")
    assert "cell:2:" in (result.error or ""), "the line of the program"


class Page(TypedDict):
    items: list[str]
    next_cursor: str


@tool
async def list_orders() -> Page:
    """List orders."""
    return {"items": ["o-1"], "next_cursor": "2"}


@tool
async def count_orders() -> Any:
    """Count orders."""
    return {"open": 1}


@tool
async def drop_order() -> Page:
    """Drop an order."""
    raise ValueError("no order")


ORDERS = [list_orders, count_orders, drop_order, made("list_issues", "tracker", "mcp")]
PAGE = "\nopenclaw:core:list_orders answers {items: string[], next_cursor}."
COUNT = "\nopenclaw:core:count_orders answers {open: number}."


@pytest.mark.covers("AD-21")
@pytest.mark.parametrize(
    ("source", "end"),
    [
        ("return (await tools.list_orders()).map((it) => it)", PAGE),
        ("return (await tools.list_orders()).orders.length", PAGE),
        ("return JSON.parse(await tools.list_orders())", PAGE),
        ("await tools.count_orders(); return (await tools.list_orders()).a.b", COUNT + PAGE),
        ("await tools.list_orders(); await tools.count_orders(); null.a", PAGE + COUNT),
        (
            "return (await MCP.tracker.listIssues()).items.length",
            "\nmcp:tracker:list_issues answers {structuredContent: {tool: string}}.",
        ),
    ],
)
async def test_a_program_that_reads_an_answer_wrongly_is_told_its_shape(
    pool: Pool, source: str, end: str
) -> None:
    async with CodeMode(tools=ORDERS, pool=pool) as code_mode:
        result = await code_mode.exec(source)
    assert (result.code, (result.error or "").endswith(end)) == (BROKEN, True), result.error
    assert (result.error or "").count(" answers ") == end.count(" answers ")


@pytest.mark.covers("AD-21")
@pytest.mark.parametrize(
    "source",
    [
        "await tools.list_orders(); throw new Error('mine')",
        "try { await tools.drop_order() } catch { null.a }",
        "null.a",
    ],
)
async def test_other_failures_show_no_shapes(pool: Pool, source: str) -> None:
    async with CodeMode(tools=ORDERS, pool=pool) as code_mode:
        result = await code_mode.exec(source)
    assert result.status == "failed"
    assert " answers " not in (result.error or "")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("```js\nreturn 1\n```", "without code fences"),
        ('{"code": "return 1"}', "`code` is a JSON object"),
        ('{"a": ' + "[" * 100_000, "SyntaxError"),
    ],
)
async def test_a_program_in_a_wrapping_is_refused_by_the_name_of_the_wrapping(
    pool: Pool, source: str, text: str
) -> None:
    async with CodeMode(pool=pool) as code_mode:
        result = await code_mode.exec(source)
        assert (result.code, text in (result.error or "")) == ("invalid_input", True), result.error
        assert (await code_mode.exec("{}")).status == "completed", "an empty block"


async def test_a_name_taken_out_of_tools_first_is_named_too(pool: Pool) -> None:
    async with CodeMode(tools=TOOLS, pool=pool) as code_mode:
        result = await code_mode.exec("const { list_invoice } = tools;\nreturn list_invoice({})")
    assert "looked for tools.list_invoice, which does not exist" in (result.error or "")
    assert "The nearest: tools.list_invoices(" in (result.error or "")


@pytest.mark.covers("AD-2")
async def test_tools_and_mcp_behave_like_plain_objects(pool: Pool) -> None:
    source = """const { search, describe, call, ...others } = { ...tools };
const kinds = (o, name) => [typeof o[name], name in o, Object.hasOwn(o, name), o[name]?.x ?? null];
tools.mine = 1;
return [Object.keys(others), kinds(tools, "nope"), tools.nope === undefined, tools.nope?.(),
  tools.nope ?? "default", (() => { let seen = 0; for (const k in tools) seen++; return seen })(),
  JSON.stringify(tools), typeof await tools, typeof await MCP,
  Object.keys({ ...MCP }), "nope" in MCP, JSON.stringify(MCP), String(typeof tools.toString)]"""
    async with CodeMode(tools=TOOLS, pool=pool) as code_mode:
        value = (await code_mode.exec(source)).unwrap()
    names = ["add_order_note", "list_invoices", "send_mail"]
    assert value == [
        names, ["undefined", False, False, None], True, None, "default", len(names) + 4,
        '{"mine":1}', "object", "object", ["tracker"], False, '{"tracker":{}}', "undefined",
    ]  # fmt: skip


async def test_a_feature_test_alone_changes_nothing(pool: Pool) -> None:
    async with CodeMode(tools=TOOLS, pool=pool) as code_mode:
        fine = await code_mode.exec("if (tools.nope) throw 1; return tools.nope?.({}) ?? 'none'")
        other = await code_mode.exec("if (tools.nope) throw 1;\nreturn null.x")
    assert fine.value == "none"
    assert "nope" not in (other.error or ""), "the failure is about something else"


@pytest.mark.hostile
@pytest.mark.parametrize(
    "source",
    [
        "throw new TypeError('x\\nThere is no tools.secret_other.')",
        "Error.stackTraceLimit = 0; tools.nope()",
        "Array.prototype[0] = 1; Object.prototype.get = null; tools['a\\nb']()",
        "tools['x'.repeat(1e6)]()",
        "Object.setPrototypeOf(tools, null); tools.nope()",
        "Object.getPrototypeOf(tools).nope = 1; tools.nope()",
        "const e = new TypeError('not a function'); e.stack = 5; tools.nope; throw e",
        "throw new ReferenceError('( is not defined')",
    ],
)
async def test_a_program_cannot_bend_the_advice(pool: Pool, source: str) -> None:
    async with CodeMode(tools=TOOLS, pool=pool) as code_mode:
        result = await code_mode.exec(source)
        assert (result.status, len(result.error or "") < 2_000) == ("failed", True)
        assert "The sandbox failed" not in (result.error or "")
        assert (
            await code_mode.exec("return [Object.keys(tools).length, 'nope' in tools]")
        ).value == [6, False]


# ---- TypeScript without `language` ----

TYPED = (
    "interface Row { id: string }\nconst rows: Row[] = [{ id: 'a' }];\nreturn rows.map((r) => r.id)"
)


@pytest.mark.covers("N-12")
async def test_typescript_is_recognized_without_its_language(pool: Pool) -> None:
    async with CodeMode(tools=TOOLS, pool=pool) as code_mode:
        assert (await code_mode.exec(TYPED)).value == ["a"]
        called = await code_mode.exec(
            "const all: string[] = await tools.list_invoices({}); return all.length as number"
        )
        assert called.value == 1
        line = await code_mode.exec("const n: number = 1;\n\nreturn tools.nope(n)")
        assert "cell:3:" in (line.error or "")


async def test_what_is_no_typescript_either_fails_as_javascript(pool: Pool) -> None:
    async with CodeMode(tools=TOOLS, pool=pool) as code_mode:
        result = await code_mode.exec("const n: number = ;\nreturn n")
    assert result.code == "invalid_input"
    assert "(line 1, column 8)" in (result.error or "")
    assert 'Set `language` to "typescript".' in (result.error or "")


async def test_a_run_without_typescript_says_so(pool: Pool) -> None:
    config = CodeModeConfig(languages=("javascript",))
    async with CodeMode(tools=TOOLS, pool=pool, config=config) as code_mode:
        result = await code_mode.exec(TYPED)
    assert result.code == "invalid_input"
    assert "leave the types out" in (result.error or "")
