"""`clawmode chat` in this process: the agent stops together with the chat."""

import getpass
from collections.abc import Callable
from pathlib import Path

import anyio

from clawmode.agent.events import Listener
from clawmode.agent.requests import AgentRequest
from clawmode.app.setup import Setup
from clawmode.messaging.channel import InboundMessage
from clawmode.messaging.slash import COMMANDS
from clawmode.sessions.workspaces import current_folder
from clawmode.terminal.chat import Receipt, reset_error
from clawmode.terminal.chat_prompt import CHANNEL, TerminalChannel
from clawmode.terminal.local_turn import STARTING, LocalTurn
from clawmode.terminal.turn import WaitingRun

TARGET = "you"
BEGIN = ("/new", "/reset")
LEAVE_SECONDS = 10.0
"""How long to wait at the end for a run to stop."""


class LocalPartner(LocalTurn):
    """An agent that runs in this process, and stops with the chat."""

    opening = STARTING
    trouble = ""
    _answers = ""
    _key = ""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        try:
            self._sender = getpass.getuser()
        except (ImportError, KeyError, OSError):
            self._sender = "operator"

    def attach(
        self, watch: Listener, channel: TerminalChannel, changed: Callable[[], None]
    ) -> None:
        self._watch, self.channels, self._answers = watch, (channel,), channel.answers

    def workspace(self) -> Path | None:
        return current_folder(self._setup.state)

    async def start(self, request: AgentRequest) -> WaitingRun:
        store = self._host.runtime.sessions
        key, session_id = request.session_key or None, request.session_id or None
        session = await store.resolve(key, session_id, self._host.resolver.agent_of(request))
        if (await store.get(session.key)).id != session.id:
            raise reset_error(session.id, session.key)
        if request.model:
            session = await store.touch(session.id, model=request.model)
        self._key = session.key
        return WaitingRun(
            request=request, run_id="", session_key=session.key, session_id=session.id
        )

    @property
    def waiting(self) -> int:
        return len(self._host.inbox.waiting(self._key))

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

    async def leave(self, say: Callable[[str], None]) -> bool:
        """Stops the runs, and waits until their end is recorded."""
        runs = self._host.runtime.under_way(self._key)
        # The user knows already of a run that was stopped a moment ago and has not ended yet.
        if any(not run.scope.cancel_called for run in runs):
            say("The active run is stopped.")
        self._host.inbox.stop(self._key)
        with anyio.move_on_after(LEAVE_SECONDS):
            for run in runs:
                await run.ended.wait()
        return False
