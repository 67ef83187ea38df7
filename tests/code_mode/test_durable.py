"""Parked programs that outlive their process: killed, shared, taken over, refused."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from tests.support.session_writer import Lines
from tests.support.waiting import SlowTools, until

from clawmode import (
    Approvals,
    CodeMode,
    CodeModeConfig,
    CodeModeResult,
    Hooks,
    Pool,
    RunContext,
    ToolCallDecision,
    tool,
)
from clawmode.code_mode.memory_store import MemoryStore
from clawmode.code_mode.snapshots import KeyRing
from clawmode.code_mode.sqlite_store import SqliteStore
from clawmode.code_mode.stores import SnapshotStore, StoredCell
from clawmode.exceptions import ClawmodeWarning, StoreUnavailable
from clawmode.sandbox.process import WorkerProcess
from clawmode.sandbox.protocol import Answer, FrozenCell, Question, Resume, Start
from clawmode.sandbox.workers import Tenancy
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
WHO = RunContext(agent_id="a", session_id="s", session_key="k", run_id="r")


# ---- Real processes ----


@asynccontextmanager
async def started(folder: Path, *what: str, **env: str) -> AsyncIterator[tuple[Process, Lines]]:
    command = [sys.executable, "-m", "tests.support.durable_program", str(folder), *what]
    environment = {**os.environ, **env}
    process = await anyio.open_process(command, stderr=None, env=environment, cwd=ROOT)
    async with process:
        assert process.stdout is not None
        try:
            yield process, Lines(process.stdout)
        finally:
            if process.returncode is None:
                process.kill()


async def parked_and_killed(folder: Path, source: str) -> dict[str, Any]:
    """A program that waits, whose process was killed in the middle of its call."""
    async with started(folder, "exec", source) as (process, lines):
        result = await lines.next()
        assert result["status"] == "waiting", result
        process.send_signal(signal.SIGKILL)
        await process.wait()
    return result


async def waited(folder: Path, run_id: str) -> dict[str, Any]:
    """What a new process gets in the end."""
    async with started(folder, "wait", run_id) as (_, lines):
        result = await lines.next()
        while result["status"] == "waiting":
            result = await lines.next()
    return result


def times_called(folder: Path, name: str) -> int:
    path = folder / f"{name}.calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.covers("WA-11")
async def test_a_killed_process_s_repeatable_call_is_made_again(tmp_path: Path) -> None:
    source = 'text("before"); const got = await tools.read({ name: "x" }); return `got ${got}`'
    result = await parked_and_killed(tmp_path, source)
    assert result["output"] == [{"type": "text", "text": "before"}]
    await anyio.Path(tmp_path / "x").write_text("it")
    result = await waited(tmp_path, result["runId"])
    assert (result["status"], result["value"]) == ("completed", "got it")
    assert "output" not in result
    assert times_called(tmp_path, "read-x") == 2


@pytest.mark.covers("B-1", "WA-11")
async def test_an_interval_ticks_on_in_another_process(tmp_path: Path) -> None:
    source = """return await new Promise((resolve) => {
  let n = 0;
  const id = setInterval(() => { if (++n === 3) { clearInterval(id); resolve(n) } }, 350);
})"""
    result = await parked_and_killed(tmp_path, source)
    assert [call["method"] for call in result["pendingToolCalls"]] == ["timer"]
    result = await waited(tmp_path, result["runId"])
    assert (result["status"], result["value"]) == ("completed", 3)


@pytest.mark.covers("WA-11")
async def test_a_killed_process_s_other_call_is_not_made_again(tmp_path: Path) -> None:
    source = """try { return await tools.write({ name: "x" }) }
catch (error) { return [error.code, error.toolId] }"""
    result = await parked_and_killed(tmp_path, source)
    result = await waited(tmp_path, result["runId"])
    assert result["value"] == ["outcome_unknown", "openclaw:core:write"]
    assert times_called(tmp_path, "write-x") == 1


@pytest.mark.covers("WA-11", "TR-5", "AK-2")
async def test_an_unknown_outcome_is_in_the_ledger(tmp_path: Path) -> None:
    result = await parked_and_killed(tmp_path, 'return await tools.write({ name: "x" })')
    result = await waited(tmp_path, result["runId"])
    assert result["code"] == "nested_tool_failed"
    expected = {"id": "1", "toolId": "openclaw:core:write", "state": "unknown", "effect": "write"}
    assert result["calls"] == [expected | {"input": {"name": "x"}}]


@pytest.mark.covers("WA-11")
async def test_a_person_is_asked_again(tmp_path: Path) -> None:
    async with started(tmp_path, "exec", "return await tools.quick()") as (process, lines):
        result = await lines.next()
        assert [call["state"] for call in result["pendingToolCalls"]] == ["approval"]
        assert (await lines.next())["question"] == "openclaw:core:quick"
        process.send_signal(signal.SIGKILL)
        await process.wait()
    result = await waited(tmp_path, result["runId"])
    assert result["value"] == "quick"
    assert times_called(tmp_path, "quick") == 1


@pytest.mark.covers("WA-11", "AK-6")
async def test_only_the_unanswered_calls_of_a_group_are_asked_about_again(tmp_path: Path) -> None:
    source = "return await Promise.all([1, 2, 3, 4].map(() => tools.quick()))"
    async with started(tmp_path, "exec", source, ANSWER="2") as (process, lines):
        result = await lines.next()
        for _ in range(4):
            assert (await lines.next())["question"] == "openclaw:core:quick"
        await until(lambda: times_called(tmp_path, "quick") == 2)
        process.send_signal(signal.SIGKILL)
        await process.wait()
    context, approvals = WHO, Approvals(ask_for=["quick"])
    quick = Tool("quick", "Answer.", {}, lambda params, context: "again")
    store = SqliteStore(tmp_path / "state")
    async with CodeMode(tools=[quick], store=store, context=context, approvals=approvals) as two:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(two.wait, result["runId"])
            await until(lambda: len(approvals.pending()) >= 2)
            (group,) = approvals.groups()
            assert len(group.questions) == 2
            assert len(approvals.resolve_group(group, "allow-once")) == 2
        assert approvals.pending() == []
    assert times_called(tmp_path, "quick") == 2


@pytest.mark.covers("WA-11")
async def test_a_living_process_s_calls_are_not_made_twice(tmp_path: Path) -> None:
    async with AsyncExitStack() as both:
        source = 'return await tools.read({ name: "x" })'
        _, first = await both.enter_async_context(started(tmp_path, "exec", source))
        result = await first.next()
        second = await both.enter_async_context(started(tmp_path, "wait", result["runId"]))
        still = await second[1].next()
        assert still["status"] == "waiting"
        assert [call["state"] for call in still["pendingToolCalls"]] == ["running"]
        await anyio.Path(tmp_path / "x").write_text("once")
        while (still := await second[1].next())["status"] == "waiting":
            pass
    assert still["value"] == "once"
    assert times_called(tmp_path, "read-x") == 1


@pytest.mark.covers("WA-11")
async def test_a_call_of_a_stopped_process_is_still_its_own(tmp_path: Path) -> None:
    async with AsyncExitStack() as both:
        source = 'return await tools.read({ name: "x" })'
        process, first = await both.enter_async_context(started(tmp_path, "exec", source))
        result = await first.next()
        process.send_signal(signal.SIGSTOP)
        try:
            second = await both.enter_async_context(started(tmp_path, "wait", result["runId"]))
            assert (await second[1].next())["status"] == "waiting"
        finally:
            process.send_signal(signal.SIGCONT)
    assert times_called(tmp_path, "read-x") == 1


@pytest.mark.covers("WA-2", "WA-11")
async def test_two_processes_cannot_wait_for_one_program_at_once(tmp_path: Path) -> None:
    result = await parked_and_killed(tmp_path, 'return await tools.read({ name: "x" })')
    run_id = result["runId"]
    async with AsyncExitStack() as both:
        slow = started(tmp_path, "wait", run_id, YIELD_MS="60000")
        _, first = await both.enter_async_context(slow)
        await until(lambda: times_called(tmp_path, "read-x") >= 2)
        refused = await waited(tmp_path, run_id)
        assert refused["code"] == "invalid_input"
        await anyio.Path(tmp_path / "x").write_text("undisturbed")
        assert (await first.next())["value"] == "undisturbed"


@pytest.mark.covers("WA-11")
async def test_a_waiter_that_is_killed_leaves_the_program_parked(tmp_path: Path) -> None:
    result = await parked_and_killed(tmp_path, 'return await tools.read({ name: "x" })')
    slow = started(tmp_path, "wait", result["runId"], YIELD_MS="60000")
    async with slow as (process, _):
        await until(lambda: times_called(tmp_path, "read-x") >= 2)
        process.kill()
        await process.wait()
    await anyio.Path(tmp_path / "x").write_text("third")
    assert (await waited(tmp_path, result["runId"]))["value"] == "third"
    assert times_called(tmp_path, "read-x") == 3


# ---- Two objects on one store ----


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "state")


def code_mode(
    pool: Pool, store: SnapshotStore, tools: list[Tool] | None = None, **options: Any
) -> CodeMode:
    config = options.pop("config", CodeModeConfig(timeout_ms=400))
    context = options.pop("context", WHO)
    return CodeMode(
        tools=tools or [], pool=pool, store=store, config=config, context=context, **options
    )


async def finish(one: CodeMode, result: CodeModeResult) -> CodeModeResult:
    with anyio.fail_after(10):
        while result.status == "waiting":
            result = await one.wait(result.run_id)
    return result


@pytest.mark.covers("WA-11")
async def test_a_call_made_by_one_object_answers_a_program_that_another_runs(
    pool: Pool, store: SnapshotStore
) -> None:
    source = """const slow = tools.slow();
const first = await Promise.race([slow, yield_control("let go")]);
text(await tools.quick());
return [first, await slow]"""
    here, there = SlowTools(), SlowTools()
    async with (
        code_mode(pool, store, here.tools) as one,
        code_mode(pool, store, there.tools) as two,
    ):
        result = await one.exec(source)
        assert result.reason == "pending_tools"
        result = await two.wait(result.run_id)
        assert result.status == "waiting"
        assert result.output == [{"type": "text", "text": "quick"}]
        assert [call["toolId"] for call in result.to_json()["pendingToolCalls"]] == [  # pyrefly: ignore
            "openclaw:core:slow"
        ]
        here.answer.set()
        result = await finish(two, result)
        assert result.value == [None, 1]
    assert (here.calls, there.calls) == (1, 0)


# ---- Calls that a process which died may have made ----

READ = 'try { return await tools.read({ name: "x" }) } catch (error) { return error.code }'

CALL_AND_YIELD = """const read = tools.read({ name: "x" });
read.catch(() => {}); await yield_control(); return await read"""


def reading() -> Tool:
    """The tool of the process that died; here, nobody gets as far as to call it."""

    @tool(idempotent=True)
    async def read(name: str) -> str:
        raise AssertionError(name)

    return read


def refusing(what: str) -> dict[str, Any]:
    """The arguments of a `CodeMode` that calls no tool."""
    hooks = Hooks()
    if what == "blocked":
        hooks.before_tool_call(lambda event: ToolCallDecision(block=True))
    if what == "not_approved":
        return {"approvals": Approvals(ask_for=["read"], approver=lambda question: "deny")}
    return {"hooks": hooks}


@pytest.mark.covers("WA-11")
@pytest.mark.parametrize("why", ["blocked", "not_approved", "store_unavailable"])
async def test_a_repetition_that_is_refused_leaves_the_outcome_unknown(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """The process that died may have made the call: it must not be told as one that was not."""
    result = await parked_and_killed(tmp_path, READ)
    kept = SqliteStore(tmp_path / "state")
    if why == "store_unavailable":
        monkeypatch.setattr(kept, "mark", unavailable)
    async with code_mode(pool, kept, [reading()], **refusing(why)) as one:
        done = await finish(one, await one.wait(result["runId"]))
    assert (done.status, done.value) == ("completed", "outcome_unknown"), done
    assert times_called(tmp_path, "read-x") == 1


@pytest.mark.covers("WA-11")
@pytest.mark.parametrize("end", ["refused", "aborted"])
async def test_a_repetition_that_nobody_approved_in_time_leaves_the_outcome_unknown(
    pool: Pool, tmp_path: Path, end: str
) -> None:
    """A second process that asked, and has ended too, does not hide what the first one did."""
    source = READ if end == "refused" else CALL_AND_YIELD
    run_id = (await parked_and_killed(tmp_path, source))["runId"]
    kept = SqliteStore(tmp_path / "state")
    async with code_mode(pool, kept, [reading()], approvals=Approvals(ask_for=["read"])) as two:
        waiting = await two.wait(run_id)
        assert [call["state"] for call in waiting.to_json()["pendingToolCalls"]] == ["approval"]  # pyrefly: ignore
        if end == "aborted":
            assert await two.abort(run_id)
            call: Any = (await two.wait(run_id)).calls[0]
            assert call["state"] == "unknown"
    if end == "refused":
        async with code_mode(pool, kept, [reading()], **refusing("blocked")) as three:
            assert (await finish(three, await three.wait(run_id))).value == "outcome_unknown"


@pytest.mark.covers("WA-11")
async def test_a_program_goes_back_and_forth(pool: Pool, store: SnapshotStore) -> None:
    source = "let n = 0; for (let i = 0; i < 6; i++) { n += 1; await yield_control() } return n"
    async with code_mode(pool, store) as one, code_mode(pool, store) as two:
        result = await one.exec(source)
        for turn in range(6):
            result = await (two if turn % 2 else one).wait(result.run_id)
        assert result.value == 6


@pytest.mark.covers("WA-10")
async def test_closing_keeps_what_is_durable_and_drops_the_rest(
    pool: Pool, store: SnapshotStore
) -> None:
    async with code_mode(pool, store) as one:
        result = await one.exec("await yield_control(); return 1")
    async with code_mode(pool, store) as two:
        after = await two.wait(result.run_id)
    expected = ("completed", None) if store.durable else ("failed", "aborted")
    assert (after.status, after.code) == expected


@pytest.mark.covers("WA-11")
async def test_a_call_that_ends_while_its_object_closes_keeps_its_answer(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools, store = SlowTools(), SqliteStore(tmp_path / "state")
    leave, settle = store.leave, store.settle
    settled: list[str] = []

    async def leave_slowly(owner: str) -> None:
        tools.answer.set()
        await until(lambda: bool(settled))
        await leave(owner)

    async def settle_and_tell(*given: Any) -> str:
        settled.append(await settle(*given))
        return settled[-1]

    monkeypatch.setattr(store, "leave", leave_slowly)
    monkeypatch.setattr(store, "settle", settle_and_tell)
    async with code_mode(pool, store, tools.tools) as one:
        result = await one.exec("return await tools.slow()")
    assert settled == ["kept"]
    async with code_mode(pool, SqliteStore(tmp_path / "state"), tools.tools) as two:
        assert (await finish(two, result)).value == 1
    assert tools.calls == 1


@pytest.mark.covers("WA-10")
async def test_the_end_of_a_run_or_session_deletes_what_any_object_parked(
    pool: Pool, store: SnapshotStore
) -> None:
    other = replace(WHO, run_id="r2")
    async with code_mode(pool, store) as one, code_mode(pool, store, context=other) as two:
        ids = [(await each.exec("await yield_control()")).run_id for each in (one, two)]
        async with code_mode(pool, store) as three:
            await three.end_run()
        assert (await one.wait(ids[0])).code == "aborted"
        assert (await two.exec("return 1")).value == 1
        async with code_mode(pool, store) as four:
            await four.end_session()
        assert (await two.wait(ids[1])).code == "aborted"


@pytest.mark.covers("WA-10")
async def test_every_terminal_state_deletes_everything(pool: Pool, store: SnapshotStore) -> None:
    async with code_mode(pool, store, SlowTools().tools) as one:
        ends = ["return 1", "throw 1", "while (true) {}", "await new Promise(() => {})"]
        for end in ends:
            result = await one.exec(f"await yield_control(); {end}")
            assert (await one.wait(result.run_id)).status in ("completed", "failed")
            assert await store.progress(result.run_id) is None
            assert (await one.wait(result.run_id)).code == "invalid_input"
        result = await one.exec("await tools.slow()")
        await one.abort(result.run_id)
        assert await store.progress(result.run_id) is None


async def test_a_process_that_died_with_its_program_is_reported(
    pool: Pool, store: SnapshotStore
) -> None:
    async with code_mode(pool, store) as one:
        result = await one.exec("await yield_control()")
        owner = await store.join()
        claimed = await store.claim(result.run_id, WHO.scope, owner)
        assert isinstance(claimed, StoredCell)
        await store.take(result.run_id, owner, claimed.fence, seen=claimed.mark)
        assert (await one.wait(result.run_id)).code == "invalid_input"
        await store.leave(owner)
        assert (await one.wait(result.run_id)).code == "runtime_unavailable"


@pytest.mark.covers("WA-2")
async def test_a_second_wait_at_once_is_refused(pool: Pool, store: SnapshotStore) -> None:
    slow = SlowTools()
    async with code_mode(pool, store, slow.tools, config=CodeModeConfig()) as one:
        result = await one.exec("const late = tools.slow(); await yield_control(); return late")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.wait, result.run_id)
            await anyio.wait_all_tasks_blocked()
            assert (await one.wait(result.run_id)).code == "invalid_input"
            slow.answer.set()


async def test_a_wait_that_is_cancelled_at_any_moment_leaves_no_claim(
    pool: Pool, store: SnapshotStore
) -> None:
    """By `task.cancel`, as `asyncio.timeout` does it: no shield of anyio's keeps that out."""
    slow = SlowTools()
    async with code_mode(pool, store, slow.tools) as one:
        source = "const late = tools.slow(); await yield_control(); return await late"
        result = await one.exec(source)
        result = await one.wait(result.run_id)
        assert result.status == "waiting"
        for step in range(30):
            task = asyncio.ensure_future(one.wait(result.run_id))
            # The last ones are cancelled after hundreds of turns of the loop: some milliseconds.
            for _ in range(step if step <= 20 else (step - 20) * 50):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        slow.answer.set()
        assert (await finish(one, result)).value == 1
        assert one._calls.groups == {}


# ---- A `wait` whose caller is cancelled ----


async def given_up(one: CodeMode, run_id: str, begun: anyio.Event) -> None:
    """A `wait` that is cancelled once it has resumed the program: by now, `begun` is set."""
    task = asyncio.ensure_future(one.wait(run_id))
    with anyio.fail_after(5):
        await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.covers("B-5")
async def test_a_cancelled_wait_leaves_a_resumed_program_waiting(
    pool: Pool, store: SnapshotStore
) -> None:
    slow, begun = SlowTools(), anyio.Event()

    @tool
    async def mark() -> None:
        """Say that it runs."""
        begun.set()

    source = """text("a"); await yield_control(); text("b");
const late = tools.slow(); await tools.mark(); text("c");
return [await late, await tools.quick()]"""
    tools = [*slow.tools, mark]
    async with code_mode(pool, store, tools, config=CodeModeConfig()) as one:
        result = await one.exec(source)
        await given_up(one, result.run_id, begun)
        slow.answer.set()
        result = await one.wait(result.run_id)
    assert (result.value, slow.calls) == ([1, "quick"], 1)
    assert [each["text"] for each in result.to_json()["output"]] == ["b", "c"]  # pyrefly: ignore


@pytest.mark.covers("B-5")
@pytest.mark.parametrize("ending", ["return 5", "throw new Error('oh')"])
async def test_the_next_wait_returns_the_end_of_a_program_that_nobody_received(
    pool: Pool, store: SnapshotStore, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, begun, step = SlowTools(), anyio.Event(), pool.step

    async def stepping(cell: Tenancy, message: Start | Resume, *args: Any) -> Any:
        if isinstance(message, Resume):
            begun.set()
        return await step(cell, message, *args)

    monkeypatch.setattr(pool, "step", stepping)
    busy = "const end = Date.now() + 60; while (Date.now() < end);"
    source = f"""await yield_control(); text("b"); {busy} {ending}"""
    async with code_mode(pool, store, slow.tools, config=CodeModeConfig()) as one:
        run_id = (await one.exec(source)).run_id
        await given_up(one, run_id, begun)
        await until(lambda: not one.cells())
        async with code_mode(pool, store, config=CodeModeConfig()) as two:
            result = await two.wait(run_id)
            assert result.output == [{"type": "text", "text": "b"}]
            if ending == "return 5":
                assert (result.status, result.value) == ("completed", 5)
            else:
                assert (result.code, "oh" in str(result.error)) == ("internal_error", True)
            assert (await two.wait(run_id)).code == "invalid_input"


@pytest.mark.covers("B-5")
async def test_a_program_left_by_its_wait_ends_with_the_object(
    pool: Pool, store: SnapshotStore
) -> None:
    begun, cancelled = anyio.Event(), anyio.Event()

    @tool
    async def hang() -> None:
        """Never answer."""
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    source = "await yield_control(); return await tools.hang()"
    async with code_mode(pool, store, [hang], config=CodeModeConfig()) as one:
        result = await one.exec(source)
        await given_up(one, result.run_id, begun)
    assert cancelled.is_set()
    assert one.cells() == {}


@pytest.mark.covers("N-31")
@pytest.mark.parametrize("context", [None, RunContext(session_id="s")])
def test_a_durable_store_without_a_chosen_run_id_warns(
    tmp_path: Path, context: RunContext | None
) -> None:
    with pytest.warns(ClawmodeWarning, match="run_id=") as caught:
        CodeMode(store=SqliteStore(tmp_path), context=context)
    assert len(caught) == 1
    CodeMode(store=MemoryStore(), context=context)
    CodeMode(store=SqliteStore(tmp_path), context=RunContext(run_id="r"))


# ---- Aborted by another object, or process ----


class Steps:
    """A tool that is called again and again; the second call takes as long as a test likes."""

    def __init__(self) -> None:
        self.calls = 0
        self.second, self.cancelled = anyio.Event(), anyio.Event()

        @tool
        async def step() -> None:
            """Do something."""
            self.calls += 1
            if self.calls == 2:
                self.second.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    self.cancelled.set()

        self.tools: list[Tool] = [step]


@pytest.mark.covers("B-8", "WA-10")
@pytest.mark.parametrize("how", ["abort", "end_run", "end_session"])
async def test_another_object_ends_a_program_that_runs(
    pool: Pool, store: SnapshotStore, how: str
) -> None:
    steps, results = Steps(), list[CodeModeResult]()
    source = "await yield_control(); for (let i = 0; i < 9; i++) await tools.step()"
    long = CodeModeConfig()
    async with (
        code_mode(pool, store, steps.tools, config=long) as one,
        code_mode(pool, store, config=long) as two,
        anyio.create_task_group() as tasks,
    ):
        run_id = (await one.exec(source)).run_id

        async def wait() -> None:
            results.append(await one.wait(run_id))

        tasks.start_soon(wait)
        with anyio.fail_after(5):
            await steps.second.wait()
            if how == "abort":
                assert await two.abort(run_id)
            else:
                await getattr(two, how)()
            assert steps.cancelled.is_set()
            assert await store.cells() == []
            assert not await two.abort(run_id)
    assert (results[0].code, steps.calls) == ("aborted", 2)


@pytest.mark.covers("B-8")
async def test_another_object_ends_a_program_that_computes(
    pool: Pool, store: SnapshotStore
) -> None:
    results, long = list[CodeModeResult](), CodeModeConfig()
    async with (
        code_mode(pool, store, config=long) as one,
        code_mode(pool, store, config=long) as two,
        anyio.create_task_group() as tasks,
    ):
        run_id = (await one.exec("await yield_control(); for (;;);")).run_id

        async def wait() -> None:
            results.append(await one.wait(run_id))

        tasks.start_soon(wait)
        with anyio.fail_after(5):
            await until(one.cells)
            assert await two.abort(run_id)
    assert results[0].code == "aborted"


@pytest.mark.covers("B-8")
async def test_the_calls_of_a_parked_program_end_before_an_abort_elsewhere_returns(
    pool: Pool, store: SnapshotStore
) -> None:
    steps = Steps()
    steps.calls = 1
    source = "const open = tools.step(); await yield_control(); return open"
    async with code_mode(pool, store, steps.tools) as one, code_mode(pool, store) as two:
        run_id = (await one.exec(source)).run_id
        with anyio.fail_after(5):
            await steps.second.wait()
            assert await two.abort(run_id)
            assert steps.cancelled.is_set()
        assert (await one.wait(run_id)).code == "aborted"


@pytest.mark.covers("B-8")
async def test_a_program_of_another_process_is_aborted_there(pool: Pool, tmp_path: Path) -> None:
    @tool
    async def read(name: str) -> str:
        """Read."""
        return name

    store = SqliteStore(tmp_path / "state")
    tools = [read, *SlowTools().tools]
    async with code_mode(pool, store, tools, config=CodeModeConfig()) as one:
        source = 'await yield_control(); await tools.read({ name: "x" }); await tools.quick()'
        run_id = (await one.exec(source)).run_id
    async with started(tmp_path, "wait", run_id, YIELD_MS="20000") as (_, lines):
        await until(lambda: times_called(tmp_path, "read-x"))
        async with code_mode(pool, store) as two:
            assert await two.abort(run_id)
        await anyio.Path(tmp_path / "x").write_text("go on")
        assert (await lines.next())["code"] == "aborted"
    assert times_called(tmp_path, "quick") == 0


# ---- What a store cannot give back ----


async def test_a_lost_key_is_reported_and_the_program_is_kept(pool: Pool, tmp_path: Path) -> None:
    keys = KeyRing.ephemeral()
    async with code_mode(pool, SqliteStore(tmp_path, keys=keys)) as one:
        run_id = (await one.exec("await yield_control(); return 1")).run_id
    async with code_mode(pool, SqliteStore(tmp_path, keys=KeyRing.ephemeral())) as two:
        for _ in range(2):
            assert (await two.wait(run_id)).code == "snapshot_restore_failed"
    async with code_mode(pool, SqliteStore(tmp_path, keys=keys)) as three:
        assert (await three.wait(run_id)).value == 1


@pytest.mark.covers("WA-12", "WA-8")
async def test_a_program_over_the_limits_in_force_is_not_restored(
    pool: Pool, store: SnapshotStore
) -> None:
    large = CodeModeConfig(memory_limit_bytes=64 << 20)
    small = CodeModeConfig(memory_limit_bytes=1 << 20)
    source = "globalThis.big = 'x'.repeat(30e6); await yield_control(); return big.length"
    async with code_mode(pool, store, config=large) as one:
        run_id = (await one.exec(source)).run_id
        async with code_mode(pool, store, config=small) as two:
            assert (await two.wait(run_id)).code == "snapshot_limit_exceeded"


@pytest.mark.covers("WA-8", "EX-3")
async def test_a_program_too_large_to_park_makes_no_call(pool: Pool, store: SnapshotStore) -> None:
    config = CodeModeConfig(max_snapshot_bytes=100_000)
    slow = SlowTools()
    source = """const noise = [];
for (let i = 0; i < 200000; i++) noise.push(Math.random());
await Promise.all([tools.slow(), tools.quick()]); return noise.length"""
    async with code_mode(pool, store, slow.tools, config=config) as one:
        result = await one.exec(source)
    assert result.code == "snapshot_limit_exceeded"
    assert [entry["state"] for entry in result.to_json()["calls"]] == ["not_started"] * 2  # pyrefly: ignore
    assert slow.calls == 0


def count_freezes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all snapshots that are made from now on."""
    sizes, ask = list[int](), WorkerProcess.ask

    async def counted(worker: WorkerProcess, question: Question, deadline: float) -> Answer:
        restored = isinstance(question, Resume) and question.frozen is not None
        assert not restored, "a program stays in its worker while it is measured"
        answer = await ask(worker, question, deadline)
        if isinstance(answer, FrozenCell):
            sizes.append(len(answer.pages))
        return answer

    monkeypatch.setattr(WorkerProcess, "ask", counted)
    return sizes


@pytest.mark.covers("B-2", "P-1")
async def test_a_program_that_holds_much_is_not_frozen_for_every_call(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = count_freezes(monkeypatch)
    source = """const held = new Uint8Array(12e6).fill(7);
for (let i = 0; i < 20; i++) await tools.quick();
return held.length"""
    async with code_mode(pool, MemoryStore(), SlowTools().tools, config=CodeModeConfig()) as one:
        assert (await one.exec(source)).value == 12_000_000
    assert len(sizes) == 1


@pytest.mark.covers("B-2", "P-1")
async def test_a_large_catalog_has_no_program_frozen(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = count_freezes(monkeypatch)

    async def answer(params: JsonObject, context: ToolContext) -> int:
        return 1

    words = "Finds whatever you look for, in any of its many places. " * 10
    tools = [Tool(f"find_{number}", words, {}, answer) for number in range(1500)]
    config = CodeModeConfig(max_snapshot_bytes=1 << 20)
    source = "let n = 0; for (let i = 0; i < 5; i++) n += await tools.find_7(); return n"
    async with code_mode(pool, MemoryStore(), tools, config=config) as one:
        assert (await one.exec(source)).value == 5
    assert sizes == []


@pytest.mark.covers("WA-8", "EX-3", "B-2")
async def test_a_program_that_becomes_too_large_makes_no_further_call(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory has the same length as before: what is in it does not compress any more."""
    sizes, slow = count_freezes(monkeypatch), SlowTools()
    config = CodeModeConfig(max_snapshot_bytes=500_000)
    source = """const held = new Float64Array(2e5).fill(1.5);
for (let i = 0; i < 3; i++) await tools.quick();
for (let i = 0; i < held.length; i++) held[i] = Math.random();
await Promise.all([tools.slow(), tools.quick()]);"""
    async with code_mode(pool, MemoryStore(), slow.tools, config=config) as one:
        result = await one.exec(source)
    assert result.code == "snapshot_limit_exceeded"
    states = [entry["state"] for entry in result.to_json()["calls"]]  # pyrefly: ignore
    assert states == ["completed"] * 3 + ["not_started"] * 2
    assert slow.calls == 0
    assert [size > 500_000 for size in sizes] == [False, True]


@pytest.mark.covers("WA-9")
async def test_with_no_room_to_park_a_yield_makes_no_call(pool: Pool, store: SnapshotStore) -> None:
    config = CodeModeConfig(max_suspended_runs=1, timeout_ms=400)
    slow = SlowTools()
    async with code_mode(pool, store, slow.tools, config=config) as one:
        assert (await one.exec("await yield_control()")).status == "waiting"
        result = await one.exec("await Promise.all([tools.slow(), yield_control()])")
        assert result.code == "snapshot_limit_exceeded"
        assert slow.calls == 0
        assert (await one.exec("return await tools.quick()")).value == "quick"


@pytest.mark.covers("WA-9")
async def test_cell_65_of_64_is_refused(pool: Pool) -> None:
    async with code_mode(pool, MemoryStore(), config=CodeModeConfig()) as one:
        for _ in range(64):
            assert (await one.exec("await yield_control()")).status == "waiting"
        assert (await one.exec("await yield_control()")).code == "snapshot_limit_exceeded"


async def all_answered(store: SnapshotStore, run_id: str) -> bool:
    return not await calls_of(store, run_id)


async def calls_of(store: SnapshotStore, run_id: str) -> int:
    progress = await store.progress(run_id)
    return 0 if progress is None else len(progress.calls)


@pytest.mark.covers("WA-5")
async def test_answers_that_wait_are_bounded(pool: Pool, store: SnapshotStore) -> None:
    go = anyio.Event()

    @tool
    async def page(number: int) -> str:
        """Answer with 40 kB."""
        await go.wait()
        return str(number) * 40_000

    source = """const asked = [1, 2, 3].map((number) => tools.page({ number }));
const pages = await Promise.allSettled(asked);
return pages.map((page) => page.value?.length ?? page.reason.code)"""
    config = CodeModeConfig(max_snapshot_bytes=100_000, timeout_ms=400)
    async with code_mode(pool, store, [page], config=config) as one:
        result = await one.exec(source)
        go.set()
        await until(lambda: all_answered(store, result.run_id))
        result = await finish(one, result)
    assert sorted(result.value, key=str) == [40_000, 40_000, "reply_too_large"]  # pyrefly: ignore


async def bytes_waiting(store: SnapshotStore, run_id: str) -> int:
    """How large the inbox of a parked program is."""
    if isinstance(store, MemoryStore):
        return sum(len(reply.body) for reply in store._cells[run_id].replies.values())
    assert isinstance(store, SqliteStore)
    with contextlib.closing(sqlite3.connect(store.folder / "cells.sqlite")) as database:
        query = "select coalesce(sum(length(body)), 0) from replies where cell = ?"
        return database.execute(query, (run_id,)).fetchone()[0]


@pytest.mark.covers("B-14", "WA-5")
async def test_answers_that_come_while_a_program_is_frozen_are_bounded_too(
    pool: Pool, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, freeze = anyio.Event(), Pool.freeze

    async def held(pool: Pool, cell: Tenancy) -> FrozenCell:
        made = await freeze(pool, cell)
        (run,) = one._driver.active.values()
        if run.calls:  # before that, only its size is looked at
            frozen.set()
            await until(lambda: len(run.inbox) >= 3)
        return made

    @tool
    async def page(number: int) -> str:
        """Answer with 40 kB, when the program is frozen."""
        await frozen.wait()
        return str(number) * 40_000

    monkeypatch.setattr(Pool, "freeze", held)
    source = """const asked = [1, 2, 3].map((number) => tools.page({ number }));
await yield_control();
const pages = await Promise.allSettled(asked);
return pages.map((page) => page.value?.length ?? [page.reason.code, page.reason.toolId])"""
    config = CodeModeConfig(max_snapshot_bytes=100_000, timeout_ms=3000)
    async with code_mode(pool, store, [page], config=config) as one:
        with anyio.fail_after(5):
            result = await one.exec(source)
        assert 0 < await bytes_waiting(store, result.run_id) <= 100_000
        result = await finish(one, result)
    assert result.value == [40_000, 40_000, ["reply_too_large", "openclaw:core:page"]]


@pytest.mark.covers("B-14", "WA-5")
async def test_errors_about_answers_that_do_not_fit_stay_within_the_inbox(
    pool: Pool, store: SnapshotStore
) -> None:
    go = anyio.Event()

    @tool
    async def page(number: int) -> str:
        """Answer with 80 kB, and then with 19 kB."""
        await go.wait()
        return "x" * (19_000 if number else 80_000)

    source = """const asked = Array.from({ length: 14 }, (_, number) => tools.page({ number }));
const pages = await Promise.allSettled(asked);
return pages.filter((page) => page.reason?.code === "reply_too_large").length"""
    config = CodeModeConfig(max_snapshot_bytes=100_000, timeout_ms=400)
    async with code_mode(pool, store, [page], config=config) as one:
        result = await one.exec(source)
        go.set()
        await until(lambda: all_answered(store, result.run_id))
        assert 80_000 < await bytes_waiting(store, result.run_id) <= 100_000
        assert (await finish(one, result)).value == 13


async def unavailable(*args: Any, **options: Any) -> None:
    raise StoreUnavailable("The disk is full.")


class Failing(MemoryStore):
    """A store whose disk is full, or whose lock is held, when a test says so."""

    BROKEN = ("park", "settle", "mark", "claim", "room", "abort", "end_all")

    def break_down(self) -> None:
        for method in self.BROKEN:
            setattr(self, method, unavailable)

    def mend(self) -> None:
        for method in self.BROKEN:
            delattr(self, method)


HELD_SOURCE = """text("begun");
const told = await Promise.all([tools.quick(), tools.slow()]);
text("ended");
return told"""


@pytest.mark.covers("DU-11")
async def test_a_program_that_has_to_wait_without_its_store_is_held_and_goes_on_later(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawmode.code_mode.exits.RECORD_AGAIN", 0.02)
    store, slow = Failing(), SlowTools()
    store.break_down()
    async with code_mode(pool, store, slow.tools) as one, code_mode(pool, store) as other:
        result = await one.exec(HELD_SOURCE)
        assert (result.status, result.output) == ("waiting", [{"type": "text", "text": "begun"}])
        assert "The disk is full." in result.notes[0]
        assert not one.idle
        again = await one.wait(result.run_id)
        assert (again.status, "The disk is full." in again.notes[0]) == ("waiting", True)
        slow.answer.set()  # while there is no store
        await anyio.wait_all_tasks_blocked()
        store.mend()
        await until(lambda: not one._driver.exits.owing)
        assert await store.count_parked() == 1
        ended = await finish(other, result)  # wherever it is waited for
    assert (ended.value, slow.calls) == (["quick", 1], 1)
    assert ended.output == [{"type": "text", "text": "ended"}]


@pytest.mark.covers("DU-11")
@pytest.mark.parametrize("how", ["abort", "end_run"])
async def test_a_held_program_can_be_aborted(
    pool: Pool, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawmode.code_mode.exits.RECORD_AGAIN", 0.02)
    store, slow = Failing(), SlowTools()
    store.break_down()
    async with code_mode(pool, store, slow.tools) as one:
        result = await one.exec(HELD_SOURCE)
        if how == "abort":
            assert await one.abort(result.run_id)
        else:
            with pytest.raises(StoreUnavailable):  # there may be others, in the store
                await one.end_run()
        assert one._calls.groups == {}
        store.mend()
        await until(lambda: not one._driver.exits.owing)
        assert await store.cells() == []
        assert (await one.wait(result.run_id)).code == "aborted"


@pytest.mark.covers("DU-14")
async def test_a_claim_whose_answer_was_lost_keeps_nobody_away(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawmode.code_mode.exits.RECORD_AGAIN", 0.02)
    store, slow = SqliteStore(tmp_path), SlowTools()
    lost: list[str] = []

    def losing(name: str) -> None:
        method = getattr(store, name)

        async def lose(*args: Any, **options: Any) -> Any:
            await method(*args, **options)
            delattr(store, name)
            lost.append(name)
            raise StoreUnavailable("The answer was lost.")

        setattr(store, name, lose)

    effects = CodeModeConfig(durability="effects")
    async with (
        code_mode(pool, store, slow.tools, config=effects) as one,
        code_mode(pool, store, slow.tools) as two,
    ):
        result = await one.exec("await yield_control(); return 1")
        for name in ("claim", "release", "take"):
            if name == "release":
                monkeypatch.setattr(store, "take", unavailable)
            losing(name)
            assert (await one.wait(result.run_id)).code == "snapshot_restore_failed"
            if name == "release":
                monkeypatch.undo()
                monkeypatch.setattr("clawmode.code_mode.exits.RECORD_AGAIN", 0.02)
            await until(lambda: not one._driver.exits.owing)
            assert [known.state for known in await store.cells()] == ["parked"]
        assert lost == ["claim", "release", "take"]
        assert (await two.wait(result.run_id)).value == 1


@pytest.mark.covers("DU-5")
async def test_the_calls_of_a_program_that_went_on_elsewhere_are_all_told(pool: Pool) -> None:
    store, slow = MemoryStore(), SlowTools()
    source = "await yield_control(); return tools.quick()"
    async with code_mode(pool, store, slow.tools) as one, code_mode(pool, store, slow.tools) as two:
        result = await one.exec(source)
        assert (await two.wait(result.run_id)).value == "quick"
        told = (await one.wait(result.run_id)).to_json()
    assert [entry["state"] for entry in told["calls"]] == ["completed"]  # pyrefly: ignore


async def test_an_answer_that_cannot_be_stored_is_not_lost(pool: Pool) -> None:
    store, slow = Failing(), SlowTools()
    async with code_mode(pool, store, slow.tools) as one:
        result = await one.exec("return await tools.slow()")
        store.break_down()
        slow.answer.set()
        await anyio.wait_all_tasks_blocked()
        assert (await one.wait(result.run_id)).code == "snapshot_restore_failed"
        store.mend()
        assert (await finish(one, result)).value == 1


async def test_a_queued_call_that_cannot_be_noted_is_not_made(pool: Pool) -> None:
    store, slow = Failing(), SlowTools()
    config = CodeModeConfig(timeout_ms=400, max_pending_tool_calls=1)
    source = """const settled = await Promise.allSettled([tools.slow(), tools.slow()]);
return settled.map((one) => one.value ?? one.reason.code)"""
    async with code_mode(pool, store, slow.tools, config=config) as one:
        result = await one.exec(source)
        store.break_down()
        slow.answer.set()
        await anyio.wait_all_tasks_blocked()
        store.mend()
        result = await finish(one, result)
    assert result.value == [1, "store_unavailable"]
    assert slow.calls == 1


# ---- A person, and the start of a program ----


@pytest.mark.covers("EX-2")
async def test_a_question_lives_no_longer_than_the_program(
    pool: Pool, store: SnapshotStore
) -> None:
    config = CodeModeConfig(snapshot_ttl_seconds=60)
    approvals = Approvals(ask_for=["quick"])
    async with code_mode(pool, store, SlowTools().tools, config=config, approvals=approvals) as one:
        assert (await one.exec("return await tools.quick()")).status == "waiting"
        (question,) = approvals.pending()
        assert question.expires <= time.time() + 60
