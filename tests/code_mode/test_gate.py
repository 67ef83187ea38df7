"""Hooks of the outer `exec`: what they see, what they may change, and who is asked."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.sandbox_driver import settled
from tests.support.waiting import within

from clawmode import (
    Approvals,
    CodeMode,
    CodeModeConfig,
    Hooks,
    Pool,
    RequireApproval,
    RunContext,
    SqliteStore,
    Tool,
    ToolCallDecision,
    tool,
)
from clawmode.tools.approvals import Decision, Question
from clawmode.tools.hooks import AfterToolCall, BeforeToolCall

pytestmark = pytest.mark.anyio

WHO = RunContext(agent_id="a", session_id="s", session_key="k", run_id="r")


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def hooked(*decisions: dict[str, Any] | ToolCallDecision | None) -> tuple[Hooks, list[Any]]:
    """Hooks that decide about the outer `exec` alone, in order, and everything they saw."""
    hooks, seen = Hooks(), list[Any]()
    for number, decision in enumerate(decisions):

        def decide(event: BeforeToolCall, made: Any = decision) -> Any:
            seen.append(event)
            return made if event.tool_kind == "code_mode_exec" else None

        hooks.before_tool_call(decide, name=f"hook {number}")
    return hooks, seen


def open_code_mode(pool: Pool, hooks: Hooks, **options: Any) -> CodeMode:
    return CodeMode(tools=[add], pool=pool, hooks=hooks, **options)


@pytest.mark.covers("HK-2")
@pytest.mark.parametrize("language", ["javascript", "typescript"])
async def test_a_hook_sees_what_it_is_and_the_code_under_both_names(
    pool: Pool, language: str
) -> None:
    hooks, seen = hooked(None)
    async with open_code_mode(pool, hooks, context=WHO) as code_mode:
        source = "return await tools.add({ a: 1, b: 2 })"
        result = await code_mode.call(
            "exec", {"command": source, "language": language}, call_id="7"
        )
    assert result["value"] == 3
    outer, nested = seen
    assert (outer.tool_kind, outer.tool_input_kind) == ("code_mode_exec", language)
    assert (outer.tool_name, outer.tool_call_id, outer.run) == ("exec", "7", WHO)
    assert outer.params == {"code": source, "command": source, "language": language}
    assert (nested.tool_kind, nested.tool_input_kind) == (None, None)
    assert (nested.tool_name, nested.parent_id) == ("add", "7")


@pytest.mark.covers("HK-2", "CM-exec-command")
@pytest.mark.parametrize("key", ["code", "command"])
async def test_a_rewrite_of_either_name_is_taken_over(pool: Pool, key: str) -> None:
    hooks, _ = hooked({"params": {key: "return 'rewritten'"}})
    async with open_code_mode(pool, hooks) as code_mode:
        assert (await code_mode.exec("return 'written'")).value == "rewritten"


@pytest.mark.covers("HK-2")
async def test_a_rewrite_of_one_name_beside_the_old_other_is_taken_over(pool: Pool) -> None:
    source = "return 'written'"
    hooks, _ = hooked({"params": {"code": source, "command": "return 'rewritten'"}})
    async with open_code_mode(pool, hooks) as code_mode:
        assert (await code_mode.exec(source)).value == "rewritten"


@pytest.mark.covers("HK-2")
async def test_a_hook_may_change_the_language(pool: Pool) -> None:
    hooks, _ = hooked({"params": {"code": "return 1 as number", "language": "typescript"}})
    async with open_code_mode(pool, hooks) as code_mode:
        assert (await code_mode.exec("return 0")).value == 1


@pytest.mark.covers("HK-2")
@pytest.mark.parametrize(
    "params",
    [{"code": "return 1", "command": "return 2"}, {"code": " "}, {"code": "1", "language": "perl"}],
)
async def test_a_rewrite_that_cannot_run_does_not(pool: Pool, params: dict[str, Any]) -> None:
    hooks, _ = hooked({"params": params})
    async with open_code_mode(pool, hooks) as code_mode:
        result = await code_mode.exec("return 0")
    assert result.code in ("invalid_input", "unsupported_language")


@pytest.mark.covers("HK-3")
async def test_a_blocked_cell_does_not_start_and_says_why(pool: Pool) -> None:
    hooks, _ = hooked(ToolCallDecision(block=True, block_reason="not on Sundays"))
    async with open_code_mode(pool, hooks) as code_mode:
        result = await code_mode.exec("text('started')")
    assert (result.code, result.output) == ("invalid_input", [])
    assert "not on Sundays" in (result.error or "")


async def test_a_hook_that_breaks_down_blocks_the_cell(pool: Pool) -> None:
    hooks = Hooks()

    def broken(event: BeforeToolCall) -> None:
        raise RuntimeError

    hooks.before_tool_call(broken)
    async with open_code_mode(pool, hooks) as code_mode:
        assert (await code_mode.exec("return 1")).status == "failed"


async def test_hooks_are_shown_what_became_of_a_cell(pool: Pool) -> None:
    hooks, seen = Hooks(), list[AfterToolCall]()
    hooks.after_tool_call(seen.append)
    async with open_code_mode(pool, hooks) as code_mode:
        await code_mode.exec("return 5")
    (after,) = seen
    assert after.call.tool_kind == "code_mode_exec"
    assert after.result is not None
    details = after.result.details
    assert isinstance(details, dict)
    assert details["value"] == 5


# ---- Whether a cell may start is a person's decision ----


ASK = ToolCallDecision(require_approval=RequireApproval(title="Run this program?"))


@pytest.mark.covers("EX-2")
@pytest.mark.parametrize("decision", ["allow-once", "deny"])
async def test_a_person_decides_without_holding_exec_open(pool: Pool, decision: Any) -> None:
    hooks, _ = hooked(ASK)
    approvals = Approvals()
    async with open_code_mode(pool, hooks, approvals=approvals) as code_mode:
        with anyio.fail_after(5):
            result = await code_mode.exec("text('started'); return 1")
        assert (result.status, result.output) == ("waiting", [])
        assert result.pending_tool_calls == [
            {"id": "0", "method": "exec", "toolId": "openclaw:code_mode:exec", "state": "approval"}
        ]
        (question,) = approvals.pending()
        assert question.input["code"] == "text('started'); return 1"
        approvals.resolve(question.id, decision)
        after = await code_mode.wait(result.run_id)
        if decision == "deny":
            assert (after.code, after.output) == ("invalid_input", [])
        else:
            assert (after.value, len(after.output)) == (1, 1)
        assert (await code_mode.wait(result.run_id)).code == "invalid_input"


async def test_code_decides_at_once(pool: Pool) -> None:
    hooks, _ = hooked(ASK)
    answers: list[tuple[Decision, str]] = [("allow-once", "completed"), ("deny", "failed")]
    for decision, status in answers:

        def decide(question: Question, made: Decision = decision) -> Decision:
            return made

        approvals = Approvals(approver=decide)
        async with open_code_mode(pool, hooks, approvals=approvals) as code_mode:
            assert (await code_mode.exec("return 1")).status == status


async def test_always_is_remembered_for_cells_and_for_no_shell(pool: Pool) -> None:
    hooks, _ = hooked(ASK)
    approvals = Approvals(ask_for=["exec"])

    @tool(name="exec")
    async def shell() -> str:
        """A shell."""
        return "shell"

    async with CodeMode(tools=[shell], pool=pool, hooks=hooks, approvals=approvals) as code_mode:
        result = await code_mode.exec("return await tools.exec()")
        (question,) = approvals.pending()
        approvals.resolve(question.id, "allow-always")
        result = await code_mode.wait(result.run_id)
        assert result.status == "waiting", "the shell was not asked about"
        (question,) = approvals.pending()
        assert question.tool_id == "openclaw:core:exec"


@pytest.mark.covers("WA-11")
async def test_the_decision_is_asked_for_again_by_the_next_process(
    pool: Pool, tmp_path: Path
) -> None:
    tools: list[Tool] = [add]
    hooks, _ = hooked(ASK)
    store = SqliteStore(tmp_path)
    async with CodeMode(tools=tools, pool=pool, hooks=hooks, store=store, context=WHO) as one:
        result = await one.exec("return await tools.add({ a: 1, b: 1 })")
    approvals = Approvals()
    async with CodeMode(
        tools=tools, pool=pool, hooks=hooks, store=store, context=WHO, approvals=approvals
    ) as two:
        assert (await two.wait(result.run_id, yield_ms=500)).status == "waiting"
        (question,) = approvals.pending()
        approvals.resolve(question.id, "allow-once")
        assert (await two.wait(result.run_id)).value == 2


# ---- Time, aborts, and what is told afterwards ----

SHORT = CodeModeConfig(timeout_ms=150)


async def hang(event: Any) -> Any:
    await anyio.sleep_forever()


@pytest.mark.covers("B-6", "EX-2")
async def test_hooks_that_do_not_answer_end_exec_at_its_deadline(pool: Pool) -> None:
    hooks = Hooks()
    hooks.before_tool_call(hang)
    async with open_code_mode(pool, hooks, config=SHORT) as code_mode:
        with within(2):
            result = await code_mode.exec("return 1")
    assert (result.status, result.code) == ("failed", "timeout")
    assert result.error is not None
    assert "never ran: the `before_tool_call` hooks" in result.error


@pytest.mark.covers("B-6", "EX-2")
async def test_an_approver_that_does_not_answer_ends_exec_at_its_deadline(pool: Pool) -> None:
    resolutions: list[str] = []
    wish = RequireApproval(title="May it?", on_resolution=resolutions.append)
    hooks, _ = hooked(ToolCallDecision(require_approval=wish))
    approvals = Approvals(approver=hang)
    async with open_code_mode(pool, hooks, config=SHORT, approvals=approvals) as code_mode:
        with within(2):
            result = await code_mode.exec("return await tools.add({a: 1, b: 2})")
    assert (result.code, result.calls, resolutions) == ("timeout", [], ["cancelled"])
    assert result.error is not None
    assert "never ran: the approver" in result.error


@pytest.mark.covers("B-6", "EX-2")
async def test_a_slow_hook_afterwards_does_not_hold_exec_open(pool: Pool) -> None:
    hooks, seen, go_on = Hooks(), anyio.Event(), anyio.Event()

    @hooks.after_tool_call
    async def slow(ended: AfterToolCall) -> None:
        await go_on.wait()
        seen.set()

    await settled(pool)
    async with open_code_mode(pool, Hooks()) as code_mode:  # a worker gets the tools of the program
        assert (await code_mode.exec("return 1")).value == 1
    async with open_code_mode(pool, hooks, config=SHORT) as code_mode:
        with within(2):
            assert (await code_mode.exec("return 1")).value == 1
        go_on.set()
        with within(2):
            await seen.wait()


@pytest.mark.covers("B-7", "WA-10")
@pytest.mark.parametrize("stage", ["hook", "approver"])
@pytest.mark.parametrize("how", ["abort", "end_run", "aclose"])
async def test_a_cell_in_the_gate_is_known_and_can_be_ended(
    pool: Pool, stage: str, how: str
) -> None:
    asked, ran = anyio.Event(), list[str]()

    async def stop(event: Any) -> Any:
        asked.set()
        await anyio.sleep_forever()

    @tool
    async def effect() -> None:
        """Do it."""
        ran.append("effect")

    hooks, _ = hooked({"requireApproval": {"title": "May it?"}})
    approvals = Approvals(approver=stop)
    if stage == "hook":
        hooks.before_tool_call(stop)
    results: list[Any] = []
    async with CodeMode(tools=[effect], pool=pool, hooks=hooks, approvals=approvals) as code_mode:

        async def execute() -> None:
            results.append(await code_mode.exec("return await tools.effect()"))

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(execute)
                await asked.wait()
                (run_id,) = code_mode.cells()
                if how == "abort":
                    assert await code_mode.abort(run_id)
                else:
                    await getattr(code_mode, how)()
        assert code_mode.cells() == {}
    assert (results[0].code, ran) == ("aborted", [])


@pytest.mark.covers("B-19", "HK-2")
async def test_hooks_are_shown_afterwards_the_program_that_ran(pool: Pool) -> None:
    hooks, ended = Hooks(), list[AfterToolCall]()
    other = ToolCallDecision(params={"code": "return 2", "language": "typescript"})
    hooks.before_tool_call(lambda event: other)
    hooks.after_tool_call(ended.append)
    async with open_code_mode(pool, hooks) as code_mode:
        assert (await code_mode.exec("return 1")).value == 2
    (call,) = [each.call for each in ended]
    assert call.params == {"code": "return 2", "command": "return 2", "language": "typescript"}
    assert call.tool_input_kind == "typescript"
