"""Fresh processes: how long they take to the first result, or to the first request to a model.

Empty caches hold no machine code and no image, as on a new machine. Bytecode of Python is there in
both cases: installers write it.
"""

import json
import os
import sys
import tempfile
import time
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

import clawmode
from bench.measuring import Measure, Round, Row, Taken
from bench.processes import cpu_seconds

LIBRARY = """
import anyio
from clawmode import CodeMode
async def main():
    async with CodeMode() as code_mode:
        print((await code_mode.exec("return 1+1")).value, flush=True)
anyio.run(main)
"""
PROGRAM = "return 1+1"
ANSWER = "It is 2."
WIRES = ("openai-completions", "openai-responses", "anthropic-messages")
FEW = 3
"""Rounds with empty caches: each compiles for seconds."""

CACHES = ("CLAWMODE_CACHE_DIR", "XDG_CACHE_HOME")


def command(*arguments: str) -> list[str]:
    """The command `clawmode`, as its entry point in the tree that is measured starts it."""
    project = Path(clawmode.__file__).parents[2] / "pyproject.toml"
    entry = tomllib.loads(project.read_text("utf-8"))["project"]["scripts"]["clawmode"]
    module, _, function = entry.partition(":")
    name = "sys.argv[0] = 'clawmode'"
    start = f"import sys; {name}; from {module} import {function}; sys.exit({function}())"
    return [sys.executable, "-c", start, *arguments]


async def start(
    words: list[str], expected: bytes, environment: Mapping[str, str], folder: Path
) -> float:
    """Runs a command. The seconds until its first line, which is checked, as is its end."""
    begun = time.perf_counter()
    async with await anyio.open_process(
        words, stderr=sys.stderr, env=environment, cwd=folder
    ) as process:
        assert process.stdout is not None
        output = BufferedByteReceiveStream(process.stdout)
        line = await output.receive_until(b"\n", 65536)
        taken = time.perf_counter() - begun
        async for _ in output:
            pass
        status = await process.wait()
    assert expected in line, line
    assert status == 0, status
    return taken


def settings(folder: Path) -> dict[str, str]:
    """An environment without the user's configuration and state."""
    own = {"CLAWMODE_STATE": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config")}
    return {**os.environ, **own, "NO_PROXY": "127.0.0.1"}


@contextmanager
def cached(*, empty: bool) -> Iterator[dict[str, str]]:
    """The variables of an empty cache, or of the usual one."""
    with tempfile.TemporaryDirectory() as folder:
        yield dict.fromkeys(CACHES, folder) if empty else {}


def starting(
    title: str, words: list[str], expected: bytes, *, goal: float | None = None, empty: bool = False
) -> Measure:
    row = Row(title, "s", goal)

    @asynccontextmanager
    async def open_starts(seconds: float) -> AsyncIterator[Round]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "program.js").write_text(PROGRAM, "utf-8")
            count = 1 if empty else max(1, round(2 * seconds))

            async def one_round() -> Taken:
                taken: list[float] = []
                for _ in range(count):
                    with cached(empty=empty) as places:
                        environment = {**settings(folder), **places}
                        taken.append(await start(words, expected, environment, folder))
                return Taken({title: taken}, count)

            await start(words, expected, settings(folder), folder)
            yield one_round

    return Measure(title, (row,), open_starts, "start", rounds=FEW if empty else 1000)


# ---- The first request to a model ----


def asking(wire: str, *, empty: bool = False) -> Measure:
    caches = "empty" if empty else "warm"
    title = f"`clawmode agent` until its first request, caches {caches}: {wire}"
    row = Row(title, "s", None if empty else 1.5)

    @asynccontextmanager
    async def open_server(seconds: float) -> AsyncIterator[Round]:
        # Imported here, because the other measurements need no models.
        from clawmode.testing import ScriptRequest, ScriptServer, Turn

        del seconds
        arrivals: list[tuple[float, float]] = []

        def answer(request: ScriptRequest) -> Turn:
            del request
            arrivals.append((time.perf_counter(), cpu_seconds()))
            return Turn(ANSWER)

        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = await stack.enter_async_context(ScriptServer(answer))
            base = server.url if wire == "anthropic-messages" else f"{server.url}/v1"
            provider = {"baseUrl": base, "api": wire, "apiKey": "none"}
            configuration = {
                "agents": {"defaults": {"model": "mine/small"}},
                "models": {"providers": {"mine": provider}},
                "tools": {"codeMode": True},
            }
            (folder / "own.json5").write_text(json.dumps(configuration), "utf-8")
            words = command(
                *("agent", "--local", "--quiet", "--message", "What is 1+1?"),
                *("--session", "new", "--config", "own.json5"),
            )

            async def one_round() -> Taken:
                arrivals.clear()
                with cached(empty=empty) as places:
                    environment = {**settings(folder), **places}
                    used, begun = cpu_seconds(), time.perf_counter()
                    await start(words, ANSWER.encode(), environment, folder)
                assert len(arrivals) == 1, arrivals
                [(arrived, used_then)] = arrivals
                return Taken({title: [arrived - begun]}, 1, cpu=used_then - used)

            if not empty:
                await one_round()
            yield one_round

    return Measure(title, (row,), open_server, "start", rounds=FEW if empty else 1000)


LIBRARY_WORDS = [sys.executable, "-c", LIBRARY]
RUN_WORDS = command("run", "--quiet", "program.js")

MEASURES: list[Measure] = [
    starting("first result in a fresh process: caches warm", LIBRARY_WORDS, b"2", goal=0.25),
    starting("first result in a fresh process: caches empty", LIBRARY_WORDS, b"2", empty=True),
    starting("`clawmode run` of `return 1+1`: caches warm", RUN_WORDS, b"2", goal=0.3),
    starting("`clawmode run` of `return 1+1`: caches empty", RUN_WORDS, b"2", empty=True),
    *map(asking, WIRES),
    asking(WIRES[-1], empty=True),
    starting("`clawmode --help`", command("--help"), b"Usage: clawmode", goal=0.15),
]
