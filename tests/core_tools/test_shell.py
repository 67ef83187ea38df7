"""Commands: how they run, what they see of us, and that they and all they start come to an end."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.core_tools_driver import OTHER, RUN, Bench, bench
from tests.support.waiting import is_alive, until, within

from clawmode.context import RunContext
from clawmode.core_tools.processes import Output, ProcessLimits, ShellSessions
from clawmode.core_tools.shell import ShellSettings, reduced
from clawmode.core_tools.suite import make_core_tools

pytestmark = pytest.mark.anyio

QUICK = ProcessLimits(grace_seconds=0.3)
"""For commands that ignore SIGTERM. Another one may need longer to end on a busy machine."""


@pytest.fixture
async def tools(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as made:
        yield made


async def run(tools: Bench, command: str, **input: Any) -> Any:
    with anyio.fail_after(10):
        return await tools.call("exec", command=command, **input)


async def poll(tools: Bench, session: str) -> Any:
    """Waits for news."""
    with anyio.fail_after(10):
        return await tools.call("process", action="poll", sessionId=session, timeoutMs=5_000)


async def dead(pid: int) -> None:
    await until(lambda: not is_alive(pid))


async def begin(tools: Bench, command: str, run: RunContext = RUN) -> tuple[str, str]:
    """Starts a command in the background, and waits for its first output."""
    with anyio.fail_after(10):
        told = await tools.call("exec", run, command=command, background=True)
        session = told["sessionId"]
        if not told["output"]:
            poll = {"action": "poll", "sessionId": session, "timeoutMs": 9_000}
            told = await tools.call("process", run, **poll)
    return session, told["output"]


# ---- In the foreground ----


async def test_a_command_gives_its_output_and_its_exit_code(tools: Bench) -> None:
    done = await run(tools, "echo out; echo err >&2; exit 3")
    assert done.pop("durationMs") >= 0
    assert done == {
        "status": "failed",
        "output": "out\nerr\n",
        "truncated": False,
        "exitCode": 3,
    }


async def test_the_model_reads_output_and_ending(tools: Bench) -> None:
    assert (await tools.bare("exec", command="echo hi")).text == "hi\n[exit code 0]"
    assert (await tools.bare("exec", command="kill -9 $$")).text == "[ended by SIGKILL]"


async def test_it_runs_in_the_workspace_or_below(tools: Bench) -> None:
    (tools.root / "sub").mkdir()
    (tools.root / "link").symlink_to("sub")
    assert (await run(tools, "pwd"))["output"].strip() == str(tools.root)
    for workdir in ("sub", "link", str(tools.root / "sub")):
        assert (await run(tools, "pwd -P", workdir=workdir))["output"].strip().endswith("/sub")


@pytest.mark.parametrize(
    ("workdir", "code"),
    [("..", "outside"), ("missing", "not_found"), ("file", "not_a_folder"), ("/", "outside")],
)
async def test_it_runs_nowhere_else(tools: Bench, workdir: str, code: str) -> None:
    (tools.root / "file").write_text("", "utf-8")
    assert await tools.problem("exec", command="pwd", workdir=workdir) == code


async def test_stdin_is_empty(tools: Bench) -> None:
    assert (await run(tools, "cat"))["status"] == "completed"


async def test_it_inherits_no_descriptor(tools: Bench) -> None:
    secret = os.open(tools.root, os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        listed = (await run(tools, "ls /proc/self/fd"))["output"].split()
    finally:
        os.close(secret)
    assert set(listed) <= {"0", "1", "2", "3"}  # 3: the folder that `ls` reads


@pytest.mark.parametrize(
    "input",
    [
        {"command": " "},
        {"command": "a\0b"},
        {"command": "\ud800"},
        {"command": "x" * 100_001},
        {"command": "true", "timeout": 0},
        {"command": "true", "timeout": -1},
        {"command": "true", "env": {"A=B": "x"}},
        {"command": "true", "env": {"": "x"}},
        {"command": "true", "env": {"A": "\0"}},
        {"command": "true", "env": {"LD_PRELOAD": "x.so"}},
        {"command": "true", "env": {"PATH": "."}},
        {"command": "true", "env": {"BASH_ENV": "x"}},
        {"command": "true", "env": {"BASH_FUNC_ls%%": "() { evil; }"}},
        {"command": "true", "env": {f"A{number}": "" for number in range(101)}},
    ],
)
async def test_what_cannot_be_run_is_refused(tools: Bench, input: dict[str, Any]) -> None:
    assert await tools.problem("exec", **input) == "bad_input"


async def test_a_missing_shell_is_reported(tmp_path: Path) -> None:
    async with bench(tmp_path, shell=ShellSettings(shell=("/nonexistent",))) as tools:
        assert await tools.problem("exec", command="true") == "failed"


# ---- What it sees ----


async def test_secrets_of_ours_are_not_its(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {
        "OPENAI_API_KEY": "a",
        "GITHUB_TOKEN": "b",
        "AWS_SECRET_ACCESS_KEY": "c",
        "DB_PASSWORD": "d",
        "SIGNING_KEY": "e",
        "DATABASE_URL": "postgres://user:hunter2@db/x",
        "INNOCENT": "ghp_0123456789abcdef0123456789abcdef0123",
        "LD_LIBRARY_PATH": "/tmp",
        "BASH_ENV": "/tmp/x",
    }
    for name, value in {**hidden, "KEPT_TOKEN": "f", "PLAIN": "g"}.items():
        monkeypatch.setenv(name, value)
    settings = ShellSettings(keep_env=("KEPT_TOKEN",), env={"MY_TOKEN": "h"})
    async with bench(tmp_path, shell=settings) as tools:
        output = (await run(tools, "env", env={"ADDED": "i"}))["output"]
    seen = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    assert seen.keys().isdisjoint(hidden)
    assert [seen.get(name) for name in ("KEPT_TOKEN", "PLAIN", "MY_TOKEN", "ADDED")] == list("fghi")
    assert seen["PATH"] == os.environ["PATH"]


def test_what_is_needed_to_work_is_left() -> None:
    plain = {"HOME": "/home/x", "LANG": "C.UTF-8", "TERM": "xterm", "PATH": "/bin", "USER": "x"}
    assert reduced({**plain, "PWD": "/elsewhere", "IFS": "x"}) == plain


@pytest.mark.covers("S-9")
def test_a_name_and_password_for_http_are_withheld() -> None:
    secrets = {"PLAIN": "Basic dXNlcjpodW50ZXIy", "OTHER": " basic dXNlcjpodW50ZXI= "}
    words = {"EDITION": "basic edition", "LEVEL": "Basic"}
    assert reduced({**secrets, **words}) == words


# ---- Time ----


async def test_a_command_is_ended_when_its_time_is_over(tools: Bench) -> None:
    done = await run(tools, "sleep 60", timeout=0.3)
    assert (done["status"], done["signal"], done["timedOut"]) == ("failed", "SIGTERM", True)


async def test_one_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    async with bench(tmp_path, shell=ShellSettings(limits=QUICK)) as tools:
        session, _ = await begin(tools, "trap '' TERM; echo begun; while :; do sleep 0.05; done")
        ended = await tools.call("process", action="kill", sessionId=session)
    assert ended["signal"] == "SIGKILL"


async def test_no_command_gets_more_time_than_there_is(tmp_path: Path) -> None:
    settings = ShellSettings(max_timeout_seconds=0.2, limits=QUICK)
    async with bench(tmp_path, shell=settings) as tools:
        assert (await run(tools, "sleep 60", timeout=1_000))["timedOut"]
        assert (await run(tools, "sleep 60"))["timedOut"]


async def test_processes_that_a_command_leaves_behind_end_with_it(tools: Bench) -> None:
    done = await run(tools, "sleep 60 & echo $!")
    assert done["status"] == "completed"
    await dead(int(done["output"]))


async def test_one_that_gets_away_does_not_keep_its_caller_waiting(tools: Bench) -> None:
    with within(3):
        done = await run(tools, "setsid sleep 5 & echo begun; sleep 0.1")
    assert done["output"] == "begun\n"


async def test_a_call_that_is_cancelled_ends_its_command(tools: Bench) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, tools, "echo $$ > pid; sleep 60 & wait")
        path = tools.root / "pid"
        await until(lambda: path.exists() and path.read_text("utf-8").endswith("\n"))
        pid = int(path.read_text("utf-8"))
        assert is_alive(pid)
        tasks.cancel_scope.cancel()
    await dead(pid)
    assert (await tools.call("process", action="list"))["sessions"] == []


# ---- Output ----


async def test_of_much_output_the_ends_are_kept(tmp_path: Path) -> None:
    settings = ShellSettings(limits=ProcessLimits(output_bytes=2_000))
    async with bench(tmp_path, shell=settings) as tools:
        done = await run(tools, "seq 1 100000")
    assert done["truncated"]
    assert done["output"].startswith("1\n2\n")
    assert done["output"].endswith("\n100000\n")
    assert "bytes omitted]" in done["output"]
    assert len(done["output"]) < 2_100


async def test_output_that_is_not_text_is_shown_as_such(tools: Bench) -> None:
    assert (await run(tools, r"printf 'a\377b'"))["output"] == "a\ufffdb"


@given(st.lists(st.binary(max_size=30), max_size=30), st.integers(1, 40), st.integers(0, 300))
def test_output_keeps_beginning_and_end(chunks: list[bytes], limit: int, position: int) -> None:
    output = Output(limit)
    for chunk in chunks:
        output.add(chunk)
    whole = b"".join(chunks)
    head, lost, tail = output.since(min(position, len(whole)))
    rest = whole[position:]
    assert len(head) + lost + len(tail) == len(rest)
    assert rest.startswith(head)
    assert rest.endswith(tail)
    assert lost == 0 or len(head) + len(tail) <= limit + 1


# ---- In the background ----


async def test_a_long_command_continues_in_the_background(tools: Bench) -> None:
    waiting = "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two"
    running = await run(tools, waiting, yieldMs=50)
    assert running["status"] == "running"
    (tools.root / "go").touch()
    done = await poll(tools, running["sessionId"])
    while done["status"] == "running":
        done = await poll(tools, running["sessionId"])
    assert (done["status"], done["exitCode"]) == ("completed", 0)
    log = await tools.call("process", action="log", sessionId=running["sessionId"])
    assert (log["output"], log["totalLines"]) == ("one\ntwo", 2)


async def test_one_can_be_talked_to(tools: Bench) -> None:
    session = (await run(tools, "while read x; do echo got $x; done", background=True))["sessionId"]
    await tools.call("process", action="write", sessionId=session, data="a\n")
    assert (await poll(tools, session))["output"] == "got a\n"
    await tools.call("process", action="write", sessionId=session, data="b\n", eof=True)
    told = await poll(tools, session)
    output = told["output"]
    while told["status"] == "running":
        told = await poll(tools, session)
        output += told["output"]
    assert (output, told["exitCode"]) == ("got b\n", 0)
    assert await tools.problem("process", action="write", sessionId=session, data="c") == "closed"


async def test_one_that_was_not_started_for_it_cannot_be_talked_to(tools: Bench) -> None:
    session = (await run(tools, "sleep 60", yieldMs=1))["sessionId"]
    assert await tools.problem("process", action="write", sessionId=session, data="c") == "closed"


async def test_a_poll_gives_only_what_is_new_and_does_not_wait_unasked(tools: Bench) -> None:
    session, first = await begin(tools, "echo a; sleep 60")
    assert first == "a\n"
    told = await tools.call("process", action="poll", sessionId=session)
    assert (told["output"], told["status"]) == ("", "running")


@pytest.mark.parametrize("action", ["kill", "remove"])
async def test_one_can_be_ended(tools: Bench, action: str) -> None:
    session, output = await begin(tools, "echo $$; sleep 60")
    pid = int(output)
    ended = await tools.call("process", action=action, sessionId=session)
    assert (ended["status"], ended["signal"]) == ("failed", "SIGTERM")
    await dead(pid)
    listed = (await tools.call("process", action="list"))["sessions"]
    assert [each["status"] for each in listed] == ([] if action == "remove" else ["failed"])


async def test_another_session_sees_nothing_of_it(tools: Bench) -> None:
    session = (await run(tools, "sleep 60", background=True))["sessionId"]
    assert (await tools.call("process", OTHER, action="list"))["sessions"] == []
    for action in ("poll", "log", "write", "kill", "remove"):
        code = await tools.problem("process", OTHER, action=action, sessionId=session)
        assert code == "not_found"
        assert code == await tools.problem("process", OTHER, action=action, sessionId="sh_none")
    # A later run of the same session has it.
    later = RunContext(
        agent_id=RUN.agent_id, session_id=RUN.session_id, session_key=RUN.session_key
    )
    assert len((await tools.call("process", later, action="list"))["sessions"]) == 1


async def test_runs_without_a_session_do_not_see_each_other(tools: Bench) -> None:
    one, two = RunContext(), RunContext()
    await run(tools, "sleep 60", background=True, run=one)
    assert len((await tools.call("process", one, action="list"))["sessions"]) == 1
    assert (await tools.call("process", two, action="list"))["sessions"] == []


async def test_a_command_that_somebody_waits_for_is_not_in_the_list(tools: Bench) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, tools, "touch begun; sleep 60")
        await until((tools.root / "begun").exists)
        assert (await tools.call("process", action="list"))["sessions"] == []
        tasks.cancel_scope.cancel()


async def test_there_are_not_too_many(tmp_path: Path) -> None:
    limits = ProcessLimits(running=2, total=3, finished=2, grace_seconds=0.3)
    async with bench(tmp_path, shell=ShellSettings(limits=limits)) as tools:
        for _ in range(2):
            await run(tools, "sleep 60", background=True)
        assert await tools.problem("exec", command="true") == "too_many"
        await tools.call("exec", OTHER, command="sleep 60", background=True)
        assert await tools.problem("exec", OTHER, command="true") == "too_many"


async def test_those_that_have_ended_are_forgotten_in_the_end(tmp_path: Path) -> None:
    limits = ProcessLimits(finished=2)
    async with bench(tmp_path, shell=ShellSettings(limits=limits)) as tools:
        for number in range(4):
            session = (await run(tools, f"echo {number}", background=True))["sessionId"]
            with anyio.fail_after(5):
                while (await poll(tools, session))["status"] == "running":
                    pass
        listed = (await tools.call("process", action="list"))["sessions"]
    assert [each["command"] for each in listed] == ["echo 2", "echo 3"]


async def test_without_a_background_a_command_is_waited_for(tmp_path: Path) -> None:
    async with bench(tmp_path, shell=ShellSettings(background=False)) as tools:
        done = await run(tools, "sleep 0.3; echo done", background=True, yieldMs=1)
        assert (done["status"], done["output"]) == ("completed", "done\n")
        assert [tool.name for tool in tools.suite.tools if tool.name == "process"] == []


async def test_actions_need_a_command(tools: Bench) -> None:
    assert await tools.problem("process", action="poll") == "bad_input"
    assert await tools.problem("process", action="kill", sessionId="x") == "not_found"


# ---- The end ----


async def test_the_end_of_the_suite_ends_all_commands(tmp_path: Path) -> None:
    async with bench(tmp_path, shell=ShellSettings(limits=QUICK)) as tools:
        stubborn = "trap '' TERM; echo $$; sleep 60; sleep 60"
        _, output = await begin(tools, stubborn)
        pid = int(output)
    assert not is_alive(pid)
    assert await tools.problem("exec", command="true") == "closed"


async def test_a_session_that_ends_takes_its_own_commands_along(tools: Bench) -> None:
    await run(tools, "sleep 60", background=True)
    await tools.call("exec", OTHER, command="sleep 60", background=True)
    await tools.suite.sessions.end(RUN)
    assert (await tools.call("process", action="list"))["sessions"] == []
    assert len((await tools.call("process", OTHER, action="list"))["sessions"]) == 1


async def test_a_run_that_ends_can_take_its_own_alone(tools: Bench) -> None:
    later = RunContext(
        agent_id=RUN.agent_id, session_id=RUN.session_id, session_key=RUN.session_key
    )
    await run(tools, "sleep 60", background=True)
    await run(tools, "sleep 61", background=True, run=later)
    await tools.suite.sessions.end(RUN, whole_session=False)
    listed = (await tools.call("process", action="list"))["sessions"]
    assert [each["command"] for each in listed] == ["sleep 61"]


async def test_sessions_that_are_shared_outlive_a_suite(tmp_path: Path) -> None:
    async with ShellSessions() as sessions:
        async with make_core_tools(tmp_path, sessions=sessions) as suite:
            await suite.aclose()
            async with bench(tmp_path, sessions=sessions) as tools:
                await run(tools, "sleep 60", background=True)
        (command,) = sessions.listed(RUN)
        assert command.state == "running"
    assert command.process.returncode == -signal.SIGTERM


async def test_a_host_that_is_cancelled_leaves_no_command(tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        async with bench(tmp_path, shell=ShellSettings(limits=QUICK)) as tools:
            await run(tools, "sleep 60", background=True)
            (command,) = tools.suite.sessions.listed(RUN)
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert command.exit_code in (-signal.SIGTERM, -signal.SIGKILL)
    assert not is_alive(command.process.pid)
