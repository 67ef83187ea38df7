"""The frames between gateway and clients: parsed, checked, encoded. No socket is used here.

    client  {type: "req", id, method, params}
    gateway {type: "res", id, ok: true, payload} | {type: "res", id, ok: false, error}
    gateway {type: "event", event, payload, seq, at}

Each frame is a JSON object in a WebSocket text message of its own. The gateway starts with the
event `connect.challenge`, the client's first request is `connect`, and the response to that request
is `hello-ok`. `docs/reference/gateway-protocol.md` describes the protocol for authors of clients.
"""

import json
import math
from dataclasses import field
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import Field

from clawmode import __version__, records
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.records import AnyObject, Items, Record, secret
from clawmode.text import without_escaped_surrogates, without_surrogates
from clawmode.tools.validation import Validator
from clawmode.types import JsonObject, JsonValue, children, dataclass, refuse_constant

PROTOCOL = 4
"""The version of the protocol. A client names the range that it supports."""

MAX_FIRST_BYTES = 64 << 10
"""The longest frame, in bytes, until the client has authenticated."""

MAX_PAYLOAD = 26_214_400
MAX_BUFFERED = 52_428_800
TICK_MS = 15_000

MAX_ID = 128
MAX_DEPTH = 64
MAX_PARTS = 200_000
"""Roughly the most values in a frame: parsing blocks the event loop for every other client."""

CHALLENGE = "connect.challenge"
CONNECT = "connect"
IDEMPOTENCY = "idempotencyKey"
"""The parameter that makes a repeated request harmless: its effect happens once."""

MAX_ERROR_CHARS = 4_000
"""The longest error message that a client accepts from a gateway."""

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
CODES: tuple[Code, ...] = get_args(Code)

CLOSE_POLICY = 1008
CLOSE_TOO_LARGE = 1009
CLOSE_RESTART = 1012
CLOSE_LOGGED_OUT = 4001
"""The session of the browser has ended: the page asks for a login."""
CLOSE_SLOW = 4008
"""The client does not read fast enough."""


class RpcError(ClawmodeError):
    """A request failed, or is answered with an error.

    Attributes:
        code: The kind of error, for programs.
        field: The path of the parameter that is wrong, if one is.
        retry_after_ms: The time after which a retry may succeed; None if a retry is pointless.
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
        """Returns the member `error` of a response."""
        error: JsonObject = {"code": self.code, "message": str(self)}
        details = {"field": self.field, **self.details} if self.field else self.details
        if details:
            error["details"] = details
        if self.retry_after_ms is not None:
            error |= {"retryable": True, "retryAfterMs": self.retry_after_ms}
        return error


class BadFrame(RpcError):
    """A client sent a frame that is not a valid request.

    Attributes:
        id: The id of the request; empty if it could not be parsed.
        fatal: True if the connection is closed.
    """

    def __init__(
        self, message: str, *, code: Code = "INVALID_REQUEST", id: str = "", fatal: bool = False
    ) -> None:
        super().__init__(code, message)
        self.id = id
        self.fatal = fatal


Word: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_ID)]


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a client, parsed but not checked against its method's schema."""

    id: Annotated[Word, Field(title=f"a string of 1 to {MAX_ID} characters")]
    method: Annotated[Word, Field(title=f"a string of 1 to {MAX_ID} characters")]
    params: AnyObject = field(default_factory=dict[str, JsonValue])
    type: Literal["req"] = "req"


# ---- Parsing ----


def parse(text: str | bytes, *, connected: bool) -> Request:
    """Parses the frame of a request.

    Args:
        text: The WebSocket message.
        connected: False until the client has authenticated. Until then frames must be short, and
            `connect` is the only method.

    Raises:
        BadFrame: The frame is not a request.
    """
    limit = MAX_PAYLOAD if connected else MAX_FIRST_BYTES
    if isinstance(text, bytes):
        raise BadFrame("a frame must be a text message, not a binary one", fatal=True)
    # The cheap test first: encoding copies the text.
    if len(text) > limit or len(text.encode("utf-8", "surrogatepass")) > limit:
        raise BadFrame(f"the frame is longer than {limit} bytes", code="TOO_LARGE", fatal=True)
    # Counted before parsing: a short text can hold millions of values.
    if sum(map(text.count, "[{,")) > MAX_PARTS:
        raise BadFrame(f"the frame has more than {MAX_PARTS} values", code="TOO_LARGE", fatal=True)
    frame = {"type": None, **_load(text)}
    try:
        request = records.parse(Request, frame)
    except ConfigurationError as error:
        frame_id = "" if error.path == "id" else str(frame["id"])
        text = f"`{error.path}` must be {error.expected}"
        raise BadFrame(text, id=frame_id, fatal=not connected) from None
    if not connected and request.method != CONNECT:
        raise BadFrame("the first request must be `connect`", id=request.id, fatal=True)
    return request


def _load(text: str) -> dict[str, Any]:
    # By `json`, not by pydantic, which keeps lone surrogates out by an error, and has other limits.
    try:
        frame = json.loads(text, parse_constant=refuse_constant, parse_float=_parse_float)
        _check_depth(frame)
        frame = without_escaped_surrogates(frame, text)
    except (ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        reason = "it is nested too deeply" if deep else str(error)[:200]
        raise BadFrame(f"a frame must be a JSON object: {reason}", fatal=True) from None
    if not isinstance(frame, dict):
        raise BadFrame("a frame must be a JSON object", fatal=True)
    return frame


def _parse_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is too large for a number")
    return number


def _check_depth(value: JsonValue) -> None:
    """Raises if a value is nested so deeply that recursive code would fail later."""
    # Level by level: a recursive walk would fail on the values that it has to reject.
    level: list[JsonValue] = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in children(parent)]
        if not level:
            return
    raise ValueError(f"it is nested over {MAX_DEPTH} levels deep")


def parse_error(frame: dict[str, Any]) -> RpcError:
    """Returns the error of a response, as its client sees it. The gateway is not trusted here.

    Read by hand: each member that is wrong gets a default, so that the others are still shown.
    """
    error = frame.get("error")
    given: dict[str, Any] = error if isinstance(error, dict) else {}
    details = given.get("details")
    found: dict[str, Any] = details if isinstance(details, dict) else {}
    wait = given.get("retryAfterMs")
    return RpcError(
        next((code for code in CODES if code == given.get("code")), "INTERNAL"),
        str(given.get("message") or "the gateway gave no reason")[:MAX_ERROR_CHARS],
        field=str(found.get("field", ""))[:MAX_ERROR_CHARS],
        retry_after_ms=wait if isinstance(wait, int) and wait >= 0 else None,
        details={key: value for key, value in found.items() if key != "field"},
    )


# ---- Encoding ----


def request(request_id: str, method: str, params: JsonObject) -> str:
    """Encodes a request.

    Raises:
        ValueError: The parameters are not JSON.
    """
    frame = {"type": "req", "id": request_id, "method": method, "params": params}
    # JSON has no NaN. The gateway would reject the frame, and close the connection.
    text = json.dumps(frame, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return without_surrogates(text)


def response(request_id: str, payload: JsonObject) -> str:
    """Encodes the response to a request that succeeded."""
    return _dump({"type": "res", "id": request_id, "ok": True, "payload": payload})


def failure(request_id: str, error: RpcError) -> str:
    """Encodes the response to a request that failed."""
    return _dump({"type": "res", "id": request_id, "ok": False, "error": error.to_json()})


def event(name: str, payload: JsonObject, seq: int | None = None) -> str:
    """Encodes an event. Events to a connected client have a sequence number."""
    frame: JsonObject = {"type": "event", "event": name, "payload": payload}
    return _dump(frame if seq is None else {**frame, "seq": seq})


def _dump(frame: JsonObject) -> str:
    # A tool may have returned a lone surrogate, which cannot be sent as UTF-8.
    return without_surrogates(json.dumps(frame, ensure_ascii=False, separators=(",", ":")))


# By the id of the schema. The entry keeps the schema alive, so that its id is not used again.
_validators: dict[int, tuple[JsonObject, Validator]] = {}


def check(name: str, schema: JsonObject, params: JsonObject) -> None:
    """Checks parameters against a schema.

    Args:
        name: The method, for errors about the schema.
        schema: A constant: its validator is built once, and cached by identity.
        params: The parameters.

    Raises:
        RpcError: The parameters do not match; `field` names the first that does not.
    """
    if id(schema) not in _validators:
        _validators[id(schema)] = schema, Validator(schema, name=name)
    problems = _validators[id(schema)][1].validate(params)
    if problems:
        where, _, reason = problems[0].partition(": ")
        path = where.removeprefix("input").removeprefix(".")
        # For a missing or unknown property the validator gives the path of the object around it.
        if reason.startswith(('"', 'unknown property "')):
            path = ".".join(filter(None, (path, reason.split('"')[1])))
        raise RpcError("INVALID_REQUEST", f"params: {reason}", field=path)


# ---- The first exchange ----


ShortText: TypeAlias = Annotated[str, Field(max_length=MAX_ID)]
Version: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]


class ClientInfo(Record):
    """The program that connects; the id identifies the program and its instance."""

    id: ShortText = Field(min_length=1)
    version: ShortText = ""
    platform: ShortText = ""
    mode: ShortText = ""


class Credentials(Record):
    """How a client authenticates."""

    token: str = secret("", max_length=512)


class Hello(Record):
    """The parameters of `connect`: how a client introduces itself.

    Attributes:
        scopes: The scopes that the client requests. It gets those that its token has as well.
    """

    min_protocol: Version
    max_protocol: Version
    client: ClientInfo
    role: Literal["operator"] = "operator"
    scopes: Annotated[Items[ShortText], Field(max_length=32)] = ()
    auth: Credentials = Credentials()


def read_hello(params: JsonObject) -> Hello:
    """Reads the parameters of `connect`.

    Raises:
        RpcError: A parameter is invalid; `field` names it. Or the client does not support this
            version of the protocol.
    """
    try:
        hello = records.parse(Hello, params)
    except ConfigurationError as error:
        raise RpcError("INVALID_REQUEST", f"params: {error}", field=error.path) from None
    if not hello.min_protocol <= PROTOCOL <= hello.max_protocol:
        raise RpcError(
            "INVALID_REQUEST",
            f"this gateway supports protocol {PROTOCOL} only",
            field="minProtocol",
            details={"protocol": PROTOCOL},
        )
    return hello


def hello_ok(
    *,
    connection_id: str,
    scopes: tuple[str, ...],
    methods: tuple[str, ...],
    events: tuple[str, ...],
    snapshot: JsonObject,
    position: JsonObject | None = None,
    principal: str = "",
) -> JsonObject:
    """Returns the payload of the response to `connect`.

    Args:
        connection_id: The id of the connection.
        scopes: The scopes that the client has.
        methods: The methods that it may call.
        events: The events that exist.
        snapshot: What the client should know at once.
        position: The last event before the connection, for `events.since`.
        principal: The name of the client's token.
    """
    auth: JsonObject = {"role": "operator", "principal": principal}
    return {
        "type": "hello-ok",
        "protocol": PROTOCOL,
        "server": {"version": __version__, "connId": connection_id},
        "features": {"methods": list[JsonValue](methods), "events": list[JsonValue](events)},
        "snapshot": snapshot,
        "events": position or {},
        "auth": auth | {"scopes": list[JsonValue](scopes)},
        "policy": {
            "maxPayload": MAX_PAYLOAD,
            "maxBufferedBytes": MAX_BUFFERED,
            "tickIntervalMs": TICK_MS,
        },
    }
