"""Attempts to leave the workspace through the core tools. None succeeds.

An attempt succeeds if the neighbour's secret comes back, if anything outside of the workspace is
changed, or if a command starts in a folder that is not below it.
"""

import ctypes
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.core_tools_driver import SECRET, Bench, bench, neighbourhood, picture

from clawmode.core_tools.confined import Workspace
from clawmode.core_tools.files import FileSettings
from clawmode.core_tools.places import FileLimits, Place
from clawmode.exceptions import ToolProblem
from clawmode.tools.executor import ToolFailure

pytestmark = [pytest.mark.anyio, pytest.mark.hostile]

Prepare = Callable[[Path, Path], str]
"""Puts something into a workspace (first) with regard to its neighbour; the path to try."""


def path_of(text: str) -> Prepare:
    """A path as it is, with `{root}` and `{outside}` filled in."""
    return lambda root, outside: text.format(root=root, outside=outside)


def link(target: str, path: str = "link") -> Prepare:
    def prepare(root: Path, outside: Path) -> str:
        (root / "link").symlink_to(target.format(root=root, outside=outside))
        return path

    return prepare


def chain(root: Path, outside: Path) -> str:
    (root / "one").symlink_to("two")
    (root / "two").symlink_to("inside/three")
    (root / "inside" / "three").symlink_to(outside)
    return "one/secret.txt"


def climbing(root: Path, outside: Path) -> str:
    (root / "inside" / "up").symlink_to("..")
    return "inside/up/inside/up/../outside/secret.txt"


def circle(root: Path, outside: Path) -> str:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    return "a"


def hard_link(root: Path, outside: Path) -> str:
    os.link(outside / "secret.txt", root / "hard.txt")
    return "hard.txt"


def link_to_hard_link(root: Path, outside: Path) -> str:
    os.link(outside / "secret.txt", root / "hard.txt")
    (root / "soft.txt").symlink_to("hard.txt")
    return "soft.txt"


def pipe(root: Path, outside: Path) -> str:
    os.mkfifo(root / "pipe")
    return "pipe"


def unix_socket(root: Path, outside: Path) -> str:
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(root)  # the path of a socket must be short
        try:
            made.bind("socket")
        finally:
            os.chdir(here)
    return "socket"


ATTACKS: dict[str, Prepare] = {
    "dots": path_of("../outside/secret.txt"),
    "dots after a folder": path_of("inside/../../outside/secret.txt"),
    "dots after nothing": path_of("missing/../../outside/secret.txt"),
    "many dots": path_of("../" * 60 + "etc/passwd"),
    "dots and slashes": path_of("inside//.././/..//outside/./secret.txt"),
    "the folder above": path_of(".."),
    "absolute": path_of("{outside}/secret.txt"),
    "absolute, elsewhere": path_of("/etc/passwd"),
    "two slashes": path_of("//etc/passwd"),
    "absolute with a dot": path_of("/./etc/passwd"),
    "the root": path_of("/"),
    "the root's own path and up": path_of("{root}/../outside/secret.txt"),
    "a folder whose name begins alike": path_of("{root}-evil/secret.txt"),
    "a folder beside, of a like name": path_of("../ws-evil/secret.txt"),
    "another case": path_of("../OUTSIDE/SECRET.TXT"),
    "home": path_of("~/../outside/secret.txt"),
    "somebody's home": path_of("~root/.bashrc"),
    "an address of a file": path_of("file://{outside}/secret.txt"),
    "a variable": path_of("$PWD/../outside/secret.txt"),
    "backslashes": path_of("..\\outside\\secret.txt"),
    "percent signs": path_of("%2e%2e/outside/secret.txt"),
    "wide dots": path_of("\uff0e\uff0e/outside/secret.txt"),
    "a division slash": path_of("..\u2215outside\u2215secret.txt"),
    "a NUL": path_of("inside/plain.txt\0/../../../outside/secret.txt"),
    "a NUL first": path_of("\0/../outside/secret.txt"),
    "a line break": path_of("inside\n/../../outside/secret.txt"),
    "half a character": path_of("\udcff/../../outside/secret.txt"),
    "turned around": path_of("\u202etxt.terces/../../outside/secret.txt"),
    "spaces": path_of(" ../outside/secret.txt"),
    "too long": path_of("inside/" * 2_000 + "../" * 2_001 + "outside/secret.txt"),
    "proc's root": path_of("/proc/self/root{outside}/secret.txt"),
    "proc's folder": path_of("/proc/self/cwd/../outside/secret.txt"),
    "proc's environment": path_of("/proc/self/environ"),
    "a descriptor": path_of("/dev/fd/0"),
    "a device": path_of("/dev/zero"),
    "a link to a file": link("{outside}/secret.txt"),
    "a link by dots": link("../outside/secret.txt"),
    "a link to a folder": link("{outside}", "link/secret.txt"),
    "a link to the folder above": link("..", "link/outside/secret.txt"),
    "a link to the folder above, and back": link("..", "link/ws/../outside/secret.txt"),
    "a link to the root": link("/", "link{outside}/secret.txt"),
    "a link to proc's root": link("/proc/self/root", "link/etc/passwd"),
    "a link to descriptors": link("/proc/self/fd", "link/0"),
    "a link to a device": link("/dev/zero"),
    "a link that begins with the root": link("{root}/../outside/secret.txt"),
    "a link to a like name": link("{root}-evil/secret.txt"),
    "a link that leads nowhere yet": link("{outside}/new.txt"),
    "a link to a folder that is not there": link("{outside}/new", "link/new.txt"),
    "links in a row": chain,
    "links and dots": climbing,
    "links in a circle": circle,
    "a hard link": hard_link,
    "a link to a hard link": link_to_hard_link,
    "a pipe": pipe,
    "a socket": unix_socket,
}

assert len(ATTACKS) >= 50


async def try_everything(tools: Bench, path: str) -> None:
    """Every way in which a core tool takes a path."""
    patch = "*** Begin Patch\n{}\n*** End Patch"
    update = "@@\n-plain\n+gone\n"
    for name, input in (
        ("read", {"path": path}),
        ("read", {"path": path, "offset": 1, "limit": 5}),
        ("edit", {"path": path, "oldText": SECRET, "newText": "gone"}),
        ("edit", {"path": path, "oldText": "\n", "newText": "gone", "replaceAll": True}),
        ("apply_patch", {"input": patch.format(f"*** Update File: {path}\n@@\n-{SECRET}\n+gone")}),
        ("apply_patch", {"input": patch.format(f"*** Delete File: {path}")}),
        (
            "apply_patch",
            {"input": patch.format(f"*** Update File: {path}\n*** Move to: stolen.txt")},
        ),
        (
            "apply_patch",
            {
                "input": patch.format(
                    f"*** Update File: inside/plain.txt\n*** Move to: {path}\n{update}"
                )
            },
        ),
        ("apply_patch", {"input": patch.format(f"*** Add File: {path}\n+gone")}),
        ("write", {"path": path, "content": "gone"}),
        ("exec", {"command": "pwd -P; cat secret.txt plain.txt", "workdir": path}),
        ("exec", {"command": "pwd -P; cat secret.txt", "workdir": os.path.dirname(path) or "."}),
        ("read", {"path": "stolen.txt"}),
    ):
        with anyio.fail_after(5):
            await tools.attempt(name, **input)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
async def test_no_path_leads_out(attack: Prepare, tmp_path: Path) -> None:
    root, outside = neighbourhood(tmp_path)
    path = attack(root, outside)
    neighbours = {**picture(outside), **picture(tmp_path / "ws-evil")}
    beside = sorted(os.listdir(tmp_path))
    async with bench(root) as tools:
        await try_everything(tools, path)
    assert {**picture(outside), **picture(tmp_path / "ws-evil")} == neighbours
    assert sorted(os.listdir(tmp_path)) == beside
    said = str(tools.answers)
    assert SECRET not in said
    assert "root:x:" not in said
    for answer in tools.answers:
        if isinstance(answer, dict) and str(answer.get("output", "")).startswith("/"):
            started = Path(str(answer["output"]).split("\n")[0])
            assert started.is_relative_to(root.resolve())


# ---- Races ----


@contextmanager
def swapping(swap: Callable[[], None]) -> Iterator[None]:
    """Swaps something as fast as it can, in another thread."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            swap()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def exchange(here: Path, other: Path, target: Path) -> Callable[[], None]:
    """Exchanges two names at once, so that both are always there; one of them is a link."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(here), os.fsencode(other))

    def swap() -> None:
        if not here.is_symlink() and not other.is_symlink():  # it was replaced by a file
            other.unlink()
            other.symlink_to(target)
        assert libc.renameat2(-100, names[0], -100, names[1], 2) == 0

    return swap


ROUNDS = 300


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_name_that_becomes_a_link_while_it_is_used_leads_nowhere(
    what: str, tmp_path: Path
) -> None:
    root, outside = neighbourhood(tmp_path)
    path, target = (
        ("here/secret.txt", outside) if what == "folder" else ("here", outside / "secret.txt")
    )
    (root / path).parent.mkdir(exist_ok=True)
    (root / path).write_text("harmless", "utf-8")
    (root / "evil").symlink_to(target)
    swap = exchange(root / "here", root / "evil", target)
    before = picture(outside)
    workspace = Workspace(root)
    read, refused = set[bytes](), 0
    with swapping(swap):
        for _ in range(ROUNDS):
            try:
                with workspace.locate(path) as place:
                    read.add(place.read()[0])
            except ToolProblem:
                refused += 1
            try:
                with workspace.locate(path) as place:
                    signature = place.check()
                    place.stage(b"harmless", signature)
                    place.commit(signature)
            except ToolProblem:
                refused += 1
    assert read <= {b"harmless"}
    assert picture(outside) == before
    assert refused


def test_a_file_that_becomes_a_link_between_the_look_and_the_opening_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, outside = neighbourhood(tmp_path)
    (root / "here").write_text("harmless", "utf-8")
    check = Place._check

    def looked(self: Place, status: os.stat_result | None) -> None:
        check(self, status)
        (root / "here").unlink(missing_ok=True)
        (root / "here").symlink_to(outside / "secret.txt")

    monkeypatch.setattr(Place, "_check", looked)
    with Workspace(root).locate("here") as place, pytest.raises(ToolProblem) as caught:
        place.read()
    assert caught.value.code == "changed"


def test_a_folder_that_is_made_while_somebody_puts_links_there_is_ours(tmp_path: Path) -> None:
    root, outside = neighbourhood(tmp_path)
    before = picture(outside)
    workspace = Workspace(root)

    def swap() -> None:
        link = root / "new"
        try:
            link.symlink_to(outside)
            link.unlink()
        except OSError:
            pass

    with swapping(swap):
        for number in range(ROUNDS):
            try:
                with workspace.locate(f"new/{number}.txt") as place:
                    signature = place.check()
                    place.stage(b"x", signature)
                    place.commit(signature)
            except ToolProblem:
                continue
            os.unlink(root / "new" / f"{number}.txt")
            os.rmdir(root / "new")
    assert picture(outside) == before


async def test_a_command_does_not_start_in_a_folder_that_became_a_link(tmp_path: Path) -> None:
    root, outside = neighbourhood(tmp_path)
    (root / "here").mkdir()
    (root / "evil").symlink_to(outside)
    swap = exchange(root / "here", root / "evil", outside)
    async with bench(root) as tools:
        with swapping(swap):
            for _ in range(40):
                await tools.attempt("exec", command="cat secret.txt", workdir="here")
    started = [answer for answer in tools.answers if isinstance(answer, dict)]
    assert SECRET not in str(tools.answers)
    assert len(started) < len(tools.answers) == 40


async def test_a_patch_does_not_write_outside_while_folders_are_swapped(tmp_path: Path) -> None:
    root, outside = neighbourhood(tmp_path)
    (root / "here").mkdir()
    (root / "evil").symlink_to(outside)
    before = picture(outside)
    swap = exchange(root / "here", root / "evil", outside)
    async with bench(root) as tools:
        with swapping(swap):
            for number in range(60):
                patch = f"*** Begin Patch\n*** Add File: here/{number}.txt\n+x\n*** End Patch"
                await tools.attempt("apply_patch", input=patch)
    assert picture(outside) == before


# ---- What the answers do not tell ----


async def test_errors_name_no_path_outside(tmp_path: Path) -> None:
    root, outside = neighbourhood(tmp_path)
    (root / "link").symlink_to(outside / "secret.txt")
    async with bench(root) as tools:
        await tools.attempt("read", path="link")
        await tools.attempt("write", path="link/x", content="")
        await tools.attempt("read", path="missing")
    assert str(outside) not in str(tools.answers)
    assert str(tmp_path) not in str(tools.answers)


async def test_what_is_there_outside_cannot_be_told_from_what_is_not(tmp_path: Path) -> None:
    root, _ = neighbourhood(tmp_path)
    async with bench(root) as tools:
        there = await tools.problem("read", path="../outside/secret.txt")
        missing = await tools.problem("read", path="../outside/missing.txt")
    assert there == missing == "outside"


# ---- What the setup reads ----


def patch(*lines: str) -> str:
    return "\n".join(("*** Begin Patch", *lines, "*** End Patch"))


@pytest.mark.covers("S-2")
async def test_what_the_setup_reads_cannot_be_changed_by_any_path(tmp_path: Path) -> None:
    """Configuration, plugins, hooks, keys: directly, by links, by moves, and before they exist."""
    root, _ = neighbourhood(tmp_path)
    config, plugins, hook = root / "clawmode.json5", root / "plugins", root / "hooks" / "h.py"
    for file in (config, plugins / "p" / "main.py", hook, root / "data.txt"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("old\n", "utf-8")
    (root / "link.txt").symlink_to("clawmode.json5")
    (root / "way").symlink_to("plugins")
    (root / "hard.txt").hardlink_to(config)
    (root / "by_link").symlink_to("inside/keys")  # a protected path that is a link, to nothing yet
    protected = (config, plugins, hook, root / "later" / "key.pem", root / "by_link")
    limits = FileLimits(protected=protected, hard_links=True)
    before = picture(root)
    attempts: list[tuple[str, dict[str, Any]]] = [
        (name, input)
        for path in (
            *("clawmode.json5", "./inside/../clawmode.json5", str(config), "link.txt", "hard.txt"),
            *("plugins/p/main.py", "plugins/new.py", "plugins/q/r/s.py", "way/p/main.py", "way/x"),
            *("hooks/h.py", "later/key.pem", "by_link", "inside/keys"),
        )
        for name, input in (
            ("write", {"path": path, "content": "new"}),
            ("edit", {"path": path, "oldText": "old", "newText": "new"}),
            ("apply_patch", {"input": patch(f"*** Add File: {path}", "+new")}),
            ("apply_patch", {"input": patch(f"*** Delete File: {path}")}),
            ("apply_patch", {"input": patch(f"*** Update File: {path}", "@@", "-old", "+new")}),
            (
                "apply_patch",
                {"input": patch(f"*** Update File: {path}", "*** Move to: away.txt")},
            ),
            (
                "apply_patch",
                {"input": patch("*** Update File: data.txt", f"*** Move to: {path}")},
            ),
        )
    ]
    async with bench(root, files=FileSettings(limits=limits)) as tools:
        for name, input in attempts:
            with pytest.raises(ToolFailure):
                await tools.call(name, **input)
        assert picture(root) == before
        with pytest.raises(ToolFailure, match="clawmode reads code, rules or keys from it"):
            await tools.call("write", path="link.txt", content="new")
        # What is not protected can be changed, right beside it too.
        for path in ("hooks/other.py", "later/notes.txt", "clawmode.json5.txt", "inside/plain.txt"):
            await tools.call("write", path=path, content="new")
        assert (await tools.call("read", path="clawmode.json5"))["content"] == "old\n"
