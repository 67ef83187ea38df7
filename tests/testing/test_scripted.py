"""A script, played in the process and over the wire, to our models and to the official SDKs."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import anyio.lowlevel
import httpx2
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from tests.support.model_driver import answer_of, arrival, events_of, request, results

from clawmode.messages import Text, Thinking, ToolCall, Usage, UserMessage
from clawmode.models.base import (
    CallStart,
    MessageEnd,
    Model,
    ModelError,
    ModelLimits,
    TextDelta,
    TextEnd,
)
from clawmode.models.providers import APIS, make_model
from clawmode.testing import (
    Raw,
    ScriptedModel,
    ScriptRequest,
    ScriptServer,
    Turn,
    call,
    pause,
    text,
    think,
)

pytestmark = pytest.mark.anyio

Way = Literal["in-process", "openai-completions", "openai-responses", "anthropic-messages"]
every_way = pytest.mark.parametrize("way", ["in-process", *APIS])


@asynccontextmanager
async def playing(way: Way, script: Any) -> AsyncIterator[Model]:
    """A model that plays the script, one way or the other."""
    if way == "in-process":
        yield ScriptedModel(script)
        return
    async with ScriptServer(script) as server:
        async with make_model(server.settings(way), "scripted") as model:
            yield model


@every_way
async def test_the_same_script_is_played_every_way(way: Way) -> None:
    seen: list[ScriptRequest] = []

    def react(asked: ScriptRequest) -> Turn:
        seen.append(asked)
        return Turn(call("wait", {"runId": asked.last_result()["runId"]}))

    async def react_slowly(asked: ScriptRequest) -> str:
        await anyio.lowlevel.checkpoint()
        return f"After {asked.number - 1} turns: {asked.last_result()}"

    first = Turn("Let me.", call("exec", {"code": "1"}), usage=Usage(1, 2))
    script = [first, react, react_slowly]
    async with playing(way, script) as model:
        user = UserMessage.of("Go")
        one = await answer_of(model, request(user))
        assert (one.text, one.stop, one.usage) == ("Let me.", "tool_calls", Usage(1, 2))
        said = [user, one, *results(one, '{"runId":"r-9"}')]
        two = await answer_of(model, request(*said))
        assert [(it.name, it.arguments) for it in two.calls] == [("wait", {"runId": "r-9"})]
        said += [two, *results(two, "plain words")]
        assert (await answer_of(model, request(*said))).text == "After 2 turns: plain words"
        with pytest.raises(ModelError, match="the script has 3 turns, and this is request 4") as no:
            await answer_of(model, request(*said))
        assert no.value.kind == "invalid_request"
    (asked,) = seen
    assert (asked.system, asked.said, asked.tool_names) == ("Be brief.", "Go", ("exec", "wait"))
    assert list(asked.results.values()) == ['{"runId":"r-9"}']


@every_way
@pytest.mark.parametrize("words", [(), ("Half a",)])
async def test_errors_are_raised_every_way(way: Way, words: tuple[str, ...]) -> None:
    script = [Turn(*words, error=ModelError("rate_limit", "slow down", retry_after=3))]
    async with playing(way, script) as model:
        with pytest.raises(ModelError, match="slow down") as caught:
            await events_of(model, request())
        assert caught.value.kind == "rate_limit"
        if not words:
            assert caught.value.retry_after == 3


async def test_a_model_in_the_process() -> None:
    model = ScriptedModel(
        [Turn(think("Hm."), "One, two, three.", call("x", "no JSON"), stop="length")],
        provider="p",
        name="n",
        limits=ModelLimits(context_window=5),
    )
    asked = request()
    events = await events_of(model, asked)
    assert model.requests == [asked]
    assert [event.text for event in events if isinstance(event, TextDelta)] == [
        "One, two, t",
        "hree.",
    ]
    assert TextEnd("One, two, three.") in events
    assert CallStart("x") in events
    last = events[-1]
    assert isinstance(last, MessageEnd)
    assert last.message.content == (
        Thinking("Hm.", {"signature": "signed"}),
        Text("One, two, three."),
        ToolCall("call_1_2", "x", "no JSON"),
    )
    assert (last.message.stop, last.message.provider, last.message.model) == ("length", "p", "n")
    assert model.limits.context_window == 5


@every_way
async def test_a_pause_lasts_until_something_happens(way: Way) -> None:
    go_on = anyio.Event()
    async with playing(way, [Turn("Wait", pause(go_on), text(" no more"))]) as model:
        heard = ""
        async with model.stream(request()) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    heard += event.text
                    if heard == "Wait":
                        go_on.set()
    assert heard == "Wait no more"


async def test_only_a_server_plays_raw_bytes() -> None:
    with pytest.raises(ModelError, match="needs a ScriptServer"):
        await answer_of(ScriptedModel([Turn(raw=Raw())]))


# ---- The server, to others ----


async def post(server: ScriptServer, path: str, body: Any) -> httpx2.Response:
    async with httpx2.AsyncClient() as client:
        return await client.post(server.url + path, json=body)


async def test_the_official_sdks_understand_it() -> None:
    turn = Turn(think("Hm."), "Hello", call("exec", {"code": "1"}), usage=Usage(1, 2, 3))
    tools: Any = [{"name": "exec", "input_schema": {"type": "object"}}]
    hello: Any = [{"role": "user", "content": "Hi"}]
    async with ScriptServer(lambda asked: turn) as server:
        async with AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as claude:
            whole = await claude.messages.create(
                model="m", max_tokens=99, messages=hello, tools=tools
            )
            async with claude.messages.stream(
                model="m", max_tokens=99, messages=hello, tools=tools
            ) as stream:
                streamed = await stream.get_final_message()
            kinds = ["thinking", "text", "tool_use"]
            assert [it.type for it in whole.content] == kinds
            assert [it.type for it in streamed.content] == kinds
            assert [it.to_dict() for it in whole.content[:2]] == [
                {key: value for key, value in it.to_dict().items() if key != "parsed_output"}
                for it in streamed.content[:2]
            ]
            assert whole.usage.cache_read_input_tokens == 3
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as gpt:
            chat = await gpt.chat.completions.create(model="m", messages=hello)
            assert chat.choices[0].message.content == "Hello"
            assert chat.choices[0].finish_reason == "tool_calls"
            response = await gpt.responses.create(model="m", input="Hi")
            async with gpt.responses.stream(model="m", input="Hi") as events:
                final = await events.get_final_response()
            assert final.output_text == response.output_text == "Hello"
            assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert server.requests[0].asked.tool_names == ("exec",)
    assert server.requests[-1].asked.said == "Hi"


async def test_a_call_that_was_left_unanswered_is_refused() -> None:
    """As the real ones do."""
    open_call = {"id": "c1", "type": "function", "function": {"name": "x", "arguments": "{}"}}
    messages = [{"role": "assistant", "tool_calls": [open_call]}]
    async with ScriptServer([Turn("Never.")]) as server:
        answer = await post(server, "/v1/chat/completions", {"messages": messages})
    assert answer.status_code == 400
    assert "without a result: c1" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("body", [{}, [], "x", {"messages": 7, "input": [7]}])
async def test_what_is_no_request_is_refused(path: str, body: Any) -> None:
    async with ScriptServer([Turn("Never.")]) as server:
        answer = await post(server, path, body)
        assert server.requests == []
    assert answer.status_code == 400


async def test_a_mistake_in_a_script_is_reported() -> None:
    def wrong(asked: ScriptRequest) -> Turn:
        raise KeyError("oops")

    async with ScriptServer([wrong]) as server:
        answer = await post(server, "/v1/responses", {"input": "Hi"})
    assert answer.status_code == 400
    assert "KeyError: 'oops'" in answer.json()["error"]["message"]


async def test_an_unknown_path_is_not_found() -> None:
    async with ScriptServer([]) as server:
        assert (await post(server, "/v2/nothing", {})).status_code == 404


async def test_every_request_is_kept_byte_by_byte() -> None:
    async with ScriptServer([Turn("Yes.")]) as server:
        answer = await post(server, "/v1/responses?beta=true", {"input": "Hi", "model": "m"})
        (kept,) = server.requests
    assert answer.json()["output"][0]["content"][0]["text"] == "Yes."
    assert kept.api == "openai-responses"
    assert json.loads(kept.raw) == kept.body == {"input": "Hi", "model": "m"}
    assert kept.headers["content-type"] == "application/json"


async def test_a_server_can_be_left_while_it_hangs() -> None:
    errors: list[httpx2.TransportError] = []

    async def ask(server: ScriptServer) -> None:
        try:
            await post(server, "/v1/responses", {"input": "Hi"})
        except httpx2.TransportError as error:
            errors.append(error)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            async with ScriptServer([Turn(error="timeout")]) as server:
                tasks.start_soon(ask, server)
                await arrival(server)
    # It has hung up, and not waited for its client to lose patience.
    assert [type(error) for error in errors] == [httpx2.RemoteProtocolError]
