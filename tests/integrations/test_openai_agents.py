"""The adapter for the OpenAI Agents SDK, with the real package and its scripted model."""

import asyncio
import dataclasses
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    AgentHooks,
    CustomTool,
    FunctionTool,
    RunConfig,
    RunHooks,
    RunItemStreamEvent,
    Runner,
    RunState,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputImage,
    function_tool,
    tool_input_guardrail,
    tool_output_guardrail,
)
from agents.mcp import MCPServerStdio
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from agents.tracing import Span, TracingProcessor, set_trace_processors
from openai.types.responses import ResponseCustomToolCall
from pydantic import BaseModel
from tests.support.adapters import (
    FAN_OUT,
    SDK_SERVER,
    SEND,
    SEND_BOTH,
    SEND_TWICE,
    check_versions,
    run_step,
)
from tests.support.waiting import until

from clawmode import Pool, Tool
from clawmode.exceptions import ConfigurationError
from clawmode.integrations.openai_agents import ClawMode

pytestmark = pytest.mark.anyio


CAUGHT = "try { return await tools.%s(%s) } catch (error) { return error.message }"


@pytest.fixture(autouse=True)
def processors() -> Any:
    """Keeps traces in the process: by default, the SDK sends them to OpenAI."""
    set_trace_processors([])
    yield
    set_trace_processors([])


def execs(*sources: str) -> dict[str, Any]:
    calls = [
        function_call("exec", {"code": each}, call_id=f"c{i}") for i, each in enumerate(sources)
    ]
    return {"output": calls}


DONE: dict[str, Any] = {"output": [assistant_message("done")]}


@dataclass
class Desk:
    """An agent with tools, and what its tools have done."""

    pool: Pool
    sent: list[str] = field(default_factory=list[str])
    tools: list[Any] = field(default_factory=list[Any])
    given: dict[str, Any] = field(default_factory=dict[str, Any])
    servers: list[Any] = field(default_factory=list[Any])
    hooks: AgentHooks[Any] | None = None

    def __post_init__(self) -> None:
        @function_tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        @function_tool(needs_approval=True)
        async def send(to: str) -> str:
            """Send a mail."""
            self.sent.append(to)
            return f"sent to {to}"

        self.tools[:0] = [add, send]
        self.clawmode = ClawMode(pool=self.pool, **self.given)

    def agent(self, *steps: Any, name: str = "Mail") -> Agent[Any]:
        self.model = ScriptedModel(list(steps))
        return self.clawmode.wrap(
            Agent(
                name=name,
                tools=self.tools,
                mcp_servers=self.servers,
                model=self.model,
                hooks=self.hooks,
            )
        )

    async def run(self, *steps: Any, **given: Any) -> Any:
        return await Runner.run(self.agent(*steps), "Do it.", **given)

    async def value(self, source: str, **given: Any) -> Any:
        """Runs a program that asks nobody. Returns its value, or the failed result."""
        run = await self.run(execs(source), DONE, **given)
        assert run.final_output == "done"
        result = self.read()[0]
        return result["value"] if result["status"] == "completed" else result

    def read(self) -> list[Any]:
        """Returns the results that the model has read last."""
        outputs = [each for each in self.model.calls[-1].input if "output" in each]
        return [json.loads(each["output"]) for each in outputs]


@asynccontextmanager
async def desk(pool: Pool, *tools: Any, **given: Any) -> AsyncIterator[Desk]:
    made = Desk(pool, tools=list(tools), **given)
    try:
        yield made
    finally:
        await made.clawmode.aclose()


def asked(run: Any) -> list[tuple[str, Any]]:
    return [(each.name, json.loads(each.arguments)) for each in run.interruptions]


async def later(it: Desk, run: Any, *steps: dict[str, Any], name: str = "Mail") -> tuple[Any, Any]:
    """Returns the state of a run after JSON, with an agent that was made anew."""
    agent = it.agent(*steps, name=name)
    return agent, await RunState.from_json(agent, json.loads(json.dumps(run.to_state().to_json())))


# ---- Nested calls ----


@pytest.mark.covers("FW-30")
async def test_a_program_fans_out_over_the_function_tools_of_the_agent(pool: Pool) -> None:
    async with desk(pool) as it:
        assert await it.value(FAN_OUT) == list(range(1, 13))
        offered: dict[str, Any] = {each.name: each for each in it.model.calls[0].tools}
        assert list(offered) == ["exec", "wait"]
        assert "tools.add" in offered["exec"].description
        assert it.model.remaining_steps == 0


class Seen(RunHooks[Any]):
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        self.events.append(("start", f"{tool.name} {context.tool_arguments}"))

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
        self.events.append(("end", f"{tool.name} {result}"))


class SeenByAgent(AgentHooks[Any]):
    def __init__(self) -> None:
        self.names: list[str] = []

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        self.names.append(tool.name)


class Spans(TracingProcessor):
    def __init__(self) -> None:
        self.ended: list[Span[Any]] = []

    def on_trace_start(self, trace: Any) -> None: ...
    def on_trace_end(self, trace: Any) -> None: ...
    def on_span_start(self, span: Span[Any]) -> None: ...

    def on_span_end(self, span: Span[Any]) -> None:
        self.ended.append(span)

    def shutdown(self) -> None: ...
    def force_flush(self) -> None: ...


@pytest.mark.covers("FW-30")
async def test_hooks_and_spans_see_every_nested_call(pool: Pool) -> None:
    run_hooks, agent_hooks, spans = Seen(), SeenByAgent(), Spans()
    set_trace_processors([spans])
    async with desk(pool, given={"run_hooks": run_hooks}, hooks=agent_hooks) as it:
        source = "await tools.add({a: 1, b: 2}); return tools.add({a: 3, b: 4})"
        assert await it.value(source, hooks=run_hooks) == 7
    assert run_hooks.events[1:-1] == [
        ("start", 'add {"a": 1, "b": 2}'),
        ("end", "add 3"),
        ("start", 'add {"a": 3, "b": 4}'),
        ("end", "add 7"),
    ]
    assert agent_hooks.names == ["exec", "add", "add"]
    made = {each.span_id: each for each in spans.ended if each.span_data.type == "function"}
    adds = [each for each in made.values() if each.span_data.export()["name"] == "add"]
    assert [each.span_data.export()["output"] for each in adds] == ["3", "7"]
    assert {made[each.parent_id or ""].span_data.export()["name"] for each in adds} == {"exec"}


async def test_spans_hide_inputs_if_the_run_says_so(pool: Pool) -> None:
    spans = Spans()
    set_trace_processors([spans])
    config = RunConfig(trace_include_sensitive_data=False)
    async with desk(pool) as it:
        run = await it.run(execs(SEND), run_config=config)
        agent, state = await later(it, run, DONE)
        state.approve(state.get_interruptions()[0])
        await Runner.run(agent, state, run_config=config)
        assert it.sent == ["Ann"]
    assert "Ann" not in json.dumps([each.export() for each in spans.ended])


@pytest.mark.covers("FW-30")
async def test_guardrails_of_nested_calls_hold(pool: Pool) -> None:
    @tool_input_guardrail
    def no_eve(data: Any) -> ToolGuardrailFunctionOutput:
        if "Mallory" in data.context.tool_arguments:
            return ToolGuardrailFunctionOutput.raise_exception()
        if "Eve" in data.context.tool_arguments:
            return ToolGuardrailFunctionOutput.reject_content("Eve gets no mail")
        return ToolGuardrailFunctionOutput.allow()

    @tool_output_guardrail
    def no_secret(data: Any) -> ToolGuardrailFunctionOutput:
        if "secret" in str(data.output):
            return ToolGuardrailFunctionOutput.reject_content("withheld")
        return ToolGuardrailFunctionOutput.allow()

    @function_tool(tool_input_guardrails=[no_eve], tool_output_guardrails=[no_secret])
    def write(to: str) -> str:
        """Write."""
        written.append(to)
        return f"the secret of {to}"

    written: list[str] = []
    async with desk(pool, write) as it:
        assert await it.value(CAUGHT % ("write", "{to: 'Eve'}")) == "Eve gets no mail"
        assert await it.value(CAUGHT % ("write", "{to: 'Bob'}")) == "withheld"
        source = "try { await tools.write({to: 'Mallory'}) } catch { tools.write({to: 'Ann'}) }"
        with pytest.raises(ToolInputGuardrailTripwireTriggered):
            await it.value(source)
        assert written == ["Bob"]


@pytest.mark.covers("FW-30")
async def test_a_program_catches_failures_and_the_model_reads_those_that_it_does_not_catch(
    pool: Pool,
) -> None:
    @function_tool
    def fail(text: str) -> str:
        """Fail."""
        raise ValueError(f"no {text}")

    def politely(context: Any, error: Exception) -> str:
        return f"Sorry: {error}"

    @function_tool(failure_error_function=politely)
    def sorry() -> str:
        """Fail politely."""
        raise ValueError("closed")

    @function_tool(timeout=0.01)
    async def slow() -> str:
        """Take long."""
        await asyncio.Event().wait()
        return ""

    async with desk(pool, fail, sorry, slow) as it:
        assert await it.value(CAUGHT % ("fail", "{text: 'mail'}")) == "no mail"
        assert await it.value(CAUGHT % ("sorry", "{}")) == "Sorry: closed"
        assert "timed out" in await it.value(CAUGHT % ("slow", "{}"))
        uncaught = await it.value("return await tools.fail({text: 'mail'})")
        assert (uncaught["status"], "no mail" in uncaught["error"]) == ("failed", True)
        wrong = await it.value("return await tools.add({a: 'x', b: 1})")
        assert wrong["status"] == "failed"


class Point(BaseModel):
    x: int


@dataclasses.dataclass
class Line:
    start: Point
    raw: bytes


@pytest.mark.hostile
async def test_results_that_are_not_json_reach_programs(pool: Pool) -> None:
    @function_tool
    def odd() -> Any:
        """Return odd things."""
        return [Line(Point(x=1), b"\xff"), ValueError("no"), float("nan")]

    @function_tool
    def picture() -> ToolOutputImage:
        """Return a picture."""
        return ToolOutputImage(image_url="data:image/png;base64,AAAA")

    async with desk(pool, odd, picture) as it:
        line = {"start": {"x": 1}, "raw": "_w=="}
        assert await it.value("return await tools.odd()") == [line, "no", None]
        image = await it.value("return await tools.picture()")
        assert image["image_url"] == "data:image/png;base64,AAAA"


@pytest.mark.hostile
async def test_names_that_are_no_identifiers_or_our_own_can_be_called(pool: Pool) -> None:
    async def run(context: Any, arguments: str) -> str:
        return f"{context.tool_name} {arguments}"

    schema: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    odd = [FunctionTool(name, "", schema, run) for name in ("exec", "wait", "a-b", "class", "é.x")]
    async with desk(pool, *odd) as it:
        source = "const found = []; for (const name of ['exec', 'wait', 'a-b', 'class', 'é.x']) {"
        source += "found.push(await tools.call(name, {})) } return found.map(f => f.split(' ')[0])"
        assert await it.value(source) == ["exec", "wait", "a-b", "class", "é.x"]
    with pytest.raises(ConfigurationError, match="direct"):
        ClawMode(direct=["exec"])


async def test_servers_of_the_agent_and_other_tools_are_behind_exec(pool: Pool) -> None:
    server = MCPServerStdio({"command": sys.executable, "args": [str(SDK_SERVER), "stdio"]})

    async def double(params: Any, context: Any) -> int:
        return int(params["n"]) * 2

    schema: Any = {"type": "object", "properties": {"n": {"type": "integer"}}}
    ours = Tool("double", "Double a number.", schema, double)
    async with server, desk(pool, given={"tools": [ours]}, servers=[server]) as it:
        names = await it.value("return ALL_TOOLS.map(tool => tool.name)")
        assert {"send", "double", "big", "fail"} <= set(names)
        assert await it.value("return await tools.double({n: 4})") == 8
        assert "xxx" in json.dumps(await it.value("return await tools.big({size: 3})"))
        # The SDK gives errors of servers to models as text, and does not tell them apart.
        assert "Error" in str(await it.value(CAUGHT % ("fail", "{}")))
        assert [each.name for each in it.model.calls[0].tools] == ["exec", "wait"]


# ---- Approvals ----


@pytest.mark.covers("FW-1", "FW-30")
async def test_an_approval_is_given_after_the_process_was_killed(tmp_path: Path) -> None:
    shown = await run_step("openai_agents_program", tmp_path, "ask", kill=True)
    assert shown.strip() == 'send {"to": "Ann"}'
    assert (tmp_path / "effects").read_text() == "before\n"
    done = await run_step("openai_agents_program", tmp_path, "answer")
    assert json.loads(done) == {"status": "completed", "value": "sent to Ann"}
    assert (tmp_path / "effects").read_text() == "before\nsent to Ann\nafter\n"


@pytest.mark.hostile
async def test_an_id_that_a_model_uses_again_in_another_run_is_another_call(pool: Pool) -> None:
    async with desk(pool) as it:
        count = "const n = (load('n') ?? 0) + 1; store('n', n); return n"
        assert [await it.value(count), await it.value(count)] == [1, 2]


@pytest.mark.covers("FW-1")
async def test_a_state_that_is_run_twice_takes_effect_once(pool: Pool) -> None:
    async with desk(pool) as it:
        run = await it.run(execs(SEND))
        for _ in range(2):
            agent, state = await later(it, run, DONE)
            state.approve(state.get_interruptions()[0])
            await Runner.run(agent, state)
            assert (it.read()[0]["value"], it.sent) == ("sent to Ann", ["Ann"])


@pytest.mark.covers("FW-2", "FW-30")
async def test_interruptions_show_the_nested_calls_and_are_answered_one_by_one(pool: Pool) -> None:
    async with desk(pool) as it:
        run = await it.run(execs(SEND_BOTH))
        assert sorted(asked(run), key=str) == [("send", {"to": "Ann"}), ("send", {"to": "Bob"})]
        agent, state = await later(it, run)
        by_name = {json.loads(each.arguments)["to"]: each for each in state.get_interruptions()}
        state.reject(by_name["Ann"], rejection_message="approved")
        run = await Runner.run(agent, state)
        assert (asked(run), it.sent) == ([("send", {"to": "Bob"})], [])
        agent, state = await later(it, run, DONE)
        state.approve(state.get_interruptions()[0])
        await Runner.run(agent, state)
        first, second = it.read()[0]["value"]
        assert (first["status"], second["value"], it.sent) == ("rejected", "sent to Bob", ["Bob"])
        assert "approved" in json.dumps(first)


async def test_a_program_asks_as_often_as_it_needs_and_always_holds_for_the_session(
    pool: Pool,
) -> None:
    async with desk(pool) as it:
        run = await it.run(execs(SEND_TWICE))
        agent, state = await later(it, run)
        state.approve(state.get_interruptions()[0])
        run = await Runner.run(agent, state)
        assert (asked(run), it.sent) == ([("send", {"to": "Bob"})], ["Ann"])
        agent, state = await later(it, run, DONE)
        state.approve(state.get_interruptions()[0], always_approve=True)
        run = await Runner.run(agent, state)
        assert (it.read()[0]["value"], it.sent) == (["sent to Ann", "sent to Bob"], ["Ann", "Bob"])
        assert await it.value(SEND) == "sent to Ann"


async def test_a_rejection_without_words_reaches_the_program(pool: Pool) -> None:
    async with desk(pool) as it:
        run = await it.run(execs(CAUGHT % ("send", "{to: 'Ann'}")))
        agent, state = await later(it, run, DONE)
        state.reject(state.get_interruptions()[0])
        await Runner.run(agent, state)
        assert "not approved" in it.read()[0]["value"]
        assert it.sent == []


async def test_a_policy_decides_about_the_input_of_each_nested_call(pool: Pool) -> None:
    async def is_large(context: Any, params: dict[str, Any], call_id: str) -> bool:
        return bool(params["amount"] > 100)

    @function_tool(needs_approval=is_large, strict_mode=False)
    def pay(amount: int = 1000) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    paid: list[int] = []
    async with desk(pool, pay) as it:
        assert await it.value("return await tools.pay({amount: 5})") == "paid"
        run = await it.run(execs("return await tools.pay({amount: 500})"))
        assert (asked(run), paid) == ([("pay", {"amount": 500})], [5])
        # The policy would not see the default, so a person decides, as for direct calls.
        run = await it.run(execs("return await tools.pay({})"))
        assert (asked(run), paid) == ([("pay", {})], [5])


async def test_calls_that_clawmode_asks_for_are_interruptions_too(pool: Pool) -> None:
    async with desk(pool, given={"ask_for": "add"}) as it:
        run = await it.run(execs("return await tools.add({a: 1, b: 2})"))
        assert asked(run) == [("add", {"a": 1, "b": 2})]
        agent, state = await later(it, run, DONE)
        state.approve(state.get_interruptions()[0])
        await Runner.run(agent, state)
        assert it.read()[0]["value"] == 3


@pytest.mark.hostile
async def test_two_programs_and_a_direct_call_ask_in_one_turn(pool: Pool) -> None:
    @function_tool(needs_approval=True)
    def publish(text: str) -> str:
        """Publish."""
        published.append(text)
        return "out"

    published: list[str] = []
    async with desk(pool, publish, given={"direct": ["publish"]}) as it:
        turn = execs(SEND, SEND.replace("Ann", "Bob"))
        turn["output"].append(function_call("publish", {"text": "news"}, call_id="p"))
        run = await it.run(turn)
        assert sorted(asked(run), key=str) == [
            ("publish", {"text": "news"}),
            ("send", {"to": "Ann"}),
            ("send", {"to": "Bob"}),
        ]
        agent, state = await later(it, run, DONE)
        for each in state.get_interruptions():
            if "Bob" in each.arguments:
                state.reject(each, rejection_message="Bob is away")
            else:
                state.approve(each)
        await Runner.run(agent, state)
        assert (it.sent, published) == (["Ann"], ["news"])
        outputs = [str(each["output"]) for each in it.model.calls[-1].input if "output" in each]
        assert "sent to Ann" in outputs[0]
        assert "Bob is away" in outputs[1]


@pytest.mark.covers("FW-30")
async def test_a_freeform_program_asks_when_the_model_waits(pool: Pool) -> None:
    def freeform(source: str) -> dict[str, Any]:
        return {
            "output": [
                ResponseCustomToolCall(
                    type="custom_tool_call", name="exec", call_id="f1", input=source
                )
            ]
        }

    async with desk(pool, given={"config": {"dialect": "codex"}}) as it:
        run = await it.run(freeform(FAN_OUT), DONE)
        assert it.read()[0]["value"] == list(range(1, 13))
        [tool, _] = it.model.calls[0].tools
        assert isinstance(tool, CustomTool)
        assert tool.tool_config["format"] == {"type": "text"}

        def wait(call: Any) -> Any:
            waiting = json.loads(call.input[-1]["output"])
            assert waiting["status"] == "waiting"
            return {"output": [function_call("wait", {"cell_id": waiting["runId"]}, call_id="w1")]}

        run = await it.run(freeform(SEND), ModelStep.respond(wait))
        assert (asked(run), it.sent) == ([("send", {"to": "Ann"})], [])
        agent, state = await later(it, run, DONE)
        state.approve(state.get_interruptions()[0])
        await Runner.run(agent, state)
        assert (it.read()[-1]["value"], it.sent) == ("sent to Ann", ["Ann"])


# ---- Runs ----


@pytest.mark.covers("FW-3")
async def test_a_cancelled_run_ends_its_program(pool: Pool) -> None:
    @function_tool
    async def hang() -> None:
        """Hang."""
        started.set()
        await asyncio.Event().wait()

    started = asyncio.Event()
    async with desk(pool, hang) as it:
        running = asyncio.create_task(it.run(execs(f"await tools.hang(); {SEND}")))
        await asyncio.wait_for(started.wait(), 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        session = await it.clawmode.open(json.dumps(["main", "Mail"]))
        await until(lambda: not session.code_mode.cells())
        assert it.sent == []


@pytest.mark.covers("FW-3")
async def test_runs_of_two_users_do_not_see_each_other(pool: Pool) -> None:
    async with desk(pool, given={"session": lambda context: str(context.context)}) as it:
        first = await it.run(execs(SEND), context="ann")
        program = first.interruptions[0].raw_item.call_id.partition(":")[0]
        stolen = {"output": [function_call("wait", {"runId": program}, call_id="c1")]}
        await it.run(stolen, DONE, context="bob")
        assert (it.read()[0]["status"], it.sent) == ("failed", [])
        agent, state = await later(it, first, DONE)
        state.approve(state.get_interruptions()[0])
        await Runner.run(agent, state, context="ann")
        assert it.sent == ["Ann"]


async def test_a_streamed_run_and_a_handoff_work(pool: Pool) -> None:
    async with desk(pool) as it:
        streamed = Runner.run_streamed(it.agent(execs(FAN_OUT), DONE), "Do it.")
        items = [
            each.item.type
            async for each in streamed.stream_events()
            if isinstance(each, RunItemStreamEvent)
        ]
        assert items == ["tool_call_item", "tool_call_output_item", "message_output_item"]
        other = it.agent(execs(SEND), name="Other")
        handoff = {"output": [function_call("transfer_to_other", {}, call_id="h")]}
        first = Agent(name="First", handoffs=[other], model=ScriptedModel([handoff]))
        run = await Runner.run(first, "Do it.")
        assert (asked(run), run.last_agent.name) == ([("send", {"to": "Ann"})], "Other")


async def test_the_model_of_the_run_does_not_take_the_place_of_programs(pool: Pool) -> None:
    async with desk(pool) as it:
        agent = it.agent()
        model = ScriptedModel([ModelStep(**execs(SEND))])
        run = await Runner.run(agent, "Do it.", run_config=RunConfig(model=model))
        assert asked(run) == [("send", {"to": "Ann"})]


async def test_wrapped_agents_can_be_cloned_and_subclasses_are_refused(pool: Pool) -> None:
    class Special(Agent[Any]):
        pass

    async with desk(pool) as it:
        copy = it.agent(execs(SEND)).clone(name="Copy")
        run = await Runner.run(copy, "Do it.")
        assert asked(run) == [("send", {"to": "Ann"})]
        with pytest.raises(ConfigurationError, match="Special"):
            it.clawmode.wrap(Special(name="special"))


@pytest.mark.covers("FW-4")
def test_a_version_that_does_not_fit_is_refused() -> None:
    check_versions(
        "openai_agents", r"openai-agents >=0.24,<0.25.*\[openai-agents\]", "0.23.9", "0.25.0", None
    )
