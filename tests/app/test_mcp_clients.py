"""`clawmode setup`: nine clients' files are changed, changed back, and never damaged."""

import json
import os
import stat
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_driver import Person, answer, clawmode

from clawmode.app.mcp_clients import CLIENTS, ClientSetup, find
from clawmode.config import json5
from clawmode.exceptions import ConfigurationError

SERVER = {"command": "python3", "args": ["server.py"], "env": {"KEY": "sk-secret"}}

FILES: dict[str, tuple[str, str]] = {
    "claude-code": (".claude.json", '{"numStartups": 3, "mcpServers": {"a": %s}}'),
    "claude-desktop": (
        ".config/Claude/claude_desktop_config.json",
        '{"mcpServers": {"a": %s}}',
    ),
    "cursor": (".cursor/mcp.json", '// mine\n{"mcpServers": {"a": %s}}'),
    "vscode": (".config/Code/User/mcp.json", '{"servers": {"a": %s}, "inputs": []}'),
    "codex": (
        ".codex/config.toml",
        '# mine\n[mcp_servers.a]\ncommand = "python3"\nargs = ["server.py"]\n'
        'env = {KEY = "sk-secret"}\n',
    ),
    "gemini": (".gemini/settings.json", '{"theme": "x", "mcpServers": {"a": %s}}'),
    "zed": (".config/zed/settings.json", '// mine\n{"context_servers": {"a": %s,},}'),
    "windsurf": (".codeium/windsurf/mcp_config.json", '{"mcpServers": {"a": %s}}'),
    "opencode": (".config/opencode/opencode.jsonc", '{"mcp": {/* mine */ "a": %s}}'),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, without other settings."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def install(home: Path, *names: str) -> dict[str, bytes]:
    """Writes the files of clients, and returns their content."""
    written: dict[str, bytes] = {}
    for name in names or FILES:
        place, text = FILES[name]
        file = home / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("%s", json.dumps(SERVER)), "utf-8")
        written[place] = file.read_bytes()
    return written


def entries(file: Path, *path: str) -> Any:
    text = file.read_text("utf-8")
    found: Any = tomllib.loads(text) if file.suffix == ".toml" else json5.parse(text, "it").value
    for key in path:
        found = found[key]
    return found


@pytest.mark.covers("SU-1")
def test_every_known_client_is_found_changed_and_changed_back_byte_for_byte(home: Path) -> None:
    before = install(home)
    assert {*FILES} == {client.name for client in CLIENTS}
    done = clawmode("setup", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["client"]: row for row in answer(done)["clients"]}
    assert {name: (row["moved"], row["done"]) for name, row in rows.items()} == {
        name: (["a"], True) for name in FILES
    }
    for client in CLIENTS:
        servers = entries(home / FILES[client.name][0], *client.path)
        assert [*servers] == ["clawmode"]
        command = servers["clawmode"]["command"]
        words = [*(command if isinstance(command, list) else [command])]
        words += servers["clawmode"].get("args", [])
        assert words[-3:-1] == ["mcp", "--mcp-config"]
        assert Path(words[0]).is_absolute()
        assert entries(Path(words[-1]), *client.path) == {"a": SERVER}
        assert stat.S_IMODE(os.stat(words[-1]).st_mode) == 0o600
    undone = clawmode("setup", "--undo", "--yes")
    assert undone.returncode == 0, undone.stderr
    assert {place: (home / place).read_bytes() for place in before} == before


def test_nothing_changes_without_consent(home: Path) -> None:
    before = install(home, "cursor")
    done = clawmode("setup")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert "moves  a  (python3)" in done.stdout
    assert "sk-secret" not in done.stdout + done.stderr
    assert (home / ".cursor/mcp.json").read_bytes() == before[".cursor/mcp.json"]
    assert not (home / ".config").exists()


def test_a_person_is_asked_and_may_decline(home: Path, tmp_path: Path) -> None:
    before = install(home, "cursor")
    with Person("setup", cwd=tmp_path, environment={"HOME": str(home)}) as person:
        person.reads("Move these servers behind clawmode? [y/N]")
        person.types("n\n")
        assert person.leaves()[0] == 2
    assert (home / ".cursor/mcp.json").read_bytes() == before[".cursor/mcp.json"]


def test_changes_of_the_client_survive_undo(home: Path) -> None:
    """Claude Code writes to its file all the time."""
    install(home, "claude-code")
    setup = ClientSetup()
    setup.move(next(iter(find())))
    file = home / ".claude.json"
    data = json.loads(file.read_text("utf-8"))
    data["numStartups"] = 4
    data["mcpServers"]["new"] = {"command": "x"}
    file.write_text(json.dumps(data), "utf-8")
    (change,) = setup.changes()
    assert "only its servers" in setup.restore(change)
    assert json.loads(file.read_text("utf-8")) == {
        "numStartups": 4,
        "mcpServers": {"new": {"command": "x"}, "a": SERVER},
    }
    assert setup.changes() == []


@pytest.mark.parametrize("name", ["cursor", "codex"])
def test_servers_that_were_added_later_join_the_others(home: Path, name: str) -> None:
    """And the entry of clawmode stays, with what the user has added to it."""
    before = install(home, name)
    (plan,) = find()
    setup, file, path = ClientSetup(), plan.file, plan.path
    setup.move(plan)
    text = file.read_text("utf-8")
    if name == "codex":
        text += 'env = {MINE = "1"}\n\n[mcp_servers.b]\nurl = "https://x"\n'
        text += '[mcp_servers.a]\ncommand = "newer"\n'
    else:
        added = '"b": {"url": "https://x"}, "a": {"command": "newer"}, "clawmode":'
        text = text.replace('"clawmode":', added).replace(
            '"args":', '"env": {"MINE": "1"}, "args":'
        )
    file.write_text(text, "utf-8")
    setup.move(next(iter(find())))
    servers = entries(file, *path)
    assert [*servers] == ["clawmode"]
    assert servers["clawmode"]["env"] == {"MINE": "1"}
    moved = entries(Path(servers["clawmode"]["args"][-1]), *path)
    assert moved == {"a": {"command": "newer"}, "b": {"url": "https://x"}}
    (change,) = setup.changes()
    assert Path(change.copy).read_bytes() == next(iter(before.values()))
    setup.restore(change)
    assert entries(file, *path) == moved


def test_a_failed_second_move_leaves_the_first_as_it_was(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home, "cursor")
    setup = ClientSetup()
    setup.move(next(iter(find())))
    file = home / ".cursor/mcp.json"
    text = file.read_text("utf-8").replace('"clawmode":', '"b": {"url": "https://x"}, "clawmode":')
    file.write_text(text, "utf-8")
    (plan,) = find()
    (change,) = setup.changes()
    file.chmod(0o444)
    with pytest.raises(ConfigurationError, match="read-only"):
        setup.move(plan)
    assert setup.changes() == [change]
    assert entries(Path(change.servers), "mcpServers") == {"a": SERVER}
    assert file.read_text("utf-8") == text


def test_an_entry_that_the_user_has_written_is_not_replaced(home: Path) -> None:
    """It may lead to servers that are in no other file of the client."""
    file = home / ".cursor/mcp.json"
    file.parent.mkdir()
    own = {"command": "clawmode", "args": ["mcp", "--mcp-config", "/mine.json"]}
    file.write_text(json.dumps({"mcpServers": {"clawmode": own, "a": SERVER}}), "utf-8")
    (plan,) = find()
    with pytest.raises(ConfigurationError, match="did not add"):
        ClientSetup().move(plan)
    assert entries(file, "mcpServers") == {"clawmode": own, "a": SERVER}


def test_a_file_of_two_clients_is_changed_once(home: Path) -> None:
    install(home, "cursor")
    (home / ".claude.json").symlink_to(home / ".cursor/mcp.json")
    done = clawmode("setup", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["client"] for row in answer(done)["clients"]] == ["claude-code"]
    assert [*entries(home / ".cursor/mcp.json", "mcpServers")] == ["clawmode"]


def test_a_server_that_vanished_after_the_question_is_an_error(home: Path) -> None:
    install(home, "cursor")
    (plan,) = find()
    plan.file.write_text('{"mcpServers": {}}', "utf-8")
    with pytest.raises(ConfigurationError, match="try again"):
        ClientSetup().move(plan)


def test_what_only_the_client_can_start_stays(home: Path) -> None:
    file = home / ".config/Code/User/mcp.json"
    file.parent.mkdir(parents=True)
    kept: dict[str, Any] = {
        "asks": {"command": "x", "env": {"K": "${input:key}"}},
        "here": {"command": "${workspaceFolder}/x"},
        "odd": "x",
        "extension": {"settings": {}},
    }
    file.write_text(json.dumps({"servers": kept | {"a": SERVER}}), "utf-8")
    (plan,) = find(["vscode"])
    assert ([*plan.moved], [*plan.kept]) == (["a"], [*kept])
    ClientSetup().move(plan)
    servers = entries(file, "servers")
    assert {key: servers[key] for key in kept} == kept
    assert [*servers] == [*kept, "clawmode"]


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("name", "text", "moved", "kept"),
    [
        (  # limits that stand beside the servers would be lost
            "opencode",
            '{"mcp": {"a": {"command": ["x"]}, "b": {"command": ["x"]}},'
            ' "tools": {"a_del*": false}}',
            ["b"],
            {"a": "other parts"},
        ),
        (
            "gemini",
            '{"mcpServers": {"a": {"command": "x"}, "b": {"command": "x"}},'
            ' "mcp": {"excluded": ["a"]}}',
            ["b"],
            {"a": "mcp.excluded"},
        ),
        (  # relative paths would lead elsewhere
            "cursor",
            '{"mcpServers": {"a": {"command": "x", "envFile": ".cursor/a.env"}}}',
            [],
            {"a": "folder"},
        ),
        (  # clawmode would report these as broken
            "cursor",
            '{"mcpServers": {"a:b": {"command": "x"}, "a-b": {"command": "x"},'
            ' "a b": {"command": "x"}, "c": {"command": "x", "args": 3},'
            ' "d": {"command": "x", "env": {"K": "${UNSET_K}"}},'
            ' "e": {"command": "x", "env": {"K": "${env:HOME}"}}}}',
            ["a-b", "e"],
            {"a:b": "a name of", "a b": "tool policy", "c": "args", "d": "UNSET_K"},
        ),
    ],
)
def test_a_server_that_would_mean_something_else_elsewhere_stays(
    home: Path, name: str, text: str, moved: list[str], kept: dict[str, str]
) -> None:
    file = home / FILES[name][0]
    file.parent.mkdir(parents=True)
    file.write_text(text, "utf-8")
    (home / ".cursor").mkdir(exist_ok=True)
    (home / ".cursor/a.env").write_text("KEY=value\n", "utf-8")
    (plan,) = find()
    assert [*plan.moved] == moved
    assert [*plan.kept] == [*kept]
    for key, reason in kept.items():
        assert reason in plan.kept[key]


def test_a_client_that_would_not_start_clawmode_is_left_alone(home: Path) -> None:
    file = home / ".gemini/settings.json"
    file.parent.mkdir()
    text = '{"mcpServers": {"a": {"command": "x"}}, "mcp": {"allowed": ["a"]}}'
    file.write_text(text, "utf-8")
    done = clawmode("setup", "--yes")
    assert done.returncode == 1
    assert "mcp.allowed" in done.stderr
    assert file.read_text("utf-8") == text


def test_a_file_that_its_owner_has_protected_is_not_replaced(home: Path) -> None:
    before = install(home, "cursor")
    file = home / ".cursor/mcp.json"
    file.chmod(0o444)
    done = clawmode("setup", "--yes")
    assert done.returncode == 1
    assert "read-only" in done.stderr
    assert file.read_bytes() == before[".cursor/mcp.json"]


def test_a_broken_file_is_one_problem_and_the_others_are_changed(home: Path) -> None:
    install(home, "cursor", "gemini")
    (home / ".cursor/mcp.json").write_text('{"mcpServers": {"a": "sk-secret" ', "utf-8")
    done = clawmode("setup", "--yes")
    assert done.returncode == 1
    assert ".cursor/mcp.json:1:" in done.stderr
    assert "sk-secret" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert [*entries(home / ".gemini/settings.json", "mcpServers")] == ["clawmode"]


def test_an_unknown_client_is_named_with_the_known_ones() -> None:
    done = clawmode("setup", "--client", "cursr")
    assert done.returncode == 2
    assert "cursor" in done.stderr


def test_a_link_and_the_mode_of_its_target_are_kept(home: Path) -> None:
    install(home, "cursor")
    link, target = home / ".cursor/mcp.json", home / "dotfiles.json"
    link.rename(target)
    target.chmod(0o644)
    link.symlink_to(target)
    setup = ClientSetup()
    setup.move(next(iter(find())))
    assert link.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert [*entries(target, "mcpServers")] == ["clawmode"]


@pytest.mark.hostile
def test_a_file_that_changes_at_the_last_moment_is_left_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home, "cursor")
    file = home / ".cursor/mcp.json"
    (plan,) = find()
    setup = ClientSetup()
    remember = setup._remember

    def meanwhile(changes: Any) -> None:
        remember(changes)
        file.write_text('{"mcpServers": {"other": {"command": "x"}}}', "utf-8")

    monkeypatch.setattr(setup, "_remember", meanwhile)
    with pytest.raises(ConfigurationError, match="try again"):
        setup.move(plan)
    assert [*entries(file, "mcpServers")] == ["other"]


@pytest.mark.hostile
@pytest.mark.parametrize("content", ["", "[]", '{"changes": [{}]}', '{"changes": 3}', "\x00"])
def test_a_damaged_record_is_an_error_and_no_traceback(home: Path, content: str) -> None:
    folder = home / ".config/clawmode/setup"
    folder.mkdir(parents=True)
    (folder / "setup.json").write_text(content, "utf-8")
    done = clawmode("setup", "--undo", "--yes")
    assert done.returncode == 2
    assert "is damaged" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_moved_servers_are_reached_through_the_entry_of_the_client(home: Path) -> None:
    server = Path(__file__).parents[2] / "examples" / "warehouse_server.py"
    file = home / ".cursor/mcp.json"
    file.parent.mkdir()
    entry = {"command": sys.executable, "args": [str(server)]}
    file.write_text(json.dumps({"mcpServers": {"warehouse": entry}}), "utf-8")
    ClientSetup().move(next(iter(find())))
    command = entries(file, "mcpServers", "clawmode")
    done = clawmode("tools", "list", "--json", *command["args"][1:])
    assert "mcp:warehouse:stock" in done.stdout, done.stderr


def test_a_file_that_cannot_be_written_leaves_nothing_to_undo(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = install(home, "cursor")

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    setup = ClientSetup()
    (plan,) = find()
    with monkeypatch.context() as patched:
        patched.setattr("clawmode.app.mcp_clients.os.chmod", refuse)
        with pytest.raises(ConfigurationError, match="cannot write"):
            setup.move(plan)
    assert setup.changes() == []
    assert [it.name for it in setup.folder.iterdir()] == ["setup.json"]
    assert (home / ".cursor/mcp.json").read_bytes() == before[".cursor/mcp.json"]


@pytest.mark.parametrize("broken", [None, 'model = "x', "servers = []"])
def test_a_failed_undo_names_the_file_and_where_the_servers_are(
    home: Path, broken: str | None
) -> None:
    install(home, "codex")
    setup = ClientSetup()
    setup.move(next(iter(find())))
    (change,) = setup.changes()
    file = home / ".codex/config.toml"
    file.unlink() if broken is None else file.write_text(broken, "utf-8")
    if broken == "servers = []":  # the client removed the list: the servers can be put back
        setup.restore(change)
        assert tomllib.loads(file.read_text("utf-8"))["mcp_servers"] == {"a": SERVER}
        return
    with pytest.raises(ConfigurationError) as failed:
        setup.restore(change)
    assert all(it in str(failed.value) for it in (str(file), change.servers, change.copy))
    assert setup.changes() == [change]
