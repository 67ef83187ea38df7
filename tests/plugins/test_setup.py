"""The plugins that a configuration means, and what a check finds wrong with them."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.plugin_material import QUIET, plugin, skill

from clawmode.catalog.namespaces import NamespaceRegistry
from clawmode.config.resolve import read
from clawmode.plugins.check import reports, try_out
from clawmode.plugins.loader import Plugins
from clawmode.plugins.manifest import PluginError
from clawmode.plugins.setup import open_plugins
from clawmode.tools.hooks import Hooks


def opened(state: Path, **section: Any) -> Plugins:
    found = read({"plugins": section})
    assert found.errors == []
    return open_plugins(found.section, state)


# ---- What a configuration means ----


def test_plugins_are_those_of_the_paths_and_of_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    plugin(tmp_path / "mine" / "one", name="one")
    plugin(tmp_path / "state" / "plugins" / "two", name="two")
    plugins = opened(tmp_path / "state", load={"paths": ["~/mine"]})
    assert [(view.id, view.loaded) for view in plugins.views] == [("one", True), ("two", True)]


def test_those_of_the_configuration_win_over_installed_ones(tmp_path: Path) -> None:
    plugin(tmp_path / "mine", version="2.0")
    plugin(tmp_path / "state" / "plugins" / "garden")
    (view,) = opened(tmp_path / "state", load={"paths": [str(tmp_path / "mine")]}).views
    assert view.version == "2.0"


def test_entries_are_their_settings(tmp_path: Path) -> None:
    code = "def register(api): assert api.config == {'size': 3}"
    plugin(tmp_path / "plugins" / "garden", code)
    plugin(tmp_path / "plugins" / "other", "1 / 0", name="other")
    entries = {"garden": {"config": {"size": 3}}, "other": {"enabled": False}}
    garden, other = opened(tmp_path, entries=entries).views
    assert garden.loaded
    assert (other.enabled, other.problem) == (False, None)


def test_switched_off_none_is_loaded(tmp_path: Path) -> None:
    plugin(tmp_path / "plugins" / "garden", "1 / 0")
    (view,) = opened(tmp_path, enabled=False).views
    assert (view.enabled, view.loaded, view.problem) == (False, False, None)


def test_hooks_and_namespaces_go_where_they_are_wanted(tmp_path: Path) -> None:
    code = "def hook(event): pass\ndef register(api): api.hook('agent_end', hook)"
    plugin(tmp_path / "plugins" / "garden", code)
    hooks, namespaces = Hooks(), NamespaceRegistry()
    plugins = open_plugins(read({}).section, tmp_path, hooks=hooks, namespaces=namespaces)
    assert hooks.has("agent_end")
    assert plugins.namespaces is namespaces


def test_describing_runs_no_code(tmp_path: Path) -> None:
    plugin(tmp_path / "plugins" / "garden", f"open({str(tmp_path / 'ran')!r}, 'w')")
    found = open_plugins(read({}).section, tmp_path, load=False).find()
    assert [each.manifest.id for each in found] == ["garden"]
    assert not (tmp_path / "ran").exists()


# ---- Checking ----

FAULTY = """
from clawmode import Tool
from clawmode.catalog.namespaces import NamespaceRegistration, namespace_tool
def fail(context): raise ValueError("no scope")
def register(api):
    api.tool(Tool("dig", "Dig.", {"type": "nonsense"}, lambda given, context: None))
    for name, tools, scope in (
        ("Unseen", ("water",), lambda context: {}), ("Broken", ("dig",), fail),
    ):
        api.namespace(NamespaceRegistration(
            id=name.lower(), global_name=name, description="x", required_tool_names=tools,
            create_scope=scope,
        ))
"""


def test_a_check_tells_all_that_is_wrong(tmp_path: Path) -> None:
    promised = {"tools": ["dig", "rake"], "hooks": ["agent_end"], "skills": ["skills", "empty"]}
    folder = plugin(tmp_path / "garden", FAULTY, **promised)
    skill(folder / "skills" / "a", description="")
    (folder / "empty").mkdir()
    found = try_out(folder, None)
    assert found.view.loaded
    text = "\n".join(found.faults)
    for part in (
        "'rake'",
        "'agent_end'",
        "'dig'",
        "'unseen'",
        "'broken'",
        "`description` is missing",
    ):
        assert part in text
    assert len(found.faults) == 6


def test_a_folder_of_skills_has_some(tmp_path: Path) -> None:
    folder = plugin(tmp_path / "garden", skills=["skills"])
    (folder / "skills").mkdir()
    assert "no skill in skills" in try_out(folder, None).faults[0]
    skill(folder / "skills" / "a")
    assert (try_out(folder, None).faults, try_out(folder, None).skills) == ([], ["pruning"])


def test_trying_out_leaves_modules_as_they_were(tmp_path: Path) -> None:
    folder = plugin(tmp_path / "garden", QUIET, name="only-tried")
    assert try_out(folder, None).faults == []
    assert [name for name in sys.modules if "only_tried" in name] == []


def test_a_check_is_of_all_of_one_or_of_a_folder(tmp_path: Path) -> None:
    plugin(tmp_path / "plugins" / "one", name="one")
    plugin(tmp_path / "plugins" / "two", "1 / 0", name="two")
    folder = plugin(tmp_path / "three", "def register(api): assert api.config", name="three")
    plugins = opened(tmp_path)
    both = reports(plugins, "", {})
    assert [(each.view.id, len(each.faults)) for each in both] == [("one", 0), ("two", 1)]
    assert [each.view.id for each in reports(plugins, "two", {})] == ["two"]
    (three,) = reports(plugins, str(folder), {"three": {"config": {"a": 1}}})
    assert three.faults == []
    (fault,) = reports(plugins, str(folder), {})[0].faults
    assert fault.startswith("AssertionError")
    (tmp_path / "nothing").mkdir()
    assert reports(plugins, str(tmp_path / "nothing"), {})[0].faults
    for name in ("nowhere", f"{tmp_path}/nowhere"):
        with pytest.raises(PluginError):
            reports(plugins, name, {})
