"""The methods that read conversations in pages, and the search for sessions."""

import math
from collections.abc import Callable

import anyio

from clawmode.gateway.methods import NAME, SESSION, MethodCall, integer, method, params
from clawmode.rpc.protocol import RpcError
from clawmode.sessions.pages import (
    UnknownPosition,
    last_message,
    read_entry,
    read_nested,
    read_page,
)
from clawmode.sessions.store import Session
from clawmode.types import JsonObject, JsonValue

ENTRIES, MAX_ENTRIES = 50, 200
NESTED, MAX_NESTED = 200, 1_000

MAX_SCANNED = 2_000
"""The most sessions that one search looks at. The next page continues it."""

PREVIEW_CHARS = 200


# ---- Sessions ----


async def list_sessions(call: MethodCall, describe: Callable[[Session], JsonObject]) -> JsonObject:
    """Returns the answer of `sessions.list`: sessions that match a query, and a cursor."""
    given = call.params
    limit, words = int(given.number("limit", 100)), given.text("query").casefold().split()
    agent_id, offset = given.text("agentId") or None, int(given.number("offset", 0))
    after, hide = _read_cursor(given.text("before")), call.runtime.known.text
    with_last = bool(words) or given.flag("previews")
    found: list[JsonValue] = []
    last: Session | None = None
    scanned, more = 0, True
    while more and len(found) < limit and scanned < MAX_SCANNED:
        chunk = min(limit, 200)
        sessions = await call.runtime.sessions.list(
            agent_id, limit=chunk, offset=offset, after=after
        )
        more, offset = len(sessions) == chunk, 0
        for session in sessions:
            if len(found) == limit:
                more = True
                break
            last, scanned, after = session, scanned + 1, (session.updated_at, session.id)
            shown = describe(session)
            if with_last:
                said = await anyio.to_thread.run_sync(
                    last_message, session.transcript, PREVIEW_CHARS, hide
                )
                shown["lastMessage"] = said
                # Redacted: otherwise a search would find out a secret letter by letter.
                searched = hide(f"{session.key} {session.title} {said['text'] if said else ''}")
                if not all(word in searched.casefold() for word in words):
                    continue
            found.append(shown)
    following = f"{last.updated_at!r}|{last.id}" if more and last is not None else None
    return {"sessions": found, "next": following}


def _read_cursor(text: str) -> tuple[float, str]:
    at, separator, session_id = text.partition("|")
    try:
        moment = float(at) if separator else math.nan
    except ValueError:
        moment = math.nan
    if text and not math.isfinite(moment):
        message = "`before` must be the `next` of an earlier answer"
        raise RpcError("INVALID_REQUEST", message, field="before")
    return (moment, session_id) if text else (math.inf, "")


# ---- Transcripts ----


async def _transcript(call: MethodCall) -> JsonObject:
    """Returns a page of a conversation, the newest entries first."""
    session, given = await call.session(), call.params
    limit = int(given.number("limit", ENTRIES))
    page = await _read("before", read_page, session.transcript, limit, given.text("before"))
    return {"sessionKey": session.key, "sessionId": session.id, **page}


async def _entry(call: MethodCall) -> JsonObject:
    """Returns an entry whose texts were cut on its page."""
    session, given = await call.session(), call.params
    return {"entry": await _read("id", read_entry, session.transcript, given.text("id"))}


async def _nested(call: MethodCall) -> JsonObject:
    """Returns the calls that a program made, in the order of their start."""
    session, given = await call.session(), call.params
    place = given.text("runId"), given.text("callId")
    window = int(given.number("after", 0)), int(given.number("limit", NESTED))
    return await _read("callId", read_nested, session.transcript, *place, *window)


async def _read(field: str, read: Callable[..., JsonObject], *given: object) -> JsonObject:
    """Reads in a thread; `field` is the parameter that may name an unknown position."""
    try:
        return await anyio.to_thread.run_sync(lambda: read(*given))
    except UnknownPosition:
        text = "this session has no such entry; it may have been reset"
        raise RpcError("NOT_FOUND", text, field=field) from None


METHODS = (
    method(
        "sessions.transcript",
        "operator.read",
        _transcript,
        params(**SESSION, before=NAME, limit=integer(1, MAX_ENTRIES)),
    ),
    method("sessions.entry", "operator.read", _entry, params("id", **SESSION, id=NAME)),
    method(
        "sessions.nested",
        "operator.read",
        _nested,
        params(
            "runId",
            "callId",
            **SESSION,
            runId=NAME,
            callId={"type": "string", "minLength": 1, "maxLength": 4_096},
            after=integer(0, 1_000_000),
            limit=integer(1, MAX_NESTED),
        ),
    ),
)
