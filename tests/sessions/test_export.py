"""Bundles: nested calls below their parents, no secret in any file, all in the workspace."""

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.agent_driver import opened
from tests.support.trajectory_sessions import (
    SESSION,
    START,
    Told,
    program,
    sidecar_file,
    trace,
    two_programs,
)

from clawmode import tool
from clawmode.exceptions import ClawmodeError
from clawmode.messages import Image, ToolCall
from clawmode.redaction import Redactor
from clawmode.sessions.bundle import ExportLimits, ExportResult
from clawmode.sessions.entries import TranscriptError
from clawmode.sessions.export import EXPORTS, ExportError, export
from clawmode.testing import Turn, call

FILES = (
    "events.jsonl",
    "session-branch.json",
    "metadata.json",
    "artifacts.json",
    "prompts.json",
    "system-prompt.txt",
    "tools.json",
    "manifest.json",
)
NOW = START + 86_400


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


def exported(
    told: Told, workspace: Path, lines: list[str] | None = None, **more: Any
) -> ExportResult:
    transcript = told.write(workspace.parent / f"{SESSION}.jsonl")
    sidecar = None if lines is None else sidecar_file(workspace.parent, lines)
    return export(transcript, sidecar, workspace=workspace, now=NOW, **more)


def events_of(result: ExportResult) -> list[dict[str, Any]]:
    text = (result.folder / "events.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def read(result: ExportResult, name: str) -> Any:
    return json.loads((result.folder / name).read_text("utf-8"))


# ---- Nested calls ----


@pytest.mark.covers("TR-4")
def test_nested_calls_are_right_below_the_call_that_made_them(workspace: Path) -> None:
    result = exported(two_programs(), workspace)
    calls = [it["data"] for it in events_of(result) if it["type"] == "tool.call"]
    shown = [(it["callId"], it.get("parentId"), it["state"], it["ms"]) for it in calls]
    assert shown == [
        ("x1", None, "completed", 8_000),
        ("a", "x1", "completed", 2_500),
        ("c", "x1", "completed", 3),
        ("x2", None, "failed", 7_000),
        ("b", "x2", "failed", 7),
    ]
    assert calls[4]["toolId"] == "openclaw:core:b"
    assert calls[4]["code"] == "denied"
    (run,) = read(result, "artifacts.json")["runs"]
    below = {it["callId"]: [each["callId"] for each in it["nested"]] for it in run["toolCalls"]}
    assert below == {"x1": ["a", "c"], "x2": ["b"]}


def test_events_of_the_runtime_do_not_come_between_a_call_and_its_nested_ones(
    workspace: Path,
) -> None:
    lines = [
        trace("tool.call", {"callId": "x1", "phase": "start"}, START + second)
        for second in range(12)
    ]
    events = events_of(exported(two_programs(), workspace, lines))
    at = next(n for n, it in enumerate(events) if it["data"].get("arguments"))
    assert [it["source"] for it in events[at : at + 5]] == ["transcript"] * 5
    assert {it["source"] for it in events} == {"runtime", "transcript"}


def test_one_id_in_two_runs_or_messages_keeps_its_calls_apart(workspace: Path) -> None:
    told = Told().start()
    for nested in ("a", "b"):
        told.model("", program("x")).nested("x", nested, "completed", ms=1).result("x", "done")
    told.end().start("r2").model("", program("x"), run="r2").nested("x", "a", "started", "r2")
    result = exported(told, workspace)
    calls = [it for it in events_of(result) if it["type"] == "tool.call"]
    shown = [(it["runId"], it["data"]["callId"], it["data"]["state"]) for it in calls]
    assert shown == [
        ("r1", "x", "completed"),
        ("r1", "a", "completed"),
        ("r1", "x", "completed"),
        ("r1", "b", "completed"),
        ("r2", "x", "started"),
        ("r2", "a", "started"),
    ]
    assert "ms" not in calls[-1]["data"]


def test_nested_calls_whose_parent_is_lost_stay_together(workspace: Path) -> None:
    told = Told().start().nested("gone", "a", "started").user("hm")
    told.nested("gone", "b", "completed", ms=1).nested("gone", "a", "completed", ms=2)
    kinds = [
        (it["type"], it["data"].get("parentId")) for it in events_of(exported(told, workspace))
    ]
    assert kinds == [
        ("run.started", None),
        ("tool.call", "gone"),
        ("tool.call", "gone"),
        ("user.message", None),
    ]


@tool(effect="read")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.anyio
@pytest.mark.covers("CM-E16", "TR-4")
async def test_the_export_of_a_real_run_shows_nested_calls_below_their_program(
    tmp_path: Path, workspace: Path
) -> None:
    source = "const [a, b] = await Promise.all([tools.add({a: 1, b: 2}), tools.add({a: 3, b: 4})])"
    waiting = "await yield_control(); return await tools.add({a, b})"
    script = [
        Turn(call("exec", {"code": f"{source}; {waiting}"})),
        lambda request: Turn(call("wait", {"runId": request.last_result()["runId"]})),
        Turn("10"),
    ]
    async with opened(tmp_path / "state", script, tools=[add]) as agent:
        done = await agent.ask("Sum up 1 to 4.")
        assert (done.status, done.payloads) == ("ok", ({"text": "10"},))
        session = await agent.runtime.sessions.resolve(None)
    result = export(session.transcript, session.trajectory, workspace=workspace)
    events = [it for it in events_of(result) if it["source"] == "transcript"]
    kinds = [it["type"] for it in events]
    at = kinds.index("tool.call")
    parent = events[at]["data"]
    assert (parent["name"], parent["nestedCalls"]) == ("exec", 3)
    nested = [it["data"] for it in events[at + 1 : at + 4]]
    assert {it["parentId"] for it in nested} == {parent["callId"]}
    assert [it["toolId"] for it in nested] == ["openclaw:core:add"] * 3
    assert all(it["state"] == "completed" and it["ms"] >= 0 for it in nested)
    # The `wait` that the third was made in has none of its own.
    after = [it["data"] for it in events[at + 4 :] if it["type"] == "tool.call"]
    assert [(it["name"], it["nestedCalls"]) for it in after] == [("wait", 0)]


# ---- The files ----


def told_with_runtime() -> tuple[Told, list[str]]:
    compiled = {"systemPrompt": "Be kind.", "tools": [{"name": "exec"}], "messageCount": 1}
    lines = [
        trace("session.started", {}, START + 0.5),
        trace("trace.metadata", {"harness": "clawmode"}, START + 0.6),
        trace("context.compiled", {**compiled, "systemPrompt": "Be good."}, START + 1),
        trace("context.compiled", {**compiled, "systemPrompt": "Be good."}, START + 1),
        trace("context.compiled", compiled, START + 1),
        trace("prompt.submitted", {"prompt": "Do both."}, START + 2, seq=7),
        trace("tool.call", {"phase": "end", "callId": "x1", "ms": 1234}, START + 9),
        trace("trace.artifacts", {"answer": 42}, START + 20),
        trace("session.ended", {"status": "ok"}, START + 20),
    ]
    return two_programs(), lines


def test_a_bundle_has_all_files_and_its_manifest_knows_them(workspace: Path) -> None:
    told, lines = told_with_runtime()
    result = exported(told, workspace, lines, name="bug-1")
    assert result.folder == workspace / EXPORTS / "bug-1"
    assert result.files == FILES
    assert sorted(it.name for it in result.folder.iterdir()) == sorted(FILES)
    manifest = read(result, "manifest.json")
    for about in manifest["files"]:
        data = (result.folder / about["path"]).read_bytes()
        assert about["bytes"] == len(data)
        assert about["sha256"] == hashlib.sha256(data).hexdigest()
    assert [it["path"] for it in manifest["files"]] == list(FILES[:-1])
    events = events_of(result)
    assert (manifest["traceSchema"], manifest["schemaVersion"]) == ("openclaw-trajectory", 1)
    assert manifest["generatedAt"] == "2026-09-22T14:13:20.000Z"
    assert manifest["eventCount"] == result.events == len(events)
    assert manifest["runtimeEventCount"] == result.runtime_events == 9
    assert manifest["skippedLines"] == {"session": 0, "runtime": 0}
    assert manifest["cut"] == result.cut == {}
    assert [it["seq"] for it in events] == list(range(1, len(events) + 1))
    assert [it["ts"] for it in events if it["source"] == "runtime"] == sorted(
        it["ts"] for it in events if it["source"] == "runtime"
    )
    assert next(it for it in events if it["type"] == "prompt.submitted")["sourceSeq"] == 7


def test_what_was_sent_and_what_came_of_it_is_in_files_of_its_own(workspace: Path) -> None:
    told, lines = told_with_runtime()
    result = exported(told, workspace, lines)
    assert (result.folder / "system-prompt.txt").read_text("utf-8") == "Be kind."
    assert read(result, "tools.json") == [{"name": "exec"}]
    prompts = read(result, "prompts.json")
    assert [it["text"] for it in prompts["systemPrompts"]] == ["Be good.", "Be kind."]
    assert [it["prompt"] for it in prompts["submitted"]] == ["Do both."]
    assert [it["text"] for it in prompts["userMessages"]] == ["Do both."]
    metadata = read(result, "metadata.json")
    assert metadata["session"]["workspace"] == "$WORKSPACE_DIR"
    (run,) = metadata["runs"]
    assert (run["status"], run["model"], run["codeMode"]) == ("ok", "scripted/a", True)
    assert (run["usage"], run["toolCalls"], run["nestedCalls"]) == ({"input": 9, "output": 4}, 2, 3)
    assert run["trace"] == {"harness": "clawmode"}
    (artifact,) = read(result, "artifacts.json")["runs"]
    assert (artifact["finalText"], artifact["trace"]) == ("Both are done.", {"answer": 42})
    assert artifact["toolCalls"][0]["ms"] == 1234  # the sidecar knows better
    branch = read(result, "session-branch.json")
    assert [it["role"] for it in branch["messages"]] == [
        *("user", "assistant", "tool", "tool", "assistant"),
    ]
    assert branch["messages"][1]["content"][1]["arguments"] == {"code": "return 1"}


def test_everything_in_a_transcript_becomes_an_event(workspace: Path) -> None:
    told = Told().start().user("hi").model("thinking").add("custom", name="label", data={"a": 1})
    told.add("compaction", summary="short", firstKept=None).add("later-kind", x=1)
    told.end(status="error", error="broke", metadata={"codeModeEngaged": True})
    result = exported(told, workspace)
    events = events_of(result)
    assert [it["type"] for it in events] == [
        *("run.started", "user.message", "assistant.message", "session.custom"),
        *("session.compaction", "session.later-kind", "run.ended"),
    ]
    assert events[3]["data"] == {"name": "label", "data": {"a": 1}}
    (run,) = read(result, "metadata.json")["runs"]
    assert (run["status"], run["error"], run["codeModeEngaged"]) == ("error", "broke", True)
    assert read(result, "artifacts.json")["runs"][0]["compactions"] == 1


def test_a_run_that_was_killed_is_unfinished(workspace: Path) -> None:
    told = Told().start().user("hi").model("", program("x")).nested("x", "a", "started")
    result = exported(told, workspace, [trace("session.started", {})])
    (run,) = read(result, "metadata.json")["runs"]
    assert (run["status"], run["endedAt"]) == ("unfinished", None)
    calls = read(result, "artifacts.json")["runs"][0]["toolCalls"]
    assert [(it["state"], it["nested"][0]["state"]) for it in calls] == [("started", "started")]


def test_the_same_session_makes_the_same_bundle(workspace: Path) -> None:
    told, lines = told_with_runtime()
    first = exported(told, workspace, lines, name="a")
    second = exported(told, workspace, lines, name="b")
    for name in FILES:
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()


def test_a_history_can_be_exported_without_a_file(workspace: Path) -> None:
    history = two_programs().history(workspace.parent)
    result = export(history, None, workspace=workspace, now=NOW)
    assert result.folder.name == f"trajectory-{SESSION}-20260922T141320Z"
    assert result.runtime_events == 0


# ---- Secrets ----

KNOWN = "correct-horse-battery"
SHAPED = "sk-live0123456789abcdef"
PLANTED = [KNOWN, SHAPED, "ghp_abcdefghijklmnopqrst", "hunter2", "PIXELS", "SEALED", "dXNlcjpw"]


def full_of_secrets(workspace: Path, home: Path) -> tuple[Told, list[str]]:
    path = f"{workspace}/{KNOWN}/notes.txt in {home}/.config"
    picture = Image("PIXELS" * 300, "image/png")
    arguments: dict[str, Any] = {
        "code": f'const apiKey = "{SHAPED}"; fetch("https://me:hunter2@host/?key=hunter2")',
        "headers": {"Authorization": "Basic dXNlcjpw", "cookie": "sid=hunter2"},
        "env": ["DB_PASSWORD=hunter2", f"TOKEN={KNOWN}"],
        "argv": ["curl", "--password", "hunter2"],
        "pin": {"credentials": {"value": "hunter2"}},
    }
    told = Told(str(workspace)).start(model=f"x/{SHAPED}", metadata={"password": "hunter2"})
    told.user(f"My key is {KNOWN}, see {path}", "r1", picture)
    told.model(f"I will use {SHAPED}", ToolCall("x", "exec", arguments, {"sig": "SEALED"}))
    told.model("", ToolCall("y", "exec", json.dumps(arguments)))
    told.nested("x", f"{KNOWN}", "failed", ms=1, code=KNOWN)
    text = json.dumps({"status": "completed", "value": {"secrets": ["hunter2"]}, "at": path})
    details = {"blob": "PIXELS" * 300, "set-cookie": "hunter2", "url": f"file://{home}/a"}
    told.result("x", text, details=details)
    told.result("y", f"PASSWORD='hunter2'\n{SHAPED}", is_error=True)
    told.add("custom", name=SHAPED, data={"jwt": "hunter2", KNOWN: [KNOWN]})
    told.add("compaction", summary=f"{KNOWN} in {path}", firstKept=None)
    told.add("odd", nested=json.dumps(json.dumps({"token": "hunter2"})))
    told.model("Done.", error=f"401: {SHAPED}", meta={"sealed": "SEALED"}, provider=KNOWN)
    told.end(error=f"bad key {SHAPED}", metadata={"path": path, "accessToken": "hunter2"})
    tools = [
        {
            "name": "login",
            "description": f"Uses {SHAPED}",
            "schema": {"password": {"type": "string", "default": "hunter2"}},
        }
    ]
    lines = [
        trace("session.started", {"cwd": str(workspace), "env": {"API_KEY": "hunter2"}}),
        trace("trace.metadata", {"argv": ["--token=hunter2"], "home": str(home)}),
        trace("trace.artifacts", {"text": f"{KNOWN} {path}"}),
        trace("context.compiled", {"systemPrompt": f"Key: {SHAPED} {path}", "tools": tools}),
        trace("prompt.submitted", {"prompt": f"{KNOWN} ghp_abcdefghijklmnopqrst", "cwd": path}),
        trace("model.failed", {"text": "Authorization: Bearer hunter2"}, sessionKey=KNOWN),
        trace(SHAPED, {}, runId=KNOWN),
    ]
    return told, lines


def test_no_secret_is_in_any_file_of_a_bundle(workspace: Path, tmp_path: Path) -> None:
    home = tmp_path / "home" / "ann"
    told, lines = full_of_secrets(workspace, home)
    redactor = Redactor([KNOWN], workspace=workspace, home=home)
    result = exported(told, workspace, lines, redactor=redactor)
    assert result.skipped == 0
    for name in FILES:
        text = (result.folder / name).read_text("utf-8")
        for secret in (*PLANTED, str(workspace), str(home), str(tmp_path)):
            assert secret not in text, (name, secret)
    everything = "".join((result.folder / name).read_text("utf-8") for name in FILES)
    for kept in ("$WORKSPACE_DIR", "~/.config", "curl", "fetch(", "image/png", "completed"):
        assert kept in everything


def test_without_a_redactor_what_looks_like_a_secret_is_struck_out_all_the_same(
    workspace: Path,
) -> None:
    told = Told().start().user(f"{SHAPED} in {workspace}/a and {Path.home()}/b")
    result = exported(told, workspace)
    (said,) = read(result, "prompts.json")["userMessages"]
    assert said["text"] == "*** in $WORKSPACE_DIR/a and ~/b"


# ---- Where it goes ----


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            ".",
            "..",
            "/abs",
            "a/../b",
            "a/..",
            "../a",
            "./a",
            "a/",
            "a//b",
            "~",
            "~/a",
            "~root",
        ),
        *(".hidden", "a/.git", "a\\b", "a\x00b", "a\nb", "a\x1b[2J", "-rf", "a/b/c/d/e", "x" * 101),
        *("$HOME", "a;b", "a\u202eb", "C:a", "a*"),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(workspace: Path, name: str) -> None:
    with pytest.raises(ExportError):
        exported(two_programs(), workspace, name=name)
    assert list(workspace.iterdir()) == []


@given(st.text(max_size=30))
def test_no_name_at_all_leads_out_of_the_folder(name: str) -> None:
    from clawmode.sessions.export import _parts

    try:
        parts = _parts(name)
    except ExportError:
        return
    base = Path("/w") / EXPORTS
    assert Path(os.path.normpath(base.joinpath(*parts))).is_relative_to(base)
    assert Path(os.path.normpath(base.joinpath(*parts))) != base


@pytest.mark.parametrize("name", ["bug 1", "2026/bug.v2", "Grüße", "a+b_c-d"])
def test_a_name_within_the_folder_is_taken(workspace: Path, name: str) -> None:
    assert exported(two_programs(), workspace, name=name).folder == workspace / EXPORTS / name


@pytest.mark.parametrize("where", [EXPORTS, f"{EXPORTS}/a", f"{EXPORTS}/a/b"])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_on_the_way_is_not_followed(
    workspace: Path, tmp_path: Path, where: str, dangling: bool
) -> None:
    outside = tmp_path / "outside"
    if not dangling:
        outside.mkdir()
    (workspace / where).parent.mkdir(parents=True, exist_ok=True)
    (workspace / where).symlink_to(outside)
    with pytest.raises(ExportError):
        exported(two_programs(), workspace, name="a/b")
    assert not outside.exists() or list(outside.iterdir()) == []
    assert (workspace / where).is_symlink()


def test_what_is_there_is_not_touched_but_an_empty_folder_is_used(workspace: Path) -> None:
    taken = workspace / EXPORTS / "taken"
    taken.mkdir(parents=True)
    (taken / "mine").write_text("x", "utf-8")
    (workspace / EXPORTS / "file").write_text("x", "utf-8")
    for name in ("taken", "file"):
        with pytest.raises(ExportError):
            exported(two_programs(), workspace, name=name)
    assert [it.name for it in taken.iterdir()] == ["mine"]
    (workspace / EXPORTS / "empty").mkdir()
    exported(two_programs(), workspace, name="empty")
    with pytest.raises(ExportError):
        exported(two_programs(), workspace, name="empty")
    assert sorted(it.name for it in (workspace / EXPORTS).iterdir()) == ["empty", "file", "taken"]


def test_a_folder_that_appears_while_it_is_written_is_not_replaced(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename

    def rename(source: str, target: str, **more: Any) -> None:
        (workspace / EXPORTS / target).mkdir()
        (workspace / EXPORTS / target / "mine").write_text("x", "utf-8")
        real(source, target, **more)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(ExportError):
        exported(two_programs(), workspace, name="a")
    assert [it.name for it in (workspace / EXPORTS).iterdir()] == ["a"]
    assert [it.name for it in (workspace / EXPORTS / "a").iterdir()] == ["mine"]


def test_of_a_bundle_that_cannot_be_finished_nothing_is_left(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ExportError, match="No space left"):
        exported(two_programs(), workspace)
    assert list((workspace / EXPORTS).iterdir()) == []


def test_a_bundle_is_its_owners_alone(workspace: Path) -> None:
    result = exported(two_programs(), workspace, name="a/b")
    for folder in (workspace / EXPORTS, result.folder.parent, result.folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(it.stat().st_mode) for it in result.folder.iterdir()} == {0o600}


def test_a_missing_workspace_or_transcript_is_reported(tmp_path: Path) -> None:
    transcript = two_programs().write(tmp_path / "t.jsonl")
    with pytest.raises(ExportError):
        export(transcript, None, workspace=tmp_path / "none")
    with pytest.raises(TranscriptError):
        export(tmp_path / "none.jsonl", None, workspace=tmp_path)
    (tmp_path / "link.jsonl").symlink_to(transcript)
    with pytest.raises(ClawmodeError):
        export(tmp_path / "link.jsonl", None, workspace=tmp_path)
    with pytest.raises(ExportError):
        export(transcript, tmp_path / "link.jsonl", workspace=tmp_path)


# ---- What is broken, and what is too much ----


def test_broken_lines_are_left_out_and_counted(workspace: Path) -> None:
    told = two_programs()
    told.lines[3:3] = ["not json", '{"type":"message","id":"z","at":1}']
    lines = [trace("session.started", {}), "{", trace("x", {}, sessionId="another")]
    transcript = told.write(workspace.parent / f"{SESSION}.jsonl")
    with transcript.open("a", encoding="utf-8") as file:
        file.write('{"type":"message","id":"half')
    sidecar = sidecar_file(workspace.parent, lines)
    with sidecar.open("a", encoding="utf-8") as file:
        file.write(trace("session.ended", {})[:90])
    result = export(transcript, sidecar, workspace=workspace, now=NOW)
    assert read(result, "manifest.json")["skippedLines"] == {"session": 2, "runtime": 3}
    assert (result.skipped, result.runtime_events) == (5, 1)


def test_a_session_without_its_first_line_is_called_like_its_file(workspace: Path) -> None:
    told = two_programs()
    told.lines[0] = "torn"
    result = exported(told, workspace, [trace("session.started", {})])
    assert read(result, "manifest.json")["sessionId"] == SESSION
    assert result.runtime_events == 1


def test_times_that_are_none_or_go_back_keep_the_order(workspace: Path) -> None:
    told = Told().start()
    for now in (1e308, -5.0, START):
        told.now = now
        told.user(f"at {now}")
    result = exported(told.end(), workspace, [trace("session.ended", {}, START + 99)])
    kinds = [it["type"] for it in events_of(result) if it["source"] == "transcript"]
    assert kinds == ["run.started", *["user.message"] * 3, "run.ended"]


def test_what_is_over_a_limit_is_cut_and_the_manifest_says_so(workspace: Path) -> None:
    told = Told().start().user("word " * 100_000)
    for number in range(20):
        told.add("custom", name=f"n{number}", data=None)
    lines = [trace(f"k{number}", {}) for number in range(10)]
    limits = ExportLimits(runtime_events=4, total_events=10, line_bytes=2_000)
    result = exported(told, workspace, lines, limits=limits)
    assert result.cut == {"runtimeEvents": 6, "totalEvents": 16, "lineBytes": 1}
    assert (result.events, result.runtime_events) == (10, 4)
    manifest = read(result, "manifest.json")
    assert manifest["cut"] == result.cut
    assert manifest["limits"]["totalEvents"] == 10
    longest = max((result.folder / "events.jsonl").read_bytes().splitlines(True), key=len)
    assert len(longest) <= 2_000
    # The session as it is told to a model again is not cut.
    assert "word " * 100_000 in (result.folder / "session-branch.json").read_text("utf-8")
    small = exported(told, workspace, lines, limits=ExportLimits(sidecar_bytes=1_000), name="b")
    assert small.cut["sidecarBytes"] > 0


def test_a_session_that_is_too_large_is_refused(workspace: Path) -> None:
    with pytest.raises(ExportError, match="cannot be exported"):
        exported(two_programs(), workspace, limits=ExportLimits(session_bytes=100))
    assert list(workspace.iterdir()) == []
    limits = ExportLimits()
    assert (limits.sidecar_bytes, limits.session_bytes, limits.line_bytes) == (
        *(10 << 20, 50 << 20, 256 << 10),
    )
    assert (limits.runtime_events, limits.total_events) == (200_000, 250_000)


def test_thousands_of_nested_calls_are_all_there(workspace: Path) -> None:
    told = Told().start().model("", *(program(f"x{number}") for number in range(100)))
    for number in range(4_000):
        told.nested(f"x{number % 100}", f"n{number}", "completed", ms=1)
    result = exported(told, workspace)
    assert result.events == 4_102
