"""What operators look at and do: commands, skills, logs, trajectories, schedules, configuration."""

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.gateway_inside import Inside, Refused, events, inside
from tests.support.waiting import until

from clawmode.gateway import logs
from clawmode.messaging.slash import COMMANDS
from clawmode.redaction import Redactor
from clawmode.testing import Turn

pytestmark = pytest.mark.anyio


# ---- Commands, skills, logs ----


async def test_the_slash_commands_are_listed(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        found = (await it.call("commands.list"))["commands"]
    assert [entry["name"] for entry in found] == list(COMMANDS)
    assert {"usage", "description", "forOperators"} <= set(found[0])


async def test_the_skills_of_an_agent_are_listed(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        folder = tmp_path / "state" / "skills" / "tea"
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text("---\nname: tea\ndescription: Make tea.\n---\nBoil.")
        found = await it.call("skills.list")
        assert await it.code("skills.list", agentId="nobody") == "INVALID_REQUEST agentId"
    (skill,) = found["skills"]
    assert (skill["name"], skill["description"]) == ("tea", "Make tea.")
    assert skill["file"] == str(folder / "SKILL.md")


async def test_the_last_lines_of_the_log_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "RECENT", logs.RECENT.copy())
    logs.RECENT.clear()
    handler = logs._LineHandler(Redactor(["hunter22"]))
    logger = logging.Logger("clawmode.test")
    logger.addHandler(handler)
    for number in range(5):
        logger.warning("line %d: hunter22", number)
    logger.error("it is broken")
    async with inside(tmp_path) as it:
        found = (await it.call("logs.tail", limit=3))["lines"]
        errors = (await it.call("logs.tail", level="error"))["lines"]
    assert [line["message"] for line in found] == ["line 3: ***", "line 4: ***", "it is broken"]
    assert [line["message"] for line in errors] == ["it is broken"]


# ---- Trajectories ----


async def test_a_session_is_exported_into_its_workspace(tmp_path: Path) -> None:
    async with inside(tmp_path, [Turn("tea")]) as it:
        run = await it.call("agent", message="go")
        await it.call("agent.wait", runId=run["runId"], timeoutMs=10_000)
        made = await it.call("trajectory.export", sessionKey="main", name="mine")
        folder = Path(made["folder"])
        assert folder.name == "mine"
        assert (folder / "manifest.json").is_file()
        again = await it.code("trajectory.export", sessionKey="main", name="mine")
        assert again == "INVALID_REQUEST name"
        assert await it.code("trajectory.export", name="../x") == "INVALID_REQUEST name"
        assert await it.code("trajectory.export", sessionKey="none") == "NOT_FOUND"
        await it.call("sessions.create", sessionKey="empty")
        empty = await it.code("trajectory.export", sessionKey="empty")
        assert empty == "NOT_FOUND sessionKey"


# ---- Schedules ----

DAILY = {"id": "tea", "cron": "0 8 * * *", "message": "Make tea."}


async def test_jobs_are_added_listed_and_removed(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        added = (await it.call("cron.add", **DAILY))["job"]
        (listed,) = (await it.call("cron.list"))["jobs"]
        status = await it.call("cron.status")
        assert listed == added
        assert listed["schedule"] == "at 08:00 every day"
        assert (status["jobs"], status["nextAt"]) == (1, listed["nextAt"])
        assert await it.code("cron.add", **DAILY) == "CONFLICT id"
        await it.call("cron.remove", id="tea")
        assert await it.code("cron.remove", id="tea") == "NOT_FOUND id"
        assert (await it.call("cron.list"))["jobs"] == []


async def test_a_job_is_run_now(tmp_path: Path) -> None:
    async with inside(tmp_path, [Turn("tea is ready")]) as it:
        await it.call("cron.add", **DAILY)
        begun = await it.call("cron.run", id="tea")
        await until(lambda: len(events(it.admin, "cron")) == 2)
        started, finished = events(it.admin, "cron")
        assert started["runId"] == begun["runId"]
        assert finished["status"] == "ok"
        (job,) = (await it.call("cron.list"))["jobs"]
        assert job["lastRun"]["status"] == "ok"
        assert await it.code("cron.run", id="coffee") == "NOT_FOUND id"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"id": "a b"}, "INVALID_REQUEST id"),
        ({"cron": "not a time"}, "INVALID_REQUEST cron"),
        ({"tz": "Nowhere/Here"}, "INVALID_REQUEST tz"),
        ({"message": " "}, "INVALID_REQUEST message"),
        ({"every": "1m"}, "INVALID_REQUEST"),
        ({"agent": "nobody"}, "INVALID_REQUEST agent"),
        ({"thinking": "a lot"}, "INVALID_REQUEST thinking"),
        ({"target": "bob"}, "INVALID_REQUEST target"),
        ({"timeoutSeconds": 0}, "INVALID_REQUEST timeoutSeconds"),
    ],
)
async def test_a_job_that_cannot_be_meant_is_refused(
    tmp_path: Path, given: dict[str, Any], code: str
) -> None:
    async with inside(tmp_path) as it:
        assert await it.code("cron.add", **(DAILY | given)) == code


# ---- The configuration ----

SECRETS: dict[str, Any] = {
    "models": {
        "providers": {
            "own": {
                "baseUrl": "http://user:hidden-1@host/",
                "apiKey": "hidden-2",
                "headers": {"X": "hidden-3"},
                "models": [{"id": "m"}],
            },
            "other": {"baseUrl": "http://hidden-0/", "apiKey": "${OTHER_KEY}"},
        }
    },
    "auth": {"profiles": {"p": {"provider": "own", "key": "hidden-4"}}},
    "gateway": {"auth": {"token": "hidden-5-hidden-5", "password": "hidden-6"}},
    "channels": {"hook": {"enabled": False, "secret": "hidden-7", "url": "http://h/hidden-8"}},
    "mcp": {
        "servers": {
            "s": {"enabled": False, "command": "x", "args": ["hidden-9"], "env": {"K": "hidden-10"}}
        }
    },
    "skills": {"entries": {"tea": {"env": {"K": "hidden-11"}}}},
    "apiKeyMisspelt": "hidden-12",
    "hooks": {
        "token": "hidden-13",
        "internal": {
            "entries": {
                "greet": {
                    "enabled": False,
                    "events": ["session:start"],
                    "command": ["notify", "hidden-15", "--as", "hidden-16"],
                }
            }
        },
    },
    "security": {"installPolicy": {"command": ["sh", "-c", "decide hidden-17"]}},
    "messages": {"queue": {"cap": 7}},
}


@pytest.mark.covers("S-21")
async def test_the_configuration_is_shown_without_a_secret(tmp_path: Path) -> None:
    rules = {"exec": {"env": {"K": "hidden-14"}}}
    async with inside(tmp_path, rules=rules, **SECRETS) as it:
        found = await it.call("config.get")
    assert "hidden" not in json.dumps(found)
    config = found["config"]
    assert config["messages"]["queue"]["cap"] == 7
    assert config["agents"]["defaults"]["model"] == "scripted/a"
    assert config["models"]["providers"]["other"]["apiKey"] == "${OTHER_KEY}"
    assert config["models"]["providers"]["own"]["models"] == [{"id": "m"}]
    assert list(config["mcp"]["servers"]) == ["s"]
    assert (found["exists"], found["valid"]) == (True, True)


async def test_the_schema_is_that_of_the_file(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        found = await it.call("config.schema")
    assert "agents" in found["schema"]["properties"]


async def test_a_new_configuration_is_written_and_the_old_one_kept(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        it.config.chmod(0o600)
        old, before = it.config.read_text(), await it.call("config.get")
        raw = '{ // new\n agents: { defaults: { model: "scripted/b" } }, surprise: 1 }'
        done = await it.call("config.set", raw=raw, baseHash=before["hash"])
        assert it.config.read_text() == raw
        assert (done["backup"], it.backup()) == (f"{it.config}.bak", old)
        assert it.config.stat().st_mode & 0o777 == 0o600
        assert [warning["path"] for warning in done["warnings"]] == ["surprise"]
        assert done["hash"] == (await it.call("config.get"))["hash"]
        late = await it.code("config.set", raw=raw, baseHash=before["hash"])
        assert late == "CONFLICT baseHash"
        assert sorted(os.listdir(tmp_path)) == ["clawmode.json5", "clawmode.json5.bak", "state"]


@pytest.mark.parametrize(
    ("raw", "path", "line"),
    [
        ("{ agents: 1 }", "agents", 1),
        ("{\n  tools: { codeMode: { timeoutMs: true } }\n}", "tools.codeMode.timeoutMs", 2),
        ("{ nonsense", "", 1),
        ("[]", "", 1),
        (
            '{ cron: { jobs: [{ id: "a", message: "b", cron: "never" }] } }',
            "cron.jobs[0].cron",
            1,
        ),
    ],
)
async def test_a_configuration_with_errors_is_refused_with_their_places(
    tmp_path: Path, raw: str, path: str, line: int
) -> None:
    async with inside(tmp_path) as it:
        before = it.config.read_text()
        with pytest.raises(Refused) as refused:
            await it.call("config.set", raw=raw)
        assert (refused.value.code, refused.value.field) == ("INVALID_REQUEST", "raw")
        issue = refused.value.details["issues"][0]
        assert (issue["path"], issue["line"]) == (path, line)
        assert issue["message"]
        assert str(tmp_path) not in json.dumps(issue)
        assert it.config.read_text() == before
        assert it.backup() is None


async def test_what_was_struck_out_cannot_be_sent_back(tmp_path: Path) -> None:
    async with inside(tmp_path, **SECRETS) as it:
        shown = (await it.call("config.get"))["config"]
        shown["gateway"]["auth"].pop("password")
        assert await it.code("config.set", raw=json.dumps(shown)) == "INVALID_REQUEST raw"


async def test_a_configuration_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    def put(it: Inside, file: Path | None) -> None:
        host = it.gateway.host
        it.gateway.host = replace(host, setup=replace(host.setup, file=file))

    async with inside(tmp_path) as it:
        raw = it.config.read_text()
        put(it, tmp_path / "none" / "clawmode.json5")
        assert await it.code("config.set", raw=raw) == "UNAVAILABLE"
        put(it, None)
        assert await it.code("config.set", raw=raw) == "CONFLICT"
        assert (await it.call("config.get"))["exists"] is False


async def test_two_writers_leave_one_of_two_whole_files(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        raws = [json.dumps({"messages": {"queue": {"cap": cap}}}) for cap in range(1, 9)]
        async with anyio.create_task_group() as tasks:
            for raw in raws:
                tasks.start_soon(lambda raw=raw: it.call("config.set", raw=raw))
        assert it.config.read_text() in raws
        assert it.backup() in raws
