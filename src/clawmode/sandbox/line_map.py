"""Worker side: positions of transformed code in the submitted source."""

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property

from clawmode.types import dataclass


class LineMap:
    """Maps positions in reprinted code to positions in the submitted source, by SWC's source map.

    Lines and columns count from 1. The map is decoded at first use, as only a cell that fails needs
    it.

    Args:
        mappings: The `mappings` of the source map.
        prefix: Columns of the first line that belong to the wrapper.
        last_line: The last line of the source.
    """

    def __init__(self, mappings: str, *, prefix: int, last_line: int) -> None:
        self._mappings = mappings
        self._prefix = prefix
        self._last_line = last_line

    @classmethod
    def decode(cls, text: str) -> "LineMap":
        """Reads a map from the text that `encode` returned."""
        prefix, last_line, mappings = text.split(" ", 2)
        return cls(mappings, prefix=int(prefix), last_line=int(last_line))

    def encode(self) -> str:
        """Returns the map as text, on one line."""
        return f"{self._prefix} {self._last_line} {self._mappings}"

    def original(self, line: int, column: int) -> tuple[int, int]:
        """Returns the source of a position, or of the nearest position before it with a source."""
        rows = self._rows[: max(line, 0)]
        if rows and len(rows) == line:
            rows[-1] = rows[-1][: bisect_right(rows[-1], column - 1, key=lambda mark: mark[0])]
        marks = next((row for row in reversed(rows) if row), [(0, 0, 0)])
        _, source_line, source_column = marks[-1]
        if source_line == 0:
            source_column = max(source_column - self._prefix, 0)
        return min(source_line + 1, self._last_line), source_column + 1

    @cached_property
    def _rows(self) -> list[list[tuple[int, int, int]]]:
        """Per printed line, marks of (printed column, source line, source column), from 0."""
        rows: list[list[tuple[int, int, int]]] = []
        line = column = 0
        for segments in self._mappings.split(";"):
            row: list[tuple[int, int, int]] = []
            printed = 0
            for segment in filter(None, segments.split(",")):
                step, *source = _decode_vlq(segment)
                printed += step
                if source:
                    line, column = line + source[1], column + source[2]
                    row.append((printed, line, column))
            rows.append(row)
        return rows


@dataclass(frozen=True, slots=True)
class CompileFailure:
    """What is known about a cell that did not compile, beyond the engine's own message.

    Attributes:
        closed: True if the source closes the function that it is wrapped in.
        line_map: Where positions in the compiled text come from, if it was printed anew.
    """

    closed: bool = False
    line_map: LineMap | None = None


def _decode_vlq(segment: str) -> Iterator[int]:
    value = shift = 0
    for char in segment:
        digit = _BASE64[char]
        value |= (digit & 31) << shift
        if digit & 32:
            shift += 5
        else:
            yield -(value >> 1) if value & 1 else value >> 1
            value = shift = 0


_BASE64 = {
    char: digit
    for digit, char in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
}
