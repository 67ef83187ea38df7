"""Approvals that many clients see and answer: questions are told, and what became of them."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import anyio

from clawmode.context import RunContext
from clawmode.core_tools.exec_policy import EXEC_ID, PROCESS_ID
from clawmode.tools.approvals import Approvals, InputQuestion, Mode, Question, Resolution
from clawmode.tools.hooks import RequireApproval
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue

MAX_KNOWN = 1_000
"""Questions whose answers can still be asked for."""

OnQuestion: TypeAlias = Callable[[str, JsonObject], None]
"""Called with `exec.approval.requested` and the like, and the question."""


@dataclass(eq=False, slots=True)
class QuestionRecord:
    """A question that was put.

    Attributes:
        resolution: What came of it; None: nothing yet, or nobody wanted to know any more.
        settled: Whether it is over.
    """

    question: Question
    at: float = field(default_factory=time.time)
    resolution: Resolution | None = None
    settled: anyio.Event = field(default_factory=anyio.Event)

    @property
    def family(self) -> str:
        """`exec` for commands of the shell, `plugin` for all others."""
        return "exec" if self.question.tool_id in (EXEC_ID, PROCESS_ID) else "plugin"


class SharedApprovals(Approvals):
    """Approvals whose questions are told to whoever listens.

    Attributes:
        mode: What the configuration says for an agent, by its id.
        tell: Told of each question, and of its answer.
    """

    def __init__(self, mode: Callable[[str], Mode]) -> None:
        super().__init__(inputs="ask")
        self.mode = mode
        self.tell: OnQuestion = lambda name, payload: None
        self._known: OrderedDict[str, QuestionRecord] = OrderedDict()

    def needs_approval(self, tool: Tool, run: RunContext) -> bool:
        """The same calls as at a terminal: those of tools that are not known to only read."""
        return tool.effect != "read" and self.mode(run.agent_id) != "always"

    def question(
        self,
        tool: Tool,
        params: JsonObject,
        run: RunContext,
        wishes: tuple[RequireApproval, ...],
        patience: float | None = None,
    ) -> Question | None:
        """As everywhere; but `never` also holds for what was allowed for always before."""
        if self.mode(run.agent_id) == "never":
            self.revoke(run.agent_id, tool.id)
        return super().question(tool, params, run, wishes, patience)

    async def ask(self, question: Question) -> Resolution:
        """Waits for the answer, no longer than the question lives."""
        asked = self._remember(QuestionRecord(question))
        waits = self.mode(question.run.agent_id) != "never"
        if waits:
            self.tell(f"{asked.family}.approval.requested", describe(asked))
        try:
            asked.resolution = await super().ask(question)
            return asked.resolution
        finally:
            asked.settled.set()
            decision = asked.resolution or "cancelled"
            told: JsonObject = {"id": question.id, "decision": decision}
            if waits:
                self.tell(f"{asked.family}.approval.resolved", told)

    async def _ask(self, question: Question) -> Resolution:
        # Here and not in `ask`: whoever put the question is told the answer in any case.
        if self.mode(question.run.agent_id) == "never":
            return "deny"
        return await super()._ask(question)

    async def ask_input(self, question: InputQuestion) -> JsonObject | None:
        """The same for what a tool wants to know. What it is told is nobody else's business."""
        answer: JsonObject | None = None
        self.tell("input.requested", describe_input(question))
        try:
            answer = await super().ask_input(question)
            return answer
        finally:
            self.tell("input.resolved", {"id": question.id, "answered": answer is not None})

    def find(self, question_id: str) -> QuestionRecord | None:
        """A question that waits, or of which it is known what came of it."""
        return self._known.get(question_id)

    def waiting(self) -> list[QuestionRecord]:
        """Those that wait for an answer, oldest first."""
        return [asked for asked in self._known.values() if not asked.settled.is_set()]

    async def decision(self, question_id: str, seconds: float) -> Resolution | None:
        """What was decided; None if that is nothing yet, or nobody will.

        Raises:
            KeyError: There is no such question, or not any more.
        """
        asked = self._known[question_id]
        with anyio.move_on_after(seconds):
            await asked.settled.wait()
        return None if asked.resolution == "timeout" else asked.resolution

    def _remember(self, asked: QuestionRecord) -> QuestionRecord:
        self._known[asked.question.id] = asked
        over = len(self._known) - MAX_KNOWN
        old = [key for key, it in self._known.items() if over > 0 and it.settled.is_set()]
        for key in old[: max(over, 0)]:
            del self._known[key]
        return asked


def describe(asked: QuestionRecord) -> JsonObject:
    """A question as clients see it: all that would run."""
    question = asked.question
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
        "askedAtMs": int(asked.at * 1000),
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
