"""Checks whether a configuration file may be used: its owner, and the user's consent.

A configuration starts programs and decides where keys are sent, so everyone who can write to it can
act as the user. Two rules follow:

- A file that another user owns, can change or can replace is rejected, wherever it is. The
  superuser is trusted, and so is a group that has only the user as a member.
- A file in the working folder that the user did not name may be part of a downloaded folder. The
  user must trust it once. Its path and digest are stored, and a changed file must be trusted again.
"""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clawmode.exceptions import ConfigurationError, UnsupportedPlatform
from clawmode.files import write_atomic

FILE = "trusted-configs.json"
MAX_FILE = 1 << 20
MAX_LINKS = 40
SUPERUSER = 0


class UntrustedConfiguration(ConfigurationError):
    """A configuration in the working folder that the user has not trusted."""


# ---- Owner and permissions ----


def check_owner(path: Path, opened: os.stat_result) -> None:
    """Checks that only the user and the superuser can change or replace a file.

    Args:
        path: The path by which the file was opened.
        opened: The `fstat` result of the open file.

    Raises:
        ConfigurationError: Another user can change or replace the file.
        UnsupportedPlatform: The operating system does not tell who can.
    """
    if not hasattr(os, "geteuid"):
        raise UnsupportedPlatform("A configuration file")
    reason = _why_not(opened, str(path))
    if not reason and stat.S_ISREG(opened.st_mode):
        reason = next(_unsafe_steps(path, opened), "")
    if reason:
        raise ConfigurationError(
            f"cannot read the configuration {path}, because another user could change which "
            f"programs it starts as you: {reason}",
            expected="a file that only you or root can change",
        )


def _unsafe_steps(path: Path, opened: os.stat_result) -> Iterator[str]:
    """Yields the folders and links on the way to a file that another user can change.

    The path is walked as the kernel walks it: `..` after a link is the parent of the link's target.
    """
    ahead = _names(os.path.join(os.getcwd(), path))
    here, links = "/", 0
    while ahead:
        if reason := _why_not(os.stat(here), here):
            yield reason
        name = ahead.pop()
        if name == "..":
            here = os.path.dirname(here)
            continue
        step = os.path.join(here, name)
        status = os.lstat(step)
        if not stat.S_ISLNK(status.st_mode):
            here = step
            continue
        links += 1
        if links > MAX_LINKS or status.st_uid not in (os.geteuid(), SUPERUSER):
            yield f"the link {step} belongs to {_owner(status)}; remove it"
            return
        target = os.readlink(step)
        here = "/" if target.startswith("/") else here
        ahead += _names(target)
    if not os.path.samestat(os.stat(here), opened):
        yield "the file was replaced while it was read"


def _names(path: str) -> list[str]:
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _why_not(status: os.stat_result, what: str) -> str:
    """Says why others can change a file, or replace files of a folder; empty if they cannot."""
    if status.st_uid not in (os.geteuid(), SUPERUSER):
        fix = f"run clawmode as that user, or run: chown {_user(os.geteuid())} {what}"
        return f"{what} belongs to {_owner(status)}; {fix}"
    mode = stat.S_IMODE(status.st_mode)
    others = bool(mode & stat.S_IWOTH)
    group = bool(mode & stat.S_IWGRP) and not _is_private(status.st_gid)
    if not others and not group:
        return ""
    # Users cannot replace files of others in a sticky folder, or any file on a read-only volume.
    if stat.S_ISDIR(status.st_mode) and (
        mode & stat.S_ISVTX or os.statvfs(what).f_flag & os.ST_RDONLY
    ):
        return ""
    who = "everybody"
    if not others:
        try:
            import grp  # not on Windows

            who = f"the group {grp.getgrgid(status.st_gid).gr_name}"
        except KeyError:
            who = f"the group {status.st_gid}"
    return f"{who} can write to {what} (mode {mode:03o}); run: chmod go-w {what}"


def _owner(status: os.stat_result) -> str:
    return f"{_user(status.st_uid)}, not to {_user(os.geteuid())}"


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _is_private(gid: int) -> bool:
    """True for the user's private group; many systems create one for each user."""
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    named_alike = group.gr_name == user.pw_name and user.pw_gid == gid
    return named_alike and set(group.gr_mem) <= {user.pw_name}


# ---- Trusted files ----


def is_trusted(path: Path, digest: str, state: Path) -> bool:
    """True if the user trusted a file with this path and this content."""
    return _read(state).get(os.path.realpath(path)) == digest


def was_trusted(path: Path, state: Path) -> bool:
    """True if the user trusted a file with this path, with any content."""
    return os.path.realpath(path) in _read(state)


def trust(path: Path, digest: str, state: Path) -> None:
    """Stores that the user trusts a file.

    Raises:
        ConfigurationError: The list of trusted files cannot be written.
    """
    known = _read(state) | {os.path.realpath(path): digest}
    stored = state / FILE
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(stored, json.dumps({"version": 1, "files": known}, indent=1))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"cannot write the trusted files to {stored}: {reason}") from None


def _read(state: Path) -> dict[str, str]:
    """Returns digests by path. A list that another user could change counts as empty."""
    path = state / FILE
    try:
        with path.open("rb") as file:
            check_owner(path, os.fstat(file.fileno()))
            data: Any = json.loads(file.read(MAX_FILE))
        return {str(name): str(digest) for name, digest in data["files"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
    except ConfigurationError:
        return {}
