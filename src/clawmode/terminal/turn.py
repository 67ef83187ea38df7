"""A turn at a terminal, wherever it runs: what is shown of it, and how the command ends."""

import gc
import logging
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.app.console import RED, YELLOW, ProgramOutput, print_stderr, wrap
from clawmode.app.setup import Options
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.desk import Mode
from clawmode.terminal.interrupts import outlast_tools
from clawmode.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A run that was left waiting."""

    run_id: str
    session_key: str
    session_id: str

    def to_json(self) -> JsonObject:
        """For programs."""
        return {
            "runId": self.run_id,
            "sessionKey": self.session_key,
            "sessionId": self.session_id,
            "status": "waiting",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTurn:
    """How people take part in a turn.

    Attributes:
        options: As they were given, to be given again.
        out: Where the model's words go.
        approve: Who decides about calls; None: as the configuration says.
        as_json: A program reads the result.
        quiet: Show the words alone.
        stdin_is_taken: The message was read from there, so a person's answers are not.
    """

    options: Options
    out: ProgramOutput
    approve: Mode | None = None
    as_json: bool = False
    quiet: bool = False
    stdin_is_taken: bool = False

    def run(self, request: AgentRequest) -> RunResult | None:
        """Runs a turn and shows it. None: a person wants to decide later, and it is left waiting.

        Raises:
            ConfigurationError: The request or the configuration cannot be meant; nothing ran.
            KeyboardInterrupt: The run was stopped.
        """
        watched = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        shown = not self.quiet
        view = AgentView(
            None if self.as_json else self.out,
            live=watched and shown,
            summary=shown and (watched or not self.as_json),
        )
        result: RunResult | None = None
        with told_logs(view):
            try:
                ended = self._turn(request, view)
                result = ended if isinstance(ended, RunResult) else None
            finally:
                view.close(result)
        if self.as_json:
            self.out.json(ended.to_json())
        if isinstance(ended, Left):
            print_stderr("waiting (approval); go on with:", YELLOW)
            print_stderr(f"  {self._continuing(ended, request)}")
            return None
        if ended.status == "aborted":
            raise KeyboardInterrupt
        if ended.error is not None and not self.as_json:
            print_stderr(_wrapped(f"{ended.status}: {ended.error}"), RED)
        outlast_tools()
        gc.freeze()  # else the interpreter looks at all of the libraries before it ends
        return ended

    def show_prompt(self, request: AgentRequest) -> None:
        """Shows what the model would be told; nothing is run.

        Raises:
            ConfigurationError: The request or the configuration cannot be meant.
        """
        raise NotImplementedError

    def _turn(self, request: AgentRequest, view: AgentView) -> RunResult | Left:
        """Runs it."""
        raise NotImplementedError

    def _continuing(self, left: Left, request: AgentRequest) -> str:
        """The command that goes on with a run, for a shell in the same folder."""
        words = shlex.split(self.options.resume_command(left.run_id))
        at = words.index("wait")
        given = {"--model": request.model, "--thinking": request.thinking}
        words[at : at + 2] = ["agent", "--continue", left.run_id, "--session", left.session_key]
        words += [word for option, value in given.items() if value for word in (option, value)]
        return shlex.join(words)


def _wrapped(text: str) -> str:
    """The text, broken between words if stderr is a terminal."""
    try:
        return wrap(text, os.get_terminal_size(2).columns - 1)
    except OSError:
        return text


# ---- Around it ----


class _Told(logging.Handler):
    """What is logged, in a line for people: harmless, and without tracebacks."""

    def __init__(self, view: AgentView) -> None:
        super().__init__()
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "clawmode.mcp" and record.levelno == logging.WARNING:
            return  # a server that is not there: `open_servers` has told, and so do calls
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        with self._view.paused():
            print_stderr(f"{record.name}: {text}")


@contextmanager
def told_logs(view: AgentView) -> Iterator[None]:
    """Tells whoever sits at the terminal what is logged."""
    logger = logging.getLogger("clawmode")
    handler = _Told(view)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
