"""Pages of a transcript for people: the last entries before a position, with calls and results.

A transcript may be much larger than a page, so it is read line by line, and only what is on the
page is kept. Results and nested calls are shown under their call, wherever they are in the file.
"""

import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

from clawmode.messages import (
    AssistantMessage,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from clawmode.sessions.entries import Entry, NestedCall, TranscriptRefused, decode
from clawmode.sessions.history import History, open_transcript, read_into
from clawmode.text import clip, shorten
from clawmode.types import JsonObject, JsonValue

MAX_TEXT = 32_768
"""Characters of a text on a page; the member `cut` then has the length of the whole text."""

MAX_WHOLE = 4 << 20
"""Characters of a text of a single entry."""

MAX_IMAGE = 2 << 20
"""Characters of base64 of an image that a single entry contains; larger images are left out."""

MAX_NESTED = 200
"""Nested calls of one call on a page; the others have pages of their own."""

MAX_PAGE_CHARS = 2 << 20
TAIL_BYTES = 64 << 10
"""The part at the end of a transcript in which the last message is searched."""

RESULT = (
    *("status", "value", "output", "error", "code", "notes", "runId", "reason"),
    "pendingToolCalls",
)
"""The members of a program's result on a page."""

ABOUT = {
    "run": ("phase", "status", "error", "usage", "model", "trigger", "codeMode"),
    "compaction": ("summary",),
}
"""The members of other entries on a page."""

Kind: TypeAlias = Literal["program", "wait", "tool"]


class UnknownPosition(Exception):
    """The position or entry is not in the transcript."""


class _Call:
    """A call of a model, with its result and the calls that are nested in it."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.result: ToolMessage | None = None
        self.nested: OrderedDict[str, NestedCall] = OrderedDict()

    def to_json(self, limit: int) -> JsonObject:
        call, given = self.call, self.call.arguments
        arguments: JsonObject = given if isinstance(given, dict) else {"text": given}
        kind: Kind = "tool"
        if call.name == "exec" and isinstance(arguments.get("code"), str):
            kind = "program"
        elif call.name == "wait" and isinstance(arguments.get("runId"), str):
            kind = "wait"
        made: JsonObject = {"callId": call.id, "name": call.name, "kind": kind}
        if kind == "program":
            made |= _cut("code", str(arguments["code"]), limit)
            made["language"] = arguments.get("language")
        elif kind == "wait":
            made["cellId"] = arguments["runId"]
        else:
            made["input"] = clip(arguments, limit)
        made |= self._outcome(limit)
        nested = [each.to_json() for each in list(self.nested.values())[:MAX_NESTED]]
        return made | {"nested": list[JsonValue](nested), "nestedCount": len(self.nested)}

    def _outcome(self, limit: int) -> JsonObject:
        result = self.result
        if result is None:
            return {"state": "open"}
        details: Any = result.details if isinstance(result.details, dict) else {}
        state = "failed" if result.is_error else "completed"
        made: JsonObject = {
            "state": "waiting" if details.get("status") == "waiting" else state,
            "endedAt": int(result.at * 1000),
            **_cut("text", result.text, limit),
        }
        if shown := {key: details[key] for key in RESULT if details.get(key) is not None}:
            made["result"] = clip(shown, limit)
        return made


class _Unit:
    """An entry on the page, with the calls of its message."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.calls: list[_Call] = []

    def to_json(self, limit: int) -> JsonObject:
        entry = self.entry
        at = int(entry.at * 1000)
        head: JsonObject = {"id": entry.id, "type": entry.type, "runId": entry.run_id, "at": at}
        if entry.message is None:
            data = entry.data
            return head | {key: clip(data[key], limit) for key in ABOUT[entry.type] if key in data}
        return (
            head
            | _message(entry.message, limit)
            | {"calls": [call.to_json(limit) for call in self.calls]}
        )


def _cut(name: str, text: str, limit: int) -> JsonObject:
    """Returns a text as a member, shortened, with the length of the whole text if it was."""
    if len(text) <= limit:
        return {name: text}
    return {name: shorten(text, limit), "cut": len(text)}


def _message(message: Message, limit: int) -> JsonObject:
    content: list[JsonValue] = []
    for part in message.content:
        if isinstance(part, Text | Thinking):
            content.append({"type": part.type, **_cut("text", part.text, limit)})
        elif isinstance(part, Image):
            image: JsonObject = {"type": "image", "mediaType": part.media_type}
            whole = limit == MAX_WHOLE and len(part.data) <= MAX_IMAGE
            content.append({**image, "data": part.data} if whole else image)
    if not isinstance(message, AssistantMessage):
        return {"role": "user", "content": content}
    about: JsonObject = {
        "usage": message.usage.to_json(),
        "provider": message.provider,
        "model": message.model,
        "stop": message.stop,
    }
    if message.error is not None:
        about["error"] = shorten(message.error, limit)
    return {"role": "assistant", "content": content, **about}


class _Window(History):
    """Keeps the last entries before a position, and what belongs to them.

    Args:
        most: The number of entries that are kept.
        before: The id of the first entry that is not on the page; empty for the end.
        only: The id of the only entry that is wanted; empty for all.
    """

    def __init__(self, most: int, before: str = "", only: str = "") -> None:
        super().__init__()
        self._most, self._before, self._only = most, before, only
        self.units: OrderedDict[str, _Unit] = OrderedDict()
        self.found = not (before or only)
        self.more = False
        self._closed = False
        self._calls: dict[tuple[str, str], _Call] = {}

    def add(self, entry: Entry) -> None:
        """Adds an entry to the page, or to the call that it belongs to."""
        self._ids.add(entry.id)
        message = entry.message
        if entry.id == self._before:
            self.found = self._closed = True
        if isinstance(message, ToolMessage):
            call = self._calls.get((entry.run_id, message.call_id))
            if call is not None and call.result is None:
                call.result = message
        elif entry.type == "nested":
            nested = NestedCall.of(entry)
            call = self._calls.get((nested.run_id, nested.parent_id))
            if call is not None:
                call.nested[nested.call_id] = nested
        elif not self._closed and (message is not None or entry.type in ABOUT):
            self._add_unit(entry)

    def _add_unit(self, entry: Entry) -> None:
        if self._only and entry.id != self._only:
            return
        self.found = self.found or entry.id == self._only
        unit = self.units[entry.id] = _Unit(entry)
        if isinstance(entry.message, AssistantMessage):
            for call in entry.message.calls:
                made = self._calls[entry.run_id, call.id] = _Call(call)
                unit.calls.append(made)
        if len(self.units) > self._most:
            self.more = True
            _, old = self.units.popitem(last=False)
            for each in old.calls:
                key = (old.entry.run_id, each.call.id)
                if self._calls.get(key) is each:
                    del self._calls[key]


def _read(path: Path, window: _Window) -> _Window:
    if path.exists():
        read_into(window, path)
    if not window.found:
        raise UnknownPosition
    return window


def read_page(path: Path, limit: int, before: str = "") -> JsonObject:
    """Returns the last entries before a position, the newest first. Blocks: call it in a thread.

    Args:
        path: The transcript, which may be missing.
        limit: The most entries.
        before: The `next` of the page before this one; empty for the newest entries.

    Raises:
        UnknownPosition: The transcript has no such position.
        TranscriptError: The transcript cannot be read.
    """
    window = _read(path, _Window(limit, before))
    entries: list[JsonValue] = []
    room, last, more = MAX_PAGE_CHARS, "", window.more
    for unit in reversed(window.units.values()):
        shown = unit.to_json(MAX_TEXT)
        room -= len(str(shown))
        if entries and room < 0:
            more = True
            break
        entries.append(shown)
        last = unit.entry.id
    return {"entries": entries, "next": last if more else None, "unreadable": window.unreadable}


def read_entry(path: Path, entry_id: str) -> JsonObject:
    """Returns one entry with its whole texts. Blocks, and raises, as `read_page`."""
    (unit,) = _read(path, _Window(1, only=entry_id)).units.values()
    return unit.to_json(MAX_WHOLE)


def read_nested(path: Path, run_id: str, call_id: str, after: int, limit: int) -> JsonObject:
    """Returns nested calls of one call, in the order of their start.

    Blocks, and raises, as `read_page`.

    Args:
        path: The transcript.
        run_id: The run.
        call_id: The call of the model.
        after: The number of nested calls to skip.
        limit: The most nested calls.
    """
    window = _NestedCalls(run_id, call_id)
    _read(path, window)
    calls = list(window.calls.values())
    shown: list[JsonValue] = [call.to_json() for call in calls[after : after + limit]]
    following = after + limit if after + limit < len(calls) else None
    return {"calls": shown, "next": following, "total": len(calls)}


class _NestedCalls(_Window):
    """Keeps the nested calls of one call."""

    def __init__(self, run_id: str, call_id: str) -> None:
        super().__init__(1)
        self._key = run_id, call_id
        self.calls: OrderedDict[str, NestedCall] = OrderedDict()

    def add(self, entry: Entry) -> None:
        self._ids.add(entry.id)
        if entry.type == "nested":
            nested = NestedCall.of(entry)
            if (nested.run_id, nested.parent_id) == self._key:
                self.calls[nested.call_id] = nested


# ---- The last message ----


def last_message(path: Path, limit: int, hide: Callable[[str], str]) -> JsonObject | None:
    """Returns the last message of a person or a model with text; None if none is near the end.

    Only the end of the file is read, because a list shows the last message of many sessions.
    Unreadable lines are skipped. `hide` redacts secrets, before the text is cut.
    """
    try:
        with open_transcript(path) as file:
            start = max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0)
            file.seek(start)
            lines = file.read(TAIL_BYTES).split(b"\n")
    except OSError:
        return None
    for line in reversed(lines[1:] if start else lines):
        if b'"message"' not in line:
            continue
        try:
            value: Any = decode(line)
            message = Entry.parse(value).message
        except (ValueError, OverflowError, RecursionError, TranscriptRefused, AttributeError):
            continue
        if isinstance(message, UserMessage | AssistantMessage):
            words = "".join(it.text for it in message.content if isinstance(it, Text)).strip()
            if words:
                role = "user" if isinstance(message, UserMessage) else "assistant"
                shown = " ".join(hide(shorten(words, 4 * limit)).split())
                return {"role": role, "text": shorten(shown, limit), "at": int(message.at * 1000)}
    return None
