"""What is done to a session between its runs: begun, reset, deleted, shortened.

Each of it waits for the session's run to end, and keeps others out meanwhile.
"""

import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from clawmode.agent.compaction import CompactionResult, Compactor
from clawmode.agent.hooks import SessionEvent
from clawmode.agent.lanes import Lanes
from clawmode.agent.operator_hooks import OperatorHooks
from clawmode.agent.requests import AgentRequest, Resolver
from clawmode.context import RunContext
from clawmode.messages import AssistantMessage
from clawmode.sessions.history import TranscriptError
from clawmode.sessions.store import Session, SessionStore
from clawmode.tools.hooks import Hooks

logger = logging.getLogger("clawmode.agent")

Forget = Callable[[RunContext], Awaitable[None]]
"""Ends what a session has left running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCare:
    """Looks after sessions.

    Attributes:
        stop: Aborts what runs and waits in a session.
        forget: Ends what a session has left running.
    """

    sessions: SessionStore
    resolver: Resolver
    lanes: Lanes
    hooks: Hooks
    operator: OperatorHooks | None
    stop: Callable[[str], int]
    forget: Forget
    _compacting: dict[str, anyio.CancelScope] = field(
        default_factory=dict[str, anyio.CancelScope], repr=False
    )

    async def begin(self, session: Session) -> None:
        """A session has its first run."""
        event = SessionEvent(key=session.key, id=session.id, agent_id=session.agent_id)
        await self.hooks.notify("session_start", event)
        await self._tell_operator("session:start", event)

    async def reset(self, session: Session, reason: str = "reset") -> Session:
        """A new conversation under the same key; the old one is kept. What runs in it is stopped.

        Raises:
            UnknownSession: There is none.
        """
        self.stop(session.key)
        async with self.lanes.enter(session.key, shared=False):
            made = await self.sessions.reset(session.key)
            await self._end(session, reason)
        return made

    async def delete(self, session: Session) -> int:
        """Deletes a conversation, those before it, and their files; how many that were.

        Raises:
            UnknownSession: There is none.
            SessionBusy: Another process has it.
        """
        self.stop(session.key)
        async with self.lanes.enter(session.key, shared=False):
            count = await self.sessions.delete(session.key)
            await anyio.to_thread.run_sync(self.resolver.forget, session)
            await self._end(session, "deleted")
        return count

    async def compact(self, session: Session, wishes: str = "") -> CompactionResult | None:
        """Shortens a conversation; None if there is nothing to gain.

        Raises:
            ClawmodeError: It cannot be had, summed up, or written.
        """
        with anyio.CancelScope() as scope:
            self._compacting[session.key] = scope
            try:
                return await self._compact(session, wishes)
            finally:
                if self._compacting.get(session.key) is scope:
                    del self._compacting[session.key]
        raise TranscriptError("It was stopped.")

    def cancel(self, session_key: str) -> None:
        """Stops a conversation's being shortened."""
        if (scope := self._compacting.get(session_key)) is not None:
            scope.cancel()

    async def _compact(self, session: Session, wishes: str) -> CompactionResult | None:
        request = AgentRequest(session_id=session.id)
        async with self.lanes.enter(session.key):
            settings = await self.resolver.settings(request, session)
            async with session.open(
                settings.lock_seconds, workspace=settings.workspace
            ) as transcript:
                compactor = Compactor(
                    settings.compaction,
                    transcript,
                    context_of(session, uuid.uuid4().hex),
                    self.hooks,
                    lambda stream, data: None,
                )
                return await compactor.compact(settings.models[0], wishes)

    async def inject(self, session: Session, said: AssistantMessage) -> str:
        """Writes something down as if the agent had said it; the id of the run that it counts as.

        Raises:
            ClawmodeError: It cannot be written.
        """
        run_id = uuid.uuid4().hex
        async with self.lanes.enter(session.key), session.open() as transcript:
            transcript.start_run(run_id, model=f"{said.provider}/{said.model}", trigger="inject")
            transcript.message(run_id, said)
            transcript.end_run(run_id, "ok")
        await self.sessions.touch(session.id, status="ok")
        return run_id

    async def _end(self, session: Session, reason: str) -> None:
        await self.forget(context_of(session, ""))
        event = SessionEvent(
            key=session.key, id=session.id, agent_id=session.agent_id, reason=reason
        )
        await self.hooks.notify("session_end", event)
        await self._tell_operator("session:end", event)

    async def _tell_operator(self, name: str, event: SessionEvent) -> None:
        if self.operator is not None and self.operator.has(name):
            await self.operator.run(
                name,
                {
                    "sessionKey": event.key,
                    "sessionId": event.id,
                    "agentId": event.agent_id,
                    "reason": event.reason,
                },
            )


def context_of(session: Session, run_id: str) -> RunContext:
    """Who asks, when it is nobody's run."""
    return RunContext(
        agent_id=session.agent_id,
        session_id=session.id,
        session_key=session.key,
        run_id=run_id,
    )
