"""What is outside of a fleet: the server that takes effect, and the network to PostgreSQL."""

import asyncio
import json
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio

CHUNK = 1 << 16
RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: closing resets the connection."""


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    end: Callable[[], None] = lambda: None,
) -> AsyncIterator[int]:
    """Serves connections on a port, and ends their tasks at the end, after calling `end`."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except asyncio.CancelledError:
            pass  # at the end; the server's own callback would complain about it
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=1024)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        end()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        for task in list(tasks):
            task.cancel()


async def pause(seconds: float) -> None:
    """Waits for a time: the length of a fault, or of a call."""
    with anyio.move_on_after(seconds):
        await anyio.sleep_forever()


# ---- Effects ----


@dataclass(frozen=True)
class Effect:
    """A line of the log: something has happened, and cannot be taken back."""

    kind: str
    key: str
    node: str
    at: float


class EffectServer:
    """An HTTP server that writes each effect to a file that only grows, and then answers.

    It knows nothing of programs: a call that arrives twice takes effect twice. Half of the time
    that a call takes lies before the effect, and the other half after it. Reads and puts that are
    repeated take no time.

    Attributes:
        busy: The number of calls that have no answer yet.
        answered: When each key was answered last, by `time.time`.
    """

    def __init__(self, log: Path) -> None:
        self._log = os.open(log, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600)
        self._path = log
        self.port = 0
        self.busy = 0
        self.answered: dict[str, float] = {}
        self._begun: set[str] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["EffectServer"]:
        """Serves on a port of its own."""
        async with listening(self._serve) as self.port:
            yield self
        os.close(self._log)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.busy += 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
                asked = json.loads(await reader.readexactly(size))
                again = asked["key"] in self._begun and asked["kind"] != "act"
                half = 0.0 if again else asked["ms"] / 2000
                del asked["ms"]
                self._begun.add(asked["key"])
                await pause(half)
                line = json.dumps(asked | {"at": time.time()})
                os.write(self._log, line.encode() + b"\n")
                await pause(half)
                self.answered[asked["key"]] = time.time()
                writer.write(b"HTTP/1.1 200 OK\r\n\r\ndone")
                await writer.drain()
        finally:
            self.busy -= 1
            writer.close()

    def effects(self) -> list[Effect]:
        """Reads the log."""
        return [Effect(**json.loads(line)) for line in self._path.read_bytes().splitlines()]


# ---- The network ----

Weather = Literal["calm", "cut", "reset", "hole", "half", "slow"]
"""What a proxy does. `cut`: connections are closed, and new ones refused. `reset`: the same, with
RST. `hole`: nothing arrives, and nobody is told; what was sent arrives when the weather is calm
again. `half`: requests arrive and answers do not; calm weather resets the connection. `slow`:
everything takes a moment longer."""

SLOW = 0.04


class Proxy:
    """The network between one node and PostgreSQL."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.port = 0
        self._weather: Weather = "calm"
        self._changed = asyncio.Event()
        self._open: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Proxy"]:
        """Serves on a port of its own."""
        async with listening(self._serve, lambda: self.change("reset")) as self.port:
            yield self

    def change(self, weather: Weather) -> None:
        """Changes the weather, for open connections too."""
        before, self._weather = self._weather, weather
        changed, self._changed = self._changed, asyncio.Event()
        if weather in ("cut", "reset") or before == "half":
            self._close(abort=weather != "cut")
        changed.set()

    def _close(self, *, abort: bool) -> None:
        for pair in list(self._open):
            for writer in pair:
                close(writer, abort=abort)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._weather in ("cut", "reset"):
            close(writer, abort=self._weather == "reset")
            return
        try:
            server, up = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # PostgreSQL is away
            close(writer, abort=True)
            return
        pair = (writer, up)
        self._open.add(pair)
        try:
            await asyncio.gather(
                self._pump(reader, up, ("hole",)), self._pump(server, writer, ("hole", "half"))
            )
        finally:
            self._open.discard(pair)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        held_by: tuple[Weather, ...],
    ) -> None:
        with suppress(ConnectionError, OSError):
            while data := await reader.read(CHUNK):
                while self._weather in held_by:
                    await self._changed.wait()
                if self._weather == "slow":
                    await pause(SLOW)
                if writer.is_closing():
                    return
                writer.write(data)
                await writer.drain()
        while self._weather in held_by:  # the end of the connection is lost too
            await self._changed.wait()
        close(writer, abort=False)


def close(writer: asyncio.StreamWriter, *, abort: bool) -> None:
    """Closes a connection, or resets it."""
    if abort and not writer.is_closing():
        link: Any = writer.get_extra_info("socket")
        with suppress(OSError):
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()
    else:
        writer.close()
