"""The examples run, say what they show, and the provider that they talk to speaks the real wire."""

import http.client
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from examples.scripted_provider import WIRES, Call, Request, ScriptedProvider, Turn
from pydantic import TypeAdapter

ROOT = Path(__file__).parent.parent
NO_EXAMPLES = {"scripted_provider.py"}
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name not in NO_EXAMPLES)

SAYS = {
    "anthropic_loop.py": "5 requests, each with the tools exec and wait, and no other",
    "demo.py": "finished it",
    "durable_resume.py": "the report of June, and the map still says 1",
    "approval.py": "program  completed {'deleted': ['draft.txt'], 'kept': ['thesis.txt']}",
    "fan_out.py": "Promise.all was",
    "openai_loop.py": "wait   completed",
    "twelve_lines.py": "3",
}
"""What an example prints if it did its work."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_offline_and_without_keys(example: Path) -> None:
    kept = re.compile(r"PATH|HOME|TMPDIR|LANG|LC_.*|XDG_.*|PYTHON.*|COV.*|CLAWMODE_.*")
    clean = {name: value for name, value in os.environ.items() if kept.fullmatch(name)}
    # Nothing listens there: what would leave the machine fails.
    dead = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        env=clean | dead | {"NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=19,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert SAYS.get(example.name, "") in done.stdout


def test_the_twelve_lines_are_those_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    block = re.search(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert block is not None
    example = (ROOT / "examples" / "twelve_lines.py").read_text("utf-8")
    # Blank lines are the formatter's business.
    assert [*filter(None, example.split("\n"))] == [*filter(None, block[1].split("\n"))]


# ---- The scripted provider ----

CODE = 'return "a program of more than one piece, with ünïcode and \\"quotes\\"";'
SCRIPT: list[Turn] = [
    ["First I look, then", " I ask.", Call("exec", {"code": CODE}), Call("exec", {"code": "1"})],
    [Call("wait", lambda request: {"runId": request.last_result()["runId"]})],
    ["That is all."],
]
ANSWERS = ['{"status":"completed"}', '{"status":"waiting","runId":"cm_1"}']


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDKs would ask a proxy of the machine for 127.0.0.1."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def post(provider: ScriptedProvider, path: str, body: dict[str, Any]) -> tuple[int, str]:
    host = provider.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=5)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def opening(path: str, **options: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": "Hello"}]
    key = "input" if path == "/v1/responses" else "messages"
    return {"model": "scripted", key: said, **options}


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

    with ScriptedProvider(SCRIPT) as provider:
        _, stream = post(provider, "/v1/messages", opening("/v1/messages", stream=True))
    found = events(stream)
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert kinds(found) == [*("message_start", "ping", *block * 4, "message_delta", "message_stop")]
    found.remove({"type": "ping"})  # which the SDK drops: it has no class for it
    TypeAdapter[object](list[RawMessageStreamEvent]).validate_python(found)
    with ScriptedProvider(SCRIPT) as provider:
        _, whole = post(provider, "/v1/messages", opening("/v1/messages"))
    assert Message.model_validate_json(whole).stop_reason == "tool_use"


def test_a_stream_of_chunks_is_what_openai_sends() -> None:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    path = "/v1/chat/completions"
    counted = {"stream": True, "stream_options": {"include_usage": True}}
    with ScriptedProvider([*SCRIPT[:1] * 2]) as provider:
        _, stream = post(provider, path, opening(path, **counted))
        _, brief = post(provider, path, opening(path, stream=True))
    *found, done = events(stream)
    assert done == {"type": "[DONE]"}
    chunks = [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in found]
    assert [len(chunk.choices) for chunk in chunks] == [1] * (len(chunks) - 1) + [0]
    assert [chunk.usage is not None for chunk in chunks[-2:]] == [False, True]
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert all("usage" not in chunk for chunk in events(brief))
    with ScriptedProvider(SCRIPT) as provider:
        _, whole = post(provider, path, opening(path))
    assert ChatCompletion.model_validate_json(whole, strict=True).choices[0].message.tool_calls


def test_a_stream_of_a_response_is_what_openai_sends() -> None:
    from openai.types.responses import Response, ResponseStreamEvent

    path = "/v1/responses"
    with ScriptedProvider(SCRIPT) as provider:
        _, stream = post(provider, path, opening(path, stream=True))
    found = events(stream)
    text = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    call = ["function_call_arguments.delta", "function_call_arguments.done"]
    begin, end = "output_item.added", "output_item.done"
    items = [begin, *text, end] * 2 + [begin, *call, end] * 2
    expected = ["created", "in_progress", *items, "completed"]
    assert kinds(found) == [f"response.{kind}" for kind in expected]
    assert [event["sequence_number"] for event in found] == [*range(len(found))]
    TypeAdapter[object](list[ResponseStreamEvent]).validate_python(found)
    with ScriptedProvider(SCRIPT) as provider:
        _, whole = post(provider, path, opening(path))
    assert json.loads(whole)["output"] == found[-1]["response"]["output"]
    assert Response.model_validate_json(whole).output_text == "First I look, then I ask."


def test_anthropics_sdk_understands_it() -> None:
    from anthropic import Anthropic

    with (
        ScriptedProvider(SCRIPT) as provider,
        Anthropic(base_url=provider.url, api_key="none", max_retries=0) as client,
    ):
        messages: list[Any] = [{"role": "user", "content": "Hello"}]
        replies: list[Any] = []
        for _ in SCRIPT:
            with client.messages.stream(
                model="scripted", max_tokens=99, messages=messages
            ) as stream:
                replies.append(stream.get_final_message())
            messages.append({"role": "assistant", "content": replies[-1].content})
            calls = [block for block in replies[-1].content if block.type == "tool_use"]
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": answer}
                for call, answer in zip(calls, ANSWERS, strict=False)
            ]
            messages.append({"role": "user", "content": results or "Thanks"})
    first, second, third = replies
    assert [block.type for block in first.content] == ["text", "text", "tool_use", "tool_use"]
    assert "".join(block.text for block in first.content[:2]) == "First I look, then I ask."
    assert [block.input for block in first.content[2:]] == [{"code": CODE}, {"code": "1"}]
    assert second.content[0].input == {"runId": "cm_1"}
    assert (third.stop_reason, third.content[0].text) == ("end_turn", "That is all.")


def test_openais_sdk_understands_chat_completions() -> None:
    from openai import OpenAI
    from openai.lib.streaming.chat import ChatCompletionStreamState

    with (
        ScriptedProvider(SCRIPT) as provider,
        OpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=0) as client,
    ):
        messages: list[Any] = [{"role": "user", "content": "Hello"}]
        replies: list[Any] = []
        for _ in SCRIPT:
            state = ChatCompletionStreamState()
            for chunk in client.chat.completions.create(
                model="scripted", messages=messages, stream=True
            ):
                state.handle_chunk(chunk)
            replies.append(state.get_final_completion().choices[0])
            messages.append(replies[-1].message.to_dict())
            calls = replies[-1].message.tool_calls or []
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": answer}
                for call, answer in zip(calls, ANSWERS, strict=False)
            ]
    first, second, third = replies
    assert first.message.content == "First I look, then I ask."
    arguments = [json.loads(call.function.arguments) for call in first.message.tool_calls]
    assert arguments == [{"code": CODE}, {"code": "1"}]
    assert second.message.tool_calls[0].function.arguments == '{"runId": "cm_1"}'
    assert (third.finish_reason, third.message.content) == ("stop", "That is all.")


def test_openais_sdk_understands_responses() -> None:
    from openai import OpenAI

    with (
        ScriptedProvider(SCRIPT) as provider,
        OpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=0) as client,
    ):
        items: list[Any] = [{"role": "user", "content": "Hello"}]
        replies: list[Any] = []
        for _ in SCRIPT:
            with client.responses.stream(model="scripted", input=items) as stream:
                stream.until_done()
                replies.append(stream.get_final_response())
            calls = [item for item in replies[-1].output if item.type == "function_call"]
            items += replies[-1].output
            items += [
                {"type": "function_call_output", "call_id": call.call_id, "output": answer}
                for call, answer in zip(calls, ANSWERS, strict=False)
            ]
    first, second, third = replies
    assert first.output_text == "First I look, then I ask."
    arguments = [json.loads(item.arguments) for item in first.output[2:]]
    assert arguments == [{"code": CODE}, {"code": "1"}]
    assert second.output[0].arguments == '{"runId": "cm_1"}'
    assert third.output_text == "That is all."


@pytest.mark.parametrize("path", WIRES)
def test_requests_are_kept_and_their_tools_are_named(path: str) -> None:
    tool = {"type": "function", "name": "exec"}
    tools = [tool | {"function": tool} if "chat" in path else tool]
    with ScriptedProvider(SCRIPT) as provider:
        post(provider, path, opening(path, tools=tools))
        post(provider, path, opening(path))
    assert [request.tool_names for request in provider.requests] == [["exec"], []]
    assert [request.path for request in provider.requests] == [path, path]


def test_a_call_that_was_not_answered_is_refused_as_by_the_real_ones() -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "exec", "arguments": "{}"}
    with ScriptedProvider(SCRIPT) as provider:
        status, text = post(provider, "/v1/responses", {"input": [call]})
    assert status == 400
    assert "call_1" in text


@pytest.mark.parametrize(
    ("script", "path"),
    [
        ([], "/v1/messages"),
        (SCRIPT, "/v1/embeddings"),
        ([[Call("wait", lambda request: request.last_result())]], "/v1/responses"),
    ],
    ids=["the script has ended", "no such path", "the script's function raised"],
)
def test_what_cannot_be_played_is_an_error_that_no_sdk_retries(
    script: list[Turn], path: str
) -> None:
    with ScriptedProvider(script) as provider:
        status, text = post(provider, path, opening(path))
    assert status == 400
    assert json.loads(text)["error"]["message"]


def test_a_result_in_blocks_reads_like_one_in_a_string() -> None:
    blocks = [{"type": "text", "text": '{"runId":'}, {"type": "text", "text": '"cm_1"}'}]
    result = {"type": "tool_result", "tool_use_id": "a", "content": blocks}
    request = Request("/v1/messages", {"messages": [{"role": "user", "content": [result]}]})
    assert request.last_result() == {"runId": "cm_1"}
