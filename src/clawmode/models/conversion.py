"""Our messages as pydantic-ai's, and its answers as ours.

What a provider wants to see again goes into the parts' `meta`, and comes out of it for the same
provider and API alone: another one would not understand it, or refuse the request.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

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
from clawmode.types import JsonObject

NOTHING = "(nothing)"
"""Some providers refuse a message without words."""
UNSEEN = "[a picture, which this model cannot see]"
MAX_TOOL_NAME = 64
_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Whose messages they are to be.

    Attributes:
        provider: As it is called here.
        system: As pydantic-ai calls it: what parts have to come from to be sent back whole.
        seals: Whether it takes back thoughts that are sealed; else they are for reading only.
        images: Whether it sees pictures.
    """

    provider: str
    system: str
    api: Api
    seals: bool
    images: bool


# ---- There ----


def to_history(messages: Sequence[Message], dialect: Dialect) -> list[ModelMessage]:
    """The conversation in pydantic-ai's terms.

    Raises:
        ModelError: It cannot be said.
    """
    history: list[ModelMessage] = []
    turn: list[UserMessage | ToolMessage] = []
    for message in messages:
        if not isinstance(message, AssistantMessage):
            turn.append(message)
            continue
        parts = list(_response_parts(message, dialect))
        if all(isinstance(part, ThinkingPart) for part in parts):
            continue  # thoughts alone are no answer that a provider takes back
        history.extend(_request(turn, dialect))
        turn = []
        own = message.provider == dialect.provider
        name = dialect.system if own else None
        history.append(ModelResponse(parts, provider_name=name, model_name=message.model))
    history.extend(_request(turn, dialect))
    return history


def _request(turn: list[UserMessage | ToolMessage], dialect: Dialect) -> Iterator[TheirRequest]:
    """What was said since the model spoke. Providers want to see the results before all else."""
    results: list[ToolReturnPart | UserPromptPart] = []
    pictures: list[UserPromptPart] = []
    said: list[UserPromptPart] = []
    for message in turn:
        content = list(_content(message.content, dialect))
        if isinstance(message, UserMessage):
            said.append(UserPromptPart(_one_or_many(content)))
            continue
        if dialect.api == "openai-completions":
            # Its results are words; pictures follow as if the user had sent them.
            seen = [item for item in content if not isinstance(item, str)]
            content = [item for item in content if isinstance(item, str)]
            if seen:
                content = content or ["(a picture, see below)"]
                pictures.append(UserPromptPart([f"From {message.name}:", *seen]))
        # The other two have no place for "it failed", and the library would wrap the words.
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
            words += whole(part.text)
        elif not dialect.images:
            words += UNSEEN
        else:
            if words.strip():
                yield words
            words = ""
            yield _picture(part)
    if words.strip():
        yield words


def _one_or_many(content: Sequence[str | BinaryContent]) -> Any:
    if len(content) == 1 and isinstance(content[0], str):
        return content[0]
    return list(content) or NOTHING


def _picture(image: Image) -> BinaryContent:
    try:
        data = base64.b64decode(image.data, validate=True)
    except (binascii.Error, ValueError):
        raise ModelError("invalid_request", "a picture is no base64") from None
    return BinaryContent(data, media_type=image.media_type)


def _response_parts(
    message: AssistantMessage, dialect: Dialect
) -> Iterator[TextPart | ThinkingPart | ToolCallPart]:
    for part in message.content:
        kept = _own_meta(message, part.meta, dialect)
        if isinstance(part, ToolCall):
            given = whole(part.arguments)
            yield ToolCallPart(wire_name(part.name), given, wire_id(part.id), **kept)
        elif isinstance(part, Text):
            if part.text.strip():
                yield TextPart(whole(part.text), **kept)
        elif kept and _is_replayed(kept, dialect):
            yield ThinkingPart(part.text, **kept)


def _own_meta(
    message: AssistantMessage, meta: JsonObject | None, dialect: Dialect
) -> dict[str, Any]:
    """What the same provider wants to see again; nothing for another."""
    if not meta or message.provider != dialect.provider or meta.get("api") != dialect.api:
        return {}
    named = {"id": "id", "signature": "signature", "provider_details": "details"}
    kept = {theirs: meta[ours] for theirs, ours in named.items() if ours in meta}
    return {**kept, "provider_name": dialect.system}


def _is_replayed(kept: dict[str, Any], dialect: Dialect) -> bool:
    """Whether thoughts go back as thoughts. The library would make words of all others."""
    if dialect.api == "openai-completions":
        return True
    raw = (kept.get("provider_details") or {}).get("raw_content")
    return bool((kept.get("signature") and dialect.seals) or raw)


T = TypeVar("T")


def whole(value: T) -> T:
    """A text or a value of which nothing is half a character: no wire carries those."""
    made: Any = value
    if isinstance(value, str):
        made = value.encode("utf-8", "replace").decode()
    elif isinstance(value, dict):
        made = {whole(key): whole(it) for key, it in value.items()}
    elif isinstance(value, list):
        made = [whole(it) for it in value]
    return made


def wire_name(name: str) -> str:
    """The name of a tool that a model made up, as every provider takes it back."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_TOOL_NAME] or "_"


def wire_id(call_id: str) -> str:
    """The id of a call as every provider takes it."""
    if _PLAIN_ID.fullmatch(call_id):
        return call_id
    return f"call_{hashlib.sha256(call_id.encode('utf-8', 'replace')).hexdigest()[:32]}"


# ---- And back ----


def from_response(
    response: ModelResponse, dialect: Dialect, model: str, taken: set[str]
) -> AssistantMessage:
    """The answer in our terms.

    Args:
        response: Theirs, complete.
        dialect: Whose it is.
        model: As it is called here.
        taken: The ids of earlier calls; some servers count from zero in every answer.
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
            call_id = _fresh(part.tool_call_id, taken)
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
        error=str(refusal)[:500] if stop == "refused" and refusal else None,
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
    # It is written down with the conversation, so it has to be JSON, whatever the library put in.
    plain: JsonObject = json.loads(json.dumps(kept, default=str))
    return {"api": dialect.api, **plain}


def _fresh(call_id: str, taken: set[str]) -> str:
    made, number = call_id, 1
    while made in taken:
        number += 1
        made = f"{call_id}-{number}"
    return made


def _stop(response: ModelResponse, calls: bool) -> StopReason:
    if response.finish_reason == "length":
        return "length"
    if response.finish_reason == "content_filter":
        return "refused"
    return "tool_calls" if calls else "stop"


def _usage(response: ModelResponse) -> Usage:
    """Their input has all tokens that were read; ours, those that were in no cache."""
    usage = response.usage
    read, written = usage.cache_read_tokens, usage.cache_write_tokens
    fresh = max(0, usage.input_tokens - read - written)
    return Usage(fresh, usage.output_tokens, read, written)
