"""Posts messages to a webhook: signed, with retries, and with care about the response.

Retries have the same idempotency key, so the receiver can recognize them. The URL may contain a
secret, so it is kept out of errors and logs, also out of those of the HTTP library.
"""

import functools
import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from urllib.parse import urlsplit

import anyio
import httpx2

from clawmode import __version__
from clawmode.exceptions import ConfigurationError
from clawmode.messaging.channel import ChannelError
from clawmode.messaging.signing import Signer
from clawmode.records import join
from clawmode.tasks import backoff, read_bounded
from clawmode.types import JsonObject, dataclass

logger = logging.getLogger("clawmode.channels")

IDEMPOTENCY_KEY = "idempotency-key"
MAX_ANSWER = 64 << 10
CONNECTIONS = 10

_posting: ContextVar[bool] = ContextVar("clawmode_channel_posting", default=False)


for _name in ("connection", "http11"):
    # At level DEBUG these loggers log hosts and all headers of a response.
    logging.getLogger(f"httpcore2.{_name}").addFilter(lambda record: not _posting.get())


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a request is tried, and the pauses between tries.

    Attributes:
        seconds: The first pause; each further pause is twice as long.
        longest: The longest pause, even if the receiver asks for more.
    """

    tries: int = 4
    seconds: float = 0.5
    longest: float = 10.0

    def wait(self, tried: int, asked: float) -> float:
        """Returns the pause after a number of tries, in seconds."""
        pause = backoff(tried, self.seconds, self.longest, jitter=0.25)
        return min(max(pause, asked), self.longest)


class _TryAgain(Exception):
    """A request failed and may be retried, at the earliest after `asked` seconds."""

    def __init__(self, reason: str, asked: float = 0.0) -> None:
        super().__init__(reason)
        self.asked = asked


def parse_address(channel: str, text: str) -> httpx2.URL:
    """Parses the URL of a channel.

    Raises:
        ConfigurationError: The text is not an http or https URL.
    """
    path = join(join("channels", channel), "url")
    expected = "an address with http:// or https://, without a user in it"
    wrong = ConfigurationError(f"{path}: expected {expected}", path=path, expected=expected)
    try:
        # httpx2 alone accepts an incomplete IPv6 address.
        parts, url = urlsplit(text), httpx2.URL(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except (httpx2.InvalidURL, ValueError):
        raise wrong from None
    if not good or not url.host or url.userinfo:
        raise wrong
    return url


class Delivery:
    """Posts to one URL. Close it with `aclose`."""

    def __init__(self, url: httpx2.URL, signer: Signer, seconds: float, retry: Retry) -> None:
        self._url = url
        self._signer = signer
        self._seconds = seconds
        self._retry = retry
        # A bare transport: a client would use proxy variables, keep cookies and log URLs.
        self._transport: httpx2.AsyncHTTPTransport | None = None

    async def aclose(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def post(self, body: JsonObject, key: str) -> JsonObject:
        """Posts a message; returns the response if it is a JSON object, else an empty one.

        Raises:
            ChannelError: The receiver rejected the message, or its answer is not known.
        """
        data = json.dumps(body).encode()
        token = _posting.set(True)
        try:
            for tried in range(1, self._retry.tries + 1):
                try:
                    return await self._try(data, key)
                except _TryAgain as failed:
                    if tried == self._retry.tries:
                        raise ChannelError(f"{failed}, {tried} times") from None
                    wait = self._retry.wait(tried, failed.asked)
                    logger.info("%s, try %d; again in %.1f s", failed, tried, wait)
                    await anyio.sleep(wait)
        finally:
            _posting.reset(token)
        raise AssertionError("the last try returns or raises")

    async def _try(self, data: bytes, key: str) -> JsonObject:
        taken = False
        with anyio.move_on_after(self._seconds) as scope:
            async with self._opened(data, key) as response:
                _check(response)
                taken = True
                return await _read(response)
        assert scope.cancelled_caught
        if not taken:
            raise _TryAgain("the receiver did not answer in time")
        return {}

    @asynccontextmanager
    async def _opened(self, data: bytes, key: str) -> AsyncIterator[httpx2.Response]:
        """Yields the response before its body is read."""
        if self._transport is None:
            limits = httpx2.Limits(max_connections=CONNECTIONS)
            self._transport = httpx2.AsyncHTTPTransport(_tls(), trust_env=False, limits=limits)
        headers = {
            "content-type": "application/json",
            "accept": "application/json",
            "accept-encoding": "identity",
            "user-agent": f"clawmode/{__version__}",
            IDEMPOTENCY_KEY: key,
        }
        request = httpx2.Request(
            "POST",
            self._url,
            content=data,
            headers=headers | self._signer.headers(data, key),
            extensions={"timeout": httpx2.Timeout(self._seconds).as_dict()},
        )
        try:
            response = await self._transport.handle_async_request(request)
        except (httpx2.TransportError, OSError) as error:
            raise _TryAgain(_reason(error)) from None
        try:
            yield response
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()


@functools.cache
def _tls() -> ssl.SSLContext:
    """Returns a shared context: reading the certificates takes 30 ms."""
    return httpx2.create_ssl_context()


def _reason(error: Exception) -> str:
    if isinstance(error, httpx2.TimeoutException):
        return "the receiver did not answer in time"
    if isinstance(error, httpx2.ConnectError):
        return "the receiver cannot be reached"
    return "the connection to the receiver was lost"


def _check(response: httpx2.Response) -> None:
    status = response.status_code
    if 200 <= status < 300:
        return
    said = f"the receiver answered HTTP {status}"
    if status == 429 or status >= 500:
        after = response.headers.get("retry-after", "")
        raise _TryAgain(said, float(after) if after.isdecimal() and len(after) < 6 else 0.0)
    if 300 <= status < 400:
        raise ChannelError(f"{said}: redirects are not followed")
    raise ChannelError(said)


async def _read(response: httpx2.Response) -> JsonObject:
    """Reads the response; returns an empty object if it is too large or not JSON."""
    try:
        answer = json.loads(await read_bounded(response.aiter_raw(), MAX_ANSWER) or b"")
    except (httpx2.HTTPError, httpx2.StreamError, ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
