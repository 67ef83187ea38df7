"""The files of a bundle: a session's messages, events and metadata, without secrets.

`docs/reference/trajectory.md` describes the files; `export` makes the folder for them.
"""

import hashlib
import heapq
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Iterator
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from clawmode.messages import AssistantMessage, Message, UserMessage, to_json
from clawmode.redaction import WORKSPACE, Redactor
from clawmode.sessions.trajectory import (
    MAX_EVENTS,
    MAX_LINE_BYTES,
    MAX_SIDECAR_BYTES,
    SCHEMA,
    VERSION,
    Sidecar,
    TraceEvent,
    encode_event,
    iso_time,
    without_images,
)
from clawmode.types import JsonObject, JsonValue, dataclass

if TYPE_CHECKING:
    from clawmode.sessions.entries import Header
    from clawmode.sessions.history import History
    from clawmode.sessions.tree import RunSteps, Step

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportLimits:
    """Limits of an export. A larger transcript is rejected; everything else is cut."""

    sidecar_bytes: int = MAX_SIDECAR_BYTES
    session_bytes: int = 50 << 20
    runtime_events: int = MAX_EVENTS
    total_events: int = 250_000
    line_bytes: int = MAX_LINE_BYTES


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A bundle that was written.

    Attributes:
        folder: The path of the bundle.
        files: The names of its files.
        events: The number of events in `events.jsonl`.
        runtime_events: How many of them come from the sidecar.
        skipped: The number of unreadable lines in the transcript and the sidecar.
        cut: How much is missing because of a limit, by the limit's name.
    """

    folder: Path
    files: tuple[str, ...]
    events: int
    runtime_events: int
    skipped: int
    cut: dict[str, int]


@dataclass(slots=True)
class Bundle:
    """A session, ready to be written."""

    header: "Header"
    history: "History"
    sidecar: Sidecar
    redactor: Redactor
    limits: ExportLimits
    steps: "list[Step]"
    runs: "list[RunSteps]"
    durations: dict[tuple[str, str], float] = field(init=False)
    files: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    written: dict[str, int] = field(default_factory=lambda: {"runtime": 0, "transcript": 0})
    cut: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        self.durations = self.sidecar.durations()
        self._note("sidecarBytes", self.sidecar.over_bytes)
        self._note("runtimeEvents", self.sidecar.left_out)

    def write(self, inside: int, folder: Path, now: float) -> ExportResult:
        """Writes all files to `folder`, which is open as `inside`."""
        contexts = [it for it in self.sidecar.events if it.type == "context.compiled"]
        system = _text(contexts[-1].data, "systemPrompt") if contexts else ""
        tools = contexts[-1].data.get("tools") if contexts else None
        self._file(inside, "events.jsonl", "application/jsonl", self._lines())
        header = {key: it for key, it in self.header.to_json().items() if key != "type"}
        messages: list[JsonValue] = [_plain(it, calls=True) for it in self.history.messages()]
        self._json(inside, "session-branch.json", {"header": header, "messages": messages})
        self._json(inside, "metadata.json", self._metadata())
        self._json(inside, "artifacts.json", self._artifacts())
        self._json(inside, "prompts.json", self._prompts(contexts))
        system_bytes = self.redactor.text(system).encode("utf-8", "replace")
        self._file(inside, "system-prompt.txt", "text/plain", [system_bytes])
        self._json(inside, "tools.json", tools if isinstance(tools, list) else [])
        self._json(inside, MANIFEST, self._manifest(now))
        return ExportResult(
            folder=folder,
            files=tuple(self.files),
            events=sum(self.written.values()),
            runtime_events=self.written["runtime"],
            skipped=self.history.unreadable + self.sidecar.unreadable,
            cut=dict(self.cut),
        )

    def _note(self, limit: str, count: int) -> None:
        if count:
            self.cut[limit] = self.cut.get(limit, 0) + count

    # ---- Files ----

    def _json(self, inside: int, name: str, value: JsonValue) -> None:
        plain = self.redactor.value(without_images(value))
        text = json.dumps(plain, ensure_ascii=False, indent=2) + "\n"
        self._file(inside, name, "application/json", [text.encode("utf-8", "replace")])

    def _file(self, inside: int, name: str, kind: str, content: Iterable[bytes]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        digest, size = hashlib.sha256(), 0
        with open(os.open(name, flags, 0o600, dir_fd=inside), "wb") as file:
            for chunk in content:
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
            file.flush()
            os.fsync(file.fileno())
        about: JsonObject = {"path": name, "mediaType": kind, "bytes": size}
        self.files[name] = {**about, "sha256": digest.hexdigest()}

    def _manifest(self, now: float) -> JsonObject:
        return {
            "traceSchema": SCHEMA,
            "schemaVersion": VERSION,
            "generatedAt": iso_time(now),
            "traceId": self.header.id,
            "sessionId": self.header.id,
            "sessionKey": self.header.key,
            "agentId": self.header.agent_id,
            "workspaceDir": WORKSPACE,
            "eventCount": sum(self.written.values()),
            "runtimeEventCount": self.written["runtime"],
            "transcriptEventCount": self.written["transcript"],
            "skippedLines": {
                "session": self.history.unreadable,
                "runtime": self.sidecar.unreadable,
            },
            "cut": dict[str, JsonValue](self.cut),
            "limits": {
                "sidecarBytes": self.limits.sidecar_bytes,
                "sessionBytes": self.limits.session_bytes,
                "runtimeEvents": self.limits.runtime_events,
                "totalEvents": self.limits.total_events,
                "lineBytes": self.limits.line_bytes,
            },
            "files": list(self.files.values()),
        }

    # ---- Events ----

    def _lines(self) -> Iterator[bytes]:
        """Yields the lines of `events.jsonl`, with numbers."""
        for number, event in enumerate(self._merged(), 1):
            if number > self.limits.total_events:
                self._note("totalEvents", 1)
                continue
            self.written["runtime" if event["source"] == "runtime" else "transcript"] += 1
            data = self.redactor.value(without_images(event["data"]))
            # Apart from the data: ids and times must not be cut with a line that is too long.
            head = self.redactor.value({**event, "seq": number, "data": None})
            assert isinstance(head, dict)
            line, cut = encode_event({**head, "data": data}, self.limits.line_bytes)
            self._note("lineBytes", cut)
            yield line

    def _merged(self) -> Iterator[JsonObject]:
        """Merges both sources by time. Each keeps its own order, also if the clock went back."""

        def runtime_event(it: TraceEvent) -> JsonObject:
            return self._event(
                "runtime", it.type[:100], it.at, it.run_id, it.data, sourceSeq=it.seq
            )

        blocks = heapq.merge(
            _in_order((it.at, 0, [runtime_event(it)]) for it in self.sidecar.events),
            _in_order((it.entry.at, 1, self._step_events(it)) for it in self.steps),
            key=lambda block: block[:2],
        )
        numbers = {"runtime": 0, "transcript": 0}
        for _, _, events in blocks:
            for event in events:
                source = str(event["source"])
                numbers[source] += 1
                yield {**event, "sourceSeq": event.get("sourceSeq", numbers[source])}

    def _event(
        self, source: str, kind: str, at: float, run_id: str, data: JsonObject, **more: JsonValue
    ) -> JsonObject:
        return {
            "traceSchema": SCHEMA,
            "schemaVersion": VERSION,
            "traceId": self.header.id,
            "source": source,
            "type": kind,
            "ts": iso_time(at),
            "seq": 0,
            "sessionId": self.header.id,
            "sessionKey": self.header.key,
            "runId": run_id,
            **more,
            "data": data,
        }

    def _step_events(self, step: "Step") -> list[JsonObject]:
        """Returns the event of a step, followed by those of its nested calls."""
        entry = step.entry

        def made(kind: str, data: JsonObject, at: float = entry.at) -> JsonObject:
            return self._event("transcript", kind, at, entry.run_id, data, entryId=entry.id)

        message = entry.message
        below = [made("tool.call", it.call.to_json(), it.at) for it in step.nested]
        if step.kind == "nested":
            return below
        if step.call is not None:
            call = {**self._call_summary(step), "arguments": step.call.arguments}
            return [made("tool.call", call), *below]
        if message is not None:
            kinds = {"user": "user.message", "assistant": "assistant.message"}
            return [made(kinds.get(step.kind, "tool.result"), {"message": _plain(message)})]
        if entry.type == "run":
            ended = entry.data.get("phase") == "end"
            return [made("run.ended" if ended else "run.started", entry.data)]
        return [made(f"session.{entry.type[:80]}", entry.data)]

    def _call_summary(self, step: "Step") -> JsonObject:
        assert step.call is not None
        about: JsonObject = {
            "callId": step.call.id,
            "name": step.call.name,
            "state": step.state,
            "nestedCalls": len(step.nested),
        }
        seconds = self.durations.get((step.entry.run_id, step.call.id), step.seconds)
        return about if seconds is None else {**about, "ms": round(seconds * 1000)}

    # ---- The other files ----

    def _traced(self, kind: str) -> dict[str, JsonObject]:
        """Returns the merged data of all events of a kind, by the id of their run."""
        traced: dict[str, JsonObject] = {}
        for event in self.sidecar.events:
            if event.type == kind:
                traced.setdefault(event.run_id, {}).update(event.data)
        return traced

    def _metadata(self) -> JsonObject:
        traced = self._traced("trace.metadata")
        runs: list[JsonValue] = [
            {**_run(run), "trace": traced.get(run.id)} for run in self.runs if run.id
        ]
        return {
            "clawmode": importlib.metadata.version("clawmode"),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "session": {
                "id": self.header.id,
                "key": self.header.key,
                "agentId": self.header.agent_id,
                "createdAt": iso_time(self.header.created_at),
                "workspace": WORKSPACE,
            },
            "runs": runs,
        }

    def _artifacts(self) -> JsonObject:
        traced = self._traced("trace.artifacts")
        return {
            "runs": [
                {
                    "runId": run.id,
                    "status": _status(run),
                    "finalText": next(
                        (
                            it.entry.message.text
                            for it in reversed(run.steps)
                            if isinstance(it.entry.message, AssistantMessage)
                        ),
                        "",
                    ),
                    "compactions": sum(it.entry.type == "compaction" for it in run.steps),
                    "toolCalls": [
                        {
                            **self._call_summary(it),
                            "nested": [nested.call.to_json() for nested in it.nested],
                        }
                        for it in run.steps
                        if it.call is not None
                    ],
                    "trace": traced.get(run.id),
                }
                for run in self.runs
            ]
        }

    def _prompts(self, contexts: list[TraceEvent]) -> JsonObject:
        """Returns the system prompts, each once until it changes, and all user messages."""
        systems: list[JsonValue] = []
        before: str | None = None
        for event in contexts:
            text = _text(event.data, "systemPrompt")
            if text != before:
                systems.append({"runId": event.run_id, "ts": iso_time(event.at), "text": text})
            before = text
        submitted: list[JsonValue] = [
            {"runId": it.run_id, "ts": iso_time(it.at), **it.data}
            for it in self.sidecar.events
            if it.type == "prompt.submitted"
        ]
        said: list[JsonValue] = [
            {
                "runId": it.entry.run_id,
                "ts": iso_time(it.entry.at),
                "text": "".join(getattr(part, "text", "") for part in it.entry.message.content),
            }
            for it in self.steps
            if it.kind == "user" and isinstance(it.entry.message, UserMessage)
        ]
        return {"systemPrompts": systems, "submitted": submitted, "userMessages": said}


_Block = tuple[float, int, list[JsonObject]]


def _in_order(blocks: Iterable[_Block]) -> Iterator[_Block]:
    latest = float("-inf")
    for at, source, events in blocks:
        latest = max(latest, at)
        yield latest, source, events


def _run(run: "RunSteps") -> JsonObject:
    start = {} if run.start is None else run.start.data
    end = {} if run.end is None else run.end.data
    started, ended = start.get("metadata"), end.get("metadata")
    return {
        "runId": run.id,
        "status": _status(run),
        "startedAt": None if run.start is None else iso_time(run.start.at),
        "endedAt": None if run.end is None else iso_time(run.end.at),
        "model": start.get("model"),
        "trigger": start.get("trigger"),
        "codeMode": start.get("codeMode"),
        "usage": end.get("usage"),
        "error": end.get("error"),
        "toolCalls": sum(step.call is not None for step in run.steps),
        "nestedCalls": sum(len(step.nested) for step in run.steps),
        **(started if isinstance(started, dict) else {}),
        **(ended if isinstance(ended, dict) else {}),
    }


def _status(run: "RunSteps") -> JsonValue:
    return "unfinished" if run.end is None else run.end.data.get("status")


def _plain(message: Message, *, calls: bool = False) -> JsonObject:
    """Returns a message without images, and without data for its provider only.

    Events leave out the arguments of calls, because each call has an event of its own.
    """
    made = to_json(message)
    content = made["content"]
    assert isinstance(content, list)
    dropped = {"meta", "data"} if calls else {"meta", "data", "arguments"}
    parts: list[JsonValue] = [
        {key: it for key, it in part.items() if key not in dropped}
        for part in content
        if isinstance(part, dict)
    ]
    return {**{key: it for key, it in made.items() if key != "meta"}, "content": parts}


def _text(data: JsonObject, key: str) -> str:
    found = data.get(key)
    return found if isinstance(found, str) else ""
