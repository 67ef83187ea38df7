"""Worker side: what a guest emits, counted against one budget as it is emitted.

Output and value share the budget, in UTF-8 bytes of their JSON. The item that goes over it is cut
at a character, and the guest is stopped there and then: it cannot catch this.
"""

import json
from typing import ClassVar

from clawmode.sandbox.protocol import ITEM_BYTES, Output
from clawmode.sandbox.source import CompileFailure


class OutputLimit(Exception):
    """Raised through the guest's stack when it has emitted too much."""


class Outbox:
    """Takes what one step of a cell emits.

    Attributes:
        left: Bytes that may still be emitted.
        value: JSON of the final value, once the main promise is fulfilled.
        failure: The prelude's description of what went wrong, once something has.
        uncompiled: Set if the failure is that the source did not compile.
        omitted: Bytes that were left out of an item over the limit.
        prefix: The beginning of an item that is over the limit, while the rest is being counted.
    """

    CHANNELS: ClassVar[tuple[bytes, ...]] = (b"t", b"j", b"v", b"f", b"o", b"p")

    def __init__(self, left: int) -> None:
        self.left = left
        self.output: list[Output] = []
        self.value: bytes | None = None
        self.failure: bytes | None = None
        self.uncompiled: CompileFailure | None = None
        self.omitted = 0
        self.prefix: bytes | None = None

    def emit(self, channel: bytes, data: bytes) -> None:
        """Takes `data` from the prelude.

        Raises:
            OutputLimit: It does not fit.
        """
        match channel:
            case b"t":
                self._text(data)
            case b"j":
                self._json(data)
            case b"v":
                self._value(data)
            case b"f":
                self.failure = data
            case b"o":
                self.omitted += len(data)
            case b"p":
                self.prefix = data
            case _:
                raise RuntimeError(f"unknown channel {channel!r}")

    def _text(self, data: bytes) -> None:
        if len(data) > self.left:
            self._cut(data)
        self._append(Output("text", json_string(data.decode("utf-8", "replace"))), data)

    def _json(self, data: bytes) -> None:
        self._append(Output("json", data), data)

    def _append(self, item: Output, data: bytes) -> None:
        if self.omitted or item.size > self.left:
            self._cut(data)
        self.left -= item.size
        self.output.append(item)

    def _value(self, data: bytes) -> None:
        if self.omitted or len(data) > self.left:
            self._cut(data)
        self.left -= len(data)
        self.value = data

    def cut_short(self) -> None:
        """The clock stopped the counting: what is known of the item is kept."""
        assert self.prefix is not None
        self._cut(self.prefix)

    def _cut(self, data: bytes) -> None:
        kept = longest_prefix(data, self.left - ITEM_BYTES["text"])
        if kept:
            self.output.append(Output("text", json_string(kept)))
        self.omitted += len(data) - len(kept.encode())
        self.left = 0
        raise OutputLimit


def json_string(text: str) -> bytes:
    """`text` as a JSON string."""
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")


def longest_prefix(data: bytes, room: int) -> str:
    """The longest prefix of UTF-8 `data` whose JSON takes at most `room` bytes."""
    # JSON is never shorter than the text, and a cut may fall into a character.
    text = data[: max(room, 0)].decode("utf-8", "ignore")
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if len(json_string(text[:middle])) <= room:
            low = middle
        else:
            high = middle - 1
    return text[:low]
