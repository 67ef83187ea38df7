"""Five-field cron expressions as sets of numbers: `0 8-18/2 * jan,jul mon-fri`.

As in Vixie's cron: if days of the month and weekdays are both narrowed, either is enough; a field
that begins with `*` does not count as narrowed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date

from clawmode.exceptions import ConfigurationError

MAX_CHARS = 500

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""Days of each month, in the year that has most."""


class BadSchedule(ConfigurationError):
    """A text that says no time, or a time that never comes."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What may stand in a field.

    Attributes:
        names: Words for numbers, the first for `first_named`.
    """

    what: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    first_named: int = 0


KINDS = (
    _Kind("minute", 0, 59),
    _Kind("hour", 0, 23),
    _Kind("day of the month", 1, 31),
    _Kind("month", 1, 12, MONTHS, 1),
    _Kind("day of the week", 0, 7, WEEKDAYS),
)
WEEKDAY = KINDS[4]


@dataclass(frozen=True, slots=True)
class Fields:
    """An expression.

    Attributes:
        weekdays: 0 is Sunday.
        either: A day of the month or a weekday is enough; else it has to be both.
        text: As it was given.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    either: bool
    text: str = field(compare=False)

    def has_day(self, day: date) -> bool:
        """Whether a day of one of its months is meant."""
        of_month = day.day in self.days
        of_week = day.isoweekday() % 7 in self.weekdays
        return (of_month or of_week) if self.either else (of_month and of_week)


def read_fields(text: str) -> Fields:
    """Reads an expression.

    Raises:
        BadSchedule: It is none, or no day is like that.
    """
    if len(text) > MAX_CHARS:
        raise BadSchedule(f"a cron expression has up to {MAX_CHARS} characters, not {len(text)}")
    words = list(_words(_resolved(text)))
    if len(words) != len(KINDS):
        fields = "1 field" if len(words) == 1 else f"{len(words)} fields"
        raise BadSchedule(
            f"{text!r} has {fields}, expected five: minute, hour, day of the month, month, day of "
            "the week"
        )
    sets = [
        _Field(kind, text, at).read(word) for kind, (at, word) in zip(KINDS, words, strict=True)
    ]
    stars = [word.startswith("*") for _, word in words]
    minutes, hours, days, months, weekdays = (tuple(sorted(each)) for each in sets)
    made = Fields(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=tuple(sorted({day % 7 for day in weekdays})),
        either=not stars[2] and not stars[4],
        text=text,
    )
    if not made.either and all(LONGEST[month - 1] < made.days[0] for month in months):
        (day_at, day), (month_at, month) = words[2], words[3]
        raise BadSchedule(
            f"{text!r} never comes: no month of `{month}` (character {month_at}) has a day "
            f"`{day}` (character {day_at})"
        )
    return made


def _resolved(text: str) -> str:
    alias = text.strip().lower()
    if not alias.startswith("@"):
        return text
    if alias not in ALIASES:
        raise BadSchedule(f"{text!r} is not known, expected one of {', '.join(ALIASES)}")
    return ALIASES[alias]


def _words(text: str) -> Iterator[tuple[int, str]]:
    """The words, and the character at which each begins, from 1."""
    at = 0
    for word in text.split():
        at = text.index(word, at)
        yield at + 1, word
        at += len(word)


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of an expression.

    Attributes:
        at: The character at which it begins, from 1.
    """

    kind: _Kind
    text: str
    at: int

    def read(self, word: str) -> set[int]:
        """The numbers that it means."""
        found: set[int] = set()
        at = self.at
        for part in word.split(","):
            found |= self._part(part, at)
            at += len(part) + 1
        return found

    def _part(self, part: str, at: int) -> set[int]:
        span, slash, step = part.partition("/")
        low, dash, high = span.partition("-")
        end = 6 if self.kind is WEEKDAY else self.kind.high
        if span == "*":
            first, last = self.kind.low, end
        else:
            first = self._number(low, at)
            last = self._number(high, at + len(low) + 1) if dash else end if slash else first
        if dash and self.kind is WEEKDAY and last == 0 < first:
            last = 7  # a week may end on Sunday
        if last < first:
            raise self._wrong(span, at, "goes backwards")
        width = self._step(step, at + len(span) + 1) if slash else 1
        return set(range(first, last + 1, width))

    def _step(self, step: str, at: int) -> int:
        if not (step.isascii() and step.isdigit()) or not 0 < int(step) <= self.kind.high:
            raise self._wrong(step, at, f"is no step: that is 1 to {self.kind.high}")
        return int(step)

    def _number(self, word: str, at: int) -> int:
        kind = self.kind
        if word.lower() in kind.names:
            return kind.names.index(word.lower()) + kind.first_named
        if word.isascii() and word.isdigit() and kind.low <= int(word) <= kind.high:
            return int(word)
        named = f", or {kind.names[0]} to {kind.names[-1]}" if kind.names else ""
        raise self._wrong(word, at, f"is not {kind.low} to {kind.high}{named}")

    def _wrong(self, word: str, at: int, why: str) -> BadSchedule:
        return BadSchedule(f"{self.text!r}: `{word}` (character {at}, the {self.kind.what}) {why}")
