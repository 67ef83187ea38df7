"""`clawmode mcp`, driven by the official client: stdio and HTTP, both eras of the protocol."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types as types
import pytest
from starlette.responses import PlainTextResponse
from tests.support.face_driver import (
    MODES,
    TOKEN,
    TOOLS,
    TRANSPORTS,
    command,
    environment,
    gated,
    inside,
    read,
    served,
    stdio,
)
from tests.support.forking import interpreter
from tests.support.mcp_driver import raw
from tests.support.plugin_material import documented_plugin
from tests.support.waiting import until

from clawmode.addresses import Attempts, Site
from clawmode.app.loading import set_up
from clawmode.app.setup import Options
from clawmode.exceptions import ConfigurationError
from clawmode.mcp.http_face import Gatekeeper
from clawmode.mcp.identity import NotAdmitted, Principal
from clawmode.terminal.mcp_face import serve
from clawmode.terminal.mcp_http import HttpOptions

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(TOOLS)
    return tmp_path


@pytest.mark.covers("S-4")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_raw_json_of_a_program_is_answered_and_the_server_goes_on(
    folder: Path, transport: Any
) -> None:
    async with transport(folder) as client:
        for raw in ("""'"\\\\uD800"'""", '"9".repeat(6000)', '"1e999"'):
            for code in (f"return JSON.rawJSON({raw})", f"json(JSON.rawJSON({raw}))"):
                told = read(await client.call_tool("exec", {"code": code}))
                assert (told["status"], told["code"]) == ("failed", "internal_error")
        told = read(await client.call_tool("exec", {"code": "return 1"}))
        assert (told["status"], told["value"]) == ("completed", 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_client_sees_two_tools_and_runs_a_fan_out(
    folder: Path, transport: Any, mode: str
) -> None:
    progress: list[str] = []

    async def report(done: float, total: float | None, message: str | None) -> None:
        progress.append(message or "")

    async with transport(folder, mode=mode) as client:
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == ["exec", "wait"]
        code = "return Promise.all([1, 2, 3].map((value) => tools.same({ value })))"
        result = await client.call_tool("exec", {"code": code}, progress_callback=report)
        assert read(result)["value"] == [1, 2, 3]
    assert sum(text.endswith("completed") for text in progress) == 3


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_program_that_waits_is_continued(folder: Path, transport: Any) -> None:
    async with transport(folder, "--timeout-ms", "3000") as client:
        code = 'text("a"); const late = await tools.gate(); return late'
        first = read(await client.call_tool("exec", {"code": code}))
        assert first["status"] == "waiting"
        result = first
        (folder / "gate-is-open").touch()
        with anyio.fail_after(15):
            while result["status"] == "waiting":
                result = read(await client.call_tool("wait", {"runId": first["runId"]}))
        assert result["value"] == "open"


async def test_a_failure_is_an_error_with_its_code(folder: Path) -> None:
    async with stdio(folder) as client:
        result = await client.call_tool("exec", {"code": "throw new Error('no')"})
        assert result.is_error
        assert read(result)["code"] == "internal_error"
        bad = await client.call_tool("wait", {"runId": "cm_" + "0" * 32})
        assert read(bad)["code"] == "invalid_input"


async def test_a_cancelled_call_ends_its_program(folder: Path) -> None:
    async with stdio(folder) as client:
        with anyio.move_on_after(0.5):
            await client.call_tool("exec", {"code": "for (;;);"})
        with anyio.fail_after(15):
            result = await client.call_tool("exec", {"code": "return 1"})
        assert read(result)["value"] == 1


@pytest.mark.covers("B-5")
async def test_a_cancelled_wait_leaves_its_program_waiting(folder: Path) -> None:
    source = "await yield_control(); return [await tools.gate(), tools.cancelled()]"
    async with stdio(folder) as client:
        run_id = read(await client.call_tool("exec", {"code": source}))["runId"]
        with anyio.move_on_after(0.3):
            await client.call_tool("wait", {"runId": run_id})
        (folder / "gate-is-open").touch()
        with anyio.fail_after(5):
            result = read(await client.call_tool("wait", {"runId": run_id}))
        assert result["value"][0] == "open", result


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_a_person_is_asked_through_the_client(
    folder: Path, transport: Any, mode: str, action: Any
) -> None:
    asked: list[str] = []

    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        content: dict[str, Any] | None = {"decision": "allow-once"} if action == "accept" else None
        return types.ElicitResult(action=action, content=content)

    async with transport(folder, mode=mode, elicitation_callback=answer) as client:
        code = 'return tools.write({ text: "x" }).catch((error) => error.code)'
        value = read(await client.call_tool("exec", {"code": code}))["value"]
    assert value == ("wrote x" if action == "accept" else "not_approved")
    (question,) = asked
    assert 'openclaw:core:write with {"text": "x"}' in question


@pytest.mark.covers("AK-4")
@pytest.mark.parametrize("mode", MODES)
async def test_calls_of_a_loop_are_one_form(folder: Path, mode: str) -> None:
    asked: list[Any] = []
    answers: list[dict[str, Any]] = [
        {"decision": "allow-once", "call_2": "deny", "call_3": "as-above"},
        {"decision": "deny", "call_1": "nonsense", "call_2": "allow-once"},
        {"call_1": "allow-once"},
    ]

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        asked.append(params)
        return types.ElicitResult(action="accept", content=answers[len(asked) - 1])

    each = "(text) => tools.write({ text }).catch((error) => error.code)"
    async with stdio(folder, mode=mode, elicitation_callback=answer) as client:
        values = [
            read(await client.call_tool("exec", {"code": code}))["value"]
            for code in 3 * [f'return await Promise.all(["x", "y", "z"].map({each}))']
        ]
    refused = "not_approved"
    assert values == [
        ["wrote x", refused, "wrote z"],
        [refused, "wrote y", refused],
        ["wrote x", refused, refused],
    ]
    assert len(asked) == 3
    assert 'openclaw:core:write with {"text": "y"}' in asked[0].message
    fields = ["decision", "call_1", "call_2", "call_3"]
    assert list(asked[0].requested_schema["properties"]) == fields


@pytest.mark.covers("AK-4")
@pytest.mark.parametrize("mode", MODES)
async def test_many_and_long_calls_take_more_than_one_form(folder: Path, mode: str) -> None:
    shown: list[str] = []

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        shown.append(params.message)
        return types.ElicitResult(action="accept", content={"decision": "allow-once"})

    async with stdio(folder, mode=mode, elicitation_callback=answer) as client:
        code = """const texts = Array.from({ length: 30 }, (_, n) => "t" + n);
texts[3] = "long".repeat(200);
return (await Promise.all(texts.map((text) => tools.write({ text })))).length"""
        value = read(await client.call_tool("exec", {"code": code}))["value"]
    assert value == 30
    assert len(shown) == 3
    assert sum(text.count("openclaw:core:write with") for text in shown) == 30
    assert all(len(text) < 25_000 for text in shown)


async def test_each_program_is_asked_its_own_questions(folder: Path) -> None:
    asked: list[str] = []

    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        await until(lambda: len(asked) == 2)  # both programs wait for a person
        said = "deny" if "two" in params.message else "allow-once"
        return types.ElicitResult(action="accept", content={"decision": said})

    values: dict[str, Any] = {}
    async with stdio(folder, mode="legacy", elicitation_callback=answer) as client:

        async def write(text: str) -> None:
            code = f'return tools.write({{ text: "{text}" }}).catch((error) => error.code)'
            values[text] = read(await client.call_tool("exec", {"code": code}))["value"]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, "one")
            tasks.start_soon(write, "two")
    assert values == {"one": "wrote one", "two": "not_approved"}
    assert len(asked) == 2


@pytest.mark.parametrize("mode", MODES)
async def test_a_question_that_was_given_up_is_not_put_to_the_next(folder: Path, mode: str) -> None:
    asked: list[str] = []

    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        if "given up" in params.message:
            giving_up.cancel()
            await anyio.sleep_forever()
        return types.ElicitResult(action="accept", content={"decision": "allow-once"})

    async with stdio(folder, mode=mode, elicitation_callback=answer) as client:
        with anyio.CancelScope() as giving_up:
            code = 'await tools.write({ text: "given up" })'
            await client.call_tool("exec", {"code": code})
        with anyio.fail_after(10):
            code = 'return tools.write({ text: "meant" })'
            result = read(await client.call_tool("exec", {"code": code}))
    assert result["value"] == "wrote meant"
    assert len(asked) == 2


# ---- In this process ----


WRITE = """return tools.write({ text: "x" }).catch((error) => error.code + ": " + error.message)"""


@pytest.mark.covers("N-2", "MF-2")
@pytest.mark.parametrize("mode", MODES)
async def test_where_nobody_can_be_asked_a_call_is_rejected_at_once_and_says_what_to_do(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with inside(mode=mode) as client:
        with anyio.fail_after(15):
            result = read(await client.call_tool("exec", {"code": WRITE}))
            again = read(
                await client.call_tool("exec", {"code": 'await tools.write({ text: "x" })'})
            )
    assert result["value"].startswith(
        "not_approved: openclaw:core:write was not approved: this client"
    )
    assert "--approve always" in result["value"]
    assert "trustAnnotations" in result["value"]
    assert again["code"] == "nested_tool_failed"
    assert "elicitation" in again["error"]
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "openclaw:core:write was not approved" in line
    assert "--approve always" in line


@pytest.mark.covers("N-2")
@pytest.mark.parametrize("action", ["decline", "cancel", "fails"])
async def test_a_client_that_asks_and_has_nobody_gets_a_text_that_helps(action: Any) -> None:
    async def answer(context: Any, params: Any) -> types.ElicitResult | types.ErrorData:
        if action == "fails":
            return types.ErrorData(code=-32000, message="no window")
        return types.ElicitResult(action=action)

    async with inside(mode="legacy", elicitation_callback=answer) as client:
        with anyio.fail_after(15):
            result = read(await client.call_tool("exec", {"code": WRITE}))
    assert result["value"].startswith("not_approved: ")
    assert ("no window" if action == "fails" else "declined") in result["value"]
    assert "--approve always" in result["value"]


@pytest.mark.covers("N-2")
async def test_a_person_who_denies_sees_no_options() -> None:
    async def answer(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"decision": "deny"})

    async with inside(mode="legacy", elicitation_callback=answer) as client:
        result = read(await client.call_tool("exec", {"code": WRITE}))
    assert result["value"].endswith("was not approved: it was denied")


@pytest.mark.covers("N-2")
async def test_a_program_that_asks_for_ever_does_not_hold_its_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clawmode.mcp.tool_call.MAX_QUESTIONS", 3)
    code = 'for (;;) await tools.write({ text: "x" }).catch(() => 0)'
    async with inside() as client:
        with anyio.fail_after(15):
            result = read(await client.call_tool("exec", {"code": code}))
    assert result["status"] == "waiting"


@pytest.mark.covers("N-4", "MC-9", "MF-1")
async def test_a_server_that_hangs_delays_neither_the_start_nor_other_programs(
    tmp_path: Path,
) -> None:
    entries = {"late": gated(tmp_path / "gate"), "good": raw()}
    with anyio.fail_after(10):
        async with inside(entries) as client:
            (exec_, _) = (await client.list_tools()).tools
            assert "MCP servers: good, late." in (exec_.description or "")
            code = """
                await MCP.good.$api()
                return [1, await API.read('mcp/late.d.ts')]"""
            told = read(await client.call_tool("exec", {"code": code}))
            one, declared = told["value"]
            assert (one, told["mcpServers"]) == (1, {"late": "connecting"})
            assert "MCP.late.$api()" in declared


@pytest.mark.covers("N-4", "MC-9", "MF-1")
@pytest.mark.parametrize("mode", MODES)
async def test_a_program_waits_for_the_server_that_it_calls(tmp_path: Path, mode: str) -> None:
    entries = {"late": gated(tmp_path / "gate") | {"trustAnnotations": True}}

    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"decision": "allow-once"})

    results: list[Any] = []
    async with inside(entries, mode=mode, elicitation_callback=answer) as client:

        async def run(code: str) -> None:
            results.append(read(await client.call_tool("exec", {"code": code}))["value"])

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, "return (await MCP.late.other_id()).content[0].text")
                tasks.start_soon(run, "return (await MCP.late.$api('otherId')).tools[0]")
                tasks.start_soon(run, "return MCP.late.otherIdd().catch((e) => e.code)")
                await run("return 'at once'")
                (tmp_path / "gate").touch()
    assert results[0] == "at once"
    assert sorted(results[1:]) == ["for you", "otherId", "unknown_tool"]


@pytest.mark.covers("N-4")
@pytest.mark.parametrize("mode", MODES)
async def test_clients_are_notified_when_a_server_has_connected(tmp_path: Path, mode: str) -> None:
    told = anyio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            told.set()

    with anyio.fail_after(10):
        async with inside(
            {"late": gated(tmp_path / "gate")}, mode=mode, message_handler=hear
        ) as client:
            async with contextlib.AsyncExitStack() as listening:
                if mode == "legacy":
                    can = client.server_capabilities.tools
                    assert can is not None
                    assert can.list_changed
                    await client.list_tools()
                    (tmp_path / "gate").touch()
                    await told.wait()
                else:
                    events = await listening.enter_async_context(
                        client.listen(tools_list_changed=True)
                    )
                    (tmp_path / "gate").touch()
                    await anext(aiter(events))
            (exec_, _) = (await client.list_tools()).tools
    assert "MCP servers: late." in (exec_.description or "")


@pytest.mark.covers("N-36")
async def test_clients_get_the_instructions_of_the_server() -> None:
    async with inside(mode="legacy") as client:
        assert "`exec`" in (client.instructions or "")
        assert client.server_info is not None
        assert client.server_info.title
        assert all(tool.title for tool in (await client.list_tools()).tools)


@pytest.mark.covers("N-4")
def test_an_entry_that_cannot_be_used_is_one_missing_server(folder: Path) -> None:
    entries = {
        "gh": {"command": "x", "env": {"T": "${CLAWMODE_NO_SUCH_TOKEN}"}},
        "typo": {"comand": "x"},
        "a:b": raw(),
        "good": raw(),
    }
    (folder / "servers.json").write_text(json.dumps({"mcpServers": entries}))
    call = {"name": "exec", "arguments": {"code": "return MCP.gh.x()"}}
    hello: dict[str, Any] = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
    ]
    process = subprocess.Popen(
        [*interpreter(), *command("--mcp-config", "servers.json")],
        cwd=folder,
        env=environment(),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("".join(f"{json.dumps(line)}\n" for line in lines))
        process.stdin.flush()
        answers = [process.stdout.readline(), process.stdout.readline()]
        process.stdin.close()
        told = process.stderr.read()
    assert '"instructions"' in answers[0]
    assert "CLAWMODE_NO_SUCH_TOKEN" in answers[1]
    assert "MCP server gh: cannot be used: " in told
    assert "CLAWMODE_NO_SUCH_TOKEN of server 'gh' is not set" in told
    assert "MCP server typo: " in told
    assert "without a colon" in told
    assert process.returncode == 0


async def test_nobody_is_asked_where_the_operator_says_so(folder: Path) -> None:
    async with stdio(folder, "--approve", "always") as client:
        result = read(await client.call_tool("exec", {"code": 'return tools.write({ text: "x" })'}))
        assert result["value"] == "wrote x"


SERVER = """
from typing import Annotated
from mcp.server.mcpserver import Elicit, MCPServer, Resolve
from pydantic import BaseModel
server = MCPServer("tiny")

@server.tool()
def shout(text: str) -> str:
    return text.upper()

class Name(BaseModel):
    name: str

async def ask() -> Elicit[Name]:
    return Elicit("Your name?", Name)

@server.tool()
async def greet(person: Annotated[Name, Resolve(ask)]) -> str:
    return f"hello {person.name}"

server.run("stdio")
"""


def tiny_server(folder: Path) -> dict[str, Any]:
    (folder / "server.py").write_text(SERVER)
    return {"tiny": {"command": sys.executable, "args": ["server.py"]}}


@pytest.mark.parametrize("key", ["mcpServers", "mcp"])
async def test_the_configured_servers_are_behind_it(folder: Path, key: str) -> None:
    servers = tiny_server(folder)
    written = {"mcp": {"servers": servers}} if key == "mcp" else {key: servers}
    (folder / "servers.json").write_text(json.dumps(written))
    option = "--config" if key == "mcp" else "--mcp-config"
    async with stdio(folder, option, "servers.json", "--approve", "always") as client:
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == ["exec", "wait"]
        assert "tiny" in (listed.tools[0].description or "")
        code = 'return (await MCP.tiny.shout({ text: "a" })).structuredContent'
        assert read(await client.call_tool("exec", {"code": code}))["value"] == {"result": "A"}


@pytest.mark.covers("N-19")
async def test_plugins_are_behind_it_with_their_hooks(folder: Path) -> None:
    plugin = documented_plugin(folder / "garden")
    (folder / "c.json5").write_text(json.dumps({"plugins": {"load": {"paths": [str(plugin)]}}}))
    code = (
        'return [await Garden.water("rose", 2), await Garden.water("x", 99).catch((e) => e.code)]'
    )
    async with stdio(folder, "--config", "c.json5", "--approve", "always") as client:
        result = read(await client.call_tool("exec", {"code": code}))
    assert result["value"] == ["2 l for the rose", "blocked"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("able", [True, False])
async def test_what_a_server_asks_is_put_to_the_clients_person(
    folder: Path, mode: str, able: bool
) -> None:
    (folder / "servers.json").write_text(json.dumps({"mcpServers": tiny_server(folder)}))
    asked: list[Any] = []

    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestFormParams)
        asked.append((params.message, list(params.requested_schema["properties"])))
        return types.ElicitResult(action="accept", content={"name": "Ann"})

    options = ("--mcp-config", "servers.json", "--approve", "always")
    callback = answer if able else None
    async with stdio(folder, *options, mode=mode, elicitation_callback=callback) as client:
        await client.call_tool("exec", {"code": "await MCP.tiny.$api()"})  # it has started
        code = "return (await MCP.tiny.greet()).content[0].text"
        with anyio.fail_after(9):  # it does not wait for the end of the time that a program has
            result = read(await client.call_tool("exec", {"code": code}))
    assert result["value"].endswith("hello Ann" if able else "elicitation was decline")
    assert asked == ([("mcp:tiny:greet asks:\nYour name?", ["name"])] if able else [])


async def test_without_the_token_nothing_is_answered(folder: Path) -> None:
    async with served(folder) as url, httpx2.AsyncClient() as client:
        for shown in ("", "Bearer wrong", TOKEN):
            answer = await client.post(url, headers={"authorization": shown}, json={})
            assert answer.status_code == 401
            assert TOKEN not in answer.text


@pytest.mark.covers("S-20")
async def test_wrong_tokens_are_counted_whatever_address_a_client_claims(folder: Path) -> None:
    async with served(folder) as url, httpx2.AsyncClient() as client:
        codes: list[int] = []
        for number in range(11):
            headers = {
                "authorization": f"Bearer wrong-{number}",
                "x-forwarded-for": f"192.0.2.{number}",
                "forwarded": f"for=192.0.2.{number}",
            }
            codes.append((await client.post(url, headers=headers, json={})).status_code)
        right = await client.post(url, headers={"authorization": f"Bearer {TOKEN}"}, json={})
    assert codes == [401] * 10 + [429]
    assert right.status_code == 429
    assert 0 < int(right.headers["retry-after"]) <= 60


async def guess(client: httpx2.AsyncClient, shown: str) -> int:
    return (await client.post("http://localhost/mcp", headers={"authorization": shown})).status_code


@pytest.mark.covers("S-20")
async def test_guesses_in_any_form_and_side_by_side_are_counted_for_their_address_alone() -> None:
    now, codes = 0.0, list[int]()

    async def authenticate(token: str) -> Principal:
        if token != TOKEN:
            raise NotAdmitted("no")
        return Principal("a")

    guard = Gatekeeper(
        PlainTextResponse("in"),
        site=Site("127.0.0.1"),
        authenticate=authenticate,
        attempts=Attempts(clock=lambda: now),
    )

    def at(address: str) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.ASGITransport(guard, client=(address, 1)))

    forms = [f"Token {TOKEN}", "Basic eDp5", f"Bearer  {TOKEN}", TOKEN, "Bearer x"]
    async with at("192.0.2.1") as one, at("192.0.2.2") as two:

        async def try_one(shown: str) -> None:
            codes.append(await guess(one, shown))

        assert [await guess(one, "") for _ in range(20)] == [401] * 20
        assert await guess(one, f"Bearer {TOKEN}") == 200
        assert await guess(one, f"bearer {TOKEN}") == 200
        async with anyio.create_task_group() as tasks:
            for shown in forms * 3:
                tasks.start_soon(try_one, shown)
        assert sorted(codes) == [401] * 10 + [429] * 5
        assert await guess(one, f"Bearer {TOKEN}") == 429
        assert await guess(two, f"Bearer {TOKEN}") == 200
        now = 61.0
        assert await guess(one, f"Bearer {TOKEN}") == 200


@pytest.mark.covers("S-20")
@pytest.mark.parametrize(("address", "token"), [("0.0.0.0:0", "a"), ("127.0.0.1:0", "x" * 15)])
def test_a_token_that_can_be_guessed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, token: str
) -> None:
    monkeypatch.setenv("CLAWMODE_MCP_TOKEN", token)
    setup = set_up(Options(state=str(tmp_path)))
    with pytest.raises(ConfigurationError, match="needs 16 or more"):
        serve(setup, "ask", HttpOptions(address=address))


@pytest.mark.covers("S-20")
async def test_where_others_can_reach_it_the_lack_of_tls_is_told(folder: Path) -> None:
    argv = [*interpreter(), *command("--http", "0.0.0.0:0")]
    process = await anyio.open_process(
        argv, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    async with process:
        assert process.stderr is not None
        told = ""
        with anyio.fail_after(15):
            while "TLS" not in told:
                told += (await process.stderr.receive()).decode()
        process.terminate()
    assert "unencrypted" in told


def test_an_invalid_address_is_reported(folder: Path) -> None:
    done = subprocess.run(
        [*interpreter(), *command("--http", "nowhere")],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert done.returncode == 2
    assert "HOST:PORT" in done.stderr
    assert "Traceback" not in done.stderr
