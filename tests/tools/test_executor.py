"""The one path of a tool call: who can refuse it, in which order, and what is told to whom."""

import logging
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from tests.support.waiting import undisturbed_time, until

from clawmode.context import RunContext
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.tools import approvals as approvals_module
from clawmode.tools import function as tool_function
from clawmode.tools import hooks as hooks_module
from clawmode.tools.approvals import Approvals, Decision, Question
from clawmode.tools.executor import Call, CallEvent, Executor, ToolFailure
from clawmode.tools.hooks import (
    AfterToolCall,
    ApprovalNeeded,
    BeforeToolCall,
    Hooks,
    RequireApproval,
    ToolCallDecision,
)
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool, ToolContext, ToolResult
from clawmode.types import CallState, JsonObject

pytestmark = pytest.mark.anyio

RUN = RunContext(agent_id="main", session_id="s", run_id="r")
SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "additionalProperties": False,
}


def tool(execute: Callable[..., Any], **options: Any) -> Tool:
    return Tool("double", "Doubles.", SCHEMA, execute, **options)


async def double(input: JsonObject, context: ToolContext) -> int:
    number = input.get("n", 1)
    assert isinstance(number, int)
    return 2 * number


def call(of: Tool, input: JsonObject | None = None, **options: Any) -> Call:
    return Call(id="c1", tool=of, input={"n": 4} if input is None else input, run=RUN, **options)


def executor(policy: Policy | None = None, **options: Any) -> Executor:
    return Executor(policy or Policy(()), **options)


async def failure(of: Executor, what: Call) -> ToolFailure:
    with pytest.raises(ToolFailure) as caught:
        await of.call(what)
    return caught.value


# ---- The tool ----


async def test_a_call_gives_the_tools_value() -> None:
    result = await executor().call(call(tool(double)))
    assert (result.value, result.encoded) == (8, b"8")


@pytest.mark.parametrize(
    ("answer", "value", "encoded"),
    [
        ("text", "text", b'"text"'),
        (None, None, b"null"),
        ({"a": [1]}, {"a": [1]}, b'{"a": [1]}'),
        (ToolResult("said", {"x": 1}), {"x": 1}, b'{"x": 1}'),
        (ToolResult("said"), "said", b'"said"'),
    ],
)
async def test_details_are_preferred_to_text(answer: Any, value: Any, encoded: bytes) -> None:
    result = await executor().call(call(tool(lambda input, context: answer)))
    assert (result.value, result.encoded) == (value, encoded)


async def test_a_function_that_is_not_async_runs_off_the_loop() -> None:
    threads: list[int] = []

    def plain(input: JsonObject, context: ToolContext) -> str:
        threads.append(threading.get_ident())
        return "done"

    await executor().call(call(tool(plain)))
    assert threads != [threading.get_ident()]


async def test_a_tool_learns_who_asks() -> None:
    seen: list[ToolContext] = []

    async def look(input: JsonObject, context: ToolContext) -> None:
        seen.append(context)

    await executor().call(call(tool(look), parent_id="exec-1"))
    assert (seen[0].run, seen[0].call_id, seen[0].parent_id) == (RUN, "c1", "exec-1")


@pytest.mark.covers("N-11")
@pytest.mark.parametrize("is_async", [True, False])
async def test_an_exception_keeps_its_type_and_its_traceback_is_logged(
    is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def missing_async(input: JsonObject, context: ToolContext) -> None:
        raise KeyError("x")

    def missing(input: JsonObject, context: ToolContext) -> None:
        raise KeyError("x")

    error = await failure(executor(), call(tool(missing_async if is_async else missing)))
    assert (error.code, error.name, error.message) == ("tool_failed", "KeyError", "'x'")
    assert str(error) == "KeyError: 'x'"
    assert error.__cause__ is None
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("clawmode.executor", "ERROR")
    assert record.exc_info is not None
    frames = traceback.extract_tb(record.exc_info[2])
    assert frames[-1].name.startswith("missing")
    assert 'raise KeyError("x")' in caplog.text


@pytest.mark.covers("N-11")
async def test_half_a_character_in_an_exception_breaks_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(input: JsonObject, context: ToolContext) -> None:
        raise ValueError("\ud800")

    await failure(executor(), call(tool(broken)))
    assert caplog.text.encode("utf-8")
    assert "in broken" in caplog.text
    assert "ValueError: \\ud800" in caplog.text


@pytest.mark.covers("N-11")
async def test_what_leaves_a_thread_without_being_an_exception_keeps_its_type(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def leave(input: JsonObject, context: ToolContext) -> None:
        raise SystemExit(3)

    assert str(await failure(executor(), call(tool(leave)))) == "SystemExit: 3"
    assert "raise SystemExit(3)" in caplog.text


async def test_what_we_raise_on_purpose_is_a_tool_error_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refuse(input: JsonObject, context: ToolContext) -> None:
        raise ClawmodeError("the server is gone")

    with caplog.at_level(logging.INFO):
        error = await failure(executor(), call(tool(refuse)))
    assert (error.name, str(error)) == ("ToolError", "the server is gone")
    assert [(each.levelname, each.exc_info) for each in caplog.records] == [("INFO", None)]


@pytest.mark.parametrize("answer", [{1, 2}, object(), float("nan"), {"a": b"bytes"}])
async def test_an_answer_that_is_not_json_is_a_failure(answer: object) -> None:
    error = await failure(executor(), call(tool(lambda input, context: answer)))
    assert error.code == "invalid_tool_output"


async def test_input_that_does_not_fit_never_reaches_the_tool() -> None:
    reached: list[JsonObject] = []
    error = await failure(
        executor(), call(tool(lambda input, context: reached.append(input)), {"n": "four"})
    )
    assert error.code == "invalid_tool_input"
    assert "n" in str(error)
    assert reached == []


async def test_a_cancelled_call_is_reported_as_cancelled() -> None:
    events: list[CallEvent] = []
    begun = anyio.Event()

    async def slow(input: JsonObject, context: ToolContext) -> None:
        begun.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(executor(watchers=[events.append]).call, call(tool(slow)))
        await begun.wait()
        tasks.cancel_scope.cancel()
    assert [(event.phase, event.state) for event in events] == [
        ("start", None),
        ("end", "cancelled"),
    ]


# ---- Policy and hooks ----


async def test_a_denied_tool_is_refused_before_any_hook_sees_it() -> None:
    hooks, seen = Hooks(), list[str]()
    hooks.before_tool_call(lambda event: seen.append(event.tool_name))
    policy = Policy.from_config({"deny": ["double"]})
    error = await failure(executor(policy=policy, hooks=hooks), call(tool(double)))
    assert (error.code, seen) == ("denied", [])


def noting(states: list[CallState]) -> Callable[[CallState], Awaitable[None]]:
    async def note(state: CallState) -> None:
        states.append(state)

    return note


@pytest.mark.covers("HK-3")
async def test_a_block_is_terminal_and_gives_its_reason() -> None:
    hooks, seen = Hooks(), list[str]()
    hooks.before_tool_call(lambda event: seen.append("low"), priority=1)
    hooks.before_tool_call(
        lambda event: ToolCallDecision(block=True, block_reason="not on Sundays"), priority=5
    )
    error = await failure(executor(hooks=hooks), call(tool(double)))
    assert (error.code, seen) == ("blocked", [])
    assert "not on Sundays" in str(error)


@pytest.mark.covers("HK-3")
async def test_block_false_decides_nothing() -> None:
    hooks = Hooks()
    hooks.before_tool_call(lambda event: ToolCallDecision(block=False), priority=9)
    hooks.before_tool_call(lambda event: {"block": False})  # pyrefly: ignore[bad-argument-type]
    assert (await executor(hooks=hooks).call(call(tool(double)))).value == 8


async def test_hooks_run_by_priority_and_see_each_others_rewrites() -> None:
    hooks, seen = Hooks(), list[JsonObject]()

    def rewrite(number: int) -> Callable[[BeforeToolCall], ToolCallDecision]:
        def hook(event: BeforeToolCall) -> ToolCallDecision:
            seen.append(event.params)
            return ToolCallDecision(params={"n": number})

        return hook

    hooks.before_tool_call(rewrite(30), priority=-1)
    hooks.before_tool_call(rewrite(10), priority=5)
    hooks.before_tool_call(rewrite(20), priority=5)
    assert (await executor(hooks=hooks).call(call(tool(double)))).value == 60
    assert seen == [{"n": 4}, {"n": 10}, {"n": 20}]


@pytest.mark.parametrize(
    "hook",
    [
        lambda event: 1 / 0,
        lambda event: "yes",
        lambda event: {"blok": True},
        lambda event: {"block": "no"},
        lambda event: {"params": [1]},
    ],
    ids=["raises", "nonsense", "misspelt", "wrong type", "wrong params"],
)
async def test_a_guard_that_breaks_down_has_not_said_yes(hook: Any) -> None:
    hooks = Hooks()
    hooks.before_tool_call(hook, name="guard")
    error = await failure(executor(hooks=hooks), call(tool(double)))
    assert (error.code, "guard" in str(error)) == ("blocked", True)


async def test_a_guard_that_hangs_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(event: BeforeToolCall) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(hooks_module, "HOOK_SECONDS", 0.05)
    hooks = Hooks()
    hooks.before_tool_call(hang)
    assert (await failure(executor(hooks=hooks), call(tool(double)))).code == "blocked"


async def test_hooks_get_the_result_of_a_call_and_cannot_break_it() -> None:
    hooks, ended = Hooks(), list[AfterToolCall]()
    hooks.after_tool_call(lambda event: 1 / 0, priority=1)  # pyrefly: ignore[bad-argument-type]
    hooks.after_tool_call(ended.append)
    made = executor(hooks=hooks)
    await made.call(call(tool(double)))
    await failure(made, call(tool(double), {"n": "x"}))
    assert [event.code for event in ended] == [None, "invalid_tool_input"]
    assert ended[0].result is not None
    assert ended[0].result.value == 8


# ---- Approval ----


async def test_an_approver_that_is_code_answers_inline() -> None:
    asked: list[Question] = []
    states: list[CallState] = []

    def approve(question: Question) -> Any:
        asked.append(question)
        return "allow-once"

    desk = Approvals(ask_for=["dou*"], approver=approve)
    what = call(tool(double), on_state=noting(states))
    assert (await executor(approvals=desk).call(what)).value == 8
    assert (asked[0].tool_id, asked[0].input, asked[0].run) == (
        "openclaw:core:double",
        {"n": 4},
        RUN,
    )
    assert states == ["running"]


async def test_more_plain_functions_run_at_once_than_anyio_has_threads() -> None:
    together = threading.Barrier(48)  # three runs with 16 calls each; anyio's default is 40

    def meet(input: JsonObject, context: ToolContext) -> bool:
        return together.wait(timeout=10) >= 0

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            run = executor()
            for _ in range(16):
                tasks.start_soon(run.call, call(tool(meet)))
    assert not together.broken


@pytest.mark.covers("N-7")
@pytest.mark.parametrize(
    "ask_for",
    [
        "double",
        "dou*",
        ["openclaw:core:double"],
        ["group:openclaw"],
        {"x", "DOUBLE"},
        tool(double),
        [tool(double)],
        tool_function.tool(name="double")(double),  # which can be called, and decides nothing
    ],
)
async def test_names_patterns_ids_groups_and_tools_are_asked_for(ask_for: Any) -> None:
    desk = Approvals(ask_for=ask_for, approver=lambda question: "deny")
    assert (await failure(executor(approvals=desk), call(tool(double)))).code == "not_approved"


async def test_a_tool_whose_name_has_a_colon_is_asked_for_by_its_name() -> None:
    desk = Approvals(ask_for=["do:it"], approver=lambda question: "deny")
    named = Tool("do:it", "Does.", SCHEMA, double)
    assert (await failure(executor(approvals=desk), call(named))).code == "not_approved"


@pytest.mark.covers("N-7", "B-18")
@pytest.mark.parametrize("ask_for", [["group:all"], [""], [5], b"double", 5])
def test_what_no_tool_can_be_asked_for_by_is_refused(ask_for: Any) -> None:
    with pytest.raises(ConfigurationError, match="ask_for"):
        Approvals(ask_for=ask_for)


@pytest.mark.parametrize("answer", ["deny", "perhaps", None])
async def test_anything_but_yes_is_no(answer: Any) -> None:
    desk = Approvals(ask_for=["*"], approver=lambda question: answer)
    assert (await failure(executor(approvals=desk), call(tool(double)))).code == "not_approved"


async def test_a_person_is_waited_for_and_the_call_says_so() -> None:
    desk, states, results = Approvals(ask_for=["double"]), list[CallState](), list[ToolResult]()
    made = executor(approvals=desk)

    async def run() -> None:
        results.append(await made.call(call(tool(double), on_state=noting(states))))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await until(desk.pending)
            assert states == ["approval"]
            (question,) = desk.pending()
            assert not desk.resolve("another", "allow-once")
            assert desk.resolve(question.id, "allow-once")
            assert not desk.resolve(question.id, "deny")
    assert (results[0].value, states) == (8, ["approval", "running"])
    assert desk.pending() == []


async def test_no_answer_is_a_no() -> None:
    desk = Approvals(ask_for=["*"], expiry_seconds=0.05)
    began = undisturbed_time()
    error = await failure(executor(approvals=desk), call(tool(double)))
    assert (error.code, "nobody answered" in str(error)) == ("not_approved", True)
    assert undisturbed_time() - began < 2
    assert desk.pending() == []


@pytest.mark.covers("HK-4")
async def test_approval_is_for_the_arguments_that_run() -> None:
    hooks, shown = Hooks(), list[JsonObject]()
    wish = RequireApproval(title="Sure?", severity="critical")
    hooks.before_tool_call(lambda event: ToolCallDecision(require_approval=wish), priority=9)
    hooks.before_tool_call(lambda event: ToolCallDecision(params={"n": 50}), priority=1)

    def approve(question: Question) -> Any:
        shown.append(question.input)
        assert (question.title, question.severity) == ("Sure?", "critical")
        return "allow-once"

    made = executor(hooks=hooks, approvals=Approvals(approver=approve))
    assert (await made.call(call(tool(double)))).value == 100
    assert shown == [{"n": 50}]


async def test_a_block_after_a_wish_for_approval_still_blocks() -> None:
    hooks, asked = Hooks(), list[Question]()
    wish = RequireApproval(title="Sure?")
    hooks.before_tool_call(lambda event: ToolCallDecision(require_approval=wish), priority=9)
    hooks.before_tool_call(lambda event: ToolCallDecision(block=True), priority=1)
    desk = Approvals(approver=lambda question: asked.append(question) or "allow-once")
    error = await failure(executor(hooks=hooks, approvals=desk), call(tool(double)))
    assert (error.code, asked) == ("blocked", [])


@pytest.mark.covers("HK-7")
async def test_allow_always_is_remembered_for_tool_and_agent_until_revoked() -> None:
    asked: list[Question] = []

    def approve(question: Question) -> Any:
        asked.append(question)
        assert "openclaw:core:double" in question.always
        return "allow-always"

    desk = Approvals(ask_for=["*"], approver=approve)
    made = executor(approvals=desk)
    for _ in range(3):
        await made.call(call(tool(double)))
    assert len(asked) == 1
    other = Call(id="c2", tool=tool(double), input={}, run=RunContext(agent_id="other"))
    await made.call(other)
    assert len(asked) == 2
    assert desk.remembered() == [
        ("main", "openclaw:core:double"),
        ("other", "openclaw:core:double"),
    ]
    assert desk.revoke("main", "openclaw:core:double")
    assert not desk.revoke("main", "openclaw:core:double")
    await made.call(call(tool(double)))
    assert len(asked) == 3


async def test_a_wish_cannot_outlive_the_desks_expiry() -> None:
    desk = Approvals(expiry_seconds=10)
    wish = RequireApproval(title="Sure?", timeout_seconds=9999)
    question = desk.question(tool(double), {}, RUN, (wish,))
    assert question is not None
    assert question.expires <= time.time() + 10
    assert approvals_module.EXPIRY_SECONDS == 1800


# ---- Events ----


async def test_events_tell_start_update_and_end_without_input_or_output() -> None:
    events: list[CallEvent] = []

    async def working(input: JsonObject, context: ToolContext) -> str:
        context.update({"done": 1})
        return "a secret"

    def bad(event: CallEvent) -> None:
        raise RuntimeError("a watcher that raises")

    made = executor(watchers=[bad, events.append])
    await made.call(call(tool(working), parent_id="p"))
    assert [(event.phase, event.state, event.update) for event in events] == [
        ("start", None, None),
        ("update", None, {"done": 1}),
        ("end", "completed", None),
    ]
    assert all(event.parent_id == "p" for event in events)
    assert "secret" not in repr(events)


# ---- Tools that ask for an approval themselves ----


async def large_ones_need_approval(input: JsonObject, context: ToolContext) -> str:
    if not context.approved and input.get("n", 0) == 4:
        raise ApprovalNeeded("Double a large number?", "It is four.")
    return f"approved: {context.approved}"


@pytest.mark.covers("FW-5")
async def test_a_tool_can_ask_for_an_approval_when_it_has_seen_its_input() -> None:
    asked: list[tuple[str, str, JsonObject]] = []
    states: list[str] = []

    def approver(question: Question) -> Decision:
        asked.append((question.title, question.description, question.input))
        return "allow-once"

    async def on_state(state: CallState) -> None:
        states.append(state)

    one = executor(approvals=Approvals(approver=approver))
    of = tool(large_ones_need_approval)
    assert (await one.call(call(of, on_state=on_state))).text == "approved: True"
    assert (await one.call(call(of, {"n": 1}))).text == "approved: False"
    assert asked == [("Double a large number?", "It is four.", {"n": 4})]
    assert states == ["running"]


@pytest.mark.covers("FW-5")
async def test_a_tool_that_asks_is_not_called_again_after_a_denial() -> None:
    one = executor(approvals=Approvals(approver=lambda question: "deny"))
    error = await failure(one, call(tool(large_ones_need_approval)))
    assert (error.code, "denied" in str(error)) == ("not_approved", True)


@pytest.mark.covers("FW-5")
async def test_a_tool_that_asks_again_in_spite_of_the_approval_fails() -> None:
    def insatiable(input: JsonObject, context: ToolContext) -> None:
        raise ApprovalNeeded("Really?")

    one = executor(approvals=Approvals(approver=lambda question: "allow-once"))
    error = await failure(one, call(tool(insatiable)))
    assert (error.code, str(error)) == ("tool_failed", "Really?")
