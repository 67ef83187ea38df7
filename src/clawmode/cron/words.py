"""Schedules and times as people say them."""

from datetime import datetime, tzinfo
from typing import assert_never

from clawmode.cron.expressions import MONTHS, WEEKDAYS, Fields
from clawmode.cron.schedule import UNITS, At, Cron, Every, Schedule

NAMES = {"w": "week", "d": "day", "h": "hour", "m": "minute", "s": "second"}
MAX_TIMES = 4
"""Times of a day that are listed."""


def in_words(schedule: Schedule) -> str:
    """A schedule; an expression that takes too many words is shown as it stands."""
    match schedule:
        case Every():
            return f"every {interval(schedule.seconds)}"
        case At():
            return f"once, {clock(schedule.moment, schedule.zone)}"
        case Cron():
            said = _said(schedule.fields) or f"cron {' '.join(schedule.fields.text.split())}"
            zone = schedule.zone.key
            return said if zone == "UTC" else f"{said}, {zone}"
        case _:
            assert_never(schedule)


def interval(seconds: int) -> str:
    """A number of seconds, to stand after `every`."""
    parts: list[str] = []
    for unit, name in NAMES.items():
        count, seconds = divmod(seconds, UNITS[unit])
        if count:
            parts.append(f"{count} {name}s" if count > 1 else f"1 {name}")
    return parts[0].removeprefix("1 ") if len(parts) == 1 else " ".join(parts)


def clock(moment: float, zone: tzinfo) -> str:
    """A moment, as clocks of a zone show it."""
    return datetime.fromtimestamp(moment, zone).strftime("%Y-%m-%d %H:%M %Z")


# ---- Expressions ----


def _said(fields: Fields) -> str:
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
    """How far apart they are, if they go all the way round; else 0."""
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
        some_days = some_weekdays = False  # one of them is met each day
    if some_weekdays:
        said = _listed(fields.weekdays, WEEKDAYS, 0)
        return f"{said} in {months}" if months else said
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
