"""The trajectory of a session's runs: a file next to the transcript, the sidecar.

    <session id>.trajectory.jsonl    the requests to models, their answers, calls, and errors

It is a flight recorder: it may lose its end, but never disturbs a run. A session is resumed from
its transcript only. `docs/reference/trajectory.md` describes the format.
"""

import contextlib
import json
import logging
import os
import re
import stat
import threading
import time
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path

from clawmode.messages import IMAGE_KEYS, MAX_BLOB_CHARS
from clawmode.redaction import MAX_DEPTH, Redactor
from clawmode.text import truncate
from clawmode.types import JsonObject, JsonValue, dataclass

logger = logging.getLogger("clawmode.trajectory")

SCHEMA = "openclaw-trajectory"
VERSION = 1
SWITCH = "OPENCLAW_TRAJECTORY"
FOLDER = "OPENCLAW_TRAJECTORY_DIR"

MAX_LINE_BYTES = 256 << 10
MAX_SIDECAR_BYTES = 10 << 20
MAX_EVENTS = 200_000
MAX_TEXT_CHARS = 1 << 20
"""Of one text, before it is redacted; a line keeps far less."""

MAX_ID_CHARS = 500
TRUNCATED = "trace.truncated"
LAST_LINE_BYTES = 4 << 10
"""Reserved for the last line, which says that the file is full; it is no longer than this."""

_CUTS = ((32_768, 1_000), (4_096, 200), (512, 50))
"""Limits of texts, and of lists and objects, in a line that is too long: tried in this order."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_BLOB = re.compile(r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_=-]{1024,}+")
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")


# ---- The file ----


def is_enabled() -> bool:
    """True unless the environment variable `OPENCLAW_TRAJECTORY` is `0`, `false`, `no` or `off`."""
    return os.environ.get(SWITCH, "").strip().lower() not in ("0", "false", "no", "off")


def sidecar_path(transcript: Path | str, session_id: str) -> Path:
    """Returns the path of a sidecar: next to the transcript, or in `OPENCLAW_TRAJECTORY_DIR`."""
    moved = os.environ.get(FOLDER, "").strip()
    folder = Path(moved).expanduser() if moved else Path(transcript).parent
    return folder / f"{safe_name(session_id)}.trajectory.jsonl"


def safe_name(session_id: str) -> str:
    """Returns a session id as a part of a file name."""
    name = _NO_NAME.sub("_", session_id)[:120]
    return name if name.strip("_-") else "session"


# ---- Lines ----


def encode_event(event: JsonObject, limit: int = MAX_LINE_BYTES) -> tuple[bytes, bool]:
    """Encodes an event as a line; also returns whether its data had to be cut."""
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
    """Returns a value with long texts, lists and objects cut."""
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


def without_images(value: JsonValue, depth: int = MAX_DEPTH) -> JsonValue:
    """Returns a value in which the size of images and other encoded bytes replaces the bytes."""
    if isinstance(value, str):
        if len(value) > MAX_TEXT_CHARS:
            # At the end of a word: the redactor would not recognize half a secret.
            value = truncate(value, value.rfind(" ", 0, MAX_TEXT_CHARS) + 1)
        return _BLOB.sub(lambda found: _counted(found[0]), value)
    if not isinstance(value, (dict, list)):
        return value
    if depth == 0:
        return "…"
    if isinstance(value, list):
        return [without_images(item, depth - 1) for item in value]
    return {
        key: _counted(item)
        if key in IMAGE_KEYS and isinstance(item, str) and len(item) > MAX_BLOB_CHARS
        else without_images(item, depth - 1)
        for key, item in value.items()
    }


def _counted(data: str) -> str:
    return f"({len(data)} characters of data)"


def iso_time(at: float) -> str:
    """Formats a time in seconds as ISO 8601. An invalid time becomes 1970."""
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        moment = datetime.fromtimestamp(0, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# ---- Writing ----


class Trajectory:
    """Records the events of a run. Never raises: the first error is logged, and the run continues.

    May be used from any thread. The file is created by the first event.

    Args:
        path: The sidecar; see `sidecar_path`.
        session_id: The id of the session.
        session_key: The key of the session.
        run_id: The run.
        agent_id: The agent.
        workspace: The workspace; its path is replaced by `$WORKSPACE_DIR`.
        redactor: Redacts secrets; by default it knows no values, only what secrets look like.
        enabled: Whether events are recorded; `is_enabled` must be true too.
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file. Idempotent; later events are dropped."""
        with self._guard:
            self._silent = True
            if self._descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(self._descriptor)
                self._descriptor = -1

    def write(self, kind: str, data: JsonObject) -> None:
        """Records an event without secrets and images, cut if it is too large."""
        with self._guard:
            if self._silent:
                return
            try:
                self._append(kind, data)
            except Exception as error:
                if not self._complained:
                    self._complained = True
                    logger.warning(
                        "%s: the trajectory is incomplete: %s: %s",
                        self.path,
                        type(error).__name__,
                        error,
                    )

    def _append(self, kind: str, data: JsonObject) -> None:
        if self._descriptor < 0 and not self._open():
            return
        line = self._line(kind, data)
        # The size of the whole file: earlier runs of the session have written to it too.
        room = MAX_SIDECAR_BYTES - LAST_LINE_BYTES - os.fstat(self._descriptor).st_size
        if len(line) > room:
            self._silent = True
            line = self._line(TRUNCATED, {"limitBytes": MAX_SIDECAR_BYTES, "lost": kind[:100]})
        if self._torn:
            # The incomplete line before this one stays a line of its own.
            line = b"\n" + line
        written = os.write(self._descriptor, line)
        self._torn = written < len(line)
        if self._torn:
            raise OSError("the disk is full")
        self._seq += 1

    def _line(self, kind: str, data: JsonObject) -> bytes:
        plain = self._redactor.value(without_images(data))
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
        """Opens the file; returns False if the file is full already."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        self._silent = True  # after an exception there is no second attempt
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, flags, 0o600)
        about = os.fstat(self._descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise OSError("the path is not a regular file")
        if about.st_mode & 0o077:
            os.fchmod(self._descriptor, 0o600)
        end = os.pread(self._descriptor, LAST_LINE_BYTES, max(about.st_size - LAST_LINE_BYTES, 0))
        self._torn = bool(end) and not end.endswith(b"\n")
        last = end.rstrip(b"\n").rpartition(b"\n")[2]
        self._silent = f'"type":"{TRUNCATED}"'.encode() in last
        return not self._silent


# ---- Reading ----


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """An event of a sidecar."""

    seq: int
    at: float
    run_id: str
    type: str
    data: JsonObject


@dataclass(slots=True)
class Sidecar:
    """The content of a sidecar.

    Attributes:
        unreadable: The number of lines that are not events of this session, also incomplete ones.
        left_out: The number of events over the limit.
        over_bytes: The bytes over the limit, which were not read.
    """

    events: list[TraceEvent] = field(default_factory=list[TraceEvent])
    unreadable: int = 0
    left_out: int = 0
    over_bytes: int = 0

    def durations(self) -> dict[tuple[str, str], float]:
        """Returns the duration of calls in seconds, by run id and call id."""
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
    """Reads a sidecar. A missing file, or one that is not regular, has no events.

    Raises:
        OSError: The file cannot be read.
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
        left = max_bytes
        # A line that is too long is read in pieces, which are no events.
        while left > 0 and (line := file.readline(min(MAX_LINE_BYTES + 1, left))):
            left -= len(line)
            if not line.strip() or (left <= 0 and not line.endswith(b"\n")):
                continue
            event = _event(line, session_id)
            if event is None:
                found.unreadable += 1
            elif len(found.events) < max_events:
                found.events.append(event)
            else:
                found.left_out += 1
    return found


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
