"""What the kernel says about this process and its children."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


def children(pid: int = 0) -> list[int]:
    """The processes that one started and has not waited for, ended ones included; else ours."""
    mine = str(pid or os.getpid())
    return [child for child, fields in _table() if fields[1] == mine]


def _table() -> Iterator[tuple[int, list[str]]]:
    """All processes, with the fields that `/proc/PID/stat` has after the name."""
    for entry in os.listdir(PROC):
        if entry.isdigit():
            with suppress(OSError):
                yield int(entry), _fields(int(entry))


def _fields(pid: int) -> list[str]:
    status = (PROC / str(pid) / "stat").read_text("utf-8", "replace")
    # The name, in parentheses, may contain anything.
    return status.rpartition(")")[2].split()


def cpu_seconds() -> float:
    """Processor time of this process, and of all that it has started, whether ended or not."""
    own = os.times()
    ended = own.children_user + own.children_system
    return own.user + own.system + ended + sum(map(_used, descendants()))


def descendants(pid: int = 0) -> list[int]:
    """The children of a process, or of this one, their children, and so on."""
    parents: dict[int, list[int]] = {}
    for each, fields in _table():
        parents.setdefault(int(fields[1]), []).append(each)
    found = list(parents.get(pid or os.getpid(), ()))
    for each in found:  # grows while it is read
        found += parents.get(each, ())
    return found


def _used(pid: int) -> float:
    """Seconds that a process and its children that have ended used. 0: it has ended."""
    try:
        fields = _fields(pid)
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


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


def family_memory(pid: int = 0) -> int:
    """Bytes in memory of a process, or of this one, and all that it has started.

    They are counted as if nothing else ran: memory that the family shares counts once, and so do
    the files that it maps, even if processes of others map them too.
    """
    family = [pid or os.getpid(), *descendants(pid)]
    files: dict[tuple[str, str], int] = {}
    for member in family:
        for mapped, size in _mapped_files(member):
            files[mapped] = max(files.get(mapped, 0), size)
    own = (_kilobytes(member, "smaps_rollup", "Pss_Anon:") for member in family)
    shared = (_kilobytes(member, "smaps_rollup", "Pss_Shmem:") for member in family)
    return sum(own) + sum(shared) + sum(files.values())


def _mapped_files(pid: int) -> Iterator[tuple[tuple[str, str], int]]:
    """The mapped parts of files, by path and offset, with the bytes of each that are in memory."""
    try:
        lines = (PROC / str(pid) / "smaps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    key, resident = ("", ""), 0
    for line in lines:
        words = line.split()
        if not words[0].endswith(":"):
            key = (words[5], words[2]) if len(words) > 5 and words[5].startswith("/") else ("", "")
        elif words[0] == "Rss:":
            resident = int(words[1]) << 10
        elif words[0] == "Anonymous:" and key[0]:
            yield key, resident - (int(words[1]) << 10)


def _kilobytes(pid: int, file: str, field: str) -> int:
    try:
        lines = (PROC / str(pid) / file).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(field)), 0)
