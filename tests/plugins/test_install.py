"""Installing, updating and removing: who decides, in which order, and what a no leaves behind."""

import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.plugin_material import (
    MANIFEST,
    installer,
    left_in,
    plugin,
    skill,
    tarred,
    zipped,
)
from tests.support.waiting import until

from clawmode.config.resolve import read
from clawmode.plugins import replacing
from clawmode.plugins.install import Installer, remove, workshop
from clawmode.plugins.setup import open_plugins
from clawmode.plugins.staging import InstallRefused, RefusalCode

pytestmark = pytest.mark.anyio

TRACE = """
with open({trace!r}, "a") as file:
    file.write("code\\n")
def register(api): pass
"""


def version_in(folder: Path) -> str:
    return json.loads((folder / MANIFEST).read_text())["version"]


async def refused(made: Installer, source: Path) -> tuple[RefusalCode, str]:
    with pytest.raises(InstallRefused) as caught:
        await made.install(str(source))
    return caught.value.code, str(caught.value)


def removal(state: Path, name: str, **config: Any) -> tuple[RefusalCode, str]:
    configuration = read(config).section
    with pytest.raises(InstallRefused) as caught:
        remove(state, name, open_plugins(configuration, state, load=False))
    return caught.value.code, str(caught.value)


# ---- Installing ----


async def test_a_plugin_is_installed_from_a_folder_and_from_archives(tmp_path: Path) -> None:
    for number, source in enumerate(
        (
            plugin(tmp_path / "garden"),
            zipped(tmp_path / "garden.zip", {}),
            tarred(tmp_path / "garden.tar.gz"),
        )
    ):
        state = tmp_path / f"state{number}"
        done = await installer(state).install(str(source))
        assert (done.kind, done.name, done.version, done.replaced) == (
            "plugin",
            "garden",
            "1.0",
            None,
        )
        assert done.folder == state / "plugins" / "garden"
        assert left_in(state) == [f"plugins/garden/{MANIFEST}", "plugins/garden/main.py"]
        assert [view.loaded for view in installer(state).plugins.views] == [True]


async def test_a_skill_is_installed_where_agents_look_for_it(tmp_path: Path) -> None:
    done = await installer(tmp_path / "state").install(str(skill(tmp_path / "some-folder")))
    assert (done.kind, done.name) == ("skill", "pruning")
    assert left_in(tmp_path / "state") == ["skills/pruning/SKILL.md"]


async def test_a_source_is_a_path_without_links_for_those_who_decide(tmp_path: Path) -> None:
    plugin(tmp_path / "hidden" / "garden")
    (tmp_path / "shown").symlink_to(tmp_path / "hidden")
    rules: Any = {"default": "deny", "allow": [f"from:{tmp_path}/shown/*"]}
    made = installer(tmp_path / "state", security={"installPolicy": rules})
    assert (await refused(made, tmp_path / "shown" / "garden"))[0] == "policy"
    assert (await refused(made, tmp_path / "shown" / ".." / "hidden" / "garden"))[0] == "policy"


# ---- Who decides ----


def guard(answer: str, trace: Path) -> str:
    return (
        "import json, os, pathlib\n"
        "def look(event):\n"
        f"    with open({str(trace)!r}, 'a') as file: file.write('hook\\n')\n"
        "    assert os.path.exists(os.path.join(event.folder, 'clawmode.plugin.json'))\n"
        f"    return {answer}\n"
        "def register(api): api.hook('before_install', look)\n"
    )


@pytest.mark.covers("AL-41", "AL-47")
async def test_the_policy_decides_first_then_hooks_and_only_then_its_code_runs(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "trace"
    state = tmp_path / "state"
    plugin(state / "plugins" / "guard", guard("None", trace), name="guard")
    command = f"open({str(trace)!r}, 'a').write('policy\\n'); print('{{\"allow\": true}}')"
    policy: Any = {"installPolicy": {"command": [sys.executable, "-c", command]}}
    source = plugin(tmp_path / "garden", TRACE.format(trace=str(trace)))
    await installer(state, security=policy).install(str(source))
    assert trace.read_text().splitlines() == ["policy", "hook", "code"]


@pytest.mark.covers("AL-47")
async def test_what_the_operator_denies_reaches_neither_hooks_nor_code(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    state = tmp_path / "state"
    plugin(state / "plugins" / "guard", guard("{'block': False}", trace), name="guard")
    before = left_in(state)
    made = installer(state, security={"installPolicy": {"deny": ["plugin:garden"]}})
    code, text = await refused(made, plugin(tmp_path / "garden", TRACE.format(trace=str(trace))))
    assert code == "policy"
    assert "plugin:garden" in text
    assert not trace.exists()
    assert [each for each in left_in(state) if "__pycache__" not in each] == before


@pytest.mark.covers("AL-41", "AL-46")
@pytest.mark.parametrize(
    ("answers", "blocked"),
    [
        (["None"], False),
        (["{'block': False}"], False),
        (["{'block': True, 'blockReason': 'no roses'}"], True),
        (["{'block': True}", "{'block': False}"], True),
        (["{'block': False}", "{'block': True}"], True),
        (["1 / 0"], True),
        (["'yes'"], True),
    ],
)
async def test_a_block_of_a_hook_is_final(
    tmp_path: Path, answers: list[str], blocked: bool
) -> None:
    state, trace = tmp_path / "state", tmp_path / "trace"
    for number, answer in enumerate(answers):
        name = f"guard{number}"
        plugin(state / "plugins" / name, guard(answer, trace), name=name)
    code = TRACE.format(trace=str(tmp_path / "ran"))
    source = plugin(tmp_path / "garden", code)
    if blocked:
        assert (await refused(installer(state), source))[0] == "hook"
        assert not (tmp_path / "ran").exists()
        assert not (state / "plugins" / "garden").exists()
    else:
        await installer(state).install(str(source))
        assert (tmp_path / "ran").exists()


async def test_hooks_of_plugins_that_are_switched_off_have_no_say(tmp_path: Path) -> None:
    state = tmp_path / "state"
    code = guard("{'block': True}", tmp_path / "trace")
    plugin(state / "plugins" / "guard", code, name="guard")
    made = installer(state, plugins={"entries": {"guard": {"enabled": False}}})
    assert (await made.install(str(skill(tmp_path / "pruning")))).kind == "skill"


# ---- Trying out ----

FAILING = {
    "raises": "def register(api): raise ValueError('no luck')",
    "exits": "import sys; sys.exit(0)",
    "does not parse": "def register(api",
    "imports what is not there": "import nothing_of_this_name\ndef register(api): pass",
    "has no entry": "",
    "brings what it did not declare": (
        "def hook(event): pass\ndef register(api): api.hook('agent_end', hook)"
    ),
}


@pytest.mark.parametrize("code", FAILING.values(), ids=FAILING.keys())
async def test_what_does_not_load_is_not_installed(tmp_path: Path, code: str) -> None:
    source = plugin(tmp_path / "garden", code, hooks=[])
    found, text = await refused(installer(tmp_path / "state"), source)
    assert found == "does_not_load"
    assert "staging" not in text
    assert left_in(tmp_path / "state") == []


async def test_trying_out_takes_everything_back(tmp_path: Path) -> None:
    code = "def hook(event): pass\ndef register(api): api.hook('agent_end', hook)"
    made = installer(tmp_path / "state")
    await made.install(str(plugin(tmp_path / "orchard", code, name="new-orchard")))
    assert not made.plugins.hooks.has("agent_end")
    assert [name for name in sys.modules if "orchard" in name] == []


async def test_the_modules_of_the_version_that_runs_stay_its_own(tmp_path: Path) -> None:
    state = tmp_path / "state"
    plugin(state / "plugins" / "garden", "VERSION = 1\ndef register(api): pass")
    made = installer(state)
    await made.install(str(plugin(tmp_path / "new", "VERSION = 2\ndef register(api): pass")))
    assert sys.modules["clawmode_plugin_garden.main"].VERSION == 1


NAMESPACE = """
from clawmode import tool
from clawmode.catalog.namespaces import NamespaceRegistration, namespace_tool
@tool
async def water() -> str:
    "x"
    return ""
def register(api):
    api.tool(water)
    api.namespace(NamespaceRegistration(
        id="{id}", global_name="Garden", description="x", required_tool_names=("water",),
        create_scope=lambda context: {{"water": namespace_tool("water")}},
    ))
"""


async def test_a_namespace_that_another_plugin_has_is_found_before_it_is_installed(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    plugin(state / "plugins" / "old", NAMESPACE.format(id="old"), name="old")
    source = plugin(tmp_path / "garden", NAMESPACE.format(id="new"))
    code, text = await refused(installer(state), source)
    assert code == "does_not_load"
    assert "taken by plugin 'old'" in text
    again = plugin(tmp_path / "again", NAMESPACE.format(id="newer"), name="old")
    assert (await installer(state).install(str(again))).replaced == "1.0"


async def test_it_is_tried_out_with_its_settings(tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["size"]}
    source = plugin(tmp_path / "garden", configSchema=schema)
    code, text = await refused(installer(tmp_path / "state"), source)
    assert code == "does_not_load"
    assert "plugins.entries.garden.config" in text
    entries: Any = {"entries": {"garden": {"config": {"size": 3}}}}
    assert (await installer(tmp_path / "state", plugins=entries).install(str(source))).notes == ()


@pytest.mark.parametrize(
    "section", [{"enabled": False}, {"entries": {"garden": {"enabled": False}}}]
)
async def test_code_that_is_switched_off_is_not_tried_out(tmp_path: Path, section: Any) -> None:
    source = plugin(tmp_path / "garden", TRACE.format(trace=str(tmp_path / "ran")))
    done = await installer(tmp_path / "state", plugins=section).install(str(source))
    assert "not tried out" in done.notes[0]
    assert not (tmp_path / "ran").exists()


async def test_promises_that_are_not_kept_are_noted(tmp_path: Path) -> None:
    done = await installer(tmp_path / "state").install(str(plugin(tmp_path / "a", tools=["x"])))
    assert "the tool 'x'" in done.notes[0]


# ---- Updates ----


@pytest.mark.covers("AL-47")
async def test_an_update_replaces_all_of_the_old_version(tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = plugin(tmp_path / "one")
    (first / "old.py").write_text("")
    await installer(state).install(str(first))
    source = plugin(tmp_path / "two", version="2.0")
    done = await installer(state).install(str(source))
    assert (done.version, done.replaced) == ("2.0", "1.0")
    assert left_in(state) == [f"plugins/garden/{MANIFEST}", "plugins/garden/main.py"]


@pytest.mark.covers("AL-47")
async def test_an_update_that_is_refused_leaves_the_old_version(tmp_path: Path) -> None:
    state = tmp_path / "state"
    await installer(state).install(str(plugin(tmp_path / "one")))
    before = left_in(state)
    broken = plugin(tmp_path / "two", "1 / 0", version="2.0")
    good = plugin(tmp_path / "three", version="3.0")
    denied = installer(state, security={"installPolicy": {"deny": ["plugin:*"]}})
    assert (await refused(installer(state), broken))[0] == "does_not_load"
    assert (await refused(denied, good))[0] == "policy"
    (good / "link").symlink_to("/etc/passwd")
    assert (await refused(installer(state), good))[0] == "link"
    assert [each for each in left_in(state) if "__pycache__" not in each] == before
    assert version_in(state / "plugins" / "garden") == "1.0"


def fail_to_exchange(one: Path, other: Path) -> bool:
    return False


async def test_an_update_that_cannot_be_put_in_place_leaves_the_old_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    await installer(state).install(str(plugin(tmp_path / "one")))
    made = installer(state)
    rename = os.rename

    def stumble(source: Any, target: Any) -> None:
        if Path(source).parent.name == "staged":
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(replacing, "_exchange", fail_to_exchange)
    monkeypatch.setattr(os, "rename", stumble)
    code, text = await refused(made, plugin(tmp_path / "two", version="2.0"))
    assert (code, "No space left" in text) == ("failed", True)
    assert version_in(state / "plugins" / "garden") == "1.0"
    assert os.listdir(state / "staging") == [".lock"]


def test_where_folders_cannot_be_exchanged_two_steps_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for exchange in (True, False):
        old, new = plugin(tmp_path / f"old{exchange}"), plugin(tmp_path / "new", version="2.0")
        if not exchange:
            monkeypatch.setattr(replacing, "_exchange", fail_to_exchange)
        assert replacing.put(new, old, tmp_path / f"aside{exchange}")
        assert version_in(old) == "2.0"
        assert not exchange or version_in(new) == "1.0"


async def test_whoever_looks_during_updates_sees_a_whole_version(tmp_path: Path) -> None:
    state = tmp_path / "state"
    sources = [plugin(tmp_path / f"v{number}", version=str(number)) for number in (1, 2)]
    place = state / "plugins" / "garden"
    if not replacing._exchange(*sources):
        pytest.skip("this file system cannot exchange two folders")
    await installer(state).install(str(sources[0]))
    seen: set[str] = set()
    done = anyio.Event()

    async def look() -> None:
        while not done.is_set():
            seen.add(await anyio.to_thread.run_sync(version_in, place))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        for number in range(20):
            await installer(state).install(str(sources[number % 2]))
        done.set()
    assert seen == {"1", "2"}


async def test_a_broken_version_can_be_replaced(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (plugin(state / "plugins" / "garden") / MANIFEST).write_text("{")
    done = await installer(state).install(str(plugin(tmp_path / "new")))
    assert done.replaced == ""
    assert version_in(state / "plugins" / "garden") == "1.0"


async def test_one_that_is_put_there_by_hand_keeps_its_place(tmp_path: Path) -> None:
    state = tmp_path / "state"
    plugin(state / "plugins" / "by-hand")
    done = await installer(state).install(str(plugin(tmp_path / "new", version="2.0")))
    assert done.folder == state / "plugins" / "by-hand"
    plugin(state / "plugins" / "other", name="someone")
    code, text = await refused(installer(state), plugin(tmp_path / "b", name="other"))
    assert (code, "'someone'" in text) == ("not_ours", True)


async def test_a_url_is_rejected_with_the_advice_to_download_it(tmp_path: Path) -> None:
    with pytest.raises(InstallRefused) as caught:
        await installer(tmp_path).install("https://example.org/x.zip")
    assert caught.value.code == "unsupported"
    assert "'https://example.org/x.zip' is a URL: download the archive" in str(caught.value)


async def test_one_of_the_configuration_is_not_installed_over(tmp_path: Path) -> None:
    paths: Any = {"load": {"paths": [str(plugin(tmp_path / "configured"))]}}
    made = installer(tmp_path / "state", plugins=paths)
    assert (await refused(made, plugin(tmp_path / "new")))[0] == "not_ours"


# ---- One at a time ----


async def test_two_do_not_install_at_once(tmp_path: Path) -> None:
    with workshop(tmp_path / "state"):
        source = plugin(tmp_path / "garden")
        assert (await refused(installer(tmp_path / "state"), source))[0] == "busy"
        assert removal(tmp_path / "state", "garden")[0] == "busy"


async def test_leftovers_of_a_killed_install_are_removed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    plugin(state / "staging" / "install-dead" / "staged")
    await installer(state).install(str(skill(tmp_path / "pruning")))
    assert left_in(state) == ["skills/pruning/SKILL.md"]


async def test_cancelling_leaves_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    begun = tmp_path / "begun"
    code = f"import pathlib, signal; pathlib.Path({str(begun)!r}).touch(); signal.pause()"
    made = installer(state, security={"installPolicy": {"command": [sys.executable, "-c", code]}})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.install, str(plugin(tmp_path / "garden")))
        await until(begun.exists)
        tasks.cancel_scope.cancel()
    assert left_in(state) == []
    with (state / "staging" / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_a_state_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    assert (await refused(installer(tmp_path / "state"), plugin(tmp_path / "a")))[0] == "failed"


# ---- Removing ----


async def test_removing_says_what_it_removed_and_runs_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    plugin(state / "plugins" / "garden", TRACE.format(trace=str(tmp_path / "ran")))
    skill(state / "skills" / "pruning")
    described = open_plugins(read({}).section, state, load=False)
    done = remove(state, "garden", described)
    assert (done.kind, done.name, done.folder) == ("plugin", "garden", state / "plugins" / "garden")
    assert remove(state, "skill:pruning", described).kind == "skill"
    assert left_in(state) == []
    assert not (tmp_path / "ran").exists()


def test_a_plugin_and_a_skill_of_one_name_are_told_apart(tmp_path: Path) -> None:
    plugin(tmp_path / "plugins" / "garden")
    skill(tmp_path / "skills" / "garden")
    described = open_plugins(read({}).section, tmp_path, load=False)
    assert remove(tmp_path, "skill:garden", described).kind == "skill"
    assert remove(tmp_path, "plugin:garden", described).kind == "plugin"


def test_a_broken_plugin_can_be_removed(tmp_path: Path) -> None:
    (plugin(tmp_path / "plugins" / "garden") / MANIFEST).write_text("{")
    remove(tmp_path, "garden", open_plugins(read({}).section, tmp_path, load=False))
    assert left_in(tmp_path) == []


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    work = plugin(tmp_path / "work")
    state = tmp_path / "state"
    (state / "plugins").mkdir(parents=True)
    (state / "plugins" / "garden").symlink_to(work)
    remove(state, "garden", open_plugins(read({}).section, state, load=False))
    assert left_in(state) == []
    assert (work / "main.py").exists()


@pytest.mark.parametrize("name", ["nothing", "", ".", "..", "../outside", "skill:..", "x:y:z"])
def test_a_plugin_that_is_not_installed_cannot_be_removed(tmp_path: Path, name: str) -> None:
    plugin(tmp_path / "outside")
    skill(tmp_path / "state" / "skills" / "pruning")
    assert removal(tmp_path / "state", name)[0] == "not_found"
    assert (tmp_path / "outside").is_dir()


def test_those_of_the_configuration_and_of_packages_are_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(tmp_path / "garden")
    paths = {"load": {"paths": [str(tmp_path / "garden")]}}
    code, text = removal(tmp_path / "state", "garden", plugins=paths)
    assert (code, "plugins.load.paths" in text) == ("not_ours", True)

    packed = plugin(tmp_path / "site" / "orchard", name="orchard", entry="orchard:register")
    (packed / "__init__.py").write_text("")
    info = tmp_path / "site" / "orchard-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: orchard\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[clawmode.plugins]\norchard = orchard\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    code, text = removal(tmp_path / "state", "orchard")
    assert (code, "package 'orchard'" in text) == ("not_ours", True)
    assert left_in(tmp_path / "state") == []
