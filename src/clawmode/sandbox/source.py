"""Both sides: the submitted source. Wraps it, and describes its errors by its own lines.

A cell is the body of an async function. The head of the wrapper is on the first line, so line
numbers are those of the source; columns of the first line are corrected here.
"""

import json
import re
from functools import cache
from typing import NamedTuple

from clawmode.sandbox.line_map import CompileFailure, LineMap
from clawmode.sandbox.protocol import MAX_ERROR, Failure, Start
from clawmode.types import ErrorCode, dataclass

HEAD = "(async function () {"
TAIL = "\n})"

MAX_FRAMES = 12

_FRAME = re.compile(r"^\s*at (?:(?P<name>.*) \()?cell:(?P<line>\d{1,9}):(?P<column>\d{1,9})\)?$")

_COMMANDS = """
    alias apt apt-get awk basename bash brew bun cargo cat cd chmod chown cmake composer cp curl cut
    date deno df diff dirname docker du echo env export find gcc gem git go grep head helm java
    javac jq kill kubectl less ln ls lsof make mkdir mv mvn node npm npx perl php ping pip pip3 pnpm
    poetry ps psql pwd pytest python python3 rg rm rmdir rsync ruby scp sed sh sleep sort source
    sqlite3 ssh sudo systemctl tail tar tee terraform test touch tr tree tsc uname uniq unset unzip
    uv wc wget which whoami xargs yarn zip zsh
"""
_JAVASCRIPT_WORDS = (
    "abstract|as|async|class|const|declare|default|enum|function|in|instanceof|interface|let|"
    "namespace|of|type|var"
)
_BETWEEN_COMMANDS = re.compile(r"\|\|?|&&|;")


class UnbalancedSource(Exception):
    """The source closes the function that it is wrapped in."""


TOO_MANY = "The program opened more calls at once than it may. Await some before starting more."
STUCK = "The program waits for a promise that nothing can settle."


class _ShellPatterns(NamedTuple):
    """Patterns of lines that a shell would run."""

    first_word: re.Pattern[str]
    command: re.Pattern[str]
    other: re.Pattern[str]


@cache
def _shell_patterns() -> _ShellPatterns:
    # Not at import: compiling them takes longer than everything else here, and few sources fail.
    commands = "|".join(map(re.escape, _COMMANDS.split()))
    command = (
        rf"(?:{commands})\s+(?!(?:{_JAVASCRIPT_WORDS})\b)"
        r"""(?:[\w"'$~]|-{1,2}\w|/\w|\*[./]|\.(?:[\s./]|$))"""
    )
    other = rf"""\#! | \$\s
        | (?:[A-Z_][A-Z0-9_]*=\S*\s+)+ (?:{commands}|\.{{0,2}}/)
        | (?:\.{{1,2}}|~|/(?:bin|etc|home|opt|root|tmp|usr|var)) /[\w.-]+ (?:/[\w.-]+)* (?:\s|$)
        | for\s+\w+\s+in\b [^:]* \bdo\b
        | (?:if|while|until)\s+ (?:\[ | \S.*;\s*(?:then|do)\b)"""
    return _ShellPatterns(
        re.compile(rf"(?:{commands})(?:\s|$)"), re.compile(command), re.compile(other, re.VERBOSE)
    )


SHELL = (
    "This is not JavaScript: it looks like a shell command. `exec` runs the body of an async "
    "JavaScript function."
)


@dataclass(frozen=True, slots=True)
class PreparedSource:
    """A source that is ready to be compiled.

    Attributes:
        wrapped: UTF-8 of the function that the source is the body of.
        body: Where the function must end, in UTF-16 units.
        line_map: Where positions come from, if the source was printed anew.
        origin: For TypeScript, the map and the submitted source as text. The guest's memory keeps
            the text, so it is frozen with the cell.
    """

    wrapped: bytes
    body: int
    line_map: LineMap | None = None
    origin: str = ""

    @property
    def unclosed(self) -> bytes:
        """The text without the wrapper's `}`. It compiles if the source has one `}` too many."""
        return self.wrapped.removesuffix(TAIL.encode()) + b"\n)"


def wrap(source: str, line_map: LineMap | None = None, submitted: str = "") -> PreparedSource:
    """Wraps a source into the one function that the prelude's `accept` expects.

    Args:
        source: JavaScript.
        line_map: Where its positions come from, if it was printed anew.
        submitted: The TypeScript that it was made of.
    """
    text = HEAD + source + TAIL
    body = len(text) - 2
    if not text.isascii():
        body += sum(1 for character in source if character > "\uffff")
    origin = f"{line_map.encode() if line_map else ''}\n{submitted}" if submitted else ""
    return PreparedSource(text.encode("utf-8", "surrogatepass"), body, line_map, origin)


def looks_like_shell(source: str) -> bool:
    """True if a text that is not JavaScript is clearly a shell command."""
    if source.lstrip().startswith("#!"):
        return True
    lines = _shell_lines(source)
    if not lines or not _is_command(lines[0]):
        return bool(lines and _shell_patterns().other.match(lines[0]))
    # A single word is not enough: the first line of a program may begin an expression.
    return " " in lines[0] or all(map(_is_command, lines))


def _shell_lines(source: str) -> list[str]:
    """Returns the lines that a shell would run."""
    lines = (line.strip() for line in source.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _is_command(line: str) -> bool:
    parts = [part.strip() for part in _BETWEEN_COMMANDS.split(line)]
    if not _shell_patterns().first_word.match(parts[0]):
        return False
    return line == parts[0].split()[0] or any(
        _shell_patterns().command.match(part) for part in parts
    )


def _is_undefined_command(source: str, message: str) -> bool:
    """True for `ls -la`, which compiles as a subtraction: `ls` is not defined."""
    lines = _shell_lines(source)
    missing = re.match(r"'?([\w$]+)'? is not defined$", message)
    if not lines or missing is None or lines[0].split()[0] != missing[1]:
        return False
    return all(map(_is_command, lines))


def describe_failure(
    report: bytes,
    start: Start | None,
    compile_failure: CompileFailure | None = None,
    *,
    filled: bool = False,
) -> tuple[ErrorCode, str]:
    """Returns the error code and the text for a failure that the prelude reported.

    Args:
        report: The prelude's JSON.
        start: The submitted source, if the cell has just been started with it.
        compile_failure: Set if the source did not compile.
        filled: True if the cell has used all of its memory. The engine throws `null` where there
            is no room for an error.
    """
    failure = json.loads(report)
    kind, name, message = failure["kind"], failure["name"], failure["message"]
    headline = f"{name}: {message}" if message else name
    if kind == "memory" or (kind == "null" and filled):
        return "memory_limit_exceeded", "The program used more memory than it may."
    if start and compile_failure:
        return _describe_syntax(headline, failure["stack"], start, compile_failure)
    encoded, _, submitted = failure["origin"].partition("\n")
    line_map = LineMap.decode(encoded) if encoded else None
    positions = _positions(failure["stack"], line_map)
    frames = "".join(f"\n    at {name} (cell:{line}:{column})" for name, line, column in positions)
    if start and name == "ReferenceError":
        if _is_undefined_command(start.source, message):
            return "invalid_input", SHELL
        if start.language == "javascript" and _names_type(start.source, message):
            frames += f"\n{TYPESCRIPT}"
    if kind == "error" and name == "TypeError" and (missed := failure["missed"]):
        # The engine's message names nothing, and this failure may be about another name.
        found = zip(positions[:1], _positions(failure["missedAt"], line_map), strict=False)
        # The engine's columns of the two places differ by a few letters.
        if any(f[1] == m[1] and abs(f[2] - m[2]) <= len(missed) for f, m in found):
            headline = headline.replace(" not a function", f" {missed} is not a function")
            return "nested_tool_failed", f"{headline}{frames}\n{MISSING.format(missed)}"
        if message == "not a function":
            frames += f"\n{MAYBE_MISSING.format(missed)}"
    if kind == "tool":
        tool = f" (tool {failure['tool']})" if failure["tool"] else ""
        if failure.get("pause") is not None:
            tool += f" (rate_limited: wait {failure['pause']} ms and call it again)"
        source = submitted or failure["source"][len(HEAD) - 1 :]
        return "nested_tool_failed", headline + tool + _excerpt(source, positions) + frames
    return "internal_error", headline + frames


def _describe_syntax(
    headline: str, stack: str, start: Start, compile_failure: CompileFailure
) -> tuple[ErrorCode, str]:
    source = start.source
    if looks_like_shell(source):
        return "invalid_input", SHELL
    positions = _positions(stack, compile_failure.line_map)
    if not positions:
        return "invalid_input", headline
    _, line, column = positions[0]
    lines = source.split("\n")
    if compile_failure.line_map is None and line > len(lines):
        # The engine reports the wrapper, which the author does not know.
        return "invalid_input", _describe_end(source, closed=compile_failure.closed)
    text = lines[min(line, len(lines)) - 1]
    before, after = text[: column - 1], text[column - 1 :]
    if word := _MODULE_SYNTAX.search(before + (_WORD.match(after) or [""])[0]):
        column = word.start(1) + 1
        return "module_access_denied", (
            f"`{word[1]}` at line {line}, column {column}: programs have no modules. "
            "Call tools instead."
        )
    error = f"{headline}{_pointed(text, line, column)}"
    if start.language == "javascript" and _is_type_syntax(before, after):
        error += f"\n{TYPESCRIPT}"
    return "invalid_input", error


def is_typescript(start: Start, failure: Failure) -> bool:
    """True if a program did not compile as JavaScript and looks like TypeScript."""
    refused = start.language == "javascript" and failure.code == "invalid_input"
    return refused and failure.error.endswith(TYPESCRIPT)


def _describe_end(source: str, *, closed: bool) -> str:
    offset, message = len(source.rstrip()), "Unexpected end of the program"
    if closed:
        offset, message = last_brace(source), "This `}` closes nothing"
    line = source.count("\n", 0, offset) + 1
    start = source.rfind("\n", 0, offset) + 1
    text = source[start:].split("\n", 1)[0]
    return f"SyntaxError: {message}{_pointed(text, line, offset - start + 1)}"


def last_brace(source: str) -> int:
    """Returns the index of the last `}` that only comments follow."""
    tail = source[-MAX_TAIL:]
    found = _LAST_BRACE.search(tail)
    return len(source) - len(tail) + found.start() if found else source.rfind("}")


MAX_TAIL = 2000
# Not possessive: Python 3.11.2 matches possessive repetitions of groups wrongly.
_LAST_BRACE = re.compile(r"\}(?:\s|//[^\n]*(?![^\n])|/\*(?:[^*]|\*(?!/))*\*/)*$")

_WORD = re.compile(r"\w*")
_MODULE_SYNTAX = re.compile(r"(?:^|[;{}])\s*(export|import)(?:\s+type)?$")

TYPESCRIPT = "This looks like TypeScript."
MISSING = "There is no {}."
MAYBE_MISSING = "The program also looked for {}, which does not exist."

_TYPE = (
    r"(?:(?:any|bigint|boolean|never|null|number|object|string|symbol|undefined|unknown|void)\b"
    r"|(?:readonly|keyof|typeof)\s|[A-Z]|[{(\[\"'])"
)
_TYPE_AFTER = re.compile(
    rf"""\?\s*[:,)] | enum\s | (?:as|satisfies)\s+(?:const\b|{_TYPE}) | ![.;,)\[\]}}] | !\s*$
    | [\[{{][^\]}}]*[\]}}]\s*:\s*{_TYPE} | :\s*{_TYPE}""",
    re.VERBOSE,
)
_TYPE_BEFORE = re.compile(
    r"(?:^|[;{}])\s*(?:static\s+)?(?:abstract|declare|interface|namespace|override|private|protected"
    r"|public|readonly|type)\s+$"
)
_TYPE_ARGUMENTS = re.compile(r"\w<[^<>=;()]*(?:<[^<>=;()]*>\s*)*$")


def _is_type_syntax(before: str, after: str) -> bool:
    """True if the engine stopped, between two parts of a line, at the syntax of a type."""
    if _TYPE_AFTER.match(after) or (_TYPE_BEFORE.search(before) and after[:1].isidentifier()):
        return True
    # `new Map<string, number>()` parses as comparisons, until the engine meets `>`, `()` or `[]`.
    cut = before[:-2] if before.endswith(">(") else before if after.startswith((">", "[]")) else ""
    return bool(_TYPE_ARGUMENTS.search(cut[-200:]))


def _names_type(source: str, message: str) -> bool:
    """True for `f<number>(1)`, which compiles as a comparison: `number` is not defined."""
    missing = re.match(rf"'?({_TYPE}\w*)'? is not defined$", message)
    return (
        missing is not None and re.search(rf"\w<{re.escape(missing[1])}[<>,\[]", source) is not None
    )


def _positions(stack: str, line_map: LineMap | None) -> list[tuple[str, int, int]]:
    found = []
    for text in stack.splitlines():
        frame = _FRAME.match(text)
        if frame is None:
            continue
        line, column = int(frame["line"]), int(frame["column"])
        if line == 1:
            column = max(column - len(HEAD), 1)
        if line_map is not None:
            line, column = line_map.original(line, column)
        name = frame["name"]
        found.append((name if name and name != "<anonymous>" else "cell", line, column))
    return found[:MAX_FRAMES]


def _excerpt(source: str, positions: list[tuple[str, int, int]]) -> str:
    """Returns the line that made a failed call; empty if the guest has hidden the position."""
    lines = source.split("\n")
    if not positions or not 0 < positions[0][1] <= len(lines):
        return ""
    _, line, column = positions[0]
    return _pointed(lines[line - 1], line, min(column, len(lines[line - 1]) + 1))


def _pointed(text: str, line: int, column: int) -> str:
    text = text.expandtabs(1).rstrip()
    start = max(0, column - 60)
    shown = text[start : start + 120]
    return f" (line {line}, column {column})\n    {shown}\n    {' ' * (column - 1 - start)}^"


def clean_text(text: str) -> str:
    """Replaces lone surrogates, which cannot be encoded, and bounds the length."""
    return text[: MAX_ERROR - 1].encode("utf-8", "replace").decode()


def last_line(error: Exception) -> str:
    """Returns the last line of an error of wasmtime, which says what happened."""
    return (str(error).strip().splitlines() or ["trap"])[-1].strip()[:200]
