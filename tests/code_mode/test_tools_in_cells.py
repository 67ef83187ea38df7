"""Programs that call real tools: through every layer, across parks, and when it goes wrong."""

import gc
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from tests.support.waiting import Gate, LoopStall, idle, undisturbed_time

from clawmode import CodeMode, CodeModeConfig, CodeModeResult, Pool, RunContext
from clawmode.catalog.catalog import Catalog
from clawmode.catalog.namespaces import NamespaceRegistration, NamespaceRegistry, namespace_tool
from clawmode.tools.approvals import Approvals
from clawmode.tools.function import tool
from clawmode.tools.hooks import BeforeToolCall, Hooks, ToolCallDecision
from clawmode.tools.tool import Tool

pytestmark = pytest.mark.anyio


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def sleep() -> None:
    """Never end."""
    await anyio.sleep_forever()


@tool(effect="write")
async def broken() -> None:
    """Fail."""
    raise RuntimeError("the printer is on fire")


def making(pool: Pool, tools: list[Tool] | None = None, **options: Any) -> CodeMode:
    return CodeMode(tools=tools or [add, sleep, broken], pool=pool, **options)


async def finish(code_mode: CodeMode, result: CodeModeResult) -> CodeModeResult:
    with anyio.fail_after(15):
        while result.status == "waiting":
            assert result.run_id is not None
            result = await code_mode.wait(result.run_id)
    return result


async def run(pool: Pool, source: str, **options: Any) -> CodeModeResult:
    async with making(pool, **options) as code_mode:
        return await finish(code_mode, await code_mode.exec(source))


async def value(pool: Pool, source: str, **options: Any) -> Any:
    result = await run(pool, source, **options)
    assert result.status == "completed", result
    return result.value


# ---- Calling ----


@pytest.mark.covers("CM-V7")
async def test_a_tool_is_searched_described_and_called(pool: Pool) -> None:
    source = """const [hit] = await tools.search("add two numbers");
const { id, parameters } = await tools.describe(hit.id);
return [id, Object.keys(parameters.properties), await tools.call(id, { a: 1, b: 2 }),
  await tools.add({ a: 3, b: 4 }), ALL_TOOLS.map((t) => t.name)]"""
    assert await value(pool, source) == [
        "openclaw:core:add",
        ["a", "b"],
        3,
        7,
        ["add", "broken", "sleep"],
    ]


@pytest.mark.covers("EX-1")
async def test_sequential_calls_complete_in_one_exec(pool: Pool) -> None:
    async with making(pool) as code_mode:
        source = (
            "let n = 0; for (let i = 0; i < 5; i++) n = await tools.add({ a: n, b: i }); return n"
        )
        result = await code_mode.exec(source)
    assert (result.status, result.value, code_mode.telemetry.calls) == ("completed", 10, 5)


async def test_calls_run_side_by_side_up_to_the_limit(pool: Pool) -> None:
    running: list[int] = []

    @tool
    async def busy() -> int:
        """Count who is here."""
        running.append(1)
        now = len(running)
        await idle()
        running.pop()
        return now

    source = "const r = await Promise.all(Array.from({ length: 9 }, () => tools.busy())); return r"
    config = CodeModeConfig(max_pending_tool_calls=3)
    seen = await value(pool, source, tools=[busy], config=config)
    assert len(seen) == 9
    assert max(seen) == 3


@pytest.mark.covers("EX-4")
async def test_more_calls_than_may_queue_start_none_of_them(pool: Pool) -> None:
    called: list[int] = []

    @tool
    def note(n: int) -> None:
        """Note a number."""
        called.append(n)

    source = "await Promise.all(Array.from({ length: 131 }, (_, n) => tools.note({ n })))"
    config = CodeModeConfig(max_pending_tool_calls=2)
    result = await run(pool, source, tools=[note], config=config)
    assert (result.code, called) == ("too_many_pending_tool_calls", [])
    assert (
        await run(pool, source.replace("131", "130"), tools=[note], config=config)
    ).value is None
    assert sorted(called) == list(range(130))


# ---- Look-ups that take their time ----

NAME = "create_an_issue_in_the_project_of_the_team_that_owns_the_repository_"


def many_tools(count: int = 200) -> list[Tool]:
    return [Tool(f"{NAME}{n}", "Create it.", {}, add.execute) for n in range(count)]


async def stalled(code_mode: CodeMode, source: str) -> tuple[float, CodeModeResult]:
    """How long a program holds up the event loop, and what becomes of it."""
    stall = LoopStall()
    gc.collect()  # the garbage of thousands of earlier tests is not the program's
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stall.watch)
        result = await code_mode.exec(source)
        tasks.cancel_scope.cancel()
    return stall.seconds, result


@pytest.mark.covers("B-3", "EX-2")
@pytest.mark.parametrize("function", ["describe", "call"])
async def test_unknown_names_do_not_stall_the_event_loop(pool: Pool, function: str) -> None:
    """The bound is the issue's: 50 ms for a thousand names."""
    count = 1000 if function == "describe" else 140
    source = f"""const ask = (_, i) => tools.{function}("{NAME.replace("te", "t")}" + i);
await Promise.allSettled(Array.from({{ length: {count} }}, ask));
return 1"""
    async with making(pool, tools=many_tools(), config=CodeModeConfig(timeout_ms=4000)) as one:
        assert (await one.exec("return 1")).value == 1
        seconds, result = await stalled(one, source)
    assert seconds < 0.05
    assert result.status in ("completed", "waiting")


@pytest.mark.covers("B-3", "EX-2")
async def test_a_program_that_asks_on_and_on_is_back_in_time(pool: Pool) -> None:
    source = f"""while (true) {{
  const ask = (_, i) => tools.describe("{NAME.replace("te", "t")}" + i);
  await Promise.allSettled(Array.from({{ length: 1000 }}, ask));
}}"""
    async with making(pool, tools=many_tools(), config=CodeModeConfig(timeout_ms=500)) as one:
        pids = [worker.pid for worker in pool._workers.tenants]
        began = undisturbed_time(*pids)
        seconds, result = await stalled(one, source)
        assert undisturbed_time(*pids) - began < 1.0
        assert seconds < 0.05
        assert (result.status, result.reason) == ("waiting", "pending_tools")
        assert {row["method"] for row in result.pending_tool_calls} <= {"describe"}  # pyrefly: ignore
        assert len(result.pending_tool_calls) <= 10


@pytest.mark.covers("EX-2")
@pytest.mark.parametrize(("kept", "open_for"), [(3, 2.7), (900, 870), (86_400, 86_370)])
async def test_a_question_closes_before_its_program_expires(
    pool: Pool, kept: int, open_for: float
) -> None:
    """Otherwise a program that nobody answers expires before it hears of that."""
    desk = Approvals(ask_for=["add"], expiry_seconds=1e6)
    config = CodeModeConfig(snapshot_ttl_seconds=kept)
    async with making(pool, approvals=desk, config=config) as code_mode:
        began = time.time()
        assert (await code_mode.exec("return tools.add({a: 1, b: 2})")).status == "waiting"
        (question,) = desk.pending()
        assert open_for <= question.expires - began <= open_for + time.time() - began


@pytest.mark.covers("B-12", "EX-4")
async def test_any_number_of_descriptions_may_be_asked_for_at_once(pool: Pool) -> None:
    source = """const all = await Promise.all(ALL_TOOLS.map((tool) => tools.describe(tool.id)));
return new Set(all.map((tool) => tool.name)).size"""
    assert await value(pool, source, tools=many_tools(1500)) == 1500


async def test_large_answers_are_handed_over_in_parts(pool: Pool) -> None:
    schema = {"type": "object", "description": "x" * 1_000_000}
    tools = [Tool("large", "Large.", schema, add.execute)]
    source = """let total = 0;
const ask = async () => {
  const { parameters } = await tools.describe("large");
  total += parameters.description.length;
};
await Promise.all(Array.from({ length: 12 }, ask));
return total"""
    assert await value(pool, source, tools=tools) == 12_000_000


@pytest.fixture
def held_search(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Searches take until this is set."""
    go, search = threading.Event(), Catalog.search

    def slow(*args: Any, **options: Any) -> Any:
        assert go.wait(10)
        return search(*args, **options)

    monkeypatch.setattr(Catalog, "search", slow)
    yield go
    go.set()


@pytest.mark.covers("B-13", "WA-4")
async def test_a_search_that_outlives_the_deadline_is_pending_and_answered_later(
    pool: Pool, held_search: threading.Event
) -> None:
    source = "return (await tools.search('add')).map((found) => found.name)"
    async with making(pool, config=CodeModeConfig(timeout_ms=300)) as one:
        result = await one.exec(source)
        assert (result.status, result.reason) == ("waiting", "pending_tools")
        expected = [{"id": "1", "method": "search", "state": "queued"}]
        assert result.pending_tool_calls == expected
        held_search.set()
        assert (await finish(one, result)).value == ["add"]


@pytest.mark.covers("B-12")
async def test_unanswered_searches_are_not_parked_without_bounds(
    pool: Pool, held_search: threading.Event
) -> None:
    source = "await Promise.all([1, 2, 3].map(() => tools.search('x'.repeat(200_000))))"
    config = CodeModeConfig(timeout_ms=300, max_snapshot_bytes=500_000)
    async with making(pool, config=config) as one:
        result = await one.exec(source)
    assert result.code == "snapshot_limit_exceeded"
    assert "look-ups" in str(result.error)


async def test_a_failing_tool_can_be_caught_and_else_names_itself(pool: Pool) -> None:
    caught = "try { await tools.broken() } catch (e) { return [e.message, e.code, e.toolId] }"
    assert await value(pool, caught) == [
        "the printer is on fire",
        "tool_failed",
        "openclaw:core:broken",
    ]
    result = await run(pool, "await tools.add({ a: 1, b: 1 }); await tools.broken()")
    assert result.code == "nested_tool_failed"
    assert "openclaw:core:broken" in str(result.error)


@pytest.mark.covers("TR-5")
async def test_a_failed_result_says_what_became_of_each_call(pool: Pool) -> None:
    source = """tools.sleep().catch(() => {});
await tools.add({ a: 1, b: 1 });
await tools.broken();"""
    result = await run(pool, source)
    assert result.to_json()["calls"] == [
        {"id": "1", "toolId": "openclaw:core:sleep", "state": "cancelled"},
        {
            "id": "2",
            "toolId": "openclaw:core:add",
            "state": "completed",
            "input": {"a": 1, "b": 1},
        },
        {"id": "3", "toolId": "openclaw:core:broken", "state": "failed", "effect": "write"},
    ]


@pytest.mark.covers("CA-2", "CA-8b")
@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("tools.call('openclaw:core:ad')", "openclaw:core:add"),
        ("tools.call('twin')", "plugin:a:twin"),
        ("tools.call(5)", "a tool's id"),
        ("tools.call('add', 5)", "one object"),
        ("tools.call('add', [1])", "one object"),
        ("tools.add({ a: 1, c: 2 })", "b"),
        ("tools.search(5)", "a string"),
        ("tools.describe('nothing')", "nothing"),
    ],
)
async def test_a_wrong_call_is_an_error_that_helps(pool: Pool, call: str, says: str) -> None:
    twins = [Tool("twin", "A twin.", {}, print, source="plugin", owner=o) for o in ("a", "b")]
    source = f"try {{ await {call}; return 'no error' }} catch (e) {{ return e.message }}"
    assert says in await value(pool, source, tools=[add, *twins])


@pytest.mark.covers("CA-7")
async def test_a_denied_tool_is_neither_seen_nor_found_nor_called(pool: Pool) -> None:
    source = """const seen = [ALL_TOOLS.map((t) => t.name), typeof tools.add,
  (await tools.search("add numbers")).length];
for (const id of ["add", "openclaw:core:add"])
  try { await tools.call(id, { a: 1, b: 1 }); seen.push("called") } catch (e) { seen.push(e.code) }
return seen"""
    assert await value(pool, source, policy={"deny": ["ADD"]}) == [
        ["broken", "sleep"],
        "undefined",
        0,
        "unknown_tool",
        "unknown_tool",
    ]


@pytest.mark.covers("HK-1")
async def test_nested_calls_pass_the_hooks_with_their_parent(pool: Pool) -> None:
    hooks, seen = Hooks(), list[BeforeToolCall]()

    def hook(event: BeforeToolCall) -> ToolCallDecision:
        seen.append(event)
        return ToolCallDecision(params={"a": 40, "b": 2} if event.tool_name == "add" else None)

    hooks.before_tool_call(hook)
    who = RunContext(agent_id="agent", session_id="s")
    async with making(pool, hooks=hooks, context=who) as code_mode:
        result = await code_mode.exec("return await tools.add({ a: 1, b: 1 })", call_id="call-7")
    assert result.value == 42
    outer, event = seen
    assert (outer.tool_kind, outer.parent_id) == ("code_mode_exec", None)
    assert (event.parent_id, event.run, event.tool_kind) == ("call-7", who, None)


# ---- Waiting ----


@pytest.mark.covers("EX-1", "WA-6")
async def test_a_call_that_outlives_the_deadline_is_waited_for(pool: Pool) -> None:
    gate = Gate()
    source = 'text("a"); const r = await tools.slow({}); text("b"); return r'
    config = CodeModeConfig(timeout_ms=500)
    async with making(pool, tools=[gate.tool], config=config) as code_mode:
        result = await code_mode.exec(source)
        assert (result.status, result.reason) == ("waiting", "pending_tools")
        assert result.output == [{"type": "text", "text": "a"}]
        assert result.pending_tool_calls == [
            {"id": "1", "method": "call", "toolId": "openclaw:core:slow", "state": "running"}
        ]
        gate.open.set()
        result = await finish(code_mode, result)
    assert (result.value, result.output) == ("slow is done", [{"type": "text", "text": "b"}])
    snapshots = code_mode.telemetry.snapshots
    assert snapshots == {"created": 1, "restored": 1, "expired": 0, "deleted": 1}


@pytest.mark.covers("WA-3")
async def test_a_wait_that_runs_out_of_time_keeps_the_cell(pool: Pool) -> None:
    gate, config = Gate(), CodeModeConfig(timeout_ms=200)
    async with making(pool, tools=[gate.tool], config=config) as code_mode:
        first = await code_mode.exec("return await tools.slow({})")
        assert first.run_id is not None
        began, undisturbed = time.monotonic(), undisturbed_time()
        second = await code_mode.wait(first.run_id)
        assert (second.status, second.run_id) == ("waiting", first.run_id)
        assert time.monotonic() - began > 0.1
        assert undisturbed_time() - undisturbed < 1
        gate.open.set()
        assert (await finish(code_mode, second)).value == "slow is done"
        assert (await code_mode.wait(first.run_id)).code == "invalid_input"


@pytest.mark.covers("WA-2")
async def test_a_second_concurrent_wait_is_rejected_and_the_first_continues(pool: Pool) -> None:
    gate, config = Gate(), CodeModeConfig(timeout_ms=1000)
    async with making(pool, tools=[gate.tool], config=config) as code_mode:
        source = "await yield_control(); return await tools.slow({})"
        run_id = (await code_mode.exec(source)).run_id
        assert run_id is not None
        results: list[CodeModeResult] = []

        async def wait() -> None:
            results.append(await code_mode.wait(run_id))

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await idle()
            assert (await code_mode.wait(run_id)).code == "invalid_input"
            gate.open.set()
    assert results[0].value == "slow is done"


@pytest.mark.covers("EX-2")
async def test_a_person_does_not_hold_exec_open(pool: Pool) -> None:
    desk = Approvals(ask_for=["add"])
    async with making(pool, approvals=desk) as code_mode:
        began = undisturbed_time()
        result = await code_mode.exec("return await tools.add({ a: 1, b: 1 })")
        assert undisturbed_time() - began < 2
        assert (result.status, result.reason) == ("waiting", "pending_tools")
        (question,) = desk.pending()
        assert question.input == {"a": 1, "b": 1}
        assert desk.resolve(question.id, "allow-once")
        assert (await finish(code_mode, result)).value == 2


@pytest.mark.covers("WA-7")
async def test_an_aborted_cell_is_gone_at_once_with_its_calls(pool: Pool) -> None:
    ended: list[str] = []

    @tool
    async def slow() -> None:
        """Take long."""
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cancelled")

    config = CodeModeConfig(timeout_ms=200)
    async with making(pool, tools=[slow], config=config) as code_mode:
        result = await code_mode.exec("return await tools.slow()")
        assert result.run_id is not None
        assert await code_mode.abort(result.run_id)
        await idle()
        assert ended == ["cancelled"]
        assert (await code_mode.wait(result.run_id)).code == "aborted"
        assert not await code_mode.abort(result.run_id)


async def test_leaving_code_mode_ends_what_is_under_way(pool: Pool) -> None:
    with anyio.fail_after(5):
        async with making(pool, config=CodeModeConfig(timeout_ms=100)) as code_mode:
            result = await code_mode.exec("return await tools.sleep()")
            assert result.status == "waiting"


async def test_a_reply_that_is_too_large_is_an_error_that_says_so(pool: Pool) -> None:
    @tool
    def huge() -> str:
        """Answer at length."""
        return "x" * (9 << 20)

    source = "try { await tools.huge() } catch (e) { return [e.code, e.message] }"
    code, message = await value(pool, source, tools=[huge])
    assert (code, "page by page" in message) == ("reply_too_large", True)


# ---- Namespaces ----


@pytest.mark.covers("CM-N7", "CM-N8", "CM-ns-same-path")
async def test_a_namespace_calls_its_tools_by_the_same_path(pool: Pool) -> None:
    seen: list[Any] = []

    @tool(source="plugin", owner="github")
    async def list_issues(state: str = "open") -> list[str]:
        """List issues."""
        seen.append(state)
        if state == "secret":
            raise PermissionError("no")
        return [state]

    registry = NamespaceRegistry()
    registry.register_for_plugin(
        "github",
        NamespaceRegistration(
            id="issues",
            global_name="Issues",
            description="Issues.",
            required_tool_names=("list_issues",),
            create_scope=lambda context: {
                "repository": context.run.agent_id,
                "list": namespace_tool("list_issues", lambda args: {"state": args[0]}),
            },
        ),
    )
    source = """const first = await Issues.list("closed");
const failed = await namespaces.Issues.list("secret").catch((e) => e.code);
return [Issues.repository, first, failed]"""
    got = await value(pool, source, tools=[list_issues], namespaces=registry)
    assert got == ["main", ["closed"], "tool_failed"]
    assert seen == ["closed", "secret"]


@pytest.mark.covers("EX-2")
async def test_one_decision_after_the_other_is_waited_for(pool: Pool) -> None:
    approvals = Approvals(ask_for=["add"])
    source = "let a = 0; for (let i = 0; i < 3; i++) a = await tools.add({ a, b: 1 }); return a"
    async with making(pool, approvals=approvals) as code_mode:
        result = await code_mode.exec(source)
        for _ in range(3):
            (question,) = approvals.pending()
            approvals.resolve(question.id, "allow-once")
            result = await code_mode.wait(result.run_id)
        assert result.value == 3
        assert code_mode._calls.groups == {}


async def test_a_namespace_that_is_cleared_is_gone_for_the_next_program(pool: Pool) -> None:
    registry = NamespaceRegistry()
    backing = Tool("list", "List.", {}, lambda input, context: [], source="plugin", owner="github")
    made = NamespaceRegistration(
        id="issues",
        global_name="Issues",
        description="Issues.",
        required_tool_names=["list"],
        create_scope=lambda context: {"list": namespace_tool("list")},
    )
    registry.register_for_plugin("github", made)
    async with making(pool, tools=[backing], namespaces=registry) as code_mode:
        assert (await code_mode.exec("return typeof Issues")).value == "object"
        waiting = await code_mode.exec("await yield_control(); return Issues.list().catch(String)")
        registry.clear_for_plugin("github")
        assert (await code_mode.exec("return typeof Issues")).value == "undefined"
        assert "Issues" not in str(code_mode.definitions())
        late = await finish(code_mode, waiting)
        assert "no namespace 'issues'" in str(late.value)
        registry.register_for_plugin("github", made)
        assert (await code_mode.exec("return (await Issues.list()).length")).value == 0


# ---- Guards that match nothing ----


@pytest.mark.covers("N-7")
async def test_a_guard_that_matches_no_tool_is_a_warning_with_the_nearest_name_once(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {
        "approvals": Approvals(ask_for=["adde", "sleep"]),
        "policy": {"allow": ["ad*", "slep", "sleep"], "deny": ["brokn"]},
    }
    with caplog.at_level(logging.WARNING, "clawmode.code_mode"):
        for _ in range(2):  # as a server does: one object for each request
            async with making(pool, **options):
                pass
    assert [record.getMessage() for record in caplog.records] == [
        "tools.allow: 'slep' matches no tool of this run; did you mean 'sleep'?",
        "tools.deny: 'brokn' matches no tool of this run; did you mean 'broken'?",
        "Approvals(ask_for=…): 'adde' matches no tool of this run; did you mean 'add'?",
    ]


@pytest.mark.covers("N-7")
async def test_one_name_in_the_place_of_a_list_is_asked_for(pool: Pool) -> None:
    async with making(pool, approvals=Approvals(ask_for="add")) as code_mode:
        result = await code_mode.exec("return await tools.add({a: 1, b: 2})")
        assert [question.tool_id for question in code_mode.approvals.pending()] == [add.id]
        assert result.status == "waiting"


@pytest.mark.covers("N-11", "EX-8")
async def test_a_program_reads_the_type_of_a_tools_exception(pool: Pool) -> None:
    @tool
    def boom() -> None:
        raise KeyError("x")

    caught = "try { await tools.boom() } catch (e) { return [`${e}`, e.code, e.toolId] }"
    result = await run(pool, caught, tools=[boom])
    assert result.value == ["KeyError: 'x'", "tool_failed", boom.id]
    result = await run(pool, "await tools.boom()", tools=[boom])
    assert result.code == "nested_tool_failed"
    assert str(result.error).startswith(f"KeyError: 'x' (tool {boom.id})")
    assert ".py" not in str(result.to_json())


# ---- Rate limits ----


class TooFast(Exception):
    """What an HTTP library raises."""

    status_code = 429
    retry_after = 0.25


@tool
async def limited() -> None:
    """Refuse."""
    raise TooFast("slow down")


@pytest.mark.covers("AD-8", "EX-8")
async def test_a_rate_limit_has_its_own_code_and_a_pause(pool: Pool) -> None:
    source = """try { await tools.limited() }
catch (e) { return [e.name, e.message, e.code, e.retryAfterMs, e.toolId, Object.keys(e)] }"""
    keys = ["code", "toolId", "retryAfterMs"]
    expected = ["TooFast", "slow down", "rate_limited", 250, "openclaw:core:limited", keys]
    assert await value(pool, source, tools=[limited]) == expected


@pytest.mark.covers("AD-8")
async def test_an_uncaught_rate_limit_says_how_long_to_wait(pool: Pool) -> None:
    result = await run(pool, "await tools.limited()", tools=[limited])
    assert result.code == "nested_tool_failed"
    assert "rate_limited: wait 250 ms" in (result.error or "")
