"""The database in the configuration, and `clawmode state`: check, migrate, copy there and back."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
from psycopg import sql
from tests.postgres.conftest import KEYS
from tests.support.waiting import until

from clawmode import CodeMode, Pool, RunContext, SqliteStore
from clawmode.app.backends import move_programs
from clawmode.code_mode.snapshots import KEY_VARIABLE, KeyRing
from clawmode.code_mode.stores import StoredCell
from clawmode.exceptions import ConfigurationError
from clawmode.postgres import membership, nodes
from clawmode.postgres.cells import PostgresStore

pytestmark = pytest.mark.anyio

KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
CONTEXT = RunContext(agent_id="a", session_id="s", session_key="k", run_id="r")
WAITS = "store('n', 2); const x = 40; await yield_control(); return x + load('n')"


async def command(
    folder: Path, *arguments: str, state: str | None, **more: str
) -> tuple[int, str, str]:
    """Runs `clawmode state`, and returns its exit status, stdout and stderr."""
    config = folder / "clawmode.json5"
    config.write_text(json.dumps({} if state is None else {"state": state}))
    environment = {**os.environ, KEY_VARIABLE: KEY, **more}
    options = ["--config", str(config), "--state", str(folder / "state")]
    done = await anyio.run_process(
        [sys.executable, "-m", "clawmode", "state", *arguments, *options],
        env={name: value for name, value in environment.items() if value},
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.covers("PG-13")
async def test_programs_move_to_the_database_and_back_and_go_on_there(
    database: str, tmp_path: Path, pool: Pool
) -> None:
    folder, store = SqliteStore(tmp_path / "state", keys=KEYS), PostgresStore(database, keys=KEYS)
    options: dict[str, Any] = {"context": CONTEXT, "pool": pool}
    async with CodeMode(store=folder, **options) as code_mode:
        names = [(await code_mode.exec(WAITS)).run_id for _ in range(3)]
    assert await move_programs(folder, store) == (3, 1, [])
    assert await folder.cells() == []
    assert {known.id for known in await store.cells()} == {*names}
    async with CodeMode(store=store, **options) as code_mode:
        assert (await code_mode.wait(names[0])).unwrap() == 42
    assert await move_programs(store, folder) == (2, 1, [])
    async with CodeMode(store=folder, **options) as code_mode:
        assert (await code_mode.wait(names[1])).unwrap() == 42
    store.close()
    folder.close()


@pytest.mark.covers("PG-13")
async def test_a_move_that_was_interrupted_is_repeated_though_a_program_has_gone_on(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = SqliteStore(tmp_path, keys=KEYS), PostgresStore(database, keys=KEYS)
    me, you = await folder.join(), await store.join()
    for name in ("cm_1", "cm_2"):
        marked = StoredCell(
            id=name, scope=CONTEXT.scope, ttl=60, record=b"r", snapshot=b"s", mark=name.encode()
        )
        await folder.park(marked, me, 9, again=False)

    async def interrupted(*_: object) -> bool:
        raise KeyError

    with monkeypatch.context() as patched:
        patched.setattr(folder, "discard", interrupted)
        with pytest.raises(KeyError):
            await move_programs(folder, store)
    (there,) = await store.cells()
    claimed = await store.claim(there.id, CONTEXT.scope, you)
    assert isinstance(claimed, StoredCell)
    assert await store.take(there.id, you, claimed.fence, seen=claimed.mark, keep=True)
    await store.park(replace(claimed, mark=b"later"), you, 9, again=True)
    assert await move_programs(folder, store) == (2, 0, [])
    assert await folder.cells() == []
    kept = await store.claim(there.id, CONTEXT.scope, you)
    assert isinstance(kept, StoredCell)
    assert kept.mark == b"later"
    folder.close()
    store.close()


@pytest.mark.covers("PG-13")
async def test_a_program_that_is_in_use_stays_and_keys_must_fit(
    database: str, tmp_path: Path
) -> None:
    folder, store = SqliteStore(tmp_path, keys=KEYS), PostgresStore(database, keys=KEYS)
    me = await folder.join()
    for name in ("cm_1", "cm_2"):
        cell = StoredCell(id=name, scope=CONTEXT.scope, ttl=60, record=b"r", snapshot=b"s")
        await folder.park(cell, me, 9, again=False)
    await folder.claim("cm_1", CONTEXT.scope, me)
    other = PostgresStore(database, keys=KeyRing.ephemeral())
    with pytest.raises(ConfigurationError, match="key"):
        await move_programs(folder, other)
    assert len(await folder.cells()) == 2
    assert await move_programs(folder, store) == (1, 0, ["cm_1"])
    for each in (folder, store, other):
        each.close()


@pytest.mark.covers("PG-13")
async def test_the_commands_make_and_describe_the_database(
    database: str, admin: "psycopg.Connection[Any]", tmp_path: Path
) -> None:
    admin.execute("drop schema clawmode cascade")
    secret = {"DATABASE_URL": database}
    status, said, _ = await command(tmp_path, "migrate", state="${DATABASE_URL}", **secret)
    assert (status, "version 4" in said) == (0, True)
    status, said, _ = await command(tmp_path, "check", "--json", state="${DATABASE_URL}", **secret)
    found = json.loads(said)
    assert (status, found["version"], found["parked"], found["nodes"]) == (0, 4, 0, [])
    assert "password" not in psycopg.conninfo.conninfo_to_dict(database) or (
        str(psycopg.conninfo.conninfo_to_dict(database)["password"]) not in said
    )
    status, said, _ = await command(tmp_path, "copy", "database", state="${DATABASE_URL}", **secret)
    assert (status, said) == (0, "moved 0 programs, and what 0 runs or sessions stored\n")


@pytest.mark.hostile
@pytest.mark.covers("PG-2")
@pytest.mark.parametrize(
    ("state", "environment", "reason"),
    [
        ("mysql://me:hunter2@db/x", {}, "postgresql://"),
        ("postgresql://me:hunter2@db/x?sslmode=disable", {}, "sslmode=disable"),
        ("${MISSING}", {}, "MISSING"),
        ("postgresql://me:hunter2@127.0.0.1:1/x", {KEY_VARIABLE: ""}, KEY_VARIABLE),
        ("postgresql://me:hunter2@127.0.0.1:1/x", {}, "cannot be reached"),
        (None, {}, "names no database"),
    ],
)
async def test_an_unusable_database_is_a_clear_error(
    tmp_path: Path, state: str | None, environment: dict[str, str], reason: str
) -> None:
    status, said, problem = await command(tmp_path, "migrate", state=state, **environment)
    assert status != 0
    assert reason in problem
    assert "Traceback" not in problem
    assert "hunter2" not in said + problem


@pytest.mark.covers("PG-14")
async def test_a_store_knows_when_its_database_is_unreachable(
    database: str,
    admin: "psycopg.Connection[Any]",
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes, "TICK_SECONDS", 0.05)
    store = PostgresStore(database, keys=KEYS)
    assert not store.nodes.reachable
    await store.nodes.enter()
    assert store.nodes.reachable
    monkeypatch.setattr(membership, "REACHED_SECONDS", 0.3)
    name = sql.Identifier(admin.info.dbname)
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute(sql.SQL("alter database {} allow_connections false").format(name))
        server.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s"
            " and application_name = 'clawmode'",
            (admin.info.dbname,),
        )
        await until(lambda: not store.nodes.reachable)
        server.execute(sql.SQL("alter database {} allow_connections true").format(name))
        await until(lambda: store.nodes.reachable)
    store.close()
