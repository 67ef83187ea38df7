"""OAuth: a person logs in, or the client has a secret; tokens are kept, and kept secret."""

import asyncio
import base64
import json
import logging
import os
import webbrowser
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import pytest
from mcp.client.auth import OAuthFlowError
from tests.support.mcp_driver import call, connected, view_of
from tests.support.web_server import Request, WebServer, web_server

from clawmode.app.loading import set_up
from clawmode.app.servers import TOKENS
from clawmode.app.setup import Options
from clawmode.config.mcp import read_servers
from clawmode.exceptions import ConfigurationError
from clawmode.mcp.auth import make_auth
from clawmode.terminal.mcp_face import log_in

pytestmark = pytest.mark.anyio


@dataclass
class Authority:
    """An authorization server, and the door of the MCP server that it guards."""

    web: WebServer | None = None
    asked: list[str] = field(default_factory=list)
    forms: list[dict[str, str]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    token: str = "acc3ss-token-1"

    async def __call__(self, request: Request) -> bool:
        assert self.web is not None
        path = urlsplit(request.path).path
        self.asked.append(path)
        origin = self.web.url.removesuffix("/mcp")
        if path == "/mcp":
            if request.headers.get("authorization") == f"Bearer {self.token}":
                return False
            await request.send(b"", status="401 Unauthorized", kind="text/plain")
        elif path.startswith("/.well-known/oauth-protected-resource"):
            await self._json(request, {"resource": self.web.url, "authorization_servers": [origin]})
        elif path.startswith("/.well-known/oauth-authorization-server"):
            await self._json(
                request,
                {
                    "issuer": origin,
                    "authorization_endpoint": f"{origin}/authorize",
                    "token_endpoint": f"{origin}/token",
                    "registration_endpoint": f"{origin}/register",
                    "response_types_supported": ["code"],
                    "grant_types_supported": ["authorization_code", "client_credentials"],
                    "code_challenge_methods_supported": ["S256"],
                },
            )
        elif path == "/register":
            await self._json(request, {"client_id": "registered", **request.message}, "201 Created")
        elif path == "/token":
            form = {key: values[0] for key, values in parse_qs(request.body.decode()).items()}
            self.forms.append(form)
            self.headers.append(request.headers.get("authorization", ""))
            tokens = {"access_token": self.token, "token_type": "Bearer", "expires_in": 3600}
            await self._json(request, tokens | {"refresh_token": "r3fresh-token"})
        else:
            await request.send(b"", status="404 Not Found", kind="text/plain")
        return True

    @staticmethod
    async def _json(request: Request, value: Any, status: str = "200 OK") -> None:
        await request.send(json.dumps(value).encode(), status=status)


async def go(request: Request) -> None:
    await request.answer({"content": []})


@dataclass
class Person:
    """Opens the address, logs in, and is sent back. The page comes when somebody listens."""

    windows: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def __call__(self, server: str, address: str) -> bool:
        query = parse_qs(urlsplit(address).query)
        back = urlsplit(query["redirect_uri"][0])
        reader, writer = await asyncio.open_connection(back.hostname, back.port)
        target = f"{back.path}?code=c0de&state={query['state'][0]}"
        writer.write(f"GET {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        self.windows.append((reader, writer))
        return True


async def test_a_person_logs_in_and_the_token_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "clawmode")
    authority, person = Authority(), Person()
    async with web_server(go, first=authority) as web:
        authority.web = web
        entries = {"web": {"url": web.url, "auth": "oauth"}}
        async with connected(entries, on_login=person, tokens=tmp_path) as servers:
            assert view_of(servers, "web").problem is None
            await call(servers, "web:go")
        ((reader, writer),) = person.windows
        assert b"You can close this window" in await reader.read()
        writer.close()
        (form,) = authority.forms
        assert (form["grant_type"], form["code"]) == ("authorization_code", "c0de")
        assert form["code_verifier"]
        (kept,) = os.listdir(tmp_path)
        assert os.stat(tmp_path / kept).st_mode & 0o777 == 0o600
        # The next time nobody is asked.
        async with connected(entries, tokens=tmp_path) as servers:
            await call(servers, "web:go")
        assert authority.asked.count("/register") == 1
    for secret in ("acc3ss-token-1", "r3fresh-token", "c0de"):
        assert secret not in caplog.text


async def test_without_anybody_to_log_in_the_server_has_a_problem() -> None:
    authority = Authority()
    async with web_server(go, first=authority) as web:
        authority.web = web
        entries = {"web": {"url": web.url, "auth": "oauth"}}
        async with connected(entries) as servers:
            assert "no user can be asked" in (view_of(servers, "web").problem or "")

        async def decline(server: str, address: str) -> bool:
            return False

        async with connected(entries, on_login=decline) as servers:
            assert "the user did not log in" in (view_of(servers, "web").problem or "")


async def test_a_client_with_a_secret_needs_nobody() -> None:
    authority = Authority()
    async with web_server(go, first=authority) as web:
        authority.web = web
        auth = {
            "type": "oauth",
            "grant": "client_credentials",
            "clientId": "robot",
            "clientSecret": "s3cret-of-robot",
            "issuer": web.url.removesuffix("/mcp"),
            "scopes": ["read"],
        }
        async with connected({"web": {"url": web.url, "auth": auth}}) as servers:
            await call(servers, "web:go")
        (form,) = authority.forms
        assert form["grant_type"] == "client_credentials"
        basic = base64.b64encode(b"robot:s3cret-of-robot").decode()
        assert authority.headers == [f"Basic {basic}"]


async def test_a_secret_is_shown_to_nobody_but_its_issuer() -> None:
    authority = Authority()
    async with web_server(go, first=authority) as web:
        authority.web = web
        auth = {
            "type": "oauth",
            "grant": "client_credentials",
            "clientId": "robot",
            "clientSecret": "s3cret-of-robot",
            "issuer": "https://auth.example.org",
        }
        async with connected({"web": {"url": web.url, "auth": auth}}) as servers:
            assert view_of(servers, "web").state == "down"
        assert authority.forms == []


# ---- Where the flow may go ----


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawmode.mcp.auth.getproxies", dict)


PUBLIC, SECOND = "93.184.216.34", "93.184.216.35"
NAMES = {
    "mcp.example.com": [PUBLIC],
    "auth.example.com": [SECOND],
    "inside.example.com": ["10.0.0.7"],
    "both.example.com": [SECOND, "127.0.0.1"],
    "home.example.com": ["192.168.1.5"],
}


class Resolver:
    """Knows names, and answers from the second time on what an attacker wants."""

    def __init__(self, later: dict[str, list[str]] | None = None) -> None:
        self.later = later or {}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        known = self.later if host in self.asked and host in self.later else NAMES
        self.asked.append(host)
        return known[host] if host in known else []


@dataclass
class Flow:
    """An OAuth flow whose requests are answered here; nothing is sent."""

    answers: dict[str, tuple[int, dict[str, str], Any]]
    url: str = "https://mcp.example.com/mcp"
    resolver: Resolver = field(default_factory=Resolver)
    sent: list[httpx2.Request] = field(default_factory=list)
    entry: dict[str, Any] = field(default_factory=lambda: {"auth": "oauth"})

    async def run(self) -> httpx2.Response:
        (settings,) = read_servers({"web": {"url": self.url, **self.entry}}).unwrap()
        auth = make_auth(settings, None, None, nullcontext, self.resolver)

        async def answer(request: httpx2.Request) -> httpx2.Response:
            self.sent.append(request)
            name = f"{request.headers['host']}{request.url.path}"
            status, headers, body = self.answers.get(name, (404, {}, {}))
            return httpx2.Response(status, headers=headers, json=body, request=request)

        transport = httpx2.MockTransport(answer)
        async with httpx2.AsyncClient(transport=transport, auth=auth) as client:
            return await client.get(self.url)

    @property
    def hosts(self) -> list[str]:
        return [request.url.host for request in self.sent]


def guarded_by(metadata: str) -> dict[str, tuple[int, dict[str, str], Any]]:
    """The answers of a server that names the address of its metadata."""
    header = {"www-authenticate": f'Bearer resource_metadata="{metadata}"'}
    return {"mcp.example.com/mcp": (401, header, {})}


@pytest.mark.covers("S-22")
@pytest.mark.parametrize(
    "metadata",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1:8080/admin",
        "http://[::ffff:10.0.0.1]/x",
        "http://2130706433/x",
        "http://inside.example.com/x",
        "http://both.example.com/x",
        "http://localhost./x",
    ],
)
async def test_a_server_on_the_open_network_cannot_send_the_login_to_private_addresses(
    metadata: str,
) -> None:
    flow = Flow(guarded_by(metadata), resolver=Resolver())
    with pytest.raises(OAuthFlowError, match="is not allowed"):
        await flow.run()
    assert flow.hosts == ["mcp.example.com"]


def authority_at(**endpoints: str) -> dict[str, tuple[int, dict[str, str], Any]]:
    resource = {
        "resource": "https://mcp.example.com/mcp",
        "authorization_servers": ["https://auth.example.com"],
    }
    about = {
        "issuer": "https://auth.example.com",
        "authorization_endpoint": "https://auth.example.com/authorize",
        "token_endpoint": "https://auth.example.com/token",
        "registration_endpoint": "https://auth.example.com/register",
        "response_types_supported": ["code"],
        **endpoints,
    }
    return {
        **guarded_by("https://auth.example.com/meta"),
        "auth.example.com/meta": (200, {}, resource),
        "auth.example.com/.well-known/oauth-authorization-server": (200, {}, about),
    }


@pytest.mark.covers("S-22")
async def test_behind_a_proxy_names_are_the_proxys_and_private_addresses_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clawmode.mcp.auth.getproxies", lambda: {"http": "http://proxy:3128"})
    flow = Flow(guarded_by("http://known-to-the-proxy.example.com/x"))
    with pytest.raises(OAuthFlowError):
        await flow.run()
    assert "known-to-the-proxy.example.com" in flow.hosts
    flow = Flow(guarded_by("http://169.254.169.254/x"))
    with pytest.raises(OAuthFlowError, match="is not allowed"):
        await flow.run()


@pytest.mark.covers("S-22")
async def test_neither_can_its_authorization_server() -> None:
    flow = Flow(authority_at(registration_endpoint="http://10.1.2.3/register"))
    with pytest.raises(OAuthFlowError, match="is not allowed"):
        await flow.run()
    assert set(flow.hosts) == {"mcp.example.com", SECOND}


@pytest.mark.covers("S-22")
async def test_a_name_that_means_another_address_the_second_time_leads_to_the_first() -> None:
    resolver = Resolver({"auth.example.com": ["127.0.0.1"]})
    flow = Flow(authority_at(), resolver=resolver)
    with pytest.raises(OAuthFlowError, match="is not allowed"):
        await flow.run()
    pinned = flow.sent[1]
    assert pinned.url.host == SECOND
    assert pinned.headers["host"] == "auth.example.com"
    assert pinned.extensions["sni_hostname"] == "auth.example.com"
    assert "127.0.0.1" not in flow.hosts


@pytest.mark.covers("S-22")
async def test_a_redirect_stays_with_the_name_and_is_looked_at_again() -> None:
    answers = authority_at()
    answers["auth.example.com/moved"] = answers["auth.example.com/meta"]
    answers["auth.example.com/meta"] = (307, {"location": "/moved"}, None)
    flow = Flow(answers)
    with pytest.raises(OAuthFlowError):  # nobody can log in, or register
        await flow.run()
    assert [request.url.path for request in flow.sent[1:3]] == ["/meta", "/moved"]
    assert {request.headers["host"] for request in flow.sent[1:3]} == {"auth.example.com"}
    answers["auth.example.com/meta"] = (307, {"location": "http://127.0.0.1/x"}, None)
    flow = Flow(answers)
    with pytest.raises(OAuthFlowError):
        await flow.run()
    assert "127.0.0.1" not in flow.hosts


@pytest.mark.covers("S-22")
async def test_a_private_server_and_a_chosen_issuer_may_be_private() -> None:
    home: dict[str, Any] = {"home.example.com/mcp": (401, {}, None)}
    flow = Flow(home, url="http://home.example.com/mcp")
    with pytest.raises(OAuthFlowError):
        await flow.run()
    assert set(flow.hosts) == {"home.example.com"}
    assert len(flow.hosts) > 1
    issuer = "https://inside.example.com"
    answers = authority_at(issuer=issuer, token_endpoint=f"{issuer}/token")
    resource = {"resource": "https://mcp.example.com/mcp", "authorization_servers": [issuer]}
    answers |= {"auth.example.com/meta": (200, {"x": "y"}, resource)}
    answers["inside.example.com/.well-known/oauth-authorization-server"] = answers[
        "auth.example.com/.well-known/oauth-authorization-server"
    ]
    auth = {
        "type": "oauth",
        "grant": "client_credentials",
        "clientId": "r",
        "clientSecret": "s3cret",
    }
    flow = Flow(answers, entry={"auth": auth | {"issuer": issuer}})
    with pytest.raises(OAuthFlowError):
        await flow.run()
    assert "inside.example.com" in flow.hosts


async def test_what_a_client_with_a_secret_needs_is_asked_for() -> None:
    auth: Any = {"type": "oauth", "grant": "client_credentials", "clientId": "robot"}
    with pytest.raises(ConfigurationError, match="needs clientId, clientSecret, issuer"):
        read_servers({"web": {"url": "https://x.example", "auth": auth}}).unwrap()


async def test_the_command_logs_in_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    person = Person()
    async with web_server(go, first=(authority := Authority())) as web:
        authority.web = web
        loop = asyncio.get_running_loop()

        def open_browser(address: str) -> bool:
            opened.append(address)
            asyncio.run_coroutine_threadsafe(person("web", address), loop)
            return True

        monkeypatch.setattr(webbrowser, "open", open_browser)
        servers = {"web": {"url": web.url, "auth": "oauth"}, "plain": {"url": web.url}}
        (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}))
        options = Options(mcp_config=str(tmp_path / "servers.json"), state=str(tmp_path))
        setup = set_up(options)
        await anyio.to_thread.run_sync(log_in, setup, "web")
        for _, writer in person.windows:
            writer.close()
        for name, problem in (("plain", "needs no login"), ("nobody", "web, plain")):
            with pytest.raises(ConfigurationError, match=problem):
                log_in(setup, name)
    told = capsys.readouterr().err
    assert opened[0] in told
    assert "logged in to web" in told
    assert "acc3ss-token-1" not in told
    assert len(os.listdir(tmp_path / TOKENS)) == 1
