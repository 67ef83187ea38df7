"""Worker side: the output of a guest, counted against one budget as it is emitted.

Output and value share the budget, in UTF-8 bytes of their JSON. The item that exceeds the budget is
cut at a character, and the guest is stopped at once; it cannot catch this.
"""

import json
from typing import ClassVar

from clawmode.sandbox.images import media_type
from clawmode.sandbox.line_map import CompileFailure
from clawmode.sandbox.protocol import (
    ITEM_BYTES,
    MAX_STATE_BYTES,
    MAX_STATE_KEYS,
    MAX_STATE_NAME,
    MAX_STATE_VALUE,
    Output,
)


class OutputLimit(Exception):
    """Raised through the guest's stack when it has emitted too much."""


class Exited(Exception):
    """Raised through the guest's stack when it has called `exit`."""


class Outbox:
    """Collects everything that one step of a cell emits.

    Attributes:
        left: Bytes that may still be emitted.
        value: JSON of the final value, once the main promise is fulfilled.
        failure: The prelude's description of an error, once there is one.
        compile_failure: Set if the error is that the source did not compile.
        omitted: Bytes that were left out of an item over the limit.
        prefix: The beginning of an item that is over the limit, while the rest is being counted.
        state: What programs have stored; None if the host has not passed it.
        stored: What this step has stored, as JSON by key; None for a deleted key.
    """

    CHANNELS: ClassVar[tuple[bytes, ...]] = (
        b"t",
        b"j",
        b"v",
        b"f",
        b"o",
        b"p",
        b"s",
        b"x",
        b"i",
        b"b",
    )
    """Text, JSON, value, failure, omitted, prefix, state, exit, image, the size of a text: the
    prelude's emitters."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.output: list[Output] = []
        self.value: bytes | None = None
        self.failure: bytes | None = None
        self.compile_failure: CompileFailure | None = None
        self.omitted = 0
        self.prefix: bytes | None = None
        self.state: dict[str, bytes] | None = None
        self.stored: dict[str, bytes | None] = {}
        self._known: frozenset[str] = frozenset()

    def use_state(self, state: dict[str, bytes] | None) -> None:
        """Sets what the step can load and change; the host knows the keys in it."""
        self.state, self._known = state, frozenset(state or ())

    def emit(self, channel: bytes, data: bytes) -> bytes | None:
        """Accepts `data` from the prelude. Images and questions about the state have an answer.

        Raises:
            OutputLimit: The data exceeds the budget.
            Exited: The program has called `exit`, with `data` as its value.
        """
        match channel:
            case b"t":
                if len(data) > self.left:  # before the text is decoded and encoded again
                    self._cut(data)
                self._append(Output("text", json_string(data.decode("utf-8", "replace"))), data)
            case b"j":
                self._append(Output("json", data), data)
            case b"v" | b"x":
                if self.omitted or len(data) > self.left:
                    self._cut(data)
                self.left -= len(data)
                self.value = data
                if channel == b"x":
                    raise Exited
            case b"f":
                self.failure = data
            case b"o":
                self.omitted += len(data)
            case b"p":
                self.prefix = data
            case b"s" | b"i":
                return self._ask_state(data) if channel == b"s" else self._attach(data)
            case b"b":
                return str(len(data)).encode()  # counting in the guest would take 0.3 s per MB
            case _:
                raise RuntimeError(f"unknown channel {channel!r}")
        return None

    def _attach(self, image: bytes) -> bytes | None:
        """Accepts an image in base64; "!" if it is none."""
        if not media_type(image):
            return b"!"
        self.output.append(Output("image", image))
        return None

    def _ask_state(self, question: bytes) -> bytes | None:
        """Answers `load` with JSON, and `store` with nothing; "!" and a reason is a refusal."""
        if self.state is None:
            return UNNAMED
        head, _, value = question[1:].partition(b"\n")
        key = str(json.loads(head))
        if question[:1] == b"l":
            return self.state.get(key)
        others = {other: body for other, body in self.state.items() if other != key}
        if value:
            total = sum(map(len, others.values())) + len(value)
            if why := _refuse_state(len(others) + 1, total, len(key.encode()), len(value)):
                return f"!store({head[:100].decode(errors='ignore')}): {why}".encode()
        elif key not in self._known:
            self.state = others
            self.stored.pop(key, None)  # the host has never heard of the key
            return None
        self.state = {**others, key: value} if value else others
        self.stored[key] = value or None
        return None

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


UNNAMED = (
    b"!A program gets what was stored only if its text has the words `load` or `store`: write "
    b'load("key") and store("key", value).'
)


def _refuse_state(keys: int, total: int, name: int, size: int) -> str:
    if name > MAX_STATE_NAME:
        return f"the key is over {MAX_STATE_NAME} bytes: choose a shorter one."
    if size > MAX_STATE_VALUE:
        return "the value is over 1 MiB: keep less of it, or split it over several keys."
    drop = "drop one with store(key, undefined)"
    if keys > MAX_STATE_KEYS:
        return f"there are {MAX_STATE_KEYS} keys already: {drop}, or put several values into one."
    if total > MAX_STATE_BYTES:
        most = f"{MAX_STATE_BYTES >> 20} MiB"
        return f"all values together would be over {most}: keep less, or {drop}."
    return ""


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
