"""`clawmode chat` with a gateway: a conversation that the gateway owns, shown like a local one."""

import logging
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import anyio

from clawmode.exceptions import ConfigurationError
from clawmode.rpc.client import GatewayClient, RpcError
from clawmode.rpc.connection import LOGGER
from clawmode.sessions.keys import is_session_id, session_key
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.chat import Chat, Partner, TerminalChat, reset_error
from clawmode.terminal.chat_remote import RemotePartner
from clawmode.terminal.chat_screen import Screen
from clawmode.terminal.desk import GATEWAY_STOPS
from clawmode.terminal.interrupts import interruptible
from clawmode.terminal.remote_questions import RemoteQuestions
from clawmode.terminal.turn import printed_logs
from clawmode.tools.approvals import Approvals
from clawmode.types import JsonObject

CLIENT = "clawmode-chat"
CONNECTING = "… connecting to the gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteChat(TerminalChat):
    """The command `chat` with a gateway."""

    def run(self) -> None:
        """Runs the chat to its end; the agent continues in the gateway.

        Raises:
            ConfigurationError: The session, agent or model is invalid.
            ClawmodeError: The gateway cannot be reached, or rejects the connection.
            KeyboardInterrupt: The user stopped it before the chat began.
        """

        def hide(record: logging.LogRecord) -> bool:
            return False

        # The line below the prompt shows whether the client is connected; the log would repeat it.
        connection = logging.getLogger(LOGGER)
        connection.addFilter(hide)
        try:
            with printed_logs(AgentView(None, live=False, summary=False)):
                anyio.run(self._drive)
        finally:
            connection.removeFilter(hide)

    async def _drive(self) -> None:
        def open_partner(chat: Chat, approvals: Approvals) -> AbstractAsyncContextManager[Partner]:
            questions = RemoteQuestions(client, approvals, sessionKey=key)
            return nullcontext(RemotePartner(client, key, questions))

        client = GatewayClient.local(self.state, client_id=CLIENT, mode="cli")
        async with interruptible():
            with Screen() as screen:
                screen.note(CONNECTING)
                async with client:
                    key = await self._find_session(client)
                    mode = self.approve or "ask"
                    await self.talk(screen, key, mode, GATEWAY_STOPS, open_partner)

    async def _find_session(self, client: GatewayClient) -> str:
        """Returns the key of the session, and changes its model if the options name one.

        Raises:
            ConfigurationError: There is no such session, agent or model.
        """
        try:
            if is_session_id(self.session):
                agent: JsonObject = {"agentId": self.agent_id} if self.agent_id else {}
                given: JsonObject = {"sessionId": self.session, **agent}
                answer: dict[str, Any] = await client.call("sessions.get", given)
                found = answer["session"]
                if not found["current"]:
                    raise reset_error(found["sessionId"], found["key"])
                key = str(found["key"])
            else:
                key = await self._find_by_key(client)
            await client.follow(key)
            if self.model:
                await client.call("sessions.patch", {"sessionKey": key, "model": self.model})
        except RpcError as error:
            if error.code in ("INVALID_REQUEST", "NOT_FOUND"):
                raise ConfigurationError(str(error)) from None
            raise
        return key

    async def _find_by_key(self, client: GatewayClient) -> str:
        known: dict[str, Any] = await client.call("agents.list")
        names_agent = self.session.lower().startswith("agent:")
        default = None if names_agent else str(known["defaultId"])
        key = session_key(self.session or None, self.agent_id or default)
        owner = key.split(":")[1]
        names = [agent["id"] for agent in known["agents"]]
        if owner not in names:
            raise ConfigurationError(
                f"the gateway has no agent {owner!r}; it has: {', '.join(names)}"
            )
        try:
            await client.call("sessions.get", {"sessionKey": key})
        except RpcError as error:
            if error.code != "NOT_FOUND":
                raise
            await client.call("sessions.create", {"sessionKey": key})
        return key
