"""Exporting a session as a bundle: a folder with its messages and events, without secrets.

The bundle is written to the workspace, where an agent may have put anything: no link in it is
followed, and no existing file is touched. `docs/reference/trajectory.md` describes the files.
"""

import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from clawmode.exceptions import ClawmodeError, UnsupportedPlatform
from clawmode.redaction import Redactor
from clawmode.sessions.bundle import Bundle, ExportLimits, ExportResult
from clawmode.sessions.entries import Header, TranscriptError
from clawmode.sessions.history import History, read_transcript
from clawmode.sessions.trajectory import Sidecar, iso_time, read_sidecar, safe_name
from clawmode.sessions.tree import runs_of, steps_of

EXPORTS = "trajectory-exports"

MAX_PARTS = 4
_PART = re.compile(r"\w[\w.+ -]{0,99}")
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


class ExportError(ClawmodeError):
    """A bundle cannot be written; no part of it is left behind."""

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

    Blocks, for a large session for seconds: call it in a thread.

    Args:
        transcript: The session's history, or its transcript file.
        sidecar: The trajectory of its runs, which may be missing.
        workspace: The workspace; its path is replaced by `$WORKSPACE_DIR`.
        name: The relative path of the bundle; by default made from the session and the time.
        redactor: Redacts secrets; by default it knows no values, only what secrets look like.
        limits: The limits of the bundle.
        now: The time of day; by default the current one.

    Raises:
        ExportError: The bundle cannot be written, its name is invalid, or it exists already.
        TranscriptError: The transcript cannot be read.
    """
    limits = limits or ExportLimits()
    now = time.time() if now is None else now
    workspace = Path(workspace)
    redactor = redactor or Redactor(workspace=workspace, home=Path.home())
    history = _history(transcript, limits)
    # If the first line is lost, the session is named by its file.
    file_name = "unknown" if isinstance(transcript, History) else Path(transcript).stem
    header = history.header or Header(id=file_name, key="", agent_id="", created_at=0.0)
    if name is not None:
        parts = _parts(name)
    else:
        stamp = re.sub(r"[^0-9TZ]", "", iso_time(now)[:19] + "Z")
        parts = [f"trajectory-{safe_name(header.id)[:60]}-{stamp}"]
    steps = steps_of(history)
    events = _sidecar(sidecar, header.id, limits)
    bundle = Bundle(header, history, events, redactor, limits, steps, runs_of(steps))
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


def read_bundle(workspace: Path, name: str, file: str, start: int, most: int) -> tuple[int, bytes]:
    """Reads a part of a file of a bundle; returns the size of the file, and the part.

    The workspace belongs to an agent, so no link is followed. Blocks: call it in a thread.

    Raises:
        ExportError: The name is invalid, or there is no such file.
    """
    try:
        parts = [*_parts(name), *_parts(file)]
        with _parent(workspace, parts, create=False) as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(parts[-1], flags, dir_fd=folder), "rb") as opened:
                about = os.fstat(opened.fileno())
                if not stat.S_ISREG(about.st_mode):
                    raise ExportError(f"{file[:100]!r} is not a file.")
                opened.seek(min(start, about.st_size))  # file systems reject large positions
                return about.st_size, opened.read(most)
    except OSError as error:
        why = error.strerror or str(error)
        text = f"{file[:100]!r} of the bundle {name[:100]!r} cannot be read: {why}."
        raise ExportError(text) from None


# ---- Input ----


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


# ---- The folder ----


def _parts(name: str) -> list[str]:
    """Splits a name into folders, none of which leads out of `EXPORTS`."""
    parts = name.split("/")
    if not all(_PART.fullmatch(part) for part in parts) or len(parts) > MAX_PARTS:
        raise ExportError(
            f"{name[:100]!r} is not a valid name of a bundle. A name is the path of a folder in "
            f"{EXPORTS}/ of the workspace: at most {MAX_PARTS} folders, separated by '/', each of "
            "letters, digits, '-', '_', '.', '+' and spaces, with a letter or digit first."
        )
    return parts


@contextlib.contextmanager
def _parent(workspace: Path, parts: list[str], *, create: bool = True) -> Iterator[int]:
    """Opens the folder of the last part, without following a link on the way."""
    if not hasattr(os, "O_NOFOLLOW"):
        raise UnsupportedPlatform("The export of a session")
    current = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in (EXPORTS, *parts[:-1]):
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=current)
            try:
                below = os.open(part, _FOLDER, dir_fd=current)
            except OSError:
                text = f"{part!r} in the workspace is not a folder. Links are not followed."
                raise ExportError(f"The bundle cannot be written: {text}") from None
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


def _check_free(parent: int, name: str, folder: Path) -> None:
    # Only for a good message: the final rename fails anyway if the folder is not empty.
    try:
        descriptor = os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        return
    except OSError:
        raise ExportError(f"{folder} exists, and is not a folder: choose another name.") from None
    try:
        if os.listdir(descriptor):
            raise ExportError(f"{folder} exists, and is not empty: choose another name.")
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _temporary(parent: int, name: str) -> Iterator[tuple[int, Callable[[], None]]]:
    """Creates a folder with a hidden name; yields it and a function that gives it its name.

    Without a call of that function the folder is removed.
    """
    hidden = f".{name[:100]}.{secrets.token_hex(6)}"
    os.mkdir(hidden, 0o700, dir_fd=parent)
    inside = os.open(hidden, _FOLDER, dir_fd=parent)
    finished = False

    def finish() -> None:
        nonlocal finished
        os.fsync(inside)
        # `rename` replaces an empty folder, and nothing else.
        os.rename(hidden, name, src_dir_fd=parent, dst_dir_fd=parent)
        finished = True

    try:
        yield inside, finish
    finally:
        if not finished:
            with contextlib.suppress(OSError):
                for file in os.listdir(inside):
                    os.unlink(file, dir_fd=inside)
                os.rmdir(hidden, dir_fd=parent)
        os.close(inside)
