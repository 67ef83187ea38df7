"""When a job runs: a cron expression, an interval or one moment, in a time zone.

A time of the clock that does not exist, because the clock was put forward, is the moment after the
gap; one that exists twice is the first of the two. So each comes once.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from clawmode.cron.expressions import BadSchedule, Fields, read_fields

MAX_INTERVAL = 366 * 86_400
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
LAST_YEAR = 9000
"""Times after it are as good as never."""

_INTERVAL = re.compile(r"(?:\d{1,9}[smhdw])+", re.ASCII)
_PART = re.compile(r"(\d+)([smhdw])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cron:
    """The times of an expression."""

    fields: Fields
    zone: ZoneInfo

    def next_after(self, now: float) -> float | None:
        """The first moment after another; None: there is none."""
        here = datetime.fromtimestamp(math.floor(now), self.zone).replace(tzinfo=None, fold=0)
        for wall in self._walls(here):
            moment = moment_of(wall, self.zone)
            # Not those that come a second time.
            if moment > now:
                return moment
        return None

    def _walls(self, after: datetime) -> Iterator[datetime]:
        """The clock's times that are meant, from the minute of a time on."""
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
    """An interval, counted from a moment."""

    seconds: int
    since: float = 0.0

    def next_after(self, now: float) -> float | None:
        """The first moment after another."""
        passed = max(math.floor((now - self.since) / self.seconds), 0)
        moment = self.since + (passed + 1) * self.seconds
        return moment if moment > now else moment + self.seconds  # fractions are not exact


@dataclass(frozen=True, slots=True)
class At:
    """One moment."""

    moment: float
    zone: ZoneInfo

    def next_after(self, now: float) -> float | None:
        """The moment, if it comes after another."""
        return self.moment if self.moment > now else None


Schedule: TypeAlias = Cron | Every | At


# ---- Reading ----


def read_zone(name: str | None) -> ZoneInfo:
    """A time zone; UTC if none is named.

    Raises:
        BadSchedule: There is none of that name.
    """
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadSchedule(
            f"there is no time zone {name!r}, expected one such as `Europe/Berlin` or `UTC`"
        ) from None


def read_cron(text: str, tz: str | None = None) -> Cron:
    """A cron expression.

    Raises:
        BadSchedule: It is none, or it never comes.
    """
    return Cron(read_fields(text), read_zone(tz))


def read_every(text: str, since: float = 0.0) -> Every:
    """An interval: `90s`, `15m`, `1h30m`, `2d`.

    Raises:
        BadSchedule: It is none.
    """
    plain = text.strip().lower()
    if not _INTERVAL.fullmatch(plain):
        raise BadSchedule(f"{text[:80]!r} is no interval, expected one such as 30s, 15m, 2h or 1d")
    seconds = sum(int(number) * UNITS[unit] for number, unit in _PART.findall(plain))
    if not 0 < seconds <= MAX_INTERVAL:
        raise BadSchedule(f"{text[:80]!r} is no interval from a second to 366 days")
    return Every(seconds, since)


def read_at(text: str, tz: str | None = None) -> At:
    """A moment: `2027-01-31T08:00`; one that names its offset from UTC needs no time zone.

    Raises:
        BadSchedule: It is none.
    """
    zone = read_zone(tz)
    try:
        said = datetime.fromisoformat(text.strip()).replace(microsecond=0)
        if not 1970 <= said.year < LAST_YEAR:
            raise ValueError
    except ValueError:
        raise BadSchedule(
            f"{text[:80]!r} is no time, expected one such as 2027-01-31T08:00"
        ) from None
    if said.tzinfo is not None:
        return At(said.timestamp(), zone)
    return At(moment_of(said, zone), zone)


# ---- Clocks ----


def moment_of(wall: datetime, zone: ZoneInfo) -> float:
    """When a clock shows a time: for the first time, or the end of the gap that swallows it."""
    early, late = (wall.replace(tzinfo=zone, fold=fold).timestamp() for fold in (1, 0))
    # With a gap, the offset before it leads to a moment after it, and the other way round.
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
