"""A method of the gateway: name, scope, parameters, handler; and the pieces that handlers share.

Handlers reach the gateway through `MethodCall`, which only names its type: the modules of methods
do not import the gateway, and the gateway imports no method. `method_table` lists all methods.
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from clawmode.agent.requests import AgentRequest
from clawmode.exceptions import ConfigurationError
from clawmode.messages import Image
from clawmode.rpc import protocol
from clawmode.rpc.protocol import IDEMPOTENCY, RpcError
from clawmode.rpc.scopes import Scope
from clawmode.types import JsonObject, JsonValue, dataclass

if TYPE_CHECKING:
    from clawmode.agent.runtime import AgentRuntime
    from clawmode.app.host import Host
    from clawmode.gateway.clients import Client
    from clawmode.gateway.gateway import Gateway
    from clawmode.sessions.store import Session

MAX_TEXT = 4_096
MAX_KEY = 128
MAX_NUMBER = (1 << 53) - 1
"""The largest number that every language with floating-point numbers reads exactly."""


class Params(dict[str, JsonValue]):
    """The parameters of a request, checked against the method's schema.

    Each accessor returns its default for a parameter that is missing or null.
    """

    def text(self, name: str, default: str = "") -> str:
        value = self.get(name)
        return value if isinstance(value, str) else default

    def number(self, name: str, default: float) -> float:
        value = self.get(name)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if good else default

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        return value if isinstance(value, bool) else default

    def object(self, name: str) -> JsonObject:
        value = self.get(name)
        return value if isinstance(value, dict) else {}

    def list(self, name: str) -> list[Any]:
        value = self.get(name)
        return value if isinstance(value, list) else []

    def images(self) -> tuple[Image, ...]:
        """Returns the images of the parameter `images`, whose schema is a list of `IMAGE`."""
        return tuple(Image(image["data"], image["mediaType"]) for image in self.list("images"))


@dataclass(frozen=True, slots=True)
class MethodCall:
    """A request that is executed: who calls, with which parameters.

    Attributes:
        gateway: The gateway. A reload of the configuration replaces its `host`.
        client: The client that sent the request.
        params: The checked parameters.
    """

    gateway: "Gateway"
    client: "Client"
    params: Params

    @property
    def host(self) -> "Host":
        return self.gateway.host

    @property
    def runtime(self) -> "AgentRuntime":
        return self.gateway.host.runtime

    @property
    def derived_id(self) -> str:
        """An id that every repetition of the request gets again, also after a restart."""
        key = f"{self.client.principal}\0{self.params.text(IDEMPOTENCY)}"
        return hashlib.sha256(key.encode()).hexdigest()[:32]

    def agent_id(self) -> str:
        """Returns the agent that `agentId` or `sessionKey` names, else the default agent.

        Raises:
            RpcError: There is no such agent.
        """
        agent_id, key = self.params.text("agentId"), self.params.text("sessionKey")
        try:
            return self.host.resolver.agent_of(AgentRequest(agent_id=agent_id, session_key=key))
        except ConfigurationError as error:
            field = "agentId" if agent_id else "sessionKey"
            raise RpcError("INVALID_REQUEST", str(error), field=field) from None

    def request(self) -> AgentRequest:
        """Returns the request of what runs without a turn, for `agentId` and `sessionKey`.

        Raises:
            RpcError: There is no such agent.
        """
        return AgentRequest(
            agent_id=self.agent_id(),
            session_key=self.params.text("sessionKey"),
            sender=self.client.principal,
            origin="gateway",
        )

    async def session(self, *, create: bool = False) -> "Session":
        """Returns the session that `sessionKey`, `sessionId` and `agentId` name.

        Args:
            create: Whether a session that does not exist is created.

        Raises:
            SessionError: There is no such session, or the key is invalid.
        """
        return await self.runtime.sessions.resolve(
            self.params.text("sessionKey") or None,
            self.params.text("sessionId") or None,
            self.params.text("agentId") or None,
            create=create,
        )


Handler: TypeAlias = Callable[[MethodCall], Awaitable[JsonObject]]
"""Returns the payload of the response. Raises `ClawmodeError` for an error response."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method that clients can call.

    Attributes:
        scope: The scope that a client needs; None: every connected client may call the method.
        run: Executes the method.
        schema: The JSON Schema of the parameters.
        effect: Whether the method changes something. Then a request needs an `idempotencyKey`, and
            a repetition returns the first response.
        repeatable: Whether a request may be executed again if the gateway was killed during the
            first execution, because a second execution changes nothing more.
    """

    name: str
    scope: Scope | None
    run: Handler
    schema: JsonObject
    effect: bool = False
    repeatable: bool = False

    def is_allowed(self, scopes: frozenset[Scope]) -> bool:
        """Returns whether a client with these scopes may call the method."""
        return self.scope is None or self.scope in scopes

    def check(self, params: JsonObject) -> Params:
        """Returns the parameters.

        Raises:
            RpcError: The parameters do not match the schema.
        """
        protocol.check(self.name, self.schema, params)
        return Params(params)


# ---- Schemas ----

STRING: JsonObject = {"type": "string", "maxLength": MAX_TEXT}
NAME: JsonObject = {"type": "string", "minLength": 1, "maxLength": 256}
TEXT: JsonObject = {"type": "string", "maxLength": 1 << 20}
BOOLEAN: JsonObject = {"type": "boolean"}
OBJECT: JsonObject = {"type": "object"}
ANYTHING: JsonObject = {}
KEY: JsonObject = {"type": "string", "minLength": 1, "maxLength": MAX_KEY}
IMAGE: JsonObject = {
    "type": "object",
    "properties": {
        "data": {"type": "string", "maxLength": 16 << 20},
        "mediaType": {"type": "string", "maxLength": 100},
    },
    "required": ["data", "mediaType"],
}
SESSION: dict[str, JsonObject] = {"sessionKey": NAME, "sessionId": NAME, "agentId": NAME}
"""The parameters of a method that is about one session: see `MethodCall.session`."""


def integer(low: int, high: int) -> JsonObject:
    """Returns the schema of an integer in a range."""
    return {"type": "integer", "minimum": low, "maximum": high}


def choice(*values: str) -> JsonObject:
    """Returns the schema of a string out of a fixed set."""
    return {"type": "string", "enum": list[JsonValue](values)}


def items(of: JsonObject, most: int) -> JsonObject:
    """Returns the schema of a list with at most `most` items."""
    return {"type": "array", "items": of, "maxItems": most}


def params(*required: str, **properties: JsonObject) -> JsonObject:
    """Returns the schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": dict[str, JsonValue](properties),
        "required": list[JsonValue](required),
        "additionalProperties": False,
    }


def method(
    name: str,
    scope: Scope | None,
    run: Handler,
    schema: JsonObject | None = None,
    *,
    effect: bool = False,
    repeatable: bool = False,
) -> Method:
    """Describes a method. Without a schema it has no parameters.

    The schema of a method with an effect gets the required parameter `idempotencyKey`.
    """
    schema = params() if schema is None else schema
    if effect:
        properties, required = schema["properties"], schema["required"]
        assert isinstance(properties, dict)
        assert isinstance(required, list)
        schema = schema | {
            "properties": {**properties, IDEMPOTENCY: KEY},
            "required": [*required, IDEMPOTENCY],
        }
    return Method(name, scope, run, schema, effect, repeatable)
