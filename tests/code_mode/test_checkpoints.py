"""Programs that run when their process dies continue from the last checkpoint.

No effect is doubled, and none is lost without a word.
"""

import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from tests.support.checkpoint_program import WHO, tools_of
from tests.support.waiting import until

from clawmode import CodeMode, CodeModeConfig, Pool, SqliteStore, Tool, tool
from clawmode.code_mode import sqlite_store
from clawmode.code_mode.memory_store import MemoryStore
from clawmode.code_mode.results import CodeModeResult
from clawmode.code_mode.stores import StoredCell
from clawmode.exceptions import StoreUnavailable

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]

SOURCE = """const told = [], attempt = async (call) => {
  try { told.push(await call()) } catch (error) { told.push(error.code) }
};
text("begun");
told.push(await tools.look());
await attempt(() => tools.write({ n: 1 }));
text("half");
await attempt(() => tools.put({ n: 2 }));
await Promise.all([attempt(() => tools.write({ n: 3 })), attempt(() => tools.ponder())]);
return told"""


def reader(folder: Path, pool: Pool, tools: list[Tool] | None = None, **more: Any) -> CodeMode:
    """A run in this process, on the store of the one that died."""
    config = CodeModeConfig(durability="effects", **more)
    tools = tools or tools_of(folder)
    store = SqliteStore(folder / "state")
    return CodeMode(tools=tools, store=store, context=WHO, pool=pool, config=config)


async def spawned(folder: Path, point: str, source: str = SOURCE) -> Process:
    command = [sys.executable, "-m", "tests.support.checkpoint_program", str(folder), point, source]
    return await anyio.open_process(command, stderr=None, cwd=ROOT)


async def died(folder: Path, point: str) -> None:
    async with await spawned(folder, point) as process:
        with anyio.fail_after(60):
            assert await process.wait() == -signal.SIGKILL


async def finished(code_mode: CodeMode, run_id: str) -> CodeModeResult:
    result = await code_mode.wait(run_id)
    with anyio.fail_after(30):
        while result.status == "waiting":
            result = await code_mode.wait(run_id)
    return result


def lines(folder: Path, name: str) -> Counter[str]:
    path = folder / name
    return Counter(path.read_text().splitlines() if path.exists() else ())


UNKNOWN = "outcome_unknown"
WHOLE = ["seen", "wrote 1", "put 2", "wrote 3", "thought"]


@pytest.mark.covers("DU-1", "DU-4")
@pytest.mark.parametrize(
    ("point", "told", "effects"),
    [
        # Never made, and told as unknown: the intent was stored.
        ("after checkpoint 1", ["seen", UNKNOWN, "put 2", "wrote 3", "thought"], [0, 1, 1]),
        ("before effect 1", ["seen", UNKNOWN, "put 2", "wrote 3", "thought"], [0, 1, 1]),
        ("after effect 1", ["seen", UNKNOWN, "put 2", "wrote 3", "thought"], [1, 1, 1]),
        # The second checkpoint was not written: the program goes on from the first one.
        ("before checkpoint 2", ["seen", UNKNOWN, "put 2", "wrote 3", "thought"], [1, 1, 1]),
        ("after checkpoint 2", WHOLE, [1, 1, 1]),
        ("after effect 2", WHOLE, [1, 2, 1]),  # what may be repeated, is
        ("after effect 3", ["seen", "wrote 1", "put 2", UNKNOWN, "thought"], [1, 1, 1]),
        # The answer was copied to the store in the background.
        ("after settle 1", WHOLE, [1, 1, 1]),
    ],
)
async def test_a_program_continues_from_its_last_checkpoint(
    tmp_path: Path, pool: Pool, point: str, told: list[str], effects: list[int]
) -> None:
    await died(tmp_path, point)
    async with reader(tmp_path, pool) as code_mode:
        (run_id,) = await code_mode.unfinished()
        result = await finished(code_mode, run_id)
        assert await code_mode.unfinished() == []
        again = await code_mode.wait(run_id)
    # Answers come in the order in which calls end.
    assert isinstance(result.value, list)
    assert sorted(map(str, result.value)) == sorted(told)
    assert result.output == [{"type": "text", "text": text} for text in ("begun", "half")]
    log = lines(tmp_path, "effects")
    assert [log["write 1"], log["put 2"], log["write 3"]] == effects
    assert lines(tmp_path, "reads")["look"] == 1, "what was answered before a checkpoint stays so"
    assert again.code == "invalid_input"


@pytest.mark.covers("DU-4")
async def test_before_the_first_checkpoint_nothing_has_happened(tmp_path: Path, pool: Pool) -> None:
    await died(tmp_path, "before checkpoint 1")
    async with reader(tmp_path, pool) as code_mode:
        assert await code_mode.unfinished() == []
    assert lines(tmp_path, "effects") == Counter()


@pytest.mark.covers("DU-5")
async def test_any_process_can_say_which_calls_an_ended_program_made(
    tmp_path: Path, pool: Pool
) -> None:
    await died(tmp_path, "after effect 1")
    async with reader(tmp_path, pool) as code_mode:
        (run_id,) = await code_mode.unfinished()
        await finished(code_mode, run_id)
    async with reader(tmp_path, pool) as other:
        result = await other.wait(run_id)
    assert result.code == "invalid_input"
    states = {str(call["toolId"]): call["state"] for call in result.calls}  # type: ignore[index]
    assert states["openclaw:core:put"] == "completed"
    assert "unknown" in {call["state"] for call in result.calls}  # type: ignore[index]


@pytest.mark.covers("DU-1")
async def test_a_stopped_process_still_has_its_program(tmp_path: Path, pool: Pool) -> None:
    source = "await tools.write({ n: 1 }); return await tools.write({ n: 2 })"
    async with await spawned(tmp_path, "stop after effect 1", source) as process:
        stat = Path(f"/proc/{process.pid}/stat")
        with anyio.fail_after(60):
            await until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", 60)
            try:
                async with reader(tmp_path, pool) as code_mode:
                    assert await code_mode.unfinished() == []
                    (cell,) = await code_mode._parking.store.cells()
                    assert (await code_mode.wait(cell.id)).code == "invalid_input"
            finally:
                process.send_signal(signal.SIGCONT)
            assert await process.wait() == 0
    assert lines(tmp_path, "effects") == Counter({"write 1": 1, "write 2": 1})


@pytest.mark.covers("DU-2", "DU-4")
@pytest.mark.hostile
async def test_a_zombie_makes_no_effect_after_it_was_taken_over(tmp_path: Path, pool: Pool) -> None:
    """A process that lost its lease while it was stopped, and wakes in the middle of a call."""
    begun, wakes = anyio.Event(), anyio.Event()

    @tool(effect="write")
    async def write(n: int) -> str:
        """Write, and sleep the first time."""
        with (tmp_path / "effects").open("a") as file:
            file.write(f"write {n}\n")
        if not begun.is_set():
            begun.set()
            await wakes.wait()
        return f"wrote {n}"

    source = """const told = [];
for (const n of [1, 2]) {
  try { told.push(await tools.write({ n })) } catch (error) { told.push(error.code) }
}
return told"""
    zombie = reader(tmp_path, pool, [write])
    results: list[CodeModeResult] = []

    async def run() -> None:
        results.append(await zombie.exec(source))

    async with zombie, anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await begun.wait()
        store = zombie._parking.store
        assert isinstance(store, SqliteStore)
        store._leases.release(await zombie._parking.owner())
        async with reader(tmp_path, pool, [write]) as heir:
            (run_id,) = await heir.unfinished()
            assert (await finished(heir, run_id)).value == [UNKNOWN, "wrote 2"]
            wakes.set()
    assert (results[0].status, results[0].run_id) == ("waiting", run_id)
    assert "taken" in results[0].notes[0]
    assert lines(tmp_path, "effects") == Counter({"write 1": 1, "write 2": 1})


@asynccontextmanager
async def taken_over(
    folder: Path, pool: Pool, source: str, results: list[CodeModeResult]
) -> AsyncIterator[tuple[CodeMode, str]]:
    """A run whose program was finished by another process during a call, and wakes at the end."""
    begun, wakes = anyio.Event(), anyio.Event()

    @tool(effect="write")
    async def write() -> str:
        """Sleep the first time."""
        if not begun.is_set():
            begun.set()
            await wakes.wait()
        return "wrote"

    zombie = reader(folder, pool, [write])

    async def run() -> None:
        results.append(await zombie.exec(source))

    async with zombie, anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await begun.wait()
        store = zombie._parking.store
        assert isinstance(store, SqliteStore)
        store._leases.release(await zombie._parking.owner())
        async with reader(folder, pool, [write]) as heir:
            (run_id,) = await heir.unfinished()
            assert (await finished(heir, run_id)).value == UNKNOWN
        yield zombie, run_id
        wakes.set()


ONE_WRITE = "try { return await tools.write() } catch (error) { return error.code }"


@pytest.mark.covers("DU-13")
@pytest.mark.hostile
async def test_a_zombie_does_not_tell_an_end_that_is_not_the_programs(
    tmp_path: Path, pool: Pool
) -> None:
    """Its call returns, and its copy of the program completes: the other end was told already."""
    results: list[CodeModeResult] = []
    async with taken_over(tmp_path, pool, ONE_WRITE, results) as (_, run_id):
        pass
    assert (results[0].status, results[0].run_id) == ("waiting", run_id)
    assert "taken" in results[0].notes[0]


@pytest.mark.covers("DU-13")
async def test_nobody_is_told_of_an_abort_that_nobody_asked_for(tmp_path: Path, pool: Pool) -> None:
    """A zombie that finds that it may not write, and then cannot ask what became of its program."""
    results: list[CodeModeResult] = []
    source = (
        f"const told = await (async () => {{ {ONE_WRITE} }})(); await tools.write(); return told"
    )
    async with taken_over(tmp_path, pool, source, results) as (zombie, run_id):

        async def unreadable(*args: Any) -> None:
            raise StoreUnavailable("The store is away.")

        vars(zombie._parking.store)["ended"] = unreadable
    assert (results[0].status, results[0].run_id) == ("waiting", run_id)
    assert "The store is away." in results[0].notes[0]


@pytest.mark.covers("DU-13")
async def test_a_park_that_succeeds_after_its_node_was_declared_dead_is_not_undone(
    tmp_path: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node gives up all that it had, and the write that was under way succeeds all the same."""
    monkeypatch.setattr("clawmode.code_mode.exits.WATCH", 0.01)
    go = anyio.Event()

    @tool(effect="write")
    async def write() -> str:
        """Write when the test says so."""
        await go.wait()
        return "wrote"

    async with reader(tmp_path, pool, [write], timeout_ms=500) as here:
        store: Any = here._parking.store
        park, gone = store.park, store.gone
        given_up: set[str] = set()

        async def park_late(cell: StoredCell, *args: Any, **options: Any) -> None:
            given_up.add(cell.id)
            await until(lambda: here._driver.active[cell.id].ended)
            given_up.clear()
            await park(cell, *args, **options)

        async def give_up(ids: Any) -> set[str]:
            return given_up | await gone(ids)

        vars(store).update(park=park_late, gone=give_up)
        result = await here.exec(ONE_WRITE)
    assert (result.status, "taken" in result.notes[0]) == ("waiting", True)
    async with reader(tmp_path, pool, [write]) as heir:
        assert (await finished(heir, str(result.run_id))).value == UNKNOWN


@pytest.mark.covers("DU-9")
async def test_without_the_store_programs_read_and_effects_are_refused(
    tmp_path: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr("clawmode.code_mode.answers.COPY_AFTER", 60)
    source = """const told = [];
for (const n of [1, 2, 3]) {
  told.push(await tools.look());
  try { told.push(await tools.write({ n })) } catch (error) { told.push(error.code) }
}
return told"""
    locks: list[sqlite3.Connection] = []

    @tool(effect="read")
    async def look() -> str:
        """Take the store away for the second round, and give it back after."""
        if len(locks) == 1:
            locks[0].execute("begin immediate")
        elif len(locks) == 2:
            locks[0].execute("rollback")
        locks.append(sqlite3.connect(tmp_path / "state" / "cells.sqlite", isolation_level=None))
        return "seen"

    tools = [look, *(each for each in tools_of(tmp_path) if each.name == "write")]
    async with reader(tmp_path, pool, tools) as code_mode:
        await code_mode._parking.store.room(1)  # makes the file
        result = await code_mode.exec(source)
    for lock in locks:
        lock.close()
    assert result.value == ["seen", "wrote 1", "seen", "store_unavailable", "seen", "wrote 3"]
    assert lines(tmp_path, "effects") == Counter({"write 1": 1, "write 3": 1})


@pytest.mark.covers("DU-9")
async def test_a_checkpoint_whose_answer_was_lost_is_repeated(
    tmp_path: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, asked = SqliteStore(tmp_path / "state"), list[bytes]()
    checkpoint = store.checkpoint

    async def forget(cell: StoredCell, *args: Any, **kwargs: Any) -> int:
        """Writes the first checkpoint, and loses the answer."""
        asked.append(cell.mark)
        fence = await checkpoint(cell, *args, **kwargs)
        if len(asked) == 1:
            raise sqlite_store.StoreUnavailable("the answer was lost")
        return fence

    monkeypatch.setattr(store, "checkpoint", forget)
    source = """const told = [];
for (const n of [1, 2]) {
  try { told.push(await tools.write({ n })) } catch (error) { told.push(error.code) }
}
return told"""
    config = CodeModeConfig(durability="effects")
    made = CodeMode(tools=tools_of(tmp_path), store=store, context=WHO, pool=pool, config=config)
    async with made as code_mode:
        result = await code_mode.exec(source)
        assert await store.cells() == []
    assert result.value == ["store_unavailable", "wrote 2"]
    first, second, _ = asked
    assert first == second


@pytest.mark.covers("DU-4")
async def test_programs_that_only_read_are_not_stored(
    tmp_path: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(SqliteStore, "checkpoint")
    async with reader(tmp_path, pool) as code_mode:
        assert (await code_mode.exec("return [await tools.look(), await tools.ponder()]")).value


async def test_a_queue_of_effects_is_made_once_each(tmp_path: Path, pool: Pool) -> None:
    source = (
        "return (await Promise.all([...Array(9).keys()].map((n) => tools.write({ n })))).length"
    )
    async with reader(tmp_path, pool, max_pending_tool_calls=2) as code_mode:
        assert (await code_mode.exec(source)).value == 9
        assert await code_mode._parking.store.cells() == []
    assert lines(tmp_path, "effects") == Counter({f"write {n}": 1 for n in range(9)})


@pytest.mark.covers("DU-1")
async def test_a_program_that_was_parked_before_continues_too(tmp_path: Path, pool: Pool) -> None:
    """It waits, is resumed by a second process, and that one dies in the middle of a write."""
    begun = anyio.Event()

    @tool(effect="write")
    async def write(n: int) -> str:
        """Never answer."""
        begun.set()
        await anyio.sleep_forever()
        return ""

    source = """text("one"); await yield_control(); text("two");
try { await tools.write({ n: 1 }) } catch (error) { return error.code }"""
    first = reader(tmp_path, pool, [write])
    async with first:
        waiting = await first.exec(source)
        assert waiting.output == [{"type": "text", "text": "one"}]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.wait, waiting.run_id)
            await begun.wait()
            store = first._parking.store
            assert isinstance(store, SqliteStore)
            store._leases.release(await first._parking.owner())
            async with reader(tmp_path, pool, [write]) as second:
                result = await finished(second, waiting.run_id)
            tasks.cancel_scope.cancel()
    assert (result.value, result.output) == (UNKNOWN, [{"type": "text", "text": "two"}])


async def test_in_memory_nothing_is_stored_before_effects(pool: Pool, tmp_path: Path) -> None:
    config, store = CodeModeConfig(durability="effects"), MemoryStore()
    async with CodeMode(tools=tools_of(tmp_path), store=store, pool=pool, config=config) as one:
        assert (await one.exec("return await tools.write({ n: 1 })")).value == "wrote 1"
    assert not store._ended


class Disk:
    """Whether the end of a program can be stored in `store`."""

    def __init__(self, folder: Path) -> None:
        self.full = True
        self.store = SqliteStore(folder)
        end = self.store.end

        async def refuse_or_end(*args: Any, **options: Any) -> bool:
            if self.full:
                raise StoreUnavailable("The disk is full.")
            return await end(*args, **options)

        vars(self.store)["end"] = refuse_or_end


@pytest.mark.covers("DU-10")
@pytest.mark.parametrize("closes", [False, True])
async def test_a_program_whose_end_cannot_be_stored_is_not_continued(
    tmp_path: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    monkeypatch.setattr("clawmode.code_mode.exits.RECORD_AGAIN", 0.05)
    disk, config = Disk(tmp_path / "state"), CodeModeConfig(durability="effects")
    options: Any = {"store": disk.store, "context": WHO, "pool": pool, "config": config}
    here = await CodeMode(tools=tools_of(tmp_path), **options).start()
    async with reader(tmp_path, pool) as other:
        result = await here.exec("return await tools.write({ n: 1 })")
        assert result.value == "wrote 1"
        ((run_id, _),) = here._driver.exits.unended.items()
        assert not here.idle
        assert (await here.wait(run_id)).code == "snapshot_restore_failed"
        if closes:
            await here.aclose()
        refused = await other.wait(run_id)
        assert (refused.code, "under way" in str(refused.error)) == ("invalid_input", True)
        assert await other.unfinished() == []
        if not closes:
            disk.full = False
            await until(lambda: not here._driver.exits.unended)
            assert here.idle
            ended = await other.wait(run_id)
            assert "has ended" in str(ended.error)
            assert [entry["state"] for entry in ended.calls] == ["completed"]  # pyrefly: ignore
    await here.aclose()
    assert lines(tmp_path, "effects") == Counter({"write 1": 1})


@pytest.mark.covers("DU-10")
async def test_a_wait_stores_an_end_that_is_not_stored_yet(tmp_path: Path, pool: Pool) -> None:
    disk, config = Disk(tmp_path / "state"), CodeModeConfig(durability="effects")
    options: Any = {"store": disk.store, "context": WHO, "pool": pool, "config": config}
    async with CodeMode(tools=tools_of(tmp_path), **options) as here:
        await here.exec("return await tools.write({ n: 1 })")
        disk.full = False
        (run_id,) = here._driver.exits.unended
        assert "has ended" in str((await here.wait(run_id)).error)
        await here.exec("return await tools.write({ n: 2 })")
        disk.full = True
        await here.exec("return await tools.write({ n: 3 })")
        disk.full = False
    assert await disk.store.cells() == [], "closing stores what is left"
