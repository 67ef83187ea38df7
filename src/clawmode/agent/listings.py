"""What `sessions` and `trajectory` show and write."""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import anyio

from clawmode.agent import settings
from clawmode.agent.command import known_secrets, open_sessions
from clawmode.agent.history import History, read_transcript
from clawmode.agent.sessions import Session
from clawmode.agent.trajectory import read_sidecar, sidecar_path
from clawmode.agent.trajectory_export import export as export_bundle
from clawmode.agent.trajectory_view import render
from clawmode.agent.workspaces import workspace_of
from clawmode.command_setup import Setup
from clawmode.exceptions import ConfigurationError
from clawmode.redaction import Redactor
from clawmode.terminal import ProgramOutput, duration, tell
from clawmode.tools import JsonObject
from clawmode.types import JsonValue


def list_all(setup: Setup, agent_id: str, limit: int) -> list[JsonValue]:
    """Conversations, the one that was used last first."""
    store = open_sessions(setup)

    async def fetch() -> list[JsonValue]:
        found = await store.list(agent_id or None, limit=limit)
        return [_describe(session) for session in found]

    return anyio.run(fetch)


def print_sessions(out: ProgramOutput, sessions: list[JsonValue]) -> None:
    """Prints them as a table."""
    if not sessions:
        tell("there are no sessions yet: see `clawmode agent`")
        return
    rows: list[list[str]] = []
    for each in sessions:
        known: dict[str, Any] = dict(each) if isinstance(each, dict) else {}
        usage: dict[str, int] = known["usage"]
        ago = duration(max(time.time() - known["updatedAt"], 0))
        tokens = f"{usage['input'] + usage['output']:,}"
        rows.append([known["key"], known["id"], f"{ago} ago", known["lastStatus"], tokens])
    out.table(["key", "id", "used", "last run", "tokens"], rows)


def read_session(setup: Setup, reference: str, run_id: str) -> JsonObject:
    """A conversation with all its entries."""
    session, history = _open(setup, reference)
    entries = [it for it in history.entries if run_id in ("", it.run_id)]
    return {
        "session": _describe(session),
        "entries": [entry.to_json() for entry in entries],
        "unreadable": history.unreadable,
    }


def show(out: ProgramOutput, setup: Setup, reference: str, run_id: str) -> None:
    """Draws the runs of a session as a tree.

    Raises:
        ConfigurationError: There is no such run.
    """
    session, history = _open(setup, reference)
    sidecar = read_sidecar(sidecar_path(session.transcript, session.id), session.id)
    width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 10_000
    redactor = Redactor(known_secrets(setup))
    lines = render(history, width=width, run_id=run_id or None, sidecar=sidecar, redactor=redactor)
    if not lines and run_id:
        raise ConfigurationError(f"the session {session.key} has no run {run_id[:80]!r}")
    for line in lines:
        out.say(line)


def export(setup: Setup, reference: str, name: str) -> JsonObject:
    """Writes the bundle of a session, and says where it is."""
    session, history = _open(setup, reference)
    agent = settings.agent(setup.configuration, session.agent_id)
    workspace = workspace_of(setup.state, agent.id, agent.workspace or None)
    made = export_bundle(
        history,
        sidecar_path(session.transcript, session.id),
        workspace=workspace,
        name=name or None,
        redactor=Redactor(known_secrets(setup), workspace=workspace, home=Path.home()),
    )
    return {
        "folder": os.fspath(made.folder),
        "files": list(made.files),
        "events": made.events,
        "runtimeEvents": made.runtime_events,
        "skipped": made.skipped,
        "cut": dict(made.cut),
    }


def _open(setup: Setup, reference: str) -> tuple[Session, History]:
    store = open_sessions(setup)

    async def fetch() -> Session:
        from clawmode.agent.session_keys import is_session_id

        by_id = is_session_id(reference)
        key, session_id = (None, reference) if by_id else (reference, None)
        return await store.resolve(key, session_id, create=False)

    session = anyio.run(fetch)
    return session, read_transcript(session.transcript)


def _describe(session: Session) -> JsonObject:
    return {
        "key": session.key,
        "id": session.id,
        "agentId": session.agent_id,
        "createdAt": session.created_at,
        "updatedAt": session.updated_at,
        "title": session.title,
        "model": session.model,
        "lastStatus": session.last_status,
        "usage": session.usage.to_json(),
    }
