"""Connections of strangers: however many there are, clients with a token get in, and work."""

import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.gateway.test_kill import configure
from tests.rpc.test_client import make_certificate
from tests.support.command_driver import serving
from tests.support.gateway_driver import Started, wired
from tests.support.waiting import undisturbed_time, until, within

from clawmode.rpc import admission
from clawmode.rpc.admission import AcceptedSocket, Descriptors, ListeningSocket
from clawmode.rpc.client import GatewayClient
from clawmode.testing import Turn

pytestmark = [pytest.mark.anyio, pytest.mark.hostile, pytest.mark.timeout(60)]

STRANGERS = 1_100
HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)


def second_head(raw: socket.socket) -> None:
    """Makes a request, and begins another one: its answer used to stop the only clock."""
    raw.sendall(HEAD + b"\r\n" + HEAD + b"X: ")


def half_head(raw: socket.socket) -> None:
    raw.sendall(HEAD + b"X: ")


def slow_body(raw: socket.socket) -> None:
    raw.sendall(b"POST /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999\r\n\r\n{")


def silence(raw: socket.socket) -> None:
    pass


def garbage(raw: socket.socket) -> None:
    """The first bytes of TLS, for which the rest never comes."""
    raw.sendall(b"\x16\x03\x01\x02\x00\x01\x00")


def half_upgrade(raw: socket.socket) -> None:
    raw.sendall(UPGRADE)


def upgrade_and_silence(raw: socket.socket) -> None:
    raw.sendall(UPGRADE + b"\r\n")


@contextmanager
def crowd(port: int, behave: Callable[[socket.socket], None], count: int) -> Iterator[None]:
    """So many strangers who stay connected, as far as they are let."""
    with ExitStack() as opened:
        for _ in range(count):
            raw = socket.create_connection(("127.0.0.1", port), timeout=5)
            opened.enter_context(raw)
            with suppress(OSError):  # it was closed meanwhile
                behave(raw)
        yield


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A gateway that may have 1,024 files open, and not one more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * STRANGERS:
        pytest.skip(f"the strangers of this test need {2 * STRANGERS} descriptors")
    folder = tmp_path_factory.mktemp("crowd")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * STRANGERS), hard))
    try:
        with serving(lambda request: Turn("Here I am.")) as server:
            configure(folder, server.url, code_mode=False)
            with Started(folder, folder / "state", files=1_024) as gateway:
                yield gateway
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.covers("S-5")
@pytest.mark.parametrize(
    "behave",
    [
        second_head,
        upgrade_and_silence,
        *(
            pytest.param(behave, marks=pytest.mark.ordeal)
            for behave in (half_head, slow_body, silence, garbage, half_upgrade)
        ),
    ],
)
async def test_1100_strangers_do_not_keep_a_client_out(
    started: Started, behave: Callable[[socket.socket], None]
) -> None:
    """The gateway may have 1,024 files open."""
    with crowd(started.port, behave, STRANGERS):
        before = undisturbed_time(started.process.pid)
        async with GatewayClient.local(started.state) as client:
            await client.call("health")
            seconds = undisturbed_time(started.process.pid) - before
            if behave is second_head:
                with anyio.fail_after(20):
                    result = await client.agent("Are you there?")
                assert (result.status, result.text) == ("ok", "Here I am.")
    assert seconds < 1


async def ended(raw: socket.socket) -> bool:
    """Whether the other side ends a connection soon."""

    def read() -> bool:
        with suppress(ConnectionError):
            while raw.recv(65_536):
                pass
        return True

    try:
        return await anyio.to_thread.run_sync(read)
    except TimeoutError:
        return False


@pytest.mark.covers("S-5")
@pytest.mark.parametrize(
    "behave", [second_head, half_head, slow_body, silence, garbage, half_upgrade]
)
async def test_a_request_that_is_never_complete_is_ended_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behave: Callable[[socket.socket], None]
) -> None:
    monkeypatch.setattr(admission, "CONNECT_SECONDS", 0.2)
    async with wired(tmp_path) as it:
        with socket.create_connection(("127.0.0.1", it.port), timeout=5) as raw:
            behave(raw)
            assert await ended(raw)
            assert not it.strangers


@pytest.mark.covers("S-5")
@pytest.mark.parametrize("behave", [silence, garbage])
async def test_a_tls_handshake_that_is_never_complete_is_ended_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behave: Callable[[socket.socket], None]
) -> None:
    monkeypatch.setattr(admission, "CONNECT_SECONDS", 0.2)
    async with wired(tmp_path, tls=make_certificate(tmp_path / "tls")) as it:
        with socket.create_connection(("127.0.0.1", it.port), timeout=5) as raw:
            behave(raw)
            assert await ended(raw)
            assert not it.strangers


@pytest.mark.covers("S-5")
async def test_the_oldest_stranger_goes_and_clients_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ListeningSocket, "most", 3)
    async with wired(tmp_path) as it, it.connect() as client:
        with ExitStack() as opened:
            address = ("127.0.0.1", it.port)
            crowd: list[socket.socket] = []
            oldest: AcceptedSocket | None = None
            for _ in range(4):
                crowd.append(opened.enter_context(socket.create_connection(address, timeout=0.5)))
                await until(lambda: len(it.strangers) == min(len(crowd), 3))
                oldest = next(iter(it.strangers)) if len(crowd) == 1 else oldest
            await until(lambda: oldest not in it.strangers)
            crowd[0].settimeout(5)  # a pause of the machine does not count
            with within(0.5):
                assert await ended(crowd[0])
            assert [await ended(raw) for raw in crowd[1:]] == [False, False, False]
            async with it.connect() as newest:
                assert await newest.call("health")
        assert await client.call("health")


async def test_an_answer_ends_its_connection(tmp_path: Path) -> None:
    async with wired(tmp_path) as it:
        with socket.create_connection(("127.0.0.1", it.port), timeout=5) as raw:
            raw.sendall(HEAD + b"\r\n")
            head = await anyio.to_thread.run_sync(raw.recv, 65_536)
            assert b"connection: close" in head.lower()
            assert await ended(raw)


@pytest.mark.parametrize(
    ("limit", "strangers", "clients"),
    [(65_536, 256, 1_000), (1_024, 128, 384), (256, 32, 96), (1, 1, 1)],
)
def test_descriptors_are_kept_in_reserve_for_sessions(
    limit: int, strangers: int, clients: int
) -> None:
    assert Descriptors.of(limit, 1_000) == Descriptors(limit, strangers, clients)
