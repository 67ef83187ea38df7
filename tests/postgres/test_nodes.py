"""Nodes: their leases, their deaths, and what a node does that finds itself dead."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import psycopg
import pytest
from tests.support.waiting import until

from clawmode import CodeMode, RunContext
from clawmode.code_mode.snapshots import KEY_VARIABLE, KeyRing
from clawmode.code_mode.stores import StoredCall, StoredCell
from clawmode.context import Scope
from clawmode.exceptions import ConfigurationError
from clawmode.postgres import bus, nodes
from clawmode.postgres.cells import PostgresStore
from clawmode.postgres.membership import STRANGERS

pytestmark = pytest.mark.anyio

Opening = Callable[..., PostgresStore]
Admin = psycopg.Connection[Any]
MINE = Scope("a", "s", "k", "r")
ONE, TWO, THREE = (bytes([number]) * 32 for number in (1, 2, 3))

JOIN = """
import base64, os, sys, anyio
from clawmode import PostgresStore
store = PostgresStore(sys.argv[1], name="a child")
print(anyio.run(store.join), flush=True)
sys.stdin.read()
"""


LOCKED = (
    "select count(*) from pg_locks l join pg_database d on d.oid = l.database"
    " where l.locktype = 'advisory' and l.classid = 20302 and d.datname = current_database()"
)
"""The number of nodes whose sessions have begun."""


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TICK", "HOUSE"):
        monkeypatch.setattr(nodes, f"{name}_SECONDS", 0.05)


@pytest.fixture
def _short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets nodes be overdue soon. On a busy machine, living ones are that too."""
    for name, seconds in (("BEAT", 0.1), ("LEASE", 0.4)):
        monkeypatch.setattr(nodes, f"{name}_SECONDS", seconds)


def cell(owner: str, *states: Any) -> StoredCell:
    calls = [StoredCall(number, owner, state, b"") for number, state in enumerate(states, 1)]
    return StoredCell(
        id="cm_1", scope=MINE, ttl=60, record=b"r", snapshot=b"s", calls=(*calls,), mark=b"1"
    )


def living(admin: Admin) -> list[str]:
    rows = admin.execute("select name from clawmode.cm_nodes where dead is null order by id")
    return [name for (name,) in rows.fetchall()]


@pytest.mark.covers("PG-7")
async def test_a_store_is_a_node_from_its_first_use_until_it_is_closed(
    opening: Opening, admin: Admin
) -> None:
    one, two = opening(name="one"), opening(name="two")
    assert living(admin) == []
    owners = [await one.join(), await one.join(), await two.join()]
    assert len(set(owners)) == 3
    assert living(admin) == ["one", "two"], "an owner has no row of its own"
    assert await two.alive(owners[0])
    one.close()
    assert living(admin) == ["two"]
    assert not await two.alive(owners[0])
    assert await one.join() not in owners
    rows = admin.execute("select count(*), count(distinct id) from clawmode.cm_nodes").fetchone()
    assert rows == (3, 3), "a node never comes back under its id"


@pytest.mark.covers("PG-7")
@pytest.mark.usefixtures("_short_lease")
async def test_a_killed_node_is_declared_dead_before_its_lease_ends(
    opening: Opening, admin: Admin, database: str
) -> None:
    environment = {**os.environ, KEY_VARIABLE: "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}
    command = [sys.executable, "-c", JOIN, database]
    async with await anyio.open_process(command, env=environment, stderr=None) as child:
        assert child.stdout is not None
        with anyio.fail_after(20):
            owner = (await child.stdout.receive()).decode().strip()
        await until(lambda: admin.execute(LOCKED).fetchone() == (1,))
        store = opening()
        await store.join()
        change = "update clawmode.cm_nodes set every = '0s', lease = '1h' where name = 'a child'"
        admin.execute(change)
        before = admin.execute("select count(*) from clawmode.cm_nodes").fetchone()
        assert before == (2,)
        await until(lambda: "a child" in living(admin) and store.bus.poll == 5.0)
        child.send_signal(signal.SIGKILL)
        await child.wait()
    await until(lambda: owner and living(admin) and "a child" not in living(admin))
    assert not await store.alive(owner)


@pytest.mark.usefixtures("_short_lease")
async def test_the_lease_decides_about_a_node_whose_session_hangs(
    opening: Opening, admin: Admin
) -> None:
    """A stopped process keeps its session, and with it the lock."""
    one, two = opening(name="one"), opening(name="two")
    owner = await one.join()
    assert one._members._node is not None
    one._members._node._stopping.set()  # it beats no more, and leaves nothing in good order
    with psycopg.connect(admin.info.dsn, password=admin.info.password, autocommit=True) as other:
        node = int(owner.split(".")[0])
        other.execute("select pg_advisory_lock(20302, %s::int)", (node,))
        await two.join()
        await until(lambda: living(admin) == ["two"])
    assert not await two.alive(owner)


@pytest.mark.covers("PG-8")
async def test_a_node_that_finds_itself_dead_drops_what_it_has_and_says_so(
    opening: Opening, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    zombie, other = opening(name="zombie"), opening(name="other")
    me, you = await zombie.join(), await other.join()
    await zombie.park(cell(me, "running"), me, 9, again=False)
    claimed = await zombie.claim("cm_1", MINE, me)
    assert isinstance(claimed, StoredCell)
    admin.execute("update clawmode.cm_nodes set dead = clock_timestamp() where name = 'zombie'")
    await until(lambda: zombie.deaths == 1)
    assert "was declared dead" in caplog.text
    assert await zombie.gone(["cm_1"]) == {"cm_1"}
    assert await zombie.abort("cm_1", MINE, me, claimed.fence) == "ended"
    taken = await other.claim("cm_1", MINE, you)
    assert isinstance(taken, StoredCell), "the cell itself goes on"
    assert taken.fence == claimed.fence + 1
    assert not await other.alive(taken.calls[0].owner)
    assert await zombie.take("cm_1", me, claimed.fence, seen=b"1", mark=b"2") is None
    assert not await zombie.mark("cm_1", 1, me, "running")
    # The run goes on as an owner of a new node.
    assert await zombie.alive(me)
    await other.release("cm_1", you, taken.fence)
    again = await zombie.claim("cm_1", MINE, me)
    assert isinstance(again, StoredCell)
    assert again.calls[0].owner != me, "a call of the dead node is not a call of the new one"
    assert not await zombie.alive(again.calls[0].owner)
    assert await zombie.adopt("cm_1", again.calls[0], me, again.fence)
    assert await zombie.gone(["cm_1"]) == set()
    assert living(admin) == ["other", "zombie"]


async def test_a_node_that_was_just_declared_dead_parks_as_a_new_one(
    opening: Opening, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "TICK_SECONDS", 60.0)  # it does not find out by itself
    zombie, other = opening(name="zombie"), opening(name="other")
    me, you = await zombie.join(), await other.join()
    admin.execute("update clawmode.cm_nodes set dead = clock_timestamp() where name = 'zombie'")
    await zombie.park(cell(me, "running"), me, 9, again=False)
    assert zombie.deaths == 1
    claimed = await other.claim("cm_1", MINE, you)
    assert isinstance(claimed, StoredCell)
    assert await other.alive(claimed.calls[0].owner)
    admin.execute("update clawmode.cm_nodes set dead = clock_timestamp() where name = 'other'")
    assert isinstance(await other.claim("cm_1", MINE, you), StoredCell)


async def test_a_node_that_was_away_declares_nobody_dead_at_first(
    opening: Opening, admin: Admin
) -> None:
    """After a failure of the network, the first that returns must not bury the others."""
    one, two = opening(name="one"), opening(name="two")
    await one.join()
    await two.join()
    one.close(), two.close()
    admin.execute(
        "update clawmode.cm_nodes set dead = null, lease = '1s', every = '0.1s',"
        " beat = clock_timestamp() - interval '1 minute'"
    )
    tick = "select o_living, o_died from clawmode.cm_tick(1, true, '{}')"
    assert admin.execute(tick).fetchone() == (True, [])
    assert admin.execute(tick).fetchone() == (True, [])
    admin.execute("update clawmode.cm_nodes set back = back - interval '1 minute' where id = 1")
    assert admin.execute(tick).fetchone() == (True, [2])
    second = "select o_living from clawmode.cm_tick(2, true, '{}')"
    assert admin.execute(second).fetchone() == (False,)


async def test_calls_of_a_run_that_left_are_free_though_its_node_lives(
    opening: Opening,
) -> None:
    one, two = opening(), opening()
    me, mine, you = await one.join(), await one.join(), await two.join()
    await one.park(cell(me, "queued"), me, 9, again=False)
    await one.leave(me)
    claimed = await two.claim("cm_1", MINE, you)
    assert isinstance(claimed, StoredCell)
    assert not await two.alive(claimed.calls[0].owner)
    assert await two.adopt("cm_1", claimed.calls[0], you, claimed.fence)
    assert await two.alive(mine)


# ---- Keys ----


@pytest.mark.covers("PG-9")
async def test_a_node_without_the_key_of_a_living_node_does_not_start(opening: Opening) -> None:
    old = opening(name="old", keys=KeyRing([ONE]))
    await old.join()
    with pytest.raises(ConfigurationError, match="old"):
        await opening(keys=KeyRing([TWO])).join()
    with pytest.raises(ConfigurationError, match="old"):
        await opening(keys=KeyRing([TWO, ONE])).join()  # the old one could not read what it seals
    await opening(keys=KeyRing([ONE, TWO])).join()
    old.close()
    await opening(keys=KeyRing([TWO, ONE])).join()
    with pytest.raises(ConfigurationError):
        await opening(keys=KeyRing([THREE])).join()


@pytest.mark.covers("PG-9")
def test_a_fleet_without_a_key_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(ConfigurationError, match=KEY_VARIABLE):
        PostgresStore("postgresql:///x")


# ---- Wakes ----


@pytest.mark.covers("PG-10")
async def test_a_reply_wakes_the_waiter_on_another_node(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    makes, waits = opening(), opening()
    me, you = await makes.join(), await waits.join()
    await makes.park(cell(me, "running", "running"), me, 9, again=False)
    await waits.claim("cm_1", MINE, you)
    await until(lambda: waits.bus.poll == 5.0)
    for number in (1, 2):
        woken = anyio.Event()
        with waits.bus.watch("cm_1", woken.set), anyio.fail_after(5):
            assert await makes.settle("cm_1", number, me, b"reply", 99) == "kept"
            await woken.wait()


@pytest.mark.covers("PG-10")
async def test_a_wake_that_comes_just_before_the_wait_is_not_lost(opening: Opening) -> None:
    store, woken, again = opening(), anyio.Event(), anyio.Event()
    store._members.bus.deliver("cm_1,cm_2")
    with store.bus.watch("cm_1", woken.set), anyio.fail_after(5):
        await woken.wait()
    with store.bus.watch("cm_1", again.set):
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
    assert not again.is_set(), "it was for one"


@pytest.mark.covers("PG-10")
async def test_a_listener_that_lost_its_session_wakes_all_waiters(
    opening: Opening, admin: Admin
) -> None:
    store, woken = opening(), anyio.Event()
    await store.join()
    await until(lambda: store.bus.poll == 5.0)
    with store.bus.watch("cm_1", woken.set), anyio.fail_after(10):
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'clawmode' and query not like '%pg_terminate%'"
            " and datname = current_database()"
        )
        await woken.wait()
    assert store.deaths == 0


async def test_without_notifications_waiters_look_often(opening: Opening, admin: Admin) -> None:
    store = opening(listen=False)
    await store.join()
    assert store.bus.poll == 0.25
    assert admin.execute("select listens from clawmode.cm_nodes").fetchone() == (False,)
    assert admin.execute(LOCKED).fetchone() == (0,)


@pytest.mark.hostile
def test_notifications_are_short_whatever_cells_are_called() -> None:
    names = {f"cm_{number:032x}" for number in range(500)} | {"a,b", "*", "\ud800", "é" * 200}
    payloads = bus.packed(names)
    assert max(len(payload.encode()) for payload in payloads) < 8000
    found = {name for payload in payloads for name in payload.split(",")}
    assert len(found) == len(names)
    assert bus.ALL not in found
    assert bus.packed({"x" * 10_000}) == [bus.ALL]
    assert bus.packed({str(number) for number in range(5000)}) == [bus.ALL]


async def test_an_owner_that_leaves_while_the_server_is_mute_holds_up_nobody(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opening()
    leaving, staying = await store.join(), await store.join()
    begun, go, held_up = threading.Event(), threading.Event(), list[bool]()
    run = store.connections.run

    def mute(function: str, *args: Any, **options: Any) -> Any:
        if function == "cm_leave":
            begun.set()
            held_up.append(not go.wait(3))
        return run(function, *args, **options)

    monkeypatch.setattr(store.connections, "run", mute)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.leave, leaving)
        await anyio.to_thread.run_sync(begun.wait, 5)
        await store.end("cm_1", MINE, "finished", 0)
        await store.mark("cm_1", 1, staying, "running")  # both looked up the node in this thread
        go.set()
    assert held_up == [False]


@pytest.mark.covers("PG-8")
async def test_a_dead_node_whose_keys_no_longer_fit_computes_and_says_so(
    opening: Opening, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    old = opening(keys=KeyRing([ONE]), name="old")
    async with CodeMode(store=old, context=RunContext(run_id="r")) as code_mode:
        parked = await code_mode.exec("await yield_control(); return 1")
        admin.execute("update clawmode.cm_nodes set dead = clock_timestamp()")
        await until(lambda: old.deaths == 1)
        await opening(keys=KeyRing([TWO, ONE]), name="new").nodes.enter()
        assert (await code_mode.exec("return 6 * 7")).value == 42
        refused = await code_mode.wait(parked.run_id)
        assert (refused.code, STRANGERS in str(refused.error)) == ("snapshot_restore_failed", True)
        assert "new (node 2)" in caplog.text
        admin.execute("update clawmode.cm_nodes set dead = clock_timestamp() where name = 'new'")
        assert (await code_mode.wait(parked.run_id)).value == 1
