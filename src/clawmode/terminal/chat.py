"""A conversation at the terminal: what becomes of lines and keys, and how it ends."""

import difflib
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream

from clawmode.agent.events import AgentEvent, Listener
from clawmode.app.console import RED, wrap
from clawmode.exceptions import ClawmodeError
from clawmode.messaging.inbox import How
from clawmode.messaging.slash import COMMANDS, tell_stopped
from clawmode.tasks import Notifier
from clawmode.terminal.chat_prompt import ChatDesk, Prompt, Seat, TerminalChannel
from clawmode.terminal.chat_screen import Screen
from clawmode.terminal.chat_view import ChatView, Words
from clawmode.text import one_line

HISTORY = "chat_history"
"""What was typed, in the folder of the state."""

ENDS = ("/exit", "/quit")
NAMES = (*(f"/{name}" for name in COMMANDS), *ENDS)
HELP = "/exit, /quit  end the chat, as Ctrl-D does; Ctrl-C stops what runs; Alt-Enter: a new line"

AGAIN_SECONDS = 2.0
"""Within which a second Ctrl-C ends the chat."""

MAX_NAME = 60
SHOWN_SECONDS = 2.0
LEAVE_SECONDS = 10.0
"""How long it may take to leave when the terminal is gone, or the process is to end."""


NOTES: dict[How, str] = {
    "steered": "(said to the run that goes on)",
    "queued": "(waits for the run that goes on)",
    "dropped": "(dropped: too many messages wait)",
}


@dataclass(frozen=True, slots=True)
class Heard:
    """What became of a line.

    Attributes:
        text: What it is answered with, if that does not come by itself.
    """

    how: How
    text: str = ""


class Partner(Protocol):
    """Whom a chat talks with: an agent of this process, or of a gateway.

    What is asked of it may raise `ClawmodeError`, which is shown; from `serve` it ends the chat.
    """

    @property
    def trouble(self) -> str:
        """Why it cannot be talked with now; empty if it can."""
        ...

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        ...

    def subscribe(
        self, watch: Listener, tell: Callable[[str], None], changed: Callable[[], None]
    ) -> Callable[[], None]:
        """Wants to see what runs do, to be told what is said beside, and when the rest changes."""
        ...

    async def serve(self) -> None:
        """Does what is to be done while the chat goes on. It is cancelled at its end."""
        ...

    async def model(self) -> str:
        """Who answers."""
        ...

    async def receive(self, text: str) -> Heard:
        """Says something, or gives a command."""
        ...

    async def stop(self) -> int:
        """Stops what runs, and drops what waits; how many that were."""
        ...

    async def leave(self, say: Callable[[str], None]) -> None:
        """Does what is to be done at the end, and says what becomes of what runs."""
        ...


class Chat:
    """A person and an agent.

    Args:
        screen: The terminal.
        history: The file that remembers what was typed.
        key: The session.
    """

    def __init__(self, screen: Screen, history: Path, key: str) -> None:
        self._screen = screen
        self._key = key
        self._view = ChatView(screen.say, lambda: screen.width, self._tell_failure)
        self._prompt = Prompt(
            screen, history, NAMES, above=lambda: self._view.part, status=self._status
        )
        self.seat = Seat(screen, self._prompt)
        self.channel = TerminalChannel(self._tell, self._answer)
        self._partner: Partner | None = None
        self._tasks: TaskGroup | None = None
        self._model = ""
        self._stopping = False
        self._stopped_at = -math.inf
        self._failure: ClawmodeError | None = None
        self._ending = anyio.Event()
        self._run_ended = Notifier()

    async def run(self, partner: Partner, desk: ChatDesk | None) -> None:
        """Talks, until the person has had enough.

        Raises:
            ClawmodeError: It cannot go on.
        """
        self._partner = partner
        await self._look_up_model()
        unsubscribe = partner.subscribe(self._watch, self._tell, self._prompt.redraw)
        typed, lines = anyio.create_memory_object_stream[str](math.inf)
        self._prompt.listen(line=typed.send_nowait, interrupt=self._interrupt, end=self._end)
        self._screen.say(f"{self._key} · {self._model}  (/help, Ctrl-D ends)")
        await self._screen.shown()
        with typed, lines:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._screen.serve)
                tasks.start_soon(self._serve)
                tasks.start_soon(self._heed_signals)
                tasks.start_soon(self._take_lines, lines)
                tasks.start_soon(self._leave, lines)
                if desk is not None:
                    tasks.start_soon(desk.serve)
                if not await self._prompt.run():
                    await partner.leave(self._screen.say_now)
                tasks.cancel_scope.cancel()
        unsubscribe()
        if self._failure is not None:
            raise self._failure

    async def _serve(self) -> None:
        try:
            await self._talks_with.serve()
        except ClawmodeError as error:  # else it would come out in a group
            self._failure = error
            self._prompt.close()

    # ---- What is shown ----

    def _watch(self, event: AgentEvent) -> None:
        if event.session_key == self._key:
            self._view.take(event)
            self._prompt.redraw()
            if not self._view.doing:
                self._run_ended.notify()

    def _tell(self, text: str) -> None:
        if self._view.is_new(text):
            words = Words(self._screen.say, lambda: self._screen.width)
            words.add(text)
            words.end()

    def _answer(self, text: str) -> None:
        self._screen.say_now(wrap(text, self._screen.width - 1))

    def _tell_failure(self, text: str) -> None:
        self._screen.say(wrap(text, self._screen.width - 1), RED)

    def _tell_error(self, error: ClawmodeError) -> None:
        self._screen.say_now(wrap(f"error: {error}", self._screen.width - 1), RED)

    def _status(self) -> str:
        """What stands below the prompt."""
        waiting = 0 if self._partner is None else self._partner.waiting
        trouble = "" if self._partner is None else self._partner.trouble
        asked = "your answer is waited for" if self._prompt.asks else ""
        doing = trouble or asked or self._view.doing
        wait = f"{waiting} message{'s' * (waiting != 1)} wait{'s' * (waiting == 1)}"
        parts = (self._key, self._model, doing or "ready", wait if waiting else "")
        return " " + " · ".join(part for part in parts if part)

    async def _look_up_model(self) -> None:
        try:
            self._model = one_line(await self._talks_with.model(), MAX_NAME)
        except ClawmodeError as error:
            self._model = "no model"
            self._tell_error(error)
        self._prompt.redraw()

    # ---- What is typed ----

    @property
    def _talks_with(self) -> Partner:
        assert self._partner is not None, "a chat is run with a partner"
        return self._partner

    async def _take_lines(self, lines: MemoryObjectReceiveStream[str]) -> None:
        async for line in lines:
            word = line.split(maxsplit=1)[0].lower()
            if word in ENDS:
                self._end()
            elif said := hint(line):
                self._screen.say_now(said)
            else:
                if word == "/stop":  # its answer is not to stand in the middle of a sentence
                    self._view.end_lines()
                await self._receive(line, is_command=word in NAMES)
            if word == "/help":
                self._screen.say_now(HELP)

    async def _receive(self, line: str, *, is_command: bool) -> None:
        try:
            heard = await self._talks_with.receive(line.strip())
        except ClawmodeError as error:
            self._tell_error(error)
        else:
            for note in (heard.text, NOTES.get(heard.how, "")):
                if note:
                    self._answer(note)
        if is_command:
            await self._look_up_model()

    # ---- The end ----

    def _interrupt(self, was_empty: bool) -> None:
        """Ctrl-C: stops what runs; else a second one ends the chat."""
        if self._ending.is_set():
            self._prompt.close()
        elif self._tasks is not None:
            self._tasks.start_soon(self._stop, was_empty, time.monotonic())

    async def _stop(self, was_empty: bool, now: float) -> None:
        if told := await self._stop_all():
            self._screen.say_now(told)
        elif now - self._stopped_at < AGAIN_SECONDS:
            self._end()
        else:
            self._stopped_at = now
            if was_empty:
                self._screen.say_now("(Ctrl-C again ends the chat)")

    async def _stop_all(self) -> str:
        """Stops what runs, and waits until its last line is shown; says what was stopped.

        While that is waited for, there is nothing else to be stopped.
        """
        if self._stopping:
            return ""
        self._stopping = True
        try:
            waiting = self._talks_with.waiting
            count = await self._talks_with.stop()
            with anyio.move_on_after(SHOWN_SECONDS):
                while count and self._view.doing:
                    await self._run_ended.wait()
            return tell_stopped(count, waiting)
        except ClawmodeError as error:
            self._tell_error(error)
            return ""
        finally:
            self._stopping = False

    def _end(self) -> None:
        if self._ending.is_set():  # asked for twice: not even what runs is waited for
            self._prompt.close()
        self._ending.set()

    async def _leave(self, lines: MemoryObjectReceiveStream[str]) -> None:
        await self._ending.wait()
        await self._talks_with.leave(self._screen.say_now)
        while lines.statistics().current_buffer_used:
            self._screen.say_now(f"Not sent: {lines.receive_nowait()}")
        with anyio.move_on_after(SHOWN_SECONDS):  # the terminal may be gone
            await self._screen.shown()
        self._prompt.close()

    async def _heed_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async for number in signals:
                if number == signal.SIGINT:
                    self._prompt.interrupt()
                else:
                    self._end()
                    # A terminal that is gone takes nothing, and lets go of nobody.
                    late = threading.Timer(LEAVE_SECONDS, os._exit, (128 + number,))
                    late.daemon = True
                    late.start()


def hint(text: str) -> str:
    """What to say about a text that looks like a command and is none; empty: it is a message."""
    given = text.split(maxsplit=1)[0]
    word = given.lower()
    is_path = not word[1:].isidentifier() or os.path.exists(given)
    if not word.startswith("/") or word in NAMES or is_path:
        return ""
    near = difflib.get_close_matches(word, NAMES, 1)
    meant = f"did you mean {near[0]}?" if near else "/help lists them."
    return f"There is no command {word[:MAX_NAME]}: {meant}"
