"""`Channel`: a place that messages come from and go to; and `InboundMessage`."""

import hashlib
import re
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any, Protocol, TypeAlias

from clawmode.exceptions import ClawmodeError
from clawmode.messages import Image
from clawmode.sessions.keys import InvalidSession, check_agent_id, session_key
from clawmode.types import JsonObject, JsonValue, dataclass


class ChannelError(ClawmodeError):
    """A message was not sent or changed; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundMessage:
    """A message that a channel received.

    Attributes:
        channel: The name of the channel.
        target: The address of the reply in that channel: a room, a thread, a person.
        sender: The author, as far as the channel knows.
        id: The id that the channel gave it, or empty; a known id is not accepted again.
        agent_id: The agent that answers; empty for the default agent.
        session_key: The session; empty for the session of this channel and target.
        operator: True if the sender may answer approvals and change the session.
    """

    channel: str
    target: str
    sender: str
    text: str
    id: str = ""
    images: tuple[Image, ...] = ()
    agent_id: str = ""
    session_key: str = ""
    operator: bool = False

    def to_json(self) -> JsonObject:
        """Returns the message as JSON, for `from_json`."""
        pictures: list[JsonValue] = [[image.data, image.media_type] for image in self.images]
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**plain, "images": pictures}

    @classmethod
    def from_json(cls, kept: JsonObject) -> "InboundMessage":
        """Reads the output of `to_json`.

        Raises:
            TypeError, ValueError, KeyError: The data was not written by `to_json`.
        """
        given: dict[str, Any] = dict(kept)
        images = tuple(Image(str(data), str(kind)) for data, kind in given.pop("images"))
        return cls(**given, images=images)


def message_id(message: InboundMessage) -> str:
    """Returns the id of a message in the inbox: every repetition of the message gets it again."""
    if not message.id:
        return uuid.uuid4().hex
    return hashlib.sha256(f"{message.channel}\0{message.id}".encode()).hexdigest()[:32]


def conversation_key(agent_id: str, channel: str, target: str) -> str:
    """Returns the session key of a target; a digest replaces names that no key may contain.

    Raises:
        InvalidSession: The agent id is not valid.
    """
    owner = check_agent_id(agent_id)
    plain = channel == channel.lower() and target == target.lower() and ":" not in channel
    if plain and not target.startswith("~"):
        with suppress(InvalidSession):
            return session_key(f"agent:{owner}:{channel}:{target}")
    name = re.sub(r"[^a-z0-9]+", "-", channel.lower()).strip("-") or "channel"
    digest = hashlib.sha256(f"{channel}\0{target}".encode()).hexdigest()[:24]
    return session_key(f"agent:{owner}:{name[:40]}:~{digest}")


Receive: TypeAlias = Callable[[InboundMessage], Awaitable[object]]
"""Accepts a message; returns as soon as it is stored, without waiting for a reply."""


class Channel(Protocol):
    """Sends messages. To receive messages, a channel calls a `Receive` on its own."""

    @property
    def name(self) -> str:
        """The name in the configuration."""
        ...

    @property
    def can_edit(self) -> bool:
        """True if sent messages can be changed."""
        ...

    @property
    def block_streaming(self) -> bool:
        """True if replies are sent block by block, while the model writes."""
        ...

    async def send(self, target: str, text: str) -> str:
        """Sends a message, and returns its id in the channel.

        Raises:
            ChannelError: The message was not sent.
        """
        ...

    async def edit(self, target: str, message_id: str, text: str) -> None:
        """Changes a message that was sent.

        Raises:
            ChannelError: The message was not changed.
        """
        ...
