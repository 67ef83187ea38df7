"""Which commands may run: what is understood of them, who decides, and what a decision is worth."""

import dataclasses
import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.core_tools_driver import OTHER, RUN, bench

from clawmode.context import RunContext
from clawmode.core_tools.command_line import NotUnderstood, parse, pinned
from clawmode.core_tools.exec_approvals import (
    ASKS,
    DENIED,
    SECURITIES,
    AllowlistEntry,
    ExecRules,
    HostFile,
    glob,
)
from clawmode.core_tools.exec_policy import (
    EXEC_ID,
    PROCESS_ID,
    ExecApproval,
    ExecGuard,
    analyse,
    is_safe,
)
from clawmode.core_tools.shell import ShellSettings
from clawmode.exceptions import ToolProblem
from clawmode.tools.approvals import Approvals
from clawmode.tools.executor import Executor, ToolFailure
from clawmode.tools.hooks import BeforeToolCall, Hooks, RequireApproval, ToolCallDecision
from clawmode.tools.policy import Policy
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio

LISTED = ExecRules(security="allowlist", ask="off", ask_fallback="deny")
ASKING = ExecRules(security="allowlist", ask="on-miss", ask_fallback="deny")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with programs that do nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("good", "fine", "bad"):
        (folder / name).write_text('#!/bin/sh\necho $0 "$@"\n', "utf-8")
        (folder / name).chmod(0o755)
    return folder


def host_file(tmp_path: Path, **content: Any) -> HostFile:
    path = tmp_path / "exec-approvals.json"
    path.write_text(json.dumps({"version": 1} | content), "utf-8")
    return HostFile(path)


def allowing(tmp_path: Path, *patterns: str, **rules: str) -> HostFile:
    entries = [{"id": pattern, "pattern": pattern} for pattern in patterns]
    return host_file(tmp_path, agents={"main": {**rules, "allowlist": entries}})


def event(command: str, run: RunContext = RUN, call_id: str = "c1", **more: Any) -> BeforeToolCall:
    params: JsonObject = {"command": command, **more}
    return BeforeToolCall(
        tool_name="exec", tool_id=EXEC_ID, params=params, run=run, tool_call_id=call_id
    )


async def outcome(guard: ExecGuard, command: str, **more: Any) -> str:
    decision = await guard.hook(event(command, **more))
    assert decision is not None
    if decision.block:
        return "block"
    return "allow" if decision.require_approval is None else "ask"


# ---- What is understood ----


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("ls", [["ls"]]),
        ("ls -la a", [["ls", "-la", "a"]]),
        ("a && b || c; d | e", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("a&&b", [["a"], ["b"]]),
        ("""echo 'a && b' "c; d" e\\ f""", [["echo", "a && b", "c; d", "e f"]]),
        ("""'l's "-"l\\a""", [["ls", "-la"]]),
        ("echo ''", [["echo", ""]]),
        ("echo '$HOME `x`'", [["echo", "$HOME `x`"]]),
        ("""echo "a\\"b" """, [["echo", 'a"b']]),
        ("echo *.py", [["echo", "*.py"]]),
    ],
)
def test_chains_of_words_are_understood(command: str, words: list[list[str]]) -> None:
    found = [[word.text for word in segment.words] for segment in parse(command)]
    assert found == words


@pytest.mark.parametrize(
    "command",
    [
        "",
        ";",
        "ls;",
        "&& ls",
        "ls > f",
        "ls < f",
        "ls 2>&1",
        "ls >> f",
        "cat << E",
        "echo $(id)",
        "echo `id`",
        'echo "$(id)"',
        'echo "`id`"',
        "echo $HOME",
        'echo "$HOME"',
        "$SHELL -c x",
        "ls &",
        "ls |& cat",
        "(ls)",
        "{ ls; }",
        "diff <(a) <(b)",
        "A=1 ls",
        "LD_PRELOAD=x ls",
        "l* -a",
        "~/bin/x",
        "! ls",
        "ls\nrm -rf x",
        "ls\r\nrm",
        "ls \\\nrm",
        "ls\u2028rm",
        "ls\u00a0-a",
        "ls 'open",
        'ls "open',
        "ls # rm",
        "ls \\",
        "f() { ls; }; f",
        "x" * 20_000,
    ],
)
def test_what_a_shell_might_make_something_else_of_is_not_understood(command: str) -> None:
    with pytest.raises(NotUnderstood):
        parse(command)


WORDS = st.text("abc'\"\\ \t|&;-*~!=#[]^.", max_size=20)


@given(WORDS)
def test_a_shell_understands_words_as_this_does(text: str) -> None:
    """What is understood is the same to bash: it gets our words back from it."""
    command = f"/usr/bin/printf '<%s>' {text}"
    try:
        segments = parse(command)
    except NotUnderstood:
        return
    if len(segments) > 1 or not all(word.bare for word in segments[0].words):
        return
    done = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, timeout=10)
    expected = [word.text for word in segments[0].arguments[1:]] or [""]
    assert done.stdout == "".join(f"<{word}>" for word in expected)


def test_a_pinned_command_has_full_paths_and_the_rest_as_it_was() -> None:
    command = """ls -l  "a b"|\\wc -l && 'time' *"""
    text = pinned(command, parse(command), ["/bin/ls", "/usr/bin/w c", "/usr/bin/time"])
    assert text == """'/bin/ls' -l  "a b"|'/usr/bin/w c' -l && '/usr/bin/time' *"""


# ---- Patterns ----


@pytest.mark.parametrize(
    ("pattern", "program", "matches"),
    [
        ("/usr/bin/git", "/usr/bin/git", True),
        ("/USR/bin/Git", "/usr/bin/gIT", True),
        ("/usr/bin/git", "/usr/bin/git-evil", False),
        ("/usr/bin/git", "/tmp/usr/bin/git", False),
        ("/usr/bin/*", "/usr/bin/git", True),
        ("/usr/bin/*", "/usr/bin/sub/git", False),
        ("/usr/**", "/usr/bin/sub/git", True),
        ("/opt/**/bin/rg", "/opt/a/b/bin/rg", True),
        ("/usr/bin/g?t", "/usr/bin/got", True),
        ("/usr/bin?git", "/usr/bin/git", False),
        ("/usr/bin/[g]it", "/usr/bin/git", False),
        ("git", "/usr/bin/git", False),
        ("*", "/usr/bin/git", False),
        ("", "/usr/bin/git", False),
    ],
)
def test_patterns_are_globs_of_whole_paths(pattern: str, program: str, matches: bool) -> None:
    assert (glob(pattern).fullmatch(program) is not None) is matches


# ---- The allowlist ----


@pytest.mark.parametrize(
    ("command", "missed"),
    [
        ("good", []),
        ("good a b && good c", []),
        ("good | fine", []),
        ("{bin}/good", []),
        ("good; bad", ["bad"]),
        ("good && bad", ["bad"]),
        ("good || bad", ["bad"]),
        ("good | bad", ["bad"]),
        ("bad", ["bad"]),
    ],
)
def test_every_program_of_a_chain_has_to_be_listed(
    programs: Path, command: str, missed: list[str]
) -> None:
    listed = [
        AllowlistEntry(id="1", pattern=f"{programs}/good"),
        AllowlistEntry(id="2", pattern=f"{programs}/f*"),
    ]
    params: JsonObject = {"command": command.format(bin=programs)}
    found = analyse(params, listed, str(programs))
    assert found.missed == tuple(f"{programs}/{name}" for name in missed)
    assert (found.pinned is None) is bool(missed)


@pytest.mark.parametrize(
    "params",
    [
        {"command": "good", "env": {"A": "b"}},
        {"command": "./good"},
        {"command": "bin/good"},
        {"command": "nowhere"},
        {"command": "eval good"},
        {"command": ". good"},
        {"command": "exec good"},
        {"command": "good > f"},
        {"command": 7},
        {},
    ],
)
def test_what_is_not_clear_is_not_on_the_list(programs: Path, params: JsonObject) -> None:
    found = analyse(params, [AllowlistEntry(id="1", pattern=f"{programs}/**")], str(programs))
    assert (found.pinned, found.missed, bool(found.reason)) == (None, (), True)


def test_programs_are_not_looked_for_in_folders_that_depend_on_where_one_is(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(programs)
    listed = [AllowlistEntry(id="1", pattern="/**")]
    for path in ("", ".", f":{programs.name}", "::"):
        assert analyse({"command": "good"}, listed, path).pinned is None


@pytest.mark.parametrize(
    ("command", "safe"),
    [
        ("head", True),
        ("head -n 5", True),
        ("head -n5 -q", True),
        ("tail -5", True),
        ("cut -d : -f 1,2", True),
        ("cut -d '-' -f1", True),
        ("uniq -c", True),
        ("wc -l", True),
        ("tr a b", True),
        ("tr '[:lower:]' '[:upper:]'", True),
        ("tr -d x", True),
        ("head | tail | wc", True),
        ("head /etc/passwd", False),
        ("head -n 5 /etc/passwd", False),
        ("head -- /etc/passwd", False),
        ("uniq in out", False),
        ("wc --files0-from=/etc/passwd", False),
        ("wc --files0=x", False),
        ("tail --follow=name x", False),
        ("wc *", False),
        ("cut -f1 -", False),
        ("tr a b c", False),
        ("head | sort", False),
        ("grep x", False),
    ],
)
def test_safe_programs_need_no_entry_as_long_as_they_read_no_file(command: str, safe: bool) -> None:
    assert (analyse({"command": command}, [], "/usr/bin:/bin").pinned is not None) is safe


@pytest.mark.covers("S-3")
@pytest.mark.parametrize(
    "command",
    [
        # As they were found: the last letter was taken for an option that wants a value.
        "head -99999c secret",
        "tail -99999c secret",
        "tail -s0xc secret -n +1",
        "head -500qc secret",
        # Variants.
        "head -n secret",
        "head -qn secret",
        "tail -n+1 -qn secret",
        "tail -5n secret",
        "uniq -cf secret",
        "uniq -w1f secret",
        "cut -sd secret -f1",
        "cut -zf1 secret",
        "cut -f secret",
        "cut -d ab -f1",
        "tail -c +1secret",
        "tail -5 secret",
        "head -n",
        "wc -lsecret",
        "tr -d a b secret",
    ],
)
def test_no_cluster_or_value_of_a_safe_program_hides_the_name_of_a_file(command: str) -> None:
    assert analyse({"command": command}, [], "/usr/bin:/bin").pinned is None


@pytest.mark.covers("S-3")
@pytest.mark.parametrize("program", ["cut", "uniq", "head", "tail", "wc"])
def test_no_options_of_a_safe_program_let_the_name_of_a_file_pass(program: str) -> None:
    clusters = [
        "".join(letters)
        for length in (1, 2, 3)
        for letters in itertools.product("cdfnqsw0x9+", repeat=length)
    ]
    commands = [
        [f"{program} -{each} secret", f"{program} -n 1 -{each} secret -c 1"] for each in clusters
    ]
    for command in itertools.chain.from_iterable(commands):
        (segment,) = parse(command)
        assert not is_safe(segment, f"/usr/bin/{program}"), command


def test_a_program_that_only_calls_itself_safe_is_not(programs: Path) -> None:
    (programs / "head").symlink_to(programs / "bad")
    assert analyse({"command": "head"}, [], str(programs)).pinned is None


# ---- The host's file ----


@given(*[st.sampled_from(SECURITIES)] * 2, *[st.sampled_from(ASKS)] * 2)
def test_the_stricter_of_two_is_at_least_as_strict_as_both(
    one: Any, two: Any, ask_one: Any, ask_two: Any
) -> None:
    first = ExecRules(security=one, ask=ask_one, ask_fallback=two)
    second = ExecRules(security=two, ask=ask_two, ask_fallback=one)
    both = first.stricter(second)
    assert both == second.stricter(first)
    assert SECURITIES.index(both.security) == min(map(SECURITIES.index, (one, two)))
    assert ASKS.index(both.ask) == max(map(ASKS.index, (ask_one, ask_two)))
    assert both.ask_fallback == both.security


def test_without_a_file_the_host_has_no_rules(tmp_path: Path) -> None:
    found = HostFile(tmp_path / "none.json").for_agent("main")
    assert (found.rules, found.allowlist, found.problem) == (ExecRules(), (), "")


def test_an_agents_rules_stand_before_those_of_all(tmp_path: Path) -> None:
    host = host_file(
        tmp_path,
        defaults={"security": "deny", "ask": "always"},
        agents={"main": {"security": "allowlist"}},
        socket={"path": "kept"},
    )
    assert host.for_agent("main").rules == ExecRules(security="allowlist", ask="always")
    assert host.for_agent("other").rules == ExecRules(security="deny", ask="always")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"version": 2}',
        '{"version": 1, "defaults": {"security": "everything"}}',
        '{"version": 1, "defaults": []}',
        '{"version": 1, "agents": {"main": 1}}',
        '{"version": 1, "agents": {"main": {"allowlist": ["/bin/ls"]}}}',
        '{"version": 1, "agents": {"main": {"allowlist": {}}}}',
        '{"version": 1, "default": {"security": "deny"}}',
        '{"version": 1, "defaults": {"securty": "deny"}}',
        '{"version": 1, "defaults": {"Security": "deny"}}',
        '{"version": 1, "agents": {"Main": {"security": "deny"}}}',
        '{"version": 1, "agents": {"other": {"askfallback": "deny"}}}',
        '{"version": 1, "agents": {"*": {"security": "deny"}}}',
        '{"version": 1, "agents": {"\\u043cain": {"security": "deny"}}}',
        '{"version": 1, "agents": {"main\\n": {"security": "deny"}}}',
        '{"version": 1, "defaults": {"allowlist": []}}',
        "[" * 100_000,
        " " * (2 << 20),
    ],
)
@pytest.mark.covers("S-15")
def test_a_file_that_cannot_be_used_denies_everything(tmp_path: Path, text: str) -> None:
    (tmp_path / "f.json").write_text(text, "utf-8")
    found = HostFile(tmp_path / "f.json").for_agent("main")
    assert (found.rules, bool(found.problem)) == (DENIED, True)


@pytest.mark.covers("S-15")
def test_an_unknown_key_of_the_file_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    host = host_file(tmp_path, agents={"other": {"securty": "deny"}})
    assert host.for_agent("main").problem.endswith(
        "agents.other.securty: unknown key; the nearest known one is security"
    )


def test_what_is_remembered_is_added_once_and_the_rest_is_kept(tmp_path: Path) -> None:
    host = host_file(tmp_path, socket={"token": "t"}, agents={"main": {"ask": "always"}})
    host.remember("main", ["/bin/ls", "/bin/ls", "/odd/*/x"], "ls -l")
    host.remember("main", ["/bin/ls", "/bin/wc"], "ls | wc")
    host.remember("new", ["/bin/ls"], "ls")
    data = json.loads(host.path.read_text("utf-8"))
    assert data["socket"] == {"token": "t"}
    assert data["agents"]["main"]["ask"] == "always"
    entries = data["agents"]["main"]["allowlist"]
    assert [entry["pattern"] for entry in entries] == ["/bin/ls", "/bin/wc"]
    assert all(entry["id"] and entry["lastUsedAt"] for entry in entries)
    assert [each.pattern for each in host.for_agent("new").allowlist] == ["/bin/ls"]
    assert host.path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_used_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text('{"version": 9}', "utf-8")
    with pytest.raises(ValueError, match="version"):
        HostFile(path).remember("main", ["/bin/ls"], "ls")
    assert path.read_text("utf-8") == '{"version": 9}'


# ---- Deciding ----


@pytest.mark.parametrize(
    ("rules", "listed", "unlisted"),
    [
        (ExecRules(), "allow", "allow"),
        (ExecRules(security="deny"), "block", "block"),
        (ExecRules(security="deny", ask="always"), "block", "block"),
        (ExecRules(security="allowlist"), "allow", "block"),
        (ExecRules(security="allowlist", ask="on-miss"), "allow", "ask"),
        (ExecRules(security="allowlist", ask="always"), "ask", "ask"),
        (ExecRules(ask="on-miss"), "allow", "allow"),
        (ExecRules(ask="always"), "ask", "ask"),
    ],
)
async def test_rules_decide(
    tmp_path: Path, programs: Path, rules: ExecRules, listed: str, unlisted: str
) -> None:
    host = allowing(tmp_path, f"{programs}/good")
    guard = ExecGuard(rules, host=host, search_path=str(programs))
    assert await outcome(guard, "good") == listed
    assert await outcome(guard, "bad") == unlisted
    assert await outcome(guard, "good > f") == unlisted


@pytest.mark.parametrize(
    ("rules", "listed", "unlisted"),
    [
        (ExecRules(ask="always", ask_fallback="deny"), "block", "block"),
        (ExecRules(ask="always", ask_fallback="allowlist"), "allow", "block"),
        (ExecRules(ask="always", ask_fallback="full"), "allow", "allow"),
        (ExecRules(security="allowlist", ask="on-miss", ask_fallback="full"), "allow", "block"),
        (ExecRules(security="allowlist", ask="always", ask_fallback="full"), "allow", "block"),
        (ExecRules(security="allowlist", ask="on-miss", ask_fallback="deny"), "allow", "block"),
    ],
)
async def test_where_nobody_can_be_asked_the_fallback_holds_and_never_more_than_security(
    tmp_path: Path, programs: Path, rules: ExecRules, listed: str, unlisted: str
) -> None:
    host = allowing(tmp_path, f"{programs}/good")
    guard = ExecGuard(rules, host=host, search_path=str(programs), can_ask=lambda: False)
    assert await outcome(guard, "good") == listed
    assert await outcome(guard, "bad") == unlisted


async def test_the_host_can_only_make_it_stricter(tmp_path: Path, programs: Path) -> None:
    host = allowing(tmp_path, f"{programs}/good", security="allowlist", ask="on-miss")
    assert await outcome(ExecGuard(host=host, search_path=str(programs)), "bad") == "ask"
    denied = ExecGuard(ExecRules(security="deny"), host=host, search_path=str(programs))
    assert await outcome(denied, "good") == "block"


async def test_rules_can_differ_by_run() -> None:
    guard = ExecGuard(lambda run: ExecRules(security="deny" if run == OTHER else "full"))
    assert await outcome(guard, "ls") == "allow"
    assert await outcome(guard, "ls", run=OTHER) == "block"


async def test_programs_of_code_mode_and_other_tools_are_not_its_business() -> None:
    guard = ExecGuard(ExecRules(security="deny"))
    cell = dataclasses.replace(event("x"), tool_kind="code_mode_exec")
    other = dataclasses.replace(event("x"), tool_id="mcp:server:exec")
    polling = dataclasses.replace(event("x"), tool_id=PROCESS_ID, params={"action": "poll"})
    assert [await guard.hook(each) for each in (cell, other, polling)] == [None] * 3


async def test_what_is_written_to_a_command_is_asked_about_if_everything_is() -> None:
    writing = dataclasses.replace(
        event("x"), tool_id=PROCESS_ID, params={"action": "write", "sessionId": "s", "data": "d"}
    )
    decisions = [
        await ExecGuard(rules).hook(writing)
        for rules in (LISTED, ExecRules(ask="always"), ExecRules(security="deny"))
    ]
    assert [each is not None and each.block for each in decisions] == [False, False, True]
    assert [each is not None and bool(each.require_approval) for each in decisions] == [
        False,
        True,
        False,
    ]


async def test_a_listed_command_runs_by_full_paths(tmp_path: Path, programs: Path) -> None:
    guard = ExecGuard(LISTED, host=allowing(tmp_path, f"{programs}/*"), search_path=str(programs))
    decision = await guard.hook(event("good 'a b' | fine", workdir="sub"))
    assert decision is not None
    assert decision.params == {
        "command": f"'{programs}/good' 'a b' | '{programs}/fine'",
        "workdir": "sub",
    }


async def test_the_use_of_an_entry_is_written_down(tmp_path: Path, programs: Path) -> None:
    host = allowing(tmp_path, f"{programs}/good", f"{programs}/fine")
    await ExecGuard(LISTED, host=host, search_path=str(programs)).hook(event("good x"))
    used, unused = json.loads(host.path.read_text("utf-8"))["agents"]["main"]["allowlist"]
    assert (used["lastUsedCommand"], used["lastResolvedPath"]) == ("good x", f"{programs}/good")
    assert "lastUsedAt" not in unused


# ---- What a decision is worth ----


async def granted(guard: ExecGuard, call: BeforeToolCall, resolution: Any) -> None:
    decision = await guard.hook(call)
    assert decision is not None
    assert isinstance(decision.require_approval, ExecApproval)
    decision.require_approval.on_resolution(resolution)


def redeem(guard: ExecGuard, run: RunContext = RUN, call_id: str = "c1", **params: Any) -> None:
    guard.redeem(EXEC_ID, params, run, call_id)


async def test_what_was_approved_runs_once() -> None:
    guard = ExecGuard(ExecRules(ask="always"))
    await granted(guard, event("rm x", workdir="sub"), "allow-once")
    redeem(guard, command="rm x", workdir="sub")
    with pytest.raises(ToolProblem):
        redeem(guard, command="rm x", workdir="sub")


@pytest.mark.parametrize(
    "changed",
    [
        {"command": "rm y"},
        {"workdir": "other"},
        {"workdir": None},
        {"env": {"A": "b"}},
        {"run": OTHER},
        {"call_id": "c2"},
    ],
)
async def test_what_was_changed_since_does_not_run(changed: dict[str, Any]) -> None:
    guard = ExecGuard(ExecRules(ask="always"))
    await granted(guard, event("rm x", workdir="sub"), "allow-once")
    asked: dict[str, Any] = {"command": "rm x", "workdir": "sub"}
    with pytest.raises(ToolProblem) as caught:
        redeem(guard, **(asked | changed))
    assert caught.value.code == "not_decided"


@pytest.mark.parametrize("resolution", ["deny", "timeout", "cancelled", "nonsense", None])
async def test_without_a_yes_nothing_runs(resolution: Any) -> None:
    guard = ExecGuard(ExecRules(ask="always"))
    if resolution is None:
        await guard.hook(event("rm x"))
    else:
        await granted(guard, event("rm x"), resolution)
    with pytest.raises(ToolProblem):
        redeem(guard, command="rm x")


async def test_allow_always_puts_what_was_missing_on_the_list(
    tmp_path: Path, programs: Path
) -> None:
    host = allowing(tmp_path, f"{programs}/good")
    guard = ExecGuard(ASKING, host=host, search_path=str(programs))
    await granted(guard, event("good | bad"), "allow-always")
    redeem(guard, command="good | bad")
    assert await outcome(guard, "bad again") == "allow"
    assert await outcome(guard, "fine") == "ask"
    assert [each.pattern for each in host.for_agent("main").allowlist] == [
        f"{programs}/good",
        f"{programs}/bad",
    ]
    assert host.for_agent("other").allowlist == ()


async def test_allow_always_of_what_is_not_understood_is_allow_once(
    tmp_path: Path, programs: Path
) -> None:
    host = allowing(tmp_path)
    guard = ExecGuard(ASKING, host=host, search_path=str(programs))
    await granted(guard, event("good > f"), "allow-always")
    redeem(guard, command="good > f")
    assert host.for_agent("main").allowlist == ()


# ---- Through the executor ----


async def test_the_tool_refuses_what_nobody_decided_about(tmp_path: Path) -> None:
    async with bench(tmp_path, shell=ShellSettings(rules=ASKING)) as tools:
        assert await tools.problem("exec", command="true") == "not_decided"
        with pytest.raises(ToolFailure):
            await tools.call("exec", command="true")


async def test_an_allowlist_lets_listed_commands_run_and_no_others(
    tmp_path: Path, programs: Path
) -> None:
    host = allowing(tmp_path, f"{programs}/good")
    path = f"{programs}:/usr/bin:/bin"
    guard = ExecGuard(LISTED, host=host, search_path=path)
    hooks = Hooks()
    guard.install(hooks)
    root = tmp_path / "ws"
    root.mkdir()
    (root / "good").write_text("#!/bin/sh\necho EVIL\n", "utf-8")
    (root / "good").chmod(0o755)
    settings = ShellSettings(env={"PATH": f".:{path}"})
    async with bench(root, hooks, shell=settings, guard=guard) as tools:
        done = await tools.call("exec", command="good a | head -n 1")
        assert done["output"] == f"{programs}/good a\n"
        for command in (
            "bad",
            "good; bad",
            "good && cat /etc/passwd",
            "good $(bad)",
            "good > stolen",
            "./good",
            "head /etc/passwd",
            "good\nbad",
            "PATH=. good",
            "command bad",
            "exec bad",
            "eval bad",
        ):
            with pytest.raises(ToolFailure) as caught:
                await tools.call("exec", command=command)
            assert caught.value.code == "blocked"
    assert os.listdir(root) == ["good"]


async def test_a_hook_that_changes_a_command_before_it_is_decided_about_is_heard(
    tmp_path: Path,
) -> None:
    guard = ExecGuard(LISTED, search_path="/usr/bin:/bin")
    hooks = Hooks()
    guard.install(hooks)

    def rewrite(call: BeforeToolCall) -> ToolCallDecision:
        return ToolCallDecision(params={"command": "cat /etc/passwd"})

    hooks.before_tool_call(rewrite)
    async with bench(tmp_path, hooks, guard=guard) as tools:
        with pytest.raises(ToolFailure) as caught:
            await tools.call("exec", command="head")
    assert caught.value.code == "blocked"


WIRED = "on_resolution" in {each.name for each in dataclasses.fields(RequireApproval)}


@pytest.mark.skipif(not WIRED, reason="approvals do not tell hooks what was answered yet")
async def test_a_person_decides_about_this_command_and_no_other(
    tmp_path: Path, programs: Path
) -> None:
    host = allowing(tmp_path)
    path = f"{programs}:/usr/bin:/bin"
    guard = ExecGuard(ASKING, host=host, search_path=path)
    hooks = Hooks()
    guard.install(hooks)
    asked: list[str] = []
    answers = ["deny", "allow-once", "allow-always", "deny"]

    def approver(question: Any) -> Any:
        asked.append(question.input["command"])
        return answers[len(asked) - 1]

    root = tmp_path / "ws"
    root.mkdir()
    async with bench(root, hooks, shell=ShellSettings(env={"PATH": path}), guard=guard) as tools:
        tools.executor = Executor(Policy(), hooks, Approvals(approver=approver))
        with anyio.fail_after(10):
            with pytest.raises(ToolFailure):
                await tools.call("exec", command="good 1")
            await tools.call("exec", command="good 2")
            await tools.call("exec", command="good 3")
            done = await tools.call("exec", command="good 4")
            with pytest.raises(ToolFailure):
                await tools.call("exec", command="bad 5")
    assert done["output"] == f"{programs}/good 4\n"
    assert asked == ["good 1", "good 2", "good 3", "bad 5"]
