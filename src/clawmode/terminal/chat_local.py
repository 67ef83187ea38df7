"""`clawmode chat` in this process: the agent stops together with the chat."""

import gc
import getpass
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from clawmode.agent.events import Listener
from clawmode.agent.models import ModelPool
from clawmode.agent.requests import AgentRequest
from clawmode.agent.resolver import ConfigResolver
from clawmode.app.host import Host, open_host
from clawmode.app.setup import Setup
from clawmode.config import resolve as settings
from clawmode.exceptions import ConfigurationError
from clawmode.messaging.channel import InboundMessage
from clawmode.messaging.slash import COMMANDS
from clawmode.sessions.keys import is_session_id
from clawmode.sessions.store import Session, SessionStore
from clawmode.sessions.workspaces import current_folder
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.chat import HISTORY, Chat
from clawmode.terminal.chat_partner import Receipt
from clawmode.terminal.chat_prompt import CHANNEL
from clawmode.terminal.chat_screen import Screen, check_terminal
from clawmode.terminal.desk import Desk, make_approvals
from clawmode.terminal.interrupts import interruptible, join_tool_threads
from clawmode.terminal.local_turn import STARTING, load_models
from clawmode.terminal.turn import printed_logs
from clawmode.tools.approvals import Mode

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
        model = (await runtime.settings(request, session)).models[0]
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
class LocalChat:
    """The command `chat` without a gateway.

    Attributes:
        setup: The settings, tools and servers.
        session: The conversation: a key or an id; empty for the main session.
        agent_id: The agent; empty for the default agent.
        model: The model from now on; empty for the present one.
        approve: Who decides about calls; None for the mode of the configuration.
    """

    setup: Setup
    session: str = ""
    agent_id: str = ""
    model: str = ""
    approve: Mode | None = None

    def run(self) -> None:
        """Runs the chat to its end.

        Raises:
            ConfigurationError: There is no terminal, or the session, agent or model is invalid.
            KeyboardInterrupt: The user stopped it before the chat began.
        """
        check_terminal()
        view = AgentView(None, live=True, summary=False)
        with printed_logs(view):
            try:
                models = load_models(self.setup, self._request(), view)
            finally:
                view.close(None)
            anyio.run(self._drive, models)
        join_tool_threads()
        gc.freeze()  # otherwise the interpreter collects garbage in all libraries before it exits

    async def _drive(self, models: ModelPool) -> None:
        async with interruptible():
            with Screen() as screen:
                screen.note(STARTING)
                session = await self._find_session(models)
                chat = Chat(
                    screen,
                    self.setup.state / HISTORY,
                    session.key,
                    lambda: AgentView(None, live=False, summary=True),
                )
                configuration = self.setup.configuration
                agent_id = self.agent_id or settings.default_agent(configuration)
                mode = self.approve or settings.approve_mode(configuration, agent_id)
                desk = None
                if mode == "ask":
                    desk = Desk(chat.terminal, screen.paused, in_chat=True)
                approvals = make_approvals(mode, desk, tell=screen.say)
                channels = [chat.channel]
                workspace = current_folder(self.setup.state)
                async with open_host(
                    self.setup, approvals, models, channels=channels, workspace=workspace
                ) as host:
                    partner = LocalPartner(host, session.key, chat.channel.answers)
                    await chat.run(partner, desk)

    def _request(self) -> AgentRequest:
        by_id = is_session_id(self.session)
        return AgentRequest(
            session_key="" if by_id else self.session,
            session_id=self.session if by_id else "",
            agent_id=self.agent_id,
            model=self.model,
        )

    async def _find_session(self, models: ModelPool) -> Session:
        """Returns the session of the options, and changes its model if the options name one."""
        request, store = self._request(), SessionStore(self.setup.sessions_folder)
        owner = ConfigResolver(self.setup.configuration, models, self.setup.state).agent_of(request)
        key, session_id = request.session_key or None, request.session_id or None
        session = await store.resolve(key, session_id, owner)
        if (await store.get(session.key)).id != session.id:
            raise ConfigurationError(
                f"the conversation {session.id} was reset: {session.key} has a new one"
            )
        return await store.touch(session.id, model=self.model) if self.model else session
