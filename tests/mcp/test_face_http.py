"""Several people on one HTTP face: their tokens, programs and questions; floods; names; the end."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from tests.support.face_driver import (
    MODES,
    TOKEN,
    TOOLS,
    command,
    connected,
    environment,
    new_token,
    open_face,
    read,
    served,
    stdio,
)
from tests.support.forking import interpreter
from tests.support.waiting import until

from clawmode.addresses import Attempts, Site
from clawmode.mcp import http_face
from clawmode.mcp.http_face import Gatekeeper, SessionLimit
from clawmode.mcp.identity import NotAdmitted, Principal
from clawmode.rpc.tokens import MCP_FILE, Tokens

pytestmark = pytest.mark.anyio

PARK = {"code": "await yield_control(); return 'the value of A'"}
WRITE = {"code": 'return tools.write({ text: "x" })'}
HELLO: dict[str, Any] = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "x", "version": "1"},
}
ALWAYS = types.ElicitResult(action="accept", content={"decision": "allow-always"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(TOOLS)
    return tmp_path


async def unasked(context: Any, params: Any) -> types.ElicitResult:
    raise AssertionError(f"nobody is asked here: {params}")


async def code_of(client: Client, run_id: str) -> str:
    return read(await client.call_tool("wait", {"runId": run_id}))["code"]


class Raw:
    """A client that speaks HTTP by hand, with one token."""

    def __init__(self, url: str, token: str, client: httpx2.AsyncClient) -> None:
        self.url, self.client = url, client
        self.headers = {
            "authorization": f"Bearer {token}",
            "accept": "application/json, text/event-stream",
        }

    async def post(self, method: str, params: Any, **headers: str) -> httpx2.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return await self.client.post(
            self.url, headers=self.headers | headers, json=body, timeout=20
        )

    async def hello(self) -> dict[str, str]:
        """Opens a session, and returns the header that names it."""
        answer = await self.post("initialize", HELLO)
        assert answer.status_code == 200, answer.text
        return {"mcp-session-id": answer.headers["mcp-session-id"]}

    async def call(self, name: str, arguments: Any, **headers: str) -> Any:
        answer = await self.post("tools/call", {"name": name, "arguments": arguments}, **headers)
        assert answer.status_code == 200, answer.text
        data = [line[5:] for line in answer.text.splitlines() if line.startswith("data:")]
        result = json.loads(data[-1] if data else answer.text)["result"]
        return json.loads(result["content"][0]["text"].split("\n")[0])


# ---- Clients that open a session for each call ----


@pytest.mark.covers("MF-5")
@pytest.mark.parametrize("mode", MODES)
async def test_a_program_is_found_by_another_session_and_by_another_process(
    folder: Path, mode: str
) -> None:
    async with served(folder) as url:
        async with connected(url, mode=mode) as first:
            one = read(await first.call_tool("exec", PARK))["runId"]
            two = read(await first.call_tool("exec", PARK))["runId"]
        async with connected(url, mode=mode) as second:
            assert read(await second.call_tool("wait", {"runId": one}))["value"]
    async with served(folder) as url, connected(url, mode=mode) as third:
        assert read(await third.call_tool("wait", {"runId": two}))["value"] == "the value of A"


@pytest.mark.covers("MF-5")
async def test_over_stdio_programs_belong_to_the_configuration(folder: Path) -> None:
    async with stdio(folder, mode="legacy") as first:
        run_id = read(await first.call_tool("exec", PARK))["runId"]
    async with stdio(folder, "--approve", "always", mode="legacy") as other:
        assert await code_of(other, run_id) == "invalid_input"
    async with stdio(folder, mode="legacy") as second:
        assert read(await second.call_tool("wait", {"runId": run_id}))["value"]


@pytest.mark.covers("MF-5")
async def test_a_question_is_answered_in_another_process(folder: Path) -> None:
    async with stdio(folder, elicitation_callback=unasked) as first:
        asked = await first.session.call_tool("exec", WRITE, allow_input_required=True)
    assert isinstance(asked, types.InputRequiredResult)
    async with stdio(folder, elicitation_callback=unasked) as second:
        answers: Any = dict.fromkeys(asked.input_requests or {}, ALWAYS)
        with anyio.fail_after(8):  # it is answered when it is asked here, not at the deadline
            result = await second.session.call_tool(
                "exec", WRITE, request_state=asked.request_state, input_responses=answers
            )
    assert read(result)["value"] == "wrote x"


# ---- Several people ----


@asynccontextmanager
async def two_people(folder: Path) -> AsyncIterator[tuple[str, str, str]]:
    """The URL of a server, and the tokens of A and B."""
    a, b = new_token(folder, "a"), new_token(folder, "b")
    async with served(folder) as url:
        yield url, a, b


@pytest.mark.hostile
@pytest.mark.covers("MF-6")
async def test_no_run_question_value_or_permission_of_one_client_reaches_another(
    folder: Path,
) -> None:
    asked: list[str] = []

    async def always(context: Any, params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return ALWAYS

    async def deny(context: Any, params: Any) -> types.ElicitResult:
        asked.append("b was asked")
        return types.ElicitResult(action="decline")

    async with two_people(folder) as (url, a, b):
        async with (
            connected(url, a, mode="legacy", elicitation_callback=always) as a_legacy,
            connected(url, a, elicitation_callback=unasked) as a_modern,
            connected(url, b, mode="legacy", elicitation_callback=deny) as b_legacy,
            connected(url, b, elicitation_callback=unasked) as b_modern,
        ):
            run_id = read(await a_legacy.call_tool("exec", PARK))["runId"]
            question = await a_modern.session.call_tool("exec", WRITE, allow_input_required=True)
            assert isinstance(question, types.InputRequiredResult)
            state = question.request_state or ""
            answers: Any = dict.fromkeys(question.input_requests or {}, ALWAYS)
            # B knows the ids of A, and tries them.
            for client in (b_legacy, b_modern):
                assert await code_of(client, run_id) == "invalid_input"
                assert await code_of(client, state) == "invalid_input"
            with pytest.raises(MCPError):
                await b_modern.session.call_tool(
                    "exec", WRITE, request_state=state, input_responses=answers
                )
            # What the person of A allows for ever is not allowed to B.
            assert read(await a_legacy.call_tool("exec", WRITE))["value"] == "wrote x"
            assert read(await a_legacy.call_tool("exec", WRITE))["value"] == "wrote x"
            assert len(asked) == 1
            assert read(await b_legacy.call_tool("exec", WRITE))["code"] == "nested_tool_failed"
            assert asked[-1] == "b was asked"
            # A still has everything.
            assert read(await a_modern.call_tool("wait", {"runId": run_id}))["value"]


@pytest.mark.hostile
@pytest.mark.covers("MF-6")
async def test_a_session_id_opens_nothing_without_its_token(folder: Path) -> None:
    async with two_people(folder) as (url, a, b), httpx2.AsyncClient() as client:
        one, two = Raw(url, a, client), Raw(url, b, client)
        session = await one.hello()
        parked = await one.call("exec", PARK, **session)
        wait = {"name": "wait", "arguments": {"runId": parked["runId"]}}
        stolen = await two.post("tools/call", wait, **session)
        assert stolen.status_code == 404
        deleted = await client.delete(url, headers=two.headers | session)
        assert deleted.status_code == 404
        # In a protocol without sessions the header means nothing: B is still B.
        version = types.PROTOCOL_VERSION_META_KEY
        meta: dict[str, Any] = {
            version: "2026-07-28",
            types.CLIENT_CAPABILITIES_META_KEY: {},
            types.CLIENT_INFO_META_KEY: {"name": "x", "version": "1"},
        }
        modern = {
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "wait",
        }
        tried = await two.post("tools/call", wait | {"_meta": meta}, **modern, **session)
        assert "There is no program" in tried.text, tried.text
        mine = await one.post("tools/call", wait | {"_meta": meta}, **modern)
        assert "the value of A" in mine.text


@pytest.mark.covers("MF-6")
async def test_a_revoked_token_and_its_successor_reach_nothing(folder: Path) -> None:
    async with two_people(folder) as (url, a, _):
        async with connected(url, a, mode="legacy") as first:
            run_id = read(await first.call_tool("exec", PARK))["runId"]
            Tokens(folder / "state", file=MCP_FILE).revoke("a")
            with pytest.raises((MCPError, httpx2.HTTPError, BaseExceptionGroup)):
                await first.call_tool("wait", {"runId": run_id})
        async with connected(url, new_token(folder, "a"), mode="legacy") as again:
            assert await code_of(again, run_id) == "invalid_input"
        async with connected(url, TOKEN, mode="legacy") as configured:
            assert await code_of(configured, run_id) == "invalid_input"


# ---- Floods ----


@pytest.mark.hostile
@pytest.mark.covers("MF-10")
async def test_a_flood_of_sessions_evicts_neither_programs_nor_the_sessions_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_face, "MAX_SESSIONS", 4)

    async def authenticate(token: str) -> Principal:
        return Principal(token)

    async with open_face() as face:
        inner = face.server.streamable_http_app()
        app = Gatekeeper(
            SessionLimit(inner),
            site=Site("127.0.0.1"),
            authenticate=authenticate,
            attempts=Attempts(),
        )
        async with face.server.session_manager.run():
            transport = httpx2.ASGITransport(app)
            async with httpx2.AsyncClient(transport=transport) as client:
                url = "http://127.0.0.1:1/mcp"
                a, b = Raw(url, "a", client), Raw(url, "b", client)
                of_a, first = await a.hello(), await b.hello()
                mine = await b.call("exec", PARK, **first)
                parked = await a.call("exec", PARK, **of_a)
                sessions = [await b.hello() for _ in range(6)]
                made_up = await b.post("tools/list", {}, **{"mcp-session-id": "0" * 32})
                assert made_up.status_code == 404
                assert (await b.post("ping", {}, **first)).status_code == 404
                last = sessions[-1]
                assert (await b.call("wait", wait_of(mine), **last))["value"]
                assert (await a.call("wait", wait_of(parked), **of_a))["value"]


def wait_of(parked: Any) -> Any:
    return {"runId": parked["runId"]}


@pytest.mark.hostile
@pytest.mark.covers("MF-10")
async def test_half_requests_lock_nobody_out(folder: Path) -> None:
    async with served(folder, limit=256) as url:
        host, port = url.split("/")[2].split(":")
        half: list[socket.socket] = []
        try:
            for number in range(300):
                each = socket.create_connection((host, int(port)), timeout=5)
                half.append(each)
                each.sendall(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Number: %d" % number)
            async with connected(url, mode="legacy") as client:
                with anyio.fail_after(10):
                    assert read(await client.call_tool("exec", {"code": "return 1"}))["value"] == 1
        finally:
            for each in half:
                each.close()


@pytest.mark.covers("MF-10")
async def test_one_client_cannot_take_all_requests() -> None:
    started, go_on = anyio.Event(), anyio.Event()

    async def authenticate(token: str) -> Principal:
        return Principal(token)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        started.set()
        await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guard = Gatekeeper(
        app, site=Site("127.0.0.1"), authenticate=authenticate, attempts=Attempts(), most=2
    )
    codes: list[tuple[str, int]] = []
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(guard)) as client:

        async def get(token: str) -> None:
            headers = {"authorization": f"Bearer {token}"}
            answer = await client.get("http://127.0.0.1/mcp", headers=headers)
            codes.append((token, answer.status_code))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(get, "a")
            await started.wait()
            await get("a")
            tasks.start_soon(get, "b")
            go_on.set()
        await get("a")
    assert codes[0] == ("a", 503)
    assert sorted(codes[1:]) == [("a", 200), ("a", 200), ("b", 200)]


# ---- Names ----


@pytest.mark.hostile
@pytest.mark.covers("MF-10")
@pytest.mark.parametrize(
    ("bound", "url", "host", "origin", "code"),
    [
        ("127.0.0.1", "", "127.0.0.1:1", "", 200),
        ("127.0.0.1", "", "localhost", "http://localhost:6274", 200),
        ("127.0.0.1", "", "[::1]:1", "", 200),
        ("127.0.0.1", "", "evil.com", "", 421),
        ("127.0.0.1", "", "127.0.0.1.evil.com", "", 421),
        ("127.0.0.1", "", "localhost:1@evil.com", "", 421),
        ("127.0.0.1", "", "192.0.2.1:1", "", 421),
        ("127.0.0.1", "", "127.0.0.1:1", "http://evil.com", 403),
        ("127.0.0.1", "", "127.0.0.1:1", "null", 403),
        ("127.0.0.1", "", "127.0.0.1:1", "http://localhost.evil.com", 403),
        ("127.0.0.1", "", "127.0.0.1:1", "file://localhost", 403),
        ("0.0.0.0", "", "192.0.2.1:1", "", 200),
        ("0.0.0.0", "", "192.0.2.1:1", "http://192.0.2.1:1", 200),
        ("0.0.0.0", "", "192.0.2.1:1", "http://192.0.2.1:2", 403),
        ("0.0.0.0", "", "192.0.2.1:1", "http://evil.com", 403),
        ("0.0.0.0", "", "evil.com", "http://evil.com", 421),
        ("0.0.0.0", "", "", "", 421),
        ("0.0.0.0", "https://mcp.example.com/mcp", "mcp.example.com", "", 200),
        (
            *("127.0.0.1", "https://mcp.example.com/mcp", "mcp.example.com"),
            *("https://mcp.example.com", 200),
        ),
        ("0.0.0.0", "https://mcp.example.com/mcp", "mcp.example.com.evil.com", "", 421),
        ("::", "", "[2001:db8::1]:1", "http://[2001:db8::1]:1", 200),
    ],
)
async def test_hosts_and_origins_are_checked_on_every_address(
    bound: str, url: str, host: str, origin: str, code: int
) -> None:
    async def authenticate(token: str) -> Principal:
        return Principal(token)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guard = Gatekeeper(app, site=Site(bound, url), authenticate=authenticate, attempts=Attempts())
    headers = {"authorization": "Bearer a", "host": host} | ({"origin": origin} if origin else {})
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(guard)) as client:
        answer = await client.get("http://x/mcp", headers=headers)
    assert answer.status_code == code


@pytest.mark.hostile
@pytest.mark.covers("MF-10")
async def test_two_headers_of_one_kind_are_not_chosen_from() -> None:
    async def authenticate(token: str) -> Principal:
        if token != "right":
            raise NotAdmitted("no")
        return Principal(token)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nobody comes in")

    guard = Gatekeeper(app, site=Site("127.0.0.1"), authenticate=authenticate, attempts=Attempts())
    pairs = [
        [("authorization", "Bearer right"), ("authorization", "Bearer wrong")],
        [("authorization", "Bearer wrong"), ("authorization", "Bearer right")],
        [("host", "evil.com"), ("host", "127.0.0.1"), ("authorization", "Bearer right")],
    ]
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(guard)) as client:
        codes = [
            (await client.get("http://127.0.0.1/mcp", headers=each)).status_code for each in pairs
        ]
    assert codes == [401, 401, 421]


# ---- The address, and the end ----


@pytest.mark.covers("MF-9")
@pytest.mark.parametrize("what", ["in use", "unknown host", "bad url"])
def test_an_address_that_cannot_be_used_is_one_line_and_status_2(folder: Path, what: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        if what == "unknown host":
            at = "no-such-host.invalid:1"
        more = ["--public-url", "mcp.example.com"] if what == "bad url" else []
        done = subprocess.run(
            [*interpreter(), *command("--http", at, *more)],
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=25,
            check=False,
        )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("clawmode: --")


@pytest.mark.covers("MF-9")
async def test_the_address_of_ipv6_has_brackets(folder: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("there is no IPv6 here")
    async with served(folder, at="[::1]:0") as url:
        assert url.startswith("http://[::1]:")
        async with connected(url, mode="legacy") as client:
            assert read(await client.call_tool("exec", {"code": "return 1"}))["value"] == 1


@pytest.mark.covers("MF-9")
@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT"])
async def test_a_signal_ends_the_server_with_its_streams_and_children(
    folder: Path, how: str
) -> None:
    (folder / "child.py").write_text(
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open('pid.new', 'w').write(str(os.getpid()))\n"
        "os.rename('pid.new', 'pid')\n"
        "while True: signal.pause()\n"
    )
    entry = {"command": sys.executable, "args": ["child.py"]}
    (folder / "servers.json").write_text(json.dumps({"mcpServers": {"child": entry}}))
    argv = [*interpreter(), *command("--http", "127.0.0.1:0", "--mcp-config", "servers.json")]
    process = await anyio.open_process(
        argv, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    async with process:
        assert process.stderr is not None
        told = ""
        with anyio.fail_after(25):
            while "/mcp" not in told:
                told += (await process.stderr.receive()).decode()
            url = next(word for word in told.replace(",", " ").split() if word.startswith("http"))
            await until((folder / "pid").exists)
            async with httpx2.AsyncClient() as client:
                raw = Raw(url, TOKEN, client)
                session = await raw.hello()
                headers = raw.headers | session | {"accept": "text/event-stream"}
                async with client.stream("GET", url, headers=headers, timeout=20) as stream:
                    assert stream.status_code == 200
                    process.send_signal(getattr(signal, how))
                    await process.wait()
            async for more in process.stderr:
                told += more.decode()
    assert process.returncode == (130 if how == "SIGINT" else 0)
    assert "Traceback" not in told
    assert "Error" not in told
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)
