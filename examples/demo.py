"""What clawmode does, offline: cells run, one is frozen, and another process finishes it.

`make demo` runs this. It exits with 1 if anything is not as it says.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio
from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax

from clawmode import CodeMode, CodeModeConfig, Pool, RunContext
from clawmode.sandbox import artifacts
from clawmode.sandbox.protocol import Done, Request, Resume, Settled, Start, Suspended
from clawmode.snapshots import KEY_VARIABLE, KeyRing, seal, unseal

WHO = RunContext(agent_id="demo", session_id="demo-session", run_id="demo-run")

JAVASCRIPT = """\
const words = "the quick brown fox jumps over the lazy dog".split(" ");
const byLength = Object.groupBy(words, (word) => word.length);
text(`${words.length} words, ${Object.keys(byLength).length} lengths`);
return byLength;
"""

TYPESCRIPT = """\
enum Level { Low = 1, High = 10 }
const rated = <T,>(item: T, level: Level): { item: T; level: Level } => ({ item, level });
return [rated("tea", Level.Low), rated("coffee", Level.High)];
"""

HOSTILE = 'text("so far so good");\nwhile (true) {}'

FROZEN = """\
const seen = new Map([["started", new Date().toISOString()]]);
let total = 40;
const answer = await tools.call("ask_a_person", { question: "How much more?" });
total += answer;
return { total, seen };
"""

console = Console(width=100, highlight=False)


def show(title: str, code: str, language: str = "javascript") -> None:
    console.print(Panel(Syntax(code.strip(), language, background_color="default"), title=title))


def wasm() -> bytes:
    return bytes.fromhex(artifacts.locked_hash("quickjs"))


async def run_cells() -> None:
    async with Pool() as pool:
        patient = CodeMode(context=WHO, pool=pool)
        strict = CodeMode(context=WHO, pool=pool, config=CodeModeConfig(timeout_ms=500))
        for title, code, language, code_mode in (
            ("a JavaScript cell", JAVASCRIPT, "javascript", patient),
            ("a TypeScript cell", TYPESCRIPT, "typescript", patient),
            ("a hostile cell, with half a second to live", HOSTILE, "javascript", strict),
        ):
            show(title, code, language)
            started = time.perf_counter()
            result = await code_mode.exec(code, language)
            took = (time.perf_counter() - started) * 1000
            console.print(f"{took:.1f} ms:", json.dumps(result.to_json(), ensure_ascii=False), "\n")
            assert result.code == (None if code_mode is patient else "timeout"), result


async def freeze(path: Path) -> Request:
    async with Pool(size=1) as pool:
        cell = pool.cell()
        idle = await pool.step(cell, Start(FROZEN), time.monotonic() + 10)
        assert isinstance(idle, Suspended), idle
        sealed = seal(await pool.freeze(cell), wasm(), WHO, KeyRing.load(path.parent))
        await anyio.Path(path).write_bytes(sealed)
        console.print(f"process {os.getpid()} froze it: {len(sealed)} bytes on disk; workers gone")
    return idle.requests[0]


async def resume(path: Path, request: int) -> None:
    keys = KeyRing.load(path.parent)
    sealed = await anyio.Path(path).read_bytes()
    frozen = unseal(sealed, wasm(), WHO, keys, max_memory=1 << 30)
    async with Pool(size=1) as pool:
        settled = Settled(request, True, b"2")
        end = await pool.step(pool.cell(frozen), Resume((settled,)), time.monotonic() + 10)
    assert isinstance(end, Done), end
    console.print(f"process {os.getpid()} finished it:", end.value.decode())
    assert json.loads(end.value)["total"] == 42


async def main() -> None:
    if len(sys.argv) > 1:
        await resume(Path(sys.argv[1]), int(sys.argv[2]))
        return
    await run_cells()
    show("a cell that waits for a person", FROZEN)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cell.snapshot")
        request = await freeze(path)
        console.print(f"the person is asked: {request.args.decode()} … and answers 2")
        command = [sys.executable, __file__, str(path), str(request.id)]
        await anyio.run_process(command, stdout=None, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    os.environ.setdefault(KEY_VARIABLE, base64.b64encode(os.urandom(32)).decode())
    anyio.run(main)
