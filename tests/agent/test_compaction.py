"""Shortening a conversation: where it is cut, what is summed up, what a model is told then."""

from typing import Any

import pytest

from clawmode.agent.compaction import estimate, plan, summarize, transcript_of
from clawmode.messages import (
    AssistantMessage,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from clawmode.models.base import ModelError
from clawmode.sessions.entries import Entry
from clawmode.sessions.history import SUMMARIZED, History
from clawmode.testing import ScriptedModel, Turn

pytestmark = pytest.mark.anyio

WORDS = "x" * 400  # a hundred tokens


def history(*messages: Message | dict[str, Any]) -> History:
    made = History()
    for number, message in enumerate(messages):
        entry = Entry(type="compaction", id=f"e{number}", run_id="r", at=0.0, data={})
        if isinstance(message, dict):
            made.add(Entry(type="compaction", id=f"e{number}", run_id="r", at=0.0, data=message))
        else:
            made.add(Entry(type="message", id=entry.id, run_id="r", at=0.0, message=message))
    return made


def said(text: str = WORDS) -> UserMessage:
    return UserMessage.of(text)


def spoke(*calls: str) -> AssistantMessage:
    return AssistantMessage(content=(Text(WORDS), *(ToolCall(it, "read", {}) for it in calls)))


def result(call_id: str) -> ToolMessage:
    return ToolMessage(call_id=call_id, name="read", content=(Text(WORDS),))


def test_a_conversation_is_cut_between_messages_and_never_before_a_result() -> None:
    past = history(said(), spoke("a", "b"), result("a"), result("b"), said(), spoke())
    found = plan(past, 330)
    assert found is not None
    assert found.first_kept == "e4"
    assert [type(it).__name__ for it in found.messages] == [
        *("UserMessage", "AssistantMessage", "ToolMessage", "ToolMessage")
    ]
    wider = plan(past, 10_000)
    assert wider is None  # all of it may stay


def test_one_long_turn_is_cut_inside() -> None:
    past = history(said(), spoke("a"), result("a"), spoke("b"), result("b"))
    found = plan(past, 10)
    assert found is not None
    assert (found.first_kept, len(found.messages)) == ("e3", 3)


def test_what_was_summed_up_is_summed_up_with_the_rest() -> None:
    before: dict[str, Any] = {"summary": "earlier things", "firstKept": "e1"}
    past = history(said("old"), said("kept"), before, said(), spoke(), said(), spoke())
    found = plan(past, 250)
    assert found is not None
    assert found.first_kept == "e5"
    first = found.messages[0]
    assert isinstance(first, UserMessage)
    assert first.content == (Text(f"{SUMMARIZED}earlier things"),)
    assert "old" not in transcript_of(found.messages)
    assert "kept" in transcript_of(found.messages)


def test_a_summary_alone_is_left_alone() -> None:
    before: dict[str, Any] = {"summary": "all", "firstKept": None}
    assert plan(history(said("old"), before, said()), 10) is None
    assert plan(history(), 10) is None


def test_after_a_compaction_a_model_gets_the_summary_and_the_rest() -> None:
    past = history(said("old"), spoke("a"), result("a"), said("new"), spoke())
    found = plan(past, 220)
    assert found is not None
    data: dict[str, Any] = {"summary": "short", "firstKept": found.first_kept}
    past.add(Entry(type="compaction", id="c", run_id="r", at=0.0, data=data))
    told = past.messages()
    assert [type(it).__name__ for it in told] == ["UserMessage", "UserMessage", "AssistantMessage"]


def test_tokens_are_estimated_from_words_calls_and_pictures() -> None:
    picture = UserMessage(content=(Text("x" * 400), Image("A" * 99, "image/png")))
    assert 1_700 < estimate([picture]) < 1_720
    assert estimate([], "x" * 4_000) == 1_000
    assert estimate([spoke("a")]) > 100


def test_whoever_sums_up_sees_no_thoughts_and_no_endless_parts() -> None:
    thought = AssistantMessage(content=(Thinking("secret thoughts"), Text("y" * 9_000)))
    text = transcript_of([said("hello"), thought, spoke("a"), result("a")])
    assert "secret thoughts" not in text
    assert len(text) < 6_000
    assert "Agent calls read: {}" in text


async def test_the_summary_is_a_models_and_must_say_something() -> None:
    model = ScriptedModel([Turn("In short."), Turn("  "), Turn(error="server")])
    assert await summarize(model, [said("hello")]) == "In short."
    assert model.requests[0].tools == ()
    assert model.requests[0].exact_tools is None
    for _ in range(2):
        with pytest.raises(ModelError):
            await summarize(model, [said("hello")])
