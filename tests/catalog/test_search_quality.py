"""What search finds of real tools: the figures of `bench/search.py` that must not fall unseen."""

import json
from pathlib import Path

import pytest
from bench import search as bench
from bench.search import DATA, OURS, PLAIN, WORDS, Quality, judge, measure, read_ours

# Measured for words alone: hit@8 37.8, MRR 21.7. Requests are in people's words, not the tools'.
LEAST_HIT_8 = 36.0
LEAST_MRR = 20.5


def test_words_alone_find_real_tools_as_often_as_they_did() -> None:
    ours = read_ours()
    made = measure(bench.make_finders(ours)[WORDS], ours.requests)
    assert made.hit_8 >= LEAST_HIT_8
    assert made.mrr >= LEAST_MRR


def test_the_set_is_as_large_as_it_has_to_be() -> None:
    ours = read_ours()
    sources = json.loads((DATA / "mcp_tools.json").read_text("utf-8"))["sources"]
    assert len(ours.tools) == len(ours.names) >= 200
    assert {tool.owner for tool in ours.tools} == sources.keys()
    assert len(sources) >= 15
    assert len({request.text for request in ours.requests}) == len(ours.requests) >= 150


def test_every_request_expects_tools_that_there_are() -> None:
    ours = read_ours()
    there = set(ours.names.values())
    assert all(request.expected and request.expected <= there for request in ours.requests)


@pytest.mark.parametrize(
    ("found", "expected", "worth"),
    [
        (["a"], "a", (1, 1, 1, 1, 1)),
        (["x", "a"], "a", (0, 1, 1, 0.6309, 0.5)),
        (["a", "x", "b"], "ab", (1, 1, 1, 0.9197, 1)),
        (["a"], "ab", (1, 1, 0.5, 0.6131, 1)),
        ([*"uvwxyza"], "a", (0, 1, 0, 1 / 3, 1 / 7)),
        ([*"pqrsuvwxa"], "a", (0, 0, 0, 0.3010, 1 / 9)),
        ([], "a", (0, 0, 0, 0, 0)),
    ],
)
def test_an_answer_is_judged_by_its_places(
    found: list[str], expected: str, worth: tuple[float, ...]
) -> None:
    assert judge(found, frozenset(expected)) == pytest.approx(worth, abs=1e-4)


def test_figures_are_shown_beside_the_recorded_ones() -> None:
    ours = read_ours()
    figures = {OURS: {PLAIN: Quality(10, 20, 30, 40, 50), WORDS: Quality(15, 20, 30, 40, 50)}}
    recorded = {OURS: {WORDS: Quality(12.5, 20, 30, 40, 50)}}
    table = bench.show([ours], figures, recorded)
    assert list(table.columns[4].cells) == ["10.0", "15.0 (+2.5)"]
    assert list(table.columns[5].cells) == ["20.0", "20.0"]


def test_what_is_recorded_can_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "RECORD", tmp_path / "results/search.json")
    assert bench.read_record() == {}
    first = {"one": {WORDS: Quality(1, 2, 3, 4, 5)}}
    bench.write_record(first)
    bench.write_record({"other": {WORDS: Quality(5, 4, 3, 2, 1)}})
    assert bench.read_record() == first | {"other": {WORDS: Quality(5, 4, 3, 2, 1)}}
