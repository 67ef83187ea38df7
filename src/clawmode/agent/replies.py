"""The reply of a run: which of its messages and tool results a person gets to read."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import field

from clawmode.config.agents import AgentOptions
from clawmode.messages import AssistantMessage, Message, Thinking, ToolMessage
from clawmode.text import shorten
from clawmode.types import JsonObject, dataclass

SILENT = ("NO_REPLY", "no_reply")
"""The whole text of a reply by which a model says that nothing is to be sent."""

MAX_SUMMARY_CHARS = 201
"""Of one line about a tool call, with the ellipsis."""

MAX_FULL_CHARS = 8_000


@dataclass(slots=True)
class SentMessages:
    """The messages that messaging tools have sent in a run, so that the reply repeats none.

    Attributes:
        visible: Whether a message reached the person who asked.
    """

    texts: set[str] = field(default_factory=set)
    visible: bool = False

    def add(self, text: str, *, visible: bool = True) -> None:
        """Adds a message. A message that only others could read is no repetition in a reply."""
        if visible:
            self.texts.add(_plain(text))
            self.visible = True

    def has(self, text: str) -> bool:
        """True if the text was sent before, apart from spaces and case."""
        return _plain(text) in self.texts

    def may_become(self, text: str) -> bool:
        """True if a message that was sent before begins with the text."""
        plain = _plain(text)
        return any(sent.startswith(plain) for sent in self.texts)


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().casefold()


def is_silent(text: str) -> bool:
    """True if the model says by this text that nothing is to be sent."""
    return text.strip() in SILENT


def shape(
    messages: Sequence[Message],
    *,
    error: str | None = None,
    sent: SentMessages | None = None,
    how: AgentOptions | None = None,
) -> tuple[JsonObject, ...]:
    """Returns the payloads of a run: the parts of its reply.

    Args:
        messages: The messages of the run.
        error: Why the run failed, if it did.
        sent: The messages that messaging tools have sent.
        how: Says by `verbose` and `reasoning` what the reply contains.
    """
    sent, how = sent or SentMessages(), how or AgentOptions()
    payloads = [payload for message in messages for payload in _payloads(message, sent, how)]
    if error is not None:
        payloads.append({"text": error, "isError": True})
    if any(payload.get("text") and not payload.get("kind") for payload in payloads):
        return tuple(payloads)
    # Without any text a person would not learn that a tool failed.
    failed = [it for it in messages if isinstance(it, ToolMessage) and it.is_error]
    silent = any(isinstance(it, AssistantMessage) and is_silent(it.text) for it in messages)
    if error is None and failed and not silent and not sent.visible:
        text = f"{failed[-1].name} failed: {_summary(failed[-1])}"
        payloads.append({"text": text, "isError": True})
    return tuple(payloads)


def _payloads(message: Message, sent: SentMessages, how: AgentOptions) -> Iterable[JsonObject]:
    if isinstance(message, ToolMessage) and how.verbose != "off":
        full = how.verbose == "full"
        text = shorten(message.text, MAX_FULL_CHARS) if full else _summary(message)
        failed = "failed: " if message.is_error else ""
        yield {"kind": "tool", "text": f"{message.name}: {failed}{text}"}
    if not isinstance(message, AssistantMessage):
        return
    if how.reasoning == "on":
        thoughts = "".join(part.text for part in message.content if isinstance(part, Thinking))
        if thoughts.strip():
            yield {"kind": "reasoning", "text": thoughts}
    text = message.text.strip()
    if text and not is_silent(text) and not sent.has(text):
        yield {"text": text}


def _summary(message: ToolMessage) -> str:
    return shorten(" ".join(message.text.split()), MAX_SUMMARY_CHARS)
