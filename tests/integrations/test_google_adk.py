"""The adapter for Google ADK, whose versions of packages do not fit beside ours.

`tests/support/google_adk_cases.py` has the tests. They run in an environment with ADK.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.support.packages import python_packages

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "support" / "google_adk_cases.py"
SECONDS = 120


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of an environment with ADK, and what `CodeMode` and its tests need."""
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needed = [*ours["project"]["dependencies"], "google-adk==2.13.0"]
    tests = ["hypothesis", "pytest", "pytest-timeout"]
    return python_packages("google-adk", [*needed, *tests]) / "python"


@pytest.mark.hostile
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.covers("FW-1", "FW-2", "FW-3", "FW-4", "FW-50")
def test_the_adapter_works_with_the_real_package(python: Path) -> None:
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    assert " passed" in done.stdout


def test_without_the_package_the_extra_is_named() -> None:
    code = "import clawmode.integrations.google_adk"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'pip install "clawmode[google-adk]"' in done.stderr
