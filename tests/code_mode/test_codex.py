"""The dialect of Codex: freeform `exec`, `wait` with its own arguments, and names of MCP tools."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from tests.support.mcp_driver import listed, raw
from tests.support.waiting import SlowTools, undisturbed_time

from clawmode import CodeMode, ConfigurationError, McpServers, Pool, read_servers, tool

pytestmark = pytest.mark.anyio

CODEX = {"dialect": "codex"}
TOOL = {"name": "list-issues", "inputSchema": {"type": "object"}}


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@asynccontextmanager
async def opened(pool: Pool, config: Any = None, **options: Any) -> AsyncIterator[CodeMode]:
    async with CodeMode(config=config or CODEX, pool=pool, **options) as code_mode:
        yield code_mode


# ---- Definitions ----


@pytest.mark.covers("AK-7")
async def test_without_the_switch_nothing_of_the_dialect_exists(pool: Pool) -> None:
    servers = {"raw": raw()}
    async with opened(pool, {"timeoutMs": 5000}, tools=[add], mcp_servers=servers) as code_mode:
        definitions: Any = code_mode.definitions("openai-responses")
        assert [each["type"] for each in definitions] == ["function", "function"]
        assert "cell_id" not in json.dumps(definitions)
        assert "mcp__" not in json.dumps(definitions)
        result: Any = await code_mode.call("exec", "return 1")
        assert (result["status"], result["code"]) == ("failed", "invalid_input")
        result = await code_mode.call("exec", {"code": "return typeof tools.mcp__raw__echo"})
        assert result["value"] == "undefined"
        waiting = await code_mode.call("exec", {"code": "await yield_control()"})
        result = await code_mode.call("wait", {"cell_id": waiting["runId"]})
        assert result["code"] == "invalid_input"
    with pytest.raises(ConfigurationError, match="dialect"):
        CodeMode(config={"dialect": "cobol"})


@pytest.mark.covers("AK-7")
async def test_exec_is_a_freeform_tool_on_the_responses_wire_only(pool: Pool) -> None:
    async with opened(pool, tools=[add]) as code_mode:
        freeform, wait = [dict(each) for each in code_mode.definitions("openai-responses")]
        assert freeform.keys() == {"type", "name", "description", "format"}
        assert (freeform["type"], freeform["name"]) == ("custom", "exec")
        assert freeform["format"] == {"type": "text"}
        assert "tools.mcp__<server>__<tool>" in str(freeform["description"])
        parameters: Any = wait["parameters"]
        names = {"cell_id", "yield_time_ms", "max_tokens", "terminate"}
        assert (wait["type"], parameters["properties"].keys()) == ("function", names)
        assert parameters["required"] == ["cell_id"]
        for format in ("openai", "anthropic", "mcp"):
            made: Any = code_mode.definitions(format)
            assert '"code"' in json.dumps(made[0])
            assert "cell_id" in json.dumps(made[1])


# ---- exec ----


@pytest.mark.covers("AK-7")
@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("return await tools.add({ a: 1, b: 2 })", 3),
        ('// @exec: {"yield_time_ms": 9000}\nreturn 4', 4),
        ("{ let x = 5; return x }", 5),
        ('{"code": "return 6"}', 6),
        ({"code": "return 7"}, 7),
        ("// a comment\nreturn 8", 8),
        ("const n: number = 9;\nreturn n", 9),
    ],
)
async def test_exec_takes_the_source_as_it_is(pool: Pool, given: Any, value: int) -> None:
    async with opened(pool, tools=[add]) as code_mode:
        result = await code_mode.call("exec", given)
    assert (result["status"], result.get("value")) == ("completed", value)


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("exec", ""),
        ("exec", "// @exec: nonsense\nreturn 1"),
        ("exec", "// @exec: [1]\nreturn 1"),
        ("exec", '// @exec: {"yield_time_ms": -1}\nreturn 1'),
        ("exec", '// @exec: {"max_output_tokens": true}\nreturn 1'),
        ("exec", "// @exec: " + "[" * 100_000),
        ("wait", {"yield_time_ms": 1}),
        ("wait", {"cell_id": 5}),
        ("wait", {"cell_id": "cm_x", "terminate": "yes"}),
        ("wait", {"cell_id": "cm_x", "yield_time_ms": "1"}),
        ("wait", '{"cell_id": "cm_x", "max_tokens": NaN}'),
        ("wait", {"cell_id": "cm_" + "0" * 32, "terminate": True}),
    ],
)
async def test_wrong_input_is_a_failed_result(pool: Pool, name: str, given: Any) -> None:
    async with opened(pool) as code_mode:
        result = await code_mode.call(name, given)
    assert (result["status"], result["code"]) == ("failed", "invalid_input")


@pytest.mark.covers("AK-7")
async def test_limits_of_a_call_yield_early_and_cut_the_answer(pool: Pool) -> None:
    slow = SlowTools()
    async with opened(pool, tools=slow.tools) as code_mode:
        began = undisturbed_time()
        source = """// @exec: {"yield_time_ms": 100, "max_output_tokens": 10}
text("y".repeat(1000)); const x = await tools.slow({}); return [x, "z".repeat(900)]"""
        waiting: Any = await code_mode.call("exec", source)
        assert waiting["status"] == "waiting"
        assert undisturbed_time() - began < 5
        (item,) = waiting["output"]
        assert item["text"] == "y" * 40 + "… (960 more characters)"
        again: Any = await code_mode.call("wait", {"cell_id": waiting["runId"], "yield_time_ms": 0})
        assert again["status"] == "waiting"
        slow.answer.set()
        ended: Any = await code_mode.call("wait", {"cell_id": waiting["runId"], "max_tokens": 20})
        assert ended["status"] == "completed"
        assert len(json.dumps(ended["value"], ensure_ascii=False)) < 120


@pytest.mark.covers("AK-7")
async def test_terminate_ends_a_program_and_its_calls(pool: Pool) -> None:
    slow = SlowTools()
    async with opened(pool, tools=slow.tools) as code_mode:
        source = '// @exec: {"yield_time_ms": 100}\nawait tools.slow({})'
        waiting = await code_mode.call("exec", source)
        ended: Any = await code_mode.call("wait", {"cell_id": waiting["runId"], "terminate": True})
        assert (ended["status"], ended["code"]) == ("failed", "aborted")
        assert [call["state"] for call in ended["calls"]] == ["cancelled"]
        again = await code_mode.call("wait", {"runId": waiting["runId"]})
        assert again["status"] == "failed"


# ---- Names of MCP tools ----


@pytest.mark.covers("AK-7")
async def test_tools_of_mcp_servers_have_the_names_of_codex(pool: Pool) -> None:
    tools = [TOOL, TOOL | {"name": "a.b"}, TOOL | {"name": "a_b"}]
    servers = {"git-hub": listed(*tools), "raw": raw()}
    source = """const told = (error) => [error.code, error.toolId ?? null];
return [
  (await tools.mcp__git_hub__list_issues({})).structuredContent.tool,
  (await tools.mcp__raw__echo({ need: "x" })).structuredContent.got.need,
  (await tools["mcp__git-hub__list-issues"]({})).structuredContent.tool,
  await tools.mcp__git_hub__a_b({}).then((found) => found.structuredContent.tool),
  await tools.mcp__raw__nothing({}).catch(told),
  await tools.mcp__nobody__x({}).catch(told),
  typeof tools.nothing, Object.keys(tools).includes("mcp__raw__echo"),
]"""
    with anyio.fail_after(19):
        async with opened(pool, mcp_servers=servers) as code_mode:
            result: Any = await code_mode.call("exec", source)
            # Words of servers never reach the prompt, in this dialect either.
            assert "list-issues" not in json.dumps(code_mode.definitions("openai-responses"))
    assert result["status"] == "completed", result
    first, second, third, *rest = result["value"]
    assert (first, second, third) == ("list-issues", "x", "list-issues")
    # Two tools have the alias of `a_b`, and one of them has the name itself.
    unknown = ["unknown_tool", None]
    assert rest == ["a_b", unknown, unknown, "undefined", False]


@pytest.mark.covers("AK-7")
async def test_an_alias_waits_for_a_server_that_is_still_connecting(pool: Pool) -> None:
    servers = McpServers(read_servers({"git-hub": listed(TOOL)}).unwrap())
    async with servers:
        servers.begin()
        async with opened(pool, mcp_servers=servers) as code_mode:
            source = "return (await tools.mcp__git_hub__list_issues({})).structuredContent.tool"
            result = await code_mode.call("exec", source)
    assert result.get("value") == "list-issues", result
