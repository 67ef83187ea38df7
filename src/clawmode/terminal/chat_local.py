"""A chat with an agent of this process: what `Chat` needs of the host."""

import getpass
from collections.abc import Callable

import anyio

from clawmode.agent.events import Listener
from clawmode.agent.requests import AgentRequest
from clawmode.app.host import Host
from clawmode.messaging.channel import InboundMessage
from clawmode.messaging.slash import COMMANDS
from clawmode.terminal.chat import Heard
from clawmode.terminal.chat_prompt import CHANNEL

TARGET = "you"
BEGIN = ("/new", "/reset")
LEAVE_SECONDS = 10.0
"""How long a run may take to be stopped."""


class HostPartner:
    """An agent that runs in this process, and stops with the chat.

    Args:
        host: Where it runs.
        key: The session.
        answers: The target that commands are answered at.
    """

    trouble = ""

    def __init__(self, host: Host, key: str, answers: str) -> None:
        self._host = host
        self._key = key
        self._answers = answers
        self._sender = _login()

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return len(self._host.inbox.waiting(self._key))

    def subscribe(
        self, watch: Listener, tell: Callable[[str], None], changed: Callable[[], None]
    ) -> Callable[[], None]:
        """Wants to see what runs do. What they say comes by the channel."""
        return self._host.runtime.subscribe(watch)

    async def serve(self) -> None:
        """The host does what is to be done."""

    async def model(self) -> str:
        """Who answers."""
        runtime = self._host.runtime
        session = await runtime.sessions.get(self._key)
        request = AgentRequest(session_key=self._key)
        model = (await runtime.settings(request, session)).models[0]
        return f"{model.provider}/{model.name}"

    async def receive(self, text: str) -> Heard:
        """Says something. What a command is answered with comes by the channel."""
        name, *more = text.split(maxsplit=1)
        begins = bool(more) and name.lower() in BEGIN  # a turn, whose words are no answer
        is_command = name[1:].lower() in COMMANDS and name.startswith("/") and not begins
        message = InboundMessage(
            channel=CHANNEL,
            target=self._answers if is_command else TARGET,
            sender=self._sender,
            session_key=self._key,
            operator=True,
            text=text,
        )
        return Heard((await self._host.inbox.receive(message)).how)

    async def stop(self) -> int:
        """Stops what runs, and drops what waits."""
        return self._host.inbox.stop(self._key)

    async def leave(self, say: Callable[[str], None]) -> None:
        """Stops what runs here, and waits until that is written down."""
        runs = self._host.runtime.under_way(self._key)
        # A run that was stopped a moment ago may not have ended yet: the user knows of that one.
        if any(not run.scope.cancel_called for run in runs):
            say("The run that goes on is stopped.")
        self._host.inbox.stop(self._key)
        with anyio.move_on_after(LEAVE_SECONDS):
            for run in runs:
                await run.ended.wait()


def _login() -> str:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return "operator"
