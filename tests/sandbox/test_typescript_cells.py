"""TypeScript does what it means: the cases of `typescript_cases.json`, run as cells."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.compiler import find_compiler
from tests.support.sandbox_driver import patience
from tests.support.stepping import failure_of, finish, value_of

from clawmode import CodeMode, Tool
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import Completion

pytestmark = pytest.mark.anyio

CASES: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("typescript_cases.json").read_text(encoding="utf-8")
)

REPRINTED = "enum Level { Low, High }"
"""A first line that cannot be stripped: what follows is printed anew, with a source map."""


@pytest.mark.covers("IN-6")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
async def test_a_typescript_cell_does_what_it_means(pool: Pool, case: dict[str, Any]) -> None:
    assert await value_of(pool, case["source"], language="typescript") == case["expect"]


BEFORE = """const seen: unknown[] = []
const f = (...given: unknown[]) => { seen.push(given.length, typeof given[0]); return f }
f.length2 = 2
let i = 1, g = 2
"""
STATEMENTS = [
    "let a: any = f",
    "a2 = [f, f]",
    "f(1)",
    "const o = {}",
    "i++",
    "var h = `t`",
    "// f;",
]
DECLARATIONS = [
    "type Z = number",
    'type Z = { a: 1; b: "😀;" }',
    "interface Z { a: number; b(): void }",
    "declare let q: string",
    "declare const q: Array<\n  string\n>",
    "declare function q(): void",
    "declare class Q { m(): void }",
    "type Y = 1\ntype Z<T> = T extends string ? 1 : 2",
    "let z: number = 4 as any",
]
NEXT_STATEMENTS = [
    "(f)(5)",
    "[1, 2].forEach(f)",
    "`x${i}`.at(0)",
    "+i",
    "-f(3)",
    "/i/g.test('i')",
    "++i",
]
MEMBERS = ["x = f", "x", "static x = [1]", "x = 1 // c;", "m() {}", "x = 1;"]
REMOVED = [
    "declare y: number",
    "n?(): void",
    "k(a: string): void\nk(): void\nk() {}",
    "abstract n(): 1",
]
NEXT_MEMBERS = [
    "['z'] = 3",
    "*z() {}",
    "in = 3",
    "['z']() {}",
    "static ['z'] = 4",
    "instanceof = 1",
]
SEPARATORS = ["\n", "\n;", ";\n", "\n\n// c;\n;", " /* c */\n;", "; ", ";", "\n\ufeff;\n"]


def joints() -> list[str]:
    """Cells in which a declaration stands where removing it could join what is around it."""
    draw = random.Random(4)
    made = []
    for _ in range(150):
        end = draw.choice(SEPARATORS)
        lines = [
            draw.choice(STATEMENTS),
            draw.choice(DECLARATIONS) + end + draw.choice(NEXT_STATEMENTS),
        ]
        made.append(
            BEFORE + "let a2: unknown\n" + "\n".join(lines) + "\nreturn [seen, i, typeof a2]"
        )
    for _ in range(100):
        end = draw.choice(SEPARATORS)
        lines = [draw.choice(MEMBERS), draw.choice(REMOVED) + end + draw.choice(NEXT_MEMBERS)]
        body = "abstract class A {\n" + "\n".join(lines) + "\n}\nclass B extends A {}\n"
        made.append(
            BEFORE + body + "return [Object.entries(new B()), Object.entries(A), "
            "Object.getOwnPropertyNames(A.prototype)]"
        )
    return made


@pytest.mark.covers("B-4", "IN-6")
async def test_a_declaration_that_is_removed_joins_nothing(pool: Pool, tmp_path: Path) -> None:
    sources = joints()
    compiled = find_compiler(tmp_path).emit(
        [f"async function cell() {{\n{source}\n}}\n" for source in sources]
    )
    for source, javascript in zip(sources, compiled, strict=True):
        expected = await value_of(pool, javascript + "\nreturn await cell()")
        outcome = await finish(pool, source, language="typescript")
        assert isinstance(outcome, Completion), (source, outcome)
        assert json.loads(outcome.value) == expected, source


@pytest.mark.covers("IN-6", "IN-7")
@pytest.mark.parametrize("first", ["interface Gone { x: number }", REPRINTED])
async def test_errors_are_at_the_lines_that_were_submitted(pool: Pool, first: str) -> None:
    source = f"""{first}

type Id = string | number;
function check(id: Id): never {{
  throw new TypeError("bad id");
}}
check(1 as Id);"""
    failed = await failure_of(pool, source, language="typescript")

    assert failed.code == "internal_error"
    assert failed.error.startswith("TypeError: bad id\n    at check (cell:5:")
    assert failed.error.splitlines()[2].startswith("    at cell (cell:7:")
    assert len(failed.error.splitlines()) == 3


@pytest.mark.covers("AK-3")
@pytest.mark.parametrize("first", ["interface Gone { x: number }", REPRINTED])
async def test_a_failed_call_shows_its_line_as_it_was_submitted(pool: Pool, first: str) -> None:
    tools = [Tool("broken", "Broken.", {}, lambda params, context: params["x"])]
    source = f"""{first}
const id: number = 1;
await yield_control();
const price = await tools.broken({{ id }}) as number;"""
    async with CodeMode(tools=tools, pool=pool) as code_mode:
        parked = await code_mode.exec(source, "typescript")
        failed = await code_mode.wait(parked.run_id)
    assert failed.code == "nested_tool_failed"
    headline, shown, *_ = str(failed.error).splitlines()
    assert headline.startswith("KeyError: 'x' (tool openclaw:core:broken) (line 4, column ")
    assert shown == "    const price = await tools.broken({ id }) as number;"


@pytest.mark.covers("IN-6", "ER-typescript_transform_failed")
@pytest.mark.parametrize(
    ("source", "line", "column"),
    [("let a: number = 1;\nlet b: = 2;", 2, 8), (f"{REPRINTED}\n\n  const c: string = ;", 3, 21)],
)
async def test_a_diagnostic_has_line_column_and_excerpt(
    pool: Pool, source: str, line: int, column: int
) -> None:
    failed = await failure_of(pool, source, language="typescript")

    assert failed.code == "typescript_transform_failed"
    assert f"(line {line}, column {column})" in failed.error
    assert source.splitlines()[line - 1].strip() in failed.error


@pytest.mark.covers("CM-typescript-unchecked")
async def test_types_are_not_checked(pool: Pool) -> None:
    assert (
        await value_of(pool, "const n: number = 'text'; return n", language="typescript") == "text"
    )


@pytest.mark.covers("IN-6", "CM-V15")
async def test_only_typescript_cells_load_the_transformer(anyio_backend: str) -> None:
    async with Pool(size=1) as pool:
        assert await value_of(pool, "return 1") == 1
        (worker,) = pool._workers.tenants
        assert worker.provided == set()

        assert await value_of(pool, "return 2 as number", language="typescript") == 2
        assert worker.provided == {"swc"}


@pytest.mark.covers("IN-6")
async def test_a_deadline_covers_the_transformer(anyio_backend: str) -> None:
    async with Pool(size=1) as pool:
        await value_of(pool, "return 1", language="typescript")
        source = "text('ran'); if (false) {" + "f<A>(b as C);\n" * 60_000 + "}"

        with patience():
            failed = await failure_of(pool, source, language="typescript", seconds=0.05)

        assert (failed.code, failed.output) == ("timeout", ())
        assert await value_of(pool, "return 2 as number", language="typescript") == 2
