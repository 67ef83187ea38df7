"""Worker side: what a worker gives up before it meets a guest.

wasm is the wall. This is what stands behind it, for the guest that finds a hole: a process that can
compute, answer on its pipes and end, and do nothing else. Three layers overlap, because a kernel or
a container may lack any of them.

- *Landlock*: no file can be opened, no TCP port used, no process outside signalled or traced.
- *Resource limits*: no descriptor, file or process can be made, and private memory ends somewhere.
- *seccomp*: of some 360 system calls, the two dozen that running guests takes. Memory can be mapped
  in one way only, the one that the limit on private memory counts.

Landlock binds one thread and the threads that it starts later. So `give_up_files` is called in the
main thread while there is no other, and everything that is read from files (modules too) is read
before. `give_up_calls` binds all threads, and none can be started afterwards.

Left out:

- `RLIMIT_AS`: wasmtime reserves 4 GiB of addresses for each memory, and mostly leaves them empty.
- `PR_SET_DUMPABLE`: without it a parent that is not root cannot read `smaps`, which is how the
  memory of workers is measured. What it prevents, being traced by a process of the same user, no
  other worker can do.
- `close`, `poll`, `clock_nanosleep` and the like: nobody was seen to call them.
- `mremap`: it can enlarge the main thread's stack, whose memory the limit does not count. The C
  library copies where it is refused.
"""

import ctypes
import errno
import os
import resource
import struct
import sys
from collections.abc import Callable
from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["off", "best-effort", "required"]

MEMORY_WALL = 3 << 30
"""Bytes of private writable memory. The largest guest has 1.5 GiB, and is copied in parts."""

STACK_WALL = 8 << 20
"""Bytes of the main thread's stack, which the limit above does not count. Guests run elsewhere."""


_NEEDS = {
    "Landlock": "it needs Linux 5.13 or newer, with `landlock` in /sys/kernel/security/lsm",
    "resource limits": "they need Linux on x86_64 or aarch64, and a user who may lower them",
    "seccomp": "it needs Linux on x86_64 or aarch64, and a container that allows seccomp filters",
}


class LockdownFailed(Exception):
    """This system does not offer all of the lockdown, and all of it is required."""


def lock_down(mode: Mode) -> tuple[str, ...]:
    """Gives up everything at once: for a process with one thread that will not need another.

    Args:
        mode: `off` does nothing; `best-effort` does what this system offers; `required` does all.

    Returns:
        A note for each part that could not be applied.

    Raises:
        LockdownFailed: A part could not be applied and is required. Others may have been.
    """
    return give_up_files(mode) + give_up_calls(mode)


def give_up_files(mode: Mode) -> tuple[str, ...]:
    """The first half of `lock_down`: binds this thread, and those that it will start."""
    return _apply(mode, {"Landlock": _restrict_access})


def give_up_calls(mode: Mode) -> tuple[str, ...]:
    """The second half of `lock_down`: binds all threads, and no other can be started."""
    # Lowering limits is a system call too, and the filter does not allow it.
    return _apply(mode, {"resource limits": _lower_limits, "seccomp": _filter_calls})


def _apply(mode: Mode, parts: dict[str, Callable[[], None]]) -> tuple[str, ...]:
    if mode == "off":
        return ()
    notes: list[str] = []
    for name, apply in parts.items():
        try:
            apply()
        except OSError as error:
            notes.append(f"lockdown without {name}: {error.strerror}; {_NEEDS[name]}")
    if notes and mode == "required":
        raise LockdownFailed("; ".join(notes))
    return tuple(notes)


# ---- Landlock ----

# By the version of the kernel's Landlock in which they came.
_FILE_RIGHTS = {1: 0x1FFF, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15, 9: 1 << 16}
_TCP_RIGHTS = {4: 0b11}  # bind, connect
_SCOPES = {6: 0b11}  # abstract sockets, signals

_GET_VERSION = 1


def _restrict_access() -> None:
    """Takes every right that Landlock knows, and grants none back."""
    threads = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 0
    version = _system_call("landlock_create_ruleset", 0, 0, _GET_VERSION)
    handled = ctypes.create_string_buffer(ruleset(version))
    rules = _system_call("landlock_create_ruleset", ctypes.addressof(handled), len(handled.raw) - 1)
    try:
        _forbid_new_privileges()
        _system_call("landlock_restrict_self", rules)
    finally:
        os.close(rules)
    if threads > 1:
        raise OSError(errno.EBUSY, f"it binds one thread, and there are {threads}")


def ruleset(version: int) -> bytes:
    """`struct landlock_ruleset_attr`: what `version` of Landlock can take away."""
    # An older kernel takes a longer struct than it knows, if the rest is zero.
    return struct.pack(
        "=QQQ", *(_since(version, rights) for rights in (_FILE_RIGHTS, _TCP_RIGHTS, _SCOPES))
    )


def _since(version: int, rights: dict[int, int]) -> int:
    return sum(mask for since, mask in rights.items() if since <= version)


# ---- Resource limits ----


def _lower_limits() -> None:
    _number_of("prctl")  # what the limits mean is known for Linux only
    # Zero keeps files from being written, but a core dump can go into a pipe: one forbids both.
    _lower(resource.RLIMIT_CORE, 1)
    _lower(resource.RLIMIT_DATA, MEMORY_WALL)
    _lower(resource.RLIMIT_STACK, STACK_WALL)
    # Pipes are no files to this limit, and open descriptors stay open under the next.
    _lower(resource.RLIMIT_FSIZE, 0)
    _lower(resource.RLIMIT_NOFILE, 0)
    _lower(resource.RLIMIT_NPROC, 0)  # not for root, who has seccomp only


def _lower(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(limit, (value, value))
    except ValueError as error:  # what it makes of EPERM
        raise OSError(errno.EPERM, str(error)) from None


# ---- seccomp ----

_ALLOWED = {
    "read": (0, 63),
    "write": (1, 64),
    "writev": (20, 66),  # the C library's last words
    "munmap": (11, 215),
    "mprotect": (10, 226),
    "madvise": (28, 233),
    "brk": (12, 214),
    "futex": (202, 98),
    "sched_yield": (24, 124),
    "membarrier": (324, 283),  # new machine code on ARM
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    "setitimer": (38, 103),
    "clock_gettime": (228, 113),  # where the vDSO cannot tell the time
    "getrandom": (318, 278),
    "getpid": (39, 172),
    "gettid": (186, 178),
    "exit": (60, 93),
    "exit_group": (231, 94),
}
_MMAP, _TGKILL, _MEMFD_CREATE = "mmap", "tgkill", "memfd_create"
_NUMBERS = _ALLOWED | {
    _MMAP: (9, 222),
    _TGKILL: (234, 131),
    _MEMFD_CREATE: (319, 279),
    "prctl": (157, 167),
    "seccomp": (317, 277),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
}
"""System call numbers on x86_64 and on aarch64."""

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of `_NUMBERS`, and how seccomp names the machine."""

# BPF: a word of `struct seccomp_data` into the accumulator; skip if (not) equal; return.
_LOAD, _JUMP_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST_ARGUMENT, _FOURTH_ARGUMENT = 0, 4, 16, 40

# MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS, MAP_NORESERVE: what the C library and wasmtime use. Shared
# memory and stacks (MAP_SHARED, MAP_GROWSDOWN) count against no limit.
_MAP_FLAGS = 0x02 | 0x10 | 0x20 | 0x4000
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000

_SET_FILTER = 1
_ALL_THREADS = 1


def _filter_calls() -> None:
    code = build_filter(os.uname().machine, os.getpid())
    program = ctypes.create_string_buffer(code)
    header = struct.pack("HP", len(code) // 8, ctypes.addressof(program))
    pointer = ctypes.create_string_buffer(header)
    _forbid_new_privileges()
    thread = _system_call("seccomp", _SET_FILTER, _ALL_THREADS, ctypes.addressof(pointer))
    if thread:
        raise OSError(errno.EBUSY, f"thread {thread} has a filter of its own")


def build_filter(machine: str, pid: int) -> bytes:
    """The BPF program that decides about each system call of process `pid` on `machine`.

    What is not allowed fails with EPERM, so that Python can still say what went wrong.
    """
    column, name = _MACHINES[machine]
    allow, refuse = _op(_RETURN, _ALLOW), _op(_RETURN, _ERRNO | errno.EPERM)
    # Numbers mean other calls in another mode of the CPU. x32 has x86_64's name, but a bit in its
    # numbers that no number below has.
    steps = [_op(_LOAD, _MACHINE), _op(_JUMP_EQUAL, name, 1, 0), _op(_RETURN, _KILL)]
    steps += [_op(_LOAD, _NUMBER)]
    for numbers in _ALLOWED.values():
        steps += _if_equal(numbers[column], allow)
    # wasmtime takes this errno, and no other, to mean that it has to copy.
    no_system = _op(_RETURN, _ERRNO | errno.ENOSYS)
    steps += _if_equal(_NUMBERS[_MEMFD_CREATE][column], no_system)
    other_flags = _op(_JUMP_ANY_BIT, ~_MAP_FLAGS & 0xFFFFFFFF, 1, 0)
    private = _op(_LOAD, _FOURTH_ARGUMENT), other_flags, allow, refuse
    steps += _if_equal(_NUMBERS[_MMAP][column], *private)
    # `abort` signals its own thread.
    own = _op(_LOAD, _FIRST_ARGUMENT), *_if_equal(pid, allow)
    steps += _if_equal(_NUMBERS[_TGKILL][column], *own)
    return b"".join([*steps, refuse])


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _if_equal(value: int, *steps: bytes) -> list[bytes]:
    return [_op(_JUMP_EQUAL, value, 0, len(steps)), *steps]


# ---- The kernel ----

_NO_NEW_PRIVILEGES = 38


def _forbid_new_privileges() -> None:
    """No program that is executed gains rights: without this the kernel takes no filter."""
    _system_call("prctl", _NO_NEW_PRIVILEGES, 1)


def _number_of(name: str) -> int:
    machine = os.uname().machine
    # A 32-bit Python on a 64-bit kernel has other numbers.
    if sys.platform != "linux" or machine not in _MACHINES or sys.maxsize < 1 << 32:
        raise OSError(errno.ENOSYS, f"not known on {sys.platform} {machine}")
    return _NUMBERS[name][_MACHINES[machine][0]]


def _system_call(name: str, *arguments: int) -> int:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes, call.restype = [ctypes.c_long] * 6, ctypes.c_long
    result = call(_number_of(name), *arguments, *[0] * (5 - len(arguments)))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)
