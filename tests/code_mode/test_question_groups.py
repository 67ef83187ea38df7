"""Sibling calls that wait for a person: one question, answered as a whole or one by one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from tests.support.waiting import idle, until

from clawmode import Approvals, CodeMode, Hooks, InputQuestion, Pool, Question, QuestionGroup
from clawmode.tools import questions
from clawmode.tools.hooks import BeforeToolCall
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio


@dataclass
class OldAsker:
    """An asker that knows single questions only."""

    single: list[Any] = field(default_factory=list[Any])
    settled: list[str] = field(default_factory=list[str])

    def put(self, question: Question | InputQuestion) -> None:
        self.single.append(question)

    def settle(self, question: Question | InputQuestion, answer: object) -> None:
        self.settled.append(question.id)


@dataclass
class NewAsker(OldAsker):
    """An asker that also takes groups."""

    groups: list[QuestionGroup] = field(default_factory=list[QuestionGroup])

    def put_group(self, group: QuestionGroup) -> None:
        self.groups.append(group)


@dataclass
class World:
    """A run whose calls of `send` need approval, and what they did."""

    code_mode: CodeMode
    approvals: Approvals
    sent: list[int] = field(default_factory=list[int])
    running: int = 0
    most: int = 0

    async def decided(self, run_id: str) -> Any:
        """The value of the program, once every question is answered."""
        result = await self.code_mode.wait(run_id)
        while result.status == "waiting":
            result = await self.code_mode.wait(run_id)
        return result.unwrap()


@asynccontextmanager
async def world(pool: Pool, asker: Any = None, **options: Any) -> AsyncIterator[World]:
    async def send(params: JsonObject, context: ToolContext) -> Any:
        it.running += 1
        it.most = max(it.most, it.running)
        await idle()
        it.running -= 1
        it.sent.append(int(str(params["n"])))
        return params["n"]

    tools = [
        Tool("send", "Send.", {}, send, effect="write"),
        Tool("look", "Look.", {}, lambda params, context: "seen", effect="read"),
    ]
    approvals = Approvals(ask_for=["send"], asker=asker)
    async with CodeMode(tools=tools, approvals=approvals, pool=pool, **options) as code_mode:
        it = World(code_mode, approvals)
        yield it


def sends(count: int) -> str:
    """A program that sends in a loop, and catches what was not approved."""
    each = "tools.send({ n }).catch((error) => error.code)"
    return f"return await Promise.all(Array.from({{ length: {count} }}, (_, n) => {each}))"


def gather_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUIET_SECONDS", "GATHER_SECONDS"):
        monkeypatch.setattr(questions, name, 60.0)


@pytest.mark.covers("AK-4", "AK-5")
async def test_all_calls_of_a_loop_are_one_question_and_run_within_the_limit(pool: Pool) -> None:
    asker = NewAsker()
    async with world(pool, asker, config={"maxPendingToolCalls": 4}) as it:
        result = await it.code_mode.exec(sends(60))
        assert result.status == "waiting"
        assert {row["state"] for row in result.pending_tool_calls} == {"approval"}  # pyrefly: ignore
        (group,) = await until(lambda: asker.groups)
        assert asker.single == []
        assert [question.input["n"] for question in group.questions] == list(range(60))
        assert it.approvals.groups() == [group]
        answered = it.approvals.resolve_group(group, "allow-once")
        assert answered == [question.id for question in group.questions]
        assert await it.decided(result.run_id) == list(range(60))
        assert sorted(it.sent) == list(range(60))
        assert it.most <= 4
        assert sorted(asker.settled) == sorted(answered)
        assert it.approvals.groups() == []


@pytest.mark.covers("AK-4", "AK-6")
async def test_a_group_is_answered_one_by_one_and_the_first_answer_counts(pool: Pool) -> None:
    async with world(pool, NewAsker()) as it:
        result = await it.code_mode.exec(sends(4))
        (group,) = it.approvals.groups()
        first, second, third, fourth = (question.id for question in group.questions)
        given: Any = {first: "allow-once", second: "deny", "ap_nobody": "allow-once"}
        assert it.approvals.resolve_group(group, given) == [first, second]
        assert it.approvals.resolve(third, "allow-once")
        assert not it.approvals.resolve(second, "allow-once")
        assert it.approvals.resolve_group(group, "deny") == [fourth]
        assert it.approvals.resolve_group(group, "allow-once") == []
        value = await it.decided(result.run_id)
    assert value == [0, "not_approved", 2, "not_approved"]
    assert sorted(it.sent) == [0, 2]


@pytest.mark.hostile
@pytest.mark.covers("AK-6")
async def test_an_answer_to_a_group_allows_no_call_that_it_did_not_show(pool: Pool) -> None:
    source = f"""const first = (async () => {{ {sends(2)} }})();
await tools.look({{}});
await first;
const later = tools.send({{ n: 7 }}).catch((error) => error.code);
await tools.look({{}});
return await Promise.all([later, tools.send({{ n: 8 }}).catch((error) => error.code)])"""
    async with world(pool, NewAsker()) as it:
        result = await it.code_mode.exec(source)
        (shown,) = it.approvals.groups()
        it.approvals.resolve_group(shown, "allow-once")
        result = await it.code_mode.wait(result.run_id)
        assert it.approvals.resolve_group(shown, "allow-once") == []
        await until(lambda: len(it.approvals.pending()) == 2)
        assert sorted(it.sent) == [0, 1]
        (later,) = it.approvals.groups()
        assert later.id != shown.id
        it.approvals.resolve_group(later, "deny")
        assert await it.decided(result.run_id) == ["not_approved"] * 2


@pytest.mark.covers("AK-5")
async def test_a_single_question_and_an_old_asker_are_served_as_before(pool: Pool) -> None:
    asker = NewAsker()
    async with world(pool, asker) as it:
        result = await it.code_mode.exec(sends(1))
        (question,) = await until(lambda: asker.single)
        assert asker.groups == []
        it.approvals.resolve(question.id, "allow-once")
        assert await it.decided(result.run_id) == [0]
    old = OldAsker()
    async with world(pool, old) as it:
        result = await it.code_mode.exec(sends(5))
        assert [question.input["n"] for question in old.single] == list(range(5))
        for question in old.single:
            it.approvals.resolve(question.id, "allow-once")
        assert await it.decided(result.run_id) == list(range(5))


@pytest.mark.hostile
@pytest.mark.covers("AK-5")
async def test_siblings_whose_first_call_ends_before_they_are_put_are_still_put(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks, release, asker = Hooks(), anyio.Event(), NewAsker()
    gather_for_long(monkeypatch)

    async def delay(event: BeforeToolCall) -> None:
        if event.params.get("n") == 3:
            await release.wait()  # so that the program is not parked, which puts its questions

    hooks.before_tool_call(delay)
    async with world(pool, asker, hooks=hooks) as it, anyio.create_task_group() as tasks:
        tasks.start_soon(it.code_mode.exec, sends(4))
        first, *rest = await until(lambda: (found := it.approvals.pending())[2:] and found)
        assert asker.groups == []  # the siblings are still gathered
        it.approvals.resolve(first.id, "deny")
        (group,) = await until(lambda: asker.groups)
        assert list(group.questions) == rest
        it.approvals.resolve_group(group, "deny")
        release.set()
        (last,) = await until(lambda: asker.single)
        it.approvals.resolve(last.id, "deny")


@pytest.mark.covers("AK-5")
async def test_questions_are_put_before_the_model_reads_that_the_program_waits(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather_for_long(monkeypatch)
    asker = NewAsker()
    async with world(pool, asker) as it:
        result = await it.code_mode.exec(sends(3))
        (group,) = asker.groups
        assert list(group.questions) == it.approvals.pending()
        it.approvals.resolve_group(group, "deny")
        assert await it.decided(result.run_id) == ["not_approved"] * 3
    assert asker.single == []


@pytest.mark.covers("AK-5")
async def test_slow_hooks_of_one_call_do_not_hold_up_the_questions_of_others(pool: Pool) -> None:
    hooks, release, asker = Hooks(), anyio.Event(), NewAsker()

    async def delay(event: BeforeToolCall) -> None:
        if event.params.get("n") == 1:
            await release.wait()

    hooks.before_tool_call(delay)
    async with world(pool, asker, hooks=hooks, config={"timeoutMs": 800}) as it:
        result = await it.code_mode.exec(sends(3))
        (group,) = await until(lambda: asker.groups)
        assert [question.input["n"] for question in group.questions] == [0, 2]
        release.set()
        (late,) = await until(lambda: asker.single)
        assert late.input == {"n": 1}
        for question in it.approvals.pending():
            it.approvals.resolve(question.id, "allow-once")
        assert await it.decided(result.run_id) == [0, 1, 2]


async def test_calls_that_need_no_approval_keep_their_turn(pool: Pool) -> None:
    source = """const all = [0, 1, 2].map((n) => tools.send({ n }));
all.push(tools.look({}));
return await Promise.all(all)"""
    async with world(pool, NewAsker(), config={"maxPendingToolCalls": 1, "timeoutMs": 500}) as it:
        result = await it.code_mode.exec(source)
        rows: Any = result.pending_tool_calls
        assert [row["state"] for row in rows] == ["approval"] * 3 + ["queued"]
        it.approvals.resolve_group(it.approvals.groups()[0], "allow-once")
        assert await it.decided(result.run_id) == [0, 1, 2, "seen"]
        assert it.most == 1
