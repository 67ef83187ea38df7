"""The command, as a person and as a program use it."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest


def clawmode(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clawmode", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


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


def test_a_typescript_file_is_known_by_its_ending(tmp_path: Path) -> None:
    file = tmp_path / "cell.ts"
    file.write_text("enum E { A = 4 }\nconst x: number = E.A;\nreturn x", "utf-8")
    assert clawmode("run", str(file)).stdout == "4\n"
    failed = clawmode("run", str(file), "--language", "javascript", "--json")
    assert (failed.returncode, json.loads(failed.stdout)["code"]) == (1, "invalid_input")


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
    program = "import sys, clawmode.cli; print('anyio' in sys.modules, 'rich' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]


def test_the_version_is_told() -> None:
    assert clawmode("--version").stdout == "clawmode 0.1.0\n"
