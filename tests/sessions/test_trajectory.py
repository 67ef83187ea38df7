"""The sidecar: what a line holds, what it never holds, and that nothing stops a run."""

import errno
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.trajectory_sessions import SESSION, START, sidecar_file, trace

from clawmode.redaction import Redactor
from clawmode.sessions import trajectory as module
from clawmode.sessions.trajectory import (
    MAX_LINE_BYTES,
    MAX_SIDECAR_BYTES,
    Trajectory,
    encode_event,
    iso_time,
    read_sidecar,
    sidecar_path,
)


@pytest.fixture(autouse=True)
def _no_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENCLAW_TRAJECTORY", raising=False)
    monkeypatch.delenv("OPENCLAW_TRAJECTORY_DIR", raising=False)


def opened(path: Path, run_id: str = "r1", **more: Any) -> Trajectory:
    return Trajectory(
        path, session_id=SESSION, session_key="k", run_id=run_id, agent_id="main", **more
    )


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_line_is_an_event_of_the_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawmode.sessions.trajectory.time.time", lambda: START)
    path = tmp_path / "deep" / "s.trajectory.jsonl"
    with opened(path) as trajectory:
        trajectory.write("session.started", {"trigger": "cli"})
        trajectory.write("session.ended", {"status": "ok"})
    assert lines_of(path)[1] == {
        "traceSchema": "openclaw-trajectory",
        "schemaVersion": 1,
        "source": "runtime",
        "type": "session.ended",
        "ts": "2026-09-21T14:13:20.000Z",
        "seq": 2,
        "traceId": SESSION,
        "sessionId": SESSION,
        "sessionKey": "k",
        "runId": "r1",
        "agentId": "main",
        "data": {"status": "ok"},
    }


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "s.trajectory.jsonl"
    for run_id in ("r1", "r2"):
        with opened(path, run_id) as trajectory:
            trajectory.write("tool.call", {"phase": "end", "callId": "c1", "ms": 1500})
    found = read_sidecar(path, SESSION)
    assert [(it.seq, it.run_id, it.type) for it in found.events] == [
        (1, "r1", "tool.call"),
        (1, "r2", "tool.call"),
    ]
    assert found.durations() == {("r1", "c1"): 1.5, ("r2", "c1"): 1.5}
    assert (found.unreadable, found.left_out, found.over_bytes) == (0, 0, 0)


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "s.trajectory.jsonl"
    opened(path).write("session.started", {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    other = tmp_path / "open.trajectory.jsonl"
    other.touch(0o644)
    opened(other).write("session.started", {})
    assert stat.S_IMODE(other.stat().st_mode) == 0o600


@pytest.mark.parametrize("value", ["0", "false", " off ", "NO"])
def test_the_switch_turns_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("OPENCLAW_TRAJECTORY", value)
    with opened(tmp_path / "s.jsonl") as trajectory:
        trajectory.write("session.started", {})
    assert list(tmp_path.iterdir()) == []


def test_it_is_beside_the_transcript_or_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transcript = tmp_path / "abc.jsonl"
    assert sidecar_path(transcript, "abc") == tmp_path / "abc.trajectory.jsonl"
    monkeypatch.setenv("OPENCLAW_TRAJECTORY_DIR", "~/traces")
    monkeypatch.setenv("HOME", "/home/me")
    assert sidecar_path(transcript, "abc") == Path("/home/me/traces/abc.trajectory.jsonl")


@pytest.mark.parametrize("name", ["../../etc/passwd", "/abs", "..", "a\x00b", "", "x" * 999])
def test_no_session_id_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    found = sidecar_path(tmp_path / "t.jsonl", name)
    assert found.parent == tmp_path
    assert len(found.name) < 150
    with Trajectory(found, session_id=name, session_key="", run_id="") as trajectory:
        trajectory.write("session.started", {})
    assert [it.name for it in tmp_path.iterdir()] == [found.name]


# ---- What is never in it ----


def test_secrets_and_pictures_do_not_reach_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    redactor = Redactor(["known-pass"], workspace=Path("/srv/work"), home=Path("/home/me"))
    picture = "iVBORw0KGgo" * 500
    with opened(path, redactor=redactor) as trajectory:
        trajectory.write(
            "context.compiled",
            {
                "systemPrompt": "The key is sk-abcdefghijkl, the pass known-pass in /srv/work/a.",
                "headers": {"authorization": "Bearer x"},
                "image": {"type": "image", "data": picture, "mediaType": "image/png"},
                "url": f"data:image/png;base64,{picture}",
                "known-pass": "/home/me/.ssh",
            },
        )
    text = path.read_text("utf-8")
    for secret in ("sk-abc", "known-pass", "Bearer x", "iVBOR", "/home/me", "/srv/work"):
        assert secret not in text
    assert lines_of(path)[0]["data"]["image"]["data"] == "(5500 characters of data)"


def test_a_secret_at_the_cut_of_a_long_text_is_not_left_in_half(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    text = "a " * ((module.MAX_TEXT_CHARS - 6) // 2) + "known-pass" + " b" * 100
    with opened(path, redactor=Redactor(["known-pass"])) as trajectory:
        trajectory.write("prompt.submitted", {"prompt": text})
    assert "known" not in path.read_text("utf-8")


# ---- Limits ----


def test_an_event_that_is_too_large_is_cut_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    tools: Any = [
        {"name": f"tool_{number}", "description": "word " * 2_000} for number in range(100)
    ]
    with opened(path) as trajectory:
        trajectory.write("context.compiled", {"systemPrompt": "Hello.", "tools": tools})
    (line,) = path.read_bytes().splitlines(keepends=True)
    assert len(line) <= MAX_LINE_BYTES
    data = json.loads(line)["data"]
    assert data["truncated"] is True
    assert data["originalBytes"] > 1_000_000
    assert data["systemPrompt"] == "Hello."
    assert data["tools"][0]["name"] == "tool_0"


@pytest.mark.parametrize(
    "data",
    [
        {str(number): number for number in range(100_000)},
        {"a": [[[["x" * 100] * 60] * 60] * 60]},
        {"k" * 500_000: 1},
        {"a": "\x00" * 300_000},
        {"a": "\U0001f600" * 200_000},
    ],
    ids=range(5),
)
def test_no_shape_of_data_makes_a_line_too_long(data: dict[str, Any]) -> None:
    line, cut = encode_event({"type": "x", "data": data})
    assert len(line) <= MAX_LINE_BYTES
    assert cut
    assert json.loads(line)["data"]["truncated"] is True


def test_a_full_sidecar_says_so_once_and_falls_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SIDECAR_BYTES", 40_000)
    path = tmp_path / "s.jsonl"
    for run_id in ("r1", "r2", "r3"):
        with opened(path, run_id) as trajectory:
            for _ in range(50):
                trajectory.write("prompt.submitted", {"prompt": "word " * 200})
            trajectory.write("session.ended", {})
    kinds = [line["type"] for line in lines_of(path)]
    assert path.stat().st_size <= 40_000
    assert kinds == ["prompt.submitted"] * (len(kinds) - 1) + ["trace.truncated"]
    assert lines_of(path)[-1]["data"] == {"limitBytes": 40_000, "lost": "prompt.submitted"}


# ---- Nothing stops a run ----


def test_a_folder_that_cannot_be_created_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("x", "utf-8")
    with caplog.at_level(logging.WARNING), opened(tmp_path / "file" / "s.jsonl") as trajectory:
        for _ in range(3):
            trajectory.write("session.started", {})
    assert len(caplog.records) == 1


@pytest.mark.parametrize("planted", ["symlink", "fifo", "folder", "dangling"])
def test_what_is_no_file_is_not_written_to(
    tmp_path: Path, planted: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, target = tmp_path / "s.jsonl", tmp_path / "target"
    if planted == "fifo":
        os.mkfifo(path)
    elif planted == "folder":
        path.mkdir()
    else:
        path.symlink_to(target)
        if planted == "symlink":
            target.write_text("precious", "utf-8")
    with opened(path) as trajectory:
        trajectory.write("session.started", {})
    assert not target.exists() or target.read_text("utf-8") == "precious"
    assert len(caplog.records) == 1


def test_a_full_disk_is_logged_once_and_half_a_line_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s.jsonl"
    real = os.write
    with opened(path) as trajectory:
        trajectory.write("one", {})
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:20]))
        trajectory.write("two", {})
        monkeypatch.setattr(os, "write", no_space)
        trajectory.write("three", {})
        monkeypatch.setattr(os, "write", real)
        trajectory.write("four", {})
    found = read_sidecar(path, SESSION)
    assert [(it.type, it.seq) for it in found.events] == [("one", 1), ("four", 2)]
    assert found.unreadable == 1
    assert len(caplog.records) == 1


def no_space(fd: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "data",
    [{"a": object()}, {"a": float("inf")}, {1: {2}}, None, [], {"a": "\ud800"}, {"a": 10**5000}],
    ids=range(7),
)
def test_data_that_is_no_json_does_not_raise(tmp_path: Path, data: Any) -> None:
    with opened(tmp_path / "s.jsonl") as trajectory:
        trajectory.write("x", data)
        trajectory.write("y", {})
    assert lines_of(tmp_path / "s.jsonl")[-1]["type"] == "y"


def test_data_of_any_depth_does_not_raise(tmp_path: Path) -> None:
    below: list[Any] = ["bottom"]
    for _ in range(10_000):
        below = [{"a": below}]
    with opened(tmp_path / "s.jsonl") as trajectory:
        trajectory.write("x", {"a": below})
    assert "bottom" not in (tmp_path / "s.jsonl").read_text("utf-8")
    assert encode_event({"data": lines_of(tmp_path / "s.jsonl")[0]["data"]})[1] is False


def test_after_its_end_nothing_is_written(tmp_path: Path) -> None:
    trajectory = opened(tmp_path / "s.jsonl")
    trajectory.write("x", {})
    trajectory.close()
    trajectory.close()
    trajectory.write("y", {})
    assert [line["type"] for line in lines_of(tmp_path / "s.jsonl")] == ["x"]


def test_threads_write_whole_lines_in_one_order(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with opened(path) as trajectory:

        def work() -> None:
            for _ in range(50):
                trajectory.write("tool.call", {"callId": "c" * 500})

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert [line["seq"] for line in lines_of(path)] == list(range(1, 201))


KILLED = """
import os, signal, sys
from pathlib import Path
from clawmode.sessions.trajectory import Trajectory
path, session = Path(sys.argv[1]), sys.argv[2]
trajectory = Trajectory(path, session_id=session, session_key="k", run_id="r0")
trajectory.write("session.started", {})
real = os.write
def write(fd, data):
    real(fd, data[:40])
    os.kill(os.getpid(), signal.SIGKILL)
os.write = write
trajectory.write("prompt.submitted", {"prompt": "hello"})
"""


def test_the_half_line_of_a_process_that_was_killed_is_the_only_loss(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), SESSION], timeout=15)
    assert done.returncode == -signal.SIGKILL
    assert not path.read_bytes().endswith(b"\n")
    assert [it.type for it in read_sidecar(path, SESSION).events] == ["session.started"]
    with opened(path) as trajectory:
        trajectory.write("session.started", {})
    found = read_sidecar(path, SESSION)
    assert [it.run_id for it in found.events] == ["r0", "r1"]
    assert found.unreadable == 1


# ---- Reading what others left ----


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        "null",
        "{}",
        "[" * 100_000,
        '{"a": ' + "9" * 5_000 + "}",
        trace("x", {}, schemaVersion=2),
        trace("x", {}, traceSchema="other"),
        trace("x", {}, sessionId="another"),
        trace("x", {}, ts="yesterday"),
        trace("x", {}, ts=5),
        trace("x", {}, seq=True),
        trace("x", {}, runId=None),
        trace("x", []),
        trace("x", {"a": "b" * MAX_LINE_BYTES}),
    ],
    ids=range(15),
)
def test_a_line_that_is_no_event_is_passed_over_and_counted(tmp_path: Path, line: str) -> None:
    path = sidecar_file(tmp_path, [trace("a", {}), line, "", trace("b", {})])
    found = read_sidecar(path, SESSION)
    assert [it.type for it in found.events] == ["a", "b"]
    assert found.unreadable >= 1


def test_no_more_is_read_than_the_limits_allow(tmp_path: Path) -> None:
    lines = [trace(f"k{number}", {}) for number in range(10)]
    path = sidecar_file(tmp_path, lines)
    found = read_sidecar(path, SESSION, max_events=4)
    assert (len(found.events), found.left_out) == (4, 6)
    some = read_sidecar(path, SESSION, max_bytes=len(lines[0]) * 3)
    assert (len(some.events), some.unreadable) == (2, 0)
    assert some.over_bytes == path.stat().st_size - len(lines[0]) * 3
    assert MAX_SIDECAR_BYTES == 10 << 20


def test_a_sidecar_that_is_not_there_or_no_file_says_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert read_sidecar(tmp_path / "nothing", SESSION).events == []
    assert read_sidecar(tmp_path / "fifo", SESSION).events == []
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    with pytest.raises(OSError, match="symbolic"):
        read_sidecar(tmp_path / "link", SESSION)


@pytest.mark.parametrize("at", [float("inf"), -1e300, 1e18, float("nan")])
def test_a_time_that_is_none_is_told_all_the_same(at: float) -> None:
    assert iso_time(at) == "1970-01-01T00:00:00.000Z"
