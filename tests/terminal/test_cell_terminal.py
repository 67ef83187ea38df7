"""The command at a terminal: the live tree, questions and answers, and hostile texts on both."""

import json
import sys
import threading
import time
import unicodedata
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_driver import SHOP, Person, clawmode, plain, trusted

from clawmode.app.console import duration
from clawmode.app.loading import set_up
from clawmode.app.setup import Options
from clawmode.context import RunContext
from clawmode.tasks import background_tasks
from clawmode.terminal.call_tree import MAX_CALLS_KEPT, CallTree, CallView
from clawmode.terminal.desk import Desk, Terminal
from clawmode.terminal.forms import describe
from clawmode.text import IN_TEXT, escape, one_line
from clawmode.tools.approvals import Question
from clawmode.tools.executor import CallEvent
from clawmode.types import JsonValue

TOOLS = ("--tools", "shop:TOOLS")
PROMPT = "once, always or deny? (Ctrl-D: later) "
ORDER = 'return await tools.order({ item: "tea" }).catch((error) => error.message)'


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWMODE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("CLAWMODE_CONFIG", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with tools in it."""
    (tmp_path / "shop.py").write_text(SHOP, "utf-8")
    return tmp_path


def cell(folder: Path, source: str) -> tuple[str, ...]:
    """The arguments that run a program with the shop's tools."""
    (folder / "cell.js").write_text(source, "utf-8")
    return ("run", "cell.js", *TOOLS)


# ---- Questions ----


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("once\n", "1 tea"),
        ("A\n", "1 tea"),
        ("deny\n", "openclaw:core:order was not approved: it was denied"),
    ],
)
def test_a_person_decides_about_a_call(shop: Path, typed: str, value: str) -> None:
    with Person(*cell(shop, ORDER), cwd=shop) as person:
        person.reads("Approval needed (warning): Run Order an item?")
        person.reads("tool: openclaw:core:order")
        person.reads('│   "item": "tea"')
        person.reads("asked by: agent main, session cli")
        person.reads("always would remember, until this command ends: openclaw:core:order")
        person.reads("expires in ")
        person.reads(PROMPT)
        person.types(typed)
        assert person.leaves() == (0, f'"{value}"\n')


CALLS = "y, a or n for all, numbers, or show? (Ctrl-D: later) "
ORDERS = """const items = {items};
return (await Promise.all(items.map((item) =>
  tools.order({{ item }}).catch((error) => error.code)))).join()"""


@pytest.mark.covers("AK-4", "AK-6")
@pytest.mark.parametrize(
    ("answers", "value"),
    [
        (["y"], "1 tea,1 milk,1 jam"),
        (["n"], "not_approved,not_approved,not_approved"),
        (["1,3", "n"], "1 tea,not_approved,1 jam"),
        (["nonsense", "2-9", "n 1-2", "a 1"], "not_approved,not_approved,1 jam"),
    ],
)
def test_calls_of_a_loop_are_one_question(shop: Path, answers: list[str], value: str) -> None:
    source = ORDERS.format(items='["tea", "milk", "jam"]')
    with Person(*cell(shop, source), cwd=shop) as person:
        person.reads("Approval needed (warning): 3 calls of one program")
        person.reads("1. openclaw:core:order")
        person.reads('│ {"item": "tea"}')
        person.reads("3. openclaw:core:order")
        person.reads('│ {"item": "jam"}')
        person.reads("always would remember, until this command ends: openclaw:core:order")
        for answer in answers:
            person.reads("numbers, or show? (Ctrl-D: later) ")
            person.types(f"{answer}\n")
        assert person.leaves() == (0, f'"{value}"\n')


@pytest.mark.hostile
@pytest.mark.covers("AK-4")
def test_calls_that_were_not_shown_cannot_be_allowed_with_the_others(shop: Path) -> None:
    source = ORDERS.format(items="Array.from({ length: 60 }, (_, n) => 'x'.repeat(n && 1000))")
    with Person(*cell(shop, source), cwd=shop) as person:
        person.reads("60 calls of one program")
        person.reads("more lines: answer `show` to see them")
        person.reads("more calls: answer `show` to see them")
        person.reads(CALLS)
        person.types("y\n")
        person.reads("Not all of the arguments were shown")
        person.reads(CALLS)
        person.types("1\n")  # this one was shown
        person.reads("59 calls of one program")
        person.reads(CALLS)
        person.types("show\n")
        person.reads("59. openclaw:core:order")
        person.reads(CALLS)
        person.types("n\n")
        code, shown = person.leaves()
    assert (code, shown) == (0, '"1 ' + 59 * ",not_approved" + '"\n')


@pytest.mark.covers("AK-6")
def test_a_group_put_off_is_put_again_by_another_process(shop: Path) -> None:
    source = ORDERS.format(items='["tea", "milk", "jam"]')
    with Person(*cell(shop, source), cwd=shop) as person:
        person.reads(CALLS)
        person.types("2\n")
        person.reads("2 calls of one program")
        person.reads(CALLS)
        person.types("\x04")
        person.reads("The program is left waiting.")
        assert person.leaves() == (3, "")
        (command,) = [line for line in person.seen.splitlines() if "clawmode wait cm_" in line]
    arguments = plain(command).split("clawmode ")[1].split()
    with Person(*arguments, cwd=shop) as person:
        person.reads("2 calls of one program")
        person.reads('│ {"item": "jam"}')
        person.reads(CALLS)
        person.types("y\n")
        assert person.leaves() == (0, '"1 tea,1 milk,1 jam"\n')


def test_always_is_asked_once_and_once_is_asked_always(shop: Path) -> None:
    source = """const all = [];
for (const item of ["a", "b", "c"]) all.push(await tools.order({ item }));
return all.length"""
    with Person(*cell(shop, source), cwd=shop) as person:
        for typed in ("once\n", "always\n"):
            person.reads(PROMPT)
            person.types(typed)
        assert person.leaves() == (0, "3\n")
        assert person.seen.count("Approval needed") == 2


def test_what_was_typed_before_the_question_and_nonsense_are_no_answers(shop: Path) -> None:
    (shop / "hold-one").touch()
    with Person(*cell(shop, "await tools.steps(); " + ORDER), cwd=shop) as person:
        person.reads("openclaw:core:steps")
        person.types("once\n")
        (shop / "hold-one").unlink()
        person.reads(PROMPT)
        person.types("yes please\n")
        person.reads("Please answer once (or yes), always, or deny (or no).")
        person.reads(PROMPT)
        person.types("\n")
        person.reads(PROMPT)
        person.types("deny\n")
        status, out = person.leaves()
    assert (status, "it was denied" in out) == (0, True)


class Typist(Terminal):
    """A terminal where somebody types these lines."""

    def __init__(self, *lines: str) -> None:
        self._lines = list(lines)
        self.shown = ""

    @property
    def width(self) -> int:
        return 80

    def show(self, text: str) -> None:
        self.shown += text

    async def ask(self, prompt: str) -> str | None:
        self.show(prompt)
        return self._lines.pop(0)


@pytest.mark.anyio
@pytest.mark.covers("N-37")
@pytest.mark.parametrize(
    ("lines", "decision", "hints"),
    [
        (("yes",), "allow-once", 0),
        (("Y",), "allow-once", 0),
        (("no",), "deny", 0),
        (("n",), "deny", 0),
        (("sure", "", "yes please", "deny"), "deny", 3),
    ],
)
async def test_yes_is_once_no_is_deny_and_anything_else_gets_a_hint(
    lines: tuple[str, ...], decision: str, hints: int
) -> None:
    typist = Typist(*lines)
    desk = Desk(typist, nullcontext)
    async with background_tasks() as tasks:
        tasks.start_soon(desk.serve)
        found = await desk.approvals.ask(a_question())
    assert found == decision
    assert typist.shown.count("Please answer once (or yes), always, or deny (or no).\n") == hints


@pytest.mark.anyio
@pytest.mark.covers("N-37")
async def test_yes_does_not_allow_what_was_not_shown() -> None:
    typist = Typist("yes", "y", "show", "yes")
    desk = Desk(typist, nullcontext)
    async with background_tasks() as tasks:
        tasks.start_soon(desk.serve)
        found = await desk.approvals.ask(a_question(input={"lines": ["x"] * 50}))
    assert found == "allow-once"
    assert typist.shown.count("Not all of the arguments were shown: please answer show") == 2


@pytest.mark.covers("N-37")
def test_what_we_say_in_a_question_is_broken_between_words() -> None:
    run = RunContext(session_key="agent:main:main", sender="root", channel="terminal")
    for width in range(56, 100):
        text, _ = describe(a_question(run=run, title="Order an item?"), width)
        words = {word for line in text.splitlines() for word in line.split()}
        assert {"session", "agent:main:main,", "channel", "terminal", "Order", "item?"} <= words
        assert max(map(len, text.splitlines())) <= width


def a_question(**given: Any) -> Question:
    whole: dict[str, Any] = {
        "title": "Order?",
        "tool_id": "openclaw:core:order",
        "input": {"item": "tea"},
        "run": RunContext(),
        "always": "openclaw:core:order for the agent main",
        "expires": time.time() + 60,
        **given,
    }
    return Question(**whole)


def test_a_question_is_put_while_other_calls_run(shop: Path) -> None:
    source = 'return Promise.all([tools.order({ item: "a" }), tools.steps()])'
    with Person(*cell(shop, source), "--json", cwd=shop) as person:
        person.reads(PROMPT)
        person.types("once\n")
        status, out = person.leaves()
    assert (status, json.loads(out)["value"]) == (0, ["1 a", "done"])


def test_hostile_arguments_cannot_pass_for_the_question(shop: Path) -> None:
    fake = "x\\r\\x1b[2K\\x9b2J\\u202e\\n  tool: openclaw:core:price\\n" + PROMPT
    source = f'return tools.order({{ item: "{fake}" + " ".repeat(200) + "  tool: fake" }})'
    with Person(*cell(shop, source), cwd=shop, size=(24, 60)) as person:
        person.reads("expires in")
        person.reads(PROMPT)
        question = person.seen[person.seen.index("Approval needed") :]
        person.types("deny\n")
        assert person.leaves()[0] == 1
    lines = question.splitlines()
    assert not set(question) & set("\x1b\r\x9b\u202e")
    assert [line for line in lines if "tool: " in line and "│" not in line] == [
        "  tool: openclaw:core:order"
    ]
    assert all(line.startswith("  │ ") for line in lines if "fake" in line or "\\u202e" in line)
    arguments = [line for line in lines if line.startswith("  │ ")]
    assert max(map(len, arguments)) <= 60
    assert "\\u009b2J\\u202e" in "".join(line[4:] for line in arguments)


def test_what_was_not_shown_cannot_be_allowed(shop: Path) -> None:
    source = 'return tools.order({ item: "a".repeat(9000) + "!" }).then((told) => told.length)'
    with Person(*cell(shop, source), cwd=shop) as person:
        person.reads("more lines: answer `show` to see them")
        person.reads("show or deny? ")
        person.types("once\n")
        person.reads("show or deny? ")
        person.types("show\n")
        person.reads('a!"')
        person.reads(PROMPT)
        person.types("once\n")
        assert person.leaves() == (0, "9003\n")


def test_a_program_from_stdin_is_asked_about_at_the_terminal(shop: Path) -> None:
    with Person("run", "-", *TOOLS, "--json", cwd=shop, stdin=ORDER) as person:
        person.reads(PROMPT)
        person.types("once\n")
        status, out = person.leaves()
    assert (status, json.loads(out)["value"]) == (0, "1 tea")


def test_a_question_put_off_is_put_again_by_another_process(shop: Path) -> None:
    with Person(*cell(shop, ORDER), cwd=shop) as person:
        person.reads(PROMPT)
        person.types("\x04")
        person.reads("The program is left waiting.")
        assert person.leaves() == (3, "")
        (command,) = [line for line in person.seen.splitlines() if "clawmode wait cm_" in line]
    arguments = plain(command).split("clawmode ")[1].split()
    with Person(*arguments, cwd=shop) as person:
        person.reads('│   "item": "tea"')
        person.reads(PROMPT)
        person.types("once\n")
        assert person.leaves() == (0, '"1 tea"\n')


def test_a_question_that_nobody_answers_in_time_is_a_no(shop: Path) -> None:
    trusted(shop, "{ tools: { codeMode: { snapshotTtlSeconds: 3 } } }")  # it must be shown by then
    with Person(*cell(shop, ORDER), cwd=shop) as person:
        person.reads(PROMPT)
        person.reads("The question is no longer open.")
        status, out = person.leaves()
    assert (status, "nobody answered" in out) == (0, True)


@pytest.mark.covers("S-1")
def test_a_configuration_of_the_working_folder_is_asked_about_once(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop)
    hook = 'h: { events: ["session:start"], command: ["no-such-\\u001b[2J", "a b"] }'
    text = f"{{ hooks: {{ internal: {{ entries: {{ {hook} }} }} }} }}"
    (shop / "clawmode.json5").write_text(text)
    with Person("sessions", "list", cwd=shop) as person:
        person.types("y\n")  # before the question: no answer
        person.reads("has not been used before")
        person.reads("hook h: 'no-such-\\u001b[2J' 'a b'")
        person.reads("Use it from now on? [y/N]")
        person.types("\n")
        assert person.leaves()[0] == 2
    with Person("sessions", "list", cwd=shop) as person:
        person.reads("Use it from now on? [y/N]")
        person.types("y\n")
        assert person.leaves()[0] == 0
    assert set_up(Options(config=None)).file == shop / "clawmode.json5"


@pytest.mark.parametrize("at", [PROMPT, "openclaw:core:forever"])
def test_ctrl_c_aborts_the_run_in_one_line(shop: Path, at: str) -> None:
    source = ORDER if at == PROMPT else "await tools.forever()"
    with Person(*cell(shop, source), cwd=shop) as person:
        person.reads(at)
        person.types("\x03")
        person.reads("clawmode: stopped")
        assert person.leaves() == (130, "")
        assert "Traceback" not in person.seen
        assert "clawmode wait" not in person.seen


def test_a_cell_that_was_stopped_at_its_question_is_gone(shop: Path) -> None:
    parked = clawmode(*cell(shop, ORDER), "--no-wait", "--json", cwd=shop)
    run_id = json.loads(parked.stdout)["runId"]
    with Person("wait", run_id, *TOOLS, cwd=shop) as person:
        person.reads(PROMPT)
        person.types("\x03")
        assert person.leaves()[0] == 130
    gone = clawmode("wait", run_id, *TOOLS, "--json", cwd=shop)
    assert json.loads(gone.stdout)["code"] == "aborted"


# ---- The live tree ----


def test_calls_are_shown_while_they_run_and_at_the_end(shop: Path) -> None:
    source = (
        'text("said"); await Promise.all([tools.steps(), tools.price({ item: "x" })]); return 5'
    )
    for name in ("one", "two"):  # until it was drawn
        (shop / f"hold-{name}").touch()
    with Person(*cell(shop, source), cwd=shop) as person:
        person.reads("openclaw:core:steps")
        person.reads("one \\u001b[2J[bold]\\u202e")
        (shop / "hold-one").unlink()
        person.reads('{"two": 2}')
        (shop / "hold-two").unlink()
        assert person.leaves() == (0, "said\n5\n")
    last = plain(person.seen[person.seen.rindex("exec: ") :]).splitlines()
    assert last[0] == "exec: 2 calls"
    assert last[1].startswith("├─ ✓ openclaw:core:steps  ")
    assert last[2].startswith("└─ ✓ openclaw:core:price  ")
    assert "\u202e" not in person.seen
    assert "\x1b[2J" not in person.seen
    assert person.seen.count("\x1b[?25h") >= person.seen.count("\x1b[?25l") > 0


def test_a_quiet_run_shows_no_calls(shop: Path) -> None:
    with Person(*cell(shop, "return tools.steps()"), "--quiet", cwd=shop) as person:
        assert person.leaves() == (0, '"done"\n')
        assert person.seen == ""


def test_output_on_a_terminal_cannot_move_the_cursor(shop: Path) -> None:
    source = 'text("a\\x1b[2J\\u009b2J\\tb\\nc"); return "\\u202e"'
    with Person(*cell(shop, source), cwd=shop, stdout_too=True) as person:
        assert person.leaves()[0] == 0
        assert person.seen == 'a\\u001b[2J\\u009b2J\tb\nc\n"\\u202e"\n'
    piped = clawmode("run", "cell.js", cwd=shop)
    assert piped.stdout == 'a\x1b[2J\x9b2J\tb\nc\n"\u202e"\n'


def test_tables_fit_the_terminal(shop: Path) -> None:
    with Person("tools", "list", *TOOLS, cwd=shop, stdout_too=True, size=(24, 44)) as person:
        assert person.leaves()[0] == 0
    lines = plain(person.seen).splitlines()
    assert max(map(len, lines)) <= 44
    assert len(lines) > 9


# ---- Parts ----


# Default_Ignorable_Code_Point of Unicode 16, as far as it is not of category Cf, and blank glyphs.
NOT_DRAWN = {
    *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x2800, 0x3164, 0xFFA0, 0x1D159),
    *range(0x180B, 0x1810),
    *range(0xFE00, 0xFE10),
    *range(0xFFF0, 0xFFF9),
    *range(0xE0000, 0xE1000),
}


@pytest.mark.covers("S-16")
def test_everything_a_terminal_acts_on_or_hides_is_escaped() -> None:
    risky = {"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"}
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if char != " " and (unicodedata.category(char) in risky or code in NOT_DRAWN):
            assert escape(char).startswith("\\"), hex(code)
        elif unicodedata.category(char) not in ("Cn", "Mn"):
            assert escape(char) == char, hex(code)
    assert escape("a\n\tb\r", IN_TEXT) == "a\n\tb\\u000d"
    assert escape("\U000e0041") == "\\U000e0041"
    assert escape("I \u2764\ufe0f\u3000you", IN_TEXT) == "I \u2764\ufe0f\u3000you"


@pytest.mark.covers("S-16")
@pytest.mark.parametrize(
    "other",
    [
        "rm -r\u3164 build",  # a Hangul filler
        "rm -r build\ufe01",  # a variation selector
        "rm -r\u00a0build",  # a space that no shell splits at
        "rm -r build\u2800",  # a blank Braille pattern
        "rm -r bu\u034fild",
    ],
)
def test_two_commands_that_differ_do_not_look_alike_in_a_question(other: str) -> None:
    question = Question(
        title="Run a command?",
        tool_id="openclaw:core:exec",
        input={"command": other},
        run=RunContext(),
        always="nothing beyond this command",
        expires=time.time(),
    )
    text, _ = describe(question, 100)
    assert "\\u" in text
    assert other not in text


def test_a_line_is_one_and_has_its_length() -> None:
    assert one_line(" a\n b\t\x07", 20) == "a b \\u0007"
    assert one_line("x" * 30, 20) == "x" * 19 + "…"
    assert len(one_line(" " * 500 + "x", 20)) <= 20
    assert len(one_line("\x07" * 50, 20)) == 20


def test_times_are_said_as_people_do() -> None:
    said = [duration(seconds) for seconds in (0, 0.0123, 0.9999, 5, 59.97, 60, 125)]
    assert said == ["0 ms", "12 ms", "1.0 s", "5.0 s", "1 min", "1 min", "2 min 5 s"]


def started(number: int) -> CallEvent:
    return CallEvent("start", str(number), "openclaw:core:price", "exec")


def ended(number: int, *, ok: bool = True) -> CallEvent:
    state = "completed" if ok else "failed"
    return CallEvent("end", str(number), "openclaw:core:price", "exec", state, 0.01)


def test_a_tree_of_many_calls_keeps_the_latest_and_all_that_are_open() -> None:
    tree = CallTree()
    tree.add(started(0))
    for number in range(1, 1001):
        tree.add(started(number))
        tree.add(ended(number, ok=number != 7))
    lines = [str(line) for line in tree.lines()]
    assert lines[0] == "exec: 1001 calls, 1 failed, 1 open"
    assert lines[1] == f"├─ ⋮ {1001 - MAX_CALLS_KEPT} earlier"
    assert lines[2].startswith("├─ … openclaw:core:price")
    assert len(lines) == MAX_CALLS_KEPT + 2
    assert len(tree.lines(5)) == 7
    assert tree.lines(5)[-1].guide == "└─ "


def test_a_tree_takes_what_comes_in_any_order_and_of_any_kind() -> None:
    tree = CallTree()
    tree.add(ended(1))
    tree.add(CallEvent("update", "1", "x", update="early"))
    assert not tree
    tree.add(CallEvent("start", "1", "a\nb" + "c" * 500))
    endless: list[JsonValue] = []
    endless.append(endless)
    tree.add(CallEvent("update", "1", "x", update=endless))
    tree.add(ended(1))
    tree.add(ended(1))
    (_, line) = tree.lines()
    assert line.text.startswith("a b" + "c" * 20)
    assert line.text.endswith("(list)")
    assert tree.open == 0


def test_a_tree_is_fed_from_several_threads_at_once() -> None:
    tree = CallTree()

    def feed(first: int) -> None:
        for number in range(first, first + 500):
            tree.add(started(number))
            tree.add(ended(number))

    threads = [threading.Thread(target=feed, args=(first,)) for first in range(0, 4000, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        tree.lines()
        thread.join()
    assert str(tree.lines()[0]) == "exec: 4000 calls"


def test_a_view_without_calls_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    view = CallView(live=False, summary=True)
    view.close()
    view.add(started(1))
    view.close()
    assert capsys.readouterr().err == ""


def test_a_question_names_who_asks_and_keeps_to_its_lines() -> None:
    question = Question(
        title="t\n  tool: fake",
        description="d\x1b[2J",
        tool_id="mcp:x\ny:z",
        input={"\n  tool: fake": [1, {"deep": "\x7f"}]},
        run=RunContext(sender="s\nt", channel="c", session_id="id"),
        always="mcp:x\ny:z for the agent main",
        expires=time.time() + 90,
    )
    text, complete = describe(question, 80)
    assert complete
    assert "agent main, session id, sender s t, channel c" in text
    assert [line for line in text.splitlines() if line.startswith("  tool: ")] == [
        "  tool: mcp:x y:z"
    ]
    assert "\\u007f" in text
    assert "\\u001b" in text
    assert "expires in 1 min 30 s" in text


def test_no_line_of_a_question_is_wrapped_by_a_terminal() -> None:
    filler = "\u2800" * 70 + "  tool: fake" + "\U0001f600\ufe0f" * 90
    question = Question(
        title=filler,
        description=filler,
        tool_id="tool",
        input={"wide": filler, "ascii": "x" * 500},
        run=RunContext(sender=filler),
        always=filler,
        expires=time.time(),
    )
    text, _ = describe(question, 60)
    wide = [sum(1 if char.isascii() else 2 for char in line) for line in text.splitlines()]
    assert max(wide) <= 60
    odd = [line for line in text.splitlines() if line.startswith("\u2800")]
    assert odd == []


def test_what_a_program_says_is_shown_with_the_call_that_runs_it() -> None:
    tree = CallTree()
    tree.add(CallEvent("update", "cm_1:notify", "notify", "model-1", update="half\ndone"))
    assert str(tree.lines()[0]) == "exec: 0 calls  half done"
    tree.add(CallEvent("start", "model-1", "exec"))
    tree.add(CallEvent("update", "cm_1:notify", "notify", "model-1", update="nearly"))
    assert str(tree.lines()[1]).endswith("nearly")
