"""Tool Search in runs of an agent: what the model sees, what it may do, what is written down."""

import json
import logging
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.agent_driver import Agent, configured, opened
from tests.support.tool_search_driver import (
    CONTROLS,
    ISSUE,
    RING,
    FakeServers,
    add,
    body,
    fake,
    forbidden,
    searching,
    water,
)
from tests.support.waiting import idle

from clawmode import ToolCallDecision
from clawmode.agent.requests import AgentRequest
from clawmode.exceptions import RuntimeUnavailable
from clawmode.messages import ToolMessage
from clawmode.sessions.trajectory import sidecar_path
from clawmode.testing import ScriptedModel, Turn, call
from clawmode.tools.approvals import Approvals
from clawmode.tools.hooks import Hooks

pytestmark = pytest.mark.anyio

TOOLS = {"mode": "tools"}
CODE = ["tool_search_code"]


def results(model: ScriptedModel) -> list[ToolMessage]:
    return [it for it in model.requests[-1].messages if isinstance(it, ToolMessage)]


def seen(model: ScriptedModel) -> list[str]:
    return [each.name for each in model.requests[0].tools]


# ---- What the model sees ----


@pytest.mark.covers("TS-1", "TS-2", "TS-5", "TS-6", "TS-14")
@pytest.mark.parametrize(
    ("rules", "request_", "visible"),
    [
        ({"toolSearch": True}, {}, CODE),
        ({"toolSearch": {"enabled": True}}, {}, CODE),
        ({"toolSearch": TOOLS}, {}, CONTROLS),
        ({"toolSearch": True, "codeMode": True}, {}, ["exec", "wait"]),
        ({"toolSearch": {"mode": "directory"}, "codeMode": True}, {}, ["exec", "wait"]),
        ({"toolSearch": False}, {}, ["add", "water"]),
        ({}, {}, ["add", "water"]),
        ({"toolSearch": True, "deny": ["*"]}, {}, []),
        ({"toolSearch": TOOLS, "allow": []}, {}, []),
        ({"toolSearch": TOOLS}, {"disable_tools": True}, []),
        ({"toolSearch": True}, {"raw_model_call": True}, []),
        ({"toolSearch": {"mode": "directory"}}, {"disable_tools": True}, []),
    ],
)
async def test_the_model_sees_one_surface(
    tmp_path: Path, rules: Any, request_: Any, visible: list[str]
) -> None:
    model = ScriptedModel(["hello"])
    config = configured(tools={"codeMode": False, **rules})
    async with opened(
        tmp_path, model, configuration=config, tools=[add], plugin_tools=[water]
    ) as agent:
        result = await agent.ask(**request_)
    assert seen(model) == visible
    exact = visible if visible in (CODE, CONTROLS, ["exec", "wait"]) else None
    assert model.requests[0].exact_tools == (None if exact is None else frozenset(exact))
    assert ("toolSearch" in result.metadata) == (visible in (CODE, CONTROLS))
    assert "tool_search" not in model.requests[0].system


@pytest.mark.covers("TS-3", "TS-13")
async def test_the_catalog_is_what_policy_leaves_of_every_source(tmp_path: Path) -> None:
    model = ScriptedModel([Turn(call("tool_search", {"query": "forbidden"})), "ok"])
    async with searching(tmp_path, model, TOOLS) as agent:
        result = await agent.ask(client_tools=(RING,))
    report: Any = result.metadata["toolSearch"]
    assert report["catalogSize"] == 4
    assert report["sources"] == {"client": 1, "mcp": 1, "openclaw": 1, "plugin": 1}
    assert json.loads(results(model)[0].text)["tools"] == []


async def test_a_preview_shows_what_a_turn_would(tmp_path: Path) -> None:
    async with searching(tmp_path, [], {"mode": "directory"}) as agent:
        shown = await agent.runtime.preview(AgentRequest(message="hello"))
    assert [each.name for each in shown.tools] == CONTROLS
    assert "- add: Add two numbers." in shown.prompt.text


# ---- What it can do ----


@pytest.mark.covers("TS-4", "TS-18", "TS-22")
async def test_a_model_searches_describes_and_calls(tmp_path: Path) -> None:
    script = [
        Turn(call("tool_search", {"query": "open an issue"})),
        lambda request: Turn(
            call("tool_describe", {"id": request.last_result()["tools"][0]["id"]})
        ),
        lambda request: Turn(
            call("tool_call", {"id": request.last_result()["id"], "args": {"title": "x"}})
        ),
        Turn("Opened."),
    ]
    model = ScriptedModel(script)
    async with searching(tmp_path, model, TOOLS) as agent:
        result = await agent.ask("Open an issue.")
        history = await agent.history()
        tools = [(it["phase"], it["name"], it.get("parentId")) for it in agent.of("tool")]
        outer = agent.of("tool")[4]["callId"]
    assert result.status == "ok"
    answered = json.loads(results(model)[2].text)
    assert (answered["tool"], answered["given"]) == ("create_issue", {"title": "x"})
    assert answered["session"].startswith("agent:main")
    assert tools[4:] == [
        ("start", "tool_call", None),
        ("start", ISSUE.id, outer),
        ("end", ISSUE.id, outer),
        ("end", "tool_call", None),
    ]
    (nested,) = history.nested_calls()
    assert (nested.parent_id, nested.tool_id, nested.state) == (outer, ISSUE.id, "completed")


@pytest.mark.covers("TS-4", "TS-5", "TS-21")
async def test_a_models_body_calls_tools_on_the_path_of_all_calls(tmp_path: Path) -> None:
    hooks, told = Hooks(), list[Any]()

    def note(event: Any) -> None:
        told.append((event.tool_id, event.parent_id, event.run.session_key))

    hooks.on("before_tool_call", note)
    model = ScriptedModel([body("return openclaw.tools.call('add', { a: 1, b: 2 })"), "It is 3."])
    async with searching(tmp_path, model, hooks=hooks) as agent:
        result = await agent.ask("1 + 2?")
        history = await agent.history()
        outer = agent.of("tool")[0]["callId"]
    assert result.payloads == ({"text": "It is 3."},)
    assert json.loads(results(model)[0].text) == {"status": "completed", "value": 3}
    assert told == [(add.id, outer, result.session_key)]
    (nested,) = history.nested_calls(outer)
    assert (nested.tool_id, nested.state) == (add.id, "completed")


async def test_a_tool_that_has_to_be_alone_is_alone_behind_a_control(tmp_path: Path) -> None:
    running: list[int] = []
    most: list[int] = []

    async def work(given: Any, context: Any) -> str:
        running.append(1)
        most.append(len(running))
        await idle()
        running.pop()
        return "ok"

    alone = fake("alone", sequential=True)
    object.__setattr__(alone, "execute", work)
    calls = [call("tool_call", {"id": "alone", "args": {"n": n}}) for n in range(3)]
    async with searching(tmp_path, [Turn(*calls), "ok"], TOOLS, tools=[alone]) as agent:
        await agent.ask()
    assert most == [1, 1, 1]


# ---- What it may not ----


@pytest.mark.covers("TS-38", "TS-40")
@pytest.mark.parametrize("mode", ["tools", "directory"])
async def test_what_is_refused_is_told_and_not_done(tmp_path: Path, mode: str) -> None:
    hooks, done = Hooks(), list[str]()

    def block(event: Any) -> ToolCallDecision | None:
        done.append(event.tool_id)
        if event.tool_name == "water":
            return ToolCallDecision(block=True, block_reason="It rains.")
        return None

    hooks.on("before_tool_call", block)
    wanted: list[Any] = [
        ("water", {"plant": "rose"}, "It rains."),
        (ISSUE.id, {}, "was not approved"),
        (forbidden.id, {}, "No tool has the id"),
        ("add", {"a": "x", "b": 1}, "add: "),
    ]
    calls = [Turn(call("tool_call", {"id": name, "args": given})) for name, given, _ in wanted]
    model = ScriptedModel([*calls, "ok"])
    approvals = Approvals(ask_for=["create_issue"], approver=lambda question: "deny")
    async with searching(
        tmp_path, model, {"mode": mode}, hooks=hooks, approvals=approvals
    ) as agent:
        await agent.ask("go on")
        history = await agent.history()
    for result, (_, _, text) in zip(results(model), wanted, strict=True):
        assert result.is_error
        assert text in result.text
    assert forbidden.id not in done
    codes = [(it.tool_id, it.state, it.code) for it in history.nested_calls()]
    assert codes == [
        (water.id, "failed", "blocked"),
        (ISSUE.id, "failed", "not_approved"),
        (add.id, "failed", "invalid_tool_input"),
    ]


@pytest.mark.covers("TS-39")
@pytest.mark.parametrize("mode", ["code", "tools", "directory"])
async def test_a_tool_that_disappears_between_search_and_call_fails(
    tmp_path: Path, mode: str
) -> None:
    servers = FakeServers(ISSUE)

    def search(request: Any) -> Turn:
        if mode == "code":
            return body("return openclaw.tools.search('issue')")
        return Turn(call("tool_search", {"query": "issue"}))

    def lose(request: Any) -> Turn:
        assert ISSUE.id in json.dumps(request.last_result())
        servers.change()
        if mode == "code":
            return body(f"return openclaw.tools.call({ISSUE.id!r}, {{}})")
        return Turn(call("tool_call", {"id": ISSUE.id, "args": {}}))

    model = ScriptedModel([search, lose, "ok"])
    async with searching(tmp_path, model, {"mode": mode}, servers=servers) as agent:
        result = await agent.ask("hello")
        history = await agent.history()
    assert result.status == "ok"
    assert results(model)[-1].is_error
    assert history.nested_calls() == []


@pytest.mark.parametrize(
    ("setting", "name"), [(True, "add"), (TOOLS, "add"), (True, "exec"), (TOOLS, "exec")]
)
async def test_a_tool_that_was_not_shown_cannot_be_called_around_the_controls(
    tmp_path: Path, setting: Any, name: str
) -> None:
    model = ScriptedModel([Turn(call(name, {"a": 1, "b": 2})), "ok"])
    async with searching(tmp_path, model, setting) as agent:
        await agent.ask()
        history = await agent.history()
    assert results(model)[0].is_error
    assert history.nested_calls() == []


@pytest.mark.parametrize(
    ("control", "arguments"),
    [("tool_search", {}), ("tool_describe", {"id": "__proto__"}), ("tool_call", {"id": 1})],
)
async def test_a_control_that_is_used_wrongly_answers_with_an_error(
    tmp_path: Path, control: str, arguments: Any
) -> None:
    model = ScriptedModel([Turn(call(control, arguments)), "ok"])
    async with searching(tmp_path, model, TOOLS) as agent:
        result = await agent.ask()
    assert result.status == "ok"
    assert results(model)[0].is_error


async def test_half_a_character_in_a_description_does_no_harm(tmp_path: Path) -> None:
    odd = fake("odd", "mcp", "x", "An odd tool \ud83d.")
    model = ScriptedModel([Turn(call("tool_search", {"query": "odd"})), "ok"])
    async with searching(tmp_path, model, TOOLS, servers=FakeServers(odd)) as agent:
        assert (await agent.ask()).status == "ok"
    assert "odd tool ?" in results(model)[0].text


@pytest.mark.covers("TS-25")
async def test_a_run_that_is_aborted_takes_its_body_and_its_calls_along(tmp_path: Path) -> None:
    began, ended = anyio.Event(), anyio.Event()

    async def work(given: Any, context: Any) -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    slow = fake("slow")
    object.__setattr__(slow, "execute", work)
    model = ScriptedModel([body("return openclaw.tools.call('slow', {})"), "never"])
    async with searching(tmp_path, model, tools=[slow]) as agent:
        run = await agent.runtime.start(AgentRequest(message="go"))
        with anyio.fail_after(10):
            await began.wait()
            agent.runtime.abort(run.id)
            result = await agent.runtime.result(run.id)
            await ended.wait()
        (nested,) = (await agent.history()).nested_calls()
    assert (result.status, nested.state) == ("aborted", "cancelled")
    report: Any = result.metadata["toolSearch"]
    assert report["callCount"] == 1


# ---- Falling back ----


@pytest.mark.covers("TS-9", "TS-41")
async def test_without_a_runtime_the_run_has_the_structured_tools_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def nothing(part: str) -> bytes:
        raise RuntimeUnavailable("quickjs.wasm is missing from the installation")

    monkeypatch.setattr("clawmode.sandbox.artifacts.prepare", nothing)
    model = ScriptedModel([Turn(call("tool_call", {"id": "add", "args": {"a": 1, "b": 2}})), "3"])
    with caplog.at_level(logging.WARNING, "clawmode.tool_search"):
        async with searching(tmp_path, model) as agent:
            result = await agent.ask()
    assert seen(model) == CONTROLS
    assert results(model)[0].text == "3"
    report: Any = result.metadata["toolSearch"]
    assert (report["mode"], report["fallbackFrom"]) == ("tools", "code")
    assert "missing" in report["fallbackReason"]
    assert any("tool_search_code is not available" in it.message for it in caplog.records)


# ---- What is written down ----


async def trajectory_of(agent: Agent) -> list[dict[str, Any]]:
    session = await agent.runtime.sessions.resolve(None)
    text = sidecar_path(session.transcript, session.id).read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.covers("TS-29", "TS-30", "TS-31", "TS-37")
async def test_session_logs_tell_what_was_seen_searched_described_and_called(
    tmp_path: Path,
) -> None:
    script = [
        Turn(call("tool_search", {"queries": ["issue", "plant"]})),
        Turn(call("tool_describe", {"id": ISSUE.id})),
        Turn(call("tool_call", {"id": ISSUE.id, "args": {}})),
        Turn(call("tool_call", {"id": "ring", "args": {}})),
        "done",
    ]
    model = ScriptedModel(script)
    async with searching(tmp_path, model, TOOLS) as agent:
        result = await agent.ask(client_tools=(RING,))
        history = await agent.history()
        traced = await trajectory_of(agent)
    (end,) = [it for it in traced if it["type"] == "session.ended"]
    (compiled,) = [it for it in traced if it["type"] == "context.compiled"]
    kept: Any = [it.data["metadata"] for it in history.entries if it.data.get("phase") == "end"]
    for told in (result.metadata, end["data"]["metadata"], kept[0]):
        report: Any = told["toolSearch"]
        assert told["visibleTools"] == 3
        assert [report[key] for key in ("searchCount", "describeCount", "callCount")] == [2, 1, 2]
        assert report["calledTools"] == [
            {"toolId": ISSUE.id, "source": "mcp"},
            {"toolId": RING.id, "source": "client"},
        ]
    schemas = json.dumps(compiled["data"]["tools"], separators=(",", ":"))
    assert result.metadata["toolSchemaBytes"] == len(schemas.encode())
    assert result.metadata["promptBytes"] == len(model.requests[0].system.encode())
    assert [it.tool_id for it in history.nested_calls()] == [ISSUE.id, RING.id]


@pytest.mark.covers("TS-29")
async def test_bytes_are_told_of_direct_runs_too(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {}
    tools = [fake(f"paint_{number}", text="Paint a wall. " * 10) for number in range(100)]
    for name, setting in (("direct", False), ("code", True), ("tools", TOOLS)):
        async with searching(tmp_path / name, ["ok"], setting, tools=tools) as agent:
            sizes[name] = (await agent.ask()).metadata["toolSchemaBytes"]
    assert sizes["direct"] > 10 * max(sizes["code"], sizes["tools"])
