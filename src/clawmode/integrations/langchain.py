"""LangChain, LangGraph and deepagents: `ClawMode`, a middleware for `create_agent`.

The model sees `exec` and `wait` in place of the agent's tools. Nested calls go through the agent's
own `ToolNode`, with its middleware, injected arguments and callbacks. LangGraph enters a call that
was interrupted again from its start: then the program is continued, and never started twice.
"""

from clawmode.integrations import require

require("langchain", "langchain", "1.4.6", "2")
require("langgraph", "langchain", "1.2.12", "2")

import functools
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, NotRequired, TypeAlias, Unpack
from weakref import WeakKeyDictionary

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.config import get_config
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt
from pydantic import AfterValidator, WithJsonSchema

from clawmode.exceptions import ConfigurationError
from clawmode.integrations.langgraph_calls import Entry, NestedCall, shown
from clawmode.integrations.records import Answer, NestedQuestion, Outcome
from clawmode.integrations.session import Session
from clawmode.integrations.sessions import Sessions, SessionSettings
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject

OURS = ("exec", "wait")
NOT_SYNC = "Programs run in an event loop: run the agent with `ainvoke` or `astream`."

Handler: TypeAlias = Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]


class ClawModeState(AgentState[Any]):
    """The part of an agent's state that the middleware needs."""

    clawmode_session: NotRequired[Annotated[str, PrivateStateAttr]]


class ClawMode(AgentMiddleware[Any, Any, Any]):
    """Lets the model of an agent call the agent's tools from programs.

    `create_agent(model, tools, middleware=[ClawMode()])`, or `create_deep_agent`. The agent must be
    run with `ainvoke` or `astream`. The programs of a thread are one session.

    Args:
        direct: Names of tools that the model calls directly, as without this middleware. Tools
            that the provider runs are always direct.
        interrupt_mode: How people are asked: all calls that wait at once (`batched`, a
            `HITLRequest`), or each by itself (`per_call`, a `ToolApprovalRequest`). By default as
            the `HumanInTheLoopMiddleware` of the agent does it, and `batched` without one.
        settings: See `SessionSettings`. With `store=SqliteStore(folder)` and a checkpointer, a
            question can be answered after a restart.
    """

    state_schema = ClawModeState

    def __init__(
        self,
        *,
        direct: Iterable[str] = (),
        interrupt_mode: Literal["batched", "per_call"] | None = None,
        **settings: Unpack[SessionSettings],
    ) -> None:
        self._direct = frozenset([direct] if isinstance(direct, str) else direct)
        if taken := self._direct.intersection(OURS):
            raise ConfigurationError(
                f"direct: {min(taken)!r} is a tool of code mode: rename yours."
            )
        self._mode = interrupt_mode
        self._sessions = Sessions[Entry](**settings)
        self._offered = WeakKeyDictionary[Session[Entry], list[BaseTool]]()
        self._nested: dict[str, NestedCall] = {}
        self._ours = [_placeholder(name) for name in OURS]
        self.tools = self._ours

    async def aclose(self) -> None:
        """Ends the workers. Programs in a durable store stay there."""
        await self._sessions.aclose()

    # ---- What the model sees ----

    def before_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        if "clawmode_session" in state or "thread_id" in get_config().get("configurable", {}):
            return None
        return {"clawmode_session": uuid.uuid4().hex}  # nothing else tells such runs apart

    def wrap_model_call(self, request: ModelRequest[Any], handler: Any) -> ModelResponse[Any]:
        raise NotImplementedError(NOT_SYNC)

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        session = await self._open(request.state)
        self._offer(session, request.tools)
        ours = [
            own.model_copy(
                update={"description": given["description"], "args_schema": given["inputSchema"]}
            )
            for own, given in zip(self._ours, session.definitions(), strict=True)
        ]
        direct = [x for x in request.tools if isinstance(x, dict) or x.name in self._direct]
        return await handler(request.override(tools=[*ours, *direct]))

    def _offer(self, session: Session[Entry], tools: Iterable[BaseTool | dict[str, Any]]) -> None:
        """Lets programs call the tools that the model does not see."""
        usable = (x for x in tools if isinstance(x, BaseTool) and x.name not in self._direct)
        hidden = [x for x in usable if all(x is not own for own in self._ours)]
        if list(map(id, self._offered.get(session, ()))) != list(map(id, hidden)):
            made = [self._tool(session, each) for each in hidden]
            session.code_mode.offer([*made, *self._sessions.tools])
            self._offered[session] = hidden

    def _tool(self, session: Session[Entry], tool: BaseTool) -> Tool:
        schema: Any = tool.tool_call_schema  # without injected arguments
        if not isinstance(schema, dict):
            modern = hasattr(schema, "model_json_schema")
            schema = schema.model_json_schema() if modern else schema.schema()

        async def run(entry: Entry, params: JsonObject, context: ToolContext) -> object:
            nested = self._nested[context.call_id] = NestedCall(context.call_id)
            try:
                return await entry.call(nested, tool.name, params, approved=context.approved)
            finally:
                del self._nested[context.call_id]

        return session.tool(tool.name, tool.description, schema, run)

    async def _open(self, state: Any) -> Session[Entry]:
        """Returns the session of the thread; agents inside of tools have their own."""
        given: Mapping[str, Any] = get_config().get("configurable", {})
        thread = given.get("thread_id") or dict(state).get("clawmode_session", "")
        inside = str(given.get("checkpoint_ns", "")).rpartition("|")[0]
        return await self._sessions.open(f"{thread}|{inside}" if inside else str(thread))

    # ---- Calls ----

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Handler
    ) -> ToolMessage | Command[Any]:
        name, nested = request.tool_call["name"], self._nested.get(str(request.tool_call["id"]))
        if nested is not None:
            tool = request.tool and nested.recorded(request.tool)
            return await handler(request if tool is None else request.override(tool=tool))
        if name not in OURS:
            return await handler(request)

        async def run(**_: Any) -> ToolMessage | Command[Any] | list[Any]:
            return await self._enter(request, Entry.find(handler, request, get_config()))

        # As a tool, so that callbacks see it, and nested calls inside of it.
        entered = _placeholder(name).model_copy(update={"coroutine": run})
        return await handler(request.override(tool=entered))

    async def _enter(
        self, request: ToolCallRequest, entry: Entry
    ) -> ToolMessage | Command[Any] | list[Any]:
        """Makes a call of the model, or continues it after an interrupt."""
        session = await self._open(request.state)
        if session not in self._offered:  # the model was called in another process
            self._offer(session, entry.node.tools_by_name.values())
        call = request.tool_call["name"], request.tool_call["args"], entry.key
        entry.restore(await session.kept(entry.key))
        answers: dict[str, Answer] = {}
        for pause in await session.pauses(*call):
            answers = self._ask(entry, pause.asked)
        while True:
            outcome = await session.call(*call, entry, answers=answers, again=entry.resumed or None)
            await session.keep(entry.key, entry.dump())
            if not outcome.asked:
                return entry.finish(_message(outcome, call[0], entry.call_id))
            answers = self._ask(entry, outcome.asked)

    def _ask(self, entry: Entry, asked: tuple[NestedQuestion, ...]) -> dict[str, Answer]:
        """Interrupts the run, or returns the answers if LangGraph has them."""
        answers: dict[str, Answer] = {}
        batch = list[tuple[NestedQuestion, dict[str, Any]]]()
        for each in asked:
            value, schema = shown(each, entry.call_id)
            if not (isinstance(value, dict) and value.get("type") == "tool_approval"):
                given = interrupt(value, response_schema=schema)
                entry.resumes.setdefault(each.id, []).append(given)
                answers[each.id] = Answer(True)
            elif (self._mode or entry.mode) == "per_call":
                check = functools.partial(entry.check, each)
                decision = interrupt(value, response_schema=_checked(check, schema or {}))
                answers[each.id] = entry.decide(each, decision)
            else:
                batch.append((each, value))
        if not batch:
            return answers

        def check_all(answer: Any) -> list[Any]:
            decisions = answer.get("decisions") if isinstance(answer, Mapping) else None
            if not isinstance(decisions, list) or len(decisions) != len(batch):
                raise ValueError(f'{{"decisions": […]}} must have {len(batch)} decisions')
            pairs = zip(batch, decisions, strict=True)
            return [entry.check(each, decision) for (each, _), decision in pairs]

        requests = [
            {key: value[key] for key in ("name", "args", "description")} for _, value in batch
        ]
        configs = [
            {"action_name": each.tool, "allowed_decisions": entry.allowed(each)}
            for each, _ in batch
        ]
        decisions = interrupt(
            {"action_requests": requests, "review_configs": configs},
            response_schema=_checked(check_all, {"type": "object", "required": ["decisions"]}),
        )
        for (each, _), decision in zip(batch, decisions, strict=True):
            answers[each.id] = entry.decide(each, decision)
        return answers


def _checked(check: Callable[[Any], Any], schema: dict[str, Any]) -> Any:
    """Returns the type of an answer. LangGraph asks again if an answer does not pass the check."""
    return Annotated[Any, AfterValidator(check), WithJsonSchema(schema)]


def _placeholder(name: str) -> StructuredTool:
    async def run(**_: Any) -> str:
        raise ConfigurationError(f"{name!r} works only in an agent with the middleware ClawMode.")

    schema: dict[str, Any] = {"type": "object", "properties": {}}
    return StructuredTool(name=name, description=name, args_schema=schema, coroutine=run)


def _message(outcome: Outcome, name: str, call_id: str) -> ToolMessage:
    content: Any = outcome.text
    if outcome.images:
        images = [
            {"type": "image", "base64": data, "mime_type": kind} for data, kind in outcome.images
        ]
        content = [{"type": "text", "text": outcome.text}, *images]
    status: Any = "error" if outcome.result.get("status") == "failed" else "success"
    return ToolMessage(content, name=name, tool_call_id=call_id, status=status)
