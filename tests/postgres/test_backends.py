"""What every backend promises, promised by PostgreSQL: the tests of the folder."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from tests.app import test_backends as contract
from tests.postgres.test_state import KEY
from tests.support.waiting import until

from clawmode.app.backends import Backend, open_backend
from clawmode.app.setup import Setup
from clawmode.code_mode.snapshots import KEY_VARIABLE
from clawmode.code_mode.stores import StoredCell
from clawmode.postgres import fleet
from clawmode.postgres.bus import LONG_POLL

pytestmark = pytest.mark.anyio

SHARED = {name: test for name, test in vars(contract).items() if name.startswith("test_")}
globals().update(SHARED)

two = contract.two


@pytest.fixture
async def one(setup: Setup) -> AsyncIterator[Backend]:
    """A backend that listens: when it begins to, it wakes everyone once."""
    async with open_backend(setup) as backend:
        await until(lambda: backend.bus.poll == LONG_POLL)
        yield backend


@pytest.fixture
def setup(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Setup:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    return contract.make_setup(tmp_path, state=database)


def test_the_contract_was_found() -> None:
    assert len(SHARED) >= 8


async def test_a_node_publishes_its_keys(one: Backend) -> None:
    (node,) = await one.nodes.living()
    assert list(node.keys) == one.cells.keys.ids


async def test_a_node_that_drains_does_so_after_it_was_declared_dead(one: Backend) -> None:
    await one.nodes.drain()
    before = await one.nodes.enter()
    cells = one.cells
    assert isinstance(cells, fleet.FleetStore)
    await anyio.to_thread.run_sync(cells._members.declared_dead, int(before))
    after = await one.nodes.enter()
    found = {node.id: node.draining for node in await one.nodes.living()}
    assert found[after]


async def test_a_large_store_is_not_counted_one_by_one(
    one: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "COUNTED", 2)
    me = await one.cells.join()
    for number in range(3):
        cell = StoredCell(
            id=f"cm_{number}", scope=contract.SCOPE, ttl=60, record=b"r", snapshot=b"s"
        )
        await one.cells.park(cell, me, 9, again=False)
    found = await one.cells.report()
    assert (found.parked, found.counted, found.running) == (3, None, None)
