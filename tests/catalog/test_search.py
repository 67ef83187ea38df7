"""Search: what a person's words find, in which order, and what is left out."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import examples

from clawmode.catalog import search
from clawmode.catalog.search import Document, Ranker, SearchIndex
from clawmode.catalog.words import stem, terms_of
from clawmode.tools import near_names
from clawmode.tools.near_names import NearNames

TOOLS = [
    Document("read_file", "", "Read the contents of a local file", "path encoding"),
    Document("write_file", "", "Write text to a file", "path content"),
    Document("sendEmail", "Mail", "Send a message to a person", "recipient subject"),
    Document("web-search", "", "Search the web and answer with pages", "query"),
    Document("create_invoice", "", "Create an invoice for a customer", "customer_id amount"),
    Document("refund_payment", "", "Give money back to a customer", "payment_id"),
    Document("GitHub_createIssue", "", "Open an issue in a repository", "title body"),
    Document("http2_probe", "", "Checks an HTTPServer over OAuth2", "url"),
]
NAMES = [document.name for document in TOOLS]
WORDS = ["read", "write", "file", "web", "search", "mail", "issue", "get", "user", "page", "the"]

quickly = examples(100, derandomize=True)
texts = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
documents = st.builds(Document, texts, texts, texts, texts)


def find(query: str, limit: int = 8, among: list[Document] = TOOLS) -> list[str]:
    return [among[position].name for position, _ in SearchIndex(among).search(query, limit)]


def scores_in_full(index: SearchIndex, query: str) -> dict[int, float]:
    """Every score, added up the plain way."""
    made: dict[int, float] = {}
    for term in search.query_terms(query):
        if index._has(term):
            for position, score in index._posting(term).scores.items():
                made[position] = made.get(position, 0.0) + score
    return made


# What is found


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("read local file", "read_file"),
        ("send an email", "sendEmail"),
        ("search web", "web-search"),
        ("money back", "refund_payment"),
        ("mail", "sendEmail"),
        ("recipient", "sendEmail"),
        ("http server", "http2_probe"),
        ("2", "http2_probe"),
        ("create issue", "GitHub_createIssue"),
        ("CREATE ISSUE", "GitHub_createIssue"),
        ("createIssue", "GitHub_createIssue"),
        ("github", "GitHub_createIssue"),
        ("git hub", "GitHub_createIssue"),
    ],
)
def test_words_in_any_spelling_find_their_document(query: str, best: str) -> None:
    assert find(query)[0] == best


@pytest.mark.parametrize("query", ["searches", "searching", "searched the webs"])
def test_another_form_of_a_word_finds_the_same(query: str) -> None:
    assert find(query) == ["web-search"]


def test_accents_do_not_matter() -> None:
    among = [Document("résumé_parser"), Document("other")]
    assert find("RESUME", among=among) == ["résumé_parser"]
    assert find("Résumé", among=[Document("resume")]) == ["resume"]


def test_texts_without_spaces_are_found_by_a_part_of_them() -> None:
    among = [Document("创建问题", description="在仓库中创建一个新问题"), Document("删除文件")]
    assert find("问题", among=among) == ["创建问题"]
    assert find("文件", among=among) == ["删除文件"]


@pytest.mark.parametrize("query", ["", "   ", "the of a", "?!.,", "_-_", "\0", "to the"])
def test_a_query_without_a_usable_word_finds_nothing(query: str) -> None:
    assert find(query) == []
    assert SearchIndex(TOOLS).unmatched(query) == []


def test_an_empty_index_finds_nothing() -> None:
    assert SearchIndex([]).search("file", 8) == []
    assert SearchIndex([]).unmatched("a file") == ["file"]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_finds_nothing(limit: int) -> None:
    assert find("file", limit) == []


def test_a_limit_keeps_the_best() -> None:
    assert find("read file", 1) == ["read_file"]


def test_two_words_find_what_is_written_as_one() -> None:
    among = [Document("GOOGLECALENDAR_LIST"), Document("list_timezones"), Document("list_other")]
    assert find("Google Calendar", among=among) == ["GOOGLECALENDAR_LIST"]
    assert find("time zone", among=among) == ["list_timezones"]
    assert SearchIndex(among).unmatched("google calendar, List Zorkmids") == ["zorkmids"]


# In which order


def test_the_form_that_was_asked_for_comes_first() -> None:
    among = [Document("get_team"), Document("get_teams")]
    assert find("team", among=among) == ["get_team", "get_teams"]
    assert find("teams", among=among) == ["get_teams", "get_team"]


def test_a_word_in_the_name_outweighs_the_same_word_in_prose() -> None:
    among = [Document("a1", description="about weather"), Document("weather", description="about")]
    assert find("weather", among=among) == ["weather", "a1"]


def test_a_rare_word_outweighs_a_common_one() -> None:
    common = [Document(f"get_{letter}") for letter in string.ascii_lowercase]
    assert find("get invoice", among=[*common, Document("invoice")])[0] == "invoice"


def test_a_short_text_outweighs_a_long_one() -> None:
    long = Document("one", description="weather " + "and much more of other things " * 20)
    assert find("weather", among=[long, Document("two", description="weather")])[0] == "two"


def test_equal_documents_are_ordered_by_position() -> None:
    found = SearchIndex([Document("same")] * 5).search("same", 3)
    assert [position for position, _ in found] == [0, 1, 2]
    assert len({score for _, score in found}) == 1


@quickly
@given(st.lists(documents, max_size=30), texts)
def test_scores_fall_and_positions_are_unique(among: list[Document], query: str) -> None:
    found = SearchIndex(among).search(query, 8)
    scores = [score for _, score in found]
    assert scores == sorted(scores, reverse=True)
    assert len({position for position, _ in found}) == len(found) <= 8


@quickly
@given(st.lists(documents, min_size=1, max_size=30), texts)
def test_skipping_hopeless_documents_changes_no_answer(among: list[Document], query: str) -> None:
    index = SearchIndex(among)
    full = scores_in_full(index, query)
    found = index.search(query, len(among))
    assert dict(found) == pytest.approx({position: full[position] for position, _ in found})
    left_out = [full[position] for position in full.keys() - dict(found).keys()]
    best = max(full.values(), default=0.0)
    too_weak = index.strength(query) < search.MIN_STRENGTH
    least = best if too_weak else search.CUTOFF * best
    assert all(score < least + 1e-9 for score in left_out)


@quickly
@given(st.lists(documents, max_size=20), texts)
def test_the_same_documents_give_the_same_answer(among: list[Document], query: str) -> None:
    index = SearchIndex(among)
    first = index.search(query, 8)
    index.search("read web page", 8)
    assert index.search(query, 8) == SearchIndex(list(among)).search(query, 8) == first


# What is left out


def test_a_poor_match_is_not_used_as_filler() -> None:
    assert find("refund a customer payment") == ["refund_payment"]


def test_documents_that_share_only_a_common_word_with_the_query_are_no_answer() -> None:
    getters = [Document(f"get_{number}", description="Get a thing") for number in range(500)]
    assert find("get moon phase", among=getters) == []
    assert len(find("get", 8, getters)) == 8


def test_in_a_small_index_one_known_word_is_enough() -> None:
    assert find("weather tomorrow", among=[Document("ask", description="Tells weather")]) == ["ask"]


def test_words_that_occur_nowhere_are_told() -> None:
    index = SearchIndex(TOOLS)
    assert index.unmatched("Refund the Zorkmids, zorkmids of customers quux") == [
        "zorkmids",
        "quux",
    ]
    assert index.unmatched("reading files") == []


# Words to terms


@pytest.mark.parametrize(
    "forms",
    [
        "create creates created creating creation creator",
        "file files filed filing",
        "plan plans planned planning",
        "query queries querying queried",
        "analyze analyzes analyzing analysis analyses analyse analyzer",
        "summarize summarizing summarization summarizer",
        "box boxes",
        "address addresses",
        "use uses used using",
        "movie movies",
        "embed embeds embedding embedded",
        "apply applies applied applying",
        "rate rates rated rating",
        "set sets setting settings",
        "translate translator translation translations",
        "month months monthly",
        "feed feeds feeding",
        "id ids",
    ],
)
def test_forms_of_a_word_are_one_term(forms: str) -> None:
    assert len({stem(form) for form in forms.split()}) == 1


@pytest.mark.parametrize(
    "words",
    [
        "custom customer",
        "plan plane",
        "note not",
        "new news",
        "station state",
        "use user",
        "car care",
    ],
)
def test_words_that_only_look_alike_stay_apart(words: str) -> None:
    one, other = words.split()
    assert stem(one) != stem(other)


@pytest.mark.parametrize(
    ("word", "terms"),
    [
        ("parseJSON", ("pars", "json", "parsejson")),
        ("HTTPServer", ("http", "server", "httpserver")),
        ("GitHub", ("git", "hub", "github")),
        ("base64", ("base", "64", "base64")),
        ("IDs", ("ds", "id")),
        ("The", ()),
        ("42", ("42",)),
        ("Файл", ("файл",)),
    ],
)
def test_an_identifier_is_found_by_its_parts_and_as_a_whole(
    word: str, terms: tuple[str, ...]
) -> None:
    assert terms_of(word) == tuple(dict.fromkeys(terms))


@quickly
@given(st.text(alphabet=st.characters(), max_size=40))
def test_no_text_breaks_the_index_or_a_search(text: str) -> None:
    index = SearchIndex([Document(text, text, text, text), Document("read_file")])
    index.search(text, 8)
    assert isinstance(index.unmatched(text), list)


@quickly
@given(st.text(string.ascii_lowercase, min_size=1, max_size=12))
def test_no_word_is_stemmed_to_nothing(word: str) -> None:
    assert stem(word)


# What a stranger's text can cost


def test_only_the_beginning_of_a_huge_text_is_read() -> None:
    huge = Document("huge", description="word " * search.MAX_FIELD_CHARS + "needle")
    assert find("needle", among=[huge]) == []
    assert find("word", among=[huge]) == ["huge"]


def test_only_the_beginning_of_a_huge_query_is_read() -> None:
    query = "nothing " * search.MAX_QUERY_CHARS + "invoice"
    assert find(query) == []
    assert SearchIndex(TOOLS).unmatched(query) == ["nothing"]


def test_a_query_of_too_many_words_uses_the_rarest(monkeypatch: pytest.MonkeyPatch) -> None:
    among = [*[Document("common")] * 3, Document("rare")]
    assert find("common rare", among=among) == ["rare", "common", "common", "common"]
    monkeypatch.setattr(search, "MAX_QUERY_TERMS", 1)
    assert find("common rare", among=among) == ["rare"]


def test_a_word_of_any_length_is_found() -> None:
    word = "x" * 3_000
    assert find(word, among=[Document(word)]) == [word]


# Names that were misspelt


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("read_fil", "read_file"),
        ("ReadFile", "read_file"),
        ("websearch", "web-search"),
        ("create_invoce", "create_invoice"),
        ("payment_refund", "refund_payment"),
    ],
)
def test_the_name_that_was_meant_is_near(misspelt: str, meant: str) -> None:
    assert NAMES[NearNames(NAMES).find(misspelt, 3)[0]] == meant


@pytest.mark.parametrize("name", ["", "z", "qqqqqq", "\N{PILE OF POO}" * 9, "x" * 100_000])
def test_nothing_is_near_a_name_like_no_other(name: str) -> None:
    assert NearNames(NAMES).find(name, 3) == []


@quickly
@given(st.lists(st.text(max_size=12), max_size=20), st.text(max_size=12))
def test_a_name_is_nearest_to_itself(names: list[str], name: str) -> None:
    found = NearNames([*names, name]).find(name, 1)
    assert [[*names, name][position].casefold() for position in found] == [name.casefold()]


@quickly
@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_likeness_counts_the_letters_that_two_names_have_in_the_same_order(a: str, b: str) -> None:
    row = [0] * (len(b) + 1)
    for x in a:
        above = row
        row = [0]
        for at, y in enumerate(b):
            row.append(above[at] + 1 if x == y else max(above[at + 1], row[at]))
    assert near_names._Likeness(a, set())._common(b) == row[-1]


@pytest.mark.covers("B-3")
def test_a_misspelt_name_among_ten_thousand_is_compared_with_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"create_issue_in_project_{number}" for number in range(10_000)]
    near, compared = NearNames(names), list[str]()
    to = near_names._Likeness.to
    monkeypatch.setattr(
        near_names._Likeness, "to", lambda it, name: compared.append(name) or to(it, name)
    )
    assert names[near.find("creat_isue_in_projct_4711", 3)[0]] == "create_issue_in_project_4711"
    assert len(compared) <= near_names.MAX_COMPARED


def test_another_ranker_can_take_its_place() -> None:
    ranker: Ranker = SearchIndex(TOOLS)
    assert ranker.search("invoice", 1)[0][0] == NAMES.index("create_invoice")


@pytest.mark.hostile
def test_a_tool_that_repeats_a_word_does_not_win_it() -> None:
    stuffed = [*TOOLS, Document("best", "", "invoice " * 100_000, "invoice " * 100_000)]
    assert find("invoice", among=stuffed)[0] == "create_invoice"
