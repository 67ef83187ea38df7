"""Who a client is, and the access tokens of external identity providers that say so.

Access tokens are JWTs, checked against the keys of their issuer.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import jwt

from clawmode.addresses import is_loopback
from clawmode.exceptions import ClawmodeError
from clawmode.tasks import read_bounded
from clawmode.types import dataclass

logger = logging.getLogger("clawmode.mcp")

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Signatures by a private key only: whoever can check a token must not be able to make one."""

KEYS_SECONDS = 600.0
RETRY_SECONDS = 30.0
"""How long keys are used, and the least time between two requests for them."""

FETCH_SECONDS = 10.0
MAX_BYTES = 1 << 20
LEEWAY = 30
"""Seconds by which the clocks of the issuer and of this machine may differ."""

MAX_TOKEN = 16 << 10


@dataclass(frozen=True, slots=True)
class Principal:
    """A client, as it has authenticated.

    Attributes:
        id: Never that of another client; the same in every process that uses the state folder.
        name: For logs.
        alias: Another name that `clawmode login --as` knows; empty if it knows only the id.
    """

    id: str
    name: str = ""
    alias: str = ""


class NotAdmitted(Exception):
    """A bearer token is not valid here.

    Attributes:
        error: The code of RFC 6750.
        is_guess: True if the token counts as an attempt to guess one.
    """

    def __init__(self, text: str, error: str = "invalid_token", *, is_guess: bool = True) -> None:
        super().__init__(text)
        self.error = error
        self.is_guess = is_guess


class IssuerUnavailable(ClawmodeError):
    """The keys of the issuer cannot be fetched, or make no sense."""


def is_secure(url: str) -> bool:
    """True for an `https` URL, and for any URL of this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return bool(host) and (
        parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    )


class Issuer:
    """Checks the access tokens that an identity provider issued for this server.

    Args:
        url: The issuer, exactly as its tokens and its metadata name it.
        audience: The `aud` of tokens for this server: its public URL.
        scope: A scope that tokens must have; empty for none.
        clock: Returns the monotonic time, in seconds.
    """

    def __init__(
        self,
        url: str,
        audience: str,
        scope: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url
        self.audience = audience
        self.scope = scope
        self._clock = clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched = -KEYS_SECONDS
        self._fetching = anyio.Lock()

    async def verify(self, token: str) -> Principal:
        """Returns the user of a token.

        Raises:
            NotAdmitted: The token is not one of the issuer for this server, or lacks the scope.
        """
        try:
            if len(token) > MAX_TOKEN:
                raise NotAdmitted("The access token is too long.")
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in ALGORITHMS:
                raise NotAdmitted("The access token is not signed by an accepted algorithm.")
            key = await self._key(str(header.get("kid", "")))
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self.audience,
                issuer=self.url,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.ExpiredSignatureError:
            raise NotAdmitted("The access token has expired.", is_guess=False) from None
        except IssuerUnavailable as error:
            logger.warning("%s", error)
            text = "Access tokens cannot be checked now."
            raise NotAdmitted(text, "temporarily_unavailable", is_guess=False) from None
        except (jwt.PyJWTError, ValueError, TypeError):
            raise NotAdmitted("The access token is not valid here.") from None
        return self._principal(claims)

    def _principal(self, claims: dict[str, Any]) -> Principal:
        subject = claims["sub"]
        if not isinstance(subject, str) or not subject:
            raise NotAdmitted("The access token names no user.")
        given = claims.get("scope", claims.get("scp", ""))
        scopes = given.split() if isinstance(given, str) else given
        if self.scope and not (isinstance(scopes, list) and self.scope in scopes):
            text = f"The access token lacks the scope {self.scope}."
            raise NotAdmitted(text, "insufficient_scope", is_guess=False)
        identity = json.dumps([self.url, subject]).encode()
        name = str(claims.get("email") or claims.get("preferred_username") or subject)
        shown = "".join(letter for letter in name[:100] if letter.isprintable())
        return Principal(f"user-{hashlib.sha256(identity).hexdigest()[:32]}", shown)

    # ---- Keys ----

    async def _key(self, key_id: str) -> jwt.PyJWK:
        """Returns the key of an id; fetches the keys if they are old, or if the id is unknown."""
        async with self._fetching:
            age = self._clock() - self._fetched
            if age >= KEYS_SECONDS or (key_id not in self._keys and age >= RETRY_SECONDS):
                # Also before a failure: a flood of tokens must not become a flood of requests.
                self._fetched = self._clock()
                self._keys = await self._fetch_keys()
        if key_id not in self._keys:
            raise NotAdmitted("The access token is signed by an unknown key.")
        return self._keys[key_id]

    async def _fetch_keys(self) -> dict[str, jwt.PyJWK]:
        address = str((await self._metadata()).get("jwks_uri", ""))
        if not is_secure(address):
            raise IssuerUnavailable(f"{self.url} has no `jwks_uri` that can be trusted")
        found = (await _fetch(address)).get("keys")
        keys: dict[str, jwt.PyJWK] = {}
        for each in found if isinstance(found, list) else []:
            if not isinstance(each, dict) or each.get("use", "sig") != "sig":
                continue
            if each.get("kty") in ("RSA", "EC", "OKP"):  # never `oct`: that is a shared secret
                try:
                    keys[str(each.get("kid", ""))] = jwt.PyJWK.from_dict(each)
                except (jwt.PyJWTError, ValueError, TypeError, KeyError):
                    logger.info("a key of %s cannot be used", self.url)
        if not keys:
            raise IssuerUnavailable(f"{self.url} has no keys that can be used")
        return keys

    async def _metadata(self) -> dict[str, Any]:
        parts = urlsplit(self.url)
        path = parts.path.rstrip("/")
        problem = ""
        for address in (
            f"{parts.scheme}://{parts.netloc}/.well-known/oauth-authorization-server{path}",
            f"{self.url.rstrip('/')}/.well-known/openid-configuration",
        ):
            try:
                found = await _fetch(address)
            except IssuerUnavailable as error:
                problem = str(error)
                continue
            if found.get("issuer") == self.url:
                return found
            problem = f"{address} is the metadata of another issuer: {found.get('issuer')!r:.200}"
        raise IssuerUnavailable(problem)


async def _fetch(address: str) -> dict[str, Any]:
    """Returns the JSON object at an address."""
    try:
        with anyio.fail_after(FETCH_SECONDS):
            async with httpx2.AsyncClient() as client, client.stream("GET", address) as response:
                if response.status_code != 200:
                    raise IssuerUnavailable(f"{address}: HTTP status {response.status_code}")
                content = await read_bounded(response.aiter_bytes(), MAX_BYTES)
        if content is None:
            raise IssuerUnavailable(f"{address}: more than {MAX_BYTES} bytes")
        found = json.loads(content)
    except (httpx2.HTTPError, TimeoutError, ValueError) as error:
        raise IssuerUnavailable(f"{address}: {type(error).__name__} {error}"[:300]) from None
    if not isinstance(found, dict):
        raise IssuerUnavailable(f"{address}: not a JSON object")
    return found
