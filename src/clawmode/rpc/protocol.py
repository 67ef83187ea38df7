"""The frames of the gateway, without a socket: parsed, checked, encoded.

    client  {type: "req", id, method, params}
    gateway {type: "res", id, ok: true, payload} | {type: "res", id, ok: false, error}
    gateway {type: "event", event, payload, seq}

JSON objects, one to a WebSocket text message. The gateway begins with the event
`connect.challenge`, the client's first request is `connect`, and its answer is `hello-ok`.
`docs/reference/gateway-protocol.md` is the same for people.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from clawmode import __version__
from clawmode.exceptions import ClawmodeError
from clawmode.tools.validation import Validator
from clawmode.types import JsonObject, JsonValue

PROTOCOL = 4
"""The version of all this. One client and one gateway speak one that both know."""

MAX_FIRST_BYTES = 64 << 10
"""Of a frame, before its sender is known."""

MAX_PAYLOAD = 26_214_400
MAX_BUFFERED = 52_428_800
TICK_MS = 15_000

MAX_ID = 128
MAX_DEPTH = 64
MAX_PARTS = 200_000
"""Values in a frame, about: nobody else is served while they are read."""

CHALLENGE = "connect.challenge"
CONNECT = "connect"

Code: TypeAlias = Literal[
    "INVALID_REQUEST",
    "UNAUTHORIZED",
    "FORBIDDEN",
    "NOT_FOUND",
    "CONFLICT",
    "TOO_LARGE",
    "RATE_LIMITED",
    "UNAVAILABLE",
    "TIMEOUT",
    "INTERNAL",
]

CLOSE_POLICY = 1008
CLOSE_TOO_LARGE = 1009
CLOSE_RESTART = 1012
CLOSE_SLOW = 4008
"""A client that does not read what it is sent."""


class RpcError(ClawmodeError):
    """A request that is answered with an error.

    Attributes:
        code: What kind.
        field: Which parameter, if it is about one.
        retry_after_ms: When to try again, if that is of use.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        field: str = "",
        retry_after_ms: int | None = None,
        details: JsonObject | None = None,
    ) -> None:
        super().__init__(message)
        self.code: Code = code
        self.field = field
        self.retry_after_ms = retry_after_ms
        self.details = details or {}

    def to_json(self) -> JsonObject:
        """As it goes to the client."""
        made: JsonObject = {"code": self.code, "message": str(self)}
        details = {"field": self.field, **self.details} if self.field else self.details
        if details:
            made["details"] = details
        if self.retry_after_ms is not None:
            made |= {"retryable": True, "retryAfterMs": self.retry_after_ms}
        return made


class BadFrame(RpcError):
    """What a client sent is no request.

    Attributes:
        id: Of the request, as far as it could be read.
        fatal: Whether the connection ends by it.
    """

    def __init__(
        self, message: str, *, code: Code = "INVALID_REQUEST", id: str = "", fatal: bool = False
    ) -> None:
        super().__init__(code, message)
        self.id = id
        self.fatal = fatal


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for."""

    id: str
    method: str
    params: JsonObject = field(default_factory=dict[str, JsonValue])


# ---- Reading ----


def parse(text: str | bytes, *, connected: bool) -> Request:
    """Reads a frame.

    Args:
        text: As it came.
        connected: Whether its sender is known; until then frames are small, and ask to connect.

    Raises:
        BadFrame: It is no request.
    """
    limit = MAX_PAYLOAD if connected else MAX_FIRST_BYTES
    if isinstance(text, bytes):
        raise BadFrame("frames are text, not bytes", fatal=True)
    if len(text) > limit or len(text.encode("utf-8", "surrogatepass")) > limit:
        raise BadFrame(f"a frame has up to {limit} bytes", code="TOO_LARGE", fatal=True)
    if sum(map(text.count, "[{,")) > MAX_PARTS:
        raise BadFrame(f"a frame has up to {MAX_PARTS} values", code="TOO_LARGE", fatal=True)
    frame = _load(text)
    frame_id = frame.get("id")
    if not isinstance(frame_id, str) or not 0 < len(frame_id) <= MAX_ID:
        raise BadFrame(f"`id` is a string of 1 to {MAX_ID} characters", fatal=not connected)
    if frame.get("type") != "req":
        raise BadFrame('`type` of what a client sends is "req"', id=frame_id, fatal=not connected)
    method, params = frame.get("method"), frame.get("params", {})
    if not isinstance(method, str) or not 0 < len(method) <= MAX_ID:
        raise BadFrame("`method` is the name of one", id=frame_id, fatal=not connected)
    if not isinstance(params, dict):
        raise BadFrame("`params` is an object", id=frame_id, fatal=not connected)
    if not connected and method != CONNECT:
        raise BadFrame("the first request is `connect`", id=frame_id, fatal=True)
    return Request(frame_id, method, params)


def _load(text: str) -> dict[str, Any]:
    try:
        frame = json.loads(text, parse_constant=_refuse, parse_float=_number)
        _check_depth(frame)
        if "\\u" in text:
            frame = _without_halves(frame)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"a frame is a JSON object: {_reason(error)}", fatal=True) from None
    if not isinstance(frame, dict):
        raise BadFrame("a frame is a JSON object", fatal=True)
    return frame


def _without_halves(frame: Any) -> Any:
    """A frame without halves of characters, which no file and no database takes."""
    whole = json.dumps(frame, ensure_ascii=False)
    try:
        whole.encode()
    except UnicodeEncodeError:
        return json.loads(whole.encode("utf-8", "replace"))
    return frame


def _reason(error: Exception) -> str:
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)[:200]


def _number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _check_depth(value: JsonValue) -> None:
    """Nobody means what is nested deeper, and later readers would go down there."""
    level: list[JsonValue] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for each in level
            for child in (
                each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
            )
        ]
        if not level:
            return
    raise ValueError(f"it is nested over {MAX_DEPTH} deep")


# ---- Writing ----


def response(request_id: str, payload: JsonObject) -> str:
    """A good answer."""
    return _dump({"type": "res", "id": request_id, "ok": True, "payload": payload})


def failure(request_id: str, error: RpcError) -> str:
    """A bad one."""
    return _dump({"type": "res", "id": request_id, "ok": False, "error": error.to_json()})


def event(name: str, payload: JsonObject, seq: int | None = None) -> str:
    """An event; those of a client that is connected are numbered."""
    frame: JsonObject = {"type": "event", "event": name, "payload": payload}
    return _dump(frame if seq is None else {**frame, "seq": seq})


def _dump(frame: JsonObject) -> str:
    # Half a character, which a tool may have said, cannot go over the wire.
    text = json.dumps(frame, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode()


_validators: dict[int, tuple[JsonObject, Validator]] = {}


def check(name: str, schema: JsonObject, params: JsonObject) -> None:
    """Checks parameters. A schema is read once: it is a constant of somebody's.

    Raises:
        RpcError: They do not fit; it names the first that does not.
    """
    if id(schema) not in _validators:
        _validators[id(schema)] = schema, Validator(schema, name=name)
    problems = _validators[id(schema)][1].validate(params)
    if problems:
        where, _, reason = problems[0].partition(": ")
        path = where.removeprefix("input").removeprefix(".")
        if reason.startswith(('"', 'unknown property "')):  # it is named, and not its place
            path = ".".join(filter(None, (path, reason.split('"')[1])))
        raise RpcError("INVALID_REQUEST", f"params: {reason}", field=path)


# ---- The first exchange ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a client says of itself in `connect`.

    Attributes:
        client_id: What program it is, and which of them.
        scopes: What it wants; it gets no more than its token has.
    """

    client_id: str
    version: str = ""
    platform: str = ""
    mode: str = ""
    role: str = "operator"
    scopes: tuple[str, ...] = ()
    token: str = field(default="", repr=False)


CONNECT_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "minProtocol": {"type": "integer", "minimum": 1, "maximum": 1_000_000},
        "maxProtocol": {"type": "integer", "minimum": 1, "maximum": 1_000_000},
        "client": {
            "type": "object",
            "properties": {
                "id": {"type": "string", "minLength": 1, "maxLength": MAX_ID},
                "version": {"type": "string", "maxLength": MAX_ID},
                "platform": {"type": "string", "maxLength": MAX_ID},
                "mode": {"type": "string", "maxLength": MAX_ID},
            },
            "required": ["id"],
        },
        "role": {"type": "string", "enum": ["operator"]},
        "scopes": {
            "type": "array",
            "items": {"type": "string", "maxLength": MAX_ID},
            "maxItems": 32,
        },
        "auth": {
            "type": "object",
            "properties": {"token": {"type": "string", "maxLength": 512}},
        },
    },
    "required": ["minProtocol", "maxProtocol", "client"],
}


def read_hello(params: JsonObject) -> Hello:
    """What the parameters of `connect` say, which fit `CONNECT_SCHEMA`.

    Raises:
        RpcError: There is no protocol that both speak.
    """
    given: dict[str, Any] = params
    if not given["minProtocol"] <= PROTOCOL <= given["maxProtocol"]:
        raise RpcError(
            "INVALID_REQUEST",
            f"this gateway speaks protocol {PROTOCOL}",
            field="minProtocol",
            details={"protocol": PROTOCOL},
        )
    client: dict[str, str] = given["client"]
    auth: dict[str, str] = given.get("auth", {})
    return Hello(
        client_id=client["id"],
        version=client.get("version", ""),
        platform=client.get("platform", ""),
        mode=client.get("mode", ""),
        role=given.get("role", "operator"),
        scopes=tuple(given.get("scopes", ())),
        token=auth.get("token", ""),
    )


def hello_ok(
    *,
    connection_id: str,
    scopes: tuple[str, ...],
    methods: tuple[str, ...],
    events: tuple[str, ...],
    snapshot: JsonObject,
) -> JsonObject:
    """The answer to `connect`."""
    return {
        "type": "hello-ok",
        "protocol": PROTOCOL,
        "server": {"version": __version__, "connId": connection_id},
        "features": {"methods": list[JsonValue](methods), "events": list[JsonValue](events)},
        "snapshot": snapshot,
        "auth": {"role": "operator", "scopes": list[JsonValue](scopes)},
        "policy": {
            "maxPayload": MAX_PAYLOAD,
            "maxBufferedBytes": MAX_BUFFERED,
            "tickIntervalMs": TICK_MS,
        },
    }
