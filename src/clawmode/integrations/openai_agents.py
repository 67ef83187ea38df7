"""Code mode in the OpenAI Agents SDK: `ClawMode(…).wrap(agent)`.

`exec` and `wait` are agents used as tools, because the SDK interrupts only those half way. The
agent behind them has no language model: the program takes the place of the model. Where the program
asks people, it "calls" tools that need approval. So the SDK shows these calls in
`result.interruptions`, keeps them in `RunState`, and brings back the answers.
"""

import copy
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeVar, Unpack

from clawmode.integrations import require

require("openai-agents", "openai-agents", "0.24", "0.25")

import agents
from agents import FunctionTool, RunContextWrapper, ToolOutputText, agent_tool_state
from agents import tool as function_tools
from agents.run_internal import agent_bindings, run_steps, tool_execution
from agents.tool_context import ToolContext
from openai.types import responses

from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.integrations.records import Answer, Outcome
from clawmode.integrations.session import RunEnds, Session
from clawmode.integrations.sessions import Sessions, SessionSettings
from clawmode.tools.hooks import ApprovalNeeded
from clawmode.tools.tool import ToolContext as NestedCall
from clawmode.types import JsonObject

TContext = TypeVar("TContext")
Functions = dict[str, FunctionTool]

ALWAYS = "always approved"
TRIPPED = agents.ToolInputGuardrailTripwireTriggered, agents.ToolOutputGuardrailTripwireTriggered
ASKS_ITSELF = "asks for approvals itself: let the agent call it directly, with ClawMode(direct=[…])"


@dataclass(slots=True)
class _Entry:
    """A call of `exec` or `wait` that is under way, with the function tools of its turn."""

    agent: "_WrappedAgent[Any]"
    session: "Session[_Entry]"
    functions: Functions
    name: str
    context: ToolContext[Any]
    arguments: str
    outcome: Outcome = field(default_factory=lambda: Outcome({}))

    async def proceed(self, answers: dict[str, Answer] | None = None) -> Outcome:
        """Makes a new call, or continues it with answers."""
        call = self.name, self.arguments, self.context.tool_call_id
        again = None if answers else False
        self.outcome = await self.session.call(*call, self, answers=answers, again=again)
        return self.outcome


_entered: ContextVar[_Entry] = ContextVar("clawmode_entered")


class ClawMode(Sessions[_Entry]):
    """Code mode for agents of the OpenAI Agents SDK.

    Args:
        session: The session of a run, the same after a restart, or a function that returns it.
        direct: Names of function tools that the agent calls itself, beside `exec`.
        run_hooks: The hooks that you pass to `Runner.run`, for nested calls too: the SDK does not
            show them to tools. Those of `agent.hooks` need not be given.
        settings: See `SessionSettings`.
    """

    def __init__(
        self,
        *,
        session: str | Callable[[RunContextWrapper[Any]], str] = "main",
        direct: Iterable[str] = (),
        run_hooks: agents.RunHooks[Any] | None = None,
        **settings: Unpack[SessionSettings],
    ) -> None:
        super().__init__(**settings)
        self.session = (lambda context: session) if isinstance(session, str) else session
        self.direct, self.run_hooks = frozenset(direct), run_hooks or agents.RunHooks[Any]()
        if self.direct & {"exec", "wait"}:
            raise ConfigurationError("direct: `exec` and `wait` are the tools of code mode itself")

    def wrap(self, agent: agents.Agent[TContext]) -> agents.Agent[TContext]:
        """Returns an agent that has `exec` and `wait` in place of its function tools and servers.

        Hosted tools, handoffs and the tools that `direct` names stay with the agent.
        """
        if type(agent) is not agents.Agent:
            raise ConfigurationError(f"wrap: found {type(agent).__name__}, expected a plain Agent")
        given = {each.name: getattr(agent, each.name) for each in fields(agent) if each.init}
        program = _ProgramAgent("clawmode", model=_Program())
        # `RunState` looks for agents in this list.
        given["tools"] = [*agent.tools, program.as_tool("exec", "", is_enabled=False)]
        return _WrappedAgent(**given, clawmode=self, program=program)


class _Program(agents.Model):
    """The program in the place of a model: asks for approvals until it has ended."""

    async def get_response(
        self, system_instructions: str | None, input: str | list[Any], *_: Any, **__: Any
    ) -> agents.ModelResponse:
        items = list[Any]() if isinstance(input, str) else input
        entered, answers = _entered.get(), dict[str, Answer]()
        for item in items:
            if item.get("type") == "function_call_output":
                given, asked_id = item["output"], item["call_id"].rpartition(".")[0]
                # A rejection is a string, whose text somebody has chosen; `_approve` gives a list.
                denied = Answer(False, given) if isinstance(given, str) else None
                answers[asked_id] = denied or Answer(True, always=given[0]["text"] == ALWAYS)
        if answers:
            await entered.proceed(answers)
        # A question that is put again, with another input, is another call for the SDK.
        calls = [_call(q.tool, q.input, f"{q.id}.{len(items)}") for q in entered.outcome.asked]
        text = responses.ResponseOutputText(type="output_text", text="ended", annotations=[])
        ended = responses.ResponseOutputMessage(
            id="program", type="message", role="assistant", status="completed", content=[text]
        )
        return agents.ModelResponse([*calls] or [ended], agents.Usage(), None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("The SDK streams an agent as a tool only if somebody listens.")


@dataclass
class _ProgramAgent(agents.Agent[Any]):
    """The agent behind `exec` and `wait`. Its tools stand for calls that people have to approve."""

    names: set[str] = field(default_factory=lambda: {"exec"}, kw_only=True)

    async def get_all_tools(self, run_context: RunContextWrapper[Any]) -> list[agents.Tool]:
        return [
            FunctionTool(name, "", {}, _approve, strict_json_schema=False, needs_approval=True)
            for name in sorted(self.names)
        ]


async def _approve(context: ToolContext[Any], arguments: str) -> object:
    always = context.is_tool_approved(context.tool_name, "another call") is True
    return [ToolOutputText(text=ALWAYS if always else "approved")]


def _call(name: str, params: JsonObject, call_id: str) -> responses.ResponseFunctionToolCall:
    return responses.ResponseFunctionToolCall(
        type="function_call", name=name, arguments=json.dumps(params), call_id=call_id
    )


@dataclass
class _WrappedAgent(agents.Agent[TContext]):
    """An agent whose function tools are behind `exec`."""

    clawmode: ClawMode = field(kw_only=True)
    program: _ProgramAgent = field(kw_only=True)

    async def get_all_tools(self, run_context: RunContextWrapper[TContext]) -> list[agents.Tool]:
        found, direct = await super().get_all_tools(run_context), self.clawmode.direct
        moved = [each for each in found if isinstance(each, FunctionTool)]
        behind = {each.qualified_name: each for each in moved if each.name not in direct}
        own = [each for each in found if getattr(each, "qualified_name", "") not in behind]
        # Each agent has its own session, because its tools differ.
        key = json.dumps([self.clawmode.session(run_context), self.name])
        session, offered = await self.clawmode.open(key), list(self.clawmode.tools)
        for name, tool in behind.items():
            given = name, tool.description, tool.params_json_schema, partial(_run, name)
            offered.append(session.tool(*given, output_schema=tool.output_json_schema))
        session.code_mode.offer(offered)
        # As in questions: a name may have colons.
        self.program.names |= {tool.id.rpartition(":")[2] for tool in session.code_mode.tools}
        return [*(self._tool(session, behind, each) for each in session.definitions()), *own]

    def _tool(self, session: Session[_Entry], behind: Functions, given: Any) -> agents.Tool:
        name, description = given["name"], given["description"]

        async def enter(context: ToolContext[Any], arguments: str) -> object:
            entered = _Entry(self, session, behind, name, context, arguments)
            again = context.tool_call and agent_tool_state.peek_agent_tool_run_result(
                context.tool_call, scope_id=agent_tool_state.get_agent_tool_state_scope(context)
            )
            # The SDK cannot interrupt a freeform tool: the model calls `wait`, which asks.
            if again or ((await entered.proceed()).asked and not is_freeform):
                _entered.set(entered)
                await ask(context, '{"input": ""}')
            text, images = entered.outcome.text, entered.outcome.images
            shown = [agents.ToolOutputImage(image_url=f"data:{k};base64,{v}") for v, k in images]
            return [ToolOutputText(text=text), *shown] if shown else text

        is_freeform = name == "exec" and session.code_mode.config.dialect == "codex"
        if is_freeform:
            return agents.CustomTool(name, description, enter, format={"type": "text"})
        tool = self.program.as_tool(
            *(name, description),
            # Not the settings of the run: its model would take the place of the program.
            run_config=agents.RunConfig(trace_include_sensitive_data=False),
            max_turns=10_000,  # how often a program may ask people in one call
            failure_error_function=None,
        )
        ask, tool.on_invoke_tool = tool.on_invoke_tool, enter
        tool.params_json_schema, tool.strict_json_schema = given["inputSchema"], False
        return tool


async def _run(name: str, entered: _Entry, params: JsonObject, call: NestedCall) -> object:
    """Makes a nested call as the SDK makes its own, but raises errors, for the program."""
    tool, parent = copy.copy(entered.functions[name]), entered.context
    explain = function_tools.resolve_function_tool_failure_error_function(tool)
    function_tools.set_function_tool_failure_error_function(tool, None)
    tool.timeout_behavior = "raise_exception"
    made = _call(tool.name, params, call.call_id)
    # Without the approvals of the run, which are about the calls of the model.
    context = ToolContext(parent.context, parent.usage, tool.name, call.call_id, made.arguments)
    if call.approved:
        context.approve_tool(agents.ToolApprovalItem(entered.agent, made, tool.name))
    checked = list[Any]()
    try:
        (done,), *_ = await tool_execution.execute_function_tool_calls(
            bindings=agent_bindings.bind_public_agent(entered.agent),
            tool_runs=[run_steps.ToolRunFunction(made, tool)],
            hooks=entered.agent.clawmode.run_hooks,
            context_wrapper=context,
            config=parent.run_config or agents.RunConfig(),
            tool_input_guardrail_results=checked,
            tool_output_guardrail_results=checked,
        )
    except TRIPPED as tripped:
        raise RunEnds from tripped
    except agents.UserError as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        if explain is None or explain is function_tools.default_tool_error_function:
            raise cause from None
        text = explain(context, cause)
        raise ClawmodeError(await text if inspect.isawaitable(text) else text) from None
    if isinstance(done.run_item, agents.ToolApprovalItem):
        raise ApprovalNeeded(f"Run {name}?")
    if done.interruptions:
        raise ClawmodeError(f"{name} {ASKS_ITSELF}")
    for each in checked:
        if each.output.behavior["type"] == "reject_content":
            raise ClawmodeError(each.output.behavior["message"])
    return done.output
