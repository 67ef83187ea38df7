"""`clawmode cron`, as people and as programs use it."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_driver import SHOP, answer, trusted
from tests.support.command_driver import Seat, serving
from tests.support.forking import Zygote

from clawmode.models.base import ModelError
from clawmode.testing import ScriptServer, Turn, call, pause

# The first test of a process waits until the zygote has imported everything.
pytestmark = pytest.mark.timeout(45)

DAILY = ("cron", "add", "Daily", "--cron", "0 8 * * mon-fri", "--tz", "Europe/Berlin", "-m", "Hi.")


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWMODE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("TEST_KEY", "of no use")
    for name in ("CLAWMODE_CONFIG", "NO_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


def configure(folder: Path, server: ScriptServer | None = None, **sections: Any) -> None:
    url = "http://127.0.0.1:1" if server is None else server.url
    provider = {"baseUrl": url, "api": "anthropic-messages", "apiKey": "${TEST_KEY}"}
    whole: dict[str, Any] = {
        "agents": {"defaults": {"model": "mine/small"}},
        "models": {"providers": {"mine": provider}},
        **sections,
    }
    trusted(folder, json.dumps(whole))


def listed(zygote: Zygote, folder: Path) -> list[Any]:
    return answer(zygote.run("cron", "list", "--json", cwd=folder))["jobs"]


@pytest.mark.covers("N-40")
def test_jobs_are_added_listed_and_removed(tmp_path: Path, zygote: Zygote) -> None:
    fixed = {"id": "fixed", "every": "90m", "message": "Hi.", "enabled": False}
    empty = zygote.run("cron", "list", cwd=tmp_path)
    assert (empty.returncode, empty.stdout) == (0, "")
    assert "there are no jobs" in empty.stderr
    configure(tmp_path, cron={"jobs": [fixed]}, channels={"web": {"secret": "correct horse"}})
    added = zygote.run(*DAILY, cwd=tmp_path)
    assert added.returncode == 0
    assert added.stderr == (
        "clawmode: no gateway runs on this state folder: start one with clawmode gateway to run "
        "the job\n"
    )
    assert added.stdout.startswith(
        "daily: at 08:00 on Monday through Friday, Europe/Berlin; next: 20"
    )
    how = ("--agent", "main", "--model", "a/b", "--thinking", "low", "--timeout", "60")
    where = ("--channel", "web", "--target", "me", "--json")
    spoken = ("cron", "add", "spoken", "--every", "1h", "-m", "-")
    more = zygote.run(*spoken, *how, *where, cwd=tmp_path, stdin="From stdin.")
    found = answer(more)
    assert abs(found.pop("nextAt") / 1000 - time.time() - 3600) < 30
    assert found == {
        "id": "spoken",
        "message": "From stdin.",
        "every": "1h",
        "agent": "main",
        "model": "a/b",
        "thinking": "low",
        "timeoutSeconds": 60,
        "channel": "web",
        "target": "me",
        "enabled": True,
        "configured": False,
        "schedule": "every hour",
        "running": False,
        "lastRun": None,
        "runs": [],
    }
    lines = zygote.run("cron", "list", cwd=tmp_path).stdout.splitlines()
    assert lines[0].split() == ["id", "schedule", "next", "last", "run", "status"]
    assert [line.split()[0] for line in lines[1:]] == ["daily", "fixed", "spoken"]
    assert lines[2].split()[1:] == ["every", "1", "hour", "30", "minutes", "disabled", "-", "-"]
    refused = zygote.run("cron", "remove", "fixed", cwd=tmp_path)
    assert (refused.returncode, "comes from the configuration" in refused.stderr) == (1, True)
    removed = zygote.run("cron", "remove", "DAILY", cwd=tmp_path)
    assert (removed.returncode, removed.stdout) == (0, "removed: DAILY\n")
    assert [job["id"] for job in listed(zygote, tmp_path)] == ["fixed", "spoken"]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("add", "a", "--every", "1h"), 2, "--message is required"),
        (("add", "a", "-m", "Hi."), 2, "exactly one of cron, every and at must be set"),
        (("add", "a", "-m", "Hi.", "--every", "1h", "--at", "2030-01-01"), 2, "every and at"),
        (("add", "a b", "-m", "Hi.", "--every", "1h"), 2, "is not a job id"),
        (("add", "a", "-m", "Hi.", "--every", "soon"), 2, "is not an interval"),
        (("add", "a", "-m", "Hi.", "--at", "2020-01-01"), 2, "is in the past"),
        (("add", "a", "-m", "Hi.", "--cron", "0 25 * * *"), 2, "the hour `25` is not valid"),
        (("add", "a", "-m", "Hi.", "--cron", "0 0 31 2 *"), 2, "never comes"),
        (("add", "a", "-m", "Hi.", "--cron", "@daily", "--tz", "x"), 2, "there is no time zone"),
        (("add", "a", "-m", "Hi.", "--every", "1h", "--agent", "b"), 2, 'there is no agent "b"'),
        (
            ("add", "a", "-m", "Hi.", "--every", "1h", "--thinking", "x"),
            2,
            "--thinking must be one of",
        ),
        (("add", "a", "-m", "Hi.", "--every", "1h", "--timeout", "0"), 2, "must be more than 0"),
        (
            ("add", "a", "-m", "Hi.", "--every", "1h", "--target", "b"),
            2,
            "`channel` is required",
        ),
        (("remove", "a"), 1, "there is no job 'a'; `cron list` shows all jobs"),
        (("remove", "a/b"), 2, "is not a job id"),
        (("run", "a"), 1, "there is no job 'a'"),
    ],
)
def test_what_cannot_be_meant_is_said_in_a_line(
    tmp_path: Path, zygote: Zygote, arguments: tuple[str, ...], status: int, says: str
) -> None:
    done = zygote.run("cron", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (status, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert listed(zygote, tmp_path) == []


def test_a_bad_job_of_the_configuration_is_reported_with_its_place(
    tmp_path: Path, zygote: Zygote
) -> None:
    configure(tmp_path, cron={"jobs": [{"id": "a", "cron": "* * *", "message": "Hi."}]})
    done = zygote.run("cron", "list", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cron.jobs[0].cron: '* * *' has 3 fields" in done.stderr


def test_a_job_is_run_in_the_foreground_and_remembered(tmp_path: Path, zygote: Zygote) -> None:
    refused = Turn(error=ModelError("auth", "no such key \x1b[2J"))
    with serving([Turn("Good morning."), Turn("Again."), refused]) as server:
        configure(tmp_path, server)
        zygote.run(*DAILY, cwd=tmp_path)
        done = zygote.run("cron", "run", "daily", cwd=tmp_path)
        as_json = zygote.run("cron", "run", "daily", "--json", cwd=tmp_path)
        failed = zygote.run("cron", "run", "daily", "-q", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "Good morning.\n")
    assert "session agent:main:cron:daily:run:" in done.stderr
    result = answer(as_json)
    assert (as_json.returncode, result["status"]) == (0, "ok")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "no such key \\u001b[2J" in failed.stderr
    (job,) = listed(zygote, tmp_path)
    assert [run["status"] for run in job["runs"]] == ["error", "ok", "ok"]
    assert job["runs"][1]["sessionKey"] == result["sessionKey"]
    assert "no such key" in job["lastRun"]["error"]
    row = zygote.run("cron", "list", cwd=tmp_path).stdout.splitlines()[1]
    assert "ago" in row
    assert "error: mine/small" in row


@pytest.mark.covers("AL-63")
def test_a_turn_that_takes_too_long_is_a_failure(tmp_path: Path, zygote: Zygote) -> None:
    with serving([Turn("I begin.", pause(30))]) as server:
        configure(tmp_path, server)
        zygote.run(*DAILY, "--timeout", "0.5", cwd=tmp_path)
        done = zygote.run("cron", "run", "daily", cwd=tmp_path)
    assert done.returncode == 1
    assert "timeout: the turn exceeded its time limit of 0.5 s" in done.stderr
    (job,) = listed(zygote, tmp_path)
    assert (job["lastRun"]["status"], job["running"]) == ("timeout", False)


def test_ctrl_c_stops_the_run_and_another_has_to_wait_for_it(
    tmp_path: Path, zygote: Zygote
) -> None:
    (tmp_path / "shop.py").write_text(SHOP, "utf-8")
    hangs = Turn("I begin.", call("exec", {"code": "await tools.forever()"}))
    with serving([hangs]) as server:
        configure(tmp_path, server, tools={"codeMode": True})
        zygote.run(*DAILY, cwd=tmp_path)
        words = ("cron", "run", "daily", "--tools", "shop:TOOLS")
        with Seat(zygote, *words, cwd=tmp_path) as person:
            person.reads("openclaw:core:forever")
            busy = zygote.run("cron", "run", "daily", cwd=tmp_path)
            person.types("\x03")
            status, _ = person.leaves()
    assert (busy.returncode, "has a run that has not ended" in busy.stderr) == (1, True)
    assert (status, "stopped" in person.seen) == (130, True)
    (job,) = listed(zygote, tmp_path)
    assert (job["lastRun"]["status"], job["running"]) == ("aborted", False)


def test_questions_are_put_and_who_wants_to_decide_later_stops_it(
    tmp_path: Path, zygote: Zygote
) -> None:
    (tmp_path / "shop.py").write_text(SHOP, "utf-8")
    order = Turn(call("exec", {"code": "return await tools.order({ item: 'tea' })"}))
    later = Turn(call("wait", lambda request: {"runId": request.last_result()["runId"]}))
    with serving([order, later]) as server:
        configure(tmp_path, server, tools={"codeMode": True})
        zygote.run(*DAILY, cwd=tmp_path)
        words = ("cron", "run", "daily", "--tools", "shop:TOOLS")
        with Seat(zygote, *words, cwd=tmp_path) as person:
            person.reads("once, always or deny?")
            person.types("\x04")
            status, _ = person.leaves()
    assert status == 130
    (job,) = listed(zygote, tmp_path)
    assert job["lastRun"]["status"] == "aborted"


@pytest.mark.covers("N-40")
def test_a_job_is_switched_off_and_on(tmp_path: Path, zygote: Zygote) -> None:
    fixed = {"id": "fixed", "every": "90m", "message": "Hi."}
    configure(tmp_path, cron={"jobs": [fixed]})
    zygote.run(*DAILY, cwd=tmp_path)
    off = zygote.run("cron", "disable", "daily", cwd=tmp_path)
    assert (off.returncode, off.stdout, off.stderr) == (0, "daily: next: disabled\n", "")
    on = zygote.run("cron", "enable", "daily", cwd=tmp_path)
    assert "daily: next: 20" in on.stdout
    assert "no gateway runs" in on.stderr
    refused = zygote.run("cron", "disable", "fixed", cwd=tmp_path)
    assert refused.returncode == 1
    assert "comes from the configuration" in refused.stderr


@pytest.mark.covers("N-40")
def test_a_job_cannot_be_added_for_a_channel_that_is_not_there(
    tmp_path: Path, zygote: Zygote
) -> None:
    configure(tmp_path, channels={"team": {"secret": "correct horse"}})
    refused = zygote.run(*DAILY, "--channel", "nope", "--target", "ann", cwd=tmp_path)
    assert refused.returncode == 2
    assert "there is no channel 'nope'; the configuration has: team" in refused.stderr
    assert listed(zygote, tmp_path) == []
