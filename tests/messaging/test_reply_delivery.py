"""Replies on their way out: blocks, messages that grow, reasoning, chat clients, silence."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.chat_driver import Room, talking
from tests.support.waiting import Gate, until

from clawmode.agent.hooks import MessageEvent, SendDecision
from clawmode.messaging.reply_delivery import may_be_silent
from clawmode.testing import Turn, call, pause, think

pytestmark = pytest.mark.anyio


def agents(**defaults: Any) -> dict[str, Any]:
    return {"defaults": {"model": "scripted/a", **defaults}}


BLOCKS = [Turn("I look.", call("slow", id="c1")), Turn("Found it.")]


@pytest.mark.covers("AL-49")
@pytest.mark.parametrize("at", ["text_end", "message_end"])
async def test_blocks_are_sent_while_the_run_continues(tmp_path: Path, at: str) -> None:
    gate = Gate()
    async with talking(
        tmp_path,
        BLOCKS,
        tools=[gate.tool],
        agents=agents(blockStreaming=True, blockStreamingBreak=at),
    ) as talk:
        await talk.say("go")
        await gate.entered.wait()
        await until(lambda: talk.room.texts() == ["I look."])
        gate.open.set()
        await talk.settled()
        assert talk.room.texts() == ["I look.", "Found it."]


async def test_without_blocks_a_reply_goes_out_at_the_end(tmp_path: Path) -> None:
    gate = Gate()
    async with talking(tmp_path, BLOCKS, tools=[gate.tool]) as talk:
        await talk.say("go")
        await gate.entered.wait()
        assert talk.room.texts() == []
        gate.open.set()
        await talk.settled()
        assert talk.room.texts() == ["I look.", "Found it."]


async def test_a_message_grows_where_it_can_be_changed(tmp_path: Path) -> None:
    room = Room(can_edit=True)
    gate = Gate()
    script = [Turn("One ", pause(0.2), "two.", call("slow", id="c1")), Turn("Three.")]
    async with talking(tmp_path, script, tools=[gate.tool], room=room) as talk:
        await talk.say("go")
        await until(lambda: room.texts() == ["One"])
        await gate.entered.wait()
        gate.open.set()
        await talk.settled()
        await until(lambda: len(room.now()) == 2)
        assert room.now() == ["One two.", "Three."]


@pytest.mark.covers("AL-50")
async def test_reasoning_is_a_stream_or_messages_or_nothing(tmp_path: Path) -> None:
    seen: dict[str, tuple[list[str], list[Any]]] = {}
    for kind in ("off", "on", "stream"):
        async with talking(
            tmp_path / kind,
            [Turn(think("Hm, yes."), pause(0.05), "So it is.")],
            agents=agents(reasoning=kind),
        ) as talk:
            await talk.say("go")
            await talk.settled()
            thoughts = [event["reasoning"] for event in talk.chat if event.get("reasoning")]
            seen[kind] = (talk.room.texts(), thoughts)
    assert seen["off"] == (["So it is."], [])
    assert seen["on"] == (["Reasoning:\nHm, yes.", "So it is."], [])
    assert seen["stream"][0] == ["So it is."]
    assert "Hm, yes." in seen["stream"][1]


async def test_reasoning_goes_before_its_block(tmp_path: Path) -> None:
    async with talking(
        tmp_path,
        [Turn(think("Hm."), "So.")],
        agents=agents(reasoning="on", blockStreaming=True),
    ) as talk:
        await talk.say("go")
        await talk.settled()
        assert talk.room.texts() == ["Reasoning:\nHm.", "So."]


@pytest.mark.covers("AL-60")
async def test_a_chat_client_gets_the_words_so_far_and_one_end(tmp_path: Path) -> None:
    script = [Turn("One ", pause(0.3), "two ", pause(0.3), "three.")]
    async with talking(tmp_path, script) as talk:
        taken = await talk.say("go")
        await talk.settled()
        *deltas, final = talk.chat
        assert [event["state"] for event in deltas] == ["delta"] * len(deltas)
        assert [event["text"] for event in deltas][:2] == ["One ", "One two "]
        assert (final["state"], final["text"]) == ("final", "One two three.")
        assert [event["seq"] for event in talk.chat] == [*range(1, len(talk.chat) + 1)]
        assert {event["runId"] for event in talk.chat} == {taken.id}
        assert {event["sessionKey"] for event in talk.chat} == {"agent:main:room:bob"}


async def test_the_end_of_a_chat_tells_how_it_ended(tmp_path: Path) -> None:
    gate = Gate()
    script = [Turn(error="auth"), Turn(call("slow", id="c1"))]
    async with talking(tmp_path, script, tools=[gate.tool]) as talk:
        await talk.say("go")
        await talk.settled()
        assert talk.chat[-1]["state"] == "error"
        assert talk.chat[-1]["error"] == talk.room.texts()[0]
        await talk.say("go")
        await gate.entered.wait()
        await talk.say("/stop")
        await talk.settled()
        assert talk.chat[-1]["state"] == "aborted"
        assert talk.room.texts()[1:] == ["Stopped."]


@pytest.mark.covers("AL-55")
@pytest.mark.parametrize("can_edit", [False, True])
async def test_nothing_of_a_silent_reply_is_seen(tmp_path: Path, can_edit: bool) -> None:
    room = Room(can_edit=can_edit)
    script = [Turn("NO_", pause(0.1), "REPLY")]
    async with talking(tmp_path, script, room=room) as talk:
        await talk.say("go")
        await talk.settled()
        assert room.texts() == []
        assert [event["state"] for event in talk.chat] == ["final"]
        assert talk.chat[0]["text"] == ""


def test_what_may_become_silent_is_held_back() -> None:
    assert all(map(may_be_silent, ("", "N", "NO_REPLY", "no_re", " NO_REPLY\n")))
    assert not any(map(may_be_silent, ("No", "NO_REPLY!", "nope", "NO REPLY")))


@pytest.mark.covers("AL-59")
async def test_a_block_that_was_sent_is_not_sent_again_by_a_retry(tmp_path: Path) -> None:
    again = Turn("Part one.", call("slow", id="c1"))
    broken = Turn("Part one.", pause(0.05), error="server")
    gate = Gate()
    gate.open.set()
    async with talking(
        tmp_path,
        [broken, again, Turn("Part two.")],
        tools=[gate.tool],
        agents=agents(blockStreaming=True),
    ) as talk:
        await talk.say("go")
        await talk.settled()
        assert talk.room.texts() == ["Part one.", "Part two."]


@pytest.mark.covers("AL-53", "AL-56")
async def test_what_the_message_tool_has_sent_is_not_said_again(tmp_path: Path) -> None:
    send = call("message", {"text": "It is done."}, id="c1")
    async with talking(tmp_path, [Turn(send), Turn("it is  done.")], own=True) as talk:
        taken = await talk.say("go")
        await talk.settled()
        assert talk.room.said == [("bob", "It is done.")]
        run = talk.runtime.find(taken.id)
        assert run is not None
        assert run.result is not None
        assert run.result.payloads == ()


async def test_a_hook_may_change_or_cancel_what_goes_out(tmp_path: Path) -> None:
    def censor(event: MessageEvent) -> SendDecision | None:
        if "secret" in event.text:
            return SendDecision(cancel=True)
        return SendDecision(text=event.text.upper())

    async with talking(tmp_path, ["a secret", "fine"]) as talk:
        talk.hooks.on("message_sending", censor)
        await talk.say("one")
        await talk.settled()
        await talk.say("two")
        await talk.settled()
        assert talk.room.texts() == ["FINE"]


async def test_a_channel_that_fails_does_not_keep_others_waiting(tmp_path: Path) -> None:
    room = Room(broken=True)
    async with talking(tmp_path, ["One.", "Two."], room=room) as talk:
        await talk.say("one")
        await talk.settled()
        room.broken = False
        await talk.say("two")
        await talk.settled()
        assert room.texts() == ["Two."]


async def test_a_long_reply_goes_out_in_parts(tmp_path: Path) -> None:
    words = " ".join(f"word{number}" for number in range(1_500))
    async with talking(tmp_path, [words]) as talk:
        await talk.say("go")
        await talk.settled()
        assert len(talk.room.said) > 1
        assert " ".join(talk.room.texts()) == words
