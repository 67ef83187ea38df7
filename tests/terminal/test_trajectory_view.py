"""The tree for people: calls below runs, nested calls below calls, and nothing that does harm."""

import re
from pathlib import Path

import pytest
from tests.support.trajectory_sessions import (
    SESSION,
    START,
    Told,
    program,
    sidecar_file,
    trace,
    two_programs,
)

from clawmode.messages import Image, ToolCall
from clawmode.redaction import Redactor
from clawmode.sessions.trajectory import read_sidecar
from clawmode.terminal import trajectory_view as module
from clawmode.terminal.trajectory_view import fit, render, tree_lines
from clawmode.text import escape

WIDE = 500


@pytest.mark.covers("TR-1", "TR-4")
def test_nested_calls_are_drawn_below_the_call_that_made_them(tmp_path: Path) -> None:
    told = two_programs().start("r2").user("And now?", "r2").model("", program("y"), run="r2")
    told.nested("y", "d", "started", "r2")
    assert render(told.history(tmp_path), width=WIDE) == [
        "✓ run r1  ok  12.0 s  scripted/a",
        "├─ > user: Do both.",
        "├─ • model: Sure.",
        "├─ ✓ exec  8.0 s  return 1",
        "│  ├─ ✓ openclaw:core:a  2.5 s",
        "│  └─ ✓ openclaw:core:c  3 ms",
        "├─ ✗ exec  7.0 s  return 1",
        "│  └─ ✗ openclaw:core:b  7 ms  denied",
        "└─ • model: Both are done.",
        "… run r2  unfinished  scripted/a",
        "├─ > user: And now?",
        "└─ … exec  not answered  return 1",
        "   └─ … openclaw:core:d  not ended",
    ]


def test_one_run_can_be_drawn_alone_and_one_that_is_not_there_is_nothing(tmp_path: Path) -> None:
    history = two_programs().start("r2").user("hi", "r2").history(tmp_path)
    assert render(history, width=WIDE, run_id="r2") == [
        "… run r2  unfinished  scripted/a",
        "└─ > user: hi",
    ]
    assert render(history, width=WIDE, run_id="r3") == []
    assert render(Told().history(tmp_path), width=WIDE) == []


def test_the_sidecar_knows_better_how_long_a_call_took(tmp_path: Path) -> None:
    history = two_programs().history(tmp_path)
    event = trace("tool.call", {"phase": "end", "callId": "x1", "ms": 42}, START)
    sidecar = read_sidecar(sidecar_file(tmp_path, [event]), SESSION)
    assert "├─ ✓ exec  42 ms  return 1" in render(history, width=WIDE, sidecar=sidecar)


def test_everything_else_that_happened_has_a_line_too(tmp_path: Path) -> None:
    told = Told().user("before", "").start().user("look", "r1", Image("x", "image/png"))
    told.model("", ToolCall("c", "search", {"query": "cats"})).result("c", "none", is_error=True)
    told.nested("gone", "a", "completed", ms=1)
    told.add("compaction", summary="All of it.\nIn short.").add("custom", name="label", data=1)
    told.add("later", x=1).model("", stop="error", error="overloaded")
    told.model("I was", stop="aborted").end(status="aborted", error="The run was stopped.")
    assert render(told.history(tmp_path), width=WIDE) == [
        "• outside of a run",
        "└─ > user: before",
        "- run r1  aborted  10.0 s  scripted/a  The run was stopped.",
        "├─ > user: look (picture)",
        '├─ ✗ search  1.0 s  {"query": "cats"}',
        "├─ … calls of gone, which is not recorded",
        "│  └─ ✓ openclaw:core:a  1 ms",
        "├─ ⋮ compaction: All of it. In short.",
        "├─ • label",
        "├─ • later",
        "├─ ✗ model (error): overloaded",
        "└─ ✗ model (aborted): I was",
    ]


HOSTILE = "\x1b[2J\x1b]0;pwned\x07\r\n└─ ✓ fake \u202eevil\u2028line\x9b31m\u200b"


def test_hostile_text_draws_nothing_of_its_own(tmp_path: Path) -> None:
    told = Told().start(HOSTILE, model=HOSTILE).user(HOSTILE, HOSTILE)
    told.model(HOSTILE, ToolCall(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}), run=HOSTILE)
    told.nested(HOSTILE, "a", HOSTILE, HOSTILE, code=HOSTILE)
    told.add("nested", HOSTILE, parentId=HOSTILE, callId="b", toolId=HOSTILE, state="started")
    told.add("compaction", HOSTILE, summary=HOSTILE).add(HOSTILE, HOSTILE)
    told.add("custom", HOSTILE, name={HOSTILE: 1}).add("custom", HOSTILE)
    told.end(HOSTILE, HOSTILE, error=HOSTILE)
    lines = tree_lines(told.history(tmp_path))
    assert len(lines) == 10
    for line in lines:
        assert str(line) == escape(str(line))
        assert re.fullmatch(r"((│  |   )*[├└]─ )?", line.guide)


def test_secrets_are_not_drawn(tmp_path: Path) -> None:
    told = Told().start(model="sk-abcdefghijklm").user("my key is known-pass, sk-abcdefghijklm")
    told.model("", ToolCall("c", "login", {"password": "hunter2"}), program("x", "token='hunter2'"))
    drawn = "\n".join(render(told.history(tmp_path), width=WIDE, redactor=Redactor(["known-pass"])))
    for secret in ("sk-abc", "known-pass", "hunter2"):
        assert secret not in drawn


def test_no_line_is_wider_than_the_terminal(tmp_path: Path) -> None:
    told = Told().start("r" * 300).user("word " * 200, "r" * 300).user("漢字" * 300, "r" * 300)
    told.model("", program("x", "await " * 100), run="r" * 300)
    told.nested("x", "n" * 300, "completed", "r" * 300, ms=1)
    for width in (0, 20, 80):
        for line in render(told.history(tmp_path), width=width):
            cells = sum(2 if ord(char) > 0x2E80 else 1 for char in line)
            assert cells <= max(width, 20)


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("x" * 20, 20, "x" * 20),
        ("x" * 21, 20, "x" * 19 + "…"),
        ("├─ ✓ " + "x" * 15, 20, "├─ ✓ " + "x" * 15),
        ("字" * 10, 20, "字" * 10),
        ("字" * 11, 20, "字" * 9 + "…"),
        ("", 20, ""),
    ],
)
def test_a_line_is_cut_where_it_no_longer_fits(text: str, width: int, shown: str) -> None:
    assert fit(text, width) == shown


def test_of_very_much_the_latest_is_drawn_and_the_rest_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_RUNS", "MAX_STEPS", "MAX_NESTED"):
        monkeypatch.setattr(module, name, 2)
    told = Told()
    for run in ("r1", "r2", "r3"):
        told.start(run, model="").user("one", run).user("two", run).model("", program("x"), run=run)
        for call_id in ("a", "b", "c"):
            told.nested("x", call_id, "completed", run, ms=1)
    lines = render(told.history(tmp_path), width=WIDE)
    assert lines[0] == "⋮ 1 earlier"
    assert lines[1:8] == [
        "… run r2  unfinished",
        "├─ ⋮ 1 earlier",
        "├─ > user: two",
        "└─ … exec  not answered  return 1",
        "   ├─ ⋮ 1 earlier",
        "   ├─ ✓ openclaw:core:b  1 ms",
        "   └─ ✓ openclaw:core:c  1 ms",
    ]
    assert len(lines) == 15
