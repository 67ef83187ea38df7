"""The submitted text: languages, modules, wrapper, and errors in its own lines."""

import pytest
from tests.support.stepping import failure_of, finish, value_of

from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import LANGUAGES, Language, Start
from clawmode.sandbox.source import SHELL, TYPESCRIPT

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


@pytest.mark.covers("IN-4", "B-16")
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "source",
    [
        *(
            "ls -la",
            "git status",
            "#!/bin/sh\necho hi",
            "npm install left-pad",
            "cat a.txt | wc -l",
        ),
        *("pwd", "ls | wc -l", "cd /tmp\nls -la", "echo hi > x; ls", "export FOO=bar"),
        *("find . -name '*.py'", "NODE_ENV=test npm test", "./run.sh --fast", "ls *.txt"),
        *("# a comment\nls -la", "for f in *.txt; do cat $f; done", "source venv/bin/activate"),
        *(
            "if [ -f x ]; then cat x; fi",
            "/usr/bin/env python3 x.py",
            "$ make test",
            "cd ..",
            "ls ~",
        ),
    ],
)
async def test_a_shell_command_is_told_apart_from_a_syntax_error(
    pool: Pool, source: str, language: Language
) -> None:
    failed = await failure_of(pool, source, language=language)
    assert failed.code == "invalid_input"
    assert failed.error == SHELL


@pytest.mark.covers("B-11")
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "source",
    [
        *(
            "node && node.value",
            "env ? 1 : 2",
            "test\nreturn 1",
            "sort + 1",
            "find - 1",
            "head - tail",
        ),
        *("git.status()", "const x = 1\nls -la", "node ?? (env || 1)", "echo, 1", "date\n;foo"),
        *("sort = = 1", "export class { }", "kill(1", "test.x y", "for f in items:", "which => {"),
        *("tree in x y", "env\n  ? 1 : : 2", "find(x => x", "date - = 1"),
    ],
)
async def test_javascript_is_not_taken_for_a_shell_command(
    pool: Pool, source: str, language: Language
) -> None:
    failed = await failure_of(pool, source, language=language)
    assert failed.error != SHELL


@pytest.mark.covers("B-11")
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("source", "line", "column"),
    [
        ("export const x = 5; return x", 1, 1),
        ("const a = 1\n  export default a", 2, 3),
        ("if (1) {}; export { a }", 1, 12),
    ],
)
async def test_an_export_is_module_access(
    pool: Pool, source: str, line: int, column: int, language: Language
) -> None:
    failed = await failure_of(pool, source, language=language)
    assert failed.code == "module_access_denied"
    assert f"ine {line}, column {column}: programs have no modules" in failed.error


@pytest.mark.covers("B-10", "IN-7")
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("source", "line", "column"),
    [
        ("const y = x.map(v => {\n return v * 2;", 2, 15),
        ("foo(1, 2", 1, 9),
        ("if (1)\n\n", 1, 7),
        ("return a +", 1, 11),
        ("function f() {\n}\n// }\nfoo([", 4, 6),
        ("class A {\n  m() {}\n", 2, 9),
    ],
)
async def test_a_program_that_ends_too_early_says_where(
    pool: Pool, source: str, line: int, column: int, language: Language
) -> None:
    failed = await failure_of(pool, source, language=language)
    assert f"Unexpected end of the program (line {line}, column {column})\n" in failed.error
    assert source.splitlines()[line - 1] in failed.error


@pytest.mark.covers("B-10")
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("source", "line", "column"),
    [("return 1 }", 1, 10), ("if (1) {\n} }\n", 2, 3), ("return 1 // }\n} /* } */ // }", 2, 1)],
)
async def test_a_brace_that_closes_nothing_is_pointed_at(
    pool: Pool, source: str, line: int, column: int, language: Language
) -> None:
    failed = await failure_of(pool, source, language=language)
    assert f"This `}}` closes nothing (line {line}, column {column})" in failed.error


@pytest.mark.covers("B-9", "IN-6")
@pytest.mark.parametrize("more", [0, 12])
@pytest.mark.parametrize(
    "first",
    [
        "enum E { A }",
        "namespace N { export const b = 1 }",
        "class P { constructor(private q = 1) {} }",
    ],
)
async def test_a_syntax_error_of_reprinted_typescript_is_at_its_submitted_line(
    pool: Pool, first: str, more: int
) -> None:
    source = f"{first}\nlet a: number = 1\n  let a: number = 2\n" + "f(1)\n" * more
    failed = await failure_of(pool, source, language="typescript")
    assert failed.code == "invalid_input"
    assert "(line 3, column " in failed.error
    assert "\n      let a: number = 2\n" in failed.error


@pytest.mark.covers("N-12")
@pytest.mark.parametrize(
    "source",
    [
        *("const x: number = 1", "let x: string", "function f(a: number, b) {}", "type A = string"),
        *("const f = (a): Promise<string> => a", "interface A { b: string }", "enum E { A }"),
        *(
            "const x = y as string",
            "const m = new Map<string, number>()",
            "return new Set<string>()",
        ),
        *(
            "class A { private x = 1 }",
            "class A { x: number = 1 }",
            "return x!.y",
            "abstract class A {}",
        ),
        *(
            "const x = [] satisfies X[]",
            "const { a }: { a: string } = b",
            "function f(a?: string) {}",
        ),
        *(
            "try {} catch (e: any) {}",
            "for (const x: string of y) {}",
            "declare let x",
            "return f(a!)",
        ),
        *("const f = (x) => x; return f<number>(1)", "let m = new Map<string, number[]>()"),
    ],
)
async def test_typescript_that_was_sent_as_javascript_is_named(pool: Pool, source: str) -> None:
    failed = await failure_of(pool, source)
    assert failed.error.endswith(f"\n{TYPESCRIPT}")
    assert TYPESCRIPT not in getattr(await finish(pool, source, language="typescript"), "error", "")


@pytest.mark.covers("N-12")
@pytest.mark.parametrize(
    "source",
    [
        *(
            "tools.add(a: 1, b: 2)",
            "return { a: 1 b: 2 }",
            "if (x: y) {}",
            "const x = ;",
            "a ? b c",
        ),
        *(
            "return x < y > ()",
            "let type x",
            "for (const x as y) {}",
            "const as = 1 2",
            "x! y",
            "x y: 1",
        ),
        *("return number", "return 1 < string"),
    ],
)
async def test_broken_javascript_is_not_called_typescript(pool: Pool, source: str) -> None:
    assert TYPESCRIPT not in (await failure_of(pool, source)).error


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
