"""PostgreSQL as operators run it: with TLS, and behind PgBouncer. Needs Debian's packages."""

import datetime
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.postgres.conftest import KEYS
from tests.support.waiting import until_sync

from clawmode import CodeMode, Pool, RunContext
from clawmode.exceptions import StoreUnavailable
from clawmode.postgres import connection as module
from clawmode.postgres.cells import PostgresStore

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
from postgres_server import NOBODY, PostgresServer, free_port

pytestmark = pytest.mark.anyio

CONTEXT = RunContext(agent_id="a", session_id="s", session_key="k", run_id="r")
HOST = "db.clawmode.test"


class Certificate(NamedTuple):
    """A certificate that signs itself, and its key, as files."""

    path: Path
    key: Path


def certify(folder: Path, name: str) -> Certificate:
    """Makes a certificate for `HOST` that is valid for an hour."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=2))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = Certificate(folder / f"{name}.crt", folder / f"{name}.key")
    files.path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    files.key.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(files.key, NOBODY, NOBODY)  # as which the server runs
    return files


def own_address() -> str:
    """Returns an address of this machine that other machines could reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has only loopback addresses")
        return str(probe.getsockname()[0])


class TlsServer(NamedTuple):
    """A PostgreSQL with TLS on an address that is not loopback."""

    address: str
    server: PostgresServer
    trusted: Path
    other: Path

    def url(self, host: str = "", **options: str) -> str:
        """Returns the URL of the server, under a name or its address."""
        if host:
            options["hostaddr"] = self.address
        given = "&".join(f"{name}={value}" for name, value in options.items())
        local = self.server.dsn.replace("127.0.0.1", host or self.address)
        return f"{local}?{given}"


@pytest.fixture(scope="module", params=["on", "off"])
def tls_server(request: pytest.FixtureRequest) -> Iterator[TlsServer]:
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not programs:
        pytest.skip("a PostgreSQL with TLS is not installed: apt-get install postgresql")
    address = own_address()
    # Not below the folder of pytest, which only our user may enter.
    folder = Path(os.path.realpath("/tmp")) / f"cm-tls-{os.getpid()}-{request.param}"
    folder.mkdir(mode=0o755)
    try:
        good, other = certify(folder, "good"), certify(folder, "other")
        rules = folder / "rules"
        rules.write_text("host all all all scram-sha-256\n")
        settings = [f"listen_addresses={address}", f"hba_file={rules}", f"ssl={request.param}"]
        settings += [f"ssl_cert_file={good.path}", f"ssl_key_file={good.key}"]
        with PostgresServer(
            folder / "s", *settings, fsync=False, programs=programs[-1].parent
        ) as server:
            yield TlsServer(address, server, good.path, other.path)
    finally:
        shutil.rmtree(folder)


async def refusal(url: str, **options: Any) -> str:
    """Returns why a store cannot be opened."""
    store = PostgresStore(url, keys=KEYS, **options)
    try:
        with pytest.raises(StoreUnavailable) as caught:
            await store.nodes.enter()
    finally:
        store.close()
    return str(caught.value)


@pytest.mark.hostile
@pytest.mark.covers("PG-1")
async def test_a_server_elsewhere_is_used_by_tls_only_and_its_certificate_is_checked(
    tls_server: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUE_SECONDS", 0.1)
    good, full = str(tls_server.trusted), {"sslmode": "verify-full"}
    if "ssl=off" in tls_server.server._settings:
        assert "offers no TLS" in await refusal(tls_server.url())
        return
    for url in (tls_server.url(), tls_server.url(HOST, sslrootcert=good, **full)):
        store = PostgresStore(url, keys=KEYS)
        await store.nodes.enter()
        with store.connections.lent() as lent:
            assert lent.pgconn.ssl_in_use
        store.close()
    wrong = (
        tls_server.url(HOST, sslrootcert=str(tls_server.other), **full),
        tls_server.url(sslrootcert=good, **full),
        tls_server.url(HOST, sslrootcert="/nowhere.crt", **full),
    )
    for url in wrong:
        assert "certificate that cannot be verified" in await refusal(url)


# ---- PgBouncer ----


def listens(port: int) -> bool:
    """True if somebody accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def bouncing(database: str) -> Iterator[Callable[..., str]]:
    """Starts PgBouncers in transaction mode in front of the test's database."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or ""
    if not program:
        pytest.skip("PgBouncer is not installed: apt-get install pgbouncer")
    parts = psycopg.conninfo.conninfo_to_dict(database)
    inside = [
        f"{name}={parts[name]}"
        for name in ("host", "port", "user", "password", "dbname")
        if name in parts
    ]
    running: list[subprocess.Popen[bytes]] = []
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}

    def bounce(**settings: str) -> str:
        port = free_port()
        given = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": "3",
            **settings,
        }
        lines = ["[databases]", f"programs = {' '.join(inside)}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in given.items()]
        path = Path(os.path.realpath("/tmp")) / f"cm-bouncer-{os.getpid()}-{port}.ini"
        path.touch(mode=0o600)
        path.write_text("\n".join(lines))
        if user:
            os.chown(path, NOBODY, NOBODY)
        try:
            running.append(
                subprocess.Popen([program, "-q", str(path)], stderr=subprocess.DEVNULL, **user)
            )
            until_sync(lambda: listens(port))
        finally:
            path.unlink()
        return f"postgresql://somebody@127.0.0.1:{port}/programs"

    yield bounce
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.covers("PG-15")
async def test_programs_move_between_nodes_behind_pgbouncer(
    bouncing: Callable[..., str], pool: Pool
) -> None:
    url = bouncing()
    one = PostgresStore(url, keys=KEYS, listen=False)
    two = PostgresStore(url, keys=KEYS, listen=False)
    options: dict[str, Any] = {"context": CONTEXT, "pool": pool}
    async with CodeMode(store=one, **options) as first, CodeMode(store=two, **options) as second:
        for number in range(20):  # often enough for statements to be prepared, if they were
            source = f"const x = {number}; await yield_control(); return x"
            run_id = (await first.exec(source)).run_id
            assert (await second.wait(run_id)).unwrap() == number
    one.close()
    two.close()


@pytest.mark.covers("PG-15")
@pytest.mark.parametrize("ignored", ["", "options"])
async def test_a_node_that_listens_through_pgbouncer_is_told_what_to_do(
    bouncing: Callable[..., str], ignored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUE_SECONDS", 0.1)
    assert "listen: false" in await refusal(bouncing(ignore_startup_parameters=ignored))
