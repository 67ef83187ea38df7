"""Search by words and related words: BM25F over split identifiers, in plain Python.

An index knows texts and positions, not tools: the caller decides which texts are searchable. The
score of a term in each document is computed once, so a search only adds scores. Equal documents in
equal order give equal results on every machine.

A query for several things is near to none of them as a whole, so each clause is also ranked alone.

Written by hand: the engines that we measured (SQLite's FTS5, bm25s, tantivy) find the same tools,
and this one needs no library and no second copy of the texts.
"""

import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import chain, pairwise
from typing import NamedTuple, Protocol, TypeAlias

from clawmode.catalog.words import FORM_MARK, split_words, stems_of, terms_and_forms, terms_of

# A word in a name counts more than the same word in prose. Tuned on every other request of three
# public data sets (Seal-Tools, Bifrost, MetaTool), within the usual range of BM25F;
# `bench/search.py` measures all requests.
K1 = 2.0
WEIGHTS = (3.0, 2.0, 1.0, 1.0, 2.0, 0.5)  # the fields of a Document
B = (0.75, 0.75, 0.5, 0.75, 0.5, 0.75)  # how much the length of a field lowers its scores
FORM = 1 / 3  # the share of the exact form: a query for `teams` wants `get_teams` before `get_team`

# Matches below this share of the best score are dropped. On the same data sets, 0.35 costs at most
# 0.4 points of recall at 8 and drops up to a third of the results at 20; 0.5 costs 3 points at 8,
# and 15 at 20.
CUTOFF = 0.35

# The strength of a query is its best score, as a share of what a word that only one name has would
# score; it is 1 if every word of the query occurs. Below the lower threshold nothing is returned;
# below the higher one the hits are marked as weak. Of 40 requests that no tool answers, 68 % and
# 88 % stay below them among 1,000 tools; of the requests of people in `bench/data`, 2 % and 10 %.
MIN_STRENGTH = 0.15
WEAK_STRENGTH = 0.3

# A related word counts by its cosine, and more if no document has the word itself. One that cannot
# come near to the score of the best word for the same meaning is skipped: it is a common word, and
# expensive. 0.2 saves a fifth of the time and costs nothing.
ABSENT = 1.5
MIN_WORTH = 0.2

MIN_RARITY_BASE = 20  # with fewer documents, document frequencies say little about a word

# Bounds on the cost of untrusted text.
MAX_FIELD_CHARS = 4_000
MAX_REPEATS = 4
"""How often a word of a text counts: otherwise a tool that repeats a word wins it."""
MAX_QUERY_CHARS = 1_000
MAX_QUERY_TERMS = 128
MAX_CLAUSES = 8


_CLAUSE_END = re.compile(r"[.!?;]+\s|\n|\b(?:and|then)\b", re.IGNORECASE)


class Document(NamedTuple):
    """The searchable texts of one document."""

    name: str
    label: str = ""
    description: str = ""
    parameters: str = ""
    server: str = ""
    details: str = ""


class RelatedWords(Protocol):
    """Knows which words mean nearly the same. `tables` has an implementation."""

    def of(self, stem: str) -> list[tuple[str, float]]:
        """Returns the stems of related words and their cosines."""
        ...


class Ranker(Protocol):
    """Ranks documents for a query. `vectors` has an implementation that ranks by meaning."""

    def search(self, query: str, limit: int) -> list[tuple[int, float]]:
        """Returns positions and scores of at most `limit` documents, the best first."""
        ...


class _Posting(NamedTuple):
    """The score of a term in each document that has it, and the maximum of these scores."""

    scores: dict[int, float]
    bound: float


class _Group(NamedTuple):
    """The words that one word of a query can match; for each document, the best one counts.

    Attributes:
        own: The word itself: its stem and its exact form, whose scores are added.
        related: Related words and their weights.
        bound: No document has a higher score.
    """

    own: list[_Posting]
    related: list[tuple[float, _Posting]]
    bound: float

    def merge(self) -> dict[int, float]:
        """Returns the score of every document that has one of the words."""
        scores: dict[int, float] = {}
        for posting in self.own:
            if not scores:
                scores = posting.scores.copy()
                continue
            for position, score in posting.scores.items():
                scores[position] = scores.get(position, 0.0) + score
        for weight, posting in self.related:
            for position, score in posting.scores.items():
                if (worth := weight * score) > scores.get(position, 0.0):
                    scores[position] = worth
        return scores

    def add_to(self, scores: dict[int, float]) -> None:
        """Adds to the scores of documents that are already scored."""
        postings = len(self.own) + len(self.related)
        entries = sum(len(posting.scores) for posting in self.own)
        entries += sum(len(posting.scores) for _, posting in self.related)
        if entries < postings * len(scores):
            merged = self.merge()
            for position in scores.keys() & merged.keys():
                scores[position] += merged[position]
            return
        for position in scores:
            best = 0.0
            for posting in self.own:
                best += posting.scores.get(position, 0.0)
            for weight, posting in self.related:
                if (worth := weight * posting.scores.get(position, 0.0)) > best:
                    best = worth
            scores[position] += best


class _Ranking(NamedTuple):
    query: str
    scores: dict[int, float]
    strength: float


class SearchIndex:
    """Ranks documents by BM25F.

    The constructor reads every text. A term is weighed when a query first has it, because most
    terms never occur in a query.

    Args:
        documents: The documents. Equal scores are ordered by position.
        related: Finds related words; None to match only the words of the query.
    """

    def __init__(self, documents: Sequence[Document], related: RelatedWords | None = None) -> None:
        self._base = max(len(documents), MIN_RARITY_BASE)
        self._fields = [
            _read_field(texts, weight, b)
            for texts, weight, b in zip(zip(*documents, strict=True), WEIGHTS, B, strict=False)
        ]
        self._terms = set(chain.from_iterable(field.places for field in self._fields))
        self._postings: dict[str, _Posting] = {}
        self._table = related
        self._related: dict[str, list[tuple[float, _Posting]]] = {}
        self._last = _Ranking("", {}, 1.0)

    def search(self, query: str, limit: int) -> list[tuple[int, float]]:
        """Returns at most `limit` positions and scores, the best first, without poor matches."""
        _, scores, strength = self._rank(query)
        if not scores or limit < 1 or strength < MIN_STRENGTH:
            return []
        least = CUTOFF * max(scores.values())
        good = [(-score, position) for position, score in scores.items() if score >= least]
        return [(position, -score) for score, position in nsmallest(limit, good)]

    def strength(self, query: str) -> float:
        """Returns how well the best match fits, at most 1; compare with the two thresholds."""
        return self._rank(query).strength

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

    def places(self) -> "list[dict[str, array[int]]]":
        """Returns for each field the positions of each term, one for each occurrence."""
        return [field.places for field in self._fields]

    def _has(self, term: str) -> bool:
        return term in self._terms

    def _rank(self, query: str) -> "_Ranking":
        """Returns the scores of a query, which are kept until the next one."""
        if (last := self._last).query == query:
            return last
        scores = self._score(query)
        best = max(scores.values(), default=0.0)
        if scores and len(clauses := split_clauses(query)) > 1:
            scores = _add_clauses(scores, [self._score(clause) for clause in clauses])
        usual = (K1 + 1) * _rarity(self._base, 0)
        # A word that no document has would have scored high. Otherwise, the query `get the moon
        # phase` would return every tool with `get` in its name.
        strength = min(best / usual, 1.0) if self.unmatched(query) else 1.0
        if not any(map(self._has, query_terms(query))):  # nothing but related words
            strength /= ABSENT
        made = self._last = _Ranking(query, scores, strength)
        return made

    def _score(self, query: str) -> dict[int, float]:
        """Returns scores by position; poor matches may be left out."""
        words = _query_words(query)
        of_words = _group_terms(words)
        of_pairs = _group_terms(map("".join, _neighbours(words)))
        groups = [self._group(terms, self._find_related(stem)) for stem, terms in of_words.items()]
        groups += [
            self._group(terms, []) for stem, terms in of_pairs.items() if stem not in of_words
        ]
        return _add_up([group for group in groups if group.bound])

    def _group(self, terms: list[str], related: list[tuple[float, _Posting]]) -> _Group:
        own = [self._posting(term) for term in terms if self._has(term)]
        bound = sum(posting.bound for posting in own)
        if related:
            weight, posting = related[0]
            bound = max(bound, weight * posting.bound)
        worthy = [each for each in related if each[0] * each[1].bound >= MIN_WORTH * bound]
        return _Group(own, worthy, bound)

    def _find_related(self, stem: str) -> list[tuple[float, _Posting]]:
        """Returns the related words that documents have, with their weights, the best first."""
        if self._table is None:
            return []
        if stem not in self._related:
            own = self._rarity_of(stem)
            factor = 1.0 if self._has(stem) else ABSENT
            found = [
                (factor * cosine * min(1.0, own / self._rarity_of(other)), self._posting(other))
                for other, cosine in self._table.of(stem)
                if self._has(other)
            ]
            found.sort(key=lambda each: -each[0] * each[1].bound)
            self._related[stem] = found
        return self._related[stem]

    def _rarity_of(self, stem: str) -> float:
        count = len(self._posting(stem).scores) if self._has(stem) else 0
        return _rarity(self._base, count)

    def _posting(self, term: str) -> _Posting:
        if term in self._postings:
            return self._postings[term]
        frequencies: dict[int, float] = {}
        for places, worth in self._fields:
            for position in places.get(term, ()):
                frequencies[position] = frequencies.get(position, 0.0) + worth[position]
        share = FORM if term.startswith(FORM_MARK) else 1 - FORM
        most = share * _rarity(self._base, len(frequencies)) * (K1 + 1)
        scores = {at: most * frequency / (frequency + K1) for at, frequency in frequencies.items()}
        made = self._postings[term] = _Posting(scores, max(scores.values()))
        return made


RankerMaker: TypeAlias = Callable[[Sequence[Document], SearchIndex], Ranker]
"""Makes a ranker from documents and their index. Must not block."""


def go_by_words(documents: Sequence[Document], words: SearchIndex) -> Ranker:
    """Returns `words` itself: the `RankerMaker` for ranking by words alone."""
    return words


def split_clauses(query: str) -> list[str]:
    """Returns the first clauses of a query that have a word."""
    parts = _CLAUSE_END.split(query[:MAX_QUERY_CHARS])
    return [part for part in dict.fromkeys(parts) if split_words(part)][:MAX_CLAUSES]


def query_terms(query: str) -> list[str]:
    """Returns the terms of a query: of its words, and of neighbours as one word (`time zone`)."""
    words = _query_words(query)
    wanted = chain(words, map("".join, _neighbours(words)))
    return list(dict.fromkeys(chain.from_iterable(map(terms_and_forms, wanted))))


def _group_terms(words: Iterable[str]) -> dict[str, list[str]]:
    """Returns the terms of words by stem: the stem itself, and the exact forms that have it."""
    groups: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for term in chain.from_iterable(map(terms_and_forms, words)):
        stems = stems_of(term[1:]) if term.startswith(FORM_MARK) else ()
        groups[stems[0] if stems else term][term] = None
    return {stem: list(terms) for stem, terms in groups.items()}


def _query_words(query: str) -> list[str]:
    return split_words(query[:MAX_QUERY_CHARS])


def _neighbours(words: list[str]) -> Iterator[tuple[str, str]]:
    return ((a.casefold(), b.casefold()) for a, b in pairwise(words) if len(a) > 1 < len(b))


def _rarity(base: int, count: int) -> float:
    """Returns the inverse document frequency of a term that `count` of `base` documents have."""
    return math.log(1 + (base - count + 0.5) / (count + 0.5))


def _add_up(groups: list[_Group]) -> dict[int, float]:
    """Returns scores by position; poor matches may be left out.

    Rare words come first. Once the remaining words together cannot lift a new document to `least`,
    they only add to documents that can still reach it, which makes common words cheap.
    """
    least = 0.0
    groups = sorted(groups, key=lambda group: -group.bound)[:MAX_QUERY_TERMS]
    left = sum(group.bound for group in groups)
    scores: dict[int, float] = {}
    for group in groups:
        if left >= least:
            others = group.merge()
            if len(scores) < len(others):  # walk the smaller one
                scores, others = others, scores
            for position, score in others.items():
                scores[position] = scores.get(position, 0.0) + score
        else:
            scores = {at: score for at, score in scores.items() if score + left >= least}
            group.add_to(scores)
        least = max(least, CUTOFF * max(scores.values(), default=0.0))
        left -= group.bound
    return scores


def _add_clauses(whole: dict[int, float], clauses: Sequence[dict[int, float]]) -> dict[int, float]:
    """Adds to the scores of a whole query those of the clause that a document matches best.

    The best match of every clause gets as much as the best match of the whole query.
    """
    best = max(whole.values())
    shares: dict[int, float] = {}
    for scores in clauses:
        most = max(scores.values(), default=0.0)
        for position, score in scores.items():
            if (share := score / most) > shares.get(position, 0.0):
                shares[position] = share
    made = whole.copy()
    for position, share in shares.items():
        made[position] = made.get(position, 0.0) + share * best
    return made


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
        if len(found) - len(set(found)) >= MAX_REPEATS:  # else no word is there more often
            counts = Counter(found).items()
            found = [word for word, count in counts for _ in range(min(count, MAX_REPEATS))]
        for word in found:
            words[word].append(position)
    places: dict[str, array[int]] = {}
    for word, positions in words.items():
        for term in terms_and_forms(word):
            places[term] = places[term] + positions if term in places else positions
    average = sum(lengths) / len(lengths) or 1.0
    # An occurrence in a long text counts less.
    return _Field(places, [weight / (1 - b + b * length / average) for length in lengths])
