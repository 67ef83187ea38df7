"""The file tools: what they read, what they write, and what they refuse to do by halves."""

import os
import stat
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.core_tools_driver import Bench, bench, open_below

from clawmode.core_tools.confined import Workspace
from clawmode.core_tools.files import FileSettings, replaced
from clawmode.core_tools.places import FileLimits, Place
from clawmode.exceptions import ConfigurationError, ToolProblem

pytestmark = pytest.mark.anyio


@pytest.fixture
async def tools(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as made:
        yield made


def put(tools: Bench, name: str, content: str | bytes) -> Path:
    path = tools.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# ---- Reading ----


async def test_a_file_is_read_as_it_is(tools: Bench) -> None:
    put(tools, "a/b.txt", "eins\nzwei ü\n")
    assert await tools.call("read", path="a/b.txt") == {
        "path": "a/b.txt",
        "kind": "file",
        "content": "eins\nzwei ü\n",
        "offset": 1,
        "lines": 2,
        "totalLines": 2,
        "cutLines": 0,
        "truncated": False,
    }


async def test_an_absolute_path_below_the_workspace_is_fine(tools: Bench) -> None:
    path = put(tools, "a.txt", "x")
    assert (await tools.call("read", path=str(path)))["content"] == "x"


@pytest.mark.parametrize("content", ["", "x", "x\n", "\n", "a\nb", "a\n\n", "a\r\nb\r\n"])
async def test_the_end_of_a_file_is_kept(tools: Bench, content: str) -> None:
    put(tools, "a.txt", content)
    assert (await tools.call("read", path="a.txt"))["content"] == content


async def test_a_long_file_comes_in_parts_that_make_the_whole(tools: Bench) -> None:
    content = "".join(f"line {number}\n" for number in range(1, 26))
    put(tools, "a.txt", content)
    got, offset = "", 1
    while True:
        part = await tools.call("read", path="a.txt", offset=offset, limit=10)
        got += part["content"]
        if not part["truncated"]:
            break
        offset = part["nextOffset"]
    assert (got, part["lines"]) == (content, 5)


async def test_the_model_gets_advice_how_to_continue(tools: Bench) -> None:
    put(tools, "a.txt", "1\n2\n3\n")
    result = await tools.bare("read", path="a.txt", limit=2)
    assert result.text == "1\n2\n[lines 1 to 2 of 3; continue with offset 3]"


async def test_text_is_bounded_by_characters_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 600 + "\n" + "y" * 600 + "\n", "utf-8")
    async with bench(tmp_path, files=FileSettings(max_chars=1_000)) as tools:
        part = await tools.call("read", path="a.txt")
    assert (part["lines"], part["truncated"], part["nextOffset"]) == (1, True, 2)


async def test_a_long_line_is_cut_and_said_so(tools: Bench) -> None:
    put(tools, "a.txt", "x" * 5_000 + "\nshort\n")
    part = await tools.call("read", path="a.txt")
    assert (part["cutLines"], part["truncated"]) == (1, True)
    assert part["content"] == "x" * 2_000 + "\nshort\n"


async def test_a_folder_is_listed(tools: Bench) -> None:
    put(tools, "sub/b.txt", "bb")
    put(tools, "a.txt", "a")
    (tools.root / "link").symlink_to("a.txt")
    found = await tools.call("read", path=".")
    assert [(entry["name"], entry["kind"]) for entry in found["entries"]] == [
        ("a.txt", "file"),
        ("link", "link"),
        ("sub", "folder"),
    ]
    assert (await tools.bare("read", path=".")).text == "a.txt\nlink@\nsub/"


async def test_a_name_that_is_not_text_is_listed_as_text(tools: Bench) -> None:
    put(tools, os.fsdecode(b"bad\xff.txt"), "")
    found = await tools.call("read", path=".")
    assert found["entries"][0]["name"] == "bad\ufffd.txt"


async def test_links_that_stay_inside_are_followed(tools: Bench) -> None:
    put(tools, "sub/deep/a.txt", "found")
    (tools.root / "relative").symlink_to("sub/deep")
    (tools.root / "sub" / "up").symlink_to("../sub/deep/../deep/a.txt")
    (tools.root / "absolute").symlink_to(tools.root / "sub")
    for path in ("relative/a.txt", "sub/up", "absolute/deep/a.txt", "relative/../deep/a.txt"):
        assert (await tools.call("read", path=path))["content"] == "found"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("missing", "not_found"),
        ("missing/a.txt", "not_found"),
        ("a.txt/b", "not_a_folder"),
        ("a.txt/", "not_a_folder"),
        ("", "bad_path"),
        ("  ", "bad_path"),
        ("~/a.txt", "bad_path"),
        ("x" * 300, "bad_path"),
        ("x/" * 3_000, "bad_path"),
        ("a\0b", "bad_path"),
        ("a\x1bb", "bad_path"),
        ("\ud800", "bad_path"),
        ("\u202eb", "bad_path"),
        ("..", "outside"),
        ("binary", "binary"),
        ("latin1.txt", "binary"),
        ("pipe", "not_a_file"),
    ],
)
async def test_what_cannot_be_read_is_told_apart(tools: Bench, path: str, code: str) -> None:
    put(tools, "a.txt", "a")
    put(tools, "binary", b"\x89PNG\r\n\x1a\n\0\0")
    put(tools, "latin1.txt", "ü".encode("latin-1"))
    os.mkfifo(tools.root / "pipe")
    assert await tools.problem("read", path=path) == code


@pytest.mark.parametrize(("offset", "limit"), [(0, 1), (-1, 1), (1, 0), (9, 1)])
async def test_offsets_that_lead_nowhere_are_refused(tools: Bench, offset: int, limit: int) -> None:
    put(tools, "a.txt", "a\n")
    assert await tools.problem("read", path="a.txt", offset=offset, limit=limit) == "bad_input"


async def test_a_file_that_is_too_large_is_neither_read_nor_written(tmp_path: Path) -> None:
    (tmp_path / "large").write_text("x" * 101, "utf-8")
    limits = FileSettings(limits=FileLimits(max_bytes=100))
    async with bench(tmp_path, files=limits) as tools:
        assert await tools.problem("read", path="large") == "too_large"
        assert await tools.problem("write", path="new", content="x" * 101) == "too_large"
    assert os.listdir(tmp_path) == ["large"]


async def test_a_file_with_other_names_is_used_if_the_operator_says_so(tmp_path: Path) -> None:
    root, other = tmp_path / "ws", tmp_path / "other.txt"
    root.mkdir()
    other.write_text("old", "utf-8")
    os.link(other, root / "a.txt")
    async with bench(root) as tools:
        assert await tools.problem("read", path="a.txt") == "linked"
        assert await tools.problem("write", path="a.txt", content="new") == "linked"
    allowed = FileSettings(limits=FileLimits(hard_links=True))
    async with bench(root, files=allowed) as tools:
        assert (await tools.call("read", path="a.txt"))["content"] == "old"
        await tools.call("write", path="a.txt", content="new")
    assert (other.read_text("utf-8"), (root / "a.txt").read_text("utf-8")) == ("old", "new")


# ---- Writing ----


async def test_a_file_is_made_with_its_folders(tools: Bench) -> None:
    made = await tools.call("write", path="a/b/c.txt", content="ü\n")
    assert made == {"path": "a/b/c.txt", "bytes": 3, "created": True}
    assert (tools.root / "a/b/c.txt").read_bytes() == "ü\n".encode()


async def test_replacing_a_file_keeps_its_mode_but_no_special_bit(tools: Bench) -> None:
    path = put(tools, "run.sh", "old")
    path.chmod(0o4750)
    await tools.call("write", path="run.sh", content="new")
    assert (stat.S_IMODE(path.stat().st_mode), path.read_text("utf-8")) == (0o750, "new")


async def test_a_new_file_has_the_mode_that_the_umask_leaves(tools: Bench) -> None:
    old = os.umask(0o027)
    try:
        await tools.call("write", path="a.txt", content="")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tools.root / "a.txt").stat().st_mode) == 0o640


async def test_writing_through_a_link_changes_what_it_leads_to(tools: Bench) -> None:
    put(tools, "sub/a.txt", "old")
    (tools.root / "link").symlink_to("sub/a.txt")
    await tools.call("write", path="link", content="new")
    assert (tools.root / "sub/a.txt").read_text("utf-8") == "new"
    assert (tools.root / "link").is_symlink()


async def test_a_link_that_leads_nowhere_yet_says_where_a_file_is_made(tools: Bench) -> None:
    (tools.root / "link").symlink_to("sub/new.txt")
    await tools.call("write", path="link", content="new")
    assert (tools.root / "sub/new.txt").read_text("utf-8") == "new"


@pytest.mark.parametrize(
    ("path", "content", "code"),
    [
        ("sub", "x", "not_a_file"),
        (".", "x", "not_a_file"),
        ("new/", "x", "not_found"),
        ("pipe", "x", "not_a_file"),
        ("locked", "x", "read_only"),
        ("new", "\ud800", "bad_input"),
        ("y" * 300, "x", "bad_path"),
        ("new/" + "y" * 300, "x", "bad_path"),
        ("new/" + "y" * 300 + "/z", "x", "bad_path"),
        ("missing/../new", "x", "not_found"),
    ],
)
async def test_what_cannot_be_written_leaves_nothing(
    tools: Bench, path: str, content: str, code: str
) -> None:
    (tools.root / "sub").mkdir()
    os.mkfifo(tools.root / "pipe")
    put(tools, "locked", "old").chmod(0o444)
    assert await tools.problem("write", path=path, content=content) == code
    assert sorted(os.listdir(tools.root)) == ["locked", "pipe", "sub"]


async def test_a_file_is_never_seen_half_written(tools: Bench) -> None:
    path = put(tools, "a.txt", "x" * 100_000)
    over = threading.Event()
    seen = set[str]()

    def watch() -> None:
        while not over.is_set():
            content = path.read_text("utf-8")
            seen.add(f"{len(content)}{content[:1]}{content[-1:]}")

    thread = threading.Thread(target=watch)
    thread.start()
    for letter in "abcdefgh":
        await tools.call("write", path="a.txt", content=letter * 100_000)
    over.set()
    thread.join()
    assert seen <= {f"100000{letter}{letter}" for letter in "xabcdefgh"}
    assert os.listdir(tools.root) == ["a.txt"]


async def test_a_disk_that_is_full_leaves_the_old_file(
    tools: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tools, "a.txt", "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert await tools.problem("write", path="a.txt", content="new") == "full"
    assert await tools.problem("write", path="sub/b.txt", content="new") == "full"
    assert (path.read_text("utf-8"), os.listdir(tools.root)) == ("old", ["a.txt"])


# ---- Editing ----


async def test_an_edit_replaces_what_is_there_once(tools: Bench) -> None:
    path = put(tools, "a.py", "x = 1\ny = 2\n")
    done = await tools.call("edit", path="a.py", oldText="y = 2", newText="y = 3")
    assert done == {"path": "a.py", "replacements": 1, "line": 2}
    assert path.read_text("utf-8") == "x = 1\ny = 3\n"


async def test_what_is_there_twice_needs_replace_all(tools: Bench) -> None:
    path = put(tools, "a.txt", "a\nb\na\n")
    assert await tools.problem("edit", path="a.txt", oldText="a", newText="c") == "ambiguous"
    await tools.call("edit", path="a.txt", oldText="a", newText="c", replaceAll=True)
    assert path.read_text("utf-8") == "c\nb\nc\n"


@pytest.mark.parametrize(
    ("content", "old", "new", "after"),
    [
        (b"a\r\nb\r\n", "a\nb", "a\nc\nd", b"a\r\nc\r\nd\r\n"),
        (b"a\r\nb\r\n", "b", "b\nc", b"a\r\nb\r\nc\r\n"),
        (b"a\r\nb\r\n", "a\r\nb", "x\r\ny", b"x\r\ny\r\n"),
        (b"a\r\nb\nc\n", "b\nc", "x\ny", b"a\r\nx\ny\n"),
        (b"a\r\nb\nc\n", "a\nb", "x\ny", b"x\r\ny\nc\n"),
        (b"\xef\xbb\xbfa\n", "a", "b", b"\xef\xbb\xbfb\n"),
        (b"no end", "end", "start", b"no start"),
    ],
)
async def test_line_ends_stay_what_they_are(
    tools: Bench, content: bytes, old: str, new: str, after: bytes
) -> None:
    path = put(tools, "a.txt", content)
    await tools.call("edit", path="a.txt", oldText=old, newText=new)
    assert path.read_bytes() == after


@pytest.mark.parametrize(
    ("old", "hint"),
    [
        ("def  main():\n        pass", "it occurs from line 2 on with different white space"),
        ("def man():", "line 2 is the most similar to its first line: 'def main():'"),
        ("something else entirely, which is nowhere", "read the file again"),
    ],
)
def test_a_text_that_is_not_there_is_looked_for_nearby(old: str, hint: str) -> None:
    text = "import os\ndef  main():\n  pass\n" if "  main" in old else "import os\ndef main():\n"
    with pytest.raises(ToolProblem, match="oldText does not occur in") as caught:
        replaced(text, old, "x", "a.py")
    assert (caught.value.code, hint in str(caught.value)) == ("no_match", True)


@pytest.mark.parametrize(("old", "new"), [("", "x"), ("a", "a")])
async def test_an_edit_that_would_change_nothing_is_refused(
    tools: Bench, old: str, new: str
) -> None:
    put(tools, "a.txt", "a")
    assert await tools.problem("edit", path="a.txt", oldText=old, newText=new) == "bad_input"


async def test_an_edit_of_what_is_not_there_or_not_text_is_refused(tools: Bench) -> None:
    put(tools, "binary", b"a\0b")
    assert await tools.problem("edit", path="no", oldText="a", newText="b") == "not_found"
    assert await tools.problem("edit", path="binary", oldText="a", newText="b") == "binary"
    assert await tools.problem("edit", path=".", oldText="a", newText="b") == "not_a_file"


async def test_what_somebody_else_has_changed_meanwhile_is_not_overwritten(
    tools: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tools, "a.txt", "mine")
    stage = Place.stage

    def meddling(self: Place, *args: Any) -> None:
        stage(self, *args)
        path.write_text("somebody else's", "utf-8")

    monkeypatch.setattr(Place, "stage", meddling)
    assert await tools.problem("edit", path="a.txt", oldText="mine", newText="x") == "changed"
    assert (path.read_text("utf-8"), os.listdir(tools.root)) == ("somebody else's", ["a.txt"])


async def test_edits_at_the_same_time_lose_nothing(tools: Bench) -> None:
    import anyio

    path = put(tools, "a.txt", "".join(f"<{number}>\n" for number in range(20)))
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            edit = {"path": "a.txt", "oldText": f"<{number}>", "newText": f"[{number}]"}
            tasks.start_soon(lambda edit=edit: tools.call("edit", **edit))
    assert path.read_text("utf-8") == "".join(f"[{number}]\n" for number in range(20))


# ---- The workspace itself ----


@pytest.mark.parametrize("root", ["/", "/nonexistent", "/etc/passwd"])
def test_not_everything_can_be_a_workspace(root: str) -> None:
    with pytest.raises(ConfigurationError):
        Workspace(Path(root))


def test_a_workspace_behind_a_link_is_known_by_both_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.txt").write_text("a", "utf-8")
    (tmp_path / "name").symlink_to("real")
    workspace = Workspace(tmp_path / "name")
    for folder in ("name", "real"):
        with workspace.locate(str(tmp_path / folder / "a.txt")) as place:
            assert place.read()[0] == b"a"


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "out").symlink_to("/")
    workspace = Workspace(tmp_path)
    for path in ("a/b/c", "a/b/c/new", "a/b/../../..", "out/etc", "a/x/y", "\0"):
        try:
            with workspace.locate(path) as place:
                place.check()
                assert open_below(tmp_path) != []
        except ToolProblem:
            pass
    assert open_below(tmp_path) == []


# ---- Attacks on the time that an edit takes ----


@pytest.mark.covers("S-6")
@pytest.mark.timeout(15)
@pytest.mark.parametrize(
    ("text", "old"),
    [
        # Each of these lines takes difflib 50 ms to compare.
        pytest.param("aab" * 66 + "\n", "aac" * 66, id="alike"),
        # A variant: the first line is everywhere, the second nowhere.
        pytest.param("a\n", "a\n" * 4_999 + "b", id="common first lines"),
        # A variant: lines that are long, and end in another way.
        pytest.param("ab" * 1_600 + "\n", "ab" * 1_600 + "c", id="long"),
    ],
)
def test_a_text_that_is_not_there_is_given_up_on_soon(text: str, old: str) -> None:
    began = time.process_time()
    with pytest.raises(ToolProblem):
        replaced(text * 5_000, old, "x", "a.txt")
    assert time.process_time() - began < 3, "it takes some tenths of a second on an idle machine"


@pytest.mark.covers("S-6")
async def test_a_workspace_does_not_wait_for_writers_of_another(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    held, same, other = (Workspace(tmp_path / name) for name in ("a", "a", "b"))
    assert held.writing is same.writing
    with held.writing:
        assert other.writing.acquire(blocking=False)
    other.writing.release()
