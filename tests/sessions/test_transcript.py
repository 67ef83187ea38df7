"""Transcripts: written in order, read after anything, and told again as a model may hear it."""

# ruff: noqa: ASYNC240 - a test may look at its file

import contextvars
import json
import os
import re
import stat
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from tests.support.core_tools_driver import open_below
from tests.support.fuzzing import examples
from tests.support.session_writer import kill_writers, started

from clawmode.messages import (
    AssistantMessage,
    Image,
    Message,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from clawmode.sessions import history as history_module
from clawmode.sessions.entries import (
    Entry,
    Header,
    NestedCall,
    TranscriptError,
    TranscriptRefused,
)
from clawmode.sessions.history import UNANSWERED, History, read_transcript
from clawmode.sessions.lock import SessionBusy, SessionLock
from clawmode.sessions.transcript import EntryTooLarge, Transcript, open_transcript
from clawmode.types import JsonObject, JsonValue

pytestmark = pytest.mark.anyio

HEADER = Header(
    id="5" * 32, key="agent:main:main", agent_id="main", created_at=1.5, workspace="/work"
)
RUN = "run-1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "main" / "5.jsonl"


@asynccontextmanager
async def opened(path: Path, run: str = RUN) -> AsyncIterator[Transcript]:
    """A transcript with a run under way, which may have been before."""
    async with open_transcript(path, HEADER, 0) as transcript:
        if run not in transcript.open_runs():
            transcript.start_run(run)
        yield transcript


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def asks(*ids: str, stop: StopReason = "tool_calls", text: str = "") -> AssistantMessage:
    words = (Text(text),) if text else ()
    calls = tuple(ToolCall(call_id, "exec", {"code": "1"}) for call_id in ids)
    return AssistantMessage(content=(*words, *calls), stop=stop)


def answers(call_id: str, text: str = "ok", **more: Any) -> ToolMessage:
    return ToolMessage(call_id=call_id, name="exec", content=(Text(text),), **more)


def told(history: History) -> list[str]:
    """What a model is told, in short."""
    made: list[str] = []
    for message in history.messages():
        if isinstance(message, ToolMessage):
            text = "unknown" if message.text == UNANSWERED else message.text
            made.append(f"{message.call_id}={text}")
        elif isinstance(message, AssistantMessage):
            made.append("".join(["A ", message.text, *(f"({it.id})" for it in message.calls)]))
        else:
            made.append("U " + "".join(it.text for it in message.content if isinstance(it, Text)))
    return made


# ---- The format ----


async def test_a_transcript_looks_as_the_page_says(path: Path) -> None:
    async with open_transcript(path, HEADER) as transcript:
        transcript.start_run(RUN, model="p/m", trigger="cli", code_mode=True, thinking="low")
        transcript.message(RUN, UserMessage.of("add"))
        transcript.message(RUN, asks("c1"))
        ids = {"parent_id": "c1", "call_id": "1", "tool_id": "openclaw:core:add"}
        transcript.nested(RUN, **ids, state="started")
        transcript.nested(RUN, **ids, state="failed", seconds=0.012, code="denied")
        transcript.message(RUN, answers("c1", details={"n": 1}))
        transcript.compaction(RUN, "they added", "x", tokens=5)
        transcript.custom(RUN, "label", {"a": None})
        transcript.end_run(RUN, "error", error="no", usage=Usage(1, 2), metadata={"turns": 1})
    found = lines_of(path)
    assert len({line["id"] for line in found}) == len(found)
    for line in found[1:]:
        assert (line.pop("runId"), type(line.pop("at"))) == (RUN, float)
        line.pop("id")
        line.get("message", {}).pop("at", None)
    assert found == snapshot(
        [
            {
                "type": "session",
                "version": 1,
                "id": "55555555555555555555555555555555",
                "key": "agent:main:main",
                "agentId": "main",
                "createdAt": 1.5,
                "workspace": "/work",
            },
            {
                "type": "run",
                "phase": "start",
                "model": "p/m",
                "trigger": "cli",
                "codeMode": True,
                "metadata": {"thinking": "low"},
            },
            {
                "type": "message",
                "message": {"role": "user", "content": [{"type": "text", "text": "add"}]},
            },
            {
                "type": "message",
                "message": {
                    "role": "assistant",
                    "content": [
                        {
                            "type": "toolCall",
                            "id": "c1",
                            "name": "exec",
                            "arguments": {"code": "1"},
                        }
                    ],
                    "provider": "",
                    "model": "",
                    "usage": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
                    "stop": "tool_calls",
                },
            },
            {
                "type": "nested",
                "parentId": "c1",
                "callId": "1",
                "toolId": "openclaw:core:add",
                "state": "started",
            },
            {
                "type": "nested",
                "parentId": "c1",
                "callId": "1",
                "toolId": "openclaw:core:add",
                "state": "failed",
                "ms": 12,
                "code": "denied",
            },
            {
                "type": "message",
                "message": {
                    "role": "tool",
                    "callId": "c1",
                    "name": "exec",
                    "content": [{"type": "text", "text": "ok"}],
                    "details": {"n": 1},
                },
            },
            {
                "type": "compaction",
                "summary": "they added",
                "firstKept": "x",
                "metadata": {"tokens": 5},
            },
            {"type": "custom", "name": "label", "data": {"a": None}},
            {
                "type": "run",
                "phase": "end",
                "status": "error",
                "error": "no",
                "usage": {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0},
                "metadata": {"turns": 1},
            },
        ]
    )


def test_the_example_on_the_page_is_a_transcript(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "transcript.md"
    (example,) = re.findall(r"^```json\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.M)
    path = tmp_path / "example.jsonl"
    path.write_text(example, "utf-8")
    read = read_transcript(path)
    assert (read.problems, read.open_runs()) == ([], {})
    assert told(read) == ["U Any mail?", "A (call_1)", "call_1=3", "A Three."]
    assert [(call.state, call.ms) for call in read.nested_calls("call_1")] == [("completed", 204)]


async def test_what_was_written_is_what_is_read(path: Path) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, UserMessage(content=(Text("hi"), Image("aGk=", "image/png"))))
        transcript.message(RUN, asks("c1"))
        transcript.message(RUN, answers("c1"))
        transcript.custom("", "x", [1])
        written = list(transcript.entries)
    read = read_transcript(path)
    assert read.header == HEADER
    assert list(read.entries) == written
    async with opened(path) as transcript:
        assert list(transcript.entries) == written


async def test_files_and_folders_are_for_their_user_only(path: Path) -> None:
    async with opened(path):
        pass
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_every_entry_is_written_when_its_method_returns(path: Path) -> None:
    async with opened(path) as transcript:
        for number in range(3):
            transcript.message(RUN, UserMessage.of(str(number)))
            assert told(read_transcript(path))[-1] == f"U {number}"


async def test_lines_end_where_json_says_and_nowhere_else(path: Path) -> None:
    text = "a\nb\r\nc\u2028d\x85e\x0bf\0g"
    async with opened(path) as transcript:
        transcript.message(RUN, UserMessage.of(text))
    assert len(path.read_bytes().splitlines()) == 3
    assert told(read_transcript(path)) == [f"U {text}"]


async def test_half_of_a_surrogate_pair_survives(path: Path) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, UserMessage.of("a\ud83d é"))
    path.read_text("utf-8")
    assert told(read_transcript(path)) == ["U a\ud83d é"]


TEXTS = st.text(max_size=30)
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, width=32) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
).filter(lambda value: "inf" not in repr(value))
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=3)
META = st.none() | OBJECTS
WORDS = st.builds(Text, TEXTS, META)
PICTURES = st.builds(Image, TEXTS, TEXTS)
CALLS = st.builds(ToolCall, TEXTS, TEXTS, OBJECTS | TEXTS, META)
PARTS = st.lists(WORDS | st.builds(Thinking, TEXTS, META) | CALLS, max_size=4).map(tuple)
MESSAGES = st.one_of(
    st.builds(UserMessage, content=st.lists(WORDS | PICTURES, max_size=3).map(tuple)),
    st.builds(
        AssistantMessage,
        content=PARTS,
        provider=TEXTS,
        usage=st.builds(Usage, st.integers(0), st.integers(0)),
        stop=st.sampled_from(["stop", "tool_calls", "length", "refused", "error", "aborted"]),
        meta=META,
    ),
    st.builds(
        ToolMessage,
        call_id=st.sampled_from("abc") | TEXTS,
        name=TEXTS,
        content=st.lists(WORDS | PICTURES, max_size=3).map(tuple),
        is_error=st.booleans(),
        details=VALUES,
    ),
)


def in_a_fresh_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transcripts") / "t.jsonl"


@examples(60)
@given(messages=st.lists(MESSAGES, max_size=8))
async def test_any_conversation_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, messages: list[Message]
) -> None:
    path = in_a_fresh_file(tmp_path_factory)
    async with opened(path) as transcript:
        recorded = [it for it in messages if transcript.message(RUN, it)]
        before = transcript.messages()
    read = read_transcript(path)
    assert read.problems == []
    assert [it.message for it in read.entries if it.message is not None] == recorded
    assert read.messages() == before
    check_replay(before)


def check_replay(messages: list[Message]) -> None:
    """Each call is followed by its one result, in order, and nothing else has one."""
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert waiting.pop(0) == message.call_id
            continue
        assert waiting == []
        assert message.content or isinstance(message, UserMessage)
        if isinstance(message, AssistantMessage):
            assert message.stop != "error"
            waiting = [call.id for call in message.calls]
            assert len(set(waiting)) == len(waiting)
    assert waiting == []


@examples(60)
@given(garbage=st.lists(st.binary(max_size=40), max_size=6), data=st.data())
async def test_no_garbage_makes_a_transcript_unreadable(
    tmp_path_factory: pytest.TempPathFactory, garbage: list[bytes], data: st.DataObject
) -> None:
    path = in_a_fresh_file(tmp_path_factory)
    async with opened(path) as transcript:
        transcript.message(RUN, UserMessage.of("one"))
        transcript.message(RUN, UserMessage.of("two"))
    lines = path.read_bytes().splitlines(keepends=True)
    for piece in garbage:
        lines.insert(data.draw(st.integers(0, len(lines))), piece.replace(b"\n", b"") + b"\n")
    path.write_bytes(b"".join(lines))
    async with opened(path) as transcript:
        transcript.message(RUN, UserMessage.of("three"))
    assert path.read_bytes().startswith(b"".join(lines))
    assert told(read_transcript(path)) == ["U one", "U two", "U three"]


# ---- After a crash ----


@pytest.mark.covers("TR-2")
async def test_a_last_line_cut_off_anywhere_is_repaired(path: Path) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, UserMessage.of("kept"))
    kept = path.read_bytes()
    async with opened(path) as transcript:
        transcript.message(RUN, UserMessage.of("torn é 🎉"))
    whole = path.read_bytes()
    for size in range(len(kept), len(whole)):
        path.write_bytes(whole[:size])
        lost = size < len(whole) - 1
        said = ["U kept"] if lost else ["U kept", "U torn é 🎉"]
        before = read_transcript(path)
        assert (told(before), before.problems) == (said, [])
        async with opened(path) as transcript:
            transcript.message(RUN, UserMessage.of("next"))
        after = read_transcript(path)
        assert (told(after), after.problems) == ([*said, "U next"], [])
        assert path.read_bytes().startswith(kept if lost else whole)


@pytest.mark.covers("TR-2")
async def test_a_first_line_cut_off_anywhere_is_written_again(path: Path) -> None:
    async with opened(path):
        pass
    whole = path.read_bytes().split(b"\n")[0] + b"\n"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        async with opened(path):
            pass
        read = read_transcript(path)
        assert (read.header, read.problems) == (HEADER, [])


@pytest.mark.covers("TR-2")
@pytest.mark.parametrize(
    "garbage",
    [
        b"\0" * 4096,
        b"{",
        b"[1, 2]",
        b'"text"',
        b"null",
        b"12",
        b"\xff\xfe",
        b'{"type": "message", "id": "a", "at": 1}',
        b'{"type": "message", "id": "a", "at": 1, "message": {"role": "ghost"}}',
        b'{"type": "run", "id": 5, "at": 1}',
        b'{"type": "run", "id": "a", "at": NaN}',
        b'{"type": "run", "id": "a", "at": 1' + b"0" * 400 + b"}",
        b'{"type": "run", "id": "a", "at": 1' + b"0" * 5000 + b"}",
        b'{"type": "custom", "id": "a", "at": 1, "data": ' + b"[" * 100_000 + b"}",
        b'{"type": "session", "version": 1}',
    ],
    ids=lambda garbage: garbage[:24].decode("latin-1"),
)
async def test_an_unreadable_line_in_the_middle_is_skipped_reported_and_kept(
    path: Path, garbage: bytes
) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, UserMessage.of("one"))
    path.write_bytes(path.read_bytes() + garbage + b"\n")
    async with opened(path) as transcript:
        transcript.message(RUN, UserMessage.of("two"))
        header = garbage.startswith(b'{"type": "session"')
        assert [problem.line for problem in transcript.problems] == ([] if header else [4])
    assert garbage + b"\n" in path.read_bytes()
    assert told(read_transcript(path)) == ["U one", "U two"]


async def test_problems_are_counted_and_not_all_of_them_kept(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"x\n" * 5000)
    async with opened(path) as transcript:
        assert transcript.unreadable == 5000
        assert len(transcript.problems) == 100


async def test_a_line_that_is_there_twice_counts_once(path: Path) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, UserMessage.of("one"))
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[-1])
    read = read_transcript(path)
    assert told(read) == ["U one"]
    assert len(read.problems) == 1


async def test_lost_calls_do_not_slow_down_every_later_run() -> None:
    history = History()
    began = time.process_time()
    for number in range(20_000):
        lost = asks(f"c{number}")
        history.add(Entry(type="message", id=f"a{number}", run_id="lost", at=1.0, message=lost))
    for number in range(20_000):
        end: JsonObject = {"phase": "end"}
        history.add(Entry(type="run", id=f"b{number}", run_id=f"r{number}", at=1.0, data=end))
    # To look through all of them at each end would take minutes.
    assert time.process_time() - began < 5


async def test_a_line_that_is_too_long_is_skipped_without_being_held(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(history_module, "READ_BYTES", 100)
    async with opened(path) as transcript:
        transcript.message(RUN, UserMessage.of("one"))
    with path.open("ab") as file:
        file.write(b'{"type":"custom","data":"' + b"x" * 5000 + b'"}\n')
    async with opened(path) as transcript:
        transcript.message(RUN, UserMessage.of("two"))
    read = read_transcript(path)
    assert told(read) == ["U one", "U two"]
    assert [it.reason for it in read.problems] == ["the line is too long"]
    with path.open("ab") as file:
        file.write(b"x" * 5000)
    size = path.stat().st_size - 5000
    async with opened(path) as transcript:
        assert path.stat().st_size == size


@pytest.mark.parametrize("version", ["2", "0", "true", '"1"', "null", "1.0"])
async def test_another_version_is_refused_and_left_alone(path: Path, version: str) -> None:
    path.parent.mkdir()
    line = f'{{"type":"session","version":{version},"id":"{HEADER.id}"}}\n{{"torn'
    path.write_text(line)
    with pytest.raises(TranscriptRefused):
        read_transcript(path)
    with pytest.raises(TranscriptRefused):
        async with opened(path):
            pass
    assert path.read_text() == line


async def test_another_session_s_transcript_is_refused(path: Path) -> None:
    async with opened(path):
        pass
    before = path.read_bytes()
    other = Header(id="6" * 32, key="k", agent_id="main", created_at=0)
    with pytest.raises(TranscriptRefused):
        async with open_transcript(path, other):
            pass
    assert path.read_bytes() == before


async def test_entries_of_a_type_that_is_not_known_are_kept_and_not_told_again(path: Path) -> None:
    async with opened(path):
        pass
    with path.open("ab") as file:
        file.write(b'{"type":"mood","id":"m","runId":"r","at":1,"is":"good"}\n')
    async with opened(path) as transcript:
        entry = Entry(type="mood", id="m", run_id="r", at=1.0, data={"is": "good"})
        assert transcript.entries[-1] == entry
        assert transcript.problems == []
        assert transcript.messages() == []


async def test_a_transcript_that_is_a_link_or_no_file_is_not_opened(
    path: Path, tmp_path: Path
) -> None:
    path.parent.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path.symlink_to(victim)
    for make in (lambda: None, lambda: (path.unlink(), path.mkdir())):
        make()
        with pytest.raises(TranscriptError) as caught:
            async with opened(path):
                pass
        assert str(tmp_path) not in str(caught.value)
    assert victim.read_text() == "precious"
    with pytest.raises(TranscriptError):
        read_transcript(tmp_path / "nothing")


# ---- Writing ----


async def test_an_entry_that_is_too_large_is_refused_and_leaves_no_trace(path: Path) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, asks("c1"))
        before = path.read_bytes()
        with pytest.raises(EntryTooLarge):
            transcript.message(RUN, answers("c1", "x" * (17 << 20)))
        assert path.read_bytes() == before
        assert transcript.message(RUN, answers("c1", "too large"))
        assert told(transcript) == ["A (c1)", "c1=too large"]


async def test_details_that_are_too_large_are_replaced_by_a_marker(path: Path) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, asks("c1", "c2"))
        transcript.message(RUN, answers("c1", details=["x" * 140_000]))
        transcript.message(RUN, answers("c2", details=["x" * 120_000]))
        first, second = transcript.messages()[1:]
    assert isinstance(first, ToolMessage)
    assert isinstance(second, ToolMessage)
    assert first.details == {"persistedDetailsTruncated": True, "originalBytes": 140_017}
    assert second.details == ["x" * 120_000]
    assert read_transcript(path).messages()[1:] == [first, second]


@pytest.mark.parametrize("details", [float("nan"), {"a": object()}, {"a": {1, 2}}])
async def test_details_that_are_no_json_cost_no_result(path: Path, details: Any) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, asks("c1"))
        assert transcript.message(RUN, answers("c1", details=details))
    (_, result) = read_transcript(path).messages()
    assert isinstance(result, ToolMessage)
    assert result.details == {"persistedDetailsTruncated": True}


async def test_what_is_no_json_is_refused(path: Path) -> None:
    async with opened(path) as transcript:
        before = path.read_bytes()
        endless: list[JsonValue] = []
        endless.append(endless)
        for value in (float("inf"), endless):
            with pytest.raises(TranscriptError):
                transcript.custom(RUN, "x", value)
        assert path.read_bytes() == before


def short_write(kept: int) -> Callable[[int, bytes], int]:
    """A disk that takes only so much."""
    real = os.write
    return lambda descriptor, line: real(descriptor, line[:kept])


async def test_half_a_line_is_taken_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, UserMessage.of("one"))
        before = path.read_bytes()
        with monkeypatch.context() as full:
            full.setattr(os, "write", short_write(20))
            with pytest.raises(TranscriptError):
                transcript.message(RUN, UserMessage.of("two"))
        assert path.read_bytes() == before
        transcript.message(RUN, UserMessage.of("three"))
    assert told(read_transcript(path)) == ["U one", "U three"]


async def test_after_half_a_line_that_cannot_be_taken_back_nothing_is_glued_to_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, size: int) -> None:
        raise OSError(5, "Input/output error")

    async with opened(path) as transcript:
        transcript.message(RUN, UserMessage.of("one"))
        with monkeypatch.context() as broken:
            broken.setattr(os, "write", short_write(20))
            broken.setattr(os, "ftruncate", fail)
            with pytest.raises(TranscriptError):
                transcript.message(RUN, UserMessage.of("two"))
        with pytest.raises(TranscriptError):
            transcript.message(RUN, UserMessage.of("three"))
    async with opened(path) as transcript:
        transcript.message(RUN, UserMessage.of("four"))
    assert told(read_transcript(path)) == ["U one", "U four"]


async def test_a_failing_disk_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> int:
        raise OSError(28, "No space left on device")

    async with opened(path) as transcript:
        with monkeypatch.context() as full:
            full.setattr(os, "write", fail)
            with pytest.raises(TranscriptError):
                transcript.message(RUN, UserMessage.of("one"))
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", fail)
            with pytest.raises(TranscriptError):
                await transcript.sync()
        await transcript.sync()


async def test_what_was_synced_is_not_synced_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    async with opened(path) as transcript:
        await transcript.sync()
        first = len(synced)
        assert first == 2, "the file, and the folder in which it is new"
        await transcript.sync()
        transcript.message(RUN, UserMessage.of("one"))
    assert len(synced) == first + 1


@pytest.mark.covers("AL-28")
async def test_nobody_opens_or_changes_a_transcript_without_the_lock(path: Path) -> None:
    with pytest.raises(AssertionError):
        Transcript.open(path, HEADER)
    assert not path.exists()
    async with SessionLock(path).hold(0):
        transcript = Transcript.open(path, HEADER)
        transcript.start_run(RUN)
    path.write_bytes(path.read_bytes() + b"torn")
    before = path.read_bytes()
    for change in (
        lambda: transcript.message(RUN, UserMessage.of("late")),
        lambda: transcript.compaction(RUN, "late"),
        lambda: transcript.end_run(RUN, "ok"),
    ):
        with pytest.raises(TranscriptError):
            change()
    with pytest.raises(AssertionError):
        Transcript.open(path, HEADER)
    read_transcript(path)
    transcript.close()
    transcript.close()
    assert path.read_bytes() == before


@pytest.mark.covers("AL-28")
async def test_repairing_waits_for_the_lock(path: Path) -> None:
    async with started("hold", str(path)) as (process, lines):
        await lines.next()
        path.write_bytes(b"torn")
        with pytest.raises(SessionBusy) as caught:
            async with open_transcript(path, HEADER, 0.05):
                pass
        assert caught.value.pid == process.pid
        assert path.read_bytes() == b"torn"


async def test_a_closed_transcript_takes_nothing(path: Path) -> None:
    async with opened(path) as transcript:
        transcript.close()
        with pytest.raises(TranscriptError):
            transcript.custom(RUN, "x", 1)
        await transcript.sync()


async def test_threads_write_whole_lines(path: Path) -> None:
    async with opened(path) as transcript:

        def write(name: str) -> None:
            for number in range(100):
                transcript.custom(RUN, name, number)

        threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            await anyio.to_thread.run_sync(thread.join)
    read = read_transcript(path)
    assert read.problems == []
    for name in "abcd":
        mine = [it.data["data"] for it in read.entries if it.data.get("name") == name]
        assert mine == list(range(100))


async def test_a_cancelled_run_leaves_its_transcript_closed_and_whole(path: Path) -> None:
    for seconds in (0, 0.001, 0.01):
        with anyio.move_on_after(seconds):
            async with opened(path) as transcript:
                while True:
                    transcript.message(RUN, UserMessage.of("more"))
                    await transcript.sync()
                    await checkpoint()
    assert open_below(path.parent) == []
    assert read_transcript(path).problems == []


# ---- Runs ----


async def test_an_interrupted_run_resumes_under_its_own_id(path: Path) -> None:
    async with opened(path, "r1") as transcript:
        transcript.message("r1", UserMessage.of("go"))
        transcript.message("r1", asks("c1", "c2"))
        transcript.message("r1", answers("c1"))
    async with open_transcript(path, HEADER) as transcript:
        (run,) = transcript.open_runs().values()
        assert (run.id, [call.id for call in run.unanswered]) == ("r1", ["c2"])
        assert isinstance(run.last, ToolMessage)
        assert transcript.start_run("r1").data["phase"] == "resume"
        assert told(transcript) == ["U go", "A (c1)(c2)", "c1=ok", "c2=unknown"]
        transcript.message("r1", AssistantMessage(content=(Text("done"),)))
        transcript.end_run("r1", "ok")
        assert transcript.open_runs() == {}
    assert told(read_transcript(path))[-1] == "A done"


async def test_a_late_result_takes_the_place_of_the_unknown_one(path: Path) -> None:
    async with opened(path, "r1") as transcript:
        transcript.message("r1", asks("c1"))
        transcript.start_run("r2")
        transcript.message("r2", UserMessage.of("meanwhile"))
        assert told(transcript) == ["A (c1)", "c1=unknown", "U meanwhile"]
        transcript.message("r1", answers("c1", "late"))
        assert told(transcript) == ["A (c1)", "c1=late", "U meanwhile"]


async def test_a_run_that_has_ended_takes_nothing_and_does_not_start_again(path: Path) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, asks("c1"))
        transcript.end_run(RUN, "aborted")
    async with open_transcript(path, HEADER) as transcript:
        for change in (
            lambda: transcript.start_run(RUN),
            lambda: transcript.end_run(RUN, "ok"),
            lambda: transcript.message(RUN, answers("c1")),
            lambda: transcript.message("never", UserMessage.of("x")),
            lambda: transcript.start_run(""),
        ):
            with pytest.raises(TranscriptError):
                change()
        assert transcript.message("", UserMessage.of("outside of any run"))
    assert told(read_transcript(path)) == ["A (c1)", "c1=unknown", "U outside of any run"]


async def test_a_result_is_recorded_once(path: Path) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, asks("c1"))
        assert transcript.message(RUN, answers("c1", "first"))
        assert not transcript.message(RUN, answers("c1", "second"))
    async with opened(path) as transcript:
        assert not transcript.message(RUN, answers("c1", "third"))
        assert not transcript.message(RUN, answers("c9", "nobody asked"))
    assert told(read_transcript(path)) == ["A (c1)", "c1=first"]


async def test_a_model_that_uses_a_call_id_again_gets_both_results(path: Path) -> None:
    async with opened(path) as transcript:
        for text in ("first", "second"):
            transcript.message(RUN, asks("c1"))
            assert transcript.message(RUN, answers("c1", text))
    assert told(read_transcript(path)) == ["A (c1)", "c1=first", "A (c1)", "c1=second"]


# ---- What a model is told again ----


async def test_results_follow_their_calls_in_the_order_of_the_calls(path: Path) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, asks("c1", "c2", "c3"))
        transcript.message(RUN, answers("c3"))
        transcript.message(RUN, UserMessage.of("hurry"))
        transcript.message(RUN, answers("c1"))
        assert told(transcript) == ["A (c1)(c2)(c3)", "c1=ok", "c2=unknown", "c3=ok", "U hurry"]
        lost = transcript.messages()[2]
    assert isinstance(lost, ToolMessage)
    assert (lost.is_error, lost.name) == (True, "exec")


async def test_a_message_that_ended_in_an_error_is_not_replayed(path: Path) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, UserMessage.of("go"))
        transcript.message(RUN, asks("c1", stop="error", text="half"))
        assert not transcript.message(RUN, answers("c1"))
        transcript.message(RUN, AssistantMessage(content=(Text("again"),)))
    assert told(read_transcript(path)) == ["U go", "A again"]


async def test_of_what_was_aborted_only_the_words_are_told(path: Path) -> None:
    async with opened(path) as transcript:
        thought = Thinking("hm", {"signature": "half"})
        words = (thought, Text("so far"), ToolCall("c1", "exec", '{"co'))
        transcript.message(RUN, AssistantMessage(content=words, stop="aborted"))
        transcript.message(RUN, AssistantMessage(content=(thought,), stop="aborted"))
        assert not transcript.message(RUN, answers("c1"))
    (message,) = read_transcript(path).messages()
    assert message.content == (Text("so far"),)


async def test_a_message_without_content_is_not_sent_to_the_model(path: Path) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, AssistantMessage(content=()))
    assert read_transcript(path).messages() == []


async def test_two_calls_of_one_id_in_a_message_are_told_as_one(path: Path) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, asks("c1", "c1", "c2"))
        assert transcript.message(RUN, answers("c1"))
        assert not transcript.message(RUN, answers("c1"))
    assert told(read_transcript(path)) == ["A (c1)(c2)", "c1=ok", "c2=unknown"]


async def test_results_in_the_file_that_nobody_waits_for_are_not_told(path: Path) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, asks("c1"))
        transcript.message(RUN, answers("c1", "first"))
    result = lines_of(path)[-1]
    with path.open("a") as file:
        for number, call_id in enumerate(("c1", "c9")):
            words = [{"type": "text", "text": "second"}]
            message = {**result["message"], "callId": call_id, "content": words}
            file.write(json.dumps({**result, "id": f"n{number}", "message": message}) + "\n")
    read = read_transcript(path)
    assert read.problems == []
    assert told(read) == ["A (c1)", "c1=first"]


@pytest.mark.covers("TR-1")
async def test_nested_calls_are_under_their_parent_and_never_told(path: Path) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, asks("c1"))
        for call_id in ("1", "2", "3"):
            ids = {"parent_id": "c1", "call_id": call_id, "tool_id": f"openclaw:core:t{call_id}"}
            transcript.nested(RUN, **ids, state="started")
        ids = {"parent_id": "c1", "tool_id": "openclaw:core:t2"}
        transcript.nested(RUN, **ids, call_id="2", state="completed", seconds=0.25)
        ids = {"parent_id": "c1", "tool_id": "openclaw:core:t1"}
        transcript.nested(RUN, **ids, call_id="1", state="failed", seconds=0.5, code="denied")
        transcript.message(RUN, answers("c1"))
        ids = {"parent_id": "other", "call_id": "1", "tool_id": "openclaw:core:t"}
        transcript.nested(RUN, **ids, state="completed")
    read = read_transcript(path)
    assert read.nested_calls("c1") == [
        NestedCall(RUN, "c1", "1", "openclaw:core:t1", "failed", 500, "denied"),
        NestedCall(RUN, "c1", "2", "openclaw:core:t2", "completed", 250),
        NestedCall(RUN, "c1", "3", "openclaw:core:t3", "started"),
    ]
    assert len(read.nested_calls()) == 4
    assert told(read) == ["A (c1)", "c1=ok"]


async def test_the_control_calls_of_code_mode_are_told_again(path: Path) -> None:
    async with opened(path) as transcript:
        for name, arguments in (("exec", {"code": "yield_control()"}), ("wait", {"runId": "x"})):
            call = ToolCall(name, name, dict[str, JsonValue](arguments))
            transcript.message(RUN, AssistantMessage(content=(call,), stop="tool_calls"))
            result = ToolMessage(call_id=name, name=name, content=(Text(f"{name}ed"),))
            transcript.message(RUN, result)
    messages = read_transcript(path).messages()
    assert [call for it in messages for call in getattr(it, "calls", ())] == [
        ToolCall("exec", "exec", {"code": "yield_control()"}),
        ToolCall("wait", "wait", {"runId": "x"}),
    ]
    assert told(read_transcript(path)) == ["A (exec)", "exec=execed", "A (wait)", "wait=waited"]


async def test_after_a_compaction_the_model_gets_the_summary_instead(path: Path) -> None:
    async with opened(path) as transcript:
        transcript.message(RUN, UserMessage.of("old"))
        transcript.message(RUN, asks("c1"))
        kept = transcript.custom(RUN, "mark", None)
        transcript.message(RUN, answers("c1"))
        transcript.message(RUN, UserMessage.of("kept"))
        transcript.compaction(RUN, "in short", kept.id)
        transcript.message(RUN, UserMessage.of("new"))
        summary, *rest = told(transcript)
        assert "in short" in summary
        assert rest == ["U kept", "U new"]
        transcript.compaction(RUN, "shorter")
        transcript.message(RUN, UserMessage.of("newest"))
        summary, *rest = told(transcript)
        assert "shorter" in summary
        assert rest == ["U newest"]


# ---- Many at once ----


async def test_a_hundred_sessions_at_once_mix_nothing_up(tmp_path: Path) -> None:
    async def talk(number: int, turn: int) -> None:
        header = Header(id=f"{number:032x}", key=f"k{number}", agent_id="main", created_at=0)
        run = f"{number}-{turn}"
        async with open_transcript(tmp_path / f"{number}.jsonl", header) as transcript:
            transcript.start_run(run)
            transcript.message(run, UserMessage.of(f"{number} asks {turn}"))
            await checkpoint()
            transcript.message(run, asks(run))
            await checkpoint()
            transcript.message(run, answers(run, f"{number} has {turn}"))
            transcript.end_run(run, "ok")

    async with anyio.create_task_group() as tasks:
        for turn in range(5):
            for number in range(100):
                tasks.start_soon(talk, number, turn)
            await checkpoint()
    for number in range(100):
        read = read_transcript(tmp_path / f"{number}.jsonl")
        assert (read.problems, read.open_runs()) == ([], {})
        assert told(read) == [
            line
            for turn in range(5)
            for line in (
                f"U {number} asks {turn}",
                f"A ({number}-{turn})",
                f"{number}-{turn}={number} has {turn}",
            )
        ]


async def test_a_reader_sees_whole_entries_while_another_process_writes(tmp_path: Path) -> None:
    async with started("write", str(tmp_path), "main", "1") as (_, lines):
        await lines.next()
        (path,) = (tmp_path / "main").glob("*.jsonl")
        sizes = [len(read_transcript(path).entries) for _ in range(5)]
    assert sizes == sorted(sizes)
    assert read_transcript(path).problems == []


@pytest.mark.covers("TR-2")
async def test_a_writer_killed_at_any_moment_loses_nothing_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    found = await kill_writers(tmp_path, int(os.environ.get("CLAWMODE_KILLS", "5")))
    assert found.kills >= 5


async def test_an_unrelated_task_is_held_off_while_a_run_writes(path: Path) -> None:
    async def intrude() -> None:
        with pytest.raises(SessionBusy):
            async with open_transcript(path, HEADER, 0.02):
                pass

    async with opened(path) as transcript, anyio.create_task_group() as tasks:
        contextvars.Context().run(tasks.start_soon, intrude)
        transcript.message(RUN, UserMessage.of("undisturbed"))
