"""What a channel is: where messages come from, and where they can be sent, changed and read."""

import hashlib
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeAlias

from clawmode.exceptions import ClawmodeError
from clawmode.messages import Image
from clawmode.types import JsonObject, JsonValue


class ChannelError(ClawmodeError):
    """A message that could not be sent or changed, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbound:
    """A message that somebody has sent us.

    Attributes:
        channel: The name of the channel that it came by.
        target: Where the answer goes, in the channel's words: a room, a thread, a person.
        sender: Who says so, as far as the channel knows.
        id: The channel's name for it; one that is known is not taken twice. Empty: it has none.
        agent_id: Who is to answer; empty for the default agent.
        session_key: In which conversation; empty for the one of this channel and target.
        operator: Whether the sender may decide about approvals, and about the session.
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
        """As it is kept."""
        pictures: list[JsonValue] = [[image.data, image.media_type] for image in self.images]
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**plain, "images": pictures}

    @classmethod
    def from_json(cls, kept: JsonObject) -> "Inbound":
        """What `to_json` made.

        Raises:
            TypeError, ValueError, KeyError: It did not.
        """
        given: dict[str, Any] = dict(kept)
        images = tuple(Image(str(data), str(kind)) for data, kind in given.pop("images"))
        return cls(**given, images=images)


def message_id(message: Inbound) -> str:
    """Returns the id of a message in the inbox: every repetition of the message gets it again."""
    if not message.id:
        return uuid.uuid4().hex
    return hashlib.sha256(f"{message.channel}\0{message.id}".encode()).hexdigest()[:32]


Receive: TypeAlias = Callable[[Inbound], Awaitable[object]]
"""Takes a message in; returns as soon as it is kept, and does not wait for an answer."""


class Channel(Protocol):
    """A way out. How messages come in by it is the channel's own affair: it calls a `Receive`."""

    @property
    def name(self) -> str:
        """What the configuration calls it."""
        ...

    @property
    def can_edit(self) -> bool:
        """Whether what was sent can be changed."""
        ...

    @property
    def block_streaming(self) -> bool:
        """Whether replies go out in parts, as they come."""
        ...

    async def send(self, target: str, text: str) -> str:
        """Sends a message; its id there.

        Raises:
            ChannelError: It was not sent.
        """
        ...

    async def edit(self, target: str, message_id: str, text: str) -> None:
        """Changes a message that was sent.

        Raises:
            ChannelError: It was not changed.
        """
        ...
