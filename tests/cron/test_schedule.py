"""When jobs run: expressions, intervals and moments, against a walk from minute to minute."""

import contextlib
import time
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support.fuzzing import examples

from clawmode.cron.schedule import (
    BadSchedule,
    Schedule,
    in_words,
    read_at,
    read_cron,
    read_every,
)

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")

BERLIN = "Europe/Berlin"
ZONES = [
    "UTC",
    BERLIN,
    "America/New_York",
    "America/Havana",  # midnight comes twice
    "Australia/Lord_Howe",  # half an hour
    "Asia/Kathmandu",  # a quarter of an hour off
    "Pacific/Apia",  # a day was left out
    "America/Sao_Paulo",  # midnight did not exist
]


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def times(schedule: Schedule, after: str, count: int) -> list[str]:
    """The next moments, as the clock of UTC shows them."""
    found: list[str] = []
    now: float | None = moment(after)
    while now is not None and len(found) < count:
        now = schedule.next_after(now)
        if now is not None:
            found.append(datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M"))
    return found


# ---- Expressions ----


@pytest.mark.parametrize(
    ("text", "minutes", "hours"),
    [
        ("*/20 * * * *", (0, 20, 40), tuple(range(24))),
        ("5,10-12,50/4 0 * * *", (5, 10, 11, 12, 50, 54, 58), (0,)),
        ("10-30/10 9-17/4 * * *", (10, 20, 30), (9, 13, 17)),
        ("0 23,0 * * *", (0,), (0, 23)),
        ("5-5/2 7-7/3 * * *", (5,), (7,)),
        ("@daily", (0,), (0,)),
        (" @HOURLY ", (0,), tuple(range(24))),
    ],
)
def test_a_field_has_lists_ranges_and_steps(
    text: str, minutes: tuple[int, ...], hours: tuple[int, ...]
) -> None:
    day = [f"2027-08-01 {hour:02}:{minute:02}" for hour in hours for minute in minutes]
    assert times(read_cron(text), "2027-07-31T23:59Z", len(day)) == day


@pytest.mark.parametrize(
    ("text", "weekdays"),
    [
        ("0", (0,)),
        ("7", (0,)),
        ("sun", (0,)),
        ("MON-Fri", (1, 2, 3, 4, 5)),
        ("fri-sun", (0, 5, 6)),
        ("5-0", (0, 5, 6)),
        ("5-7", (0, 5, 6)),
        ("sun-sun", (0,)),
        ("*/3", (0, 3, 6)),
        ("1/2", (1, 3, 5)),
        ("6/1", (6,)),
        ("sat,sun", (0, 6)),
    ],
)
def test_sunday_has_two_numbers_and_days_have_names(text: str, weekdays: tuple[int, ...]) -> None:
    week = [f"2027-08-{day + 1:02} 00:00" for day in weekdays]  # the first is a Sunday
    assert times(read_cron(f"0 0 * * {text}"), "2027-07-31T23:59Z", len(week)) == week


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 0 L 2 *", ["2028-02-29 00:00", "2029-02-28 00:00"]),
        ("0 0 LW * *", ["2027-08-31 00:00", "2027-09-30 00:00"]),
        ("0 0 * * 5L", ["2027-08-27 00:00", "2027-09-24 00:00"]),
        ("0 0 * * fri#2", ["2027-08-13 00:00", "2027-09-10 00:00"]),
    ],
)
def test_a_day_can_be_the_last_or_the_nth_of_its_month(text: str, expected: list[str]) -> None:
    assert times(read_cron(text), "2027-08-01T00:00Z", 2) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields"),
        ("* * * * * *", "has 6 fields"),
        ("0 25 * * *", "the hour `25` is not valid; expected `*` or 0 to 23"),
        ("60 * * * *", "the minute `60` is not valid; expected `*` or 0 to 59"),
        ("0 0 0 * *", "the day of the month `0` is not valid; expected `*` or 1 to 31"),
        ("0  0  1,32 * *", "the day of the month `1,32` is not valid"),
        ("0 0 * foo *", "the month `foo` is not valid; expected `*` or 1 to 12, or jan to dec"),
        (
            "0 0 * * 8",
            "the day of the week `8` is not valid; expected `*` or 0 to 7, or sun to sat",
        ),
        ("5-1 * * * *", "the minute `5-1` is not valid"),
        ("0-99999999999999999999 * * * *", "is not valid"),
        ("*/0 * * * *", "the minute `*/0` is not valid"),
        ("*/60 * * * *", "steps up to 59"),
        ("0 */24 * * *", "steps up to 23"),
        ("0 0 * * 3-3/0", "the day of the week `3-3/0` is not valid"),
        ("0 0 * * 7/2", "the day of the week `7/2` is not valid"),
        ("*/x * * * *", "the minute `*/x` is not valid"),
        (f"*/{'9' * 400} * * * *", "is not valid"),
        ("1-2-3 * * * *", "the minute `1-2-3` is not valid"),
        (", * * * *", "the minute `,` is not valid"),
        ("-1 * * * *", "the minute `-1` is not valid"),
        ("٣ * * * *", "the minute `٣` is not valid"),
        ("0 0 * * ٣L", "the day of the week `٣l` is not valid"),
        ("@reboot", "expected one of @yearly"),
        ("0 0 31 2 *", "never comes: no month of `2` has a day `31`; change the third or"),
        ("0 0 31 4,jun */2", "never comes"),
        ("*" * 501, "at most 500 characters"),
    ],
)
def test_a_wrong_expression_is_rejected_with_the_field_and_what_is_expected(
    text: str, says: str
) -> None:
    with pytest.raises(BadSchedule) as caught:
        read_cron(text)
    assert says in str(caught.value)


def test_either_day_is_enough_if_both_are_narrowed() -> None:
    assert times(read_cron("0 0 13 * fri"), "2027-08-01T00:00Z", 4) == [
        *("2027-08-06 00:00", "2027-08-13 00:00", "2027-08-20 00:00", "2027-08-27 00:00")
    ]
    assert times(read_cron("0 0 */2 * fri"), "2027-08-01T00:00Z", 2) == [
        *("2027-08-13 00:00", "2027-08-27 00:00")
    ]


def test_a_day_that_comes_every_four_years_is_waited_for() -> None:
    leap = read_cron("0 0 29 2 *")
    assert times(leap, "2095-01-01T00:00Z", 2) == ["2096-02-29 00:00", "2104-02-29 00:00"]


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        # Forward at 02:00, which is 01:00 in UTC: half past two is the moment after.
        ("30 2 * * *", "2027-03-27T12:00Z", ["2027-03-28 01:00", "2027-03-29 00:30"]),
        ("0,20 2 * * *", "2027-03-27T12:00Z", ["2027-03-28 01:00", "2027-03-29 00:00"]),
        ("0 2,3 * * *", "2027-03-27T12:00Z", ["2027-03-28 01:00", "2027-03-29 00:00"]),
        # Back at 03:00: half past two comes at 00:30 and at 01:30 in UTC.
        ("30 2 * * *", "2027-10-30T12:00Z", ["2027-10-31 00:30", "2027-11-01 01:30"]),
        ("30 2 * * *", "2027-10-31T01:10Z", ["2027-11-01 01:30"]),
    ],
)
def test_each_fixed_time_comes_once_when_clocks_are_changed(
    text: str, after: str, expected: list[str]
) -> None:
    assert times(read_cron(text, BERLIN), after, len(expected)) == expected


@pytest.mark.parametrize("day", ["2026-10-25", "2027-03-28", "2027-10-31"])
def test_a_job_of_every_half_hour_runs_through_a_clock_change_without_a_pause(day: str) -> None:
    start = datetime.fromisoformat(f"{day}T00:00Z") - timedelta(hours=6)
    expected = [start + timedelta(minutes=30 * count) for count in range(1, 25)]
    found = times(read_cron("*/30 * * * *", BERLIN), start.isoformat(), len(expected))
    assert found == [f"{each:%Y-%m-%d %H:%M}" for each in expected]


@pytest.mark.parametrize("text", ["* * 29 2 */7", "0 0 * 2 mon#5", "59 23 31 12 */6", "* * L 2 0L"])
def test_a_rare_day_is_found_quickly(text: str) -> None:
    started = time.process_time()
    assert read_cron(text, BERLIN).next_after(moment("2027-01-01T00:00Z"))
    assert time.process_time() - started < 1


def test_a_day_that_was_left_out_is_the_moment_after_it() -> None:
    apia = read_cron("0 12 * * *", "Pacific/Apia")
    assert times(apia, "2011-12-29T23:00Z", 2) == ["2011-12-30 10:00", "2011-12-30 22:00"]


# ---- Against a walk from minute to minute ----

Part: TypeAlias = tuple[str, frozenset[int]]
"""What stands in a field, and what it means."""


def parts(low: int, high: int, last: int, names: tuple[str, ...]) -> st.SearchStrategy[Part]:
    """Pieces of a field; `*` goes to `last`."""
    number = st.integers(low, high)
    spans = st.tuples(number, number).map(sorted)
    step = st.integers(1, high)
    named = [(name, frozenset({number})) for number, name in enumerate(names, low)]
    return st.one_of(
        st.just(("*", frozenset(range(low, last + 1)))),
        number.map(lambda it: (str(it), frozenset({it}))),
        spans.map(lambda it: (f"{it[0]}-{it[1]}", frozenset(range(it[0], it[1] + 1)))),
        step.map(lambda it: (f"*/{it}", frozenset(range(low, last + 1, it)))),
        st.tuples(spans, step).map(
            lambda it: (
                f"{it[0][0]}-{it[0][1]}/{it[1]}",
                frozenset(range(it[0][0], it[0][1] + 1, it[1])),
            )
        ),
        *([st.sampled_from(named)] if named else []),
    )


def a_field(
    low: int, high: int, last: int | None = None, names: tuple[str, ...] = ()
) -> st.SearchStrategy[Part]:
    several = st.lists(parts(low, high, high if last is None else last, names), min_size=1)
    return several.map(
        lambda found: (
            ",".join(text for text, _ in found[:3]),
            frozenset[int]().union(*(numbers for _, numbers in found[:3])),
        )
    )


EXPRESSIONS = st.tuples(
    a_field(0, 59),
    a_field(0, 23),
    a_field(1, 31),
    a_field(1, 12, names=MONTHS),
    a_field(0, 7, 6, names=WEEKDAYS),
)
ANY: Part = ("*", frozenset(range(32)))
CHANGES = [
    (BERLIN, "2027-03-28T01:00Z"),
    (BERLIN, "2027-10-31T01:00Z"),
    ("America/New_York", "2027-03-14T07:00Z"),
    ("America/New_York", "2027-11-07T06:00Z"),
    ("America/Havana", "2027-03-14T05:00Z"),
    ("America/Havana", "2027-11-07T05:00Z"),
    ("Australia/Lord_Howe", "2027-10-02T15:30Z"),
    ("Australia/Lord_Howe", "2027-04-03T15:00Z"),
    ("Pacific/Apia", "2011-12-30T10:00Z"),
    ("America/Sao_Paulo", "2018-11-04T03:00Z"),
    ("America/Sao_Paulo", "2018-02-18T02:00Z"),
]
WALK = 2 * 24 * 60
"""Minutes that are walked."""


def meant(fields: tuple[Part, ...], wall: datetime) -> bool:
    """Whether a minute of the clock is."""
    values = (wall.minute, wall.hour, wall.day, wall.month, wall.isoweekday())
    minute, hour, day, month, weekday = (
        value in numbers for value, (_, numbers) in zip(values, fields, strict=True)
    )
    weekday = weekday or (wall.isoweekday() == 7 and 0 in fields[4][1])
    narrowed = not fields[2][0].startswith("*") and not fields[4][0].startswith("*")
    return minute and hour and month and ((day or weekday) if narrowed else (day and weekday))


def walked(fields: tuple[Part, ...], zone: ZoneInfo, now: float) -> float | None:
    """The first minute after a moment that is meant, or that ends a gap in which one would be."""
    follows_time = any(text.startswith("*") for text, _ in fields[:2])
    at = int(now // 60) * 60
    before = datetime.fromtimestamp(at, zone).replace(tzinfo=None)
    for _ in range(WALK):
        at += 60
        local = datetime.fromtimestamp(at, zone)
        wall = local.replace(tzinfo=None, fold=0)
        left_out = 0 if follows_time else int((wall - before).total_seconds()) // 60 - 1
        gap = (wall - timedelta(minutes=back) for back in range(1, left_out + 1))
        counts = follows_time or local.fold == 0
        if (counts and meant(fields, wall)) or any(meant(fields, each) for each in gap):
            return float(at)
        before = wall
    return None


@examples(100)
@given(EXPRESSIONS, st.sampled_from(ZONES), st.integers(0, 2_200_000_000).map(float))
def test_the_next_time_is_the_one_that_a_walk_finds(
    fields: tuple[Part, ...], zone: str, now: float
) -> None:
    check_against_a_walk(fields, zone, now)


@examples(300)
@given(
    st.tuples(a_field(0, 59), a_field(0, 23)), st.sampled_from(CHANGES), st.integers(-6000, 6000)
)
def test_the_next_time_is_right_around_clock_changes(
    clock: tuple[Part, Part], change: tuple[str, str], seconds: int
) -> None:
    zone, at = change
    check_against_a_walk((*clock, ANY, ANY, ANY), zone, moment(at) + seconds)


def check_against_a_walk(fields: tuple[Part, ...], zone: str, now: float) -> None:
    # cronsim steps by whole hours, and so can miss a time where clocks change by half an hour.
    assume(zone != "Australia/Lord_Howe" or not any(text.startswith("*") for text, _ in fields[:2]))
    expected = walked(fields, ZoneInfo(zone), now)
    try:
        schedule = read_cron(" ".join(part for part, _ in fields), zone)
    except BadSchedule:
        assert expected is None
        return
    found = schedule.next_after(now)
    assert found is not None
    if expected is None:
        assert found > now + (WALK - 1) * 60
    else:
        assert found == expected


# ---- Intervals and moments ----


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), (" 15M ", 900), ("2h", 7200), ("1d", 86_400), ("1w", 604_800), ("1h30m", 5400)],
)
def test_an_interval_counts_from_when_it_was_first_seen(text: str, seconds: int) -> None:
    every = read_every(text, since=100.5)
    assert every.next_after(100.5) == 100.5 + seconds
    assert every.next_after(100.5 + 7 * seconds) == 100.5 + 8 * seconds
    assert every.next_after(0) == 100.5 + seconds


@given(st.integers(1, 100_000), st.floats(0, 2e9), st.floats(0, 2e9))
def test_an_interval_is_always_later_and_never_too_late(
    seconds: int, since: float, now: float
) -> None:
    found = read_every(f"{seconds}s", since).next_after(now)
    assert found is not None
    assert now < found <= max(now, since) + seconds + 1e-3


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "1.5h", "0s", "5 m", "400d", "٣s", "9" * 99])
def test_an_invalid_interval_is_an_error(text: str) -> None:
    with pytest.raises(BadSchedule):
        read_every(text)


@pytest.mark.parametrize(
    ("text", "tz", "expected"),
    [
        ("2027-01-31T08:00", None, "2027-01-31T08:00Z"),
        ("2027-01-31 08:00:30", BERLIN, "2027-01-31T07:00:30Z"),
        ("2027-01-31T08:00+05:00", BERLIN, "2027-01-31T03:00Z"),
        ("2027-01-31", BERLIN, "2027-01-30T23:00Z"),
        ("2027-03-28T02:30", BERLIN, "2027-03-28T01:00Z"),
        ("2027-10-31T02:30", BERLIN, "2027-10-31T00:30Z"),
    ],
)
def test_a_moment_is_that_of_its_zone_and_comes_once(
    text: str, tz: str | None, expected: str
) -> None:
    at = read_at(text, tz)
    assert at.next_after(0) == moment(expected)
    assert at.next_after(moment(expected)) is None


@pytest.mark.parametrize("text", ["", "tomorrow", "2027-02-30T08:00", "08:00", "9999-01-01"])
def test_an_invalid_moment_is_an_error(text: str) -> None:
    with pytest.raises(BadSchedule):
        read_at(text)


@pytest.mark.parametrize(
    "zone", ["Nowhere/Land", "../../etc/passwd", "/etc/passwd", "a\0b", "x" * 999]
)
def test_an_unknown_time_zone_is_an_error(zone: str) -> None:
    with pytest.raises(BadSchedule):
        read_cron("@daily", zone)


# ---- In words ----


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("*/15 * * * *", "every 15th minute of every hour"),
        ("* * * * *", "every minute"),
        ("30 8 * * mon-fri", "at 08:30 on Monday through Friday"),
        ("0 9,18 * * *", "at 09:00 and 18:00 every day"),
        ("0 0 * jan,jul sun", "at 00:00 on Sunday in January and July"),
        ("0 0 13 * fri", "at 00:00 on the 13th day of month and on Friday"),
        ("0 0 * * fri-sun", "at 00:00 on Friday through Sunday"),
    ],
)
def test_an_expression_is_described_in_words(text: str, words: str) -> None:
    assert in_words(read_cron(text)) == words
    assert in_words(read_cron(text, BERLIN)) == f"{words}, {BERLIN}"


@given(EXPRESSIONS)
def test_every_valid_expression_can_be_described(fields: tuple[Part, ...]) -> None:
    with contextlib.suppress(BadSchedule):
        assert in_words(read_cron(" ".join(part for part, _ in fields)))


def test_intervals_and_moments_are_said_in_words() -> None:
    assert in_words(read_every("1h")) == "every hour"
    assert in_words(read_every("90m")) == "every 1 hour 30 minutes"
    assert in_words(read_at("2027-01-31T08:00", BERLIN)) == "once, 2027-01-31 08:00 CET"
