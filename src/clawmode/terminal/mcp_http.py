"""`clawmode mcp --http`: the address, the tokens of clients, and where their programs are kept."""

import os
from pathlib import Path
from urllib.parse import urlsplit

import anyio

from clawmode.addresses import Site, is_loopback
from clawmode.app.console import print_note
from clawmode.exceptions import ConfigurationError
from clawmode.mcp.http_face import PATH, http_app
from clawmode.mcp.identity import Issuer, NotAdmitted, Principal, is_secure
from clawmode.mcp.server import Opener
from clawmode.mcp.servers import McpServers
from clawmode.rpc.admission import Descriptors, ListeningSocket, raise_descriptor_limit
from clawmode.rpc.listen import MIN_TOKEN, ListenAddress
from clawmode.rpc.tokens import (
    CONFIGURED,
    LOCAL,
    MCP_FILE,
    RESERVED,
    Token,
    TokenError,
    Tokens,
    digest,
)
from clawmode.rpc.tokens import new_token as make_token
from clawmode.types import JsonValue, dataclass

TOKEN_VARIABLE = "CLAWMODE_MCP_TOKEN"  # noqa: S105 - its name
CLIENTS = "mcp-clients"
"""The folder in the state folder with the waiting programs of each client."""

MAX_REQUESTS = 1_000
STOP_SECONDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """How to serve over HTTP.

    Attributes:
        address: HOST:PORT to listen on.
        public_url: The URL under which clients reach the server, for example through a proxy.
        issuer: The identity provider whose access tokens are accepted; empty for none.
        scope: A scope that these access tokens must have; empty for none.
    """

    address: str
    public_url: str = ""
    issuer: str = ""
    scope: str = ""

    def listen(self) -> ListenAddress:
        """Returns the address to listen on.

        Raises:
            ConfigurationError: The address or the URL is invalid.
        """
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigurationError(
                f"--http must be HOST:PORT, such as 127.0.0.1:8765, got {self.address!r}"
            )
        url = urlsplit(self.public_url)
        if self.public_url and (url.scheme not in ("http", "https") or not url.hostname):
            raise ConfigurationError(
                "--public-url must be a URL such as https://mcp.example.com/mcp, got "
                f"{self.public_url!r}"
            )
        if self.issuer and not is_secure(self.issuer):
            raise ConfigurationError(
                f"--oauth-issuer must be an https URL, as its tokens name it, got {self.issuer!r}"
            )
        if self.issuer and not self.public_url:
            raise ConfigurationError(
                "--oauth-issuer needs --public-url: the URL for which the tokens are issued"
            )
        return ListenAddress(host=host.strip("[]"), port=int(port))


def principal_of(token: Token) -> Principal:
    """Returns the owner of a token."""
    alias = "" if token.name in RESERVED else token.name
    # By its hash, so that a token that gets the name of a revoked one does not inherit.
    return Principal(f"token-{token.digest[:32]}", token.name, alias)


class HttpDoor:
    """The HTTP side of `clawmode mcp`: the socket that listens, and who may enter.

    Args:
        options: How to serve.
        state: The state folder.

    Raises:
        ConfigurationError: The address or a token cannot be used.
    """

    def __init__(self, options: HttpOptions, state: Path) -> None:
        self._options = options
        self._state = state
        self._address = options.listen()
        self._secret = ""
        self._issuer: Issuer | None = None
        self._metadata: dict[str, JsonValue] | None = None
        if options.issuer:
            self._issuer = Issuer(options.issuer, options.public_url, options.scope)
            self._metadata = {
                "resource": options.public_url,
                "authorization_servers": [options.issuer],
                "bearer_methods_supported": ["header"],
                "resource_name": "clawmode",
            }
            if options.scope:
                self._metadata["scopes_supported"] = [options.scope]
        self._tokens = self._read_tokens()
        try:
            self.bound: ListeningSocket = self._address.bind()
        except OSError as error:
            raise ConfigurationError(
                f"--http: cannot listen on {options.address}: {error.strerror or error}"
            ) from None

    def _read_tokens(self) -> Tokens:
        given = os.environ.get(TOKEN_VARIABLE, "")
        if 0 < len(given) < MIN_TOKEN:
            raise ConfigurationError(
                f"{TOKEN_VARIABLE} has {len(given)} characters and needs {MIN_TOKEN} or more; "
                "unset the variable to get a generated token"
            )
        extra = [Token(name=CONFIGURED, digest=digest(given))] if given else []
        tokens = Tokens(self._state, extra, MCP_FILE)
        try:
            named = tokens.list()
        except TokenError as error:
            raise ConfigurationError(str(error)) from None
        if not given and not named and not self._options.issuer:
            self._secret = make_token()
            local = Token(name=LOCAL, digest=digest(self._secret))
            tokens = Tokens(self._state, [local], MCP_FILE)
        return tokens

    def store_folder(self, session_key: str) -> Path:
        """Returns the folder for programs of a client: nobody can fill that of another."""
        return self._state / CLIENTS / session_key.rpartition(":")[2]

    async def _authenticate(self, token: str) -> Principal:
        try:
            found = self._tokens.find(token)
        except TokenError as error:
            print_note(str(error))
            raise NotAdmitted("No token can be checked now.", is_guess=False) from None
        if found is None and self._issuer is not None:
            return await self._issuer.verify(token)
        if found is None:
            raise NotAdmitted("The bearer token is not valid.")
        return principal_of(found)

    async def serve(self, opener: Opener, servers: McpServers) -> None:
        """Serves clients until it is cancelled."""
        from clawmode.rpc.http_server import QuietServer

        descriptors = Descriptors.of(raise_descriptor_limit(), MAX_REQUESTS)
        self.bound.most = descriptors.strangers
        site = Site(self._address.host, self._options.public_url)
        async with anyio.create_task_group() as tasks:
            async with http_app(
                opener,
                servers,
                site,
                self._authenticate,
                most=descriptors.clients,
                metadata=self._metadata,
            ) as app:
                server = QuietServer(app, ws="none", timeout_graceful_shutdown=STOP_SECONDS)

                async def listen() -> None:
                    with anyio.CancelScope(shield=True):
                        await server.serve(sockets=[self.bound])

                tasks.start_soon(listen)
                self._announce()
                try:
                    await anyio.sleep_forever()
                finally:
                    # The application ends first, and with it the streams of clients.
                    server.should_exit = True

    def _announce(self) -> None:
        host = self._address.host
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{self.bound.getsockname()[1]}{PATH}"
        if self._secret:
            print_note(f"MCP server at {url}, with the bearer token {self._secret}")
        else:
            named = [token.name for token in self._tokens.list()]
            variable = [TOKEN_VARIABLE] if os.environ.get(TOKEN_VARIABLE) else []
            issuer = [self._options.issuer] if self._options.issuer else []
            known = ", ".join([*variable, *named, *issuer])
            print_note(f"MCP server at {url}, with the tokens of {known}")
        if not is_loopback(host):
            print_note(
                f"{host} can be reached from other machines, and there is no TLS here: the token "
                "and all data travel unencrypted. Put a reverse proxy with TLS in front of it"
            )
