"""What goes out at the end of a run."""

from typing import Any

import pytest

from clawmode.agent.replies import SentMessages, shape
from clawmode.config.agents import AgentOptions
from clawmode.messages import AssistantMessage, Text, Thinking, ToolMessage, UserMessage


def spoke(text: str, thoughts: str = "") -> AssistantMessage:
    parts: list[Any] = [Thinking(thoughts)] if thoughts else []
    return AssistantMessage(content=(*parts, Text(text)))


def result(text: str, *, failed: bool = False) -> ToolMessage:
    return ToolMessage(call_id="1", name="read", content=(Text(text),), is_error=failed)


ASKED = UserMessage.of("go")


@pytest.mark.covers("AL-54")
def test_payloads_are_words_and_where_wanted_thoughts_and_calls() -> None:
    messages = [ASKED, spoke("Let me see.", "hm"), result("a\nb"), spoke("It is 3.")]
    assert shape(messages) == ({"text": "Let me see."}, {"text": "It is 3."})
    assert shape(messages, how=AgentOptions(verbose="on", reasoning="on")) == (
        {"kind": "reasoning", "text": "hm"},
        {"text": "Let me see."},
        {"kind": "tool", "text": "read: a b"},
        {"text": "It is 3."},
    )
    assert shape([ASKED], error="no model") == ({"text": "no model", "isError": True},)


@pytest.mark.covers("AL-55")
@pytest.mark.parametrize(
    ("text", "count"), [("NO_REPLY", 0), (" no_reply\n", 0), ("No_Reply", 1), ("NO_REPLY.", 1)]
)
def test_the_exact_silent_word_is_not_sent(text: str, count: int) -> None:
    assert len(shape([ASKED, spoke(text)])) == count


@pytest.mark.covers("AL-53", "AL-56")
def test_what_a_messaging_tool_sent_is_not_said_again() -> None:
    sent = SentMessages()
    sent.add("The  report is done.")
    messages = [ASKED, result("ok"), spoke("The report is done."), spoke("Anything else?")]
    assert shape(messages, sent=sent) == ({"text": "Anything else?"},)


@pytest.mark.covers("AL-57")
def test_a_tools_error_is_sent_only_if_nothing_else_was() -> None:
    failed = result("no such file", failed=True)
    told = ({"text": "read failed: no such file", "isError": True},)
    assert shape([ASKED, failed, spoke("")]) == told
    assert shape([ASKED, failed, spoke("I could not.")]) == ({"text": "I could not."},)
    assert shape([ASKED, failed, spoke("NO_REPLY")]) == ()
    sent = SentMessages()
    sent.add("Sorry!")
    assert shape([ASKED, failed, spoke("")], sent=sent) == ()
    assert shape([ASKED, failed], how=AgentOptions(verbose="on"))[-1] == told[0]
