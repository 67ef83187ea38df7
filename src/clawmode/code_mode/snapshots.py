"""Frozen cells outside of the process: sealed, bound to who may resume them, and refused otherwise.

A snapshot is a raw memory image, and restoring a forged one hands over the guest's heap. So it is
encrypted and authenticated with AES-GCM; the header, the run, session and agent, and the cell's id
are part of what is authenticated. `docs/reference/snapshot.md` describes the format.
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

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from clawmode.context import Scope
from clawmode.exceptions import SnapshotKeyLost, SnapshotRefused
from clawmode.files import create_atomic, file_lock, write_atomic
from clawmode.sandbox.protocol import FrozenCell

MAGIC = b"CLMS"
VERSION = 1
KEY_VARIABLE = "CLAWMODE_SNAPSHOT_KEY"

_OTHER_KEYS = (
    f"remove it, and new keys are made (programs that were parked with the old ones are lost), or "
    f"set {KEY_VARIABLE}"
)

logger = logging.getLogger("clawmode")

_HEADER = struct.Struct("<4sB8s32s32s2I3I12s")  # magic … wasm, image, memory, heap, pointers, nonce


class KeyRing:
    """Keys that seal snapshots: the first seals, all of them open.

    Args:
        keys: 32 bytes each, the newest first.
        folder: Where to look again for one that is not known: others may have rotated.
    """

    def __init__(self, keys: list[bytes], folder: Path | None = None) -> None:
        if not keys or any(len(key) != 32 for key in keys):
            raise ValueError("a snapshot key is 32 bytes, and there must be at least one")
        self._keys = {key_id(key): key for key in keys}
        self._folder = folder
        self.current = keys[0]

    @classmethod
    def ephemeral(cls) -> "KeyRing":
        """A key that ends with the process."""
        return cls([os.urandom(32)])

    @classmethod
    def load(cls, folder: Path) -> "KeyRing":
        """The keys given by the environment, else those in `folder`, made there on first use.

        Raises:
            SnapshotRefused: The keys cannot be read, or others own, read or write their file.
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
    def rotate(cls, folder: Path) -> "KeyRing":
        """Puts a new key before those in `folder`, which stay readable."""
        cls.load(folder)
        path = folder / "snapshot.keys"
        with file_lock(folder):
            write_atomic(path, _encode_key(os.urandom(32)) + _read_private(path))
        return cls.load(folder)

    def find(self, identity: bytes) -> bytes:
        """The key with this id."""
        if identity not in self._keys and self._folder is not None:
            with contextlib.suppress(SnapshotRefused):
                self._keys |= KeyRing.load(self._folder)._keys
        if identity not in self._keys:
            raise SnapshotKeyLost("the key that sealed this snapshot is not known here")
        return self._keys[identity]


def key_id(key: bytes) -> bytes:
    """Names a key without giving it away."""
    return hashlib.sha256(b"clawmode snapshot key" + key).digest()[:8]


def _encode_key(key: bytes) -> str:
    return base64.b64encode(key).decode() + "\n"


def _read_private(path: Path) -> str:
    """The text of a file that is ours alone: whoever knows a key can forge a cell's memory."""
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
                f"{path} belongs to user {status.st_uid}, and this is user {os.geteuid()}: "
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
            "other users can write to %s (mode %03o), and remove the keys of parked programs: run "
            "`chmod 700 %s`",
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
        raise SnapshotRefused(f"{place} holds no 32-byte keys in base64, newest first")
    return keys


def bind(scope: Scope, *names: str) -> bytes:
    """What a sealed thing is bound to: whose it is, and which one of theirs."""
    parts = [part.encode("utf-8", "surrogatepass") for part in (*scope, *names)]
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


# ---- Small things: records, arguments, answers ----


def seal_bytes(data: bytes, bound: bytes, keys: KeyRing) -> bytes:
    """`data` as bytes that only the same keys, with the same `bound`, can open again."""
    nonce = os.urandom(12)
    identity = key_id(keys.current)
    return identity + nonce + AESGCM(keys.current).encrypt(nonce, data, identity + bound)


def unseal_bytes(data: bytes, bound: bytes, keys: KeyRing) -> bytes:
    """What `seal_bytes` was given.

    Raises:
        SnapshotRefused: It is truncated, altered, bound to something else, or its key is lost.
    """
    if not isinstance(data, bytes):
        raise SnapshotRefused("this is not a snapshot")
    identity, nonce, body = data[:8], data[8:20], data[20:]
    return _decrypt(keys.find(identity), nonce, body, identity + bound)


def _decrypt(key: bytes, nonce: bytes, body: bytes, bound: bytes) -> bytes:
    try:
        return AESGCM(key).decrypt(nonce, body, bound)
    except (InvalidTag, ValueError):
        raise SnapshotRefused(
            "the snapshot has been altered, or belongs to another run, session or agent"
        ) from None


# ---- A cell's memory ----


def seal(frozen: FrozenCell, wasm: bytes, bound: bytes, keys: KeyRing) -> bytes:
    """A frozen cell as bytes.

    Args:
        frozen: What the worker made.
        wasm: SHA-256 of the engine it ran in.
        bound: Who may resume it, by `bind`.
        keys: The first of them is used.
    """
    nonce = os.urandom(12)
    numbers = (frozen.memory, frozen.heap, *frozen.pointers)
    identity = key_id(keys.current)
    header = _HEADER.pack(MAGIC, VERSION, identity, wasm, frozen.image, *numbers, nonce)
    return header + AESGCM(keys.current).encrypt(nonce, frozen.pages, header + bound)


def unseal(data: bytes, wasm: bytes, bound: bytes, keys: KeyRing) -> FrozenCell:
    """The frozen cell in `data`. The worker checks its size, before it decompresses anything.

    Raises:
        SnapshotRefused: It is corrupt, truncated, tampered with, of another build, sealed for
            another run, session or agent, or by a key that is lost.
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
