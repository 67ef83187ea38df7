"""Sealing: snapshots and records encrypted, authenticated, and bound to the run that may resume.

A snapshot is a raw memory image, so a forged one would give its author control of the guest's heap.
Snapshots are encrypted and authenticated with AES-GCM; the authenticated data includes the header,
the run, session and agent, and the id of the cell. `docs/reference/snapshot.md` describes the
format. Also the keys, and where they are stored.
"""

import base64
import binascii
import contextlib
import errno
import hashlib
import logging
import os
import stat
import struct
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from clawmode import __version__
from clawmode.context import Scope
from clawmode.exceptions import (
    ConfigurationError,
    SnapshotKeyLost,
    SnapshotOfOtherBuild,
    SnapshotRefused,
)
from clawmode.files import create_atomic, file_lock, write_atomic
from clawmode.sandbox.protocol import FrozenCell

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC = b"CLMS"
VERSION = 1
KEY_VARIABLE = "CLAWMODE_SNAPSHOT_KEY"

_OTHER_KEYS = (
    f"remove it to get new keys (programs that were parked with the old keys are lost), or "
    f"set {KEY_VARIABLE}"
)

logger = logging.getLogger("clawmode")

_HEADER = struct.Struct("<4sB8s32s32s2I3I12s")  # magic … wasm, image, memory, heap, pointers, nonce


class KeyRing:
    """Keys of snapshots: the first one seals, and all of them unseal.

    Args:
        keys: 32 bytes each, the newest first.
        folder: Where to look for unknown keys again, in case another process has rotated them.
    """

    def __init__(self, keys: list[bytes], folder: Path | None = None) -> None:
        if not keys or any(len(key) != 32 for key in keys):
            raise ValueError("a snapshot key is 32 bytes, and there must be at least one")
        self._keys = {key_id(key): key for key in keys}
        self._folder = folder
        self.current = keys[0]

    @classmethod
    def ephemeral(cls) -> "KeyRing":
        """Returns a random key that ends with the process."""
        return cls([os.urandom(32)])

    @classmethod
    def load(cls, folder: Path) -> "KeyRing":
        """Returns the keys of the environment, or else of `folder`, where the first use makes one.

        Raises:
            SnapshotRefused: The keys cannot be read, or other users can read or write the file.
        """
        if text := os.environ.get(KEY_VARIABLE):
            return cls(_parse_keys(text.replace(",", "\n"), KEY_VARIABLE))
        path = folder / "snapshot.keys"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not path.exists():
                create_atomic(path, _encode_key(os.urandom(32)))
            _warn_of_open_folder(folder)
            return cls(_parse_keys(_read_private(path), str(path)), folder)
        except (OSError, UnicodeDecodeError) as error:
            raise SnapshotRefused(f"snapshot keys cannot be read from {path}: {error}") from None

    @classmethod
    def shared(cls, path: Path | None = None) -> "KeyRing":
        """Returns the keys of a file, or of the environment: those of a fleet are never made up.

        Raises:
            ConfigurationError: There are none.
            SnapshotRefused: The keys cannot be read, or other users can read or write the file.
        """
        if path is None:
            text = os.environ.get(KEY_VARIABLE)
            if not text:
                raise ConfigurationError(
                    "programs that several machines share need a key that all of them have: make "
                    f"one with `openssl rand -base64 32`, and set {KEY_VARIABLE} to it on every "
                    "machine",
                    path=KEY_VARIABLE,
                )
            return cls(_parse_keys(text.replace(",", "\n"), KEY_VARIABLE))
        try:
            # A link of the operator's own: mounted secrets are links.
            return cls(_parse_keys(_read_private(path.resolve()), str(path)))
        except (OSError, UnicodeDecodeError) as error:
            raise SnapshotRefused(f"snapshot keys cannot be read from {path}: {error}") from None

    @classmethod
    def rotate(cls, folder: Path) -> "KeyRing":
        """Adds a new key to those in `folder`. The old ones can still unseal."""
        cls.load(folder)
        path = folder / "snapshot.keys"
        with file_lock(folder):
            write_atomic(path, _encode_key(os.urandom(32)) + _read_private(path))
        return cls.load(folder)

    @property
    def ids(self) -> list[bytes]:
        """The ids of the keys, the one that seals first."""
        return sorted(self._keys, key=lambda identity: identity != key_id(self.current))

    def find(self, identity: bytes) -> bytes:
        """Returns the key with this id.

        Raises:
            SnapshotKeyLost: There is no such key, not even in the folder.
        """
        if identity not in self._keys and self._folder is not None:
            with contextlib.suppress(SnapshotRefused):
                self._keys |= KeyRing.load(self._folder)._keys
        if identity not in self._keys:
            raise SnapshotKeyLost("the key that sealed this snapshot is not known here")
        return self._keys[identity]


def key_id(key: bytes) -> bytes:
    """Returns an id of a key that does not reveal the key."""
    return hashlib.sha256(b"clawmode snapshot key" + key).digest()[:8]


def _encode_key(key: bytes) -> str:
    return base64.b64encode(key).decode() + "\n"


def _read_private(path: Path) -> str:
    """Reads a file that only our user can access: with a key, one can forge a cell's memory."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise SnapshotRefused(f"{path} is a symbolic link: {_OTHER_KEYS}") from None
        raise
    with os.fdopen(descriptor, encoding="ascii") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SnapshotRefused(f"{path} is not a regular file: {_OTHER_KEYS}")
        if status.st_uid != os.geteuid():
            raise SnapshotRefused(
                f"{path} belongs to user {status.st_uid}, but this is user {os.geteuid()}: "
                f"{_OTHER_KEYS}"
            )
        if status.st_mode & 0o077:
            raise SnapshotRefused(
                f"{path} can be read or written by other users (mode "
                f"{stat.S_IMODE(status.st_mode):03o}): if nobody else has used it, run "
                f"`chmod 600 {path}`; otherwise {_OTHER_KEYS}"
            )
        return file.read()


@cache  # once for each folder
def _warn_of_open_folder(folder: Path) -> None:
    mode = folder.stat().st_mode
    if mode & 0o022 and not mode & stat.S_ISVTX:
        logger.warning(
            "other users can write to %s (mode %03o), and so remove the keys of parked programs: "
            "run `chmod 700 %s`",
            folder,
            stat.S_IMODE(mode),
            folder,
        )


def _parse_keys(text: str, place: str) -> list[bytes]:
    keys: list[bytes] = []
    try:
        keys = [base64.b64decode(line, validate=True) for line in text.split()]
    except binascii.Error:
        keys.clear()
    if not keys or any(len(key) != 32 for key in keys):
        raise SnapshotRefused(f"{place} must contain 32-byte keys in base64, the newest first")
    return keys


def bind(scope: Scope, *names: str) -> bytes:
    """Encodes the scope and the names that sealed data is bound to, without ambiguity."""
    parts = [part.encode("utf-8", "surrogatepass") for part in (*scope, *names)]
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


# ---- Records, arguments, replies ----


def seal_bytes(data: bytes, bound: bytes, keys: KeyRing) -> bytes:
    """Seals `data`, so that only the same keys with the same `bound` can unseal it."""
    nonce = os.urandom(12)
    identity = key_id(keys.current)
    return identity + nonce + _cipher(keys.current).encrypt(nonce, data, identity + bound)


def unseal_bytes(data: bytes, bound: bytes, keys: KeyRing) -> bytes:
    """Returns the data that `seal_bytes` sealed.

    Raises:
        SnapshotRefused: The data is truncated, altered or bound to something else, or its key is
            lost.
    """
    if not isinstance(data, bytes):
        raise SnapshotRefused("this is not a snapshot")
    identity, nonce, body = data[:8], data[8:20], data[20:]
    return _decrypt(keys.find(identity), nonce, body, identity + bound)


def _cipher(key: bytes) -> "AESGCM":
    # Imported when the first program parks: most processes never get there.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _decrypt(key: bytes, nonce: bytes, body: bytes, bound: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        return _cipher(key).decrypt(nonce, body, bound)
    except (InvalidTag, ValueError):
        raise SnapshotRefused(
            "the snapshot has been altered, or belongs to another run, session or agent"
        ) from None


# ---- A cell's memory ----


def seal(frozen: FrozenCell, wasm: bytes, bound: bytes, keys: KeyRing) -> bytes:
    """Seals the memory of a frozen cell.

    Args:
        frozen: The memory, as the worker returned it.
        wasm: SHA-256 of the engine.
        bound: Who may resume the cell, made by `bind`.
        keys: The first key is used.
    """
    nonce = os.urandom(12)
    numbers = (frozen.memory, frozen.heap, *frozen.pointers)
    identity = key_id(keys.current)
    header = _HEADER.pack(MAGIC, VERSION, identity, wasm, frozen.image, *numbers, nonce)
    return header + _cipher(keys.current).encrypt(nonce, frozen.pages, header + bound)


def unseal(data: bytes, wasm: bytes, bound: bytes, keys: KeyRing) -> FrozenCell:
    """Returns the memory of a frozen cell. The worker checks its size before decompressing it.

    Raises:
        SnapshotRefused: The data is truncated or altered, comes from another build, is bound to
            another run, session or agent, or its key is lost.
    """
    if not isinstance(data, bytes) or len(data) < _HEADER.size:
        raise SnapshotRefused("the snapshot is truncated")
    header, body = data[: _HEADER.size], data[_HEADER.size :]
    magic, version, identity, built, image, *numbers, nonce = _HEADER.unpack(header)
    if magic != MAGIC:
        raise SnapshotRefused("this is not a snapshot")
    if version != VERSION:
        raise SnapshotRefused(f"the snapshot has format {version}; this build reads {VERSION}")
    if built != wasm:
        raise SnapshotRefused("the snapshot was taken from another sandbox build")
    pages = _decrypt(keys.find(identity), nonce, body, header + bound)
    memory, heap, runtime, guest, stack = numbers
    return FrozenCell(image, memory, (runtime, guest, stack), pages, heap)


def other_build(build: str | None) -> SnapshotOfOtherBuild:
    """Returns the error for a cell that another build of clawmode has parked."""
    writer = f"clawmode {build}" if build else "an earlier build of clawmode"
    return SnapshotOfOtherBuild(
        f"The program was parked by {writer}, and this build ({__version__}) cannot resume it. "
        "It is kept until it expires: wait for it with the build that parked it."
    )
