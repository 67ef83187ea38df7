"""Parses JSON5 text and records the offset of every member. The only module that imports pyjson5.

pyjson5 reports errors by character offset, silently keeps the last of two equal keys, and has no
hook to change that. So this module translates its error messages to line and column, and scans an
accepted text a second time for the offsets of its members.
"""

import re
from collections.abc import Iterator
from typing import TypeAlias

from clawmode.exceptions import ConfigurationError, naming_extras
from clawmode.text import printable
from clawmode.types import JsonValue, dataclass

Parts: TypeAlias = tuple[str | int, ...]
"""The path to a member: keys of objects and indexes of lists."""

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
    """A parsed text: its value, and the offset of each member."""

    text: str
    value: JsonValue
    offsets: dict[Parts, int]


def parse(text: str, name: str) -> Document:
    """Parses a text.

    Args:
        text: The text, without a byte order mark.
        name: The name of the file in error messages.

    Raises:
        ConfigurationError: The text is not valid JSON5, or an object has a key twice (pyjson5
            would drop the first value). The exception has line and column.
    """
    with naming_extras():
        import pyjson5
    try:
        value: JsonValue = pyjson5.decode(text, maxdepth=MAX_DEPTH)
    except pyjson5.Json5DecoderException as error:
        raise _fault(text, name, *_translate(text, error)) from None
    offsets: dict[Parts, int] = {}
    for token, parts, begins in walk(text):
        if not begins:
            continue
        if parts in offsets:
            line, _ = place(text, offsets[parts])
            message = f"duplicate key {parts[-1]!r}, first used in line {line}"
            raise _fault(text, name, message, token.start())
        offsets[parts] = token.start()
    return Document(text, value, offsets)


def place(text: str, offset: int) -> tuple[int, int]:
    """Returns line and column of a character, both counted from 1."""
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
    """Returns the line, cut if it is long, with a caret below the offset."""
    before = text[offset - min(column - 1, 60) : offset]
    after = _LINE_BREAK.split(text[offset : offset + 40], maxsplit=1)[0]
    shown = printable(before + after, keep="\t")
    below = re.sub(r"[^\t]", " ", before)  # tabs are kept, so that the caret is aligned
    return f"    {shown}\n    {below}^"


# ---- Error messages of pyjson5 ----

_TERMS = {
    "b'JSON5Value'": "a value",
    "b'IdentifierStart'": "a key",
    "b'comma' or": "a comma or",
    "Unclosed b'NumericLiteral'": "invalid number",
    "No JSON data found": "the file contains no value",
    "Maximum nesting level exceeded": f"nested more than {MAX_DEPTH} levels deep",
}


def _translate(text: str, error: Exception) -> tuple[str, int]:
    """Returns message and offset of an error; an unknown message is kept, with offset 0."""
    original = str(error.args[0])
    near = re.search(r" near (\d+)", original)
    offset = min(max(int(near[1]) - 1, 0), len(text)) if near else 0
    message = re.sub(r"( starting)? near \d+", "", original)
    for term, replacement in _TERMS.items():
        message = message.replace(term, replacement)
    message = re.sub(r"b'(\w[\w ]*)'", r"\1", message)
    message = re.sub(r"U\+([0-9A-Fa-f]+)", lambda match: ascii(chr(int(match[1], 16))), message)
    if type(error).__name__ == "Json5ExtraData" and len(error.args) > 2:
        # This offset is the end of the value, before white space and comments.
        offset = max(text.find(str(error.args[2]), offset + 1), offset)
    return message[:1].lower() + message[1:], offset


# ---- Offsets of members ----


def walk(text: str) -> Iterator[tuple[re.Match[str], Parts, bool]]:
    """Yields the tokens of a valid text, without white space and comments.

    Yields:
        The token; the path of the member that it belongs to, or, for the brace or comma after a
        member, of this member; and whether the token begins the member.
    """
    path: list[str | int] = []  # the current key of each open object, the index of each list
    fresh = False  # the next token begins a member
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if token.lastgroup == "skip":
            continue
        begins = fresh and mark not in "}]"
        if begins:
            last = path[-1]
            path[-1] = last + 1 if isinstance(last, int) else _key(mark)
        yield token, tuple(path), begins
        fresh = mark in "{[,"
        if mark in "{[":
            path.append("" if mark == "{" else -1)
        elif mark in "}]":
            path.pop()


def values(text: str, *, valid: bool) -> Iterator[tuple[re.Match[str], bool, Parts]]:
    """Yields every text, number and word: the token, whether it is a key, and its path.

    Args:
        text: A text; if it is not valid, paths are empty, a token may be taken for a key, and
            comments are yielded too: they may be a part of a text whose quote is missing.
        valid: Whether `parse` accepts the text.
    """
    if valid:
        for token, parts, begins in walk(text):
            if token.lastgroup != "mark":
                yield token, begins and not isinstance(parts[-1], int), parts
        return
    tokens = [token for token in _TOKEN.finditer(text) if not token.group().isspace()]
    marks = [token.group() for token in tokens]
    for token, after in zip(tokens, [*marks[1:], ""], strict=False):
        if token.lastgroup != "mark":
            yield token, after == ":", ()


def _key(token: str) -> str:
    """Returns the key that a token spells: quoted, plain, or with escapes."""
    if not {"'", '"', "\\"} & set(token):
        return token
    import pyjson5

    (key,) = pyjson5.decode("{" + token + ":0}")
    return str(key)
