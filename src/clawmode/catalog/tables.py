"""The tables behind search: which words are related, and a vector for each word.

`scripts/build_search_tables.py` makes both files; docs/reference/search-tables.md says from what.
They are read at the first search and shared by all runs. A file that is missing, damaged or of
another version is reported once, and search goes on without it.
"""

import hashlib
import logging
import struct
import sys
from array import array
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from clawmode.exceptions import ClawmodeError

logger = logging.getLogger("clawmode.search")

FOLDER = Path(__file__).parent / "data"
RELATED, VECTORS = "related_words.bin", "word_vectors.bin"

VERSION = 1
COSINES = 255  # a byte holds a cosine as a whole multiple of 1/255

# The head of a file: a mark, the version, and the hash of the body. The body of the related words:
# the number of stems and the length of their text, the stems, how many related stems each one has,
# and the positions and cosines of these. The body of the vectors: the hash of the related words
# whose stems have these vectors, the number of columns, a factor for each row, and the rows.
HEAD = struct.Struct("<8sI32s")
MARK = b"clawmode"
RELATED_HEAD = struct.Struct("<II")
VECTORS_HEAD = struct.Struct("<32sI")


class BadTable(ClawmodeError):
    """A table of search is damaged or of another version."""


class RelatedTable(NamedTuple):
    """The related words of each stem, as a file has them."""

    stems: list[str]
    rows: dict[str, int]
    ends: list[int]
    places: "array[int]"
    cosines: bytes
    digest: bytes

    def of(self, stem: str) -> list[tuple[str, float]]:
        """Returns the stems of related words and their cosines."""
        row = self.rows.get(stem)
        if row is None:
            return []
        begin, end = self.ends[row - 1] if row else 0, self.ends[row]
        return [(self.stems[self.places[n]], self.cosines[n] / COSINES) for n in range(begin, end)]


class Vectors(NamedTuple):
    """A row of whole numbers for each stem: `factors[row] * values[row]`."""

    rows: dict[str, int]
    columns: int
    factors: "array[int]"
    values: memoryview


@cache
def load_related() -> RelatedTable | None:
    """Returns the related words; None if their file cannot be used."""
    try:
        return read_related(FOLDER / RELATED)
    except (BadTable, OSError) as error:
        logger.error("searching without related words: %s", error)
        return None


def read_related(path: Path) -> RelatedTable:
    """Reads a file of related words.

    Raises:
        BadTable: The file is damaged or of another version.
        OSError: The file cannot be read.
    """
    body, digest = _read(path)
    count, length = RELATED_HEAD.unpack_from(body)
    begin = RELATED_HEAD.size
    stems = str(body[begin : begin + length], "ascii").split("\n")
    begin += length
    ends = list(accumulate(body[begin : begin + count]))
    begin += count
    places = _read_shorts(body[begin : begin + 2 * ends[-1]])
    cosines = bytes(body[begin + 2 * ends[-1] :])
    rows = {stem: row for row, stem in enumerate(stems)}
    return RelatedTable(stems, rows, ends, places, cosines, digest)


def read_vectors(path: Path, related: RelatedTable) -> Vectors:
    """Reads a file of vectors that belongs to `related`.

    Raises:
        BadTable: The file is damaged, of another version, or made for other related words.
        OSError: The file cannot be read.
    """
    body, _ = _read(path)
    digest, columns = VECTORS_HEAD.unpack_from(body)
    if digest != related.digest:
        raise BadTable(f"{path.name} was made for another {RELATED}. Install clawmode again.")
    begin = VECTORS_HEAD.size
    end = begin + 2 * len(related.stems)
    return Vectors(related.rows, columns, _read_shorts(body[begin:end]), body[end:])


def write(path: Path, body: bytes) -> bytes:
    """Writes a file of either kind; returns the hash of its body."""
    digest = hashlib.sha256(body).digest()
    path.write_bytes(HEAD.pack(MARK, VERSION, digest) + body)
    return digest


def _read(path: Path) -> tuple[memoryview, bytes]:
    data = path.read_bytes()
    if len(data) < HEAD.size or not data.startswith(MARK):
        raise BadTable(f"{path.name} is not a table of search. Install clawmode again.")
    _, version, digest = HEAD.unpack_from(data)
    if version != VERSION:
        raise BadTable(f"{path.name} has version {version}, not {VERSION}. Install clawmode again.")
    body = memoryview(data)[HEAD.size :]
    if hashlib.sha256(body).digest() != digest:
        raise BadTable(f"{path.name} is damaged. Install clawmode again.")
    return body, digest


def _read_shorts(data: memoryview) -> "array[int]":
    made = array("H")
    made.frombytes(data)
    if sys.byteorder == "big":
        made.byteswap()
    return made
