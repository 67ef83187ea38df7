"""Approvals at a terminal: puts the questions to the user, one at a time, and reads the answers.

A call can be allowed only after all of its arguments were shown.
"""

import os
import sys
import termios
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import IO, Literal, Protocol

import anyio

from clawmode.app.console import print_note
from clawmode.tasks import Notifier
from clawmode.terminal.forms import MAX_WORDS, RULE, describe, fill_in, introduce
from clawmode.text import one_line
from clawmode.tools.approvals import Approvals, Decision, InputQuestion, Mode, Question, Resolution
from clawmode.tools.tool import Tool
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
HINT_TO_SHOW = "Not all of the arguments were shown: please answer show, or deny (or no).\n"
MAX_ANSWER_BYTES = 4096


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
        # Keys that were pressed before the question appeared must not answer it.
        termios.tcflush(self._source, termios.TCIFLUSH)
        self.show(prompt)
        await anyio.wait_readable(self._source)
        typed = os.read(self._source, MAX_ANSWER_BYTES)
        return typed.decode("utf-8", "replace").strip() if typed else None


# ---- Desks ----


class Desk(Approvals):
    """Approvals whose questions are put to the user at a terminal, one at a time.

    Args:
        ask_for: True for tools whose calls need approval, as for `Approvals`.
        terminal: Where questions are shown.
        paused: Keeps all other output off the terminal while a question is open.

    Attributes:
        until: How long the answer `always` is remembered, as text for the question.
        postponed: True if the user wants to decide later. No more questions are put then.
    """

    until = "this command ends"

    def __init__(
        self,
        *,
        ask_for: Callable[[Tool], bool],
        terminal: QuestionTerminal,
        paused: Callable[[], AbstractContextManager[None]],
    ) -> None:
        super().__init__(ask_for=ask_for, inputs="ask")
        self._terminal = terminal
        self._paused = paused
        self._waiting: deque[Question | InputQuestion] = deque()
        self._changes = Notifier()
        self.postponed = False

    async def ask(self, question: Question) -> Resolution:
        self._waiting.append(question)
        self._changes.notify()
        try:
            return await super().ask(question)
        finally:
            self._changes.notify()

    async def ask_input(self, question: InputQuestion) -> JsonObject | None:
        self._waiting.append(question)
        self._changes.notify()
        return await super().ask_input(question)

    async def serve(self) -> None:
        """Puts questions to the user as they come, until the user wants to decide later."""
        while not self.postponed:
            if not self._waiting:
                await self._changes.wait()
                continue
            question = self._waiting.popleft()
            # The question may have expired or been withdrawn while it waited for its turn.
            open_questions = (*self.pending(), *self.pending_inputs())
            if any(question.id == pending.id for pending in open_questions):
                with self._paused():
                    await self._put(question)

    async def wait_until_clear(self) -> None:
        """Waits until no question is open, or the user wants to decide later."""
        while self.pending() and not self.postponed:
            await self._changes.wait()

    async def _put(self, question: Question | InputQuestion) -> None:
        answered = False
        terminal = self._terminal
        try:
            with anyio.move_on_after(question.expires - time.time()):
                if isinstance(question, InputQuestion):
                    terminal.show(introduce(question, terminal.width - RULE))
                    content = await fill_in(question, terminal.ask, terminal.show)
                    in_time = self.answer(question.id, content)
                else:
                    in_time = await self._settle(question, await self._decide(question))
                answered = True
                if not in_time:
                    terminal.show("The answer came too late.\n")
        finally:
            if not answered:
                terminal.show("\nThe question is no longer open.\n")

    async def _settle(self, question: Question, decision: Decision | None) -> bool:
        """Records a decision, or that there is none yet; False if the question had expired."""
        if decision is None:
            self.postponed = True
            self._terminal.show("\nThe program is left waiting.\n")
            self._changes.notify()
            return True
        return self.resolve(question.id, decision)

    async def _decide(self, question: Question) -> Decision | None:
        text, complete = describe(question, self._terminal.width, until=self.until)
        self._terminal.show(text)
        while True:
            allowed = "once, always or deny" if complete else "show or deny"
            line = await self._terminal.ask(f"{allowed}? (Ctrl-D: later) ")
            answer = (line or "").lower()
            if line is None:
                return None
            if answer == "show":
                text, complete = describe(question, self._terminal.width, None, self.until)
                self._terminal.show(text)
            elif answer in ANSWERS and (complete or ANSWERS[answer] == "deny"):
                return ANSWERS[answer]
            else:
                self._terminal.show(HINT if complete else HINT_TO_SHOW)


class SharedDesk(Desk):
    """A desk whose questions may be answered elsewhere; the terminal then withdraws them."""

    def __init__(
        self,
        *,
        ask_for: Callable[[Tool], bool],
        terminal: QuestionTerminal,
        paused: Callable[[], AbstractContextManager[None]],
    ) -> None:
        super().__init__(ask_for=ask_for, terminal=terminal, paused=paused)
        self._shown_id = ""
        self._scope = anyio.CancelScope()

    async def ask(self, question: Question) -> Resolution:
        try:
            return await super().ask(question)
        finally:
            self._withdraw(question.id)

    async def ask_input(self, question: InputQuestion) -> JsonObject | None:
        try:
            return await super().ask_input(question)
        finally:
            self._withdraw(question.id)

    def _withdraw(self, question_id: str) -> None:
        """Removes a question that was answered elsewhere, or whose run has ended."""
        if self._shown_id == question_id:
            self._scope.cancel()

    async def _put(self, question: Question | InputQuestion) -> None:
        self._shown_id = question.id
        with anyio.CancelScope() as self._scope:
            await super()._put(question)
        self._shown_id = ""


class RemoteDesk(SharedDesk):
    """Puts the questions of a gateway's run at a terminal."""

    until = "the gateway stops"

    def __init__(
        self, terminal: QuestionTerminal, paused: Callable[[], AbstractContextManager[None]]
    ) -> None:
        super().__init__(ask_for=lambda tool: True, terminal=terminal, paused=paused)


class ChatDesk(SharedDesk):
    """Puts questions in a chat, where the command `/approve` answers them, too."""

    def __init__(
        self, terminal: QuestionTerminal, paused: Callable[[], AbstractContextManager[None]]
    ) -> None:
        super().__init__(ask_for=may_change, terminal=terminal, paused=paused)

    async def _settle(self, question: Question, decision: Decision | None) -> bool:
        if decision is not None:
            return self.resolve(question.id, decision)
        command = f"/approve {question.id} allow-once|allow-always|deny"
        self._terminal.show(f"The call waits. Answer later with: {command}\n")
        return True


class RemoteChatDesk(ChatDesk):
    """Puts the questions of a gateway's run in a chat."""

    until = "the gateway stops"


# ---- With or without a desk ----


def may_change(tool: Tool) -> bool:
    """True for tools that are not declared to only read."""
    return tool.effect != "read"


@asynccontextmanager
async def questions_served(approvals: Approvals) -> AsyncIterator[None]:
    """Puts questions to the user while the block runs, if there is a desk."""
    async with anyio.create_task_group() as tasks:
        if isinstance(approvals, Desk):
            tasks.start_soon(approvals.serve)
        yield
        tasks.cancel_scope.cancel()


async def wait_for_decisions(approvals: Approvals) -> bool:
    """Waits until no question is open; False if the user wants to decide later."""
    if not isinstance(approvals, Desk):
        return True
    await approvals.wait_until_clear()
    return not approvals.postponed


def make_approvals(
    mode: Mode,
    *,
    later: bool,
    terminal: QuestionTerminal | None,
    paused: Callable[[], AbstractContextManager[None]],
    tell: Callable[[str], None],
    inputs: "Literal['ask', 'decline']" = "decline",
) -> Approvals:
    """Makes the approvals of all tools that are not declared to only read.

    Args:
        mode: `always` and `never` answer instead of the user.
        later: True if nobody is asked now, and the program is left waiting.
        terminal: Where the user is asked; without one, calls that need approval are denied.
        paused: Keeps all other output off the terminal while a question is open.
        tell: Shows the user why a call was denied.
        inputs: `ask` if tools may ask for input although nobody is asked now.
    """

    def refuse(question: Question) -> Decision:
        name = one_line(question.tool_id, MAX_WORDS)
        tell(f"{name} needs approval, and there is no terminal to ask at: denied (see --approve)")
        return "deny"

    if mode != "ask":
        answer: Decision = "allow-once" if mode == "always" else "deny"
        return Approvals(ask_for=may_change, approver=lambda question: answer, inputs=inputs)
    if later:
        return Approvals(ask_for=may_change, inputs=inputs)
    if terminal is None:
        return Approvals(ask_for=may_change, approver=refuse)
    return Desk(ask_for=may_change, terminal=terminal, paused=paused)


def remote_approvals(
    mode: Mode,
    terminal: QuestionTerminal | None,
    paused: Callable[[], AbstractContextManager[None]],
) -> Approvals:
    """Makes the approvals for a gateway's run: the user decides, or the mode."""
    if mode == "ask" and terminal is not None:
        return RemoteDesk(terminal, paused)
    return make_approvals(mode, later=False, terminal=None, paused=paused, tell=print_note)
