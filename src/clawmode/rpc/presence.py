"""Where a gateway runs: one for each state folder, found by its clients on the same machine."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.files import file_lock, is_locked, write_atomic

LOCK = "gateway.lock"
FILE = "gateway.json"
MAX_FILE = 64 << 10


class GatewayRuns(ClawmodeError):
    """There is one already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGateway:
    """A gateway that runs.

    Attributes:
        token: Of this process alone, for clients of the same user on the same machine.
        cert: The file with the certificate that it shows; empty without TLS.
        config: The configuration that it read; empty if there was none.
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
    """Keeps a second gateway off a state folder.

    Raises:
        GatewayRuns: There is one already.
    """
    with ExitStack() as held:
        try:
            descriptor = held.enter_context(file_lock(state / LOCK, wait=False))
        except BlockingIOError:
            known = find(state)
            where = f" (process {known.pid}, {known.url})" if known else ""
            raise GatewayRuns(f"a gateway runs on this state folder already{where}") from None
        except OSError as error:
            text = f"the state folder cannot be used: {error.strerror or error}"
            raise ConfigurationError(text) from None
        with suppress(OSError):  # of one that was killed: it is not there any more
            (state / FILE).unlink()
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield


def holder(state: Path) -> int:
    """The process that holds a state folder; 0 if it is not known."""
    with suppress(OSError, ValueError):
        return int((state / LOCK).read_text()[:20])
    return 0


def is_held(state: Path) -> bool:
    """Whether a gateway runs on a state folder."""
    with suppress(OSError):
        return is_locked(state / LOCK)
    return False


@contextmanager
def announced(state: Path, place: RunningGateway) -> Iterator[None]:
    """Lets clients of the same user find it."""
    write_atomic(state / FILE, json.dumps(asdict(place)), sync=False)
    try:
        yield
    finally:
        with suppress(OSError):
            (state / FILE).unlink()


def find(state: Path) -> RunningGateway | None:
    """The gateway of a state folder, as it announced itself; None if none runs."""
    try:
        with (state / FILE).open("rb") as file:
            data = json.loads(file.read(MAX_FILE))
        return RunningGateway(
            pid=int(data["pid"]),
            url=str(data["url"]),
            version=str(data["version"]),
            started_at=float(data["started_at"]),
            token=str(data["token"]),
            cert=str(data.get("cert", "")),
            config=str(data.get("config", "")),
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
