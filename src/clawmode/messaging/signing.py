"""Signatures of webhook requests, in both directions, and protection against replays.

There are two kinds of signatures: those of Standard Webhooks, over id, timestamp and body, and the
older ones of clawmode, over timestamp and body. Requests are sent with both, and accepted with
either. A signature cannot be made without the secret, and it expires after some minutes.
"""

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from standardwebhooks import Webhook
from standardwebhooks.webhooks import EmptyWebhookSecretError, WebhookVerificationError

STANDARD = ("webhook-signature", "webhook-timestamp", "webhook-id")
OWN = ("x-clawmode-signature", "x-clawmode-timestamp")
"""The names of the headers: signature, timestamp, and the id if there is one."""

SKEW_SECONDS = 300
"""Also the limit of `standardwebhooks`."""

REMEMBERED = 10_000
"""The number of messages of one channel that are remembered."""

State: TypeAlias = Literal["new", "under_way", "taken", "replayed", "full"]


class Signer:
    """Makes and checks signatures.

    Args:
        secrets: The secret, and further ones that are still accepted. In Standard Webhooks, a
            secret of the form `whsec_<base64>` is decoded.
        clock: Returns the time like `time.time`.

    Raises:
        ValueError: A secret begins with `whsec_`, and continues with something other than base64.
    """

    def __init__(self, *secrets: str, clock: Callable[[], float] = time.time) -> None:
        self._keys = [secret.encode() for secret in secrets]
        try:
            self._webhooks = [
                Webhook(secret if secret.startswith("whsec_") else secret.encode())
                for secret in secrets
            ]
        except EmptyWebhookSecretError as error:
            raise ValueError(str(error)) from None
        self._clock = clock

    def headers(self, body: bytes, message_id: str) -> dict[str, str]:
        """Returns the headers for a body that is sent now."""
        now = int(self._clock())
        signatures = [_standard(each, message_id, now, body) for each in self._webhooks]
        values = " ".join(signatures), str(now), message_id
        own = _own(self._keys[0], str(now), body), str(now)
        return dict(zip((*STANDARD, *OWN), (*values, *own), strict=True))

    def is_fresh(self, timestamp: str) -> bool:
        """True if the text is a timestamp close to the current time."""
        if not re.fullmatch(r"[0-9]{1,12}", timestamp):
            return False
        return abs(self._clock() - int(timestamp)) <= SKEW_SECONDS

    def verify(self, headers: Mapping[str, str], body: bytes) -> str:
        """Returns the signature that one of the secrets made, or an empty text.

        `headers` are those of `STANDARD` or of `OWN`, with a fresh timestamp. Their signature may
        be a list to which anybody can add, so only the returned one identifies the request.
        """
        if OWN[0] in headers:
            given = headers[OWN[0]].encode("utf-8", "replace")
            made = (_own(key, headers[OWN[1]], body) for key in self._keys)
            return next((each for each in made if hmac.compare_digest(given, each.encode())), "")
        for webhook in self._webhooks:
            try:
                webhook.verify(body, dict(headers), json_parse=False)
            except (WebhookVerificationError, ValueError):  # the latter for malformed texts
                continue
            return _standard(webhook, headers[STANDARD[2]], int(headers[STANDARD[1]]), body)
        return ""

    def shares_a_key_with(self, other: "Signer") -> bool:
        """True if both accept the same signatures; different secrets can be the same HMAC key."""
        return not self._fingerprints().isdisjoint(other._fingerprints())

    def _fingerprints(self) -> set[str]:
        made = {_own(key, "", b"") for key in self._keys}
        return made | {_standard(webhook, "", 0, b"") for webhook in self._webhooks}


def _own(key: bytes, timestamp: str, body: bytes) -> str:
    signed = timestamp.encode() + b"." + body
    return "sha256=" + hmac.new(key, signed, hashlib.sha256).hexdigest()


def _standard(webhook: Webhook, message_id: str, timestamp: int, body: bytes) -> str:
    return webhook.sign(message_id, datetime.fromtimestamp(timestamp, UTC), body.decode())


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
        now = self._clock()
        while self._signatures and next(iter(self._signatures.values())) <= now:
            del self._signatures[next(iter(self._signatures))]
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
