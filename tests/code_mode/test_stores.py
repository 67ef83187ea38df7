"""Stores: what both promise, and what only the one on disk has to survive."""

import os
import re
import sqlite3
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import anyio
import pytest

from clawmode.code_mode import stores
from clawmode.code_mode.memory_store import MemoryStore
from clawmode.code_mode.sqlite_store import SqliteStore
from clawmode.code_mode.stores import SnapshotStore, StoredCall, StoredCell
from clawmode.context import Scope
from clawmode.exceptions import Aborted, AbortUnconfirmed, SnapshotTooLarge, StoreUnavailable

pytestmark = pytest.mark.anyio

MINE = Scope("a", "s", "k", "r")
OTHERS = [Scope("x", "s", "k", "r"), Scope("a", "x", "k", "r"), Scope("a", "s", "", "r")]
Clock: TypeAlias = Callable[[], float]
Making: TypeAlias = Callable[[Clock], SnapshotStore]


@pytest.fixture(params=["memory", "sqlite"])
def making(request: pytest.FixtureRequest, tmp_path: Path) -> Making:
    if request.param == "memory":
        return lambda clock: MemoryStore(clock=clock)
    return lambda clock: SqliteStore(tmp_path / "state", clock=clock)


@pytest.fixture
def store(making: Making) -> SnapshotStore:
    return making(lambda: 1000.0)


def cell(
    name: str = "cm_1",
    scope: Scope = MINE,
    *calls: StoredCall,
    replies: tuple[bytes, ...] = (),
    ttl: float = 60.0,
) -> StoredCell:
    return StoredCell(
        id=name,
        scope=scope,
        ttl=ttl,
        record=b"record",
        snapshot=b"snapshot",
        calls=calls,
        replies=replies,
    )


async def test_a_parked_cell_comes_back_whole_and_once(store: SnapshotStore) -> None:
    me = await store.join()
    call = StoredCall(1, me, "running", b"body")
    await store.park(cell("cm_1", MINE, call, replies=(b"r1", b"r2")), me, 9, again=False)
    claimed = await store.claim("cm_1", MINE, me)
    assert isinstance(claimed, StoredCell)
    assert (claimed.record, claimed.snapshot, claimed.calls) == (b"record", b"", (call,))
    assert await store.take("cm_1", me) == cell("cm_1", MINE, call, replies=(b"r1", b"r2"))
    assert await store.take("cm_1", me) is None


@pytest.mark.covers("WA-2")
async def test_a_cell_is_claimed_by_one_at_a_time(store: SnapshotStore) -> None:
    me, you = await store.join(), await store.join()
    await store.park(cell(), me, 9, again=False)
    assert isinstance(await store.claim("cm_1", MINE, me), StoredCell)
    assert await store.claim("cm_1", MINE, you) == "busy"
    assert isinstance(await store.claim("cm_1", MINE, me), StoredCell), "its own claim is void"
    assert await store.take("cm_1", you) is None
    await store.release("cm_1", you)
    assert await store.claim("cm_1", MINE, you) == "busy"
    await store.release("cm_1", me)
    assert isinstance(await store.claim("cm_1", MINE, you), StoredCell)


@pytest.mark.covers("WA-1")
@pytest.mark.parametrize("scope", OTHERS)
async def test_a_stranger_learns_nothing(store: SnapshotStore, scope: Scope) -> None:
    me = await store.join()
    await store.park(cell(), me, 9, again=False)
    assert await store.claim("cm_1", scope, me) == "unknown"
    assert not await store.end("cm_1", scope, "aborted")
    assert await store.end_all(scope) == {}
    assert await store.end("cm_1", MINE, "finished")
    assert await store.claim("cm_1", scope, me) == "unknown"
    assert await store.claim("cm_1", MINE, me) == "finished"


@pytest.mark.covers("WA-1")
async def test_expired_and_ended_are_kept_apart_from_unknown(making: Making) -> None:
    now = 1000.0
    store = making(lambda: now)
    me = await store.join()
    for name in ("cm_1", "cm_2", "cm_3"):
        await store.park(cell(name), me, 9, again=False)
    await store.end("cm_1", MINE, "finished")
    await store.end("cm_2", MINE, "aborted")
    now += 61
    refusals = [await store.claim(f"cm_{number}", MINE, me) for number in (1, 2, 3, 4)]
    assert refusals == ["finished", "aborted", "expired", "unknown"]


@pytest.mark.covers("WA-3")
async def test_a_release_gives_new_time(making: Making) -> None:
    now = 1000.0
    store = making(lambda: now)
    me = await store.join()
    await store.park(cell(), me, 9, again=False)
    now += 59
    await store.claim("cm_1", MINE, me)
    now += 59
    assert await store.progress("cm_1") is not None, "it expired while somebody waited for it"
    await store.release("cm_1", me)
    now += 59
    assert isinstance(await store.claim("cm_1", MINE, me), StoredCell)


@pytest.mark.covers("WA-9")
async def test_the_number_of_parked_cells_is_bounded(store: SnapshotStore) -> None:
    me = await store.join()
    for name in ("cm_1", "cm_2"):
        assert await store.room(2)
        await store.park(cell(name), me, 2, again=False)
    assert not await store.room(2)
    with pytest.raises(SnapshotTooLarge):
        await store.park(cell("cm_3"), me, 2, again=False)
    await store.claim("cm_1", MINE, me)
    await store.take("cm_1", me)
    assert await store.room(2), "a cell that runs is not parked"


@pytest.mark.covers("WA-5")
async def test_replies_wait_in_order_up_to_a_limit(store: SnapshotStore) -> None:
    me = await store.join()
    calls = [StoredCall(number, me, "running", b"") for number in (1, 2, 3)]
    await store.park(cell("cm_1", MINE, *calls), me, 9, again=False)
    assert await store.settle("cm_1", 3, b"333", 7) == "kept"
    assert await store.settle("cm_1", 1, b"111", 7) == "kept"
    assert await store.settle("cm_1", 2, b"222", 7) == "full"
    assert await store.settle("cm_1", 3, b"3", 7) == "gone"
    assert await store.settle("cm_2", 1, b"1", 7) == "gone"
    progress = await store.progress("cm_1")
    assert progress is not None
    assert (progress.calls, progress.replies) == ((calls[1],), 2)
    await store.claim("cm_1", MINE, me)
    taken = await store.take("cm_1", me)
    assert taken is not None
    assert taken.replies == (b"333", b"111")


@pytest.mark.covers("WA-11")
async def test_calls_of_others_continue_while_a_cell_runs_here(store: SnapshotStore) -> None:
    me, you = await store.join(), await store.join()
    calls = StoredCall(1, me, "running", b"1"), StoredCall(2, me, "running", b"2")
    await store.park(cell("cm_1", MINE, *calls), me, 9, again=False)
    await store.claim("cm_1", MINE, you)
    await store.take("cm_1", you)
    assert await store.drain("cm_1") == ()
    assert await store.settle("cm_1", 1, b"one", 99) == "kept"
    assert await store.drain("cm_1") == (b"one",)
    assert await store.drain("cm_1") == ()
    await store.park(cell("cm_1", MINE, StoredCall(7, you, "queued", b"")), you, 9, again=True)
    progress = await store.progress("cm_1")
    assert progress is not None
    assert [(call.id, call.owner) for call in progress.calls] == [(2, me), (7, you)]


@pytest.mark.covers("WA-11")
async def test_a_call_is_adopted_by_one(store: SnapshotStore) -> None:
    me, you = await store.join(), await store.join()
    call = StoredCall(1, me, "approval", b"")
    await store.park(cell("cm_1", MINE, call), me, 9, again=False)
    assert await store.mark("cm_1", 1, me, "running")
    await store.leave(me)
    assert not await store.alive(me)
    assert await store.adopt("cm_1", call, you)
    assert not await store.adopt("cm_1", call, me)
    assert not await store.mark("cm_1", 1, me, "running")
    assert not await store.mark("cm_9", 1, you, "running")


async def test_a_cell_that_ran_when_its_process_died_is_lost(store: SnapshotStore) -> None:
    me, you = await store.join(), await store.join()
    await store.park(cell(), me, 9, again=False)
    await store.claim("cm_1", MINE, me)
    await store.take("cm_1", me)
    assert await store.claim("cm_1", MINE, you) == "busy"
    await store.leave(me)
    assert await store.claim("cm_1", MINE, you) == "lost"
    assert await store.claim("cm_1", MINE, you) == "lost"


async def test_a_claim_of_a_dead_process_does_not_count(store: SnapshotStore) -> None:
    me, you = await store.join(), await store.join()
    await store.park(cell(), me, 9, again=False)
    await store.claim("cm_1", MINE, me)
    await store.leave(me)
    assert isinstance(await store.claim("cm_1", MINE, you), StoredCell)


@pytest.mark.covers("WA-10")
async def test_the_end_of_a_run_or_session_ends_its_cells(store: SnapshotStore) -> None:
    me = await store.join()
    other_run = Scope("a", "s", "k", "r2")
    for name, scope in (("cm_1", MINE), ("cm_2", other_run), ("cm_3", OTHERS[0])):
        await store.park(cell(name, scope, StoredCall(1, me, "running", b"")), me, 9, again=False)
    assert await store.end_all(MINE, owner=me) == {"cm_1": "ended"}
    assert await store.progress("cm_2") is not None
    assert await store.end_all(MINE, session=True, owner=me) == {"cm_2": "ended"}
    assert await store.progress("cm_3") is not None
    assert await store.claim("cm_1", MINE, me) == "aborted"
    assert await store.settle("cm_1", 1, b"late", 99) == "gone"


async def test_operators_see_who_has_which_cell_and_for_how_long(making: Making) -> None:
    now = 1000.0
    store = making(lambda: now)
    me, gone = await store.join(), await store.join()
    for name, owner in (("cm_1", ""), ("cm_2", me), ("cm_3", me), ("cm_4", gone), ("cm_5", gone)):
        await store.park(cell(name), me, 9, again=False)
        if owner:
            await store.claim(name, MINE, owner)
    await store.take("cm_3", me)
    await store.take("cm_4", gone)
    await store.leave(gone)
    now = 1010.0
    found = {known.id: known for known in await store.cells()}
    states = {name: known.state for name, known in found.items()}
    assert states == {
        "cm_1": "parked",
        "cm_2": "waiting",
        "cm_3": "running",
        "cm_4": "lost",
        "cm_5": "parked",
    }
    assert (found["cm_1"].scope, found["cm_1"].age, found["cm_1"].left) == (MINE, 10, 50)
    now = 1061.0
    assert "cm_1" not in {known.id for known in await store.cells()}


async def test_a_cell_that_was_ended_while_it_ran_cannot_be_parked_again(
    store: SnapshotStore,
) -> None:
    me = await store.join()
    await store.park(cell(), me, 9, again=False)
    await store.claim("cm_1", MINE, me)
    await store.take("cm_1", me)
    await store.end_all(MINE)
    assert await store.drain("cm_1") is None
    with pytest.raises(Aborted):
        await store.park(cell(), me, 9, again=True)


async def test_tombstones_are_bounded(making: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawmode.code_mode.memory_store.MAX_TOMBSTONES", 3)
    monkeypatch.setattr("clawmode.code_mode.sqlite_tables.MAX_TOMBSTONES", 3)
    store = making(lambda: 1000.0)
    me = await store.join()
    for number in range(5):
        await store.park(cell(f"cm_{number}"), me, 9, again=False)
        await store.end(f"cm_{number}", MINE, "finished")
    ends = [await store.claim(f"cm_{number}", MINE, me) for number in range(5)]
    assert ends == ["unknown", "unknown", "finished", "finished", "finished"]


# ---- On disk ----


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


async def test_two_objects_share_a_folder(folder: Path) -> None:
    first, second = SqliteStore(folder), SqliteStore(folder)
    me, you = await first.join(), await second.join()
    await first.park(cell(), me, 9, again=False)
    assert isinstance(await second.claim("cm_1", MINE, you), StoredCell)
    assert await first.claim("cm_1", MINE, me) == "busy"
    assert first.keys.current == second.keys.current
    assert await second.alive(me)
    first.close()
    assert not await second.alive(me)
    assert await second.take("cm_1", you) is not None


async def test_files_are_their_users_only(folder: Path) -> None:
    store = SqliteStore(folder)
    await store.park(cell(), await store.join(), 9, again=False)
    assert store.keys
    assert modes(folder) == {0o600}


def modes(folder: Path) -> set[int]:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}


async def test_a_file_of_a_newer_version_is_left_alone(folder: Path) -> None:
    store = SqliteStore(folder)
    await store.park(cell(), await store.join(), 9, again=False)
    store.close()
    with sqlite3.connect(folder / "cells.sqlite") as database:
        database.execute("pragma user_version = 2")
    database.close()
    before = (folder / "cells.sqlite").read_bytes()
    with pytest.raises(StoreUnavailable, match="newer clawmode"):
        await SqliteStore(folder).progress("cm_1")
    assert (folder / "cells.sqlite").read_bytes() == before


@pytest.mark.parametrize(
    "damage", [b"not a database at all, but long enough" * 99, b"SQLite format 3"]
)
async def test_a_damaged_file_is_an_error_without_its_path(folder: Path, damage: bytes) -> None:
    os.mkdir(folder)
    (folder / "cells.sqlite").write_bytes(damage)
    with pytest.raises(StoreUnavailable, match="damaged") as caught:
        await SqliteStore(folder).join()
    assert str(folder) not in str(caught.value)
    assert (folder / "cells.sqlite").read_bytes() == damage


async def test_a_torn_page_is_an_error(folder: Path) -> None:
    store = SqliteStore(folder)
    me = await store.join()
    for number in range(50):
        await store.park(cell(f"cm_{number}"), me, 99, again=False)
    store.close()
    with (folder / "cells.sqlite").open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(8192))
    with pytest.raises(StoreUnavailable):
        await SqliteStore(folder).join()


async def test_a_held_lock_is_waited_for_and_then_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawmode.code_mode.sqlite_store.LOCK_SECONDS", 0.1)
    store = SqliteStore(folder)
    me = await store.join()
    holder = sqlite3.connect(folder / "cells.sqlite", isolation_level=None)
    holder.execute("begin immediate")
    with pytest.raises(StoreUnavailable, match="locked"):
        await store.park(cell(), me, 9, again=False)
    holder.execute("rollback")
    holder.close()
    await store.park(cell(), me, 9, again=False)


async def test_a_full_disk_is_reported_and_changes_nothing(folder: Path) -> None:
    store = SqliteStore(folder)
    me = await store.join()
    await store.park(cell(), me, 9, again=False)
    assert store._database is not None
    (pages,) = store._database.execute("pragma page_count").fetchone()
    store._database.execute(f"pragma max_page_count = {pages + 2}")
    large = StoredCell(id="cm_2", scope=MINE, ttl=60, record=b"", snapshot=bytes(100_000))
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await store.park(large, me, 9, again=False)
    assert await store.progress("cm_2") is None
    assert isinstance(await store.claim("cm_1", MINE, me), StoredCell)


async def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable):
        await SqliteStore(tmp_path / "file" / "state").join()


async def test_a_clock_that_is_set_back_makes_no_cell_immortal(folder: Path) -> None:
    now = 1_000_000.0
    store = SqliteStore(folder, clock=lambda: now)
    me = await store.join()
    await store.park(cell(), me, 9, again=False)
    now = 1000.0
    assert await store.room(9)
    now += 61
    assert await store.claim("cm_1", MINE, me) == "expired"


async def test_owners_that_died_leave_no_files(folder: Path) -> None:
    program = (
        "import sys, anyio, os; from clawmode.code_mode.sqlite_store import SqliteStore\n"
        "store = SqliteStore(sys.argv[1]); print(anyio.run(store.join), flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = await anyio.run_process([sys.executable, "-c", program, str(folder)], check=False)
    dead = done.stdout.decode().strip()
    assert (folder / "owners" / dead).exists()
    store = SqliteStore(folder)
    assert not await store.alive(dead)
    me = await store.join()
    assert [path.name for path in (folder / "owners").iterdir()] == [me]
    await store.leave(me)
    assert list((folder / "owners").iterdir()) == []


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "..", "0" * 31, "G" * 32])
async def test_an_invalid_owner_name_counts_as_dead(folder: Path, name: str) -> None:
    store = SqliteStore(folder)
    await store.join()
    assert not await store.alive(name)


@pytest.mark.covers("B-8")
async def test_an_unconfirmed_abort_is_reported_and_stays_requested(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "ABORT_SECONDS", 0.05)
    runs, asks = await store.join(), await store.join()
    await store.park(cell(), runs, 9, again=False)
    await store.claim("cm_1", MINE, runs)
    assert await store.take("cm_1", runs) is not None
    with pytest.raises(AbortUnconfirmed, match="has not confirmed"):
        await stores.abort_cell(store, "cm_1", MINE, asks)
    assert await store.gone(["cm_1"]) == {"cm_1"}
    assert await store.claim("cm_1", MINE, asks) == "aborted"
    with pytest.raises(Aborted):
        await store.park(cell(), runs, 9, again=True)
    assert await store.abort("cm_1", MINE, runs) == "ended"
    assert await store.cells() == []


@pytest.mark.covers("B-8")
async def test_an_abort_does_not_wait_for_the_dead(store: SnapshotStore) -> None:
    runs, asks = await store.join(), await store.join()
    await store.park(cell(), runs, 9, again=False)
    await store.claim("cm_1", MINE, runs)
    await store.take("cm_1", runs)
    await store.leave(runs)
    assert await stores.abort_cell(store, "cm_1", MINE, asks)
    assert not await stores.abort_cell(store, "cm_1", MINE, asks)


@pytest.mark.covers("B-8")
async def test_no_call_of_a_cell_begins_after_an_abort_was_asked(store: SnapshotStore) -> None:
    one, two = await store.join(), await store.join()
    calls = (StoredCall(1, one, "running", b""), StoredCall(2, one, "queued", b""))
    await store.park(cell("cm_1", MINE, *calls), one, 9, again=False)
    assert await store.abort("cm_1", MINE, two) == "asked"
    assert not await store.mark("cm_1", 2, one, "running")
    assert await store.progress("cm_1") is None
    assert await store.abort("cm_1", MINE, one) == "ended"


@pytest.mark.parametrize("folder", ["/proc/clawmode", "file/state", "file"])
def test_a_folder_that_cannot_be_used_is_refused_at_once_with_its_name(
    tmp_path: Path, folder: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match=re.escape(folder)) as caught:
        SqliteStore(tmp_path / folder)
    assert "Choose a folder" in str(caught.value)


def test_a_folder_that_cannot_be_written_to_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(StoreUnavailable, match="Permission denied"):
        SqliteStore(tmp_path)
