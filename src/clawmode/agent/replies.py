"""What goes out at the end of a run: of all that was said and done, what a person is to read."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from clawmode.config.agents import Verbosity
from clawmode.messages import AssistantMessage, Message, Thinking, ToolMessage
from clawmode.text import shorten
from clawmode.types import JsonObject

SILENT = ("NO_REPLY", "no_reply")
"""What a model says that has nothing to say. Exactly this, and nothing beside it."""

MAX_SUMMARY_CHARS = 200
MAX_FULL_CHARS = 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What of a run is shown.

    Attributes:
        verbose: Whether tool calls are told of: in a line each, or in full.
        reasoning: Tell the model's thoughts.
    """

    verbose: Verbosity = "off"
    reasoning: bool = False


@dataclass(slots=True)
class SentMessages:
    """What messaging tools have sent in a run.

    Attributes:
        visible: Whether any of it reached whoever asked.
    """

    texts: set[str] = field(default_factory=set)
    visible: bool = False

    def add(self, text: str, *, visible: bool = True) -> None:
        """One more message. What others have read is no repetition for whoever asked."""
        if visible:
            self.texts.add(_plain(text))
            self.visible = True

    def has(self, text: str) -> bool:
        """Whether this was sent already; spaces and case aside."""
        return _plain(text) in self.texts

    def may_become(self, text: str) -> bool:
        """Whether a text is the beginning of one that was sent already."""
        plain = _plain(text)
        return any(sent.startswith(plain) for sent in self.texts)


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().casefold()


def is_silent(text: str) -> bool:
    """Whether a model says that it has nothing to say."""
    return text.strip() in SILENT


def shape(
    messages: Sequence[Message],
    *,
    error: str | None = None,
    sent: SentMessages | None = None,
    how: Shape | None = None,
) -> tuple[JsonObject, ...]:
    """The payloads of a run.

    Args:
        messages: What was said and done in it.
        error: Why it failed, if it did.
        sent: What messaging tools have sent.
        how: What is shown.
    """
    sent, how = sent or SentMessages(), how or Shape()
    payloads = [payload for it in messages for payload in _of(it, sent, how)]
    if error is not None:
        payloads.append({"text": error, "isError": True})
    if not any(payload.get("text") and not payload.get("kind") for payload in payloads):
        payloads += _fallback(messages, sent, error)
    return tuple(payloads)


def _of(message: Message, sent: SentMessages, how: Shape) -> Iterable[JsonObject]:
    if isinstance(message, ToolMessage) and how.verbose != "off":
        yield {"kind": "tool", "text": _summary(message, full=how.verbose == "full")}
    if not isinstance(message, AssistantMessage):
        return
    if how.reasoning:
        thoughts = "".join(part.text for part in message.content if isinstance(part, Thinking))
        if thoughts.strip():
            yield {"kind": "reasoning", "text": thoughts}
    text = message.text.strip()
    if text and not is_silent(text) and not sent.has(text):
        yield {"text": text}


def _fallback(
    messages: Sequence[Message], sent: SentMessages, error: str | None
) -> list[JsonObject]:
    """A tool's error, where else nothing would be said at all."""
    failed = [it for it in messages if isinstance(it, ToolMessage) and it.is_error]
    silent = any(isinstance(it, AssistantMessage) and is_silent(it.text) for it in messages)
    if error is not None or sent.visible or silent or not failed:
        return []
    return [{"text": f"{failed[-1].name} failed: {_short(failed[-1].text)}", "isError": True}]


def _summary(message: ToolMessage, *, full: bool) -> str:
    words = message.text[:MAX_FULL_CHARS] if full else _short(message.text)
    return f"{message.name}: {'failed: ' if message.is_error else ''}{words}"


def _short(text: str) -> str:
    return shorten(" ".join(text.split()), MAX_SUMMARY_CHARS)
