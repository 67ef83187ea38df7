"""What every store of parked cells promises, promised by PostgreSQL: the tests of the others."""

import inspect
from collections.abc import Callable, Iterator

import pytest
from tests.code_mode import test_stores as contract
from tests.postgres.conftest import KEYS
from tests.postgres.timed import TimedStore, clear
from tests.support.stores import Clock

from clawmode.code_mode.stores import SnapshotStore

pytestmark = pytest.mark.anyio

OTHERWISE = {"test_tombstones_are_bounded"}
"""PostgreSQL drops tombstones by the day."""

DAY = 86400.0

SHARED = {
    name: test
    for name, test in vars(contract).items()
    if name.startswith("test_")
    and not {"store", "making"}.isdisjoint(inspect.signature(test).parameters)
    and name not in OTHERWISE
}
globals().update(SHARED)


@pytest.fixture
def making(timed_database: str) -> Iterator[Callable[[Clock], SnapshotStore]]:
    opened: list[TimedStore] = []

    def makes(clock: Clock) -> SnapshotStore:
        opened.append(TimedStore(timed_database, clock, keys=KEYS))
        return opened[-1]

    yield makes
    for store in opened:
        store.close()
    clear(timed_database)


@pytest.fixture
def store(making: Callable[[Clock], SnapshotStore]) -> SnapshotStore:
    return making(lambda: 1000.0)


def test_the_contract_was_found() -> None:
    assert len(SHARED) >= 25


@pytest.mark.covers("PG-12")
@pytest.mark.parametrize("day", range(4))
async def test_the_end_of_a_program_is_known_for_two_more_days(
    making: Callable[[Clock], SnapshotStore], day: int
) -> None:
    now = day * DAY + DAY - 1
    store = making(lambda: now)
    me = await store.join()
    await store.park(contract.cell(), me, 9, again=False)
    await store.end("cm_1", contract.MINE, "finished", 0)
    for _ in range(3):
        assert await store.claim("cm_1", contract.MINE, me) == "finished"
        now += DAY
    assert await store.claim("cm_1", contract.MINE, me) == "unknown"
