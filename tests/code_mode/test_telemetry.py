"""Telemetry: what a run's counters say of searches that found nothing, and what they never say."""

import pytest

from clawmode.catalog.catalog import Catalog
from clawmode.code_mode.telemetry import MAX_UNMATCHED, Telemetry
from clawmode.tools.tool import Tool

CATALOG = Catalog([Tool("send_email", "Send a message", {}, lambda given, context: None)])


def words(*queries: str) -> object:
    telemetry = Telemetry()
    for query in queries:
        telemetry.miss(CATALOG.unmatched(query))
    return telemetry.to_json().get("unmatchedSearchWords")


def test_words_that_matched_nothing_are_told_once_and_in_order() -> None:
    assert words("phase of the Moon", "moon landing", "émigré") == [
        "phase",
        "moon",
        "landing",
        "emigre",
    ]


@pytest.mark.parametrize("query", ["", "of the", "send messages", "42", "_"])
def test_where_no_word_went_unmatched_nothing_is_added(query: str) -> None:
    assert words(query) is None
    assert words() is None


@pytest.mark.parametrize(
    "query",
    [
        "sk-proj-9aF3xQ7LmZ",
        "AKIAIOSFODNN7EXAMPLE",
        "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY",
        "4111 1111 1111 1111",
        "x" * 900,
    ],
)
def test_what_may_be_a_key_is_not_told(query: str) -> None:
    told = words(query)
    assert told is None or (isinstance(told, list) and set(told) <= {"sk", "proj"})


def test_they_are_few_however_much_is_searched_for() -> None:
    letters = "abcdefghij"
    many = [f"zork{one}{other}" for one in letters for other in letters]
    told = words(*many)
    assert isinstance(told, list)
    assert told == many[:MAX_UNMATCHED]
