"""The input line of a chat: messages, commands and answers; and the chat as a channel."""

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
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
from clawmode.types import dataclass

READY = "> "
REDRAW_SECONDS = 0.05
CHANNEL = "terminal"


# ---- The input line ----


@dataclass(slots=True)
class _OpenQuestion:
    """A question that is shown in place of the prompt."""

    prompt: str
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: str | None = None

    def settle(self, answer: str | None) -> None:
        self.answer = answer
        self.answered.set()


class Prompt:
    """The input line at the bottom: messages, commands, and answers while a question is open.

    Args:
        screen: The terminal.
        history: The file that keeps earlier input.
        commands: Names of commands, with their slash; a command never answers a question.
        above: Returns the unfinished line of output, which is shown above the input.
        status: Returns the text below the input.
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
        self._question: _OpenQuestion | None = None
        self._on_line: Callable[[str], None] = lambda text: None
        self._on_interrupt: Callable[[bool], None] = lambda was_empty: None
        self._on_end: Callable[[], None] = lambda: None
        self._session: PromptSession[None] = PromptSession(
            self._message,
            history=open_history(history),
            completer=_CommandCompleter(commands),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            key_bindings=self._key_bindings(),
            bottom_toolbar=status,
            erase_when_done=True,
            input=screen.keys,
            output=screen.output,
        )
        self._session.app.min_redraw_interval = REDRAW_SECONDS
        self._buffer.accept_handler = self._accept

    def _message(self) -> StyleAndTextTuples:
        """Returns the text in front of the input."""
        if self._question is not None:
            return [("ansiyellow", self._question.prompt)]
        # While a question is about to be asked, `above` could pass for it.
        above = "" if self._screen.is_paused else self._above()
        return [("", f"{above}\n" if above else ""), ("ansicyan", READY)]

    def listen(
        self,
        *,
        line: Callable[[str], None],
        interrupt: Callable[[bool], None],
        end: Callable[[], None],
    ) -> None:
        """Sets the callbacks for lines, for Ctrl-C (True if the line was empty), and for Ctrl-D."""
        self._on_line, self._on_interrupt, self._on_end = line, interrupt, end

    async def run(self) -> bool:
        """Reads input until `close`; returns False if the terminal is gone."""
        try:
            await self._session.prompt_async(handle_sigint=False, set_exception_handler=False)
        except (EOFError, OSError):
            return False
        return True

    def close(self) -> None:
        """Ends the prompt; `run` then returns True."""
        if self._session.app.is_running and not self._session.app.is_done:
            self._session.app.exit()

    @property
    def has_question(self) -> bool:
        return self._question is not None

    def redraw(self) -> None:
        """Draws the input and the text below it again, soon."""
        self._session.app.invalidate()

    async def ask(self, prompt: str) -> str | None:
        """Shows a question in place of the prompt; returns the answer, or None for Ctrl-D.

        Text that was typed before the question appeared does not answer it: whole lines are sent as
        messages, and an unfinished line is restored afterwards.
        """
        await self._screen.shown()
        # `shown` cannot be cancelled. A question that was withdrawn meanwhile must not take a line.
        await checkpoint_if_cancelled()
        app = self._session.app
        if app.is_running:  # process the keys that were pressed until now
            app.key_processor.feed_multiple(self._screen.keys.read_keys())
            app.key_processor.process_keys()
        draft, self._question = self._buffer.document, (question := _OpenQuestion(prompt))
        self._buffer.reset()
        self.redraw()
        try:
            await question.answered.wait()
        finally:
            self._question = None
            self._buffer.reset(draft)
            self.redraw()
        return question.answer

    # ---- Keys ----

    @property
    def _buffer(self) -> Buffer:
        return self._session.default_buffer

    def _key_bindings(self) -> KeyBindings:
        keys = KeyBindings()
        is_empty = Condition(lambda: not self._buffer.text)

        @keys.add("escape", "enter")
        @keys.add("escape", "c-j")  # Enter, if it was pressed before the terminal was raw
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _(event: KeyPressEvent) -> None:
            self.interrupt()

        @keys.add("c-d", filter=is_empty)
        def _(event: KeyPressEvent) -> None:
            if self._question is None:
                self._on_end()
            else:
                self._question.settle(None)

        return keys

    def interrupt(self) -> None:
        """Handles Ctrl-C, from the keyboard or as a signal."""
        was_empty = not self._buffer.text
        self._buffer.reset()
        self._on_interrupt(was_empty)

    def _accept(self, buffer: Buffer) -> bool:
        text, question = buffer.text, self._question
        word = text.split(maxsplit=1)[0].lower() if text.strip() else ""
        if question is None or word in self._commands:
            if word:
                self._screen.say_now(READY + text.strip().replace("\n", "\n  "), CYAN)
                buffer.append_to_history()
                self._on_line(text)
        elif not question.answered.is_set():
            self._screen.say_now(question.prompt + text, YELLOW)
            question.settle(text.strip())
        buffer.reset()
        # True: prompt_toolkit must neither reset the buffer nor add answers to the history.
        return True


class _CommandCompleter(Completer):
    """Completes the names of commands at the start of a line."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterator[Completion]:
        typed = document.text_before_cursor
        if typed.startswith("/") and " " not in typed:
            fitting = (name for name in self._names if name.startswith(typed.lower()))
            yield from (Completion(f"{name} ", -len(typed)) for name in fitting)


class _ChatHistory(FileHistory):
    """A history file; the chat continues if it cannot be written."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def open_history(path: Path) -> History:
    """Opens the file of earlier input, which only its user can read; in memory if that fails."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(opened, 0o600)
        finally:
            os.close(opened)
    except OSError:
        return InMemoryHistory()
    return _ChatHistory(path)


class PromptTerminal:
    """A `QuestionTerminal`: shows questions above the prompt, and reads answers in its place."""

    def __init__(self, screen: Screen, prompt: Prompt) -> None:
        self._screen = screen
        self._prompt = prompt

    @property
    def width(self) -> int:
        return self._screen.width

    def show(self, text: str) -> None:
        self._screen.say_now(text.removesuffix("\n"))

    async def ask(self, prompt: str) -> str | None:
        return await self._prompt.ask(prompt)


# ---- The channel ----


class TerminalChannel:
    """The channel that delivers messages to the user at the terminal.

    Args:
        tell: Shows a message.
        answer: Shows the answer to a command.

    Attributes:
        answers: The target for answers to commands. It is random, so that no message of a run can
            pass for an answer.
    """

    name = CHANNEL
    can_edit = False
    block_streaming = False

    def __init__(self, tell: Callable[[str], None], answer: Callable[[str], None]) -> None:
        self.tell = tell
        self._answer = answer
        self._count = 0
        self.answers = f"answers-{uuid.uuid4().hex}"

    async def send(self, target: str, text: str) -> str:
        (self._answer if target == self.answers else self.tell)(text)
        self._count += 1
        return str(self._count)

    async def edit(self, target: str, message_id: str, text: str) -> None:
        raise NotImplementedError("`can_edit` is False: printed lines cannot change")
