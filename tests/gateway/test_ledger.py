"""What the gateway remembers: requests are begun once, runs are known beyond a process."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from clawmode.gateway.ledger import KEEP_SECONDS, Ledger, LedgerUnavailable, RunRow

pytestmark = pytest.mark.anyio

KEY = ("me", "agent", "k1")


async def test_a_request_is_begun_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "one")
    assert (await ledger.begin(*KEY, "digest")).state == "new"
    assert (await ledger.begin(*KEY, "digest")).state == "begun"
    assert (await ledger.begin(*KEY, "another")).state == "other"
    assert (await ledger.begin("you", "agent", "k1", "another")).state == "new"
    assert (await ledger.begin("me", "chat.send", "k1", "another")).state == "new"
    await ledger.finish(*KEY, {"runId": "r"})
    noted = await ledger.begin(*KEY, "digest")
    assert (noted.state, noted.answer) == ("done", {"runId": "r"})


async def test_what_a_process_began_and_did_not_end_is_lost_to_the_next(tmp_path: Path) -> None:
    await Ledger(tmp_path, "one").begin(*KEY, "digest")
    after = Ledger(tmp_path, "two")
    assert (await after.begin(*KEY, "digest")).state == "lost"
    await after.forget(*KEY)
    assert (await after.begin(*KEY, "digest")).state == "new"


async def test_of_many_who_begin_at_once_one_does(tmp_path: Path) -> None:
    ledgers = [Ledger(tmp_path, name) for name in ("one", "two")]
    states: list[str] = []

    async def begin(ledger: Ledger) -> None:
        states.append((await ledger.begin(*KEY, "digest")).state)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(begin, ledgers[number % 2])
    assert states.count("new") == 1


def row(run_id: str, **more: Any) -> RunRow:
    return RunRow(
        id=run_id,
        session_key="agent:main:main",
        session_id="0" * 32,
        agent_id="main",
        request={"message": "hi"},
        accepted_at=more.pop("at", 100.0),
    )


async def test_a_run_is_known_from_its_acceptance_to_long_after_its_end(tmp_path: Path) -> None:
    now = [1_000.0]
    ledger = Ledger(tmp_path, "one", clock=lambda: now[0])
    await ledger.accept(row("b", at=200.0))
    await ledger.accept(row("a", at=100.0))
    await ledger.accept(row("a", at=999.0))
    assert [it.id for it in await ledger.unfinished()] == ["a", "b"]
    await ledger.start("a", 150.0)
    await ledger.end("a", 160.0, "ok", {"payloads": []})
    known = await Ledger(tmp_path, "two").run("a")
    assert known is not None
    assert (known.started_at, known.ended_at, known.status) == (150.0, 160.0, "ok")
    assert known.result == {"payloads": []}
    assert [it.id for it in await ledger.unfinished()] == ["b"]
    now[0] += KEEP_SECONDS
    await ledger.tidy()
    assert await ledger.run("a") is None
    assert await ledger.run("b") is not None
    assert await ledger.run("c") is None


async def test_a_file_that_is_not_a_database_makes_the_ledger_unavailable(tmp_path: Path) -> None:
    (tmp_path / "gateway.sqlite3").write_bytes(b"nonsense" * 1_000)
    with pytest.raises(LedgerUnavailable):
        await Ledger(tmp_path, "one").begin(*KEY, "digest")
