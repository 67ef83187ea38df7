"""Schedules in plain words, such as "every day at 08:00"."""

from datetime import datetime, tzinfo
from typing import assert_never

from clawmode.cron.schedule import MONTHS, UNITS, WEEKDAYS, At, Cron, Every, Fields, Schedule

NAMES = {"w": "week", "d": "day", "h": "hour", "m": "minute", "s": "second"}
MAX_TIMES = 4
"""The most times of day, or days of the month, that are listed."""


def in_words(schedule: Schedule) -> str:
    """Describes a schedule; a complicated cron expression is shown as the user wrote it."""
    match schedule:
        case Every():
            return f"every {interval(schedule.seconds)}"
        case At():
            return f"once, {clock(schedule.moment, schedule.zone)}"
        case Cron():
            words = _expression(schedule.fields) or f"cron {' '.join(schedule.fields.text.split())}"
            zone = schedule.zone.key
            return words if zone == "UTC" else f"{words}, {zone}"
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


# ---- Expressions ----


def _expression(fields: Fields) -> str:
    days, times = _days(fields), _times(fields)
    if not days or not times:
        return ""
    if times.startswith("every"):
        return times if days == "every day" else f"{times}, {days}"
    return f"{days} at {times}"


def _times(fields: Fields) -> str:
    hours, minutes = fields.hours, fields.minutes
    if len(hours) * len(minutes) <= MAX_TIMES:
        return ", ".join(f"{hour:02}:{minute:02}" for hour in hours for minute in minutes)
    if len(hours) == 24 and (step := _step(minutes, 60)):
        return "every minute" if step == 1 else f"every {step} minutes"
    if len(minutes) > 1:
        return ""
    if len(hours) == 24:
        return f"every hour at :{minutes[0]:02}"
    step = _step(hours, 24)
    return f"every {step} hours at :{minutes[0]:02}" if step else ""


def _step(numbers: tuple[int, ...], end: int) -> int:
    """Returns the distance of evenly spaced numbers that fill the whole range, else 0."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 0
    whole = step and end % step == 0 and numbers == tuple(range(0, end, step))
    return step if whole else 0


def _days(fields: Fields) -> str:
    some_days = len(fields.days) < 31
    some_weekdays = len(fields.weekdays) < 7
    months = "" if len(fields.months) == 12 else _listed(fields.months, MONTHS, 1)
    if some_days and some_weekdays:
        return ""
    if fields.either:
        some_days = some_weekdays = False  # together they match every day
    if some_weekdays:
        names = _listed(fields.weekdays, WEEKDAYS, 0)
        return f"{names} in {months}" if months else names
    if not some_days:
        return f"every day in {months}" if months else "every day"
    if len(fields.days) > MAX_TIMES:
        return ""
    numbered = ", ".join(map(str, fields.days))
    return f"on {numbered} of {months or 'every month'}"


def _listed(numbers: tuple[int, ...], names: tuple[str, ...], first: int) -> str:
    words = [names[number - first].capitalize() for number in numbers]
    whole = len(words) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
    return f"{words[0]} to {words[-1]}" if whole else ", ".join(words)
