"""One turn at a terminal: its output, its logs, its questions, and its end.

A `Turn` is a cell, or a turn of an agent in this process or in a gateway; `TerminalTurn` shows each
of them in the same way.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

import anyio

from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.app.console import YELLOW, ProgramOutput, print_note, print_stderr, printed_logs
from clawmode.app.setup import Options
from clawmode.code_mode.results import CodeModeResult
from clawmode.tasks import background_tasks
from clawmode.terminal.desk import Desk, make_approvals
from clawmode.terminal.interrupts import interruptible, join_tool_threads
from clawmode.tools.approvals import Approvals, Mode
from clawmode.types import JsonObject, dataclass


class TurnView(Protocol):
    """Shows a turn while it runs."""

    def paused(self) -> AbstractContextManager[None]:
        """Shows nothing while the block runs."""
        ...

    def close(self, result: Any) -> None:
        """Ends the output, and shows the result; None if there is none."""
        ...


Request = TypeVar("Request")
View = TypeVar("View", bound=TurnView)
Result = TypeVar("Result", bound=RunResult | CodeModeResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    """A run that has begun, and that may be left waiting for a decision of the user."""

    request: AgentRequest
    run_id: str
    session_key: str
    session_id: str
    status = "waiting"
    reason = "approval"

    @property
    def resume_words(self) -> list[str]:
        """The command that resumes the run, without the options of `Options`."""
        given = {"--model": self.request.model, "--thinking": self.request.thinking}
        options = [word for option, value in given.items() if value for word in (option, value)]
        return ["agent", "--continue", self.run_id, "--session", self.session_key, *options]

    def to_json(self) -> JsonObject:
        return {
            "runId": self.run_id,
            "sessionKey": self.session_key,
            "sessionId": self.session_id,
            "status": self.status,
        }


class Exchange(Protocol[Request, View]):
    """A turn, or a conversation. The methods are called in this order.

    Any of them may raise `ClawmodeError`, for example if the request is invalid.
    """

    @property
    def until(self) -> str:
        """How long the answer `always` to a question is remembered, as text."""
        ...

    def prepare(self, request: Request, view: View) -> Mode:
        """Prepares the turn before the event loop runs; returns who decides about calls.

        Args:
            request: The request.
            view: Shows the run, from now on.
        """
        ...

    def open(self, approvals: Approvals) -> AbstractAsyncContextManager[object]:
        """Opens the agent, or the connection to it, inside of the block."""
        ...

    async def start(self, request: Request) -> WaitingRun | None:
        """Starts a turn, or finds a session; None if it cannot be left waiting."""
        ...

    async def stop(self) -> int:
        """Aborts what runs; returns the number of runs."""
        ...

    async def leave(self, say: Callable[[str], None]) -> bool:
        """Called when the user leaves, or wants to decide later; False if nothing continues then.

        Args:
            say: Tells the user what happens.
        """
        ...


class Turn(Exchange[Request, View], Protocol[Request, View, Result]):
    """One turn. Its events go to the view, its questions to the approvals."""

    async def result(self) -> Result | None:
        """Waits for the end of the turn; None if the user stopped it and it has no result."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalTurn(Generic[Request, View, Result]):
    """Runs a turn, and shows it at a terminal.

    Attributes:
        turn: The turn.
        options: The user's options: who decides, and what the command that resumes the turn needs.
        out: Where the reply goes.
        view: The class that shows the turn.
        as_json: Print the result as JSON instead of the reply.
        quiet: Do not show calls.
        stdin_is_taken: True if the message was read from stdin, so answers cannot be.
        later: True if nobody is asked now: the turn is left waiting.
        signals: The signals that stop the turn. A second one ends the command.
    """

    turn: Turn[Request, View, Result]
    options: Options
    out: ProgramOutput
    view: Callable[..., View]
    as_json: bool = False
    quiet: bool = False
    stdin_is_taken: bool = False
    later: bool = False
    signals: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)

    def run(self, request: Request) -> Result | WaitingRun:
        """Runs a turn and shows it, until it ends or is left waiting for the user's decision.

        Raises:
            ConfigurationError: The request or the configuration is invalid; nothing ran.
            KeyboardInterrupt: The turn was stopped.
        """
        ended: Result | WaitingRun | None = None
        watched = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        view = self.view(
            None if self.as_json else self.out,
            live=watched and not self.quiet,
            summary=not self.quiet and (watched or not self.as_json),
        )
        with printed_logs(view.paused):
            try:
                mode = self.turn.prepare(request, view)
                gc.freeze()  # a collection of what was imported would find nothing
                ended = anyio.run(self._drive, request, self.options.approve or mode, view)
            finally:
                view.close(None if isinstance(ended, WaitingRun) else ended)
        if self.as_json:
            self.out.json(ended.to_json())
        if ended.status == "aborted":
            raise KeyboardInterrupt  # the exit status is 130, as after Ctrl-C anywhere else
        if not isinstance(ended, RunResult) and ended.status == "waiting":
            words = ended.resume_words if isinstance(ended, WaitingRun) else ("wait", ended.run_id)
            print_stderr(f"waiting ({ended.reason}); resume with:", YELLOW)
            print_stderr(f"  {self.options.resume_command(*words)}")
        join_tool_threads()
        gc.freeze()  # otherwise the interpreter collects garbage in all libraries before it exits
        return ended

    async def _drive(self, request: Request, mode: Mode, view: View) -> Result | WaitingRun:
        desk = None
        if mode == "ask" and not self.later:
            taken = self.stdin_is_taken
            desk = Desk.at_terminal(view.paused, stdin_is_taken=taken, until=self.turn.until)
        approvals = make_approvals(mode, desk, later=self.later)
        ended: Result | WaitingRun | None = None
        async with interruptible(), self.turn.open(approvals):
            run = await self.turn.start(request)
            ended = await self._follow(desk) or run
        if ended is None:  # raised here: inside of `interruptible` it would be wrapped
            raise KeyboardInterrupt
        return ended

    async def _follow(self, desk: Desk | None) -> Result | None:
        """Waits for the end of the turn; None if it was stopped, or the user decides later."""
        result: Result | None = None

        async def put_questions(desk: Desk) -> None:
            await desk.serve()
            if await self.turn.leave(print_note):
                tasks.cancel_scope.cancel()

        async def stop_on_signal() -> None:
            # The first Ctrl-C aborts the run, and records that; a second one ends the command.
            with anyio.open_signal_receiver(*self.signals) as signals:
                async for _ in signals:
                    break
            await self.turn.stop()

        async with background_tasks() as tasks:
            tasks.start_soon(stop_on_signal)
            if desk is not None:
                tasks.start_soon(put_questions, desk)
            result = await self.turn.result()
        return result
