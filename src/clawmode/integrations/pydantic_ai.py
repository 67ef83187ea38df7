"""pydantic-ai: a capability that gives an agent `exec` and `wait`, and its tools to their programs.

Nested calls go through a `ToolManager`, so that hooks, usage limits and spans of the agent apply.
"""

import contextlib
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Literal, TypeAlias, Unpack

import anyio

from clawmode.exceptions import ClawmodeError
from clawmode.integrations import require

require("pydantic-ai-slim", "pydantic-ai", at_least="2.60", below="3")

from pydantic_ai import ApprovalRequired, CallDeferred, RunContext, ToolDefinition, messages
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering, ToolSearch
from pydantic_ai.exceptions import ToolFailed, UsageLimitExceeded, UserError
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.tools import AgentDepsT, ToolDenied, ToolSelector, matches_tool_selector
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
from pydantic_ai.toolsets.external import TOOL_SCHEMA_VALIDATOR

from clawmode.integrations.records import read_answers, unique_id
from clawmode.integrations.session import RunEnds, Session
from clawmode.integrations.sessions import Sessions, SessionSettings
from clawmode.tools.hooks import ApprovalNeeded
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject

Status: TypeAlias = Literal["started", "asked", "completed", "failed"]
RUNS_ELSEWHERE = "The result comes from outside of the agent: list the tool in ClawMode(direct=…)."


@dataclass(kw_only=True)
class NestedCallEvent(messages.CapabilityEvent, namespace="clawmode"):
    """Reports a nested call in the stream of events. `tool_call_id` is the `exec` or `wait`."""

    nested: messages.ToolCallPart
    status: Status


@dataclass
class _Entry(Generic[AgentDepsT]):
    """A call of `exec` or `wait`, for its nested calls, and what they add to its result."""

    ctx: RunContext[AgentDepsT]
    manager: ToolManager[AgentDepsT]
    content: list[messages.UserContent] = field(default_factory=list[messages.UserContent])
    revealed: list[str] = field(default_factory=list[str])
    alone: anyio.Lock = field(default_factory=anyio.Lock)

    async def emit(self, part: messages.ToolCallPart, status: Status) -> None:
        with contextlib.suppress(UserError):  # the run has ended, and the call continues
            await self.ctx.emit(NestedCallEvent(nested=part, status=status))

    async def manage(self, part: messages.ToolCallPart, *, approved: bool) -> Any:
        """Makes a call as pydantic-ai makes those of a model, within the limit of calls."""
        limits, usage = self.ctx.usage_limits, self.ctx.usage
        if limits is not None:
            # Calls are counted when they have ended, but a program makes many at once.
            limits.check_before_tool_call(replace(usage, tool_calls=usage.tool_calls + 2))
        mode = self.manager.get_parallel_execution_mode()
        one_by_one = mode == "sequential" or self.manager.is_sequential(part)
        usage.tool_calls += 1
        try:
            async with self.alone if one_by_one else contextlib.nullcontext():
                return await self.manager.handle_call(
                    part, approved=approved, wrap_validation_errors=False
                )
        finally:
            usage.tool_calls -= 1

    async def call(self, part: messages.ToolCallPart, *, approved: bool) -> object:
        """Makes a nested call for a program."""
        status: Status = "failed"
        await self.emit(part, "started")
        try:
            result = await self.manage(part, approved=approved)
            if isinstance(result, ToolDenied):  # by a handler of the agent
                raise ClawmodeError(result.message)
            status = "completed"
        except ApprovalRequired as need:
            status = "asked"
            shown = "\n".join(f"{key}: {value}" for key, value in (need.metadata or {}).items())
            raise ApprovalNeeded(f"Call {part.tool_name}?", shown) from None
        except CallDeferred:
            raise ClawmodeError(RUNS_ELSEWHERE) from None
        except UsageLimitExceeded as error:
            raise RunEnds from error
        finally:
            await self.emit(part, status)
        if not isinstance(result, messages.ToolReturn):
            return result
        added = result.content or []
        self.content += [added] if isinstance(added, str) else added
        self.revealed += result.tools or []
        return result.return_value


@dataclass(kw_only=True)
class _CodeModeTool(ToolsetTool[AgentDepsT]):
    """`exec` or `wait`, with the tools that programs can call in this step of the run."""

    session: Session[_Entry[AgentDepsT]]
    nested: dict[str, ToolsetTool[AgentDepsT]]


@dataclass
class _CodeModeToolset(WrapperToolset[AgentDepsT]):
    """The agent's tools, some of them behind `exec` and `wait`."""

    clawmode: "ClawMode[AgentDepsT]"

    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:
        direct, nested = dict[str, ToolsetTool[AgentDepsT]](), dict[str, ToolsetTool[AgentDepsT]]()
        for name, tool in (await self.wrapped.get_tools(ctx)).items():
            stays_direct = (
                tool.tool_def.kind == "external"
                or tool.tool_def.tool_kind in ("tool-search", "capability-load")
                or tool.tool_def.unless_native is not None
                or not ctx.is_tool_available(tool.tool_def)
                or await matches_tool_selector(self.clawmode.direct, ctx, tool.tool_def)
            )
            (direct if stays_direct else nested)[name] = tool
        session = await self.clawmode.sessions.open(self.clawmode.session(ctx))
        session.offer([tool.tool_def for tool in nested.values()], partial(_tool, session))
        definitions: Any = session.definitions()
        for given in definitions:
            if (name := given["name"]) in direct:
                raise UserError(f"The name {name!r} is taken by code mode: rename your tool.")
            direct[name] = _CodeModeTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=name,
                    description=given["description"],
                    parameters_json_schema=given["inputSchema"],
                    capability_id=self.clawmode.id,
                ),
                max_retries=1,
                args_validator=TOOL_SCHEMA_VALIDATOR,
                session=session,
                nested=nested,
            )
        return direct

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[AgentDepsT],
        tool: ToolsetTool[AgentDepsT],
    ) -> Any:
        if not isinstance(tool, _CodeModeTool):
            return await self.wrapped.call_tool(name, tool_args, ctx, tool)
        if (manager := ctx.tool_manager) is None:  # in an activity of Temporal
            raise UserError("ClawMode needs the `tool_manager` of a run, which is missing here.")
        entry = _Entry(ctx, ToolManager(self.wrapped, manager.root_capability, ctx, tool.nested))
        call_id, history = _unique(ctx.messages, ctx.tool_call_id or name), ctx.messages
        at = max(i for i, each in enumerate(history) if isinstance(each, messages.ModelResponse))
        # The history keeps which questions were shown: an approval is for these only.
        key, kept = f"clawmode {call_id}", history[at].metadata or {}
        given = {**kept.get(key, {}), **(ctx.tool_call_metadata or {})}
        answers = read_answers(given) if ctx.tool_call_approved else None
        outcome = await tool.session.call(name, tool_args, call_id, entry, answers=answers)
        if outcome.asked:
            shown = {**(history[at].metadata or {}), key: outcome.ids()}
            history[at] = replace(history[at], metadata=shown)
            raise ApprovalRequired(metadata=dict(outcome.questions()))
        if outcome.result["status"] == "failed":
            raise ToolFailed(outcome.text)
        seen = [messages.BinaryContent(b64decode(b), media_type=t) for b, t in outcome.images]
        full = [outcome.text, *seen] if seen else outcome.text
        content, tools = entry.content or None, entry.revealed or None
        return messages.ToolReturn(full, content=content, tools=tools)


class ClawMode(AbstractCapability[AgentDepsT]):
    """Gives an agent `exec` and `wait`. Its tools become functions of the programs.

    Args:
        direct: Tools that the model calls directly instead: names, or another selector. Tools whose
            results come from outside of the agent, and those that are not revealed yet, always are.
        session: Names the session of a run, which programs belong to. The default is the id of the
            conversation, a part of message histories: clients that send histories can choose it.
        settings: See `SessionSettings`. Programs in a `SqliteStore` survive the process.
    """

    id = "clawmode"

    def __init__(
        self,
        *,
        direct: ToolSelector[AgentDepsT] = (),
        session: Callable[[RunContext[AgentDepsT]], str] | None = None,
        **settings: Unpack[SessionSettings],
    ) -> None:
        self.sessions = Sessions[_Entry[AgentDepsT]](**settings)
        self.direct = direct
        self.session = session or (lambda ctx: ctx.conversation_id or "default")

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="outermost", wraps=[ToolSearch])

    def get_wrapper_toolset(
        self, toolset: AbstractToolset[AgentDepsT]
    ) -> AbstractToolset[AgentDepsT]:
        return _CodeModeToolset(toolset, self)

    async def before_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Ends programs whose `exec` or `wait` was denied: nobody will continue them."""
        for part in request_context.messages[-1].parts:
            if isinstance(part, messages.ToolReturnPart) and part.outcome == "denied":
                session = await self.sessions.open(self.session(ctx))
                await session.end(part.tool_name, _unique(ctx.messages, part.tool_call_id))
        return request_context

    async def aclose(self) -> None:
        """Ends the workers. Programs in a durable store stay there."""
        await self.sessions.aclose()


def _unique(history: Sequence[messages.ModelMessage], call_id: str) -> str:
    parts = (part for each in history for part in each.parts)
    made = (each.tool_call_id for each in parts if isinstance(each, messages.ToolCallPart))
    return unique_id(call_id, made)


def _tool(session: Session[_Entry[AgentDepsT]], definition: ToolDefinition) -> Tool:
    """Returns a tool of the agent as one that programs can call."""
    annotations = (definition.metadata or {}).get("annotations") or {}
    described = definition.name, definition.description or "", definition.parameters_json_schema

    async def run(entry: _Entry[AgentDepsT], params: JsonObject, call: ToolContext) -> object:
        part = messages.ToolCallPart(definition.name, params, call.call_id)
        return await entry.call(part, approved=call.approved)

    return session.tool(
        *described,
        run,
        output_schema=definition.return_schema,
        effect="read" if annotations.get("readOnlyHint") is True else None,
    )
