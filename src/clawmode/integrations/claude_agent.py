"""Code mode in the Claude Agent SDK: `ClawMode(ClaudeAgentOptions(…)).options()`.

`exec` and `wait` are an MCP server in this process, and the servers of the options move behind it.
Claude Code does not see nested calls, so the rules, hooks and callbacks that the options have for
them are applied here. A question that no callback answers stops the run when the model waits for
the program: a hook defers `wait`, which Claude Code calls again when the session is resumed.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Unpack, cast
from uuid import uuid4
from weakref import WeakSet

from clawmode.integrations import require

require("claude-agent-sdk", "claude-agent", "0.2.182", "0.3")

import claude_agent_sdk as sdk
import mcp_types as types
from claude_agent_sdk import ClaudeAgentOptions, DeferredToolUse
from mcp import Client
from mcp.server import Server

from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.integrations.records import Answer, NestedQuestion
from clawmode.integrations.session import Session
from clawmode.integrations.sessions import Sessions, SessionSettings
from clawmode.tools import hooks as gates
from clawmode.tools.approvals import Decision, NotApproved
from clawmode.tools.questions import Question
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject

__all__ = ["Answer", "ClawMode"]
NAME = "clawmode"
TOOLS = [f"mcp__{NAME}__exec", f"mcp__{NAME}__wait"]
MAX_DESCRIPTION = 2047  # Claude Code cuts longer ones
META = {"anthropic/alwaysLoad": True, "anthropic/maxResultSizeChars": 500_000}
"""Without these, Claude Code hides the tools behind its search, and large results in files."""
FIXED = "mcp_servers allowed_tools disallowed_tools hooks can_use_tool permission_mode".split()
CHANGED = "can_use_tool has changed the input, which nested calls do not support"


class ClawMode(Sessions[None]):
    """Code mode for the Claude Agent SDK.

    Args:
        options: Your options. Programs call the tools of their MCP servers, not built-in tools.
        direct: Names of MCP servers that Claude keeps calling itself.
        settings: See `SessionSettings`.
    """

    def __init__(
        self,
        options: ClaudeAgentOptions | None = None,
        *,
        direct: Iterable[str] = (),
        **settings: Unpack[SessionSettings],
    ) -> None:
        self._given = options or ClaudeAgentOptions()
        if not isinstance(self._given.mcp_servers, dict):
            raise ConfigurationError("mcp_servers of the options: pass a dict, not a file")
        servers = dict[str, Any](self._given.mcp_servers)
        self._direct = {name: servers.pop(name) for name in direct if name in servers}
        inside = {name for name, each in servers.items() if each.get("type") == "sdk"}
        self._inside = {name: servers.pop(name)["instance"] for name in inside}
        self._moved = [f"mcp__{name}" for name in (*inside, *servers)]
        if servers and "mcp_servers" in settings:
            raise ConfigurationError("mcp_servers: give them all in the options, or all here")
        settings.setdefault("mcp_servers", servers)
        if self._given.can_use_tool is not None:
            settings["approver"] = self._use_callback
        settings["hooks"] = hooks = settings.get("hooks") or gates.Hooks()
        hooks.before_tool_call(self._decide)
        hooks.after_tool_call(self._tell)
        super().__init__(**settings)
        self._names: dict[str, str] = {}  # of tools in this process, as Claude Code names them
        self._offered_to = WeakSet[Session[None]]()

    def options(
        self, *, session: str = "main", answers: Mapping[str, Answer] | None = None, **changes: Any
    ) -> ClaudeAgentOptions:
        """Returns options for `query` or `ClaudeSDKClient`.

        Args:
            session: Programs belong to it. Use one for each user or conversation.
            answers: Answers to questions of a deferred call, by their ids.
            changes: Fields of the options to change, such as `resume`; none that rule calls.
        """
        if fixed := [each for each in FIXED if each in changes]:
            raise ConfigurationError(f"{fixed[0]} also rules nested calls: give it to ClawMode")
        left = dict(answers or {})

        async def defer(given: Any, call_id: str | None, context: Any) -> Any:
            asked = await self.asked(given["tool_input"], session=session)
            if not asked or left.keys() & {each.id for each in asked}:
                return dict[str, Any]()
            reason = "; ".join(each.title for each in asked)
            decision = {"permissionDecision": "defer", "permissionDecisionReason": reason}
            return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}}

        async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
            ours = (await self._offered(session)).definitions(max_chars=MAX_DESCRIPTION)
            made = [types.Tool.model_validate({**each, "_meta": META}) for each in ours]
            return types.ListToolsResult(tools=made)

        async def call_tool(context: Any, params: types.CallToolRequestParams) -> Any:
            call_id = str(dict(params.meta or {}).get("claudecode/toolUseId") or uuid4())
            opened, given = await self._offered(session), params.arguments or {}
            program = f"{given.get('runId')}:"
            used = {each: left.pop(each) for each in list(left) if each.startswith(program)}
            made = await opened.call(params.name, given, call_id, None, answers=used)
            content: list[Any] = [{"type": "text", "text": made.text}]
            content += [{"type": "image", "data": v, "mimeType": k} for v, k in made.images]
            failed = made.result.get("status") == "failed"
            return types.CallToolResult.model_validate({"content": content, "isError": failed})

        server = Server[Any](NAME, on_list_tools=list_tools, on_call_tool=call_tool)
        ours = sdk.McpSdkServerConfig(type="sdk", name=NAME, instance=cast(Any, server))
        made = replace(self._given, mcp_servers={**self._direct, NAME: ours})
        # Rules for the servers behind us are applied here; Claude Code would not know the tools.
        made.allowed_tools = [e for e in made.allowed_tools if not _is_listed(e, self._moved)]
        if self._given.can_use_tool is None:
            made.allowed_tools += TOOLS
            wait = sdk.HookMatcher(TOOLS[1], [defer])
            hooks = made.hooks or {}
            made.hooks = {**hooks, "PreToolUse": [*hooks.get("PreToolUse", []), wait]}
        else:
            made.can_use_tool = self._allow_ours
        return replace(made, **changes)

    async def _allow_ours(self, name: str, *more: Any) -> sdk.PermissionResult:
        ask = self._given.can_use_tool
        assert ask is not None
        return sdk.PermissionResultAllow() if name in TOOLS else await ask(name, *more)

    async def asked(
        self, call: DeferredToolUse | Mapping[str, Any], *, session: str = "main"
    ) -> tuple[NestedQuestion, ...]:
        """Returns the nested calls that wait for a person, of a `wait` that was deferred."""
        given = call.input if isinstance(call, DeferredToolUse) else call
        return await (await self._offered(session)).asked(str(given.get("runId", "")))

    # ---- Nested calls ----

    async def _offered(self, name: str) -> Session[None]:
        """Opens a session, with the tools of the servers in this process."""
        session = await self.open(name)
        if session in self._offered_to:
            return session
        found, offered = list[tuple[str, types.Tool]](), list[Any](self.tools)
        for server, instance in self._inside.items():
            async with Client(instance) as client:
                found += [(server, each) for each in (await client.list_tools()).tools]
        names = [each.name for _, each in found]
        for server, tool in found:
            name = tool.name if names.count(tool.name) == 1 else f"{server}_{tool.name}"
            offered.append(self._tool(session, name, server, tool))
        session.code_mode.offer(offered)
        self._offered_to.add(session)
        return session

    def _tool(self, session: Session[None], name: str, server: str, tool: types.Tool) -> Tool:
        async def run(entered: None, params: JsonObject, call: ToolContext) -> object:
            async with Client(self._inside[server]) as client:
                made = await client.call_tool(tool.name, params)
            texts = [each.text for each in made.content if isinstance(each, types.TextContent)]
            if made.is_error:
                raise ClawmodeError("\n".join(texts) or "The tool failed.")
            if made.structured_content is not None:
                return made.structured_content
            return "\n".join(texts) if len(texts) == len(made.content) else made.content

        reads = tool.annotations is not None and tool.annotations.read_only_hint
        made = session.tool(
            *(name, tool.description or "", tool.input_schema, run),
            output_schema=tool.output_schema,
            effect="read" if reads else None,
        )
        self._names[made.id] = f"mcp__{server}__{tool.name}"
        return made

    def _name_of(self, tool_id: str) -> str | None:
        """Returns the name under which Claude Code knows a tool; None if it does not."""
        source, _, rest = tool_id.partition(":")
        return f"mcp__{rest.replace(':', '__', 1)}" if source == "mcp" else self._names.get(tool_id)

    async def _decide(self, call: gates.BeforeToolCall) -> gates.ToolCallDecision | None:
        """Decides about a nested call as Claude Code would: rules, then hooks, then questions."""
        name, params, decision = self._name_of(call.tool_id), call.params, ""
        if name is None:
            return None
        if _is_listed(name, self._given.disallowed_tools):
            return gates.ToolCallDecision(block=True, block_reason="disallowed_tools has this tool")
        given = {"tool_name": name, "tool_input": params, "tool_use_id": call.tool_call_id}
        for answer in await self._run_hooks("PreToolUse", given, call):
            told = answer.get("hookSpecificOutput", {})
            reason = told.get("permissionDecisionReason") or answer.get("reason") or "a hook"
            found = "deny" if answer.get("decision") == "block" else told.get("permissionDecision")
            if found == "deny" or answer.get("continue_") is False:
                return gates.ToolCallDecision(block=True, block_reason=reason)
            decision = "ask" if {"ask", "defer"} & {decision, found} else found or decision
            params = told.get("updatedInput") or params
        may = self._given.permission_mode == "bypassPermissions"
        may = may or _is_listed(name, self._given.allowed_tools)
        if decision == "ask" or (decision != "allow" and not may):
            wish = gates.RequireApproval(title=f"Run {name}?")
            return gates.ToolCallDecision(params=params, require_approval=wish)
        return gates.ToolCallDecision(params=params)

    async def _tell(self, after: gates.AfterToolCall) -> None:
        call, name = after.call, self._name_of(after.call.tool_id)
        if name is None or after.code in ("denied", "blocked", "not_approved"):
            return
        given: dict[str, Any] = {"tool_name": name, "duration_ms": int(after.seconds * 1000)}
        given |= {"tool_input": call.params, "tool_use_id": call.tool_call_id}
        if after.result is None:
            await self._run_hooks("PostToolUseFailure", given | {"error": after.error}, call)
        else:
            given["tool_response"] = after.result.value
            await self._run_hooks("PostToolUse", given, call)

    async def _run_hooks(self, event: Any, given: Any, call: gates.BeforeToolCall) -> list[Any]:
        where = {"session_id": call.run.session_id, "transcript_path": "", "cwd": ""}
        answers: list[Any] = []
        for matcher in (self._given.hooks or {}).get(event, []):
            pattern = matcher.matcher or "*"
            if pattern == "*" or re.fullmatch(pattern, given["tool_name"]):
                for hook in matcher.hooks:
                    told: Any = {"hook_event_name": event, **where, **given}
                    answers.append(await hook(told, call.tool_call_id, {"signal": None}) or {})
        return answers

    async def _use_callback(self, question: Question) -> Decision:
        assert self._given.can_use_tool is not None
        name = self._name_of(question.tool_id) or question.tool_id.rpartition(":")[2]
        context = sdk.ToolPermissionContext(tool_use_id=question.call_id, title=question.title)
        made = await self._given.can_use_tool(name, dict(question.input), context)
        if isinstance(made, sdk.PermissionResultDeny):
            raise NotApproved(made.message or "it was denied")
        if made.updated_input not in (None, question.input):
            raise NotApproved(CHANGED)
        return "allow-once"


def _is_listed(name: str, rules: Iterable[str]) -> bool:
    return any(fnmatchcase(name, rule) or name.startswith(f"{rule}__") for rule in rules)
