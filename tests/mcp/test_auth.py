"""OAuth: a person logs in, or the client has a secret; tokens are kept, and kept secret."""

import asyncio
import base64
import json
import logging
import os
import subprocess
import sys
import time
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from mcp.client.auth import OAuthFlowError
from tests.support.authority import Authority, Person, go
from tests.support.mcp_driver import call, connected, view_of
from tests.support.web_server import Request, web_server

from clawmode.app.loading import set_up
from clawmode.app.servers import TOKENS
from clawmode.app.setup import Options
from clawmode.config.mcp import read_servers
from clawmode.exceptions import ConfigurationError
from clawmode.mcp.login import make_auth
from clawmode.terminal.mcp_face import log_in

pytestmark = pytest.mark.anyio


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


# ---- A login is kept and renewed ----


@asynccontextmanager
async def logged_in(
    folder: Path, authority: Authority, handler: Any = go, **auth: Any
) -> AsyncIterator[dict[str, Any]]:
    """The entry of a server whose login is in `folder`."""
    person = Person()
    async with web_server(handler, first=authority) as web:
        authority.web = web
        entries = {"web": {"url": web.url, "auth": {"type": "oauth", **auth}}}
        async with connected(entries, on_login=person, tokens=folder) as servers:
            assert view_of(servers, "web").problem is None
        for _, writer in person.windows:
            writer.close()
        yield entries


def kept_in(folder: Path) -> Path:
    """The file of the only login."""
    (path,) = folder.glob("*.json")
    return path


def age(folder: Path) -> None:
    """Let the stored access token be past its time."""
    path = kept_in(folder)
    stored = json.loads(path.read_text())
    assert stored["expiresAt"] > time.time()
    path.write_text(json.dumps(stored | {"expiresAt": time.time() - 1}))


@pytest.mark.covers("M-1")
async def test_an_expired_token_is_renewed_without_a_user_and_never_shown(tmp_path: Path) -> None:
    authority = Authority()
    async with logged_in(tmp_path, authority) as entries:
        age(tmp_path)
        authority.expire()
        async with connected(entries, tokens=tmp_path) as servers:
            await call(servers, "web:go")
    assert [form["grant_type"] for form in authority.forms] == [
        "authorization_code",
        "refresh_token",
    ]
    assert authority.expired == []
    assert authority.asked.count("/.well-known/oauth-authorization-server") == 1


@pytest.mark.covers("M-1")
async def test_a_token_that_is_refused_in_the_middle_is_renewed_once_for_all_calls(
    tmp_path: Path,
) -> None:
    authority = Authority()
    async with logged_in(tmp_path, authority) as entries:
        async with connected(entries, tokens=tmp_path) as servers:
            authority.expire()
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(call, servers, "web:go")
    assert len(authority.forms) == 2


async def test_a_login_that_cannot_be_renewed_needs_a_user_again(tmp_path: Path) -> None:
    authority = Authority()
    async with logged_in(tmp_path, authority) as entries:
        age(tmp_path)
        authority.expire()
        authority.refresh_token = "another"
        async with connected(entries, tokens=tmp_path) as servers:
            assert "no user can be asked" in (view_of(servers, "web").problem or "")


async def test_a_token_endpoint_in_trouble_does_not_end_the_login(tmp_path: Path) -> None:
    authority = Authority()
    async with logged_in(tmp_path, authority) as entries:
        age(tmp_path)
        authority.expire()
        authority.broken = True
        async with connected(entries, tokens=tmp_path) as servers:
            assert "answered HTTP 503" in (view_of(servers, "web").problem or "")
            authority.broken = False
            await servers.connect()
            await call(servers, "web:go")


async def test_a_call_does_not_wait_for_the_answer_to_another_one(tmp_path: Path) -> None:
    both = anyio.Event()
    waiting: list[Request] = []

    async def together(request: Request) -> None:
        waiting.append(request)
        if len(waiting) == 2:
            both.set()
        await both.wait()
        await request.answer({"content": []})

    async with logged_in(tmp_path, Authority(), together) as entries:
        async with connected(entries, tokens=tmp_path) as servers, anyio.create_task_group() as t:
            t.start_soon(call, servers, "web:go")
            t.start_soon(call, servers, "web:go")
    assert len(waiting) == 2


OTHER_PROCESS = """
import anyio, json, sys
from pathlib import Path
from clawmode.config.mcp import read_servers
from clawmode.mcp.servers import McpServers

async def main():
    entries = json.loads(sys.argv[1])
    servers = McpServers(read_servers(entries).unwrap(), tokens=Path(sys.argv[2]))
    print("ready", flush=True)
    sys.stdin.readline()
    async with servers:
        (view,) = await servers.connect()
        print(view.problem, flush=True)

anyio.run(main)
"""


@pytest.mark.covers("M-14")
async def test_processes_that_share_a_login_take_turns_when_they_renew_it(tmp_path: Path) -> None:
    authority = Authority(rotates=True)
    async with logged_in(tmp_path, authority) as entries:
        other = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", OTHER_PROCESS, json.dumps(entries), str(tmp_path)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert other.stdin is not None
        assert other.stdout is not None
        with anyio.fail_after(30):
            assert await other.stdout.readline() == b"ready\n"
        age(tmp_path)
        authority.expire()
        other.stdin.write(b"go\n")
        # Two connections of this process race with each other and with the other process.
        async with (
            connected(entries, tokens=tmp_path) as first,
            connected(entries, tokens=tmp_path) as second,
        ):
            await call(first, "web:go")
            await call(second, "web:go")
            with anyio.fail_after(30):
                assert await other.stdout.readline() == b"None\n"
            assert await other.wait() == 0
            age(tmp_path)
            authority.expire()
            async with anyio.create_task_group() as tasks:
                for servers in (first, second):
                    tasks.start_soon(call, servers, "web:go")
    assert [form["grant_type"] for form in authority.forms[1:]] == ["refresh_token"] * 2


@pytest.mark.hostile
async def test_one_users_login_is_not_used_for_another_user(tmp_path: Path) -> None:
    authority, person = Authority(), Person()
    async with web_server(go, first=authority) as web:
        authority.web = web
        entries = {"web": {"url": web.url, "auth": "oauth"}}
        async with connected(entries, on_login=person, tokens=tmp_path, principal="ann"):
            pass
        for _, writer in person.windows:
            writer.close()
        states: dict[str, str] = {}
        for name in ("ann", "bob", "", "ann\0", "../ann"):
            async with connected(entries, tokens=tmp_path, principal=name) as servers:
                states[name] = view_of(servers, "web").state
    assert states == {"ann": "ready", "bob": "down", "": "down", "ann\0": "down", "../ann": "down"}


@pytest.mark.hostile
@pytest.mark.parametrize("content", ["", "{", "[]", '{"tokens": 5}', '{"expiresAt": "never"}'])
async def test_a_file_that_is_no_login_is_as_good_as_none(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority()
    async with logged_in(tmp_path, authority) as entries:
        kept_in(tmp_path).write_text(content)
        async with connected(entries, tokens=tmp_path) as servers:
            assert "no user can be asked" in (view_of(servers, "web").problem or "")
    assert "cannot be used" in caplog.text


@pytest.mark.hostile
@pytest.mark.parametrize("life", [0, -5, 10**30])
async def test_an_absurd_life_of_a_token_neither_renews_for_ever_nor_loses_the_login(
    tmp_path: Path, life: int
) -> None:
    authority = Authority(life=life)
    async with logged_in(tmp_path, authority) as entries:
        async with connected(entries, tokens=tmp_path) as servers:
            await call(servers, "web:go")
    assert len(authority.forms) == 1


# ---- How the client proves who it is ----


@pytest.mark.covers("M-10")
@pytest.mark.parametrize(
    ("supported", "way"),
    [
        (["client_secret_basic"], "basic"),
        (["client_secret_post"], "post"),
        (["client_secret_post", "client_secret_basic"], "basic"),
        (["none"], "none"),
        (None, "basic"),
    ],
)
async def test_a_configured_secret_is_sent_as_the_authorization_server_supports(
    tmp_path: Path, supported: list[str] | None, way: str
) -> None:
    about = {"token_endpoint_auth_methods_supported": supported} if supported else {}
    authority = Authority(about=about)
    async with logged_in(tmp_path, authority, clientId="cl i", clientSecret="s3cr:t") as entries:
        age(tmp_path)
        async with connected(entries, tokens=tmp_path):
            pass
    basic = "Basic " + base64.b64encode(b"cl%20i:s3cr%3At").decode()
    for form, header in zip(authority.forms, authority.headers, strict=True):
        assert header == (basic if way == "basic" else "")
        assert form.get("client_secret") == ("s3cr:t" if way == "post" else None)
        assert form["client_id"] == "cl i"
    assert "s3cr:t" not in kept_in(tmp_path).read_text()


async def test_a_secret_that_the_authorization_server_has_no_use_for_is_not_sent() -> None:
    authority = Authority(about={"token_endpoint_auth_methods_supported": ["tls_client_auth"]})
    async with web_server(go, first=authority) as web:
        authority.web = web
        origin = web.url.removesuffix("/mcp")
        auth = ROBOT | {"clientSecret": "s3cret-of-robot", "issuer": origin}
        async with connected({"web": {"url": web.url, "auth": auth}}) as servers:
            assert "supports tls_client_auth" in (view_of(servers, "web").problem or "")
    assert authority.forms == []


ROBOT = {"type": "oauth", "grant": "client_credentials", "clientId": "robot"}


@pytest.mark.covers("M-10")
@pytest.mark.parametrize("algorithm", ["ES256", "RS256"])
async def test_a_client_with_a_key_signs_who_it_is(algorithm: str) -> None:
    key: Any = ec.generate_private_key(ec.SECP256R1())
    if algorithm == "RS256":
        key = rsa.generate_private_key(65537, 2048)
    formats = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    authority = Authority(about={"token_endpoint_auth_methods_supported": ["private_key_jwt"]})
    async with web_server(go, first=authority) as web:
        authority.web = web
        origin = web.url.removesuffix("/mcp")
        auth = ROBOT | {"privateKey": key.private_bytes(*formats).decode(), "issuer": origin}
        async with connected({"web": {"url": web.url, "auth": auth}}) as servers:
            await call(servers, "web:go")
    (form,) = authority.forms
    claims = jwt.decode(
        form["client_assertion"], key.public_key(), algorithms=[algorithm], audience=origin
    )
    assert (claims["iss"], claims["sub"]) == ("robot", "robot")
    assert form["client_assertion_type"].endswith(":jwt-bearer")
    assert (authority.headers, form.get("client_secret")) == ([""], None)


async def test_a_key_that_is_none_is_a_clear_problem() -> None:
    authority = Authority(about={"token_endpoint_auth_methods_supported": ["private_key_jwt"]})
    async with web_server(go, first=authority) as web:
        authority.web = web
        origin = web.url.removesuffix("/mcp")
        auth = ROBOT | {"privateKey": "n0t-a-k3y", "issuer": origin}
        async with connected({"web": {"url": web.url, "auth": auth}}) as servers:
            problem = view_of(servers, "web").problem or ""
    assert "`privateKey` is not a PEM key" in problem
    assert "n0t-a-k3y" not in problem
    assert authority.forms == []


@pytest.mark.covers("M-10")
@pytest.mark.parametrize("supported", [True, False])
async def test_a_metadata_document_replaces_the_registration_where_supported(
    tmp_path: Path, supported: bool
) -> None:
    about = {"client_id_metadata_document_supported": supported}
    authority = Authority(about=about)
    document = "https://app.example.com/clawmode.json"
    async with logged_in(tmp_path, authority, clientMetadataUrl=document) as entries:
        age(tmp_path)
        async with connected(entries, tokens=tmp_path) as servers:
            await call(servers, "web:go")
    used = document if supported else "registered"
    assert [form["client_id"] for form in authority.forms] == [used, used]
    assert authority.asked.count("/register") == (not supported)


async def test_configured_scopes_are_the_ones_that_are_asked_for(tmp_path: Path) -> None:
    authority = Authority(about={"scopes_supported": ["read", "write", "admin"]})
    seen: list[str] = []
    person = Person()

    async def log_in(server: str, address: str) -> bool:
        seen.append(parse_qs(urlsplit(address).query)["scope"][0])
        return await person(server, address)

    async with web_server(go, first=authority) as web:
        authority.web = web
        auth = {"type": "oauth", "scopes": ["read", "write"]}
        async with connected({"web": {"url": web.url, "auth": auth}}, on_login=log_in) as servers:
            await call(servers, "web:go")
    for _, writer in person.windows:
        writer.close()
    assert seen == ["read write"]


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
