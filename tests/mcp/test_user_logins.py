"""Servers with `credentials: "user"`: each client of the HTTP face has its own login to them."""

import asyncio
import json
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from mcp import Client
from tests.support.authority import Authority, Person
from tests.support.face_driver import (
    TOKEN,
    TOOLS,
    connected,
    new_token,
    read,
    served,
    stdio,
)
from tests.support.mcp_driver import call, raw
from tests.support.waiting import until
from tests.support.web_server import Request, WebServer, web_server

from clawmode.app.loading import set_up
from clawmode.app.setup import Options, Setup
from clawmode.config.mcp import read_servers
from clawmode.exceptions import ConfigurationError
from clawmode.mcp.connection import Connection
from clawmode.mcp.servers import McpServers
from clawmode.rpc.tokens import MCP_FILE, Tokens, digest
from clawmode.terminal.mcp_face import log_in

pytestmark = pytest.mark.anyio

CALL = {"code": "return (await MCP.web.go()).content[0].text"}
PARKED = {"code": f"await yield_control(); {CALL['code']}"}


class Accounts(Authority):
    """Gives each account a token of its own, which only the account's login returns."""

    def issue(self, form: dict[str, str]) -> tuple[str, dict[str, Any]]:
        account = form.get("code") or form["refresh_token"]
        tokens = {"access_token": f"secret-of-{account}", "token_type": "Bearer"}
        return "200 OK", tokens | {"refresh_token": account, "expires_in": 3600}

    async def __call__(self, request: Request) -> bool:
        shown = request.headers.get("authorization", "")
        is_known = shown.startswith("Bearer secret-of-")
        if urlsplit(request.path).path == "/mcp" and is_known:
            return False
        return await super().__call__(request)


async def account(request: Request) -> None:
    who = request.headers["authorization"].removeprefix("Bearer secret-of-")
    await request.answer({"content": [{"type": "text", "text": who}]})


class Place:
    """A folder with a configuration of one server, and people who log in to it."""

    def __init__(self, folder: Path, web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.web, self._monkeypatch = folder, web, monkeypatch
        (folder / "mine.py").write_text(TOOLS)
        entry = {"url": web.url, "auth": "oauth", "credentials": "user", "trustAnnotations": True}
        entries = {"web": entry, "all": {"url": web.url, "auth": "oauth"}}
        (folder / "servers.json").write_text(json.dumps({"mcpServers": entries}))
        self.options = ("--mcp-config", "servers.json", "--approve", "always")

    @property
    def setup(self) -> Setup:
        file = str(self.folder / "servers.json")
        return set_up(Options(mcp_config=file, state=str(self.folder / "state")))

    async def log_in(self, account: str, user: str, server: str = "web") -> None:
        person, loop = Person(code=account), asyncio.get_running_loop()

        def open_browser(address: str) -> bool:
            asyncio.run_coroutine_threadsafe(person(server, address), loop)
            return True

        self._monkeypatch.setattr(webbrowser, "open", open_browser)
        await anyio.to_thread.run_sync(log_in, self.setup, server, user)
        for _, writer in person.windows:
            writer.close()

    def sessions(self) -> list[str]:
        """The accounts that have connected, once for each connection."""
        seen = [each for each in self.web.seen if each.message and each.method == "POST"]
        started = [each for each in seen if each.message.get("method") == "initialize"]
        return [each.headers.get("authorization", "").rpartition("-")[2] for each in started]


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    async with web_server(account, first=(authority := Accounts())) as web:
        authority.web = web
        yield Place(tmp_path, web, monkeypatch)


async def value(client: Client, program: dict[str, str] = CALL) -> Any:
    found = read(await client.call_tool("exec", program))
    return found.get("value") or found["error"]


@pytest.mark.hostile
@pytest.mark.covers("MF-11")
async def test_no_call_of_one_client_uses_the_login_or_the_connection_of_another(
    place: Place,
) -> None:
    tokens = {name: new_token(place.folder, name) for name in ("ann", "bob", "eve")}
    await place.log_in("everybody", "")
    await place.log_in("anns-account", "ann")
    await place.log_in("bobs-account", "bob")
    place.web.seen.clear()
    async with (
        served(place.folder, *place.options) as url,
        connected(url, tokens["ann"]) as ann,
        connected(url, tokens["bob"]) as bob,
        connected(url, tokens["eve"]) as eve,
        connected(url, TOKEN) as configured,
    ):
        assert "account" not in place.sessions()  # nothing is connected before the first use
        found: dict[str, list[Any]] = {"ann": [], "bob": []}

        async def ask(name: str, client: Client) -> None:
            found[name].append(await value(client))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(ask, "ann", ann)
                tasks.start_soon(ask, "bob", bob)
        assert found == {"ann": ["anns-account"] * 5, "bob": ["bobs-account"] * 5}
        # Neither a program of another nor the login that all share is of use to others.
        parked = read(await ann.call_tool("exec", PARKED))["runId"]
        assert read(await eve.call_tool("wait", {"runId": parked}))["code"] == "invalid_input"
        command = "`clawmode login web --as eve`"
        assert command in await value(eve)
        assert command in await value(eve, {"code": "return MCP.web.$api()"})
        given = f"`clawmode login web --as token-{digest(TOKEN)[:32]}`"
        assert given in await value(configured)
        assert read(await ann.call_tool("wait", {"runId": parked}))["value"] == "anns-account"
        # A login helps at once, without a restart, and only the client that it is for.
        await place.log_in("eves-account", "eve")
        place.web.seen.clear()
        with anyio.fail_after(20):
            while (answer := await value(eve)) != "eves-account":
                assert command in answer
        assert given in await value(configured)
        assert place.sessions() == ["account"]  # of eve; the others are still connected


@pytest.mark.hostile
@pytest.mark.covers("MF-11")
async def test_a_new_token_does_not_inherit_the_login_of_a_revoked_one(place: Place) -> None:
    new_token(place.folder, "ann")
    await place.log_in("anns-account", "ann")
    Tokens(place.folder / "state", file=MCP_FILE).revoke("ann")
    other = new_token(place.folder, "ann")
    async with served(place.folder, *place.options) as url, connected(url, other) as client:
        assert "`clawmode login web --as ann`" in await value(client)


@pytest.mark.covers("MF-11")
async def test_over_stdio_there_is_one_user(place: Place) -> None:
    await place.log_in("my-account", "")
    async with stdio(place.folder, *place.options) as client:
        assert await value(client) == "my-account"


async def test_a_login_for_nobody_is_rejected(place: Place) -> None:
    for server, user, problem in (
        ("web", "nobody", "no token named 'nobody'; `clawmode mcp token list`"),
        ("web", "../ann", "no token named"),
        ("web", "token-123", "no token named"),
        ("all", "nobody", "all users share the login to MCP server 'all'"),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            log_in(place.setup, server, user)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"auth": {"type": "bearer", "token": "t0ken"}},
        {
            "auth": {
                "type": "oauth",
                "grant": "client_credentials",
                "clientId": "r",
                "clientSecret": "s",
                "issuer": "https://x.example",
            }
        },
        raw(),
    ],
)
async def test_a_server_without_a_login_of_users_cannot_have_one_per_user(
    more: dict[str, Any],
) -> None:
    entry = {"credentials": "user", **more}
    if "command" not in more:
        entry["url"] = "https://x.example/mcp"
    with pytest.raises(ConfigurationError, match=r'credentials: "user" needs a login that users'):
        read_servers({"web": entry}).unwrap()
    with pytest.raises(ConfigurationError, match='expected "shared" or "user"'):
        read_servers({"web": {**entry, "credentials": "mine"}}).unwrap()


@asynccontextmanager
async def servers_of(*users: str, **more: Any) -> AsyncIterator[list[McpServers]]:
    """The servers of some users: one process each, and a shared one."""
    (own, shared) = read_servers({"own": raw(), "shared": raw()}).unwrap()
    settings = [replace(own, credentials="user", **more), shared]
    async with McpServers(settings, principal=None) as servers, _all_of(servers, users) as found:
        yield [servers, *found]


@asynccontextmanager
async def _all_of(servers: McpServers, users: tuple[str, ...]) -> AsyncIterator[list[McpServers]]:
    if not users:
        yield []
        return
    async with servers.for_user(users[0], users[0]) as first:
        async with _all_of(servers, users[1:]) as others:
            yield [first, *others]


def states(servers: McpServers) -> dict[str, str]:
    return {view.name: view.state for view in servers.views}


async def test_a_connection_is_made_at_the_first_use_and_closed_without_calls() -> None:
    async with servers_of("ann", "bob", idle_timeout=0.3) as (parent, ann, bob):
        with anyio.fail_after(20):
            await parent.connect()
            assert states(parent) == states(bob) == {"shared": "ready", "own": "idle"}
            await parent.ready("own")  # the servers of nobody are not connected
            with pytest.raises(ConfigurationError, match="must not be empty"):
                async with parent.for_user("", "everybody"):
                    pass
            await ann.ready("own")
            assert states(ann) == {"shared": "ready", "own": "ready"}
            assert states(parent) == states(bob) == {"shared": "ready", "own": "idle"}
            await until(lambda: states(ann)["own"] == "idle")
            names = {tool.id for tool in ann.tools()}
            assert any(name.startswith("mcp:own:") for name in names)  # still known
            for _ in range(2):
                assert await call(ann, "own:echo", {"text": "again"})
                await until(lambda: states(ann)["own"] == "idle")
    assert states(ann)["shared"] != "ready"


async def test_the_time_to_connect_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a connection that takes longer than that would be closed before its first use."""
    list_tools = Connection.list_tools

    async def list_slowly(connection: Connection) -> Any:
        await until(lambda: connection.idle_seconds > 0.3)
        return await list_tools(connection)

    monkeypatch.setattr(Connection, "list_tools", list_slowly)
    async with servers_of("ann", idle_timeout=0.3) as (_, ann):
        with anyio.fail_after(10):
            await ann.ready("own")
            assert states(ann)["own"] == "ready"
