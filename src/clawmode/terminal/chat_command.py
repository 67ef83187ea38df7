"""`clawmode chat`: a conversation at the terminal; whoever sits there answers for its calls."""

import gc
from dataclasses import dataclass

import anyio

from clawmode.agent.models import ModelPool
from clawmode.agent.requests import AgentRequest
from clawmode.agent.resolver import ConfigResolver
from clawmode.app.host import open_host
from clawmode.app.setup import Setup
from clawmode.config import resolve as settings
from clawmode.exceptions import ConfigurationError
from clawmode.sessions.keys import is_session_id
from clawmode.sessions.store import Session, SessionStore
from clawmode.sessions.workspaces import current_folder
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.chat import HISTORY, Chat
from clawmode.terminal.chat_local import HostPartner
from clawmode.terminal.chat_prompt import ChatDesk
from clawmode.terminal.chat_screen import Screen, check_terminal
from clawmode.terminal.desk import Mode, make_approvals
from clawmode.terminal.interrupts import interruptible, outlast_tools
from clawmode.terminal.local_turn import CONNECTS, load_models, told_logs
from clawmode.tools.approvals import Approvals


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCommand:
    """How a chat is set up.

    Attributes:
        setup: What the model can call, and what the configuration says.
        session: The conversation: a key, an id, or nothing for the main one.
        agent_id: Who answers; empty for the default agent.
        model: Who answers from now on, instead of the agent's model.
        approve: Who decides about calls; None: as the configuration says.
    """

    setup: Setup
    session: str = ""
    agent_id: str = ""
    model: str = ""
    approve: Mode | None = None

    def run(self) -> None:
        """Runs the chat to its end.

        Raises:
            ConfigurationError: There is no terminal, or what was given cannot be meant.
            KeyboardInterrupt: It was stopped before it had begun.
        """
        check_terminal()
        view = AgentView(None, live=True, summary=False)
        with told_logs(view):
            try:
                models = load_models(self.setup, self._request(), view)
            finally:
                view.close(None)
            anyio.run(self._drive, models)
        outlast_tools()
        gc.freeze()  # else the interpreter looks at all of the libraries before it ends

    async def _drive(self, models: ModelPool) -> None:
        async with interruptible():
            with Screen() as screen:
                screen.note(CONNECTS)
                session = await self._choose(models)
                chat = Chat(screen, self.setup.state / HISTORY, session.key)
                approvals = self._approvals(screen, chat)
                channels = [chat.channel]
                workspace = current_folder(self.setup.state)
                async with open_host(
                    self.setup, approvals, models, channels=channels, workspace=workspace
                ) as host:
                    desk = approvals if isinstance(approvals, ChatDesk) else None
                    partner = HostPartner(host, session.key, chat.channel.answers)
                    await chat.run(partner, desk)

    def _approvals(self, screen: Screen, chat: Chat) -> Approvals:
        configuration = self.setup.configuration
        agent_id = self.agent_id or settings.default_agent(configuration)
        mode = self.approve or settings.approve_mode(configuration, agent_id)
        if mode == "ask":
            return ChatDesk(chat.seat, screen.paused)
        return make_approvals(
            mode, later=False, terminal=None, paused=screen.paused, tell=screen.say
        )

    # ---- The conversation ----

    def _request(self) -> AgentRequest:
        by_id = is_session_id(self.session)
        return AgentRequest(
            session_key="" if by_id else self.session,
            session_id=self.session if by_id else "",
            agent_id=self.agent_id,
            model=self.model,
        )

    async def _choose(self, models: ModelPool) -> Session:
        """The conversation that is meant, with the model that was named."""
        request, store = self._request(), SessionStore(self.setup.sessions_folder)
        owner = ConfigResolver(self.setup.configuration, models, self.setup.state).agent_of(request)
        key, session_id = request.session_key or None, request.session_id or None
        session = await store.resolve(key, session_id, owner)
        if (await store.get(session.key)).id != session.id:
            raise ConfigurationError(
                f"the conversation {session.id} was reset: {session.key} goes on with another one"
            )
        return await store.touch(session.id, model=self.model) if self.model else session
