"""Code mode in the Microsoft Agent Framework: `Agent(context_providers=[ClawMode([…])])`.

`ClawMode` is a context provider that adds `exec` and `wait` to each run. A program that asks people
returns a `function_approval_request` for its `exec` or `wait`, which names the nested calls. When
the response comes, the framework calls the same function again, with the response.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from clawmode.integrations import require

require("agent-framework-core", "agent-framework", "1.23", "2")

from agent_framework import (
    SKIP_PARSING,
    AgentSession,
    Content,
    ContextProvider,
    FunctionInvocationContext,
    FunctionTool,
    MiddlewareFailure,
    MiddlewareTermination,
    SessionContext,
    function_middleware,
    normalize_tools,
)
from agent_framework._middleware import FunctionMiddlewarePipeline, categorize_middleware

from clawmode.exceptions import ConfigurationError
from clawmode.integrations.records import read_answers
from clawmode.integrations.session import RunEnds, Session
from clawmode.integrations.sessions import Sessions, SessionSettings
from clawmode.tools.hooks import ApprovalNeeded
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject


@dataclass(slots=True)
class _Entry:
    """A call of `exec` or `wait` that is under way, with the middleware of its run."""

    context: FunctionInvocationContext
    pipeline: FunctionMiddlewarePipeline


@function_middleware
async def _see_call_ids(context: FunctionInvocationContext, call_next: Callable[[], Any]) -> None:
    """Does nothing: the framework gives the ids of calls to functions only if there is one."""
    await call_next()


class ClawMode(Sessions[_Entry], ContextProvider):
    """Code mode for agents of the Microsoft Agent Framework.

    Args:
        functions: What programs can call: functions, tools and MCP tools of the framework. Do not
            give them to the agent too, which would call them itself.
        middleware: Function middleware that you pass to `agent.run`, for nested calls too. That of
            the agent and of its client is found.
        source_id: The name of the provider in the session.
        settings: See `SessionSettings`.
    """

    def __init__(
        self,
        functions: Iterable[Any] = (),
        *,
        middleware: Sequence[Any] = (),
        source_id: str = "clawmode",
        **settings: Unpack[SessionSettings],
    ) -> None:
        Sessions.__init__(self, **settings)
        ContextProvider.__init__(self, source_id)
        self._given = list(functions)
        self._middleware = list(middleware)

    async def before_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Adds `exec` and `wait`, and ends programs whose questions were rejected."""
        opened = await self.open(session.session_id)
        for message in context.input_messages:
            for content in message.contents:
                call = (
                    content.function_call if content.type == "function_approval_response" else None
                )
                if call is not None and not content.approved and call.name in ("exec", "wait"):
                    await opened.end(call.name, str(call.id or call.call_id))
        opened.offer(list(self._functions()), lambda each: _offered(opened, each))
        found = [*(getattr(agent, "middleware", None) or ()), *self._middleware]
        client = getattr(getattr(agent, "client", None), "function_middleware", ())
        pipeline = FunctionMiddlewarePipeline(*client, *categorize_middleware(found)["function"])
        ours = [_tool(opened, each, pipeline) for each in opened.definitions()]
        context.extend_tools(self.source_id, ours)
        context.extend_middleware(self.source_id, [_see_call_ids])

    def _functions(self) -> Iterable[FunctionTool]:
        for each in normalize_tools(self._given):
            if not isinstance(each, FunctionTool) and hasattr(each, "functions"):
                yield from each.functions  # of an MCP server, if it is connected
            elif isinstance(each, FunctionTool) and not each.declaration_only:
                yield each
            else:
                kind = getattr(each, "name", type(each).__name__)
                raise ConfigurationError(f"programs cannot call {kind}: give it to the agent")


def _tool(
    session: Session[_Entry], definition: dict[str, Any], pipeline: FunctionMiddlewarePipeline
) -> FunctionTool:
    name = str(definition["name"])

    async def enter(context: FunctionInvocationContext, **given: Any) -> Any:
        call_id = str(context.metadata["call_id"])
        occurrence = context.metadata.get("function_call_occurrence_id")  # unlike ids, unique
        response = context.metadata.get("approval_response")
        answers = None if response is None else read_answers(response.additional_properties)
        entered = _Entry(context, pipeline)
        key = occurrence or call_id
        outcome = await session.call(name, given, key, entered, answers=answers)
        if outcome.asked:
            call = Content.from_function_call(
                call_id, name, arguments=json.dumps(given), id=occurrence
            )
            return Content.from_function_approval_request(
                key, call, additional_properties=outcome.questions()
            )
        urls = [f"data:{kind};base64,{data}" for data, kind in outcome.images]
        images = [Content.from_uri(url) for url in urls]
        return [Content.from_text(outcome.text), *images] if images else outcome.text

    return FunctionTool(
        name=name,
        description=str(definition["description"]),
        input_model=definition["inputSchema"],
        func=enter,
        approval_mode="never_require",
        result_parser=SKIP_PARSING,
    )


def _offered(session: Session[_Entry], tool: FunctionTool) -> Tool:
    async def run(entered: _Entry, params: JsonObject, call: ToolContext) -> object:
        """Makes a nested call through the middleware, as the framework does."""
        if tool.approval_mode == "always_require" and not call.approved:
            raise ApprovalNeeded(f"Run {tool.name}?")
        parent = entered.context
        context = FunctionInvocationContext(
            tool, params, session=parent.session, kwargs=dict(parent.kwargs)
        )
        context.metadata["call_id"] = call.call_id
        made = Content.from_function_call(call.call_id, tool.name, arguments=json.dumps(params))
        if call.approved:
            approved = Content.from_function_approval_response(True, call.call_id, made)
            context.metadata["approval_response"] = approved

        async def finish(inner: FunctionInvocationContext) -> Any:
            return await tool.invoke(
                arguments=inner.arguments,
                context=inner,
                tool_call_id=call.call_id,
                skip_parsing=True,
            )

        try:
            result = await entered.pipeline.execute(context, finish)
        except (MiddlewareTermination, MiddlewareFailure) as error:
            raise RunEnds from error
        if isinstance(result, Content) and result.type == "function_approval_request":
            raise ApprovalNeeded(f"Run {tool.name}?")
        return _plain(result)

    return session.tool(tool.name, tool.description, tool.parameters(), run)


def _plain(result: Any) -> Any:
    """Returns a result as a program reads it: contents become their text, or objects."""
    if isinstance(result, Content):
        return result.text if result.type == "text" else result.to_dict()
    if isinstance(result, list) and result and all(isinstance(each, Content) for each in result):
        texts = [_plain(each) for each in result]
        return "\n".join(texts) if all(isinstance(each, str) for each in texts) else texts
    return result
