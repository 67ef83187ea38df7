"""Sealed snapshots: what was sealed comes back for its owner, and for nobody else."""

import base64
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from clawmode.context import RunContext
from clawmode.exceptions import SnapshotRefused, SnapshotTooLarge
from clawmode.sandbox.protocol import Frozen
from clawmode.snapshots import KEY_VARIABLE, KeyRing, seal, unseal

WASM = bytes(range(32))
OWNER = RunContext(agent_id="a", session_id="s", session_key="k", run_id="r")
FROZEN = Frozen(bytes(32), 1_376_256, (1, 2, 3), b"pages" * 100)
ROOM = 1 << 30


def test_what_was_sealed_comes_back_whole() -> None:
    keys = KeyRing.ephemeral()
    assert unseal(seal(FROZEN, WASM, OWNER, keys), WASM, OWNER, keys, max_memory=ROOM) == FROZEN


def test_the_memory_is_not_readable_in_a_sealed_snapshot() -> None:
    assert b"pages" not in seal(FROZEN, WASM, OWNER, KeyRing.ephemeral())


@pytest.mark.covers("WA-8")
@pytest.mark.parametrize("field", ["agent_id", "session_id", "session_key", "run_id"])
def test_another_scope_is_refused(field: str) -> None:
    keys = KeyRing.ephemeral()
    sealed = seal(FROZEN, WASM, OWNER, keys)
    stranger = replace(OWNER, **{field: "other"})
    with pytest.raises(SnapshotRefused, match="another run, session or agent"):
        unseal(sealed, WASM, stranger, keys, max_memory=ROOM)


def test_parts_of_a_scope_cannot_be_moved_into_each_other() -> None:
    keys = KeyRing.ephemeral()
    sealed = seal(FROZEN, WASM, replace(OWNER, agent_id="ab", session_id="c"), keys)
    shifted = replace(OWNER, agent_id="a", session_id="bc")
    with pytest.raises(SnapshotRefused):
        unseal(sealed, WASM, shifted, keys, max_memory=ROOM)


@pytest.mark.covers("WA-8")
def test_any_flipped_byte_is_refused() -> None:
    keys = KeyRing.ephemeral()
    sealed = seal(FROZEN, WASM, OWNER, keys)
    for position in range(len(sealed)):
        altered = bytearray(sealed)
        altered[position] ^= 1
        with pytest.raises(SnapshotRefused):
            unseal(bytes(altered), WASM, OWNER, keys, max_memory=ROOM)


def test_any_truncation_is_refused() -> None:
    keys = KeyRing.ephemeral()
    sealed = seal(FROZEN, WASM, OWNER, keys)
    for length in range(len(sealed)):
        with pytest.raises(SnapshotRefused):
            unseal(sealed[:length], WASM, OWNER, keys, max_memory=ROOM)


def test_a_snapshot_of_another_engine_is_refused() -> None:
    keys = KeyRing.ephemeral()
    sealed = seal(FROZEN, WASM, OWNER, keys)
    with pytest.raises(SnapshotRefused, match="another sandbox build"):
        unseal(sealed, bytes(32), OWNER, keys, max_memory=ROOM)


def test_a_newer_format_is_refused_by_its_number() -> None:
    keys = KeyRing.ephemeral()
    sealed = bytearray(seal(FROZEN, WASM, OWNER, keys))
    sealed[4] = 2
    with pytest.raises(SnapshotRefused, match="format 2"):
        unseal(bytes(sealed), WASM, OWNER, keys, max_memory=ROOM)


def test_a_lost_key_is_refused_as_such() -> None:
    sealed = seal(FROZEN, WASM, OWNER, KeyRing.ephemeral())
    with pytest.raises(SnapshotRefused, match="key"):
        unseal(sealed, WASM, OWNER, KeyRing.ephemeral(), max_memory=ROOM)


@pytest.mark.covers("WA-12")
def test_memory_over_the_limit_is_refused_before_it_is_unpacked() -> None:
    keys = KeyRing.ephemeral()
    sealed = seal(FROZEN, WASM, OWNER, keys)
    with pytest.raises(SnapshotTooLarge) as caught:
        unseal(sealed, WASM, OWNER, keys, max_memory=FROZEN.memory - 1)
    assert caught.value.code == "snapshot_limit_exceeded"


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
    assert unseal(sealed, WASM, OWNER, after, max_memory=ROOM) == FROZEN
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
    with pytest.raises(SnapshotRefused, match=r"snapshot\.keys"):
        KeyRing.load(tmp_path)


def test_a_key_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SnapshotRefused, match="cannot be read"):
        KeyRing.load(tmp_path / "file" / "state")


def test_keys_of_a_wrong_length_are_a_programmers_error() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        KeyRing([b"short"])
