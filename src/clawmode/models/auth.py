"""`Credential`: reads a provider's API key, and is the only object that holds the key.

The key is read for the first request, and again when the provider rejects the key. No error, log
line or `repr` contains the key.
"""

import logging
import os
import stat
import subprocess
from pathlib import Path

import anyio
import anyio.to_thread

from clawmode.models.base import ModelError
from clawmode.models.providers import KeySource
from clawmode.redaction import Redactor

logger = logging.getLogger("clawmode.models")

COMMAND_SECONDS = 10.0
MAX_KEY = 16 << 10
"""In bytes. Longer input is rejected: the configured file or command is the wrong one."""


class Credential:
    """An API key that is read on first use, cached, and read again after it was rejected."""

    def __init__(self, provider: str, source: KeySource | None) -> None:
        self._provider = provider
        self._source = source
        self._key: str | None = None
        self._lock = anyio.Lock()

    def __repr__(self) -> str:
        return f"Credential({self._provider!r}, {self._source!r})"

    @property
    def redactor(self) -> Redactor:
        """Redacts the current key, and text that looks like a key."""
        return Redactor(() if self._key is None else (self._key,))

    async def get(self) -> str | None:
        """Returns the key; None if the provider needs no key.

        Raises:
            ModelError: The source of the key has no usable key.
        """
        if self._source is None:
            return None
        async with self._lock:
            if self._key is None:
                self._key = await self._read(self._source)
            return self._key

    async def renew(self, refused: str) -> bool:
        """Reads the key again after the provider rejected `refused`.

        Returns:
            True if the key is a different one now.

        Raises:
            ModelError: The source has no usable key any more.
        """
        if self._source is None:
            return False
        async with self._lock:
            # Of several requests that were rejected concurrently, only the first reads the source.
            if self._key == refused:
                self._key = await self._read(self._source)
            return self._key != refused

    async def _read(self, source: KeySource) -> str:
        if source.env:
            key = os.environ.get(source.env, "")
        elif source.file:
            key = await anyio.to_thread.run_sync(self._read_file, source.file)
        elif source.command:
            key = await self._run_command(source.command)
        else:
            key = source.value
        key = key.strip()
        if not key:
            raise self._error("is not set" if source.env else "is empty")
        if not (key.isascii() and key.isprintable()) or len(key) > MAX_KEY:
            raise self._error("has no valid key: a key is one line of ASCII")
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
                "%s: other users can read the key in %s (mode %o): run chmod 600 on the file",
                self._provider,
                path,
                mode,
            )
        return text.decode("utf-8", "replace")

    async def _run_command(self, command: tuple[str, ...]) -> str:
        try:
            with anyio.fail_after(COMMAND_SECONDS):
                done = await anyio.run_process(
                    command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
                )
        except TimeoutError:
            raise self._error(f"did not exit within {COMMAND_SECONDS:.0f} s") from None
        except OSError as error:
            raise self._error(f"cannot be run: {error.strerror}") from None
        if done.returncode:
            raise self._error(f"failed with exit code {done.returncode}")
        return done.stdout.decode("utf-8", "replace")

    def _error(self, problem: str) -> ModelError:
        setting = f"models.providers.{self._provider}.auth"
        text = f"{self._provider} needs a key: {self._source} {problem} (see {setting})"
        return ModelError("auth", text, sent=False)
