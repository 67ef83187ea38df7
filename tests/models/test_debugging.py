"""The switches of the page's section "Debugging": what they log, and what nothing ever logs."""

import base64
import json
import logging
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from tests.support.model_driver import BOTH, answer_of, request

from clawmode.messages import Image, Text, UserMessage
from clawmode.models import debug
from clawmode.models.base import ModelError
from clawmode.models.debug import DebugFlags, debug_flags, for_log, without_blobs
from clawmode.models.providers import APIS, Api, KeySource, make_model
from clawmode.redaction import Redactor
from clawmode.testing import ScriptServer, Turn, text, think

every_api = pytest.mark.parametrize("api", APIS)

KEY = "a-plain-looking-key"
HEADER = "another-plain-secret"
PICTURE = base64.b64encode(b"x" * 600).decode()
TURN = Turn(think("Thoughts.", "s" * 400), text("The answer is 42."))


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug, "_warned", set())
    monkeypatch.setattr(debug.logger, "level", debug.logger.level)


async def logged(
    api: Api,
    caplog: pytest.LogCaptureFixture,
    turn: Turn = TURN,
    **options: Any,
) -> list[str]:
    """What a request with a key, a secret header and a picture leaves in the log."""
    caplog.clear()
    user = UserMessage(content=(Text(f"My key is {KEY}."), Image(PICTURE, "image/png")))
    async with ScriptServer([turn], key=KEY) as server:
        settings = server.settings(api, key=KeySource(value=KEY))
        settings = replace(settings, headers={"x-secret": HEADER})
        # As some servers want it: a secret in the address.
        settings = replace(settings, base_url=settings.base_url.replace("//", "//me:hunter2@"))
        async with make_model(settings, "scripted") as model:
            with suppress(ModelError):
                await answer_of(model, request(user, run_id="run-7", exact_tools=BOTH, **options))
    lines = [it.getMessage() for it in caplog.records if it.name.startswith("clawmode")]
    for line in lines:
        for secret in (KEY, HEADER, "hunter2", PICTURE, "s" * 300):
            assert secret not in line
    return lines


@pytest.mark.anyio
@pytest.mark.covers("CM-debug-off")
@every_api
async def test_without_a_switch_nothing_is_logged(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "clawmode")
    assert await logged(api, caplog) == []
    assert await logged(api, caplog, Turn("Half", error="server")) == []
    assert await logged(api, caplog, Turn(error="rate_limit")) == []


@pytest.mark.anyio
@pytest.mark.covers("CM-debug-transport")
@every_api
async def test_transport_tells_where_to_what_status_how_long_how_much(
    api: Api, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCLAW_DEBUG_MODEL_TRANSPORT", "1")
    paths = dict(zip(APIS, ("/v1/chat/completions", "/v1/responses", "/v1/messages"), strict=True))
    sent, received = await logged(api, caplog)
    assert sent.startswith("scripted/scripted (run-7): POST http://127.0.0.1:")
    assert f"{paths[api]}, " in sent
    assert "?" not in sent
    assert "status 200" in received
    assert " ms, " in received
    assert not received.endswith(" 0 bytes")

    assert "status 529" in (await logged(api, caplog, Turn(error=overloaded())))[-1]
    # A connection that breaks has been told of before.
    assert "POST" in (await logged(api, caplog, Turn(error="connection")))[0]


def overloaded() -> ModelError:
    return ModelError("overloaded", "busy", status=529)


@pytest.mark.anyio
@pytest.mark.covers("CM-debug-payload-tools")
@every_api
async def test_the_names_of_the_tools_that_were_sent_are_logged(
    api: Api, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCLAW_DEBUG_MODEL_PAYLOAD", "tools")
    assert await logged(api, caplog) == ["scripted/scripted (run-7): 2 tools: exec, wait"]


@pytest.mark.anyio
@pytest.mark.covers("CM-debug-payload-full")
@every_api
async def test_the_payload_is_shown_without_secrets(
    api: Api, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCLAW_DEBUG_MODEL_PAYLOAD", "full-redacted")
    (line,) = await logged(api, caplog)
    body = json.loads(line.partition("payload: ")[2])
    assert len(body["tools"]) == 2
    assert "My key is ***." in line
    assert "characters of base64>" in line


@pytest.mark.anyio
@pytest.mark.covers("CM-debug-payload-full")
async def test_the_payload_is_capped(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCLAW_DEBUG_MODEL_PAYLOAD", "full-redacted")
    (line,) = await logged("anthropic-messages", caplog, system="long words " * 20_000)
    assert 60_000 < len(line) < 70_000
    assert line.endswith(" bytes in total)")


@pytest.mark.anyio
@pytest.mark.covers("CM-debug-sse-events")
@every_api
async def test_the_events_of_the_stream_are_told_by_their_type(
    api: Api, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCLAW_DEBUG_SSE", "events")
    lines = await logged(api, caplog)
    kinds = [line.partition(": event ")[2] for line in lines]
    first = {
        "openai-completions": "chat.completion.chunk",
        "openai-responses": "response.created",
        "anthropic-messages": "message_start",
    }
    last = {
        "openai-completions": "[DONE]",
        "openai-responses": "response.completed",
        "anthropic-messages": "message_stop",
    }
    assert (kinds[0], kinds[-1]) == (first[api], last[api])
    assert len(kinds) > 6
    assert "42" not in "".join(lines)


@pytest.mark.anyio
@pytest.mark.covers("CM-debug-sse-peek")
@every_api
async def test_a_peek_shows_five_events_and_no_more(
    api: Api, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCLAW_DEBUG_SSE", "peek")
    turn = Turn(f"{KEY} is what you said, and sk-abcdefghijklmnop is what I say. " * 3)
    lines = await logged(api, caplog, turn)
    assert len(lines) == 5
    for line in lines:
        json.loads(line.partition(": event ")[2].partition(": ")[2])
    assert "sk-abcdefgh" not in "".join(lines)


@pytest.mark.anyio
async def test_a_refused_request_is_not_reported_as_sent(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("OPENCLAW_DEBUG_MODEL_TRANSPORT", "1"),
        ("OPENCLAW_DEBUG_MODEL_PAYLOAD", "full-redacted"),
    ):
        monkeypatch.setenv(name, value)
    assert await logged("openai-responses", caplog, tools=()) == []


@pytest.mark.covers("CM-debug-transport")
def test_the_log_goes_to_stderr_if_nobody_set_it_up() -> None:
    code = "from clawmode.models.debug import log; log('hello %s', 'there')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=15, check=True
    )
    assert (done.stdout, done.stderr) == ("", "clawmode.models: hello there\n")


@pytest.mark.anyio
# At level 0 what is packed can be read, but for the beginning; at level 9 nothing can.
@pytest.mark.parametrize(("level", "events"), [(0, ["?: {}"] * 5), (9, [])])
async def test_an_answer_that_is_compressed_against_our_wish_does_not_break_the_log(
    level: int,
    events: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import gzip

    from clawmode.testing import Raw

    for name, value in (("OPENCLAW_DEBUG_SSE", "peek"), ("OPENCLAW_DEBUG_MODEL_TRANSPORT", "1")):
        monkeypatch.setenv(name, value)
    kind = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    raw = Raw(body=gzip.compress(b"data: {}\n\n" * 50, level, mtime=0), headers=kind)
    _, *told, last = await logged("openai-completions", caplog, Turn(raw=raw))
    assert [line.partition(": event ")[2] for line in told] == events
    assert last.endswith(f" {len(raw.body)} bytes")


# ---- The switches ----


@pytest.mark.covers("N-44")
@pytest.mark.parametrize("prefix", ["CLAWMODE", "OPENCLAW"])
def test_switches_are_read_each_time_under_both_names(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert debug_flags() == DebugFlags()
    for name in ("CODE_MODE", "MODEL_TRANSPORT"):
        monkeypatch.setenv(f"{prefix}_DEBUG_{name}", "1")
    monkeypatch.setenv(f"{prefix}_DEBUG_MODEL_PAYLOAD", "Tools ")
    monkeypatch.setenv(f"{prefix}_DEBUG_SSE", "peek")
    assert debug_flags() == DebugFlags(True, True, "tools", "peek")
    monkeypatch.setenv("CLAWMODE_DEBUG_MODEL_TRANSPORT", "0")  # ours is stronger
    assert not debug_flags().transport


@pytest.mark.parametrize("prefix", ["CLAWMODE", "OPENCLAW"])
def test_what_no_switch_knows_is_told_once(
    prefix: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debug, "_warned", set())
    monkeypatch.setenv(f"{prefix}_DEBUG_MODEL_PAYLOAD", "everything")
    monkeypatch.setenv(f"{prefix}_DEBUG_SSE", "off")
    assert debug_flags() == debug_flags() == DebugFlags()
    assert [it.getMessage() for it in caplog.records] == [
        f"{prefix}_DEBUG_MODEL_PAYLOAD=everything is ignored; known: tools, full-redacted"
    ]


# ---- Striking out ----
# What a `Redactor` takes out is the subject of tests/test_redaction.py.


def shown_of(value: object) -> Any:
    return json.loads(for_log(json.dumps(value).encode(), Redactor(["known-key"]), 10_000))


def test_a_body_is_shown_without_keys_and_base64() -> None:
    value = {
        "api_key": "x",
        "headers": [{"Authorization": "y"}],
        "nested": '{"password":"z z","max_tokens":5}',
        "words": "It is known-key, or sk-abcdefghijklmnop.\n" + "A" * 300,
        "image": f"data:image/png;base64,{PICTURE}",
        "max_tokens": 100,
        "token": {"type": "string"},
        "prompt_cache_key": "session",
    }
    assert shown_of(value) == {
        "api_key": "***",
        "headers": [{"Authorization": "***"}],
        "nested": '{"password":"***","max_tokens":5}',
        "words": "It is ***, or ***.\n<300 characters of base64>",
        "image": f"<{len(PICTURE) + 22} characters of base64>",
        "max_tokens": 100,
        "token": {"type": "string"},
        "prompt_cache_key": "session",
    }


def test_words_are_left_alone() -> None:
    words = "天気" * 300 + " sk- Bearer x and tokens; a task-force of risk-averse people"
    assert shown_of([words]) == [words]


def test_what_is_no_json_is_shown_as_text() -> None:
    data = b'{"half": "sk-abcdefghijklmnop'
    assert for_log(data, Redactor(["half"]), 100) == '{"***": "***'
    assert for_log(b"[" * 100_000, Redactor(), 10) == "[[[[[[[[[[… (100000 bytes in total)"


@pytest.mark.parametrize("piece", ["a", "a" * 255 + " ", "data:", "data:a;base64,", ";base64", "="])
def test_looking_for_base64_takes_linear_time(piece: str) -> None:
    began = time.process_time()
    without_blobs(piece * ((1 << 20) // len(piece)))
    # Quadratic would be hours.
    assert time.process_time() - began < 5
