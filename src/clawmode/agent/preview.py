"""What a model would be told at the beginning of a turn, and how much of its room that takes.

Nothing is begun, written or locked: a session is looked at as a copy.
"""

import json
import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from clawmode.agent.care import context_of
from clawmode.agent.compaction import estimate
from clawmode.agent.prompt import CHARS_PER_TOKEN, Prompt
from clawmode.agent.requests import AgentRequest, Resolver
from clawmode.agent.run import Resources, SessionRun
from clawmode.models.base import ToolDefinition
from clawmode.sessions.keys import session_key
from clawmode.sessions.store import Session, SessionStore, UnknownSession
from clawmode.types import JsonObject, JsonValue

NOWHERE = Path("nowhere")
"""The transcript of a session that there is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A turn, before it begins.

    Attributes:
        conversation: About how many tokens have been said so far.
        window: What the model can read.
        room: What of that a conversation may have: the rest is kept for the answer.
    """

    session_key: str
    model: str
    prompt: Prompt
    tools: tuple[ToolDefinition, ...]
    conversation: int
    window: int
    room: int

    @property
    def tool_tokens(self) -> int:
        """About how many the tools take."""
        return sum(_tokens(each) for each in self.tools)

    @property
    def total(self) -> int:
        """About how many are taken before a word is said."""
        return self.prompt.tokens + self.tool_tokens + self.conversation

    def to_json(self) -> JsonObject:
        """For programs, with all of the text."""
        tools: list[JsonValue] = [
            {"name": each.name, "description": each.description, "tokens": _tokens(each)}
            for each in self.tools
        ]
        return {
            "sessionKey": self.session_key,
            "model": self.model,
            "prompt": self.prompt.text,
            "context": self.prompt.context,
            "report": self.prompt.report(),
            "tools": tools,
            "toolTokens": self.tool_tokens,
            "conversationTokens": self.conversation,
            "totalTokens": self.total,
            "contextWindow": self.window,
            "room": self.room,
        }


def _tokens(tool: ToolDefinition) -> int:
    told = len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters))
    return -(-told // CHARS_PER_TOKEN)


async def preview(
    shared: Resources, resolver: Resolver, sessions: SessionStore, request: AgentRequest
) -> Preview:
    """Looks at a turn.

    Raises:
        ClawmodeError: Something of it cannot be had.
    """
    async with looking(shared, resolver, sessions, request) as run:
        prompt, tools = await run.preview()
        conversation = estimate(run.transcript.messages())
    settings, model = run.settings, run.settings.models[0]
    return Preview(
        session_key=run.session.key,
        model=f"{model.provider}/{model.name}",
        prompt=prompt,
        tools=tools,
        conversation=conversation,
        window=model.limits.context_window,
        room=settings.compaction.room(model),
    )


@asynccontextmanager
async def looking(
    shared: Resources,
    resolver: Resolver,
    sessions: SessionStore,
    request: AgentRequest,
    *,
    create: bool = False,
) -> AsyncIterator[SessionRun]:
    """A run that is not carried out, of a session that others may use meanwhile.

    Raises:
        ClawmodeError: Something of it cannot be had.
    """
    session = await _find(resolver, sessions, request, create)
    settings = await resolver.settings(request, session)
    context = context_of(session, uuid.uuid4().hex)
    with _left_as_it_was(resolver, session), tempfile.TemporaryDirectory() as folder:
        copy = await anyio.to_thread.run_sync(_copy, session, Path(folder))
        async with copy.open(workspace=settings.workspace) as transcript:
            yield SessionRun(
                shared=shared,
                request=request,
                session=copy,
                context=replace(context, sender=request.sender, channel=request.channel),
                settings=settings,
                transcript=transcript,
                emit=lambda stream, data: None,
                closing=lambda: True,
            )


@contextmanager
def _left_as_it_was(resolver: Resolver, session: Session) -> Iterator[None]:
    """Takes away what was made for a session that there is not."""
    try:
        yield
    finally:
        if session.transcript == NOWHERE:
            resolver.forget(session)


async def _find(
    resolver: Resolver, sessions: SessionStore, request: AgentRequest, create: bool
) -> Session:
    """The session that is meant; or one that there might be."""
    agent_id = resolver.agent_of(request)
    key = request.session_key or None
    try:
        return await sessions.resolve(key, request.session_id or None, agent_id, create=create)
    except UnknownSession:
        if request.session_id:
            raise
    now = time.time()
    return Session(
        key=session_key(key, agent_id),
        id=uuid.uuid4().hex,
        agent_id=agent_id,
        transcript=NOWHERE,
        created_at=now,
        updated_at=now,
    )


def _copy(session: Session, folder: Path) -> Session:
    path = folder / "session.jsonl"
    if session.transcript.is_file():
        shutil.copyfile(session.transcript, path)
    return replace(session, transcript=path)
