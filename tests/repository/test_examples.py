"""The examples run, say what they show, and the server that they talk to speaks the real wire."""

import http.client
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from tests.support.command_driver import serving

from clawmode.testing import ScriptRequest, ScriptServer, Turn, call

ROOT = Path(__file__).parents[2]
NO_EXAMPLES = {"shop.py", "warehouse_server.py"}  # which the demo uses
NEEDS_A_MODEL = {"agent.py"}
NEEDS_PACKAGES = {"litellm_loop.py"}  # tests/ordeals/test_environments.py runs it
SLOW = {"demo.py": 60, "fleet.py": 90}
"""Seconds for an example that takes its time: the command in it imports a model's library."""

EXAMPLES = sorted(
    path
    for path in (ROOT / "examples").glob("*.py")
    if path.name not in NO_EXAMPLES | NEEDS_A_MODEL | NEEDS_PACKAGES
)

SAYS = {
    "agent_turn.py": "└─ • model: Short of coffee and cake.",
    "anthropic_loop.py": "5 requests, each with the tools exec and wait, and no other",
    "demo.py": "All results were correct.",
    "durable_resume.py": "the report of June, and the map still says 1",
    "approval.py": "program  completed {'deleted': ['draft.txt'], 'kept': ['thesis.txt']}",
    "fan_out.py": "Promise.all was",
    "fleet.py": "24 orders, each shipped once.",
    "google_loop.py": "4 requests, each with the tools exec and wait, and no other",
    "openai_loop.py": "wait   completed",
    "twelve_lines.py": "3",
}
"""What an example prints if it did its work."""


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, marks=pytest.mark.timeout(SLOW.get(path.name, 40) + 40))
        for path in EXAMPLES
    ],
    ids=lambda path: path.name,
)
def test_an_example_runs_offline_and_without_keys(example: Path) -> None:
    assert SAYS.get(example.name, "") in output_of(example, SLOW.get(example.name, 40))


def output_of(example: Path, seconds: float, **environment: str) -> str:
    kept = re.compile(r"PATH|HOME|TMPDIR|LANG|LC_.*|XDG_.*|PYTHON.*|COV.*|CLAWMODE_.*")
    clean = {name: value for name, value in os.environ.items() if kept.fullmatch(name)}
    # Nothing listens there: what would leave the machine fails.
    dead = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        env=clean | dead | {"NO_PROXY": "127.0.0.1"} | environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.covers("PY-3")
@pytest.mark.timeout(100)
def test_the_agent_in_ten_lines_answers_over_the_wire_of_its_provider() -> None:
    script = [Turn(call("exec", {"code": "return tools.add({a: 1, b: 2})"})), reply]
    with serving(script, key="a key of no use") as server:
        said = output_of(
            ROOT / "examples" / "agent.py",
            60,
            ANTHROPIC_API_KEY="a key of no use",
            PYTHONPATH=str(ROOT / "tests" / "support" / "redirect"),
            SCRIPT_URL=server.url,
        )
    assert said == "It is 3.\n"
    assert [request.asked.tool_names for request in server.requests] == [("exec", "wait")] * 2


def reply(request: ScriptRequest) -> Turn:
    return Turn(f"It is {request.last_result()['value']}.")


def test_the_twelve_lines_are_those_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    block = re.search(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert block is not None
    example = (ROOT / "examples" / "twelve_lines.py").read_text("utf-8")
    # Blank lines are the formatter's business.
    assert [*filter(None, example.split("\n"))] == [*filter(None, block[1].split("\n"))]


# ---- The server that they talk to ----

CODE = 'return "a program of more than one piece, with ünïcode and \\"quotes\\"";'
TURN = Turn(
    "First I look, then",
    " I ask.",
    call("exec", {"code": CODE}),
    call("exec", {"code": "1"}),
)


def post(server: ScriptServer, path: str, body: dict[str, Any]) -> str:
    said = [{"role": "user", "content": "Hello"}]
    key = "input" if path == "/v1/responses" else "messages"
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=5)
    try:
        whole = json.dumps({"model": "scripted", key: said, **body})
        connection.request("POST", path, whole, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        return response.read().decode()
    finally:
        connection.close()


def events(stream: str) -> list[dict[str, Any]]:
    """The events of a stream, each with its type, which is also the name of a named one."""
    found: list[dict[str, Any]] = []
    for block in stream.removesuffix("\n\n").split("\n\n"):
        *name, data = block.split("\n")
        if data == "data: [DONE]":
            found.append({"type": "[DONE]"})
            continue
        found.append(json.loads(data.removeprefix("data: ")))
        assert name in ([], [f"event: {found[-1].get('type')}"])
    return found


def kinds(found: list[dict[str, Any]]) -> list[str]:
    """The types of events, neighbours that are alike told once."""
    types = [event["type"] for event in found]
    return [kind for at, kind in enumerate(types) if at == 0 or types[at - 1] != kind]


def test_a_stream_of_messages_is_what_anthropic_sends() -> None:
    from anthropic.types import Message, RawMessageStreamEvent

    with serving([TURN, TURN]) as server:
        found = events(post(server, "/v1/messages", {"stream": True}))
        whole = post(server, "/v1/messages", {})
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    found = [event for event in found if event != {"type": "ping"}]  # it has no class in the SDK
    assert kinds(found) == ["message_start", *block * 4, "message_delta", "message_stop"]
    TypeAdapter[object](list[RawMessageStreamEvent]).validate_python(found)
    assert Message.model_validate_json(whole).stop_reason == "tool_use"


def test_a_stream_of_chunks_is_what_openai_sends() -> None:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    path = "/v1/chat/completions"
    counted = {"stream": True, "stream_options": {"include_usage": True}}
    with serving([TURN] * 3) as server:
        stream = post(server, path, counted)
        brief = post(server, path, {"stream": True})
        whole = post(server, path, {})
    *found, done = events(stream)
    assert done == {"type": "[DONE]"}
    chunks = [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in found]
    assert [len(chunk.choices) for chunk in chunks] == [1] * (len(chunks) - 1) + [0]
    assert [chunk.usage is not None for chunk in chunks[-2:]] == [False, True]
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert all("usage" not in chunk for chunk in events(brief))
    assert ChatCompletion.model_validate_json(whole, strict=True).choices[0].message.tool_calls


def test_a_stream_of_a_response_is_what_openai_sends() -> None:
    from openai.types.responses import Response, ResponseStreamEvent

    with serving([TURN, TURN]) as server:
        found = events(post(server, "/v1/responses", {"stream": True}))
        whole = post(server, "/v1/responses", {})
    text = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    arguments = ["function_call_arguments.delta", "function_call_arguments.done"]
    begin, end = "output_item.added", "output_item.done"
    items = [begin, *text, end] * 2 + [begin, *arguments, end] * 2
    expected = ["created", "in_progress", *items, "completed"]
    assert kinds(found) == [f"response.{kind}" for kind in expected]
    assert [event["sequence_number"] for event in found] == [*range(len(found))]
    TypeAdapter[object](list[ResponseStreamEvent]).validate_python(found)
    assert Response.model_validate_json(whole).output_text == "First I look, then I ask."
