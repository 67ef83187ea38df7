"""The wheel in empty environments: on every Python, and at both ends of every range.

The environments are made from the package index that pip and uv are set up for. A Python that the
machine does not have is skipped.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.support.packages import environment

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
OWN_EXTRAS = ("agent", "cli", "gateway", "mcp", "search")
SECONDS = 500

PROGRAM = '''
import asyncio
import sys

from clawmode import CodeMode, RunContext, SqliteStore, tool


gate = asyncio.Event()


@tool(idempotent=True)
async def double(a: int) -> int:
    """Return twice the number, later.

    Args:
        a: The number.
    """
    await gate.wait()
    return 2 * a


async def main(folder: str) -> None:
    ids = RunContext(session_id="s", run_id="r")
    async with CodeMode(tools=[double], store=SqliteStore(folder), context=ids) as code_mode:
        source = "const n: number = await tools.double({ a: 21 }); return n"
        result = await code_mode.exec(source, "typescript", yield_ms=10)
        assert result.status == "waiting", result
    gate.set()
    async with CodeMode(tools=[double], store=SqliteStore(folder), context=ids) as code_mode:
        while result.status == "waiting":
            result = await code_mode.wait(result.run_id)
        print(result.unwrap())


asyncio.run(main(sys.argv[1]))
'''


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return str(built)


def find_python(version: str) -> str:
    """Returns an interpreter of a version: one on the path, or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    known = [shutil.which(f"python{version}"), *pyenv.glob(f"versions/{version}.*/bin/python")]
    for python in filter(None, known):
        told = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
        if told.stdout.startswith(f"Python {version}."):  # a shim of pyenv may lead nowhere
            return str(python)
    pytest.skip(f"this machine has no Python {version}")


def says(*command: "str | Path", status: int = 0, folder: Path = ROOT) -> tuple[str, str]:
    """Runs a command without the variables of this environment, and returns what it prints."""
    kept = ("HOME", "PATH", "CLAWMODE_CACHE_DIR")
    done = subprocess.run(
        [str(each) for each in command],
        cwd=folder,
        env={name: os.environ[name] for name in kept if name in os.environ},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout, done.stderr


def installed(bin_folder: Path) -> dict[str, str]:
    """Returns the packages of an environment, with their versions."""
    listing = "from importlib.metadata import distributions as found\n"
    listing += "for each in found(): print(each.name, each.version)"
    out, _ = says(bin_folder / "python", "-c", listing)
    rows = (line.split() for line in out.splitlines())
    return {name.lower(): version for name, version in rows}


@pytest.mark.covers("PY-6", "PY-7", "PY-8")
@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_works_in_an_empty_environment(version: str, wheel: str, tmp_path: Path) -> None:
    bin_folder = environment(tmp_path, [wheel], python=find_python(version))
    others = {"anthropic", "httpx2", "mcp", "openai", "rich", "starlette", "typer", "uvicorn"}
    assert others & installed(bin_folder).keys() == set()
    (tmp_path / "program.py").write_text(PROGRAM, "utf-8")
    out, _ = says(bin_folder / "python", "program.py", tmp_path / "state", folder=tmp_path)
    assert out == "42\n"
    for command in ([bin_folder / "clawmode"], [bin_folder / "python", "-m", "clawmode"]):
        out, err = says(*command, "run", "report.js", status=1)
        assert (out, err.count("\n")) == ("", 1)
        assert err.endswith('is not installed: pip install "clawmode[cli]"\n')

    environment(tmp_path, [f"{wheel}[cli]"])
    report = ["run", "examples/report.js", "--tools", "examples.shop:TOOLS"]
    out, _ = says(bin_folder / "clawmode", *report)
    assert '"tea": 3.2' in out
    _, err = says(bin_folder / "clawmode", "mcp", status=1)
    assert err.endswith('is not installed: pip install "clawmode[mcp]"\n')


SELECTED = (
    *("tests/sandbox/test_running.py", "tests/sandbox/test_values.py"),
    *("tests/code_mode/test_recorded.py", "tests/code_mode/test_snapshots.py"),
    *("tests/config/test_json5.py", "tests/cron/test_schedule.py", "tests/models"),
    *("tests/tools/test_function.py", "tests/tools/test_validation.py"),
)
"""Tests of the modules that import the libraries whose versions may vary."""


@pytest.mark.covers("PY-9")
@pytest.mark.parametrize("end", ["lowest", "highest"])
def test_both_ends_of_every_range_work(end: str, wheel: str, tmp_path: Path) -> None:
    extras: dict[str, list[str]] = PROJECT["optional-dependencies"]
    ranges = [*PROJECT["dependencies"], *(each for extra in OWN_EXTRAS for each in extras[extra])]
    # As requirements of their own: uv would take the highest versions for those of the wheel.
    wanted = [each for each in ranges if not each.startswith("clawmode")]
    tools = ["pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "inline-snapshot"]
    environment(tmp_path, tools)
    bin_folder = environment(tmp_path, [wheel, *wanted], lowest=end == "lowest")
    found = installed(bin_folder)
    (range_,) = (each for each in wanted if each.startswith("pydantic-ai-slim"))
    is_lowest = f">={found['pydantic-ai-slim']}".startswith(range_.partition("]")[2].split(",")[0])
    assert is_lowest == (end == "lowest"), range_
    says(bin_folder / "python", "-m", "pytest", "-q", "-n", "2", *SELECTED)


def test_the_loop_with_litellm_runs(wheel: str, tmp_path: Path) -> None:
    """In its own environment: litellm needs many packages, and versions that others exclude."""
    wanted = [f"{wheel}[mcp]", "litellm==1.106.2", "expression"]
    bin_folder = environment(tmp_path, wanted)
    out, _ = says(bin_folder / "python", ROOT / "examples" / "litellm_loop.py", folder=tmp_path)
    assert "3 requests, each with the tools exec and wait, and no other" in out
