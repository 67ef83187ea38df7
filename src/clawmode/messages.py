"""What is said in a conversation, and the JSON that it is kept as.

Plain data. What a provider wants to see again with a part (a signature, an id, encrypted thoughts)
is in its `meta`, as that provider's adapter wrote it; nobody else looks inside.
"""

import time
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from clawmode.types import JsonObject, JsonValue

StopReason: TypeAlias = Literal["stop", "tool_calls", "length", "refused", "error", "aborted"]
STOP_REASONS: tuple[StopReason, ...] = (
    "stop",
    "tool_calls",
    "length",
    "refused",
    "error",
    "aborted",
)
_STOPS: dict[str, StopReason] = {it: it for it in STOP_REASONS}


class BadMessage(ValueError):
    """JSON that is no message; the text says what is wrong with it."""


# ---- Parts ----


@dataclass(frozen=True, slots=True)
class Text:
    """Words."""

    text: str
    meta: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """What a model thought before it spoke. Empty words with a `meta` are thoughts it hides."""

    text: str
    meta: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """A picture: base64, and its type."""

    data: str = field(repr=False)
    media_type: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model wants to be made.

    Attributes:
        id: Unique in the conversation.
        arguments: An object, or the text that was to be one and is not.
    """

    id: str
    name: str
    arguments: JsonObject | str
    meta: JsonObject | None = None


# ---- Messages ----


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, as the provider counted them."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
        )

    def to_json(self) -> JsonObject:
        """As it is told and kept."""
        return {
            "input": self.input,
            "output": self.output,
            "cacheRead": self.cache_read,
            "cacheWrite": self.cache_write,
        }

    @classmethod
    def from_json(cls, value: JsonObject) -> "Usage":
        """What was told or kept. What is no number counts as nothing."""
        input, output = value.get("input"), value.get("output")
        read, write = value.get("cacheRead"), value.get("cacheWrite")
        return cls(
            input if isinstance(input, int) else 0,
            output if isinstance(output, int) else 0,
            read if isinstance(read, int) else 0,
            write if isinstance(write, int) else 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """What a person, or a program in their place, says."""

    content: tuple[Text | Image, ...]
    at: float = field(default_factory=time.time)

    @classmethod
    def of(cls, text: str) -> "UserMessage":
        """One of words alone."""
        return cls(content=(Text(text),))


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessage:
    """What a model says.

    Attributes:
        provider: Whose `meta` the parts have.
        meta: What its provider wants to see again with the message as a whole.
        error: Why it ended early, if it did.
    """

    content: tuple[Text | Thinking | ToolCall, ...]
    provider: str = ""
    model: str = ""
    usage: Usage = Usage()
    stop: StopReason = "stop"
    error: str | None = None
    meta: JsonObject | None = None
    at: float = field(default_factory=time.time)

    @property
    def text(self) -> str:
        """Its words, without the thoughts."""
        return "".join(part.text for part in self.content if isinstance(part, Text))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that it asks for, in order."""
        return tuple([part for part in self.content if isinstance(part, ToolCall)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMessage:
    """What became of a call.

    Attributes:
        details: For people and programs, never for the model.
    """

    call_id: str
    name: str
    content: tuple[Text | Image, ...]
    is_error: bool = False
    details: JsonValue = None
    at: float = field(default_factory=time.time)

    @property
    def text(self) -> str:
        """Its words."""
        return "".join(part.text for part in self.content if isinstance(part, Text))


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage
Part: TypeAlias = Text | Thinking | Image | ToolCall


# ---- JSON ----


def to_json(message: Message) -> JsonObject:
    """A message as it is kept. What is empty is left out."""
    content: list[JsonValue] = [_part_to_json(part) for part in message.content]
    if isinstance(message, UserMessage):
        return {"role": "user", "content": content, "at": message.at}
    made: dict[str, JsonValue]
    if isinstance(message, AssistantMessage):
        made = {
            "role": "assistant",
            "content": content,
            "provider": message.provider,
            "model": message.model,
            "usage": message.usage.to_json(),
            "stop": message.stop,
            "error": message.error,
            "meta": message.meta,
        }
    else:
        made = {
            "role": "tool",
            "callId": message.call_id,
            "name": message.name,
            "content": content,
            "isError": message.is_error or None,
            "details": message.details,
        }
    kept = {key: value for key, value in made.items() if value is not None}
    return {**kept, "at": message.at}


def _part_to_json(part: Part) -> JsonObject:
    if isinstance(part, Image):
        return {"type": "image", "data": part.data, "mediaType": part.media_type}
    made: JsonObject
    if isinstance(part, ToolCall):
        made = {"type": "toolCall", "id": part.id, "name": part.name, "arguments": part.arguments}
    else:
        made = {"type": "text" if isinstance(part, Text) else "thinking", "text": part.text}
    return made if part.meta is None else {**made, "meta": part.meta}


def from_json(value: JsonValue) -> Message:
    """The message that was kept.

    Raises:
        BadMessage: It is none.
    """
    # Called for every line of a transcript: functions over the object, no reader of it.
    kept = _object(value)
    role = _text(kept, "role")
    at = _number(kept, "at")
    parts = [_part_from_json(part) for part in _items(kept, "content")]
    if role == "user":
        return UserMessage(content=_only(parts, (Text, Image)), at=at)
    if role == "assistant":
        return AssistantMessage(
            content=_only(parts, (Text, Thinking, ToolCall)),
            provider=_text(kept, "provider", ""),
            model=_text(kept, "model", ""),
            usage=Usage.from_json(_mapping(kept, "usage") or {}),
            stop=_STOPS.get(_text(kept, "stop", "stop"), "stop"),
            error=_text(kept, "error", "") or None,
            meta=_mapping(kept, "meta"),
            at=at,
        )
    if role == "tool":
        return ToolMessage(
            call_id=_text(kept, "callId"),
            name=_text(kept, "name"),
            content=_only(parts, (Text, Image)),
            is_error=kept.get("isError") is True,
            details=kept.get("details"),
            at=at,
        )
    raise BadMessage(f"there is no role {role[:40]!r}")


def _part_from_json(value: JsonValue) -> Part:
    kept = _object(value)
    kind = _text(kept, "type")
    if kind == "text":
        return Text(_text(kept, "text"), _mapping(kept, "meta"))
    if kind == "thinking":
        return Thinking(_text(kept, "text"), _mapping(kept, "meta"))
    if kind == "image":
        return Image(_text(kept, "data"), _text(kept, "mediaType"))
    if kind == "toolCall":
        arguments = kept.get("arguments")
        if not isinstance(arguments, (dict, str)):
            raise BadMessage("the arguments of a call are neither an object nor a text")
        return ToolCall(_text(kept, "id"), _text(kept, "name"), arguments, _mapping(kept, "meta"))
    raise BadMessage(f"there is no part of type {kind[:40]!r}")


def _only(parts: list[Part], kinds: tuple[type[Any], ...]) -> tuple[Any, ...]:
    for part in parts:
        if not isinstance(part, kinds):
            raise BadMessage(f"{type(part).__name__} is no part of such a message")
    return tuple(parts)


# ---- An object, member by member ----


def _object(value: JsonValue) -> JsonObject:
    if not isinstance(value, dict):
        raise BadMessage(f"found {type(value).__name__}, expected an object")
    return value


def _text(value: JsonObject, key: str, default: str | None = None) -> str:
    found = value.get(key, default)
    if not isinstance(found, str):
        raise BadMessage(f"{key!r} is no text")
    return found


def _number(value: JsonObject, key: str) -> float:
    found = value.get(key, 0.0)
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise BadMessage(f"{key!r} is no number")
    return float(found)


def _items(value: JsonObject, key: str) -> list[JsonValue]:
    found = value.get(key, [])
    if not isinstance(found, list):
        raise BadMessage(f"{key!r} is no list")
    return found


def _mapping(value: JsonObject, key: str) -> JsonObject | None:
    found = value.get(key)
    if found is not None and not isinstance(found, dict):
        raise BadMessage(f"{key!r} is no object")
    return found
