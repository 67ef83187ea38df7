"""Changes to a session between its runs: start, reset, deletion, compaction, injected messages.

Each of them waits for the session's run to end, and keeps other runs out meanwhile.
"""

import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import TYPE_CHECKING

import anyio

from clawmode.agent.compaction import CompactionResult, Compactor
from clawmode.agent.hooks import SessionEvent
from clawmode.agent.lanes import Lanes
from clawmode.agent.requests import AgentRequest, Resolver
from clawmode.code_mode.state import session_of
from clawmode.context import RunContext
from clawmode.exceptions import StoreUnavailable
from clawmode.messages import AssistantMessage
from clawmode.sessions.entries import TranscriptError
from clawmode.sessions.store import Session, SessionStore
from clawmode.sessions.transcript import open_session
from clawmode.types import dataclass

if TYPE_CHECKING:
    from clawmode.agent.run import Resources

logger = logging.getLogger("clawmode.agent")

CleanUp = Callable[[RunContext], Awaitable[None]]
"""Ends the processes that the runs of a session have left running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCare:
    """Starts, resets, deletes and compacts sessions.

    Attributes:
        shared: The hooks that are told of it, and the store that keeps what programs stored.
        stop: Aborts the running and queued runs of a session.
        clean_up: Ends the processes that a session has left running.
    """

    sessions: SessionStore
    resolver: Resolver
    lanes: Lanes
    shared: "Resources"
    stop: Callable[[str], int]
    clean_up: CleanUp | None
    _compacting: dict[str, anyio.CancelScope] = field(
        default_factory=dict[str, anyio.CancelScope], repr=False
    )

    async def begin(self, session: Session) -> None:
        """Notifies hooks that a session has its first run."""
        event = SessionEvent(key=session.key, id=session.id, agent_id=session.agent_id)
        await self.shared.hooks.notify("session_start", event)
        await self._notify_operator("session:start", event)

    async def reset(self, session: Session, reason: str = "reset") -> Session:
        """Aborts the session's runs and starts a new conversation under its key.

        The old conversation is kept.

        Raises:
            UnknownSession: The session was deleted.
        """
        # Before the lane, which is free only when the session's run has ended.
        self.stop(session.key)
        async with self.lanes.enter(session.key, shared=False):
            made = await self.sessions.reset(session.key)
            await self._end(session, reason)
        return made

    async def delete(self, session: Session) -> int:
        """Deletes a conversation, those before it, and their files; returns how many there were.

        Raises:
            UnknownSession: The session was deleted before.
            SessionBusy: Another process writes to the session.
        """
        self.stop(session.key)
        async with self.lanes.enter(session.key, shared=False):
            count = await self.sessions.delete(session.key)
            await anyio.to_thread.run_sync(self.resolver.forget, session)
            await self._end(session, "deleted")
        return count

    async def compact(self, session: Session, wishes: str = "") -> CompactionResult | None:
        """Compacts a conversation; returns None if there is nothing to gain.

        Raises:
            ClawmodeError: The session cannot be opened, summarized or written.
        """
        with anyio.CancelScope() as scope:
            self._compacting[session.key] = scope
            try:
                async with self.lanes.enter(session.key):
                    request = AgentRequest(session_id=session.id)
                    found = await self.resolver.resolve(request, session)
                    limit = found.configuration.session.write_lock.acquire_timeout_ms / 1000
                    async with open_session(
                        session, limit, workspace=found.workspace
                    ) as transcript:
                        compactor = Compactor(
                            found.agent,
                            found.summarizer,
                            transcript,
                            session.context(uuid.uuid4().hex),
                            self.shared.hooks,
                            lambda stream, data: None,
                        )
                        return await compactor.compact(found.models[0], wishes)
            finally:
                # A later call for the same session may have replaced the scope.
                if self._compacting.get(session.key) is scope:
                    del self._compacting[session.key]
        raise TranscriptError("The compaction was stopped.")

    def cancel(self, session_key: str) -> None:
        """Cancels the compaction of a session, if there is one."""
        if (scope := self._compacting.get(session_key)) is not None:
            scope.cancel()

    async def inject(self, session: Session, said: AssistantMessage) -> str:
        """Records a message as if the agent had said it; returns the id of a run made for it.

        Raises:
            ClawmodeError: The message cannot be written.
        """
        run_id = uuid.uuid4().hex
        async with self.lanes.enter(session.key), open_session(session) as transcript:
            transcript.start_run(run_id, model=f"{said.provider}/{said.model}", trigger="inject")
            transcript.message(run_id, said)
            transcript.end_run(run_id, "ok")
        await self.sessions.touch(session.id, status="ok")
        return run_id

    async def _end(self, session: Session, reason: str) -> None:
        context = session.context("")
        if self.clean_up is not None:
            await self.clean_up(context)
        try:
            await self.shared.store.drop_shelves(session_of(context.scope))
        except StoreUnavailable as error:
            logger.error("what programs have stored could not be deleted: %s", error)
        event = SessionEvent(
            key=session.key, id=session.id, agent_id=session.agent_id, reason=reason
        )
        await self.shared.hooks.notify("session_end", event)
        await self._notify_operator("session:end", event)

    async def _notify_operator(self, name: str, event: SessionEvent) -> None:
        if self.shared.operator is not None and self.shared.operator.has(name):
            await self.shared.operator.run(
                name,
                {
                    "sessionKey": event.key,
                    "sessionId": event.id,
                    "agentId": event.agent_id,
                    "reason": event.reason,
                },
            )
