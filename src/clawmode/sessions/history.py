"""What was said and done in a session: entries, read from its transcript, and what they come to.

Reading survives whatever a crash, a full disk or an editor left behind. What a model is told of it
again is `History.messages`. How transcripts are written is `transcript`'s business.
"""

import json
import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, ClassVar, NoReturn

from clawmode.exceptions import ClawmodeError
from clawmode.messages import (
    AssistantMessage,
    Message,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    from_json,
    to_json,
)
from clawmode.types import JsonObject, JsonValue

logger = logging.getLogger("clawmode.sessions")

VERSION = 1
MAX_LINE_BYTES = 16 << 20
READ_BYTES = 1 << 20
MAX_PROBLEMS = 100
"""Unreadable lines that are told one by one; all of them are counted."""

UNANSWERED = "The process ended before this call was answered: whether it took effect is unknown."
NEVER_ANSWERED = (
    "[No model answered the following message when it came. Do not act on it unless the person "
    "asks again.]\n"
)
SUMMARIZED = "[What was said before, in short:]\n\n"


class TranscriptError(ClawmodeError):
    """Something cannot be written to a transcript; nothing of it was."""

    code: ClassVar[str] = "session_unavailable"


class TranscriptRefused(TranscriptError):
    """The file is another version's, or another session's. It was left as it is."""


# ---- Entries ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line: which session this is.

    Attributes:
        workspace: The folder that its runs work in; empty if they have none.
    """

    id: str
    key: str
    agent_id: str
    created_at: float
    workspace: str = ""

    def to_json(self) -> JsonObject:
        """As it is kept."""
        return {
            "type": "session",
            "version": VERSION,
            "id": self.id,
            "key": self.key,
            "agentId": self.agent_id,
            "createdAt": self.created_at,
            "workspace": self.workspace,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line after the first.

    Attributes:
        type: `run`, `message`, `nested`, `compaction`, `custom`, or one that a later release adds.
        data: The rest of the line; empty for a message.
        message: What was said, if something was.
    """

    type: str
    id: str
    run_id: str
    at: float
    data: JsonObject = field(default_factory=dict[str, JsonValue])
    message: Message | None = None

    def to_json(self) -> JsonObject:
        """As it is kept."""
        head: JsonObject = {"type": self.type, "id": self.id, "runId": self.run_id, "at": self.at}
        if self.message is not None:
            return {**head, "message": to_json(self.message)}
        return {**head, **self.data}


@dataclass(frozen=True, slots=True)
class Problem:
    """A line that could not be read. It stays in the file."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that has begun and not ended: it is under way, or its process ended before it.

    Attributes:
        start: What was recorded when it began.
        last: The last thing that was said in it.
        unanswered: Calls without a result, in order. Those that are not under way were lost.
    """

    id: str
    start: Entry
    last: Message | None
    unanswered: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class NestedCall:
    """A call that a program made.

    Attributes:
        parent_id: The `exec` call that it is nested in.
        state: `started`, if its end was never recorded.
    """

    run_id: str
    parent_id: str
    call_id: str
    tool_id: str
    state: str
    ms: int = 0
    code: str | None = None


_HEAD = ("type", "id", "runId", "at")


# ---- What a transcript says ----


class History:
    """A session's past: entries in order, and what they come to."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.problems: list[Problem] = []
        self.unreadable = 0
        self._entries: list[Entry] = []
        self._ids: set[str] = set()
        self._open: dict[str, Entry] = {}
        self._ended: set[str] = set()
        self._unanswered: defaultdict[str, dict[str, ToolCall]] = defaultdict(dict)
        self._last: dict[str, Message] = {}

    @property
    def entries(self) -> Sequence[Entry]:
        """All of them, in order."""
        return self._entries

    def open_runs(self) -> Mapping[str, OpenRun]:
        """Runs without an end, by their ids, oldest first."""
        return {
            run_id: OpenRun(
                run_id, start, self._last.get(run_id), tuple(self._unanswered[run_id].values())
            )
            for run_id, start in self._open.items()
        }

    def nested_calls(self, parent_id: str | None = None) -> list[NestedCall]:
        """Calls that programs made, in the order they were started; all, or those of one `exec`."""
        calls: dict[tuple[str, str, str], NestedCall] = {}
        for entry in self._entries:
            if entry.type == "nested":
                call = _nested_call(entry)
                if parent_id in (None, call.parent_id):
                    calls[call.run_id, call.parent_id, call.call_id] = call
        return list(calls.values())

    def messages(self) -> list[Message]:
        """The conversation as a model is told it again.

        Every call is followed by exactly one result, in the order of the calls. Not to be asked
        while calls are under way: they would count as lost.
        """
        summary, entries = self._since_compaction()
        turns: list[tuple[Message, dict[str, ToolMessage]]] = []
        wanted: dict[tuple[str, str], dict[str, ToolMessage]] = {}
        for run_id, message in self._without_repeats(entries):
            if isinstance(message, ToolMessage):
                # Popped: a second result finds nobody who waits for it.
                results = wanted.pop((run_id, message.call_id), None)
                if results is not None:
                    results[message.call_id] = message
            elif (told := _replayed(message)) is not None:
                results = {}
                turns.append((told, results))
                for call in _calls_of(told):
                    wanted[run_id, call.id] = results
        made: list[Message] = [] if summary is None else [summary]
        for message, results in turns:
            made.append(message)
            made += [results.get(call.id) or _lost(call, message.at) for call in _calls_of(message)]
        return made

    def _without_repeats(
        self, entries: Iterator[tuple[str, Message]]
    ) -> Iterator[tuple[str, Message]]:
        """Marks what people said that no model answered; of the same words, only the last stay.

        Somebody who repeats an order after an error wants one order.
        """
        said = list(entries)
        answered: set[str] = set()
        again: set[tuple[str, ...]] = set()
        made: list[tuple[str, Message]] = []
        for run_id, message in reversed(said):
            if isinstance(message, AssistantMessage) and _replayed(message) is not None:
                answered.add(run_id)
            elif isinstance(message, UserMessage):
                lost = run_id in self._ended and run_id not in answered
                words = tuple(
                    it.text if isinstance(it, Text) else it.data for it in message.content
                )
                if lost and words in again:
                    continue
                again.add(words)
                if lost:
                    message = replace(message, content=(Text(NEVER_ANSWERED), *message.content))
            made.append((run_id, message))
        return reversed(made)

    def _since_compaction(self) -> tuple[UserMessage | None, Iterator[tuple[str, Message]]]:
        """The summary of what came before, and what was said since."""
        summary: UserMessage | None = None
        first = 0
        found = (at for at in reversed(range(len(self._entries))) if self._is_compaction(at))
        if (last := next(found, None)) is not None:
            entry = self._entries[last]
            text = f"{SUMMARIZED}{entry.data.get('summary', '')}"
            summary = UserMessage(content=(Text(text),), at=entry.at)
            kept = entry.data.get("firstKept")
            ids = (at for at in range(last) if self._entries[at].id == kept)
            first = next(ids, last)
        said = ((it.run_id, it.message) for it in self._entries[first:] if it.message is not None)
        return summary, said

    def _is_compaction(self, position: int) -> bool:
        return self._entries[position].type == "compaction"

    # ---- Growing ----

    def add(self, entry: Entry) -> None:
        """One more entry."""
        self._entries.append(entry)
        self._ids.add(entry.id)
        message = entry.message
        if entry.type == "run":
            self._follow_run(entry)
        elif isinstance(message, ToolMessage):
            self._unanswered[entry.run_id].pop(message.call_id, None)
        elif isinstance(message, AssistantMessage) and (told := _replayed(message)) is not None:
            for call in _calls_of(told):
                self._unanswered[entry.run_id][call.id] = call
        if message is not None:
            self._last[entry.run_id] = message

    def _follow_run(self, entry: Entry) -> None:
        if entry.data.get("phase") == "end":
            self._ended.add(entry.run_id)
            self._open.pop(entry.run_id, None)
            self._last.pop(entry.run_id, None)
            self._unanswered.pop(entry.run_id, None)
        elif entry.run_id not in self._ended:
            self._open.setdefault(entry.run_id, entry)

    def note(self, line: int, reason: str) -> None:
        """A line that could not be read."""
        self.unreadable += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(line, reason))


def _calls_of(message: Message) -> tuple[ToolCall, ...]:
    return message.calls if isinstance(message, AssistantMessage) else ()


def _replayed(message: UserMessage | AssistantMessage) -> UserMessage | AssistantMessage | None:
    """A message as a model is told it again; None: it is not."""
    if isinstance(message, UserMessage):
        return message
    if message.stop == "error":
        return None
    kept = message.content
    if message.stop == "aborted":
        # Thoughts and calls may be cut off in the middle, and no provider takes half of one.
        kept = tuple(part for part in kept if isinstance(part, Text) and part.text)
    elif _has_an_id_twice(message.calls):
        # Two calls of one id in a message would make every later request a bad one.
        seen: set[str] = set()
        kept = tuple(part for part in kept if _is_new(part, seen))
    if not kept:
        return None
    return message if kept is message.content else replace(message, content=kept)


def _has_an_id_twice(calls: Sequence[ToolCall]) -> bool:
    return len(calls) > 1 and len({call.id for call in calls}) < len(calls)


def _is_new(part: object, seen: set[str]) -> bool:
    if not isinstance(part, ToolCall):
        return True
    known = part.id in seen
    seen.add(part.id)
    return not known


def _lost(call: ToolCall, at: float) -> ToolMessage:
    content = (Text(UNANSWERED),)
    return ToolMessage(call_id=call.id, name=call.name, content=content, is_error=True, at=at)


def _nested_call(entry: Entry) -> NestedCall:
    data = entry.data
    ms, code = data.get("ms"), data.get("code")
    return NestedCall(
        run_id=entry.run_id,
        parent_id=str(data.get("parentId", "")),
        call_id=str(data.get("callId", "")),
        tool_id=str(data.get("toolId", "")),
        state=str(data.get("state", "")),
        ms=ms if isinstance(ms, int) else 0,
        code=code if isinstance(code, str) else None,
    )


# ---- Reading ----


def read_transcript(path: Path | str) -> History:
    """A session's past, by anybody: needs no lock and changes nothing.

    Raises:
        TranscriptRefused: It is another version's.
        TranscriptError: It cannot be read.
    """
    history = History()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb", buffering=READ_BYTES) as file:
            read_lines(file, history, Path(path).name)
    except OSError as error:
        raise failed(Path(path), "read", error) from None
    return history


@dataclass(frozen=True, slots=True)
class End:
    """How a file ends: after `size` bytes of whole lines there are `torn` more that are none."""

    size: int
    torn: int = 0
    unterminated: bool = False


def read_lines(file: BinaryIO, history: History, name: str) -> End:
    """Adds everything that a file says to a history."""
    size = 0
    for number, (line, length, whole) in enumerate(_lines(file), 1):
        if not whole and (line is None or not _is_object(line)):
            # Cut off while it was written. Who has the lock removes it.
            return End(size, torn=length)
        reason = "it is too long" if line is None else _read_line(line, history, name)
        if reason:
            history.note(number, reason)
        size += length
        if not whole:
            return End(size, unterminated=True)
    return End(size)


def _lines(file: BinaryIO) -> Iterator[tuple[bytes | None, int, bool]]:
    """Each line, its length, and whether it is one to its end. None: one that is too long."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        length, whole = len(line), line.endswith(b"\n")
        if whole or length <= MAX_LINE_BYTES:
            yield line, length, whole
            continue
        while not whole and (more := file.readline(READ_BYTES)):
            length, whole = length + len(more), more.endswith(b"\n")
        yield None, length, whole


def _is_object(line: bytes) -> bool:
    """Whether a line is whole but for its end: no part of an object is one."""
    try:
        return isinstance(_decode(line), dict)
    except (ValueError, RecursionError):
        return False


def _read_line(line: bytes, history: History, name: str) -> str | None:
    """Adds what a line says; if that is nothing, why."""
    try:
        value = _decode(line)
        if not isinstance(value, dict):
            return "it is no object"
        if value.get("type") == "session":
            history.header = history.header or _header(value, name)
            return None
        entry = _entry(value)
    except (ValueError, OverflowError, RecursionError) as error:
        return f"{type(error).__name__}: {error}"[:200]
    if entry.id in history._ids:
        return f"the entry {entry.id} is there already"
    history.add(entry)
    return None


def _header(value: JsonObject, name: str) -> Header:
    version = value.get("version")
    if type(version) is not int or version != VERSION:
        raise TranscriptRefused(
            f"The transcript {name} has version {str(version)[:40]}, and this clawmode knows "
            f"{VERSION}. Nothing was changed; a newer clawmode may read it."
        )
    return Header(
        id=_text(value, "id"),
        key=_text(value, "key"),
        agent_id=_text(value, "agentId"),
        created_at=_number(value, "createdAt"),
        workspace=_text(value, "workspace", ""),
    )


def _entry(value: JsonObject) -> Entry:
    kind, entry_id, run_id = _text(value, "type"), _text(value, "id"), _text(value, "runId", "")
    at = _number(value, "at")
    if kind == "message":
        message = from_json(value.get("message"))
        return Entry(type=kind, id=entry_id, run_id=run_id, at=at, message=message)
    for key in _HEAD:
        value.pop(key, None)
    return Entry(type=kind, id=entry_id, run_id=run_id, at=at, data=value)


def _text(value: JsonObject, key: str, default: str | None = None) -> str:
    found = value.get(key, default)
    if not isinstance(found, str):
        raise ValueError(f"{key!r} is no text")
    return found


def _number(value: JsonObject, key: str) -> float:
    found = value.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ValueError(f"{key!r} is no number")
    return float(found)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _decode(line: bytes) -> JsonValue:
    """What `JSONDecoder.decode` does, without its two regular expressions for each line."""
    text = line.decode().strip(" \t\r\n")
    value, end = _DECODER.raw_decode(text)
    if end < len(text):
        raise ValueError("there is more than an object")
    return value


def failed(path: Path, what: str, error: OSError) -> TranscriptError:
    """What is raised when a file cannot be read, written, opened."""
    # The path is for the operator: what is raised may reach a client.
    logger.error("%s: %s", path, error)
    return TranscriptError(f"The transcript {path.name} cannot be {what}: {error.strerror}.")
