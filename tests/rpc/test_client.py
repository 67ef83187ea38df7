"""The client of the gateway: over a real wire, and against gateways that behave badly."""

import datetime
import json
import logging
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.support.command_driver import serving
from tests.support.gateway_driver import TOKEN, Fake, Started, answer_all, faking, next_of, wired
from tests.support.waiting import until
from websockets.asyncio.server import ServerConnection

from clawmode.exceptions import ConfigurationError
from clawmode.gateway.method_table import METHODS
from clawmode.rpc import connection, link, presence, protocol
from clawmode.rpc.client import (
    GAP,
    EventsLost,
    GatewayClient,
    GatewayUnreachable,
    RpcError,
    TurnResult,
)
from clawmode.rpc.tokens import Tokens
from clawmode.testing import Turn, call, pause
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio

CODE_MODE: dict[str, Any] = {"codeMode": True}
CITY: JsonObject = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_DELAY", 0.02)
    monkeypatch.setattr(connection, "LAST_DELAY", 0.1)


class Thermometer:
    """A tool of a client."""

    def __init__(self) -> None:
        self.calls: list[JsonObject] = []
        self.entered = anyio.Event()
        self.open = anyio.Event()
        self.cancelled = False
        self.tool = Tool("temperature", "How warm it is in a city.", CITY, self._run)

    async def _run(self, given: JsonObject, context: ToolContext) -> JsonObject:
        self.calls.append(given)
        self.entered.set()
        try:
            await self.open.wait()
        except BaseException:
            self.cancelled = True
            raise
        return {"city": given["city"], "degrees": len(str(given["city"]))}


def opened() -> Thermometer:
    made = Thermometer()
    made.open.set()
    return made


def program(code: str) -> Turn:
    return Turn(call("exec", {"code": code}))


def says_value(request: Any) -> Turn:
    return Turn(f"It is {json.dumps(request.last_result())}")


# ---- Calls ----


@pytest.mark.covers("AL-1")
async def test_a_turn_is_accepted_awaited_and_reported_step_by_step(tmp_path: Path) -> None:
    async with wired(tmp_path, [Turn("Hello.")]) as it, it.connect() as client:
        with client.events() as events:
            given: JsonObject = {"message": "Hi", "idempotencyKey": "one"}
            accepted = await client.call("agent", given)
            answer = await client.call("agent.wait", {"runId": accepted["runId"]})
            streams = []
            while streams[-1:] != [("lifecycle", "end")]:
                event = await next_of(events, "agent")
                streams.append((event["stream"], event["data"].get("phase")))
    assert accepted["sessionKey"] == "agent:main:main"
    assert answer["status"] == "ok"
    assert isinstance(answer["startedAt"], int)
    result: Any = answer["result"]
    assert result["payloads"] == [{"text": "Hello."}]
    assert streams[0] == ("lifecycle", "start")
    assert ("assistant", None) in streams


async def test_a_turn_in_one_call_gives_its_result(tmp_path: Path) -> None:
    async with wired(tmp_path, [Turn("Hello.")]) as it, it.connect() as client:
        result = await client.agent("Hi", session_key="report")
    assert (result.status, result.text, result.error) == ("ok", "Hello.", "")
    assert result.session_key == "agent:main:report"
    assert result.data["runId"] == result.run_id


async def test_errors_have_a_code_and_the_field(tmp_path: Path) -> None:
    async with wired(tmp_path) as it, it.connect(scopes=["operator.read"]) as client:
        with pytest.raises(RpcError) as unknown:
            await client.call("no.such")
        with pytest.raises(RpcError) as wrong:
            await client.call("agent.wait", {"runId": 7})
        with pytest.raises(RpcError) as forbidden:
            await client.call("agent", {"message": "Hi"})
        with pytest.raises(RpcError) as no_json:
            await client.call("health", {"x": float("nan")})
        health = await client.call("health")
    assert unknown.value.code == "NOT_FOUND"
    assert (wrong.value.code, wrong.value.field) == ("INVALID_REQUEST", "runId")
    assert forbidden.value.code == "FORBIDDEN"
    assert no_json.value.code == "INVALID_REQUEST"
    assert health["ok"] is True


async def test_what_would_end_the_connection_is_not_sent(tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(protocol.MAX_DEPTH + 1):
        deep = [deep]
    async with wired(tmp_path) as it, it.connect() as client:
        with pytest.raises(RpcError) as nested:
            await client.call("health", {"x": deep})
        with pytest.raises(RpcError) as large:
            await client.call("health", {"x": "x" * protocol.MAX_PAYLOAD})
        assert (await client.call("health"))["ok"] is True
        assert len(it.gateway.clients) == 2  # with the admin of `inside`
    assert (nested.value.code, large.value.code) == ("INVALID_REQUEST", "TOO_LARGE")


async def test_an_answer_that_does_not_come_is_a_timeout() -> None:
    async def silent(fake: Fake, socket: ServerConnection, request: dict[str, Any]) -> None:
        pass

    async with faking(silent) as fake, GatewayClient(fake.url, "t", client_id="x") as client:
        with pytest.raises(RpcError) as error:
            await client.call("health", timeout=0.05)
    assert error.value.code == "TIMEOUT"


async def test_a_refusal_says_when_to_try_again() -> None:
    async def busy(fake: Fake, socket: ServerConnection, request: dict[str, Any]) -> None:
        error = RpcError("UNAVAILABLE", "busy", retry_after_ms=1500)
        await socket.send(protocol.failure(request["id"], error))

    async with faking(busy) as fake, GatewayClient(fake.url, "t", client_id="x") as client:
        with pytest.raises(RpcError) as error:
            await client.call("health")
    assert (error.value.code, error.value.retry_after_ms) == ("UNAVAILABLE", 1500)


def test_the_client_knows_which_methods_do_something() -> None:
    assert {name for name, method in METHODS.items() if method.effect} == connection.EFFECTS


# ---- Being let in ----


async def test_a_wrong_token_is_refused_and_shown_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "cm_wrong_and_secret_all_the_same"
    async with wired(tmp_path) as it:
        client = GatewayClient(it.url, secret, client_id="x")
        with pytest.raises(RpcError) as error:
            async with client:
                pass
        async with it.connect() as other:
            assert (await other.call("health"))["ok"] is True
    assert error.value.code == "UNAUTHORIZED"
    shown = f"{client!r} {error.value} {vars(error.value)} {client._where()!r} {caplog.text}"
    assert secret not in shown
    assert TOKEN not in f"{shown} {other!r}"


async def test_another_protocol_is_refused_by_either_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with faking() as fake:
        fake.hello = {"protocol": protocol.PROTOCOL + 1}
        with pytest.raises(RpcError) as ours:
            await enter(GatewayClient(fake.url, "t", client_id="x"))
    async with wired(tmp_path) as it:
        frame = protocol.request

        def newer(*given: Any) -> str:
            return frame(*given).replace('Protocol":4', 'Protocol":5')

        monkeypatch.setattr(protocol, "request", newer)
        with pytest.raises(RpcError) as theirs:
            await enter(it.connect())
    assert (ours.value.code, theirs.value.code) == ("INVALID_REQUEST", "INVALID_REQUEST")
    assert (ours.value.field, theirs.value.field) == ("minProtocol", "minProtocol")


async def enter(client: GatewayClient) -> None:
    async with client:
        pass


async def test_where_no_gateway_is_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wired(tmp_path) as it:
        url = it.url
        with pytest.raises(GatewayUnreachable):
            await enter(GatewayClient(f"{url}/elsewhere", "t", client_id="x"))
    with pytest.raises(GatewayUnreachable):
        await enter(GatewayClient(url, "t", client_id="x"))
    with pytest.raises(GatewayUnreachable):
        await enter(GatewayClient.local(tmp_path))
    with pytest.raises(ConfigurationError):
        await enter(GatewayClient("http://127.0.0.1", "t", client_id="x"))
    with pytest.raises(ConfigurationError):
        GatewayClient("ws://gateway.example.org", "t", client_id="x")


async def test_tls_is_checked_against_the_certificate_that_the_gateway_named(
    tmp_path: Path,
) -> None:
    cert, key = make_certificate(tmp_path / "one")
    other, _ = make_certificate(tmp_path / "two")
    async with wired(tmp_path, tls=(cert, key), announced=True) as it:
        assert it.url.startswith("wss://")
        state = it.gateway.host.setup.state
        async with GatewayClient.local(state) as client:
            assert (await client.call("health"))["ok"] is True
        here = state / presence.FILE
        here.write_text(here.read_text("utf-8").replace(cert, other), "utf-8")
        with pytest.raises(GatewayUnreachable):
            await enter(GatewayClient.local(state))
        with pytest.raises(GatewayUnreachable):
            await enter(it.connect())  # as the system does it: nobody signed it


def make_certificate(folder: Path) -> tuple[str, str]:
    """A certificate that nobody signed, and its key."""
    folder.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway.example.org")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    kind, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, kind, plain))
    return str(folder / "cert.pem"), str(folder / "key.pem")


async def test_who_sends_no_challenge_is_not_told_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "CHALLENGE_SECONDS", 0.1)
    heard: list[object] = []

    class Silent(Fake):
        async def serve(self, socket: ServerConnection) -> None:
            heard.extend([text async for text in socket])

    monkeypatch.setattr("tests.support.gateway_driver.Fake", Silent)
    async with faking() as fake:
        with pytest.raises(GatewayUnreachable):
            await enter(GatewayClient(fake.url, "t", client_id="x"))
    assert heard == []


async def test_what_is_no_frame_ends_the_connection_and_it_connects_again() -> None:
    async def babble(fake: Fake, socket: ServerConnection, request: dict[str, Any]) -> None:
        await (answer_all(fake, socket, request) if len(fake.connects) > 1 else socket.send("[1"))

    async with faking(babble) as fake, GatewayClient(fake.url, "t", client_id="x") as client:
        assert await client.call("health") == {}
    assert len(fake.connects) == 2


# ---- Connecting again ----


async def test_a_call_is_repeated_under_its_key_and_done_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wired(tmp_path, [Turn("Once."), Turn("Twice.")]) as it:
        carry_out, dropped = it.dispatcher.answer, 0

        async def drop_first(client: Any, request: Any) -> str:
            nonlocal dropped
            frame = await carry_out(client, request)
            if request.method == "agent" and not dropped:
                dropped += 1
                client.finish(1011, "lost")
            return frame

        monkeypatch.setattr(it.dispatcher, "answer", drop_first)
        async with it.connect() as client:
            result = await client.agent("Hi")
        assert (dropped, result.text) == (1, "Once.")
        assert len(it.gateway.host.runtime.runs()) == 1


async def test_a_call_waits_for_the_next_connection() -> None:
    async def drop(fake: Fake, socket: ServerConnection, request: dict[str, Any]) -> None:
        if len(fake.connects) < 3:
            await socket.close(1012)
        else:
            await answer_all(fake, socket, request)

    async with faking(drop) as fake, GatewayClient(fake.url, "t", client_id="x") as client:
        assert await client.call("sessions.reset", {"sessionKey": "main"}) == {}
    keys = {request["params"]["idempotencyKey"] for request in fake.requests}
    assert (len(fake.requests), len(keys)) == (3, 1)
    assert len({connect["params"]["client"]["id"] for connect in fake.connects}) == 1


async def test_it_follows_again_what_it_followed_and_tells_of_the_gap(tmp_path: Path) -> None:
    async with wired(tmp_path, [Turn("Hello.")]) as it, it.connect() as client:
        await client.follow("report")
        with client.events() as events:
            it.hang_up()
            assert await next_of(events, GAP) == {"reason": "reconnect"}
            async with it.connect() as other:
                await other.agent("Hi", session_key="report")
            assert (await next_of(events, "agent"))["sessionKey"] == "agent:main:report"


async def test_a_missing_number_is_reported() -> None:
    async def skip(fake: Fake, socket: ServerConnection, request: dict[str, Any]) -> None:
        await socket.send(protocol.event("health", {"n": 1}, 1))
        await socket.send(protocol.event("health", {"n": 4}, 4))
        await answer_all(fake, socket, request)

    async with faking(skip) as fake, GatewayClient(fake.url, "t", client_id="x") as client:
        with client.events() as events:
            await client.call("health")
            assert await next_of(events, "health", GAP) == {"n": 1}
            assert await next_of(events, "health", GAP) == {"reason": "seq", "missed": 2}
            assert await next_of(events, "health", GAP) == {"n": 4}


async def test_a_gateway_that_falls_silent_is_left_with_4000_and_tried_again() -> None:
    async with faking() as fake:
        fake.hello = {"policy": {"tickIntervalMs": 30}}
        async with GatewayClient(fake.url, "t", client_id="x"):
            await until(lambda: len(fake.connects) > 1 and fake.closed)
    assert fake.closed[0] == link.CLOSE_SILENT == 4000


async def test_ticks_keep_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(protocol, "TICK_MS", 60)
    async with wired(tmp_path) as it, it.connect() as client:
        with client.events() as events:
            for _ in range(5):
                await next_of(events, "tick")
        assert client._link is not None


async def test_who_is_not_let_in_again_is_told_in_every_call_and_event() -> None:
    async def drop(fake: Fake, socket: ServerConnection, request: dict[str, Any]) -> None:
        fake.hello = {"protocol": 1}
        await socket.close(1012)

    async with faking(drop) as fake, GatewayClient(fake.url, "t", client_id="x") as client:
        with client.events() as events:
            with pytest.raises(RpcError):
                await client.call("health")
            with pytest.raises(RpcError):
                await next_of(events, "health")
        with pytest.raises(RpcError):
            await client.call("health")


async def test_a_client_that_is_closed_says_so(tmp_path: Path) -> None:
    async with wired(tmp_path) as it, it.connect() as client:
        pass
    with pytest.raises(GatewayUnreachable):
        await client.call("health")


# ---- Events ----


async def test_a_reader_that_is_too_slow_gets_what_was_kept_and_an_error() -> None:
    async def flood(fake: Fake, socket: ServerConnection, request: dict[str, Any]) -> None:
        for number in range(1, 8):
            await socket.send(protocol.event("health", {"n": number}, number))
        await answer_all(fake, socket, request)

    async with faking(flood) as fake:
        async with GatewayClient(fake.url, "t", client_id="x", max_events=5) as client:
            slow = client.events()
            await client.call("health")
            read = [(await anext(slow)).payload["n"] for _ in range(5)]
            for _ in range(2):
                with pytest.raises(EventsLost):
                    await anext(slow)
            assert client._readers == []
    assert read == [1, 2, 3, 4, 5]


# ---- Tools of clients ----


async def test_a_program_calls_tools_of_the_client(tmp_path: Path) -> None:
    code = """
        const found = await tools.search("warm city temperature");
        const id = found.find((it) => it.id.startsWith("client:")).id;
        const [a, b] = await Promise.all(
            ["Rome", "Turin"].map((city) => tools.call(id, { city })));
        const c = await tools.temperature({ city: "Oslo" });
        return { id, degrees: [a.degrees, b.degrees, c.degrees] };
    """
    thermometer = opened()
    async with wired(tmp_path, [program(code), says_value], rules=CODE_MODE) as it:
        async with it.connect() as client:
            result = await client.agent("How warm?", tools=[thermometer.tool])
    assert '"id": "client:client:temperature"' in result.text
    assert '"degrees": [4, 5, 4]' in result.text
    assert [it["city"] for it in thermometer.calls] == ["Rome", "Turin", "Oslo"]


async def test_a_model_calls_a_tool_of_the_client_itself(tmp_path: Path) -> None:
    script = [Turn(call("temperature", {"city": "Rome"})), says_value]
    thermometer = opened()
    async with wired(tmp_path, script, rules={"codeMode": False}) as it, it.connect() as client:
        result = await client.agent("How warm?", tools=[thermometer.tool])
    assert '"degrees": 4' in result.text


async def test_a_tool_that_fails_says_so_and_bad_input_does_not_reach_it(tmp_path: Path) -> None:
    async def fail(given: JsonObject, context: ToolContext) -> None:
        raise RuntimeError("the wire is cut " + "x" * 10_000)

    code = """
        const told = [];
        for (const input of [{ city: "Rome" }, { city: 7 }]) {
            try { await tools.broken(input) } catch (error) { told.push(error.message) }
        }
        return told;
    """
    broken = Tool("broken", "Fails.", CITY, fail)
    async with wired(tmp_path, [program(code), says_value], rules=CODE_MODE) as it:
        async with it.connect() as client:
            result = await client.agent("Go", tools=[broken])
    assert "the wire is cut" in result.text
    assert "city" in result.text


async def test_a_call_survives_a_lost_connection_and_is_made_once(tmp_path: Path) -> None:
    thermometer = Thermometer()
    script = [program('return await tools.temperature({ city: "Rome" })'), says_value]
    results: list[TurnResult] = []
    async with wired(tmp_path, script, rules=CODE_MODE) as it, it.connect() as client:

        async def ask() -> None:
            results.append(await client.agent("How warm?", tools=[thermometer.tool]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await thermometer.entered.wait()
            with client.events() as events:
                it.hang_up()
                await next_of(events, GAP)
                await next_of(events, "tool.call")  # it is told again
            thermometer.open.set()
    assert '"degrees": 4' in results[0].text
    assert len(thermometer.calls) == 1


async def test_two_turns_with_tools_of_one_name_do_not_mix_them_up(tmp_path: Path) -> None:
    def tool(answer: str) -> Tool:
        async def run(given: JsonObject, context: ToolContext) -> str:
            return answer

        return Tool("which", "Says which.", {"type": "object"}, run)

    def which(request: Any) -> Turn:
        told = request.results
        return Turn(f"It is {next(iter(told.values()))}") if told else Turn(call("which", {}))

    said: dict[str, str] = {}
    async with wired(tmp_path, [which] * 4, rules={"codeMode": False}) as it:
        async with it.connect() as client, it.connect() as another:

            async def ask(asker: GatewayClient, name: str) -> None:
                made = await asker.agent("Go", tools=[tool(name)], session_key=name)
                said[name] = made.text

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, client, "one")
                tasks.start_soon(ask, another, "two")
    assert said == {"one": "It is one", "two": "It is two"}


async def test_what_a_run_left_running_here_is_cancelled_when_it_is_aborted(
    tmp_path: Path,
) -> None:
    thermometer = Thermometer()
    script = [program('return await tools.temperature({ city: "Rome" })')]
    results: list[TurnResult] = []
    async with wired(tmp_path, script, rules=CODE_MODE) as it, it.connect() as client:

        async def ask() -> None:
            results.append(await client.agent("How warm?", tools=[thermometer.tool]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await thermometer.entered.wait()
            await client.call("sessions.abort", {"sessionKey": "main"})
    assert thermometer.cancelled
    assert results[0].status == "aborted"


# ---- Losing one another ----


@pytest.mark.covers("AL-85")
async def test_a_run_continues_without_its_client_and_after_a_wait_that_timed_out(
    tmp_path: Path,
) -> None:
    left = anyio.Event()
    async with wired(tmp_path, [Turn(pause(left), "Done all the same.")]) as it:
        async with it.connect() as client:
            run_id = str((await client.call("agent", {"message": "Go"}))["runId"])
            with pytest.raises(RpcError) as error:
                await client.wait(run_id, 0.05)
            answer = await client.call("agent.wait", {"runId": run_id, "timeoutMs": 10})
        left.set()
        async with it.connect() as another:
            result = await another.wait(run_id, 10)
    assert (error.value.code, answer["status"]) == ("TIMEOUT", "timeout")
    assert (result.status, result.text) == ("ok", "Done all the same.")


@pytest.mark.covers("AL-85")
async def test_a_run_whose_client_left_with_its_tools_ends_cleanly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawmode.gateway.client_tools.GRACE_SECONDS", 0.1)
    code = """
        try { return await tools.temperature({ city: "Rome" }) }
        catch (error) { return error.message }
    """
    thermometer = Thermometer()
    async with wired(tmp_path, [program(code), says_value], rules=CODE_MODE) as it:
        async with it.connect() as client, anyio.create_task_group() as tasks:

            async def ask() -> None:
                await client.agent("How warm?", tools=[thermometer.tool])

            tasks.start_soon(ask)
            await thermometer.entered.wait()
            tasks.cancel_scope.cancel()
        run_id = it.gateway.host.runtime.runs()[-1].id
        async with it.connect() as another:
            result = await another.wait(run_id, 10)
    assert result.status == "ok"


# ---- As users run it ----


@pytest.mark.timeout(90)
@pytest.mark.covers("AL-85")
async def test_a_gateway_that_is_killed_and_restarted_resumes_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    state = tmp_path / "state"
    token = Tokens(state).add("me")
    with serving([Turn("Begun. ", pause(40), "Never."), Turn("Done after all.")]) as server:
        configure(tmp_path, server.url)
        with Started(tmp_path, state) as first:
            async with GatewayClient(first.url, token, client_id="x") as client:
                accepted = await client.call("agent", {"message": "Hi", "idempotencyKey": "k"})
                with anyio.fail_after(30):  # the model's library is imported first
                    await until(lambda: server.requests)
                first.kill()
                port = first.port
                with await anyio.to_thread.run_sync(lambda: Started(tmp_path, state, port=port)):
                    again = await client.call("agent", {"message": "Hi", "idempotencyKey": "k"})
                    result = await client.wait(str(accepted["runId"]), 40)
    assert again["runId"] == accepted["runId"]
    assert (result.status, result.text) == ("ok", "Done after all.")
    assert len(server.requests) == 2


JOURNAL = """
import json, os, sys
event = json.load(sys.stdin)
with open(os.environ["JOURNAL"], "a") as file:
    print("script", event["event"], event["address"], file=file)
"""
PLUGIN = """
def register(api):
    def note(name):
        def hook(event):
            with open(api.config["journal"], "a") as file:
                print("plugin", name, event.address, file=file)
        return hook

    for name in ("gateway_start", "gateway_stop"):
        api.hook(name, note(name))
"""


@pytest.mark.timeout(90)
@pytest.mark.covers("AL-45")
async def test_hooks_frame_the_life_of_a_gateway(tmp_path: Path) -> None:
    journal = tmp_path / "journal.txt"
    plugin = tmp_path / "plugins" / "keeper"
    plugin.mkdir(parents=True)
    manifest: dict[str, Any] = {"id": "keeper", "version": "1.0.0", "entry": "main:register"}
    manifest["configSchema"] = {"type": "object"}
    (plugin / "clawmode.plugin.json").write_text(json.dumps(manifest), "utf-8")
    (plugin / "main.py").write_text(PLUGIN, "utf-8")
    (tmp_path / "journal.py").write_text(JOURNAL, "utf-8")
    entry = {
        "events": ["gateway:startup", "gateway:shutdown"],
        "command": [sys.executable, "journal.py"],
        "env": {"JOURNAL": str(journal)},
    }
    configure(
        tmp_path,
        "http://127.0.0.1:1",
        hooks={"internal": {"entries": {"journal": entry}}},
        plugins={
            "load": {"paths": ["plugins"]},
            "entries": {"keeper": {"config": {"journal": str(journal)}}},
        },
    )
    with Started(tmp_path, tmp_path / "state") as gateway:
        begun = journal.read_text("utf-8").splitlines()
        async with GatewayClient.local(gateway.state) as client:
            assert (await client.call("health"))["ready"] is True
            with client.events() as events:
                gateway.process.terminate()
                assert (await next_of(events, "shutdown"))["reason"] == "stop"
        await anyio.to_thread.run_sync(lambda: gateway.process.wait(15))
    assert gateway.process.returncode == 0, gateway.log.read_text("utf-8")
    assert begun == [
        f"plugin gateway_start {gateway.url}",
        f"script gateway:startup {gateway.url}",
    ]
    assert journal.read_text("utf-8").splitlines()[2:] == [
        f"plugin gateway_stop {gateway.url}",
        f"script gateway:shutdown {gateway.url}",
    ]


def configure(folder: Path, url: str, **sections: Any) -> None:
    provider = {"baseUrl": url, "api": "anthropic-messages", "apiKey": "of no use"}
    whole: dict[str, Any] = {
        "agents": {"defaults": {"model": "mine/small"}},
        "models": {"providers": {"mine": provider}},
        "tools": {"codeMode": True, "approve": "always"},
        **sections,
    }
    (folder / "clawmode.json5").write_text(json.dumps(whole), "utf-8")
