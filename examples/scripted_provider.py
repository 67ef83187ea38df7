"""A model provider that plays a script, over the real wire of three real APIs.

A local HTTP server speaks Anthropic's Messages and OpenAI's Chat Completions and Responses,
streamed or not, so that an agent with an official SDK runs offline, without a key:

    script = [
        ["Let me add.", Call("exec", {"code": "return 1 + 2"})],
        [Call("wait", lambda request: {"runId": request.last_result()["runId"]})],
        ["It is 3."],
    ]
    with ScriptedProvider(script) as provider:
        AsyncAnthropic(base_url=provider.url, api_key="none")
        AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="none")

The first request gets the first turn, and so on. Like the real ones, it refuses a conversation in
which a tool call was left unanswered. Every request is kept, to see what was sent.
"""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that the model makes; its arguments may depend on the request."""

    name: str
    arguments: "JsonObject | Callable[[Request], JsonObject]"


Turn: TypeAlias = list[str | Call]
"""What the model says at once: text, tool calls, or text and then tool calls."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sent."""

    path: str
    body: JsonObject

    @property
    def tool_names(self) -> list[str]:
        """The tools that the model was offered."""
        tools = self.body.get("tools", [])
        return [tool["function"]["name"] if "function" in tool else tool["name"] for tool in tools]

    def results(self) -> dict[str, str | None]:
        """What tools answered, by the id of the call, oldest first. None: nothing yet."""
        return WIRES[self.path].results(self.body)

    def last_result(self) -> Any:
        """The newest tool result, read as JSON."""
        *_, newest = self.results().values()
        return json.loads(newest or "null")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as it is written on the wire."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A turn of the script, with the request that it answers."""

    number: int
    request: JsonObject
    parts: list[str | ToolCall]

    @property
    def model(self) -> str:
        return self.request.get("model", "scripted")

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def calls(self) -> list[ToolCall]:
        return [part for part in self.parts if isinstance(part, ToolCall)]

    @property
    def tokens(self) -> tuple[int, int]:
        """Read and written, at four characters each: near enough."""
        written = self.text + "".join(call.arguments for call in self.calls)
        return len(json.dumps(self.request)) // 4, len(written) // 4 + 1


def pieces(text: str) -> Iterator[str]:
    """The text as it trickles in: a real stream breaks it anywhere, inside of words and JSON."""
    return (text[at : at + 11] for at in range(0, len(text), 11))


def text_of(content: str | list[JsonObject]) -> str:
    """A tool result's text, which all three APIs take whole or as a list of blocks."""
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


# ---- Anthropic: POST /v1/messages ----


def messages_results(body: JsonObject) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for message in body["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else []:
            if block["type"] == "tool_use":
                found[block["id"]] = None
            elif block["type"] == "tool_result":
                found[block["tool_use_id"]] = text_of(block["content"])
    return found


def messages_answer(reply: Reply) -> JsonObject:
    read, written = reply.tokens
    content: list[JsonObject] = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {
            "type": "tool_use",
            "id": part.id,
            "name": part.name,
            "input": json.loads(part.arguments),
        }
        for part in reply.parts
    ]
    return {
        "id": f"msg_{reply.number}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": "tool_use" if reply.calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": read, "output_tokens": written},
    }


def messages_events(reply: Reply) -> Iterator[JsonObject]:
    whole = messages_answer(reply)
    start = whole | {
        "content": [],
        "stop_reason": None,
        "usage": whole["usage"] | {"output_tokens": 1},
    }
    yield {"type": "message_start", "message": start}
    yield {"type": "ping"}
    for index, (part, block) in enumerate(zip(reply.parts, whole["content"], strict=True)):
        if isinstance(part, str):
            empty: JsonObject = {"text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(part)]
        else:
            empty = {"input": {}}
            deltas = [
                {"type": "input_json_delta", "partial_json": piece}
                for piece in ("", *pieces(part.arguments))
            ]
        yield {"type": "content_block_start", "index": index, "content_block": block | empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None},
        "usage": {"output_tokens": whole["usage"]["output_tokens"]},
    }
    yield {"type": "message_stop"}


# ---- OpenAI: POST /v1/chat/completions ----


def chat_results(body: JsonObject) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for message in body["messages"]:
        found |= {call["id"]: None for call in message.get("tool_calls") or []}
        if message["role"] == "tool":
            found[message["tool_call_id"]] = text_of(message["content"])
    return found


def chat_answer(reply: Reply) -> JsonObject:
    read, written = reply.tokens
    message: JsonObject = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.calls
        ]
    finish = "tool_calls" if reply.calls else "stop"
    return {
        "id": f"chatcmpl-{reply.number}",
        "object": "chat.completion",
        "created": 0,
        "model": reply.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        },
    }


def chat_events(reply: Reply) -> Iterator[JsonObject]:
    whole = chat_answer(reply)
    (choice,) = whole["choices"]
    counted = bool((reply.request.get("stream_options") or {}).get("include_usage"))
    head = whole | {"object": "chat.completion.chunk", "usage": None}
    if not counted:
        del head["usage"]

    def chunk(delta: JsonObject, finish: str | None = None) -> JsonObject:
        made = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return head | {"choices": [made]}

    yield chunk({"role": "assistant", "content": "" if reply.text else None, "refusal": None})
    for piece in pieces(reply.text):
        yield chunk({"content": piece})
    for index, call in enumerate(choice["message"].get("tool_calls", [])):
        function = call["function"]
        start = call | {"index": index, "function": function | {"arguments": ""}}
        yield chunk({"tool_calls": [start]})
        for piece in pieces(function["arguments"]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, choice["finish_reason"])
    if counted:
        yield head | {"choices": [], "usage": whole["usage"]}


# ---- OpenAI: POST /v1/responses ----


def responses_results(body: JsonObject) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for item in body["input"] if isinstance(body["input"], list) else []:
        if item.get("type") == "function_call":
            found[item["call_id"]] = None
        elif item.get("type") == "function_call_output":
            found[item["call_id"]] = text_of(item["output"])
    return found


def responses_answer(reply: Reply) -> JsonObject:
    read, written = reply.tokens
    return {
        "id": f"resp_{reply.number}",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": reply.model,
        "output": [_item(reply, index) for index in range(len(reply.parts))],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": reply.request.get("tools", []),
        "usage": {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        },
    }


def _item(reply: Reply, index: int) -> JsonObject:
    part = reply.parts[index]
    if isinstance(part, str):
        text = {"type": "output_text", "text": part, "annotations": [], "logprobs": []}
        message = {"type": "message", "role": "assistant", "content": [text]}
        return message | {"id": f"msg_{reply.number}_{index}", "status": "completed"}
    return {
        "type": "function_call",
        "id": f"fc_{reply.number}_{index}",
        "status": "completed",
        "call_id": part.id,
        "name": part.name,
        "arguments": part.arguments,
    }


def responses_events(reply: Reply) -> Iterator[JsonObject]:
    events = _responses_events(responses_answer(reply))
    return (event | {"sequence_number": number} for number, event in enumerate(events))


def _responses_events(whole: JsonObject) -> Iterator[JsonObject]:
    begun = whole | {"status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(whole["output"]):
        empty: JsonObject = {"content": []} if item["type"] == "message" else {"arguments": ""}
        added = item | empty | {"status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": index, "item": added}
        place = {"output_index": index, "item_id": item["id"]}
        yield from _text_events(item, place) if "content" in item else _call_events(item, place)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": whole}


def _text_events(item: JsonObject, place: JsonObject) -> Iterator[JsonObject]:
    (part,) = item["content"]
    place = place | {"content_index": 0}
    yield place | {"type": "response.content_part.added", "part": part | {"text": ""}}
    for piece in pieces(part["text"]):
        yield place | {"type": "response.output_text.delta", "delta": piece, "logprobs": []}
    yield place | {"type": "response.output_text.done", "text": part["text"], "logprobs": []}
    yield place | {"type": "response.content_part.done", "part": part}


def _call_events(item: JsonObject, place: JsonObject) -> Iterator[JsonObject]:
    kind = "response.function_call_arguments"
    for piece in pieces(item["arguments"]):
        yield place | {"type": f"{kind}.delta", "delta": piece}
    yield place | {"type": f"{kind}.done", "arguments": item["arguments"]}


# ---- The server ----


@dataclass(frozen=True, slots=True)
class Wire:
    """One API: how to read its requests, and how to write a turn in it."""

    results: Callable[[JsonObject], dict[str, str | None]]
    answer: Callable[[Reply], JsonObject]
    events: Callable[[Reply], Iterator[JsonObject]]
    named: bool = True
    """Whether an event has its type on a line of its own; else the stream ends with `[DONE]`."""


WIRES = {
    "/v1/messages": Wire(messages_results, messages_answer, messages_events),
    "/v1/chat/completions": Wire(chat_results, chat_answer, chat_events, named=False),
    "/v1/responses": Wire(responses_results, responses_answer, responses_events),
}


class Refusal(Exception):
    """A request that a provider would not answer."""


@dataclass(slots=True)
class ScriptedProvider:
    """The server. It listens inside of `with`, on a port that the system chooses."""

    script: list[Turn]
    requests: list[Request] = field(default_factory=list)
    _server: ThreadingTCPServer = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> "ScriptedProvider":
        # Not `ThreadingHTTPServer`: it asks the network for the name of 127.0.0.1.
        self._server = ThreadingTCPServer(("127.0.0.1", 0), partial(_Handler, self))
        serve = partial(self._server.serve_forever, poll_interval=0.01)
        threading.Thread(target=serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where it listens, without the `/v1`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def reply(self, request: Request) -> Reply:
        """Plays the next turn."""
        with self._lock:
            self.requests.append(request)
            number = len(self.requests)
        open_calls = [call for call, result in request.results().items() if result is None]
        if open_calls:
            raise Refusal(f"tool calls without a result: {', '.join(open_calls)}")
        if number > len(self.script):
            raise Refusal(f"the script has {len(self.script)} turns and this is request {number}")
        parts: list[str | ToolCall] = []
        for index, part in enumerate(self.script[number - 1]):
            if isinstance(part, Call):
                given = part.arguments(request) if callable(part.arguments) else part.arguments
                part = ToolCall(f"call_{number}_{index}", part.name, json.dumps(given))
            parts.append(part)
        return Reply(number, request.body, parts)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, provider: ScriptedProvider, *args: Any) -> None:
        self.provider = provider
        super().__init__(*args)

    def do_POST(self) -> None:
        path = self.path.partition("?")[0]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            if path not in WIRES:
                raise Refusal(f"there is no {path}")
            reply = self.provider.reply(Request(path, body))
        except Exception as error:  # also what the script's own functions raise
            # Not 500: the SDKs would try again, and so skip a turn.
            text = f"{type(error).__name__}: {error}"
            problem = {"type": "invalid_request_error", "message": text}
            self._send(400, {"type": "error", "error": problem})
            return
        if body.get("stream"):
            self._stream(WIRES[path], reply)
        else:
            self._send(200, WIRES[path].answer(reply))

    def _send(self, status: int, answer: JsonObject) -> None:
        data = json.dumps(answer).encode()
        self._head(status, "application/json", ("Content-Length", str(len(data))))
        self.wfile.write(data)

    def _stream(self, wire: Wire, reply: Reply) -> None:
        self._head(200, "text/event-stream", ("Transfer-Encoding", "chunked"))
        for event in wire.events(reply):
            name = f"event: {event['type']}\n" if wire.named else ""
            self._chunk(f"{name}data: {json.dumps(event)}\n\n")
        if not wire.named:
            self._chunk("data: [DONE]\n\n")
        self._chunk("")

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _head(self, status: int, kind: str, length: tuple[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header(*length)
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """The example prints; the server does not."""
