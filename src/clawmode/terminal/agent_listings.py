"""What `sessions`, `trajectory` and `agent --show-prompt` show and write."""

import os
import time
from pathlib import Path
from typing import Any

import anyio

from clawmode.agent.preview import Preview
from clawmode.app.console import ProgramOutput, duration, print_note
from clawmode.app.secrets import known_secrets
from clawmode.app.setup import Setup
from clawmode.config import resolve as settings
from clawmode.redaction import Redactor
from clawmode.sessions.export import export as export_bundle
from clawmode.sessions.history import History, read_transcript
from clawmode.sessions.keys import SessionError, is_session_id
from clawmode.sessions.store import Session, SessionStore
from clawmode.sessions.trajectory import read_sidecar, sidecar_path
from clawmode.sessions.workspaces import workspace_of
from clawmode.terminal.trajectory_view import render
from clawmode.types import JsonObject, JsonValue

MAX_WIDTH = 10_000
"""Of a line, where nobody watches."""

MAX_NAMED = 10
WIDE = 100
"""Columns in which ids have room beside keys."""


def list_all(setup: Setup, agent_id: str, limit: int) -> list[JsonValue]:
    """Conversations, the one that was used last first."""
    store = SessionStore(setup.sessions_folder)

    async def fetch() -> list[JsonValue]:
        found = await store.list(agent_id or None, limit=limit)
        return [_describe(session) for session in found]

    return anyio.run(fetch)


def print_sessions(out: ProgramOutput, sessions: list[JsonValue]) -> None:
    """Prints them as a table."""
    if not sessions:
        print_note("there are no sessions yet: see `clawmode agent`")
        return
    wide = not out.is_terminal or _terminal_width() >= WIDE
    rows: list[list[str]] = []
    for each in sessions:
        known: dict[str, Any] = dict(each) if isinstance(each, dict) else {}
        usage: dict[str, int] = known["usage"]
        ago = duration(max(time.time() - known["updatedAt"] / 1000, 0))
        tokens = f"{usage['input'] + usage['output']:,}"
        names = [known["key"], known["id"]] if wide else [known["key"]]
        rows.append([*names, f"{ago} ago", known["lastStatus"] or "-", tokens])
    names = ["key", "id"] if wide else ["key"]
    out.table([*names, "used", "last run", "tokens"], rows)


def read_session(setup: Setup, reference: str, run_id: str) -> JsonObject:
    """A conversation with all its entries, or those of one run.

    Raises:
        SessionError: There is no such session, or no such run.
    """
    session, history = _open(setup, reference)
    entries = [it for it in history.entries if run_id in ("", it.run_id)]
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
        print_note(f"nothing has been said in the session {session.key} yet")
    if history.unreadable:
        print_note(
            f"{history.unreadable} entries of the transcript cannot be read, and are left out"
        )


def _no_run(session: Session, run_id: str) -> SessionError:
    return SessionError(
        f"the session {session.key} has no run {run_id[:80]!r}: "
        f"see `clawmode sessions show {session.key}`"
    )


def _terminal_width() -> int:
    # Our own stdout is not that of the process any more: see `ProgramOutput`.
    for fd in (2, 0):
        if os.isatty(fd):
            return os.get_terminal_size(fd).columns or 80
    return 80


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
    store = SessionStore(setup.sessions_folder)
    agent_id = settings.default_agent(setup.configuration)

    async def fetch() -> Session:
        if is_session_id(reference):
            return await store.resolve(session_id=reference, create=False)
        owner = None if reference.lower().startswith("agent:") else agent_id
        return await store.resolve(reference, agent_id=owner, create=False)

    session = anyio.run(fetch)
    return session, read_transcript(session.transcript)


def show_preview(out: ProgramOutput, made: Preview) -> None:
    """Prints what a model would be told, and how many tokens each piece takes."""
    rows = [[part.name, f"{len(part.text):,}", f"{part.tokens:,}"] for part in made.prompt.parts]
    names = ", ".join(tool.name for tool in made.tools[:MAX_NAMED]) or "none"
    more = len(made.tools) - MAX_NAMED
    rows.append(
        [f"tools: {names}{f' and {more} more' if more > 0 else ''}", "", f"{made.tool_tokens:,}"]
    )
    rows.append(["conversation so far", "", f"{made.conversation:,}"])
    rows.append(["all", "", f"{made.total:,}"])
    out.say(made.prompt.text)
    if made.prompt.context:
        out.say(f"\nBefore what you say, for this turn:\n{made.prompt.context}")
    out.say("")
    out.table(["what", "characters", "tokens (about)"], rows)
    room = f"{made.room:,} of {made.window:,} tokens may be used before it is shortened"
    out.say(f"\n{made.model} · session {made.session_key} · {room}")


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
