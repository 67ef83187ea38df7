"""Approvals that many clients see and answer: questions are told, and what became of them."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

import anyio

from clawmode.approvals import Approvals, InputQuestion, Question, Resolution
from clawmode.core_tools.exec_policy import EXEC_ID, PROCESS_ID
from clawmode.tools import JsonObject
from clawmode.types import JsonValue

MAX_KNOWN = 1_000
"""Questions whose answers can still be asked for."""

OnQuestion: TypeAlias = Callable[[str, JsonObject], None]
"""Told `exec.approval.requested` and the like, and the question."""


class SharedApprovals(Approvals):
    """Approvals whose questions are told to whoever listens.

    Attributes:
        tell: Told of each question, and of its answer.
    """

    def __init__(self) -> None:
        super().__init__(inputs="ask")
        self.tell: OnQuestion = lambda name, payload: None
        self._known: OrderedDict[str, Resolution | None] = OrderedDict()
        self._settled: dict[str, anyio.Event] = {}

    async def ask(self, question: Question) -> Resolution:
        """Waits for the answer, no longer than the question lives."""
        family = family_of(question)
        settled = self._settled[question.id] = anyio.Event()
        self._remember(question.id, None)
        self.tell(f"{family}.approval.requested", describe(question))
        decision: Resolution | str = "cancelled"
        try:
            decision = resolution = await super().ask(question)
            self._remember(question.id, resolution)
            return resolution
        finally:
            settled.set()
            del self._settled[question.id]
            told: JsonObject = {"id": question.id, "decision": decision}
            self.tell(f"{family}.approval.resolved", told)

    async def decision(self, question_id: str, seconds: float) -> Resolution | None:
        """What was decided; None if that is nothing yet, or nobody will.

        Raises:
            KeyError: There is no such question, or not any more.
        """
        if question_id not in self._known:
            raise KeyError(question_id)
        if (settled := self._settled.get(question_id)) is not None:
            with anyio.move_on_after(seconds):
                await settled.wait()
        found = self._known[question_id]
        return None if found == "timeout" else found

    def _remember(self, question_id: str, resolution: Resolution | None) -> None:
        self._known[question_id] = resolution
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)


def family_of(question: Question) -> str:
    """`exec` for commands of the shell, `plugin` for all others."""
    return "exec" if question.tool_id in (EXEC_ID, PROCESS_ID) else "plugin"


def describe(question: Question) -> JsonObject:
    """A question as clients see it: all that would run."""
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
        "askedAtMs": int(time.time() * 1000),
    }


def describe_input(question: InputQuestion) -> JsonObject:
    """What a tool wants to know, as clients see it."""
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
