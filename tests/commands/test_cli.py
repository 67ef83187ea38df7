"""The command, as a person and as a program use it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.cli_driver import SHOP, answer, clawmode, command_line, trusted
from tests.support.forking import SECONDS

TOOLS = ("--tools", "shop:TOOLS")


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWMODE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("CLAWMODE_CONFIG", raising=False)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with tools in it."""
    (tmp_path / "shop.py").write_text(SHOP, "utf-8")
    return tmp_path


def test_run_shows_output_and_value_to_people() -> None:
    done = clawmode("run", "-", stdin='text("hello"); json([1]); return { a: 1 }')
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == 'hello\n[\n  1\n]\n{\n  "a": 1\n}\n'


def test_run_prints_the_pages_object_as_json() -> None:
    done = clawmode("run", "-", "--json", stdin='text("é"); return [1, null]')
    assert done.returncode == 0
    result = json.loads(done.stdout)
    assert result.pop("telemetry")["execCount"] == 1
    assert result == {
        "status": "completed",
        "value": [1, None],
        "output": [{"type": "text", "text": "é"}],
    }


def test_an_unusable_state_folder_is_reported_and_the_program_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLAWMODE_STATE", "/proc/clawmode")
    done = clawmode("run", "-", stdin="await yield_control(); return 1")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "cannot be kept in the folder '/proc/clawmode'" in done.stderr


def test_a_typescript_file_is_known_by_its_ending(tmp_path: Path) -> None:
    file = tmp_path / "cell.ts"
    file.write_text("enum E { A = 4 }\nconst x: number = E.A;\nreturn x", "utf-8")
    assert clawmode("run", str(file)).stdout == "4\n"
    # Programs that are not valid JavaScript are tried as TypeScript.
    assert clawmode("run", str(file), "--language", "javascript").stdout == "4\n"
    # JavaScript compares twice here; TypeScript calls a generic function. Both are valid.
    for ending, value in (("ts", "1"), ("js", "false")):
        file = tmp_path / f"both.{ending}"
        file.write_text("const f = (x) => x, string = 0;\nreturn f<string>(1)", "utf-8")
        assert clawmode("run", str(file)).stdout == f"{value}\n"


def test_a_failed_cell_is_status_one_with_its_output() -> None:
    done = clawmode("run", "-", stdin='text("before"); throw new Error("no")')
    assert (done.returncode, done.stdout) == (1, "before\n")
    assert "internal_error" in done.stderr
    assert "Error: no" in done.stderr
    assert "Traceback" not in done.stderr


def test_run_goes_on_with_a_cell_that_waits_unless_told_not_to() -> None:
    source = 'text("one"); await yield_control(); text("two"); return 2'
    done = clawmode("run", "-", "--json", stdin=source)
    result = json.loads(done.stdout)
    assert (done.returncode, result["value"]) == (0, 2)
    assert [item["text"] for item in result["output"]] == ["one", "two"]
    waiting = clawmode("run", "-", "--json", "--no-wait", stdin=source)
    assert waiting.returncode == 3
    assert json.loads(waiting.stdout)["reason"] == "yield"


@pytest.mark.parametrize(
    ("option", "value", "source", "code"),
    [
        ("--timeout-ms", "200", "for (;;);", "timeout"),
        ("--max-output-bytes", "1024", 'return "x".repeat(2000)', "output_limit_exceeded"),
        ("--memory-limit-bytes", "2000000", "new ArrayBuffer(3e6)", "memory_limit_exceeded"),
        ("--max-snapshot-bytes", "1024", "await yield_control()", "snapshot_limit_exceeded"),
    ],
)
def test_limits_are_options(option: str, value: str, source: str, code: str) -> None:
    done = clawmode("run", "-", "--json", option, value, stdin=source)
    assert json.loads(done.stdout)["code"] == code


def test_a_limit_out_of_range_is_clamped_and_said() -> None:
    done = clawmode("run", "-", "--timeout-ms", "5", stdin="return 1")
    assert done.returncode == 0
    assert "--timeout-ms 5 is out of range: 100 is used" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "/no/such/file"), "cannot read /no/such/file"),
        (("run", "-", "--language", "python"), "must be javascript or typescript"),
        (("run",), "Missing argument"),
        (("nonsense",), "nonsense"),
        (("run", "-", "--timeout-ms", "soon"), "--timeout-ms"),
    ],
)
def test_wrong_usage_is_status_two_with_a_reason(arguments: tuple[str, ...], says: str) -> None:
    done = clawmode(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_not_utf8_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "cell.js").write_bytes(b"return '\xff'")
    done = clawmode("run", str(tmp_path / "cell.js"))
    assert (done.returncode, "not UTF-8" in done.stderr) == (2, True)


def test_an_empty_cell_is_invalid_input() -> None:
    done = clawmode("run", "-", "--json", stdin=" \n ")
    assert (done.returncode, json.loads(done.stdout)["code"]) == (1, "invalid_input")


def test_help_answers_quickly_and_loads_nothing_heavy() -> None:
    times = []
    for _ in range(3):
        began = time.perf_counter()
        assert clawmode("--help").returncode == 0
        times.append(time.perf_counter() - began)
    # 0.25 s alone on the machine; the bound leaves room for the other tests.
    assert min(times) < 1.5
    program = (
        "import sys, clawmode.commands.cli; print('anyio' in sys.modules, 'rich' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]


def test_the_version_is_printed() -> None:
    assert clawmode("--version").stdout == "clawmode 0.1.0\n"


# ---- Tools ----


def test_a_program_calls_tools_of_the_current_folder(shop: Path) -> None:
    source = 'return [await tools.price({ item: "abc" }), ALL_TOOLS.length]'
    done = clawmode("run", "-", "--json", *TOOLS, stdin=source, cwd=shop)
    assert (done.returncode, answer(done)["value"]) == (0, [3, 8])


def test_nested_calls_are_summed_up_on_stderr_unless_asked_not_to(shop: Path) -> None:
    source = """await tools.price({ item: "a" });
try { await tools.price({}) } catch {}
return 1"""
    done = clawmode("run", "-", *TOOLS, stdin=source, cwd=shop)
    lines = [re.sub(r"\d+ ms", "N ms", line) for line in done.stderr.splitlines()]
    assert (done.stdout, lines) == (
        "1\n",
        [
            "exec: 2 calls, 1 failed",
            "├─ ✓ openclaw:core:price  N ms",
            "└─ ✗ openclaw:core:price  N ms",
        ],
    )
    assert clawmode("run", "-", *TOOLS, "--quiet", stdin=source, cwd=shop).stderr == ""
    assert clawmode("run", "-", *TOOLS, "--json", stdin=source, cwd=shop).stderr == ""


def test_what_tools_and_their_children_print_stays_out_of_stdout(shop: Path) -> None:
    (shop / "loud.py").write_text("print('imported', flush=True)\nfrom shop import noisy", "utf-8")
    source = 'text("said"); return await tools.noisy()'
    done = clawmode("run", "-", "--tools", "loud:noisy", "--json", stdin=source, cwd=shop)
    assert answer(done)["value"] == 1
    assert done.stderr.split("\n")[:3] == ["imported", "printed", "printed by a child"]
    people = clawmode("run", "-", "--tools", "loud:noisy", stdin=source, cwd=shop)
    assert people.stdout == "said\n1\n"


def test_a_policy_hides_tools_inline_or_from_a_file(shop: Path) -> None:
    source = "return ALL_TOOLS.map((tool) => tool.name)"
    inline = ("--policy", '{ allow: ["p*", "order"], deny: ["ORDER"] }')
    assert answer(clawmode("run", "-", "--json", *TOOLS, *inline, stdin=source, cwd=shop))[
        "value"
    ] == ["price"]
    (shop / "policy.json5").write_text("{ deny: ['*e*'] } // hardly anything", "utf-8")
    file = ("--policy", "policy.json5")
    assert answer(clawmode("run", "-", "--json", *TOOLS, *file, stdin=source, cwd=shop))[
        "value"
    ] == ["block", "noisy"]


def test_a_policy_on_the_command_line_does_not_widen_the_configured_one(shop: Path) -> None:
    settings = """{ tools: { deny: ["block"] },
  agents: { list: [{ id: "main", tools: { allow: ["p*", "block"] } }, { id: "x", tools: {} }] } }"""
    trusted(shop, settings)
    source = "return ALL_TOOLS.map((tool) => tool.name)"
    wide = ("--policy", '{ allow: ["*"] }')
    done = clawmode("run", "-", "--json", *TOOLS, *wide, stdin=source, cwd=shop)
    assert answer(done)["value"] == ["price"]


# ---- Approvals, where nobody can be asked ----

BOTH = """const told = [];
for (const name of ["order", "undeclared", "price"])
  told.push(await tools[name](name === "undeclared" ? {} : { item: "x" }).catch((e) => e.code));
return told"""


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("always", ["1 x", "done", 1]),
        ("never", ["not_approved", "not_approved", 1]),
        ("ask", ["not_approved", "not_approved", 1]),
    ],
)
def test_what_does_not_only_read_needs_approval(shop: Path, mode: str, told: list[object]) -> None:
    done = clawmode("run", "-", *TOOLS, "--json", "--approve", mode, stdin=BOTH, cwd=shop)
    assert (done.returncode, answer(done)["value"]) == (0, told)
    assert ("no terminal to ask at" in done.stderr) == (mode == "ask")


def test_an_id_with_wildcards_does_not_ask_for_others(shop: Path) -> None:
    odd = """from dataclasses import replace
from shop import order, price
TOOLS = [replace(order, name="*"), replace(order, name="[o]dd"), price]"""
    (shop / "odd.py").write_text(odd, "utf-8")
    source = """return [await tools.price({ item: "x" }),
  await tools.call("openclaw:core:[o]dd", { item: "x" }).catch((error) => error.code)]"""
    done = clawmode("run", "-", "--tools", "odd:TOOLS", "--json", stdin=source, cwd=shop)
    assert answer(done)["value"] == [1, "not_approved"]


# ---- Configuration ----


@pytest.mark.covers("CF-6")
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ('{ tools: { codeMode: { timeoutMs: "10s" } } }', "tools.codeMode.timeoutMs"),
        ("{ tools: { codeMode: on } }", ":1:22:"),
        ("{ tools: { allow: 1 } }", "tools.allow"),
    ],
)
def test_nothing_runs_with_a_configuration_that_cannot_be_meant(
    shop: Path, settings: str, says: str
) -> None:
    (shop / "mine.json5").write_text(settings, "utf-8")
    named = ("--config", "mine.json5")
    done = clawmode("run", "-", *TOOLS, *named, stdin='text("ran")', cwd=shop)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_options_win_over_the_configuration_and_its_warnings_are_said(shop: Path) -> None:
    (shop / "my.json5").write_text(
        "{ tools: { codeMode: { timeoutMs: 150, tmeout: 1 } } }", "utf-8"
    )
    config = ("--config", "my.json5", "--json")
    assert answer(clawmode("run", "-", *config, stdin="for (;;);", cwd=shop))["code"] == "timeout"
    began = 'const end = Date.now() + 400; while (Date.now() < end); return "late"'
    done = clawmode("run", "-", *config, "--timeout-ms", "5000", stdin=began, cwd=shop)
    assert answer(done)["value"] == "late"
    assert "tools.codeMode.tmeout: unknown key" in done.stderr


# ---- Waiting ----


def hint(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The command that goes on, as it was told."""
    (line,) = [line for line in done.stderr.splitlines() if "clawmode wait cm_" in line]
    return shlex.split(line)


def go_on(command: list[str], *more: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *more],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def test_another_process_goes_on_with_the_very_command_that_was_told(shop: Path) -> None:
    source = """text("one"); await yield_control(); text("two");
return await tools.price({ item: "it's" })"""
    options = (*TOOLS, "--policy", '{ allow: ["price"] }', "--memory-limit-bytes", "99000000")
    parked = clawmode("run", "-", *options, "--no-wait", "--state", "a b", stdin=source, cwd=shop)
    assert (parked.returncode, parked.stdout) == (3, "one\n")
    assert "waiting (yield)" in parked.stderr
    command = hint(parked)
    assert command[-8:] == [*options[:4], "--state", "a b", *options[4:]]
    done = go_on(command, cwd=shop)
    assert (done.returncode, done.stdout) == (0, "two\n4\n")
    again = go_on(command, "--json", cwd=shop)
    assert (again.returncode, answer(again)["code"]) == (1, "invalid_input")


def test_a_question_that_was_left_open_is_decided_later(shop: Path) -> None:
    source = 'return await tools.order({ item: "tea" })'
    parked = clawmode("run", "-", *TOOLS, "--no-wait", "--json", stdin=source, cwd=shop)
    result = answer(parked)
    assert (parked.returncode, result["pendingToolCalls"][0]["state"]) == (3, "approval")
    assert result["runId"] in parked.stderr
    done = go_on(hint(parked), "--approve", "always", cwd=shop)
    assert (done.returncode, done.stdout) == (0, '"1 tea"\n')


def test_waiting_for_what_is_not_there_fails() -> None:
    done = clawmode("wait", "cm_" + "0" * 32, "--json")
    assert (done.returncode, answer(done)["code"]) == (1, "invalid_input")


# ---- Rough treatment ----


@pytest.mark.parametrize(
    "source", ["await tools.forever()", "await tools.block()", "await tools.hello(); for (;;);"]
)
def test_an_interrupt_ends_it_in_one_line(shop: Path, source: str) -> None:
    began = time.monotonic()
    assert signalled(shop, source, signal.SIGINT) == (130, "", "clawmode: stopped\n")
    assert time.monotonic() - began < 10


def test_sigterm_ends_it_at_once(shop: Path) -> None:
    ended = signalled(shop, "await tools.forever()", signal.SIGTERM)
    assert ended == (-signal.SIGTERM, "", "")


def signalled(shop: Path, source: str, number: signal.Signals) -> tuple[int, str, str]:
    """The status, stdout and stderr of a program that gets a signal during its first call."""
    (shop / "cell.js").write_text(f"text(1); {source}", "utf-8")
    run = command_line("run", "cell.js", *TOOLS, "--timeout-ms", "60000", "--quiet")
    process = subprocess.Popen(
        run, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=shop
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "begun\n"
    process.send_signal(number)
    out, told = process.communicate(timeout=SECONDS)
    return process.returncode, out, told


def test_a_reader_that_goes_away_does_not_stop_a_program(shop: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    source = 'text("one"); await yield_control(); text("two"); return tools.noisy()'
    done = subprocess.run(
        command_line("run", "-", *TOOLS),
        input=source.encode(),
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=SECONDS,
        check=False,
        cwd=shop,
    )
    os.close(write)
    assert done.returncode == 0
    assert b"printed by a child" in done.stderr
    assert b"Traceback" not in done.stderr


NAPS = '''
import threading
from clawmode import tool

begun = threading.Event()

@tool(effect="read")
def nap() -> None:
    """Nap, in a thread."""
    begun.set()
    print("naps", open("gate").read())

@tool(effect="read")
def naps() -> bool:
    """Whether a nap has begun."""
    return begun.wait(1)

TOOLS = [nap, naps]
'''


def test_a_tool_that_cannot_be_stopped_is_waited_for_and_said(shop: Path) -> None:
    (shop / "slow.py").write_text(NAPS, "utf-8")
    (shop / "cell.js").write_text(
        'tools.nap(); while (!(await tools.naps())); throw new Error("no")', "utf-8"
    )
    os.mkfifo(shop / "gate")
    real = [sys.executable, "-m", "clawmode", "run", "cell.js", "--tools", "slow:TOOLS"]
    with subprocess.Popen(real, stderr=subprocess.PIPE, text=True, cwd=shop) as process:
        assert process.stderr is not None
        note = next(line for line in process.stderr if "cannot be stopped" in line)
        with (shop / "gate").open("w"):
            pass  # the tool reads the end of the file
        assert process.wait(SECONDS) == 1
    assert note.startswith("clawmode: waiting for a tool that cannot be stopped (Ctrl-C ends")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_standard_streams_do_no_harm(shop: Path, closed: str) -> None:
    (shop / "cell.js").write_text("return await tools.noisy()", "utf-8")
    real = [sys.executable, "-m", "clawmode", "run", "cell.js", *TOOLS]
    done = subprocess.run(
        ["sh", "-c", f"{shlex.join(real)} {closed}"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=shop,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert done.stdout == ("" if closed.startswith(">") else "1\n")


def test_output_that_cannot_be_written_is_a_failure() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            command_line("run", "-"),
            input=b"return 1",
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=SECONDS,
            check=False,
        )
    assert (done.returncode, b"could not be written" in done.stderr) == (1, True)
    assert b"Traceback" not in done.stderr


def test_what_went_wrong_is_told_without_control_characters() -> None:
    done = clawmode("run", "-", stdin='throw new Error("\\x1b[2J\\u202e")')
    assert done.returncode == 1
    assert "\\u001b[2J\\u202e" in done.stderr
    assert "\x1b" not in done.stderr
