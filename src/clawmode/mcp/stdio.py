"""MCP servers that are started here: a process, its pipes, its last words, its end.

Instead of the SDK's own transport, which reads a line of any length (and in quadratic time), logs
a traceback for each line that is no message, and lets the server write to our stderr.
"""

import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import AsyncIterator

import anyio
from anyio.abc import Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage, JSONRPCRequest, jsonrpc_message_adapter

from clawmode.exceptions import ClawmodeError
from clawmode.mcp.settings import SECRETIVE, ServerSettings
from clawmode.mcp.wire import (
    GRACE,
    MAX_MESSAGE,
    TOO_LARGE,
    UNREADABLE,
    Link,
    Reads,
    Writes,
    error_for,
    find_id,
    why_refused,
)

logger = logging.getLogger("clawmode.mcp.stderr")

LAST_WORDS = 0.5
"""Seconds to wait for an exit status once the output has ended."""
POLL = 0.01
EDGE = 512
"""Bytes kept of both ends of a line that is too long, to find its id in."""
MAX_STDERR_LINE = 4_096
"""Bytes kept of a line; fewer characters are shown, once secrets are struck out."""
NETWORK_VARIABLES = frozenset(
    "HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE "
    "CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS".split()
)
STDERR_BURST = 100
STDERR_PER_SECOND = 10.0

GONE = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)
"""What a pipe raises that has come to its end, on either side."""


class CannotStart(ClawmodeError):
    """There is no process, for the reason in the message."""


@contextlib.asynccontextmanager
async def open_stdio(settings: ServerSettings, link: Link) -> AsyncIterator[tuple[Reads, Writes]]:
    """Starts the server, and ends it and whatever it has started.

    Raises:
        CannotStart: It cannot be started.
    """
    # Shielded: who gives up in the middle would leave a process that nobody knows.
    with anyio.CancelScope(shield=True):
        process = await _start(settings)
    pipes = _Pipes(settings.name, link, process)
    link.end = pipes.last_words
    incoming, reads = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    writes, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pipes.read_output, incoming)
        tasks.start_soon(pipes.write_input, outgoing, incoming)
        tasks.start_soon(pipes.read_errors)
        try:
            yield link.reads(reads), link.writes(writes)
        finally:
            # Else a caller that is cancelled would leave the process behind; every wait is bounded.
            with anyio.CancelScope(shield=True):
                await _stop(process, link.patience)
            tasks.cancel_scope.cancel()
            for stream in (incoming, reads, writes, outgoing):
                stream.close()


async def _start(settings: ServerSettings) -> Process:
    try:
        return await anyio.open_process(
            [settings.command, *settings.args],
            env=get_default_environment() | _network_environment() | dict(settings.env),
            cwd=settings.cwd,
            start_new_session=True,  # one group: it is ended with everything that it starts
        )
    except FileNotFoundError as error:
        if settings.cwd is not None and error.filename == settings.cwd:
            raise CannotStart("its working directory does not exist") from None
        advice = ": put its arguments into `args`" if " " in settings.command else ""
        raise CannotStart(f"the command {settings.place!r} was not found{advice}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL
        reason = getattr(error, "strerror", None) or "the command cannot be one"
        raise CannotStart(f"the command {settings.place!r} cannot be run: {reason}") from None


def _network_environment() -> dict[str, str]:
    """How this machine reaches the network: without it, `uvx` and `npx` fail behind a proxy.

    Settings of uv that look like secrets are left out; `env` can hand them over.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name.upper() in NETWORK_VARIABLES
        or (name.startswith("UV_") and not SECRETIVE.search(name))
    }


class _Pipes:
    """The three pipes. None of its tasks raises: the session sees the wire end instead."""

    def __init__(self, name: str, link: Link, process: Process) -> None:
        self._link = link
        self._process = process
        self._stderr = _StderrLog(name, link)

    async def read_output(
        self, messages: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        output = self._process.stdout
        assert output is not None
        lines = _Lines()
        self._link.unfinished = lines.head
        with messages, contextlib.suppress(*GONE):
            async for chunk in output:
                for line in lines.feed(chunk):
                    message = self._parse(line)
                    if message is not None:
                        await messages.send(message)
                    elif self._link.fault:
                        return
            for line in lines.feed(b"\n"):  # what a server that ends has not ended
                if (message := self._parse(line)) is not None:
                    await messages.send(message)

    def _parse(self, line: "bytes | _LongLine") -> SessionMessage | None:
        if isinstance(line, _LongLine):
            return self._refuse(line.head, line.tail, TOO_LARGE, why_refused(MAX_MESSAGE + 1, 0))
        if not line.strip():
            return None
        if why := why_refused(len(line), line.count(b"{") + line.count(b"[")):
            return self._refuse(line[:EDGE], line[-EDGE:], TOO_LARGE, why)
        try:
            return SessionMessage(_read_message(line))
        except ValueError:
            self._link.litter(line[:MAX_STDERR_LINE])
            request_id = find_id(line[:EDGE], line[-EDGE:])
            if request_id is None:
                return None
            return error_for(request_id, UNREADABLE, "it is not an MCP message")

    def _refuse(self, head: bytes, tail: bytes, code: int, why: str) -> SessionMessage | None:
        request_id = find_id(head, tail)
        if request_id is not None:
            return error_for(request_id, code, why)
        # Whose answer it was cannot be told, and whoever waits for it would wait in vain.
        self._link.fault = f"sent a message that is not read: {why}"
        return None

    async def write_input(
        self,
        messages: MemoryObjectReceiveStream[SessionMessage],
        answers: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with messages, contextlib.suppress(*GONE):
            async for message in messages:
                line = _encode(message)
                if isinstance(line, SessionMessage):
                    await answers.send(line)
                elif line:
                    await stdin.send(line)
        # It may still run, and even talk: but it cannot be asked any more.
        answers.close()

    async def read_errors(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        with contextlib.suppress(*GONE):
            async for chunk in stderr:
                self._stderr.feed(chunk)
        self._stderr.feed(b"\n")

    async def last_words(self) -> str:
        """How the process ended, and the last lines that it wrote to stderr."""
        await _exited(self._process, LAST_WORDS)
        code = self._process.returncode
        if code is None:
            return "closed its output"
        said = self._link.said
        if code >= 0:
            return f"exited with status {code}{said}"
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}{said}"
        return f"was ended by signal {-code}{said}"


def _encode(message: SessionMessage) -> bytes | SessionMessage:
    """A line for the server, or the error that answers the request in its place."""
    try:
        text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
        return text.encode() + b"\n"
    except ValueError:  # a lone surrogate
        if isinstance(message.message, JSONRPCRequest):
            return error_for(message.message.id, UNREADABLE, "the input cannot be written as JSON")
        return b""


# ---- Lines ----


def _read_message(line: bytes) -> JSONRPCMessage:
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        if rb"\ud" not in line.lower():
            raise
    # Half of a character, where a server cut a text: Python reads it, and writes a `?` for it.
    try:
        whole = json.dumps(json.loads(line), ensure_ascii=False).encode("utf-8", "replace")
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return jsonrpc_message_adapter.validate_json(whole, by_name=False)


class _LongLine:
    """A line that was not kept."""

    def __init__(self, head: bytes, tail: bytes) -> None:
        self.head = head
        self.tail = tail


class _Lines:
    """Cuts a stream into lines, and keeps none that is too long."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._head = b""
        self._tail = b""

    def head(self) -> bytes:
        """How a line begins that is not complete."""
        return self._head or b"".join(self._parts)[:EDGE]

    def feed(self, chunk: bytes) -> "list[bytes | _LongLine]":
        """The lines that are complete with this."""
        *ends, rest = chunk.split(b"\n")
        lines: list[bytes | _LongLine] = []
        for end in ends:
            self._append(end)
            lines.append(self._take())
        self._append(rest)
        return lines

    def _append(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= MAX_MESSAGE:
            self._parts.append(part)
            return
        if self._parts:
            whole = b"".join(self._parts)
            self._head, self._tail = whole[:EDGE], whole[-EDGE:]
            self._parts.clear()
        self._head = self._head or part[:EDGE]
        self._tail = (self._tail + part)[-EDGE:]

    def _take(self) -> "bytes | _LongLine":
        too_long = self._size > MAX_MESSAGE
        line = _LongLine(self._head, self._tail) if too_long else b"".join(self._parts)
        self._parts.clear()
        self._size, self._head, self._tail = 0, b"", b""
        return line


class _StderrLog:
    """What a server writes to stderr: into the log, line by line, as much as is bearable."""

    def __init__(self, name: str, link: Link) -> None:
        self._name = name
        self._link = link
        self._buffer = b""
        self._budget = float(STDERR_BURST)
        self._since = time.monotonic()
        self._dropped = 0

    def feed(self, chunk: bytes) -> None:
        """Takes what was written."""
        *lines, rest = (self._buffer + chunk).split(b"\n")
        self._buffer = rest[:MAX_STDERR_LINE]
        for line in lines:
            if line.strip():
                self._link.last_lines.append(line[:MAX_STDERR_LINE])
                self._take(line)

    def _take(self, line: bytes) -> None:
        now = time.monotonic()
        self._budget = min(STDERR_BURST, self._budget + (now - self._since) * STDERR_PER_SECOND)
        self._since = now
        # Once it was too much, silence until there is room for more than a line or two.
        if self._budget < (STDERR_BURST / 2 if self._dropped else 1):
            self._dropped += 1
            return
        self._budget -= 1
        if self._dropped:
            logger.warning("%s: %d lines were left out", self._name, self._dropped)
            self._dropped = 0
        logger.info("%s: %s", self._name, self._link.clean_bytes(line[:MAX_STDERR_LINE]))


# ---- The end ----


async def _stop(process: Process, patience: float) -> None:
    """Closes its input, waits, and ends the whole group if that was not enough."""
    assert process.stdin is not None
    with contextlib.suppress(*GONE):
        await process.stdin.aclose()
    if not await _exited(process, patience):
        _signal(process, signal.SIGTERM)
        await _exited(process, patience)
    _signal(process, signal.SIGKILL)  # and whom it has started and left behind
    await _exited(process, GRACE)
    # A survivor that left the group may hold a pipe; asyncio would wait for it, and warn.
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        with contextlib.suppress(PermissionError):
            transport.close()


def _signal(process: Process, number: signal.Signals) -> None:
    # The leader's pid names the group as long as there is anybody in it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _exited(process: Process, seconds: float) -> bool:
    """Whether it ends in time. Asked for again and again: `wait` also waits for the pipes."""
    deadline = anyio.current_time() + seconds
    while process.returncode is None:
        if anyio.current_time() >= deadline:
            return False
        await anyio.sleep(POLL)
    return True
