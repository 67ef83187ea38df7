"""`clawmode agent`: one turn in the foreground; whoever sits at the terminal answers for it."""

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import anyio

from clawmode.agent import settings
from clawmode.agent.model_choice import Models
from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.agent.resolve import Configured
from clawmode.agent.runtime import AgentRuntime
from clawmode.agent.sessions import SessionStore
from clawmode.agent.view import AgentView
from clawmode.approvals import Approvals
from clawmode.command_setup import Setup
from clawmode.models.settings import KNOWN
from clawmode.questions import Mode, Terminal, attended, make_approvals
from clawmode.terminal import RED, ProgramOutput, complain, tell

MIN_SECRET = 6
SESSIONS = "sessions"
"""Where conversations are kept, in the folder of the state."""


def open_sessions(setup: Setup) -> SessionStore:
    """The conversations of a state folder."""
    return SessionStore(setup.state / SESSIONS)


def known_secrets(setup: Setup) -> list[str]:
    """What must not be seen in what is written about runs."""
    found = [secret for server in setup.servers for secret in server.secrets]
    for provider in setup.configuration.models.providers.values():
        found += [provider.api_key or "", *provider.headers.values()]
        found.append(os.environ.get(provider.auth.env or "", "") if provider.auth else "")
    found += [os.environ.get(known.key.env, "") for known in KNOWN.values() if known.key]
    return [secret for secret in found if len(secret) >= MIN_SECRET and "${" not in secret]


@asynccontextmanager
async def open_runtime(setup: Setup, approvals: Approvals) -> AsyncIterator[AgentRuntime]:
    """A runtime with everything that a setup says."""
    configuration = setup.configuration
    async with AsyncExitStack() as opened:
        servers = None
        if setup.servers:
            from clawmode.mcp.command import open_servers  # takes a second, and not all need it

            asks = approvals.takes_input
            servers = await opened.enter_async_context(open_servers(setup, asks=asks))
        models = await opened.enter_async_context(Models(configuration))
        runtime = AgentRuntime(
            resolver=Configured(configuration, models, setup.state, setup.narrowed),
            sessions=open_sessions(setup),
            state=setup.state,
            tools=setup.tools,
            servers=servers,
            approvals=approvals,
            max_concurrent=settings.max_concurrent(configuration),
            secrets=known_secrets(setup),
        )
        yield await opened.enter_async_context(runtime)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """How people take part in a turn.

    Attributes:
        setup: What it can call, and what the configuration says.
        out: Where the model's words go.
        approve: Who decides about calls.
        as_json: A program reads the result.
        quiet: Show the words alone.
        stdin_is_taken: The message was read from there, so a person's answers are not.
    """

    setup: Setup
    out: ProgramOutput
    approve: Mode = "ask"
    as_json: bool = False
    quiet: bool = False
    stdin_is_taken: bool = False

    def run(self, request: AgentRequest) -> RunResult:
        """Runs a turn and shows it."""
        watched = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        shown = not self.quiet
        view = AgentView(
            None if self.as_json else self.out,
            live=watched and shown,
            summary=shown and (watched or not self.as_json),
        )
        result: RunResult | None = None
        try:
            result = anyio.run(self._drive, request, view)
        finally:
            view.close(result)
        if self.as_json:
            self.out.json(result.to_json())
        elif result.error is not None:
            complain(f"{result.status}: {result.error}", RED)
        return result

    async def _drive(self, request: AgentRequest, view: AgentView) -> RunResult:
        asks = self.approve == "ask"
        approvals = make_approvals(
            self.approve,
            later=False,
            terminal=Terminal.find(stdin_is_taken=self.stdin_is_taken) if asks else None,
            paused=view.paused,
            tell=tell,
        )
        async with open_runtime(self.setup, approvals) as runtime:
            runtime.subscribe(view.take)
            async with attended(approvals):
                run = await runtime.start(request)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_abort_when_stopped, runtime, run.id)
                    result = await runtime.result(run.id)
                    tasks.cancel_scope.cancel()
                return result


async def _abort_when_stopped(runtime: AgentRuntime, run_id: str) -> None:
    """Ctrl-C stops the run, which is written down; a second one stops the command."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            runtime.abort(run_id)
            return
