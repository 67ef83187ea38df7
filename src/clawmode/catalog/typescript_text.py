"""Pieces of TypeScript source: unions, intersections, objects, and untrusted text as literals.

A type has two forms: `FULL` for a declaration file, `LINE` for one line of a prompt. Untrusted text
keeps its visible characters, so that a reader can copy it. Invisible characters (control
characters, direction marks, lone surrogates) are escaped or dropped. No text can end the string,
key or comment that contains it.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from inspect import cleandoc

from clawmode.text import plain_line, without_surrogates
from clawmode.types import dataclass

MAX_DOC_CHARS = 300
MAX_LITERAL_CHARS = 100
MAX_ENUM = 10_000
MAX_WIDTH = 100  # combinations in an intersection; TypeScript gives up at 100,000
ONE_LINE_CHARS = 72
INDEX = "[key: string]"


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


NEVER = Type(("never",))
NULL = Type(("null",))
PLAIN = {"string", "number", "boolean", "null", "any"}


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object: `name?: type`, with an optional doc comment."""

    head: str
    type: str
    doc: str = ""
    demanded: bool = False

    @property
    def text(self) -> str:
        return f"{self.head}: {self.type}" if self.type else self.head


@dataclass(frozen=True, slots=True)
class Limits:
    """The size and detail of a rendered type.

    Attributes:
        chars: Characters in total, indentation not counted exactly.
        nesting: Levels of nested schemas.
        objects: Levels of nested objects that are written out.
        docs: True to describe inner properties, and those of an input at length.
    """

    chars: int = 16_000
    nesting: int = 16
    objects: int = 16
    docs: bool = True


@dataclass(frozen=True, slots=True)
class RenderedType:
    """The text of a type, and the declarations that it needs.

    Attributes:
        text: The type. It may have several lines.
        aliases: The declarations of aliases that the text uses, by name.
        docs: One line about each property of an input that has a description or constraints.
        optional: True if no property of the input is required.
        cost: Characters that were rendered, including discarded attempts.
    """

    text: str
    aliases: dict[str, str]
    docs: dict[str, str]
    optional: bool
    cost: int


@dataclass(frozen=True, slots=True)
class Form:
    """How types are written.

    Attributes:
        unknown: The type of everything that cannot be expressed.
        any_object: The type of an object about which nothing else is known.
        no_object: The type of an object without members.
        rest: Stands for the members that were left out.
        max_literals: Longer enums are written as the kinds of their values.
        max_literals_chars: So are enums with more characters.
        max_members: Most alternatives of a union; with more it is `unknown`.
        max_properties: Most properties of an object that are shown.
        max_key_chars: Properties with longer names are left out.
        one_line: True if everything is on one line, without comments and aliases.
        names_only: True if a member of a plain type is only its name.
    """

    unknown: Type
    any_object: Type
    no_object: Type
    rest: Member
    max_literals: int
    max_literals_chars: float
    max_members: int
    max_properties: int
    max_key_chars: int
    one_line: bool = False
    names_only: bool = False

    def unite(self, types: Iterable[Type]) -> Type:
        """Returns the union of the types."""
        kept = [made for made in types if made != NEVER]
        if self.unknown in kept:
            return self.unknown
        options = tuple(dict.fromkeys(option for made in kept for option in made.options))
        joined = len(options) == 1 and any(made.joined for made in kept)
        return Type(options, joined, sum(made.width for made in kept)) if options else NEVER

    def intersect(self, types: Iterable[Type]) -> Type:
        """Returns the intersection of the types, without the widest if it had too many options."""
        kept = [made for made in dict.fromkeys(types) if made != self.unknown]
        if NEVER in kept:
            return NEVER
        if len(kept) > 1 and self.any_object in kept:
            kept.remove(self.any_object)
        while len(kept) > 1 and math.prod(made.width for made in kept) > MAX_WIDTH:
            kept.remove(max(kept, key=lambda made: made.width))
        if len(kept) < 2:
            return kept[0] if kept else self.unknown
        text = " & ".join(made.operand for made in kept)
        return Type((text,), joined=True, width=math.prod(made.width for made in kept))

    def unite_values(self, values: list[object]) -> Type:
        """Returns the union of the literal types of an enum's values, or of their kinds."""
        if len(values) > MAX_ENUM:
            return self.unknown
        if len(values) <= self.max_literals:
            options = tuple(dict.fromkeys(map(self.render_literal, values)))
            if sum(map(len, options)) <= self.max_literals_chars:
                return Type(options, width=len(options))
        kinds = tuple(dict.fromkeys(map(self._render_kind_of, values)))
        return Type(kinds, width=len(kinds))

    def render_literal(self, value: object) -> str:
        """Renders a JSON value as a literal type, or as its kind if the literal would be long."""
        match value:
            case bool() | None:
                return json.dumps(value)
            case int() if abs(value) < 2**53:
                return str(value)
            case float() if math.isfinite(value):
                return repr(value)
            case str() if len(value) <= MAX_LITERAL_CHARS and without_surrogates(value) == value:
                return quote(value)
        return self._render_kind_of(value)

    def _render_kind_of(self, value: object) -> str:
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
                return f"{self.unknown.text}[]"
        return self.any_object.text

    def lay_out(self, members: list[Member], *, may_be_one_line: bool = True) -> str:
        """Renders an object type with these members."""
        if self.one_line:
            if [member.head for member in members] == [INDEX]:
                return f"Record<string, {members[0].type}>"
            return "{" + ", ".join(member.text for member in members) + "}"
        inner = "; ".join(member.text for member in members)
        is_short = len(inner) <= ONE_LINE_CHARS and "\n" not in inner
        if may_be_one_line and is_short and not any(member.doc for member in members):
            return f"{{ {inner} }}"
        lines: list[str] = []
        for member in members:
            lines += [f"/** {member.doc} */"] * bool(member.doc) + [f"{member.text};"]
        return indent("{\n" + "\n".join(lines)) + "\n}"


FULL = Form(
    unknown=Type(("unknown",)),
    any_object=Type(("{ [key: string]: unknown }",)),
    no_object=Type(("Record<string, never>",)),
    # With an index signature, callers can still pass the properties that were left out.
    rest=Member(INDEX, "unknown"),
    max_literals=60,
    max_literals_chars=math.inf,
    max_members=60,
    max_properties=200,
    max_key_chars=200,
)

LINE = Form(
    unknown=Type(("any",)),
    any_object=Type(("object",)),
    no_object=Type(("object",)),
    rest=Member("...", ""),
    max_literals=6,
    max_literals_chars=60,
    max_members=4,
    max_properties=12,
    max_key_chars=60,
    one_line=True,
)

KEYS = replace(LINE, names_only=True)
"""For results, where a reader needs the names of the members first."""


# ---- Words ----


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
    """Returns untrusted text as a part of a comment that it cannot end: one line, cut if long."""
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


def indent(text: str) -> str:
    """Indents all lines but the first and empty ones."""
    return re.sub(r"\n(?=[^\n])", "\n  ", text)


# ---- Notes ----

FORMATS = ("date", "date-time", "time")
MAX_SHOWN_NUMBER = 10**12

_NOTED = (
    "format",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "default",
)


def describe(schema: object, limit: int) -> str:
    """Returns the description and the constraints that a type cannot express, on one line."""
    if not isinstance(schema, Mapping):
        return ""
    text = clean_line(schema.get("description"), limit)
    notes: list[str] = []
    for key in _NOTED:
        value = schema.get(key)
        if isinstance(value, str) and re.fullmatch(r"[\w-]{1,40}", value):
            notes.append(f"{key}: {value}")
        elif isinstance(value, str | int | float):
            literal = FULL.render_literal(value)
            notes += [f"{key}: {literal}"] * (literal not in ("string", "number"))
    if schema.get("type") == "integer" and (text or notes):
        notes.insert(0, "integer")
    return f"{text} ({clean_line(', '.join(notes), limit)})".lstrip() if notes else text


def render_note(schema: Mapping[str, object], kind: str) -> str:
    """Returns what a caller must know beyond the type: a common format, or the largest number."""
    most, format_ = schema.get("maximum"), schema.get("format")
    if kind == "string":
        return f"({format_})" if format_ in FORMATS else ""
    if kind != "number" or not isinstance(most, int | float) or isinstance(most, bool):
        return ""
    return f"(<={most:.10g})" if abs(most) < MAX_SHOWN_NUMBER else ""
