"""Stores: what both promise, and what only the one on disk has to survive."""

import inspect
import os
import re
import sqlite3
import stat
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from tests.support.stores import BACKENDS, Clock

from clawmode.code_mode import aborts
from clawmode.code_mode.sqlite_store import SqliteStore
from clawmode.code_mode.stores import (
    Ended,
    Only,
    SnapshotStore,
    StoredCall,
    StoredCell,
    StoredReply,
)
from clawmode.context import Scope
from clawmode.exceptions import Aborted, AbortUnconfirmed, SnapshotTooLarge, StoreUnavailable

pytestmark = pytest.mark.anyio

MINE = Scope("a", "s", "k", "r")
OTHERS = [Scope("x", "s", "k", "r"), Scope("a", "x", "k", "r"), Scope("a", "s", "", "r")]
Making: TypeAlias = Callable[[Clock], SnapshotStore]


@pytest.fixture(params=list(BACKENDS))
def making(request: pytest.FixtureRequest, tmp_path: Path) -> Making:
    return lambda clock: BACKENDS[request.param](tmp_path, clock)


@pytest.fixture
def store(making: Making) -> SnapshotStore:
    return making(lambda: 1000.0)


def cell(
    name: str = "cm_1",
    scope: Scope = MINE,
    *calls: StoredCall,
    replies: tuple[StoredReply, ...] = (),
    ttl: float = 60.0,
    **more: Any,
) -> StoredCell:
    return StoredCell(
        id=name,
        scope=scope,
        ttl=ttl,
        record=b"record",
        snapshot=b"snapshot",
        calls=calls,
        replies=replies,
        mark=os.urandom(8),
        **more,
    )


async def claim(store: SnapshotStore, owner: str, name: str = "cm_1") -> StoredCell:
    claimed = await store.claim(name, MINE, owner)
    assert isinstance(claimed, StoredCell), claimed
    return claimed


async def take(
    store: SnapshotStore, owner: str, name: str = "cm_1", *, keep: bool = False
) -> StoredCell:
    seen = await claim(store, owner, name)
    mark = os.urandom(8)
    taken = await store.take(name, owner, seen.fence, seen=seen.mark, mark=mark, keep=keep)
    assert taken is not None
    return taken


async def test_a_parked_cell_comes_back_whole_and_to_one(store: SnapshotStore) -> None:
    me, you = await store.join(), await store.join()
    call = StoredCall(1, me, "running", b"body")
    replies = StoredReply(2, b"r2"), StoredReply(3, b"r3")
    parked = cell("cm_1", MINE, call, replies=replies, image=b"image", ledger=b"ledger")
    await store.park(parked, me, 9, again=False)
    claimed = await claim(store, me)
    assert (claimed.record, claimed.snapshot, claimed.calls) == (b"record", b"", (call,))
    seen = claimed.mark
    assert await store.take("cm_1", you, claimed.fence, seen=seen, mark=b"new") is None
    assert await store.take("cm_1", me, claimed.fence, seen=b"other", mark=b"new") is None
    taken = await store.take("cm_1", me, claimed.fence, seen=seen, mark=b"new")
    assert taken == replace(parked, fence=claimed.fence)
    assert await store.claim("cm_1", MINE, you) == "busy"


@pytest.mark.covers("WA-2")
async def test_a_cell_is_claimed_by_one_at_a_time(store: SnapshotStore) -> None:
    me, you = await store.join(), await store.join()
    await store.park(cell(), me, 9, again=False)
    void = await claim(store, me)
    assert await store.claim("cm_1", MINE, you) == "busy"
    mine = await claim(store, me)  # which voids the first claim
    assert mine.fence > void.fence
    assert await store.take("cm_1", you, mine.fence, seen=mine.mark) is None
    await store.release("cm_1", you, mine.fence)
    await store.release("cm_1", me, void.fence)
    assert await store.claim("cm_1", MINE, you) == "busy"
    await store.release("cm_1", me, mine.fence)
    assert (await claim(store, you)).fence > mine.fence


@pytest.mark.covers("WA-1")
@pytest.mark.parametrize("scope", OTHERS)
async def test_a_stranger_learns_nothing(store: SnapshotStore, scope: Scope) -> None:
    me = await store.join()
    await store.park(cell(), me, 9, again=False)
    assert await store.claim("cm_1", scope, me) == "unknown"
    assert not await store.end("cm_1", scope, "aborted", 0)
    assert await store.cells(scope) == []
    assert await store.end_all(scope) == {}
    assert [known.id for known in await store.cells(MINE)] == ["cm_1"]
    assert await store.end("cm_1", MINE, "finished", 0, b"ledger")
    assert await store.claim("cm_1", scope, me) == "unknown"
    assert await store.ended("cm_1", scope) is None
    assert await store.ended("cm_1", MINE) == Ended("finished", b"ledger")
    assert await store.claim("cm_1", MINE, me) == "finished"


async def test_some_cells_can_be_listed(store: SnapshotStore) -> None:
    me = await store.join()
    for name, scope in (("cm_1", MINE), ("cm_2", OTHERS[0]), ("cm_3", Scope("a", "s", "k2", "r2"))):
        await store.park(cell(name, scope), me, 9, again=False)

    async def names(*given: Any, **more: str) -> set[str]:
        return {known.id for known in await store.cells(*given, only=Only(**more))}

    assert await names() == {"cm_1", "cm_2", "cm_3"}
    assert await names(cell_id="cm_2") == {"cm_2"}
    assert await names(session_key="k") == {"cm_1", "cm_2"}
    assert await names(run_id="r2") == {"cm_3"}
    assert await names(session_key="k", run_id="r2") == set()
    assert await names(MINE, session_key="k") == {"cm_1"}
    assert await names(cell_id="x" * 10_000) == set()
    assert len(await store.cells(limit=1, only=Only(session_key="k"))) == 1


@pytest.mark.covers("WA-1")
async def test_expired_and_ended_are_kept_apart_from_unknown(making: Making) -> None:
    now = 1000.0
    store = making(lambda: now)
    me = await store.join()
    for name in ("cm_1", "cm_2", "cm_3"):
        await store.park(cell(name), me, 9, again=False)
    await store.end("cm_1", MINE, "finished", 0)
    await store.end("cm_2", MINE, "aborted", 0)
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
    fence = (await claim(store, me)).fence
    now += 59
    assert await store.progress("cm_1") is not None, "it expired while somebody waited for it"
    await store.release("cm_1", me, fence)
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
    await take(store, me)
    assert await store.room(2), "a cell that runs is not parked"


@pytest.mark.covers("WA-5")
async def test_replies_wait_in_order_up_to_a_limit(store: SnapshotStore) -> None:
    me = await store.join()
    calls = [StoredCall(number, me, "running", b"") for number in (1, 2, 3)]
    await store.park(cell("cm_1", MINE, *calls), me, 9, again=False)
    assert await store.settle("cm_1", 3, me, b"333", 7) == "kept"
    assert await store.settle("cm_1", 1, me, b"111", 7) == "kept"
    assert await store.settle("cm_1", 2, me, b"222", 7) == "full"
    assert await store.settle("cm_1", 2, "x", b"2", 7) == "gone"
    assert await store.settle("cm_1", 3, me, b"3", 7) == "gone"
    assert await store.settle("cm_2", 1, me, b"1", 7) == "gone"
    progress = await store.progress("cm_1")
    assert progress is not None
    assert (progress.calls, progress.replies) == ((calls[1],), 2)
    assert (await take(store, me)).replies == (StoredReply(3, b"333"), StoredReply(1, b"111"))


@pytest.mark.covers("WA-11")
async def test_calls_of_others_continue_while_a_cell_runs_here(store: SnapshotStore) -> None:
    me, you = await store.join(), await store.join()
    calls = StoredCall(1, me, "running", b"1"), StoredCall(2, me, "running", b"2")
    await store.park(cell("cm_1", MINE, *calls), me, 9, again=False)
    fence = (await take(store, you)).fence
    assert await store.drain("cm_1", you, fence) == ()
    assert await store.settle("cm_1", 1, me, b"one", 99) == "kept"
    assert await store.drain("cm_1", you, fence, keep=True) == (StoredReply(1, b"one"),)
    assert await store.drain("cm_1", you, fence) == (StoredReply(1, b"one"),)
    assert await store.drain("cm_1", you, fence, [1]) == ()
    assert await store.drain("cm_1", you, fence) == (), "what was acknowledged is gone"
    again = cell("cm_1", MINE, StoredCall(7, you, "queued", b""), fence=fence)
    await store.park(again, you, 9, again=True)
    progress = await store.progress("cm_1")
    assert progress is not None
    assert [(call.id, call.owner) for call in progress.calls] == [(2, me), (7, you)]


@pytest.mark.covers("FW-6")
async def test_a_call_of_a_living_owner_is_adopted_only_in_the_state_that_was_seen(
    store: SnapshotStore,
) -> None:
    me, you = await store.join(), await store.join()
    call = StoredCall(1, me, "approval", b"")
    await store.park(cell("cm_1", MINE, call), me, 9, again=False)
    fence = (await claim(store, you)).fence
    assert await store.mark("cm_1", 1, me, "running")
    assert not await store.adopt("cm_1", call, you, fence)  # the person's answer came meanwhile
    assert await store.mark("cm_1", 1, me, "approval")
    assert await store.adopt("cm_1", call, you, fence)
    assert not await store.mark("cm_1", 1, me, "running")


@pytest.mark.covers("WA-11")
async def test_a_call_is_adopted_by_one(store: SnapshotStore) -> None:
    me, you = await store.join(), await store.join()
    call = StoredCall(1, me, "approval", b"")
    await store.park(cell("cm_1", MINE, call), me, 9, again=False)
    await store.leave(me)
    assert not await store.alive(me)
    fence = (await claim(store, you)).fence
    assert not await store.adopt("cm_1", replace(call, state="running"), you, fence)
    assert not await store.adopt("cm_1", call, me, fence)
    assert await store.adopt("cm_1", call, you, fence)
    assert not await store.adopt("cm_1", call, me, fence)
    assert not await store.mark("cm_1", 1, me, "running")
    assert not await store.mark("cm_9", 1, you, "running")


async def test_a_cell_that_ran_when_its_process_died_is_lost(store: SnapshotStore) -> None:
    me, you = await store.join(), await store.join()
    await store.park(cell(), me, 9, again=False)
    await take(store, me)
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
    assert await store.settle("cm_1", 1, me, b"late", 99) == "gone"


async def test_operators_see_who_has_which_cell_and_for_how_long(making: Making) -> None:
    now = 1000.0
    store = making(lambda: now)
    me, gone = await store.join(), await store.join()
    for name, owner in (("cm_1", ""), ("cm_2", me), ("cm_3", me), ("cm_4", gone), ("cm_5", gone)):
        await store.park(cell(name), me, 9, again=False)
        if owner:
            await claim(store, owner, name)
    await take(store, me, "cm_3")
    await take(store, gone, "cm_4")
    await store.checkpoint(cell("cm_6"), gone, again=False)
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
        "cm_6": "parked",
    }
    assert (found["cm_1"].scope, found["cm_1"].age, found["cm_1"].left) == (MINE, 10, 50)
    now = 1061.0
    assert "cm_1" not in {known.id for known in await store.cells()}


@pytest.mark.covers("DU-12")
async def test_parked_cells_are_counted_and_lists_are_bounded(making: Making) -> None:
    now = 1000.0
    store = making(lambda: now)
    me = await store.join()
    assert (await store.count_parked(), await store.cells(limit=3)) == (0, [])
    other_run = Scope("a", "s", "k", "r2")
    for number in range(8):
        now += 1
        name = f"cm_{7 - number}"  # the ids are in another order than the times
        await store.park(cell(name, other_run if number == 4 else MINE), me, 99, again=False)
    await claim(store, me, "cm_7")
    assert await store.count_parked() == 8, "a `wait` does not change it"
    await take(store, me, "cm_6")
    assert await store.count_parked() == 7
    listed = [known.id for known in await store.cells(limit=3)]
    assert listed == ["cm_7", "cm_6", "cm_5"], "those that expire first"
    assert [known.id for known in await store.cells(MINE, 6)] == [
        f"cm_{n}" for n in (7, 6, 5, 4, 2, 1)
    ]
    assert len(await store.cells(MINE)) == 7
    assert len(await store.cells(limit=0)) == 0
    assert len(await store.cells(limit=100)) == 8
    now = 1064.5
    assert await store.count_parked() == 5, "two have expired; a pending `wait` keeps one"


async def test_a_cell_that_was_ended_while_it_ran_cannot_be_parked_again(
    store: SnapshotStore,
) -> None:
    me = await store.join()
    await store.park(cell(), me, 9, again=False)
    fence = (await take(store, me)).fence
    await store.end_all(MINE)
    assert await store.drain("cm_1", me, fence) is None
    for again in (True, False):
        with pytest.raises(Aborted):
            await store.park(cell(fence=fence), me, 9, again=again)
        with pytest.raises(Aborted):
            await store.checkpoint(cell(fence=fence), me, again=again)


async def test_tombstones_are_bounded(making: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawmode.code_mode.memory_store.MAX_TOMBSTONES", 3)
    monkeypatch.setattr("clawmode.code_mode.sqlite_tables.MAX_TOMBSTONES", 3)
    store = making(lambda: 1000.0)
    me = await store.join()
    for number in range(5):
        await store.park(cell(f"cm_{number}"), me, 9, again=False)
        await store.end(f"cm_{number}", MINE, "finished", 0)
    ends = [await store.claim(f"cm_{number}", MINE, me) for number in range(5)]
    assert ends == ["unknown", "unknown", "finished", "finished", "finished"]


# ---- Checkpoints, fences and repetitions ----


@pytest.mark.covers("DU-1")
async def test_a_cell_whose_owner_died_continues_from_its_checkpoint(store: SnapshotStore) -> None:
    me, you = await store.join(), await store.join()
    intent = StoredCall(1, me, "running", b"body")
    first = cell("cm_1", MINE, intent, ledger=b"calls")
    fence = await store.checkpoint(first, me, again=False)
    assert await store.claim("cm_1", MINE, you) == "busy"
    second = cell(
        "cm_1", MINE, replace(intent, id=2), fence=fence, replies=(StoredReply(3, b"three"),)
    )
    assert await store.settle("cm_1", 1, me, b"one", 99) == "kept"
    assert await store.checkpoint(second, me, again=True, have=[1]) == fence + 1
    await store.leave(me)
    claimed = await claim(store, you)
    assert (claimed.calls, claimed.mark) == ((replace(intent, id=2),), second.mark)
    taken = await take(store, you, keep=True)
    assert (taken.snapshot, taken.replies) == (b"snapshot", (StoredReply(3, b"three"),))
    await store.leave(you)
    third = await store.join()
    assert (await take(store, third)).replies == taken.replies, "nothing was deleted"
    await store.leave(third)
    assert await store.claim("cm_1", MINE, await store.join()) == "lost"


@pytest.mark.covers("DU-5")
@pytest.mark.parametrize("end", ["finished", "expired", "aborted", "lost"])
async def test_the_calls_of_a_cell_outlive_it(making: Making, end: str) -> None:
    now = 1000.0
    store = making(lambda: now)
    me = await store.join()
    await store.park(cell(ledger=b"calls"), me, 9, again=False)
    kept = b"calls"
    if end == "finished":
        kept = b"more calls"
        assert await store.end("cm_1", MINE, "finished", (await claim(store, me)).fence, kept)
    elif end == "expired":
        now += 61
    elif end == "aborted":
        assert await store.abort("cm_1", MINE) == "ended"
    else:
        await take(store, me)
        await store.leave(me)
        assert await store.claim("cm_1", MINE, await store.join()) == "lost"
    assert await store.ended("cm_1", MINE) == Ended(end, kept)  # type: ignore[arg-type]


@pytest.mark.covers("DU-6")
async def test_a_cell_of_another_build_is_kept_for_it(store: SnapshotStore) -> None:
    me = await store.join()
    await store.park(cell(image=b"theirs"), me, 9, again=False)
    assert await store.claim("cm_1", MINE, me, [b"ours", b"older"]) == "elsewhere"
    assert isinstance(await store.claim("cm_1", MINE, me, [b"ours", b"theirs"]), StoredCell)
    await store.park(cell("cm_2"), me, 9, again=False)
    assert isinstance(await store.claim("cm_2", MINE, me, [b"ours"]), StoredCell)


@pytest.mark.covers("DU-7")
async def test_timers_go_by_the_clock_of_the_store(making: Making) -> None:
    now = 1000.0
    store = making(lambda: now)
    me = await store.join()
    await store.park(cell(due_in=50.0), me, 9, again=False)
    now += 20
    claimed = await claim(store, me)
    assert (claimed.due_in, claimed.age) == (30, 20)
    now += 40
    taken = await store.take("cm_1", me, claimed.fence, seen=claimed.mark, keep=True)
    assert taken is not None
    assert (taken.due_in, taken.age) == (-10, 60)
    await store.checkpoint(cell(fence=taken.fence), me, again=True)
    assert (await claim(store, me)).due_in is None


async def observe(store: SnapshotStore) -> list[Any]:
    """Everything that can be read about the cell without changing it."""
    progress, ended = await store.progress("cm_1"), await store.ended("cm_1", MINE)
    return [progress, ended, await store.cells(), await store.gone(["cm_1"])]


Write: TypeAlias = Callable[[SnapshotStore, str, StoredCell], Awaitable[Any]]
WRITES: dict[str, Write] = {
    "park": lambda store, owner, seen: store.park(
        replace(seen, mark=b"w", record=b"zombie"), owner, 9, again=True, have=[2]
    ),
    "checkpoint": lambda store, owner, seen: store.checkpoint(
        replace(seen, mark=b"w", record=b"zombie"), owner, again=True, have=[2]
    ),
    "release": lambda store, owner, seen: store.release("cm_1", owner, seen.fence),
    "take": lambda store, owner, seen: store.take(
        "cm_1", owner, seen.fence, seen=seen.mark, mark=b"w"
    ),
    "drain": lambda store, owner, seen: store.drain("cm_1", owner, seen.fence, [2]),
    "mark": lambda store, owner, seen: store.mark("cm_1", 1, owner, "running"),
    "adopt": lambda store, owner, seen: store.adopt(
        "cm_1", StoredCall(3, "dead", "queued", b""), owner, seen.fence
    ),
    "settle": lambda store, owner, seen: store.settle("cm_1", 1, owner, b"reply", 99),
    "end": lambda store, owner, seen: store.end("cm_1", MINE, "finished", seen.fence, b"l"),
    "abort": lambda store, owner, seen: store.abort("cm_1", MINE, owner, seen.fence),
}
"""The methods that only the owner of a cell or of a call may use, with `seen` as the cell that the
owner got."""

ENTITLED = ("leave", "alive", "claim", "end_all")
"""Methods with an owner that has nothing yet, or that speaks for itself."""


def test_every_method_of_an_owner_is_tested_with_an_old_fence() -> None:
    found = {
        name
        for name, method in vars(SnapshotStore).items()
        if inspect.isfunction(method)
        and not {"owner", "fence"}.isdisjoint(inspect.signature(method).parameters)
    }
    assert found - set(ENTITLED) == set(WRITES)


async def begun(store: SnapshotStore, owner: str, *, takes: bool) -> StoredCell:
    """A cell with open calls and a reply, which `owner` has claimed or taken."""
    calls = StoredCall(1, owner, "queued", b""), StoredCall(3, "dead", "queued", b"")
    await store.park(
        cell("cm_1", MINE, *calls, replies=(StoredReply(2, b"two"),)), owner, 9, again=False
    )
    return await take(store, owner, keep=True) if takes else await claim(store, owner)


@pytest.mark.covers("DU-2")
@pytest.mark.parametrize("name", list(WRITES))
@pytest.mark.parametrize("takes", [True, False])
async def test_a_write_with_an_old_fence_changes_nothing(
    store: SnapshotStore, name: str, takes: bool
) -> None:
    zombie, you = await store.join(), await store.join()
    old = await begun(store, zombie, takes=takes)
    await store.leave(zombie)
    mine = await claim(store, you)
    for call in mine.calls:
        assert await store.adopt("cm_1", call, you, mine.fence)
    before = await observe(store)
    for owner in (zombie, you):  # with the name of the owner, too, an old fence is worth nothing
        if owner == zombie or name not in ("mark", "settle"):
            try:
                answer = await WRITES[name](store, owner, old)
            except Aborted:
                answer = None
            assert answer in (None, False, "gone", "ended")
    assert await observe(store) == before
    taken = await store.take("cm_1", you, mine.fence, seen=mine.mark, keep=True)
    calls = tuple(replace(call, owner=you) for call in mine.calls)
    replies = (StoredReply(2, b"two"),)
    assert taken == replace(mine, snapshot=b"snapshot", replies=replies, calls=calls)


@pytest.mark.covers("DU-3")
@pytest.mark.parametrize("name", [name for name in WRITES if name != "abort"])
async def test_the_same_call_again_says_the_same_and_changes_nothing_more(
    store: SnapshotStore, name: str
) -> None:
    me = await store.join()
    seen = await begun(store, me, takes=name in ("park", "checkpoint", "drain", "settle"))
    first = await WRITES[name](store, me, seen)
    after = await observe(store)
    assert await WRITES[name](store, me, seen) == first
    assert first not in (False, "gone", "full")
    assert await observe(store) == after


@pytest.mark.covers("DU-2")
async def test_a_checkpoint_that_arrives_late_does_not_replace_a_newer_one(
    store: SnapshotStore,
) -> None:
    """Its sender gave up waiting for the answer; the network kept the statement."""
    me, you = await store.join(), await store.join()
    fence = await store.checkpoint(cell(), me, again=False)
    late = cell("cm_1", MINE, StoredCall(1, me, "running", b""), fence=fence)
    fence = await store.checkpoint(late, me, again=True)
    newer = cell("cm_1", MINE, StoredCall(2, me, "running", b""), fence=fence)
    await store.checkpoint(newer, me, again=True)
    with pytest.raises(Aborted):
        await store.checkpoint(late, me, again=True)
    await store.leave(me)
    claimed = await claim(store, you)
    assert (claimed.mark, claimed.calls) == (newer.mark, newer.calls)


@pytest.mark.covers("DU-3")
async def test_a_park_whose_answer_was_lost_is_not_undone_by_its_repetition(
    store: SnapshotStore,
) -> None:
    me, you = await store.join(), await store.join()
    await store.park(cell(), me, 9, again=False)
    parked, going_on = cell("cm_3"), cell("cm_4")
    await store.park(parked, me, 9, again=False)
    mine = await claim(store, you, "cm_3")
    await store.park(parked, me, 9, again=False)
    assert await store.claim("cm_3", MINE, me) == "busy", "the claim of the other still counts"
    assert await store.take("cm_3", you, mine.fence, seen=mine.mark, keep=True) is not None
    fence = await store.checkpoint(going_on, me, again=False)
    assert await store.checkpoint(going_on, me, again=False) == fence
    await store.leave(me)
    await claim(store, you, "cm_4")
    with pytest.raises(Aborted):  # a zombie must not learn that it may go on
        await store.checkpoint(going_on, me, again=False)
    for other in ("cm_1", "cm_3"):
        with pytest.raises(Aborted):
            await store.park(cell(other), me, 9, again=False)  # another cell with the same id


# ---- On disk ----


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


async def test_two_objects_share_a_folder(folder: Path) -> None:
    first, second = SqliteStore(folder), SqliteStore(folder)
    me, you = await first.join(), await second.join()
    await first.park(cell(), me, 9, again=False)
    claimed = await claim(second, you)
    assert await first.claim("cm_1", MINE, me) == "busy"
    assert first.keys.current == second.keys.current
    assert await second.alive(me)
    first.close()
    assert not await second.alive(me)
    assert await second.take("cm_1", you, claimed.fence, seen=claimed.mark) is not None


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
        database.execute("pragma user_version = 3")
    database.close()
    before = (folder / "cells.sqlite").read_bytes()
    with pytest.raises(StoreUnavailable, match="newer clawmode"):
        await SqliteStore(folder).progress("cm_1")
    assert (folder / "cells.sqlite").read_bytes() == before


VERSION_1 = """
create table cells (
    id text primary key,
    agent text not null, session text not null, session_key text not null, run text not null,
    running integer not null default 0,
    holder text not null default '',
    ttl real not null, expires real not null,
    record blob not null, snapshot blob not null
);
create index cells_by_scope on cells (agent, session, session_key, run);
create index cells_by_expiry on cells (holder, expires);
create index cells_by_state on cells (running);
create table calls (
    cell text not null, id integer not null,
    owner text not null, state text not null, body blob not null,
    primary key (cell, id)
);
create table replies (
    number integer primary key autoincrement,
    cell text not null, body blob not null
);
create index replies_by_cell on replies (cell);
create table ended (
    number integer primary key autoincrement,
    id text not null unique,
    agent text not null, session text not null, session_key text not null, run text not null,
    end text not null
);
insert into cells values ('cm_1', 'a', 's', 'k', 'r', 0, '', 60, 1e12, x'01', x'02');
insert into cells values ('cm_2', 'a', 's', 'k', 'r', 1, 'dead', 60, 1e12, x'01', x'');
insert into calls values ('cm_1', 1, 'dead', 'running', x'03');
insert into replies (cell, body) values ('cm_1', x'04'), ('cm_1', x'05');
insert into ended (id, agent, session, session_key, run, end)
    values ('cm_3', 'a', 's', 'k', 'r', 'aborted');
pragma user_version = 1;
"""


@pytest.mark.covers("DU-8")
async def test_a_file_of_version_1_is_upgraded_with_its_cells(folder: Path) -> None:
    os.mkdir(folder)
    old = sqlite3.connect(folder / "cells.sqlite", isolation_level=None)
    old.executescript(VERSION_1)
    store, later = SqliteStore(folder), SqliteStore(folder)
    me = await store.join()
    assert await later.progress("cm_1") is not None
    # A process of the earlier build still has the file open.
    old.execute("insert into replies (cell, body) values ('cm_1', x'06')")
    old.close()
    taken = await take(store, me)
    assert (taken.snapshot, taken.fence, taken.due_in, taken.image) == (b"\2", 1, None, b"")
    assert [reply.body for reply in taken.replies] == [b"\4", b"\5", b"\6"]
    have = [reply.call for reply in taken.replies]
    for seen in (have[:1], ()):
        assert await store.drain("cm_1", me, taken.fence, seen) == taken.replies[1:]
    await store.park(cell(fence=taken.fence), me, 9, again=True, have=have)
    assert (await take(store, me)).replies == ()
    assert await store.claim("cm_2", MINE, me) == "lost"
    assert await store.ended("cm_3", MINE) == Ended("aborted", b"")


async def test_a_claim_does_not_write_the_snapshot_again(folder: Path) -> None:
    store = SqliteStore(folder)
    me = await store.join()
    await store.park(replace(cell(), snapshot=bytes(1 << 20)), me, 9, again=False)
    log = folder / "cells.sqlite-wal"
    before = log.stat().st_size
    assert before > 1 << 20
    assert len((await take(store, me)).snapshot) == 1 << 20
    assert await store.end("cm_1", MINE, "finished", 1)
    assert log.stat().st_size - before < 1 << 17


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
    monkeypatch.setattr(aborts, "ABORT_SECONDS", 0.05)
    runs, asks = await store.join(), await store.join()
    await store.park(cell(), runs, 9, again=False)
    fence = (await take(store, runs)).fence
    with pytest.raises(AbortUnconfirmed, match="has not confirmed"):
        await aborts.abort_cell(store, "cm_1", MINE, asks)
    assert await store.gone(["cm_1"]) == {"cm_1"}
    assert await store.claim("cm_1", MINE, asks) == "aborted"
    with pytest.raises(Aborted):
        await store.park(cell(fence=fence), runs, 9, again=True)
    assert await store.abort("cm_1", MINE, runs, fence) == "ended"
    assert await store.cells() == []


@pytest.mark.covers("DU-13")
async def test_giving_up_what_another_owner_had_changes_nothing(store: SnapshotStore) -> None:
    """Even if nobody has claimed the cell since: its node was declared dead, and is a new one."""
    dead, new, heir = await store.join(), await store.join(), await store.join()
    fence = await store.checkpoint(cell(), dead, again=False)
    await store.leave(dead)
    before = await observe(store)
    assert await store.abort("cm_1", MINE, new, fence) == "ended"
    assert await observe(store) == before
    assert (await claim(store, heir)).fence == fence + 1


@pytest.mark.covers("DU-14")
async def test_a_take_whose_answer_was_lost_can_be_undone(store: SnapshotStore) -> None:
    one, two = await store.join(), await store.join()
    await store.park(cell(), one, 9, again=False)
    taken = await take(store, one, keep=True)
    assert await store.claim("cm_1", MINE, two) == "busy"
    await store.release("cm_1", one, taken.fence)
    assert await store.count_parked() == 1
    assert (await claim(store, two)).fence == taken.fence + 1


@pytest.mark.covers("DU-14")
@pytest.mark.parametrize("keep", [False, True])
async def test_a_cell_that_runs_is_taken_again_only_in_the_same_way(
    store: SnapshotStore, keep: bool
) -> None:
    """A take that keeps the snapshot is no repetition of one that does not, whatever its mark."""
    owner = await store.join()
    await store.park(cell(), owner, 9, again=False)
    found = await claim(store, owner)
    place = ("cm_1", owner, found.fence)
    first = await store.take(*place, seen=found.mark, mark=b"new", keep=keep)
    assert await store.take(*place, seen=found.mark, mark=b"new", keep=keep) == first
    before = await observe(store)
    for seen in (found.mark, b"new"):
        assert await store.take(*place, seen=seen, mark=seen, keep=not keep) is None
    assert await observe(store) == before


@pytest.mark.covers("B-8")
async def test_an_abort_does_not_wait_for_the_dead(store: SnapshotStore) -> None:
    runs, asks = await store.join(), await store.join()
    await store.park(cell(), runs, 9, again=False)
    await take(store, runs)
    await store.leave(runs)
    assert await aborts.abort_cell(store, "cm_1", MINE, asks)
    assert not await aborts.abort_cell(store, "cm_1", MINE, asks)


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
