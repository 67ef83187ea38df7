"""What a library process and its workers hold in memory, idle and with programs that await."""

import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from bench.measuring import Measure, Round, Row, Taken
from bench.processes import descendants, family_memory, pss

COUNT = 200
SETTLED = 1.0
"""Seconds after which a process that did something counts as idle."""

EVICTED = 6.0
"""Seconds after which programs that wait have given their workers back."""

LIBRARY = f"""
import sys
import anyio
from clawmode import CodeMode, tool

reached, gate = 0, anyio.Event()

@tool
async def wait_at_gate(number: int) -> int:
    "Wait until the gate is open."
    global reached
    reached += 1
    if reached == {COUNT}:
        print("awaiting", flush=True)
    await gate.wait()
    return number + 1

async def one(code_mode, number):
    result = await code_mode.exec("return await tools.wait_at_gate({{number: %d}})" % number)
    assert result.value == number + 1, result

async def main():
    async with CodeMode(tools=[wait_at_gate], config={{"timeoutMs": 60_000}}) as code_mode:
        for number in range(20):
            result = await code_mode.exec("return %d + 1" % number)
            assert result.value == number + 1, result
        print("idle", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        async with anyio.create_task_group() as tasks:
            for number in range({COUNT}):
                tasks.start_soon(one, code_mode, number)
            await anyio.to_thread.run_sync(sys.stdin.readline)
            gate.set()
        print("done", flush=True)

anyio.run(main)
"""


def library() -> Measure:
    name = "a library process with its workers"
    rows = (
        Row(f"{name}: idle", "MiB", 50),
        Row(f"{name}: idle, sum of PSS, less beside other Pythons", "MiB"),
        Row(f"{name}: with {COUNT} awaiting programs", "MiB"),
        Row(f"{name}: each of {COUNT} awaiting programs", "MiB"),
    )

    @asynccontextmanager
    async def open_library(seconds: float) -> AsyncIterator[Round]:
        del seconds

        async def one_round() -> Taken:
            with tempfile.TemporaryDirectory() as folder:
                async with await anyio.open_process(
                    [sys.executable, "-c", LIBRARY], stderr=sys.stderr, cwd=folder
                ) as process:
                    assert process.stdin is not None
                    assert process.stdout is not None
                    output = BufferedByteReceiveStream(process.stdout)
                    held: list[float] = []
                    shares = 0.0
                    for word in (b"idle", b"awaiting"):
                        assert await output.receive_until(b"\n", 100) == word
                        await anyio.sleep(EVICTED if word == b"awaiting" else SETTLED)
                        memory = await anyio.to_thread.run_sync(family_memory, process.pid)
                        held.append(memory / 2**20)
                        shares = shares or sum(map(pss, [process.pid, *descendants(process.pid)]))
                        await process.stdin.send(b"go on\n")
                    assert await output.receive_until(b"\n", 100) == b"done"
                    assert await process.wait() == 0
            samples = (held[0], shares / 2**20, held[1], (held[1] - held[0]) / COUNT)
            titled = zip(rows, samples, strict=True)
            return Taken({row.title: [sample] for row, sample in titled}, 1, cpu=0.0)

        yield one_round

    return Measure("memory", rows, open_library, rounds=6)


MEASURES: list[Measure] = [library()]
