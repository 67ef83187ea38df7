"""Whether a configuration file may be used: who can change it, and whether its user knows it.

A configuration starts programs and says where keys are sent, so whoever can write it acts as the
user. Two rules:

- A file that somebody else owns or can change or replace is not read, wherever it is. The superuser
  is trusted, and so is a group that is the user's alone.
- A file that was found in the working folder, and not named, may have come with a downloaded
  folder. Its user has to say once that it may be used; its path and digest are remembered, and a
  change is asked about again.
"""

import grp
import json
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clawmode.exceptions import ConfigurationError
from clawmode.files import write_atomic

FILE = "trusted-configs.json"
MAX_FILE = 1 << 20
MAX_LINKS = 40
SUPERUSER = 0


class UntrustedConfiguration(ConfigurationError):
    """A configuration of the working folder that its user has not agreed to."""


# ---- Who can change a file ----


def check_owner(path: Path, opened: os.stat_result) -> None:
    """Checks that nobody but the user and the superuser can change or replace a file.

    Args:
        path: The file as it was opened.
        opened: What `fstat` says of the open file.

    Raises:
        ConfigurationError: Somebody else can.
    """
    reason = _why_not(opened, str(path))
    if not reason and stat.S_ISREG(opened.st_mode):
        reason = next(_unsafe_steps(path, opened), "")
    if reason:
        raise ConfigurationError(
            f"the configuration {path} is not read, because somebody else can change what it "
            f"starts as you: {reason}",
            expected="a file that only you or root can change",
        )


def _unsafe_steps(path: Path, opened: os.stat_result) -> Iterator[str]:
    """What is wrong with the folders and links that lead to a file, one after the other.

    The path is walked as the kernel does: `..` after a link leads out of the link's target.
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
        yield "it was replaced while it was read"


def _names(path: str) -> list[str]:
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _why_not(status: os.stat_result, what: str) -> str:
    """Why others can change a file or replace what is in a folder; empty if they cannot."""
    if status.st_uid not in (os.geteuid(), SUPERUSER):
        fix = f"use it as that user, or run: chown {_user(os.geteuid())} {what}"
        return f"{what} belongs to {_owner(status)}; {fix}"
    mode = stat.S_IMODE(status.st_mode)
    others = bool(mode & stat.S_IWOTH)
    group = bool(mode & stat.S_IWGRP) and not _is_private(status.st_gid)
    if not others and not group:
        return ""
    # In a sticky folder nobody replaces what is another's; on a read-only one, nobody at all.
    if stat.S_ISDIR(status.st_mode) and (
        mode & stat.S_ISVTX or os.statvfs(what).f_flag & os.ST_RDONLY
    ):
        return ""
    who = "everybody" if others else f"the group {_group(status.st_gid)}"
    return f"{who} can write to {what} (mode {mode:03o}); run: chmod go-w {what}"


def _owner(status: os.stat_result) -> str:
    return f"{_user(status.st_uid)} and not to {_user(os.geteuid())}"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _is_private(gid: int) -> bool:
    """Whether a group is the user's own, as many systems make one for each user."""
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    named_alike = group.gr_name == user.pw_name and user.pw_gid == gid
    return named_alike and set(group.gr_mem) <= {user.pw_name}


# ---- What the user has agreed to ----


def is_trusted(path: Path, digest: str, state: Path) -> bool:
    """Whether the user has agreed to a file with this content at this place."""
    return _read(state).get(os.path.realpath(path)) == digest


def was_trusted(path: Path, state: Path) -> bool:
    """Whether the user has agreed to a file at this place, whatever it said then."""
    return os.path.realpath(path) in _read(state)


def trust(path: Path, digest: str, state: Path) -> None:
    """Remembers that the user has agreed to a file.

    Raises:
        ConfigurationError: That cannot be written down.
    """
    known = _read(state) | {os.path.realpath(path): digest}
    kept = state / FILE
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(kept, json.dumps({"version": 1, "files": known}, indent=1))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"{kept} cannot be written: {reason}") from None


def _read(state: Path) -> dict[str, str]:
    """The files that the user has agreed to, by path; none if the list is not the user's alone."""
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
