"""Requests that a server has not answered yet: patience, progress, and its questions meanwhile.

A person's time is not the server's: while somebody is asked, no request runs out of time.
"""

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import anyio
import mcp_types as types
from mcp.client.session import ClientRequestContext

from clawmode.exceptions import ClawmodeError
from clawmode.foreign import must_propagate
from clawmode.tools.tool import InputRequest, ToolContext
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.mcp")

MAX_QUESTION = 4_096
"""Of what a server asks a person, in characters."""
STRETCH = 10
"""How many times its limit a request may take that reports progress."""
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
    """

    def __init__(self, server: str, kind: FailureKind, text: str) -> None:
        super().__init__(f"MCP server {server!r} {text}")
        self.server = server
        self.kind: FailureKind = kind


class Undelivered(McpError):
    """The server has not received the request, so that the request may be made again."""


@dataclass(eq=False, slots=True)
class OpenRequest:
    """A request and whoever waits for it.

    Attributes:
        patience: Around the waiting; its deadline is the request's.
        latest: When patience ends whatever is reported.
        context: Of the tool's call that it is made for.
        sending: Around the exchange.
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
    _clock_stands: bool = False

    def renew(self) -> None:
        """Starts the clock anew, unless it stands."""
        if not self._clock_stands:
            self.patience.deadline = min(anyio.current_time() + self.timeout, self.latest)

    def stop_clock(self) -> None:
        """Has patience without end, until `start_clock`."""
        self._clock_stands = True
        self.patience.deadline = math.inf

    def start_clock(self, stood: float) -> None:
        """Starts it anew after so many seconds, which count for nothing."""
        self._clock_stands = False
        self.latest += stood
        self.renew()

    def settle(self, value: JsonObject | None, error: McpError | None) -> None:
        """Ends it; what comes later is dropped."""
        if not self.done.is_set():
            self.value, self.error = value, error
            self.done.set()

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Passes on what the server reports, not more often than anybody can watch."""
        self.renew()
        now = anyio.current_time()
        if self.context is None or now - self._updated < 1 / UPDATES_PER_SECOND:
            return
        self._updated = now
        report: JsonObject = {"progress": progress if math.isfinite(progress) else None}
        if total is not None and math.isfinite(total):
            report["total"] = total
        if message:
            report["message"] = message[:500]
        self.context.update(report)


class OpenRequests:
    """All of one connection."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._open: set[OpenRequest] = set()
        self._questions = 0
        self._stopped_at = 0.0

    @contextlib.contextmanager
    def opened(self, timeout: float, context: ToolContext | None) -> Iterator[OpenRequest]:
        """A new one, from now on; nobody sends anything for it any more after the block."""
        now = anyio.current_time()
        patience = anyio.CancelScope(deadline=now + timeout)
        request = OpenRequest(timeout, now + STRETCH * timeout, patience, context)
        self._open.add(request)
        try:
            yield request
        finally:
            self._open.discard(request)
            request.sending.cancel()

    def fail(self, error: McpError) -> None:
        """Tells everybody who waits."""
        for request in self._open:
            request.settle(None, error)

    @contextlib.contextmanager
    def clocks_stopped(self) -> Iterator[None]:
        """No time passes. For all of them: for which one it asks, older servers do not say."""
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
        """Answers what a server wants to know before it goes on with a request.

        Raises:
            McpError: It wants what it cannot have.
        """
        answers: types.InputResponses = {}
        for key, question in asked.items():
            if not isinstance(question, types.ElicitRequest):
                what = "a model" if isinstance(question, types.CreateMessageRequest) else "folders"
                refused = f"asked for {what}, which it cannot have"
                raise McpError(self._server, "protocol", refused)
            answers[key] = await self._ask(question.params, context)
        return answers

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        """A request of its own: for which of ours, servers of older protocols do not say."""
        contexts = [each.context for each in self._open if each.context is not None]
        # Where it could be one person's or another's, it is nobody's.
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
            request = InputRequest(message=params.message[:MAX_QUESTION], url=params.url)
        else:
            schema = params.requested_schema
            request = InputRequest(message=params.message[:MAX_QUESTION], schema=schema)
        try:
            with self.clocks_stopped():
                answer = await context.ask(request)
            if answer is None:
                return declined
            content = None if request.url else answer
            return types.ElicitResult.model_validate({"action": "accept", "content": content})
        except BaseException as error:
            if must_propagate(error):
                raise
            logger.error("%s: a question: %s", self._server, type(error).__name__)
            return declined
