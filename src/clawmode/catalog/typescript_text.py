"""Pieces of TypeScript source: unions, intersections, objects, and untrusted text as literals.

Untrusted text keeps its visible characters, so that a reader can copy it. Invisible characters
(control characters, direction marks, lone surrogates) are escaped or dropped. No text can end the
string, key or comment that contains it.
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
    """A type, as the options of a union.

    Attributes:
        options: The options, each without a bare `|`.
        joined: True if the only option is an intersection.
        width: The number of alternatives that TypeScript distinguishes when it expands
            intersections.
    """

    options: tuple[str, ...]
    joined: bool = False
    width: int = 1

    @property
    def text(self) -> str:
        return " | ".join(self.options)

    @property
    def operand(self) -> str:
        """The text as an operand of an intersection."""
        return f"({self.text})" if len(self.options) > 1 else self.text

    @property
    def element(self) -> str:
        """The text as it stands before `[]` or `?`."""
        return f"({self.text})" if len(self.options) > 1 or self.joined else self.text


UNKNOWN = Type(("unknown",))
NEVER = Type(("never",))
NULL = Type(("null",))
OPEN_OBJECT = Type(("{ [key: string]: unknown }",))
EMPTY_OBJECT = Type(("Record<string, never>",))


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object: `name?: type`, with an optional doc comment."""

    head: str
    type: str
    doc: str = ""
    demanded: bool = False

    @property
    def text(self) -> str:
        return f"{self.head}: {self.type}"


def unite(types: Iterable[Type]) -> Type:
    """Returns the union of the types."""
    kept = [made for made in types if made != NEVER]
    if UNKNOWN in kept:
        return UNKNOWN
    options = tuple(dict.fromkeys(option for made in kept for option in made.options))
    joined = len(options) == 1 and any(made.joined for made in kept)
    return Type(options, joined, sum(made.width for made in kept)) if options else NEVER


def intersect(types: Iterable[Type]) -> Type:
    """Returns the intersection of the types, without the widest if it had too many alternatives."""
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
    """Renders an object type with these members."""
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
    """Renders a JSON value as a literal type, or as its kind if the literal would be long."""
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
    """Returns the general type of a JSON value, such as `string`."""
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
    """Returns the text as a TypeScript string, with invisible characters escaped."""
    quoted = json.dumps(text, ensure_ascii=False)
    if quoted.isprintable():
        return quoted
    return "".join(char if char.isprintable() else f"\\u{{{ord(char):x}}}" for char in quoted)


def quote_key(key: str) -> str:
    """Returns the name of a property, in quotes if it needs them."""
    return key if key.isascii() and key.replace("$", "_").isidentifier() else quote(key)


def clean_line(text: object, most: int = MAX_DOC_CHARS) -> str:
    """A stranger's text as a part of a comment that it cannot end: on one line, cut if long."""
    if not isinstance(text, str):
        return ""
    return plain_line(text, most).replace("*/", "*\\/")


def clean_lines(text: object, most: int) -> list[str]:
    """Returns untrusted text as lines of a comment that they cannot end, shortened if long."""
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
    """Renders cleaned lines as a doc comment and a line break; empty if there are no lines."""
    if len(lines) < 2:
        return "".join(f"/** {line} */\n" for line in lines)
    return "\n".join(["/**", *(f" * {line}".rstrip() for line in lines), " */", ""])


def is_text(value: str) -> bool:
    """True if the text has no lone surrogates, which no server sends on purpose."""
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


def indent(text: str) -> str:
    """Indents all lines but the first and empty ones."""
    return re.sub(r"\n(?=[^\n])", "\n  ", text)
