"""Worker side: TypeScript to JavaScript, with positions in the submitted source.

A cell is the body of an async function, so it is wrapped in one for SWC, and unwrapped again. There
are two ways:

- *strip*: types become spaces, and every line and column stays. Nearly every cell takes this way.
- *reprint*: where spaces do not suffice (an enum, a namespace with values, parameter properties,
  `<T>value`), SWC prints the cell anew, with a source map. It may then rename a variable that
  shadows another (`x` to `x1`) and lose comments. A cell is also reprinted if spaces in place of a
  declaration would join the statements around it: see `_joins`.

Decorators are rejected, as QuickJS has none. The engine itself reports errors that SWC does not
check (a second `let` of one name, `break` outside of a loop) or passes on (`accessor`).
"""

import json
import re
import secrets
import unicodedata
from bisect import bisect_right
from functools import cached_property
from typing import Any, Literal, TypeAlias

import wasmtime

from clawmode.sandbox.deadline import Arm
from clawmode.sandbox.line_map import LineMap
from clawmode.sandbox.source import SHELL, last_brace, looks_like_shell
from clawmode.sandbox.swc import REPRINT, STRIP, Swc, TransformerCrash, Value
from clawmode.sandbox.swc import TransformerMismatch as TransformerMismatch
from clawmode.types import ErrorCode, dataclass

Kind: TypeAlias = Literal["syntax", "module", "unsupported"]

MAX_SNIPPET = 200
MAX_MESSAGE = 300

_FUNCTION = "async function __cell(){"
_PRINTED_FUNCTION = "async function __cell() {"
_LINE_BREAK = re.compile(r"\r\n?|\n")
_MODULE_WORD = re.compile(r"(?:im|ex)port\b")


class TransformError(Exception):
    """The source could not be transformed into JavaScript.

    `line` and `column` count from 1 in the submitted source. They are None, and `snippet` is empty,
    if the transformer failed on the source as a whole.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: Kind,
        line: int | None = None,
        column: int | None = None,
        snippet: str = "",
    ) -> None:
        super().__init__(message if line is None else f"{message} (line {line}, column {column})")
        self.message = message
        self.kind: Kind = kind
        self.line = line
        self.column = column
        self.snippet = snippet

    def describe(self, source: str) -> tuple[ErrorCode, str]:
        """Returns the error code and the text for the author of `source`."""
        if looks_like_shell(source):
            return "invalid_input", SHELL
        if self.kind == "module":
            return "module_access_denied", (
                f"Line {self.line}, column {self.column}: programs have no modules. "
                "Call tools instead."
            )
        position = f" (line {self.line}, column {self.column})" if self.line else ""
        snippet = f"\n    {self.snippet}" if self.snippet else ""
        return "typescript_transform_failed", f"{self.message}{position}{snippet}"


@dataclass(frozen=True)
class TransformedSource:
    """JavaScript, the body of an async function. Without a map, positions are unchanged."""

    code: str
    line_map: LineMap | None


class TypeScript:
    """Transforms one cell after another. Arguments and exceptions are those of `Swc`."""

    def __init__(
        self,
        engine: wasmtime.Engine,
        module: wasmtime.Module,
        arm: Arm,
    ) -> None:
        self._swc = Swc(engine, module, arm)
        # `break` is valid only inside of the block with its label, and the source cannot guess the
        # label. So if the whole parses, the source closes no brace that it did not open. `const`
        # comes first because it cannot continue an unfinished statement such as `if (x)`.
        label = f"_{secrets.token_hex(8)}"
        self._head = f"{_FUNCTION}{label}:{{"
        self._tail = f"\nconst {label}=0;break {label};}}}}"

    def transform(self, source: str) -> TransformedSource:
        """Transforms a cell into JavaScript.

        Raises:
            TransformError: The source is wrong; the message is for the model.
            wasmtime.Trap: The deadline passed.
        """
        try:
            source.encode()
        except UnicodeEncodeError as error:
            escape = f"\\u{ord(source[error.start]):04x}"
            message = f"Lone surrogate, which is no character; in a string write it as `{escape}`"
            raise _error_at(source, error.start, message) from None
        try:
            stripped = self._run(self._head, source, self._tail, STRIP)
        except _Complaint as complaint:
            if complaint.code == "UnsupportedSyntax":
                return self._reprint(source)
            raise self._diagnose(source, complaint) from None
        code = _unwrap(stripped["code"], self._head, self._tail, source)
        return self._reprint(source) if _joins(source, code) else TransformedSource(code, None)

    def close(self) -> None:
        """Frees wasmtime's objects. Nothing can be transformed afterwards."""
        self._swc.close()

    def _reprint(self, source: str) -> TransformedSource:
        try:
            printed = self._run(_FUNCTION, source, "\n}", REPRINT)
        except _Complaint as complaint:
            raise _error_at(source, complaint.offset, complaint.message) from None
        # The line break after the opening brace stays, so that lines match those of the map.
        code = _unwrap(printed["code"].rstrip(), _PRINTED_FUNCTION, "}", source)
        mappings = json.loads(printed["map"])["mappings"]
        last_line = len(_line_starts(source))
        return TransformedSource(
            code, LineMap(mappings, prefix=len(_FUNCTION), last_line=last_line)
        )

    def _diagnose(self, source: str, complaint: "_Complaint") -> TransformError:
        offset, message = complaint.offset, complaint.message
        if offset <= len(source):
            return _error_at(source, offset, message)
        if "got '<eof>'" in message or message.startswith("Unterminated"):
            return _error_at(source, len(source), message)
        if offset > len(source) + 1 and (brace := self._find_stray_brace(source)) >= 0:
            return _error_at(source, brace, "This `}` closes nothing")
        return _error_at(source, len(source), "Unexpected end of the program")

    def _find_stray_brace(self, source: str) -> int:
        """Returns the index of a `}` that closes the wrapper; -1 if something is left open."""
        # Nothing may follow the body of a parenthesised arrow function, so SWC stops right there.
        try:
            self._run("(async()=>{", source, "\n})", STRIP)
        except _Complaint as complaint:
            if complaint.offset <= len(source) + 1:
                return last_brace(source[: max(complaint.offset, 0)])
        return -1

    def _run(self, head: str, source: str, tail: str, options: Value) -> dict[str, str]:
        program = head + source + tail
        try:
            accepted, answer = self._swc.transform(program, options)
        except TransformerCrash as crash:
            raise TransformError(str(crash), kind="unsupported") from crash
        if not accepted:
            raise _Complaint(answer, program, shift=len(head))
        return answer


class _Complaint(Exception):
    """An error that SWC reports, with its position as an offset into the source."""

    def __init__(self, answer: dict[str, Any], program: str, *, shift: int) -> None:
        self.code: str = answer.get("code", "")
        self.message: str = answer["message"]
        self._line = int(answer.get("startLine", 1))
        self._column = int(answer.get("startColumn", 0))
        self._program = program
        self._shift = shift

    @cached_property
    def offset(self) -> int:
        starts = [*_line_starts(self._program), len(self._program)]
        line = min(self._line, len(starts) - 1)
        text = self._program[starts[line - 1] : starts[line]].rstrip("\r\n")
        return starts[line - 1] + _index(text, self._column) - self._shift


def _error_at(source: str, offset: int, message: str) -> TransformError:
    """Returns the error for a position. The end of the source is the end of its last text."""
    kind: Kind = "syntax"
    offset = max(offset, 0) if offset < len(source) else len(source.rstrip())
    if source.startswith("@", offset):
        kind, message = "unsupported", "Decorators are not supported"
    elif _MODULE_WORD.match(source, offset):
        kind = "module"
    starts = _line_starts(source)
    line = bisect_right(starts, offset)
    start = starts[line - 1]
    end = starts[line] if line < len(starts) else len(source)
    text, column = source[start:end].rstrip("\r\n"), offset - start
    # Of a long line, the part around the column is shown.
    cut = max(min(column - MAX_SNIPPET // 2, len(text) - MAX_SNIPPET), 0)
    shown = "…" + text[cut + 1 :] if cut else text
    return TransformError(
        _clean(message, MAX_MESSAGE),
        kind=kind,
        line=line,
        column=column + 1,
        snippet=_clean(shown, MAX_SNIPPET),
    )


def _clean(text: str, limit: int) -> str:
    """Shortens a text and replaces control characters, for logs and terminals."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in text)


def _line_starts(text: str) -> list[int]:
    return [0, *(found.end() for found in _LINE_BREAK.finditer(text))]


def _index(text: str, column: int) -> int:
    """Returns the index of the character at SWC's column, which counts cells of a terminal."""
    if text.isascii() and text.isprintable():
        return min(column, len(text))
    for index, char in enumerate(text):
        if column <= 0 and not unicodedata.combining(char):
            return index
        if char == "\t":
            column -= 4
            continue
        column -= char > "\uffff"  # SWC counts UTF-16 units, then adds the width
        if unicodedata.category(char) not in ("Cc", "Cf", "Me", "Mn"):
            column -= 2 if unicodedata.east_asian_width(char) in "FW" else 1
    return len(text)


def _unwrap(code: str, head: str, tail: str, source: str) -> str:
    if code.startswith(head) and code.endswith(tail):
        return code[len(head) : -len(tail)]
    # After a last line `declare`, for example, SWC blanks the tail as a declaration.
    raise _error_at(source, len(source), "Unexpected end of the program")


_SPACE = r"[\s\ufeff]"
_CONTINUES = re.compile(r"[(\[`+\-/*]|\.\d|in\b|instanceof\b")
_GAP = re.compile(rf"(?<!{_SPACE}){_SPACE}{{4,}}+(?={_CONTINUES.pattern})")
_TRIVIA = re.compile(rf"(?:{_SPACE}|//[^\n\r\u2028\u2029]*|/\*(?s:.*?)\*/)*")
_NEW_LINE = re.compile(r"[\n\r\u2028\u2029]")
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


def _joins(source: str, code: str) -> bool:
    """True if removing a declaration may have joined the statements around it.

    SWC also blanks the `;` of a declaration, and does not always add another; in a class body it
    never does. A `(` or `[` after the declaration then continues the statement before it.
    """
    if len(code) != len(source):  # SWC writes two spaces for a character of two UTF-16 units
        source = _ASTRAL.sub("##", source)
        code = _ASTRAL.sub("##", code)
    judged = 0
    for gap in _GAP.finditer(code):
        start, end = gap.span()
        if start < judged or source[start:end] == code[start:end]:
            continue
        if start and code[start - 1] == ";" != source[start - 1]:
            continue  # SWC has added it
        trivia = _TRIVIA.match(code, end)
        judged = trivia.end() if trivia else end
        removed = source[start:end].rstrip()
        ended = removed.endswith(";") or _NEW_LINE.search(source, start + len(removed), judged)
        if ended and _CONTINUES.match(code, judged):
            return True
    return False
