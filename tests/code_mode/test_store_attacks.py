"""Attacks on parked programs: races, hostile rows, a store that fails at the worst moment."""

import asyncio
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from tests.support.fleet.node import SKEWED
from tests.support.waiting import SlowTools, idle, until

from clawmode import Approvals, CodeMode, CodeModeConfig, Pool, RunContext, tool
from clawmode.code_mode import parking
from clawmode.code_mode.memory_store import MemoryStore
from clawmode.code_mode.snapshots import KeyRing
from clawmode.code_mode.sqlite_store import SqliteStore
from clawmode.code_mode.stores import SnapshotStore
from clawmode.exceptions import ProtocolError, StoreUnavailable
from clawmode.sandbox import artifacts, template
from clawmode.sandbox.frames import decode_answer, encode
from clawmode.sandbox.protocol import FrozenCell, Request, Suspension
from clawmode.sandbox.workers import Tenancy
from clawmode.tools.hooks import BeforeToolCall, Hooks, RequireApproval, ToolCallDecision
from clawmode.tools.tool import Tool

pytestmark = [pytest.mark.anyio, pytest.mark.hostile]

WHO = RunContext(agent_id="a", session_id="s", session_key="k", run_id="r")
YIELD = "await yield_control(); return 1"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "state")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def code_mode(
    pool: Pool, store: SnapshotStore, tools: list[Tool] | None = None, **options: Any
) -> CodeMode:
    config = options.pop("config", CodeModeConfig(timeout_ms=400))
    return CodeMode(
        tools=tools or [], pool=pool, store=store, config=config, context=WHO, **options
    )


def refusing(store: SnapshotStore, *methods: str) -> None:
    """The next call of each method fails; those after it do not."""

    def refuse(method: str) -> None:
        async def unavailable(*args: Any, **options: Any) -> None:
            delattr(store, method)
            raise StoreUnavailable("The disk is full.")

        setattr(store, method, unavailable)

    for method in methods:
        refuse(method)


def calls_of(result: Any) -> list[str]:
    return [entry["state"] for entry in result.calls]


# ---- Who owns what ----


@pytest.mark.covers("WA-2", "WA-11")
async def test_programs_that_are_waited_for_at_once_by_a_new_object_go_on(
    pool: Pool, folder: Path
) -> None:
    async with code_mode(pool, SqliteStore(folder)) as one:
        ids = [(await one.exec(YIELD)).run_id for _ in range(3)]
    values: list[object] = []

    async def wait(run_id: str) -> None:
        values.append((await two.wait(run_id)).value)

    # The third of them may wait until a worker has started.
    long, store = CodeModeConfig(), SqliteStore(folder)
    async with code_mode(pool, store, config=long) as two, anyio.create_task_group() as waits:
        for run_id in ids:
            waits.start_soon(wait, run_id)
    assert values == [1, 1, 1]
    assert list((folder / "owners").iterdir()) == [], "an owner was lost sight of"


@pytest.mark.covers("WA-3")
@pytest.mark.parametrize("first", ["progress", "take"])
async def test_a_claim_that_cannot_be_released_does_not_last(
    pool: Pool, store: SnapshotStore, first: str
) -> None:
    async with code_mode(pool, store) as one:
        run_id = (await one.exec(YIELD)).run_id
        refusing(store, first, "release")
        assert (await one.wait(run_id)).status == "failed"
        assert (await one.wait(run_id)).value == 1


@pytest.mark.covers("DU-11")
async def test_a_program_that_cannot_be_stored_is_held_and_goes_on(
    pool: Pool, store: SnapshotStore
) -> None:
    async with code_mode(pool, store) as one:
        run_id = (await one.exec("await yield_control(); " + YIELD)).run_id
        refusing(store, "park")
        held = await one.wait(run_id)
        assert (held.status, held.notes[0].startswith("The disk is full.")) == ("waiting", True)
        assert (await one.wait(run_id)).status == "completed"


async def test_a_program_whose_end_cannot_be_noted_is_not_busy_for_ever(
    pool: Pool, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawmode.code_mode.exits.MAX_HELD", 0)
    async with code_mode(pool, store) as one:
        run_id = (await one.exec("await yield_control(); " + YIELD)).run_id
        refusing(store, "park", "end")
        assert (await one.wait(run_id)).code == "runtime_unavailable"
        assert (await one.wait(run_id)).code == "invalid_input"


@pytest.mark.covers("DU-15")
async def test_a_program_that_ends_elsewhere_while_it_is_looked_for_goes_on(
    pool: Pool, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, two processes would tell an end of their own."""
    async with code_mode(pool, store) as one:
        run_id = (await one.exec(YIELD)).run_id
        scope, looks = one.context.scope, list[str]()

        def ending_after(method: str) -> None:
            look: Callable[..., Awaitable[Any]] = getattr(store, method)

            async def looked(*args: Any) -> Any:
                found = await look(*args)
                looks.append(method)
                if len(looks) == 1:
                    assert await store.end(run_id, scope, "finished", 0)
                return found

            monkeypatch.setattr(store, method, looked)

        for method in ("ended", "progress"):
            ending_after(method)
        assert await one._parking.goes_on(run_id)


async def cancelled_inside(
    monkeypatch: pytest.MonkeyPatch, method: str, made: Callable[[], Awaitable[Any]]
) -> None:
    """Cancels a task as asyncio does, while a thread is inside of a method of the store."""
    translated = SqliteStore._translated
    inside, loop = asyncio.Event(), asyncio.get_running_loop()
    go, done = threading.Event(), threading.Event()

    def slowed(store: SqliteStore, work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        def slowly(*args: Any, **options: Any) -> Any:
            loop.call_soon_threadsafe(inside.set)
            go.wait(10)
            try:
                return work(*args, **options)
            finally:
                done.set()

        chosen = slowly if work.__name__ == method else work
        return translated(store, chosen, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "_translated", slowed)
        task = asyncio.ensure_future(made())
        await inside.wait()
        task.cancel()
        await idle()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(done.is_set)
        await idle()


@pytest.mark.covers("WA-2")
async def test_a_wait_that_asyncio_cancels_leaves_no_claim(
    pool: Pool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with code_mode(pool, SqliteStore(folder)) as one:
        run_id = (await one.exec(YIELD)).run_id
        await cancelled_inside(monkeypatch, "claim", lambda: one.wait(run_id))
        assert (await one.wait(run_id)).value == 1


@pytest.mark.covers("WA-10")
async def test_an_exec_that_asyncio_cancels_leaves_no_program(
    pool: Pool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(folder)
    async with code_mode(pool, store) as one:
        await cancelled_inside(monkeypatch, "park", lambda: one.exec(YIELD))
        assert await store.end_all(WHO.scope) == {}


async def test_a_closed_object_owns_nothing_again(pool: Pool, folder: Path) -> None:
    slow = SlowTools()
    async with anyio.create_task_group() as tasks:
        async with code_mode(pool, SqliteStore(folder), slow.tools) as one:
            run_id = (await one.exec("return await tools.slow()")).run_id
            tasks.start_soon(one.wait, run_id)
            await idle()
    assert (await one.wait(run_id)).code == "runtime_unavailable"
    assert (await one.exec("return await tools.quick()")).code == "runtime_unavailable"
    assert list((folder / "owners").iterdir()) == []


async def test_a_forked_child_does_not_keep_an_owner_alive(folder: Path) -> None:
    program = (
        "import sys, anyio, os; from clawmode.code_mode.sqlite_store import SqliteStore\n"
        "store = SqliteStore(sys.argv[1]); print(anyio.run(store.join), flush=True)\n"
        "if os.fork() == 0:\n"
        "    os.closerange(0, 3); os.read(int(sys.argv[2]), 1); os._exit(0)\n"
        "os.kill(os.getpid(), 9)"
    )
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb"), os.fdopen(reading, "rb"):
        command = [sys.executable, "-c", program, str(folder), str(reading)]
        done = await anyio.run_process(command, check=False, pass_fds=[reading])
        assert not await SqliteStore(folder).alive(done.stdout.decode().strip())


def test_a_store_serves_several_event_loops(folder: Path) -> None:
    store, served = SqliteStore(folder), list[int]()

    async def serve() -> None:
        with anyio.fail_after(10):
            for _ in range(100):
                await store.progress("cm_1")
        served.append(1)

    threads = [threading.Thread(target=anyio.run, args=(serve,), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    assert len(served) == 3


# ---- Aborting ----


Freezing: TypeAlias = Callable[[Tenancy], Awaitable[FrozenCell]]


class Held:
    """A pool whose next freeze, or copy of a program, ends when a test says so."""

    def __init__(self, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.frozen, self.go = anyio.Event(), anyio.Event()
        monkeypatch.setattr(pool, "freeze", self._holding(pool.freeze))
        monkeypatch.setattr(pool, "copy", self._holding(pool.copy))

    def _holding(self, original: Freezing) -> Freezing:
        async def freeze(cell: Tenancy) -> FrozenCell:
            found = await original(cell)
            self.frozen.set()
            await self.go.wait()
            return found

        return freeze


@pytest.mark.covers("WA-7", "WA-10")
@pytest.mark.parametrize("end", ["abort", "end_run"])
async def test_a_program_that_is_ended_while_it_is_frozen_is_not_parked(
    pool: Pool, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    held, results = Held(pool, monkeypatch), list[Any]()

    async def run() -> None:
        results.append(await one.exec(YIELD))

    async with code_mode(pool, store) as one:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await held.frozen.wait()
            (run_id,) = one._driver.active
            await (one.abort(run_id) if end == "abort" else one.end_run())
            held.go.set()
        assert results[0].code == "aborted"
        assert await store.progress(run_id) is None


@pytest.mark.covers("WA-7")
async def test_a_program_that_is_aborted_while_it_is_written_is_not_parked(pool: Pool) -> None:
    writing, go = anyio.Event(), anyio.Event()

    class Writing(MemoryStore):
        async def park(self, *args: Any, **kwargs: Any) -> None:
            writing.set()
            await go.wait()
            await super().park(*args, **kwargs)

    store, results = Writing(), list[Any]()

    async def run() -> None:
        results.append(await one.exec(YIELD))

    async with code_mode(pool, store) as one:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await writing.wait()
            (run_id,) = one._driver.active
            assert await one.abort(run_id)
            go.set()
        assert results[0].code == "aborted"
        assert await store.progress(run_id) is None


@pytest.mark.covers("WA-7", "TR-5")
async def test_a_call_does_not_begin_after_its_program_was_aborted(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, slow, results = Held(pool, monkeypatch), SlowTools(), list[Any]()
    config = CodeModeConfig(max_snapshot_bytes=500_000)
    source = "globalThis.big = 'x'.repeat(3e6); return await tools.slow()"

    async def run() -> None:
        results.append(await one.exec(source))

    async with code_mode(pool, MemoryStore(), slow.tools, config=config) as one:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await held.frozen.wait()
            await one.abort(next(iter(one._driver.active)))
            held.go.set()
        await anyio.wait_all_tasks_blocked()
    assert slow.calls == 0
    assert calls_of(results[0]) == ["not_started"]


@pytest.mark.covers("WA-10")
async def test_a_second_wait_does_not_disturb_a_program_that_was_ended_elsewhere(
    pool: Pool, store: SnapshotStore
) -> None:
    slow, results = SlowTools(), list[Any]()

    async def run() -> None:
        results.append(await one.wait(run_id))

    async with code_mode(pool, store, slow.tools) as one, code_mode(pool, store) as two:
        run_id = (await one.exec("await yield_control(); await tools.slow()")).run_id
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await until(lambda: slow.calls)
            await two.end_run()
            assert (await one.wait(run_id)).status == "failed"
    assert results[0].code == "aborted"


async def test_no_question_is_left_of_a_program_that_ended_elsewhere(
    pool: Pool, store: SnapshotStore
) -> None:
    approvals = Approvals(ask_for=["quick"])
    source = "void tools.quick(); await yield_control(); throw 1"
    async with (
        code_mode(pool, store, SlowTools().tools, approvals=approvals) as one,
        code_mode(pool, store, SlowTools().tools) as two,
    ):
        run_id = (await one.exec(source)).run_id
        assert (await two.wait(run_id)).code == "internal_error"
        assert (await one.wait(run_id)).code == "invalid_input"
        await until(lambda: (approvals.pending(), one._calls.groups) == ([], {}))


# ---- Hostile rows, names and workers ----

ROWS = [
    "update calls set state = 'completed'",
    "update calls set state = 7",
    "update calls set owner = x'00'",
    "update calls set owner = ''",
    "update calls set body = 5",
    "delete from calls",
    "update sealed set record = 5",
    "update sealed set snapshot = 5",
    "delete from sealed",
    "insert into replies (cell, body) select id, 5 from cells",
    "update cells set holder = x'00'",
    "insert into ended (id, agent, session, session_key, run, end)"
    " select id, agent, session, session_key, run, 'bogus' from cells; delete from cells",
    "insert into ended (id, agent, session, session_key, run, end)"
    " select id, agent, session, session_key, run, x'00' from cells; delete from cells",
]


@pytest.mark.covers("WA-8")
@pytest.mark.parametrize("row", ROWS)
async def test_a_row_that_was_tampered_with_is_refused_or_harmless(
    pool: Pool, folder: Path, row: str
) -> None:
    async with code_mode(pool, SqliteStore(folder), SlowTools().tools) as one:
        run_id = (await one.exec("return await tools.slow()")).run_id
    with sqlite3.connect(folder / "cells.sqlite") as database:
        database.executescript(row)
    database.close()
    async with code_mode(pool, SqliteStore(folder), SlowTools().tools) as two:
        for _ in range(2):
            assert (await two.wait(run_id)).status == "failed"
        await two.end_run()
        assert two._calls.groups == {}


@pytest.mark.covers("WA-1")
@pytest.mark.parametrize("run_id", ["\ud800", "a\0b", "", "cm_" + "0" * 100_000])
async def test_an_id_that_cannot_be_one_is_a_failed_result(
    pool: Pool, store: SnapshotStore, run_id: str
) -> None:
    async with code_mode(pool, store) as one:
        assert (await one.call("wait", {"runId": run_id}))["status"] == "failed"


@pytest.mark.parametrize("number", [-1, 1 << 32, 1 << 63])
def test_a_request_with_an_id_that_no_program_has_is_refused(number: int) -> None:
    frame = encode(Suspension((Request(number, "call", b"[]"),)), 1)
    with pytest.raises(ProtocolError):
        decode_answer(frame[4:], 1)


# ---- Answers ----


@pytest.mark.covers("WA-11")
async def test_an_answer_that_could_not_be_stored_reaches_another_object(
    pool: Pool, store: SnapshotStore
) -> None:
    slow = SlowTools()
    async with (
        code_mode(pool, store, slow.tools) as one,
        code_mode(pool, store, SlowTools().tools) as two,
    ):
        result = await one.exec("return await tools.slow()")
        refusing(store, "settle")
        slow.answer.set()
        with anyio.fail_after(10):
            while result.status == "waiting":
                result = await two.wait(result.run_id)
    assert result.value == 1


@pytest.mark.covers("TR-5")
async def test_an_unknown_outcome_stays_unknown_when_it_could_not_be_stored(
    pool: Pool, folder: Path
) -> None:
    async with code_mode(pool, SqliteStore(folder), SlowTools().tools) as one:
        run_id = (await one.exec("return await tools.slow()")).run_id
    store = SqliteStore(folder)
    async with code_mode(pool, store, SlowTools().tools) as two:
        refusing(store, "settle")
        assert calls_of(await two.wait(run_id)) == ["unknown"]


@pytest.mark.covers("TR-5", "WA-11")
async def test_a_call_that_ran_is_unknown_where_its_tool_is_not(pool: Pool, folder: Path) -> None:
    async with code_mode(pool, SqliteStore(folder), SlowTools().tools) as one:
        run_id = (await one.exec("return await tools.slow()")).run_id
    async with code_mode(pool, SqliteStore(folder)) as two:
        assert calls_of(await two.wait(run_id)) == ["unknown"]


@pytest.mark.covers("WA-8")
async def test_a_refused_program_s_calls_end_with_it(pool: Pool, folder: Path) -> None:
    slow, approvals = SlowTools(), Approvals(ask_for=["quick"])
    source = "await Promise.all([tools.quick(), tools.slow()])"
    async with code_mode(pool, SqliteStore(folder), slow.tools, approvals=approvals) as one:
        run_id = (await one.exec(source)).run_id
        with sqlite3.connect(folder / "cells.sqlite") as database:
            database.execute("update sealed set snapshot = x'00'")
        database.close()
        slow.answer.set()
        assert (await one.wait(run_id)).code == "snapshot_restore_failed"
        await until(lambda: (approvals.pending(), one._calls.groups) == ([], {}))


# ---- Keys ----


async def test_a_process_reads_what_was_sealed_by_a_key_that_came_later(
    pool: Pool, folder: Path
) -> None:
    async with code_mode(pool, SqliteStore(folder)) as old:
        assert (await old.exec(YIELD)).status == "waiting"
        KeyRing.rotate(folder)
        async with code_mode(pool, SqliteStore(folder)) as new:
            run_id = (await new.exec(YIELD)).run_id
        assert (await old.wait(run_id)).value == 1


def test_keys_that_are_made_at_once_are_all_kept(folder: Path) -> None:
    KeyRing.load(folder)
    threads = [threading.Thread(target=KeyRing.rotate, args=(folder,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len((folder / "snapshot.keys").read_text().split()) == 9
    assert os.listdir(folder) == ["snapshot.keys"]


# ---- Clocks ----


@pytest.mark.covers("EX-6")
async def test_a_timer_rings_although_the_clock_was_set_back(
    pool: Pool, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    async with code_mode(pool, store) as one:
        result = await one.exec("await new Promise((go) => setTimeout(go, 700)); return 1")
        monkeypatch.setattr(time, "time", lambda: real() - 3600)
        for _ in range(6):
            if result.status == "waiting":
                result = await one.wait(result.run_id)
    assert result.value == 1


@pytest.mark.covers("DU-7", "EX-13")
@pytest.mark.parametrize("skew", [3600.0, -3600.0])
async def test_a_reply_on_a_machine_with_another_clock_leaves_timers_alone(
    pool: Pool, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    source = """const began = Date.now(), up = performance.now();
let rang = 0;
const timer = new Promise((go) => setTimeout(() => { rang = Date.now() - began; go() }, 900));
await yield_control();
const early = rang;
await yield_control();
await timer;
const again = Date.now();
await new Promise((go) => setTimeout(go, 50));
return [early, rang, Date.now() - again, performance.now() - up]"""
    real, command = time.time, artifacts.python_command
    changes = SKEWED.format(skew=skew, uptime=0)

    def skewed_python(module: str, *arguments: str) -> list[str]:
        *options, program = command(module)
        return [*options, changes + program, *arguments]

    monkeypatch.setattr(template, "acquire", lambda: None)  # whose clock is the right one
    monkeypatch.setattr(artifacts, "python_command", skewed_python)
    async with (
        Pool(size=1) as other,
        code_mode(pool, store) as here,
        code_mode(other, store) as there,
    ):
        await other.ready()
        began = time.monotonic()
        result = await here.exec(source)
        monkeypatch.setattr(time, "time", lambda: real() + skew)
        result = await there.wait(result.run_id)
        row: Any = result.pending_tool_calls[-1]
        assert (row["method"], result.status) == ("timer", "waiting")
        assert -5 < row["due"] / 1000 - time.time() < 1
        clock: Any = (await there.exec("return Date.now()")).value
        assert abs(clock / 1000 - time.time()) < 5
        monkeypatch.setattr(time, "time", real)
        while result.status == "waiting":
            result = await here.wait(result.run_id)
    took = time.monotonic() - began
    value: Any = result.value
    early, rang, pause, whole = value
    assert early == 0, "the timer rang when the program was resumed by a reply"
    assert 899 <= rang <= min(1900, 1000 * took + 1)
    assert 49 <= pause < 1000
    assert rang <= whole <= 1000 * took + 250


# ---- The start of a program, and hooks ----


def audited() -> Hooks:
    """A hook that puts a line before every program, and wants a person to see it."""
    hooks = Hooks()

    def audit(call: BeforeToolCall) -> ToolCallDecision:
        code = f"text('audited'); {call.params['code']}"
        wish = RequireApproval(title="Run it?")
        return ToolCallDecision(params={**call.params, "code": code}, require_approval=wish)

    hooks.before_tool_call(audit)
    return hooks


@pytest.mark.covers("HK-4", "HK-2", "WA-11")
async def test_a_person_is_shown_exactly_what_would_start_also_when_asked_again(
    pool: Pool, folder: Path
) -> None:
    shown: list[object] = []
    run_id = ""
    for _ in range(2):
        approvals = Approvals()
        store = SqliteStore(folder)
        async with code_mode(pool, store, hooks=audited(), approvals=approvals) as one:
            result = await (one.wait(run_id) if run_id else one.exec("return 1"))
            run_id = result.run_id
            shown += [approvals.pending()[0].input[key] for key in ("code", "command")]
            if len(shown) == 4:
                approvals.resolve(approvals.pending()[0].id, "allow-once")
                result = await one.wait(run_id)
                assert result.output == [{"type": "text", "text": "audited"}]
    assert shown == ["text('audited'); return 1"] * 4


@pytest.mark.covers("HK-2")
async def test_a_hook_that_empties_what_it_was_shown_breaks_nothing(pool: Pool) -> None:
    hooks = Hooks()

    def clear(call: BeforeToolCall) -> None:
        call.params.clear()

    hooks.before_tool_call(clear)
    async with code_mode(pool, MemoryStore(), hooks=hooks) as one:
        assert (await one.exec("return 1")).status in ("completed", "failed")


# ---- Many ----


async def test_the_count_of_parked_programs_reads_no_snapshot(folder: Path) -> None:
    store = SqliteStore(folder)
    assert await store.room(1)
    with sqlite3.connect(folder / "cells.sqlite") as database:
        plan = database.execute(
            "explain query plan select count(*) from cells where running = 0"
        ).fetchall()
    database.close()
    assert "COVERING INDEX" in plan[0][3]


# ---- Older copies put back ----

PAYING = """for (const amount of [1, 2]) { await yield_control(); await tools.pay({ amount }) }
await yield_control(); return "paid" """


class Shop:
    """Pays, and counts it."""

    def __init__(self) -> None:
        self.paid: list[int] = []

        @tool(effect="write")
        async def pay(amount: int) -> None:
            """Pay."""
            self.paid.append(amount)

        self.tools: list[Tool] = [pay]


def rows(folder: Path, file: str = "cells") -> dict[str, list[tuple[Any, ...]]]:
    """Everything that a file of the store holds."""
    with sqlite3.connect(folder / f"{file}.sqlite") as database:
        tables = database.execute(
            "select name from sqlite_master where type = 'table' and name not like 'sqlite%'"
        ).fetchall()
        return {name: database.execute(f"select * from {name}").fetchall() for (name,) in tables}


def put_back(folder: Path, saved: dict[str, list[tuple[Any, ...]]], file: str = "cells") -> None:
    with sqlite3.connect(folder / f"{file}.sqlite") as database:
        for name, kept in saved.items():
            database.execute(f"delete from {name}")
            for row in kept:
                marks = ", ".join("?" * len(row))
                database.execute(f"insert into {name} values ({marks})", row)


def change(folder: Path, statement: str, *values: Any, file: str = "cells") -> None:
    with sqlite3.connect(folder / f"{file}.sqlite") as database:
        assert database.execute(statement, values).rowcount


async def expect_refusal(pool: Pool, folder: Path, run_id: str, shop: Shop) -> None:
    """Whatever was done to the file: the program is refused, and pays nothing."""
    before = list(shop.paid)
    async with code_mode(pool, SqliteStore(folder), shop.tools, config=CodeModeConfig()) as other:
        for _ in range(2):
            result = await other.wait(run_id)
            assert result.code in ("snapshot_restore_failed", "invalid_input"), result
    assert shop.paid == before


async def parked_twice(pool: Pool, folder: Path, shop: Shop) -> tuple[str, dict[str, Any]]:
    """A program that has paid once and is parked again; and the file before that."""
    async with code_mode(pool, SqliteStore(folder), shop.tools, config=CodeModeConfig()) as one:
        run_id = (await one.exec(PAYING)).run_id
        before = rows(folder)
        assert (await one.wait(run_id)).status == "waiting"
    assert shop.paid == [1]
    return run_id, before


@pytest.mark.covers("S-10")
async def test_record_and_snapshot_of_an_earlier_park_are_refused(pool: Pool, folder: Path) -> None:
    shop = Shop()
    run_id, before = await parked_twice(pool, folder, shop)
    put_back(folder, before)
    await expect_refusal(pool, folder, run_id, shop)


@pytest.mark.covers("S-10")
async def test_a_finished_program_that_is_put_back_is_refused(pool: Pool, folder: Path) -> None:
    shop = Shop()
    run_id, before = await parked_twice(pool, folder, shop)
    async with code_mode(pool, SqliteStore(folder), shop.tools, config=CodeModeConfig()) as one:
        while (await one.wait(run_id)).status == "waiting":
            pass
    assert shop.paid == [1, 2]
    put_back(folder, {**before, "ended": []})
    await expect_refusal(pool, folder, run_id, shop)


@pytest.mark.covers("S-10")
async def test_an_older_snapshot_beside_the_newest_record_is_refused(
    pool: Pool, folder: Path
) -> None:
    shop = Shop()
    run_id, before = await parked_twice(pool, folder, shop)
    change(folder, "update sealed set snapshot = ?", before["sealed"][0][-1])
    await expect_refusal(pool, folder, run_id, shop)


@pytest.mark.covers("S-10")
async def test_a_program_that_runs_cannot_be_run_a_second_time_from_its_copy(
    pool: Pool, folder: Path
) -> None:
    shop, begun = Shop(), anyio.Event()

    @tool
    async def hang() -> None:
        """Never answer."""
        begun.set()
        await anyio.sleep_forever()

    tools, long = [*shop.tools, hang], CodeModeConfig()
    source = "await yield_control(); await tools.pay({ amount: 1 }); await tools.hang()"
    async with (
        code_mode(pool, SqliteStore(folder), tools, config=long) as one,
        anyio.create_task_group() as tasks,
    ):
        run_id = (await one.exec(source)).run_id
        before = rows(folder)
        tasks.start_soon(one.wait, run_id)
        with anyio.fail_after(5):
            await begun.wait()
        put_back(folder, before)
        await expect_refusal(pool, folder, run_id, shop)
        await one.abort(run_id)
    assert shop.paid == [1]


@pytest.mark.covers("S-10")
@pytest.mark.parametrize("how", ["missing", "forged", "of another program"])
async def test_a_mark_cannot_be_made_up(pool: Pool, folder: Path, how: str) -> None:
    shop = Shop()
    run_id, before = await parked_twice(pool, folder, shop)
    async with code_mode(pool, SqliteStore(folder), shop.tools, config=CodeModeConfig()) as one:
        other = (await one.exec(PAYING)).run_id
    put_back(folder, before)
    marks = dict(rows(folder, "parks")["parks"])
    if how == "missing":
        change(folder, "delete from parks where cell = ?", run_id, file="parks")
    else:
        mark = marks[other] if how == "of another program" else bytes(len(marks[run_id]))
        change(folder, "update parks set mark = ? where cell = ?", mark, run_id, file="parks")
    await expect_refusal(pool, folder, run_id, shop)


# ---- Other builds ----


@pytest.mark.covers("P-5")
@pytest.mark.parametrize("what", ["wasm_hash", "FORMAT", "image"])
async def test_a_program_of_another_build_is_left_to_that_build(
    pool: Pool, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def be_another_build(*, older: bool) -> None:
        if what == "image":
            monkeypatch.setattr(Pool, "image", property(lambda self: b"" if older else b"new"))
        else:
            made = (lambda: bytes(32)) if what == "wasm_hash" else 1
            monkeypatch.setattr(parking, what, made if older else originals[what])
        monkeypatch.setattr(parking, "__version__", "0.0.9" if older else "0.2.0")

    originals: dict[str, Any] = {"wasm_hash": parking.wasm_hash, "FORMAT": parking.FORMAT}
    async with code_mode(pool, store) as one:
        be_another_build(older=True)
        run_id = (await one.exec("text('a'); await yield_control(); return 5")).run_id
        be_another_build(older=False)
        async with code_mode(pool, store) as newer:
            for _ in range(2):
                result = await newer.wait(run_id)
                assert result.code == "snapshot_restore_failed"
                assert result.error is not None
                assert "by clawmode 0.0.9" in result.error
                assert "kept until it expires" in result.error
        be_another_build(older=True)
        assert (await one.wait(run_id)).value == 5
