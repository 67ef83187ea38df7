"""The output of `sessions` and `trajectory`: lists, trees and bundles of conversations."""

import os
import time
from typing import Any

import anyio

from clawmode.app.console import ProgramOutput, duration, print_note
from clawmode.app.secrets import export_session, known_secrets
from clawmode.app.setup import Setup
from clawmode.config import resolve as settings
from clawmode.redaction import Redactor
from clawmode.sessions.history import History, read_transcript
from clawmode.sessions.keys import SessionError, is_session_id
from clawmode.sessions.store import Session, SessionStore
from clawmode.sessions.trajectory import read_sidecar, sidecar_path
from clawmode.terminal.trajectory_view import render
from clawmode.types import JsonObject, JsonValue

MAX_WIDTH = 10_000
"""The width of lines in a pipe or a file."""

WIDE = 100
"""The columns from which on the list has ids as well as keys."""


def list_all(setup: Setup, agent_id: str, limit: int) -> list[JsonValue]:
    """Returns conversations as JSON, the most recently used first."""
    store = SessionStore(setup.sessions_folder)

    async def fetch() -> list[JsonValue]:
        found = await store.list(agent_id or None, limit=limit)
        return [_describe(session) for session in found]

    return anyio.run(fetch)


def print_sessions(out: ProgramOutput, sessions: list[JsonValue]) -> None:
    """Prints the result of `list_all` as a table."""
    if not sessions:
        print_note("there are no sessions yet: start one with `clawmode agent`")
        return
    wide = not out.is_terminal or _terminal_width() >= WIDE
    rows: list[list[str]] = []
    for session in sessions:
        known: dict[str, Any] = dict(session) if isinstance(session, dict) else {}
        usage: dict[str, int] = known["usage"]
        ago = duration(max(time.time() - known["updatedAt"] / 1000, 0))
        tokens = f"{usage['input'] + usage['output']:,}"
        names = [known["key"], known["id"]] if wide else [known["key"]]
        rows.append([*names, f"{ago} ago", known["lastStatus"] or "-", tokens])
    names = ["key", "id"] if wide else ["key"]
    out.table([*names, "used", "last run", "tokens"], rows)


def read_session(setup: Setup, reference: str, run_id: str) -> JsonObject:
    """Returns a conversation as JSON, with all its entries or those of one run.

    Raises:
        SessionError: There is no such session, or no such run.
    """
    session, history = _open(setup, reference)
    entries = [entry for entry in history.entries if run_id in ("", entry.run_id)]
    if run_id and not entries:
        raise _no_run(session, run_id)
    return {
        "session": _describe(session),
        "entries": [entry.to_json() for entry in entries],
        "unreadable": history.unreadable,
    }


def show(out: ProgramOutput, setup: Setup, reference: str, run_id: str) -> None:
    """Draws the runs of a session as a tree.

    Raises:
        SessionError: There is no such session, or no such run.
    """
    session, history = _open(setup, reference)
    sidecar = read_sidecar(sidecar_path(session.transcript, session.id), session.id)
    width = _terminal_width() if out.is_terminal else MAX_WIDTH
    redactor = Redactor(known_secrets(setup))
    lines = render(history, width=width, run_id=run_id or None, sidecar=sidecar, redactor=redactor)
    if not lines and run_id:
        raise _no_run(session, run_id)
    for line in lines:
        out.say(line)
    if not lines:
        print_note(f"the session {session.key} has no messages yet")
    if history.unreadable:
        print_note(f"{history.unreadable} unreadable entries of the transcript are left out")


def _no_run(session: Session, run_id: str) -> SessionError:
    return SessionError(
        f"the session {session.key} has no run {run_id[:80]!r}: "
        f"see `clawmode sessions show {session.key}`"
    )


def _terminal_width() -> int:
    # Not descriptor 1: `ProgramOutput` has redirected it to stderr.
    for fd in (2, 0):
        if os.isatty(fd):
            return os.get_terminal_size(fd).columns or 80
    return 80


def export(setup: Setup, reference: str, name: str) -> JsonObject:
    """Writes the bundle of a session to the agent's workspace; returns a description of it."""
    return export_session(setup, *_open(setup, reference), name)


def _open(setup: Setup, reference: str) -> tuple[Session, History]:
    store = SessionStore(setup.sessions_folder)
    agent_id = settings.default_agent(setup.configuration)

    async def fetch() -> Session:
        if is_session_id(reference):
            return await store.resolve(session_id=reference, create=False)
        owner = None if reference.lower().startswith("agent:") else agent_id
        return await store.resolve(reference, agent_id=owner, create=False)

    session = anyio.run(fetch)
    return session, read_transcript(session.transcript)


def _describe(session: Session) -> JsonObject:
    return {
        "key": session.key,
        "id": session.id,
        "agentId": session.agent_id,
        "createdAt": int(session.created_at * 1000),
        "updatedAt": int(session.updated_at * 1000),
        "title": session.title,
        "model": session.model,
        "lastStatus": session.last_status,
        "usage": session.usage.to_json(),
    }
