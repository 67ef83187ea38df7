"""One turn that reads fifty files, three ways: by a program, call by call, all calls at once.

A real agent asks a scripted model over the real wire of `anthropic-messages`; the files are real.
"""

import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from clawmode import Tool, tool
from clawmode.agent.models import ModelPool
from clawmode.agent.requests import AgentRequest
from clawmode.agent.resolver import ConfigResolver
from clawmode.agent.runtime import AgentRuntime
from clawmode.config.resolve import read
from clawmode.models.providers import make_model
from clawmode.sessions.store import SessionStore
from clawmode.testing import ScriptRequest, ScriptServer, Turn, call
from clawmode.testing.scripted import Reaction

FILES = 50
LINES = 40
LINE = "2031-04-05 12:00:00 INFO request served in 12 ms\n"
PROGRAM = f"""const paths = Array.from({{length: {FILES}}}, (_, n) => `log-${{n}}.txt`);
const texts = await Promise.all(paths.map((path) => tools.read_file({{path}})));
return {{files: texts.length, lines: texts.join("").split("\\n").length - 1}};"""


@dataclass(frozen=True)
class Spent:
    """What a turn took. Bytes are those on the wire, heads included."""

    requests: int
    sent: int
    received: int
    tokens: int
    ms: float


# ---- The three models ----


def by_program(request: ScriptRequest) -> Turn:
    if not request.results:
        return Turn(call("exec", {"code": PROGRAM}))
    value = request.last_result()["value"]
    assert value == {"files": FILES, "lines": FILES * LINES}, value
    return Turn(f"{value['lines']} lines.")


def one_by_one(request: ScriptRequest) -> Turn:
    read = len(request.results)
    return Turn(_call(read)) if read < FILES else _summed_up(request)


def at_once(request: ScriptRequest) -> Turn:
    return _summed_up(request) if request.results else Turn(*map(_call, range(FILES)))


def _call(number: int) -> Any:
    return call("read_file", {"path": f"log-{number}.txt"})


def _summed_up(request: ScriptRequest) -> Turn:
    lines = sum((text or "").count("\n") for text in request.results.values())
    assert lines == FILES * LINES, lines
    return Turn(f"{lines} lines.")


WAYS: Mapping[str, Reaction] = {
    "by a program": by_program,
    "by one call after the other": one_by_one,
    "by calls at once": at_once,
}


# ---- Running them ----


@asynccontextmanager
async def agent(way: str) -> AsyncIterator[Callable[[], Awaitable[Spent]]]:
    """Runs turns of one agent, each in a new session, and tells what they took."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        for number in range(FILES):
            (state / f"log-{number}.txt").write_text(LINE * LINES, encoding="utf-8")
        async with _CountingServer(WAYS[way]) as server:
            settings = server.settings("anthropic-messages")
            data: Any = {
                "tools": {"codeMode": way == "by a program"},
                "agents": {"defaults": {"model": "scripted/scripted"}},
            }
            configuration = read(data).unwrap()
            async with (
                make_model(settings, "scripted") as model,
                ModelPool(configuration, {"scripted/*": model}) as models,
                AgentRuntime(
                    resolver=ConfigResolver(configuration, models, state),
                    sessions=SessionStore(state / "sessions"),
                    state=state,
                    tools=[_read_file(state)],
                ) as runtime,
            ):
                sessions = map(str, count())

                async def turn() -> Spent:
                    return await _turn(runtime, server, next(sessions))

                await turn()
                yield turn


def _read_file(folder: Path) -> Tool:
    @tool
    async def read_file(path: str) -> str:
        """Read a text file.

        Args:
            path: Where it is.
        """
        return await anyio.Path(folder / path).read_text("utf-8")

    return read_file


async def _turn(runtime: AgentRuntime, server: "_CountingServer", session: str) -> Spent:
    requests, sent, received = len(server.requests), server.received, server.sent
    begun = time.perf_counter()
    run = await runtime.start(AgentRequest(message="How many lines?", session_key=session))
    result = await runtime.result(run.id)
    taken = (time.perf_counter() - begun) * 1000
    assert result.payloads == ({"text": f"{FILES * LINES} lines."},), result
    return Spent(
        len(server.requests) - requests,
        server.received - sent,
        server.sent - received,
        sum(count for count in result.usage.values() if isinstance(count, int)),
        taken,
    )


class _CountingServer(ScriptServer):
    """Counts what it sends and receives."""

    sent = received = 0

    async def _serve(self, stream: anyio.abc.SocketStream) -> None:
        counted = _Counted(stream)
        await super()._serve(counted)
        self.sent += counted.sent
        self.received += counted.received


class _Counted(anyio.abc.SocketStream):
    def __init__(self, inner: anyio.abc.SocketStream) -> None:
        self._inner = inner
        self.sent = self.received = 0

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await self._inner.receive(max_bytes)
        self.received += len(data)
        return data

    async def send(self, item: bytes) -> None:
        self.sent += len(item)
        await self._inner.send(item)

    async def send_eof(self) -> None:
        await self._inner.send_eof()

    async def aclose(self) -> None:
        await self._inner.aclose()

    @property
    def _raw_socket(self) -> Any:
        return self._inner._raw_socket
