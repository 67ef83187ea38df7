"""Cells and workers that mean harm: each ends as promised, in time, and harms nobody else.

A cell that should end says with which code, or with which value if it only hurt itself. Every one
of them is followed by a small cell in the same pool, which has to be fine.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.sandbox.babbling_worker import ANSWERS
from tests.sandbox.stepping import finish, ok, texts, value_of

from clawmode.exceptions import (
    Aborted,
    DeadlineExceeded,
    ErrorCode,
    RuntimeUnavailable,
    SandboxError,
)
from clawmode.sandbox import artifacts
from clawmode.sandbox import process as process_module
from clawmode.sandbox.pool import Cell, Pool
from clawmode.sandbox.process import WorkerProcess
from clawmode.sandbox.protocol import (
    Done,
    Failed,
    Limits,
    Outcome,
    Request,
    Resume,
    Settled,
    Start,
    Suspended,
)

pytestmark = pytest.mark.anyio

SLACK = 0.5
"""What a cell may take beyond its deadline."""

LOOP = "for (;;);"
ASK = "let n = 41; const r = await tools.call('t'); return n + r"
BIG = """const held = []; for (let i = 0; i < 300000; i++) held.push({ i });
const r = await tools.call("t"); return held.length + r"""
"""A cell that takes some tenths of a second to freeze."""


@pytest.fixture
async def single() -> AsyncIterator[Pool]:
    async with Pool(size=1, max_size=1) as opened:
        await value_of(opened, "return 1")
        yield opened


def soon(seconds: float = 10) -> float:
    return time.monotonic() + seconds


async def ending(pool: Pool, source: str, *, seconds: float = 1, **options: Any) -> Done | Failed:
    """How a cell ends; and it does so in time, and the next cell is fine."""
    await settled(pool)
    began = time.monotonic()
    with anyio.fail_after(seconds + 5):
        outcome = await finish(pool, source, seconds=seconds, **options)
    assert time.monotonic() - began < seconds + SLACK
    assert await value_of(pool, "return [1, 2].map((x) => x * 2)") == [2, 4]
    return outcome


async def expect_failure(
    pool: Pool, source: str, code: ErrorCode, *, seconds: float = 0.5, **options: Any
) -> Failed:
    outcome = await ending(pool, source, seconds=seconds, **options)
    assert isinstance(outcome, Failed), outcome
    assert (outcome.code, outcome.crashed) == (code, False), outcome
    return outcome


async def expect_value(pool: Pool, source: str, **options: Any) -> Any:
    outcome = await ending(pool, source, **options)
    assert isinstance(outcome, Done), outcome
    return json.loads(outcome.value)


async def suspend(pool: Pool, source: str = ASK) -> Cell:
    """A cell that waits for one call."""
    cell = pool.cell()
    outcome = await pool.step(cell, Start(source), soon())
    assert isinstance(outcome, Suspended), outcome
    return cell


async def resume(pool: Pool, cell: Cell, seconds: float = 10) -> Any:
    outcome = await pool.step(cell, Resume((Settled(1, True, b"1"),)), soon(seconds))
    assert isinstance(outcome, Done), outcome
    return json.loads(outcome.value)


async def raised_by(step: Awaitable[object]) -> SandboxError | None:
    try:
        await step
    except SandboxError as error:
        return error
    return None


def only_worker(pool: Pool) -> WorkerProcess:
    (worker,) = pool._workers
    return worker


def owner(pool: Pool, cell: Cell) -> WorkerProcess:
    return next(worker for worker, holds in pool._workers.items() if holds is cell)


async def settled(pool: Pool) -> None:
    """Waits for workers that start, so that they take no time from the cell under test."""
    await until(lambda: all(worker.booted.done() for worker in pool._workers))


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await anyio.sleep(0.002)


async def computing(pool: Pool, cell: Cell) -> None:
    """Waits until a cell's worker has been asked."""
    await until(lambda: any(c is cell and w._asking for w, c in pool._workers.items()))


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
    "toJSON without end": "const o = () => ({ toJSON: () => [o(), o(), o()] }); return o()",
    "thenable": "const t = { then(r) { r(t) } }; return t",
    "name of an error": "throw Object.defineProperty(new Error, 'name', { get() { for (;;); } })",
    "reason of a rejection": "Promise.reject(new Proxy({}, { get() { for (;;); } }))",
    "species": "Object.defineProperty(Promise.prototype, 'constructor', { get() { for (;;); } })",
    "huge JSON": "const a = Array(1e5).fill('x'.repeat(50)); for (;;) JSON.stringify(a)",
    "huge array as value": "return Array(2 ** 31)",
    "length without end": "json(new Proxy([], { get: (t, k) => k === 'length' ? Infinity : 1 }))",
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


@pytest.mark.covers("EX-11", "IN-3")
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
    assert isinstance(outcome, Failed)
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
    began = time.monotonic()
    outcome = await expect_failure(pool, source, "internal_error", seconds=10)
    assert "nothing can settle" in outcome.error
    assert time.monotonic() - began < 2


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


@pytest.mark.covers("EX-12", "IN-6")
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
    ],
)
async def test_a_flood_of_output_ends_at_its_cap(pool: Pool, source: str) -> None:
    outcome = await expect_failure(pool, source, "output_limit_exceeded", seconds=5)
    size = sum(len(item.body) for item in outcome.output)
    assert size <= 65536
    assert size > 40000 or len(outcome.output) > 2000


@pytest.mark.covers("EX-4", "ER-too_many_pending_tool_calls")
@pytest.mark.parametrize(
    "source",
    [
        "for (let i = 0; i < 20000; i++) tools.call('t', { i })",
        "for (let i = 0; i < 20000; i++) tools.search('t')",
        "for (let i = 0; i < 20000; i++) yield_control()",
        "for (let i = 0; i < 20000; i++) try { tools.call('t') } catch {}\nreturn 1",
        "const all = []; for (let i = 0; i < 20000; i++) all.push(tools.call('t').catch(() => 0))\n"
        "await Promise.race(all)",
    ],
)
async def test_a_flood_of_requests_fails_the_cell(pool: Pool, source: str) -> None:
    await expect_failure(pool, source, "too_many_pending_tool_calls", seconds=3)


# ---- Values ----


@pytest.mark.covers("OU-2")
@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("return { get a() { throw new Error('no') } }", {"a": "[Getter threw: no]"}),
        ("return { toJSON() { throw new Error('no') } }", "[Not serializable: no]"),
        ("const o = { toJSON: () => o }; return o", {"toJSON": "[Function: toJSON]"}),
        ("const o = () => ({ toJSON: o }); return o()", "[Nested too deeply]"),
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

    def answer(request: Request) -> Settled:
        asked.append(json.loads(request.args))
        return Settled(request.id, True, b'["\\u0000", "\\ud800", {"\\udc00": 1}]')

    source = r"""const r = await tools.call("a\0\ud800", { "\0": "\udc00" });
text(r[1]); throw new Error(r[0] + r[1])"""
    outcome = await ending(pool, source, answer=answer)
    assert isinstance(outcome, Failed)
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
        assert isinstance(outcome, Done) or outcome.code in (
            "invalid_input",
            "typescript_transform_failed",
        ), outcome
    assert only_worker(single) is worker


@pytest.mark.covers("EX-12")
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
    assert isinstance(outcome, Done), outcome
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
    await finish(single, source, seconds=1)
    frozen = await single.freeze(await suspend(single))
    assert only_worker(single) is worker
    # The next cell's memory is its difference to the image, which no cell can have touched.
    assert SECRET.encode() not in process_memory(frozen.pages)


def process_memory(pages: bytes) -> bytes:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.decompress(pages)


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
    assert isinstance(outcome, Done)
    assert outcome.value == b"5"
    assert all(item in ("", 2, "undefined") for item in texts(outcome)[0])


async def test_requests_cannot_be_forged_by_what_is_in_them(pool: Pool) -> None:
    asked: list[Request] = []

    def answer(request: Request) -> Settled:
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

    def answer(request: Request) -> Settled:
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
        pool, source, answer=lambda request: Settled(request.id, True, reply)
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
    assert not isinstance(outcome, Failed) or outcome.code != "memory_limit_exceeded", outcome


async def test_a_call_at_the_end_of_the_stack_is_made_or_is_not(pool: Pool) -> None:
    source = """let made = 0;
const f = () => { try { f() } catch { try { tools.call("t").catch(() => {}); made++ } catch {} } };
f(); return made"""
    outcome = await ending(pool, source, limits=Limits(max_calls=100_000))
    assert isinstance(outcome, Done), outcome


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
    while isinstance(outcome, Suspended):
        assert outcome.requests or outcome.timers > 0, "it waits for nothing"
        opened |= {request.id for request in outcome.requests}
        settled = tuple(ok(request) for request in outcome.requests)
        resumed = Resume(settled, limits=limits, now=outcome.due)
        outcome = await pool.step(cell, resumed, deadline)
    # A rejection that there was no room to handle fails the cell.
    assert isinstance(outcome, Done) or "null" in outcome.error, outcome


# ---- Cells beside each other ----


@pytest.mark.covers("EX-14")
async def test_two_cells_draw_different_random_numbers(pool: Pool) -> None:
    source = "return [Math.random(), Math.random()]"
    drawn = [number for _ in range(4) for number in await value_of(pool, source)]
    assert len(set(drawn)) == 8


async def test_images_built_in_three_processes_are_identical() -> None:
    async with Pool(size=3) as pool:
        await until(lambda: all(worker.booted.done() for worker in pool._workers))
        images = {worker.booted.result() for worker in pool._workers}
        assert len({worker.pid for worker in pool._workers}) == 3
        assert len(images) == 1


@pytest.mark.covers("CM-V17")
async def test_one_more_endless_loop_than_workers_does_not_stop_a_small_cell() -> None:
    async with Pool(size=2) as pool, anyio.create_task_group() as group:
        await value_of(pool, "return 1")
        ended: list[str] = []

        async def hog() -> None:
            await finish(pool, LOOP, seconds=3)
            ended.append("hog")

        for _ in range(pool.size + 1):
            group.start_soon(hog)
        await anyio.sleep(0.05)
        assert await value_of(pool, "return 5") == 5
        assert ended == []
        group.cancel_scope.cancel()


@pytest.mark.covers("ER-aborted")
@pytest.mark.parametrize(
    "source", [LOOP, "for (;;) await 0", "/(a+)+$/.test('a'.repeat(40) + '!')"]
)
async def test_an_abort_stops_a_cell_at_once(single: Pool, source: str) -> None:
    cell, took = single.cell(), 0.0
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            nonlocal took
            await computing(single, cell)
            await anyio.sleep(0.05)
            began = time.monotonic()
            await single.abort(cell)
            took = time.monotonic() - began

        group.start_soon(stop)
        try:
            outcome = await single.step(cell, Start(source), soon())
            assert isinstance(outcome, Failed)
            assert outcome.code == "aborted"
        except Aborted:
            pass
    assert took < 0.1
    assert await value_of(single, "return 1") == 1


async def test_a_warm_cell_is_evicted_and_goes_on_where_it_was(single: Pool) -> None:
    first = await suspend(single)
    second = await suspend(single)
    await expect_failure(single, LOOP, "timeout", seconds=0.2)
    assert await resume(single, first) == 42
    assert await resume(single, second) == 42


@pytest.mark.covers("IN-6")
async def test_an_evicted_cell_fails_with_its_own_lines_and_as_itself(single: Pool) -> None:
    cell = single.cell()
    typescript = "enum E { A }\n\n\nconst r = await tools.call('t');\nnull.boom"
    await single.step(cell, Start(typescript, "typescript"), soon())
    await finish(single, "git status")
    outcome = await single.step(cell, Resume((Settled(1, True, b"1"),)), soon())
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("TypeError")
    assert "cell:5:" in outcome.error


async def test_a_shell_command_of_another_is_not_taken_for_this_cell(single: Pool) -> None:
    cell = await suspend(single, "await tools.call('t'); return missing")
    await finish(single, "git status")
    outcome = await single.step(cell, Resume((Settled(1, True, b"1"),)), soon())
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("ReferenceError: missing")


# ---- Workers that die, stop or hang ----


@pytest.mark.covers("WK-1", "ER-runtime_unavailable")
async def test_a_worker_killed_in_the_middle_costs_one_cell(pool: Pool) -> None:
    other = await suspend(pool)
    cell = pool.cell()
    async with anyio.create_task_group() as group:

        async def kill() -> None:
            await computing(pool, cell)
            owner(pool, cell).signal(signal.SIGKILL)

        group.start_soon(kill)
        with pytest.raises(RuntimeUnavailable, match="died"):
            await pool.step(cell, Start(LOOP), soon())
    assert await resume(pool, other) == 42
    assert await value_of(pool, "return 1") == 1


@pytest.mark.covers("WK-1")
async def test_a_stopped_worker_costs_its_cell_and_no_more_time_than_it_has(pool: Pool) -> None:
    cell = pool.cell()
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await computing(pool, cell)
            owner(pool, cell).signal(signal.SIGSTOP)

        group.start_soon(stop)
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            await pool.step(cell, Start(LOOP), soon(0.4))
        assert time.monotonic() - began < 0.4 + SLACK
    assert await value_of(pool, "return 1") == 1


@pytest.mark.covers("WK-1")
async def test_a_stopped_worker_can_be_aborted(single: Pool) -> None:
    cell = single.cell()
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await computing(single, cell)
            owner(single, cell).signal(signal.SIGSTOP)
            began = time.monotonic()
            await single.abort(cell)
            assert time.monotonic() - began < 0.1

        group.start_soon(stop)
        with pytest.raises(Aborted):
            await single.step(cell, Start(LOOP), soon())
    assert await value_of(single, "return 1") == 1


async def test_a_stopped_worker_that_holds_another_cell_takes_no_more_than_the_deadline(
    single: Pool,
) -> None:
    await suspend(single)
    only_worker(single).signal(signal.SIGSTOP)
    with anyio.move_on_after(0.4 + SLACK) as limit:
        await raised_by(single.step(single.cell(), Start("return 1"), soon(0.4)))
    assert not limit.cancelled_caught


async def test_a_stopped_worker_that_lacks_a_part_takes_no_more_than_the_deadline(
    single: Pool,
) -> None:
    only_worker(single).signal(signal.SIGSTOP)
    with anyio.move_on_after(0.4 + SLACK) as limit:
        start = Start("return 1", "typescript")
        assert await raised_by(single.step(single.cell(), start, soon(0.4)))
    assert not limit.cancelled_caught


async def test_idle_workers_that_all_died_are_replaced_unnoticed() -> None:
    async with Pool(size=4, max_size=4) as pool:
        await until(lambda: all(worker.booted.done() for worker in pool._workers))
        for worker in pool._workers:
            worker.signal(signal.SIGKILL)
        await until(lambda: not any(worker.alive for worker in pool._workers))
        assert await value_of(pool, "return 1") == 1


async def test_a_worker_that_dies_makes_room_for_a_cell_that_queues() -> None:
    async with Pool(size=1, max_size=2) as pool, anyio.create_task_group() as group:
        await value_of(pool, "return 1")
        hogs = [pool.cell(), pool.cell()]
        for hog in hogs:
            group.start_soon(raised_by, pool.step(hog, Start(LOOP), soon(8)))
            await computing(pool, hog)
        group.start_soon(lambda: until(lambda: bool(pool._queue)))
        with anyio.move_on_after(3) as limit:
            async with anyio.create_task_group() as inner:
                inner.start_soon(value_of, pool, "return 1")
                await until(lambda: bool(pool._queue))
                await anyio.sleep(0.1)
                owner(pool, hogs[0]).signal(signal.SIGKILL)
        group.cancel_scope.cancel()
        assert not limit.cancelled_caught


async def test_a_worker_killed_while_it_boots_does_not_cost_the_machine_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAWMODE_CACHE_DIR", str(tmp_path))
    artifacts.load("quickjs")
    (before,) = (entry.stat().st_mtime_ns for entry in os.scandir(tmp_path))
    async with Pool(size=1, max_size=1) as pool:
        worker = only_worker(pool)
        worker.signal(signal.SIGKILL)
        await until(worker.booted.done)
        assert await value_of(pool, "return 1") == 1
    assert [entry.stat().st_mtime_ns for entry in os.scandir(tmp_path)] == [before]


async def test_a_large_catalog_fits_after_a_cell_with_little_memory(single: Pool) -> None:
    tools = [{"id": f"t{number}", "description": "x" * 1000} for number in range(10_000)]
    setup = json.dumps({"tools": tools, "names": {}, "namespaces": []}).encode()
    start = Start("return ALL_TOOLS.length", setup=b"key")
    for _ in range(2):
        outcome = await single.step(single.cell(), start, soon(), setup)
        assert isinstance(outcome, Done), outcome
        assert outcome.value == b"10000"
        assert await value_of(single, "return 1", limits=Limits(memory_bytes=1 << 20)) == 1


async def test_a_vm_that_was_given_up_is_given_back(single: Pool) -> None:
    def resident() -> int:
        statm = Path(f"/proc/{only_worker(single).pid}/statm").read_text("ascii")
        return int(statm.split()[1]) * os.sysconf("SC_PAGESIZE")

    before = resident()
    hold = "globalThis.a = new Uint8Array(5e7).fill(1); "
    await expect_failure(single, hold + "text('x'.repeat(1e6))", "output_limit_exceeded", seconds=3)
    assert resident() < before + (20 << 20)
    await expect_failure(single, hold + LOOP, "timeout")
    assert resident() < before + (20 << 20)


async def test_failures_of_the_sandbox_do_not_fill_a_pipe(single: Pool) -> None:
    source = "throw Object.assign(new Error('m'), { stack: 'at cell:' + '1'.repeat(5000) + ':1' })"
    for _ in range(700):
        outcome = await finish(single, source, seconds=2)
        assert isinstance(outcome, Failed)


# ---- Workers that lie ----

NONSENSE = [mode for mode in ANSWERS if mode not in ("nothing", "text")]


def babbling(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next worker to be started lies; those after it are real."""
    real, left = artifacts.python_command, [mode]

    def command(module: str, *arguments: str) -> list[str]:
        if module != "worker" or not left:
            return real(module, *arguments)
        program = f"import sys; sys.path[:] = {sys.path!r}; "
        program += f"from tests.sandbox.babbling_worker import main; main({left.pop()!r})"
        return [sys.executable, "-I", "-S", "-c", program]

    monkeypatch.setattr(artifacts, "python_command", command)


@pytest.fixture
async def liar_and_honest(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Pool]:
    babbling(request.param, monkeypatch)
    async with Pool(size=1, max_size=2) as opened:
        await until(only_worker(opened).booted.done)
        yield opened


@pytest.mark.covers("WK-1", "ER-runtime_unavailable")
@pytest.mark.parametrize("liar_and_honest", NONSENSE, indirect=True)
async def test_nonsense_from_a_worker_kills_it_and_fails_its_cell_alone(
    liar_and_honest: Pool,
) -> None:
    pool = liar_and_honest
    liar = only_worker(pool)
    began = time.monotonic()
    with pytest.raises(RuntimeUnavailable):
        await pool.step(pool.cell(), Start("return 1"), soon(5))
    assert time.monotonic() - began < 2
    assert not liar.alive
    assert await value_of(pool, "return 1") == 1


@pytest.mark.covers("WK-1")
@pytest.mark.parametrize("liar_and_honest", ["nothing", "text"], indirect=True)
async def test_a_worker_that_does_not_finish_its_answer_is_killed_at_the_deadline(
    liar_and_honest: Pool,
) -> None:
    pool = liar_and_honest
    began = time.monotonic()
    with pytest.raises((DeadlineExceeded, RuntimeUnavailable)):
        await pool.step(pool.cell(), Start("return 1"), soon(0.3))
    assert time.monotonic() - began < 0.3 + SLACK
    assert await value_of(pool, "return 1") == 1


@pytest.mark.parametrize("liar_and_honest", ["the end of its pipe"], indirect=True)
async def test_a_worker_that_only_closes_its_pipe_does_not_block_the_loop(
    liar_and_honest: Pool,
) -> None:
    blocked = 0.0

    async def beat() -> None:
        nonlocal blocked
        while True:
            began = time.monotonic()
            await anyio.sleep(0.005)
            blocked = max(blocked, time.monotonic() - began)

    async with anyio.create_task_group() as group:
        group.start_soon(beat)
        await raised_by(liar_and_honest.step(liar_and_honest.cell(), Start("return 1"), soon(5)))
        await anyio.sleep(0.02)
        group.cancel_scope.cancel()
    assert blocked < 0.2


async def test_a_worker_that_hangs_while_it_boots_is_given_up_after_one_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    babbling("no boot", monkeypatch)
    monkeypatch.setattr(process_module, "BOOT_SECONDS", 1.0)
    async with Pool(size=1, max_size=1) as pool:
        with pytest.raises(DeadlineExceeded):
            await pool.step(pool.cell(), Start("return 1"), soon(0.3))
        assert await value_of(pool, "return 1", seconds=4) == 1


async def test_a_machine_out_of_descriptors_is_runtime_unavailable(
    single: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_pipe() -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    only_worker(single).signal(signal.SIGKILL)
    await until(lambda: not only_worker(single).alive)
    with monkeypatch.context() as patch:
        patch.setattr(process_module.os, "pipe", no_pipe)
        with pytest.raises(RuntimeUnavailable):
            await single.step(single.cell(), Start("return 1"), soon())
    assert await value_of(single, "return 1") == 1


# ---- Cancelling and aborting at any moment ----


async def test_cancelling_a_cell_that_waits_for_an_eviction_does_not_cost_the_evicted(
    single: Pool,
) -> None:
    warm = await suspend(single, BIG)
    with anyio.move_on_after(0.02):
        await single.step(single.cell(), Start("return 1"), soon())
    assert await resume(single, warm) == 300001


async def test_a_cell_that_is_claimed_twice_while_it_waits_is_not_lost(single: Pool) -> None:
    warm, results = await suspend(single, BIG), []
    async with anyio.create_task_group() as group:

        async def wait_for_eviction() -> None:
            results.append(await resume(single, warm))

        with anyio.CancelScope() as first:
            async with anyio.create_task_group() as claims:
                claims.start_soon(single.step, single.cell(), Start("return 1"), soon())
                await until(lambda: warm.moving is not None)
                group.start_soon(finish, single, "return 2")
                await until(lambda: bool(single._queue))
                group.start_soon(wait_for_eviction)
                await anyio.sleep(0.01)
                first.cancel()
    assert results == [300001]


async def test_aborting_a_cell_that_is_evicted_does_not_abort_the_one_that_evicts(
    single: Pool,
) -> None:
    warm = await suspend(single, BIG)
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await until(lambda: warm.moving is not None)
            await anyio.sleep(0.01)
            await single.abort(warm)

        group.start_soon(stop)
        assert await value_of(single, "return 1") == 1


async def test_aborting_a_cell_that_queues_ends_it_at_once(single: Pool) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(finish, single, LOOP)
        await until(lambda: only_worker(single)._asking)
        cell, ended = single.cell(), 0.0

        async def queue() -> None:
            nonlocal ended
            assert isinstance(
                await raised_by(single.step(cell, Start("return 1"), soon())), Aborted
            )
            ended = time.monotonic()

        group.start_soon(queue)
        await until(lambda: bool(single._queue))
        began = time.monotonic()
        await single.abort(cell)
        await anyio.sleep(0.1)
        group.cancel_scope.cancel()
    assert 0 < ended - began < 0.1


async def test_aborting_a_cell_whose_worker_boots_ends_it_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    babbling("no boot", monkeypatch)
    async with Pool(size=1, max_size=1) as pool, anyio.create_task_group() as group:
        cell, ended = pool.cell(), 0.0

        async def boot() -> None:
            nonlocal ended
            assert isinstance(await raised_by(pool.step(cell, Start("return 1"), soon())), Aborted)
            ended = time.monotonic()

        group.start_soon(boot)
        await anyio.sleep(0.05)
        began = time.monotonic()
        await pool.abort(cell)
        await anyio.sleep(0.1)
        group.cancel_scope.cancel()
    assert 0 < ended - began < 0.1


async def test_an_abort_while_a_part_is_fetched_is_not_lost(
    single: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetching, go_on, real = threading.Event(), threading.Event(), artifacts.load

    def slow(part: Any) -> bytes:
        fetching.set()
        go_on.wait(5)
        return real(part)

    monkeypatch.setattr(artifacts, "load", slow)
    cell, began = single.cell(), time.monotonic()
    outcome: Outcome | None = None
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await until(fetching.is_set)
            await single.abort(cell)
            go_on.set()

        group.start_soon(stop)
        try:
            outcome = await single.step(cell, Start(LOOP, "typescript"), soon(2))
        except Aborted:
            pass
    assert outcome is None or (isinstance(outcome, Failed) and outcome.code == "aborted")
    assert time.monotonic() - began < 1.5


async def test_closing_the_pool_ends_what_queues_and_what_computes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = WorkerProcess.kill

    def kill_and_wait(self: WorkerProcess) -> None:
        real(self)
        time.sleep(0.03)  # so that it is dead before the loop hears of it

    monkeypatch.setattr(WorkerProcess, "kill", kill_and_wait)
    ended: list[str] = []
    pool = Pool(size=2, max_size=2)
    async with pool:
        await value_of(pool, "return 1")
        async with anyio.create_task_group() as group:

            async def one(name: str, source: str) -> None:
                error = await raised_by(pool.step(pool.cell(), Start(source), soon(8)))
                ended.append(name if isinstance(error, RuntimeUnavailable) else repr(error))

            for name in ("computes", "computes"):
                group.start_soon(one, name, LOOP)
            await until(lambda: all(worker._asking for worker in pool._workers))
            group.start_soon(one, "queues", "return 1")
            await until(lambda: bool(pool._queue))
            await pool.aclose()
            await anyio.sleep(0.2)
            group.cancel_scope.cancel()
    alive = [worker for worker in pool._workers if worker.alive]
    for worker in alive:
        worker.kill()
    assert Counter(ended) == Counter(["computes", "computes", "queues"])
    assert not alive


async def test_a_killed_worker_does_not_stay_a_zombie(single: Pool) -> None:
    worker = only_worker(single)
    with anyio.move_on_after(0.1):
        await single.step(single.cell(), Start(LOOP), soon())
    for _ in range(3):
        assert await value_of(single, "return 1") == 1
    assert str(worker.pid) not in os.listdir("/proc")


MIXED = [
    ("return 1 + 1", 1.0),
    (LOOP, 0.2),
    (ASK, 2.0),
    ("let s = 0; for (let i = 0; i < 5; i++) s += await tools.call('t'); return s", 2.0),
    ("const a = Array(3e4).fill({}); await tools.call('t'); return a.length", 2.0),
    ("throw 1", 1.0),
    ("return new ArrayBuffer(1e9)", 1.0),
    ("text('x'.repeat(1e6))", 1.0),
    ("await new Promise((r) => setTimeout(r, 20)); return 3", 1.0),
    ("return typeof require", 2.0),
]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def no_leaks() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() <= before + 1


async def one_of_many(pool: Pool, dice: random.Random, seen: Counter[str]) -> None:
    source, seconds = dice.choice(MIXED)
    way = dice.choice(["run", "run", "run", "cancel", "abort", "freeze"])
    cell, deadline, waits = pool.cell(), soon(seconds), [dice.random() / 40 for _ in range(8)]

    async def drive() -> None:
        outcome: Outcome = await pool.step(cell, Start(source), deadline)
        while isinstance(outcome, Suspended):
            await anyio.sleep(waits.pop())
            if way == "freeze":
                await pool.freeze(cell)
            settled = tuple(Settled(request.id, True, b"1") for request in outcome.requests)
            outcome = await pool.step(cell, Resume(settled, now=outcome.due + 1e3), deadline)
        seen[outcome.code if isinstance(outcome, Failed) else outcome.kind] += 1

    async def guarded() -> None:
        error = await raised_by(drive())
        if error is not None:
            seen[error.code if error.code != "aborted" or way == "abort" else "innocent"] += 1

    began = time.monotonic()
    if way == "cancel":
        with anyio.move_on_after(dice.random() / 4):
            await guarded()
    elif way == "abort":
        async with anyio.create_task_group() as group:
            group.start_soon(guarded)
            await anyio.sleep(dice.random() / 4)
            await pool.abort(cell)
    else:
        await guarded()
    pool.drop(cell)
    assert time.monotonic() - began < seconds + 1


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_crowd_of_cells_cancelled_and_aborted_at_random_loses_no_worker(
    seed: int, no_leaks: None
) -> None:
    dice, seen = random.Random(seed), Counter[str]()
    async with Pool(size=2, max_size=4) as pool:
        await value_of(pool, "return 1")
        async with anyio.create_task_group() as group:
            for _ in range(120):
                group.start_soon(one_of_many, pool, dice, seen)
                await anyio.sleep(0.01)
        assert seen["done"] > 10
        assert seen["innocent"] == 0
        assert seen["runtime_unavailable"] == 0
        assert not pool._queue
        assert set(pool._idle) == set(pool._workers)
        assert not any(pool._workers.values())
        assert await value_of(pool, "return 1") == 1
