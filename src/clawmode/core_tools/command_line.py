"""Parses shell commands for the allowlist, which must know every program that would run.

The grammar is small on purpose: words, quotes, and chains of `&&`, `||`, `;` and `|`. Everything
that lets a shell run, write or expand something else is rejected: redirections, substitutions,
variables, groups, background commands, assignments.

Written by hand: `shlex` does not tell a quoted operator from a real one, and a parser of the whole
shell language would accept what has to be rejected here.
"""

import re
import shlex
import unicodedata
from dataclasses import field
from typing import NamedTuple

from clawmode.types import dataclass

MAX_CHARS = 16_384

_SEPARATOR = re.compile(r"&&|\|\||;|\|")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_UNSUPPORTED = {
    "$": "a variable or substitution",
    "`": "a substitution",
    "<": "a redirection",
    ">": "a redirection",
    "(": "a group",
    ")": "a group",
    "{": "a group",
    "}": "a group",
    "&": "a background command",
    "#": "a comment",
}


class NotUnderstood(Exception):
    """The programs of a command cannot be determined, for the reason in the message."""


class Word(NamedTuple):
    """A word of a command with its offsets.

    `bare` is True if no shell would expand the word to anything but its text.
    """

    text: str
    start: int
    end: int
    bare: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """One program with its arguments."""

    words: tuple[Word, ...]

    @property
    def name(self) -> str:
        """The program as written in the command."""
        return self.words[0].text

    @property
    def arguments(self) -> tuple[Word, ...]:
        return self.words[1:]


def parse(command: str) -> list[Segment]:
    """Splits a command into segments.

    Raises:
        NotUnderstood: The command contains unsupported syntax.
    """
    if len(command) > MAX_CHARS:
        raise NotUnderstood("the command is too long")
    for char in command:
        # A shell and a person may disagree about whether such a character separates words.
        if char not in " \t" and unicodedata.category(char)[0] in "CZ":
            raise NotUnderstood(f"the command contains the character U+{ord(char):04X}")
    return _Lexer(command).run()


@dataclass(slots=True)
class _Lexer:
    source: str
    at: int = 0
    segments: list[Segment] = field(default_factory=list[Segment])
    words: list[Word] = field(default_factory=list[Word])

    def run(self) -> list[Segment]:
        while True:
            while self.at < len(self.source) and self.source[self.at] in " \t":
                self.at += 1
            if self.at == len(self.source):
                self._end_segment()
                return self.segments
            if separator := _SEPARATOR.match(self.source, self.at):
                self._end_segment()
                self.at = separator.end()
            else:
                self.words.append(self._word())

    def _end_segment(self) -> None:
        if not self.words:
            raise NotUnderstood("a program is missing")
        first = self.words[0]
        if not first.bare or not first.text:
            raise NotUnderstood("the program is the result of a shell expansion")
        if _ASSIGNMENT.match(self.source, first.start):
            raise NotUnderstood("the command sets a variable")
        self.segments.append(Segment(tuple(self.words)))
        self.words = []

    def _word(self) -> Word:
        start, text, bare = self.at, "", True
        while self.at < len(self.source):
            char = self.source[self.at]
            if char in " \t" or _SEPARATOR.match(self.source, self.at):
                break
            if char in _UNSUPPORTED:
                raise NotUnderstood(f"the command contains {_UNSUPPORTED[char]}")
            if char == "'":
                end = self.source.find("'", self.at + 1)
                if end < 0:
                    raise NotUnderstood("a quote is not closed")
                text += self.source[self.at + 1 : end]
                self.at = end + 1
            elif char == '"':
                text += self._double()
            elif char == "\\":
                if self.at + 1 == len(self.source):
                    raise NotUnderstood("the command ends with a backslash")
                text += self.source[self.at + 1]
                self.at += 2
            else:
                bare = bare and char not in "*?[]!^" and not (char == "~" and self.at == start)
                text += char
                self.at += 1
        return Word(text, start, self.at, bare)

    def _double(self) -> str:
        text = ""
        self.at += 1
        while self.at < len(self.source):
            char = self.source[self.at]
            if char == '"':
                self.at += 1
                return text
            if char in "$`":
                raise NotUnderstood(f"the command contains {_UNSUPPORTED[char]}")
            if char == "\\" and self.source[self.at + 1 : self.at + 2] in tuple('$`"\\'):
                self.at += 1
                char = self.source[self.at]
            text += char
            self.at += 1
        raise NotUnderstood("a quote is not closed")


def pinned(command: str, segments: list[Segment], programs: list[str]) -> str:
    """Returns the command with the full path of each program, so that the checked programs run.

    The paths are quoted, so that the shell does not read them as builtins, aliases, functions or
    reserved words.
    """
    parts: list[str] = []
    at = 0
    for segment, program in zip(segments, programs, strict=True):
        first = segment.words[0]
        quoted = shlex.quote(program)
        parts += [command[at : first.start], quoted if quoted != program else f"'{program}'"]
        at = first.end
    return "".join(parts) + command[at:]
