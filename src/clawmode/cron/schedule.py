"""Schedules: a cron expression, an interval or one moment, in a time zone.

A wall-clock time that does not exist, because the clock is put forward, is taken as the moment
after the gap. A wall-clock time that exists twice is taken as the first of the two. So each
scheduled time comes once.

Cron expressions have five fields, as in `0 8-18/2 * jan,jul mon-fri`. As in Vixie's cron, if both
the day of the month and the weekday are restricted, one match is enough; a field that begins with
`*` does not count as restricted.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

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
"""The days of each month in a leap year."""

MAX_INTERVAL = 366 * 86_400
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
LAST_YEAR = 9000
"""A time after this year counts as never."""

_INTERVAL = re.compile(r"(?:\d{1,9}[smhdw])+", re.ASCII)
_PART = re.compile(r"(\d+)([smhdw])", re.ASCII)


class BadSchedule(ConfigurationError):
    """The text is not a schedule, or its time never comes."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """One of the five fields of an expression.

    Attributes:
        names: Names for numbers; the first one stands for `first_named`.
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
    """A parsed cron expression.

    Attributes:
        weekdays: 0 is Sunday.
        either: A match of the day of the month or of the weekday is enough; otherwise both count.
        text: The expression as the user wrote it.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    either: bool
    text: str = field(compare=False)

    def has_day(self, day: date) -> bool:
        """True if the expression matches the day; its month was checked before."""
        of_month = day.day in self.days
        of_week = day.isoweekday() % 7 in self.weekdays
        return (of_month or of_week) if self.either else (of_month and of_week)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone."""

    fields: Fields
    zone: ZoneInfo

    def next_after(self, now: float) -> float | None:
        """Returns the first scheduled time after `now`, or None."""
        here = datetime.fromtimestamp(math.floor(now), self.zone).replace(tzinfo=None, fold=0)
        for wall in self._walls(here):
            moment = moment_of(wall, self.zone)
            # The second pass through a repeated hour maps to moments before `now`: skip these.
            if moment > now:
                return moment
        return None

    def _walls(self, after: datetime) -> Iterator[datetime]:
        """Yields the matching wall-clock times, beginning with the hour of `after`."""
        fields = self.fields
        for day in self._days(after.date()):
            first = day == after.date()
            for hour in fields.hours:
                if first and hour < after.hour:
                    continue
                for minute in fields.minutes:
                    yield datetime(day.year, day.month, day.day, hour, minute)

    def _days(self, first: date) -> Iterator[date]:
        for year in range(first.year, LAST_YEAR):
            for month in self.fields.months:
                if (year, month) < (first.year, first.month):
                    continue
                day = max(first, date(year, month, 1))
                while day.month == month:
                    if self.fields.has_day(day):
                        yield day
                    day += timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Every:
    """A fixed interval, counted from the time `since`."""

    seconds: int
    since: float = 0.0

    def next_after(self, now: float) -> float | None:
        passed = max(math.floor((now - self.since) / self.seconds), 0)
        moment = self.since + (passed + 1) * self.seconds
        return moment if moment > now else moment + self.seconds  # fractions are not exact


@dataclass(frozen=True, slots=True)
class At:
    """A single moment, for jobs that run once."""

    moment: float
    zone: ZoneInfo

    def next_after(self, now: float) -> float | None:
        return self.moment if self.moment > now else None


Schedule: TypeAlias = Cron | Every | At


# ---- Reading ----


def read_zone(name: str | None) -> ZoneInfo:
    """Returns the time zone of that name, or UTC for an empty name.

    Raises:
        BadSchedule: There is no time zone of that name.
    """
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadSchedule(
            f"there is no time zone {name!r}; expected for example `Europe/Berlin` or `UTC`"
        ) from None


def read_cron(text: str, tz: str | None = None) -> Cron:
    """Parses a cron expression.

    Raises:
        BadSchedule: The text is not a cron expression, or no day matches it.
    """
    return Cron(read_fields(text), read_zone(tz))


def read_every(text: str, since: float = 0.0) -> Every:
    """Parses an interval: `90s`, `15m`, `1h30m`, `2d`.

    Raises:
        BadSchedule: The text is not an interval.
    """
    plain = text.strip().lower()
    if not _INTERVAL.fullmatch(plain):
        raise BadSchedule(
            f"{text[:80]!r} is not an interval; expected for example 30s, 15m, 2h or 1d"
        )
    seconds = sum(int(number) * UNITS[unit] for number, unit in _PART.findall(plain))
    if not 0 < seconds <= MAX_INTERVAL:
        raise BadSchedule(f"{text[:80]!r} must be between 1 second and 366 days")
    return Every(seconds, since)


def read_at(text: str, tz: str | None = None) -> At:
    """Parses a moment: `2027-01-31T08:00`. With an offset from UTC, the time zone is not used.

    Raises:
        BadSchedule: The text is not a time.
    """
    zone = read_zone(tz)
    try:
        given = datetime.fromisoformat(text.strip()).replace(microsecond=0)
        if not 1970 <= given.year < LAST_YEAR:
            raise ValueError
    except ValueError:
        raise BadSchedule(
            f"{text[:80]!r} is not a time; expected for example 2027-01-31T08:00"
        ) from None
    if given.tzinfo is not None:
        return At(given.timestamp(), zone)
    return At(moment_of(given, zone), zone)


# ---- Cron expressions ----


def read_fields(text: str) -> Fields:
    """Parses the five fields of a cron expression; see `read_cron`."""
    if len(text) > MAX_CHARS:
        raise BadSchedule(
            f"a cron expression must have at most {MAX_CHARS} characters, got {len(text)}"
        )
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
        raise BadSchedule(f"{text!r} is not a known schedule; expected one of {', '.join(ALIASES)}")
    return ALIASES[alias]


def _words(text: str) -> Iterator[tuple[int, str]]:
    """Yields the words with the position of their first character, counted from 1."""
    at = 0
    for word in text.split():
        at = text.index(word, at)
        yield at + 1, word
        at += len(word)


@dataclass(frozen=True, slots=True)
class _Field:
    """The text of one field, for error messages that point at a character.

    Attributes:
        at: The position of the first character in the expression, counted from 1.
    """

    kind: _Kind
    text: str
    at: int

    def read(self, word: str) -> set[int]:
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
            raise self._wrong(span, at, "ends before it begins")
        width = self._step(step, at + len(span) + 1) if slash else 1
        return set(range(first, last + 1, width))

    def _step(self, step: str, at: int) -> int:
        if not (step.isascii() and step.isdigit()) or not 0 < int(step) <= self.kind.high:
            raise self._wrong(step, at, f"is not a step; expected 1 to {self.kind.high}")
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


# ---- Clocks ----


def moment_of(wall: datetime, zone: ZoneInfo) -> float:
    """Returns the first moment at which clocks show `wall`, or the end of the gap it is in."""
    early, late = (wall.replace(tzinfo=zone, fold=fold).timestamp() for fold in (1, 0))
    # In a gap, the offset from before the gap gives a moment after it, and the other way round.
    if early >= late or _shows(late, zone) == wall:
        return late
    offset = _offset(early, zone)
    while late - early > 1:
        middle = math.floor((early + late) / 2)
        early, late = (middle, late) if _offset(middle, zone) == offset else (early, middle)
    return late


def _shows(moment: float, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(moment, zone).replace(tzinfo=None, fold=0)


def _offset(moment: float, zone: ZoneInfo) -> timedelta | None:
    return datetime.fromtimestamp(moment, UTC).astimezone(zone).utcoffset()
