"""The webhook channel, outwards: what is sent, what is tried again, what receivers do to us."""

import hashlib
import hmac
import logging
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream
from standardwebhooks import Webhook, WebhookVerificationError
from tests.support.web_server import drip
from tests.support.webhooks import SECRET, Answer, answer, receiver, sender

from clawmode.exceptions import ConfigurationError
from clawmode.messaging.channel import ChannelError
from clawmode.messaging.webhook_delivery import MAX_ANSWER, Retry

pytestmark = pytest.mark.anyio

FAILED = answer("no", "500 No")


async def send(channel: Any, target: str = "room", text: str = "hi") -> str:
    with anyio.fail_after(10):
        async with channel:
            return await channel.send(target, text)


async def failure(channel: Any, target: str = "room") -> str:
    with pytest.raises(ChannelError) as caught:
        await send(channel, target)
    return str(caught.value)


# ---- What is sent ----


async def test_a_message_is_posted_and_signed() -> None:
    async with receiver(answer('{"id": "theirs-1"}')) as there:
        assert await send(sender(there.url), "room", "hällo\ud800") == "theirs-1"
    (got,) = there.received
    body = got.json
    key = body.pop("idempotencyKey")
    assert body == {
        "type": "message",
        "channel": "hook",
        "target": "room",
        "text": "hällo?",
        "id": key,
    }
    assert got.head.startswith("POST /secret-path?token=secret-token HTTP/1.1\r\n")
    assert got.header("content-type") == "application/json"
    assert got.header("idempotency-key") == key
    signed = got.header("x-clawmode-timestamp").encode() + b"." + got.body
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert got.header("x-clawmode-signature") == f"sha256={digest}"
    assert got.header("webhook-id") == key
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    Webhook(SECRET.encode()).verify(got.body, {name: got.header(name) for name in names})
    assert "cookie" not in got.head.lower()


async def test_a_message_is_signed_with_both_secrets_while_the_secret_is_changed() -> None:
    new, old = "whsec_bmV3IGtleQ==", "whsec_b2xkIGtleQ"
    async with receiver() as there:
        await send(sender(there.url, secret=new, previous_secret=old))
    (got,) = there.received
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    for secret in (new, old):
        Webhook(secret).verify(got.body, {name: got.header(name) for name in names})
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_b3RoZXI").verify(got.body, {name: got.header(name) for name in names})


async def test_a_message_is_changed_by_its_id() -> None:
    async with receiver() as there, sender(there.url) as channel:
        assert channel.can_edit
        await channel.edit("room", "theirs-1", "better")
        await channel.edit("room", "theirs-1", "best")
    first, second = (got.json for got in there.received)
    assert first.pop("idempotencyKey") != second.pop("idempotencyKey")
    assert first == {
        "type": "edit",
        "channel": "hook",
        "target": "room",
        "text": "better",
        "id": "theirs-1",
    }


async def test_a_channel_that_cannot_change_messages_says_so() -> None:
    async with receiver() as there, sender(there.url, edits=False) as channel:
        assert not channel.can_edit
        with pytest.raises(ChannelError):
            await channel.edit("room", "m", "x")
    assert there.received == []


async def test_connections_are_used_again() -> None:
    answers = [answer(connection="keep-alive")]

    async def both(stream: ByteStream) -> None:
        await stream.send(answers[0])
        await there.serve(stream)

    async with receiver(both) as there, sender(there.url) as channel:
        with anyio.fail_after(10):
            await channel.send("room", "one")
            await channel.send("room", "two")
    assert [got.json["text"] for got in there.received] == ["one", "two"]


@pytest.mark.parametrize("target", ["", "room\r\nX-Evil: 1", "a\0b", "x" * 501])
async def test_a_target_that_can_be_none_is_not_sent_to(target: str) -> None:
    async with receiver() as there:
        assert "is not a target" in await failure(sender(there.url), target)
        async with sender(there.url) as channel:
            with pytest.raises(ChannelError):
                await channel.edit("room", target, "x")
    assert there.received == []


async def test_a_target_of_odd_characters_stays_in_the_body() -> None:
    target = 'a": "b" \\r\\nX-Evil: 1 ../ %0d%0a ü'
    async with receiver() as there:
        await send(sender(there.url), target)
    assert there.received[0].json["target"] == target
    assert "evil" not in there.received[0].head.lower()


async def test_without_an_address_nothing_can_be_sent() -> None:
    channel = sender(None)
    assert not channel.can_edit
    assert "channels.hook.url" in await failure(channel)


@pytest.mark.parametrize(
    "url", ["ftp://x/", "http://", "http://user:pass@host/", "http://[x", "http://a:b/", "x"]
)
def test_an_invalid_address_is_rejected_and_not_quoted(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        sender(url)
    assert caught.value.path == "channels.hook.url"
    assert "pass" not in str(caught.value)


# ---- What is tried again ----


async def broken(stream: ByteStream) -> None:
    """Closes without an answer."""


async def half(stream: ByteStream) -> None:
    await stream.send(b"HTTP/1.1 200 OK\r\ncontent-")


@pytest.mark.parametrize(
    "trouble",
    [FAILED, answer("", "503 No"), answer("", "429 Slow", retry_after="0"), broken, half],
    ids=["500", "503", "429", "broken", "half"],
)
async def test_what_may_work_the_next_time_is_tried_again_with_the_same_key(
    trouble: Answer,
) -> None:
    async with receiver(trouble, trouble, answer('{"id": "ok"}')) as there:
        assert await send(sender(there.url)) == "ok"
    keys = {got.header("idempotency-key") for got in there.received}
    assert (len(there.received), len(keys)) == (3, 1)
    assert len({got.body for got in there.received}) == 1


async def test_there_is_an_end_to_trying() -> None:
    async with receiver(FAILED) as there:
        assert await failure(sender(there.url)) == "the receiver answered HTTP 500, 3 times"
    assert len(there.received) == 3


@pytest.mark.parametrize("status", ["400 No", "401 No", "404 No", "410 No"])
async def test_a_no_is_a_no(status: str) -> None:
    async with receiver(answer("", status)) as there:
        assert await failure(sender(there.url)) == f"the receiver answered HTTP {status[:3]}"
    assert len(there.received) == 1


async def test_nobody_there_is_an_error_without_the_address() -> None:
    async with receiver() as there:
        pass
    told = await failure(sender(there.url))
    assert told == "the receiver cannot be reached, 3 times"


def test_waits_grow_and_are_bounded() -> None:
    retry = Retry()
    waits = [retry.wait(tried, 0.0) for tried in (1, 2, 3)]
    assert 0.3 < waits[0] < 0.7
    assert waits == sorted(waits)
    assert retry.wait(1, 3.0) == 3.0
    assert retry.wait(1, 99_999.0) == retry.longest


@pytest.mark.parametrize("said", ["soon", "-1", "9" * 400, "Wed, 21 Oct 2037 07:28:00 GMT"])
async def test_a_strange_wish_to_wait_is_not_heard(said: str) -> None:
    async with receiver(answer("", "429 Slow", retry_after=said), answer()) as there:
        await send(sender(there.url))
    assert len(there.received) == 2


# ---- Receivers that misbehave ----


async def hangs(stream: ByteStream) -> None:
    await anyio.sleep_forever()


drips = partial(drip, b"HTTP/1.1 200 OK\r\n", b"x-more: 1\r\n")


async def hangs_in_the_body(stream: ByteStream) -> None:
    await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
    await anyio.sleep_forever()


async def never_ends(stream: ByteStream) -> None:
    await stream.send(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        await stream.send(b"x" * 65_536)


@pytest.mark.parametrize("trouble", [hangs, drips])
async def test_a_receiver_that_hangs_is_given_up(trouble: Answer) -> None:
    async with receiver(trouble) as there:
        told = await failure(sender(there.url, timeout_ms=200))
    assert told == "the receiver did not answer in time, 3 times"


async def test_a_receiver_that_hangs_once_gets_it_again() -> None:
    async with receiver(hangs, answer('{"id": "ok"}')) as there:
        assert await send(sender(there.url, timeout_ms=1_000)) == "ok"


async def test_no_redirect_is_followed() -> None:
    async with receiver() as elsewhere:
        redirect = answer("", "307 There", location=elsewhere.url)
        async with receiver(redirect) as there:
            told = await failure(sender(there.url))
    assert told == "the receiver answered HTTP 307: redirects are not followed"
    assert elsewhere.received == []


@pytest.mark.parametrize(
    "said",
    [
        answer(""),
        answer("thanks"),
        answer("[]"),
        answer('{"id": ""}'),
        answer('{"id": "a\\nb"}'),
        answer('{"id": true}'),
        answer('{"id": ["x"]}'),
        answer('{"id": "' + "x" * 201 + '"}'),
        answer('{"id": ' + "9" * 300 + "}"),
        answer("[" * 50_000),
        answer('{"id": "x", "more": "' + "x" * MAX_ANSWER + '"}'),
        answer(b"\x1f\x8b garbage", content_encoding="gzip"),
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}",
        never_ends,
        hangs_in_the_body,
        answer("", "204 No Content"),
    ],
)
async def test_an_invalid_answer_leaves_our_own_id(said: Answer) -> None:
    """The message was taken, whatever else was said: it is not sent again."""
    patience: dict[str, Any] = {"timeout_ms": 2_000} if callable(said) else {}
    async with receiver(said) as there:
        made = await send(sender(there.url, **patience))
    (got,) = there.received
    assert made == got.json["id"] == got.header("idempotency-key")


async def test_an_id_may_be_a_number() -> None:
    async with receiver(answer('{"id": 12345678901}')) as there:
        assert await send(sender(there.url)) == "12345678901"


@pytest.mark.parametrize("said", [b"garbage\r\n\r\n", b"\0" * 1_000, b"HTTP/1.1 999999 OK\r\n\r\n"])
async def test_what_is_no_http_is_an_error(said: bytes) -> None:
    async with receiver(said) as there:
        assert "was lost" in await failure(sender(there.url))


async def test_who_gives_up_leaves_nothing_behind() -> None:
    async with receiver(hangs) as there, sender(there.url) as channel:
        with anyio.move_on_after(0.2) as scope:
            await channel.send("room", "hi")
        assert scope.cancelled_caught


async def test_neither_secret_nor_address_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with receiver(FAILED, broken, answer()) as there:
        await send(sender(there.url))
        told = await failure(sender("http://127.0.0.1:1/secret-path"))
    logged = "\n".join(record.getMessage() for record in caplog.records)
    assert "again in" in logged
    for secret in (SECRET, "127.0.0.1", "secret-path", "secret-token", str(there.port)):
        assert secret not in logged + told
