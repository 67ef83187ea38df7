"""What the kernel says about this process and its children."""

import os
from pathlib import Path

PROC = Path("/proc")


def children(pid: int = 0) -> list[int]:
    """The processes that one started and has not waited for, ended ones included; else ours."""
    mine = str(pid or os.getpid())
    found: list[int] = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text()
            except OSError:
                continue
            # The name, in parentheses, may contain anything.
            if status.rpartition(")")[2].split()[1] == mine:
                found.append(int(entry.name))
    return found


def pss(pid: int) -> int:
    """Bytes in memory, what is shared counted in proportion. 0: it has ended."""
    return _kilobytes(pid, "smaps_rollup", "Pss:")


def rss(pid: int) -> int:
    """Bytes in memory, what is shared counted in full. 0: it has ended."""
    return _kilobytes(pid, "status", "VmRSS:")


def descriptors(pid: int) -> tuple[int, int]:
    """How many pipes it has open, and how many other descriptors. None: it has ended."""
    folder = PROC / str(pid) / "fd"
    pipes = others = 0
    try:
        for name in os.listdir(folder):
            try:
                is_pipe = os.readlink(folder / name).startswith("pipe:")
            except FileNotFoundError:
                continue  # the one that lists the others
            pipes += is_pipe
            others += not is_pipe
    except OSError:
        return 0, 0
    return pipes, others


def family_pss(pid: int = 0) -> int:
    """Bytes in memory of a process, or of this one, and all its children."""
    return sum(map(pss, [pid or os.getpid(), *children(pid)]))


def _kilobytes(pid: int, file: str, field: str) -> int:
    try:
        lines = (PROC / str(pid) / file).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(field)), 0)
