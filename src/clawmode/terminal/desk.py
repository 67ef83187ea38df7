"""Approvals at a terminal: puts the questions to the user, one at a time, and reads the answers.

Calls that one program makes at the same time are one question. A call can be allowed only after
all of its arguments were shown.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import IO, Literal, Protocol

import anyio

from clawmode.app.console import forget_keys, print_note
from clawmode.tasks import Notifier
from clawmode.terminal.forms import (
    MAX_WORDS,
    RULE,
    InvalidAnswer,
    describe,
    describe_calls,
    fill_in,
    introduce,
    read_choice,
)
from clawmode.text import one_line
from clawmode.tools.approvals import (
    Approvals,
    Decision,
    InputQuestion,
    Mode,
    Question,
    QuestionGroup,
    Resolution,
    may_change,
)
from clawmode.types import JsonObject

ANSWERS: dict[str, Decision] = {
    "once": "allow-once",
    "always": "allow-always",
    "deny": "deny",
    "yes": "allow-once",
    "no": "deny",
    "o": "allow-once",
    "a": "allow-always",
    "d": "deny",
    "y": "allow-once",
    "n": "deny",
}
HINT = "Please answer once (or yes), always, or deny (or no).\n"
HINT_FOR_CALLS = (
    "Please answer y (allow all once), a (allow all always) or n (deny all), each with or without "
    "numbers such as 1 3-5. Numbers alone allow these calls once.\n"
)
HINT_TO_SHOW = "Not all of the arguments were shown: please answer show, or deny (or no).\n"
MAX_ANSWER_BYTES = 4096
COMMAND_ENDS, GATEWAY_STOPS = "this command ends", "the gateway stops"
"""How long the answer `always` is remembered: by this process, or by the gateway."""


# ---- The terminal ----


class QuestionTerminal(Protocol):
    """A place where questions are shown and answered: a terminal, or the prompt of a chat."""

    @property
    def width(self) -> int:
        """The number of columns to fill."""
        ...

    def show(self, text: str) -> None:
        """Writes a text that is escaped already."""
        ...

    async def ask(self, prompt: str) -> str | None:
        """Reads the line that answers the prompt; None at the end of input."""
        ...


class Terminal:
    """The terminal of a command.

    Args:
        source: The file descriptor to read answers from.
        target: The stream to write questions to.
    """

    def __init__(self, source: int, target: IO[str]) -> None:
        self._source = source
        self._target = target

    @classmethod
    def find(cls, *, stdin_is_taken: bool) -> "Terminal | None":
        """Returns the terminal of this process, or None.

        Args:
            stdin_is_taken: True if a program or a message was read from stdin.
        """
        if not stdin_is_taken and sys.stdin.isatty() and sys.stderr.isatty():
            return cls(sys.stdin.fileno(), sys.stderr)
        # The user may still be there, although stdin is a pipe or stderr is a file.
        try:
            source = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
            target = open("/dev/tty", "w", encoding="utf-8", errors="backslashreplace")
        except OSError:
            return None
        return cls(source, target)

    @property
    def width(self) -> int:
        try:
            return os.get_terminal_size(self._target.fileno()).columns or 80
        except OSError:
            return 80

    def show(self, text: str) -> None:
        self._target.write(text)
        self._target.flush()

    async def ask(self, prompt: str) -> str | None:
        forget_keys(self._source)
        self.show(prompt)
        await anyio.wait_readable(self._source)
        typed = os.read(self._source, MAX_ANSWER_BYTES)
        return typed.decode("utf-8", "replace").strip() if typed else None


# ---- The desk ----


class Desk:
    """Puts questions to the user at a terminal, one at a time; a `GroupAsker`.

    A question that is answered elsewhere, or whose run has ended, is withdrawn.

    Args:
        terminal: Where questions are shown.
        paused: Keeps all other output off the terminal while a question is open.
        until: How long the answer `always` is remembered, as text for the question.
        in_chat: True if the command `/approve` can answer a question later.

    Attributes:
        approvals: The approvals whose questions are put.
        postponed: True if the user wants to decide later. No more questions are put then.
    """

    def __init__(
        self,
        terminal: QuestionTerminal,
        paused: Callable[[], AbstractContextManager[None]],
        *,
        until: str = COMMAND_ENDS,
        in_chat: bool = False,
    ) -> None:
        self.approvals = Approvals(ask_for=may_change, inputs="ask", asker=self)
        self.postponed = False
        self._terminal = terminal
        self._paused = paused
        self._until = until
        self._in_chat = in_chat
        self._waiting: deque[Question | InputQuestion | QuestionGroup] = deque()
        self._changes = Notifier()
        self._shown_ids: set[str] = set()
        self._shown = anyio.CancelScope()

    @classmethod
    def at_terminal(
        cls,
        paused: Callable[[], AbstractContextManager[None]],
        *,
        stdin_is_taken: bool = False,
        until: str = COMMAND_ENDS,
    ) -> "Desk | None":
        """Makes the desk at the terminal of this process; None if there is no terminal."""
        terminal = Terminal.find(stdin_is_taken=stdin_is_taken)
        return None if terminal is None else cls(terminal, paused, until=until)

    def put(self, question: Question | InputQuestion) -> None:
        self._waiting.append(question)
        self._changes.notify()

    def put_group(self, group: QuestionGroup) -> None:
        self._waiting.append(group)
        self._changes.notify()

    def settle(
        self, question: Question | InputQuestion, answer: Resolution | JsonObject | None
    ) -> None:
        if self._shown_ids == {question.id}:
            self._shown.cancel()
        self._shown_ids.discard(question.id)
        self._changes.notify()

    async def serve(self) -> None:
        """Puts questions to the user as they come, until the user wants to decide later."""
        while not self.postponed:
            if not self._waiting:
                await self._changes.wait()
                continue
            question = self._waiting.popleft()
            asked = question.questions if isinstance(question, QuestionGroup) else (question,)
            # Questions may have expired or been withdrawn while they waited for their turn.
            pending = (*self.approvals.pending(), *self.approvals.pending_inputs())
            ids = {each.id for each in asked} & {each.id for each in pending}
            if ids:
                with self._paused(), anyio.CancelScope() as self._shown:
                    self._shown_ids = ids
                    await self._ask(question)
                self._shown_ids = set()

    async def wait_until_clear(self) -> bool:
        """Waits until no question is open; False if the user wants to decide later."""
        while self.approvals.pending() and not self.postponed:
            await self._changes.wait()
        return not self.postponed

    async def _ask(self, question: Question | InputQuestion | QuestionGroup) -> None:
        answered = False
        terminal = self._terminal
        try:
            with anyio.move_on_after(question.expires - time.time()):
                if isinstance(question, QuestionGroup):
                    in_time = await self._decide_group(question)
                elif isinstance(question, InputQuestion):
                    terminal.show(introduce(question, terminal.width - RULE))
                    content = await fill_in(question, terminal.ask, terminal.show)
                    in_time = self.approvals.answer(question.id, content)
                else:
                    decision = await self._decide(question)
                    in_time = True
                    if decision is not None:
                        in_time = self.approvals.resolve(question.id, decision)
                    else:
                        command = f"/approve {question.id} allow-once|allow-always|deny"
                        self._postpone(f"The call waits. Answer later with: {command}")
                answered = True
                if not in_time:
                    terminal.show("The answer came too late.\n")
        finally:
            if not answered:
                terminal.show("\nThe question is no longer open.\n")

    def _postpone(self, in_chat: str) -> None:
        if self._in_chat:
            self._terminal.show(f"{in_chat}\n")
            return
        self.postponed = True
        self._terminal.show("\nThe program is left waiting.\n")
        self._changes.notify()

    async def _decide_group(self, group: QuestionGroup) -> bool:
        """Asks about calls until all are answered. Returns False if an answer came too late."""
        everything, in_time = False, True
        while left := [each for each in group.questions if each.id in self._shown_ids]:
            width, until = self._terminal.width, self._until
            text, complete = describe_calls(left, width, everything=everything, until=until)
            self._terminal.show(text)
            if (answer := await self._choose(complete)) is None:
                self._postpone("The calls wait. Answer later with /approve, which lists them.")
                return in_time
            everything = answer == "show"
            if not isinstance(answer, tuple):
                continue
            decision, numbers = answer
            chosen = QuestionGroup(tuple(left[number] for number in numbers))
            answered = self.approvals.resolve_group(chosen, decision)
            self._shown_ids.difference_update(each.id for each in chosen.questions)
            in_time = in_time and len(answered) == len(numbers)
        return in_time

    async def _choose(
        self, complete: list[bool]
    ) -> "tuple[Decision, list[int]] | Literal['show'] | None":
        """Returns the user's decision and its calls, or that the user wants to see all of them."""
        while True:
            line = await self._terminal.ask("y, a or n for all, numbers, or show? (Ctrl-D: later) ")
            if line is None:
                return None
            try:
                word, numbers = read_choice(line, len(complete))
            except InvalidAnswer as error:
                self._terminal.show(f"{error}. {HINT_FOR_CALLS}")
                continue
            decision = ANSWERS.get(word or "once" * bool(line))
            if word == "show":
                return "show"
            if decision is None:
                self._terminal.show(HINT_FOR_CALLS)
            elif decision != "deny" and not all(complete[number] for number in numbers):
                self._terminal.show(HINT_TO_SHOW)
            else:
                return decision, numbers

    async def _decide(self, question: Question) -> Decision | None:
        """Returns the user's decision; None if the user wants to decide later."""
        text, complete = describe(question, self._terminal.width, until=self._until)
        self._terminal.show(text)
        while True:
            allowed = "once, always or deny" if complete else "show or deny"
            line = await self._terminal.ask(f"{allowed}? (Ctrl-D: later) ")
            answer = (line or "").lower()
            if line is None:
                return None
            if answer == "show":
                text, complete = describe(question, self._terminal.width, None, self._until)
                self._terminal.show(text)
            elif answer in ANSWERS and (complete or ANSWERS[answer] == "deny"):
                return ANSWERS[answer]
            else:
                self._terminal.show(HINT if complete else HINT_TO_SHOW)


# ---- With or without a desk ----


def make_approvals(
    mode: Mode,
    desk: Desk | None = None,
    *,
    later: bool = False,
    tell: Callable[[str], None] = print_note,
    inputs: "Literal['ask', 'decline']" = "decline",
) -> Approvals:
    """Makes the approvals of all tools that are not declared to only read.

    Args:
        mode: `always` and `never` answer instead of the user.
        desk: Where the user is asked; without a desk, calls that need approval are denied.
        later: True if nobody is asked now, and the program is left waiting.
        tell: Shows the user why a call was denied.
        inputs: `ask` if tools may ask for input although there is no desk.
    """
    if mode == "ask" and later:
        return Approvals(ask_for=may_change, inputs=inputs)
    if mode == "ask" and desk is not None:
        return desk.approvals

    def answer(question: Question) -> Decision:
        if mode == "ask":
            name = one_line(question.tool_id, MAX_WORDS)
            reason = "needs approval, and there is no terminal to ask at: denied (see --approve)"
            tell(f"{name} {reason}")
        return "allow-once" if mode == "always" else "deny"

    return Approvals(ask_for=may_change, approver=answer, inputs=inputs)
