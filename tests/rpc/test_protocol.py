"""Frames without a socket: what is taken, what is refused, what is written."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawmode.rpc import protocol
from clawmode.rpc.protocol import (
    MAX_FIRST_BYTES,
    MAX_PAYLOAD,
    PROTOCOL,
    BadFrame,
    RpcError,
    parse,
    read_hello,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)


def frame(**members: Any) -> str:
    return json.dumps({"type": "req", "id": "1", "method": "health", **members})


def test_a_request_is_read() -> None:
    request = parse(frame(params={"a": 1}), connected=True)
    assert (request.id, request.method, request.params) == ("1", "health", {"a": 1})
    assert parse(frame(), connected=True).params == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "JSON object"),
        ("nonsense", "JSON object"),
        ("[]", "JSON object"),
        ("5", "JSON object"),
        ('{"type":"req","id":"1","method":"x","params":{"a":NaN}}', "NaN is not a JSON number"),
        ('{"type":"req","id":"1","method":"x","params":{"a":-Infinity}}', "not a JSON number"),
        ("[" * 60_000, "JSON object"),
        ('{"a":' * 100 + "1" + "}" * 100, "over 64 levels deep"),
        (frame(id=5), "`id`"),
        (frame(id=""), "`id`"),
        (frame(id="x" * 129), "`id`"),
        (frame(type="res"), "`type`"),
        (frame(method=None), "`method`"),
        (frame(method="x" * 129), "`method`"),
        (frame(params=[]), "`params`"),
        (frame(params=None), "`params`"),
    ],
)
def test_what_is_no_request_is_refused_with_its_reason(text: str, reason: str) -> None:
    for connected in (True, False):
        with pytest.raises(BadFrame, match=reason) as caught:
            parse(text, connected=connected)
        assert caught.value.fatal or connected


def test_bytes_are_no_frames() -> None:
    with pytest.raises(BadFrame, match="text") as caught:
        parse(b"{}", connected=True)
    assert caught.value.fatal


def test_a_stranger_asks_to_connect_and_briefly() -> None:
    with pytest.raises(BadFrame, match="connect") as caught:
        parse(frame(), connected=False)
    assert caught.value.fatal
    for connected, limit in ((False, MAX_FIRST_BYTES), (True, MAX_PAYLOAD)):
        large = frame(method="connect", params={"x": "ü" * (limit // 2)})
        with pytest.raises(BadFrame, match=str(limit)) as caught:
            parse(large, connected=connected)
        assert (caught.value.code, caught.value.fatal) == ("TOO_LARGE", True)


@given(st.text() | JSON.map(json.dumps) | st.binary())
def test_no_frame_is_anything_but_a_request_or_refused(text: Any) -> None:
    for connected in (True, False):
        code = ""
        try:
            request = parse(text, connected=connected)
            assert isinstance(request.params, dict)
        except BadFrame as error:
            code = error.code
        assert code in ("", "INVALID_REQUEST", "TOO_LARGE")


@given(st.dictionaries(st.text(max_size=10), JSON, max_size=5))
def test_what_is_written_can_be_read(payload: Any) -> None:
    payload = json.loads(json.dumps(payload).replace("NaN", "1").replace("Infinity", "1"))
    answer = json.loads(protocol.response("7", payload))
    assert (answer["type"], answer["id"], answer["ok"]) == ("res", "7", True)
    told = json.loads(protocol.event("tick", payload, 3))
    assert (told["event"], told["seq"]) == ("tick", 3)


def test_half_a_character_does_not_break_the_wire() -> None:
    text = protocol.response("1", {"said": "\ud800!"})
    assert json.loads(text.encode("utf-8"))["payload"] == {"said": "?!"}


def test_an_error_names_its_code_and_its_field() -> None:
    error = RpcError("RATE_LIMITED", "slow down", field="auth", retry_after_ms=5)
    assert json.loads(protocol.failure("1", error))["error"] == {
        "code": "RATE_LIMITED",
        "message": "slow down",
        "details": {"field": "auth"},
        "retryable": True,
        "retryAfterMs": 5,
    }


# ---- connect ----

HELLO: dict[str, Any] = {"minProtocol": 1, "maxProtocol": 9, "client": {"id": "test"}}


def test_a_client_says_who_it_is() -> None:
    given = HELLO | {"scopes": ["operator.read"], "auth": {"token": "hunter2-hunter2"}}
    hello = read_hello(given)
    assert (hello.client.id, hello.scopes, hello.auth.token) == (
        "test",
        ("operator.read",),
        "hunter2-hunter2",
    )
    assert "hunter2" not in repr(hello)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"minProtocol": "1"}, "minProtocol"),
        ({"maxProtocol": None}, "maxProtocol"),
        ({"client": {}}, "client.id"),
        ({"client": {"id": ""}}, "client.id"),
        ({"role": "node"}, "role"),
        ({"scopes": "all"}, "scopes"),
        ({"scopes": [1]}, "scopes[0]"),
        ({"auth": {"token": 5}}, "auth.token"),
    ],
)
def test_a_wrong_parameter_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(RpcError) as caught:
        read_hello(HELLO | change)
    assert caught.value.code == "INVALID_REQUEST"
    assert caught.value.field.endswith(field)


@pytest.mark.parametrize(("low", "high"), [(PROTOCOL + 1, PROTOCOL + 5), (1, PROTOCOL - 1)])
def test_both_have_to_speak_one_protocol(low: int, high: int) -> None:
    with pytest.raises(RpcError, match=f"protocol {PROTOCOL}"):
        read_hello(HELLO | {"minProtocol": low, "maxProtocol": high})
