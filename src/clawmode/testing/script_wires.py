"""The formats of three APIs: reads requests, and writes turns of a script and errors.

The APIs are OpenAI's chat completions and Responses, and Anthropic's messages. A turn is written as
one JSON document, or as the events of a stream.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from clawmode.messages import StopReason, ToolCall
from clawmode.models.base import ErrorKind, ModelError, read_arguments
from clawmode.models.providers import Api
from clawmode.testing.scripted import (
    Pause,
    PlayedTurn,
    Say,
    ScriptRequest,
    Think,
    arguments_text,
    pieces,
)
from clawmode.types import dataclass

Body: TypeAlias = dict[str, Any]
"""JSON of a request or response."""
Events: TypeAlias = Iterator[Body | Pause]

OutputPart: TypeAlias = Say | Think | ToolCall


@dataclass(frozen=True, slots=True)
class Wire:
    """The functions that read and write one API.

    Attributes:
        view: Reads a request: the system prompt, the last message of the user, and the results of
            tool calls by their id, None where a result is missing.
        whole: Writes a turn as one document.
        events: Writes a turn as events; a turn with an error has no closing events.
        error: Writes an error as the body of a response.
        broken: Writes an error as an event of a stream that has started; None writes `error`.
        named: True if each event has an `event:` line with its type; otherwise the stream ends
            with `[DONE]`.
    """

    api: Api
    path: str
    view: Callable[[Body], tuple[str, str, dict[str, str | None]]]
    whole: Callable[[PlayedTurn, Body], Body]
    events: Callable[[PlayedTurn, Body], Events]
    error: Callable[[ModelError], Body]
    broken: Callable[[ModelError, PlayedTurn, Body], Body] | None = None
    named: bool = True

    def read(self, body: Body, number: int) -> ScriptRequest:
        """Returns a request as a script sees it."""
        system, said, results = self.view(body)
        tools = [tool.get("function", tool) for tool in body.get("tools") or []]
        names = tuple(tool.get("name", "?") for tool in tools)
        return ScriptRequest(
            number=number, system=system, said=said, tool_names=names, results=results
        )


def output_parts(played: PlayedTurn) -> list[OutputPart]:
    """Returns the parts without the pauses."""
    return [part for part in played.parts if not isinstance(part, Pause)]


def text_of(content: Any) -> str:
    """Returns the text of a message or result: a string or a list of blocks in all three APIs."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(block.get("text", "") for block in blocks)


# ---- Errors ----

_STATUSES: Mapping[ErrorKind, int] = {
    "rate_limit": 429,
    "overloaded": 503,
    "server": 500,
    "auth": 401,
    "quota": 429,
    "not_found": 404,
}
_OPENAI_CODES: Mapping[ErrorKind, str] = {
    "rate_limit": "rate_limit_exceeded",
    "overloaded": "server_is_overloaded",
    "server": "server_error",
    "auth": "invalid_api_key",
    "quota": "insufficient_quota",
    "not_found": "model_not_found",
    "context_overflow": "context_length_exceeded",
    "refused": "content_policy_violation",
}
_ANTHROPIC_TYPES: Mapping[ErrorKind, tuple[int, str]] = {
    "rate_limit": (429, "rate_limit_error"),
    "overloaded": (529, "overloaded_error"),
    "server": (500, "api_error"),
    "auth": (401, "authentication_error"),
    "quota": (402, "billing_error"),
    "not_found": (404, "not_found_error"),
}
_ANTHROPIC_WORDS: Mapping[ErrorKind, str] = {
    "context_overflow": "prompt is too long: 200001 tokens > 200000 maximum",
    "refused": "Output blocked by content filtering policy",
}


def status_of(error: ModelError, api: Api) -> int:
    """Returns the HTTP status that makes a client see this error."""
    if error.status is not None:
        return error.status
    if api == "anthropic-messages":
        return _ANTHROPIC_TYPES.get(error.kind, (400, ""))[0]
    return _STATUSES.get(error.kind, 400)


def _openai_problem(error: ModelError) -> Body:
    code = _OPENAI_CODES.get(error.kind, "invalid_value")
    return {"message": str(error), "type": "invalid_request_error", "param": None, "code": code}


def _openai_error(error: ModelError) -> Body:
    return {"error": _openai_problem(error)}


def _anthropic_error(error: ModelError) -> Body:
    kind = _ANTHROPIC_TYPES.get(error.kind, (400, "invalid_request_error"))[1]
    message = _ANTHROPIC_WORDS.get(error.kind, str(error))
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


# ---- Anthropic: /v1/messages ----

_ANTHROPIC_STOPS: Mapping[StopReason, str] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "refused": "refusal",
}


def _messages_view(body: Body) -> tuple[str, str, dict[str, str | None]]:
    said = ""
    results: dict[str, str | None] = {}
    for message in body["messages"]:
        content = message["content"]
        for block in content if isinstance(content, list) else []:
            if block["type"] == "tool_use":
                results[block["id"]] = None
            elif block["type"] == "tool_result":
                results[block["tool_use_id"]] = text_of(block.get("content"))
        if message["role"] == "user":
            said = text_of(content) or said
    return text_of(body.get("system")), said, results


def _block(part: OutputPart) -> Body:
    if isinstance(part, Say):
        return {"type": "text", "text": part.text, "citations": None}
    if isinstance(part, Think):
        if not part.text:
            return {"type": "redacted_thinking", "data": part.signature}
        return {"type": "thinking", "thinking": part.text, "signature": part.signature}
    given = read_arguments(arguments_text(part))
    # This API returns only objects as input, whatever the model wrote.
    return {
        "type": "tool_use",
        "id": part.id,
        "name": part.name,
        "input": given if isinstance(given, dict) else {},
    }


def _messages_whole(played: PlayedTurn, body: Body) -> Body:
    return {
        "id": f"msg_{played.number}",
        "type": "message",
        "role": "assistant",
        "model": body.get("model", "scripted"),
        "content": [_block(part) for part in output_parts(played)],
        "stop_reason": _ANTHROPIC_STOPS.get(played.turn.stop, "end_turn"),
        "stop_sequence": None,
        "usage": {
            "input_tokens": played.usage.input,
            "cache_read_input_tokens": played.usage.cache_read,
            "cache_creation_input_tokens": played.usage.cache_write,
            "output_tokens": played.usage.output,
        },
    }


def _messages_events(played: PlayedTurn, body: Body) -> Events:
    whole = _messages_whole(played, body)
    usage = whole["usage"]
    start = whole | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    yield {"type": "message_start", "message": start}
    yield {"type": "ping"}
    index = 0
    for part in played.parts:
        if isinstance(part, Pause):
            yield part
            continue
        for event in _block_events(part):
            yield event | {"index": index}
        index += 1
    if played.turn.error is not None:
        return
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None},
        "usage": {"output_tokens": usage["output_tokens"]},
    }
    yield {"type": "message_stop"}


def _block_events(part: OutputPart) -> Iterator[Body]:
    block = _block(part)
    deltas: list[Body] = []
    if isinstance(part, Say):
        empty: Body = {"text": ""}
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces(part.text)]
    elif isinstance(part, ToolCall):
        empty = {"input": {}}
        written = ("", *pieces(arguments_text(part)))
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in written]
    elif part.text:
        empty = {"thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(part.text)]
        deltas.append({"type": "signature_delta", "signature": part.signature})
    else:
        empty = {}
    yield {"type": "content_block_start", "content_block": block | empty}
    for delta in deltas:
        yield {"type": "content_block_delta", "delta": delta}
    yield {"type": "content_block_stop"}


# ---- OpenAI: /v1/chat/completions ----

_CHAT_STOPS: Mapping[StopReason, str] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "refused": "content_filter",
}


def _chat_view(body: Body) -> tuple[str, str, dict[str, str | None]]:
    system = said = ""
    results: dict[str, str | None] = {}
    for message in body["messages"]:
        results |= dict.fromkeys((call["id"] for call in message.get("tool_calls") or []), None)
        if message["role"] == "tool":
            results[message["tool_call_id"]] = text_of(message["content"])
        elif message["role"] in ("system", "developer"):
            system += text_of(message["content"])
        elif message["role"] == "user":
            said = text_of(message["content"]) or said
    return system, said, results


def _chat_whole(played: PlayedTurn, body: Body) -> Body:
    parts = output_parts(played)
    thoughts = "".join(part.text for part in parts if isinstance(part, Think))
    calls = [
        {
            "id": part.id,
            "type": "function",
            "function": {"name": part.name, "arguments": arguments_text(part)},
        }
        for part in parts
        if isinstance(part, ToolCall)
    ]
    message: Body = {"role": "assistant", "content": played.text or None, "refusal": None}
    message |= {"tool_calls": calls} if calls else {}
    message |= {"reasoning_content": thoughts} if thoughts else {}
    finish = _CHAT_STOPS.get(played.turn.stop, "stop")
    usage = played.usage
    read = usage.input + usage.cache_read + usage.cache_write
    return {
        "id": f"chatcmpl-{played.number}",
        "object": "chat.completion",
        "created": 0,
        "model": body.get("model", "scripted"),
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": usage.output,
            "total_tokens": read + usage.output,
            "prompt_tokens_details": {
                "cached_tokens": usage.cache_read,
                "cache_write_tokens": usage.cache_write,
            },
        },
    }


def _chat_events(played: PlayedTurn, body: Body) -> Events:
    whole = _chat_whole(played, body)
    (choice,) = whole["choices"]
    counted = bool((body.get("stream_options") or {}).get("include_usage"))
    head = whole | {"object": "chat.completion.chunk", "usage": None}
    # Only a client that asks for usage gets the member at all.
    if not counted:
        del head["usage"]

    def chunk(delta: Body, finish: str | None = None) -> Body:
        made = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return head | {"choices": [made]}

    yield chunk({"role": "assistant", "content": "" if played.text else None, "refusal": None})
    index = 0
    for part in played.parts:
        if isinstance(part, Pause):
            yield part
        elif isinstance(part, ToolCall):
            begun = {"name": part.name, "arguments": ""}
            start = {"index": index, "id": part.id, "type": "function", "function": begun}
            yield chunk({"tool_calls": [start]})
            for piece in pieces(arguments_text(part)):
                delta = {"index": index, "function": {"arguments": piece}}
                yield chunk({"tool_calls": [delta]})
            index += 1
        else:
            name = "content" if isinstance(part, Say) else "reasoning_content"
            yield from (chunk({name: piece}) for piece in pieces(part.text))
    if played.turn.error is not None:
        return
    yield chunk({}, choice["finish_reason"])
    if counted:
        yield head | {"choices": [], "usage": whole["usage"]}


# ---- OpenAI: /v1/responses ----


def _responses_view(body: Body) -> tuple[str, str, dict[str, str | None]]:
    system = body.get("instructions") or ""
    said = body["input"] if isinstance(body["input"], str) else ""
    results: dict[str, str | None] = {}
    for item in body["input"] if isinstance(body["input"], list) else []:
        if item.get("type") == "function_call":
            results[item["call_id"]] = None
        elif item.get("type") == "function_call_output":
            results[item["call_id"]] = text_of(item["output"])
        elif item.get("role") == "user":
            said = text_of(item["content"]) or said
        elif item.get("role") in ("system", "developer"):
            system += text_of(item["content"])
    return system, said, results


def _responses_whole(played: PlayedTurn, body: Body) -> Body:
    usage = played.usage
    read = usage.input + usage.cache_read + usage.cache_write
    reasons: Mapping[StopReason, str] = {"length": "max_output_tokens", "refused": "content_filter"}
    reason = reasons.get(played.turn.stop)
    return {
        "id": f"resp_{played.number}",
        "object": "response",
        "created_at": 0,
        "status": "incomplete" if reason else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "model": body.get("model", "scripted"),
        "output": [_item(played, index, part) for index, part in enumerate(output_parts(played))],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": body.get("tools", []),
        "usage": {
            "input_tokens": read,
            "input_tokens_details": {
                "cached_tokens": usage.cache_read,
                "cache_write_tokens": usage.cache_write,
            },
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + usage.output,
        },
    }


def _item(played: PlayedTurn, index: int, part: OutputPart) -> Body:
    place = f"{played.number}_{index}"
    if isinstance(part, Say):
        said = {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}
        message = {"type": "message", "role": "assistant", "content": [said]}
        return message | {"id": f"msg_{place}", "status": "completed"}
    if isinstance(part, Think):
        return {
            "type": "reasoning",
            "id": f"rs_{place}",
            "summary": [{"type": "summary_text", "text": part.text}] if part.text else [],
            "encrypted_content": part.signature,
        }
    return {
        "type": "function_call",
        "id": f"fc_{place}",
        "status": "completed",
        "call_id": part.id,
        "name": part.name,
        "arguments": arguments_text(part),
    }


def _responses_events(played: PlayedTurn, body: Body) -> Events:
    number = 0
    for event in _responses_steps(played, body):
        if isinstance(event, Pause):
            yield event
        else:
            yield event | {"sequence_number": number}
            number += 1


def _responses_steps(played: PlayedTurn, body: Body) -> Events:
    whole = _responses_whole(played, body)
    begun = whole | {"status": "in_progress", "output": [], "usage": None}
    begun["incomplete_details"] = None
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    index = 0
    for part in played.parts:
        if isinstance(part, Pause):
            yield part
            continue
        item = whole["output"][index]
        place = {"output_index": index, "item_id": item["id"]}
        # Like the real API: an item is announced empty, then filled by deltas.
        added = item | _EMPTY[item["type"]] | {"status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": index, "item": added}
        yield from _ITEM_EVENTS[item["type"]](item, place)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
        index += 1
    if played.turn.error is None:
        yield {"type": f"response.{whole['status']}", "response": whole}


def _text_events(item: Body, place: Body) -> Iterator[Body]:
    (part,) = item["content"]
    place = place | {"content_index": 0}
    yield place | {"type": "response.content_part.added", "part": part | {"text": ""}}
    for piece in pieces(part["text"]):
        yield place | {"type": "response.output_text.delta", "delta": piece, "logprobs": []}
    yield place | {"type": "response.output_text.done", "text": part["text"], "logprobs": []}
    yield place | {"type": "response.content_part.done", "part": part}


def _thought_events(item: Body, place: Body) -> Iterator[Body]:
    kind = "response.reasoning_summary"
    for index, part in enumerate(item["summary"]):
        place = place | {"summary_index": index}
        yield place | {"type": f"{kind}_part.added", "part": part | {"text": ""}}
        for piece in pieces(part["text"]):
            yield place | {"type": f"{kind}_text.delta", "delta": piece}
        yield place | {"type": f"{kind}_text.done", "text": part["text"]}
        yield place | {"type": f"{kind}_part.done", "part": part}


def _call_events(item: Body, place: Body) -> Iterator[Body]:
    kind = "response.function_call_arguments"
    for piece in pieces(item["arguments"]):
        yield place | {"type": f"{kind}.delta", "delta": piece}
    done = {"type": f"{kind}.done", "arguments": item["arguments"], "name": item["name"]}
    yield place | done


_EMPTY: Mapping[str, Body] = {
    "message": {"content": []},
    "reasoning": {"summary": [], "encrypted_content": ""},
    "function_call": {"arguments": ""},
}
_ITEM_EVENTS: Mapping[str, Callable[[Body, Body], Iterator[Body]]] = {
    "message": _text_events,
    "reasoning": _thought_events,
    "function_call": _call_events,
}


# ---- The three APIs ----


def _responses_broken(error: ModelError, played: PlayedTurn, body: Body) -> Body:
    problem = {"code": _openai_problem(error)["code"], "message": str(error)}
    whole = _responses_whole(played, body)
    whole |= {"status": "failed", "error": problem, "output": list[Body]()}
    return {"type": "response.failed", "response": whole, "sequence_number": 999}


WIRES: tuple[Wire, ...] = (
    Wire(
        "openai-completions",
        "/v1/chat/completions",
        _chat_view,
        _chat_whole,
        _chat_events,
        _openai_error,
        named=False,
    ),
    Wire(
        "openai-responses",
        "/v1/responses",
        _responses_view,
        _responses_whole,
        _responses_events,
        _openai_error,
        _responses_broken,
    ),
    Wire(
        "anthropic-messages",
        "/v1/messages",
        _messages_view,
        _messages_whole,
        _messages_events,
        _anthropic_error,
    ),
)
