"""What start-up rejects, `config check` rejects: with the same text, and all of it at once."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_driver import command_line

from clawmode.app.check import OWN_TOOLS
from clawmode.app.loading import check, set_up
from clawmode.app.setup import Options
from clawmode.config.file import Report
from clawmode.core_tools.suite import make_core_tools
from clawmode.exceptions import ConfigurationError

GOOD: dict[str, Any] = {"agents": {"defaults": {"model": "openai/gpt-4o"}}}


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWMODE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-no-use")
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.chdir(tmp_path)


def write(folder: Path, **sections: Any) -> Path:
    path = folder / "c.json5"
    path.write_text(json.dumps({**GOOD, **sections}, indent=1), "utf-8")
    return path


def checked(folder: Path, **sections: Any) -> Report:
    return check(str(write(folder, **sections)))


def model(name: Any) -> dict[str, Any]:
    return {"agents": {"defaults": {"model": name}}}


def job(**settings: Any) -> dict[str, Any]:
    return {"id": "a", "message": "Hi.", **settings}


def jobs(*listed: dict[str, Any]) -> dict[str, Any]:
    return {"cron": {"jobs": list(listed)}}


def hook(**settings: Any) -> dict[str, Any]:
    entry = {"events": ["session:start"], **settings}
    return {"hooks": {"internal": {"entries": {"h": entry}}}}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no provider", model("gpt-4o"), "agents.defaults.model.primary"),
    ("unknown provider", model("grok/grok-4"), "agents.defaults.model.primary"),
    ("not a PostgreSQL", {"state": "mysql://ann:sk-secret@db/x"}, "state"),
    (
        "fallback",
        model({"primary": "openai/gpt-4o", "fallbacks": ["openai/gpt-4o", "x"]}),
        "agents.defaults.model.fallbacks[1]",
    ),
    (
        "model of an agent",
        {"agents": {"list": [{"id": "a", "model": "nope"}]}},
        "agents.list[0].model.primary",
    ),
    (
        "model that sums up",
        {"agents": {"defaults": {"compaction": {"model": "grok/x"}}}},
        "agents.defaults.compaction.model",
    ),
    (
        "no address",
        {"models": {"providers": {"lab": {"api": "openai-completions"}}}},
        "models.providers.lab.baseUrl",
    ),
    (
        "key of nobody",
        {"auth": {"profiles": {"p": {"provider": "grok", "key": "${K}"}}}},
        "auth.profiles.p.provider",
    ),
    ("agent id", {"agents": {"list": [{"id": "a b"}]}}, "agents.list[0].id"),
    ("capital letters", {"agents": {"list": [{"id": "Ops"}]}}, "agents.list[0].id"),
    (
        "relative workspace",
        {"agents": {"defaults": {"workspace": "here"}}},
        "agents.defaults.workspace",
    ),
    ("no hook file", hook(file="gone.py"), "hooks.internal.entries.h.file"),
    ("no plugins", {"plugins": {"load": {"paths": ["./nowhere"]}}}, "plugins.load.paths[0]"),
    ("four fields", jobs(job(cron="61 8 * *")), "cron.jobs[0].cron"),
    ("minute 61", jobs(job(cron="61 8 * * *")), "cron.jobs[0].cron"),
    ("no interval", jobs(job(every="soon")), "cron.jobs[0].every"),
    ("id twice", jobs(job(every="1h"), job(every="2h")), "cron.jobs[1].id"),
    ("two schedules", jobs(job(every="1h", cron="0 8 * * *")), "cron.jobs[0]"),
    ("no schedule", jobs(job()), "cron.jobs[0]"),
    ("time zone", jobs(job(cron="0 8 * * *", tz="Berlin")), "cron.jobs[0].tz"),
    ("agent of a job", jobs(job(every="1h", agent="nobody")), "cron.jobs[0].agent"),
    ("channel of a job", jobs(job(every="1h", channel="mail")), "cron.jobs[0].channel"),
    ("model of a job", jobs(job(every="1h", model="x")), "cron.jobs[0].model"),
    ("secret", {"channels": {"c": {"secret": "${NOT_SET}"}}}, "channels.c.secret"),
    ("name of a channel", {"channels": {"a b": {"secret": "x" * 20}}}, "channels"),
    (
        "agent of a channel",
        {"channels": {"c": {"secret": "x" * 20, "agent": "nobody"}}},
        "channels.c.agent",
    ),
    (
        "address of a channel",
        {"channels": {"c": {"secret": "x" * 20, "url": "http://me:pw@host/"}}},
        "channels.c.url",
    ),
    ("reach", {"gateway": {"bind": "0.0.0.0"}}, "gateway.bind"),
    ("short token", {"gateway": {"auth": {"token": "short"}}}, "gateway.auth.token"),
    ("token not set", {"gateway": {"auth": {"token": "${NOT_SET}"}}}, "gateway.auth.token"),
    ("certificate", {"gateway": {"tls": {"cert": "c.pem", "key": "k.pem"}}}, "gateway.tls"),
    ("servers", {"mcp": {"servers": 5}}, "mcp.servers"),
    ("wrong type", {"tools": {"codeMode": 1}}, "tools.codeMode"),
]


@pytest.mark.covers("N-15")
@pytest.mark.parametrize(
    ("sections", "path"), [it[1:] for it in REFUSED], ids=[it[0] for it in REFUSED]
)
def test_what_start_up_rejects_a_check_rejects_with_the_same_text(
    tmp_path: Path, sections: dict[str, Any], path: str
) -> None:
    file = write(tmp_path, **sections)
    (problem,) = check(str(file)).errors
    assert problem.path == path
    assert problem.line > 0
    assert problem.column > 0
    with pytest.raises(ConfigurationError) as refused:
        set_up(Options(config=str(file)), "gateway")
    assert str(refused.value) == problem.text
    assert str(refused.value).startswith(f"{file}:{problem.line}:{problem.column}: ")


@pytest.mark.covers("N-15")
def test_an_agent_does_not_mind_what_only_a_gateway_needs(tmp_path: Path) -> None:
    file = write(tmp_path, gateway={"bind": "0.0.0.0"})
    set_up(Options(config=str(file)), "agent")
    assert len(check(str(file)).errors) == 1


@pytest.mark.covers("N-15")
def test_a_check_tells_all_faults_at_once(tmp_path: Path) -> None:
    sections: dict[str, Any] = {}
    for _, each, _ in REFUSED:
        if not sections.keys() & each.keys():
            sections |= each
    sections |= jobs(
        job(cron="61 8 * *", tz="Berlin", agent="nobody", channel="mail"),
        job(every="soon"),
        job(id="c", every="1h", at="2027-01-31T08:00"),
    )
    report = checked(tmp_path, **sections)
    assert [it.path for it in report.errors if it.path.startswith("cron")] == [
        "cron.jobs[0].cron",
        "cron.jobs[0].tz",
        "cron.jobs[0].agent",
        "cron.jobs[0].channel",
        "cron.jobs[1].id",
        "cron.jobs[1].every",
        "cron.jobs[2]",
    ]
    assert {it.path.partition(".")[0] for it in report.errors} == set(sections)


# ---- Warnings ----


@pytest.mark.covers("N-15", "N-7", "AD-9")
@pytest.mark.parametrize(
    ("sections", "path", "said"),
    [
        ({"tools": {"deny": ["exce"]}}, "tools.deny[0]", 'did you mean "exec"?'),
        (
            {"agents": {"list": [{"id": "a", "tools": {"allow": ["web_fech"]}}]}},
            "agents.list[0].tools.allow[0]",
            'did you mean "web_fetch"?',
        ),
        (hook(events=["sesion:start"], command=["true"]), "", "is session:start"),
        (hook(command=["no-such-program"]), "hooks.internal.entries.h.command[0]", "program"),
        (model("anthropic/claude"), "agents.defaults.model.primary", "ANTHROPIC_API_KEY"),
        (
            {"models": {"providers": {"openai": {"apiKey": "${NOT_SET}"}}}},
            "agents.defaults.model.primary",
            "NOT_SET",
        ),
        (
            {"models": {"providers": {"openai": {"auth": {"file": "/no/such/key"}}}}},
            "agents.defaults.model.primary",
            "does not exist",
        ),
        ({"plugins": {"entries": {"weather": {}}}}, "plugins.entries.weather", "no such plugin"),
        ({"skills": {"load": {"extraDirs": ["gone"]}}}, "skills.load.extraDirs[0]", "folder"),
    ],
)
def test_what_start_up_takes_but_nobody_means_is_a_warning(
    tmp_path: Path, sections: dict[str, Any], path: str, said: str
) -> None:
    report = checked(tmp_path, **sections)
    assert report.errors == []
    (warning,) = report.warnings
    assert said in warning.what
    assert warning.path == path or not path
    assert warning.line > 0
    assert set_up(Options(config=str(tmp_path / "c.json5")), "gateway").notes == [warning.text]


def test_rules_for_tools_of_others_are_not_taken_for_typing_mistakes(tmp_path: Path) -> None:
    rules = ["docs__search", "group:fs", "browser", "place_order", "plugin:*", "re*", "bash"]
    assert checked(tmp_path, tools={"deny": rules}).warnings == []


def test_the_tools_that_every_run_has_are_known(tmp_path: Path) -> None:
    names = {tool.name for tool in OWN_TOOLS}
    assert names == {tool.name for tool in make_core_tools(tmp_path).tools} | {
        *("session_status", "message", "wait")
    }


# ---- Nothing runs ----


@pytest.mark.covers("N-15")
def test_a_check_runs_nothing_of_the_file(tmp_path: Path) -> None:
    touch = ["sh", "-c", f"touch {tmp_path}/ran"]
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    manifest = {"id": "p", "version": "1", "entry": "main:register"}
    (plugin / "clawmode.plugin.json").write_text(json.dumps(manifest))
    (plugin / "main.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "hook.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    entries = {
        "c": {"events": ["session:start"], "command": touch},
        "f": {"events": ["session:start"], "file": "hook.py"},
    }
    report = checked(
        tmp_path,
        models={"providers": {"openai": {"auth": {"command": touch}}}},
        mcp={"servers": {"s": {"command": touch[0], "args": touch[1:]}}},
        hooks={"internal": {"entries": entries}},
        plugins={"load": {"paths": [str(plugin)]}, "entries": {"p": {}}},
        security={"installPolicy": {"command": touch}},
    )
    assert (report.errors, report.warnings) == ([], [])
    assert sorted(os.listdir(tmp_path)) == ["c.json5", "hook.py", "plugin"]
    assert "__pycache__" not in os.listdir(plugin)


# ---- The command ----


def run(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    command = command_line(*words)
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=20, check=False)


@pytest.mark.covers("N-15")
def test_the_commands_say_the_same_and_warnings_fail_only_a_strict_check(tmp_path: Path) -> None:
    write(tmp_path, **model("gpt-4o"))
    text = "agents.defaults.model.primary: 'gpt-4o' is not a model name"
    for words in (["gateway"], ["config", "check", "--json"]):
        named = ["c.json5"] if "check" in words else ["--config", "c.json5"]
        done = run(*words, *named, cwd=tmp_path)
        assert done.returncode == (1 if "check" in words else 2)
        assert f"c.json5:4:4: {text}" in done.stdout + done.stderr
    write(tmp_path, tools={"deny": ["exce"]})
    strict = run("config", "check", "c.json5", "--strict", cwd=tmp_path)
    assert strict.returncode == 1
    assert strict.stdout.startswith("c.json5: 0 errors, 1 warning\n")
