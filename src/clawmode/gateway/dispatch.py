"""Requests carried out: known, allowed, checked; and what has an effect, once."""

import hashlib
import json
import logging
from collections.abc import Mapping
from contextlib import suppress

from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.foreign import must_propagate
from clawmode.gateway import restart
from clawmode.gateway.clients import Client
from clawmode.gateway.gateway import Effect, Gateway
from clawmode.gateway.ledger import LedgerUnavailable
from clawmode.gateway.methods import IDEMPOTENCY, Method, Params
from clawmode.rpc import protocol
from clawmode.rpc.protocol import Request, RpcError
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.gateway")


class Dispatcher:
    """Carries out what clients ask for.

    Args:
        gateway: Of what.
        methods: By name.
    """

    def __init__(self, gateway: Gateway, methods: Mapping[str, Method]) -> None:
        self.gateway = gateway
        self.methods = methods

    def allowed(self, client: Client) -> list[str]:
        """The methods that a client may call."""
        return [each.name for each in self.methods.values() if each.scope in client.scopes]

    async def answer(self, client: Client, request: Request) -> str:
        """Carries a request out; the frame that answers it."""
        name = request.method if request.method in self.methods else "unknown"
        self.gateway.counters[name] = self.gateway.counters.get(name, 0) + 1
        try:
            answer = await self.call(client, request)
            frame = protocol.response(request.id, answer)
            if self.gateway.host.runtime.known.are_in(frame):
                frame = protocol.response(request.id, self.gateway.without_secrets(answer))
            return frame
        except RpcError as error:
            return protocol.failure(request.id, error)
        except ConfigurationError as error:
            return protocol.failure(request.id, RpcError("INVALID_REQUEST", str(error)))
        except LedgerUnavailable as error:
            return protocol.failure(request.id, RpcError("UNAVAILABLE", str(error)))
        except ClawmodeError as error:
            return protocol.failure(request.id, restart.as_rpc_error(error))
        except BaseException as error:
            if must_propagate(error):
                raise
            logger.exception("method %s", name)
            text = f"the gateway failed: {type(error).__name__}"
            return protocol.failure(request.id, RpcError("INTERNAL", text))

    async def call(self, client: Client, request: Request) -> JsonObject:
        """Carries a request out.

        Raises:
            ClawmodeError: It cannot be.
        """
        method = self.methods.get(request.method)
        if method is None:
            raise RpcError("NOT_FOUND", f"there is no method {request.method[:80]!r}")
        if method.scope not in client.scopes:
            text = f"{method.name} needs the scope {method.scope}"
            raise RpcError("FORBIDDEN", text, details={"scope": method.scope})
        params = method.check(request.params)
        if not method.effect:
            return await method.run(self.gateway, client, params)
        if self.gateway.stopping:
            raise RpcError("UNAVAILABLE", "the gateway stops", retry_after_ms=5_000)
        return await self._once(client, method, params)

    async def _once(self, client: Client, method: Method, params: Params) -> JsonObject:
        """Carries out what has an effect, unless it was: then the answer is the same.

        In a task of the gateway's: what was begun is ended, whoever waits for it or does not.
        """
        key = (client.principal, method.name, params.text(IDEMPOTENCY))
        while (begun := self.gateway.effects.get(key)) is not None:
            await begun.done.wait()
        effect = self.gateway.effects[key] = Effect()
        try:
            self.gateway.begin(self._work, effect, client, method, params, key)
        except RpcError:
            self.gateway.effects.pop(key).done.set()
            raise
        await effect.done.wait()
        if effect.error is not None:
            raise effect.error
        assert effect.answer is not None
        return effect.answer

    async def _work(
        self,
        effect: Effect,
        client: Client,
        method: Method,
        params: Params,
        key: tuple[str, str, str],
    ) -> None:
        try:
            effect.answer = await self._answer_once(client, method, params, key)
        except Exception as error:
            effect.error = error
        except BaseException:
            effect.error = RpcError("UNAVAILABLE", "the gateway stops", retry_after_ms=5_000)
            raise
        finally:
            self.gateway.effects.pop(key, None)
            effect.done.set()

    async def _answer_once(
        self, client: Client, method: Method, params: Params, key: tuple[str, str, str]
    ) -> JsonObject:
        noted = await self.gateway.ledger.begin(*key, _digest(params))
        if noted.state == "other":
            text = "another request was made under this key"
            raise RpcError("CONFLICT", text, field=IDEMPOTENCY)
        if noted.answer is not None:
            return noted.answer
        if noted.state != "new" and not method.repeatable:
            text = "this request was begun, and it is not known what came of it"
            raise RpcError("CONFLICT", text, field=IDEMPOTENCY)
        return await self._carry_out(client, method, params, key)

    async def _carry_out(
        self, client: Client, method: Method, params: Params, key: tuple[str, str, str]
    ) -> JsonObject:
        try:
            answer = await method.run(self.gateway, client, params)
        except ClawmodeError:
            # It was refused; what fails in the middle is an answer of the method's own.
            with suppress(LedgerUnavailable):
                await self.gateway.ledger.forget(*key)
            raise
        await self.gateway.ledger.finish(*key, answer)
        return answer


def _digest(params: JsonObject) -> str:
    text = json.dumps(params, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
