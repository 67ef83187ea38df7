"""Untrusted text: what may reach a terminal, a log or a prompt."""

import json
import sys
import unicodedata

import pytest

from clawmode.text import (
    IN_TEXT,
    clip,
    escape,
    one_line,
    plain_line,
    printable,
    quote,
    shorten,
    truncate,
    without_surrogates,
)
from clawmode.types import JsonValue

HOSTILE = "a\x1b[2J\x9b\x07\r\u202eb\u2066\u200b\ud800\U000e0041\u3164\ufe0f"


def test_escaping_leaves_nothing_that_a_terminal_acts_on_or_hides() -> None:
    acting = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    left = set(escape(every))
    assert not {char for char in left if unicodedata.category(char) in acting}
    assert not {char for char in left if char.isspace()} - {" "}
    assert not {char for char in left if unicodedata.bidirectional(char) in {"RLO", "LRO", "RLI"}}
    assert not left & set("\u115f\u2800\u3164\ufe0f\U000e0041")


def test_escapes_are_written_as_in_javascript() -> None:
    assert escape("\x1b \u202e \U000e0041 \ud800") == r"\u001b \u202e \U000e0041 \ud800"


def test_running_text_keeps_its_lines_and_joined_emoji() -> None:
    family = "👨\u200d👩\u200d👧 ❤\ufe0f\n\tx"
    assert escape(family, IN_TEXT) == family
    assert escape("\r\x1b", IN_TEXT) == r"\u000d\u001b"


@pytest.mark.parametrize("make", [one_line, plain_line])
def test_a_line_is_one_line_within_its_limit(make: object) -> None:
    assert callable(make)
    for text in ("", "x", " a\n b\t", "word " * 50, HOSTILE * 20, "\n" * 500, "x" * 100_000):
        for limit in (1, 2, 10, 80):
            line = make(text, limit)
            assert len(line) <= limit
            assert line.isprintable()
            assert "\n" not in line
    assert make(" a\n b\t", 10) == "a b"
    assert make("x" * 11, 10) == "x" * 9 + "…"


def test_a_long_text_is_marked_as_cut_even_if_its_start_is_blank() -> None:
    assert one_line(" " * 100 + "x", 10) == "…"
    assert plain_line(" " * 100 + "x", 10) == "…"


def test_a_plain_line_has_spaces_where_characters_cannot_be_printed() -> None:
    assert plain_line("a\x00\x1b[2Jb\u202ec\ud800", 80) == "a [2Jb c"


def test_unprintable_characters_are_replaced() -> None:
    assert printable("a\tb\x1b\ud800", keep="\t") == "a\tb\ufffd\ufffd"
    assert printable("a\tb", "?") == "a?b"
    assert printable("plain ü 漢") == "plain ü 漢"


@pytest.mark.parametrize(("limit", "expected"), [(6, "abcdef"), (5, "abcd…"), (1, "…"), (0, "")])
def test_a_shortened_text_never_exceeds_its_limit(limit: int, expected: str) -> None:
    assert shorten("abcdef", limit) == expected


def test_the_end_of_a_shortened_text_counts() -> None:
    assert shorten("abcdef", 5, "...") == "ab..."
    assert shorten("abcdef", 2, "...") == ".."


def test_a_truncated_text_says_how_much_is_missing() -> None:
    assert truncate("abc", 3) == "abc"
    assert truncate("abcdef", 4) == "abcd… (2 more characters)"
    assert truncate("abcdef", 0) == "… (6 more characters)"


def test_a_quoted_text_is_short_and_printable_ascii_or_letters() -> None:
    assert quote("it's", 80) == '"it\'s"'
    assert quote(HOSTILE * 100, 20).isprintable()
    assert len(quote("x" * 1000, 20)) == 22
    quote(HOSTILE, 80).encode()


def test_text_without_surrogates_can_be_encoded() -> None:
    assert without_surrogates("a\ud800b\udfff") == "a?b?"
    assert without_surrogates("ü 🦀") == "ü 🦀"


@pytest.mark.hostile
def test_a_clipped_value_keeps_its_shape_within_its_limit() -> None:
    deep: JsonValue = "x"
    for _ in range(5_000):
        deep = [deep]
    values: list[JsonValue] = [
        {"to": "ann", "ids": [1, 2]},
        {"body": "x" * 10_000, "to": "ann", "many": [{"k": "v" * 99}] * 10_000},
        {"k" * 10_000 + str(n): n for n in range(100)},
        10**5_000,
        deep,
    ]
    for value in values:
        made = clip(value, 300)
        assert len(json.dumps(made, ensure_ascii=False)) < 400
        assert clip(made, 1_000) == made
    assert clip(values[0], 300) == values[0]
    shown = clip(values[1], 300)
    assert isinstance(shown, dict)
    assert (list(shown), shown["to"]) == (["body", "to", "many"], "ann")
    assert str(shown["many"]).endswith("'… 9997 more']")
