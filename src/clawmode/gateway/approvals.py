"""Questions that all clients see and can answer: questions and decisions become events."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import anyio

from clawmode.core_tools.exec_policy import EXEC_ID, PROCESS_ID
from clawmode.tools.approvals import (
    Approvals,
    InputQuestion,
    Mode,
    Question,
    Resolution,
    may_change,
)
from clawmode.types import JsonObject, JsonValue

MAX_KNOWN = 1_000
"""The most questions that are remembered, with their answers."""

OnQuestion: TypeAlias = Callable[[str, JsonObject], None]
"""Called with the name of an event, such as `exec.approval.requested`, and its payload."""


@dataclass(eq=False, slots=True)
class QuestionRecord:
    """A question, and its answer when there is one.

    Attributes:
        resolution: The answer; None while the question is pending, or if it was cancelled.
        settled: Set when the question is no longer pending.
    """

    question: Question
    at: float = field(default_factory=time.time)
    resolution: Resolution | None = None
    settled: anyio.Event = field(default_factory=anyio.Event)

    @property
    def family(self) -> str:
        """`exec` for shell commands, `plugin` for all other questions."""
        return "exec" if self.question.tool_id in (EXEC_ID, PROCESS_ID) else "plugin"


class SharedQuestions:
    """Publishes each question and its answer, and remembers both; an `Asker`.

    Args:
        mode: Returns the configured mode for the id of an agent.

    Attributes:
        approvals: The approvals whose questions these are. The same calls need approval as at a
            terminal: all but those of read-only tools.
        publish: Called with the name and the payload of each event.
    """

    def __init__(self, mode: Callable[[str], Mode]) -> None:
        self.approvals = Approvals(ask_for=may_change, inputs="ask", asker=self)
        self.approvals.mode = mode
        self.publish: OnQuestion = lambda name, payload: None
        self._known: OrderedDict[str, QuestionRecord] = OrderedDict()

    def put(self, question: Question | InputQuestion) -> None:
        if isinstance(question, InputQuestion):
            self.publish("input.requested", describe_input(question))
        else:
            record = self._remember(question)
            self.publish(f"{record.family}.approval.requested", describe(record))

    def settle(
        self, question: Question | InputQuestion, answer: Resolution | JsonObject | None
    ) -> None:
        if isinstance(question, InputQuestion):
            # Without the answer, which is for the tool only.
            self.publish("input.resolved", {"id": question.id, "answered": answer is not None})
            return
        published = self._known.get(question.id)
        record = published or self._remember(question)  # a question that the mode denied at once
        record.resolution = None if isinstance(answer, dict) else answer
        record.settled.set()
        if published is not None:
            resolved: JsonObject = {"id": question.id, "decision": answer or "cancelled"}
            self.publish(f"{record.family}.approval.resolved", resolved)

    def _remember(self, question: Question) -> QuestionRecord:
        record = self._known[question.id] = QuestionRecord(question)
        over = max(len(self._known) - MAX_KNOWN, 0)
        settled = [key for key, known in self._known.items() if over and known.settled.is_set()]
        for key in settled[:over]:  # the oldest; pending questions are never forgotten
            del self._known[key]
        return record

    def find(self, question_id: str) -> QuestionRecord | None:
        """Returns a question that is pending, or whose answer is remembered."""
        return self._known.get(question_id)

    def waiting(self) -> list[QuestionRecord]:
        """Returns the pending questions, oldest first."""
        return [record for record in self._known.values() if not record.settled.is_set()]

    async def decision(self, question_id: str, seconds: float) -> Resolution | None:
        """Waits for the answer to a question; returns None if there is none in time.

        Raises:
            KeyError: There is no such question, or it is no longer remembered.
        """
        record = self._known[question_id]
        with anyio.move_on_after(seconds):
            await record.settled.wait()
        return None if record.resolution == "timeout" else record.resolution


def describe(record: QuestionRecord) -> JsonObject:
    """Returns a question as clients see it, with the complete input of the call."""
    question = record.question
    return {
        "id": question.id,
        "title": question.title,
        "description": question.description,
        "severity": question.severity,
        "toolId": question.tool_id,
        "input": question.input,
        "always": question.always,
        "callId": question.call_id,
        "agentId": question.run.agent_id,
        "sessionKey": question.run.session_key,
        "runId": question.run.run_id,
        "sender": question.run.sender,
        "expiresAtMs": int(question.expires * 1000),
        "askedAtMs": int(record.at * 1000),
    }


def describe_input(question: InputQuestion) -> JsonObject:
    """Returns the question of a tool as clients see it."""
    schema: JsonValue = question.request.schema
    return {
        "id": question.id,
        "toolId": question.tool_id,
        "message": question.request.message,
        "url": question.request.url,
        "schema": schema,
        "sessionKey": question.run.session_key,
        "runId": question.run.run_id,
        "expiresAtMs": int(question.expires * 1000),
    }
