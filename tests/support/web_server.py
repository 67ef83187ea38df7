"""An HTTP server for one test, written by hand, that answers what it is told to answer."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import AsyncGeneratorType
from typing import Any

import anyio
from anyio.abc import ByteStream


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter

    @property
    def message(self) -> Any:
        return json.loads(self.body or b"null")

    async def send(
        self, body: bytes, *, status: str = "200 OK", kind: str = "application/json", **more: str
    ) -> None:
        headers = {"content-type": kind, "content-length": str(len(body))} | more
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self.writer.write(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body)
        await self.writer.drain()

    async def answer(self, result: Any, **more: str) -> None:
        body = {"jsonrpc": "2.0", "id": self.message["id"], "result": result}
        await self.send(json.dumps(body).encode(), **more)


Handler = Callable[[Request], Awaitable[None]]


async def drip(head: bytes, part: bytes, stream: ByteStream) -> None:
    """Answer on a stream without an end, a part now and then."""
    await stream.send(head)
    while True:
        await anyio.sleep(0.02)
        await stream.send(part)


@dataclass
class WebServer:
    """Speaks the older protocol.

    Attributes:
        call: Answers `tools/call`.
        first: Asked before anything else; True if it has answered.
    """

    call: Handler
    port: int = 0
    session: str = ""
    seen: list[Request] = field(default_factory=list)
    first: Callable[[Request], Awaitable[bool]] | None = None
    _server: asyncio.Server | None = None
    _open: dict[asyncio.StreamWriter, asyncio.Task[Any] | None] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Goes away, and cuts every connection."""
        assert self._server is not None
        self._server.close()
        for writer, task in list(self._open.items()):
            writer.transport.abort()
            if task is not None:
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = asyncio.current_task()
        try:
            while (request := await _read(reader, writer)) is not None:
                self.seen.append(request)
                await self._respond(request)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.pop(writer)
            writer.close()

    async def _respond(self, request: Request) -> None:
        if self.first is not None and await self.first(request):
            return
        if request.method != "POST":
            await request.send(b"", status="405 Method Not Allowed")
            return
        given = request.headers.get("mcp-session-id", "")
        message = request.message
        if self.session and message.get("method") not in ("initialize", "server/discover"):
            if given != self.session:
                await request.send(b"unknown session", status="404 Not Found", kind="text/plain")
                return
        await self._handle(request, message)

    async def _handle(self, request: Request, message: Any) -> None:
        match message.get("method"):
            case "initialize":
                more = {"mcp_session_id": self.session} if self.session else {}
                info = {"name": "web", "version": "1"}
                result = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": dict[str, Any]()},
                    "serverInfo": info,
                }
                await request.answer(result, **more)
            case "tools/list":
                tools = [{"name": "go", "inputSchema": {"type": "object"}}]
                await request.answer({"tools": tools})
            case "ping":
                await request.answer({})
            case "tools/call":
                await self.call(request)
            case _ if "id" in message:
                error = {"code": -32601, "message": "Method not found"}
                body = {"jsonrpc": "2.0", "id": message["id"], "error": error}
                await request.send(json.dumps(body).encode(), status="404 Not Found")
            case _:
                await request.send(b"", status="202 Accepted")


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body, writer)


@asynccontextmanager
async def web_server(call: Handler, **more: Any) -> AsyncIterator[WebServer]:
    server = WebServer(call, **more)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextmanager
def no_body_left_open() -> Iterator[None]:
    """Check that the responses which are opened in the block are closed in it.

    The collector must not close them: it may run in another thread, while the loop closes them.
    """
    before = set(map(id, _open_bodies()))
    yield
    left = [body for body in _open_bodies() if id(body) not in before]
    assert left == [], f"{len(left)} bodies are left to the garbage collector"


def _open_bodies() -> list[Any]:
    # Not by `isinstance`, which asks a weak proxy for the class of an object that may be gone.
    found: list[Any] = [it for it in gc.get_objects() if type(it) is AsyncGeneratorType]
    # The generator of httpx2 that reads a connection. Those above it close without waiting.
    name = "AsyncResponseStream.__aiter__"
    return [it for it in found if it.__qualname__ == name and it.ag_frame is not None]
