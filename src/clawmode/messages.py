"""The messages of a conversation as plain data, and the JSON that transcripts store.

The `meta` of a part holds data that its provider wants back with the part: a signature, an id,
encrypted thoughts. Only that provider's adapter writes and reads it.
"""

import base64
import time
from dataclasses import field, fields
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from clawmode.records import CAMEL, AnyJson, AnyObject, Flag, Number, adapter, errors_of
from clawmode.types import JsonObject, JsonValue, dataclass

StopReason: TypeAlias = Literal["stop", "tool_calls", "length", "refused", "error", "aborted"]
STOP_REASONS: tuple[StopReason, ...] = get_args(StopReason)

_BY_TYPE = Field(discriminator="type")


def _known_stop(value: object) -> object:
    return value if value in STOP_REASONS else "stop"  # a later release may know more


def _only_counts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: count for name, count in value.items() if isinstance(count, int)}
    return value


class BadMessage(ValueError):
    """A JSON value that is not a message; the text says what is wrong with it."""


# ---- Parts ----


@dataclass(frozen=True, slots=True)
class Text:
    """Text of a user, a model or a tool."""

    __pydantic_config__ = CAMEL

    type: Literal["text"] = field(default="text", kw_only=True, repr=False)
    text: str
    meta: AnyObject | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """A model's reasoning. An empty text with a `meta` is reasoning that the provider hides."""

    __pydantic_config__ = CAMEL

    type: Literal["thinking"] = field(default="thinking", kw_only=True, repr=False)
    text: str
    meta: AnyObject | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """An image, as base64 with its media type."""

    __pydantic_config__ = CAMEL

    type: Literal["image"] = field(default="image", kw_only=True, repr=False)
    data: str = field(repr=False)
    media_type: str

    @classmethod
    def parse(cls, data: str, media_type: str) -> "Image":
        """Returns an image that a client has sent.

        Raises:
            BadMessage: Models do not read images of this type, or the data is not base64.
        """
        if media_type not in IMAGE_TYPES:
            raise BadMessage(f"an image must be of {', '.join(IMAGE_TYPES)}")
        try:
            is_empty = not base64.b64decode(data, validate=True)
        except ValueError:
            is_empty = True
        if is_empty:
            raise BadMessage("the image is not base64")
        return cls(data, media_type)


IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The media types of images that models read."""

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

    __pydantic_config__ = CAMEL

    type: Literal["toolCall"] = field(default="toolCall", kw_only=True, repr=False)
    id: str
    name: str
    arguments: AnyObject | str
    meta: AnyObject | None = None


# ---- Messages ----


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one response, as reported by the provider."""

    __pydantic_config__ = CAMEL

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
        return _members(self)

    @classmethod
    def from_json(cls, value: JsonObject) -> "Usage":
        """Reads `to_json`'s object. A member that is not a number counts as 0."""
        return adapter(Usage).validate_python(_only_counts(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """A message from a person, or from a program in a person's place."""

    __pydantic_config__ = CAMEL

    role: Literal["user"] = field(default="user", kw_only=True, repr=False)
    content: tuple[Annotated[Text | Image, _BY_TYPE], ...]
    at: Number = field(default_factory=time.time)

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

    __pydantic_config__ = CAMEL

    role: Literal["assistant"] = field(default="assistant", kw_only=True, repr=False)
    content: tuple[Annotated[Text | Thinking | ToolCall, _BY_TYPE], ...]
    provider: str = ""
    model: str = ""
    usage: Annotated[Usage, BeforeValidator(_only_counts)] = Usage()
    stop: Annotated[StopReason, BeforeValidator(_known_stop)] = "stop"
    error: str | None = None
    meta: AnyObject | None = None
    at: Number = field(default_factory=time.time)

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

    __pydantic_config__ = CAMEL

    role: Literal["tool"] = field(default="tool", kw_only=True, repr=False)
    call_id: str
    name: str
    content: tuple[Annotated[Text | Image, _BY_TYPE], ...]
    is_error: Flag = False
    details: AnyJson = None
    at: Number = field(default_factory=time.time)

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, Text))


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage
TaggedMessage: TypeAlias = Annotated[Message, Field(discriminator="role")]


# ---- JSON ----


# Built at the first use: this module is imported by programs that read no messages.
@cache
def _adapter() -> TypeAdapter[Message]:
    return TypeAdapter(TaggedMessage)


@cache
def _names(record: type[Any]) -> tuple[tuple[str, str], ...]:
    return tuple((each.name, to_camel(each.name)) for each in fields(record))


def _members(record: Any) -> dict[str, Any]:
    # `TypeAdapter.dump_python` takes twice as long, because it copies the JSON in a record.
    made = {key: getattr(record, name) for name, key in _names(type(record))}
    return {key: value for key, value in made.items() if value is not None}


def to_json(message: Message) -> JsonObject:
    """Returns the JSON object that transcripts store. Members that are None are left out."""
    made = _members(message)
    made["content"] = [_members(part) for part in message.content]
    if isinstance(message, AssistantMessage):
        made["usage"] = message.usage.to_json()
    elif made.get("isError") is False:
        del made["isError"]
    return made


def from_json(value: JsonValue) -> Message:
    """Reads a message from the JSON that `to_json` made.

    Raises:
        BadMessage: The value is not a message.
    """
    try:
        # `validator`: called for every line of a transcript, where the wrapper counts.
        return _adapter().validator.validate_python(value)
    except ValidationError as error:
        problems = map(str, errors_of(error, TaggedMessage))
        raise BadMessage("; ".join(problems)) from None
