"""Plugins: found, checked, loaded; what fails takes back all that it brought."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from clawmode.catalog.namespaces import NamespaceRegistry
from clawmode.plugins.loader import Plugins, PluginView
from clawmode.plugins.manifest import PluginError, read
from clawmode.tools.hooks import Hooks

GARDEN = '''
from clawmode import tool
from clawmode.catalog.namespaces import NamespaceRegistration, namespace_tool

@tool(effect="write")
async def water(plant: str) -> str:
    """Water a plant."""
    return plant

def seen(event):
    return None

LATE = []

def register(api):
    LATE.append(api)
    api.tool(water)
    api.hook("before_tool_call", seen, priority=3)
    api.namespace(NamespaceRegistration(
        id="garden", global_name="Garden", description="The garden.",
        required_tool_names=("water",),
        create_scope=lambda context: {"water": namespace_tool("water")},
    ))
'''


def plugin(folder: Path, code: str = GARDEN, **manifest: Any) -> Path:
    folder.mkdir(parents=True)
    written = {"id": folder.name, "version": "1.0", "entry": "main:register", **manifest}
    (folder / "clawmode.plugin.json").write_text(json.dumps(written))
    (folder / "main.py").write_text(code)
    return folder


def host(*paths: Path, **settings: Any) -> Plugins:
    return Plugins(paths, settings, hooks=Hooks(), namespaces=NamespaceRegistry(), installed=False)


def only(plugins: Plugins) -> PluginView:
    (view,) = plugins.load()
    return view


def assert_nothing_is_left(plugins: Plugins) -> None:
    assert plugins.tools == []
    assert not plugins.hooks.has("before_tool_call")
    assert plugins.namespaces.visible([]) == []
    assert plugins.skill_folders == []


def test_a_plugin_brings_its_tools_hooks_namespaces_and_skills(tmp_path: Path) -> None:
    folder = plugin(tmp_path / "garden", skills=["skills"])
    (folder / "skills").mkdir()
    plugins = host(tmp_path)
    view = only(plugins)
    assert (view.problem, view.loaded) == (None, True)
    (tool,) = plugins.tools
    assert tool.id == "plugin:garden:water"
    assert plugins.hooks.of("before_tool_call")[0].name == "garden:seen"
    assert [each.id for each in plugins.namespaces.visible(plugins.tools)] == ["garden"]
    assert plugins.skill_folders == [folder / "skills"]
    assert json.dumps(view.to_json())
    plugins.unload()
    assert_nothing_is_left(plugins)


FAILING = {
    "raises at the end": GARDEN + "    raise ValueError('no luck')\n",
    "exits": GARDEN + "    raise SystemExit(3)\n",
    "brings a tool twice": GARDEN + "    api.tool(water)\n",
    "names a hook that is none": GARDEN + "    api.hook('before_lunch', seen)\n",
    "does not parse": GARDEN + "    (",
    "imports what is not there": "import nothing_of_this_name\n" + GARDEN,
    "has no such function": GARDEN.replace("def register", "def other"),
}


@pytest.mark.parametrize("code", FAILING.values(), ids=FAILING.keys())
def test_what_fails_takes_back_all_that_it_brought(tmp_path: Path, code: str) -> None:
    plugin(tmp_path / "garden", code)
    plugin(tmp_path / "other", "def register(api): pass")
    plugins = host(tmp_path)
    garden, other = plugins.load()
    assert not garden.loaded
    assert garden.problem
    assert (garden.tools, garden.hooks, garden.namespaces) == ([], [], [])
    assert other.loaded
    assert_nothing_is_left(plugins)


def test_a_failure_is_reported_with_its_place_in_the_plugin(tmp_path: Path) -> None:
    folder = plugin(tmp_path / "garden", "import json\ndef register(api):\n    json.loads('{')\n")
    problem = only(host(folder)).problem or ""
    assert problem.startswith("JSONDecodeError: ")
    assert problem.endswith(" (main.py, line 3)")


def test_a_manifest_bounds_what_a_plugin_may_bring(tmp_path: Path) -> None:
    plugin(tmp_path / "garden", tools=["prune"])
    assert "does not list" in (only(host(tmp_path)).problem or "")
    plugin(tmp_path / "b" / "garden", hooks=[])
    assert "does not list" in (only(host(tmp_path / "b")).problem or "")
    plugin(tmp_path / "c" / "garden", namespaces=["orchard"])
    assert "does not list" in (only(host(tmp_path / "c")).problem or "")


def test_settings_switch_it_off_and_are_checked_against_its_schema(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    code = "def register(api): assert api.config == {'size': 3}"
    plugin(tmp_path / "garden", code, configSchema=schema)
    assert only(host(tmp_path, garden={"config": {"size": 3}})).loaded
    assert "size" in (only(host(tmp_path, garden={"config": {"size": "x"}})).problem or "")
    assert "missing" in (only(host(tmp_path)).problem or "")
    off = only(host(tmp_path, garden={"enabled": False}))
    assert (off.enabled, off.loaded, off.problem) == (False, False, None)


def test_one_that_is_configured_and_missing_is_told(tmp_path: Path) -> None:
    view = only(host(tmp_path, nowhere={"enabled": True}))
    assert (view.id, view.problem) == ("nowhere", "the plugin is configured, but was not found")


def test_two_plugins_may_have_modules_of_one_name(tmp_path: Path) -> None:
    for name in ("one", "two"):
        code = f"from clawmode import tool\n@tool\nasync def {name}() -> str:\n    '''x'''\n"
        plugin(tmp_path / name, code + f"def register(api): api.tool({name})\n")
    plugins = host(tmp_path)
    plugins.load()
    assert [tool.id for tool in plugins.tools] == ["plugin:one:one", "plugin:two:two"]


def test_the_modules_of_a_plugin_import_one_another(tmp_path: Path) -> None:
    for name, other in (("a-b", "one"), ("a_b", "two")):
        folder = plugin(
            tmp_path / name,
            "from .parts.shelf import NAME\ndef register(api): api.config['x'] = NAME",
            entry="code.main:register",
        )
        (folder / "code" / "parts").mkdir(parents=True)
        (folder / "main.py").rename(folder / "code" / "main.py")
        (folder / "code" / "parts" / "shelf.py").write_text(f"NAME = {other!r}")
    plugins = host(tmp_path)
    assert [view.problem for view in plugins.load()] == [None, None]
    names = [f"clawmode_plugin_{name}.code.parts.shelf" for name in ("a_b", "a__b")]
    assert [sys.modules[name].NAME for name in names] == ["one", "two"]


def test_an_entry_that_would_have_to_be_awaited_is_refused(tmp_path: Path) -> None:
    plugin(tmp_path / "garden", "async def register(api): pass")
    assert "not a plain (not async) function" in (only(host(tmp_path)).problem or "")


def test_a_module_that_is_not_there_is_named(tmp_path: Path) -> None:
    plugin(tmp_path / "garden", entry="other:register")
    assert only(host(tmp_path)).problem == "the plugin has no module 'other'"


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    view = only(host(tmp_path / "nowhere"))
    assert "No such file" in (view.problem or "")
    assert only(host(Path("a\0b"))).problem


def test_all_of_them_can_be_switched_off(tmp_path: Path) -> None:
    plugin(tmp_path / "garden")
    (view,) = Plugins([tmp_path], installed=False, enabled=False).load()
    assert (view.enabled, view.loaded, view.problem) == (False, False, None)


def test_nothing_can_be_brought_later(tmp_path: Path) -> None:
    plugin(tmp_path / "garden", "APIS = []\ndef register(api): APIS.append(api)")
    assert only(host(tmp_path)).loaded
    (api,) = sys.modules["clawmode_plugin_garden.main"].APIS
    with pytest.raises(PluginError, match="only while its entry function runs"):
        api.hook("agent_end", print)


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        ([], "expected an object"),
        ({}, "id: found nothing, expected lower-case letters"),
        ({"id": "../x", "entry": "a:b"}, "id: found .*, expected lower-case letters"),
        ({"id": "x", "entry": "a b"}, 'entry: found "a b", expected module:function'),
        ({"id": "x"}, "nothing to load"),
        ({"id": "x", "skills": ["../up"]}, "inside the folder of the plugin"),
        ({"id": "x", "skills": ["/etc"]}, "inside the folder of the plugin"),
        (
            {"id": "x", "entry": "a:b", "tols": []},
            "tols: unknown key; the nearest known one is tools",
        ),
        ({"id": "x", "entry": "a:b", "tools": [1]}, "tools.0.: found 1, expected a string"),
    ],
)
def test_a_manifest_that_cannot_be_meant_is_refused(manifest: Any, why: str) -> None:
    with pytest.raises(PluginError, match=why):
        read(manifest)


def test_all_mistakes_of_a_manifest_are_reported_at_once() -> None:
    with pytest.raises(PluginError) as caught:
        read({"id": 1, "entry": "x", "skills": "y", "configSchema": [], "tols": []})
    for part in ("id:", "entry:", "skills:", "configSchema:", "tols:"):
        assert part in str(caught.value)


def test_a_broken_manifest_is_reported_and_other_plugins_load(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "clawmode.plugin.json").write_text("{")
    plugin(tmp_path / "garden")
    plugins = host(tmp_path)
    bad, garden = plugins.load()
    assert "not valid JSON" in (bad.problem or "")
    assert garden.loaded
