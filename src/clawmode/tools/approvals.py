"""Questions that a person, or code in a person's place, has to answer: may it run, and what is it?

A question of approval shows exactly what would run and is answered for exactly that. A question
for input is what a tool that runs already, or the MCP server behind it, wants to know. Both have an
expiry, and no answer is a no. `allow-always` is remembered by tool and agent; the list can be seen
and revoked.
"""

import inspect
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import anyio

from clawmode.context import RunContext
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.tools.hooks import RequireApproval, Severity
from clawmode.tools.rules import Names, Rule, UnmatchedRule, find_unmatched, matches
from clawmode.tools.tool import InputRequest, Tool
from clawmode.types import JsonObject, copy_json

logger = logging.getLogger("clawmode.approvals")

Decision: TypeAlias = Literal["allow-once", "allow-always", "deny"]
Mode: TypeAlias = Literal["ask", "always", "never"]
"""What is done about calls that may change something: `tools.approve` and `--approve`."""
Resolution: TypeAlias = Literal["allow-once", "allow-always", "deny", "timeout"]

EXPIRY_SECONDS = 1800.0


class NotApproved(ClawmodeError):
    """A question was denied, for the reason in the message."""


ASK_FOR = "Approvals(ask_for=…)"
"""Where its patterns are set, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Whether a call may be made: what somebody has to decide about.

    Attributes:
        id: Names the question when it is answered.
        tool_id: What would run.
        input: With exactly this.
        run: Who asks.
        call_id: The call that waits. A nested one begins with its program's id and a colon.
        always: What `allow-always` would remember.
        expires: By `time.time`; then the answer is no.
        on_resolution: Who is told what came of it. If anybody is, `allow-always` is theirs to
            remember.
    """

    kind: ClassVar[str] = "approval"
    id: str = field(default_factory=lambda: "ap_" + secrets.token_hex(8))
    title: str
    description: str = ""
    severity: Severity = "warning"
    tool_id: str
    input: JsonObject
    run: RunContext
    call_id: str = ""
    always: str
    expires: float
    on_resolution: tuple[Callable[[Any], None], ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputQuestion:
    """What a tool wants a person to tell it.

    Attributes:
        id: Names the question when it is answered.
        tool_id: What asks. Its words are a stranger's if it is an MCP server's.
        request: What it asks for.
        run: For whom.
        call_id: As that of a `Question`.
        expires: By `time.time`; then it is declined.
    """

    kind: ClassVar[str] = "input"
    id: str = field(default_factory=lambda: "in_" + secrets.token_hex(8))
    tool_id: str
    request: InputRequest
    run: RunContext
    call_id: str = ""
    expires: float


Approver: TypeAlias = Callable[[Question], "Awaitable[Decision] | Decision"]
"""Code that answers in a person's place, at once. May raise: that is a no."""

Answerer: TypeAlias = Callable[[InputQuestion], "Awaitable[JsonObject | None] | JsonObject | None"]
"""Code that answers what tools ask, in a person's place. None declines; so does what it raises."""


@dataclass(slots=True)
class _PendingQuestion:
    question: Question
    answered: anyio.Event
    decision: Decision | None = None
    reason: str = ""


@dataclass(slots=True)
class _PendingInput:
    question: InputQuestion
    answered: anyio.Event
    answer: JsonObject | None = None


class Approvals:
    """Decides which calls need approval, and collects the answers.

    Args:
        ask_for: Tools that always need approval: the tools themselves, or names, ids and groups
            as in a policy, with `*`; or a function that decides.
        approver: Answers at once, instead of a person.
        inputs: Who tells tools what they ask for: people, code, or nobody.
        expiry_seconds: How long a person has.

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
    ) -> None:
        # A tool can be called too, and must not be taken for a function that decides.
        decides = callable(ask_for) and not isinstance(ask_for, Tool)
        self._rules = () if decides else _read_rules(ask_for)
        self._asks = ask_for if decides else self._is_named
        self._approver = approver
        self._answerer = inputs
        self._expiry = expiry_seconds
        self._pending: dict[str, _PendingQuestion] = {}
        self._inputs: dict[str, _PendingInput] = {}
        self._always: set[tuple[str, str]] = set()
        self.on_question: Callable[[Question], None] | None = None
        """Told of every question that begins to wait for a person."""

    # ---- Asking ----

    def _is_named(self, tool: Tool) -> bool:
        names = Names.of(tool)
        # A name with a colon is no id to a policy. Here it is better to ask once too often.
        return any(
            rule.denies(names) or any(matches(pattern, names.name) for pattern in rule.patterns)
            for rule in self._rules
        )

    def needs_approval(self, tool: Tool, run: RunContext) -> bool:
        """Whether calls of a tool need approval, whatever hooks say."""
        return self._asks(tool)

    def unmatched(self, tools: Sequence[Tool]) -> list[UnmatchedRule]:
        """The patterns of `ask_for` that match none of a run's tools."""
        texts = [rule.text for rule in self._rules]
        return find_unmatched(texts, tools, ASK_FOR)

    @property
    def inline(self) -> bool:
        """Whether code answers: then a call does not wait for a person."""
        return self._approver is not None

    def question(
        self,
        tool: Tool,
        params: JsonObject,
        run: RunContext,
        wishes: tuple[RequireApproval, ...],
        patience: float | None = None,
    ) -> Question | None:
        """The question that has to be answered before this call, if there is one.

        Args:
            tool: What would run.
            params: With what.
            run: Who asks.
            wishes: What hooks asked for.
            patience: How long an answer is of use; the question does not live longer.
        """
        told = tuple(wish.on_resolution for wish in wishes if wish.on_resolution is not None)
        if (run.agent_id, tool.id) in self._always and not told:
            return None
        if not wishes and not self.needs_approval(tool, run):
            return None
        wish = wishes[0] if wishes else RequireApproval(title=f"Run {tool.label or tool.name}?")
        seconds = min(wish.timeout_seconds or self._expiry, self._expiry)
        if patience is not None:
            seconds = min(seconds, patience)
        return Question(
            title=wish.title,
            description=wish.description,
            severity=wish.severity,
            tool_id=tool.id,
            input=copy_json(params),  # whoever is shown it may change it
            run=run,
            always=f"{wish.always or tool.id} for the agent {run.agent_id}",
            expires=time.time() + seconds,
            on_resolution=told,
        )

    async def ask(self, question: Question) -> Resolution:
        """Waits for the answer, no longer than the question lives.

        Raises:
            NotApproved: It was denied for a reason that the caller should know.
        """
        resolution: Resolution | Literal["cancelled"] = "cancelled"
        try:
            resolution = await self._ask(question)
            return resolution
        except NotApproved:
            resolution = "deny"
            raise
        finally:
            for tell in question.on_resolution:
                try:
                    tell(resolution)
                except Exception as error:
                    logger.error("on_resolution: %s: %s", type(error).__name__, error)

    async def _ask(self, question: Question) -> Resolution:
        if self._approver is not None:
            answer = self._approver(question)
            decision = await answer if inspect.isawaitable(answer) else answer
            return self._accept(question, decision)
        pending = _PendingQuestion(question, anyio.Event())
        self._pending[question.id] = pending
        if self.on_question is not None:
            self.on_question(question)
        try:
            with anyio.move_on_after(max(question.expires - time.time(), 0)):
                await pending.answered.wait()
        finally:
            self._pending.pop(question.id, None)
        if pending.reason:
            raise NotApproved(pending.reason)
        return "timeout" if pending.decision is None else pending.decision

    @property
    def takes_input(self) -> bool:
        """Whether there is any use in asking for input."""
        return self._answerer != "decline"

    def input_question(
        self, tool: Tool, request: InputRequest, run: RunContext, patience: float | None = None
    ) -> InputQuestion:
        """The question that a tool's request becomes; arguments as for `question`."""
        seconds = self._expiry if patience is None else min(self._expiry, patience)
        expires = time.time() + seconds
        return InputQuestion(tool_id=tool.id, request=request, run=run, expires=expires)

    async def ask_input(self, question: InputQuestion) -> JsonObject | None:
        """Waits for what a tool wants to know, no longer than the question lives."""
        if self._answerer == "decline":
            return None
        if self._answerer != "ask":
            answer = self._answerer(question)
            return await answer if inspect.isawaitable(answer) else answer
        pending = _PendingInput(question, anyio.Event())
        self._inputs[question.id] = pending
        try:
            with anyio.move_on_after(max(question.expires - time.time(), 0)):
                await pending.answered.wait()
        finally:
            self._inputs.pop(question.id, None)
        return pending.answer

    def _accept(self, question: Question, decision: Decision) -> Decision:
        if decision not in ("allow-once", "allow-always", "deny"):
            raise ValueError(f"{decision!r} is no decision: allow-once, allow-always or deny")
        if decision == "allow-always" and not question.on_resolution:
            self._always.add((question.run.agent_id, question.tool_id))
        return decision

    # ---- Answering ----

    def pending(self) -> list[Question]:
        """The questions that wait for an answer, oldest first."""
        return [pending.question for pending in self._pending.values()]

    def resolve(self, question_id: str, decision: Decision) -> bool:
        """Answers a question. False: there is none with this id, or not any more."""
        pending = self._pending.get(question_id)
        if pending is None or pending.decision is not None:
            return False
        pending.decision = self._accept(pending.question, decision)
        pending.answered.set()
        return True

    def reject(self, question_id: str, reason: str) -> bool:
        """Denies a question that nobody can decide. Arguments and result as for `resolve`.

        Args:
            question_id: The question.
            reason: Why, and what to do about it, for the program that made the call.
        """
        pending = self._pending.get(question_id)
        if pending is None or pending.decision is not None:
            return False
        pending.reason = reason
        return self.resolve(question_id, "deny")

    def pending_inputs(self) -> list[InputQuestion]:
        """What tools wait to be told, oldest first."""
        return [pending.question for pending in self._inputs.values()]

    def answer(self, question_id: str, content: JsonObject | None) -> bool:
        """Tells a tool what it asked for; None declines. False: it does not wait any more."""
        pending = self._inputs.get(question_id)
        if pending is None or pending.answered.is_set():
            return False
        pending.answer = content
        pending.answered.set()
        return True

    def remembered(self) -> list[tuple[str, str]]:
        """Agent and tool of every `allow-always`."""
        return sorted(self._always)

    def revoke(self, agent_id: str, tool_id: str) -> bool:
        """Forgets an `allow-always`. False: there was none."""
        known = (agent_id, tool_id) in self._always
        self._always.discard((agent_id, tool_id))
        return known


def _read_rules(ask_for: object) -> tuple[Rule, ...]:
    # A string is an iterable too, of letters that match nothing.
    alone = isinstance(ask_for, str | Tool) or not isinstance(ask_for, Iterable)
    rules: list[Rule] = []
    for each in [ask_for] if alone else [*ask_for]:
        text = each.id if isinstance(each, Tool) else each
        if not isinstance(text, str):
            expected = 'names such as ["send_mail", "delete_*"], or a function'
            found = type(each).__name__
            text = f"{ASK_FOR}: found {found}, expected {expected}"
            raise ConfigurationError(text, path=ASK_FOR, expected=expected)
        rules.append(Rule.parse(text, ASK_FOR))
    return tuple(rules)
