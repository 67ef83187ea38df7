"""Files of earlier releases are still read: `recorded/` has one of each kind.

The files were written before records on disk were read through pydantic. They are never written
again: a format that changes gets another file beside the old one. SQLite files are kept as the
statements that make them.
"""

import json
import shutil
import sqlite3
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from clawmode.agent.requests import AgentRequest
from clawmode.core_tools.exec_approvals import AllowlistEntry, ExecRules, HostFile, HostRules
from clawmode.cron.job import Job
from clawmode.cron.jobs import Claim, Jobs, JobStatus
from clawmode.cron.ledger import RunRecord
from clawmode.gateway.ledger import Ledger, RequestRecord, RunRow
from clawmode.gateway.restart import request_of
from clawmode.mcp.login import make_auth
from clawmode.mcp.settings import OAuth, ServerSettings
from clawmode.messages import (
    AssistantMessage,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from clawmode.messaging.channel import InboundMessage
from clawmode.plugins import manifest
from clawmode.plugins.manifest import Manifest
from clawmode.rpc import presence
from clawmode.rpc.presence import RunningGateway
from clawmode.rpc.scopes import SCOPES
from clawmode.rpc.tokens import Token, Tokens
from clawmode.sessions.entries import Entry, Header, NestedCall
from clawmode.sessions.history import read_transcript
from clawmode.sessions.store import Session, SessionStore
from clawmode.sessions.trajectory import Sidecar, TraceEvent, read_sidecar
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio

RECORDED = Path(__file__).parent / "recorded"
T0 = 1_790_000_000.0
SESSION_ID = "0123456789abcdef0123456789abcdef"


def restore(name: str, path: Path) -> None:
    database = sqlite3.connect(path)
    database.executescript((RECORDED / name).read_text(encoding="utf-8"))
    database.close()


# ---- Sessions ----


def entry(
    number: int, kind: str, run_id: str, at: float, message: Message | None = None, **data: object
) -> Entry:
    members: JsonObject = json.loads(json.dumps(data))
    return Entry(
        type=kind, id=f"{number:016x}", run_id=run_id, at=T0 + at, data=members, message=message
    )


def test_a_transcript_is_read_with_every_kind_of_entry() -> None:
    history = read_transcript(RECORDED / "transcript.jsonl")
    assert history.problems == []
    assert history.header == Header(
        id=SESSION_ID, key="agent:main:main", agent_id="main", created_at=T0, workspace="/srv/work"
    )
    assert list(history.entries) == TRANSCRIPT
    assert {run_id: run.unanswered for run_id, run in history.open_runs().items()} == {
        "run-2": (ToolCall("c3", "read", {}),)
    }
    assert history.nested_calls() == [
        NestedCall("run-1", "c1", "c1:1", "core:read", "completed", 12),
        NestedCall("run-1", "c1", "c1:2", "mcp:files.read", "failed", 1500, "tool_error"),
    ]


def test_a_transcript_is_written_as_it_was() -> None:
    lines = (RECORDED / "transcript.jsonl").read_text(encoding="utf-8").splitlines()
    history = read_transcript(RECORDED / "transcript.jsonl")
    assert history.header is not None
    written = [history.header.to_json(), *(each.to_json() for each in history.entries)]
    assert [list(each.items()) for each in written] == [
        list(json.loads(line).items()) for line in lines
    ]


TRANSCRIPT = [
    entry(
        1,
        "run",
        "run-1",
        0.25,
        phase="start",
        model="openai/gpt-x",
        trigger="cron",
        codeMode=True,
        metadata={"jobId": "nightly"},
    ),
    entry(
        2,
        "message",
        "run-1",
        0.75,
        UserMessage(content=(Text("Grüße 🙂 \ud83d"), Image("aGVsbG8=", "image/png")), at=T0 + 0.5),
    ),
    entry(
        3,
        "message",
        "run-1",
        1.25,
        AssistantMessage(
            content=(
                Thinking("", {"signature": "abc"}),
                Text("I look.", {"id": "m1"}),
                ToolCall(
                    "c1",
                    "exec",
                    {
                        "command": "text(1)",
                        "n": 12345678901234567890,
                        "f": 1.5,
                        "x": None,
                        "l": [True],
                    },
                    {"id": "fc_1"},
                ),
                ToolCall("c2", "wait", '{"runId": '),
            ),
            provider="openai",
            model="gpt-x",
            usage=Usage(10, 20, 30, 40),
            stop="tool_calls",
            meta={"responseId": "r1"},
            at=T0 + 1,
        ),
    ),
    entry(
        4,
        "nested",
        "run-1",
        1.5,
        parentId="c1",
        callId="c1:1",
        toolId="core:read",
        state="started",
    ),
    entry(
        5,
        "nested",
        "run-1",
        1.75,
        parentId="c1",
        callId="c1:1",
        toolId="core:read",
        state="completed",
        ms=12,
    ),
    entry(
        6,
        "nested",
        "run-1",
        2,
        parentId="c1",
        callId="c1:2",
        toolId="mcp:files.read",
        state="failed",
        ms=1500,
        code="tool_error",
    ),
    entry(
        7,
        "message",
        "run-1",
        2.5,
        ToolMessage(
            call_id="c1",
            name="exec",
            content=(Text("1"), Image("aGk=", "image/jpeg")),
            details={"status": "completed", "value": [1, {"a": None}]},
            at=T0 + 2.25,
        ),
    ),
    entry(
        8,
        "message",
        "run-1",
        3,
        ToolMessage(
            call_id="c2",
            name="wait",
            content=(Text("bad arguments"),),
            is_error=True,
            details={"persistedDetailsTruncated": True, "originalBytes": 71703},
            at=T0 + 2.75,
        ),
    ),
    entry(
        9,
        "message",
        "run-1",
        3.5,
        AssistantMessage(
            content=(Text("Half an ans"),),
            provider="openai",
            model="gpt-x",
            stop="error",
            error="the connection was lost",
            at=T0 + 3.25,
        ),
    ),
    entry(
        10,
        "run",
        "run-1",
        3.75,
        phase="end",
        status="error",
        error="the connection was lost",
        usage={"input": 10, "output": 20, "cacheRead": 30, "cacheWrite": 40},
        metadata={"turns": 2},
    ),
    entry(11, "run", "run-2", 4, phase="start", model="", trigger="", codeMode=False),
    entry(12, "message", "run-2", 4.5, UserMessage(content=(Text("Again."),), at=T0 + 4.25)),
    entry(
        13,
        "compaction",
        "run-2",
        4.75,
        summary="They talked.",
        firstKept="000000000000000b",
        metadata={"tokensBefore": 123},
    ),
    entry(14, "compaction", "", 5, summary="Everything is forgotten.", firstKept=None),
    entry(15, "custom", "run-2", 5.25, name="note", data={"any": ["thing", 1, None]}),
    entry(16, "message", "", 5.75, UserMessage(content=(Text("Outside of a run."),), at=T0 + 5.5)),
    entry(
        17,
        "message",
        "run-2",
        6.25,
        AssistantMessage(content=(ToolCall("c3", "read", {}),), stop="tool_calls", at=T0 + 6),
    ),
    entry(
        18,
        "run",
        "run-2",
        6.75,
        phase="resume",
        model="anthropic/claude",
        trigger="",
        codeMode=False,
    ),
]


async def test_the_index_of_sessions_is_read(tmp_path: Path) -> None:
    restore("sessions.sql", tmp_path / "sessions.sqlite3")
    store = SessionStore(tmp_path)
    old, room, new = (f"0000000000004000800000000000001{n}" for n in (3, 4, 5))
    data: JsonObject = {"thinking": "high", "nested": {"a": [1, None]}}
    current = Session(
        key="agent:main:main",
        id=new,
        agent_id="main",
        transcript=tmp_path / "main" / f"{new}.jsonl",
        created_at=T0 + 7.75,
        updated_at=T0 + 7.75,
        title="A title: ü",
        model="openai/gpt-x",
        data=data,
    )
    assert await store.list() == [
        current,
        Session(
            key="agent:ops:chat:room-1",
            id=room,
            agent_id="ops",
            transcript=tmp_path / "ops" / f"{room}.jsonl",
            created_at=T0 + 7.25,
            updated_at=T0 + 7.25,
        ),
    ]
    assert await store.get(old) == Session(
        key="agent:main:main",
        id=old,
        agent_id="main",
        transcript=tmp_path / "main" / f"{old}.jsonl",
        created_at=T0 + 7,
        updated_at=T0 + 7.5,
        current=False,
        title="A title: ü",
        model="openai/gpt-x",
        last_status="ok",
        usage=Usage(1, 2, 3, 4),
        data=data,
    )
    store.close()


def test_a_trajectory_is_read() -> None:
    assert read_sidecar(RECORDED / "trajectory.jsonl", SESSION_ID) == Sidecar(
        [
            TraceEvent(1, T0 + 8, "run-1", "session.started", {"model": "openai/gpt-x"}),
            TraceEvent(
                2,
                T0 + 8.25,
                "run-1",
                "model.request",
                {"messages": [{"role": "user", "text": "Grüße 🙂"}], "n": 1.5, "none": None},
            ),
            TraceEvent(
                3, T0 + 8.5, "run-1", "tool.call", {"callId": "c1", "ms": 1250, "tool": "exec"}
            ),
        ]
    )


# ---- Cron ----


async def test_cron_jobs_are_read_with_their_state_and_their_runs(tmp_path: Path) -> None:
    restore("cron.sql", tmp_path / "cron.sqlite3")
    jobs = Jobs(tmp_path, clock=lambda: T0 + 12)
    runs = [f"0000000000004000800000000000001{n}" for n in (6, 7, 8)]
    nightly = Job(
        id="nightly",
        message="Tidy up. Grüße",
        cron="0 3 * * *",
        tz="Europe/Berlin",
        agent="ops",
        model="openai/gpt-x",
        thinking="high",
        timeout_seconds=90.5,
        channel="room",
        target="#ops",
    )
    assert await jobs.list() == [
        JobStatus(
            job=nightly,
            due=T0 + 38_800,
            running=True,
            runs=(RunRecord(runs[2], T0 + 11.25, None, "running"),),
        ),
        JobStatus(
            job=Job(id="off", message="Never.", every="1h", enabled=False, timeout_seconds=60),
            due=None,
        ),
        JobStatus(
            job=Job(id="often", message="Look.", every="15m"),
            due=T0 + 909.25,
            runs=(
                RunRecord(
                    runs[1],
                    T0 + 10.75,
                    T0 + 11,
                    "error",
                    "the model failed",
                    "agent:main:cron:often",
                ),
                RunRecord(runs[0], T0 + 10.25, T0 + 10.5, "ok", "", "agent:main:cron:often"),
            ),
        ),
        JobStatus(
            job=Job(id="once", message="Now.", at="2030-01-02T03:04:05", tz="UTC"),
            due=1_893_553_445.0,
        ),
    ]
    adopted = await jobs.adopt(runs[2], "another")
    assert adopted == Claim(job=nightly, run_id=runs[2], owner="another", forced=True)
    jobs.close()


# ---- Approvals of commands, and plugins ----


def test_the_approvals_of_commands_are_read_and_changed(tmp_path: Path) -> None:
    path = Path(shutil.copy(RECORDED / "exec-approvals.json", tmp_path))
    file = HostFile(path)
    assert file.for_agent("main") == HostRules(
        ExecRules(security="allowlist", ask="always", ask_fallback="deny"),
        (
            AllowlistEntry(id="00000000-0000-4000-8000-000000000019", pattern="/usr/bin/git"),
            AllowlistEntry(id="00000000-0000-4000-8000-00000000001A", pattern="/opt/tool"),
        ),
    )
    assert file.for_agent("ops") == HostRules(
        ExecRules(security="full", ask="on-miss", ask_fallback="deny")
    )
    assert file.for_agent("other") == HostRules(
        ExecRules(security="allowlist", ask="on-miss", ask_fallback="deny")
    )
    before = file.read()
    assert before == json.loads(path.read_bytes())
    file.remember("main", ["/bin/ls"], "ls")
    after: dict[str, Any] = file.read()
    added = after["agents"]["main"]["allowlist"].pop()
    assert (added["pattern"], added["lastUsedCommand"]) == ("/bin/ls", "ls")
    assert after == before


def test_a_plugin_manifest_is_read() -> None:
    assert manifest.load(RECORDED) == Manifest(
        id="weather-station",
        name="Weather",
        version="1.2.3",
        description="Reads the weather. ü",
        entry="weather.plugin:register",
        skills=("skills", "more/skills"),
        config_schema={"type": "object", "properties": {"city": {"type": "string"}}},
        tools=("weather",),
        hooks=("before_tool_call",),
        namespaces=(),
    )


# ---- MCP ----


async def test_the_oauth_tokens_of_a_server_are_read(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "oauth", tmp_path / "oauth")
    settings = ServerSettings(
        name="files", url="https://mcp.example/mcp", transport="streamable-http", auth=OAuth()
    )
    auth: Any = make_auth(settings, None, tmp_path / "oauth", nullcontext)
    storage = auth._inner.context.storage
    tokens, client = await storage.get_tokens(), await storage.get_client_info()
    assert tokens.model_dump() == {
        "access_token": "recorded-access",
        "token_type": "Bearer",
        "expires_in": 3600,
        "scope": "read write",
        "refresh_token": "recorded-refresh",
    }
    assert (client.client_id, client.client_secret) == ("client-1", "recorded-secret")
    assert [str(each) for each in client.redirect_uris] == ["http://127.0.0.1:33418/callback"]


# ---- The gateway ----


def test_the_tokens_of_a_gateway_are_read() -> None:
    tokens = Tokens(RECORDED)
    laptop, other = tokens.list()
    assert laptop == Token(
        name="laptop",
        digest="f22e39ab36c6e65e926de8a354082e8fb3ded6f64c31ecf097570cdc719342d1",
        scopes=SCOPES,
        created_at=1_790_000_012,
    )
    assert other == Token(
        name="läptop 2",
        digest="9b724f3a29d8afe51feca1089febd79a4a9e59e9dbe0742afb5b0781fd8a1be8",
        scopes=("operator.read",),
        created_at=1_790_000_012,
    )
    assert tokens.find("cm_recorded-token-27") == laptop
    assert tokens.find("cm_recorded-token-28") == other


def test_the_announcement_of_a_gateway_is_read() -> None:
    assert presence.find(RECORDED) == RunningGateway(
        pid=4711,
        url="ws://127.0.0.1:18789",
        version="0.1.0",
        started_at=T0,
        token="cm_recorded",
        cert="cert.pem",
        config="clawmode.json5",
    )


async def test_the_requests_and_messages_of_a_gateway_are_read(tmp_path: Path) -> None:
    restore("gateway.sql", tmp_path / "gateway.sqlite3")
    ledger = Ledger(tmp_path, "process-2")
    assert await ledger.begin("laptop", "agent", "key-1", "digest-1") == RequestRecord(
        "done", {"runId": "run-1", "ok": [1, None]}
    )
    assert await ledger.begin("laptop", "agent", "key-2", "digest-2") == RequestRecord("lost")
    assert await ledger.run_of("message-1") == "run-1"
    [(message_id, session_key, text)] = await ledger.messages()
    assert (message_id, session_key) == ("message-2", "agent:ops:main")
    assert InboundMessage.from_json(json.loads(text)) == InboundMessage(
        channel="room",
        target="#ops",
        sender="ada",
        text="Hallo ü",
        id="42",
        images=(Image("aGk=", "image/png"),),
        agent_id="ops",
        session_key="agent:ops:main",
        operator=True,
    )
    ledger.close()


async def test_the_runs_of_a_gateway_are_read_and_can_be_resumed(tmp_path: Path) -> None:
    restore("gateway.sql", tmp_path / "gateway.sqlite3")
    ledger = Ledger(tmp_path, "process-2")
    ended = await ledger.run("run-1")
    assert ended is not None
    assert ended == RunRow(
        id="run-1",
        session_key="agent:main:main",
        session_id=SESSION_ID,
        agent_id="main",
        request=ended.request,
        accepted_at=T0 + 13.75,
        started_at=T0 + 14.25,
        ended_at=T0 + 14.5,
        status="ok",
        result={"runId": "run-1", "status": "ok", "payloads": [{"text": "Done."}]},
    )
    assert request_of(ended, resume=True) == AgentRequest(
        message="Do it. ü",
        images=(Image("aGk=", "image/png"),),
        session_id=SESSION_ID,
        run_id="run-1",
        model="openai/gpt-x",
        thinking="low",
        verbose="full",
        trace=False,
        timeout_seconds=12.5,
        system="Be short.",
        disable_tools=True,
        resume=True,
        sender="ada",
        channel="room",
        origin="webhook",
        target="#ops",
        trigger="cron",
        cron_seconds=60.0,
    )
    [waiting] = await ledger.unfinished()
    assert request_of(waiting, resume=False) == AgentRequest(
        message="Wait.", session_id=SESSION_ID, run_id="run-2"
    )
    ledger.close()
