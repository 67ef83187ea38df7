"""`clawmode plugins`, in a process of its own: statuses, tables, JSON, and never a traceback."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_driver import answer, clawmode, trusted
from tests.support.plugin_material import (
    MANIFEST,
    documented_plugin,
    left_in,
    plugin,
    skill,
    zipped,
)

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "plugins" / "notes"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CLAWMODE_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("CLAWMODE_CONFIG", raising=False)


def plugins(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = clawmode("plugins", *arguments, cwd=folder)
    assert "Traceback" not in done.stderr + done.stdout
    return done


def configure(folder: Path, **settings: Any) -> None:
    trusted(folder, json.dumps(settings))


def test_a_plugin_is_installed_listed_checked_updated_and_removed(tmp_path: Path) -> None:
    done = plugins(tmp_path, "install", str(EXAMPLE))
    assert (done.returncode, done.stderr) == (0, "")
    place = tmp_path / "state" / "plugins" / "notes"
    assert done.stdout == f"installed the plugin notes 1.0.0: {place}\n"

    head, row = plugins(tmp_path, "list").stdout.splitlines()
    assert head.split() == ["id", "version", "enabled", "loaded", "brings", "problem"]
    assert row.split() == ("notes 1.0.0 yes yes 2 tools, 1 hook, 1 namespace, skills -".split())

    done = plugins(tmp_path, "check", "notes")
    assert done.returncode == 0
    assert "tools: add_note, find_notes\n" in done.stdout
    assert "skills: meeting-notes\n" in done.stdout

    again = answer(plugins(tmp_path, "install", str(EXAMPLE), "--json"))
    assert (again["replaced"], again["notes"]) == ("1.0.0", [])

    done = plugins(tmp_path, "remove", "notes")
    assert (done.returncode, done.stdout) == (0, f"removed the plugin notes: {place}\n")
    assert left_in(tmp_path / "state") == []
    assert answer(plugins(tmp_path, "list", "--json")) == {"plugins": []}


def test_the_list_tells_why_a_plugin_is_not_loaded(tmp_path: Path) -> None:
    plugin(tmp_path / "mine" / "bad", "raise ValueError('\\x1b[2J no luck')", name="bad")
    plugin(tmp_path / "mine" / "off", "1 / 0", name="off")
    configure(
        tmp_path,
        plugins={"load": {"paths": ["mine"]}, "entries": {"off": {"enabled": False}, "gone": {}}},
    )
    done = plugins(tmp_path, "list", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = {each["id"]: each for each in answer(done)["plugins"]}
    assert "no luck" in found["bad"]["problem"]
    assert (found["off"]["enabled"], found["off"]["problem"]) == (False, None)
    assert "was not found" in found["gone"]["problem"]
    table = plugins(tmp_path, "list").stdout
    assert "\x1b" not in table
    assert "ValueError: \\u001b[2J no luck" in table


@pytest.mark.covers("AL-47")
def test_the_policy_holds_for_installs_and_updates_from_the_command_line(tmp_path: Path) -> None:
    source = zipped(tmp_path / "garden.zip", {})
    assert plugins(tmp_path, "install", str(source)).returncode == 0
    before = left_in(tmp_path / "state")
    program = [sys.executable, "-c", 'print(\'{"allow": false, "reason": "not on Sundays"}\')']
    for policy, reason in (
        ({"deny": ["plugin:gar*"]}, "security.installPolicy.deny"),
        ({"default": "deny"}, "security.installPolicy.allow"),
        ({"command": program}, "not on Sundays"),
    ):
        configure(tmp_path, security={"installPolicy": policy})
        done = plugins(tmp_path, "install", str(source))
        assert (done.returncode, done.stdout) == (1, "")
        assert reason in done.stderr
    configure(tmp_path, security={"installPolicy": {"deny": ["garden"]}})
    assert plugins(tmp_path, "install", str(source)).returncode == 2
    ours = ("__pycache__", "trusted-configs.json")
    left = left_in(tmp_path / "state")
    assert [each for each in left if not any(name in each for name in ours)] == before


@pytest.mark.covers("AL-41", "AL-46")
def test_a_hook_of_a_plugin_that_is_installed_can_block(tmp_path: Path) -> None:
    code = (
        "def look(event):\n"
        "    print('printed by a plugin')\n"
        "    return {'block': event.kind == 'skill', 'blockReason': f'{event.name}: never'}\n"
        "def register(api): api.hook('before_install', look)\n"
    )
    plugins(tmp_path, "install", str(plugin(tmp_path / "guard", code, name="guard")))
    done = plugins(tmp_path, "install", str(skill(tmp_path / "pruning")))
    assert (done.returncode, done.stdout) == (1, "")
    assert "pruning: never" in done.stderr
    assert plugins(tmp_path, "install", str(plugin(tmp_path / "garden"))).returncode == 0


def test_a_guard_that_does_not_load_is_reported(tmp_path: Path) -> None:
    plugin(tmp_path / "state" / "plugins" / "guard", "1 / 0", name="guard")
    done = plugins(tmp_path, "install", str(plugin(tmp_path / "garden")))
    assert done.returncode == 0
    assert "guard is not loaded" in done.stderr


def test_what_cannot_be_installed_or_removed_is_status_1(tmp_path: Path) -> None:
    evil = zipped(tmp_path / "evil.zip", {"../\x1bevil": "x"})
    done = plugins(tmp_path, "install", str(evil))
    assert (done.returncode, done.stdout) == (1, "")
    assert "\x1b" not in done.stderr
    assert left_in(tmp_path / "state") == []
    assert plugins(tmp_path, "install", "nowhere").returncode == 1
    assert plugins(tmp_path, "remove", "nowhere").returncode == 1
    plugin(tmp_path / "mine")
    configure(tmp_path, plugins={"load": {"paths": ["mine"]}})
    done = plugins(tmp_path, "remove", "garden")
    assert (done.returncode, "plugins.load.paths" in done.stderr) == (1, True)


def test_usage_is_status_2(tmp_path: Path) -> None:
    assert plugins(tmp_path, "install").returncode == 2
    assert plugins(tmp_path, "remove").returncode == 2
    configure(tmp_path, plugins={"enabled": "maybe"})
    for command in (["list"], ["install", str(EXAMPLE)], ["remove", "x"], ["check"]):
        assert plugins(tmp_path, *command).returncode == 2


def test_a_check_says_what_is_wrong_with_status_1(tmp_path: Path) -> None:
    (plugin(tmp_path / "garden", tools=["dig"]) / "notes.txt").write_text("")
    done = plugins(tmp_path, "check", "./garden")
    assert done.returncode == 1
    assert "wrong: the manifest lists the tool 'dig'" in done.stdout
    (tmp_path / "garden" / MANIFEST).write_text('{"id": 1, "tols": 2}')
    (report,) = answer(plugins(tmp_path, "check", "garden", "--json"))["plugins"]
    assert "tols: unknown key" in report["faults"][0]
    assert plugins(tmp_path, "check", "nowhere").returncode == 1
    assert plugins(tmp_path, "check").returncode == 0


@pytest.mark.covers("N-19")
def test_an_installed_plugin_is_there_for_programs_and_listings(tmp_path: Path) -> None:
    done = plugins(tmp_path, "install", str(documented_plugin(tmp_path / "garden")))
    assert done.returncode == 0, done.stderr
    source = (
        'return [await Garden.water("rose", 2), await Garden.water("x", 99).catch((e) => e.code)]'
    )
    ran = clawmode("run", "-", "--approve", "always", "--json", stdin=source)
    assert answer(ran)["value"] == ["2 l for the rose", "blocked"]
    listed = clawmode("tools", "list", "--json")
    assert [entry["id"] for entry in answer(listed)["tools"]] == ["plugin:garden:water"]
