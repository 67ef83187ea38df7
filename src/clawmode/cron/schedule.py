"""Schedules: a cron expression, an interval or one moment, in a time zone.

`cronsim` evaluates cron expressions, as Debian's cron does. An expression whose minute or hour
begins with `*` follows the time that passes: it runs through both passes of a repeated hour, and
not in an hour that the clock skips. Every other expression runs once for each time of the clock: in
the first pass of a repeated hour, and right after a skipped one.

A limit of cronsim: where clocks change by half an hour (Lord Howe Island only), an expression of
the first kind can miss its next time after the change.
"""

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TypeAlias, assert_never
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from clawmode.exceptions import ConfigurationError
from clawmode.types import dataclass

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
FIELDS = (
    ("minute", 59, "0 to 59"),
    ("hour", 23, "0 to 23"),
    ("day of the month", 31, "1 to 31, or L for the last day"),
    ("month", 12, "1 to 12, or jan to dec"),
    ("day of the week", 7, "0 to 7, or sun to sat"),
)
"""The name, the largest number and the values of each field of an expression."""

MAX_INTERVAL = 366 * 86_400
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
NAMES = {"w": "week", "d": "day", "h": "hour", "m": "minute", "s": "second"}
LAST_YEAR = 9000
"""A time after this year counts as never."""

_INTERVAL = re.compile(r"(?:\d{1,9}[smhdw])+", re.ASCII)
_PART = re.compile(r"(\d+)([smhdw])", re.ASCII)
_STEP = re.compile(r"/(\d+)", re.ASCII)


class BadSchedule(ConfigurationError):
    """The text is not a schedule, or its time never comes."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone.

    Attributes:
        expression: Five fields, in the syntax of `cronsim`.
    """

    expression: str
    zone: ZoneInfo

    def next_after(self, now: float) -> float | None:
        """Returns the first scheduled time after `now`, or None if the next 50 years have none."""
        for found in CronSim(self.expression, datetime.fromtimestamp(math.floor(now), self.zone)):
            # In the second pass of a repeated hour, cronsim first yields times of the first pass.
            if found.timestamp() > now:
                return found.timestamp()
        return None


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


# ---- Parsing ----


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
    """Parses a cron expression: five fields as in `0 8-18/2 * jan,jul mon-fri`, or an alias.

    Raises:
        BadSchedule: The text is not a cron expression, or no day matches it.
    """
    zone = read_zone(tz)
    if len(text) > MAX_CHARS:
        raise BadSchedule(
            f"a cron expression must have at most {MAX_CHARS} characters, got {len(text)}"
        )
    expression = ALIASES.get(text.strip().lower(), text.lower())
    if expression.lstrip().startswith("@"):
        raise BadSchedule(f"{text!r} is not a known schedule; expected one of {', '.join(ALIASES)}")
    written = expression.split()
    if len(written) != len(FIELDS):
        fields = "1 field" if len(written) == 1 else f"{len(written)} fields"
        names = ", ".join(name for name, _, _ in FIELDS)
        raise BadSchedule(f"{text!r} has {fields}, expected five: {names}")
    # cronsim rejects a week that ends with `-sun`, counts Sunday as the 7 of `1/2` also, and reads
    # `5-5/2` as `5/2`.
    weekday = re.sub(r"(?<!\bsun)(?<!\b0)-(?:sun|0)\b", "-7", written[4])
    weekday = re.sub(r"(^|,)(\w+)/", r"\1\2-6/", weekday)
    words = [re.sub(r"\b(\w+)-\1/[1-9]\d*", r"\1", word) for word in (*written[:4], weekday)]
    for at, (name, high, values) in enumerate(FIELDS):
        alone = ("*",) * at + (words[at],) + ("*",) * (len(FIELDS) - at - 1)
        if not _is_valid(alone) or any(int(step) > high for step in _STEP.findall(written[at])):
            raise BadSchedule(
                f"{text!r}: the {name} `{written[at]}` is not valid; expected `*` or {values}, "
                f"with lists (1,2), ranges (1-5) and steps up to {high} (*/2)"
            )
    if not _is_valid(words):
        raise BadSchedule(
            f"{text!r} never comes: no month of `{written[3]}` has a day `{written[2]}`; change "
            "the third or the fourth field"
        )
    return Cron(" ".join(words), zone)


def _is_valid(words: Iterable[str]) -> bool:
    try:
        CronSim(" ".join(words), datetime.now(UTC))
    except CronSimError:
        return False
    return True


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
    if given.tzinfo is None:
        given = given.replace(tzinfo=zone)
        # A time that the clock skips means the first moment after the gap.
        while given.astimezone(UTC).astimezone(zone) != given:
            given = given.replace(second=0) + timedelta(minutes=1)
    return At(given.timestamp(), zone)


# ---- In words ----


def in_words(schedule: Schedule) -> str:
    """Describes a schedule: "at 08:00 every day"."""
    match schedule:
        case Every():
            return f"every {interval(schedule.seconds)}"
        case At():
            return f"once, {clock(schedule.moment, schedule.zone)}"
        case Cron():
            words = CronSim(schedule.expression, datetime.now(UTC)).explain()
            zone = "" if schedule.zone.key == "UTC" else f", {schedule.zone.key}"
            return words[0].lower() + words[1:] + zone
        case _:
            assert_never(schedule)


def interval(seconds: int) -> str:
    """Returns an interval as it is read after "every": "15 minutes", "day"."""
    parts: list[str] = []
    for unit, name in NAMES.items():
        count, seconds = divmod(seconds, UNITS[unit])
        if count:
            parts.append(f"{count} {name}s" if count > 1 else f"1 {name}")
    return parts[0].removeprefix("1 ") if len(parts) == 1 else " ".join(parts)


def clock(moment: float, zone: tzinfo) -> str:
    """Formats a moment as the wall clock of a time zone."""
    return datetime.fromtimestamp(moment, zone).strftime("%Y-%m-%d %H:%M %Z")
