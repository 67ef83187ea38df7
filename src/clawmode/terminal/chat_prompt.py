"""The person at the terminal: what they type, what they are asked, and what they are sent."""

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle

from clawmode.app.console import CYAN, YELLOW
from clawmode.terminal.chat_screen import Screen
from clawmode.terminal.desk import SharedDesk, Terminal
from clawmode.tools.approvals import Question
from clawmode.tools.tool import Tool

READY = "> "
REDRAW_SECONDS = 0.05
CHANNEL = "terminal"


# ---- What they type ----


@dataclass(slots=True)
class _Asked:
    """A question that stands in the place of the prompt."""

    prompt: str
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: str | None = None

    def settle(self, answer: str | None) -> None:
        self.answer = answer
        self.answered.set()


class Prompt:
    """The line at the bottom: messages, commands, and answers while a question stands there.

    Args:
        screen: Where.
        history: The file that remembers what was typed.
        commands: Names of commands, with their slash: they are no answers.
        above: The line that is being written above it.
        status: What stands below the line.
    """

    def __init__(
        self,
        screen: Screen,
        history: Path,
        commands: Sequence[str],
        *,
        above: Callable[[], str],
        status: Callable[[], str],
    ) -> None:
        self._screen = screen
        self._above = above
        self._commands = commands
        self._asked: _Asked | None = None
        self._on_line: Callable[[str], None] = lambda text: None
        self._on_interrupt: Callable[[bool], None] = lambda was_empty: None
        self._on_end: Callable[[], None] = lambda: None
        self._session: PromptSession[None] = PromptSession(
            self._message,
            history=open_history(history),
            completer=_Commands(commands),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            key_bindings=self._keys(),
            bottom_toolbar=status,
            erase_when_done=True,
            input=screen.keys,
            output=screen.output,
        )
        self._session.app.min_redraw_interval = REDRAW_SECONDS
        self._buffer.accept_handler = self._accept

    def _message(self) -> StyleAndTextTuples:
        """What stands before the text that is typed."""
        if self._asked is not None:  # above a question is nothing that could pass for its words
            return [("ansiyellow", self._asked.prompt)]
        above = self._above()
        return [("", f"{above}\n" if above else ""), ("ansicyan", READY)]

    def listen(
        self,
        *,
        line: Callable[[str], None],
        interrupt: Callable[[bool], None],
        end: Callable[[], None],
    ) -> None:
        """Says who is told of lines, of Ctrl-C (whether the line was empty), and of Ctrl-D."""
        self._on_line, self._on_interrupt, self._on_end = line, interrupt, end

    async def run(self) -> bool:
        """Takes what is typed, until it is closed. False: the terminal is gone."""
        try:
            await self._session.prompt_async(handle_sigint=False, set_exception_handler=False)
        except (EOFError, OSError):
            return False
        return True

    def close(self) -> None:
        """Ends it."""
        if self._session.app.is_running and not self._session.app.is_done:
            self._session.app.exit()

    @property
    def asks(self) -> bool:
        """Whether a question stands there."""
        return self._asked is not None

    def redraw(self) -> None:
        """Something has changed of what stands below the line."""
        self._session.app.invalidate()

    async def ask(self, question: str) -> str | None:
        """Puts a question in the place of the prompt; the answer, or None for Ctrl-D.

        What was typed before it stood there is no answer: lines are messages, and the line that was
        begun comes back afterwards.
        """
        await self._screen.shown()
        self._take_typed()
        draft, self._asked = self._buffer.document, (asked := _Asked(question))
        self._buffer.reset()
        self.redraw()
        try:
            await asked.answered.wait()
        finally:
            self._asked = None
            self._buffer.reset(draft)
            self.redraw()
        return asked.answer

    # ---- Keys ----

    @property
    def _buffer(self) -> Buffer:
        return self._session.default_buffer

    def _take_typed(self) -> None:
        """Takes the keys that were pressed by now."""
        app = self._session.app
        if app.is_running:
            app.key_processor.feed_multiple(self._screen.keys.read_keys())
            app.key_processor.process_keys()

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        is_empty = Condition(lambda: not self._buffer.text)

        @keys.add("escape", "enter")
        @keys.add("escape", "c-j")  # typed before there was a prompt
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _(event: KeyPressEvent) -> None:
            self.interrupt()

        @keys.add("c-d", filter=is_empty)
        def _(event: KeyPressEvent) -> None:
            if self._asked is None:
                self._on_end()
            else:
                self._asked.settle(None)

        return keys

    def interrupt(self) -> None:
        """Ctrl-C, by whatever way it came."""
        was_empty = not self._buffer.text
        self._buffer.reset()
        self._on_interrupt(was_empty)

    def _accept(self, buffer: Buffer) -> bool:
        text, asked = buffer.text, self._asked
        word = text.split(maxsplit=1)[0].lower() if text.strip() else ""
        if asked is None or word in self._commands:
            if word:
                self._screen.say_now(READY + text.strip().replace("\n", "\n  "), CYAN)
                buffer.append_to_history()
                self._on_line(text)
        elif not asked.answered.is_set():
            self._screen.say_now(asked.prompt + text, YELLOW)
            asked.settle(text.strip())
        buffer.reset()
        return True  # it is done already, and answers are not remembered


class _Commands(Completer):
    """Completes the names of commands."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterator[Completion]:
        """Those that begin with what was typed, if nothing stands before it."""
        typed = document.text_before_cursor
        if typed.startswith("/") and " " not in typed:
            fitting = (name for name in self._names if name.startswith(typed.lower()))
            yield from (Completion(f"{name} ", -len(typed)) for name in fitting)


class _Remembered(FileHistory):
    """What was typed, in a file. One that cannot be written is no reason to stop."""

    def store_string(self, string: str) -> None:
        """Adds a line."""
        with suppress(OSError):
            super().store_string(string)


def open_history(path: Path) -> History:
    """What was typed before; the file is nobody else's to read."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(opened, 0o600)
        finally:
            os.close(opened)
    except OSError:
        return InMemoryHistory()
    return _Remembered(path)


# ---- What they are asked ----


class Seat(Terminal):
    """The terminal as questions see it: shown above the prompt, answered in its place."""

    def __init__(self, screen: Screen, prompt: Prompt) -> None:
        self._screen = screen
        self._prompt = prompt

    @property
    def width(self) -> int:
        """In columns."""
        return self._screen.width

    def show(self, text: str) -> None:
        """Shows lines."""
        self._screen.say_now(text.removesuffix("\n"))

    async def ask(self, prompt: str) -> str | None:
        """The line that answers; None for Ctrl-D."""
        return await self._prompt.ask(prompt)


class ChatDesk(SharedDesk):
    """Approvals whose questions are put in a chat, and can be decided about by commands too."""

    def __init__(self, seat: Seat, paused: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__(ask_for=_may_change, terminal=seat, paused=paused)

    async def _settle(self, question: Question) -> bool:
        decision = await self._decide(question)
        if decision is not None:
            return self.resolve(question.id, decision)
        choices = "allow-once|allow-always|deny"
        self._terminal.show(f"It waits for: /approve {question.id} {choices}\n")
        return True


def _may_change(tool: Tool) -> bool:
    return tool.effect != "read"


# ---- What they are sent ----


class TerminalChannel:
    """The way out to the person at the terminal.

    Args:
        tell: Shows a message.
        answer: Shows the answer to a command.

    Attributes:
        answers: Where answers to commands go. No run knows it: what it sends cannot pass for one.
    """

    name = CHANNEL
    can_edit = False
    block_streaming = False

    def __init__(self, tell: Callable[[str], None], answer: Callable[[str], None]) -> None:
        self._tell = tell
        self._answer = answer
        self._count = 0
        self.answers = f"answers-{uuid.uuid4().hex}"

    async def send(self, target: str, text: str) -> str:
        """Shows a message; whoever is meant sits here."""
        (self._answer if target == self.answers else self._tell)(text)
        self._count += 1
        return str(self._count)

    async def edit(self, target: str, message_id: str, text: str) -> None:
        """Never asked for: what was printed stays."""
        raise NotImplementedError
