"""`OpenRequests`: pending requests of a connection, with time limits, progress and questions.

While a user is asked a question, no request times out. `McpError` is the failure of a request.
"""

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Literal, TypeAlias

import anyio
import mcp_types as types
from mcp.client.session import ClientRequestContext

from clawmode.exceptions import ClawmodeError
from clawmode.tasks import must_propagate
from clawmode.text import shorten
from clawmode.tools.tool import InputRequest, ToolContext
from clawmode.tools.validation import Validator
from clawmode.types import JsonObject, JsonValue, dataclass

logger = logging.getLogger("clawmode.mcp")

MAX_QUESTION = 4_096
"""The longest question of a server that a user sees, in characters."""
STRETCH = 10
"""A request that reports progress may take this many times its time limit."""
UPDATES_PER_SECOND = 20

FailureKind: TypeAlias = Literal[
    "unavailable", "lost", "timeout", "refused", "protocol", "too_large", "invalid_input", "gone"
]


class McpError(ClawmodeError):
    """A request to an MCP server that has no result. A guest may see the message.

    Attributes:
        server: The name of the server.
        kind: `unavailable`: the server was not called. `lost`, `timeout`: the call may have had an
            effect. `refused`: the server answered with an error. `protocol`, `too_large`: the
            answer is invalid or too large. `invalid_input`, `gone`: the call cannot be made.
        data: What the server added to its error, where rate limits are looked for.
    """

    def __init__(self, server: str, kind: FailureKind, text: str, data: JsonValue = None) -> None:
        super().__init__(f"MCP server {server!r} {text}")
        self.server = server
        self.data = data
        self.kind: FailureKind = kind


class Undelivered(McpError):
    """The server has not received the request, so that the request may be made again."""


@dataclass(eq=False, slots=True)
class OpenRequest:
    """A pending request.

    Attributes:
        latest: The time after which no progress extends the deadline.
        patience: The scope of the caller that waits; its deadline is the request's.
        context: The context of the tool call that the request is made for.
        sending: The scope of the task that sends the request.
    """

    timeout: float
    latest: float
    patience: anyio.CancelScope
    context: ToolContext | None = None
    sending: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    done: anyio.Event = field(default_factory=anyio.Event)
    value: JsonObject | None = None
    error: McpError | None = None
    _updated: float = -math.inf
    _clock_stopped: bool = False

    def renew(self) -> None:
        """Restarts the time limit, unless the clock is stopped."""
        if not self._clock_stopped:
            self.patience.deadline = min(anyio.current_time() + self.timeout, self.latest)

    def stop_clock(self) -> None:
        """Suspends the time limit until `start_clock`."""
        self._clock_stopped = True
        self.patience.deadline = math.inf

    def start_clock(self, stopped: float) -> None:
        """Restarts the time limit, after `stopped` seconds that do not count."""
        self._clock_stopped = False
        self.latest += stopped
        self.renew()

    def settle(self, value: JsonObject | None, error: McpError | None) -> None:
        """Ends the request. Later results are dropped."""
        if not self.done.is_set():
            self.value, self.error = value, error
            self.done.set()

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Extends the deadline, and passes progress on, at most 20 times a second."""
        self.renew()
        now = anyio.current_time()
        if self.context is None or now - self._updated < 1 / UPDATES_PER_SECOND:
            return
        self._updated = now
        report: JsonObject = {"progress": progress if math.isfinite(progress) else None}
        if total is not None and math.isfinite(total):
            report["total"] = total
        if message:
            report["message"] = shorten(message, 500)
        self.context.update(report)


class OpenRequests:
    """The pending requests of one connection."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._open: set[OpenRequest] = set()
        self._questions = 0
        self._stopped_at = 0.0
        self._ended_at = anyio.current_time()

    @property
    def idle_seconds(self) -> float:
        """The seconds since the last request; 0 if a request is pending."""
        return 0.0 if self._open else anyio.current_time() - self._ended_at

    @contextlib.contextmanager
    def opened(self, timeout: float, context: ToolContext | None) -> Iterator[OpenRequest]:
        """Adds a request for the time of the block. Leaving the block cancels its sending."""
        now = anyio.current_time()
        patience = anyio.CancelScope(deadline=now + timeout)
        request = OpenRequest(timeout, now + STRETCH * timeout, patience, context)
        self._open.add(request)
        try:
            yield request
        finally:
            self._open.discard(request)
            self._ended_at = anyio.current_time()
            request.sending.cancel()

    def fail(self, error: McpError) -> None:
        """Ends all requests with an error."""
        for request in self._open:
            request.settle(None, error)

    @contextlib.contextmanager
    def clocks_stopped(self) -> Iterator[None]:
        """Suspends the time limits of all requests for the time of the block.

        Of all, because older servers do not say for which request they ask.
        """
        if self._questions == 0:
            self._stopped_at = anyio.current_time()
        self._questions += 1
        for request in self._open:
            request.stop_clock()
        try:
            yield
        finally:
            self._questions -= 1
            for request in self._open if self._questions == 0 else ():
                request.start_clock(anyio.current_time() - self._stopped_at)

    # ---- Questions ----

    async def answer_all(
        self, asked: Mapping[str, types.InputRequest], context: ToolContext | None
    ) -> types.InputResponses:
        """Answers the questions that a server asks before it continues with a request.

        Raises:
            McpError: The server requests something that is not supported.
        """
        answers: types.InputResponses = {}
        for key, question in asked.items():
            if not isinstance(question, types.ElicitRequest):
                sampling = isinstance(question, types.CreateMessageRequest)
                requested = "sampling by a model" if sampling else "the list of roots"
                text = f"requested {requested}, which is not supported"
                raise McpError(self._server, "protocol", text)
            answers[key] = await self._ask(question.params, context)
        return answers

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        """Answers a question that came as a request, as in older versions of the protocol."""
        contexts = [each.context for each in self._open if each.context is not None]
        # It is not known for which of our requests the server asks. With requests of two runs,
        # the question could reach the wrong user.
        if len({context.run for context in contexts}) != 1:
            return types.ElicitResult(action="decline")
        return await self._ask(params, contexts[0])

    async def _ask(
        self, params: types.ElicitRequestParams, context: ToolContext | None
    ) -> types.ElicitResult:
        declined = types.ElicitResult(action="decline")
        if context is None:
            return declined
        if isinstance(params, types.ElicitRequestURLParams):
            request = InputRequest(message=shorten(params.message, MAX_QUESTION), url=params.url)
        else:
            schema = params.requested_schema
            request = InputRequest(message=shorten(params.message, MAX_QUESTION), schema=schema)
        try:
            with self.clocks_stopped():
                answer = await context.ask(request)
            if answer is None:
                return declined
            # The protocol has the client fill in defaults (SEP-1034).
            defaults = Validator(request.schema).defaults if request.schema else {}
            content = None if request.url else {**defaults, **answer}
            return types.ElicitResult.model_validate({"action": "accept", "content": content})
        except BaseException as error:
            if must_propagate(error):
                raise
            logger.error("%s: a question failed: %s", self._server, type(error).__name__)
            return declined
