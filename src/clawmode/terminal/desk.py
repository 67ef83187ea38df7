"""Asking whoever sits at the terminal: shows what would run, and reads the answer.

Arguments are written by a guest. They stand behind a rule on the left, line by line, so that
nothing in them can pass for the question's own words; and what was not shown cannot be allowed.
"""

import json
import os
import sys
import termios
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import IO, Literal

import anyio

from clawmode.app.console import duration, fold, fold_words
from clawmode.tasks import Notifier
from clawmode.terminal.forms import fill_in, introduce
from clawmode.text import escape, one_line
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
MAX_LINES = 40
"""Of the arguments, until somebody asks for all of them."""

RULE = 6
"""Columns to leave for the rule on the left, and some to spare."""

MAX_WORDS = 300
MAX_ANSWER_BYTES = 4096


# ---- The terminal ----


class Terminal:
    """Where a person reads and types.

    Args:
        source: What they type, a file descriptor.
        target: What they read.
    """

    def __init__(self, source: int, target: IO[str]) -> None:
        self._source = source
        self._target = target

    @classmethod
    def find(cls, *, stdin_is_taken: bool) -> "Terminal | None":
        """The terminal of this process, if it has one; `stdin_is_taken` by a program."""
        if not stdin_is_taken and sys.stdin.isatty() and sys.stderr.isatty():
            return cls(sys.stdin.fileno(), sys.stderr)
        try:
            source = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
            target = open("/dev/tty", "w", encoding="utf-8", errors="backslashreplace")
        except OSError:
            return None
        return cls(source, target)

    @property
    def width(self) -> int:
        """In columns."""
        try:
            return os.get_terminal_size(self._target.fileno()).columns or 80
        except OSError:
            return 80

    def show(self, text: str) -> None:
        """Writes a text that is harmless."""
        self._target.write(text)
        self._target.flush()

    async def ask(self, prompt: str) -> str | None:
        """The line that answers; None at the end of input. What was typed before is no answer."""
        termios.tcflush(self._source, termios.TCIFLUSH)
        self.show(prompt)
        await anyio.wait_readable(self._source)
        typed = os.read(self._source, MAX_ANSWER_BYTES)
        return typed.decode("utf-8", "replace").strip() if typed else None


# ---- The question ----


def describe(
    question: Question,
    width: int,
    max_lines: int | None = MAX_LINES,
    until: str = "this command ends",
) -> tuple[str, bool]:
    """The question in words, and whether all of its arguments are in it.

    Args:
        question: With arguments that others wrote.
        width: In columns.
        max_lines: How many of the arguments are shown.
        until: How long an `always` is remembered.
    """
    given = escape(json.dumps(question.input, indent=2, ensure_ascii=False), "\n")
    arguments = [part for line in given.split("\n") for part in fold(line, width - RULE)]
    shown = arguments[:max_lines]
    left_out = len(arguments) - len(shown)
    at = time.strftime("%H:%M:%S", time.localtime(question.expires))
    left = duration(max(question.expires - time.time(), 0))
    lines = [
        "",
        *_words(f"Approval needed ({question.severity}): ", question.title, width),
        *(_words("  ", question.description, width) if question.description else ()),
        *_words("  tool: ", question.tool_id, width),
        "  arguments:",
        *(f"  │ {line}" for line in shown),
        *([f"  └ {left_out} more lines: answer `show` to see them"] if left_out else ()),
        *_words("  asked by: ", _asker(question), width),
        *_words(f"  always would remember, until {until}: ", question.always, width),
        f"  expires in {left}, at {at}; no answer is a no",
    ]
    return "".join(f"{line}\n" for line in lines), not left_out


def _asker(question: Question) -> str:
    run = question.run
    names = {
        "agent": run.agent_id,
        "session": run.session_key or run.session_id,
        "sender": run.sender,
        "channel": run.channel,
    }
    return ", ".join(f"{what} {name}" for what, name in names.items() if name)


def _words(label: str, text: str, width: int) -> list[str]:
    """A text that others chose, behind a label of ours."""
    first, *more = fold_words(label + one_line(text, MAX_WORDS), width - RULE)
    return [first, *(f"  ┆ {line}" for line in more)]


# ---- Who answers ----


class Desk(Approvals):
    """Approvals whose questions are put to the person at a terminal, one at a time.

    Args:
        ask_for: As for `Approvals`.
        terminal: Where the person is.
        paused: Keeps others off the terminal while a question stands there.

    Attributes:
        until: How long an `always` is remembered, for people.
        put_off: The person wants to decide later: nothing more is asked.
    """

    until = "this command ends"

    def __init__(
        self,
        *,
        ask_for: Callable[[Tool], bool],
        terminal: Terminal,
        paused: Callable[[], AbstractContextManager[None]],
    ) -> None:
        super().__init__(ask_for=ask_for, inputs="ask")
        self._terminal = terminal
        self._paused = paused
        self._waiting: deque[Question | InputQuestion] = deque()
        self._news = Notifier()
        self.put_off = False

    async def ask(self, question: Question) -> Resolution:
        """Waits for the answer, no longer than the question lives."""
        self._waiting.append(question)
        self._news.notify()
        try:
            return await super().ask(question)
        finally:
            self._news.notify()

    async def ask_input(self, question: InputQuestion) -> JsonObject | None:
        """Waits for what a tool wants to know, no longer than the question lives."""
        self._waiting.append(question)
        self._news.notify()
        return await super().ask_input(question)

    async def serve(self) -> None:
        """Puts the questions as they come, until somebody wants to decide later."""
        while not self.put_off:
            if not self._waiting:
                await self._news.wait()
                continue
            question = self._waiting.popleft()
            open_questions = (*self.pending(), *self.pending_inputs())
            if any(question.id == pending.id for pending in open_questions):
                with self._paused():
                    await self._put(question)

    async def cleared(self) -> None:
        """Waits until no question is open, or the person wants to decide later."""
        while self.pending() and not self.put_off:
            await self._news.wait()

    async def _put(self, question: Question | InputQuestion) -> None:
        answered = False
        try:
            with anyio.move_on_after(question.expires - time.time()):
                if isinstance(question, InputQuestion):
                    in_time = await self._fill_in(question)
                else:
                    in_time = await self._settle(question)
                answered = True
                if not in_time:
                    self._terminal.show("The answer came too late.\n")
        finally:
            if not answered:
                self._terminal.show("\nThe question is not open any more.\n")

    async def _fill_in(self, question: InputQuestion) -> bool:
        """Has a form filled in; whether the answer came in time."""
        terminal = self._terminal
        terminal.show(introduce(question, terminal.width - RULE))
        return self.answer(question.id, await fill_in(question, terminal.ask, terminal.show))

    async def _settle(self, question: Question) -> bool:
        """Has a call decided about; whether the answer came in time."""
        decision = await self._decide(question)
        if decision is None:
            self.put_off = True
            self._terminal.show("\nThe program is left waiting.\n")
            self._news.notify()
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
    """A desk whose questions may be answered elsewhere: those stand there no more."""

    def __init__(
        self,
        *,
        ask_for: Callable[[Tool], bool],
        terminal: Terminal,
        paused: Callable[[], AbstractContextManager[None]],
    ) -> None:
        super().__init__(ask_for=ask_for, terminal=terminal, paused=paused)
        self._standing = ""
        self._scope = anyio.CancelScope()

    async def ask(self, question: Question) -> Resolution:
        """Waits for the answer, wherever it is given."""
        try:
            return await super().ask(question)
        finally:
            self._take_away(question.id)

    async def ask_input(self, question: InputQuestion) -> JsonObject | None:
        """Waits for what a tool wants to know."""
        try:
            return await super().ask_input(question)
        finally:
            self._take_away(question.id)

    def _take_away(self, question_id: str) -> None:
        """A question that was answered elsewhere, or whose run has ended, stands there no more."""
        if self._standing == question_id:
            self._scope.cancel()

    async def _put(self, question: Question | InputQuestion) -> None:
        self._standing = question.id
        with anyio.CancelScope() as self._scope:
            await super()._put(question)
        self._standing = ""


@asynccontextmanager
async def attended(approvals: Approvals) -> AsyncIterator[None]:
    """Lets questions be put while the block runs, if there is somebody to put them to."""
    async with anyio.create_task_group() as tasks:
        if isinstance(approvals, Desk):
            tasks.start_soon(approvals.serve)
        yield
        tasks.cancel_scope.cancel()


async def decided(approvals: Approvals) -> bool:
    """Waits until no question is open. False: somebody wants to decide later."""
    if not isinstance(approvals, Desk):
        return True
    await approvals.cleared()
    return not approvals.put_off


def make_approvals(
    mode: Mode,
    *,
    later: bool,
    terminal: Terminal | None,
    paused: Callable[[], AbstractContextManager[None]],
    tell: Callable[[str], None],
    inputs: "Literal['ask', 'decline']" = "decline",
) -> Approvals:
    """Approvals for all tools that are not known to only read.

    Args:
        mode: `always` and `never` answer in a person's place.
        later: Nobody is asked now: the program is left waiting.
        terminal: Where a person is; without one, nothing that has to be asked about is allowed.
        paused: As for `Desk`.
        tell: Says why a call was refused.
        inputs: Whether somebody will come for what tools ask, if nobody is asked now.
    """

    def ask_for(tool: Tool) -> bool:
        return tool.effect != "read"

    def refuse(question: Question) -> Decision:
        name = one_line(question.tool_id, MAX_WORDS)
        tell(f"{name} needs approval, and there is no terminal to ask at: denied (see --approve)")
        return "deny"

    if mode != "ask":
        answer: Decision = "allow-once" if mode == "always" else "deny"
        return Approvals(ask_for=ask_for, approver=lambda question: answer, inputs=inputs)
    if later:
        return Approvals(ask_for=ask_for, inputs=inputs)
    if terminal is None:
        return Approvals(ask_for=ask_for, approver=refuse)
    return Desk(ask_for=ask_for, terminal=terminal, paused=paused)
