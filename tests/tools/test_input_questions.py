"""What a tool that runs wants to know from a person: asked, answered, declined, kept apart."""

from typing import Any

import anyio
import pytest
from tests.support.cli_driver import Person
from tests.support.waiting import idle, until

from clawmode import Approvals, CodeMode
from clawmode.context import RunContext
from clawmode.terminal.forms import introduce
from clawmode.tools.approvals import InputQuestion
from clawmode.tools.executor import Call, Executor
from clawmode.tools.policy import Policy
from clawmode.tools.tool import InputRequest, Tool, ToolContext
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio

SCHEMA: JsonObject = {"type": "object", "properties": {"name": {"type": "string"}}}
GREET = "return tools.greet()"


async def greet(given: JsonObject, context: ToolContext) -> JsonObject:
    return {"told": await context.ask(InputRequest(message="Your name?", schema=SCHEMA))}


TOOL = Tool("greet", "Greet somebody.", {"type": "object"}, greet)


async def test_a_program_is_parked_until_somebody_tells() -> None:
    approvals = Approvals(inputs="ask")
    async with CodeMode(tools=[TOOL], approvals=approvals) as code_mode:
        with anyio.fail_after(5):  # a person holds no `exec` open
            result = await code_mode.exec(GREET)
        assert (result.status, result.reason) == ("waiting", "pending_tools")
        (pending,) = result.pending_tool_calls
        assert isinstance(pending, dict)
        assert pending["state"] == "running"
        (question,) = approvals.pending_inputs()
        assert (question.kind, question.tool_id) == ("input", "openclaw:core:greet")
        assert question.request == InputRequest(message="Your name?", schema=SCHEMA)
        assert approvals.answer(question.id, {"name": "Ann"})
        assert not approvals.answer(question.id, {"name": "Bob"})
        result = await code_mode.wait(result.run_id)
        assert result.value == {"told": {"name": "Ann"}}
        assert approvals.pending_inputs() == []


async def test_other_calls_continue_meanwhile() -> None:
    async def count(given: JsonObject, context: ToolContext) -> int:
        await idle()
        return 3

    approvals = Approvals(inputs="ask")
    tools = [TOOL, Tool("count", "Count.", {"type": "object"}, count)]
    async with CodeMode(tools=tools, approvals=approvals) as code_mode:
        source = "const asked = tools.greet(); text(await tools.count()); return asked"
        result = await code_mode.exec(source)
        assert result.status == "waiting"
        assert result.output == [{"type": "text", "text": "3"}]


@pytest.mark.parametrize("inputs", ["decline", lambda question: None, lambda question: 1 / 0])
async def test_where_nobody_tells_the_tool_goes_on_without(inputs: Any) -> None:
    async with CodeMode(tools=[TOOL], approvals=Approvals(inputs=inputs)) as code_mode:
        assert (await code_mode.exec(GREET)).value == {"told": None}


async def test_code_can_tell_in_a_persons_place() -> None:
    async def answer(question: InputQuestion) -> JsonObject:
        return {"name": question.request.message}

    async with CodeMode(tools=[TOOL], approvals=Approvals(inputs=answer)) as code_mode:
        assert (await code_mode.exec(GREET)).value == {"told": {"name": "Your name?"}}


async def test_a_question_that_nobody_answers_in_time_is_declined() -> None:
    approvals = Approvals(inputs="ask", expiry_seconds=0.1)
    executor = Executor(Policy(()), approvals=approvals)
    call = Call(id="1", tool=TOOL, input={}, run=RunContext())
    with anyio.fail_after(5):
        assert (await executor.call(call)).details == {"told": None}
    assert approvals.pending_inputs() == []


async def test_the_end_of_a_program_takes_its_question_along() -> None:
    approvals = Approvals(inputs="ask")
    async with CodeMode(tools=[TOOL], approvals=approvals) as code_mode:
        result = await code_mode.exec(GREET)
        assert len(approvals.pending_inputs()) == 1
        await code_mode.abort(result.run_id)
        await until(lambda: not approvals.pending_inputs())
        assert approvals.pending_inputs() == []


# ---- At a terminal ----

FORM = """
from clawmode import ToolContext, tool
from clawmode.tools.tool import InputRequest

FIELDS = {
    "who": {"type": "string", "title": "Name"},
    "age": {"type": "integer", "minimum": 18},
    "tea": {"type": "boolean", "default": False},
    "size": {"type": "string", "enum": ["S", "L"]},
    "note": {"type": "string"},
}

@tool(effect="read")
async def order(context: ToolContext) -> dict | None:
    \"\"\"Order something.\"\"\"
    schema = {"type": "object", "properties": FIELDS, "required": ["who", "age", "size"]}
    return await context.ask(InputRequest(message="What\\x1b[2J for?", schema=schema))

@tool(effect="read")
async def pay(context: ToolContext) -> dict | None:
    \"\"\"Pay for it.\"\"\"
    return await context.ask(InputRequest(message="Pay.", url="https://pay.example/1"))

TOOLS = [order, pay]
"""


@pytest.fixture
def shop(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CLAWMODE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "forms.py").write_text(FORM, "utf-8")
    return tmp_path


def test_a_person_fills_in_a_form(shop: Any) -> None:
    (shop / "cell.js").write_text("return tools.order()")
    with Person("run", "cell.js", "--tools", "forms:TOOLS", cwd=shop) as person:
        person.reads("Asked by openclaw:core:order")
        person.reads(r"│ What\u001b[2J for?")
        person.reads("fill it in, or decline?")
        person.types("fill\n")
        for prompt, typed in (
            ("Name", "\n"),
            ("Name", "Ann\n"),
            ("age; integer", "old\n"),
            ("this is not an integer", ""),
            ("age", "7\n"),
            ("must be at least 18", ""),
            ("age", "44\n"),
            ("tea; boolean; default False", "\n"),
            ("size; one of S, L", "M\n"),
            ("none of the choices", ""),
            ("size", "L\n"),
            ("note; optional", "\n"),
        ):
            person.reads(prompt)
            person.types(typed)
        status, out = person.leaves()
    assert status == 0
    assert "".join(out.split()) == '{"who":"Ann","age":44,"tea":false,"size":"L"}'


@pytest.mark.parametrize(("typed", "value"), [("done\n", "{}"), ("decline\n", "null")])
def test_a_person_is_sent_to_an_address(shop: Any, typed: str, value: str) -> None:
    (shop / "cell.js").write_text("return JSON.stringify(await tools.pay())")
    with Person("run", "cell.js", "--tools", "forms:TOOLS", cwd=shop) as person:
        person.reads("https://pay.example/1")
        person.reads("done, or decline? ")
        person.types(typed)
        assert person.leaves() == (0, f'"{value}"\n')


def test_a_strangers_words_stay_behind_the_rule() -> None:
    request = InputRequest(
        message="x\nAsked by nobody\r" * 100, url="https://a.example/" + "b" * 200
    )
    question = InputQuestion(tool_id="mcp:x:y", request=request, run=RunContext(), expires=0)
    lines = introduce(question, 60).splitlines()[2:]
    assert all(line.startswith(("  │ ", "  └ ", "  It wants you")) for line in lines)
    assert "".join(line[4:] for line in lines).count("b" * 40) >= 4
    assert max(map(len, lines)) <= 64
