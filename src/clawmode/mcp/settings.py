"""How one MCP server is reached, as plain data that shows none of its secrets."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

Transport: TypeAlias = Literal["stdio", "streamable-http", "sse"]
Grant: TypeAlias = Literal["authorization_code", "client_credentials"]

SECRETIVE = re.compile(r"key|token|secret|pass|credential|auth|cookie|bearer|pwd", re.IGNORECASE)
"""The name of a variable, of a flag or of a header that says that a secret is to follow."""

DEFAULT_TIMEOUT_MS = 60_000
DEFAULT_CONNECT_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """A token that goes with every request."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuth:
    """OAuth 2.1. Without a client id, the client registers itself with the authorization server.

    Attributes:
        grant: Whether a person logs in, or the client has a secret of its own.
        issuer: Whom that secret is shown to: otherwise the MCP server could choose.
        redirect_port: Where the browser comes back to on this machine; 0 takes any that is free.
    """

    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    scopes: tuple[str, ...] = ()
    grant: Grant = "authorization_code"
    issuer: str | None = None
    redirect_port: int = 0


Auth: TypeAlias = Bearer | OAuth


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How to reach one server. Variables are filled in; shows nothing that may be a secret.

    Attributes:
        name: What programs and policies call it.
        env: What a `stdio` server gets beside the few variables that are harmless.
        timeout: Seconds for a call, unless it reports progress or asks a person.
        connect_timeout: Seconds to start, shake hands and list the tools.
        trust_annotations: Believe the server that a tool only reads, or may be repeated.
        secrets: What `redact` strikes out.
        fault: Why the entry cannot be used. Such a server is never connected.
    """

    name: str
    transport: Transport
    command: str = field(default="", repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = field(default=None, repr=False)
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    auth: Auth | None = None
    timeout: float = DEFAULT_TIMEOUT_MS / 1000
    connect_timeout: float = DEFAULT_CONNECT_TIMEOUT_MS / 1000
    enabled: bool = True
    trust_annotations: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)
    fault: str = ""

    @property
    def place(self) -> str:
        """Where it is, for people: the command, or the address without what may be a secret."""
        if self.transport == "stdio":
            return self.redact(self.command)
        url = urlsplit(self.url)
        return self.redact(f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}")

    def redact(self, text: str) -> str:
        """The text without any of the secrets."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text
