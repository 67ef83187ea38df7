"""The adapter for the Microsoft Agent Framework, with the real package and a scripted model."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from agent_framework import (
    Agent,
    AgentSession,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    MCPStdioTool,
    Message,
    MiddlewareFailure,
    MiddlewareTermination,
    function_middleware,
    tool,
)
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
from tests.support.agent_framework_program import Script, execs

from clawmode import Pool, Tool
from clawmode.exceptions import ConfigurationError
from clawmode.integrations.agent_framework import ClawMode

pytestmark = pytest.mark.anyio


CAUGHT = "try { return await tools.%s } catch (error) { return error.message }"


@dataclass
class Desk:
    """An agent with tools, and what its tools have done."""

    clawmode: ClawMode
    agent: Agent[Any] = field(init=False)
    client: Script = field(default_factory=Script)
    sent: list[str] = field(default_factory=list[str])

    async def run(self, given: Any, *turns: Any, session: AgentSession | None = None) -> Any:
        self.client.turns = list(turns)
        session = session or self.agent.create_session()
        run = await self.agent.run(given, session=session)
        # As a session store does it between the runs of a user.
        return run, AgentSession.from_dict(json.loads(json.dumps(session.to_dict())))

    async def value(self, source: str) -> Any:
        """Runs a program that asks nobody. Returns its value, or the failed result."""
        run, _ = await self.run("Do it.", execs(source), ["done"])
        assert run.text == "done"
        [text] = self.client.results()
        made = json.loads(text)
        return made["value"] if made["status"] == "completed" else made

    async def answer(
        self, asked: Any, approved: bool = True, *turns: Any, **properties: Any
    ) -> Any:
        run, session = asked
        answers = [each.to_function_approval_response(approved) for each in run.user_input_requests]
        for each in answers:
            each.additional_properties |= properties
        return await self.run(Message("user", answers), *(turns or [["done"]]), session=session)


def questions(asked: Any) -> list[Any]:
    run, _ = asked
    return [
        each
        for request in run.user_input_requests
        for each in request.additional_properties["questions"]
    ]


@asynccontextmanager
async def desk(
    pool: Pool, *functions: Any, middleware: Any = (), agent: Any = None, **given: Any
) -> AsyncIterator[Desk]:
    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @tool(approval_mode="always_require")
    async def send(to: str) -> str:
        """Send a mail."""
        it.sent.append(to)
        return f"sent to {to}"

    it = Desk(ClawMode([add, send, *functions], pool=pool, **given))
    it.agent = Agent(
        client=it.client,
        context_providers=[it.clawmode],
        middleware=list(middleware),
        **(agent or {}),
    )
    try:
        yield it
    finally:
        await it.clawmode.aclose()


# ---- Nested calls ----


@pytest.mark.covers("FW-32")
async def test_a_program_fans_out_over_the_functions(pool: Pool) -> None:
    async with desk(pool) as it:
        assert await it.value(FAN_OUT) == list(range(1, 13))
        offered = {each.name: each for each in it.client.sent[0][1]["tools"]}
        assert list(offered) == ["exec", "wait"]
        assert "tools.add" in offered["exec"].description


@pytest.mark.covers("FW-32")
async def test_middleware_sees_and_changes_every_nested_call(pool: Pool) -> None:
    seen: list[tuple[str, Any]] = []

    @function_middleware
    async def note(context: FunctionInvocationContext, call_next: Any) -> None:
        await call_next()
        seen.append((context.function.name, context.result))

    class Double(FunctionMiddleware):
        async def process(self, context: FunctionInvocationContext, call_next: Any) -> None:
            if context.function.name == "add":
                context.arguments = {"a": 10, "b": 10}
            await call_next()

    async with desk(pool, middleware=[note, Double()]) as it:
        assert await it.value("return await tools.add({a: 1, b: 2})") == 20
    assert [name for name, _ in seen] == ["add", "exec"]
    assert seen[0][1] == 20


@pytest.mark.covers("FW-32")
async def test_middleware_that_ends_the_run_ends_the_program(pool: Pool) -> None:
    @function_middleware
    async def guard(context: FunctionInvocationContext, call_next: Any) -> None:
        if context.function.name == "add":
            if dict(context.arguments)["a"] == 1:
                raise MiddlewareTermination("enough", result="stopped")
            raise MiddlewareFailure("no adding")
        await call_next()

    async with desk(pool, middleware=[guard]) as it:
        source = "try { await tools.add({a: %d, b: 1}) } catch { return tools.send({to: 'Ann'}) }"
        run, _ = await it.run("Do it.", execs(source % 1))
        assert (run.text, it.sent) == ("", [])
        with pytest.raises(MiddlewareFailure, match="no adding"):
            await it.run("Do it.", execs(source % 2))
        assert it.sent == []


async def test_a_program_catches_failures_and_the_model_reads_others(pool: Pool) -> None:
    @tool
    def fail(text: str) -> str:
        """Fail."""
        raise ValueError(f"no {text}")

    @tool(max_invocations=1)
    def once() -> str:
        """Work once."""
        return "worked"

    async with desk(pool, fail, once) as it:
        assert await it.value(CAUGHT % "fail({text: 'mail'})") == "no mail"
        uncaught = await it.value("return await tools.fail({text: 'mail'})")
        assert (uncaught["status"], "no mail" in uncaught["error"]) == ("failed", True)
        assert await it.value("return await tools.once()") == "worked"
        assert "maximum invocation limit" in await it.value(CAUGHT % "once()")


class Point(BaseModel):
    x: int


@pytest.mark.hostile
async def test_odd_results_and_names_reach_programs(pool: Pool) -> None:
    @tool
    def odd() -> Any:
        """Return odd things."""
        return [Point(x=1), b"\xff", ValueError("no"), float("nan")]

    @tool
    def picture() -> Any:
        """Return a text and a picture."""
        return [Content.from_text("a"), Content.from_uri("data:image/png;base64,AAAA")]

    def named(name: str) -> Any:
        @tool(name=name)
        def run() -> str:
            """Say who you are."""
            return name

        return run

    names = ["exec", "wait", "a-b", "class"]
    async with desk(pool, odd, picture, *map(named, names)) as it:
        assert await it.value("return await tools.odd()") == [{"x": 1}, "_w==", "no", None]
        text, image = await it.value("return await tools.picture()")
        assert (text, image["uri"]) == ("a", "data:image/png;base64,AAAA")
        source = "return Promise.all(['exec', 'wait', 'a-b', 'class'].map(n => tools.call(n, {})))"
        assert await it.value(source) == names


async def test_mcp_tools_and_tools_of_clawmode_are_behind_exec(pool: Pool) -> None:
    async def double(params: Any, context: Any) -> int:
        return int(params["n"]) * 2

    schema: Any = {"type": "object", "properties": {"n": {"type": "integer"}}}
    ours = Tool("double", "Double a number.", schema, double)
    arguments = [str(SDK_SERVER), "stdio"]
    server = MCPStdioTool("sdk", sys.executable, args=arguments, allowed_tools=["big"])
    async with server, desk(pool, server, tools=[ours]) as it:
        assert await it.value("return await tools.double({n: 4})") == 8
        assert "xxx" in json.dumps(await it.value("return await tools.big({size: 3})"))
    hosted = {"type": "web_search"}
    async with desk(pool, hosted) as it:
        with pytest.raises(ConfigurationError, match="programs cannot call"):
            await it.run("Do it.", ["done"])


# ---- Approvals ----


@pytest.mark.covers("FW-1", "FW-32")
async def test_an_approval_is_given_after_the_process_was_killed(tmp_path: Path) -> None:
    shown = await run_step("agent_framework_program", tmp_path, "ask", kill=True)
    assert shown.strip() == "{'to': 'Ann'}"
    assert (tmp_path / "effects").read_text() == "before\n"
    done = await run_step("agent_framework_program", tmp_path, "answer")
    assert json.loads(done) == {"status": "completed", "value": "sent to Ann"}
    assert (tmp_path / "effects").read_text() == "before\nsent to Ann\nafter\n"


@pytest.mark.covers("FW-2", "FW-32")
async def test_a_request_names_the_nested_calls_and_is_for_them_only(pool: Pool) -> None:
    async with desk(pool) as it:
        first = await it.run("Do it.", execs(SEND_TWICE))
        assert [(each["tool"], each["input"]) for each in questions(first)] == [
            ("send", {"to": "Ann"})
        ]
        second = await it.answer(first)
        assert ([each["input"] for each in questions(second)], it.sent) == (
            [{"to": "Bob"}],
            ["Ann"],
        )
        replayed = await it.answer((first[0], second[1]))  # an answer that comes twice
        assert ([each["input"] for each in questions(replayed)], it.sent) == (
            [{"to": "Bob"}],
            ["Ann"],
        )
        await it.answer(replayed)
        assert json.loads(it.client.results()[-1])["value"] == ["sent to Ann", "sent to Bob"]


async def test_nested_calls_are_answered_one_by_one(pool: Pool) -> None:
    async with desk(pool) as it:
        asked = await it.run("Do it.", execs(SEND_BOTH))
        by_name = {each["input"]["to"]: each["id"] for each in questions(asked)}
        answers = {by_name["Ann"]: True, by_name["Bob"]: "Bob is away"}
        await it.answer(asked, answers=answers)
        first, second = json.loads(it.client.results()[-1])["value"]
        assert (first["value"], second["status"], it.sent) == ("sent to Ann", "rejected", ["Ann"])
        assert "Bob is away" in json.dumps(second)


@pytest.mark.covers("FW-32")
async def test_a_rejection_ends_the_program_and_reaches_the_model(pool: Pool) -> None:
    async with desk(pool) as it:
        source = CAUGHT.replace("error.message", "tools.add({a: 1, b: 1})") % "send({to: 'Ann'})"
        asked = await it.run("Do it.", execs(source))
        run, session = await it.answer(asked, False)
        assert (run.text, it.sent) == ("done", [])
        assert "reject" in str(it.client.results()[-1]).lower()
        opened = await it.clawmode.open(session.session_id)
        assert (
            await opened.asked(asked[0].user_input_requests[0].additional_properties["runId"]) == ()
        )


async def test_an_id_that_the_model_uses_again_is_another_call(pool: Pool) -> None:
    async with desk(pool) as it:
        count = "const n = (load('n') ?? 0) + 1; store('n', n); return n"
        await it.run("Do it.", execs(count), execs(count), ["done"])
        assert [json.loads(each)["value"] for each in it.client.results()] == [1, 2]


async def test_middleware_may_ask_about_a_nested_call(pool: Pool) -> None:
    @function_middleware
    async def ask(context: FunctionInvocationContext, call_next: Any) -> None:
        if context.function.name == "add" and "approval_response" not in context.metadata:
            call = Content.from_function_call(context.metadata["call_id"], "add", arguments="{}")
            context.result = Content.from_function_approval_request(
                context.metadata["call_id"], call
            )
            return
        await call_next()

    async with desk(pool, middleware=[ask]) as it:
        asked = await it.run("Do it.", execs("return await tools.add({a: 1, b: 2})"))
        assert [each["tool"] for each in questions(asked)] == ["add"]
        await it.answer(asked)
        assert json.loads(it.client.results()[-1])["value"] == 3


@pytest.mark.hostile
async def test_two_programs_and_a_direct_call_ask_in_one_turn(pool: Pool) -> None:
    published: list[str] = []

    @tool(approval_mode="always_require")
    def publish(text: str) -> str:
        """Publish."""
        published.append(text)
        return "out"

    async with desk(pool, agent={"tools": [publish]}) as it:
        asked = await it.run("Do it.", execs(SEND, SEND.replace("Ann", "Bob")))
        assert sorted(each["input"]["to"] for each in questions(asked)) == ["Ann", "Bob"]
        await it.answer(asked)
        assert sorted(it.sent) == ["Ann", "Bob"]
        direct = Content.from_function_call("p", "publish", arguments='{"text": "news"}')
        asked = await it.run("Do it.", [*execs(SEND), direct])
        again = await it.answer(asked)
        while again[0].user_input_requests:
            again = await it.answer(again)
        assert (sorted(it.sent), published) == (["Ann", "Ann", "Bob"], ["news"])


# ---- Runs ----


@pytest.mark.covers("FW-3")
async def test_a_cancelled_run_ends_its_program(pool: Pool) -> None:
    @tool
    async def hang() -> None:
        """Hang."""
        started.set()
        await asyncio.Event().wait()

    started = asyncio.Event()
    async with desk(pool, hang) as it:
        session = it.agent.create_session()
        source = f"await tools.hang(); {SEND}"
        running = asyncio.create_task(it.run("Do it.", execs(source), session=session))
        await asyncio.wait_for(started.wait(), 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        opened = await it.clawmode.open(session.session_id)
        assert (opened.code_mode.cells(), it.sent) == ({}, [])


@pytest.mark.covers("FW-3")
async def test_sessions_do_not_see_each_other(pool: Pool) -> None:
    async with desk(pool) as it:
        asked = await it.run("Do it.", execs(SEND))
        program = asked[0].user_input_requests[0].additional_properties["runId"]
        wait = Content.from_function_call("w", "wait", arguments=json.dumps({"runId": program}))
        await it.run("Do it.", [wait], ["done"])
        assert (json.loads(it.client.results()[0])["status"], it.sent) == ("failed", [])
        await it.answer(asked)
        assert it.sent == ["Ann"]


async def test_a_streamed_run_asks_too(pool: Pool) -> None:
    async with desk(pool) as it:
        it.client.turns, session = [execs(SEND)], it.agent.create_session()
        stream = it.agent.run("Do it.", session=session, stream=True)
        kinds = [content.type async for update in stream for content in update.contents]
        assert kinds == ["function_call", "function_approval_request"]
        await it.answer((await stream.get_final_response(), session))
        assert it.sent == ["Ann"]


@pytest.mark.covers("FW-4")
def test_a_version_that_does_not_fit_is_refused() -> None:
    check_versions(
        "agent_framework",
        r"agent-framework-core >=1.23,<2.*\[agent-framework\]",
        "1.22.0",
        "2.0.0",
        None,
    )
