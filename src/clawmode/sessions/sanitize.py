"""Values as they may be shown: bounded in size, without pictures.

What tools are given and answer can be of any size. Whoever watches a run, and its logs, get this
instead.
"""

from collections.abc import Iterable

from clawmode.messages import Image, Text
from clawmode.text import truncate
from clawmode.types import JsonValue

MAX_CHARS = 8_000
MAX_ITEMS = 100
MAX_DEPTH = 8
IMAGE_KEYS = ("data", "blob", "base64", "image_url")
MAX_BLOB_CHARS = 256
"""What is longer under such a key is bytes, not words."""


def bounded(value: JsonValue) -> JsonValue:
    """A value cut down: long texts, long lists, deep nests, pictures."""
    return _Cut().value(value, 0)


def bounded_parts(parts: Iterable[Text | Image]) -> JsonValue:
    """The parts of a message, cut down."""
    cut = _Cut()
    return [
        {"type": "text", "text": cut.text(part.text)}
        if isinstance(part, Text)
        else {"type": "image", "mediaType": part.media_type, "bytes": len(part.data) * 3 // 4}
        for part in parts
    ]


class _Cut:
    """Cuts one value; all its texts share one allowance."""

    def __init__(self) -> None:
        self._left = MAX_CHARS

    def text(self, text: str) -> str:
        shown = truncate(text, max(self._left, 0))
        self._left -= len(text)
        return shown

    def value(self, value: JsonValue, depth: int) -> JsonValue:
        if isinstance(value, str):
            return self.text(value)
        if not isinstance(value, (dict, list)):
            return value
        if depth >= MAX_DEPTH:
            return "…"
        if isinstance(value, list):
            made = [self.value(item, depth + 1) for item in value[:MAX_ITEMS]]
            more = len(value) - MAX_ITEMS
            return [*made, f"… ({more} more items)"] if more > 0 else made
        return {
            self.text(key): self._member(key, item, depth)
            for key, item in list(value.items())[:MAX_ITEMS]
        }

    def _member(self, key: str, item: JsonValue, depth: int) -> JsonValue:
        if key in IMAGE_KEYS and isinstance(item, str) and len(item) > MAX_BLOB_CHARS:
            return f"({len(item)} characters of data)"
        return self.value(item, depth + 1)
