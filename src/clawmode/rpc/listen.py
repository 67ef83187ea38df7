"""Where the gateway listens, and what has to be set before others can reach it.

Imports no server: `config check` looks at the same things as the start.
"""

import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clawmode.addresses import is_loopback
from clawmode.config.operations import GatewaySection
from clawmode.config.variables import read_secret
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.rpc.admission import ListeningSocket
from clawmode.rpc.tokens import CONFIGURED, LOCAL, Token, Tokens, digest

MIN_TOKEN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Where to listen.

    Attributes:
        port: 0 is any that is free.
        cert, key: Files, for TLS.
    """

    host: str = "127.0.0.1"
    port: int = 0
    cert: str = ""
    key: str = ""

    def check(self) -> None:
        """Looks at the certificate.

        Raises:
            ConfigurationError: It cannot be used.
        """
        if self.cert:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.cert, self.key)
            except (OSError, ssl.SSLError) as error:
                reason = error.strerror or str(error)
                text = f"gateway.tls: the certificate cannot be used: {reason}"
                raise ConfigurationError(text, path="gateway.tls") from None

    def bind(self) -> ListeningSocket:
        """The socket, which others can connect to from now on.

        Raises:
            OSError: It cannot be had.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        made = ListeningSocket(family)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((self.host, self.port))
            made.listen(1024)
        except BaseException:
            made.close()
            raise
        return made

    def url(self, bound: socket.socket) -> str:
        """Where clients connect to."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "wss" if self.cert else "ws"
        return f"{scheme}://{host}:{bound.getsockname()[1]}"


def tokens_of(section: GatewaySection, state: Path, secret: str) -> Tokens:
    """The tokens that let clients in: those of the state folder, `secret`, and the configured one.

    Raises:
        ConfigurationError: The configured token cannot be used.
    """
    extra = [Token(name=LOCAL, digest=digest(secret))]
    if section.auth.token:
        token = read_secret("gateway.auth.token", section.auth.token)
        if len(token) < MIN_TOKEN:
            text = f"gateway.auth.token: it has fewer than {MIN_TOKEN} characters"
            raise ConfigurationError(text, path="gateway.auth.token")
        extra.append(Token(name=CONFIGURED, digest=digest(token)))
    return Tokens(state, extra)


def listen_at(section: GatewaySection, host: str = "", port: int | None = None) -> ListenAddress:
    """Where a gateway listens; `host` and `port` win over the configuration."""
    tls = section.tls
    return ListenAddress(
        host=host or section.bind,
        port=section.port if port is None else port,
        cert=_file(tls.cert if tls else None),
        key=_file(tls.key if tls else None),
    )


def _file(path: str | None) -> str:
    return os.path.abspath(os.path.expanduser(path)) if path else ""


def check_reach(listen: ListenAddress, tokens: Tokens) -> None:
    """Checks that a gateway which other machines can reach has a token that somebody chose.

    Raises:
        ConfigurationError: It has none.
    """
    if is_loopback(listen.host) or tokens.are_chosen():
        return
    raise ConfigurationError(
        f"gateway.bind: {listen.host} can be reached from other machines: make a token first "
        "(clawmode gateway token add NAME), or set gateway.auth.token",
        path="gateway.bind",
    )


def gateway_faults(section: GatewaySection, state: Path) -> Iterator[ConfigurationError]:
    """Everything for which a gateway would not start; nothing is bound."""
    listen = listen_at(section)
    for check in (listen.check, lambda: check_reach(listen, tokens_of(section, state, ""))):
        try:
            check()
        except ConfigurationError as error:
            yield error
        except ClawmodeError as error:  # the file of tokens cannot be read
            yield ConfigurationError(f"gateway.auth: {error}", path="gateway.auth")
