"""The gateway for OpenAI's clients: the official SDK, real connections, hostile requests."""

import base64
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from openai import (
    APIError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    NotFoundError,
)
from tests.support.gateway_driver import TOKEN, Wired, wired
from tests.support.waiting import until

from clawmode.gateway import gateway as gateway_module
from clawmode.gateway import http_turn
from clawmode.gateway.logins import revoked
from clawmode.messages import Image, UserMessage
from clawmode.rpc.tokens import Token, Tokens, digest
from clawmode.testing import Turn, call, pause
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio

PIXEL = base64.b64encode(b"\x89PNG\r\n").decode()
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a town.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
    },
}
LOOK = (
    "const towns = ['Rome', 'Oslo']; return Promise.all(towns.map(town => tools.weather({town})))"
)


@asynccontextmanager
async def served(
    folder: Path, script: list[Any], **options: Any
) -> AsyncIterator[tuple[AsyncOpenAI, Wired]]:
    async with wired(folder, script, **options) as it:
        async with AsyncOpenAI(
            api_key=TOKEN, base_url=f"http://127.0.0.1:{it.port}/v1", max_retries=0
        ) as client:
            yield client, it


def said(it: Wired, number: int = -1) -> list[str]:
    """What the user has said, as the model read it."""
    messages = it.model.requests[number].messages
    return [
        "".join(p.text for p in m.content if hasattr(p, "text"))
        for m in messages
        if isinstance(m, UserMessage)
    ]


async def test_agents_are_models(tmp_path: Path) -> None:
    async with served(tmp_path, []) as (client, _):
        assert [model.id async for model in await client.models.list()] == ["main"]
        assert (await client.models.retrieve("clawmode/main")).id == "main"
        with pytest.raises(NotFoundError, match=r"there is no model 'gpt'; .*: main"):
            await client.models.retrieve("gpt")


@pytest.mark.covers("HT-1", "HT-3")
async def test_a_chat_completion_has_text_usage_and_a_conversation_that_continues(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, [Turn("Hello, Ann."), Turn("You are Ann."), Turn("Who?")]) as (
        client,
        it,
    ):
        messages: list[Any] = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "I am Ann."},
        ]
        first = await client.chat.completions.create(model="main", messages=messages)
        choice = first.choices[0]
        assert (choice.message.content, choice.finish_reason) == ("Hello, Ann.", "stop")
        assert first.usage is not None
        assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
        assert "Be brief." in it.model.requests[0].system
        messages += [choice.message.to_dict(), {"role": "user", "content": "Who am I?"}]
        second = await client.chat.completions.create(model="main", messages=messages)
        assert second.choices[0].message.content == "You are Ann."
        assert said(it) == ["I am Ann.", "Who am I?"]  # the session has the first message already
        other: list[Any] = [
            {"role": "user", "content": "I am Bob."},
            {"role": "assistant", "content": "Hello, Bob."},
            {"role": "user", "content": "Who am I?"},
        ]
        await client.chat.completions.create(model="main", messages=other)
        assert said(it) == ["Who am I?"]
        assert "user: I am Bob.\n\nassistant: Hello, Bob." in it.model.requests[-1].system


@pytest.mark.covers("HT-3")
async def test_a_user_or_a_header_selects_the_session(tmp_path: Path) -> None:
    async with served(tmp_path, [Turn("1"), Turn("2"), Turn("3"), Turn("4")]) as (client, it):

        async def say(text: str, **options: Any) -> None:
            message: Any = {"role": "user", "content": text}
            await client.chat.completions.create(model="main", messages=[message], **options)

        await say("a", user="ann")
        await say("b", user="bob")
        await say("c", user="ann")
        assert said(it) == ["a", "c"]
        await say("d", extra_headers={"x-clawmode-session": "agent:main:mine"})
        assert said(it) == ["d"]
        assert await it.gateway.host.runtime.sessions.resolve("agent:main:mine")


@pytest.mark.covers("HT-1")
async def test_a_chat_streams_and_tells_its_usage(tmp_path: Path) -> None:
    async with served(tmp_path, [Turn("One. ", pause(0.01), "Two.")]) as (client, _):
        stream = await client.chat.completions.create(
            model="main",
            messages=[{"role": "user", "content": "Count."}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "One. Two."
    assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) > 1
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None


@pytest.mark.covers("HT-2")
async def test_functions_of_the_client_are_called_from_programs(tmp_path: Path) -> None:
    script = [
        Turn("I look.", call("exec", {"code": LOOK})),
        lambda request: Turn(f"It is {request.last_result()['value']}."),
    ]
    rules = {"codeMode": True, "approve": "ask"}  # the client decides about its functions
    async with served(tmp_path, script, rules=rules) as (client, it):
        messages: list[Any] = [{"role": "user", "content": "The weather?"}]
        first = await client.chat.completions.create(
            model="main", messages=messages, tools=[WEATHER]
        )
        message = first.choices[0].message
        assert first.choices[0].finish_reason == "tool_calls"
        calls = {
            json.loads(c.function.arguments)["town"]: c.id
            for c in message.tool_calls or []
            if c.type == "function"
        }
        assert calls.keys() == {"Rome", "Oslo"}
        messages.append(message.to_dict())
        for town, call_id in calls.items():
            messages.append({"role": "tool", "tool_call_id": call_id, "content": f"fine in {town}"})
        second = await client.chat.completions.create(
            model="main", messages=messages, tools=[WEATHER]
        )
        assert second.choices[0].message.content == "It is ['fine in Rome', 'fine in Oslo']."
        with pytest.raises(NotFoundError, match="no run waits for these results"):
            await client.chat.completions.create(model="main", messages=messages, tools=[WEATHER])
        clients = it.gateway.clients
        await until(lambda: not [c for c in clients.values() if c.hello.client.mode == "http"])


@pytest.mark.covers("HT-1", "HT-3")
async def test_responses_continue_by_their_id_and_take_images(tmp_path: Path) -> None:
    async with served(tmp_path, [Turn("A pixel."), Turn("Red.")]) as (client, it):
        content: list[Any] = [
            {"type": "input_text", "text": "What is it?"},
            {
                "type": "input_image",
                "image_url": f"data:image/png;base64,{PIXEL}",
                "detail": "auto",
            },
        ]
        first = await client.responses.create(
            model="main", instructions="Be brief.", input=[{"role": "user", "content": content}]
        )
        assert (first.output_text, first.status) == ("A pixel.", "completed")
        parts = [p for m in it.model.requests[0].messages for p in m.content]
        assert Image(PIXEL, "image/png") in parts
        second = await client.responses.create(
            model="main", input="Its colour?", previous_response_id=first.id
        )
        assert second.output_text == "Red."
        assert said(it) == ["What is it?", "Its colour?"]
        with pytest.raises(NotFoundError):
            await client.responses.create(model="main", input="x", previous_response_id="resp_no")


@pytest.mark.covers("HT-1", "HT-2")
async def test_responses_stream_text_and_calls(tmp_path: Path) -> None:
    script = [
        Turn("I look.", call("exec", {"code": "return tools.weather({town: 'Rome'})"})),
        Turn("Sunny."),
    ]
    function: Any = {"type": "function", "strict": False, **WEATHER["function"]}
    async with served(tmp_path, script, rules={"codeMode": True}) as (client, _):
        async with client.responses.stream(model="main", input="?", tools=[function]) as stream:
            kinds = [event.type async for event in stream]
            first = await stream.get_final_response()
        assert {"response.output_text.delta", "response.function_call_arguments.done"} <= {*kinds}
        assert [item.type for item in first.output] == ["message", "function_call"]
        called: Any = first.output[1]
        answer: Any = {"type": "function_call_output", "call_id": called.call_id, "output": "sun"}
        second = await client.responses.create(
            model="main", input=[answer], previous_response_id=first.id
        )
        assert second.output_text == "Sunny."


@pytest.mark.covers("HT-5")
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        ({"n": 2}, "n"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}
                        ],
                    }
                ]
            },
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0].content[0]"),
        ({"user": 5}, "user"),
        ({"extra_body": {"stream": "yes"}}, "stream"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"stream_options": "usage"}, "stream_options"),
        ({"response_format": "json"}, "response_format"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]},
            "tools[0].parameters",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages[0].content[0].text",
        ),
        ({"messages": [{"role": "user", "content": ""}]}, None),
    ],
)
async def test_what_is_not_supported_is_named(
    tmp_path: Path, wrong: Any, field: str | None
) -> None:
    async with served(tmp_path, []) as (client, it):
        given: Any = {"messages": [{"role": "user", "content": "x"}], **wrong}
        with pytest.raises(BadRequestError) as caught:
            await client.chat.completions.create(model="main", **given)
        assert caught.value.param == field
        assert it.model.requests == []


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"text": "json"}, "text"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    ],
)
async def test_what_is_wrong_in_a_response_is_named(tmp_path: Path, wrong: Any, field: str) -> None:
    async with served(tmp_path, []) as (client, it):
        given: Any = {"model": "main", "input": "x", **wrong}
        with pytest.raises(BadRequestError) as caught:
            await client.responses.create(**given)
        assert caught.value.param == field
        assert it.model.requests == []


async def test_a_failed_run_is_an_error_and_ends_a_stream(tmp_path: Path) -> None:
    async with served(tmp_path, []) as (_, it):  # the script is empty: the model fails
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}) as http:
            url = f"http://127.0.0.1:{it.port}/v1/chat/completions"
            body = {"model": "main", "messages": [{"role": "user", "content": "x"}]}
            whole = await http.post(url, json=body)
            streamed = await http.post(url, json={**body, "stream": True})
    assert whole.status_code == 502
    assert whole.json()["error"]["code"] == "run_failed"
    assert '"run_failed"' in streamed.text


@pytest.mark.hostile
@pytest.mark.covers("HT-5")
async def test_requests_without_a_token_scope_or_permitted_origin_do_nothing(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, [Turn("x")]) as (client, it):
        state = it.gateway.host.setup.state
        reader = Token(name="reader", digest=digest("r" * 32), scopes=("operator.read",))
        it.gateway.tokens = Tokens(state, [Token(name="tester", digest=digest(TOKEN)), reader])
        with pytest.raises(AuthenticationError):
            await client.with_options(api_key="wrong" * 8).models.list()
        url = f"http://127.0.0.1:{it.port}/v1/chat/completions"
        body = {"model": "main", "messages": [{"role": "user", "content": "x"}]}
        mine = {"authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient() as http:
            tries = [
                await http.post(url, json=body),
                await http.post(url, json=body, headers={"authorization": "Bearer " + "r" * 32}),
                await http.post(url, json=body, headers={**mine, "origin": "http://evil.example"}),
                await http.post(
                    url, content=json.dumps(body), headers={**mine, "content-type": "text/plain"}
                ),
                await http.post(
                    url,
                    content=b"[" * 100_000,
                    headers={**mine, "content-type": "application/json"},
                ),
                await http.get(url, headers=mine),
            ]
        assert [it.status_code for it in tries] == [401, 403, 403, 400, 400, 405]
        assert it.model.requests == []


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/v1/completions", 404, "not_found"),
        ("POST", "/v1/v1/chat/completions", 404, "not_found"),
        ("POST", "/chat/completions", 404, "not_found"),
        ("GET", "/v1", 404, "not_found"),
        ("OPTIONS", "/v1/models", 404, "not_found"),
        ("GET", "/models", 404, "not_found"),
        ("DELETE", "/v1/models/main", 404, "not_found"),
    ],
)
async def test_a_wrong_path_or_method_is_an_error_that_names_the_right_ones(
    tmp_path: Path, method: str, path: str, status: int, code: str
) -> None:
    async with served(tmp_path, []) as (_, it), httpx2.AsyncClient() as http:
        url = f"http://127.0.0.1:{it.port}{path}"
        answer = await http.request(method, url, headers={"authorization": f"Bearer {TOKEN}"})
        stranger = await http.request(method, url)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert "POST /v1/chat/completions" in answer.json()["error"]["message"]
    assert (stranger.status_code, stranger.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_turn_is_longer_than_the_time_between_two_looks_at_the_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    looks: list[set[str]] = []

    async def look(tokens: Tokens, wanted: Collection[str]) -> Collection[str]:
        looks.append({*wanted})
        return await revoked(tokens, wanted)

    monkeypatch.setattr(gateway_module, "LOGIN_SECONDS", 0.02)
    monkeypatch.setattr(gateway_module, "revoked", look)
    async with served(tmp_path, [Turn("A", pause(1), "B")]) as (client, it):
        token = it.gateway.tokens.add("app", ("operator.write",))
        body = {"model": "main", "messages": [{"role": "user", "content": "x"}]}
        answer = await client.with_options(api_key=token).post(
            "/chat/completions", body={**body, "stream": is_stream}, cast_to=httpx2.Response
        )
        assert any(digest(token) in each for each in looks)
        assert "error" not in answer.text
        assert "B" in answer.text


async def test_a_revoked_token_ends_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "LOGIN_SECONDS", 0.02)
    async with served(tmp_path, [Turn("A", pause(20), "B")]) as (client, it):
        token = it.gateway.tokens.add("app", ("operator.write",))
        async with client.with_options(api_key=token) as other:
            stream = await other.chat.completions.create(
                model="main", messages=[{"role": "user", "content": "x"}], stream=True
            )
            it.gateway.tokens.revoke("app")
            with anyio.fail_after(10), pytest.raises(APIError, match="the token was revoked"):
                [chunk async for chunk in stream]


@pytest.mark.hostile
@pytest.mark.parametrize("field", ["user", "previous_response_id"])
async def test_a_lone_surrogate_is_replaced(tmp_path: Path, field: str) -> None:
    async with served(tmp_path, [Turn("Hello.")]) as (_, it):
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}) as http:
            body = json.dumps({"model": "main", "input": "x", field: "\ud800"})
            answer = await http.post(
                f"http://127.0.0.1:{it.port}/v1/responses",
                content=body,
                headers={"content-type": "application/json"},
            )
    assert answer.status_code == (200 if field == "user" else 404), answer.text


async def test_a_client_that_goes_away_stops_its_run(tmp_path: Path) -> None:
    async with served(tmp_path, [Turn("A", pause(20), "B")]) as (client, it):
        stream = await client.chat.completions.create(
            model="main", messages=[{"role": "user", "content": "x"}], stream=True
        )
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        run = it.gateway.host.runtime.runs()[0]
        with anyio.fail_after(10):
            await run.ended.wait()
        assert run.result is not None
        assert run.result.status == "aborted"


async def test_a_client_that_does_not_wait_for_the_whole_answer_stops_its_run(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, [Turn("A", pause(20), "B")]) as (client, it):
        async with anyio.create_task_group() as tasks:
            asking = partial(client.responses.create, model="main", input="x")
            tasks.start_soon(asking)
            run = (await until(lambda: it.gateway.host.runtime.runs()))[0]
            tasks.cancel_scope.cancel()
        with anyio.fail_after(10):
            await run.ended.wait()
        assert run.result is not None
        assert run.result.status == "aborted"


@pytest.mark.parametrize("options", [{}, {"user": "ann"}])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeated_request_returns_the_first_run(
    tmp_path: Path, options: Any, stream: bool
) -> None:
    async with served(tmp_path, [Turn("One.")]) as (client, it):

        async def ask(text: str, key: str) -> str:
            answer: Any = await client.chat.completions.create(
                model="main",
                messages=[{"role": "user", "content": text}],
                stream=stream,
                extra_headers={"Idempotency-Key": key},
                timeout=10,
                **options,
            )
            if not stream:
                return answer.choices[0].message.content
            return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])

        assert [await ask("x", "k") for _ in range(2)] == ["One.", "One."]
        with pytest.raises(ConflictError):
            await ask("y", "k")
        assert len(it.model.requests) == 1


async def test_a_call_that_got_no_result_is_in_the_next_response_again(tmp_path: Path) -> None:
    script = [Turn(call("exec", {"code": LOOK})), Turn("Both.")]
    async with served(tmp_path, script, rules={"codeMode": True}) as (client, _):
        messages: list[Any] = [{"role": "user", "content": "Look."}]

        async def ask(**options: Any) -> Any:
            answer = await client.chat.completions.create(
                model="main", messages=messages, tools=[WEATHER], timeout=10, **options
            )
            return answer.choices[0].message

        key = {"extra_headers": {"Idempotency-Key": "k"}}
        first, repeated = await ask(**key), await ask(**key)
        assert [it.id for it in repeated.tool_calls] == [it.id for it in first.tool_calls]
        rome, oslo = (it.id for it in first.tool_calls)
        messages += [first, {"role": "tool", "tool_call_id": rome, "content": "20"}]
        again = await ask()
        assert [it.id for it in again.tool_calls] == [oslo]
        messages += [{"role": "tool", "tool_call_id": oslo, "content": "-3"}]
        assert (await ask()).content == "Both."


@pytest.mark.covers("HT-4")
async def test_a_run_that_needs_a_person_says_so_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_turn, "PATIENCE_SECONDS", 0.1)
    sent: list[str] = []

    async def send(params: JsonObject, context: ToolContext) -> str:
        sent.append(str(params["to"]))
        return "sent"

    schema: JsonObject = {"type": "object", "properties": {"to": {"type": "string"}}}
    tool = Tool("send", "Send a mail.", schema, send)
    script = [
        Turn(call("exec", {"code": "return tools.send({to: 'Ann'})"})),
        Turn("Done."),
        Turn("Yes."),
    ]
    rules = {"codeMode": True, "approve": "ask"}
    async with served(tmp_path, script, rules=rules, tools=[tool]) as (client, it):
        ask: Any = {"role": "user", "content": "Send it."}
        first = await client.chat.completions.create(model="main", messages=[ask], user="ann")
        assert "waits for a person: Run send?" in (first.choices[0].message.content or "")
        question = it.gateway.approvals.pending()[0]
        it.gateway.approvals.resolve(question.id, "allow-once")
        await until(lambda: sent == ["Ann"])
        again: Any = {"role": "user", "content": "Was it sent?"}
        second = await client.chat.completions.create(model="main", messages=[again], user="ann")
        assert second.choices[0].message.content == "Yes."
        assert "Done." in str(it.model.requests[-1].messages)


async def test_tools_are_invoked_over_http(tmp_path: Path) -> None:
    async def add(params: JsonObject, context: ToolContext) -> int:
        return int(str(params["a"])) + 1

    schema: JsonObject = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
    }
    tool = Tool("add", "Add one.", schema, add, effect="read")
    async with served(tmp_path, [], tools=[tool]) as (_, it):
        url = f"http://127.0.0.1:{it.port}/tools/invoke"
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}) as http:
            good = await http.post(url, json={"tool": "add", "args": {"a": 1}})
            bad = await http.post(url, json={"tool": "add", "args": {"a": "x"}})
            unknown = await http.post(url, json={"tool": "nothing"})
    assert (good.status_code, good.json()) == (200, {"ok": True, "result": 2})
    assert (bad.status_code, bad.json()["error"]["code"]) == (422, "invalid_tool_input")
    assert unknown.status_code == 404
