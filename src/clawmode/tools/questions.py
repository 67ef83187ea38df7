"""Questions to people as data, and the gathering of questions that one program asks at once.

A program that makes calls in a loop would ask one question per call. The questions of sibling
calls, which one program makes in one step, are therefore put as one group. Each question keeps its
own id, and its answer still holds for exactly its own call.
"""

import secrets
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import anyio

from clawmode.context import RunContext
from clawmode.tools.tool import InputRequest, Severity
from clawmode.types import JsonObject, dataclass

Decision: TypeAlias = Literal["allow-once", "allow-always", "deny"]
DECISIONS: tuple[Decision, ...] = get_args(Decision)
Resolution: TypeAlias = Literal["allow-once", "allow-always", "deny", "timeout"]

QUIET_SECONDS = 0.02
"""A group is put when no sibling has asked for this time: too short for a person to notice."""

GATHER_SECONDS = 0.25
"""The most that the first question of a group waits for its siblings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question whether a call may be made.

    Attributes:
        id: The id to answer the question by.
        tool_id: The tool that would be called.
        input: The exact input of the call.
        run: The run that makes the call.
        call_id: The call that waits. For a nested call, `<id of the program>:<number>`.
        program: The id of the program that makes the call; empty if the model calls the tool.
        always: What `allow-always` would remember, for people.
        expires: By `time.time`; after that the question counts as denied.
        on_resolution: Called with the resolution. If there are any, `allow-always` is remembered by
            them, not here.
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
    program: str = ""
    always: str
    expires: float
    on_resolution: tuple[Callable[[Any], None], ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class QuestionGroup:
    """Questions of one program that are put together, in the order of the calls.

    A group never changes: an answer to it is for the calls that it showed, and for no others.
    """

    questions: tuple[Question, ...]

    @property
    def id(self) -> str:
        return "gr_" + self.questions[0].id.removeprefix("ap_")

    @property
    def expires(self) -> float:
        """The time by which all of the questions have expired."""
        return max(question.expires for question in self.questions)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputQuestion:
    """A question of a tool for input from a person.

    Attributes:
        id: The id to answer the question by.
        tool_id: The tool that asks. The texts of an MCP server's tool are not trusted.
        request: The request of the tool.
        run: The run that made the call.
        call_id: As in `Question`.
        expires: By `time.time`; after that the question counts as declined.
    """

    kind: ClassVar[str] = "input"
    id: str = field(default_factory=lambda: "in_" + secrets.token_hex(8))
    tool_id: str
    request: InputRequest
    run: RunContext
    call_id: str = ""
    expires: float


class Asker(Protocol):
    """Puts pending questions to people, who answer by `Approvals.resolve` and `Approvals.answer`.

    The methods must return at once and must not raise.
    """

    def put(self, question: Question | InputQuestion) -> None:
        """Called when a question starts to wait for an answer."""

    def settle(
        self, question: Question | InputQuestion, answer: Resolution | JsonObject | None
    ) -> None:
        """Called when a question needs no answer any more, even if it was never put.

        The answer is None if the call was cancelled, or if nobody gave the input.
        """


@runtime_checkable
class GroupAsker(Asker, Protocol):
    """An asker that can put several questions at once."""

    def put_group(self, group: QuestionGroup) -> None:
        """Called instead of `put` with the questions that one program asks at the same time.

        `Approvals.resolve_group` answers them; `Approvals.resolve` answers a single one.
        """


# ---- Gathering ----


@dataclass(slots=True)
class Gathering:
    """The siblings that have asked and are not put yet."""

    questions: list[Question] = field(default_factory=list[Question])

    async def wait(self, answered: anyio.Event) -> None:
        """Waits until no more siblings ask, or until the first question is answered."""
        with anyio.move_on_after(GATHER_SECONDS):
            count = 0
            while count < len(self.questions) and not answered.is_set():
                count = len(self.questions)
                with anyio.move_on_after(QUIET_SECONDS):
                    await answered.wait()
