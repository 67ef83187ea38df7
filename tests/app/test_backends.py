"""Backends: what every one promises about its nodes and its bus. The folder's is tested here."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.support.waiting import idle, until

from clawmode import __version__
from clawmode.app.backends import Backend, backend_of, closing, open_backend
from clawmode.app.loading import set_up
from clawmode.app.setup import Options, Setup
from clawmode.code_mode.nodes import default_name
from clawmode.code_mode.stores import StoredCall, StoredCell
from clawmode.context import Scope

pytestmark = pytest.mark.anyio

SCOPE = Scope("a", "s", "k", "r")
CHILD = """
import sys, anyio
from clawmode.app.backends import open_backend
from clawmode.app.loading import set_up
from clawmode.app.setup import Options

async def main():
    setup = set_up(Options(config=sys.argv[1], state=sys.argv[2]), "look")
    async with open_backend(setup) as backend:
        print(await backend.nodes.enter(), flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


def make_setup(folder: Path, **settings: object) -> Setup:
    """Returns a setup whose configuration has these settings."""
    config = folder / "clawmode.json5"
    config.write_text(json.dumps(settings))
    return set_up(Options(config=str(config), state=str(folder / "state")), "look")


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return make_setup(tmp_path)


@pytest.fixture
async def one(setup: Setup) -> AsyncIterator[Backend]:
    async with open_backend(setup) as backend:
        yield backend


@pytest.fixture
async def two(setup: Setup) -> AsyncIterator[Backend]:
    async with open_backend(setup) as backend:
        yield backend


@asynccontextmanager
async def child(setup: Setup) -> AsyncIterator[tuple[int, str]]:
    """Another process that uses the backend: its process id, and its id as a node."""
    argv = [sys.executable, "-c", CHILD, str(setup.file), str(setup.state)]
    async with await anyio.open_process(argv, stderr=None) as process:
        assert process.stdout is not None
        try:
            with anyio.fail_after(15):
                yield process.pid, (await process.stdout.receive()).decode().strip()
        finally:
            if process.returncode is None:
                process.kill()


# ---- Nodes ----


@pytest.mark.covers("PG-17")
async def test_a_process_is_a_node_while_it_uses_the_backend(
    setup: Setup, one: Backend, two: Backend
) -> None:
    me, you = await one.nodes.enter(), await two.nodes.enter()
    assert await one.nodes.enter() == me != you
    listed = await one.nodes.living()
    assert [node.id for node in listed] == [me, you]
    assert {(node.name, node.build, node.draining) for node in listed} == {
        (default_name(), __version__, False)
    }
    assert all(node.silent < 10 for node in listed)
    assert one.nodes.reachable
    await anyio.to_thread.run_sync(two.cells.close)
    assert [node.id for node in await one.nodes.living()] == [me]
    async with closing(backend_of(setup)) as looker:
        assert [node.id for node in await looker.nodes.living()] == [me]  # it is none itself
    assert await two.nodes.enter() not in (me, you)


@pytest.mark.covers("PG-17")
async def test_everybody_sees_that_a_node_drains(one: Backend, two: Backend) -> None:
    me = await one.nodes.enter()
    await one.nodes.drain()
    await one.nodes.drain()
    found = {node.id: node.draining for node in await two.nodes.living()}
    assert found == {me: True, await two.nodes.enter(): False}


@pytest.mark.covers("PG-17")
async def test_a_process_that_is_killed_is_no_node_any_more(setup: Setup, one: Backend) -> None:
    me = await one.nodes.enter()
    async with child(setup) as (pid, node):
        assert [it.id for it in await one.nodes.living()] == [me, node]
        os.kill(pid, signal.SIGKILL)

        async def is_gone() -> bool:
            return [it.id for it in await one.nodes.living()] == [me]

        await until(is_gone, 15)


# ---- The bus ----


@pytest.mark.covers("PG-17")
async def test_a_wake_reaches_those_who_watch_its_topic(one: Backend) -> None:
    woken, other = anyio.Event(), anyio.Event()
    with one.bus.watch("x", woken.set), one.bus.watch("y", other.set), anyio.fail_after(5):
        await anyio.to_thread.run_sync(one.bus.wake, "x")
        await woken.wait()
        await idle()
    assert not other.is_set()


@pytest.mark.covers("PG-17")
async def test_a_wake_that_nobody_heard_yet_is_heard_once(one: Backend) -> None:
    one.bus.wake("x")
    woken, again = anyio.Event(), anyio.Event()
    with one.bus.watch("x", woken.set), anyio.fail_after(5):
        await woken.wait()
    with one.bus.watch("x", again.set):
        await idle()
    assert not again.is_set()


@pytest.mark.covers("PG-17")
@pytest.mark.parametrize("change", ["settle", "end", "abort"])
async def test_a_change_of_a_cell_wakes_those_who_watch_it(one: Backend, change: str) -> None:
    me, you = await one.cells.join(), await one.cells.join()
    call = StoredCall(1, me, "running", b"")
    cell = StoredCell(id="cm_1", scope=SCOPE, ttl=60, record=b"r", snapshot=b"s", calls=(call,))
    await one.cells.park(cell, me, 9, again=False)
    claimed = await one.cells.claim("cm_1", SCOPE, me)
    assert isinstance(claimed, StoredCell)
    woken = anyio.Event()
    with one.bus.watch("cm_1", woken.set), anyio.fail_after(5):
        if change == "settle":
            assert await one.cells.settle("cm_1", 1, me, b"reply", 99) == "kept"
        elif change == "end":
            assert await one.cells.end("cm_1", SCOPE, "finished", claimed.fence)
        else:
            await one.cells.abort("cm_1", SCOPE, you)
        await woken.wait()
    await one.cells.leave(me)
    await one.cells.leave(you)


@pytest.mark.covers("PG-17")
async def test_a_reply_that_another_node_stores_is_noticed(one: Backend, two: Backend) -> None:
    me, you = await one.cells.join(), await two.cells.join()
    call = StoredCall(1, me, "running", b"")
    cell = StoredCell(id="cm_1", scope=SCOPE, ttl=60, record=b"r", snapshot=b"s", calls=(call,))
    await one.cells.park(cell, me, 9, again=False)
    assert isinstance(await two.cells.claim("cm_1", SCOPE, you), StoredCell)
    assert await one.cells.settle("cm_1", 1, me, b"reply", 99) == "kept"
    woken, looked = anyio.Event(), 0
    with two.bus.watch("cm_1", woken.set), anyio.fail_after(5):
        while True:  # as whoever waits does: woken, or by the clock
            progress, looked = await two.cells.progress("cm_1"), looked + 1
            if progress is not None and progress.replies == 1:
                break
            with anyio.move_on_after(two.bus.poll):
                await woken.wait()
    assert looked <= 3


# ---- For operators ----


@pytest.mark.covers("PG-13")
async def test_a_report_says_what_is_kept(one: Backend) -> None:
    me = await one.cells.join()
    for number in range(3):
        cell = StoredCell(id=f"cm_{number}", scope=SCOPE, ttl=60, record=b"r", snapshot=b"s")
        await one.cells.park(cell, me, 9, again=False)
    await one.cells.checkpoint(
        StoredCell(id="cm_9", scope=SCOPE, ttl=60, record=b"r", snapshot=b"s"), me, again=False
    )
    found = await one.cells.report()
    assert (found.parked, found.counted, found.running) == (3, 3, 1)
    assert found.version > 0
    await one.cells.leave(me)
