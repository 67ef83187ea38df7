"""Every error code of the page, from outside: what has to happen for a caller to read it."""

from typing import Any

import anyio
import pytest
from tests.support.sandbox_driver import only_worker
from tests.support.waiting import until

from clawmode import (
    ClawmodeError,
    CodeMode,
    CodeModeConfig,
    CodeModeResult,
    ErrorCode,
    MemoryStore,
    Pool,
    Tool,
    tool,
)
from clawmode.exceptions import ConfigurationError
from clawmode.sandbox import artifacts

pytestmark = pytest.mark.anyio


@pytest.fixture
def pool(one_worker_pool: Pool) -> Pool:
    """One worker: what one cell leaves in it, the next one meets."""
    return one_worker_pool


@tool
def nothing() -> None:
    """Do nothing."""


@tool(effect="write")
def broken() -> None:
    """Fail."""
    raise RuntimeError("the printer is on fire")


async def expect_failure(code_mode: CodeMode, result: CodeModeResult, code: ErrorCode) -> None:
    """The failure is told, counted, and of no consequence for the next cell."""
    assert (result.status, result.code, result.value) == ("failed", code, None), result
    told = result.to_json()
    assert told["code"] == code
    assert isinstance(told["error"], str)
    assert told["error"].strip()
    failures: Any = code_mode.telemetry.to_json()["failures"]
    assert failures == {code: 1}
    assert (await code_mode.exec("return 1")).value == 1


async def fails_with(pool: Pool, source: str, code: ErrorCode, **config: Any) -> CodeModeResult:
    tools = [nothing, broken]
    async with CodeMode(tools=tools, pool=pool, config=CodeModeConfig(**config)) as code_mode:
        result = await code_mode.exec(source)
        await expect_failure(code_mode, result, code)
    return result


async def parked(code_mode: CodeMode) -> str:
    result = await code_mode.exec("await yield_control(); return 1")
    assert result.status == "waiting", result
    return result.run_id


@pytest.mark.covers("ER-runtime_unavailable")
async def test_a_worker_that_dies_is_runtime_unavailable() -> None:
    async with Pool(size=1, max_size=1) as pool:

        @tool
        async def kill_the_worker() -> None:
            """Kill it while the program waits in it."""
            worker = only_worker(pool)
            worker.kill()
            await until(lambda: not worker.alive)

        async with CodeMode(tools=[kill_the_worker], pool=pool) as code_mode:
            result = await code_mode.exec("await tools.kill_the_worker()")
            await expect_failure(code_mode, result, "runtime_unavailable")


def twin() -> Tool:
    return Tool("twin", "A twin.", {}, print)


@pytest.mark.covers("ER-invalid_config")
@pytest.mark.parametrize(
    "configured",
    [
        lambda: CodeMode(config=CodeModeConfig.from_json({"timeoutMs": "10s"})[0]),
        lambda: CodeMode(config=CodeModeConfig.from_json({"runtime": "v8"})[0]),
        lambda: CodeMode(policy={"allow": "everything"}),
        lambda: CodeMode(policy={"deny": ["group:nowhere"]}),
        lambda: CodeMode(tools=[twin(), twin()]),
    ],
)
async def test_what_cannot_be_configured_is_invalid_config_and_runs_nothing(
    configured: Any,
) -> None:
    with pytest.raises(ClawmodeError) as raised:
        configured()
    assert getattr(raised.value, "code", None) == "invalid_config"


@pytest.mark.covers("ER-invalid_config", "B-18", "N-25")
@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"config": 500}, '{"timeoutMs": 500}'),
        ({"config": {"timeoutMs": "10s"}}, "positive integer"),
        ({"hooks": [print]}, "before_tool_call(function)"),
        ({"approvals": ["send_mail"]}, "Approvals("),
        ({"context": {"run_id": "r"}}, "RunContext("),
        ({"pool": 2}, "Pool()"),
        ({"store": "state"}, "SqliteStore("),
        ({"store": ""}, "SqliteStore("),
        ({"mcp_servers": ["files"]}, '{"files": {"command"'),
        ({"policy": ["read"]}, '{"allow": [...]'),
        ({"tools": twin()}, "a list of tools"),
        ({"tools": print}, "a list of tools"),
        ({"tools": [twin(), 5]}, "`@tool`"),
        ({"tools": "add"}, "`@tool`"),
        ({"tools": [int]}, "decorate a function"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_to_give_instead(options: Any, advice: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        CodeMode(**options)
    assert advice in str(raised.value)


@pytest.mark.covers("ER-invalid_input")
@pytest.mark.parametrize(
    "source",
    ["const = 1", "return (", "git status", "#!/bin/sh\nls", " ", "/*" + "x" * (1 << 20), 5, None],
)
async def test_source_that_is_no_program_is_invalid_input(pool: Pool, source: Any) -> None:
    result = await fails_with(pool, source, "invalid_input")
    assert result.calls == []


@pytest.mark.covers("ER-invalid_input")
@pytest.mark.parametrize(
    "run_id", ["", "cm_", "cm_" + "0" * 32, "\ud800", "../../etc/passwd", 5, None]
)
async def test_a_wait_for_nothing_is_invalid_input(pool: Pool, run_id: Any) -> None:
    code_mode = CodeMode(pool=pool)
    await expect_failure(code_mode, await code_mode.wait(run_id), "invalid_input")


@pytest.mark.covers("ER-unsupported_language")
@pytest.mark.parametrize("language", ["python", "", "JavaScript", "javascript ", "typescript"])
async def test_a_language_that_is_not_configured_is_unsupported(pool: Pool, language: str) -> None:
    code_mode = CodeMode(pool=pool, config=CodeModeConfig(languages=("javascript",)))
    result = await code_mode.exec("return 1", language)
    await expect_failure(code_mode, result, "unsupported_language")


@pytest.mark.covers("ER-typescript_transform_failed")
async def test_typescript_that_cannot_be_read_is_a_failed_transform(pool: Pool) -> None:
    code_mode = CodeMode(pool=pool)
    result = await code_mode.exec("const a: number = 1;\nconst b: = 2;", "typescript")
    await expect_failure(code_mode, result, "typescript_transform_failed")


@pytest.mark.covers("ER-module_access_denied")
@pytest.mark.parametrize(
    "source",
    [
        'import fs from "fs"',
        'return await import("fs")',
        'return require("fs")',
        "return import.meta.url",
        'text("before"); void (0, require)("fs")',
    ],
)
async def test_source_that_loads_a_module_is_denied_before_it_runs(pool: Pool, source: str) -> None:
    result = await fails_with(pool, source, "module_access_denied")
    assert result.output == []


@pytest.mark.covers("ER-timeout")
async def test_a_program_that_computes_too_long_is_a_timeout(pool: Pool) -> None:
    result = await fails_with(pool, 'text("kept"); for (;;);', "timeout", timeout_ms=200)
    assert result.output == [{"type": "text", "text": "kept"}]


@pytest.mark.covers("ER-memory_limit_exceeded")
async def test_a_program_that_hoards_exceeds_its_memory_limit(pool: Pool) -> None:
    source = 'text("kept"); const all = []; for (;;) all.push(new Array(1000).fill(0))'
    result = await fails_with(pool, source, "memory_limit_exceeded", memory_limit_bytes=4 << 20)
    assert result.output == [{"type": "text", "text": "kept"}]


@pytest.mark.covers("ER-output_limit_exceeded")
@pytest.mark.parametrize("emit", ["text(long)", "json([long])", "return long", "console.log(long)"])
async def test_a_program_that_emits_too_much_exceeds_its_output_limit(
    pool: Pool, emit: str
) -> None:
    source = f'text("kept"); const long = "é".repeat(1024); {emit}'
    result = await fails_with(pool, source, "output_limit_exceeded", max_output_bytes=1024)
    assert result.output[0] == {"type": "text", "text": "kept"}


@pytest.mark.covers("ER-snapshot_limit_exceeded")
async def test_a_program_too_large_to_park_exceeds_the_snapshot_limit(pool: Pool) -> None:
    source = 'text("kept"); await yield_control()'
    result = await fails_with(pool, source, "snapshot_limit_exceeded", max_snapshot_bytes=1024)
    assert result.output == [{"type": "text", "text": "kept"}]


@pytest.mark.covers("ER-snapshot_limit_exceeded")
async def test_one_parked_program_too_many_exceeds_the_snapshot_limit(pool: Pool) -> None:
    config, store = CodeModeConfig(max_suspended_runs=1), MemoryStore()
    async with CodeMode(pool=pool, config=config, store=store) as code_mode:
        first = await parked(code_mode)
        second = await code_mode.exec("await yield_control()")
        await expect_failure(code_mode, second, "snapshot_limit_exceeded")
        assert (await code_mode.wait(first)).value == 1


@pytest.mark.covers("ER-snapshot_expired")
async def test_a_wait_after_the_ttl_is_expired(pool: Pool) -> None:
    now = 0.0
    config, store = CodeModeConfig(snapshot_ttl_seconds=9), MemoryStore(clock=lambda: now)
    async with CodeMode(pool=pool, config=config, store=store) as code_mode:
        run_id = await parked(code_mode)
        now = 9.0
        await expect_failure(code_mode, await code_mode.wait(run_id), "snapshot_expired")
        assert (await code_mode.wait(run_id)).code == "snapshot_expired"


@pytest.mark.covers("ER-snapshot_restore_failed")
async def test_a_snapshot_of_another_build_is_not_restored_and_kept(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with CodeMode(pool=pool) as code_mode:
        run_id = await parked(code_mode)
        with monkeypatch.context() as patched:
            patched.setattr(artifacts, "locked_hash", lambda part: "0" * 64)
            result = await code_mode.wait(run_id)
        await expect_failure(code_mode, result, "snapshot_restore_failed")
        assert (await code_mode.wait(run_id)).status == "completed"


@pytest.mark.covers("ER-too_many_pending_tool_calls")
async def test_more_calls_than_can_queue_are_too_many(pool: Pool) -> None:
    source = 'text("kept"); for (let i = 0; i < 130; i++) tools.nothing().catch(() => {})'
    code: ErrorCode = "too_many_pending_tool_calls"
    result = await fails_with(pool, source, code, max_pending_tool_calls=1)
    assert result.output == [{"type": "text", "text": "kept"}]


@pytest.mark.covers("ER-nested_tool_failed")
@pytest.mark.parametrize(
    "source",
    [
        "await tools.broken()",
        'await tools.call("openclaw:core:broken")',
        "await Promise.all([tools.nothing(), tools.broken()])",
        'await tools.broken().catch((cause) => { throw new Error("wrapped", { cause }) })',
        "void tools.broken()",
    ],
)
async def test_a_failing_tool_that_nobody_catches_is_a_nested_failure(
    pool: Pool, source: str
) -> None:
    result = await fails_with(pool, source, "nested_tool_failed")
    failed: Any = result.calls[-1]
    assert (failed["toolId"], failed["state"]) == ("openclaw:core:broken", "failed")


@pytest.mark.covers("ER-aborted")
async def test_a_program_whose_run_ends_is_aborted(pool: Pool) -> None:
    started, results = anyio.Event(), list[CodeModeResult]()

    @tool
    async def start() -> None:
        """Say that the program runs."""
        started.set()

    async with CodeMode(tools=[start], pool=pool) as code_mode:

        async def execute() -> None:
            results.append(await code_mode.exec('text("kept"); await tools.start(); for (;;);'))

        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(execute)
                await started.wait()
                await code_mode.end_run()
        (result,) = results
        assert result.output == [{"type": "text", "text": "kept"}]
        await expect_failure(code_mode, result, "aborted")


@pytest.mark.covers("ER-internal_error")
@pytest.mark.parametrize(
    "source",
    [
        'throw new Error("no")',
        "null.x",
        'throw "a string"',
        'Promise.reject(new TypeError("no"))',
        'setTimeout(() => { throw new Error("later") }, 1)',
        "await new Promise(() => {})",
    ],
)
async def test_a_program_that_throws_or_waits_for_nothing_is_an_internal_error(
    pool: Pool, source: str
) -> None:
    result = await fails_with(pool, f'text("kept"); {source}', "internal_error")
    assert result.output == [{"type": "text", "text": "kept"}]
