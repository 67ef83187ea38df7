"""Frozen cells outside of the process: sealed, bound to who may resume them, and refused otherwise.

A snapshot is a raw memory image, and restoring a forged one hands over the guest's heap. So it is
encrypted and authenticated with AES-GCM; the header and the run, session and agent are part of what
is authenticated. `docs/reference/snapshot.md` describes the format.
"""

import base64
import binascii
import contextlib
import hashlib
import os
import struct
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from clawmode.context import RunContext
from clawmode.exceptions import SnapshotRefused, SnapshotTooLarge
from clawmode.sandbox.protocol import Frozen

MAGIC = b"CLMS"
VERSION = 1
KEY_VARIABLE = "CLAWMODE_SNAPSHOT_KEY"

_HEADER = struct.Struct("<4sB8s32s32sI3I12s")  # magic … wasm, image, memory, pointers, nonce


class KeyRing:
    """Keys that seal snapshots: the first seals, all of them open.

    Args:
        keys: 32 bytes each, the newest first.
    """

    def __init__(self, keys: list[bytes]) -> None:
        if not keys or any(len(key) != 32 for key in keys):
            raise ValueError("a snapshot key is 32 bytes, and there must be at least one")
        self._keys = {key_id(key): key for key in keys}
        self.current = keys[0]

    @classmethod
    def ephemeral(cls) -> "KeyRing":
        """A key that ends with the process."""
        return cls([os.urandom(32)])

    @classmethod
    def load(cls, folder: Path) -> "KeyRing":
        """The keys given by the environment, else those in `folder`, made there on first use.

        Raises:
            SnapshotRefused: They cannot be read: without them nothing that was parked can be.
        """
        if text := os.environ.get(KEY_VARIABLE):
            return cls(_parse_keys(text.replace(",", "\n"), KEY_VARIABLE))
        path = folder / "snapshot.keys"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                _write_new(path, _encode_key(os.urandom(32)))
            return cls(_parse_keys(path.read_text("ascii"), str(path)))
        except (OSError, UnicodeDecodeError) as error:
            raise SnapshotRefused(f"snapshot keys cannot be read from {path}: {error}") from None

    @classmethod
    def rotate(cls, folder: Path) -> "KeyRing":
        """Puts a new key before those in `folder`, which stay readable."""
        cls.load(folder)
        path = folder / "snapshot.keys"
        temporary = path.with_suffix(f".{os.getpid()}")
        _write_new(temporary, _encode_key(os.urandom(32)) + path.read_text("ascii"))
        os.replace(temporary, path)
        return cls.load(folder)

    def find(self, identity: bytes) -> bytes:
        """The key with this id."""
        if identity not in self._keys:
            raise SnapshotRefused("the key that sealed this snapshot is not known here")
        return self._keys[identity]


def key_id(key: bytes) -> bytes:
    """Names a key without giving it away."""
    return hashlib.sha256(b"clawmode snapshot key" + key).digest()[:8]


def _encode_key(key: bytes) -> str:
    return base64.b64encode(key).decode() + "\n"


def _write_new(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _parse_keys(text: str, place: str) -> list[bytes]:
    keys: list[bytes] = []
    try:
        keys = [base64.b64decode(line, validate=True) for line in text.split()]
    except binascii.Error:
        keys.clear()
    if not keys or any(len(key) != 32 for key in keys):
        raise SnapshotRefused(f"{place} holds no 32-byte keys in base64, newest first")
    return keys


def _scope(context: RunContext) -> bytes:
    parts = [context.agent_id, context.session_id, context.session_key, context.run_id]
    return b"".join(struct.pack("<I", len(part.encode())) + part.encode() for part in parts)


def seal(frozen: Frozen, wasm: bytes, context: RunContext, keys: KeyRing) -> bytes:
    """A frozen cell as bytes that only `context` can open again.

    Args:
        frozen: What the worker made.
        wasm: SHA-256 of the engine it ran in.
        context: Who may resume it.
        keys: The first of them is used.
    """
    nonce = os.urandom(12)
    identity = key_id(keys.current)
    header = _HEADER.pack(
        MAGIC, VERSION, identity, wasm, frozen.image, frozen.memory, *frozen.pointers, nonce
    )
    body = AESGCM(keys.current).encrypt(nonce, frozen.pages, header + _scope(context))
    return header + body


def unseal(
    data: bytes, wasm: bytes, context: RunContext, keys: KeyRing, *, max_memory: int
) -> Frozen:
    """The frozen cell in `data`.

    Raises:
        SnapshotRefused: It is corrupt, truncated, tampered with, of another build, sealed for
            another run, session or agent, or by a key that is lost.
        SnapshotTooLarge: Its memory is over `max_memory`.
    """
    if len(data) < _HEADER.size:
        raise SnapshotRefused("the snapshot is truncated")
    header, body = data[: _HEADER.size], data[_HEADER.size :]
    magic, version, identity, built, image, memory, *pointers, nonce = _HEADER.unpack(header)
    if magic != MAGIC:
        raise SnapshotRefused("this is not a snapshot")
    if version != VERSION:
        raise SnapshotRefused(f"the snapshot has format {version}; this build reads {VERSION}")
    if built != wasm:
        raise SnapshotRefused("the snapshot was taken from another sandbox build")
    try:
        pages = AESGCM(keys.find(identity)).decrypt(nonce, body, header + _scope(context))
    except InvalidTag:
        raise SnapshotRefused(
            "the snapshot has been altered, or belongs to another run, session or agent"
        ) from None
    if memory > max_memory:
        raise SnapshotTooLarge(f"the snapshot needs {memory} bytes of memory: {max_memory} allowed")
    runtime, guest, stack = pointers
    return Frozen(image, memory, (runtime, guest, stack), pages)
