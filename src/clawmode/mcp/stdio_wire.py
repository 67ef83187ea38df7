"""Stdin and stdout as the wire of our MCP server, and the answer to `initialize` at once.

Clients give up on a server that starts slowly, and importing the MCP SDK takes a second. So a
thread reads the first message and answers `initialize` while the rest of the program is loaded. The
SDK gets the same message later, and its answer is dropped. Nothing here imports the SDK at once.
"""

import asyncio
import contextlib
import json
import os
import queue
import threading
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Self

import anyio

from clawmode import __version__

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

    Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
    Outgoing = MemoryObjectSendStream[SessionMessage]

NAME = TITLE = "clawmode"
INSTRUCTIONS = (
    "Instead of one tool per action, write a short JavaScript or TypeScript program for `exec`: it "
    "can call many tools, also those of MCP servers, and return only what is needed. If a result "
    "has the status `waiting`, call `wait` with its `runId`."
)
VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The revisions of the protocol that begin with `initialize`, the newest last."""

CAPABILITIES: dict[str, Any] = {"logging": {}, "tools": {"listChanged": True}}
"""Without extensions: clients of these revisions have none."""
PARSE_ERROR, INVALID_REQUEST = -32700, -32600
SKIPPED_BYTES = 1 << 16


def greeting(line: bytes) -> dict[str, Any] | None:
    """Returns the answer to an `initialize` request; None for every other or invalid message."""
    try:
        message = json.loads(line)
        params, info = message["params"], message["params"]["clientInfo"]
        valid = (
            (message["jsonrpc"], message["method"]) == ("2.0", "initialize")
            and type(message["id"]) in (int, str)
            and isinstance(params["protocolVersion"], str)
            and not params["capabilities"].keys() - {"roots", "sampling", "elicitation"}
            and isinstance(info["name"], str)
            and isinstance(info["version"], str)
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    if not valid:
        return None
    wanted = params["protocolVersion"]
    result = {
        "capabilities": CAPABILITIES,
        "instructions": INSTRUCTIONS,
        "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[-1],
        "serverInfo": {"name": NAME, "title": TITLE, "version": __version__},
    }
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


class LineWire:
    """Lines on stdin and stdout of this process, each of them one message.

    Both threads are daemons: reading and writing a pipe cannot be cancelled, and the process must
    end although its client neither writes nor reads.

    Args:
        source: The file descriptor to read messages from.
        target: The file descriptor to write messages to.

    Attributes:
        max_line: The most bytes of a line, the rest of which is dropped; -1 for no limit.
    """

    max_line = -1

    def __init__(self, source: int, target: int) -> None:
        self._source = source
        self._target = target
        self._attached = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._to_write: queue.SimpleQueue[tuple[bytes, anyio.Event]] = queue.SimpleQueue()
        self._writing = anyio.Lock()
        self._broken = False
        threading.Thread(target=self._read, name="clawmode-stdin", daemon=True).start()

    @classmethod
    def claim(cls) -> Self:
        """Takes stdin and stdout from the process.

        Whatever tools and their child processes print goes to stderr from now on, and they read an
        empty stdin.
        """
        source, target = os.dup(0), os.dup(1)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        os.dup2(2, 1)
        return cls(source, target)

    def attach(self) -> None:
        """Hands over lines to the running event loop from now on."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._write_all, name="clawmode-stdout", daemon=True).start()
        self._attached.set()

    async def take(self, line: bytes | None) -> None:
        """Called in the event loop with each line that is not empty, and with None at the end."""
        raise NotImplementedError

    # ---- Reading, in a thread ----

    def greet(self, line: bytes) -> None:
        """Called in the thread with the first line, before there is an event loop."""

    def _read(self) -> None:
        with os.fdopen(self._source, "rb", closefd=False) as file:
            is_first = True
            while line := file.readline(self.max_line):
                end = line
                while len(line) == self.max_line and not end.endswith(b"\n"):
                    if not (end := file.readline(SKIPPED_BYTES)):
                        break
                if is_first:
                    self.greet(line)
                is_first = False
                if line.strip() and not self._hand_over(line):
                    return
            self._hand_over(None)

    def _hand_over(self, line: bytes | None) -> bool:
        """Gives a line to the event loop, and waits until it is taken. None is the end."""
        self._attached.wait()
        assert self._loop is not None
        try:
            asyncio.run_coroutine_threadsafe(self.take(line), self._loop).result()
        except (RuntimeError, asyncio.CancelledError):  # the event loop has ended
            return False
        return True

    # ---- Writing, in another thread ----

    def _write_all(self) -> None:
        assert self._loop is not None
        while True:
            data, done = self._to_write.get()
            try:
                self._write_now(data)
            except OSError:
                self._broken = True
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(done.set)

    def _write_now(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._target, left) :]

    async def write(self, data: bytes) -> bool:
        """Writes a line; False if nobody reads any more."""
        async with self._writing:
            done = anyio.Event()
            self._to_write.put((data, done))
            await done.wait()
        return not self._broken


class StdioWire(LineWire):
    """The messages of an MCP client on stdin and stdout of this process."""

    def __init__(self, source: int, target: int) -> None:
        self._greeted: Any = None
        self._incoming: MemoryObjectSendStream[SessionMessage | Exception] | None = None
        super().__init__(source, target)

    def greet(self, line: bytes) -> None:
        if (answer := greeting(line)) is not None:
            self._greeted = answer["id"]
            with contextlib.suppress(OSError):  # noticed again when the SDK answers
                self._write_now(json.dumps(answer, separators=(",", ":")).encode() + b"\n")

    async def take(self, line: bytes | None) -> None:
        from mcp.shared.message import SessionMessage
        from mcp_types import JSONRPCNotification, jsonrpc_message_adapter

        assert self._incoming is not None
        if line is None:
            self._incoming.close()
            return
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            # To the SDK, a request whose id is neither a string nor an integer is a notification.
            if isinstance(message, JSONRPCNotification) and "id" in json.loads(line):
                raise ValueError("the id is not valid")
        except ValueError:
            await self._refuse(line)
            return
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            await self._incoming.send(SessionMessage(message))

    async def _refuse(self, line: bytes) -> None:
        """Answers a line that is no message: without an answer, its sender would wait for ever."""
        try:
            decoded = json.loads(line)
            code, text = INVALID_REQUEST, "The line is not one JSON-RPC message."
        except (ValueError, RecursionError):
            decoded, code, text = None, PARSE_ERROR, "The line is not valid JSON."
        given = decoded.get("id") if isinstance(decoded, dict) else None
        id_ = given if isinstance(given, int | str) else None
        error = {"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": text}}
        await self.write(json.dumps(error).encode() + b"\n")

    async def write(self, data: bytes) -> bool:
        is_read = await super().write(data)
        if not is_read and self._incoming is not None:
            self._incoming.close()  # nobody reads: to the server this is the end of the client
        return is_read

    # ---- The streams of the SDK ----

    @contextlib.asynccontextmanager
    async def connected(self) -> "AsyncIterator[tuple[Incoming, Outgoing]]":
        """Yields the streams of incoming and outgoing messages."""
        from mcp.shared.message import SessionMessage

        self._incoming, incoming = anyio.create_memory_object_stream[SessionMessage | Exception]()
        outgoing, to_write = anyio.create_memory_object_stream[SessionMessage]()

        async def pump() -> None:
            async with to_write:
                async for sent in to_write:
                    message = sent.message
                    greeted = self._greeted
                    if greeted is not None and getattr(message, "id", None) == greeted:
                        if not hasattr(message, "method"):
                            self._greeted = None
                            continue
                    text = message.model_dump_json(by_alias=True, exclude_unset=True)
                    await self.write(text.encode() + b"\n")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pump)
            self.attach()
            yield incoming, outgoing
