"""Parts of the fault runs of `make soak`: nodes are killed, stopped and cut off under load."""

import tempfile
from pathlib import Path

import pytest
from tests.support.fleet.harness import opened
from tests.support.fleet.schedule import FOLDER, POSTGRES

from postgres_server import PostgresServer

pytestmark = pytest.mark.anyio


@pytest.mark.covers("FL-1")
async def test_nodes_on_one_folder_survive_kills_and_stops(tmp_path: Path) -> None:
    plan = FOLDER.divided(30)
    async with opened(plan, tmp_path) as fleet:
        verdict = await fleet.run()
    assert not verdict.problems, "\n".join(verdict.problems)
    assert fleet.faults["kill"] == plan.kills + 1
    assert verdict.counts["completed"] > plan.moved


@pytest.mark.covers("FL-2")
async def test_nodes_on_postgresql_survive_a_tenth_of_all_faults(tmp_path: Path) -> None:
    plan = POSTGRES.divided(10)
    with tempfile.TemporaryDirectory() as folder, PostgresServer(folder) as server:
        async with opened(plan, tmp_path, server) as fleet:
            verdict = await fleet.run()
    assert not verdict.problems, "\n".join(verdict.problems)
    assert fleet.faults["kill"] == plan.kills + 1
    assert (fleet.faults["stop"], fleet.faults["restart"]) == (plan.stops, plan.restarts)
    assert verdict.counts["completed"] > plan.moved
