"""Tools of clients: a run calls them, the client that brought them does the work."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

import anyio

from clawmode.exceptions import ClawmodeError
from clawmode.gateway.clients import Client, EncodedEvent
from clawmode.tools.tool import Effect, Tool, ToolContext, ToolResult
from clawmode.types import JsonObject, JsonValue

GRACE_SECONDS = 30.0
"""How long a client that has gone may take to come back before its calls fail."""

MAX_PENDING = 1_000


class ClientToolError(ClawmodeError):
    """A call that a client did not answer, or answered with an error."""


@dataclass(eq=False, slots=True)
class _Call:
    id: str
    principal: str
    client_id: str
    request: JsonObject
    answered: anyio.Event = field(default_factory=anyio.Event)
    result: JsonValue = None
    error: str | None = None


class ClientTools:
    """The calls that clients are to answer.

    Args:
        connected: Who is connected.
    """

    def __init__(self, connected: Callable[[], list[Client]]) -> None:
        self._connected = connected
        self._calls: dict[str, _Call] = {}

    def tool(self, client: Client, given: JsonObject) -> Tool:
        """A client's tool. `given` has a name, and may have description, parameters and effect.

        The client is believed about the effect: the call changes nothing but what is its own.
        """
        parameters = given.get("parameters")
        principal, client_id = client.principal, client.hello.client_id

        async def execute(params: JsonObject, context: ToolContext) -> ToolResult | str:
            request: JsonObject = {
                "callId": f"ct_{uuid.uuid4().hex}",
                "runId": context.run.run_id,
                "sessionKey": context.run.session_key,
                "name": str(given["name"]),
                "input": params,
            }
            call = _Call(str(request["callId"]), principal, client_id, request)
            answer = await self._ask(call)
            return answer if isinstance(answer, str) else ToolResult(details=answer)

        return Tool(
            str(given["name"]),
            str(given.get("description", "")),
            parameters if isinstance(parameters, dict) else {"type": "object"},
            execute,
            source="client",
            owner="client",
            effect=next((it for it in get_args(Effect) if it == given.get("effect")), None),
        )

    async def _ask(self, call: _Call) -> JsonValue:
        if len(self._calls) >= MAX_PENDING:
            raise ClientToolError("too many calls wait for clients")
        self._calls[call.id] = call
        try:
            self._tell(call)
            while not call.answered.is_set():
                with anyio.move_on_after(GRACE_SECONDS):
                    await call.answered.wait()
                if not call.answered.is_set() and not self._clients(call):
                    raise ClientToolError("the client that has this tool is gone")
        finally:
            self._calls.pop(call.id, None)
        if call.error is not None:
            raise ClientToolError(call.error)
        return call.result

    def _clients(self, call: _Call) -> list[Client]:
        return [
            client
            for client in self._connected()
            if (client.principal, client.hello.client_id) == (call.principal, call.client_id)
            and client.closing is None
        ]

    def _tell(self, call: _Call) -> None:
        told = EncodedEvent.of("tool.call", call.request)
        for client in self._clients(call)[-1:]:
            client.tell(told)

    def answer(self, client: Client, call_id: str, result: JsonValue, error: str | None) -> bool:
        """Takes a client's answer. False: no call of that client's waits for it."""
        call = self._calls.get(call_id)
        if call is None or call.principal != client.principal or call.answered.is_set():
            return False
        call.result, call.error = result, error
        call.answered.set()
        return True

    def hand_over(self, gone: Client) -> None:
        """Tells another connection of a client that has gone of the calls that wait for it."""
        for call in self._calls.values():
            if (gone.principal, gone.hello.client_id) == (call.principal, call.client_id):
                self._tell(call)

    def repeat(self, client: Client) -> None:
        """Tells a client that has come back of the calls that wait for it."""
        for call in self._calls.values():
            if (client.principal, client.hello.client_id) == (call.principal, call.client_id):
                client.tell(EncodedEvent.of("tool.call", call.request))
