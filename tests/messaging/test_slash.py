"""Slash commands: what each does, who may give it, what operators' scripts see of it."""

from pathlib import Path

import pytest
from tests.support.chat_driver import talking
from tests.support.waiting import Gate, until

from clawmode.agent.operator_hooks import OperatorHooks
from clawmode.config.operations import InternalHook, InternalHooks
from clawmode.testing import Turn, call
from clawmode.tools.approvals import Approvals

pytestmark = pytest.mark.anyio

KEY = "agent:main:room:bob"


async def test_new_and_reset_begin_a_conversation_and_keep_the_old_one(tmp_path: Path) -> None:
    async with talking(tmp_path, ["One.", "Two.", "Three."]) as talk:
        await talk.say("first")
        await talk.settled()
        before = await talk.runtime.sessions.get(KEY)
        await talk.say("/new")
        await talk.say("second")
        await talk.settled()
        await talk.say("/RESET third")
        await talk.settled()
        after = await talk.runtime.sessions.get(KEY)
        assert talk.asked() == [["first"], ["second"], ["third"]]
        assert talk.room.texts()[1].startswith("Started a new conversation")
        assert "The conversation was reset." in talk.room.texts()
        assert after.id != before.id
        assert before.transcript.exists()


async def test_new_stops_what_runs_and_drops_what_waits(tmp_path: Path) -> None:
    gate = Gate()
    async with talking(
        tmp_path,
        [Turn(call("slow", id="c1")), "Fresh."],
        tools=[gate.tool],
        messages={"queue": {"mode": "followup"}},
    ) as talk:
        first = await talk.say("first")
        await gate.entered.wait()
        await talk.say("second")
        await talk.say("/new hello")
        await talk.settled()
        run = talk.runtime.find(first.id)
        assert run is not None
        assert run.state == "aborted"
        assert talk.asked() == [["first"], ["hello"]]


async def test_stop_stops(tmp_path: Path) -> None:
    gate = Gate()
    async with talking(tmp_path, [Turn(call("slow", id="c1"))], tools=[gate.tool]) as talk:
        await talk.say("/stop")
        await talk.say("first")
        await gate.entered.wait()
        await talk.say("steers")
        await talk.say("waits", sender="eve")
        await talk.say("/stop")
        await talk.settled()
        assert talk.room.texts() == ["Nothing runs.", "Stopped. 1 waiting message was dropped."]
        assert len(talk.model.requests) == 1


async def test_compact_sums_up_and_says_what_it_did(tmp_path: Path) -> None:
    script = ["One " * 400, "Two " * 400, "They spoke.", "Three."]
    compaction = {"keepRecentTokens": 10}
    agents = {"defaults": {"model": "scripted/a", "compaction": compaction}}
    async with talking(tmp_path, script, agents=agents) as talk:
        await talk.say("/compact")
        await until(lambda: talk.room.texts() == ["There is nothing to compact."])
        for text in ("first", "second"):
            await talk.say(text)
            await talk.settled()
        await talk.say("/compact keep the names")
        await until(lambda: "Summarized" in talk.room.texts()[-1])
        assert "keep the names" in talk.model.requests[2].system
        await talk.say("third")
        await talk.settled()
        assert "They spoke." in str(talk.model.requests[3].messages[0].content)


async def test_status_tells_what_runs(tmp_path: Path) -> None:
    gate = Gate()
    async with talking(tmp_path, [Turn(call("slow", id="c1")), "x"], tools=[gate.tool]) as talk:
        await talk.say("first")
        await gate.entered.wait()
        await talk.say("waits", sender="eve")
        await talk.say("/status")
        text = talk.room.texts()[0]
        assert f"session {KEY}" in text
        assert "model scripted/scripted, thinking off" in text
        assert "runs 1, waiting messages 1" in text
        assert "queue steer, debounce 0.5s, cap 20, drop summarize" in text
        await talk.say("/stop")


async def test_the_queue_of_a_session_can_be_set_and_unset(tmp_path: Path) -> None:
    gate = Gate()
    async with talking(
        tmp_path, [Turn(call("slow", id="c1")), "One.", "Two."], tools=[gate.tool]
    ) as talk:
        await talk.say("/queue followup debounce:0 cap:3")
        await talk.say("/queue drop:old")
        await talk.say("first")
        await gate.entered.wait()
        assert (await talk.say("second")).how == "queued"
        gate.open.set()
        await talk.settled()
        await talk.say("/queue nonsense")
        await talk.say("/queue default")
        await talk.say("/queue")
        said = talk.room.texts()
        assert said[0] == "queue followup, debounce 0s, cap 3, drop summarize"
        assert said[1] == "queue followup, debounce 0s, cap 3, drop old"
        assert "is not one of steer, followup" in said[4]
        assert said[5] == said[6] == "queue steer, debounce 0.5s, cap 20, drop summarize"


async def test_the_model_of_a_session_can_be_set_and_unset(tmp_path: Path) -> None:
    async def chosen() -> str:
        return (await talk.runtime.sessions.get(KEY)).model

    async with talking(tmp_path, ["One."]) as talk:
        await talk.say("/model")
        await talk.say("/model scripted/b")
        assert await chosen() == "scripted/b"
        await talk.say("/model no/such")
        assert await chosen() == "scripted/b"
        await talk.say("/model default")
        assert await chosen() == ""
        shown, _, refused, _ = talk.room.texts()
        assert shown == "scripted/scripted"
        assert refused.startswith("/model: ")


async def test_approve_decides_what_may_run(tmp_path: Path) -> None:
    approvals = Approvals(ask_for=["slow"])
    gate = Gate()
    gate.open.set()
    script = [Turn(call("slow", id="c1")), "Done."]
    async with talking(tmp_path, script, tools=[gate.tool], approvals=approvals) as talk:
        await talk.say("/approve")
        await talk.say("first")
        await until(approvals.pending)
        (question,) = approvals.pending()
        await talk.say("/approve")
        await talk.say(f"/approve {question.id} maybe")
        await talk.say("/approve ap_nothing deny")
        await talk.say("/status")
        await talk.say(f"/approve {question.id} allow-once")
        await talk.settled()
        said = talk.room.texts()
        assert said[0] == "No question is open."
        assert said[1].startswith(f"{question.id}  Approval needed")
        assert "openclaw:core:slow with {}" in said[1]
        assert said[2] == "/approve <id> allow-once|allow-always|deny"
        assert said[3] == "No question 'ap_nothing' is open."
        assert f"/approve {question.id}" in said[4]
        assert said[5:] == [f"{question.id}: allow-once.", "Done."]


@pytest.mark.parametrize(
    "text", ["/approve ap_1 allow-always", "/model scripted/b", "/queue collect"]
)
async def test_not_everyone_may_give_every_command(tmp_path: Path, text: str) -> None:
    async with talking(tmp_path, []) as talk:
        await talk.say(text, operator=False)
        assert talk.room.texts() == [f"{text.split()[0]} is for operators."]
        session = await talk.runtime.sessions.get(KEY)
        assert (session.model, session.data) == ("", {})


@pytest.mark.parametrize("text", ["/etc/hosts is broken", "/unknown", "/ new", "//new", "news"])
async def test_what_is_no_command_is_for_the_model(tmp_path: Path, text: str) -> None:
    async with talking(tmp_path, ["Yes."]) as talk:
        assert (await talk.say(text)).how == "started"
        await talk.settled()
        assert talk.asked() == [[text]]


async def test_help_names_them_all(tmp_path: Path) -> None:
    async with talking(tmp_path, []) as talk:
        await talk.say("/help")
        (text,) = talk.room.texts()
        wanted = "/new /reset /stop /compact /status /queue /model /approve /help".split()
        assert [line.split()[0] for line in text.splitlines()] == wanted


@pytest.mark.covers("AL-32")
async def test_scripts_of_the_operator_see_commands(tmp_path: Path) -> None:
    script = tmp_path / "told.py"
    script.write_text(
        "def handle(event):\n    return {'messages': [event['event'] + ' by ' + event['sender']]}\n"
    )
    entry = InternalHook(events=("command",), file=str(script))
    operator = OperatorHooks(InternalHooks(entries={"told": entry}), tmp_path)
    async with talking(tmp_path, [], operator=operator) as talk:
        for text in ("/new", "/reset", "/stop"):
            await talk.say(text)
        heads = [text.splitlines()[0] for text in talk.room.texts()]
        assert heads == [f"command:{name} by bob" for name in ("new", "reset", "stop")]
