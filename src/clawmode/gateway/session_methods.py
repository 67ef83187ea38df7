"""`sessions.*` and `chat.*`: conversations, and what is said in them."""

import time
from typing import Any

import anyio

from clawmode.gateway.clients import EVERYTHING, Client
from clawmode.gateway.gateway import Gateway
from clawmode.gateway.methods import (
    IDEMPOTENCY,
    NAME,
    STRING,
    TEXT,
    Params,
    choice,
    integer,
    items,
    method,
    params,
)
from clawmode.gateway.run_methods import IMAGE, SESSION, run_id_for
from clawmode.messages import (
    AssistantMessage,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
)
from clawmode.messaging.channel import Inbound
from clawmode.messaging.inbox import message_id
from clawmode.messaging.queue import parse_override
from clawmode.rpc.protocol import RpcError
from clawmode.sessions.history import read_transcript
from clawmode.sessions.keys import session_key
from clawmode.sessions.store import Session
from clawmode.types import JsonObject, JsonValue

MAX_LISTED = 1_000
MAX_FOLLOWED = 10_000
MAX_HISTORY = 1_000
MAX_HISTORY_CHARS = 8 << 20
CHANNEL = "gateway"
"""What messages come by that clients send."""


def describe(session: Session) -> JsonObject:
    """A session as clients see it."""
    return {
        "key": session.key,
        "sessionId": session.id,
        "agentId": session.agent_id,
        "title": session.title,
        "model": session.model,
        "lastStatus": session.last_status,
        "createdAt": int(session.created_at * 1000),
        "updatedAt": int(session.updated_at * 1000),
        "current": session.current,
        "usage": session.usage.to_json(),
        "data": session.data,
    }


async def find(gateway: Gateway, given: Params, *, create: bool = False) -> Session:
    """The session that is meant.

    Raises:
        SessionError: There is none, or none can be called so.
    """
    return await gateway.host.runtime.sessions.resolve(
        given.text("sessionKey") or None,
        given.text("sessionId") or None,
        given.text("agentId") or None,
        create=create,
    )


# ---- Sessions ----


async def _list(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    found = await gateway.host.runtime.sessions.list(
        given.text("agentId") or None,
        limit=int(given.number("limit", 100)),
        offset=int(given.number("offset", 0)),
    )
    return {"sessions": [describe(session) for session in found]}


async def _get(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    session = await find(gateway, given)
    runs = gateway.host.runtime.under_way(session.key)
    return {
        "session": describe(session),
        "runs": [{"runId": run.id, "state": run.state} for run in runs],
        "waiting": [
            {"id": each.id, "text": each.message.text[:500]}
            for each in gateway.host.inbox.waiting(session.key)
        ],
    }


async def _create(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    made = run_id_for(client.principal, given.text(IDEMPOTENCY))[:12]
    key = given.text("sessionKey") or f"session-{made}"
    session = await gateway.host.runtime.sessions.resolve(
        key, agent_id=given.text("agentId") or None
    )
    if given.text("title"):
        session = await gateway.host.runtime.sessions.touch(session.id, title=given.text("title"))
    _changed(gateway, session, "create")
    return {"session": describe(session)}


async def _patch(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """Changes what is set for a session; null takes it back."""
    session = await find(gateway, given)
    if (model := given.text("model")) and "model" in given:
        gateway.host.models.find(model)
    data: JsonObject = {}
    if "queue" in given:
        try:
            data["queue"] = parse_override(given.text("queue") or "default")
        except ValueError as error:
            raise RpcError("INVALID_REQUEST", str(error), field="queue") from None
    session = await gateway.host.runtime.sessions.touch(
        session.id,
        title=given.text("title") if "title" in given else None,
        model=given.text("model") if "model" in given else None,
        data=data,
    )
    _changed(gateway, session, "patch")
    return {"session": describe(session)}


async def _reset(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    session = await find(gateway, given)
    gateway.host.inbox.stop(session.key)
    made = await gateway.host.runtime.care.reset(session, given.text("reason", "reset"))
    _changed(gateway, made, "reset")
    return {"session": describe(made)}


async def _delete(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    session = await find(gateway, given)
    gateway.host.inbox.stop(session.key)
    count = await gateway.host.runtime.care.delete(session)
    _changed(gateway, session, "delete")
    return {"deleted": count}


async def _compact(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    session = await find(gateway, given)
    done = await gateway.host.runtime.care.compact(session, given.text("instructions"))
    if done is None:
        return {"compacted": False}
    return {
        "compacted": True,
        "messages": done.messages,
        "tokensBefore": done.before,
        "tokensAfter": done.after,
    }


async def _abort(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """Stops a run, takes a message back, or stops all of a session."""
    if run_id := given.text("runId"):
        return {"aborted": int(gateway.host.inbox.cancel(run_id))}
    session = await find(gateway, given)
    return {"aborted": gateway.host.inbox.stop(session.key)}


async def _subscribe(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    client.following |= {_key(it) for it in given.list("sessionKeys")}
    if len(client.following) > MAX_FOLLOWED:
        client.following.clear()
        text = f"a client follows up to {MAX_FOLLOWED} sessions, or all: `*`"
        raise RpcError("INVALID_REQUEST", text, field="sessionKeys")
    return {"following": list[JsonValue](sorted(client.following))}


async def _unsubscribe(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    client.following -= {_key(it) for it in given.list("sessionKeys")}
    return {"following": list[JsonValue](sorted(client.following))}


def _key(reference: str) -> str:
    return reference if reference == EVERYTHING else session_key(reference)


def _changed(gateway: Gateway, session: Session, reason: str) -> None:
    about: JsonObject = {"sessionKey": session.key, "sessionId": session.id, "reason": reason}
    gateway.broadcast("sessions.changed", about)


# ---- Chat ----


async def _send(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """Says something in a session, as a person does: commands, steering and the queue included."""
    images: list[Any] = given.list("images")
    if not given.text("message").strip() and not images:
        raise RpcError("INVALID_REQUEST", "the message is empty", field="message")
    session = await find(gateway, given, create=True)
    message = Inbound(
        channel=CHANNEL,
        target=session.key,
        sender=client.principal,
        text=given.text("message"),
        id=f"{client.principal}\0{given.text(IDEMPOTENCY)}",  # no name of a token has a NUL
        images=tuple(Image(it["data"], it["mediaType"]) for it in images),
        session_key=session.key,
        operator="operator.admin" in client.scopes,
    )
    client.following.add(session.key)
    known = await gateway.ledger.run_of(message_id(message))
    if known is not None:
        return {"runId": known, "status": "repeated", "sessionKey": session.key}
    taken = await gateway.host.inbox.receive(message)
    if taken.id:
        client.runs.add(taken.id)
    told: JsonObject = {"runId": taken.id, "status": taken.how, "sessionKey": session.key}
    return {**told, "text": taken.text} if taken.text else told


async def _history(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    session = await find(gateway, given)
    limit = int(given.number("limit", 200))
    messages = await anyio.to_thread.run_sync(_read, session, limit)
    return {"sessionKey": session.key, "sessionId": session.id, "messages": messages}


def _read(session: Session, limit: int) -> list[JsonValue]:
    if not session.transcript.exists():
        return []
    entries = read_transcript(session.transcript).entries
    found = [entry for entry in entries if entry.message is not None][-limit:]
    made: list[JsonValue] = []
    room = MAX_HISTORY_CHARS
    for entry in reversed(found):
        assert entry.message is not None
        told = _tell(entry.message) | {"id": entry.id, "runId": entry.run_id}
        room -= len(str(told))
        if room < 0:
            break
        made.append(told)
    return made[::-1]


def _tell(message: Message) -> JsonObject:
    content: list[JsonValue] = []
    for part in message.content:
        match part:
            case Text(text):
                content.append({"type": "text", "text": text})
            case Thinking():
                content.append({"type": "thinking", "text": part.text})
            case ToolCall():
                call: JsonObject = {"id": part.id, "name": part.name, "input": part.arguments}
                content.append({"type": "toolCall", **call})
            case Image():
                content.append({"type": "image", "mediaType": part.media_type})
    told: JsonObject = {"role": _role(message), "content": content, "at": int(message.at * 1000)}
    if isinstance(message, ToolMessage):
        told |= {"toolCallId": message.call_id, "name": message.name, "isError": message.is_error}
    return told


def _role(message: Message) -> str:
    if isinstance(message, ToolMessage):
        return "toolResult"
    return "assistant" if isinstance(message, AssistantMessage) else "user"


async def _inject(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """Writes something into a session as if the agent had said it; no model is asked."""
    session = await find(gateway, given)
    said = AssistantMessage(
        content=(Text(given.text("message")),),
        provider="gateway",
        model="injected",
        at=time.time(),
    )
    run_id = await gateway.host.runtime.care.inject(session, said)
    told: JsonObject = {"role": "assistant", "text": given.text("message"), "runId": run_id}
    gateway.broadcast("session.message", {"sessionKey": session.key, **told}, session.key)
    return {"runId": run_id, "sessionKey": session.key}


METHODS = (
    method(
        "sessions.list",
        "operator.read",
        _list,
        params(agentId=NAME, limit=integer(1, MAX_LISTED), offset=integer(0, 1_000_000)),
    ),
    method("sessions.get", "operator.read", _get, params(**SESSION)),
    method(
        "sessions.create",
        "operator.write",
        _create,
        params(sessionKey=NAME, agentId=NAME, title=STRING),
        effect=True,
        repeatable=True,
    ),
    method(
        "sessions.patch",
        "operator.admin",
        _patch,
        params(**SESSION, title=STRING, model=STRING, queue=STRING),
        effect=True,
        repeatable=True,
    ),
    method(
        "sessions.reset",
        "operator.write",
        _reset,
        params(**SESSION, reason=choice("new", "reset")),
        effect=True,
    ),
    method("sessions.delete", "operator.admin", _delete, params(**SESSION), effect=True),
    method(
        "sessions.compact",
        "operator.write",
        _compact,
        params(**SESSION, instructions=STRING),
        effect=True,
    ),
    method("sessions.abort", "operator.write", _abort, params(**SESSION, runId=NAME)),
    method(
        "sessions.subscribe",
        "operator.read",
        _subscribe,
        params("sessionKeys", sessionKeys=items(NAME, 1_000)),
    ),
    method(
        "sessions.unsubscribe",
        "operator.read",
        _unsubscribe,
        params("sessionKeys", sessionKeys=items(NAME, 1_000)),
    ),
    method(
        "chat.send",
        "operator.write",
        _send,
        params("message", message=TEXT, images=items(IMAGE, 20), **SESSION),
        effect=True,
        repeatable=True,
    ),
    method(
        "chat.history",
        "operator.read",
        _history,
        params(**SESSION, limit=integer(1, MAX_HISTORY)),
    ),
    method("chat.abort", "operator.write", _abort, params(**SESSION, runId=NAME)),
    method(
        "chat.inject",
        "operator.admin",
        _inject,
        params("message", message=TEXT, **SESSION),
        effect=True,
    ),
)
