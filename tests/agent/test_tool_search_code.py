"""Bodies of `tool_search_code`: what they can do, and that there is no way out."""

import json
import time
from typing import Any

import anyio
import pytest
from tests.support.tool_search_driver import ISSUE, RING, add, bodies, fake, forbidden, water
from tests.support.waiting import until

from clawmode import Policy, ToolCallDecision
from clawmode.agent.tool_search import ToolSearch
from clawmode.agent.tool_search_code import SearchCode
from clawmode.catalog.controls import ControlRefused
from clawmode.code_mode.bridge import BadRequest
from clawmode.context import RunContext
from clawmode.exceptions import RuntimeUnavailable
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import Request
from clawmode.tools.approvals import Approvals, Question
from clawmode.tools.executor import Executor
from clawmode.tools.hooks import Hooks

pytestmark = pytest.mark.anyio

LANGUAGE = """
Object Function Error EvalError RangeError ReferenceError SyntaxError TypeError URIError
AggregateError SuppressedError Iterator Array parseInt parseFloat isNaN isFinite decodeURI
decodeURIComponent encodeURI encodeURIComponent escape unescape Infinity NaN undefined eval Number
Boolean String Math Reflect Symbol DisposableStack globalThis BigInt Date RegExp JSON Proxy Map Set
WeakMap WeakSet ArrayBuffer SharedArrayBuffer Uint8ClampedArray Int8Array Uint8Array Int16Array
Uint16Array Int32Array Uint32Array BigInt64Array BigUint64Array Float16Array Float32Array
Float64Array DataView Promise AsyncDisposableStack WeakRef FinalizationRegistry
""".split()


# ---- What a body can do ----


@pytest.mark.covers("TS-18", "TS-19", "TS-20", "TS-21", "TS-28")
async def test_a_body_searches_describes_and_calls_tools_of_every_source() -> None:
    source = """
      const made = [];
      for (const query of ["add numbers", "water a plant", "open an issue", "ring bell"]) {
        const [found] = await openclaw.tools.search(query, { limit: 1 });
        const { parameters } = await openclaw.tools.describe(found.id);
        made.push([found.id, typeof parameters.type, "parameters" in found]);
      }
      const sum = await openclaw.tools.call("openclaw:core:add", { a: 1, b: 2 });
      const issue = await openclaw.tools.call("mcp:github:create_issue", { title: "x" });
      console.log("sum", sum); console.warn({ a: 1 }); console.error(new Error("no"));
      return { made, sum, issue: issue.given };
    """
    async with bodies() as it:
        made = await it.run(source)
        counted = it.search.report("code")
    tools = (add, water, ISSUE, RING)
    assert made["value"] == {
        "made": [[tool.id, "string", False] for tool in tools],
        "sum": 3,
        "issue": {"title": "x"},
    }
    assert [item["text"] for item in made["output"]] == ["sum 3", '{"a":1}', "Error: no"]
    assert [counted[key] for key in ("searchCount", "describeCount", "callCount")] == [4, 4, 2]
    assert counted["calledTools"] == [
        {"toolId": add.id, "source": "openclaw"},
        {"toolId": ISSUE.id, "source": "mcp"},
    ]


@pytest.mark.covers("TS-16", "TS-17")
async def test_searches_of_a_body_have_the_limits_of_tool_search() -> None:
    tools = [fake(f"paint_{number}", text="Paint a wall.") for number in range(60)]
    async with bodies(tools, search_default_limit=4, max_search_limit=20) as it:
        sizes = await it.value(
            "const of = async (o) => (await openclaw.tools.search('paint wall', o)).length;"
            "return [await of(), await of({limit: 7}), await of({limit: 1000})]"
        )
    assert sizes == [4, 7, 20]


@pytest.mark.covers("TS-4")
async def test_calls_are_nested_in_the_bodys_own_call() -> None:
    async with bodies() as it:
        await it.value("return openclaw.tools.call('add', { a: 1, b: 2 })")
        told = [(event.phase, event.tool_id, event.parent_id) for event in it.events]
    assert told == [("start", add.id, "outer"), ("end", add.id, "outer")]


@pytest.mark.covers("TS-40")
async def test_a_block_a_refusal_and_a_failure_are_errors_in_the_body() -> None:
    hooks = Hooks()

    def block(event: Any) -> ToolCallDecision | None:
        return (
            ToolCallDecision(block=True, block_reason="dry") if event.tool_name == "water" else None
        )

    hooks.on("before_tool_call", block)
    approvals = Approvals(ask_for=["ring"], approver=lambda question: "deny")
    policy = Policy.from_config({"deny": ["forbidden"]})
    source = """
      const codes = [];
      for (const [id, input] of [["water", { plant: "x" }], ["ring", {}], ["add", { a: "x" }],
                                 ["openclaw:core:forbidden", {}], ["nothing", {}]]) {
        try { await openclaw.tools.call(id, input); codes.push("ok"); }
        catch (error) { codes.push(error.code); }
      }
      return codes;
    """
    tools = [add, water, RING, forbidden]
    async with bodies(tools, policy=policy, hooks=hooks, approvals=approvals) as it:
        codes = await it.value(source)
    assert codes == [
        "blocked",
        "not_approved",
        "invalid_tool_input",
        "unknown_tool",
        "unknown_tool",
    ]


@pytest.mark.covers("TS-38")
async def test_a_denied_tool_is_not_found_by_a_body() -> None:
    policy = Policy.from_config({"deny": ["forbidden"]})
    async with bodies([add, forbidden], policy=policy) as it:
        assert await it.value("return openclaw.tools.search('forbidden')") == []


@pytest.mark.covers("TS-39")
async def test_a_tool_that_goes_between_search_and_call_fails_the_call() -> None:
    gone = anyio.Event()

    async def take_away(given: Any, context: Any) -> str:
        it.search.offer([add])
        it.code.refresh()
        gone.set()
        return "gone"

    leave = fake("leave")
    object.__setattr__(leave, "execute", take_away)
    async with bodies([add, ISSUE, leave]) as it:
        code = await it.value(
            "const [found] = await openclaw.tools.search('issue');"
            "await openclaw.tools.call('leave', {});"
            "try { await openclaw.tools.call(found.id, {}) } catch (error) { return error.code }"
        )
    assert gone.is_set()
    assert code == "unknown_tool"


# ---- What it cannot ----


@pytest.mark.covers("TS-26")
async def test_a_body_finds_the_language_and_six_functions() -> None:
    source = """
      const own = (object) => Reflect.ownKeys(object).map(String);
      return {
        globals: own(globalThis), openclaw: own(openclaw), tools: own(openclaw.tools),
        console: own(console), proto: Object.getPrototypeOf(openclaw.tools),
      };
    """
    async with bodies() as it:
        seen = await it.value(source)
    beside = set(seen["globals"]) - set(LANGUAGE)
    assert beside == {"openclaw", "console", "Symbol(Symbol.toStringTag)"}
    assert (seen["openclaw"], seen["proto"]) == (["tools"], None)
    assert seen["tools"] == ["search", "describe", "call"]
    assert seen["console"] == ["log", "warn", "error"]


@pytest.mark.covers("TS-24", "TS-26")
@pytest.mark.parametrize(
    "reach",
    [
        "globalThis",
        "Function('return this')()",
        "(0, eval)('this')",
        "openclaw.tools.search.constructor('return this')()",
        "(async () => {}).constructor('return globalThis')",
        "Object.getPrototypeOf(function* () {}).constructor('return globalThis')().next().value",
        "new Proxy(globalThis, {})",
        "[].constructor.constructor('return globalThis')()",
    ],
)
async def test_no_way_to_the_global_object_shows_more(reach: str) -> None:
    gone = (
        "tools MCP API ALL_TOOLS namespaces text json yield_control setTimeout setInterval "
        "clearTimeout clearInterval performance URL TextEncoder structuredClone atob btoa "
        "queueMicrotask DOMException process require module fetch Worker WebAssembly Deno std os "
        "bjs print scriptArgs InternalError XMLHttpRequest navigator"
    )
    source = f"""
      let found = {reach};
      if (typeof found === "function") found = await found();
      return "{gone}".split(" ").filter((name) => found[name] !== undefined);
    """
    async with bodies() as it:
        assert await it.value(source) == []


@pytest.mark.covers("TS-24", "TS-28")
@pytest.mark.parametrize(
    "source",
    ["return import('fs')", "return (await import('./x')).y", "return require('fs')"],
)
async def test_there_are_no_modules(source: str) -> None:
    async with bodies() as it:
        assert await it.code_of(source) == "module_access_denied"


@pytest.mark.covers("TS-24", "TS-27")
async def test_nothing_of_the_host_is_in_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "s3cr3t-of-the-host")
    source = """
      const seen = new Set(), texts = [];
      const walk = (value, depth) => {
        if (depth > 6 || value === null || !["object", "function"].includes(typeof value)) return;
        if (seen.has(value)) return;
        seen.add(value);
        for (const key of Reflect.ownKeys(value)) {
          texts.push(String(key));
          const { get, value: held } = Object.getOwnPropertyDescriptor(value, key);
          if (typeof held === "string") texts.push(held);
          walk(get ?? held, depth + 1);
        }
        walk(Object.getPrototypeOf(value), depth + 1);
      };
      walk(globalThis, 0);
      return texts.join(" ");
    """
    async with bodies() as it:
        everything = await it.value(source)
    for word in ("s3cr3t", "SECRET_OF", "McpServers", "create_issue", "Water a plant", "/work"):
        assert word not in everything


@pytest.mark.covers("TS-26")
@pytest.mark.parametrize(
    "attack",
    [
        "Object.prototype.then = (resolve) => resolve('caught');",
        "Array.prototype[Symbol.iterator] = () => { throw 1 };",
        "Promise.prototype.then = () => { throw 1 }; globalThis.Promise = null;",
        "JSON.stringify = () => '[\"mcp:github:create_issue\"]'; JSON.parse = () => null;",
        "Object.defineProperty(Array.prototype, 0, { set() { throw 1 }, get() { return 'x' } });",
        "Function.prototype.call = Function.prototype.apply = () => 'x';",
        "String.prototype.slice = () => { throw 1 }; Map.prototype.get = () => 0;",
    ],
)
async def test_a_body_that_spoils_the_language_hurts_itself_alone(attack: str) -> None:
    async with bodies() as it:
        await it.run(f"{attack} return openclaw.tools.call('add', {{ a: 1, b: 2 }})")
        assert all(event.tool_id == add.id for event in it.events)
        assert await it.value("return openclaw.tools.call('add', { a: 2, b: 2 })") == 4


@pytest.mark.parametrize("name", ["__proto__", "constructor", "toString", "hasOwnProperty"])
async def test_strange_names_are_unknown_tools(name: str) -> None:
    source = f"""
      try {{ await openclaw.tools.call({json.dumps(name)}, {{}}) }}
      catch (error) {{ return [error.code, typeof openclaw.tools[{json.dumps(name)}]] }}
    """
    async with bodies() as it:
        assert await it.value(source) == ["unknown_tool", "undefined"]


async def test_one_body_leaves_nothing_to_the_next() -> None:
    async with bodies() as it:
        await it.value("globalThis.left = 1; openclaw.tools.call = null; return 0")
        assert await it.value("return [typeof left, typeof openclaw.tools.call]") == [
            "undefined",
            "function",
        ]


@pytest.mark.covers("TS-26", "TS-27")
@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("namespace", ["MCP", ["github", "create_issue"], [{}]]),
        ("namespace", ["github", ["create_issue"], [{}]]),
        ("call", ["openclaw:core:forbidden", {}]),
        ("call", [["add"], {}]),
        ("call", ["add", [1]]),
    ],
)
async def test_a_worker_that_lies_about_what_was_asked_gets_no_further(
    method: Any, args: list[Any]
) -> None:
    async with bodies() as it:
        request = Request(1, method, json.dumps(args).encode())
        with pytest.raises(BadRequest):
            it.code._calls.bridge.call_of(request)
        described = it.code._calls.bridge.look_up(Request(1, "api", b'["github"]'))
    assert not described.ok


@pytest.mark.covers("S-7")
@pytest.mark.parametrize(
    "args",
    [
        b"",
        b'["add",{"a":NaN,"b":1}]',
        b'["add",{"a":1e999,"b":1}]',
        b'["add",{"a":' + b"9" * 400 + b',"b":1}]',
        b'["add",{"a":"\\uDFFF","b":1}]',
        b'["add",{"a":"\xff","b":1}]',
        b'["add",{"a":' + b"[" * 500 + b"]" * 500 + b"}]",
        '["add",{"a":1,"b":1}]'.encode("utf-16"),
    ],
)
async def test_a_worker_cannot_hand_a_tool_what_is_not_json(args: bytes) -> None:
    async with bodies() as it:
        with pytest.raises(BadRequest):
            it.code._calls.bridge.call_of(Request(1, "call", args))


# ---- Bounds ----


@pytest.mark.covers("TS-25")
@pytest.mark.parametrize(
    "source",
    [
        "for (;;);",
        "await openclaw.tools.search('add'); for (;;);",
        "await openclaw.tools.call('add', { a: 1, b: 2 }); await null; for (;;) await null;",
        "Promise.resolve().then(() => { for (;;); }); await openclaw.tools.search('x');",
        "const again = () => openclaw.tools.search('x').then(again); await again();",
        "await openclaw.tools.call('slow', {})",
        "openclaw.tools.call('slow', {}); return 1",
    ],
)
async def test_a_body_is_killed_at_its_timeout_whatever_it_does(source: str) -> None:
    stopped: list[str] = []

    async def wait(given: Any, context: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append("slow")

    slow = fake("slow")
    object.__setattr__(slow, "execute", wait)
    async with bodies([add, slow], code_timeout_ms=1000) as it:
        # The first search loads its index, and on a busy machine a worker takes over a second to
        # start: neither belongs to the time of the body.
        await anyio.to_thread.run_sync(it.search.catalog.search, "warm up", 1)
        await it.pool.ready()
        began = time.monotonic()
        made = await it.run(source)
        took = time.monotonic() - began
        assert (made["status"], made["code"]) == ("failed", "timeout")
        assert took < 10

        async def works_again() -> bool:
            return (await it.run("return 1")).get("value") == 1

        await until(works_again)  # the worker that looped was killed, and another one starts
    assert stopped == (["slow"] if "slow" in source else [])


@pytest.mark.covers("TS-25", "TS-40")
async def test_a_person_who_does_not_answer_in_time_ends_the_body_and_the_call() -> None:
    approvals = Approvals(ask_for=["ring"])
    async with bodies([RING], approvals=approvals, code_timeout_ms=1000) as it:
        made = await it.run("return openclaw.tools.call('ring', {})")
        assert made["code"] == "timeout"
        assert made["calls"] == [
            {"id": "1", "toolId": RING.id, "state": "not_started"},
        ]
        await anyio.wait_all_tasks_blocked()
        assert approvals.pending() == []


async def test_a_person_who_answers_in_time_lets_the_body_continue() -> None:
    approvals = Approvals(ask_for=["ring"])

    def allow(question: Question) -> None:
        approvals.resolve(question.id, "allow-once")

    approvals.on_question = allow
    async with bodies([RING], approvals=approvals) as it:
        assert (await it.value("return openclaw.tools.call('ring', {})"))["tool"] == "ring"


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("return 'x'.repeat(1 << 20)", "output_limit_exceeded"),
        ("for (let i = 0; i < 1e5; i++) console.log('x'.repeat(100))", "output_limit_exceeded"),
        ("const a = []; for (;;) a.push(new Array(1e5).fill(1))", "memory_limit_exceeded"),
        (
            "await Promise.all(Array.from({ length: 5000 }, () => openclaw.tools.call('add', {})))",
            "too_many_pending_tool_calls",
        ),
        ("return openclaw.tools.call('huge', {})", "nested_tool_failed"),
        ("await new Promise(() => {})", "internal_error"),
        ("return (", "invalid_input"),
    ],
)
async def test_what_is_too_much_is_a_failure(source: str, code: str) -> None:
    async def answer(given: Any, context: Any) -> str:
        return "x" * (9 << 20)

    huge = fake("huge")
    object.__setattr__(huge, "execute", answer)
    async with bodies([add, huge]) as it:
        assert await it.code_of(source) == code


@pytest.mark.parametrize(
    "given", [{}, {"code": ""}, {"code": 7}, "return 1", {"code": "x" * (1 << 21)}]
)
async def test_what_is_no_body_is_refused(given: Any) -> None:
    async with bodies() as it:
        with pytest.raises(ControlRefused):
            await it.code.run(given, "outer")


# ---- Without a runtime ----


@pytest.mark.covers("TS-41")
async def test_without_a_runtime_no_body_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(part: str) -> bytes:
        raise RuntimeUnavailable("quickjs.wasm is missing from the installation")

    monkeypatch.setattr("clawmode.sandbox.artifacts.prepare", nothing)
    search = ToolSearch()
    search.offer([add])
    async with Pool(size=1) as pool:
        async with SearchCode(search, Executor(Policy()), RunContext(), pool) as code:
            assert "missing" in str(await code.unavailable())
            made = await code.run({"code": "return 1"}, "outer")
    assert (made["status"], made["code"]) == ("failed", "runtime_unavailable")
