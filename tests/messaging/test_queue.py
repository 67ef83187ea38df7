"""Messages that wait: settings, caps, what goes and what goes together."""

from typing import Any

import pytest

from clawmode.config.operations import Queue
from clawmode.messages import Image
from clawmode.messaging.channel import InboundMessage
from clawmode.messaging.queue import (
    Line,
    QueuedMessage,
    QueueSettings,
    parse_override,
    settings_for,
)


def queued(name: str, **more: Any) -> QueuedMessage:
    settings: dict[str, Any] = {
        key: more.pop(key) for key in ("mode", "cap", "drop") if key in more
    }
    given: dict[str, Any] = {"channel": "room", "target": "bob", "sender": "bob"} | more
    return QueuedMessage(
        name, InboundMessage(text=f"text {name}", **given), QueueSettings(**settings)
    )


def names(line: Line) -> list[str]:
    return [each.id for each in line.waiting]


def test_a_session_goes_before_its_channel_and_that_before_all() -> None:
    configured = Queue(
        mode="collect",
        by_channel={"mail": "followup"},
        debounce_ms=700,
        debounce_ms_by_channel={"mail": 50},
    )
    assert settings_for(configured, "other") == QueueSettings(mode="collect", debounce_seconds=0.7)
    mail = settings_for(configured, "mail")
    assert (mail.mode, mail.debounce_seconds) == ("followup", 0.05)
    own = settings_for(configured, "mail", {"mode": "interrupt", "cap": 3, "debounceSeconds": 2})
    assert own == QueueSettings(mode="interrupt", cap=3, debounce_seconds=2)


@pytest.mark.parametrize(
    "override",
    [
        *(None, "steer", 5, [], {"mode": "nonsense"}, {"mode": ["steer"]}, {"cap": 0}),
        *({"cap": True}, {"cap": "9"}, {"drop": 1}, {"debounceSeconds": -1}),
        *({"debounceSeconds": True}, {"debounceSeconds": 1e9}, {"debounceSeconds": "1"}),
    ],
)
def test_an_override_that_cannot_be_meant_has_no_effect(override: Any) -> None:
    assert settings_for(Queue(), "room", override) == QueueSettings()


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("collect", {"mode": "collect"}),
        (
            "Collect debounce:0.5s cap:25 drop:summarize",
            {"mode": "collect", "debounceSeconds": 0.5, "cap": 25, "drop": "summarize"},
        ),
        ("debounce:250ms", {"debounceSeconds": 0.25}),
        ("debounce:500", {"debounceSeconds": 0.5}),
        ("debounce:1m", {"debounceSeconds": 60}),
        ("default", None),
        ("reset", None),
    ],
)
def test_people_say_what_becomes_of_their_messages(text: str, means: Any) -> None:
    assert parse_override(text) == means


@pytest.mark.parametrize(
    "text",
    [
        *("cap", "cap:0", "cap:1001", "cap:x", "cap:-1", "cap:٣", "drop:all", "debounce:2m"),
        *("debounce:-1s", "debounce:s", "whatever", "default collect", "mode:steer", ":"),
    ],
)
def test_what_cannot_be_meant_is_named_with_what_can(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not one of steer, followup, collect, interrupt"):
        parse_override(text)


@pytest.mark.parametrize(
    ("drop", "left", "gone"), [("old", "bc", "a"), ("new", "ab", "c"), ("summarize", "bc", "a")]
)
def test_over_the_cap_one_goes(drop: str, left: str, gone: str) -> None:
    line = Line()
    went = [line.add(queued(name, cap=2, drop=drop)) for name in "abc"]
    assert names(line) == list(left)
    assert [each.id for each in went[-1]] == [gone]
    batch = line.next()
    assert batch is not None
    assert batch.dropped == (("text a",) if drop == "summarize" else ())


def test_what_was_summarized_is_told_once_and_in_short() -> None:
    line = Line()
    for number in range(60):
        line.add(queued(f"{number} {'x' * 500}", cap=1))
    batch = line.next()
    assert batch is not None
    assert len(batch.dropped) == 20
    assert max(map(len, batch.dropped)) <= 141
    line.add(queued("z"))
    after = line.next()
    assert after is not None
    assert after.text == "text z"


def test_followups_are_turns_of_their_own_and_collected_ones_are_one() -> None:
    line = Line()
    for name in "ab":
        line.add(queued(name, mode="followup"))
    first = line.next()
    assert first is not None
    assert (first.text, first.id, names(line)) == ("text a", "a", ["b"])
    line = Line()
    for name in "abc":
        line.add(queued(name, mode="collect"))
    both = line.next()
    assert both is not None
    assert (both.text, both.id, names(line)) == ("text a\n\ntext b\n\ntext c", "c", [])
    assert line.next() is None


def test_only_what_one_person_says_at_one_place_is_one_turn() -> None:
    line = Line()
    others = [
        queued("b", mode="collect", sender="eve"),
        queued("c", mode="collect", target="other"),
        queued("d", mode="collect", channel="mail"),
        queued("e", mode="collect", operator=True),
    ]
    for each in (queued("a", mode="collect"), *others, queued("f", mode="collect")):
        line.add(each)
    batch = line.next()
    assert batch is not None
    assert batch.text == "text a\n\ntext f"
    assert names(line) == ["b", "c", "d", "e"]


def test_pictures_go_with_their_messages() -> None:
    line = Line()
    picture = Image("aGk=", "image/png")
    line.add(queued("a", mode="collect", images=(picture,)))
    line.add(queued("b", mode="collect", images=(picture,)))
    batch = line.next()
    assert batch is not None
    assert batch.images == (picture, picture)


def test_messages_are_taken_back_and_put_back() -> None:
    line = Line()
    line.add(queued("b"))
    line.put_back([queued("x"), queued("y")])
    assert names(line) == ["x", "y", "b"]
    assert line.remove("y")
    assert not line.remove("y")
    assert line.clear() == 2
    assert line.next() is None
