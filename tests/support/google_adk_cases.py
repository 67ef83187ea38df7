"""The adapter for Google ADK, with the real package and a model that plays a script."""

import asyncio
import datetime
import importlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import anyio
import pytest
from google.adk.agents.llm_agent import Agent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.models.registry import LLMRegistry
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.adk.telemetry import tracing
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel, Field
from tests.support.adapters import FAN_OUT, SEND, SEND_BOTH, SEND_TWICE, run_step

from clawmode import Pool
from clawmode.exceptions import ConfigurationError
from clawmode.integrations.google_adk import ClawMode

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[2] / "docs" / "integrations" / "google-adk.md"

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154"
    "789c63606060000000040001f61738550000000049454e44ae426082"
)

Turn = Sequence[types.FunctionCall] | str | Callable[[Any], "Turn"]


def execs(*sources: str) -> list[types.FunctionCall]:
    return [types.FunctionCall(name="exec", args={"code": each}) for each in sources]


def wait_again(result: Any) -> "Turn":
    """Waits for the program that the last result was about."""
    program = str(result["result"]).split('"runId":"')[1].split('"')[0]
    return [types.FunctionCall(name="wait", args={"runId": program})]


class Script(BaseLlm):
    """A model that plays turns, and notes what it was offered."""

    turns: list[Any] = Field(default_factory=list[Any])
    offered: list[dict[str, str]] = Field(default_factory=list[dict[str, str]])

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        declared = [
            each
            for tool in llm_request.config.tools or []
            if isinstance(tool, types.Tool)
            for each in tool.function_declarations or []
        ]
        self.offered.append({str(each.name): str(each.description) for each in declared})
        turn = self.turns.pop(0)
        if callable(turn):
            last = (llm_request.contents[-1].parts or [])[-1].function_response
            assert last is not None
            turn = turn(last.response)
        parts = (
            [types.Part(text=turn)]
            if isinstance(turn, str)
            else [types.Part(function_call=call) for call in turn]
        )
        yield LlmResponse(content=types.Content(role="model", parts=parts))


@dataclass
class Desk:
    """An agent with tools, and what its tools have done."""

    runner: InMemoryRunner
    script: Script
    sent: list[str] = field(default_factory=list[str])

    async def run(self, message: types.Content, session: str, *turns: Turn) -> list[Event]:
        self.script.turns = list(turns)
        service = self.runner.session_service
        where = {"app_name": "mail", "user_id": "ann", "session_id": session}
        if await service.get_session(**where) is None:
            await service.create_session(**where)
        run = self.runner.run_async(user_id="ann", session_id=session, new_message=message)
        return [event async for event in run]

    async def ask(self, *turns: Turn, session: str = "s") -> list[Event]:
        return await self.run(types.UserContent("Do it."), session, *turns)

    async def answer(
        self, asked: list[types.FunctionCall], *turns: Turn, **response: Any
    ) -> list[Event]:
        parts = [
            types.Part(
                function_response=types.FunctionResponse(
                    id=call.id, name=call.name, response={"confirmed": True, **response}
                )
            )
            for call in asked
        ]
        return await self.run(types.Content(role="user", parts=parts), "s", *turns)


def asked_in(events: list[Event]) -> list[types.FunctionCall]:
    calls = [call for event in events for call in event.get_function_calls()]
    return [call for call in calls if call.name == "adk_request_confirmation"]


def questions(call: types.FunctionCall) -> list[dict[str, Any]]:
    assert call.args is not None
    return call.args["toolConfirmation"]["payload"]["questions"]


def results(events: list[Event], name: str = "exec") -> list[str]:
    """Returns the results of calls that are not placeholders of questions."""
    return [
        str(next(iter((each.response or {}).values())))
        for event in events
        if not event.actions.requested_tool_confirmations
        for each in event.get_function_responses()
        if each.name == name
    ]


def value(text: str) -> str:
    return f'{{"status":"completed","value":{text}}}'


@asynccontextmanager
async def opened(
    pool: Pool,
    *tools: Any,
    beside: Sequence[Any] = (),
    plugins: Sequence[BasePlugin] = (),
    agent: dict[str, Any] | None = None,
    **given: Any,
) -> AsyncIterator[Desk]:
    sent: list[str] = []

    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async def send(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return f"sent to {to}"

    wrapped = [add, FunctionTool(send, require_confirmation=True), *tools]
    script = Script(model="script", offered=[])
    writer = Agent(
        name="writer",
        model=script,
        tools=[ClawMode(wrapped, pool=pool, **given), *beside],
        **(agent or {}),
    )
    runner = InMemoryRunner(app=App(name="mail", root_agent=writer, plugins=list(plugins)))
    try:
        yield Desk(runner, script, sent)
    finally:
        await runner.close()


@pytest.mark.covers("FW-50")
async def test_programs_call_the_tools_of_the_toolset(pool: Pool) -> None:
    async with opened(pool) as desk:
        events = await desk.ask(execs(FAN_OUT), "done")
        assert results(events) == [value("[1,2,3,4,5,6,7,8,9,10,11,12]")]
        assert list(desk.script.offered[0]) == ["exec", "wait"]
        assert "add" in desk.script.offered[0]["exec"]


@pytest.mark.covers("FW-1", "FW-50")
async def test_a_confirmation_is_answered_after_the_process_was_killed(tmp_path: Path) -> None:
    shown = await run_step("google_adk_program", tmp_path, "ask", kill=True)
    assert "Ann" in shown
    assert (tmp_path / "effects").read_text() == "before\n"
    done = await run_step("google_adk_program", tmp_path, "answer")
    assert done.strip() == value('"sent to Ann"')
    assert (tmp_path / "effects").read_text() == "before\nsent to Ann\nafter\n"


@pytest.mark.covers("FW-2", "FW-50")
async def test_a_nested_confirmation_pauses_the_run_and_its_answer_continues_it(
    pool: Pool,
) -> None:
    async with opened(pool) as desk:
        asked = asked_in(await desk.ask(execs(SEND)))
        (question,) = questions(asked[0])
        assert (question["tool"], question["input"], desk.sent) == ("send", {"to": "Ann"}, [])
        done = await desk.answer(asked, "done")
        assert (results(done), desk.sent) == ([value('"sent to Ann"')], ["Ann"])
        assert await desk.answer(asked) == []  # the same answer once more
        assert desk.sent == ["Ann"]


@pytest.mark.covers("FW-2", "FW-50")
async def test_a_denial_reaches_the_program_with_its_reason(pool: Pool) -> None:
    async with opened(pool) as desk:
        asked = asked_in(await desk.ask(execs(SEND)))
        done = await desk.answer(asked, "done", confirmed=False, payload="Ann is away")
        assert "Ann is away" in results(done)[0]
        caught = f"try {{ {SEND} }} catch {{ return 'later' }}"
        asked = asked_in(await desk.ask(execs(caught)))
        done = await desk.answer(asked, "done", confirmed=False)
        assert (results(done), desk.sent) == ([value('"later"')], [])


@pytest.mark.covers("FW-2", "FW-50")
async def test_calls_are_decided_one_by_one_and_the_rest_is_asked_again(pool: Pool) -> None:
    async with opened(pool) as desk:
        asked = asked_in(await desk.ask(execs(SEND_BOTH)))
        ids = {each["input"]["to"]: each["id"] for each in questions(asked[0])}
        answers = {"answers": {ids["Ann"]: "Ann is away"}}
        second = await desk.answer(asked, wait_again, payload=answers)
        (again,) = asked_in(second)
        assert ([each["input"] for each in questions(again)], desk.sent) == ([{"to": "Bob"}], [])
        done = await desk.answer([again], "done")
        assert "Ann is away" in results(done, "wait")[0]
        assert desk.sent == ["Bob"]


@pytest.mark.covers("FW-2")
async def test_two_pauses_of_one_program_are_answered_one_after_the_other(pool: Pool) -> None:
    async with opened(pool) as desk:
        asked = asked_in(await desk.ask(execs(SEND_TWICE)))
        second = await desk.answer(asked, wait_again)
        assert (len(asked_in(second)), desk.sent) == (1, ["Ann"])
        done = await desk.answer(asked_in(second), "done")
        assert results(done, "wait") == [value('["sent to Ann","sent to Bob"]')]
        assert desk.sent == ["Ann", "Bob"]


async def test_an_id_that_the_model_uses_again_is_another_call(pool: Pool) -> None:
    async with opened(pool) as desk:
        call = types.FunctionCall(id="c", name="exec", args={"code": SEND})
        for sent in (["Ann"], ["Ann", "Ann"]):
            done = await desk.answer(asked_in(await desk.ask([call])), "done")
            assert (results(done), desk.sent) == ([value('"sent to Ann"')], sent)


@pytest.mark.hostile
@pytest.mark.covers("FW-2", "FW-6")
async def test_an_answer_that_is_repeated_after_a_crash_approves_nothing_that_was_not_shown(
    pool: Pool,
) -> None:
    async with opened(pool) as desk:
        asked = asked_in(await desk.ask(execs(SEND_TWICE)))
        await desk.answer(asked, "done")
        assert desk.sent == ["Ann"]
        # As if the process had died before ADK stored the result: the answer was not consumed.
        service: Any = desk.runner.session_service
        events: list[Event] = service.sessions["mail"]["ann"]["s"].events
        placed = max(i for i, event in enumerate(events) if event.author == "user")
        del events[placed:]
        again = await desk.answer(asked, wait_again)
        assert ([each["input"] for each in questions(asked_in(again)[0])], desk.sent) == (
            [{"to": "Bob"}],
            ["Ann"],
        )


@pytest.mark.hostile
@pytest.mark.covers("FW-6")
async def test_an_answer_to_a_program_that_is_gone_does_not_start_it_again(pool: Pool) -> None:
    async with opened(pool) as desk:
        asked = asked_in(await desk.ask(execs(SEND)))
        kept: Any = desk.runner.session_service
    async with opened(pool) as desk:  # as after a restart, because programs wait in memory
        desk.runner.session_service = kept
        done = await desk.answer(asked, "done")
        assert ("is not here" in results(done)[0], desk.sent) == (True, [])


@pytest.mark.hostile
async def test_answers_that_cannot_be_read_answer_nothing(pool: Pool) -> None:
    async with opened(pool) as desk:
        asked = asked_in(await desk.ask(execs(SEND)))
        with pytest.raises(ConfigurationError, match="must be"):
            await desk.answer(asked, payload={"answers": 1})
        assert desk.sent == []


@pytest.mark.covers("FW-50")
async def test_a_direct_confirmation_beside_ours_is_answered_in_the_same_turn(pool: Pool) -> None:
    def delete(name: str) -> str:
        """Delete a file."""
        return f"deleted {name}"

    async with opened(pool, beside=[FunctionTool(delete, require_confirmation=True)]) as desk:
        calls = [
            *execs(SEND, FAN_OUT),
            types.FunctionCall(name="delete", args={"name": "x"}),
        ]
        asked = asked_in(await desk.ask(calls))
        assert len(asked) == 2
        done = await desk.answer(asked, "done")
        assert (results(done, "delete"), results(done)) == (
            ["deleted x"],
            [value('"sent to Ann"')],
        )


@pytest.mark.covers("FW-50")
async def test_a_failing_tool_is_caught_or_reaches_the_model_as_an_error(pool: Pool) -> None:
    def fail() -> str:
        """Fail."""
        raise OSError("disk full")

    caught = "try { await tools.fail() } catch (error) { return 'caught: ' + error.message }"
    async with opened(pool, fail) as desk:
        events = await desk.ask(execs(caught, "return await tools.fail()"), "done")
        first, second = results(events)
        assert first.startswith('{"status":"completed","value":"caught: ')
        assert second.startswith('{"status":"failed"')
        assert "disk full" in second
        responses = [each.response or {} for e in events for each in e.get_function_responses()]
        assert [list(each) for each in responses] == [["result"], ["error"]]


@pytest.mark.covers("FW-3", "FW-50")
async def test_a_cancelled_run_ends_its_program(pool: Pool) -> None:
    started, ended = anyio.Event(), list[str]()

    async def hang() -> None:
        """Hang."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("hang")

    async with opened(pool, hang) as desk:
        task = asyncio.create_task(desk.ask(execs(f"await tools.hang(); {SEND}")))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (ended, desk.sent) == (["hang"], [])


@pytest.mark.hostile
@pytest.mark.covers("FW-50")
async def test_sessions_do_not_see_each_other(pool: Pool) -> None:
    async with opened(pool) as desk:
        first = await desk.ask(execs("store('x', 1); " + SEND))
        program = asked_in(first)[0].args["toolConfirmation"]["payload"]["runId"]  # type: ignore[index]
        look = [
            *execs("return load('x') ?? 'nothing'"),
            types.FunctionCall(name="wait", args={"runId": program}),
        ]
        other = await desk.ask(look, "done", session="other")
        assert results(other) == [value('"nothing"')]
        assert '"failed"' in results(other, "wait")[0]
        assert results(await desk.ask(execs("return load('x')"), "done")) == [value("1")]


@pytest.mark.covers("FW-3", "FW-50")
async def test_plugins_callbacks_and_spans_see_every_nested_call(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    class Watcher(BasePlugin):
        async def before_tool_callback(self, *, tool: BaseTool, **_: Any) -> None:
            seen.append(f"plugin before {tool.name}")

        async def after_tool_callback(self, *, tool: BaseTool, **_: Any) -> None:
            seen.append(f"plugin after {tool.name}")

    def before(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> Any:
        seen.append(f"agent before {tool.name}")
        return {"result": "from the callback"} if args.get("a") == 3 else None

    def after(tool: BaseTool, args: Any, tool_context: ToolContext, tool_response: Any) -> Any:
        return 100 if args.get("a") == 4 else None

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "tracer", provider.get_tracer("test"))
    callbacks = {"before_tool_callback": before, "after_tool_callback": after}
    async with opened(pool, plugins=[Watcher("watcher")], agent=callbacks) as desk:
        events = await desk.ask(execs(FAN_OUT), "done")
    assert results(events) == [value('[1,2,3,"from the callback",100,6,7,8,9,10,11,12]')]
    for who in ("plugin before", "plugin after", "agent before"):
        assert (seen.count(f"{who} add"), seen.count(f"{who} exec")) == (12, 1)
    spans = exporter.get_finished_spans()
    (outer,) = (span for span in spans if span.name == "execute_tool exec")
    inner = [span for span in spans if span.name == "execute_tool add"]
    assert len(inner) == 12
    assert outer.context is not None
    assert {span.parent and span.parent.span_id for span in inner} == {outer.context.span_id}


@pytest.mark.covers("FW-50")
async def test_state_and_actions_of_nested_calls_belong_to_the_outer_call(pool: Pool) -> None:
    def count(tool_context: ToolContext) -> int:
        """Count."""
        tool_context.state["n"] = tool_context.state.get("n", 0) + 1
        return int(tool_context.state["n"])

    def leave(tool_context: ToolContext) -> None:
        """Leave."""
        tool_context.actions.escalate = True

    source = "await tools.count(); await tools.leave(); return await tools.count()"
    async with opened(pool, count, leave) as desk:
        events = await desk.ask(execs(source), "done")
        assert results(events) == [value("2")]
        assert [event.actions.escalate for event in events if event.get_function_responses()] == [
            True
        ]
        session = await desk.runner.session_service.get_session(
            app_name="mail", user_id="ann", session_id="s"
        )
        assert session is not None
        assert session.state["n"] == 2


async def test_tools_that_ask_in_their_code_get_the_payload_of_the_answer(pool: Pool) -> None:
    def pay(euros: int, tool_context: ToolContext) -> Any:
        """Pay."""
        if euros > 10 and tool_context.tool_confirmation is None:
            tool_context.request_confirmation(hint="That is much.", payload={"from": ""})
            return {"status": "asked"}
        given = tool_context.tool_confirmation and tool_context.tool_confirmation.payload
        return f"paid {euros} from {given}"

    async with opened(pool, pay) as desk:
        source = "return [await tools.pay({euros: 5}), await tools.pay({euros: 50})]"
        asked = asked_in(await desk.ask(execs(source)))
        (question,) = questions(asked[0])
        assert (question["input"], question["description"]) == ({"euros": 50}, '{"from": ""}')
        payload = {"payloads": {question["id"]: "savings"}}
        done = await desk.answer(asked, "done", payload=payload)
        assert results(done) == [value('["paid 5 from None","paid 50 from savings"]')]


class Place(BaseModel):
    """A result that is not JSON."""

    name: str
    since: datetime.date


@pytest.mark.hostile
@pytest.mark.covers("FW-50")
async def test_results_that_are_not_json_arrive_as_json(pool: Pool) -> None:
    @dataclass
    class Pair:
        left: bytes
        right: float

    kinds: dict[str, Callable[[], Any]] = {
        "model": lambda: Place(name="Rome", since=datetime.date(1, 4, 21)),
        "pair": lambda: [Pair(b"\xff\xfe", float("nan"))],
        "error": lambda: {"why": ValueError("odd")},
        "nothing": lambda: None,
    }

    def give(kind: str) -> Any:
        """Give something."""
        return kinds[kind]()

    def draw() -> Any:
        """Draw."""
        return types.Part.from_bytes(data=PNG, mime_type="image/png")

    async with opened(pool, give, draw) as desk:
        source = "const r = []; for (const kind of %s) r.push(await tools.give({kind})); return r"
        drawing = "image((await tools.draw()).media[0])"
        events = await desk.ask(execs(source % list(kinds), drawing), "done")
    (content, _) = results(events)
    assert '{"name":"Rome","since":"0001-04-21"}' in content
    assert '[{"left":"__4=","right":null}],{"why":"odd"},null' in content
    media = [each.parts for event in events for each in event.get_function_responses()]
    assert [bool(each) for each in media] == [False, True]


@pytest.mark.hostile
async def test_names_that_are_no_identifiers_or_ours_can_be_called(pool: Pool) -> None:
    class Echo(BaseTool):
        def _get_declaration(self) -> types.FunctionDeclaration:
            schema = types.Schema(
                type=types.Type.OBJECT, properties={"text": types.Schema(type=types.Type.STRING)}
            )
            return types.FunctionDeclaration(name=self.name, description="Echo.", parameters=schema)

        async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
            return args["text"]

    names = ["exec", "wait", "my-tool", "class"]
    source = """
    const r = [];
    for (const name of ["exec", "wait", "my_tool", "class"]) {
      r.push(await tools[name]({text: name}));
    }
    return r
    """
    tools = [Echo(name=name, description="Echo.") for name in names]
    async with opened(pool, *tools) as desk:
        events = await desk.ask(execs(source), "done")
        assert results(events) == [value('["exec","wait","my_tool","class"]')]


async def test_toolsets_are_wrapped_too_and_some_tools_stay_direct(pool: Pool) -> None:
    def slow() -> None:
        """Take long."""

    def double(number: int) -> int:
        """Double a number."""
        return number * 2

    class Numbers(BaseToolset):
        closed = False

        async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> Any:
            return [FunctionTool(double)]

        async def close(self) -> None:
            self.closed = True

    class Broken(BaseToolset):
        async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> Any:
            raise ConnectionError("no server")

    numbers = Numbers(tool_name_prefix="my")
    tools = [numbers, Broken(), LongRunningFunctionTool(slow)]
    async with opened(pool, *tools, direct=["add"]) as desk:
        events = await desk.ask(execs("return tools.my_double({number: 4})"), "done")
        assert results(events) == [value("8")]
        assert list(desk.script.offered[0]) == ["add", "slow", "exec", "wait"]
    assert numbers.closed


@pytest.mark.filterwarnings("ignore:.EXPERIMENTAL. ResumabilityConfig:UserWarning")
async def test_the_examples_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs the first example as it is, and the parts of the second with a session."""
    first, second = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    warmer = (
        "return await tools.temperature({city: 'Rome'}) > await tools.temperature({city: 'Oslo'})"
    )
    turns: list[Any] = [execs(warmer), lambda result: str(result["result"])]
    scripts = [Script(model="gemini-flash-latest", turns=turns)]
    monkeypatch.setattr(LLMRegistry, "new_llm", lambda model: scripts[-1])
    await anyio.to_thread.run_sync(exec, first, {"__name__": "page"})
    assert value("true") in capsys.readouterr().out

    page: dict[str, Any] = {"__name__": "page"}
    exec(second, page)
    order = "return (await tools.place_order({product: 'tea', amount: 2})).amount"
    scripts.append(Script(model="gemini-flash-latest", turns=[execs(order), "done"]))
    asked: Any = None
    for message in (types.UserContent("Order tea."), None):
        runner = page["make_runner"](tmp_path)
        answer = message or page["approval"](asked[0])
        run = {"user_id": "ann", "session_id": "s", "new_message": answer}
        events = [
            event async for event in runner.run_async(**run, invocation_id=asked and asked[1])
        ]
        asked = next(
            ((call, event.invocation_id) for event in events for call in page["questions"](event)),
            None,
        )
        await runner.close()
    assert results(events) == [value("2")]


@pytest.mark.covers("FW-4")
@pytest.mark.parametrize("version", ["1.99.0", "3.0.0"])
def test_a_version_that_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    from clawmode.integrations import google_adk as adapter

    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", lambda name: version)
        with pytest.raises(ImportError, match=rf"google-adk .*{version}.*\[google-adk\]"):
            importlib.reload(adapter)
