"""Worker side: the output of a guest, counted against one budget as it is emitted.

Output and value share the budget, in UTF-8 bytes of their JSON. The item that exceeds the budget is
cut at a character, and the guest is stopped at once; it cannot catch this.
"""

import json
from typing import ClassVar

from clawmode.sandbox.line_map import CompileFailure
from clawmode.sandbox.protocol import ITEM_BYTES, Output


class OutputLimit(Exception):
    """Raised through the guest's stack when it has emitted too much."""


class Outbox:
    """Collects everything that one step of a cell emits.

    Attributes:
        left: Bytes that may still be emitted.
        value: JSON of the final value, once the main promise is fulfilled.
        failure: The prelude's description of an error, once there is one.
        compile_failure: Set if the error is that the source did not compile.
        omitted: Bytes that were left out of an item over the limit.
        prefix: The beginning of an item that is over the limit, while the rest is being counted.
    """

    CHANNELS: ClassVar[tuple[bytes, ...]] = (b"t", b"j", b"v", b"f", b"o", b"p")
    """Text, JSON, value, failure, omitted, prefix: the emitters of the prelude, in its order."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.output: list[Output] = []
        self.value: bytes | None = None
        self.failure: bytes | None = None
        self.compile_failure: CompileFailure | None = None
        self.omitted = 0
        self.prefix: bytes | None = None

    def emit(self, channel: bytes, data: bytes) -> None:
        """Accepts `data` from the prelude.

        Raises:
            OutputLimit: The data exceeds the budget.
        """
        match channel:
            case b"t":
                if len(data) > self.left:  # before the text is decoded and encoded again
                    self._cut(data)
                self._append(Output("text", json_string(data.decode("utf-8", "replace"))), data)
            case b"j":
                self._append(Output("json", data), data)
            case b"v":
                if self.omitted or len(data) > self.left:
                    self._cut(data)
                self.left -= len(data)
                self.value = data
            case b"f":
                self.failure = data
            case b"o":
                self.omitted += len(data)
            case b"p":
                self.prefix = data
            case _:
                raise RuntimeError(f"unknown channel {channel!r}")

    def _append(self, item: Output, data: bytes) -> None:
        if self.omitted or item.size > self.left:
            self._cut(data)
        self.left -= item.size
        self.output.append(item)

    def cut_short(self) -> None:
        """Keeps the known beginning of an item whose size was still being counted at the deadline.

        Raises:
            OutputLimit: Always.
        """
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
    """Encodes a text as a JSON string."""
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")


def longest_prefix(data: bytes, room: int) -> str:
    """Returns the longest prefix of UTF-8 `data` whose JSON takes at most `room` bytes."""
    # JSON is never shorter than the text. The cut may split a character, which is then ignored.
    text = data[: max(room, 0)].decode("utf-8", "ignore")
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if len(json_string(text[:middle])) <= room:
            low = middle
        else:
            high = middle - 1
    return text[:low]
