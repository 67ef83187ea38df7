"""The address that the gateway listens on, and the checks before other machines can reach it.

No web server is imported here: `config check` makes the same checks as the start of a gateway.
"""

import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

from clawmode.addresses import is_loopback
from clawmode.config.file import read_secret
from clawmode.config.operations import GatewaySection
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.rpc.admission import ListeningSocket
from clawmode.rpc.tokens import CONFIGURED, LOCAL, Token, Tokens, digest
from clawmode.types import dataclass

MIN_TOKEN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """The address to listen on.

    Attributes:
        port: 0 for any free port.
        cert, key: The files of the TLS certificate and its key; empty for no TLS.
    """

    host: str = "127.0.0.1"
    port: int = 0
    cert: str = ""
    key: str = ""

    def check(self) -> None:
        """Checks that the certificate can be used.

        Raises:
            ConfigurationError: The certificate or its key cannot be read, or they do not match.
        """
        if self.cert:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.cert, self.key)
            except (OSError, ssl.SSLError) as error:
                reason = error.strerror or str(error)
                text = f"gateway.tls: the certificate {self.cert} cannot be used: {reason}"
                raise ConfigurationError(text, path="gateway.tls") from None

    def bind(self) -> ListeningSocket:
        """Returns a socket that accepts connections from now on.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listening = ListeningSocket(family)
        try:
            # Without it a restart fails while the kernel remembers connections of the old process.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self.host, self.port))
            listening.listen(1024)
        except BaseException:
            listening.close()
            raise
        return listening

    def url(self, bound: socket.socket) -> str:
        """Returns the URL for clients, with the port that the socket really has."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "wss" if self.cert else "ws"
        return f"{scheme}://{host}:{bound.getsockname()[1]}"


def tokens_of(section: GatewaySection, state: Path, secret: str) -> Tokens:
    """Returns the tokens of clients: those of the state folder, `secret`, and the configured one.

    Raises:
        ConfigurationError: The configured token is missing from its source, or too short.
    """
    extra = [Token(name=LOCAL, digest=digest(secret))]
    if section.auth.token:
        token = read_secret("gateway.auth.token", section.auth.token)
        if len(token) < MIN_TOKEN:
            text = f"gateway.auth.token: the token must have at least {MIN_TOKEN} characters"
            raise ConfigurationError(text, path="gateway.auth.token")
        extra.append(Token(name=CONFIGURED, digest=digest(token)))
    return Tokens(state, extra)


def listen_at(section: GatewaySection, host: str = "", port: int | None = None) -> ListenAddress:
    """Returns the address to listen on; `host` and `port` override the configuration."""
    cert, key = (section.tls.cert, section.tls.key) if section.tls else ("", "")
    return ListenAddress(
        host=host or section.bind,
        port=section.port if port is None else port,
        cert=os.path.abspath(os.path.expanduser(cert)) if cert else "",
        key=os.path.abspath(os.path.expanduser(key)) if key else "",
    )


def check_reach(listen: ListenAddress, tokens: Tokens) -> None:
    """Checks that a gateway that other machines can reach has a token that the operator created.

    Raises:
        ConfigurationError: There is no such token.
    """
    if is_loopback(listen.host) or tokens.are_chosen():
        return
    raise ConfigurationError(
        f"gateway.bind: {listen.host} can be reached from other machines: create a token first "
        "(`clawmode gateway token add NAME`), or set gateway.auth.token",
        path="gateway.bind",
    )


def gateway_faults(section: GatewaySection, state: Path) -> Iterator[ConfigurationError]:
    """Yields every reason why a gateway would not start. No port is opened."""
    listen = listen_at(section)
    for check in (listen.check, lambda: check_reach(listen, tokens_of(section, state, ""))):
        try:
            check()
        except ConfigurationError as error:
            yield error
        except ClawmodeError as error:  # the file of tokens cannot be read: see `Tokens.list`
            yield ConfigurationError(f"gateway.auth: {error}", path="gateway.auth")
