"""Where a gateway can be reached: the address, and how clients on the same machine find it.

A gateway holds the lock of its state folder, and announces its address in a file of that folder.
"""

import json
import os
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, field
from pathlib import Path
from urllib.parse import urlsplit

from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.files import file_lock, is_locked, write_atomic
from clawmode.records import adapter
from clawmode.types import dataclass

LOCK = "gateway.lock"
FILE = "gateway.json"
MAX_FILE = 64 << 10


class GatewayRuns(ClawmodeError):
    """Another gateway already runs on the state folder."""


class GatewayUnreachable(ClawmodeError):
    """No gateway answers at the address, or the connection to it was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a gateway, and the credentials for it.

    Attributes:
        tls: How the gateway's certificate is verified; None: by the system's certificates.
    """

    url: str = field(repr=False)
    token: str = field(repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)

    @property
    def shown(self) -> str:
        """The URL for messages: scheme, host and port, as the rest may contain secrets."""
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{parts.scheme}://{host}:{parts.port}" if parts.port else f"{parts.scheme}://{host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGateway:
    """What a running gateway announces about itself to clients on the same machine.

    Attributes:
        token: Valid for this process only, for clients of the same user on the same machine.
        cert: The file of the gateway's certificate; empty without TLS.
        config: The configuration file that the gateway read; empty if there was none.
    """

    pid: int
    url: str
    version: str
    started_at: float
    token: str = field(repr=False)
    cert: str = ""
    config: str = ""


@contextmanager
def hold(state: Path) -> Iterator[None]:
    """Holds the lock of a state folder inside of the block, so that one gateway at most runs there.

    Raises:
        GatewayRuns: Another gateway holds the lock.
        ConfigurationError: The folder cannot be used.
    """
    with ExitStack() as stack:
        try:
            descriptor = stack.enter_context(file_lock(state / LOCK, wait=False))
        except BlockingIOError:
            known = find(state)
            where = f" (process {known.pid}, {known.url})" if known else ""
            raise GatewayRuns(
                f"a gateway already runs on this state folder{where}; "
                "`clawmode gateway stop` stops it"
            ) from None
        except OSError as error:
            text = f"the state folder {state} cannot be used: {error.strerror or error}"
            raise ConfigurationError(text) from None
        # A gateway that was killed left its announcement behind.
        with suppress(OSError):
            (state / FILE).unlink()
        # The announcement alone does not prove which process holds the lock: see `stop_gateway`.
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield


def holder(state: Path) -> int:
    """Returns the id of the process that runs a gateway on a state folder; 0 if unknown."""
    with suppress(OSError, ValueError):
        return int((state / LOCK).read_text()[:20])
    return 0


def is_held(state: Path) -> bool:
    """Returns whether a gateway runs on a state folder."""
    with suppress(OSError):
        return is_locked(state / LOCK)
    return False


@contextmanager
def announced(state: Path, gateway: RunningGateway) -> Iterator[None]:
    """Announces a gateway to clients of the same user, inside of the block."""
    # Not synced: after a power failure no gateway runs, and the file is worthless.
    write_atomic(state / FILE, json.dumps(asdict(gateway)), sync=False)
    try:
        yield
    finally:
        with suppress(OSError):
            (state / FILE).unlink()


def find(state: Path) -> RunningGateway | None:
    """Returns what the gateway of a state folder announced; None if nothing can be read.

    A gateway that was killed leaves its announcement behind: see `is_held`.
    """
    try:
        with (state / FILE).open("rb") as file:
            return adapter(RunningGateway).validate_json(file.read(MAX_FILE))
    except (OSError, ValueError):
        return None
