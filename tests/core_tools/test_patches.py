"""Patches: what they mean, and that they are applied whole or not at all."""

import difflib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.core_tools_driver import Bench, bench, picture

from clawmode.core_tools.patches import Add, Delete, Effort, Hunk, Update, parse, patched
from clawmode.core_tools.places import Place
from clawmode.exceptions import ToolProblem

pytestmark = pytest.mark.anyio


@pytest.fixture
async def tools(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as made:
        yield made


def patch(*lines: str) -> str:
    return "\n".join(("*** Begin Patch", *lines, "*** End Patch"))


def put(tools: Bench, name: str, content: str) -> Path:
    path = tools.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode())
    return path


def code_of(text: str, *lines: str) -> str:
    (update,) = parse(patch("*** Update File: a", *lines))
    assert isinstance(update, Update)
    with pytest.raises(ToolProblem) as caught:
        patched(text, update, Effort())
    return caught.value.code


def after(text: str, *lines: str) -> str:
    (update,) = parse(patch("*** Update File: a", *lines))
    assert isinstance(update, Update)
    return patched(text, update, Effort())


# ---- Reading ----


def test_a_patch_says_what_becomes_of_which_file() -> None:
    text = patch(
        "*** Add File: new.txt",
        "+one",
        "+",
        "*** Delete File: old.txt",
        "*** Update File: a b.txt",
        "*** Move to: c.txt",
        "@@ class A",
        "@@ def f",
        " kept",
        "-gone",
        "+come",
        "",
        "*** End of File",
    )
    lines = ((" ", "kept"), ("-", "gone"), ("+", "come"), (" ", ""))
    assert parse(text) == [
        Add("new.txt", "one\n\n"),
        Delete("old.txt"),
        Update("a b.txt", "c.txt", (Hunk(8, ("class A", "def f"), lines, at_end=True),)),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*** Begin Patch",
        "*** End Patch",
        "--- a\n+++ b\n",
        patch(),
        patch("some text"),
        patch("*** Add File:"),
        patch("*** Add File: a", "no plus"),
        patch("*** Update File: a"),
        patch("*** Update File: a", "@@"),
        patch("*** Update File: a", "*no mark"),
        patch("*** Update File: a", "*** Move to: "),
        patch("*** Rename File: a"),
        patch(*(f"*** Delete File: {number}" for number in range(201))),
    ],
)
def test_an_invalid_patch_is_rejected(text: str) -> None:
    with pytest.raises(ToolProblem) as caught:
        parse(text)
    assert caught.value.code == "bad_patch"


# ---- Applying to text ----


def test_hunks_are_applied_in_their_order() -> None:
    text = "a\nb\nc\nd\ne\n"
    assert after(text, "@@", " a", "-b", "+B", "@@", "-d", "+D", "+D2") == "a\nB\nc\nD\nD2\ne\n"


def test_an_anchor_says_which_of_several_places_is_meant() -> None:
    text = "def f():\n    x = 1\n\ndef g():\n    x = 1\n"
    assert code_of(text, "@@", "-    x = 1", "+    x = 2") == "ambiguous"
    changed = after(text, "@@ def g():", "-    x = 1", "+    x = 2")
    assert changed == "def f():\n    x = 1\n\ndef g():\n    x = 2\n"


def test_what_is_only_added_goes_after_the_anchor_or_to_the_end() -> None:
    assert after("a\nb\n", "@@ a", "+x") == "a\nx\nb\n"
    assert after("a\nb\n", "@@", "+x") == "a\nb\nx\n"
    assert after("", "@@", "+x") == "x\n"


def test_the_end_of_the_file_can_be_meant() -> None:
    assert after("x\ny\nx\n", "@@", "-x", "+z", "*** End of File") == "x\ny\nz\n"
    assert code_of("x\ny\n", "@@", "-x", "+z", "*** End of File") == "no_match"


def test_lines_that_differ_in_spaces_are_found_and_kept_lines_stay_as_they_are() -> None:
    assert after("\tkept  \n  gone\n", "@@", " kept", "-gone", "+come") == "\tkept  \ncome\n"


@pytest.mark.parametrize(
    "lines", [("-missing", "+x"), (" b", "-a", "+x"), ("-a", "-b", "-c", "-d")]
)
def test_a_hunk_that_does_not_fit_is_refused(lines: tuple[str, ...]) -> None:
    assert code_of("a\nb\nc\n", "@@", *lines) == "no_match"
    assert code_of("a\nb\nc\n", "@@ nowhere", *lines) == "no_match"


def test_line_ends_stay_what_they_are() -> None:
    assert after("a\r\nb\r\n", "@@", "-b", "+c", "+d") == "a\r\nc\r\nd\r\n"
    assert after("a\nb", "@@", "-b", "+c") == "a\nc"
    assert after("a\n", "@@", "-a") == ""


def test_many_blank_lines_take_no_time() -> None:
    text = "\n" * 200_000
    assert code_of(text, "@@", *[" "] * 2_000, "-x", "+y") == "no_match"


LINES = st.lists(st.text(st.characters(exclude_categories=("C", "Z"))), max_size=30)


@given(LINES, LINES, st.booleans())
def test_a_patch_of_what_differs_leads_from_one_text_to_the_other(
    old: list[str], new: list[str], crlf: bool
) -> None:
    # Each line once, so that each place is one.
    before = [f"{index}:{line}" for index, line in enumerate(old)]
    wanted = [*new, *before[: len(before) // 2], *(f"new {line}" for line in new)]
    lines: list[str] = []
    for group in difflib.SequenceMatcher(None, before, wanted).get_grouped_opcodes(2):
        if not before:
            break
        lines.append("@@")
        for tag, i1, i2, j1, j2 in group:
            lines += [f"{' ' if tag == 'equal' else '-'}{line}" for line in before[i1:i2]]
            lines += [] if tag == "equal" else [f"+{line}" for line in wanted[j1:j2]]
    if not any(line[0] in "-+" for line in lines):
        return
    newline = "\r\n" if crlf else "\n"
    text = "".join(line + newline for line in before)
    assert after(text, *lines) == "".join(line + newline for line in wanted)


TEXT = st.text() | st.permutations(["a", "b", "c ", "d\r", ""]).map("\n".join)
PIECES = ("@@", "@@ a", " a", "-b", " c", "+d ", "+", "*** End of File")
HUNK = st.text() | st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("\n".join)


@given(TEXT, HUNK)
def test_no_text_makes_it_fail_otherwise_than_by_refusing(text: str, hunk: str) -> None:
    refusal, results = "", list[tuple[Update, str]]()
    try:
        for change in parse(patch("*** Update File: a", *hunk.split("\n"))):
            if isinstance(change, Update):
                results.append((change, patched(text, change, Effort())))
    except ToolProblem as problem:
        refusal = problem.code
    assert refusal in ("", "bad_patch", "no_match", "ambiguous")
    for update, result in results:
        lines = [line for hunk in update.hunks for line in hunk.lines]
        assert all(line in result for mark, line in lines if mark == "+")
        grown = sum((mark == "+") - (mark == "-") for mark, _ in lines)
        assert result.count("\n") - text.count("\n") == grown or not result


# ---- Applying to files ----


async def test_a_patch_adds_changes_moves_and_deletes(tools: Bench) -> None:
    put(tools, "change.txt", "a\nb\n")
    put(tools, "move.txt", "m\n")
    put(tools, "delete.txt", "d\n")
    done = await tools.call(
        "apply_patch",
        input=patch(
            "*** Add File: sub/new.txt",
            "+n",
            "*** Add File: sub/other.txt",
            "+o",
            "*** Update File: change.txt",
            "@@",
            "-b",
            "+c",
            "*** Update File: move.txt",
            "*** Move to: moved/there.txt",
            "@@",
            "-m",
            "+M",
            "*** Delete File: delete.txt",
        ),
    )
    assert done == {
        "changes": [
            "A sub/new.txt",
            "A sub/other.txt",
            "M change.txt",
            "R move.txt -> moved/there.txt",
            "D delete.txt",
        ]
    }
    contents = {
        str(path.relative_to(tools.root)): path.read_text("utf-8")
        for path in tools.root.rglob("*.txt")
    }
    assert contents == {
        "sub/new.txt": "n\n",
        "sub/other.txt": "o\n",
        "change.txt": "a\nc\n",
        "moved/there.txt": "M\n",
    }


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (("*** Update File: missing.txt", "@@", "-a", "+b"), "not_found"),
        (("*** Delete File: missing.txt",), "not_found"),
        (("*** Add File: b.txt", "+x"), "exists"),
        (("*** Add File: sub", "+x"), "not_a_file"),
        (("*** Update File: b.txt", "@@", "-nope", "+b"), "no_match"),
        (("*** Update File: b.txt", "*** Move to: c.txt"), "exists"),
        (("*** Update File: b.txt", "*** Move to: ../c.txt"), "outside"),
        (("*** Update File: ../b.txt", "@@", "-a", "+b"), "outside"),
        (("*** Add File: ../new.txt", "+x"), "outside"),
        (("*** Delete File: ../ws",), "outside"),
        (("*** Delete File: link",), "not_a_file"),
        (("*** Delete File: sub",), "not_a_file"),
        (("*** Delete File: a.txt",), "bad_patch"),
        (("*** Update File: ./sub/../a.txt", "@@", "-a", "+c"), "bad_patch"),
        (("*** Update File: link", "@@", "-a", "+c"), "bad_patch"),
        (("*** Add File: x/y.txt", "+1", "*** Add File: x//y.txt", "+2"), "bad_patch"),
    ],
)
async def test_if_anything_does_not_fit_nothing_is_changed(
    tools: Bench, lines: tuple[str, ...], code: str
) -> None:
    put(tools, "a.txt", "a\n")
    put(tools, "b.txt", "b\n")
    put(tools, "c.txt", "c\n")
    (tools.root / "sub").mkdir()
    (tools.root / "link").symlink_to("a.txt")
    before = picture(tools.root)
    first = ("*** Update File: a.txt", "@@", "-a", "+changed", "*** Add File: new/a.txt", "+n")
    assert await tools.problem("apply_patch", input=patch(*first, *lines)) == code
    assert picture(tools.root) == before


@pytest.mark.parametrize("failing", range(4))
async def test_what_fails_while_it_is_written_is_taken_back(
    tools: Bench, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tools, "a.txt", "a\n").chmod(0o640)
    put(tools, "b.txt", "b\n")
    put(tools, "c.txt", "c\n")
    before = picture(tools.root)
    steps = 0
    real = {name: getattr(os, name) for name in ("replace", "unlink")}

    def broken(name: str) -> object:
        def step(path: str, *args: object, **options: object) -> None:
            nonlocal steps
            # What is only staged is cleared away by the same call.
            if name == "replace" or not path.startswith(".clawmode"):
                steps += 1
                if steps == failing + 1:
                    raise OSError(5, "Input/output error")
            real[name](path, *args, **options)

        return step

    for name in real:
        monkeypatch.setattr(os, name, broken(name))
    code = await tools.problem(
        "apply_patch",
        input=patch(
            "*** Update File: a.txt",
            "@@",
            "-a",
            "+A",
            "*** Delete File: b.txt",
            "*** Update File: c.txt",
            "*** Move to: d.txt",
        ),
    )
    monkeypatch.undo()
    assert (code, picture(tools.root)) == ("failed", before)
    assert (tools.root / "a.txt").stat().st_mode & 0o777 == 0o640


async def test_a_file_that_changes_after_it_was_checked_stops_the_patch(
    tools: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tools, "a.txt", "a\n")
    other = put(tools, "b.txt", "b\n")
    commit = Place.commit
    done: list[str] = []

    def meddling(self: Place, *args: object) -> None:
        commit(self, *args)  # pyrefly: ignore[bad-argument-type] - passed on
        if not done:
            other.write_text("somebody else's\n", "utf-8")
        done.append(self.path)

    monkeypatch.setattr(Place, "commit", meddling)
    text = patch("*** Update File: a.txt", "@@", "-a", "+A", "*** Update File: b.txt", "@@", "-b")
    assert await tools.problem("apply_patch", input=text) == "changed"
    assert (tools.root / "a.txt").read_text("utf-8") == "a\n"
    assert other.read_text("utf-8") == "somebody else's\n"


async def test_a_patch_that_is_too_large_is_not_read(tools: Bench) -> None:
    assert await tools.problem("apply_patch", input="x" * ((4 << 20) + 1)) == "too_large"


# ---- Attacks on the time that a patch takes ----


@pytest.mark.covers("S-6")
@pytest.mark.timeout(15)
@pytest.mark.parametrize("wanted", [30_000, 3_000])
def test_a_hunk_of_common_lines_is_refused_instead_of_searched_for(wanted: int) -> None:
    """Compared everywhere, such a hunk took half a minute, during which others could not write."""
    text = "a\n" * 160_000 + "b\n" * 160_000
    assert code_of(text, *[" a"] * wanted, "-b", " a") == "too_common"


@pytest.mark.covers("S-6")
@pytest.mark.timeout(15)
def test_many_hunks_in_a_long_file_take_one_look_at_it() -> None:
    count = 5_000
    text = "".join(f"line {number}\n" for number in range(40 * count))
    hunks = [part for it in range(count) for part in ("@@", f"-line {it * 40}", f"+new {it}")]
    lines = after(text, *hunks).splitlines()
    assert (lines[40], lines[41], len(lines)) == ("new 1", "line 41", 40 * count)


@pytest.mark.covers("S-6")
@pytest.mark.timeout(15)
async def test_the_files_of_a_patch_share_one_limit(tools: Bench) -> None:
    """Many files that are each just below it would add up."""
    updates: list[str] = []
    for name in "abcdefghijklmnop":
        put(tools, name, "a\n" * 2_000 + "b\n" * 2_000)
        updates += [f"*** Update File: {name}", *[" a"] * 100, *[" b"] * 99, "-b", "+c"]
    with pytest.raises(ToolProblem) as caught:
        await tools.bare("apply_patch", input=patch(*updates))
    assert caught.value.code == "too_common"
    assert "c" not in (tools.root / "a").read_text("utf-8")
    await tools.bare("apply_patch", input=patch(*updates[: len(updates) // 2]))
    assert (tools.root / "a").read_text("utf-8").count("c") == 1
