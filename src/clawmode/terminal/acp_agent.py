"""`clawmode acp`: the agent for editors that speak the Agent Client Protocol over stdio.

The agent always runs in this process, also if a gateway runs on the state folder: the client names
the folder, the MCP servers and the configuration of a session, and a gateway has its own. The
transcripts are shared; the lock of a session makes a turn wait for a turn of another process.
"""

import logging
import signal
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
from acp import schema
from acp.agent.router import build_agent_router
from acp.connection import Connection
from acp.exceptions import RequestError
from acp.meta import PROTOCOL_VERSION
from anyio.abc import TaskGroup, TaskStatus

from clawmode import __version__
from clawmode.app.console import print_note, printed_logs
from clawmode.app.loading import set_up
from clawmode.app.setup import Options, Setup, state_folder
from clawmode.config import resolve as settings
from clawmode.config.trust import UntrustedConfiguration
from clawmode.exceptions import ClawmodeError, ConfigurationError, message_of
from clawmode.sandbox.pool import Pool
from clawmode.sessions.keys import SessionError
from clawmode.sessions.store import Session, SessionStore
from clawmode.sessions.workspaces import current_folder
from clawmode.tasks import background_tasks
from clawmode.terminal.acp_questions import Editor
from clawmode.terminal.acp_requests import Block, Server, describe, entries_of, read_prompt
from clawmode.terminal.acp_session import CHANNEL, FAILED, MODES, EditorSession
from clawmode.terminal.acp_wire import INVALID_PARAMS, AcpWire
from clawmode.terminal.interrupts import interruptible
from clawmode.text import quote
from clawmode.tools.approvals import Mode

if TYPE_CHECKING:
    from acp.interfaces import Agent

logger = logging.getLogger("clawmode.acp")

NOT_FOUND = -32002
MAX_SESSIONS = 32
"""The most sessions that are open at the same time: each has its own tools and MCP servers."""

PAGE = 50


def serve(options: Options, wire: AcpWire, *, agent_id: str = "", model: str = "") -> None:
    """Serves a client until it closes stdin, or until the process is stopped.

    Args:
        options: Which configuration, tools and policy sessions have.
        wire: Stdin and stdout.
        agent_id: The agent; empty for the default agent of the configuration.
        model: `provider/model`, instead of the agent's.
    """
    with printed_logs():
        logging.getLogger().addHandler(logging.NullHandler())  # the package logs tracebacks
        anyio.run(_serve, options, wire, agent_id, model)


async def _serve(options: Options, wire: AcpWire, agent_id: str, model: str) -> None:
    async with interruptible(signal.SIGTERM, signal.SIGHUP), Pool() as pool:
        async with background_tasks() as tasks:
            agent = AcpAgent(options, tasks, pool, agent_id=agent_id, model=model)
            connection = Connection(agent.handle, wire, listening=False)
            agent.editor = Editor(connection)
            wire.attach()
            try:
                await connection.main_loop()
                await agent.close()
            finally:
                with anyio.CancelScope(shield=True):
                    await connection.close()


class AcpAgent:
    """The agent's side of the protocol: each method answers one kind of request.

    Args:
        options: Which configuration, tools and policy sessions have.
        tasks: Runs the sessions.
        pool: The workers of all sessions.
        agent_id: The agent; empty for the default agent of the configuration.
        model: `provider/model`, instead of the agent's.

    Attributes:
        editor: The client.
    """

    editor: Editor

    def __init__(
        self, options: Options, tasks: TaskGroup, pool: Pool, *, agent_id: str, model: str
    ) -> None:
        self._options = options
        self._tasks = tasks
        self._pool = pool
        self._agent_id = agent_id
        self._model = model
        self._sessions: dict[str, EditorSession] = {}
        self._setting_up = anyio.Lock()
        # Closing and resuming sessions are parts of the unstable protocol.
        self._route = build_agent_router(cast("Agent", self), use_unstable_protocol=True)

    async def handle(self, method: str, params: Any, is_notification: bool) -> Any:
        """Answers a message.

        Raises:
            RequestError: The answer is an error.
        """
        try:
            return await self._route(method, params, is_notification)
        except RequestError:
            if not is_notification:
                raise
        except ClawmodeError as error:
            code = INVALID_PARAMS if isinstance(error, ConfigurationError) else FAILED
            code = NOT_FOUND if isinstance(error, SessionError) else code
            raise RequestError(code, str(error)) from None
        except ConnectionError:
            raise RequestError(FAILED, "the connection was closed") from None
        except ValueError as error:
            if is_notification:
                return None
            raise RequestError(INVALID_PARAMS, describe(error)) from None
        except Exception as error:
            logger.error("%s: %s: %s", method, type(error).__name__, message_of(error))
            raise RequestError(FAILED, f"{method} failed: {type(error).__name__}") from None
        return None

    async def close(self) -> None:
        """Closes all sessions, at the same time."""
        sessions = [*self._sessions.values()]
        self._sessions.clear()
        async with anyio.create_task_group() as closing:
            for session in sessions:
                closing.start_soon(session.close)

    # ---- The connection ----

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: schema.ClientCapabilities | None = None,
        **_: Any,
    ) -> schema.InitializeResponse:
        offered = client_capabilities and client_capabilities.elicitation
        kinds = [kind for kind in ("form", "url") if getattr(offered, kind, None) is not None]
        self.editor = replace(self.editor, forms=frozenset(kinds))
        return schema.InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                prompt_capabilities=schema.PromptCapabilities(image=True, embedded_context=True),
                mcp_capabilities=schema.McpCapabilities(http=True, sse=True),
                session_capabilities=schema.SessionCapabilities(
                    list=schema.SessionListCapabilities(),
                    resume=schema.SessionResumeCapabilities(),
                    close=schema.SessionCloseCapabilities(),
                ),
            ),
            auth_methods=[],
            agent_info=schema.Implementation(
                name="clawmode", title="clawmode", version=__version__
            ),
        )

    # ---- Sessions ----

    async def new_session(
        self, cwd: str, mcp_servers: Sequence[Server], **_: Any
    ) -> schema.NewSessionResponse:
        setup = await self._set_up(cwd, mcp_servers)
        agent_id = self._agent_id or settings.default_agent(setup.configuration)
        store = SessionStore(setup.sessions_folder)
        session = await store.resolve(f"{CHANNEL}:{uuid.uuid4().hex}", None, agent_id)
        opened = await self._open(session, setup)
        return schema.NewSessionResponse(session_id=opened.id, modes=_modes(opened))

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[Server], **_: Any
    ) -> schema.LoadSessionResponse:
        opened = await self._reopen(cwd, session_id, mcp_servers)
        await opened.replay()
        return schema.LoadSessionResponse(modes=_modes(opened))

    async def resume_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[Server] | None = None, **_: Any
    ) -> schema.ResumeSessionResponse:
        opened = await self._reopen(cwd, session_id, mcp_servers or ())
        return schema.ResumeSessionResponse(modes=_modes(opened))

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> schema.ListSessionsResponse:
        if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
            raise RequestError(INVALID_PARAMS, f"{quote(cursor, 40)} is not a cursor of ours")
        store = SessionStore(state_folder(self._options.state) / "sessions")
        offset, found = int(cursor or 0), list[schema.SessionInfo]()
        while len(found) < PAGE:
            page = await store.list(limit=PAGE, offset=offset)
            for session in page:
                offset += 1
                folder = session.data.get(CHANNEL)
                if not isinstance(folder, str) or not session.title or cwd not in (None, folder):
                    continue
                at = datetime.fromtimestamp(session.updated_at, UTC)
                info = schema.SessionInfo(
                    session_id=session.id,
                    cwd=folder,
                    title=session.title,
                    updated_at=at.isoformat(timespec="seconds"),
                )
                found.append(info)
                if len(found) == PAGE:
                    break
            if len(page) < PAGE:
                return schema.ListSessionsResponse(sessions=found)
        return schema.ListSessionsResponse(sessions=found, next_cursor=str(offset))

    async def close_session(self, session_id: str, **_: Any) -> None:
        session = self._find(session_id)
        del self._sessions[session_id]
        await session.close()

    async def set_session_mode(self, mode_id: str, session_id: str, **_: Any) -> None:
        session = self._find(session_id)
        mode = next((each for each in session.modes if each == mode_id), None)
        if mode is None:
            allowed = ", ".join(session.modes)
            text = f"{quote(mode_id, 40)} is not a mode of this session, which has: {allowed}"
            raise RequestError(INVALID_PARAMS, text)
        session.set_mode(mode)

    # ---- Prompts ----

    async def prompt(
        self, prompt: Sequence[Block], session_id: str, **_: Any
    ) -> schema.PromptResponse:
        session = self._find(session_id)
        text, images = read_prompt(prompt)
        return await session.prompt(text, images)

    async def cancel(self, session_id: str, **_: Any) -> None:
        self._find(session_id).cancel()

    # ---- Opening ----

    def _find(self, session_id: str) -> EditorSession:
        session = self._sessions.get(session_id)
        if session is None:
            text = f"no session {quote(session_id, 40)} is open: create or load it first"
            raise RequestError(NOT_FOUND, text)
        return session

    async def _set_up(self, cwd: str, servers: Sequence[Server]) -> Setup:
        """Reads the configuration for a folder.

        Raises:
            ConfigurationError: The folder or the configuration cannot be used.
        """
        folder = Path(cwd)
        if "\0" in cwd or not folder.is_absolute() or not await anyio.Path(folder).is_dir():
            raise ConfigurationError(f"cwd must be the absolute path of a folder, got {quote(cwd)}")
        usable = current_folder(state_folder(self._options.state), folder)
        if usable is None:
            raise ConfigurationError(
                f"an agent cannot work in {quote(cwd)}, because this folder contains your home "
                "folder or the state folder of clawmode: open the folder of a project"
            )
        if len(self._sessions) >= MAX_SESSIONS:
            raise ConfigurationError(f"{MAX_SESSIONS} sessions are open: close one of them first")

        def read() -> Setup:
            brought = entries_of(servers, usable)
            return set_up(self._options, "agent", folder=usable, servers_of_client=brought)

        try:
            async with self._setting_up:  # loading modules and warnings is global
                setup = await anyio.to_thread.run_sync(read)
        except UntrustedConfiguration as error:
            raise ConfigurationError(f"in {usable}: {error}") from None
        for note in setup.notes:
            print_note(note)
        return setup

    async def _reopen(self, cwd: str, session_id: str, servers: Sequence[Server]) -> EditorSession:
        setup = await self._set_up(cwd, servers)
        session = await SessionStore(setup.sessions_folder).get(session_id)
        if (known := self._sessions.pop(session.id, None)) is not None:
            await known.close()
        return await self._open(session, setup)

    async def _open(self, session: Session, setup: Setup) -> EditorSession:
        configured = settings.approve_mode(setup.configuration, session.agent_id)
        mode: Mode = self._options.approve or configured
        store = SessionStore(setup.sessions_folder)
        session = await store.touch(session.id, data={CHANNEL: str(setup.here)})
        opened = EditorSession(session, setup, self.editor, mode, self._model)
        await self._tasks.start(self._keep, opened)
        self._sessions[opened.id] = opened
        return opened

    async def _keep(self, session: EditorSession, *, task_status: TaskStatus[None]) -> None:
        """Owns a session: the task that opens an agent has to be the one that closes it."""
        started = False
        try:
            async with session.opened(self._pool):
                task_status.started()
                started = True
                await session.stay_open()
        except Exception as error:
            if not started:
                raise
            logger.error("session %s: %s: %s", session.id, type(error).__name__, error)
        finally:
            session.mark_closed()


def _modes(session: EditorSession) -> schema.SessionModeState:
    modes = [
        schema.SessionMode(id=mode, name=name, description=about)
        for mode, (name, about) in MODES.items()
        if mode in session.modes
    ]
    return schema.SessionModeState(current_mode_id=session.modes[0], available_modes=modes)
