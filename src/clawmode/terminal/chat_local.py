"""`clawmode chat` in this process: the agent stops together with the chat."""

import gc
import getpass
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from clawmode.agent.events import Listener
from clawmode.agent.models import ModelPool
from clawmode.agent.requests import AgentRequest
from clawmode.agent.resolver import ConfigResolver
from clawmode.app.host import Host, open_host
from clawmode.app.setup import Setup
from clawmode.messaging.channel import InboundMessage
from clawmode.messaging.slash import COMMANDS
from clawmode.sessions.keys import is_session_id
from clawmode.sessions.store import SessionStore
from clawmode.sessions.workspaces import current_folder
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.chat import Chat, Partner, Receipt, TerminalChat, reset_error
from clawmode.terminal.chat_prompt import CHANNEL
from clawmode.terminal.chat_screen import Screen
from clawmode.terminal.desk import COMMAND_ENDS
from clawmode.terminal.interrupts import interruptible, join_tool_threads
from clawmode.terminal.local_turn import STARTING, approve_mode, load_models
from clawmode.terminal.turn import printed_logs
from clawmode.tools.approvals import Approvals

TARGET = "you"
BEGIN = ("/new", "/reset")
LEAVE_SECONDS = 10.0
"""How long to wait at the end for a run to stop."""


class LocalPartner:
    """An agent that runs in this process, and stops with the chat.

    Args:
        host: The runtime.
        key: The key of the session.
        answers: The target of answers to commands.
    """

    trouble = ""

    def __init__(self, host: Host, key: str, answers: str) -> None:
        self._host = host
        self._key = key
        self._answers = answers
        try:
            self._sender = getpass.getuser()
        except (ImportError, KeyError, OSError):
            self._sender = "operator"

    @property
    def waiting(self) -> int:
        return len(self._host.inbox.waiting(self._key))

    def subscribe(
        self, watch: Listener, tell: Callable[[str], None], changed: Callable[[], None]
    ) -> Callable[[], None]:
        return self._host.runtime.subscribe(watch)  # the channel delivers messages

    async def serve(self) -> None:
        """Does nothing: the host runs the agent."""

    async def model(self) -> str:
        runtime = self._host.runtime
        session = await runtime.sessions.get(self._key)
        request = AgentRequest(session_key=self._key)
        model = (await runtime.resolve(request, session)).models[0]
        return f"{model.provider}/{model.name}"

    async def send(self, text: str) -> Receipt:
        """Sends a message or a command; the channel delivers the answer of a command."""
        name, *more = text.split(maxsplit=1)
        begins = bool(more) and name.lower() in BEGIN  # this starts a turn: its reply is no answer
        is_command = name[1:].lower() in COMMANDS and name.startswith("/") and not begins
        message = InboundMessage(
            channel=CHANNEL,
            target=self._answers if is_command else TARGET,
            sender=self._sender,
            session_key=self._key,
            operator=True,
            text=text,
        )
        return Receipt((await self._host.inbox.receive(message)).how)

    async def stop(self) -> int:
        return self._host.inbox.stop(self._key)

    async def leave(self, say: Callable[[str], None]) -> None:
        """Stops the runs, and waits until their end is recorded."""
        runs = self._host.runtime.under_way(self._key)
        # The user knows already of a run that was stopped a moment ago and has not ended yet.
        if any(not run.scope.cancel_called for run in runs):
            say("The active run is stopped.")
        self._host.inbox.stop(self._key)
        with anyio.move_on_after(LEAVE_SECONDS):
            for run in runs:
                await run.ended.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalChat(TerminalChat):
    """The command `chat` without a gateway.

    Attributes:
        setup: The settings, tools and servers.
    """

    setup: Setup

    def run(self) -> None:
        """Runs the chat to its end; the agent stops with it.

        Raises:
            ConfigurationError: The session, agent or model is invalid.
            KeyboardInterrupt: The user stopped it before the chat began.
        """
        by_id = is_session_id(self.session)
        request = AgentRequest(
            session_key="" if by_id else self.session,
            session_id=self.session if by_id else "",
            agent_id=self.agent_id,
            model=self.model,
        )
        view = AgentView(None, live=True, summary=False)
        with printed_logs(view):
            try:
                models = load_models(self.setup, request, view)
            finally:
                view.close(None)
            anyio.run(self._drive, request, models)
        join_tool_threads()
        gc.freeze()  # otherwise the interpreter collects garbage in all libraries before it exits

    async def _drive(self, request: AgentRequest, models: ModelPool) -> None:
        setup = self.setup

        @asynccontextmanager
        async def open_partner(chat: Chat, approvals: Approvals) -> AsyncIterator[Partner]:
            workspace, channels = current_folder(setup.state), [chat.channel]
            async with open_host(
                setup, approvals, models, channels=channels, workspace=workspace
            ) as host:
                yield LocalPartner(host, session.key, chat.channel.answers)

        mode = self.approve or approve_mode(setup, self.agent_id)
        async with interruptible():
            with Screen() as screen:
                screen.note(STARTING)
                store = SessionStore(setup.sessions_folder)
                owner = ConfigResolver(setup.configuration, models, setup.state).agent_of(request)
                key, session_id = request.session_key or None, request.session_id or None
                session = await store.resolve(key, session_id, owner)
                if (await store.get(session.key)).id != session.id:
                    raise reset_error(session.id, session.key)
                if self.model:
                    session = await store.touch(session.id, model=self.model)
                await self.talk(screen, session.key, mode, COMMAND_ENDS, open_partner)
