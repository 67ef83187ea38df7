"""What becomes of messages: turns, words to the run that is under way, commands."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest
from tests.support.chat_driver import talking
from tests.support.waiting import Gate, idle, until

from clawmode.agent import turn
from clawmode.agent.hooks import MessageEvent
from clawmode.agent.requests import AgentRequest
from clawmode.exceptions import ClawmodeError
from clawmode.messaging import inbox
from clawmode.messaging.channel import conversation_key
from clawmode.testing import Turn, call

pytestmark = pytest.mark.anyio

SLOW = Turn(call("slow", id="c1"))


def queue(mode: str, **more: object) -> dict[str, object]:
    return {"queue": {"mode": mode, "debounceMs": 1, **more}}


class Instead:
    """A module some of whose functions are others: so that a test decides when time passes."""

    def __init__(self, module: ModuleType, **functions: Any) -> None:
        self._module = module
        vars(self).update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


async def test_a_message_is_answered_where_it_came_from(tmp_path: Path) -> None:
    async with talking(tmp_path, ["Hello."]) as talk:
        taken = await talk.say("hi")
        await talk.settled()
        assert (taken.how, taken.session_key) == ("started", "agent:main:room:bob")
        assert talk.room.said == [("bob", "Hello.")]
        assert talk.asked() == [["hi"]]
        run = talk.runtime.find(taken.id)
        assert run is not None
        assert (run.request.sender, run.request.channel, run.request.target) == (
            "bob",
            "room",
            "bob",
        )


@pytest.mark.covers("AL-16")
async def test_steer_brings_a_message_into_the_run_that_is_under_way(tmp_path: Path) -> None:
    gate = Gate()
    async with talking(tmp_path, [SLOW, "Both done."], tools=[gate.tool]) as talk:
        await talk.say("first")
        await gate.entered.wait()
        taken = await talk.say("second")
        assert taken.how == "steered"
        gate.open.set()
        await talk.settled()
        assert talk.asked() == [["first"], ["first", "second"]]
        assert talk.room.texts() == ["Both done."]
        assert len(talk.runtime.runs()) == 1


async def test_what_steers_too_late_is_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, clocks = Gate(), list[anyio.CancelScope]()

    def clock(**given: Any) -> anyio.CancelScope:
        clocks.append(anyio.CancelScope(**given))
        return clocks[-1]

    monkeypatch.setattr(turn, "anyio", Instead(anyio, CancelScope=clock))
    script = [SLOW, Turn(error="server"), "Second."]
    async with talking(
        tmp_path,
        script,
        tools=[gate.tool],
        agents={"defaults": {"model": "scripted/a", "timeoutSeconds": 60}},
    ) as talk:
        await talk.say("first")
        await gate.entered.wait()
        assert (await talk.say("second")).how == "steered"
        clocks[0].deadline = anyio.current_time()
        await talk.settled()  # the first one has run out of time
        statuses = [run.result.status for run in talk.runtime.runs() if run.result]
        assert statuses[0] == "timeout"
        assert talk.asked()[-1][-1] == "second"


@pytest.mark.covers("AL-17")
async def test_followups_are_turns_after_the_present_one(tmp_path: Path) -> None:
    gate = Gate()
    script = [SLOW, "One.", "Two.", "Three."]
    async with talking(tmp_path, script, tools=[gate.tool], messages=queue("followup")) as talk:
        await talk.say("first")
        await gate.entered.wait()
        assert [(await talk.say(text)).how for text in ("second", "third")] == ["queued"] * 2
        assert [each.message.text for each in talk.inbox.waiting("agent:main:room:bob")] == [
            "second",
            "third",
        ]
        gate.open.set()
        await talk.settled()
        assert talk.room.texts() == ["One.", "Two.", "Three."]
        assert talk.asked()[-1] == ["first", "second", "third"]


@pytest.mark.covers("AL-18")
async def test_collected_messages_are_one_turn(tmp_path: Path) -> None:
    gate = Gate()
    async with talking(
        tmp_path, [SLOW, "One.", "All."], tools=[gate.tool], messages=queue("collect")
    ) as talk:
        await talk.say("first")
        await gate.entered.wait()
        for text in ("second", "third"):
            await talk.say(text)
        gate.open.set()
        await talk.settled()
        assert talk.asked()[-1] == ["first", "second\n\nthird"]
        assert talk.room.texts() == ["One.", "All."]


@pytest.mark.covers("AL-19")
async def test_interrupt_aborts_the_run_for_the_newest_message(tmp_path: Path) -> None:
    gate = Gate()
    async with talking(
        tmp_path, [SLOW, "Newest."], tools=[gate.tool], messages=queue("interrupt")
    ) as talk:
        first = await talk.say("first")
        await gate.entered.wait()
        await talk.say("second")
        await talk.say("third")
        await talk.settled()
        run = talk.runtime.find(first.id)
        assert run is not None
        assert run.state == "aborted"
        assert talk.asked()[-1][-1] == "third"
        assert talk.room.texts() == ["Newest."]
        assert not any("second" in said for said in talk.asked()[-1])


async def test_a_channel_has_its_own_mode(tmp_path: Path) -> None:
    gate = Gate()
    async with talking(
        tmp_path,
        [SLOW, "One.", "Two."],
        tools=[gate.tool],
        messages=queue("steer", byChannel={"room": "followup"}),
    ) as talk:
        await talk.say("first")
        await gate.entered.wait()
        assert (await talk.say("second")).how == "queued"
        gate.open.set()
        await talk.settled()


async def test_messages_are_waited_for_until_it_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, quiet = Gate(), anyio.Event()

    def current_time() -> float:
        return anyio.current_time() + (60 if quiet.is_set() else 0)

    async def sleep(seconds: float) -> None:
        await quiet.wait()

    monkeypatch.setattr(inbox, "anyio", Instead(anyio, current_time=current_time, sleep=sleep))
    async with talking(
        tmp_path,
        [SLOW, "One.", "All."],
        tools=[gate.tool],
        messages=queue("collect", debounceMs=30_000),
    ) as talk:
        await talk.say("first")
        await gate.entered.wait()
        await talk.say("second")
        gate.open.set()
        await until(lambda: talk.room.texts() == ["One."])
        await talk.say("third")  # nothing runs, but the second still waits
        await idle()
        assert len(talk.asked()) == 2
        quiet.set()
        await talk.settled()
        assert talk.asked()[-1] == ["first", "second\n\nthird"]


async def test_messages_over_the_cap_are_dropped_and_reported(tmp_path: Path) -> None:
    gate = Gate()
    async with talking(
        tmp_path,
        [SLOW, "One.", "Rest."],
        tools=[gate.tool],
        messages=queue("collect", cap=2, drop="summarize"),
    ) as talk:
        await talk.say("first")
        await gate.entered.wait()
        for text in ("b", "c", "d"):
            await talk.say(text)
        gate.open.set()
        await talk.settled()
        last = talk.asked()[-1][-1]
        assert last.endswith("- b\n\nc\n\nd")
    gate = Gate()
    async with talking(
        tmp_path / "new",
        [SLOW, "One.", "Rest."],
        tools=[gate.tool],
        messages=queue("collect", cap=1, drop="new"),
    ) as talk:
        await talk.say("first")
        await gate.entered.wait()
        assert [(await talk.say(text)).how for text in ("b", "c")] == ["queued", "dropped"]
        gate.open.set()
        await talk.settled()
        assert talk.asked()[-1][-1] == "b"


async def test_nobody_steers_the_run_of_somebody_else(tmp_path: Path) -> None:
    """It would act with the rights of whoever began it."""
    gate = Gate()
    async with talking(
        tmp_path, [SLOW, "One.", "Two."], tools=[gate.tool], messages=queue("steer")
    ) as talk:
        await talk.say("first")
        await gate.entered.wait()
        taken = await talk.say("delete all", sender="eve", operator=False)
        assert taken.how == "queued"
        gate.open.set()
        await talk.settled()
        run = talk.runtime.find(taken.id)
        assert run is not None
        assert run.request.sender == "eve"
        assert talk.asked()[1] == ["first"]


async def test_nothing_overtakes_what_waits(tmp_path: Path) -> None:
    gate = Gate()
    async with talking(
        tmp_path, [SLOW, "One.", "Two.", "Three."], tools=[gate.tool], messages=queue("steer")
    ) as talk:
        await talk.say("first")
        await gate.entered.wait()
        await talk.say("second", sender="eve")
        assert (await talk.say("third")).how == "queued"
        gate.open.set()
        await talk.settled()
        assert talk.asked()[-1][-2:] == ["second", "third"]


async def test_a_message_is_not_taken_twice(tmp_path: Path) -> None:
    async with talking(tmp_path, ["One."]) as talk:
        first = await talk.say("hi", id="m1")
        again = await talk.say("hi", id="m1")
        await talk.settled()
        assert (first.how, again.how) == ("started", "repeated")
        assert len(talk.model.requests) == 1


async def test_a_message_that_could_not_be_taken_can_be_sent_again(tmp_path: Path) -> None:
    async with talking(tmp_path, ["One."]) as talk:
        with pytest.raises(ClawmodeError):
            await talk.say("hi", id="m1", session_key="no such:: key")
        assert (await talk.say("hi", id="m1")).how == "started"
        await talk.settled()


async def test_what_cannot_be_started_is_told_where_it_came_from(tmp_path: Path) -> None:
    async with talking(tmp_path, []) as talk:
        await talk.say("hi", agent_id="nobody")
        await talk.settled()
        (text,) = talk.room.texts()
        assert "there is no agent" in text


async def test_a_message_can_be_taken_back_wherever_it_is(tmp_path: Path) -> None:
    gate = Gate()
    async with talking(
        tmp_path, [SLOW, "One."], tools=[gate.tool], messages=queue("steer")
    ) as talk:
        first = await talk.say("first")
        await gate.entered.wait()
        steered = await talk.say("second")
        waits = await talk.say("third", sender="eve")
        assert (steered.how, waits.how) == ("steered", "queued")
        assert talk.inbox.cancel(waits.id)
        assert talk.inbox.cancel(steered.id)
        assert not talk.inbox.cancel(steered.id)
        assert talk.inbox.cancel(first.id)
        await talk.settled()
        assert not talk.inbox.cancel(first.id)
        assert [run.state for run in talk.runtime.runs()] == ["aborted"]


async def test_a_turn_that_others_began_is_waited_for(tmp_path: Path) -> None:
    gate = Gate()
    async with talking(
        tmp_path, [SLOW, "One.", "Two."], tools=[gate.tool], messages=queue("followup")
    ) as talk:
        key = "agent:main:room:bob"
        run = await talk.runtime.start(AgentRequest(message="by rpc", session_key=key))
        await gate.entered.wait()
        assert (await talk.say("mine")).how == "queued"
        gate.open.set()
        await talk.settled()
        assert run.result is not None
        assert talk.asked()[-1] == ["by rpc", "mine"]
        assert talk.room.texts() == ["Two."]


@pytest.mark.covers("AL-43")
async def test_hooks_see_messages_on_their_way(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    def watch(kind: str) -> Callable[[MessageEvent], None]:
        def hook(event: MessageEvent) -> None:
            seen.append((kind, event.text))

        return hook

    async with talking(tmp_path, ["Hello."]) as talk:
        for kind in ("message_received", "message_sending", "message_sent"):
            talk.hooks.on(kind, watch(kind))
        await talk.say("hi")
        await talk.settled()
    assert seen == [
        ("message_received", "hi"),
        ("message_sending", "Hello."),
        ("message_sent", "Hello."),
    ]


async def test_many_people_talk_at_once_and_each_is_answered(tmp_path: Path) -> None:
    people = 20
    async with talking(tmp_path, ["Yes."] * people, messages=queue("followup")) as talk:
        async with anyio.create_task_group() as tasks:
            for number in range(people):
                tasks.start_soon(lambda n=number: talk.say(f"{n}", target=f"t{n}", sender=f"s{n}"))
        await talk.settled()
        assert sorted(talk.room.said) == sorted((f"t{n}", "Yes.") for n in range(people))
        assert not talk.inbox._locks


def test_every_target_has_a_key_of_its_own() -> None:
    given = ["bob", "Bob", "b ob", "b:ob", "../x", "", "a" * 300, "::", "bob ", "#general", "ü"]
    keys = [conversation_key("main", channel, it) for channel in ("a", "A", "a:b") for it in given]
    assert len(set(keys)) == len(keys)
    assert keys[0] == "agent:main:a:bob"
    assert all(key.startswith("agent:main:") and len(key) <= 256 for key in keys)
