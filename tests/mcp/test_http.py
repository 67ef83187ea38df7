"""Servers behind an address: streamable HTTP of today and of before, SSE, and bad ones."""

import asyncio
import gzip
import json
import logging
import math
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import httpx2
import pytest
from tests.support.mcp_driver import HERE, call, connected, find, free_port, view_of
from tests.support.waiting import idle, until
from tests.support.web_server import Request, no_body_left_open, web_server

from clawmode.mcp import http, requests, supervisor
from clawmode.mcp.requests import McpError
from clawmode.mcp.servers import McpServers
from clawmode.tools.tool import InputRequest
from clawmode.types import JsonObject, JsonValue

pytestmark = pytest.mark.anyio


def start_sdk_server(kind: str, port: int, *when: str) -> subprocess.Popen[bytes]:
    """With `later`, it listens when a line is written to it."""
    return subprocess.Popen(
        [sys.executable, str(HERE / "sdk_server.py"), kind, str(port), *when],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )


@contextmanager
def sdk_server(
    kind: str, port: int, spare: subprocess.Popen[bytes] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server that listens; `spare` was started with `later`."""
    process = spare or start_sdk_server(kind, port)
    assert process.stdin is not None
    try:
        process.stdin.write(b"\n")
        for _ in range(1_500):
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None
            try:
                process.wait(0.01)
            except subprocess.TimeoutExpired:
                continue
        yield process
    finally:
        process.kill()
        process.wait(10)
        process.stdin.close()


@pytest.fixture(scope="module", params=["http", "json", "sse"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    port = free_port()
    with sdk_server(request.param, port):
        path = "sse" if request.param == "sse" else "mcp"
        yield f"http://127.0.0.1:{port}/{path}?kind={request.param}"


async def failure(servers: McpServers, tool: str, given: dict[str, Any] | None = None) -> McpError:
    with pytest.raises(McpError) as caught:
        await call(servers, tool, given)
    return caught.value


# ---- Good ones ----


@pytest.mark.covers("MC-4", "MC-5")
async def test_tools_resources_and_prompts_work(address: str) -> None:
    async with connected({"sdk": {"url": address}}) as servers:
        view = view_of(servers, "sdk")
        assert view.instructions == "Add with care."
        added = await call(servers, "sdk:add", {"a": 40})
        assert added["structuredContent"] == {"result": 42}
        assert added["content"] == [{"type": "text", "text": "42"}]
        failed = await call(servers, "sdk:fail")
        assert failed["isError"] is True
        listed = await call(servers, "sdk:resources/list")
        assert [each["uri"] for each in listed["resources"]] == ["memo://one"]
        assert [each["uriTemplate"] for each in listed["resourceTemplates"]] == [
            "memo://{number}/of/{total}"
        ]
        read = await call(servers, "sdk:resources/read", {"uri": "memo://1/of/3"})
        assert read["contents"][0]["text"] == "1 of 3"
        assert set(read) == {"contents"}
        prompt = await call(
            servers, "sdk:prompts/get", {"name": "brief", "arguments": {"topic": "x"}}
        )
        assert prompt["messages"][0]["content"]["text"] == "Write about x."
        assert (
            await failure(servers, "sdk:resources/read", {"uri": "memo://none"})
        ).kind == "refused"


@pytest.mark.hostile
async def test_an_input_that_cannot_be_sent_is_rejected_and_the_connection_survives(
    address: str,
) -> None:
    deep: Any = []
    for _ in range(2_000):
        deep = [deep]
    async with connected({"sdk": {"url": address}}) as servers:
        for given in ("\ud800", "x" * (1 << 20), deep):
            error = await failure(servers, "sdk:add", {"a": given})
            assert error.kind == ("protocol" if given is deep else "invalid_input")
        added = await call(servers, "sdk:add", {"a": 40})
        assert added["structuredContent"] == {"result": 42}


async def test_calls_side_by_side_do_not_hold_each_other_up(address: str) -> None:
    sums: list[int] = []
    async with connected({"sdk": {"url": address}}) as servers:

        async def add(number: int) -> None:
            details = await call(servers, "sdk:add", {"a": number, "b": 0})
            sums.append(details["structuredContent"]["result"])

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(add, number)
    assert sorted(sums) == list(range(50))


async def test_progress_arrives(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "UPDATES_PER_SECOND", math.inf)  # two may be read at once
    updates: list[JsonValue] = []
    async with connected({"sdk": {"url": address}}) as servers:
        await call(servers, "sdk:count", update=updates.append)
    assert [each["message"] for each in updates if isinstance(each, dict)] in (
        ["step 1", "step 2", "step 3"],
        [],  # an answer that is one piece of JSON has no room for it
    )


async def test_a_call_that_is_cancelled_is_cancelled_there_too(address: str) -> None:
    if "json" in address:
        pytest.skip("the SDK's server does not notice, if it answers in one piece")
    async with connected({"sdk": {"url": address}}) as servers:
        before = (await call(servers, "sdk:what_was_cancelled"))["structuredContent"]["result"]
        begun = anyio.Event()

        async def make_call() -> None:
            await call(servers, "sdk:never", update=lambda update: begun.set())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(make_call)
            await begun.wait()
            tasks.cancel_scope.cancel()

        async def is_told() -> bool:
            after = await call(servers, "sdk:what_was_cancelled")
            return len(after["structuredContent"]["result"]) > len(before)

        await until(is_told)


async def test_a_question_is_asked_and_the_call_continues(address: str) -> None:
    async def ask(request: InputRequest) -> JsonObject:
        assert (request.message, request.url) == ("Your name?", None)
        return {"name": "Ann"}

    async with connected({"sdk": {"url": address}}, asks=True) as servers:
        details = await call(servers, "sdk:greet", ask=ask)
        assert details["content"][0]["text"] in ("hello Ann", "x")


async def test_without_anybody_to_ask_a_question_is_declined(address: str) -> None:
    async with connected({"sdk": {"url": address}}) as servers:
        assert (await failure(servers, "sdk:greet")).kind == "refused"


@pytest.mark.covers("MC-9")
async def test_a_list_that_changes_is_read_again(address: str) -> None:
    async with connected({"sdk": {"url": address}}) as servers:
        if "sse" in address:
            pytest.skip("the SDK's server tells only those who listen, which is newer than SSE")

        async def is_noticed() -> bool:
            # The notification of a change is lost while the client does not listen yet.
            await call(servers, "sdk:change", {"name": "fresh"})
            return "fresh" in [tool.name for tool in servers.tools()]

        await until(is_noticed)
        assert find(servers, "sdk:fresh").description == ""


async def test_an_answer_within_the_limit_is_read_and_a_larger_one_is_not(address: str) -> None:
    most = 900_000 if "sse" in address else 8_000_000  # the older transport has a limit of its own
    async with connected({"sdk": {"url": address}}) as servers:
        details = await call(servers, "sdk:big", {"size": most})
        assert len(details["content"][0]["text"]) == most
        error = await failure(servers, "sdk:big", {"size": 20_000_000})
        assert error.kind == ("lost" if "sse" in address else "too_large")
        assert (await call(servers, "sdk:add", {"a": 1}))["structuredContent"] == {"result": 3}


async def test_a_body_that_is_not_read_to_its_end_is_closed_with_its_response() -> None:
    async def first(request: Request) -> bool:
        await request.send(b"x" * 1_000_000)
        return True

    async with (
        web_server(_hang, first=first) as web,
        httpx2.AsyncClient(event_hooks={"response": [http._bound]}) as client,
    ):
        with no_body_left_open():
            async with client.stream("POST", web.url) as response:
                chunks = response.aiter_bytes()
                assert await anext(chunks)
        await chunks.aclose()


# ---- Death ----


@pytest.mark.covers("MC-9")
@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_a_server_that_dies_in_a_call_fails_it_and_is_used_again_when_it_is_back(
    kind: str,
) -> None:
    port = free_port()
    entries: dict[str, Any] = {
        "sdk": {
            "url": f"http://127.0.0.1:{port}/{'sse' if kind == 'sse' else 'mcp'}",
            "timeoutMs": 4_000,
        }
    }
    with sdk_server(kind, port) as process:
        async with connected(entries) as servers:
            begun, errors = list[JsonValue](), list[McpError]()

            async def hang() -> None:
                with pytest.raises(McpError) as caught:
                    await call(servers, "sdk:never", update=begun.append)
                errors.append(caught.value)

            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(hang)
                await until(lambda: len(begun) == 3)
                process.send_signal(signal.SIGKILL)
            assert {error.kind for error in errors} <= {"lost", "protocol"}
            process.wait(5)
            # The first may be on its way when that is noticed.
            kinds = [(await failure(servers, "sdk:add", {"a": 1})).kind for _ in range(2)]
            assert kinds in (["unavailable"] * 2, ["lost", "unavailable"])
            assert "cannot be reached at http://127.0.0.1:" in (
                view_of(servers, "sdk").problem or ""
            )
            with sdk_server(kind, port):
                await servers.connect()
                added = await call(servers, "sdk:add", {"a": 1})
                assert added["structuredContent"] == {"result": 3}


async def test_a_server_that_is_not_there_has_a_problem() -> None:
    entries = {
        "http": {"url": f"http://127.0.0.1:{free_port()}/mcp"},
        "sse": {"url": f"http://127.0.0.1:{free_port()}/sse"},
    }
    async with connected(entries) as servers:
        for view in servers.views:
            assert view.state == "down"
            assert view.problem


@pytest.mark.covers("MC-9")
async def test_a_session_that_the_server_has_forgotten_is_restarted() -> None:
    async def go(request: Request) -> None:
        await request.answer({"content": []})

    async with web_server(go, session="one") as web:
        async with connected({"web": {"url": web.url}}) as servers:
            await call(servers, "web:go")
            web.session = "two"  # as after a restart
            await call(servers, "web:go")
            assert view_of(servers, "web").state == "ready"


@pytest.mark.covers("MC-9")
async def test_a_server_that_was_restarted_while_nobody_called_is_just_called() -> None:
    async def go(request: Request) -> None:
        await request.answer({"content": []})

    async with web_server(go) as web:
        async with connected({"web": {"url": web.url}}) as servers:
            await web.stop()
            await web.start()
            await call(servers, "web:go")
            assert view_of(servers, "web").state == "ready"


# ---- Bad ones ----


async def _hang(request: Request) -> None:
    await anyio.sleep_forever()


async def _huge(request: Request) -> None:
    await request.send(b'{"x": "' + b"x" * 50_000_000 + b'"}')


async def _bomb(request: Request) -> None:
    bomb = gzip.compress(b" " * 10_000_000)
    await request.send(bomb, content_encoding="gzip")


async def _html(request: Request) -> None:
    await request.send(b"<html>hello</html>", kind="text/html")


async def _not_json(request: Request) -> None:
    await request.send(b"{]")


async def _broken(request: Request) -> None:
    await request.send(b"", status="500 Internal Server Error", kind="text/plain")


async def _half(request: Request) -> None:
    request.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
    request.writer.write(b"content-length: 100\r\n\r\n{")
    request.writer.transport.abort()


async def _no_http(request: Request) -> None:
    request.writer.write(b"what?\r\n\r\n")
    request.writer.close()


async def _empty_stream(request: Request) -> None:
    await request.send(b": nothing\n\n", kind="text/event-stream")


async def _huge_event(request: Request) -> None:
    event = b"data: " + b"x" * 20_000_000 + b"\n\n"
    await request.send(event, kind="text/event-stream")


async def _event_of_many_parts(request: Request) -> None:
    event = b"data: " + b"[]," * 2_000_000 + b"\n\n"
    await request.send(event, kind="text/event-stream")


async def _accepted(request: Request) -> None:
    await request.send(b"", status="202 Accepted")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (_hang, "timeout"),
        (_huge, "too_large"),
        (_bomb, "protocol"),
        (_html, "refused"),
        (_not_json, "protocol"),
        (_broken, "protocol"),
        (_half, "protocol"),
        (_no_http, "protocol"),
        (_empty_stream, "lost"),
        (_huge_event, "too_large"),
        (_event_of_many_parts, "too_large"),
        (_accepted, "refused"),
    ],
)
@pytest.mark.covers("MC-9")
async def test_an_invalid_answer_fails_that_call_and_no_other(answer: Any, kind: str) -> None:
    fine = asyncio.Event()

    async def go(request: Request) -> None:
        if request.message["params"]["arguments"].get("fine"):
            await fine.wait()
            await request.answer({"content": []})
        else:
            await answer(request)

    limit = 1_500 if answer is _hang else 9_000  # it takes as long as a call may
    async with web_server(go) as web:
        async with connected({"web": {"url": web.url, "timeoutMs": limit}}) as servers:
            async with anyio.create_task_group() as tasks:
                if answer is _hang:
                    fine.set()
                tasks.start_soon(call, servers, "web:go", {"fine": True})
                assert (await failure(servers, "web:go")).kind == kind
                fine.set()
            assert await call(servers, "web:go", {"fine": True}) == {"content": []}


@pytest.mark.parametrize(
    ("status", "problem"),
    [("401 Unauthorized", "answered HTTP 401 Unauthorized"), ("503 Busy", "answered HTTP 503")],
)
async def test_a_server_that_refuses_us_says_so(status: str, problem: str) -> None:
    async def first(request: Request) -> bool:
        await request.send(b"secret details", status=status, kind="text/plain")
        return True

    async with web_server(_hang, first=first) as web:
        async with connected({"web": {"url": web.url}}) as servers:
            assert problem in (view_of(servers, "web").problem or "")


@pytest.mark.parametrize("path", ["mcp", "sse"])
async def test_a_refused_login_is_reported_and_not_retried(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY", 0)  # another attempt would begin at once

    async def first(request: Request) -> bool:
        await request.send(b'{"error": "who?"}', status="401 Unauthorized")
        return True

    async with web_server(_hang, first=first) as web:
        url = web.url.replace("/mcp", f"/{path}")
        async with connected({"web": {"url": url}}) as servers:
            problem = view_of(servers, "web").problem or ""
            assert "answered HTTP 401 Unauthorized" in problem
            if path == "mcp":
                asked = len(web.seen)
                await idle()
                assert (view_of(servers, "web").state, len(web.seen)) == ("down", asked)


async def test_a_session_that_the_server_does_not_know_by_other_words_is_restarted() -> None:
    known = ["one"]

    async def go(request: Request) -> None:
        if request.headers["mcp-session-id"] == known[0]:
            await request.answer({"content": []})
        else:
            error = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
            body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
            await request.send(body.encode(), status="400 Bad Request")

    async with web_server(go, session="one") as web:
        async with connected({"web": {"url": web.url}}) as servers:
            await call(servers, "web:go")
            known[0] = web.session = "two"
            assert await call(servers, "web:go") == {"content": []}


async def test_credentials_go_with_every_request_and_nowhere_else() -> None:
    elsewhere: list[str] = []

    async def there(request: Request) -> bool:
        elsewhere.append(request.headers.get("authorization", ""))
        await request.send(b"")
        return True

    async with web_server(_hang, first=there) as other:

        async def go(request: Request) -> None:
            if request.message["params"]["arguments"].get("away"):
                await request.send(b"", status="307 Temporary Redirect", location=other.url)
            else:
                await request.answer({"content": []})

        async with web_server(go) as web:
            entry = {
                "url": web.url,
                "auth": {"type": "bearer", "token": "t0ken-value"},
                "headers": {"X-Team": "blue"},
            }
            async with connected({"web": entry}) as servers:
                await call(servers, "web:go")
                assert (await failure(servers, "web:go", {"away": True})).kind == "refused"
            posts = [request.headers for request in web.seen if request.method == "POST"]
            assert {each["authorization"] for each in posts} == {"Bearer t0ken-value"}
            assert {each["x-team"] for each in posts} == {"blue"}
    assert elsewhere == []


async def test_secrets_of_an_address_are_in_no_error_and_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)

    async def go(request: Request) -> None:
        await _broken(request)

    async with web_server(go) as web:
        entry = {"url": f"{web.url}?key=s3cr3t-key", "headers": {"Authorization": "Bearer t0ken-x"}}
        entries = {
            "web": entry,
            "gone": entry | {"url": "http://u:p4ssword@127.0.0.1:9/x?k=s3cr3t-key"},
        }
        async with connected(entries) as servers:
            said = str(await failure(servers, "web:go")) + repr(servers.views)
    ours = "\n".join(r.getMessage() for r in caplog.records if not r.name.startswith("httpcore2"))
    for secret in ("s3cr3t-key", "t0ken-x", "p4ssword"):
        assert secret not in said
        assert secret not in ours
    assert "Traceback" not in caplog.text


async def test_what_others_log_of_the_sdk_is_left_to_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logging.getLogger("mcp.client.streamable_http").warning("somebody else's")
    assert "somebody else's" in caplog.text
