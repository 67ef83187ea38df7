"""Tools that a client brings along: the gateway's runs call them, and they run in this process."""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import anyio

from clawmode.context import RunContext
from clawmode.foreign import message_of
from clawmode.tools.approvals import Approvals
from clawmode.tools.executor import Call, Executor, ToolFailure
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue

logger = logging.getLogger("clawmode.gateway")

MAX_ERROR = 4_000
MAX_KNOWN = 10_000
"""Calls that are known by their ids, so that none is carried out twice."""

Reply: TypeAlias = Callable[[JsonObject], Awaitable[None]]
"""Hands in the result of a call. Does not raise."""

Start: TypeAlias = Callable[..., None]
"""Starts a task: a function, and its arguments."""


@dataclass(eq=False, slots=True)
class Offer:
    """The tools of one run; of which run is known when the gateway has accepted it."""

    tools: dict[str, Tool]
    run_id: str = ""
    _running: set[anyio.CancelScope] = field(default_factory=set[anyio.CancelScope])

    @contextmanager
    def running(self) -> Iterator[None]:
        """A call runs inside of the block, unless it is cancelled."""
        with anyio.CancelScope() as scope:
            self._running.add(scope)
            try:
                yield
            finally:
                self._running.discard(scope)

    def cancel(self) -> None:
        """Stops what runs."""
        for scope in self._running:
            scope.cancel()


def describe(tools: Iterable[Tool]) -> list[JsonValue]:
    """Tools as the gateway is told of them.

    Raises:
        ValueError: Two have one name.
    """
    made: dict[str, JsonValue] = {}
    for tool in tools:
        if tool.name in made:
            raise ValueError(f"two tools are called {tool.name!r}")
        made[tool.name] = {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict[str, JsonValue](tool.parameters),
            **({"effect": tool.effect} if tool.effect else {}),
        }
    return list(made.values())


class ServedTools:
    """Carries out the calls that the gateway asks for.

    Args:
        reply: Hands in results.
        start: Starts a task.
    """

    def __init__(self, reply: Reply, start: Start) -> None:
        self._reply = reply
        self._start = start
        self._offers: list[Offer] = []
        self._known: OrderedDict[str, None] = OrderedDict()
        self._early: list[JsonObject] = []
        self._executor = Executor(Policy(), approvals=Approvals())

    @contextmanager
    def offer(self, tools: Iterable[Tool]) -> Iterator[Offer]:
        """Serves tools inside of the block; what of theirs runs at its end is cancelled."""
        made = Offer({tool.name: tool for tool in tools})
        self._offers.append(made)
        try:
            yield made
        finally:
            self._offers.remove(made)
            made.cancel()
            self._settle_early()

    def claim(self, offer: Offer, run_id: str) -> None:
        """The run of an offer is known. Its first calls may have come before that was."""
        offer.run_id = run_id
        self._settle_early()

    def end(self, run_id: str) -> None:
        """A run has ended: nobody waits for its calls."""
        for offer in self._offers:
            if offer.run_id == run_id:
                offer.cancel()

    def take(self, request: JsonObject) -> None:
        """Takes a call in; one that was taken before is on its way."""
        call_id = str(request.get("callId", ""))
        if call_id in self._known:
            return
        self._known[call_id] = None
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        self._early.append(request)
        self._settle_early()

    def _settle_early(self) -> None:
        """Begins the calls whose runs are known; the others wait as long as they may be yet."""
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
            return {"error": "the input of a tool is an object"}
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
            return {"error": (str(failure) or failure.code)[:MAX_ERROR]}
        except Exception as error:
            logger.exception("tool %s", tool.name)
            return {"error": f"the client failed: {message_of(error)}"[:MAX_ERROR]}
        return {"result": result.value}
