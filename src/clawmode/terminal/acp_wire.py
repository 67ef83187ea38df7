"""The JSON-RPC messages of an ACP client on stdin and stdout: checked, limited in size.

The connection of the ACP package ends at some invalid messages, and does not answer others. So
every line is checked here, and an invalid one is answered with an error that says what is wrong.
"""

import asyncio
import json
from typing import Any

from clawmode.mcp.stdio_wire import INVALID_REQUEST, PARSE_ERROR, LineWire
from clawmode.text import without_surrogates
from clawmode.types import JsonValue, refuse_constant

MAX_LINE_BYTES = 32 << 20
"""Of one message. Prompts contain images, as base64."""

MAX_WAITING = 16
"""Messages that were read and not handled yet; then the client has to wait."""

INVALID_PARAMS = -32602


class InvalidMessage(Exception):
    """A line that is not a valid message; the text says what is wrong.

    Attributes:
        code: The code of the JSON-RPC error.
        id: The id of the request, if it has a valid one.
    """

    def __init__(self, code: int, text: str, id_: int | str | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.id = id_


class AcpWire(LineWire):
    """The messages of a client, as a transport for `acp.connection.Connection`."""

    max_line = MAX_LINE_BYTES

    def __init__(self, source: int, target: int) -> None:
        self._incoming = asyncio.Queue[dict[str, Any] | None](MAX_WAITING)
        super().__init__(source, target)

    async def take(self, line: bytes | None) -> None:
        if line is None:
            await self._incoming.put(None)
            return
        try:
            message = parse(line)
        except InvalidMessage as error:
            about = {"code": error.code, "message": str(error)}
            await self.send({"jsonrpc": "2.0", "id": error.id, "error": about})
            return
        await self._incoming.put(message)

    # ---- For the connection ----

    async def send(self, message: dict[str, Any]) -> None:
        text = json.dumps(message, separators=(",", ":"), ensure_ascii=False, default=str)
        # Half of a surrogate pair is valid in JSON for Python, and not for most other languages.
        if not await self.write(without_surrogates(text).encode() + b"\n"):
            raise ConnectionError("the client does not read any more")

    async def receive(self) -> dict[str, Any] | None:
        return await self._incoming.get()

    async def close(self) -> None:
        """Does nothing: the threads end with the process."""


def parse(line: bytes) -> dict[str, Any]:
    """Returns a request, a notification or a response without members that we do not read.

    Raises:
        InvalidMessage: The line is none of these.
    """
    if len(line) >= MAX_LINE_BYTES:
        raise InvalidMessage(PARSE_ERROR, f"a message must have less than {MAX_LINE_BYTES} bytes")
    try:
        found: JsonValue = json.loads(line, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise InvalidMessage(PARSE_ERROR, "the line is not valid JSON") from None
    if not isinstance(found, dict):
        raise InvalidMessage(INVALID_REQUEST, "the line is not one JSON-RPC message: an object")
    given = found.get("id")
    is_known = type(given) is int or isinstance(given, str)
    id_: Any = given if is_known else None
    if found.get("jsonrpc") != "2.0":
        raise InvalidMessage(INVALID_REQUEST, 'expected `"jsonrpc": "2.0"`', id_)
    if "id" in found and not is_known:
        raise InvalidMessage(INVALID_REQUEST, "`id` must be a string or an integer")
    method = found.get("method")
    if "method" not in found:
        return _parse_response(found, id_)
    if not isinstance(method, str):
        raise InvalidMessage(INVALID_REQUEST, "`method` must be a string", id_)
    params = found.get("params")
    if params is not None and not isinstance(params, dict):
        raise InvalidMessage(INVALID_PARAMS, "`params` must be an object", id_)
    # The package passes the members of `_meta` as arguments, and they would replace parameters.
    read = {name: value for name, value in (params or {}).items() if name != "_meta"}
    message = {"jsonrpc": "2.0", "method": method, "params": read}
    return message if id_ is None else {**message, "id": id_}


def _parse_response(found: dict[str, JsonValue], id_: int | str | None) -> dict[str, Any]:
    if type(id_) is not int or not found.keys() & {"result", "error"}:
        text = "the message has neither a `method`, nor the `id` and the `result` of a response"
        raise InvalidMessage(INVALID_REQUEST, text, id_)
    error = found.get("error")
    if error is None:
        return {"id": id_, "result": found.get("result")}
    about = error if isinstance(error, dict) else {}
    code, text = about.get("code"), about.get("message")
    valid = {
        "code": code if type(code) is int else 0,
        "message": text if isinstance(text, str) else "an error without a message",
    }
    return {"id": id_, "error": valid}
