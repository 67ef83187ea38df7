"""Worker side: the rights that a worker gives up before it runs a guest.

wasm is the wall. The lockdown is the second wall, for a guest that finds a hole in the first: the
process can compute, answer on its pipes and end, and do nothing else. Three layers overlap, because
a kernel or a container may lack any of them.

- *Landlock*: the worker can open no file, use no TCP port, and signal or trace no other process.
- *Resource limits*: it can create no descriptor, file or process, and private memory is bounded.
- *seccomp*: of some 360 system calls, it may use the two dozen that guests need. Memory can be
  mapped only in the way that the limit on private memory counts.

Landlock binds one thread and the threads that it starts later. So `give_up_files` is called in the
main thread while there is no other, after all files (modules too) have been read. `give_up_calls`
binds all threads, and no thread can be started afterwards.

Deliberately not used:

- `RLIMIT_AS`: wasmtime reserves 4 GiB of addresses for each memory, and leaves most of them empty.
- `PR_SET_DUMPABLE`: with it, a parent that is not root cannot read `smaps`, which measures the
  memory of workers. It would prevent tracing by a process of the same user, which Landlock and
  seccomp already deny to other workers.

Deliberately not allowed:

- `close`, `poll`, `clock_nanosleep` and the like: no worker was observed to call them.
- `mremap`: it can enlarge the main thread's stack, whose memory the limit does not count. The C
  library copies memory instead when `mremap` is refused.

Written by hand, with ctypes: Landlock is three system calls, and the packages for seccomp need a
library of the system that many containers lack.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable
from typing import Literal, TypeAlias

if sys.platform != "win32":
    import resource  # now: a worker that is locked down can import nothing more

Mode: TypeAlias = Literal["off", "best-effort", "required"]

MEMORY_WALL = 3 << 30
"""Bytes of private writable memory. The largest guest has 1.5 GiB, and is copied in parts."""

STACK_WALL = 8 << 20
"""Bytes of the main thread's stack, which `MEMORY_WALL` does not count. Guests use another one."""

_NEEDS = {
    "Landlock": "it needs Linux 5.13 or newer, with `landlock` in /sys/kernel/security/lsm",
    "resource limits": "they need Linux on x86_64 or aarch64, and a user who may lower them",
    "seccomp": "it needs Linux on x86_64 or aarch64, and a container that allows seccomp filters",
}


class LockdownFailed(Exception):
    """This system does not offer the whole lockdown, and `required` demands it."""


def lock_down(mode: Mode) -> tuple[str, ...]:
    """Applies the whole lockdown, in a process with one thread that will not need another.

    Args:
        mode: `off` does nothing; `best-effort` applies what this system offers; `required` applies
            everything or raises.

    Returns:
        A note for each part that could not be applied.

    Raises:
        LockdownFailed: A required part could not be applied. Other parts may have been applied.
    """
    return give_up_files(mode) + give_up_calls(mode)


def give_up_files(mode: Mode) -> tuple[str, ...]:
    """Applies the first half of `lock_down`, to this thread and the threads it starts later."""
    return _apply(mode, {"Landlock": _restrict_access})


def give_up_calls(mode: Mode) -> tuple[str, ...]:
    """Applies the second half of `lock_down`, to all threads; no other can be started then."""
    # Limits first: the filter does not allow the system call that lowers them.
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

# By the version of Landlock that introduced them.
_FILE_RIGHTS = {1: 0x1FFF, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15, 9: 1 << 16}
_TCP_RIGHTS = {4: 0b11}  # bind, connect
_SCOPES = {6: 0b11}  # abstract sockets, signals

_GET_VERSION = 1


def _restrict_access() -> None:
    """Gives up every right that the kernel's Landlock knows."""
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
        raise OSError(errno.EBUSY, f"it binds one thread only, and there are {threads}")


def ruleset(version: int) -> bytes:
    """Returns a `struct landlock_ruleset_attr` of all rights that `version` of Landlock knows."""
    # An older kernel accepts a longer struct than it knows, if the rest is zero.
    masks = (
        sum(mask for since, mask in rights.items() if since <= version)
        for rights in (_FILE_RIGHTS, _TCP_RIGHTS, _SCOPES)
    )
    return struct.pack("=QQQ", *masks)


# ---- Resource limits ----


def _lower_limits() -> None:
    _number_of("prctl")  # raises on other systems than Linux, where the limits mean other things
    # With 0 the kernel still dumps core into a pipe, if it is so configured; 1 prevents both.
    _lower(resource.RLIMIT_CORE, 1)
    _lower(resource.RLIMIT_DATA, MEMORY_WALL)
    _lower(resource.RLIMIT_STACK, STACK_WALL)
    # RLIMIT_FSIZE does not count pipes, and RLIMIT_NOFILE leaves open descriptors open.
    _lower(resource.RLIMIT_FSIZE, 0)
    _lower(resource.RLIMIT_NOFILE, 0)
    _lower(resource.RLIMIT_NPROC, 0)  # does not bind root; seccomp does


def _lower(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(limit, (value, value))
    except ValueError as error:  # Python raises this for EPERM
        raise OSError(errno.EPERM, str(error)) from None


# ---- seccomp ----

_ALLOWED = {
    "read": (0, 63),
    "write": (1, 64),
    "writev": (20, 66),  # the C library's message before it aborts
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
    "clock_gettime": (228, 113),  # where the vDSO does not provide it
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
"""The column of `_NUMBERS`, and seccomp's name of the machine."""

# BPF: load a word of `struct seccomp_data`; skip if (not) equal; skip if any bit is set; return.
_LOAD, _JUMP_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST_ARGUMENT, _FOURTH_ARGUMENT = 0, 4, 16, 40

# MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS, MAP_NORESERVE: the C library and wasmtime use no others.
# Shared memory and stacks (MAP_SHARED, MAP_GROWSDOWN) would count against no limit.
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
    """Returns the BPF program that filters the system calls of process `pid` on `machine`.

    A call that is not allowed fails with EPERM, so that Python can still report the error.
    """
    column, name = _MACHINES[machine]
    allow, refuse = _op(_RETURN, _ALLOW), _op(_RETURN, _ERRNO | errno.EPERM)
    # In another mode of the CPU the numbers mean other calls. x32 has the name of x86_64, but its
    # numbers have a bit that no number below has.
    steps = [_op(_LOAD, _MACHINE), _op(_JUMP_EQUAL, name, 1, 0), _op(_RETURN, _KILL)]
    steps += [_op(_LOAD, _NUMBER)]
    for numbers in _ALLOWED.values():
        steps += _if_equal(numbers[column], allow)
    # With this errno, and no other, wasmtime falls back to copying memory.
    no_system = _op(_RETURN, _ERRNO | errno.ENOSYS)
    steps += _if_equal(_NUMBERS[_MEMFD_CREATE][column], no_system)
    other_flags = _op(_JUMP_ANY_BIT, ~_MAP_FLAGS & 0xFFFFFFFF, 1, 0)
    private = _op(_LOAD, _FOURTH_ARGUMENT), other_flags, allow, refuse
    steps += _if_equal(_NUMBERS[_MMAP][column], *private)
    # `abort` signals its own thread, so signals to the own process are allowed.
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
    """Keeps executed programs from gaining rights. Without this the kernel accepts no filter."""
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
