"""Shows clawmode offline: programs that call tools, and an agent that writes them.

1. Programs: concurrent calls, TypeScript, and a program that never ends.
2. A program that waits for an approval, and continues in another process.
3. An agent: `clawmode agent` at a terminal of its own, with Python tools and an MCP server. A
   script plays the model, over the real wire of a provider; this program answers the questions.
4. A gateway, a plugin, core tools and a client that offers a tool: `gateway_turn`.

`make demo` runs this program, which exits with 1 if a result is wrong.
"""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

import anyio
import anyio.to_thread
import gateway_turn
from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.tree import Tree
from shop import get_price, list_products, place_order

from clawmode import (
    Approvals,
    CallEvent,
    CodeMode,
    CodeModeConfig,
    CodeModeResult,
    RunContext,
    SqliteStore,
)
from clawmode.testing import ScriptRequest, ScriptServer, Turn, call

HERE = Path(__file__).parent
WIDTH = 100
SECONDS = 60
"""The time limit of the agent's turn."""

WHO = RunContext(agent_id="demo", session_id="demo", session_key="demo", run_id="demo-run")

console = Console(width=WIDTH, highlight=False)

# ---- Programs, as a model writes them ----

FAN_OUT = """\
const products = await tools.list_products();
const prices = await Promise.all(products.map((product) => tools.get_price({ product })));
const priced = products.map((product, i) => ({ product, price: prices[i] }));
text(`${priced.length} products, priced by concurrent calls`);
return priced.toSorted((a, b) => a.price - b.price)[0];
"""

TYPESCRIPT = """\
enum Level { Low = 1, High = 10 }
const rated = <T,>(item: T, level: Level): { item: T; level: Level } => ({ item, level });
return [rated("tea", Level.Low), rated("coffee", Level.High)];
"""

HOSTILE = 'text("so far so good");\nwhile (true) {}'

ORDER = """\
const seen = new Map([["looked at", "water"]]);
const order = await tools.place_order({ product: "water", amount: 12 });
return { order, seen };
"""


def show(title: str, code: str, language: str = "javascript") -> None:
    console.print(Panel(Syntax(code.strip(), language, background_color="default"), title=title))


def tell(result: CodeModeResult, began: float) -> None:
    took = (time.perf_counter() - began) * 1000
    shown = {key: value for key, value in result.to_json().items() if key != "telemetry"}
    console.print(f"{took:.1f} ms:", json.dumps(shown, ensure_ascii=False), "\n")


async def run_cells() -> None:
    tree = Tree("exec")

    def watch(event: CallEvent) -> None:
        if event.phase == "end":
            tree.add(f"{event.tool_id}  {event.state}  {event.seconds * 1000:.0f} ms")

    async with CodeMode(tools=[list_products, get_price]) as code_mode:
        code_mode.watch(watch)
        show("four concurrent calls in one program", FAN_OUT)
        began = time.perf_counter()
        result = await code_mode.exec(FAN_OUT)
        console.print(tree)
        tell(result, began)
        assert result.value == {"product": "water", "price": 1.0}, result
        show("TypeScript", TYPESCRIPT, "typescript")
        began = time.perf_counter()
        result = await code_mode.exec(TYPESCRIPT, "typescript")
        tell(result, began)
        assert result.code is None, result
    async with CodeMode(config=CodeModeConfig(timeout_ms=1000)) as code_mode:
        show("a hostile program, with a time limit of one second", HOSTILE)
        began = time.perf_counter()
        result = await code_mode.exec(HOSTILE)
        tell(result, began)
        assert result.code == "timeout", result


async def shop(folder: str, run_id: str = "") -> str:
    """Starts the order, which needs an approval; with a run id, resumes the order."""
    approvals = Approvals(ask_for=["place_order"])
    async with CodeMode(
        tools=[place_order], store=SqliteStore(folder), context=WHO, approvals=approvals
    ) as code_mode:
        if not run_id:
            began = time.perf_counter()
            result = await code_mode.exec(ORDER)
            tell(result, began)
            assert result.status == "waiting", result
            console.print(f"process {os.getpid()} parked the program, and ends\n")
            return result.run_id
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, approvals)
            began = time.perf_counter()
            result = await code_mode.wait(run_id)
        tell(result, began)
        assert result.value == {
            "order": {"ordered": "water", "amount": 12},
            "seen": {"looked at": "water"},
        }, result
        console.print(f"process {os.getpid()} finished the program")
        return run_id


async def answer(approvals: Approvals) -> None:
    while not approvals.pending():  # noqa: ASYNC110 - a user polls, too
        await anyio.sleep(0.05)
    (question,) = approvals.pending()
    arguments = json.dumps(question.input)
    console.print(f"question: {question.tool_id} {arguments}? The user answers yes")
    approvals.resolve(question.id, "allow-once")


# ---- An agent ----

COMPARE = """\
const products = await tools.list_products();
const found = await Promise.all(products.map(async (product) => {
  const [price, stock] = await Promise.all([
    tools.get_price({ product }),
    MCP.warehouse.stock({ product }),
  ]);
  return { product, price, stock: stock.structuredContent.result };
}));
return found.filter(({ stock }) => stock > 0).toSorted((a, b) => a.price - b.price)[0];
"""

BUY = """\
const { ordered, amount } = await tools.place_order({ product: "PRODUCT", amount: 12 });
return `${amount} of ${ordered}`;
"""


def buy(request: ScriptRequest) -> Turn:
    best = request.last_result()["value"]
    words = f"{best['product'].capitalize()}, at {best['price']}. I order twelve."
    return Turn(words, call("exec", {"code": BUY.replace("PRODUCT", best["product"])}))


def wait(request: ScriptRequest) -> Turn:
    result = request.last_result()
    assert result["status"] == "waiting", result
    return Turn("That needs your approval.", call("wait", {"runId": result["runId"]}))


MODEL = [
    Turn("Let me compare prices and stock.", call("exec", {"code": COMPARE})),
    buy,
    wait,
    lambda request: Turn(f"Done: {request.last_result()['value']}."),
]


# `trustAnnotations`: the server declares that `stock` only reads, so it needs no approval.
CONFIGURATION = """\
{
  agents: { defaults: { model: "scripted/demo" } },
  models: {
    providers: {
      scripted: {
        baseUrl: "URL",
        api: "anthropic-messages",
        apiKey: "${DEMO_KEY}",
      },
    },
  },
  mcp: {
    servers: {
      warehouse: {
        command: "PYTHON",
        args: ["warehouse_server.py"],
        trustAnnotations: true,
      },
    },
  },
  tools: { codeMode: true },
}
"""
KEY = "demo-key-of-no-use"


async def run_agent(state: Path) -> None:
    message = "Order twelve of the cheapest drink that is in stock."
    async with ScriptServer(MODEL, key=KEY) as server:
        file = state / "clawmode.json5"
        file.write_text(CONFIGURATION.replace("URL", server.url).replace("PYTHON", sys.executable))
        show("clawmode.json5", file.read_text("utf-8"), "json5")
        options = ["--config", str(file), "--state", str(state)]
        began = time.perf_counter()
        turn = ["agent", "-m", message, "--tools", "shop:TOOLS"]
        console.print(f'$ clawmode agent -m "{message}" --tools shop:TOOLS')
        status, seen = await anyio.to_thread.run_sync(at_a_terminal, [*turn, *options])
        console.print(f"{time.perf_counter() - began:.1f} s, including the start\n")
    assert status == 0, f"exit status {status}"
    assert "Done: 12 of water." in seen, seen
    sent = [request.asked.tool_names for request in server.requests]
    assert sent == [("exec", "wait")] * 4, sent
    console.print("four requests, each with the tools exec and wait, and no others\n")

    console.print("$ clawmode sessions show")
    drawn = await read_command("sessions", "show", *options)
    print(drawn)
    for tool_id, times in (("get_price", 4), ("mcp:warehouse:stock", 4), ("place_order", 1)):
        assert drawn.count(tool_id) >= times, (tool_id, drawn)
    console.print("$ clawmode trajectory export")
    bundle = Path((await read_command("trajectory", "export", *options)).strip())
    written = [path.read_text("utf-8") for path in await anyio.to_thread.run_sync(files_in, bundle)]
    assert any("mcp:warehouse:stock" in text for text in written)
    assert not any(KEY in text for text in written), "the key is in the export"
    console.print(f"{len(written)} files, without the provider's key\n")


def at_a_terminal(arguments: list[str]) -> tuple[int, str]:
    """Runs the command at a terminal of its own, which is shown here, and answers its question."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 40, WIDTH, 0, 0))
    # Without a terminal, a live view would only clutter the output.
    term = os.environ.get("TERM", "dumb") if sys.stdout.isatty() else "dumb"
    process = subprocess.Popen(
        [sys.executable, "-m", "clawmode", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=HERE,
        env={**os.environ, "TERM": term, "NO_PROXY": "127.0.0.1", "DEMO_KEY": KEY},
        start_new_session=True,
    )
    os.close(theirs)
    late = threading.Timer(SECONDS, process.kill)
    late.start()
    seen, asked = b"", 0
    while data := read_some(ours):
        sys.stdout.buffer.write(data.replace(b"\r\n", b"\n"))
        sys.stdout.buffer.flush()
        seen += data
        if (questions := seen.count(b"once, always or deny?")) > asked:
            asked = questions
            time.sleep(0.5)  # a user reads the question first
            os.write(ours, b"once\n")
    os.close(ours)
    late.cancel()
    return process.wait(), re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", seen.decode())


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def read_some(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:  # the other end is closed
        return b""


async def read_command(*arguments: str) -> str:
    done = await anyio.run_process([sys.executable, "-m", "clawmode", *arguments], stderr=None)
    return done.stdout.decode()


async def main() -> None:
    if len(sys.argv) > 1:
        await shop(*sys.argv[1:])
        return
    console.rule("programs")
    await run_cells()
    console.rule("a program that waits")
    show("a program that needs an approval, and continues in another process", ORDER)
    with tempfile.TemporaryDirectory() as folder:
        run_id = await shop(folder)
        command = [sys.executable, __file__, folder, run_id]
        await anyio.run_process(command, stdout=None, stderr=subprocess.STDOUT)
    console.rule("an agent")
    with tempfile.TemporaryDirectory() as folder:
        await run_agent(Path(folder))
    console.rule("a gateway")
    await gateway_turn.main()
    console.print("All results were correct.")


if __name__ == "__main__":
    anyio.run(main)
