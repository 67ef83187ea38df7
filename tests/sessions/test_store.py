"""Sessions: what they may be called, the index that processes share, and the folders to work in."""

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.session_writer import started

from clawmode.exceptions import ConfigurationError
from clawmode.messages import Usage, UserMessage
from clawmode.sessions.history import read_transcript
from clawmode.sessions.keys import (
    InvalidSession,
    UnknownSession,
    check_agent_id,
    check_session_id,
    session_key,
)
from clawmode.sessions.lock import SessionBusy
from clawmode.sessions.store import Session, SessionStore, SessionsUnavailable
from clawmode.sessions.transcript import open_session
from clawmode.sessions.workspaces import current_folder, sandbox_root, workspace_of

pytestmark = pytest.mark.anyio

HOSTILE = [
    "../../x",
    "..",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\0b",
    "a\nb",
    "a b",
    "",
    " ",
    "x" * 10_000,
    "\u202ex",
    "\u212a",  # the sign for Kelvin, whose small letter is a plain k
    "\uff0e\uff0e",
    "caf\u00e9",
    "\ud800",
    "a::b",
    "a:",
    ":a",
    ".a",
    "agent:",
    "agent::main",
    "agent:main",
    "agent:main:",
    "agent:../x:main",
    "agent:main:../x",
    "agent:MAIN\u212a:x",
]


class Clock:
    """Tells a time that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SessionStore]:
    made = SessionStore(tmp_path / "state" / "sessions", clock=Clock())
    yield made
    made.close()


# ---- Keys and ids ----


@pytest.mark.parametrize(
    ("key", "agent_id", "expected"),
    [
        (None, None, "agent:main:main"),
        (None, "Ops", "agent:ops:main"),
        ("main", "ops", "agent:ops:main"),
        ("Telegram:Group:-100", None, "agent:main:telegram:group:-100"),
        ("agent:OPS:Main", None, "agent:ops:main"),
        ("agent:ops:x", "ops", "agent:ops:x"),
        ("whatsapp:direct:+15551234567", None, "agent:main:whatsapp:direct:+15551234567"),
        ("slack:c1:thread:1700000000.123456", None, "agent:main:slack:c1:thread:1700000000.123456"),
        ("matrix:!room:example.org", None, "agent:main:matrix:!room:example.org"),
    ],
)
def test_a_key_names_its_agent_in_small_letters(
    key: str | None, agent_id: str | None, expected: str
) -> None:
    assert session_key(key, agent_id) == expected
    assert session_key(expected) == expected


@pytest.mark.parametrize("key", HOSTILE, ids=lambda key: ascii(key[:20]))
def test_a_hostile_key_is_refused_in_few_words(key: str) -> None:
    with pytest.raises(InvalidSession) as caught:
        session_key(key)
    assert len(str(caught.value)) < 800
    assert str(caught.value).isprintable()


def test_a_key_of_another_agent_is_refused() -> None:
    with pytest.raises(InvalidSession):
        session_key("agent:ops:main", "main")


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:20]))
def test_a_hostile_agent_or_session_id_is_refused(name: str) -> None:
    for check in (check_agent_id, check_session_id):
        with pytest.raises(InvalidSession) as caught:
            check(name)
        assert str(caught.value).isprintable()


@given(st.text(max_size=300))
def test_a_key_that_passes_is_plain_and_stays_what_it_is(text: str) -> None:
    try:
        key = session_key(text)
    except InvalidSession:
        return
    assert key.isascii()
    assert key.isprintable()
    assert not set("/\\ ") & set(key)
    assert ".." not in key
    assert len(key) <= 256
    assert session_key(key) == key


def test_an_id_may_be_written_with_hyphens() -> None:
    plain = "0123456789abcdef0123456789abcdef"
    assert check_session_id("01234567-89AB-cdef-0123-456789abcdef") == plain


# ---- The index ----


async def test_a_key_leads_to_one_session(store: SessionStore) -> None:
    first = await store.resolve()
    assert first.key == "agent:main:main"
    assert await store.resolve("MAIN") == first
    assert await store.resolve(session_id=first.id) == first
    assert await store.resolve(first.key, first.id, "main") == first
    other = await store.resolve(agent_id="ops")
    assert (other.key, other.agent_id) == ("agent:ops:main", "ops")
    assert other.id != first.id


async def test_the_files_of_a_session_are_named_by_its_id(store: SessionStore) -> None:
    session = await store.resolve("telegram:group:-1", agent_id="ops")
    assert session.transcript == store.folder / "ops" / f"{session.id}.jsonl"
    assert session.trajectory == store.folder / "ops" / f"{session.id}.trajectory.jsonl"
    async with open_session(session, workspace=Path("/work")) as transcript:
        transcript.start_run("r")
    header = read_transcript(session.transcript).header
    assert header == session.header(Path("/work"))
    assert session.header().workspace == ""


async def test_folders_and_files_are_for_their_user_only(store: SessionStore) -> None:
    session = await store.resolve()
    async with open_session(session):
        pass
    for folder in (store.folder, session.transcript.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for file in folder.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == (0o700 if file.is_dir() else 0o600), file


async def test_an_unknown_session_is_reported_with_similar_names(store: SessionStore) -> None:
    session = await store.resolve("telegram:group")
    with pytest.raises(UnknownSession) as caught:
        await store.resolve("telegram:gruop", create=False)
    assert caught.value.near == (session.key,)
    assert session.key in str(caught.value)
    with pytest.raises(UnknownSession) as caught:
        await store.resolve(
            session_id=session.id[:-2] + ("00" if session.id[-2:] != "00" else "11")
        )
    assert caught.value.near == (session.id,)
    with pytest.raises(UnknownSession):
        await store.touch("telegram:gruop")
    assert len(await store.list()) == 1


async def test_key_id_and_agent_have_to_agree(store: SessionStore) -> None:
    session = await store.resolve("a")
    with pytest.raises(InvalidSession):
        await store.resolve("b", session.id)
    with pytest.raises(InvalidSession):
        await store.resolve(session_id=session.id, agent_id="ops")


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:20]))
async def test_nothing_hostile_reaches_the_disk(store: SessionStore, name: str) -> None:
    for attempt in (
        lambda: store.resolve(name),
        lambda: store.resolve(session_id=name),
        lambda: store.resolve(agent_id=name),
        lambda: store.get(name),
        lambda: store.list(name),
        lambda: store.touch(name, status="ok"),
        lambda: store.reset(name),
        lambda: store.delete(name),
    ):
        with pytest.raises(InvalidSession):
            await attempt()
    assert not store.folder.exists()


async def test_what_is_known_about_a_session_adds_up(store: SessionStore) -> None:
    session = await store.resolve()
    changed = await store.touch(session.id, status="ok", usage=Usage(1, 2, 3, 4), title="Mail")
    assert changed.updated_at > session.updated_at
    assert (changed.last_status, changed.title, changed.model) == ("ok", "Mail", "")
    changed = await store.touch(session.key, usage={"input": 10, "output": 20, "odd": "x"})
    assert changed.usage == Usage(11, 22, 3, 4)
    changed = await store.touch(session.id, model="p/m", data={"a": 1, "b": {"c": [2]}})
    changed = await store.touch(session.id, title="", data={"a": None, "d": "é"})
    assert (changed.title, changed.model, changed.last_status) == ("", "p/m", "ok")
    assert changed.data == {"b": {"c": [2]}, "d": "é"}
    assert await store.get(session.key) == changed


@pytest.mark.parametrize(
    "change",
    [
        {"title": "x" * 501},
        {"model": "x" * 257},
        {"status": "x" * 257},
        {"data": {"a": "x" * 70_000}},
        {"data": {"a": float("nan")}},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_what_is_kept_about_a_session_is_bounded(
    store: SessionStore, change: dict[str, Any]
) -> None:
    session = await store.resolve()
    with pytest.raises(InvalidSession):
        await store.touch(session.id, **change)
    assert await store.get(session.id) == session


async def test_a_number_that_the_file_cannot_hold_changes_nothing(store: SessionStore) -> None:
    session = await store.resolve()
    with pytest.raises(SessionsUnavailable):
        await store.touch(session.id, status="ok", usage=Usage(1 << 80))
    assert await store.get(session.id) == session


async def test_sessions_are_listed_with_the_last_used_first(store: SessionStore) -> None:
    made = [await store.resolve(name) for name in "abc"]
    made.append(await store.resolve("d", agent_id="ops"))
    await store.touch(made[0].id)
    assert [it.key[-1] for it in await store.list()] == ["a", "d", "c", "b"]
    assert [it.key[-1] for it in await store.list("MAIN", limit=2)] == ["a", "c"]
    assert [it.key[-1] for it in await store.list(limit=2, offset=1)] == ["d", "c"]
    assert await store.list(limit=-1, offset=-1) == []
    assert len(await store.list(limit=10**9)) == 4


async def test_a_reset_leads_the_key_to_a_new_session_and_keeps_the_old(
    store: SessionStore,
) -> None:
    old = await store.resolve("a")
    await store.touch(old.id, model="p/m", title="Mail", status="ok", usage=Usage(1))
    async with open_session(old) as transcript:
        transcript.message("", UserMessage.of("hello"))
    new = await store.reset("a")
    assert (new.key, new.model, new.title) == (old.key, "p/m", "Mail")
    assert (new.last_status, new.usage) == ("", Usage())
    assert new.id != old.id
    assert await store.resolve("a") == new
    assert not (await store.resolve(session_id=old.id)).current
    assert len(read_transcript(old.transcript).messages()) == 1
    assert [it.id for it in await store.list()] == [new.id]
    with pytest.raises(UnknownSession):
        await store.reset("unknown")


async def test_a_run_of_a_session_that_was_reset_meanwhile_still_counts_for_it(
    store: SessionStore,
) -> None:
    old = await store.resolve("a")
    new = await store.reset("a")
    await store.touch(old.id, usage=Usage(5))
    assert (await store.get(old.id)).usage == Usage(5)
    assert (await store.get(new.id)).usage == Usage()


async def test_to_delete_a_key_deletes_its_sessions_and_their_files(store: SessionStore) -> None:
    sessions: list[Session] = []
    for _ in range(2):
        session = await store.resolve("a")
        async with open_session(session):
            pass
        session.trajectory.write_text("{}\n")
        sessions.append(session)
        await store.reset("a")
    kept = await store.resolve("b")
    async with open_session(kept):
        pass
    assert await store.delete("a") == 3
    assert await store.list() == [kept]
    names = {path.name for path in kept.transcript.parent.iterdir()}
    assert names == {kept.transcript.name}
    with pytest.raises(UnknownSession):
        await store.get(sessions[0].id)
    with pytest.raises(UnknownSession):
        await store.delete("a")
    assert (await store.resolve("a")).id not in {session.id for session in sessions}


async def test_a_session_that_is_written_to_is_not_deleted(store: SessionStore) -> None:
    session = await store.resolve("a")
    async with started("hold", str(session.transcript)) as (process, lines):
        await lines.next()
        with pytest.raises(SessionBusy) as caught:
            await store.delete("a", timeout_seconds=0.05)
        assert caught.value.pid == process.pid
    assert await store.get(session.id) == session


# ---- Many at once ----


def test_a_new_index_can_be_opened_by_many_at_once(tmp_path: Path) -> None:
    for number in range(60):  # the fault that this looks for appeared in one of fifty
        stores = [SessionStore(tmp_path / str(number)) for _ in range(6)]
        with ThreadPoolExecutor(len(stores)) as threads:
            for opened in [threads.submit(store._open) for store in stores]:
                opened.result()
        for store in stores:
            store.close()


async def test_many_tasks_get_the_same_new_session(tmp_path: Path) -> None:
    stores = [SessionStore(tmp_path) for _ in range(4)]
    found: set[str] = set()

    async def find(store: SessionStore) -> None:
        found.add((await store.resolve("x")).id)

    async with anyio.create_task_group() as tasks:
        for number in range(40):
            tasks.start_soon(find, stores[number % 4])
    assert len(found) == 1
    for store in stores:
        store.close()


async def test_counts_of_several_processes_add_up(tmp_path: Path) -> None:
    program = """
import anyio, sys
from clawmode.sessions.store import SessionStore
from clawmode.messages import Usage

async def main():
    store = SessionStore(sys.argv[1])
    session = await store.resolve("x")
    for _ in range(50):
        await store.touch(session.id, usage=Usage(1, 2))

anyio.run(main)
"""

    def count() -> None:
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=15)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(anyio.to_thread.run_sync, count)
    store = SessionStore(tmp_path)
    (session,) = await store.list()
    assert session.usage == Usage(150, 300)
    store.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_forked_child_opens_its_own_index(store: SessionStore) -> None:
    session = await store.resolve()
    child = os.fork()
    if child == 0:
        os._exit(0 if store._database is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222 - at once
    assert await store.get(session.id) == session


# ---- The file ----


async def test_sessions_outlive_the_store(tmp_path: Path) -> None:
    first = SessionStore(tmp_path)
    session = await first.resolve("a")
    first.close()
    first.close()
    second = SessionStore(tmp_path)
    assert await second.resolve("a", create=False) == session
    assert await first.resolve("a", create=False) == session
    first.close()
    second.close()


async def test_an_index_of_a_newer_version_is_left_alone(store: SessionStore) -> None:
    await store.resolve()
    store.close()
    database = sqlite3.connect(store.path)
    database.execute("pragma user_version = 9")
    database.close()
    with pytest.raises(SessionsUnavailable, match="newer"):
        await store.resolve("b")


async def test_a_damaged_index_is_reported_without_its_path(store: SessionStore) -> None:
    store.folder.mkdir(parents=True)
    store.path.write_bytes(b"no database" * 1000)
    with pytest.raises(SessionsUnavailable) as caught:
        await store.list()
    assert str(store.folder) not in str(caught.value)


async def test_ids_in_the_index_are_not_trusted(store: SessionStore) -> None:
    session = await store.resolve()
    store.close()
    database = sqlite3.connect(store.path)
    database.execute("update sessions set agent = '../../x'")
    database.commit()
    database.close()
    with pytest.raises(InvalidSession):
        await store.get(session.id)


# ---- Folders to work in ----


@pytest.mark.covers("AL-23")
def test_every_agent_has_a_workspace_of_its_own(tmp_path: Path) -> None:
    assert workspace_of(tmp_path) == tmp_path / "workspace"
    assert workspace_of(tmp_path, "Ops") == tmp_path / "workspace-ops"
    for folder in (tmp_path / "workspace", tmp_path / "workspace-ops"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert workspace_of(tmp_path) == tmp_path / "workspace"


@pytest.mark.covers("AL-23")
def test_a_configured_workspace_is_made_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert workspace_of(tmp_path / "state", "ops", "~/a/b") == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("configured", ["relative", "../up", "/dev/null", "/dev/null/x", "/a\0b"])
def test_a_workspace_that_cannot_be_made_is_a_configuration_error(
    tmp_path: Path, configured: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        workspace_of(tmp_path, "main", configured)
    assert caught.value.expected


@pytest.mark.covers("AL-24")
def test_a_sandboxed_agent_works_in_a_root_of_its_own(tmp_path: Path) -> None:
    session = "a" * 32
    base = tmp_path / "sandboxes"
    assert sandbox_root(tmp_path, "ops", session) == base / f"session-{session}"
    assert sandbox_root(tmp_path, "ops", session, scope="agent") == base / "agent-ops"
    assert sandbox_root(tmp_path, "ops", scope="shared") == base / "shared"
    elsewhere = sandbox_root(tmp_path, "ops", scope="agent", configured=str(tmp_path / "else"))
    assert elsewhere == tmp_path / "else" / "agent-ops"
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in base.iterdir())


def test_a_sandbox_root_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sandboxes").mkdir()
    (tmp_path / "sandboxes" / "shared").symlink_to("/")
    with pytest.raises(ConfigurationError):
        sandbox_root(tmp_path, scope="shared")


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:20]))
def test_no_hostile_name_leads_out_of_the_state_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidSession):
        workspace_of(tmp_path, name)
    with pytest.raises(InvalidSession):
        sandbox_root(tmp_path, "main", name)
    with pytest.raises(InvalidSession):
        sandbox_root(tmp_path, name, scope="agent")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.covers("N-14")
def test_a_person_at_a_terminal_works_in_the_current_folder_unless_keys_or_state_are_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, home, project = tmp_path / "x" / "state", tmp_path / "home", tmp_path / "project"
    for folder in (state, home / "deep", project):
        folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(home)
    monkeypatch.setenv("HOME", str(home))
    found: dict[str, Path | None] = {}
    for name in ("project", "home/deep", "home", "link", "x", "x/state", "."):
        monkeypatch.chdir(tmp_path / name)
        found[name] = current_folder(state)
    assert found == dict.fromkeys(("home", "link", "x", "x/state", ".")) | {
        "project": project.resolve(),
        "home/deep": (home / "deep").resolve(),
    }
