"""Replaces one text in another, as `edit` does, or says what is wrong with the text to replace."""

from clawmode.core_tools.places import shown
from clawmode.exceptions import ToolProblem

NEAR_LINES = 5_000
NEAR_CHARS = 200
NEAR_ENOUGH = 0.6


def replaced(
    text: str, old: str, new: str, path: str, *, every: bool = False
) -> tuple[str, int, int]:
    """Replaces text. Returns the new text, the number of replacements, and the first line.

    Line endings are kept: in a file with CRLF, the inserted text also gets CRLF.

    Raises:
        ToolProblem: The old text is missing, occurs several times, or equals the new text.
    """
    if not old:
        raise ToolProblem("bad_input", "oldText is empty; use `write` to create or replace a file")
    if old == new:
        raise ToolProblem("bad_input", "oldText and newText are the same")
    breaks = text.count("\n")
    if breaks and text.count("\r\n") == breaks:
        old, new = _with_crlf(old), _with_crlf(new)
    count = text.count(old)
    if not count and "\r\n" in text:
        old, new = _with_crlf(old), _with_crlf(new)
        count = text.count(old)
    if not count:
        raise ToolProblem(
            "no_match", f"oldText does not occur in {shown(path)}{_nearest(text, old)}"
        )
    line = text.count("\n", 0, text.index(old)) + 1
    if count > 1 and not every:
        second = text.count("\n", 0, text.index(old, text.index(old) + 1)) + 1
        raise ToolProblem(
            "ambiguous",
            f"oldText occurs {count} times in {shown(path)}, first in lines {line} and {second}; "
            "add surrounding lines, or set replaceAll",
        )
    return text.replace(old, new), count, line


def _with_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _nearest(text: str, old: str) -> str:
    """Returns a hint about similar text, in linear time; models often quote inexactly."""
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1)]
    lines = [(number, line) for number, line in lines if line]
    wanted = [line.strip() for line in old.split("\n") if line.strip()]
    if not wanted:
        return ""
    have = "\n".join(["", *(line for _, line in lines), ""])
    found = have.find("\n".join(["", *wanted, ""]))
    if found >= 0:
        number = lines[have.count("\n", 0, found)][0]
        return f"; it occurs from line {number} on with different white space"
    first = _pairs(wanted[0])
    near = max(lines[:NEAR_LINES], key=lambda pair: _likeness(first, _pairs(pair[1])), default=None)
    if near is None or _likeness(first, _pairs(near[1])) < NEAR_ENOUGH:
        return "; read the file again"
    return f"; line {near[0]} is the most similar to its first line: {near[1][:NEAR_CHARS]!r}"


def _pairs(line: str) -> set[str]:
    """Returns the pairs of adjacent characters at the start of a line."""
    line = line[:NEAR_CHARS]
    return {line[at : at + 2] for at in range(len(line))}


def _likeness(some: set[str], others: set[str]) -> float:
    """Returns Dice's coefficient of two sets of pairs, from 0 to 1."""
    return 2 * len(some & others) / (len(some) + len(others))
