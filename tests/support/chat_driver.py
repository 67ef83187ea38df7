"""What the tests of conversations have in common: an inbox and a channel over a scripted model."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from tests.support.agent_driver import configured
from tests.support.waiting import idle, until

from clawmode.agent.hooks import AgentHooks
from clawmode.agent.models import ModelPool
from clawmode.agent.operator_hooks import OperatorHooks
from clawmode.agent.resolver import ConfigResolver
from clawmode.agent.runtime import AgentRuntime
from clawmode.app.own_tools import OwnTools
from clawmode.messages import Text, UserMessage
from clawmode.messaging.channel import ChannelError, InboundMessage
from clawmode.messaging.inbox import Acceptance, Inbox
from clawmode.messaging.outbox import Outbox
from clawmode.messaging.reply_delivery import Delivery
from clawmode.models.base import ModelRequest
from clawmode.sessions.store import SessionStore
from clawmode.testing import ScriptedModel
from clawmode.tools.approvals import Approvals
from clawmode.tools.hooks import Hooks
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject

ANY: JsonObject = {"type": "object"}


@dataclass
class Room:
    """A channel that keeps what it is sent."""

    name: str = "room"
    can_edit: bool = False
    block_streaming: bool = False
    said: list[tuple[str, str]] = field(default_factory=list)
    edits: list[tuple[str, str]] = field(default_factory=list)
    broken: bool = False

    async def send(self, target: str, text: str) -> str:
        if self.broken:
            raise ChannelError("the room is closed")
        self.said.append((target, text))
        return f"m{len(self.said)}"

    async def edit(self, target: str, message_id: str, text: str) -> None:
        self.edits.append((message_id, text))

    def texts(self) -> list[str]:
        return [text for _, text in self.said]

    def now(self) -> list[str]:
        """The messages as whoever is in the room sees them."""
        shown = dict(enumerate(self.texts(), start=1))
        for message_id, text in self.edits:
            shown[int(message_id[1:])] = text
        return list(shown.values())


@dataclass
class Talk:
    """A conversation, and all that came of it."""

    runtime: AgentRuntime
    inbox: Inbox
    room: Room
    model: ScriptedModel
    hooks: Hooks
    chat: list[dict[str, Any]] = field(default_factory=list)

    async def say(self, text: str, **more: Any) -> Acceptance:
        given: dict[str, Any] = {
            "channel": "room",
            "target": "bob",
            "sender": "bob",
            "operator": True,
        } | more
        taken = await self.inbox.receive(InboundMessage(text=text, **given))
        if taken.how == "command":
            await idle()  # its answer has gone out
        return taken

    async def settled(self) -> None:
        """Waits until nothing runs, and everything was sent."""
        with anyio.fail_after(10):
            await until(lambda: not self._is_busy())
            await idle()

    def _is_busy(self) -> bool:
        runs = self.runtime.runs()
        return bool(self.inbox._lines) or any(not run.ended.is_set() for run in runs)

    def asked(self) -> list[list[str]]:
        """What people had said, at each request to the model."""
        return [people_said(request) for request in self.model.requests]


def people_said(request: ModelRequest) -> list[str]:
    return [
        part.text
        for message in request.messages
        if isinstance(message, UserMessage)
        for part in message.content
        if isinstance(part, Text)
    ]


@asynccontextmanager
async def talking(
    state: Path,
    script: list[Any],
    *,
    tools: Iterable[Tool] = (),
    room: Room | None = None,
    own: bool = False,
    operator: OperatorHooks | None = None,
    approvals: Approvals | None = None,
    rules: dict[str, Any] | None = None,
    **sections: Any,
) -> AsyncIterator[Talk]:
    """People in a room with an agent; `rules` is the configuration's `tools`."""
    configuration = configured(**sections, tools=rules or {})
    model, hooks, room = ScriptedModel(script), Hooks(), room or Room()
    outbox = Outbox({room.name: room}, AgentHooks(hooks))
    chat: list[dict[str, Any]] = []
    async with (
        ModelPool(configuration, {"scripted/*": model}) as models,
        OwnTools(configuration, state, hooks, outbox) as own_tools,
        AgentRuntime(
            resolver=ConfigResolver(configuration, models, state),
            sessions=SessionStore(state / "sessions"),
            state=state,
            tools=tools,
            own=own_tools.for_run if own else lambda run: (),
            clean_up=own_tools.end_session,
            hooks=hooks,
            operator=operator,
            approvals=approvals,
        ) as runtime,
        Delivery(runtime, outbox, lambda event: chat.append(dict(event))),
        Inbox(
            runtime=runtime,
            outbox=outbox,
            queue=configuration.messages.queue,
            find_model=models.find,
            default_agent="main",
            operator=operator,
        ) as inbox,
    ):
        yield Talk(runtime, inbox, room, model, hooks, chat)
