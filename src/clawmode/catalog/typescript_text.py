"""Pieces of TypeScript source: types put together, and strangers' words that stay in their place.

A text is shown as it is as far as it can be seen, so that a reader can copy it, and escaped or
dropped where it cannot: no control character, no direction mark, no half of a character. Nothing
in a string, a key or a comment ends it.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from inspect import cleandoc

from clawmode.text import plain_line

MAX_DOC_CHARS = 300
MAX_LITERAL_CHARS = 100
MAX_WIDTH = 100  # combinations in an intersection; TypeScript gives up at 100,000
ONE_LINE_CHARS = 72


# ---- Types ----


@dataclass(frozen=True, slots=True)
class Type:
    """A type as the options of a union, each without a bare `|`.

    `joined` says that the only option is an intersection; `width` is how many kinds of object
    TypeScript tells apart when it multiplies intersections out.
    """

    options: tuple[str, ...]
    joined: bool = False
    width: int = 1

    @property
    def text(self) -> str:
        """By itself."""
        return " | ".join(self.options)

    @property
    def operand(self) -> str:
        """As a part of an intersection."""
        return f"({self.text})" if len(self.options) > 1 else self.text

    @property
    def element(self) -> str:
        """Before `[]` or `?`."""
        return f"({self.text})" if len(self.options) > 1 or self.joined else self.text


UNKNOWN = Type(("unknown",))
NEVER = Type(("never",))
NULL = Type(("null",))
OPEN_OBJECT = Type(("{ [key: string]: unknown }",))
EMPTY_OBJECT = Type(("Record<string, never>",))


@dataclass(frozen=True, slots=True)
class Member:
    """A line of an object: `name?: type`, with a comment if there is something to say."""

    head: str
    type: str
    doc: str = ""
    demanded: bool = False

    @property
    def text(self) -> str:
        """Without the comment."""
        return f"{self.head}: {self.type}"


def unite(types: Iterable[Type]) -> Type:
    """What fits one of the types."""
    kept = [made for made in types if made != NEVER]
    if UNKNOWN in kept:
        return UNKNOWN
    options = tuple(dict.fromkeys(option for made in kept for option in made.options))
    joined = len(options) == 1 and any(made.joined for made in kept)
    return Type(options, joined, sum(made.width for made in kept)) if options else NEVER


def intersect(types: Iterable[Type]) -> Type:
    """What fits all types, or all but the widest if there are too many combinations."""
    kept = [made for made in dict.fromkeys(types) if made != UNKNOWN]
    if NEVER in kept:
        return NEVER
    if len(kept) > 1 and OPEN_OBJECT in kept:
        kept.remove(OPEN_OBJECT)
    while len(kept) > 1 and math.prod(made.width for made in kept) > MAX_WIDTH:
        kept.remove(max(kept, key=lambda made: made.width))
    if len(kept) < 2:
        return kept[0] if kept else UNKNOWN
    text = " & ".join(made.operand for made in kept)
    return Type((text,), joined=True, width=math.prod(made.width for made in kept))


def lay_out(members: list[Member], *, may_be_one_line: bool = True) -> str:
    """An object with these members."""
    inner = "; ".join(member.text for member in members)
    is_short = len(inner) <= ONE_LINE_CHARS and "\n" not in inner
    if may_be_one_line and is_short and not any(member.doc for member in members):
        return f"{{ {inner} }}"
    lines: list[str] = []
    for member in members:
        lines += [f"/** {member.doc} */"] * bool(member.doc) + [f"{member.text};"]
    return indent("{\n" + "\n".join(lines)) + "\n}"


# ---- Words ----


def render_literal(value: object) -> str:
    """A JSON value as a type that has only this value, or as its kind if that would be long."""
    match value:
        case bool() | None:
            return json.dumps(value)
        case int() if abs(value) < 2**53:
            return str(value)
        case float() if math.isfinite(value):
            return repr(value)
        case str() if len(value) <= MAX_LITERAL_CHARS and is_text(value):
            return quote(value)
    return render_kind_of(value)


def render_kind_of(value: object) -> str:
    """The type of a JSON value, in a word."""
    match value:
        case str():
            return "string"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case None:
            return "null"
        case list():
            return "unknown[]"
    return OPEN_OBJECT.text


def quote(text: str) -> str:
    """The text as a string of TypeScript, with nothing in it that cannot be seen."""
    quoted = json.dumps(text, ensure_ascii=False)
    if quoted.isprintable():
        return quoted
    return "".join(char if char.isprintable() else f"\\u{{{ord(char):x}}}" for char in quoted)


def quote_key(key: str) -> str:
    """The name of a property, in quotes if it needs them."""
    return key if key.isascii() and key.replace("$", "_").isidentifier() else quote(key)


def clean_line(text: object, most: int = MAX_DOC_CHARS) -> str:
    """A stranger's text as a part of a comment that it cannot end: on one line, cut if long."""
    if not isinstance(text, str):
        return ""
    return plain_line(text, most).replace("*/", "*\\/")


def clean_lines(text: object, most: int) -> list[str]:
    """A stranger's text as lines of a comment that they cannot end; cut if long."""
    if not isinstance(text, str):
        return []
    start = text[:most]
    lines: list[str] = []
    for line in cleandoc("\n".join(start.splitlines())).split("\n"):
        margin = line[: len(line) - len(line.lstrip(" "))]
        cleaned = clean_line(line, most)
        if cleaned or (lines and lines[-1]):
            lines.append(margin + cleaned if cleaned else "")
    while lines and not lines[-1]:
        lines.pop()
    if lines and len(start) < len(text):
        lines[-1] += "…"
    return lines


def render_comment(lines: list[str]) -> str:
    """Cleaned lines as a comment with a line break after it; nothing if there are none."""
    if len(lines) < 2:
        return "".join(f"/** {line} */\n" for line in lines)
    return "\n".join(["/**", *(f" * {line}".rstrip() for line in lines), " */", ""])


def is_text(value: str) -> bool:
    """Whether there is no half of a character in it, which no server could have meant."""
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


def indent(text: str) -> str:
    """The text with its lines moved to the right, but for the first one and empty ones."""
    return re.sub(r"\n(?=[^\n])", "\n  ", text)
