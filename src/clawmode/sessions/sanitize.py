"""Values for events and logs: limited in size, without images.

The input and results of tools may have any size.
"""

from collections.abc import Iterable

from clawmode.messages import IMAGE_KEYS, MAX_BLOB_CHARS, Image, Text
from clawmode.text import truncate
from clawmode.types import JsonValue

MAX_CHARS = 8_000
MAX_ITEMS = 100
MAX_DEPTH = 8


def bounded(value: JsonValue) -> JsonValue:
    """Returns a value with long texts, long lists, deep nesting and images cut."""
    return _Cutter().value(value, 0)


def bounded_parts(parts: Iterable[Text | Image]) -> JsonValue:
    """Returns the parts of a message as JSON, with long texts and images cut."""
    cutter = _Cutter()
    return [
        {"type": "text", "text": cutter.text(part.text)}
        if isinstance(part, Text)
        else {"type": "image", "mediaType": part.media_type, "bytes": len(part.data) * 3 // 4}
        for part in parts
    ]


class _Cutter:
    """Cuts one value. All texts of the value share one limit."""

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
            self.text(key): f"({len(item)} characters of data)"
            if key in IMAGE_KEYS and isinstance(item, str) and len(item) > MAX_BLOB_CHARS
            else self.value(item, depth + 1)
            for key, item in list(value.items())[:MAX_ITEMS]
        }
