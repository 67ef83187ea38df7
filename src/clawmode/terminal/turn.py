"""One turn of an agent at a terminal: its output, its logs, its questions, and its end.

A `Turn` runs in this process or in a gateway; `TerminalTurn` shows either in the same way.
"""

import gc
import logging
import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import anyio

from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.app.console import RED, YELLOW, ProgramOutput, print_stderr, wrap
from clawmode.app.setup import Options
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.desk import Desk, make_approvals
from clawmode.terminal.interrupts import interruptible, join_tool_threads
from clawmode.tools.approvals import Approvals, Mode
from clawmode.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    """A run that has begun, and that may be left waiting for a decision of the user."""

    run_id: str
    session_key: str
    session_id: str

    def to_json(self) -> JsonObject:
        return {
            "runId": self.run_id,
            "sessionKey": self.session_key,
            "sessionId": self.session_id,
            "status": "waiting",
        }


class Turn(Protocol):
    """One turn of an agent. The methods are called in this order, each of them once.

    Any of them may raise `ClawmodeError`, for example if the request is invalid.
    """

    @property
    def until(self) -> str:
        """How long the answer `always` to a question is remembered, as text."""
        ...

    def prepare(self, request: AgentRequest, view: AgentView) -> Mode:
        """Prepares the turn before the event loop runs; returns who decides about calls.

        Args:
            request: The request.
            view: Shows the run, from now on.
        """
        ...

    def open(self, approvals: Approvals) -> AbstractAsyncContextManager[object]:
        """Opens the agent, or the connection to it, inside of the block."""
        ...

    async def start(self, request: AgentRequest) -> WaitingRun | None:
        """Starts the turn; None if the user stopped it first."""
        ...

    async def result(self) -> RunResult:
        """Waits for the end of the turn; its events go to the view, its questions to approvals."""
        ...

    async def stop(self) -> None:
        """Aborts the turn; `result` then returns."""
        ...

    async def leave(self) -> bool:
        """Called when the user wants to decide later; False if the turn cannot wait for that."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalTurn:
    """Runs a turn, and shows it at a terminal.

    Attributes:
        turn: The turn.
        options: The user's options, for the command that resumes the run.
        out: Where the reply goes.
        view: Shows the run.
        approve: Who decides about calls; None for the mode of the configuration.
        as_json: Print the result as JSON instead of the reply.
        stdin_is_taken: True if the message was read from stdin, so answers cannot be.
    """

    turn: Turn
    options: Options
    out: ProgramOutput
    view: AgentView
    approve: Mode | None = None
    as_json: bool = False
    stdin_is_taken: bool = False

    def run(self, request: AgentRequest) -> RunResult | None:
        """Runs a turn and shows it; None if the user decides later and the run is left waiting.

        Raises:
            ConfigurationError: The request or the configuration is invalid; nothing ran.
            KeyboardInterrupt: The run was stopped.
        """
        result: RunResult | None = None
        with printed_logs(self.view):
            try:
                mode = self.turn.prepare(request, self.view)
                ended = anyio.run(self._drive, request, self.approve or mode)
                result = ended if isinstance(ended, RunResult) else None
            finally:
                self.view.close(result)
        if self.as_json:
            self.out.json(ended.to_json())
        if isinstance(ended, WaitingRun):
            print_stderr("waiting (approval); resume with:", YELLOW)
            print_stderr(f"  {self._resume_command(ended, request)}")
            return None
        if ended.status == "aborted":
            raise KeyboardInterrupt  # the exit status is 130, as after Ctrl-C anywhere else
        if ended.error is not None and not self.as_json:
            text = f"{ended.status}: {ended.error}"
            try:
                text = wrap(text, os.get_terminal_size(2).columns - 1)
            except OSError:
                pass  # stderr is not a terminal
            print_stderr(text, RED)
        join_tool_threads()
        gc.freeze()  # otherwise the interpreter collects garbage in all libraries before it exits
        return ended

    async def _drive(self, request: AgentRequest, mode: Mode) -> RunResult | WaitingRun:
        desk = None
        if mode == "ask":
            taken = self.stdin_is_taken
            desk = Desk.at_terminal(self.view.paused, stdin_is_taken=taken, until=self.turn.until)
        ended: RunResult | WaitingRun | None = None
        async with interruptible(), self.turn.open(make_approvals(mode, desk)):
            run = await self.turn.start(request)
            if run is not None:
                ended = await self._follow(desk) or run
        if ended is None:  # raised here: inside of `interruptible` it would be wrapped
            raise KeyboardInterrupt
        return ended

    async def _follow(self, desk: Desk | None) -> RunResult | None:
        """Waits for the end of the turn; returns None if the user wants to decide later."""
        result: RunResult | None = None
        failure: Exception | None = None

        async def put_questions(desk: Desk) -> None:
            await desk.serve()
            if await self.turn.leave():
                tasks.cancel_scope.cancel()

        async def stop_on_signal() -> None:
            # The first Ctrl-C aborts the run, and records that; a second one ends the command.
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    break
            await self.turn.stop()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop_on_signal)
            if desk is not None:
                tasks.start_soon(put_questions, desk)
            try:
                result = await self.turn.result()
            except Exception as error:  # the task group would wrap it in an ExceptionGroup
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return result

    def _resume_command(self, run: WaitingRun, request: AgentRequest) -> str:
        """Returns the shell command that resumes a run, for use in the same folder."""
        words = shlex.split(self.options.resume_command(run.run_id))
        at = words.index("wait")
        given = {"--model": request.model, "--thinking": request.thinking}
        words[at : at + 2] = ["agent", "--continue", run.run_id, "--session", run.session_key]
        words += [word for option, value in given.items() if value for word in (option, value)]
        return shlex.join(words)


# ---- Logs ----


class _LogPrinter(logging.Handler):
    """Prints log records on stderr: one escaped line each, without tracebacks."""

    def __init__(self, view: AgentView) -> None:
        super().__init__()
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "clawmode.mcp" and record.levelno == logging.WARNING:
            return  # `open_servers` and calls report a server that cannot be reached
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        with self._view.paused():
            print_stderr(f"{record.name}: {text}")


@contextmanager
def printed_logs(view: AgentView) -> Iterator[None]:
    """Prints the log of the block on stderr, between the output of the view."""
    logger = logging.getLogger("clawmode")
    handler = _LogPrinter(view)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
