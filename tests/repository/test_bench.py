"""`python -m bench`: what it marks, records and reports. How fast things are is no test."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench.judging import (
    Judged,
    Spread,
    against_record,
    against_tree,
    judge,
    read_record,
    write_record,
)
from bench.measures import MEASURES
from bench.measuring import Row
from bench.processes import cpu_seconds, family_memory
from bench.runner import Figures, Outcome

ROOT = Path(__file__).resolve().parents[2]
NOISY = [1.0, 1.3, 0.9, 1.1, 1.2, 0.8, 1.0]


def run_bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=35,
        check=False,
    )


@pytest.mark.parametrize(
    ("factor", "worse", "better"),
    [(1.0, False, False), (1.05, False, False), (1.2, True, False), (0.9, False, True)],
)
def test_pairs_of_rounds_show_a_difference_that_their_noise_would_hide(
    factor: float, worse: bool, better: bool
) -> None:
    slips = [1.0, 0.99, 1.01, 1.0, 0.98, 1.02, 1.0]
    now = [each * factor * slip for each, slip in zip(NOISY, slips, strict=True)]
    change = against_tree(now, NOISY)
    assert change is not None
    assert change.factor == pytest.approx(factor, rel=0.02)
    assert (change.worse, change.better) == (worse, better)


def test_fewer_than_six_rounds_mark_nothing() -> None:
    for count, expected in ((5, False), (6, True)):
        change = against_tree([2.0] * count, [1.0] * count)
        assert change is not None
        assert change.worse is expected


def test_one_wild_round_of_nine_changes_no_verdict() -> None:
    change = against_tree([1.5] * 8 + [0.1], [1.0] * 9)
    assert change is not None
    assert change.worse
    assert change.low == 1.5


@pytest.mark.parametrize(
    ("now", "worse"),
    [
        (Spread(1.05, 1.04, 1.06), False),  # beyond the noise, but less than 10 %
        (Spread(1.30, 0.99, 1.50), False),  # more than 10 %, but within the noise
        (Spread(1.30, 1.10, 1.50), True),
    ],
)
def test_a_row_is_worse_than_its_record_by_a_tenth_and_beyond_the_noise(
    now: Spread, worse: bool
) -> None:
    change = against_record(now, {"middle": 1.0, "low": 0.9, "high": 1.05})
    assert change is not None
    assert change.worse is worse


def test_a_rate_counts_as_time_so_that_less_is_better() -> None:
    row = Row("programs", "/s")
    assert row.cost(200) == 5.0
    assert Row("start", "s").cost(0.25) == 250.0


def test_the_record_keeps_rows_that_were_not_measured(tmp_path: Path) -> None:
    path = tmp_path / "results" / "speed.json"
    spread = Spread(0.44, 0.4, 0.5)
    one = Judged("one", "ms", 0.6, spread, spread, is_relative=True, cpu_ratio=spread)
    write_record(path, [one, Judged("broken", failure="it broke")], {"commit": "a"})
    write_record(path, [Judged("two", "MB", 50, spread, Spread(50, 49, 51))], {"commit": "b"})
    kept = read_record(path)
    assert list(kept) == ["one", "two"]
    assert kept["one"]["middle"] == 0.44
    assert kept["one"]["of"] == "floor"
    assert kept["one"]["cpu"]["high"] == 0.5
    assert kept["two"]["of"] == "MB"
    assert [row["commit"] for row in kept.values()] == ["a", "b"]


@pytest.mark.parametrize("wait", [1.0, 2.0])
def test_a_busy_machine_holds_only_processor_time_against_the_record(wait: float) -> None:
    row = Row("work")
    figures = Figures({"work": [[2.0]] * 3}, cpu=[0.2] * 3, units=[100] * 3)
    measure = replace(MEASURES["memory"], rows=(row,))
    outcome = Outcome(measure, [figures], floors=[1.0] * 3, waits=[wait] * 3)
    spread = {"middle": 1.0, "low": 1.0, "high": 1.0}
    [judged] = judge([outcome], {"work": {**spread, "cpu": spread, "busy": False}})
    assert judged.change is not None
    assert judged.cpu_change is not None
    assert judged.change.factor == judged.cpu_change.factor == 2.0
    assert judged.change.worse is (wait == 1.0)
    assert judged.cpu_change.worse


def test_processor_time_and_memory_include_grandchildren() -> None:
    burn = "import os, time\nwhile time.process_time() < 0.3: pass\n"
    hold = "held = bytearray(os.urandom(1 << 20) * 30)\nprint('ready', flush=True)\ninput()"
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn + hold!r}])"
    before = cpu_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", inner], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        used, held = cpu_seconds() - before, family_memory(child.pid)
        child.stdin.close()
    assert 0.25 < used < 10
    assert 30 << 20 < held < 200 << 20
    assert 0.25 < cpu_seconds() - before < 10  # counted once, now that they have ended


def test_two_trees_are_measured_in_one_run() -> None:
    done = run_bench("--rounds", "1", "--only", "stored size", "--against", str(ROOT), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    row = next(row for row in report["rows"] if row["work"].startswith("stored size"))
    assert row["measured"] == pytest.approx(row["before"], rel=0.05)
    assert row["ok"] is True
    assert report["against"] == str(ROOT)


def test_work_that_fails_is_named_and_fails_the_command(tmp_path: Path) -> None:
    package = tmp_path / "src" / "clawmode"
    (package / "sandbox" / "guest" / "vendor").mkdir(parents=True)
    (package / "sandbox" / "guest" / "vendor" / "quickjs.wasm").touch()
    (package / "__init__.py").write_text("raise RuntimeError('this tree is broken')")
    done = run_bench("--rounds", "1", "--only", "stored size", "--against", str(tmp_path))
    assert done.returncode == 1
    assert "stored size of a trivially suspended program: FAILED" in done.stdout
    assert "this tree is broken" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--only", "warp"], "no row contains 'warp'"),
        (["--against", "tests"], "name the root of a checkout"),
        (["--record", "--quick"], "--record wants full rounds"),
    ],
)
def test_wrong_arguments_are_explained(arguments: list[str], expected: str) -> None:
    done = run_bench(*arguments)
    assert done.returncode
    assert expected in done.stderr


@pytest.mark.ordeal
@pytest.mark.parametrize(
    "command",
    [
        ["frames", "--count", "2000", "--clients", "4"],
        ["gateway", "--seconds", "2", "--clients", "5", "--runs", "2"],
    ],
)
def test_the_gateway_passes_a_short_soak(command: list[str]) -> None:
    module, *arguments = command
    subprocess.run([sys.executable, "-m", f"bench.{module}", *arguments], cwd=ROOT, check=True)
