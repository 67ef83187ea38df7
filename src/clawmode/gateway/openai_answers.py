"""Answers in the format of OpenAI, whole or as a stream: chat completions and responses."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import field
from typing import Protocol

from clawmode.gateway.http_turn import CallPart, EndPart, Part, TextPart
from clawmode.messages import Usage
from clawmode.types import JsonObject, JsonValue, dataclass

MESSAGE = "msg_0"
PLACE: JsonObject = {"item_id": MESSAGE, "output_index": 0, "content_index": 0}
"""Where the text of a response stands: it is the only part of its first item."""


class RunFailed(Exception):
    """A run that ended with an error."""


class Answer(Protocol):
    """Builds an answer of the parts of a run, one after the other."""

    text: str

    def add(self, part: Part) -> Iterator[str]:
        """Takes a part, and yields what a stream sends for it."""
        ...

    def whole(self) -> JsonObject:
        """Returns the answer after the last part."""
        ...


def _sse(data: JsonObject, event: str = "") -> str:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n"


def _tokens(usage: JsonObject) -> tuple[int, int, int]:
    """Returns the tokens of a run: all input, what of it was cached, and output."""
    count = Usage.from_json(usage)
    given = count.input + count.cache_read + count.cache_write
    return given, count.cache_read, count.output


def error_body(message: str, kind: str, code: str, field_name: str | None = None) -> JsonObject:
    """Returns an error in the shape of OpenAI."""
    about: JsonObject = {"message": message, "type": kind, "param": field_name, "code": code}
    return {"error": about}


# ---- Chat completions ----


@dataclass(slots=True)
class ChatAnswer:
    """A chat completion, built of the parts of a run."""

    id: str
    model: str
    with_usage: bool
    text: str = ""
    calls: list[CallPart] = field(default_factory=list[CallPart])
    end: EndPart | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    _begun: bool = False

    def add(self, part: Part) -> Iterator[str]:
        if not self._begun:
            self._begun = True
            yield self._chunk({"role": "assistant", "content": ""})
        if isinstance(part, TextPart):
            self.text += part.text
            yield self._chunk({"content": part.text})
        elif isinstance(part, CallPart):
            self.calls.append(part)
            yield self._chunk({"tool_calls": [{"index": len(self.calls) - 1, **_chat_call(part)}]})
        else:
            self.end = part
            yield self._chunk({}, part.reason)
            if self.with_usage:
                yield _sse({**self._head("chat.completion.chunk"), "choices": [], **self._usage()})
            yield "data: [DONE]\n\n"

    def whole(self) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": self.text or None}
        if self.calls:
            message["tool_calls"] = [_chat_call(call) for call in self.calls]
        reason = self.end.reason if self.end else "stop"
        choice: JsonObject = {"index": 0, "message": message, "finish_reason": reason}
        choice["logprobs"] = None
        return {**self._head("chat.completion"), "choices": [choice], **self._usage()}

    def _chunk(self, delta: JsonObject, reason: str | None = None) -> str:
        choice: JsonObject = {"index": 0, "delta": delta, "finish_reason": reason}
        return _sse({**self._head("chat.completion.chunk"), "choices": [choice]})

    def _head(self, kind: str) -> JsonObject:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _usage(self) -> JsonObject:
        given, cached, made = _tokens(self.end.usage if self.end else {})
        usage: JsonObject = {"prompt_tokens": given, "completion_tokens": made}
        usage |= {"total_tokens": given + made, "prompt_tokens_details": {"cached_tokens": cached}}
        return {"usage": usage}


def _chat_call(call: CallPart) -> JsonObject:
    function: JsonObject = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


# ---- Responses ----


@dataclass(slots=True)
class ResponseAnswer:
    """A response, built of the parts of a run."""

    id: str
    model: str
    previous: str
    text: str = ""
    calls: list[CallPart] = field(default_factory=list[CallPart])
    end: EndPart | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    _sent: int = 0
    _speaking: bool = False

    def add(self, part: Part) -> Iterator[str]:
        if not self._sent:
            yield self._event("response.created", response=self._response("in_progress"))
            yield self._event("response.in_progress", response=self._response("in_progress"))
        if isinstance(part, TextPart):
            if not self.text:
                self._speaking = True
                item: JsonObject = {**self._message("in_progress"), "content": []}
                yield self._event("response.output_item.added", output_index=0, item=item)
                yield self._event("response.content_part.added", **PLACE, part=_text_part(""))
            self.text += part.text
            yield self._event(
                "response.output_text.delta", **PLACE, delta=part.text, logprobs=list[JsonValue]()
            )
            return
        yield from self._close_message()
        if isinstance(part, CallPart):
            self.calls.append(part)
            index, text = len(self._output()) - 1, json.dumps(part.arguments)
            opened: JsonObject = {**_function_call(part, "in_progress"), "arguments": ""}
            yield self._event("response.output_item.added", output_index=index, item=opened)
            at = {"item_id": part.id, "output_index": index}
            yield self._event("response.function_call_arguments.delta", **at, delta=text)
            yield self._event(
                "response.function_call_arguments.done", **at, arguments=text, name=part.name
            )
            closed = _function_call(part, "completed")
            yield self._event("response.output_item.done", output_index=index, item=closed)
        else:
            self.end = part
            yield self._event("response.completed", response=self.whole())

    def whole(self) -> JsonObject:
        return self._response("completed")

    def _close_message(self) -> Iterator[str]:
        if self._speaking:
            self._speaking = False
            yield self._event(
                "response.output_text.done", **PLACE, text=self.text, logprobs=list[JsonValue]()
            )
            yield self._event("response.content_part.done", **PLACE, part=_text_part(self.text))
            item = self._message("completed")
            yield self._event("response.output_item.done", output_index=0, item=item)

    def _event(self, kind: str, /, **data: JsonValue) -> str:
        made = _sse({"type": kind, "sequence_number": self._sent, **data}, kind)
        self._sent += 1
        return made

    def _message(self, status: str) -> JsonObject:
        content: list[JsonValue] = [_text_part(self.text)]
        about: JsonObject = {"id": MESSAGE, "type": "message", "role": "assistant"}
        return about | {"status": status, "content": content}

    def _output(self) -> list[JsonValue]:
        said: list[JsonValue] = [self._message("completed")] if self.text else []
        return said + [_function_call(call, "completed") for call in self.calls]

    def _response(self, status: str) -> JsonObject:
        usage: JsonValue = None
        if self.end is not None:
            given, cached, made = _tokens(self.end.usage)
            usage = {
                "input_tokens": given,
                "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
                "output_tokens": made,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": given + made,
            }
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self.model,
            "output": self._output() if status == "completed" else [],
            "parallel_tool_calls": True,
            "previous_response_id": self.previous or None,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "usage": usage,
        }


def _text_part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _function_call(call: CallPart, status: str) -> JsonObject:
    about: JsonObject = {"id": call.id, "type": "function_call", "call_id": call.id}
    return about | {"name": call.name, "arguments": json.dumps(call.arguments), "status": status}


# ---- Both ----


async def collect(answer: Answer, parts: AsyncIterator[Part]) -> JsonObject:
    """Returns a whole answer.

    Raises:
        RunFailed: The run ended with an error.
    """
    async for part in parts:
        for _ in answer.add(part):
            pass
        if isinstance(part, EndPart) and part.error:
            raise RunFailed(part.error)
    return answer.whole()
