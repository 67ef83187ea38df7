"""`security.installPolicy`: deny wins, and a program that does not say yes has said no."""

import json
import os
import sys
import time
from pathlib import Path

import anyio
import pytest
from tests.support.waiting import within

from clawmode.config.operations import InstallPolicy
from clawmode.exceptions import ConfigurationError
from clawmode.plugins import install_policy
from clawmode.plugins.install_policy import by_rules, decide
from clawmode.plugins.staging import Kind, Material, StagedFile

pytestmark = pytest.mark.anyio


def material(kind: Kind = "plugin", name: str = "garden", source: str = "/opt/a/x.zip") -> Material:
    return Material(
        kind=kind,
        name=name,
        version="1.0",
        description="Plants.",
        folder=Path("/staged"),
        source=source,
        files=(StagedFile("main.py", 3, "0" * 64),),
    )


# ---- Rules ----

MATRIX: list[tuple[str, list[str], list[str], bool]] = [
    # default, allow, deny, allowed
    ("allow", [], [], True),
    ("deny", [], [], False),
    ("deny", ["plugin:garden"], [], True),
    ("deny", ["plugin:gar*"], [], True),
    ("deny", ["plugin:*"], [], True),
    ("deny", ["*"], [], True),
    ("deny", ["skill:garden"], [], False),
    ("deny", ["plugin:Garden"], [], False),
    ("deny", ["plugin:gard"], [], False),
    ("deny", ["from:/opt/a/*"], [], True),
    ("deny", ["from:/opt/b/*"], [], False),
    ("deny", ["from:/opt/a"], [], False),
    ("allow", [], ["plugin:garden"], False),
    ("allow", [], ["plugin:other"], True),
    ("allow", [], ["skill:*"], True),
    ("allow", [], ["from:*.zip"], False),
    ("allow", [], ["*"], False),
    ("allow", ["plugin:garden"], ["plugin:garden"], False),
    ("allow", ["plugin:garden"], ["from:/opt/*"], False),
    ("deny", ["plugin:garden"], ["plugin:gar*"], False),
    ("deny", ["plugin:garden"], ["plugin:other"], True),
]


@pytest.mark.covers("AL-47")
@pytest.mark.parametrize(("default", "allow", "deny", "allowed"), MATRIX)
def test_deny_wins_then_allow_then_the_default(
    default: str, allow: list[str], deny: list[str], allowed: bool
) -> None:
    policy = InstallPolicy(
        default="deny" if default == "deny" else "allow", allow=tuple(allow), deny=tuple(deny)
    )
    assert (by_rules(policy, material()) is None) is allowed


def test_skills_are_named_as_skills() -> None:
    policy = InstallPolicy(deny=("skill:prun*",))
    assert by_rules(policy, material("skill", "pruning")) is not None
    assert by_rules(policy, material("plugin", "pruning")) is None


def test_the_home_of_the_user_can_be_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    policy = InstallPolicy(default="deny", allow=("from:~/plugins/*",))
    assert by_rules(policy, material(source="/home/ann/plugins/garden")) is None
    assert by_rules(policy, material(source="/home/bo/plugins/garden")) is not None


@pytest.mark.parametrize("rule", ["garden", "plugins:garden", " ", "from"])
def test_a_rule_that_would_match_nothing_stops_every_install(rule: str) -> None:
    for policy in (InstallPolicy(deny=(rule,)), InstallPolicy(allow=(rule,))):
        with pytest.raises(ConfigurationError, match="is not a rule"):
            by_rules(policy, material())


# ---- The program ----


def program(code: str, timeout_ms: int = 10_000) -> InstallPolicy:
    return InstallPolicy(command=(sys.executable, "-c", code), timeout_ms=timeout_ms)


async def test_a_program_reads_what_is_staged_and_has_the_last_word(tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    code = f"import sys; open({str(seen)!r}, 'w').write(sys.stdin.read()); print('{{}}')"
    yes = code.replace("'{}'", "'{\"allow\": true}'")
    assert await decide(program(yes), material()) is None
    assert json.loads(seen.read_text()) == material().to_json()
    no = code.replace("'{}'", '\'{"allow": false, "reason": "no roses"}\'')
    refusal = await decide(program(no), material())
    assert refusal is not None
    assert "no roses" in refusal


async def test_a_program_is_not_asked_about_what_the_rules_refuse(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    code = f"open({str(asked)!r}, 'w'); print('{{\"allow\": true}}')"
    policy = InstallPolicy(deny=("*",), command=(sys.executable, "-c", code))
    assert await decide(policy, material()) is not None
    assert not asked.exists()


NO_ANSWERS = {
    "fails": "import sys; print('{\"allow\": true}'); sys.exit(1)",
    "raises": "1 / 0",
    "kills itself": "import os; print('{\"allow\": true}', flush=True); os.kill(os.getpid(), 9)",
    "says nothing": "pass",
    "writes no JSON": "print('yes')",
    "writes no object": "print('true')",
    "writes something else": "print('{\"ok\": true}')",
    "says 1": "print('{\"allow\": 1}')",
    "says yes as a text": 'print(\'{"allow": "true"}\')',
    "gives a reason that is none": 'print(\'{"allow": true, "reason": [1]}\')',
    "says yes and then more": 'print(\'{"allow": true}{"allow": false}\')',
    "writes deeply": "print('[' * 60000)",
    "writes no text": "import sys; sys.stdout.buffer.write(b'\\xff\\xfe')",
    "writes without end": "while True: print('x' * 10000)",
}


@pytest.mark.covers("AL-47")
@pytest.mark.parametrize("code", NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
async def test_a_policy_program_refuses_if_it(code: str) -> None:
    assert await decide(program(code), material()) is not None


async def test_a_policy_program_that_hangs_refuses_and_is_killed(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    os.mkfifo(alive)
    # A fork, because a second interpreter might not have started before it is killed.
    code = f"import os, signal; os.fork(); kept = open({str(alive)!r}, 'w'); signal.pause()"
    reading = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    with within(2):
        refusal = await decide(program(code, 300), material())
    assert refusal is not None
    assert "did not end within 0.3 seconds" in refusal
    os.close(os.open(alive, os.O_WRONLY))  # only a pipe that was opened once tells its end
    with os.fdopen(reading, "rb") as pipe, anyio.fail_after(10):
        await anyio.wait_readable(pipe)
        assert pipe.read() == b""  # the child, which had it open, is dead


async def test_a_process_that_a_policy_program_leaves_behind_blocks_nobody() -> None:
    child = "import signal; signal.pause()"
    code = (
        "import subprocess, sys; print('{\"allow\": true}', flush=True);"
        f"subprocess.Popen([sys.executable, '-c', {child!r}])"
    )
    began = time.monotonic()
    assert await decide(program(code), material()) is None
    assert time.monotonic() - began < 10


async def test_a_missing_policy_program_refuses() -> None:
    for command in (("/nowhere/decide",), (), ("a\0b",)):
        assert await decide(InstallPolicy(command=command), material()) is not None


async def test_a_long_reason_is_cut() -> None:
    code = 'import json; print(json.dumps({"allow": False, "reason": "x" * 5000}))'
    assert len(await decide(program(code), material()) or "") < install_policy.MAX_REASON + 100
