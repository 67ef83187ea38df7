"""Leases of the processes that share a store: `<folder>/owners/<name>`, one locked file per owner.

A lease is a file lock, which the kernel releases when the process dies. It needs no clock and no
heartbeat, and a process that was stopped for an hour still has its lease. It works on one machine
only, like SQLite in WAL mode.
"""

import contextlib
import os
import re
import secrets
from pathlib import Path

from clawmode.files import is_locked, open_lock, try_lock

_OWNER = re.compile(r"[0-9a-f]{32}")


class Leases:
    """The leases of this process, and those of others as far as they are asked about.

    Args:
        folder: The folder of the lease files; its parent must exist before `acquire`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._locks)

    def acquire(self) -> str:
        """Creates an owner, and returns its name."""
        owner = secrets.token_hex(16)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self.living()  # removes the files of dead owners
        # Locked before it has its final name: an unlocked file with that name means a dead owner.
        temporary = self._folder / f"{owner}.new"
        descriptor = open_lock(temporary, new=True)
        locked = try_lock(descriptor)
        assert locked, "no other process knows the name of this file"
        os.rename(temporary, self._folder / owner)
        self._locks[owner] = descriptor
        return owner

    def living(self) -> dict[str, bytes]:
        """Returns the living owners of all processes, and what each has noted."""
        found: dict[str, bytes] = {}
        for path in sorted(self._folder.iterdir()) if self._folder.exists() else ():
            if _OWNER.fullmatch(path.name) and self.alive(path.name):
                with contextlib.suppress(FileNotFoundError):
                    found[path.name] = path.read_bytes()
        return found

    def note(self, owner: str, text: bytes) -> None:
        """Lets an owner of this process note something about itself, for others to read."""
        os.ftruncate(self._locks[owner], 0)
        os.pwrite(self._locks[owner], text, 0)

    def release(self, owner: str) -> None:
        """Ends an owner of this process. Unknown owners are ignored."""
        descriptor = self._locks.pop(owner, None)
        if descriptor is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._folder / owner)
            os.close(descriptor)

    def release_all(self) -> None:
        """Ends all owners of this process."""
        for owner in list(self._locks):
            self.release(owner)

    def forget(self) -> None:
        """Gives up the locks without releasing them: they belong to the parent of this process."""
        for descriptor in self._locks.values():
            os.close(descriptor)
        self._locks.clear()

    def alive(self, owner: str) -> bool:
        """True if the process of an owner is alive; else removes the file of the owner."""
        if owner in self._locks:
            return True
        # The name comes from the database, which is not trusted, and becomes part of a path.
        if not isinstance(owner, str) or not _OWNER.fullmatch(owner):
            return False
        path = self._folder / owner
        if is_locked(path):
            return True
        path.unlink(missing_ok=True)
        return False
