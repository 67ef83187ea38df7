"""Runs, sessions and agents side by side in one pool: none sees or disturbs anything of another."""

import contextlib
import json
import secrets
import sqlite3
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.support.sandbox_driver import only_worker
from tests.support.waiting import until, until_sync

from clawmode import (
    Approvals,
    CodeMode,
    CodeModeConfig,
    CodeModeResult,
    ConfigurationError,
    Hooks,
    MemoryStore,
    Pool,
    RunContext,
    SqliteStore,
    Tool,
    ToolContext,
    tool,
)
from clawmode.catalog.namespaces import NamespaceRegistration, NamespaceRegistry, namespace_tool
from clawmode.code_mode.stores import SnapshotStore
from clawmode.tools.executor import CallEvent
from clawmode.tools.hooks import BeforeToolCall
from clawmode.types import JsonObject

pytestmark = [pytest.mark.anyio, pytest.mark.hostile]


@pytest.fixture
def pool(one_worker_pool: Pool) -> Pool:
    """One worker: what one cell leaves in it, the next one meets."""
    return one_worker_pool


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    """One place for what all runs park."""
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "state")


def who(agent: str, session: str = "s", run: str = "r") -> RunContext:
    return RunContext(agent_id=agent, session_id=session, session_key=session, run_id=run)


def answering(name: str, answer: Any, **options: Any) -> Tool:
    return Tool(name, f"The tool {name}.", {}, lambda params, context: answer, **options)


def run_id_of(result: CodeModeResult) -> str:
    assert result.status == "waiting", result
    return result.run_id


async def value(code_mode: CodeMode, source: str) -> Any:
    result = await code_mode.exec(source)
    assert result.status == "completed", result
    return result.value


# ---- Tools ----


@pytest.mark.covers("CA-8")
async def test_a_run_finds_none_of_anothers_tools_by_any_name(pool: Pool) -> None:
    secret = answering("secret_report", "leaked", source="plugin", owner="reports")
    async with (
        CodeMode(tools=[secret], pool=pool, context=who("a")) as a,
        CodeMode(tools=[answering("mine", 1)], pool=pool, context=who("b")) as b,
    ):
        assert await value(a, "return await tools.secret_report()") == "leaked"
        guesses = ["secret_report", "plugin:reports:secret_report", "openclaw:core:secret_report"]
        source = f"""const seen = [];
for (const id of {json.dumps(guesses)})
  for (const ask of [tools.call, tools.describe])
    try {{ seen.push(await ask(id)) }} catch (e) {{ seen.push([e.code, e.message]) }}
return [ALL_TOOLS.map((t) => t.name), Object.keys(tools), typeof tools.secret_report,
  await tools.search("secret report"), seen]"""
        names, keys, shortcut, found, seen = await value(b, source)
    assert (names, keys) == (["mine"], ["search", "describe", "call", "mine"])
    assert (shortcut, found) == ("undefined", [])
    assert [code for code, _ in seen] == ["unknown_tool"] * 6
    # Nor does an error give a hint: what it quotes is what was asked.
    assert "reports" not in "".join(text for _, text in seen[:2] + seen[4:])
    assert b.telemetry.to_json()["calledToolIds"] == []


async def test_the_same_tool_serves_each_run_under_its_own_policy_and_name(pool: Pool) -> None:
    seen: list[str] = []

    def note(params: JsonObject, context: ToolContext) -> str:
        seen.append(context.run.agent_id)
        return context.run.agent_id

    shared = Tool("shared", "Shared.", {}, note)
    async with (
        CodeMode(tools=[shared], pool=pool, context=who("a")) as a,
        CodeMode(tools=[shared], pool=pool, context=who("b")) as b,
        CodeMode(tools=[shared], pool=pool, context=who("c"), policy={"deny": ["shared"]}) as c,
    ):
        for code_mode, name in ((a, "a"), (b, "b"), (a, "a")):
            assert await value(code_mode, "return await tools.shared()") == name
        source = 'return await tools.call("openclaw:core:shared").catch((e) => e.code)'
        assert await value(c, source) == "unknown_tool"
    assert seen == ["a", "b", "a"]


async def test_runs_with_the_same_names_call_their_own_tools(pool: Pool) -> None:
    """The guest's side of these runs is one and the same image."""
    async with AsyncExitStack() as stack:
        runs = [
            await stack.enter_async_context(CodeMode(tools=[answering("mine", n)], pool=pool))
            for n in range(5)
        ]
        for _ in range(2):
            answers = [await value(run, "return await tools.mine()") for run in runs]
            assert answers == [0, 1, 2, 3, 4]


async def test_more_catalogs_than_a_worker_remembers_stay_apart(pool: Pool) -> None:
    async with AsyncExitStack() as stack:
        runs = [
            await stack.enter_async_context(CodeMode(tools=[answering(f"t{n}", n)], pool=pool))
            for n in range(20)
        ]
        source = "await yield_control(); return [ALL_TOOLS.map((t) => t.name), await tools.{}()]"
        parked = [run_id_of(await run.exec(source.format(f"t{n}"))) for n, run in enumerate(runs)]
        for n, run in reversed(list(enumerate(runs))):
            assert (await run.wait(parked[n])).value == [[f"t{n}"], n]


# ---- Namespaces ----


def accounts() -> NamespaceRegistry:
    """A namespace whose scope holds what belongs to the agent of the run."""
    registry = NamespaceRegistry()
    registry.register_for_plugin(
        "bank",
        NamespaceRegistration(
            id="accounts",
            global_name="Accounts",
            description="Accounts.",
            required_tool_names=("balance",),
            create_scope=lambda context: {
                "token": f"token of {context.run.agent_id}",
                "nested": {"list": [context.run.session_id]},
                "balance": namespace_tool(
                    "balance", lambda args: {"owner": context.run.agent_id, "asked": args}
                ),
            },
        ),
    )
    return registry


BALANCE = Tool(
    "balance", "Balance.", {}, lambda params, context: params, source="plugin", owner="bank"
)


async def test_each_run_has_its_own_scope_of_a_namespace(pool: Pool) -> None:
    registry = accounts()
    async with (
        CodeMode(tools=[BALANCE], namespaces=registry, pool=pool, context=who("a", "s1")) as a,
        CodeMode(tools=[BALANCE], namespaces=registry, pool=pool, context=who("b", "s2")) as b,
    ):
        source = "return [Accounts.token, Accounts.nested.list, await Accounts.balance(1)]"
        for code_mode, agent, session in ((a, "a", "s1"), (b, "b", "s2"), (a, "a", "s1")):
            expected = [f"token of {agent}", [session], {"owner": agent, "asked": [1]}]
            assert await value(code_mode, source) == expected
            parked = await code_mode.exec(f"await yield_control(); {source}")
            await (b if code_mode is a else a).exec("return 1")
            assert (await code_mode.wait(run_id_of(parked))).value == expected


async def test_a_run_without_the_tools_does_not_see_a_namespace_and_cannot_forge_its_way_in(
    pool: Pool,
) -> None:
    registry, called = accounts(), list[str]()

    def noted(name: str, owner: str) -> Tool:
        def call(params: JsonObject, context: ToolContext) -> str:
            called.append(context.run.agent_id)
            return context.run.agent_id

        return Tool(name, "Noted.", {}, call, source="plugin", owner=owner)

    # The same name, but another plugin's.
    impostor, own = noted("balance", "impostor"), noted("mine", "other")
    registry.register_for_plugin(
        "other",
        NamespaceRegistration(
            id="other",
            global_name="Other",
            description="Other.",
            required_tool_names=("mine",),
            create_scope=lambda context: {"mine": namespace_tool("mine")},
        ),
    )
    async with (
        CodeMode(
            tools=[noted("balance", "bank")], namespaces=registry, pool=pool, context=who("a")
        ) as a,
        CodeMode(tools=[impostor, own], namespaces=registry, pool=pool, context=who("b")) as b,
    ):
        assert await value(a, "return await Accounts.balance()") == "a"
        source = """Object.defineProperty(Array.prototype, "toJSON", { configurable: true, value() {
  return this.length === 3 && this[0] === "other" ? ["accounts", ["balance"], []] : this;
} });
const forged = await Other.mine().catch((e) => e.code);
delete Array.prototype.toJSON;
return [typeof Accounts, Object.keys(namespaces), forged, await Other.mine()]"""
        assert await value(b, source) == ["undefined", ["Other"], "invalid_input", "b"]
        assert "Accounts" not in str(b.definitions())
    assert called == ["a", "b"]


# ---- Memory ----

POLLUTE = """globalThis.leak = "leaked"; Object.prototype.polluted = "leaked";
Array.prototype.map = () => "leaked"; Promise.prototype.then = undefined;
JSON.stringify = () => '"leaked"'; Object.keys = () => ["leaked"]; Math.random = () => 0.5;
Date.now = () => 0; String.prototype.toString = () => "leaked"; Error.leak = "leaked";
tools.mine = tools.call = tools.search = async () => "leaked"; tools.leak = "leaked";
ALL_TOOLS.length = 0; ALL_TOOLS.push("leaked"); namespaces.leak = "leaked"; MCP.leak = "leaked";
Accounts.token = "leaked"; Accounts.nested.list.push("leaked"); console.log = () => {};
globalThis.text = globalThis.json = globalThis.yield_control = () => {};
Object.freeze(Object.prototype); Symbol.for("leak").description;
setInterval(() => { globalThis.leak = "leaked" }, 1);
"""

LOOK = """const keys = []; for (const key in {}) keys.push(key);
text("said");
return [typeof leak, keys, [1, 2].map((n) => n * 2), await Promise.resolve(3),
  JSON.stringify({ a: 1 }), Object.keys({ b: 1 }), Date.now() > 1e12, Error.leak,
  await tools.mine(), await tools.call("mine"), typeof tools.leak, ALL_TOOLS.length,
  Object.keys(namespaces), Object.keys(MCP), Accounts.token, Accounts.nested.list,
  Object.isFrozen(Object.prototype)]"""


def untouched(agent: str) -> list[Any]:
    return [
        "undefined", [], [2, 4], 3, '{"a":1}', ["b"], True, None, 1, 1, "undefined", 2,
        ["Accounts"], [], f"token of {agent}", ["s"], False,
    ]  # fmt: skip


@pytest.mark.covers("CM-runtime-isolated", "CM-state-scope")
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("return 1", "completed"),
        ('throw new Error("no")', "failed"),
        ("await new Promise((r) => setTimeout(r, 60000))", "waiting"),
        ("for (;;);", "failed"),
    ],
)
async def test_what_a_program_does_to_its_world_no_other_program_sees(
    pool: Pool, end: str, status: str
) -> None:
    """Not the next of another run, nor the next of its own, nor one that was parked before."""
    options: Any = {
        "tools": [BALANCE, answering("mine", 1)],
        "namespaces": accounts(),
        "pool": pool,
        "config": CodeModeConfig(timeout_ms=1000),
    }
    async with (
        CodeMode(context=who("a"), **options) as a,
        CodeMode(context=who("b"), **options) as b,
    ):
        before = [run_id_of(await run.exec(f"await yield_control(); {LOOK}")) for run in (a, b)]
        assert (await a.exec(f"{POLLUTE} json(leak + {{}}.polluted); {end}")).status == status
        for run, agent in ((b, "b"), (a, "a")):
            result = await run.exec(LOOK)
            assert result.value == untouched(agent), result
            assert result.output == [{"type": "text", "text": "said"}]
        for run, agent, run_id in ((a, "a", before[0]), (b, "b", before[1])):
            assert (await run.wait(run_id)).value == untouched(agent)


@pytest.mark.covers("CM-runtime-isolated")
async def test_the_memory_of_a_parked_program_is_not_in_the_worker_any_more(pool: Pool) -> None:
    marker = secrets.token_hex(16)
    async with (
        CodeMode(pool=pool, context=who("a")) as a,
        CodeMode(pool=pool, context=who("b")) as b,
    ):
        # On the heap as text, as bytes, and many times over.
        source = f"""const marker = "{marker}", bytes = new TextEncoder().encode(marker);
const held = Array.from({{ length: 2000 }}, (_, i) => [marker + i, bytes.slice()]);
await yield_control(); return held.length"""
        parked = await a.exec(source)
        # Memory that was never written to, as much as there is, and what strings are made of.
        source = f"""const found = [], halves = ["{marker[:16]}", "{marker[16:]}"];
for (let i = 0; i < 8; i++) {{
  const words = new Uint32Array(new ArrayBuffer(1 << 20));
  if (words.some((word) => word !== 0)) found.push(i);
  const text = new TextDecoder("latin1").decode(new Uint8Array(1 << 16));
  if (text.includes(halves[0]) && text.includes(halves[1])) found.push("text");
}}
const strings = Object.getOwnPropertyNames(globalThis).concat(Reflect.ownKeys(Symbol).map(String));
return [found, strings.some((s) => s.includes(halves[0]))]"""
        assert await value(b, source) == [[], False]
        assert (await a.wait(run_id_of(parked))).value == 2000


@pytest.mark.covers("CM-state-scope")
async def test_programs_of_one_run_at_once_do_not_mix(pool: Pool) -> None:
    """They number their requests alike, and are answered in another order than they asked."""
    waiting: list[Any] = []
    everybody = anyio.Event()

    async def echo(params: JsonObject, context: ToolContext) -> Any:
        waiting.append(params["n"])
        if len(waiting) == 8:
            everybody.set()
        await everybody.wait()
        n = params["n"]
        assert isinstance(n, int)
        for _ in range(8 - n):
            await anyio.lowlevel.checkpoint()
        return n

    results: dict[int, CodeModeResult] = {}
    async with CodeMode(tools=[Tool("echo", "Echo.", {}, echo)], pool=pool) as code_mode:

        async def execute(n: int) -> None:
            source = f"""globalThis.mine = {n}; text("out {n}");
const answer = await tools.echo({{ n: {n} }}); await yield_control();
text("later {n}"); return [globalThis.mine, answer]"""
            results[n] = await code_mode.exec(source, call_id=f"call-{n}")

        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                for n in range(8):
                    group.start_soon(execute, n)
        assert len({run_id_of(result) for result in results.values()}) == 8
        for n in (3, 0, 7, 1, 6, 2, 5, 4):
            assert results[n].output == [{"type": "text", "text": f"out {n}"}]
            result = await code_mode.wait(run_id_of(results[n]))
            assert result.value == [n, n]
            assert result.output == [{"type": "text", "text": f"later {n}"}]


# ---- Waiting ----


@pytest.mark.covers("CM-state-scope")
@pytest.mark.parametrize(
    "other",
    [
        who("owner", "s", "r2"),
        who("owner", "s2", "r"),
        who("agent2", "s", "r"),
        RunContext(agent_id="owner", run_id="r"),
        RunContext(agent_id="", session_id="", session_key="", run_id=""),
        RunContext(agent_id="owner", session_id="s", session_key="other", run_id="r"),
    ],
    ids=["run", "session", "agent", "no session", "nobody", "session key"],
)
async def test_only_its_owner_can_wait_for_or_end_a_parked_program(
    pool: Pool, store: SnapshotStore, other: RunContext
) -> None:
    tools, owning = [answering("mine", 1)], who("owner", "s", "r")
    async with (
        CodeMode(tools=tools, pool=pool, store=store, context=owning) as owner,
        CodeMode(tools=tools, pool=pool, store=store, context=other) as stranger,
    ):
        source = 'text("secret"); const held = "secret"; await yield_control(); return held'
        run_id = run_id_of(await owner.exec(source))
        refused = await stranger.wait(run_id)
        assert (refused.status, refused.code) == ("failed", "invalid_input")
        # A stranger learns no more of it than of one that never was.
        invented = "cm_" + "0" * 32
        unknown = await stranger.wait(invented)
        assert unknown.code == "invalid_input"
        assert str(refused.error).replace(run_id, invented) == unknown.error
        assert "secret" not in json.dumps(refused.to_json())
        assert not await stranger.abort(run_id)
        await stranger.end_run()
        assert stranger.telemetry.to_json()["snapshots"] == {
            "created": 0, "restored": 0, "expired": 0, "deleted": 0
        }  # fmt: skip
        result = await owner.wait(run_id)
        assert (result.status, result.value, result.output) == ("completed", "secret", [])
        assert owner.telemetry.to_json()["failures"] == {}
        # Nor afterwards.
        assert str((await stranger.wait(run_id)).error) == refused.error


async def test_a_strangers_wait_does_not_disturb_the_one_under_way(
    pool: Pool, store: SnapshotStore
) -> None:
    begun, release = anyio.Event(), anyio.Event()
    results: list[CodeModeResult] = []

    async def slow(params: JsonObject, context: ToolContext) -> str:
        begun.set()
        await release.wait()
        return "answer"

    async with (
        CodeMode(
            tools=[Tool("slow", "Slow.", {}, slow)], pool=pool, store=store, context=who("a")
        ) as owner,
        CodeMode(pool=pool, store=store, context=who("b")) as stranger,
    ):
        run_id = run_id_of(await owner.exec("await yield_control(); return await tools.slow()"))

        async def wait() -> None:
            results.append(await owner.wait(run_id))

        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await begun.wait()
                for _ in range(3):
                    assert (await stranger.wait(run_id)).code == "invalid_input"
                    assert not await stranger.abort(run_id)
                release.set()
        assert results[0].value == "answer"


COPY = "update {0} set {1} = (select {1} from {0} where {2} = :a) where {2} = :b"
CELL = "(select id from cells where number = sealed.cell)"
HAND_OVER = {
    "the program": "update cells set agent = 'b', run = 'rb' where id = :a",
    "its memory": COPY.format("sealed", "snapshot", CELL),
    "its record": COPY.format("sealed", "record", CELL),
    "its call": COPY.format("calls", "body", "cell"),
    "its answer": "update replies set cell = :b where cell = :a",
}


@pytest.mark.covers("CM-state-scope")
@pytest.mark.parametrize("part", HAND_OVER)
async def test_whoever_can_write_the_store_cannot_give_one_runs_things_to_another(
    pool: Pool, tmp_path: Path, part: str
) -> None:
    store, answered, never = SqliteStore(tmp_path), anyio.Event(), anyio.Event()

    async def slow(params: JsonObject, context: ToolContext) -> str:
        await (answered if context.run.agent_id == "a" else never).wait()
        return "secret of a"

    options: Any = {"tools": [Tool("slow", "Slow.", {}, slow)], "pool": pool, "store": store}
    async with (
        CodeMode(context=who("a", run="ra"), **options) as a,
        CodeMode(context=who("b", run="rb"), **options) as b,
    ):
        source = 'const held = "secret of a", open = tools.slow(); await yield_control(); '
        of_a = run_id_of(await a.exec(f"{source} return [held, await open]"))
        of_b = run_id_of(
            await b.exec("const open = tools.slow(); await yield_control(); await open")
        )
        if part == "its answer":
            answered.set()
            await anyio.to_thread.run_sync(until_replied, store.path)
        changed = await anyio.to_thread.run_sync(
            change, store.path, HAND_OVER[part], {"a": of_a, "b": of_b}
        )
        assert changed == 1
        result = await b.wait(of_a if part == "the program" else of_b)
        assert (result.status, result.code) == ("failed", "snapshot_restore_failed")
        assert "secret" not in json.dumps(result.to_json())
        assert (result.output, result.value) == ([], None)
    store.close()


def change(path: Path, statement: str, names: dict[str, str]) -> int:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        return database.execute(statement, names).rowcount


def until_replied(path: Path) -> None:
    """Waits until the answer of a call is in the store."""

    def replies() -> int:
        with contextlib.closing(sqlite3.connect(path)) as database:
            return database.execute("select count(*) from replies").fetchone()[0]

    until_sync(replies)


async def test_run_ids_cannot_be_guessed_from_one_another(pool: Pool) -> None:
    async with CodeMode(pool=pool) as code_mode:
        ids = [run_id_of(await code_mode.exec("await yield_control()")) for _ in range(16)]
    assert len(set(ids)) == 16
    assert all(len(bytes.fromhex(run_id.removeprefix("cm_"))) == 16 for run_id in ids)
    # No part is shared by all: neither a counter, nor a clock, nor the run's own name.
    for position in range(3, 35):
        assert len({run_id[position] for run_id in ids}) > 1


async def test_a_program_cannot_learn_or_use_a_run_id(pool: Pool) -> None:
    async with CodeMode(tools=[answering("mine", 1)], pool=pool) as code_mode:
        parked = run_id_of(await code_mode.exec('await yield_control(); return "held"'))
        source = f"""const seen = [];
for (const name of ["wait", "exec", "openclaw:core:wait", "code_mode:wait"])
  seen.push(await tools.call(name, {{ runId: "{parked}" }}).catch((e) => e.code));
const names = []; for (let o = globalThis; o; o = Object.getPrototypeOf(o))
  names.push(...Reflect.ownKeys(o).map((key) => String(key) + typeof globalThis[key]));
return [seen, names.some((name) => /cm_|run_?id/i.test(name))]"""
        assert await value(code_mode, source) == [["unknown_tool"] * 4, False]
        assert (await code_mode.wait(parked)).value == "held"


# ---- What is told to whom ----


async def test_output_and_telemetry_stay_with_the_run_that_made_them(pool: Pool) -> None:
    tools = [answering("mine", 1), answering("other", 2)]
    async with (
        CodeMode(tools=tools, pool=pool, context=who("a")) as a,
        CodeMode(tools=tools[:1], pool=pool, context=who("b")) as b,
    ):
        untouched = b.telemetry.to_json()
        first = await a.exec(
            'text("of a"); await tools.other(); await yield_control(); text("more")'
        )
        assert b.telemetry.to_json() == untouched
        second = await b.exec('text("of b"); await tools.search("mine"); return 1')
        assert (await a.wait(run_id_of(first))).output == [{"type": "text", "text": "more"}]
        await a.exec("throw 1")
        assert (first.output, second.output) == (
            [{"type": "text", "text": "of a"}],
            [{"type": "text", "text": "of b"}],
        )
        counted = b.telemetry.to_json()
        assert second.telemetry == counted
    assert counted == untouched | {"execCount": 1, "searchCount": 1}
    assert a.telemetry.to_json()["calledToolIds"] == ["openclaw:core:other"]


async def test_an_output_that_bursts_its_cap_takes_nothing_from_another_run(pool: Pool) -> None:
    config = CodeModeConfig(max_output_bytes=1024)
    async with (
        CodeMode(pool=pool, config=config) as a,
        CodeMode(pool=pool, config=config) as b,
    ):
        parked = await b.exec(
            'text("b".repeat(500)); await yield_control(); return "b".repeat(400)'
        )
        assert (await a.exec('text("a".repeat(5000))')).code == "output_limit_exceeded"
        assert (await b.wait(run_id_of(parked))).value == "b" * 400


async def test_hooks_and_watchers_of_a_run_see_its_calls_alone(pool: Pool) -> None:
    seen: dict[str, list[str]] = {"a": [], "b": []}
    watched: dict[str, list[CallEvent]] = {"a": [], "b": []}

    def hooked(name: str) -> Hooks:
        hooks = Hooks()

        def note(event: BeforeToolCall) -> None:
            seen[name].append(f"{event.tool_name} of {event.run.agent_id}")

        hooks.before_tool_call(note)
        return hooks

    tools = [answering("mine", 1)]
    async with (
        CodeMode(tools=tools, pool=pool, context=who("a"), hooks=hooked("a")) as a,
        CodeMode(tools=tools, pool=pool, context=who("b"), hooks=hooked("b")) as b,
    ):
        a.watch(watched["a"].append)
        b.watch(watched["b"].append)
        await a.exec("await tools.mine(); await tools.mine()", call_id="of a")
        await b.exec("await tools.mine()", call_id="of b")
    assert seen == {"a": ["exec of a", "mine of a", "mine of a"], "b": ["exec of b", "mine of b"]}
    assert {event.parent_id for event in watched["a"]} == {"of a"}
    assert {event.parent_id for event in watched["b"]} == {"of b"}
    assert (len(watched["a"]), len(watched["b"])) == (4, 2)


@pytest.mark.covers("HK-7")
async def test_an_approval_for_always_is_one_agents_and_one_tools(pool: Pool) -> None:
    desk = Approvals(ask_for=["*"])
    tools = [answering("mine", 1), answering("other", 2)]

    async def asks(code_mode: CodeMode, source: str) -> tuple[CodeModeResult, list[str]]:
        before = {question.id for question in desk.pending()}
        result = await code_mode.exec(source)
        return result, [item.id for item in desk.pending() if item.id not in before]

    async with (
        CodeMode(tools=tools, pool=pool, approvals=desk, context=who("a", "s1", "r1")) as a,
        CodeMode(tools=tools, pool=pool, approvals=desk, context=who("a", "s2", "r2")) as again,
        CodeMode(tools=tools, pool=pool, approvals=desk, context=who("b", "s1", "r1")) as b,
    ):
        waiting, (question,) = await asks(a, "return await tools.mine()")
        assert desk.resolve(question, "allow-always")
        assert (await a.wait(run_id_of(waiting))).value == 1
        for allowed in (a, again):
            result, asked = await asks(allowed, "return await tools.mine()")
            assert (result.value, asked) == (1, [])
        # Another agent is asked about, and so is another tool.
        for code_mode, source in (
            (b, "return await tools.mine()"),
            (a, "return await tools.other()"),
        ):
            result, asked = await asks(code_mode, source)
            assert (result.status, len(asked)) == ("waiting", 1)
            assert desk.resolve(asked[0], "deny")
            assert (await code_mode.wait(run_id_of(result))).code == "nested_tool_failed"
        assert desk.remembered() == [("a", "openclaw:core:mine")]


async def test_a_question_names_its_run_and_its_answer_reaches_no_other(pool: Pool) -> None:
    desk, tools = Approvals(ask_for=["mine"]), [answering("mine", 1)]
    async with (
        CodeMode(tools=tools, pool=pool, approvals=desk, context=who("a")) as a,
        CodeMode(tools=tools, pool=pool, approvals=desk, context=who("b")) as b,
    ):
        first = await a.exec('return await tools.mine({ of: "a" })')
        second = await b.exec('return await tools.mine({ of: "b" })')
        questions = {question.run.agent_id: question for question in desk.pending()}
        assert {agent: item.input["of"] for agent, item in questions.items()} == {
            "a": "a",
            "b": "b",
        }
        assert desk.resolve(questions["a"].id, "deny")
        assert (await a.wait(run_id_of(first))).code == "nested_tool_failed"
        assert [question.id for question in desk.pending()] == [questions["b"].id]
        assert desk.resolve(questions["b"].id, "allow-once")
        assert (await b.wait(run_id_of(second))).value == 1


async def test_a_question_goes_when_its_run_ends(pool: Pool) -> None:
    desk, tools = Approvals(ask_for=["mine"]), [answering("mine", 1)]
    async with CodeMode(tools=tools, pool=pool, approvals=desk, context=who("b")) as b:
        async with CodeMode(tools=tools, pool=pool, approvals=desk, context=who("a")) as a:
            await a.exec("await tools.mine()")
            parked = await b.exec("return await tools.mine()")
            assert len(desk.pending()) == 2
        (question,) = desk.pending()
        assert question.run.agent_id == "b"
        assert desk.resolve(question.id, "allow-once")
        assert (await b.wait(run_id_of(parked))).value == 1


# ---- What one run's trouble is to another ----


@pytest.mark.parametrize(
    "trouble",
    [
        "for (;;);",
        "const all = []; for (;;) all.push(new Array(1000).fill(0))",
        "const f = () => f(); f()",
        "text('x'.repeat(1e7))",
        "for (let i = 0; i < 2000; i++) tools.mine()",
        "/(a+)+$/.test('a'.repeat(40) + '!')",
        "await new Promise(() => {})",
        "throw new Error('no')",
    ],
)
async def test_the_failure_of_one_run_is_its_own(pool: Pool, trouble: str) -> None:
    config = CodeModeConfig(timeout_ms=200, memory_limit_bytes=4 << 20)
    tools = [answering("mine", 1)]
    async with (
        CodeMode(tools=tools, pool=pool, config=config, context=who("a")) as a,
        CodeMode(tools=tools, pool=pool, context=who("b")) as b,
    ):
        parked = await b.exec("const held = [1, 2]; await yield_control(); return held")
        results: list[CodeModeResult] = []

        async def execute() -> None:
            results.append(await b.exec("return await tools.mine()"))

        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(execute)
                assert (await a.exec(trouble)).status == "failed"
        assert results[0].value == 1
        assert (await b.wait(run_id_of(parked))).value == [1, 2]
        assert b.telemetry.to_json()["failures"] == {}


async def test_a_worker_that_dies_with_one_runs_program_takes_no_parked_one_along(
    pool: Pool,
) -> None:
    async def kill(params: JsonObject, context: ToolContext) -> None:
        worker = only_worker(pool)
        worker.kill()
        await until(lambda: not worker.alive)

    async with (
        CodeMode(tools=[Tool("kill", "Kill.", {}, kill)], pool=pool, context=who("a")) as a,
        CodeMode(tools=[answering("mine", 1)], pool=pool, context=who("b")) as b,
    ):
        parked = await b.exec("const held = [1, 2]; await yield_control(); return held")
        assert (await a.exec("await tools.kill()")).code == "runtime_unavailable"
        assert await value(b, "return await tools.mine()") == 1
        assert (await b.wait(run_id_of(parked))).value == [1, 2]


async def test_the_end_of_one_run_ends_nothing_of_another(pool: Pool, store: SnapshotStore) -> None:
    release, begun = anyio.Event(), anyio.Event()
    results: list[CodeModeResult] = []

    async def slow(params: JsonObject, context: ToolContext) -> str:
        begun.set()
        await release.wait()
        return "answer"

    tools = [Tool("slow", "Slow.", {}, slow), answering("mine", 1)]
    async with CodeMode(tools=tools, pool=pool, store=store, context=who("b")) as b:
        async with CodeMode(tools=tools, pool=pool, store=store, context=who("a")) as a:
            of_a = run_id_of(await a.exec("tools.slow(); await yield_control()"))
            of_b = run_id_of(await b.exec("await yield_control(); return 2"))

            async def execute() -> None:
                results.append(await b.exec("return await tools.slow()"))

            async with anyio.create_task_group() as group:
                group.start_soon(execute)
                await begun.wait()
                await a.end_run()
                assert (await a.wait(of_a)).code == "aborted"
                release.set()
        assert results[0].value == "answer"
        assert (await b.wait(of_b)).value == 2
        assert await value(b, "return await tools.mine()") == 1


@pytest.mark.covers("P-12")
async def test_programs_of_a_code_mode_can_have_processes_of_their_own(pool: Pool) -> None:
    used: list[int] = []
    others = {None, *pool._workers.tenants.values()}  # of other tests

    @tool
    def note() -> int:
        """Notes the worker that runs the program."""
        (worker,) = (worker for worker, cell in pool._workers.tenants.items() if cell not in others)
        used.append(worker.pid)
        return 1

    for isolation, processes in (("shared", 1), ("process-per-cell", 3)):
        used.clear()
        async with CodeMode(tools=[note], pool=pool, config={"isolation": isolation}) as code_mode:
            for _ in range(3):
                assert (await code_mode.exec("return tools.note()")).unwrap() == 1
        assert len(set(used)) == processes
    with pytest.raises(ConfigurationError, match="isolation"):
        CodeMode(config={"isolation": "none"})
