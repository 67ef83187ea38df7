"""A command of the shell, as far as it can be understood: its segments, or why that cannot be.

For the allowlist, which has to know what would run. So it understands little: words, quotes, and
chains of `&&`, `||`, `;` and `|`. Anything by which a shell would run, write or expand something
else is not understood: redirections, substitutions, variables, groups, background, assignments.
"""

import re
import shlex
import unicodedata
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_CHARS = 16_384

_SEPARATOR = re.compile(r"&&|\|\||;|\|")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_BEYOND = {
    "$": "a variable or substitution",
    "`": "a substitution",
    "<": "a redirection",
    ">": "a redirection",
    "(": "a group",
    ")": "a group",
    "{": "a group",
    "}": "a group",
    "&": "something in the background",
    "#": "a comment",
}


class NotUnderstood(Exception):
    """What a command would run cannot be told, for the reason in the message."""


class Word(NamedTuple):
    """A word: what it means, and where it stands.

    `bare` says that no shell would make anything else of it than its text.
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
        """The program, as it was written."""
        return self.words[0].text

    @property
    def arguments(self) -> tuple[Word, ...]:
        """What it is given."""
        return self.words[1:]


def parse(command: str) -> list[Segment]:
    """Takes a command apart.

    Raises:
        NotUnderstood: It has something in it that this does not understand.
    """
    if len(command) > MAX_CHARS:
        raise NotUnderstood("it is too long")
    for char in command:
        # A shell and a person may disagree about where such a thing separates words.
        if char not in " \t" and unicodedata.category(char)[0] in "CZ":
            raise NotUnderstood(f"it has a U+{ord(char):04X} in it")
    return _Lexer(command).run()


@dataclass(slots=True)
class _Lexer:
    source: str
    at: int = 0
    segments: list[Segment] = field(default_factory=list[Segment])
    words: list[Word] = field(default_factory=list[Word])

    def run(self) -> list[Segment]:
        while True:
            self._skip_blanks()
            if self.at == len(self.source):
                self._end_segment()
                return self.segments
            if separator := _SEPARATOR.match(self.source, self.at):
                self._end_segment()
                self.at = separator.end()
            else:
                self.words.append(self._word())

    def _skip_blanks(self) -> None:
        while self.at < len(self.source) and self.source[self.at] in " \t":
            self.at += 1

    def _end_segment(self) -> None:
        if not self.words:
            raise NotUnderstood("a program is missing")
        first = self.words[0]
        if not first.bare or not first.text:
            raise NotUnderstood("the shell would decide which program it is")
        if _ASSIGNMENT.match(self.source, first.start):
            raise NotUnderstood("a variable is set")
        self.segments.append(Segment(tuple(self.words)))
        self.words = []

    def _word(self) -> Word:
        start, text, bare = self.at, "", True
        while self.at < len(self.source):
            char = self.source[self.at]
            if char in " \t" or _SEPARATOR.match(self.source, self.at):
                break
            if char in _BEYOND:
                raise NotUnderstood(f"there is {_BEYOND[char]} in it")
            if char == "'":
                text += self._single()
            elif char == '"':
                text += self._double()
            elif char == "\\":
                if self.at + 1 == len(self.source):
                    raise NotUnderstood("it ends with a backslash")
                text += self.source[self.at + 1]
                self.at += 2
            else:
                bare = bare and char not in "*?[]!^" and not (char == "~" and self.at == start)
                text += char
                self.at += 1
        return Word(text, start, self.at, bare)

    def _single(self) -> str:
        end = self.source.find("'", self.at + 1)
        if end < 0:
            raise NotUnderstood("a quote does not end")
        text = self.source[self.at + 1 : end]
        self.at = end + 1
        return text

    def _double(self) -> str:
        text = ""
        self.at += 1
        while self.at < len(self.source):
            char = self.source[self.at]
            if char == '"':
                self.at += 1
                return text
            if char in "$`":
                raise NotUnderstood(f"there is {_BEYOND[char]} in it")
            if char == "\\" and self.source[self.at + 1 : self.at + 2] in tuple('$`"\\'):
                self.at += 1
                char = self.source[self.at]
            text += char
            self.at += 1
        raise NotUnderstood("a quote does not end")


def pinned(command: str, segments: list[Segment], programs: list[str]) -> str:
    """The command with each program by its full path: what was looked at is what runs.

    A path in quotes is no builtin, alias, function or reserved word.
    """
    parts: list[str] = []
    at = 0
    for segment, program in zip(segments, programs, strict=True):
        first = segment.words[0]
        quoted = shlex.quote(program)
        parts += [command[at : first.start], quoted if quoted != program else f"'{program}'"]
        at = first.end
    return "".join(parts) + command[at:]
