"""`exec` and `wait` without tools: results, waiting, and who may wait."""

import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import anyio
import pytest
from tests.support.waiting import undisturbed_time, until

from clawmode import CodeMode, CodeModeConfig, CodeModeResult, Pool, RunContext
from clawmode.code_mode.memory_store import MemoryStore
from clawmode.exceptions import ClawmodeWarning, NotOpen, RuntimeUnavailable
from clawmode.sandbox import artifacts

pytestmark = pytest.mark.anyio

OWNER = RunContext(agent_id="a", session_id="s", session_key="k", run_id="r")


@pytest.fixture
def code_mode(pool: Pool) -> CodeMode:
    return CodeMode(pool=pool, store=MemoryStore())


def print_nothing() -> None:
    """Prints nothing."""


def waiting(result: CodeModeResult) -> str:
    assert result.status == "waiting", result
    assert result.run_id is not None
    return result.run_id


async def test_a_completed_result_is_the_pages_object(code_mode: CodeMode) -> None:
    result = await code_mode.exec('text("t"); json({ a: 1 }); return [1]')
    assert result.to_json() == {
        "status": "completed",
        "value": [1],
        "output": [{"type": "text", "text": "t"}, {"type": "json", "value": {"a": 1}}],
        "telemetry": code_mode.telemetry.to_json(),
    }
    assert (code_mode.telemetry.execs, code_mode.telemetry.waits) == (1, 0)


@pytest.mark.covers("WA-4")
async def test_a_yield_waits_for_the_model(code_mode: CodeMode) -> None:
    result = await code_mode.exec('text("a"); await yield_control("later"); text("b"); return 1')
    run_id = waiting(result)
    assert result.reason == "yield"
    assert run_id.startswith("cm_")
    assert len(run_id) == 35
    after = await code_mode.wait(run_id)
    assert (after.status, after.value) == ("completed", 1)
    assert after.output == [{"type": "text", "text": "b"}]


async def test_a_timer_beyond_the_deadline_parks_at_once(pool: Pool) -> None:
    code_mode = CodeMode(pool=pool, config=CodeModeConfig(timeout_ms=1000))
    pids = [worker.pid for worker in pool._workers.tenants]
    began = undisturbed_time(*pids)
    result = await code_mode.exec(
        "await new Promise((r) => setTimeout(r, 1500)); return Date.now()"
    )
    assert undisturbed_time(*pids) - began < 0.9
    assert result.reason == "pending_tools"
    assert [call["method"] for call in result.to_json()["pendingToolCalls"]] == ["timer"]  # pyrefly: ignore
    due = undisturbed_time()
    while result.status == "waiting":
        result = await code_mode.wait(waiting(result))
    assert result.status == "completed"
    assert undisturbed_time() - due < 3


@pytest.mark.covers("B-1", "EX-6", "EX-13")
async def test_a_program_that_waits_for_an_interval_resumes_at_its_next_tick(pool: Pool) -> None:
    code_mode = CodeMode(pool=pool, config=CodeModeConfig(timeout_ms=400))
    result = await code_mode.exec(
        """let n = 0;
return await new Promise((resolve) => {
  const id = setInterval(() => { if (++n === 2) { clearInterval(id); resolve(n) } }, 450);
})"""
    )
    parks = 0
    while result.status == "waiting":
        parks += 1
        pending: Any = result.pending_tool_calls
        assert (result.reason, [row["method"] for row in pending]) == ("pending_tools", ["timer"])
        assert abs(pending[0]["due"] / 1000 - time.time()) < 5
        result = await code_mode.wait(waiting(result))
    assert (result.status, result.value) == ("completed", 2)
    assert parks >= 2


@pytest.mark.covers("EX-6")
async def test_an_interval_beside_a_settled_main_promise_is_not_pending(pool: Pool) -> None:
    code_mode = CodeMode(pool=pool, config=CodeModeConfig(timeout_ms=400))
    result = await code_mode.exec("setInterval(() => {}, 60000); yield_control(); return 1")
    assert (result.reason, len(result.pending_tool_calls)) == ("yield", 1)
    assert (await code_mode.wait(waiting(result))).value == 1


@pytest.mark.covers("P-4", "EX-13")
async def test_a_parked_timer_is_on_time_on_a_machine_with_another_uptime(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    code_mode = CodeMode(pool=pool, config=CodeModeConfig(timeout_ms=400))
    result = await code_mode.exec(
        """const began = Date.now();
await new Promise((resolve) => setTimeout(resolve, 800));
return Date.now() - began"""
    )
    clock, eleven_days = time.clock_gettime, 11 * 86400
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + eleven_days)
    while result.status == "waiting":
        result = await code_mode.wait(waiting(result))
    assert isinstance(result.value, int)
    assert result.value >= 799


@pytest.mark.covers("EX-13")
async def test_a_reply_does_not_fire_a_timer_that_is_due_later(code_mode: CodeMode) -> None:
    result = await code_mode.exec(
        """let fired = false;
const id = setTimeout(() => { fired = true }, 60000);
for (let i = 0; i < 3; i++) await tools.search("anything");
clearTimeout(id);
return fired"""
    )
    assert (result.status, result.value) == ("completed", False)


async def test_a_timer_within_the_deadline_is_waited_for(code_mode: CodeMode) -> None:
    result = await code_mode.exec("await new Promise((r) => setTimeout(r, 40)); return 5")
    assert (result.status, result.value) == ("completed", 5)


async def test_without_tools_a_call_is_refused_and_a_search_finds_nothing(
    code_mode: CodeMode,
) -> None:
    source = """const found = await tools.search("x");
try { await tools.call("core:nothing") } catch (e) { return [found, e.message, e.toolId] }"""
    result = await code_mode.exec(source)
    found, message, tool_id = result.value if isinstance(result.value, list) else (1, 1, 1)
    assert (found, tool_id) == ([], None)
    assert "'core:nothing'" in str(message)


@pytest.mark.parametrize("run_id", ["", "cm_unknown", "cm_" + "0" * 32])
async def test_an_unknown_run_is_invalid_input(code_mode: CodeMode, run_id: str) -> None:
    assert (await code_mode.wait(run_id)).code == "invalid_input"


async def test_a_finished_run_cannot_be_waited_for_again(code_mode: CodeMode) -> None:
    run_id = waiting(await code_mode.exec("await yield_control()"))
    assert (await code_mode.wait(run_id)).status == "completed"
    assert (await code_mode.wait(run_id)).code == "invalid_input"


@pytest.mark.covers("ER-snapshot_expired")
async def test_a_cell_that_waited_too_long_is_expired(pool: Pool) -> None:
    now = 0.0
    store = MemoryStore(clock=lambda: now)
    code_mode = CodeMode(pool=pool, store=store, config=CodeModeConfig(snapshot_ttl_seconds=1))
    run_id = waiting(await code_mode.exec("await yield_control()"))
    now = 1.5
    assert (await code_mode.wait(run_id)).code == "snapshot_expired"
    assert (await code_mode.wait(run_id)).code == "snapshot_expired"
    assert code_mode.telemetry.snapshots["expired"] == 1


@pytest.mark.covers("ER-snapshot_restore_failed", "WA-8")
@pytest.mark.parametrize("part", ["record", "snapshot"])
async def test_a_parked_cell_that_was_altered_is_not_restored(pool: Pool, part: str) -> None:
    store = MemoryStore()
    code_mode = CodeMode(pool=pool, store=store)
    run_id = waiting(await code_mode.exec("await yield_control()"))
    kept = store._cells[run_id]
    sealed = getattr(kept.stored, part)
    altered = {part: sealed[:-1] + bytes([sealed[-1] ^ 1])}
    kept.stored = replace(kept.stored, **altered)
    assert (await code_mode.wait(run_id)).code == "snapshot_restore_failed"
    assert (await code_mode.wait(run_id)).code == "invalid_input"


@pytest.mark.covers("WA-8")
async def test_the_snapshot_of_another_cell_is_not_restored(pool: Pool) -> None:
    store = MemoryStore()
    code_mode = CodeMode(pool=pool, store=store)
    first = waiting(await code_mode.exec("await yield_control(); return 1"))
    second = waiting(await code_mode.exec("await yield_control(); return 2"))
    one, other = store._cells[first], store._cells[second]
    one.stored = replace(one.stored, snapshot=other.stored.snapshot)
    assert (await code_mode.wait(first)).code == "snapshot_restore_failed"
    assert (await code_mode.wait(second)).value == 2


@pytest.mark.covers("WA-1")
@pytest.mark.parametrize("part", ["agent_id", "session_id", "session_key", "run_id"])
async def test_a_cell_of_somebody_else_looks_like_none_and_is_untouched(
    pool: Pool, part: str
) -> None:
    store = MemoryStore()
    owner = CodeMode(pool=pool, store=store, context=OWNER)
    stranger = CodeMode(pool=pool, store=store, context=replace(OWNER, **{part: ""}))
    run_id = waiting(await owner.exec("await yield_control(); return 1"))
    missing = "cm_" + "0" * 32
    refused, unknown = await stranger.wait(run_id), await stranger.wait(missing)
    assert refused.code == unknown.code == "invalid_input"
    assert (refused.error or "").replace(run_id, missing) == unknown.error
    assert not await stranger.abort(run_id)
    assert (await owner.wait(run_id)).value == 1
    gone = await stranger.wait(run_id)
    assert (gone.error or "").replace(run_id, missing) == unknown.error


@pytest.mark.covers("ER-snapshot_limit_exceeded")
async def test_a_cell_that_is_too_large_to_park_fails(pool: Pool) -> None:
    code_mode = CodeMode(pool=pool, config=CodeModeConfig(max_snapshot_bytes=1024))
    result = await code_mode.exec('text("kept"); await yield_control()')
    assert result.code == "snapshot_limit_exceeded"
    assert result.output == [{"type": "text", "text": "kept"}]


async def test_more_parked_cells_than_allowed_are_refused(pool: Pool) -> None:
    code_mode = CodeMode(
        pool=pool, store=MemoryStore(), config=CodeModeConfig(max_suspended_runs=2)
    )
    for _ in range(2):
        waiting(await code_mode.exec("await yield_control()"))
    assert (await code_mode.exec("await yield_control()")).code == "snapshot_limit_exceeded"


@pytest.mark.covers("IN-2", "ER-unsupported_language")
async def test_a_language_that_is_unknown_or_switched_off_is_unsupported(pool: Pool) -> None:
    code_mode = CodeMode(pool=pool, config=CodeModeConfig(languages=("javascript",)))
    assert (await code_mode.exec("1", "python")).code == "unsupported_language"
    assert (await code_mode.exec("1", "typescript")).code == "unsupported_language"
    assert (await code_mode.exec("return 1", "javascript")).status == "completed"


async def test_source_that_is_blank_or_too_long_is_invalid_input(code_mode: CodeMode) -> None:
    assert (await code_mode.exec(" \n")).code == "invalid_input"
    assert (await code_mode.exec("/*" + "é" * 600_000 + "*/")).code == "invalid_input"


@pytest.mark.covers("WK-2")
async def test_without_a_runtime_exec_fails_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(part: str) -> bytes:
        raise RuntimeUnavailable(f"{part} is missing")

    monkeypatch.setattr(artifacts, "prepare", missing)
    async with CodeMode() as code_mode:
        result = await code_mode.exec("return 1")
    assert (result.status, result.code) == ("failed", "runtime_unavailable")


@pytest.mark.covers("B-18", "N-25")
async def test_the_config_may_be_what_the_file_has(pool: Pool) -> None:
    code_mode = CodeMode(pool=pool, config={"timeoutMs": 500, "languages": ["javascript"]})
    assert (code_mode.config.timeout_ms, code_mode.config.languages) == (500, ("javascript",))


@pytest.mark.covers("N-25", "N-27", "CF-5")
def test_the_config_is_warned_about_as_the_file_is() -> None:
    with pytest.warns(ClawmodeWarning) as warned:
        code_mode = CodeMode(config={"timeoutMs": 300_000, "timeout_ms": 500})
    assert code_mode.config.timeout_ms == 60_000
    assert [str(each.message) for each in warned] == [
        "config.timeoutMs: 300000 is over 60000: 60000 is used",
        "config.timeout_ms: unknown key, it has no effect; the nearest known one is timeoutMs",
    ]
    assert {each.filename for each in warned} == {__file__}, "the caller's line is not named"


@pytest.mark.covers("N-25")
async def test_plain_functions_are_taken_as_tools(pool: Pool) -> None:
    def double(n: int) -> int:
        """Double a number."""
        return 2 * n

    async def negate(n: int) -> int:
        return -n

    async with CodeMode(tools=[double, negate], pool=pool) as code_mode:
        assert code_mode.catalog.entries[0].description == "Double a number."
        result = await code_mode.exec("return tools.negate({n: await tools.double({n: 3})})")
        assert result.value == -6
        code_mode.offer([negate])
        assert len(code_mode.catalog) == 1


@pytest.mark.covers("N-25", "B-18")
@pytest.mark.parametrize("tools", [[], [print_nothing]])
async def test_a_program_outside_of_async_with_is_refused_with_what_to_write(tools: Any) -> None:
    code_mode = CodeMode(tools=tools)
    uses = [
        lambda: code_mode.exec("return 1"),
        lambda: code_mode.wait("cm_" + "0" * 32),
        lambda: code_mode.call("exec", {"code": "return 1"}),
    ]
    for use in uses:
        with pytest.raises(NotOpen, match="async with CodeMode"):
            await use()
    async with CodeMode(tools=tools, pool=Pool()) as unopened:
        with pytest.raises(NotOpen, match="async with Pool"):
            await unopened.exec("return 1")


@pytest.mark.covers("N-8", "EX-2")
async def test_compiling_machine_code_does_not_count_against_the_deadline(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To load the compiled code into a worker takes 0.1 s, or more on a busy machine, and counts.
    assert (await CodeMode(pool=pool).exec("return 1", "typescript")).value == 1
    real, slow = artifacts.prepare, 0.6

    def prepare_slowly(part: artifacts.Part) -> Future[bytes]:
        if part not in coming:
            coming[part] = Future()
            answer = real(part)
            timer = threading.Timer(slow, lambda: coming[part].set_result(answer.result()))
            timer.start()
        return coming[part]

    coming: dict[str, Future[bytes]] = {}
    monkeypatch.setattr(artifacts, "prepare", prepare_slowly)
    monkeypatch.setattr(pool, "_prepared", set())
    async with Pool(size=1) as fresh:
        for language, workers in (("javascript", fresh), ("typescript", pool)):
            # Not entered, so nobody waits for the first worker: the JavaScript cell does.
            code_mode = CodeMode(pool=workers, config=CodeModeConfig(timeout_ms=500))
            began = time.monotonic()
            result = await code_mode.exec("return 1", language)
            assert (result.error, result.value) == (None, 1)
            assert time.monotonic() - began >= slow
        began = undisturbed_time()
        result = await code_mode.exec("for (;;) {}", "typescript")
    assert (result.code, undisturbed_time() - began < 2) == ("timeout", True)
    assert result.error == "The program ran longer than it may. The limit is 0.5 s."


@pytest.mark.covers("N-8")
async def test_a_cell_can_be_aborted_while_machine_code_is_compiled(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "prepare", lambda part: Future())
    monkeypatch.setattr(pool, "_prepared", set())
    code_mode = CodeMode(pool=pool, store=MemoryStore())
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:

            async def run() -> None:
                result = await code_mode.exec("return 1")
                assert result.code == "aborted"

            group.start_soon(run)
            await until(code_mode.cells)
            (cell,) = code_mode.cells()
            assert await code_mode.abort(cell)


def test_two_runs_have_two_ids() -> None:
    assert RunContext().run_id != RunContext().run_id
