"""Operator hooks: which run, what they are told, what their answers do, and how they fail."""

import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.waiting import is_alive, until

from clawmode.agent import operator_scripts
from clawmode.agent.operator_hooks import Answer, OperatorHooks
from clawmode.agent.operator_scripts import MAX_ANSWER, Program, ScriptError
from clawmode.agent.prompt import MAX_FILE_CHARS, MAX_TOTAL_CHARS, BootstrapFile
from clawmode.config import json5
from clawmode.config.operations import InternalHook, InternalHooks
from clawmode.sections import (
    read,
)

pytestmark = pytest.mark.anyio

ABOUT: dict[str, Any] = {"agentId": "main", "sessionKey": "agent:main:main", "runId": "r1"}
SOUL = BootstrapFile("SOUL.md", "kind")
USER = BootstrapFile("USER.md", "Ann")

ECHO = "import json, sys; event = json.load(sys.stdin); print(json.dumps({'got': event}))"


def program(code: str, *events: str, **more: Any) -> InternalHook:
    """A hook that is a program in Python."""
    argv = (sys.executable, "-I", "-c", code)
    return InternalHook(events=events or ("command",), command=argv, **more)


def answering(answer: object, *events: str, **more: Any) -> InternalHook:
    """A program that always answers this."""
    return program(f"print({json.dumps(json.dumps(answer))})", *events, **more)


def python(folder: Path, name: str, code: str, *events: str, **more: Any) -> InternalHook:
    (folder / name).write_text(code, "utf-8")
    return InternalHook(events=events or ("command",), file=name, **more)


def hooks(folder: Path, **entries: InternalHook) -> OperatorHooks:
    return OperatorHooks(InternalHooks(entries=entries), folder)


async def run(made: OperatorHooks, event: str = "command:new", **payload: Any) -> list[Answer]:
    with anyio.fail_after(10):
        return await made.run(event, payload)


async def failure(caplog: pytest.LogCaptureFixture, made: OperatorHooks) -> str:
    """What is logged of the one hook, which said nothing."""
    assert await run(made) == []
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("clawmode.hooks", "ERROR")
    assert record.getMessage().startswith("hook bad of command:new: ")
    return record.getMessage().partition("command:new: ")[2]


# ---- Which run ----


@pytest.mark.covers("AL-32")
def test_an_event_is_matched_by_its_name_or_its_kind(tmp_path: Path) -> None:
    made = hooks(
        tmp_path,
        commands=answering({}, "command"),
        begin=answering({}, "session:start", "command:new"),
    )
    known = ("command:new", "command:reset", "command:anything", "session:start")
    assert [event for event in known if not made.has(event)] == []
    unknown = ("session:end", "agent:bootstrap", "commander:new", "commands", "message:sent")
    assert [event for event in unknown if made.has(event)] == []


def test_what_is_switched_off_does_not_run(tmp_path: Path) -> None:
    off = hooks(tmp_path, a=answering({}, "command", enabled=False))
    all_off = InternalHooks(enabled=False, entries={"a": answering({}, "command")})
    assert not off.has("command:new")
    assert not OperatorHooks(all_off, tmp_path).has("command:new")


@pytest.mark.parametrize(
    ("event", "nearest"),
    [
        ("agent:bootsrap", "agent:bootstrap"),
        ("sessions:start", "session:start"),
        ("command:/new", "command:new"),
        ("Gateway:Startup", "gateway:startup"),
        ("commands", "command"),
        ("q", ""),
    ],
)
def test_an_unknown_event_is_a_warning_with_the_nearest(
    event: str, nearest: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hooks(tmp_path, mine=answering({}, event, "command:new", "command:my-own_1", "session"))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "hook mine" in record.getMessage()
    assert record.getMessage().rpartition(" ")[2].startswith(nearest)


async def test_they_run_in_the_order_of_the_configuration(tmp_path: Path) -> None:
    made = hooks(
        tmp_path,
        z=answering({"n": 1}),
        quiet=program("pass"),
        empty=answering({}),
        a=python(tmp_path, "a.py", "def handle(event): return {'n': 2}"),
        none=python(tmp_path, "none.py", "def handle(event): pass"),
        other=answering({"n": 4}, "session:start"),
        m=answering({"n": 3}, "command:new", "command"),
    )
    assert await run(made) == [Answer("z", {"n": 1}), Answer("a", {"n": 2}), Answer("m", {"n": 3})]


# ---- What they are told ----


async def test_a_program_reads_the_event_as_json(tmp_path: Path) -> None:
    made = hooks(tmp_path, echo=program(ECHO))
    payload: dict[str, Any] = {"text": "ü\ud800\n", "n": [1, None], "event": "forged"}
    (answer,) = await made.run("command:new", payload)
    assert answer.value == {"got": {**payload, "event": "command:new"}}


async def test_a_program_sees_nothing_of_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("HARMLESS", "1")
    code = "import json, os; print(json.dumps({'env': dict(os.environ), 'cwd': os.getcwd()}))"
    (answer,) = await run(hooks(tmp_path, env=program(code, env={"MINE": "yes", "LANG": "C"})))
    ours = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    seen = answer.value["env"]
    assert isinstance(seen, dict)
    seen.pop("LC_CTYPE", None)  # which Python sets for itself
    assert answer.value == {"env": {**ours, "MINE": "yes", "LANG": "C"}, "cwd": str(tmp_path)}


async def test_a_program_has_no_descriptor_of_ours(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    code = (
        "import json, os; print(json.dumps({'n': sorted(map(int, os.listdir('/proc/self/fd')))}))"
    )
    try:
        (answer,) = await run(hooks(tmp_path, fds=program(code)))
    finally:
        os.close(read)
        os.close(write)
    assert answer.value["n"] == [0, 1, 2, 3]  # 3: the folder that it lists


async def test_relative_paths_begin_at_the_folder(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "hook"
    script.write_text('#!/bin/sh\necho "{\\"cwd\\": \\"$PWD\\"}"\n', "utf-8")
    script.chmod(0o700)
    entry = InternalHook(events=("command",), command=("bin/hook",))
    assert await run(hooks(tmp_path, a=entry)) == [Answer("a", {"cwd": str(tmp_path)})]


# ---- Python files ----


async def test_a_file_is_loaded_once_and_under_a_name_of_its_own(tmp_path: Path) -> None:
    code = (
        "from dataclasses import dataclass\n"
        "count = 0\n"
        "@dataclass\n"
        "class Seen:\n"
        "    count: 'int'\n"
        "def handle(event):\n"
        "    global count\n"
        "    count += 1\n"
        "    return {'count': Seen(count).count, 'module': __name__}\n"
    )
    made = hooks(tmp_path, one=python(tmp_path, "a.py", code), two=python(tmp_path, "a.py", code))
    first, second = await run(made), await run(made)
    assert [answer.value["count"] for answer in (*first, *second)] == [1, 1, 2, 2]
    names = {str(answer.value["module"]) for answer in (*first, *second)}
    assert len(names) == 2
    assert all(name.startswith("clawmode_hook_") for name in names)


async def test_a_function_is_awaited_or_runs_in_a_thread(tmp_path: Path) -> None:
    plain = "import threading\ndef handle(event): return {'id': threading.get_ident()}"
    awaited = "import threading\nasync def handle(event): return {'id': threading.get_ident()}"
    object_ = (
        "import asyncio\n"
        "class Handle:\n"
        "    async def __call__(self, event):\n"
        "        await asyncio.sleep(0)\n"
        "        return {'event': event['event']}\n"
        "handle = Handle()\n"
    )
    made = hooks(
        tmp_path,
        plain=python(tmp_path, "plain.py", plain),
        awaited=python(tmp_path, "awaited.py", awaited),
        object=python(tmp_path, "object.py", object_),
    )
    in_thread, here, called = await run(made)
    assert in_thread.value["id"] != threading.get_ident()
    assert here.value["id"] == threading.get_ident()
    assert called.value == {"event": "command:new"}


async def test_a_file_cannot_change_what_other_runs_are_sent(tmp_path: Path) -> None:
    change = "def handle(event): event['list'].append(2); event['event'] = 'x'"
    made = hooks(tmp_path, a=python(tmp_path, "a.py", change), b=program(ECHO))
    given = [1]
    (answer,) = await run(made, list=given)
    assert answer.value == {"got": {"list": [1], "event": "command:new"}}
    assert given == [1]


async def test_a_file_that_was_mended_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = hooks(tmp_path, bad=python(tmp_path, "a.py", "def handle(event:"))
    assert (await failure(caplog, made)).startswith("SyntaxError")
    assert not [name for name in sys.modules if name.endswith("_bad")]
    (tmp_path / "a.py").write_text("def handle(event): return {'ok': True}", "utf-8")
    assert await run(made) == [Answer("bad", {"ok": True})]


# ---- How they fail ----


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit(3)", "it exited with 3"),
        ("import sys; sys.exit('one\\ntwo')", "it exited with 1: two"),
        ("raise OSError('no luck')", "it exited with 1: OSError: no luck"),
        ("import os; os.kill(os.getpid(), 9)", "it was killed by signal 9"),
        ("print('hello')", "its answer is not JSON"),
        ("print('{} {}')", "its answer is not JSON"),
        ("print('[1]')", "its answer is not a JSON object"),
        ("print('null')", "its answer is not a JSON object"),
        ("print('{\"a\": NaN}')", "its answer is not JSON"),
        ("print('[' * 500_000)", "its answer is not JSON"),
        ("print('{\"a\": ' + '9' * 10_000 + '}')", "its answer is not JSON"),
        ('import os; os.write(1, b\'{"a": "\\xff"}\')', "its answer is not JSON"),
    ],
)
async def test_a_program_that_fails_has_said_nothing(
    code: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert await failure(caplog, hooks(tmp_path, bad=program(code))) == said


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise OSError('no luck')", "OSError: no luck"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("x = 1", "it has no function `handle(event)`"),
        ("handle = 3", "it has no function `handle(event)`"),
        ("def handle(): pass", "TypeError: handle() takes 0 positional arguments but 1 was given"),
        ("def handle(event): raise KeyError('k')", "KeyError: 'k'"),
        ("def handle(event): raise TimeoutError", "TimeoutError: TimeoutError"),
        ("def handle(event): raise KeyboardInterrupt", "KeyboardInterrupt: KeyboardInterrupt"),
        ("def handle(event): raise StopIteration", "StopIteration: StopIteration"),
        ("async def handle(event): raise SystemExit(2)", "SystemExit: 2"),
        (
            "import asyncio\nasync def handle(event): raise asyncio.CancelledError",
            "CancelledError: CancelledError",
        ),
        ("def handle(event): return [1]", "its answer is not a JSON object"),
        ("def handle(event): return {'a': {1}}", "its answer is not JSON but dict"),
        ("def handle(event): return {'a': float('nan')}", "its answer is not JSON but dict"),
        ("def handle(event): return object()", "its answer is not JSON but object"),
        ("def handle(event):\n a = {}\n a['a'] = a\n return a", "its answer is not JSON but dict"),
        (
            "def handle(event): return {'a': 'x' * 2_000_000}",
            f"its answer is over {MAX_ANSWER} bytes",
        ),
    ],
)
async def test_a_file_that_fails_has_said_nothing(
    code: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert await failure(caplog, hooks(tmp_path, bad=python(tmp_path, "a.py", code))) == said


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (InternalHook(events=("command",), command=("no-such-program",)), "it cannot be started"),
        (InternalHook(events=("command",), command=("a\0b",)), "it cannot be started"),
        (InternalHook(events=("command",), command=("true",), env={"a=b": "x"}), "it cannot be"),
        (InternalHook(events=("command",), file="absent.py"), "'/"),
        (InternalHook(events=("command",), file="."), "'/"),
    ],
)
async def test_what_is_not_there_has_said_nothing(
    entry: InternalHook, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await failure(caplog, hooks(tmp_path, bad=entry))).startswith(said)


async def test_after_one_that_fails_the_others_run(tmp_path: Path) -> None:
    made = hooks(
        tmp_path,
        a=program("raise SystemExit(1)"),
        b=python(tmp_path, "b.py", "1 / 0"),
        c=answering({"ok": 1}),
    )
    assert await run(made) == [Answer("c", {"ok": 1})]


async def test_no_secret_of_a_program_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = "import os, sys; sys.exit('refused: ' + os.environ['WORD'])"
    entry = program(code, env={"WORD": "hunter2-and-more"})
    assert await failure(caplog, hooks(tmp_path, bad=entry)) == "it exited with 1: refused: ***"
    assert "hunter2" not in repr(Program(argv=("x",), folder=tmp_path, seconds=1, env=entry.env))


# ---- How they hang ----

FORK = """
import os, signal, sys
hear, tell = os.pipe()
child = os.fork()
if child == 0:
    {child}
    signal.pause()
    os._exit(0)
open("pids", "w").write(f"{{os.getpid()}} {{child}}")
{parent}
"""


async def pids(folder: Path) -> list[int]:
    return [int(pid) for pid in (folder / "pids").read_text("utf-8").split()]


async def test_a_program_that_hangs_is_ended_with_its_children(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = FORK.format(
        child="signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        parent="signal.pause()",
    )
    entry = program(code, timeout_ms=3_000)
    assert (
        await failure(caplog, hooks(tmp_path, bad=entry))
        == "it took longer than 3 s, and was killed"
    )
    for pid in await pids(tmp_path):
        await until(lambda pid=pid: not is_alive(pid))


async def test_children_that_a_program_leaves_behind_are_ended(tmp_path: Path) -> None:
    code = FORK.format(child="pass", parent="print('{\"ok\": 1}')")
    assert await run(hooks(tmp_path, a=program(code))) == [Answer("a", {"ok": 1})]
    _, child = await pids(tmp_path)
    await until(lambda: not is_alive(child))


async def test_a_child_that_gets_away_with_the_pipes_is_not_waited_for(tmp_path: Path) -> None:
    code = FORK.format(
        child="os.setsid(); os.write(tell, b'!')", parent="os.read(hear, 1); print('{\"ok\": 1}')"
    )
    began = anyio.current_time()
    assert await run(hooks(tmp_path, a=program(code))) == [Answer("a", {"ok": 1})]
    assert anyio.current_time() - began < 8
    _, child = await pids(tmp_path)
    os.kill(child, 9)


async def test_a_program_that_talks_without_end_is_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    said = await failure(caplog, hooks(tmp_path, bad=program(code)))
    assert said == f"it wrote more than {MAX_ANSWER} bytes, and was killed"


async def test_a_program_may_complain_at_length(tmp_path: Path) -> None:
    code = "import sys; sys.stderr.write('x' * 5_000_000); print('{\"ok\": 1}')"
    assert await run(hooks(tmp_path, a=program(code))) == [Answer("a", {"ok": 1})]


async def test_a_program_need_not_read(tmp_path: Path) -> None:
    made = hooks(tmp_path, a=program("import os; os.close(0); print('{\"ok\": 1}')"))
    assert await run(made, text="x" * 5_000_000) == [Answer("a", {"ok": 1})]
    made = hooks(tmp_path, a=answering({"ok": 1}))
    assert await run(made, text="x" * 5_000_000) == [Answer("a", {"ok": 1})]


async def test_who_gives_up_leaves_no_program(tmp_path: Path) -> None:
    code = FORK.format(child="pass", parent="os.rename('pids', 'told'); signal.pause()")
    made = hooks(tmp_path, a=program(code))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run, "command:new", {})
        await until((tmp_path / "told").exists)
        tasks.cancel_scope.cancel()
    (tmp_path / "told").rename(tmp_path / "pids")
    left = await pids(tmp_path)
    assert left
    for pid in left:
        await until(lambda pid=pid: not is_alive(pid))
    assert not any(map(is_alive, left))


async def test_an_async_function_that_hangs_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = "import anyio\nasync def handle(event): await anyio.sleep_forever()"
    made = hooks(tmp_path, bad=python(tmp_path, "a.py", code, timeout_ms=50))
    assert await failure(caplog, made) == "it took longer than 0.05 s"


async def test_a_plain_function_that_hangs_is_left_and_not_called_again_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = (
        "import threading\n"
        "threading.hook_gate = threading.Event()\n"
        "def handle(event):\n"
        "    threading.hook_gate.wait(20)\n"
        "    return {'ok': 1}\n"
    )
    made = hooks(tmp_path, bad=python(tmp_path, "a.py", code, timeout_ms=1_000))
    assert await failure(caplog, made) == "it took longer than 1 s"
    caplog.clear()
    assert await failure(caplog, made) == "an earlier call of `handle` has not returned yet"
    (thread,) = [it for it in threading.enumerate() if it.name.endswith("_bad")]
    assert thread.daemon, "it would hold up the end of the process"
    vars(threading).pop("hook_gate").set()
    await until(lambda: not thread.is_alive())
    threading.__dict__["hook_gate"] = threading.Event()
    threading.__dict__["hook_gate"].set()
    assert await run(made) == [Answer("bad", {"ok": 1})]
    del threading.__dict__["hook_gate"]


async def test_what_we_are_cancelled_with_gets_through(tmp_path: Path) -> None:
    code = "import anyio\nasync def handle(event): await anyio.sleep_forever()"
    made = hooks(tmp_path, a=python(tmp_path, "a.py", code))
    with anyio.move_on_after(0.2) as scope:
        await made.run("command:new", {})
    assert scope.cancelled_caught


async def test_a_script_tells_why_by_an_error(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="exited with 1"):
        await Program(argv=("false",), folder=tmp_path, seconds=5).ask({})
    assert operator_scripts.parse_answer(b" \n") == {}


# ---- Bootstrap files ----


async def bootstrap(made: OperatorHooks, *files: BootstrapFile, **more: Any) -> list[BootstrapFile]:
    with anyio.fail_after(10):
        return await made.bootstrap(files or (SOUL, USER), ABOUT, Path("/ws"), **more)


@pytest.mark.covers("AL-31")
async def test_bootstrap_hooks_add_and_remove_files_and_see_what_others_did(tmp_path: Path) -> None:
    look = (
        "def handle(event):\n"
        "    names = [file['name'] for file in event.pop('files')]\n"
        "    return {'add': [{'name': 'SEEN', 'text': f'{names} {sorted(event.items())}'}]}\n"
    )
    first = {"add": [{"name": "NEW.md", "text": "n\ud800"}], "remove": ["SOUL.md", "absent"]}
    made = hooks(
        tmp_path,
        first=answering(first, "agent:bootstrap"),
        broken=program("raise SystemExit(1)", "agent"),
        second=python(tmp_path, "a.py", look, "agent"),
    )
    files = await bootstrap(made)
    event = {**ABOUT, "event": "agent:bootstrap", "workspace": "/ws"}
    assert files == [
        USER,
        BootstrapFile("NEW.md", "n?"),
        BootstrapFile("SEEN", f"['USER.md', 'NEW.md'] {sorted(event.items())}"),
    ]


async def test_a_file_that_is_added_again_is_replaced_in_its_place(tmp_path: Path) -> None:
    answer = {"add": [{"name": "SOUL.md", "text": "a"}, {"name": "SOUL.md", "text": "b"}]}
    made = hooks(tmp_path, a=answering(answer, "agent:bootstrap"))
    assert await bootstrap(made) == [BootstrapFile("SOUL.md", "b"), USER]


async def test_added_files_are_cut_and_there_is_an_end_to_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    big = "import json; print(json.dumps({'add': [{'name': f'{n}.md', 'text': 'x' * %d}"
    code = big % (MAX_FILE_CHARS + 7) + " for n in range(10)]}))"
    made = hooks(tmp_path, bad=program(code, "agent:bootstrap"))
    files = await bootstrap(made)
    assert files[2] == BootstrapFile("0.md", "x" * MAX_FILE_CHARS, 7)
    assert sum(len(file.text) for file in files) == MAX_TOTAL_CHARS
    assert caplog.records[-1].getMessage() == "hook bad of agent:bootstrap: no room for 8.md, 9.md"
    assert (await bootstrap(made, max_chars=5))[2] == BootstrapFile("0.md", "xxxxx", 20_002)
    many = [{"name": str(n), "text": ""} for n in range(300)]
    assert len(await bootstrap(hooks(tmp_path, a=answering({"add": many}, "agent")))) == 100


@pytest.mark.parametrize(
    "answer",
    [
        {"add": "x"},
        {"add": [1]},
        {"add": [{"name": "a"}]},
        {"add": [{"name": "a", "text": 1}]},
        {"add": [{"name": 1, "text": "a"}]},
        {"add": [{"name": "a", "text": "a", "path": "/etc/passwd"}]},
        {"add": [{"name": " ", "text": "a"}]},
        {"add": [{"name": "a\n# System", "text": "a"}]},
        {"add": [{"name": "x" * 201, "text": "a"}]},
        {"add": [{"name": "good", "text": "a"}, None]},
        {"add": [{"name": "good", "text": "a"}], "systemPrompt": "x"},
        {"remove": "SOUL.md"},
        {"remove": [1]},
        {"remove": ["SOUL.md", None]},
        {"remove": None},
        {"messages": ["hi"]},
    ],
)
async def test_nonsense_about_files_is_named_and_changes_nothing(
    answer: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = hooks(tmp_path, bad=answering(answer, "agent:bootstrap"))
    assert await bootstrap(made) == [SOUL, USER]
    (record,) = caplog.records
    assert record.getMessage().startswith("hook bad of agent:bootstrap: the answer must be ")


# ---- Commands ----


@pytest.mark.covers("AL-31", "AL-32")
async def test_the_examples_of_the_page_work(tmp_path: Path) -> None:
    page = Path(__file__).parents[2].joinpath("docs/guide/hooks.md").read_text("utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    configuration, rules, journal = (text for _, text in blocks[1:])
    (tmp_path / "house_rules.py").write_text(rules, "utf-8")
    (tmp_path / "journal.py").write_text(journal, "utf-8")
    section: Any = json5.parse(configuration, "docs/guide/hooks.md").value
    found = read(InternalHooks, section["hooks"]["internal"])
    assert found.warnings == []
    made = OperatorHooks(found.unwrap(), tmp_path)
    rules_file = BootstrapFile("RULES.md", "You work for team blue. Answer in one paragraph.")
    assert await bootstrap(made) == [USER, rules_file]
    assert await made.command("new", ABOUT) == ["Written down."]
    assert await made.command("reset", ABOUT) == []
    await made.run("session:start", {})
    written = (tmp_path / "journal.txt").read_text("utf-8")
    assert written.split() == ["command:new", "command:reset", "session:start"]


@pytest.mark.covers("AL-32")
@pytest.mark.parametrize("name", ["new", "reset", "stop", "status"])
async def test_command_hooks_run_and_have_something_to_say(name: str, tmp_path: Path) -> None:
    tell = (
        "def handle(event):\n"
        "    return {'messages': [f\"{event['event']} {event['command']} {event['runId']}\"]}\n"
    )
    made = hooks(
        tmp_path,
        all=python(tmp_path, "a.py", tell, "command"),
        this=answering({"messages": ["second", " ", "th\ud800rd"]}, f"command:{name}"),
        other=answering({"messages": ["never"]}, "command:other"),
    )
    with anyio.fail_after(10):
        said = await made.command(name, ABOUT)
    assert said == [f"command:{name} {name} r1", "second", "th?rd"]


@pytest.mark.parametrize(
    "answer",
    [{"messages": "hi"}, {"messages": [1]}, {"messages": ["a"], "x": 1}, {"x": 1}, {"add": []}],
)
async def test_nonsense_about_a_command_is_named_and_not_shown(
    answer: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = hooks(tmp_path, bad=answering(answer), good=answering({"messages": ["good"]}))
    with anyio.fail_after(10):
        assert await made.command("new", {}) == ["good"]
    (record,) = caplog.records
    assert record.getMessage().startswith("hook bad of command:new: the answer must be ")


async def test_what_is_said_to_a_person_is_bounded(tmp_path: Path) -> None:
    code = "import json; print(json.dumps({'messages': ['x' * 20_000] * 30}))"
    made = hooks(tmp_path, a=program(code))
    with anyio.fail_after(10):
        said = await made.command("new", {})
    assert (len(said), {len(text) for text in said}) == (20, {10_000})
