"""`clawmode chat` as people use it: through a real terminal, with a model that plays a script."""

import json
import re
import shutil
import signal
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_driver import SHOP, plain
from tests.support.command_driver import configure, program, serving, use_own_folders
from tests.support.forking import Zygote
from tests.support.terminal_driver import Chatter, Tmux
from tests.support.waiting import GATE_TOOL, until_sync

from clawmode.models.base import ModelError
from clawmode.testing import ScriptServer, Turn, call, pause

# The first test of a process waits until the zygote has imported everything.
pytestmark = pytest.mark.timeout(45)

TOOLS = ("--tools", "shop:TOOLS")
PROMPT = "once, always or deny?"
HOSTILE = "bad \x1b[2J\x9b2J\x1b]0;title\x07 \u202e\rover"
HARMLESS = "bad \\u001b[2J\\u009b2J\\u001b]0;title\\u0007 \\u202e\\u000dover"
GATE = '''
from clawmode.tools.tool import InputRequest

@tool(effect="read")
async def shout(context: ToolContext) -> str:
    """Write all over the terminal."""
    bad = "bad \\x1b[2J\\x9b2J\\x1b]0;title\\x07 \\u202e\\rover"
    context.update(bad)
    print("print", bad, flush=True)
    print("error", bad, file=sys.stderr, flush=True)
    os.write(1, b"raw " + bad.encode() + b"\\n")
    subprocess.run([sys.executable, "-c", "print('child \\x1b[2J'); print(input('more?'))"])
    return bad

@tool(effect="read")
async def ask_name(context: ToolContext) -> str:
    """Ask for a name."""
    fields = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    told = await context.ask(InputRequest(message="Who are you?\\x1b[2J", schema=fields))
    return f"hello {told}"

TOOLS += [gate, shout, ask_name]
'''
ORDER = 'return await tools.order({ item: "tea" }).catch((error) => error.message)'
# It waits for a timer too: else no model would be asked while its question stands.
TIMED_ORDER = f"""const late = setTimeout(() => {{}}, 60000);
try {{ {ORDER} }} finally {{ clearTimeout(late) }}"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tools in it, and a state of its own."""
    use_own_folders(tmp_path, monkeypatch)
    (tmp_path / "shop.py").write_text(SHOP + GATE_TOOL + GATE, "utf-8")
    return tmp_path


def goes_on(request: Any) -> Turn:
    """Waits for a program as long as it waits, and says what it returned."""
    found = request.last_result()
    if found["status"] == "waiting":
        return Turn(call("wait", {"runId": found["runId"]}))
    return Turn(f"It returned {found.get('value')}.")


def said(server: ScriptServer, number: int) -> list[str]:
    """What people have said, as a request has it."""
    messages = server.requests[number].body["messages"]
    parts = [part for it in messages if it["role"] == "user" for part in it["content"]]
    return [part["text"] for part in parts if part["type"] == "text"]


# ---- Talking ----


def test_a_conversation_with_streaming_nested_calls_and_commands(
    shop: Path, zygote: Zygote
) -> None:
    source = 'return Promise.all(["a", "bb"].map((item) => tools.price({ item })))'
    script = [
        Turn("First line.\nSecond, ", pause(0.3), "then the third."),
        program(source, "Let me look."),
        Turn("1 and 2."),
        Turn("Large."),
        Turn("What was said in short."),
        Turn("New."),
        Turn("A path."),
    ]
    with serving(script) as server:
        configure(shop, server)
        with Chatter(zygote, *TOOLS, cwd=shop) as person:
            person.says("Hello!", "First line.", "Second, ", "then the third.")
            person.says("What do they cost?", "Let me look.", "the model: 3 calls", "└─ ✓ exec ")
            person.reads("├─ ✓ openclaw:core:price")
            person.reads("└─ ✓ openclaw:core:price")
            person.reads("1 and 2.")
            person.says("/status", "session agent:main:main", "model mine/small", "tokens ")
            person.says("/model mine/large", "now uses mine/large")
            person.says("And now?", "Large.")
            person.says("/queue collect cap:3", "queue collect, debounce 0.5s, cap 3")
            person.says("/compact", "Summarized 5 messages")
            person.says("/approve", "No question is open.")
            person.says("/stop", "Nothing runs.")
            person.says("/help", "/new [text]", "/approve [id", "/exit, /quit")
            person.says("/stattus", "no command /stattus: did you mean /status?")
            person.says("/reset", "The conversation was reset.")
            person.says("/new And again?", "Started a new conversation", "New.")
            person.says("/etc/hosts is what?", "A path.")
            person.types("\x04")
            assert person.leaves()[0] == 0
        for words in ("First line.", "then the third.", "Let me look.", "1 and 2.", "Large."):
            assert person.transcript.count(words) == 1
        models = [it.body["model"] for it in server.requests]
        assert models == ["small"] * 3 + ["large"] * 4
        assert said(server, 3) == ["Hello!", "What do they cost?", "And now?"]
        assert said(server, 6) == ["And again?", "/etc/hosts is what?"]
    history = shop / "state" / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "+Hello!\n" in history.read_text("utf-8")


def test_lines_are_edited_completed_remembered_and_can_be_several(
    shop: Path, zygote: Zygote
) -> None:
    with serving([Turn("One."), Turn("Two."), Turn("Three.")]) as server:
        configure(shop, server)
        with Chatter(zygote, "--session", "notes", "--model", "mine/tiny", cwd=shop) as person:
            person.types("first\x1b\rsecond\r")
            person.reads("One.")
            person.types("/sta\t\r")
            person.reads("session agent:main:notes")
            person.types("\x1b[200~pasted\rlines\x1b[201~\r")
            person.reads("Two.")
            person.says("/exit")
            assert person.leaves()[0] == 0
        with Chatter(zygote, "--session", "notes", cwd=shop) as person:
            person.types("\x1b[A\x1b[A\r")  # over /exit, to what was pasted
            person.reads("Three.")
            person.says("/quit")
            assert person.leaves()[0] == 0
        assert said(server, 2) == ["first\nsecond", "pasted\nlines", "pasted\nlines"]
        assert [it.body["model"] for it in server.requests] == ["tiny"] * 3


def test_nothing_of_models_and_tools_reaches_the_terminal_raw(shop: Path, zygote: Zygote) -> None:
    long = "word " * 30
    resized = threading.Event()

    def narrow(request: Any) -> Turn:
        assert resized.wait(20)
        return Turn("Narrow: ", long)

    script = [
        Turn(f"{HOSTILE}\n{long}"),
        program("return await tools.shout()", "I shout."),
        narrow,
        Turn("NO_REPLY"),
        Turn("Heard."),
    ]
    with serving(script) as server:
        configure(shop, server)
        with Chatter(zygote, *TOOLS, cwd=shop) as person:
            person.says("Go.", HARMLESS, "word", "ready")
            person.says("Shout!", "I shout.", "more?")
            for source in ("print ", "error ", "raw "):
                assert f"{source}{HARMLESS}" in person.transcript
            assert "child \\u001b[2J" in person.transcript
            person.resizes(30, 40)
            person.reads("\x1b[J")  # the prompt is drawn again
            resized.set()
            person.reads("Narrow:")
            person.reads("ready")
            person.says("Nothing to say?")
            person.says("And now?", "Heard.")
            person.types("\x04")
            assert person.leaves()[0] == 0
    assert not any(bad in person.seen for bad in ("\x1b[2J", "\x9b", "\x1b]", "\u202e", "\rover"))
    assert "NO_REPLY" not in person.transcript
    wide, narrow = person.transcript.split("Narrow:")
    lengths = [
        max(len(it) for it in re.findall(r"^(?:word ?)+$", text, re.M)) for text in (wide, narrow)
    ]
    assert [72 <= lengths[0] < 80, 30 <= lengths[1] < 40] == [True, True]


# ---- While something runs ----


def test_messages_steer_or_wait_while_a_tool_runs_and_ctrl_c_stops_it(
    shop: Path, zygote: Zygote
) -> None:
    waits = program("return await tools.gate()")
    forever = program("return await tools.forever()")
    script = [waits, Turn("Both heard."), waits, Turn("Done."), Turn("Followed."), forever]
    with serving(script) as server:
        configure(shop, server)
        with Chatter(zygote, *TOOLS, cwd=shop) as person:
            person.says("Open it.", "openclaw:core:gate")
            person.says("And quickly!", "(sent to the active run)")
            (shop / "gate-is-open").touch()
            person.reads("Both heard.")
            (shop / "gate-is-open").unlink()
            person.says("/queue followup debounce:0", "queue followup")
            person.says("Again.", "openclaw:core:gate")
            person.says(
                "This comes later.", "(queued until the active run ends)", "1 message waits"
            )
            (shop / "gate-is-open").touch()
            person.reads("Done.")
            person.reads("Followed.")
            person.says("Now forever.", "openclaw:core:forever")
            person.types("\x03")
            person.reads("- openclaw:core:forever")
            person.reads("Stopped.")
            person.types("half a line\x03é")
            person.reads("é")  # Ctrl-C came before it
            time.sleep(2.1)  # that was too long ago
            person.types("\x7f\x03\x03")  # at once: the second has to come soon after the first
            person.reads("(Ctrl-C again ends the chat)")
            assert person.leaves()[0] == 0
        assert said(server, 1) == ["Open it.", "And quickly!"]
        assert said(server, 4)[-2:] == ["Again.", "This comes later."]
        assert len(server.requests) == 6


@pytest.mark.parametrize("how", ["ctrl-d", "sigterm", "hangup"])
def test_a_live_run_is_stopped_and_recorded_when_the_user_leaves(
    shop: Path, zygote: Zygote, how: str
) -> None:
    with serving([program("return await tools.forever()")]) as server:
        configure(shop, server)
        with Chatter(zygote, *TOOLS, cwd=shop) as person:
            person.says("Go.", "openclaw:core:forever")
            if how == "ctrl-d":
                person.types("\x04")
                person.reads("The active run is stopped.")
                assert person.leaves()[0] == 0
            elif how == "sigterm":
                person.signals(signal.SIGTERM)
                assert person.leaves()[0] == 0
            else:
                person.hangs_up()
                assert person.ends() == 0
        shown = zygote.run("sessions", "show", "--json", cwd=shop)
    entries = json.loads(shown.stdout)["entries"]
    assert [it["status"] for it in entries if it.get("phase") == "end"] == ["aborted"]


# ---- Approvals ----


def test_calls_are_decided_about_in_the_place_of_the_prompt(shop: Path, zygote: Zygote) -> None:
    order = (program(ORDER), goes_on, goes_on)
    with serving([*order, *order, Turn("Once what?"), order[0], Turn("Well.")]) as server:
        configure(shop, server)
        with Chatter(zygote, *TOOLS, cwd=shop) as person:
            person.says("Order.", "Approval needed (warning): Run Order an item?", PROMPT)
            assert '│   "item": "tea"' in person.transcript
            person.says("sure", "Please answer once (or yes), always, or deny (or no).", PROMPT)
            person.says("/status", "Approval needed (warning): Run Order an item?")
            person.says("yes", "It returned 1 tea.")
            person.types("Order again.\ronce")  # a line that was begun before the question
            person.reads(PROMPT)
            person.says("deny", "order was not approved: it was denied")
            person.types("\r")
            person.reads("> once")
            person.reads("Once what?")
            person.says("Order.", PROMPT)
            person.says("/stop", "Stopped.", "ready")
            person.says("Well?", "Well.")
            assert "The question is no longer open." in person.transcript
            person.types("\x04")
            assert person.leaves()[0] == 0
        assert said(server, 6)[-1] == "once"
    assert "+deny\n" not in (shop / "state" / "chat_history").read_text("utf-8")


def test_a_question_can_be_put_off_and_decided_about_by_a_command(
    shop: Path, zygote: Zygote
) -> None:
    order = (program(ORDER), goes_on, goes_on)
    ask = program("return await tools.ask_name()")
    script = [*order, *order, program(ORDER), goes_on, ask, goes_on, goes_on]
    with serving(script) as server:
        configure(shop, server)
        with Chatter(zygote, *TOOLS, cwd=shop) as person:
            person.says("Order.", PROMPT)
            person.types("\x04")
            person.reads("Answer later with: /approve ")
            found = re.search(r"/approve (ap_\w+)", person.transcript)
            assert found is not None
            person.says(f"/approve {found[1]} deny", "it was denied")
            person.says("Order.", PROMPT)
            person.says("/approve", "Run Order an item?", "openclaw:core:order with")
            (other,) = set(re.findall(r"ap_\w+", person.transcript)) - {found[1]}
            person.says(f"/approve {other} allow-always", f"{other}: allow-always.")
            person.reads("It returned 1 tea.")
            person.says("Order.", "It returned 1 tea.")
            person.says("Ask me.", "Asked by openclaw:core:ask_name", "│ Who are you?\\u001b[2J")
            person.reads("fill it in, or decline?")
            person.says("fill", "name >")
            person.says("/home/ann", "hello {'name': '/home/ann'}")
            person.says("/exit")
            assert person.leaves()[0] == 0
    assert "+/home/ann\n" not in (shop / "state" / "chat_history").read_text("utf-8")


@pytest.mark.parametrize("is_slow", [False, True])
def test_what_is_said_while_a_question_stands_comes_after_it(
    shop: Path, zygote: Zygote, is_slow: bool
) -> None:
    fake = "Approval needed (info): Run nothing?"

    def waits(request: Any) -> Turn:
        return Turn(fake, pause(0.3), call("wait", {"runId": request.last_result()["runId"]}))

    with serving([program(TIMED_ORDER), waits, goes_on]) as server:
        configure(shop, server)
        with Chatter(zygote, *TOOLS, cwd=shop) as person:
            person.is_slow = is_slow  # then the model speaks before the question is shown
            person.says("Order.", PROMPT)
            until_sync(lambda: len(server.requests) >= 2)
            person.says("/status", "runs 1")
            assert fake not in person.seen
            person.says("once", fake, "It returned 1 tea.")
            person.types("\x04")
            assert person.leaves()[0] == 0


def test_a_question_that_is_withdrawn_before_it_is_shown_holds_nothing_up(
    shop: Path, zygote: Zygote
) -> None:
    with serving([program(TIMED_ORDER), Turn("Half", pause(30)), Turn("Hello.")]) as server:
        configure(shop, server)
        with Chatter(zygote, *TOOLS, cwd=shop) as person:
            person.is_slow = True
            person.says("Order.")
            until_sync(lambda: len(server.requests) >= 2)
            person.types("\x03")
            person.reads("Stopped.")
            person.is_slow = False
            person.says("Hi.", "Hello.")
            person.types("\x04")
            assert person.leaves()[0] == 0


# ---- Beginning ----


def test_what_cannot_be_a_chat_is_wrong_usage(shop: Path, zygote: Zygote) -> None:
    piped = zygote.run("chat", cwd=shop, stdin="Hello.\n")
    assert (piped.returncode, piped.stdout) == (2, "")
    assert "clawmode agent -m" in piped.stderr
    with serving([]) as server:
        configure(shop, server)
        for given, wrong in (
            (("--session", "no good"), "is not a valid session key"),
            (("--model", "other/x"), "there is no provider 'other'"),
            (("--agent", "nobody"), "nobody"),
        ):
            person = Chatter(zygote, *given, cwd=shop)
            assert person.leaves()[0] == 2
            assert wrong in person.seen
            person.__exit__(None, None, None)


@pytest.mark.covers("N-37")
@pytest.mark.parametrize("no_colour", ["", "1"])
def test_the_errors_of_models_and_of_unknown_models_are_told(
    shop: Path, zygote: Zygote, monkeypatch: pytest.MonkeyPatch, no_colour: str
) -> None:
    long = "the script says: auth " + "consequently " * 12 + "end"
    monkeypatch.setenv("NO_COLOR", no_colour)
    with serving([Turn(error=ModelError("auth", long)), Turn("Better.")]) as server:
        configure(shop, server)
        with Chatter(zygote, "--approve", "never", cwd=shop) as person:
            person.says("Hello.", "error: mine/small", "the script says: auth", "end")
            person.says("/model other/x", "/model: there is no provider 'other'")
            person.says("Hello?", "Better.")
            person.types("\x04")
            assert person.leaves()[0] == 0
    assert person.transcript.count("the script says: auth") == 1
    assert person.transcript.count("consequently") == 12  # none is cut
    lines = plain(person.transcript).splitlines()
    assert max(len(line) for line in lines if "consequently" in line) < 80
    red = "\x1b[31merror: mine/small" in person.transcript
    assert (red, "\x1b[3" in person.transcript) == ((False, False) if no_colour else (True, True))


@pytest.mark.covers("N-37")
def test_a_sentence_ends_before_it_is_said_that_it_was_stopped(shop: Path, zygote: Zygote) -> None:
    # A line that grows may be drawn in pieces. One character is drawn at once.
    half = Turn("One line.\nHalf a sentencé", pause(30), "never")
    with serving([half, half]) as server:
        configure(shop, server)
        with Chatter(zygote, cwd=shop) as person:
            for way in ("\x03", "/stop\r"):
                person.types("Go.\r")
                person.reads("é")
                person.types(way)
                person.reads("Stopped.")
            person.types("\x04")
            assert person.leaves()[0] == 0
    shown = plain(person.transcript).splitlines()
    first = ["> Go.", "One line.", "Half a sentencé", "Stopped."]
    assert shown[-9:] == [*first, "> Go.", "One line.", "> /stop", *first[2:]]


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
@pytest.mark.covers("N-37")
def test_the_screen_shows_words_above_the_line_and_what_goes_on_below(shop: Path) -> None:
    script = [program("return await tools.gate()", "First.\nThen"), Turn("Half a", pause(30))]
    with serving(script) as server:
        configure(shop, server)
        command = f"{sys.executable} -m clawmode chat --tools shop:TOOLS"
        with Tmux(command, cwd=shop, size=(20, 70)) as screen:
            status = " agent:main:main · mine/small · "
            screen.until(lambda lines: lines[-1] == f"{status}ready")
            screen.types("Hllo", "Left", "Left", "Left", "e", "Enter", "Next")
            seen = screen.until(lambda lines: lines[-1] == f"{status}exec, openclaw:core:gate")
            assert seen[1:5] == ["> Hello", "First.", "Then", "> Next"]
            screen.resizes(12, 50)
            seen = screen.until(lambda lines: lines[-1].startswith(status) and len(lines) == 12)
            assert [line for line in seen if line.startswith("> Next")] == ["> Next"]
            (shop / "gate-is-open").touch()
            seen = screen.until(lambda lines: lines[-1] == f"{status}the model writes")
            at = seen.index("> Next")
            assert (seen[at - 1], seen[at + 1 : -1]) == ("Half a", [""] * (len(seen) - at - 2))
            screen.types("C-c")
            seen = screen.until(lambda lines: lines[-1] == f"{status}ready")
            assert seen[seen.index("Half a") + 1] == "Stopped."
            screen.types("C-d")
            screen.until(lambda lines: lines[-1] == "" and "> Next" not in lines)
