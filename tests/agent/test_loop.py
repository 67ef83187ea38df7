"""The loop over a scripted model: calls, errors, retries, fallbacks, repeats, aborts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.waiting import idle, until

from clawmode.agent import loop
from clawmode.agent.loop import Loop
from clawmode.agent.prompt import Ingredients, Part, Prompt
from clawmode.agent.requests import AgentRequest, ResolvedRequest
from clawmode.agent.run import AgentRun, IncomingMessage, Intake, Resources
from clawmode.agent.toolbox import ABORTED, MAX_RESULT_CHARS, DirectTools
from clawmode.config.agents import AgentEntry, Configuration
from clawmode.context import RunContext
from clawmode.messages import (
    AssistantMessage,
    Image,
    Message,
    Text,
    ToolMessage,
    UserMessage,
)
from clawmode.models.base import ModelError, ModelLimits
from clawmode.sandbox.pool import Pool
from clawmode.sessions.store import Session
from clawmode.testing import ScriptedModel, call, pause, think
from clawmode.testing import Turn as Says
from clawmode.tools.executor import Executor
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool, ToolContext, ToolResult
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio

ANY: JsonObject = {"type": "object"}
NUMBER: JsonObject = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
}


@dataclass
class Seen:
    """A sink that keeps everything."""

    events: list[tuple[str, Any]] = field(default_factory=list)
    recorded: list[Message] = field(default_factory=list)
    traced: list[tuple[str, Any]] = field(default_factory=list)
    secured: list[int] = field(default_factory=list)
    at_answer: Callable[[], object] = lambda: None
    """Called at the end of each answer."""

    def emit(self, stream: str, data: JsonObject) -> None:
        self.events.append((stream, data))
        if "message" in data:
            self.at_answer()

    def record(self, message: Message) -> None:
        self.recorded.append(message)

    async def secure(self) -> None:
        self.secured.append(len(self.recorded))

    def trace(self, kind: str, data: JsonObject) -> None:
        self.traced.append((kind, data))

    def results(self) -> list[ToolMessage]:
        return [it for it in self.recorded if isinstance(it, ToolMessage)]

    def answer(self) -> AssistantMessage:
        return [it for it in self.recorded if isinstance(it, AssistantMessage)][-1]

    def text(self) -> str:
        said = ""
        for stream, data in self.events:
            if stream == "assistant":
                said = "" if data.get("reset") else said + data.get("delta", "")
        return said


async def double(given: JsonObject, context: ToolContext) -> int:
    number = given["n"]
    assert isinstance(number, int)
    return 2 * number


DOUBLE = Tool("double", "Double a number.", NUMBER, double)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "RETRY_SECONDS", 0.001)


def turn_of(
    *models: ScriptedModel, tools: tuple[Tool, ...] = (DOUBLE,), **options: Any
) -> tuple[Loop, Seen]:
    seen = Seen()
    session = Session(
        key="agent:main:main",
        id="s1",
        agent_id="main",
        transcript=Path("none"),
        created_at=0.0,
        updated_at=0.0,
    )
    store: Any = None  # no loop parks a cell
    run = AgentRun("r1", AgentRequest(), session, Resources(store=store, pool=Pool()))
    run.begin(
        ResolvedRequest(
            agent=AgentEntry(id="main", **options),
            configuration=Configuration(),
            models=models,
            policy=Policy(),
            workspace=Path(),
            ingredients=Ingredients(workspace=Path()),
        )
    )
    turn = Loop(
        run=run,
        toolbox=DirectTools(tools, Executor(Policy()), RunContext()),
        prompt=Prompt((Part("base", "You help."),)),
        messages=[UserMessage.of("go")],
        sink=seen,
    )
    return turn, seen


async def run(turn: Loop) -> AgentRun:
    with anyio.fail_after(15):
        await turn.converse()
    return turn.run


async def test_a_reply_without_calls_ends_it() -> None:
    turn, seen = turn_of(ScriptedModel([Says(think("hm"), "Hello ", "there.")]))
    outcome = await run(turn)
    assert outcome.status == "ok"
    assert seen.answer().text == seen.text() == "Hello there."
    assert ("thinking", {"delta": "hm"}) in seen.events
    assert turn.run.turns == 1
    assert turn.run.usage.output > 0


async def test_calls_are_made_side_by_side_and_answered_in_their_order() -> None:
    both = anyio.Event()
    inside: list[int] = []

    async def meet(given: JsonObject, context: ToolContext) -> int:
        number = given["n"]
        assert isinstance(number, int)
        inside.append(number)
        if len(inside) == 2:
            both.set()
        await both.wait()
        if number == 1:
            await idle()  # the other one has ended
        return number

    script = [Says(call("meet", {"n": 1}), call("meet", {"n": 2})), Says("done")]
    model = ScriptedModel(script)
    turn, seen = turn_of(model, tools=(Tool("meet", "Meet.", NUMBER, meet),))
    assert (await run(turn)).status == "ok"
    replayed = [it.text for it in model.requests[1].messages if isinstance(it, ToolMessage)]
    assert replayed == ["1", "2"]
    assert [it.text for it in seen.results()] == ["2", "1"]  # as they came
    assert seen.secured == [1]  # what they answer is safe before they are made
    phases = [data["phase"] for stream, data in seen.events if stream == "tool"]
    assert phases == ["start", "start", "end", "end"]


async def test_a_sequential_tool_has_its_neighbours_made_one_after_the_other() -> None:
    busy: list[str] = []
    most = 0

    def slow(name: str) -> Callable[[JsonObject, ToolContext], Any]:
        async def execute(given: JsonObject, context: ToolContext) -> str:
            nonlocal most
            busy.append(name)
            most = max(most, len(busy))
            await idle()
            busy.remove(name)
            return name

        return execute

    tools = (Tool("a", "A.", ANY, slow("a"), sequential=True), Tool("b", "B.", ANY, slow("b")))
    turn, _ = turn_of(ScriptedModel([Says(call("b"), call("a"), call("b")), "done"]), tools=tools)
    assert (await run(turn)).status == "ok"
    assert most == 1


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (call("doubel", {"n": 1}), "There is no tool 'doubel': did you mean double?"),
        (call("zzz", {}), "There is no tool 'zzz': there are double"),
        (call("double", '{"n": 1'), "The arguments of double are not a JSON object: '{\"n\": 1'"),
        (call("double", {"n": "x"}), "openclaw:core:double: "),
    ],
)
async def test_a_call_that_cannot_be_made_is_answered_with_the_reason(
    asked: Any, answer: str
) -> None:
    turn, seen = turn_of(ScriptedModel([Says(asked), "sorry"]))
    outcome = await run(turn)
    (result,) = seen.results()
    assert (outcome.status, result.is_error) == ("ok", True)
    assert result.text.startswith(answer)


async def test_what_a_tool_answers_is_cut_for_the_model_and_more_for_watchers() -> None:
    async def big(given: JsonObject, context: ToolContext) -> ToolResult:
        return ToolResult(text="x" * (MAX_RESULT_CHARS + 7))

    turn, seen = turn_of(
        ScriptedModel([Says(call("big")), "done"]), tools=(Tool("big", "Big.", ANY, big),)
    )
    await run(turn)
    (result,) = seen.results()
    assert result.text.endswith("[7 more characters were left out]")
    (end,) = [data for stream, data in seen.events if data.get("phase") == "end"]
    assert len(end["result"][0]["text"]) < 9_000


async def test_pictures_of_a_server_reach_the_model_and_not_the_watchers() -> None:
    async def look(given: JsonObject, context: ToolContext) -> ToolResult:
        image: JsonObject = {"type": "image", "data": "QUJD" * 100, "mimeType": "image/png"}
        return ToolResult(details={"content": [{"type": "text", "text": "see"}, image]})

    tool = Tool("look", "Look.", ANY, look, source="mcp", owner="eyes")
    turn, seen = turn_of(ScriptedModel([Says(call("eyes__look")), "done"]), tools=(tool,))
    await run(turn)
    (result,) = seen.results()
    assert result.content == (Text("see"), Image("QUJD" * 100, "image/png"))
    assert "QUJDQUJD" not in repr(seen.events)
    assert "image/png" in repr(seen.events)


# ---- Models that fail ----


@pytest.mark.parametrize("kind", ["rate_limit", "overloaded", "server", "connection", "garbage"])
async def test_a_request_that_may_go_well_is_made_again(kind: Any) -> None:
    model = ScriptedModel([Says("half of", error=kind), Says(error=kind), Says("all of it")])
    turn, seen = turn_of(model)
    outcome = await run(turn)
    assert outcome.status == "ok"
    assert seen.text() == "all of it"  # nothing twice
    assert len(model.requests) == 3
    assert [data["error"] for name, data in seen.traced if name == "model.failed"] == [kind] * 2


@pytest.mark.parametrize(
    ("kind", "tries"),
    [("server", 3), ("auth", 1), ("quota", 1), ("invalid_request", 1), ("context_overflow", 1)],
)
async def test_an_error_that_stays_is_an_outcome(kind: Any, tries: int) -> None:
    model = ScriptedModel(lambda request: Says(error=kind))
    turn, seen = turn_of(model)
    outcome = await run(turn)
    assert (outcome.status, outcome.problem, seen.recorded) == ("error", kind, [])
    assert kind in (outcome.error or "")
    assert len(model.requests) == tries
    assert seen.recorded == []


async def test_the_next_model_takes_over() -> None:
    broken = ScriptedModel(lambda request: Says(error="auth"), name="broken")
    works = ScriptedModel([Says(call("double", {"n": 2})), "4"], name="works")
    turn, seen = turn_of(broken, works)
    outcome = await run(turn)
    assert outcome.status == "ok"
    assert (seen.answer().text, seen.answer().model) == ("4", "works")
    steps = [data for kind, data in seen.traced if kind == "model.fallback_step"]
    assert steps[0] == {"from": "scripted/broken", "to": "scripted/works", "error": "auth"}


async def test_no_other_model_is_tried_if_the_payload_was_refused() -> None:
    guarded = ScriptedModel(lambda request: Says(error="payload_guard"))
    other = ScriptedModel(["never"])
    turn, _ = turn_of(guarded, other)
    assert (await run(turn)).problem == "payload_guard"
    assert other.requests == []


async def test_nobody_waits_as_long_as_a_provider_may_ask() -> None:
    busy = ModelError("rate_limit", "slow down", retry_after=3600)
    model = ScriptedModel(lambda request: Says(error=busy))
    turn, _ = turn_of(model, ScriptedModel(["other"]))
    assert (await run(turn)).status == "ok"
    assert len(model.requests) == 1


@pytest.mark.covers("N-21")
@pytest.mark.parametrize(("sent", "requests"), [(True, 4), (False, 1)])
async def test_every_try_that_was_sent_counts_as_a_request(sent: bool, requests: int) -> None:
    down = Says(error=ModelError("server", "no key", sent=sent))
    turn, _ = turn_of(ScriptedModel([Says(call("double", {"n": 2})), down, down, down]))
    assert (await run(turn)).status == "error"
    assert (turn.run.turns, turn.run.requests) == (2, requests)


async def test_a_model_that_falls_silent_is_given_up() -> None:
    limits = ModelLimits(timeout_seconds=0.1)
    model = ScriptedModel([Says("begun", pause(30)), Says("again")], limits=limits)
    turn, seen = turn_of(model)
    assert (await run(turn)).status == "ok"
    assert seen.text() == "again"
    assert seen.traced[0][1]["error"] == "timeout"


async def test_slow_is_not_silent() -> None:
    limits = ModelLimits(timeout_seconds=0.2)
    turn, _ = turn_of(ScriptedModel([Says("word " * 40, delay=0.02)], limits=limits))
    assert (await run(turn)).status == "ok"


# ---- Models that do not stop ----


async def test_a_model_that_repeats_itself_is_warned_and_then_stopped() -> None:
    model = ScriptedModel(lambda request: Says(call("double", {"n": 1})))
    turn, seen = turn_of(model)
    outcome = await run(turn)
    assert (outcome.status, outcome.problem) == ("error", "repeats")
    assert "double 6 times" in (outcome.error or "")
    told = ["same call as before" in it.text for it in seen.results()]
    assert told == [False, False, True, True, True, True]


async def test_other_calls_between_make_it_no_repetition() -> None:
    def numbers() -> Iterator[int]:
        for _ in range(8):
            yield from (1, 2)

    each = numbers()

    def react(request: Any) -> Says:
        number = next(each, None)
        return Says("done") if number is None else Says(call("double", {"n": number}))

    turn, _ = turn_of(ScriptedModel(react))
    assert (await run(turn)).status == "ok"


async def test_a_run_has_so_many_turns() -> None:
    model = ScriptedModel(lambda request: Says(call("double", {"n": request.number})))
    turn, _ = turn_of(model, max_turns=9)
    outcome = await run(turn)
    assert (outcome.status, outcome.problem, len(model.requests)) == ("error", "too_many_turns", 9)


# ---- Aborts ----


async def test_what_was_said_before_an_abort_is_kept() -> None:
    turn, seen = turn_of(ScriptedModel([Says("as far as", pause(30), "never")]))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(turn.converse)
        await until(lambda: seen.text() == "as far as")
        tasks.cancel_scope.cancel()
    (cut,) = seen.recorded
    assert isinstance(cut, AssistantMessage)
    assert (cut.text, cut.stop) == ("as far as", "aborted")


async def test_calls_that_an_abort_cuts_off_are_answered() -> None:
    stopped: list[str] = []
    begun = anyio.Event()

    async def hang(given: JsonObject, context: ToolContext) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(context.call_id)

    script = [Says(call("hang", id="a"), call("double", {"n": 1}, id="b"))]
    turn, seen = turn_of(ScriptedModel(script), tools=(DOUBLE, Tool("hang", "Hang.", ANY, hang)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(turn.converse)
        await begun.wait()
        await idle()  # the other call has ended
        tasks.cancel_scope.cancel()
    assert stopped == ["a"]
    results = {it.call_id: it for it in seen.results()}
    assert (results["a"].text, results["b"].text) == (ABORTED, "2")
    assert [it.call_id for it in turn.messages if isinstance(it, ToolMessage)] == ["a", "b"]


class Interjecting:
    """A tool during which somebody says something."""

    def __init__(self, intake: Intake, *, sequential: bool = False) -> None:
        self.intake = intake
        self.tool = Tool("slow", "Slow.", ANY, self.call, sequential=sequential)

    async def call(self, given: JsonObject, context: ToolContext) -> str:
        self.intake.add(IncomingMessage("s1", UserMessage.of("also this")))
        return "done"


def steered(model: ScriptedModel, *, sequential: bool = False) -> tuple[Loop, Seen]:
    intake = Intake()
    intake.open()
    slow = Interjecting(intake, sequential=sequential).tool
    turn, seen = turn_of(model, tools=(DOUBLE, slow))
    turn.run.intake = intake
    return turn, seen


def interject(turn: Loop, seen: Seen, *words: str) -> None:
    """Says something at the end of the first answer."""
    left = [IncomingMessage(text, UserMessage.of(text)) for text in words]
    turn.run.intake.open()
    seen.at_answer = lambda: [turn.run.intake.add(left.pop()) for _ in left[:1]]


@pytest.mark.covers("AL-16")
async def test_what_people_say_meanwhile_is_heard_before_the_next_request() -> None:
    model = ScriptedModel([Says(call("slow", id="a"), call("double", {"n": 1}, id="b")), "done"])
    turn, seen = steered(model)
    await run(turn)
    assert model.requests[1].messages[-1] in seen.recorded
    assert model.requests[1].messages[-1].content == (Text("also this"),)
    # They were launched together: both have ended.
    assert [it.text for it in seen.results()] == ["done", "2"]


async def test_calls_that_have_not_begun_are_skipped_for_what_people_say() -> None:
    calls = [call("slow", id="a"), call("double", {"n": 1}, id="b"), call("slow", id="c")]
    model = ScriptedModel([Says(*calls), "done"])
    turn, _ = steered(model, sequential=True)
    await run(turn)
    results = [it for it in turn.messages if isinstance(it, ToolMessage)]
    assert [(it.call_id, it.text) for it in results] == [
        ("a", "done"),
        ("b", "Skipped to process an incoming message."),
        ("c", "Skipped to process an incoming message."),
    ]
    assert model.requests[1].messages[-1].content == (Text("also this"),)


async def test_a_batch_is_launched_whole_or_not_at_all() -> None:
    model = ScriptedModel([Says(call("double", {"n": 1}), call("double", {"n": 2})), "done"])
    turn, seen = turn_of(model)
    interject(turn, seen, "stop that")
    await run(turn)
    assert {it.text for it in seen.results()} == {"Skipped to process an incoming message."}
    assert not [data for stream, data in seen.events if stream == "tool"]


async def test_who_speaks_while_the_model_ends_is_answered_in_the_same_run() -> None:
    model = ScriptedModel(["first", "second"])
    turn, seen = turn_of(model)
    interject(turn, seen, "wait")
    outcome = await run(turn)
    assert (outcome.status, seen.answer().text) == ("ok", "second")
    assert not turn.run.intake.is_open
    assert not turn.run.intake.add(IncomingMessage("s2", UserMessage.of("too late")))


def test_what_nobody_has_read_can_be_taken_back() -> None:
    intake = Intake()
    assert not intake.add(IncomingMessage("early", UserMessage.of("too early")))
    intake.open()
    assert intake.add(IncomingMessage("a", UserMessage.of("one")))
    assert intake.add(IncomingMessage("b", UserMessage.of("two")))
    assert intake.withdraw("a")
    assert not intake.withdraw("a")
    assert not intake.finish()
    assert [it.content for it in intake.read()] == [(Text("two"),)]
    assert not intake.withdraw("b")
    assert intake.add(IncomingMessage("c", UserMessage.of("three")))
    assert [said.id for said in intake.close()] == ["c"]
    assert not intake.add(IncomingMessage("d", UserMessage.of("four")))
