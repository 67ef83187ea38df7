"""Google ADK: a toolset that gives an agent `exec` and `wait`, and other tools to their programs.

Nested calls go through ADK's own execution of function calls, so that plugins, callbacks,
confirmations and telemetry apply. A nested call that needs confirmation becomes a confirmation of
the `exec` or `wait`, which ADK makes again with the answer.
"""

import base64
import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, Unpack

from clawmode.exceptions import ClawmodeError
from clawmode.integrations import require

require("google-adk", "google-adk", at_least="2.12", below="3")

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.events.event import Event
from google.adk.flows.llm_flows.functions import (
    REQUEST_CONFIRMATION_FUNCTION_CALL_NAME,
    handle_function_call_list_async,
)
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from clawmode.integrations.records import Answer, Answers, read_answers, unique_id
from clawmode.integrations.session import Session
from clawmode.integrations.sessions import Sessions, SessionSettings
from clawmode.tools.hooks import ApprovalNeeded
from clawmode.tools.tool import Tool
from clawmode.tools.tool import ToolContext as NestedCall
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.google_adk")

ToolUnion: TypeAlias = Callable[..., Any] | BaseTool | BaseToolset
"""What `tools` of an agent of ADK may contain."""

HINT = "A program wants to call {}. Approve or reject the calls in the payload."
NEEDS_LOGIN = "This tool asks the user for credentials: give the tool to the agent directly."
REJECTED = "The call was rejected."


class ClawMode(BaseToolset):
    """Offers `exec` and `wait`; programs call the tools that the toolset wraps.

    Args:
        wrapped: Tools for programs: functions, tools and toolsets of ADK.
        direct: Names of wrapped tools that the model calls directly instead. Long-running tools,
            and tools without a declaration such as those of Gemini, always are.
        settings: See `SessionSettings`. With `store=SqliteStore(folder)`, programs that wait for
            people survive the process.
    """

    def __init__(
        self,
        wrapped: Sequence[ToolUnion],
        *,
        direct: Sequence[str] = (),
        **settings: Unpack[SessionSettings],
    ) -> None:
        super().__init__()
        self.sessions = Sessions[ToolContext](**settings)
        self._direct = frozenset(direct)
        self._wrapped: list[BaseTool | BaseToolset] = [
            each if isinstance(each, BaseTool | BaseToolset) else FunctionTool(each)
            for each in wrapped
        ]

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        tools: list[BaseTool] = []
        nested: list[BaseTool] = []
        for each in self._wrapped:
            for tool in await _tools_of(each, readonly_context):
                is_callable = tool._get_declaration() is not None and not tool.is_long_running
                (nested if is_callable and tool.name not in self._direct else tools).append(tool)
        owner = None if readonly_context is None else readonly_context.session
        names = ["", "", ""] if owner is None else [owner.app_name, owner.user_id, owner.id]
        session = await self.sessions.open(json.dumps(names))
        session.offer(nested, partial(_nested_tool, session))
        definitions: Any = session.definitions()
        return [*tools, *(_CodeModeTool(session, each) for each in definitions)]

    async def close(self) -> None:
        """Ends the workers, and closes the wrapped toolsets."""
        await self.sessions.aclose()
        for each in self._wrapped:
            if isinstance(each, BaseToolset):
                await each.close()


class _CodeModeTool(BaseTool):
    """`exec` or `wait` of a session, as a tool of ADK."""

    def __init__(self, session: Session[ToolContext], definition: dict[str, Any]) -> None:
        super().__init__(name=definition["name"], description=definition["description"])
        # A prefix of the toolset changes `name`.
        self._session, self._definition = session, definition

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name,
            description=self.description,
            parameters_json_schema=self._definition["inputSchema"],
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        name, events = self._definition["name"], tool_context.session.events
        made = (call.id for each in events for call in each.get_function_calls())
        call_id = unique_id(tool_context.function_call_id or name, made)
        outcome = await self._session.call(
            name, args, call_id, tool_context, answers=_answers(tool_context)
        )
        # ADK asks nothing more about a call that was confirmed: the model's next `wait` asks.
        if outcome.asked and tool_context.tool_confirmation is None:
            hint = HINT.format(", ".join(each.tool for each in outcome.asked))
            tool_context.request_confirmation(hint=hint, payload=outcome.questions())
            tool_context.actions.skip_summarization = True
        images = [
            types.Part.from_bytes(data=base64.b64decode(data), mime_type=kind)
            for data, kind in outcome.images
        ]
        key = "error" if outcome.result["status"] == "failed" else "result"
        return {key: outcome.text, "images": images} if images else {key: outcome.text}


def _answers(context: ToolContext) -> Answers:
    """Returns the answers to the questions of a program, if a person has answered.

    The events of the session have what was shown: an answer is for these questions only.
    """
    confirmation = context.tool_confirmation
    if confirmation is None:
        return None
    requests = (
        call.args or {}
        for event in reversed(context.session.events)
        for call in event.get_function_calls()
        if call.name == REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
    )
    of_call: dict[str, Any] = next(
        (x for x in requests if x["originalFunctionCall"].get("id") == context.function_call_id), {}
    )
    payload = of_call.get("toolConfirmation", {}).get("payload")
    shown, given = payload if isinstance(payload, dict) else {}, confirmation.payload
    if confirmation.confirmed:
        return read_answers({**shown, **(given if isinstance(given, dict) else {})})
    denied = Answer(False, given if isinstance(given, str) and given else REJECTED)
    asked = read_answers(shown)
    return denied if isinstance(asked, Answer) else dict.fromkeys(asked, denied)


async def _tools_of(
    wrapped: BaseTool | BaseToolset, context: ReadonlyContext | None
) -> list[BaseTool]:
    """Returns the tools of a tool or toolset; none of a toolset that cannot be reached."""
    if isinstance(wrapped, BaseTool):
        return [wrapped]
    try:
        return await wrapped.get_tools_with_prefix(context)
    except Exception:  # as ADK treats the toolsets of an agent
        logger.exception("Programs run without the tools of %s", type(wrapped).__name__)
        return []


def _nested_tool(session: Session[ToolContext], tool: BaseTool) -> Tool:
    """Returns a tool of ADK as one that programs can call."""
    declaration = tool._get_declaration()
    assert declaration is not None
    schema: Any = declaration.parameters_json_schema
    if schema is None and declaration.parameters is not None:
        schema = declaration.parameters.json_schema.model_dump(
            mode="json", by_alias=True, exclude_none=True
        )

    async def run(context: ToolContext, params: JsonObject, call: NestedCall) -> object:
        function_call = types.FunctionCall(id=call.call_id, name=tool.name, args=params)
        confirmations: dict[str, ToolConfirmation] = {}
        if call.approved:
            asked = context.tool_confirmation
            given = asked.payload if asked is not None and isinstance(asked.payload, dict) else {}
            payload = (given.get("payloads") or {}).get(call.call_id)
            confirmations[call.call_id] = ToolConfirmation(confirmed=True, payload=payload)
        event = await handle_function_call_list_async(
            context.get_invocation_context(),
            [function_call],
            {tool.name: tool},
            tool_confirmation_dict=confirmations,
        )
        return None if event is None else _value(event, context, tool.name)

    return session.tool(
        tool.name,
        declaration.description or tool.description,
        schema or {"type": "object"},
        run,
        output_schema=declaration.response_json_schema,
    )


def _value(event: Event, context: ToolContext, name: str) -> object:
    """Returns the result of a nested call, and hands its other effects to the outer call.

    Raises:
        ApprovalNeeded: The call has to be confirmed first.
        ClawmodeError: The call needs credentials.
    """
    actions, outer = event.actions, context.actions
    context.state.update(actions.state_delta)
    outer.artifact_delta.update(actions.artifact_delta)
    outer.transfer_to_agent = actions.transfer_to_agent or outer.transfer_to_agent
    outer.escalate = actions.escalate or outer.escalate
    for confirmation in actions.requested_tool_confirmations.values():
        shown = "" if confirmation.payload is None else json.dumps(confirmation.payload)
        raise ApprovalNeeded(f"Call {name}?", shown or confirmation.hint)
    if actions.requested_auth_configs:
        raise ClawmodeError(NEEDS_LOGIN)
    response = event.get_function_responses()[0]
    value: dict[str, Any] = dict(response.response or {})
    media = [
        {
            "data": base64.b64encode(part.inline_data.data or b"").decode(),
            "mimeType": part.inline_data.mime_type,
        }
        for part in response.parts or []
        if part.inline_data is not None
    ]
    if media:
        return {**value, "media": media}
    # ADK wraps what is not an object.
    return value["result"] if value.keys() == {"result"} else value
