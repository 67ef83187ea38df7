"""OAuth: a person logs in, or the client has a secret; tokens are kept, and kept secret."""

import asyncio
import base64
import json
import logging
import os
import webbrowser
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest
from tests.mcp.driver import call, connected, view_of
from tests.mcp.web_server import Request, WebServer, web_server

from clawmode.command_setup import Options, set_up
from clawmode.exceptions import ConfigurationError
from clawmode.mcp.command import TOKENS, log_in
from clawmode.mcp.config import read_servers

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
            assert "nobody can be asked" in (view_of(servers, "web").problem or "")

        async def decline(server: str, address: str) -> bool:
            return False

        async with connected(entries, on_login=decline) as servers:
            assert "nobody did" in (view_of(servers, "web").problem or "")


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
        for name, problem in (("plain", "wants no login"), ("nobody", "web, plain")):
            with pytest.raises(ConfigurationError, match=problem):
                log_in(setup, name)
    told = capsys.readouterr().err
    assert opened[0] in told
    assert "logged in to web" in told
    assert "acc3ss-token-1" not in told
    assert len(os.listdir(tmp_path / TOKENS)) == 1
