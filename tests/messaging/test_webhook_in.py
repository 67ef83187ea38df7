"""The webhook channel, inwards: over real HTTP, and under attack."""

import base64
import json
import os
import re
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.gateway_inside import inside
from tests.support.webhooks import NOTE, SECRET, Door, door, ignore, sign, sign_standard

from clawmode.config.operations import ChannelEntry
from clawmode.exceptions import ConfigurationError
from clawmode.messages import Image
from clawmode.messaging import webhook, webhook_request
from clawmode.messaging.channel import InboundMessage
from clawmode.messaging.signing import REMEMBERED, ReplayGuard, Signer
from clawmode.messaging.webhook import WebhookChannel, check_secrets
from clawmode.messaging.webhook_request import MAX_BODY

pytestmark = pytest.mark.anyio

PNG = base64.b64encode(b"\x89PNG").decode()


def note(**more: Any) -> dict[str, Any]:
    return NOTE | more


def code(response: Any) -> tuple[int, str]:
    """Status and code of a refusal; it has both, and a text."""
    error = response.json()["error"]
    assert set(error) == {"code", "message"}
    assert error["message"]
    return response.status_code, error["code"]


# ---- What is taken ----


async def test_a_signed_message_is_taken() -> None:
    async with door(agent="helper") as here:
        response = await here.post(note(session="agent:main:other", unknown=1))
    assert (response.status_code, response.json()) == (202, {"accepted": True, "id": "m1"})
    assert here.taken == [
        InboundMessage(
            channel="hook", target="room", sender="ann", text="hi", id="m1", agent_id="helper"
        )
    ]


async def test_an_operator_may_choose_the_session() -> None:
    async with door(operators=("bob",)) as here:
        await here.post(note(sender="bob", session="agent:main:other"))
        await here.post(note(id="m2", sender="*", session="agent:main:other"))
    assert [(it.operator, it.session_key) for it in here.taken] == [
        (True, "agent:main:other"),
        (False, ""),
    ]


async def test_a_message_may_be_a_picture() -> None:
    async with door() as here:
        picture = {"data": PNG, "mimeType": "image/png"}
        response = await here.post(note(text="", images=[picture]))
    assert response.status_code == 202
    assert here.taken[0].images == (Image(PNG, "image/png"),)


async def test_half_of_a_character_is_replaced() -> None:
    async with door() as here:
        assert (await here.post(note(text="a\ud800b"))).status_code == 202
    assert here.taken[0].text == "a?b"


async def test_the_answer_comes_when_the_message_is_kept_and_not_before() -> None:
    kept = anyio.Event()
    began = anyio.Event()

    async def slowly(message: InboundMessage) -> None:
        began.set()
        await kept.wait()

    async with door(slowly) as here, anyio.create_task_group() as tasks:
        answers: list[int] = []

        async def post() -> None:
            answers.append((await here.post()).status_code)

        tasks.start_soon(post)
        with anyio.fail_after(10):
            await began.wait()
        # Who sends it once more meanwhile is not told that it was taken: it may yet fail.
        assert code(await here.post()) == (409, "under_way")
        assert answers == []
        kept.set()
    assert answers == [202]


@pytest.mark.parametrize("language", ["python", "sh"])
async def test_the_examples_of_the_page_are_taken(language: str) -> None:
    needed = {"python": [sys.executable], "sh": ["sh", "curl", "openssl", "date"]}[language]
    if not all(map(shutil.which, needed)):
        pytest.skip("curl or openssl is missing")
    page = Path(__file__).parents[2].joinpath("docs/operate/channels.md").read_text("utf-8")
    (program,) = re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    async with door(name="team") as here:
        env = {"TEAM_SECRET": SECRET, "URL": f"http://127.0.0.1:{here.port}"}
        env |= {"PATH": os.environ["PATH"], "NO_PROXY": "*"}
        with anyio.fail_after(15):
            done = await anyio.run_process([needed[0], "-c", program], env=env)
    assert b"accepted" in done.stdout
    assert [message.text for message in here.taken] == ["What is left to do?"]


# ---- Who is heard ----


async def test_who_is_not_allowed_is_not_heard() -> None:
    async with door(allow_from=("ann",)) as here:
        assert code(await here.post(note(sender="bob"))) == (403, "sender_not_allowed")
        assert code(await here.post(note(sender="Ann"))) == (403, "sender_not_allowed")
        assert (await here.post()).status_code == 202
    assert [message.sender for message in here.taken] == ["ann"]


async def test_a_message_that_was_not_taken_can_be_sent_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    taken: list[InboundMessage] = []

    async def fails_once(message: InboundMessage) -> None:
        if not caplog.records:
            raise OSError("the disk is full")
        taken.append(message)

    async with door(fails_once) as here:
        body = json.dumps(NOTE).encode()
        signed = sign(body)
        refused = await here.post(body, headers=signed)
        assert code(refused) == (500, "not_taken")
        assert "disk" not in refused.text
        assert (await here.post(body, headers=signed)).status_code == 202
    assert len(taken) == 1


# ---- Signatures ----


FORGED: list[dict[str, str]] = [
    {"X-Clawmode-Signature": "sha256=" + "0" * 64},
    {"X-Clawmode-Signature": ""},
    {"X-Clawmode-Signature": "sha256="},
    {"X-Clawmode-Signature": "sha1=" + "0" * 40},
    {"X-Clawmode-Signature": "sha256=é"},
]


async def test_what_is_not_signed_by_the_secret_is_refused() -> None:
    # Signed now and not when the module is imported: a timestamp is valid for five minutes.
    signed = [
        sign(json.dumps(NOTE).encode(), secret="another"),
        sign(json.dumps(NOTE | {"text": "bye"}).encode()),
    ]
    async with door() as here:
        for change in (*FORGED, *signed):
            assert code(await here.post(headers=change)) == (401, "bad_signature"), change
    assert here.taken == []


async def test_the_timestamp_is_signed_too() -> None:
    body = json.dumps(NOTE).encode()
    signed = sign(body)
    signed["X-Clawmode-Timestamp"] = str(int(signed["X-Clawmode-Timestamp"]) + 1)
    async with door() as here:
        assert code(await here.post(body, headers=signed)) == (401, "bad_signature")


OFF = [-301, 301, -(10**9)]


async def test_a_signature_of_another_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    body, now = json.dumps(NOTE).encode(), int(time.time())
    # Time that passes meanwhile would bring the second one closer.
    monkeypatch.setattr(webhook, "Signer", partial(Signer, clock=lambda: now))
    async with door() as here:
        for off in OFF:
            refused = await here.post(body, headers=sign(body, now + off))
            assert code(refused) == (401, "bad_timestamp"), off


NO_TIMES = ["", "now", "-1", "1e9", "9" * 400, "\uff11" * 10, "1 2"]


async def test_an_invalid_timestamp_is_rejected() -> None:
    body = json.dumps(NOTE).encode()
    async with door() as here:
        for said in NO_TIMES:
            refused = await here.post(body, headers=sign(body, said))
            assert code(refused) == (401, "bad_timestamp"), said


async def test_what_is_not_signed_at_all_or_twice_is_refused() -> None:
    async with door() as here:
        assert code(await here.post(signed=False)) == (401, "unsigned")
        body = json.dumps(NOTE).encode()
        lines = [f"{name}: {value}" for name, value in sign(body).items()]
        lines += ["X-Clawmode-Signature: sha256=0", "content-type: application/json"]
        lines += [f"content-length: {len(body)}", "host: x", "connection: close"]
        head = "\r\n".join([f"POST {here.path} HTTP/1.1", *lines, "", ""]).encode()
        assert b'"unsigned"' in await here.raw(head + body)
    assert here.taken == []


# ---- Standard Webhooks ----

KEY = b"a key of Standard Webhooks"
WHSEC = "whsec_" + base64.b64encode(KEY).decode()


@pytest.mark.parametrize("secret", [SECRET, WHSEC])
async def test_a_message_signed_by_standard_webhooks_is_accepted(secret: str) -> None:
    body = json.dumps(note(text="hällo")).encode()
    key = KEY if secret == WHSEC else secret.encode()
    async with door(secret=secret) as here:
        posted = sign_standard(body, secret=key)
        assert (await here.post(body, headers=posted, signed=False)).status_code == 202
        own = sign(note_body := json.dumps(note(id="m2")).encode(), secret=secret)
        assert (await here.post(note_body, headers=own)).status_code == 202
    assert [message.id for message in here.taken] == ["m1", "m2"]


async def test_a_wrong_signature_of_standard_webhooks_is_rejected() -> None:
    body = json.dumps(NOTE).encode()
    good = sign_standard(body)
    wrong = [
        sign_standard(body, secret=b"another"),
        sign_standard(body, secret=b""),
        sign_standard(body + b" "),
        good | {"webhook-id": "w2"},
        good | {"webhook-id": ""},
        *(
            good | {"webhook-signature": text}
            for text in ("", "v1", "v1,", "v1,x", "v1,é", "v1a," + good["webhook-signature"][3:])
        ),
    ]
    async with door() as here:
        for headers in wrong:
            # A valid signature of the other kind does not help.
            assert code(await here.post(body, headers=headers)) == (401, "bad_signature"), headers
        broken = b"\xff\xfe"
        refused = await here.post(broken, headers=sign_standard(broken), signed=False)
        assert code(refused) == (401, "bad_signature")
        for said in (*NO_TIMES, int(time.time()) - 301, f"{time.time():.3f}"):
            refused = await here.post(body, headers=sign_standard(body, said), signed=False)
            assert code(refused) == (401, "bad_timestamp"), said
        only = {"webhook-signature": good["webhook-signature"]}
        assert code(await here.post(body, headers=only)) == (401, "unsigned")
    assert here.taken == []


async def test_a_replay_is_recognized_though_its_header_was_changed() -> None:
    seen = ReplayGuard(limit=1)
    async with door(seen=seen) as here:
        body = json.dumps(NOTE).encode()
        signed = sign_standard(body)
        assert (await here.post(body, headers=signed, signed=False)).status_code == 202
        seen.end("m2", "", taken=True)  # so that the id is forgotten
        changed = signed | {"webhook-signature": "v2,abc v1,AAAA " + signed["webhook-signature"]}
        assert code(await here.post(body, headers=changed, signed=False)) == (409, "replayed")
    assert len(here.taken) == 1


async def test_the_previous_secret_is_accepted_while_it_is_configured() -> None:
    async with door(previous_secret=WHSEC) as here:
        for number, secret in enumerate((SECRET, WHSEC)):
            body = json.dumps(note(id=f"own {number}")).encode()
            assert (await here.post(body, headers=sign(body, secret=secret))).status_code == 202
        for number, key in enumerate((SECRET.encode(), KEY)):
            body = json.dumps(note(id=f"standard {number}")).encode()
            signed = sign_standard(body, secret=key)
            assert (await here.post(body, headers=signed, signed=False)).status_code == 202
    assert len(here.taken) == 4


@pytest.mark.parametrize("secret", ["whsec_", "whsec_a"])
def test_a_secret_that_is_not_base64_is_an_error(secret: str) -> None:
    (error,) = webhook.check_channel("hook", ChannelEntry(secret=secret))
    assert "channels.hook: a secret that begins with `whsec_`" in str(error)
    assert secret not in str(error).replace("`whsec_`", "")


# ---- Repeats ----


async def test_a_message_is_taken_once() -> None:
    async with door() as here:
        body = json.dumps(NOTE).encode()
        old = int(time.time()) - 10
        for signed in (sign(body), sign(body), sign(body, old)):
            response = await here.post(body, headers=signed)
        again = await here.post(note(text="something else, under a known id"))
    assert (response.status_code, again.status_code) == (200, 200)
    assert again.json() == {"accepted": True, "id": "m1", "repeated": True}
    assert len(here.taken) == 1


async def test_a_signature_is_not_taken_twice_though_its_id_is_forgotten() -> None:
    seen = ReplayGuard(limit=2)
    async with door(seen=seen) as here:
        body = json.dumps(NOTE).encode()
        signed = sign(body)
        assert (await here.post(body, headers=signed)).status_code == 202
        assert (await here.post(note(id="m2"))).status_code == 202
        refused = await here.post(note(id="m3"))
        assert code(refused) == (429, "too_many")
        assert refused.headers["retry-after"] == "1"
        seen._limit = 3
        assert (await here.post(note(id="m3"))).status_code == 202
        seen.end("m4", "", taken=True)
        assert code(await here.post(body, headers=signed)) == (409, "replayed")
    assert [message.id for message in here.taken] == ["m1", "m2", "m3"]


def test_what_is_remembered_is_bounded_and_forgotten_when_it_is_of_no_use() -> None:
    now = 0.0
    seen = ReplayGuard(limit=10, clock=lambda: now)
    for number in range(10):
        assert seen.look(f"i{number}", f"s{number}") == "new"
        seen.begin(f"i{number}", f"s{number}")
        seen.end(f"i{number}", f"s{number}", taken=True)
    assert seen.look("i10", "s10") == "full"
    now = 599.0
    assert seen.look("x", "s0") == "replayed"
    now = 601.0
    assert seen.look("i10", "s0") == "new"
    assert seen.look("i9", "s9") == "taken"
    assert REMEMBERED >= 1_000


# ---- Bodies ----


async def test_a_body_that_is_too_large_is_not_read() -> None:
    async with door() as here:
        exact = note(text="")
        exact["text"] = "x" * (MAX_BODY - len(json.dumps(exact)))
        assert (await here.post(exact)).status_code == 202
        exact["text"] += "x"
        assert code(await here.post(exact)) == (413, "too_large")
        head = f"POST {here.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in sign(b"").items())
        # Nothing of it has to come before it is refused.
        answer = await here.raw(f"{head}content-length: 99999999999\r\n\r\n".encode())
        assert b" 413 " in answer.partition(b"\r\n")[0]


async def test_a_body_without_a_length_is_counted() -> None:
    async with door() as here:
        body = json.dumps(NOTE).encode()
        await chunked(here, body[:5], body[5:], signed=body)
        assert [message.id for message in here.taken] == ["m1"]
        answer = await chunked(here, *[b"x" * (MAX_BODY // 4)] * 5, signed=b"")
        assert b" 413 " in answer.partition(b"\r\n")[0]


async def chunked(here: Door, *chunks: bytes, signed: bytes) -> bytes:
    head = f"POST {here.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in sign(signed).items())
    head += "transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    pieces = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]
    return await here.raw(head.encode(), *pieces, b"0\r\n\r\n")


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_request, "BODY_SECONDS", 0.1)
    async with door() as here:
        head = f"POST {here.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in sign(b"").items())
        answer = await here.raw(f"{head}content-length: 10\r\n\r\nabc".encode())
        assert b" 408 " in answer.partition(b"\r\n")[0]


async def test_who_leaves_in_the_middle_of_a_body_does_no_harm() -> None:
    async with door() as here:
        head = f"POST {here.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in sign(b"").items())
        async with await anyio.connect_tcp("127.0.0.1", here.port) as stream:
            await stream.send(f"{head}content-length: 10\r\n\r\nabc".encode())
        assert (await here.post()).status_code == 202


OTHER_KINDS = [
    {"content-type": "text/plain"},
    {"content-type": ""},
    {"content-type": "application/json-seq"},
    {"content-encoding": "gzip"},
]


async def test_another_kind_of_body_is_refused() -> None:
    async with door() as here:
        for headers in OTHER_KINDS:
            refused = await here.post(headers=headers)
            assert code(refused) == (415, "unsupported_media_type"), headers


async def test_the_kind_of_a_body_may_have_a_charset() -> None:
    async with door() as here:
        kind = {"content-type": "Application/JSON; charset=utf-8"}
        assert (await here.post(headers=kind)).status_code == 202


NO_OBJECTS = [
    b"",
    b"{",
    b"hello",
    b"[]",
    b"null",
    b"[" * 500_000,
    b'{"a":' * 100_000,
    b'{"id": NaN}',
    b'{"id": ' + b"9" * 10_000 + b"}",
    b"\xff\xfe",
    json.dumps(NOTE).encode("utf-16"),
]


async def test_what_is_no_json_object_is_refused() -> None:
    async with door() as here:
        for body in NO_OBJECTS:
            assert code(await here.post(body)) == (400, "bad_json"), body[:80]


WRONG: list[dict[str, Any]] = [
    {"id": None},
    {"id": ""},
    {"id": 7},
    {"id": "x" * 201},
    {"id": "a\nb"},
    {"sender": ["ann"]},
    {"sender": "ann\0"},
    {"sender": ""},
    {"target": {"room": 1}},
    {"target": "room\r\nX-Evil: 1"},
    {"target": "\u202eroom"},
    {"target": "x" * 501},
    {"text": None},
    {"text": 1},
    {"text": " \n"},
    {"session": 1},
    {"session": "a\nb"},
    {"images": {}},
    {"images": [1]},
    {"images": [{"data": PNG}]},
    {"images": [{"data": PNG, "mimeType": "text/html"}]},
    {"images": [{"data": PNG, "mimeType": ["image/png"]}]},
    {"images": [{"data": 1, "mimeType": "image/png"}]},
    {"images": [{"data": "", "mimeType": "image/png"}]},
    {"images": [{"data": "no base64!", "mimeType": "image/png"}]},
    {"images": [{"data": PNG, "mimeType": "image/png"}] * 11},
]


async def test_a_field_of_the_wrong_kind_is_refused_and_named() -> None:
    async with door(operators=("ann",)) as here:
        for change in WRONG:
            response = await here.post(note(**change))
            (field,) = change
            assert code(response) == (400, "bad_field"), change
            assert f"`{field}" in response.json()["error"]["message"]
    assert here.taken == []


# ---- Too many ----


async def test_too_many_that_wait_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "MAX_WAITING", 2)
    gate = anyio.Event()
    waiting: list[str] = []
    two = anyio.Event()

    async def wait(message: InboundMessage) -> None:
        waiting.append(message.id)
        if len(waiting) == 2:
            two.set()
        await gate.wait()

    async with door(wait) as here, anyio.create_task_group() as tasks:
        for number in range(2):
            tasks.start_soon(here.post, note(id=f"w{number}"))
        with anyio.fail_after(10):
            await two.wait()
        assert code(await here.post(note(id="w2"))) == (429, "too_many")
        gate.set()
    assert sorted(waiting) == ["w0", "w1"]


async def test_too_many_bodies_are_not_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "MAX_READ", 0)
    async with door() as here:
        assert code(await here.post()) == (429, "too_many")


# ---- The channel as such ----


async def test_only_post_is_answered() -> None:
    async with door() as here:
        url = f"http://127.0.0.1:{here.port}{here.path}"
        assert (await here.client.get(url)).status_code == 405


@pytest.mark.parametrize("secret", ["  ", "${UNSET_VARIABLE}", "${env:UNSET_VARIABLE}"])
def test_without_a_secret_there_is_no_channel(secret: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        WebhookChannel("hook", ChannelEntry(secret=secret), ignore)
    assert caught.value.path == "channels.hook.secret"


async def test_a_secret_may_be_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    async with door(secret="${HOOK_SECRET}") as here:
        assert (await here.post()).status_code == 202
    WebhookChannel("a", ChannelEntry(secret="${A}"), ignore, environment={"A": "x"})


@pytest.mark.parametrize("name", ["", "a/b", "{x}", "a b", "é", "../x", "x" * 65, "a:b"])
def test_a_name_that_cannot_be_in_a_path_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        WebhookChannel(name, ChannelEntry(secret=SECRET), ignore)


async def test_no_refusal_tells_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with door() as here:
        texts = [(await here.post(headers=sign(b"x"))).text]
        texts.append((await here.post(b"{")).text)
        texts.append((await here.post()).text)
    told = "".join([*texts, *(record.getMessage() for record in caplog.records)])
    assert SECRET not in told
    assert SECRET not in repr(vars(here.channel))


@pytest.mark.covers("S-17")
@pytest.mark.parametrize(
    ("secret", "taken"),
    [
        ("${SECRET}", False),
        ("${OTHER}", False),
        (f"{SECRET}\0\0", False),  # HMAC fills keys up with zeros
        (f"{SECRET} ", False),  # secrets are stripped
        ("another one", True),
    ],
)
def test_two_channels_with_one_secret_are_an_error(
    monkeypatch: pytest.MonkeyPatch, secret: str, taken: bool
) -> None:
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.setenv("OTHER", SECRET)
    channels = {"team": ChannelEntry(secret=SECRET), "operators": ChannelEntry(secret=secret)}
    errors = list(check_secrets(channels))
    assert [error.path for error in errors] == ([] if taken else ["channels.operators.secret"])
    assert SECRET not in str(errors)


@pytest.mark.covers("S-17")
async def test_a_gateway_does_not_start_with_one_secret_for_two_channels(tmp_path: Path) -> None:
    """A channel that is switched off does not count."""
    channels: dict[str, Any] = {name: {"secret": SECRET} for name in ("one", "two")}
    with pytest.raises(ConfigurationError):
        async with inside(tmp_path, channels=channels):
            pass
    channels["two"] = {"secret": SECRET, "enabled": False}
    async with inside(tmp_path, channels=channels) as it:
        assert [channel.name for channel in it.gateway.host.webhooks] == ["one"]
