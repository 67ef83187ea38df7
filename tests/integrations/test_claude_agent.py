"""The adapter for the Claude Agent SDK, with a Claude Code that plays turns, or the real one."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    HookMatcher,
    PermissionResultAllow,
    PermissionResultDeny,
    create_sdk_mcp_server,
    tool,
)
from tests.support.adapters import FAN_OUT, SDK_SERVER, SEND, SEND_BOTH, check_versions, run_step
from tests.support.claude_driver import Claude, ending, real_claude, results

from clawmode import Pool
from clawmode.exceptions import ConfigurationError
from clawmode.integrations.claude_agent import ClawMode
from clawmode.integrations.records import Answer

pytestmark = pytest.mark.anyio


CAUGHT = "try { return await tools.%s } catch (error) { return error.message }"
EXEC, WAIT = "mcp__clawmode__exec", "mcp__clawmode__wait"


def execs(*sources: str) -> list[tuple[str, Any]]:
    return [(EXEC, {"code": each}) for each in sources]


@dataclass
class Desk:
    """A server with tools, what they have done, and Claude Code that calls them."""

    claude: Claude
    clawmode: ClawMode = field(init=False)
    sent: list[str] = field(default_factory=list[str])

    async def value(self, source: str, **given: Any) -> Any:
        """Runs a program that asks nobody. Returns its value, or the failed result."""
        messages = await self.claude.run(self.clawmode.options(**given), execs(source), "done")
        [(text, is_error)] = results(messages)
        made = json.loads(text)
        assert is_error == (made["status"] == "failed")
        return made["value"] if made["status"] == "completed" else made

    async def ask(self, source: str, session: str = "main") -> tuple[Any, str]:
        """Runs a program until Claude Code stops. Returns its questions, and the id to resume."""
        turns = [execs(source), lambda last: [(WAIT, {"runId": json.loads(last)["runId"]})]]
        options = self.clawmode.options(session=session)
        end = ending(await self.claude.run(options, *turns))
        assert end.deferred_tool_use is not None
        return await self.clawmode.asked(end.deferred_tool_use, session=session), end.session_id

    async def finish(self, session: str, answers: dict[str, Answer]) -> Any:
        options = self.clawmode.options(resume=session, answers=answers)
        return json.loads(results(await self.claude.run(options, "done", prompt="Go on."))[0][0])


@asynccontextmanager
async def desk(pool: Pool, claude: Claude, *tools: Any, **given: Any) -> AsyncIterator[Desk]:
    @tool("add", "Add two numbers.", {"a": int, "b": int})
    async def add(args: Any) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": str(args["a"] + args["b"])}]}

    @tool("send", "Send a mail.", {"to": str})
    async def send(args: Any) -> dict[str, Any]:
        it.sent.append(args["to"])
        return {"content": [{"type": "text", "text": f"sent to {args['to']}"}]}

    it = Desk(claude)
    server = create_sdk_mcp_server("desk", tools=[add, send, *tools])
    options: dict[str, Any] = given.pop("options", {})
    options = {"allowed_tools": ["mcp__desk__add"], **options}
    servers: dict[str, Any] = {"desk": server, **options.pop("mcp_servers", {})}
    made = ClaudeAgentOptions(mcp_servers=servers, **options)
    it.clawmode = ClawMode(made, pool=pool, **given)
    try:
        yield it
    finally:
        await it.clawmode.aclose()


@pytest.fixture(params=["scripted", pytest.param("real", marks=pytest.mark.ordeal)])
def claude(request: pytest.FixtureRequest, tmp_path: Path) -> Claude:
    return Claude(tmp_path, real_claude() if request.param == "real" else None)


# ---- Nested calls ----


@pytest.mark.hostile
async def test_options_of_one_run_do_not_change_the_rules_of_nested_calls(pool: Pool) -> None:
    made = ClawMode(pool=pool)
    assert made.options(max_turns=3).max_turns == 3
    for name in ("disallowed_tools", "hooks", "mcp_servers", "permission_mode"):
        change: dict[str, Any] = {name: None}
        with pytest.raises(ConfigurationError, match=name):
            made.options(**change)


@pytest.mark.covers("FW-31")
async def test_a_program_fans_out_over_the_tools_of_the_servers(pool: Pool, claude: Claude) -> None:
    async with desk(pool, claude) as it:
        assert await it.value(FAN_OUT) == [str(i + 1) for i in range(12)]
        assert sorted(claude.listed) == [EXEC, WAIT]
        assert "tools.add" in claude.listed[EXEC]["description"]


@pytest.mark.covers("FW-31")
async def test_hooks_of_the_options_see_and_decide_about_nested_calls(
    pool: Pool, claude: Claude
) -> None:
    events: list[tuple[str, str]] = []

    async def note(given: Any, call_id: str | None, context: Any) -> Any:
        events.append((given["hook_event_name"], given["tool_name"]))
        return dict[str, Any]()

    async def decide(given: Any, call_id: str | None, context: Any) -> Any:
        to = given["tool_input"]["to"]
        decision = {"Eve": "deny", "Zoe": "ask"}.get(to, "allow")
        told: dict[str, Any] = {
            "permissionDecision": decision,
            "permissionDecisionReason": f"not to {to}",
        }
        if to == "Bob":
            told["updatedInput"] = {"to": "Rob"}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **told}}

    hooks = {
        "PreToolUse": [HookMatcher("mcp__desk__send", [decide]), HookMatcher(None, [note])],
        "PostToolUse": [HookMatcher("mcp__desk__.*", [note])],
    }
    async with desk(pool, claude, options={"hooks": hooks}) as it:
        assert await it.value(SEND) == "sent to Ann"
        assert await it.value(SEND.replace("Ann", "Bob")) == "sent to Rob"
        assert "not to Eve" in await it.value(CAUGHT % "send({to: 'Eve'})")
        await it.value("return await tools.add({a: 1, b: 2})")
        asked, _ = await it.ask(SEND.replace("Ann", "Zoe"))
        assert [each.input for each in asked] == [{"to": "Zoe"}]
    nested = [each for each in events if "clawmode" not in each[1]]
    assert nested.count(("PostToolUse", "mcp__desk__send")) == 2
    assert nested.count(("PreToolUse", "mcp__desk__add")) == 1
    assert ("PreToolUse", EXEC) in events
    assert it.sent == ["Ann", "Rob"]


async def test_a_program_catches_failures_and_the_model_reads_others(
    pool: Pool, claude: Claude
) -> None:
    @tool("fail", "Fail.", {})
    async def fail(args: Any) -> dict[str, Any]:
        raise ValueError("no mail")

    failures: list[str] = []

    async def note(given: Any, call_id: str | None, context: Any) -> Any:
        failures.append(given["error"])
        return dict[str, Any]()

    given: dict[str, Any] = {"allowed_tools": ["mcp__desk"]}
    given["hooks"] = {"PostToolUseFailure": [HookMatcher("mcp__desk__fail", [note])]}
    async with desk(pool, claude, fail, options=given) as it:
        assert await it.value(CAUGHT % "fail()") == "no mail"
        uncaught = await it.value("return await tools.fail()")
        assert (uncaught["status"], "no mail" in uncaught["error"]) == ("failed", True)
        wrong = await it.value(CAUGHT % "add({a: 'x', b: 1})")
        assert "a" in wrong
    assert failures == ["no mail", "no mail"]


@pytest.mark.hostile
async def test_odd_results_and_names_reach_programs(pool: Pool, claude: Claude) -> None:
    @tool("picture", "Paint.", {})
    async def picture(args: Any) -> dict[str, Any]:
        return {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}

    def named(name: str) -> Any:
        @tool(name, "Say who you are.", {})
        async def run(args: Any) -> dict[str, Any]:
            return {"content": [{"type": "text", "text": name}]}

        return run

    names = ["exec", "wait", "a-b", "class"]
    tools = [picture, *map(named, names)]
    async with desk(pool, claude, *tools, options={"allowed_tools": ["mcp__desk__*"]}) as it:
        [image] = await it.value("return await tools.picture()")
        assert (image["data"], image["mimeType"]) == ("AAAA", "image/png")
        source = "return Promise.all(['exec', 'wait', 'a-b', 'class'].map(n => tools.call(n, {})))"
        assert await it.value(source) == names


async def test_two_servers_with_one_name_for_a_tool(pool: Pool, claude: Claude) -> None:
    @tool("add", "Join texts.", {"a": str, "b": str})
    async def join(args: Any) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": args["a"] + args["b"]}]}

    other = create_sdk_mcp_server("texts", tools=[join])
    given = {"mcp_servers": {"texts": other}, "allowed_tools": ["mcp__desk", "mcp__texts"]}
    async with desk(pool, claude, options=given) as it:
        source = (
            "return [await tools.desk_add({a: 1, b: 2}), await tools.texts_add({a: 'x', b: 'y'})]"
        )
        assert await it.value(source) == ["3", "xy"]


async def test_external_servers_move_behind_and_direct_ones_stay(
    pool: Pool, claude: Claude
) -> None:
    external: Any = {"type": "stdio", "command": sys.executable, "args": [str(SDK_SERVER), "stdio"]}
    given = {"mcp_servers": {"sdk": external}, "allowed_tools": ["mcp__sdk__add"]}
    async with desk(pool, claude, options=given, direct=["desk"]) as it:
        source = "return (await MCP.sdk.add({a: 1, b: 2})).structuredContent.result"
        assert await it.value(source) == 3
        assert sorted(claude.listed) == [EXEC, WAIT, "mcp__desk__add", "mcp__desk__send"]
        asked, _ = await it.ask("return await MCP.sdk.fail()")
        assert [(each.tool, each.title) for each in asked] == [("fail", "Run mcp__sdk__fail?")]
    with pytest.raises(ConfigurationError, match="pass a dict"):
        ClawMode(ClaudeAgentOptions(mcp_servers="servers.json"))
    with pytest.raises(ConfigurationError, match="all here"):
        ClawMode(ClaudeAgentOptions(mcp_servers={"sdk": external}), mcp_servers={"sdk": external})


# ---- Approvals ----


@pytest.mark.covers("FW-1", "FW-31")
async def test_an_approval_is_given_after_the_process_was_killed(tmp_path: Path) -> None:
    shown = await run_step("claude_agent_program", tmp_path, "ask", kill=True)
    assert shown.strip() == "send {'to': 'Ann'}"
    assert (tmp_path / "effects").read_text() == "before\n"
    done = await run_step("claude_agent_program", tmp_path, "answer")
    assert json.loads(done) == {"status": "completed", "value": "sent to Ann"}
    assert (tmp_path / "effects").read_text() == "before\nsent to Ann\nafter\n"


@pytest.mark.covers("FW-2", "FW-31")
async def test_wait_is_deferred_until_the_nested_calls_have_answers(
    pool: Pool, claude: Claude
) -> None:
    async with desk(pool, claude) as it:
        asked, session = await it.ask(SEND_BOTH)
        assert sorted(str(each.input["to"]) for each in asked) == ["Ann", "Bob"]
        assert it.sent == []
        answers = {each.id: Answer(each.input["to"] == "Ann", "Bob is away") for each in asked}
        first, second = (await it.finish(session, answers))["value"]
        assert (first["value"], second["status"], it.sent) == ("sent to Ann", "rejected", ["Ann"])
        assert "Bob is away" in json.dumps(second)


async def test_can_use_tool_is_asked_about_nested_calls(pool: Pool, claude: Claude) -> None:
    seen: list[tuple[str, Any]] = []

    async def can_use_tool(name: str, given: dict[str, Any], context: Any) -> Any:
        seen.append((name, given))
        if given["to"] == "Eve":
            return PermissionResultDeny(message="Eve gets no mail")
        changed = {"to": "Mallory"} if given["to"] == "Bob" else None
        return PermissionResultAllow(updated_input=changed)

    async with desk(pool, claude, options={"can_use_tool": can_use_tool}) as it:
        assert await it.value(SEND) == "sent to Ann"
        assert "Eve gets no mail" in await it.value(CAUGHT % "send({to: 'Eve'})")
        assert "changed the input" in await it.value(CAUGHT % "send({to: 'Bob'})")
        assert await it.value("return await tools.add({a: 1, b: 2})") == "3"
    assert seen == [("mcp__desk__send", {"to": to}) for to in ("Ann", "Eve", "Bob")]
    assert it.sent == ["Ann"]


@pytest.mark.hostile
async def test_rules_of_the_options_hold_for_nested_calls(pool: Pool, tmp_path: Path) -> None:
    given: dict[str, Any] = {"permission_mode": "bypassPermissions"}
    given["disallowed_tools"] = ["mcp__desk__send"]
    # Claude Code refuses this mode to root, as which tests may run.
    async with desk(pool, Claude(tmp_path), options=given) as it:
        assert "disallowed_tools" in await it.value(CAUGHT % "send({to: 'Ann'})")
        assert await it.value("return await tools.add({a: 1, b: 2})") == "3"
        assert it.sent == []


# ---- Runs ----


@pytest.mark.covers("FW-3")
async def test_two_programs_run_at_once_and_sessions_do_not_see_each_other(
    pool: Pool, claude: Claude
) -> None:
    async with desk(pool, claude) as it:
        messages = await claude.run(it.clawmode.options(), execs(FAN_OUT, "return 1"), "done")
        assert [json.loads(text)["status"] for text, _ in results(messages)] == ["completed"] * 2
        asked, _ = await it.ask(SEND, session="ann")
        program = asked[0].id.partition(":")[0]
        answers = {asked[0].id: Answer(True)}
        options = it.clawmode.options(session="bob", answers=answers)
        messages = await claude.run(options, [(WAIT, {"runId": program})], "done")
        assert (results(messages)[0][1], it.sent) == (True, [])


@pytest.mark.covers("FW-3")
async def test_a_cancelled_run_ends_its_program(pool: Pool, tmp_path: Path) -> None:
    @tool("hang", "Hang.", {})
    async def hang(args: Any) -> dict[str, Any]:
        started.set()
        await asyncio.Event().wait()
        return dict[str, Any]()

    started = asyncio.Event()
    allowed = {"allowed_tools": ["mcp__desk"]}
    async with desk(pool, Claude(tmp_path), hang, options=allowed) as it:
        running = asyncio.create_task(it.value(f"await tools.hang(); {SEND}"))
        await asyncio.wait_for(started.wait(), 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        session = await it.clawmode.open("main")
        assert (session.code_mode.cells(), it.sent) == ({}, [])


@pytest.mark.covers("FW-4")
def test_a_version_that_does_not_fit_is_refused() -> None:
    check_versions(
        "claude_agent", r"claude-agent-sdk >=0.2.*<0.3.*\[claude-agent\]", "0.2.1", "0.3.0", None
    )
