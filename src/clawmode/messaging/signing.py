"""Signatures of what goes over a webhook, both ways, and the memory of what was taken already.

The signature is HMAC-SHA256 over `<timestamp>.<body>`: without the secret nobody can make one, and
after some minutes nobody can use one again.
"""

import hashlib
import hmac
import re
import time
from collections.abc import Callable
from typing import Literal, TypeAlias

SIGNATURE = "x-clawmode-signature"
TIMESTAMP = "x-clawmode-timestamp"
SKEW_SECONDS = 300
REMEMBERED = 10_000
"""Messages of one channel."""

Known: TypeAlias = Literal["new", "under_way", "taken", "replayed", "full"]


class Signer:
    """Signs, and knows its own signature."""

    def __init__(self, secret: str, clock: Callable[[], float] = time.time) -> None:
        self._secret = secret.encode()
        self._clock = clock

    def headers(self, body: bytes) -> dict[str, str]:
        """What goes with a body that is sent now."""
        timestamp = str(int(self._clock()))
        return {TIMESTAMP: timestamp, SIGNATURE: self._sign(timestamp, body)}

    def is_fresh(self, timestamp: str) -> bool:
        """Whether it is a time, and about now."""
        if not re.fullmatch(r"[0-9]{1,12}", timestamp):
            return False
        return abs(self._clock() - int(timestamp)) <= SKEW_SECONDS

    def is_mine(self, signature: str, timestamp: str, body: bytes) -> bool:
        """Whether whoever signed it has the secret."""
        given = signature.encode("utf-8", "replace")
        return hmac.compare_digest(given, self._sign(timestamp, body).encode())

    def has_key_of(self, other: "Signer") -> bool:
        """Whether the two take each other's signatures: different secrets can be one HMAC key."""
        return hmac.compare_digest(self._sign("", b""), other._sign("", b""))

    def _sign(self, timestamp: str, body: bytes) -> str:
        signed = timestamp.encode() + b"." + body
        return "sha256=" + hmac.new(self._secret, signed, hashlib.sha256).hexdigest()


class Seen:
    """Which messages were taken.

    Ids are forgotten when there are too many, the oldest first. A signature is not, as long as it
    could be used again: when there are too many of them, nothing more is taken for a while.
    """

    def __init__(
        self, limit: int = REMEMBERED, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = limit
        self._clock = clock
        self._taken: dict[str, None] = {}
        self._under_way: set[str] = set()
        self._signatures: dict[str, float] = {}

    def look(self, message_id: str, signature: str) -> Known:
        """What is known of a message."""
        if message_id in self._under_way:
            return "under_way"
        if message_id in self._taken:
            return "taken"
        self._forget()
        if signature in self._signatures:
            return "replayed"
        return "full" if len(self._signatures) >= self._limit else "new"

    def begin(self, message_id: str, signature: str) -> None:
        """A message that is being taken."""
        self._under_way.add(message_id)
        # A timestamp may be ahead of us by as much as it may be behind.
        self._signatures[signature] = self._clock() + 2 * SKEW_SECONDS

    def end(self, message_id: str, signature: str, *, taken: bool) -> None:
        """It was taken, or may be sent again."""
        self._under_way.discard(message_id)
        if taken:
            self._taken[message_id] = None
        else:
            self._signatures.pop(signature, None)
        while len(self._taken) > self._limit:
            del self._taken[next(iter(self._taken))]

    def _forget(self) -> None:
        now = self._clock()
        while self._signatures and next(iter(self._signatures.values())) <= now:
            del self._signatures[next(iter(self._signatures))]
