"""Questions to a person, or to code in a person's place: approvals of calls, and input for tools.

A question of approval shows exactly the call that would be made, and the answer holds for exactly
that call. A question for input comes from a running tool, or from the MCP server behind it. Both
expire, and an expired question counts as denied. `allow-always` is remembered by tool and agent;
the list can be shown and revoked.
"""

import inspect
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Generic, Literal, TypeAlias, TypeVar

import anyio

from clawmode.context import RunContext
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.tools.hooks import RequireApproval
from clawmode.tools.questions import (
    Asker,
    Decision,
    Gathering,
    GroupAsker,
    InputQuestion,
    Question,
    QuestionGroup,
    Resolution,
)
from clawmode.tools.rules import Names, Rule, UnmatchedRule, find_unmatched, matches
from clawmode.tools.tool import InputRequest, Tool
from clawmode.types import JsonObject, copy_json, dataclass

logger = logging.getLogger("clawmode.approvals")

Mode: TypeAlias = Literal["ask", "always", "never"]
"""How calls that may change something are approved: `tools.approve` and `--approve`."""

EXPIRY_SECONDS = 1800.0
ASK_FOR = "Approvals(ask_for=…)"
"""Where the patterns of `ask_for` are set, for error messages."""


class NotApproved(ClawmodeError):
    """A question was denied, for the reason in the message."""


Approver: TypeAlias = Callable[[Question], "Awaitable[Decision] | Decision"]
"""Code that approves calls in a person's place. An exception denies the call."""

Answerer: TypeAlias = Callable[[InputQuestion], "Awaitable[JsonObject | None] | JsonObject | None"]
"""Code that gives tools input in a person's place. None declines, and so does an exception."""


def may_change(tool: Tool) -> bool:
    """True for tools that are not declared to only read: the usual `ask_for`."""
    return tool.effect != "read"


AnyQuestion = TypeVar("AnyQuestion", Question, InputQuestion)
Answer = TypeVar("Answer")


@dataclass(slots=True)
class _PendingQuestion(Generic[AnyQuestion, Answer]):
    question: AnyQuestion
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: Answer | None = None
    reason: str = ""


class Approvals:
    """Decides which calls need approval, and collects the answers.

    Args:
        ask_for: Tools that always need approval: the tools themselves, or names, ids and groups
            as in a policy, with `*`; or a function that decides.
        approver: Code that answers instead of a person.
        inputs: Where tools get input from: a person (`ask`), nobody (`decline`), or code.
        expiry_seconds: How long a person has to answer.
        asker: Puts the questions to people; by default, callers read `pending` or `groups`. A
            `GroupAsker` gets the questions of sibling calls of a program together.

    Attributes:
        mode: Returns the mode for the id of an agent. `always` asks only the questions of hooks.
            `never` denies all questions, and overrides an earlier `allow-always`.
        on_question: Called with every question that starts to wait for a person.
        on_answer: Called with the id of a question that was answered, and who answered it.
        moves: True if a question moves to the process that waits for its program.

    Raises:
        ConfigurationError: `ask_for` is neither names nor a function, or has an unknown group.
    """

    def __init__(
        self,
        *,
        ask_for: "str | Tool | Iterable[str | Tool] | Callable[[Tool], bool]" = (),
        approver: Approver | None = None,
        inputs: "Literal['ask', 'decline'] | Answerer" = "decline",
        expiry_seconds: float = EXPIRY_SECONDS,
        asker: Asker | None = None,
    ) -> None:
        # A `FunctionTool` is callable too, but is not a function that decides.
        decides = callable(ask_for) and not isinstance(ask_for, Tool)
        self._rules = () if decides else _read_rules(ask_for)
        self._asks = ask_for if decides else self._is_named if self._rules else lambda tool: False
        self._approver, self._answerer = approver, inputs
        self._expiry, self.asker = expiry_seconds, asker
        self._pending: dict[str, _PendingQuestion[Question, Decision]] = {}
        self._inputs: dict[str, _PendingQuestion[InputQuestion, JsonObject]] = {}
        self._gatherings: dict[str, Gathering] = {}
        self._always: set[tuple[str, str]] = set()
        self.mode: Callable[[str], Mode] = lambda agent_id: "ask"
        self.on_question: Callable[[Question], None] = lambda question: None
        self.on_answer: Callable[[str, str], None] = lambda question_id, by: None
        self.moves = False

    # ---- Asking ----

    def _is_named(self, tool: Tool) -> bool:
        names = Names.of(tool)
        # Unlike in a policy, a pattern with a colon also matches names: better a question too many.
        return any(
            rule.denies(names) or any(matches(pattern, names.name) for pattern in rule.patterns)
            for rule in self._rules
        )

    def needs_approval(self, tool: Tool, run: RunContext) -> bool:
        """True if calls of a tool need approval even if no hook requires it."""
        return self.mode(run.agent_id) != "always" and self._asks(tool)

    def asks_people(self, tool: Tool, run: RunContext) -> bool:
        """True if a person is asked about every valid call of a tool, whatever hooks say."""
        asks = self.mode(run.agent_id) == "ask" and not self.inline
        return asks and (run.agent_id, tool.id) not in self._always and self._asks(tool)

    def unmatched(self, tools: Sequence[Tool]) -> list[UnmatchedRule]:
        """Returns the patterns of `ask_for` that match none of the tools."""
        return find_unmatched([rule.text for rule in self._rules], tools, ASK_FOR)

    @property
    def inline(self) -> bool:
        """True if code approves calls, so that no call waits for a person."""
        return self._approver is not None

    def question(
        self,
        tool: Tool,
        params: JsonObject,
        run: RunContext,
        wishes: tuple[RequireApproval, ...],
        patience: float | None = None,
    ) -> Question | None:
        """Returns the question that must be answered before a call; None if there is none.

        Args:
            tool: The tool that would be called.
            params: The input of the call.
            run: The run that makes the call.
            wishes: The approvals that hooks require.
            patience: Seconds for which an answer is of use; the question expires after them.
        """
        if self.mode(run.agent_id) == "never":
            self.revoke(run.agent_id, tool.id)
        listeners = tuple(wish.on_resolution for wish in wishes if wish.on_resolution is not None)
        # A hook that listens remembers `allow-always` in its own, narrower way: it decides again.
        if (run.agent_id, tool.id) in self._always and not listeners:
            return None
        if not wishes and not self.needs_approval(tool, run):
            return None
        wish = wishes[0] if wishes else RequireApproval(title=f"Run {tool.label or tool.name}?")
        seconds = min(wish.timeout_seconds or self._expiry, self._expiry, patience or math.inf)
        return Question(
            title=wish.title,
            description=wish.description,
            severity=wish.severity,
            tool_id=tool.id,
            input=copy_json(params),  # an approver may change the object it is shown
            run=run,
            always=f"{wish.always or tool.id} for the agent {run.agent_id}",
            expires=time.time() + seconds,
            on_resolution=listeners,
        )

    async def ask(self, question: Question) -> Resolution:
        """Waits for the answer, until the question expires.

        Raises:
            NotApproved: The question was denied with a reason for the caller.
        """
        resolution: Resolution | None = None
        try:
            resolution = await self._ask(question)
            return resolution
        except NotApproved:
            resolution = "deny"
            raise
        finally:
            for listener in question.on_resolution:
                try:
                    listener(resolution or "cancelled")
                except Exception as error:
                    logger.error("on_resolution: %s: %s", type(error).__name__, error)
            if self.asker is not None:
                self.asker.settle(question, resolution)

    async def _ask(self, question: Question) -> Resolution:
        if self.mode(question.run.agent_id) == "never":
            return "deny"
        if self._approver is not None:
            answer = self._approver(question)
            decision = await answer if inspect.isawaitable(answer) else answer
            return self._accept(question, decision)
        pending = _PendingQuestion[Question, Decision](question)
        await self._wait(pending, self._pending)
        if pending.reason:
            raise NotApproved(pending.reason)
        return "timeout" if pending.answer is None else pending.answer

    async def _wait(
        self,
        pending: _PendingQuestion[AnyQuestion, Answer],
        waiting: dict[str, _PendingQuestion[AnyQuestion, Answer]],
    ) -> None:
        """Waits for the answer, until the question expires."""
        question = pending.question
        waiting[question.id] = pending
        gathering = self._gather(question)
        if isinstance(question, Question):
            self.on_question(question)
        try:
            with anyio.move_on_after(max(question.expires - time.time(), 0)):
                if gathering is not None:
                    await gathering.wait(pending.answered)
                    self._put(gathering)
                await pending.answered.wait()
        finally:
            # Also if the call was cancelled: nobody should be asked about it any more.
            waiting.pop(question.id, None)
            if gathering is not None:
                self._put(gathering)

    def _gather(self, question: Question | InputQuestion) -> Gathering | None:
        """Puts a question, or adds it to its siblings. Returns the gathering if it is the first."""
        groups = isinstance(self.asker, GroupAsker)
        if isinstance(question, InputQuestion) or not (groups and question.program):
            if self.asker is not None:
                self.asker.put(question)
            return None
        known = self._gatherings.get(question.program)
        gathering = self._gatherings.setdefault(question.program, known or Gathering())
        gathering.questions.append(question)
        return None if known else gathering

    def _put(self, gathering: Gathering) -> None:
        """Puts the questions of a gathering that are still open, once."""
        asked, gathering.questions = gathering.questions, list[Question]()
        if not asked or not isinstance(self.asker, GroupAsker):
            return
        del self._gatherings[asked[0].program]
        left = tuple(each for each in asked if self._is_open(each.id))
        if len(left) > 1:
            self.asker.put_group(QuestionGroup(left))
        elif left:
            self.asker.put(left[0])

    def put_gathered(self, program: str) -> None:
        """Puts the questions of a program that waits for their answers, and so asks no others."""
        self._put(self._gatherings.get(program) or Gathering())

    def _is_open(self, question_id: str) -> bool:
        return question_id in self._pending and self._pending[question_id].answer is None

    @property
    def takes_input(self) -> bool:
        """True if a person or code may answer questions for input."""
        return self._answerer != "decline"

    def input_question(
        self, tool: Tool, request: InputRequest, run: RunContext, patience: float | None = None
    ) -> InputQuestion:
        """Returns the question for a tool's request; arguments as for `question`."""
        expires = time.time() + min(self._expiry, patience or math.inf)
        return InputQuestion(tool_id=tool.id, request=request, run=run, expires=expires)

    async def ask_input(self, question: InputQuestion) -> JsonObject | None:
        """Waits for input, until the question expires. None if it is declined or has expired."""
        if self._answerer == "decline":
            return None
        if self._answerer != "ask":
            answer = self._answerer(question)
            return await answer if inspect.isawaitable(answer) else answer
        pending = _PendingQuestion[InputQuestion, JsonObject](question)
        try:
            await self._wait(pending, self._inputs)
        finally:
            if self.asker is not None:
                self.asker.settle(question, pending.answer)
        return pending.answer

    def _accept(self, question: Question, decision: Decision) -> Decision:
        if decision not in ("allow-once", "allow-always", "deny"):
            raise ValueError(f"{decision!r} is not a decision: allow-once, allow-always or deny")
        if decision == "allow-always" and not question.on_resolution:
            self._always.add((question.run.agent_id, question.tool_id))
        return decision

    # ---- Answering ----

    def pending(self) -> list[Question]:
        """Returns the questions that wait for an answer, oldest first."""
        return [pending.question for pending in self._pending.values()]

    def groups(self) -> list[QuestionGroup]:
        """Returns the pending questions, those of one program together, oldest first."""
        found: dict[str, list[Question]] = {}
        for question in filter(lambda each: self._is_open(each.id), self.pending()):
            found.setdefault(question.program or question.id, []).append(question)
        return [QuestionGroup(tuple(questions)) for questions in found.values()]

    def resolve_group(
        self, group: QuestionGroup, answer: Decision | Mapping[str, Decision], by: str = ""
    ) -> list[str]:
        """Answers the questions of a group that are still open.

        Args:
            group: The questions that the person has seen.
            answer: A decision about all of them, or decisions by ids; other questions stay open.
            by: Who answers.

        Returns:
            The ids of the questions that this call answered.
        """
        ids = [question.id for question in group.questions]
        given = dict.fromkeys(ids, answer) if isinstance(answer, str) else answer
        return [each for each in ids if each in given and self.resolve(each, given[each], by)]

    def resolve(self, question_id: str, decision: Decision, by: str = "") -> bool:
        """Answers a question for `by`. Returns False if no question with this id is pending."""
        # The first of several answers counts: the waiting call may not have seen it yet.
        if not self._is_open(question_id):
            return False
        pending = self._pending[question_id]
        pending.answer = self._accept(pending.question, decision)
        self.on_answer(question_id, by)
        pending.answered.set()
        return True

    def reject(self, question_id: str, reason: str) -> bool:
        """Denies a question that nobody can decide. Returns False as `resolve` does.

        Args:
            question_id: The id of the question.
            reason: Why, and what to do about it, for the program that made the call.
        """
        if not self._is_open(question_id):
            return False
        self._pending[question_id].reason = reason
        return self.resolve(question_id, "deny")

    def pending_inputs(self) -> list[InputQuestion]:
        """Returns the questions for input that wait for an answer, oldest first."""
        return [pending.question for pending in self._inputs.values()]

    def answer(self, question_id: str, content: JsonObject | None, by: str = "") -> bool:
        """Gives a tool its input; None declines. Returns False if the question is not pending."""
        pending = self._inputs.get(question_id)
        if pending is None or pending.answered.is_set():
            return False
        pending.answer = content
        self.on_answer(question_id, by)
        pending.answered.set()
        return True

    def remembered(self) -> list[tuple[str, str]]:
        """Returns agent and tool of every `allow-always`."""
        return sorted(self._always)

    def revoke(self, agent_id: str, tool_id: str) -> bool:
        """Forgets an `allow-always`. Returns False if there was none."""
        known = {(agent_id, tool_id)} & self._always
        self._always -= known
        return bool(known)


def _read_rules(ask_for: object) -> tuple[Rule, ...]:
    # A string is also an iterable, of letters that match nothing.
    alone = isinstance(ask_for, str | Tool) or not isinstance(ask_for, Iterable)
    rules: list[Rule] = []
    for each in [ask_for] if alone else [*ask_for]:
        text = each.id if isinstance(each, Tool) else each
        if not isinstance(text, str):
            expected = 'names such as ["send_mail", "delete_*"], or a function'
            text = f"{ASK_FOR}: found {type(each).__name__}, expected {expected}"
            raise ConfigurationError(text, path=ASK_FOR, expected=expected)
        rules.append(Rule.parse(text, ASK_FOR))
    return tuple(rules)
