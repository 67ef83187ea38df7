"""The outbox: hooks, order, long texts, and channels that fail."""

from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from clawmode.agent.hooks import AgentHooks, MessageEvent, SendDecision
from clawmode.messaging.channel import ChannelError
from clawmode.messaging.outbox import MAX_CHARS, Outbox, Receipt, split_text
from clawmode.tools.hooks import Hooks

pytestmark = pytest.mark.anyio


class Recorded:
    """A channel that remembers, or fails."""

    def __init__(self, name: str = "hook", *, can_edit: bool = True) -> None:
        self.name = name
        self.can_edit = can_edit
        self.block_streaming = False
        self.said: list[tuple[str, ...]] = []
        self.errors: list[Exception | None] = []

    async def send(self, target: str, text: str) -> str:
        await self._fail()
        self.said.append((target, text))
        return f"id{len(self.said)}"

    async def edit(self, target: str, message_id: str, text: str) -> None:
        await self._fail()
        self.said.append((target, message_id, text))

    async def _fail(self) -> None:
        await checkpoint()
        if self.errors and (error := self.errors.pop(0)):
            raise error


class Bench:
    """An outbox with one channel, and hooks that remember."""

    def __init__(self, *answers: Any) -> None:
        self.hooks = Hooks()
        self.channel = Recorded()
        self.seen: list[tuple[str, MessageEvent]] = []
        for number, answer in enumerate(answers):
            self.hooks.on("message_sending", self._hook(answer), priority=-number)
        self.hooks.on("message_sent", lambda event: self.seen.append(("sent", event)))
        self.outbox = Outbox({"hook": self.channel}, AgentHooks(self.hooks))

    def _hook(self, answer: Any) -> Any:
        def hook(event: MessageEvent) -> Any:
            self.seen.append(("sending", event))
            if isinstance(answer, Exception):
                raise answer
            return answer

        return hook

    async def send(self, text: str = "hi", **more: Any) -> Receipt:
        with anyio.fail_after(10):
            return await self.outbox.send("hook", "room", text, **more)

    @property
    def told(self) -> list[tuple[str, str, str | None]]:
        return [(when, event.text, event.error) for when, event in self.seen]


# ---- Hooks ----


@pytest.mark.covers("AL-43")
async def test_hooks_run_before_and_after_a_message_is_sent() -> None:
    bench = Bench(None)
    receipt = await bench.send(session_key="agent:main:main", sender="main")
    assert receipt == Receipt(status="sent", message_ids=("id1",), text="hi")
    assert receipt.message_id == "id1"
    event = MessageEvent(
        text="hi", channel="hook", target="room", sender="main", session_key="agent:main:main"
    )
    assert bench.seen == [("sending", event), ("sent", event)]
    assert bench.channel.said == [("room", "hi")]


@pytest.mark.covers("AL-43")
async def test_hooks_may_rewrite_a_message_one_after_the_other() -> None:
    bench = Bench({"text": "hello"}, SendDecision(text="hello!"))
    assert (await bench.send()).text == "hello!"
    assert bench.told == [
        ("sending", "hi", None),
        ("sending", "hello", None),
        ("sent", "hello!", None),
    ]


@pytest.mark.covers("AL-48")
async def test_a_cancel_is_final_and_its_negation_lifts_nothing() -> None:
    bench = Bench({"cancel": False}, {"cancel": True}, {"cancel": False, "text": "anyway"})
    receipt = await bench.send()
    assert receipt == Receipt(status="cancelled")
    assert receipt.message_id == ""
    assert bench.told == [("sending", "hi", None), ("sending", "hi", None)]
    assert bench.channel.said == []


@pytest.mark.parametrize("answer", [OSError("no"), {"cancel": "yes"}, 7])
async def test_a_hook_that_breaks_down_has_not_let_it_pass(answer: Any) -> None:
    bench = Bench(answer)
    assert (await bench.send()).status == "cancelled"
    assert bench.channel.said == []


@pytest.mark.parametrize("text", ["", " \n"])
async def test_where_nothing_is_left_to_be_said_nothing_is_sent(text: str) -> None:
    bench = Bench({"text": text})
    assert (await bench.send()).status == "cancelled"
    assert bench.channel.said == []


# ---- Failures ----


@pytest.mark.covers("AL-43")
async def test_a_failure_is_reported_to_watchers() -> None:
    bench = Bench()
    bench.channel.errors = [ChannelError("nobody there")]
    assert await bench.send() == Receipt(status="failed", text="hi", error="nobody there")
    assert bench.told == [("sent", "hi", "nobody there")]


async def test_a_channel_with_a_bug_fails_its_message_alone() -> None:
    bench = Bench()
    bench.channel.errors = [ZeroDivisionError("secret")]
    receipt = await bench.send()
    assert (receipt.status, receipt.error) == ("failed", "the channel failed: ZeroDivisionError")
    assert (await bench.send()).status == "sent"


async def test_after_a_part_that_failed_no_other_is_sent() -> None:
    bench = Bench()
    bench.channel.errors = [None, ChannelError("gone")]
    receipt = await bench.send("one two three", limit=5)
    assert receipt == Receipt(
        status="failed",
        message_ids=("id1",),
        text="one two three",
        error="gone (1 of 3 parts were sent)",
    )
    assert bench.channel.said == [("room", "one")]


async def test_an_unknown_channel_is_an_error_that_names_the_known() -> None:
    bench = Bench(None)
    with pytest.raises(ChannelError, match="'hok'; the configuration has: hook"):
        await bench.outbox.send("hok", "room", "hi")
    with pytest.raises(ChannelError, match="configuration has: none"):
        await Outbox({}, AgentHooks()).send("hook", "room", "hi", edited="m")
    assert bench.seen == []


# ---- Changing messages ----


async def test_a_message_is_changed_past_the_same_hooks() -> None:
    bench = Bench({"text": "better"})
    receipt = await bench.outbox.send(
        "hook", "room", "good", session_key="s", sender="main", edited="m7"
    )
    assert receipt == Receipt(status="sent", message_ids=("m7",), text="better")
    assert bench.channel.said == [("room", "m7", "better")]
    assert bench.told == [("sending", "good", None), ("sent", "better", None)]


async def test_what_is_too_long_for_a_changed_message_is_sent_after_it() -> None:
    bench = Bench()
    receipt = await bench.outbox.send("hook", "room", "one two", limit=4, edited="m7")
    assert receipt.message_ids == ("m7", "id2")
    assert bench.channel.said == [("room", "m7", "one"), ("room", "two")]


@pytest.mark.covers("AL-48")
async def test_a_change_can_be_cancelled() -> None:
    bench = Bench({"cancel": True}, {"cancel": False})
    assert (await bench.outbox.send("hook", "room", "x", edited="m")).status == "cancelled"
    assert bench.channel.said == []


async def test_a_channel_that_cannot_change_messages_is_an_error() -> None:
    outbox = Outbox({"hook": Recorded(can_edit=False)}, AgentHooks())
    with pytest.raises(ChannelError, match="cannot change"):
        await outbox.send("hook", "room", "x", edited="m")


# ---- Order ----


async def test_messages_to_one_target_stay_in_order_though_a_hook_is_slow() -> None:
    bench = Bench()
    gate = anyio.Event()

    async def slow(event: MessageEvent) -> None:
        if event.text == "0":
            await gate.wait()

    bench.hooks.on("message_sending", slow)
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(bench.send, str(number))
            await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(10):
            other = await bench.outbox.send("hook", "elsewhere", "not held up")
        assert other.status == "sent"
        gate.set()
    assert bench.channel.said == [("elsewhere", "not held up")] + [
        ("room", str(number)) for number in range(5)
    ]
    assert bench.outbox._turns == {}


async def test_parts_of_two_messages_do_not_mix() -> None:
    bench = Bench()
    async with anyio.create_task_group() as tasks:
        for text in ("a a a", "b b b"):
            tasks.start_soon(lambda text=text: bench.send(text, limit=2))
    assert [text for _, text in bench.channel.said] == ["a", "a", "a", "b", "b", "b"]


async def test_who_gives_up_while_waiting_holds_up_nobody() -> None:
    bench = Bench()
    gate = anyio.Event()

    async def wait(event: MessageEvent) -> None:
        await gate.wait()

    remove = bench.hooks.on("message_sending", wait)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(bench.send)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    remove()
    assert bench.outbox._turns == {}
    assert (await bench.send()).status == "sent"


async def test_a_hook_that_sends_to_the_same_target_does_not_lock_itself_out() -> None:
    bench = Bench()

    async def once_more(event: MessageEvent) -> None:
        if event.text == "hi":
            await bench.outbox.send("hook", "room", "and more")

    bench.hooks.on("message_sent", once_more, name="after")
    assert (await bench.send()).status == "sent"
    assert bench.channel.said == [("room", "hi"), ("room", "and more")]
    bench.hooks.on("message_sending", once_more, name="before")  # fails: it would wait for itself
    with anyio.fail_after(5):
        assert (await bench.send()).status == "cancelled"


# ---- Long texts ----


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        ("short", 10, ["short"]),
        ("exactly 10", 10, ["exactly 10"]),
        ("one two three", 8, ["one two", "three"]),
        ("one\ntwo three", 10, ["one\ntwo", "three"]),
        ("a line\nanother", 10, ["a line", "another"]),
        ("a para\n\nb c\nd", 10, ["a para", "b c\nd"]),
        ("x" * 25, 10, ["x" * 10, "x" * 10, "x" * 5]),
        ("a " + "x" * 12, 10, ["a", "x" * 10, "xx"]),
        ("code:\n    a\n    b", 10, ["code:", "    a", "    b"]),
        ("\n\n a \n\n", 3, [" a"]),
        (" \n ", 1, []),
        ("ab", 1, ["a", "b"]),
    ],
)
def test_long_texts_are_cut_where_it_hurts_least(text: str, limit: int, parts: list[str]) -> None:
    assert split_text(text, limit) == parts


@given(st.text(alphabet="ab \n\u00fc\U0001f600", max_size=300), st.integers(1, 40))
def test_nothing_is_lost_by_cutting(text: str, limit: int) -> None:
    parts = split_text(text, limit)
    assert all(0 < len(part) <= limit for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


async def test_a_long_message_is_sent_in_parts_and_announced_once() -> None:
    bench = Bench(None)
    text = "\n\n".join(["word " * 200] * 20)
    receipt = await bench.send(text)
    assert len(receipt.message_ids) == len(bench.channel.said) == 7
    assert all(len(part) <= MAX_CHARS for _, part in bench.channel.said)
    assert bench.told == [("sending", text, None), ("sent", text, None)]
