"""Writing a session's transcript: JSON Lines that only grow, under the session's lock.

`docs/reference/transcript.md` describes the format; `history` reads it.
"""

import contextlib
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio

from clawmode.messages import Message, ToolMessage, Usage
from clawmode.sessions.entries import Entry, Header, TranscriptError, TranscriptRefused
from clawmode.sessions.history import MAX_LINE_BYTES, READ_BYTES, History, failed, read_lines
from clawmode.sessions.lock import ACQUIRE_SECONDS, Hold, SessionLock, current_hold
from clawmode.types import JsonObject, JsonValue

if TYPE_CHECKING:
    from clawmode.sessions.store import Session

logger = logging.getLogger("clawmode.sessions")

RunStatus: TypeAlias = Literal["ok", "error", "aborted", "timeout"]
NestedState: TypeAlias = Literal["started", "completed", "failed", "cancelled"]

MAX_DETAILS_BYTES = 128 << 10
"""Enough for a whole result of code mode with the default limit of its output."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_ASCII_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


class EntryTooLarge(TranscriptError):
    """An entry is larger than a line may be."""


class Transcript(History):
    """A history that grows. Used by the holder of the session's lock, from any thread.

    A method that records an entry has written it when it returns: the entry survives the process.
    `sync` makes it survive the machine. Such a method raises `TranscriptError` if the file cannot
    be written.
    """

    def __init__(self, path: Path, descriptor: int, hold: Hold) -> None:
        super().__init__()
        self.path = path
        self._descriptor = descriptor
        self._hold = hold
        self._size = 0
        self._broken = False
        self._unsynced = False
        self._created = False
        self._guard = threading.RLock()

    @classmethod
    def open(cls, path: Path | str, header: Header) -> "Transcript":
        """Reads a transcript and repairs its end; creates the file if it does not exist.

        The caller holds the lock of `path`. Blocks for 20 ms per megabyte: call it in a thread.

        Raises:
            TranscriptRefused: The file has another version, or belongs to another session.
            TranscriptError: The file cannot be read or written.
        """
        path = Path(path)
        hold = current_hold(path)
        assert hold is not None, "a transcript is opened by the holder of its session's lock"
        # A link is refused, and a named pipe in the place of the file does not block.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            transcript = cls(path, os.open(path, flags, 0o600), hold)
        except OSError as error:
            raise failed(path, "opened", error) from None
        try:
            transcript._load(header)
        except OSError as error:
            transcript.close()
            raise failed(path, "read", error) from None
        except BaseException:
            transcript.close()
            raise
        return transcript

    def close(self) -> None:
        """Closes the file. Idempotent. Entries that were not synced are left to the kernel."""
        with self._guard:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    async def sync(self) -> None:
        """Waits until all entries are on the disk: before an effect that must not be forgotten.

        Raises:
            TranscriptError: The disk failed.
        """
        if self._unsynced:
            await anyio.to_thread.run_sync(self._sync)

    def _sync(self) -> None:
        with self._guard:
            if self._descriptor < 0:
                return
            self._unsynced, created, self._created = False, self._created, False
            # A copy, because another thread may close the file meanwhile.
            descriptor = os.dup(self._descriptor)
        try:
            os.fsync(descriptor)
            if created:
                # The name of a new file is an entry of its folder, which is synced separately.
                folder = os.open(self.path.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
        except OSError as error:
            self._unsynced = True
            raise failed(self.path, "written", error) from None
        finally:
            os.close(descriptor)

    # ---- Recording ----

    def start_run(
        self,
        run_id: str,
        *,
        model: str = "",
        trigger: str = "",
        code_mode: bool = False,
        **metadata: JsonValue,
    ) -> Entry:
        """Records that a run starts, or that an interrupted run is resumed under its own id.

        Raises:
            TranscriptError: The run has ended before.
        """
        with self._guard:
            if run_id in self._ended or not run_id:
                raise TranscriptError(f"The run {run_id[:80]!r} has ended, and cannot start again.")
            phase = "resume" if run_id in self._open else "start"
            data: JsonObject = {
                "phase": phase,
                "model": model,
                "trigger": trigger,
                "codeMode": code_mode,
            }
            return self._record("run", run_id, {**data, **_given(metadata=metadata or None)})

    def end_run(
        self,
        run_id: str,
        status: RunStatus,
        *,
        error: str | None = None,
        usage: Usage | JsonObject | None = None,
        metadata: JsonObject | None = None,
    ) -> Entry:
        """Records the end of a run, which cannot be resumed from now on.

        Raises:
            TranscriptError: The run is not in progress.
        """
        counted = usage.to_json() if isinstance(usage, Usage) else usage
        optional = _given(error=error, usage=counted or None, metadata=metadata or None)
        with self._guard:
            self._check_open(run_id)
            return self._record("run", run_id, {"phase": "end", "status": status, **optional})

    def message(self, run_id: str, message: Message) -> bool:
        """Records a message; returns False for a result that no call of the run waits for.

        Details of a result that are too large are replaced by a marker.

        Args:
            run_id: The run; empty for a message outside of any run.
            message: The message.

        Raises:
            EntryTooLarge: The message does not fit on a line. A smaller result has to be recorded
                instead, else its call counts as lost.
            TranscriptError: The run is not in progress, or the file cannot be written.
        """
        with self._guard:
            self._check_open(run_id)
            if isinstance(message, ToolMessage):
                if message.call_id not in self._unanswered[run_id]:
                    text = "dropped a result, because no call with its id is pending"
                    logger.warning("run %s: %s: %.80r", run_id, text, message.call_id)
                    return False
                message = _with_bounded_details(message)
            self._record("message", run_id, message=message)
            return True

    def nested(
        self,
        run_id: str,
        *,
        parent_id: str,
        call_id: str,
        tool_id: str,
        state: NestedState,
        seconds: float = 0.0,
        code: str | None = None,
    ) -> Entry:
        """Records the start or end of a program's call. It is for people: models do not get it."""
        data: JsonObject = {
            "parentId": parent_id,
            "callId": call_id,
            "toolId": tool_id,
            "state": state,
        }
        ended = {} if state == "started" else {"ms": round(seconds * 1000)}
        return self._record("nested", run_id, {**data, **ended, **_given(code=code)})

    def compaction(
        self, run_id: str, summary: str, first_kept: str | None = None, **metadata: JsonValue
    ) -> Entry:
        """Records a summary, which models get instead of earlier messages from now on.

        Args:
            run_id: The run; empty if there is none.
            summary: The summary.
            first_kept: The id of the first entry that models still get.
            metadata: Further members of the entry.
        """
        data: JsonObject = {"summary": summary, "firstKept": first_kept}
        return self._record("compaction", run_id, {**data, **_given(metadata=metadata or None)})

    def custom(self, run_id: str, name: str, data: JsonValue) -> Entry:
        """Records anything else. Models do not get it."""
        return self._record("custom", run_id, {"name": name, "data": data})

    def _check_open(self, run_id: str) -> None:
        if run_id and run_id not in self._open:
            state = "has ended" if run_id in self._ended else "was not started"
            raise TranscriptError(f"The run {run_id[:80]!r} {state}: nothing was recorded.")

    def _record(
        self, kind: str, run_id: str, data: JsonObject | None = None, message: Message | None = None
    ) -> Entry:
        entry = Entry(
            type=kind,
            id=secrets.token_hex(8),
            run_id=run_id,
            at=round(time.time(), 3),
            data=data or {},
            message=message,
        )
        line = _encode(entry.to_json())
        with self._guard:
            self._write(line)
            self.add(entry)
        return entry

    # ---- The file ----

    def _load(self, header: Header) -> None:
        with open(self._descriptor, "rb", buffering=READ_BYTES, closefd=False) as file:
            end = read_lines(file, self, self.path.name)
        if self.header is not None and self.header.id != header.id:
            raise TranscriptRefused(
                f"The transcript {self.path.name} belongs to the session {self.header.id[:80]!r}, "
                f"not to {header.id!r}. Nothing was changed."
            )
        self._size = end.size
        if end.torn:
            os.ftruncate(self._descriptor, end.size)
            text = "removed an incomplete last line, left by a process that died"
            logger.warning("%s: %s: %s bytes", self.path, text, end.torn)
        if end.unterminated:
            self._write(b"\n")
        if self.unreadable:
            first = self.problems[0]
            text = f"{self.unreadable} lines cannot be read; line {first.line}: {first.reason}"
            logger.warning("%s: %s", self.path, text)
        self._created = end.size == 0
        if self.header is None:
            self._write(_encode(header.to_json()))
            self.header = header

    def _write(self, line: bytes) -> None:
        """Appends a line, as a whole or not at all."""
        if len(line) > MAX_LINE_BYTES:
            raise EntryTooLarge(
                f"An entry of {len(line)} bytes is too large for a transcript: "
                f"{MAX_LINE_BYTES} are allowed. Nothing was recorded."
            )
        if self._descriptor < 0 or not self._hold.active:
            raise TranscriptError("The transcript is closed: nothing was recorded.")
        if self._broken:
            raise TranscriptError(
                "An earlier entry was written incompletely and could not be removed: nothing was "
                "recorded."
            )
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            raise failed(self.path, "written", error) from None
        if written < len(line):
            # The next line would be appended to the incomplete one, and both would be lost.
            try:
                os.ftruncate(self._descriptor, self._size)
            except OSError as error:
                self._broken = True
                raise failed(self.path, "written", error) from None
            raise TranscriptError("The transcript cannot be written: its disk is full.")
        self._size += written
        self._unsynced = True


def open_session(
    session: "Session",
    timeout_seconds: float = ACQUIRE_SECONDS,
    *,
    workspace: Path | None = None,
) -> AbstractAsyncContextManager[Transcript]:
    """Opens the transcript of a session, and holds its lock: see `open_transcript`."""
    return open_transcript(session.transcript, session.header(workspace), timeout_seconds)


@asynccontextmanager
async def open_transcript(
    path: Path | str,
    header: Header,
    timeout_seconds: float = ACQUIRE_SECONDS,
) -> AsyncIterator[Transcript]:
    """Opens a transcript, and holds its session's lock inside of the block.

    At the end of the block the transcript is synced and closed.

    Raises:
        SessionBusy: Another run or process writes to the session.
        TranscriptError: The transcript cannot be opened.
    """
    lock = SessionLock(path)
    async with lock.hold(timeout_seconds):
        with anyio.CancelScope(shield=True):  # a cancelled caller would leave the file open
            transcript = await anyio.to_thread.run_sync(Transcript.open, path, header)
        try:
            yield transcript
        finally:
            with anyio.CancelScope(shield=True), contextlib.closing(transcript):
                try:
                    await transcript.sync()
                except TranscriptError as error:
                    logger.error("%s: %s", path, error)


def _given(**members: JsonValue) -> JsonObject:
    return {key: value for key, value in members.items() if value is not None}


def _encode(value: JsonObject) -> bytes:
    try:
        try:
            return (_ENCODER.encode(value) + "\n").encode()
        except UnicodeEncodeError:
            # Half of a surrogate pair cannot be encoded as UTF-8, but JSON can escape it.
            return (_ASCII_ENCODER.encode(value) + "\n").encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TranscriptError(
            f"An entry cannot be encoded as JSON, and was not recorded: {error}"
        ) from None


def _with_bounded_details(message: ToolMessage) -> ToolMessage:
    if message.details is None:
        return message
    marker: JsonObject = {"persistedDetailsTruncated": True}
    try:
        size = len(_encode({"details": message.details}))
    except TranscriptError:
        return replace(message, details=marker)
    if size <= MAX_DETAILS_BYTES:
        return message
    return replace(message, details={**marker, "originalBytes": size})
