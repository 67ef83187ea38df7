"""Tokens of clients: created once, stored as hashes, compared in constant time."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field

from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.files import file_lock, write_atomic
from clawmode.records import Items, Record, parse
from clawmode.rpc.scopes import SCOPES, Scope

FILE, MCP_FILE = "gateway-tokens.json", "mcp-clients.json"
"""The tokens of the gateway, and those of `clawmode mcp --http`."""
MAX_FILE = 1 << 20
MAX_TOKENS = 1_000
PREFIX = "cm_"
LOCAL, CONFIGURED = "local", "configured"
RESERVED = (LOCAL, CONFIGURED)
"""The names of the gateway's own tokens: the one of the process, and that of the configuration."""


class TokenError(ClawmodeError):
    """The file of tokens cannot be read or written, or has no such token."""


class Token(Record):
    """The record of a token, without the token itself.

    Attributes:
        name: The name of its owner, in logs and as the principal of requests.
        digest: The SHA-256 hash, in hexadecimal. A token is long and random: it needs no salt.
    """

    name: str
    digest: str = Field(alias="sha256", pattern="^[0-9a-f]{64}$", title="64 hexadecimal digits")
    scopes: Items[Scope] = SCOPES
    created_at: int = 0


class TokenFile(Record):
    """The content of the file of tokens."""

    version: int = 1
    tokens: Items[Token]


def is_name(name: str) -> bool:
    """True for a name of a token that people cannot mistake for another one."""
    return 0 < len(name) <= 100 and name.isprintable() and name == name.strip()


def digest(token: str) -> str:
    """Returns the hash of a token, which is stored instead of the token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def new_token() -> str:
    """Returns a new random token."""
    return PREFIX + secrets.token_urlsafe(32)


class Tokens:
    """The tokens of a state folder, and those of this process.

    Args:
        state: The state folder.
        extra: Tokens that are not in the file: the token of this process first, then the one of the
            configuration.
        file: The name of the file in the state folder.
    """

    def __init__(self, state: Path, extra: Iterable[Token] = (), file: str = FILE) -> None:
        self._path = state / file
        self._extra = tuple(extra)

    @property
    def own(self) -> tuple[Token, ...]:
        """The tokens that are not in the file."""
        return self._extra

    def find(self, token: str) -> Token | None:
        """Returns the record of a token; None if the token is unknown.

        Reads the file each time, so that a revoked token is rejected at once.

        Raises:
            TokenError: The file cannot be used. Then no token is valid.
        """
        wanted = digest(token)
        found: Token | None = None
        # No early exit: the time that it takes must not depend on which token matches.
        for record in (*self._extra, *self.list()):
            if hmac.compare_digest(record.digest, wanted):
                found = found or record
        return found

    def missing(self, wanted: Iterable[str]) -> set[str]:
        """Returns those of some hashes whose token no longer exists.

        Raises:
            TokenError: The file cannot be used. Then only the tokens of this process are valid.
        """
        return set(wanted).difference(it.digest for it in (*self._extra, *self.list()))

    def are_chosen(self) -> bool:
        """Returns whether the operator created a token, besides the one of this process.

        Raises:
            TokenError: The file cannot be used.
        """
        return len(self._extra) > 1 or bool(self.list())

    def list(self) -> list[Token]:
        """Returns the tokens of the file.

        Raises:
            TokenError: The file cannot be used.
        """
        try:
            with self._path.open("rb") as file:
                raw = file.read(MAX_FILE + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise TokenError(f"{self._path}: {error.strerror or error}") from None
        try:
            if len(raw) > MAX_FILE:
                raise ValueError(f"the file is larger than {MAX_FILE} bytes")
            found = list(parse(TokenFile, raw).tokens)
            for record in found:
                if not record.name.isprintable():
                    raise ValueError(f"the name {record.name[:80]!r} has unprintable characters")
            return found
        except (ValueError, ConfigurationError) as error:
            raise TokenError(f"{self._path} is not a list of tokens: {error}") from None

    def add(self, name: str, scopes: tuple[Scope, ...] = SCOPES) -> str:
        """Creates a token and returns it: it cannot be shown again, as only its hash is stored.

        Raises:
            TokenError: The name is taken, or the file cannot be used.
        """
        token = new_token()
        record = Token(name=name, digest=digest(token), scopes=scopes, created_at=int(time.time()))
        with self._locked():
            known = self.list()
            if name in RESERVED or any(other.name == name for other in known):
                raise TokenError(f"a token named {name!r} already exists: choose another name")
            if len(known) >= MAX_TOKENS:
                raise TokenError(f"there are already {MAX_TOKENS} tokens: revoke one first")
            self._write([*known, record])
        return token

    def revoke(self, name: str) -> None:
        """Removes a token from the file.

        Raises:
            TokenError: There is no token of this name, or the file cannot be used.
        """
        with self._locked():
            known = self.list()
            others = [record for record in known if record.name != name]
            if len(others) == len(known):
                raise TokenError(
                    f"there is no token named {name!r}; `token list` shows the names of all tokens"
                )
            self._write(others)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps other processes from changing the file inside of the block."""
        try:
            with file_lock(self._path.with_name(f"{self._path.name}.lock")):
                yield
        except OSError as error:
            raise TokenError(f"{self._path}: {error.strerror or error}") from None

    def _write(self, tokens: Iterable[Token]) -> None:
        write_atomic(self._path, TokenFile(tokens=tuple(tokens)).model_dump_json(indent=1))
