"""`clawmode agent`: one turn in the foreground; whoever sits at the terminal answers for it."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from clawmode.agent.models import ModelPool
from clawmode.agent.preview import Preview
from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.agent.resolver import ConfigResolver
from clawmode.agent.runtime import AgentRuntime, Run
from clawmode.app.console import print_note
from clawmode.app.host import open_host
from clawmode.app.setup import Setup
from clawmode.config import resolve as settings
from clawmode.exceptions import ConfigurationError
from clawmode.sessions.keys import UnknownSession
from clawmode.sessions.store import Session, SessionStore
from clawmode.sessions.workspaces import current_folder
from clawmode.terminal.agent_listings import show_preview
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.desk import Desk, Terminal, make_approvals
from clawmode.terminal.interrupts import interruptible
from clawmode.terminal.turn import Left, ShownTurn
from clawmode.terminal.turn import told_logs as told_logs
from clawmode.tools.approvals import Approvals

STOPPED = 130

LOADS = "… loading the model's library"
CONNECTS = "… starting"


@asynccontextmanager
async def open_runtime(
    setup: Setup,
    approvals: Approvals,
    models: ModelPool | None = None,
    workspace: Path | None = None,
) -> AsyncIterator[AgentRuntime]:
    """A runtime with everything that a setup says, for whoever wants nothing else of the host."""
    async with open_host(setup, approvals, models, workspace=workspace) as host:
        yield host.runtime


def find_workspace(setup: Setup) -> Path | None:
    """Where the agents of a person at a terminal work, unless the configuration says otherwise.

    That is the current folder. Where that cannot be, each has its own folder in the state folder,
    and the person is told.
    """
    here = current_folder(setup.state)
    configured = setup.configuration.agents.defaults.workspace
    if here is None and not configured and sys.stderr.isatty():
        text = "the home folder or the state folder is in the current one"
        print_note(f"the agent works in {setup.state / 'workspace'}, because {text}")
    return here


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand(ShownTurn):
    """A turn that runs in this process.

    Attributes:
        setup: What it can call, and what the configuration says.
    """

    setup: Setup

    def show_prompt(self, request: AgentRequest) -> None:
        """Shows what the model would be told, and how many tokens that takes; nothing is run.

        Raises:
            ConfigurationError: The request or the configuration cannot be meant.
        """

        async def look() -> Preview:
            workspace = find_workspace(self.setup)
            opened = open_runtime(self.setup, Approvals(), workspace=workspace)
            async with interruptible(), opened as runtime:
                return await runtime.preview(request)

        made = anyio.run(look)
        if self.as_json:
            self.out.json(made.to_json())
        else:
            show_preview(self.out, made)

    # ---- The turn ----

    def _turn(self, request: AgentRequest, view: AgentView) -> RunResult | Left:
        models = load_models(self.setup, request, view)
        ended = anyio.run(self._drive, request, view, models)
        if isinstance(ended, RunResult):
            return ended
        session = ended.session
        return Left(run_id=ended.id, session_key=session.key, session_id=session.id)

    async def _drive(
        self, request: AgentRequest, view: AgentView, models: ModelPool
    ) -> RunResult | Run:
        """The result; or the run, if it was left waiting."""
        agent_id = request.agent_id or settings.default_agent(self.setup.configuration)
        mode = self.approve or settings.approve_mode(self.setup.configuration, agent_id)
        approvals = make_approvals(
            mode,
            later=False,
            terminal=Terminal.find(stdin_is_taken=self.stdin_is_taken) if mode == "ask" else None,
            paused=view.paused,
            tell=print_note,
        )
        opened = open_runtime(self.setup, approvals, models, find_workspace(self.setup))
        async with interruptible(), opened as runtime:
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


def load_models(setup: Setup, request: AgentRequest, view: AgentView) -> ModelPool:
    """Opens the model, before anything is begun: to import its library takes seconds.

    Raises:
        ConfigurationError: There is none, or it cannot be used.
    """
    configuration = setup.configuration
    models = ModelPool(configuration)
    agent_id = ConfigResolver(configuration, models, setup.state).agent_of(request)
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
    view.note(LOADS)  # before the handler is set: it writes to the same stream
    with _left_at_once(view):
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
        print_note("stopped")
        os._exit(STOPPED)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # it is ignored: in the background of a script
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
