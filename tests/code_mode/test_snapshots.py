"""Sealed snapshots: what was sealed comes back for its owner, and for nobody else."""

import base64
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from clawmode.code_mode.snapshots import (
    KEY_VARIABLE,
    KeyRing,
    bind,
    seal,
    seal_bytes,
    unseal,
    unseal_bytes,
)
from clawmode.context import Scope
from clawmode.exceptions import SnapshotKeyLost, SnapshotRefused
from clawmode.sandbox.protocol import FrozenCell

WASM = bytes(range(32))
SCOPE = Scope("a", "s", "k", "r")
OWNER = bind(SCOPE, "cm_1")
FROZEN = FrozenCell(bytes(32), 1_376_256, (1, 2, 3), b"pages" * 100, heap=4711)


def test_what_was_sealed_comes_back_whole() -> None:
    keys = KeyRing.ephemeral()
    assert unseal(seal(FROZEN, WASM, OWNER, keys), WASM, OWNER, keys) == FROZEN


def test_the_memory_is_not_readable_in_a_sealed_snapshot() -> None:
    assert b"pages" not in seal(FROZEN, WASM, OWNER, KeyRing.ephemeral())


@pytest.mark.covers("WA-8")
@pytest.mark.parametrize("field", ["agent_id", "session_id", "session_key", "run_id"])
def test_another_scope_is_refused(field: str) -> None:
    keys = KeyRing.ephemeral()
    sealed = seal(FROZEN, WASM, OWNER, keys)
    stranger = bind(SCOPE._replace(**{field: "other"}), "cm_1")
    with pytest.raises(SnapshotRefused, match="another run, session or agent"):
        unseal(sealed, WASM, stranger, keys)


def test_parts_of_a_scope_cannot_be_moved_into_each_other() -> None:
    keys = KeyRing.ephemeral()
    sealed = seal(FROZEN, WASM, bind(SCOPE._replace(agent_id="ab", session_id="c")), keys)
    shifted = bind(SCOPE._replace(agent_id="a", session_id="bc"))
    with pytest.raises(SnapshotRefused):
        unseal(sealed, WASM, shifted, keys)


@pytest.mark.covers("WA-8")
def test_any_flipped_byte_is_refused() -> None:
    keys = KeyRing.ephemeral()
    sealed = seal(FROZEN, WASM, OWNER, keys)
    for position in range(len(sealed)):
        altered = bytearray(sealed)
        altered[position] ^= 1
        with pytest.raises(SnapshotRefused):
            unseal(bytes(altered), WASM, OWNER, keys)


def test_any_truncation_is_refused() -> None:
    keys = KeyRing.ephemeral()
    sealed = seal(FROZEN, WASM, OWNER, keys)
    for length in range(len(sealed)):
        with pytest.raises(SnapshotRefused):
            unseal(sealed[:length], WASM, OWNER, keys)


def test_a_snapshot_of_another_engine_is_refused() -> None:
    keys = KeyRing.ephemeral()
    sealed = seal(FROZEN, WASM, OWNER, keys)
    with pytest.raises(SnapshotRefused, match="another sandbox build"):
        unseal(sealed, bytes(32), OWNER, keys)


def test_a_newer_format_is_refused_by_its_number() -> None:
    keys = KeyRing.ephemeral()
    sealed = bytearray(seal(FROZEN, WASM, OWNER, keys))
    sealed[4] = 2
    with pytest.raises(SnapshotRefused, match="format 2"):
        unseal(bytes(sealed), WASM, OWNER, keys)


def test_a_lost_key_is_refused_as_such() -> None:
    sealed = seal(FROZEN, WASM, OWNER, KeyRing.ephemeral())
    with pytest.raises(SnapshotRefused, match="key"):
        unseal(sealed, WASM, OWNER, KeyRing.ephemeral())


def test_two_cells_of_one_run_cannot_be_exchanged() -> None:
    keys = KeyRing.ephemeral()
    sealed = seal(FROZEN, WASM, OWNER, keys)
    with pytest.raises(SnapshotRefused):
        unseal(sealed, WASM, bind(SCOPE, "cm_2"), keys)


@pytest.mark.covers("WA-8")
def test_small_things_are_sealed_like_snapshots() -> None:
    keys = KeyRing.ephemeral()
    sealed = seal_bytes(b"secret", OWNER, keys)
    assert b"secret" not in sealed
    assert unseal_bytes(sealed, OWNER, keys) == b"secret"
    with pytest.raises(SnapshotRefused):
        unseal_bytes(sealed, bind(SCOPE, "cm_2"), keys)
    with pytest.raises(SnapshotKeyLost):
        unseal_bytes(sealed, OWNER, KeyRing.ephemeral())
    for position in range(len(sealed)):
        altered = bytearray(sealed)
        altered[position] ^= 1
        with pytest.raises(SnapshotRefused):
            unseal_bytes(bytes(altered), OWNER, keys)
        with pytest.raises(SnapshotRefused):
            unseal_bytes(sealed[:position], OWNER, keys)


def test_the_key_is_made_once_and_private(tmp_path: Path) -> None:
    first = KeyRing.load(tmp_path / "state")
    second = KeyRing.load(tmp_path / "state")
    assert first.current == second.current
    mode = (tmp_path / "state" / "snapshot.keys").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_snapshots_stay_readable_after_a_rotation(tmp_path: Path) -> None:
    before = KeyRing.load(tmp_path)
    sealed = seal(FROZEN, WASM, OWNER, before)
    after = KeyRing.rotate(tmp_path)
    assert after.current != before.current
    assert unseal(sealed, WASM, OWNER, after) == FROZEN
    assert stat.S_IMODE((tmp_path / "snapshot.keys").stat().st_mode) == 0o600


def test_a_key_from_the_environment_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = os.urandom(32)
    monkeypatch.setenv(KEY_VARIABLE, base64.b64encode(key).decode())
    assert KeyRing.load(tmp_path / "nowhere").current == key
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("text", ["", "no base64!", "c2hvcnQ="])
def test_a_damaged_key_file_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    (tmp_path / "snapshot.keys").write_text(text)
    (tmp_path / "snapshot.keys").chmod(0o600)
    with pytest.raises(SnapshotRefused, match=r"snapshot\.keys"):
        KeyRing.load(tmp_path)


def test_a_key_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SnapshotRefused, match="cannot be read"):
        KeyRing.load(tmp_path / "file" / "state")


def test_keys_of_a_wrong_length_are_a_programmers_error() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        KeyRing([b"short"])


# ---- Keys of others ----


@pytest.mark.covers("S-22")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606, 0o666, 0o620])
@pytest.mark.parametrize("use", [KeyRing.load, KeyRing.rotate])
def test_keys_that_others_can_read_or_write_are_refused_with_what_to_do(
    tmp_path: Path, mode: int, use: Callable[[Path], KeyRing]
) -> None:
    before = KeyRing.load(tmp_path).current
    keys = tmp_path / "snapshot.keys"
    keys.chmod(mode)
    with pytest.raises(SnapshotRefused, match=rf"mode {mode:o}\).*run `chmod 600 ") as refused:
        use(tmp_path)
    assert str(keys) in str(refused.value)
    keys.chmod(0o600)
    assert KeyRing.load(tmp_path).current == before


@pytest.mark.covers("S-22")
def test_keys_of_another_user_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KeyRing.load(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SnapshotRefused, match=f"belongs to user {os.getuid()}"):
        KeyRing.load(tmp_path)


@pytest.mark.covers("S-22")
@pytest.mark.parametrize("trap", ["a link to keys", "a link to nothing", "a pipe", "a folder"])
def test_what_stands_in_the_place_of_keys_is_neither_followed_nor_waited_for(
    tmp_path: Path, trap: str
) -> None:
    chosen, keys = tmp_path / "chosen", tmp_path / "snapshot.keys"
    if trap == "a pipe":
        os.mkfifo(keys, 0o600)
    elif trap == "a folder":
        keys.mkdir()
    else:
        keys.symlink_to(chosen)
    if trap == "a link to keys":
        chosen.touch(0o600)
        chosen.write_text(base64.b64encode(bytes(32)).decode())
    with pytest.raises(SnapshotRefused, match=r"snapshot\.keys"):
        KeyRing.load(tmp_path)
    assert chosen.exists() == (trap == "a link to keys")


@pytest.mark.covers("S-22")
def test_keys_that_become_readable_while_a_process_runs_are_not_read_again(tmp_path: Path) -> None:
    ring = KeyRing.load(tmp_path)
    later = KeyRing.rotate(tmp_path)
    (tmp_path / "snapshot.keys").chmod(0o666)
    with pytest.raises(SnapshotKeyLost):
        unseal(seal(FROZEN, WASM, OWNER, later), WASM, OWNER, ring)


@pytest.mark.covers("S-22")
def test_a_folder_that_others_can_write_is_logged_once_with_advice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o777)
    for _ in range(2):
        KeyRing.load(tmp_path)
    (told,) = caplog.messages
    assert told.endswith(f"run `chmod 700 {tmp_path}`")
