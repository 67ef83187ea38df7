"""Calls of tools from programs, through LangGraph's `ToolNode`.

A nested call has a scratchpad of its own, so that `interrupt` in a tool or a middleware asks about
this call only, and its updates of the state are collected for the call of `exec` or `wait`.
"""

import copy
import functools
import inspect
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Literal

from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import ToolCall, ToolMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool
from langchain_core.utils.json_schema import dereference_refs
from langgraph._internal._constants import (
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_READ,
    CONFIG_KEY_RESUMING,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_SEND,
)
from langgraph.channels import LastValue
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphInterrupt
from langgraph.prebuilt.tool_node import ToolCallRequest, ToolNode, msg_content_output
from langgraph.types import Command
from pydantic_core import to_json

from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.integrations.records import Answer, NestedQuestion
from clawmode.tools.hooks import ApprovalNeeded
from clawmode.types import JsonObject

INTERRUPT = "interrupt() of "
"""The title of a question that a tool or a middleware asks; the description is JSON."""

DECISION: dict[str, Any] = {
    "type": "object",
    "properties": {"type": {"enum": ["approve", "reject"]}, "message": {"type": "string"}},
    "required": ["type"],
}

TWICE = "The tool interrupts this call again. A call from a program can be interrupted only once."
NO_NODE = (
    "The tool node of the agent was not found, so middleware would not see nested calls. Use "
    "ClawMode as a middleware of `create_agent`, with a version that its page names."
)


@dataclass(slots=True)
class NestedCall:
    """A nested call, and what the tool itself returned: `ToolMessage` turns all into text."""

    id: str
    raw: Any = None
    content: object = field(default_factory=object)

    def recorded(self, tool: BaseTool) -> BaseTool:
        """Returns a copy of the tool that notes its results here."""
        recorded = copy.copy(tool)

        def note(result: Any) -> Any:
            self.raw = result[0] if tool.response_format == "content_and_artifact" else result
            return result

        @functools.wraps(tool._run)
        def run(*args: Any, **kwargs: Any) -> Any:
            return note(tool._run(*args, **kwargs))

        @functools.wraps(tool._arun)
        async def arun(*args: Any, **kwargs: Any) -> Any:
            return note(await tool._arun(*args, **kwargs))

        async def ainvoke(*args: Any, **kwargs: Any) -> Any:
            made = await type(tool).ainvoke(recorded, *args, **kwargs)
            if isinstance(made, ToolMessage):
                self.content = msg_content_output(made.content)
            return made

        for name, method in {"_run": run, "_arun": arun, "ainvoke": ainvoke}.items():
            object.__setattr__(recorded, name, method)  # a tool is a model, with its fields only
        return recorded

    def value(self, message: ToolMessage | None) -> Any:
        """Returns the value for the program.

        Raises:
            ClawmodeError: The tool, or a middleware, says that the call failed.
        """
        content: Any = None if message is None else message.content
        if message is not None and message.status == "error":
            raise ClawmodeError(message.text)
        # A middleware may have changed the result, such as to redact it: then only that counts.
        if content == self.content and not isinstance(self.raw, ToolMessage):
            content = self.raw
        is_text = isinstance(content, list) and content and message is not None
        if is_text and all(isinstance(x, dict) and x.get("type") == "text" for x in content):
            return "".join(str(each["text"]) for each in content)
        return content


def shown(asked: NestedQuestion, call_id: str) -> tuple[Any, dict[str, Any] | None]:
    """Returns the value of the interrupt for a question, and the schema of its answer."""
    if asked.title.startswith(INTERRUPT):
        given = json.loads(asked.description)
        value = given["value"]
        if isinstance(value, dict) and value.get("type") == "tool_approval":
            value["tool_call_id"] = call_id  # the call that the model has made
        schema = given["schema"] and dereference_refs(given["schema"])
        return value, schema and {key: schema[key] for key in schema if key != "$defs"}
    text = "\n\n".join(filter(None, [asked.title, asked.description]))
    call = {"name": asked.tool, "args": asked.input, "description": text}
    return {"type": "tool_approval", "tool_call_id": call_id, **call}, DECISION


@dataclass(slots=True, eq=False)
class Entry:
    """A call of `exec` or `wait` that LangGraph has entered.

    Attributes:
        reviews: The agent's `HumanInTheLoopMiddleware`, as far as its node has not run yet.
        resumes: The answers to interrupts, by the nested calls that they are for.
        writes: Updates of the state by nested calls.
        moves: Commands of nested calls that go to other nodes.
    """

    node: ToolNode
    request: ToolCallRequest
    config: RunnableConfig
    reviews: list[HumanInTheLoopMiddleware[Any, Any, Any]]
    mode: Literal["batched", "per_call"]
    resumes: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    writes: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    moves: list[Command[Any]] = field(default_factory=list[Command[Any]])
    _allowed: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])

    @classmethod
    def find(cls, handler: Any, request: ToolCallRequest, config: RunnableConfig) -> "Entry":
        """Finds the node that runs the agent's tools, and the middleware around it.

        A middleware is only given those that come after it, as a handler.
        """
        node: ToolNode | None = None
        reviews, todo, seen = list[HumanInTheLoopMiddleware[Any, Any, Any]](), [handler], set[int]()
        while todo:
            found = todo.pop()
            if id(found) in seen:
                continue
            seen.add(id(found))
            if isinstance(found, ToolNode):
                node = found
                todo.append(found._awrap_tool_call)
            elif isinstance(found, HumanInTheLoopMiddleware):
                reviews.append(found)
            elif inspect.ismethod(found):
                todo.append(found.__self__)
            elif inspect.isfunction(found):
                todo.append(getattr(found, "__wrapped__", None))
                todo += inspect.getclosurevars(found).nonlocals.values()
        if node is None:
            raise ConfigurationError(NO_NODE)
        each_call = [each for each in reviews if each.interrupt_mode == "per_call"]
        entry = cls(node, request, config, [], "per_call" if each_call else "batched")
        for each in reviews:
            entry._allowed |= {
                name: list(given["allowed_decisions"]) for name, given in each.interrupt_on.items()
            }
            if each not in each_call:
                # It asks after the model's turn, which nested calls have none of.
                twin = HumanInTheLoopMiddleware[Any, Any, Any](
                    dict(each.interrupt_on),
                    description_prefix=each.description_prefix,
                    edit_notice=each.edit_notice,
                    interrupt_mode="per_call",
                )
                entry.reviews.append(twin)
        return entry

    @property
    def call_id(self) -> str:
        return str(self.request.tool_call["id"])

    @property
    def key(self) -> str:
        """The id of the call, unique in the thread: some models use ids again."""
        messages = reversed(self.request.state[self.node._messages_key])
        made = (
            x.id
            for x in messages
            for call in getattr(x, "tool_calls", ())
            if call["id"] == self.call_id
        )
        return f"{self.call_id}@{next(made, '')}"

    @property
    def resumed(self) -> bool:
        """True if LangGraph has an answer for this call that nobody has taken yet."""
        pad = self.config["configurable"][CONFIG_KEY_SCRATCHPAD]
        # Other middleware may have interrupted the call too, and has taken its answers already.
        taken = getattr(pad.interrupt_counter, "_counter", None)
        count = 0 if taken is None else int(re.sub(r"\D", "", repr(taken.__self__)))
        return len(pad.resume) > count or _is_left(pad.get_null_resume)

    # ---- Nested calls ----

    async def call(
        self, nested: NestedCall, name: str, params: JsonObject, *, approved: bool
    ) -> object:
        """Makes a nested call as the node makes direct ones.

        Raises:
            ApprovalNeeded: The tool or a middleware has interrupted the call.
            ClawmodeError: The call has failed.
        """
        config = self._nested_config(nested.id, self.resumes.get(nested.id, []) if approved else [])
        read = config["configurable"][CONFIG_KEY_READ]
        state = read(list(read.args[1]), True) if self.writes else self.request.state
        runtime = replace(self.request.runtime, tool_call_id=nested.id, config=config, state=state)
        var_child_runnable_config.set(config)  # in a task of this call
        call = ToolCall(name=name, args=dict(params), id=nested.id, type="tool_call")
        made: Any = ToolCallRequest(call, self.node.tools_by_name.get(name), state, runtime)

        async def run(request: ToolCallRequest) -> Any:
            return await self.node._arun_one(request.tool_call, "tool_calls", request.runtime)

        handler: Callable[[ToolCallRequest], Any] = run
        for review in self.reviews:
            handler = functools.partial(review.awrap_tool_call, handler=handler)
        try:
            made = await handler(made)
        except GraphInterrupt as error:
            if approved:
                raise ClawmodeError(TWICE) from None
            first = error.args[0][0]
            given = {"value": first.value, "schema": getattr(first, "response_schema", None)}
            raise ApprovalNeeded(INTERRUPT + name, to_json(given, fallback=str).decode()) from None
        messages = list[ToolMessage]()
        for each in made if isinstance(made, list) else [made]:
            messages += self._take(each, nested.id) if isinstance(each, Command) else [each]
        return nested.value(next((x for x in messages if x.tool_call_id == nested.id), None))

    def _nested_config(self, nested_id: str, resumes: list[Any]) -> RunnableConfig:
        given: Mapping[str, Any] = self.config.get("configurable", {})
        left, read = resumes[-1:], given[CONFIG_KEY_READ]

        def last_resume(consume: bool = False) -> Any:
            return (left.pop() if consume else left[0]) if left else None

        scratchpad = replace(
            given[CONFIG_KEY_SCRATCHPAD],
            interrupt_counter=itertools.count().__next__,
            subgraph_counter=itertools.count().__next__,
            resume=resumes[:-1],
            get_null_resume=last_resume,
        )
        changed: dict[str, Any] = {
            CONFIG_KEY_SCRATCHPAD: scratchpad,
            CONFIG_KEY_SEND: self._write,
            CONFIG_KEY_READ: functools.partial(
                read.func, scratchpad, *read.args[1:3], SimpleNamespace(writes=self.writes)
            ),
            # Agents inside of tools keep their own checkpoints there.
            CONFIG_KEY_CHECKPOINT_NS: f"{given[CONFIG_KEY_CHECKPOINT_NS]}|nested:{nested_id}",
            CONFIG_KEY_RESUMING: bool(resumes),
        }
        return {**self.config, "configurable": {**given, **changed}}

    def _write(self, writes: Iterable[tuple[str, Any]]) -> None:
        channels = self.config["configurable"][CONFIG_KEY_READ].args[1]
        for name, value in writes:
            if isinstance(channels.get(name), LastValue):  # takes one value in a step
                self.writes[:] = [each for each in self.writes if each[0] != name]
            if not name.startswith("__"):
                self.writes.append((name, value))

    def _take(self, command: Command[Any], nested_id: str) -> list[ToolMessage]:
        """Keeps the updates of a command. Returns the messages about the nested call."""
        key, answers = self.node._messages_key, list[ToolMessage]()
        updates = dict(command._update_as_tuples())
        others = list[Any]()
        for each in convert_to_messages(updates.pop(key, [])):
            if isinstance(each, ToolMessage) and each.tool_call_id == nested_id:
                answers.append(each)
            else:
                others.append(each)
        if command.graph is not None or command.goto:
            given = {**updates, key: others} if command.graph is not None else {}
            self.moves.append(replace(command, update=given))
        if command.graph is None:
            self._write([*updates.items(), *([(key, others)] if others else [])])
        return answers

    # ---- Questions and results ----

    def allowed(self, asked: NestedQuestion) -> list[Any]:
        """Returns the decisions that a person may take about a call."""
        is_ours = not asked.title.startswith(INTERRUPT)
        return ["approve", "reject"] if is_ours else self._allowed.get(asked.tool, ["approve"])

    def check(self, asked: NestedQuestion, decision: Any) -> Any:
        """Returns the decision.

        Raises:
            ValueError: The decision is not allowed for this call.
        """
        kind = decision.get("type") if isinstance(decision, Mapping) else None
        if kind not in self.allowed(asked):
            allowed = " or ".join(self.allowed(asked))
            raise ValueError(f"the decision about {asked.tool} must have the type {allowed}")
        return decision

    def decide(self, asked: NestedQuestion, decision: Mapping[str, Any]) -> Answer:
        """Returns the answer for a decision."""
        if asked.title.startswith(INTERRUPT):  # the middleware that asks knows what to do with it
            self.resumes.setdefault(asked.id, []).append(decision)
            return Answer(True)
        return Answer(decision["type"] == "approve", str(decision.get("message") or ""))

    def finish(self, message: ToolMessage) -> ToolMessage | Command[Any] | list[Any]:
        """Returns the result of the call, with the updates of nested calls."""
        key = self.node._messages_key
        others = [each for name, value in self.writes if name == key for each in value]
        send = self.config["configurable"][CONFIG_KEY_SEND]
        send([each for each in self.writes if each[0] != key])
        parent = next((each for each in self.moves if each.graph is not None), None)
        if parent is not None:
            update = dict(parent._update_as_tuples())
            return replace(parent, update={**update, key: [*update.get(key, []), message]})
        if not others and not self.moves:
            return message
        return [Command(update={key: [message, *others]}), *self.moves]

    def dump(self) -> bytes | None:
        """Returns the updates, if there are any: LangGraph forgets them when it is interrupted."""
        moves = [(each.graph, each.update, each.goto) for each in self.moves]
        given = (self.writes, moves)
        return JsonPlusSerializer().dumps_typed(given)[1] if any(given) else None

    def restore(self, kept: bytes | None) -> None:
        """Reads the updates of nested calls that were made before an interrupt."""
        if kept is not None:
            writes, moves = JsonPlusSerializer().loads_typed(("msgpack", kept))
            self.writes = [(name, value) for name, value in writes]
            self.moves = [Command(graph=g, update=u, goto=to) for g, u, to in moves]


def _is_left(take: Callable[[bool], Any]) -> bool:
    """True if the answer of `Command(resume=…)` waits to be taken.

    LangGraph's function returns the answer also after somebody has taken it.
    """
    known = inspect.getclosurevars(take).nonlocals
    if "pending_writes" not in known:
        return take(False) is not None
    given, parent = known["null_resume_write"], known["parent_scratchpad"]
    if given is None:
        return parent is not None and _is_left(parent.get_null_resume)
    return given in known["pending_writes"]
