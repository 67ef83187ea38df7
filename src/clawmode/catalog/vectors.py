"""Search by meaning: a static vector for each word, combined with the search by words.

The only module that uses numpy, which comes with `clawmode[search]`. Nothing is loaded before the
first search. The vector of a text is the sum of the vectors of its words, in English, without word
order; `tables` reads the vectors of the words.
"""

import importlib.util
from collections.abc import Sequence
from functools import cache, cached_property, reduce
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from clawmode.catalog import tables
from clawmode.catalog.search import (
    MAX_QUERY_CHARS,
    Document,
    RankerMaker,
    SearchIndex,
    go_by_words,
    split_clauses,
)
from clawmode.catalog.words import split_words, terms_of
from clawmode.exceptions import MissingExtra

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float32]
    Doubles: TypeAlias = NDArray[np.float64]

# Adding shares of the best score gives more than fusing ranks, because the distance to the best
# result counts. Chosen on the sets of `bench/search.py`, so its figures flatter these constants.
MEANING = 0.6
FIELD_WEIGHTS = (1.5, 1.0, 1.0, 0.5, 1.0, 0.25)  # the fields of a Document, in quarters
MIN_COSINE = 0.2
NEAR = 0.4  # if words find nothing, the best cosine must be at least this
MIN_SHARE = 0.5  # of the best cosine

MAX_FUSED = 100  # results of each kind
BATCH = 20_000  # words that are added at once

# Makes results equal on every machine, in whatever order numpy adds: float64 adds the whole numbers
# of the table without rounding, and float32 holds every dot product of vectors in whole multiples
# of 1/PARTS.
PARTS = 2048


def choose_ranker(*, required: bool = False) -> RankerMaker:
    """Returns a ranker by words and meaning if `clawmode[search]` is installed, else by words.

    Args:
        required: True to raise an error instead of ranking by words alone.

    Raises:
        MissingExtra: The extra is required, but not installed.
    """
    if importlib.util.find_spec("numpy") is not None:
        return VectorRanker
    if required:
        raise MissingExtra("search", "numpy")
    return go_by_words


class VectorRanker:
    """Ranks by words and by meaning. Reads the documents at the first search.

    Args:
        documents: The documents.
        words: Ranks the same documents by words; used alone for queries of unknown words.
    """

    def __init__(self, documents: Sequence[Document], words: SearchIndex) -> None:
        self._size = len(documents)
        self._words = words

    def search(self, query: str, limit: int) -> list[tuple[int, float]]:
        """Returns at most `limit` positions and scores, the best first, without poor matches."""
        wanted = max(limit, MAX_FUSED)
        worded = dict(self._words.search(query, wanted))
        cosines = self._cosines(query) if limit > 0 else None
        if cosines is None:
            return list(worded.items())[: max(limit, 0)]
        if not worded and float(cosines.max()) < NEAR:
            return []
        least = max(MIN_COSINE, MIN_SHARE * float(cosines.max()))
        positions = (cosines >= least).nonzero()[0]
        order = (-cosines[positions]).argsort(kind="stable")[:wanted]
        near = {int(position): float(cosines[position]) for position in positions[order]}
        meaning = MEANING * self._known_share(query) if worded else 1.0
        most = max(worded.values(), default=1.0)
        nearest = max([MIN_COSINE, *near.values()])
        scores: list[tuple[float, int]] = []
        for position in worded.keys() | near.keys():
            by_word = worded.get(position, 0.0) / most
            by_meaning = max(float(cosines[position]), 0.0) / nearest
            scores.append((-(1 - meaning) * by_word - meaning * by_meaning, position))
        return [(position, -score) for score, position in sorted(scores)[:limit]]

    def _cosines(self, query: str) -> "Doubles | None":
        """Returns the cosine of every document with the query; None if no word is known.

        The cosine with the nearest clause counts as much as that with the whole query, because a
        query for several things is near to none of them as a whole.
        """
        whole = self._multiply(query)
        if whole is None or len(clauses := split_clauses(query)) < 2:
            return whole
        products = [
            product for clause in clauses if (product := self._multiply(clause)) is not None
        ]
        return (whole + reduce(_larger, products, whole)) / 2

    def _multiply(self, text: str) -> "Doubles | None":
        if self._space is None or (vector := self._space.table.add_up(text)) is None:
            return None
        return (self._space.matrix @ vector).astype("f8") / PARTS**2

    def _known_share(self, query: str) -> float:
        """Returns the share of the words of a query that have a vector: low for other languages."""
        stems, space = _stems(query), self._space
        return sum(map(space.table.knows, stems)) / len(stems) if space and stems else 0.0

    @cached_property
    def _space(self) -> "_Space | None":
        table = _load_table()
        return _Space(table, table.embed(self._words, self._size)) if table and self._size else None


def _larger(one: "Doubles", other: "Doubles") -> "Doubles":
    import numpy as np

    return np.maximum(one, other)


def _stems(query: str) -> list[str]:
    words = split_words(query[:MAX_QUERY_CHARS])
    return list(dict.fromkeys(chain.from_iterable(map(terms_of, words))))


class _Space(NamedTuple):
    table: "_Table"
    matrix: "Floats"  # a row for each document


class _Table:
    """The vectors of stems, in whole numbers."""

    def __init__(self, vectors: tables.Vectors) -> None:
        import numpy as np

        self._rows = vectors.rows
        self._factors: Doubles = np.array(vectors.factors, np.float64)
        values = np.frombuffer(vectors.values, np.int8)
        self._values = values.reshape(len(vectors.rows), vectors.columns)

    def knows(self, stem: str) -> bool:
        """True if the stem has a vector."""
        return stem in self._rows

    def add_up(self, query: str) -> "Floats | None":
        """Returns the rounded unit vector of a query; None if no word is known."""
        rows = [self._rows[stem] for stem in _stems(query) if stem in self._rows]
        return _round(self._take(rows).sum(axis=0)) if rows else None

    def embed(self, index: SearchIndex, size: int) -> "Floats":
        """Returns the rounded unit vectors of the documents of an index."""
        import numpy as np

        rows: list[int] = []
        counts: list[int] = []
        weights: list[float] = []
        positions = [np.zeros(0, np.uint32)]
        for weight, places in zip(FIELD_WEIGHTS, index.places(), strict=False):
            for stem, at in places.items():
                if stem in self._rows:
                    rows.append(self._rows[stem])
                    counts.append(len(at))
                    weights.append(weight)
                    positions.append(np.frombuffer(at, np.uint32))
        where = np.concatenate(positions)
        order = where.argsort(kind="stable")
        where = where[order]
        which = np.repeat(np.array(rows, np.int64), counts)[order]
        weight_of = np.repeat(np.array(weights), counts)[order]
        made = np.zeros((size, self._values.shape[1]))
        for begin in range(0, len(where), BATCH):
            batch = slice(begin, begin + BATCH)
            starts = np.flatnonzero(np.diff(where[batch], prepend=np.uint32(0xFFFFFFFF)))
            taken = self._take(which[batch]) * weight_of[batch, None]
            made[where[batch][starts]] += np.add.reduceat(taken, starts, axis=0)
        return _round(made)

    def _take(self, rows: "Sequence[int] | NDArray[np.int64]") -> "Doubles":
        return self._factors[rows, None] * self._values[rows]


def _round(vectors: "Doubles") -> "Floats":
    """Returns unit vectors in whole multiples of 1/`PARTS`; zero vectors stay zero."""
    import numpy as np

    lengths = np.sqrt(np.square(vectors).sum(axis=-1, keepdims=True))
    return np.rint(vectors / np.where(lengths, lengths, 1.0) * PARTS).astype(np.float32)


@cache  # read-only, and shared by all runs
def _load_table() -> _Table | None:
    try:
        related = tables.load_related()
        path = tables.FOLDER / tables.VECTORS
        return _Table(tables.read_vectors(path, related)) if related else None
    except (tables.BadTable, ImportError, OSError, ValueError) as error:
        tables.logger.error("searching without vectors: %s", error)
        return None
