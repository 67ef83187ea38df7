"""A store in PostgreSQL whose cells go by a clock of the test."""

from collections.abc import Callable
from typing import Any

import psycopg

from clawmode.code_mode.stores import CellInfo, Ended, Refusal, StoredCell
from clawmode.context import Scope
from clawmode.postgres.cells import PostgresStore
from clawmode.postgres.shelves import Row

CLOCK = """
create table clawmode.test_clock (at timestamptz);
insert into clawmode.test_clock values (to_timestamp(0));
create or replace function clawmode.cm__now() returns timestamptz language sql volatile as
$$ select at from clawmode.test_clock $$;
create function clawmode.cm_test_time(at float8) returns void language sql as
$$ update clawmode.test_clock set at = to_timestamp($1) $$;
"""


def stop_clock(database: str) -> None:
    """Replaces the clock of cells in a database."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(CLOCK)


def clear(database: str) -> None:
    """Deletes all rows, which is faster than a new database."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "delete from clawmode.cm_cells; delete from clawmode.cm_calls;"
            "delete from clawmode.cm_replies; delete from clawmode.cm_ended;"
            "delete from clawmode.cm_shelves; delete from clawmode.cm_nodes;"
            "update clawmode.cm_counters set parked = 0"
        )


class TimedStore(PostgresStore):
    """Sets the clock before each statement, and drops what has expired where other stores do.

    Args:
        dsn: A database whose clock was stopped.
        clock: Returns the time in seconds.
        options: See `PostgresStore`.
    """

    def __init__(self, dsn: str, clock: Callable[[], float], **options: Any) -> None:
        super().__init__(dsn, **options)
        self._clock = clock
        self._set: float | None = None

    async def _call(self, function: str, *args: Any, repeats: bool = False) -> list[Row]:
        now = self._clock()
        if now != self._set:
            await super()._call("cm_test_time", now)
            self._set = now
        return await super()._call(function, *args, repeats=repeats)

    async def room(self, limit: int) -> bool:
        await self._expire()
        return await super().room(limit)

    async def park(self, *args: Any, **options: Any) -> None:
        await self._expire()
        await super().park(*args, **options)

    async def claim(self, *args: Any, **options: Any) -> StoredCell | Refusal:
        await self._expire()
        return await super().claim(*args, **options)

    async def ended(self, cell_id: str, scope: Scope) -> Ended | None:
        await self._expire()
        return await super().ended(cell_id, scope)

    async def count_parked(self) -> int:
        await self._expire()
        return await super().count_parked()

    async def cells(self, *args: Any, **options: Any) -> list[CellInfo]:
        await self._expire()
        return await super().cells(*args, **options)
