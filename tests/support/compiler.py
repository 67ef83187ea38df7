"""The real TypeScript compiler, as `make setup` put it in place: source in, what it says out."""

import re
import subprocess
from pathlib import Path

import pytest

import test_files
from clawmode.catalog.declarations import SHARED_TYPES

SECONDS = 15
OPTIONS = ["--noEmit", "--strict", "--target", "es2022", "--lib", "es2023", "--types", ""]
MESSAGE = re.compile(r"^(.+?)\((\d+),\d+\): error (TS\d+): (.*)$", re.MULTILINE)


class Compiler:
    """TypeScript 7. Every check starts it once, so put much into one."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program = program
        self._folder = folder

    def errors(self, **sources: str) -> list[str]:
        """What is wrong in all sources together: `code: the line it is about`.

        Names are file names with `_d_ts` or `_ts` at the end.
        """
        paths: list[Path] = []
        for name, source in sources.items():
            path = self._folder / re.sub(r"_(d_)?ts$", lambda m: m[0].replace("_", "."), name)
            path.write_text(source, encoding="utf-8")
            paths.append(path)
        done = subprocess.run(
            [self._program, *OPTIONS, "--pretty", "false", *(path.name for path in paths)],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=SECONDS,
            check=False,
        )
        lines = {path.name: path.read_text(encoding="utf-8").split("\n") for path in paths}
        found = [
            f"{code}: {lines[file][int(line) - 1].strip()}"
            for file, line, code, _ in MESSAGE.findall(done.stdout)
        ]
        assert bool(found) == bool(done.returncode), done.stdout + done.stderr
        return found

    def emit(self, sources: list[str]) -> list[str]:
        """The JavaScript that it makes of each source, types unchecked."""
        for number, source in enumerate(sources):
            (self._folder / f"case{number}.ts").write_text(source, encoding="utf-8")
        subprocess.run(
            [
                *(self._program, "--noCheck", "--target", "es2022", "--lib", "es2022"),
                *("--types", "", "--outDir", "made", "--pretty", "false"),
                *(f"case{number}.ts" for number in range(len(sources))),
            ],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=True,
        )
        made = self._folder / "made"
        return [
            (made / f"case{number}.js").read_text(encoding="utf-8")
            for number in range(len(sources))
        ]


def find_compiler(folder: Path) -> Compiler:
    """The compiler, writing to a folder; skips the test where none is pinned for the machine."""
    package = test_files.compiler_package()
    if package is None:
        pytest.skip(f"scripts/test_files.lock.json pins no compiler for {test_files.MACHINE}")
    program = test_files.compiler_path(package)
    if not program.exists():
        pytest.fail("the TypeScript compiler is missing: run `python scripts/test_files.py`")
    return Compiler(program, folder)


def without_shared_types(file: str) -> str:
    """A file's own part, for checking several together."""
    assert file.startswith(SHARED_TYPES)
    return file.removeprefix(SHARED_TYPES)
