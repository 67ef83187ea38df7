"""The messages of a conversation as plain data, and the JSON that transcripts store.

The `meta` of a part holds data that its provider wants back with the part: a signature, an id,
encrypted thoughts. Only that provider's adapter writes and reads it.
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
_STOPS: dict[str, StopReason] = {reason: reason for reason in STOP_REASONS}


class BadMessage(ValueError):
    """A JSON value that is not a message; the text says what is wrong with it."""


# ---- Parts ----


@dataclass(frozen=True, slots=True)
class Text:
    """Text of a user, a model or a tool."""

    text: str
    meta: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """A model's reasoning. An empty text with a `meta` is reasoning that the provider hides."""

    text: str
    meta: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """An image, as base64 with its media type."""

    data: str = field(repr=False)
    media_type: str


IMAGE_KEYS = ("data", "blob", "base64", "image_url")
"""Keys of JSON objects that hold encoded images or other bytes."""

MAX_BLOB_CHARS = 256
"""A longer text under one of these keys is encoded bytes."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that a model requests.

    Attributes:
        id: Unique in the conversation.
        arguments: An object, or the model's text if that is not valid JSON.
    """

    id: str
    name: str
    arguments: JsonObject | str
    meta: JsonObject | None = None


# ---- Messages ----


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one response, as reported by the provider."""

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
        return {
            "input": self.input,
            "output": self.output,
            "cacheRead": self.cache_read,
            "cacheWrite": self.cache_write,
        }

    @classmethod
    def from_json(cls, value: JsonObject) -> "Usage":
        """Reads `to_json`'s object. A member that is not a number counts as 0."""
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
    """A message from a person, or from a program in a person's place."""

    content: tuple[Text | Image, ...]
    at: float = field(default_factory=time.time)

    @classmethod
    def of(cls, text: str) -> "UserMessage":
        """Returns a message of one text."""
        return cls(content=(Text(text),))


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessage:
    """A response of a model.

    Attributes:
        provider: The provider whose `meta` the parts hold.
        meta: Data that the provider wants back with the message as a whole.
        error: The reason, if the response ended early.
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
        """The text parts, joined, without the reasoning."""
        return "".join(part.text for part in self.content if isinstance(part, Text))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple([part for part in self.content if isinstance(part, ToolCall)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMessage:
    """The result of a tool call.

    Attributes:
        details: Data for people and programs, never sent to the model.
    """

    call_id: str
    name: str
    content: tuple[Text | Image, ...]
    is_error: bool = False
    details: JsonValue = None
    at: float = field(default_factory=time.time)

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, Text))


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage
Part: TypeAlias = Text | Thinking | Image | ToolCall


# ---- JSON ----


def to_json(message: Message) -> JsonObject:
    """Returns the JSON object that transcripts store. Members that are None are left out."""
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
    """Reads a message from the JSON that `to_json` made.

    Raises:
        BadMessage: The value is not a message.
    """
    # Called for every line of a transcript, so this path is hot: plain functions, no model class.
    kept = _object(value)
    role = _text(kept, "role")
    at = kept.get("at", 0.0)
    if isinstance(at, bool) or not isinstance(at, (int, float)):
        raise BadMessage("'at' is not a number")
    at = float(at)
    items = kept.get("content", [])
    if not isinstance(items, list):
        raise BadMessage("'content' is not a list")
    parts = [_part_from_json(part) for part in items]
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
    raise BadMessage(f"unknown role {role[:40]!r}; expected user, assistant or tool")


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
            raise BadMessage("'arguments' of a tool call is neither an object nor a text")
        return ToolCall(_text(kept, "id"), _text(kept, "name"), arguments, _mapping(kept, "meta"))
    raise BadMessage(f"unknown type of content {kind[:40]!r}")


def _only(parts: list[Part], kinds: tuple[type[Any], ...]) -> tuple[Any, ...]:
    for part in parts:
        if not isinstance(part, kinds):
            raise BadMessage(f"{type(part).__name__} is not allowed in a message of this role")
    return tuple(parts)


def _object(value: JsonValue) -> JsonObject:
    if not isinstance(value, dict):
        raise BadMessage(f"expected an object, found {type(value).__name__}")
    return value


def _text(value: JsonObject, key: str, default: str | None = None) -> str:
    found = value.get(key, default)
    if not isinstance(found, str):
        raise BadMessage(f"{key!r} is not a text")
    return found


def _mapping(value: JsonObject, key: str) -> JsonObject | None:
    found = value.get(key)
    if found is not None and not isinstance(found, dict):
        raise BadMessage(f"{key!r} is not an object")
    return found
