"""The outbox: sends every outgoing message, after the hooks, in order for each target."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import anyio

from clawmode.agent.hooks import AgentHooks, MessageEvent
from clawmode.messaging.channel import Channel, ChannelError
from clawmode.tasks import hold
from clawmode.types import dataclass

logger = logging.getLogger("clawmode.channels")

MAX_CHARS = 4_000
"""The most characters of one message."""

SEND_SECONDS = 120.0
"""How long a channel may take for one message, with retries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The result of sending a message.

    Attributes:
        message_ids: The ids of the parts that were sent.
        text: The text after the hooks; empty if a hook cancelled it.
        error: Why sending failed.
    """

    status: Literal["sent", "cancelled", "failed"]
    message_ids: tuple[str, ...] = ()
    text: str = ""
    error: str = ""

    @property
    def message_id(self) -> str:
        """The id of the first part; empty if nothing was sent."""
        return self.message_ids[0] if self.message_ids else ""


class Outbox:
    """Sends messages through the configured channels."""

    def __init__(self, channels: Mapping[str, Channel], hooks: AgentHooks) -> None:
        self._channels = channels
        self._hooks = hooks
        self._turns: dict[tuple[str, str], anyio.Lock] = {}

    def find(self, name: str) -> Channel | None:
        return self._channels.get(name)

    def has(self, name: str) -> bool:
        return name in self._channels

    async def send(
        self,
        channel: str,
        target: str,
        text: str,
        *,
        session_key: str = "",
        sender: str = "",
        limit: int = MAX_CHARS,
        edited: str = "",
    ) -> Receipt:
        """Sends a message, or changes the message `edited`, unless a hook cancels that.

        What is too long for one message is sent in parts.

        Raises:
            ChannelError: There is no such channel, or it cannot change messages.
        """
        found = self._channels.get(channel)
        if found is None:
            known, name = ", ".join(sorted(self._channels)) or "none", channel[:80]
            raise ChannelError(f"there is no channel {name!r}; the configuration has: {known}")
        if edited and not found.can_edit:
            raise ChannelError(f"the channel {channel!r} cannot change messages")
        given = MessageEvent(
            text=text, channel=channel, target=target, sender=sender, session_key=session_key
        )
        # Hooks run under the lock too: a slow hook must not let a later message overtake.
        async with hold(self._turns, (channel, target)):
            event = await self._hooks.send(given)
            if event is None or not event.text.strip():
                return Receipt(status="cancelled")
            receipt = await _Job(found, event, limit, edited).run()
        # Outside of the lock: these hooks only watch, and may send messages themselves.
        sent = replace(event, error=receipt.error or None)
        await self._hooks.hooks.notify("message_sent", sent)
        return receipt


@dataclass(frozen=True, slots=True)
class _Job:
    """A message to send or to change.

    Attributes:
        edited: The id of the message to change; empty for a new message.
    """

    channel: Channel
    event: MessageEvent
    limit: int
    edited: str = ""

    async def run(self) -> Receipt:
        """Sends all parts; stops at the first part that fails."""
        parts = split_text(self.event.text, self.limit)
        ids: list[str] = []
        error = ""
        try:
            for part in parts:
                # Without a limit, a channel that hangs would block its target for ever.
                with anyio.move_on_after(SEND_SECONDS) as limit:
                    if self.edited and not ids:
                        await self.channel.edit(self.event.target, self.edited, part)
                        ids.append(self.edited)
                    else:
                        ids.append(await self.channel.send(self.event.target, part))
                if limit.cancelled_caught:
                    raise ChannelError(f"the channel did not answer within {SEND_SECONDS:g} s")
        except ChannelError as failed:
            error = str(failed)
        except Exception as failed:
            logger.exception("channel %s", self.event.channel)
            error = f"the channel failed: {type(failed).__name__}"
        if error and len(parts) > 1:
            error += f" ({len(ids)} of {len(parts)} parts were sent)"
        status = "failed" if error else "sent"
        return Receipt(status=status, message_ids=tuple(ids), text=self.event.text, error=error)


# ---- Long texts ----


def split_text(text: str, limit: int = MAX_CHARS) -> list[str]:
    """Splits a text into parts, between paragraphs, lines or words if possible."""
    parts: list[str] = []
    rest = text.strip("\n").rstrip()
    while len(rest) > limit:
        end = _border(rest, limit)
        parts.append(rest[:end].rstrip())
        rest = rest[end:].lstrip("\n") if "\n" in rest[end : end + 1] else rest[end:].lstrip()
    return [part for part in (*parts, rest) if part.strip()]


def _border(text: str, limit: int) -> int:
    # Search the second half first: a message should not be just a heading.
    for start in (limit // 2, 1):
        for border in ("\n\n", "\n", " "):
            found = text.rfind(border, start, limit + len(border))
            if found > 0:
                return found
    return limit
