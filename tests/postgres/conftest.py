"""One PostgreSQL for all tests and all workers of xdist, and a new database for each test."""

import contextlib
import fcntl
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.postgres.timed import stop_clock

from clawmode.code_mode.snapshots import KeyRing
from clawmode.postgres.cells import PostgresStore
from clawmode.postgres.connection import connect, parse
from clawmode.postgres.migrations import migrate

VARIABLE = "CLAWMODE_TEST_POSTGRES"
"""The URL of a server where the user may create databases; without, a server is started."""

SETTINGS = ("synchronous_commit=off", "full_page_writes=off", "autovacuum_naptime=10s")

SUPERVISOR = """
import fcntl, os, sys, tempfile
sys.path[:0] = sys.argv[2].split(os.pathsep)
from postgres_server import PostgresServer
os.setsid()
with (open(sys.argv[1] + "/users") as users,
      tempfile.TemporaryDirectory(prefix="cm-pg-", ignore_cleanup_errors=True) as folder):
    os.chmod(folder, 0o755)
    with PostgresServer(folder + "/s", *sys.argv[3:], fsync=False) as server:
        print(server.dsn, flush=True)
        fcntl.flock(users, fcntl.LOCK_EX)  # nobody uses the server any more, or all were killed
        os.unlink(sys.argv[1] + "/url")
"""


@contextlib.contextmanager
def shared_server(folder: Path) -> Iterator[str]:
    """Yields the URL of a server that all processes with the same folder share."""
    folder.mkdir(exist_ok=True)
    address = folder / "url"
    with (folder / "users").open("w") as users, (folder / "starting").open("w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        if not address.exists():
            scripts = str(Path(__file__).parents[2] / "scripts")
            command = [sys.executable, "-c", SUPERVISOR, str(folder), scripts, *SETTINGS]
            # The supervisor outlives this process by design, so nobody waits for its end.
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
            process.returncode = 0
            assert process.stdout is not None
            with process.stdout:
                url = process.stdout.readline().decode().strip()
            assert url, "PostgreSQL did not start: its supervisor has printed the reason"
            descriptor = os.open(address, os.O_WRONLY | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(url)
        fcntl.flock(starting, fcntl.LOCK_UN)
        yield address.read_text()


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server, as a user who may create databases."""
    if url := os.environ.get(VARIABLE):
        yield url
        return
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    with shared_server(base / "postgres") as url:
        yield url


def named(url: str, database: str) -> str:
    """Returns the URL of another database of the same server."""
    parts = psycopg.conninfo.conninfo_to_dict(url)
    user = f"{parts['user']}:{parts['password']}" if "password" in parts else str(parts["user"])
    return f"postgresql://{user}@{parts['host']}:{parts.get('port', 5432)}/{database}"


@pytest.fixture(scope="session")
def template(postgres_url: str) -> Iterator[str]:
    """The name of a database with our schema, to be copied."""
    name = f"cm_template_{os.getpid()}"
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        with connect(parse(named(postgres_url, name)), direct=True) as connection:
            migrate(connection)
        yield name
        server.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@contextlib.contextmanager
def new_database(server_url: str, template: str) -> Iterator[str]:
    """Yields the URL of a new database with our schema, and drops it afterwards."""
    name = f"cm_test_{os.getpid()}_{secrets.token_hex(4)}"
    with psycopg.connect(server_url, autocommit=True) as server:
        make = sql.SQL("create database {} template {} strategy file_copy")
        server.execute(make.format(sql.Identifier(name), sql.Identifier(template)))
        try:
            yield named(server_url, name)
        finally:
            server.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def database(postgres_url: str, template: str) -> Iterator[str]:
    """The URL of a new database with our schema."""
    with new_database(postgres_url, template) as url:
        yield url


@pytest.fixture(scope="module")
def timed_database(postgres_url: str, template: str) -> Iterator[str]:
    """The URL of a database whose cells go by a clock of the test; for all tests of a module."""
    with new_database(postgres_url, template) as url:
        stop_clock(url)
        yield url


KEYS = KeyRing([bytes(range(32))])


@pytest.fixture
def opening(database: str) -> Iterator[Callable[..., PostgresStore]]:
    """Opens stores of the test's database, each a node of its own, and closes them."""
    opened: list[PostgresStore] = []

    def opens(**options: Any) -> PostgresStore:
        given: dict[str, Any] = {"keys": KEYS, **options}
        opened.append(PostgresStore(database, **given))
        return opened[-1]

    yield opens
    for store in opened:
        store.close()


@pytest.fixture
def admin(database: str) -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
    """A connection to the test's database with the search path of nobody special."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection
