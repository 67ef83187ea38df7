"""The questions of `Approvals`, as an asker sees them."""

from typing import Any

import anyio
import pytest
from tests.support.waiting import until

from clawmode import tool
from clawmode.context import RunContext
from clawmode.tools.approvals import Approvals, InputQuestion, NotApproved, Question, may_change
from clawmode.tools.tool import InputRequest

RUN = RunContext(agent_id="main")


@tool
async def order(item: str) -> str:
    """Order an item."""
    return item


class Recorder:
    """An asker that records what happens to questions."""

    def __init__(self) -> None:
        self.put_ids: list[str] = []
        self.settled: list[tuple[str, Any]] = []

    def put(self, question: Question | InputQuestion) -> None:
        self.put_ids.append(question.id)

    def settle(self, question: Question | InputQuestion, answer: Any) -> None:
        self.settled.append((question.id, answer))


def a_question(approvals: Approvals) -> Question:
    question = approvals.question(order, {"item": "tea"}, RUN, ())
    assert question is not None
    return question


@pytest.mark.anyio
@pytest.mark.parametrize("decision", ["allow-once", "deny"])
async def test_an_asker_sees_a_question_and_its_resolution(decision: Any) -> None:
    asker = Recorder()
    approvals = Approvals(ask_for=may_change, asker=asker)
    question = a_question(approvals)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(approvals.ask, question)
        await until(approvals.pending)
        assert (asker.put_ids, asker.settled) == ([question.id], [])
        assert approvals.resolve(question.id, decision)
    assert asker.settled == [(question.id, decision)]


@pytest.mark.anyio
async def test_an_asker_sees_that_a_call_was_cancelled_or_rejected() -> None:
    asker = Recorder()
    approvals = Approvals(ask_for=may_change, asker=asker)
    cancelled, rejected = a_question(approvals), a_question(approvals)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(approvals.ask, cancelled)
        await until(approvals.pending)
        tasks.cancel_scope.cancel()

    def reject(question: Question) -> None:
        approvals.reject(question.id, "nobody is here")

    approvals.on_question = reject
    with pytest.raises(NotApproved, match="nobody is here"):
        await approvals.ask(rejected)
    assert asker.settled == [(cancelled.id, None), (rejected.id, "deny")]
    assert approvals.pending() == []


@pytest.mark.anyio
async def test_an_asker_sees_questions_for_input() -> None:
    asker = Recorder()
    approvals = Approvals(inputs="ask", asker=asker)
    question = approvals.input_question(order, InputRequest(message="Which size?"), RUN)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(approvals.ask_input, question)
        await until(approvals.pending_inputs)
        assert approvals.answer(question.id, {"size": "small"})
    assert (asker.put_ids, asker.settled) == ([question.id], [(question.id, {"size": "small"})])


@pytest.mark.anyio
async def test_the_mode_never_denies_without_asking_and_forgets_what_was_always_allowed() -> None:
    asker = Recorder()
    approvals = Approvals(ask_for=may_change, asker=asker)

    def allow(question: Question) -> None:
        approvals.resolve(question.id, "allow-always")

    approvals.on_question = allow
    assert await approvals.ask(a_question(approvals)) == "allow-always"
    assert approvals.question(order, {"item": "tea"}, RUN, ()) is None
    approvals.mode = lambda agent_id: "never"
    question = a_question(approvals)
    assert await approvals.ask(question) == "deny"
    assert question.id not in asker.put_ids
    assert asker.settled[-1] == (question.id, "deny")
    approvals.mode = lambda agent_id: "always"
    assert approvals.question(order, {"item": "tea"}, RUN, ()) is None
