"""Runs a fleet through a schedule of faults, under load, and has the checker judge it."""

import asyncio
import base64
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psycopg
from tests.support.fleet.checker import (
    AGAIN,
    WAITING,
    Program,
    Telling,
    Verdict,
    check,
    name_in,
)
from tests.support.fleet.node import LINE, Order
from tests.support.fleet.outside import EffectServer, Proxy, pause
from tests.support.fleet.schedule import Fault, Plan, make_program, make_schedule, parked_program

from postgres_server import PostgresServer

ROOT = Path(__file__).parents[3]
KEY = base64.b64encode(os.urandom(32)).decode()
START_SECONDS = 20.0
PATIENCE = 5.0
"""How long a caller waits for a node before asking another one: longer than an `exec` may take."""

SHOW_SECONDS = 30.0
HASTY = 0.3
"""The share of callers that wait shorter, so that several nodes are asked for a program at once."""

DRAIN_SECONDS = 60.0
"""How long programs may take to end when there are no more faults."""


class NodeGone(Exception):
    """The node has died, does not answer, or has no store."""


class Node:
    """One place of the fleet, where a node runs, dies and is started anew.

    Attributes:
        number: Its place.
        pid: The process of the present node.
        up: Set while a node is connected.
        proxy: Its network to PostgreSQL.
    """

    def __init__(self, number: int, told: Callable[[str, str, dict[str, Any]], None]) -> None:
        self.number = number
        self.name = ""
        self.pid = 0
        self.lives = 0
        self.up = asyncio.Event()
        self.down = asyncio.Event()
        self.proxy: Proxy | None = None
        self._told = told
        self._number = 0
        self._asked: dict[int, tuple[str, asyncio.Future[dict[str, Any]]]] = {}
        self._writer: asyncio.StreamWriter | None = None

    async def serve(self, hello: dict[str, Any], reader: Any, writer: Any) -> None:
        """Reads the answers of a node until its end."""
        self.name, self.pid, self._writer = hello["name"], hello["pid"], writer
        asked: dict[int, tuple[str, asyncio.Future[dict[str, Any]]]] = {}
        self._asked = asked
        self.down.clear()
        self.up.set()
        with suppress(ConnectionError):
            while line := await reader.readline():
                said = json.loads(line)
                program, future = asked.pop(said["id"])
                if program and "result" in said:
                    self._told(program, hello["name"], said["result"])
                if not future.done():
                    future.set_result(said)
        self.up.clear()
        self.down.set()
        for _, future in asked.values():
            if not future.done():
                future.set_result({})
        writer.close()

    async def ask(
        self, op: str, program: str = "", patience: float = PATIENCE, **given: Any
    ) -> dict[str, Any]:
        """Asks the node. An answer that comes later than the caller waits is noted too.

        Raises:
            NodeGone: The node has died, did not answer in time, or has no store.
        """
        if not self.up.is_set() or self._writer is None:
            raise NodeGone
        self._number += 1
        future = asyncio.get_running_loop().create_future()
        self._asked[self._number] = (program, future)
        line = json.dumps({"id": self._number, "op": op, **given})
        try:
            self._writer.write(line.encode() + b"\n")
            answer = await asyncio.wait_for(asyncio.shield(future), patience)
        except (TimeoutError, ConnectionError):
            raise NodeGone from None
        if not answer or answer.get("error", "").startswith("StoreUnavailable"):
            raise NodeGone
        if "error" in answer:
            raise AssertionError(f"{self.name}: {answer['error']}")
        return answer

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process of the node."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


@dataclass
class Fleet:
    """A running fleet.

    Attributes:
        state: The folder or the address of the store.
        log: What the nodes have written to stderr.
        programs: All programs that were started, by name.
        tellings: Everything that callers were told.
        faults: What has been done to the fleet.
    """

    plan: Plan
    state: str
    log: Path
    effects: EffectServer
    postgres: PostgresServer | None = None
    nodes: list[Node] = field(default_factory=list[Node])
    programs: dict[str, Program] = field(default_factory=dict[str, Program])
    tellings: list[Telling] = field(default_factory=list[Telling])
    faults: Counter[str] = field(default_factory=Counter)
    _ended: set[str] = field(default_factory=set[str])
    _socket: str = ""
    _host: asyncio.subprocess.Process | None = None
    _arrived: dict[str, Node] = field(default_factory=dict[str, Node])
    _readers: set[asyncio.Task[Any]] = field(default_factory=set)

    # ---- Nodes ----

    async def arrive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Meets a node that has connected."""
        task = asyncio.current_task()
        assert task is not None
        self._readers.add(task)
        try:
            line = await reader.readline()
            if line:
                hello = json.loads(line)
                await self._arrived[hello["name"]].serve(hello, reader, writer)
        except asyncio.CancelledError:
            pass  # at the end; the server's own callback would complain about it
        finally:
            self._readers.discard(task)
            writer.close()

    async def start(self, node: Node) -> None:
        """Starts a node in its place, and waits until it serves."""
        node.lives += 1
        name = f"n{node.number}.{node.lives}"
        self._arrived[name] = node
        skew, uptime = self.plan.clock_of(node.number)
        order = Order(
            name=name,
            state=self.state_of(node),
            socket=self._socket,
            effects=self.effects.port,
            skew=skew,
            uptime=uptime,
            durability=self.plan.durability,
            lease=self.plan.lease,
            patience=self.plan.patience_of(node.number),
        )
        assert self._host is not None
        assert self._host.stdin is not None
        self._host.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        with anyio.fail_after(START_SECONDS):
            await node.up.wait()

    def state_of(self, node: Node) -> str:
        """Returns the folder, or the address of PostgreSQL through the node's own network."""
        if self.postgres is None or node.proxy is None:
            return self.state
        return self.state.replace(f":{self.postgres.port}/", f":{node.proxy.port}/")

    async def keep_up(self, node: Node) -> None:
        """Starts a node anew whenever it has died, as a supervisor does."""
        while True:
            await node.down.wait()
            node.down.clear()
            await self.start(node)

    # ---- Programs ----

    def told(self, program: str, node: str, result: dict[str, Any]) -> None:
        """Notes what a node has told."""
        telling = Telling(program, node, result)
        self.tellings.append(telling)
        known = self.programs[program]
        if telling.end == WAITING:
            known.run = result["runId"]
            known.holder = node if telling.held else ""
        elif telling.end != AGAIN:
            self._ended.add(program)

    async def exec(self, program: Program, node: Node, yield_ms: float | None = None) -> None:
        """Starts a program on a node. If the node dies, nobody knows if the program began."""
        self.programs[program.name] = program
        try:
            await node.ask("exec", program.name, source=program.source, yield_ms=yield_ms)
        except NodeGone:
            program.asked = True

    async def pick(self, chance: random.Random, nodes: Sequence[Node] = ()) -> Node:
        """Returns one of the nodes that are up, and waits if none is."""
        while not (up := [node for node in nodes or self.nodes if node.up.is_set()]):
            await pause(0.01)
        return chance.choice(up)

    async def finish(
        self, program: Program, chance: random.Random, nodes: Sequence[Node] = ()
    ) -> None:
        """Waits for a program, now here and now there, until somebody was told its end.

        As the caller is told, a program that one node keeps is waited for there, while it lives.
        """
        while program.run and program.name not in self._ended:
            node = await self.pick(
                chance, [it for it in self.nodes if self._keeps(it, program)] or nodes
            )
            patience = chance.uniform(0.05, 1.0) if chance.random() < HASTY else PATIENCE
            try:
                answer = await node.ask("wait", program.name, patience, run=program.run)
            except NodeGone:
                continue
            if Telling("", "", answer["result"]).end == AGAIN:
                await pause(0.02)

    def _keeps(self, node: Node, program: Program) -> bool:
        return node.up.is_set() and node.name == program.holder

    async def call(self, number: int, stop: asyncio.Event) -> None:
        """Starts one program after the other, and finishes each of them."""
        chance, count = random.Random(f"caller {self.plan.seed} {number}"), 0
        while not stop.is_set():
            count += 1
            program = make_program(f"p{number}-{count}", chance)
            await self.exec(program, await self.pick(chance))
            await self.finish(program, chance)

    async def adopt(self, stop: asyncio.Event) -> None:
        """Waits for programs that no node drives, while their callers may still wait for them."""
        chance = random.Random(f"adopter {self.plan.seed}")
        while not stop.is_set():
            await pause(chance.uniform(0.1, 0.5))
            node = await self.pick(chance)
            with suppress(NodeGone):
                for run in (await node.ask("list"))["result"]:
                    result = (await node.ask("wait", run=run))["result"]
                    end = Telling(run, node.name, result).end
                    if end not in (WAITING, AGAIN) and (name := name_in(result)):
                        self.told(name, node.name, result)

    async def find_orphans(self) -> None:
        """Finishes the programs whose callers lost their node before they learned an id.

        Those that had ended by then are known only by what the store keeps of them.
        """
        node = self.nodes[0]
        known = {program.run for program in self.programs.values()}
        found = (await node.ask("list", patience=30))["result"]
        for run in {*found, *await anyio.to_thread.run_sync(self._ended_runs)} - known:
            limit = time.monotonic() + DRAIN_SECONDS
            while True:
                result = (await node.ask("wait", run=run))["result"]
                told = Telling(run, node.name, result)
                if told.end not in (WAITING, AGAIN):
                    break
                assert time.monotonic() < limit, f"no end of {told}"
                await pause(0.02)
            name = name_in(result)
            if name and name not in self._ended:
                self.programs[name].run = run
                self.told(name, node.name, result)

    def _ended_runs(self) -> list[str]:
        """Returns the ids of the programs that have ended, from the tables of the store."""
        if self.postgres is None:
            return []  # of a folder, callers are told that their programs are lost
        with psycopg.connect(self.postgres.dsn) as connection:
            rows = connection.execute("select id from clawmode.cm_ended").fetchall()
        return [run for (run,) in rows]

    # ---- Faults ----

    async def disturb(self, node: Node, faults: list[Fault]) -> None:
        """Does to a node what the schedule has for it."""
        for fault in faults:
            await pause(fault.gap)
            await node.up.wait()
            self.faults[fault.kind] += 1
            match fault.kind:
                case "kill":
                    node.signal(signal.SIGKILL)
                    await node.down.wait()
                case "stop":
                    node.signal(signal.SIGSTOP)
                    await pause(fault.lasts)
                    node.signal(signal.SIGCONT)
                case "cut" | "reset" | "hole" | "half" | "slow":
                    assert node.proxy is not None, "a store in a folder has no network"
                    node.proxy.change(fault.kind)
                    await pause(fault.lasts)
                    node.proxy.change("calm")
                case "restart":
                    raise AssertionError("restarts are for PostgreSQL")

    async def restart_postgres(self, faults: list[Fault]) -> None:
        """Restarts PostgreSQL as the schedule says."""
        for fault in faults:
            await pause(fault.gap)
            assert self.postgres is not None
            self.faults["restart"] += 1
            how = signal.Signals[f"SIG{fault.detail}"]
            await anyio.to_thread.run_sync(self.postgres.restart, how)

    async def run(self, show: Callable[[str], None] = lambda line: None) -> Verdict:
        """Moves programs, runs load and faults at once, lets all end, and checks everything.

        Args:
            show: Called now and then with how far the run is.
        """
        lanes, stop = make_schedule(self.plan), asyncio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._show, show, sum(map(len, lanes)))
            if self.plan.moved:
                await self.move()
            await self._torment(lanes, stop)
            verdict = await self.judge()
            tasks.cancel_scope.cancel()
        return verdict

    async def _show(self, show: Callable[[str], None], total: int) -> None:
        began = time.monotonic()
        while True:
            await pause(SHOW_SECONDS)
            done = sum(self.faults.values()) - (self.plan.moved > 0)
            passed = time.monotonic() - began
            show(
                f"{passed:5.0f} s: {len(self._ended):,} of {len(self.programs):,} programs have "
                f"ended; {max(done, 0):,} of {total:,} faults"
            )

    async def _torment(self, lanes: list[list[Fault]], stop: asyncio.Event) -> None:
        async with anyio.create_task_group() as callers:
            for number in range(self.plan.callers):
                callers.start_soon(self.call, number, stop)
            if self.plan.durability == "effects":
                callers.start_soon(self.adopt, stop)
            async with anyio.create_task_group() as faults:
                for node, lane in zip(self.nodes, lanes, strict=False):
                    faults.start_soon(self.disturb, node, lane)
                faults.start_soon(self.restart_postgres, lanes[-1])
            stop.set()
            callers.cancel_scope.deadline = anyio.current_time() + DRAIN_SECONDS

    async def move(self) -> float:
        """Parks programs on the first node, kills the node, and finishes them on the second one.

        A twentieth of them, but at most a hundred, have a call under way when the node dies.

        Returns:
            The seconds from the kill to the end of the last program.
        """
        count = self.plan.moved
        acting = min(count // 20 + 1, 100)
        first, second = self.nodes[:2]
        quiet = [parked_program(f"moved{number}") for number in range(count - acting)]
        slow = [parked_program(f"acting{number}", ms=3000) for number in range(acting)]

        async def park(program: Program) -> None:
            await self.exec(program, first, yield_ms=50)
            assert program.run, f"{program.name} did not park"

        async def finish(program: Program) -> None:
            await self.finish(program, random.Random(program.name), [second])

        await each(quiet, park, self.plan.callers)
        await each(slow, park, acting)
        self.faults["kill"] += 1
        first.signal(signal.SIGKILL)
        killed = time.monotonic()
        await each([*slow, *quiet], finish, self.plan.callers)
        return time.monotonic() - killed

    async def judge(self) -> Verdict:
        """Checks everything, after the last effect. The seed is among the problems, if any."""
        for node in self.nodes:
            await node.up.wait()
        late = [
            each for each in self.programs.values() if each.run and each.name not in self._ended
        ]
        with anyio.move_on_after(DRAIN_SECONDS):
            for program in late:  # their ids came after their callers had left
                await self.finish(program, random.Random(program.name))
        await self.find_orphans()
        with anyio.fail_after(DRAIN_SECONDS):
            while self.effects.busy:
                await pause(0.02)
        verdict = check(
            self.programs.values(), self.effects.effects(), self.tellings, self.plan.durability
        )
        if verdict.problems:
            verdict.problems.insert(0, f"seed {self.plan.seed}; this happened: {dict(self.faults)}")
            verdict.problems.append(f"the nodes have logged:\n{self.log.read_text()[-4000:]}")
        return verdict


async def each(
    programs: list[Program], does: Callable[[Program], Awaitable[None]], at_once: int
) -> None:
    """Does something with all programs, a few at a time."""
    left = iter(programs)

    async def some() -> None:
        for program in left:
            await does(program)

    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(some)


@asynccontextmanager
async def opened(
    plan: Plan, folder: Path, postgres: PostgresServer | None = None, *, proxies: bool = True
) -> AsyncIterator[Fleet]:
    """Opens a fleet.

    Args:
        plan: The size and the seed.
        folder: Where the log of effects is written, and what nodes share if there is no server.
        postgres: The server that nodes share.
        proxies: Whether each node gets a network of its own to it, which can be disturbed.
    """
    state = str(folder / "state") if postgres is None else postgres.dsn
    async with AsyncExitStack() as stack:
        effects = EffectServer(folder / "effects.jsonl")
        await stack.enter_async_context(effects.serving())
        log = folder / "nodes.log"
        fleet = Fleet(plan, state, log, effects, postgres)
        # The path of a socket may not be long, and test folders are.
        home = stack.enter_context(tempfile.TemporaryDirectory())
        fleet._socket = f"{home}/s"
        server = await asyncio.start_unix_server(fleet.arrive, fleet._socket, limit=LINE)
        stack.callback(server.close)
        command = [sys.executable, "-m", "tests.support.fleet.node"]
        host = fleet._host = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.PIPE,
            stderr=stack.enter_context(log.open("ab")),
            cwd=ROOT,
            env={**os.environ, "CLAWMODE_SNAPSHOT_KEY": KEY},
        )
        stack.push_async_callback(_end_host, host)
        for number in range(plan.nodes):
            node = Node(number, fleet.told)
            fleet.nodes.append(node)
            if postgres is not None and proxies:
                node.proxy = await stack.enter_async_context(Proxy(postgres.port).serving())
        stack.push_async_callback(_end_nodes, fleet)
        async with anyio.create_task_group() as supervisors:
            async with anyio.create_task_group() as starts:
                for node in fleet.nodes:
                    starts.start_soon(fleet.start, node)
            for node in fleet.nodes:
                supervisors.start_soon(fleet.keep_up, node)
            try:
                yield fleet
            finally:
                supervisors.cancel_scope.cancel()


async def _end_nodes(fleet: Fleet) -> None:
    for node in fleet.nodes:
        if node.up.is_set():
            node.signal(signal.SIGKILL)
    for task in list(fleet._readers):
        await asyncio.wait([task], timeout=2)


async def _end_host(host: asyncio.subprocess.Process) -> None:
    assert host.stdin is not None
    host.stdin.close()
    with anyio.move_on_after(5):
        await host.wait()
    if host.returncode is None:
        host.kill()
        await host.wait()
