"""What programs and people notice while PostgreSQL cannot be reached, and after that."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from tests.postgres.conftest import KEYS
from tests.support.fleet.outside import Proxy
from tests.support.gateway_driver import wired
from tests.support.waiting import until

from clawmode import Approvals, CodeMode, CodeModeConfig, CodeModeResult, Pool, RunContext, tool
from clawmode.code_mode import exits
from clawmode.code_mode.parking import Parking
from clawmode.code_mode.programs import KEPT_THERE
from clawmode.exceptions import SnapshotKeyLost
from clawmode.postgres import connection, membership, nodes
from clawmode.postgres.cells import PostgresStore
from clawmode.tools.tool import Tool

pytestmark = pytest.mark.anyio

WHO = RunContext(agent_id="a", session_id="s", session_key="k", run_id="r")


class World:
    """Tools, and what they did: `write` is made at once, and `slow` when the test says so."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.go = anyio.Event()

        @tool(effect="read")
        async def look() -> str:
            """Look."""
            return "seen"

        @tool(effect="write")
        async def write(n: int) -> str:
            """Write."""
            self.done.append(f"write {n}")
            return f"wrote {n}"

        @tool(effect="write")
        async def slow() -> str:
            """Write slowly."""
            self.done.append("slow")
            await self.go.wait()
            return "slowly"

        self.tools: list[Tool] = [look, write, slow]


class Site:
    """Two nodes on one database, of which `cut` takes the first off its network."""

    def __init__(self, proxy: Proxy, here: CodeMode, there: CodeMode, world: World) -> None:
        self.proxy, self.here, self.there, self.world = proxy, here, there, world

    def cut(self) -> None:
        self.proxy.change("reset")

    async def mend(self) -> None:
        self.proxy.change("calm")
        await until(lambda: not self.here._driver.exits.owing)

    async def finish(self, node: CodeMode, result: CodeModeResult) -> CodeModeResult:
        with anyio.fail_after(30):
            while result.status == "waiting" or result.code == "snapshot_restore_failed":
                result = await node.wait(str(result.run_id))
        return result


def through(proxy: Proxy, database: str) -> str:
    return database.replace(f":{urlsplit(database).port}/", f":{proxy.port}/")


@pytest.fixture
def site(database: str, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(connection, "QUEUE_SECONDS", 0.3)
    monkeypatch.setattr(exits, "RECORD_AGAIN", 0.05)

    @asynccontextmanager
    async def made(**options: Any) -> AsyncIterator[Site]:
        world, config = World(), CodeModeConfig(durability="effects", timeout_ms=1500)
        given: dict[str, Any] = {"tools": world.tools, "context": WHO, "pool": pool}
        async with Proxy(urlsplit(database).port or 0).serving() as proxy:
            near = PostgresStore(through(proxy, database), keys=KEYS, name="here")
            far = PostgresStore(database, keys=KEYS, name="there")
            async with (
                CodeMode(store=near, config=config, **given, **options) as here,
                CodeMode(store=far, config=config, **given) as there,
            ):
                await near.nodes.enter()
                yield Site(proxy, here, there, world)
                await Site(proxy, here, there, world).mend()
            near.close()
            far.close()

    return made


@pytest.mark.covers("DU-9")
async def test_programs_compute_and_read_and_effects_are_refused(
    site: Callable[..., Any],
) -> None:
    async with site() as it:
        it.cut()
        computed = await it.here.exec("return 6 * 7")
        read = await it.here.exec("return tools.look()")
        source = "try { return await tools.write({ n: 1 }) } catch (error) { return error.code }"
        await it.here.wait("cm_" + 32 * "0")  # finds out: no statement is sent any more
        refused = await it.here.exec(source)
        await it.mend()
        made = await it.here.exec(source)
    assert [each.value for each in (computed, read, refused)] == [42, "seen", "store_unavailable"]
    assert (made.value, it.world.done) == ("wrote 1", ["write 1"])


@pytest.mark.covers("DU-9", "DU-11")
async def test_what_is_answered_during_the_outage_is_delivered_after_it(
    site: Callable[..., Any],
) -> None:
    async with site() as it:
        parked = await it.here.exec("return tools.slow()", yield_ms=200)
        assert parked.status == "waiting"
        it.cut()
        it.world.go.set()
        await until(lambda: bool(it.here._calls.groups[parked.run_id].unsaved))
        away = await it.here.wait(str(parked.run_id))
        assert away.code == "snapshot_restore_failed"
        assert "wait for it once more" in str(away.error)
        await it.mend()
        ended = await it.finish(it.there, parked)
    assert (ended.value, it.world.done) == ("slowly", ["slow"])


@pytest.mark.covers("DU-9")
async def test_a_person_who_answers_during_the_outage_approves_no_effect_that_is_not_stored(
    site: Callable[..., Any],
) -> None:
    desk = Approvals(ask_for=["write"])
    async with site(approvals=desk) as it:
        source = "try { return await tools.write({ n: 1 }) } catch (error) { return error.code }"
        parked = await it.here.exec(source)
        it.cut()
        (question,) = desk.pending()
        assert desk.resolve(question.id, "allow-once")
        await until(lambda: bool(it.here._calls.groups[parked.run_id].unsaved))
        assert it.world.done == []
        await it.mend()
        ended = await it.finish(it.there, parked)
    assert (ended.value, it.world.done) == ("store_unavailable", [])


@pytest.mark.covers("DU-11")
async def test_a_program_that_parks_during_the_outage_goes_on_after_it(
    site: Callable[..., Any],
) -> None:
    async with site() as it:
        it.cut()
        held = await it.here.exec("const seen = await tools.look(); await yield_control();"
                                  "return [seen, await tools.write({ n: 1 })]")  # fmt: skip
        assert (held.status, "kept only in this process" in held.notes[0]) == ("waiting", True)
        elsewhere = await it.there.wait(held.run_id)
        assert (elsewhere.error or "").endswith(KEPT_THERE)
        await it.mend()
        ended = await it.finish(it.there, held)
    assert (ended.value, it.world.done) == (["seen", "wrote 1"], ["write 1"])


async def test_only_some_programs_are_held_during_the_outage(
    site: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exits, "MAX_HELD", 2)
    async with site() as it:
        it.cut()
        made = [await it.here.exec("await yield_control(); return 1") for _ in range(3)]
        assert [each.status for each in made] == ["waiting", "waiting", "failed"]
        assert made[2].code == "runtime_unavailable"
        await it.mend()
        assert [(await it.finish(it.there, each)).value for each in made[:2]] == [1, 1]


@pytest.mark.covers("DU-15")
@pytest.mark.parametrize("fails", [False, True])
async def test_the_end_of_a_stored_program_is_told_when_it_is_stored(
    site: Callable[..., Any], fails: bool
) -> None:
    """Another node may take the program over meanwhile, and end it otherwise."""
    async with site() as it:
        told: list[CodeModeResult] = []

        async def run() -> None:
            end = "throw new Error(told)" if fails else "return told"
            told.append(await it.here.exec(f"const told = await tools.slow(); {end}"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await until(lambda: it.world.done == ["slow"])
            it.cut()
            it.world.go.set()
        assert (told[0].status, "kept only" in told[0].notes[0]) == ("waiting", True)
        await it.mend()
        ended = await it.finish(it.there, told[0])
    expected = (None, True) if fails else ("slowly", False)
    assert (ended.value, "slowly" in str(ended.error)) == expected
    assert it.world.done == ["slow"]


@pytest.mark.covers("DU-15")
@pytest.mark.parametrize("fails", [False, True])
async def test_a_result_whose_end_was_stored_is_told_here_though_the_answer_was_lost(
    site: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(connection.Connection, "patience", 0.4)
    async with site() as it:
        told: list[CodeModeResult] = []

        async def run() -> None:
            end = "throw new Error(told)" if fails else "return told"
            told.append(await it.here.exec(f"const told = await tools.slow(); text(told); {end}"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await until(lambda: it.world.done == ["slow"])
            it.proxy.change("half")  # statements arrive, and answers do not
            it.world.go.set()
        assert (told[0].status, len(told[0].output)) == ("waiting", 1)
        await it.mend()
        assert (await it.there.wait(told[0].run_id)).error.endswith("has ended.")
        ended = await it.finish(it.here, told[0])
    assert (ended.value, "slowly" in str(ended.error)) == (
        (None, True) if fails else ("slowly", False)
    )
    assert (ended.output, ended.notes) == ([], [])


async def test_a_claim_whose_answer_was_lost_is_forgotten_if_the_program_cannot_be_read(
    site: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else, it would be tried for ever, before all else that the store has to be told."""
    async with site() as it:
        parked = await it.there.exec("await yield_control(); return 1")
        it.cut()
        assert (await it.here.wait(parked.run_id)).code == "snapshot_restore_failed"

        def unreadable(*_: object) -> None:
            raise SnapshotKeyLost("the key is gone")

        with monkeypatch.context() as patched:
            patched.setattr(Parking, "_read", unreadable)
            await it.mend()
        assert (await it.finish(it.there, parked)).value == 1


@pytest.mark.covers("DU-13")
async def test_an_abort_elsewhere_reaches_a_node_that_was_cut_off(
    site: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawmode.code_mode.aborts.ABORT_SECONDS", 0.3)
    async with site() as it:
        told: list[CodeModeResult] = []

        async def run() -> None:
            told.append(await it.here.exec("return tools.slow()"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await until(lambda: it.world.done == ["slow"])
            (run_id,) = it.here.cells()
            it.proxy.change("hole")
            with pytest.raises(exits.StoreUnavailable, match="has not confirmed"):
                await it.there.abort(run_id)
            assert (await it.there.wait(run_id)).code == "aborted"
            it.proxy.change("calm")
        assert told[0].code == "aborted"
        assert await it.there.unfinished() == []


@pytest.mark.covers("PG-14")
async def test_readyz_says_that_the_database_is_unreachable(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAWMODE_SNAPSHOT_KEY", "A" * 43 + "=")
    monkeypatch.setattr(membership, "REACHED_SECONDS", 0.5)
    monkeypatch.setattr(nodes, "TICK_SECONDS", 0.05)
    async with Proxy(urlsplit(database).port or 0).serving() as proxy:
        state = through(proxy, database)
        async with wired(tmp_path, state=state) as it, httpx2.AsyncClient() as http:
            address = it.url.replace("ws://", "http://") + "/readyz"

            async def says(status: int) -> bool:
                return (await http.get(address)).status_code == status

            await until(lambda: says(200))
            proxy.change("hole")
            await until(lambda: says(503))
            assert (await http.get(address)).json() == {"ready": False, "store": "unreachable"}
            proxy.change("calm")
            await until(lambda: says(200))
