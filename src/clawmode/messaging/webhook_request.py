"""Reads, authenticates and parses the requests to a webhook.

A request is hostile until its signature is checked, and still untrusted input afterwards.
"""

import json

import anyio
from starlette.requests import ClientDisconnect, Request

from clawmode.messages import IMAGE_TYPES, BadMessage, Image
from clawmode.messaging.signing import OWN, STANDARD, Signer
from clawmode.tasks import read_bounded
from clawmode.types import JsonObject, JsonValue, dataclass, refuse_constant

MAX_BODY = 1 << 20
BODY_SECONDS = 10.0
MAX_ID = 200
MAX_TARGET = 500
MAX_IMAGES = 10


class Refused(Exception):
    """A request is rejected, with this HTTP status and code."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class SignedBody:
    """A body with a valid signature."""

    body: bytes
    signature: str


async def read_signed(request: Request, signer: Signer) -> SignedBody:
    """Reads the body of a request, and checks the signature.

    Raises:
        Refused: The body is too large, too slow, or not signed.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if kind != "application/json" or packed != "identity":
        raise Refused(
            415,
            "unsupported_media_type",
            "the body must be application/json without a content-encoding",
        )
    names = STANDARD if STANDARD[0] in request.headers else OWN
    for name in names:
        if len(request.headers.getlist(name)) != 1:
            raise Refused(401, "unsigned", f"the request must have exactly one header {name}")
    headers = {name: request.headers[name] for name in names}
    if not signer.is_fresh(headers[names[1]]):
        raise Refused(401, "bad_timestamp", f"{names[1]} must be the current time, in seconds")
    body = await _read_body(request)
    signature = signer.verify(headers, body)
    if not signature:
        raise Refused(401, "bad_signature", f"{names[0]} does not match the body")
    return SignedBody(body, signature)


async def _read_body(request: Request) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 12 or int(length) > MAX_BODY):
        raise _too_large()
    try:
        with anyio.fail_after(BODY_SECONDS):
            body = await read_bounded(request.stream(), MAX_BODY)
    except TimeoutError:
        raise Refused(
            408, "too_slow", f"the body did not arrive within {BODY_SECONDS:g} s"
        ) from None
    except ClientDisconnect:
        raise Refused(400, "broken_off", "the body is not complete") from None
    if body is None:
        raise _too_large()
    return body


def _too_large() -> Refused:
    return Refused(413, "too_large", f"the body must have at most {MAX_BODY} bytes")


# ---- The message ----


@dataclass(frozen=True, slots=True)
class Note:
    """The fields of a posted message."""

    id: str
    sender: str
    target: str
    text: str
    images: tuple[Image, ...]
    session: str


def parse_note(body: bytes) -> Note:
    """Parses a body.

    Raises:
        Refused: The body is not a valid message.
    """
    try:
        data = json.loads(body.decode("utf-8"), parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise Refused(400, "bad_json", "the body is not JSON") from None
    if not isinstance(data, dict):
        raise Refused(400, "bad_json", "the body is not a JSON object")
    text = data.get("text", "")
    if not isinstance(text, str):
        raise _wrong("text", "a string")
    note = Note(
        id=_name(data, "id", MAX_ID),
        sender=_name(data, "sender", MAX_ID),
        target=_name(data, "target", MAX_TARGET),
        text=text.encode("utf-8", "replace").decode(),  # a lone surrogate cannot be encoded
        images=_images(data.get("images")),
        session=_name(data, "session", MAX_TARGET) if data.get("session") else "",
    )
    if not note.text.strip() and not note.images:
        raise _wrong("text", "a text that is not empty")
    return note


def _wrong(field: str, expected: str) -> Refused:
    return Refused(400, "bad_field", f"`{field}` must be {expected}")


def _name(data: JsonObject, field: str, limit: int) -> str:
    """Returns a short, printable text, which is safe in logs, keys and requests."""
    value = data.get(field)
    if isinstance(value, str) and 0 < len(value) <= limit and value.isprintable():
        return value
    raise _wrong(field, f"a string of 1 to {limit} printable characters")


def _images(value: JsonValue) -> tuple[Image, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_IMAGES:
        raise _wrong("images", f"a list of at most {MAX_IMAGES}")
    return tuple(_image(item, f"images[{number}]") for number, item in enumerate(value))


def _image(item: JsonValue, field: str) -> Image:
    data, kind = (item.get("data"), item.get("mimeType")) if isinstance(item, dict) else (0, 0)
    if not isinstance(data, str) or kind not in IMAGE_TYPES:
        raise _wrong(field, "{data, mimeType} with one of " + ", ".join(IMAGE_TYPES))
    try:
        return Image.parse(data, str(kind))
    except BadMessage:
        raise _wrong(f"{field}.data", "base64") from None
