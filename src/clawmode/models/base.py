"""The `Model` protocol: a request of messages and tools in, a stream of events out.

An implementation raises only `ModelError`, whose `kind` tells the agent loop how to react.
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, TypeAlias

from clawmode.exceptions import ClawmodeError
from clawmode.messages import AssistantMessage, Message
from clawmode.types import JsonObject, dataclass

ThinkingLevel: TypeAlias = Literal["off", "minimal", "low", "medium", "high"]
THINKING_LEVELS: tuple[ThinkingLevel, ...] = ("off", "minimal", "low", "medium", "high")

ErrorKind: TypeAlias = Literal[
    "rate_limit",
    "overloaded",
    "server",
    "connection",
    "timeout",
    "garbage",
    "auth",
    "quota",
    "not_found",
    "context_overflow",
    "refused",
    "invalid_request",
    "payload_guard",
]

RETRYABLE: frozenset[ErrorKind] = frozenset(
    {"rate_limit", "overloaded", "server", "connection", "timeout", "garbage"}
)
"""Errors for which the same request may succeed if it is repeated."""

FINAL: frozenset[ErrorKind] = frozenset({"payload_guard"})
"""Errors after which no fallback model may be tried."""


class ModelError(ClawmodeError):
    """A failed model request. The message is meant for people and contains no secrets.

    Attributes:
        kind: The category, which decides about retries and fallback models.
        status: The HTTP status of the response, if there was one.
        retry_after: The pause in seconds that the provider asked for.
        sent: False if the request certainly never left this process.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        sent: bool = True,
    ) -> None:
        super().__init__(message)
        self.sent = sent
        self.kind = kind
        self.status = status
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """The name, description and JSON Schema of a tool, as sent to the model."""

    name: str
    description: str
    parameters: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request to a model.

    Attributes:
        system: The system prompt; byte-stable between requests, so that providers can cache it.
        exact_tools: The only tools that the request body may name (SF-7); None if the run did not
            activate code mode.
        cache_key: Requests with the same key share a prefix that the provider can cache.
        run_id: The run that makes the request, for logs.
    """

    system: str
    messages: Sequence[Message]
    tools: tuple[ToolDefinition, ...] = ()
    thinking: ThinkingLevel = "off"
    max_tokens: int | None = None
    exact_tools: frozenset[str] | None = None
    cache_key: str = ""
    run_id: str = ""


# ---- Events ----


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of a text block."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """The next piece of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class TextEnd:
    """A text block is complete; `text` is the whole block."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The model started a tool call; its arguments are still being streamed."""

    name: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Data arrived that is not shown, such as a piece of a call's arguments.

    It proves that the stream is alive.

    Attributes:
        size: The number of characters.
    """

    size: int = 0


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """The last event of a stream, with the complete message."""

    message: AssistantMessage


ModelEvent: TypeAlias = TextDelta | ThinkingDelta | TextEnd | CallStart | Chunk | MessageEnd


# ---- The model ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """The limits of a model.

    Attributes:
        context_window: Tokens of the conversation and the answer in total.
        max_tokens: The most tokens of one answer.
        local: True if the model runs on this machine or network, where slow answers are normal.
        timeout_seconds: The provider's configured time limit for the request and its stream.
    """

    context_window: int = 200_000
    max_tokens: int | None = None
    local: bool = False
    timeout_seconds: float | None = None


class Model(Protocol):
    """One model of one provider. See `DirectModel`, and `clawmode.testing.ScriptedModel`."""

    provider: str
    name: str
    limits: ModelLimits

    def stream(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Sends a request and opens the stream of the answer.

        The stream ends with `MessageEnd`. Leaving the block early aborts the request.

        Raises:
            ModelError: When the block is entered, or while the stream is read.
        """
        ...


@dataclass(frozen=True, slots=True)
class ModelName:
    """The name of a model in the configuration: `<provider>/<model>`."""

    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"

    @classmethod
    def parse(cls, text: str) -> "ModelName":
        """Parses `provider/model`. The part for the model may contain slashes.

        Raises:
            ValueError: The provider or the model is missing.
        """
        provider, slash, model = text.partition("/")
        if not (provider.strip() and slash and model.strip()):
            raise ValueError(f"{text!r} is not a model name: it has no provider")
        return cls(provider.strip(), model.strip())


def read_arguments(text: str) -> JsonObject | str:
    """Parses the arguments that a model wrote. Returns the text itself if it is no JSON object."""
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
