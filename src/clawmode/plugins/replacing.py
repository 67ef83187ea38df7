"""One folder put in the place of another, in one step: whoever looks sees the old or the new."""

import ctypes
import os
import sys
from pathlib import Path

_AT_FDCWD = -100
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS


def put(new: Path, target: Path, aside: Path) -> bool:
    """Moves a folder to its place.

    Args:
        new: The folder.
        target: Its place, on the same file system.
        aside: Where what was there goes if the system cannot exchange the two; else it goes to
            `new`.

    Returns:
        Whether something was there.

    Raises:
        OSError: It cannot be done; then all is as it was.
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
    """Whether the system could exchange two folders."""
    library = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(one), os.fsencode(other)
    try:
        if sys.platform == "darwin":
            return library.renamex_np(first, second, _EXCHANGE) == 0
        return library.renameat2(_AT_FDCWD, first, _AT_FDCWD, second, _EXCHANGE) == 0
    except AttributeError:  # an older C library
        return False
