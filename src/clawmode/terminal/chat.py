"""A conversation at the terminal: handles lines and keys, shows the status, and ends the chat.

The agent is a `Partner`: it runs in this process, or in a gateway.
"""

import difflib
import gc
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream

from clawmode.agent.events import AgentEvent, Listener
from clawmode.agent.requests import AgentRequest
from clawmode.app.console import RED, printed_logs, wrap
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.messaging.inbox import How
from clawmode.messaging.slash import COMMANDS, tell_stopped
from clawmode.tasks import Notifier
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.chat_prompt import Prompt, PromptTerminal, TerminalChannel
from clawmode.terminal.chat_screen import Screen
from clawmode.terminal.chat_view import ChatView, LineWriter
from clawmode.terminal.desk import Desk, make_approvals
from clawmode.terminal.interrupts import interruptible, join_tool_threads
from clawmode.terminal.turn import Exchange
from clawmode.text import one_line
from clawmode.tools.approvals import Mode
from clawmode.types import dataclass

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


class Partner(Exchange[AgentRequest, AgentView], Protocol):
    """The agent that a chat talks with.

    The methods may raise `ClawmodeError`: the chat shows the error, or ends if `serve` raised it.
    """

    @property
    def opening(self) -> str:
        """What the chat shows until the agent can be reached."""
        ...

    @property
    def trouble(self) -> str:
        """Why the agent cannot be reached now; empty if it can."""
        ...

    @property
    def waiting(self) -> int:
        """The number of messages that wait."""
        ...

    def attach(
        self, watch: Listener, channel: TerminalChannel, changed: Callable[[], None]
    ) -> None:
        """Tells the partner, before `open`, where to report what happens.

        Args:
            watch: Receives the events of runs.
            channel: Delivers messages that are not part of a run's reply.
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


class Chat:
    """A conversation between the user and an agent.

    Args:
        screen: The terminal.
        history: The file that keeps earlier input.
        partner: The agent, not open yet.

    Attributes:
        terminal: Where questions are put.
    """

    def __init__(self, screen: Screen, history: Path, partner: Partner) -> None:
        def make_calls() -> AgentView:
            return AgentView(None, live=False, summary=True)

        self._screen = screen
        self._partner = partner
        self._key = ""
        self._view = ChatView(screen.say, lambda: screen.width, self._show_run_failure, make_calls)
        self._prompt = Prompt(
            screen, history, NAMES, above=lambda: self._view.part, status=self._status
        )
        self.terminal = PromptTerminal(screen, self._prompt)
        channel = TerminalChannel(self._show_message, self._show_answer)
        partner.attach(self._watch, channel, self._prompt.redraw)
        self._tasks: TaskGroup | None = None
        self._model = ""
        self._stopping = False
        self._stopped_at = -math.inf
        self._failure: ClawmodeError | None = None
        self._ending = anyio.Event()
        self._run_ended = Notifier()

    async def run(self, key: str, desk: Desk | None) -> None:
        """Runs the conversation until the user leaves.

        Args:
            key: The key of the session.
            desk: Puts questions at `terminal`; None if the user is not asked.

        Raises:
            ClawmodeError: The agent cannot be reached any more.
        """
        self._key = key
        await self._look_up_model()
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
                    await self._partner.leave(self._screen.say_now)
                tasks.cancel_scope.cancel()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalChat:
    """The command `chat`.

    Attributes:
        partner: The agent.
        state: The state folder.
        approve: Who decides about calls; None for the mode of the configuration.
    """

    partner: Partner
    state: Path
    approve: Mode | None = None

    def run(self, request: AgentRequest) -> None:
        """Runs the chat to its end.

        Args:
            request: The session, the agent, and the model from now on.

        Raises:
            ConfigurationError: The session, agent or model is invalid.
            ClawmodeError: The agent cannot be reached.
            KeyboardInterrupt: The user stopped it before the chat began.
        """
        view = AgentView(None, live=True, summary=False)
        with printed_logs(view.paused):
            try:
                mode = self.partner.prepare(request, view)
            finally:
                view.close(None)
            anyio.run(self._drive, request, self.approve or mode)
        join_tool_threads()
        gc.freeze()  # otherwise the interpreter collects garbage in all libraries before it exits

    async def _drive(self, request: AgentRequest, mode: Mode) -> None:
        desk = None
        async with interruptible():
            with Screen() as screen:
                screen.note(self.partner.opening)
                chat = Chat(screen, self.state / HISTORY, self.partner)
                if mode == "ask":
                    until = self.partner.until
                    desk = Desk(chat.terminal, screen.paused, until=until, in_chat=True)
                async with self.partner.open(make_approvals(mode, desk, tell=screen.say)):
                    session = await self.partner.start(request)
                    assert session is not None, "only a turn can be stopped while it starts"
                    await chat.run(session.session_key, desk)


def reset_error(session_id: str, key: str) -> ConfigurationError:
    """Returns the error for an id of a conversation that is no longer the session's."""
    return ConfigurationError(f"the conversation {session_id} was reset: {key} has a new one")
