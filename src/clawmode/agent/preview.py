"""What a model would get at the beginning of a turn, and how much of its context that takes.

A preview starts, writes and locks nothing: it reads a copy of the session.
"""

import json
import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio

from clawmode.agent.prompt import CHARS_PER_TOKEN, Prompt
from clawmode.agent.requests import AgentRequest, Resolver
from clawmode.agent.run import AgentRun, Resources
from clawmode.models.base import ToolDefinition
from clawmode.sessions.keys import UnknownSession, session_key
from clawmode.sessions.store import Session, SessionStore
from clawmode.sessions.transcript import open_session
from clawmode.types import JsonObject, JsonValue, dataclass

NOWHERE = Path("nowhere")
"""The transcript of a session that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A turn before it begins.

    Attributes:
        conversation: The estimated tokens of the conversation so far.
        window: The model's context window.
        room: The part of the window that a conversation may fill; the rest is for the reply.
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
        """The estimated tokens of all tool definitions."""
        return sum(_tokens(tool) for tool in self.tools)

    @property
    def total(self) -> int:
        """The estimated tokens of the request, without the new message."""
        return self.prompt.tokens + self.tool_tokens + self.conversation

    def to_json(self) -> JsonObject:
        """Returns the preview with the whole prompt."""
        tools: list[JsonValue] = [
            {"name": tool.name, "description": tool.description, "tokens": _tokens(tool)}
            for tool in self.tools
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
    length = len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters))
    return -(-length // CHARS_PER_TOKEN)


@asynccontextmanager
async def open_preview_run(
    request: AgentRequest,
    shared: Resources,
    resolver: Resolver,
    sessions: SessionStore,
    *,
    create: bool = False,
) -> AsyncIterator[AgentRun]:
    """Makes a run that is not carried out, on a copy of its session.

    Args:
        request: The turn.
        shared: What all runs share.
        resolver: Resolves the request.
        sessions: The sessions.
        create: Whether a session that does not exist is created. If not, the run has one that
            exists only inside of the block.

    Raises:
        ClawmodeError: The session, a model or a folder is not available.
    """
    session = await _find_session(resolver, sessions, request, create)
    run = AgentRun(uuid.uuid4().hex, request, session, shared)
    run.begin(await resolver.resolve(request, session))
    try:
        with tempfile.TemporaryDirectory() as folder:
            run.session = await anyio.to_thread.run_sync(_copy, session, Path(folder))
            async with open_session(
                run.session, workspace=run.resolved.workspace
            ) as run.transcript:
                yield run
    finally:
        if session.transcript == NOWHERE:
            # The resolver may have created a sandbox folder for it.
            resolver.forget(session)


async def _find_session(
    resolver: Resolver, sessions: SessionStore, request: AgentRequest, create: bool
) -> Session:
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
