"""Turns over HTTP: a run that a client follows from request to request.

HTTP clients act through the same dispatcher as WebSocket clients, with a `Client` of their own, so
that scopes, policy, approvals and the ledger are the same. A run that calls a function of the HTTP
client ends the response with that call and waits; the request with the result continues the run.
"""

import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import field
from typing import Any, Literal, TypeAlias

import anyio

from clawmode.exceptions import ClawmodeError
from clawmode.gateway.clients import Client
from clawmode.gateway.dispatch import Dispatcher
from clawmode.messages import Image
from clawmode.rpc.protocol import PROTOCOL, Request, RpcError, read_hello
from clawmode.rpc.scopes import expand
from clawmode.rpc.tokens import Token
from clawmode.types import JsonObject, JsonValue, dataclass

POLL_SECONDS = 0.25
GATHER_SECONDS = 0.05
"""How long a response waits for more calls after the first: models make several at once."""

PATIENCE_SECONDS = 3.0
"""How long a run may wait for a person before the response says so."""

HOLD_SECONDS = 600.0
"""How long a run waits for the result of a client's function."""

MAX_HELD = 256
DAY_MS = 86_400_000

ASKING = (
    "This run waits for a person: {titles}. Answer on the control page (`clawmode dashboard`), by "
    "`clawmode chat --session {session}`, or with another client of the gateway that may approve "
    "calls. The run continues after the answer; send another message to this conversation to get "
    "the result."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A turn, as all HTTP interfaces understand it.

    Attributes:
        session_key: The session; empty for a new one.
        functions: The functions of the client, as items of `clientTools`.
        results: The results of functions by the ids of their calls. If there are any, the run that
            made the calls continues, and everything else is ignored.
    """

    agent_id: str
    session_key: str = ""
    message: str = ""
    images: tuple[Image, ...] = ()
    system: str = ""
    functions: tuple[JsonObject, ...] = ()
    results: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    key: str = ""


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """A call of one of the client's functions."""

    id: str
    name: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True)
class EndPart:
    """The end of a response.

    Attributes:
        reason: `stop`, or `tool_calls` if the run waits for the client's functions.
        error: Why the run failed; empty if it did not.
    """

    reason: str
    usage: JsonObject
    error: str = ""


Part: TypeAlias = TextPart | CallPart | EndPart


@dataclass(eq=False, slots=True)
class HttpTurn:
    """A run, and the client that follows it.

    Attributes:
        calls: Calls of the client's functions that have no result yet, by id.
        responses: How many responses the run has had.
    """

    client: Client
    run_id: str
    session_key: str
    calls: dict[str, CallPart] = field(default_factory=dict[str, CallPart])
    responses: int = 0
    left_at: float = 0.0


class HttpTurns:
    """The turns of HTTP clients.

    Args:
        dispatcher: Executes the requests.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._gateway = dispatcher.gateway
        self._held: dict[str, HttpTurn] = {}  # by run, while functions of their clients are called

    def client(self, token: Token) -> Client:
        """Returns a client that acts with a token."""
        hello = read_hello(
            {
                "minProtocol": PROTOCOL,
                "maxProtocol": PROTOCOL,
                "client": {"id": f"http-{uuid.uuid4().hex}", "mode": "http"},
            }
        )
        return Client(hello, token.name, expand(token.scopes), token.digest)

    async def call(self, client: Client, method: str, params: JsonObject) -> JsonObject:
        """Executes a method of the gateway.

        Raises:
            ClawmodeError: The request is rejected, or fails.
        """
        answer = await self._dispatcher.call(client, Request("http", method, params))
        text = json.dumps(answer, ensure_ascii=False)  # else `are_in` would not see where it is cut
        known = self._gateway.host.runtime.known
        return self._gateway.without_secrets(answer) if known.are_in(text) else answer

    async def begin(self, token: Token, request: TurnRequest) -> HttpTurn:
        """Starts a run, or continues one with the results of the client's functions.

        Raises:
            ClawmodeError: The request is rejected.
        """
        if request.results:
            return await self._continue(token, request.results)
        client = self.client(token)
        params: JsonObject = {
            "message": request.message,
            "agentId": request.agent_id,
            "idempotencyKey": request.key or uuid.uuid4().hex,
        }
        if request.session_key:
            params["sessionKey"] = request.session_key
        if request.images:
            params["images"] = [
                {"data": image.data, "mediaType": image.media_type} for image in request.images
            ]
        if request.system:
            params["extraSystemPrompt"] = request.system
        if request.functions:
            params["clientTools"] = list[JsonValue](request.functions)
        self._gateway.join(client, ())
        try:
            answer = await self.call(client, "agent", params)
        except BaseException:
            self._gateway.leave(client)
            raise
        run_id = str(answer["runId"])
        if (held := self._held.pop(run_id, None)) is not None:  # the request was repeated
            self._gateway.leave(client)
            return held
        row = await self._gateway.ledger.run(run_id)
        key = str(answer.get("sessionKey") or (row.session_key if row else request.session_key))
        return HttpTurn(client, run_id, key)

    async def _continue(self, token: Token, results: dict[str, JsonValue]) -> HttpTurn:
        turns = [
            turn
            for turn in self._held.values()
            if turn.client.principal == token.name and turn.calls.keys() & results.keys()
        ]
        if len(turns) != 1:
            text = "no run waits for these results: it was answered before, or waited too long"
            raise RpcError("NOT_FOUND", text, field="messages")
        turn = turns[0]
        for call_id in turn.calls.keys() & results.keys():
            del turn.calls[call_id]
            with suppress(RpcError):  # the program that made the call has ended
                given: JsonObject = {"callId": call_id, "result": results[call_id]}
                await self.call(turn.client, "tools.result", given)
        self._held.pop(turn.run_id, None)
        return turn

    # ---- What a run says ----

    async def parts(self, turn: HttpTurn) -> AsyncIterator[Part]:
        """Yields what the run says until it ends, or needs the client or a person.

        If the reader goes away before that, the run is stopped, unless another request started it.
        """
        turn.responses += 1
        finished = False
        try:
            async for part in self._follow(turn):
                finished = isinstance(part, EndPart)
                yield part
        finally:
            if not finished and turn.run_id in turn.client.runs:
                with anyio.CancelScope(shield=True), suppress(ClawmodeError):
                    await self.call(turn.client, "chat.abort", {"runId": turn.run_id})
            if turn.run_id not in self._held:
                self._gateway.leave(turn.client)

    async def _follow(self, turn: HttpTurn) -> AsyncIterator[Part]:
        asked_since, said, ended = 0.0, False, False
        for call in turn.calls.values():
            yield call  # the client has left it without a result
        while True:
            event = await self._next_event(turn, GATHER_SECONDS if turn.calls else POLL_SECONDS)
            if event is None and turn.calls:
                self._hold(turn)
                yield EndPart("tool_calls", {})
                return
            run = self._gateway.host.runtime.find(turn.run_id)
            # A repeated request gets no events, because another client started the run.
            is_over = run is None or run.ended.is_set()
            if event is None and not is_over:
                titles = self._questions(turn)
                asked_since = (asked_since or time.monotonic()) if titles else 0.0
                if titles and time.monotonic() - asked_since > PATIENCE_SECONDS:
                    text = ASKING.format(titles="; ".join(titles), session=turn.session_key)
                    yield TextPart("\n\n" * said + text)
                    yield EndPart("stop", {})
                    return
                continue
            match self._part_of(turn, *event) if event else "end":
                case TextPart(text):
                    yield TextPart("\n\n" * ended + text)
                    said, ended = True, False
                case CallPart() as call:
                    yield call
                case "message":
                    ended = said  # the next message begins a new paragraph
                case "end":
                    async for part in self._end(turn, said):
                        yield part
                    return

    def _part_of(
        self, turn: HttpTurn, name: str, payload: Any
    ) -> "TextPart | CallPart | Literal['message', 'end'] | None":
        """Returns what an event tells the client, if it tells anything."""
        if not isinstance(payload, dict) or payload.get("runId") != turn.run_id:
            return None
        if name == "tool.call" and payload["callId"] not in turn.calls:
            call = CallPart(str(payload["callId"]), str(payload["name"]), payload["input"])
            turn.calls[call.id] = call
            return call
        data, stream = payload.get("data", {}), payload.get("stream")
        if name == "agent" and stream == "assistant":
            ended: Literal["message"] | None = "message" if "message" in data else None
            return TextPart(str(data["delta"])) if data.get("delta") else ended
        is_end = stream == "lifecycle" and data.get("phase") != "start"
        return "end" if name == "agent" and is_end else None

    async def _next_event(self, turn: HttpTurn, seconds: float) -> tuple[str, Any] | None:
        """Returns the next event, or None if none came in time.

        Raises:
            RpcError: The reader was too slow.
        """
        frame = None
        with anyio.move_on_after(seconds):
            frame = await anext(turn.client.frames(), None)
        if frame is None and turn.client.closing is not None:
            raise RpcError("UNAVAILABLE", turn.client.closing[1])
        if frame is None:
            return None
        event = json.loads(frame)
        return str(event.get("event")), event.get("payload")

    def _questions(self, turn: HttpTurn) -> list[str]:
        approvals = self._gateway.approvals
        asked = [*approvals.pending(), *approvals.pending_inputs()]
        return [
            getattr(question, "title", "") or f"{question.tool_id} asks for input"
            for question in asked
            if question.run.run_id == turn.run_id
        ]

    async def _end(self, turn: HttpTurn, said: bool) -> AsyncIterator[Part]:
        """Yields the end of a run, after a reply that the model did not write itself."""
        params: JsonObject = {"runId": turn.run_id, "timeoutMs": 5_000}
        answer = await self.call(turn.client, "agent.wait", params)
        result: Any = answer.get("result") or {}
        for payload in result.get("payloads", ()) if not said else ():
            if payload.get("text") and not payload.get("kind") and not payload.get("isError"):
                yield TextPart(str(payload["text"]))
        error = "" if result.get("status") == "ok" else str(result.get("error") or "the run failed")
        yield EndPart("stop", result.get("usage") or {}, error)

    def _hold(self, turn: HttpTurn) -> None:
        """Keeps the client of a run whose functions are called, until the results come."""
        turn.left_at = time.monotonic()
        self._held[turn.run_id] = turn
        oldest = list(self._held)[: max(len(self._held) - MAX_HELD, 0)]
        for run_id in oldest:
            self._gateway.leave(self._held.pop(run_id).client)
        with suppress(RpcError):  # the gateway is stopping
            self._gateway.begin(self._release_later, turn, turn.left_at)

    async def _release_later(self, turn: HttpTurn, since: float) -> None:
        await anyio.sleep(HOLD_SECONDS)
        if self._held.get(turn.run_id) is turn and turn.left_at == since:
            del self._held[turn.run_id]
            self._gateway.leave(turn.client)
