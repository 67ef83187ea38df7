"""What an ACP client shows of a session: events of a run, and transcripts, as session updates.

Tools, servers and web pages wrote most of the text. A client renders titles and contents as
Markdown, so such a text stands in a code span or in a fenced block, with control characters
escaped: it can neither format, nor load an image, nor pass for our own text.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from acp import schema
from acp.helpers import ToolCallContentVariant

from clawmode.agent.events import AgentEvent
from clawmode.messages import (
    AssistantMessage,
    Image,
    Message,
    Text,
    Thinking,
    ToolMessage,
    UserMessage,
)
from clawmode.sessions.entries import Entry, NestedCall
from clawmode.sessions.sanitize import bounded, bounded_parts
from clawmode.text import escape, one_line
from clawmode.types import JsonObject, JsonValue

Update: TypeAlias = (
    schema.UserMessageChunk
    | schema.AgentMessageChunk
    | schema.AgentThoughtChunk
    | schema.ToolCallStart
    | schema.ToolCallProgress
    | schema.SessionInfoUpdate
    | schema.UsageUpdate
)

MAX_TITLE_CHARS = 100
RESTARTED = "\n\n*(The answer was cut off; the model starts again.)*\n\n"
META = "clawmode"
"""The member of `_meta` with what only clients that know clawmode can show."""

KINDS: dict[str, schema.ToolKind] = {
    "read": "read",
    "write": "edit",
    "edit": "edit",
    "apply_patch": "edit",
    "exec": "execute",
    "process": "execute",
    "web_fetch": "fetch",
}
"""The kinds of our own tools, by which a model calls them; other tools are of the kind `other`."""

CORE = "openclaw:core:"
PROGRAMS = ("exec", "wait")
"""The controls of code mode, which have the name of a tool instead of an id."""

TOLD = ("path", "command", "url", "query", "name", "runId")
"""Members of an input that tell most about a call, the best one first."""


# ---- Texts of strangers ----


def code_block(text: str, language: str = "") -> schema.ContentToolCallContent:
    """Returns a text as a fenced block, which the text cannot end."""
    shown = escape(text, "\n\t")
    longest = max(map(len, re.findall(r"`{3,}", shown)), default=2)
    fence = "`" * (longest + 1)
    return _content(f"{fence}{language}\n{shown}\n{fence}")


def code_span(text: str) -> str:
    """Returns a text as a code span on one line, which the text cannot end."""
    return f"`{one_line(text, MAX_TITLE_CHARS).replace('`', chr(0x2BB))}`"


def _content(text: str) -> schema.ContentToolCallContent:
    block = schema.TextContentBlock(type="text", text=text)
    return schema.ContentToolCallContent(type="content", content=block)


def as_text(value: JsonValue) -> str:
    """Returns a text as it is, and any other value as JSON on several lines."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def printable_value(value: Any) -> Any:
    """Returns a JSON value that every client can parse: without lone surrogates."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


# ---- Calls ----


def title_of(tool_id: str, given: JsonValue = None) -> str:
    """Returns the title of a call: the name of its tool, and what tells most about its input."""
    name = tool_id.removeprefix(CORE)
    if isinstance(given, Mapping):
        keys = ("code", *TOLD) if tool_id in PROGRAMS else TOLD
        told = next((it for key in keys if isinstance(it := given.get(key), str)), None)
        if told is not None or given:
            return f"{code_span(name)} {code_span(as_text(dict(given)) if told is None else told)}"
    return code_span(name)


def kind_of(tool_id: str) -> schema.ToolKind:
    """Returns the kind of a tool, by which clients choose an icon."""
    return KINDS.get(tool_id.removeprefix(CORE), "other")


def locations_of(
    tool_id: str, given: JsonValue, workspace: Path
) -> list[schema.ToolCallLocation] | None:
    """Returns the file that a call of a file tool is about."""
    path = given.get("path") if isinstance(given, Mapping) else None
    if not isinstance(path, str) or "\0" in path or kind_of(tool_id) not in ("read", "edit"):
        return None
    line = given.get("offset") if isinstance(given, Mapping) else None
    at = line if type(line) is int and line >= 0 else None
    return [schema.ToolCallLocation(path=str(workspace / printable_value(path)), line=at)]


def input_content(tool_id: str, given: JsonValue, workspace: Path) -> list[ToolCallContentVariant]:
    """Returns everything that a call would be made with, for the person who decides about it."""
    content: list[ToolCallContentVariant] = []
    rest = dict(given) if isinstance(given, Mapping) else {}
    path, texts = rest.get("path"), (rest.get("oldText"), rest.get("newText"), rest.get("content"))
    old, new, whole = (text if isinstance(text, str) else None for text in texts)
    if tool_id in (f"{CORE}edit", f"{CORE}write") and isinstance(path, str):
        shown = new if whole is None else whole
        if shown is not None:
            place = str(workspace / printable_value(path))
            made = {"path": place, "old_text": old, "new_text": shown}
            content.append(schema.FileEditToolCallContent(type="diff", **printable_value(made)))
            rest = {k: rest[k] for k in rest.keys() - {"oldText", "newText", "content"}}
    code = rest.pop("code", None) if tool_id in PROGRAMS else None
    if isinstance(code, str):
        content.append(code_block(code, "js"))
    if rest or not content:
        content.append(code_block(as_text(rest), "json"))
    return content


class Calls:
    """The calls of a session, as they begin and end.

    Args:
        workspace: The folder that relative paths are in.
    """

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._open: dict[str, schema.ToolCallStart] = {}
        self._parents: dict[str, str] = {}
        self._parked: dict[str, str] = {}

    def program_of(self, call_id: str) -> str:
        """Returns the open `exec` that a call is nested in; the call itself if there is none."""
        parent = self._parents.get(call_id, "")
        return parent if parent in self._open else call_id

    def resumed(self, call_id: str) -> schema.ToolCallProgress:
        """Returns an update about a call that waited for an answer of a person."""
        begun = self._open.get(call_id)
        if begun is None or call_id in self._parents:
            return self.update(call_id, status="in_progress")
        about = {"title": begun.title, "content": begun.content, "raw_input": begun.raw_input}
        return self.update(call_id, status="in_progress", **about)

    def start(
        self, call_id: str, tool_id: str, given: JsonValue = None, parent_id: str | None = None
    ) -> schema.ToolCallStart:
        """Returns the update about a call that begins."""
        about = {} if parent_id is None else {"parentToolCallId": parent_id}
        is_program = tool_id == "exec" and parent_id is None
        content = input_content(tool_id, given, self._workspace) if is_program else []
        if parent_id is not None:
            self._parents[call_id] = parent_id
        begun = self._open[call_id] = schema.ToolCallStart(
            session_update="tool_call",
            tool_call_id=call_id,
            title=title_of(tool_id, given),
            kind=kind_of(tool_id),
            status="in_progress",
            content=content or None,
            locations=locations_of(tool_id, given, self._workspace),
            raw_input=printable_value(given),
            field_meta={META: {"toolId": printable_value(tool_id), **about}},
        )
        return begun

    def update(self, call_id: str, **changes: Any) -> schema.ToolCallProgress:
        """Returns an update about a call."""
        return schema.ToolCallProgress(
            session_update="tool_call_update", tool_call_id=call_id, **changes
        )

    def detail(self, call_id: str, tool_id: str, given: JsonValue) -> schema.ToolCallProgress:
        """Returns an update with the input of a nested call."""
        return self.update(
            call_id,
            title=title_of(tool_id, given),
            locations=locations_of(tool_id, given, self._workspace),
            raw_input=printable_value(given),
        )

    def end(
        self, call_id: str, *, failed: bool, result: JsonValue = None, raw: JsonValue = None
    ) -> Iterator[schema.ToolCallProgress]:
        """Yields the updates about a call that ends.

        An `exec` whose program waits stays in progress, with the calls below it, until a `wait`
        has the end of the program.

        Args:
            call_id: The call.
            failed: True if the call has no result.
            result: The parts of the result.
            raw: The result as data.
        """
        begun = self._open.get(call_id)
        shown = (begun and begun.content) or []
        parts: list[Any] = result if isinstance(result, list) else []
        texts = [code_block(part["text"]) for part in parts if isinstance(part.get("text"), str)]
        changes = {
            "content": [*shown, *texts] if texts else None,
            "raw_output": printable_value(result if raw is None else raw),
        }
        about = raw if isinstance(raw, Mapping) else {}
        is_waiting, program = about.get("status") == "waiting", str(about.get("runId", ""))
        if is_waiting and begun is not None and begun.kind == "execute":
            self._parked[program] = call_id
            yield self.update(call_id, status="in_progress", **changes)
            return
        self._open.pop(call_id, None)
        self._parents.pop(call_id, None)
        yield self.update(call_id, status="failed" if failed else "completed", **changes)
        given = begun.raw_input if begun is not None else None
        waited = str(given.get("runId", "")) if isinstance(given, Mapping) else ""
        if not is_waiting and (ended := self._parked.pop(waited, None)) is not None:
            yield from self.end(ended, failed=failed, result=result, raw=raw)

    def abandon(self) -> Iterator[schema.ToolCallProgress]:
        """Yields the updates about all calls that are still open, at the end of their run."""
        self._parked.clear()
        for call_id in [*self._open]:
            yield from self.end(call_id, failed=True)


# ---- Events ----


def chunk_of(kind: str, text: str) -> Update:
    """Returns a part of a message: of the `user`, of the `agent`, or a `thought`."""
    block = schema.TextContentBlock(type="text", text=printable_value(text))
    if kind == "user":
        return schema.UserMessageChunk(session_update="user_message_chunk", content=block)
    if kind == "thought":
        return schema.AgentThoughtChunk(session_update="agent_thought_chunk", content=block)
    return schema.AgentMessageChunk(session_update="agent_message_chunk", content=block)


def updates_of(event: AgentEvent, calls: Calls) -> Iterator[Update]:
    """Yields the updates about an event of a run.

    In addition to the phases of an event of the stream `tool`, there are `input` and `output` with
    the input and the output of a nested call.
    """
    data: dict[str, Any] = dict(event.data)
    if event.stream in ("assistant", "thinking"):
        if data.get("reset"):
            yield chunk_of("agent", RESTARTED)
        if delta := data.get("delta"):
            yield chunk_of("agent" if event.stream == "assistant" else "thought", str(delta))
    elif event.stream == "tool":
        call_id, name = str(data["callId"]), str(data["name"])
        match data["phase"]:
            case "start":
                yield calls.start(call_id, name, data.get("args"), data.get("parentId"))
            case "input":
                yield calls.detail(call_id, name, data["args"])
            case "output":
                yield calls.update(call_id, raw_output=printable_value(data["result"]))
            case "update":
                yield calls.update(call_id, content=[code_block(as_text(data.get("update")))])
            case _:
                failed = bool(data.get("isError"))
                raw = data.get("details")
                if data.get("code") is not None:
                    raw = {"code": data["code"]}
                yield from calls.end(call_id, failed=failed, result=data.get("result"), raw=raw)


# ---- Transcripts ----


def replay(entries: Iterable[Entry], workspace: Path) -> Iterator[Update]:
    """Yields the updates that show a transcript, in its order."""
    calls = Calls(workspace)
    begun: set[str] = set()
    for entry in entries:
        if entry.message is not None:
            yield from _replay_message(entry.message, calls)
        elif entry.type == "nested":
            call = NestedCall.of(entry)
            if call.call_id not in begun:
                begun.add(call.call_id)
                yield calls.start(call.call_id, call.tool_id, None, call.parent_id)
            if call.state != "started":
                raw: JsonObject | None = None if call.code is None else {"code": call.code}
                yield from calls.end(call.call_id, failed=call.state != "completed", raw=raw)
    yield from calls.abandon()


def _replay_message(message: Message, calls: Calls) -> Iterator[Update]:
    if isinstance(message, ToolMessage):
        details = None if message.details is None else bounded(message.details)
        result = bounded_parts(message.content)
        yield from calls.end(message.call_id, failed=message.is_error, result=result, raw=details)
        return
    for part in message.content:
        if isinstance(part, Text):
            kind = "user" if isinstance(message, UserMessage) else "agent"
            yield chunk_of(kind, part.text)
        elif isinstance(part, Thinking):
            if part.text:
                yield chunk_of("thought", part.text)
        elif isinstance(part, Image):
            block = schema.ImageContentBlock(
                type="image", data=part.data, mime_type=part.media_type
            )
            yield schema.UserMessageChunk(session_update="user_message_chunk", content=block)
        elif isinstance(message, AssistantMessage):
            yield calls.start(part.id, part.name, bounded(part.arguments))
