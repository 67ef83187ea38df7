"""mypy and pyright accept user code in their strict modes, and find its mistakes.

`tests/typing/` has the code: add a file `…_code.py` there, and it is checked. The programs of the
pages about frameworks are checked too, except for types that the frameworks themselves leave open.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.packages import npm_packages, python_packages

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "tests" / "typing"
SECONDS = 400
UNTYPED_FRAMEWORKS = ("reportUnknown", "reportMissing", "reportUntyped")
"""Rules of pyright about what a library has not annotated."""

WRONG = """
from clawmode import CodeMode, tool


@tool
def add(a: int, b: int) -> int:
    return a + b


add("a", 2)
CodeMode(tols=[add])
with CodeMode.sync() as code_mode:
    number: int = code_mode.exec("return 1").status
"""


def mypy(files: "list[Path]", *options: str) -> list[str]:
    """Returns the errors of mypy."""
    program = python_packages("mypy", ["mypy==2.4.1"]) / "mypy"
    command = [program, "--strict", "--no-incremental", "--python-executable", sys.executable]
    done = subprocess.run(
        [*command, *options, *files], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return [line for line in done.stdout.splitlines() if " error: " in line]


def pyright(files: list[Path]) -> "list[tuple[str, str]]":
    """Returns the rules that pyright finds broken, with its messages."""
    program = npm_packages(PLACE) / "pyright" / "index.js"
    folder = files[0].parent
    config = {"typeCheckingMode": "strict", "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_text(json.dumps(config), "utf-8")
    command = ["node", program, "-p", folder, "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    told = json.loads(done.stdout)
    assert told["summary"]["filesAnalyzed"] == len(files), told
    found = told["generalDiagnostics"]
    return [
        (each.get("rule", ""), each["message"]) for each in found if each["severity"] == "error"
    ]


def pages(folder: Path) -> list[Path]:
    """Writes the programs of the pages about frameworks into files."""
    made: list[Path] = []
    for page in sorted(ROOT.glob("docs/integrations/*.md")):
        text = page.read_text("utf-8")
        for program in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            made.append(folder / f"{page.stem.replace('-', '_').lower()}_{len(made)}.py")
            made[-1].write_text(program, "utf-8")
    return made


@pytest.mark.covers("PY-13")
def test_strict_type_checkers_accept_user_code(tmp_path: Path) -> None:
    files = sorted(PLACE.glob("*_code.py"))
    assert files
    assert mypy(files) == []
    copies = [Path(shutil.copy(file, tmp_path)) for file in files]
    assert pyright(copies) == []


@pytest.mark.covers("PY-13")
def test_type_checkers_find_mistakes_in_user_code(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG, "utf-8")
    lines = {error.split(":")[1] for error in mypy([wrong])}
    assert lines == {"10", "11", "13"}
    rules = {rule for rule, _ in pyright([wrong])}
    assert rules == {"reportArgumentType", "reportCallIssue", "reportAssignmentType"}


@pytest.mark.covers("PY-13")
def test_strict_type_checkers_accept_the_programs_of_the_pages(tmp_path: Path) -> None:
    files = pages(tmp_path)
    assert mypy(files, "--disable-error-code=import-untyped") == []
    broken = pyright(files)
    assert [each for each in broken if not each[0].startswith(UNTYPED_FRAMEWORKS)] == []
