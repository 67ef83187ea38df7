"""Sends a gateway frames that no honest client sends, over the real wire.

    python -m bench.frames [--count N] [--clients N]

Each client sends nonsense and half-right requests until its connection ends, and connects again.
Exit status 1: the gateway died, stopped answering, or wrote a traceback.
"""

import argparse
import contextlib
import json
import random
import time
from typing import Any

import anyio
import anyio.lowlevel
from rich.console import Console
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from bench.gateway import joined, open_gateway
from clawmode.gateway.method_table import METHODS

console = Console(highlight=False)
NAMES = [*METHODS, "connect", "nonsense", "__proto__", ""]
ODD: list[Any] = [
    *({}, [], None, "x", 5, -1, 1e308, True, "\u202e", "../../etc/passwd", "\x00", "x" * 5_000),
    *({"sessionKey": "agent:main:main"}, {"message": 5}, {"id": "x", "decision": "deny"}),
]


def nonsense(chance: random.Random) -> str | bytes:
    """A frame: bytes, text, broken JSON, or a request that is right in part."""
    kind = chance.randrange(8)
    if kind == 0:
        return chance.randbytes(chance.randrange(500))
    if kind == 1:
        return "".join(chr(chance.randrange(1, 0xD7FF)) for _ in range(chance.randrange(200)))
    if kind == 2:
        return chance.choice("[{") * chance.randrange(20_000)
    schema: Any = METHODS[name].schema if (name := chance.choice(NAMES)) in METHODS else {}
    keys = list(schema.get("properties", {})) or ["x"]
    params = {key: chance.choice(ODD) for key in chance.sample(keys, chance.randint(0, len(keys)))}
    frame = {
        "type": chance.choice(["req", "req", "req", "res", 5]),
        "id": chance.choice(["1", "2", "1", 7, None, "x" * 300]),
        "method": chance.choice([name, name, name, None, [name]]),
        "params": chance.choice([params, params, params, chance.choice(ODD)]),
    }
    text = json.dumps(frame)
    return text if kind > 3 else text[: chance.randrange(len(text))]


async def attack(place: dict[str, Any], count: int, clients: int) -> int:
    """How many connections ended."""
    ended = 0
    left = count

    async def one(number: int) -> None:
        nonlocal ended
        chance = random.Random(number)
        while left > 0:
            try:
                async with connect(place["url"], compression=None, max_size=None) as socket:
                    await pelt(socket, chance)
            except* (ConnectionClosed, OSError):
                ended += 1

    async def pelt(socket: Any, chance: random.Random) -> None:
        nonlocal left
        await socket.recv()
        if chance.random() < 0.9:
            await socket.send(hello(place["token"]))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain, socket)
            while left > 0:
                left -= 1
                await socket.send(nonsense(chance))
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for number in range(clients):
            tasks.start_soon(one, number)
    return ended


async def drain(socket: Any) -> None:
    with contextlib.suppress(ConnectionClosed):
        async for _ in socket:
            pass


def hello(token: str) -> str:
    client = {"minProtocol": 1, "maxProtocol": 9, "client": {"id": "fuzz"}}
    params = {**client, "scopes": ["operator.read"], "auth": {"token": token}}
    return json.dumps({"type": "req", "id": "0", "method": "connect", "params": params})


async def run(place: dict[str, Any], options: argparse.Namespace) -> None:
    began = time.monotonic()
    ended = await attack(place, options.count, options.clients)
    async with joined(place, follow=False) as crier:
        with anyio.fail_after(10):
            assert (await crier.call("health", {}))["ok"]
    seconds = time.monotonic() - began
    console.print(
        f"{options.count:,} frames, {ended:,} connections ended, {seconds:.0f} s: it lives"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=20)
    options = parser.parse_args()
    with open_gateway({"agents": {"defaults": {"model": "openai/none"}}}) as (_, place):
        anyio.run(run, place, options)


if __name__ == "__main__":
    main()
