"""What a chat shows of runs, and what it makes of lines, without a terminal."""

import stat
from pathlib import Path

import pytest
from prompt_toolkit.utils import get_cwidth

from clawmode.agent.events import AgentEvent, Stream
from clawmode.messaging.outbox import split_text
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.chat import hint
from clawmode.terminal.chat_prompt import open_history
from clawmode.terminal.chat_screen import MAX_LINE, Lines, break_line, line_end
from clawmode.terminal.chat_view import MAX_PART, ChatView, LineWriter
from clawmode.types import JsonValue


class Seen:
    """A view, and what it has shown."""

    def __init__(self, width: int = 20) -> None:
        self.lines: list[str] = []
        self.view = ChatView(
            self.lines.append,
            lambda: width,
            self.lines.append,
            lambda: AgentView(None, live=False, summary=True),
        )

    def take(self, stream: Stream, run_id: str = "run", /, **data: JsonValue) -> None:
        self.view.add(AgentEvent(run_id=run_id, seq=1, stream=stream, data=data))


def spoken(*pieces: str, width: int = 20) -> list[str]:
    lines: list[str] = []
    words = LineWriter(lines.append, lambda: width)
    for piece in pieces:
        words.add(piece)
    words.end()
    return "\n".join(lines).split("\n") if lines else []


def test_words_are_shown_line_by_line_and_broken_between_words() -> None:
    assert spoken("One\nt", "wo\n\nthr", "ee") == ["One", "two", "", "three"]
    assert spoken("The quick brown fox jumps over it.") == ["The quick brown fox", "jumps over it."]
    assert spoken("\n\nAfter empty lines.") == ["After empty lines."]
    assert spoken("日本語 " * 5) == ["日本語 日本語", "日本語 日本語", "日本語 "]
    assert break_line("https://example.org/long for it", 10) == (
        ["https://example.org/long"],
        "for it",
    )


def test_code_and_long_words_stay_whole_and_nothing_waits_for_ever() -> None:
    code = "a line of code that is longer than the screen"
    assert spoken(f"```\n{code}\n```\n") == ["```", code, "```"]
    assert spoken("x" * 50, " y") == ["x" * 50, "y"]
    lines: list[str] = []
    LineWriter(lines.append, lambda: 20).add("x" * (MAX_PART + 1))
    assert lines == ["x" * (MAX_PART + 1)]


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (("NO_", "REPLY"), []),
        (("NO_", "REPLY", " for you"), ["NO_REPLY for you"]),
        (("NO",), ["NO"]),
        (("", ""), []),
    ],
)
def test_a_model_that_has_nothing_to_say_is_not_seen(
    pieces: tuple[str, ...], shown: list[str]
) -> None:
    assert spoken(*pieces) == shown


def test_a_reply_that_was_seen_as_it_came_is_not_shown_again() -> None:
    seen = Seen()
    for run_id in ("one", "two"):
        seen.take("lifecycle", run_id, phase="start")
        seen.take("assistant", run_id, delta=f"I am {run_id}.")
        seen.take("assistant", run_id, message=f"I am {run_id}.\n")
        seen.take("lifecycle", run_id, phase="end")
    assert seen.lines == ["I am one.", "I am two."]
    told = ["I am one.", "I am two.", "I am two.", "Something else."]
    assert [seen.view.is_new(text) for text in told] == [False, False, True, True]


def test_a_long_reply_goes_out_in_parts_and_none_of_them_is_shown_again() -> None:
    seen = Seen()
    long = "\n\n".join(f"{number} " + "words " * 300 for number in range(9))
    seen.take("lifecycle", phase="start")
    seen.take("assistant", message=long)
    parts = split_text(long.strip())
    assert len(parts) > 2
    assert not any(map(seen.view.is_new, parts))


@pytest.mark.covers("N-37")
def test_the_line_that_is_written_is_shown_before_it_is_full_and_ends_before_an_error() -> None:
    seen = Seen()
    seen.take("lifecycle", phase="start")
    seen.take("assistant", delta="A line.\nHalf a ")
    seen.take("assistant", delta="sent")
    assert (seen.lines, seen.view.part) == (["A line."], "Half a sent")
    seen.take("lifecycle", phase="error", status="error", error="HTTP 401: no such key")
    assert seen.lines[1:] == ["Half a sent", "error: HTTP 401: no such key"]
    assert seen.view.part == ""
    assert not seen.view.is_new("HTTP 401: no such key")  # the channel is sent it too


@pytest.mark.covers("N-37")
def test_a_line_ends_where_the_answer_to_stop_follows_and_a_stop_is_no_error() -> None:
    seen = Seen()
    seen.take("lifecycle", phase="start")
    seen.take("assistant", delta="Half a sent")
    seen.view.end_lines()
    assert (seen.lines, seen.view.part) == (["Half a sent"], "")
    seen.take("lifecycle", phase="error", status="aborted", error="The run was stopped.")
    assert seen.lines == ["Half a sent"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("short", "short"),
        ("0123456789", "0123456789"),
        ("a\tb", "a       b"),
        ("0123456789a", "…23456789a"),
        ("\x1b[2J" * 9, "…[2J\\u001b[2J"[-10:]),
        ("日本語日本語", "…本語"),
    ],
)
def test_of_a_line_that_is_too_long_the_end_is_shown(text: str, shown: str) -> None:
    line = line_end(text, 10)
    assert line == shown or (line.startswith("…") and line.endswith(shown[1:]))
    assert get_cwidth(line) <= 10


def test_what_goes_on_is_told_and_harmless() -> None:
    seen = Seen(width=80)
    told: list[str] = []

    def then(stream: Stream, **data: JsonValue) -> None:
        seen.take(stream, **data)
        told.append(seen.view.step)

    then("lifecycle", phase="start")
    then("thinking", delta="Hm.")
    then("assistant", delta="so \x1b[2J")
    assert seen.view.part == "so \\u001b[2J"
    then("assistant", call="ex\x1bec")
    for number in range(5):
        then("tool", phase="start", callId=str(number), name=f"t\x07{number}")
    then("tool", phase="end", callId="0", name="t", isError=False, ms=1)
    then("compaction", phase="start")
    then("lifecycle", phase="end")
    assert told == [
        "waiting for the model",
        "the model thinks",
        "the model writes",
        "the model writes a call of ex\\u001bec",
        "t\\u00070",
        "t\\u00070, t\\u00071",
        "t\\u00070, t\\u00071, t\\u00072",
        "t\\u00071, t\\u00072, t\\u00073 and 1 more",
        "t\\u00072, t\\u00073, t\\u00074 and 2 more",
        "t\\u00072, t\\u00073, t\\u00074 and 1 more",
        "summarizing the conversation",
        "",
    ]


def test_a_word_that_looks_like_a_command_gets_a_hint_and_a_path_does_not(tmp_path: Path) -> None:
    assert hint("/stat").endswith("did you mean /status?")
    assert hint("/Qeue now").endswith("did you mean /queue?")
    assert hint("/zzzzzz").endswith("/help lists them.")
    for text in ("/status", "/exit", "/etc/hosts ?", "/", "//", "/tmp is full", "hello /stat"):
        assert hint(text) == ""


def test_a_stream_shows_whole_lines() -> None:
    lines: list[str] = []
    stream = Lines(lines.append, 2)
    assert stream.write("a") == 1
    stream.write("b\nc\n\nd")
    assert lines == ["ab\nc\n"]
    stream.write("x" * MAX_LINE)
    assert lines[1:] == ["d" + "x" * MAX_LINE]
    assert (stream.fileno(), stream.isatty()) == (2, False)


def test_the_history_is_for_nobody_else_and_no_link_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history"
    path.parent.mkdir()
    path.touch(0o644)
    open_history(path).append_string("typed")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [*open_history(path).load_history_strings()] == ["typed"]
    link = tmp_path / "link"
    link.symlink_to(path)
    history = open_history(link)
    history.append_string("elsewhere")
    assert "elsewhere" not in path.read_text("utf-8")
    assert history.get_strings() == ["elsewhere"]
