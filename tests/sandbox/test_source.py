"""The submitted text: languages, modules, wrapper, and errors in its own lines."""

import pytest
from tests.sandbox.stepping import failure_of, finish, value_of

from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import Start
from clawmode.sandbox.source import looks_like_shell

pytestmark = pytest.mark.anyio


@pytest.mark.covers("IN-5")
async def test_await_and_return_work_at_the_top_level(pool: Pool) -> None:
    assert await value_of(pool, "const x = await Promise.resolve(20); return x + 1") == 21


async def test_a_trailing_expression_is_not_returned(pool: Pool) -> None:
    assert await value_of(pool, "40 + 2") is None


@pytest.mark.covers("IN-3", "ER-module_access_denied")
@pytest.mark.parametrize(
    ("source", "what", "line", "column"),
    [
        ('import fs from "fs"', "import", 1, 1),
        ('const a = 1\nimport * as b from "b"', "import", 2, 1),
        ('await import("fs")', "import()", 1, 7),
        ("return import.meta.url", "import.meta", 1, 8),
        ('\n  require("fs")', "require()", 2, 3),
        ('(require)("fs")', "require()", 1, 1),
        ('require?.("fs")', "require()", 1, 1),
        ('(0, require)("fs")', "require()", 1, 1),
        ('r\\u0065quire("fs")', "require()", 1, 1),
        ('`${require("fs")}`', "require()", 1, 4),
        ('const f = () => ({ a: [require("x")] })', "require()", 1, 24),
        ('new require("x")', "require()", 1, 1),
    ],
)
async def test_reaching_for_a_module_is_denied_with_its_place(
    pool: Pool, source: str, what: str, line: int, column: int
) -> None:
    failed = await failure_of(pool, source)
    assert failed.code == "module_access_denied"
    assert f"`{what}` at line {line}, column {column}" in failed.error


@pytest.mark.covers("IN-3")
@pytest.mark.parametrize(
    "source",
    [
        'return "import x from y"',
        "// require('fs')\nreturn 1",
        "/* import('x') */ return 1",
        "return `import(${1})`",
        "return /require\\(x\\)/.test('')",
        "const o = { import: 1, require() { return 2 } }; return o.import + o.require()",
        "class A { import() { return 1 } require = 2 } return new A().import()",
        "const { import: i } = { import: 3 }; return i",
        'return "r\\u0065quire"',
        "return { 'require': 1 }.require",
    ],
)
async def test_the_words_alone_are_fine(pool: Pool, source: str) -> None:
    assert await value_of(pool, source) is not None


@pytest.mark.covers("IN-3")
async def test_naming_require_without_calling_it_fails_when_it_runs(pool: Pool) -> None:
    failed = await failure_of(pool, "const load = require; return load('fs')")
    assert failed.code == "internal_error"
    assert "ReferenceError" in failed.error


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        ("return 1", False),
        ("return '\\u00e9'", False),
        ("return 'import'", True),
        ("r\\u0065quire('x')", True),
        ("\\u0072equire('x')", True),
        ("\\u{0000000000072}equire('x')", True),
        ("\\u{72}equire('x')", True),
        ("\\u0072\\u0065\\u0071\\u0075\\u0069\\u0072\\u0065('x')", True),
        ("return '\\u{ffffffff}'", False),
    ],
)
def test_the_parser_is_needed_only_for_a_text_that_can_name_a_module(
    source: str, needed: bool
) -> None:
    assert ("acorn" in Start(source).needs()) is needed


async def test_an_indirect_import_finds_nothing_either(pool: Pool) -> None:
    source = 'try { await eval("imp" + "ort(\'fs\')") } catch (e) { return "refused" }'
    assert await value_of(pool, source) == "refused"


@pytest.mark.covers("IN-4")
@pytest.mark.parametrize(
    "source",
    ["ls -la", "git status", "#!/bin/sh\necho hi", "npm install left-pad", "cat a.txt | wc -l"],
)
async def test_a_shell_command_is_told_apart_from_a_syntax_error(pool: Pool, source: str) -> None:
    failed = await failure_of(pool, source)
    assert failed.code == "invalid_input"
    assert "shell command" in failed.error


@pytest.mark.parametrize(
    "source", ["git.status()", "find(x => x)", "test = 1", "sort", "const ls = 1; return ls - 1"]
)
def test_javascript_does_not_look_like_a_shell_command(source: str) -> None:
    assert looks_like_shell(source) == (source == "sort")


@pytest.mark.covers("ER-invalid_input")
async def test_a_syntax_error_points_at_its_place(pool: Pool) -> None:
    failed = await failure_of(pool, "const a = 1;\nconst b = ;\nreturn a")
    assert failed.code == "invalid_input"
    assert failed.error.splitlines() == [
        "SyntaxError: unexpected token in expression: ';' (line 2, column 11)",
        "    const b = ;",
        "              ^",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "}); (async function () {",
        "}); text('out'); (async function () {",
        "}, async function () {",
        "} + {",
        "}) ; ({",
    ],
)
async def test_closing_the_wrapper_is_refused(pool: Pool, source: str) -> None:
    failed = await failure_of(pool, source)
    assert failed.code == "invalid_input"
    assert failed.requests == ()


@pytest.mark.covers("IN-7")
async def test_runtime_errors_carry_the_submitted_lines_and_no_others(pool: Pool) -> None:
    source = """function inner() {
  throw new TypeError("no good");
}
await null;
inner();"""
    failed = await failure_of(pool, source)
    assert failed.code == "internal_error"
    assert failed.error.splitlines() == [
        "TypeError: no good",
        "    at inner (cell:2:13)",
        "    at cell (cell:5:1)",
    ]


@pytest.mark.covers("IN-7")
async def test_columns_of_the_first_line_are_not_those_of_the_wrapper(pool: Pool) -> None:
    failed = await failure_of(pool, 'throw new Error("here")')
    assert failed.error == "Error: here\n    at cell (cell:1:11)"


async def test_a_stack_that_the_guest_reads_has_no_frame_of_ours(pool: Pool) -> None:
    stack = await value_of(pool, "return new Error('x').stack")
    assert "prelude" not in stack
    assert "cell:1:" in stack


@pytest.mark.covers("IN-6")
@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('interface A {\n  x: number;\n}\nthrow new Error("x" as string)', 4),
        ("enum E {\n  A = 1,\n}\n\nthrow new Error(String(E.A))", 5),
        ('namespace N {\n  export const v: number = 1;\n}\nthrow new Error("" + N.v)', 4),
    ],
)
async def test_lines_survive_the_typescript_transform(pool: Pool, source: str, line: int) -> None:
    failed = await failure_of(pool, source, language="typescript")
    assert f"(cell:{line}:" in failed.error


@pytest.mark.covers("IN-6", "ER-typescript_transform_failed")
async def test_typescript_diagnostics_carry_line_column_and_text(pool: Pool) -> None:
    failed = await failure_of(pool, "let a = 1;\nlet b: = 2;", language="typescript")
    assert failed.code == "typescript_transform_failed"
    assert "(line 2, column 8)" in failed.error
    assert "let b: = 2;" in failed.error


@pytest.mark.covers("IN-3")
@pytest.mark.parametrize(
    "source", ['import x from "y"', 'import type { A } from "a"', 'const a: any = require("a")']
)
async def test_modules_are_denied_in_typescript_too(pool: Pool, source: str) -> None:
    failed = await failure_of(pool, source, language="typescript")
    assert failed.code == "module_access_denied"


async def test_a_javascript_cell_is_not_transformed(pool: Pool) -> None:
    failed = await failure_of(pool, "let a: number = 1")
    assert failed.code == "invalid_input"


async def test_text_beyond_the_basic_plane_is_counted_right(pool: Pool) -> None:
    assert await value_of(pool, 'const s = "😀é"; return [s.length, s]') == [3, "😀é"]


async def test_a_comment_or_a_template_at_the_end_does_not_swallow_the_wrapper(pool: Pool) -> None:
    assert await value_of(pool, "return 1 // no newline") == 1
    failed = await finish(pool, "return `open")
    assert getattr(failed, "code", "") == "invalid_input"
