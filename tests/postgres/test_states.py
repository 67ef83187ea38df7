"""PostgreSQL against the model of all stores: owners on two nodes, and deaths of owners and nodes.

Every operation runs in the real server, in the thread of the caller.
"""

import itertools
from typing import Any

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from tests.code_mode.test_store_states import StoreStates
from tests.postgres.conftest import KEYS
from tests.postgres.timed import TimedStore, clear
from tests.support.fuzzing import examples

from clawmode.code_mode.stores import SnapshotStore, StoredCall
from clawmode.postgres import nodes
from clawmode.types import CallState


class DirectStore(TimedStore):
    """A store that works in the thread of its caller, which needs no event loop."""

    async def join(self) -> str:
        return self._members.join()

    async def leave(self, owner: str) -> None:
        self._members.leave(owner)

    async def _call_living(self, function: str, place: int, *args: Any) -> Any:
        me = self._members.find(args[place])
        return (await self._call(function, *args[:place], *me, *args[place + 1 :]))[0]

    async def _me(self, owner: str) -> tuple[int, int]:
        return self._members.find(owner)

    async def _call(self, function: str, *args: Any, repeats: bool = False) -> list[Any]:
        if (now := self._clock()) != self._set:
            self.connections.run("cm_test_time", now)
            self._set = now
        return self.connections.run(function, *args, repeats=repeats)


class PostgresStates(StoreStates):
    """The operations on two nodes, and a node that others declare dead."""

    durable = False
    database: str

    def __init__(self) -> None:
        clear(self.database)
        self.stores: list[DirectStore] = []
        self.zombies: list[DirectStore] = []
        self.turns = itertools.count()
        super().__init__()

    def teardown(self) -> None:
        for store in (*self.stores, *self.zombies):
            store.close()
        super().teardown()

    def new_store(self) -> SnapshotStore:
        if len(self.stores) < 2:
            self.stores.append(DirectStore(self.database, lambda: self.now, keys=KEYS, pool_size=1))
        return self.stores[next(self.turns) % len(self.stores)]

    def purge(self) -> None:
        for cell_id, cell in list(self.cells.items()):
            if cell.expires <= self.now and not self.alive(cell.holder):
                lost = cell.running and not cell.kept
                self.bury(cell_id, "aborted" if cell.aborted else "lost" if lost else "expired")

    @rule(number=st.integers(0, 5))
    @precondition(lambda self: len({*self.owners.values()} - {None}) > 1)
    def node_dies(self, number: int) -> None:
        """Others declare a node dead, which goes on without knowing of that."""
        name, zombie = self.owner(number)
        assert isinstance(zombie, DirectStore)
        with psycopg.connect(self.database, autocommit=True) as connection:
            dead = "update clawmode.cm_nodes set dead = clock_timestamp() where id = %s"
            connection.execute(dead, (int(name.split(".")[0]),))
        self.stores.remove(zombie)
        self.zombies.append(zombie)
        for owner, store in self.owners.items():
            if store is zombie:
                self.owners[owner] = None

    @staticmethod
    def calls_of(calls: tuple[StoredCall, ...]) -> dict[int, tuple[str, CallState]]:
        # A minus marks owners that have left while their node lives on.
        return {call.id: (call.owner.removeprefix("-"), call.state) for call in calls}

    @rule()
    def count(self) -> None:
        """The counters agree with the rows."""
        with psycopg.connect(self.database) as connection:
            counted = "select (select sum(parked) from clawmode.cm_counters)"
            counted += " = (select count(*) from clawmode.cm_cells where state <> 2)"
            assert connection.execute(counted).fetchone() == (True,)


def test_the_store_does_what_the_model_says(
    timed_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOUSE_SECONDS", "TICK_SECONDS"):  # nothing happens by itself
        monkeypatch.setattr(nodes, name, 3600.0)
    machine = type("Machine", (PostgresStates,), {"database": timed_database})
    run_state_machine_as_test(machine, settings=examples(6, stateful_step_count=30))
