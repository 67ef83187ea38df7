"""Which addresses of the network may be reached: public ones, and nothing that stands for another.

Names are resolved here, once, and what was looked at is what is connected to: a name that answers
differently the second time does not matter.
"""

import contextlib
import ipaddress
import re
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import anyio

from clawmode.exceptions import ToolProblem

MAX_ADDRESSES = 16
MAX_FAILED = 1_000
"""Addresses whose failed attempts are remembered."""

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a host, as text. Raises `OSError` if it has none."""

_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")

# Beyond what `ipaddress` of every version that we run on says is not global.
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
    """Where to connect to: a host, and the addresses at which it was found."""

    host: str
    port: int
    addresses: tuple[str, ...]


def is_public(address: Address) -> bool:
    """Whether an address is one of the open network, and stands for no other one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not any(address in net for net in _REFUSED_4)
    if address.scope_id is not None:
        return False
    if address in _NAT64:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    # Everything else is no address of the open network: mapped, compatible and local ones too.
    if address not in _GLOBAL_6 or any(address in net for net in _REFUSED_6):
        return False
    inner = _embedded(address)
    return address.is_global and (inner is None or is_public(inner))


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address to which a tunnel would carry it."""
    if address.sixtofour is not None:
        return address.sixtofour
    if (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return None


async def ask_system(host: str, port: int) -> list[str]:
    """The addresses that the system knows for a host."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(each[4][0] for each in found))


async def find_target(
    host: str, port: int, *, resolve: Resolve = ask_system, allowed: Iterable[str] = ()
) -> Target:
    """Looks a host up, and refuses it if any of its addresses is not public.

    Args:
        host: A name, or an address in its usual form, without brackets.
        port: The port.
        resolve: Who knows names.
        allowed: Where this does not hold: `host:port`, as it is written in addresses.

    Raises:
        ToolProblem: It may not be reached, or is not there.
    """
    name = host.rstrip(".").lower()
    shown = f"[{name}]" if ":" in name else name
    exempt = f"{shown}:{port}" in {each.lower() for each in allowed}
    literal = _literal(name)
    found = await _look_up(name, port, resolve) if literal is None else [literal]
    if not exempt and not all(is_public(address) for address in found):
        raise ToolProblem(
            "private_address", f"{shown[:200]!r} is not on the open network, and is not fetched"
        )
    return Target(name, port, tuple(str(address) for address in found))


def _literal(host: str) -> Address | None:
    """A host that is an address.

    Raises:
        ToolProblem: It is one in a form that only some programs know, or no host at all.
    """
    if not host or len(host) > 253 or "%" in host:
        raise ToolProblem("bad_url", "the host of the address cannot be one")
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    # `0x7f000001`, `2130706433`, `0177.0.0.1`, `127.1`: some take them for addresses.
    if ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]):
        raise ToolProblem("bad_url", f"{host[:200]!r} is not an address in its usual form")
    return None


async def _look_up(host: str, port: int, resolve: Resolve) -> list[Address]:
    found: list[Address] = []
    # An answer that is none counts as no answer at all.
    with contextlib.suppress(OSError, ValueError):
        found = [ipaddress.ip_address(each) for each in (await resolve(host, port))[:MAX_ADDRESSES]]
    if not found:
        raise ToolProblem("not_found", f"the host {host[:200]!r} was not found")
    return found


def is_loopback(host: str) -> bool:
    """Whether an address leads to this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Attempts:
    """Failed attempts by address: who has too many has to wait.

    Args:
        most: How many in a window.
        seconds: The window.
        clock: The time, in seconds.
    """

    def __init__(
        self,
        most: int = 10,
        seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """How long an address has to wait, in seconds; 0: it may try."""
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
        """One more that failed."""
        times = self._failed.setdefault(address, deque(maxlen=self._most))
        times.append(self._clock())
        self._failed.move_to_end(address)
        while len(self._failed) > MAX_FAILED:
            self._failed.popitem(last=False)
