"""Keys of providers: where they come from, and the one place that holds them.

A key is read when the first request needs it, and again when a provider says that it is wrong. It
is never shown: no error, no log and no `repr` has it.
"""

import logging
import os
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from clawmode.exceptions import ConfigurationError
from clawmode.models.base import ModelError
from clawmode.redaction import Redactor

logger = logging.getLogger("clawmode.models")

COMMAND_SECONDS = 10.0
MAX_KEY = 16 << 10
"""Bytes; what is longer is no key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource:
    """Where a key comes from: exactly one of these.

    Attributes:
        env: An environment variable.
        file: A file with nothing else in it; `~` is a home.
        command: A program and its arguments, which prints it. No shell is involved.
        value: The key itself.
    """

    env: str = ""
    file: str = ""
    command: tuple[str, ...] = ()
    value: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        given = [name for name in ("env", "file", "command", "value") if getattr(self, name)]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ConfigurationError(
                f"a key has one source: env, file, command or value; found {found}",
                expected="one of env, file, command, value",
            )

    def __str__(self) -> str:
        """For people, without the key."""
        if self.env:
            return f"the environment variable {self.env}"
        if self.file:
            return f"the file {self.file}"
        # Arguments may hold what is nobody's business.
        return f"the command {self.command[0]}" if self.command else "the configuration"


class Credential:
    """A provider's key: read once, kept, and read again when it turns out to be wrong."""

    def __init__(self, provider: str, source: KeySource | None) -> None:
        self._provider = provider
        self._source = source
        self._key: str | None = None
        self._lock = anyio.Lock()

    def __repr__(self) -> str:
        return f"Credential({self._provider!r}, {self._source!r})"

    @property
    def redactor(self) -> Redactor:
        """Strikes out the key, as it is now, and what looks like one."""
        return Redactor(() if self._key is None else (self._key,))

    async def get(self) -> str | None:
        """The key; None if the provider wants none.

        Raises:
            ModelError: There is none where it should be.
        """
        if self._source is None:
            return None
        async with self._lock:
            if self._key is None:
                self._key = await self._read(self._source)
            return self._key

    async def renew(self, refused: str) -> bool:
        """Reads the key again, because the provider refused this one. Whether it is another now.

        Raises:
            ModelError: There is none any more.
        """
        if self._source is None:
            return False
        async with self._lock:
            if self._key == refused:
                self._key = await self._read(self._source)
            return self._key != refused

    async def _read(self, source: KeySource) -> str:
        if source.env:
            key = os.environ.get(source.env, "")
        elif source.file:
            key = await anyio.to_thread.run_sync(self._read_file, source.file)
        elif source.command:
            key = await self._run(source.command)
        else:
            key = source.value
        key = key.strip()
        if not key:
            raise self._error("is not set" if source.env else "gives none")
        if not (key.isascii() and key.isprintable()) or len(key) > MAX_KEY:
            raise self._error("gives something else: a key is one line of ASCII")
        return key

    def _read_file(self, name: str) -> str:
        path = Path(name).expanduser()
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                text = file.read(MAX_KEY + 1)
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror}") from None
        if mode & 0o077:
            logger.warning(
                "%s: the key in %s can be read by others (mode %o); chmod 600 helps",
                self._provider,
                path,
                mode,
            )
        return text.decode("utf-8", "replace")

    async def _run(self, command: tuple[str, ...]) -> str:
        try:
            with anyio.fail_after(COMMAND_SECONDS):
                done = await anyio.run_process(
                    command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
                )
        except TimeoutError:
            raise self._error(f"did not end within {COMMAND_SECONDS:.0f} s") from None
        except OSError as error:
            raise self._error(f"cannot be run: {error.strerror}") from None
        if done.returncode:
            raise self._error(f"failed with exit code {done.returncode}")
        return done.stdout.decode("utf-8", "replace")

    def _error(self, problem: str) -> ModelError:
        setting = f"models.providers.{self._provider}.auth"
        text = f"{self._provider} needs a key: {self._source} {problem} (see {setting})"
        return ModelError("auth", text, sent=False)
