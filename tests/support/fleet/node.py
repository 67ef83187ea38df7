"""A node: a process with a `CodeMode` on a shared store, which a harness tells what to do.

`python -m tests.support.fleet.node SOCKET` imports everything once and then forks a node for each
line of JSON on stdin, because a kill test starts hundreds of nodes. A node connects to the socket
of the harness and answers its requests: `exec`, `wait` and `list`.
"""

import asyncio
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio

from clawmode import (
    CodeMode,
    CodeModeConfig,
    Pool,
    PostgresStore,
    RunContext,
    SqliteStore,
    tool,
)
from clawmode.code_mode.config import Durability
from clawmode.code_mode.programs import Programs
from clawmode.code_mode.results import CodeModeResult
from clawmode.code_mode.stores import Refusal, SnapshotStore
from clawmode.postgres import nodes
from clawmode.postgres.connection import Connection
from clawmode.sandbox import artifacts
from clawmode.tools.tool import Tool

WHO = RunContext(agent_id="fleet", session_id="fleet", session_key="fleet", run_id="fleet")
LINE = 1 << 24


@dataclass(frozen=True)
class Order:
    """What a node is told at its start.

    Attributes:
        name: The name of the node, for the log of effects.
        state: The folder or the address of the store.
        socket: Where the harness listens.
        effects: The port of the server that takes effect.
        timeout_ms: The time limit of an `exec` or a `wait`.
        skew: How many seconds the wall clock of the node is ahead.
        uptime: How many seconds longer than in truth the node's machine has been up.
        durability: When programs are written to the store.
        lease: The lease of the node in seconds, if the store has leases; 0 for the default.
        patience: How many seconds the node waits for an answer of PostgreSQL; 0 for the default.
    """

    name: str
    state: str
    socket: str
    effects: int
    timeout_ms: int = 1500
    skew: float = 0.0
    uptime: float = 0.0
    durability: Durability = "parked"
    lease: float = 0.0
    patience: float = 0.0


# ---- Clocks ----

SKEWED = """import time
wall, wall_ns, up, up_ns = time.time, time.time_ns, time.monotonic, time.monotonic_ns
time.time = lambda: wall() + {skew}
time.time_ns = lambda: wall_ns() + int({skew} * 1e9)
time.monotonic = lambda: up() + {uptime}
time.monotonic_ns = lambda: up_ns() + int({uptime} * 1e9)
"""


def set_clocks(skew: float, uptime: float) -> None:
    """Changes the clocks of this process, and of the workers that it starts."""
    changes = SKEWED.format(skew=skew, uptime=uptime)
    exec(changes, {})
    command = artifacts.python_command

    def python_command(module: str, *arguments: str) -> list[str]:
        made = command(module, *arguments)
        at = made.index("-c") + 1
        return [*made[:at], changes + made[at], *made[at + 1 :]]

    artifacts.python_command = python_command


# ---- Refusals ----


def tell_refusals() -> None:
    """Adds the reason to results of a `wait` that found no program: many reasons share a code."""
    refused = Programs._refused

    def telling(self: Programs, run_id: str, why: Refusal, *more: Any) -> CodeModeResult:
        result = refused(self, run_id, why, *more)
        return replace(result, notes=[*result.notes, f"refusal: {why}"])

    setattr(Programs, "_refused", telling)  # noqa: B010 - a method may not be assigned to


# ---- Tools, whose effects happen elsewhere ----


async def post(port: int, body: dict[str, Any]) -> str:
    """Lets the server outside take effect, and returns its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        data = json.dumps(body).encode()
        writer.write(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(head.decode())
        return (await reader.read()).decode()
    finally:
        writer.close()


def make_tools(order: Order) -> list[Tool]:
    """Returns a tool of each kind. `ms` is how long the server takes over the effect."""

    def call(kind: str, key: str, ms: int) -> Awaitable[str]:
        return post(order.effects, {"kind": kind, "key": key, "ms": ms, "node": order.name})

    @tool(effect="read")
    async def look(key: str, ms: int = 0) -> str:
        """Look at something, which changes nothing."""
        return await call("look", key, ms)

    @tool(effect="write")
    async def act(key: str, ms: int = 0) -> str:
        """Do something that must not be done twice."""
        return await call("act", key, ms)

    @tool(effect="write", idempotent=True)
    async def put(key: str, ms: int = 0) -> str:
        """Do something that may be done twice."""
        return await call("put", key, ms)

    return [look, act, put]


# ---- Serving ----


def open_store(order: Order) -> SnapshotStore:
    """Opens the store that an order names."""
    if "://" not in order.state:
        return SqliteStore(Path(order.state))
    if order.lease:
        # As in the defaults: three beats in a lease, and a look at others three times a beat.
        nodes.LEASE_SECONDS = order.lease
        nodes.BEAT_SECONDS, nodes.TICK_SECONDS = order.lease * 0.3, order.lease * 0.1
    Connection.patience = order.patience or Connection.patience
    return PostgresStore(order.state, name=order.name, pool_size=4)


class Server:
    """Answers the requests of the harness, each in its own task."""

    def __init__(self, code_mode: CodeMode) -> None:
        self._code_mode = code_mode
        self._does: dict[str, Callable[..., Awaitable[Any]]] = {
            "exec": self._exec,
            "wait": self._wait,
            "list": self._list,
        }

    async def _exec(self, source: str, yield_ms: float | None = None) -> Any:
        return (await self._code_mode.exec(source, yield_ms=yield_ms)).to_json()

    async def _wait(self, run: str) -> Any:
        return (await self._code_mode.wait(run)).to_json()

    async def _list(self) -> Any:
        return await self._code_mode.unfinished()

    async def answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        """Does what a line asks for, and sends the outcome with the seconds that it took."""
        asked = json.loads(line)
        number, began = asked.pop("id"), time.perf_counter()
        try:
            said = {"result": await self._does[asked.pop("op")](**asked)}
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        said |= {"id": number, "seconds": time.perf_counter() - began}
        writer.write(json.dumps(said).encode() + b"\n")
        with suppress(ConnectionError):
            await writer.drain()


async def serve(order: Order) -> None:
    """Runs a node until the harness closes its connection."""
    try:
        reader, writer = await asyncio.open_unix_connection(order.socket, limit=LINE)
    except OSError:
        return  # the harness has ended meanwhile
    config = CodeModeConfig(
        timeout_ms=order.timeout_ms,
        snapshot_ttl_seconds=86_400,
        max_suspended_runs=1_000_000,
        durability=order.durability,
    )
    async with AsyncExitStack() as opened:
        store = open_store(order)
        pool = await opened.enter_async_context(Pool(size=1, max_size=2))
        code_mode = CodeMode(
            tools=make_tools(order), store=store, context=WHO, config=config, pool=pool
        )
        server = Server(await opened.enter_async_context(code_mode))
        hello = {"name": order.name, "pid": os.getpid()}
        writer.write(json.dumps(hello).encode() + b"\n")
        async with anyio.create_task_group() as tasks:
            with suppress(ConnectionError):
                while line := await reader.readline():
                    tasks.start_soon(server.answer, line, writer)
            tasks.cancel_scope.cancel()


def run(order: Order) -> None:
    """Becomes the node: called in a fork."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    if order.skew or order.uptime:
        set_clocks(order.skew, order.uptime)
    tell_refusals()
    anyio.run(serve, order)


def main() -> None:
    """Forks a node for each line of stdin."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the nodes
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        if os.fork() == 0:
            os.close(0)
            os.open(os.devnull, os.O_RDONLY)
            try:
                run(Order(**json.loads(line)))
            except BaseException:
                traceback.print_exc()
            os._exit(0)


if __name__ == "__main__":
    main()
