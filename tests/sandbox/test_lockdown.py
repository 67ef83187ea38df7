"""WK-3: a locked worker can do nothing but run guests, and that it does as before.

Three kinds of tests: what a layer refuses, tried by a process that has locked itself; what guests
can still do, in a real worker; and which notes and bytes come out of `lockdown` on systems that are
not this one.
"""

import ctypes
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest
from tests.support.waiting import until_sync

from clawmode.sandbox import artifacts, lockdown, template
from clawmode.sandbox.lockdown import LockdownFailed, build_filter, give_up_calls, give_up_files
from clawmode.sandbox.process import WorkerProcess
from clawmode.sandbox.protocol import (
    Answer,
    Completion,
    Failure,
    Freeze,
    FrozenCell,
    Limits,
    Provide,
    Question,
    Resume,
    Settlement,
    Start,
    Suspension,
)

# A guest of 1 GB takes a while on a busy machine.
pytestmark = [pytest.mark.hostile, pytest.mark.timeout(60)]


def offers(call: str, *arguments: int) -> bool:
    try:
        lockdown._system_call(call, *arguments)
    except OSError:
        return False
    return True


KILL_PROCESS = ctypes.c_uint32(0x80000000)
HAS_LANDLOCK = offers("landlock_create_ruleset", 0, 0, 1)
HAS_SECCOMP = offers("seccomp", 2, 0, ctypes.addressof(KILL_PROCESS))

needs_landlock = pytest.mark.skipif(not HAS_LANDLOCK, reason="the kernel has no Landlock")
needs_seccomp = pytest.mark.skipif(not HAS_SECCOMP, reason="the kernel has no seccomp filters")


# ---- What is refused ----

PROBES = r"""
import ctypes, errno, json, mmap, os, resource, socket, subprocess, sys, threading
from clawmode.sandbox import lockdown

layers, spare, names = sys.argv[1].split(), sys.argv[2], json.loads(sys.argv[3])
parent, own = os.getppid(), os.getpid()
libc = ctypes.CDLL(None, use_errno=True)
tcp = socket.socket()
udp = socket.socket(type=socket.SOCK_DGRAM)
listener = socket.create_server(("127.0.0.1", 0))
written = os.open(spare, os.O_RDWR)
TGKILL = lockdown._number_of("tgkill")
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
nine = (ctypes.c_ulong * 2)(9, 9)

def fork():
    if os.fork() == 0:
        os._exit(0)
    os.wait()

def raw(function, *arguments):
    if function(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "")

probes = {
    "read a file": lambda: os.open("/etc/hostname", os.O_RDONLY),
    "write a file": lambda: os.open(spare, os.O_WRONLY),
    "create a file": lambda: os.open(spare + ".new", os.O_WRONLY | os.O_CREAT),
    "remove a file": lambda: os.unlink(spare),
    "read the environment": lambda: os.open("/proc/self/environ", os.O_RDONLY),
    "write to memory": lambda: os.open("/proc/self/mem", os.O_RDWR),
    "list a folder": lambda: os.listdir("/"),
    "look at a file": lambda: os.stat("/"),
    "write to an open file": lambda: os.write(written, b"x"),
    "make a socket": lambda: socket.socket(),
    "make a pipe": lambda: os.pipe(),
    "make a file in memory": lambda: os.memfd_create("x"),
    "connect": lambda: tcp.connect(listener.getsockname()),
    "send": lambda: udp.sendto(b"x", listener.getsockname()),
    "fork": fork,
    "start a program": lambda: subprocess.run(["/bin/true"]),
    "become a program": lambda: os.execv("/bin/true", ["true"]),
    "start a thread": lambda: threading.Thread(target=int).start(),
    "signal the parent": lambda: os.kill(parent, 0),
    "signal a thread of the parent": lambda: raw(libc.syscall, TGKILL, parent, parent, 0),
    "trace the parent": lambda: raw(libc.ptrace, 16, parent, 0, 0),
    "read the parent's memory": lambda: raw(libc.process_vm_readv, parent, 0, 0, 0, 0, 0),
    "raise a limit": lambda: raw(libc.setrlimit, resource.RLIMIT_NOFILE, nine),
    "be root": lambda: os.setuid(0),
    # What must go on working.
    "signal itself": lambda: raw(libc.syscall, TGKILL, own, own, 0),
    "take memory": lambda: mmap.mmap(-1, 1 << 20, PRIVATE),
    "make code": lambda: mmap.mmap(-1, 4096, PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC),
    "get randomness": lambda: os.urandom(16),
    "write to a pipe": lambda: os.write(1, b""),
}

def attempt(probe):
    try:
        probe()
    except OSError as error:
        return errno.errorcode[error.errno]
    except RuntimeError as error:
        return str(error)
    return "done"

outcomes = {}

def serve():
    if "limits" in layers:
        lockdown._lower_limits()
    if "seccomp" in layers:
        lockdown._filter_calls()
    outcomes["serving"] = {name: attempt(probes[name]) for name in names or probes}

if "landlock" in layers:
    assert lockdown.give_up_files("required") == ()
thread = threading.Thread(target=serve)
thread.start()
thread.join()
outcomes["main"] = {name: attempt(probes[name]) for name in names or probes}
os.write(1, json.dumps(outcomes).encode())
os._exit(0)
"""

WORKS = {"signal itself", "take memory", "make code", "get randomness", "write to a pipe"}


def probe(layers: str, folder: Path, names: Iterable[str] = ()) -> dict[str, str]:
    """What came of each attempt (all of them, by default): the same in both threads."""
    (folder / "spare").touch()
    ran = subprocess.run(
        [sys.executable, "-c", PROBES, layers, str(folder / "spare"), json.dumps([*names])],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=15,
    )
    assert ran.returncode == 0, ran.stderr
    outcomes = json.loads(ran.stdout)
    assert outcomes["main"] == outcomes["serving"]
    return {name: str(outcome) for name, outcome in outcomes["main"].items()}


@needs_seccomp
@needs_landlock
@pytest.mark.covers("WK-3")
def test_a_locked_process_can_do_nothing_to_anything_outside(tmp_path: Path) -> None:
    outcomes = probe("landlock limits seccomp", tmp_path)
    allowed = {name for name, outcome in outcomes.items() if outcome == "done"}
    assert allowed == WORKS
    assert list(tmp_path.iterdir()) == [tmp_path / "spare"]


@needs_seccomp
@pytest.mark.covers("WK-3")
def test_seccomp_alone_refuses_every_call_that_reaches_outside(tmp_path: Path) -> None:
    outcomes = probe("seccomp", tmp_path)
    # That one is for the resource limits.
    assert outcomes.pop("write to an open file") == "done"
    assert outcomes.pop("make a file in memory") == "ENOSYS"
    assert outcomes.pop("start a thread") == "can't start new thread"
    refused = {name for name, outcome in outcomes.items() if outcome == "EPERM"}
    assert refused == set(outcomes) - WORKS
    assert {outcomes[name] for name in WORKS} == {"done"}


@needs_landlock
@pytest.mark.covers("WK-3")
def test_landlock_alone_refuses_files_and_network_in_all_threads(tmp_path: Path) -> None:
    version = lockdown._system_call("landlock_create_ruleset", 0, 0, 1)
    refused = {
        "read a file",
        "write a file",
        "create a file",
        "remove a file",
        "read the environment",
        "write to memory",
        "list a folder",
        "start a program",
        "become a program",
        "trace the parent",
    }
    refused |= {"connect"} if version >= 4 else set()
    refused |= {"signal the parent", "signal a thread of the parent"} if version >= 6 else set()
    outcomes = probe("landlock", tmp_path, refused | WORKS)
    assert {outcomes[name] for name in refused} == {"EACCES", "EPERM"}
    assert {outcomes[name] for name in WORKS} == {"done"}


@pytest.mark.skipif(sys.platform != "linux", reason="limits are applied on Linux only")
@pytest.mark.covers("WK-3")
def test_resource_limits_alone_refuse_new_descriptors_and_file_writes(tmp_path: Path) -> None:
    refused = {"read a file", "create a file", "list a folder", "make a socket", "make a pipe"}
    outcomes = probe("limits", tmp_path, refused | WORKS | {"write to an open file"})
    assert {outcomes[name] for name in refused} == {"EMFILE"}
    assert outcomes["write to an open file"] == "EFBIG"
    assert {outcomes[name] for name in WORKS} == {"done"}


MAPPINGS = r"""
import ctypes, json, os, sys
from clawmode.sandbox import lockdown

with open("/proc/self/maps") as file:
    (stack,) = (int(line.split("-")[0], 16) for line in file if "[stack]" in line)
libc = ctypes.CDLL(None, use_errno=True)
libc.sbrk.restype = ctypes.c_void_p
memset = libc.memset
memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
for function in (libc.mmap, libc.mremap):
    function.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.sbrk.argtypes = [ctypes.c_long]

OVER = lockdown.MEMORY_WALL + (64 << 20)
READ, BOTH = 1, 3
SHARED, PRIVATE, ANONYMOUS, GROWSDOWN, STACK = 0x01, 0x02, 0x20, 0x100, 0x20000

def map(size, flags, protection=BOTH):
    return libc.mmap(None, size, protection, flags | ANONYMOUS, -1, 0)

def make_writable():
    address = map(OVER, PRIVATE, READ)
    return -1 if libc.mprotect(address, OVER, BOTH) else address

attempts = {
    "shared": lambda: map(OVER, SHARED),
    "shared, validated": lambda: map(OVER, 0x03),
    "droppable": lambda: map(OVER, 0x08),
    "a stack that grows": lambda: map(OVER, PRIVATE | GROWSDOWN | STACK),
    "a small stack that grows": lambda: map(4096, PRIVATE | GROWSDOWN),
    "the main stack, enlarged": lambda: libc.mremap(stack, 4096, OVER, 1),
    "private": lambda: map(OVER, PRIVATE),
    "made writable later": make_writable,
    "the heap": lambda: libc.sbrk(OVER),
    "private, within the limit": lambda: map(1 << 20, PRIVATE),
}
lockdown.lock_down("best-effort")
failed = (None, -1, ctypes.c_void_p(-1).value)
mapped = [name for name, attempt in attempts.items() if attempt() not in failed]
os.write(1, json.dumps(mapped).encode())
if sys.argv[1:]:
    memset(stack - int(sys.argv[1]), 1, 1)  # as code does that calls itself very often
    os.write(1, b"grown")
os._exit(0)
"""


def run_locked(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Runs `MAPPINGS` in a process whose stack may be of any size before it locks itself."""
    command = [sys.executable, "-c", MAPPINGS, *arguments]
    return subprocess.run(
        ["sh", "-c", 'ulimit -s unlimited; exec "$@"', "sh", *command],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=False,
        timeout=15,
    )


@needs_seccomp
@pytest.mark.covers("S-13", "WK-3")
def test_a_locked_process_maps_no_memory_beyond_its_limit() -> None:
    ran = run_locked()
    assert (ran.returncode, json.loads(ran.stdout)) == (0, ["private, within the limit"])


@needs_seccomp
@pytest.mark.covers("S-13")
def test_the_stack_of_a_locked_process_does_not_grow_beyond_its_limit() -> None:
    assert run_locked(str(1 << 20)).stdout.endswith(b"grown")
    ran = run_locked(str(2 * lockdown.STACK_WALL))
    assert ran.returncode == -signal.SIGSEGV
    assert not ran.stdout.endswith(b"grown")


@needs_seccomp
def test_a_locked_process_can_abort() -> None:
    script = "import os; from clawmode.sandbox.lockdown import *; lock_down('required'); os.abort()"
    ran = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": os.pathsep.join(sys.path)}, timeout=15
    )
    assert ran.returncode == -6


# ---- What goes on working ----

LARGE = Limits(memory_bytes=1 << 30)

CELLS: dict[str, Start] = {
    "javascript": Start("return 6 * 7"),
    "typescript": Start("enum E { A = 5 } const x: number = 1; return x + E.A", "typescript"),
    "typescript error": Start("let x: = 1", "typescript"),
    "too deep typescript": Start("(" * 100_000, "typescript"),
    "import": Start("return (await import('fs')).x"),
    "the word import": Start("return 'import'"),
    "timeout": Start("for (;;) {}", budget=0.1),
    "regular expression": Start("return /(a+)+$/.test('a'.repeat(40) + 'b')", budget=0.1),
    "after a trap": Start("return 1"),
    "recursion": Start("const f = () => f() + 1; return f()"),
    "out of memory": Start("const a = []; for (;;) a.push('x'.repeat(1e6) + a.length)"),
    "400 MB": Start(
        "const a = []; for (let i = 0; i < 400; i++) a.push(new Uint8Array(1 << 20).fill(i + 1));"
        "return a.reduce((sum, page) => sum + page[7], 0)",
        limits=LARGE,
    ),
    "1 GB": Start("return new Uint8Array(1020 << 20).fill(1).length", limits=LARGE),
    "too much output": Start("for (;;) text('x'.repeat(1000))"),
    "clock and randomness": Start("return [typeof Date.now(), Math.random() < 1]"),
}


class Seen(NamedTuple):
    """What a real, locked worker answered, and how it looked from outside."""

    answers: dict[str, Answer]
    status: list[dict[str, str]]
    limits: dict[str, list[str]]
    memory: str


async def use_worker(worker: WorkerProcess) -> dict[str, Answer]:
    deadline = time.monotonic() + 40

    async def ask(question: Question) -> Answer:
        return await worker.ask(question, deadline)

    answers: dict[str, Answer] = {}
    for name, start in CELLS.items():
        for part in start.needs():
            await ask(Provide(part, artifacts.load(part)))
        answers[name] = await ask(start)
    answers["suspended"] = await ask(Start("return 1 + await tools.call('add', {})"))
    answers["frozen"] = frozen = await ask(Freeze())
    assert isinstance(frozen, FrozenCell)
    settled = (Settlement(1, ok=True, value=b"41"),)
    answers["restored"] = await ask(Resume(settled, frozen))
    broken = FrozenCell(frozen.image, frozen.memory, frozen.pointers, b"nonsense")
    answers["broken snapshot"] = await ask(Resume(settled, broken))
    answers["last"] = await ask(Start("return 'still here'"))
    return answers


def look_at(pid: int, answers: dict[str, Answer]) -> Seen:
    folder = Path(f"/proc/{pid}")
    status = [
        dict(line.split(":\t", 1) for line in path.read_text("utf-8").splitlines())
        for path in folder.glob("task/*/status")
    ]
    rows = (folder / "limits").read_text("utf-8").splitlines()
    limits = {row[:26].strip(): row[26:].split()[:2] for row in rows}
    return Seen(answers, status, limits, (folder / "smaps_rollup").read_text("utf-8"))


@pytest.fixture(scope="module", params=["started", "forked"])
def seen(request: pytest.FixtureRequest) -> Iterator[Seen]:
    if not (HAS_LANDLOCK and HAS_SECCOMP):
        pytest.skip("the kernel lacks Landlock or seccomp, so no worker can be fully locked")
    shared = template.acquire() if request.param == "forked" else None
    if request.param == "forked" and shared is None:
        pytest.skip("workers cannot be forked here")
    worker = WorkerProcess("required", shared)
    try:
        worker.booted.result(15)
        yield look_at(worker.pid, anyio.run(use_worker, worker))
    finally:
        worker.kill()
        until_sync(worker.reaped)
        if shared is not None and template.release(shared):
            until_sync(shared.ended)


def done(answer: Answer) -> bytes:
    assert isinstance(answer, Completion), answer
    return answer.value


def code_of(answer: Answer) -> str:
    assert isinstance(answer, Failure), answer
    return answer.code


@pytest.mark.covers("WK-3")
def test_both_threads_of_a_worker_are_filtered_and_gain_no_privileges(seen: Seen) -> None:
    assert [(task["Seccomp"], task["NoNewPrivs"]) for task in seen.status] == [("2", "1")] * 2


@pytest.mark.covers("WK-3")
def test_a_worker_has_no_room_for_files_descriptors_or_processes(seen: Seen) -> None:
    limits = seen.limits
    assert limits["Max file size"] == limits["Max open files"] == ["0", "0"]
    assert limits["Max processes"] == ["0", "0"]
    assert limits["Max stack size"] == [str(lockdown.STACK_WALL)] * 2
    assert limits["Max data size"] == [str(lockdown.MEMORY_WALL)] * 2
    assert int(limits["Max core file size"][1]) <= 1


def test_the_parent_can_measure_a_locked_worker(seen: Seen) -> None:
    assert "Pss:" in seen.memory


def test_a_locked_worker_runs_javascript(seen: Seen) -> None:
    assert done(seen.answers["javascript"]) == b"42"
    assert done(seen.answers["clock and randomness"]) == b'["number",true]'


def test_a_locked_worker_takes_the_transformer_and_runs_typescript(seen: Seen) -> None:
    assert done(seen.answers["typescript"]) == b"6"
    assert code_of(seen.answers["typescript error"]) == "typescript_transform_failed"
    assert code_of(seen.answers["too deep typescript"]) == "typescript_transform_failed"


def test_a_locked_worker_takes_the_parser_and_finds_module_access(seen: Seen) -> None:
    assert code_of(seen.answers["import"]) == "module_access_denied"
    assert done(seen.answers["the word import"]) == b'"import"'


def test_the_alarm_stops_a_guest_in_a_locked_worker(seen: Seen) -> None:
    assert code_of(seen.answers["timeout"]) == "timeout"
    assert code_of(seen.answers["regular expression"]) == "timeout"


def test_a_locked_worker_makes_new_instances_after_traps(seen: Seen) -> None:
    assert done(seen.answers["after a trap"]) == b"1"
    assert code_of(seen.answers["recursion"]) == "internal_error"
    assert done(seen.answers["last"]) == b'"still here"'


def test_a_locked_worker_grows_memory_up_to_the_largest_limit(seen: Seen) -> None:
    assert code_of(seen.answers["out of memory"]) == "memory_limit_exceeded"
    assert done(seen.answers["400 MB"]) == b"%d" % sum((i + 1) % 256 for i in range(400))
    assert done(seen.answers["1 GB"]) == b"%d" % (1020 << 20)


def test_a_locked_worker_still_counts_output(seen: Seen) -> None:
    assert code_of(seen.answers["too much output"]) == "output_limit_exceeded"


def test_a_locked_worker_freezes_and_restores(seen: Seen) -> None:
    assert isinstance(seen.answers["suspended"], Suspension)
    assert done(seen.answers["restored"]) == b"42"
    assert code_of(seen.answers["broken snapshot"]) == "snapshot_restore_failed"


# ---- Other systems ----


class Kernel:
    """Stands in for system calls: answers by name, an exception is raised."""

    def __init__(self, **answers: int | OSError) -> None:
        self.answers = answers
        self.calls: list[str] = []

    def __call__(self, name: str, *arguments: int) -> int:
        self.calls.append(name)
        answer = self.answers.get(name, 0)
        if isinstance(answer, OSError):
            raise answer
        return answer


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[int, int]]:
    lowered: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", lowered.__setitem__)
    return lowered


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(lockdown, "_system_call", kernel)
    monkeypatch.setattr(os, "listdir", lambda _: ["1"])
    monkeypatch.setattr(os, "close", lambda _: None)
    monkeypatch.setattr(sys, "platform", "linux")
    return kernel


def test_off_gives_up_nothing(kernel: Kernel, limits: dict[int, tuple[int, int]]) -> None:
    assert lockdown.lock_down("off") == ()
    assert (kernel.calls, limits) == ([], {})


def test_no_note_is_left_where_everything_applies(
    kernel: Kernel, limits: dict[int, tuple[int, int]]
) -> None:
    assert lockdown.lock_down("required") == ()
    assert kernel.calls[-1] == "seccomp"
    assert limits[resource.RLIMIT_FSIZE] == (0, 0)


@pytest.mark.parametrize(
    ("refused", "note"),
    [
        ("landlock_create_ruleset", "lockdown without Landlock: not built in"),
        ("landlock_restrict_self", "lockdown without Landlock: not built in"),
        ("seccomp", "lockdown without seccomp: not built in"),
    ],
)
@pytest.mark.usefixtures("limits")
def test_a_part_that_the_kernel_lacks_is_one_note_or_a_failure(
    kernel: Kernel, refused: str, note: str
) -> None:
    kernel.answers[refused] = OSError(38, "not built in")
    (told,) = lockdown.lock_down("best-effort")
    assert told.startswith(f"{note}; it needs Linux")
    with pytest.raises(LockdownFailed, match=note):
        lockdown.lock_down("required")


@pytest.mark.usefixtures("kernel")
def test_landlock_is_not_enough_while_other_threads_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", lambda _: ["1", "2"])
    (note,) = give_up_files("best-effort")
    assert note.startswith("lockdown without Landlock: it binds one thread only, and there are 2")


@pytest.mark.usefixtures("limits")
def test_a_filter_that_does_not_reach_all_threads_does_not_count(kernel: Kernel) -> None:
    kernel.answers["seccomp"] = 4711
    (note,) = give_up_calls("best-effort")
    assert note.startswith("lockdown without seccomp: thread 4711 has a filter of its own")


def test_another_system_gets_notes_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, limits: dict[int, tuple[int, int]]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    notes = lockdown.lock_down("best-effort")
    assert [note.split(":")[0] for note in notes] == [
        "lockdown without Landlock",
        "lockdown without resource limits",
        "lockdown without seccomp",
    ]
    assert limits == {}


@pytest.mark.usefixtures("kernel")
def test_limits_that_cannot_be_lowered_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    (note,) = give_up_calls("best-effort")
    assert note.startswith("lockdown without resource limits: not allowed")


@pytest.mark.covers("N-48")
@pytest.mark.usefixtures("limits")
def test_the_note_about_missing_landlock_names_the_first_kernel_that_has_it(kernel: Kernel) -> None:
    kernel.answers["landlock_create_ruleset"] = OSError(38, "Function not implemented")
    (note,) = lockdown.lock_down("best-effort")
    assert "it needs Linux 5.13 or newer" in note


@pytest.mark.usefixtures("kernel")
def test_a_limit_is_never_raised(
    monkeypatch: pytest.MonkeyPatch, limits: dict[int, tuple[int, int]]
) -> None:
    unlimited = resource.RLIM_INFINITY
    hard = {resource.RLIMIT_CORE: 0, resource.RLIMIT_DATA: unlimited}
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (0, hard.get(limit, unlimited)))
    give_up_calls("required")
    assert limits[resource.RLIMIT_CORE] == (0, 0)
    assert limits[resource.RLIMIT_DATA] == (lockdown.MEMORY_WALL, lockdown.MEMORY_WALL)


@pytest.mark.skipif(sys.platform != "linux", reason="system calls are known on Linux only")
def test_a_system_call_that_fails_says_why() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        lockdown._system_call("prctl", 4711)


@pytest.mark.parametrize(
    ("version", "handled"),
    [
        (1, (0x1FFF, 0, 0)),
        (2, (0x3FFF, 0, 0)),
        (3, (0x7FFF, 0, 0)),
        (4, (0x7FFF, 3, 0)),
        (5, (0xFFFF, 3, 0)),
        (6, (0xFFFF, 3, 3)),
        (8, (0xFFFF, 3, 3)),
        (9, (0x1FFFF, 3, 3)),
    ],
)
def test_landlock_takes_what_its_version_knows(version: int, handled: tuple[int, ...]) -> None:
    assert struct.unpack("=QQQ", lockdown.ruleset(version)) == handled


def decide(machine: str, name: int, number: int, *arguments: int) -> int:
    """Runs the filter of process 100 on one system call, as the kernel would."""
    code = list(struct.iter_unpack("=HBBI", build_filter(machine, 100)))
    data = struct.pack("=IIQ6Q", number, name, 0, *arguments, *[0] * (6 - len(arguments)))
    at = word = 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x06:
            return int(value)
        if operation == 0x20:
            (word,) = struct.unpack_from("=I", data, value)
        elif operation == 0x45:
            at += if_true if word & value else if_false
        else:
            assert operation == 0x15
            at += if_true if word == value else if_false


X86_64, AARCH64, I386 = 0xC000003E, 0xC00000B7, 0x40000003
ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000


@pytest.mark.parametrize(
    ("machine", "name", "column"), [("x86_64", X86_64, 0), ("aarch64", AARCH64, 1)]
)
def test_the_filter_allows_exactly_what_is_listed(machine: str, name: int, column: int) -> None:
    memfd_create, tgkill, mmap = (
        lockdown._NUMBERS[call][column] for call in ("memfd_create", "tgkill", "mmap")
    )
    allowed = {number for number in range(1024) if decide(machine, name, number) == ALLOW}
    assert allowed == {mmap} | {numbers[column] for numbers in lockdown._ALLOWED.values()}
    for flags in (0x22, 0x4022, 0x32):
        assert decide(machine, name, mmap, 0, 0, 0, flags) == ALLOW
    for flags in (0x21, 0x01, 0x23, 0x122, 0x20022, 0x40022, 0x28):
        assert decide(machine, name, mmap, 0, 0, 0, flags) == EPERM
    assert decide(machine, name, memfd_create) == ENOSYS
    assert decide(machine, name, tgkill, 100) == ALLOW
    assert decide(machine, name, tgkill, 1) == EPERM


def test_the_filter_kills_in_another_mode_of_the_cpu_and_refuses_x32() -> None:
    assert decide("x86_64", I386, 3) == KILL
    assert decide("aarch64", X86_64, 63) == KILL
    assert decide("x86_64", X86_64, 0x40000000) == EPERM
