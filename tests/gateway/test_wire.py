"""The wire itself: who may connect, what is refused, what becomes of those who do not behave."""

import json
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from tests.support.gateway_driver import TOKEN, Wired, wired
from tests.support.waiting import until
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from clawmode.addresses import Attempts, is_loopback
from clawmode.exceptions import ConfigurationError
from clawmode.gateway.clients import MAX_FRAMES, Client
from clawmode.rpc.listen import ListenAddress, check_reach
from clawmode.rpc.protocol import MAX_FIRST_BYTES
from clawmode.rpc.tokens import Token, Tokens

pytestmark = pytest.mark.anyio


def hello(token: str = TOKEN, **more: Any) -> str:
    params = {
        "minProtocol": 1,
        "maxProtocol": 9,
        "client": {"id": "raw"},
        "auth": {"token": token},
        **more,
    }
    return request("connect", params, "0")


def request(method: str, params: dict[str, Any] | None = None, frame_id: str = "1") -> str:
    return json.dumps({"type": "req", "id": frame_id, "method": method, "params": params or {}})


async def heard(socket: Connection) -> dict[str, Any]:
    with anyio.fail_after(10):
        return json.loads(await socket.recv())


async def joined(it: Wired, **more: Any) -> ClientConnection:
    socket = await connect(it.url, **more)
    assert (await heard(socket))["event"] == "connect.challenge"
    await socket.send(hello())
    assert (await heard(socket))["payload"]["type"] == "hello-ok"
    return socket


def strangers(it: Wired) -> list[Client]:
    """Who has connected over the wire, the first one first."""
    return [each for each in it.gateway.clients.values() if each.hello.client.id == "raw"]


async def closed(socket: Connection) -> int | None:
    """With which code the other side ends it."""
    try:
        with anyio.fail_after(10):
            while True:
                await socket.recv()
    except ConnectionClosed:
        return socket.close_code


async def test_nothing_is_compressed(tmp_path: Path) -> None:
    async with wired(tmp_path) as it, await connect(it.url) as socket:
        assert socket.response is not None
        assert "Sec-WebSocket-Extensions" not in socket.response.headers


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("nonsense", 1008),
        (b"\x00\x01", 1008),
        (request("health"), 1008),
        (request("connect", {}), 1008),
        (hello("wrong"), 1008),
        (hello(minProtocol=99, maxProtocol=99), 1008),
        (hello(scopes=["nonsense"]), 1008),
        ("x" * (MAX_FIRST_BYTES + 1), 1009),
    ],
)
async def test_a_stranger_who_does_not_connect_is_sent_away(
    tmp_path: Path, frame: Any, code: int
) -> None:
    async with wired(tmp_path) as it, await connect(it.url) as socket:
        await socket.send(frame)
        assert await closed(socket) == code
        assert strangers(it) == []


async def test_large_frames_are_for_those_who_are_known(tmp_path: Path) -> None:
    async with wired(tmp_path) as it:
        socket = await joined(it)
        await socket.send(request("health", {"x": "y" * (1 << 20)}))
        assert (await heard(socket))["error"]["code"] == "INVALID_REQUEST"
        await socket.close()


async def test_who_has_failed_too_often_waits_whatever_they_show(tmp_path: Path) -> None:
    async with wired(tmp_path) as it:
        it.gateway.attempts = Attempts(most=2, seconds=60)
        codes = []
        for token in ("a", "b", TOKEN):
            async with await connect(it.url) as socket:
                await heard(socket)
                await socket.send(hello(token))
                codes.append((await heard(socket))["error"]["code"])
        assert codes == ["UNAUTHORIZED", "UNAUTHORIZED", "RATE_LIMITED"]


async def connected_with(it: Wired, token: str) -> str:
    async with await connect(it.url) as socket:
        await heard(socket)
        await socket.send(hello(token))
        answer = await heard(socket)
        return "ok" if answer["ok"] else answer["error"]["code"]


async def metrics_with(it: Wired, token: str) -> str:
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(verify=False) as http:  # no TLS here; certificates load slowly
        answer = await http.get(f"http://127.0.0.1:{it.port}/metrics", headers=headers)
    return "ok" if answer.status_code == 200 else "UNAUTHORIZED"


@pytest.mark.covers("S-11")
@pytest.mark.parametrize("ways", [[metrics_with], [connected_with], [metrics_with, connected_with]])
async def test_guesses_that_are_made_at_once_are_counted_one_by_one(
    tmp_path: Path, ways: list[Callable[[Wired, str], Awaitable[str]]]
) -> None:
    """Not one is looked up after the tenth has failed, and the right one among them is refused."""
    looked_up, answers = list[str](), list[str]()
    async with wired(tmp_path) as it:
        find = it.gateway.tokens.find

        def slowly(token: str) -> Token | None:
            looked_up.append(token)
            time.sleep(0.01)  # in a thread
            return find(token)

        it.gateway.tokens.find = slowly  # pyrefly: ignore

        async def guess(number: int) -> None:
            token = TOKEN if number == 30 else f"wrong-{number}"
            answers.append(await ways[number % len(ways)](it, token))

        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(guess, number)
                if number == 29:
                    await until(lambda: len(looked_up) == 10)
    assert len(looked_up) == 10
    assert "ok" not in answers


@pytest.mark.covers("S-11")
async def test_many_who_show_the_right_token_at_once_all_get_in(tmp_path: Path) -> None:
    async with wired(tmp_path) as it, anyio.create_task_group() as tasks:
        answers = list[str]()

        async def come() -> None:
            answers.append(await connected_with(it, TOKEN))

        for _ in range(30):
            tasks.start_soon(come)
        await until(lambda: len(answers) == 30)
    assert set(answers) == {"ok"}


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://evil.test", False),
        ("null", False),
        ("http://127.0.0.1:1", False),
        ("https://console.test", True),
        ("own", True),
    ],
)
async def test_a_page_of_a_browser_connects_only_from_where_it_may(
    tmp_path: Path, origin: str, allowed: bool
) -> None:
    async with wired(tmp_path) as it:
        assert it.wire is not None
        it.wire._origins = frozenset({"https://console.test"})
        chosen: Any = it.url.replace("ws://", "http://") if origin == "own" else origin
        if allowed:
            async with await connect(it.url, origin=chosen) as socket:
                assert (await heard(socket))["event"] == "connect.challenge"
        else:
            with pytest.raises(InvalidStatus, match="403"):
                await connect(it.url, origin=chosen)


async def test_frames_that_are_none_do_not_end_anything_but_their_connection(
    tmp_path: Path,
) -> None:
    """A hundred clients that send nonsense; one that behaves notices nothing."""
    chance = random.Random(7)
    async with wired(tmp_path) as it:
        good = await joined(it)

        async def nonsense(number: int) -> None:
            socket = await joined(it)
            try:
                for _ in range(10):
                    await socket.send(_nonsense(chance))
                with anyio.move_on_after(1):
                    await closed(socket)
            except ConnectionClosed:
                pass
            await socket.close()

        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(nonsense, number)
        await good.send(request("health"))
        assert (await heard(good))["ok"]
        await good.close()
        await until(lambda: not strangers(it))


def _nonsense(chance: random.Random) -> str | bytes:
    kind = chance.randrange(6)
    if kind == 0:
        return chance.randbytes(chance.randrange(200))
    if kind == 1:
        return "".join(chr(chance.randrange(32, 0x2FF)) for _ in range(chance.randrange(100)))
    if kind == 2:
        return "[" * chance.randrange(5_000)
    method = chance.choice(["health", "agent", "sessions.get", "chat.send", "nonsense", "connect"])
    params: Any = chance.choice([{}, [], None, {"message": 5}, {"sessionKey": "../../x"}, "x"])
    frame = {"type": chance.choice(["req", "res", 5]), "id": chance.choice(["1", 1, None])}
    return json.dumps({**frame, "method": method, "params": params})


async def test_a_client_that_does_not_read_is_dropped_and_nobody_else(tmp_path: Path) -> None:
    async with wired(tmp_path) as it:
        slow, good = await joined(it, max_queue=1), await joined(it)
        for _ in range(MAX_FRAMES + 5_000):
            for client in strangers(it)[:1]:
                client.send("x" * 3_000)
        it.gateway.broadcast("tick", {"ts": 1})
        assert (await heard(good))["event"] == "tick"
        await until(lambda: len(strangers(it)) <= 1)
        await good.close()
        await slow.close()


@pytest.mark.covers("PG-14")
async def test_health_and_metrics(tmp_path: Path) -> None:
    async with wired(tmp_path) as it, httpx2.AsyncClient() as http:
        base = it.url.replace("ws://", "http://")
        assert (await http.get(f"{base}/healthz")).json() == {"status": "ok"}
        assert (await http.get(f"{base}/readyz")).status_code == 200
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(it.gateway.host.backend.nodes, "reachable", False)
            answer = await http.get(f"{base}/readyz")
            assert (answer.status_code, answer.json()["store"]) == (503, "unreachable")
        assert (await http.get(f"{base}/metrics")).status_code == 401
        wrong = await http.get(f"{base}/metrics", headers={"authorization": "Bearer x"})
        assert wrong.status_code == 401
        right = await http.get(f"{base}/metrics", headers={"authorization": f"Bearer {TOKEN}"})
        assert right.status_code == 200
        assert "clawmode_uptime_seconds" in right.text
        assert TOKEN not in right.text
        guesses = [
            await http.get(f"{base}/metrics", headers={"authorization": "Bearer x"})
            for _ in range(12)
        ]
        assert (guesses[-1].status_code, guesses[-1].text) == (429, "too many failed attempts")
        assert int(guesses[-1].headers["retry-after"]) > 0
        assert (await http.get(f"{base}/nothing")).status_code == 404


@pytest.mark.covers("N-41")
async def test_a_browser_gets_a_page_that_names_the_gateway(tmp_path: Path) -> None:
    async with wired(tmp_path) as it, httpx2.AsyncClient() as http:
        page = await http.get(it.url.replace("ws://", "http://") + "/")
    assert page.status_code == 200
    assert page.text.startswith("This is a clawmode gateway.")


def test_what_can_be_reached_from_elsewhere_needs_a_token_that_somebody_made(
    tmp_path: Path,
) -> None:
    tokens = Tokens(tmp_path)
    with pytest.raises(ConfigurationError, match="token"):
        check_reach(ListenAddress(host="0.0.0.0"), tokens)
    check_reach(ListenAddress(host="127.0.0.1"), tokens)
    tokens.add("me")
    check_reach(ListenAddress(host="0.0.0.0"), tokens)


@pytest.mark.parametrize(
    ("host", "is_so"),
    [
        *(("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True)),
        *(("0.0.0.0", False), ("10.0.0.1", False), ("localhost.evil.test", False), ("", False)),
    ],
)
def test_loopback_is_this_machine_alone(host: str, is_so: bool) -> None:
    assert is_loopback(host) is is_so
