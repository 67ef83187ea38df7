"""`clawmode doctor`: what is well, what is not, and what to do."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clawmode import doctor
from clawmode.sandbox import artifacts

SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("tiny")

@server.tool()
def shout(text: str) -> str:
    return text.upper()

server.run("stdio")
"""


def examined(folder: Path, *more: str, **env: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    command = [sys.executable, "-m", "clawmode", "doctor", "--json", "--state", "state", *more]
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
    assert [health for health, _ in found["MCP tiny"]] == ["ok", "note"]
    assert "policy hides 1" in found["MCP tiny"][1][1]
    assert found["MCP gone"][0][0] == "problem"
    assert "no-such-command" in found["MCP gone"][0][1]


def test_a_configuration_or_folder_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "other.json5").write_text("{ tools: { codeMode: 'on' } }")
    status, found = examined(tmp_path, "--config", "other.json5")
    assert (status, found["configuration"][0][0]) == (1, "problem")
    (tmp_path / "state").write_text("")
    status, found = examined(tmp_path)
    assert (status, found["store"][0][0]) == (1, "problem")


def test_plugins_and_the_gateway_are_told_of(tmp_path: Path) -> None:
    good = '{"id": "good", "version": "2", "entry": "main:register"}'
    for name, manifest in (("good", good), ("bad", "nonsense")):
        folder = tmp_path / "state" / "plugins" / name
        folder.mkdir(parents=True)
        (folder / "clawmode.plugin.json").write_text(manifest)
    status, found = examined(tmp_path)
    assert status == 1
    assert found["plugin good"][0][0] == "ok"
    assert found["plugin bad"][0][0] == "problem"
    assert found["gateway"] == [("ok", "none runs on this state folder")]
