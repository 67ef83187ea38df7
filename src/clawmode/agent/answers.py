"""One answer of a model: streamed on as it comes, watched for silence, kept if it is cut off."""

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from clawmode.exceptions import message_of
from clawmode.messages import AssistantMessage, Text
from clawmode.models.base import (
    CallStart,
    Chunk,
    MessageEnd,
    Model,
    ModelError,
    ModelEvent,
    ModelRequest,
    TextDelta,
    TextEnd,
    ThinkingDelta,
)
from clawmode.tasks import must_propagate
from clawmode.text import KnownSecrets
from clawmode.types import JsonObject

if TYPE_CHECKING:
    from clawmode.agent.events import Stream

logger = logging.getLogger("clawmode.agent")

MAX_ANSWER_CHARS = 4 << 20
"""Of one answer, thoughts included: four times as much as any known model writes."""


class AnswerReader:
    """Reads one answer from a model's stream.

    Args:
        emit: Emits events of the run.
        known: Secrets that must not be emitted in pieces: those who redact events later can
            recognize only a whole secret.

    Attributes:
        heard: Whether a part of the answer was emitted.
    """

    def __init__(self, emit: "Callable[[Stream, JsonObject], None]", known: KnownSecrets) -> None:
        self._emit = emit
        self._known = known
        self._text: list[str] = []
        self._chars = 0
        self._held: tuple[Stream, str] = ("assistant", "")
        self.heard = False

    async def read(self, model: Model, request: ModelRequest, idle: float) -> AssistantMessage:
        """Returns the complete answer.

        Args:
            model: The model to ask.
            request: The request.
            idle: Seconds of silence after which the request is aborted.

        Raises:
            ModelError: The model failed, was silent for too long, or wrote too much.
        """
        name = f"{model.provider}/{model.name}"
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + idle) as watchdog:
                async with model.stream(request) as events:
                    async for event in events:
                        # Only the model's silence counts, not the time that the event takes here.
                        watchdog.deadline = math.inf
                        self._pass_on(event)
                        if isinstance(event, MessageEnd):
                            return event.message
                        if self._chars > MAX_ANSWER_CHARS:
                            text = f"wrote more than {MAX_ANSWER_CHARS} characters without an end"
                            raise ModelError("garbage", f"{name} {text}")
                        watchdog.deadline = anyio.current_time() + idle
        except ModelError:
            raise
        except BaseException as error:
            if must_propagate(error):
                raise
            logger.exception("%s: %s", name, type(error).__name__)
            text = f"{name} failed: {type(error).__name__}: {message_of(error)}"
            raise ModelError("server", text) from None
        if watchdog.cancelled_caught:
            raise ModelError("timeout", f"{name} sent nothing for {idle:g} s")
        raise ModelError("garbage", f"the stream of {name} ended before the answer was complete")

    def partial(self, model: Model) -> AssistantMessage | None:
        """Returns the text so far, after the answer was cut off; None if there is none.

        Emits text that was held back.
        """
        self._flush()
        if not (text := "".join(self._text)):
            return None
        return AssistantMessage(
            content=(Text(text),), provider=model.provider, model=model.name, stop="aborted"
        )

    def _pass_on(self, event: ModelEvent) -> None:
        self.heard = True
        if not isinstance(event, (TextDelta, ThinkingDelta, Chunk)):
            self._flush()
        match event:
            case TextDelta(text):
                self._text.append(text)
                self._chars += len(text)
                self._emit_delta("assistant", text)
            case TextEnd(text):
                self._emit("assistant", {"text": text})
            case ThinkingDelta(text):
                self._chars += len(text)
                self._emit_delta("thinking", text)
            case CallStart(name):
                self._emit("assistant", {"call": name})
            case Chunk(size):
                self._chars += size
            case MessageEnd():
                pass

    def _emit_delta(self, stream: "Stream", text: str) -> None:
        """Emits a piece of text, except for an end that may be the beginning of a secret."""
        if stream != self._held[0]:
            self._flush()
        text = self._held[1] + text
        safe = text[: len(text) - self._known.partial_length(text)]
        self._held = stream, text[len(safe) :]
        if safe:
            self._emit(stream, {"delta": safe})

    def _flush(self) -> None:
        stream, text = self._held
        self._held = stream, ""
        if text:
            self._emit(stream, {"delta": text})
