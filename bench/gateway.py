"""Measures a gateway as a user starts it, over the real wire.

    python -m bench.gateway [--seconds N] [--clients N] [--runs N]

Prints what it holds idle, how many turns with a program go through it in a second, how long
`health` takes while programs loop endlessly, and whether a crowd of clients loses an event. Exit
status 1: an event was lost, or the gateway did not start, died or wrote a traceback.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import anyio
from rich.console import Console
from rich.table import Table
from websockets.asyncio.client import ClientConnection, connect

from bench.processes import family_memory
from clawmode.testing import ScriptRequest, ScriptServer, Turn, call

LOOP = "for (;;);"
ROUND = "return 1 + 1"
TARGET_HEALTH_MS = 50.0
TARGET_IDLE_MB = 120.0

console = Console(highlight=False)


# ---- The model ----


def brain(request: ScriptRequest) -> Turn:
    """Runs one program for each message, or endless ones for `loop`, and answers."""
    kind, _, number = request.said.partition(" ")
    call_id = f"call-{kind}-{number}"
    if kind == "loop":
        return Turn(call("exec", {"code": LOOP}, id=f"{call_id}-{len(request.results)}"))
    if call_id not in request.results:
        return Turn(call("exec", {"code": ROUND}, id=call_id))
    return Turn("done")


async def serve_model() -> None:
    """Plays the model until it is ended: a process of its own, so that it costs nobody time."""
    async with ScriptServer(brain) as server:
        print(server.url, flush=True)
        await anyio.sleep_forever()


@contextmanager
def started(
    command: list[str], folder: Path, errors: IO[bytes] | int
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process, and the first line that it says."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=errors)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().decode().strip()
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.stdout.close()


@contextmanager
def open_gateway(config: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """A gateway as a user starts it: its process, and where it listens.

    Exits with the end of the log if the gateway does not start, dies, or logs a traceback.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name), Path(name) / "log"
        (folder / "clawmode.json5").write_text(json.dumps(config))
        command = [sys.executable, "-m", "clawmode", "gateway", "--json", "--port", "0"]
        command += ["--state", "state", "--config", "clawmode.json5"]
        with log.open("wb") as errors, started(command, folder, errors) as (process, line):
            if line:
                place = json.loads((folder / "state" / "gateway.json").read_text())
                yield process.pid, place
            ended = process.poll() is not None
        said = log.read_text("utf-8", "replace")
    if not line or ended or "Traceback" in said:
        what = "ended" if ended and line else "logged a traceback" if line else "did not start"
        sys.exit(f"the gateway {what}:\n{said[-5_000:]}")


# ---- Clients ----


@dataclass
class Crier:
    """A client that follows everything, and notices a gap."""

    socket: ClientConnection
    events: int = 0
    gaps: int = 0
    ended: set[str] = field(default_factory=set)
    _answers: dict[str, Any] = field(default_factory=dict)
    _waiting: dict[str, anyio.Event] = field(default_factory=dict)
    _next: int = 0

    async def read(self) -> None:
        last = 0
        async for text in self.socket:
            frame = json.loads(text)
            if frame["type"] == "event":
                self.events += 1
                self.gaps += frame["seq"] != last + 1
                last = frame["seq"]
                payload = frame["payload"]
                if frame["event"] == "agent" and payload["stream"] == "lifecycle":
                    if payload["data"]["phase"] != "start":
                        self.ended.add(payload["runId"])
            else:
                self._answers[frame["id"]] = frame
                self._waiting.pop(frame["id"]).set()

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        self._next += 1
        frame_id = str(self._next)
        event = self._waiting[frame_id] = anyio.Event()
        frame = {"type": "req", "id": frame_id, "method": method, "params": params}
        await self.socket.send(json.dumps(frame))
        await event.wait()
        answer = self._answers.pop(frame_id)
        assert answer["ok"], answer
        return answer["payload"]

    async def turn(self, message: str, session: str) -> dict[str, Any]:
        key = os.urandom(8).hex()
        given = {"message": message, "sessionKey": session, "idempotencyKey": key}
        run = await self.call("agent", given)
        return await self.call("agent.wait", {"runId": run["runId"], "timeoutMs": 120_000})


@asynccontextmanager
async def joined(place: dict[str, Any], *, follow: bool) -> AsyncIterator[Crier]:
    async with connect(place["url"], compression=None, max_size=None) as socket:
        await socket.recv()
        hello = {
            "minProtocol": 1,
            "maxProtocol": 9,
            "client": {"id": "bench"},
            "auth": {"token": place["token"]},
        }
        frame = {"type": "req", "id": "0", "method": "connect", "params": hello}
        await socket.send(json.dumps(frame))
        assert json.loads(await socket.recv())["ok"]
        crier = Crier(socket)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(crier.read)
            if follow:
                await crier.call("sessions.subscribe", {"sessionKeys": ["*"]})
            yield crier
            tasks.cancel_scope.cancel()


# ---- What is measured ----


async def rounds(place: dict[str, Any], seconds: float) -> tuple[float, float]:
    """Turns with a program in a second: one after the other, and twenty at a time."""
    async with joined(place, follow=False) as crier:
        await crier.turn("warm 0", "bench-warm")
        begun, count = time.monotonic(), 0
        while time.monotonic() - begun < seconds:
            await crier.turn(f"one {count}", "bench-one")
            count += 1
        alone = count / (time.monotonic() - begun)
        done = 0
        begun = time.monotonic()

        async def work(name: int) -> None:
            nonlocal done
            turn = 0
            while time.monotonic() - begun < seconds:
                await crier.turn(f"many {turn}", f"bench-{name}")
                turn += 1
                done += 1

        async with anyio.create_task_group() as tasks:
            for name in range(20):
                tasks.start_soon(work, name)
        return alone, done / (time.monotonic() - begun)


async def health(place: dict[str, Any], seconds: float) -> list[float]:
    """How long `health` takes, in milliseconds, while four programs loop endlessly."""
    times: list[float] = []
    async with joined(place, follow=False) as crier:
        for number in range(4):
            given = {
                "message": f"loop {number}",
                "sessionKey": f"loop-{number}",
                "idempotencyKey": os.urandom(8).hex(),
            }
            await crier.call("agent", given)
        await anyio.sleep(1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.perf_counter()
            await crier.call("health", {})
            times.append((time.perf_counter() - begun) * 1000)
            await anyio.sleep(0.01)
        for number in range(4):
            await crier.call("sessions.abort", {"sessionKey": f"loop-{number}"})
    return times


async def crowd(place: dict[str, Any], clients: int, runs: int, seconds: float) -> dict[str, int]:
    """Clients that follow everything while runs go on."""
    async with contextlib.AsyncExitStack() as stack:
        criers = [
            await stack.enter_async_context(joined(place, follow=True)) for _ in range(clients)
        ]
        end = time.monotonic() + seconds
        turns = 0

        async def work(name: int) -> None:
            nonlocal turns
            while time.monotonic() < end:
                await criers[name % clients].turn(f"crowd {time.monotonic_ns()}", f"crowd-{name}")
                turns += 1

        async with anyio.create_task_group() as tasks:
            for name in range(runs):
                tasks.start_soon(work, name)
        await anyio.sleep(2)
        heard = {len(crier.ended) for crier in criers}
        return {
            "turns": turns,
            "events": sum(crier.events for crier in criers),
            "gaps": sum(crier.gaps for crier in criers),
            "unheard": turns - min(heard),
        }


async def measure(
    place: dict[str, Any], pid: int, options: argparse.Namespace
) -> tuple[Table, bool]:
    """The figures, and whether every client has heard everything."""
    table = Table("what", "measured", "target", title="the gateway")
    idle = family_memory(pid) / 1e6
    table.add_row("memory, idle", f"{idle:.0f} MB", f"under {TARGET_IDLE_MB:.0f} MB")
    alone, together = await rounds(place, options.seconds / 4)
    table.add_row("turns with a program, one after the other", f"{alone:.0f} a second", "")
    table.add_row("the same, twenty at a time", f"{together:.0f} a second", "")
    times = sorted(await health(place, options.seconds / 4))
    p99 = times[int(len(times) * 0.99)]
    middle = statistics.median(times)
    target = f"p99 under {TARGET_HEALTH_MS:.0f} ms"
    table.add_row("`health`, four endless programs", f"{middle:.1f} ms, p99 {p99:.1f} ms", target)
    before = family_memory(pid) / 1e6
    told = await crowd(place, options.clients, options.runs, options.seconds)
    await anyio.sleep(3)
    after = family_memory(pid) / 1e6
    words = f"{told['turns']} turns, {told['events']:,} events"
    table.add_row(f"{options.clients} clients, {options.runs} runs at once", words, "")
    table.add_row("events lost, ends not heard of", f"{told['gaps']}, {told['unheard']}", "0, 0")
    table.add_row("memory before and after", f"{before:.0f} MB, {after:.0f} MB", "no growth")
    return table, not told["gaps"] and not told["unheard"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--model", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.model:
        anyio.run(serve_model)
        return
    here = Path(__file__).resolve().parents[1]
    model = [sys.executable, "-m", "bench.gateway", "--model"]
    with started(model, here, subprocess.DEVNULL) as (_, url):
        provider = {"baseUrl": url, "api": "anthropic-messages", "apiKey": "of no use"}
        config = {
            "agents": {"defaults": {"model": "mine/small", "maxConcurrent": 100}},
            "models": {"providers": {"mine": provider}},
            "tools": {"codeMode": True, "approve": "always"},
        }
        with open_gateway(config) as (pid, place):
            table, well = anyio.run(measure, place, pid, options)
    console.print(table)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
