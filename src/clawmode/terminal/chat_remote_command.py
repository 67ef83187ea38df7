"""`clawmode chat` as a client: a conversation in a gateway, shown as if it ran here."""

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
from clawmode.terminal.chat_remote import RemoteChatDesk, RemotePartner, SessionQuestions
from clawmode.terminal.chat_screen import Screen
from clawmode.terminal.desk import Mode
from clawmode.terminal.interrupts import interruptible
from clawmode.terminal.remote_questions import remote_approvals
from clawmode.terminal.turn import told_logs
from clawmode.tools.approvals import Approvals
from clawmode.types import JsonObject

CLIENT = "clawmode-chat"
CONNECTS = "… connecting to the gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteChatCommand:
    """How a chat in a gateway is set up.

    Attributes:
        state: The state folder that the gateway runs on.
        session: The conversation: a key, an id, or nothing for the main one.
        agent_id: Who answers; empty for the default agent.
        model: Who answers from now on, instead of the agent's model.
        approve: Who decides about calls; None: as the configuration says.
    """

    state: Path
    session: str = ""
    agent_id: str = ""
    model: str = ""
    approve: Mode | None = None

    def run(self) -> None:
        """Runs the chat to its end.

        Raises:
            ConfigurationError: What was given cannot be meant.
            ClawmodeError: The gateway is not there, or does not let us in.
            KeyboardInterrupt: It was stopped before it had begun.
        """
        with told_logs(AgentView(None, live=False, summary=False)), _quiet_connection():
            anyio.run(self._drive)

    async def _drive(self) -> None:
        client = GatewayClient.local(self.state, client_id=CLIENT, mode="cli")
        async with interruptible():
            with Screen() as screen:
                screen.note(CONNECTS)
                async with client:
                    key = await self._choose(client)
                    chat = Chat(screen, self.state / HISTORY, key)
                    approvals = self._approvals(screen, chat)
                    desk = approvals if isinstance(approvals, RemoteChatDesk) else None
                    questions = SessionQuestions(client, approvals, key)
                    await chat.run(RemotePartner(client, key, questions), desk)

    def _approvals(self, screen: Screen, chat: Chat) -> Approvals:
        if self.approve in (None, "ask"):
            return RemoteChatDesk(chat.seat, screen.paused)
        return remote_approvals(self.approve or "ask", None, screen.paused)

    # ---- The conversation ----

    async def _choose(self, client: GatewayClient) -> str:
        """The key of the conversation that is meant, with the model that was named.

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
        if owner not in [it["id"] for it in known["agents"]]:
            raise ConfigurationError(f"the gateway has no agent {owner!r}")
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
                f"the conversation {found['sessionId']} was reset: {found['key']} goes on with "
                "another one"
            )
        return str(found["key"])


@contextmanager
def _quiet_connection() -> Iterator[None]:
    """What stands below the prompt says already that the connection is lost."""
    logger = logging.getLogger("clawmode.gateway")
    logger.addFilter(_is_no_attempt)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_attempt)


def _is_no_attempt(record: logging.LogRecord) -> bool:
    return record.module != "connection"
