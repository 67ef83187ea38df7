"""`ScriptServer`: an HTTP server that plays a script over the APIs of OpenAI and Anthropic.

    async with ScriptServer([Turn("Hello.")]) as server:
        AsyncAnthropic(base_url=server.url, api_key="none")
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
        make_model(server.settings("openai-responses"), "scripted")

Like the real servers, it rejects a conversation with a tool call that has no result. A script can
also make it fail in many ways: see `Turn`. It records every request.
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from clawmode.models.base import ModelError
from clawmode.models.providers import Api, KeySource, ModelSettings, ProviderSettings
from clawmode.tasks import TaskOwner
from clawmode.testing.script_wires import WIRES, Wire, status_of
from clawmode.testing.scripted import Pause, PlayedTurn, Player, Raw, Script, ScriptRequest
from clawmode.types import dataclass

HOST = "127.0.0.1"
MAX_HEAD = 64 << 10
INVALID_EVENT = b"data: {this is no JSON\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """A request that the server received.

    Attributes:
        raw: The bytes of the body.
        asked: The request as the script sees it.
        hung_up: Set when the client closed the connection before the answer was complete.
    """

    api: Api
    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: dict[str, Any]
    asked: ScriptRequest
    hung_up: anyio.Event = field(default_factory=anyio.Event)


class ScriptServer(TaskOwner):
    """A server that listens inside of `async with`, on a free port of this machine.

    Attributes:
        requests: The requests so far, oldest first.
        key: If set, requests without this key are rejected; may be changed at any time.
    """

    def __init__(self, script: Script, *, key: str | None = None) -> None:
        self.requests: list[ServedRequest] = []
        self.key = key
        self._player = Player(script)
        self._port = 0

    @property
    def url(self) -> str:
        """The address of the server, without `/v1`."""
        return f"http://{HOST}:{self._port}"

    def settings(
        self,
        api: Api,
        *,
        id: str = "scripted",
        key: KeySource | None = None,
        timeout_seconds: float | None = None,
        model: ModelSettings | None = None,
    ) -> ProviderSettings:
        """Returns the settings of a provider that leads to this server, for any model name.

        Args:
            api: The API to use.
            id: The name of the provider.
            key: The source of the key that the client sends.
            timeout_seconds: The client's time limit.
            model: Settings of the model `scripted`.
        """
        return ProviderSettings(
            id=id,
            api=api,
            base_url=self.url if api == "anthropic-messages" else f"{self.url}/v1",
            key=key,
            timeout_seconds=timeout_seconds,
            models={"scripted": model} if model is not None else {},
            # Clients give a local provider more time, which tests of timeouts must not get.
            local=False,
        )

    # ---- Listening ----

    async def _opened(self, tasks: anyio.abc.TaskGroup) -> None:
        listener = await anyio.create_tcp_listener(local_host=HOST, local_port=0)
        port = anyio.abc.SocketAttribute.local_port
        self._port = listener.extra(port)  # noqa: S610 - no query
        tasks.start_soon(self._accept, listener)

    async def _accept(self, listener: anyio.abc.Listener[anyio.abc.SocketStream]) -> None:
        async with listener:
            await listener.serve(self._serve)

    async def _serve(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with suppress(anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead):
                buffered = BufferedByteReceiveStream(stream)
                head = (await buffered.receive_until(b"\r\n\r\n", MAX_HEAD)).decode("latin-1")
                first, *lines = head.split("\r\n")
                pairs = [line.partition(":") for line in lines]
                headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
                body = await buffered.receive_exactly(int(headers.get("content-length", "0")))
                path = first.split(" ")[1].partition("?")[0]
                await self._answer(stream, path, headers, body)

    # ---- Answering ----

    async def _answer(
        self, stream: anyio.abc.SocketStream, path: str, headers: Mapping[str, str], raw: bytes
    ) -> None:
        wire = next((wire for wire in WIRES if wire.path == path), None)
        if wire is None:
            return await _send_error(stream, WIRES[0], ModelError("not_found", f"no {path}"))
        bearer = headers.get("authorization", "").partition(" ")[2]
        if self.key is not None and self.key not in (headers.get("x-api-key"), bearer):
            return await _send_error(stream, wire, ModelError("auth", "the key is wrong"))
        try:
            body = json.loads(raw)
            asked = wire.read(body, self._player.count())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problem = f"invalid request: {type(error).__name__}: {error}"
            return await _send_error(stream, wire, ModelError("invalid_request", problem))
        request = ServedRequest(
            api=wire.api, path=path, headers=headers, raw=raw, body=body, asked=asked
        )
        self.requests.append(request)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch_for_hang_up, stream, request, tasks.cancel_scope)
            with suppress(anyio.BrokenResourceError):
                await self._play(stream, wire, request)
            tasks.cancel_scope.cancel()

    async def _play(
        self, stream: anyio.abc.SocketStream, wire: Wire, request: ServedRequest
    ) -> None:
        open_calls = [call for call, result in request.asked.results.items() if result is None]
        try:
            if open_calls:
                unanswered = f"tool calls without a result: {', '.join(open_calls)}"
                raise ModelError("invalid_request", unanswered)
            played = await self._player.play(request.asked, len(request.raw))
        except ModelError as error:
            return await _send_error(stream, wire, error)
        except Exception as error:
            # A bug in the script. Not status 500: clients would retry, and so skip a turn.
            problem = ModelError("invalid_request", f"{type(error).__name__}: {error}")
            return await _send_error(stream, wire, problem)
        error = played.turn.error
        if played.turn.raw is not None:
            await _send(stream, played.turn.raw)
        elif error is not None and not played.parts:
            await _fail(stream, wire, error)
        elif request.body.get("stream"):
            await _send_events(stream, wire, request, played)
        else:
            for part in played.parts:
                if isinstance(part, Pause):
                    await part.wait()
            if error is not None:
                return await _fail(stream, wire, error)
            await _send_json(stream, 200, wire.whole(played, request.body))


async def _watch_for_hang_up(
    stream: anyio.abc.SocketStream, request: ServedRequest, scope: anyio.CancelScope
) -> None:
    """Cancels the answer when the client closes the connection."""
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            await stream.receive()
    request.hung_up.set()
    scope.cancel()


async def _fail(stream: anyio.abc.SocketStream, wire: Wire, error: ModelError) -> None:
    """Makes the client see `error` instead of an answer."""
    if error.kind == "timeout":
        await anyio.sleep(math.inf)
    elif error.kind == "garbage":
        await _send(stream, Raw(body=INVALID_EVENT, headers={"content-type": "text/event-stream"}))
    elif error.kind != "connection":
        await _send_error(stream, wire, error)


async def _send_error(stream: anyio.abc.SocketStream, wire: Wire, error: ModelError) -> None:
    wait = {} if error.retry_after is None else {"retry-after": f"{error.retry_after:g}"}
    await _send_json(stream, status_of(error, wire.api), wire.error(error), wait)


async def _send_json(
    stream: anyio.abc.SocketStream,
    status: int,
    value: object,
    headers: Mapping[str, str] | None = None,
) -> None:
    kind = {"content-type": "application/json", **(headers or {})}
    await _send(stream, Raw(body=json.dumps(value).encode(), status=status, headers=kind))


async def _send(stream: anyio.abc.SocketStream, raw: Raw) -> None:
    headers = {**raw.headers, "content-length": str(len(raw.body))}
    await stream.send(_head(raw.status, headers) + raw.body)
    await stream.send_eof()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} -", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _send_events(
    stream: anyio.abc.SocketStream, wire: Wire, request: ServedRequest, played: PlayedTurn
) -> None:
    kind = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
    await stream.send(_head(200, kind))
    for event in wire.events(played, request.body):
        if isinstance(event, Pause):
            await event.wait()
            continue
        if played.turn.delay:
            await anyio.sleep(played.turn.delay)
        await _send_event(stream, wire, event)
    if (error := played.turn.error) is not None:
        if error.kind == "connection":
            return  # without the last chunk, so that the client sees a lost connection
        if error.kind == "timeout":
            await anyio.sleep(math.inf)
        if error.kind == "garbage":
            await _send_chunk(stream, b"event: message\n" + INVALID_EVENT)
        else:
            broken = wire.broken
            event = broken(error, played, request.body) if broken else wire.error(error)
            await _send_event(stream, wire, event)
    elif not wire.named:
        await _send_chunk(stream, b"data: [DONE]\n\n")
    await stream.send(b"0\r\n\r\n")
    await stream.send_eof()


async def _send_event(stream: anyio.abc.SocketStream, wire: Wire, event: dict[str, Any]) -> None:
    name = f"event: {event['type']}\n" if wire.named else ""
    await _send_chunk(stream, f"{name}data: {json.dumps(event)}\n\n".encode())


async def _send_chunk(stream: anyio.abc.SocketStream, data: bytes) -> None:
    await stream.send(b"%x\r\n%s\r\n" % (len(data), data))
