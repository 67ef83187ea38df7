"""Drives `clawmode acp` in a process of its own, with the client of the official package."""

import json
import os
import subprocess
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from acp import schema
from acp.client import ClientSideConnection
from acp.stdio import spawn_agent_process
from anyio.streams.buffered import BufferedByteReceiveStream
from tests.support.cli_driver import command_line
from tests.support.waiting import until

Answer = Callable[[schema.RequestPermissionRequest], Awaitable[str | None]]
"""Returns the id of an option, or None for `cancelled`."""

MAX_LINE = 64 << 20


async def allow(request: schema.RequestPermissionRequest) -> str | None:
    return "allow_once"


class EditorClient:
    """A client that records updates and questions.

    Args:
        answer: Decides about questions.
    """

    def __init__(self, answer: Answer = allow) -> None:
        self.answer = answer
        self.updates: list[tuple[str, Any]] = []
        self.asked: list[schema.RequestPermissionRequest] = []

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append((session_id, update))

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Any, **_: Any
    ) -> schema.RequestPermissionResponse:
        request = schema.RequestPermissionRequest(
            session_id=session_id, tool_call=tool_call, options=options
        )
        self.asked.append(request)
        chosen = await self.answer(request)
        if chosen is None:
            outcome = schema.DeniedOutcome(outcome="cancelled")
            return schema.RequestPermissionResponse(outcome=outcome)
        selected = schema.AllowedOutcome(outcome="selected", option_id=chosen)
        return schema.RequestPermissionResponse(outcome=selected)

    # ---- What was seen ----

    def of(self, kind: str, session_id: str | None = None) -> list[Any]:
        """The updates of one kind, such as `tool_call`."""
        return [
            update
            for owner, update in self.updates
            if update.session_update == kind and session_id in (None, owner)
        ]

    def said(self, session_id: str | None = None, kind: str = "agent_message_chunk") -> str:
        """The text of all chunks."""
        return "".join(update.content.text for update in self.of(kind, session_id))

    async def saw(self, kind: str) -> Any:
        """Waits for the first update of a kind."""
        return (await until(lambda: self.of(kind)))[0]

    def state(self, call_id: str) -> dict[str, Any]:
        """What the client knows about a call: its start, and every change of it."""
        known: dict[str, Any] = {}
        for _, update in self.updates:
            if getattr(update, "tool_call_id", None) == call_id:
                known |= update.model_dump(exclude_none=True)
        return known


class Running:
    """A connection to a process, and what the client saw."""

    def __init__(
        self, connection: ClientSideConnection, process: Process, client: EditorClient
    ) -> None:
        self.agent = connection
        self.process = process
        self.client = client

    async def new(self, folder: Path, *servers: Any) -> str:
        made = await self.agent.new_session(cwd=str(folder), mcp_servers=[*servers])
        return made.session_id

    async def say(self, session_id: str, text: str) -> schema.PromptResponse:
        block = schema.TextContentBlock(type="text", text=text)
        return await self.agent.prompt(session_id=session_id, prompt=[block])


@asynccontextmanager
async def running(
    cwd: Path, *arguments: str, client: EditorClient | None = None, greet: bool = True
) -> AsyncIterator[Running]:
    """A process of `clawmode acp` and a client; the process ends when its stdin is closed."""
    client = client or EditorClient()
    program, *words = command_line("acp", *arguments)
    options: dict[str, Any] = {"stderr": subprocess.DEVNULL, "limit": MAX_LINE}
    async with spawn_agent_process(
        client,  # pyrefly: ignore[bad-argument-type]
        program,
        *words,
        env=dict(os.environ),
        cwd=cwd,
        transport_kwargs={**options, "shutdown_timeout": 15},
        use_unstable_protocol=True,
    ) as (connection, process):
        if greet:
            await connection.initialize(protocol_version=1)
        yield Running(connection, process, client)


class RawClient:
    """A client that writes any bytes, and reads lines, each of which must be one JSON value."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._to = process.stdin
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def send(self, message: Any) -> None:
        """Sends bytes as they are, and everything else as JSON."""
        raw = message if isinstance(message, bytes) else json.dumps(message).encode()
        await self._to.send(raw + b"\n")

    async def receive(self) -> Any:
        with anyio.fail_after(20):
            return json.loads(await self._lines.receive_until(b"\n", MAX_LINE))

    async def ask(self, method: str, **params: Any) -> Any:
        """Sends a request; returns its result or its error, and drops notifications before it."""
        request = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
        await self.send(request)
        while (reply := await self.receive()).get("id") != method:
            assert "method" in reply
        return reply["error"] if "error" in reply else reply["result"]

    async def end(self) -> tuple[int, str]:
        """Closes stdin; returns the exit status and everything on stderr."""
        await self._to.aclose()
        assert self.process.stderr is not None
        told = b""
        with anyio.fail_after(20):
            async for part in self.process.stderr:
                told += part
            return await self.process.wait(), told.decode()


@asynccontextmanager
async def raw_client(cwd: Path, *arguments: str) -> AsyncIterator[RawClient]:
    """A process of `clawmode acp`, and its pipes."""
    async with await anyio.open_process(command_line("acp", *arguments), cwd=cwd) as process:
        client = RawClient(process)
        yield client
        if process.returncode is None:
            await client.end()
