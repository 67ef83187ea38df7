"""Tokens: made once, kept as hashes, compared in constant time; and who has tried too often."""

import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawmode.exceptions import ClawmodeError
from clawmode.files import file_lock, write_atomic
from clawmode.rpc.scopes import SCOPES
from clawmode.types import JsonObject, JsonValue

FILE = "gateway-tokens.json"
MAX_FILE = 1 << 20
MAX_TOKENS = 1_000
PREFIX = "cm_"
LOCAL, CONFIGURED = "local", "configured"
RESERVED = (LOCAL, CONFIGURED)
"""What the gateway's own tokens are called."""


class TokenError(ClawmodeError):
    """Tokens that cannot be read or written, or one that there is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is known of a token: not the token.

    Attributes:
        name: What its owner is called in logs.
        digest: SHA-256 of it, in hexadecimal digits. A token is long and random: it needs no salt.
    """

    name: str
    digest: str
    scopes: tuple[str, ...] = SCOPES
    created_at: float = 0.0

    def to_json(self) -> JsonObject:
        """As it is kept."""
        return {
            "name": self.name,
            "sha256": self.digest,
            "scopes": list[JsonValue](self.scopes),
            "createdAt": int(self.created_at),
        }


def digest(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def new_token() -> str:
    """A token that nobody has."""
    return PREFIX + secrets.token_urlsafe(32)


class Tokens:
    """The tokens of a state folder, and those of this process alone.

    Args:
        state: Where the file is.
        extra: Tokens that stand elsewhere: in the configuration, or made for this process.
    """

    def __init__(self, state: Path, extra: Iterable[Token] = ()) -> None:
        self._path = state / FILE
        self._extra = tuple(extra)

    def find(self, token: str) -> Token | None:
        """Whose token it is. Reads a file, so that what is revoked is so at once.

        Raises:
            TokenError: The file cannot be used: then nobody is let in.
        """
        wanted = digest(token)
        found: Token | None = None
        for each in (*self._extra, *self.list()):  # all of them, however early one fits
            if hmac.compare_digest(each.digest, wanted):
                found = found or each
        return found

    def are_chosen(self) -> bool:
        """Whether there is any beside that of this process alone.

        Raises:
            TokenError: The file cannot be used.
        """
        return len(self._extra) > 1 or bool(self.list())

    def list(self) -> list[Token]:
        """Those that are kept.

        Raises:
            TokenError: The file cannot be used.
        """
        try:
            with self._path.open("rb") as file:
                raw = file.read(MAX_FILE + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise TokenError(f"{self._path.name}: {error.strerror or error}") from None
        try:
            if len(raw) > MAX_FILE:
                raise ValueError("it is too large")
            return [_read(each) for each in json.loads(raw)["tokens"]]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise TokenError(f"{self._path.name} is no list of tokens: {error}") from None

    def add(self, name: str, scopes: tuple[str, ...] = SCOPES) -> str:
        """Makes a token; nobody will see it again.

        Raises:
            TokenError: There is one of this name, or the file cannot be used.
        """
        made = new_token()
        token = Token(name=name, digest=digest(made), scopes=scopes, created_at=time.time())
        with self._alone():
            known = self.list()
            if name in RESERVED or any(each.name == name for each in known):
                raise TokenError(f"there is a token named {name!r} already")
            if len(known) >= MAX_TOKENS:
                raise TokenError(f"there are {MAX_TOKENS} tokens already")
            self._write([*known, token])
        return made

    def revoke(self, name: str) -> None:
        """Takes a token back.

        Raises:
            TokenError: There is none of this name, or the file cannot be used.
        """
        with self._alone():
            known = self.list()
            left = [each for each in known if each.name != name]
            if len(left) == len(known):
                raise TokenError(f"there is no token named {name!r}")
            self._write(left)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps others from changing the file meanwhile."""
        try:
            with file_lock(self._path.with_name(f"{self._path.name}.lock")):
                yield
        except OSError as error:
            raise TokenError(f"{self._path.name}: {error.strerror or error}") from None

    def _write(self, tokens: Iterable[Token]) -> None:
        data = json.dumps({"version": 1, "tokens": [each.to_json() for each in tokens]}, indent=1)
        write_atomic(self._path, data)


def _read(value: Any) -> Token:
    name, found, scopes = value["name"], value["sha256"], value["scopes"]
    if not isinstance(name, str) or not re.fullmatch("[0-9a-f]{64}", str(found)):
        raise ValueError("a token has a name and a digest")
    if not name.isprintable():
        raise ValueError(f"the name {name[:80]!r} has characters that cannot be printed")
    if not isinstance(scopes, list) or not all(it in SCOPES for it in scopes):
        raise ValueError(f"the scopes of {name[:80]!r} are none")
    return Token(
        name=name, digest=found, scopes=tuple(scopes), created_at=float(value.get("createdAt", 0))
    )


# ---- Who has tried too often ----
