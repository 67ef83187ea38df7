"""The part of `clawmode agent` that local and remote turns share: output, logs, and the end."""

import gc
import logging
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.app.console import RED, YELLOW, ProgramOutput, print_stderr, wrap
from clawmode.app.setup import Options
from clawmode.terminal.interrupts import join_tool_threads
from clawmode.tools.approvals import Mode
from clawmode.types import JsonObject

if TYPE_CHECKING:
    from clawmode.terminal.agent_view import AgentView


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    """A run that was left waiting for a decision of the user."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalTurn:
    """One turn of an agent, shown at a terminal.

    Attributes:
        options: The user's options, for the command that resumes the run.
        out: Where the reply goes.
        view: Shows the run.
        approve: Who decides about calls; None for the mode of the configuration.
        as_json: Print the result as JSON instead of the reply.
        stdin_is_taken: True if the message was read from stdin, so answers cannot be.
    """

    options: Options
    out: ProgramOutput
    view: "AgentView"
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
                ended = self._run(request)
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

    def show_prompt(self, request: AgentRequest) -> None:
        """Prints the prompt and the tools that the model would get; runs nothing.

        Raises:
            ConfigurationError: The request or the configuration is invalid.
        """
        raise NotImplementedError

    def _run(self, request: AgentRequest) -> RunResult | WaitingRun:
        raise NotImplementedError

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

    def __init__(self, view: "AgentView") -> None:
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
def printed_logs(view: "AgentView") -> Iterator[None]:
    """Prints the log of the block on stderr, between the output of the view."""
    logger = logging.getLogger("clawmode")
    handler = _LogPrinter(view)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
