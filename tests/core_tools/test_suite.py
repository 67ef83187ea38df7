"""The core tools beside code mode: hidden from the model, called by programs, ruled by policy."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.waiting import is_alive, until

from clawmode import CodeMode, Pool
from clawmode.agent.toolbox import activate
from clawmode.code_mode.config import CodeModeConfig
from clawmode.config.tools import ToolSettings
from clawmode.core_tools.exec_approvals import ExecRules
from clawmode.core_tools.shell import ShellSettings
from clawmode.core_tools.suite import make_core_tools
from clawmode.tools.hooks import Hooks
from clawmode.tools.policy import Policy
from clawmode.tools.rules import GROUPS

pytestmark = pytest.mark.anyio

NAMES = ["read", "write", "edit", "apply_patch", "exec", "process", "web_fetch"]


async def run(code_mode: CodeMode, source: str) -> Any:
    with anyio.fail_after(15):
        result = await code_mode.exec(source)
        while result.status == "waiting":
            assert result.run_id is not None
            result = await code_mode.wait(result.run_id)
    assert result.status == "completed", result
    return result.value


async def test_the_tools_are_our_own_and_say_what_they_do(tmp_path: Path) -> None:
    async with make_core_tools(tmp_path) as suite:
        tools = suite.tools
    assert [tool.id for tool in tools] == [f"openclaw:core:{name}" for name in NAMES]
    assert [tool.effect for tool in tools] == ["read", *["write"] * 5, "read"]
    assert [tool.name for tool in tools if tool.idempotent] == ["read", "web_fetch"]
    for tool in tools:
        assert tool.description
        properties = tool.parameters["properties"]
        assert isinstance(properties, dict)
        assert all(isinstance(it, dict) and it.get("description") for it in properties.values())
        assert tool.parameters["additionalProperties"] is False


def test_the_groups_of_policies_name_them() -> None:
    assert set(NAMES) <= {*GROUPS["fs"], *GROUPS["runtime"], *GROUPS["web"]}


async def test_the_shell_is_hidden_from_the_model_and_called_by_its_id(
    tmp_path: Path, pool: Pool
) -> None:
    async with make_core_tools(tmp_path) as suite:
        surface = activate(
            ToolSettings(code_mode=CodeModeConfig(enabled=True)), Policy(), suite.tools
        )
        assert [tool.id for tool in surface.visible] == [
            "openclaw:code_mode:exec",
            "openclaw:code_mode:wait",
        ]
        async with CodeMode(tools=suite.tools, pool=pool) as code_mode:
            shown = code_mode.definitions()
            value = await run(
                code_mode,
                """await tools.write({path: "a.txt", content: "one\\ntwo\\n"})
const byId = await tools.call("openclaw:core:exec", {command: "wc -l < a.txt"})
const byName = await tools.exec({command: "exit 3"})
return [byId.output.trim(), byName.exitCode, (await tools.read({path: "a.txt"})).content]""",
            )
    assert value == ["2", 3, "one\ntwo\n"]
    assert len(shown) == 2
    assert "wc -l" not in json.dumps(shown)


async def test_a_shell_that_policy_denies_is_neither_seen_nor_called(
    tmp_path: Path, pool: Pool
) -> None:
    policy = Policy.from_config({"deny": ["exec"]})
    async with make_core_tools(tmp_path) as suite:
        async with CodeMode(tools=suite.tools, pool=pool, policy=policy) as code_mode:
            value = await run(
                code_mode,
                """const found = await tools.search("run a shell command")
let error
try { await tools.call("openclaw:core:exec", {command: "touch escaped"}) }
catch (caught) { error = caught.code }
return [ALL_TOOLS.map((t) => t.name), found.map((t) => t.name).includes("exec"),
  typeof tools.exec, error]""",
            )
    names, found, convenience, error = value
    assert "exec" not in names
    assert "read" in names
    assert (found, convenience, error) == (False, "undefined", "unknown_tool")
    assert not (tmp_path / "escaped").exists()


async def test_rules_of_commands_hold_for_programs_too(tmp_path: Path, pool: Pool) -> None:
    rules = ExecRules(security="allowlist")
    hooks = Hooks()
    async with make_core_tools(tmp_path, shell=ShellSettings(rules=rules)) as suite:
        suite.guard.install(hooks)
        async with CodeMode(tools=suite.tools, pool=pool, hooks=hooks) as code_mode:
            value = await run(
                code_mode,
                """const fine = await tools.exec({command: "wc -c"})
let error
try { await tools.exec({command: "touch escaped"}) } catch (caught) { error = caught.code }
return [fine.output.trim(), error]""",
            )
    assert value == ["0", "blocked"]
    assert not (tmp_path / "escaped").exists()


async def test_a_program_that_is_stopped_ends_its_command(tmp_path: Path, pool: Pool) -> None:
    path = tmp_path / "pid"
    source = 'return tools.exec({command: "echo $$ > pid; sleep 60", yieldMs: 60000})'
    async with make_core_tools(tmp_path) as suite:
        async with CodeMode(tools=suite.tools, pool=pool) as code_mode:
            with anyio.fail_after(15):
                result = await code_mode.exec(source, yield_ms=300)
                assert result.status == "waiting"
                await until(lambda: path.exists() and path.read_text("utf-8") != "")
                pid = int(path.read_text("utf-8"))
                assert is_alive(pid)
                await code_mode.end_run()
                await until(lambda: not is_alive(pid))
        assert suite.sessions.listed(code_mode.context) == []


async def test_input_that_does_not_fit_never_reaches_a_tool(tmp_path: Path, pool: Pool) -> None:
    async with make_core_tools(tmp_path) as suite:
        async with CodeMode(tools=suite.tools, pool=pool) as code_mode:
            value = await run(
                code_mode,
                """const codes = []
for (const [name, input] of [["read", {}], ["read", {path: 7}], ["write", {path: "a"}],
    ["exec", {command: ["ls"]}], ["process", {action: "dance"}],
    ["web_fetch", {url: "x", format: "y"}], ["read", {path: "a", extra: 1}]])
  try { await tools.call("openclaw:core:" + name, input); codes.push("") }
  catch (error) { codes.push(error.code) }
return codes""",
            )
    assert value == ["invalid_tool_input"] * 7
