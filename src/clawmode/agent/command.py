"""`clawmode agent`: one turn in the foreground; whoever sits at the terminal answers for it."""

import gc
import logging
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import anyio

from clawmode.agent import settings
from clawmode.agent.listings import show_preview
from clawmode.agent.model_choice import Models
from clawmode.agent.preview import Preview
from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.agent.resolve import Configured
from clawmode.agent.runtime import AgentRuntime, Run
from clawmode.agent.sessions import Session, SessionStore, UnknownSession
from clawmode.agent.view import AgentView
from clawmode.approvals import Approvals
from clawmode.command_setup import Options, Setup
from clawmode.exceptions import ConfigurationError
from clawmode.host import open_host
from clawmode.interrupts import interruptible, outlast_tools
from clawmode.questions import Desk, Mode, Terminal, make_approvals
from clawmode.terminal import RED, YELLOW, ProgramOutput, complain, tell
from clawmode.tools import JsonObject

STOPPED = 130

LOADS = "… loading the model's library"
CONNECTS = "… starting"


@asynccontextmanager
async def open_runtime(
    setup: Setup, approvals: Approvals, models: Models | None = None
) -> AsyncIterator[AgentRuntime]:
    """A runtime with everything that a setup says, for whoever wants nothing else of the host."""
    async with open_host(setup, approvals, models) as host:
        yield host.runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """How people take part in a turn.

    Attributes:
        options: As they were given, to be given again.
        setup: What it can call, and what the configuration says.
        out: Where the model's words go.
        approve: Who decides about calls.
        as_json: A program reads the result.
        quiet: Show the words alone.
        stdin_is_taken: The message was read from there, so a person's answers are not.
    """

    options: Options
    setup: Setup
    out: ProgramOutput
    approve: Mode = "ask"
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
                models = load_models(self.setup, request, view)
                ended = anyio.run(self._drive, request, view, models)
                result = ended if isinstance(ended, RunResult) else None
            finally:
                view.close(result)
        if isinstance(ended, Run):
            if self.as_json:
                self.out.json(_waiting(ended))
            complain("waiting (approval); go on with:", YELLOW)
            complain(f"  {self._continuing(ended, request)}")
            return None
        if self.as_json:
            self.out.json(ended.to_json())
        if ended.status == "aborted":
            raise KeyboardInterrupt
        if ended.error is not None and not self.as_json:
            complain(f"{ended.status}: {ended.error}", RED)
        outlast_tools()
        gc.freeze()  # else the interpreter looks at all of the libraries before it ends
        return ended

    def show_prompt(self, request: AgentRequest) -> None:
        """Shows what the model would be told, and how many tokens that takes; nothing is run.

        Raises:
            ConfigurationError: The request or the configuration cannot be meant.
        """

        async def look() -> Preview:
            async with interruptible(), open_runtime(self.setup, Approvals()) as runtime:
                return await runtime.preview(request)

        made = anyio.run(look)
        if self.as_json:
            self.out.json(made.to_json())
        else:
            show_preview(self.out, made)

    # ---- The turn ----

    async def _drive(
        self, request: AgentRequest, view: AgentView, models: Models
    ) -> RunResult | Run:
        """The result; or the run, if it was left waiting."""
        asks = self.approve == "ask"
        approvals = make_approvals(
            self.approve,
            later=False,
            terminal=Terminal.find(stdin_is_taken=self.stdin_is_taken) if asks else None,
            paused=view.paused,
            tell=tell,
        )
        async with interruptible(), open_runtime(self.setup, approvals, models) as runtime:
            unsubscribe = runtime.subscribe(view.take)
            run = await runtime.start(request)
            ended: RunResult | Run = run
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_abort_when_stopped, runtime, run.id)
                if isinstance(approvals, Desk):
                    tasks.start_soon(_put_questions, approvals, tasks.cancel_scope)
                ended = await runtime.result(run.id)
                tasks.cancel_scope.cancel()
            # What is cancelled when all is closed is to be seen as it was: open.
            unsubscribe()
        return ended

    def _continuing(self, run: Run, request: AgentRequest) -> str:
        """The command that goes on with a run, for a shell in the same folder."""
        words = shlex.split(self.options.resuming(run.id))
        at = words.index("wait")
        given = {"--model": request.model, "--thinking": request.thinking}
        words[at : at + 2] = ["agent", "--continue", run.id, "--session", run.session.key]
        words += [word for option, value in given.items() if value for word in (option, value)]
        return shlex.join(words)


def _waiting(run: Run) -> JsonObject:
    session = run.session
    return {
        "runId": run.id,
        "sessionKey": session.key,
        "sessionId": session.id,
        "status": "waiting",
    }


async def _abort_when_stopped(runtime: AgentRuntime, run_id: str) -> None:
    """Ctrl-C stops the run, which is written down; a second one stops the command."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            runtime.abort(run_id)
            return


async def _put_questions(desk: Desk, scope: anyio.CancelScope) -> None:
    """Puts questions as they come. It ends when somebody wants to decide later; so does all."""
    await desk.serve()
    scope.cancel()


# ---- Before it begins ----


def load_models(setup: Setup, request: AgentRequest, view: AgentView) -> Models:
    """Opens the model, before anything is begun: to import its library takes seconds.

    Raises:
        ConfigurationError: There is none, or it cannot be used.
    """
    configuration = setup.configuration
    models = Models(configuration)
    agent_id = Configured(configuration, models, setup.state).agent_of(request)
    session = anyio.run(_find_session, setup, request, agent_id)
    kept = "" if session is None else session.model
    name = request.model or kept or settings.agent(configuration, agent_id).model
    if not name:
        raise ConfigurationError(
            "no model is configured: set agents.defaults.model in clawmode.json5 to "
            "`provider/model`, such as anthropic/claude-sonnet-4-5, or give --model",
            path="agents.defaults.model",
            expected="provider/model",
        )
    with _left_at_once(view):
        view.note(LOADS)
        models.find(name)
    view.note(CONNECTS)
    return models


async def _find_session(setup: Setup, request: AgentRequest, agent_id: str) -> Session | None:
    key, session_id = request.session_key or None, request.session_id or None
    try:
        store = SessionStore(setup.sessions_folder)
        return await store.resolve(key, session_id, agent_id, create=False)
    except UnknownSession:
        if session_id is not None or request.resume:
            raise
        return None


# ---- Around it ----


@contextmanager
def _left_at_once(view: AgentView) -> Iterator[None]:
    """Ctrl-C ends the process then and there: a library that is being imported may swallow it."""

    def leave(number: int, frame: object) -> None:
        view.close(None)
        tell("stopped")
        os._exit(STOPPED)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # it is ignored: in the background of a script
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
            complain(f"{record.name}: {text}")


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
