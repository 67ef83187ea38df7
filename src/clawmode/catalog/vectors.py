"""Search by meaning: static word vectors, combined with the search by words.

The only module that uses numpy, tokenizers and WordLlama, which come with `clawmode[search]`. Of
WordLlama, only two data files are used: its own loader looks for one of them in the wrong folder
and then downloads it, and importing it sets up logging for the whole process. Nothing is loaded
before the first search, and nothing is ever downloaded.

The vector of a text is the sum of the vectors of its words, in English, without word order.
"""

import importlib.util
import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property, reduce
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from clawmode.catalog.search import (
    MAX_FIELD_CHARS,
    MAX_QUERY_CHARS,
    MAX_WORD_CHARS,
    Document,
    Ranker,
    RankerMaker,
    go_by_words,
    split_identifier,
    split_words,
)
from clawmode.exceptions import ClawmodeError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    Floats: TypeAlias = NDArray[np.float32]
    Doubles: TypeAlias = NDArray[np.float64]

logger = logging.getLogger("clawmode.vectors")

PACKAGES = ("numpy", "tokenizers", "wordllama")
TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
WEIGHTS = "weights/l2_supercat_256.safetensors"

# Tuned on three public data sets of tools and requests (Seal-Tools, Bifrost, MetaTool), `MEANING`
# on every other request; `bench/search.py` measures all requests. Adding shares of the best score
# gives 1 to 3 points more MRR than fusing ranks, because the distance to the best result counts.
MEANING = 0.6
FIELD_WEIGHTS = (2.0, 1.0, 1.0, 0.5)  # the fields of a Document
MIN_SHARE = 0.5  # of the best cosine

# A lower value returns more results for requests that no tool can answer. With 0.3, that happens
# for 18 % of such requests among 70 tools, and for 28 % among 10,000. With 0.22 it happens for 30
# and 65 %, while recall for paraphrased requests rises by 10 and 7 points.
MIN_COSINE = 0.3

# If the tokenizer splits a word into shorter pieces than this, it does not know the word: the sum
# of such vectors means nothing, and would still be near to some document.
MIN_PIECE_CHARS = 2
FIRST_PIECE = 259  # lower ids are control marks and single bytes

MAX_FIELD_WORDS = 64  # descriptions start with what the tool does
MAX_FUSED = 100  # results of each kind
MAX_SENTENCES = 8  # of a query, compared separately
MAX_HEADER = 100_000

_SENTENCE_END = re.compile(r"[.!?;]+\s|\n")

# Makes results equal on every machine, in whatever order numpy adds: float64 adds float16 values
# without rounding, and float32 holds every dot product of vectors in whole multiples of 1/PARTS.
PARTS = 2048


class MissingExtra(ClawmodeError):
    """Search by meaning is required, but the extra `search` is not installed."""


def choose_ranker(*, required: bool = False) -> RankerMaker:
    """Returns a ranker by words and meaning if `clawmode[search]` is installed, else by words.

    Args:
        required: True to raise an error instead of ranking by words alone.

    Raises:
        MissingExtra: The extra is required, but not installed.
    """
    try:
        _find_files()
    except MissingExtra:
        if required:
            raise
        return go_by_words
    return VectorRanker


class VectorRanker:
    """Ranks by words and by meaning. Reads the documents at the first search.

    Args:
        documents: The documents.
        words: Ranks the same documents by words; used alone for queries of unknown words.
    """

    def __init__(self, documents: Sequence[Document], words: Ranker) -> None:
        self._documents = documents
        self._words = words

    def search(self, query: str, limit: int) -> list[tuple[int, float]]:
        """Returns at most `limit` positions and scores, the best first, without poor matches."""
        wanted = max(limit, MAX_FUSED)
        worded = dict(self._words.search(query, wanted))
        cosines = self._cosines(query)
        if limit < 1 or cosines is None:
            return list(worded.items())[: max(limit, 0)]
        least = max(MIN_COSINE, MIN_SHARE * float(cosines.max()))
        positions = (cosines >= least).nonzero()[0]
        order = (-cosines[positions]).argsort(kind="stable")[:wanted]
        near = {int(position): float(cosines[position]) for position in positions[order]}
        most = max(worded.values(), default=1.0)
        nearest = max([MIN_COSINE, *near.values()])
        scores: list[tuple[float, int]] = []
        for position in worded.keys() | near.keys():
            by_word = worded.get(position, 0.0) / most
            by_meaning = max(float(cosines[position]), 0.0) / nearest
            scores.append((-(1 - MEANING) * by_word - MEANING * by_meaning, position))
        return [(position, -score) for score, position in sorted(scores)[:limit]]

    def _cosines(self, query: str) -> "Doubles | None":
        """Returns the cosine of every document with the query; None if no word is known.

        For each document, the query or its nearest sentence counts, because a query for several
        things is near to none of them as a whole. That raises recall at 5 on Seal-Tools from 85 to
        91 %.
        """
        word_lists = [
            list(dict.fromkeys(chain.from_iterable(map(split_identifier, split_words(sentence)))))
            for sentence in _sentences(query)
        ]
        if not any(word_lists) or self._space is None:
            return None
        vectors = [self._space.model.add_up(words) for words in word_lists if words]
        known = [vector for vector in vectors if vector.any()]
        products = [(self._space.matrix @ vector).astype("f8") for vector in known]
        return reduce(_larger, products) / PARTS**2 if products else None

    @cached_property
    def _space(self) -> "_Space | None":
        try:
            model = _load_model()
        except Exception as error:  # third-party code reads third-party files: anything can fail
            logger.error("searching by words only: %s: %s", type(error).__name__, error)
            return None
        return _Space(model, _embed(self._documents, model)) if self._documents else None


def _sentences(query: str) -> list[str]:
    """Returns the whole query, and its first sentences."""
    text = query[:MAX_QUERY_CHARS]
    return list(dict.fromkeys([text, *_SENTENCE_END.split(text)[:MAX_SENTENCES]]))


def _larger(one: "Doubles", other: "Doubles") -> "Doubles":
    import numpy as np

    return np.maximum(one, other)


class _Space(NamedTuple):
    model: "_Model"
    matrix: "Floats"  # a row for each document


# ---- Texts and vectors ----


def _embed(documents: Sequence[Document], model: "_Model") -> "Floats":
    import numpy as np

    # Each distinct word gets a number and one vector, because words repeat a lot in a catalog.
    lexicon: dict[str, tuple[int, ...]] = {}
    known: dict[str, int] = {}
    bags = [list(_weigh_words(document, lexicon, known)) for document in documents]
    vectors = np.array([model.vector(part) for part in known])
    made = np.zeros((len(documents), model.size))
    for row, bag in zip(made, bags, strict=True):
        if bag:
            numbers, weights = zip(*bag, strict=True)
            row[:] = np.array(weights) @ vectors[list(numbers)]
    return _round(made)


def _weigh_words(
    document: Document, lexicon: dict[str, tuple[int, ...]], known: dict[str, int]
) -> Iterator[tuple[int, float]]:
    for text, weight in zip(document, FIELD_WEIGHTS, strict=True):
        for word in islice(split_words(text[:MAX_FIELD_CHARS]), MAX_FIELD_WORDS):
            if word not in lexicon:
                parts = split_identifier(word)
                lexicon[word] = tuple(known.setdefault(part, len(known)) for part in parts)
            for number in lexicon[word]:
                yield number, weight


def _round(vectors: "Doubles") -> "Floats":
    """Returns unit vectors in whole multiples of 1/`PARTS`; zero vectors stay zero."""
    import numpy as np

    lengths = np.sqrt(np.square(vectors).sum(axis=-1, keepdims=True))
    return np.rint(vectors / np.where(lengths, lengths, 1.0) * PARTS).astype(np.float32)


class _Model:
    """The vectors of all pieces that the tokenizer splits words into."""

    def __init__(self, tokenizer: "Tokenizer", table: "NDArray[np.float16]") -> None:
        self._tokenizer = tokenizer
        self._table = table
        self.size = table.shape[1]

    def vector(self, word: str) -> "Doubles":
        """Returns the vector of a word; zero if the word is not known."""
        import numpy as np

        short = word[:MAX_WORD_CHARS]
        ids = self._tokenizer.encode(short, add_special_tokens=False).ids
        if len(ids) > 1 and len(short) < MIN_PIECE_CHARS * len(ids):
            return np.zeros(self.size)
        pieces = [id_ for id_ in ids if FIRST_PIECE <= id_ < len(self._table)]
        return self._table[pieces].sum(axis=0, dtype=np.float64)

    def add_up(self, words: Iterable[str]) -> "Floats":
        """Returns the rounded unit vector of a text."""
        import numpy as np

        return _round(np.sum([self.vector(word) for word in words], axis=0))


# ---- WordLlama's files ----


class _Files(NamedTuple):
    tokenizer: Path
    weights: Path


@cache  # read-only, and shared by all runs
def _load_model() -> _Model:
    import numpy as np
    from tokenizers import Tokenizer

    files = _find_files()
    offset, shape = _read_header(files.weights)
    table = np.memmap(files.weights, dtype="<f2", mode="r", offset=offset, shape=shape)
    return _Model(Tokenizer.from_file(str(files.tokenizer)), np.asarray(table))


def _find_files() -> _Files:
    """Returns the paths of the two files, without importing anything.

    Raises:
        MissingExtra: The files, or the packages that read them, are not installed.
    """
    specs = {name: importlib.util.find_spec(name) for name in PACKAGES}
    missing = [name for name, spec in specs.items() if spec is None]
    spec = specs["wordllama"]
    folders = spec.submodule_search_locations if spec else None
    if not missing and folders:
        files = _Files(Path(folders[0], TOKENIZER), Path(folders[0], WEIGHTS))
        missing = [f"{path.name} of wordllama" for path in files if not path.is_file()]
        if not missing:
            return files
    raise MissingExtra(
        f"search by meaning needs packages that are not installed: {', '.join(missing)}. "
        "Run: pip install 'clawmode[search]'"
    )


def _read_header(path: Path) -> tuple[int, tuple[int, int]]:
    """Returns the offset and the shape of the only table in a safetensors file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER:
            raise ValueError(f"{path.name} is not a safetensors file")
        entry = json.loads(file.read(length))["embedding.weight"]
    begin, end = entry["data_offsets"]
    rows, columns = entry["shape"]
    if entry["dtype"] != "F16" or end - begin != rows * columns * 2:
        raise ValueError(f"{path.name} does not contain a two-dimensional table of float16")
    return 8 + length + begin, (rows, columns)
