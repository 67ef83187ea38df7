"""Replaces a folder by another in one step: readers see the old folder or the new one."""

import ctypes
import os
import sys
from pathlib import Path

_AT_FDCWD = -100
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS


def put(new: Path, target: Path, aside: Path) -> bool:
    """Moves a folder to `target`.

    Args:
        new: The folder to move.
        target: The destination, on the same file system.
        aside: Receives the old folder if the system cannot exchange two folders; otherwise the old
            folder ends up at `new`.

    Returns:
        True if `target` existed before.

    Raises:
        OSError: The move failed, and nothing has changed.
    """
    if not os.path.lexists(target):
        os.rename(new, target)
        return False
    if _exchange(new, target):
        return True
    os.rename(target, aside)
    try:
        os.rename(new, target)
    except BaseException:
        os.rename(aside, target)
        raise
    return True


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two folders; returns False if the system cannot."""
    library = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(one), os.fsencode(other)
    try:
        if sys.platform == "darwin":
            return library.renamex_np(first, second, _EXCHANGE) == 0
        return library.renameat2(_AT_FDCWD, first, _AT_FDCWD, second, _EXCHANGE) == 0
    except AttributeError:  # an older C library
        return False
