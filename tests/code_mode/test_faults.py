"""Tools, hooks and workers that misbehave: a call or a cell fails, clearly, and nothing else."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
from tests.support.sandbox_driver import only_worker
from tests.support.waiting import undisturbed_time, until, within

from clawmode import (
    Approvals,
    CodeMode,
    CodeModeConfig,
    CodeModeResult,
    Hooks,
    Pool,
    Question,
    ToolContext,
    tool,
)
from clawmode.tools.approvals import Decision
from clawmode.tools.executor import CallEvent
from clawmode.tools.hooks import AfterToolCall
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio


@pytest.fixture
def pool(one_worker_pool: Pool) -> Pool:
    """One worker: what one cell leaves in it, the next one meets."""
    return one_worker_pool


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def untyped(name: str, execute: Callable[[JsonObject, ToolContext], Any], **options: Any) -> Tool:
    """A tool that answers whatever its code does: no schema stands in between."""
    return Tool(name, "Answer.", {}, execute, **options)


CAUGHT = """try { return ["answered", await tools.faulty()] }
catch (e) { return [e.name, e.code, e.toolId, e.message, await tools.add({ a: 1, b: 1 })] }"""
"""What became of a call, and that the program goes on."""


async def expect_usable(code_mode: CodeMode) -> None:
    """Nothing is left behind: the next cell runs, calls and completes."""
    result = await code_mode.exec("return await tools.add({ a: 40, b: 2 })")
    assert (result.status, result.value) == ("completed", 42), result


async def outcome(pool: Pool, faulty: Tool, source: str = CAUGHT, **options: Any) -> Any:
    """The value of a program that calls a faulty tool; the next program is fine."""
    async with CodeMode(tools=[add, faulty], pool=pool, **options) as code_mode:
        result = await code_mode.exec(source)
        assert result.status == "completed", result
        await expect_usable(code_mode)
    return result.value


# ---- Tools that raise ----


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("on fire"), "on fire"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "'k'"),
        (TimeoutError("slow"), "slow"),
        (MemoryError(), "MemoryError"),
        (RecursionError("deep"), "deep"),
        (ExceptionGroup("both", [ValueError(), TypeError()]), "both (2 sub-exceptions)"),
        (RuntimeError("\ud800 and \0"), "\ufffd and \0"),
    ],
)
@pytest.mark.covers("N-11", "EX-8")
async def test_what_a_tool_raises_is_its_name_and_its_message_and_no_more(
    pool: Pool, error: Exception, message: str
) -> None:
    def faulty(params: JsonObject, context: ToolContext) -> None:
        raise error

    name, code, tool_id, text, went_on = await outcome(pool, untyped("faulty", faulty))
    assert (name, code, went_on) == (type(error).__name__, "tool_failed", 2)
    assert (tool_id, text) == ("openclaw:core:faulty", message)


async def test_an_error_without_a_readable_message_fails_its_call_alone(pool: Pool) -> None:
    def faulty(params: JsonObject, context: ToolContext) -> None:
        raise Unprintable

    _, code, tool_id, _, went_on = await outcome(pool, untyped("faulty", faulty))
    assert (tool_id, went_on) == ("openclaw:core:faulty", 2)
    assert code in ("tool_failed", "internal_error")


async def test_a_huge_message_is_cut(pool: Pool) -> None:
    def faulty(params: JsonObject, context: ToolContext) -> None:
        raise RuntimeError("x" * (20 << 20))

    _, code, _, text, _ = await outcome(pool, untyped("faulty", faulty))
    assert code == "tool_failed"
    assert len(text) == 16384


# Raised by a tool, `except Exception` in the executor does not see these: the error ends the task
# group of the `CodeMode`, and with it every program of the run and the program around it.
# KeyboardInterrupt is missing on purpose where the tool runs in the main thread: there it may be
# a person's Ctrl-C, which must get through.
STRANGE: list[tuple[bool, BaseException]] = [
    (True, SystemExit(3)),
    (False, SystemExit(3)),
    (False, KeyboardInterrupt()),
    (True, GeneratorExit()),
    (False, GeneratorExit()),
    (True, asyncio.CancelledError("by itself")),
    (False, asyncio.CancelledError("by itself")),
    (True, BaseExceptionGroup("group", [SystemExit(1)])),
]


@pytest.mark.parametrize(
    ("is_async", "error"),
    [
        (True, StopIteration(5)),
        (False, StopIteration(5)),
        (True, StopAsyncIteration()),
        *STRANGE,
    ],
)
async def test_what_is_no_ordinary_exception_fails_its_call_alone(
    pool: Pool, is_async: bool, error: BaseException
) -> None:
    def blocking(params: JsonObject, context: ToolContext) -> None:
        raise error

    async def cooperative(params: JsonObject, context: ToolContext) -> None:
        raise error

    faulty = untyped("faulty", cooperative if is_async else blocking)
    with anyio.fail_after(5):
        _, code, tool_id, text, went_on = await outcome(pool, faulty)
    assert (code, tool_id, went_on) == ("tool_failed", "openclaw:core:faulty", 2)
    assert text


async def test_a_cancelled_future_that_a_tool_waits_for_fails_its_call_alone(pool: Pool) -> None:
    async def faulty(params: JsonObject, context: ToolContext) -> None:
        task = asyncio.ensure_future(anyio.sleep_forever())
        asyncio.get_running_loop().call_soon(task.cancel)
        await task

    with anyio.fail_after(5):
        assert (await outcome(pool, untyped("faulty", faulty)))[1] == "tool_failed"


# ---- Answers that are no answers ----


class Opaque:
    """Nothing that JSON knows."""


def recursive() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize(
    "answer",
    [
        {1, 2},
        Opaque(),
        Opaque,
        print,
        float("nan"),
        [float("-inf")],
        b"bytes",
        bytearray(b"x"),
        recursive(),
        nested(100_000),
        10**5000,
        {(1, 2): "a tuple for a key"},
        {b"k": 1},
        ValueError("returned, not raised"),
        (n for n in range(3)),
        1j,
    ],
    ids=lambda answer: type(answer).__name__,
)
async def test_an_answer_that_is_not_json_is_an_error_that_can_be_caught(
    pool: Pool, answer: Any
) -> None:
    faulty = untyped("faulty", lambda params, context: answer)
    name, code, tool_id, text, went_on = await outcome(pool, faulty)
    assert (name, code, went_on) == ("ToolError", "invalid_tool_output", 2)
    assert tool_id == "openclaw:core:faulty"
    assert "JSON" in text


async def test_an_integer_that_no_number_can_hold_arrives_as_javascript_reads_it(
    pool: Pool,
) -> None:
    faulty = untyped("faulty", lambda params, context: [2**53 + 1, 10**400])
    source = "const [rounded, over] = await tools.faulty(); return [rounded, String(over)]"
    assert await outcome(pool, faulty, source) == [2**53, "Infinity"]


@pytest.mark.parametrize(
    ("answer", "arrives"),
    [
        (None, None),
        ("", ""),
        ([], []),
        ("a\ud800b", "a?b"),
        ({"\udc00": "\ud83d"}, {"?": "?"}),
        ("\u2028 \0 \U0001f600", "\u2028 \0 \U0001f600"),
        ((1, (2, 3)), [1, [2, 3]]),
        (
            {1: "a", None: "b", 2.5: "c", False: "d"},
            {"1": "a", "null": "b", "2.5": "c", "false": "d"},
        ),
        ({"__proto__": {"a": 1}, "constructor": 2}, {"__proto__": {"a": 1}, "constructor": 2}),
        ({"then": "no thenable"}, {"then": "no thenable"}),
        ({"toJSON": 1, "length": -1}, {"toJSON": 1, "length": -1}),
        (2**53 - 1, 2**53 - 1),
        (nested(50), nested(50)),
    ],
)
async def test_an_odd_answer_that_is_json_arrives(pool: Pool, answer: Any, arrives: Any) -> None:
    faulty = untyped("faulty", lambda params, context: answer)
    assert await outcome(pool, faulty) == ["answered", arrives]


@pytest.mark.covers("WA-5")
async def test_an_answer_of_a_hundred_megabytes_is_an_error_that_says_so(pool: Pool) -> None:
    faulty = untyped("faulty", lambda params, context: "x" * (100 << 20))
    _, code, tool_id, text, went_on = await outcome(pool, faulty)
    assert (code, tool_id, went_on) == ("reply_too_large", "openclaw:core:faulty", 2)
    assert str((100 << 20) + 2) in text


async def test_an_answer_as_large_as_may_be_arrives(pool: Pool) -> None:
    faulty = untyped("faulty", lambda params, context: "x" * ((8 << 20) - 2))
    source = "return (await tools.faulty()).length"
    assert await outcome(pool, faulty, source) == (8 << 20) - 2


# ---- Tools that hang, or do not let go ----


def states(result: CodeModeResult) -> list[Any]:
    calls: Any = result.calls
    return [(call["toolId"].rpartition(":")[2], call["state"]) for call in calls]


def pending(result: CodeModeResult) -> list[Any]:
    calls: Any = result.pending_tool_calls
    return [(call["toolId"].rpartition(":")[2], call["state"]) for call in calls]


async def test_a_tool_that_hangs_leaves_its_program_waiting(pool: Pool) -> None:
    release = anyio.Event()

    async def faulty(params: JsonObject, context: ToolContext) -> str:
        await release.wait()
        return "at last"

    tools, config = [add, untyped("faulty", faulty)], CodeModeConfig(timeout_ms=400)
    async with CodeMode(tools=tools, pool=pool, config=config) as code_mode:
        source = """const n = await tools.add({ a: 1, b: 1 }); text("before");
return [n, await tools.faulty()]"""
        worker = only_worker(pool)
        began = undisturbed_time(worker.pid)
        result = await code_mode.exec(source)
        assert undisturbed_time(worker.pid) - began < 1
        assert (result.status, result.reason) == ("waiting", "pending_tools")
        assert result.output == [{"type": "text", "text": "before"}]
        assert pending(result) == [("faulty", "running")]
        run_id = result.run_id
        assert run_id is not None
        await expect_usable(code_mode)
        again = await code_mode.wait(run_id)
        assert (again.status, again.run_id) == ("waiting", run_id)
        release.set()
        assert (await code_mode.wait(run_id)).value == [2, "at last"]


async def test_a_deadline_in_the_guest_cancels_the_calls_that_hang(pool: Pool) -> None:
    cancelled, hanging = anyio.Event(), anyio.Event()

    async def faulty(params: JsonObject, context: ToolContext) -> None:
        hanging.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    tools, config = [add, untyped("faulty", faulty)], CodeModeConfig(timeout_ms=400)
    async with CodeMode(tools=tools, pool=pool, config=config) as code_mode:
        source = """tools.faulty().catch(() => {}); await tools.add({ a: 1, b: 1 }); text("kept");
for (;;);"""
        result = await code_mode.exec(source)
        assert result.code == "timeout"
        assert hanging.is_set()
        assert states(result) == [("faulty", "cancelled"), ("add", "completed")]
        assert result.output == [{"type": "text", "text": "kept"}]
        with within(2):
            await cancelled.wait()
        await expect_usable(code_mode)


async def test_a_tool_that_shields_itself_keeps_nobody_and_its_answer_is_dropped(
    pool: Pool,
) -> None:
    begun, release, ended = anyio.Event(), anyio.Event(), anyio.Event()

    async def faulty(params: JsonObject, context: ToolContext) -> str:
        with anyio.CancelScope(shield=True):
            begun.set()
            await release.wait()
        ended.set()
        return "too late"

    tools, config = [add, untyped("faulty", faulty)], CodeModeConfig(timeout_ms=400)
    async with CodeMode(tools=tools, pool=pool, config=config) as code_mode:
        result = await code_mode.exec("return await tools.faulty()")
        assert (result.status, begun.is_set()) == ("waiting", True)
        try:
            with within(1):  # the tool does not end before it is released
                assert await code_mode.abort(result.run_id)
                assert (await code_mode.wait(result.run_id)).code == "aborted"
                await expect_usable(code_mode)
        finally:
            release.set()  # else a failure would be a hang
        with within(1):
            await ended.wait()
        assert (await code_mode.wait(result.run_id)).code == "aborted"
        await expect_usable(code_mode)


class Stubborn:
    """A tool in a thread, which cannot be cancelled; it ends when it is released."""

    def __init__(self) -> None:
        self.begun, self.release = threading.Event(), threading.Event()
        self.tool = untyped("faulty", self._execute, effect="write")

    def _execute(self, params: JsonObject, context: ToolContext) -> str:
        self.begun.set()
        assert self.release.wait(10)
        return "too late"


async def test_a_tool_in_a_thread_keeps_nobody_and_its_answer_is_dropped(pool: Pool) -> None:
    stubborn, config = Stubborn(), CodeModeConfig(timeout_ms=400)
    try:
        with within(3):
            async with CodeMode(tools=[add, stubborn.tool], pool=pool, config=config) as code_mode:
                result = await code_mode.exec("return await tools.faulty()")
                assert (result.status, stubborn.begun.is_set()) == ("waiting", True)
                assert await code_mode.abort(result.run_id)
                assert (await code_mode.wait(result.run_id)).code == "aborted"
                await expect_usable(code_mode)
                stubborn.begun.clear()
                assert (await code_mode.exec("return await tools.faulty()")).status == "waiting"
            # Left while a thread was still at it.
            assert not stubborn.release.is_set()
    finally:
        stubborn.release.set()


async def test_a_call_that_continues_in_its_thread_is_not_reported_as_cancelled(pool: Pool) -> None:
    stubborn = Stubborn()
    try:
        async with CodeMode(tools=[add, stubborn.tool], pool=pool) as code_mode:
            source = """tools.faulty().catch(() => {}); await tools.add({ a: 1, b: 1 });
throw new Error("give up")"""
            result = await code_mode.exec(source)
        assert result.code == "internal_error"
        assert states(result) == [("faulty", "unknown"), ("add", "completed")]
    finally:
        stubborn.release.set()


async def test_the_end_of_a_parked_program_says_what_became_of_its_calls(pool: Pool) -> None:
    async def faulty(params: JsonObject, context: ToolContext) -> None:
        await anyio.sleep_forever()

    tools, config = [add, untyped("faulty", faulty)], CodeModeConfig(timeout_ms=400)
    async with CodeMode(tools=tools, pool=pool, config=config) as code_mode:
        result = await code_mode.exec("await tools.add({ a: 1, b: 1 }); await tools.faulty()")
        await code_mode.abort(result.run_id)
        result = await code_mode.wait(result.run_id)
    assert result.code == "aborted"
    assert states(result) == [("add", "completed"), ("faulty", "cancelled")]


async def test_a_caller_that_is_cancelled_takes_its_program_and_calls_along(pool: Pool) -> None:
    begun, cancelled = anyio.Event(), anyio.Event()

    async def faulty(params: JsonObject, context: ToolContext) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    async with CodeMode(tools=[add, untyped("faulty", faulty)], pool=pool) as code_mode:
        with within(3):
            async with anyio.create_task_group() as group:
                group.start_soon(code_mode.exec, "await tools.faulty()")
                await begun.wait()
                group.cancel_scope.cancel()
            await cancelled.wait()
            await expect_usable(code_mode)


async def test_a_caller_that_gives_up_waiting_leaves_the_program_to_be_waited_for(
    pool: Pool,
) -> None:
    release = anyio.Event()

    async def faulty(params: JsonObject, context: ToolContext) -> str:
        await release.wait()
        return "at last"

    tools, config = [add, untyped("faulty", faulty)], CodeModeConfig(timeout_ms=400)
    async with CodeMode(tools=tools, pool=pool, config=config) as code_mode:
        result = await code_mode.exec("return await tools.faulty()")
        with anyio.move_on_after(0.02) as gave_up:
            await code_mode.wait(result.run_id)
        assert gave_up.cancelled_caught
        release.set()
        assert (await code_mode.wait(result.run_id)).value == "at last"


@pytest.mark.parametrize("frozen_first", [True, False])
async def test_an_abort_while_the_program_is_being_frozen_parks_nothing(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, frozen_first: bool
) -> None:
    freezing, results = anyio.Event(), list[CodeModeResult]()
    freeze = pool.freeze

    async def watched(cell: Any) -> Any:
        if not frozen_first:
            freezing.set()
        frozen = await freeze(cell)
        if frozen_first:
            freezing.set()
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
        return frozen

    monkeypatch.setattr(pool, "freeze", watched)
    async with CodeMode(tools=[add], pool=pool) as code_mode:

        async def execute() -> None:
            held = "const held = []; for (let i = 0; i < 1e5; i++) held.push({ i });"
            results.append(
                await code_mode.exec(f"{held} await yield_control(); return held.length")
            )

        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(execute)
                await freezing.wait()
                await code_mode.end_run()
        (result,) = results
        assert (result.status, result.code) == ("failed", "aborted"), result.code
        await expect_usable(code_mode)


# ---- Tools that reach back, and tools that meddle ----


async def test_a_tool_that_runs_programs_of_the_same_run_does_not_deadlock(pool: Pool) -> None:
    running: list[CodeMode] = []

    async def deeper(params: JsonObject, context: ToolContext) -> Any:
        depth = params["depth"]
        assert isinstance(depth, int)
        source = f"return [{depth}, await tools.deeper({{ depth: {depth - 1} }})]"
        result = await running[0].exec(
            source if depth else "return await tools.add({ a: 1, b: 1 })"
        )
        return result.to_json()["value"]

    def blocking(params: JsonObject, context: ToolContext) -> Any:
        source = "return await tools.add({ a: 2, b: 2 })"
        return anyio.from_thread.run(running[0].exec, source).to_json()["value"]

    tools = [add, untyped("deeper", deeper), untyped("blocking", blocking)]
    config = CodeModeConfig(max_pending_tool_calls=1)
    async with CodeMode(tools=tools, pool=pool, config=config) as code_mode:
        running.append(code_mode)
        source = """const mine = 41;
const calls = [tools.deeper({ depth: 4 }), tools.blocking(), tools.deeper({ depth: 0 })];
return [mine, ...(await Promise.all(calls))]"""
        with anyio.fail_after(5):
            result = await code_mode.exec(source)
        assert result.value == [41, [4, [3, [2, [1, 2]]]], 4, 2], result
        await expect_usable(code_mode)


async def test_a_tool_may_wait_for_another_program_of_its_run(pool: Pool) -> None:
    running: list[CodeMode] = []

    async def faulty(params: JsonObject, context: ToolContext) -> Any:
        return (await running[0].wait(str(params["runId"]))).value

    async with CodeMode(tools=[add, untyped("faulty", faulty)], pool=pool) as code_mode:
        running.append(code_mode)
        parked = await code_mode.exec("const held = 7; await yield_control(); return held")
        source = f'return await tools.faulty({{ runId: "{parked.run_id}" }})'
        with anyio.fail_after(5):
            assert (await code_mode.exec(source)).value == 7


async def test_a_tool_that_waits_for_its_own_program_waits_no_longer_than_a_wait(
    pool: Pool,
) -> None:
    running: list[CodeMode] = []
    run_ids: list[str] = []
    told, waited = anyio.Event(), anyio.Event()

    async def faulty(params: JsonObject, context: ToolContext) -> str:
        await told.wait()
        result = await running[0].wait(run_ids[0])
        waited.set()
        return result.status

    tools, config = [add, untyped("faulty", faulty)], CodeModeConfig(timeout_ms=400)
    async with CodeMode(tools=tools, pool=pool, config=config) as code_mode:
        running.append(code_mode)
        result = await code_mode.exec("return await tools.faulty()")
        run_ids.append(result.run_id)
        told.set()
        with anyio.fail_after(5):
            await waited.wait()
            assert (await code_mode.wait(run_ids[0])).value == "waiting"


async def test_a_tool_that_ends_its_own_run_gets_its_program_aborted(pool: Pool) -> None:
    running: list[CodeMode] = []

    async def faulty(params: JsonObject, context: ToolContext) -> None:
        await running[0].end_run()

    async with CodeMode(tools=[add, untyped("faulty", faulty)], pool=pool) as code_mode:
        running.append(code_mode)
        with within(2):
            result = await code_mode.exec('text("kept"); await tools.faulty(); text("not reached")')
        assert (result.code, result.output) == ("aborted", [{"type": "text", "text": "kept"}])
        await expect_usable(code_mode)


def meddle(params: JsonObject, context: ToolContext) -> None:
    params.clear()
    params["a"] = "changed"


async def test_a_tool_that_changes_its_input_changes_nothing_of_the_program(pool: Pool) -> None:
    source = """const input = { a: 1, b: { c: [2] } };
await tools.faulty(input); await tools.faulty(input); return input"""
    value = await outcome(pool, untyped("faulty", meddle), source)
    assert value == {"a": 1, "b": {"c": [2]}}


async def test_a_tool_that_changes_its_input_does_not_change_what_is_recorded(pool: Pool) -> None:
    hooks, recorded = Hooks(), list[JsonObject]()

    def record(ended: AfterToolCall) -> None:
        recorded.append(json.loads(json.dumps(ended.call.params)))

    hooks.after_tool_call(record)
    source = "return await tools.faulty({ a: 1 })"
    await outcome(pool, untyped("faulty", meddle), source, hooks=hooks)
    assert recorded[0] == {"a": 1}


async def test_an_approver_that_changes_what_it_was_shown_does_not_change_what_runs(
    pool: Pool,
) -> None:
    def redact(question: Question) -> Decision:
        question.input["secret"] = "***"
        return "allow-once"

    desk = Approvals(ask_for=["faulty"], approver=redact)
    faulty = untyped("faulty", lambda params, context: params)
    source = 'return await tools.faulty({ secret: "hunter2" })'
    assert await outcome(pool, faulty, source, approvals=desk) == {"secret": "hunter2"}


async def test_a_watcher_that_raises_disturbs_nobody(pool: Pool) -> None:
    seen: list[str] = []

    def broken(event: CallEvent) -> None:
        raise RuntimeError("the log is full")

    async with CodeMode(tools=[add], pool=pool) as code_mode:
        code_mode.watch(broken)
        code_mode.watch(lambda event: seen.append(event.phase))
        await expect_usable(code_mode)
    assert seen == ["start", "end"]


async def test_nothing_is_reported_of_a_call_after_its_end(pool: Pool) -> None:
    phases: list[str] = []
    begun, ended = anyio.Event(), anyio.Event()
    release, reported = threading.Event(), threading.Event()

    def watch(event: CallEvent) -> None:
        phases.append(event.phase)
        if event.phase == "end":
            ended.set()

    def faulty(params: JsonObject, context: ToolContext) -> None:
        anyio.from_thread.run_sync(begun.set)
        release.wait(10)
        context.update("late")
        reported.set()

    async with CodeMode(tools=[add, untyped("faulty", faulty)], pool=pool) as code_mode:
        code_mode.watch(watch)
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(code_mode.exec, "await tools.faulty()")
                await begun.wait()
                await code_mode.end_run()
            await ended.wait()
            release.set()
            assert await anyio.to_thread.run_sync(reported.wait, 5)
    assert phases == ["start", "end"]


# ---- Workers that die ----


async def kill(pool: Pool) -> None:
    worker = only_worker(pool)
    worker.kill()
    await until(lambda: not worker.alive)


@pytest.mark.covers("WK-1")
async def test_a_worker_killed_during_a_call_fails_the_program_and_tells_its_calls(
    pool: Pool,
) -> None:
    async def faulty(params: JsonObject, context: ToolContext) -> str:
        await kill(pool)
        return "done all the same"

    tools = [add, untyped("faulty", faulty, effect="write")]
    async with CodeMode(tools=tools, pool=pool) as code_mode:
        source = """text("kept"); await tools.add({ a: 1, b: 1 });
await Promise.all([tools.faulty(), tools.add({ a: 2, b: 2 })]); return 1"""
        with anyio.fail_after(5):
            result = await code_mode.exec(source)
            assert result.code == "runtime_unavailable"
            assert result.output == [{"type": "text", "text": "kept"}]
            # The call that was made is told as made: the model must not repeat it blindly.
            assert ("faulty", "completed") in states(result)
            assert states(result)[0] == ("add", "completed")
            await expect_usable(code_mode)


@pytest.mark.covers("WK-1")
async def test_a_worker_killed_between_programs_is_replaced_unseen(pool: Pool) -> None:
    async with CodeMode(tools=[add], pool=pool) as code_mode:
        for _ in range(2):
            await kill(pool)
            with anyio.fail_after(5):
                await expect_usable(code_mode)


@pytest.mark.covers("WK-1")
async def test_a_worker_killed_while_it_computes_fails_that_program_alone(pool: Pool) -> None:
    begun, results = anyio.Event(), list[CodeModeResult]()

    async def faulty(params: JsonObject, context: ToolContext) -> None:
        begun.set()

    async with CodeMode(tools=[add, untyped("faulty", faulty)], pool=pool) as code_mode:

        async def execute() -> None:
            results.append(await code_mode.exec('text("kept"); await tools.faulty(); for (;;);'))

        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(execute)
                await begun.wait()
                worker = only_worker(pool)
                await until(lambda: code_mode.telemetry.calls == 1 and worker._asking)
                await kill(pool)
            (result,) = results
            assert result.code == "runtime_unavailable"
            assert result.output == [{"type": "text", "text": "kept"}]
            assert states(result) == [("faulty", "completed")]
            await expect_usable(code_mode)


@pytest.mark.covers("WK-1")
async def test_a_parked_program_survives_its_worker(pool: Pool) -> None:
    release = anyio.Event()

    async def faulty(params: JsonObject, context: ToolContext) -> str:
        await release.wait()
        return "answer"

    async with CodeMode(tools=[add, untyped("faulty", faulty)], pool=pool) as code_mode:
        source = """const held = [1, 2], answer = tools.faulty(); await yield_control();
held.push(await answer); await yield_control(); return held"""
        result = await code_mode.exec(source)
        await kill(pool)
        release.set()
        result = await code_mode.wait(result.run_id)
        assert (result.status, result.reason) == ("waiting", "yield")
        await kill(pool)
        assert (await code_mode.wait(result.run_id)).value == [1, 2, "answer"]


async def test_a_wait_that_gets_no_worker_in_time_leaves_the_program_parked() -> None:
    begun = anyio.Event()

    async def hog(params: JsonObject, context: ToolContext) -> None:
        begun.set()

    async with (
        Pool(size=1, max_size=1) as pool,
        CodeMode(tools=[untyped("hog", hog)], pool=pool) as busy,
        CodeMode(tools=[add], pool=pool, config=CodeModeConfig(timeout_ms=1_500)) as code_mode,
    ):
        source = "const held = await tools.add({ a: 1, b: 1 }); await yield_control(); return held"
        parked = await code_mode.exec(source)
        async with anyio.create_task_group() as group:
            group.start_soon(busy.exec, "await tools.hog(); for (;;);")
            await begun.wait()
            worker = only_worker(pool)
            await until(lambda: worker._asking)
            late = await code_mode.wait(parked.run_id)
            await busy.end_run()
        assert (late.status, late.run_id) == ("waiting", parked.run_id), late
        assert (await code_mode.wait(parked.run_id)).value == 2


async def test_a_closed_pool_is_a_failed_result_and_not_an_exception() -> None:
    async with Pool(size=1, max_size=1) as pool:
        code_mode = CodeMode(tools=[add], pool=pool)
        async with code_mode:
            await expect_usable(code_mode)
            parked = await code_mode.exec("await yield_control()")
            await pool.aclose()
            assert (await code_mode.exec("return 1")).code == "runtime_unavailable"
            assert (await code_mode.wait(parked.run_id)).code == "runtime_unavailable"


# ---- Guards that break down ----


@pytest.mark.parametrize(
    "fault",
    [
        RuntimeError("down"),
        TimeoutError(),
        "nonsense",
        5,
        {"x": 1},
        SystemExit(3),
        asyncio.CancelledError(),
    ],
)
async def test_a_guard_that_breaks_down_blocks_the_call_and_not_the_program(
    pool: Pool, fault: Any
) -> None:
    hooks, called = Hooks(), list[str]()

    def guard(call: Any) -> Any:
        if call.tool_name != "faulty":
            return None
        if isinstance(fault, BaseException):
            raise fault
        return fault

    hooks.before_tool_call(guard, name="guard")
    faulty = untyped("faulty", lambda params, context: called.append("called"))
    _, code, _, text, went_on = await outcome(pool, faulty, hooks=hooks)
    assert (code, went_on, called) == ("blocked", 2, [])
    assert "guard" in text


async def test_hooks_that_fail_afterwards_do_not_take_the_answer_away(pool: Pool) -> None:
    hooks = Hooks()

    def broken(ended: AfterToolCall) -> Awaitable[None]:
        raise RuntimeError("the audit log is full")

    hooks.after_tool_call(broken)
    faulty = untyped("faulty", lambda params, context: "answer")
    assert await outcome(pool, faulty, hooks=hooks) == ["answered", "answer"]
