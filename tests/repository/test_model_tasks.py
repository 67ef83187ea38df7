"""The tasks of `make eval`: solvable on every surface, by nobody who does nothing."""

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from bench.model_tasks import library, tracker
from bench.model_tasks.desk import Desk, say
from bench.model_tasks.players import Player
from bench.model_tasks.runs import SURFACES, Office, open_office, oracle
from bench.model_tasks.tasks import TASKS, Outcome
from bench.model_tasks.world import World

from clawmode.agent.requests import AgentRequest
from clawmode.agent.run import idle_limit, time_limit
from clawmode.config.agents import AgentOptions

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
MAX_RESULT_BYTES = 150
"""A result with its telemetry took 374 bytes on average, and the answers alone take 49."""
MAX_DEFINITION_BYTES = 6_400


@pytest.fixture(scope="module")
async def office(anyio_backend: str) -> AsyncIterator[Office]:
    async with open_office() as opened:
        yield opened


@pytest.mark.parametrize(
    "surface",
    # The others need many more requests.
    [
        pytest.param(each, marks=[] if each == "code mode" else pytest.mark.ordeal)
        for each in SURFACES
    ],
)
@pytest.mark.parametrize("name", TASKS)
async def test_the_ideal_solution_solves_the_task(office: Office, name: str, surface: str) -> None:
    run = await office.run(TASKS[name], surface, oracle(TASKS[name], surface))
    assert (run.solved, run.problem) == (True, ""), run.answer
    if surface == "code mode":
        # One program and the answer; a busy machine may need a `wait`.
        assert 2 <= run.figures.requests <= 4
        assert not run.figures.mistakes
        assert run.figures.results <= MAX_RESULT_BYTES
        assert run.figures.definitions <= MAX_DEFINITION_BYTES


@pytest.mark.parametrize("name", TASKS)
def test_a_model_that_does_nothing_solves_no_task(name: str) -> None:
    documents = {key: it.model_dump() for key, it in library.make_documents().items()}
    outcome = Outcome("Done.", World(), tracker.make_issues(), documents)
    assert not TASKS[name].check(outcome)


async def test_a_person_at_the_desk_plays_the_model(office: Office, tmp_path: Path) -> None:
    desk, path, seen = Desk(), tmp_path / "desk", list[str]()

    async def person() -> None:
        for message in (
            ("show", None),
            ("exec", {"code": TASKS["price"].program}),
            ("answer", "It costs 355.8 euros."),
        ):
            seen.append(await anyio.to_thread.run_sync(say, path, *message))

    with anyio.fail_after(30):
        async with desk.listen(path), anyio.create_task_group() as tasks:
            tasks.start_soon(person)
            run = await office.run(TASKS["price"], "code mode", Player("desk", desk.reply))
            await desk.end()
    definitions, result, end = seen
    assert "TOOL exec" in definitions
    assert TASKS["price"].text in definitions
    assert "355.8" in result
    assert end.startswith("The task has ended")
    assert run.solved
    assert run.figures.requests == 2


def test_a_person_at_the_desk_may_think_longer_than_a_model() -> None:
    agent, request = AgentOptions(), AgentRequest()
    assert idle_limit(Player.limits, agent, request) == time_limit(agent, request)


def test_the_command_prints_a_table_and_where_code_mode_loses() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.model_tasks", "--task", "price"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Tool Search" in done.stdout
    assert "1 of 1" in done.stdout
