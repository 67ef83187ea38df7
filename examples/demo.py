"""What clawmode does, offline: programs call tools, one waits for a person and for a new process.

`make demo` runs this. It exits with 1 if anything is not as it says.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import anyio
from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.tree import Tree

from clawmode import (
    Approvals,
    CodeMode,
    CodeModeConfig,
    CodeModeResult,
    RunContext,
    SqliteStore,
    tool,
)
from clawmode.executor import CallEvent

WHO = RunContext(agent_id="demo", session_id="demo", session_key="demo", run_id="demo-run")

console = Console(width=100, highlight=False)

# ---- Tools, as a Python developer writes them ----

PRICES = {"tea": 3.2, "coffee": 4.5, "cake": 5.1, "water": 1.0}


@tool(effect="read")
async def list_products() -> list[str]:
    """List the names of all products."""
    return list(PRICES)


@tool(effect="read")
async def get_price(product: str) -> float:
    """Look up what a product costs. The register is slow."""
    await anyio.sleep(0.1)
    return PRICES[product]


@tool(effect="write")
async def place_order(product: str, amount: int) -> dict[str, str | int]:
    """Order a product. Costs money."""
    return {"ordered": product, "amount": amount}


# ---- Programs, as a model writes them ----

FAN_OUT = """\
const products = await tools.list_products();
const prices = await Promise.all(products.map((product) => tools.get_price({ product })));
const priced = products.map((product, i) => ({ product, price: prices[i] }));
text(`${priced.length} products, asked for side by side`);
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

    async with CodeMode(
        tools=[list_products, get_price], config=CodeModeConfig(timeout_ms=1000)
    ) as code_mode:
        code_mode.watch(watch)
        show("four calls at once, in one program", FAN_OUT)
        began = time.perf_counter()
        result = await code_mode.exec(FAN_OUT)
        console.print(tree)
        tell(result, began)
        assert result.value == {"product": "water", "price": 1.0}, result
        for title, code, language, expected in (
            ("TypeScript", TYPESCRIPT, "typescript", None),
            ("a hostile program, with one second to live", HOSTILE, "javascript", "timeout"),
        ):
            show(title, code, language)
            began = time.perf_counter()
            result = await code_mode.exec(code, language)
            tell(result, began)
            assert result.code == expected, result


async def shop(folder: str, run_id: str = "") -> str:
    """Starts the order, or goes on with it; a person has to approve it."""
    approvals = Approvals(ask_for=["place_order"])
    async with CodeMode(
        tools=[place_order], store=SqliteStore(folder), context=WHO, approvals=approvals
    ) as code_mode:
        if not run_id:
            began = time.perf_counter()
            result = await code_mode.exec(ORDER)
            tell(result, began)
            assert result.status == "waiting", result
            console.print(f"process {os.getpid()} parked it, and ends\n")
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
        console.print(f"process {os.getpid()} finished it")
        return run_id


async def answer(approvals: Approvals) -> None:
    while not approvals.pending():  # noqa: ASYNC110 - as somebody does who looks now and then
        await anyio.sleep(0.05)
    (question,) = approvals.pending()
    arguments = json.dumps(question.input)
    console.print(f"the person is asked: {question.tool_id} {arguments}? … and says yes")
    approvals.resolve(question.id, "allow-once")


async def main() -> None:
    if len(sys.argv) > 1:
        await shop(*sys.argv[1:])
        return
    await run_cells()
    show("a program that needs a person, and outlives its process", ORDER)
    with tempfile.TemporaryDirectory() as folder:
        run_id = await shop(folder)
        command = [sys.executable, __file__, folder, run_id]
        await anyio.run_process(command, stdout=None, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    anyio.run(main)
