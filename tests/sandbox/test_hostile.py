"""Cells that mean harm: each ends as promised, in time, and harms nobody else.

A cell that should end says with which code, or with which value if it only hurt itself. Every one
of them is followed by a small cell in the same pool, which has to be fine.
"""

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.sandbox_driver import (
    LOOP,
    ending,
    expect_failure,
    expect_value,
    only_worker,
    patience,
    soon,
    suspend,
)
from tests.support.stepping import finish, ok, texts, value_of
from tests.support.waiting import undisturbed_time

from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import (
    Completion,
    Failure,
    Limits,
    Outcome,
    Request,
    Resume,
    Settlement,
    Start,
    Suspension,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

pytestmark = [pytest.mark.anyio, pytest.mark.hostile]


@pytest.fixture
async def single() -> AsyncIterator[Pool]:
    async with Pool(size=1, max_size=1) as opened:
        await value_of(opened, "return 1")
        yield opened


# ---- Time ----

BURNING = {
    "endless loop": LOOP,
    "endless loop in a function": "const f = () => { while (true); }; f()",
    "caught and endless": "for (;;) { try { for (;;); } catch {} finally { continue } }",
    "endless microtasks": "for (;;) await 0",
    "microtasks beside a result": "(async () => { for (;;) await 0 })(); return 1",
    "queued microtasks": "const f = () => queueMicrotask(f); f()",
    "timers without delay": "const f = () => setTimeout(f, 0); f()",
    "regular expression": "return /(a+)+$/.test('a'.repeat(40) + '!')",
    "sort callback": "[3, 2, 1].sort(() => { for (;;); })",
    "getter on the value": "return { get a() { for (;;); } }",
    "trap on the value": "return new Proxy({}, { ownKeys() { for (;;); } })",
    "toJSON": "return { toJSON() { for (;;); } }",
    "thenable": "const t = { then(r) { r(t) } }; return t",
    "name of an error": "throw Object.defineProperty(new Error, 'name', { get() { for (;;); } })",
    "reason of a rejection": "Promise.reject(new Proxy({}, { get() { for (;;); } }))",
    "species": "Object.defineProperty(Promise.prototype, 'constructor', { get() { for (;;); } })",
    "huge JSON": "const a = Array(1e5).fill('x'.repeat(50)); for (;;) JSON.stringify(a)",
    "native loop": "Array.prototype.indexOf.call({ length: 2 ** 53 - 1 }, 1)",
    "native copy": "const a = []; a.length = 2 ** 32 - 1; a.splice(0, 1)",
    "prototypes in a circle": """const p = new Proxy({}, { getPrototypeOf: () => p });
return Object.create(p) instanceof Object""",
    "a million timers": "for (let i = 0; i < 1e6; i++) setTimeout(() => {}, 1e6); for (;;);",
    "destructor of an iterator": "for (const x of { *[Symbol.iterator]() { try { yield 1 } "
    "finally { for (;;); } } }) break",
}


@pytest.mark.covers("EX-11", "ER-timeout")
@pytest.mark.parametrize("source", BURNING.values(), ids=BURNING)
async def test_whatever_burns_time_ends_at_the_deadline(pool: Pool, source: str) -> None:
    limits = Limits(memory_bytes=512 << 20)
    await expect_failure(pool, source, "timeout", seconds=0.3, limits=limits)


@pytest.mark.covers("EX-11")
async def test_typescript_that_burns_time_ends_at_the_deadline(pool: Pool) -> None:
    await value_of(pool, "return 1", language="typescript")
    source = "enum E { A }\nwhile (E.A === 0);"
    await expect_failure(pool, source, "timeout", language="typescript")


@pytest.mark.covers("EX-11")
async def test_text_that_takes_the_parser_long_ends_at_the_deadline(pool: Pool) -> None:
    await value_of(pool, "return typeof require")
    await expect_failure(pool, "a.require;" * 100_000, "timeout")


@pytest.mark.covers("EX-15", "OU-5")
async def test_output_emitted_before_a_timeout_is_in_the_result(pool: Pool) -> None:
    source = (
        "text('one'); await 0; json({ two: 2 }); setTimeout(() => { text('three'); for (;;); })"
    )
    outcome = await expect_failure(pool, source, "timeout")
    assert texts(outcome) == ["one", {"two": 2}, "three"]


@pytest.mark.covers("EX-15")
async def test_output_emitted_before_a_trap_is_in_the_result(pool: Pool) -> None:
    # QuickJS 0.11 does not count the stack of a chain of iterator helpers: wasm's own ends it.
    source = """text("before"); let i = [1].values();
for (let n = 0; n < 1e5; n++) i = i.map((x) => x); i.next()"""
    outcome = await ending(pool, source, seconds=3)
    assert isinstance(outcome, Failure)
    assert (outcome.code, texts(outcome)) == ("internal_error", ["before"])


@pytest.mark.covers("EX-7", "ER-internal_error")
@pytest.mark.parametrize(
    "source",
    [
        "await new Promise(() => {})",
        "await new Promise((resolve) => { globalThis.keep = resolve })",
        "await { then() {} }",
        "const t = setTimeout(() => {}, 1e6); clearTimeout(t); await new Promise(() => {})",
    ],
)
async def test_a_promise_that_never_settles_fails_at_once(pool: Pool, source: str) -> None:
    began = undisturbed_time()
    outcome = await expect_failure(pool, source, "internal_error", seconds=10)
    assert "nothing can settle" in outcome.error
    assert undisturbed_time() - began < 2


# ---- Memory and stack ----

HOARDING = {
    "buffer": "new ArrayBuffer(1e9)",
    "shared buffer": "new SharedArrayBuffer(1e9)",
    "string": "'x'.repeat(2 ** 29)",
    "padding": "'x'.padEnd(2 ** 29, 'ab')",
    "array": "Array(1e9).fill(0)",
    "map": "const m = new Map(); for (let i = 0; ; i++) m.set(i, [i])",
    "closures": "let f = () => 0; for (;;) { const g = f; f = () => g }",
    "doubling": "let s = 'x'; for (;;) { s += s; JSON.stringify(s) }",
    "concatenation": "let a = [1]; for (;;) a = a.concat(a)",
    "promises": "const f = () => Promise.resolve().then(f); await f()",
    "timers": "for (;;) setTimeout(() => {}, 100)",
    "split": "'x'.repeat(2e7).split('')",
    "regular expression": "/^(?:.|\\n)*x/.test('a'.repeat(2e7))",
}


@pytest.mark.covers("EX-12", "ER-memory_limit_exceeded", "CM-V18")
@pytest.mark.parametrize("source", HOARDING.values(), ids=HOARDING)
async def test_hoarding_memory_fails_the_cell(pool: Pool, source: str) -> None:
    limits = Limits(memory_bytes=8 << 20)
    await expect_failure(pool, source, "memory_limit_exceeded", seconds=8, limits=limits)


# Of the other two, one leaves timers behind, and one may reject with the `null` that the engine
# throws when there is no room for an error.
CATCHABLE = {name: HOARDING[name] for name in HOARDING if name not in ("timers", "promises")}


@pytest.mark.covers("EX-12")
@pytest.mark.parametrize("source", CATCHABLE.values(), ids=CATCHABLE)
async def test_exhaustion_that_is_caught_leaves_the_cell_going(pool: Pool, source: str) -> None:
    caught = f"""let name;
try {{ await (async () => {{ {source} }})() }} catch (e) {{ name = e.name }}
const r = await tools.call("t"); return [name, r, "x".repeat(1000).length]"""
    limits = Limits(memory_bytes=8 << 20)
    value = await expect_value(pool, caught, seconds=8, limits=limits)
    assert value == ["InternalError", None, 1000]


DEEP = {
    "recursion": "let n = 0; const f = () => { n++; f() }; try { f() } catch (e) { return e.name }",
    "mutual recursion through natives": """const f = () => [1].map(f);
try { f() } catch (e) { return e.name }""",
    "JSON text": "try { JSON.parse('['.repeat(1e6)) } catch (e) { return e.name }",
    "JSON objects": "try { JSON.parse('{\"a\":'.repeat(1e5)) } catch (e) { return e.name }",
    "arrays to JSON": """let a = []; for (let i = 0; i < 2e4; i++) a = [a];
try { JSON.stringify(a) } catch (e) { return e.name }""",
    "flattening": """let a = []; for (let i = 0; i < 1e5; i++) a = [a];
try { a.flat(Infinity) } catch (e) { return e.name }""",
    "proxies": """let p = {}; for (let i = 0; i < 1e5; i++) p = new Proxy(p, {});
try { p.x } catch (e) { return e.name }""",
    "generators": """function* g(n) { if (n) yield* g(n - 1) }
try { [...g(1e5)] } catch (e) { return e.name }""",
    "eval": "const f = () => eval('f()'); try { f() } catch (e) { return e.name }",
    "parentheses in eval": """try { eval("(".repeat(1e5) + "1" + ")".repeat(1e5)) }
catch (e) { return e.name }""",
}


@pytest.mark.covers("EX-12")
@pytest.mark.parametrize("source", DEEP.values(), ids=DEEP)
async def test_deep_nesting_is_an_error_that_can_be_caught(pool: Pool, source: str) -> None:
    assert await expect_value(pool, source, seconds=4) == "RangeError"


@pytest.mark.covers("EX-12")
@pytest.mark.parametrize(
    "source",
    [
        "(" * 100_000 + "1" + ")" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        "{" * 100_000 + "}" * 100_000,
        "return " + "!" * 100_000 + "1",
        "return " + "() => " * 100_000 + "1",
        "return " + "`${" * 50_000 + "1" + "}`" * 50_000,
        "return " + "1 ? " * 50_000 + "1" + " : 1" * 50_000,
        "return " + "function () { return " * 20_000 + "1" + "}" * 20_000,
        "if (1) " * 100_000 + ";",
        "return a" + "[a" * 50_000 + "]" * 50_000,
    ],
    ids=lambda source: source[:12],
)
async def test_deeply_nested_source_is_refused(pool: Pool, source: str) -> None:
    await expect_failure(pool, source, "invalid_input", seconds=3)


@pytest.mark.covers("EX-12")
async def test_deeply_nested_typescript_is_refused(pool: Pool) -> None:
    source = "let x: " + "[" * 20_000 + "number" + "]" * 20_000
    await expect_failure(
        pool, source, "typescript_transform_failed", seconds=3, language="typescript"
    )


# ---- Output and requests ----


@pytest.mark.covers("OU-4", "ER-output_limit_exceeded")
@pytest.mark.parametrize(
    "source",
    [
        "for (let i = 0; i < 100; i++) text('x'.repeat(1e6))",
        "for (;;) { try { text('x'.repeat(1000)) } catch {} }",
        "for (;;) console.log('x')",
        "for (;;) json([])",
        "for (;;) text('')",
        "return 'x'.repeat(1e6)",
        "throw text('x'.repeat(1e6))",
        "json({ get a() { text('x'.repeat(1e6)) } })",
        "setInterval(() => text('x'.repeat(1000)), 1); await new Promise(() => {})",
        "return Array(2 ** 31)",
        "json(new Proxy([], { get: (t, k) => k === 'length' ? Infinity : 1 }))",
        "const o = () => ({ toJSON: () => [o(), o(), o()] }); return o()",
        "return [Array(20000).fill('x'.repeat(9)), { get a() { for (;;); } }]",
    ],
)
async def test_a_flood_of_output_ends_at_its_cap(pool: Pool, source: str) -> None:
    outcome = await expect_failure(pool, source, "output_limit_exceeded", seconds=1)
    size = sum(len(item.body) for item in outcome.output)
    assert size <= 65536
    assert size > 40000 or len(outcome.output) > 2000


@pytest.mark.covers("EX-4", "ER-too_many_pending_tool_calls")
@pytest.mark.parametrize(
    "source",
    [
        "for (let i = 0; i < 20000; i++) tools.call('t', { i })",
        "for (let i = 0; i < 20000; i++) try { tools.call('t') } catch {}\nreturn 1",
        "const all = []; for (let i = 0; i < 20000; i++) all.push(tools.call('t').catch(() => 0))\n"
        "await Promise.race(all)",
    ],
)
async def test_a_flood_of_requests_fails_the_cell(pool: Pool, source: str) -> None:
    await expect_failure(pool, source, "too_many_pending_tool_calls", seconds=3)


@pytest.mark.covers("EX-4", "B-12")
@pytest.mark.parametrize(
    "request_", ["tools.search('t')", "tools.describe('t')", "yield_control()"]
)
async def test_a_flood_of_questions_waits_in_the_guest(pool: Pool, request_: str) -> None:
    """The host sees no more than its share at once; the rest costs the guest its own memory."""
    cell, answered = pool.cell(), 0
    source = f"for (let i = 0; i < 5000; i++) {request_}; return 1"
    outcome = await pool.step(cell, Start(source), soon())
    while isinstance(outcome, Suspension):
        assert len(outcome.requests) <= Limits().max_others
        answered += len(outcome.requests)
        replies = tuple(ok(request) for request in outcome.requests)
        outcome = await pool.step(cell, Resume(replies), soon())
    assert (outcome, answered) == (Completion(b"1"), 5000)
    flood = f"for (;;) {request_}"
    await expect_failure(
        pool, flood, "memory_limit_exceeded", limits=Limits(memory_bytes=4 << 20), seconds=5
    )


# ---- Values ----


@pytest.mark.covers("OU-2")
@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("return { get a() { throw new Error('no') } }", {"a": "[Getter threw: no]"}),
        ("return { toJSON() { throw new Error('no') } }", "[Not serializable: no]"),
        ("const o = { toJSON: () => o }; return o", {"toJSON": "[Function: toJSON]"}),
        ("const o = () => ({ toJSON: o }); return o()", {"toJSON": "[Function: o]"}),
        ("const o = {}; o.o = o; return [o]", [{"o": "[Circular]"}]),
        ("return { a: new Proxy({ b: 1 }, {}) }", {"a": {"b": 1}}),
        ("return { a: Proxy.revocable({}, {}).revoke }", {"a": "[Function: anonymous]"}),
        (
            "const { proxy, revoke } = Proxy.revocable([], {}); revoke(); return { proxy }",
            {"proxy": "[Not serializable: revoked proxy]"},
        ),
        (
            "return { a: new Proxy({}, { ownKeys() { throw new Error('no') } }) }",
            {"a": "[Not serializable: no]"},
        ),
        (
            "return { a: new Proxy([], { get: (t, k) => k === 'length' ? 2 : 'v' }) }",
            {"a": ["v", "v"]},
        ),
        ("let a = 1; for (let i = 0; i < 1e5; i++) a = { a }; json(a); return 1", 1),
        ("return 'a\0b'", "a\0b"),
        ("return { 'a\0b': '\\0' }", {"a\0b": "\0"}),
        ("return ['\\ud800', 'x\\udc00y', '\\ud83d\\ude00']", ["\ufffd", "x\ufffdy", "\U0001f600"]),
        ("return { '\\ud800': 1 }", {"\ufffd": 1}),
        ("return new Map([['\\udfff\\0', 1]])", {"\ufffd\0": 1}),
        ("return [-0, NaN, 1e400, 2n ** 64n]", [0, None, None, "18446744073709551616"]),
        ("return { ['__proto__']: 1, constructor: 2 }", {"__proto__": 1, "constructor": 2}),
        ("return { [Symbol.toPrimitive]() { throw 1 }, a: Symbol('s') }", {"a": "[Symbol(s)]"}),
    ],
)
async def test_a_value_that_bites_becomes_plain_data(pool: Pool, source: str, value: Any) -> None:
    assert await expect_value(pool, source) == value


@pytest.mark.covers("OU-2")
async def test_lone_surrogates_and_nul_cross_in_both_directions(pool: Pool) -> None:
    asked: list[Any] = []

    def answer(request: Request) -> Settlement:
        asked.append(json.loads(request.args))
        return Settlement(request.id, True, b'["\\u0000", "\\ud800", {"\\udc00": 1}]')

    source = r"""const r = await tools.call("a\0\ud800", { "\0": "\udc00" });
text(r[1]); throw new Error(r[0] + r[1])"""
    outcome = await ending(pool, source, answer=answer)
    assert isinstance(outcome, Failure)
    assert asked == [["a\0\ufffd", {"\0": "\ufffd"}]]
    assert texts(outcome) == ["\ufffd"]
    assert outcome.error.startswith("Error: \0\ufffd")


@pytest.mark.covers("OU-2")
@pytest.mark.parametrize("language", ["javascript", "typescript"])
async def test_a_source_with_lone_surrogates_or_nul_harms_no_worker(
    single: Pool, language: Any
) -> None:
    worker = only_worker(single)
    await value_of(single, "return 1", language=language)
    for source in ("return '\ud800'", "// \udc00\nreturn \ud800", "return '\0'", "\0", "}\ud800"):
        outcome = await ending(single, source, language=language)
        assert isinstance(outcome, Completion) or outcome.code in (
            "invalid_input",
            "typescript_transform_failed",
        ), outcome
    assert only_worker(single) is worker


@pytest.mark.parametrize("thrown", ["null", "Symbol('x')", "1n", "() => 1", "new Proxy({}, {})"])
async def test_an_odd_thing_thrown_is_a_failure_with_a_text(pool: Pool, thrown: str) -> None:
    outcome = await expect_failure(pool, f"throw {thrown}", "internal_error")
    assert outcome.error.startswith("Uncaught: ")


@pytest.mark.parametrize(
    "source",
    [
        "throw Object.defineProperty(new Error('m'), 'message', { get() { throw 1 } })",
        "throw Object.defineProperty(new Error('m'), 'stack', { get() { throw 1 } })",
        "throw Object.assign(new Error('m'), { stack: 'at cell:' + '1'.repeat(5000) + ':1' })",
        "throw Object.assign(new Error('m'), { stack: '    at ('.repeat(2000) })",
        "throw Object.assign(new Error('m'), { name: 1, stack: {}, message: [] })",
        "throw Object.assign(new Error('m'), { name: 'x'.repeat(1e7) })",
        "Object.defineProperty(Object.prototype, 'tool', { get() { throw 1 } }); throw 'm'",
        "Object.prototype.tool = Symbol(); throw 'm'",
        "Object.prototype.toString = null; throw { toString: null }",
    ],
)
async def test_an_error_that_bites_is_still_told(pool: Pool, source: str) -> None:
    outcome = await expect_failure(pool, source, "internal_error", seconds=2)
    assert "sandbox failed" not in outcome.error
    assert len(outcome.error) < 40000


# ---- Tampering ----

BEFORE = "const later = setTimeout, P = Promise, map = new Map([['c', 2]]), all = globalThis;"
ALL_THE_SAME = """
json({ a: [1, { b: map }] });
const r = await tools.call("t", { d: [1] });
await new P((resolve) => later(resolve, 1));
text("end"); return { r }"""

TAMPERING = {
    "nothing": "",
    "eval and Function are gone": "globalThis.eval = null; globalThis.Function = null",
    "Promise": "globalThis.Promise = class {}",
    "Promise.prototype.then": "Promise.prototype.then = () => { throw new Error('then') }",
    "JSON": "globalThis.JSON = null",
    "JSON methods": "JSON.stringify = JSON.parse = () => { throw new Error('JSON') }",
    "Array.prototype": """for (const k of Reflect.ownKeys(Array.prototype))
  if (typeof k === "string" && k !== "length") Array.prototype[k] = undefined""",
    "index setters": """for (let i = 0; i < 20; i++) for (const o of [Object, Array])
  Object.defineProperty(o.prototype, i, { set() { throw new Error("index") }, get() {} })""",
    "Object.prototype setters": """for (const k of ("value depth next text prefix limit counted "
  + "resolve reject slot id order due callback args every cleared kind name message stack tool "
  + "length writable configurable enumerable").split(" ")) {
  const t = text;
  Object.defineProperty(Object.prototype, k, { __proto__: null, configurable: true,
    get() { t("read " + k) }, set() { t("written " + k) } });
}""",
    "then on everything": """let n = 0; Object.defineProperty(Object.prototype, "then",
  { get() { n++; return undefined }, configurable: true })""",
    "Function.prototype": "for (const k of ['call', 'apply', 'bind']) delete Function.prototype[k]",
    "Symbol.iterator": "delete Array.prototype[Symbol.iterator]; delete Map.prototype.forEach",
    "instanceof": "for (const C of [Promise, Error, AggregateError, Map]) Object.defineProperty("
    "C, Symbol.hasInstance, { value() { throw new Error('instanceof') } })",
    "typed arrays": """const T = Object.getPrototypeOf(Float64Array).prototype;
for (const k of Reflect.ownKeys(T)) try { delete T[k] } catch {}
delete globalThis.Float64Array""",
    "everything deleted": """for (const k of Reflect.ownKeys(all))
  if (!["text", "json", "tools"].includes(k)) delete all[k]""",
    "everything frozen": """const seen = new Set();
(function walk(o) {
  if (Object(o) !== o || seen.has(o)) return;
  seen.add(o);
  for (const k of Reflect.ownKeys(o)) {
    const d = Reflect.getOwnPropertyDescriptor(o, k);
    walk(d.value); walk(d.get); walk(d.set);
  }
  walk(Reflect.getPrototypeOf(o));
})(globalThis);
for (const o of seen) try { Object.freeze(o) } catch {}""",
}


@pytest.mark.parametrize("tampering", TAMPERING.values(), ids=TAMPERING)
async def test_tampering_with_globals_leaves_the_plumbing_alone(pool: Pool, tampering: str) -> None:
    source = f"{BEFORE}\n{tampering};\n{ALL_THE_SAME}"
    outcome = await ending(pool, source, answer=lambda request: ok(request, 7))
    assert isinstance(outcome, Completion), outcome
    assert json.loads(outcome.value) == {"r": 7}
    assert texts(outcome) == [{"a": [1, {"b": {"c": 2}}]}, "end"]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (
            "Object.defineProperty(Object.prototype, 'then', { get() { throw new Error('t') } })\n"
            "return {}",
            "Error: t",
        ),
        (
            "Object.defineProperty(Promise.prototype, 'constructor',\n"
            "  { get() { throw new Error('c') } })",
            "Error: c",
        ),
        (
            "Object.defineProperty(Promise, Symbol.species, { get() { throw new Error('s') } })",
            "Error: s",
        ),
        ("globalThis.undefinedThing()", "TypeError"),
        ("Object.defineProperty(globalThis, 'text', { value: 1 }); text('x')", "TypeError"),
    ],
)
async def test_tampering_hurts_the_one_who_tampers(pool: Pool, source: str, error: str) -> None:
    outcome = await expect_failure(pool, source, "internal_error")
    assert outcome.error.startswith(error)


async def test_nothing_of_one_cell_is_seen_by_the_next(single: Pool) -> None:
    source = """Object.prototype.leak = 1; globalThis.leaked = 2; Math.random = () => 0;
setTimeout(() => text("late"), 0); tools.call("t"); Error.stackTraceLimit = 0; throw 1"""
    await expect_failure(single, source, "internal_error")
    value = await value_of(
        single, "return [({}).leak, typeof leaked, Math.random() === 0, Error.stackTraceLimit > 0]"
    )
    assert value == [None, "undefined", False, True]


async def test_rejections_made_while_a_failure_is_told_do_not_reach_the_next_cell(
    single: Pool,
) -> None:
    worker = only_worker(single)
    source = """const e = new Error("x");
Object.defineProperty(e, "message", {
  get() { for (let i = 0; i < 200; i++) Promise.reject(i); return "m" },
});
Promise.reject(e); return 1"""
    for _ in range(3):
        await expect_failure(single, source, "internal_error")
    assert only_worker(single) is worker


SECRET = "S3CR3T"


@pytest.mark.parametrize(
    "source",
    [
        f"globalThis.a = '{SECRET}' + 1; return 1",
        f"globalThis.a = '{SECRET}' + 1; throw new Error('{SECRET}')",
        f"globalThis.a = []; for (let i = 0; i < 20000; i++) a.push('{SECRET}' + i)",
        f"globalThis.a = []; for (let i = 0; i < 300000; i++) a.push('{SECRET}' + i)",
        f"globalThis.a = '{SECRET}' + 1; for (;;);",
        f"text('{SECRET}'.repeat(1e5))",
        f"globalThis.a = '{SECRET}' + 1; await tools.call('{SECRET}')",
        f"globalThis.a = '{SECRET}' + 1; return typeof require",
    ],
)
async def test_no_byte_of_one_cell_is_in_the_memory_of_the_next(single: Pool, source: str) -> None:
    worker = only_worker(single)
    with patience():
        await finish(single, source, seconds=1)
    frozen = await single.freeze(await suspend(single))
    assert only_worker(single) is worker
    # The next cell's memory is its difference to the image, which no cell can have touched.
    assert SECRET.encode() not in zstd.decompress(frozen.pages)


# ---- Forged plumbing ----


@pytest.mark.parametrize(
    "source",
    [
        # Call sites would hand out the functions on the stack, the prelude's among them.
        "Error.prepareStackTrace = (e, sites) => sites",
        "'use strict'; try { Error.prepareStackTrace = (e, sites) => sites } catch {}",
        "Object.defineProperty(Error, 'prepareStackTrace', { value: (e, sites) => sites })",
        "delete Error.prepareStackTrace; Error.prepareStackTrace = (e, sites) => sites",
        "class E extends Error { static prepareStackTrace(e, sites) { return sites } }\n"
        "globalThis.Error = E",
    ],
)
async def test_no_call_site_is_ever_handed_out(pool: Pool, source: str) -> None:
    source = f"""let found;
try {{ {source} }} catch {{}}
json({{ get a() {{ found = new Error("x").stack; return 1 }} }});
const o = {{}}; Error.captureStackTrace?.(o);
return [typeof found, typeof (o.stack ?? "")]"""
    assert await expect_value(pool, source) == ["string", "string"]


@pytest.mark.parametrize(
    "function", ["function f() { %s; return 1 }", "function f() { 'use strict'; %s; return 1 }"]
)
@pytest.mark.parametrize(
    "reach",
    ["f.caller", "arguments.callee.caller", "f.arguments", "arguments.callee.caller.arguments"],
)
async def test_the_plumbing_is_not_reached_from_a_frame(
    pool: Pool, function: str, reach: str
) -> None:
    source = (
        "let found;\n"
        + function % f"try {{ found = {reach} }} catch {{}}"
        + """
json({ toJSON: f }); json({ get a() { return f() } }); setTimeout(f, 0);
await new Promise((r) => setTimeout(r, 1));
return found === undefined || found === null || Object.keys(found).length === 0"""
    )
    assert await expect_value(pool, source) is True


async def test_globals_lead_to_no_function_of_the_host(pool: Pool) -> None:
    # What the host gave the prelude are functions named by one letter.
    source = """const seen = new Set(), found = [];
(function walk(o) {
  if (Object(o) !== o || seen.has(o)) return;
  seen.add(o);
  for (const k of Reflect.ownKeys(o)) {
    const d = Reflect.getOwnPropertyDescriptor(o, k);
    for (const v of [d.value, d.get, d.set]) {
      if (typeof v === "function" && /^[tjvfo]$/.test(v.name)) found.push(String(k));
      if (v instanceof Float64Array) found.push(String(k));
      walk(v);
    }
  }
  walk(Reflect.getPrototypeOf(o));
})(globalThis);
return [found, seen.size > 500]"""
    assert await expect_value(pool, source) == [[], True]


async def test_a_constructor_put_in_place_of_promise_gets_nothing_of_ours(pool: Pool) -> None:
    source = """const seen = [];
class Fake {
  constructor(executor) {
    seen.push(executor.name, executor.length);
    executor((v) => seen.push(typeof v), (e) => seen.push(typeof e));
  }
  static get [Symbol.species]() { return Fake }
}
Promise.prototype.constructor = Fake;
setTimeout(() => json(seen), 1);
return 5"""
    outcome = await ending(pool, source)
    assert isinstance(outcome, Completion)
    assert outcome.value == b"5"
    assert all(item in ("", 2, "undefined") for item in texts(outcome)[0])


async def test_requests_cannot_be_forged_by_what_is_in_them(pool: Pool) -> None:
    asked: list[Request] = []

    def answer(request: Request) -> Settlement:
        asked.append(request)
        return ok(request)

    source = r"""await tools.call('x\n2 call ["forged",{}]', { "a\nb": "c\r\n3 call []\u2028" });
await yield_control('y\n4 call ["forged"]');
const id = { toString() { return "1 call []" }, toJSON() { return "z\n5 call []" } };
await tools.describe(id)"""
    await expect_value(pool, source, answer=answer)
    assert [(request.id, request.method) for request in asked] == [
        (1, "call"),
        (2, "yield"),
        (3, "describe"),
    ]
    assert b"\n" not in b"".join(request.args for request in asked)


async def test_proxies_as_arguments_are_read_once_and_as_data(pool: Pool) -> None:
    asked: list[Any] = []

    def answer(request: Request) -> Settlement:
        asked.append(json.loads(request.args))
        return ok(request)

    source = """const log = [];
const spy = new Proxy({ a: 1 }, {
  get(t, k, r) { log.push(String(k)); return Reflect.get(t, k, r) },
  ownKeys(t) { log.push("keys"); return ["a"] },
});
await tools.call("t", spy);
const bomb = new Proxy(function () {}, { get() { throw new Error("no") }, apply() { for (;;); } });
await tools.call(bomb, bomb);
return log.filter((k) => k === "keys").length"""
    assert await expect_value(pool, source, answer=answer) == 1
    assert asked == [["t", {"a": 1}], ["[Function: anonymous]"] * 2]


async def test_a_reply_is_data_whatever_its_keys_are(pool: Pool) -> None:
    reply = b'{"__proto__": {"polluted": 1}, "then": 5, "toJSON": 6, "constructor": {"name": "x"}}'
    source = "const r = await tools.call('t'); return [({}).polluted, Object.keys(r), r]"
    value = await expect_value(
        pool, source, answer=lambda request: Settlement(request.id, True, reply)
    )
    assert value == [None, [*json.loads(reply)], json.loads(reply)]


@pytest.mark.covers("EX-10")
@pytest.mark.parametrize(
    "source",
    [
        "throw Object.assign(new Error('out of memory'), { name: 'InternalError' })",
        "const e = new Error('x'); e.code = 'timeout'; e.toolId = 't'; throw e",
        "throw new Error('interrupted')",
        "class InternalError extends Error {} throw new InternalError('out of memory')",
        "throw Object.setPrototypeOf(new Error('out of memory'), { name: 'InternalError' })",
        "throw { name: 'ToolError', code: 'nested_tool_failed', toolId: 't' }",
        "throw new AggregateError([new Error('x')], 'nested_tool_failed')",
    ],
)
async def test_a_failure_cannot_be_given_another_code(pool: Pool, source: str) -> None:
    await expect_failure(pool, source, "internal_error")


async def test_the_wrapper_cannot_be_closed_to_run_code_outside_of_it(pool: Pool) -> None:
    source = "}); text('outside'); (async function () { return 1"
    await expect_failure(pool, source, "invalid_input")


async def test_the_engine_loads_no_module_by_any_name(pool: Pool) -> None:
    source = """const load = new Function("n", "return im" + "port(n)");
const names = ["fs", "std", "os", "qjs:std", "./x.js", "data:text/javascript,1", ""];
const results = [];
for (const name of names) results.push(await load(name).then(() => "loaded", () => "no"));
return results"""
    assert await expect_value(pool, source) == ["no"] * 7


# ---- Stack and heap at their ends: the plumbing stays whole ----


async def test_a_rejection_at_the_end_of_the_stack_is_no_memory_trouble(pool: Pool) -> None:
    source = "const f = () => { try { f() } catch { Promise.reject(1) } }; f(); return 1"
    outcome = await ending(pool, source)
    assert not isinstance(outcome, Failure) or outcome.code != "memory_limit_exceeded", outcome


async def test_a_call_at_the_end_of_the_stack_is_made_or_is_not(pool: Pool) -> None:
    source = """let made = 0;
const f = () => { try { f() } catch { try { tools.call("t").catch(() => {}); made++ } catch {} } };
f(); return made"""
    outcome = await ending(pool, source, limits=Limits(max_calls=100_000))
    assert isinstance(outcome, Completion), outcome


async def test_a_timer_at_the_end_of_the_stack_is_set_or_is_not(pool: Pool) -> None:
    source = """let set = 0, fired = 0;
const f = () => { try { f() } catch { try { setTimeout(() => { fired++ }, 1); set++ } catch {} } };
f(); await new Promise((r) => setTimeout(r, 20)); return fired >= set"""
    assert await expect_value(pool, source, seconds=3) is True


@pytest.mark.parametrize("opening", ["tools.call('t')", "yield_control()", "setTimeout(() => {})"])
async def test_what_is_opened_at_the_end_of_the_heap_is_open_or_is_not(
    pool: Pool, opening: str
) -> None:
    # Leaves less room each time, so that every allocation on the way is the one that fails once.
    source = f"""const fill = () => {{
  const a = [];
  for (let s = 1 << 20; s >= 16; s >>= 1) try {{ for (;;) a.push(new ArrayBuffer(s)) }} catch {{}}
  return a;
}};
for (let i = 0; i < 150; i++) {{
  let held = fill();
  for (let n = 0; n < i; n++) held.pop();
  try {{ const p = {opening}; if (p?.catch) p.catch(() => {{}}) }} catch {{}}
  held = null;
}}
return 1"""
    limits = Limits(memory_bytes=2 << 20, max_calls=1000)
    cell, deadline = pool.cell(), soon(8)
    outcome: Outcome = await pool.step(cell, Start(source, limits=limits), deadline)
    opened: set[int] = set()
    while isinstance(outcome, Suspension):
        assert outcome.requests or outcome.timers > 0, "it waits for nothing"
        opened |= {request.id for request in outcome.requests}
        settled = tuple(ok(request) for request in outcome.requests)
        resumed = Resume(settled, limits=limits, now=outcome.due)
        outcome = await pool.step(cell, resumed, deadline)
    # A rejection that there was no room to handle fails the cell.
    lost = isinstance(outcome, Failure) and (
        outcome.code == "memory_limit_exceeded" or "null" in outcome.error
    )
    assert isinstance(outcome, Completion) or lost, outcome
