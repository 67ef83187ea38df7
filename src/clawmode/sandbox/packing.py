"""Both sides: the changed pages of a frozen cell, which are compressed if they are to be kept.

A cell that only makes room for another stays in the memory of the serving process for milliseconds.
Compressing it would take as long as all the rest of the freeze.
"""

import sys
from dataclasses import replace

from clawmode.sandbox.protocol import FrozenCell

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_MAGIC = b"\x28\xb5\x2f\xfd"
"""The first bytes of data that zstd has compressed. As the number of pages, with which pages start
that are not compressed, they would mean 16 TiB."""


def new_compressor() -> "zstd.ZstdCompressor":
    """Returns a compressor for pages."""
    return zstd.ZstdCompressor(level=1)


def is_packed(pages: bytes) -> bool:
    """True if the pages are compressed."""
    return pages.startswith(_MAGIC)


def packed(frozen: FrozenCell) -> FrozenCell:
    """Returns the cell with its pages compressed."""
    if is_packed(frozen.pages):
        return frozen
    compressor = new_compressor()
    pages = compressor.compress(frozen.pages) + compressor.flush()
    return replace(frozen, pages=pages)


def unpack(pages: bytes, most: int) -> bytes:
    """Returns the pages as they were before `packed`, or `most` bytes of them.

    Raises:
        ValueError: The compressed data is damaged.
    """
    if not is_packed(pages):
        return pages
    try:
        return zstd.ZstdDecompressor().decompress(pages, max_length=most)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from None
