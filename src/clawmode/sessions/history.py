"""The history of a session: the entries of its transcript, and the conversation they make up.

Reading survives everything that a crash, a full disk or an editor can leave behind.
`History.messages` is the conversation that a model gets; `transcript` writes entries.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TypeVar

from clawmode.messages import (
    AssistantMessage,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from clawmode.sessions.entries import Entry, Header, NestedCall, TranscriptError, decode
from clawmode.text import shorten
from clawmode.types import dataclass

logger = logging.getLogger("clawmode.sessions")

MAX_LINE_BYTES = 16 << 20
READ_BYTES = 1 << 20
MAX_PROBLEMS = 100
"""The number of unreadable lines that are described; all of them are counted."""

UNANSWERED = "The process ended before this call was answered: whether it took effect is unknown."
NEVER_ANSWERED = (
    "[No model answered the following message when it came. Do not act on it unless the person "
    "asks again.]\n"
)
SUMMARIZED = "[What was said before, in short:]\n\n"


@dataclass(frozen=True, slots=True)
class Problem:
    """A line that could not be read. It stays in the file."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run without an end: it is in progress, or its process died.

    Attributes:
        start: The entry of its start.
        last: The last message of the run.
        unanswered: Calls without a result, in order. If the run is not in progress, the results
            are lost.
    """

    id: str
    start: Entry
    last: Message | None
    unanswered: tuple[ToolCall, ...]


class History:
    """The entries of a session in order, and the state that follows from them.

    Attributes:
        header: The first line; None if it is missing.
        problems: The first unreadable lines.
        unreadable: The number of unreadable lines.
    """

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
        return self._entries

    def open_runs(self) -> Mapping[str, OpenRun]:
        """Returns the runs without an end by their ids, the oldest first."""
        return {
            run_id: OpenRun(
                run_id, start, self._last.get(run_id), tuple(self._unanswered[run_id].values())
            )
            for run_id, start in self._open.items()
        }

    def nested_calls(self, parent_id: str | None = None) -> list[NestedCall]:
        """Returns the calls of programs in the order of their start, all or those of one `exec`."""
        calls: dict[tuple[str, str, str], NestedCall] = {}
        for entry in self._entries:
            if entry.type == "nested":
                call = NestedCall.of(entry)
                if parent_id in (None, call.parent_id):
                    calls[call.run_id, call.parent_id, call.call_id] = call
        return list(calls.values())

    def messages(self) -> list[Message]:
        """Returns the conversation as a model gets it.

        Every call is followed by exactly one result, in the order of the calls, because providers
        reject anything else. A call in progress would count as lost: do not call this method
        while there is one.
        """
        summary, entries = self._since_compaction()
        turns: list[tuple[Message, dict[str, ToolMessage]]] = []
        wanted: dict[tuple[str, str], dict[str, ToolMessage]] = {}
        for run_id, message in self._without_repeats(entries):
            if isinstance(message, ToolMessage):
                # Popped, so that a second result of the same call is dropped.
                results = wanted.pop((run_id, message.call_id), None)
                if results is not None:
                    results[message.call_id] = message
            elif (replayed := _replayed(message)) is not None:
                results = {}
                turns.append((replayed, results))
                for call in _calls_of(replayed):
                    wanted[run_id, call.id] = results
        made: list[Message] = [] if summary is None else [summary]
        for message, results in turns:
            made.append(message)
            made += [results.get(call.id) or _lost(call, message.at) for call in _calls_of(message)]
        return made

    def _without_repeats(
        self, entries: Iterator[tuple[str, Message]]
    ) -> Iterator[tuple[str, Message]]:
        """Marks user messages that no model answered; of equal ones, only the last is kept.

        A person who repeats an order after an error wants it carried out once.
        """
        answered: set[str] = set()
        repeated: set[tuple[str, ...]] = set()
        made: list[tuple[str, Message]] = []
        for run_id, message in reversed(list(entries)):
            if isinstance(message, AssistantMessage) and _replayed(message) is not None:
                answered.add(run_id)
            elif isinstance(message, UserMessage):
                lost = run_id in self._ended and run_id not in answered
                words = tuple(
                    it.text if isinstance(it, Text) else it.data for it in message.content
                )
                if lost and words in repeated:
                    continue
                repeated.add(words)
                if lost:
                    message = replace(message, content=(Text(NEVER_ANSWERED), *message.content))
            made.append((run_id, message))
        return reversed(made)

    def _since_compaction(self) -> tuple[UserMessage | None, Iterator[tuple[str, Message]]]:
        """Returns the last summary, and the messages that it does not replace."""
        entries = self._entries
        summary: UserMessage | None = None
        first = 0
        found = (n for n in reversed(range(len(entries))) if entries[n].type == "compaction")
        if (last := next(found, None)) is not None:
            entry = entries[last]
            text = f"{SUMMARIZED}{entry.data.get('summary', '')}"
            summary = UserMessage(content=(Text(text),), at=entry.at)
            kept = entry.data.get("firstKept")
            first = next((n for n in range(last) if entries[n].id == kept), last)
        said = ((it.run_id, it.message) for it in entries[first:] if it.message is not None)
        return summary, said

    # ---- Growing ----

    def add(self, entry: Entry) -> None:
        """Adds an entry at the end."""
        self._entries.append(entry)
        self._ids.add(entry.id)
        message = entry.message
        if entry.type == "run":
            if entry.data.get("phase") == "end":
                self._ended.add(entry.run_id)
                self._open.pop(entry.run_id, None)
                self._last.pop(entry.run_id, None)
                self._unanswered.pop(entry.run_id, None)
            elif entry.run_id not in self._ended:
                # A resumed run keeps the entry of its first start.
                self._open.setdefault(entry.run_id, entry)
        elif isinstance(message, ToolMessage):
            self._unanswered[entry.run_id].pop(message.call_id, None)
        elif isinstance(message, AssistantMessage) and (kept := _replayed(message)) is not None:
            for call in _calls_of(kept):
                self._unanswered[entry.run_id][call.id] = call
        if message is not None:
            self._last[entry.run_id] = message

    def has(self, entry_id: str) -> bool:
        """True if there is an entry with this id."""
        return entry_id in self._ids

    def note(self, line: int, reason: str) -> None:
        """Notes a line that could not be read."""
        self.unreadable += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(line, reason))


T = TypeVar("T", bound=History)


def _lost(call: ToolCall, at: float) -> ToolMessage:
    content = (Text(UNANSWERED),)
    return ToolMessage(call_id=call.id, name=call.name, content=content, is_error=True, at=at)


def _calls_of(message: Message) -> tuple[ToolCall, ...]:
    return message.calls if isinstance(message, AssistantMessage) else ()


def _replayed(message: UserMessage | AssistantMessage) -> UserMessage | AssistantMessage | None:
    """Returns a message as a model gets it again; None if it is left out."""
    if isinstance(message, UserMessage):
        return message
    if message.stop == "error":
        return None
    kept, calls = message.content, message.calls
    if message.stop == "aborted":
        # Thoughts and calls may be cut off in the middle, which providers reject.
        kept = tuple(part for part in kept if isinstance(part, Text) and part.text)
    elif len(calls) > 1 and len({call.id for call in calls}) < len(calls):
        # With two calls of one id, providers would reject every later request.
        seen: set[str] = set()
        parts: list[Text | Thinking | ToolCall] = []
        for part in kept:
            if not isinstance(part, ToolCall):
                parts.append(part)
            elif part.id not in seen:
                seen.add(part.id)
                parts.append(part)
        kept = tuple(parts)
    if not kept:
        return None
    return message if kept is message.content else replace(message, content=kept)


# ---- Reading ----


def read_transcript(path: Path | str) -> History:
    """Reads the history of a session. It needs no lock and changes nothing.

    Raises:
        TranscriptRefused: The transcript has another version.
        TranscriptError: The transcript cannot be read.
    """
    return read_into(History(), path)


def read_into(history: T, path: Path | str) -> T:
    """Adds the entries of a transcript to a history; raises as `read_transcript`."""
    try:
        with open_transcript(path) as file:
            read_lines(file, history, Path(path).name)
    except OSError as error:
        raise failed(Path(path), "read", error) from None
    return history


def open_transcript(path: Path | str) -> BinaryIO:
    """Opens a transcript for reading. Links are not followed.

    Raises:
        OSError: The file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    return open(descriptor, "rb", buffering=READ_BYTES)


@dataclass(frozen=True, slots=True)
class End:
    """The end of a transcript.

    Attributes:
        size: The size of all complete lines.
        torn: The size of the incomplete line after them.
        unterminated: Whether the last line is complete except for its line break.
    """

    size: int
    torn: int = 0
    unterminated: bool = False


def read_lines(file: BinaryIO, history: History, name: str) -> End:
    """Adds the lines of a file to a history; unreadable lines are noted and skipped."""
    size = 0
    for number, (line, length, terminated) in enumerate(_lines(file), 1):
        if not terminated and (line is None or not _is_object(line)):
            # The process died while it wrote this line. The next holder of the lock removes it.
            return End(size, torn=length)
        reason = "the line is too long" if line is None else _add_line(line, history, name)
        if reason:
            history.note(number, reason)
        size += length
        if not terminated:
            return End(size, unterminated=True)
    return End(size)


def _lines(file: BinaryIO) -> Iterator[tuple[bytes | None, int, bool]]:
    """Yields each line (None if it is too long), its length, and whether it has a line break."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        length, terminated = len(line), line.endswith(b"\n")
        if terminated or length <= MAX_LINE_BYTES:
            yield line, length, terminated
            continue
        while not terminated and (more := file.readline(READ_BYTES)):
            length, terminated = length + len(more), more.endswith(b"\n")
        yield None, length, terminated


def _add_line(line: bytes, history: History, name: str) -> str | None:
    """Adds a line to a history; returns why that is not possible."""
    try:
        value = decode(line)
        if not isinstance(value, dict):
            return "the line is not a JSON object"
        if value.get("type") == "session":
            # A second header is ignored, whatever it says.
            history.header = history.header or Header.parse(value, name)
            return None
        entry = Entry.parse(value)
    except (ValueError, OverflowError, RecursionError) as error:
        return shorten(f"{type(error).__name__}: {error}", 200)
    if history.has(entry.id):
        return f"an earlier entry has the id {entry.id} too"
    history.add(entry)
    return None


def _is_object(line: bytes) -> bool:
    """True if a line without a line break is complete: no prefix of an object is an object."""
    try:
        return isinstance(decode(line), dict)
    except (ValueError, RecursionError):
        return False


def failed(path: Path, action: str, error: OSError) -> TranscriptError:
    """Logs a failed action on a transcript; returns the exception to raise."""
    # The path is only for the operator: the exception may reach a client.
    logger.error("%s: %s", path, error)
    return TranscriptError(f"The transcript {path.name} cannot be {action}: {error.strerror}.")
