"""The Tasks extension on our MCP server: a program that waits is a task of the client.

Clients that declare the extension get a task instead of the result `waiting`. They poll the task,
answer its questions and read its result; the model of the client never has to call `wait`. A
background task continues the program meanwhile. The task has the id of the program, so a client
finds it again after a restart of this process.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime
from typing import Any

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from clawmode.code_mode.code_mode import CodeMode
from clawmode.mcp.server_tasks import EXTENSION
from clawmode.mcp.tool_call import (
    CANNOT_ASK,
    Context,
    ToolCall,
    elicitation,
    question_key,
    tool_result,
)
from clawmode.tasks import run_logged
from clawmode.types import JsonValue, dataclass

logger = logging.getLogger("clawmode.mcp")

POLL_MS = 1_000
MAX_TASKS = 256
"""Tasks of one principal; the result of a call over this number is `waiting`, as without tasks."""

ADOPT_SECONDS = 0.5
"""How long a request for an unknown task waits to learn whether the store has its program."""


class TaskParams(types.RequestParams):
    """The parameters of `tasks/get` and `tasks/cancel`."""

    task_id: str


class UpdateParams(TaskParams):
    """The parameters of `tasks/update`: answers by the keys of questions."""

    input_responses: dict[str, Any]


@dataclass(slots=True)
class Task:
    """A program that a client polls.

    Attributes:
        seen: When the client asked last, by `time.monotonic`.
        driven: True while a background task continues the program.
        output: The output so far: each `wait` returns only what is new.
        ended: Set when the program has a result, or was cancelled.
        result: The result of the program.
    """

    run_id: str
    created: float = field(default_factory=time.time)
    updated: float = field(default_factory=time.time)
    seen: float = field(default_factory=time.monotonic)
    driven: bool = False
    output: list[JsonValue] = field(default_factory=list[JsonValue])
    ended: anyio.Event = field(default_factory=anyio.Event)
    cancelled: bool = False
    result: dict[str, JsonValue] | None = None

    def summary(self, ttl: float) -> dict[str, Any]:
        """Returns the members that every answer about a task has."""
        state = "cancelled" if self.cancelled else "working"
        kept = self.updated + ttl - self.created
        return {
            "taskId": self.run_id,
            "status": "completed" if self.result is not None else state,
            "createdAt": _iso(self.created),
            "lastUpdatedAt": _iso(self.updated),
            "ttlMs": int(kept * 1000),
            "pollIntervalMs": POLL_MS,
        }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def declares_tasks(context: Context) -> bool:
    """True if the client of a request can handle tasks."""
    capabilities = context.session.client_capabilities
    extensions = None if capabilities is None else capabilities.extensions
    modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    return modern and EXTENSION in (extensions or {})


class ScopeTasks:
    """The tasks of one principal.

    Args:
        code_mode: The programs of the principal.
        background: Runs what continues the programs.
    """

    def __init__(self, code_mode: CodeMode, background: TaskGroup) -> None:
        self._code_mode = code_mode
        self._background = background
        self._ttl = float(code_mode.config.snapshot_ttl_seconds)
        self._tasks: OrderedDict[str, Task] = OrderedDict()

    @property
    def idle(self) -> bool:
        """True if no program is being continued."""
        return not any(task.driven for task in self._tasks.values())

    def create(self, result: Mapping[str, JsonValue]) -> dict[str, Any] | None:
        """Makes a task of a result that waits; None if the principal has too many tasks."""
        self._forget_old()
        if len(self._tasks) >= MAX_TASKS:
            return None
        task = Task(str(result["runId"]))
        output = result.get("output")
        task.output += output if isinstance(output, list) else []
        self._tasks[task.run_id] = task
        self._drive(task)
        return task.summary(self._ttl) | {"resultType": "task"}

    def _forget_old(self) -> None:
        for task in list(self._tasks.values()):
            if not task.driven and time.time() > task.updated + self._ttl:
                del self._tasks[task.run_id]

    def _drive(self, task: Task) -> None:
        if not task.driven and not task.ended.is_set():
            task.driven = True
            self._background.start_soon(run_logged, logger, "a task", self._continue, task)

    async def _continue(self, task: Task) -> None:
        try:
            # A client that has gone away must not keep its program alive for ever.
            while time.monotonic() < task.seen + self._ttl and not task.cancelled:
                result = await self._code_mode.call("wait", {"runId": task.run_id})
                output = result.get("output")
                task.output += output if isinstance(output, list) else []
                if result["status"] != "waiting":
                    task.updated = time.time()
                    whole = {"output": task.output} if task.output else {}
                    if not task.cancelled:
                        task.result = result | whole
                    task.ended.set()
                    return
        finally:
            task.driven = False

    # ---- Requests ----

    async def get(self, context: Context, params: TaskParams) -> dict[str, Any]:
        """Returns the state of a task, its questions or its result."""
        task = await self._find(params.task_id)
        summary = task.summary(self._ttl)
        if task.result is not None:
            result = tool_result(task.result)
            # Without nulls: strict clients accept no null in the place of an optional member.
            return summary | {
                "result": result.model_dump(by_alias=True, mode="json", exclude_none=True)
            }
        if task.cancelled:
            return summary
        call = self._call(context)
        questions = call.questions(task.run_id)
        for question in questions:
            if not call.can_ask(question):
                call.reject(question, CANNOT_ASK)
        requests = {
            question_key(each): types.ElicitRequest(params=elicitation(each)).model_dump(
                by_alias=True, mode="json", exclude_none=True
            )
            for each in questions
            if call.can_ask(each)
        }
        asking = {"status": "input_required", "inputRequests": requests}
        return summary | (asking if requests else {})

    async def update(self, context: Context, params: UpdateParams) -> dict[str, Any]:
        """Answers questions of a task. Answers to other questions are ignored."""
        task = await self._find(params.task_id)
        call = self._call(context)
        for question in call.questions(task.run_id):
            given = params.input_responses.get(question_key(question))
            try:
                answer = types.ElicitResult.model_validate(given, by_name=False)
            except ValidationError:
                continue
            call.settle(question, answer)
            task.updated = time.time()
        return {}

    async def cancel(self, context: Context, params: TaskParams) -> dict[str, Any]:
        """Aborts the program of a task that has not ended."""
        task = await self._find(params.task_id)
        if not task.ended.is_set():
            task.cancelled = True
            task.updated = time.time()
            await self._code_mode.abort(task.run_id)
            task.ended.set()
        return {}

    def _call(self, context: Context) -> ToolCall:
        params = types.CallToolRequestParams(name="wait")
        return ToolCall(context, params, self._code_mode, set())

    async def _find(self, run_id: str) -> Task:
        task = self._tasks.get(run_id)
        if task is None:
            # Another process may have made the task: then the store has the program.
            task = Task(run_id)
            self._drive(task)
            with anyio.move_on_after(ADOPT_SECONDS):
                await task.ended.wait()
            if task.result is not None and task.result.get("code") == "invalid_input":
                raise MCPError(types.INVALID_PARAMS, "There is no such task.")
            self._tasks[run_id] = task
        task.seen = time.monotonic()
        self._drive(task)
        return task
