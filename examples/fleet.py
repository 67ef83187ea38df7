"""Three processes share a PostgreSQL. One of them is killed, and the others finish its programs.

Each program packs an order and ships it. When the process `south` is killed, some of its programs
are in the middle of a call. The others continue these programs from their last checkpoint: packing
may be repeated, and is. Shipping may not: the program is told that nobody knows the outcome, and
looks it up. At the end, every order was shipped exactly once.

`make fleet-demo` runs this program, which exits with 1 if an order was lost or shipped twice. It
starts a PostgreSQL of its own; `python examples/fleet.py postgresql://…` uses yours.
"""

import base64
import contextlib
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.streams.buffered import BufferedByteReceiveStream
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from clawmode import CodeMode, PostgresStore, RunContext, tool

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from postgres_server import PostgresServer

WHO = RunContext(agent_id="shop", session_id="shop", session_key="shop", run_id="orders")
COLOURS = {"north": "cyan", "south": "magenta", "west": "yellow"}
EACH = 8
"""Orders that each process begins."""

TRIES = 150
"""How often a program may be busy, or failed, before the demo gives it up."""

ORDER = """\
const order = NUMBER;
const parcel = await tools.pack({ order });
try {
  return await tools.ship({ order, parcel });
} catch (error) {
  if (error.code !== "outcome_unknown") throw error;
  return (await tools.look_up({ order })) ?? (await tools.ship({ order, parcel }));
}
"""

# ---- A node: one of the three processes ----


def shipments(folder: Path) -> list[list[str]]:
    """Returns what was shipped: the order, and the process that did it."""
    log = folder / "shipped"
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


async def serve(name: str, dsn: str, folder: Path) -> None:
    """Runs programs for the main process, which writes a line of JSON for each request."""

    @tool(idempotent=True)
    async def pack(order: int) -> str:
        """Pack an order. Packing twice does no harm."""
        await anyio.sleep(random.uniform(0.3, 2.5))
        return f"parcel {order}"

    @tool(effect="write")
    async def ship(order: int, parcel: str) -> str:
        """Ship a parcel. It must not be shipped twice."""
        with (folder / "shipped").open("a") as log:
            log.write(f"{order} {name}\n")
        await anyio.sleep(0.5)  # the answer of the carrier takes a while
        return f"{parcel}, shipped by {name}"

    @tool(effect="read")
    async def look_up(order: int) -> str | None:
        """Look up whether an order was shipped."""
        found = [by for number, by in shipments(folder) if number == str(order)]
        return f"parcel {order}, shipped by {found[0]}" if found else None

    async def answer(line: str) -> None:
        asked = json.loads(line)
        if asked["op"] == "exec":
            result = await code_mode.exec(asked["code"], yield_ms=50)
        else:
            result = await code_mode.wait(asked["run"])
        said = {key: result.to_json().get(key) for key in ("status", "runId", "value", "error")}
        print(json.dumps({"id": asked["id"], **said}), flush=True)

    logging.disable()  # others report the death of `south`, which is shown anyway
    store = PostgresStore(dsn, name=name)
    async with CodeMode(tools=[pack, ship, look_up], store=store, context=WHO) as code_mode:
        print(json.dumps({"id": 0}), flush=True)
        async with anyio.create_task_group() as tasks:
            async for line in anyio.wrap_file(sys.stdin):
                tasks.start_soon(answer, line)
    store.close()


# ---- The main process ----


class Node:
    """A process of the fleet, as the main process sees it."""

    def __init__(self, name: str, process: anyio.abc.Process) -> None:
        self.name = name
        self.process = process
        self.state = "starts"
        self.ready = anyio.Event()
        self._asked: dict[int, tuple[anyio.Event, list[Any]]] = {}

    async def listen(self) -> None:
        """Reads the answers of the process, until its end."""
        assert self.process.stdout is not None
        lines = BufferedByteReceiveStream(self.process.stdout)
        try:
            while True:
                said = json.loads(await lines.receive_until(b"\n", 1 << 20))
                if said["id"] == 0:
                    self.state = "alive"
                    self.ready.set()
                    continue
                event, answers = self._asked.pop(said["id"])
                answers.append(said)
                event.set()
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.ClosedResourceError):
            for event, _ in self._asked.values():
                event.set()

    async def ask(self, **what: Any) -> dict[str, Any] | None:
        """Asks the process. Returns None if the process has died."""
        number, event = 1 + random.getrandbits(48), anyio.Event()
        answers: list[Any] = []
        self._asked[number] = (event, answers)
        assert self.process.stdin is not None
        try:
            await self.process.stdin.send(json.dumps({"id": number, **what}).encode() + b"\n")
            await event.wait()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        return answers[0] if answers else None


class Order:
    """An order: its program, where the program is, and what came of it."""

    def __init__(self, number: int, node: Node) -> None:
        self.number = number
        self.begun = self.at = node
        self.run = ""
        self.value: str | None = None

    async def handle(self, nodes: list[Node]) -> None:
        """Starts the program, and waits for it, here or elsewhere, until it has ended."""
        began = await self.begun.ask(op="exec", code=ORDER.replace("NUMBER", str(self.number)))
        assert began is not None, f"order {self.number} was not accepted"
        self.run = began["runId"]
        tries = 0
        while self.value is None:
            said = await self.at.ask(op="wait", run=self.run)
            if said is None:
                self.at = random.choice([node for node in nodes if node.state == "alive"])
            elif said["status"] == "completed":
                self.value = said["value"]
            elif said["status"] == "failed":
                # For a moment, nobody else knows that the process is dead: the program is busy.
                tries += 1
                assert tries < TRIES, f"order {self.number}: {said['error']}"
                await anyio.sleep(0.1)


def drawn(nodes: list[Node], orders: list[Order], said: str) -> Group:
    """Returns the view: a line for each process, and a box for each order."""
    lines = Table.grid(padding=(0, 3))
    for node in nodes:
        mine = [order for order in orders if order.at is node]
        done = sum(order.value is not None for order in mine)
        colour = COLOURS[node.name] if node.state == "alive" else "red"
        bar = Text("■" * done, COLOURS[node.name]) + Text("□" * (len(mine) - done), "dim")
        name = Text(f"{node.name:6}", f"bold {COLOURS[node.name]}")
        lines.add_row(name, Text(node.state, colour), f"process {node.process.pid}", bar)
    boxes = Table.grid(padding=(0, 2))
    for row in range(0, len(orders), EACH):
        boxes.add_row(*(box(order) for order in orders[row : row + EACH]))
    return Group(Panel(lines, title=said), boxes)


def box(order: Order) -> Text:
    """Returns an order in the colour of the process that has it, with a tick at its end."""
    moved = "→" if order.at is not order.begun else " "
    tick = "✔" if order.value is not None else "…"
    return Text(f"{order.number:2}{moved}{tick}", COLOURS[order.at.name])


async def run(dsn: str, folder: Path, console: Console) -> list[Order]:
    """Starts the processes, has them work, and kills one of them."""
    environment = {**os.environ, "CLAWMODE_SNAPSHOT_KEY": base64.b64encode(os.urandom(32)).decode()}
    nodes: list[Node] = []
    for name in COLOURS:
        command = [sys.executable, __file__, "--node", name, dsn, str(folder)]
        process = await anyio.open_process(command, stderr=None, env=environment)
        nodes.append(Node(name, process))
    orders: list[Order] = []
    said = "three processes start"

    def view() -> Group:
        return drawn(nodes, orders, said)

    live = Live(console=console, refresh_per_second=10, get_renderable=view)
    try:
        with live if console.is_terminal else contextlib.nullcontext():
            async with anyio.create_task_group() as tasks:
                for node in nodes:
                    tasks.start_soon(node.listen)
                for node in nodes:
                    await node.ready.wait()
                said = "each process begins orders; their programs wait for the packers"
                async with anyio.create_task_group() as work:
                    for node in nodes:
                        for _ in range(EACH):
                            orders.append(Order(len(orders) + 1, node))
                            work.start_soon(orders[-1].handle, nodes)
                    south = nodes[1]
                    while sum(by == south.name for _, by in shipments(folder)) < 2:  # noqa: ASYNC110
                        await anyio.sleep(0.01)  # a file has no events
                    south.process.send_signal(signal.SIGKILL)
                    south.state, killed = "killed (-9)", time.monotonic()
                    said = "south was killed while it shipped: the others take its programs over"
                taken = time.monotonic() - killed
                said = f"all orders are shipped, {taken:.1f} s after the kill"
                tasks.cancel_scope.cancel()
    finally:
        for node in nodes:
            if node.process.returncode is None:
                node.process.terminate()
            await node.process.wait()
    if not console.is_terminal:
        console.print(view())
    return orders


def check(orders: list[Order], folder: Path, console: Console) -> None:
    """Compares what programs returned with what was shipped."""
    shipped = Counter(number for number, _ in shipments(folder))
    moved = [order for order in orders if order.at is not order.begun]
    twice = [number for number, times in shipped.items() if times > 1]
    assert not twice, f"shipped twice: {twice}"
    by = {number: name for number, name in shipments(folder)}  # noqa: C416 - of lists
    for order in orders:
        assert order.value == f"parcel {order.number}, shipped by {by[str(order.number)]}", order
    rescued = sum(by[str(order.number)] == "south" for order in moved)
    console.print(
        f"\n{len(orders)} orders, each shipped once. {len(moved)} programs of south were finished "
        f"by the others; {rescued} of them had shipped before the kill, and found that out."
    )
    assert moved, "south had finished everything before it was killed"


async def main() -> None:
    """Runs the demo, with a PostgreSQL of its own or the one that the command line names."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    console.print(
        Panel(Syntax(ORDER.strip(), "javascript", background_color="default"), title="the program")
    )
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as data:
        folder = Path(home)
        if len(sys.argv) > 1:
            check(await run(sys.argv[1], folder, console), folder, console)
            return
        began = time.monotonic()
        server = PostgresServer(data)
        await anyio.to_thread.run_sync(server.start)
        console.print(
            f"PostgreSQL runs as process {server.pid}, after {time.monotonic() - began:.1f} s"
        )
        try:
            check(await run(server.dsn, folder, console), folder, console)
        finally:
            await anyio.to_thread.run_sync(server.stop)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--node"]:
        anyio.run(serve, sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    else:
        anyio.run(main)
