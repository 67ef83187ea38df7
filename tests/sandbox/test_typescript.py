"""SWC driven as the worker drives it: the real wasm, no worker, no engine to run the result in.

That the JavaScript does what the TypeScript meant is shown with the VM, over the same cases.
"""

import json
import threading
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import wasmtime
from wasmtime import _ffi as ffi

from clawmode.sandbox import swc
from clawmode.sandbox.typescript import (
    LineMap,
    TransformerMismatch,
    TransformError,
    TypeScript,
)

CASES: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("typescript_cases.json").read_text(encoding="utf-8")
)
REPRINTED = {
    "numeric enum",
    "string enum",
    "const enum",
    "computed enum",
    "merged enum",
    "nested namespaces",
    "parameter properties",
    "angle-bracket assertion",
    "enum, namespace and class merge",
    "reprinted strings keep their escapes",
    "a semicolon after a type",
    "a semicolon after a declaration",
    "a computed field after a declared one",
}


class Arm:
    """Sets a store's limits and remembers the stores it was given."""

    def __init__(self) -> None:
        self.ticks = 1
        self.memory = 256 << 20
        self.stores: list[wasmtime.Store] = []

    def __call__(self, store: wasmtime.Store) -> None:
        store.set_epoch_deadline(self.ticks)
        store.set_limits(memory_size=self.memory)
        if store not in self.stores:
            self.stores.append(store)


@pytest.fixture(scope="module")
def engine() -> wasmtime.Engine:
    config = wasmtime.Config()
    config.epoch_interruption = True
    ffi.wasmtime_config_async_stack_size_set(config.ptr(), 16 << 20)
    config.max_wasm_stack = 8 << 20
    return wasmtime.Engine(config)


@pytest.fixture(scope="module")
def module(engine: wasmtime.Engine) -> wasmtime.Module:
    wasm = files("clawmode.sandbox").joinpath("guest", "vendor", "swc.wasm")
    return wasmtime.Module(engine, wasm.read_bytes())


@pytest.fixture(scope="module")
def typescript(engine: wasmtime.Engine, module: wasmtime.Module) -> Iterator[TypeScript]:
    transformer = TypeScript(engine, module, Arm())
    yield transformer
    transformer.close()


@pytest.fixture
def arm() -> Arm:
    return Arm()


@pytest.fixture
def fresh(engine: wasmtime.Engine, module: wasmtime.Module, arm: Arm) -> Iterator[TypeScript]:
    transformer = TypeScript(engine, module, arm)
    yield transformer
    transformer.close()


def refusal(typescript: TypeScript, source: str) -> TransformError:
    with pytest.raises(TransformError) as caught:
        typescript.transform(source)
    return caught.value


def place(error: TransformError) -> tuple[int | None, int | None, str]:
    return error.line, error.column, error.snippet


def on_large_stack(function: Callable[[], None]) -> None:
    """Runs `function` as the worker does: wasm may use 8 MiB, as much as a main thread has."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    before = threading.stack_size(32 << 20)
    thread = threading.Thread(target=run)
    thread.start()
    threading.stack_size(before)
    thread.join()
    if raised:
        raise raised[0]


# What comes out


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_syntax_of_a_case_is_known(typescript: TypeScript, case: dict[str, Any]) -> None:
    transformed = typescript.transform(case["source"])

    assert (transformed.line_map is not None) == (case["name"] in REPRINTED)
    if transformed.line_map is None:
        assert transformed.code.count("\n") == case["source"].count("\n")


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("", ""),
        ("return await f(1)", "return await f(1)"),
        ("let x: number = 1", "let x         = 1"),
        ("let x!: string;\nreturn x!", "let x         ;\nreturn x "),
        ("interface A {\n  b: C\n}\nreturn 1", "             \n      \n \nreturn 1"),
        ("const f = <T,>(x: T): T => x", "const f =     (x   )    => x"),
        ("f<A>(b as C, d satisfies E)", "f   (b     , d            )"),
        ("const g = f<number>;", "const g = f        ;"),
        ("const h = (a: number):\n  number => a", "const h = (a          \n       ) => a"),
        ("const a = 1 as any\n(0, x)", "const a = 1 ;     \n(0, x)"),
        ("type Z = string\n[1].at(0)", ";              \n[1].at(0)"),
        ("let v: '中😀' = w; x", "let v        = w; x"),
        ("using a: A = b; await using c: C = d", "using a    = b; await using c    = d"),
        ("function f(this: A, b?: B): asserts b {}", "function f(         b    )            {}"),
        ("function f(a: A): void;\nfunction f(a) {}", "                       \nfunction f(a) {}"),
        ("class A { declare b: C; readonly d }", "class A {                        d }"),
        ("declare const gone: 1; namespace N {}", "                                     "),
        ("const re = /}@{/, s = `}${'@'}`; // }", "const re = /}@{/, s = `}${'@'}`; // }"),
        ("class A { #b = 1; c() { return #b in this } }", None),
        ("x\r\ny: for (;;) break y\r\n", None),
        ("a\u2028b", None),
    ],
)
def test_types_become_spaces(typescript: TypeScript, source: str, code: str | None) -> None:
    transformed = typescript.transform(source)

    assert transformed.code == (source if code is None else code)
    assert transformed.line_map is None


def test_columns_after_a_type_with_wide_characters_stay_in_utf_16_units(
    typescript: TypeScript,
) -> None:
    source = "let v: '😀' = w"

    code = typescript.transform(source).code

    assert code.encode("utf-16-le").index("w".encode("utf-16-le")) == 2 * (source.index("w") + 1)


def test_an_enum_is_reprinted_as_a_function_body(typescript: TypeScript) -> None:
    transformed = typescript.transform("enum A { B }\nreturn A")

    assert transformed.code == (
        "\n"
        "    let A = /*#__PURE__*/ function(A) {\n"
        '        A[A["B"] = 0] = "B";\n'
        "        return A;\n"
        "    }({});\n"
        "    return A;\n"
    )


@pytest.mark.parametrize(
    "source", ["const enum A { B }", "const enum A { B } /* } */", "<any>x //"]
)
def test_little_or_nothing_may_be_left_to_print(typescript: TypeScript, source: str) -> None:
    code = typescript.transform(source).code

    assert "__cell" not in code
    assert "}" not in code.replace("/* } */", "")


# Places


MARKED = """\
mark("1"); enum Level { Low, High }
interface Gone {
  x: number;
}
class Point { constructor(readonly x: number) { mark("5") } }

  mark("7"); const far = (y: number): number => { mark("7b"); return y }
namespace N {
  export const z = mark("9");
}
/* 😀 */ const wide = "中"; mark("11");
return <any>mark("12");"""


def test_places_in_reprinted_code_lead_back_to_the_submitted_text(typescript: TypeScript) -> None:
    transformed = typescript.transform(MARKED)

    assert transformed.line_map is not None
    for name in ("1", "5", "7", "7b", "9", "11", "12"):
        call = f'mark("{name}")'
        found = position(transformed.code, call)
        line, column = position(MARKED, call)
        shift = 1 if name == "11" else 0  # the map counts UTF-16 units
        assert transformed.line_map.original(*found) == (line, column + shift)


def position(text: str, part: str) -> tuple[int, int]:
    before = text[: text.index(part)]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def test_places_without_a_mark_of_their_own_lead_to_the_nearest_before_them() -> None:
    line_map = LineMap("AAAA,KACC;;C,EAEA;", prefix=3, last_line=3)

    assert line_map.original(1, 1) == (1, 1)
    assert line_map.original(1, 5) == (1, 1)
    assert line_map.original(1, 6) == (2, 2)
    assert line_map.original(2, 1) == (2, 2)
    assert line_map.original(3, 1) == (2, 2)
    assert line_map.original(3, 4) == (3, 2)
    assert line_map.original(99, 99) == (3, 2)
    assert line_map.original(0, 0) == (1, 1)


# Diagnostics


@pytest.mark.parametrize(
    ("source", "message", "line", "column", "snippet"),
    [
        ("let x: number = ;", "Expression expected", 1, 17, None),
        ("let a = 1\n\n  let b: number = ;\n", "Expression expected", 3, 19, "  let b: number = ;"),
        ("a\r\nb\r\n c = ;", "Expression expected", 3, 6, " c = ;"),
        ("a\rb = ;", "Expression expected", 2, 5, "b = ;"),
        ("\tx\t= ;", "Expression expected", 1, 6, None),
        ("x('é中e\u0301😀', = 1)", "Expression expected", 1, 12, None),
        ("'\x1b[31m' + ;", "Expression expected", 1, 11, "'�[31m' + ;"),
        ("é = 0x\ny", "Expected a hexadecimal digit", 1, 7, "é = 0x"),
        ("a b", "Expected ';', '}' or <eof>", 1, 3, None),
        ("x = 'abc\n'", "Unterminated string constant", 1, 5, "x = 'abc"),
        ("a = `b\n\n", "Unterminated template", 1, 5, "a = `b"),
        ("a /* b\nc", "Unterminated block comment", 2, 2, "c"),
        ("\0", "Unexpected character '\\0'", 1, 1, "�"),
        ("for (;;) {\n  f()\n", "Expected '}', got '<eof>'", 2, 6, "  f()"),
        ("enum A { B }\nlet x = ;", "Expression expected", 2, 9, "let x = ;"),
    ],
)
def test_a_diagnostic_has_its_place_in_the_submitted_text(
    typescript: TypeScript,
    source: str,
    message: str,
    line: int,
    column: int,
    snippet: str | None,
) -> None:
    error = refusal(typescript, source)

    assert error.kind == "syntax"
    assert place(error) == (line, column, source if snippet is None else snippet)
    assert error.message == message
    assert str(error) == f"{message} (line {line}, column {column})"


@pytest.mark.parametrize(
    "source",
    ["if (x)", "f(", "x = {", "class A { b", "() =>", "type X =", "declare", "x +\n\n", "do"],
)
def test_a_cell_that_stops_short_is_refused_at_its_end(typescript: TypeScript, source: str) -> None:
    error = refusal(typescript, source)

    assert error.message == "Unexpected end of the program"
    assert place(error) == (1, len(source.rstrip()) + 1, source.rstrip())


@pytest.mark.parametrize(
    ("source", "line", "column"),
    [
        ("}", 1, 1),
        ("} {", 1, 1),
        ("}}; async function more() {{", 1, 1),
        ("f({ a: 1 }) }\nreturn 2", 1, 13),
        ("const re = /}/, s = `}${'}'}`; // }\nif (x) {\n}\n}\nreturn re // }", 4, 1),
        ("if (x) {\n  g()\n}}\n/* end */", 3, 2),
        ("enum A { B }\n} {", 2, 1),
    ],
)
def test_a_brace_that_closes_the_wrapper_is_refused(
    typescript: TypeScript, source: str, line: int, column: int
) -> None:
    error = refusal(typescript, source)

    assert error.message == "This `}` closes nothing"
    assert (error.line, error.column) == (line, column)


@pytest.mark.parametrize(
    "source", ["}, () => {", "}); (async () => {", "} + function () {", "}} class A { m() {{"]
)
def test_a_source_cannot_close_the_wrapper_and_open_another(
    typescript: TypeScript, source: str
) -> None:
    assert refusal(typescript, source).kind == "syntax"


@pytest.mark.parametrize(
    "source",
    [
        "import a from 'b'",
        "import type { A } from 'b'",
        "import 'a'",
        "import a = N.b",
        "import a = require('b')",
        "export const a = 1",
        "export default 1",
        "export type A = 1",
        "export = 1",
        "export * from 'a'",
        "namespace N { import a from 'b'; export const c = a }",
        "namespace N { export * from 'a' }",
    ],
)
def test_static_imports_and_exports_are_refused_as_module_access(
    typescript: TypeScript, source: str
) -> None:
    error = refusal(typescript, f"f();\n  {source}")

    assert error.kind == "module"
    assert error.line == 2
    assert error.column == (17 if source.startswith("namespace") else 3)


@pytest.mark.parametrize(
    "source", ["type A = import('b').C", "o.import({ export: 1 }).export", "'import a from b'"]
)
def test_the_words_of_modules_are_fine_elsewhere(typescript: TypeScript, source: str) -> None:
    assert typescript.transform(source).line_map is None


@pytest.mark.parametrize(
    "source", ["@d class A {}", "@d() class A {}", "enum B { C } @d class A {}"]
)
def test_decorators_are_refused_with_their_place(typescript: TypeScript, source: str) -> None:
    error = refusal(typescript, source)

    assert error.kind == "unsupported"
    assert error.message == "Decorators are not supported"
    assert place(error) == (1, source.index("@") + 1, source)


def test_a_decorated_member_is_refused_on_its_line(typescript: TypeScript) -> None:
    error = refusal(typescript, "class A {\n\t@d m() {}\n}")

    assert error.kind == "unsupported"
    assert place(error) == (2, 2, "\t@d m() {}")


def test_a_long_line_is_cut_around_the_place(typescript: TypeScript) -> None:
    error = refusal(typescript, "x" * 500 + " = ;" + "y" * 500)

    assert error.column == 504
    assert len(error.snippet) == 200
    assert error.snippet.startswith("…xxx")
    assert error.snippet.endswith("yyy…")
    assert "x = ;y" in error.snippet


def test_a_long_line_is_shown_from_its_start_or_to_its_end(typescript: TypeScript) -> None:
    assert refusal(typescript, "a = ;" + "y" * 500).snippet == "a = ;" + "y" * 194 + "…"
    assert refusal(typescript, "y" * 500 + "\\").snippet == "…" + "y" * 198 + "\\"


def test_a_message_does_not_repeat_a_long_source(typescript: TypeScript) -> None:
    for source in ("0" + "x" * 5000, "label" * 1000 + "; continue " + "label" * 1000):
        assert len(refusal(typescript, source).message) <= 300


# Hostile sources


def test_lone_surrogates_are_refused_with_their_place(typescript: TypeScript) -> None:
    error = refusal(typescript, "a\n'\ud83d'")

    assert error.kind == "syntax"
    assert place(error) == (2, 2, "'�'")
    assert "`\\ud83d`" in error.message


@pytest.mark.parametrize(
    "source",
    [
        "(" * 200_000,
        "[" * 200_000,
        "{" * 200_000,
        "!" * 200_000,
        "`${" * 200_000,
        "a=>" * 200_000,
        "type A = " + "(" * 200_000,
        "type A = " + "B<" * 200_000,
        "(() => {" * 5_000 + "})" * 5_000,
        "a" + " < b" * 200_000,
        "x = 1" + " + 1" * 200_000,
        "enum A { B = 1" + " + 1" * 200_000 + " }",
    ],
    ids=lambda source: source[:12],
)
def test_deep_nesting_is_refused_and_the_next_cell_works(fresh: TypeScript, source: str) -> None:
    def transform() -> None:
        error = refusal(fresh, source)

        assert error.message == "The source is nested too deeply for the TypeScript transformer"
        assert (error.kind, *place(error)) == ("unsupported", None, None, "")
        assert str(error) == error.message
        assert fresh.transform("let x: 1").code == "let x   "

    on_large_stack(transform)


def test_a_megabyte_of_source_is_no_trouble(typescript: TypeScript) -> None:
    code = typescript.transform("const x: number = 1;\n" * 50_000).code

    assert code == "const x         = 1;\n" * 50_000


def test_a_crash_for_want_of_memory_is_an_error_of_the_source(fresh: TypeScript, arm: Arm) -> None:
    arm.memory = 4 << 20

    error = refusal(fresh, "const x: number = 1;\n" * 50_000)

    assert error.message == "The TypeScript transformer crashed on this source"
    assert error.kind == "unsupported"
    assert fresh.transform("let x: 1").code == "let x   "


# The instance


def test_the_interrupt_of_a_deadline_is_passed_on(fresh: TypeScript, arm: Arm) -> None:
    fresh.transform("1")
    arm.ticks = 0

    with pytest.raises(wasmtime.Trap) as caught:
        fresh.transform("let x: number")

    assert caught.value.trap_code is wasmtime.TrapCode.INTERRUPT
    arm.ticks = 1
    assert fresh.transform("let x: 1").code == "let x   "


def test_a_trap_costs_the_instance_and_a_refusal_does_not(fresh: TypeScript, arm: Arm) -> None:
    refusal(fresh, "}")
    refusal(fresh, "@")
    fresh.transform("enum A { B }")
    assert len(arm.stores) == 1

    arm.ticks = 0
    with pytest.raises(wasmtime.Trap):
        fresh.transform("1")
    arm.ticks = 1
    fresh.transform("1")
    assert len(arm.stores) == 2


def test_whatever_interrupts_a_transform_costs_the_instance(fresh: TypeScript, arm: Arm) -> None:
    def interrupt(store: wasmtime.Store) -> None:
        raise KeyboardInterrupt

    fresh.transform("1")
    fresh._swc._arm = interrupt
    with pytest.raises(KeyboardInterrupt):
        fresh.transform("1")
    fresh._swc._arm = arm
    fresh.transform("1")

    assert len(arm.stores) == 2


def test_a_worn_instance_is_replaced(
    fresh: TypeScript, arm: Arm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swc, "MAX_TRANSFORMS", 3)
    for _ in range(7):
        fresh.transform("let x: number")
    assert len(arm.stores) == 3

    monkeypatch.setattr(swc, "MAX_TRANSFORMS", 1000)
    monkeypatch.setattr(swc, "MAX_MEMORY", 1 << 20)
    for _ in range(2):
        fresh.transform("let x: number")
    assert len(arm.stores) == 4


def test_values_do_not_pile_up(fresh: TypeScript) -> None:
    def transform() -> int:
        for source in ("let x: number", "enum A { B }", "}", "let ="):
            try:
                fresh.transform(source)
            except TransformError:
                pass
        glue = fresh._swc._glue
        return len(glue._values) - len(glue._free)

    first = transform()

    assert [transform() for _ in range(5)] == [first] * 5


def test_nothing_is_left_behind_in_wasmtimes_table(
    engine: wasmtime.Engine, module: wasmtime.Module
) -> None:
    from wasmtime._func import FUNCTIONS

    before = len(FUNCTIONS.handles)
    forgotten = TypeScript(engine, module, Arm())
    forgotten.transform("1")
    del forgotten
    closed = TypeScript(engine, module, Arm())
    closed.transform("1")
    closed.close()
    closed.close()

    assert len(FUNCTIONS.handles) == before


# Another wasm


def stand_in(engine: wasmtime.Engine, name: str, kind: str = "", body: str = "") -> wasmtime.Module:
    """A module with SWC's exports, one import, and `body` for `transformSync`."""
    return wasmtime.Module(
        engine,
        f"""(module
          (import "__wbindgen_placeholder__" "{name}" (func $import {kind}))
          (memory (export "memory") 1)
          (func (export "transformSync") (param i32 i32 i32) {body})
          (func (export "__wbindgen_export_2") (param i32 i32) (result i32) i32.const 0)
          (func (export "__wbindgen_add_to_stack_pointer") (param i32) (result i32) i32.const 64)
        )""",
    )


@pytest.mark.parametrize(
    "name",
    [
        "__wbg_mystery_0123456789abcdef",
        "__wbg_new_0123456789abcdef",  # of what?
        "__wbindgen_mystery",
        "fd_write",
    ],
)
def test_an_unknown_import_is_a_mismatch_at_load(engine: wasmtime.Engine, name: str) -> None:
    with pytest.raises(TransformerMismatch, match=f"imports '{name}'"):
        TypeScript(engine, stand_in(engine, name), Arm())


def test_a_known_import_of_another_release_is_bound(engine: wasmtime.Engine) -> None:
    bound = TypeScript(engine, stand_in(engine, "__wbg_buffer_0123456789abcdef"), Arm())
    assert isinstance(bound, TypeScript)
    bound.close()


def test_a_missing_export_is_a_mismatch_at_load(engine: wasmtime.Engine) -> None:
    with pytest.raises(TransformerMismatch, match=r"does not export .*memory, transformSync"):
        TypeScript(engine, wasmtime.Module(engine, "(module)"), Arm())


def test_an_operation_that_was_never_called_is_a_mismatch(engine: wasmtime.Engine) -> None:
    module = stand_in(engine, "__wbindgen_memory", body="call $import")

    with pytest.raises(TransformerMismatch, match="called '__wbindgen_memory'"):
        TypeScript(engine, module, Arm()).transform("1")


@pytest.mark.parametrize("address", [0, 0x7FFFFFFF, -1])
def test_what_swc_throws_is_a_crash(engine: wasmtime.Engine, address: int) -> None:
    body = f"(call $import (i32.const {address}) (i32.const 8))"
    module = stand_in(engine, "__wbindgen_throw", "(param i32 i32)", body)

    error = refusal(TypeScript(engine, module, Arm()), "1")

    assert error.message == "The TypeScript transformer crashed on this source"
