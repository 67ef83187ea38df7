"""Messages that no run has read outlive the process."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.chat_driver import people_said
from tests.support.gateway_inside import Inside, inside
from tests.support.waiting import Gate, until

from clawmode.testing import Turn, call

pytestmark = pytest.mark.anyio

SLOW = Turn(call("slow", id="c1"))
QUEUE = {"queue": {"mode": "followup", "debounceMs": 1}}


class Killed(Exception):
    """The process ends in the middle."""


async def say(it: Inside, text: str, key: str) -> dict[str, Any]:
    return dict(await it.call("chat.send", message=text, idempotencyKey=key))


async def kill_while_two_wait(folder: Path, options: dict[str, Any]) -> None:
    gate = Gate()
    async with inside(folder, [SLOW], tools=[gate.tool], **options) as it:
        await say(it, "first", "k1")
        await gate.entered.wait()
        assert (await say(it, "second", "k2"))["status"] == "queued"
        assert (await say(it, "third", "k3"))["status"] == "queued"
        raise Killed


async def test_messages_that_wait_are_turns_of_the_next_process(tmp_path: Path) -> None:
    options: dict[str, Any] = {"messages": QUEUE, "gateway": {"shutdownSeconds": 0}}
    with pytest.raises(ExceptionGroup):
        await kill_while_two_wait(tmp_path, options)
    async with inside(tmp_path, ["One.", "Two.", "Three."], **options) as it:
        await until(lambda: len(it.model.requests) == 3)
        await until(lambda: not it.gateway.host.runtime.under_way("agent:main:main"))
        assert people_said(it.model.requests[-1])[-2:] == ["second", "third"]
        again = await say(it, "second", "k2")
        assert again["status"] == "queued"  # the answer of then: nothing is said twice
        assert len(it.model.requests) == 3
        assert await it.gateway.ledger.messages() == []


async def nothing_waits(it: Inside) -> bool:
    return await it.gateway.ledger.messages() == []


async def test_what_was_read_or_given_up_is_not_kept(tmp_path: Path) -> None:
    gate = Gate()
    async with inside(tmp_path, [SLOW, "Both."], tools=[gate.tool]) as it:
        await say(it, "first", "k1")
        await gate.entered.wait()
        assert (await say(it, "second", "k2"))["status"] == "steered"
        assert len(await it.gateway.ledger.messages()) == 1
        gate.open.set()
        await until(lambda: len(it.model.requests) == 2)
        await until(lambda: not it.gateway.host.runtime.under_way("agent:main:main"))
        await until(lambda: nothing_waits(it))


async def test_two_clients_may_use_the_same_key(tmp_path: Path) -> None:
    async with inside(tmp_path, ["One.", "Two."]) as it:
        first = await say(it, "mine", "k1")
        other = it.client("operator.write", name="other")
        second = await it.call("chat.send", other, message="theirs", idempotencyKey="k1")
        assert first["status"] == "started"
        assert second["status"] in ("started", "queued")
        await until(lambda: len(it.model.requests) == 2)


async def test_commands_are_answered_in_the_answer(tmp_path: Path) -> None:
    async with inside(tmp_path, ["One."]) as it:
        told = await say(it, "/status", "k1")
        assert told["status"] == "command"
        assert "session agent:main:main" in told["text"]
        told = await say(it, "/compact", "k2")
        assert told["text"] == "There is nothing to compact."
