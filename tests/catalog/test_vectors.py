"""Search by meaning: what vectors add to words, what they must not change, and what they cost."""

import logging
import string
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from bench.search_quality import LIMIT, Request, measure, read_asked, read_unanswered, unasked
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import examples

from clawmode.catalog import search, tables, vectors
from clawmode.catalog.catalog import Catalog
from clawmode.catalog.search import Document, SearchIndex, go_by_words, split_clauses
from clawmode.catalog.vectors import MissingExtra, VectorRanker, choose_ranker
from clawmode.catalog.words import split_identifier
from clawmode.tools.tool import Tool, ToolSource
from clawmode.types import JsonObject

TOOLS = [
    Document("issue_refund", "", "Return a charge to the customer's card", "charge_id amount"),
    Document("send_email", "", "Send a message to an address", "recipient subject body"),
    Document("resize_image", "", "Change the dimensions of a picture", "file width"),
    Document("get_forecast", "", "Weather of the coming days at a place", "city days"),
    Document("delete_path", "", "Remove a file or folder for good", "path"),
    Document("play_music", "", "Play a song on the speakers", "artist title"),
]
NAMES = [document.name for document in TOOLS]
WORDS = ["read", "write", "file", "web", "mail", "car", "vehicle", "get", "user", "page", "the"]

quickly = examples(60, derandomize=True)
texts = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
documents = st.builds(Document, texts, texts, texts, texts)


def rank(among: list[Document]) -> VectorRanker:
    return VectorRanker(among, SearchIndex(among, tables.load_related()))


def find(query: str, limit: int = 8, among: list[Document] = TOOLS) -> list[str]:
    return [among[position].name for position, _ in rank(among).search(query, limit)]


def tool(name: str, description: str = "", source: ToolSource = "openclaw", *keys: str) -> Tool:
    schema: JsonObject = {"properties": {key: {"type": "string"} for key in keys}}
    owner = "" if source == "openclaw" else "someone"
    return Tool(name, description, schema, lambda given, context: None, source=source, owner=owner)


def names(catalog: Catalog, query: str, *, include_mcp: bool = False) -> list[object]:
    return [entry["name"] for entry in catalog.search(query, 8, include_mcp=include_mcp)]


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Nothing has been loaded yet, and what this test loads is not kept."""
    vectors._load_table.cache_clear()
    yield
    vectors._load_table.cache_clear()


# What is found


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("pay back a buyer", "issue_refund"),
        ("shrink a photograph", "resize_image"),
        ("rain and snow tomorrow", "get_forecast"),
        ("erase a directory", "delete_path"),
        ("hear audio tracks", "play_music"),
        ("hearAudioTracks", "play_music"),
        ("SHRINK A PHOTOGRAPH", "resize_image"),
    ],
)
def test_other_words_of_the_same_meaning_find_their_document(query: str, best: str) -> None:
    assert SearchIndex(TOOLS).search(query, 8) == []
    assert find(query)[0] == best


def test_who_asks_for_several_things_finds_each_of_them() -> None:
    asked = "Shrink a photograph. Then pay back a buyer! Hear audio tracks; erase a directory."
    wanted = {"resize_image", "issue_refund", "play_music", "delete_path"}
    assert set(find(asked, 4)) == wanted


def test_a_query_of_too_many_clauses_costs_no_more_than_a_few() -> None:
    asked = " ".join(f"Shrink photograph {number}." for number in range(50))
    assert len(split_clauses(asked)) == search.MAX_CLAUSES
    assert find(asked)[0] == "resize_image"


@pytest.mark.parametrize("query", ["weather", "send message", "recipient", "remove file"])
def test_what_words_find_is_found_still(query: str) -> None:
    by_words = [NAMES[position] for position, _ in SearchIndex(TOOLS).search(query, 8)]
    assert set(by_words) <= set(find(query))
    assert find(query)[0] == by_words[0]


def test_requests_in_other_words_are_answered_more_than_twice_as_often() -> None:
    """The numbers of `bench/search_quality.py`, with room for the next change of a constant."""
    tools, asked = read_asked()
    among = [*tools, *islice(unasked(), 1_000 - len(tools))]
    words, both = SearchIndex(among, tables.load_related()), rank(among)
    others = asked["other words"]
    assert measure(both, others).hit > 0.85 > measure(words, others).hit > 0.7
    assert measure(SearchIndex(among), others).hit < 0.4
    assert measure(both, asked["keywords"]).hit >= measure(words, asked["keywords"]).hit > 0.95
    assert measure(both, asked["keywords"]).reciprocal > 0.95
    unanswered = read_unanswered()
    for ranker in (words, both):
        answered = [text for text in unanswered if ranker.search(text, LIMIT)]
        strong = [text for text in answered if words.strength(text) >= search.WEAK_STRENGTH]
        assert len(strong) / len(unanswered) < 0.25
        assert len(answered) / len(unanswered) < 0.5


def test_the_measurement_counts_hits_ranks_and_answers() -> None:
    index = SearchIndex([Document("read_file"), Document("file"), Document("other")])
    made = measure(index, [Request("file", 0), Request("file", 1), Request("zork", 2)])
    assert made[:4] == pytest.approx((2 / 3, 1 / 3, (1 + 1 / 2) / 3, 4 / 3))


# What is left out


@pytest.mark.parametrize("query", ["", "   ", "the of a", "?!.,", "_-_", "\0", "\ud800", "to the"])
def test_a_query_without_a_usable_word_finds_nothing(query: str) -> None:
    assert find(query) == []


@pytest.mark.parametrize(
    "query", ["tame a horse", "knit a scarf", "xqzvk", "ukkbfwcc trcxdgbfa", "祝你生日快乐", "7 42"]
)
def test_a_poor_match_is_not_used_as_filler(query: str) -> None:
    assert find(query) == []


def test_a_word_that_the_table_does_not_know_means_nothing() -> None:
    table = vectors._load_table()
    assert table is not None
    assert table.add_up("invoices") is not None
    for word in ("xqzvkj", "q7x9z", "祝快", "🎉", "xy" * 1_000_000):
        assert table.add_up(word) is None


def test_words_decide_where_meaning_is_not_known() -> None:
    among = [Document("创建问题", description="在仓库中创建一个新问题"), Document("删除文件")]
    assert find("问题", among=among) == ["创建问题"]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_finds_nothing(limit: int) -> None:
    assert find("weather", limit) == []


def test_an_empty_index_finds_nothing() -> None:
    assert rank([]).search("weather", 8) == []


def test_documents_without_a_word_are_in_nobodys_way() -> None:
    assert find("weather", among=[Document(""), *TOOLS, Document("_")])[0] == "get_forecast"
    assert find("weather", among=[Document(""), Document("?")]) == []


# In which order


def test_equal_documents_are_ordered_by_position() -> None:
    found = rank([Document("vehicle")] * 5).search("car", 3)
    assert [position for position, _ in found] == [0, 1, 2]
    assert len({score for _, score in found}) == 1


@quickly
@given(st.lists(documents, max_size=30), texts, st.integers(1, 8))
def test_scores_fall_and_positions_are_unique(
    among: list[Document], query: str, limit: int
) -> None:
    found = rank(among).search(query, limit)
    assert [score for _, score in found] == sorted((s for _, s in found), reverse=True)
    assert len({position for position, _ in found}) == len(found) <= limit
    assert all(0 < score <= 1 + 1e-9 for _, score in found)


@quickly
@given(st.lists(documents, min_size=1, max_size=20), texts)
def test_the_same_documents_give_the_same_answer(among: list[Document], query: str) -> None:
    ranker = rank(among)
    first = ranker.search(query, 8)
    ranker.search("read web page", 8)
    assert ranker.search(query, 8) == rank(list(among)).search(query, 8) == first


def test_no_order_of_adding_changes_a_cosine() -> None:
    """What makes the answers the same on every machine, whatever its linear algebra does."""
    import numpy as np

    table = vectors._load_table()
    assert table is not None
    matrix = table.embed(SearchIndex(TOOLS), len(TOOLS))
    query = table.add_up("shrink photograph")
    assert query is not None
    exact = matrix.astype(np.int64) @ query.astype(np.int64)
    order = np.random.default_rng(7).permutation(matrix.shape[1])
    for columns in (slice(None), slice(None, None, -1), order):
        assert (matrix[:, columns] @ query[columns] == exact).all()
    assert abs(exact).max() < 2**24


@quickly
@given(st.text(alphabet=st.characters(), max_size=40))
def test_no_text_breaks_it(text: str) -> None:
    ranker = rank([Document(text, text, text, text), Document("read_file")])
    assert all(0 <= position < 2 for position, _ in ranker.search(text, 8))


# In a catalog


def test_an_exact_name_or_id_comes_first() -> None:
    near = tool("automobile_rental", "Rent an automobile, a car, a vehicle")
    odd = tool("car", "Concatenates archives")
    catalog = Catalog([near, odd], ranker=choose_ranker(required=True))
    assert names(catalog, "car")[0] == "car"
    assert names(catalog, " OPENCLAW:core:car ")[0] == "car"
    assert "automobile_rental" in names(catalog, "car")


def test_parameter_names_of_strangers_are_not_searched() -> None:
    ours = tool("one", "Does it", "openclaw", "vehicle")
    theirs = [tool("two", "Does it", "client", "vehicle"), tool("three", "Does it", "mcp", "auto")]
    catalog = Catalog([ours, *theirs], ranker=choose_ranker(required=True))
    assert names(catalog, "car", include_mcp=True) == ["one"]


def test_mcp_tools_are_found_only_by_whom_they_are_shown_to() -> None:
    catalog = Catalog(
        [tool("refund", "Return a charge", "mcp"), tool("ping")], ranker=choose_ranker()
    )
    assert names(catalog, "pay back a fee") == []
    assert names(catalog, "pay back a fee", include_mcp=True) == ["refund"]


def test_a_catalog_goes_by_words_unless_it_is_told_otherwise() -> None:
    tools = [tool(document.name, document.description) for document in TOOLS]
    assert names(Catalog(tools), "pay back a buyer") == []
    found = names(Catalog(tools, ranker=choose_ranker()), "pay back a buyer")
    assert found[0] == "issue_refund"


# Without the extra


def test_without_the_extra_words_rank_unless_it_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert choose_ranker() is go_by_words
    with pytest.raises(MissingExtra, match=r"numpy.*clawmode\[search\]"):
        choose_ranker(required=True)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"clawmode" + bytes(60)])
def test_a_table_that_cannot_be_read_leaves_the_words(
    content: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    related = tables.load_related()
    (tmp_path / tables.VECTORS).write_bytes(content)
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    ranker, words = rank(TOOLS), SearchIndex(TOOLS, related)
    with caplog.at_level(logging.ERROR, "clawmode.search"):
        for query in ("weather", "erase a directory"):
            assert ranker.search(query, 8) == words.search(query, 8)
    assert len(caplog.records) == 1


# What it costs


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=15, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_is_loaded_before_the_first_search() -> None:
    code = """
import sys
from clawmode.catalog.catalog import Catalog
from clawmode.tools.tool import Tool
from clawmode.catalog.vectors import choose_ranker
heavy = {"numpy"}
tools = [Tool(f"get_{n}", "Get a thing", {}, print) for n in range(9)]
catalog = Catalog(tools, ranker=choose_ranker(required=True))
catalog.all_tools_json, catalog.index_text(900), catalog.resolve("get_1")
before = heavy & sys.modules.keys()
catalog.search("get one thing", 8)
print(sorted(before), sorted(heavy & sys.modules.keys()))
"""
    assert run_python(code) == "[] ['numpy']"


def test_nothing_is_fetched_and_nobody_elses_logging_is_set_up() -> None:
    code = """
import logging, socket, sys
def refuse(*args, **kwargs): raise AssertionError("went to the network")
socket.socket = socket.create_connection = socket.getaddrinfo = refuse
from clawmode.catalog.search import Document, SearchIndex
from clawmode.catalog.vectors import VectorRanker
documents = [Document("delete_path", description="Remove a file or folder")]
found = VectorRanker(documents, SearchIndex(documents)).search("erase a directory", 8)
print(len(found), logging.getLogger().handlers)
"""
    assert run_python(code) == "1 []"


def test_only_the_beginning_of_a_huge_text_is_read() -> None:
    huge = Document("thing", description="word " * search.MAX_FIELD_CHARS + "automobile " * 500)
    assert find("vehicle", among=[huge]) == []
    assert find("nothing " * 1_000 + "erase a directory") == []


def test_ten_thousand_tools_are_read_once_and_searched_quickly() -> None:
    """Generous: the bench has the numbers, 0.25 s to embed 10,000 tools and 0.5 ms a search."""
    among = list(islice(unasked(), 10_000))
    began = time.process_time()
    ranker = rank(among)
    assert time.process_time() - began < 2
    ranker.search("warm", 8)
    began = time.process_time()
    for _ in range(20):
        ranker.search("authorise an insurance policy", 8)
    assert (time.process_time() - began) / 20 < 0.02


@quickly
@given(st.text(string.ascii_letters + "_ 1é", max_size=30))
def test_parts_of_identifiers_are_small_and_no_stop_words(text: str) -> None:
    parts = split_identifier(text)
    assert all(part == part.casefold() and part not in ("the", "a") for part in parts)
    assert split_identifier("theHTTPServer2") == ["http", "server", "2"]
