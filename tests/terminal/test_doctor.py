"""`clawmode doctor`: what is well, what is not, and what to do."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_driver import command_line

from clawmode.app import loading
from clawmode.app.setup import Options, Setup
from clawmode.sandbox import artifacts
from clawmode.terminal import doctor

SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("tiny")

@server.tool()
def shout(text: str) -> str:
    return text.upper()

server.run("stdio")
"""


def examined(folder: Path, *more: str, **env: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    command = command_line("doctor", "--json", "--state", "state", *more)
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=19,
        check=False,
    )
    assert "Traceback" not in done.stderr
    told = [(it["what"], it["detail"]) for it in json.loads(done.stdout)["findings"]]
    assert len(told) == len(set(told))
    assert not [detail for _, detail in told if detail in done.stderr]
    assert "… running a program in JavaScript and in TypeScript" in done.stderr
    found: dict[str, list[tuple[str, str]]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        found.setdefault(finding["what"], []).append((finding["health"], finding["detail"]))
    return done.returncode, found


def test_on_a_sound_machine_nothing_is_a_problem(tmp_path: Path) -> None:
    status, found = examined(tmp_path)
    assert status == 0
    looked_at = ("javascript", "typescript", "machine code", "store")
    assert [found[what][0][0] for what in looked_at] == ["ok"] * 4


@pytest.mark.covers("N-8", "N-48")
def test_doctor_says_where_machine_code_is_kept_or_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("quickjs", "swc"):
        artifacts.load(part)
    kept = doctor._machine_code()
    assert (kept.health, kept.detail) == ("ok", f"kept in {artifacts.cache_folder()}")
    monkeypatch.setenv("CLAWMODE_CACHE_DIR", str(tmp_path / "nowhere"))
    lost = doctor._machine_code()
    assert lost.health == "note"
    assert lost.detail.endswith(artifacts.CACHE_ADVICE)


@pytest.mark.covers("N-35")
def test_servers_are_told_apart_and_what_policy_hides(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    servers: dict[str, Any] = {
        "tiny": {"command": sys.executable, "args": ["server.py"]},
        "gone": {"command": "no-such-command"},
    }
    (tmp_path / "client.json").write_text(json.dumps({"mcpServers": servers}))
    policy = '{"deny": ["tiny__*"]}'
    status, found = examined(tmp_path, "--mcp-config", "client.json", "--policy", policy)
    assert status == 1
    assert found["MCP tiny"][0] == ("ok", "1 tool")
    assert [health for health, _ in found["MCP tiny"]] == ["ok", "note"]
    assert "policy hides 1" in found["MCP tiny"][1][1]
    assert found["MCP gone"][0][0] == "problem"
    assert "no-such-command" in found["MCP gone"][0][1]


@pytest.mark.covers("N-15", "N-35")
def test_a_configuration_or_folder_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    text = '{ tools: { codeMode: "on" }, agents: { defaults: { model: "gpt-4o" } } }'
    (tmp_path / "other.json5").write_text(text)
    status, found = examined(tmp_path, "--config", "other.json5")
    report = loading.check(str(tmp_path / "other.json5"))
    assert status == 1
    assert found["configuration"] == [
        ("problem", it.text.replace(f"{tmp_path}/", "")) for it in report.errors
    ]
    assert len(report.errors) == 2
    (tmp_path / "state").write_text("")
    status, found = examined(tmp_path)
    assert (status, found["store"][0][0]) == (1, "problem")
    assert "OSError" not in found["store"][0][1]


def setup_of(folder: Path, text: str, **options: Any) -> Setup:
    (folder / "c.json5").write_text(text)
    return loading.set_up(Options(config=str(folder / "c.json5"), **options))


@pytest.mark.covers("N-15")
def test_every_model_and_its_key_has_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """{ agents: { defaults: { model: { primary: "openai/gpt-4o", fallbacks: ["lab/x"] } } },
      models: { providers: { lab: { baseUrl: "https://me:pw@lab/v1", apiKey: "${LAB_KEY}" } } } }
    """
    monkeypatch.delenv("LAB_KEY", raising=False)
    setup = setup_of(tmp_path, text)
    unset = "the environment variable {} is not set"
    assert [(it.health, it.what, it.detail) for it in doctor._models(setup)] == [
        ("ok", "model", "openai/gpt-4o, at https://api.openai.com/v1"),
        ("ok", "model", "lab/x, at https://lab/v1"),
        ("problem", "key of openai", unset.format("OPENAI_API_KEY")),
        ("note", "key of lab", unset.format("LAB_KEY")),
    ]
    notes = list(doctor._configuration(Options(config=str(tmp_path / "c.json5")), setup))
    assert [it.what for it in notes] == ["configuration", "tools"]
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    found = {it.what: it for it in doctor._models(setup)}
    assert found["key of openai"].health == "ok"
    (none,) = doctor._models(setup_of(tmp_path, "{}"))
    assert (none.health, none.detail.partition(",")[0]) == ("note", "none is configured")


@pytest.mark.covers("N-15")
def test_every_extra_has_a_line_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    extras = ("acp", "agent", "gateway", "mcp", "postgres", "search")
    assert [it.what for it in doctor._extras()] == [f"extra {name}" for name in extras]
    for library in ("acp", "openai", "websockets", "mcp", "psycopg", "numpy"):
        monkeypatch.setitem(sys.modules, library, None)
    for extra, found in zip(extras, doctor._extras(), strict=True):
        assert found.health == "note"
        assert f'pip install "clawmode[{extra}]"' in found.detail
    text = '{ agents: { defaults: { model: "ollama/x" } } }'
    assert next(doctor._models(setup_of(tmp_path, text))).health == "problem"


@pytest.mark.covers("N-35")
def test_our_own_tools_are_counted(tmp_path: Path) -> None:
    setup = setup_of(tmp_path, '{ tools: { deny: ["exec"] } }')
    *_, tools = doctor._configuration(Options(config=str(tmp_path / "c.json5")), setup)
    assert tools.detail == "8 of 9 tools are allowed: 9 built-in and 0 of Python"


@pytest.mark.covers("S-2", "S-15")
def test_rules_and_code_in_a_workspace_are_reported(tmp_path: Path) -> None:
    text = json.dumps({"agents": {"defaults": {"workspace": str(tmp_path)}}})
    state = tmp_path.parent / f"{tmp_path.name}-state"
    setup = setup_of(tmp_path, text, state=str(state))
    (note,) = doctor._workspaces(setup)
    assert (note.health, f"{tmp_path} contains c.json5" in note.detail) == ("note", True)
    state.mkdir()
    (state / "exec-approvals.json").write_text('{"version": 1, "default": {}}')
    *_, problem = doctor._workspaces(setup)
    assert (problem.health, "default: unknown key" in problem.detail) == ("problem", True)


def test_plugins_and_the_gateway_are_reported(tmp_path: Path) -> None:
    good = '{"id": "good", "version": "2", "entry": "main:register"}'
    for name, manifest in (("good", good), ("bad", "nonsense")):
        folder = tmp_path / "state" / "plugins" / name
        folder.mkdir(parents=True)
        (folder / "clawmode.plugin.json").write_text(manifest)
    status, found = examined(tmp_path)
    assert status == 1
    assert found["plugin good"][0][0] == "ok"
    assert found["plugin bad"][0][0] == "problem"
    assert found["gateway"] == [("ok", "no gateway runs on this state folder")]
