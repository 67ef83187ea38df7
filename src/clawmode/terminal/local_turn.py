"""`clawmode agent` in this process: one turn, whose questions the user at the terminal answers."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio

from clawmode.agent.events import Listener
from clawmode.agent.models import ModelPool
from clawmode.agent.preview import Preview
from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.agent.resolver import ConfigResolver
from clawmode.app.console import ProgramOutput, print_note
from clawmode.app.host import Host, open_host
from clawmode.app.setup import Setup
from clawmode.config import resolve as settings
from clawmode.exceptions import ConfigurationError
from clawmode.messaging.channel import Channel
from clawmode.sessions.keys import UnknownSession
from clawmode.sessions.store import Session, SessionStore
from clawmode.sessions.workspaces import current_folder
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.desk import COMMAND_ENDS
from clawmode.terminal.interrupts import interruptible
from clawmode.terminal.turn import WaitingRun
from clawmode.tools.approvals import Approvals, Mode

STOPPED = 130
MAX_TOOLS_NAMED = 10

LOADING = "… loading the model's library"
STARTING = "… starting"


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


class LocalTurn:
    """A turn that runs in this process.

    Args:
        setup: The settings, tools and servers.

    Attributes:
        channels: Channels in addition to those of the configuration.
    """

    until = COMMAND_ENDS
    channels: tuple[Channel, ...] = ()
    _watch: Listener
    _models: ModelPool
    _host: Host

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._run_id = ""

    def prepare(self, request: AgentRequest, view: AgentView) -> Mode:
        self._watch = view.add
        self._models = load_models(self._setup, request, view)
        return approve_mode(self._setup, request.agent_id)

    @asynccontextmanager
    async def open(self, approvals: Approvals) -> AsyncIterator[None]:
        async with open_host(
            self._setup, approvals, self._models, channels=self.channels, workspace=self.workspace()
        ) as self._host:
            unsubscribe = self._host.runtime.subscribe(self._watch)
            yield
            # Closing cancels open calls. The view is to show them as open, not as cancelled.
            unsubscribe()

    def workspace(self) -> Path | None:
        """Returns the workspace of agents for which the configuration names none."""
        return find_workspace(self._setup)

    async def start(self, request: AgentRequest) -> WaitingRun | None:
        run = await self._host.runtime.start(request)
        self._run_id, session = run.id, run.session
        return WaitingRun(
            request=request, run_id=run.id, session_key=session.key, session_id=session.id
        )

    async def result(self) -> RunResult:
        return await self._host.runtime.result(self._run_id)

    async def stop(self) -> int:
        return int(self._host.runtime.abort(self._run_id))

    async def leave(self, say: Callable[[str], None]) -> bool:
        """The run continues from its transcript: nothing has to be done."""
        return True


# ---- The prompt ----


def show_prompt(out: ProgramOutput, setup: Setup, request: AgentRequest, *, as_json: bool) -> None:
    """Prints the prompt and the tools that the model would get; runs nothing.

    Raises:
        ConfigurationError: The request or the configuration is invalid.
    """

    async def fetch() -> Preview:
        opened = open_host(setup, Approvals(), workspace=find_workspace(setup))
        async with interruptible(), opened as host:
            return await host.runtime.preview(request)

    preview = anyio.run(fetch)
    if as_json:
        out.json(preview.to_json())
    else:
        print_preview(out, preview)


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


def approve_mode(setup: Setup, agent_id: str) -> Mode:
    """Returns who decides about the calls of an agent; an empty id means the default agent."""
    configuration = setup.configuration
    return settings.approve_mode(configuration, agent_id or settings.default_agent(configuration))


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
    name = request.model or session_model or settings.agent(configuration, agent_id).model.primary
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
