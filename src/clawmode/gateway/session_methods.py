"""The methods `sessions.*` and `chat.*`: conversations and their messages."""

import time

import anyio

from clawmode.gateway.clients import EVERYTHING
from clawmode.gateway.history_methods import list_sessions
from clawmode.gateway.methods import (
    BOOLEAN,
    IMAGE,
    NAME,
    SESSION,
    STRING,
    TEXT,
    MethodCall,
    choice,
    integer,
    items,
    method,
    params,
)
from clawmode.messages import (
    AssistantMessage,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
)
from clawmode.messaging.channel import InboundMessage, message_id
from clawmode.messaging.queue import parse_override
from clawmode.rpc.protocol import IDEMPOTENCY, RpcError
from clawmode.sessions.history import read_transcript
from clawmode.sessions.keys import session_key
from clawmode.sessions.store import Session
from clawmode.text import shorten
from clawmode.types import JsonObject, JsonValue

MAX_LISTED = 1_000
MAX_FOLLOWED = 10_000
MAX_HISTORY = 1_000
MAX_HISTORY_CHARS = 8 << 20
CHANNEL = "gateway"
"""The channel of messages that clients send."""


def describe(session: Session) -> JsonObject:
    """Returns a session as clients see it."""
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


# ---- Sessions ----


async def _list(call: MethodCall) -> JsonObject:
    return await list_sessions(call, describe)


async def _get(call: MethodCall) -> JsonObject:
    session = await call.session()
    runs = call.runtime.under_way(session.key)
    return {
        "session": describe(session),
        "runs": [{"runId": run.id, "state": run.state} for run in runs],
        "waiting": [
            {"id": waiting.id, "text": shorten(waiting.message.text, 500)}
            for waiting in call.host.inbox.waiting(session.key)
        ],
    }


async def _create(call: MethodCall) -> JsonObject:
    key = call.params.text("sessionKey") or f"session-{call.derived_id[:12]}"
    session = await call.runtime.sessions.resolve(key, agent_id=call.params.text("agentId") or None)
    if call.params.text("title"):
        session = await call.runtime.sessions.touch(session.id, title=call.params.text("title"))
    _changed(call, session, "create")
    return {"session": describe(session)}


async def _patch(call: MethodCall) -> JsonObject:
    """Changes settings of a session. An empty text resets a setting."""
    session = await call.session()
    if (model := call.params.text("model")) and "model" in call.params:
        call.host.models.find(model)
    data: JsonObject = {}
    if "queue" in call.params:
        try:
            data["queue"] = parse_override(call.params.text("queue") or "default")
        except ValueError as error:
            raise RpcError("INVALID_REQUEST", str(error), field="queue") from None
    session = await call.runtime.sessions.touch(
        session.id,
        title=call.params.text("title") if "title" in call.params else None,
        model=call.params.text("model") if "model" in call.params else None,
        data=data,
    )
    _changed(call, session, "patch")
    return {"session": describe(session)}


async def _reset(call: MethodCall) -> JsonObject:
    session = await call.session()
    call.host.inbox.stop(session.key)
    new = await call.runtime.care.reset(session, call.params.text("reason", "reset"))
    _changed(call, new, "reset")
    return {"session": describe(new)}


async def _delete(call: MethodCall) -> JsonObject:
    session = await call.session()
    # First: a waiting message would start a run in the deleted session.
    call.host.inbox.stop(session.key)
    count = await call.runtime.care.delete(session)
    _changed(call, session, "delete")
    return {"deleted": count}


async def _compact(call: MethodCall) -> JsonObject:
    session = await call.session()
    done = await call.runtime.care.compact(session, call.params.text("instructions"))
    if done is None:
        return {"compacted": False}
    return {
        "compacted": True,
        "messages": done.messages,
        "tokensBefore": done.before,
        "tokensAfter": done.after,
    }


async def _abort(call: MethodCall) -> JsonObject:
    """Stops a run, withdraws a waiting message, or stops everything in a session."""
    if run_id := call.params.text("runId"):
        return {"aborted": int(call.host.inbox.cancel(run_id))}
    session = await call.session()
    return {"aborted": call.host.inbox.stop(session.key)}


async def _subscribe(call: MethodCall) -> JsonObject:
    call.client.following |= {_key(reference) for reference in call.params.list("sessionKeys")}
    if len(call.client.following) > MAX_FOLLOWED:
        call.client.following.clear()
        text = f"a client can follow at most {MAX_FOLLOWED} sessions; `*` follows all of them"
        raise RpcError("INVALID_REQUEST", text, field="sessionKeys")
    return {"following": list[JsonValue](sorted(call.client.following))}


async def _unsubscribe(call: MethodCall) -> JsonObject:
    call.client.following -= {_key(reference) for reference in call.params.list("sessionKeys")}
    return {"following": list[JsonValue](sorted(call.client.following))}


def _key(reference: str) -> str:
    return reference if reference == EVERYTHING else session_key(reference)


def _changed(call: MethodCall, session: Session, reason: str) -> None:
    about: JsonObject = {"sessionKey": session.key, "sessionId": session.id, "reason": reason}
    call.gateway.broadcast("sessions.changed", about)


# ---- Chat ----


async def _send(call: MethodCall) -> JsonObject:
    """Sends a message to a session as a person does: slash commands, steering, the queue."""
    images = call.params.images()
    if not call.params.text("message").strip() and not images:
        raise RpcError("INVALID_REQUEST", "the message is empty", field="message")
    session = await call.session(create=True)
    message = InboundMessage(
        channel=CHANNEL,
        target=session.key,
        sender=call.client.principal,
        text=call.params.text("message"),
        # Unambiguous: the name of a token cannot contain a NUL.
        id=f"{call.client.principal}\0{call.params.text(IDEMPOTENCY)}",
        images=images,
        session_key=session.key,
        operator="operator.admin" in call.client.scopes,
    )
    # Before the message is received, so that the client gets the first events of the reply.
    call.client.following.add(session.key)
    earlier_run = await call.gateway.ledger.run_of(message_id(message))
    if earlier_run is not None:
        return {"runId": earlier_run, "status": "repeated", "sessionKey": session.key}
    receipt = await call.host.inbox.receive(message)
    if receipt.id:
        call.client.runs.add(receipt.id)
    answer: JsonObject = {"runId": receipt.id, "status": receipt.how, "sessionKey": session.key}
    return {**answer, "text": receipt.text} if receipt.text else answer


async def _history(call: MethodCall) -> JsonObject:
    session = await call.session()
    limit = int(call.params.number("limit", 200))
    messages = await anyio.to_thread.run_sync(_read_messages, session, limit)
    return {"sessionKey": session.key, "sessionId": session.id, "messages": messages}


def _read_messages(session: Session, limit: int) -> list[JsonValue]:
    if not session.transcript.exists():
        return []
    entries = read_transcript(session.transcript).entries
    last = [entry for entry in entries if entry.message is not None][-limit:]
    newest_first: list[JsonValue] = []
    room = MAX_HISTORY_CHARS
    for entry in reversed(last):
        assert entry.message is not None
        message = describe_message(entry.message) | {"id": entry.id, "runId": entry.run_id}
        room -= len(str(message))
        if room < 0:
            break
        newest_first.append(message)
    return newest_first[::-1]


def describe_message(message: Message) -> JsonObject:
    """Returns a message as clients see it: images without their data."""
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
    about: JsonObject = {"content": content, "at": int(message.at * 1000)}
    if isinstance(message, ToolMessage):
        call = {"toolCallId": message.call_id, "name": message.name, "isError": message.is_error}
        return {"role": "toolResult", **about, **call}
    return {"role": "assistant" if isinstance(message, AssistantMessage) else "user", **about}


async def _inject(call: MethodCall) -> JsonObject:
    """Adds a message to a session as if the agent had sent it. No model is called."""
    session = await call.session()
    message = AssistantMessage(
        content=(Text(call.params.text("message")),),
        provider="gateway",
        model="injected",
        at=time.time(),
    )
    run_id = await call.runtime.care.inject(session, message)
    about: JsonObject = {"role": "assistant", "text": call.params.text("message"), "runId": run_id}
    call.gateway.broadcast("session.message", {"sessionKey": session.key, **about}, session.key)
    return {"runId": run_id, "sessionKey": session.key}


METHODS = (
    method(
        "sessions.list",
        "operator.read",
        _list,
        params(
            agentId=NAME,
            query=STRING,
            limit=integer(1, MAX_LISTED),
            offset=integer(0, 1_000_000),
            before=NAME,
            previews=BOOLEAN,
        ),
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
        "chat.history", "operator.read", _history, params(**SESSION, limit=integer(1, MAX_HISTORY))
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
