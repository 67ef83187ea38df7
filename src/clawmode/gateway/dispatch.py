"""Executes requests: finds the method, checks scope and parameters, executes each effect once."""

import hashlib
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING, TypeAlias

import anyio

from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.gateway.ledger import LedgerUnavailable
from clawmode.gateway.methods import Method, MethodCall
from clawmode.rpc import protocol
from clawmode.rpc.protocol import IDEMPOTENCY, Request, RpcError
from clawmode.sessions.keys import InvalidSession, SessionError, UnknownSession
from clawmode.sessions.lock import SessionBusy
from clawmode.tasks import must_propagate
from clawmode.types import JsonObject, dataclass

if TYPE_CHECKING:
    from clawmode.gateway.clients import Client
    from clawmode.gateway.gateway import Gateway

logger = logging.getLogger("clawmode.gateway")


Key: TypeAlias = tuple[str, str, str]
"""Principal, method and idempotency key: what a repeated request has in common with the first."""


@dataclass(eq=False, slots=True)
class _Effect:
    done: anyio.Event = field(default_factory=anyio.Event)
    answer: JsonObject | None = None
    error: Exception | None = None


class Dispatcher:
    """Executes the requests of clients.

    Args:
        gateway: The gateway that the methods use.
        methods: The methods by name.
    """

    def __init__(self, gateway: "Gateway", methods: Mapping[str, Method]) -> None:
        self.gateway = gateway
        self.methods = methods

    def allowed(self, client: "Client") -> list[str]:
        """Returns the names of the methods that a client may call."""
        return [method.name for method in self.methods.values() if method.is_allowed(client.scopes)]

    async def answer(self, client: "Client", request: Request) -> str:
        """Executes a request, and returns the frame of the response."""
        name = request.method if request.method in self.methods else "unknown"
        self.gateway.counters[name] = self.gateway.counters.get(name, 0) + 1
        try:
            answer = await self.call(client, request)
            frame = protocol.response(request.id, answer)
            # Redacting a value costs much more than a search in the text of the frame.
            if self.gateway.host.runtime.known.are_in(frame):
                frame = protocol.response(request.id, self.gateway.without_secrets(answer))
            return frame
        except ClawmodeError as error:
            return protocol.failure(request.id, as_rpc_error(error))
        except BaseException as error:
            if must_propagate(error):
                raise
            logger.exception("method %s", name)
            text = f"the gateway failed ({type(error).__name__}): its log has the reason"
            return protocol.failure(request.id, RpcError("INTERNAL", text))

    async def call(self, client: "Client", request: Request) -> JsonObject:
        """Executes a request, and returns the payload of the response.

        Raises:
            ClawmodeError: The request is rejected, or fails.
        """
        method = self.methods.get(request.method)
        if method is None:
            raise RpcError("NOT_FOUND", f"there is no method {request.method[:80]!r}")
        if not method.is_allowed(client.scopes):
            text = f"{method.name} needs the scope {method.scope}"
            raise RpcError("FORBIDDEN", text, details={"scope": method.scope})
        call = MethodCall(self.gateway, client, method.check(request.params))
        if not method.effect:
            return await method.run(call)
        if self.gateway.stopping:
            raise RpcError("UNAVAILABLE", "the gateway is stopping", retry_after_ms=5_000)
        # A request with an effect is executed unless an earlier one with its key was. A task of the
        # gateway executes it, so that a client that disconnects does not cancel it.
        key = (call.client.principal, method.name, call.params.text(IDEMPOTENCY))
        while (earlier := self.gateway.effects.get(key)) is not None:
            await earlier.wait()
        effect = _Effect()
        self.gateway.effects[key] = effect.done
        try:
            self.gateway.begin(self._work, effect, method, call, key)
        except RpcError:
            self.gateway.effects.pop(key).set()
            raise
        await effect.done.wait()
        if effect.error is not None:
            raise effect.error
        assert effect.answer is not None
        return effect.answer

    async def _work(self, effect: _Effect, method: Method, call: MethodCall, key: Key) -> None:
        try:
            effect.answer = await self._recorded(method, call, key)
        except Exception as error:
            effect.error = error
        except BaseException:
            text = "the gateway is stopping"
            effect.error = RpcError("UNAVAILABLE", text, retry_after_ms=5_000)
            raise
        finally:
            self.gateway.effects.pop(key, None)
            effect.done.set()

    async def _recorded(self, method: Method, call: MethodCall, key: Key) -> JsonObject:
        """Returns the recorded response, or executes the request and records its response."""
        ledger = self.gateway.ledger
        text = json.dumps(call.params, sort_keys=True, ensure_ascii=True)
        record = await ledger.begin(*key, hashlib.sha256(text.encode()).hexdigest())
        if record.state == "other":
            text = "another request was made with this key: use a new key for each request"
            raise RpcError("CONFLICT", text, field=IDEMPOTENCY)
        if record.answer is not None:
            return record.answer
        if record.state != "new" and not method.repeatable:
            text = "an earlier request with this key was interrupted, and its outcome is unknown"
            raise RpcError("CONFLICT", text, field=IDEMPOTENCY)
        try:
            answer = await method.run(call)
        except ClawmodeError:
            # Such an exception means that the request was rejected, and had no effect yet: a
            # method that fails half-way returns the failure as its answer.
            with suppress(LedgerUnavailable):
                await ledger.forget(*key)
            raise
        await ledger.finish(*key, answer)
        return answer


def as_rpc_error(error: ClawmodeError) -> RpcError:
    """Returns an exception of a method as an error response."""
    if isinstance(error, RpcError):
        return error
    if isinstance(error, ConfigurationError):
        return RpcError("INVALID_REQUEST", str(error))
    if isinstance(error, UnknownSession):
        return RpcError("NOT_FOUND", str(error))
    if isinstance(error, InvalidSession):
        return RpcError("INVALID_REQUEST", str(error), field="sessionKey")
    if isinstance(error, SessionBusy | SessionError):
        return RpcError("UNAVAILABLE", str(error), retry_after_ms=1_000)
    return RpcError("UNAVAILABLE", str(error))
