"""Whether code mode activates: the page's steps, in its order."""

import pytest

from clawmode import CodeModeConfig, Policy, Tool
from clawmode.agent.toolbox import activate
from clawmode.catalog.catalog import Catalog
from clawmode.catalog.controls import EXEC, WAIT
from clawmode.config import resolve as settings
from clawmode.config.tools import ToolSettings
from clawmode.exceptions import ConfigurationError
from clawmode.tools.tool import ToolSource
from clawmode.types import JsonValue

ON = ToolSettings(code_mode=CodeModeConfig(enabled=True))


def tool(name: str, source: ToolSource = "openclaw", owner: str = "") -> Tool:
    return Tool(
        name, "", {"type": "object"}, lambda given, context: None, source=source, owner=owner
    )


CORE = [tool("read"), tool("exec")]
PLUGIN = [tool("browse", "plugin", "browser")]
MCP = [tool("create_issue", "mcp", "github")]
CLIENT = [tool("select_file", "client", "app")]


@pytest.mark.covers("SF-1", "SF-2", "CM-V3")
def test_an_active_run_shows_exec_and_wait_and_catalogs_the_rest() -> None:
    surface = activate(ON, Policy(), (*CORE, *PLUGIN, *MCP, *CLIENT))
    assert surface.visible == (EXEC, WAIT)
    assert surface.tools == (*CORE, *PLUGIN, *MCP, *CLIENT)


@pytest.mark.covers("CM-V1", "CM-V2")
@pytest.mark.parametrize("setting", [None, False, {}, {"timeoutMs": 5000}, {"enabled": False}])
def test_a_run_without_it_shows_what_it_always_did(setting: JsonValue) -> None:
    data: dict[str, JsonValue] = {} if setting is None else {"tools": {"codeMode": setting}}
    config = settings.tools(settings.read(data).unwrap())
    surface = activate(config, Policy(), (*CORE, *PLUGIN))
    assert (surface.code_mode, surface.visible) == (False, (*CORE, *PLUGIN))


@pytest.mark.covers("SF-1")
def test_policy_comes_before_activation() -> None:
    policy = Policy.from_config({"deny": ["exec", "browser"]})
    surface = activate(ON, policy, (*CORE, *PLUGIN))
    assert [each.name for each in surface.tools] == ["read"]
    assert surface.visible == (EXEC, WAIT), "a denied shell is not code mode's own `exec`"


@pytest.mark.covers("SF-2", "CM-V4")
def test_a_run_without_tools_does_not_activate() -> None:
    nothing = Policy.from_config({"deny": ["*"]})
    empty = Policy.from_config({"allow": []})
    surfaces = [
        activate(ON, Policy(), CORE, without_tools=True),
        activate(ON, nothing, CORE),
        activate(ON, empty, CORE),
        activate(ON, Policy(), []),
    ]
    assert [(surface.code_mode, surface.visible) for surface in surfaces] == [(False, ())] * 4


@pytest.mark.covers("SF-3", "CA-6")
def test_code_modes_own_tools_are_known_by_identity() -> None:
    surface = activate(ON, Policy(), [*CORE, EXEC, WAIT, tool("tool_search")])
    assert [each.id for each in Catalog(surface.tools).entries] == [
        "openclaw:core:exec",
        "openclaw:core:read",
    ]
    assert len(Catalog([EXEC, WAIT, tool("wait")])) == 1


@pytest.mark.covers("CF-6")
@pytest.mark.parametrize("setting", ["on", {"enabled": "yes"}, {"enabled": True, "runtime": "v8"}])
def test_a_setting_that_cannot_be_meant_activates_nothing(setting: JsonValue) -> None:
    with pytest.raises(ConfigurationError):
        settings.read({"tools": {"codeMode": setting}}).unwrap()
