"""Every way in which a provider can fail, as the kind that says what can be done about it."""

import json
from typing import Any

import anyio
import pytest
from tests.support.model_driver import answer_of, events_of, played, request

from clawmode.models.base import ErrorKind, ModelError, TextDelta
from clawmode.models.providers import APIS, Api, KeySource, ProviderSettings, make_model
from clawmode.testing import Raw, ScriptServer, Turn, call

pytestmark = pytest.mark.anyio

every_api = pytest.mark.parametrize("api", APIS)
OPENAI: tuple[Api, ...] = ("openai-completions", "openai-responses")

TOLD: tuple[ErrorKind, ...] = (
    "rate_limit",
    "overloaded",
    "server",
    "auth",
    "quota",
    "not_found",
    "context_overflow",
    "refused",
    "invalid_request",
)


async def failed(api: Api, *turns: Turn, **options: Any) -> ModelError:
    """The error that an exchange ends with; nobody below us tries again."""
    async with played(api, turns, **options) as (server, model):
        with pytest.raises(ModelError) as caught:
            await answer_of(model)
        assert len(server.requests) == 1
    return caught.value


# ---- What a provider says ----


@every_api
@pytest.mark.parametrize("kind", TOLD)
async def test_an_error_instead_of_an_answer(api: Api, kind: ErrorKind) -> None:
    error = await failed(api, Turn(error=kind))
    assert error.kind == kind
    assert error.status is not None
    assert error.status >= 400
    assert str(error).startswith("scripted/scripted: HTTP ")


@every_api
@pytest.mark.parametrize("kind", ["rate_limit", "overloaded", "server", "context_overflow"])
async def test_an_error_in_the_middle_of_an_answer(api: Api, kind: ErrorKind) -> None:
    error = await failed(api, Turn("Once upon a time", error=kind))
    assert error.kind == kind


@every_api
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (500, "server"),
        (502, "server"),
        (503, "server"),
        (504, "server"),
        (529, "overloaded"),
        (429, "rate_limit"),
        (408, "timeout"),
        (409, "server"),
        (413, "context_overflow"),
        (402, "quota"),
        (403, "auth"),
        (422, "invalid_request"),
        (418, "invalid_request"),
    ],
)
async def test_a_status_without_a_word(api: Api, status: int, kind: ErrorKind) -> None:
    for body in (b"", b"<html>Bad Gateway</html>", b"null"):
        error = await failed(api, Turn(raw=Raw(status=status, body=body)))
        assert (error.kind, error.status) == (kind, status)


@every_api
async def test_a_redirect_is_not_followed(api: Api) -> None:
    raw = Raw(status=307, headers={"location": "http://127.0.0.1:9/v1/elsewhere"})
    error = await failed(api, Turn(raw=raw))
    assert error.kind == "invalid_request"
    assert "baseUrl" in str(error)


@every_api
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({}, None),
    ],
)
async def test_how_long_to_wait(api: Api, headers: dict[str, str], seconds: float | None) -> None:
    error = await failed(api, Turn(raw=Raw(status=429, headers=headers)))
    assert (error.kind, error.retry_after) == ("rate_limit", seconds)


# As providers were seen to say it.
SAID: list[tuple[Api, int, dict[str, Any], ErrorKind]] = [
    (
        "openai-completions",
        429,
        {"error": {"message": "You exceeded your current quota.", "code": "insufficient_quota"}},
        "quota",
    ),
    (
        "openai-completions",
        400,
        {"error": {"message": "This model's maximum context length is 8192 tokens."}},
        "context_overflow",
    ),
    (
        "openai-completions",
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size, try increasing it",
                "type": "exceed_context_size_error",
            }
        },
        "context_overflow",
    ),
    (
        "openai-completions",
        403,
        {"error": {"code": 403, "message": "Input flagged", "metadata": {"reasons": ["x"]}}},
        "refused",
    ),
    (
        "openai-responses",
        400,
        {"error": {"message": "Invalid prompt: your prompt was flagged", "code": "invalid_prompt"}},
        "refused",
    ),
    ("openai-completions", 404, {"error": 'model "llama9" not found, try pulling it'}, "not_found"),
    ("openai-completions", 400, {"detail": [{"msg": "field required"}]}, "invalid_request"),
    (
        "anthropic-messages",
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "input length and `max_tokens` exceed context limit: 198000 + 8192",
            },
        },
        "context_overflow",
    ),
    (
        "anthropic-messages",
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "Your credit balance is too low to access the Anthropic API.",
            },
        },
        "quota",
    ),
]


@pytest.mark.parametrize(("api", "status", "said", "kind"), SAID)
async def test_what_providers_only_say_in_words(
    api: Api, status: int, said: dict[str, Any], kind: ErrorKind
) -> None:
    json_type = {"content-type": "application/json"}
    raw = Raw(status=status, body=json.dumps(said).encode(), headers=json_type)
    error = await failed(api, Turn(raw=raw))
    assert (error.kind, error.status) == (kind, status)


@every_api
async def test_a_key_that_a_provider_quotes_is_not_passed_on(api: Api) -> None:
    key = "very-plain-key-0123"
    said = ModelError("auth", f"Incorrect API key provided: {key}, or sk-1234567890abcdef.")
    async with ScriptServer([Turn(error=said)]) as server:
        settings = server.settings(api, key=KeySource(value=key))
        async with make_model(settings, "scripted") as model:
            with pytest.raises(ModelError) as caught:
                await answer_of(model)
    assert caught.value.kind == "auth"
    assert "Incorrect API key provided: ***, or ***." in str(caught.value)


@every_api
async def test_a_long_complaint_is_cut(api: Api) -> None:
    error = await failed(api, Turn(error=ModelError("server", "long words " * 1000)))
    assert len(str(error)) < 600


# ---- What the wire does ----


@every_api
async def test_nobody_is_there(api: Api) -> None:
    settings = ProviderSettings(id="gone", api=api, base_url="http://127.0.0.1:9/v1")
    async with make_model(settings, "any") as model:
        with pytest.raises(ModelError) as caught:
            await answer_of(model)
    assert caught.value.kind == "connection"
    assert str(caught.value).startswith("gone/any: ")


@every_api
@pytest.mark.parametrize("words", [(), ("Once upon a time",)])
async def test_the_line_goes_dead(api: Api, words: tuple[str, ...]) -> None:
    assert (await failed(api, Turn(*words, error="connection"))).kind == "connection"


@every_api
@pytest.mark.parametrize("words", [(), ("Once upon a time",)])
async def test_the_server_goes_silent(api: Api, words: tuple[str, ...]) -> None:
    error = await failed(api, Turn(*words, error="timeout"), timeout_seconds=1)
    assert error.kind == "timeout"


@every_api
@pytest.mark.parametrize("words", [(), ("Once upon a time",)])
async def test_the_server_talks_nonsense(api: Api, words: tuple[str, ...]) -> None:
    assert (await failed(api, Turn(*words, error="garbage"))).kind == "garbage"


STREAM = {"content-type": "text/event-stream"}


@every_api
@pytest.mark.parametrize(
    "raw",
    [
        Raw(),
        Raw(headers=STREAM),
        Raw(body=b"<html>Welcome to the captive portal</html>"),
        Raw(body=b"<html>Welcome</html>", headers={"content-type": "text/html"}),
        Raw(body=b"event: x\ndata: \xff\xfe\xfd\n\n", headers=STREAM),
        Raw(body=b"event: message_start\ndata: {}\n\n", headers=STREAM),
        Raw(body=b"event: content_block_delta\ndata: {}\n\n", headers=STREAM),
        Raw(body=b'event: x\ndata: {"choices": 7}\n\n', headers=STREAM),
        Raw(body=b'event: x\ndata: {"choices": [{"delta": 7}]}\n\n', headers=STREAM),
        Raw(body=b'event: x\ndata: {"type": "response.completed"}\n\n', headers=STREAM),
        Raw(body=b"event: x\ndata: [1, 2]\n\n", headers=STREAM),
        Raw(body=b"event: x\ndata: null\n\n", headers=STREAM),
        Raw(body=b"data: " + b"[" * 50_000 + b"\n\n", headers=STREAM),
        Raw(body=b"not gzip", headers={**STREAM, "content-encoding": "gzip"}),
    ],
)
async def test_an_answer_that_is_none(api: Api, raw: Raw) -> None:
    assert (await failed(api, Turn(raw=raw))).kind == "garbage"


@every_api
async def test_half_an_answer_is_none(api: Api) -> None:
    """The stream ends as if nothing were wrong, wherever it is cut between two events."""
    async with ScriptServer([Turn("Hello.", call("wait", {"runId": "r"}))] * 2) as server:
        async with make_model(server.settings(api), "scripted") as model:
            whole = await recorded(server, model)
    events = whole.split(b"\n\n")[:-1]
    # What says that it is complete may come in two steps, of which the first is enough.
    ends = {"openai-completions": 3, "openai-responses": 1, "anthropic-messages": 2}[api]
    for kept in range(1, len(events) - ends + 1):
        part = b"\n\n".join(events[:kept]) + b"\n\n"
        error = await failed(api, Turn(raw=Raw(body=part, headers=STREAM)))
        assert error.kind == "garbage", events[kept - 1]
    async with played(api, [Turn(raw=Raw(body=whole, headers=STREAM))]) as (_, model):
        assert (await answer_of(model)).text == "Hello."


async def recorded(server: ScriptServer, model: Any) -> bytes:
    """The bytes of an answer."""
    import httpx2

    await answer_of(model)
    asked = server.requests[-1]
    async with httpx2.AsyncClient() as client:
        kind = {"content-type": "application/json"}
        answer = await client.post(f"{server.url}{asked.path}", content=asked.raw, headers=kind)
    return answer.content


async def test_a_server_that_never_says_why_it_stops_is_believed_its_end() -> None:
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    said = chunk | {"choices": [{"index": 0, "delta": {"content": "Hi."}}]}
    stream = f"data: {json.dumps(said)}\n\n".encode()
    done = Turn(raw=Raw(body=stream + b"data: [DONE]\n\n", headers=STREAM))
    async with played("openai-completions", [done]) as (_, model):
        assert (await answer_of(model)).text == "Hi."
    cut = Turn(raw=Raw(body=stream, headers=STREAM))
    assert (await failed("openai-completions", cut)).kind == "garbage"


@every_api
async def test_what_came_before_an_error_was_told(api: Api) -> None:
    heard: list[str] = []
    async with played(api, [Turn("Once upon a time", error="connection")]) as (_, model):

        async def read() -> None:
            async with model.stream(request()) as events:
                async for event in events:
                    heard.extend([event.text] if isinstance(event, TextDelta) else [])

        with pytest.raises(ModelError):
            await read()
    assert "".join(heard) == "Once upon a time"


@every_api
async def test_after_an_error_the_model_continues(api: Api) -> None:
    turns = [Turn(error="server"), Turn("Half", error="connection"), Turn("Whole.")]
    async with played(api, turns) as (_, model):
        for _ in range(2):
            with pytest.raises(ModelError):
                await events_of(model, request())
        assert (await answer_of(model)).text == "Whole."


@every_api
async def test_an_error_of_the_reader_is_left_as_it_is(api: Api) -> None:
    class Mine(Exception):
        pass

    async with played(api, [Turn("Once upon a time", error="timeout")]) as (server, model):

        async def read() -> None:
            async with model.stream(request()) as events:
                async for _ in events:
                    raise Mine

        with pytest.raises(Mine):
            await read()
        with anyio.fail_after(5):
            await server.requests[0].hung_up.wait()


# ---- What people can do about it ----


@pytest.mark.covers("N-21")
async def test_a_model_that_cannot_be_reached_is_named_with_its_address_and_setting() -> None:
    async with make_model(
        ProviderSettings(id="lab", base_url="http://user:pass@127.0.0.1:9/v1"), "good"
    ) as model:
        with pytest.raises(ModelError) as caught:
            await answer_of(model)
    text = str(caught.value)
    assert caught.value.kind == "connection"
    assert text.startswith("lab/good: ")
    assert "http://127.0.0.1:9/v1" in text
    assert "models.providers.lab.baseUrl" in text
    assert "pass" not in text


@pytest.mark.covers("N-21")
@every_api
async def test_a_key_that_is_refused_is_named_by_where_it_comes_from(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_WORD", "wrong-key-0123")
    error = await failed(api, Turn(error="auth"), key=KeySource(env="LAB_WORD"))
    assert "the environment variable LAB_WORD" in str(error)
    assert "models.providers.scripted.auth" in str(error)
    assert "wrong-key" not in str(error)
    assert error.sent


@pytest.mark.covers("N-21")
async def test_a_key_that_is_missing_says_where_to_set_it_and_sends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LAB_WORD", raising=False)
    async with played("openai-completions", [Turn("x")], key=KeySource(env="LAB_WORD")) as it:
        server, model = it
        with pytest.raises(ModelError, match=r"LAB_WORD is not set.*models\.providers") as caught:
            await answer_of(model)
        assert not caught.value.sent
        assert server.requests == []
