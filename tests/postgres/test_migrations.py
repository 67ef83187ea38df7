"""The schema: made once, upgraded in order, never touched by a build that is too old."""

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.postgres.conftest import named

from clawmode.code_mode.snapshots import KeyRing
from clawmode.exceptions import StoreUnavailable
from clawmode.postgres import migrations
from clawmode.postgres.cells import PostgresStore
from clawmode.postgres.connection import connect, parse

pytestmark = pytest.mark.anyio

Admin = "psycopg.Connection[Any]"


@pytest.fixture
def empty(database: str, admin: "psycopg.Connection[Any]") -> str:
    admin.execute("drop schema clawmode cascade")
    return database


def test_the_steps_are_numbered_without_gaps() -> None:
    assert [step.number for step in migrations.steps()] == [*range(1, migrations.version() + 1)]
    assert all(step.oldest_reader <= migrations.version() for step in migrations.steps())


@pytest.mark.covers("PG-5")
def test_nodes_that_start_together_make_the_schema_once(empty: str) -> None:
    found: list[migrations.Level] = []

    def start() -> None:
        with connect(parse(empty), direct=True) as connection:
            found.append(migrations.migrate(connection))

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    oldest = max(step.oldest_reader for step in migrations.steps())
    assert found == [migrations.Level(migrations.version(), oldest)] * 3


@pytest.mark.covers("PG-5")
async def test_a_schema_that_needs_a_newer_build_is_left_alone(
    opening: Callable[..., PostgresStore], admin: "psycopg.Connection[Any]"
) -> None:
    admin.execute("update clawmode.cm_meta set version = 99, oldest_reader = 98")
    with pytest.raises(StoreUnavailable, match="newer clawmode"):
        await opening().join()
    assert admin.execute("select count(*) from clawmode.cm_nodes").fetchone() == (0,)
    admin.execute("update clawmode.cm_meta set oldest_reader = 1")
    assert await opening().join()


@pytest.mark.covers("PG-5")
async def test_tables_are_made_only_by_those_who_may(
    empty: str, opening: Callable[..., PostgresStore]
) -> None:
    with pytest.raises(StoreUnavailable, match="clawmode state migrate"):
        await opening(migrate=False).join()
    assert await opening().join()
    assert await opening(migrate=False).join()


async def test_an_upgrade_does_not_shut_out_living_nodes(
    opening: Callable[..., PostgresStore],
    database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await opening(name="the old one").join()
    number = migrations.version() + 1
    newer = migrations.Step(number, number, "create table cm_new ()")
    steps = (*migrations.steps(), newer)
    monkeypatch.setattr(migrations, "steps", lambda: steps)
    with connect(parse(database), direct=True) as connection:
        with pytest.raises(StoreUnavailable, match="the old one"):
            migrations.migrate(connection)
        assert migrations.level(connection).version == number - 1
        assert migrations.migrate(connection, force=True) == (number, number)


@pytest.mark.hostile
@pytest.mark.covers("PG-6")
async def test_a_schema_that_another_user_made_is_refused(
    empty: str, admin: "psycopg.Connection[Any]"
) -> None:
    """Somebody who may create schemas waits for us with functions of his own."""
    name, stranger = (f"{who}_{admin.info.backend_pid}" for who in ("cm_us", "cm_stranger"))
    parts = psycopg.conninfo.conninfo_to_dict(empty)
    for role in (name, stranger):
        admin.execute(sql.SQL("create role {} login password 'x'").format(sql.Identifier(role)))
    try:
        made = sql.SQL("create schema clawmode authorization {}")
        admin.execute(made.format(sql.Identifier(stranger)))
        admin.execute("grant all on schema clawmode to public")
        host = f"{parts['host']}:{parts['port']}/{parts['dbname']}"
        store = PostgresStore(f"postgresql://{name}:x@{host}", keys=KeyRing.ephemeral())
        with pytest.raises(StoreUnavailable, match="belongs to another user"):
            await store.join()
        store.close()
    finally:
        admin.execute("drop schema clawmode cascade")
        for role in (name, stranger):
            admin.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


@pytest.mark.hostile
@pytest.mark.covers("PG-6")
async def test_a_search_path_attack_finds_nothing(
    opening: Callable[..., PostgresStore], database: str, admin: "psycopg.Connection[Any]"
) -> None:
    """Functions, operators and tables of strangers stand in front of ours, and are never used."""
    admin.execute(
        """
        create table public.trap (at timestamptz default now());
        create function public.spring() returns boolean language plpgsql as
            $$ begin insert into public.trap default values; return true; end $$;
        create function public.clock_timestamp() returns timestamptz language sql as
            $$ select public.spring(); select pg_catalog.now() $$;
        create function public.teq(text, text) returns boolean language sql as
            $$ select public.spring() $$;
        create operator public.= (leftarg = text, rightarg = text, function = public.teq);
        create table public.cm_cells (id text);
        create table public.cm_nodes (id bigint);
        """
    )
    name = admin.info.dbname
    altered = sql.SQL("alter database {} set search_path = public, clawmode, pg_catalog")
    admin.execute(altered.format(sql.Identifier(name)))
    store = opening()
    await store.join()
    assert await store.room(5)
    assert await store.gone(["x"]) == {"x"}
    with psycopg.connect(database, autocommit=True) as plain:  # a pooler has lost our settings
        assert plain.execute("select clawmode.cm_alive(1)").fetchone() == (True,)
        assert plain.execute("select clawmode.cm_gone('{x}')").fetchall() == [("x",)]
    assert admin.execute("select count(*) from public.trap").fetchone() == (0,)


def test_strangers_may_not_call_our_functions(admin: "psycopg.Connection[Any]") -> None:
    rows = admin.execute(
        "select p.proname from pg_proc p where p.pronamespace = 'clawmode'::regnamespace"
        " and has_function_privilege('public', p.oid, 'execute')"
    ).fetchall()
    assert rows == []
    assert named("postgresql://a:b@c:1/d", "e") == "postgresql://a:b@c:1/e"
