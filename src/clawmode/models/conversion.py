"""Conversion of our messages to pydantic-ai's, and of its responses to our messages.

Data that a provider expects back, such as signatures, is kept in the `meta` of message parts. It is
sent only to the same provider and API: another provider would reject the request.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.messages import ModelRequest as TheirRequest

from clawmode.messages import (
    AssistantMessage,
    Image,
    Message,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from clawmode.models.base import ModelError, read_arguments
from clawmode.models.providers import Api
from clawmode.text import shorten, without_surrogates
from clawmode.types import JsonObject, change_texts, dataclass

NOTHING = "(nothing)"
"""Replaces empty content, which some providers reject."""
UNSEEN = "[an image, which this model cannot see]"
MAX_TOOL_NAME = 64
_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The provider and API that messages are converted for.

    Attributes:
        provider: Our name of the provider.
        system: pydantic-ai's name of the provider. It sends signatures back only in parts that
            carry this name.
        seals: True if the provider accepts encrypted thinking back.
        images: True if the model reads images.
    """

    provider: str
    system: str
    api: Api
    seals: bool
    images: bool


# ---- To the provider ----


def to_history(messages: Sequence[Message], dialect: Dialect) -> list[ModelMessage]:
    """Converts a conversation to pydantic-ai's messages.

    Raises:
        ModelError: An image is not valid base64.
    """
    history: list[ModelMessage] = []
    turn: list[UserMessage | ToolMessage] = []
    for message in messages:
        if not isinstance(message, AssistantMessage):
            turn.append(message)
            continue
        parts = list(_response_parts(message, dialect))
        if all(isinstance(part, ThinkingPart) for part in parts):
            continue  # providers reject an answer that is only thinking
        history.extend(_request(turn, dialect))
        turn = []
        own = message.provider == dialect.provider
        name = dialect.system if own else None
        history.append(ModelResponse(parts, provider_name=name, model_name=message.model))
    history.extend(_request(turn, dialect))
    return history


def _request(turn: list[UserMessage | ToolMessage], dialect: Dialect) -> Iterator[TheirRequest]:
    """Converts the messages since the last answer. Providers require tool results to be first."""
    results: list[ToolReturnPart | UserPromptPart] = []
    pictures: list[UserPromptPart] = []
    said: list[UserPromptPart] = []
    for message in turn:
        content = list(_content(message.content, dialect))
        if isinstance(message, UserMessage):
            said.append(UserPromptPart(_one_or_many(content)))
            continue
        if dialect.api == "openai-completions":
            # A tool result is text only in this API: images follow as a user message.
            seen = [item for item in content if not isinstance(item, str)]
            content = [item for item in content if isinstance(item, str)]
            if seen:
                content = content or ["(an image, see below)"]
                pictures.append(UserPromptPart([f"From {message.name}:", *seen]))
        # The other APIs have no flag for failure, and pydantic-ai would wrap the text.
        failed = message.is_error and dialect.api == "anthropic-messages"
        results.append(
            ToolReturnPart(
                wire_name(message.name),
                _one_or_many(content),
                wire_id(message.call_id),
                outcome="failed" if failed else "success",
            )
        )
    if parts := [*results, *pictures, *said]:
        yield TheirRequest(parts)


def _content(content: Sequence[Text | Image], dialect: Dialect) -> Iterator[str | BinaryContent]:
    words = ""
    for part in content:
        if isinstance(part, Text):
            words += without_surrogates(part.text)
        elif not dialect.images:
            words += UNSEEN
        else:
            if words.strip():
                yield words
            words = ""
            try:
                data = base64.b64decode(part.data, validate=True)
            except (binascii.Error, ValueError):
                raise ModelError("invalid_request", "an image is not valid base64") from None
            yield BinaryContent(data, media_type=part.media_type)
    if words.strip():
        yield words


def _one_or_many(content: Sequence[str | BinaryContent]) -> Any:
    if len(content) == 1 and isinstance(content[0], str):
        return content[0]
    return list(content) or NOTHING


def _response_parts(
    message: AssistantMessage, dialect: Dialect
) -> Iterator[TextPart | ThinkingPart | ToolCallPart]:
    for part in message.content:
        kept = _own_meta(message, part.meta, dialect)
        if isinstance(part, ToolCall):
            given = change_texts(part.arguments, without_surrogates)
            yield ToolCallPart(wire_name(part.name), given, wire_id(part.id), **kept)
        elif isinstance(part, Text):
            if part.text.strip():
                yield TextPart(without_surrogates(part.text), **kept)
        elif kept and _is_replayed(kept, dialect):
            yield ThinkingPart(part.text, **kept)


def _own_meta(
    message: AssistantMessage, meta: JsonObject | None, dialect: Dialect
) -> dict[str, Any]:
    """Returns the arguments that restore `meta`; nothing if another provider wrote it."""
    if not meta or message.provider != dialect.provider or meta.get("api") != dialect.api:
        return {}
    named = {"id": "id", "signature": "signature", "provider_details": "details"}
    kept = {theirs: meta[ours] for theirs, ours in named.items() if ours in meta}
    return {**kept, "provider_name": dialect.system}


def _is_replayed(kept: dict[str, Any], dialect: Dialect) -> bool:
    """True if thinking is sent back as thinking; pydantic-ai would turn the rest into text."""
    if dialect.api == "openai-completions":
        return True
    raw = (kept.get("provider_details") or {}).get("raw_content")
    return bool((kept.get("signature") and dialect.seals) or raw)


def wire_name(name: str) -> str:
    """Replaces characters that some providers reject in the name of a tool.

    A model may have invented the name; it is part of the conversation all the same.
    """
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_TOOL_NAME] or "_"


def wire_id(call_id: str) -> str:
    """Returns the id of a call, or a hash of an id that some providers would reject."""
    if _PLAIN_ID.fullmatch(call_id):
        return call_id
    return f"call_{hashlib.sha256(call_id.encode('utf-8', 'replace')).hexdigest()[:32]}"


# ---- From the provider ----


def from_response(
    response: ModelResponse, dialect: Dialect, model: str, taken: set[str]
) -> AssistantMessage:
    """Converts a complete response to a message.

    Args:
        response: The response of pydantic-ai.
        dialect: The provider and API that it came from.
        model: Our name of the model.
        taken: The ids of earlier calls, which are not used again: some servers count from zero in
            every answer.
    """
    content: list[Text | Thinking | ToolCall] = []
    for part in response.parts:
        if isinstance(part, TextPart):
            if part.content:
                content.append(Text(part.content, _meta(part, dialect)))
        elif isinstance(part, ThinkingPart):
            meta = _meta(part, dialect) or {"api": dialect.api}
            content.append(Thinking(part.content, meta))
        elif isinstance(part, ToolCallPart):
            call_id, number = part.tool_call_id, 1
            while call_id in taken:
                number += 1
                call_id = f"{part.tool_call_id}-{number}"
            taken.add(call_id)
            given = part.args or ""
            arguments = read_arguments(given if isinstance(given, str) else json.dumps(given))
            content.append(ToolCall(call_id, part.tool_name, arguments, _meta(part, dialect)))
    stop = _stop(response, any(isinstance(part, ToolCall) for part in content))
    refusal = (response.provider_details or {}).get("refusal")
    return AssistantMessage(
        content=tuple(content),
        provider=dialect.provider,
        model=model,
        usage=_usage(response),
        stop=stop,
        error=shorten(str(refusal), 500) if stop == "refused" and refusal else None,
        meta={"api": dialect.api, "id": response.provider_response_id},
    )


def _meta(part: TextPart | ThinkingPart | ToolCallPart, dialect: Dialect) -> JsonObject | None:
    found = {
        "id": part.id,
        "signature": part.signature if isinstance(part, ThinkingPart) else None,
        "details": part.provider_details or None,
    }
    kept = {key: value for key, value in found.items() if value is not None}
    if not kept:
        return None
    # `meta` is saved with the transcript, so that it must be JSON, whatever pydantic-ai put in.
    plain: JsonObject = json.loads(json.dumps(kept, default=str))
    return {"api": dialect.api, **plain}


def _stop(response: ModelResponse, calls: bool) -> StopReason:
    if response.finish_reason == "length":
        return "length"
    if response.finish_reason == "content_filter":
        return "refused"
    return "tool_calls" if calls else "stop"


def _usage(response: ModelResponse) -> Usage:
    """Converts token counts: their `input` includes cached tokens, ours does not."""
    usage = response.usage
    read, written = usage.cache_read_tokens, usage.cache_write_tokens
    fresh = max(0, usage.input_tokens - read - written)
    return Usage(fresh, usage.output_tokens, read, written)
