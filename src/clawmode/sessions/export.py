"""A session as a bundle that can be given away: what was sent, said and done, without secrets.

The bundle is a folder in the workspace, and the workspace is where an agent works: nothing in it
is followed, and nothing that is there already is touched. `docs/reference/trajectory.md` describes
the files.
"""

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from clawmode.exceptions import ClawmodeError
from clawmode.redaction import Redactor
from clawmode.sessions.bundle import Bundle, ExportLimits, ExportResult
from clawmode.sessions.history import Header, History, TranscriptError, read_transcript
from clawmode.sessions.trajectory import Sidecar, iso_time, read_sidecar, safe_name

EXPORTS = "trajectory-exports"

MAX_PARTS = 4
_PART = re.compile(r"\w[\w.+ -]{0,99}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class ExportError(ClawmodeError):
    """A bundle cannot be written; nothing of it is left behind."""

    code: ClassVar[str] = "trajectory_export_failed"


def export(
    transcript: Path | str | History,
    sidecar: Path | str | None,
    *,
    workspace: Path | str,
    name: str | None = None,
    redactor: Redactor | None = None,
    limits: ExportLimits | None = None,
    now: float | None = None,
) -> ExportResult:
    """Writes the bundle of a session to `<workspace>/trajectory-exports/<name>`.

    Takes seconds for a large session: a thread's work.

    Args:
        transcript: The session's past, or the file that it is in.
        sidecar: The file with the events of its runs; may be missing.
        workspace: The folder in which the bundle goes; told as `$WORKSPACE_DIR`.
        name: Of the bundle's folder, relative; by default from the session and the time.
        redactor: Takes secrets out; by default one that knows none of them by value.
        limits: Others than usual.
        now: The time of day, if not the present one.

    Raises:
        ExportError: It cannot be written, its name leads elsewhere, or there is one already.
        TranscriptError: The transcript cannot be read.
    """
    limits = limits or ExportLimits()
    now = time.time() if now is None else now
    workspace = Path(workspace)
    redactor = redactor or Redactor(workspace=workspace, home=Path.home())
    history = _history(transcript, limits)
    header = history.header or _unknown(transcript)
    parts = _parts(name) if name is not None else [_default_name(header.id, now)]
    bundle = Bundle(header, history, _sidecar(sidecar, header.id, limits), redactor, limits)
    folder = workspace.joinpath(EXPORTS, *parts)
    try:
        with _parent(workspace, parts) as parent:
            _check_free(parent, parts[-1], folder)
            with _temporary(parent, parts[-1]) as (inside, finish):
                result = bundle.write(inside, folder, now)
                finish()
    except OSError as error:
        why = error.strerror or str(error)
        raise ExportError(f"The bundle {folder} cannot be written: {why}.") from None
    return result


# ---- What goes in ----


def _history(transcript: Path | str | History, limits: ExportLimits) -> History:
    if isinstance(transcript, History):
        return transcript
    try:
        size = os.lstat(transcript).st_size
    except OSError as error:
        text = f"The transcript {Path(transcript).name} cannot be read: {error.strerror}."
        raise TranscriptError(text) from None
    if size > limits.session_bytes:
        raise ExportError(
            f"The transcript {Path(transcript).name} has {size} bytes: a session of more than "
            f"{limits.session_bytes} cannot be exported."
        )
    return read_transcript(transcript)


def _unknown(transcript: Path | str | History) -> Header:
    """Of a transcript whose first line is lost: the file is called like the session."""
    name = "unknown" if isinstance(transcript, History) else Path(transcript).stem
    return Header(id=name, key="", agent_id="", created_at=0.0)


def _sidecar(path: Path | str | None, session_id: str, limits: ExportLimits) -> Sidecar:
    if path is None:
        return Sidecar()
    try:
        return read_sidecar(
            path, session_id, max_bytes=limits.sidecar_bytes, max_events=limits.runtime_events
        )
    except OSError as error:
        text = f"The sidecar {Path(path).name} cannot be read: {error.strerror}."
        raise ExportError(text) from None


# ---- Where it goes ----


def _default_name(session_id: str, now: float) -> str:
    stamp = re.sub(r"[^0-9TZ]", "", iso_time(now)[:19] + "Z")
    return f"trajectory-{safe_name(session_id)[:60]}-{stamp}"


def _parts(name: str) -> list[str]:
    """The folders of a name that stays where it belongs."""
    parts = name.split("/")
    if not all(_PART.fullmatch(part) for part in parts) or len(parts) > MAX_PARTS:
        raise ExportError(
            f"{name[:100]!r} is no name for a bundle: it is a folder in {EXPORTS}/ of the "
            "workspace, written with letters, digits, '-', '_', '.', '+', spaces, and '/' "
            f"between at most {MAX_PARTS} folders that begin with a letter or digit."
        )
    return parts


@contextlib.contextmanager
def _parent(workspace: Path, parts: list[str]) -> Iterator[int]:
    """The folder that the bundle's is made in, open. No link on the way is followed."""
    current = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in (EXPORTS, *parts[:-1]):
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=current)
            try:
                below = os.open(part, _FOLDER, dir_fd=current)
            except OSError:
                text = f"{part!r} in the workspace is no folder; a link is not followed."
                raise ExportError(f"The bundle cannot be written: {text}") from None
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


def _check_free(parent: int, name: str, folder: Path) -> None:
    """Early, to say it well: in the end the kernel decides."""
    try:
        descriptor = os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        return
    except OSError:
        raise ExportError(f"There is something at {folder} already: choose another name.") from None
    try:
        if os.listdir(descriptor):
            raise ExportError(f"There is a bundle at {folder} already: choose another name.")
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _temporary(parent: int, name: str) -> Iterator[tuple[int, Callable[[], None]]]:
    """A folder that gets its name when it is complete, and is gone if that does not happen."""
    hidden = f".{name[:100]}.{secrets.token_hex(6)}"
    os.mkdir(hidden, 0o700, dir_fd=parent)
    inside = os.open(hidden, _FOLDER, dir_fd=parent)
    finished = False

    def finish() -> None:
        nonlocal finished
        os.fsync(inside)
        # What is not an empty folder is not replaced.
        os.rename(hidden, name, src_dir_fd=parent, dst_dir_fd=parent)
        finished = True

    try:
        yield inside, finish
    finally:
        if not finished:
            with contextlib.suppress(OSError):
                for each in os.listdir(inside):
                    os.unlink(each, dir_fd=inside)
                os.rmdir(hidden, dir_fd=parent)
        os.close(inside)
