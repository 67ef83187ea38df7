"""A cell at work: requests and replies, timers, failures, and what survives them."""

import json
import time

import pytest
from tests.support.sandbox_driver import patience
from tests.support.stepping import error, failure_of, finish, ok, texts, value_of
from tests.support.waiting import undisturbed_time

from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import (
    Completion,
    Failure,
    FrozenCell,
    Limits,
    Request,
    Resume,
    Settlement,
    Start,
    Suspension,
)

pytestmark = pytest.mark.anyio


async def step(pool: Pool, source: str) -> Suspension:
    cell = pool.cell()
    outcome = await pool.step(cell, Start(source), time.monotonic() + 10)
    pool.drop(cell)  # else it would stay in a worker of all other tests
    assert isinstance(outcome, Suspension), outcome
    return outcome


# ---- Requests and replies ----


async def test_a_call_carries_its_arguments_and_resolves_to_its_value(pool: Pool) -> None:
    asked: list[Request] = []

    def answer(request: Request) -> Settlement:
        asked.append(request)
        return ok(request, {"rows": [1, 2]})

    source = 'return (await tools.call("db:query", { sql: "x", skip: undefined })).rows'
    assert await value_of(pool, source, answer=answer) == [1, 2]
    assert asked == [Request(1, "call", b'["db:query",{"sql":"x"}]')]


async def test_the_whole_batch_is_handed_over_at_idle(pool: Pool) -> None:
    source = """const a = tools.call("a");
const b = tools.search("b", { limit: 2 }), c = tools.describe("c");
text("before");
return await Promise.all([a, b, c])"""
    idle = await step(pool, source)
    assert [(request.method, json.loads(request.args)) for request in idle.requests] == [
        ("call", ["a", {}]),
        ("search", ["b", {"limit": 2}]),
        ("describe", ["c"]),
    ]
    assert [item.body for item in idle.output] == [b'"before"']


@pytest.mark.covers("EX-5")
async def test_replies_are_delivered_in_the_order_in_which_they_settled(pool: Pool) -> None:
    cell, deadline = pool.cell(), time.monotonic() + 10
    source = """const order = [];
const calls = [1, 2, 3].map((n) => tools.call("t", { n }).then((v) => order.push(v)));
const first = await Promise.race([tools.call("slow"), tools.call("fast")]);
await Promise.all(calls);
return { first, order }"""
    idle = await pool.step(cell, Start(source), deadline)
    assert isinstance(idle, Suspension)
    one, two, three, slow, fast = idle.requests
    settled = (ok(three, 3), ok(fast, "fast"), ok(one, 1), ok(slow, "slow"), ok(two, 2))
    outcome = await pool.step(cell, Resume(settled), deadline)
    assert isinstance(outcome, Completion)
    assert json.loads(outcome.value) == {"first": "fast", "order": [3, 1, 2]}


@pytest.mark.covers("EX-6")
async def test_a_call_that_nobody_awaits_holds_completion(pool: Pool) -> None:
    cell, deadline = pool.cell(), time.monotonic() + 10
    idle = await pool.step(cell, Start('void tools.call("log"); return 1'), deadline)
    assert isinstance(idle, Suspension)
    outcome = await pool.step(cell, Resume((ok(idle.requests[0]),)), deadline)
    assert outcome == Completion(b"1")


@pytest.mark.covers("EX-8")
async def test_a_failed_call_is_a_plain_catchable_error(pool: Pool) -> None:
    source = """try { await tools.call("t") } catch (e) {
  return [e instanceof Error, e.name, e.message, e.code, e.toolId, Object.keys(e)] }"""
    value = await value_of(pool, source, answer=lambda r: error(r, "broke", code="denied"))
    assert value == [True, "ToolError", "broke", "denied", "test:tool", ["code", "toolId"]]


@pytest.mark.covers("B-20", "IN-7")
async def test_a_failed_call_says_where_it_was_made(pool: Pool) -> None:
    source = """const ask = async (name) => {
  return await tools.call(name);
};
await Promise.all(["a", "b"].map((name) => tools.call(name).catch((e) => text(e.stack))));
await ask("c");"""
    failed = await failure_of(pool, source, answer=error)
    assert failed.code == "nested_tool_failed"
    headline, shown, mark, *frames = failed.error.splitlines()
    assert headline == "ToolError: it failed (tool test:tool) (line 2, column 27)"
    assert (shown, mark.index("^")) == ("      return await tools.call(name);", 30)
    assert [frame.rpartition(":")[0] for frame in frames] == [
        "    at ask (cell:2",
        "    at cell (cell:5",
    ]
    for stack in texts(failed):
        assert "(cell:4:" in stack
        assert "prelude" not in stack


@pytest.mark.covers("B-20", "AK-3")
async def test_an_error_that_wraps_a_failed_call_also_says_why_the_call_failed(pool: Pool) -> None:
    source = """try { await tools.call("t") }
catch (cause) { throw new Error("no price", { cause }) }"""
    failed = await failure_of(pool, source, answer=lambda r: error(r, "it broke"))
    assert failed.error.startswith(
        "Error: no price (caused by ToolError: it broke) (tool test:tool) (line 2, column "
    )
    # A position that the program has made up is not looked for in the source.
    for stack in ("'x'", "'    at f (cell:99:9999)'", "'    at f (cell:0:0)'", "{}"):
        lying = f"try {{ await tools.call('t') }} catch (e) {{ e.stack = {stack}; throw e }}"
        failed = await failure_of(pool, lying, answer=lambda r: error(r, "it broke"))
        assert failed.error.splitlines()[0] == "ToolError: it broke (tool test:tool)"


@pytest.mark.covers("B-20")
@pytest.mark.parametrize(
    "poison",
    [
        "Object.defineProperty(Error.prototype, 'stack', { get() { throw 1 } })",
        "Object.defineProperty(Error.prototype, 'stack', { value: { length: 1e9 } })",
        "Error.stackTraceLimit = 0",
        "Error.stackTraceLimit = { valueOf() { throw 2 } }",
        "String.prototype.indexOf = String.prototype.slice = () => { throw 3 }",
    ],
)
async def test_a_program_that_replaces_stacks_hurts_only_itself(pool: Pool, poison: str) -> None:
    source = f"""try {{ {poison} }} catch {{}}
try {{ await tools.call('t') }} catch (e) {{ return e.code }}"""
    assert await value_of(pool, source, answer=lambda r: error(r, code="denied")) == "denied"


@pytest.mark.covers("B-20", "TR-5")
@pytest.mark.parametrize(
    ("thrown", "text"),
    [
        (
            "await Promise.any([tools.call('a'), tools.call('b')])",
            "2 errors: ToolError: no; ToolError: no",
        ),
        ("throw new AggregateError([new Error('x'), 7], 'why')", "why: Error: x; Error: 7"),
        (
            "throw new AggregateError(Array(9).fill('x'))",
            "9 errors: Error: x; Error: x; Error: x; Error: x; Error: x; and 4 more",
        ),
        ("throw new AggregateError([], 'none')", "none"),
        ("throw Object.assign(new AggregateError([]), { errors: { length: 3 } })", ""),
        (
            "const e = new AggregateError([], 'm'); "
            "throw Object.defineProperty(e, 'errors', { get() { throw 1 } })",
            "m",
        ),
    ],
)
async def test_an_aggregate_error_names_its_reasons(pool: Pool, thrown: str, text: str) -> None:
    failed = await failure_of(pool, thrown, answer=lambda r: error(r, "no"))
    headline = failed.error.splitlines()[0].partition(" (tool test:tool)")[0]
    assert headline == ("AggregateError: " + text if text else "AggregateError")


@pytest.mark.covers("EX-8", "ER-nested_tool_failed")
@pytest.mark.parametrize(
    "source",
    [
        'await tools.call("t")',
        'const p = tools.call("t"); await p.finally(() => {})',
        'try { await tools.call("t") } catch (e) { throw new Error("wrapped", { cause: e }) }',
        'await Promise.any([tools.call("t"), tools.call("t")])',
        'tools.call("t"); return 1',
    ],
)
async def test_an_uncaught_failed_call_names_the_tool(pool: Pool, source: str) -> None:
    failed = await failure_of(pool, source, answer=error)
    assert failed.code == "nested_tool_failed"
    assert "test:tool" in failed.error


async def test_an_error_made_to_look_like_a_failed_call_is_not_one(pool: Pool) -> None:
    source = 'throw Object.assign(new Error("x"), { name: "ToolError", toolId: "test:tool" })'
    assert (await failure_of(pool, source)).code == "internal_error"


@pytest.mark.covers("WA-5", "B-20", "EX-8")
@pytest.mark.parametrize(
    ("data", "fits"),
    [
        ('"x".repeat(1048577)', False),
        ('"x".repeat(1048500)', True),
        ('"é".repeat(524288)', False),
        ('"é".repeat(524250)', True),
        ('"日".repeat(349526)', False),
        ('"😀".repeat(262144)', False),
        ('"😀".repeat(262100)', True),
    ],
)
async def test_arguments_over_a_mebibyte_are_a_catchable_error(
    pool: Pool, data: str, fits: bool
) -> None:
    source = f"""try {{ return await tools.call("core:t", {{ data: {data} }}) }}
catch (e) {{
  return [e.name, e.code, e.toolId, /1 MiB/.test(e.message), /cell:1:/.test(e.stack)]
}}"""
    expected = "sent" if fits else ["ToolError", "invalid_input", "core:t", True, True]
    assert await value_of(pool, source, answer=lambda r: ok(r, "sent")) == expected


async def test_a_reply_for_an_unknown_request_is_ignored(pool: Pool) -> None:
    cell, deadline = pool.cell(), time.monotonic() + 10
    idle = await pool.step(cell, Start('return await tools.call("t")'), deadline)
    assert isinstance(idle, Suspension)
    settled = (Settlement(99, True, b"1"), ok(idle.requests[0], 2), Settlement(1, True, b"3"))
    assert await pool.step(cell, Resume(settled), deadline) == Completion(b"2")


@pytest.mark.covers("ER-too_many_pending_tool_calls")
async def test_more_open_calls_than_allowed_fail_the_cell_even_if_caught(pool: Pool) -> None:
    source = """for (let i = 0; i < 5; i++) try { tools.call("t").catch(() => {}) } catch {}
return 1"""
    failed = await failure_of(pool, source, limits=Limits(max_calls=4))
    assert failed.code == "too_many_pending_tool_calls"
    assert await value_of(pool, source, limits=Limits(max_calls=5)) == 1


# ---- Failures ----


@pytest.mark.covers("EX-7")
@pytest.mark.parametrize("source", ["await new Promise(() => {})", "await { then() {} }"])
async def test_a_promise_that_nothing_can_settle_fails_at_once(pool: Pool, source: str) -> None:
    began = undisturbed_time()
    failed = await failure_of(pool, source)
    assert failed.code == "internal_error"
    assert "nothing can settle" in failed.error
    assert undisturbed_time() - began < 2


@pytest.mark.covers("EX-9", "ER-internal_error")
@pytest.mark.parametrize(
    "source",
    [
        'Promise.reject(new Error("lost")); return 1',
        '(async () => { throw new Error("lost") })(); return 1',
        'queueMicrotask(() => { throw new Error("lost") }); return 1',
        'setTimeout(() => { throw new Error("lost") }, 0); return 1',
        'Promise.reject(new Error("lost")); await new Promise(() => {})',
    ],
)
async def test_an_unhandled_rejection_fails_the_cell_with_its_cause(
    pool: Pool, source: str
) -> None:
    failed = await failure_of(pool, source)
    assert failed.code == "internal_error"
    assert failed.error.startswith("Error: lost\n    at ")


@pytest.mark.covers("EX-9")
async def test_a_rejection_that_is_handled_later_does_not(pool: Pool) -> None:
    source = """const p = Promise.reject(new Error("early"));
await tools.call("slow");
try { await p } catch (e) { return e.message }"""
    assert await value_of(pool, source) == "early"


@pytest.mark.covers("EX-10")
@pytest.mark.parametrize("message", ["interrupted", "out of memory", "timeout"])
async def test_a_guest_cannot_forge_a_limit_by_its_message(pool: Pool, message: str) -> None:
    source = f'const e = new Error("{message}"); e.name = "InternalError"; throw e'
    assert (await failure_of(pool, source)).code == "internal_error"


@pytest.mark.parametrize(
    ("thrown", "text"),
    [
        *(("null", "null"), ("undefined", "undefined"), ("NaN", "NaN"), ('"words"', "words")),
        *(("{ a: 1 }", '{"a":1}'), ("-1", "-1"), ("1n", '"1"')),
    ],
)
@pytest.mark.covers("B-20")
async def test_anything_can_be_thrown(pool: Pool, thrown: str, text: str) -> None:
    failed = await failure_of(pool, f"throw {thrown}")
    assert (failed.code, failed.error) == ("internal_error", f"Uncaught: {text}")


@pytest.mark.covers("EX-12", "ER-memory_limit_exceeded")
@pytest.mark.parametrize("odd", range(0, 4000, 400))
async def test_exhaustion_without_room_for_an_error_is_reported_as_exhaustion(
    pool: Pool, odd: int
) -> None:
    source = "const f = () => Promise.resolve().then(f); await f()"
    failed = await failure_of(pool, source, limits=Limits(memory_bytes=(1 << 20) + odd))
    assert failed.code == "memory_limit_exceeded"


@pytest.mark.covers("EX-12", "ER-memory_limit_exceeded")
async def test_heap_exhaustion_is_catchable_and_else_a_code(pool: Pool) -> None:
    grow = "const a = []; for (;;) a.push(new Array(1000).fill(0));"
    limits = Limits(memory_bytes=8 << 20)
    assert (await failure_of(pool, grow, limits=limits)).code == "memory_limit_exceeded"
    caught = f"try {{ {grow} }} catch (e) {{ return e.message }}"
    assert await value_of(pool, caught, limits=limits) == "out of memory"


@pytest.mark.covers("EX-12")
async def test_the_heap_limit_counts_above_the_image(pool: Pool) -> None:
    source = "const a = new Uint8Array(900000); return a.length"
    assert await value_of(pool, source, limits=Limits(memory_bytes=1 << 20)) == 900000


@pytest.mark.covers("EX-15", "EX-11", "ER-timeout")
async def test_output_emitted_before_a_timeout_is_in_the_result(pool: Pool) -> None:
    source = 'text("one"); json({ two: 2 }); for (;;) {}'
    with patience():
        failed = await failure_of(pool, source, seconds=0.3)
    assert failed.code == "timeout"
    assert texts(failed) == ["one", {"two": 2}]


# ---- Timers and clocks ----


@pytest.mark.covers("EX-13")
async def test_timers_fire_in_order_of_due_time_then_of_age(pool: Pool) -> None:
    source = """const seen = [];
setTimeout((x) => seen.push(x), 30, "c");
setTimeout(() => seen.push("a"), 0);
setTimeout(() => seen.push("b"), 0);
clearTimeout(setTimeout(() => seen.push("never"), 5));
await new Promise((r) => setTimeout(r, 40));
return seen"""
    assert await value_of(pool, source) == ["a", "b", "c"]


@pytest.mark.covers("EX-13")
async def test_microtasks_run_between_two_timers(pool: Pool) -> None:
    source = """const seen = [];
setTimeout(() => { seen.push(1); Promise.resolve().then(() => seen.push("between")) }, 0);
setTimeout(() => seen.push(2), 0);
await new Promise((r) => setTimeout(r, 1));
return seen"""
    assert await value_of(pool, source) == [1, "between", 2]


@pytest.mark.covers("EX-6")
async def test_a_timeout_holds_completion_and_an_interval_does_not(pool: Pool) -> None:
    source = 'setTimeout(() => text("late"), 20); return 1'
    outcome = await finish(pool, source)
    assert (outcome.__class__, texts(outcome)) == (Completion, ["late"])
    assert await value_of(pool, "setInterval(() => {}, 5); return 2") == 2


@pytest.mark.covers("EX-13")
async def test_an_interval_repeats_until_it_is_cleared(pool: Pool) -> None:
    source = """return await new Promise((resolve) => {
  let n = 0;
  const id = setInterval(() => { if (++n === 3) { clearInterval(id); resolve(n) } }, 2);
})"""
    assert await value_of(pool, source) == 3


async def test_ten_thousand_timers_fire(pool: Pool) -> None:
    source = """let n = 0;
for (let i = 0; i < 10000; i++) setTimeout(() => n++, i % 7);
await new Promise((r) => setTimeout(r, 20));
return n"""
    assert await value_of(pool, source) == 10000


async def test_a_timer_needs_a_function(pool: Pool) -> None:
    failed = await failure_of(pool, 'setTimeout("alert(1)", 0)')
    assert failed.error.startswith("TypeError: setTimeout: the first argument must be a function")


@pytest.mark.covers("EX-14")
async def test_the_clock_is_real_and_the_zone_is_utc(pool: Pool) -> None:
    now, offset, text = await value_of(
        pool, "return [Date.now(), new Date().getTimezoneOffset(), new Date(0).toString()]"
    )
    assert abs(now / 1000 - time.time()) < 5
    assert offset == 0
    assert "GMT+0000" in text


@pytest.mark.covers("EX-14")
async def test_cells_draw_different_random_numbers(pool: Pool) -> None:
    source = "return Array.from({ length: 4 }, Math.random)"
    drawn = [number for _ in range(8) for number in await value_of(pool, source)]
    assert len(set(drawn)) == len(drawn)
    assert all(0 <= number < 1 for number in drawn)


async def test_random_numbers_are_spread_evenly(pool: Pool) -> None:
    source = """const bins = Array(10).fill(0);
for (let i = 0; i < 20000; i++) bins[Math.floor(Math.random() * 10)]++;
return bins"""
    assert all(1700 < count < 2300 for count in await value_of(pool, source))


async def test_the_performance_clock_starts_with_the_cell(pool: Pool) -> None:
    assert 0 <= await value_of(pool, "return performance.now()") < 1000


@pytest.mark.covers("EX-13")
async def test_console_lines_are_text_output(pool: Pool) -> None:
    source = """console.log("a", 1, { b: [2] }, null, undefined);
console.error(new TypeError("bad"));
console.assert(1 === 2, "odd"); console.count(); console.count();"""
    outcome = await finish(pool, source)
    assert texts(outcome) == [
        'a 1 {"b":[2]} null null',
        "TypeError: bad",
        "Assertion failed: odd",
        "default: 1",
        "default: 2",
    ]


# ---- Freezing ----


async def frozen_in_the_middle(pool: Pool, source: str) -> tuple[FrozenCell, Suspension]:
    cell = pool.cell()
    idle = await pool.step(cell, Start(source), time.monotonic() + 10)
    assert isinstance(idle, Suspension), idle
    return await pool.freeze(cell), idle


@pytest.mark.covers("CM-V20")
async def test_a_frozen_cell_resumes_with_its_closures_timers_and_calls(pool: Pool) -> None:
    source = """const url = new URL("https://example.com/a?b=1"); const seen = new Map();
function* numbers() { yield 1; yield 2; yield 3 } const it = numbers(); it.next();
const late = new Promise((r) => setTimeout(() => r("timer"), 30));
const answer = await tools.call("t");
url.searchParams.set("b", answer);
seen.set("it", it.next().value); seen.set("late", await late);
return [url.href, seen, Math.random() !== Math.random()]"""
    frozen, idle = await frozen_in_the_middle(pool, source)
    cell, deadline = pool.cell(frozen), time.monotonic() + 10
    outcome = await pool.step(cell, Resume((ok(idle.requests[0], "two"),)), deadline)
    if isinstance(outcome, Suspension):
        outcome = await pool.step(cell, Resume(now=outcome.due), deadline)
    assert isinstance(outcome, Completion)
    assert json.loads(outcome.value) == [
        "https://example.com/a?b=two",
        {"it": 2, "late": "timer"},
        True,
    ]


async def test_a_cell_that_held_fifty_megabytes_and_freed_them_still_parks(pool: Pool) -> None:
    # Copies of a block that is larger than the compressor's window: they do not compress.
    source = """const block = Float64Array.from({ length: 131072 }, Math.random);
let hold = Array.from({ length: 50 }, () => block.slice());
hold = null;
return await tools.call("t")"""
    cell, deadline = pool.cell(), time.monotonic() + 15
    idle = await pool.step(cell, Start(source), deadline)
    assert isinstance(idle, Suspension), idle
    frozen = await pool.freeze(cell)
    assert frozen.memory > 50 << 20
    assert len(frozen.pages) < 1 << 20
    outcome = await pool.step(cell, Resume((ok(idle.requests[0], 1),)), deadline)
    assert outcome == Completion(b"1")


async def test_a_snapshot_whose_memory_is_over_the_limits_is_refused(pool: Pool) -> None:
    source = "globalThis.x = new Uint8Array(40 << 20); await tools.call('t')"
    frozen, idle = await frozen_in_the_middle(pool, source)
    cell = pool.cell(frozen)
    resume = Resume((ok(idle.requests[0]),), limits=Limits(memory_bytes=1 << 20))
    outcome = await pool.step(cell, resume, time.monotonic() + 10)
    assert isinstance(outcome, Failure)
    assert outcome.code == "snapshot_limit_exceeded"
