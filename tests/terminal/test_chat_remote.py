"""`clawmode chat` as a client: a real terminal, a real gateway, a model that plays a script."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.cli_driver import SECONDS, trusted
from tests.support.command_driver import serving
from tests.support.forking import Zygote
from tests.support.gateway_driver import Started
from tests.support.terminal_driver import Chatter
from tests.support.waiting import GATE_TOOL, idle, until, until_sync

from clawmode.agent.events import AgentEvent
from clawmode.agent.requests import AgentRequest
from clawmode.app.setup import Options
from clawmode.rpc import presence
from clawmode.rpc.client import GatewayClient
from clawmode.terminal.chat_prompt import TerminalChannel
from clawmode.terminal.chat_remote import RemotePartner
from clawmode.testing import ScriptServer, Turn, call, pause
from clawmode.tools.approvals import Approvals
from clawmode.types import JsonObject

# The first test waits until the zygote and the gateway have imported everything.
pytestmark = pytest.mark.timeout(90)

PROMPT = "once, always or deny?"
SHOP = f"{GATE_TOOL}\nTOOLS = [gate]\n"
GATE = Turn("I look.", call("exec", {"code": "return await tools.gate()"}))
ASKS = Turn(call("exec", {"code": "return (await tools.exec({ command: 'echo hi' })).output"}))


class Office:
    """A gateway in a process of its own, and a model that plays what a test wants.

    Attributes:
        script: What it says next.
        requests: What it was asked since the script was written.
        gateway: The process.
    """

    gateway: Started

    def __init__(self, folder: Path, server: ScriptServer, script: list[Any]) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.script = script
        self._server = server
        self._before = 0

    def play(self, *script: Any) -> None:
        self.script[:] = script
        self._before = len(self._server.requests)
        (self.folder / "gate-is-open").unlink(missing_ok=True)

    @property
    def requests(self) -> list[Any]:
        return self._server.requests[self._before :]

    def said(self, number: int) -> list[str]:
        """What people have said, as a request has it."""
        messages = self.requests[number].body["messages"]
        parts = [part for it in messages if it["role"] == "user" for part in it["content"]]
        return [part["text"] for part in parts if part["type"] == "text"]

    def open_gate(self) -> None:
        (self.folder / "gate-is-open").touch()

    def start(self) -> None:
        self.gateway = Started(self.folder, self.state, "--tools", "shop:TOOLS")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """What the gateway answers to somebody else."""

        async def call_it() -> dict[str, Any]:
            async with GatewayClient.local(self.state) as client:
                return await client.call(method, params)

        return anyio.run(call_it)

    def warm_up(self) -> None:
        """To import a provider's library takes longer than people wait in a test."""

        async def turn() -> None:
            async with GatewayClient.local(self.state) as client:
                await client.agent("Hello.", session_key="warm")

        self.play(Turn("Warm."))
        anyio.run(turn)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    folder = tmp_path_factory.mktemp("office")
    script: list[Any] = []

    def next_turn(request: Any) -> Turn:
        turn = script.pop(0)
        return turn(request) if callable(turn) else turn

    with serving(next_turn) as server, pytest.MonkeyPatch.context() as patch:
        provider = {"baseUrl": server.url, "api": "anthropic-messages", "apiKey": "none"}
        whole: dict[str, Any] = {
            "agents": {"defaults": {"model": "mine/small"}},
            "models": {"providers": {"mine": provider}},
            "tools": {"codeMode": True, "exec": {"ask": "always"}},
        }
        (folder / "shop.py").write_text(SHOP, "utf-8")
        patch.setenv("CLAWMODE_STATE", str(folder / "state"))
        trusted(folder, json.dumps(whole))
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        patch.setenv("NO_PROXY", "127.0.0.1")
        for name in ("CLAWMODE_CONFIG", "NO_COLOR", "COLUMNS", "LINES"):
            patch.delenv(name, raising=False)
        made = Office(folder, server, script)
        made.start()
        try:
            made.warm_up()
            yield made
        finally:
            made.gateway.__exit__()


class Patient(Chatter):
    """Somebody who waits for a gateway that is started again."""

    def __enter__(self) -> "Patient":
        super().__enter__()
        return self

    def waits(self) -> None:
        self._limit = time.monotonic() + SECONDS


def goes_on(request: Any) -> Turn:
    """Waits for a program as long as it waits, and says what it returned."""
    found = request.last_result()
    if found["status"] == "waiting":
        return Turn(call("wait", {"runId": found["runId"]}))
    return Turn(f"It returned {json.dumps(found.get('value') or found.get('error'))}.")


def test_a_conversation_in_the_gateway_looks_as_if_it_ran_here(
    office: Office, zygote: Zygote
) -> None:
    office.play(
        Turn("First line.\nSecond, ", pause(0.2), "then the third."),
        GATE,
        Turn("It is open."),
        Turn(error="auth"),
        Turn("New."),
    )
    office.open_gate()
    with Chatter(zygote, "--session", "notes", cwd=office.folder) as person:
        person.says("Hello!", "First line.", "Second, ", "then the third.")
        person.says("Is it open?", "I look.", "the model: 2 calls", "└─ ✓ exec ")
        person.reads("└─ ✓ openclaw:core:gate")
        person.reads("It is open.")
        person.says("/status", "session agent:main:notes", "model mine/small", "tokens ")
        person.says("/model mine/large", "now uses mine/large", "large")
        person.says("/stattus", "did you mean /status?")
        person.says("And now?", "error: mine/large", "the script says: auth")
        person.says("/new Again?", "Started a new conversation", "New.")
        person.says("/exit")
        assert person.leaves()[0] == 0
    session = office.ask("sessions.get", sessionKey="notes")["session"]
    assert [it.body["model"] for it in office.requests] == ["small"] * 3 + ["large"] * 2
    assert office.said(3) == ["Hello!", "Is it open?", "And now?"]
    for words in ("First line.", "then the third.", "I look.", "It is open.", "says: auth"):
        assert person.transcript.count(words) == 1
    assert session["model"] == "mine/large"


def test_a_question_is_answered_in_the_place_of_the_prompt(office: Office, zygote: Zygote) -> None:
    order = (ASKS, goes_on, goes_on)
    office.play(*order, *order, *order)
    given = ("--session", "asked", "--model", "mine/tiny")
    with Chatter(zygote, *given, cwd=office.folder) as person:
        person.says("Run it.", "Approval needed", '"command": "echo hi"', PROMPT)
        person.says("once", 'It returned "hi')
        person.says("Run it.", PROMPT)
        person.types("\x04")
        person.reads("Answer later with: /approve ")
        found = re.findall(r"/approve (ap_\w+)", person.transcript)[-1]
        person.says(f"/approve {found} deny", "it was denied")
        person.says("Run it.", PROMPT)
        (question,) = office.ask("exec.approval.list")["approvals"]
        office.ask("exec.approval.resolve", id=question["id"], decision="allow-once")
        person.reads("The question is no longer open.")
        person.reads('It returned "hi')
        person.types("\x04")
        assert person.leaves()[0] == 0
    assert {it.body["model"] for it in office.requests} == {"tiny"}


def test_lines_steer_ctrl_c_stops_and_who_leaves_can_come_back(
    office: Office, zygote: Zygote
) -> None:
    office.play(GATE, Turn("Both heard."), GATE, GATE, Turn("Done."))
    given = ("--session", "left")
    with Chatter(zygote, *given, cwd=office.folder) as person:
        person.says("Open it.", "openclaw:core:gate")
        person.says("And quickly!", "(sent to the active run)")
        office.open_gate()
        person.reads("Both heard.")
        (office.folder / "gate-is-open").unlink()
        person.says("/queue followup debounce:0", "queue followup")
        person.says("Again.", "openclaw:core:gate")
        person.says("Later.", "(queued until the active run ends)", "1 message waits")
        person.types("\x03")
        person.reads("- openclaw:core:gate")
        person.reads("Stopped. 1 waiting message was dropped.")
        person.reads("ready")
        person.says("Once more.", "I look.", "openclaw:core:gate")
        person.types("\x04")
        person.reads("The run continues in the gateway")
        assert person.leaves()[0] == 0
    with Chatter(zygote, *given, cwd=office.folder) as person:
        person.reads("I look.")
        office.open_gate()
        person.reads("Done.")
        person.reads("ready")
        person.types("\x03\x03")  # at once: the second has to come soon after the first
        person.reads("(Ctrl-C again ends the chat)")
        assert person.leaves()[0] == 0
    assert office.said(1) == ["Open it.", "And quickly!"]
    assert [person.transcript.count(it) for it in ("I look.", "Done.", "Both")] == [1, 1, 0]


def test_local_runs_beside_a_gateway_and_options_of_a_run_need_it(
    office: Office, zygote: Zygote
) -> None:
    office.play(Turn("Here."))
    for options, wrong in (
        (("--tools", "shop:TOOLS"), "--local"),
        (("--agent", "nobody"), "nobody"),
        (("--session", "no good"), "is not a valid session key"),
        (("--model", "other/x"), "there is no provider 'other'"),
    ):
        person = Chatter(zygote, *options, cwd=office.folder)
        assert person.leaves()[0] == 2
        assert wrong in person.seen
        person.__exit__(None, None, None)
    given = ("--local", "--session", "mine", "--tools", "shop:TOOLS")
    with Chatter(zygote, *given, cwd=office.folder) as person:
        person.says("Hello!", "Here.")
        person.types("\x04")
        assert person.leaves()[0] == 0
    assert "… loading the model's library" in person.seen  # by this process


def test_a_gateway_that_is_started_again_loses_no_word(office: Office, zygote: Zygote) -> None:
    cut = Turn("It was cut off.\nBut all is well.")
    office.play(Turn("Fine."), GATE, cut, Turn("Taken."))
    with Patient(zygote, "--session", "again", cwd=office.folder) as person:
        person.says("Hello!", "Fine.")
        person.says("Open it.", "I look.", "openclaw:core:gate")
        office.gateway.kill()
        person.reads("is lost; reconnecting")
        office.open_gate()
        office.gateway.__exit__()
        office.start()
        person.types("Still there?\r")
        until_sync(lambda: len(office.requests) == 4)
        person.waits()
        person.reads("But all is well.")
        person.reads("Taken.")
        person.types("\x04")
        assert person.leaves()[0] == 0
    words = ("Fine.", "I look.", "It was cut off.", "But all is well.", "Taken.")
    assert [person.transcript.count(it) for it in words] == [1] * 5
    assert office.said(3)[-1] == "Still there?"


def test_an_answer_that_is_there_before_the_chat_listens_is_shown(office: Office) -> None:
    """People type ahead: the run of the first line may end before the chat has caught up."""
    office.play(Turn("Old."), Turn("Fine."))
    office.ask("agent", sessionKey="ahead", message="Earlier.", idempotencyKey="ahead")
    until_sync(lambda: len(office.requests) == 1)
    running = presence.find(office.state)
    assert running is not None
    partner, shown = RemotePartner(Options(), running), list[Any]()
    channel = TerminalChannel(shown.append, shown.append)
    partner.attach(lambda event: shown.append(event.data), channel, lambda: None)

    async def type_ahead() -> None:
        async with partner.open(Approvals()):
            await partner.start(AgentRequest(session_key="ahead"))
            await partner.send("Hello!")
            while partner._sent and not await partner._result(partner._sent[0], 1000):
                pass
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partner.serve)
                await until(lambda: {"message": "Fine."} in shown)
                tasks.cancel_scope.cancel()

    anyio.run(type_ahead)
    assert {"message": "Old."} not in shown


def test_a_new_conversation_is_announced_before_its_first_answer(office: Office) -> None:
    """The gateway's events may arrive before its response, which contains the announcement."""
    office.play(Turn("New."))
    running = presence.find(office.state)
    assert running is not None
    partner, shown = RemotePartner(Options(), running), list[Any]()
    channel, caught_up = TerminalChannel(shown.append, shown.append), anyio.Event()
    partner.attach(lambda event: shown.append(event.data), channel, lambda: caught_up.set())

    async def begin() -> None:
        async with partner.open(Approvals()), anyio.create_task_group() as tasks:
            await partner.start(AgentRequest(session_key="begun"))
            tasks.start_soon(partner.serve)
            await caught_up.wait()
            events, call_gateway = partner._client.events(), partner._client.call
            histories: list[JsonObject] = []

            async def call_slowly(method: str, *params: Any, **options: Any) -> Any:
                answer = await call_gateway(method, *params, **options)
                if method == "chat.send":
                    async for event in events:
                        run_event = AgentEvent.read(event.payload)
                        if run_event and run_event.data.get("phase") == "end":
                            break
                    given = {"sessionKey": partner._key}
                    histories.append(await call_gateway("chat.history", given))
                    await idle()
                return answer

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(partner._client, "call", call_slowly)
                shown.append((await partner.send("/new Again?")).text)
            (history,) = histories
            assert "New." in json.dumps(history)
            await until(lambda: {"message": "New."} in shown)
            tasks.cancel_scope.cancel()

    anyio.run(begin)
    assert shown[0] == "Started a new conversation."
