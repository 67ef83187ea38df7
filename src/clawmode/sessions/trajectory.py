"""The trajectory of a session's runs: a sidecar beside the transcript, written and read.

    <session id>.trajectory.jsonl    what was sent to models, what they did with it, how it ended

A flight recorder: it may lose the end, never disturb the flight. `docs/reference/trajectory.md`
describes the format; the transcript, not this, is what a session is continued from.
"""

import contextlib
import json
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from clawmode.redaction import MAX_DEPTH, Redactor
from clawmode.sessions.sanitize import IMAGE_KEYS, MAX_BLOB_CHARS
from clawmode.text import truncate
from clawmode.types import JsonObject, JsonValue

logger = logging.getLogger("clawmode.trajectory")

SCHEMA = "openclaw-trajectory"
VERSION = 1
SWITCH = "OPENCLAW_TRAJECTORY"
FOLDER = "OPENCLAW_TRAJECTORY_DIR"

MAX_LINE_BYTES = 256 << 10
MAX_SIDECAR_BYTES = 10 << 20
MAX_EVENTS = 200_000
MAX_TEXT_CHARS = 1 << 20
"""Of one text, before it is looked through; what is kept of it is far less."""

MAX_ID_CHARS = 500
TRUNCATED = "trace.truncated"
LAST_LINE_BYTES = 4 << 10
"""Kept free for the line that says that there are no more; such a line is no longer."""

_CUTS = ((32_768, 1_000), (4_096, 200), (512, 50))
"""How long texts, and lists and objects, may be in a line that is too long: tried in this order."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_BLOB = re.compile(r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_=-]{1024,}+")
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")


# ---- Where ----


def is_enabled() -> bool:
    """Whether trajectories are recorded: they are, unless `OPENCLAW_TRAJECTORY` says no."""
    return os.environ.get(SWITCH, "").strip().lower() not in ("0", "false", "no", "off")


def sidecar_path(transcript: Path | str, session_id: str) -> Path:
    """The sidecar of a transcript: beside it, or in the folder of `OPENCLAW_TRAJECTORY_DIR`."""
    moved = os.environ.get(FOLDER, "").strip()
    folder = Path(moved).expanduser() if moved else Path(transcript).parent
    return folder / f"{safe_name(session_id)}.trajectory.jsonl"


def safe_name(session_id: str) -> str:
    """A session's id as the name of a file."""
    name = _NO_NAME.sub("_", session_id)[:120]
    return name if name.strip("_-") else "session"


# ---- Lines ----


def encode_event(event: JsonObject, limit: int = MAX_LINE_BYTES) -> tuple[bytes, bool]:
    """An event as a line, and whether its data had to be cut for that."""
    line = _encode(event)
    if len(line) <= limit:
        return line, False
    marker: JsonObject = {"truncated": True, "originalBytes": len(line)}
    data = event.get("data")
    for chars, items in _CUTS:
        cut = shrink(data, chars, items)
        line = _encode({**event, "data": {**(cut if isinstance(cut, dict) else {}), **marker}})
        if len(line) <= limit:
            return line, True
    return _encode({**event, "data": marker}), True


def _encode(event: JsonObject) -> bytes:
    return (_ENCODER.encode(event) + "\n").encode("utf-8", "replace")


def shrink(value: JsonValue, chars: int, items: int, depth: int = MAX_DEPTH) -> JsonValue:
    """A value with long texts and long lists cut."""
    if isinstance(value, str):
        return truncate(value, chars)
    if not isinstance(value, (dict, list)):
        return value
    if depth == 0:
        return "…"
    over = len(value) - items
    if isinstance(value, list):
        made = [shrink(item, chars, items, depth - 1) for item in value[:items]]
        return [*made, f"… ({over} more items)"] if over > 0 else made
    members = {
        str(shrink(key, chars, items)): shrink(item, chars, items, depth - 1)
        for key, item in list(value.items())[:items]
    }
    return {**members, "…": f"{over} more members"} if over > 0 else members


def without_pictures(value: JsonValue, depth: int = MAX_DEPTH) -> JsonValue:
    """A value with the bytes of pictures, or of anything else, only counted."""
    if isinstance(value, str):
        return _BLOB.sub(lambda found: _counted(found[0]), _readable(value))
    if not isinstance(value, (dict, list)):
        return value
    if depth == 0:
        return "…"
    if isinstance(value, list):
        return [without_pictures(item, depth - 1) for item in value]
    return {
        key: _counted(item)
        if key in IMAGE_KEYS and isinstance(item, str) and len(item) > MAX_BLOB_CHARS
        else without_pictures(item, depth - 1)
        for key, item in value.items()
    }


def _readable(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    # Up to the end of a word: half a secret would not be known as one.
    return truncate(text, text.rfind(" ", 0, MAX_TEXT_CHARS) + 1)


def _counted(data: str) -> str:
    return f"({len(data)} characters of data)"


def iso_time(at: float) -> str:
    """A time of day as it is told; one that is none is the first of all."""
    try:
        told = datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        told = datetime.fromtimestamp(0, UTC)
    return told.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# ---- Writing ----


class Trajectory:
    """Records what a run does. Never raises: trouble is logged once, and the run goes on.

    May be used from any thread. The file is made by the first event.

    Args:
        path: The sidecar: `sidecar_path`.
        session_id: The session, in every line.
        session_key: The same by its key.
        run_id: The run that this one records.
        agent_id: Whose run it is.
        workspace: Told as `$WORKSPACE_DIR`.
        redactor: Takes secrets out; by default one that knows none of them by value.
        enabled: Whether anything is recorded; the environment can say no, too.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        session_id: str,
        session_key: str,
        run_id: str,
        agent_id: str = "",
        workspace: Path | None = None,
        redactor: Redactor | None = None,
        enabled: bool = True,
    ) -> None:
        self.path = Path(path)
        self._redactor = redactor or Redactor(workspace=workspace, home=Path.home())
        others = {"runId": run_id, "sessionKey": session_key, "agentId": agent_id}
        self._ids: JsonObject = {
            "traceId": session_id,
            "sessionId": session_id,
            **{key: self._redactor.text(name[:MAX_ID_CHARS]) for key, name in others.items()},
        }
        self._seq = 0
        self._descriptor = -1
        self._silent = not enabled or not is_enabled()
        self._torn = False
        self._complained = False
        self._guard = threading.Lock()

    def __enter__(self) -> "Trajectory":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends recording. Idempotent; what is written after that is dropped."""
        with self._guard:
            self._silent = True
            if self._descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(self._descriptor)
                self._descriptor = -1

    def write(self, kind: str, data: JsonObject) -> None:
        """Records an event: without secrets and pictures, cut if it is too large."""
        with self._guard:
            if self._silent:
                return
            try:
                self._append(kind, data)
            except Exception as error:
                self._complain(error)

    def _append(self, kind: str, data: JsonObject) -> None:
        if self._descriptor < 0 and not self._open():
            return
        line = self._line(kind, data)
        room = MAX_SIDECAR_BYTES - LAST_LINE_BYTES - os.fstat(self._descriptor).st_size
        if len(line) > room:
            self._silent = True
            line = self._line(TRUNCATED, {"limitBytes": MAX_SIDECAR_BYTES, "lost": kind[:100]})
        if self._torn:
            line = b"\n" + line
        written = os.write(self._descriptor, line)
        self._torn = written < len(line)
        if self._torn:
            raise OSError("the disk is full")
        self._seq += 1

    def _line(self, kind: str, data: JsonObject) -> bytes:
        plain = self._redactor.value(without_pictures(data))
        event: JsonObject = {
            "traceSchema": SCHEMA,
            "schemaVersion": VERSION,
            "source": "runtime",
            "type": kind[:100],
            "ts": iso_time(time.time()),
            "seq": self._seq + 1,
            **self._ids,
            "data": plain,
        }
        return encode_event(event)[0]

    def _open(self) -> bool:
        """Opens the file. False: it is full already."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        self._silent = True  # it is not tried twice
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, flags, 0o600)
        about = os.fstat(self._descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise OSError("it is no file")
        if about.st_mode & 0o077:
            os.fchmod(self._descriptor, 0o600)
        end = os.pread(self._descriptor, LAST_LINE_BYTES, max(about.st_size - LAST_LINE_BYTES, 0))
        self._torn = bool(end) and not end.endswith(b"\n")
        last = end.rstrip(b"\n").rpartition(b"\n")[2]
        self._silent = f'"type":"{TRUNCATED}"'.encode() in last
        return not self._silent

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            logger.warning(
                "%s: the trajectory is incomplete: %s: %s", self.path, type(error).__name__, error
            )


# ---- Reading ----


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event of a sidecar."""

    seq: int
    at: float
    run_id: str
    type: str
    data: JsonObject


@dataclass(slots=True)
class Sidecar:
    """What a sidecar says.

    Attributes:
        unreadable: Lines that are no event of this session, among them one that was cut off.
        left_out: Events over the limit.
        over_bytes: How much of the file was not read, because it is too large.
    """

    events: list[TraceEvent] = field(default_factory=list[TraceEvent])
    unreadable: int = 0
    left_out: int = 0
    over_bytes: int = 0

    def durations(self) -> dict[tuple[str, str], float]:
        """The seconds that calls took, by run and call id."""
        found: dict[tuple[str, str], float] = {}
        for event in self.events:
            call_id, ms = event.data.get("callId"), event.data.get("ms")
            if event.type == "tool.call" and isinstance(call_id, str) and isinstance(ms, int):
                found[event.run_id, call_id] = max(ms, 0) / 1000
        return found


def read_sidecar(
    path: Path | str,
    session_id: str,
    *,
    max_bytes: int = MAX_SIDECAR_BYTES,
    max_events: int = MAX_EVENTS,
) -> Sidecar:
    """Reads a sidecar; one that is not there, or is no file, says nothing.

    Raises:
        OSError: It cannot be read.
    """
    found = Sidecar()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return found
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            return found
        found.over_bytes = max(about.st_size - max_bytes, 0)
        for line in _lines(file, max_bytes):
            event = _event(line, session_id)
            if event is None:
                found.unreadable += 1
            elif len(found.events) < max_events:
                found.events.append(event)
            else:
                found.left_out += 1
    return found


def _lines(file: BinaryIO, max_bytes: int) -> Iterator[bytes]:
    """The lines within the limit; of one that is too long its pieces, none of which is an event."""
    left = max_bytes
    while left > 0 and (line := file.readline(min(MAX_LINE_BYTES + 1, left))):
        left -= len(line)
        if line.strip() and (left > 0 or line.endswith(b"\n")):
            yield line


def _event(line: bytes, session_id: str) -> TraceEvent | None:
    try:
        value = json.loads(line.decode())
        at = datetime.fromisoformat(value["ts"])
        seq, run_id, kind, data = (value[key] for key in ("seq", "runId", "type", "data"))
        schema = (value["traceSchema"], value["schemaVersion"], value["sessionId"])
        known = schema == (SCHEMA, VERSION, session_id) and type(seq) is int
        if known and isinstance(run_id, str) and isinstance(kind, str) and isinstance(data, dict):
            return TraceEvent(
                seq, at.replace(tzinfo=at.tzinfo or UTC).timestamp(), run_id, kind, data
            )
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        pass
    return None
