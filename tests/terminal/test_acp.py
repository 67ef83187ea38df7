"""`clawmode acp`, driven by the client of the official package over stdin and stdout."""

import json
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import anyio
import pytest
from acp import schema
from acp.exceptions import RequestError
from tests.support.acp_driver import EditorClient, raw_client, running
from tests.support.cli_driver import SHOP
from tests.support.command_driver import configure, program, use_own_folders
from tests.support.mcp_driver import raw
from tests.support.waiting import is_alive, until

from clawmode.messages import Usage
from clawmode.sessions.lock import SessionLock
from clawmode.sessions.store import SessionStore
from clawmode.testing import ScriptServer, Turn, call, pause, think

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(45)]

TOOLS = ("--tools", "shop:TOOLS")
HOSTILE = "\x1b[2J \u202e \ud800 ``` ![x](http://127.0.0.1:1/x.png) <img src=x>"
PIXEL = b64encode(b"not really a picture").decode()
ORDER = "return await tools.order({item: 'tea'})"
ORDERS = "return await Promise.all(['tea', 'milk', 'salt'].map((item) => tools.order({item})))"
HOSTILE_TOOL = f'''
@tool(effect="read", label="evil")
async def evil(text: str) -> str:
    """Say something evil."""
    return {HOSTILE!a} + text

TOOLS.append(evil)
'''
ASKING = '''
from clawmode.tools.tool import InputRequest

@tool(effect="read")
async def ask_name(context: ToolContext) -> str:
    """Ask for a name."""
    fields = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    told = await context.ask(InputRequest(message="Who are you?", schema=fields))
    return f"hello {told and told['name']}"

TOOLS.append(ask_name)
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_own_folders(tmp_path, monkeypatch)
    made = tmp_path / "project"
    made.mkdir()
    (made / "shop.py").write_text(SHOP, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(made))
    return made


def titles(client: EditorClient) -> list[str]:
    return [update.title for update in client.of("tool_call")]


def carry_out(*sources: str) -> Any:
    """A script that runs one program for each prompt, and waits for the program as long as needed.

    The first request of a prompt comes when no program runs.
    """
    left, runs = [*sources], False

    def play(request: Any) -> Turn:
        nonlocal runs
        if not runs and left:
            runs = True
            return program(left.pop(0))
        found = request.last_result()
        if isinstance(found, dict) and found["status"] == "waiting":
            return Turn(call("wait", {"runId": found["runId"]}))
        runs = False
        return Turn("Done.")

    return play


def programs(client: EditorClient, session_id: str | None = None) -> list[dict[str, Any]]:
    """What a client knows about the programs."""
    starts = client.of("tool_call", session_id)
    return [client.state(it.tool_call_id) for it in starts if it.kind == "execute"]


def calls(client: EditorClient, session_id: str | None = None) -> list[dict[str, Any]]:
    """What a client knows about the nested calls."""
    starts = client.of("tool_call", session_id)
    nested = [it for it in starts if "parentToolCallId" in it.field_meta["clawmode"]]
    return [client.state(it.tool_call_id) for it in nested]


# ---- Prompts ----


@pytest.mark.covers("AC-1", "AC-2")
async def test_a_prompt_streams_text_thoughts_and_calls_nested_below_their_program(
    folder: Path,
) -> None:
    source = "return await Promise.all([tools.price({item: 'tea'}), tools.read({path: 'a.txt'})])"
    script = [
        Turn(think("Hm."), *program(source, "I look. ").parts, usage=Usage(100, 10)),
        Turn("Three", " and x.", usage=Usage(200, 20)),
    ]
    (folder / "a.txt").write_text("x", "utf-8")
    async with ScriptServer(script) as server:
        configure(folder, server)
        async with running(folder, *TOOLS) as run:
            session = await run.new(folder)
            done = await run.say(session, "What does tea cost?")

    client = run.client
    assert done.stop_reason == "end_turn"
    assert done.usage is not None
    assert (done.usage.input_tokens, done.usage.output_tokens) == (300, 30)
    assert client.said(kind="agent_thought_chunk") == "Hm."
    assert client.said() == "I look. Three and x."
    assert len(client.of("agent_message_chunk")) >= 3, "the text comes in parts"
    outer, *nested = (client.state(it.tool_call_id) for it in client.of("tool_call"))
    assert (outer["kind"], outer["status"]) == ("execute", "completed")
    assert outer["raw_input"]["code"] == source
    assert outer["raw_output"]["value"][0] == 3
    ids = [it["tool_call_id"] for it in (outer, *nested)]
    for it in client.of("tool_call")[1:]:
        assert it.field_meta["clawmode"]["parentToolCallId"] == ids[0]
    price, read = sorted(nested, key=lambda it: it["kind"])
    assert (price["kind"], price["raw_input"], price["raw_output"]) == ("other", {"item": "tea"}, 3)
    assert (read["kind"], read["status"]) == ("read", "completed")
    assert [it["path"] for it in read["locations"]] == [str(folder / "a.txt")]
    order = [getattr(update, "tool_call_id", None) for _, update in client.updates]
    assert order.index(ids[0]) < min(map(order.index, ids[1:]))
    last = max(n for n, it in enumerate(order) if it == ids[0])
    assert all(n < last for n, it in enumerate(order) if it in ids[1:])
    (usage,) = client.of("usage_update")
    assert usage.used == 220, "what the last request and its answer take of the context"


@pytest.mark.covers("AC-2")
async def test_images_links_and_embedded_files_reach_the_model(folder: Path) -> None:
    blocks: list[Any] = [
        schema.TextContentBlock(type="text", text="Look at "),
        schema.ResourceContentBlock(type="resource_link", name="a.py", uri="file:///p/a.py"),
        schema.EmbeddedResourceContentBlock(
            type="resource",
            resource=schema.TextResourceContents(uri="file:///p/b.py", text="b = 1"),
        ),
        schema.ImageContentBlock(type="image", data=PIXEL, mime_type="image/png"),
    ]
    sound = schema.AudioContentBlock(type="audio", data="AAAA", mime_type="audio/wav")
    broken = schema.ImageContentBlock(type="image", data="?", mime_type="image/png")
    async with ScriptServer([Turn("Seen.")]) as server:
        configure(folder, server)
        async with running(folder) as run:
            session = await run.new(folder)
            await run.agent.prompt(session_id=session, prompt=blocks)
            sent = json.dumps(server.requests[0].body["messages"])
            for wrong in (sound, broken):
                with pytest.raises(RequestError, match=r"prompt\[0\]") as error:
                    await run.agent.prompt(session_id=session, prompt=[wrong])
                assert error.value.code == -32602

    assert "Look at [a.py](file:///p/a.py)" in sent
    assert "b = 1" in sent
    assert PIXEL in sent
    assert len(server.requests) == 1


@pytest.mark.covers("AC-3")
async def test_the_stop_reason_tells_how_the_turn_ended(folder: Path) -> None:
    turns = [Turn("all"), Turn("cut", stop="length"), Turn("no", stop="refused")]
    async with ScriptServer(turns) as server:
        configure(folder, server)
        async with running(folder) as run:
            session = await run.new(folder)
            reasons = [(await run.say(session, "hello")).stop_reason for _ in turns]
    assert reasons == ["end_turn", "max_tokens", "refusal"]


@pytest.mark.covers("AC-3")
async def test_a_turn_that_fails_is_an_error_with_its_reason(folder: Path) -> None:
    async with ScriptServer([Turn(error="auth"), Turn("Here.")]) as server:
        configure(folder, server)
        async with running(folder) as run:
            session = await run.new(folder)
            with pytest.raises(RequestError) as error:
                await run.say(session, "hello")
            done = await run.say(session, "again")
    assert error.value.code == -32603
    assert "the script says: auth" in str(error.value)
    assert done.stop_reason == "end_turn"


# ---- Permissions ----


@pytest.mark.covers("AC-4")
async def test_a_call_that_changes_something_waits_for_permission(folder: Path) -> None:
    answers = iter(["allow_once", "reject_once", "no such option", None])

    async def answer(request: schema.RequestPermissionRequest) -> str | None:
        return next(answers)

    async with ScriptServer(carry_out(*[ORDER] * 4)) as server:
        configure(folder, server)
        async with running(folder, *TOOLS, client=EditorClient(answer)) as run:
            session = await run.new(folder)
            for number in range(4):
                await run.say(session, f"Order tea, {number}.")

    client = run.client
    ends = ["completed", "failed", "failed", "failed"]
    assert [it["status"] for it in calls(client)] == ends
    assert [it["status"] for it in programs(client)] == ends
    values = [it["raw_output"].get("value") for it in programs(client)]
    assert values == ["1 tea", None, None, None]
    for asked, nested in zip(client.asked, calls(client), strict=True):
        assert asked.tool_call.raw_input == {"item": "tea"}
        assert asked.tool_call.tool_call_id == nested["tool_call_id"]
        assert [it.kind for it in asked.options] == ["allow_once", "allow_always", "reject_once"]


@pytest.mark.covers("AC-4")
async def test_allow_always_holds_for_the_session_and_modes_change_who_decides(
    folder: Path,
) -> None:
    async def always(request: schema.RequestPermissionRequest) -> str | None:
        return "allow_always"

    async with ScriptServer(carry_out(*[ORDER] * 5)) as server:
        configure(folder, server)
        async with running(folder, *TOOLS, client=EditorClient(always)) as run:
            first = await run.agent.new_session(cwd=str(folder), mcp_servers=[])
            assert first.modes is not None
            assert first.modes.current_mode_id == "ask"
            assert {it.id for it in first.modes.available_modes} == {"ask", "always", "never"}
            await run.say(first.session_id, "one")
            await run.say(first.session_id, "two")
            assert len(run.client.asked) == 1
            other = await run.new(folder)
            await run.agent.set_session_mode(session_id=other, mode_id="always")
            await run.say(other, "three")
            await run.agent.set_session_mode(session_id=other, mode_id="never")
            await run.say(other, "four")
            assert len(run.client.asked) == 1
            ends = [it["status"] for it in calls(run.client, other)]
            assert ends == ["completed", "failed"]
            with pytest.raises(RequestError, match="is not a mode"):
                await run.agent.set_session_mode(session_id=other, mode_id="sudo")
            third = await run.new(folder)
            await run.say(third, "five")
            assert len(run.client.asked) == 2, "another session asks again"


@pytest.mark.covers("AC-4")
@pytest.mark.hostile
async def test_a_client_cannot_lift_a_prohibition_of_the_command_line(folder: Path) -> None:
    async with ScriptServer(carry_out(ORDER)) as server:
        configure(folder, server)
        async with running(folder, *TOOLS, "--approve", "never") as run:
            made = await run.agent.new_session(cwd=str(folder), mcp_servers=[])
            assert made.modes is not None
            assert [it.id for it in made.modes.available_modes] == ["never"]
            with pytest.raises(RequestError):
                await run.agent.set_session_mode(session_id=made.session_id, mode_id="always")
            await run.say(made.session_id, "Order tea.")
    assert run.client.asked == []
    assert [it["status"] for it in calls(run.client)] == ["failed"]


@pytest.mark.covers("AC-5")
async def test_sibling_calls_are_one_question_that_can_be_answered_one_by_one(
    folder: Path,
) -> None:
    async def answer(request: schema.RequestPermissionRequest) -> str | None:
        if len(request.options) == 4:
            return "one_by_one"
        given: Any = request.tool_call.raw_input
        return "reject_once" if given["item"] == "milk" else "allow_once"

    source = ORDERS.replace("Promise.all", "Promise.allSettled")
    async with ScriptServer(carry_out(ORDERS, source)) as server:
        configure(folder, server)
        async with running(folder, *TOOLS) as run:
            session = await run.new(folder)
            await run.say(session, "all")
            (asked,) = run.client.asked
            (outer,) = programs(run.client)
            run.client.answer = answer
            await run.say(session, "some")

    given: Any = asked.tool_call.raw_input
    assert [next(iter(each.values()))["item"] for each in given] == ["tea", "milk", "salt"]
    assert asked.tool_call.tool_call_id == outer["tool_call_id"]
    assert outer["raw_output"]["value"] == ["1 tea", "1 milk", "1 salt"]
    assert "calls at once" not in outer["title"], "the title of the program is back"
    assert len(run.client.asked) == 5
    ends = [it["status"] for it in programs(run.client)[1]["raw_output"]["value"]]
    assert ends == ["fulfilled", "rejected", "fulfilled"]


@pytest.mark.covers("AC-5")
@pytest.mark.parametrize("source", [ORDER, ORDERS])
async def test_cancelling_a_prompt_withdraws_its_questions(folder: Path, source: str) -> None:
    answered = anyio.Event()

    async def answer(request: schema.RequestPermissionRequest) -> str | None:
        await answered.wait()
        return "allow_once"

    async with ScriptServer(carry_out(source)) as server:
        configure(folder, server)
        async with running(folder, *TOOLS, client=EditorClient(answer)) as run:
            session = await run.new(folder)
            ends: list[schema.PromptResponse] = []

            async def say() -> None:
                ends.append(await run.say(session, "Order."))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(say)
                await until(lambda: run.client.asked)
                await run.agent.cancel(session_id=session)
            answered.set()  # too late
            again = await run.say(session, "And now?")
    assert ends[0].stop_reason == "cancelled"
    assert again.stop_reason == "end_turn"
    assert {it["status"] for it in (*programs(run.client), *calls(run.client))} == {"failed"}


@pytest.mark.covers("AC-3")
async def test_cancel_ends_a_streaming_answer(folder: Path) -> None:
    async with ScriptServer([Turn("I begin", pause(600)), Turn("Next.")]) as server:
        configure(folder, server)
        async with running(folder) as run:
            session = await run.new(folder)
            ends: list[schema.PromptResponse] = []

            async def say() -> None:
                ends.append(await run.say(session, "Talk."))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(say)
                await run.client.saw("agent_message_chunk")
                await run.agent.cancel(session_id=session)
            assert (await run.say(session, "More.")).stop_reason == "end_turn"
    assert ends[0].stop_reason == "cancelled"


@pytest.mark.covers("AC-5")
async def test_a_tool_asks_for_input_by_a_form_of_the_client(folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP + ASKING, "utf-8")

    class WithForms(EditorClient):
        async def create_elicitation(self, message: str, mode: Any, **_: Any) -> Any:
            assert message.endswith("Who are you?")
            return schema.AcceptElicitationResponse(action="accept", content={"name": "Ada"})

    async with ScriptServer(carry_out(*["return await tools.ask_name({})"] * 2)) as server:
        configure(folder, server)
        async with running(folder, *TOOLS, client=WithForms(), greet=False) as run:
            form = schema.ElicitationCapabilities(form=schema.ElicitationFormCapabilities())
            able = schema.ClientCapabilities(elicitation=form)
            await run.agent.initialize(protocol_version=1, client_capabilities=able)
            await run.say(await run.new(folder), "hello")
            await run.agent.initialize(protocol_version=1)
            await run.say(await run.new(folder), "hello")
    values = [it["raw_output"]["value"] for it in programs(run.client)]
    assert values == ["hello Ada", "hello None"]


# ---- Sessions ----


@pytest.mark.covers("AC-6")
async def test_a_session_is_listed_and_loaded_after_a_restart(folder: Path) -> None:
    script = [
        Turn(think("Hm."), *program("return await tools.price({item: 'tea'})", "I look.").parts),
        Turn("Three."),
        Turn("Because."),
        Turn("Still there."),
    ]
    elsewhere = folder.parent / "other"
    elsewhere.mkdir()
    async with ScriptServer(script) as server:
        configure(folder, server)
        async with running(folder, *TOOLS) as run:
            session = await run.new(folder)
            await run.new(folder)  # never used, so not listed
            await run.say(session, "What does tea cost?")
            before = run.client
        async with running(folder, *TOOLS) as run:
            for cwd, count in ((str(folder), 1), (None, 1), (str(elsewhere), 0)):
                listed = await run.agent.list_sessions(cwd=cwd)
                assert len(listed.sessions) == count
            (found,) = (await run.agent.list_sessions()).sessions
            assert (found.session_id, found.cwd) == (session, str(folder))
            assert found.title == "What does tea cost?"
            await run.agent.load_session(cwd=str(folder), session_id=session, mcp_servers=[])
            after = run.client
            assert after.said(kind="user_message_chunk") == "What does tea cost?"
            for kind in ("agent_message_chunk", "agent_thought_chunk"):
                assert after.said(kind=kind) == before.said(kind=kind)
            assert titles(after)[0] == titles(before)[0]
            ids = [it.tool_call_id for it in after.of("tool_call")]
            assert ids == [it.tool_call_id for it in before.of("tool_call")]
            assert after.of("tool_call")[1].field_meta["clawmode"]["parentToolCallId"] == ids[0]
            assert {after.state(it)["status"] for it in ids} == {"completed"}
            await run.say(session, "Why?")
            await run.agent.close_session(session_id=session)
            with pytest.raises(RequestError, match="no session"):
                await run.say(session, "Are you there?")
            count = len(run.client.updates)
            await run.agent.resume_session(cwd=str(folder), session_id=session, mcp_servers=[])
            assert len(run.client.updates) == count, "resuming replays nothing"
            await run.say(session, "And now?")
    asked = json.dumps(server.requests[-1].body["messages"])
    assert "What does tea cost?" in asked
    assert "Because." in asked


@pytest.mark.covers("AC-7")
async def test_sessions_run_at_the_same_time_each_in_its_folder(folder: Path) -> None:
    other = folder.parent / "other"
    other.mkdir()
    (folder / "a.txt").write_text("one", "utf-8")
    (other / "a.txt").write_text("two", "utf-8")
    met = [anyio.Event(), anyio.Event()]

    async def play(asked: Any) -> Turn:
        if asked.results:
            return Turn("Done.")
        mine = 0 if asked.said == "first" else 1
        met[mine].set()
        await met[1 - mine].wait()  # neither ends before the other has begun
        return program("return await tools.read({path: 'a.txt'})")

    async with ScriptServer(play) as server:
        agents = {"defaults": {"model": "mine/small", "workspace": str(folder.parent / "no")}}
        for each in (folder, other):
            configure(each, server, agents=agents)
        async with running(folder) as run:
            sessions = [await run.new(folder), await run.new(other)]
            async with anyio.create_task_group() as tasks:
                for session, text in zip(sessions, ("first", "second"), strict=True):
                    tasks.start_soon(run.say, session, text)
    for session, text, where in zip(sessions, ("one", "two"), (folder, other), strict=True):
        (outer,), (nested,) = programs(run.client, session), calls(run.client, session)
        assert text in json.dumps(outer["raw_output"])
        assert nested["locations"][0]["path"] == str(where / "a.txt")
    assert not (folder.parent / "no").exists(), "the folder of the session is the workspace"


@pytest.mark.covers("AC-7")
async def test_the_servers_of_a_session_belong_to_that_session(folder: Path) -> None:
    entry = raw()
    notes = schema.McpServerStdio(
        name="notes", command=entry["command"], args=entry["args"], env=[]
    )
    own = schema.McpServerStdio(name="clawmode", command="clawmode", args=["mcp"], env=[])
    source = "return Object.keys(globalThis.MCP ?? {})"
    async with ScriptServer(carry_out(source, source)) as server:
        configure(folder, server)
        async with running(folder) as run:
            with_server, without = await run.new(folder, notes, own), await run.new(folder)
            await run.say(with_server, "one")
            await run.say(without, "two")
    assert [it["raw_output"]["value"] for it in programs(run.client)] == [["notes"], []]


@pytest.mark.covers("AC-6")
async def test_a_session_that_another_process_writes_to_is_busy_and_not_mixed_up(
    folder: Path, tmp_path: Path
) -> None:
    """A gateway on the same state folder, for example: `clawmode acp` does not use it."""
    async with ScriptServer([Turn("Mine.")]) as server:
        configure(folder, server, session={"writeLock": {"acquireTimeoutMs": 100}})
        async with running(folder) as run:
            session = await run.new(folder)
            stored = await SessionStore(tmp_path / "state" / "sessions").get(session)
            async with SessionLock(stored.transcript).hold(5):
                with pytest.raises(RequestError) as error:
                    await run.say(session, "hello")
            done = await run.say(session, "hello")
    assert error.value.code == -32603
    assert "is busy" in str(error.value)
    assert done.stop_reason == "end_turn"
    assert len(server.requests) == 1


@pytest.mark.covers("AC-7")
@pytest.mark.hostile
async def test_a_folder_that_no_agent_may_work_in_and_a_configuration_nobody_trusts_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "clawmode.json5").write_text('{mcp: {servers: {x: {command: "touch"}}}}', "utf-8")
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    refused = {
        "relative": "absolute path",
        str(tmp_path / "missing"): "absolute path",
        str(folder / "shop.py"): "absolute path",
        "/nul\0": "absolute path",
        str(home): "open the folder of a project",
        str(tmp_path): "open the folder of a project",
        str(strange): "clawmode config trust",
    }
    async with running(folder) as run:
        for cwd, reason in refused.items():
            with pytest.raises(RequestError, match=reason) as error:
                await run.agent.new_session(cwd=cwd, mcp_servers=[])
            assert error.value.code == -32602
        assert (await run.agent.list_sessions()).sessions == []


# ---- Bad input ----


@pytest.mark.covers("AC-8")
@pytest.mark.hostile
async def test_a_line_that_is_no_message_is_answered_with_an_error(folder: Path) -> None:
    lines: list[tuple[Any, int | str | None, int]] = [
        (b"{garbage", None, -32700),
        (b"\xff\xfe", None, -32700),
        (b"[" * 200_000, None, -32700),
        (b'{"jsonrpc": "2.0", "id": 1, "method": NaN}', None, -32700),
        (b'{"a": "' + b"a" * (33 << 20) + b'"}', None, -32700),
        (b"[]", None, -32600),
        (b"7", None, -32600),
        ({"jsonrpc": "1.0", "id": 5, "method": "initialize"}, 5, -32600),
        ({"jsonrpc": "2.0", "id": [1], "method": "initialize"}, None, -32600),
        ({"jsonrpc": "2.0", "id": None, "method": "initialize"}, None, -32600),
        ({"jsonrpc": "2.0", "id": True, "method": "initialize"}, None, -32600),
        ({"jsonrpc": "2.0", "id": 6, "method": {}}, 6, -32600),
        ({"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": [1]}, 7, -32602),
        ({"jsonrpc": "2.0", "id": 8}, 8, -32600),
        ({"jsonrpc": "2.0", "id": "x", "result": {}}, "x", -32600),
        ({"jsonrpc": "2.0", "id": {}, "result": {}}, None, -32600),
        ({"jsonrpc": "2.0", "id": 9, "method": "no/such"}, 9, -32601),
        ({"jsonrpc": "2.0", "id": 10, "method": "_clawmode/secret"}, 10, -32601),
        ({"jsonrpc": "2.0", "id": 11, "method": "authenticate", "params": {}}, 11, -32601),
        ({"jsonrpc": "2.0", "id": 12, "method": "initialize", "params": {}}, 12, -32602),
        ({"jsonrpc": "2.0", "id": 13, "method": "session/new", "params": {"cwd": 5}}, 13, -32602),
    ]
    silent: list[Any] = [
        b"",
        b"   ",
        {"jsonrpc": "2.0", "id": 999, "result": {"unknown": "id"}},
        {"jsonrpc": "2.0", "id": 999, "error": "not an object"},
        {"jsonrpc": "2.0", "method": "no/such"},
        {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": 5}},
        {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "../../etc"}},
    ]
    async with raw_client(folder) as client:
        for line, id_, code in lines:
            await client.send(line)
            reply = await client.receive()
            assert (reply["id"], reply["error"]["code"]) == (id_, code), line[:80]
            assert "Traceback" not in reply["error"]["message"]
        for line in silent:
            await client.send(line)
        greeted = await client.ask("initialize", protocolVersion=77)
        assert greeted["protocolVersion"] == 1
        assert greeted["agentCapabilities"]["loadSession"] is True
        status, told = await client.end()
    assert status == 0
    assert "Traceback" not in told


@pytest.mark.covers("AC-8")
@pytest.mark.hostile
async def test_parameters_that_are_wrong_or_hidden_change_nothing(folder: Path) -> None:
    unknown = "0" * 32
    block = {"type": "text", "text": "hello"}
    async with ScriptServer([Turn("Hello.")]) as server:
        configure(folder, server)
        async with raw_client(folder) as client:
            made = await client.ask(
                "session/new", cwd=str(folder), mcpServers=[], _meta={"cwd": "/", "self": 1}
            )
            session = made["sessionId"]
            for id_ in (unknown, "../../etc/passwd", "", "\ud800", "agent:main:main"):
                for method in ("session/prompt", "session/load", "session/close"):
                    more: Any = {"prompt": [block], "cwd": str(folder), "mcpServers": []}
                    error = await client.ask(method, sessionId=id_, **more)
                    assert error["code"] in (-32002, -32602), (id_, method, error)
            wrong: list[Any] = [
                [],
                [{"type": "text"}],
                [{"type": "text", "text": "  "}],
                "hi",
                None,
            ]
            for prompt in wrong:
                error = await client.ask("session/prompt", sessionId=session, prompt=prompt)
                assert error["code"] == -32602, (prompt, error)
            long = [{"type": "text", "text": "x" * (2 << 20)}]
            error = await client.ask("session/prompt", sessionId=session, prompt=long)
            assert error["code"] == -32602
            error = await client.ask("session/list", cursor="-1; drop table")
            assert error["code"] == -32602
            done = await client.ask("session/prompt", sessionId=session, prompt=[block])
            assert done["stopReason"] == "end_turn"
            status, told = await client.end()
    assert (status, "Traceback" in told) == (0, False)
    assert len(server.requests) == 1


@pytest.mark.covers("AC-8")
@pytest.mark.hostile
async def test_an_answer_that_is_no_answer_denies_the_call(folder: Path) -> None:
    replies: list[Any] = [
        {"result": {"outcome": 5}},
        {"result": "allow_once"},
        {"result": {"outcome": {"outcome": "selected", "optionId": "sudo"}}},
        {"error": "no"},
        {"error": {"code": "x", "message": ["y"]}},
    ]
    async with ScriptServer(carry_out(*[ORDER] * len(replies))) as server:
        configure(folder, server)
        async with raw_client(folder, *TOOLS) as client:
            made = await client.ask("session/new", cwd=str(folder), mcpServers=[])
            about = {"sessionId": made["sessionId"], "prompt": [{"type": "text", "text": "go"}]}
            request = {"jsonrpc": "2.0", "id": "go", "method": "session/prompt", "params": about}
            for reply in replies:
                await client.send(request)
                ends: list[str] = []
                while (message := await client.receive()).get("id") != "go":
                    if message["method"] == "session/request_permission":
                        await client.send({"jsonrpc": "2.0", "id": message["id"], **reply})
                    else:
                        ends.append(message["params"]["update"].get("status"))
                assert message["result"]["stopReason"] == "end_turn"
                assert "failed" in ends
            status, told = await client.end()
    assert (status, "Traceback" in told) == (0, False)
    results = [str(request.asked.results) for request in server.requests]
    assert not any("1 tea" in result for result in results), "nothing was ordered"


@pytest.mark.covers("AC-8")
@pytest.mark.hostile
async def test_the_words_of_strangers_are_shown_as_text(folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP + HOSTILE_TOOL, "utf-8")
    source = f"return await tools.evil({{text: {json.dumps(HOSTILE)}}})"
    script = carry_out(source, f"return await tools.order({{item: {json.dumps(HOSTILE)}}})")
    async with ScriptServer(script) as server:
        configure(folder, server)
        async with running(folder, *TOOLS) as run:
            session = await run.new(folder)
            await run.say(session, "one")
            await run.say(session, "two")
    shown = [it for _, it in run.client.updates if hasattr(it, "tool_call_id")]
    shown += [asked.tool_call for asked in run.client.asked]
    seen = 0
    for update in shown:
        title = update.title or ""
        assert "\x1b" not in title
        assert "\u202e" not in title
        assert not re.sub(r"`[^`]*`", "", title).strip(" "), "everything is in code spans"
        for part in update.content or []:
            text = part.content.text
            assert "\x1b" not in text
            fence, *lines, end = text.split("\n")
            mark = re.match("`+", fence)
            assert mark is not None
            assert end == mark[0]
            assert not any(mark[0] in line for line in lines), "the text cannot end its block"
            seen += "x.png" in text
    assert seen >= 4
    evil, _ = calls(run.client)
    assert "x.png" in evil["raw_output"]
    assert "\ud800" not in evil["raw_output"]


# ---- The end ----


@pytest.mark.covers("AC-9")
@pytest.mark.parametrize("how", ["eof", "SIGTERM"])
async def test_the_process_and_its_children_end(folder: Path, how: str) -> None:
    command = "echo $$ > pid; exec sleep 600"
    source = f"return await tools.exec({{command: {json.dumps(command)}}})"
    async with ScriptServer(carry_out("return await tools.noisy()", source)) as server:
        configure(folder, server)
        async with raw_client(folder, *TOOLS, "--approve", "always") as client:
            made = await client.ask("session/new", cwd=str(folder), mcpServers=[])
            about = {"sessionId": made["sessionId"], "prompt": [{"type": "text", "text": "go"}]}
            await client.ask("session/prompt", **about)  # every line on stdout is a message
            request = {"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": about}
            await client.send(request)
            file = folder / "pid"
            await until(lambda: file.exists() and file.read_text("utf-8").endswith("\n"))
            pid = int(file.read_text("utf-8"))
            if how == "SIGTERM":
                client.process.terminate()
            status, told = await client.end()
    assert status == 0
    assert "printed by a child" in told, "what tools print goes to stderr"
    assert "Traceback" not in told
    await until(lambda: not is_alive(pid))
