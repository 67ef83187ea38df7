"""The stdio transport: starts the process of a server, connects its pipes, and ends it.

It replaces the SDK's transport, which reads lines of any length (in quadratic time), logs a
traceback for each invalid line, and lets the server write to our stderr.
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
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter

from clawmode.exceptions import ClawmodeError
from clawmode.mcp.settings import SECRETIVE, ServerSettings
from clawmode.mcp.wire import (
    GRACE,
    MAX_MESSAGE,
    TOO_LARGE,
    UNREADABLE,
    IncomingStream,
    Link,
    OutgoingStream,
    encode,
    error_for,
    find_id,
    why_refused,
)
from clawmode.tasks import GONE, close_pipes, exited, signal_group

logger = logging.getLogger("clawmode.mcp.stderr")

LAST_WORDS = 0.5
"""Seconds to wait for the exit status after the output has ended."""
EDGE = 512
"""Bytes kept of both ends of a line that is too long, to find the id of the message."""
MAX_STDERR_LINE = 4_096
"""Bytes kept of a line of stderr, before secrets are redacted and the line is cut."""
NETWORK_VARIABLES = frozenset(
    "HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE "
    "CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS".split()
)
STDERR_BURST = 100
STDERR_PER_SECOND = 10.0


class CannotStart(ClawmodeError):
    """The process could not be started. The message says why."""


@contextlib.asynccontextmanager
async def open_stdio(
    settings: ServerSettings, link: Link
) -> AsyncIterator[tuple[IncomingStream, OutgoingStream]]:
    """Starts the server; at the end of the block, ends the server and its child processes.

    Raises:
        CannotStart: The command cannot be run.
    """
    # Shielded: a cancellation in the middle would leave a process behind.
    with anyio.CancelScope(shield=True):
        process = await _start(settings)
    pipes = _Pipes(settings.name, link, process)
    link.end = pipes.last_words
    incoming, reads = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    writes, outgoing = anyio.create_memory_object_stream[bytes](0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pipes.read_output, incoming)
        tasks.start_soon(pipes.write_input, outgoing, incoming)
        tasks.start_soon(pipes.read_errors)
        try:
            yield link.incoming(reads), link.outgoing(_LineSink(writes))
        finally:
            # Shielded: cancellation must not leave the process behind; all waits are bounded.
            with anyio.CancelScope(shield=True):
                await _stop(process, link.patience)
            tasks.cancel_scope.cancel()
            for stream in (incoming, reads, writes, outgoing):
                stream.close()


async def _start(settings: ServerSettings) -> Process:
    # Without the proxy and certificate variables, `uvx` and `npx` may fail. Settings of uv that
    # look like secrets are left out; `env` in the configuration can pass them.
    network = {
        name: value
        for name, value in os.environ.items()
        if name.upper() in NETWORK_VARIABLES
        or (name.startswith("UV_") and not SECRETIVE.search(name))
    }
    try:
        return await anyio.open_process(
            [settings.command, *settings.args],
            env=get_default_environment() | network | dict(settings.env),
            cwd=settings.cwd,
            start_new_session=True,  # a process group, which is ended with all its children
        )
    except FileNotFoundError as error:
        if settings.cwd is not None and error.filename == settings.cwd:
            raise CannotStart("its working directory does not exist") from None
        advice = ": put the arguments into `args`" if " " in settings.command else ""
        raise CannotStart(f"the command {settings.place!r} was not found{advice}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        reason = getattr(error, "strerror", None) or "it is not a valid command"
        raise CannotStart(f"the command {settings.place!r} cannot be run: {reason}") from None


class _Pipes:
    """The three pipes of a process. Its tasks never raise: a failure ends the stream instead."""

    def __init__(self, name: str, link: Link, process: Process) -> None:
        self._link = link
        self._process = process
        self._stderr = _StderrLog(name, link)

    async def read_output(
        self, messages: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        output = self._process.stdout
        assert output is not None
        lines = _LineSplitter()
        self._link.unfinished = lines.head
        with messages, contextlib.suppress(*GONE):
            async for chunk in output:
                for line in lines.feed(chunk):
                    message = self._parse(line)
                    if message is not None:
                        await messages.send(message)
                    elif self._link.fault:
                        return
            for line in lines.feed(b"\n"):  # a last line without a line break
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
            self._link.add_garbage(_shortened(line))
            request_id = find_id(line[:EDGE], line[-EDGE:])
            if request_id is None:
                return None
            return error_for(request_id, UNREADABLE, "it is not an MCP message")

    def _refuse(self, head: bytes, tail: bytes, code: int, why: str) -> SessionMessage | None:
        request_id = find_id(head, tail)
        if request_id is not None:
            return error_for(request_id, code, why)
        # It is not known which request this answers, and its caller would wait in vain: so the
        # connection ends.
        self._link.fault = f"sent a message that was rejected: {why}"
        return None

    async def write_input(
        self,
        lines: MemoryObjectReceiveStream[bytes],
        answers: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with lines, contextlib.suppress(*GONE):
            async for line in lines:
                await stdin.send(line)
        # The process may still run and write, but it does not read requests any more.
        answers.close()

    async def read_errors(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        with contextlib.suppress(*GONE):
            async for chunk in stderr:
                self._stderr.feed(chunk)
        self._stderr.feed(b"\n")

    async def last_words(self) -> str:
        """Returns how the process ended, and its last lines of stderr."""
        await exited(self._process, LAST_WORDS)
        code = self._process.returncode
        if code is None:
            return "closed its output"
        note = self._link.stderr_note
        if code >= 0:
            return f"exited with status {code}{note}"
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}{note}"
        return f"was ended by signal {-code}{note}"


class _LineSink:
    """Encodes messages in the task of the sender, who gets the error if that fails."""

    def __init__(self, lines: MemoryObjectSendStream[bytes]) -> None:
        self._lines = lines

    async def send(self, item: SessionMessage, /) -> None:
        if encoded := encode(item.message):
            await self._lines.send(encoded + b"\n")

    async def aclose(self) -> None:
        self._lines.close()


# ---- Lines ----


def _read_message(line: bytes) -> JSONRPCMessage:
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        if rb"\ud" not in line.lower():
            raise
    # A lone surrogate, where a server cut a text: Python parses it, and encodes it as `?`.
    try:
        whole = json.dumps(json.loads(line), ensure_ascii=False).encode("utf-8", "replace")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return jsonrpc_message_adapter.validate_json(whole, by_name=False)


class _LongLine:
    """The start and the end of a line that was too long to be kept."""

    def __init__(self, head: bytes, tail: bytes) -> None:
        self.head = head
        self.tail = tail


class _LineSplitter:
    """Splits a stream into lines, and discards the middle of a line that is too long."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._head = b""
        self._tail = b""

    def head(self) -> bytes:
        """Returns the start of the incomplete line."""
        return self._head or b"".join(self._parts)[:EDGE]

    def feed(self, chunk: bytes) -> "list[bytes | _LongLine]":
        """Adds a chunk. Returns the lines that it completes."""
        *ends, rest = chunk.split(b"\n")
        lines: list[bytes | _LongLine] = []
        for end in ends:
            self._append(end)
            too_long = self._size > MAX_MESSAGE
            whole = b"".join(self._parts)
            lines.append(_LongLine(self._head, self._tail) if too_long else whole)
            self._parts.clear()
            self._size, self._head, self._tail = 0, b"", b""
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


def _shortened(line: bytes) -> bytes:
    # The mark lets redaction find the half of a secret.
    return line if len(line) <= MAX_STDERR_LINE else line[:MAX_STDERR_LINE] + "…".encode()


class _StderrLog:
    """Logs the stderr of a server line by line, with a rate limit."""

    def __init__(self, name: str, link: Link) -> None:
        self._name = name
        self._link = link
        self._buffer = b""
        self._budget = float(STDERR_BURST)
        self._since = time.monotonic()
        self._dropped = 0

    def feed(self, chunk: bytes) -> None:
        *lines, rest = (self._buffer + chunk).split(b"\n")
        self._buffer = rest[: MAX_STDERR_LINE + 1]  # one more, to know that the line is longer
        for line in filter(bytes.strip, lines):
            self._link.last_lines.append(_shortened(line))
            now = time.monotonic()
            self._budget = min(STDERR_BURST, self._budget + (now - self._since) * STDERR_PER_SECOND)
            self._since = now
            # After the limit was hit, log nothing until half of the budget is restored: otherwise
            # every other line would be logged.
            if self._budget < (STDERR_BURST / 2 if self._dropped else 1):
                self._dropped += 1
                continue
            self._budget -= 1
            if self._dropped:
                logger.warning("%s: %d lines of stderr were dropped", self._name, self._dropped)
                self._dropped = 0
            logger.info("%s: %s", self._name, self._link.clean_bytes(_shortened(line)))


# ---- The end ----


async def _stop(process: Process, patience: float) -> None:
    """Closes stdin, waits, and then ends the whole process group with SIGTERM and SIGKILL."""
    assert process.stdin is not None
    with contextlib.suppress(*GONE):
        await process.stdin.aclose()
    if not await exited(process, patience):
        signal_group(process, signal.SIGTERM)
        await exited(process, patience)
    signal_group(process, signal.SIGKILL)  # also children that the process has left behind
    await exited(process, GRACE)
    close_pipes(process)
