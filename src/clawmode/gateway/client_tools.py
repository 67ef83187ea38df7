"""Tools that clients offer: a run calls them, and the client executes the call."""

import uuid
from collections.abc import Callable
from dataclasses import field
from typing import get_args

import anyio

from clawmode.exceptions import ClawmodeError
from clawmode.gateway.clients import Client, EncodedEvent
from clawmode.tools.tool import Effect, Tool, ToolContext, ToolResult
from clawmode.types import JsonObject, JsonValue, dataclass

GRACE_SECONDS = 30.0
"""How long a disconnected client may take to return before its calls fail."""

MAX_PENDING = 1_000


class ClientToolError(ClawmodeError):
    """A client did not answer a call, or answered with an error."""


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
    """The calls that wait for an answer of a client.

    Args:
        connected: Returns the connected clients, oldest first.
    """

    def __init__(self, connected: Callable[[], list[Client]]) -> None:
        self._connected = connected
        self._calls: dict[str, _Call] = {}

    def tool(self, client: Client, given: JsonObject) -> Tool:
        """Returns a tool that the client executes.

        Args:
            client: The client.
            given: An item of `clientTools`: name, description, parameters, effect. The client is
                trusted about the effect, because the call changes only what is its own.
        """
        parameters = given.get("parameters")
        principal, client_id = client.principal, client.hello.client.id

        async def execute(params: JsonObject, context: ToolContext) -> ToolResult | str:
            request: JsonObject = {
                "callId": f"ct_{uuid.uuid4().hex}",
                "runId": context.run.run_id,
                "sessionKey": context.run.session_key,
                "name": str(given["name"]),
                "input": params,
            }
            call = _Call(str(request["callId"]), principal, client_id, request)
            answer = await self._wait_for_answer(call)
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

    async def _wait_for_answer(self, call: _Call) -> JsonValue:
        if len(self._calls) >= MAX_PENDING:
            raise ClientToolError(f"{MAX_PENDING} calls already wait for clients: try again later")
        self._calls[call.id] = call
        try:
            self._send(call)
            while not call.answered.is_set():
                # Looked at once in a period, so that a client may reconnect in the meantime.
                with anyio.move_on_after(GRACE_SECONDS):
                    await call.answered.wait()
                if not call.answered.is_set() and not self._clients(call):
                    raise ClientToolError("the client that executes this tool is disconnected")
        finally:
            self._calls.pop(call.id, None)
        if call.error is not None:
            raise ClientToolError(call.error)
        return call.result

    def _clients(self, call: _Call) -> list[Client]:
        return [
            client
            for client in self._connected()
            if (client.principal, client.hello.client.id) == (call.principal, call.client_id)
            and client.closing is None
        ]

    def _send(self, call: _Call) -> None:
        """Sends a call to the newest connection of its client, so that it is executed once."""
        event = EncodedEvent.of("tool.call", call.request)
        for client in self._clients(call)[-1:]:
            client.notify(event)

    def answer(self, client: Client, call_id: str, result: JsonValue, error: str | None) -> bool:
        """Accepts a client's answer; returns whether a call of that principal waits for it."""
        call = self._calls.get(call_id)
        if call is None or call.principal != client.principal or call.answered.is_set():
            return False
        call.result, call.error = result, error
        call.answered.set()
        return True

    def hand_over(self, gone: Client) -> None:
        """Sends the pending calls of a closed connection to another one of the same client."""
        for call in self._calls.values():
            if (gone.principal, gone.hello.client.id) == (call.principal, call.client_id):
                self._send(call)

    def repeat(self, client: Client) -> None:
        """Sends the pending calls of a client that has reconnected again."""
        for call in self._calls.values():
            if (client.principal, client.hello.client.id) == (call.principal, call.client_id):
                client.notify(EncodedEvent.of("tool.call", call.request))
