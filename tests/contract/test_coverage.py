"""Owns the tie between requirements and tests: every id is covered or recorded as missing.

Marks are read from the source of the tests, so nothing is imported or run to find them, and a
partial test run judges the same as a full one.

As a script it prints the progress per family; with `--write` it also renews `missing.py` and the
page `docs/reference/requirements.md`.
"""

import ast
import functools
import runpy
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CONTRACT = Path(__file__).resolve().parent
TESTS = CONTRACT.parent
MISSING_FILE = CONTRACT / "missing.py"
PAGE = TESTS.parent / "docs" / "reference" / "requirements.md"
RENEW = "run `python tests/contract/test_coverage.py --write` and commit what it changes"

# Run by path, because pytest's importlib mode makes siblings unimportable by name.
_LISTED = runpy.run_path(str(CONTRACT / "requirements.py"))["REQUIREMENTS"]
TEXTS: dict[str, str] = {id_: requirement.text for id_, requirement in _LISTED.items()}
PLACES: dict[str, str] = {id_: requirement.place for id_, requirement in _LISTED.items()}


@dataclass(frozen=True)
class MarkedTest:
    """A test function, the ids that it claims, and whether its body checks anything."""

    where: str
    ids: tuple[str, ...]
    checks: bool


# Finding the marks


def claimed(expression: ast.expr) -> tuple[str, ...]:
    """Returns the ids of every `mark.covers(...)` within, `pytest.param(marks=...)` included."""
    return tuple(
        as_id(argument)
        for node in ast.walk(expression)
        if isinstance(node, ast.Call) and f".{ast.unparse(node.func)}".endswith(".mark.covers")
        for argument in node.args
    )


def as_id(argument: ast.expr) -> str:
    """Returns the literal, or the source of an expression, which then fails as an unknown id."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    return ast.unparse(argument)


def pytestmark_ids(body: list[ast.stmt]) -> tuple[str, ...]:
    """Returns the ids that a module or class claims for all its tests."""
    return tuple(
        id_
        for node in body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        for id_ in claimed(node.value)
    )


def is_check(node: ast.AST) -> bool:
    """Tells whether a node can fail a test; `assert True` cannot."""
    if isinstance(node, ast.Assert):
        return not isinstance(node.test, ast.Constant)
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2].lstrip("_")
    return name in ("raises", "warns") or name.startswith(("assert", "check", "expect"))


def marked_tests(
    body: list[ast.stmt], where: str, inherited: tuple[str, ...] = ()
) -> Iterator[MarkedTest]:
    """Yields the tests of a module or class body that claim a requirement."""
    inherited += pytestmark_ids(body)
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        ids = inherited + tuple(id_ for mark in node.decorator_list for id_ in claimed(mark))
        if isinstance(node, ast.ClassDef):
            yield from marked_tests(node.body, where, ids)
        elif ids and node.name.startswith("test"):
            checks = any(is_check(part) for part in ast.walk(node))
            yield MarkedTest(f"{where}:{node.lineno} {node.name}", ids, checks)


@functools.cache
def all_marked_tests() -> tuple[MarkedTest, ...]:
    """Reads every test file once."""
    return tuple(
        test
        for path in sorted(TESTS.rglob("test_*.py"))
        for test in marked_tests(
            ast.parse(path.read_text(encoding="utf-8"), filename=str(path)).body,
            path.relative_to(TESTS.parent).as_posix(),
        )
    )


def covered_ids() -> frozenset[str]:
    """Returns the ids that some test claims."""
    return frozenset(id_ for test in all_marked_tests() for id_ in test.ids)


def recorded_missing() -> frozenset[str]:
    """Returns what `missing.py` says is not covered."""
    missing: frozenset[str] = runpy.run_path(str(MISSING_FILE))["MISSING"]
    return missing


# The tests


def test_every_mark_names_a_requirement() -> None:
    """style.md: each demanded behaviour is tied to a test by id, spelled as a literal."""
    unknown = [
        f"{test.where}: {id_}"
        for test in all_marked_tests()
        for id_ in test.ids
        if id_ not in TEXTS
    ]
    assert not unknown, "no such requirement:\n" + "\n".join(unknown)


def test_every_requirement_is_covered_or_recorded_as_missing() -> None:
    """style.md: gaps are recorded as data, so none is forgotten."""
    lost = [
        f"{id_}: {text}"
        for id_, text in TEXTS.items()
        if id_ not in covered_ids() | recorded_missing()
    ]
    assert not lost, f"neither covered nor recorded; cover them or {RENEW}:\n" + "\n".join(lost)


def test_nothing_covered_is_still_recorded_as_missing() -> None:
    """style.md: progress is a number, so it has to be written down."""
    stale = sorted(covered_ids() & recorded_missing())
    assert not stale, f"covered by now; {RENEW}: {', '.join(stale)}"


def test_nothing_but_requirements_is_recorded_as_missing() -> None:
    """A renamed or dropped requirement leaves no ghost in the record."""
    ghosts = sorted(recorded_missing() - TEXTS.keys())
    assert not ghosts, f"no longer a requirement; {RENEW}: {', '.join(ghosts)}"


def test_every_covering_test_checks_something() -> None:
    """A mark on a test that cannot fail would be a claim without proof."""
    empty = [test.where for test in all_marked_tests() if not test.checks]
    assert not empty, "marked, but without a check:\n" + "\n".join(empty)


def test_the_page_of_requirements_is_up_to_date() -> None:
    """Readers of the repository have no other place to look an id up."""
    assert PAGE.read_text(encoding="utf-8") == requirements_page(), f"{PAGE.name}: {RENEW}"


def test_every_family_of_requirements_has_a_title() -> None:
    assert {family(id_) for id_ in TEXTS} == TITLES.keys()


SAMPLE = """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.covers("M-1")]

@pytest.mark.covers("A-1", "A-2")
async def test_asserts():
    assert await answer() == 42

@mark.parametrize("x", [pytest.param(1, marks=pytest.mark.covers("P-1"))])
def test_raises(x):
    with pytest.raises(ValueError):
        fail(x)

@pytest.mark.covers("C-1")
class TestGroup:
    @pytest.mark.covers(*IDS)
    def test_calls_a_helper(self):
        self._expect_nothing()

@pytest.mark.covers("E-1")
def test_is_empty():
    assert True

@pytest.mark.covers("H-1")
def helper():
    assert False
"""


def test_marks_are_found_wherever_pytest_would_apply_them() -> None:
    """The finder above is itself trusted by every other test here."""
    found = list(marked_tests(ast.parse(SAMPLE).body, "sample.py"))
    assert found == [
        MarkedTest("sample.py:6 test_asserts", ("M-1", "A-1", "A-2"), checks=True),
        MarkedTest("sample.py:10 test_raises", ("M-1", "P-1"), checks=True),
        MarkedTest("sample.py:17 test_calls_a_helper", ("M-1", "C-1", "*IDS"), checks=True),
        MarkedTest("sample.py:21 test_is_empty", ("M-1", "E-1"), checks=False),
    ]


# The script


def family(id_: str) -> str:
    """Returns the part of an id that its row of the progress table has."""
    head, _, tail = id_.partition("-")
    is_checklist = head == "CM" and tail[0] in "VNE" and tail[1:].isdigit()
    return f"{head}-{tail[0]}" if is_checklist else head


def progress_table() -> str:
    """Returns covered and total per family, and their sums."""
    covered = Counter(family(id_) for id_ in TEXTS if id_ in covered_ids())
    total = Counter(map(family, TEXTS))
    rows = [(name, covered[name], total[name]) for name in total]
    rows.append(("all", covered.total(), total.total()))
    return "family covered total\n" + "".join(f"{n:<6} {c:>7} {t:>5}\n" for n, c, t in rows)


TITLES = {
    "CF": "Configuration",
    "SF": "Activation and what the model sees",
    "IN": "Input of `exec`",
    "EX": "Running a cell",
    "OU": "Values and output",
    "WA": "`wait`, suspension and snapshots",
    "DU": "Durable programs",
    "CA": "Catalog and names",
    "MC": "MCP",
    "NS": "Namespaces",
    "HK": "Hooks, approvals and policy",
    "AD": "Additions to the pages",
    "TR": "Transcript, trajectory and telemetry",
    "WK": "Workers",
    "ER": "Error codes",
    "CM-V": "Code mode: validation checklist",
    "CM-N": "Code mode: namespace checklist",
    "CM-E": "Code mode: end-to-end plan",
    "CM": "Code mode: everything else",
    "TS": "Tool Search",
    "AL": "The agent loop",
    "MS": "The model's side",
    "PY": "The Python interface",
    "AK": "Calls in results, and questions about them",
    "MF": "The MCP server `clawmode mcp`",
    "SU": "Setting up MCP clients",
    "MX": "MCP for every client",
    "FW": "Adapters for frameworks",
    "HT": "HTTP interfaces of the gateway",
    "AC": "Editors: the Agent Client Protocol",
    "PG": "Programs in PostgreSQL",
    "CP": "The control page",
    "GP": "What the gateway tells its clients",
    "FL": "A fleet: several nodes on one store",
    "N": "Findings of new users and operators",
    "S": "Findings of attackers",
    "B": "Findings of programs that were written against the contract",
    "M": "Found by MCP clients and servers of others",
    "P": "Findings of measurements",
}

PREFACE = """\
# Requirements

Use this page to look up an id such as `EX-3`, which a test cites with
`@pytest.mark.covers("EX-3")`. To find the tests that prove a requirement, search for its id:

```sh
grep -rn '"EX-3"' tests
```

`python tests/contract/test_coverage.py --write` generates this page from
`tests/contract/requirements.py` and `tests/contract/findings.py`. Change sentences there, not here.

The column "from" names the source of a requirement:

- `code-mode.md`, `tool-search.md` and `agent-loop.md` are three pages of the documentation of
  OpenClaw, the agent runtime whose contract clawmode implements.
- `behaviours.md` is the project's notes on what those pages require in detail. They are not part of
  this repository.
- `clawmode` is the Python package: this project decides what its public names do.
- `findings.py` lists problems that people found when they tried clawmode. Each sentence states the
  behaviour since the fix.

The [glossary](../glossary.md) explains the terms.
"""


def requirements_page() -> str:
    """Returns `docs/reference/requirements.md`: one table per family of ids."""
    parts = [PREFACE]
    for name, title in TITLES.items():
        parts.append(f"\n## {name}: {title}\n\n| id | requirement | from |\n| --- | --- | --- |\n")
        parts += [
            f"| {id_} | {text.replace('|', chr(92) + '|')} | {PLACES[id_]} |\n"
            for id_, text in TEXTS.items()
            if family(id_) == name
        ]
    return "".join(parts)


def write_missing() -> None:
    """Renews `missing.py` from the marks, one id per line so that branches merge well."""
    ids = [id_ for id_ in TEXTS if id_ not in covered_ids()]
    lines = "".join(f'        "{id_}",\n' for id_ in ids)
    literal = f"frozenset(\n    {{\n{lines}    }}\n)" if ids else "frozenset()"
    MISSING_FILE.write_text(
        '"""Owns the gaps: requirements that no test covers yet.\n\n'
        "Written by `python tests/contract/test_coverage.py --write`, never by hand.\n"
        f'"""\n\nMISSING: frozenset[str] = {literal}\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        write_missing()
        PAGE.write_text(requirements_page(), encoding="utf-8")
    sys.stdout.write(progress_table())
