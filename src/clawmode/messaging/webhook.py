"""The webhook channel: messages arrive and leave as signed POST requests.

A request is answered as soon as its message is stored. `webhook_request` parses requests,
`webhook_delivery` sends, and `signing` makes and checks signatures. This module decides who may
write, and rejects repeated messages.
"""

import logging
import re
import uuid
from collections.abc import Iterator, Mapping

from anyio.abc import AsyncResource
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from clawmode.config.file import read_secret
from clawmode.config.operations import ChannelEntry
from clawmode.exceptions import ConfigurationError, message_of
from clawmode.messaging.channel import ChannelError, InboundMessage, Receive
from clawmode.messaging.signing import ReplayGuard, Signer
from clawmode.messaging.webhook_delivery import Delivery, Retry, parse_address
from clawmode.messaging.webhook_request import (
    MAX_ID,
    MAX_TARGET,
    Note,
    Refused,
    parse_note,
    read_signed,
)
from clawmode.records import join
from clawmode.sessions.keys import InvalidSession
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.channels")

MAX_READ = 64
"""The most requests whose bodies are read concurrently, a mebibyte each."""
MAX_WAITING = 32
"""The most messages that are accepted concurrently."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_channel(
    name: str, entry: ChannelEntry, environment: Mapping[str, str] | None = None
) -> Iterator[ConfigurationError]:
    """Yields an error for each problem of a configured channel."""
    if not _NAME.fullmatch(name):
        expected = "up to 64 letters, digits, `_` and `-`"
        text = f"channels: {name[:80]!r} is not a channel name; expected {expected}"
        yield ConfigurationError(text, path="channels", expected=expected)
        return
    try:
        read_signer(name, entry, environment)
    except ConfigurationError as error:
        yield error
    if entry.url:
        try:
            parse_address(name, entry.url)
        except ConfigurationError as error:
            yield error


def read_signer(
    name: str, entry: ChannelEntry, environment: Mapping[str, str] | None = None
) -> Signer:
    """Returns the signer of a channel.

    Raises:
        ConfigurationError: A secret is missing or invalid.
    """
    path = join("channels", name)
    secrets = [read_secret(f"{path}.secret", entry.secret, environment)]
    if entry.previous_secret:
        secrets.append(read_secret(f"{path}.previousSecret", entry.previous_secret, environment))
    try:
        return Signer(*secrets)
    except ValueError:
        raise ConfigurationError(
            f"{path}: a secret that begins with `whsec_` must continue with base64", path=path
        ) from None


def check_secrets(channels: Mapping[str, ChannelEntry]) -> Iterator[ConfigurationError]:
    """Yields an error for each channel that shares its secret with another one.

    The name of a channel is not signed, so each would accept what was signed for the other.
    """
    known: list[tuple[str, Signer]] = []
    for name, entry in channels.items():
        path = join("channels", name) + ".secret"
        try:
            signer = read_signer(name, entry)
        except ConfigurationError:  # reported by `check_channel`
            continue
        for other, its in known:
            if entry.enabled and signer.shares_a_key_with(its):
                text = (
                    f"{path}: the channel {other!r} has the same secret, and a request signed for "
                    "one would be accepted by the other. Give each channel a secret of its own"
                )
                yield ConfigurationError(text, path=path)
        if entry.enabled:
            known.append((name, signer))


class WebhookChannel(AsyncResource):
    """A channel of the configuration. Used inside of `async with`, or closed by `aclose`.

    Args:
        name: The name in the configuration.
        entry: The entry of the configuration.
        receive: Accepts the messages.
        environment: The variables for `${VARIABLE}`.
        retry: How often sending is retried.
        seen: Rejects repeated messages.

    Raises:
        ConfigurationError: The name, the secret or the URL is not valid.
    """

    def __init__(
        self,
        name: str,
        entry: ChannelEntry,
        receive: Receive,
        *,
        environment: Mapping[str, str] | None = None,
        retry: Retry | None = None,
        seen: ReplayGuard | None = None,
    ) -> None:
        for error in check_channel(name, entry, environment):
            raise error
        self._name = name
        self._entry = entry
        self._receive = receive
        self._signer = read_signer(name, entry, environment)
        self._seen = seen or ReplayGuard()
        self._reading = 0
        self._waiting = 0
        self._delivery: Delivery | None = None
        if entry.url:
            address, seconds = parse_address(name, entry.url), entry.timeout_ms / 1000
            self._delivery = Delivery(address, self._signer, seconds, retry or Retry())

    async def aclose(self) -> None:
        if self._delivery is not None:
            await self._delivery.aclose()

    @property
    def name(self) -> str:
        return self._name

    @property
    def can_edit(self) -> bool:
        return self._entry.edits and self._delivery is not None

    @property
    def block_streaming(self) -> bool:
        return self._entry.block_streaming

    # ---- Receiving ----

    def route(self) -> Route:
        """Returns the HTTP route that messages are posted to: `/channels/<name>`."""
        return Route(f"/channels/{self._name}", self._answer, methods=["POST"])

    async def _answer(self, request: Request) -> JSONResponse:
        try:
            return await self._take(request)
        except Refused as refused:
            logger.info("channel %s: a request was rejected: %s", self._name, refused.code)
            error = {"code": refused.code, "message": str(refused)}
            headers = {"retry-after": "1"} if refused.status == 429 else None
            return JSONResponse({"error": error}, refused.status, headers)

    async def _take(self, request: Request) -> JSONResponse:
        if self._reading >= MAX_READ:
            raise Refused(429, "too_many", "too many concurrent requests")
        self._reading += 1
        try:
            posted = await read_signed(request, self._signer)
        finally:
            self._reading -= 1
        note = parse_note(posted.body)
        allowed = self._entry.allow_from
        if "*" not in allowed and note.sender not in allowed:
            raise Refused(
                403, "sender_not_allowed", "this sender is not allowed to write to the channel"
            )
        known = self._seen.look(note.id, posted.signature)
        if known == "taken":
            return JSONResponse({"accepted": True, "id": note.id, "repeated": True}, 200)
        if known == "under_way" or known == "replayed":
            raise Refused(409, known, "this message was received already")
        if known == "full" or self._waiting >= MAX_WAITING:
            raise Refused(429, "too_many", "too many messages are waiting")
        taken = False
        self._waiting += 1
        self._seen.begin(note.id, posted.signature)
        try:
            await self._hand_over(note)
            taken = True
        finally:  # a message that was not accepted may be sent again
            self._seen.end(note.id, posted.signature, taken=taken)
            self._waiting -= 1
        return JSONResponse({"accepted": True, "id": note.id}, 202)

    async def _hand_over(self, note: Note) -> None:
        operator = note.sender in self._entry.operators
        message = InboundMessage(
            channel=self._name,
            target=note.target,
            sender=note.sender,
            text=note.text,
            id=note.id,
            images=note.images,
            agent_id=self._entry.agent or "",
            session_key=note.session if operator else "",
            operator=operator,
        )
        try:
            await self._receive(message)
        except InvalidSession as error:
            raise Refused(400, "invalid_session", str(error)) from None
        except Exception as error:
            kind = type(error).__name__
            logger.error(
                "channel %s: a message was not accepted: %s: %s",
                self._name,
                kind,
                message_of(error),
            )
            raise Refused(
                500, "not_taken", "the message could not be accepted; try again"
            ) from None

    # ---- Sending ----

    async def send(self, target: str, text: str) -> str:
        """Sends a message, and returns its id in the channel.

        Raises:
            ChannelError: The message was not sent.
        """
        key = uuid.uuid4().hex
        answer = await self._post("message", target, text, key, key)
        found = answer.get("id")
        if isinstance(found, int) and not isinstance(found, bool):
            found = str(found) if found.bit_length() <= 64 else ""
        return found if isinstance(found, str) and _is_name(found, MAX_ID) else key

    async def edit(self, target: str, message_id: str, text: str) -> None:
        """Changes a message that was sent.

        Raises:
            ChannelError: The message was not changed.
        """
        if not self.can_edit:
            raise ChannelError(f"the channel {self._name!r} cannot change messages")
        if not _is_name(message_id, MAX_ID):
            raise ChannelError(f"{message_id[:80]!r} is not a message id")
        await self._post("edit", target, text, message_id, uuid.uuid4().hex)

    async def _post(
        self, kind: str, target: str, text: str, message_id: str, key: str
    ) -> JsonObject:
        if self._delivery is None:
            raise ChannelError(f"nothing can be sent: channels.{self._name}.url is not set")
        if not _is_name(target, MAX_TARGET):
            raise ChannelError(f"{target[:80]!r} is not a target")
        body: JsonObject = {
            "type": kind,
            "channel": self._name,
            "target": target,
            "text": text.encode("utf-8", "replace").decode(),
            "id": message_id,
            "idempotencyKey": key,
        }
        return await self._delivery.post(body, key)


def _is_name(text: str, limit: int) -> bool:
    return 0 < len(text) <= limit and text.isprintable()
