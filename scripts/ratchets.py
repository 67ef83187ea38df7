"""Figures about the code that may only fall: `make check` fails if one has risen.

`python scripts/ratchets.py` prints the table; `--list NAME [PATH]` shows where a figure comes from;
`--write` records figures that have fallen.
"""

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "clawmode"
RECORD = Path(__file__).with_suffix(".json")

MAX_LINES = 400
MIN_WORDS = 5


@dataclass(frozen=True)
class Module:
    """One module of the package."""

    path: Path
    text: str = field(repr=False)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def name(self) -> str:
        return ".".join(self.path.relative_to(SOURCE).with_suffix("").parts)

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


@cache
def modules() -> dict[str, Module]:
    """Returns the modules of the package by name, without the `__init__` files."""
    found = (Module(path, path.read_text("utf-8")) for path in sorted(SOURCE.rglob("*.py")))
    return {module.name: module for module in found if module.path.name != "__init__.py"}


@cache
def imported(*, at_start: bool) -> dict[str, set[str]]:
    """Returns which of our modules each module imports; with `at_start`, only what it loads."""

    def names(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ImportFrom) and child.module:
                yield child.module
                yield from (f"{child.module}.{alias.name}" for alias in child.names)
            elif not (
                at_start
                and (
                    isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                    or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test))
                )
            ):
                yield from names(child)

    return {
        name: {each.removeprefix("clawmode.") for each in names(module.tree)} & modules().keys()
        for name, module in modules().items()
    }


def longest_chain() -> list[str]:
    """Returns the modules of the longest import chain."""

    @cache
    def chain(name: str) -> tuple[str, ...]:
        loaded = imported(at_start=True)[name]
        return max(((name, *chain(each)) for each in loaded), key=len, default=(name,))

    return list(max((chain(name) for name in modules()), key=len))


def flat_modules() -> list[str]:
    """Returns the modules beside the folders."""
    return [name for name in modules() if "." not in name]


def long_modules() -> list[str]:
    """Returns the modules that have more than 400 lines, with their length."""
    lengths = {name: module.text.count("\n") for name, module in modules().items()}
    return [f"{name} ({length})" for name, length in lengths.items() if length > MAX_LINES]


def single_use_helpers() -> list[str]:
    """Returns private functions and methods that one place calls, and nothing else uses."""
    found: list[str] = []
    for name, module in modules().items():
        called = {
            node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
        }
        uses = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Name | ast.Attribute)
        )
        found += [
            f"{name}:{function.lineno} {function.name}"
            for function in module.functions()
            if re.match(r"_[a-z]", function.name)
            and uses[function.name] == 1
            and function.name in called
        ]
    return found


def short_docstrings() -> list[str]:
    """Returns the docstrings of four words or less."""
    return [
        f"{name}:{node.body[0].lineno} {text}"
        for name, module in modules().items()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
        and (text := ast.get_docstring(node)) is not None
        and len(text.split()) < MIN_WORDS
    ]


def only_one_importer() -> list[str]:
    """Returns the modules that a single other module imports."""
    importers = Counter(each for names in imported(at_start=False).values() for each in names)
    return [name for name in modules() if importers[name] == 1]


def timed_sleeps() -> list[str]:
    """Returns the places in tests that sleep for a time."""
    modules = r"(?:(?:anyio|asyncio|time)\.)?"
    sleep = re.compile(rf"(?<![\w.])(?<!def ){modules}sleep\((?!0\)|float\(\"inf)")
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if sleep.search(line)
    ]


def lint_exceptions() -> list[str]:
    """Returns the places that tell the linter or the type checker to look away."""
    marks = re.compile(r"# (?:noqa|type: ignore|pyrefly: ignore)")
    return [
        f"{name}:{number}"
        for name, module in modules().items()
        for number, line in enumerate(module.text.splitlines(), 1)
        if marks.search(line)
    ]


FIGURES: dict[str, tuple[Callable[[], list[str]], str, str]] = {
    "flat modules": (flat_modules, "0 to 23", "12"),
    "longest import chain": (longest_chain, "4 to 28", "18"),
    "modules over 400 lines": (long_modules, "-", "10"),
    "private functions used once": (single_use_helpers, "2 to 16 %", "12 %"),
    "docstrings of four words or less": (short_docstrings, "-", "20"),
    "timed sleeps in tests": (timed_sleeps, "0 to 11 per 100 tests", "30"),
    "modules with one importer": (only_one_importer, "-", "-"),
    "lint exceptions": (lint_exceptions, "-", "-"),
}
"""What is counted, what httpx, anyio, pydantic-ai and others have, and our goal."""

SHARES = ("private functions used once", "modules with one importer")
"""Figures that are recorded per 1,000 functions or modules, because they grow with the code."""


def main(arguments: list[str]) -> int:
    """Prints the table, a list or complaints; returns the exit status."""
    if arguments[:1] == ["--list"]:
        places = FIGURES[arguments[1]][0]()
        wanted = arguments[2] if len(arguments) > 2 else ""
        print("\n".join(place for place in places if place.startswith(wanted)))
        return 0
    recorded: dict[str, int] = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    counted = {name: len(count()) for name, (count, _, _) in FIGURES.items()}
    functions = sum(1 for module in modules().values() for _ in module.functions())
    for name, total in zip(SHARES, (functions, len(modules())), strict=True):
        counted[name] = round(1000 * counted[name] / total)
    risen = [name for name in counted if counted[name] > recorded.get(name, counted[name])]
    if "--write" in arguments and not risen:
        RECORD.write_text(json.dumps(counted, indent=2) + "\n", "utf-8")
    print(f"{'figure':34}{'now':>6}{'at most':>9}   {'other projects':24}goal")
    for name, (_, others, goal) in FIGURES.items():
        unit = " ‰" if name in SHARES else ""
        now, most = f"{counted[name]}{unit}", f"{recorded.get(name, 0)}{unit}"
        print(f"{name:34}{now:>6}{most:>9}   {others:24}{goal}")
    print(f"({len(modules())} modules, {functions} functions)")
    for name in risen:
        print(f'{name}: {counted[name]}, was {recorded[name]}; see: {sys.argv[0]} --list "{name}"')
    return 1 if risen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
