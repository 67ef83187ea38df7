"""Our own tools in runs: hidden behind code mode, as policy and configuration leave them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.chat_driver import Room, Talk, talking
from tests.support.waiting import is_alive, until

from clawmode import tool
from clawmode.agent.models import ModelPool
from clawmode.agent.requests import AgentRequest
from clawmode.app.host import open_host
from clawmode.app.loading import set_up
from clawmode.app.protected_paths import protected_paths
from clawmode.app.setup import Options, Setup
from clawmode.testing import ScriptedModel, Turn, call
from clawmode.tools.approvals import Approvals
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio

KEY = "agent:main:room:bob"


def program(code: str) -> Turn:
    return Turn(call("exec", {"code": code}, id="c1"))


def value_of(talk: Talk, request: int = 1) -> Any:
    """What the program of the request before came to."""
    result = talk.model.requests[request].messages[-1]
    told = json.loads("".join(getattr(part, "text", "") for part in result.content))
    assert told["status"] == "completed", told
    return told["value"]


async def run_program(tmp_path: Path, code: str, **sections: Any) -> Any:
    sections.setdefault("rules", {"codeMode": True})
    async with talking(tmp_path, [program(code), "Done."], own=True, **sections) as talk:
        await talk.say("go")
        await talk.settled()
        names = [tool.name for tool in talk.model.requests[0].tools]
        assert names == ["exec", "wait"]
        return value_of(talk)


LISTED = "return ALL_TOOLS.map(tool => tool.id).filter(id => id.startsWith('openclaw:core:'))"
CORE = [
    *("apply_patch", "edit", "exec", "message", "process", "read", "session_status"),
    *("web_fetch", "write"),
]


async def test_all_of_them_are_behind_exec_and_wait(tmp_path: Path) -> None:
    found = await run_program(tmp_path, LISTED)
    assert sorted(found) == [f"openclaw:core:{name}" for name in CORE]


async def test_the_shell_is_called_by_its_id_where_policy_allows(tmp_path: Path) -> None:
    code = "return await tools.call('openclaw:core:exec', {command: 'echo $((6*7))'})"
    value = await run_program(tmp_path, code)
    assert "42" in json.dumps(value)


async def test_a_shell_that_is_denied_is_neither_listed_nor_callable(tmp_path: Path) -> None:
    code = f"""
    const listed = ALL_TOOLS.some(tool => tool.id.endsWith(':exec'));
    const found = (await tools.search('run a shell command exec')).some(it => it.name === 'exec');
    try {{
        await tools.call('openclaw:core:exec', {{command: 'touch {tmp_path}/ran'}});
        return [listed, found, 'ran'];
    }} catch (error) {{ return [listed, found, String(error)]; }}
    """
    tools = {"codeMode": True, "deny": ["exec"]}
    listed, found, said = await run_program(tmp_path, code, rules=tools)
    assert (listed, found) == (False, False)
    assert "ran" != said
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ({"profile": "minimal"}, ["session_status"]),
        ({"profile": "messaging"}, ["message", "session_status"]),
        ({"deny": ["group:runtime", "group:web", "group:messaging"]}, None),
        ({"allow": ["group:fs"]}, ["apply_patch", "edit", "read", "write"]),
        ({"allow": ["bash"]}, ["exec"]),
    ],
)
async def test_groups_and_profiles_choose_among_them(
    tmp_path: Path, rules: dict[str, Any], left: list[str] | None
) -> None:
    found = await run_program(tmp_path, LISTED, rules={"codeMode": True, **rules})
    wanted = left or ["apply_patch", "edit", "read", "session_status", "write"]
    assert sorted(found) == [f"openclaw:core:{name}" for name in wanted]


async def test_without_code_mode_the_model_sees_them_itself(tmp_path: Path) -> None:
    write = Turn(call("write", {"path": "a.txt", "content": "hello"}, id="c1"))
    script = [write, Turn(call("exec", {"command": "cat a.txt"}, id="c2")), "Done."]
    async with talking(tmp_path, script, own=True) as talk:
        await talk.say("go")
        await talk.settled()
        assert sorted(tool.name for tool in talk.model.requests[0].tools) == CORE
        assert "hello" in str(talk.model.requests[2].messages[-1].content)


async def test_commands_are_asked_about_as_the_configuration_says(tmp_path: Path) -> None:
    tools = {"codeMode": True, "exec": {"security": "deny"}}
    code = """
    try { await tools.call('openclaw:core:exec', {command: 'echo hi'}); return 'ran'; }
    catch (error) { return String(error); }
    """
    assert "ran" != await run_program(tmp_path, code, rules=tools)


async def test_variables_of_skills_and_of_the_configuration_reach_commands(
    tmp_path: Path,
) -> None:
    skill = tmp_path / "skills" / "weather"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: weather\ndescription: The weather.\n---\n")
    code = "return (await tools.call('openclaw:core:exec', {command: 'echo $TOWN-$SKY'}))"
    value = await run_program(
        tmp_path,
        code,
        rules={"codeMode": True, "exec": {"env": {"SKY": "blue"}}},
        skills={"entries": {"weather": {"env": {"TOWN": "Ulm", "SKY": "grey"}}}},
    )
    assert "Ulm-blue" in json.dumps(value)


async def test_a_session_knows_itself(tmp_path: Path) -> None:
    told = await run_program(tmp_path, "return await tools.session_status()")
    told = told.get("details", told) if "sessionKey" not in told else told
    assert told["sessionKey"] == KEY
    assert told["model"] == "scripted/scripted"
    assert told["messages"] == 3  # with the call that is open, and its result
    assert told["requests"] == 1


# ---- message ----


async def send(tmp_path: Path, args: dict[str, Any], room: Room | None = None, **tools: Any) -> str:
    script = [Turn(call("message", args, id="c1")), "Done."]
    room = room or Room()
    async with talking(tmp_path, script, own=True, room=room, rules=tools) as talk:
        await talk.say("go")
        await talk.settled()
        (part,) = talk.model.requests[1].messages[-1].content
        return getattr(part, "text", "")


async def test_a_message_without_a_target_goes_to_the_person_who_asked(tmp_path: Path) -> None:
    room = Room()
    told = await send(tmp_path, {"text": "Wait a moment."}, room)
    assert json.loads(told) == {"status": "sent", "messageId": "m1", "channel": "room"}
    assert room.said == [("bob", "Wait a moment."), ("bob", "Done.")]


async def test_a_message_can_be_changed(tmp_path: Path) -> None:
    room = Room(can_edit=True)
    await send(tmp_path, {"action": "edit", "messageId": "m7", "text": "Now."}, room)
    assert ("m7", "Now.") in room.edits


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"text": "x", "target": "eve"}, "not allowed"),
        ({"text": "x", "channel": "mail"}, "`channel` and `target` are required"),
        ({"text": "x", "channel": "mail", "target": "bob"}, "not allowed"),
        ({"text": " "}, "empty"),
        ({"text": "x", "action": "edit"}, "messageId"),
    ],
)
async def test_a_message_goes_nowhere_else(
    tmp_path: Path, args: dict[str, Any], reason: str
) -> None:
    room = Room()
    assert reason in await send(tmp_path, args, room)
    assert room.said == [("bob", "Done.")]


async def test_a_message_goes_where_the_configuration_allows(tmp_path: Path) -> None:
    room = Room()
    tools = {"message": {"targets": ["room:team-*", "mail:*"]}}
    assert "sent" in await send(tmp_path / "a", {"text": "x", "target": "team-a"}, room, **tools)
    assert room.said[0] == ("team-a", "x")
    told = await send(tmp_path / "b", {"text": "x", "channel": "mail", "target": "y"}, **tools)
    assert "there is no channel 'mail'" in told


# ---- Sessions that end ----


async def test_what_a_session_left_running_ends_with_it(tmp_path: Path) -> None:
    command: JsonObject = {"command": "echo $$ > pid; exec sleep 600", "background": True}
    script = [Turn(call("exec", command, id="c1")), "Started."]
    async with talking(tmp_path, script, own=True) as talk:
        await talk.say("go")
        await talk.settled()
        file = tmp_path / "workspace" / "pid"
        await until(lambda: file.exists() and file.read_text().strip())
        pid = int(file.read_text())
        assert is_alive(pid)
        await talk.say("/new")
        await until(lambda: not is_alive(pid))
        assert not is_alive(pid)


# ---- What the setup reads ----


def set_up_in(folder: Path, state: Path, **sections: Any) -> Setup:
    """A setup whose configuration file is in the workspace."""
    folder.mkdir(exist_ok=True)
    defaults = {"model": "scripted/a", "workspace": str(folder)}
    whole = {"agents": {"defaults": defaults}, "plugins": {"enabled": False}, **sections}
    (folder / "clawmode.json5").write_text(json.dumps(whole))
    return set_up(Options(config=str(folder / "clawmode.json5"), state=str(state)))


@pytest.mark.covers("S-2")
async def test_a_model_cannot_rewrite_the_configuration_in_its_workspace(tmp_path: Path) -> None:
    """The attack as it was reported: rules taken out, a hook put in, for the next turn."""
    folder = tmp_path / "project"
    setup = set_up_in(folder, tmp_path / "state", tools={"deny": ["exec", "process"]})
    before = (folder / "clawmode.json5").read_text()
    attack: JsonObject = {"path": "clawmode.json5", "content": "{hooks: {}}"}
    other: JsonObject = {"path": "notes.txt", "content": "fine"}
    script = [Turn(call("write", attack, id="c1"), call("write", other, id="c2")), "Done."]
    model = ScriptedModel(script)
    models = ModelPool(setup.configuration, {"scripted/*": model})
    async with open_host(setup, Approvals(), models) as host:
        run = await host.runtime.start(AgentRequest(message="go"))
        with anyio.fail_after(15):
            await host.runtime.result(run.id)
    assert (folder / "clawmode.json5").read_text() == before
    assert (folder / "notes.txt").read_text() == "fine"
    assert "is read-only for tools" in str(model.requests[-1].messages)


@pytest.mark.covers("S-2")
def test_everything_that_a_setup_reads_code_rules_or_keys_from_is_protected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("server.py", "hook.sh", "decide.py", "print_key.py"):
        (folder / name).write_text("")
    entries = {
        "f": {"events": ["session:start"], "file": "hook.py"},
        "c": {"events": ["session:start"], "command": ["sh", "hook.sh", "."]},
    }
    provider = {"baseUrl": "http://localhost:1", "auth": {"file": "key.txt"}}
    setup = set_up_in(
        folder,
        tmp_path / "state",
        plugins={"load": {"paths": ["plugins"]}},
        skills={"load": {"extraDirs": ["skills-of-mine"]}},
        hooks={"internal": {"entries": entries}},
        security={"installPolicy": {"command": ["python", "decide.py"]}},
        models={"providers": {"lab": provider}},
        auth={"profiles": {"p": {"provider": "lab", "command": ["python", "print_key.py"]}}},
        gateway={"tls": {"cert": "cert.pem", "key": "key.pem"}},
        mcp={"servers": {"s": {"command": "python", "args": ["server.py", "."]}}},
    )
    found = protected_paths(replace(setup, tools=[add]))
    inside = {str(path.relative_to(folder)) for path in found if path.is_relative_to(folder)}
    assert inside == {
        *("clawmode.json5", "plugins", "skills-of-mine", "hook.py", "hook.sh", "decide.py"),
        *("key.txt", "print_key.py", "cert.pem", "key.pem", "server.py"),
    }
    assert Path(__file__) in found
    assert tmp_path / "state" / "exec-approvals.json" in found


@pytest.mark.covers("S-2")
def test_servers_and_rules_that_are_named_on_the_command_line_are_protected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New attack: an agent in the current folder rewrites what starts programs the next time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    (tmp_path / "rules.json").write_text("{}")
    state = str(tmp_path / "state")
    setup = set_up(Options(mcp_config="mcp.json", policy="rules.json", state=state))
    assert {tmp_path / "mcp.json", tmp_path / "rules.json"} <= {*protected_paths(setup)}


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b
