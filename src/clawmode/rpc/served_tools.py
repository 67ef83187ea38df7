"""Tools that a client offers: called by the gateway's runs, executed in the client's process."""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import TypeAlias

import anyio

from clawmode.context import RunContext
from clawmode.exceptions import message_of
from clawmode.text import shorten
from clawmode.tools.approvals import Approvals
from clawmode.tools.executor import Call, Executor, ToolFailure
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue, dataclass

logger = logging.getLogger("clawmode.gateway")

MAX_ERROR = 4_000
MAX_KNOWN = 10_000
"""The most ids of calls that are remembered, so that none is executed twice."""

Reply: TypeAlias = Callable[[JsonObject], Awaitable[None]]
"""Sends the result of a call to the gateway. Must not raise."""

Start: TypeAlias = Callable[..., None]
"""Starts a task, given a function and its arguments."""


@dataclass(eq=False, slots=True)
class Offer:
    """The tools of one run.

    Attributes:
        run_id: Empty until the gateway has accepted the run.
    """

    tools: dict[str, Tool]
    run_id: str = ""
    _running: set[anyio.CancelScope] = field(default_factory=set[anyio.CancelScope])

    @contextmanager
    def running(self) -> Iterator[None]:
        """Lets `cancel` end the block."""
        with anyio.CancelScope() as scope:
            self._running.add(scope)
            try:
                yield
            finally:
                self._running.discard(scope)

    def cancel(self) -> None:
        """Cancels the calls that are running."""
        for scope in self._running:
            scope.cancel()


def describe(tools: Iterable[Tool]) -> list[JsonValue]:
    """Returns the tools as the parameter `clientTools` of the method `agent`.

    Raises:
        ValueError: Two tools have the same name.
    """
    described: dict[str, JsonValue] = {}
    for tool in tools:
        if tool.name in described:
            raise ValueError(f"two tools are named {tool.name!r}: rename one")
        described[tool.name] = {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict[str, JsonValue](tool.parameters),
            **({"effect": tool.effect} if tool.effect else {}),
        }
    return list(described.values())


class ServedTools:
    """Executes the calls that the gateway requests by the event `tool.call`.

    Args:
        reply: Sends a result to the gateway.
        start: Starts a task.
    """

    def __init__(self, reply: Reply, start: Start) -> None:
        self._reply = reply
        self._start = start
        self._offers: list[Offer] = []
        self._known: OrderedDict[str, None] = OrderedDict()
        self._early: list[JsonObject] = []
        # The gateway has applied its policy and approvals before it sends a call.
        self._executor = Executor(Policy(), approvals=Approvals())

    @contextmanager
    def offer(self, tools: Iterable[Tool]) -> Iterator[Offer]:
        """Serves tools inside of the block; calls that run at its end are cancelled."""
        offer = Offer({tool.name: tool for tool in tools})
        self._offers.append(offer)
        try:
            yield offer
        finally:
            self._offers.remove(offer)
            offer.cancel()
            self._settle_early()

    def claim(self, offer: Offer, run_id: str) -> None:
        """Sets the run of an offer. Its first calls may have arrived before."""
        offer.run_id = run_id
        self._settle_early()

    def end(self, run_id: str) -> None:
        """Cancels the calls of a run that has ended: the gateway no longer waits for them."""
        for offer in self._offers:
            if offer.run_id == run_id:
                offer.cancel()

    def take(self, request: JsonObject) -> None:
        """Accepts a call. A repeated one is ignored: its result is already on its way."""
        call_id = str(request.get("callId", ""))
        if call_id in self._known:
            return
        self._known[call_id] = None
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        self._early.append(request)
        self._settle_early()

    def _settle_early(self) -> None:
        """Starts the calls whose run is known.

        Other calls wait while an offer has no run yet: the call may belong to it.
        """
        by_run = {offer.run_id: offer for offer in self._offers if offer.run_id}
        open_offers = any(not offer.run_id for offer in self._offers)
        waiting, self._early = self._early, list[JsonObject]()
        for request in waiting:
            offer = by_run.get(str(request.get("runId")))
            if offer is None and open_offers:
                self._early.append(request)
            else:
                self._start(self._serve, request, offer)

    async def _serve(self, request: JsonObject, offer: Offer | None) -> None:
        # Sent if the call is cancelled: then the block ends without another answer.
        answer: JsonObject = {"error": "the call was cancelled by the client"}
        with Offer({}).running() if offer is None else offer.running():
            answer = await self._answer(request, offer)
        await self._reply({"callId": request.get("callId"), **answer})

    async def _answer(self, request: JsonObject, offer: Offer | None) -> JsonObject:
        name, given = str(request.get("name")), request.get("input")
        tool = None if offer is None else offer.tools.get(name)
        if tool is None:
            return {"error": f"this client has no tool {name[:80]!r} for this run"}
        if not isinstance(given, dict):
            return {"error": "the input of a tool must be an object"}
        call = Call(
            id=str(request.get("callId")),
            tool=tool,
            input=given,
            run=RunContext(
                run_id=str(request.get("runId")),
                session_key=str(request.get("sessionKey")),
                channel="gateway",
            ),
        )
        try:
            result = await self._executor.call(call)
        except ToolFailure as failure:
            return {"error": shorten(str(failure) or failure.code, MAX_ERROR)}
        except Exception as error:
            logger.exception("tool %s", tool.name)
            return {"error": shorten(f"the client failed: {message_of(error)}", MAX_ERROR)}
        return {"result": result.value}
