"""The stages of a cell, and an abort at the worst moment."""

from typing import Any

import pytest

from clawmode import CodeMode, Pool
from clawmode.code_mode.cell import GATE, Cell
from clawmode.code_mode.memory_store import MemoryStore
from clawmode.sandbox.protocol import Settlement

pytestmark = pytest.mark.anyio


def test_an_illegal_transition_names_the_actual_and_the_expected_stages() -> None:
    cell = Cell("exec", 1024)
    with pytest.raises(AssertionError, match=r"from 'new' to 'parked', expected one of .*'driven'"):
        cell.move("parked")
    assert cell.stage == "new"


def test_an_ended_cell_never_runs_again() -> None:
    cell = Cell("exec", 1024)
    cell.move("ended")
    cell.move("ended")
    with pytest.raises(AssertionError, match="from 'ended' to 'driven'"):
        cell.move("driven")


def test_the_guest_never_receives_the_answer_of_the_gate() -> None:
    cell = Cell("exec", 1024)
    answer = Settlement(GATE, True, b"null")
    cell.receive(answer)
    assert (cell.admission, cell.take_replies(), cell.has_replies) == (answer, (), True)


async def test_an_abort_while_a_wait_takes_the_cell_ends_the_cell(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has given the cell away, and nothing in the process drives it yet."""
    store = MemoryStore()
    async with CodeMode(pool=pool, store=store) as code_mode:
        waiting = await code_mode.exec("await yield_control(); return 1")
        take = store.take

        async def aborted(*args: Any, **options: Any) -> Any:
            taken = await take(*args, **options)
            assert await code_mode.abort(waiting.run_id)
            return taken

        monkeypatch.setattr(store, "take", aborted)
        result = await code_mode.wait(waiting.run_id)
        assert (result.status, result.code) == ("failed", "aborted")
        assert code_mode._calls.groups == {}
        assert await store.cells() == []
        assert code_mode.cells() == {}
