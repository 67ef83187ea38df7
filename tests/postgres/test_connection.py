"""Connections: TLS, secrets, limits of time and number, and servers that go away."""

import contextlib
import logging
import os
import socket
import threading
import time
from typing import Any

import anyio
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.waiting import undisturbed_time

from clawmode.exceptions import ConfigurationError, StoreUnavailable
from clawmode.postgres import connection as module
from clawmode.postgres.connection import Connections, parse
from clawmode.postgres.texts import escaped, unescaped

pytestmark = pytest.mark.anyio

SECRET = "hunter2-%41"
SLEEP = (
    "create function clawmode.cm_sleep(seconds float8) returns void language sql as"
    " $$ select pg_catalog.pg_sleep(seconds) $$"
)


# ---- Where to ----


@pytest.mark.covers("PG-1")
@pytest.mark.parametrize(
    ("url", "mode"),
    [
        ("postgresql://db.example/x", "require"),
        ("postgresql://db.example/x?sslmode=verify-full", "verify-full"),
        ("postgresql://127.0.0.1,db.example/x", "require"),
        ("postgresql://localhost/x?hostaddr=192.0.2.1", "require"),
        ("postgresql://127.0.0.1/x", None),
        ("postgresql://[::1]/x", None),
        ("postgresql://localhost:6432/x", None),
        ("postgresql:///x?host=/var/run/postgresql", None),
        ("postgresql:///x", None),
    ],
)
def test_tls_is_required_unless_the_server_is_on_this_machine(
    url: str, mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    monkeypatch.delenv("PGHOST", raising=False)
    found = parse(url).options.get("sslmode")
    assert found == mode if mode else found not in ("require", "verify-ca", "verify-full")


@pytest.mark.hostile
@pytest.mark.covers("PG-1")
@pytest.mark.parametrize("mode", ["disable", "allow", "prefer"])
@pytest.mark.parametrize("where", ["url", "environment"])
def test_tls_cannot_be_turned_off_for_other_machines(
    mode: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSSLMODE", mode if where == "environment" else "require")
    options = f"?sslmode={mode}" if where == "url" else ""
    with pytest.raises(ConfigurationError, match=f"sslmode={mode}") as caught:
        parse(f"postgresql://me:{SECRET}@db.example/x{options}")
    assert "hunter2" not in str(caught.value)


@pytest.mark.hostile
@pytest.mark.covers("PG-2")
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2%zz@db/x",
        "postgresql://me:hunter2@db:x y/x",
        "postgresql://me:hunter2@db/x?hunter2=1",
        "mysql://me:hunter2@db/x",
        "postgresql://me:hunter2@db/x?sslmode=hunter2\0",
        "host=db password=hunter2",
        "",
    ],
)
def test_an_invalid_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(url)
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter2" not in str(error) or error.__suppress_context__
        error = error.__cause__


@pytest.mark.hostile
@pytest.mark.covers("PG-2")
def test_a_rejected_login_shows_no_password(
    database: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUE_SECONDS", 0.1)
    caplog.set_level(logging.DEBUG)
    parts = psycopg.conninfo.conninfo_to_dict(database)
    wrong = f"postgresql://nobody-here:{SECRET}@{parts['host']}:{parts['port']}/{parts['dbname']}"
    pool = Connections(wrong)
    with pytest.raises(StoreUnavailable, match="rejects our login") as caught:
        pool.run("cm_room", 1)
    shown = str(caught.value) + repr(pool.target) + caplog.text + repr(caught.value.__dict__)
    assert "hunter2" not in shown
    assert "nobody-here" not in shown


# ---- Limits ----


@pytest.mark.covers("PG-3")
async def test_a_statement_waits_for_a_connection_only_so_long(
    database: str, admin: "psycopg.Connection[Any]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUE_SECONDS", 0.2)
    admin.execute(SLEEP)
    pool = Connections(database, size=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pool.call, "cm_sleep", 0.6)
        await anyio.lowlevel.checkpoint()
        began = undisturbed_time()
        with pytest.raises(StoreUnavailable, match="overloaded") as caught:
            await pool.call("cm_room", 1)
        assert undisturbed_time() - began < 0.6
        assert (caught.value.retry_after, caught.value.unsent) == (0.2, True)
    assert await pool.call("cm_room", 1) == [(True,)]
    pool.close()


@pytest.mark.covers("PG-3")
async def test_a_crowd_is_refused_at_once(
    database: str, admin: "psycopg.Connection[Any]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITING", 2)
    admin.execute(SLEEP)
    pool, refused = Connections(database, size=1), list[float]()
    began = undisturbed_time()

    async def call() -> None:
        try:
            await pool.call("cm_sleep", 0.1)
        except StoreUnavailable:
            refused.append(undisturbed_time() - began)

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(call)
    assert len(refused) == 3
    assert max(refused) < 0.1
    pool.close()


@pytest.mark.covers("PG-3")
async def test_a_slow_statement_is_ended_by_the_server(
    database: str, admin: "psycopg.Connection[Any]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STATEMENT_SECONDS", 1.0)  # the last statement has it too
    admin.execute(SLEEP)
    pool = Connections(database)
    with pytest.raises(StoreUnavailable, match="too long"):
        await pool.call("cm_sleep", 30.0)
    assert await pool.call("cm_room", 1) == [(True,)]
    pool.close()


@pytest.mark.hostile
@pytest.mark.covers("PG-3")
def test_a_mute_server_is_given_up(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that swallows everything closes no connection."""
    parts = psycopg.conninfo.conninfo_to_dict(database)
    server = (str(parts["host"]), int(str(parts["port"])))
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        mute = threading.Event()

        def pump(source: socket.socket, target: socket.socket) -> None:
            with source, contextlib.suppress(OSError):
                while data := source.recv(65536):
                    if not mute.is_set():
                        target.sendall(data)

        def accept() -> None:
            client, _ = proxy.accept()
            upstream = socket.create_connection(server)
            threading.Thread(target=pump, args=(client, upstream), daemon=True).start()
            threading.Thread(target=pump, args=(upstream, client), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        port = proxy.getsockname()[1]
        pool = Connections(database.replace(f":{parts['port']}/", f":{port}/"))
        assert pool.run("cm_room", 1) == [(True,)]
        mute.set()
        monkeypatch.setattr(module.Connection, "patience", 0.2)
        monkeypatch.setattr(module, "QUEUE_SECONDS", 0.1)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            pool.run("cm_room", 1)
        assert time.monotonic() - began < 5
        pool.close()
        mute.clear()


@pytest.mark.covers("PG-4")
def test_a_lost_connection_is_replaced_unnoticed(
    database: str, admin: "psycopg.Connection[Any]"
) -> None:
    pool = Connections(database)
    for _ in range(2):
        assert pool.run("cm_room", 1) == [(True,)]
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'clawmode' and datname = current_database()"
        )
    assert pool.run("cm_room", 1) == [(True,)]
    pool.close()


def test_the_child_of_a_fork_leaves_the_connections_to_its_parent(database: str) -> None:
    pool = Connections(database)
    session = pool.open()
    assert pool.run("cm_room", 1) == [(True,)]
    if (child := os.fork()) == 0:
        try:
            good = pool.run("cm_room", 1) == [(True,)] and session not in pool._all
        finally:
            os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert session.execute("select 1").fetchone() == (1,)
    assert pool.run("cm_room", 1) == [(True,)]
    pool.discard(session)
    pool.close()


@given(st.text(st.characters(categories=None)) | st.text("\\0du8\0\ud800é", max_size=12))
def test_any_text_can_be_kept(text: str) -> None:
    kept = escaped(text)
    assert "\0" not in kept
    kept.encode()
    assert unescaped(kept) == text
