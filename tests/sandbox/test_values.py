"""Values and output: the adapter, the budget, and what is left when it is spent."""

import json
import re

import pytest
from tests.support.stepping import failure_of, finish, ok, texts, value_of

from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import Completion, Request, Settlement

pytestmark = pytest.mark.anyio


SHARED = ["[SharedArrayBuffer: 6 bytes]", {"g": "[Getter threw: undefined]"}]


@pytest.mark.covers("OU-2", "B-20")
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("undefined", None),
        ("NaN", None),
        ("-0", 0),
        ("1e21", 1e21),
        ("12345678901234567890n", "12345678901234567890"),
        ("[1, , undefined]", [1, None, None]),
        ("{ a: undefined, b: null }", {"a": None, "b": None}),
        ("() => 1", "[Function: anonymous]"),
        ("function named() {}", "[Function: named]"),
        ("Symbol('s')", "[Symbol(s)]"),
        ("new Error('e')", {"name": "Error", "message": "e"}),
        (
            "Object.assign(new TypeError('e'), { code: 7 })",
            {"name": "TypeError", "message": "e", "code": 7},
        ),
        (
            "new Error('e', { cause: new TypeError('c', { cause: 3 }) })",
            {
                "name": "Error",
                "message": "e",
                "cause": {"name": "TypeError", "message": "c", "cause": 3},
            },
        ),
        (
            "new AggregateError([new Error('a'), 2], 'm')",
            {
                "name": "AggregateError",
                "message": "m",
                "errors": [{"name": "Error", "message": "a"}, 2],
            },
        ),
        (
            "(() => { const e = Error('e'); e.cause = e; return [e, { get g() { throw 1 } }] })()",
            [{"name": "Error", "message": "e", "cause": "[Circular]"}, {"g": "[Getter threw: 1]"}],
        ),
        ("new Map([['a', 1], ['b', new Map()]])", {"a": 1, "b": {}}),
        ("new Map([[1, 2], ['b', 3]])", [[1, 2], ["b", 3]]),
        ("new Set([1, 'a'])", [1, "a"]),
        ("new Date(0)", "1970-01-01T00:00:00.000Z"),
        ("new Date(NaN)", None),
        ("/a/gi", "/a/gi"),
        ("new Uint8Array(12)", "[Uint8Array: 12 bytes]"),
        ("new ArrayBuffer(5)", "[ArrayBuffer: 5 bytes]"),
        ("new SharedArrayBuffer(6)", "[SharedArrayBuffer: 6 bytes]"),
        ("[new SharedArrayBuffer(6), { get g() { throw undefined } }]", SHARED),
        ("new DataView(new ArrayBuffer(5), 1)", "[DataView: 4 bytes]"),
        ("[Promise.resolve(1)]", ["[Promise: not awaited]"]),
        ("[new Number(1), new String('s'), new Boolean(false)]", [1, "s", False]),
        ("new URL('http://a/')", "http://a/"),
        ("Object.create(null, { a: { value: 1, enumerable: true } })", {"a": 1}),
        ("new (class Point { x = 1; #y = 2; get z() { return 3 } })()", {"x": 1}),
        ("{ get x() { throw new Error('g') }, y: 1 }", {"x": "[Getter threw: g]", "y": 1}),
        ("{ toJSON() { return { kept: 1 } } }", {"kept": 1}),
        ("{ toJSON() { throw new Error('t') } }", "[Not serializable: t]"),
        ("{ a: 1, toJSON() { return this } }", {"a": 1, "toJSON": "[Function: toJSON]"}),
        ("(() => { const o = { n: 1 }; o.self = o; return o })()", {"n": 1, "self": "[Circular]"}),
        ("(() => { const s = { a: 1 }; return [s, s] })()", [{"a": 1}, {"a": 1}]),
        ("{ ['__proto__']: 1, constructor: 2 }", {"__proto__": 1, "constructor": 2}),
        ("'\\ud800x\\0'", "\ufffdx\0"),
        ("{ '\\udc00': 1 }", {"\ufffd": 1}),
        ("new Proxy([1, 2], {})", [1, 2]),
        ("new Proxy({}, { ownKeys() { throw 1 } })", "[Not serializable: 1]"),
        ("globalThis.process ?? null", None),
    ],
)
async def test_any_value_has_a_json_form(pool: Pool, expression: str, expected: object) -> None:
    assert await value_of(pool, f"return ({expression})") == expected


RAW = {
    "half of a character": """JSON.rawJSON('"\\\\uD800"')""",
    "an endless integer": 'JSON.rawJSON("9".repeat(6000))',
    "infinity": 'JSON.rawJSON("1e999")',
    "through another function": "Function('return JSON')().rawJSON('1e999')",
    "through what an iterator finds": (
        "Reflect.ownKeys(JSON).map((key) => JSON[key]).find((f) => /raw/i.test(f.name))('1e999')"
    ),
}


@pytest.mark.covers("S-4")
@pytest.mark.parametrize("raw", RAW.values(), ids=RAW)
@pytest.mark.parametrize("way", ["return {}", "json({})", "text({})", "tools.call('t', {})"])
async def test_a_program_cannot_write_its_own_json(pool: Pool, raw: str, way: str) -> None:
    failed = await failure_of(pool, way.replace("{}", raw))
    assert failed.code == "internal_error"
    assert "TypeError: not a function" in failed.error
    assert failed.requests == failed.output == ()


@pytest.mark.covers("S-4")
async def test_the_source_that_a_reviver_sees_stays_in_the_program(pool: Pool) -> None:
    source = """const seen = [];
JSON.parse('[1e999, "\\\\uD800"]', (key, value, context) => { seen.push(context); return value });
const big = JSON.parse("9".repeat(6000), (key, value) => value);
return [seen.map((context) => context?.source?.length ?? null), JSON.parse('[1e999]'), big]"""
    value = await value_of(pool, source)
    assert value[1:] == [[None], None]


@pytest.mark.covers("B-15", "OU-2")
@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("{ a: { get c() { throw new Error('g') } } }", {"a": {"c": "[Getter threw: g]"}}),
        (
            "{ a: undefined, get b() { throw 1 }, get c() { return undefined } }",
            {"b": "[Getter threw: 1]"},
        ),
        ("new (class { x = [undefined]; get y() { throw 1 } })()", {"x": [None]}),
    ],
)
async def test_a_getter_that_throws_in_arguments_is_shown(
    pool: Pool, argument: str, expected: object
) -> None:
    seen: list[Request] = []

    def answer(request: Request) -> Settlement:
        seen.append(request)
        return ok(request)

    await value_of(pool, f"await tools.call('t', {argument})", answer=answer)
    assert json.loads(seen[0].args)[1] == expected


@pytest.mark.covers("EX-13")
async def test_the_console_counts_and_measures(pool: Pool) -> None:
    source = """const c = console
c.count(); c.count("x"); c.count(); c.countReset(); c.count(); c.clear()
c.timeLog("none"); c.time("t"); c.timeLog("t", "so far", [1]); c.timeEnd("t"); c.timeEnd("t")"""
    said = [re.sub(r"[\d.]+ ms", "MS", text) for text in texts(await finish(pool, source))]
    assert said == ["default: 1", "x: 1", "default: 2", "default: 1", "t: MS so far [1]", "t: MS"]


async def test_locales_and_large_integers_are_as_the_page_says(pool: Pool) -> None:
    source = """const large = await tools.call("t");
const sorted = ["apple", "Zebra"].sort((a, b) => a.localeCompare(b));
const date = new Date("2025-01-31").toLocaleString("de-DE", { timeZone: "Asia/Tokyo" });
const number = (1234.5).toLocaleString("de-DE");
return [typeof Intl, number, sorted, date, large[0], large[1] === Infinity]"""
    value = await value_of(pool, source, answer=lambda r: ok(r, [9007199254740993, 10**400]))
    assert value == [
        *("undefined", "1234.5", ["Zebra", "apple"], "01/31/2025, 12:00:00 AM"),
        *(9007199254740992, True),
    ]


@pytest.mark.covers("OU-2")
async def test_nesting_beyond_a_hundred_levels_is_cut(pool: Pool) -> None:
    source = "let v = 'core'; for (let i = 0; i < 500; i++) v = [v]; return v"
    value = await value_of(pool, source)
    depth = 0
    while isinstance(value, list):
        value, depth = value[0], depth + 1
    assert (value, depth) == ("[Nested too deeply]", 100)


@pytest.mark.covers("OU-2")
async def test_the_adapter_never_throws_into_the_program(pool: Pool) -> None:
    source = """function deep(n) {
  if (n > 0) return deep(n - 1);
  text({ a: { b: { c: [1] } } });
  json([[[1]]]);
  return 1;
}
let fine = 0;
for (let n = 100; n < 1000; n += 25) {
  try { fine += deep(n) } catch (e) { if (e.name !== "RangeError") throw e }
}
return fine > 5"""
    assert await value_of(pool, source, output_left=1 << 20) is True


@pytest.mark.covers("OU-1")
async def test_output_is_copied_when_it_is_emitted_and_keeps_its_order(pool: Pool) -> None:
    source = """const o = { n: 1 };
json(o); text("between"); o.n = 2; json(o); text(o);
return o"""
    outcome = await finish(pool, source)
    assert [item.type for item in outcome.output] == ["json", "text", "json", "text"]
    assert texts(outcome) == [{"n": 1}, "between", {"n": 2}, '{"n":2}']


@pytest.mark.covers("OU-1")
async def test_the_value_is_copied_when_the_program_returns_it(pool: Pool) -> None:
    source = """const o = { n: 1 };
tools.call("later").then(() => { o.n = 2 });
return o"""
    assert await value_of(pool, source) == {"n": 1}


@pytest.mark.covers("OU-3", "OU-4", "ER-output_limit_exceeded")
@pytest.mark.parametrize("limit", [1024, 4096, 65536])
async def test_text_over_the_budget_keeps_the_longest_prefix(pool: Pool, limit: int) -> None:
    source = 'text("é\\n".repeat(100000)); return 1'
    failed = await failure_of(pool, source, output_left=limit)
    assert failed.code == "output_limit_exceeded"
    (kept,) = texts(failed)
    size = failed.output[0].size
    assert limit - 4 <= size <= limit
    assert ("é\n" * 100000).startswith(kept)
    assert f"{300000 - len(kept.encode())} bytes were left out" in failed.error


@pytest.mark.covers("OU-4")
async def test_a_value_over_the_budget_becomes_a_last_text_item(pool: Pool) -> None:
    source = 'text("first"); return Array.from({ length: 50000 }, (_, i) => "item " + i)'
    failed = await failure_of(pool, source, output_left=2000)
    assert failed.code == "output_limit_exceeded"
    first, prefix = texts(failed)
    whole = json.dumps([f"item {i}" for i in range(50000)], separators=(",", ":"))
    assert first == "first"
    assert whole.startswith(prefix)
    assert len(prefix) > 1500
    assert f"{len(whole) - len(prefix)} bytes were left out" in failed.error


@pytest.mark.covers("OU-4")
async def test_a_guest_cannot_catch_the_budget(pool: Pool) -> None:
    source = 'for (;;) try { text("x".repeat(500)) } catch {} '
    failed = await failure_of(pool, source, output_left=1024)
    assert failed.code == "output_limit_exceeded"
    assert len(failed.output) == 2


@pytest.mark.covers("OU-5")
async def test_output_made_before_a_failure_is_kept(pool: Pool) -> None:
    failed = await failure_of(pool, 'text("a"); await tools.call("t"); text("b"); throw 1')
    assert texts(failed) == ["a", "b"]


@pytest.mark.covers("OU-3")
async def test_the_budget_is_spent_by_all_steps_together(pool: Pool) -> None:
    source = 'for (let i = 0; i < 9; i++) { text("x".repeat(100)); await tools.call("t") }'
    failed = await failure_of(pool, source, output_left=1024)
    assert failed.code == "output_limit_exceeded"
    assert sum(item.size for item in failed.output) <= 1024
    assert isinstance(await finish(pool, source, output_left=2048), Completion)
