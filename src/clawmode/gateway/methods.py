"""What a method is: its name, its scope, the schema of its parameters, what it does."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from clawmode.agent.requests import AgentRequest
from clawmode.exceptions import ConfigurationError
from clawmode.gateway.clients import Client
from clawmode.gateway.gateway import Gateway
from clawmode.rpc import protocol
from clawmode.rpc.protocol import RpcError
from clawmode.rpc.scopes import Scope
from clawmode.types import JsonObject, JsonValue

MAX_TEXT = 4_096
MAX_KEY = 128


class Params(dict[str, JsonValue]):
    """Parameters that were checked: what is not there has its default."""

    def text(self, name: str, default: str = "") -> str:
        """A string."""
        value = self.get(name)
        return value if isinstance(value, str) else default

    def number(self, name: str, default: float) -> float:
        """A number."""
        value = self.get(name)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if good else default

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean."""
        value = self.get(name)
        return value if isinstance(value, bool) else default

    def object(self, name: str) -> JsonObject:
        """An object."""
        value = self.get(name)
        return value if isinstance(value, dict) else {}

    def list(self, name: str) -> list[Any]:
        """A list."""
        value = self.get(name)
        return value if isinstance(value, list) else []


Handler: TypeAlias = Callable[[Gateway, Client, Params], Awaitable[JsonObject]]


@dataclass(frozen=True, slots=True)
class Method:
    """One that clients can call.

    Attributes:
        scope: What a client needs.
        schema: Of its parameters.
        effect: Whether it does something: then an `idempotencyKey` is needed, and it is done once.
        repeatable: Whether one that a process began, and of whose end nothing is known, may be
            carried out again: it does nothing a second time by itself.
    """

    name: str
    scope: Scope
    run: Handler
    schema: JsonObject
    effect: bool = False
    repeatable: bool = False

    def check(self, params: JsonObject) -> Params:
        """The parameters, if they fit.

        Raises:
            RpcError: They do not.
        """
        protocol.check(self.name, self.schema, params)
        return Params(params)


def agent_of(gateway: Gateway, given: Params) -> str:
    """The agent that `agentId` or `sessionKey` names, else the default one.

    Raises:
        RpcError: There is no such agent.
    """
    agent_id, key = given.text("agentId"), given.text("sessionKey")
    try:
        return gateway.host.resolver.agent_of(AgentRequest(agent_id=agent_id, session_key=key))
    except ConfigurationError as error:
        field = "agentId" if agent_id else "sessionKey"
        raise RpcError("INVALID_REQUEST", str(error), field=field) from None


# ---- Schemas ----

STRING: JsonObject = {"type": "string", "maxLength": MAX_TEXT}
NAME: JsonObject = {"type": "string", "minLength": 1, "maxLength": 256}
TEXT: JsonObject = {"type": "string", "maxLength": 1 << 20}
BOOLEAN: JsonObject = {"type": "boolean"}
OBJECT: JsonObject = {"type": "object"}
ANYTHING: JsonObject = {}
KEY: JsonObject = {"type": "string", "minLength": 1, "maxLength": MAX_KEY}
IDEMPOTENCY = "idempotencyKey"


def integer(low: int, high: int) -> JsonObject:
    """A number of these."""
    return {"type": "integer", "minimum": low, "maximum": high}


def choice(*values: str) -> JsonObject:
    """One of these."""
    return {"type": "string", "enum": list[JsonValue](values)}


def items(of: JsonObject, most: int) -> JsonObject:
    """A list."""
    return {"type": "array", "items": of, "maxItems": most}


def params(*required: str, **properties: JsonObject) -> JsonObject:
    """An object with these and no others; those named are needed."""
    return {
        "type": "object",
        "properties": dict[str, JsonValue](properties),
        "required": list[JsonValue](required),
        "additionalProperties": False,
    }


def method(
    name: str,
    scope: Scope,
    run: Handler,
    schema: JsonObject | None = None,
    *,
    effect: bool = False,
    repeatable: bool = False,
) -> Method:
    """Describes a method; one with an effect gets its `idempotencyKey`."""
    made = params() if schema is None else schema
    if effect:
        known, needed = made["properties"], made["required"]
        assert isinstance(known, dict)
        assert isinstance(needed, list)
        made = made | {
            "properties": {**known, IDEMPOTENCY: KEY},
            "required": [*needed, IDEMPOTENCY],
        }
    return Method(name, scope, run, made, effect, repeatable)


def table(*methods: Method) -> Mapping[str, Method]:
    """Methods by name.

    Raises:
        ValueError: Two have one name.
    """
    made = {each.name: each for each in methods}
    if len(made) != len(methods):
        raise ValueError("two methods have one name")
    return made
