"""Attacks on the gateway by clients and local users, and crashes at the worst moment."""

import base64
import json
import logging
import socket as sockets
import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint
from tests.support.cli_driver import command_line
from tests.support.gateway_driver import TOKEN, Wired, wired
from tests.support.gateway_inside import Inside, echo, events, inside
from tests.support.waiting import Gate, idle, undisturbed_time, until, within
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from clawmode.agent.run import AgentRun
from clawmode.gateway import gateway as service
from clawmode.gateway import logs
from clawmode.gateway.ledger import Ledger, LedgerUnavailable
from clawmode.redaction import Redactor
from clawmode.rpc import admission, presence, protocol
from clawmode.rpc.tokens import TokenError, Tokens
from clawmode.testing import Turn, call, scripted, think
from clawmode.text import KnownSecrets
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject

pytestmark = [pytest.mark.anyio, pytest.mark.hostile]


# ---- Once, and only once ----


async def fail_to_note(it: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next answer is not noted: as if the process died right before that."""

    async def finish(*_: Any) -> None:
        monkeypatch.undo()
        raise LedgerUnavailable("it died here")

    monkeypatch.setattr(it.gateway.ledger, "finish", finish)


async def test_a_message_that_a_dead_process_took_is_not_said_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`chat.send` is repeated under its key after a crash; the message was kept before it."""
    given = {"message": "Pay the bill", "sessionKey": "s", "idempotencyKey": "k"}
    async with inside(tmp_path, ["one", "two", "three"]) as it:
        await fail_to_note(it, monkeypatch)
        assert await it.code("chat.send", **given) == "UNAVAILABLE"
        await until(lambda: it.model.requests)
    async with inside(tmp_path, ["one", "two", "three"]) as it:
        await it.call("chat.send", **given)
        await until(lambda: not it.gateway.host.runtime.under_way("agent:main:s"))
        await idle()
        told = await it.call("chat.history", sessionKey="s")
    said = [each for each in told["messages"] if each["role"] == "user"]
    assert len(said) == 1


async def test_a_repeated_message_is_answered_with_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"message": "Hi", "sessionKey": "s", "idempotencyKey": "k"}
    async with inside(tmp_path, ["one", "two"]) as it:
        await fail_to_note(it, monkeypatch)
        assert await it.code("chat.send", **given) == "UNAVAILABLE"
        again = await it.call("chat.send", **given)
        assert (await it.call("agent.wait", runId=again["runId"] or "none"))["status"] == "ok"


@pytest.mark.covers("S-12")
@pytest.mark.parametrize(
    ("first", "second"),
    [(("a", "b:x"), ("a:b", "x")), (("a", ":x"), ("a:", "x")), (("a", "\0x"), ("a:", "\0x"))],
)
async def test_messages_of_two_tokens_are_never_one(
    tmp_path: Path, first: tuple[str, str], second: tuple[str, str]
) -> None:
    """Whatever their names and keys are put together to."""
    async with inside(tmp_path, ["one", "two"], messages={"queue": {"mode": "collect"}}) as it:
        told = []
        for name, key in (first, second):
            client = it.client("operator.write", name=name)
            given = {"message": f"by {name}", "sessionKey": "s", "idempotencyKey": key}
            told.append(await it.call("chat.send", client, **given))
        assert [each["status"] == "repeated" for each in told] == [False, False]
        await until(lambda: len(it.model.requests) == 2)


@pytest.mark.covers("S-12")
def test_a_token_whose_name_cannot_be_printed_is_refused(tmp_path: Path) -> None:
    """So no name has the NUL that stands between a name and a key."""
    Tokens(tmp_path).add("a\0b")
    with pytest.raises(TokenError):
        Tokens(tmp_path).find("anything")


@pytest.mark.covers("P-6")
async def test_the_ledger_learns_of_the_end_of_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many notes wait for it, and though it cannot be written for a while."""
    monkeypatch.setattr(service, "NOTE_SECONDS", 0.01)
    monkeypatch.setattr(logging.getLogger("clawmode"), "disabled", True)
    async with inside(tmp_path, ["one"]) as it:
        ledger, troubles = it.gateway.ledger, iter(range(3))
        end, start, opened = ledger.end, ledger.start, anyio.Event()

        async def hold(*given: Any) -> None:
            await opened.wait()
            await start(*given)

        async def fail(*given: Any) -> None:
            if next(troubles, None) is not None:
                raise LedgerUnavailable("the disk is full")
            await end(*given)

        monkeypatch.setattr(ledger, "start", hold)
        monkeypatch.setattr(ledger, "end", fail)
        run_id = (await it.call("agent", message="go"))["runId"]
        run = it.gateway.host.runtime.find(run_id)
        assert run is not None
        for _ in range(10_001):
            assert it.gateway._notes is not None
            it.gateway._notes.send_nowait(AgentRun("other", run.request, run.session, run.shared))
        await run.ended.wait()
        monkeypatch.setattr(ledger, "start", start_nothing)
        opened.set()
        await until(lambda: has_ended(ledger, run_id))
        row = await ledger.run(run_id)
    assert row is not None
    assert row.status == "ok"


async def start_nothing(*given: Any) -> None:
    """Of a run that is not there."""


async def test_a_session_without_a_name_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with inside(tmp_path) as it:
        await fail_to_note(it, monkeypatch)
        assert await it.code("sessions.create", idempotencyKey="k") == "UNAVAILABLE"
        await it.call("sessions.create", idempotencyKey="k")
        assert len((await it.call("sessions.list"))["sessions"]) == 1


async def test_the_same_request_twice_at_once_is_carried_out_once(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        answers: list[dict[str, Any]] = []

        async def create() -> None:
            given = {"title": "x", "idempotencyKey": "k"}
            answers.append(await it.answer(it.admin, "sessions.create", given))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(create)
            tasks.start_soon(create)
        assert answers[0] == answers[1]
        assert len((await it.call("sessions.list"))["sessions"]) == 1


async def test_the_same_call_twice_at_once_waits_for_the_first(tmp_path: Path) -> None:
    async with inside(tmp_path, tools=[echo()]) as it:
        answers: list[dict[str, Any]] = []

        async def invoke() -> None:
            given: dict[str, Any] = {"name": "echo", "args": {}, "idempotencyKey": "k"}
            answers.append(await it.answer(it.admin, "tools.invoke", given))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(invoke)
            tasks.start_soon(invoke)
        assert answers[0] == answers[1]


# ---- Who sees what ----


async def test_a_command_does_not_subscribe_to_everything(tmp_path: Path) -> None:
    """Commands have no run; events of no run are not theirs."""
    async with inside(tmp_path, ["a secret reply"]) as it:
        writer = it.client("operator.write")
        await it.call("chat.send", writer, message="/help", sessionKey="mine")
        made = await it.call("agent", message="x", sessionKey="other")
        await it.call("agent.wait", runId=made["runId"])
        await until(lambda: events(writer, "sessions.changed"))
        assert events(writer, "session.message") == []


@pytest.mark.parametrize("method", ["sessions.subscribe", "sessions.unsubscribe"])
async def test_whoever_only_reads_makes_no_sessions(tmp_path: Path, method: str) -> None:
    async with inside(tmp_path) as it:
        reader = it.client("operator.read")
        keys = [f"made-up-{number}" for number in range(50)]
        await it.code(method, reader, sessionKeys=keys)
        assert (await it.call("sessions.list"))["sessions"] == []


# ---- The wire ----

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
PINGS = (b"\x89\xfd\0\0\0\0" + b"x" * 125) * 500


def hello(token: str = TOKEN, **more: Any) -> str:
    params = {"minProtocol": 1, "maxProtocol": 9, "client": {"id": "raw"}, **more}
    return request("connect", {**params, "auth": {"token": token}}, "0")


def request(method: str, params: dict[str, Any] | None = None, frame_id: str = "1") -> str:
    return json.dumps({"type": "req", "id": frame_id, "method": method, "params": params or {}})


async def heard(socket: ClientConnection) -> dict[str, Any]:
    with anyio.fail_after(10):
        return json.loads(await socket.recv())


async def joined(it: Wired, **more: Any) -> ClientConnection:
    socket = await connect(it.url, **more)
    await heard(socket)
    await socket.send(hello())
    assert (await heard(socket))["payload"]["type"] == "hello-ok"
    return socket


async def test_who_has_tried_too_often_cannot_claim_another_address(tmp_path: Path) -> None:
    codes: list[str] = []
    async with wired(tmp_path) as it:
        for number in range(12):
            header = {"X-Forwarded-For": f"203.0.113.{number}"}
            async with connect(it.url, additional_headers=header) as socket:
                await heard(socket)
                await socket.send(hello("wrong"))
                codes.append((await heard(socket))["error"]["code"])
    assert codes[-1] == "RATE_LIMITED"


async def test_a_page_with_a_strange_origin_is_refused_without_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with wired(tmp_path) as it:
        raw = await anyio.connect_tcp("127.0.0.1", it.port)
        async with raw:
            await raw.send(
                b"GET / HTTP/1.1\r\nHost: [::1]\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
                b"Origin: http://[\r\n\r\n"
            )
            with anyio.fail_after(5):
                answer = await raw.receive()
    assert answer.startswith(b"HTTP/1.1 403")
    assert "Traceback" not in caplog.text


async def test_a_text_that_is_no_utf8_makes_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Strangers write what they like into the log, in lines that are no JSON."""
    async with wired(tmp_path) as it:
        with sockets.create_connection(("127.0.0.1", it.port), timeout=5) as raw:
            raw.sendall(UPGRADE)
            await anyio.to_thread.run_sync(raw.recv, 65_536)
            raw.sendall(b"\x81\x82\0\0\0\0\xff\xfe")
            await until(lambda: not it.strangers)
    assert "Traceback" not in caplog.text


async def test_connections_that_say_nothing_at_all_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else everybody on the machine can use up the descriptors of the process."""
    monkeypatch.setattr(admission, "CONNECT_SECONDS", 0.2)
    async with wired(tmp_path) as it, await anyio.connect_tcp("127.0.0.1", it.port) as raw:
        with within(3), pytest.raises(anyio.EndOfStream):
            await raw.receive()


async def test_no_frame_holds_up_the_others(tmp_path: Path) -> None:
    """One client sends what is refused anyway; how long does `health` of another take?"""
    worst = 0.0
    head = '{"type":"req","id":"1","method":"health","params":{"x":['
    frame = head + "[]," * 4_000_000 + "1]}}"  # half of what a frame may have
    async with wired(tmp_path) as it, it.connect(client_id="good") as good, await joined(it) as bad:
        answered = anyio.Event()

        async def flood() -> None:
            await bad.send(frame)
            with suppress(ConnectionClosed):
                await bad.recv()
            answered.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flood)
            while not answered.is_set():
                before = undisturbed_time()
                await checkpoint()
                await good.call("health")
                worst = max(worst, undisturbed_time() - before)
    assert worst < 0.5  # it is 50 ms that are promised


async def test_pongs_do_not_pile_up(tmp_path: Path) -> None:
    """A stranger sends pings and reads nothing: what it is owed must not grow in our memory."""

    def flood(raw: sockets.socket) -> int:
        """How much is taken of somebody who reads nothing."""
        sent = 0
        with suppress(OSError):  # not taken for a while, or the connection was ended
            while sent < 24 << 20:
                raw.sendall(PINGS)
                sent += len(PINGS)
        return sent

    async with wired(tmp_path) as it:
        with sockets.create_connection(("127.0.0.1", it.port), timeout=2) as raw:
            raw.sendall(UPGRADE)
            assert (await anyio.to_thread.run_sync(raw.recv, 65_536)).startswith(b"HTTP/1.1 101")
            sent = await anyio.to_thread.run_sync(flood, raw)
    assert sent < 24 << 20


async def test_answers_are_json(tmp_path: Path) -> None:
    """A number that is too large is none: other languages cannot read what would be sent."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    given = '{"file":{"version":1,"x":1e999},"idempotencyKey":"k"}'
    frame = f'{{"type":"req","id":"1","method":"exec.approvals.set","params":{given}}}'
    async with inside(tmp_path) as it:
        try:
            asked = protocol.parse(frame, connected=True)
        except protocol.BadFrame:
            return
        json.loads(await it.dispatcher.answer(it.admin, asked), parse_constant=refuse)


# ---- The operator ----


def test_a_gateway_that_was_killed_is_not_found_while_another_starts(tmp_path: Path) -> None:
    """Its token and port are nobody's, or somebody else's: as its process id."""
    here = presence.RunningGateway(
        pid=1, url="ws://127.0.0.1:1", version="", started_at=0, token="old"
    )
    with presence.hold(tmp_path):
        killed = presence.announced(tmp_path, here)
        killed.__enter__()
    with presence.hold(tmp_path):
        assert presence.find(tmp_path) is None


def test_log_lines_at_a_terminal_are_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logs._LineHandler(Redactor(()))
    handler._json = False
    text = "client 1: \x1b]0;owned\x07\ninfo: all is well of laptop"
    handler.emit(logging.LogRecord("clawmode", logging.INFO, "", 0, text, (), None))
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert shown.count("\n") == 1


def test_log_lines_that_are_cut_show_no_piece_of_a_secret() -> None:
    secret = "hunter2-correct-horse-battery"
    handler = logs._LineHandler(Redactor((secret,)))
    text = "x" * (logs.MAX_CHARS - 20) + secret
    logs.RECENT.clear()
    handler.emit(logging.LogRecord("clawmode", logging.INFO, "", 0, text, (), None))
    assert "hunter2" not in str(logs.RECENT.pop()["message"])


# ---- Who does not read ----


def masked(text: str) -> bytes:
    """A text message, as a client sends it."""
    data = text.encode()
    return b"\x81\xfe" + len(data).to_bytes(2, "big") + b"\0\0\0\0" + data


async def has_ended(ledger: Ledger, run_id: str) -> bool:
    row = await ledger.run(run_id)
    return row is not None and bool(row.ended_at)


async def patiently(check: Callable[[], bool]) -> None:
    """Waits until something is so, but not for long."""
    with anyio.move_on_after(5):
        await until(check)


async def test_a_stranger_who_does_not_read_is_ended_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 of them would keep everybody out for as long as they like."""
    monkeypatch.setattr(admission, "CONNECT_SECONDS", 1.0)

    def fill(raw: sockets.socket) -> None:
        with suppress(OSError):
            for _ in range(150):
                raw.sendall(PINGS)

    async with wired(tmp_path) as it:
        strangers = it.strangers
        with sockets.create_connection(("127.0.0.1", it.port), timeout=1) as raw:
            raw.sendall(UPGRADE)
            await anyio.to_thread.run_sync(raw.recv, 65_536)
            assert len(strangers) == 1
            await anyio.to_thread.run_sync(fill, raw)
            await patiently(lambda: not strangers)
            left = len(strangers)
    assert left == 0


async def test_a_client_who_does_not_read_is_forgotten(tmp_path: Path) -> None:
    async with wired(tmp_path) as it:
        with sockets.create_connection(("127.0.0.1", it.port), timeout=5) as raw:
            raw.sendall(UPGRADE)
            await anyio.to_thread.run_sync(raw.recv, 65_536)
            raw.sendall(masked(hello()))
            await until(lambda: len(it.gateway.clients) == 2)
            for _ in range(70):
                it.gateway.broadcast("health", {"text": "x" * (1 << 20)})
                await checkpoint()
            await patiently(lambda: len(it.gateway.clients) == 1)
            left = [each.hello.client.id for each in it.gateway.clients.values()]
    assert left == ["admin"]


# ---- What is under way ----


async def test_a_call_survives_the_loss_of_its_connection(tmp_path: Path) -> None:
    """The client comes back, and asks again under the same key."""
    gate = Gate()
    async with wired(tmp_path, tools=[gate.tool]) as it, it.connect() as client:

        async def lose() -> None:
            await gate.entered.wait()
            lost = set(it.gateway.clients)
            it.hang_up()
            await until(lambda: set(it.gateway.clients) - lost)
            gate.open.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lose)
            answer = await client.call("tools.invoke", {"name": "slow"}, timeout=12)
    assert (answer["ok"], gate.calls) == (True, 1)


async def test_a_stop_waits_for_calls_that_are_under_way(tmp_path: Path) -> None:
    gate, ended = Gate(), list[str]()
    async with inside(tmp_path, tools=[gate.tool]) as it:
        async with anyio.create_task_group() as tasks, anyio.create_task_group() as own:

            async def invoke() -> None:
                await it.call("tools.invoke", name="slow")
                ended.append("call")

            async def stop() -> None:
                await it.gateway._stop(own, "")
                ended.append("gateway")

            tasks.start_soon(invoke)
            await gate.entered.wait()
            tasks.start_soon(stop)
            await idle()
            assert ended == []
            gate.open.set()
    assert ended == ["call", "gateway"]


# ---- The next start ----


@pytest.mark.parametrize("damage", ["folder", "deep", "binary"])
async def test_one_damaged_conversation_does_not_keep_the_gateway_down(
    tmp_path: Path, damage: str
) -> None:
    async with inside(tmp_path, ["one"]) as it:
        made = await it.call("agent", message="x", sessionKey="s")
        await it.call("agent.wait", runId=made["runId"])
        session = await it.gateway.host.runtime.sessions.get("agent:main:s")
        await until(lambda: not it.gateway.host.runtime.under_way("agent:main:s"))
        await until(lambda: has_ended(it.gateway.ledger, made["runId"]))
        statement = "update runs set ended = 0, result = null"
        await it.gateway.ledger._run(it.gateway.ledger._change, statement, ())
    path = session.transcript
    if damage == "folder":
        path.unlink()
        path.mkdir()
    elif damage == "deep":
        path.write_text("[" * 100_000)
    else:
        path.write_bytes(b"\xff\x00\xfe" * 100)
    async with inside(tmp_path, ["one"]) as it:
        assert (await it.call("health"))["ready"]


async def test_one_damaged_note_does_not_keep_the_gateway_down(tmp_path: Path) -> None:
    async with inside(tmp_path, ["one"]) as it:
        made = await it.call("agent", message="x", sessionKey="s")
        statement = "update runs set ended = 0, request = '{'"
        await until(lambda: has_ended(it.gateway.ledger, made["runId"]))
        await it.gateway.ledger._run(it.gateway.ledger._change, statement, ())
    async with inside(tmp_path, ["one"]) as it:
        assert (await it.call("health"))["ready"]


# ---- Small things ----


async def test_a_call_is_told_to_the_connection_that_is_left(tmp_path: Path) -> None:
    """Two connections of one client: the newer one is asked, and goes without an answer."""
    async with inside(tmp_path, [Turn(call("t")), "done"], rules={"codeMode": False}) as it:
        older = it.client("operator.write", name="same")
        newer = it.client("operator.write", name="same")
        tools = [{"name": "t"}]
        await it.call("agent", older, message="x", sessionKey="s", clientTools=tools)
        await until(lambda: events(newer, "tool.call"))
        it.gateway.leave(newer)
        await until(lambda: events(older, "tool.call"))
        (asked,), (again,) = events(newer, "tool.call"), events(older, "tool.call")
        assert asked["callId"] == again["callId"]


async def test_status_shows_no_questions_to_who_may_not_see_them(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        writer = it.client("operator.write", name="writer")
        given = {"command": "curl https://internal/?key=1", "sessionKey": "s"}
        await it.call("exec.approval.request", it.admin, **given)
        told = await it.call("chat.send", writer, message="/status", sessionKey="s")
        assert "curl" not in told["text"]


async def test_a_token_is_not_named_like_those_of_the_gateway_itself(tmp_path: Path) -> None:
    """The name is who somebody is: for keys, runs, and the tools of clients."""
    for name in ("local", "configured"):
        with pytest.raises(TokenError):
            Tokens(tmp_path).add(name, ("operator.write",))


async def test_nobody_chooses_the_rights_of_a_channel(tmp_path: Path) -> None:
    """`channel` of `agent` says where the reply goes, not where the request comes from."""
    senders: dict[str, Any] = {"*": {"deny": ["echo"]}, "channel:ops": {}}
    rules = {"codeMode": False, "toolsBySender": senders}
    async with inside(tmp_path, ["one", "two"], tools=[echo()], rules=rules) as it:
        writer = it.client("operator.write", name="writer")
        for more in (dict[str, Any](), {"channel": "ops"}):
            made = await it.call("agent", writer, message="x", sessionKey="s", **more)
            assert (await it.call("agent.wait", runId=made["runId"]))["status"] == "ok"
        seen = [[tool.name for tool in asked.tools] for asked in it.model.requests]
    assert ["echo" in names for names in seen] == [False, False]


async def test_what_is_old_is_forgotten_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of up to 4 MiB, and the pictures of runs: for seven days, and not for years."""
    monkeypatch.setattr(protocol, "TICK_MS", 20)
    async with inside(tmp_path) as it:
        ledger = it.gateway.ledger
        await it.call("sessions.create", idempotencyKey="k")
        monkeypatch.setattr(ledger, "_clock", lambda: time.time() + 30 * 86_400)
        await until(lambda: ledger._run(_is_empty, ledger))
        assert await ledger._run(_is_empty, ledger)


def _is_empty(ledger: Ledger) -> bool:
    with ledger._transaction("deferred") as database:
        return database.execute("select count(*) from requests").fetchone()[0] == 0


@pytest.mark.parametrize("trouble", ["state", "ledger", "tls"])
def test_what_an_operator_can_mend_is_told_in_words(tmp_path: Path, trouble: str) -> None:
    state, config = tmp_path / "state", tmp_path / "clawmode.json5"
    sections: dict[str, Any] = {"plugins": {"enabled": False}}
    if trouble == "state":
        state.write_text("")
    else:
        state.mkdir()
    if trouble == "ledger":
        (state / "gateway.sqlite3").write_bytes(b"no database" * 1000)
    if trouble == "tls":
        sections["gateway"] = {"tls": {"cert": "/nowhere.pem", "key": "/nowhere.key"}}
    config.write_text(json.dumps(sections))
    command = command_line("gateway", "--port", "0")
    command += ["--state", str(state), "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr


def test_tokens_that_are_made_at_once_are_all_kept(tmp_path: Path) -> None:
    """And one that is revoked meanwhile does not come back."""
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: Tokens(tmp_path).add(f"t{number}"), range(8)))
    assert all(Tokens(tmp_path).find(token) for token in made)


async def test_a_message_without_words_is_refused(tmp_path: Path) -> None:
    """It can be no turn: it is not acknowledged, and given up in silence."""
    async with inside(tmp_path) as it:
        assert (await it.code("chat.send", message=" ")).startswith("INVALID_REQUEST")


async def test_tools_of_a_client_do_not_hold_up_the_others(tmp_path: Path) -> None:
    """256 tools of 10 KB, in a frame of a tenth of what is allowed: to note them took seconds."""
    fields = {f"q{number}": {"type": "string", "description": "d" * 50} for number in range(20)}
    inner = {"type": "object", "properties": fields}
    schema = {"type": "object", "properties": {f"p{number}": inner for number in range(5)}}
    tools = [{"name": f"t{number}", "parameters": schema} for number in range(256)]
    async with inside(tmp_path, ["one"]) as it:
        code = await it.code("agent", message="x", sessionKey="s", clientTools=tools)
    assert code == "INVALID_REQUEST clientTools"


def test_a_damaged_digest_is_reported_as_a_damaged_file(tmp_path: Path) -> None:
    kept = {"name": "a", "sha256": "\u00e9" * 64, "scopes": ["operator.read"]}
    (tmp_path / "gateway-tokens.json").write_text(json.dumps({"tokens": [kept]}))
    with pytest.raises(TokenError):
        Tokens(tmp_path).find("cm_x")


@pytest.mark.parametrize("message", ["do it", "/new do it"])
async def test_what_is_acknowledged_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    """The process may die before a run has it."""
    async with inside(tmp_path) as it:
        monkeypatch.setattr(it.gateway.host.runtime, "start", lambda _: anyio.sleep_forever())
        told = await it.call("chat.send", message=message, sessionKey="s")
        kept = await it.gateway.ledger.messages()
    assert told["status"] == "started"
    assert [row[0] for row in kept] == [told["runId"]]


# ---- Secrets that the setup knows ----

SPECIAL = 'correct "horse"\\battery\tstäple'


@pytest.mark.covers("S-8")
@pytest.mark.parametrize("piece", [1, 7, 11, 400])
@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        ("hunter2-hunter2", "hunter2-hunter2"),
        (SPECIAL, SPECIAL),
        (SPECIAL, json.dumps({"said": json.dumps(SPECIAL)})),
        (SPECIAL, base64.b64encode(SPECIAL.encode()).decode()),
    ],
)
async def test_no_event_and_no_answer_shows_a_secret_that_the_setup_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, secret: str, shown: str
) -> None:
    """Whether a tool prints it or the model says it, in pieces of any size."""
    monkeypatch.setattr(scripted, "PIECE", piece)
    monkeypatch.setenv("LLM_AUTH", secret)

    async def leak(given: JsonObject, context: ToolContext) -> str:
        context.update(shown)
        return f"It is {shown}, hunter2."

    provider = {"baseUrl": "http://127.0.0.1:1", "api": "openai-completions"}
    models = {"providers": {"p": {**provider, "auth": {"env": "LLM_AUTH"}}}}
    said = f"The key is {shown}, not hunter2-hunter."
    script = [Turn(think(said), call("leak")), Turn(said)]
    leaky = Tool("leak", "Leaks.", {"type": "object"}, leak, effect="read")
    options: dict[str, Any] = {"models": models, "rules": {"codeMode": False}}
    async with inside(tmp_path, script, tools=[leaky], **options) as it:
        reader = it.client("operator.read")
        reader.following.add("*")
        run = await it.call("agent", message=f"Say {shown}", sessionKey="s")
        waited = await it.answer(reader, "agent.wait", {"runId": run["runId"]})
        history = await it.answer(reader, "chat.history", {"sessionKey": "s"})
        frames = [json.loads(frame) for frame in reader._frames]
    seen = texts([frames, waited, history])
    assert {frame["event"] for frame in frames} >= {"agent", "session.tool", "session.message"}
    assert not [text for text in seen if secret in text or shown in text]
    deltas = [
        frame["payload"]["data"].get("delta", "")
        for frame in frames
        if frame["event"] == "agent" and frame["payload"]["stream"] == "assistant"
    ]
    hidden = KnownSecrets([secret]).text(said)
    assert "***" in hidden
    assert "".join(deltas) == hidden
    numbers = [it["payload"]["seq"] for it in frames if it["event"] == "agent"]
    assert numbers == list(range(1, len(numbers) + 1))


def texts(value: Any) -> list[str]:
    """All texts in a value, and in the JSON that they are."""
    if isinstance(value, str):
        with suppress(ValueError):
            return [value, *texts(json.loads(value))]
        return [value]
    inside = value.items() if isinstance(value, dict) else value
    return [t for each in inside for t in texts(each)] if isinstance(inside, Iterable) else []


@pytest.mark.covers("S-8")
async def test_a_secret_that_is_a_number_breaks_no_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in a time or a count by chance: frames stay JSON."""
    monkeypatch.setenv("LLM_AUTH", "123456")
    providers = {"p": {"baseUrl": "http://127.0.0.1:1", "auth": {"env": "LLM_AUTH"}}}
    async with inside(tmp_path, models={"providers": providers}) as it:
        it.gateway.broadcast("health", {"ts": 1234567, "text": "1234567"})
        assert events(it.admin, "health") == [{"ts": 1234567, "text": "***7"}]
