"""What search finds of real tools: the figures of `bench/search.py` that must not fall unseen."""

import hashlib
import json
from pathlib import Path

import pytest
from bench import search as bench
from bench.search import (
    BOTH,
    DATA,
    OURS,
    PLAIN,
    WORDS,
    Quality,
    interval,
    judge,
    measure,
    read_models,
    read_ours,
    stratum,
    with_strata,
)

# The goals of search for requests in people's words: NDCG@10 and hit@8.
GOALS = {WORDS: (39.0, 59.0), BOTH: (48.0, 69.0)}

# Both sets are frozen: a changed request or label is a new version, with figures of its own.
FROZEN = {
    "mcp_queries.json": "9ab7f63426d740f4d5c2119ae606ee542a2aebdca168443dc0d46343a0323b46",
    "model_queries.json": "506d828f9a1e214bcfb0c931d34bcb5120e78d0fb310c2bc60ac20b254e28a3a",
}


@pytest.mark.parametrize("ranker", GOALS)
def test_search_finds_real_tools_as_often_as_it_must(ranker: str) -> None:
    ours = read_ours()
    made = measure(bench.make_finders(ours)[ranker], ours.requests)
    assert (made.ndcg_10, made.hit_8) >= GOALS[ranker]
    assert made.hit_8 >= GOALS[ranker][1]


def test_requests_of_models_find_their_tools_more_often_than_with_plain_bm25() -> None:
    models = read_models()
    plain, words, both = (
        measure(find, models.requests) for find in bench.make_finders(models).values()
    )
    assert plain.ndcg_10 + 2 < words.ndcg_10 < both.ndcg_10
    assert both.hit_8 > words.hit_8 > 90


def test_both_sets_of_requests_are_frozen() -> None:
    for name, expected in FROZEN.items():
        data = (DATA / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == expected
        assert json.loads(data)["version"] == 1


def test_every_request_is_in_one_stratum() -> None:
    for of in (read_ours(), read_models()):
        whole, *parts = with_strata(of)
        assert sorted(r.text for part in parts for r in part.requests) == sorted(
            r.text for r in whole.requests
        )
        assert len(parts) == 3
    models = read_models()
    kinds = {request.text: stratum(request, models) for request in models.requests}
    assert kinds["create github gist"] == "names a product"
    assert kinds["delete pod"] == "has content words"
    assert kinds["give money back to buyer"] == "hint only"


def test_the_interval_of_a_difference_contains_it() -> None:
    mean, low, high = interval([3.0, 5.0, 4.0, 9.0] * 20, [1.0, 5.0, 2.0, 3.0] * 20)
    assert low < mean == 2.5 < high
    assert interval([1.0] * 9, [1.0] * 9) == (0, 0, 0)


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
    bench.write_record(first, {"one": {WORDS: [50.0, 33.3]}})
    bench.write_record({"other": {WORDS: Quality(5, 4, 3, 2, 1)}})
    assert bench.read_record() == first | {"other": {WORDS: Quality(5, 4, 3, 2, 1)}}
    assert bench.read_gains() == {"one": {WORDS: [50.0, 33.3]}}
