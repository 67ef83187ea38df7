"""Finds the names most similar to a misspelt one, for error messages and lookups."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from heapq import nsmallest
from itertools import chain, islice, pairwise

MAX_NAME_CHARS = 64
MAX_COUNTED = 2_000  # names, over all pairs of letters, among which the candidates are chosen
MAX_COMPARED = 16  # candidates that are compared letter by letter
MIN_LIKENESS = 0.6


class NearNames:
    """Finds the names most similar to a given one, without comparing all of them letter by letter.

    Args:
        names: The names to search.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = [_shorten(name) for name in names]
        self._having: defaultdict[str, list[int]] = defaultdict(list)
        for position, name in enumerate(self._names):
            for pair in _pairs(name):
                self._having[pair].append(position)

    def find(self, name: str, limit: int) -> list[int]:
        """Returns positions of at most `limit` similar names, the most similar first.

        The rarest pairs of letters select the candidates: in a catalog of ten thousand names with
        the same beginning, the common pairs tell nothing apart and would take milliseconds.
        """
        wanted = _shorten(name)
        pairs = _pairs(wanted)
        known = [self._having[pair] for pair in sorted(pairs) if pair in self._having]
        by_rarity = chain.from_iterable(sorted(known, key=len))
        shared = Counter(islice(by_rarity, MAX_COUNTED))
        likeness = _Likeness(wanted, pairs)
        alike = [
            (-likeness.to(self._names[position]), position)
            for position, _ in shared.most_common(MAX_COMPARED)
        ]
        return [at for likeness, at in nsmallest(limit, alike) if -likeness >= MIN_LIKENESS]


class _Likeness:
    """The similarity of names to a given one: `payment_refund` is near `refund_payment`."""

    def __init__(self, name: str, pairs: set[str]) -> None:
        self._name, self._pairs = name, pairs
        self._places: dict[str, int] = {}
        for position, letter in enumerate(name):
            self._places[letter] = self._places.get(letter, 0) | 1 << position

    def to(self, other: str) -> float:
        """Returns a figure from 0 to 1, by letters in order or by pairs of letters in any order."""
        pairs = _pairs(other)
        by_pairs = 2 * len(pairs & self._pairs) / (len(pairs) + len(self._pairs))
        letters = len(self._name) + len(other)
        return max(by_pairs, 2 * self._common(other) / letters if letters else 0.0)

    def _common(self, other: str) -> int:
        """Returns the length of the longest common subsequence, computed with one bit per letter.

        Each step updates a whole column of the usual table (Hyyrö 2004). It is several times as
        fast as `difflib`, which matters because programs may use a thousand wrong names at once.
        """
        whole = row = (1 << len(self._name)) - 1
        for letter in other:
            matched = row & self._places.get(letter, 0)
            row = (row + matched | row - matched) & whole
        return len(self._name) - row.bit_count()


def _shorten(name: str) -> str:
    return name[:MAX_NAME_CHARS].casefold()


def _pairs(name: str) -> set[str]:
    """Returns all pairs of neighbouring characters, with the ends: spellings share most of them."""
    return set(map("".join, pairwise(f" {name} ")))
