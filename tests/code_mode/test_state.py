"""What programs leave for later ones: who finds it, how long, how much, and who must not."""

import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.code_mode.test_durable import started, times_called
from tests.support.waiting import until

from clawmode import CodeMode, CodeModeConfig, CodeModeResult, Pool, RunContext, tool
from clawmode.code_mode.memory_store import MemoryStore
from clawmode.code_mode.shelves import MAX_SHELVES_BYTES, Shelf, ShelfLimits
from clawmode.code_mode.sqlite_store import SqliteStore
from clawmode.code_mode.state import RUN_SECONDS, SESSION_SECONDS
from clawmode.code_mode.stores import SnapshotStore
from clawmode.exceptions import ProtocolError, StoreUnavailable
from clawmode.sandbox.frames import decode_answer, encode
from clawmode.sandbox.protocol import Completion

pytestmark = pytest.mark.anyio

WHO = RunContext(agent_id="a", session_id="s", session_key="k", run_id="r")
LATER = RunContext(agent_id="a", session_id="s", session_key="k", run_id="later")
OTHERS = [
    LATER,
    RunContext(agent_id="a", session_id="s2", session_key="k", run_id="r"),
    RunContext(agent_id="a", session_id="s", session_key="k2", run_id="r"),
    RunContext(agent_id="b", session_id="s", session_key="k", run_id="r"),
    RunContext(agent_id="a", session_id="s", session_key="k", run_id=""),
    RunContext(agent_id="a", session_id="s", session_key="kr", run_id=""),
]
SESSION = CodeModeConfig(state="session")
LOAD = 'return load("a") ?? null'


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "state")


@pytest.fixture
def opened(pool: Pool, store: SnapshotStore) -> Callable[..., CodeMode]:
    def make(context: RunContext = WHO, **options: Any) -> CodeMode:
        chosen: dict[str, Any] = {"pool": pool, "store": store, "context": context, **options}
        return CodeMode(**chosen)

    return make


async def value_of(code_mode: CodeMode, source: str) -> Any:
    result = await code_mode.exec(source)
    assert result.status == "completed", result.error
    return result.value


# ---- Storing and loading ----


@pytest.mark.covers("AD-3")
async def test_the_next_program_finds_what_one_stored(opened: Callable[..., CodeMode]) -> None:
    async with opened() as one:
        source = 'const a = [1]; store("a", { a, u: undefined, n: null, é: "é" }); a.push(2)'
        await value_of(one, f'{source}; await store("b", false)')
        found = {"a": [1], "n": None, "é": "é"}
        assert await value_of(one, 'return [load("a"), await load("b")]') == [found, False]
        source = 'const a = load("a"); a.n = 1; return [load("a").n, typeof load("none")]'
        assert await value_of(one, source) == [None, "undefined"]
        await value_of(one, 'store("a", undefined); store("b", 2)')
        assert await value_of(one, 'return [load("a") ?? null, load("b")]') == [None, 2]


@pytest.mark.covers("AD-3")
@pytest.mark.parametrize("end", ['throw new Error("no")', "for (;;);", "null.x", "await missing()"])
async def test_what_was_stored_before_a_failure_is_kept(
    opened: Callable[..., CodeMode], end: str
) -> None:
    async with opened(config=CodeModeConfig(timeout_ms=400)) as one:
        assert (await one.exec(f'store("a", 1); {end}')).status == "failed"
        assert await value_of(one, LOAD) == 1


@pytest.mark.covers("AD-3")
async def test_a_parked_program_finds_what_was_stored_meanwhile(
    opened: Callable[..., CodeMode],
) -> None:
    async with opened() as one:
        source = """store("a", 1); store("b", 1); const before = load("a");
await yield_control(); return [before, load("a"), load("b"), load("c")]"""
        parked = await one.exec(source)
        async with opened() as other:  # as another process would have it
            await value_of(other, 'store("a", load("a") + 1); store("c", 3)')
            assert (await other.wait(parked.run_id)).value == [1, 2, 1, 3]


async def test_the_last_write_of_a_key_wins(opened: Callable[..., CodeMode]) -> None:
    async with opened() as one:
        source = 'store("KEY", 1); store("a", "KEY"); await yield_control(); store("z", load("a"))'
        parked = [await one.exec(source.replace("KEY", key)) for key in ("x", "y")]
        for each in reversed(parked):
            await one.wait(each.run_id)
        assert await value_of(one, 'return ["x", "y", "a", "z"].map(load)') == [1, 1, "y", "y"]


@pytest.mark.covers("AD-3")
async def test_what_is_stored_is_written_before_calls_are_made(
    opened: Callable[..., CodeMode], pool: Pool
) -> None:
    seen: list[Any] = []

    @tool
    async def look() -> None:
        """Look at the state as another program sees it."""
        async with opened() as other:
            seen.append(await value_of(other, LOAD))

    async with opened(tools=[look]) as one:
        await value_of(one, 'store("a", 1); await tools.look(); store("a", 2); await tools.look()')
    assert seen == [1, 2]


async def test_if_it_cannot_be_written_no_call_is_made(pool: Pool) -> None:
    class Broken(MemoryStore):
        async def write_shelf(self, shelf: Shelf, *rest: Any) -> bool:  # pyrefly: ignore
            raise StoreUnavailable("The disk is full.")

    called: list[int] = []

    @tool
    async def note() -> None:
        """Note a call."""
        called.append(1)

    broken: Any = Broken()
    async with CodeMode(tools=[note], store=broken, pool=pool, context=WHO) as one:
        result = await one.exec('text("kept"); store("a", 1); await tools.note()')
        assert (result.status, called) == ("failed", [])
        assert "The disk is full" in (result.error or "")
        assert result.output == [{"type": "text", "text": "kept"}]
        refused: Any = result.calls
        assert [call["state"] for call in refused] == ["not_started"]
        assert (await one.exec('store("a", 1); throw 7')).error == "Uncaught: 7"


# ---- Who finds it, and how long ----


@pytest.mark.hostile
@pytest.mark.covers("AD-3")
async def test_no_other_run_finds_it(opened: Callable[..., CodeMode]) -> None:
    async with opened() as one:
        await value_of(one, 'store("a", "secret")')
        for config in (CodeModeConfig(), SESSION):
            for context in OTHERS:
                async with opened(context, config=config) as other:
                    assert await value_of(other, LOAD) != "secret"
                    await value_of(other, 'store("a", "overwritten")')
        assert await value_of(one, LOAD) == "secret"


@pytest.mark.covers("AD-3")
async def test_a_session_finds_it_if_it_is_so_configured(opened: Callable[..., CodeMode]) -> None:
    async with opened(config=SESSION) as one:
        await value_of(one, 'store("a", 1)')
        await one.end_run()
    async with opened(LATER, config=SESSION) as later:
        assert await value_of(later, LOAD) == 1
        for context in OTHERS[1:4]:
            async with opened(context, config=SESSION) as other:
                assert await value_of(other, LOAD) is None
        await later.end_session()
        assert await value_of(later, LOAD) is None


@pytest.mark.hostile
async def test_runs_without_a_session_share_nothing(opened: Callable[..., CodeMode]) -> None:
    async with opened(RunContext(run_id="1"), config=SESSION) as one:
        await value_of(one, 'store("a", 1)')
        async with opened(RunContext(run_id="2"), config=SESSION) as other:
            assert await value_of(other, LOAD) is None


@pytest.mark.covers("AD-3")
async def test_it_ends_with_the_run(opened: Callable[..., CodeMode], store: SnapshotStore) -> None:
    async with opened() as one, opened(LATER) as other:
        for each in (one, other):
            await value_of(each, 'store("a", 1)')
        await one.end_run()
        assert await value_of(one, LOAD) is None
        assert await value_of(other, LOAD) == 1
    async with opened(LATER) as again:
        assert await value_of(again, LOAD) == (1 if store.durable else None)


@pytest.mark.parametrize(("config", "ttl"), [(None, RUN_SECONDS), (SESSION, SESSION_SECONDS)])
async def test_it_expires_if_nobody_uses_it(
    pool: Pool, tmp_path: Path, config: CodeModeConfig | None, ttl: float
) -> None:
    now = 1_000_000.0
    kinds = (MemoryStore(clock=lambda: now), SqliteStore(tmp_path, clock=lambda: now))
    for store in kinds:
        async with CodeMode(store=store, pool=pool, context=WHO, config=config) as one:
            await value_of(one, 'store("a", 1)')
            for _ in range(3):
                now += ttl * 0.9
                assert await value_of(one, LOAD) == 1  # every use renews it
            now += ttl + 1
            assert await value_of(one, LOAD) is None
            await value_of(one, 'store("b", 1)')
    with closing(sqlite3.connect(tmp_path / "cells.sqlite")) as database:
        assert database.execute("select count(*) from shelves").fetchone() == (1,)


# ---- Real processes ----


@pytest.mark.covers("AD-3")
async def test_it_survives_a_process_that_is_killed_in_the_middle(tmp_path: Path) -> None:
    source = """store("a", 1); await tools.read({ name: "x" });
store("a", 2); for (;;);"""
    async with started(tmp_path, "exec", source, YIELD_MS="60000") as (process, _):
        await until(lambda: times_called(tmp_path, "read-x"))
        await anyio.Path(tmp_path / "x").write_text("it")
        process.send_signal(signal.SIGKILL)
        await process.wait()
    source = 'store("b", load("a")); await tools.read({ name: "y" }); return load("b")'
    async with started(tmp_path, "exec", source) as (process, lines):
        parked = await lines.next()
        assert parked["status"] == "waiting"
        process.send_signal(signal.SIGKILL)
        await process.wait()
    await anyio.Path(tmp_path / "y").write_text("it")
    async with started(tmp_path, "wait", parked["runId"]) as (_, lines):
        while (result := await lines.next())["status"] == "waiting":
            pass
    assert result["value"] == 1


# ---- How much ----


@pytest.mark.covers("AD-3")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('store("a", "x".repeat(1048577))', "over 1 MiB"),
        ('store("a", "é".repeat(600000))', "over 1 MiB"),
        ('store("a", Array(600000).fill(7))', "over 1 MiB"),
        ('for (let n = 0; ; n++) store("k" + n, n)', "200 keys"),
        ('for (let n = 0; ; n++) store("k" + n, "x".repeat(1000000))', "over 4 MiB"),
        ('store("k".repeat(201), 1)', "shorter"),
        ('store("é".repeat(101), 1)', "shorter"),
        ("store(1, 1)", "must be a string"),
        ('store("", 1)', "must be a string"),
        ("load({})", "must be a string"),
        ('store("a", tools.search("x"))', "await"),
        ('globalThis["sto" + "re"]("a", 1)', "write"),
    ],
)
async def test_what_is_over_the_limits_is_an_error_that_says_so(
    pool: Pool, source: str, said: str
) -> None:
    async with CodeMode(pool=pool) as one:
        source = f"try {{ {source} }} catch (error) {{ return error.message }}"
        assert said in await value_of(one, source)
        source = "store('k0', undefined); store('ok', 1); return load('ok')"
        assert await value_of(one, source) == 1


async def test_values_at_the_limit_are_kept_and_make_room(opened: Callable[..., CodeMode]) -> None:
    """Several times in one program, too: what counts is what is there in the end."""
    source = """for (let round = 0; round < 3; round++) {
  for (let n = 0; n < 4; n++) store("k" + n, "x".repeat(1048574));
  for (let n = 0; n < 4; n++) store("k" + n, undefined);
  for (let n = 0; n < 200; n++) store("small" + n, round);
  for (let n = 0; n < 200; n++) store("small" + n, undefined);
}
for (let n = 0; n < 4; n++) store("k" + n, "x".repeat(1048574));"""
    async with opened() as one:
        await value_of(one, source)
        assert await value_of(one, 'return load("k3").length') == 1048574
        source = 'for (let n = 0; n < 4; n++) store("k" + n); store("a", 1); return load("k0") ?? 0'
        assert await value_of(one, source) == 0


@pytest.mark.hostile
async def test_programs_at_once_cannot_exceed_the_limits_together(
    opened: Callable[..., CodeMode],
) -> None:
    async with opened() as one:
        source = (
            'load("a"); await yield_control(); for (let n = 0; n < 150; n++) store("KEY" + n, n)'
        )
        parked = [await one.exec(source.replace("KEY", key)) for key in "xy"]
        results: list[CodeModeResult] = []

        async def wait(run_id: str) -> None:
            results.append(await one.wait(run_id))

        async with anyio.create_task_group() as tasks:
            for each in parked:
                tasks.start_soon(wait, each.run_id)
        failed = [result for result in results if result.status == "failed"]
        assert len(failed) == 1
        assert "store" in (failed[0].error or "")
        kept = 'return ["x", "y"].map((key) => load(key + 149) ?? null)'
        assert sorted(await value_of(one, kept), key=str) == [149, None]


async def test_the_memory_of_a_process_is_bounded() -> None:
    store, most = MemoryStore(), ShelfLimits(10, 100 << 20)
    for n in range(20):
        await store.write_shelf(Shelf("s", str(n), "v"), {"a": bytes(8 << 20)}, 100, most)
    left = [n for n in range(20) if await store.read_shelf(Shelf("s", str(n), "v"), 100)]
    assert left == list(range(20 - MAX_SHELVES_BYTES // (8 << 20), 20))


@pytest.mark.hostile
async def test_what_is_stored_takes_no_memory_of_programs_that_do_not_load_it(pool: Pool) -> None:
    config = CodeModeConfig(memory_limit_bytes=1 << 20)
    async with CodeMode(pool=pool) as one:
        await value_of(one, 'for (let n = 0; n < 4; n++) store("k" + n, "x".repeat(1000000))')
        small = CodeMode(pool=pool, config=config, context=one.context)
        async with small:
            assert await value_of(small, 'store("a", 1); return load("a")') == 1
            assert (await small.exec('return load("k0").length')).code == "memory_limit_exceeded"


# ---- Hostile programs, workers and files ----


@pytest.mark.hostile
@pytest.mark.covers("AD-3")
async def test_a_program_that_spoils_its_globals_harms_only_itself(pool: Pool) -> None:
    source = """JSON.stringify = JSON.parse = Map.prototype.get = () => "spoilt";
Object.defineProperty(Object.prototype, "code", { set() { throw 1 } });
store("__proto__", { polluted: 1 }); store("constructor", [1]); store("a\\nb\\u2028", "\\n!");
store = load = 1; globalThis.text = null; return 1"""
    async with CodeMode(pool=pool) as one:
        await one.exec(source)
        source = """return [load("constructor"), load("toString") ?? null, load("a\\nb\\u2028"),
({}).polluted ?? null, Object.keys(load("__proto__") ?? {})]"""
        assert await value_of(one, source) == [[1], None, "\n!", None, ["polluted"]]


@pytest.mark.hostile
async def test_a_worker_gives_nothing_to_the_next_program(opened: Callable[..., CodeMode]) -> None:
    """Also if the worker was held by a program that was parked, evicted or failed."""
    async with Pool(size=1) as pool, opened(pool=pool) as one, opened(LATER, pool=pool) as other:
        for end in ("return 1", "throw 1", "await yield_control()"):
            await one.exec(f'store("a", "secret"); {end}')
            hidden = 'globalThis["lo" + "ad"]("a")'
            assert await value_of(other, LOAD) is None
            refused = await other.exec(f"return {hidden}")
            assert "write load" in (refused.error or "")


@pytest.mark.hostile
@pytest.mark.parametrize(
    "stored",
    [
        [["a", b"x" * ((1 << 20) + 1)]],
        [["a" * 201, b"1"]],
        [[f"k{n}", b"1"] for n in range(401)],
        [[f"k{n}", b'"' + b"x" * 1_000_000 + b'"'] for n in range(5)],
        [["a", b"not JSON"]],
        [["a", b"NaN"]],
        [["a", "text"]],
        [[1, b"1"]],
        [["a"]],
        7,
    ],
)
def test_a_worker_that_stores_what_no_program_can_is_not_believed(stored: Any) -> None:
    frame = encode(Completion(b"1", (), stored), 3)
    with pytest.raises(ProtocolError):
        decode_answer(frame[4:], 3)


TAMPERING = {
    "a changed body": "update shelves set body = cast(substr(body, 1, 40) || '00' as blob)",
    "broken text": "update shelves set body = body || 'x', name = cast(x'ff' || name as text)",
    "a cut body": "update shelves set body = substr(body, 1, 25)",
    "an empty body": "update shelves set body = x''",
    "text": "update shelves set body = 'text'",
    "another name": "update shelves set name = name || 'x'",
    "the value of another key": "update shelves set body = (select max(body) from shelves)",
    "the rows of another run": "update shelves set run = (select max(run) from shelves)",
    "another session": "update shelves set session = (select max(session) from shelves)",
}


@pytest.mark.hostile
@pytest.mark.covers("AD-3")
@pytest.mark.parametrize("how", TAMPERING)
async def test_rows_that_were_altered_are_not_used(pool: Pool, tmp_path: Path, how: str) -> None:
    """They are deleted, and later programs start with nothing."""
    runs = [WHO, LATER, OTHERS[1]]
    for number, context in enumerate(runs):
        async with CodeMode(store=SqliteStore(tmp_path), pool=pool, context=context) as one:
            await value_of(one, f'store("a", "of {number}"); store("b{number}", "b of {number}")')
    with closing(sqlite3.connect(tmp_path / "cells.sqlite")) as database, database:
        # The names of rows are unique in a run: rows that cannot be moved stay.
        database.execute(TAMPERING[how].replace("update", "update or ignore", 1))
    for number, context in enumerate(runs):
        async with CodeMode(store=SqliteStore(tmp_path), pool=pool, context=context) as one:
            result = await one.exec(LOAD)
            if result.status == "failed":
                assert result.code == "snapshot_restore_failed"
                assert "deleted" in (result.error or "")
                assert await value_of(one, LOAD) is None
            else:
                assert result.value in (None, f"of {number}")


@pytest.mark.hostile
async def test_nothing_readable_is_in_the_file(pool: Pool, tmp_path: Path) -> None:
    async with CodeMode(store=SqliteStore(tmp_path), pool=pool, context=WHO) as one:
        await value_of(one, 'store("the-key", "the-value")')
        data = b"".join((tmp_path / f"cells.sqlite{end}").read_bytes() for end in ("", "-wal"))
    assert b"shelves" in data
    assert b"the-key" not in data
    assert b"the-value" not in data


async def test_two_stores_on_one_folder_see_each_other(pool: Pool, tmp_path: Path) -> None:
    """As two processes do: each writes its own keys, and both find all of them."""
    made = [CodeMode(store=SqliteStore(tmp_path), pool=pool, context=WHO) for _ in range(2)]
    async with made[0], made[1], anyio.create_task_group() as tasks:

        async def write(code_mode: CodeMode, name: str) -> None:
            for n in range(5):
                await value_of(code_mode, f'store("{name}{n}", {n}); store("shared", "{name}{n}")')

        for code_mode, name in zip(made, "xy", strict=True):
            tasks.start_soon(write, code_mode, name)
    async with CodeMode(store=SqliteStore(tmp_path), pool=pool, context=WHO) as one:
        source = 'return [...["x", "y"].flatMap((k) => [0, 1, 2, 3, 4].map((n) => load(k + n)))]'
        assert await value_of(one, source) == [0, 1, 2, 3, 4] * 2
        assert await value_of(one, 'return load("shared")') in ("x4", "y4")
