"""JSON5 text in, a value and the place of its parts out: the only module that knows pyjson5.

pyjson5 counts characters, keeps the last of two equal keys, and has no hook for either. So the
words of its errors are translated here, and a text that it has accepted is read once more for
where its members stand.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyjson5

from clawmode.exceptions import ConfigurationError
from clawmode.text import printable
from clawmode.types import JsonValue

Parts: TypeAlias = tuple[str | int, ...]
"""The way to a member: keys of objects and indexes of lists."""

MAX_DEPTH = 64

_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_TOKEN = re.compile(
    r"""(?P<skip> [\s\ufeff]+ | //[^\n\r\u2028\u2029]* | /\*.*?\*/ )
      | (?P<string> "[^"\\]*(?:\\.[^"\\]*)*" | '[^'\\]*(?:\\.[^'\\]*)*' )
      | (?P<mark> [{}\[\]:,] )
      | (?P<word> [^\s\ufeff{}\[\]:,"'/]+ )""",
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Document:
    """A text, what it says, and the offset of each member."""

    text: str
    value: JsonValue
    offsets: dict[Parts, int]


def parse(text: str, name: str) -> Document:
    """Reads a text. A key that stands twice in an object is an error: one would be dropped.

    Args:
        text: The text, without a byte order mark.
        name: What to call it in errors.

    Raises:
        ConfigurationError: It is not JSON5; line and column say where.
    """
    try:
        value: JsonValue = pyjson5.decode(text, maxdepth=MAX_DEPTH)
    except pyjson5.Json5DecoderException as error:
        raise _fault(text, name, *_translate(text, error)) from None
    offsets: dict[Parts, int] = {}
    for parts, offset in _members(text):
        if parts in offsets:
            line, _ = place(text, offsets[parts])
            message = f"the key {parts[-1]!r} stands in line {line} already"
            raise _fault(text, name, message, offset)
        offsets[parts] = offset
    return Document(text, value, offsets)


def place(text: str, offset: int) -> tuple[int, int]:
    """Line and column of a character, both from 1."""
    breaks = list(_LINE_BREAK.finditer(text, 0, offset))
    start = breaks[-1].end() if breaks else 0
    return len(breaks) + 1, offset - start + 1


def _fault(text: str, name: str, message: str, offset: int) -> ConfigurationError:
    line, column = place(text, offset)
    return ConfigurationError(
        f"{name}:{line}:{column}: {message}\n{_excerpt(text, offset, column)}",
        line=line,
        column=column,
    )


def _excerpt(text: str, offset: int, column: int) -> str:
    """The line, or some of a long one, and below it a caret."""
    before = text[offset - min(column - 1, 60) : offset]
    after = _LINE_BREAK.split(text[offset : offset + 40], maxsplit=1)[0]
    shown = printable(before + after, keep="\t")
    below = re.sub(r"[^\t]", " ", before)  # a tab stays one, so that the caret is below its place
    return f"    {shown}\n    {below}^"


# ---- What pyjson5 says ----

_WORDS = {
    "b'JSON5Value'": "a value",
    "b'IdentifierStart'": "a key",
    "b'comma' or": "a comma or",
    "Unclosed b'NumericLiteral'": "this number cannot be read",
    "No JSON data found": "there is nothing in it",
    "Maximum nesting level exceeded": f"nested over {MAX_DEPTH} deep",
}


def _translate(text: str, error: pyjson5.Json5DecoderException) -> tuple[str, int]:
    """What is wrong and where; an unknown message is passed on, at the start of the text."""
    said = str(error.args[0])
    near = re.search(r" near (\d+)", said)
    offset = min(max(int(near[1]) - 1, 0), len(text)) if near else 0
    words = re.sub(r"( starting)? near \d+", "", said)
    for theirs, ours in _WORDS.items():
        words = words.replace(theirs, ours)
    words = re.sub(r"b'(\w[\w ]*)'", r"\1", words)
    words = re.sub(r"U\+([0-9A-Fa-f]+)", lambda match: ascii(chr(int(match[1], 16))), words)
    if isinstance(error, pyjson5.Json5ExtraData) and len(error.args) > 2:
        # Here the offset is where the value ended, before any space and comment.
        offset = max(text.find(str(error.args[2]), offset + 1), offset)
    return words[:1].lower() + words[1:], offset


# ---- Where things stand ----


def _members(text: str) -> Iterator[tuple[Parts, int]]:
    """Every member of every object and list, in order, of a text that is valid."""
    path: list[str | int] = []  # for each open object its key at hand, for each list its index
    fresh = False  # the next token begins a member
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if token.lastgroup == "skip":
            continue
        if fresh and mark not in "}]":
            last = path[-1]
            path[-1] = last + 1 if isinstance(last, int) else _key(mark)
            yield tuple(path), token.start()
        fresh = mark in "{[,"
        if mark in "{[":
            path.append("" if mark == "{" else -1)
        elif mark in "}]":
            path.pop()


def _key(token: str) -> str:
    """The key that a token spells: quoted, plain, or with escapes."""
    if not {"'", '"', "\\"} & set(token):
        return token
    (key,) = pyjson5.decode("{" + token + ":0}")
    return str(key)
