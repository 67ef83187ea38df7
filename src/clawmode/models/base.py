"""What a model is to the loop: messages and tools in, a stream of events out.

An adapter translates: whatever its library raises becomes a `ModelError`, whose kind says what can
be done about it.
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from clawmode.exceptions import ClawmodeError
from clawmode.messages import AssistantMessage, Message
from clawmode.types import JsonObject

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
"""What may go well the next time, with the same request."""

FINAL: frozenset[ErrorKind] = frozenset({"payload_guard"})
"""What no other model may be tried for."""


class ModelError(ClawmodeError):
    """A request that a model did not answer, in words for people; they hold no secret.

    Attributes:
        kind: What can be done about it.
        status: The HTTP status, if there was one.
        retry_after: Seconds that the provider asked to wait.
        sent: Whether a request may have left.
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
    """A tool as the model sees it."""

    name: str
    description: str
    parameters: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request.

    Attributes:
        system: The system prompt; byte-stable between requests, so that providers can cache it.
        exact_tools: What the bytes on the wire must name as tools, and nothing else (SF-7); None
            if the run did not activate code mode.
        cache_key: Requests with the same key begin alike.
        run_id: For logs.
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
    """More words."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """More thoughts."""

    text: str


@dataclass(frozen=True, slots=True)
class TextEnd:
    """A block of words is complete."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The model begins to write a call; its arguments are still to come."""

    name: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Something came that is nothing to show: more of a call's arguments, for one.

    Attributes:
        size: In characters.
    """

    size: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The message is complete. The last event."""

    message: AssistantMessage


ModelEvent: TypeAlias = TextDelta | ThinkingDelta | TextEnd | CallBegun | Chunk | Finished


# ---- The model ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What a model can take.

    Attributes:
        context_window: Tokens, all together.
        max_tokens: Of one answer.
        local: It runs on this machine or in this house: slow is normal.
        timeout_seconds: The provider's own, if it is configured: for the request and its stream.
    """

    context_window: int = 200_000
    max_tokens: int | None = None
    local: bool = False
    timeout_seconds: float | None = None


class Model(Protocol):
    """One model of one provider."""

    provider: str
    name: str
    limits: ModelLimits

    def stream(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Makes a request and opens the stream of its answer.

        The stream ends with `Finished`. Leaving the block early ends the request.

        Raises:
            ModelError: On entering, or while the stream is read.
        """
        ...


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model by the name that people configure: `<provider>/<model>`."""

    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"

    @classmethod
    def parse(cls, text: str) -> "ModelName":
        """Reads `provider/model`; a model's own name may have slashes.

        Raises:
            ValueError: It is none.
        """
        provider, slash, model = text.partition("/")
        if not (provider.strip() and slash and model.strip()):
            raise ValueError(f"{text!r} is no model: it names no provider")
        return cls(provider.strip(), model.strip())


def read_arguments(text: str) -> JsonObject | str:
    """The arguments that a model wrote: an object, or its text if it is none."""
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
