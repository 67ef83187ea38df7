"""The desk: a person or a program plays the model, one message at a time.

`Desk` waits at a socket for messages; `say` sends one, and returns what the model reads next.
"""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import SocketStream
from anyio.streams.text import TextReceiveStream

from bench.model_tasks.players import size_of_definitions
from clawmode.messages import Text, ToolCall, ToolMessage, UserMessage
from clawmode.models.base import ModelRequest

ENDED = "The task has ended. `say show` shows the next one."


class Desk:
    """Passes messages between the agent and whoever plays its model."""

    def __init__(self) -> None:
        self._shown = ""
        self._begun = anyio.Event()
        self._done = anyio.Event()
        self._number = 0
        self._known = 0
        self._turns, self._next_turn = anyio.create_memory_object_stream[str | list[ToolCall]](0)
        self._news, self._next_news = anyio.create_memory_object_stream[str](1)

    @asynccontextmanager
    async def listen(self, path: Path) -> AsyncIterator[None]:
        """Listens at a socket while the block runs."""
        await anyio.Path(path).unlink(missing_ok=True)
        async with (
            await anyio.create_unix_listener(path) as listener,
            anyio.create_task_group() as clients,
        ):
            clients.start_soon(listener.serve, self._serve)
            with self._turns, self._next_turn, self._news, self._next_news:
                yield
                clients.cancel_scope.cancel()

    async def reply(self, request: ModelRequest) -> str | list[ToolCall]:
        """Shows the new part of a request, and returns the message that is said to it."""
        first = not any(isinstance(it, ToolMessage) for it in request.messages)
        news = request.messages if first else request.messages[self._known :]
        self._known = len(request.messages) + 1  # the reply will be the next one
        said = [shown for message in news if (shown := show(message))]
        head = [show_definitions(request)] if first else []
        self._shown = "\n\n".join(head + said)
        if first:
            self._begun.set()
        else:
            await self._news.send(self._shown)
        return await self._next_turn.receive()

    async def end(self) -> None:
        """Tells the player that the task has ended."""
        self._begun, self._done = anyio.Event(), anyio.Event()
        await self._news.send(ENDED)
        await self._done.wait()  # the socket may be closed next

    async def _serve(self, stream: SocketStream) -> None:
        async with stream:
            text = "".join([part async for part in TextReceiveStream(stream)])
            message = json.loads(text)
            if message["tool"] == "show":
                await self._begun.wait()
                await stream.send(self._shown.encode())
                return
            if message["tool"] == "answer":
                await self._turns.send(message["arguments"])
            else:
                self._number += 1
                call = ToolCall(f"call_{self._number}", message["tool"], message["arguments"])
                await self._turns.send([call])
            news = await self._next_news.receive()
            await stream.send(news.encode())
            if news == ENDED:
                self._done.set()


def show(message: Any) -> str:
    """Returns a message as the model reads it; empty for the model's own messages."""
    if not isinstance(message, UserMessage | ToolMessage):
        return ""
    return "\n".join(part.text for part in message.content if isinstance(part, Text))


def show_definitions(request: ModelRequest) -> str:
    """Returns the system prompt and the tool definitions."""
    tools = [
        f"TOOL {it.name} {json.dumps(it.parameters)}\n{it.description}" for it in request.tools
    ]
    size = size_of_definitions(request)
    return "\n\n".join([f"({size} bytes)", "SYSTEM\n" + request.system, *tools, "TASK"])


def say(path: Path, tool: str, arguments: Any) -> str:
    """Sends one message to a desk, and returns what the model reads next."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(json.dumps({"tool": tool, "arguments": arguments}).encode())
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(65536), b"")).decode()
