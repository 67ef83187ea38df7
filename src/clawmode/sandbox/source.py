"""Both sides: the submitted text. How it is wrapped, and how its errors are told in its own lines.

A cell is the body of an async function. The wrapper's head stands on the first line, so that line
numbers are those of the text; columns of that line are moved back here.
"""

import json
import re
from dataclasses import dataclass

from clawmode.exceptions import ErrorCode
from clawmode.sandbox.line_map import LineMap

HEAD = "(async function () {"
TAIL = "\n})"

MAX_FRAMES = 12

_FRAME = re.compile(r"^\s*at (?:(?P<name>.*) \()?cell:(?P<line>\d{1,9}):(?P<column>\d{1,9})\)?$")

_COMMANDS = (
    "apt apt-get awk bash brew bun cargo cat cd chmod chown cp curl cut deno diff docker du echo "
    "env export find git go grep head jq kill kubectl less ln ls make mkdir mv node npm npx pip "
    "pip3 pnpm ps pwd python python3 rg rm rmdir rsync scp sed sh sort ssh sudo tail tar tee test "
    "touch tree uname uniq unzip uv wc wget which whoami xargs yarn zip zsh"
)
_SHELL = re.compile(
    rf"^(?:#!|\$ |(?:{'|'.join(map(re.escape, _COMMANDS.split()))})(?:\s+[^=(.\s]|$))"
)


SHELL = (
    "This is not JavaScript: it looks like a shell command. `exec` runs the body of an async "
    "JavaScript function."
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A cell that is ready to be compiled."""

    wrapped: bytes
    body: int
    line_map: LineMap | None = None


def wrap(source: str, line_map: LineMap | None = None) -> Prepared:
    """Makes a cell the one function that the prelude's `start` expects."""
    text = HEAD + source + TAIL
    body = len(text) - 2
    if not text.isascii():
        body += sum(1 for character in source if character > "\uffff")
    return Prepared(text.encode("utf-8", "surrogatepass"), body, line_map)


def looks_like_shell(source: str) -> bool:
    """Whether a text that is not JavaScript is plainly a shell command."""
    line = next((line for line in source.splitlines() if line.strip()), "")
    return bool(_SHELL.match(line.strip()))


def describe_failure(
    report: bytes, source: str | None, *, compiling: bool
) -> tuple[ErrorCode, str]:
    """The code and the text of what the prelude reported.

    Args:
        report: Its JSON.
        source: What was submitted, if the cell has just been started with it.
        compiling: Whether it did not get further than being compiled.
    """
    failure = json.loads(report)
    kind, name, message = failure["kind"], failure["name"], failure["message"]
    headline = f"{name}: {message}" if message else name
    line_map = LineMap.decode(failure["map"]) if failure["map"] else None
    positions = _positions(failure["stack"], line_map)
    frames = "".join(f"\n    at {name} (cell:{line}:{column})" for name, line, column in positions)
    if kind == "memory":
        return "memory_limit_exceeded", "The program used more memory than it may."
    # `ls -la` compiles, as a subtraction of two unknown names.
    if source and (compiling or name == "ReferenceError") and looks_like_shell(source):
        return "invalid_input", SHELL
    if source and compiling:
        return "invalid_input", headline + _pointed(source, positions)
    if kind == "tool":
        tool = f" (tool {failure['tool']})" if failure["tool"] else ""
        return "nested_tool_failed", headline + tool + frames
    return "internal_error", headline + frames


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


def _pointed(source: str, positions: list[tuple[str, int, int]]) -> str:
    lines = source.split("\n")
    if not positions or positions[0][1] > len(lines):
        return ""
    _, line, column = positions[0]
    text = lines[line - 1].expandtabs(1).rstrip()
    start = max(0, column - 60)
    shown = text[start : start + 120]
    return f" (line {line}, column {column})\n    {shown}\n    {' ' * (column - 1 - start)}^"
