"""Locks and atomic writes, against other processes, links and full disks."""

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clawmode.files import (
    create_atomic,
    file_lock,
    is_locked,
    open_lock,
    staged,
    try_lock,
    unlock,
    write_atomic,
)

HOLD = """import sys
from pathlib import Path
from clawmode.files import file_lock
with file_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""

COUNT = """import sys
from pathlib import Path
from clawmode.files import file_lock, write_atomic
path = Path(sys.argv[1])
for _ in range(100):
    with file_lock(path.with_name("lock")):
        write_atomic(path, str(int(path.read_text()) + 1), sync=False)
"""


def start(program: str, path: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", program, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def holder(path: Path) -> "Iterator[subprocess.Popen[str]]":
    with start(HOLD, path) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        try:
            yield other
        finally:
            other.kill()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


# ---- Locks ----


def test_a_lock_of_another_process_is_seen_and_refused_until_that_process_dies(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    with holder(path) as other:
        assert is_locked(path)
        descriptor = open_lock(path)
        assert not try_lock(descriptor)
        with pytest.raises(BlockingIOError), file_lock(path, wait=False):
            pytest.fail("two processes hold one lock")
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert not is_locked(path)
        assert try_lock(descriptor)
        assert is_locked(path)
        unlock(descriptor)
        assert not is_locked(path)
        os.close(descriptor)


def test_a_process_that_was_stopped_keeps_its_lock(tmp_path: Path) -> None:
    with holder(tmp_path / "lock") as other:
        other.send_signal(signal.SIGSTOP)
        assert is_locked(tmp_path / "lock")
        other.send_signal(signal.SIGCONT)


def test_two_processes_that_wait_for_one_lock_never_work_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "count"
    path.write_text("0")
    with start(COUNT, path) as one, start(COUNT, path) as other:
        assert (one.wait(15), other.wait(15)) == (0, 0)
    assert path.read_text() == "200"


def test_a_lock_is_released_when_the_block_raises(tmp_path: Path) -> None:
    with pytest.raises(KeyError), file_lock(tmp_path / "lock"):
        raise KeyError
    assert not is_locked(tmp_path / "lock")


def test_lookers_do_not_take_each_other_for_the_holder(tmp_path: Path) -> None:
    import fcntl

    path = tmp_path / "lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert not is_locked(path)


def test_a_lock_and_its_folder_are_created_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "lock"
    assert not is_locked(path)
    with file_lock(path):
        assert (mode(path), mode(path.parent)) == (0o600, 0o700)


def test_a_folder_can_be_locked_without_a_file_of_its_own(tmp_path: Path) -> None:
    with file_lock(tmp_path):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_link_in_the_place_of_a_lock_is_refused(tmp_path: Path) -> None:
    path, victim = tmp_path / "lock", tmp_path / "victim"
    path.symlink_to(victim)
    for use in (open_lock, is_locked):
        with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
            use(path)
    assert not victim.exists()


def test_a_pipe_in_the_place_of_a_lock_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with file_lock(tmp_path / "lock", wait=False):
        assert is_locked(tmp_path / "lock")
    assert not is_locked(tmp_path / "lock")


def test_a_new_lock_refuses_a_file_that_exists(tmp_path: Path) -> None:
    os.close(open_lock(tmp_path / "lock", new=True))
    with pytest.raises(FileExistsError):
        open_lock(tmp_path / "lock", new=True)


# ---- Atomic writes ----


def test_a_written_file_is_whole_private_and_alone_in_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o666)
    write_atomic(path, "new ü")
    assert (path.read_bytes(), mode(path)) == ("new ü".encode(), 0o600)
    write_atomic(path, b"\xff", sync=False)
    assert path.read_bytes() == b"\xff"
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_in_the_place_of_the_target_is_replaced_and_not_followed(tmp_path: Path) -> None:
    path, victim = tmp_path / "file", tmp_path / "victim"
    victim.write_text("precious")
    path.symlink_to(victim)
    write_atomic(path, "new")
    assert victim.read_text() == "precious"
    assert not path.is_symlink()
    assert path.read_text() == "new"


def test_links_in_the_place_of_the_temporary_file_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    monkeypatch.setattr(os, "urandom", lambda count: b"\0" * count)
    (tmp_path / f".file.{'00' * 8}").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_atomic(tmp_path / "file", "new")
    assert not victim.exists()
    assert not (tmp_path / "file").exists()


@pytest.fixture
def full_disk() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, before)


@pytest.mark.usefixtures("full_disk")
def test_on_a_full_disk_the_old_content_stays_and_nothing_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    for write in (write_atomic, create_atomic):
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            write(path, b"x" * 2000)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_text_that_is_no_utf_8_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_atomic(tmp_path / "file", "\ud800")
    assert os.listdir(tmp_path) == []


def test_a_file_is_created_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert create_atomic(path, "first")
    assert not create_atomic(path, "second")
    assert (path.read_text(), mode(path)) == ("first", 0o600)
    assert os.listdir(tmp_path) == ["file"]


def test_a_dangling_link_counts_as_a_file_when_one_is_created(tmp_path: Path) -> None:
    (tmp_path / "file").symlink_to(tmp_path / "victim")
    assert not create_atomic(tmp_path / "file", "first")
    assert not (tmp_path / "victim").exists()


def test_a_staged_file_is_removed_unless_it_was_moved(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with staged(path, "kept") as temporary:
        assert (temporary.read_text(), mode(temporary)) == ("kept", 0o600)
        assert temporary.parent == tmp_path
        temporary.replace(path)
    with pytest.raises(KeyError), staged(path, "dropped"):
        raise KeyError
    assert path.read_text() == "kept"
    assert os.listdir(tmp_path) == ["file"]


def test_a_name_of_the_greatest_length_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 127)
    write_atomic(path, "new")
    assert path.read_text() == "new"


def test_locks_need_no_sqlite() -> None:
    program = "import sys, clawmode.files; print('sqlite3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"False"
