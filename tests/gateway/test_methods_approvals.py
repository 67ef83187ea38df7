"""Questions that clients put and answer; what tools want to know; the host's rules for commands."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.gateway_inside import ANY, Inside, Refused, echo, events, inside
from tests.support.waiting import until

from clawmode.core_tools.exec_policy import EXEC_ID
from clawmode.gateway import approval_methods
from clawmode.terminal.desk import make_approvals
from clawmode.testing import Turn, call
from clawmode.tools.tool import InputRequest, Tool, ToolContext
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio

ASKS = {"exec": {"command": "true --x"}, "plugin": {"title": "May I?"}}


# ---- From the question to the decision ----


@pytest.mark.parametrize("family", ["exec", "plugin"])
@pytest.mark.parametrize("decision", ["allow-once", "deny"])
async def test_a_client_asks_another_decides_and_the_first_learns_it(
    tmp_path: Path, family: str, decision: str
) -> None:
    async with inside(tmp_path) as it:
        asker = it.client("operator.write", name="asker")
        approver = it.client("operator.approvals", name="approver")
        reader = it.client("operator.read")
        put = await it.call(f"{family}.approval.request", asker, **ASKS[family], sessionKey="tea")
        (told,) = events(approver, f"{family}.approval.requested")
        (listed,) = (await it.call(f"{family}.approval.list", approver))["approvals"]
        assert told == listed
        assert told["id"] == put["id"]
        assert (told["sender"], told["sessionKey"]) == ("asker", "agent:main:tea")
        wait = f"{family}.approval.waitDecision"
        assert (await it.call(wait, asker, id=put["id"], timeoutMs=0))["decision"] is None
        resolve = f"{family}.approval.resolve"
        await it.call(resolve, approver, id=put["id"], decision=decision)
        decided = await it.call(wait, asker, id=put["id"], timeoutMs=5_000)
        assert decided == {"id": put["id"], "decision": decision}
        await until(lambda: events(approver, f"{family}.approval.resolved"))
        known = await it.call(f"{family}.approval.get", approver, id=put["id"])
        assert (known["decision"], known["settled"]) == (decision, True)
        assert (await it.call(f"{family}.approval.list", approver))["approvals"] == []
        assert events(asker, f"{family}.approval.requested") == []
        assert events(reader, f"{family}.approval.requested") == []


@pytest.mark.covers("GP-10")
@pytest.mark.parametrize("family", ["exec", "plugin"])
async def test_everyone_learns_who_answered_first(tmp_path: Path, family: str) -> None:
    async with inside(tmp_path) as it:
        first, second = (it.client("operator.approvals", name=name) for name in ("ann", "bob"))
        put = await it.call(f"{family}.approval.request", **ASKS[family])
        resolve = f"{family}.approval.resolve"
        await it.call(resolve, first, id=put["id"], decision="deny")
        late = await it.code(resolve, second, id=put["id"], decision="allow-once")
        assert late == "NOT_FOUND id"
        for client in (first, second):
            (told,) = await until(partial(events, client, f"{family}.approval.resolved"))
            assert told == {"id": put["id"], "decision": "deny", "by": "ann"}
        same = await it.call(resolve, second, id=put["id"], decision="deny")
        assert (same["decision"], same["by"]) == ("deny", "ann")
        known = await it.call(f"{family}.approval.get", second, id=put["id"])
        assert (known["decision"], known["by"]) == ("deny", "ann")
        listed = await it.call(f"{family}.approval.list", second)
        assert listed["approvals"] == []
        (settled,) = listed["settled"]
        assert (settled["id"], settled["by"], settled["decision"]) == (put["id"], "ann", "deny")
        assert settled["settledAtMs"] >= settled["askedAtMs"]


@pytest.mark.covers("GP-10")
async def test_an_answer_from_a_channel_names_its_sender(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        put = await it.call("plugin.approval.request", title="May I?")
        await it.call("chat.send", message=f"/approve {put['id']} deny", sessionKey="tea")
        (told,) = await until(partial(events, it.admin, "plugin.approval.resolved"))
        assert (told["decision"], told["by"]) == ("deny", "admin")


@pytest.mark.hostile
async def test_the_list_of_settled_questions_is_short_and_so_are_their_inputs(
    tmp_path: Path,
) -> None:
    async with inside(tmp_path) as it:
        for _ in range(60):
            put = await it.call("exec.approval.request", command="x" * 60_000)
            await it.call("exec.approval.resolve", id=put["id"], decision="deny")
            await it.call("exec.approval.waitDecision", id=put["id"])
        listed = await it.call("exec.approval.list")
        assert len(listed["settled"]) == 50
        assert listed["settled"][0]["id"] == put["id"]
        assert len(json.dumps(listed)) < 100_000


async def test_a_decision_stands_and_may_be_repeated(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        put = await it.call("plugin.approval.request", title="May I?")
        await it.call("exec.approval.resolve", id=put["id"], decision="deny")
        await it.call("plugin.approval.waitDecision", id=put["id"])
        again = await it.call("exec.approval.resolve", id=put["id"], decision="deny")
        assert again["decision"] == "deny"
        late = await it.code("exec.approval.resolve", id=put["id"], decision="allow-once")
        assert late == "NOT_FOUND id"


async def test_the_families_are_kept_apart(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        put = await it.call("exec.approval.request", command="true")
        for name in ("get", "resolve", "waitDecision"):
            given = {"decision": "deny"} if name == "resolve" else {}
            code = await it.code(f"plugin.approval.{name}", id=put["id"], **given)
            assert code == "NOT_FOUND id"
        assert await it.code("exec.approval.get", id="ap_none") == "NOT_FOUND id"


async def test_a_question_that_nobody_answers_is_over_in_time(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        put = await it.call("plugin.approval.request", title="May I?", timeoutMs=1)
        decided = await it.call("plugin.approval.waitDecision", id=put["id"], timeoutMs=5_000)
        assert decided["decision"] is None
        (told,) = events(it.admin, "plugin.approval.resolved")
        assert told == {"id": put["id"], "decision": "timeout", "by": None}


async def test_the_same_request_is_put_once(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        keyed = {"command": "true", "idempotencyKey": "k"}
        first = await it.call("exec.approval.request", **keyed)
        assert await it.call("exec.approval.request", **keyed) == first
        assert len(it.gateway.approvals.pending()) == 1


async def test_there_is_an_end_to_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approval_methods, "MAX_WAITING", 1)
    async with inside(tmp_path) as it:
        await it.call("exec.approval.request", command="true")
        assert await it.code("exec.approval.request", command="true") == "RATE_LIMITED"


@pytest.mark.parametrize(
    ("method", "given", "code"),
    [
        ("exec.approval.request", {}, "INVALID_REQUEST command"),
        ("exec.approval.request", {"command": ""}, "INVALID_REQUEST command"),
        (
            "exec.approval.request",
            {"command": "x", "timeoutMs": 1_800_001},
            "INVALID_REQUEST timeoutMs",
        ),
        ("exec.approval.request", {"command": "x", "agentId": "no"}, "INVALID_REQUEST agentId"),
        (
            "exec.approval.request",
            {"command": "x", "sessionKey": "a b"},
            "INVALID_REQUEST sessionKey",
        ),
        ("exec.approval.resolve", {"id": "x", "decision": "yes"}, "INVALID_REQUEST decision"),
        ("plugin.approval.request", {"title": "x", "severity": "y"}, "INVALID_REQUEST severity"),
        ("input.answer", {"id": "x", "content": 1}, "INVALID_REQUEST content"),
        ("input.answer", {"id": "x"}, "INVALID_REQUEST content"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, method: str, given: dict[str, Any], code: str
) -> None:
    async with inside(tmp_path) as it:
        assert await it.code(method, **given) == code


# ---- For always ----


async def test_allow_always_puts_the_programs_of_a_command_on_the_allowlist(
    tmp_path: Path,
) -> None:
    async with inside(tmp_path) as it:
        put = await it.call("exec.approval.request", command="ls -l | wc -l")
        (asked,) = (await it.call("exec.approval.list"))["approvals"]
        assert asked["always"].endswith("/ls for the agent main")
        await it.call("exec.approval.resolve", id=put["id"], decision="allow-always")
        await it.call("exec.approval.waitDecision", id=put["id"])
        file = (await it.call("exec.approvals.get"))["file"]
        (entry,) = file["agents"]["main"]["allowlist"]
        assert entry["pattern"].endswith("/ls")
        assert it.gateway.approvals.remembered() == []


async def test_allow_always_of_a_clients_question_allows_no_tool(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        put = await it.call("plugin.approval.request", title="All of it?")
        await it.call("plugin.approval.resolve", id=put["id"], decision="allow-always")
        await it.call("plugin.approval.waitDecision", id=put["id"])
        assert it.gateway.approvals.remembered() == []


async def test_a_command_of_the_shell_is_asked_about_as_exec(tmp_path: Path) -> None:
    rules = {"exec": {"ask": "always"}}
    async with inside(tmp_path, rules=rules) as it, anyio.create_task_group() as tasks:
        answers: list[Any] = []

        async def invoke() -> None:
            given = {"name": "exec", "args": {"command": "echo tea"}}
            answers.append(await it.call("tools.invoke", **given))

        tasks.start_soon(invoke)
        await until(lambda: events(it.admin, "exec.approval.requested"))
        (asked,) = events(it.admin, "exec.approval.requested")
        assert asked["toolId"] == EXEC_ID
        assert asked["input"]["command"] == "echo tea"
        await it.call("exec.approval.resolve", id=asked["id"], decision="allow-once")
        await until(lambda: answers)
        assert "tea" in json.dumps(answers[0]["output"])


# ---- What tools want to know ----

FORM: JsonObject = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}


def asking() -> Tool:
    async def run(given: JsonObject, context: ToolContext) -> JsonObject:
        answer = await context.ask(InputRequest(message="Who are you?", schema=FORM))
        return {"told": answer}

    return Tool("who", "Asks.", ANY, run)


@pytest.mark.covers("GP-10")
@pytest.mark.parametrize("content", [{"name": "a secret name"}, None])
async def test_a_tool_is_told_what_it_asks_for(tmp_path: Path, content: Any) -> None:
    async with inside(tmp_path, tools=[asking()]) as it, anyio.create_task_group() as tasks:
        answers: list[Any] = []

        async def invoke() -> None:
            answers.append(await it.call("tools.invoke", name="who"))

        tasks.start_soon(invoke)
        await until(lambda: events(it.admin, "input.requested"))
        (asked,) = (await it.call("input.list"))["inputs"]
        assert [asked] == events(it.admin, "input.requested")
        bad = await it.code("input.answer", id=asked["id"], content={"name": 1})
        assert bad == "INVALID_REQUEST content"
        await it.call("input.answer", id=asked["id"], content=content)
        await until(lambda: answers)
        assert answers[0]["output"] == {"told": content}
        assert await it.code("input.answer", id=asked["id"], content=content) == "NOT_FOUND id"
        resolved = {"id": asked["id"], "answered": content is not None, "by": "admin"}
        assert events(it.admin, "input.resolved") == [resolved]
        listed = await it.call("input.list")
        assert (listed["inputs"], [each["by"] for each in listed["settled"]]) == ([], ["admin"])
        assert "a secret name" not in json.dumps(listed)


# ---- The host's rules ----


async def test_the_hosts_rules_are_read_and_replaced(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        before = await it.call("exec.approvals.get")
        assert (before["exists"], before["file"]) == (False, {"version": 1})
        file = {"version": 1, "defaults": {"security": "deny"}}
        await it.call("exec.approvals.set", file=file, baseHash=before["hash"])
        now = await it.call("exec.approvals.get")
        assert (now["exists"], now["file"]) == (True, file)
        late = await it.code("exec.approvals.set", file=file, baseHash=before["hash"])
        assert late == "CONFLICT baseHash"
        refused = await it.call("tools.invoke", name="exec", args={"command": "true"})
        assert refused["error"]["code"] == "blocked"


@pytest.mark.parametrize(
    "file",
    [
        {},
        {"version": 2},
        {"version": 1, "defaults": {"security": "maybe"}},
        {"version": 1, "default": {"security": "deny"}},
        {"version": 1, "agents": {"Main": {"security": "deny"}}},
        {"version": 1, "agents": {"main": {"allowlist": [{}]}}},
        {"version": 1, "agents": {"main": {"ask": 1}}},
        {"version": 1, "agents": []},
        {"version": 1, "more": "x" * (1 << 20)},
    ],
)
async def test_rules_that_cannot_be_meant_are_not_written(
    tmp_path: Path, file: dict[str, Any]
) -> None:
    async with inside(tmp_path) as it:
        assert await it.code("exec.approvals.set", file=file) == "INVALID_REQUEST file"
        assert not (await it.call("exec.approvals.get"))["exists"]


async def test_rules_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        (it.gateway.host.setup.state / "exec-approvals.json").write_text("{")
        with pytest.raises(Refused) as refused:
            await it.call("exec.approvals.get")
        assert refused.value.code == "UNAVAILABLE"


# ---- Whether anybody is asked at all ----

ECHO = 'return (await tools.echo({ word: "tea" })).said'
SHELL = 'return await tools.exec({ command: "echo $((6*7))" })'


def program(code: str) -> Turn:
    return Turn(call("exec", {"code": code}))


def tells(request: Any) -> Turn:
    """Waits for a program as long as it waits, and says what came of it."""
    found = request.last_result()
    if found["status"] == "waiting":
        return Turn(call("wait", {"runId": found["runId"]}))
    return Turn(json.dumps(found.get("value") or found.get("error")))


LOOP = """return await Promise.all(["a", "b", "c", "d"].map((word) =>
  tools.echo({ word }).then((echo) => echo.said, (error) => error.code)))"""


@pytest.mark.hostile
async def test_a_long_argument_in_a_group_is_not_cut_inside_of_a_secret(tmp_path: Path) -> None:
    secret = "correct-horse-battery-staple"
    calls = f"[1, 2].map(() => tools.echo({{text: 'x'.repeat(280) + '{secret}'}}))"
    script = [program(f"await Promise.all({calls})"), "Denied."]
    rules = {"codeMode": True, "approve": None}
    async with inside(tmp_path, script, tools=[echo()], rules=rules) as it:
        it.gateway.learn_secrets([secret])
        run = await it.call("agent", message="go")
        (group,) = await until(lambda: events(it.admin, "approval.group.requested"))
        ids = [member["id"] for member in group["members"]]
        await it.call(
            "approval.group.resolve", id=group["id"], decisions=dict.fromkeys(ids, "deny")
        )
        await it.call("agent.wait", runId=run["runId"])
        shown = json.dumps([group, await it.call("plugin.approval.list")])
        assert "xxx***" in shown
        assert "correct" not in shown


@pytest.mark.covers("AK-4", "AK-5", "AK-6")
async def test_calls_of_a_loop_are_a_group_for_clients_that_know_groups(tmp_path: Path) -> None:
    script = [program(LOOP), tells, tells, tells, tells, tells]
    rules = {"codeMode": True, "approve": None}
    async with inside(tmp_path, script, tools=[echo()], rules=rules) as it:
        approver, reader = it.client("operator.approvals"), it.client("operator.read")
        run = await it.call("agent", message="go")
        (group,) = await until(lambda: events(approver, "approval.group.requested"))
        singles = events(approver, "plugin.approval.requested")
        ids = [single["id"] for single in singles]
        assert [member["id"] for member in group["members"]] == ids
        assert [member["input"] for member in group["members"]] == [
            {"word": word} for word in "abcd"
        ]
        assert {single["groupId"] for single in singles} == {group["id"]}
        assert (group["count"], group["pending"], group["runId"]) == (4, 4, run["runId"])
        assert (await it.call("approval.group.list", approver))["groups"] == [group]
        assert events(reader, "approval.group.requested") == []

        # A client that knows single questions answers one; another answers the rest.
        await it.call("plugin.approval.resolve", approver, id=ids[0], decision="deny")
        resolve = "approval.group.resolve"
        some = await it.call(resolve, approver, id=group["id"], decisions={ids[1]: "allow-once"})
        assert (some["answered"], some["pending"]) == ([ids[1]], 2)
        page = await it.call("approval.group.get", approver, id=group["id"], first=3)
        (last,) = page["members"]
        assert (page["first"], last["id"], last["settled"]) == (3, ids[3], False)
        rest = await it.call(resolve, approver, id=group["id"], decision="allow-once")
        assert (rest["answered"], rest["pending"]) == (ids[2:], 0)
        said = await said_by(it, run["runId"])
        await until(lambda: events(approver, "approval.group.resolved"))
        assert len(events(approver, "plugin.approval.resolved")) == 4
        with pytest.raises(Refused, match="no longer pending"):
            await it.call(resolve, approver, id=group["id"], decision="deny")
        assert (await it.call("approval.group.list", approver))["groups"] == []
    said_words = [{"word": word} for word in "bcd"]
    assert json.loads(said) == ["not_approved", *said_words]


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, "INVALID_REQUEST"),
        ({"decision": "deny", "decisions": {"x": "deny"}}, "INVALID_REQUEST"),
        ({"decision": "perhaps"}, "INVALID_REQUEST"),
        ({"decisions": {"ap_0000000000000000": "allow-once"}}, "INVALID_REQUEST"),
        ({"decisions": {"x": {"y": 1}}}, "INVALID_REQUEST"),
        ({"id": "gr_0000000000000000", "decision": "deny"}, "NOT_FOUND"),
    ],
)
async def test_a_wrong_answer_to_a_group_answers_nothing(
    tmp_path: Path, given: JsonObject, code: str
) -> None:
    rules = {"codeMode": True, "approve": None}
    async with inside(tmp_path, [program(LOOP), tells], tools=[echo()], rules=rules) as it:
        approver, writer = it.client("operator.approvals"), it.client("operator.write")
        await it.call("agent", message="go")
        (group,) = await until(lambda: events(approver, "approval.group.requested"))
        with pytest.raises(Refused) as refused:
            await it.call("approval.group.resolve", approver, **{"id": group["id"], **given})
        assert refused.value.code == code
        with pytest.raises(Refused):
            await it.call("approval.group.resolve", writer, id=group["id"], decision="allow-once")
        assert len(it.gateway.approvals.pending()) == 4


@pytest.mark.covers("N-5")
@pytest.mark.parametrize(
    ("code", "tool_id"), [(ECHO, "openclaw:core:echo"), (SHELL, EXEC_ID)], ids=["tool", "shell"]
)
@pytest.mark.parametrize("decision", ["allow-once", "deny"])
async def test_a_call_that_may_change_something_is_asked_about_by_default(
    tmp_path: Path, code: str, tool_id: str, decision: str
) -> None:
    """As at a terminal without a gateway, with the same words."""
    script = [program(code), tells, tells]
    rules = {"codeMode": True, "approve": None}
    async with inside(tmp_path, script, tools=[echo()], rules=rules) as it:
        run = await it.call("agent", message="go")
        await until(lambda: it.gateway.approvals.pending())
        (question,) = it.gateway.approvals.pending()
        there = make_approvals("ask", later=True)
        local = there.question(_tool(it, tool_id), question.input, question.run, ())
        assert local is not None
        assert (question.title, question.tool_id) == (local.title, tool_id)
        await it.call("exec.approval.resolve", id=question.id, decision=decision)
        said = await said_by(it, run["runId"])
    assert ("not approved" in said) is (decision == "deny")
    answer = said.partition(" (line ")[0]  # without the line of the program that made the call
    assert ("tea" in answer or "42" in answer) is (decision == "allow-once")


async def said_by(it: Inside, run_id: str) -> str:
    """What a run said last."""
    with anyio.fail_after(10):
        return str((await it.gateway.host.runtime.result(run_id)).payloads[-1]["text"])


def _tool(it: Inside, tool_id: str) -> Tool:
    found = {tool.id: tool for tool in it.gateway.host.setup.tools}
    return found.get(tool_id) or Tool("exec", "", ANY, echo().execute, effect="write")


@pytest.mark.covers("N-5")
async def test_what_only_reads_is_not_asked_about(tmp_path: Path) -> None:
    script = [program(ECHO), tells]
    rules = {"codeMode": True, "approve": "ask"}
    async with inside(tmp_path, script, tools=[echo(effect="read")], rules=rules) as it:
        run = await it.call("agent", message="go")
        assert "tea" in await said_by(it, run["runId"])


@pytest.mark.covers("N-5")
async def test_an_agent_has_its_own_rule_and_a_reload_changes_it(tmp_path: Path) -> None:
    agents = {"list": [{"id": "main"}, {"id": "worker", "tools": {"approve": "always"}}]}
    async with inside(tmp_path, tools=[echo()], rules={"approve": "never"}, agents=agents) as it:
        mine = await it.call("tools.invoke", name="echo", agentId="main")
        theirs = await it.call("tools.invoke", name="echo", agentId="worker")
        assert (mine["ok"], theirs["ok"]) == (False, True)
        assert "not approved" in mine["error"]["message"]
        it.configure(tools={"approve": "always"}, agents=agents)
        await it.call("config.reload")
        assert (await it.call("tools.invoke", name="echo", agentId="main"))["ok"]


@pytest.mark.covers("N-5")
async def test_never_holds_for_what_was_allowed_for_always_and_is_told_to_who_asked(
    tmp_path: Path,
) -> None:
    async with inside(tmp_path, tools=[echo()], rules={"approve": "ask"}) as it:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(it.call, "tools.invoke", name="echo"))
            await until(lambda: it.gateway.approvals.pending())
            (question,) = it.gateway.approvals.pending()
            await it.call("exec.approval.resolve", id=question.id, decision="allow-always")
        it.configure(tools={"approve": "never"})
        await it.call("config.reload")
        denied = await it.call("tools.invoke", name="echo")
        assert "not approved" in denied["error"]["message"]
        put = await it.call("exec.approval.request", command="true")
        decided = await it.call("exec.approval.waitDecision", id=put["id"])
        assert decided["decision"] == "deny"
