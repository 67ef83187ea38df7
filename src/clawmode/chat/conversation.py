"""A conversation at the terminal: what becomes of lines and keys, and how it ends."""

import difflib
import getpass
import math
import os
import signal
import time
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from clawmode.agent.events import AgentEvent
from clawmode.agent.requests import AgentRequest
from clawmode.channels.base import Inbound
from clawmode.chat.inbox import How
from clawmode.chat.screen import Screen
from clawmode.chat.slash import COMMANDS
from clawmode.chat.terminal import CHANNEL, ChatDesk, Prompt, Seat, TerminalChannel
from clawmode.chat.view import ChatView
from clawmode.exceptions import ClawmodeError
from clawmode.host import Host
from clawmode.terminal import one_line

TARGET = "you"
ENDS = ("/exit", "/quit")
NAMES = (*(f"/{name}" for name in COMMANDS), *ENDS)
HELP = "/exit, /quit  end the chat, as Ctrl-D does; Ctrl-C stops what runs; Alt-Enter: a new line"

AGAIN_SECONDS = 2.0
"""Within which a second Ctrl-C ends the chat."""

LEAVE_SECONDS = 10.0
"""How long a run may take to be stopped."""

MAX_NAME = 60

NOTES: dict[How, str] = {
    "steered": "(said to the run that goes on)",
    "queued": "(waits for the run that goes on)",
    "dropped": "(dropped: too many messages wait)",
}


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
        self._view = ChatView(screen.say, lambda: screen.width)
        self._prompt = Prompt(screen, history, NAMES, self._status)
        self.seat = Seat(screen, self._prompt)
        self.channel = TerminalChannel(self._tell)
        self._sender = _login()
        self._host: Host | None = None
        self._model = ""
        self._obeys = False
        self._stopped_at = -math.inf
        self._ending = anyio.Event()

    async def run(self, host: Host, desk: ChatDesk | None) -> None:
        """Talks, until the person has had enough; what runs then is stopped."""
        self._host = host
        await self._look_up_model()
        unsubscribe = host.runtime.subscribe(self._watch)
        typed, lines = anyio.create_memory_object_stream[str](math.inf)
        self._prompt.listen(line=typed.send_nowait, interrupt=self._interrupt, end=self._end)
        self._screen.say(f"{self._key} · {self._model}  (/help, Ctrl-D ends)")
        await self._screen.shown()
        with typed, lines:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._screen.serve)
                tasks.start_soon(self._heed_signals)
                tasks.start_soon(self._take_lines, lines)
                tasks.start_soon(self._leave)
                if desk is not None:
                    tasks.start_soon(desk.serve)
                if not await self._prompt.run():
                    await self._stop()
                tasks.cancel_scope.cancel()
        unsubscribe()

    # ---- What is shown ----

    def _watch(self, event: AgentEvent) -> None:
        if event.session_key == self._key:
            self._view.take(event)
            self._prompt.redraw()

    def _tell(self, text: str) -> None:
        """What was sent. The answer to a command is shown whatever is held back."""
        if self._view.is_new(text):
            (self._screen.say_now if self._obeys else self._screen.say)(text)

    def _status(self) -> str:
        """What stands below the prompt."""
        waiting = 0 if self._host is None else len(self._host.inbox.waiting(self._key))
        doing = "your answer is waited for" if self._prompt.asks else self._view.doing
        wait = f"{waiting} message{'s' * (waiting != 1)} wait{'s' * (waiting == 1)}"
        parts = (self._key, self._model, doing or "ready", wait if waiting else "")
        first = " · ".join(part for part in parts if part)
        part = "" if self._prompt.asks else self._view.part
        return f" {first}\n {part}" if part else f" {first}"

    async def _look_up_model(self) -> None:
        runtime = self._running.runtime
        try:
            session = await runtime.sessions.get(self._key)
            request = AgentRequest(session_key=self._key)
            model = (await runtime.settings(request, session)).models[0]
            self._model = one_line(f"{model.provider}/{model.name}", MAX_NAME)
        except ClawmodeError as error:
            self._model = "no model"
            self._screen.say_now(str(error))
        self._prompt.redraw()

    # ---- What is typed ----

    @property
    def _running(self) -> Host:
        assert self._host is not None, "a chat runs in a host"
        return self._host

    async def _take_lines(self, lines: MemoryObjectReceiveStream[str]) -> None:
        async for line in lines:
            word = line.split(maxsplit=1)[0].lower()
            if word in ENDS:
                self._end()
            elif said := hint(line):
                self._screen.say_now(said)
            else:
                await self._receive(line, is_command=word in NAMES)
            if word == "/help":
                self._screen.say_now(HELP)

    async def _receive(self, line: str, *, is_command: bool) -> None:
        message = Inbound(
            channel=CHANNEL,
            target=TARGET,
            sender=self._sender,
            session_key=self._key,
            operator=True,
            text=line.strip(),
        )
        self._obeys = is_command
        try:
            taken = await self._running.inbox.receive(message)
        except ClawmodeError as error:
            self._screen.say_now(str(error))
        else:
            if note := NOTES.get(taken.how):
                self._screen.say_now(note)
        finally:
            self._obeys = False
        if is_command:
            await self._look_up_model()

    # ---- The end ----

    def _interrupt(self, was_empty: bool) -> None:
        """Ctrl-C: stops what runs; else a second one ends the chat."""
        now = time.monotonic()
        if self._ending.is_set():
            self._prompt.close()
        elif count := self._running.inbox.stop(self._key):
            self._screen.say_now(f"Stopped: {count}.")
        elif now - self._stopped_at < AGAIN_SECONDS:
            self._end()
        else:
            self._stopped_at = now
            if was_empty:
                self._screen.say_now("(Ctrl-C again ends the chat)")

    def _end(self) -> None:
        if self._ending.is_set():  # asked for twice: not even what runs is waited for
            self._prompt.close()
        self._ending.set()

    async def _leave(self) -> None:
        await self._ending.wait()
        await self._stop()
        await self._screen.shown()
        self._prompt.close()

    async def _stop(self) -> None:
        """Stops what runs here, and waits until that is written down."""
        runs = self._running.runtime.under_way(self._key)
        if runs:
            self._screen.say_now("The run that goes on is stopped.")
        self._running.inbox.stop(self._key)
        with anyio.move_on_after(LEAVE_SECONDS):
            for run in runs:
                await run.ended.wait()

    async def _heed_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async for number in signals:
                if number == signal.SIGINT:
                    self._prompt.interrupt()
                else:
                    self._end()


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


def _login() -> str:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return "operator"
