"""The example plugin: it loads, programs use its namespace, and nothing is wrong with it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cli_driver import answer, clawmode

from clawmode import CodeMode
from clawmode.agent.skills import SkillLoader
from clawmode.plugins.check import try_out
from clawmode.plugins.loader import Plugins
from clawmode.types import JsonValue

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "plugins" / "notes"

PROGRAM = """
await Notes.add("Ann orders the coffee.", "kitchen", "meeting");
await Notes.add("Bo repairs the lamp.", "meeting");
const found = await Notes.find("COFFEE");
let refused = "";
try { await Notes.add("api key: 12345"); } catch (error) { refused = error.message; }
let long = "";
try { await Notes.add("x".repeat(100)); } catch (error) { long = error.message; }
const all = await tools.call("plugin:notes:find_notes", {});
return { found, tagged: (await Notes.tagged("meeting")).length, all: all.length, refused, long };
"""


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Plugins]:
    config: JsonValue = {"file": str(tmp_path / "notes.jsonl"), "maxChars": 40}
    plugins = Plugins([FOLDER], {"notes": {"config": config}}, installed=False)
    (view,) = plugins.load()
    assert view.problem is None
    yield plugins
    plugins.unload()


async def test_a_program_uses_its_namespace(notes: Plugins, tmp_path: Path) -> None:
    async with CodeMode(
        tools=notes.tools, hooks=notes.hooks, namespaces=notes.namespaces
    ) as code_mode:
        result = await code_mode.exec(PROGRAM)
    assert result.status == "completed", result
    assert isinstance(result.value, dict)
    refused, long = str(result.value.pop("refused")), str(result.value.pop("long"))
    assert "no place for secrets" in refused
    assert "at most 40 characters" in long
    assert result.value == {
        "found": [{"number": 1, "text": "Ann orders the coffee.", "tags": ["kitchen", "meeting"]}],
        "tagged": 2,
        "all": 2,
    }
    assert len((tmp_path / "notes.jsonl").read_text("utf-8").splitlines()) == 2


def test_it_brings_what_its_manifest_says(notes: Plugins) -> None:
    (view,) = notes.views
    assert [tool.id for tool in notes.tools] == ["plugin:notes:add_note", "plugin:notes:find_notes"]
    assert (view.hooks, view.namespaces) == (["before_tool_call"], ["notes"])
    found = SkillLoader(tuple(notes.skill_folders)).load()
    assert ([skill.name for skill in found.skills], found.notes) == (["meeting-notes"], ())


def test_settings_that_the_schema_rejects_are_reported() -> None:
    (view,) = Plugins([FOLDER], {"notes": {"config": {"maxChars": 0}}}, installed=False).load()
    assert "plugins.entries.notes.config" in (view.problem or "")


def test_the_check_finds_nothing_wrong(tmp_path: Path) -> None:
    done = clawmode("plugins", "check", str(FOLDER), "--json", "--state", str(tmp_path))
    (report,) = answer(done)["plugins"]
    assert (done.returncode, report["faults"], report["loaded"]) == (0, [], True)


# ---- The page ----


def block(language: str) -> str:
    text = (ROOT / "docs" / "guide" / "plugins.md").read_text("utf-8")
    (found, *_) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return found


async def test_the_plugin_of_the_page_does_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "clawmode.plugin.json").write_text(block("json"))
    (tmp_path / "main.py").write_text(block("python"))
    found = try_out(tmp_path, {"maxLitres": 3})
    assert (found.faults, found.view.tools) == ([], ["water"])
    plugins = Plugins([tmp_path], installed=False)
    plugins.load()
    async with CodeMode(
        tools=plugins.tools, hooks=plugins.hooks, namespaces=plugins.namespaces
    ) as code_mode:
        result = await code_mode.exec('return await Garden.water("rose", 2)')
        refused = await code_mode.exec('return await Garden.water("rose", 20)')
    assert result.value == "2 l for the rose"
    assert "10 litres are enough" in (refused.error or "")
