"""What the tests of trajectories have in common: sessions that never took place."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clawmode.messages import (
    AssistantMessage,
    Image,
    Message,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    to_json,
)
from clawmode.sessions.entries import Header
from clawmode.sessions.history import History, read_transcript
from clawmode.sessions.trajectory import iso_time

START = 1_790_000_000.0
SESSION = "0a1b2c3d-session"


class Told:
    """A session, told line by line; each takes a second."""

    def __init__(self, workspace: str = "/srv/work") -> None:
        header = Header(
            id=SESSION,
            key="agent:main:main",
            agent_id="main",
            created_at=START,
            workspace=workspace,
        )
        self.lines: list[str] = [json.dumps(header.to_json())]
        self.now = START

    def add(self, kind: str, run: str = "r1", **data: Any) -> "Told":
        self.now += 1
        head = {"type": kind, "id": f"e{len(self.lines)}", "runId": run, "at": self.now}
        self.lines.append(json.dumps({**head, **data}))
        return self

    def start(self, run: str = "r1", **data: Any) -> "Told":
        about = {"phase": "start", "model": "scripted/a", "trigger": "cli", "codeMode": True}
        return self.add("run", run, **{**about, **data})

    def end(self, run: str = "r1", status: str = "ok", **data: Any) -> "Told":
        return self.add("run", run, phase="end", status=status, **data)

    def say(self, message: Message, run: str = "r1") -> "Told":
        return self.add("message", run, message=to_json(message))

    def user(self, text: str, run: str = "r1", *images: Image) -> "Told":
        return self.say(UserMessage(content=(Text(text), *images), at=0), run)

    def model(self, text: str, *calls: ToolCall, run: str = "r1", **more: Any) -> "Told":
        content = (Text(text), *calls) if text else calls
        return self.say(AssistantMessage(content=content, at=0, **more), run)

    def result(self, call_id: str, text: str, run: str = "r1", **more: Any) -> "Told":
        content = (Text(text),)
        return self.say(ToolMessage(call_id=call_id, name="t", content=content, at=0, **more), run)

    def nested(self, parent: str, call_id: str, state: str, run: str = "r1", **more: Any) -> "Told":
        ids = {"parentId": parent, "callId": call_id, "toolId": f"openclaw:core:{call_id}"}
        return self.add("nested", run, **ids, state=state, **more)

    def write(self, path: Path) -> Path:
        path.write_text("".join(f"{line}\n" for line in self.lines), "utf-8")
        return path

    def history(self, folder: Path) -> History:
        return read_transcript(self.write(folder / f"{SESSION}.jsonl"))


def program(call_id: str, code: str = "return 1") -> ToolCall:
    return ToolCall(call_id, "exec", {"code": code})


def two_programs() -> Told:
    """Two `exec` calls of one message, whose nested calls take turns."""
    told = Told().start().user("Do both.").model("Sure.", program("x1"), program("x2"))
    told.nested("x1", "a", "started").nested("x2", "b", "started").nested("x1", "c", "started")
    told.nested("x2", "b", "failed", ms=7, code="denied").nested("x1", "c", "completed", ms=3)
    told.nested("x1", "a", "completed", ms=2500)
    told.result("x2", "failed", is_error=True).result("x1", "done")
    return told.model("Both are done.").end(usage={"input": 9, "output": 4})


def trace(kind: str, data: Any, at: float = START, **more: Any) -> str:
    """A line of a sidecar."""
    event: dict[str, Any] = {
        "traceSchema": "openclaw-trajectory",
        "schemaVersion": 1,
        "source": "runtime",
        "type": kind,
        "ts": iso_time(at),
        "seq": 1,
        "traceId": SESSION,
        "sessionId": SESSION,
        "sessionKey": "agent:main:main",
        "runId": "r1",
        "agentId": "main",
        "data": data,
    }
    return json.dumps({**event, **more})


def sidecar_file(folder: Path, lines: Iterable[str]) -> Path:
    path = folder / f"{SESSION}.trajectory.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path
