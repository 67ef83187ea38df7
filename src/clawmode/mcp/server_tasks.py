"""Tasks of MCP servers: a call that a server continues in the background, and that we poll.

In 2026-07-28 tasks are an extension: the server decides, and `tasks/get` has the result. In
2025-11-25 the client asks for a task if the tool requires one, and `tasks/result` has the result.
The SDK knows neither, so that `hide_task` passes a task through its checks.
"""

import contextlib
from typing import Any, Protocol, TypeVar

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, RootModel, ValidationError

from clawmode.mcp.requests import OpenRequest, OpenRequests
from clawmode.records import Record
from clawmode.tasks import backoff
from clawmode.text import shorten
from clawmode.types import JsonObject

EXTENSION = "io.modelcontextprotocol/tasks"
HANDLE = "clawmode/task"
ENDED = ("completed", "failed", "cancelled")

MIN_POLL, MAX_POLL = 0.05, 60.0
MAX_LIFE = 24 * 3600.0
"""Seconds that a task may take if its server gives it more time than our own limit."""
CANCEL_SECONDS = 1.0

T = TypeVar("T", bound=BaseModel)


class RawResult(RootModel[dict[str, Any]]):
    """A result as the server sent it: the SDK's models would drop unknown members."""


class ServerTask(Record):
    """The state of a task.

    Attributes:
        is_older: True for a task of 2025-11-25.
    """

    task_id: str
    status: str
    status_message: str | None = None
    ttl_ms: float | None = None
    poll_interval_ms: float | None = None
    is_older: bool = False


class TaskParams(types.RequestParams):
    """Parameters that name a task."""

    task_id: str
    input_responses: types.InputResponses | None = None


class TaskRequest(types.Request[TaskParams, str]):
    """A request about a task: get, result, update or cancel."""

    name_param = "taskId"


class Session(Protocol):
    """The part of the SDK's session that is needed here."""

    async def send_request(self, request: types.Request[Any, Any], result_type: type[T]) -> T:
        """Sends a request, and returns its result."""
        ...


def hide_task(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a call; a task is moved to where the SDK does not check it."""
    task = answer.get("task")
    if answer.get("resultType") == "task":
        handle = {**answer, "isOlder": False}
    elif isinstance(task, dict) and "content" not in answer:
        times = {"ttlMs": task.get("ttl"), "pollIntervalMs": task.get("pollInterval")}
        handle = {**task, **times, "isOlder": True}
    else:
        return answer
    return {"resultType": "complete", "content": [], "_meta": {HANDLE: handle}}


def find_task(result: JsonObject) -> ServerTask | None:
    """Returns the task that `hide_task` has hidden in a result.

    Raises:
        ValidationError: It is not a valid task.
    """
    meta = result.get("_meta")
    handle = meta.get(HANDLE) if isinstance(meta, dict) else None
    return None if handle is None else ServerTask.model_validate(handle)


class TaskFollower:
    """Follows one task to its end, and answers its questions on the way.

    Args:
        session: Sends the requests.
        task: The task.
        call: The call that the task belongs to. It gets more time as long as the server answers.
        requests: Asks the user the questions of the server.
    """

    def __init__(
        self, session: Session, task: ServerTask, call: OpenRequest, requests: OpenRequests
    ) -> None:
        self._session = session
        self._task = task
        self._call = call
        self._requests = requests
        self._answered: set[str] = set()
        self._said = ""

    async def result(self) -> JsonObject:
        """Returns the result of the call. If it is cancelled, the server is told.

        Raises:
            MCPError: The task failed, or was cancelled by the server.
        """
        try:
            return await (self._older() if self._task.is_older else self._newer())
        except anyio.get_cancelled_exc_class():
            with (
                anyio.CancelScope(deadline=anyio.current_time() + CANCEL_SECONDS, shield=True),
                contextlib.suppress(MCPError, ValidationError),
            ):
                await self._ask("tasks/cancel")
            raise

    async def _ask(self, method: str, answers: types.InputResponses | None = None) -> JsonObject:
        params = TaskParams(task_id=self._task.task_id, input_responses=answers)
        request = TaskRequest(method=method, params=params)
        return (await self._session.send_request(request, RawResult)).root

    async def _poll(self, number: int) -> JsonObject:
        """Waits as long as the server wants, and returns the state of the task."""
        wanted = self._task.poll_interval_ms
        pause = backoff(number, 0.1, 2.0, jitter=0) if wanted is None else wanted / 1000
        await anyio.sleep(min(max(pause, MIN_POLL), MAX_POLL))
        state = await self._ask("tasks/get")
        older = {"ttlMs": state.get("ttl"), "pollIntervalMs": state.get("pollInterval")}
        task = {**older, **state} if self._task.is_older else state
        self._task = ServerTask.model_validate({**task, "isOlder": self._task.is_older})
        if self._task.status not in ENDED:
            self._renew()
        return state

    def _renew(self) -> None:
        call, ttl = self._call, self._task.ttl_ms
        life = MAX_LIFE if ttl is None else min(ttl / 1000, MAX_LIFE)
        call.latest = max(call.latest, anyio.current_time() + life)
        call.renew()
        message = self._task.status_message or ""
        if message != self._said and call.context is not None:
            self._said = message
            call.context.update({"status": self._task.status, "message": shorten(message, 500)})

    async def _newer(self) -> JsonObject:
        number = 0
        state: JsonObject = {}
        self._renew()
        while self._task.status not in ENDED or not state:
            number += 1
            state = await self._poll(number)
            if self._task.status == "input_required":
                asked = types.InputRequiredResult.model_validate(
                    {"resultType": "input_required", "inputRequests": state.get("inputRequests")}
                )
                fresh = {
                    key: question
                    for key, question in (asked.input_requests or {}).items()
                    if key not in self._answered
                }
                if fresh:
                    self._answered.update(fresh)
                    answers = await self._requests.answer_all(fresh, self._call.context)
                    await self._ask("tasks/update", answers)
                    number = 0
        if self._task.status == "completed" and isinstance(state.get("result"), dict):
            return RawResult.model_validate(state["result"]).root
        error = state.get("error")
        about = types.ErrorData.model_validate(error) if isinstance(error, dict) else None
        said = self._task.status_message or f"the task is {self._task.status}"
        raise MCPError(
            types.INTERNAL_ERROR if about is None else about.code,
            said if about is None else about.message,
        )

    async def _older(self) -> JsonObject:
        found: list[JsonObject | Exception] = []
        number = 0
        self._renew()
        async with anyio.create_task_group() as tasks:

            async def fetch() -> None:
                # Waits for the end of the task. The server's questions come meanwhile.
                try:
                    found.append(await self._ask("tasks/result"))
                except (MCPError, ValidationError) as error:
                    found.append(error)

            fetching = False
            while not found:
                if not fetching and self._task.status in (*ENDED, "input_required"):
                    fetching = True
                    tasks.start_soon(fetch)
                number += 1
                if self._task.status in ENDED:
                    await anyio.sleep(MIN_POLL)
                else:
                    await self._poll(number)
            tasks.cancel_scope.cancel()
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]
