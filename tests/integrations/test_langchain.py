"""`ClawMode` as a middleware of agents of LangChain and deepagents, with a scripted model."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain.tools import InjectedState, ToolRuntime, tool
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool, ToolException
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from tests.support.adapters import SEND, check_versions
from tests.support.langchain_agent import NotesMiddleware, Scripted, calls, note

from clawmode import Pool
from clawmode.exceptions import ConfigurationError
from clawmode.integrations.langchain import ClawMode

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
HI: Any = {"messages": [{"role": "user", "content": "hi"}]}
ASK = HumanInTheLoopMiddleware[Any, Any, Any](interrupt_on={"send": True})
APPROVE = {"type": "approve"}


class Watch(AgentMiddleware[Any, Any, Any]):
    """Notes the calls that pass it."""

    def __init__(self, name: str = "Watch") -> None:
        self.seen: list[str] = []
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        self.seen.append(request.tool_call["name"])
        return await handler(request)


class Mail:
    """Tools that note what they do."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.started, self.cancelled = anyio.Event(), False

        @tool
        def look(n: int, state: Annotated[dict[str, Any], InjectedState]) -> dict[str, int]:
            """Look at a number."""
            return {"n": n, "messages": len(state["messages"])}

        @tool
        async def send(to: str) -> str:
            """Send a mail."""
            self.sent.append(to)
            return f"sent to {to}"

        @tool
        def fail(why: str) -> str:
            """Fail."""
            raise ToolException(why)

        @tool
        async def hang() -> None:
            """Hang."""
            self.started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled = True

        @tool
        def ask(question: str) -> str:
            """Ask the user."""
            return f"{question} {interrupt({'question': question})}"

        self.tools = [look, send, fail, hang, ask, note]


class Agent:
    """An agent whose model plays turns."""

    def __init__(
        self, pool: Pool, turns: list[Any], middleware: Any, tools: Any, **given: Any
    ) -> None:
        self.code_mode = ClawMode(pool=pool, **given)
        self.model = Scripted(turns=turns)
        stack = [each if each is not None else self.code_mode for each in middleware or [None]]
        self.graph = create_agent(self.model, tools, middleware=stack, checkpointer=InMemorySaver())

    async def run(self, given: Any = HI, thread: str = "t", **more: Any) -> dict[str, Any]:
        config: Any = {"configurable": {"thread_id": thread}, **more}
        return dict(await self.graph.ainvoke(given, config))

    async def answer(self, *decisions: dict[str, Any], thread: str = "t") -> dict[str, Any]:
        return await self.run(Command(resume={"decisions": list(decisions)}), thread)


@asynccontextmanager
async def running(
    pool: Pool, *programs: str, middleware: Sequence[Any] = (), tools: Any = None, **given: Any
) -> AsyncIterator[tuple[Agent, Mail]]:
    """An agent that runs programs, one in a turn. None stands for `ClawMode` in the middleware."""
    mail = Mail()
    turns = [*([each] for source in programs for each in calls(source)), "done"]
    agent = Agent(pool, turns, list(middleware), mail.tools if tools is None else tools, **given)
    try:
        yield agent, mail
    finally:
        await agent.code_mode.aclose()


def result(made: dict[str, Any], at: int = -2) -> Any:
    return json.loads(made["messages"][at].content)


def value(made: dict[str, Any], at: int = -2) -> Any:
    return result(made, at)["value"]


def asked(made: dict[str, Any]) -> Any:
    return [each.value for each in made["__interrupt__"]]


@pytest.mark.covers("FW-20", "FW-21")
async def test_a_program_fans_out_over_the_agents_tools_and_all_middleware_sees_it(
    pool: Pool,
) -> None:
    source = "return await Promise.all([...Array(12).keys()].map(n => tools.look({n})))"
    before, after = Watch("before"), Watch("after")
    async with running(pool, source, middleware=[before, None, after]) as (agent, _):
        made = await agent.run()
        assert value(made) == [{"n": n, "messages": 2} for n in range(12)]
        assert before.seen == after.seen == ["exec"] + ["look"] * 12
        (first, second), *_ = agent.model.offered
        assert (first.name, second.name) == ("exec", "wait")
        assert "look" in first.description
        assert "state" not in first.description.partition("look(")[2][:100]


@pytest.mark.covers("FW-22")
def test_a_nested_approval_is_answered_after_the_process_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.langchain_agent", str(tmp_path)]
    command.append(json.dumps(APPROVE))
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=38, check=False)
    assert ran.stdout.count(b"\n") == 4, ran.stderr.decode()
    first, killed, second, ended = map(json.loads, ran.stdout.splitlines())
    assert (killed, ended) == (-9, 0)
    assert first["asked"][0]["action_requests"][0]["args"] == {"to": "Ann"}
    assert (second["asked"], json.loads(second["last"][0])["value"]) == ([], [10, "ok"])
    log = (tmp_path / "log").read_text().split("\n")
    assert sorted(log) == sorted([*(f"look {n}" for n in range(10)), "send Ann", ""])
    assert second["notes"] == ["before", "after"]


@pytest.mark.hostile
@pytest.mark.covers("FW-6")
@pytest.mark.parametrize("by_id", [False, True])
async def test_a_decision_about_a_program_that_is_gone_does_not_start_it_again(
    pool: Pool, by_id: bool
) -> None:
    async with running(pool, SEND, middleware=[None, ASK]) as (agent, _):
        (question,) = (await agent.run())["__interrupt__"]
        kept = agent.graph.checkpointer
    async with running(pool, SEND, middleware=[None, ASK]) as (agent, mail):
        agent.graph.checkpointer = kept  # as after a restart: only programs were in memory
        decided: Any = {"decisions": [APPROVE]}
        made = await agent.run(Command(resume={question.id: decided} if by_id else decided))
        assert (result(made)["code"], mail.sent) == ("runtime_unavailable", [])


async def test_a_program_that_was_reviewed_before_its_start_starts(pool: Pool) -> None:
    review = HumanInTheLoopMiddleware[Any, Any, Any](
        interrupt_on={"exec": True, "send": True}, interrupt_mode="per_call"
    )
    async with running(pool, SEND, middleware=[review, None]) as (agent, mail):
        assert asked(await agent.run())[0]["name"] == "exec"
        assert asked(await agent.run(Command(resume=APPROVE)))[0]["name"] == "send"
        assert value(await agent.run(Command(resume=APPROVE))) == "sent to Ann"
        assert mail.sent == ["Ann"]


@pytest.mark.covers("FW-22")
async def test_every_decision_of_a_reviewer_holds_for_a_nested_call(pool: Pool) -> None:
    source = """
    const all = await Promise.allSettled(['A', 'B', 'C', 'D'].map(to => tools.send({to})))
    return all.map(each => each.value ?? each.reason.message)
    """
    edited = {"type": "edit", "edited_action": {"name": "send", "args": {"to": "Eve"}}}
    async with running(pool, source, middleware=[None, ASK]) as (agent, mail):
        [request] = asked(await agent.run())
        assert [each["args"]["to"] for each in request["action_requests"]] == ["A", "B", "C", "D"]
        refused, answered = (
            {"type": "reject", "message": "no"},
            {"type": "respond", "message": "hm"},
        )
        made = await agent.answer(APPROVE, edited, refused, answered)
        assert mail.sent == ["A", "Eve"]
        first, second, third, fourth = value(made)
        assert (first, fourth) == ("sent to A", "hm")
        assert "replaced this tool call" in second
        assert second.endswith("sent to Eve")
        assert third.endswith("rejected the tool call for `send` with reason: no")


@pytest.mark.covers("FW-22")
async def test_calls_that_clawmode_itself_asks_about_are_approved_and_denied(pool: Pool) -> None:
    async with running(pool, SEND, SEND, ask_for=["send"]) as (agent, mail):
        [request] = asked(await agent.run())
        [config] = request["review_configs"]
        assert config == {"action_name": "send", "allowed_decisions": ["approve", "reject"]}
        second = await agent.answer(APPROVE)
        assert (value(second), mail.sent) == ("sent to Ann", ["Ann"])
        made = await agent.answer({"type": "reject", "message": "Ann is away"})
        message = made["messages"][-2]
        assert (message.status, mail.sent) == ("error", ["Ann"])
        assert "Ann is away" in message.content


async def test_two_pauses_of_one_program_are_answered_in_turn(pool: Pool) -> None:
    source = "return [await tools.send({to: 'A'}), await tools.send({to: 'B'})]"
    each_call = HumanInTheLoopMiddleware[Any, Any, Any]({"send": True}, interrupt_mode="per_call")
    async with running(pool, source, middleware=[each_call, None]) as (agent, mail):
        first = await agent.run()
        [request], [interrupted] = asked(first), first["__interrupt__"]
        assert request["type"] == "tool_approval"
        assert (request["name"], request["tool_call_id"]) == ("send", "call-0")
        assert interrupted.response_schema is not None
        second = await agent.run(Command(resume=APPROVE))
        assert (asked(second)[0]["args"], mail.sent) == ({"to": "B"}, ["A"])
        made = await agent.run(Command(resume={"type": "reject"}))
        assert mail.sent == ["A"]
        assert "rejected the tool call" in result(made)["error"]


async def test_an_interrupt_inside_of_a_tool_reaches_the_user_and_its_answer_the_tool(
    pool: Pool,
) -> None:
    source = "return await Promise.all(['Why?', 'How?'].map(question => tools.ask({question})))"
    async with running(pool, source) as (agent, _):
        assert asked(await agent.run()) == [{"question": "Why?"}]
        assert asked(await agent.run(Command(resume="so"))) == [{"question": "How?"}]
        assert value(await agent.run(Command(resume="thus"))) == ["Why? so", "How? thus"]


async def test_a_second_interrupt_of_one_nested_call_fails_and_says_so(pool: Pool) -> None:
    @tool
    def twice() -> str:
        """Ask twice."""
        return f"{interrupt('one')} {interrupt('two')}"

    async with running(pool, "return await tools.twice()", tools=[twice]) as (agent, _):
        assert asked(await agent.run()) == ["one"]
        assert "only once" in result(await agent.run(Command(resume="a")))["error"]


@pytest.mark.hostile
async def test_a_wrong_answer_fails_the_run_and_can_be_given_again(pool: Pool) -> None:
    async with running(pool, SEND, ask_for=["send"]) as (agent, mail):
        await agent.run()
        with pytest.raises(ValueError, match="must have 1 decisions"):
            await agent.answer(APPROVE, APPROVE)
        edited = {"type": "edit", "edited_action": {"name": "send", "args": {"to": "Eve"}}}
        with pytest.raises(ValueError, match="type approve or reject"):
            await agent.answer(edited)
        assert mail.sent == []
        assert value(await agent.answer(APPROVE)) == "sent to Ann"
        assert mail.sent == ["Ann"]


@pytest.mark.hostile
async def test_parallel_programs_and_a_direct_interrupt_are_answered_apart(pool: Pool) -> None:
    mail = Mail()
    direct = {"name": "ask", "args": {"question": "Who?"}, "id": "direct", "type": "tool_call"}
    turn = [*calls(SEND, SEND.replace("Ann", "Bob")), direct]
    agent = Agent(pool, [turn, "done"], [None, ASK], mail.tools, direct=["ask"])
    first = await agent.run()
    assert [each.name for each in agent.model.offered[0]] == ["exec", "wait", "ask"]
    by_kind = {json.dumps(each.value): each.id for each in first["__interrupt__"]}
    assert len(by_kind) == 3
    answers: dict[str, Any] = {}
    for kind, each in by_kind.items():
        allowed = {"decisions": [{"type": "reject"} if "Bob" in kind else APPROVE]}
        answers[each] = "me" if "Who?" in kind else allowed
    made = await agent.run(Command(resume=answers))
    assert mail.sent == ["Ann"]
    results = {each.tool_call_id: each for each in made["messages"] if each.type == "tool"}
    assert json.loads(results["call-0"].content)["value"] == "sent to Ann"
    assert (results["call-1"].status, results["direct"].content) == ("error", "Who? me")
    await agent.code_mode.aclose()


async def test_a_failing_tool_can_be_caught_and_an_uncaught_failure_reaches_the_model(
    pool: Pool,
) -> None:
    caught = "try { await tools.fail({why: 'tired'}) } catch (error) { return error.message }"
    uncaught = "await tools.fail({why: 'tired'})"
    async with running(pool, caught, uncaught, "await tools.look({n: 'x'})") as (agent, _):
        made = await agent.run()
        assert value(made, 2) == "tired"
        assert made["messages"][4].status == "error"
        assert "tired" in result(made, 4)["error"]
        assert 'input.n: expected integer, got "x"' in result(made, 6)["error"]


@pytest.mark.covers("FW-21")
async def test_a_cancelled_run_ends_its_program_and_nested_calls(pool: Pool) -> None:
    async with running(pool, "await tools.hang(); await tools.send({to: 'A'})") as (agent, mail):
        run = asyncio.create_task(agent.run())
        await mail.started.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert (mail.cancelled, mail.sent) == (True, [])


@pytest.mark.hostile
async def test_threads_and_runs_without_a_thread_do_not_see_each_other(pool: Pool) -> None:
    source = "const old = load('who') ?? null; store('who', 'me'); return old"
    async with running(pool, source, source, source) as (agent, _):
        for thread in ("one", "other"):
            made = await agent.run(thread=thread)
            assert [value(made, at) for at in (2, 4, 6)] == [None, "me", "me"]
        alone = create_agent(agent.model, [], middleware=[agent.code_mode])
        for _ in range(2):
            made = dict(await alone.ainvoke(HI))
            assert [value(made, at) for at in (2, 4, 6)] == [None, "me", "me"]
            assert "clawmode_session" not in made


class Point(BaseModel):
    x: int


@dataclass
class Size:
    width: int


@pytest.mark.hostile
async def test_results_that_are_not_json_and_odd_names_reach_programs(pool: Pool) -> None:
    results: dict[str, Any] = {
        "my-tool": Point(x=1),
        "größe": Size(2),
        "bytes": b"\x00\xff",
        "error": ValueError("wrong"),
        "nothing": None,
        "exec": "the agent's own",
        "number": "7",
        "nan": float("nan"),
        "blocks": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }

    def returning(made: Any) -> Any:
        return lambda: made

    tools = [
        StructuredTool.from_function(returning(made), name=name, description=f"Get {name}.")
        for name, made in results.items()
    ]
    source = """
    const all = {}
    for (const each of ALL_TOOLS) all[each.name] = await tools.call(each.id, {})
    return all
    """
    async with running(pool, source, tools=tools) as (agent, _):
        assert value(await agent.run()) == {
            "my-tool": {"x": 1},
            "größe": {"width": 2},
            "bytes": "AP8=",
            "error": "wrong",
            "nothing": None,
            "exec": "the agent's own",
            "number": "7",
            "nan": None,
            "blocks": "ab",
        }
    with pytest.raises(ConfigurationError, match="'exec' is a tool of code mode"):
        ClawMode(direct=["exec"])


@pytest.mark.hostile
async def test_a_result_that_a_middleware_has_changed_is_all_that_programs_get(pool: Pool) -> None:
    class Redact(AgentMiddleware[Any, Any, Any]):
        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            made = await handler(request)
            if request.tool_call["name"] == "look":
                made = made.model_copy(update={"content": made.content.replace("4711", "…")})
            return made

    for middleware in ([Redact(), None], [None, Redact()]):
        source = "return await tools.look({n: 4711})"
        async with running(pool, source, middleware=middleware) as (agent, _):
            assert value(await agent.run()) == '{"n": …, "messages": 2}'


@pytest.mark.covers("FW-23")
async def test_updates_of_nested_tools_are_kept_over_an_interrupt(pool: Pool) -> None:
    @tool
    def recall(runtime: ToolRuntime[Any, Any]) -> list[str]:
        """Recall the notes."""
        return [*runtime.state["notes"], runtime.state.get("last", "")]

    source = """
    const one = await tools.note({text: 'one'})
    await tools.send({to: 'Ann'})
    await tools.note({text: 'two'})
    return [one, await tools.recall()]
    """
    tools = [recall, *Mail().tools]
    middleware = [None, NotesMiddleware(), ASK]
    async with running(pool, source, middleware=middleware, tools=tools) as (agent, _):
        await agent.run()
        made = await agent.answer(APPROVE)
        assert value(made) == ["noted one", ["one", "two", "two"]]
        assert (made["notes"], made["last"]) == (["one", "two"], "two")
        assert [each.type for each in made["messages"]] == ["human", "ai", "tool", "ai"]


async def test_messages_and_the_next_node_of_a_nested_command_hold(pool: Pool) -> None:
    @tool
    def stop(runtime: ToolRuntime[Any, Any]) -> Command[Any]:
        """Stop."""
        mine = ToolMessage("stopped", tool_call_id=str(runtime.tool_call_id))
        return Command(goto="__end__", update={"messages": [mine, ("human", "enough")]})

    async with running(pool, "return await tools.stop()", tools=[stop]) as (agent, _):
        made = await agent.run()
        assert [each.type for each in made["messages"]] == ["human", "ai", "tool", "human", "ai"]
        assert value(made, 2) == "stopped"


@pytest.mark.covers("FW-21")
async def test_callbacks_and_streams_show_nested_calls(pool: Pool) -> None:
    class Runs(AsyncCallbackHandler):
        parents: dict[Any, Any]

        async def on_tool_start(self, serialized: Any, input_str: Any, **given: Any) -> None:
            seen.append((serialized["name"], given["run_id"], given["parent_run_id"]))

    @tool
    def tell(n: int) -> int:
        """Tell a number."""
        get_stream_writer()({"told": n})
        return n

    seen: list[tuple[str, Any, Any]] = []
    source = "return await Promise.all([1, 2].map(n => tools.tell({n})))"
    async with running(pool, source, tools=[tell]) as (agent, _):
        config: Any = {"configurable": {"thread_id": "t"}, "callbacks": [Runs()]}
        told = [each async for each in agent.graph.astream(HI, config, stream_mode="custom")]
        assert sorted(each["told"] for each in told) == [1, 2]
        (first, outer, _), *nested = seen
        assert (first, [each[0] for each in nested]) == ("exec", ["tell", "tell"])
        assert {each[2] for each in nested} == {outer}


def test_a_synchronous_run_is_refused() -> None:
    graph = create_agent(Scripted(turns=["done"]), [note], middleware=[ClawMode()])
    with pytest.raises(NotImplementedError, match="ainvoke"):
        graph.invoke(HI)


def test_the_examples_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/integrations/langchain.md").read_text("utf-8")
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    many = (
        "return (await Promise.all(['apples', 'pears', 'plums'].map(item => tools.stock({item}))))"
    )
    mails = "return await Promise.all(['Ann', 'Bob'].map(to => tools.send_mail({to})))"

    def run(source: str, program: str, *arguments: str) -> str:
        model = Scripted(turns=[calls(program), lambda seen: str(seen[-1].content)])
        monkeypatch.setattr(sys, "argv", ["agent.py", *arguments])
        exec(source.replace('"anthropic:claude-sonnet-5"', "MODEL"), {"MODEL": model})
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    assert '"value":[6,5,5]' in run(first, many)
    assert "action_requests" in run(second, mails)
    made = run(second, mails, "approve", "reject")
    assert made.startswith("mail to Ann\n{")
    assert "rejected the tool call" in made


@pytest.mark.covers("FW-4")
def test_a_langchain_that_does_not_fit_is_named() -> None:
    check_versions(
        "langchain", r"needs langchain >=1.4.6,<2, .*clawmode\[langchain\]", None, "1.4.5", "2.0"
    )


async def test_a_deep_agent_works_with_its_files_and_subagents_in_one_program(pool: Pool) -> None:
    from deepagents import create_deep_agent

    source = """
    await tools.write_file({file_path: '/a.txt', content: 'hello'})
    await tools.edit_file({file_path: '/a.txt', old_string: 'hello', new_string: 'good day'})
    const text = await tools.read_file({file_path: '/a.txt'})
    const told = await Promise.all([1, 2].map(n => tools.task({
      subagent_type: 'helper', description: 'Tell ' + n})))
    await tools.send({to: 'Ann'})
    return [text, told]
    """
    mail = Mail()
    direct = {"name": "send", "args": {"to": "Bob"}, "id": "direct", "type": "tool_call"}
    helper: Any = {
        "name": "helper",
        "description": "Helps.",
        "system_prompt": "Help.",
        "model": Scripted(turns=[[direct], "I helped"]),
    }
    code_mode = ClawMode(pool=pool)
    agent = create_deep_agent(
        Scripted(turns=[calls(source), "done"]),
        mail.tools,
        middleware=[code_mode],
        subagents=[helper],
        interrupt_on={"send": True},
        checkpointer=InMemorySaver(),
    )
    config: Any = {"configurable": {"thread_id": "t"}}
    made, requests = await agent.ainvoke(HI, config), list[Any]()
    while "__interrupt__" in made:  # one of each subagent, and one of the program
        requests += asked(made)
        made = await agent.ainvoke(Command(resume={"decisions": [APPROVE]}), config)
    assert [each["action_requests"][0]["args"]["to"] for each in requests] == ["Bob", "Bob", "Ann"]
    text, told = value(made)
    assert ("good day" in text, told) == (True, ["I helped", "I helped"])
    assert mail.sent == ["Bob", "Bob", "Ann"]
    assert list(made["files"]) == ["/a.txt"]
    await code_mode.aclose()
