"""`tools.*`: what there is, what a session has, and calls on the path of all calls."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.gateway_inside import ANY, Inside, Refused, echo, events, inside
from tests.support.waiting import until

from clawmode.testing import Turn, call
from clawmode.tools.hooks import BeforeToolCall, RequireApproval, ToolCallDecision
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio


def names(tools: list[dict[str, Any]]) -> set[str]:
    return {tool["name"] for tool in tools}


async def test_the_catalog_has_all_tools_and_where_they_come_from(tmp_path: Path) -> None:
    async with inside(tmp_path, tools=[echo(effect="read")]) as it:
        found = await it.call("tools.catalog")
    by_name = {tool["name"]: tool for tool in found["tools"]}
    assert {"read", "write", "exec", "session_status", "echo"} <= set(by_name)
    assert by_name["echo"]["source"] == "openclaw"
    assert by_name["echo"]["effect"] == "read"
    assert "parameters" not in by_name["echo"]


async def test_the_effective_tools_are_what_the_policy_leaves(tmp_path: Path) -> None:
    rules = {"allow": ["echo", "read"], "codeMode": False}
    async with inside(tmp_path, tools=[echo()], rules=rules) as it:
        found = await it.call("tools.effective", sessionKey="main", schemas=True)
    assert names(found["tools"]) == {"echo", "read"}
    assert not found["codeMode"]
    assert set(found["visible"]) == {"echo", "read"}
    assert found["tools"][0]["parameters"]["type"] == "object"
    assert "openclaw:core:exec" in {denied["id"] for denied in found["denied"]}
    assert found["sessionKey"] == "agent:main:main"


async def test_in_code_mode_the_model_would_see_two(tmp_path: Path) -> None:
    async with inside(tmp_path, tools=[echo()], rules={"codeMode": True}) as it:
        found = await it.call("tools.effective", sessionKey="main")
    assert found["codeMode"]
    assert found["visible"] == ["exec", "wait"]
    assert "echo" in names(found["tools"])


async def test_the_policy_of_a_sender_is_that_of_the_token(tmp_path: Path) -> None:
    rules = {"toolsBySender": {"id:guest": {"deny": ["echo"]}}}
    async with inside(tmp_path, tools=[echo()], rules=rules) as it:
        guest = it.client("operator.write", name="guest")
        hers = await it.call("tools.effective", guest, sessionKey="main")
        his = await it.call("tools.effective", sessionKey="main")
        refused = await it.call("tools.invoke", guest, name="echo")
    assert "echo" in names(his["tools"])
    assert "echo" not in names(hers["tools"])
    assert (refused["ok"], refused["error"]["code"]) == (False, "denied")


async def test_the_rules_of_the_gateway_hold_for_calls_without_a_turn(tmp_path: Path) -> None:
    rules = {"toolsBySender": {"channel:gateway": {"deny": ["echo"]}}}
    async with inside(tmp_path, tools=[echo()], rules=rules) as it:
        effective = await it.call("tools.effective", sessionKey="main")
        refused = await it.call("tools.invoke", name="echo")
    assert "echo" not in names(effective["tools"])
    assert (refused["ok"], refused["error"]["code"]) == (False, "denied")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, "INVALID_REQUEST sessionKey"),
        ({"sessionKey": "agent:nobody:main"}, "INVALID_REQUEST sessionKey"),
        ({"sessionKey": "../x"}, "INVALID_REQUEST sessionKey"),
        ({"sessionKey": "main", "agentId": "nobody"}, "INVALID_REQUEST agentId"),
        ({"sessionKey": "main", "other": 1}, "INVALID_REQUEST other"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, given: dict[str, Any], code: str
) -> None:
    async with inside(tmp_path) as it:
        assert await it.code("tools.effective", **given) == code


# ---- Calls ----


async def test_a_tool_is_called_by_name_and_by_id(tmp_path: Path) -> None:
    async with inside(tmp_path, tools=[echo()]) as it:
        it.admin.following.add("*")
        first = await it.call("tools.invoke", name="echo", args={"a": 1}, sessionKey="tea")
        second = await it.call("tools.invoke", name="openclaw:core:echo")
        told = [event["phase"] for event in events(it.admin, "session.tool")]
    assert first == {
        "ok": True,
        "toolName": "echo",
        "output": {"said": {"a": 1}, "sender": "admin", "session": "agent:main:tea"},
    }
    assert second["ok"]
    assert told == ["start", "end", "start", "end"]


async def test_the_same_key_calls_once(tmp_path: Path) -> None:
    made: list[int] = []

    async def count(given: JsonObject, context: ToolContext) -> int:
        made.append(1)
        return len(made)

    async with inside(tmp_path, tools=[Tool("count", "Counts.", ANY, count)]) as it:
        first = await it.call("tools.invoke", name="count", idempotencyKey="k")
        second = await it.call("tools.invoke", name="count", idempotencyKey="k")
        other = await it.code("tools.invoke", name="count", args={"a": 1}, idempotencyKey="k")
    assert first == second == {"ok": True, "toolName": "count", "output": 1}
    assert other == "CONFLICT idempotencyKey"


async def test_a_failed_invalid_or_denied_call_is_an_answer_and_not_an_error(
    tmp_path: Path,
) -> None:
    async def fail(given: JsonObject, context: ToolContext) -> None:
        raise ValueError("it is broken")

    strict: JsonObject = {"type": "object", "required": ["x"]}
    tools = [Tool("fail", "Fails.", ANY, fail), Tool("strict", "Strict.", strict, fail)]
    async with inside(tmp_path, tools=tools, rules={"deny": ["read"]}) as it:
        failed = await it.call("tools.invoke", name="fail")
        misfit = await it.call("tools.invoke", name="strict")
        denied = await it.call("tools.invoke", name="read", args={"path": "x"})
    assert failed["error"] == {"code": "tool_failed", "message": "ValueError: it is broken"}
    assert misfit["error"]["code"] == "invalid_tool_input"
    assert denied["error"]["code"] == "denied"


async def test_hooks_decide_about_the_call(tmp_path: Path) -> None:
    def block(event: BeforeToolCall) -> ToolCallDecision:
        return ToolCallDecision(block=True, block_reason="not today")

    async with inside(tmp_path, tools=[echo()]) as it:
        it.gateway.host.hooks.before_tool_call(block)
        refused = await it.call("tools.invoke", name="echo")
    assert refused["error"]["code"] == "blocked"


def _ask(event: BeforeToolCall) -> ToolCallDecision:
    return ToolCallDecision(require_approval=RequireApproval(title="May it?"))


@pytest.mark.parametrize(("decision", "ok"), [("allow-once", True), ("deny", False)])
async def test_a_call_that_needs_approval_waits_for_it(
    tmp_path: Path, decision: str, ok: bool
) -> None:
    answers: list[Any] = []
    async with inside(tmp_path, tools=[echo()]) as it:
        it.gateway.host.hooks.before_tool_call(_ask)
        approver = it.client("operator.approvals")

        async def invoke() -> None:
            answers.append(await it.call("tools.invoke", name="echo"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(invoke)
            await until(lambda: events(approver, "plugin.approval.requested"))
            (asked,) = events(approver, "plugin.approval.requested")
            assert (asked["toolId"], asked["sender"]) == ("openclaw:core:echo", "admin")
            await it.call("plugin.approval.resolve", approver, id=asked["id"], decision=decision)
    assert answers[0]["ok"] is ok


async def test_who_does_not_want_to_wait_for_approval_is_told_at_once(tmp_path: Path) -> None:
    async with inside(tmp_path, tools=[echo()]) as it:
        it.gateway.host.hooks.before_tool_call(_ask)
        refused = await it.call("tools.invoke", name="echo", confirm=False)
        assert it.gateway.approvals.pending() == []
    assert refused["error"]["code"] == "requires_approval"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("openclaw:code_mode:exec", "INVALID_REQUEST name"),
        ("wait", "INVALID_REQUEST name"),
        ("tool_call", "INVALID_REQUEST name"),
        ("nothing", "NOT_FOUND name"),
        ("", "INVALID_REQUEST name"),
    ],
)
async def test_only_tools_are_called(tmp_path: Path, name: str, code: str) -> None:
    async with inside(tmp_path, tools=[echo()]) as it:
        assert await it.code("tools.invoke", name=name) == code


async def test_a_name_that_several_have_is_refused_with_their_ids(tmp_path: Path) -> None:
    tools = [echo(), echo(source="client")]
    async with inside(tmp_path, tools=tools) as it:
        with pytest.raises(Refused) as refused:
            await it.call("tools.invoke", name="echo")
    assert refused.value.code == "INVALID_REQUEST"
    assert len(refused.value.details["ids"]) == 2


async def test_an_output_that_is_too_large_is_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawmode.gateway.tool_methods.MAX_OUTPUT", 10)
    async with inside(tmp_path, tools=[echo()]) as it:
        refused = await it.call("tools.invoke", name="echo")
    assert refused["error"]["code"] == "output_limit_exceeded"


# ---- Client tools ----


async def _with_client_tool(it: Inside, **answer: Any) -> tuple[str, list[str]]:
    """A run that calls a tool of its client, which answers so."""
    run = await it.call("agent", message="go", clientTools=[{"name": "look"}])
    await until(lambda: events(it.admin, "tool.call"))
    (asked,) = events(it.admin, "tool.call")
    stranger = it.client("operator.write")
    codes = [await it.code("tools.result", stranger, callId=asked["callId"], result=1)]
    codes.append(await it.code("tools.result", callId=asked["callId"]))
    await it.call("tools.result", callId=asked["callId"], **answer)
    codes.append(await it.code("tools.result", callId=asked["callId"], **answer))
    await it.call("agent.wait", runId=run["runId"], timeoutMs=10_000)
    return it.read_last(), codes


@pytest.mark.parametrize(
    ("answer", "said"), [({"result": {"seen": "tea"}}, "tea"), ({"error": "too dark"}, "too dark")]
)
async def test_a_client_hands_in_the_result_of_its_own_tool_once(
    tmp_path: Path, answer: dict[str, Any], said: str
) -> None:
    script = [Turn(call("look", {"at": "x"})), Turn("done")]
    async with inside(tmp_path, script, rules={"codeMode": False}) as it:
        result, codes = await _with_client_tool(it, **answer)
    assert said in result
    assert codes == ["NOT_FOUND callId", "INVALID_REQUEST result", "NOT_FOUND callId"]


@pytest.mark.covers("N-5")
@pytest.mark.parametrize(("effect", "asked"), [("read", 0), ("write", 1), (None, 1)])
async def test_a_client_says_which_of_its_tools_only_read(
    tmp_path: Path, effect: str | None, asked: int
) -> None:
    script = [Turn(call("look", {})), Turn("done")]
    tool = {"name": "look"} | ({"effect": effect} if effect else {})
    rules = {"codeMode": False, "approve": "ask"}
    async with inside(tmp_path, script, rules=rules) as it:
        await it.call("agent", message="go", clientTools=[tool])
        await until(lambda: events(it.admin, "tool.call") or it.gateway.approvals.pending())
        assert len(it.gateway.approvals.pending()) == asked


async def test_halves_of_characters_do_no_harm(tmp_path: Path) -> None:
    async with inside(tmp_path, tools=[echo()]) as it:
        done = await it.call("tools.invoke", name="echo", args={"a": "x\ud800"})
        made = await it.call("sessions.create", title="\ud83d", idempotencyKey="\udc00")
    assert done["output"]["said"] == {"a": "x?"}
    assert made["session"]["title"] == "?"
