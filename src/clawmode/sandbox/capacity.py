"""Parent side: how many workers fit into the memory and the descriptors that are free."""

import contextlib
from pathlib import Path

MAX_WORKERS = 64
WORKER_BYTES = 16 << 20
"""Memory that is set aside for a worker: a forked one takes 6 MiB, and a small program a few."""

WORKER_DESCRIPTORS = 6
MEMORY_SHARE = 4
"""All workers together are planned to take a fourth of the free memory, and half of the
descriptors."""


def workers_that_fit() -> int:
    """Returns how many workers fit into a part of the memory and descriptors that are free."""
    import resource  # not on Windows

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = soft // 2 // WORKER_DESCRIPTORS if soft > 0 else MAX_WORKERS
    memory = free_memory() // MEMORY_SHARE // WORKER_BYTES
    return max(1, min(MAX_WORKERS, memory, descriptors))


def free_memory(root: Path = Path("/")) -> int:
    """Returns the bytes that this process may still use: of the machine, and of its container."""
    free = [1 << 62]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = (root / "proc/meminfo").read_text("ascii").splitlines()
        free.append(
            next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
        )
    group = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError):
        # Version 2 of cgroups: the line is `0::` and a path. A limit binds all groups below.
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
        group = group.joinpath(*(line[3:].strip("/") for line in lines if line.startswith("0::")))
    for folder in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):  # without a limit the file says "max"
            most = int((folder / "memory.max").read_text("ascii"))
            free.append(most - int((folder / "memory.current").read_text("ascii")))
    return max(min(free), 0)
