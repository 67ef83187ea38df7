"""Decides which network addresses may be reached: public ones only (protection against SSRF).

And which names a server of ours has, against web pages that make a browser talk to it.

A name is resolved once, here, and the caller connects to the addresses that were checked. So a name
that resolves to another address the second time (DNS rebinding) gains nothing.

Written by hand, over `ipaddress`: a check in a library's own client would come too late, and we
need the same rules for two different HTTP clients.
"""

import contextlib
import ipaddress
import re
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias
from urllib.parse import urlsplit

import anyio

from clawmode.exceptions import ToolProblem
from clawmode.types import dataclass

MAX_ADDRESSES = 16
MAX_FAILED = 1_000
"""Addresses whose failed attempts are remembered; the oldest is forgotten first."""

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""Resolves host and port to addresses, as text. Raises `OSError` if the host has none."""

_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")

# `is_global` of `ipaddress` differs between Python versions, so the networks are listed here too.
_REFUSED_4 = tuple(
    ipaddress.IPv4Network(net)
    for net in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
_GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
_REFUSED_6 = tuple(
    ipaddress.IPv6Network(net)
    for net in ("2001::/23", "2001:db8::/32", "3fff::/20", "2620:4f:8000::/48")
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)


@dataclass(frozen=True, slots=True)
class Target:
    """A host to connect to, and the addresses that it resolved to."""

    host: str
    port: int
    addresses: tuple[str, ...]


def is_public(address: Address) -> bool:
    """True if an address is on the public internet, and so is any address embedded in it."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not any(address in net for net in _REFUSED_4)
    if address.scope_id is not None:
        return False
    if address in _NAT64:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    # Mapped, compatible and local addresses are all outside of 2000::/3.
    if address not in _GLOBAL_6 or any(address in net for net in _REFUSED_6):
        return False
    # A tunnel would deliver to the IPv4 address that is embedded in the IPv6 address.
    inner = address.sixtofour
    if inner is None and (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP:
        inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.is_global and (inner is None or is_public(inner))


async def ask_system(host: str, port: int) -> list[str]:
    """Resolves a host with the system's resolver."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(each[4][0] for each in found))


async def find_target(
    host: str, port: int, *, resolve: Resolve = ask_system, allowed: Iterable[str] = ()
) -> Target:
    """Resolves a host, and rejects it if any of its addresses is not public.

    Args:
        host: A name, or an address in its canonical form, without brackets.
        port: The port.
        resolve: The resolver of names.
        allowed: Exemptions as `host:port`, written as in a URL.

    Raises:
        ToolProblem: The host may not be reached, or cannot be resolved.
    """
    name = host.rstrip(".").lower()
    shown = f"[{name}]" if ":" in name else name
    exempt = f"{shown}:{port}" in {each.lower() for each in allowed}
    literal = _literal(name)
    found: list[Address] = [] if literal is None else [literal]
    if literal is None:
        # An invalid answer of the resolver (ValueError) counts as no answer.
        with contextlib.suppress(OSError, ValueError):
            found = [ipaddress.ip_address(it) for it in (await resolve(name, port))[:MAX_ADDRESSES]]
    if not found:
        raise ToolProblem("not_found", f"the host {name[:200]!r} was not found")
    if not exempt and not all(is_public(address) for address in found):
        raise ToolProblem(
            "private_address", f"{shown[:200]!r} is not a public address, so it is not fetched"
        )
    return Target(name, port, tuple(str(address) for address in found))


def _literal(host: str) -> Address | None:
    """Returns the address that a host is; None if the host is a name.

    Raises:
        ToolProblem: The host is invalid, or an address in a form that only some programs accept.
    """
    if not host or len(host) > 253 or "%" in host:
        raise ToolProblem("bad_url", "the URL has no valid host")
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    # Some programs accept `0x7f000001`, `2130706433`, `0177.0.0.1` and `127.1` as addresses.
    if ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]):
        raise ToolProblem("bad_url", f"{host[:200]!r} is not an address in its canonical form")
    return None


def is_loopback(host: str) -> bool:
    """True if a host is this machine's loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# ---- Names of this server ----

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Site:
    """The names of this server, against web pages that let a browser talk to it.

    Attributes:
        bound: The address to listen on.
        url: The URL under which clients reach the server; empty if it has no other than `bound`.
        names: More host names under which clients reach the server.
    """

    bound: str
    url: str = ""
    names: frozenset[str] = frozenset()

    def knows_host(self, value: str) -> bool:
        """True if a `Host` header names this server.

        A page that rebinds its own name to our address (DNS rebinding) sends that name.
        """
        host = _split(f"//{value}")[0]
        if host in ("", None) or "@" in value or "/" in value:
            return False
        if host in self.names:
            return True
        if is_loopback(self.bound):
            return host in LOOPBACK or host == self.bound or host == self._public[0]
        if host in (self.bound.lower(), self._public[0], "localhost", socket.gethostname().lower()):
            return True
        return _is_address(host)  # nobody can rebind an address

    def knows_origin(self, value: str, host: str) -> bool:
        """True if a page of this origin may send requests: it is ours, or a local one."""
        origin = _split(value)
        if not _is_origin(value):
            return False
        if is_loopback(self.bound) and origin[0] in LOOPBACK:
            return True
        return self.is_own(value, host) or (origin == self._public and origin[0] is not None)

    def is_own(self, origin: str, host: str) -> bool:
        """True if a page of this origin was served under the host that the request names."""
        # Without the scheme: a proxy may have ended TLS. Browsers leave out the usual port in both.
        return _is_origin(origin) and _split(origin) == _split(f"//{host}")

    @property
    def _public(self) -> tuple[str | None, int | None]:
        return _split(self.url)


def _split(url: str) -> tuple[str | None, int | None]:
    """Returns host and port of a URL; no host if the URL is invalid."""
    try:
        parts = urlsplit(url)
        usual = {"http": 80, "https": 443}.get(parts.scheme)
        port = parts.port
    except ValueError:
        return None, None
    return (parts.hostname or "").removesuffix("."), None if port == usual else port


def _is_origin(value: str) -> bool:
    scheme = urlsplit(value).scheme if _split(value)[0] else ""
    return scheme in ("http", "https") and value.rstrip("/").count("/") == 2


def _is_address(host: str | None) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host or "")
        return True
    return False


class Attempts:
    """Counts failed attempts by address; an address with too many has to wait.

    Args:
        most: Attempts allowed per window.
        seconds: The length of the window.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, most: int = 10, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Returns the seconds that an address has to wait; 0 if it may try now."""
        times = self._failed.get(address)
        if times is None:
            return 0.0
        now = self._clock()
        while times and times[0] <= now - self._seconds:
            times.popleft()
        if not times:
            del self._failed[address]
        if len(times) < self._most:
            return 0.0
        return times[0] + self._seconds - now

    def fail(self, address: str) -> None:
        times = self._failed.setdefault(address, deque(maxlen=self._most))
        times.append(self._clock())
        self._failed.move_to_end(address)
        while len(self._failed) > MAX_FAILED:
            self._failed.popitem(last=False)
