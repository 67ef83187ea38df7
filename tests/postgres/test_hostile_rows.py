"""Rows that somebody has altered in the database: no program runs from them."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from clawmode import CodeMode, Pool, RunContext
from clawmode.postgres.cells import PostgresStore

pytestmark = [pytest.mark.anyio, pytest.mark.hostile]

CONTEXT = RunContext(agent_id="a", session_id="s", session_key="k", run_id="r")
WAITS = "const x = 40; await yield_control(); return x + 2"
ALTERED = {
    "truncated": "update clawmode.cm_cells set snapshot = substr(snapshot, 1, 100)",
    "empty": "update clawmode.cm_cells set record = '', snapshot = '', ledger = ''",
    "flipped": "update clawmode.cm_cells"
    " set record = set_byte(record, 60, get_byte(record, 60) # 1)",
    "swapped memory": "update clawmode.cm_cells c set snapshot = o.snapshot"
    " from clawmode.cm_cells o where o.id <> c.id",
    "swapped records": "update clawmode.cm_cells c set record = o.record, ledger = o.ledger"
    " from clawmode.cm_cells o where o.id <> c.id",
    "swapped marks": "update clawmode.cm_cells c set mark = o.mark"
    " from clawmode.cm_cells o where o.id <> c.id",
    "another run": "update clawmode.cm_cells set run = 'other'",
    "a reply out of nowhere": "insert into clawmode.cm_replies (cell, call, body)"
    " select id, 1, 'forged' from clawmode.cm_cells",
    "a call out of nowhere": "insert into clawmode.cm_calls"
    " select id, 7, 999999, 1, 'not a state', 'forged' from clawmode.cm_cells",
    "nonsense": "update clawmode.cm_cells set state = 77, owner = -5, fence = -9, ttl = 'infinity'",
}


@pytest.mark.covers("PG-6")
@pytest.mark.parametrize("how", ALTERED)
async def test_an_altered_row_resumes_no_program(
    opening: Callable[..., PostgresStore],
    admin: "psycopg.Connection[Any]",
    pool: Pool,
    how: str,
) -> None:
    async with CodeMode(store=opening(), context=CONTEXT, pool=pool) as code_mode:
        first, second = [(await code_mode.exec(WAITS)).run_id for _ in range(2)]
        admin.execute(ALTERED[how].encode())
        for run_id in (first, second):
            result = await code_mode.wait(run_id)
            if how == "nonsense":  # the memory itself is whole: the program may go on
                assert result.status in ("completed", "failed", "waiting")
            else:
                assert result.status == "failed"
        assert (await code_mode.exec("return 1")).unwrap() == 1


@pytest.mark.covers("PG-5")
async def test_tables_of_another_version_are_not_used(
    opening: Callable[..., PostgresStore], admin: "psycopg.Connection[Any]", pool: Pool
) -> None:
    admin.execute("update clawmode.cm_meta set version = 9, oldest_reader = 9")
    async with CodeMode(store=opening(), context=CONTEXT, pool=pool) as code_mode:
        result = await code_mode.exec(WAITS)
        assert result.status == "waiting"  # the process holds the program
        assert "newer clawmode" in result.notes[0]
        found = admin.execute("select count(*) from clawmode.cm_cells").fetchone()
        assert found == (0,)
