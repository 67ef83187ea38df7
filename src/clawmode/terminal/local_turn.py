"""`clawmode agent` in this process: one turn, whose questions the user at the terminal answers."""

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
from clawmode.agent.run import AgentRun
from clawmode.agent.runtime import AgentRuntime
from clawmode.app.console import ProgramOutput, print_note
from clawmode.app.host import open_host
from clawmode.app.setup import Setup
from clawmode.config import resolve as settings
from clawmode.exceptions import ConfigurationError
from clawmode.sessions.keys import UnknownSession
from clawmode.sessions.store import Session, SessionStore
from clawmode.sessions.workspaces import current_folder
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.desk import Desk, make_approvals
from clawmode.terminal.interrupts import interruptible
from clawmode.terminal.turn import TerminalTurn, WaitingRun
from clawmode.tools.approvals import Approvals

STOPPED = 130
MAX_TOOLS_NAMED = 10

LOADING = "… loading the model's library"
STARTING = "… starting"


@asynccontextmanager
async def open_runtime(
    setup: Setup,
    approvals: Approvals,
    models: ModelPool | None = None,
    workspace: Path | None = None,
) -> AsyncIterator[AgentRuntime]:
    """Opens everything that a setup names; yields only the runtime of the host."""
    async with open_host(setup, approvals, models, workspace=workspace) as host:
        yield host.runtime


def find_workspace(setup: Setup) -> Path | None:
    """Returns the workspace of agents for which the configuration names none.

    The workspace is the current folder. If that is not possible, None is returned: each agent then
    has a folder in the state folder, and a note tells the user.
    """
    here = current_folder(setup.state)
    configured = setup.configuration.agents.defaults.workspace
    if here is None and not configured and sys.stderr.isatty():
        text = "the current folder contains the home folder or the state folder"
        print_note(f"the agent works in {setup.state / 'workspace'}, because {text}")
    return here


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTurn(TerminalTurn):
    """A turn that runs in this process.

    Attributes:
        setup: The settings, tools and servers.
    """

    setup: Setup

    def show_prompt(self, request: AgentRequest) -> None:
        async def fetch() -> Preview:
            workspace = find_workspace(self.setup)
            opened = open_runtime(self.setup, Approvals(), workspace=workspace)
            async with interruptible(), opened as runtime:
                return await runtime.preview(request)

        preview = anyio.run(fetch)
        if self.as_json:
            self.out.json(preview.to_json())
        else:
            print_preview(self.out, preview)

    # ---- The turn ----

    def _run(self, request: AgentRequest) -> RunResult | WaitingRun:
        models = load_models(self.setup, request, self.view)
        ended = anyio.run(self._drive, request, models)
        if isinstance(ended, RunResult):
            return ended
        session = ended.session
        return WaitingRun(run_id=ended.id, session_key=session.key, session_id=session.id)

    async def _drive(self, request: AgentRequest, models: ModelPool) -> RunResult | AgentRun:
        """Returns the result; or the run, if it was left waiting."""
        agent_id = request.agent_id or settings.default_agent(self.setup.configuration)
        mode = self.approve or settings.approve_mode(self.setup.configuration, agent_id)
        desk = None
        if mode == "ask":
            desk = Desk.at_terminal(self.view.paused, stdin_is_taken=self.stdin_is_taken)
        approvals = make_approvals(mode, desk)
        opened = open_runtime(self.setup, approvals, models, find_workspace(self.setup))
        async with interruptible(), opened as runtime:
            unsubscribe = runtime.subscribe(self.view.add)
            run = await runtime.start(request)
            ended: RunResult | AgentRun = run
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_abort_on_signal, runtime, run.id)
                if desk is not None:
                    tasks.start_soon(_put_questions, desk, tasks.cancel_scope)
                ended = await runtime.result(run.id)
                tasks.cancel_scope.cancel()
            # Closing cancels open calls. The view is to show them as open, not as cancelled.
            unsubscribe()
        return ended


async def _abort_on_signal(runtime: AgentRuntime, run_id: str) -> None:
    """Aborts the run at the first Ctrl-C, and records that; a second one ends the command."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            runtime.abort(run_id)
            return


async def _put_questions(desk: Desk, scope: anyio.CancelScope) -> None:
    """Puts questions to the user; cancels the scope when the user wants to decide later."""
    await desk.serve()
    scope.cancel()


def print_preview(out: ProgramOutput, preview: Preview) -> None:
    """Prints the prompt and the tools that a model would get, with the tokens of each part."""
    prompt, tools = preview.prompt, preview.tools
    rows = [[part.name, f"{len(part.text):,}", f"{part.tokens:,}"] for part in prompt.parts]
    names = ", ".join(tool.name for tool in tools[:MAX_TOOLS_NAMED]) or "none"
    hidden = len(tools) - MAX_TOOLS_NAMED
    more = f" and {hidden} more" if hidden > 0 else ""
    rows.append([f"tools: {names}{more}", "", f"{preview.tool_tokens:,}"])
    rows.append(["conversation so far", "", f"{preview.conversation:,}"])
    rows.append(["total", "", f"{preview.total:,}"])
    out.say(prompt.text)
    if prompt.context:
        out.say(f"\nBefore your message, for this turn:\n{prompt.context}")
    out.say("")
    out.table(["part", "characters", "tokens (about)"], rows)
    room = f"compaction starts at {preview.room:,} of {preview.window:,} tokens"
    out.say(f"\n{preview.model} · session {preview.session_key} · {room}")


# ---- Before the turn ----


def load_models(setup: Setup, request: AgentRequest, view: AgentView) -> ModelPool:
    """Opens the model before the turn starts: the import of its library takes seconds.

    Raises:
        ConfigurationError: No model is configured, or it cannot be used.
    """
    configuration = setup.configuration
    models = ModelPool(configuration)
    agent_id = ConfigResolver(configuration, models, setup.state).agent_of(request)
    # The session may have a model of its own.
    session = anyio.run(_find_session, setup, request, agent_id)
    session_model = "" if session is None else session.model
    name = request.model or session_model or settings.agent(configuration, agent_id).model
    if not name:
        raise ConfigurationError(
            "no model is configured: set agents.defaults.model in clawmode.json5 to "
            "`provider/model`, such as anthropic/claude-sonnet-5, or give --model",
            path="agents.defaults.model",
            expected="provider/model",
        )
    # Before the handler is set: it writes to stderr, and must not interrupt another write there.
    view.note(LOADING)
    with _immediate_exit(view):
        models.find(name)
    view.note(STARTING)
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


@contextmanager
def _immediate_exit(view: AgentView) -> Iterator[None]:
    """Lets Ctrl-C end the process at once: an import may swallow a `KeyboardInterrupt`."""

    def leave(number: int, frame: object) -> None:
        view.close(None)
        print_note("stopped")
        os._exit(STOPPED)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # Ctrl-C is ignored, as in the background of a script
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
