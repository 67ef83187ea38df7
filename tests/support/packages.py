"""Packages of npm and PyPI that only tests need, each fetched once into the tests' environment.

npm's lock files have no addresses: npm asks the registry that it is set up for, and checks what it
gets.
"""

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

STORE = Path(sys.prefix, "mcp-servers")
FETCH_SECONDS = 300


def fetched(lock: bytes, fetch: Callable[[Path], None]) -> Path:
    """A folder that `fetch` has filled for exactly this lock; one process at a time fills it."""
    key = hashlib.sha256(lock).hexdigest()[:16]
    folder = STORE / key
    STORE.mkdir(exist_ok=True)
    with (STORE / f"{key}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
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


def npm_packages(place: Path) -> Path:
    """The folder `node_modules` with what the lock in a folder names."""
    npm = shutil.which("npm") or ""
    if not npm or shutil.which("node") is None:
        pytest.skip("there is no npm to fetch real servers with, or no node to run them")
    locks = [place / "package.json", place / "package-lock.json"]

    def fetch(folder: Path) -> None:
        for lock in locks:
            shutil.copy(lock, folder)
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        run([npm, "ci", *options, f"--cache={folder / 'cache'}"], folder)
        shutil.rmtree(folder / "cache")

    lock = b"\0".join(lock.read_bytes() for lock in locks)
    return fetched(lock, fetch) / "node_modules"


def python_packages(name: str, requirements: list[str]) -> Path:
    """The folder `bin` of an environment with these packages."""

    def fetch(folder: Path) -> None:
        environment(folder, requirements)

    return fetched(json.dumps([name, requirements]).encode(), fetch) / "venv" / "bin"


def environment(
    folder: Path, requirements: list[str], *, python: str = sys.executable, lowest: bool = False
) -> Path:
    """Makes an environment in a folder, or adds packages to it, and returns its folder `bin`.

    Args:
        folder: The folder, in which the environment is `venv`.
        requirements: What to install.
        python: The interpreter.
        lowest: Installs the lowest versions that the requirements allow; needs uv.
    """
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None and lowest:
        pytest.skip("only uv can install the lowest versions")
    if uv is not None:
        make = [uv, "venv", "--quiet", "--python", python, "venv"]
        install = [uv, "pip", "install", "--quiet", "--python", "venv/bin/python"]
    else:
        make = [python, "-m", "venv", "venv"]
        install = ["venv/bin/python", "-m", "pip", "install", "--quiet"]
    if not (folder / "venv").exists():
        run(make, folder)
    options = ["--resolution", "lowest-direct"] if lowest else []
    run([*install, *options, *requirements], folder)
    return folder / "venv" / "bin"
