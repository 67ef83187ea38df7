"""A conversation at the terminal: handles lines and keys, shows the status, and ends the chat.

The agent is a `Partner`: it runs in this process, or in a gateway.
"""

import difflib
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream

from clawmode.agent.events import AgentEvent, Listener
from clawmode.app.console import RED, wrap
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.messaging.inbox import How
from clawmode.messaging.slash import COMMANDS, tell_stopped
from clawmode.tasks import Notifier
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.chat_prompt import Prompt, PromptTerminal, TerminalChannel
from clawmode.terminal.chat_screen import Screen
from clawmode.terminal.chat_view import ChatView, LineWriter, MakeRunCalls
from clawmode.terminal.desk import Desk, make_approvals
from clawmode.text import one_line
from clawmode.tools.approvals import Approvals, Mode

HISTORY = "chat_history"
"""The file in the state folder that keeps earlier input."""

ENDS = ("/exit", "/quit")
NAMES = (*(f"/{name}" for name in COMMANDS), *ENDS)
HELP = "/exit, /quit  end the chat, like Ctrl-D; Ctrl-C stops runs; Alt-Enter inserts a new line"

AGAIN_SECONDS = 2.0
"""The time in which a second Ctrl-C ends the chat."""

MAX_NAME = 60
SHOWN_SECONDS = 2.0
LEAVE_SECONDS = 10.0
"""How long the chat may take to end after SIGHUP or SIGTERM; then the process exits."""


NOTES: dict[How, str] = {
    "steered": "(sent to the active run)",
    "queued": "(queued until the active run ends)",
    "dropped": "(dropped: too many messages wait)",
}


@dataclass(frozen=True, slots=True)
class Receipt:
    """What happened to a line that was sent.

    Attributes:
        how: Whether it started a run, waits, or was a command, for example.
        text: The answer, if the partner does not send it by itself.
    """

    how: How
    text: str = ""


class Partner(Protocol):
    """The agent that a chat talks with.

    The methods may raise `ClawmodeError`: the chat shows the error, or ends if `serve` raised it.
    """

    @property
    def trouble(self) -> str:
        """Why the agent cannot be reached now; empty if it can."""
        ...

    @property
    def waiting(self) -> int:
        """The number of messages that wait."""
        ...

    def subscribe(
        self, watch: Listener, tell: Callable[[str], None], changed: Callable[[], None]
    ) -> Callable[[], None]:
        """Starts to report what happens; returns a function that stops the reports.

        Args:
            watch: Receives the events of runs.
            tell: Receives messages that are not part of a run's reply.
            changed: Called when `trouble` or `waiting` has changed.
        """
        ...

    async def serve(self) -> None:
        """Runs as long as the chat, and is cancelled at its end."""
        ...

    async def model(self) -> str:
        """Returns the model that answers, as `provider/name`."""
        ...

    async def send(self, text: str) -> Receipt:
        """Sends a message or a command."""
        ...

    async def stop(self) -> int:
        """Stops the runs, and drops waiting messages; returns the number of runs."""
        ...

    async def leave(self, say: Callable[[str], None]) -> None:
        """Ends the conversation, and tells the user what happens to active runs."""
        ...


class Chat:
    """A conversation between the user and an agent.

    Args:
        screen: The terminal.
        history: The file that keeps earlier input.
        key: The key of the session.
        make_calls: Makes the view for the calls of a run.

    Attributes:
        terminal: Where questions are put.
        channel: Delivers messages to the user.
    """

    _partner: Partner  # from `run` on

    def __init__(self, screen: Screen, history: Path, key: str, make_calls: MakeRunCalls) -> None:
        self._screen = screen
        self._key = key
        self._view = ChatView(screen.say, lambda: screen.width, self._show_run_failure, make_calls)
        self._prompt = Prompt(
            screen, history, NAMES, above=lambda: self._view.part, status=self._status
        )
        self.terminal = PromptTerminal(screen, self._prompt)
        self.channel = TerminalChannel(self._show_message, self._show_answer)
        self._tasks: TaskGroup | None = None
        self._model = ""
        self._stopping = False
        self._stopped_at = -math.inf
        self._failure: ClawmodeError | None = None
        self._ending = anyio.Event()
        self._run_ended = Notifier()

    async def run(self, partner: Partner, desk: Desk | None) -> None:
        """Runs the conversation until the user leaves.

        Args:
            partner: The agent.
            desk: Puts questions at `terminal`; None if the user is not asked.

        Raises:
            ClawmodeError: The agent cannot be reached any more.
        """
        self._partner = partner
        await self._look_up_model()
        unsubscribe = partner.subscribe(self._watch, self._show_message, self._prompt.redraw)
        # Unbounded: the prompt must never wait for a command that takes long.
        typed, lines = anyio.create_memory_object_stream[str](math.inf)
        self._prompt.listen(line=typed.send_nowait, interrupt=self._interrupt, end=self._end)
        self._screen.say(f"{self._key} · {self._model}  (/help, Ctrl-D ends)")
        await self._screen.shown()
        with typed, lines:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._screen.serve)
                tasks.start_soon(self._serve)
                tasks.start_soon(self._handle_signals)
                tasks.start_soon(self._handle_lines, lines)
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
            await self._partner.serve()
        except ClawmodeError as error:  # the task group would wrap it in an ExceptionGroup
            self._failure = error
            self._prompt.close()

    # ---- Output ----

    def _watch(self, event: AgentEvent) -> None:
        if event.session_key == self._key:
            self._view.add(event)
            self._prompt.redraw()
            if not self._view.step:
                self._run_ended.notify()

    def _show_message(self, text: str) -> None:
        if self._view.is_new(text):
            writer = LineWriter(self._screen.say, lambda: self._screen.width)
            writer.add(text)
            writer.end()

    def _show_answer(self, text: str) -> None:
        self._screen.say_now(wrap(text, self._screen.width - 1))

    def _show_run_failure(self, text: str) -> None:
        self._screen.say(wrap(text, self._screen.width - 1), RED)

    def _show_error(self, error: ClawmodeError) -> None:
        self._screen.say_now(wrap(f"error: {error}", self._screen.width - 1), RED)

    def _status(self) -> str:
        """Returns the line below the prompt."""
        waiting = self._partner.waiting
        question = "waiting for your answer" if self._prompt.has_question else ""
        step = self._partner.trouble or question or self._view.step or "ready"
        queued = f"{waiting} message{'s' * (waiting != 1)} wait{'s' * (waiting == 1)}"
        parts = (self._key, self._model, step, queued if waiting else "")
        return " " + " · ".join(part for part in parts if part)

    async def _look_up_model(self) -> None:
        try:
            self._model = one_line(await self._partner.model(), MAX_NAME)
        except ClawmodeError as error:
            self._model = "no model"
            self._show_error(error)
        self._prompt.redraw()

    # ---- Input ----

    async def _handle_lines(self, lines: MemoryObjectReceiveStream[str]) -> None:
        async for line in lines:
            word = line.split(maxsplit=1)[0].lower()
            if word in ENDS:
                self._end()
            elif text := hint(line):
                self._screen.say_now(text)
            else:
                if word == "/stop":  # its answer must not split a line of the model
                    self._view.end_lines()
                try:
                    receipt = await self._partner.send(line.strip())
                    for note in filter(None, (receipt.text, NOTES.get(receipt.how))):
                        self._show_answer(note)
                except ClawmodeError as error:
                    self._show_error(error)
                if word in NAMES:  # the command may have changed the model
                    await self._look_up_model()
            if word == "/help":
                self._screen.say_now(HELP)

    # ---- The end ----

    def _interrupt(self, was_empty: bool) -> None:
        """Handles Ctrl-C: stops active runs; without any, a second Ctrl-C ends the chat."""
        if self._ending.is_set():
            self._prompt.close()
        elif self._tasks is not None:
            self._tasks.start_soon(self._stop, was_empty, time.monotonic())

    async def _stop(self, was_empty: bool, now: float) -> None:
        if text := await self._stop_runs():
            self._screen.say_now(text)
        elif now - self._stopped_at < AGAIN_SECONDS:
            self._end()
        else:
            self._stopped_at = now
            if was_empty:
                self._screen.say_now("(Ctrl-C again ends the chat)")

    async def _stop_runs(self) -> str:
        """Stops the runs and waits until their last lines are shown.

        Returns:
            What was stopped; empty if nothing was, or if another call is still stopping.
        """
        if self._stopping:
            return ""
        self._stopping = True
        try:
            waiting = self._partner.waiting
            count = await self._partner.stop()
            with anyio.move_on_after(SHOWN_SECONDS):
                while count and self._view.step:
                    await self._run_ended.wait()
            return tell_stopped(count, waiting)
        except ClawmodeError as error:
            self._show_error(error)
            return ""
        finally:
            self._stopping = False

    def _end(self) -> None:
        if self._ending.is_set():  # the second time: do not wait for runs to stop
            self._prompt.close()
        self._ending.set()

    async def _leave(self, lines: MemoryObjectReceiveStream[str]) -> None:
        await self._ending.wait()
        await self._partner.leave(self._screen.say_now)
        while lines.statistics().current_buffer_used:
            self._screen.say_now(f"Not sent: {lines.receive_nowait()}")
        with anyio.move_on_after(SHOWN_SECONDS):  # the terminal may be gone
            await self._screen.shown()
        self._prompt.close()

    async def _handle_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async for number in signals:
                if number == signal.SIGINT:
                    self._prompt.interrupt()
                else:
                    self._end()
                    # Writes to a terminal that is gone can block for ever.
                    late = threading.Timer(LEAVE_SECONDS, os._exit, (128 + number,))
                    late.daemon = True
                    late.start()


def hint(text: str) -> str:
    """Returns the hint for a text that looks like an unknown command; empty for a message."""
    given = text.split(maxsplit=1)[0]
    word = given.lower()
    is_path = not word[1:].isidentifier() or os.path.exists(given)
    if not word.startswith("/") or word in NAMES or is_path:
        return ""
    near = difflib.get_close_matches(word, NAMES, 1)
    meant = f"did you mean {near[0]}?" if near else "/help lists them."
    return f"There is no command {word[:MAX_NAME]}: {meant}"


# ---- The command ----


OpenPartner: TypeAlias = Callable[[Chat, Approvals], AbstractAsyncContextManager[Partner]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalChat:
    """The command `chat`.

    Attributes:
        state: The state folder.
        session: The conversation: a key or an id; empty for the main session.
        agent_id: The agent; empty for the default agent.
        model: The model from now on; empty for the present one.
        approve: Who decides about calls; None for the mode of the configuration.
    """

    state: Path
    session: str = ""
    agent_id: str = ""
    model: str = ""
    approve: Mode | None = None

    async def talk(
        self, screen: Screen, key: str, mode: Mode, until: str, open_partner: OpenPartner
    ) -> None:
        """Runs the conversation to its end.

        Args:
            screen: The terminal.
            key: The key of the session.
            mode: Who decides about calls.
            until: How long the answer `always` is remembered.
            open_partner: Opens the agent.
        """

        def make_calls() -> AgentView:
            return AgentView(None, live=False, summary=True)

        chat, desk = Chat(screen, self.state / HISTORY, key, make_calls), None
        if mode == "ask":
            desk = Desk(chat.terminal, screen.paused, until=until, in_chat=True)
        async with open_partner(chat, make_approvals(mode, desk, tell=screen.say)) as partner:
            await chat.run(partner, desk)


def reset_error(session_id: str, key: str) -> ConfigurationError:
    """Returns the error for an id of a conversation that is no longer the session's."""
    return ConfigurationError(f"the conversation {session_id} was reset: {key} has a new one")
