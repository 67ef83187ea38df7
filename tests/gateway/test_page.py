"""The control page without a browser: login, sessions, and what other pages may try."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest
from tests.support.gateway_driver import TOKEN, Wired, wired
from tests.support.waiting import until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from clawmode.gateway import gateway as gateway_module
from clawmode.gateway import server as server_module
from clawmode.gateway.logins import (
    CODE_SECONDS,
    IDLE_SECONDS,
    LIFE_SECONDS,
    MAX_SESSIONS,
    SAVE_SECONDS,
    Grant,
    Logins,
)
from clawmode.gateway.metrics import resident_bytes
from clawmode.rpc import protocol
from clawmode.rpc.scopes import SCOPES
from clawmode.rpc.tokens import LOCAL, Token, Tokens, digest
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio

HTML = {"accept": "text/html"}
UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@asynccontextmanager
async def browsing(folder: Path, **options: Any) -> AsyncIterator[tuple[Wired, httpx2.AsyncClient]]:
    """A gateway, and a browser that is not logged in yet."""
    async with wired(folder, **options) as it:
        own = f"http://127.0.0.1:{it.port}"
        async with httpx2.AsyncClient(base_url=own, headers={"origin": own}) as http:
            yield it, http


async def log_in(http: httpx2.AsyncClient, **given: Any) -> httpx2.Response:
    return await http.post("/login", json=given or {"token": TOKEN})


async def link_code(it: Wired) -> str:
    """The code of a link, as `clawmode dashboard` asks for it."""
    async with it.connect() as client:
        path = str((await client.call("dashboard.link", {}))["path"])
    return path.partition("#code=")[2]


def page_socket(it: Wired, http: httpx2.AsyncClient, **headers: str) -> connect:
    """A WebSocket as the page opens it."""
    cookies = "; ".join(f"{name}={value}" for name, value in http.cookies.items())
    given = {"origin": f"http://127.0.0.1:{it.port}", "cookie": cookies, **headers}
    extra = {key: value for key, value in given.items() if value}
    return connect(f"ws://127.0.0.1:{it.port}/ws", additional_headers=extra, proxy=None)


async def greet(socket: ClientConnection, token: str = "") -> dict[str, Any]:
    """The answer to `connect`, by default without a token."""
    hello: JsonObject = {"minProtocol": 4, "maxProtocol": 4, "client": {"id": "page"}}
    if token:
        hello["auth"] = {"token": token}
    await socket.recv()
    await socket.send(protocol.request("1", "connect", hello))
    with anyio.fail_after(10):
        return json.loads(await socket.recv())


# ---- Login ----


@pytest.mark.covers("CP-2")
async def test_a_token_opens_a_session_whose_cookie_no_script_and_no_other_site_gets(
    tmp_path: Path,
) -> None:
    async with browsing(tmp_path) as (it, http):
        assert (await http.get("/", headers=HTML)).headers["location"] == "/login"
        assert (await http.get("/session")).json()["principal"] is None
        response = await log_in(http)
        assert response.json() == {"principal": "tester"}
        cookie = response.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "path=/" in cookie
        assert TOKEN.lower() not in cookie
        page = await http.get("/", headers=HTML)
        assert page.headers["content-type"].startswith("text/html")
        async with page_socket(it, http) as socket:
            answer = await greet(socket)
        assert answer["payload"]["auth"]["scopes"]
        assert answer["payload"]["auth"]["principal"] == "tester"


@pytest.mark.covers("CP-2")
async def test_a_link_works_once_and_for_a_minute(tmp_path: Path) -> None:
    async with browsing(tmp_path) as (it, http):
        code = await link_code(it)
        assert (await log_in(http, code=code, confirmed=True)).status_code == 200
        assert (await log_in(http, code=code, confirmed=True)).status_code == 401
    time = 0.0
    logins, grant = Logins(lambda: time), Grant("0" * 64, "me", ())
    early, late = logins.new_code(grant), logins.new_code(grant)
    time = CODE_SECONDS - 1
    assert logins.redeem(early) == grant
    time = CODE_SECONDS
    assert logins.redeem(late) is None
    assert logins.look_up(late) is None


@pytest.mark.hostile
@pytest.mark.covers("CP-3")
async def test_a_code_of_another_token_needs_the_consent_of_a_person(tmp_path: Path) -> None:
    async with browsing(tmp_path) as (it, http):
        code = await link_code(it)
        asked = await http.post("/login", json={"code": code})
        question = {"principal": "tester", "scopes": sorted(SCOPES), "current": None}
        assert asked.json() == {"ask": question}
        assert "set-cookie" not in asked.headers
        # The owner of the state folder needs no consent, but replaces nobody without it.
        local = it.gateway.tokens.own[0].model_copy(update={"name": LOCAL, "digest": "0" * 64})
        it.gateway.tokens = Tokens(tmp_path / "state", [*it.gateway.tokens.own, local])
        own = Grant.of(local)
        assert (await log_in(http, code=it.gateway.logins.new_code(own))).json() == {
            "principal": LOCAL
        }
        assert (await log_in(http, code=it.gateway.logins.new_code(own))).json() == {
            "principal": LOCAL
        }
        assert (await http.post("/login", json={"code": code})).json() == {
            "ask": {**question, "current": LOCAL}
        }
        agreed = await http.post("/login", json={"code": code, "confirmed": True})
        assert agreed.json() == {"principal": "tester"}
        asked = await http.post("/login", json={"code": it.gateway.logins.new_code(own)})
        assert asked.json()["ask"]["current"] == "tester"


# ---- Restarts ----


@pytest.mark.covers("CP-2")
async def test_sessions_outlive_the_process_but_not_their_token_or_their_time(
    tmp_path: Path,
) -> None:
    time, file = 1e9, tmp_path / "sessions.json"
    tokens = Tokens(tmp_path, [Token(name=LOCAL, digest="1" * 64)])
    phone = tokens.find(tokens.add("phone", ("operator.read",)))
    assert phone is not None
    logins = Logins(lambda: time, file)
    logins.restore(tokens)
    # A client may have fewer scopes than its token, and so has the page that it opens.
    narrow = Grant(tokens.own[0].digest, LOCAL, ("operator.read",))
    cookies = [logins.open(it) for it in (narrow, Grant.of(phone), Grant.of(phone))]
    logins.close(digest(cookies[2]))
    await logins.save()
    assert file.stat().st_mode & 0o077 == 0
    assert not [cookie for cookie in cookies if cookie in file.read_text()]

    def after_restart(tokens: Tokens = tokens) -> list[Grant | None]:
        again = Logins(lambda: time, file)
        again.restore(tokens)
        found = [again.find(cookie) for cookie in cookies]
        return [None if session is None else session.grant for session in found]

    # Each process has another token `local`; whoever was logged in with the old one stays.
    local = Token(name=LOCAL, digest="2" * 64)
    next_tokens = Tokens(tmp_path, [local])
    narrow = Grant(local.digest, LOCAL, ("operator.read",))
    assert after_restart(next_tokens) == [narrow, Grant.of(phone), None]
    assert after_restart(Tokens(tmp_path, ())) == [None, Grant.of(phone), None]
    tokens.revoke("phone")
    assert after_restart(next_tokens) == [narrow, None, None]
    time += IDLE_SECONDS + 1
    assert after_restart(next_tokens) == [None, None, None]


@pytest.mark.covers("CP-2")
async def test_a_session_ends_after_a_week_even_if_it_is_used(tmp_path: Path) -> None:
    time = 1e9
    logins = Logins(lambda: time)
    cookie = logins.open(Grant("0" * 64, "me", ()))
    while time < 1e9 + LIFE_SECONDS:
        assert logins.find(cookie) is not None
        time += IDLE_SECONDS
    time += 1
    assert logins.find(cookie) is None


@pytest.mark.hostile
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"sessions": [{"id": "x"}]}', b'{"sessions": 1}', b"\xff" * 99]
)
async def test_a_damaged_file_of_sessions_logs_everybody_out_and_is_replaced(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "sessions.json"
    file.write_bytes(content)
    logins = Logins(file=file)
    logins.restore(Tokens(tmp_path, ()))
    logins.open(Grant("0" * 64, "me", ()))
    await logins.save()
    assert len(json.loads(file.read_bytes())["sessions"]) == 1


async def test_a_session_that_is_used_is_written_now_and_then(tmp_path: Path) -> None:
    time, file = 1e9, tmp_path / "sessions.json"
    logins = Logins(lambda: time, file)
    cookie = logins.open(Grant("0" * 64, "me", ()))
    for seconds, expected in ((0, 1e9), (60, 1e9), (SAVE_SECONDS, 1e9 + SAVE_SECONDS + 60)):
        time += seconds
        logins.find(cookie)
        await logins.save()
        assert json.loads(file.read_bytes())["sessions"][0]["used"] == expected


def test_sessions_end_after_half_a_day_without_use_and_are_limited() -> None:
    time = 0.0
    logins, grant = Logins(lambda: time), Grant("0" * 64, "me", ())
    cookie = logins.open(grant)
    time = IDLE_SECONDS
    assert logins.find(cookie) is not None
    time = 2 * IDLE_SECONDS + 1
    assert logins.find(cookie) is None
    cookies = [logins.open(grant) for _ in range(MAX_SESSIONS + 1)]
    assert logins.find(cookies[0]) is None
    assert logins.find(cookies[1]) is not None


@pytest.mark.covers("CP-2")
async def test_a_logout_ends_the_session_and_its_connections(tmp_path: Path) -> None:
    async with browsing(tmp_path) as (it, http):
        await log_in(http)
        cookies = dict(http.cookies)
        async with page_socket(it, http) as socket:
            await greet(socket)
            assert (await http.post("/logout", json={})).status_code == 200
            with anyio.fail_after(10), pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == protocol.CLOSE_LOGGED_OUT
        async with httpx2.AsyncClient(cookies=cookies) as thief:
            assert (await thief.get(f"http://127.0.0.1:{it.port}/session")).json()[
                "principal"
            ] is None


@pytest.mark.covers("CP-2")
async def test_a_revoked_token_ends_its_sessions_and_their_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "LOGIN_SECONDS", 0.05)
    async with browsing(tmp_path) as (it, http):
        token = it.gateway.tokens.add("phone", ("operator.read",))
        await log_in(http, token=token)
        async with page_socket(it, http) as socket:
            answer = await greet(socket)
            assert answer["payload"]["auth"]["scopes"] == ["operator.read"]
            it.gateway.tokens.revoke("phone")
            with anyio.fail_after(10), pytest.raises(ConnectionClosed):
                await socket.recv()
        assert (await http.get("/session")).json()["principal"] is None
        assert (await http.get("/", headers=HTML)).status_code == 303


# ---- Other pages ----


EVERY_ROUTE = ("/", "/login", "/session", "/healthz", "/readyz", "/metrics", "/v1/models", "/none")


@pytest.mark.hostile
@pytest.mark.covers("CP-3")
@pytest.mark.parametrize("host", ["evil.test", "127.0.0.1.evil.test", "x@127.0.0.1", "127.0.0.1/"])
async def test_a_name_that_was_rebound_to_the_gateway_gets_no_answer(
    tmp_path: Path, host: str
) -> None:
    async with browsing(tmp_path) as (it, http):
        await log_in(http)
        named = {"host": f"{host}:{it.port}", "origin": f"http://{host}:{it.port}"}
        for path in EVERY_ROUTE:
            assert (await http.get(path, headers={**HTML, **named})).status_code == 403, path
        for path in ("/login", "/logout", "/v1/chat/completions", "/tools/invoke"):
            response = await http.post(path, json={"token": TOKEN}, headers=named)
            assert response.status_code == 403, path
        for path in ("/", "/ws"):
            assert (await http.get(path, headers={**UPGRADE, **named})).status_code == 403


@pytest.mark.hostile
@pytest.mark.covers("CP-3")
async def test_a_page_of_another_site_cannot_use_the_session(tmp_path: Path) -> None:
    async with browsing(tmp_path) as (it, http):
        await log_in(http)
        # The browser would send the cookie along from another port: ports are the same site.
        for origin in ("https://evil.test", f"http://127.0.0.1:{it.port + 1}", "null"):
            with pytest.raises(InvalidStatus):
                async with page_socket(it, http, origin=origin):
                    raise AssertionError("connected")
            for path in ("/login", "/logout"):
                response = await http.post(path, json={}, headers={"origin": origin})
                assert response.status_code == 403
        # A program that is not a browser, and has stolen nothing but the cookie.
        async with page_socket(it, http, origin="") as socket:
            assert (await greet(socket))["error"]["code"] == "UNAUTHORIZED"
        assert (await http.get("/session")).json()["principal"] == "tester"


@pytest.mark.hostile
@pytest.mark.covers("CP-3")
@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_form_can_neither_log_in_nor_out(tmp_path: Path, media_type: str) -> None:
    async with browsing(tmp_path) as (_, http):
        await log_in(http)
        body, headers = json.dumps({"token": TOKEN}), {"content-type": media_type}
        for path in ("/login", "/logout"):
            assert (await http.post(path, content=body, headers=headers)).status_code == 400
            assert (await http.post(path, json={}, headers={"origin": ""})).status_code == 403
        assert (await http.get("/session")).json()["principal"] == "tester"


@pytest.mark.hostile
@pytest.mark.covers("CP-3")
async def test_every_response_forbids_frames_scripts_of_others_and_referrers(
    tmp_path: Path,
) -> None:
    async with browsing(tmp_path) as (_, http):
        await log_in(http)
        paths = [*EVERY_ROUTE, "/page/0/app.js"]
        for path in paths:
            headers = (await http.get(path, headers=HTML)).headers
            policy = dict.fromkeys(headers["content-security-policy"].split("; "))
            assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(
                policy
            ), path
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert "access-control-allow-origin" not in headers
        assert (await http.get("/", headers=HTML)).headers["cache-control"] == "no-store"


@pytest.mark.hostile
@pytest.mark.covers("CP-3")
async def test_a_login_ends_the_session_that_was_there_before(tmp_path: Path) -> None:
    async with browsing(tmp_path) as (it, http):
        name = next(iter((await log_in(http)).cookies))
        prepared = http.cookies[name]
        await log_in(http)
        assert http.cookies[name] != prepared
        assert it.gateway.logins.find(prepared) is None
        # A cookie that an attacker has chosen becomes no session.
        http.cookies.set(name, "chosen", domain="127.0.0.1")
        assert (await http.get("/session")).json()["principal"] is None


@pytest.mark.hostile
@pytest.mark.covers("CP-3")
async def test_with_tls_a_cookie_that_a_neighbour_has_planted_is_no_session(tmp_path: Path) -> None:
    async with browsing(tmp_path) as (it, http):
        # A neighbour of the host name can set any cookie but one with the prefix `__Host-`: here
        # that of a session of its own, so that the victim acts in it.
        name = next(iter((await log_in(http)).cookies))
        secure = f"https://127.0.0.1:{it.port}"
        async with page_socket(it, http, origin=secure) as socket:
            assert (await greet(socket))["error"]["code"] == "UNAUTHORIZED"
        found = await http.post("/session", headers={"origin": secure})
        assert found.json()["principal"] is None
        own = {"origin": secure, "cookie": f"__Host-{name}={http.cookies[name]}"}
        async with page_socket(it, http, **own) as socket:
            assert (await greet(socket))["ok"]


@pytest.mark.hostile
@pytest.mark.covers("CP-3")
def test_a_client_that_logs_in_often_ends_its_own_sessions_and_not_those_of_others() -> None:
    logins, other = Logins(), Grant("0" * 64, "me", ())
    cookie, code = logins.open(other), logins.new_code(other)
    flood = Grant("1" * 64, "flood", ())
    for _ in range(MAX_SESSIONS + 10):
        logins.open(flood)
        logins.new_code(flood)
    assert logins.find(cookie) is not None
    assert logins.redeem(code) == other


@pytest.mark.hostile
@pytest.mark.covers("CP-3")
async def test_a_client_that_was_logged_out_but_does_not_read_can_do_nothing_more(
    tmp_path: Path,
) -> None:
    async with browsing(tmp_path) as (it, http):
        await log_in(http)
        async with page_socket(it, http) as socket:
            await greet(socket)
            (client,) = (each for each in it.gateway.clients.values() if each.session)
            # As after a logout while the unread frames before it fill the connection.
            client.closing = (protocol.CLOSE_LOGGED_OUT, "logged out")
            given: JsonObject = {"sessionKey": "late", "idempotencyKey": "1"}
            await socket.send(protocol.request("2", "sessions.create", given))
            await (await socket.ping())
            await anyio.lowlevel.checkpoint()
            await until(lambda: not it.gateway.effects)
            client.finish(protocol.CLOSE_LOGGED_OUT, "logged out")
            with anyio.fail_after(10), pytest.raises(ConnectionClosed):
                await socket.recv()
        assert (await it.call("sessions.list"))["sessions"] == []


def is_open(it: Wired, socket: ClientConnection) -> bool:
    """Whether the gateway still has its end of a connection, as Linux shows it."""
    mine = socket.transport.get_extra_info("sockname")[1]
    rows = [row.split() for row in Path("/proc/self/net/tcp").read_text("ascii").splitlines()[1:]]
    return any(
        (row[1][-4:], row[2][-4:], row[3]) == (f"{it.port:04X}", f"{mine:04X}", "01")
        for row in rows
    )


@pytest.mark.hostile
@pytest.mark.covers("CP-3")
@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="only Linux shows connections")
@pytest.mark.parametrize("frames", [1_000, 40])
async def test_a_client_that_was_logged_out_and_never_reads_loses_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frames: int
) -> None:
    monkeypatch.setattr(server_module, "CLOSE_SECONDS", 0.2)
    async with browsing(tmp_path) as (it, http):
        await log_in(http)
        async with page_socket(it, http) as socket:
            await greet(socket)
            socket.transport.pause_reading()
            await until(lambda: is_open(it, socket))
            # 20 MB fill the buffers of the system, so that the gateway waits for the client; after
            # less, it has nothing more to send but the end.
            for _ in range(frames):
                it.gateway.broadcast("diagnostics", {"words": "x" * 20_000})
                await anyio.lowlevel.checkpoint()
            assert (await http.post("/logout", json={})).status_code == 200
            await until(lambda: not is_open(it, socket))
            socket.transport.abort()


@pytest.mark.hostile
@pytest.mark.covers("CP-3", "GP-17")
@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="only Linux shows connections")
@pytest.mark.parametrize("is_page", [False, True])
async def test_a_client_whose_token_was_revoked_and_that_never_reads_loses_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_page: bool
) -> None:
    monkeypatch.setattr(server_module, "CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(gateway_module, "LOGIN_SECONDS", 0.05)
    async with browsing(tmp_path) as (it, http):
        token = it.gateway.tokens.add("phone")
        if is_page:
            await log_in(http, token=token)
        async with page_socket(it, http) as socket, it.connect() as other:
            await greet(socket, "" if is_page else token)
            socket.transport.pause_reading()
            await until(lambda: is_open(it, socket))
            for _ in range(1_000):
                it.gateway.broadcast("diagnostics", {"words": "x" * 20_000})
                await anyio.lowlevel.checkpoint()
            # As `clawmode gateway token revoke` does it, in another process.
            Tokens(tmp_path / "state").revoke("phone")
            await until(lambda: not is_open(it, socket))
            assert (await other.call("health", {}))["ok"]
            socket.transport.abort()


@pytest.mark.covers("GP-17")
async def test_a_damaged_file_of_tokens_disconnects_only_the_clients_that_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "LOGIN_SECONDS", 0.05)
    async with browsing(tmp_path) as (it, http):
        token = it.gateway.tokens.add("phone")
        async with page_socket(it, http) as socket, it.connect() as own:
            await greet(socket, token)
            (tmp_path / "state" / "gateway-tokens.json").write_text("{")
            with anyio.fail_after(10), pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == protocol.CLOSE_POLICY
            assert (await own.call("health", {}))["ok"]


@pytest.mark.hostile
@pytest.mark.covers("CP-3")
async def test_codes_cannot_be_guessed(tmp_path: Path) -> None:
    async with browsing(tmp_path) as (it, http):
        code = await link_code(it)
        statuses = [(await log_in(http, code=f"guess{n}")).status_code for n in range(12)]
        assert statuses == [401] * 10 + [429] * 2
        assert (await log_in(http, code=code)).status_code == 429


@pytest.mark.hostile
@pytest.mark.covers("CP-3")
async def test_an_expired_session_locks_nobody_out(tmp_path: Path) -> None:
    async with browsing(tmp_path) as (it, http):
        for _ in range(15):
            async with page_socket(it, http) as socket:
                assert (await greet(socket))["error"]["code"] == "UNAUTHORIZED"
        assert (await log_in(http)).status_code == 200


@pytest.mark.hostile
@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"null", b'{"token": 1}', b'{"code": ""}', b"[" * 4000, b"x" * 9000]
)
async def test_an_invalid_login_is_an_error_that_says_so(tmp_path: Path, body: bytes) -> None:
    async with browsing(tmp_path) as (_, http):
        response = await http.post(
            "/login", content=body, headers={"content-type": "application/json"}
        )
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "INVALID_REQUEST"


@pytest.mark.hostile
@pytest.mark.covers("CP-3")
async def test_neither_codes_nor_tokens_nor_cookies_reach_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with browsing(tmp_path) as (it, http):
        code = await link_code(it)
        await log_in(http, code=code)
        await log_in(http, code=code, confirmed=True)
        await log_in(http, code=code)
        await log_in(http, token=f"{TOKEN}wrong")
        async with page_socket(it, http) as socket:
            await greet(socket)
        secrets = [code, TOKEN, *http.cookies.values()]
    ours = [each.getMessage() for each in caplog.records if each.name.startswith("clawmode")]
    assert ours
    assert not [text for text in ours for secret in secrets if secret in text]


# ---- Files ----


async def test_files_of_the_page_are_kept_by_browsers_and_change_their_address(
    tmp_path: Path,
) -> None:
    async with browsing(tmp_path) as (_, http):
        await log_in(http)
        page = (await http.get("/", headers=HTML)).text
        paths = [part.split('"')[0] for part in page.split('"/page/')[1:]]
        assert {path.partition("/")[2] for path in paths} >= {"app.js", "preact.js", "style.css"}
        for path in paths:
            response = await http.get(f"/page/{path}")
            assert response.status_code == 200
            assert "immutable" in response.headers["cache-control"]
        for path in ("0/app.js", f"{paths[0].partition('/')[0]}/..%2fserver.py"):
            assert (await http.get(f"/page/{path}")).status_code == 404


async def test_programs_that_want_no_html_get_text(tmp_path: Path) -> None:
    async with browsing(tmp_path) as (_, http):
        response = await http.get("/", headers={"accept": "*/*"})
        assert response.headers["content-type"].startswith("text/plain")
        assert "clawmode dashboard" in response.text


async def test_a_page_that_stays_open_keeps_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "LOGIN_SECONDS", 0.05)
    time = 0.0
    async with browsing(tmp_path) as (it, http):
        it.gateway.logins = Logins(lambda: time)
        await log_in(http)
        session = next(iter(it.gateway.logins._sessions.values()))
        async with page_socket(it, http) as socket:
            await greet(socket)
            time = IDLE_SECONDS - 1
            await until(lambda: session.used == time)


@pytest.mark.ordeal
@pytest.mark.hostile
@pytest.mark.covers("CP-8")
@pytest.mark.timeout(300)
async def test_five_hundred_open_pages_of_which_some_do_not_read_leave_the_gateway_responsive(
    tmp_path: Path,
) -> None:
    async with browsing(tmp_path) as (it, http), AsyncExitStack() as stack:
        await log_in(http)
        before = resident_bytes()
        readers: list[ClientConnection] = []
        for number in range(500):
            socket = await stack.enter_async_context(page_socket(it, http))
            await greet(socket)
            if number % 10:
                readers.append(socket)
            else:  # never reads again
                socket.transport.pause_reading()
        words = "x" * 20_000
        for _ in range(100):
            it.gateway.broadcast("diagnostics", {"words": words})
            await anyio.lowlevel.checkpoint()
        heard = await gather(readers)
        assert heard == [100] * len(readers)
        with anyio.fail_after(5):
            assert (await http.get("/session")).json()["principal"] == "tester"
            async with it.connect() as client:
                assert (await client.call("health", {}))["ok"]
        grown = (resident_bytes() - before) / 1e6
        print(f"500 pages, 50 of which do not read: {grown:.0f} MB more, clients included")
        # 50 clients that do not read have 2 MB each in their queues at most.
        assert grown < 400


async def gather(sockets: list[ClientConnection]) -> list[int]:
    """The number of events that each page has heard, up to 100."""
    heard = [0] * len(sockets)

    async def read(number: int) -> None:
        while heard[number] < 100:
            heard[number] += json.loads(await sockets[number].recv()).get("event") == "diagnostics"

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for number in range(len(sockets)):
                tasks.start_soon(read, number)
    return heard
