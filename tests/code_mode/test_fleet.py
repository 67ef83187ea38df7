"""Several nodes on one store, killed and stopped: nothing is lost, doubled or kept from anybody.

The long runs are in `tests/ordeals/test_fleet.py`; here, the harness and its checker are proven.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.fleet.checker import Program, Telling, Verdict, check
from tests.support.fleet.harness import opened
from tests.support.fleet.outside import Effect, Proxy, Weather, listening
from tests.support.fleet.schedule import SOURCE, Plan, make_schedule
from tests.support.waiting import undisturbed_time

from clawmode.code_mode.exits import HELD
from postgres_server import PostgresServer

pytestmark = pytest.mark.anyio


# ---- The checker ----


def completed(name: str, *told: tuple[str, str]) -> Telling:
    value = {"name": name, "told": [list(pair) for pair in told]}
    return Telling(name, "n0", {"status": "completed", "value": value})


def refused(name: str, why: str, *calls: dict[str, Any]) -> Telling:
    notes, code = [f"refusal: {why}"], "invalid_input"
    result = {"status": "failed", "code": code, "notes": notes, "calls": list(calls)}
    return Telling(name, "n1", result)


def failed(name: str, code: str, *states: str) -> Telling:
    calls = [{"state": state, "input": {"key": f"p/{n}"}} for n, state in enumerate(states, 1)]
    result = {"status": "failed", "code": code, "error": code, "calls": calls}
    return Telling(name, "n1", result)


WAITING = Telling("p", "n0", {"status": "waiting", "runId": "cm_1"})
PROGRAM = Program("p", "", {"p/1": "act", "p/2": "put", "p/3": "look"}, run="cm_1")
TOLD = (("p/1", "done"), ("p/2", "done"), ("p/3", "done"))
HAPPENED = [Effect(kind, key, "n0", 0.0) for key, kind in PROGRAM.calls.items()]


def judged(
    *tellings: Telling, effects: list[Effect] = HAPPENED, program: Program = PROGRAM
) -> Verdict:
    return check([program], effects, [WAITING, *tellings], "effects")


def test_a_checker_finds_nothing_wrong_with_a_good_run() -> None:
    verdict = judged(completed("p", *TOLD), effects=[*HAPPENED, HAPPENED[1]])
    assert verdict.problems == []
    assert verdict.counts["completed"] == 1
    assert verdict.counts["repeated, as allowed"] == 1


def test_a_checker_counts_unknown_outcomes_whether_they_happened_or_not() -> None:
    told = completed("p", ("p/1", "outcome_unknown"), *TOLD[1:])
    for effects in (HAPPENED, HAPPENED[1:]):
        verdict = judged(told, effects=effects)
        assert (verdict.problems, verdict.counts["unknown, told"]) == ([], 1)


NOBODY_SAID = completed("p", *TOLD[1:])
PLANTED: dict[str, tuple[str, list[Telling], list[Effect]]] = {
    "an effect that happened twice": ("doubled", [completed("p", *TOLD)], HAPPENED * 2),
    "a program without an end": ("lost", [], HAPPENED),
    "a program that nobody knows any more": ("lost", [refused("p", "unknown")], HAPPENED),
    "a program that died with its node": ("lost", [refused("p", "lost")], HAPPENED),
    "an unknown outcome that nobody was told of": ("unreported", [NOBODY_SAID], HAPPENED),
    "an end that nobody heard, without its calls": (
        "unreported",
        [refused("p", "finished")],
        HAPPENED[:1],
    ),
    "an effect that never happened": ("invented", [completed("p", *TOLD)], HAPPENED[1:]),
    "an effect that was told as refused": (
        "denied",
        [completed("p", ("p/1", "store_unavailable"), *TOLD[1:])],
        HAPPENED,
    ),
    "an abort that nobody asked for": (
        "spurious",
        [failed("p", "aborted", "completed", "completed", "not_started")],
        HAPPENED[:2],
    ),
    "a failure that nobody caused": ("spurious", [failed("p", "runtime_unavailable")], []),
    "a call that was told as aborted": (
        "spurious",
        [completed("p", ("p/1", "aborted"), *TOLD[1:])],
        HAPPENED[1:],
    ),
    "a program that ended on two nodes": ("ended twice", [completed("p", *TOLD)] * 2, HAPPENED),
    "two ends that differ": (
        "contradicted",
        [completed("p", *TOLD), completed("p", ("p/1", "outcome_unknown"), *TOLD[1:])],
        HAPPENED,
    ),
}


@pytest.mark.covers("FL-1")
@pytest.mark.parametrize("planted", PLANTED)
def test_a_checker_finds_a_planted_fault(planted: str) -> None:
    expected, tellings, effects = PLANTED[planted]
    verdict = judged(*tellings, effects=effects)
    assert verdict.counts[expected] == 1, verdict.problems
    assert sum(problem.startswith(expected) for problem in verdict.problems) == 1


def test_a_checker_blames_a_program_that_acted_and_cannot_be_found() -> None:
    lost = replace(PROGRAM, run="", asked=True)
    assert check([lost], HAPPENED, [], "effects").counts["lost"] == 1
    assert check([lost], [], [], "effects").problems == []


def test_a_checker_forgives_the_loss_of_a_held_program_only_if_it_changed_nothing() -> None:
    notes = [HELD.format("No store.")]
    held = replace(WAITING, node="n0", result={**WAITING.result, "notes": notes})
    told = [held, refused("p", "unknown")]
    verdict = check([PROGRAM], HAPPENED[2:], told, "effects")
    assert (verdict.problems, verdict.counts["died with its node, told so"]) == ([], 1)
    assert check([PROGRAM], HAPPENED, told, "effects").counts["lost"] == 1
    assert check([PROGRAM], [], told[1:], "effects").counts["lost"] == 1
    alive = [replace(telling, node="n0") for telling in told]
    assert check([PROGRAM], [], alive, "effects").counts["lost"] == 1


def test_the_calls_of_an_end_that_nobody_heard_are_told_by_its_ledger() -> None:
    row = {"id": "1", "toolId": "act", "state": "unknown", "input": {"key": "p/1"}}
    other = {"id": "2", "toolId": "put", "state": "completed", "input": {"key": "p/2"}}
    verdict = judged(refused("p", "finished", row, other))
    assert verdict.problems == []
    assert verdict.counts["ended unheard"] == verdict.counts["unknown, told"] == 1


# ---- The schedule ----


def test_a_seed_gives_the_same_faults_again() -> None:
    plan = Plan(seed=7, kills=20, stops=10, cuts=30, restarts=5)
    first, other = make_schedule(plan), make_schedule(replace(plan, seed=8))
    assert make_schedule(plan) == first
    assert other != first
    kinds = [fault.kind for lane in first for fault in lane]
    assert (kinds.count("kill"), kinds.count("stop"), kinds.count("restart")) == (20, 10, 5)
    assert len(kinds) == 65
    assert all(fault.lasts > plan.lease for lane in first for fault in lane if fault.kind == "stop")


# ---- The network ----


@asynccontextmanager
async def echoed() -> AsyncIterator[Proxy]:
    """A proxy to a server that sends everything back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    async with listening(echo) as port, Proxy(port).serving() as proxy:
        yield proxy


async def said(reader: asyncio.StreamReader, seconds: float) -> bytes | None:
    try:
        return await asyncio.wait_for(reader.read(100), seconds)
    except TimeoutError:
        return None


async def test_a_black_hole_delivers_when_it_ends_and_a_half_open_connection_is_reset() -> None:
    async with echoed() as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"one")
        assert await said(reader, 5) == b"one"
        proxy.change("hole")
        writer.write(b"two")
        assert await said(reader, 0.05) is None
        proxy.change("calm")
        assert await said(reader, 5) == b"two"
        proxy.change("half")
        writer.write(b"three")
        assert await said(reader, 0.05) is None
        proxy.change("calm")
        with pytest.raises(ConnectionResetError):
            await said(reader, 5)
        writer.close()


@pytest.mark.parametrize("weather", ["cut", "reset"])
async def test_a_cut_ends_connections_and_refuses_new_ones_until_it_is_over(
    weather: Weather,
) -> None:
    async with echoed() as proxy:
        for expected in (True, False, True):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            try:
                writer.write(b"one")
                assert (await said(reader, 5) == b"one") is expected
            except ConnectionResetError:
                assert not expected
            finally:
                writer.close()
            proxy.change(weather if expected else "calm")


# ---- A fleet ----


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """A server of its own, which writes to the disk, and which a test may restart."""
    with tempfile.TemporaryDirectory() as folder, PostgresServer(folder) as server:
        yield server


@pytest.mark.covers("FL-1", "WA-11")
async def test_nodes_on_one_folder_are_killed_and_stopped_and_lose_nothing(tmp_path: Path) -> None:
    plan = Plan(seed=23, moved=20, kills=4, stops=1, callers=6, gap=0.3, lease=0.3)
    async with opened(plan, tmp_path) as fleet:
        verdict = await fleet.run()
    assert not verdict.problems, "\n".join(verdict.problems)
    assert fleet.faults["kill"] == plan.kills + 1
    assert verdict.counts["unknown, told"] >= 2
    assert verdict.counts["completed"] >= plan.moved
    # What the checker says rests on a log of the world outside, in which programs did act.
    assert verdict.counts["calls"] >= plan.moved


@pytest.mark.covers("FL-2")
async def test_nodes_on_postgresql_lose_nothing(tmp_path: Path, postgres: PostgresServer) -> None:
    plan = Plan(
        seed=23,
        durability="effects",
        moved=20,
        kills=3,
        stops=1,
        cuts=4,
        restarts=1,
        callers=6,
        gap=0.3,
        lease=1.0,
        clocks=True,
    )
    async with opened(plan, tmp_path, postgres) as fleet:
        verdict = await fleet.run()
    assert not verdict.problems, "\n".join(verdict.problems)
    assert fleet.faults["kill"] == plan.kills + 1
    assert sum(fleet.faults.values()) == 1 + 3 + 1 + 4 + 1
    assert verdict.counts["unknown, told"] >= 2
    assert verdict.counts["completed"] >= plan.moved


@pytest.mark.covers("FL-3")
async def test_timers_keep_their_time_on_machines_with_other_clocks(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    plan = Plan(seed=1, durability="effects", clocks=True)
    clocks = {plan.clock_of(number) for number in range(plan.nodes)}
    assert {skew for skew, _ in clocks} == {3600, 0, -3600}
    assert max(up for _, up in clocks) - min(up for _, up in clocks) == 60 * 86_400
    async with opened(plan, tmp_path, postgres) as fleet, anyio.create_task_group() as tasks:

        async def measure(begun: int, ended: int) -> None:
            name = f"timer{begun}{ended}"
            line = "await new Promise((resolve) => setTimeout(resolve, 1500));"
            program = Program(name, SOURCE % (line, name), {})
            pids = {fleet.nodes[begun].pid, fleet.nodes[ended].pid}
            began, undisturbed = time.monotonic(), undisturbed_time(*pids)
            await fleet.exec(program, fleet.nodes[begun], yield_ms=50)
            assert program.run
            await fleet.finish(program, random.Random(), [fleet.nodes[ended]])
            seconds = time.monotonic() - began
            taken[begun, ended] = (seconds, undisturbed_time(*pids) - undisturbed)

        taken: dict[tuple[int, int], tuple[float, float]] = {}
        for begun in range(plan.nodes):
            for ended in range(plan.nodes):
                tasks.start_soon(measure, begun, ended)
    assert len(taken) == 9
    assert all(seconds > 1.45 and undisturbed < 2.5 for seconds, undisturbed in taken.values()), (
        taken
    )
