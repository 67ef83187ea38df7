"""The same conversation over three real wires: what is sent, what comes back, what goes on."""

import base64
import json
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import anyio
import pytest
from inline_snapshot import snapshot
from tests.support.model_driver import answer_of, arrival, events_of, played, request, results
from tests.support.web_server import no_body_left_open

from clawmode.messages import (
    AssistantMessage,
    Image,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    from_json,
    to_json,
)
from clawmode.models.base import (
    CallStart,
    MessageEnd,
    ModelError,
    TextDelta,
    TextEnd,
    ThinkingDelta,
    ThinkingLevel,
)
from clawmode.models.providers import APIS, Api, KeySource, ModelSettings, make_model
from clawmode.testing import Raw, ScriptServer, Turn, call, pause, text, think
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio

every_api = pytest.mark.parametrize("api", APIS)

CODE = "return await tools.search('weather in Oslo')"
TURN = Turn(
    think("The user wants the weather."),
    text("Let me look."),
    call("exec", {"code": CODE}),
    call("wait", {"runId": "r-1"}),
    usage=Usage(input=10, output=20, cache_read=30, cache_write=5),
)
PICTURE = Image(base64.b64encode(b"\x89PNG not really").decode(), "image/png")


def body(server: ScriptServer, number: int = -1) -> dict[str, Any]:
    return server.requests[number].body


# ---- The conversation ----


@every_api
async def test_thoughts_words_and_parallel_calls_come_as_they_are_written(api: Api) -> None:
    async with played(api, [TURN]) as (_, model):
        events = await events_of(model, request(thinking="low"))

    thoughts = [event.text for event in events if isinstance(event, ThinkingDelta)]
    words = [event.text for event in events if isinstance(event, TextDelta)]
    assert "".join(thoughts) == "The user wants the weather."
    assert len(thoughts) > 1
    assert "".join(words) == "Let me look."
    assert len(words) > 1
    assert [event for event in events if isinstance(event, TextEnd)] == [TextEnd("Let me look.")]
    assert [event.name for event in events if isinstance(event, CallStart)] == ["exec", "wait"]

    assert [type(event) for event in events if isinstance(event, MessageEnd)] == [MessageEnd]
    last = events[-1]
    assert isinstance(last, MessageEnd)
    answer = last.message
    assert [type(part) for part in answer.content] == [Thinking, Text, ToolCall, ToolCall]
    assert [(part.name, part.arguments) for part in answer.calls] == [
        ("exec", {"code": CODE}),
        ("wait", {"runId": "r-1"}),
    ]
    assert answer.usage == Usage(input=10, output=20, cache_read=30, cache_write=5)
    assert (answer.stop, answer.provider, answer.model) == ("tool_calls", "scripted", "scripted")


async def conversation(api: Api) -> dict[str, Any]:
    """The second request of a conversation: everything that came is kept as JSON in between."""
    async with played(api, [TURN, Turn("It rains.")]) as (server, model):
        user = UserMessage.of("Weather?")
        answer = from_json(to_json(await answer_of(model, request(user, thinking="low"))))
        assert isinstance(answer, AssistantMessage)
        both = results(answer, '{"status":"completed"}', "no such run")
        both[1] = replace(both[1], is_error=True)
        more = UserMessage.of("Quickly!")
        # In whatever order they come: providers want the results first.
        asked = request(user, answer, both[0], more, both[1], thinking="low")
        assert (await answer_of(model, asked)).text == "It rains."
        return body(server)


async def test_what_chat_completions_is_sent() -> None:
    sent = await conversation("openai-completions")
    assert sent["messages"] == snapshot(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "reasoning_content": "The user wants the weather.",
                "content": "Let me look.",
                "tool_calls": [
                    {
                        "id": "call_1_2",
                        "type": "function",
                        "function": {
                            "name": "exec",
                            "arguments": (
                                '{"code":"return await tools.search(\'weather in Oslo\')"}'
                            ),
                        },
                    },
                    {
                        "id": "call_1_3",
                        "type": "function",
                        "function": {"name": "wait", "arguments": '{"runId":"r-1"}'},
                    },
                ],
            },
            {"role": "tool", "tool_call_id": "call_1_2", "content": '{"status":"completed"}'},
            {"role": "tool", "tool_call_id": "call_1_3", "content": "no such run"},
            {"role": "user", "content": "Quickly!"},
        ]
    )
    assert sent["tools"][0] == {
        "type": "function",
        "function": {
            "name": "exec",
            "description": "Runs code.",
            "parameters": {"type": "object", "properties": {"code": {"type": "string"}}},
        },
    }
    assert sent["reasoning_effort"] == "low"


async def test_what_responses_is_sent() -> None:
    sent = await conversation("openai-responses")
    assert sent["input"] == snapshot(
        [
            {"role": "user", "content": "Weather?"},
            {
                "id": "rs_1_0",
                "summary": [{"text": "The user wants the weather.", "type": "summary_text"}],
                "encrypted_content": "signed",
                "type": "reasoning",
            },
            {
                "role": "assistant",
                "id": "msg_1_1",
                "content": [{"text": "Let me look.", "type": "output_text", "annotations": []}],
                "type": "message",
                "status": "completed",
            },
            {
                "name": "exec",
                "arguments": '{"code":"return await tools.search(\'weather in Oslo\')"}',
                "call_id": "call_1_2",
                "type": "function_call",
                "id": "fc_1_2",
            },
            {
                "name": "wait",
                "arguments": '{"runId":"r-1"}',
                "call_id": "call_1_3",
                "type": "function_call",
                "id": "fc_1_3",
            },
            {
                "type": "function_call_output",
                "call_id": "call_1_2",
                "output": '{"status":"completed"}',
            },
            {"type": "function_call_output", "call_id": "call_1_3", "output": "no such run"},
            {"role": "user", "content": "Quickly!"},
        ]
    )
    assert sent["instructions"] == "Be brief."
    # Nothing is kept there: sealed thoughts travel with the conversation.
    assert (sent["store"], sent["include"]) == (False, ["reasoning.encrypted_content"])
    assert sent["reasoning"] == {"effort": "low", "summary": "auto"}


async def test_what_messages_is_sent() -> None:
    sent = await conversation("anthropic-messages")
    assert sent["messages"] == snapshot(
        [
            {"role": "user", "content": [{"text": "Weather?", "type": "text"}]},
            {
                "role": "assistant",
                "content": [
                    {
                        "thinking": "The user wants the weather.",
                        "signature": "signed",
                        "type": "thinking",
                    },
                    {"text": "Let me look.", "type": "text"},
                    {
                        "id": "call_1_2",
                        "type": "tool_use",
                        "name": "exec",
                        "input": {"code": "return await tools.search('weather in Oslo')"},
                    },
                    {
                        "id": "call_1_3",
                        "type": "tool_use",
                        "name": "wait",
                        "input": {"runId": "r-1"},
                    },
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "tool_use_id": "call_1_2",
                        "type": "tool_result",
                        "content": [{"text": '{"status":"completed"}', "type": "text"}],
                        "is_error": False,
                    },
                    {
                        "tool_use_id": "call_1_3",
                        "type": "tool_result",
                        "content": [{"text": "no such run", "type": "text"}],
                        "is_error": True,
                    },
                    {"text": "Quickly!", "type": "text"},
                ],
            },
        ]
    )
    assert sent["system"] == [{"type": "text", "text": "Be brief."}]
    assert sent["thinking"] == {"type": "enabled", "budget_tokens": 2048}


@every_api
async def test_a_tools_schema_arrives_as_it_is(api: Api) -> None:
    anything: JsonObject = {}
    schema: JsonObject = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Odd",
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/At"}, "any": anything},
        "$defs": {"At": {"type": ["string", "null"], "minLength": 3}},
        "additionalProperties": True,
    }
    odd = replace(request().tools[0], name="odd", parameters=schema)
    async with played(api, [Turn("Yes.")]) as (server, model):
        await answer_of(model, request(tools=(odd,)))
        tool = body(server)["tools"][0]
    assert schema in (
        tool.get("input_schema"),
        tool.get("parameters"),
        tool.get("function", {}).get("parameters"),
    )


# ---- What a provider wants to see again ----


@every_api
async def test_thoughts_of_another_provider_are_dropped_and_ids_with_them(api: Api) -> None:
    async with played(api, [TURN, Turn("Yes.")]) as (server, model):
        answer = await answer_of(model, request(thinking="low"))
        foreign = replace(answer, provider="somebody-else")
        asked = request(UserMessage.of("x"), foreign, *results(foreign, "1", "2"))
        await answer_of(model, asked)
        sent = server.requests[-1].raw.decode()
    assert "The user wants" not in sent
    for secret in ("signed", "rs_1_0", "msg_1_1", "fc_1_2"):
        assert secret not in sent
    assert "Let me look." in sent
    assert "call_1_2" in sent


@pytest.mark.parametrize("other", APIS)
@every_api
async def test_a_conversation_continues_over_another_api_of_the_same_provider(
    api: Api, other: Api
) -> None:
    model_settings = ModelSettings(reasoning=True)
    async with ScriptServer([TURN, Turn("Yes.")]) as server:
        async with make_model(server.settings(api, model=model_settings), "scripted") as model:
            answer = await answer_of(model, request(thinking="low"))
        async with make_model(server.settings(other, model=model_settings), "scripted") as model:
            asked = request(UserMessage.of("x"), answer, *results(answer, "1", "2"))
            assert (await answer_of(model, asked)).text == "Yes."
        assert ("The user wants" in server.requests[-1].raw.decode()) == (api == other)


async def test_thoughts_that_the_model_hides_are_given_back() -> None:
    hidden = Turn(think(signature="sealed"), text("Hm."))
    async with played("anthropic-messages", [hidden, Turn("Yes.")]) as (server, model):
        answer = await answer_of(model, request(thinking="low"))
        assert answer.content[0] == Thinking(
            "", {"api": "anthropic-messages", "id": "redacted_thinking", "signature": "sealed"}
        )
        await answer_of(model, request(UserMessage.of("x"), answer, UserMessage.of("y")))
        assert body(server)["messages"][1]["content"][0] == {
            "type": "redacted_thinking",
            "data": "sealed",
        }


async def test_unsigned_thoughts_are_not_given_back_as_words() -> None:
    async with played("anthropic-messages", [Turn("Yes.")]) as (server, model):
        unsigned = AssistantMessage(
            content=(Thinking("Secretly.", {"api": "anthropic-messages"}), Text("Hm.")),
            provider="scripted",
        )
        await answer_of(model, request(UserMessage.of("x"), unsigned, UserMessage.of("y")))
        assert "Secretly." not in server.requests[0].raw.decode()


async def test_thoughts_that_openrouter_passes_on_are_given_back_signed() -> None:
    said = {"type": "reasoning.text", "text": "Hm.", "format": "anthropic-claude-v1", "index": 0}
    details = [
        {"reasoning": "Hm.", "reasoning_details": [said]},
        {"reasoning_details": [{**said, "text": "", "signature": "sealed"}]},
        {"content": "Yes."},
    ]
    head = {"id": "g", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks: list[Any] = [head | {"choices": [{"index": 0, "delta": delta}]} for delta in details]
    chunks.append(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    stream = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    raw = Raw(body=stream + b"data: [DONE]\n\n", headers={"content-type": "text/event-stream"})
    async with ScriptServer([Turn(raw=raw), Turn("Yes.")]) as server:
        key = KeySource(value="x")
        settings = server.settings("openai-completions", id="openrouter", key=key)
        async with make_model(settings, "anthropic/claude-sonnet-5") as model:
            answer = from_json(to_json(await answer_of(model, request(thinking="low"))))
            await answer_of(model, request(UserMessage.of("x"), answer, UserMessage.of("y")))
            first, second = server.requests
    assert first.body["reasoning"] == {"effort": "low", "enabled": True}
    (given_back,) = second.body["messages"][2]["reasoning_details"]
    assert (given_back["text"], given_back["signature"]) == ("Hm.", "sealed")


# ---- Calls that are none ----


@every_api
async def test_arguments_that_are_no_object_stay_a_text_and_can_be_replayed(api: Api) -> None:
    broken = ('{"code": "return', "[1, 2]")
    turn = Turn(call("exec", broken[0]), call("nope", broken[1]))
    async with played(api, [turn, Turn("Sorry.")]) as (server, model):
        answer = await answer_of(model)
        assert [part.arguments for part in answer.calls] == list(broken)
        asked = request(UserMessage.of("x"), answer, *results(answer, "no JSON", "unknown"))
        assert (await answer_of(model, asked)).text == "Sorry."
        assert "return" in server.requests[-1].raw.decode()


@every_api
async def test_a_call_without_arguments_has_an_empty_object(api: Api) -> None:
    async with played(api, [Turn(call("wait", ""))]) as (_, model):
        assert (await answer_of(model)).calls[0].arguments == {}


@every_api
async def test_ids_are_unique_in_the_conversation_whatever_a_server_counts(api: Api) -> None:
    again = Turn(call("wait", {}, id="call_0"))
    async with played(api, [again, again, Turn("Done.")]) as (server, model):
        user = UserMessage.of("x")
        first = await answer_of(model, request(user))
        second = await answer_of(model, request(user, first, *results(first, "1")))
        ids = [first.calls[0].id, second.calls[0].id]
        assert len(set(ids)) == 2
        asked = request(user, first, *results(first, "1"), second, *results(second, "2"))
        await answer_of(model, asked)
        assert dict(server.requests[-1].asked.results) == dict(zip(ids, ["1", "2"], strict=True))


@every_api
async def test_ids_of_other_providers_are_made_fit_for_the_wire(api: Api) -> None:
    odd = "fc|" + "x" * 80
    said = AssistantMessage(content=(ToolCall(odd, "wait", {}),), provider="other")
    async with played(api, [Turn("Yes.")]) as (server, model):
        await answer_of(model, request(UserMessage.of("x"), said, *results(said, "1")))
        (used,) = server.requests[0].asked.results
    assert len(used) <= 40
    assert used.replace("_", "").isalnum()


# ---- Stopping ----


@every_api
@pytest.mark.parametrize(
    ("turn", "stop"),
    [
        (Turn("Yes."), "stop"),
        (Turn("And so", stop="length"), "length"),
        (Turn(stop="refused"), "refused"),
        (Turn(call("wait", '{"runId": "r'), stop="length"), "length"),
    ],
)
async def test_why_it_stopped(api: Api, turn: Turn, stop: StopReason) -> None:
    async with played(api, [turn]) as (_, model):
        assert (await answer_of(model)).stop == stop


@every_api
async def test_leaving_the_block_ends_the_request(api: Api) -> None:
    async with played(api, [Turn("Once upon", pause(anyio.Event()))]) as (server, model):
        async with model.stream(request()) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    break
            hung_up = server.requests[0].hung_up
            assert not hung_up.is_set()
        with anyio.move_on_after(5):
            await hung_up.wait()
        assert hung_up.is_set()


@every_api
@pytest.mark.parametrize("error", [None, "garbage"])
async def test_an_answer_that_is_not_read_leaves_no_body_to_the_collector(
    api: Api, error: Literal["garbage"] | None
) -> None:
    turn = Turn("Once upon", error=error) if error else Turn("Once upon", pause(anyio.Event()))
    async with played(api, [turn]) as (_, model):
        with no_body_left_open():
            async with model.stream(request()) as events:
                with pytest.raises(ModelError) if error else nullcontext():
                    async for event in events:
                        if isinstance(event, TextDelta) and not error:
                            break


@every_api
@pytest.mark.parametrize("begun", [True, False])
async def test_a_cancelled_request_closes_the_connection(api: Api, begun: bool) -> None:
    never = pause(anyio.Event())
    turn = Turn("Once upon", never) if begun else Turn(error="timeout")
    async with played(api, [turn]) as (server, model):
        with anyio.fail_after(10), anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(answer_of, model)
                await arrival(server)
                scope.cancel()
        assert scope.cancelled_caught
        with anyio.fail_after(5):
            await server.requests[0].hung_up.wait()


@every_api
async def test_a_model_serves_many_at_once(api: Api) -> None:
    async with ScriptServer(lambda asked: Turn(f"You said {asked.said}", delay=0.001)) as server:
        async with make_model(server.settings(api), "scripted") as model:
            heard: dict[str, str] = {}

            async def ask(word: str) -> None:
                heard[word] = (await answer_of(model, request(UserMessage.of(word)))).text

            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(ask, f"word {number}")
    assert heard == {f"word {number}": f"You said word {number}" for number in range(20)}


# ---- Settings on the wire ----


async def test_requests_to_anthropic_mark_the_parts_to_cache() -> None:
    async with played("anthropic-messages", [Turn("a"), Turn("b")]) as (server, model):
        await answer_of(model, request(cache_key="session-1"))
        await answer_of(model, request())
        marked, plain = server.requests
    mark = {"type": "ephemeral", "ttl": "5m"}
    assert marked.body["system"][-1]["cache_control"] == mark
    assert marked.body["tools"][-1]["cache_control"] == mark
    assert marked.body["messages"][-1]["content"][-1]["cache_control"] == mark
    assert b"cache_control" not in plain.raw


@pytest.mark.parametrize("api", ["openai-completions", "openai-responses"])
async def test_requests_to_openai_have_the_cache_key_of_the_session(api: Api) -> None:
    turns = [Turn("a"), Turn("b"), Turn("c")]
    async with played(api, turns) as (server, model):
        await answer_of(model, request(cache_key="session-1"))
        await answer_of(model, request(cache_key="session" * 20))
        await answer_of(model, request())
        short, long, none = (it.body.get("prompt_cache_key") for it in server.requests)
    assert short == "session-1"
    assert isinstance(long, str)
    assert len(long) == 64
    assert none is None


async def test_a_local_server_gets_no_fields_that_it_may_not_know() -> None:
    async with ScriptServer([Turn("a")]) as server:
        settings = replace(server.settings("openai-completions"), local=True)
        async with make_model(settings, "qwen3") as model:
            await answer_of(model, request(cache_key="session-1", max_tokens=100))
            sent = body(server)
    assert sent.keys() == {
        "model",
        "messages",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "max_tokens",
    }


@every_api
async def test_the_limit_of_an_answer(api: Api) -> None:
    known = ModelSettings(max_tokens=5000)
    async with played(api, [Turn("a"), Turn("b")], model=known) as (server, model):
        await answer_of(model, request(max_tokens=123))
        await answer_of(model, request())
        names = ("max_tokens", "max_output_tokens", "max_completion_tokens")
        limits = [[it.body[name] for name in names if name in it.body] for it in server.requests]
    assert limits == [[123], [5000]]


@pytest.mark.parametrize("level", ["minimal", "low", "medium", "high"])
async def test_thinking_leaves_room_for_the_answer(level: ThinkingLevel) -> None:
    async with played("anthropic-messages", [Turn("a")]) as (server, model):
        await answer_of(model, request(thinking=level, max_tokens=200))
        sent = body(server)
    assert sent["max_tokens"] > sent["thinking"]["budget_tokens"]


@every_api
async def test_a_model_that_does_not_think_is_not_asked_to(api: Api) -> None:
    known = ModelSettings(reasoning=False)
    async with played(api, [Turn("a")], model=known) as (server, model):
        await answer_of(model, request(thinking="high"))
        sent = body(server)
    assert not {"thinking", "reasoning", "reasoning_effort", "include"} & sent.keys()


@every_api
async def test_thinking_can_be_switched_off(api: Api) -> None:
    async with played(api, [Turn("a")]) as (server, model):
        await answer_of(model, request(thinking="off"))
        sent = body(server)
    assert "thinking" not in sent
    effort = sent.get("reasoning_effort") or sent.get("reasoning", {}).get("effort")
    assert effort in (None, "none")


@every_api
async def test_a_model_may_be_called_differently_there(api: Api) -> None:
    known = ModelSettings(id="vendor/real-name")
    async with played(api, [Turn("a")], model=known) as (server, model):
        answer = await answer_of(model)
        assert (answer.model, body(server)["model"]) == ("scripted", "vendor/real-name")


# ---- Pictures ----


@every_api
async def test_pictures_of_users_and_of_tools_are_sent(api: Api) -> None:
    turns = [Turn(call("exec", {"code": "x"})), Turn("A cat.")]
    async with played(api, turns) as (server, model):
        user = UserMessage(content=(Text("What is this?"), PICTURE))
        answer = await answer_of(model, request(user))
        shot = ToolMessage(
            call_id=answer.calls[0].id, name="exec", content=(Text("Shot:"), PICTURE)
        )
        assert (await answer_of(model, request(user, answer, shot))).text == "A cat."
        sent = json.dumps(body(server))
        asked = server.requests[-1].asked
    assert sent.count(PICTURE.data) == 2
    assert asked.results[answer.calls[0].id] == "Shot:"


@every_api
async def test_a_model_that_sees_nothing_gets_words_for_pictures(api: Api) -> None:
    known = ModelSettings(input=("text",))
    async with played(api, [Turn("Hm.")], model=known) as (server, model):
        await answer_of(model, request(UserMessage(content=(Text("Look: "), PICTURE))))
        assert server.requests[0].asked.said == "Look: [an image, which this model cannot see]"
        assert PICTURE.data.encode() not in server.requests[0].raw


@every_api
async def test_a_picture_that_is_none_is_our_own_mistake(api: Api) -> None:
    async with played(api, [Turn("Hm.")]) as (server, model):
        with pytest.raises(ModelError) as caught:
            await answer_of(model, request(UserMessage(content=(Image("%%%", "image/png"),))))
        assert caught.value.kind == "invalid_request"
        assert server.requests == []


@every_api
async def test_empty_words_are_not_sent(api: Api) -> None:
    """Anthropic refuses blocks without words."""
    async with played(api, [Turn("Hm.")]) as (server, model):
        said = AssistantMessage(content=(Text(""), ToolCall("c1", "wait", {})), provider="x")
        result = ToolMessage(call_id="c1", name="wait", content=(Text(""),))
        await answer_of(model, request(UserMessage.of(" "), said, result))
        sent = server.requests[0]
    assert sent.asked.results == {"c1": "(nothing)"}
    assert sent.asked.said == "(nothing)"
    assert b'"text":""' not in sent.raw
