"""Finding documents by what their words mean: static vectors, fused with what words find.

The one home of numpy, tokenizers and WordLlama, which come with `clawmode[search]`. Of WordLlama
only the two files are used that it ships: its own loader looks for one of them in the wrong folder
and then downloads, and importing it sets up logging for the whole process. Nothing is loaded before
the first search, and nothing is fetched ever.

A text is the sum of the vectors of its words. That knows English, and no word order.
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

# Chosen on three public sets of tools and requests (Seal-Tools, Bifrost, MetaTool), of which
# `bench/search.py` measures all; `MEANING` on every other request. Adding up shares of the best
# score is 1 to 3 points of MRR better than fusing ranks on nearly all: how much better the best is
# says something.
MEANING = 0.6
FIELD_WEIGHTS = (2.0, 1.0, 1.0, 0.5)  # the fields of a Document
MIN_SHARE = 0.5  # of the best cosine

# Below this, a request that nothing answers is answered. Among 70 tools and 10,000, 18 and 28 % of
# them are; 30 and 65 % at 0.22, which finds 10 and 7 points more of what is asked in other words.
MIN_COSINE = 0.3

# A word that the tokenizer has to cut into shorter pieces than this is not one that it knows: the
# sum of the pieces means nothing, and would be near to something.
MIN_PIECE_CHARS = 2
FIRST_PIECE = 259  # below are control marks and single bytes

MAX_FIELD_WORDS = 64  # a description says first what its tool does
MAX_FUSED = 100  # of either kind
MAX_SENTENCES = 8  # of a query that are compared on their own
MAX_HEADER = 100_000

_SENTENCE_END = re.compile(r"[.!?;]+\s|\n")

# The same on every machine, in whatever order its library adds up: float64 adds float16 without
# rounding, and of vectors in whole numbers of such parts, float32 holds every sum of products.
PARTS = 2048


class MissingExtra(ClawmodeError):
    """Vectors were asked for, and what they need is not installed."""


def choose_ranker(*, required: bool = False) -> RankerMaker:
    """How a catalog ranks: by meaning too if `clawmode[search]` is installed, else by words.

    Args:
        required: Not to go by words alone.

    Raises:
        MissingExtra: The extra is required, and not installed.
    """
    try:
        _find_files()
    except MissingExtra:
        if required:
            raise
        return go_by_words
    return VectorRanker


class VectorRanker:
    """Ranks by words and by meaning. Reads the documents when it is first asked.

    Args:
        documents: What to search.
        words: Ranks the same documents by their words. Answers alone where vectors cannot.
    """

    def __init__(self, documents: Sequence[Document], words: Ranker) -> None:
        self._documents = documents
        self._words = words

    def search(self, query: str, limit: int) -> list[tuple[int, float]]:
        """Positions and scores of at most `limit` documents, the best first, without poor ones."""
        wanted = max(limit, MAX_FUSED)
        worded = dict(self._words.search(query, wanted))
        cosines = self._cosines(query)
        if limit < 1 or cosines is None:
            return list(worded.items())[: max(limit, 0)]
        near = _nearest(cosines, wanted)
        most = max(worded.values(), default=1.0)
        nearest = max([MIN_COSINE, *near.values()])
        scores: list[tuple[float, int]] = []
        for position in worded.keys() | near.keys():
            by_word = worded.get(position, 0.0) / most
            by_meaning = max(float(cosines[position]), 0.0) / nearest
            scores.append((-(1 - MEANING) * by_word - MEANING * by_meaning, position))
        return [(position, -score) for score, position in sorted(scores)[:limit]]

    def _cosines(self, query: str) -> "Doubles | None":
        """Of every document with the query; None if nothing is known of what its words mean.

        Or with one of its sentences, if that is nearer. What asks for several things is near to
        none of them as a whole: with this, recall at 5 on Seal-Tools is 91 % and not 85 %.
        """
        asked = [parts for text in _sentences(query) if (parts := _parts(text))]
        if not asked or self._space is None:
            return None
        vectors = [self._space.model.add_up(parts) for parts in asked]
        known = [vector for vector in vectors if vector.any()]
        products = [(self._space.matrix @ vector).astype("f8") for vector in known]
        return reduce(_larger, products) / PARTS**2 if products else None

    @cached_property
    def _space(self) -> "_Space | None":
        try:
            model = _load_model()
        except Exception as error:  # foreign code reads foreign files: search goes on without
            logger.error("searching by words only: %s: %s", type(error).__name__, error)
            return None
        return _Space(model, _embed(self._documents, model)) if self._documents else None


def _sentences(query: str) -> list[str]:
    """The query, and its sentences."""
    asked = query[:MAX_QUERY_CHARS]
    return list(dict.fromkeys([asked, *_SENTENCE_END.split(asked)[:MAX_SENTENCES]]))


def _parts(text: str) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(map(split_identifier, split_words(text)))))


def _larger(one: "Doubles", other: "Doubles") -> "Doubles":
    import numpy as np

    return np.maximum(one, other)


class _Space(NamedTuple):
    model: "_Model"
    matrix: "Floats"  # a row for each document


def _nearest(cosines: "Doubles", limit: int) -> dict[int, float]:
    """The cosines of the nearest documents that are near enough, by position."""
    least = max(MIN_COSINE, MIN_SHARE * float(cosines.max()))
    positions = (cosines >= least).nonzero()[0]
    order = (-cosines[positions]).argsort(kind="stable")[:limit]
    return {int(position): float(cosines[position]) for position in positions[order]}


# Texts to vectors


def _embed(documents: Sequence[Document], model: "_Model") -> "Floats":
    import numpy as np

    # Numbers for words: a catalog has many occurrences and few words.
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
    """The same directions, as whole numbers of `PARTS`; what is zero stays zero."""
    import numpy as np

    lengths = np.sqrt(np.square(vectors).sum(axis=-1, keepdims=True))
    return np.rint(vectors / np.where(lengths, lengths, 1.0) * PARTS).astype(np.float32)


class _Model:
    """What words mean: a vector for every piece that the tokenizer cuts a word into."""

    def __init__(self, tokenizer: "Tokenizer", table: "NDArray[np.float16]") -> None:
        self._tokenizer = tokenizer
        self._table = table
        self.size = table.shape[1]

    def vector(self, word: str) -> "Doubles":
        """The vector of a word; zero for one that is not known."""
        import numpy as np

        short = word[:MAX_WORD_CHARS]
        ids = self._tokenizer.encode(short, add_special_tokens=False).ids
        if len(ids) > 1 and len(short) < MIN_PIECE_CHARS * len(ids):
            return np.zeros(self.size)
        pieces = [id_ for id_ in ids if FIRST_PIECE <= id_ < len(self._table)]
        return self._table[pieces].sum(axis=0, dtype=np.float64)

    def add_up(self, words: Iterable[str]) -> "Floats":
        """The direction of a text, rounded."""
        import numpy as np

        return _round(np.sum([self.vector(word) for word in words], axis=0))


# WordLlama's files


class _Files(NamedTuple):
    tokenizer: Path
    weights: Path


@cache  # read-only, and the same for every run
def _load_model() -> _Model:
    import numpy as np
    from tokenizers import Tokenizer

    files = _find_files()
    offset, shape = _read_header(files.weights)
    table = np.memmap(files.weights, dtype="<f2", mode="r", offset=offset, shape=shape)
    return _Model(Tokenizer.from_file(str(files.tokenizer)), np.asarray(table))


def _find_files() -> _Files:
    """Where the two files are, without importing anything.

    Raises:
        MissingExtra: They, or what is needed to read them, are not installed.
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
        f"searching by meaning needs what is not installed: {', '.join(missing)}. "
        "Run: pip install 'clawmode[search]'"
    )


def _read_header(path: Path) -> tuple[int, tuple[int, int]]:
    """Where in a safetensors file its one table begins, and how large it is."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER:
            raise ValueError(f"{path.name} is no safetensors file")
        entry = json.loads(file.read(length))["embedding.weight"]
    begin, end = entry["data_offsets"]
    rows, columns = entry["shape"]
    if entry["dtype"] != "F16" or end - begin != rows * columns * 2:
        raise ValueError(f"{path.name} holds another kind of table than was expected")
    return 8 + length + begin, (rows, columns)
