"""`clawmode chat` with a gateway: a conversation that the gateway owns, shown like a local one."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from clawmode.exceptions import ConfigurationError
from clawmode.rpc.client import GatewayClient, RpcError
from clawmode.sessions.keys import is_session_id, session_key
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.chat import HISTORY, Chat
from clawmode.terminal.chat_remote import RemotePartner, SessionQuestions
from clawmode.terminal.chat_screen import Screen
from clawmode.terminal.desk import GATEWAY_STOPS, Desk, make_approvals
from clawmode.terminal.interrupts import interruptible
from clawmode.terminal.turn import printed_logs
from clawmode.tools.approvals import Mode
from clawmode.types import JsonObject

CLIENT = "clawmode-chat"
CONNECTING = "… connecting to the gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteChat:
    """The command `chat` with a gateway.

    Attributes:
        state: The state folder of the gateway.
        session: The conversation: a key or an id; empty for the main session.
        agent_id: The agent; empty for the default agent.
        model: The model from now on; empty for the present one.
        approve: Who decides about calls; None for the mode of the configuration.
    """

    state: Path
    session: str = ""
    agent_id: str = ""
    model: str = ""
    approve: Mode | None = None

    def run(self) -> None:
        """Runs the chat to its end.

        Raises:
            ConfigurationError: The session, agent or model is invalid.
            ClawmodeError: The gateway cannot be reached, or rejects the connection.
            KeyboardInterrupt: The user stopped it before the chat began.
        """
        with printed_logs(AgentView(None, live=False, summary=False)), _quiet_connection():
            anyio.run(self._drive)

    async def _drive(self) -> None:
        client = GatewayClient.local(self.state, client_id=CLIENT, mode="cli")
        async with interruptible():
            with Screen() as screen:
                screen.note(CONNECTING)
                async with client:
                    key = await self._find_session(client)
                    chat = Chat(
                        screen,
                        self.state / HISTORY,
                        key,
                        lambda: AgentView(None, live=False, summary=True),
                    )
                    mode, desk = self.approve or "ask", None
                    if mode == "ask":
                        desk = Desk(chat.terminal, screen.paused, until=GATEWAY_STOPS, in_chat=True)
                    questions = SessionQuestions(client, make_approvals(mode, desk), key)
                    await chat.run(RemotePartner(client, key, questions), desk)

    async def _find_session(self, client: GatewayClient) -> str:
        """Returns the key of the session, and changes its model if the options name one.

        Raises:
            ConfigurationError: There is no such session, agent or model.
        """
        try:
            by_id = is_session_id(self.session)
            key = await (self._find_by_id(client) if by_id else self._find_by_key(client))
            await client.follow(key)
            if self.model:
                given: JsonObject = {"sessionKey": key, "model": self.model}
                await client.call("sessions.patch", given)
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

    async def _find_by_id(self, client: GatewayClient) -> str:
        given: JsonObject = {"sessionId": self.session}
        if self.agent_id:
            given["agentId"] = self.agent_id
        answer: dict[str, Any] = await client.call("sessions.get", given)
        found = answer["session"]
        if not found["current"]:
            raise ConfigurationError(
                f"the conversation {found['sessionId']} was reset: {found['key']} has a new one"
            )
        return str(found["key"])


@contextmanager
def _quiet_connection() -> Iterator[None]:
    """Hides log records about reconnecting: the line below the prompt shows that state."""

    def is_other(record: logging.LogRecord) -> bool:
        return record.module != "connection"

    logger = logging.getLogger("clawmode.gateway")
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)
