"""Signatures of webhook requests, in both directions, and protection against replays.

The signature is HMAC-SHA256 over `<timestamp>.<body>`: it cannot be made without the secret, and it
expires after some minutes.
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
"""The number of messages of one channel that are remembered."""

State: TypeAlias = Literal["new", "under_way", "taken", "replayed", "full"]


class Signer:
    """Makes and checks signatures with one secret."""

    def __init__(self, secret: str, clock: Callable[[], float] = time.time) -> None:
        self._secret = secret.encode()
        self._clock = clock

    def headers(self, body: bytes) -> dict[str, str]:
        """Returns the headers for a body that is sent now."""
        timestamp = str(int(self._clock()))
        return {TIMESTAMP: timestamp, SIGNATURE: self._sign(timestamp, body)}

    def is_fresh(self, timestamp: str) -> bool:
        """True if the text is a timestamp close to the current time."""
        if not re.fullmatch(r"[0-9]{1,12}", timestamp):
            return False
        return abs(self._clock() - int(timestamp)) <= SKEW_SECONDS

    def is_mine(self, signature: str, timestamp: str, body: bytes) -> bool:
        """True if the signature was made with this secret."""
        given = signature.encode("utf-8", "replace")
        return hmac.compare_digest(given, self._sign(timestamp, body).encode())

    def has_key_of(self, other: "Signer") -> bool:
        """True if both accept the same signatures; different secrets can be the same HMAC key."""
        return hmac.compare_digest(self._sign("", b""), other._sign("", b""))

    def _sign(self, timestamp: str, body: bytes) -> str:
        signed = timestamp.encode() + b"." + body
        return "sha256=" + hmac.new(self._secret, signed, hashlib.sha256).hexdigest()


class ReplayGuard:
    """Remembers which messages were accepted.

    Beyond the limit the oldest ids are forgotten. A signature is kept until it has expired; beyond
    the limit of signatures, new messages are rejected for a while.
    """

    def __init__(
        self, limit: int = REMEMBERED, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = limit
        self._clock = clock
        self._taken: dict[str, None] = {}
        self._under_way: set[str] = set()
        self._signatures: dict[str, float] = {}

    def look(self, message_id: str, signature: str) -> State:
        """Returns whether a message is new, in progress, accepted or replayed."""
        if message_id in self._under_way:
            return "under_way"
        if message_id in self._taken:
            return "taken"
        self._forget()
        if signature in self._signatures:
            return "replayed"
        return "full" if len(self._signatures) >= self._limit else "new"

    def begin(self, message_id: str, signature: str) -> None:
        """Marks a message as in progress."""
        self._under_way.add(message_id)
        # A timestamp may lie in the future by as much as in the past.
        self._signatures[signature] = self._clock() + 2 * SKEW_SECONDS

    def end(self, message_id: str, signature: str, *, taken: bool) -> None:
        """Marks a message as accepted, or lets it be sent again."""
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
