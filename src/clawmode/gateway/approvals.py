"""Questions that all clients see and can answer: questions and decisions become events."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import field
from typing import TypeAlias

import anyio

from clawmode.core_tools.exec_policy import EXEC_ID, PROCESS_ID
from clawmode.text import clip
from clawmode.tools.approvals import (
    Approvals,
    InputQuestion,
    Mode,
    Question,
    QuestionGroup,
    Resolution,
    may_change,
)
from clawmode.types import JsonObject, JsonValue, dataclass

MAX_MEMBERS, MAX_MEMBER_INPUT = 50, 300
"""Calls in the event of a group, and characters of the input of each. `get` returns all of them."""

MAX_KNOWN = 1_000
"""The most questions that are remembered, with their answers."""

MAX_SETTLED, SETTLED_SECONDS = 50, 600.0
"""The most settled questions in a list, and for how long they are listed."""

OnQuestion: TypeAlias = Callable[[str, JsonObject], None]
"""Called with the name of an event, such as `exec.approval.requested`, and its payload."""


@dataclass(eq=False, slots=True)
class QuestionRecord:
    """A question, and its answer when there is one.

    Attributes:
        resolution: The answer; None while the question is pending, or if it was cancelled.
        settled: Set when the question is no longer pending.
        settled_at: When that was.
        by: Who answered: the name of a token, or the sender of a message; empty if nobody did.
        group: The group that the question was put with; None if it was put alone.
    """

    question: Question
    at: float = field(default_factory=time.time)
    resolution: Resolution | None = None
    settled: anyio.Event = field(default_factory=anyio.Event)
    settled_at: float = 0.0
    by: str = ""
    group: QuestionGroup | None = None

    @property
    def family(self) -> str:
        """`exec` for shell commands, `plugin` for all other questions."""
        return "exec" if self.question.tool_id in (EXEC_ID, PROCESS_ID) else "plugin"


class SharedQuestions:
    """Publishes each question and its answer, and remembers both; a `GroupAsker`.

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
        self.approvals.on_answer = self._note
        self.publish: OnQuestion = lambda name, payload: None
        self._known: OrderedDict[str, QuestionRecord] = OrderedDict()
        self._answered_by: dict[str, str] = {}
        self._inputs: deque[JsonObject] = deque(maxlen=MAX_SETTLED)

    def _note(self, question_id: str, by: str) -> None:
        # Until `settle`, which the waiting call causes a moment later.
        self._answered_by[question_id] = by
        if question_id in self._known:
            self._known[question_id].by = by

    def put(self, question: Question | InputQuestion) -> None:
        if isinstance(question, InputQuestion):
            self.publish("input.requested", describe_input(question))
        else:
            record = self._remember(question)
            self.publish(f"{record.family}.approval.requested", describe(record))

    def put_group(self, group: QuestionGroup) -> None:
        # Each question is published too, for clients that know no groups.
        for question in group.questions:
            record = self._remember(question)
            record.group = group
            self.publish(f"{record.family}.approval.requested", describe(record))
        self.publish("approval.group.requested", describe_group(self.members(group)))

    def settle(
        self, question: Question | InputQuestion, answer: Resolution | JsonObject | None
    ) -> None:
        by = self._answered_by.pop(question.id, "")
        if isinstance(question, InputQuestion):
            # Without the answer, which is for the tool only.
            about: JsonObject = {
                "id": question.id,
                "answered": answer is not None,
                "by": by or None,
            }
            self.publish("input.resolved", about)
            at = int(time.time() * 1000)
            self._inputs.append(describe_input(question) | about | {"settledAtMs": at})
            return
        published = self._known.get(question.id)
        record = published or self._remember(question)  # a question that the mode denied at once
        record.resolution = None if isinstance(answer, dict) else answer
        record.by, record.settled_at = by, time.time()
        record.settled.set()
        if published is not None:
            resolved: JsonObject = {"id": question.id, "decision": answer or "cancelled"}
            resolved["by"] = by or None
            self.publish(f"{record.family}.approval.resolved", resolved)
        group = record.group
        if group is not None and all(it.settled.is_set() for it in self.members(group)):
            self.publish("approval.group.resolved", {"id": group.id})

    def _remember(self, question: Question) -> QuestionRecord:
        record = self._known.setdefault(question.id, QuestionRecord(question))
        over = max(len(self._known) - MAX_KNOWN, 0)
        settled = [key for key, known in self._known.items() if over and known.settled.is_set()]
        for key in settled[:over]:  # the oldest; pending questions are never forgotten
            del self._known[key]
        return record

    def find(self, question_id: str) -> QuestionRecord | None:
        """Returns a question that is pending, or whose answer is remembered."""
        if question_id not in self._known:
            for question in self.approvals.pending():  # it may still wait for its siblings
                if question.id == question_id:
                    return self._remember(question)
        return self._known.get(question_id)

    def members(self, group: QuestionGroup) -> list[QuestionRecord]:
        """Returns the questions of a group that are remembered."""
        return [self._known[it.id] for it in group.questions if it.id in self._known]

    def groups(self) -> dict[str, QuestionGroup]:
        """Returns the groups that are remembered by their ids, oldest first."""
        return {it.group.id: it.group for it in self._known.values() if it.group is not None}

    def waiting(self) -> list[QuestionRecord]:
        """Returns the pending questions, oldest first."""
        return [record for record in self._known.values() if not record.settled.is_set()]

    def settled(self) -> list[QuestionRecord]:
        """Returns the questions that were settled lately, the latest first."""
        since = time.time() - SETTLED_SECONDS
        found = [record for record in self._known.values() if record.settled_at > since]
        return sorted(found, key=lambda record: -record.settled_at)[:MAX_SETTLED]

    def settled_inputs(self) -> list[JsonValue]:
        """Returns the questions for input that were settled lately, the latest first."""
        since = int((time.time() - SETTLED_SECONDS) * 1000)
        return [it for it in reversed(self._inputs) if int(str(it["settledAtMs"])) > since]

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
        **({"groupId": record.group.id} if record.group is not None else {}),
    }


def answer_of(record: QuestionRecord) -> JsonObject:
    """Returns the answer to a question, and who gave it."""
    return {"decision": record.resolution, "by": record.by or None}


def describe_settled(record: QuestionRecord) -> JsonObject:
    """Returns a settled question with its answer, and with a shortened input."""
    about: JsonObject = {"settled": True, "settledAtMs": int(record.settled_at * 1000)}
    shown = clip(record.question.input, MAX_MEMBER_INPUT)
    return describe(record) | answer_of(record) | about | {"input": shown}


def describe_group(records: list[QuestionRecord], first: int = 0) -> JsonObject:
    """Returns questions that were put together, with shortened inputs, from one member on."""
    group, run = records[0].group, records[0].question.run
    assert group is not None
    members: list[JsonValue] = [
        {
            "id": record.question.id,
            "title": record.question.title,
            "toolId": record.question.tool_id,
            "input": clip(record.question.input, MAX_MEMBER_INPUT),
            "callId": record.question.call_id,
            "always": record.question.always,
            "settled": record.settled.is_set(),
            **answer_of(record),
        }
        for record in records[first : first + MAX_MEMBERS]
    ]
    return {
        "id": group.id,
        "count": len(records),
        "pending": sum(not record.settled.is_set() for record in records),
        "first": first,
        "members": members,
        "agentId": run.agent_id,
        "sessionKey": run.session_key,
        "runId": run.run_id,
        "sender": run.sender,
        "expiresAtMs": int(group.expires * 1000),
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
        "callId": question.call_id,
        "sessionKey": question.run.session_key,
        "runId": question.run.run_id,
        "expiresAtMs": int(question.expires * 1000),
    }
