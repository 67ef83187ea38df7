"""Search by words: BM25F over split identifiers, in plain Python.

An index knows texts and positions, not tools: the caller decides which texts are searchable. The
score of a term in each document is computed once, so a search only adds scores. Equal documents in
equal order give equal results on every machine.

Written by hand: the engines that we measured (SQLite's FTS5, bm25s, tantivy) find the same tools,
and this one needs no library and no second copy of the texts.
"""

import math
import re
import unicodedata
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from heapq import nsmallest
from itertools import chain, pairwise
from typing import NamedTuple, Protocol, TypeAlias

# A word in a name counts more than the same word in prose. Tuned on every other request of three
# public data sets (Seal-Tools, Bifrost, MetaTool), within the usual range of BM25F;
# `bench/search.py` measures all requests.
K1 = 2.0
WEIGHTS = (3.0, 2.0, 1.0, 1.0)  # the fields of a Document
B = (0.75, 0.75, 0.5, 0.75)  # how much the length of a field lowers the score of its words
FORM = 1 / 3  # the share of the exact form: a query for `teams` wants `get_teams` before `get_team`

# Matches below this share of the best score are dropped. On the same data sets, 0.35 costs at most
# 0.4 points of recall at 8 and drops up to a third of the results at 20; 0.5 costs 3 points at 8,
# and 15 at 20.
CUTOFF = 0.35

MIN_RARITY_BASE = 20  # with fewer documents, document frequencies say little about a word

# Bounds on the cost of untrusted text.
MAX_FIELD_CHARS = 4_000
MAX_QUERY_CHARS = 1_000
MAX_QUERY_TERMS = 128
MAX_WORD_CHARS = 64


STOP_WORDS = frozenset(
    "a an and any are as at be by can could do does for from has have how i if in into is it its "
    "let me my of on or our please s should so some t that the their them then these they this "
    "those to us want was we were what when which will with would you your".split()
)

_WORD = re.compile(r"[^\W_]+")
_ASCII_WORD = re.compile(r"[A-Za-z0-9]+")  # the same for plain text, twice as fast
_FORM_MARK = "="  # in no word
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^A-Za-z0-9]+")


class Document(NamedTuple):
    """The searchable texts of one document."""

    name: str
    label: str = ""
    description: str = ""
    parameters: str = ""


class Ranker(Protocol):
    """Ranks documents for a query. `vectors` has an implementation that ranks by meaning."""

    def search(self, query: str, limit: int) -> list[tuple[int, float]]:
        """Returns positions and scores of at most `limit` documents, the best first."""
        ...


RankerMaker: TypeAlias = Callable[[Sequence[Document], Ranker], Ranker]
"""Makes a ranker from documents and a ranker that ranks these by words. Must not block."""


def go_by_words(documents: Sequence[Document], words: Ranker) -> Ranker:
    """Returns `words` itself: the `RankerMaker` for ranking by words alone."""
    return words


class _Posting(NamedTuple):
    """The score of a term in each document that has it, and the maximum of these scores."""

    scores: dict[int, float]
    bound: float


class SearchIndex:
    """Ranks documents by BM25F.

    The constructor reads every text. A term is weighed when a query first has it, because most
    terms never occur in a query.

    Args:
        documents: The documents. Equal scores are ordered by position.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        self._base = max(len(documents), MIN_RARITY_BASE)
        self._fields = [
            _read_field(texts, weight, b)
            for texts, weight, b in zip(zip(*documents, strict=True), WEIGHTS, B, strict=False)
        ]
        self._postings: dict[str, _Posting] = {}

    def search(self, query: str, limit: int) -> list[tuple[int, float]]:
        """Returns at most `limit` positions and scores, the best first, without poor matches."""
        postings = [self._posting(term) for term in query_terms(query) if self._has(term)]
        if not postings or limit < 1:
            return []
        # A word that no document has would have scored high. Without this threshold, the query
        # `get the moon phase` would return every tool with `get` in its name.
        missing = CUTOFF * _rarity(self._base, 0) if self.unmatched(query) else 0.0
        scores, least = _add_up(postings, missing)
        good = [(-score, position) for position, score in scores.items() if score >= least]
        return [(position, -score) for score, position in nsmallest(limit, good)]

    def unmatched(self, query: str) -> list[str]:
        """Returns the words of the query, without stop words, that occur in no document."""
        words = _query_words(query)
        pairs = (
            pair for pair in _neighbours(words) if any(map(self._has, terms_of("".join(pair))))
        )
        known = set(chain.from_iterable(pairs))
        terms = {word.casefold(): terms_of(word) for word in words}
        return [
            word
            for word, of in terms.items()
            if of and word not in known and not any(map(self._has, of))
        ]

    def _has(self, term: str) -> bool:
        return any(term in field.places for field in self._fields)

    def _posting(self, term: str) -> _Posting:
        if term in self._postings:
            return self._postings[term]
        frequencies: dict[int, float] = {}
        for places, worth in self._fields:
            for position in places.get(term, ()):
                frequencies[position] = frequencies.get(position, 0.0) + worth[position]
        share = FORM if term.startswith(_FORM_MARK) else 1 - FORM
        most = share * _rarity(self._base, len(frequencies)) * (K1 + 1)
        scores = {at: most * frequency / (frequency + K1) for at, frequency in frequencies.items()}
        made = self._postings[term] = _Posting(scores, max(scores.values()))
        return made


def query_terms(query: str) -> list[str]:
    """Returns the terms of a query: of its words, and of neighbours as one word (`time zone`)."""
    words = _query_words(query)
    wanted = chain(words, map("".join, _neighbours(words)))
    return list(dict.fromkeys(chain.from_iterable(map(_terms_and_forms, wanted))))


def _query_words(query: str) -> list[str]:
    return split_words(query[:MAX_QUERY_CHARS])


def _neighbours(words: list[str]) -> Iterator[tuple[str, str]]:
    return ((a.casefold(), b.casefold()) for a, b in pairwise(words) if len(a) > 1 < len(b))


def _rarity(base: int, count: int) -> float:
    """Returns the inverse document frequency of a term that `count` of `base` documents have."""
    return math.log(1 + (base - count + 0.5) / (count + 0.5))


def _add_up(postings: list[_Posting], least: float) -> tuple[dict[int, float], float]:
    """Returns scores by position, and the minimum score of a match; lower scores may be partial.

    Rare terms come first. Once the remaining terms together cannot lift a new document to `least`,
    they only add to documents that are already scored, which makes common words cheap.
    """
    postings = sorted(postings, key=lambda posting: -posting.bound)[:MAX_QUERY_TERMS]
    left = sum(posting.bound for posting in postings)
    scores: dict[int, float] = {}
    for posting in postings:
        if left >= least:
            others = posting.scores
            if len(scores) < len(others):  # walk the smaller one, and never change a posting
                scores, others = others.copy(), scores
            for position, score in others.items():
                scores[position] = scores.get(position, 0.0) + score
        else:
            for position in scores.keys() & posting.scores.keys():
                scores[position] += posting.scores[position]
        least = max(least, CUTOFF * max(scores.values(), default=0.0))
        left -= posting.bound
    return scores, least


# ---- Building the index ----


class _Field(NamedTuple):
    """One field of all documents: the positions of each term, and the weight of an occurrence.

    `places` has arrays, with one item per occurrence: every garbage collection would walk lists.
    """

    places: "dict[str, array[int]]"
    worth: list[float]


def _read_field(texts: Sequence[str], weight: float, b: float) -> _Field:
    # Collected by word first, because stemming each distinct word once is cheaper.
    words: defaultdict[str, array[int]] = defaultdict(lambda: array("I"))
    lengths: list[int] = []
    for position, text in enumerate(texts):
        found = split_words(text[:MAX_FIELD_CHARS])
        lengths.append(len(found))
        for word in found:
            words[word].append(position)
    places: dict[str, array[int]] = {}
    for word, positions in words.items():
        for term in _terms_and_forms(word):
            places[term] = places[term] + positions if term in places else positions
    average = sum(lengths) / len(lengths) or 1.0
    # An occurrence in a long text counts less.
    return _Field(places, [weight / (1 - b + b * length / average) for length in lengths])


# ---- Words and terms ----


def split_words(text: str) -> list[str]:
    """Returns the words of a text, without accents; `snake_case` is two, `camelCase` one."""
    if text.isascii():
        return _ASCII_WORD.findall(text)
    letters = [c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)]
    return _WORD.findall(unicodedata.normalize("NFC", "".join(letters)))


def split_identifier(word: str) -> list[str]:
    """Returns the `camelCase` parts of a word, in lower case, without stop words."""
    parts: list[str] = _PART.findall(word)
    return [small for part in parts if (small := part.casefold()) not in STOP_WORDS]


def terms_of(word: str) -> tuple[str, ...]:
    """Returns the terms of a word: the stems of its `camelCase` parts, and of the whole word.

    With the whole word, the query `github` finds `GitHub`.
    """
    if word.isascii() and (word.isdecimal() or (word.isalpha() and word[1:].islower())):  # most
        return _stem_part(word.lower())
    parts: list[str] = _PART.findall(word)
    wanted = parts if len(parts) == 1 else [*parts, word]
    return tuple(dict.fromkeys(chain.from_iterable(_stem_part(p.casefold()) for p in wanted)))


def _terms_and_forms(word: str) -> list[str]:
    """Returns the terms of a word and its unstemmed forms, so that exact forms rank higher."""
    terms = terms_of(word)
    forms = [word.casefold()] if terms else []
    if len(terms) > 1:
        forms += split_identifier(word)
    return [*terms, *(_FORM_MARK + form[:MAX_WORD_CHARS] for form in forms)]


def _stem_part(part: str) -> tuple[str, ...]:
    if part in STOP_WORDS:
        return ()
    if part.isascii():
        short = part[:MAX_WORD_CHARS]
        return (stem(short) if part.isalpha() else short,)
    if part < "\u3040" or len(part) < 3:
        return (part,)
    return tuple(map("".join, pairwise(part)))  # Chinese and Japanese have no spaces between words


# ---- The stemmer ----
#
# It is light on purpose: endings that often change the meaning stay (`custom`, `customer`).

_VOWEL = re.compile(r"[aeiouy]")
_SHORT = re.compile(r"[^aeiouy]*[aeiouy][^aeiouwxy]")  # `rat` and `us`: ends in a lost `e`
_IRREGULAR = {"embed": "embed", "embeds": "embed", "news": "news"}
_DERIVATIONS = (
    ("ization", "iz"),
    ("izer", "iz"),
    ("ysis", "ys"),
    ("yzer", "ys"),
    ("yze", "ys"),
    ("yz", "ys"),
    ("ator", "at"),
    ("ion", ""),
    ("ly", ""),
)
_DERIVED = tuple(ending for ending, _ in _DERIVATIONS)


@lru_cache(maxsize=8192)  # names of tools repeat the same few words
def stem(word: str) -> str:
    """Removes English endings: `creates`, `created`, `creating` and `creation` are one term."""
    if len(word) < 3:
        return word
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-2] if word.endswith(("sses", "ies")) else word[:-1]
    word = _cut_derivation(_cut_tense(word))
    if len(word) < 4:
        return word
    if word.endswith("e") and not _SHORT.fullmatch(word[:-1]):
        return word[:-1]
    return f"{word[:-1]}i" if word.endswith("y") and word[-2] not in "aeiou" else word


def _cut_tense(word: str) -> str:
    for ending in ("ing", "ed"):
        root = word.removesuffix(ending)
        if root != word and len(root) > 1 and _VOWEL.search(root) and not word.endswith("eed"):
            if root[-1] == root[-2] and root[-1] not in "lsz":
                return root[:-1]  # `plann` becomes `plan`
            return f"{root}e" if _SHORT.fullmatch(root) else root  # `rat` becomes `rate`
    return word


def _cut_derivation(word: str) -> str:
    for ending, replacement in _DERIVATIONS if word.endswith(_DERIVED) else ():
        if word.endswith(ending):
            root = word.removesuffix(ending) + replacement
            return root if len(root) > 4 else word
    return word
