"""Settings of one MCP server, as plain data whose `repr` shows no secrets."""

import math
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from clawmode.types import dataclass

Transport: TypeAlias = Literal["stdio", "streamable-http", "sse"]
Credentials: TypeAlias = Literal["shared", "user"]
Grant: TypeAlias = Literal["authorization_code", "client_credentials"]

SECRETIVE = re.compile(r"key|token|secret|pass|credential|auth|cookie|bearer|pwd", re.IGNORECASE)
"""Matches names of variables, flags and headers whose value is probably a secret."""

DEFAULT_TIMEOUT_MS = 60_000
DEFAULT_CONNECT_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """A token that is sent with every request."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuth:
    """OAuth 2.1. Without a client id, the client registers itself with the authorization server.

    Attributes:
        grant: `authorization_code` if a user logs in; `client_credentials` if the client
            authenticates with its own secret.
        issuer: The only authorization server that receives the client secret. Without it the MCP
            server could choose the receiver.
        redirect_port: The local port to which the browser returns; 0 for any free port.
        private_key: The key in PEM format with which the client signs who it is, in place of a
            secret (`private_key_jwt`).
        client_metadata_url: The address of a document that describes the client. It is the client
            id at authorization servers that support such documents.
    """

    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    scopes: tuple[str, ...] = ()
    grant: Grant = "authorization_code"
    issuer: str | None = None
    redirect_port: int = 0
    private_key: str | None = field(default=None, repr=False)
    client_metadata_url: str | None = None


Auth: TypeAlias = Bearer | OAuth


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How to reach one server, with variables expanded. The `repr` shows no secrets.

    Attributes:
        name: The name of the server in programs and policies.
        env: Variables for a `stdio` server, in addition to a few harmless ones.
        timeout: Seconds for a call. Progress extends it; a question to a user suspends it.
        connect_timeout: Seconds to start, to perform the handshake and to list the tools.
        credentials: `user` if each user of `clawmode mcp --http` has a connection and a login.
        idle_timeout: Seconds without a call after which the connection is closed until the next.
        login_command: What to run if a login is missing, for error messages.
        trust_annotations: True to believe the server that a tool is read-only or idempotent.
        enabled_tools: The only tools that are listed and can be called; None for all of them. A
            `*` in a name stands for any text.
        disabled_tools: Tools that are neither listed nor can be called.
        secrets: The strings that `redact` replaces.
        fault: Why the entry is invalid. Such a server is never connected.
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
    credentials: Credentials = "shared"
    idle_timeout: float = math.inf
    login_command: str = ""
    timeout: float = DEFAULT_TIMEOUT_MS / 1000
    connect_timeout: float = DEFAULT_CONNECT_TIMEOUT_MS / 1000
    enabled: bool = True
    trust_annotations: bool = False
    enabled_tools: tuple[str, ...] | None = None
    disabled_tools: tuple[str, ...] = ()
    secrets: tuple[str, ...] = field(default=(), repr=False)
    fault: str = ""

    @property
    def place(self) -> str:
        """The command, or the address without user, password and query, for people."""
        if self.transport == "stdio":
            return self.redact(self.command)
        url = urlsplit(self.url)
        return self.redact(f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}")

    def redact(self, text: str) -> str:
        """Replaces the secrets in a text by `***`."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text
